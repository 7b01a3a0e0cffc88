/*
 * Inside pipeline/: list scheduling of stages that share workers. Where every block is a stage (the
 * mode spikepipe) there are more stages than workers, each of which takes, whenever it is free, the
 * ready item with the longest remaining path; of equal ones B before F before W and U, then the
 * earlier micro-batch, then the lower stage (Sanjeet et al. 2024). A stage runs one item at a time.
 * Weights go by number, so what is taken first changes no bit.
 */
#ifndef RV_PIPELINE_BLOCKS_H
#define RV_PIPELINE_BLOCKS_H

#include "pipeline/order.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Remaining paths, in the unit of the costs. Zeroed = empty. */
typedef struct rv_ranks {
    int stages, chunks, workers;
    double period; /* least time between two micro-batches, of the busiest stage or all workers */
    double *rest;  /* [F, B, W, U][stages][chunks]: to the update of the item's own micro-batch */
} rv_ranks;
/* Costs are read now and not kept. */
RV_CHECKED rv_status rv_ranks_init(rv_ranks *ranks, int stages, int chunks, int workers,
                                   const rv_costs *costs);
void rv_ranks_finish(rv_ranks *ranks);
/* Whether item a goes before b. What follows a micro-batch is the same for all but a period for
 * each micro-batch that is later: so much less is left of it. */
bool rv_ranks_before(const rv_ranks *ranks, const rv_work *a, const rv_work *b);

/* The lists of `updates` updates, one of each stage in the order in which its items begin, and when
 * they begin and end on these workers: simulated already. slots 0: no limit. An executor's workers
 * are never on time, so its order is another one. */
RV_CHECKED rv_status rv_schedule_blocks(const rv_delay_desc *delay, const rv_ranks *ranks,
                                        const rv_costs *costs, int updates, int slots,
                                        rv_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
