/* Initial values: bounds, mean, deviation, independence of layout and of other layers. */
#include "tests/small.h"

enum { IN = 300, UNITS = 257 };

typedef struct values {
    small s;
    double *weight, *bias;
    size_t n;
} values;

static double *exported(small *s, const char *name, const float *block) {
    const rv_tensor *tensor = rv_net_tensor_find(s->net, name);
    if (!tensor) fail_msg("no tensor %s", name);
    size_t n = rv_tensor_elements(tensor);
    float *file = small_memory(s, n, sizeof *file);
    double *out = small_memory(s, n, sizeof *out);
    rv_tensor_export(tensor, block, file);
    for (size_t k = 0; k < n; k++)
        out[k] = (double)file[k];
    return out;
}

/* fc (IN to UNITS) then lif, under an init row; NULL: the default. */
static void start(values *v, const char *init, bool recurrent) {
    small *s = &v->s;
    memset(v, 0, sizeof *v);
    s->net_desc.input = (rv_shape){1, {IN}};
    s->net_desc.seed = 42;
    s->net_desc.steps = 50;
    rv_layer_desc *fc = small_linear(s, "fc", UNITS, true);
    small_neuron(s, "lif", "lif", 0.9)->recurrent = recurrent;
    if (init) fc->init = s->layers[1].init = small_choice(s, rv_init_table(), init);
    OK(rv_net_create(&s->net_desc, &s->net));
    float *block = small_memory(s, s->net->n_all, sizeof *block);
    OK(rv_net_init(s->net, block));
    v->n = (size_t)IN * UNITS;
    v->weight = exported(s, recurrent ? "lif.recurrent_weight" : "fc.weight", block);
    if (recurrent) v->n = (size_t)UNITS * UNITS;
    v->bias = exported(s, "fc.bias", block);
}

static void moments(const double *x, size_t n, double *mean, double *deviation, double *most) {
    double sum = 0, squares = 0;
    *most = 0;
    for (size_t k = 0; k < n; k++) {
        sum += x[k];
        squares += x[k] * x[k];
        *most = fmax(*most, fabs(x[k]));
    }
    *mean = sum / (double)n;
    *deviation = sqrt(squares / (double)n - *mean * *mean);
}

/* Five standard errors of the mean, 1 % of the deviation (five standard errors are 0.9 %). */
static void check_moments(const values *v, double deviation) {
    double mean, got, most;
    moments(v->weight, v->n, &mean, &got, &most);
    if (fabs(mean) > 5 * deviation / sqrt((double)v->n)) fail_msg("mean %g", mean);
    if (fabs(got / deviation - 1) > 0.015) fail_msg("deviation %g, wanted %g", got, deviation);
}

static void check_uniform(const values *v, double bound) {
    double mean, deviation, most;
    check_moments(v, bound / sqrt(3));
    moments(v->weight, v->n, &mean, &deviation, &most);
    assert_true(most <= bound);
    assert_true(most > 0.999 * bound);
}

static void default_is_uniform_within_the_root_of_fan_in(void **state) {
    (void)state;
    values v;
    double mean, deviation, most;
    start(&v, NULL, false);
    check_uniform(&v, 1 / sqrt(IN));
    moments(v.bias, UNITS, &mean, &deviation, &most);
    assert_true(most <= 1 / sqrt(IN) && most > 0.9 / sqrt(IN));
    assert_true(fabs(mean) < 5 / sqrt(3.0 * IN * UNITS));
    small_finish(&v.s);
}

static void distributions_have_their_deviations(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double deviation;
    } rows[] = {
        {"kaiming_normal", 0.08164965809277260}, /* sqrt(2/300) */
        {"xavier", 0.05992507966},               /* sqrt(2/557) */
        {"normal", 0.1},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        values v;
        start(&v, rows[k].name, false);
        check_moments(&v, rows[k].deviation);
        for (int u = 0; u < UNITS; u++)
            assert_true(v.bias[u] == 0);
        small_finish(&v.s);
    }
}

static void normal_has_tails_and_no_more(void **state) {
    (void)state;
    values v;
    size_t beyond[4] = {0};
    start(&v, "normal", false);
    for (size_t k = 0; k < v.n; k++)
        for (int d = 1; d < 4; d++)
            beyond[d] += fabs(v.weight[k]) > 0.1 * d;
    assert_true(fabs((double)beyond[1] / (double)v.n - 0.31731) < 0.01);
    assert_true(fabs((double)beyond[2] / (double)v.n - 0.04550) < 0.005);
    assert_true(fabs((double)beyond[3] / (double)v.n - 0.00270) < 0.001);
    for (size_t apart = 1; apart < 9; apart++) { /* neighbours know nothing of each other */
        double product = 0;
        for (size_t k = 0; k + apart < v.n; k++)
            product += v.weight[k] * v.weight[k + apart] / 0.01;
        assert_true(fabs(product) < 5 * sqrt((double)v.n));
    }
    small_finish(&v.s);
}

/* var = (theta sigma)^2 / (n rate sum beta^2k), beta 0.9 over 50 steps, rate 0.05. */
static void fluctuation_makes_the_membrane_fluctuate(void **state) {
    (void)state;
    double response = (1 - pow(0.81, 50)) / 0.19;
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        values v;
        start(&v, "fluctuation", recurrent);
        double fan = recurrent ? UNITS : IN, share = recurrent ? 0.1 : 1;
        check_moments(&v, sqrt(share / (fan * 0.05 * response)));
        small_finish(&v.s);
    }
}

static void recurrent_weight_is_drawn_for_its_own_fan_in(void **state) {
    (void)state;
    values v;
    start(&v, NULL, true);
    check_uniform(&v, 1 / sqrt(UNITS));
    small_finish(&v.s);
}

static void values_are_those_of_philox_in_file_order(void **state) {
    (void)state;
    values v;
    start(&v, NULL, false);
    for (uint32_t e = 0; e < 4000; e += 37) {
        uint32_t word[4];
        rv_random4(word, 42, RV_FOR_INIT, 0, 0, 0, 0, e / 4);
        double want = (2 * ((word[e % 4] >> 8) + 0.5) * 0x1p-24 - 1) / sqrt(IN);
        assert_true(fabs(v.weight[e] - want) < 1e-8);
    }
    small_finish(&v.s);
}

static void seeds_and_layers_differ(void **state) {
    (void)state;
    values v;
    start(&v, NULL, false);
    small s = {0};
    s.net_desc.input = (rv_shape){1, {IN}};
    s.net_desc.steps = 1;
    small_linear(&s, "first", IN, true);
    small_linear(&s, "fc", UNITS, true);
    s.net_desc.seed = 42;
    OK(rv_net_create(&s.net_desc, &s.net));
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    OK(rv_net_init(s.net, block));
    double *second = exported(&s, "fc.weight", block);
    s.net_desc.seed = 43;
    OK(rv_net_init(s.net, block));
    double *reseeded = exported(&s, "fc.weight", block);
    int same[2] = {0};
    for (size_t k = 0; k < v.n; k++) {
        same[0] += second[k] == v.weight[k];
        same[1] += reseeded[k] == second[k];
    }
    assert_true(same[0] < 20 && same[1] < 20);
    small_finish(&s);
    small_finish(&v.s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_is_uniform_within_the_root_of_fan_in),
        cmocka_unit_test(distributions_have_their_deviations),
        cmocka_unit_test(normal_has_tails_and_no_more),
        cmocka_unit_test(fluctuation_makes_the_membrane_fluctuate),
        cmocka_unit_test(recurrent_weight_is_drawn_for_its_own_fan_in),
        cmocka_unit_test(values_are_those_of_philox_in_file_order),
        cmocka_unit_test(seeds_and_layers_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
