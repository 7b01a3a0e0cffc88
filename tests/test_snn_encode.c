/*
 * Encoders: what spikes when, rates, and that the bits of a step depend on sample, step and unit
 * alone: not on the chunk, the row in the batch or the samples beside it.
 */
#include "tests/small.h"

enum { UNITS = 50, BATCH = 5, STEPS = 24 };

typedef struct coding {
    small s;
    rv_encoding encoding;
    rv_arena arena;
} coding;

static void real_option(const rv_choice *choice, const char *name, double value) {
    for (const rv_spec *spec = choice->row->specs; spec->name; spec++)
        if (strcmp(spec->name, name) == 0) {
            char *at = (char *)choice->options + spec->offset;
            if (spec->type == RV_T_REAL)
                *(double *)(void *)at = value;
            else if (spec->type == RV_T_BOOL)
                *(bool *)(void *)at = value != 0;
            else
                *(int *)(void *)at = (int)value;
            return;
        }
    fail_msg("%s has no option %s", choice->row->name, name);
}

static rv_status check(coding *c, int frames, bool spikes) {
    rv_source source = {.shape = c->s.net_desc.input, .steps = frames, .spikes = spikes};
    return rv_encoder_check(&c->s.encoder, &source, &c->encoding);
}

/* `frames` 0: one frame per sample. */
static void start(coding *c, const char *encoder, int frames) {
    memset(c, 0, sizeof *c);
    c->s.net_desc.input = (rv_shape){1, {UNITS}};
    small_batch(&c->s, BATCH, frames, 2, 21);
    c->s.encoder = small_choice(&c->s, rv_encoder_table(), encoder);
    real_option(&c->s.encoder, "steps", STEPS);
    OK(rv_device_open("cpu", RV_ISA_AUTO, 1, &c->s.device));
    OK(check(c, frames, false));
    assert_int_equal(c->encoding.steps, STEPS);
}

static void finish(coding *c) {
    rv_arena_finish(&c->arena);
    small_finish(&c->s);
}

static rv_signal encode(coding *c, int row, int B, int t0, int t1) {
    rv_signal out = {{0}, {0}};
    OK(rv_encode(&c->s.encoder, &c->s.device, NULL, &c->s.batch, row, B, 77, t0, t1, &c->arena,
                 &out));
    return out;
}

static float at(rv_signal x, int t, int b, int u) {
    if (!x.spikes.bits)
        return x.values.data[(size_t)t * x.values.stride_t + (size_t)(b * x.values.ld + u)];
    const uint32_t *row =
        x.spikes.bits + (size_t)t * x.spikes.stride_t + (size_t)(b * rv_words(x.spikes.n));
    return (float)(row[u / 32] >> u % 32 & 1u);
}

static int units(rv_signal x) {
    return x.spikes.bits ? x.spikes.n : x.values.n;
}

/* ---- pure functions ---------------------------------------------------------------------- */
static const struct {
    const char *name;
    int frames;
    const char *option;
    double value;
} every[] = {
    {"constant", 0, "steps", STEPS},  {"constant", STEPS, "steps", STEPS},
    {"rate", 0, "steps", STEPS},      {"latency", 0, "normalize", 1},
    {"latency", 0, "linear", 1},      {"delta", STEPS, "off_spike", 0},
    {"delta", STEPS, "off_spike", 1}, {"phase", 0, "bits", 5},
    {"population", 0, "neurons", 3},
};

static void parts_equal_the_whole(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof every / sizeof *every; k++) {
        coding c;
        start(&c, every[k].name, every[k].frames);
        real_option(&c.s.encoder, every[k].option, every[k].value);
        OK(check(&c, every[k].frames, false));
        rv_signal whole = encode(&c, 0, BATCH, 0, STEPS);
        assert_int_equal(units(whole), rv_shape_units(c.encoding.shape));
        assert_int_equal(whole.spikes.bits != NULL, c.encoding.spikes);
        if (!whole.spikes.bits) assert_int_equal(whole.values.stride_t == 0, c.encoding.held);
        double sum = 0;
        for (int t0 = 0; t0 < STEPS; t0 += 7)
            for (int row = 0; row < BATCH; row += 2) {
                int t1 = t0 + 7 < STEPS ? t0 + 7 : STEPS, B = row + 2 < BATCH ? 2 : BATCH - row;
                rv_signal part = encode(&c, row, B, t0, t1);
                for (int t = t0; t < t1; t++)
                    for (int b = 0; b < B; b++)
                        for (int u = 0; u < units(whole); u++) {
                            assert_true(at(part, t - t0, b, u) == at(whole, t, row + b, u));
                            sum += (double)fabsf(at(whole, t, row + b, u));
                        }
            }
        assert_true(sum > 10);
        finish(&c);
    }
}

static void padding_bits_are_zero(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof every / sizeof *every; k++) {
        coding c;
        start(&c, every[k].name, every[k].frames);
        real_option(&c.s.encoder, every[k].option, every[k].value);
        rv_signal x = encode(&c, 0, BATCH, 0, STEPS);
        int words = rv_words(units(x));
        for (int r = 0; x.spikes.bits && r < STEPS * BATCH; r++)
            assert_int_equal(x.spikes.bits[r * words + words - 1] >> units(x) % 32, 0);
        finish(&c);
    }
}

static void given_memory_is_used(void **state) {
    (void)state;
    coding c;
    start(&c, "rate", 0);
    uint32_t *bits = small_memory(&c.s, STEPS * BATCH * 2, sizeof *bits);
    memset(bits, 0xff, sizeof *bits * STEPS * BATCH * 2);
    rv_signal mine = {.spikes = rv_spikes_of(bits, STEPS, BATCH, UNITS)};
    rv_signal other = encode(&c, 0, BATCH, 0, STEPS);
    OK(rv_encode(&c.s.encoder, &c.s.device, NULL, &c.s.batch, 0, BATCH, 77, 0, STEPS, &c.arena,
                 &mine));
    assert_ptr_equal(mine.spikes.bits, bits);
    assert_memory_equal(bits, other.spikes.bits, sizeof *bits * STEPS * BATCH * 2);
    finish(&c);
}

/* ---- rate -------------------------------------------------------------------------------- */
static void rate_equals_the_value(void **state) {
    (void)state;
    enum { LONG = 4000 };
    coding c;
    start(&c, "rate", 0);
    real_option(&c.s.encoder, "steps", LONG);
    rv_signal x = encode(&c, 0, 1, 0, LONG);
    for (int u = 0; u < UNITS; u++) {
        double p = (double)c.s.batch.input.values.data[u], count = 0;
        for (int t = 0; t < LONG; t++)
            count += (double)at(x, t, 0, u);
        assert_true(fabs(count / LONG - p) < 5 * sqrt(p * (1 - p) / LONG) + 1e-9);
    }
    finish(&c);
}

static void rate_is_keyed_by_sample_and_epoch(void **state) {
    (void)state;
    coding c;
    uint64_t same[BATCH] = {4, 4, 4, 4, 4};
    start(&c, "rate", 0);
    rv_values *in = &c.s.batch.input.values;
    for (int b = 1; b < BATCH; b++)
        memcpy(in->data + b * in->ld, in->data, sizeof(float) * UNITS);
    rv_signal differ = encode(&c, 0, BATCH, 0, STEPS);
    c.s.batch.sample = same;
    rv_signal equal = encode(&c, 0, BATCH, 0, STEPS);
    c.s.batch.epoch = 1;
    rv_signal later = encode(&c, 0, BATCH, 0, STEPS);
    int changed[2] = {0};
    for (int t = 0; t < STEPS; t++)
        for (int u = 0; u < UNITS; u++) {
            assert_true(at(equal, t, 1, u) == at(equal, t, 0, u));
            assert_true(at(equal, t, 1, u) == at(differ, t, 4, u));
            changed[0] += at(differ, t, 1, u) != at(differ, t, 0, u);
            changed[1] += at(later, t, 0, u) != at(equal, t, 0, u);
        }
    assert_true(changed[0] > 100 && changed[1] > 100);
    finish(&c);
}

static void rate_is_one_at_one_and_none_at_zero(void **state) {
    (void)state;
    coding c;
    start(&c, "rate", 0);
    for (int u = 0; u < UNITS; u++)
        c.s.batch.input.values.data[u] = (float)(u % 2);
    rv_signal x = encode(&c, 0, 1, 0, STEPS);
    for (int t = 0; t < STEPS; t++)
        for (int u = 0; u < UNITS; u++)
            assert_true(at(x, t, 0, u) == (float)(u % 2));
    finish(&c);
}

/* ---- times ------------------------------------------------------------------------------- */
static int only_spike(rv_signal x, int u) {
    int when = -1, count = 0;
    for (int t = 0; t < STEPS; t++)
        if (at(x, t, 0, u) > 0) when = t, count++;
    assert_true(count <= 1);
    return when;
}

static void latency_is_linear_or_logarithmic(void **state) {
    (void)state;
    coding c;
    const float values[] = {1, 0.75f, 0.5f, 0.26f, 0.005f};
    start(&c, "latency", 0);
    memcpy(c.s.batch.input.values.data, values, sizeof values);
    real_option(&c.s.encoder, "linear", 1);
    real_option(&c.s.encoder, "normalize", 1);
    rv_signal x = encode(&c, 0, 1, 0, STEPS);
    const int linear[] = {0, 6, 12, 17, 23}; /* 23 (1 - x); 11.5 rounds to even */
    for (int u = 0; u < 5; u++)
        assert_int_equal(only_spike(x, u), linear[u]);
    real_option(&c.s.encoder, "clip", 1);
    assert_int_equal(only_spike(encode(&c, 0, 1, 0, STEPS), 4), -1);
    real_option(&c.s.encoder, "log", 1);
    x = encode(&c, 0, 1, 0, STEPS);
    for (int u = 0; u < 4; u++)
        assert_int_equal(only_spike(x, u),
                         (int)rint(23 - log((exp(23) - 1) * (double)values[u] + 1)));
    real_option(&c.s.encoder, "log", 0);
    real_option(&c.s.encoder, "linear", 0);
    real_option(&c.s.encoder, "normalize", 0);
    real_option(&c.s.encoder, "tau", 200);
    x = encode(&c, 0, 1, 0, STEPS);
    for (int u = 0; u < 4; u++) {
        double value = (double)values[u], time = 200 * log(value / (value - 0.01));
        assert_int_equal(only_spike(x, u), time > 23.5 ? -1 : (int)rint(time));
    }
    finish(&c);
}

static void delta_marks_rises_and_falls(void **state) {
    (void)state;
    coding c;
    const float course[] = {0.5f, 0.5f, 0.7f, 0.6f, 0.3f, 0.3f};
    start(&c, "delta", STEPS);
    rv_values x = c.s.batch.input.values;
    for (int t = 0; t < STEPS; t++)
        x.data[(size_t)t * x.stride_t] = course[t < 6 ? t : 5];
    real_option(&c.s.encoder, "threshold", 0.15);
    const float on[] = {1, 0, 1, 0, 0, 0}, both[] = {0, 0, 1, 0, -1, 0};
    rv_signal s = encode(&c, 0, 1, 0, STEPS);
    for (int t = 0; t < 6; t++)
        assert_true(at(s, t, 0, 0) == on[t]);
    real_option(&c.s.encoder, "off_spike", 1);
    real_option(&c.s.encoder, "padding", 1);
    s = encode(&c, 0, 1, 0, STEPS);
    assert_null(s.spikes.bits);
    for (int t = 0; t < 6; t++)
        assert_true(at(s, t, 0, 0) == both[t]);
    finish(&c);
}

static void phase_writes_binary_digits(void **state) {
    (void)state;
    coding c;
    start(&c, "phase", 0);
    real_option(&c.s.encoder, "bits", 4);
    const float values[] = {0.6875f, 0, 0.99f, 2, -1}; /* 1011, 0000, 1111, the nearest */
    const int digits[] = {0xB, 0, 0xF, 0xF, 0};
    memcpy(c.s.batch.input.values.data, values, sizeof values);
    rv_signal x = encode(&c, 0, 1, 0, STEPS);
    for (int u = 0; u < 5; u++)
        for (int t = 0; t < STEPS; t++)
            assert_true(at(x, t, 0, u) == (float)(digits[u] >> (3 - t % 4) & 1));
    finish(&c);
}

/* An integrator of current a spikes as often as a fits: floor(t a / threshold). */
static void population_integrates_receptive_fields(void **state) {
    (void)state;
    coding c;
    start(&c, "population", 0);
    real_option(&c.s.encoder, "neurons", 3);
    OK(check(&c, 0, false));
    rv_signal x = encode(&c, 0, BATCH, 0, STEPS);
    assert_int_equal(x.spikes.n, 3 * UNITS);
    for (int u = 0; u < x.spikes.n; u++) {
        double value = (double)c.s.batch.input.values.data[u / 3], count = 0;
        double away = (value - 0.5 * (u % 3)) / 0.15, current = exp(-0.5 * away * away);
        for (int t = 0; t < STEPS; t++)
            count += (double)at(x, t, 0, u);
        assert_true(fabs(count - STEPS * current / 0.999) <= 1);
    }
    finish(&c);
}

/* ---- refusals ---------------------------------------------------------------------------- */
static void data_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int steps, frames;
        bool spikes;
        const char *words;
    } cases[] = {
        {"rate", STEPS, 9, false, "encoder rate takes one frame per sample"},
        {"latency", STEPS, 0, true, "encoder latency takes one frame per sample"},
        {"delta", STEPS, 0, false, "encoder delta takes values over time"},
        {"constant", STEPS, 9, false, "encode.steps is 24, but the data has 9 steps"},
        {"constant", 0, 0, false, "encode.steps must be at least 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        coding c = {0};
        c.s.net_desc.input = (rv_shape){1, {UNITS}};
        c.s.encoder = small_choice(&c.s, rv_encoder_table(), cases[k].name);
        real_option(&c.s.encoder, "steps", cases[k].steps);
        assert_int_equal(check(&c, cases[k].frames, cases[k].spikes), RV_CONFIG);
        if (!strstr(rv_error_get()->message, cases[k].words))
            fail_msg("\"%s\" is not in \"%s\"", cases[k].words, rv_error_get()->message);
        finish(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_equal_the_whole),
        cmocka_unit_test(padding_bits_are_zero),
        cmocka_unit_test(given_memory_is_used),
        cmocka_unit_test(rate_equals_the_value),
        cmocka_unit_test(rate_is_keyed_by_sample_and_epoch),
        cmocka_unit_test(rate_is_one_at_one_and_none_at_zero),
        cmocka_unit_test(latency_is_linear_or_logarithmic),
        cmocka_unit_test(delta_marks_rises_and_falls),
        cmocka_unit_test(phase_writes_binary_digits),
        cmocka_unit_test(population_integrates_receptive_fields),
        cmocka_unit_test(data_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
