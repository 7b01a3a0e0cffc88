/*
 * The account of delay: what stages really read, kept and had in flight is what the rules and the
 * lists say beforehand, by threads and by the seeded driver, for every mode, with and without
 * chunks.
 */
#include <time.h>

#include "pipeline/order.h"
#include "pipeline/weights.h"
#include "tests/pipes.h"
#include "tests/turns.h"

enum { UPDATES = 30, STAGES = 4, SAMPLES = 6 /* equal micro-batches */ };

static const struct {
    const char *mode, *corrections;
    int micros;
} modes[] = {
    {"pb", "", 1},       {"stale", "", 1},      {"pipedream", "", 1},  {"ddg", "", 1},
    {"ddg_code", "", 1}, {"2bw", "", 3},        {"xpipe", "", 3},      {"pb", "stash", 1},
    {"pb", "lwp_v", 1},  {"stale", "lwp_w", 1}, {"pb", "t1 t2 t3", 1}, {"stale", "ema", 1},
    {"2bw", "lwp_w", 2},
};
enum { MODES = sizeof modes / sizeof *modes };

static rv_delay_desc desc_of(int k) {
    rv_delay_desc desc = {0};
    char copy[64], *rest = NULL;
    desc.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), modes[k].mode);
    if (!desc.mode) fail_msg("no mode %s", modes[k].mode);
    snprintf(copy, sizeof copy, "%s", modes[k].corrections);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        double steps = strcmp(word, "t3") == 0 ? 5 : strcmp(word, "t1") == 0 ? 16 : 0;
        OK(rv_delay_add(&desc, word, steps > 0 ? "steps" : NULL, steps));
    }
    return desc;
}

/* ---- a run ------------------------------------------------------------------------------ */

/* The first stage does not look what to do before all batches are there that it could begin: else
 * its order depends on how fast the caller is. */
static rv_status hold(void *self, rv_stage *stage, bool *stalls) {
    const int *ahead = self;
    const struct timespec moment = {0, 20000};
    int64_t fed = stage->weights.made + *ahead - 1;
    (void)stalls;
    if (stage->desc.index > 0) return RV_OK;
    while (rv_flow_fed(stage->desc.flow) < (fed < UPDATES ? fed : UPDATES))
        (void)nanosleep(&moment, NULL);
    return RV_OK;
}

typedef struct trial {
    small s;
    rv_delay_desc delay;
    pipe_way way;
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    rv_pipeline *pipeline;
} trial;

static void trial_run(trial *t, int k, int64_t until) {
    static const double one[STAGES] = {1, 1, 1, 1};
    const rv_costs costs = {.f = one, .b = one, .w = one};
    const pipe_way *way = &t->way;
    int fed = 0, ahead;
    t->delay = desc_of(k);
    t->delay.until = until;
    pipe_open(&t->s, &pipe_nets[0], way);
    rv_delay_train(&t->delay, &t->s.train);
    OK(rv_delay_check(&t->delay, &t->s.train));
    pipe_cut(&t->s, way, t->first);
    OK(rv_schedule_endless(&t->delay, way->stages, way->micros, way->chunks, UPDATES, way->slots,
                           &t->schedule));
    OK(rv_schedule_simulate(&t->schedule, &costs, NULL));
    rv_pipeline_desc desc = pipe_desc(&t->s, way, t->first, &t->schedule);
    desc.delay = &t->delay;
    OK(rv_pipeline_create(&desc, &t->pipeline));
    ahead = rv_pipeline_ahead(t->pipeline);
    if (way->driver == RV_DRIVER_THREADS) turns_now = (turns){hold, NULL, &ahead};
    for (int u = 0; u < UPDATES; u++) {
        rv_step_result result;
        for (; fed < UPDATES && fed <= u + ahead; fed++) {
            rv_batch batch = t->s.batch;
            batch.B = SAMPLES, batch.epoch = (uint32_t)fed;
            OK(rv_pipeline_feed(t->pipeline, &batch));
        }
        OK(rv_pipeline_await(t->pipeline, &result));
    }
    rv_pipeline_rest(t->pipeline);
    turns_now = (turns){0};
}

static void trial_finish(trial *t) {
    rv_pipeline_destroy(t->pipeline);
    rv_schedule_finish(&t->schedule);
    small_finish(&t->s);
}

/* ---- what it should be ------------------------------------------------------------------ */

static void same(const char *what, const char *where, int64_t want, int64_t got) {
    if (want != got)
        fail_msg("%s: %s: %lld, not %lld", where, what, (long long)got, (long long)want);
}

/* By the numbers of the rule alone. */
static void rule_check(const trial *t, const rv_stage *stage, const char *where) {
    const rv_account *got = &stage->account;
    const rv_delay_shape shape = {t->way.stages, t->way.chunks, t->way.micros, stage->desc.index};
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
            trial_run(&t, k, 0);
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
        trial_run(&t, k, 13);
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
