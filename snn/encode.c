/* Encoders: pure functions of (sample, t0, t1), so that no whole sequence need be in memory. */
#include <math.h>

#include "snn/layer.h"

typedef struct encode_options {
    int steps;
} encode_options;

typedef struct encode_job {
    const rv_device *device;
    rv_queue *queue;
    const rv_batch *batch;
    int row, B;
    uint64_t seed;
    int t0, t1;
    rv_arena *arena;
} encode_job;

typedef struct encoder_row {
    rv_row head;
    /* What it makes of a source; `out` holds the source's shape on entry. */
    rv_status (*check)(const encode_options *options, const rv_source *source, rv_encoding *out);
    rv_status (*encode)(const encode_options *options, const encode_job *job, rv_signal *out);
} encoder_row;

/* ---- views of the batch ------------------------------------------------------------------ */
static rv_values batch_values(const encode_job *job) {
    rv_values x = job->batch->input.values;
    x.data += (size_t)job->row * (size_t)x.ld + (size_t)job->t0 * x.stride_t;
    x.B = job->B;
    x.T = job->t1 - job->t0;
    return x;
}

static rv_spikes batch_spikes(const encode_job *job) {
    rv_spikes x = job->batch->input.spikes;
    x.bits += (size_t)job->row * (size_t)rv_words(x.n) + (size_t)job->t0 * x.stride_t;
    x.B = job->B;
    x.T = job->t1 - job->t0;
    return x;
}

/* ---- constant ---------------------------------------------------------------------------- */
static rv_status constant_check(const encode_options *options, const rv_source *source,
                                rv_encoding *out) {
    if (source->steps && options->steps && options->steps != source->steps)
        return rv_fail(RV_CONFIG, "encode.steps is %d, but the data has %d steps", options->steps,
                       source->steps);
    out->steps = source->steps ? source->steps : options->steps;
    out->spikes = source->spikes;
    out->held = source->steps == 0;
    return RV_OK;
}

static rv_status constant_encode(const encode_options *options, const encode_job *job,
                                 rv_signal *out) {
    (void)options;
    *out = (rv_signal){{0}, {0}};
    if (job->batch->input.spikes.bits)
        out->spikes = batch_spikes(job);
    else
        out->values = batch_values(job);
    return RV_OK;
}

/* ---- rate -------------------------------------------------------------------------------- */
static rv_status rate_check(const encode_options *options, const rv_source *source,
                            rv_encoding *out) {
    if (source->steps || source->spikes)
        return rv_fail(RV_CONFIG, "the rate encoder takes static samples, the data has %s",
                       source->spikes ? "spikes" : "frames over time");
    out->steps = options->steps;
    out->spikes = true;
    return RV_OK;
}

static rv_status rate_encode(const encode_options *options, const encode_job *job, rv_signal *out) {
    rv_status status = RV_OK;
    rv_values frame = batch_values(job);
    int T = job->t1 - job->t0;
    uint32_t *bits = out->spikes.bits;
    (void)options;
    if (!bits)
        TRY(rv_arena_get(job->arena, (size_t)T * (size_t)job->B * (size_t)rv_words(frame.n),
                         sizeof *bits, &bits));
    *out = (rv_signal){rv_spikes_of(bits, T, job->B, frame.n), {0}};
    TRY(job->device->ops->encode_rate(job->device->ctx, job->queue, frame,
                                      job->batch->sample + job->row, job->seed, job->batch->epoch,
                                      job->t0, out->spikes));
out:
    return status;
}

/* ---- table ------------------------------------------------------------------------------- */
static const rv_spec specs[] = {
    {"steps", RV_T_INT, offsetof(encode_options, steps), 0, 0, 1 << 24, false, NULL, NULL,
     "time steps; 0: those of the data"},
    {0},
};
static const encoder_row rows[] = {
    {{"constant", "values are the input current: one sample for all steps, or its frames in order",
      "snnTorch, SpikingJelly: direct input", specs, sizeof(encode_options)},
     constant_check,
     constant_encode},
    {{"rate", "a spike at each step with probability equal to the value",
      "snnTorch spikegen.rate, SpikingJelly PoissonEncoder", specs, sizeof(encode_options)},
     rate_check,
     rate_encode},
};

const rv_table *rv_encoder_table(void) {
    static const rv_table table = {"encoders", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

static const encoder_row *row_of(const rv_choice *encoder) {
    return encoder->row ? (const encoder_row *)(const void *)encoder->row : &rows[0];
}

rv_status rv_encoder_check(const rv_choice *encoder, const rv_source *source, rv_encoding *out) {
    rv_status status = RV_OK;
    *out = (rv_encoding){.shape = source->shape};
    TRY(row_of(encoder)->check(encoder->options, source, out));
    if (out->steps < 1) FAIL(RV_CONFIG, "encode.steps must be at least 1 for static samples");
out:
    return status;
}

rv_status rv_encode(const rv_choice *encoder, const rv_device *device, rv_queue *queue,
                    const rv_batch *batch, int row, int B, uint64_t seed, int t0, int t1,
                    rv_arena *arena, rv_signal *out) {
    encode_job job = {device, queue, batch, row, B, seed, t0, t1, arena};
    return row_of(encoder)->encode(encoder->options, &job, out);
}
