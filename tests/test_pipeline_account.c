/*
 * The account of delay: what stages really read, kept and had in flight is what the rules and the
 * lists say beforehand, by threads and by the seeded driver, for every mode, with and without
 * chunks.
 */
#include "tests/accounts.h"

/* ---- what it should be ------------------------------------------------------------------ */

static void same(const char *what, const char *where, int64_t want, int64_t got) {
    if (want != got)
        fail_msg("%s: %s: %lld, not %lld", where, what, (long long)got, (long long)want);
}

/* By the numbers of the rule alone. */
static void rule_check(const trial *t, const rv_stage *stage, const char *where) {
    const rv_account *got = &stage->account;
    const rv_delay_shape shape = {t->way.stages, t->way.chunks, t->way.micros, stage->desc.index,
                                  t->way.slots};
    const rv_delay_rule rule = rv_delay_rule_of(&t->delay, &shape);
    int64_t forward[32] = {0}, backward[32] = {0}, passes = t->way.micros * t->way.chunks;
    assert_int_equal(got->most, rule.delay + 1);
    for (int64_t u = 0; u < UPDATES; u++) {
        int64_t late = u - rv_delay_forward(&rule, u);
        forward[late] += passes;
        backward[rule.stash ? late : 0] += passes;
    }
    for (int d = 0; d <= got->most; d++) {
        same("forward", where, forward[d], got->forward[d]);
        same("backward", where, backward[d], got->backward[d]);
    }
    same("updates", where, UPDATES, got->updates);
    same("versions", where, rule.delay + 1, got->versions);
    same("bytes", where, (int64_t)rv_weights_bytes(&rule, &stage->range), (int64_t)got->stash);
}

/* By the lists that were planned. */
static void list_check(const trial *t, const rv_stage *stage, const char *where) {
    const rv_account *got = &stage->account;
    rv_account want;
    OK(rv_account_init(&want, got->most));
    rv_account_list(&want, &t->schedule, stage->desc.index, 0, UPDATES, SAMPLES / t->way.micros);
    for (int d = 0; d <= got->most; d++) {
        same("forward as listed", where, want.forward[d], got->forward[d]);
        same("backward as listed", where, want.backward[d], got->backward[d]);
    }
    same("updates as listed", where, want.updates, got->updates);
    same("samples in flight", where, want.samples, got->samples);
    same("samples at the end", where, 0, got->flying);
    rv_account_finish(&want);
}

static void measured_is_planned_for_every_mode(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++)
        for (int n = 0; n < 4 * STAGES; n++) {
            trial t = {.way = {.stages = 1 + n % STAGES,
                               .micros = modes[k].micros,
                               .chunks = n / STAGES % 2 ? 3 : 1,
                               .slots = 1 + (n + k) % 4,
                               .timeout = 60,
                               .driver = n / STAGES / 2 ? RV_DRIVER_SEEDED : RV_DRIVER_THREADS,
                               .seed = (uint64_t)k}};
            bool starts_late = strstr(modes[k].corrections, "t3") != NULL;
            trial_open(&t, k);
            trial_list(&t);
            trial_run(&t, &t.schedule, t.first, 0);
            for (int s = 0; s < t.way.stages; s++) {
                char where[96];
                const rv_stage *stage = rv_pipeline_stage(t.pipeline, s);
                snprintf(where, sizeof where, "%s %s, stage %d of %d, %d chunks, %s", modes[k].mode,
                         modes[k].corrections, s, t.way.stages, t.way.chunks,
                         t.way.driver == RV_DRIVER_THREADS ? "threads" : "one thread");
                rule_check(&t, stage, where);
                if (!starts_late) list_check(&t, stage, where);
            }
            trial_finish(&t);
        }
}

/* The delay ends, and with it what is counted as late. */
static void delay_that_ends_is_counted(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++) {
        trial t = {.way = {.stages = 3, .micros = modes[k].micros, .chunks = 2, .timeout = 60}};
        trial_open(&t, k);
        trial_list(&t);
        t.delay.until = 13;
        trial_run(&t, &t.schedule, t.first, 0);
        for (int s = 0; s < 3; s++)
            rule_check(&t, rv_pipeline_stage(t.pipeline, s), modes[k].mode);
        trial_finish(&t);
    }
}

/* ---- counts alone ------------------------------------------------------------------------ */

static void cleared_counts_begin_anew(void **state) {
    (void)state;
    const rv_work f = {.kind = RV_WORK_F}, b = {.kind = RV_WORK_B}, w = {.kind = RV_WORK_W};
    const rv_work later = {.kind = RV_WORK_F, .chunk = 1};
    rv_account none = {0}, t;
    rv_account_pass(&none, &f, 0, 4);
    rv_account_update(&none, 1, 1);
    assert_int_equal(none.updates + none.samples, 0);
    OK(rv_account_init(&t, 2));
    rv_account_pass(&t, &f, 1, 4);
    rv_account_pass(&t, &later, 1, 4);
    rv_account_pass(&t, &f, 5, 3); /* older than any it knows */
    assert_int_equal(t.samples, 7);
    assert_true(t.forward[1] == 2 && t.forward[2] == 1);
    assert_true(fabs(rv_account_mean(t.forward, t.most) - 4.0 / 3) < 1e-12);
    assert_true(isnan(rv_account_mean(t.backward, t.most)));
    rv_account_pass(&t, &b, 0, 4);
    assert_int_equal(t.flying, 7); /* W is to come */
    rv_account_pass(&t, &w, 0, 4);
    rv_account_update(&t, 3, 64);
    json_t *json = rv_account_json(&t);
    char *text = json_dumps(json, JSON_COMPACT);
    assert_string_equal(text, "{\"updates\":1,\"forward\":[0,2,1],\"backward\":[1],"
                              "\"versions\":3,\"stash_bytes\":64.0,\"samples_in_flight\":7}");
    free(text);
    json_decref(json);
    rv_account_clear(&t);
    assert_true(t.updates == 0 && t.forward[1] == 0 && t.backward[0] == 0 && t.versions == 0);
    assert_true(t.samples == 3 && t.flying == 3);
    rv_account_finish(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_is_planned_for_every_mode),
        cmocka_unit_test(delay_that_ends_is_counted),
        cmocka_unit_test(cleared_counts_begin_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
