/*
 * Inside pipeline/: where to cut a chain of blocks into stages. Exact: least slowest stage, then
 * least message time, then the first cuts in lexicographic order.
 */
#ifndef RV_PIPELINE_PARTITION_H
#define RV_PIPELINE_PARTITION_H

#include "kernels/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The connection between stages s and s+1. Message time = latency + bytes / bandwidth. */
typedef struct rv_wire {
    double latency;
    double forward, backward; /* bandwidth from s to s+1, and back */
} rv_wire;

/* How a stage's work and its messages go together. */
typedef enum rv_transfer {
    RV_TRANSFER_BLOCKING, /* compute + its forward message + its backward message: sender pays */
    RV_TRANSFER_OVERLAP,  /* the largest of the three */
    RV_TRANSFERS
} rv_transfer;

/* All arrays are borrowed. Times and bytes per micro-batch, the whole sequence. Every stage has its
 * own device and wire, so trying an order of devices is one call with these arrays permuted. */
typedef struct rv_chain {
    int blocks, stages;
    const double *compute;                        /* [blocks]: forward and backward */
    const double *forward_bytes, *backward_bytes; /* [blocks - 1]: over the boundary after it */
    const double *slowdown;                       /* [stages]: factor on compute; NULL: 1 */
    const rv_wire *wires;                         /* [stages - 1] */
    rv_transfer transfer;
    /* Memory: copies * weights + tapes[s] * tape of the stage's blocks <= cap[s]. */
    const double *weight_bytes, *tape_bytes; /* [blocks]; NULL with cap NULL */
    const int *tapes;                        /* [stages]: tapes held at the peak */
    const double *cap;                       /* [stages]; NULL: no limit */
    double weight_copies;
} rv_chain;

typedef struct rv_cuts {
    int *cuts;       /* [stages - 1]: stage s takes blocks cuts[s-1] .. cuts[s]-1; owned, rv_free */
    double slowest;  /* time of the slowest stage */
    double transfer; /* sum of all message times */
    double ties;     /* how many cuts share these two */
} rv_cuts;

/* RV_CONFIG: more stages than blocks, or a number below 1; RV_RESOURCE: no cut fits the memory.
 * O(stages * blocks^2) time, O(stages * blocks) memory. */
RV_CHECKED rv_status rv_partition(const rv_chain *chain, rv_cuts *cuts);
/* Stage times of given cuts, [stages]. */
void rv_partition_times(const rv_chain *chain, const int *cuts, double *time);

#ifdef __cplusplus
}
#endif
#endif
