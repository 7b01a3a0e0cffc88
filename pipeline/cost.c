/*
 * Costs. The parts are made into a pipeline of their own with one micro-batch and B before W, and
 * stepped part by part in this thread with a clock around every item: what is timed is what will
 * run, messages and encoding included. Medians, because machines are shared.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/cost.h"
#include "pipeline/internal.h"

enum { REPEATS_LEAST = 3, REPEATS_MOST = 9 };
#define SECONDS_MOST 0.5 /* of repeats beyond the least */
#define SECONDS_LONG 2.0 /* of the least: a step that takes as long is measured once */

/* Rows of what a step took: every kind, then the items of chunk 0 apart. */
enum { ONCE = RV_WORK_KINDS, ROWS = ONCE + RV_WORK_BW };

/* ---- one set of parts ------------------------------------------------------------------- */

typedef struct rig {
    rv_train_desc train;
    rv_batch batch;
    rv_schedule schedule;
    int *first;
    rv_pipeline *pipeline;
    int parts;
} rig;

static void rig_finish(rig *r) {
    rv_pipeline_destroy(r->pipeline);
    rv_free(r->first);
    rv_schedule_finish(&r->schedule);
}

/* One micro-batch of the size the run will have, since costs grow with rows but not evenly. Slots
 * have no limit and every item counts as one: the simulation is there for the tapes it
 * foretells. */
static rv_status rig_open(rig *r, const rv_cost_desc *desc, int count, const rv_part_cost *parts) {
    rv_status status = RV_OK;
    double *one = NULL;
    int M = desc->train->micro_batches;
    r->train = *desc->train;
    r->train.batch = (desc->train->batch + M - 1) / M;
    r->train.micro_batches = 1;
    r->batch = *desc->batch;
    if (r->batch.B > r->train.batch) r->batch.B = r->train.batch;
    r->parts = count;
    TRY(rv_alloc((size_t)count, sizeof *one, "costs", &one));
    TRY(rv_alloc((size_t)count + 1, sizeof *r->first, "cuts", &r->first));
    for (int i = 0; i < count; i++)
        one[i] = 1, r->first[i] = parts[i].first, r->first[i + 1] = parts[i].last;
    const rv_costs costs = {.f = one, .b = one, .w = one};
    TRY(rv_schedule_make(rv_generator_find("filldrain+2bp"), count, 1, r->train.chunks, 0, &costs,
                         &r->schedule));
    TRY(rv_schedule_add_updates(&r->schedule, 1, r->train.clip_norm > 0));
    TRY(rv_schedule_simulate(&r->schedule, &costs, NULL));
    const rv_pipeline_desc pipeline = {
        .net = desc->net,
        .encoder = desc->encoder,
        .loss = desc->loss,
        .train = &r->train,
        /* So many that no number of repeats brings the rate schedule to its end. */
        .total_steps = INT32_MAX,
        .schedule = &r->schedule,
        .first = r->first,
        .devices = desc->devices,
        .isa = desc->isa,
        .threads = desc->threads,
        .driver = RV_DRIVER_SEEDED,
    };
    TRY(rv_pipeline_create(&pipeline, &r->pipeline));
out:
    rv_free(one);
    return status;
}

/* One step: every part goes on as long as it can before the next is tried, so its weights stay in
 * the caches as they would on a core of its own. seconds: [ROWS][parts], added to. */
static rv_status rig_step(rig *r, double *seconds) {
    rv_status status = RV_OK;
    int ended = 0;
    for (int i = 0; i < r->parts; i++)
        TRY(rv_stage_begin(rv_pipeline_stage(r->pipeline, i), &r->batch, true));
    while (ended < r->parts) {
        ended = 0;
        for (int i = 0; i < r->parts; i++) {
            rv_stage *stage = rv_pipeline_stage(r->pipeline, i);
            rv_turn turn = RV_TURN_DONE;
            while (turn == RV_TURN_DONE) {
                rv_link *edge;
                /* Read before the step, which moves on to the next item. An attempt that only finds
                 * that it has to wait is not timed: in the run a worker would sleep through it. */
                const rv_work work =
                    stage->at < stage->count ? stage->list[stage->at] : (rv_work){0};
                double begun = rv_host_seconds();
                TRY(rv_stage_step(stage, &turn, &edge));
                TRY(stage->desc.device->ops->queue_sync(stage->desc.device->ctx, NULL));
                if (turn != RV_TURN_DONE) continue;
                double took = rv_host_seconds() - begun;
                seconds[work.kind * r->parts + i] += took;
                if (work.chunk == 0 && work.kind < RV_WORK_BW)
                    seconds[(ONCE + work.kind) * r->parts + i] += took;
            }
            ended += turn == RV_TURN_END;
        }
    }
out:
    return status;
}

/* ---- the other threads ------------------------------------------------------------------ */

typedef struct helper {
    const rv_cost_desc *desc;
    int count;
    const rv_part_cost *parts;
    atomic_bool *stop;
    pthread_t thread;
} helper;

/* The same work until told to stop. Where it fails the costs come out a little lower: no failure.
 */
static void *helper_main(void *argument) {
    helper *h = argument;
    rig r = {0};
    double *seconds = NULL;
    rv_status status = RV_OK;
    (void)rv_flush_set();
    TRY(rv_alloc((size_t)h->count * ROWS, sizeof *seconds, "costs", &seconds));
    TRY(rig_open(&r, h->desc, h->count, h->parts));
    while (!atomic_load(h->stop))
        TRY(rig_step(&r, seconds));
out:
    rig_finish(&r);
    rv_free(seconds);
    return NULL;
}

/* Fewer than asked for is no failure: the costs come out a little lower. A signal must not end up
 * in a helper, which would not know what to do with it. */
static int helpers_start(helper *helpers, int count, const helper *like) {
    sigset_t all, before;
    int started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (; started < count; started++) {
        helpers[started] = *like;
        if (pthread_create(&helpers[started].thread, NULL, helper_main, &helpers[started]) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Each takes what the first rig took. */
static int helpers_fitting(const rv_cost_desc *desc, int count, double before) {
    const double now = rv_host_resident(), each = fmax(1, now - before);
    if (desc->memory <= 0) return count;
    return (int)fmin(count, fmax(0, (desc->memory - now) / each));
}

/* ---- interface -------------------------------------------------------------------------- */

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts `values` in place. */
static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* seconds: [repeats][ROWS][parts]. Each row and part has its own median: a disturbance hits one
 * item of one repeat, and must not make the whole repeat worthless. */
static double cost_of(const double *seconds, int repeats, int parts, int row, int part) {
    double values[REPEATS_MOST];
    for (int i = 0; i < repeats; i++)
        values[i] = seconds[(i * ROWS + row) * parts + part];
    return median(values, repeats);
}

/* What the other chunks took tells what chunk 0 would have taken, were it like them. */
static double once_of(const rig *r, double whole, double first) {
    int T = rv_pipeline_stage(r->pipeline, 0)->desc.net->desc->steps, C = r->train.chunks;
    double share = rv_cut(1, C, T) / (double)T;
    return C > 1 ? fmin(fmax(0, first - (whole - first) * share / (1 - share)), whole) : 0;
}

/* Messages of a full micro-batch, though the one at hand may be smaller: a plan holds for all. */
static void bytes_of(const rig *r, rv_part_cost *parts) {
    int T = r->pipeline ? rv_pipeline_stage(r->pipeline, 0)->desc.net->desc->steps : 0;
    for (int i = 0; i < r->parts; i++) {
        const rv_stage *stage = rv_pipeline_stage(r->pipeline, i);
        parts[i].forward_bytes = (double)rv_wire_forward_bytes(&stage->after, T, r->train.batch);
        parts[i].backward_bytes = (double)rv_wire_backward_bytes(&stage->after, T, r->train.batch);
        parts[i].scratch_bytes = (double)stage->arena.peak;
    }
}

/* Alone on the machine a part would look cheaper than in the run, where caches and memory are
 * shared: so helpers do the same work for as long as the clock runs. */
rv_status rv_cost_measure(const rv_cost_desc *desc, int count, rv_part_cost *parts) {
    rv_status status = RV_OK;
    size_t size = (size_t)count * ROWS;
    int others = (desc->busy < rv_host_threads() ? desc->busy : rv_host_threads()) - 1;
    int repeats = 0, started = 0;
    double *seconds = NULL;
    helper *helpers = NULL;
    atomic_bool stop = false;
    rig r = {0};
    TRY(rv_alloc(size * REPEATS_MOST, sizeof *seconds, "costs", &seconds));
    if (others > 0) TRY(rv_alloc((size_t)others, sizeof *helpers, "threads", &helpers));
    const double before = rv_host_resident();
    TRY(rig_open(&r, desc, count, parts));
    TRY(rig_step(&r, seconds)); /* first touch of memory */
    others = helpers_fitting(desc, others, before);
    started = helpers_start(helpers, others, &(helper){desc, count, parts, &stop, 0});
    /* rig_step adds, and the row of the warm-up is used again for the first repeat. */
    memset(seconds, 0, size * sizeof *seconds);
    double begun = rv_host_seconds();
    while (repeats < REPEATS_MOST &&
           rv_host_seconds() - begun < (repeats < REPEATS_LEAST ? SECONDS_LONG : SECONDS_MOST))
        TRY(rig_step(&r, seconds + size * (size_t)repeats++));
    for (int i = 0; i < count; i++) {
        parts[i].f = cost_of(seconds, repeats, count, RV_WORK_F, i);
        parts[i].b = cost_of(seconds, repeats, count, RV_WORK_B, i);
        parts[i].w = cost_of(seconds, repeats, count, RV_WORK_W, i);
        parts[i].u = cost_of(seconds, repeats, count, RV_WORK_U, i);
        parts[i].norm = cost_of(seconds, repeats, count, RV_WORK_NORM, i);
        for (int k = RV_WORK_F; k <= RV_WORK_W; k++)
            parts[i].once[k] = once_of(&r, cost_of(seconds, repeats, count, k, i),
                                       cost_of(seconds, repeats, count, ONCE + k, i));
    }
    bytes_of(&r, parts);
out:
    /* On every way out: helpers read `desc` and `parts`, which are gone once this returns. */
    atomic_store(&stop, true);
    for (int i = 0; i < started; i++)
        pthread_join(helpers[i].thread, NULL);
    rig_finish(&r);
    rv_free(helpers);
    rv_free(seconds);
    return status;
}

/* ---- transport -------------------------------------------------------------------------- */

enum { ROUNDS = 200, COPY_BYTES = 1 << 22, COPIES = 5 };

/* Two threads play a ball to and fro over a lock and a condition, as a link's bell wakes a
 * worker. */
typedef struct table {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ball; /* 0: here, 1: over there, 2: the game is over */
} table;

/* The other player. Looks for the end after every wait, since the last ball is not played back. */
static void *answer(void *argument) {
    table *t = argument;
    pthread_mutex_lock(&t->lock);
    while (t->ball != 2) {
        while (t->ball == 0)
            pthread_cond_wait(&t->changed, &t->lock);
        if (t->ball == 1) t->ball = 0;
        pthread_cond_signal(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* A round wakes one thread after the other, hence the half of it. The median, for a few rounds meet
 * another process on the way. */
static rv_status latency_measure(double *latency) {
    rv_status status = RV_OK;
    table t = {.ball = 0};
    pthread_t thread;
    double rounds[ROUNDS];
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    int error = pthread_create(&thread, NULL, answer, &t);
    if (error) FAIL(RV_RESOURCE, "cannot start a thread: %s", strerror(error));
    pthread_mutex_lock(&t.lock);
    for (int i = 0; i < ROUNDS; i++) {
        double begun = rv_host_seconds();
        t.ball = 1;
        pthread_cond_signal(&t.changed);
        while (t.ball == 1)
            pthread_cond_wait(&t.changed, &t.lock);
        rounds[i] = (rv_host_seconds() - begun) / 2;
    }
    t.ball = 2;
    pthread_cond_signal(&t.changed);
    pthread_mutex_unlock(&t.lock);
    pthread_join(thread, NULL);
    *latency = median(rounds, ROUNDS);
out:
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.lock);
    return status;
}

/* Messages are written and then copied, so writing is in the time. The first round pays for fresh
 * pages, and the median leaves it out. */
rv_status rv_cost_transport(double *latency, double *bandwidth) {
    rv_status status = RV_OK;
    char *from = NULL, *to = NULL;
    double copies[COPIES];
    TRY(latency_measure(latency));
    TRY(rv_alloc(COPY_BYTES, 1, "a copy", &from));
    TRY(rv_alloc(COPY_BYTES, 1, "a copy", &to));
    for (int i = 0; i < COPIES; i++) {
        double begun = rv_host_seconds();
        memset(from, i, COPY_BYTES);
        memcpy(to, from, COPY_BYTES);
        copies[i] = rv_host_seconds() - begun;
    }
    *bandwidth = COPY_BYTES / median(copies, COPIES);
out:
    rv_free(to);
    rv_free(from);
    return status;
}

/* ---- disk ------------------------------------------------------------------------------- */

/* As tapes go there: written once, then read from the last to the first. One way of the two counts
 * for half. A slow disk is given less. */
rv_status rv_cost_disk(const char *folder, bool sustained, double *bandwidth) {
    rv_status status = RV_OK;
    enum { RECORDS = 8 };
    static const double enough = 0.25; /* seconds of writing */
    rv_spill *spill = NULL;
    char *bytes = NULL;
    double begun = 0;
    size_t count = 0;
    TRY(rv_alloc(COPY_BYTES, 1, "a copy", &bytes));
    TRY(rv_spill_create(folder, NULL, RECORDS, COPY_BYTES, &spill));
    begun = rv_host_seconds();
    while (count < RECORDS && rv_host_seconds() - begun < enough) {
        TRY(rv_spill_write(spill, count++, 0, bytes, COPY_BYTES));
        if (sustained) TRY(rv_spill_flush(spill));
    }
    for (size_t i = count; i-- > 0;)
        TRY(rv_spill_read(spill, i, 0, bytes, COPY_BYTES));
    *bandwidth = 2.0 * (double)(count * COPY_BYTES) / fmax(rv_host_seconds() - begun, 1e-9);
out:
    rv_spill_destroy(spill);
    rv_free(bytes);
    return status;
}
