/*
 * Delays of whole and fractional steps per channel (Hammouamri, Khalfaoui-Hassani, Masquelier
 * 2024), as cpu_delay.c. Forward a thread is an output and reads two inputs, of the chunk or of the
 * ring; backward a thread is an input and gathers at most two terms, the later step's first,
 * wherever chunk borders fall. All threads of an op read what the one before has finished, so the
 * ring is aged and its adjoint replaced by launches of their own.
 */
#include "kernels/cuda_plane.cuh"

#include <limits.h>

struct delay_args {
    rv_delay delay;
    rv_signal x;
    rv_values y, gx; /* y: out, or its adjoint */
    bool add;
    int T, n, ld;
    int *born;    /* [T][B] the latest start at or before a step: nothing older is seen; or NULL */
    double *sums; /* [T][c] of the delays' gradient */
    float *later; /* [max+1][B][ld] adjoint of the ring, made here */
};

/* The taps of a channel: y[t] = near * x[t-k] + far * x[t-k-1]. An update may have stepped outside
 * the range. */
struct taps {
    int k;
    float near, far;
};
static __device__ inline taps taps_of(const delay_args *a, const float *delays, int u) {
    float d = delays[u / (a->delay.plane.h * a->delay.plane.w)];
    d = d > 0.0f ? d : 0.0f;
    d = d < (float)a->delay.max ? d : (float)a->delay.max;
    float whole = floorf(d);
    return {(int)whole, 1.0f - (d - whole), d - whole};
}

/* Entry of the ring: age 0 is the step before the chunk. */
static __device__ inline size_t ring_at(const delay_args *a, int age, int b, int u) {
    return ((size_t)age * (size_t)a->y.B + (size_t)b) * (size_t)a->ld + (size_t)u;
}
/* The earliest step that step t of sample b sees. */
static __device__ inline int born_at(const delay_args *a, int t, int b) {
    return a->born ? a->born[t * a->y.B + b] : INT_MIN;
}
/* x[s] as step t sees it; s < 0 lies in the ring, -1 the newest. */
static __device__ inline float past(const delay_args *a, int t, int s, int b, int u) {
    if (s < born_at(a, t, b)) return 0;
    return s < 0 ? a->delay.ring[ring_at(a, -1 - s, b, u)] : signal_at(&a->x, s, b, u);
}

/* A sample per thread, steps ascending. */
static __global__ void find_starts(delay_args a) {
    const int b = (int)item_index(), B = a.y.B;
    if (b >= B) return;
    int latest = INT_MIN;
    for (int t = 0; t < a.T; t++) {
        if (starts_at(a.delay.starts, B, t, b)) latest = t;
        a.born[t * B + b] = latest;
    }
}

/* Sizes, and where packed sequences begin. */
static rv_status prepare(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, delay_args *a,
                         rv_arena *arena) {
    a->x = *x, a->T = a->y.T;
    a->n = x->spikes.bits ? x->spikes.n : x->values.n;
    a->ld = rv_round_up(a->n, RV_LANES);
    PASS(rv_cuda_enter(ctx));
    if (!a->delay.starts) return RV_OK;
    PASS(ctx->host->arena_get(arena, (size_t)a->T * (size_t)a->y.B, sizeof *a->born, &a->born));
    RV_LAUNCH(find_starts, rv_cuda_grid((size_t)a->y.B), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue),
              *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "starts of sequences");
}

/* ---- forward ------------------------------------------------------------------------------- */
/* A number of the output per thread, padding included. A whole delay copies exactly, whatever the
 * older value is. */
static __global__ void delay(delay_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.y.ld), row = (int)(i / (size_t)a.y.ld);
    const int t = row / a.y.B, b = row % a.y.B;
    if (t >= a.T) return;
    float y = 0;
    if (u < a.n) {
        const taps tap = taps_of(&a, a.delay.delay, u);
        y = past(&a, t, t - tap.k, b, u);
        if (tap.far != 0.0f) y = tap.near * y + tap.far * past(&a, t, t - tap.k - 1, b, u);
    }
    values_row(a.y, t, b)[u] = y;
}

/* Ages the ring by the chunk, a unit of a sample per thread: entry j becomes x[T-1-j], or what was
 * j - T. Oldest first: an entry is read for an older one before it is written. */
static __global__ void age_ring(delay_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.n), b = (int)(i / (size_t)a.n);
    if (b >= a.y.B) return;
    for (int age = a.delay.max; age >= 0; age--)
        a.delay.ring[ring_at(&a, age, b, u)] = past(&a, a.T - 1, a.T - 1 - age, b, u);
}

static rv_status forward_run(rv_ctx *ctx, rv_queue *queue, const delay_args *a) {
    const size_t rows = (size_t)a->T * (size_t)a->y.B;
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    RV_LAUNCH(delay, rv_cuda_grid(rows * (size_t)a->y.ld), RV_CUDA_BLOCK, stream, *a);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "a delay"));
    RV_LAUNCH(age_ring, rv_cuda_grid((size_t)a->y.B * (size_t)a->n), RV_CUDA_BLOCK, stream, *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "the ring of a delay");
}

rv_status rv_cuda_delay_forward(rv_ctx *ctx, rv_queue *queue, const rv_delay *d, const rv_signal *x,
                                rv_values y, rv_arena *arena) {
    delay_args a = {};
    size_t mark = ctx->host->arena_mark(arena);
    a.delay = *d, a.y = y;
    rv_status status = prepare(ctx, queue, x, &a, arena);
    if (status == RV_OK) status = forward_run(ctx, queue, &a);
    ctx->host->arena_release(arena, mark);
    return status;
}

/* ---- adjoint ------------------------------------------------------------------------------- */
/* Adjoint of x[s]: what later chunks sent, then this chunk's share, the older tap's step first, for
 * it is the later one. */
static __device__ float gather(const delay_args *a, int s, int b, int u) {
    const taps tap = taps_of(a, a->delay.back, u);
    const int near_step = s + tap.k, far_step = near_step + 1, age = a->T - 1 - s;
    float sum = 0;
    if (age <= a->delay.max && s >= born_at(a, a->T - 1, b))
        sum = a->delay.ring_adjoint[ring_at(a, age, b, u)];
    if (tap.far != 0.0f && far_step >= 0 && far_step < a->T && s >= born_at(a, far_step, b))
        sum += tap.far * values_row(a->y, far_step, b)[u];
    if (near_step >= 0 && near_step < a->T && s >= born_at(a, near_step, b))
        sum += tap.near * values_row(a->y, near_step, b)[u];
    return sum;
}

/* A unit of a sample per thread, and of a step; of a held input the sum over time, t descending. */
static __global__ void delay_adjoint(delay_args a, int frames) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.gx.ld), row = (int)(i / (size_t)a.gx.ld);
    const int frame = row / a.y.B, b = row % a.y.B;
    if (frame >= frames) return;
    float *gx = values_row(a.gx, frame, b) + u;
    const bool held = frames == 1;
    for (int s = held ? a.T - 1 : frame; s >= (held ? 0 : frame); s--) {
        float sum = u < a.n ? gather(&a, s, b, u) : 0;
        *gx = a.add || (held && s < a.T - 1) ? *gx + sum : sum;
    }
}

/* The ring as it was before the chunk: steps -1, -2, ... in order of age. */
static __global__ void ring_adjoint(delay_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.ld), row = (int)(i / (size_t)a.ld);
    const int age = row / a.y.B, b = row % a.y.B;
    if (age > a.delay.max) return;
    a.later[i] = u < a.n ? gather(&a, -1 - age, b, u) : 0;
}

/* d y[t] / d delay = x[t-k-1] - x[t-k]: a step and channel per thread, samples ascending. */
static __global__ void delay_sums(delay_args a) {
    const size_t i = item_index(), c = (size_t)a.delay.plane.c;
    const int t = (int)(i / c), n = a.delay.plane.h * a.delay.plane.w;
    const int first = (int)(i % c) * n;
    if (t >= a.T) return;
    const int k = taps_of(&a, a.delay.delay, first).k;
    double sum = 0;
    for (int b = 0; b < a.y.B; b++)
        for (int u = first; u < first + n; u++)
            sum += (double)values_row(a.y, t, b)[u] *
                   ((double)past(&a, t, t - k - 1, b, u) - (double)past(&a, t, t - k, b, u));
    a.sums[i] = sum;
}

static rv_status gradient_run(rv_ctx *ctx, rv_queue *queue, delay_args *a, float *g_delay,
                              rv_arena *arena) {
    const size_t channels = (size_t)a->delay.plane.c, items = (size_t)a->T * channels;
    PASS(ctx->host->arena_get(arena, items, sizeof *a->sums, &a->sums));
    RV_LAUNCH(delay_sums, rv_cuda_grid(items), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), *a);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "a delay's gradient"));
    return rv_cuda_fold_steps(ctx, queue, a->sums, a->T, channels, g_delay);
}

/* The ring's adjoint at the chunk's end is read until all threads have theirs, so the new one is
 * made apart. */
static rv_status backward_run(rv_ctx *ctx, rv_queue *queue, delay_args *a, rv_arena *arena) {
    const size_t entries = (size_t)(a->delay.max + 1) * (size_t)a->y.B * (size_t)a->ld;
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    if (a->gx.data) {
        int frames = values_frames(a->gx);
        RV_LAUNCH(delay_adjoint, rv_cuda_grid((size_t)frames * (size_t)a->y.B * (size_t)a->gx.ld),
                  RV_CUDA_BLOCK, stream, *a, frames);
        PASS(rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of a delay"));
    }
    PASS(ctx->host->arena_get(arena, entries, sizeof *a->later, &a->later));
    RV_LAUNCH(ring_adjoint, rv_cuda_grid(entries), RV_CUDA_BLOCK, stream, *a);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of a ring"));
    return rv_cuda_copy(ctx, queue, a->delay.ring_adjoint, false, a->later, false,
                        entries * sizeof *a->later);
}

rv_status rv_cuda_delay_backward(rv_ctx *ctx, rv_queue *queue, const rv_delay *d,
                                 const rv_signal *x, rv_values g, rv_values gx, bool add,
                                 float *g_delay, rv_arena *arena) {
    delay_args a = {};
    size_t mark = ctx->host->arena_mark(arena);
    a.delay = *d, a.y = g, a.gx = gx, a.add = add;
    if (!d->back) a.delay.back = d->delay;
    rv_status status = prepare(ctx, queue, x, &a, arena);
    if (status == RV_OK && g_delay) status = gradient_run(ctx, queue, &a, g_delay, arena);
    if (status == RV_OK) status = backward_run(ctx, queue, &a, arena);
    ctx->host->arena_release(arena, mark);
    return status;
}
