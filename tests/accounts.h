/*
 * For tests of delayed pipelines: every mode, and a run of one whose order does not depend on how
 * fast the caller feeds it. A program that includes it is linked as tests/turns.h says.
 */
#ifndef RV_TESTS_ACCOUNTS_H
#define RV_TESTS_ACCOUNTS_H

#include <time.h>

#include "pipeline/order.h"
#include "tests/pipes.h"
#include "tests/turns.h"

enum { UPDATES = 30, STAGES = 4, SAMPLES = 6 /* of an update: equal micro-batches */ };

static const struct accounts_mode {
    const char *mode, *corrections;
    int micros;
} modes[] = {
    {"pb", "", 1},       {"stale", "", 1},      {"pipedream", "", 1},  {"ddg", "", 1},
    {"ddg_code", "", 1}, {"2bw", "", 3},        {"xpipe", "", 3},      {"pb", "stash", 1},
    {"pb", "lwp_v", 1},  {"stale", "lwp_w", 1}, {"pb", "t1 t2 t3", 1}, {"stale", "ema", 1},
    {"2bw", "lwp_w", 2},
};
enum { MODES = sizeof modes / sizeof *modes };

static inline rv_delay_desc desc_of(int k) {
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

/* The first stage does not look what to do before all batches are there that it could begin: else
 * its order depends on how fast the caller is. */
typedef struct holding {
    int ahead, limit; /* updates; changed only while no stage runs */
} holding;

static inline rv_status hold(void *self, rv_stage *stage, bool *stalls) {
    const holding *it = self;
    const struct timespec moment = {0, 20000};
    int64_t fed = stage->weights.made + it->ahead - 1;
    (void)stalls;
    if (stage->desc.index > 0) return RV_OK;
    while (rv_flow_fed(stage->desc.flow) < (fed < it->limit ? fed : it->limit))
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

/* The network of a mode, which `way` says how to run. */
static inline void trial_open(trial *t, int k) {
    t->delay = desc_of(k);
    pipe_open(&t->s, &pipe_nets[0], &t->way);
    rv_delay_train(&t->delay, &t->s.train);
    OK(rv_delay_check(&t->delay, &t->s.train));
    pipe_cut(&t->s, &t->way, t->first);
}

static inline void trial_list(trial *t) {
    static const double one[STAGES] = {1, 1, 1, 1};
    const rv_costs costs = {.f = one, .b = one, .w = one};
    const pipe_way *way = &t->way;
    OK(rv_schedule_endless(&t->delay, way->stages, way->micros, way->chunks, UPDATES, way->slots,
                           &t->schedule));
    pipe_simulate(&t->schedule, &costs);
}

/* All updates; what was counted before update `from` is forgotten. */
static inline void trial_run(trial *t, const rv_schedule *schedule, const int *first, int from) {
    const pipe_way *way = &t->way;
    int fed = 0;
    holding it = {.limit = from ? from : UPDATES};
    rv_pipeline_desc desc = pipe_desc(&t->s, way, first, schedule);
    desc.delay = &t->delay;
    OK(rv_pipeline_create(&desc, &t->pipeline));
    it.ahead = rv_pipeline_ahead(t->pipeline);
    if (way->driver == RV_DRIVER_THREADS) turns_now = (turns){hold, NULL, &it};
    for (int u = 0; u < UPDATES; u++) {
        rv_step_result result;
        if (u == from) {
            rv_pipeline_rest(t->pipeline);
            it.limit = UPDATES;
            for (int s = 0; s < way->stages; s++)
                rv_account_clear(&rv_pipeline_stage(t->pipeline, s)->account);
        }
        for (; fed < it.limit && fed <= u + it.ahead; fed++) {
            rv_batch batch = t->s.batch;
            batch.B = SAMPLES, batch.epoch = (uint32_t)fed;
            OK(rv_pipeline_feed(t->pipeline, &batch));
        }
        OK(rv_pipeline_await(t->pipeline, &result));
    }
    rv_pipeline_rest(t->pipeline);
    turns_now = (turns){0};
}

static inline void trial_finish(trial *t) {
    rv_pipeline_destroy(t->pipeline);
    rv_schedule_finish(&t->schedule);
    small_finish(&t->s);
}

#endif
