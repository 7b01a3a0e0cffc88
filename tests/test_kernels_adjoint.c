/*
 * The adjoint of every neuron, reset, detachment and surrogate against finite differences of a
 * smooth layer in double. Points within 1e-4 of a jump are drawn again; the limit is 1e-6.
 */
#include "tests/neuron_model.h"

enum { UNITS = 2, STEPS = 5 };
static const double LIMIT = 1e-6, EPSILON = 2e-6;

static smooth smooths[RV_SURROGATES];

typedef struct check {
    model *m;
    model_run *run, *other;
    double worst, scale;
    char what[80];
} check;

/* Derivative with respect to *value, against `want`. */
static void compare(check *c, double *value, double want, const char *what, int index) {
    double kept = *value, up, down, got;
    model_hook.replay = true;
    *value = kept + EPSILON;
    up = model_forward(c->m, c->other);
    *value = kept - EPSILON;
    down = model_forward(c->m, c->other);
    *value = kept;
    got = (up - down) / (2 * EPSILON);
    double error = fabs(got - want) / (1 + fabs(want) + c->scale);
    if (!(error <= c->worst)) {
        c->worst = error;
        snprintf(c->what, sizeof c->what, "%s[%d]: adjoint %.9g, differences %.9g", what, index,
                 want, got);
    }
}

static const char *const param_names[] = {
#define PARAM_NAME(upper, lower) #lower,
    RV_NEURON_PARAM_LIST(PARAM_NAME)
#undef PARAM_NAME
};

static void compare_all(check *c) {
    model *m = c->m;
    model_run *r = c->run;
    const struct model_kind *kind = &model_kinds[m->neuron.kind];
    for (int t = 0; t < m->T; t++)
        for (int u = 0; u < m->n; u++)
            if (fabs(r->gx[t][u]) > c->scale) c->scale = fabs(r->gx[t][u]);
    for (int t = 0; t < m->T; t++)
        for (int u = 0; u < m->n; u++)
            compare(c, &m->x[t][u], r->gx[t][u], "x", t * m->n + u);
    for (int u = 0; u < m->n; u++) {
        compare(c, &m->first[u].v, r->g_first_v[u], "first v", u);
        if (kind->traits & RV_HAS_CURRENT)
            compare(c, &m->first[u].i, r->g_first_i[u], "first i", u);
        for (int p = 0; p < RV_P_COUNT; p++) {
            bool has = kind->params >> p & 1u;
            if (p == RV_P_GAIN && m->neuron.gain_tied) has = false;
            if (p == RV_P_RESET && m->neuron.reset != RV_RESET_VALUE) has = false;
            if (has)
                compare(c, model_param(&m->unit[u], p), *model_param(&r->grad[u], p),
                        param_names[p], u);
        }
    }
}

/* One layer; returns false where a point came too near a jump. */
static bool attempt(check *c, uint32_t *state, bool recurrent, int start) {
    static double held[2 * STEPS * UNITS], weight[UNITS * UNITS], bias[UNITS];
    model *m = c->m;
    m->T = STEPS;
    m->n = UNITS;
    model_fill(m, state);
    memset(m->starts, 0, sizeof m->starts);
    if (start > 0) m->starts[start] = true;
    for (int k = 0; k < UNITS * UNITS; k++)
        weight[k] = model_random(state, -0.5, 0.5);
    for (int k = 0; k < UNITS; k++)
        bias[k] = model_random(state, -0.1, 0.1);
    m->weight = recurrent ? weight : NULL;
    m->bias = recurrent ? bias : NULL;
    model_hook.smooth = &smooths[m->neuron.surrogate.kind];
    model_hook.nearest = 1;
    model_hook.outside = false;
    model_hook.held = held;
    model_hook.replay = false;
    model_forward(m, c->run);
    if (model_hook.nearest < 1e-4 || model_hook.outside) return false;
    model_backward(m, c->run);
    compare_all(c);
    return true;
}

static void check_neuron(const rv_neuron *neuron, uint32_t *state, bool recurrent, int start) {
    static model m;
    static model_run run, other;
    check c = {.m = &m, .run = &run, .other = &other};
    int tries = 0;
    memset(&m, 0, sizeof m);
    m.neuron = *neuron;
    while (!attempt(&c, state, recurrent, start))
        if (++tries == 50) fail_msg("no point away from a jump");
    if (c.worst > LIMIT)
        fail_msg("%s, %s, reset %d%s%s%s%s%s: %s",
                 rv_table_row(rv_neuron_table(), neuron->kind)->name,
                 rv_table_row(rv_surrogate_table(), neuron->surrogate.kind)->name, neuron->reset,
                 neuron->reset_over_beta ? " next" : "", neuron->detach_reset ? " detached" : "",
                 neuron->detach_adaptation ? " detached adaptation" : "",
                 neuron->gain_tied ? " tied" : "", recurrent ? " recurrent" : "", c.what);
}

/* Every kind, reset (the delayed one too), detachment and tie for one surrogate. */
static void check_surrogate(int surrogate, bool recurrent, int start) {
    uint32_t state = 17 + (uint32_t)surrogate;
    for (int kind = 0; kind < RV_NEURONS; kind++) {
        bool adapts = model_kinds[kind].traits & RV_HAS_ADAPTATION;
        bool spikes = model_kinds[kind].traits & RV_HAS_SPIKES;
        for (int reset = 0; reset < (spikes ? 5 : 1); reset++)
            for (int flags = 0; flags < (adapts ? 8 : 4); flags++) {
                rv_neuron neuron = {.kind = kind,
                                    .reset = reset < 4 ? (rv_reset)reset : RV_RESET_SUBTRACT,
                                    .reset_over_beta = reset == 4,
                                    .detach_reset = flags & 1,
                                    .gain_tied = flags & 2,
                                    .detach_adaptation = flags & 4,
                                    .surrogate = {.kind = surrogate}};
                if (!spikes && recurrent) continue;
                check_neuron(&neuron, &state, recurrent, start);
            }
    }
}

static void adjoint_every_combination_equals_differences(void **state) {
    (void)state;
    for (int s = 0; s < RV_SURROGATES; s++)
        check_surrogate(s, false, 0);
}

static void adjoint_of_recurrent_layers_equals_differences(void **state) {
    (void)state;
    check_surrogate(RV_SURROGATE_atan, true, 0);
    check_surrogate(RV_SURROGATE_fast_sigmoid, true, 0);
}

static void adjoint_is_cut_where_a_sample_starts(void **state) {
    (void)state;
    check_surrogate(RV_SURROGATE_sigmoid, false, 3);
    check_surrogate(RV_SURROGATE_sigmoid, true, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adjoint_every_combination_equals_differences),
        cmocka_unit_test(adjoint_of_recurrent_layers_equals_differences),
        cmocka_unit_test(adjoint_is_cut_where_a_sample_starts),
    };
    (void)rv_flush_set();
    for (int s = 0; s < RV_SURROGATES; s++)
        smooth_init(&smooths[s], s);
    return cmocka_run_group_tests_name("kernels_adjoint", tests, NULL, NULL);
}
