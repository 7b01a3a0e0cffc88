/*
 * Inside pipeline/: the endless order of a stage that never flushes, made item by item from the
 * stage's rule. Forward goes first while it is at most `lead` chunks ahead of backward and its
 * version of the weights is made; backward goes when it may not. So the list of a stage depends on
 * nothing but numbers, and the same function feeds the executor and the lists that are simulated.
 *
 * A split order (rule.split) has several items that numbers allow; which of them goes first is left
 * to who runs it.
 */
#ifndef RV_PIPELINE_ORDER_H
#define RV_PIPELINE_ORDER_H

#include "pipeline/delay.h"
#include "pipeline/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Counts of one stage: chunks through F, B and W, and updates. */
typedef struct rv_order {
    rv_delay_rule rule;
    int stage, chunks, group; /* group: micro-batches of an update */
    int64_t f, b, w, made;
} rv_order;

/* Begins at update `made`, all before it done and none in flight. */
void rv_order_start(rv_order *order, int64_t made);
/* The next item, while micro-batches below `limit` are known; false: none. Versions are those the
 * item reads. limit: at most INT32_MAX. */
bool rv_order_next(const rv_order *order, int64_t limit, rv_work *work);
/* The items that may go next as far as numbers tell, each once: one at most, or of a split order up
 * to one of F, of B, and of W or U. Returns how many; 0: all is done that is known. */
enum { RV_OFFERS = 3 };
int rv_order_offers(const rv_order *order, int64_t limit, rv_work offers[RV_OFFERS]);
void rv_order_done(rv_order *order, const rv_work *work);
/* Most micro-batches between their first F and their last BW, whatever the limits were. */
int rv_order_flights(const rv_order *order);
/* Most chunks between F and BW. */
int rv_order_tapes(const rv_order *order);
/* Micro-batches beyond that of its next update a stage may be asked to begin. */
int rv_order_ahead(const rv_order *order);
/* Updates that should be fed beyond the one awaited next, so that the first stage lacks none. */
int rv_order_fed(const rv_order *order);

/* Of a stage under `delay`, at its beginning, without phases of no delay. micros: of an update;
 * slots 0: any number. */
rv_order rv_order_of(const rv_delay_desc *delay, int stages, int micros, int chunks, int slots,
                     int stage);

/* The lists of `updates` updates under `delay`, with U and versions, not yet simulated. micros: of
 * an update. Phases without delay at start and end are left out: they need no more of anything. */
RV_CHECKED rv_status rv_schedule_endless(const rv_delay_desc *delay, int stages, int micros,
                                         int chunks, int updates, int slots, rv_schedule *schedule);
/* Updates after which every stage of a schedule has repeated its order twice. */
int rv_schedule_settled(const rv_delay_desc *delay, int stages, int micros, int chunks, int slots);
/* Share of the time in which stage s works between its updates `from` and `to`: end to end, F, B, W
 * and U. The schedule is simulated, each stage on a list of its own. */
double rv_schedule_busy(const rv_schedule *schedule, int stage, int from, int to);
/* When the stage had made its first `updates` updates, at least one. */
double rv_schedule_made(const rv_schedule *schedule, int stage, int updates);

#ifdef __cplusplus
}
#endif
#endif
