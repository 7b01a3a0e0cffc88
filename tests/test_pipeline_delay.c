/* Rules of delayed gradients: versions by number, what goes together, the published constants, and
 * the largest stable step on a parabola. */
#include "tests/small.h"
#include "tests/quadratic.h"

static const rv_delay_mode *mode_of(const char *name) {
    const rv_row *row = rv_table_find(rv_delay_table(), name);
    if (!row) fail_msg("no mode %s", name);
    return (const rv_delay_mode *)(const void *)row;
}

static rv_delay_rule rule_at(const rv_delay_desc *desc, int S, int C, int M, int s) {
    const rv_delay_shape shape = {S, C, M, s, 0};
    return rv_delay_rule_of(desc, &shape);
}

static void delays_are_those_published(void **state) {
    (void)state;
    for (int S = 1; S <= 8; S++)
        for (int s = 0; s < S; s++)
            for (int C = 1; C <= 5; C++) {
                const rv_delay_desc pb = {.mode = mode_of("pb")},
                                    stale = {.mode = mode_of("stale")};
                const rv_delay_desc ddg = {.mode = mode_of("ddg")}, two = {.mode = mode_of("2bw")};
                int turn = C == 1 ? S - 1 - s : s == S - 1 ? 1 : 1 + (S - 2 - s + C - 1) / C;
                assert_int_equal(rule_at(&pb, S, C, 1, s).delay,
                                 (2 * (C - 1) + 2 * (S - 1 - s)) / C);
                assert_int_equal(rule_at(&stale, S, C, 1, s).delay, turn);
                assert_int_equal(rule_at(&ddg, S, C, 1, s).delay, turn);
                assert_int_equal(rule_at(&two, S, C, 4, s).delay, 1);
                assert_true(rule_at(&ddg, S, C, 1, s).stash && !rule_at(&stale, S, C, 1, s).stash);
            }
}

/* A stage is ahead of the next by as many chunks as there are slots, eight at most, where versions
 * let all stages. */
static void leads_follow_slots_and_versions(void **state) {
    (void)state;
    static const struct {
        const char *mode;
        int S, C, M, slots, lead[4];
    } cases[] = {
        {"pb", 2, 8, 1, 1, {8, 7}},           {"pb", 2, 8, 1, 3, {10, 7}},
        {"pb", 2, 8, 1, 4, {11, 7}},          {"pb", 2, 8, 1, 9, {15, 7}},
        {"pb", 2, 8, 1, 0, {15, 7}},          {"pb", 3, 4, 1, 0, {7, 5, 3}},
        {"pb", 3, 1, 1, 4, {4, 2, 0}},        {"stale", 2, 8, 1, 1, {8, 7}},
        {"stale", 2, 8, 1, 2, {9, 7}},        {"stale", 2, 8, 1, 0, {11, 7}},
        {"stale", 2, 1, 1, 0, {1, 0}},        {"stale", 4, 2, 1, 0, {4, 3, 2, 1}},
        {"pipedream", 4, 1, 1, 0, {3, 2, 1}}, {"ddg", 3, 4, 1, 0, {7, 5, 3}},
        {"2bw", 4, 1, 1, 0, {3, 2, 1, 0}},    {"2bw", 4, 1, 4, 2, {3, 2, 1, 0}},
        {"2bw", 4, 2, 4, 0, {7, 5, 3, 1}},    {"xpipe", 4, 1, 4, 0, {3, 2, 1, 0}},
        {"xpipe", 2, 8, 4, 0, {15, 7}},       {"spikepipe", 3, 4, 1, 9, {7, 5, 3}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int s = 0; s < cases[k].S; s++) {
            const rv_delay_desc desc = {.mode = mode_of(cases[k].mode)};
            const rv_delay_shape shape = {cases[k].S, cases[k].C, cases[k].M, s, cases[k].slots};
            const int lead = rv_delay_rule_of(&desc, &shape).lead;
            if (lead != cases[k].lead[s]) fail_msg("case %zu, stage %d: lead %d", k, s, lead);
        }
}

/* Age at forward and both horizons, S = 8, where halves are rounded away from zero. */
static void xpipe_horizons_are_those_published(void **state) {
    (void)state;
    static const int want[8][3] = {{2, 3, 1}, {2, 2, 1}, {2, 2, 1}, {1, 2, 1},
                                   {1, 2, 1}, {1, 2, 1}, {1, 2, 2}, {0, 2, 2}};
    const rv_delay_desc desc = {.mode = mode_of("xpipe")};
    for (int s = 0; s < 8; s++) {
        rv_delay_rule rule = rule_at(&desc, 8, 1, 4, s);
        assert_int_equal(rule.delay, want[s][0]);
        assert_true(rule.forward_horizon == want[s][1] && rule.backward_horizon == want[s][2]);
    }
}

static void versions_follow_start_and_end_of_delay(void **state) {
    (void)state;
    rv_delay_desc desc = {.mode = mode_of("pb"), .until = 12};
    OK(rv_delay_add(&desc, "t3", "steps", 6));
    rv_delay_rule rule = rule_at(&desc, 4, 1, 1, 1); /* D = 4 */
    static const int want[] = {0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 7, 12, 13};
    for (int u = 0; u < (int)(sizeof want / sizeof *want); u++)
        assert_int_equal(rv_delay_forward(&rule, u), want[u]);
    const rv_delay_desc none = {0};
    rule = rule_at(&none, 4, 1, 1, 1);
    assert_int_equal(rv_delay_forward(&rule, 7), 7);
}

/* ---- what goes together ----------------------------------------------------------------- */

/* `words`: corrections with spaces between. NULL: allowed; else part of the refusal. */
static void pair_check(small *s, const char *mode, const char *optimizer, const char *words,
                       const char *refusal) {
    char copy[64], *rest = NULL;
    rv_delay_desc desc = {.mode = mode ? mode_of(mode) : NULL};
    s->train.optimizer = small_choice(s, rv_optimizer_table(), optimizer);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        OK(rv_delay_add(&desc, word, NULL, 0));
    rv_status status = rv_delay_check(&desc, &s->train);
    if (!refusal) {
        if (status) fail_msg("%s, %s: %s", mode, words, rv_error_get()->message);
        return;
    }
    if (status != RV_CONFIG || !strstr(rv_error_get()->message, refusal))
        fail_msg("%s, %s: %d, \"%s\"", mode ? mode : "none", words, status,
                 rv_error_get()->message);
}

static void nonsense_pairs_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *mode, *optimizer, *words, *refusal;
    } cases[] = {
        {"pb", "sgd", "gc lwp_v scale t1 t3", NULL},
        {"pb", "sgd", "stash gc lwp_w", NULL},
        {"pb", "adam", "lwp_v t2", NULL},
        {"stale", "rmsprop", "stash lwp_w", NULL},
        {"2bw", "sgd", "gc lwp_v", NULL},
        {"xpipe", "adamw", "", NULL},
        {NULL, "sgd", "scale", NULL},
        {"pb", "sgd", "lwp_v lwp_w", "corrections lwp_w and lwp_v"},
        {"pb", "sgd", "lwp_v msnag", "corrections msnag and lwp_v"},
        {"pb", "sgd", "lwp_w spectrain", "corrections spectrain and lwp_w"},
        {"pb", "sgd", "stash t2", "corrections t2 and stash"},
        {"pb", "sgd", "ema t2", "corrections ema and t2"},
        {"pb", "sgd", "stash spectrain", "corrections spectrain and stash"},
        {"pipedream", "sgd", "stash", "correction stash cannot go with pipedream"},
        {"2bw", "sgd", "t2", "correction t2 cannot go with 2bw"},
        {"ddg", "sgd", "ema", "correction ema cannot go with ddg"},
        {"xpipe", "adam", "lwp_v", "correction lwp_v cannot go with xpipe"},
        {"xpipe", "sgd", "", "xpipe has no form for the optimiser sgd"},
        {"pb", "adam", "gc", "gc has no form for the optimiser adam"},
        {"pb", "rmsprop", "lwp_v", "lwp_v has no form for the optimiser rmsprop"},
        {"pb", "adam", "scale", "scale has no form for the optimiser adam"},
        {"pb", "adam", "spectrain", "spectrain has no form"},
        {NULL, "sgd", "gc", "correction gc corrects a delay"},
        {NULL, "sgd", "t3", "correction t3 corrects a delay"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        small s = {0};
        pair_check(&s, cases[k].mode, cases[k].optimizer, cases[k].words, cases[k].refusal);
        small_finish(&s);
    }
}

static void scale_counts_the_samples_of_an_update(void **state) {
    (void)state;
    static const struct {
        const char *mode;
        double share;
    } cases[] = {{NULL, 0.25}, {"pb", 0.0625}, {"2bw", 0.25}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rv_train_desc train = {.batch = 16, .micro_batches = 4};
        rv_delay_desc desc = {.mode = cases[k].mode ? mode_of(cases[k].mode) : NULL};
        rv_delay_train(&desc, &train);
        assert_true(train.share == 0);
        OK(rv_delay_add(&desc, "scale", "batch", 64));
        rv_delay_train(&desc, &train);
        assert_true(train.share == cases[k].share);
    }
}

static void wrong_words_are_refused(void **state) {
    (void)state;
    rv_delay_desc desc = {0};
    assert_int_equal(rv_delay_add(&desc, "glue", NULL, 0), RV_CONFIG);
    assert_int_equal(rv_delay_add(&desc, "gc", "cap", 3), RV_CONFIG);
    assert_int_equal(rv_delay_add(&desc, "lwp_v", "steps", 3), RV_CONFIG);
    assert_int_equal(rv_delay_add(&desc, "lwp_v", "cap", 0), RV_CONFIG);
    assert_int_equal(rv_delay_add(&desc, "t2", "decay", 1), RV_CONFIG);
    OK(rv_delay_add(&desc, "t2", "decay", 0.5));
    assert_int_equal(rv_delay_add(&desc, "t2", NULL, 0), RV_CONFIG);
    small s = {0};
    s.train.optimizer = small_choice(&s, rv_optimizer_table(), "sgd");
    desc = (rv_delay_desc){.until = 5};
    assert_int_equal(rv_delay_check(&desc, &s.train), RV_CONFIG);
    desc.mode = mode_of("pb");
    OK(rv_delay_check(&desc, &s.train));
    OK(rv_delay_add(&desc, "t3", "steps", 5));
    assert_int_equal(rv_delay_check(&desc, &s.train), RV_CONFIG);
    s.train.clip_norm = 1;
    desc = (rv_delay_desc){.mode = mode_of("pb")};
    assert_int_equal(rv_delay_check(&desc, &s.train), RV_CONFIG);
    small_finish(&s);
}

/* ---- numbers ---------------------------------------------------------------------------- */

typedef struct lone {
    small s;
    rv_weights w;
} lone;

/* One weight under sgd with momentum m and rate 1, delay D. */
static void lone_open(lone *it, const rv_delay_desc *desc, int D, double momentum) {
    small *s = &it->s;
    memset(it, 0, sizeof *it);
    s->net_desc.input = (rv_shape){1, {1}};
    s->net_desc.steps = 1;
    small_linear(s, "w", 1, false);
    OK(rv_device_open("cpu", RV_ISA_AUTO, 1, &s->device));
    OK(rv_net_create(&s->net_desc, &s->net));
    s->train.optimizer = small_choice(s, rv_optimizer_table(), "sgd");
    quadratic_set(&s->train.optimizer, "lr", 1);
    quadratic_set(&s->train.optimizer, "momentum", momentum);
    s->train.velocity = true;
    const rv_delay_rule rule = rule_at(desc, D + 1, 1, 1, 0);
    const rv_range range = rv_net_range(s->net, 0, 1);
    OK(rv_weights_init(&it->w, &range, &s->device, &s->train, 100, &rule, 1));
    rv_version_block(rv_weights_newest(&it->w))[0] = 0;
    OK(rv_weights_start(&it->w, 0));
}

static void lone_close(lone *it) {
    rv_weights_finish(&it->w);
    small_finish(&it->s);
}

static double lone_update(lone *it, double g) {
    float gradient[RV_LANES] = {(float)g};
    OK(rv_weights_update(&it->w, gradient, 1, NULL, NULL));
    return (double)rv_version_block(rv_weights_newest(&it->w))[0];
}

/* A gradient that comes D updates late has, from then on, moved the weights as if it had been in
 * time. */
static void gc_makes_up_for_the_delay(void **state) {
    (void)state;
    const double m = 0.9;
    for (int D = 0; D <= 16; D++) {
        lone it;
        rv_delay_desc desc = {.mode = mode_of("stale")};
        OK(rv_delay_add(&desc, "gc", NULL, 0));
        lone_open(&it, &desc, D, m);
        for (int k = 0; k < 40; k++) {
            double got = lone_update(&it, k == 0 ? 1 : 0);
            double in_time = -(1 - pow(m, k + D + 1)) / (1 - m);
            assert_true(fabs(got - in_time) < 1e-5);
        }
        lone_close(&it);
    }
}

/* What forward sees, D = 3, after gradients 1, 2: w = -1, -3.9 and v = 1, 2.9 at m = 0.9. */
static void predictions_are_their_formulas(void **state) {
    (void)state;
    static const struct {
        const char *words, *parameter;
        double value, want;
    } cases[] = {
        {"lwp_v", NULL, 0, -3.9 - 3 * 2.9},
        {"lwp_v", "cap", 2, -3.9 - 2 * 2.9},
        {"lwp_w", NULL, 0, -3.9 + 3 * -2.9},
        {"msnag", NULL, 0, -3.9 - (0.9 + 0.81 + 0.729) * 2.9},
        {"stash", NULL, 0, -3.9},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        lone it;
        const rv_version *seen;
        rv_delay_desc desc = {.mode = mode_of("stale")};
        OK(rv_delay_add(&desc, cases[k].words, cases[k].parameter, cases[k].value));
        lone_open(&it, &desc, 3, 0.9);
        lone_update(&it, 1);
        lone_update(&it, 2);
        OK(rv_weights_forward(&it.w, 5, &seen)); /* reads version 2 */
        assert_true(fabs((double)rv_version_block((rv_version *)seen)[0] - cases[k].want) < 1e-5);
        OK(rv_weights_forward(&it.w, 3, &seen)); /* reads version 0 */
        assert_true(rv_version_block((rv_version *)seen)[0] == 0);
        assert_int_equal(rv_weights_forward(&it.w, 6, &seen), RV_INTERNAL); /* not yet made */
        assert_false(rv_weights_has(&it.w, 6));
        assert_int_equal(rv_weights_backward(&it.w, 1, &seen),
                         strcmp(cases[k].words, "stash") == 0 ? RV_OK : RV_INTERNAL);
        lone_update(&it, 0);
        lone_update(&it, 0);
        assert_int_equal(rv_weights_forward(&it.w, 3, &seen), RV_INTERNAL); /* gone */
        lone_close(&it);
    }
}

/* ---- derived forms ----------------------------------------------------------------------- */

/* For which passes the weights of two convolutions were packed. */
static const rv_ops *plain_ops;
static char packed_first[16], packed_second[16];
static rv_status noting_pack(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, int B, void **to) {
    char *note = conv->in.c == 1 ? packed_first : packed_second;
    static const char words[] = "2fb-"; /* both, one, none */
    snprintf(note + strlen(note), 2, "%c", words[conv->no_backward + 2 * conv->no_forward]);
    return plain_ops->conv_pack(ctx, queue, conv, B, to);
}

static void conv_add(small *s, const char *name, int channels) {
    rv_choice conv = small_choice(s, rv_layer_table(), "conv2d");
    rv_conv_options *options = conv.options;
    options->out_channels = channels;
    options->kernel_size[0] = options->kernel_size[1] = 1;
    small_layer(s, name, conv);
}

/* An update makes the forms that a pass will read, an evaluation those it finds missing; of the
 * first map, whose input wants no adjoint, never those of backward. */
static void updates_derive_what_passes_read(void **state) {
    (void)state;
    static const struct {
        const char *words, *first, *second, *first_ready, *second_ready;
    } cases[] = {
        {"", "f", "2", "", ""},          {"stash", "f", "2", "", ""},
        {"lwp_w", "f-", "fb", "f", "f"}, {"lwp_v stash", "f", "2", "f", "f"},
        {"t2", "f-", "fb", "", ""},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        small s = {0};
        rv_weights w = {0};
        rv_delay_desc desc = {.mode = mode_of("stale")};
        char words[32], *rest = NULL;
        float gradient[64] = {0};
        strcpy(words, cases[k].words);
        for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
            OK(rv_delay_add(&desc, word, NULL, 0));
        s.net_desc.input = (rv_shape){3, {1, 4, 4}};
        s.net_desc.steps = 1;
        conv_add(&s, "a", 2);
        small_neuron(&s, "lif", "lif", 0.9);
        conv_add(&s, "b", 2);
        OK(rv_device_open("cpu", RV_ISA_AUTO, 1, &s.device));
        OK(rv_net_create(&s.net_desc, &s.net));
        s.train.optimizer = small_choice(&s, rv_optimizer_table(), "sgd");
        quadratic_set(&s.train.optimizer, "momentum", 0.5);
        s.train.velocity = true;
        assert_true(s.net->n_trained <= 64);
        rv_ops noting = *(plain_ops = s.device.ops);
        rv_device device = s.device;
        noting.conv_pack = noting_pack;
        device.ops = &noting;
        const rv_delay_rule rule = rule_at(&desc, 3, 1, 1, 0);
        const rv_range range = rv_net_range(s.net, 0, 3);
        OK(rv_weights_init(&w, &range, &device, &s.train, 100, &rule, 1));
        OK(rv_weights_start(&w, 0));
        packed_first[0] = packed_second[0] = 0;
        OK(rv_weights_update(&w, gradient, 1, NULL, NULL));
        assert_string_equal(packed_first, cases[k].first);
        assert_string_equal(packed_second, cases[k].second);
        packed_first[0] = packed_second[0] = 0;
        OK(rv_weights_ready(&w));
        assert_string_equal(packed_first, cases[k].first_ready);
        assert_string_equal(packed_second, cases[k].second_ready);
        rv_weights_finish(&w);
        small_finish(&s);
    }
}

/* Rates of t1: 1/(D+1)^p, p falling from 1 to 0. */
static void t1_slows_the_first_updates(void **state) {
    (void)state;
    lone it;
    double before = 0;
    rv_delay_desc desc = {.mode = mode_of("stale")};
    OK(rv_delay_add(&desc, "t1", "steps", 4));
    lone_open(&it, &desc, 3, 0);
    for (int k = 0; k < 6; k++) {
        double after = lone_update(&it, 1), want = pow(4, -(k < 4 ? 1 - k / 4.0 : 0));
        assert_true(fabs(before - after - want) < 1e-6);
        before = after;
    }
    lone_close(&it);
}

static void largest_steps_on_a_parabola_are_those_published(void **state) {
    (void)state;
    char line[128], why[256];
    rv_device device;
    unsigned mode = rv_flush_set();
    int count = 0;
    FILE *file = fopen("tests/golden/delays_quadratic.csv", "r");
    if (!file) fail_msg("tests/golden/delays_quadratic.csv: cannot be read");
    OK(rv_device_open("cpu", RV_ISA_AUTO, 1, &device));
    while (file && fgets(line, sizeof line, file)) {
        quadratic_row row;
        if (!quadratic_read(line, &row) || (row.delay > 6 && count++ % 9 != 0)) continue;
        if (row.delay > 6 && row.momentum > 0.95) continue; /* slow; make golden has them all */
        count++;
        if (!quadratic_holds(&row, &device, why, sizeof why)) fail_msg("%s%s", line, why);
    }
    assert_true(count > 100);
    if (file) fclose(file);
    rv_device_close(&device);
    rv_flush_restore(mode);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delays_are_those_published),
        cmocka_unit_test(leads_follow_slots_and_versions),
        cmocka_unit_test(xpipe_horizons_are_those_published),
        cmocka_unit_test(versions_follow_start_and_end_of_delay),
        cmocka_unit_test(nonsense_pairs_are_refused_by_name),
        cmocka_unit_test(scale_counts_the_samples_of_an_update),
        cmocka_unit_test(wrong_words_are_refused),
        cmocka_unit_test(gc_makes_up_for_the_delay),
        cmocka_unit_test(predictions_are_their_formulas),
        cmocka_unit_test(updates_derive_what_passes_read),
        cmocka_unit_test(t1_slows_the_first_updates),
        cmocka_unit_test(largest_steps_on_a_parabola_are_those_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
