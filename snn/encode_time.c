/*
 * Encoders that put a value into the times of spikes. Arithmetic in float and in the order of the
 * libraries they are named after, so that their spikes come out bit for bit.
 */
#include <math.h>
#include <string.h>

#include "snn/encode.h"

/* Bit u%32 of word u/32. */
static void set_bit(rv_spikes s, int t, int b, int u) {
    s.bits[(size_t)t * s.stride_t + (size_t)b * (size_t)rv_words(s.n) + (size_t)u / 32] |=
        1u << u % 32;
}

static const float *row_of(rv_values x, int t, int b) {
    return x.data + (size_t)t * x.stride_t + (size_t)b * (size_t)x.ld;
}

/* ---- latency ----------------------------------------------------------------------------- */
rv_status rv_latency_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out) {
    (void)o;
    out->spikes = true;
    return rv_encode_static(source, "latency");
}

/* Time at which a membrane charged by x, of time constant tau, reaches the threshold. */
static float charge_time(float x, float tau, float threshold) {
    float at = fmaxf(x, threshold + 1e-7f);
    return tau * logf(at / (at - threshold));
}

/* Step of the spike of x, or -1. Normalised log times are stretched so that the last possible one
 * (of any x below the threshold) falls on the last step; the library takes the latest of the batch
 * instead, which would make a sample depend on the others. */
static int latency_step(const rv_encode_options *o, float x) {
    float last = (float)(o->steps - 1), threshold = (float)o->threshold, tau = (float)o->tau, time;
    if (o->clip && x < threshold) return -1;
    if (o->log) {
        time = last - logf(expm1f(last) * x + 1);
    } else if (o->linear) {
        float k = o->normalize ? last : tau;
        time = fminf(-k * (x - 1), -k * (threshold - 1));
    } else {
        time = charge_time(x, tau, threshold);
        if (o->normalize) time *= last / charge_time(0, tau, threshold);
    }
    time = rintf(time); /* half to even */
    return time > last || time < 0 ? -1 : (int)time;
}

/* A value has at most one spike, so every chunk looks whether it is in there. */
rv_status rv_latency_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out) {
    rv_status status = RV_OK;
    rv_values x = rv_job_values(job);
    TRY(rv_job_bits(job, x.n, out));
    for (int b = 0; b < x.B; b++) {
        const float *row = row_of(x, 0, b);
        for (int u = 0; u < x.n; u++) {
            int t = latency_step(o, row[u]);
            if (t >= job->t0 && t < job->t1) set_bit(out->spikes, t - job->t0, b, u);
        }
    }
out:
    return status;
}

/* ---- delta ------------------------------------------------------------------------------- */
rv_status rv_delta_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out) {
    out->spikes = !o->off_spike;
    if (!source->steps || source->spikes)
        return rv_fail(RV_CONFIG, "encoder delta takes values over time, but the data has %s",
                       source->spikes ? "spikes" : "one frame per sample");
    return RV_OK;
}

/* A change of exactly the threshold counts. */
static float delta_sign(const rv_encode_options *o, float change) {
    float threshold = (float)o->threshold;
    if (change >= threshold) return 1;
    return o->off_spike && change <= -threshold ? -1 : 0;
}

/* Signed spikes are values, never bits. */
static rv_status delta_values(const rv_encode_job *job, int n, rv_signal *out) {
    rv_status status = RV_OK;
    int T = job->t1 - job->t0;
    float *data = out->values.data;
    size_t count = (size_t)T * (size_t)job->B * (size_t)rv_round_up(n, RV_LANES);
    if (!data) TRY(rv_arena_get(job->arena, count, sizeof *data, &data));
    TRY(job->device->ops->queue_sync(job->device->ctx, job->queue)); /* ops may still read it */
    memset(data, 0, count * sizeof *data);
    *out = (rv_signal){.values = rv_values_of(data, T, job->B, n)};
out:
    return status;
}

/* The step before lies in front of the row in the batch, also across the border of a chunk. */
rv_status rv_delta_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out) {
    rv_status status = RV_OK;
    rv_values x = rv_job_values(job);
    if (o->off_spike)
        TRY(delta_values(job, x.n, out));
    else
        TRY(rv_job_bits(job, x.n, out));
    for (int t = 0; t < x.T; t++) {
        for (int b = 0; b < x.B; b++) {
            const float *now = row_of(x, t, b), *before = now - x.stride_t;
            bool first = job->t0 + t == 0;
            for (int u = 0; u < x.n; u++) {
                float last = !first ? before[u] : o->padding ? now[u] : 0;
                float sign = delta_sign(o, now[u] - last);
                if (sign == 0) continue;
                if (o->off_spike)
                    out->values.data[(size_t)t * out->values.stride_t +
                                     (size_t)b * (size_t)out->values.ld + (size_t)u] = sign;
                else
                    set_bit(out->spikes, t, b, u);
            }
        }
    }
out:
    return status;
}

/* ---- phase ------------------------------------------------------------------------------- */
rv_status rv_phase_check(const rv_encode_options *o, const rv_source *source, rv_encoding *out) {
    (void)o;
    out->spikes = true;
    return rv_encode_static(source, "phase");
}

/* Values outside [0, 1) take the nearest number of `bits` digits. */
rv_status rv_phase_encode(const rv_encode_options *o, const rv_encode_job *job, rv_signal *out) {
    rv_status status = RV_OK;
    rv_values x = rv_job_values(job);
    float most = (float)(1 << o->bits);
    TRY(rv_job_bits(job, x.n, out));
    for (int b = 0; b < x.B; b++) {
        const float *row = row_of(x, 0, b);
        for (int u = 0; u < x.n; u++) {
            int digits = (int)fminf(fmaxf(row[u] * most, 0), most - 1);
            for (int t = job->t0; t < job->t1; t++)
                if (digits >> (o->bits - 1 - t % o->bits) & 1)
                    set_bit(out->spikes, t - job->t0, b, u);
        }
    }
out:
    return status;
}

/* ---- population -------------------------------------------------------------------------- */
rv_status rv_population_check(const rv_encode_options *o, const rv_source *source,
                              rv_encoding *out) {
    rv_status status = RV_OK;
    int units = rv_shape_units(source->shape);
    out->spikes = true;
    TRY(rv_encode_static(source, "population"));
    if (units > (1 << 28) / o->neurons)
        FAIL(RV_CONFIG, "encoder population: %d values of %d neurons are too many", units,
             o->neurons);
    out->shape = (rv_shape){1, {units * o->neurons, 0, 0}};
out:
    return status;
}

/* Integrators forget nothing, so a chunk in the middle replays the steps before it. */
rv_status rv_population_encode(const rv_encode_options *o, const rv_encode_job *job,
                               rv_signal *out) {
    rv_status status = RV_OK;
    rv_values x = rv_job_values(job);
    float threshold = (float)o->threshold, std = (float)o->std;
    float spacing = o->neurons > 1 ? (float)((o->high - o->low) / (o->neurons - 1)) : 0;
    TRY(rv_job_bits(job, x.n * o->neurons, out));
    for (int b = 0; b < x.B; b++) {
        for (int u = 0; u < x.n * o->neurons; u++) {
            float mean = (float)o->low + spacing * (float)(u % o->neurons), v = 0;
            float away = (row_of(x, 0, b)[u / o->neurons] - mean) / std;
            float current = expf(-0.5f * away * away);
            for (int t = 0; t < job->t1; t++) {
                v += current;
                if (v < threshold) continue;
                v -= threshold;
                if (t >= job->t0) set_bit(out->spikes, t - job->t0, b, u);
            }
        }
    }
out:
    return status;
}
