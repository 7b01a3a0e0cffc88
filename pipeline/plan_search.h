/*
 * Inside pipeline/: the search of a plan: costs and bytes of its stages at any number of chunks,
 * the fastest schedule that fits the memory, and what other schedules would have given.
 */
#ifndef RV_PIPELINE_PLAN_SEARCH_H
#define RV_PIPELINE_PLAN_SEARCH_H

#include "pipeline/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stage under a policy at a length of its chunks: what its tapes and messages weigh. */
typedef struct rv_plan_unit rv_plan_unit;

/* Zeroed = empty. Arrays are of the stages; points, first and desc are borrowed. */
typedef struct rv_plan_search {
    const rv_plan_desc *desc;
    const rv_cost_points *points;
    const int *first; /* [stages + 1] layers */
    int stages, workers, micros, steps;
    double latency;
    double *f, *b, *w, *u, *norm, *scatter, *once[RV_WORK_BW];
    /* Tapes: */
    const uint8_t *tape; /* [layers] rv_tape_policy; NULL: all kept */
    uint8_t *policy;     /* [stages] that is tried, for all layers of a stage; NULL: the recipe's */
    uint8_t *layers;     /* [layers] the same */
    double spill;        /* bytes per second to and from the disk, with the policy that is tried: */
    double paces[2];     /* while the system's memory holds what is spilled, and else */
    double *spilled;     /* [stages]: bytes a step writes where the stage spills */
    double cached;       /* bytes a step may write before the medium sets the pace */
    rv_plan_unit *units; /* remembered (plan_weigh.c) */
    bool idle;           /* there are processors left for writing and reading */
    const rv_delay_desc *delay; /* NULL: steps */
} rv_plan_search;

/* Points hold a cost for each stage between `first`. */
RV_CHECKED rv_status rv_plan_search_init(rv_plan_search *s, const rv_plan_desc *desc,
                                         const rv_plan *plan, const rv_cost_points *points);
void rv_plan_search_finish(rv_plan_search *s);

/* For rv_search. */
RV_CHECKED rv_status rv_plan_costs(void *search, int chunks, rv_costs *costs);
RV_CHECKED rv_status rv_plan_bytes_of(void *search, int chunks, int slots,
                                      const rv_schedule *schedule, double *bytes);
RV_CHECKED rv_status rv_plan_caps(void *search, int chunks, int *cap);

/* ---- weights (plan_weigh.c) ------------------------------------------------------------- */
RV_CHECKED rv_status rv_plan_units_create(rv_plan_search *s);
/* Seconds of a stage with the policy that is tried. */
RV_CHECKED rv_status rv_plan_cost(const rv_plan_search *s, int stage, int chunks,
                                  rv_part_cost *out);
/* stage: [stages], bytes and messages are filled in; or NULL. schedule NULL: as for rv_search. */
RV_CHECKED rv_status rv_plan_weigh(const rv_plan_search *s, int chunks, int slots,
                                   const rv_schedule *schedule, rv_plan_stage *stage,
                                   double *bytes);
double rv_plan_base_bytes(const rv_plan_search *s, int chunks, int slots); /* what no stage has */
/* More tapes than those of one sequence a stage can hold only in what all together leave of the
 * memory: how many, in chunks. record: bytes of one. */
int rv_plan_cap(const rv_plan_search *s, int chunks, double left, double record);
/* Bytes that a stage spills of a micro-batch; under a policy that does. */
RV_CHECKED rv_status rv_plan_spilled(const rv_plan_search *s, int stage, int chunks, double *bytes);
/* Bytes of a step that the system's memory can hold for a while. */
double rv_plan_cached(const rv_plan_desc *desc);
/* Bytes of a stage of blocks [from, to). */
RV_CHECKED rv_status rv_plan_blocks_weigh(const rv_plan_search *s, const rv_cost_points *blocks,
                                          int stage, int from, int to, int chunks, double *bytes);

/* ---- search ----------------------------------------------------------------------------- */

/* plan->schedule: the fastest; with a limit of memory the fastest that fits. RV_RESOURCE: nothing
 * does, the least bytes that were found are told. */
RV_CHECKED rv_status rv_plan_seek(rv_plan_search *s, rv_plan *plan);
/* Chunks, costs and bytes of the stages as plan->schedule has them. */
RV_CHECKED rv_status rv_plan_adopt(rv_plan_search *s, rv_plan *plan);
/* The same of an endless order (plan_delay.c). */
RV_CHECKED rv_status rv_plan_seek_endless(rv_plan_search *s, rv_plan *plan);
/* How long an update takes in it, and the fewest slots that lose nothing. */
RV_CHECKED rv_status rv_plan_endless_rival(rv_plan_search *s, int chunks,
                                           const rv_delay_desc *delay, rv_plan_rival *rival);
/* What every row would give at the plan's chunks: why the plan is as it is. */
RV_CHECKED rv_status rv_plan_rivals(rv_plan_search *s, rv_plan *plan);
/* Cuts between blocks with which the least bytes suffice, at whatever number of chunks that may be
 * chosen; scratch is as the blocks' own. first: [stages + 1], filled in. */
RV_CHECKED rv_status rv_plan_smallest_cuts(rv_plan_search *s, const rv_cost_points *blocks,
                                           int *first);

#ifdef __cplusplus
}
#endif
#endif
