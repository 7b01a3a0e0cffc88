/*
 * Inside pipeline/: the specification of delayed training as a program: one sample after the other,
 * one device, one thread, no messages. Every pass is given its weights by number, from the rules of
 * delay.c; nothing depends on when anything runs. Every delayed pipeline must have its bits.
 */
#ifndef RV_PIPELINE_ORACLE_H
#define RV_PIPELINE_ORACLE_H

#include "pipeline/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_oracle_desc {
    const rv_net *net; /* forms chosen */
    const rv_device *device;
    const rv_choice *encoder;
    const rv_loss_desc *loss;
    const rv_train_desc *train; /* micro_batches, chunks, velocity set */
    int64_t total_steps;
    const rv_delay_desc *delay; /* checked */
    int stages;
    const int *first; /* [stages + 1] layers */
} rv_oracle_desc;

typedef struct rv_oracle rv_oracle;
/* Starts with the network's initial weights. */
RV_CHECKED rv_status rv_oracle_create(const rv_oracle_desc *desc, rv_oracle **out);
void rv_oracle_destroy(rv_oracle *oracle);
/* One update: of the batch as it is, in train->micro_batches parts. */
RV_CHECKED rv_status rv_oracle_step(rv_oracle *oracle, const rv_batch *batch, rv_step_result *out);
/* Between steps: as rv_pipeline_read and rv_pipeline_write. */
void rv_oracle_read(const rv_oracle *oracle, float *block, rv_optimizer *optimizer);
RV_CHECKED rv_status rv_oracle_write(rv_oracle *oracle, const float *block);
rv_weights *rv_oracle_weights(rv_oracle *oracle, int stage);
const float *rv_oracle_gradient(const rv_oracle *oracle); /* of the last step, [n_trained] */

#ifdef __cplusplus
}
#endif
#endif
