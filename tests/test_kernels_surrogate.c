/*
 * Surrogates in float, as the kernels run them: against their closed forms written out anew in
 * double, finite for every finite input; the elementary functions under them against libm; the
 * tables of surrogates and neurons.
 */
#include "kernels/neuron.h"
#include "kernels/surrogate.h"
#include "tests/ops.h"

#include <float.h>

static double sech2(double x) {
    return 1 - tanh(x) * tanh(x);
}
static double logistic_slope(double alpha, double x) { /* the naive form, in double */
    double s = 1 / (1 + exp(-alpha * x));
    return alpha * s * (1 - s);
}
static double normal(double x, double mu, double sigma) {
    return exp(-(x - mu) * (x - mu) / (2 * sigma * sigma)) / (sigma * sqrt(2 * M_PI));
}

/* The formulas of the libraries, with the defaults of our table. */
#define FORMS(X)                                                                                   \
    X(atan, 2.0 / 2 / (1 + pow(M_PI / 2 * 2.0 * x, 2)))                                            \
    X(fast_sigmoid, 1 / pow(25 * fabs(x) + 1, 2))                                                  \
    X(fast_sigmoid_window, fabs(x) < 0.2 ? 1 / pow(100 * fabs(x) + 1, 2) : 0)                      \
    X(sigmoid, logistic_slope(4, fabs(x)))                                                         \
    X(triangle, 0.3 * fmax(0, 1 - fabs(x)))                                                        \
    X(piecewise_quadratic, fabs(x) <= 1 ? 1 - fabs(x) : 0)                                         \
    X(piecewise_exp, 0.5 * exp(-fabs(x)))                                                          \
    X(softsign, 1 / (2 * 2.0 * pow(1 / 2.0 + fabs(x), 2)))                                         \
    X(superspike, 1 / pow(fabs(x) + 1, 2))                                                         \
    X(erf, 2 / sqrt(M_PI) * exp(-4 * x * x))                                                       \
    X(erfc, 2 / sqrt(M_PI) * exp(-x * x))                                                          \
    X(gaussian, normal(x, 0, 0.5))                                                                 \
    X(multi_gaussian,                                                                              \
      1.15 * normal(x, 0, 0.5) - 0.15 * normal(x, 0.5, 3) - 0.15 * normal(x, -0.5, 3))             \
    X(boxcar, fabs(x) < 0.5 ? 1 : 0)                                                               \
    X(rect, fabs(x) < 0.5 ? 1 : 0)                                                                 \
    X(piecewise_leaky_relu, fabs(x) < 1 ? 0.5 : 0.01)                                              \
    X(leaky_k_relu, x >= 0 ? 1 : 0)                                                                \
    X(q_pseudo_spike, pow(1 + 2 * fabs(x), -2))                                                    \
    X(single_exponential, 2 * exp(-fabs(x) * 2))                                                   \
    X(periodic_exponential, exp(-2 * fabs(x < 0 ? x : 2 * (x + 0.5 - floor(x + 0.5)) - 1)))        \
    X(tanh, sech2(x))                                                                              \
    X(circ, 2 * 0.5 * (1 / (2 * sqrt(0.25 + x * x)) - x * x / (2 * pow(0.25 + x * x, 1.5))))       \
    X(arctan, 1 / (M_PI * (1 + pow(2 * M_PI * x, 2))))                                             \
    X(straight_through, 1 + 0 * x)                                                                 \
    X(heaviside, x > 0 ? 1 : 0)                                                                    \
    X(step, x >= -1 ? 1 : 0)                                                                       \
    X(sign, x >= 0 ? -1 : 1)                                                                       \
    X(sfs, x > 1 ? 1 / pow(25 * fabs(x) + 1, 2) : 0)                                               \
    X(spike_rate_escape, 25 * exp(-fabs(x - 1)))                                                   \
    X(s2nn, x < 0 ? logistic_slope(4, x) : 1 / (x + 1))                                            \
    X(nonzero_sign_log_abs, 1 / (1 + fabs(x)))                                                     \
    X(log_tailed_relu, x > 1 ? 1 / x : x > 0 ? 1 : 0)                                              \
    X(fake_numerical, fmin(1 / fabs(x), 0.3))

#define FORM(name, form)                                                                           \
    static double form_##name(double x) {                                                          \
        return form;                                                                               \
    }
FORMS(FORM)

static const struct form {
    const char *name;
    double (*value)(double x);
} forms[] = {
#define FORM_ROW(name, form) {#name, form_##name},
    FORMS(FORM_ROW)};

static void defaults_of(int kind, float p[RV_SURROGATE_PARAMS]) {
    rv_surrogate_options options = {{0}};
    rv_specs_default(rv_table_row(rv_surrogate_table(), kind)->specs, &options);
    for (int k = 0; k < RV_SURROGATE_PARAMS; k++)
        p[k] = (float)options.p[k];
}

static void surrogate_equals_its_closed_form(void **state) {
    (void)state;
    assert_int_equal(sizeof forms / sizeof forms[0], RV_SURROGATES);
    for (int kind = 0; kind < RV_SURROGATES; kind++) {
        const rv_row *row = rv_table_row(rv_surrogate_table(), kind);
        rv_surrogate s = {.kind = kind};
        assert_string_equal(row->name, forms[kind].name);
        defaults_of(kind, s.p);
        for (int k = -4000; k <= 4000; k++) {
            float u = (float)k * 1.3e-3f; /* no jump lies on the grid but at 0 */
            double want = forms[kind].value((double)u);
            float got = rv_surrogate_slope(kind, u, s.p);
            if (!(fabs((double)got - want) <= 2e-6 * (fabs(want) + 1e-2)))
                fail_msg("%s(%g) = %.9g, expected %.9g", row->name, (double)u, (double)got, want);
            double exact = rv_surrogate_value(&s, (double)u); /* parameters are floats */
            if (!(fabs(exact - want) <= 1e-6 * (fabs(want) + 1e-2)))
                fail_msg("%s(%g) = %.9g, expected %.9g", row->name, (double)u, exact, want);
        }
    }
}

static void surrogate_is_finite_for_every_finite_input(void **state) {
    (void)state;
    static const float sizes[] = {0,     FLT_MIN, 1e-20f,  1e-6f, 0.1f,  1,
                                  3.5f,  10,      50,      87.4f, 100,   1e3f,
                                  1e10f, 1e19f,   1.9e19f, 1e30f, 3e38f, FLT_MAX};
    for (int kind = 0; kind < RV_SURROGATES; kind++) {
        const rv_spec *specs = rv_table_row(rv_surrogate_table(), kind)->specs;
        for (int corner = 0; corner < 3; corner++) { /* defaults, near the least, the most */
            float p[RV_SURROGATE_PARAMS];
            defaults_of(kind, p);
            for (int k = 0; corner > 0 && specs[k].name; k++)
                p[k] = corner == 2     ? (float)specs[k].most
                       : specs[k].open ? (float)specs[k].least + 1e-3f
                                       : (float)specs[k].least;
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    float value = rv_surrogate_slope(kind, (float)sign * sizes[i], p);
                    if (!isfinite(value))
                        fail_msg("%s(%g) is not finite at corner %d", forms[kind].name,
                                 (double)((float)sign * sizes[i]), corner);
                }
        }
    }
}

/* The largest distance from libm in units of the last place. */
static double worst_ulp(float (*ours)(float), double (*libm)(double), float from, float to) {
    double worst = 0;
    for (int k = 0; k <= 200000; k++) {
        float x = from + (to - from) * ((float)k / 200000);
        double want = libm((double)x);
        double ulp = ldexp(1, ilogb(want) - 23);
        double error = fabs((double)ours(x) - want) / ulp;
        if (worst < error) worst = error;
    }
    return worst;
}
static float our_exp(float x) {
    return rv_exp(x);
}
static float our_log(float x) {
    return rv_log(x);
}

static void elementary_functions_are_within_two_last_places(void **state) {
    (void)state;
    assert_true(worst_ulp(our_exp, exp, -87, 0) < 2);
    assert_true(worst_ulp(our_exp, exp, -1, 0) < 2);
    assert_true(worst_ulp(our_log, log, 1.001f, 3) < 2);
    assert_true(worst_ulp(our_log, log, 3, 1e7f) < 2);
    assert_true(rv_exp(0) == 1 && rv_exp(-88) == 0 && rv_exp(-INFINITY) == 0);
    assert_true(rv_log(1) == 0);
    for (float x = -20; x < 20; x += 0.37f)
        assert_true(fabsf(rv_frac(x) - (x - floorf(x))) < 1e-6f);
    assert_true(rv_frac(1e30f) == 0 && rv_frac(-1e30f) == 0);
}

/* Bits of every kind, so that products, sums and cancellations of all sizes occur. */
static float any_float(uint32_t *state) {
    uint32_t bits = test_random(state) << 8 ^ test_random(state);
    float x;
    bits = (bits & 0x80ffffffu) | (100 + test_random(state) % 56) << 23;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void emulated_fma_equals_the_fused_one(void **state) {
    (void)state;
    uint32_t random = 9;
    for (int k = 0; k < 2000000; k++) {
        float a = any_float(&random), b = any_float(&random), c = any_float(&random);
        if (k % 3 == 0) c = -(a * b);                  /* all but the last bits cancel */
        if (k % 7 == 0) c = ldexpf(a * b, 24 + k % 3); /* a sum half way between two floats */
        float want = fmaf(a, b, c), got = rv_fma_emulated(a, b, c);
        if (memcmp(&want, &got, sizeof want) != 0)
            fail_msg("fma(%a, %a, %a) = %a, expected %a", (double)a, (double)b, (double)c,
                     (double)got, (double)want);
    }
    assert_true(isinf(rv_fma_emulated(3e38f, 10, 1)) && rv_fma_emulated(-3e38f, 10, 1) < 0);
    assert_true(isnan(rv_fma_emulated(NAN, 1, 1)));
    assert_true(isinf(rv_fma_emulated(INFINITY, 1, 1)));
}

static void tables_have_names_and_defaults_within_limits(void **state) {
    (void)state;
    const rv_table *tables[] = {rv_surrogate_table(), rv_neuron_table()};
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < tables[k]->count; r++) {
            const rv_row *row = rv_table_row(tables[k], r);
            assert_true(row->sentence && row->sentence[0] && row->source && row->source[0]);
            assert_ptr_equal(rv_table_find(tables[k], row->name), row); /* no name twice */
            for (const rv_spec *s = row->specs; s->name; s++) {
                if (s->type != RV_T_REAL && s->type != RV_T_REALS) continue;
                if (isnan(s->initial)) continue;
                assert_true(s->initial >= s->least && s->initial <= s->most);
                assert_true(!s->open || s->initial > s->least);
            }
        }
    rv_neuron_options options;
    memset(&options, 0, sizeof options);
    rv_specs_default(rv_table_find(rv_neuron_table(), "alif")->specs, &options);
    assert_true(options.detach_reset);
    assert_true(isnan(options.tau.value) && options.beta.value == 0.95f);
    assert_string_equal(options.surrogate.row->name, "atan");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(surrogate_equals_its_closed_form),
        cmocka_unit_test(surrogate_is_finite_for_every_finite_input),
        cmocka_unit_test(elementary_functions_are_within_two_last_places),
        cmocka_unit_test(emulated_fma_equals_the_fused_one),
        cmocka_unit_test(tables_have_names_and_defaults_within_limits),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("kernels_surrogate", tests, NULL, NULL);
}
