/*
 * Optimisers (optim.h), norms, the rate encoder and spike counts: an element, a block of 256, a
 * word of bits per thread, so everything has the order and the bits of the CPU.
 */
#include "kernels/cuda_device.cuh"
#include "kernels/optim.h"

/* ---- updates ------------------------------------------------------------------------------- */
struct update_args {
    int kind;
    size_t n;
    float *weight;
    const float *grad;
    float *slot[3];
    rv_optim_factors f;
    rv_limit limit;
    uint32_t *bad;
};

/* Absent slots are a number nobody keeps. */
static __device__ inline float updated(const update_args *u, size_t i, float *s) {
    float w = u->weight[i], grad = u->grad[i];
    if (u->kind == RV_OPTIM_ADAM || u->kind == RV_OPTIM_ADAMW)
        return rv_update_adam(&u->f, w, grad, &s[0], &s[1]);
    if (u->kind == RV_OPTIM_RMSPROP) return rv_update_rmsprop(&u->f, w, grad, &s[0], &s[1], &s[2]);
    return !u->slot[0] ? rv_update_plain(&u->f, w, grad)
                       : rv_update_momentum(&u->f, w, grad, &s[0]);
}

/* Every element on its own: the order of threads cannot matter. */
static __global__ void update(update_args u) {
    size_t i = item_index();
    if (i >= u.n) return;
    float s[3], grad = u.grad[i]; /* momenta, squares, means: rows of optim.h say which */
    for (int k = 0; k < 3; k++)
        s[k] = u.slot[k] ? u.slot[k][i] : 0;
    float w = rv_limited(u.limit, updated(&u, i, s));
    u.weight[i] = w;
    for (int k = 0; k < 3; k++)
        if (u.slot[k]) u.slot[k][i] = s[k];
    /* x*x*0 is 0, or not a number where x or its square is not finite */
    if (u.bad && grad * grad * 0.0f + w * w * 0.0f != 0) atomicOr(u.bad, 1u);
}

/* The factors are made here, in double, as on the CPU. */
rv_status rv_cuda_optim_update(rv_ctx *ctx, rv_queue *queue, const rv_optim_update *u) {
    update_args args = {};
    if (u->kind < 0 || u->kind >= RV_OPTIMS)
        return rv_cuda_fail(ctx->host, RV_INTERNAL, "device " RV_PLUGIN_NAME " has no optimiser %d",
                            u->kind);
    if (u->from || u->trend || u->view[0] || u->view[1])
        return rv_cuda_fail(ctx->host, RV_CONFIG,
                            "device " RV_PLUGIN_NAME " makes no versions of late updates");
    if (u->n == 0) return RV_OK;
    args.kind = u->kind, args.n = u->n, args.weight = u->weight, args.grad = u->grad;
    for (int k = 0; k < 3; k++)
        args.slot[k] = u->slot[k];
    args.f = rv_optim_factors_of(u);
    args.limit = u->limit, args.bad = u->bad;
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(update, rv_cuda_grid(u->n), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), args);
    return rv_cuda_check(ctx, cudaGetLastError(), "an update");
}

/* ---- norm ---------------------------------------------------------------------------------- */
/* Eight sums within a block of 256, as the CPU has them. */
static __global__ void squares(const float *x, size_t n, size_t blocks, double *part) {
    size_t block = item_index();
    if (block >= blocks) return;
    size_t i = block * 256, last = i + 256 < n ? i + 256 : n;
    double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0}; /* every eighth number, then a tree */
    for (; i + 8 <= last; i += 8)
        for (int k = 0; k < 8; k++)
            lane[k] += (double)x[i + (size_t)k] * (double)x[i + (size_t)k];
    for (int k = 0; i < last; i++, k++)
        lane[k] += (double)x[i] * (double)x[i];
    part[block] =
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* The blocks are added by the host, in order. */
rv_status rv_cuda_norm2(rv_ctx *ctx, rv_queue *queue, const float *x, size_t n, double *sum) {
    size_t blocks = (n + 255) / 256;
    double *part = NULL;
    *sum = 0;
    if (n == 0) return RV_OK;
    PASS(rv_cuda_scratch(ctx, blocks * sizeof *part, &part));
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(squares, rv_cuda_grid(blocks), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), x, n,
              blocks, part);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "a norm"));
    PASS(rv_cuda_queue_sync(ctx, queue));
    for (size_t k = 0; k < blocks; k++) /* unified memory, and its queue has ended */
        *sum += part[k];
    return RV_OK;
}

/* ---- spikes -------------------------------------------------------------------------------- */
/* One frame per sample; steps t0 ... of it. */
struct encode_args {
    rv_values frame;
    const uint64_t *sample;
    uint64_t seed;
    uint32_t epoch;
    int t0;
    rv_spikes out;
};

/* A thread draws the 32 units of a word: four outputs of the generator serve four neighbours. */
static __global__ void encode(encode_args a) {
    size_t i = item_index();
    int words = (a.out.n + 31) / 32, w = (int)(i % (size_t)words);
    int row = (int)(i / (size_t)words), t = row / a.out.B, b = row % a.out.B;
    if (row >= a.out.T * a.out.B) return;
    const float *frame = values_row(a.frame, 0, b);
    uint32_t word = 0;
    for (int q = 0; q < 8; q++) {
        uint32_t random[4];
        rv_random4(random, a.seed, RV_FOR_ENCODE, 0, a.epoch, (uint32_t)a.sample[b],
                   (uint32_t)(a.t0 + t), (uint32_t)(w * 8 + q));
        for (int k = 0; k < 4; k++) {
            int u = w * 32 + q * 4 + k;
            if (u < a.out.n && rv_uniform(random[k]) < frame[u]) word |= 1u << (q * 4 + k);
        }
    }
    spikes_row(a.out, t, b)[w] = word;
}

/* The numbers of the samples are the host's. */
rv_status rv_cuda_encode_rate(rv_ctx *ctx, rv_queue *queue, rv_values frame, const uint64_t *sample,
                              uint64_t seed, uint32_t epoch, int t0, rv_spikes out) {
    uint64_t *ids = NULL;
    size_t bytes = (size_t)out.B * sizeof *ids;
    size_t items = (size_t)out.T * (size_t)out.B * (size_t)rv_words(out.n);
    PASS(rv_cuda_scratch(ctx, bytes, &ids));
    PASS(rv_cuda_copy(ctx, queue, ids, false, sample, true, bytes));
    const encode_args args = {frame, ids, seed, epoch, t0, out};
    RV_LAUNCH(encode, rv_cuda_grid(items), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), args);
    return rv_cuda_check(ctx, cudaGetLastError(), "the rate encoder");
}

/* A row of the batch per thread; whole numbers add up in any order. */
static __global__ void count(rv_spikes s, unsigned long long *counts) {
    size_t row = item_index();
    if (row >= (size_t)s.T * (size_t)s.B) return;
    int t = (int)(row / (size_t)s.B), b = (int)(row % (size_t)s.B);
    const uint32_t *bits = spikes_row(s, t, b);
    unsigned long long sum = 0;
    for (int w = 0; w < (s.n + 31) / 32; w++)
        sum += (unsigned long long)__popc(bits[w]);
    atomicAdd(&counts[b], sum);
}

/* Of a view of some samples of a larger batch, rows lie as in that batch: stride_t says how far the
 * steps are apart. */
rv_status rv_cuda_count_spikes(rv_ctx *ctx, rv_queue *queue, rv_spikes s, int64_t *counts) {
    unsigned long long *sums = NULL;
    size_t bytes = (size_t)s.B * sizeof *sums;
    if (s.T <= 0 || s.B <= 0) return RV_OK;
    PASS(rv_cuda_scratch(ctx, bytes, &sums));
    PASS(rv_cuda_zero(ctx, queue, sums, bytes));
    RV_LAUNCH(count, rv_cuda_grid((size_t)s.T * (size_t)s.B), RV_CUDA_BLOCK,
              rv_cuda_stream(ctx, queue), s, sums);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "counting spikes"));
    PASS(rv_cuda_queue_sync(ctx, queue));
    for (int b = 0; b < s.B; b++)
        counts[b] += (int64_t)sums[b];
    return RV_OK;
}
