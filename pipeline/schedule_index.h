/*
 * Inside pipeline/: what schedule.c (checks that need no clock) and simulate.c (the run) share.
 */
#ifndef RV_PIPELINE_SCHEDULE_INDEX_H
#define RV_PIPELINE_SCHEDULE_INDEX_H

#include "pipeline/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where every item of the grid stands, so that no dependency is ever searched for. */
typedef struct rv_index {
    int cells;               /* S*M*C */
    int updates;             /* U per stage */
    int base[RV_WORK_KINDS]; /* first number of a kind; -1: the kind is not used */
    int count;               /* numbers given */
    int *at;                 /* [count]: position in `items` */
    int *home;               /* [stages]: the list of the stage, -1 when it lies in several */
    double *share;           /* [chunks] */
} rv_index;

/* Number of item (kind, s, m, c): pure arithmetic, the item must be in the grid. */
static inline int rv_index_number(const rv_index *index, const rv_schedule *schedule, int kind,
                                  int s, int m, int c) {
    const bool update = kind == RV_WORK_U || kind == RV_WORK_NORM;
    return index->base[kind] +
           (update ? s * index->updates + m : (s * schedule->micros + m) * schedule->chunks + c);
}
/* Position of the item, -1 when it is missing. */
static inline int rv_index_at(const rv_index *index, const rv_schedule *schedule, int kind, int s,
                              int m, int c) {
    return index->at[rv_index_number(index, schedule, kind, s, m, c)];
}
/* The kind that carries the input gradient, and the one that ends a tape. */
static inline int rv_schedule_b(const rv_schedule *schedule) {
    return schedule->fused ? RV_WORK_BW : RV_WORK_B;
}
static inline int rv_schedule_w(const rv_schedule *schedule) {
    return schedule->fused ? RV_WORK_BW : RV_WORK_W;
}
/* Micro-batches of update u: [u*group, end). */
static inline int rv_group_end(const rv_schedule *schedule, int u) {
    int end = (u + 1) * schedule->group;
    return end < schedule->micros ? end : schedule->micros;
}

/* Write the flaw in words into the thread's error; RV_CONFIG. */
rv_status rv_flaw_fail(const rv_schedule *schedule, const rv_flaw *flaw);

/* Run the lists (simulate.c). The index is complete and `forecast` allocated. */
RV_CHECKED rv_status rv_schedule_run(rv_schedule *schedule, const rv_costs *costs,
                                     const rv_index *index, rv_flaw *flaw);

#ifdef __cplusplus
}
#endif
#endif
