/*
 * Unit by unit, as cpu_units.c: scale, copy (add, concat), dropout, stateless threshold; and their
 * adjoints. All are bound by memory: a thread is one number of a row, so that neighbours read
 * neighbours. Where a sum over time or samples is wanted, a thread walks it in the order of the
 * CPU; products and sums round apart, so the bits are those of the CPU.
 */
#include "kernels/cuda_device.cuh"
#include "kernels/surrogate.h"

/* ---- scale --------------------------------------------------------------------------------- */
struct factor_args {
    rv_signal x;
    const float *factor; /* [n], or [B][ld] where each sample has its own; NULL: 1 */
    rv_values y;
    int frames;
    bool add, per_sample;
};

/* y (+)= factor * x, a number per thread, padding included. */
static __global__ void scale(factor_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.y.ld), row = (int)(i / (size_t)a.y.ld);
    const int t = row / a.y.B, b = row % a.y.B;
    if (t >= a.frames) return;
    float *y = values_row(a.y, t, b) + u;
    if (u >= a.y.n) {
        if (!a.add) *y = 0;
        return;
    }
    float value = signal_at(&a.x, t, b, u);
    if (a.factor)
        value = a.factor[(a.per_sample ? (size_t)b * (size_t)a.y.ld : 0) + (size_t)u] * value;
    *y = a.add ? *y + value : value;
}

/* Of dropout and its adjoint as well: a mask is factors of each sample's own. */
static rv_status scale_run(rv_ctx *ctx, rv_queue *queue, const factor_args *a) {
    RV_LAUNCH(scale, rv_cuda_grid((size_t)a->frames * (size_t)a->y.B * (size_t)a->y.ld),
              RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "factors of units");
}

rv_status rv_cuda_scale(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, const float *factor,
                        rv_values y, bool add, rv_arena *) {
    const factor_args a = {*x, factor, y, values_frames(y), add, false};
    PASS(rv_cuda_enter(ctx));
    return scale_run(ctx, queue, &a);
}

/* A thread is a unit: its sum has one order, t descending, b ascending. */
static __global__ void scale_gradient(rv_signal x, int frames, rv_values g, float *gradient) {
    const int u = (int)item_index();
    if (u >= g.n) return;
    float sum = gradient[u];
    for (int t = frames - 1; t >= 0; t--)
        for (int b = 0; b < g.B; b++)
            sum += signal_at(&x, t, b, u) * values_row(g, t, b)[u];
    gradient[u] = sum;
}

rv_status rv_cuda_scale_weight(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, rv_values g,
                               float *g_factor, rv_arena *) {
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(scale_gradient, rv_cuda_grid((size_t)g.n), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue),
              *x, signal_frames(x), g, g_factor);
    return rv_cuda_check(ctx, cudaGetLastError(), "gradients of factors");
}

/* ---- copy ---------------------------------------------------------------------------------- */
/* Units [offset, offset + count) of both sides. */
struct copy_args {
    rv_signal x;
    int offset_x;
    rv_values y;
    int offset_y, count, columns; /* columns: with the padding, where that is written */
    int frames_x, frames_y;
    bool add;
};

/* A frame of y per row of threads: one step of x, or, of a single frame, the sum of its steps, t
 * descending. */
static __global__ void copy(copy_args a) {
    size_t i = item_index();
    int u = (int)(i % (size_t)a.columns), row = (int)(i / (size_t)a.columns);
    int t = row / a.y.B, b = row % a.y.B;
    if (t >= a.frames_y) return;
    float *to = values_row(a.y, t, b) + a.offset_y + u;
    if (u >= a.count) {
        *to = 0;
        return;
    }
    /* Steps of x that go into this one: its own, or all of them. */
    int first = a.frames_y == 1 ? a.frames_x - 1 : t, last = a.frames_y == 1 ? 0 : t;
    float sum = a.add ? *to : 0;
    for (int from = first; from >= last; from--) {
        float value = signal_at(&a.x, from, b, a.offset_x + u);
        sum = a.add || from < first ? sum + value : value;
    }
    *to = sum;
}

/* Padding is written where the copy reaches the end of the row and replaces what was there. */
rv_status rv_cuda_copy_units(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, int offset_x,
                             rv_values y, int offset_y, int count, bool add) {
    copy_args a = {*x, offset_x, y, offset_y, count, count, 0, values_frames(y), add};
    bool pads = offset_y + count == y.n && !add;
    a.frames_x = signal_frames(x);
    if (pads) a.columns = y.ld - offset_y;
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(copy, rv_cuda_grid((size_t)a.frames_y * (size_t)y.B * (size_t)a.columns),
              RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), a);
    return rv_cuda_check(ctx, cudaGetLastError(), "copying units");
}

/* ---- dropout ------------------------------------------------------------------------------- */
struct mask_args {
    float *mask; /* [B][ld] */
    int B, n, ld;
    float p;
    uint64_t seed;
    int layer;
    uint32_t epoch;
    const uint64_t *sample; /* memory of the device */
};

/* The factor of every unit of a sample, for all its steps: 1/(1-p) where it stays. A thread draws
 * once, for four neighbours; padding gets numbers nobody reads. */
static __global__ void draw_mask(mask_args a) {
    const size_t i = item_index();
    const int quads = (a.n + 3) / 4, q = (int)(i % (size_t)quads), b = (int)(i / (size_t)quads);
    if (b >= a.B) return;
    float *mask = a.mask + (size_t)b * (size_t)a.ld + (size_t)(4 * q);
    uint32_t words[4];
    rv_random4(words, a.seed, RV_FOR_DROPOUT, a.layer, a.epoch, (uint32_t)a.sample[b], 0,
               (uint32_t)q);
    for (int k = 0; k < 4; k++)
        mask[k] = rv_uniform(words[k]) >= a.p ? 1.0f / (1.0f - a.p) : 0.0f;
}

/* The numbers of the samples are the host's. */
static rv_status mask_run(rv_ctx *ctx, rv_queue *queue, const uint64_t *sample, rv_arena *arena,
                          mask_args *a) {
    uint64_t *ids = NULL;
    PASS(ctx->host->arena_get(arena, (size_t)a->B, sizeof *ids, &ids));
    PASS(ctx->host->arena_get(arena, (size_t)a->B * (size_t)a->ld, sizeof(float), &a->mask));
    PASS(rv_cuda_copy(ctx, queue, ids, false, sample, true, (size_t)a->B * sizeof *ids));
    a->sample = ids;
    RV_LAUNCH(draw_mask, rv_cuda_grid((size_t)a->B * (size_t)((a->n + 3) / 4)), RV_CUDA_BLOCK,
              rv_cuda_stream(ctx, queue), *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "a mask of dropout");
}

/* The mask is drawn anew for the adjoint, from the same numbers; it lives in the arena until the
 * queue has passed both launches (arenas are reused in the order of the queue). */
rv_status rv_cuda_dropout(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, float p, uint64_t seed,
                          int layer, uint32_t epoch, const uint64_t *sample, rv_values y, bool add,
                          rv_arena *arena) {
    size_t mark = ctx->host->arena_mark(arena);
    mask_args mask = {NULL, y.B, y.n, y.ld, p, seed, layer, epoch, NULL};
    PASS(rv_cuda_enter(ctx));
    rv_status status = mask_run(ctx, queue, sample, arena, &mask);
    const factor_args a = {*x, mask.mask, y, values_frames(y), add, true};
    if (status == RV_OK) status = scale_run(ctx, queue, &a);
    ctx->host->arena_release(arena, mark);
    return status;
}

/* ---- stateless threshold ------------------------------------------------------------------- */
/* A warp makes a word, a lane its bit; bits past the last unit stay 0. */
static __global__ void threshold(rv_values x, const float *theta, bool strict, rv_spikes s,
                                 int frames) {
    const size_t i = item_index(), lanes = (size_t)((s.n + 31) / 32) * 32;
    const int u = (int)(i % lanes), row = (int)(i / lanes), t = row / s.B, b = row % s.B;
    if (t >= frames) return; /* a whole warp */
    float value = u < s.n ? values_row(x, t, b)[u] : 0;
    bool spike = u < s.n && (strict ? value > theta[u] : value >= theta[u]);
    uint32_t word = __ballot_sync(RV_CUDA_WARP, spike);
    if (u % 32 == 0) spikes_row(s, t, b)[u / 32] = word;
}

/* A held input still gives bits of every step of s. */
rv_status rv_cuda_threshold_forward(rv_ctx *ctx, rv_queue *queue, rv_values x, const float *theta,
                                    bool strict, rv_spikes s) {
    int frames = s.stride_t ? s.T : 1;
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(threshold, rv_cuda_grid((size_t)frames * (size_t)s.B * (size_t)rv_words(s.n) * 32),
              RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), x, theta, strict, s, frames);
    return rv_cuda_check(ctx, cudaGetLastError(), "a threshold");
}

/* frames: steps of g, or of x where one adjoint is held for all. */
struct threshold_args {
    rv_values x, g, gx;
    const float *theta;
    rv_surrogate surrogate;
    int frames;
    bool add;
};

/* The surrogate takes the spike's place; cuda_neuron.cu does the same inside its step. */
static __device__ inline float threshold_slope(const threshold_args *a, int t, int b, int u) {
    return values_row(a->g, t, b)[u] * rv_surrogate_slope(a->surrogate.kind,
                                                          values_row(a->x, t, b)[u] - a->theta[u],
                                                          a->surrogate.p);
}

/* A thread is a unit of a sample, for a held input takes the sum over its steps, t descending. */
static __global__ void threshold_adjoint(threshold_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.gx.ld), b = (int)(i / (size_t)a.gx.ld);
    const bool held = a.gx.stride_t == 0;
    if (b >= a.g.B) return;
    for (int t = a.frames - 1; t >= 0; t--) {
        float *gx = values_row(a.gx, t, b) + u;
        bool add = a.add || (held && t < a.frames - 1);
        float slope = u < a.x.n ? threshold_slope(&a, t, b, u) : 0;
        if (u < a.x.n)
            *gx = add ? *gx + slope : slope;
        else if (!add)
            *gx = 0;
    }
}

/* A thread is a unit: t descending, b ascending. */
static __global__ void threshold_gradient(threshold_args a, float *g_theta) {
    const int u = (int)item_index();
    if (u >= a.x.n) return;
    float sum = g_theta[u];
    for (int t = a.frames - 1; t >= 0; t--)
        for (int b = 0; b < a.g.B; b++)
            sum -= threshold_slope(&a, t, b, u);
    g_theta[u] = sum;
}

rv_status rv_cuda_threshold_backward(rv_ctx *ctx, rv_queue *queue, rv_values x, const float *theta,
                                     const rv_surrogate *surrogate, rv_values g, rv_values gx,
                                     bool add, float *g_theta) {
    const threshold_args a = {x,  g, gx, theta, *surrogate, g.stride_t ? g.T : values_frames(x),
                              add};
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    PASS(rv_cuda_enter(ctx));
    if (g_theta) {
        RV_LAUNCH(threshold_gradient, rv_cuda_grid((size_t)x.n), RV_CUDA_BLOCK, stream, a, g_theta);
        PASS(rv_cuda_check(ctx, cudaGetLastError(), "gradients of thresholds"));
    }
    if (!gx.data) return RV_OK;
    RV_LAUNCH(threshold_adjoint, rv_cuda_grid((size_t)g.B * (size_t)gx.ld), RV_CUDA_BLOCK, stream,
              a);
    return rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of a threshold");
}
