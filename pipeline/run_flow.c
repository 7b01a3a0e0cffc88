/*
 * An endless training: a round of the workers lasts until the caller wants rest. Updates have
 * numbers, and stages take batches and weights by them, so when a batch is fed, or who is ahead of
 * whom, changes no bit. The caller sleeps on `done`, which a stage signals after each of its
 * updates.
 */
#include <math.h>

#include "pipeline/run_inside.h"

static int ahead_of(const rv_pipeline *p) {
    const rv_delay_shape shape = {p->stages, p->desc.train->chunks, p->desc.train->micro_batches, 0,
                                  p->desc.schedule->slots};
    const rv_order order = {.rule = rv_delay_rule_of(p->desc.delay, &shape),
                            .chunks = shape.chunks,
                            .group = shape.micros};
    return rv_order_fed(&order);
}

int rv_pipeline_ahead(const rv_pipeline *p) {
    return p->flow ? ahead_of(p) : 0;
}

rv_status rv_run_flow_open(rv_pipeline *p) {
    return rv_flow_create(ahead_of(p) + RV_FLOW_BESIDE, &p->flow);
}

bool rv_pipeline_still(const rv_pipeline *p) {
    return !p->flow || rv_flow_fed(p->flow) == p->awaited;
}

/* ---- workers ---------------------------------------------------------------------------- */

/* What is copied is there before the caller learns of the update. */
void rv_run_flow_made(rv_worker *w) {
    rv_pipeline *p = w->pipeline;
    int64_t made = w->stage->weights.made;
    pthread_mutex_lock(&p->lock);
    bool kept = made == p->kept;
    pthread_mutex_unlock(&p->lock);
    if (kept) p->copy(p->copy_self, w->stage->desc.index);
    pthread_mutex_lock(&p->lock);
    w->made = made;
    if (!w->stage->sound) rv_flag_set(&w->sound, false);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

bool rv_run_flow_waits(rv_worker *w) {
    rv_pipeline *p = w->pipeline;
    bool leave = w->stage->batch != NULL; /* an evaluation is at its end */
    pthread_mutex_lock(&p->lock);
    leave = leave || p->resting;
    pthread_mutex_unlock(&p->lock);
    return !leave;
}

/* ---- the caller ------------------------------------------------------------------------- */

static bool threaded(const rv_pipeline *p) {
    return p->desc.driver == RV_DRIVER_THREADS;
}

static void wake_all(rv_pipeline *p) {
    for (int s = 0; s < p->stages; s++)
        rv_bell_ring(rv_run_bell(p, s));
}

static int64_t made_by_all(const rv_pipeline *p) {
    int64_t least = INT64_MAX;
    for (int s = 0; s < p->stages; s++)
        if (p->workers[s].made < least) least = p->workers[s].made;
    return least;
}

rv_status rv_pipeline_feed(rv_pipeline *p, const rv_batch *batch) {
    rv_status status = RV_OK;
    TRY(rv_run_outcome(p));
    if (batch->B < 1 || batch->B > p->desc.train->batch)
        FAIL(RV_INTERNAL, "a batch of %d samples, the stages were made for 1 to %d", batch->B,
             p->desc.train->batch);
    if (rv_flow_fed(p->flow) > p->awaited + ahead_of(p))
        FAIL(RV_INTERNAL, "update %lld is fed while %lld is awaited",
             (long long)rv_flow_fed(p->flow), (long long)p->awaited);
    if (rv_flow_fed(p->flow) >= INT32_MAX / p->desc.train->micro_batches)
        FAIL(RV_RESOURCE, "a delayed training has at most 2^31 micro-batches");
    if (p->flowing && p->timeline &&
        rv_timeline_full(p->timeline, rv_flow_fed(p->flow) - p->begun)) {
        rv_pipeline_rest(p);
        TRY(rv_run_outcome(p));
    }
    TRY(rv_flow_feed(p->flow, batch));
    p->guard.stirred = rv_host_seconds();
    if (p->flowing) {
        if (threaded(p)) wake_all(p);
        goto out;
    }
    for (int s = 0; s < p->stages; s++)
        rv_stage_flow(p->workers[s].stage);
    for (int s = 0; s < p->stages; s++)
        rv_flag_set(&p->workers[s].sound, true);
    if (p->timeline) rv_timeline_begin(p->timeline, true);
    p->begun = rv_flow_fed(p->flow) - 1;
    p->flowing = true;
    p->resting = false;
    if (threaded(p)) rv_run_round(p);
out:
    return status;
}

static void threads_await(rv_pipeline *p) {
    double look = 0;
    pthread_mutex_lock(&p->lock);
    while (made_by_all(p) <= p->awaited && p->busy > 0)
        rv_run_watch(p, &look);
    pthread_mutex_unlock(&p->lock);
}

static void seeded_await(rv_pipeline *p) {
    enum { PATIENCE = 1000 };
    for (int idle = 0, ended; idle < PATIENCE && made_by_all(p) <= p->awaited;) {
        idle = rv_run_turn(p, &ended) ? 0 : idle + 1;
        if (rv_flag_get(&p->failed)) return;
    }
    if (made_by_all(p) <= p->awaited && rv_fail(RV_INTERNAL, "nothing can go on") != RV_OK)
        rv_run_fail(p, NULL);
}

rv_status rv_pipeline_await(rv_pipeline *p, rv_step_result *out) {
    rv_status status = RV_OK;
    TRY(rv_run_outcome(p));
    if (rv_pipeline_still(p)) FAIL(RV_INTERNAL, "no update is under way");
    if (threaded(p))
        threads_await(p);
    else
        seeded_await(p);
    TRY(rv_run_outcome(p));
    *out = *rv_flow_result(p->flow, p->awaited++);
out:
    if (status) rv_pipeline_rest(p); /* after an error every stage has stopped */
    return status;
}

void rv_pipeline_keep(rv_pipeline *p, rv_pipeline_copy *copy, void *self) {
    pthread_mutex_lock(&p->lock);
    p->kept = rv_flow_fed(p->flow) + 1;
    p->copy = copy;
    p->copy_self = self;
    pthread_mutex_unlock(&p->lock);
}

/* Only this thread writes it, so it needs no lock to read. */
bool rv_pipeline_kept(const rv_pipeline *p) {
    return p->flow && p->kept > 0 && p->kept == p->awaited;
}

/* All that was fed is done, and the workers rest. */
void rv_pipeline_rest(rv_pipeline *p) {
    double look = 0;
    if (!p->flowing) return;
    while (!threaded(p) && !rv_flag_get(&p->failed) && made_by_all(p) < rv_flow_fed(p->flow)) {
        int ended;
        if (!rv_run_turn(p, &ended) && ended == p->stages) break;
    }
    pthread_mutex_lock(&p->lock);
    p->resting = true;
    pthread_mutex_unlock(&p->lock);
    if (threaded(p)) wake_all(p);
    pthread_mutex_lock(&p->lock);
    while (threaded(p) && p->busy > 0)
        rv_run_watch(p, &look);
    pthread_mutex_unlock(&p->lock);
    p->flowing = false;
    if (p->timeline) rv_timeline_end(p->timeline);
}

bool rv_pipeline_sound(const rv_pipeline *p) {
    for (int s = 0; s < p->stages; s++) {
        const rv_stage *stage = p->workers[s].stage;
        if (p->flow ? !rv_flag_get(&p->workers[s].sound) : !rv_stage_sound(stage)) return false;
    }
    return true;
}
