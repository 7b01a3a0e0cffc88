/*
 * The drivers. A worker steps its stage until it would wait, then sleeps on the stage's bell, which
 * every link that ends there rings. The first error stops all: links fail from then on, and every
 * bell is rung, so nobody sleeps through it.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "pipeline/run_inside.h"

/* ---- bells ------------------------------------------------------------------------------ */

/* Called by links from any thread. All who sleep here look again. */
void rv_bell_ring(void *self) {
    rv_bell *b = self;
    pthread_mutex_lock(&b->lock);
    b->count++;
    pthread_cond_broadcast(&b->rung);
    pthread_mutex_unlock(&b->lock);
}

rv_bell *rv_run_bell(rv_pipeline *p, int stage) {
    return p->crew ? rv_run_crew_bell(p->crew) : &p->workers[stage].bell;
}

/* To be read before an attempt, and handed to bell_wait after it. */
static unsigned long bell_count(rv_bell *b) {
    pthread_mutex_lock(&b->lock);
    unsigned long count = b->count;
    pthread_mutex_unlock(&b->lock);
    return count;
}

/* Until it was rung since `seen` was read. */
static void bell_wait(rv_bell *b, unsigned long seen) {
    pthread_mutex_lock(&b->lock);
    while (b->count == seen)
        pthread_cond_wait(&b->rung, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

/* ---- errors ----------------------------------------------------------------------------- */

/* The first error is kept, with where it happened (stage NULL: everywhere); what the others meet
 * after it is its echo. */
void rv_run_fail(rv_pipeline *p, const rv_stage *stage) {
    char where[160];
    const rv_error *mine = rv_error_get();
    pthread_mutex_lock(&p->lock);
    bool first = !rv_flag_get(&p->failed);
    if (first) {
        p->error = *mine;
        if (stage)
            snprintf(p->error.message, sizeof p->error.message, "%s: %.300s",
                     rv_stage_item(stage, where), mine->message);
        rv_flag_set(&p->failed, true);
    }
    pthread_mutex_unlock(&p->lock);
    if (!first) return;
    /* Outside the lock, for this rings bells, each with a lock of its own, and no thread should
     * hold two at once. `failed` is set by now, so whoever wakes up sees it. */
    for (int i = 0; i < EDGES * (p->stages - 1); i++)
        if (p->links[i]) p->links[i]->ops->abort(p->links[i]);
    for (int s = 0; s < p->stages; s++)
        rv_bell_ring(rv_run_bell(p, s));
}

/* Errors belong to threads: the first one, kept from a worker, becomes that of the calling thread.
 * Called while no worker is in a step, so the lock is not needed. */
rv_status rv_run_outcome(rv_pipeline *p) {
    if (!rv_flag_get(&p->failed)) return RV_OK;
    rv_error_set(&p->error);
    return p->error.status;
}

/* ---- threads ---------------------------------------------------------------------------- */

/* One step of one stage. The bell is read before the attempt, so that a message which comes
 * between attempt and sleep is not slept through. A wait lasts from the first attempt in vain to
 * the first that finds what it lacked. */
static void worker_run(rv_worker *w) {
    rv_pipeline *p = w->pipeline;
    rv_stage *stage = w->stage;
    rv_turn turn = RV_TURN_DONE;
    rv_link *edge, *lacked = NULL;
    double begun = rv_host_seconds(), since = 0;
    while (!rv_flag_get(&p->failed)) {
        unsigned long seen = bell_count(&w->bell);
        /* An endless order is a list of one, filled by the attempt. */
        const rv_work *work = &stage->list[stage->batch ? stage->at : 0];
        rv_post_try(w->post, begun);
        if (rv_stage_step(stage, &turn, &edge) != RV_OK) {
            rv_run_fail(p, stage);
            return;
        }
        if (lacked && edge != lacked)
            rv_track_wait(stage->track, lacked, rv_stage_takes(stage, lacked), since, begun);
        if (edge != lacked) since = begun;
        lacked = edge;
        double now = rv_host_seconds();
        if (turn == RV_TURN_DONE) {
            rv_track_item(stage->track, work, begun, now);
            rv_post_moved(w->post, stage, now);
            if (p->flow && work->kind == RV_WORK_U) rv_run_flow_made(w);
        } else if (turn == RV_TURN_WAIT && !rv_flag_get(&p->failed)) {
            rv_post_wait(w->post, edge, since);
            bell_wait(&w->bell, seen);
            now = rv_host_seconds();
        } else if (turn == RV_TURN_END) {
            rv_post_moved(w->post, stage, now);
            if (!p->flow || !rv_run_flow_waits(w)) return;
            bell_wait(&w->bell, seen);
            now = rv_host_seconds();
        }
        begun = now;
    }
}

/* A worker lives as long as the pipeline. The number of the round tells it that a step is new, so
 * it neither misses one nor runs one twice. Flushing of denormals is a property of the thread and
 * part of the bits; pinning is a matter of speed alone and may fail. */
static void *worker_main(void *argument) {
    rv_worker *w = argument;
    rv_pipeline *p = w->pipeline;
    unsigned long seen = 0;
    int threads = p->desc.threads;
    if (p->pinned) (void)rv_host_pin((int)(w - p->workers) * threads, threads);
    (void)rv_flush_set();
    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (p->round == seen && !p->stop)
            pthread_cond_wait(&p->go, &p->lock);
        bool stop = p->stop;
        seen = p->round;
        pthread_mutex_unlock(&p->lock);
        if (stop) return NULL;
        (p->crew ? rv_run_crew : worker_run)(w);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

/* The lock also orders memory: workers see what rv_stage_begin wrote in this thread, and this
 * thread what they left in their stages. */
void rv_run_round(rv_pipeline *p) {
    rv_guard_begin(&p->guard);
    pthread_mutex_lock(&p->lock);
    p->round++;
    p->busy = p->threads;
    pthread_cond_broadcast(&p->go);
    pthread_mutex_unlock(&p->lock);
}

void rv_run_watch(rv_pipeline *p, double *look) {
    const double timeout = p->desc.timeout, every = fmin(1, timeout / 8);
    if (*look == 0) *look = rv_host_seconds() + every;
    struct timespec until = {(time_t)*look, (long)(1e9 * (*look - floor(*look)))};
    int error = timeout > 0 ? pthread_cond_timedwait(&p->done, &p->lock, &until)
                            : pthread_cond_wait(&p->done, &p->lock);
    if (error != ETIMEDOUT || p->busy == 0) return;
    pthread_mutex_unlock(&p->lock);
    if (!rv_flag_get(&p->failed) && rv_guard_look(&p->guard) != RV_OK) rv_run_fail(p, NULL);
    *look = rv_host_seconds() + every;
    pthread_mutex_lock(&p->lock);
}

/* This thread watches while it waits. */
static void threads_round(rv_pipeline *p) {
    double look = 0;
    rv_run_round(p);
    pthread_mutex_lock(&p->lock);
    while (p->busy > 0)
        rv_run_watch(p, &look);
    pthread_mutex_unlock(&p->lock);
}

/* Signals are for the threads that know what to do with them. */
static rv_status threads_start(rv_pipeline *p) {
    rv_status status = RV_OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (int s = 0; s < p->threads && status == RV_OK; s++) {
        rv_worker *w = &p->workers[s];
        int error = pthread_create(&w->thread, NULL, worker_main, w);
        w->started = error == 0;
        if (error)
            status = rv_fail(RV_RESOURCE, "cannot start the thread of worker %d: %s", s,
                             strerror(error));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

/* Between steps only. Where starting failed half way, only those that were started are waited
 * for. */
static void threads_stop(rv_pipeline *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->go);
    pthread_mutex_unlock(&p->lock);
    for (int s = 0; s < p->threads; s++)
        if (p->workers[s].started) pthread_join(p->workers[s].thread, NULL);
}

/* ---- making ----------------------------------------------------------------------------- */

static rv_link **link_at(const rv_pipeline *p, int edge, int s) {
    return &p->links[edge * (p->stages - 1) + s];
}

/* The sender is woken when a slot is free again, the receiver when a message has come. With one
 * thread nobody sleeps, so nobody is to be woken. */
static rv_status link_open(rv_pipeline *p, int edge, int s, int from, int to, int slots,
                           size_t bytes) {
    const rv_transport *transport = p->desc.transport ? p->desc.transport : &rv_transport_local;
    bool sleeps = p->desc.driver == RV_DRIVER_THREADS;
    const rv_link_desc desc = {
        .from = from,
        .to = to,
        .slots = slots,
        .bytes = bytes,
        .from_device = &p->workers[from].device,
        .to_device = &p->workers[to].device,
        .sender = {sleeps ? rv_bell_ring : NULL, rv_run_bell(p, from)},
        .receiver = {sleeps ? rv_bell_ring : NULL, rv_run_bell(p, to)},
    };
    return transport->open(transport, &desc, link_at(p, edge, s));
}

/* How many sums of squares a stage sends, one for each: trained tensors come first in the
 * network. */
static size_t trained_tensors(const rv_stage *stage) {
    const rv_net *net = stage->desc.net;
    size_t count = 0;
    for (int k = 0; k < net->tensor_count && net->tensors[k].trained; k++)
        count +=
            net->tensors[k].layer >= stage->desc.first && net->tensors[k].layer < stage->desc.last;
    return count;
}

/* Between neighbours; for the norm between the last stage and every other. */
static rv_status links_open(rv_pipeline *p) {
    rv_status status = RV_OK;
    const rv_schedule *schedule = p->desc.schedule;
    /* No limit means a slot for every message of a step: then no sender ever waits. */
    const int slots = rv_schedule_slots(schedule->slots, schedule->micros * schedule->chunks);
    int last = p->stages - 1;
    for (int s = 0; s < last; s++) {
        rv_stage *a = p->workers[s].stage, *b = p->workers[s + 1].stage;
        size_t forward, backward, none;
        rv_stage_bytes(b, &forward, &none);
        rv_stage_bytes(a, &none, &backward);
        TRY(link_open(p, FORWARD, s, s, s + 1, slots, forward));
        TRY(link_open(p, BACKWARD, s, s + 1, s, slots, backward));
        a->links.forward_out = b->links.forward_in = *link_at(p, FORWARD, s);
        a->links.backward_in = b->links.backward_out = *link_at(p, BACKWARD, s);
        if (!schedule->norm) continue;
        /* One message a step each way, so one slot; the sum of a step is gone before the next
         * begins. */
        TRY(link_open(p, NORM, s, s, last, 1, sizeof(double) * trained_tensors(a)));
        TRY(link_open(p, FACTOR, s, last, s, 1, sizeof(double)));
        a->links.norm = *link_at(p, NORM, s);
        a->links.factor = *link_at(p, FACTOR, s);
    }
    /* The last stage sees rows of the table itself. Without NORM items they are NULL and never
     * read. */
    p->workers[last].stage->links.norms = link_at(p, NORM, 0);
    p->workers[last].stage->links.factors = link_at(p, FACTOR, 0);
out:
    return status;
}

/* Threads of a device keep the processors of the thread that opens it. */
static rv_status stage_open(rv_pipeline *p, int s) {
    rv_status status = RV_OK;
    const rv_pipeline_desc *desc = &p->desc;
    rv_worker *w = &p->workers[s];
    rv_processors before = {0};
    w->pipeline = p;
    if (p->pinned) before = rv_host_pin(s * desc->threads, desc->threads);
    static const rv_device_list cpu = {.kind = "cpu", .count = 1};
    status = rv_device_open_at(desc->devices ? desc->devices : &cpu, s, desc->isa, desc->threads,
                               &w->device);
    if (p->pinned) rv_host_unpin(&before);
    if (status) goto out;
    const rv_delay_shape shape = {p->stages, desc->train->chunks, desc->train->micro_batches, s,
                                  desc->schedule->slots};
    const rv_stage_desc stage = {
        .index = s,
        .stages = p->stages,
        .first = desc->first[s],
        .last = desc->first[s + 1],
        .net = desc->net,
        .device = &w->device,
        .encoder = desc->encoder,
        .loss = desc->loss,
        .train = desc->train,
        .total_steps = desc->total_steps,
        .schedule = desc->schedule,
        .writer = p->writer,
        .wake = {desc->driver == RV_DRIVER_THREADS ? rv_bell_ring : NULL, rv_run_bell(p, s)},
        .flow = p->flow,
        .rule = p->flow ? rv_delay_rule_of(desc->delay, &shape) : (rv_delay_rule){0},
        .scratch = desc->scratch ? desc->scratch[s] : 0,
    };
    TRY(rv_stage_create(&stage, &w->stage));
out:
    return status;
}

/* Room for all that stages can ask for at once, and for a job that has told its end but has not
 * left: a stage that gives one never waits. */
static rv_status writer_open(rv_pipeline *p) {
    const rv_range whole = rv_net_range(p->desc.net, 0, p->desc.net->layer_count);
    int room = 1, count;
    if (!rv_tape_has(&whole, p->desc.train->tape, RV_TAPE_SPILL)) return RV_OK;
    for (int s = 0; s < p->stages; s++) {
        const rv_work *list = rv_schedule_list(p->desc.schedule, s, &count);
        room += rv_tapes_jobs(list, count);
    }
    return p->desc.driver == RV_DRIVER_SEEDED ? rv_writer_create_stepped(room, &p->writer)
                                              : rv_writer_create(room, &p->writer);
}

/* Weights as the plain trainer would start with. */
static rv_status weights_init(rv_pipeline *p) {
    rv_status status = RV_OK;
    float *block = NULL;
    TRY(rv_alloc(p->desc.net->n_all, sizeof *block, "initial weights", &block));
    TRY(rv_net_init(p->desc.net, block));
    TRY(rv_pipeline_write(p, block, NULL));
out:
    rv_free(block);
    return status;
}

/* The watch over the stages, and their timeline. */
static rv_status watch_open(rv_pipeline *p) {
    rv_status status = RV_OK;
    TRY(rv_guard_init(&p->guard, p->stages, p->desc.timeout, p->desc.say, p->desc.user));
    for (int s = 0; s < p->stages; s++) {
        p->guard.stage[s] = p->workers[s].stage;
        p->workers[s].post = rv_guard_post(&p->guard, s);
    }
    if (p->desc.driver != RV_DRIVER_THREADS) goto out;
    TRY(rv_timeline_create(p->desc.trace, p->desc.schedule, p->links, EDGES * (p->stages - 1),
                           &p->timeline));
    rv_timeline_workers(p->timeline, p->threads);
    for (int s = 0; s < p->stages; s++) {
        p->workers[s].stage->track = rv_timeline_track(p->timeline, s);
        rv_tapes_watch(p->workers[s].stage->tapes, p->timeline);
    }
out:
    return status;
}

/* Lists that do not fit the recipe, or could not give the bits of one device, are refused before
 * anything is made. Threads come last: they may look at all the rest. */
rv_status rv_pipeline_create(const rv_pipeline_desc *desc, rv_pipeline **out) {
    rv_status status = RV_OK;
    rv_pipeline *p = NULL;
    const rv_train_desc *train = desc->train;
    const rv_schedule *schedule = desc->schedule;
    pthread_condattr_t monotonic;
    *out = NULL;
    bool endless = desc->delay && desc->delay->mode;
    if (endless && desc->delay->mode->blocks &&
        (!desc->ranks || desc->ranks->stages != schedule->stages ||
         desc->ranks->workers > schedule->stages || desc->ranks->chunks != train->chunks))
        FAIL(RV_INTERNAL, "the workers of the plan are of other stages than the recipe's");
    if (endless && (schedule->chunks != train->chunks || schedule->group != train->micro_batches))
        FAIL(RV_INTERNAL, "the plan is of other chunks or micro-batches than the recipe");
    if (!endless && (schedule->micros != train->micro_batches ||
                     schedule->chunks != train->chunks || schedule->norm != (train->clip_norm > 0)))
        FAIL(RV_CONFIG,
             "the schedule has %d micro-batches, %d chunks and %s NORM items; the recipe needs "
             "%d, %d and %s",
             schedule->micros, schedule->chunks, schedule->norm ? "" : "no", train->micro_batches,
             train->chunks, train->clip_norm > 0 ? "such items" : "none");
    if (!endless) TRY(rv_schedule_check_canonical(schedule));
    TRY(rv_alloc(1, sizeof *p, "a pipeline", &p));
    p->desc = *desc, p->stages = schedule->stages;
    p->threads = desc->ranks ? desc->ranks->workers : p->stages;
    pthread_mutex_init(&p->lock, NULL); /* on Linux these cannot fail */
    pthread_cond_init(&p->go, NULL);
    /* Waits for `done` have a time limit, which a change of the date must not move. */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TRY(rv_alloc((size_t)p->stages, sizeof *p->workers, "the stages", &p->workers));
    /* More than there are links, so that rows of a single stage lie inside the table, too. */
    TRY(rv_alloc((size_t)p->stages * EDGES, sizeof *p->links, "the links", &p->links));
    for (int s = 0; s < p->stages; s++) {
        pthread_mutex_init(&p->workers[s].bell.lock, NULL);
        pthread_cond_init(&p->workers[s].bell.rung, NULL);
    }
    /* Only where every stage gets processors of its own. Else pinning would pile stages onto some
     * of them while others have nothing to do. */
    if (endless) TRY(rv_run_flow_open(p));
    if (desc->ranks) TRY(rv_run_crew_open(p));
    p->pinned = desc->driver == RV_DRIVER_THREADS && !p->crew &&
                p->stages * desc->threads <= rv_host_threads();
    TRY(writer_open(p));
    for (int s = 0; s < p->stages; s++)
        TRY(stage_open(p, s));
    TRY(links_open(p));
    TRY(weights_init(p));
    TRY(watch_open(p));
    if (desc->driver == RV_DRIVER_THREADS) TRY(threads_start(p));
    *out = p;
    p = NULL;
out:
    rv_pipeline_destroy(p);
    return status;
}

/* Threads first, for they use everything else; a device after the stage that lives on it. */
void rv_pipeline_destroy(rv_pipeline *p) {
    if (!p) return;
    rv_pipeline_rest(p);
    if (p->workers) threads_stop(p);
    rv_writer_destroy(p->writer); /* ends what stages have given it, and rings their bells */
    rv_timeline_destroy(p->timeline);
    for (int i = 0; p->links && i < EDGES * (p->stages - 1); i++)
        rv_link_close(p->links[i]);
    for (int s = 0; p->workers && s < p->stages; s++) {
        rv_worker *w = &p->workers[s];
        rv_stage_destroy(w->stage);
        if (w->device.ops) rv_device_close(&w->device);
        pthread_cond_destroy(&w->bell.rung);
        pthread_mutex_destroy(&w->bell.lock);
    }
    rv_guard_finish(&p->guard);
    rv_flow_destroy(p->flow);
    rv_run_crew_close(p);
    rv_free(p->links);
    rv_free(p->workers);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->go);
    pthread_mutex_destroy(&p->lock);
    rv_free(p);
}

/* ---- interface -------------------------------------------------------------------------- */

/* Stages begin in this thread while all workers rest. Loss, norm and rate are known to the last
 * stage alone; a pipeline that failed once gives the same error again. */
static rv_status run_round(rv_pipeline *p, const rv_batch *batch, bool training,
                           rv_step_result *out) {
    rv_status status = RV_OK;
    rv_pipeline_rest(p);
    TRY(rv_run_outcome(p));
    for (int s = 0; s < p->stages; s++)
        TRY(rv_stage_begin(p->workers[s].stage, batch, training));
    if (p->timeline) rv_timeline_begin(p->timeline, training);
    if (p->desc.driver == RV_DRIVER_THREADS)
        threads_round(p);
    else
        rv_run_seeded(p);
    if (p->timeline) rv_timeline_end(p->timeline);
    TRY(rv_run_outcome(p));
    *out = p->workers[p->stages - 1].stage->result;
out:
    return status;
}

rv_status rv_pipeline_step(rv_pipeline *p, const rv_batch *batch, rv_step_result *out) {
    rv_status status = RV_OK;
    if (!p->flow) return run_round(p, batch, true, out);
    TRY(rv_pipeline_feed(p, batch));
    TRY(rv_pipeline_await(p, out));
out:
    return status;
}

/* Every stage counts the spikes of its own layers and the last writes the predictions: no two write
 * to one place. The arrays are the caller's, so no stage keeps them beyond the call. */
rv_status rv_pipeline_eval(rv_pipeline *p, const rv_batch *batch, rv_step_result *out,
                           int64_t *spikes, int32_t *predictions) {
    rv_status status;
    for (int s = 0; s < p->stages; s++) {
        p->workers[s].stage->spikes = spikes;
        p->workers[s].stage->predictions = predictions;
    }
    status = run_round(p, batch, false, out);
    for (int s = 0; s < p->stages; s++) {
        p->workers[s].stage->spikes = NULL;
        p->workers[s].stage->predictions = NULL;
    }
    return status;
}

rv_status rv_pipeline_folder(rv_pipeline *p, const char *folder) {
    rv_status status = RV_OK;
    for (int s = 0; s < p->stages; s++)
        TRY(rv_tapes_open(p->workers[s].stage->tapes, folder, true));
out:
    return status;
}

void rv_pipeline_observe(rv_pipeline *p, const rv_observer *observer) {
    for (int s = 0; s < p->stages; s++)
        p->workers[s].stage->observer = observer;
}

/* Ranges do not overlap, so the order of stages does not matter. Step and plateau move alike in all
 * of them: the first tells. */
void rv_pipeline_part(rv_pipeline *p, int s, float *block, rv_optimizer *optimizer) {
    rv_stage *stage = p->workers[s].stage;
    rv_optimizer *own = stage->weights.optimizer;
    if (block)
        rv_range_give(&stage->range, rv_version_block(rv_weights_newest(&stage->weights)), block,
                      false);
    for (int k = 0; optimizer && k < rv_optimizer_slots(optimizer); k++)
        rv_range_give(&stage->range, rv_optimizer_slot(own, k), rv_optimizer_slot(optimizer, k),
                      true);
    if (!optimizer || s > 0) return;
    rv_optimizer_step_set(optimizer, rv_optimizer_step(own));
    *rv_optimizer_plateau(optimizer) = *rv_optimizer_plateau(own);
}

void rv_pipeline_read(rv_pipeline *p, float *block, rv_optimizer *optimizer) {
    rv_pipeline_rest(p);
    for (int s = 0; s < p->stages; s++)
        rv_pipeline_part(p, s, block, optimizer);
}

/* What is derived from the weights has to be made anew, for the rows of a full micro-batch; a write
 * of the optimiser alone spares that. */
rv_status rv_pipeline_write(rv_pipeline *p, const float *block, rv_optimizer *optimizer) {
    rv_status status = RV_OK;
    int64_t made = optimizer ? rv_optimizer_step(optimizer) : p->awaited;
    rv_pipeline_rest(p);
    for (int s = 0; s < p->stages; s++) {
        rv_stage *stage = p->workers[s].stage;
        for (int k = 0; optimizer && k < rv_optimizer_slots(optimizer); k++)
            rv_range_take(&stage->range, rv_optimizer_slot(optimizer, k),
                          rv_optimizer_slot(stage->weights.optimizer, k), true);
        if (optimizer) {
            rv_optimizer_step_set(stage->weights.optimizer, rv_optimizer_step(optimizer));
            *rv_optimizer_plateau(stage->weights.optimizer) = *rv_optimizer_plateau(optimizer);
        }
        if (!block) continue;
        rv_range_take(&stage->range, block, rv_version_block(rv_weights_newest(&stage->weights)),
                      false);
        TRY(rv_weights_start(&stage->weights, made));
        p->workers[s].made = made;
    }
    if (block) p->awaited = made;
    if (block && p->flow) rv_flow_start(p->flow, made);
out:
    return status;
}

void rv_pipeline_gradient(rv_pipeline *p, float *gradient) {
    rv_pipeline_rest(p);
    for (int s = 0; s < p->stages; s++)
        rv_range_give(&p->workers[s].stage->range, p->workers[s].stage->gradient, gradient, true);
}

rv_timeline *rv_pipeline_timeline(rv_pipeline *p) {
    return p->timeline;
}

int rv_pipeline_stages(const rv_pipeline *p) {
    return p->stages;
}

rv_stage *rv_pipeline_stage(rv_pipeline *p, int stage) {
    return p->workers[stage].stage;
}
