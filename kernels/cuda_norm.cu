/*
 * Batch normalisation per channel (Ioffe, Szegedy 2015) over the samples of a micro-batch at each
 * step, or over all steps of a sequence. Sums are doubles in the order of cpu_norm.c: planes in
 * blocks of 256 with eight lanes within a block, samples ascending, steps ascending; so the bits
 * are those of the CPU and depend on neither chunks nor the shape of a launch.
 */
#include "kernels/cuda_plane.cuh"

struct norm_args {
    rv_norm norm; /* its arrays are memory of the device */
    rv_values x, y, g, gx;
    bool add;
    int frames;             /* steps computed */
    double count;           /* values behind one statistic */
    double *first, *second; /* [frames][c] sums of x and of squares, or of g and of g * xhat */
};

/* Row of the statistics that step t uses: those of a sequence have one. */
static __device__ inline size_t norm_at(const norm_args *a, int t) {
    return a->norm.sequence ? 0 : (size_t)t * (size_t)a->norm.plane.c;
}
/* What a step is normalised with. */
static __device__ inline float mean_at(const norm_args *a, int t, int k) {
    return a->norm.training ? a->norm.mean[norm_at(a, t) + (size_t)k] : a->norm.running_mean[k];
}
static __device__ inline float var_at(const norm_args *a, int t, int k) {
    return a->norm.training ? a->norm.var[norm_at(a, t) + (size_t)k] : a->norm.running_var[k];
}

/* Sums of a step and channel over the samples. Planes: a warp for each, four samples at a time
 * whose sums are added in their order. Units (planes of one value): a thread for each, so that
 * neighbours read neighbours. */
template <int moment> static __global__ void moments(norm_args a, rv_values x, double *out) {
    const int c = a.norm.plane.c, n = a.norm.plane.h * a.norm.plane.w;
    const size_t at = item_index() / (n == 1 ? 1 : 32);
    const int t = (int)(at / (size_t)c), k = (int)(at % (size_t)c);
    if (t >= a.frames) return; /* a whole warp, where lanes work together */
    const float mean = moment == LEVEL ? 0.0f : mean_at(&a, t, k);
    double sum = 0;
    if (n == 1) {
        for (int b = 0; b < x.B; b++)
            sum += part_of<moment>(values_row(x, t, b),
                                   moment == PRODUCT ? values_row(a.g, t, b) : NULL, mean, k);
    } else {
        sum = samples_sum<moment>(x, &a.g, t, (size_t)k * (size_t)n, n, mean);
        if (threadIdx.x % 32 != 0) return; /* all lanes have the sum, one writes it */
    }
    out[at] =
        moment == PRODUCT ? sum / sqrt((double)var_at(&a, t, k) + (double)a.norm.epsilon) : sum;
}

/* Units have a thread, planes a warp. */
template <int moment>
static rv_status moments_run(rv_ctx *ctx, rv_queue *queue, const norm_args *a, rv_values x,
                             double *out) {
    size_t items = (size_t)a->frames * (size_t)a->norm.plane.c;
    if (a->norm.plane.h * a->norm.plane.w != 1) items *= 32;
    RV_LAUNCH(moments<moment>, rv_cuda_grid(items), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), *a,
              x, out);
    return rv_cuda_check(ctx, cudaGetLastError(), "sums of a batch normalisation");
}

/* ---- forward ------------------------------------------------------------------------------- */
/* Statistics of a step from its own sum, or of all steps from theirs, t ascending: a thread is a
 * channel, of a step where they differ. */
static __global__ void statistic(norm_args a, const double *sum, float *out) {
    const size_t at = item_index(), c = (size_t)a.norm.plane.c;
    if (at >= (a.norm.sequence ? c : c * (size_t)a.frames)) return;
    double total = a.norm.sequence ? 0 : sum[at];
    for (int t = 0; a.norm.sequence && t < a.frames; t++)
        total += sum[(size_t)t * c + at];
    out[at] = (float)(total / a.count);
}

/* y = (x - mean) * gamma / sigma + beta: a number per thread, padding included. */
static __global__ void normalise(norm_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.y.ld), row = (int)(i / (size_t)a.y.ld);
    const int t = row / a.x.B, b = row % a.x.B, k = u / (a.norm.plane.h * a.norm.plane.w);
    if (t >= a.frames) return;
    float y = 0;
    if (u < a.y.n) {
        float scale =
            (a.norm.gamma ? a.norm.gamma[k] : 1.0f) / sqrtf(var_at(&a, t, k) + a.norm.epsilon);
        float shift = a.norm.beta ? a.norm.beta[k] : 0.0f;
        y = (values_row(a.x, t, b)[u] - mean_at(&a, t, k)) * scale + shift;
    }
    values_row(a.y, t, b)[u] = y;
}

/* A held input has the statistics of its one frame at every step. */
static rv_status args_make(rv_ctx *ctx, const rv_norm *norm, rv_values x, rv_arena *arena,
                           norm_args *a) {
    size_t sums;
    a->norm = *norm, a->x = x, a->frames = values_frames(x);
    a->count =
        (double)x.B * (double)(norm->plane.h * norm->plane.w) * (norm->sequence ? a->frames : 1);
    sums = (size_t)a->frames * (size_t)norm->plane.c;
    PASS(rv_cuda_enter(ctx));
    PASS(ctx->host->arena_get(arena, sums, sizeof(double), &a->first));
    return ctx->host->arena_get(arena, sums, sizeof(double), &a->second);
}

/* Mean first, then the distances from it: one pass over sums of squares would cancel where the mean
 * is large against the deviation. */
static rv_status statistics_run(rv_ctx *ctx, rv_queue *queue, const norm_args *a) {
    const dim3 grid =
        rv_cuda_grid((size_t)a->norm.plane.c * (size_t)(a->norm.sequence ? 1 : a->frames));
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    PASS(moments_run<LEVEL>(ctx, queue, a, a->x, a->first));
    RV_LAUNCH(statistic, grid, RV_CUDA_BLOCK, stream, *a, a->first, a->norm.mean);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "means of a batch normalisation"));
    PASS(moments_run<SQUARE>(ctx, queue, a, a->x, a->second));
    RV_LAUNCH(statistic, grid, RV_CUDA_BLOCK, stream, *a, a->second, a->norm.var);
    return rv_cuda_check(ctx, cudaGetLastError(), "variances of a batch normalisation");
}

static rv_status forward_run(rv_ctx *ctx, rv_queue *queue, const norm_args *a) {
    if (a->norm.training) PASS(statistics_run(ctx, queue, a));
    RV_LAUNCH(normalise, rv_cuda_grid((size_t)a->frames * (size_t)a->x.B * (size_t)a->y.ld),
              RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "a batch normalisation");
}

rv_status rv_cuda_norm_forward(rv_ctx *ctx, rv_queue *queue, const rv_norm *norm, rv_values x,
                               rv_values y, rv_arena *arena) {
    norm_args a = {};
    size_t mark = ctx->host->arena_mark(arena);
    a.y = y;
    rv_status status = args_make(ctx, norm, x, arena, &a);
    if (status == RV_OK) status = forward_run(ctx, queue, &a);
    ctx->host->arena_release(arena, mark);
    return status;
}

/* ---- adjoint ------------------------------------------------------------------------------- */
/* A thread is a channel: every step's sum goes onto the parameter's gradient, t descending, so
 * chunks cannot matter. Only then may the sums of a sequence run together, t ascending, into
 * row 0. */
static __global__ void channel_sums(norm_args a, double *sums, float *gradient) {
    const size_t k = item_index(), c = (size_t)a.norm.plane.c;
    if (k >= c) return;
    for (int t = a.frames - 1; gradient && t >= 0; t--)
        gradient[k] += (float)sums[(size_t)t * c + k];
    for (int t = 1; a.norm.sequence && t < a.frames; t++)
        sums[k] += sums[(size_t)t * c + k];
}

/* gx = gamma/sigma * (g - mean(g) - xhat * mean(g * xhat)), a number per thread; running statistics
 * are constants, and nothing is owed to them. */
static __global__ void denormalise(norm_args a) {
    const size_t i = item_index();
    const int u = (int)(i % (size_t)a.gx.ld), row = (int)(i / (size_t)a.gx.ld);
    const int t = row / a.x.B, b = row % a.x.B, k = u / (a.norm.plane.h * a.norm.plane.w);
    if (t >= a.frames) return;
    float *gx = values_row(a.gx, t, b) + u;
    if (u >= a.gx.n) {
        if (!a.add) *gx = 0;
        return;
    }
    const size_t at = norm_at(&a, t) + (size_t)k;
    float sigma = sqrtf(var_at(&a, t, k) + a.norm.epsilon);
    float scale = (a.norm.gamma ? a.norm.gamma[k] : 1.0f) / sigma;
    float level = a.norm.training ? (float)(a.first[at] / a.count) : 0.0f;
    float slope = a.norm.training ? (float)(a.second[at] / a.count) / sigma : 0.0f;
    float distance = values_row(a.x, t, b)[u] - mean_at(&a, t, k);
    *gx = (a.add ? *gx : 0.0f) + scale * (values_row(a.g, t, b)[u] - level - distance * slope);
}

static rv_status backward_run(rv_ctx *ctx, rv_queue *queue, const norm_args *a, float *g_gamma,
                              float *g_beta) {
    const dim3 channels = rv_cuda_grid((size_t)a->norm.plane.c);
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    PASS(moments_run<LEVEL>(ctx, queue, a, a->g, a->first));
    PASS(moments_run<PRODUCT>(ctx, queue, a, a->x, a->second));
    RV_LAUNCH(channel_sums, channels, RV_CUDA_BLOCK, stream, *a, a->first, g_beta);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "gradients of a batch normalisation"));
    RV_LAUNCH(channel_sums, channels, RV_CUDA_BLOCK, stream, *a, a->second, g_gamma);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "gradients of a batch normalisation"));
    if (!a->gx.data) return RV_OK;
    RV_LAUNCH(denormalise, rv_cuda_grid((size_t)a->frames * (size_t)a->x.B * (size_t)a->gx.ld),
              RV_CUDA_BLOCK, stream, *a);
    return rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of a batch normalisation");
}

rv_status rv_cuda_norm_backward(rv_ctx *ctx, rv_queue *queue, const rv_norm *norm, rv_values x,
                                rv_values g, rv_values gx, bool add, float *g_gamma, float *g_beta,
                                rv_arena *arena) {
    norm_args a = {};
    size_t mark = ctx->host->arena_mark(arena);
    a.g = g, a.gx = gx, a.add = add;
    rv_status status = args_make(ctx, norm, x, arena, &a);
    if (status == RV_OK) status = backward_run(ctx, queue, &a, g_gamma, g_beta);
    ctx->host->arena_release(arena, mark);
    return status;
}
