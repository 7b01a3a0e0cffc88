/*
 * Inside pipeline/: what an endless training hands to its stages: the batches of the updates that
 * are under way, by number, and what the last stage found for each. Written by the thread that
 * trains; a batch is there for every stage once its number is below rv_flow_fed.
 */
#ifndef RV_PIPELINE_FLOW_H
#define RV_PIPELINE_FLOW_H

#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_flow rv_flow;
/* depth: updates between the one fed last and the oldest still read: those fed ahead, and so many
 * beside them. */
enum { RV_FLOW_BESIDE = 2 };
RV_CHECKED rv_status rv_flow_create(int depth, rv_flow **out);
void rv_flow_destroy(rv_flow *flow);
void rv_flow_start(rv_flow *flow, int64_t next); /* nothing under way: goes on with update `next` */
/* A copy of the batch becomes that of update rv_flow_fed, whose place nobody reads any more. */
RV_CHECKED rv_status rv_flow_feed(rv_flow *flow, const rv_batch *batch);
size_t rv_flow_bytes(const rv_batch *batch); /* of such a copy */
int64_t rv_flow_fed(const rv_flow *flow);
const rv_batch *rv_flow_batch(const rv_flow *flow, int64_t update);
rv_step_result *rv_flow_result(const rv_flow *flow, int64_t update);

#ifdef __cplusplus
}
#endif
#endif
