/*
 * For tests of delayed pipelines: one beside the sequential oracle of its rules, fed as far ahead
 * as it wants; losses, rates, weights and optimiser must be the same to the bit.
 */
#ifndef RV_TESTS_FLOWS_H
#define RV_TESTS_FLOWS_H

#include "pipeline/oracle.h"
#include "pipeline/order.h"
#include "tests/pipes.h"

enum { FLOW_STAGES = 6 };

/* pipeline: waits for threads and links; oracle: for nothing. */
typedef struct flow {
    small s;
    rv_delay_desc delay;
    int first[SMALL_LAYERS + 1], stages;
    rv_schedule schedule;
    rv_oracle *oracle;
    rv_pipeline *pipeline;
    rv_optimizer *a, *b;
    float *want, *got;
} flow;

/* Network and rules; cuts and schedule are the caller's, then flow_join. */
static inline void flow_begin(flow *t, const pipe_net *net, const rv_delay_desc *delay,
                              const pipe_way *way) {
    memset(t, 0, sizeof *t);
    t->delay = *delay;
    pipe_open(&t->s, net, way);
    rv_delay_train(&t->delay, &t->s.train);
    OK(rv_delay_check(&t->delay, &t->s.train));
}

/* ranks: of stages that share workers; NULL: a worker each. */
static inline void flow_join(flow *t, const pipe_way *way, int stages, const rv_ranks *ranks) {
    rv_pipeline_desc desc = pipe_desc(&t->s, way, t->first, &t->schedule);
    desc.delay = &t->delay, desc.ranks = ranks;
    t->stages = stages;
    OK(rv_pipeline_create(&desc, &t->pipeline));
    const rv_oracle_desc how = {.net = t->s.net,
                                .device = &t->s.device,
                                .encoder = &t->s.encoder,
                                .loss = &t->s.loss,
                                .train = &t->s.train,
                                .total_steps = 100,
                                .delay = &t->delay,
                                .stages = stages,
                                .first = t->first};
    OK(rv_oracle_create(&how, &t->oracle));
    OK(rv_optimizer_create(t->s.net, &t->s.train, 100, &t->a));
    OK(rv_optimizer_create(t->s.net, &t->s.train, 100, &t->b));
    t->want = small_memory(&t->s, t->s.net->n_all + 1, sizeof *t->want);
    t->got = small_memory(&t->s, t->s.net->n_all + 1, sizeof *t->got);
}

/* A stage for each worker. */
static inline void flow_open(flow *t, const pipe_net *net, const rv_delay_desc *delay,
                             const pipe_way *way) {
    static const double one[FLOW_STAGES] = {1, 1, 1, 1, 1, 1};
    const rv_costs costs = {.f = one, .b = one, .w = one};
    flow_begin(t, net, delay, way);
    pipe_cut(&t->s, way, t->first);
    OK(rv_schedule_endless(
        &t->delay, way->stages, way->micros, way->chunks,
        rv_schedule_settled(&t->delay, way->stages, way->micros, way->chunks, way->slots),
        way->slots, &t->schedule));
    pipe_simulate(&t->schedule, &costs);
    flow_join(t, way, way->stages, NULL);
}

static inline void flow_finish(flow *t) {
    rv_optimizer_destroy(t->b);
    rv_optimizer_destroy(t->a);
    rv_oracle_destroy(t->oracle);
    rv_pipeline_destroy(t->pipeline);
    rv_schedule_finish(&t->schedule);
    small_finish(&t->s);
}

static inline rv_batch flow_batch(const flow *t, int update) {
    rv_batch batch = t->s.batch;
    batch.epoch = (uint32_t)update;
    if (update % 7 == 6) batch.B = 3; /* ragged */
    return batch;
}

static inline void flow_same(flow *t, const char *what) {
    rv_oracle_read(t->oracle, t->want, t->a);
    rv_pipeline_read(t->pipeline, t->got, t->b);
    pipe_same(what, &t->s, t->want, t->got, t->s.net->n_all);
    for (int k = 0; k < rv_optimizer_slots(t->a); k++)
        pipe_same(rv_optimizer_slot_name(t->a, k), &t->s, rv_optimizer_slot(t->a, k),
                  rv_optimizer_slot(t->b, k), t->s.net->n_trained);
    assert_int_equal(rv_optimizer_step(t->a), rv_optimizer_step(t->b));
}

/* As many batches ahead as the pipeline wants; every `still` updates it comes to rest and
 * evaluates. What fails in the pipeline is given back; without an oracle nothing is compared. */
static inline rv_status flow_feed(flow *t, const char *what, int updates, int still) {
    rv_status status = RV_OK;
    int ahead = rv_pipeline_ahead(t->pipeline), fed = 0;
    for (int u = 0; u < updates; u++) {
        rv_step_result a, b, c;
        rv_batch batch = flow_batch(t, u);
        int until = still ? (u / still + 1) * still : updates;
        for (; fed < updates && fed < until && fed <= u + ahead; fed++) {
            rv_batch next = flow_batch(t, fed);
            TRY(rv_pipeline_feed(t->pipeline, &next));
        }
        TRY(rv_pipeline_await(t->pipeline, &b));
        if (still && u % still == still - 1)
            TRY(rv_pipeline_eval(t->pipeline, &batch, &c, NULL, NULL));
        if (!t->oracle) continue;
        OK(rv_oracle_step(t->oracle, &batch, &a));
        if (memcmp(&a.loss, &b.loss, sizeof a.loss) != 0 || a.correct != b.correct || a.B != b.B ||
            a.rate != b.rate)
            fail_msg("%s: update %d: loss %.17g is %.17g, rate %g is %g", what, u, a.loss, b.loss,
                     a.rate, b.rate);
    }
out:
    return status;
}

static inline void flow_run(flow *t, const char *what, int updates, int still) {
    OK(flow_feed(t, what, updates, still));
    flow_same(t, what);
}

#endif
