/*
 * Threads that share the stages: whoever is free takes, of all items that stages offer, the one
 * that goes first (blocks.h), and leaves it where it would have to wait. A stage is taken by one
 * thread at a time; which items are tried in which order changes no bit, for weights and batches go
 * by number. All threads sleep on one bell, whose lock also guards the seats.
 */
#include <string.h>

#include "pipeline/run_inside.h"

struct rv_crew {
    rv_bell bell;
    bool *taken; /* [stages]; under the bell's lock */
    bool *vain;  /* [threads][stages][RV_WORK_KINDS]: tried since the bell was looked at */
};

/* ---- making ----------------------------------------------------------------------------- */

rv_status rv_run_crew_open(rv_pipeline *p) {
    rv_status status = RV_OK;
    size_t stages = (size_t)p->stages;
    TRY(rv_alloc(1, sizeof *p->crew, "the workers", &p->crew));
    pthread_mutex_init(&p->crew->bell.lock, NULL); /* on Linux these cannot fail */
    pthread_cond_init(&p->crew->bell.rung, NULL);
    TRY(rv_alloc(stages, sizeof *p->crew->taken, "the workers", &p->crew->taken));
    TRY(rv_alloc((size_t)p->threads * stages * RV_WORK_KINDS, sizeof *p->crew->vain, "the workers",
                 &p->crew->vain));
out:
    return status;
}

void rv_run_crew_close(rv_pipeline *p) {
    if (!p->crew) return;
    pthread_cond_destroy(&p->crew->bell.rung);
    pthread_mutex_destroy(&p->crew->bell.lock);
    rv_free(p->crew->vain);
    rv_free(p->crew->taken);
    rv_free(p->crew);
    p->crew = NULL;
}

rv_bell *rv_run_crew_bell(rv_crew *crew) {
    return &crew->bell;
}

/* ---- one item --------------------------------------------------------------------------- */

/* Under the bell's lock, of a stage that nobody has taken. One that offers nothing is told to have
 * ended: nobody computes there. */
static int look(const rv_worker *seat, rv_work offers[RV_OFFERS]) {
    rv_stage *stage = seat->stage;
    int count = rv_stage_offers(stage, offers);
    bool ended = stage->at == stage->count;
    if ((count == 0) == ended || stage->batch) return count;
    stage->at = count == 0 ? stage->count : 0;
    rv_post_moved(seat->post, stage, rv_host_seconds());
    return count;
}

/* Under the bell's lock. What is offered and was not tried in vain; *any: something is offered, or
 * a stage is taken that may offer more. */
static bool choose(rv_pipeline *p, const bool *vain, rv_work *best, bool *any) {
    bool found = false;
    *any = false;
    for (int s = 0; s < p->stages; s++) {
        rv_work offers[RV_OFFERS];
        bool taken = p->crew->taken[s];
        int count = taken ? 0 : look(&p->workers[s], offers);
        *any |= taken || count > 0;
        for (int i = 0; i < count; i++) {
            if (vain[s * RV_WORK_KINDS + offers[i].kind]) continue;
            if (found && !rv_ranks_before(p->desc.ranks, &offers[i], best)) continue;
            *best = offers[i];
            found = true;
        }
    }
    return found;
}

/* By who has taken the stage. False: it waits, or failed. */
static bool run(rv_pipeline *p, const rv_work *work) {
    rv_worker *seat = &p->workers[work->stage];
    rv_turn turn;
    rv_link *edge;
    double begun = rv_host_seconds(), now;
    rv_post_try(seat->post, begun);
    if (rv_stage_try(seat->stage, work, &turn, &edge) != RV_OK) {
        rv_run_fail(p, seat->stage);
        return false;
    }
    if (turn == RV_TURN_WAIT) {
        rv_post_wait(seat->post, edge, begun);
        return false;
    }
    now = rv_host_seconds();
    rv_track_item(seat->stage->track, work, begun, now);
    rv_post_moved(seat->post, seat->stage, now);
    if (!seat->stage->batch && work->kind == RV_WORK_U) rv_run_flow_made(seat);
    return true;
}

/* ---- a round ---------------------------------------------------------------------------- */

/* With nothing to do anywhere: an evaluation is at its end, or rest is wanted. */
static bool is_over(rv_pipeline *p) {
    pthread_mutex_lock(&p->lock); /* the only lock taken under that of a bell */
    bool over = p->workers[0].stage->batch || p->resting;
    pthread_mutex_unlock(&p->lock);
    return over;
}

/* Every thread looks after all stages; under the bell's lock. */
static void leave(rv_pipeline *p) {
    for (int s = 0; s < p->stages; s++) {
        if (rv_stage_end(p->workers[s].stage) == RV_OK) continue;
        pthread_mutex_unlock(&p->crew->bell.lock);
        rv_run_fail(p, p->workers[s].stage);
        pthread_mutex_lock(&p->crew->bell.lock);
        return;
    }
}

/* The bell is looked at before the stages are, so that a message which comes between attempt and
 * sleep is not slept through. */
void rv_run_crew(rv_worker *w) {
    rv_pipeline *p = w->pipeline;
    rv_bell *bell = &p->crew->bell;
    const size_t size = (size_t)p->stages * RV_WORK_KINDS * sizeof(bool);
    bool *vain = p->crew->vain + (w - p->workers) * p->stages * RV_WORK_KINDS, any;
    rv_work best;
    pthread_mutex_lock(&bell->lock);
    unsigned long seen = bell->count;
    memset(vain, 0, size);
    while (!rv_flag_get(&p->failed)) {
        if (choose(p, vain, &best, &any)) {
            p->crew->taken[best.stage] = true;
            pthread_mutex_unlock(&bell->lock);
            bool done = run(p, &best);
            pthread_mutex_lock(&bell->lock);
            p->crew->taken[best.stage] = false;
            vain[best.stage * RV_WORK_KINDS + best.kind] = true;
            if (!done) continue;
            bell->count++; /* the stage is free again, and offers something else */
            pthread_cond_broadcast(&bell->rung);
        } else if (bell->count == seen) {
            if (!any && is_over(p)) break;
            pthread_cond_wait(&bell->rung, &bell->lock);
        }
        if (bell->count == seen) continue;
        seen = bell->count;
        memset(vain, 0, size);
    }
    if (!rv_flag_get(&p->failed)) leave(p);
    pthread_mutex_unlock(&bell->lock);
}
