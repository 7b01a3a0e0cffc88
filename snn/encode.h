/*
 * Inside snn/: what the encoder rows share. encode.c has the table and the rows that hand values
 * on or draw spikes; encode_time.c those that put a value into the times of spikes.
 */
#ifndef RV_SNN_ENCODE_H
#define RV_SNN_ENCODE_H

#include "snn/layer.h"

typedef struct rv_encode_options {
    int steps; /* first, see snn.h */
    int bits, neurons;
    double tau, threshold, low, high, std;
    bool linear, log, normalize, clip, off_spike, padding;
} rv_encode_options;

typedef struct rv_encode_job {
    const rv_device *device;
    rv_queue *queue;
    const rv_batch *batch;
    int row, B;
    uint64_t seed;
    int t0, t1;
    rv_arena *arena;
} rv_encode_job;

typedef struct rv_encoder_row {
    rv_row head;
    /* What it makes of a source; `out` holds the source's shape on entry. */
    rv_status (*check)(const rv_encode_options *o, const rv_source *source, rv_encoding *out);
    rv_status (*encode)(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out);
} rv_encoder_row;

/* Rows [row, row + B) and steps [t0, t1) of the batch's values. */
rv_values rv_job_values(const rv_encode_job *job);
/* Zeroed bits of n units in what `out` holds, or in the arena. */
RV_CHECKED rv_status rv_job_bits(const rv_encode_job *job, int n, rv_signal *out);
/* RV_CONFIG unless the source gives one frame of values per sample. */
RV_CHECKED rv_status rv_encode_static(const rv_source *source, const char *encoder);

rv_status rv_latency_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out);
rv_status rv_latency_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out);
rv_status rv_delta_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out);
rv_status rv_delta_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out);
rv_status rv_phase_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out);
rv_status rv_phase_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out);
rv_status rv_population_check(const rv_encode_options *o, const rv_source *source,
                              rv_encoding *out);
rv_status rv_population_encode(const rv_encode_options *o, const rv_encode_job *job,
                               rv_signal *out);

#endif
