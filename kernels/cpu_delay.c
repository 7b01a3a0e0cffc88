/*
 * Delays of whole and fractional steps per channel. An input's adjoint is the sum of at most two
 * terms, the later step's first, wherever chunk borders fall: so every chunking gives the same
 * bits.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"

#include <limits.h>
#include <math.h>
#include <string.h>

typedef struct delay_job {
    const rv_delay *delay;
    const rv_signal *x;
    rv_values y; /* forward: out; backward: adjoint of it */
    rv_values gx;
    bool add;
    int n, ld, T;
    float *scratch; /* per worker: three unpacked rows */
    size_t scratch_floats;
    int *born; /* [T][B] the latest start at or before a step: nothing older is seen; or NULL */
    const float *back; /* delays of the adjoint */
    double *sums;      /* [T][c] of the delays' gradient */
    float *later;      /* [max+1][B][ld] adjoint of the ring, made here */
} delay_job;

/* The taps of channel c: y[t] = near * x[t-k] + far * x[t-k-1]. */
typedef struct taps {
    int k;
    float near, far;
} taps;
static taps taps_of(const rv_delay *delay, const float *delays, int c) {
    float d = delays[c];
    d = d > 0.0f ? d : 0.0f; /* an update may have stepped outside the range */
    d = d < (float)delay->max ? d : (float)delay->max;
    float whole = floorf(d);
    return (taps){(int)whole, 1.0f - (d - whole), d - whole};
}

/* Entry of the ring: age 0 is the step before the chunk. */
static size_t ring_at(const delay_job *job, int age, int b) {
    return ((size_t)age * (size_t)job->y.B + (size_t)b) * (size_t)job->ld;
}

/* The earliest step that step t of sample b sees. */
static int born(const delay_job *job, int t, int b) {
    return job->born ? job->born[t * job->y.B + b] : INT_MIN;
}

static rv_status find_starts(delay_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    const uint32_t *starts = job->delay->starts;
    int B = job->y.B, *latest;
    if (!starts) return RV_OK;
    TRY(rv_arena_get(arena, (size_t)job->T * (size_t)B, sizeof *job->born, &job->born));
    latest = job->born;
    for (int t = 0; t < job->T; t++, starts += rv_words(B))
        for (int b = 0; b < B; b++, latest++)
            *latest = starts[b / 32] >> b % 32 & 1u ? t : t > 0 ? latest[-B] : INT_MIN;
out:
    return status;
}

/* Channel c of x[s] as step t sees it; s < 0 lies in the ring, -1 the newest. */
static const float *past(const delay_job *job, int t, int s, int b, size_t first, int n,
                         float *scratch) {
    if (s < born(job, t, b)) return memset(scratch, 0, (size_t)n * sizeof *scratch);
    if (s < 0) return job->delay->ring + ring_at(job, -1 - s, b) + first;
    if (!job->x->spikes.bits) return values_row(job->x->values, s, b) + first;
    const uint32_t *bits = spikes_row(job->x->spikes, s, b);
    for (int i = 0; i < n; i++) {
        size_t u = first + (size_t)i;
        scratch[i] = (float)(bits[u / 32] >> (u % 32) & 1u);
    }
    return scratch;
}

static void forward_row(void *argument, int row, int worker) {
    const delay_job *job = argument;
    int t = row / job->y.B, b = row % job->y.B;
    int n = job->delay->plane.h * job->delay->plane.w;
    float *near_row = job->scratch + (size_t)worker * job->scratch_floats, *far_row = near_row + n;
    float *y = values_row(job->y, t, b);
    for (int c = 0; c < job->delay->plane.c; c++) {
        taps tap = taps_of(job->delay, job->delay->delay, c);
        size_t first = (size_t)c * (size_t)n;
        const float *x = past(job, t, t - tap.k, b, first, n, near_row);
        /* A whole delay copies bits exactly, whatever the older value is. */
        if (tap.far == 0.0f) {
            memcpy(y + first, x, (size_t)n * sizeof *y);
            continue;
        }
        const float *older = past(job, t, t - tap.k - 1, b, first, n, far_row);
        for (int i = 0; i < n; i++)
            y[first + (size_t)i] = tap.near * x[i] + tap.far * older[i];
    }
    row_pad(job->y, y);
}

/* Age the ring by the chunk: entry j becomes x[T-1-j], or what was j - T; nothing from before the
 * last start. */
static void ring_row(void *argument, int b, int worker) {
    const delay_job *job = argument;
    float *scratch = job->scratch + (size_t)worker * job->scratch_floats;
    /* Oldest first: an entry is read for an older one before it is written. */
    for (int age = job->delay->max; age >= 0; age--) {
        float *entry = job->delay->ring + ring_at(job, age, b);
        int s = job->T - 1 - age;
        if (s < born(job, job->T - 1, b)) {
            memset(entry, 0, (size_t)job->n * sizeof *entry);
            continue;
        }
        const float *x = s < 0 ? job->delay->ring + ring_at(job, age - job->T, b)
                               : signal_row(job->x, s, b, scratch);
        memcpy(entry, x, (size_t)job->n * sizeof *entry);
    }
}

/* A worker needs the two inputs a tap reads, or a whole row for the ring and the adjoints. */
static rv_status delay_scratch(rv_ctx *ctx, delay_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    job->n = signal_units(job->x);
    job->ld = rv_round_up(job->n, RV_LANES);
    job->T = job->y.T;
    size_t plane = (size_t)(job->delay->plane.h * job->delay->plane.w);
    job->scratch_floats = row_floats(job->n) + 2 * plane + (size_t)job->ld;
    TRY(find_starts(job, arena));
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job->scratch_floats * sizeof(float),
                     &job->scratch));
out:
    return status;
}

rv_status RV_CPU(delay_forward)(rv_ctx *ctx, rv_queue *queue, const rv_delay *delay,
                                const rv_signal *x, rv_values y, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    delay_job job = {.delay = delay, .x = x, .y = y};
    (void)queue;
    TRY(delay_scratch(ctx, &job, arena));
    rv_cpu_run(ctx, job.T * y.B, forward_row, &job);
    rv_cpu_run(ctx, y.B, ring_row, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}

/* out = the adjoint of x[s] that lies in this chunk: the older tap's step is the later one. */
static void gather(const delay_job *job, int s, int b, float *out) {
    int n = job->delay->plane.h * job->delay->plane.w;
    for (int c = 0; c < job->delay->plane.c; c++) {
        taps tap = taps_of(job->delay, job->back, c);
        size_t first = (size_t)c * (size_t)n;
        int near_step = s + tap.k, far_step = near_step + 1;
        if (tap.far != 0.0f && far_step >= 0 && far_step < job->T && s >= born(job, far_step, b)) {
            const float *g = values_row(job->y, far_step, b) + first;
            for (int i = 0; i < n; i++)
                out[first + (size_t)i] += tap.far * g[i];
        }
        if (near_step >= 0 && near_step < job->T && s >= born(job, near_step, b)) {
            const float *g = values_row(job->y, near_step, b) + first;
            for (int i = 0; i < n; i++)
                out[first + (size_t)i] += tap.near * g[i];
        }
    }
}

/* Adjoint of x[s]: what later chunks sent, then this chunk's share. */
static void backward_row(void *argument, int row, int worker) {
    const delay_job *job = argument;
    int s = row / job->y.B, b = row % job->y.B, age = job->T - 1 - s;
    float *sum = job->scratch + (size_t)worker * job->scratch_floats;
    memset(sum, 0, (size_t)job->ld * sizeof *sum);
    if (age <= job->delay->max && s >= born(job, job->T - 1, b))
        memcpy(sum, job->delay->ring_adjoint + ring_at(job, age, b), (size_t)job->n * sizeof *sum);
    gather(job, s, b, sum);
    float *gx = values_row(job->gx, s, b);
    for (int u = 0; u < job->ld; u++)
        gx[u] = job->add ? gx[u] + sum[u] : sum[u];
}

/* A held input has one frame: its adjoint is the sum over time, t descending. */
static void backward_held(void *argument, int b, int worker) {
    delay_job step = *(const delay_job *)argument;
    for (int s = step.T - 1; s >= 0; s--) {
        backward_row(&step, s * step.y.B + b, worker);
        step.add = true;
    }
}

/* Adjoint of the ring as it was before the chunk. */
static void ring_adjoint_row(void *argument, int row, int worker) {
    const delay_job *job = argument;
    int age = row / job->y.B, b = row % job->y.B, later = age + job->T;
    float *sum = job->later + ring_at(job, age, b);
    (void)worker;
    memset(sum, 0, (size_t)job->ld * sizeof *sum);
    if (later <= job->delay->max && -1 - age >= born(job, job->T - 1, b))
        memcpy(sum, job->delay->ring_adjoint + ring_at(job, later, b),
               (size_t)job->n * sizeof *sum);
    gather(job, -1 - age, b, sum);
}

/* d y[t] / d delay = x[t-k-1] - x[t-k], summed over samples and planes of one step. */
static void gradient_step(void *argument, int t, int worker) {
    const delay_job *job = argument;
    int n = job->delay->plane.h * job->delay->plane.w, channels = job->delay->plane.c;
    float *near_row = job->scratch + (size_t)worker * job->scratch_floats, *far_row = near_row + n;
    double *sums = job->sums + (size_t)t * (size_t)channels;
    for (int c = 0; c < channels; c++) {
        taps tap = taps_of(job->delay, job->delay->delay, c);
        size_t first = (size_t)c * (size_t)n;
        sums[c] = 0.0;
        for (int b = 0; b < job->y.B; b++) {
            const float *x = past(job, t, t - tap.k, b, first, n, near_row);
            const float *older = past(job, t, t - tap.k - 1, b, first, n, far_row);
            const float *g = values_row(job->y, t, b) + first;
            for (int i = 0; i < n; i++)
                sums[c] += (double)g[i] * ((double)older[i] - (double)x[i]);
        }
    }
}

rv_status RV_CPU(delay_backward)(rv_ctx *ctx, rv_queue *queue, const rv_delay *delay,
                                 const rv_signal *x, rv_values g, rv_values gx, bool add,
                                 float *g_delay, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena), entries = (size_t)(delay->max + 1) * (size_t)g.B;
    delay_job job = {.delay = delay, .x = x, .y = g, .gx = gx, .add = add};
    job.back = delay->back ? delay->back : delay->delay;
    int channels = delay->plane.c;
    (void)queue;
    TRY(delay_scratch(ctx, &job, arena));
    TRY(rv_arena_get(arena, (size_t)job.T * (size_t)channels, sizeof(double), &job.sums));
    TRY(rv_arena_get(arena, entries, (size_t)job.ld * sizeof(float), &job.later));
    if (g_delay) {
        rv_cpu_run(ctx, job.T, gradient_step, &job);
        for (int t = job.T - 1; t >= 0; t--)
            for (int c = 0; c < channels; c++)
                g_delay[c] += (float)job.sums[(size_t)t * (size_t)channels + (size_t)c];
    }
    if (gx.data && gx.stride_t == 0 && job.T > 1)
        rv_cpu_run(ctx, g.B, backward_held, &job);
    else if (gx.data)
        rv_cpu_run(ctx, job.T * g.B, backward_row, &job);
    rv_cpu_run(ctx, (int)entries, ring_adjoint_row, &job);
    /* Made apart: the adjoint at the chunk's end was still being read. */
    memcpy(delay->ring_adjoint, job.later, entries * (size_t)job.ld * sizeof(float));
out:
    rv_arena_release(arena, mark);
    return status;
}
