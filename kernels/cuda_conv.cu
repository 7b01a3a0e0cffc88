/*
 * Convolution by plain loops, in the order of those of cpu_conv.c and so with their bits (oneDNN's
 * differ within rounding). Forward a thread is an output and reads its window; backward a thread is
 * an input and gathers from the windows over it; a weight's gradient is a double per step, made by
 * a thread of its own, and the steps are added t descending. No two threads write one number, and
 * nothing depends on the shape of a launch. Spikes are read as bits and need no form of their own.
 */
#include "kernels/cuda_plane.cuh"

struct conv_args {
    rv_conv conv;
    rv_signal x;
    rv_values y, gx; /* y: out, or its adjoint */
    int frames;
    bool add;
    double *sums; /* [frames][weights or output channels] */
};

/* There is nothing to derive from a version: the weights are read as the file has them. */
rv_status rv_cuda_conv_pack(rv_ctx *, rv_queue *, const rv_conv *, int, void **) {
    return RV_OK;
}
void rv_cuda_conv_unpack(rv_ctx *, void *) {
}

/* Weights of one output channel, and inputs one of its weights reads from: a group's. */
static __host__ __device__ inline int group_inputs(const rv_conv *c) {
    return c->in.c / c->groups;
}
static __host__ __device__ inline int filter_size(const rv_conv *c) {
    return group_inputs(c) * c->window.kernel[0] * c->window.kernel[1];
}

/* ---- forward ------------------------------------------------------------------------------- */
/* From the bias on, weights ascending: channels of the group, then rows and columns of the window.
 * Taps in the padding are left out, as on the CPU. */
static __device__ float window_product(const conv_args *a, int t, int b, int o, int oy, int ox) {
    const rv_conv *c = &a->conv;
    const rv_window *w = &c->window;
    const float *weight = c->weight + (size_t)o * (size_t)filter_size(c);
    const int first = o / (c->out.c / c->groups) * group_inputs(c);
    float sum = c->bias ? c->bias[o] : 0.0f;
    for (int channel = first; channel < first + group_inputs(c); channel++)
        for (int ky = 0; ky < w->kernel[0]; ky++) {
            int iy = tap_at(w, 0, oy, ky, c->in.h);
            for (int kx = 0; kx < w->kernel[1]; kx++, weight++) {
                int ix = tap_at(w, 1, ox, kx, c->in.w);
                if (iy < 0 || ix < 0) continue;
                int u = (channel * c->in.h + iy) * c->in.w + ix;
                sum += *weight * signal_at(&a->x, t, b, u);
            }
        }
    return sum;
}

/* A number of the output per thread, padding included: neighbours are neighbours in a row, read the
 * same weights and inputs side by side. */
static __global__ void conv(conv_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.y.ld), row = (int)(i / (size_t)a.y.ld);
    const int t = row / a.y.B, b = row % a.y.B, plane = a.conv.out.h * a.conv.out.w;
    if (t >= a.frames) return;
    values_row(a.y, t, b)[u] = u < a.y.n
                                   ? window_product(&a, t, b, u / plane, u % plane / a.conv.out.w,
                                                    u % plane % a.conv.out.w)
                                   : 0.0f;
}

/* Both forms of a product are this one. */
rv_status rv_cuda_conv_forward(rv_ctx *ctx, rv_queue *queue, const rv_conv *c, const rv_signal *x,
                               rv_values y, rv_arena *) {
    conv_args a = {};
    a.conv = *c, a.x = *x, a.y = y, a.frames = signal_frames(x);
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(conv, rv_cuda_grid((size_t)a.frames * (size_t)y.B * (size_t)y.ld), RV_CUDA_BLOCK,
              rv_cuda_stream(ctx, queue), a);
    return rv_cuda_check(ctx, cudaGetLastError(), "a convolution");
}

/* ---- adjoint ------------------------------------------------------------------------------- */
/* Over the output channels of the input's group, then the weights that read the input: each reaches
 * at most one output. Summed apart and added once, whatever was there. */
static __device__ float gather(const conv_args *a, const float *g, int channel, int iy, int ix) {
    const rv_conv *c = &a->conv;
    const rv_window *w = &c->window;
    const int outputs = c->out.c / c->groups, first = channel / group_inputs(c) * outputs;
    const int area = w->kernel[0] * w->kernel[1];
    float sum = 0;
    for (int o = first; o < first + outputs; o++) {
        const float *weight = c->weight + (size_t)o * (size_t)filter_size(c) +
                              (size_t)(channel % group_inputs(c) * area);
        for (int ky = 0; ky < w->kernel[0]; ky++) {
            int oy = output_of(w, 0, iy, ky, c->out.h);
            for (int kx = 0; oy >= 0 && kx < w->kernel[1]; kx++) {
                int ox = output_of(w, 1, ix, kx, c->out.w);
                if (ox >= 0)
                    sum += weight[ky * w->kernel[1] + kx] * g[(o * c->out.h + oy) * c->out.w + ox];
            }
        }
    }
    return sum;
}

/* A number of the input per thread, padding included. */
static __global__ void conv_adjoint(conv_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.gx.ld), row = (int)(i / (size_t)a.gx.ld);
    const int t = row / a.gx.B, b = row % a.gx.B, plane = a.conv.in.h * a.conv.in.w;
    if (t >= a.frames) return;
    float *gx = values_row(a.gx, t, b) + u, sum = 0;
    if (u < a.gx.n)
        sum = gather(&a, values_row(a.y, t, b), u / plane, u % plane / a.conv.in.w,
                     u % plane % a.conv.in.w);
    *gx = a.add ? *gx + sum : sum;
}

/* The weights are those of the pass's own version, or of another one where updates are late. */
rv_status rv_cuda_conv_backward(rv_ctx *ctx, rv_queue *queue, const rv_conv *c, rv_values g,
                                rv_values gx, bool add, rv_arena *) {
    conv_args a = {};
    a.conv = *c, a.y = g, a.gx = gx, a.frames = values_frames(gx), a.add = add;
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(conv_adjoint, rv_cuda_grid((size_t)a.frames * (size_t)gx.B * (size_t)gx.ld),
              RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), a);
    return rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of a convolution");
}

/* ---- weight gradient ------------------------------------------------------------------------ */
/* A weight's sum of one step per thread: samples, rows and columns of the output ascending. */
static __global__ void weight_sums(conv_args a) {
    const rv_conv *c = &a.conv;
    const rv_window *w = &c->window;
    const int filter = filter_size(c), area = w->kernel[0] * w->kernel[1];
    const size_t i = item_index(), weights = (size_t)c->out.c * (size_t)filter;
    const int t = (int)(i / weights), o = (int)(i % weights) / filter,
              k = (int)(i % weights) % filter;
    if (t >= a.frames) return;
    const int channel = o / (c->out.c / c->groups) * group_inputs(c) + k / area;
    double sum = 0;
    for (int b = 0; b < a.y.B; b++) {
        const float *g = values_row(a.y, t, b) + (size_t)o * (size_t)(c->out.h * c->out.w);
        for (int oy = 0; oy < c->out.h; oy++) {
            int iy = tap_at(w, 0, oy, k % area / w->kernel[1], c->in.h);
            for (int ox = 0; iy >= 0 && ox < c->out.w; ox++) {
                int ix = tap_at(w, 1, ox, k % w->kernel[1], c->in.w);
                if (ix < 0) continue;
                int u = (channel * c->in.h + iy) * c->in.w + ix;
                sum += (double)signal_at(&a.x, t, b, u) * (double)g[oy * c->out.w + ox];
            }
        }
    }
    a.sums[i] = sum;
}

/* A step and output channel per warp: its lanes share the planes. */
static __global__ void bias_sums(conv_args a) {
    const size_t at = item_index() / 32;
    const int t = (int)(at / (size_t)a.conv.out.c), o = (int)(at % (size_t)a.conv.out.c);
    const int n = a.conv.out.h * a.conv.out.w;
    if (t >= a.frames) return; /* a whole warp */
    double sum = samples_sum<LEVEL>(a.y, NULL, t, (size_t)o * (size_t)n, n, 0);
    if (threadIdx.x % 32 == 0) a.sums[at] = sum;
}

/* Onto what is there, in the order of steps in which chunks arrive. */
static __global__ void fold_steps(const double *sums, int frames, size_t count, float *gradient) {
    const size_t i = item_index();
    if (i >= count) return;
    float sum = gradient[i];
    for (int t = frames - 1; t >= 0; t--)
        sum += (float)sums[(size_t)t * count + i];
    gradient[i] = sum;
}
rv_status rv_cuda_fold_steps(rv_ctx *ctx, rv_queue *queue, const double *sums, int frames,
                             size_t count, float *gradient) {
    RV_LAUNCH(fold_steps, rv_cuda_grid(count), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), sums,
              frames, count, gradient);
    return rv_cuda_check(ctx, cudaGetLastError(), "adding up steps");
}

/* Sums of steps in the arena: steps run side by side, which one sum per weight would not let
 * them. */
static rv_status weight_run(rv_ctx *ctx, rv_queue *queue, conv_args *a, float *gw, float *gb,
                            rv_arena *arena) {
    const size_t channels = (size_t)a->conv.out.c, frames = (size_t)a->frames;
    const size_t weights = channels * (size_t)filter_size(&a->conv);
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    PASS(rv_cuda_enter(ctx));
    PASS(ctx->host->arena_get(arena, frames * weights, sizeof *a->sums, &a->sums));
    RV_LAUNCH(weight_sums, rv_cuda_grid(frames * weights), RV_CUDA_BLOCK, stream, *a);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "a convolution's weight gradient"));
    PASS(rv_cuda_fold_steps(ctx, queue, a->sums, a->frames, weights, gw));
    if (!gb) return RV_OK;
    RV_LAUNCH(bias_sums, rv_cuda_grid(frames * channels * 32), RV_CUDA_BLOCK, stream, *a);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "a convolution's bias gradient"));
    return rv_cuda_fold_steps(ctx, queue, a->sums, a->frames, channels, gb);
}

/* The sums of weights, at least one a channel, leave room for those of the bias after them. */
rv_status rv_cuda_conv_weight(rv_ctx *ctx, rv_queue *queue, const rv_conv *c, const rv_signal *x,
                              rv_values g, float *gw, float *gb, rv_arena *arena) {
    conv_args a = {};
    size_t mark = ctx->host->arena_mark(arena);
    a.conv = *c, a.x = *x, a.y = g, a.frames = signal_frames(x);
    rv_status status = weight_run(ctx, queue, &a, gw, gb, arena);
    ctx->host->arena_release(arena, mark);
    return status;
}
