/*
 * Tapes that are not kept: F once more inside B gives the bits of the plain trainer, for all layers
 * or some, in every schedule, at every cut; gradients that are cut on request; the words of
 * recipes.
 */
#include "tests/pipes.h"

#include "data/data.h"
#include "pipeline/tape.h"

static const char *const schedules[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* seed 0: all layers; else each by a coin. */
static void check(const pipe_net *net, const pipe_way *way, uint64_t seed, int truncate) {
    small s;
    uint8_t policy[SMALL_LAYERS];
    for (int l = 0; l < SMALL_LAYERS; l++)
        policy[l] =
            seed == 0 || small_random(seed, (uint64_t)l) < 0.5 ? RV_TAPE_RECOMPUTE : RV_TAPE_KEEP;
    pipe_open(&s, net, way);
    s.train.tape = policy;
    s.train.truncate = truncate;
    pipe_compare(&s, way, net->name);
    small_finish(&s);
}

static void recomputed_tapes_have_the_bits_of_kept_ones(void **state) {
    (void)state;
    static const int chunks[] = {1, 3, PIPE_STEPS};
    for (int k = 0; k < SCHEDULES; k++)
        for (int S = 1; S <= 4; S++)
            for (int c = 0; c < 3; c++) {
                const pipe_way way = {.schedule = schedules[k],
                                      .stages = S,
                                      .micros = 1 + (k + c) % 3,
                                      .chunks = chunks[c],
                                      .clip = c == 1 ? 0.1 : 0};
                for (int n = 0; n < PIPE_NETS; n++)
                    if ((n + k + S) % 2 == 0) check(&pipe_nets[n], &way, 0, 0);
            }
}

static void any_mix_of_layers_has_the_bits_of_kept_ones(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        const pipe_way way = {.schedule = schedules[seed % SCHEDULES],
                              .stages = 1 + (int)seed % 5,
                              .micros = 1 + (int)seed % 3,
                              .chunks = 1 + (int)(seed * 7) % PIPE_STEPS,
                              .driver = seed % 4 ? RV_DRIVER_SEEDED : RV_DRIVER_THREADS,
                              .seed = seed};
        check(&pipe_nets[seed % PIPE_NETS], &way, seed, seed % 3 == 0 ? 2 : 0);
    }
}

/* What stays between F and B is less, and benches are as few as the list allows. */
static void recomputed_tapes_take_less_memory(void **state) {
    (void)state;
    small s;
    const pipe_way way = {.schedule = "serial", .stages = 1, .micros = 1, .chunks = PIPE_STEPS};
    uint8_t policy[SMALL_LAYERS];
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    memset(policy, RV_TAPE_RECOMPUTE, sizeof policy);
    pipe_open(&s, &pipe_nets[2], &way);
    rv_pipeline_destroy(pipe_make(&s, &way, first, &schedule));
    const rv_range whole = rv_net_range(s.net, 0, s.net->layer_count);
    rv_tapes_desc desc = {.range = &whole, .steps = 100, .rows = PIPE_BATCH, .records = PIPE_STEPS};
    desc.list = rv_schedule_list(&schedule, 0, &desc.count);
    size_t tape = rv_tape_bytes(&whole, NULL, 100, PIPE_BATCH);
    size_t border = rv_state_bytes(&whole, PIPE_BATCH);
    assert_int_equal(rv_tapes_bytes(&desc), PIPE_STEPS * tape);
    desc.policy = policy;
    assert_int_equal(rv_tape_kept_bytes(&whole, NULL, policy, 100, PIPE_BATCH), 0);
    size_t bytes = rv_tapes_bytes(&desc);
    assert_true(bytes >= PIPE_STEPS * border + tape);
    assert_true(bytes <= PIPE_STEPS * border + 2 * (tape + border));
    policy[1] = RV_TAPE_KEEP; /* a recurrent layer, and so the map that writes into it */
    size_t kept = rv_tape_kept_bytes(&whole, NULL, policy, 100, PIPE_BATCH);
    assert_true(kept > 4 * 100 * PIPE_BATCH * PIPE_HIDDEN && kept < tape);
    rv_schedule_finish(&schedule);
    small_finish(&s);
}

/* ---- gradients that are cut ------------------------------------------------------------- */
static void gradient_at(int truncate, float *out, size_t *count) {
    small s;
    const pipe_way way = {.stages = 1, .micros = 1, .chunks = PIPE_STEPS};
    const float *gradient;
    rv_step_result result;
    pipe_open(&s, &pipe_nets[2], &way);
    s.train.truncate = truncate;
    OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
    *count = s.net->n_trained;
    assert_true(*count <= 1 << 14);
    memcpy(out, gradient, *count * sizeof *out);
    small_finish(&s);
}

/* A cut at or beyond the end is none; a nearer one takes something away from what lies before. */
static void cut_gradients_differ_only_when_there_is_a_cut(void **state) {
    (void)state;
    static float whole[1 << 14], cut[1 << 14];
    size_t count, same;
    gradient_at(0, whole, &count);
    gradient_at(PIPE_STEPS, cut, &same);
    assert_memory_equal(whole, cut, count * sizeof *whole);
    double before = 0;
    for (int k = PIPE_STEPS - 3; k >= 1; k -= 2) {
        double distance = 0;
        gradient_at(k, cut, &same);
        for (size_t i = 0; i < count; i++)
            distance += fabs((double)whole[i] - (double)cut[i]);
        assert_true(distance > 0 && isfinite(distance));
        before = distance;
    }
    assert_true(before > 0);
}

/* ---- recipes ---------------------------------------------------------------------------- */
static rv_status parse(const char *pipeline, rv_config **config) {
    char text[1024];
    int size = snprintf(text, sizeof text,
                        "data: {reader: bernoulli, units: 8, classes: 2}\n"
                        "network:\n"
                        "  - {name: a, kind: linear, units: 4}\n"
                        "  - {name: b, kind: lif, beta: 0.9}\n"
                        "  - {name: c, kind: linear, units: 2}\n"
                        "  - {name: d, kind: lif, beta: 0.9}\n"
                        "pipeline: {%s}\n",
                        pipeline);
    return rv_config_parse(text, (size_t)size, "r.yaml", config);
}

static void recipes_say_what_is_kept_for_all_or_for_some(void **state) {
    (void)state;
    static const struct {
        const char *text, *policy; /* a letter a layer; NULL: none */
    } good[] = {{"", NULL},
                {"tape: keep", NULL},
                {"tape: recompute", "rrrr"},
                {"tape: {b: recompute}", "krkk"},
                {"tape: {a: keep, d: recompute}", "kkkr"}};
    static const struct {
        const char *text, *error;
    } bad[] = {{"tape: spill", "spill is not built in this version"},
               {"tape: {b: spil}", "must be keep or recompute, found \"spil\""},
               {"tape: {x: keep}", "names \"x\", which is no layer"},
               {"tape: [keep]", "must be keep or recompute"},
               {"truncate: -1", "truncate"}};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++)
        for (int again = 0; again < 2; again++) { /* the resolved recipe says the same */
            rv_config *config = NULL, *second = NULL;
            char *text = NULL;
            OK(parse(good[k].text, &config));
            OK(rv_config_text(config, &text));
            if (again) OK(rv_config_parse(text, strlen(text), "again.yaml", &second));
            const uint8_t *policy = (again ? second : config)->train.tape;
            assert_int_equal(policy != NULL, good[k].policy != NULL);
            for (int l = 0; policy && l < 4; l++)
                assert_int_equal(policy[l], good[k].policy[l] == 'r');
            rv_free(text);
            rv_config_free(second);
            rv_config_free(config);
        }
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        rv_config *config = NULL;
        assert_int_equal(parse(bad[k].text, &config), RV_CONFIG);
        if (!strstr(rv_error_get()->message, bad[k].error)) fail_msg("%s", rv_error_get()->message);
        assert_int_not_equal(rv_error_get()->line, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputed_tapes_have_the_bits_of_kept_ones),
        cmocka_unit_test(any_mix_of_layers_has_the_bits_of_kept_ones),
        cmocka_unit_test(recomputed_tapes_take_less_memory),
        cmocka_unit_test(cut_gradients_differ_only_when_there_is_a_cut),
        cmocka_unit_test(recipes_say_what_is_kept_for_all_or_for_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
