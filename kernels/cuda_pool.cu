/*
 * Pools over planes, as cpu_pool.c: average, sum and maximum, and their adjoints (PyTorch's
 * AvgPool2d, padding counts in the divisor, and MaxPool2d, padding is minus infinity and the first
 * of equal values wins). Forward a thread is an output and reads its window, rows then columns.
 * Backward a thread is an input and gathers from the windows over it, in the order in which the CPU
 * scatters; so no two threads write one number, and the bits are those of the CPU.
 */
#include "kernels/cuda_plane.cuh"

struct pool_args {
    rv_pool pool;
    rv_signal x;
    rv_values y, gx; /* y: out, or its adjoint */
    int *place;      /* [frames * B][out units] where each window has its maximum, -1: nowhere */
    int frames;
    bool add;
};

/* Where thread `item` of rows of `ld` units works; false: beyond the last row. */
struct spot {
    int t, b, u;
};
static __device__ inline bool spot_of(const pool_args *a, int ld, spot *at) {
    const size_t i = item_index();
    const int row = (int)(i / (size_t)ld);
    *at = {row / a->y.B, row % a->y.B, (int)(i % (size_t)ld)};
    return at->t < a->frames;
}

/* ---- forward ------------------------------------------------------------------------------- */
/* Taps ascending; the divisor is the whole window. */
static __device__ float window_sum(const pool_args *a, spot at, int first, int oy, int ox) {
    const rv_pool *p = &a->pool;
    const rv_window *w = &p->window;
    float sum = 0;
    for (int ky = 0; ky < w->kernel[0]; ky++)
        for (int kx = 0; kx < w->kernel[1]; kx++) {
            int iy = tap_at(w, 0, oy, ky, p->in.h), ix = tap_at(w, 1, ox, kx, p->in.w);
            if (iy >= 0 && ix >= 0) sum += signal_at(&a->x, at.t, at.b, first + iy * p->in.w + ix);
        }
    return p->kind == RV_POOL_AVG ? sum / (float)(w->kernel[0] * w->kernel[1]) : sum;
}

/* The first of the largest, or the last that is not a number. */
static __device__ float window_max(const pool_args *a, spot at, int first, int oy, int ox,
                                   int *place) {
    const rv_pool *p = &a->pool;
    const rv_window *w = &p->window;
    float best = -INFINITY;
    *place = -1;
    for (int ky = 0; ky < w->kernel[0]; ky++)
        for (int kx = 0; kx < w->kernel[1]; kx++) {
            int iy = tap_at(w, 0, oy, ky, p->in.h), ix = tap_at(w, 1, ox, kx, p->in.w);
            if (iy < 0 || ix < 0) continue;
            float value = signal_at(&a->x, at.t, at.b, first + iy * p->in.w + ix);
            if (value > best || value != value || *place < 0)
                best = value, *place = iy * p->in.w + ix;
        }
    return best;
}

/* A number of the output per thread, padding included. */
static __global__ void pool(pool_args a) {
    const rv_pool *p = &a.pool;
    const int plane = p->out.h * p->out.w;
    spot at;
    if (!spot_of(&a, a.y.ld, &at)) return;
    float value = 0;
    if (at.u < a.y.n) {
        int first = at.u / plane * (p->in.h * p->in.w), o = at.u % plane, place;
        value = p->kind == RV_POOL_MAX
                    ? window_max(&a, at, first, o / p->out.w, o % p->out.w, &place)
                    : window_sum(&a, at, first, o / p->out.w, o % p->out.w);
    }
    values_row(a.y, at.t, at.b)[at.u] = value;
}

/* An output's window is read by one thread, its neighbours' overlap in the cache. */
rv_status rv_cuda_pool_forward(rv_ctx *ctx, rv_queue *queue, const rv_pool *p, const rv_signal *x,
                               rv_values y, rv_arena *) {
    pool_args a = {};
    a.pool = *p, a.x = *x, a.y = y, a.frames = signal_frames(x);
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(pool, rv_cuda_grid((size_t)a.frames * (size_t)y.B * (size_t)y.ld), RV_CUDA_BLOCK,
              rv_cuda_stream(ctx, queue), a);
    return rv_cuda_check(ctx, cudaGetLastError(), "a pool");
}

/* ---- adjoint ------------------------------------------------------------------------------- */
/* The places of the maxima are found again from x: keeping them would cost as much tape as the
 * output. */
static __global__ void find_places(pool_args a) {
    const rv_pool *p = &a.pool;
    const int plane = p->out.h * p->out.w;
    spot at;
    if (!spot_of(&a, a.y.n, &at)) return;
    int first = at.u / plane * (p->in.h * p->in.w), o = at.u % plane;
    (void)window_max(&a, at, first, o / p->out.w, o % p->out.w, &a.place[item_index()]);
}

/* Shares of all windows over an input: windows by rows, within a row taps ascending. */
static __device__ float gather_shares(const pool_args *a, const float *g, int iy, int ix,
                                      float sum) {
    const rv_pool *p = &a->pool;
    const rv_window *w = &p->window;
    float factor = p->kind == RV_POOL_AVG ? 1.0f / (float)(w->kernel[0] * w->kernel[1]) : 1.0f;
    for (int ky = w->kernel[0] - 1; ky >= 0; ky--) {
        int oy = output_of(w, 0, iy, ky, p->out.h);
        for (int kx = 0; oy >= 0 && kx < w->kernel[1]; kx++) {
            int ox = output_of(w, 1, ix, kx, p->out.w);
            if (ox >= 0) sum += g[oy * p->out.w + ox] * factor;
        }
    }
    return sum;
}

/* Of the windows whose maximum the input is, ascending. */
static __device__ float gather_maxima(const pool_args *a, const float *g, const int *place, int iy,
                                      int ix, float sum) {
    const rv_pool *p = &a->pool;
    const rv_window *w = &p->window;
    for (int ky = w->kernel[0] - 1; ky >= 0; ky--) {
        int oy = output_of(w, 0, iy, ky, p->out.h);
        for (int kx = w->kernel[1] - 1; oy >= 0 && kx >= 0; kx--) {
            int ox = output_of(w, 1, ix, kx, p->out.w), o = oy * p->out.w + ox;
            if (ox >= 0 && place[o] == iy * p->in.w + ix) sum += g[o];
        }
    }
    return sum;
}

/* A number of the input per thread, padding included. */
static __global__ void pool_adjoint(pool_args a) {
    const rv_pool *p = &a.pool;
    const int plane = p->in.h * p->in.w, units = p->out.c * p->out.h * p->out.w;
    spot at;
    if (!spot_of(&a, a.gx.ld, &at)) return;
    float *gx = values_row(a.gx, at.t, at.b) + at.u, sum = a.add ? *gx : 0;
    if (at.u < a.gx.n) {
        int first = at.u / plane * (p->out.h * p->out.w), i = at.u % plane;
        const float *g = values_row(a.y, at.t, at.b) + first;
        const size_t row = (size_t)at.t * (size_t)a.y.B + (size_t)at.b;
        sum = p->kind == RV_POOL_MAX ? gather_maxima(&a, g, a.place + row * (size_t)units + first,
                                                     i / p->in.w, i % p->in.w, sum)
                                     : gather_shares(&a, g, i / p->in.w, i % p->in.w, sum);
    }
    *gx = sum;
}

/* Places first, in a launch of their own: an input may lie under windows of many outputs. */
static rv_status adjoint_run(rv_ctx *ctx, rv_queue *queue, pool_args *a, rv_arena *arena) {
    const size_t rows = (size_t)a->frames * (size_t)a->y.B, outputs = rows * (size_t)a->y.n;
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    PASS(rv_cuda_enter(ctx));
    if (a->pool.kind == RV_POOL_MAX) {
        PASS(ctx->host->arena_get(arena, outputs, sizeof *a->place, &a->place));
        RV_LAUNCH(find_places, rv_cuda_grid(outputs), RV_CUDA_BLOCK, stream, *a);
        PASS(rv_cuda_check(ctx, cudaGetLastError(), "the maxima of a pool"));
    }
    RV_LAUNCH(pool_adjoint, rv_cuda_grid(rows * (size_t)a->gx.ld), RV_CUDA_BLOCK, stream, *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of a pool");
}

/* Only the maximum reads x; average and sum need its number of steps alone. */
rv_status rv_cuda_pool_backward(rv_ctx *ctx, rv_queue *queue, const rv_pool *p, const rv_signal *x,
                                rv_values g, rv_values gx, bool add, rv_arena *arena) {
    pool_args a = {};
    size_t mark = ctx->host->arena_mark(arena);
    a.pool = *p, a.x = *x, a.y = g, a.gx = gx, a.frames = signal_frames(x), a.add = add;
    rv_status status = adjoint_run(ctx, queue, &a, arena);
    ctx->host->arena_release(arena, mark);
    return status;
}
