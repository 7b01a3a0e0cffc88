/*
 * Inside pipeline/: what the parts of a network cost on this machine, measured by running them as
 * stages, one after the other, while as many other threads as the pipeline will have do the same.
 */
#ifndef RV_PIPELINE_COST_H
#define RV_PIPELINE_COST_H

#include "pipeline/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layers [first, last): seconds of one micro-batch over the whole sequence, u and norm of one
 * item. */
typedef struct rv_part_cost {
    int first, last;
    double f, b, w, u, norm;
    double once[RV_WORK_BW]; /* of f, b, w: what chunk 0 has beside its share of the rest */
    double scatter; /* of an item: standard deviation of its time over its mean, at most 1 */
    double forward_bytes, backward_bytes; /* over the cut after it, whole sequence */
    double scratch_bytes;                 /* largest arena of an item */
} rv_part_cost;

typedef struct rv_cost_desc {
    const rv_net *net; /* forms chosen */
    const rv_choice *encoder;
    const rv_loss_desc *loss;
    const rv_train_desc *train; /* chunks, micro_batches, batch */
    const rv_batch *batch;      /* at least a micro-batch */
    const rv_device_list *devices;
    rv_isa isa;
    int threads;   /* of a stage */
    int busy;      /* stages that will run at once */
    double memory; /* resident bytes that the process may not exceed; 0: no limit. Where it is short
                      fewer helpers run, which makes costs come out a little lower, and a part of
                      the sequence is measured, which counts for all of it */
} rv_cost_desc;

/* parts: first and last set, covering all layers; the rest is filled in. Two steps to warm up, then
 * five, or up to nine in a second; no more after two seconds, but always one. RV_RESOURCE: one
 * chunk does not fit the memory. */
RV_CHECKED rv_status rv_cost_measure(const rv_cost_desc *desc, int count, rv_part_cost *parts);

/* Bytes per second that tapes go to a file without a name in the folder (rv_train_desc.scratch) and
 * back: through the system's memory, which holds them meanwhile, or `sustained`, by the medium.
 * About half a second at most, unless the disk takes longer for 4 MiB. RV_CREATE, RV_IO: no room.
 */
RV_CHECKED rv_status rv_cost_disk(const char *folder, bool sustained, double *bandwidth);

/* Seconds from ringing a sleeping thread to its answer's half way; bytes per second of a copy. */
RV_CHECKED rv_status rv_cost_transport(double *latency, double *bandwidth);

#ifdef __cplusplus
}
#endif
#endif
