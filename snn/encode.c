/*
 * Encoders: pure functions of (sample, t0, t1), so that no whole sequence need be in memory and a
 * chunk may be encoded by any stage, again if need be, with the same bits.
 */
#include <math.h>
#include <string.h>

#include "snn/encode.h"

/* ---- what rows share --------------------------------------------------------------------- */
rv_values rv_job_values(const rv_encode_job *job) {
    rv_values x = job->batch->input.values;
    x.data += (size_t)job->row * (size_t)x.ld + (size_t)job->t0 * x.stride_t;
    x.B = job->B;
    x.T = job->t1 - job->t0;
    return x;
}

/* As above, for sources that give bits. */
static rv_spikes batch_spikes(const rv_encode_job *job) {
    rv_spikes x = job->batch->input.spikes;
    x.bits += (size_t)job->row * (size_t)rv_words(x.n) + (size_t)job->t0 * x.stride_t;
    x.B = job->B;
    x.T = job->t1 - job->t0;
    return x;
}

/* Bits of n units in what `out` holds, or in the arena: not zeroed. */
static rv_status bits_place(const rv_encode_job *job, int n, rv_signal *out) {
    rv_status status = RV_OK;
    int T = job->t1 - job->t0;
    uint32_t *bits = out->spikes.bits;
    size_t words = (size_t)T * (size_t)job->B * (size_t)rv_words(n);
    if (!bits) TRY(rv_arena_get(job->arena, words, sizeof *bits, &bits));
    *out = (rv_signal){.spikes = rv_spikes_of(bits, T, job->B, n)};
out:
    return status;
}

/* Zeroed, because rows set single bits; padding bits must be 0 for every reader of words. The host
 * sets them, so it waits until no op uses that memory any more. */
rv_status rv_job_bits(const rv_encode_job *job, int n, rv_signal *out) {
    rv_status status = RV_OK;
    const rv_device *device = job->device;
    TRY(bits_place(job, n, out));
    size_t words = (size_t)out->spikes.T * out->spikes.stride_t;
    TRY(device->ops->zero(device->ctx, job->queue, out->spikes.bits, words * sizeof(uint32_t)));
    TRY(device->ops->queue_sync(device->ctx, job->queue));
out:
    return status;
}

/* Frames of `bytes` each, `stride` apart in the batch, one after the other in `to`. */
static rv_status frames_copy(const rv_encode_job *job, void *to, const void *from, size_t frames,
                             size_t bytes, size_t stride) {
    rv_status status = RV_OK;
    const rv_device *device = job->device;
    for (size_t t = 0; t < frames; t++)
        TRY(device->ops->copy(device->ctx, job->queue, (char *)to + t * bytes, false,
                              (const char *)from + t * stride, true, bytes));
out:
    return status;
}

/* Values of the batch where the device can read them: as they lie, or copied to `to` (NULL: to the
 * arena). */
static rv_status values_place(const rv_encode_job *job, float *to, rv_values *out) {
    rv_status status = RV_OK;
    rv_values x = rv_job_values(job);
    size_t frame = (size_t)x.B * (size_t)x.ld, frames = x.stride_t ? (size_t)x.T : 1;
    *out = x;
    if (!job->device->ops->apart) return RV_OK;
    if (!to) TRY(rv_arena_get(job->arena, frame * frames, sizeof *to, &to));
    TRY(frames_copy(job, to, x.data, frames, 4 * frame, 4 * x.stride_t));
    out->data = to;
    if (x.stride_t) out->stride_t = frame;
out:
    return status;
}

/* Rows that make time themselves cannot take data that has time already. */
rv_status rv_encode_static(const rv_source *source, const char *encoder) {
    if (!source->steps && !source->spikes) return RV_OK;
    return rv_fail(RV_CONFIG, "encoder %s takes one frame per sample, but the data has %s", encoder,
                   source->spikes ? "spikes" : "frames over time");
}

/* ---- constant ---------------------------------------------------------------------------- */
/* Whatever the source gives goes on: one frame becomes a held signal, frames and bits stay. */
static rv_status constant_check(const rv_encode_options *o, const rv_source *source,
                                rv_encoding *out) {
    out->spikes = source->spikes;
    out->held = source->steps == 0;
    (void)o;
    return RV_OK;
}

/* No copy in the host's memory: the batch outlives the step. */
static rv_status constant_encode(const rv_encode_options *o, const rv_encode_job *job,
                                 rv_signal *out) {
    rv_status status = RV_OK;
    const rv_spikes x = job->batch->input.spikes.bits ? batch_spikes(job) : (rv_spikes){0};
    (void)o;
    if (!x.bits) {
        float *to = out->values.data;
        *out = (rv_signal){{0}, {0}};
        return values_place(job, to, &out->values);
    }
    if (!job->device->ops->apart) {
        *out = (rv_signal){.spikes = x};
        return RV_OK;
    }
    TRY(bits_place(job, x.n, out));
    TRY(frames_copy(job, out->spikes.bits, x.bits, (size_t)x.T, 4 * out->spikes.stride_t,
                    4 * x.stride_t));
out:
    return status;
}

/* ---- rate -------------------------------------------------------------------------------- */
/* Values beyond [0, 1] are legal: they mean always and never. */
static rv_status rate_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out) {
    (void)o;
    out->spikes = true;
    return rv_encode_static(source, "rate");
}

/* Drawn on the device from counters, so that a chunk needs nothing of the chunks before it. */
static rv_status rate_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out) {
    rv_status status = RV_OK;
    rv_values frame;
    (void)o;
    TRY(values_place(job, NULL, &frame));
    TRY(bits_place(job, frame.n, out));
    TRY(job->device->ops->encode_rate(job->device->ctx, job->queue, frame,
                                      job->batch->sample + job->row, job->seed, job->batch->epoch,
                                      job->t0, out->spikes));
out:
    return status;
}

/* ---- table ------------------------------------------------------------------------------- */
#define OPTION(name, type, initial, least, most, open, sentence)                                   \
    {                                                                                              \
#name, type, offsetof(rv_encode_options, name), initial, least, most, open, NULL, NULL,    \
            sentence                                                                               \
    }
#define STEPS OPTION(steps, RV_T_INT, 0, 0, 1 << 24, false, "time steps; 0: those of the data")
#define FLAG(name, sentence) OPTION(name, RV_T_BOOL, 0, 0, 1, false, sentence)

static const rv_spec plain_specs[] = {STEPS, {0}};
static const rv_spec latency_specs[] = {
    STEPS,
    OPTION(tau, RV_T_REAL, 1, 0, 1e6, true, "time constant of the charging membrane, in steps"),
    OPTION(threshold, RV_T_REAL, 0.01, 0, 1, false, "values below it spike last"),
    FLAG(linear, "time falls linearly with the value, else as a membrane charges"),
    FLAG(log, "time falls with the logarithm of the value, over all steps (SpikingJelly)"),
    FLAG(normalize, "stretch the times over all steps"),
    FLAG(clip, "no spike for values below the threshold"),
    {0},
};
static const rv_spec delta_specs[] = {
    STEPS,
    OPTION(threshold, RV_T_REAL, 0.1, 0, 1e6, true, "change of a value that makes a spike"),
    FLAG(off_spike, "falls give -1 (values instead of spikes)"),
    FLAG(padding, "the first step is compared with itself, else with 0"),
    {0},
};
static const rv_spec phase_specs[] = {
    STEPS,
    OPTION(bits, RV_T_INT, 8, 1, 24, false, "steps of a period, one for each binary digit"),
    {0},
};
static const rv_spec population_specs[] = {
    STEPS,
    OPTION(neurons, RV_T_INT, 10, 1, 4096, false, "neurons per value"),
    OPTION(low, RV_T_REAL, 0, -1e6, 1e6, false, "centre of the first neuron"),
    OPTION(high, RV_T_REAL, 1, -1e6, 1e6, false, "centre of the last neuron"),
    OPTION(std, RV_T_REAL, 0.15, 0, 1e6, true, "width of the receptive fields"),
    OPTION(threshold, RV_T_REAL, 0.999, 0, 1e6, true, "threshold of the integrators"),
    {0},
};

static const rv_encoder_row rows[] = {
    {{"constant", "values are the input current: one sample for all steps, or its frames in order",
      "snnTorch, SpikingJelly: direct input", plain_specs, sizeof(rv_encode_options)},
     constant_check,
     constant_encode},
    {{"rate", "a spike at each step with probability equal to the value",
      "snnTorch spikegen.rate, SpikingJelly PoissonEncoder", plain_specs,
      sizeof(rv_encode_options)},
     rate_check,
     rate_encode},
    {{"latency", "one spike per value, the sooner the larger", "snnTorch spikegen.latency",
      latency_specs, sizeof(rv_encode_options)},
     rv_latency_check,
     rv_latency_encode},
    {{"delta", "a spike where a value has risen since the last step", "snnTorch spikegen.delta",
      delta_specs, sizeof(rv_encode_options)},
     rv_delta_check,
     rv_delta_encode},
    {{"phase", "the binary digits of a value in [0, 1), the first first, over and over",
      "Kim et al. 2018; SpikingJelly WeightedPhaseEncoder", phase_specs, sizeof(rv_encode_options)},
     rv_phase_check,
     rv_phase_encode},
    {{"population", "integrators with Gaussian receptive fields over each value",
      "Tang et al. 2020; SpikingJelly PopSpikeEncoderDeterministic", population_specs,
      sizeof(rv_encode_options)},
     rv_population_check,
     rv_population_encode},
};

const rv_table *rv_encoder_table(void) {
    static const rv_table table = {"encoders", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

/* A recipe without encode hands values on. */
static const rv_encoder_row *row_of(const rv_choice *encoder) {
    return encoder->row ? (const rv_encoder_row *)(const void *)encoder->row : &rows[0];
}

/* Copied: the row's defaults live nowhere else. */
static rv_encode_options options_of(const rv_choice *encoder) {
    rv_encode_options options = {0};
    if (encoder->row && encoder->options) return *(const rv_encode_options *)encoder->options;
    rv_specs_default(row_of(encoder)->head.specs, &options);
    return options;
}

/* The one place that decides T: the data's steps where it has any, else the recipe's. */
rv_status rv_encoder_check(const rv_choice *encoder, const rv_source *source, rv_encoding *out) {
    rv_status status = RV_OK;
    const rv_encode_options o = options_of(encoder);
    *out = (rv_encoding){.shape = source->shape};
    TRY(row_of(encoder)->check(&o, source, out));
    if (source->steps && o.steps && o.steps != source->steps)
        FAIL(RV_CONFIG, "encode.steps is %d, but the data has %d steps", o.steps, source->steps);
    out->steps = source->steps ? source->steps : o.steps;
    if (out->steps < 1) FAIL(RV_CONFIG, "encode.steps must be at least 1: the data has no time");
out:
    return status;
}

rv_status rv_encode(const rv_choice *encoder, const rv_device *device, rv_queue *queue,
                    const rv_batch *batch, int row, int B, uint64_t seed, int t0, int t1,
                    rv_arena *arena, rv_signal *out) {
    const rv_encode_options o = options_of(encoder);
    rv_encode_job job = {device, queue, batch, row, B, seed, t0, t1, arena};
    return row_of(encoder)->encode(&o, &job, out);
}
