/*
 * Costs. The parts are made into a pipeline of their own with one micro-batch and B before W, and
 * stepped part by part in this thread with a clock around every item: what is timed is what will
 * run, messages and encoding included. Medians, because machines are shared.
 */
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/bytes.h"
#include "pipeline/cost.h"
#include "pipeline/internal.h"

enum { REPEATS_LEAST = 5, REPEATS_MOST = 9 };
#define SECONDS_MOST 1.0 /* of repeats beyond the least */
#define SECONDS_LONG 2.0 /* of the least: a step that takes as long is measured once */

/* ---- one set of parts ------------------------------------------------------------------- */

/* How much of the sequence, and in which order. Lean: W right after its B, and as few slots as keep
 * parts apart, so that most of what is held is weights. */
typedef struct extent {
    int chunks; /* the first of them */
    bool lean;
} extent;

typedef struct rig {
    rv_train_desc train;
    rv_net_desc shape; /* of a shorter sequence */
    rv_net net;        /* with the layers of the description's */
    rv_batch batch;
    rv_schedule schedule;
    int *first;
    rv_pipeline *pipeline;
    int parts, items; /* items: of a step, RV_WORK_KINDS x parts x chunks, of which not all are */
    double whole;     /* the sequence, as so many times what is run */
} rig;

static void rig_finish(rig *r) {
    rv_pipeline_destroy(r->pipeline);
    rv_free(r->first);
    rv_schedule_finish(&r->schedule);
    *r = (rig){0};
}

/* One micro-batch of the size the run will have, since costs grow with rows but not evenly. Every
 * item counts as one: the simulation is there for the tapes it foretells. */
static rv_status rig_shape(rig *r, const rv_cost_desc *desc, int count, const rv_part_cost *parts,
                           const extent *of) {
    enum { LEAN_SLOTS = 2 };
    rv_status status = RV_OK;
    double *one = NULL;
    const int M = desc->train->micro_batches, C = desc->train->chunks, T = desc->net->desc->steps;
    r->train = *desc->train;
    r->train.batch = (desc->train->batch + M - 1) / M;
    r->train.micro_batches = 1;
    r->train.chunks = of->chunks;
    r->net = *desc->net;
    r->shape = *desc->net->desc;
    if (of->chunks < C) r->shape.steps = of->chunks * ((T + C - 1) / C);
    r->net.desc = &r->shape;
    r->whole = (double)T / r->shape.steps;
    r->batch = *desc->batch;
    if (r->batch.B > r->train.batch) r->batch.B = r->train.batch;
    r->parts = count;
    r->items = RV_WORK_KINDS * count * of->chunks;
    TRY(rv_alloc((size_t)count, sizeof *one, "costs", &one));
    TRY(rv_alloc((size_t)count + 1, sizeof *r->first, "cuts", &r->first));
    for (int i = 0; i < count; i++)
        one[i] = 1, r->first[i] = parts[i].first, r->first[i + 1] = parts[i].last;
    const rv_costs costs = {.f = one, .b = one, .w = one};
    TRY(rv_schedule_make(rv_generator_find(of->lean ? "1f1b+2bp" : "filldrain+2bp"), count, 1,
                         of->chunks, of->lean ? LEAN_SLOTS : 0, &costs, &r->schedule));
    TRY(rv_schedule_add_updates(&r->schedule, 1, r->train.clip_norm > 0));
    TRY(rv_schedule_simulate(&r->schedule, &costs, NULL));
out:
    rv_free(one);
    return status;
}

/* Of one part. Scratch is not known before it is measured. */
static rv_status part_weigh(const rig *r, rv_isa isa, int i, double *bytes) {
    rv_status status = RV_OK;
    const int rows = r->train.batch, C = r->train.chunks, steps = (r->shape.steps + C - 1) / C;
    const rv_range range = rv_net_range(&r->net, r->first[i], r->first[i + 1]);
    rv_crossing before = {0}, after = {0};
    TRY(rv_net_crossing(&r->net, range.first, &before));
    TRY(rv_net_crossing(&r->net, range.last, &after));
    const rv_tapes_desc tapes = {.range = &range,
                                 .before = &before,
                                 .how = {r->train.tape, r->train.tape_dtype == RV_TAPE_FLOAT16},
                                 .steps = steps,
                                 .rows = rows};
    const rv_tapes_sizes sizes = rv_tapes_sizes_of(&tapes);
    int count;
    const rv_work *list = rv_schedule_list(&r->schedule, i, &count);
    const double messages = (double)rv_wire_forward_bytes(&before, steps, rows) +
                            (double)rv_wire_backward_bytes(&after, steps, rows);
    *bytes += rv_bytes_weights(&range, &r->train, isa, NULL) +
              (double)rv_tapes_bytes(&sizes, r->schedule.forecast.peak[i], list, count) +
              2 * (double)rv_state_bytes(&range, rows) +
              rv_schedule_slots(r->schedule.slots, C) * messages +
              rv_bytes_beside(&r->net, (double)rv_tape_bytes(&range, &before, steps, rows));
out:
    rv_free(before.tensor);
    rv_free(after.tensor);
    return status;
}

/* All, and the weights it starts with. */
static rv_status rig_weigh(const rig *r, rv_isa isa, double *bytes) {
    rv_status status = RV_OK;
    *bytes = sizeof(float) * (double)r->net.n_all;
    for (int i = 0; i < r->parts; i++)
        TRY(part_weigh(r, isa, i, bytes));
out:
    return status;
}

/* The whole sequence where there is room, else lean, else half of it and so on. */
static rv_status extent_find(const rv_cost_desc *desc, int count, const rv_part_cost *parts,
                             extent *found, double *bytes) {
    rv_status status = RV_OK;
    rig r = {0};
    const double room = desc->memory > 0 ? desc->memory - rv_host_resident() : INFINITY;
    *found = (extent){desc->train->chunks, false};
    for (;;) {
        TRY(rig_shape(&r, desc, count, parts, found));
        TRY(rig_weigh(&r, desc->isa, bytes));
        rig_finish(&r);
        if (*bytes <= room) goto out;
        if (found->lean && found->chunks == 1) break;
        if (found->lean) found->chunks /= 2;
        found->lean = true;
    }
    FAIL(RV_RESOURCE,
         "pipeline.memory: to measure what the network costs takes %.1f MB, %.1f MB are left of it",
         *bytes / 1e6, fmax(0, room) / 1e6);
out:
    rig_finish(&r);
    return status;
}

static rv_status rig_open(rig *r, const rv_cost_desc *desc, int count, const rv_part_cost *parts,
                          const extent *of) {
    rv_status status = RV_OK;
    TRY(rig_shape(r, desc, count, parts, of));
    const rv_pipeline_desc pipeline = {
        .net = &r->net,
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
        .driver = RV_DRIVER_NONE,
    };
    TRY(rv_pipeline_create(&pipeline, &r->pipeline));
out:
    return status;
}

/* The next item, where it can go. What it lacks of a tape the disk brings meanwhile. */
static rv_status item_run(rv_stage *stage, rv_turn *turn) {
    rv_status status = RV_OK;
    rv_link *edge;
    for (;;) {
        TRY(rv_stage_step(stage, turn, &edge));
        if (*turn != RV_TURN_WAIT || edge != rv_tapes_edge(stage->tapes)) break;
        TRY(rv_writer_wait(stage->desc.writer));
    }
    TRY(stage->desc.device->ops->queue_sync(stage->desc.device->ctx, NULL));
out:
    return status;
}

static int item_at(const rig *r, int kind, int part, int chunk) {
    return (kind * r->parts + part) * r->train.chunks + chunk;
}

/* One step: every part goes on as long as it can before the next is tried, so its weights stay in
 * the caches as they would on a core of its own. seconds: [items], of those that there are. */
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
                /* Read before the step, which moves on to the next item. An attempt that only finds
                 * that it has to wait is not timed: in the run a worker would sleep through it. */
                const rv_work work =
                    stage->at < stage->count ? stage->list[stage->at] : (rv_work){0};
                double begun = rv_host_seconds();
                TRY(item_run(stage, &turn));
                if (turn != RV_TURN_DONE) continue;
                seconds[item_at(r, work.kind, i, work.chunk)] = rv_host_seconds() - begun;
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
    extent of;
    sem_t *warm; /* posted by each, once: it is under way, or has failed */
    atomic_bool *stop;
    pthread_t thread;
} helper;

/* With memory that was touched once: fresh pages and the drawing of weights would slow down what is
 * timed beside them. seconds: [items]. */
static rv_status helper_open(const helper *h, rig *r, double **seconds) {
    rv_status status = RV_OK;
    TRY(rig_open(r, h->desc, h->count, h->parts, &h->of));
    TRY(rv_alloc((size_t)r->items, sizeof **seconds, "costs", seconds));
    TRY(rig_step(r, *seconds));
out:
    return status;
}

/* The same work until told to stop. Where it fails the costs come out a little lower: no failure.
 */
static void *helper_main(void *argument) {
    helper *h = argument;
    rig r = {0};
    double *seconds = NULL;
    (void)rv_flush_set();
    rv_status status = helper_open(h, &r, &seconds);
    (void)sem_post(h->warm);
    while (status == RV_OK && !atomic_load(h->stop))
        status = rig_step(&r, seconds);
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

/* Until all are under way. On bench_deep the ratio of the two stages' costs lay between 0.61 and
 * 0.77 in twelve plans, 0.60 and 0.65 (once 0.70) with this and five repeats instead of three. */
static void helpers_wait(sem_t *warm, int count) {
    while (count > 0)
        if (sem_wait(warm) == 0) count--; /* else a signal came */
}

/* Each takes what the first rig took. */
static int helpers_fitting(const rv_cost_desc *desc, int count, double each) {
    if (desc->memory <= 0) return count;
    return (int)fmin(count, fmax(0, (desc->memory - rv_host_resident()) / fmax(1, each)));
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

/* Of the first `chunks` items of a kind. seconds: [repeats][items]. Each kind and part has its own
 * median: a disturbance hits one item of one repeat, and must not make the whole repeat worthless.
 */
static double cost_of(const rig *r, const double *seconds, int repeats, int kind, int part,
                      int chunks) {
    double values[REPEATS_MOST] = {0};
    for (int i = 0; i < repeats; i++)
        for (int c = 0; c < chunks; c++)
            values[i] += seconds[i * r->items + item_at(r, kind, part, c)];
    return median(values, repeats);
}

/* How far items lie from the mean of their kind, chunk 0 apart; from absolute deviations, which a
 * single disturbance does not rule: of the distribution of rv_item_time they are 2/e of the
 * standard deviation. */
static double scatter_of(const rig *r, const double *seconds, int repeats, int part) {
    const double share = 0.5 * exp(1);
    const int C = r->train.chunks, from = C > 1, count = repeats * (C - from);
    double all = 0, apart = 0;
    for (int k = RV_WORK_F; k <= RV_WORK_W; k++) {
        double sum = 0;
        for (int n = 0; n < count; n++)
            sum += seconds[n % repeats * r->items + item_at(r, k, part, from + n / repeats)];
        for (int n = 0; n < count; n++)
            apart +=
                fabs(seconds[n % repeats * r->items + item_at(r, k, part, from + n / repeats)] -
                     sum / count);
        all += sum;
    }
    return all > 0 ? fmin(1, share * apart / all) : 0;
}

/* What the other chunks took tells what chunk 0 would have taken, were it like them. */
static double once_of(const rig *r, double whole, double first) {
    int T = r->shape.steps, C = r->train.chunks;
    double share = rv_cut(1, C, T) / (double)T;
    return C > 1 ? fmin(fmax(0, first - (whole - first) * share / (1 - share)), whole) : 0;
}

/* What is done once a sequence is in any part of it. */
static double sum_of(const rig *r, double run, double once) {
    return once + (run - once) * r->whole;
}

/* From medians. */
static void costs_of(const rig *r, const double *seconds, int repeats, int i, rv_part_cost *part) {
    double *const kinds[] = {&part->f, &part->b, &part->w};
    part->u = cost_of(r, seconds, repeats, RV_WORK_U, i, 1);
    part->norm = cost_of(r, seconds, repeats, RV_WORK_NORM, i, 1);
    for (int k = RV_WORK_F; k <= RV_WORK_W; k++) {
        double run = cost_of(r, seconds, repeats, k, i, r->train.chunks);
        part->once[k] = once_of(r, run, cost_of(r, seconds, repeats, k, i, 1));
        *kinds[k] = sum_of(r, run, part->once[k]);
    }
    part->scatter = scatter_of(r, seconds, repeats, i);
}

/* Messages of a full micro-batch, though the one at hand may be smaller: a plan holds for all. */
static void bytes_of(const rig *r, int T, rv_part_cost *parts) {
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
    int others = (desc->busy < rv_host_threads() ? desc->busy : rv_host_threads()) - 1;
    int repeats = 0, started = 0;
    double *seconds = NULL, before, each;
    extent of;
    helper *helpers = NULL;
    atomic_bool stop = false;
    sem_t warm;
    rig r = {0};
    (void)sem_init(&warm, 0, 0); /* of one process, from zero: cannot fail */
    if (others > 0) TRY(rv_alloc((size_t)others, sizeof *helpers, "threads", &helpers));
    rv_host_trim();
    before = rv_host_resident();
    TRY(extent_find(desc, count, parts, &of, &each));
    TRY(rig_open(&r, desc, count, parts, &of));
    TRY(rv_alloc((size_t)r.items * REPEATS_MOST, sizeof *seconds, "costs", &seconds));
    TRY(rig_step(&r, seconds)); /* first touch of memory */
    each = fmax(each, rv_host_resident() - before);
    others = helpers_fitting(desc, others, each);
    started = helpers_start(helpers, others, &(helper){desc, count, parts, of, &warm, &stop, 0});
    helpers_wait(&warm, started);
    double begun = rv_host_seconds();
    while (repeats < REPEATS_MOST &&
           rv_host_seconds() - begun < (repeats < REPEATS_LEAST ? SECONDS_LONG : SECONDS_MOST))
        TRY(rig_step(&r, seconds + (size_t)r.items * (size_t)repeats++));
    for (int i = 0; i < count; i++)
        costs_of(&r, seconds, repeats, i, &parts[i]);
    bytes_of(&r, desc->net->desc->steps, parts);
out:
    /* On every way out: helpers read `desc` and `parts`, which are gone once this returns. */
    atomic_store(&stop, true);
    for (int i = 0; i < started; i++)
        pthread_join(helpers[i].thread, NULL);
    (void)sem_destroy(&warm);
    rig_finish(&r);
    rv_host_trim(); /* the run's blocks are others */
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
