/* surrogates.h5: the pseudo-derivatives of four libraries, by name and in the threshold op. */
#include "tests/golden.h"
#include <stdio.h>

/* The libraries' functions as rows of kernels/surrogate.h. A parameter is an attribute of the
 * group (or the constant, where there is none) times threshold^power. */
static const struct function {
    const char *name, *row;
    struct {
        const char *attribute;
        double constant;
        int power;
    } p[RV_SURROGATE_PARAMS];
} functions[] = {
    {"ATan", "atan", {{"alpha", 2, 0}}},
    {"atan", "atan", {{"alpha", 2, 0}}},
    {"fast_sigmoid", "fast_sigmoid", {{"slope", 25, 0}}},
    {"Sigmoid", "sigmoid", {{"alpha", 4, 0}}},
    {"sigmoid", "sigmoid", {{"slope", 25, 0}}},
    {"super", "superspike", {{NULL, 1, 0}}}, /* this version ignores alpha */
    {"SuperSpike", "superspike", {{"alpha", 1, 0}}},
    {"triangle", "triangle", {{"alpha", 0.3, 0}, {NULL, 1, 0}}},
    {"tanh", "tanh", {{"alpha", 1, 0}}},
    {"circ", "circ", {{"alpha", 0.5, 0}}},
    {"heavi_erfc", "erfc", {{"alpha", 1, 0}}},
    {"Gaussian", "gaussian", {{"sigma", 0.5, 0}, {"mu", 0, 0}, {"grad_scale", 1, 0}}},
    {"MultiGaussian",
     "multi_gaussian",
     {{"sigma", 0.5, 0}, {"h", 0.15, 0}, {"s", 6, 0}, {"grad_scale", 1, 0}}},
    {"Heaviside", "step", {{NULL, 1, -1}, {"window", 1, 0}}},
    {"SingleExponential", "single_exponential", {{"grad_width", 0.5, 1}, {"grad_scale", 1, 0}}},
    {"PeriodicExponential",
     "periodic_exponential",
     {{"grad_width", 0.5, 0}, {"grad_scale", 1, 0}, {NULL, 1, 1}}},
    {"SFS", "sfs", {{"slope", 25, 0}, {"B", 1, 0}}},
    {"heaviside", "heaviside", {{NULL, 0, 0}}},
    {"spike_rate_escape", "spike_rate_escape", {{"beta", 1, 0}, {"slope", 25, 0}}},
    {"straight_through_estimator", "straight_through", {{NULL, 0, 0}}},
    {"triangular", "sign", {{"threshold", 1, 0}}},
    {"Erf", "erf", {{"alpha", 2, 0}}},
    {"LeakyKReLU", "leaky_k_relu", {{"leak", 0, 0}, {"k", 1, 0}}},
    {"PiecewiseExp", "piecewise_exp", {{"alpha", 1, 0}}},
    {"PiecewiseLeakyReLU", "piecewise_leaky_relu", {{"w", 1, 0}, {"c", 0.01, 0}}},
    {"PiecewiseQuadratic", "piecewise_quadratic", {{"alpha", 1, 0}}},
    {"QPseudoSpike", "q_pseudo_spike", {{"alpha", 2, 0}}},
    {"Rect", "rect", {{"alpha", 1, 0}}},
    {"SoftSign", "softsign", {{"alpha", 2, 0}}},
};

bool golden_surrogate_of(golden_case *c, const char *function, const char *prefix, double threshold,
                         rv_surrogate *out) {
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
        const struct function *f = &functions[k];
        if (strcmp(f->name, function) != 0) continue;
        const rv_row *row = rv_table_find(rv_surrogate_table(), f->row);
        if (!row) break;
        out->kind = rv_table_index(rv_surrogate_table(), row);
        for (int i = 0; i < RV_SURROGATE_PARAMS; i++) {
            char attribute[64] = "";
            if (f->p[i].attribute)
                snprintf(attribute, sizeof attribute, "%s%s", prefix, f->p[i].attribute);
            double value =
                *attribute ? golden_number(c, attribute, f->p[i].constant) : f->p[i].constant;
            out->p[i] = (float)(value * pow(threshold, f->p[i].power));
        }
        return true;
    }
    snprintf(c->text, sizeof c->text, "no surrogate for %s", function);
    return false;
}

golden_verdict golden_surrogate(golden_case *c) {
    const rv_ops *ops = c->device->ops;
    rv_surrogate s = {0};
    double theta = golden_number(c, "threshold", 1);
    if (!golden_surrogate_of(c, golden_word(c, "function"), "", theta, &s)) return GOLDEN_UNKNOWN;
    const golden_array *x = golden_get(c, "x");
    const golden_array *want = golden_get(c, golden_has(c, "dsdx_finite") ? "dsdx_finite" : "dsdx");
    if (want->n != x->n) golden_fail(c, "dsdx has %zu values for %zu of x", want->n, x->n);
    if (c->failed) return GOLDEN_DIFFER;
    float *got = golden_memory(c, x->n, sizeof *got);
    for (size_t k = 0; k < x->n; k++)
        got[k] = (float)rv_surrogate_value(&s, x->v[k]);
    golden_close(c, "dsdx", want, got, (int)x->n, GOLDEN_MEMBRANE, 0);

    /* As the neurons use it: a spike where x is at or above 0 and the adjoint of that. */
    int n = (int)x->n, ld = rv_round_up(n, RV_LANES);
    bool strict = strcmp(golden_word(c, "compare"), ">") == 0;
    rv_values in = golden_values(c, 1, 1, n), g = golden_values(c, 1, 1, n);
    rv_values gx = golden_values(c, 1, 1, n);
    rv_spikes bits = golden_spikes(c, 1, 1, n);
    float *zero = golden_memory(c, (size_t)ld, sizeof *zero);
    in.data = golden_rows(c, x, ld);
    for (int u = 0; u < n; u++)
        g.data[u] = 1;
    if (golden_ok(c, ops->threshold_forward(c->device->ctx, NULL, in, zero, strict, bits)))
        golden_same_spikes(c, "spike", golden_get(c, "spike"), bits);
    if (golden_ok(c,
                  ops->threshold_backward(c->device->ctx, NULL, in, zero, &s, g, gx, false, NULL)))
        golden_close(c, "dsdx of the op", want, gx.data, ld, GOLDEN_MEMBRANE, 0);
    return golden_done(c);
}
