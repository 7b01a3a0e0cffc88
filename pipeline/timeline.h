/*
 * Inside pipeline/: what every stage of a pipeline did when. Sums for the report at the end of a
 * run are always kept; with a file every item, message and wait goes there as well (trace.c), as a
 * Chrome trace: https://ui.perfetto.dev opens it. Each track belongs to whoever steps its stage;
 * rounds are begun and ended by the calling thread while all workers rest.
 */
#ifndef RV_PIPELINE_TIMELINE_H
#define RV_PIPELINE_TIMELINE_H

#include "data/data.h"
#include "pipeline/link.h"
#include "pipeline/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rv_lapse_kind {
    RV_SPAN_ITEM,
    RV_SPAN_RECEIVE, /* a message is read; at its end the slot is free */
    RV_SPAN_SEND,
    RV_SPAN_DATA,  /* waits for a message */
    RV_SPAN_SLOT,  /* waits for a slot */
    RV_SPAN_WRITE, /* the writer thread puts a tape of this stage into its file */
    RV_SPAN_READ,  /* and fetches it again */
    RV_SPAN_SAVE,  /* a checkpoint is written; of no stage */
    RV_SPAN_KINDS
} rv_lapse_kind;

typedef struct rv_lapse { /* begin, end: rv_host_seconds */
    double begin, end;
    const rv_link *link; /* of messages and waits */
    int32_t micro;
    uint16_t chunk;
    uint8_t work, kind;
} rv_lapse;

/* Seconds of one stage over the training steps that count. */
typedef struct rv_stage_times {
    double total;            /* of the steps */
    double busy;             /* F, B, W */
    double fill, drain;      /* before its first item, after its last */
    double data, slot;       /* waiting in between */
    double optimizer, other; /* U and NORM; what no other column says */
} rv_stage_times;

typedef struct rv_timeline rv_timeline;

typedef struct rv_track {
    rv_lapse *span; /* of this round; NULL: no file */
    int count, room;
    int64_t lost;    /* spans beyond the room */
    int64_t updates; /* of this round */
    double first, last, last_work;
    double busy, data, slot, optimizer;
} rv_track;

/* path NULL: sums alone. `schedule` is that of a step, simulated; `links` [link_count] may hold
 * NULL; all are borrowed. RV_CREATE: the file cannot be made. */
RV_CHECKED rv_status rv_timeline_create(const char *path, const rv_schedule *schedule,
                                        rv_link *const *links, int link_count, rv_timeline **out);
/* Workers that step the stages; as many as stages unless it is told. */
void rv_timeline_workers(rv_timeline *timeline, int workers);
void rv_timeline_destroy(rv_timeline *timeline); /* blocks until all is written */
rv_track *rv_timeline_track(rv_timeline *timeline, int stage);

/* Around a round: a step, or so many updates as are made without a rest; after `end` the tracks are
 * empty again. end blocks while the round before is still being written. */
void rv_timeline_begin(rv_timeline *timeline, bool training);
void rv_timeline_end(rv_timeline *timeline);
/* Whether a file has no room for more than `updates` of them in one round. */
bool rv_timeline_full(const rv_timeline *timeline, int64_t updates);

/* NULL: nothing happens, and `now` is 0. */
double rv_track_now(const rv_track *track);
void rv_track_item(rv_track *track, const rv_work *work, double begin, double end);
void rv_track_wait(rv_track *track, const rv_link *link, bool data, double begin, double end);
/* A message of `work`, from `begin` to now. */
void rv_track_message(rv_track *track, rv_lapse_kind kind, const rv_link *link, const rv_work *work,
                      double begin);
/* From the threads that write files, at any time; timeline NULL: nothing happens. What began at
 * `begin` has ended: a tape of a stage was written or read, a checkpoint written. */
void rv_timeline_tape(rv_timeline *timeline, int stage, bool read, int micro, int chunk,
                      double begin);
void rv_timeline_save(rv_timeline *timeline, double begin);
/* A checkpoint is being written beside the round at hand, or the next: it takes processors that
 * the plan gives to stages. */
void rv_timeline_disturb(rv_timeline *timeline);

/* Steps (updates) that count: all but the rounds of the first two, of which caches and pages are
 * cold, and those beside which a checkpoint was written; these where there are no others, and all
 * where there are none of them either. */
int64_t rv_timeline_steps(const rv_timeline *timeline);
void rv_timeline_times(const rv_timeline *timeline, int stage, rv_stage_times *out);
/* 1 - busy / (workers * makespan), U and NORM left out, as planned ones; NAN: no step. */
double rv_timeline_bubble(const rv_timeline *timeline);
/* Why the file is not whole; NULL: it is, or there is none. Between rounds. */
const char *rv_timeline_flaw(rv_timeline *timeline);

/* ---- the file (trace.c) ----------------------------------------------------------------- */
typedef struct rv_trace rv_trace;
RV_CHECKED rv_status rv_trace_create(const char *path, const rv_schedule *schedule,
                                     rv_link *const *links, int link_count, rv_trace **out);
void rv_trace_destroy(rv_trace *trace);
/* Write a round in the writer's thread: tracks [stages]. */
typedef struct rv_round {
    rv_trace *trace;
    rv_track *track;
    double begin;
    int64_t number;
    bool training;
} rv_round;
RV_CHECKED rv_status rv_trace_round(const rv_round *round);

#ifdef __cplusplus
}
#endif
#endif
