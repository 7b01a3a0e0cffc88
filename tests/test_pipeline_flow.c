/*
 * Delayed pipelines have the bits of the oracle, whatever the threads and links do: every mode,
 * one to six stages, with and without chunks, links that are late by random times.
 */
#include "pipeline/oracle.h"
#include "pipeline/order.h"
#include "tests/pipes.h"
#include "tests/slow_link.h"

enum { UPDATES = 50, STAGES = 6 };

/* A delayed description from words: "pb gc lwp_v". */
static rv_delay_desc desc_of(const char *words) {
    rv_delay_desc desc = {0};
    char copy[64], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    char *word = strtok_r(copy, " ", &rest);
    desc.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), word);
    if (!desc.mode) fail_msg("no mode %s", word);
    while ((word = strtok_r(NULL, " ", &rest))) {
        double steps = strcmp(word, "t3") == 0 ? 5 : strcmp(word, "t1") == 0 ? 16 : 0;
        OK(rv_delay_add(&desc, word, steps > 0 ? "steps" : NULL, steps));
    }
    return desc;
}

typedef struct trial {
    small s;
    rv_delay_desc delay;
    int first[SMALL_LAYERS + 1], stages;
    rv_schedule schedule;
    rv_oracle *oracle;
    rv_pipeline *pipeline;
    rv_optimizer *a, *b;
    float *want, *got;
} trial;

static void trial_open(trial *t, const pipe_net *net, const char *words, const pipe_way *way) {
    static const double one[STAGES] = {1, 1, 1, 1, 1, 1};
    const rv_costs costs = {.f = one, .b = one, .w = one};
    memset(t, 0, sizeof *t);
    t->delay = desc_of(words), t->stages = way->stages;
    pipe_open(&t->s, net, way);
    rv_delay_train(&t->delay, &t->s.train);
    OK(rv_delay_check(&t->delay, &t->s.train));
    pipe_cut(&t->s, way, t->first);
    OK(rv_schedule_endless(&t->delay, way->stages, way->micros, way->chunks,
                           rv_schedule_settled(&t->delay, way->stages, way->micros, way->chunks),
                           way->slots, &t->schedule));
    OK(rv_schedule_simulate(&t->schedule, &costs, NULL));
    rv_pipeline_desc desc = pipe_desc(&t->s, way, t->first, &t->schedule);
    desc.delay = &t->delay;
    OK(rv_pipeline_create(&desc, &t->pipeline));
    const rv_oracle_desc how = {.net = t->s.net,
                                .device = &t->s.device,
                                .encoder = &t->s.encoder,
                                .loss = &t->s.loss,
                                .train = &t->s.train,
                                .total_steps = 100,
                                .delay = &t->delay,
                                .stages = way->stages,
                                .first = t->first};
    OK(rv_oracle_create(&how, &t->oracle));
    OK(rv_optimizer_create(t->s.net, &t->s.train, 100, &t->a));
    OK(rv_optimizer_create(t->s.net, &t->s.train, 100, &t->b));
    t->want = small_memory(&t->s, t->s.net->n_all + 1, sizeof *t->want);
    t->got = small_memory(&t->s, t->s.net->n_all + 1, sizeof *t->got);
}

static void trial_finish(trial *t) {
    rv_optimizer_destroy(t->b);
    rv_optimizer_destroy(t->a);
    rv_oracle_destroy(t->oracle);
    rv_pipeline_destroy(t->pipeline);
    rv_schedule_finish(&t->schedule);
    small_finish(&t->s);
}

static rv_batch batch_of(const trial *t, int update) {
    rv_batch batch = t->s.batch;
    batch.epoch = (uint32_t)update;
    if (update % 7 == 6) batch.B = 3; /* ragged */
    return batch;
}

static void same_now(trial *t, const char *what) {
    rv_oracle_read(t->oracle, t->want, t->a);
    rv_pipeline_read(t->pipeline, t->got, t->b);
    pipe_same(what, &t->s, t->want, t->got, t->s.net->n_all);
    for (int k = 0; k < rv_optimizer_slots(t->a); k++)
        pipe_same(rv_optimizer_slot_name(t->a, k), &t->s, rv_optimizer_slot(t->a, k),
                  rv_optimizer_slot(t->b, k), t->s.net->n_trained);
    assert_int_equal(rv_optimizer_step(t->a), rv_optimizer_step(t->b));
}

/* As many batches ahead as the pipeline wants; every `still` updates it comes to rest. */
static void trial_run(trial *t, const char *what, int updates, int still) {
    int ahead = rv_pipeline_ahead(t->pipeline), fed = 0;
    for (int u = 0; u < updates; u++) {
        rv_step_result a, b;
        rv_batch batch = batch_of(t, u);
        int until = still ? (u / still + 1) * still : updates;
        for (; fed < updates && fed < until && fed <= u + ahead; fed++) {
            rv_batch next = batch_of(t, fed);
            OK(rv_pipeline_feed(t->pipeline, &next));
        }
        OK(rv_oracle_step(t->oracle, &batch, &a));
        OK(rv_pipeline_await(t->pipeline, &b));
        if (memcmp(&a.loss, &b.loss, sizeof a.loss) != 0 || a.correct != b.correct || a.B != b.B ||
            a.rate != b.rate)
            fail_msg("%s: update %d: loss %.17g is %.17g, rate %g is %g", what, u, a.loss, b.loss,
                     a.rate, b.rate);
    }
    same_now(t, what);
}

static const struct {
    const char *words;
    int micros;
} modes[] = {
    {"pb", 1},          {"stale", 1},    {"pipedream", 1}, {"ddg", 1},      {"ddg_code", 1},
    {"2bw", 3},         {"xpipe", 3},    {"pb stash", 1},  {"pb lwp_w", 1}, {"stale ema", 1},
    {"pb t1 t2 t3", 1}, {"pb lwp_v", 1}, {"2bw lwp_w", 2},
};
enum { MODES = sizeof modes / sizeof *modes };

static void threads_with_late_links_are_the_oracle(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++)
        for (int stages = 1; stages <= STAGES; stages++)
            for (int chunks = 1; chunks <= 3; chunks += 2) {
                slow_plan plan = {.seed = (uint64_t)(17 * k + stages),
                                  .sleeps = (stages + k) % 3 == 0};
                rv_transport slow = {"slow", slow_open, &plan};
                char what[96];
                trial t;
                const pipe_way way = {.stages = stages,
                                      .micros = modes[k].micros,
                                      .chunks = chunks,
                                      .slots = 1 + k % 3,
                                      .timeout = 20,
                                      .driver = plan.sleeps || (stages + k) % 3 == 1
                                                    ? RV_DRIVER_THREADS
                                                    : RV_DRIVER_SEEDED,
                                      .seed = (uint64_t)k,
                                      .transport = (stages + k) % 3 == 1 ? NULL : &slow};
                trial_open(&t, &pipe_nets[k % 4 == 3 ? 2 : 0], modes[k].words, &way);
                snprintf(what, sizeof what, "%s, %d stages, %d chunks", modes[k].words, stages,
                         chunks);
                trial_run(&t, what, UPDATES, stages == 3 ? 11 : 0);
                trial_finish(&t);
            }
}

/* After `until` updates every version is the newest, and nothing was lost or applied twice. */
static void delay_that_ends_drains_clean(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++) {
        trial t;
        const pipe_way way = {.stages = 4, .micros = modes[k].micros, .chunks = 1, .timeout = 20};
        trial_open(&t, &pipe_nets[0], modes[k].words, &way);
        rv_pipeline_destroy(t.pipeline);
        rv_oracle_destroy(t.oracle);
        t.delay.until = 13;
        rv_pipeline_desc desc = pipe_desc(&t.s, &way, t.first, &t.schedule);
        desc.delay = &t.delay;
        OK(rv_pipeline_create(&desc, &t.pipeline));
        const rv_oracle_desc how = {t.s.net,  &t.s.device, &t.s.encoder, &t.s.loss, &t.s.train, 100,
                                    &t.delay, 4,           t.first};
        OK(rv_oracle_create(&how, &t.oracle));
        trial_run(&t, modes[k].words, 24, 0);
        trial_finish(&t);
    }
}

/* Equal stages, no messages to wait for: in the steady state none has a gap. */
static void two_equal_stages_are_always_busy(void **state) {
    (void)state;
    static const double cost[2] = {1, 1}, none[2] = {0, 0};
    const rv_costs costs = {.f = cost, .b = cost, .w = cost, .u = none, .latency = 0.01};
    for (int k = 0; k < MODES; k++)
        for (int chunks = 1; chunks <= 8; chunks *= 2) {
            const rv_delay_desc delay = desc_of(modes[k].words);
            rv_schedule schedule;
            OK(rv_schedule_endless(&delay, 2, modes[k].micros, chunks, 40, 4, &schedule));
            OK(rv_schedule_simulate(&schedule, &costs, NULL));
            for (int s = 0; s < 2; s++) {
                double busy = rv_schedule_busy(&schedule, s, 10, 30);
                if (busy < 0.97)
                    fail_msg("%s, %d chunks: stage %d is busy %.3f", modes[k].words, chunks, s,
                             busy);
            }
            rv_schedule_finish(&schedule);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_with_late_links_are_the_oracle),
        cmocka_unit_test(delay_that_ends_drains_clean),
        cmocka_unit_test(two_equal_stages_are_always_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
