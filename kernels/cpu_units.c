/*
 * Unit by unit: scale, copy (add, concat), dropout, stateless threshold; and their adjoints. All
 * are bound by memory: rows go to the workers as they lie, and loops over units are plain so that
 * every level vectorises them. A product and the sum it goes into round apart (no fused
 * instruction), so levels agree here. Gradients of per-unit parameters split units among the
 * workers, never rows: each sum keeps its one order.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"
#include "kernels/surrogate.h"

/* y (+)= factor * x over all rows. */
typedef struct units_job {
    const rv_signal *x;
    const float *factor; /* [n]; dropout: [B][ld] */
    rv_values y;
    bool add, per_sample;
    float *scratch; /* per worker: a row of x */
    size_t scratch_floats;
} units_job;

/* y (+)= factor * x, or x alone; a mask of dropout is a factor per sample. The product and the sum
 * round apart, as on every level. */
static void factor_row(void *argument, int row, int worker) {
    const units_job *job = argument;
    int t = row / job->y.B, b = row % job->y.B, n = job->y.n;
    const float *x = signal_row(job->x, t, b, job->scratch + (size_t)worker * job->scratch_floats);
    const float *f = job->factor;
    float *y = values_row(job->y, t, b);
    if (job->per_sample) f += (size_t)b * (size_t)rv_round_up(n, RV_LANES);
    if (f && job->add)
        for (int u = 0; u < n; u++)
            y[u] += f[u] * x[u];
    else if (f)
        for (int u = 0; u < n; u++)
            y[u] = f[u] * x[u];
    else
        for (int u = 0; u < n; u++)
            y[u] = job->add ? y[u] + x[u] : x[u];
    if (!job->add) row_pad(job->y, y);
}

/* Bits are unpacked a row at a time; values need no scratch. */
static rv_status factor_run(rv_ctx *ctx, units_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    job->scratch_floats = job->x->spikes.bits ? row_floats(job->x->spikes.n) : 0;
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job->scratch_floats * sizeof(float),
                     &job->scratch));
    rv_cpu_run(ctx, values_frames(job->y) * job->y.B, factor_row, job);
out:
    return status;
}

rv_status RV_CPU(scale)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, const float *factor,
                        rv_values y, bool add, rv_arena *arena) {
    size_t mark = rv_arena_mark(arena);
    units_job job = {.x = x, .factor = factor, .y = y, .add = add};
    (void)queue;
    rv_status status = factor_run(ctx, &job, arena);
    rv_arena_release(arena, mark);
    return status;
}

/* ---- gradient of the factors: workers take blocks of units -------------------------------- */
enum { UNIT_BLOCK = 256 };

typedef struct weight_job {
    const rv_signal *x;
    rv_values g;
    float *gradient;
    int n;
} weight_job;

/* Units are independent, so workers take blocks of them and each sum keeps its one order. */
static void weight_block(void *argument, int block, int worker) {
    const weight_job *job = argument;
    int first = block * UNIT_BLOCK,
        last = first + UNIT_BLOCK < job->n ? first + UNIT_BLOCK : job->n;
    float row[UNIT_BLOCK];
    (void)worker;
    for (int t = signal_frames(job->x) - 1; t >= 0; t--)
        for (int b = 0; b < job->g.B; b++) {
            const float *g = values_row(job->g, t, b) + first, *x = row;
            if (job->x->spikes.bits) {
                const uint32_t *bits = spikes_row(job->x->spikes, t, b);
                for (int u = first; u < last; u += 32)
                    word_unpack(bits[u / 32], row + (u - first));
            } else {
                x = values_row(job->x->values, t, b) + first;
            }
            for (int u = 0; u < last - first; u++)
                job->gradient[first + u] += x[u] * g[u];
        }
}

rv_status RV_CPU(scale_weight)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, rv_values g,
                               float *g_factor, rv_arena *arena) {
    weight_job job = {.x = x, .g = g, .gradient = g_factor, .n = signal_units(x)};
    (void)queue, (void)arena;
    rv_cpu_run(ctx, (job.n + UNIT_BLOCK - 1) / UNIT_BLOCK, weight_block, &job);
    return RV_OK;
}

/* ---- copy ------------------------------------------------------------------------------- */
typedef struct copy_job {
    const rv_signal *x;
    rv_values y;
    int offset_x, offset_y, count;
    bool add;
} copy_job;

/* One row. Offsets of bits need not fall on words: whole words are unpacked, parts of them copied.
 */
static void copy_frame(const copy_job *job, int t_from, int t_to, int b, bool add) {
    float *y = values_row(job->y, t_to, b) + job->offset_y;
    if (!job->x->spikes.bits) {
        const float *x = values_row(job->x->values, t_from, b) + job->offset_x;
        for (int u = 0; u < job->count; u++)
            y[u] = add ? y[u] + x[u] : x[u];
    } else {
        const uint32_t *bits = spikes_row(job->x->spikes, t_from, b);
        int end = job->offset_x + job->count;
        for (int w = job->offset_x / 32; w * 32 < end; w++) {
            float word[32];
            int from = w * 32 < job->offset_x ? job->offset_x : w * 32;
            int to = w * 32 + 32 < end ? w * 32 + 32 : end;
            word_unpack(bits[w], word);
            for (int i = from; i < to; i++) {
                float *out = y + (i - job->offset_x), value = word[i - w * 32];
                *out = add ? *out + value : value;
            }
        }
    }
    if (job->offset_y + job->count == job->y.n && !add)
        row_pad(job->y, values_row(job->y, t_to, b));
}

/* The same step on both sides; a held x serves every step by its stride. */
static void copy_row(void *argument, int row, int worker) {
    const copy_job *job = argument;
    (void)worker;
    copy_frame(job, row / job->y.B, row / job->y.B, row % job->y.B, job->add);
}

/* Into a held view: the sum over time, t descending. */
static void copy_held(void *argument, int b, int worker) {
    const copy_job *job = argument;
    int last = signal_frames(job->x) - 1;
    (void)worker;
    for (int t = last; t >= 0; t--)
        copy_frame(job, t, 0, b, job->add || t < last);
}

rv_status RV_CPU(copy_units)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, int offset_x,
                             rv_values y, int offset_y, int count, bool add) {
    copy_job job = {x, y, offset_x, offset_y, count, add};
    (void)queue;
    /* One frame to write: of a held view, or of a chunk of one step. */
    if (values_frames(y) == 1)
        rv_cpu_run(ctx, y.B, copy_held, &job);
    else
        rv_cpu_run(ctx, y.T * y.B, copy_row, &job);
    return RV_OK;
}

/* ---- dropout ---------------------------------------------------------------------------- */
/* One row of factors per sample, the same for all its steps and for its adjoint. */
typedef struct mask_job {
    float *mask;
    int n;
    float p;
    uint64_t seed;
    int layer;
    uint32_t epoch;
    const uint64_t *sample;
} mask_job;

/* The factor of every unit of a sample: 1/(1-p) where it stays, so the mean is kept. Four outputs
 * of the generator serve four neighbours, and padding gets numbers nobody reads. */
static void mask_row(void *argument, int b, int worker) {
    const mask_job *job = argument;
    int ld = rv_round_up(job->n, RV_LANES);
    float *mask = job->mask + (size_t)b * (size_t)ld, keep = 1.0f / (1.0f - job->p);
    (void)worker;
    for (int u = 0; u < job->n; u += 4) {
        uint32_t words[4];
        rv_random4(words, job->seed, RV_FOR_DROPOUT, job->layer, job->epoch,
                   (uint32_t)job->sample[b], 0, (uint32_t)u / 4);
        for (int k = 0; k < 4; k++)
            mask[u + k] = rv_uniform(words[k]) >= job->p ? keep : 0.0f;
    }
}

rv_status RV_CPU(dropout)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, float p, uint64_t seed,
                          int layer, uint32_t epoch, const uint64_t *sample, rv_values y, bool add,
                          rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena), ld = (size_t)rv_round_up(y.n, RV_LANES);
    mask_job mask = {NULL, y.n, p, seed, layer, epoch, sample};
    (void)queue;
    TRY(rv_arena_get(arena, (size_t)y.B * ld, sizeof(float), &mask.mask));
    rv_cpu_run(ctx, y.B, mask_row, &mask);
    units_job job = {.x = x, .factor = mask.mask, .y = y, .add = add, .per_sample = true};
    TRY(factor_run(ctx, &job, arena));
out:
    rv_arena_release(arena, mark);
    return status;
}
/* ---- stateless threshold ----------------------------------------------------------------- */
typedef struct threshold_job {
    rv_values x, g, gx;
    rv_spikes s;
    const float *theta;
    bool strict, add;
    const rv_surrogate *surrogate;
    float *g_theta;
} threshold_job;

/* Bits past the last unit stay 0: later ops count whole words. */
static void threshold_row(void *argument, int row, int worker) {
    const threshold_job *job = argument;
    int t = row / job->s.B, b = row % job->s.B, n = job->s.n;
    const float *x = values_row(job->x, t, b), *theta = job->theta;
    uint32_t *bits = spikes_row(job->s, t, b);
    (void)worker;
    for (int first = 0; first < n; first += 32) {
        uint32_t word = 0;
        for (int u = first; u < first + 32 && u < n; u++) {
            bool spike = job->strict ? x[u] > theta[u] : x[u] >= theta[u];
            word |= (uint32_t)spike << (u - first);
        }
        bits[first / 32] = word;
    }
}

/* A held input still gives bits of every step of s. */
rv_status RV_CPU(threshold_forward)(rv_ctx *ctx, rv_queue *queue, rv_values x, const float *theta,
                                    bool strict, rv_spikes s) {
    threshold_job job = {.x = x, .s = s, .theta = theta, .strict = strict};
    (void)queue;
    rv_cpu_run(ctx, (s.stride_t ? s.T : 1) * s.B, threshold_row, &job);
    return RV_OK;
}

/* out[u] = g[u] * slope(x[u] - theta[u]): one loop per surrogate, so each vectorises. */
static void slope_row(const rv_surrogate *surrogate, const float *x, const float *theta,
                      const float *g, int n, float *out) {
    const float *p = surrogate->p;
    switch (surrogate->kind) {
#define SLOPE_CASE(name, form, source, parameters)                                                 \
    case RV_SURROGATE_##name:                                                                      \
        for (int u = 0; u < n; u++)                                                                \
            out[u] = g[u] * rv_surrogate_##name(x[u] - theta[u], p);                               \
        break;
        RV_SURROGATE_LIST(SLOPE_CASE)
#undef SLOPE_CASE
    }
}

/* A block of units through all steps: the thresholds' sums are t descending, b ascending, and a
 * held input's adjoint is a sum over time in the same order. */
static void threshold_adjoint(void *argument, int block, int worker) {
    const threshold_job *job = argument;
    int first = block * UNIT_BLOCK, n = job->x.n - first;
    int last = job->g.stride_t ? job->g.T - 1 : values_frames(job->x) - 1;
    bool held = job->gx.stride_t == 0;
    float out[UNIT_BLOCK];
    (void)worker;
    if (n > UNIT_BLOCK) n = UNIT_BLOCK;
    for (int t = last; t >= 0; t--)
        for (int b = 0; b < job->g.B; b++) {
            slope_row(job->surrogate, values_row(job->x, t, b) + first, job->theta + first,
                      values_row(job->g, t, b) + first, n, out);
            for (int u = 0; job->g_theta && u < n; u++)
                job->g_theta[first + u] -= out[u];
            if (!job->gx.data) continue;
            float *gx = values_row(job->gx, t, b);
            bool add = job->add || (held && t < last);
            for (int u = 0; u < n; u++)
                gx[first + u] = add ? gx[first + u] + out[u] : out[u];
            if (!add && first + n == job->x.n) row_pad(job->gx, gx);
        }
}

rv_status RV_CPU(threshold_backward)(rv_ctx *ctx, rv_queue *queue, rv_values x, const float *theta,
                                     const rv_surrogate *surrogate, rv_values g, rv_values gx,
                                     bool add, float *g_theta) {
    threshold_job job = {.x = x, .g = g, .gx = gx, .theta = theta, .add = add};
    (void)queue;
    job.surrogate = surrogate, job.g_theta = g_theta;
    rv_cpu_run(ctx, (x.n + UNIT_BLOCK - 1) / UNIT_BLOCK, threshold_adjoint, &job);
    return RV_OK;
}
