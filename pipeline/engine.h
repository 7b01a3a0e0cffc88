/*
 * Inside pipeline/: what trains: the plain trainer, a pipeline or the oracle behind one small
 * interface, so that everything around a step (data, evaluation, saving, figures) does not know
 * which.
 */
#ifndef RV_PIPELINE_ENGINE_H
#define RV_PIPELINE_ENGINE_H

#include "pipeline/oracle.h"
#include "pipeline/run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_engine rv_engine;
/* All start with the network's initial weights. */
RV_CHECKED rv_status rv_engine_serial(const rv_serial_desc *desc, rv_engine **out);
RV_CHECKED rv_status rv_engine_pipeline(const rv_pipeline_desc *desc, rv_engine **out);
/* Trains and is compared; does nothing else. */
RV_CHECKED rv_status rv_engine_oracle(const rv_oracle_desc *desc, rv_engine **out);
void rv_engine_destroy(rv_engine *engine);

/* As rv_serial_step, rv_serial_eval, rv_serial_observe. */
RV_CHECKED rv_status rv_engine_step(rv_engine *engine, const rv_batch *batch, rv_step_result *out);
/* The same in two halves. Batches may be fed `ahead` updates beyond the one awaited next; 0: one at
 * a time, and it must live until it was awaited. */
RV_CHECKED rv_status rv_engine_feed(rv_engine *engine, const rv_batch *batch);
RV_CHECKED rv_status rv_engine_await(rv_engine *engine, rv_step_result *out);
int rv_engine_ahead(const rv_engine *engine);
bool rv_engine_still(const rv_engine *engine); /* nothing is under way */
void rv_engine_rest(rv_engine *engine);        /* until all that was fed is done */
RV_CHECKED rv_status rv_engine_eval(rv_engine *engine, const rv_batch *batch, rv_step_result *out,
                                    int64_t *spikes, int32_t *predictions);
void rv_engine_observe(rv_engine *engine, const rv_observer *observer);
RV_CHECKED rv_status rv_engine_folder(rv_engine *engine,
                                      const char *folder); /* rv_pipeline_folder */
rv_timeline *rv_engine_timeline(rv_engine *engine);        /* NULL: the plain trainer */
/* Of delay, at rest (rv_engine_rest); NULL: the engine has none. */
rv_account *rv_engine_account(rv_engine *engine, int stage);
void rv_engine_epoch(rv_engine *engine, double validation_loss); /* as rv_optimizer_epoch */

/* Weights [n_all] and optimiser of the whole network, in host memory. They are those of the
 * training after rv_engine_pull; the training goes on from them after rv_engine_push. Between steps
 * only. */
float *rv_engine_block(rv_engine *engine);
rv_optimizer *rv_engine_optimizer(rv_engine *engine);
void rv_engine_pull(rv_engine *engine);
/* Before a batch is fed: what rv_engine_pull gives right after that update was awaited is copied by
 * the stages as they make it, so that they need not rest for it. One at a time; without delay,
 * where updates end one after the other, it does nothing. */
void rv_engine_keep(rv_engine *engine);
RV_CHECKED rv_status rv_engine_push(rv_engine *engine);
/* What delayed stages keep beside the newest weights, valid after rv_engine_pull; NULL: nothing.
 * To go on from them: rv_engine_push (which makes every version the newest), then this. */
float *rv_engine_versions(rv_engine *engine, size_t *count);
RV_CHECKED rv_status rv_engine_push_versions(rv_engine *engine);
/* Are all weights finite after a step, and its gradient? (Of a delayed pipeline all so far.) Looks
 * where they are, without a pull. */
bool rv_engine_finite(rv_engine *engine);
/* Gradient of the latest step, [n_trained]; valid until the next call. */
const float *rv_engine_gradient(rv_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
