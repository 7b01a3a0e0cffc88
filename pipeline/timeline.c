/*
 * Tracks and their sums. There are two sets of tracks: one is filled by the stages while the other
 * is being written, so a round waits for the disk only when it is shorter than its own trace.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "pipeline/internal.h"
#include "pipeline/timeline.h"

enum {
    COLD = 2,     /* steps at the start that do not count where there are others */
    SAVES = 64,   /* checkpoints that end in a round, at most, where all are written */
    ITEMS = 2048, /* of a stage in a round of an endless schedule, at most, where all are written */
};

/* What a round tells of the plan; only those of the best grade met count. */
typedef enum grade { COLD_ROUND, DISTURBED, CLEAN } grade;

struct rv_timeline {
    const rv_schedule *schedule;
    int stages, workers;
    rv_track *track[2]; /* [stages]; stages use track[0] */
    rv_track *wrote;    /* [stages + 1] spans of writers, last of checkpoints; under `lock` */
    pthread_mutex_t lock;
    rv_trace *trace; /* NULL: no file */
    rv_writer *writer;
    rv_round round; /* the writer's while it writes */
    bool training;  /* the round at hand */
    bool disturbed;
    grade best;  /* of the rounds in the sums */
    bool failed; /* the file: the run goes on without */
    char flaw[512];
    double begin;
    int64_t rounds, steps, counted;
    int64_t most;          /* updates of a round */
    rv_stage_times *times; /* [stages] */
    double busy, makespan;
};

/* ---- making ----------------------------------------------------------------------------- */

/* Of an update. */
static int items_of(const rv_schedule *schedule, int stage) {
    int count;
    (void)rv_schedule_list(schedule, stage, &count);
    return count / rv_schedule_updates(schedule);
}

/* Of an item: itself, two waits, messages received and sent. The last stage has such of
 * every other stage in its NORM. */
static rv_status tracks_create(rv_timeline *it) {
    rv_status status = RV_OK;
    for (int set = 0; set < 2; set++) {
        TRY(rv_alloc((size_t)it->stages, sizeof(rv_track), "a timeline", &it->track[set]));
        for (int s = 0; s < it->stages && it->trace; s++) {
            int cells = it->schedule->micros * it->schedule->chunks;
            int count = (int)it->most * items_of(it->schedule, s);
            rv_track *track = &it->track[set][s];
            track->room = 10 * (count > cells ? count : cells) + 4 * cells + 6 * it->stages + SAVES;
            TRY(rv_alloc((size_t)track->room, sizeof *track->span, "a timeline", &track->span));
        }
    }
    TRY(rv_alloc((size_t)it->stages + 1, sizeof *it->wrote, "a timeline", &it->wrote));
    for (int s = 0; s <= it->stages && it->trace; s++) {
        it->wrote[s].room =
            s < it->stages ? 4 * it->schedule->micros * it->schedule->chunks : SAVES;
        TRY(rv_alloc((size_t)it->wrote[s].room, sizeof(rv_lapse), "a timeline",
                     &it->wrote[s].span));
    }
out:
    return status;
}

rv_status rv_timeline_create(const char *path, const rv_schedule *schedule, rv_link *const *links,
                             int link_count, rv_timeline **out) {
    rv_status status = RV_OK;
    rv_timeline *it = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *it, "a timeline", &it));
    it->schedule = schedule, it->stages = it->workers = schedule->stages;
    it->most = rv_schedule_updates(schedule) > 1 ? ITEMS / items_of(schedule, 0) + 1 : 1;
    (void)pthread_mutex_init(&it->lock, NULL); /* Linux: cannot fail */
    TRY(rv_alloc((size_t)it->stages, sizeof *it->times, "a timeline", &it->times));
    if (path) {
        TRY(rv_trace_create(path, schedule, links, link_count, &it->trace));
        /* One at a time: the set that was written is free when the next is handed over. */
        TRY(rv_writer_create(1, &it->writer));
    }
    TRY(tracks_create(it));
    *out = it;
    it = NULL;
out:
    rv_timeline_destroy(it);
    return status;
}

void rv_timeline_workers(rv_timeline *it, int workers) {
    it->workers = workers;
}

rv_track *rv_timeline_track(rv_timeline *it, int stage) {
    return &it->track[0][stage];
}

/* ---- spans ------------------------------------------------------------------------------ */

double rv_track_now(const rv_track *track) {
    return track ? rv_host_seconds() : 0;
}

static void span_add(rv_track *track, const rv_lapse *span) {
    if (!track->span) return;
    if (track->count == track->room)
        track->lost++;
    else
        track->span[track->count++] = *span;
}

/* Items come in order, so the first call of a round has the first begin. */
void rv_track_item(rv_track *track, const rv_work *work, double begin, double end) {
    if (!track) return;
    bool update = work->kind == RV_WORK_U || work->kind == RV_WORK_NORM;
    if (track->first == 0) track->first = begin;
    *(update ? &track->optimizer : &track->busy) += end - begin;
    track->last = end;
    track->updates += work->kind == RV_WORK_U;
    if (!update) track->last_work = end;
    span_add(track,
             &(rv_lapse){begin, end, NULL, work->micro, work->chunk, work->kind, RV_SPAN_ITEM});
}

/* What a stage waits for before its first item is the fill of the pipeline. */
void rv_track_wait(rv_track *track, const rv_link *link, bool data, double begin, double end) {
    if (!track) return;
    if (track->first > 0) *(data ? &track->data : &track->slot) += end - begin;
    span_add(track, &(rv_lapse){.begin = begin,
                                .end = end,
                                .link = link,
                                .kind = data ? RV_SPAN_DATA : RV_SPAN_SLOT});
}

void rv_track_message(rv_track *track, rv_lapse_kind kind, const rv_link *link, const rv_work *work,
                      double begin) {
    if (!track || !track->span) return;
    span_add(track, &(rv_lapse){begin, rv_host_seconds(), link, work->micro, work->chunk,
                                work->kind, (uint8_t)kind});
}

static void wrote(rv_timeline *it, int track, rv_lapse span) {
    if (!it || !it->trace) return;
    span.end = rv_host_seconds();
    pthread_mutex_lock(&it->lock);
    span_add(&it->wrote[track < 0 ? it->stages : track], &span);
    pthread_mutex_unlock(&it->lock);
}

void rv_timeline_tape(rv_timeline *it, int stage, bool read, int micro, int chunk, double begin) {
    wrote(it, stage,
          (rv_lapse){.begin = begin,
                     .micro = micro,
                     .chunk = (uint16_t)chunk,
                     .work = read ? RV_WORK_B : RV_WORK_F,
                     .kind = read ? RV_SPAN_READ : RV_SPAN_WRITE});
}

void rv_timeline_save(rv_timeline *it, double begin) {
    wrote(it, -1, (rv_lapse){.begin = begin, .kind = RV_SPAN_SAVE});
}

void rv_timeline_disturb(rv_timeline *it) {
    if (it) it->disturbed = true;
}

/* ---- rounds ----------------------------------------------------------------------------- */

void rv_timeline_begin(rv_timeline *it, bool training) {
    it->training = training;
    it->begin = rv_host_seconds();
}

bool rv_timeline_full(const rv_timeline *it, int64_t updates) {
    return it->trace && updates >= it->most;
}

/* False: the round does not count. Those of a worse grade counted while there were no others. */
static bool counts(rv_timeline *it, int64_t made) {
    const grade own = it->steps + made <= COLD ? COLD_ROUND : it->disturbed ? DISTURBED : CLEAN;
    it->steps += made;
    if (own < it->best) return false;
    if (own > it->best) {
        memset(it->times, 0, sizeof *it->times * (size_t)it->stages);
        it->busy = it->makespan = 0;
        it->counted = 0;
    }
    it->best = own;
    it->counted += made;
    return true;
}

/* Whose items end before those of others waits for the end of the step: its drain. */
static void sum_up(rv_timeline *it) {
    double now = rv_host_seconds(), first = INFINITY, last = 0, busy = 0;
    if (!counts(it, it->track[0][0].updates)) return;
    for (int s = 0; s < it->stages; s++) {
        const rv_track *track = &it->track[0][s];
        rv_stage_times *times = &it->times[s];
        double fill = track->first - it->begin, drain = now - track->last;
        times->total += now - it->begin;
        times->busy += track->busy, times->optimizer += track->optimizer;
        times->fill += fill, times->drain += drain;
        times->data += track->data, times->slot += track->slot;
        times->other += now - it->begin - fill - drain - track->busy - track->optimizer -
                        track->data - track->slot;
        first = fmin(first, track->first), last = fmax(last, track->last_work);
        busy += track->busy;
    }
    it->busy += busy, it->makespan += last - first;
}

static rv_status round_write(void *self) {
    return rv_trace_round(self);
}

/* Spans of writers go to the tracks of the round in which they ended, checkpoints to the first. */
static int writer_spans_take(rv_timeline *it) {
    int taken = 0;
    pthread_mutex_lock(&it->lock);
    for (int s = 0; s <= it->stages; s++) {
        for (int i = 0; i < it->wrote[s].count; i++)
            span_add(&it->track[0][s < it->stages ? s : 0], &it->wrote[s].span[i]);
        taken += it->wrote[s].count;
        it->wrote[s].count = 0;
    }
    pthread_mutex_unlock(&it->lock);
    return taken;
}

/* The stages keep the addresses of their tracks, so the sets change their contents. */
static void hand_over(rv_timeline *it) {
    rv_round next = {it->trace, it->track[1], it->begin, it->rounds, it->training};
    const rv_writer_job job = {round_write, NULL, &it->round};
    it->failed = rv_writer_wait(it->writer) != RV_OK;
    if (it->failed) return;
    for (int s = 0; s < it->stages; s++) {
        rv_track other = it->track[1][s];
        it->track[1][s] = it->track[0][s];
        it->track[0][s] = other;
    }
    it->round = next;
    it->failed = rv_writer_submit(it->writer, &job) != RV_OK;
}

void rv_timeline_end(rv_timeline *it) {
    if (it->training) sum_up(it);
    it->rounds++;
    it->disturbed = false;
    if (it->trace && !it->failed) {
        (void)writer_spans_take(it);
        hand_over(it);
        if (it->failed) snprintf(it->flaw, sizeof it->flaw, "%s", rv_error_get()->message);
    }
    for (int s = 0; s < it->stages; s++) {
        rv_track *track = &it->track[0][s];
        *track = (rv_track){.span = track->span, .room = track->room, .lost = track->lost};
    }
}

/* What writers did after the last round, as the last checkpoint. What is wrong with the file by now
 * is no news: the error that ended the run is. */
static void last_words(rv_timeline *it) {
    const rv_error first = *rv_error_get();
    if (!it->trace || it->failed || !it->wrote) return;
    it->training = false;
    if (writer_spans_take(it) > 0) hand_over(it);
    rv_error_set(&first);
}

void rv_timeline_destroy(rv_timeline *it) {
    if (!it) return;
    last_words(it);
    rv_writer_destroy(it->writer);
    rv_trace_destroy(it->trace);
    for (int s = 0; s <= it->stages; s++) {
        for (int set = 0; set < 2 && s < it->stages; set++)
            if (it->track[set]) rv_free(it->track[set][s].span);
        if (it->wrote) rv_free(it->wrote[s].span);
    }
    rv_free(it->wrote);
    rv_free(it->track[1]);
    rv_free(it->track[0]);
    rv_free(it->times);
    (void)pthread_mutex_destroy(&it->lock);
    rv_free(it);
}

/* ---- results ---------------------------------------------------------------------------- */

int64_t rv_timeline_steps(const rv_timeline *it) {
    return it->counted;
}

void rv_timeline_times(const rv_timeline *it, int stage, rv_stage_times *out) {
    *out = it->times[stage];
    out->other = fmax(out->other, 0); /* a difference of sums: rounding may leave less */
}

double rv_timeline_bubble(const rv_timeline *it) {
    return it->makespan > 0 ? rv_idle_share(it->busy, it->workers * it->makespan) : NAN;
}

const char *rv_timeline_flaw(rv_timeline *it) {
    int64_t lost = 0;
    if (!it->trace) return NULL;
    if (!it->failed && rv_writer_wait(it->writer) != RV_OK) {
        it->failed = true;
        snprintf(it->flaw, sizeof it->flaw, "%s", rv_error_get()->message);
    }
    for (int s = 0; s < it->stages; s++)
        lost += it->track[0][s].lost + it->track[1][s].lost + it->wrote[s].lost;
    lost += it->wrote[it->stages].lost;
    if (!it->failed && lost > 0)
        snprintf(it->flaw, sizeof it->flaw, "%lld events had no room", (long long)lost);
    return it->failed || lost > 0 ? it->flaw : NULL;
}
