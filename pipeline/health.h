/*
 * Inside pipeline/: is training still sound? Every step, inputs, membranes, weights and gradients
 * are looked at for values that are not finite, or so large that their square is not; every epoch,
 * for layers that cannot learn. Of membranes only those of a chunk's last step: every reset hands
 * what is not finite on to the next step. (Where samples start anew within a sequence, all.) Only
 * when something is there the place is searched for: input, weight, membrane, gradient, in the
 * order of cause and effect.
 */
#ifndef RV_PIPELINE_HEALTH_H
#define RV_PIPELINE_HEALTH_H

#include "pipeline/internal.h"

typedef struct rv_health rv_health;
/* `run` is borrowed and takes events and the dump. */
RV_CHECKED rv_status rv_health_create(const rv_setup *setup, rv_run *run, rv_health **out);
void rv_health_destroy(rv_health *health);

/* Around every training step. before: observe it, and under skip_step keep what can be lost. */
RV_CHECKED rv_status rv_health_before(rv_health *health);
/* `status` is the step's own. RV_INTERNAL naming tensor, layer, time step, sample and index, with
 * the tensor in nonfinite.npy: the policy is abort, or skip_step has skipped too many in a row, or
 * the data themselves are not finite. *skipped: weights and optimiser are as before the step.
 * `step` counts from 1. */
RV_CHECKED rv_status rv_health_after(rv_health *health, rv_status status, int64_t step,
                                     const rv_step_result *result, bool *skipped);

/* Around the evaluation at the end of an epoch; the observer is for its forward passes. */
const rv_observer *rv_health_observer(rv_health *health);
/* Write an event for each warning, at most one per layer and kind, and tell `say`. layers: of the
 * evaluation, count 0: there was none. keep: what is remembered from step to step stays, because
 * the epoch goes on. */
RV_CHECKED rv_status rv_health_epoch(rv_health *health, const rv_layers *layers, int64_t epoch,
                                     int64_t step, bool keep,
                                     void (*say)(void *user, const char *line), void *user);

/* What is remembered from step to step, for checkpoints: so warnings are those of a run that never
 * stopped. */
float *rv_health_state(rv_health *health, int *count);

const rv_observer *rv_health_training(const rv_health *health); /* what `before` sets */

/* All finite, and their squares too? n floats, of any alignment. */
bool rv_finite(const float *values, size_t n);

#endif
