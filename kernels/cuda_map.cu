/*
 * Linear maps. Event sums and their weight gradients add in the order of the CPU, so they give its
 * bits; dense products are cuBLAS's, the same bits for the same shapes.
 *
 * An event sum has a column of a row per thread: the bits of the row are the same for all of a
 * block, so no thread waits for another, and each active input is one row of weights read side by
 * side. Its weight gradient turns the bits first, so that an input finds the rows of the batch that
 * had it; a thread then adds a column of their adjoints onto the gradient, rows in the CPU's order.
 */
#include "kernels/cuda_device.cuh"

/* There is nothing to derive from a version: both forms read the weights as they lie. */
rv_status rv_cuda_map_pack(rv_ctx *, rv_queue *, const rv_map *, int, void **) {
    return RV_OK;
}
void rv_cuda_map_unpack(rv_ctx *, void *) {
}

/* Row-major c[m][n] (+)= op(a) op(b), each with its distance of rows: cuBLAS has columns, so it is
 * given the transposes in the other order. */
struct product {
    int m, n, k;
    const float *a, *b;
    int lda, ldb;
    bool a_transposed, b_transposed; /* a is [k][m], b is [n][k] */
    float *c;
    int ldc;
    bool add;
};
/* The handle is told the stream each time: a context may be asked to use another queue. */
static rv_status product_run(rv_ctx *ctx, rv_queue *queue, const product *p) {
    const float one = 1, keep = p->add ? 1.0f : 0.0f;
    PASS(rv_cuda_enter(ctx));
    PASS(rv_cuda_blas(ctx, cublasSetStream(ctx->blas, rv_cuda_stream(ctx, queue)), "a product"));
    return rv_cuda_blas(ctx,
                        cublasSgemm(ctx->blas, p->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                    p->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, p->n, p->m, p->k,
                                    &one, p->b, p->ldb, p->a, p->lda, &keep, p->c, p->ldc),
                        "a product");
}

/* Steps that lie without a gap are one product of all rows, else each step is one. */
static bool rows_even(rv_values v) {
    return values_frames(v) == 1 || v.stride_t == (size_t)v.B * (size_t)v.ld;
}

/* ---- forward ------------------------------------------------------------------------------- */
/* A row of the batch per block along x, columns along y. */
static __global__ void event_forward(rv_map map, rv_spikes x, rv_values y) {
    int row = (int)blockIdx.x, t = row / y.B, b = row % y.B;
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (col >= map.ld) return; /* the last block of columns may reach beyond the row */
    values_row(y, t, b)[col] =
        event_sum(spikes_row(x, t, b), (x.n + 31) / 32, map.weight, map.ld, map.bias, col);
}

/* Rows of y begin as the bias; the product adds to them. */
static __global__ void bias_rows(rv_values y, const float *bias, int frames) {
    size_t i = item_index();
    int col = (int)(i % (size_t)y.ld), row = (int)(i / (size_t)y.ld);
    if (row < frames * y.B)
        values_row(y, row / y.B, row % y.B)[col] = bias && col < y.n ? bias[col] : 0.0f;
}

/* Bits as rows of floats, padding zero: what a dense product reads. */
static __global__ void unpack(rv_spikes x, int frames, int ld, float *to) {
    size_t i = item_index();
    int u = (int)(i % (size_t)ld), row = (int)(i / (size_t)ld);
    if (row >= frames * x.B) return;
    uint32_t word = u < x.n ? spikes_row(x, row / x.B, row % x.B)[u / 32] : 0;
    to[i] = (float)(word >> (u % 32) & 1u);
}

/* The values of a signal; bits as floats in the arena. */
static rv_status as_values(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, rv_arena *arena,
                           rv_values *out) {
    *out = x->values;
    if (!x->spikes.bits) return RV_OK;
    int frames = x->spikes.stride_t ? x->spikes.T : 1;
    *out = rv_values_of(NULL, frames, x->spikes.B, x->spikes.n);
    size_t count = (size_t)frames * out->stride_t;
    PASS(ctx->host->arena_get(arena, count, sizeof(float), &out->data));
    RV_LAUNCH(unpack, rv_cuda_grid(count), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), x->spikes,
              frames, out->ld, out->data);
    return rv_cuda_check(ctx, cudaGetLastError(), "unpacking spikes");
}

/* The padding of the weights is zero and so is that of the bias: the product runs over whole rows
 * of y and leaves its padding zero. */
static rv_status dense_forward(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                               rv_values y, rv_arena *arena) {
    rv_values v;
    PASS(as_values(ctx, queue, x, arena, &v));
    int frames = values_frames(v);
    bool merge = rows_even(v) && rows_even(y); /* all steps as rows of one product */
    RV_LAUNCH(bias_rows, rv_cuda_grid((size_t)frames * (size_t)y.B * (size_t)y.ld), RV_CUDA_BLOCK,
              rv_cuda_stream(ctx, queue), y, map->bias, frames);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "a product's bias"));
    for (int t = 0; t < (merge ? 1 : frames); t++) {
        const product p = {merge ? frames * v.B : v.B,
                           map->ld,
                           map->in,
                           values_row(v, t, 0),
                           map->weight,
                           v.ld,
                           map->ld,
                           false,
                           false,
                           values_row(y, t, 0),
                           y.ld,
                           true};
        PASS(product_run(ctx, queue, &p));
    }
    return RV_OK;
}

/* Values have one form; bits have the one the map was given. */
rv_status rv_cuda_map_forward(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                              rv_values y, rv_arena *arena) {
    PASS(rv_cuda_enter(ctx));
    if (!x->spikes.bits || map->form == RV_FORM_DENSE) {
        size_t mark = ctx->host->arena_mark(arena);
        rv_status status = dense_forward(ctx, queue, map, x, y, arena);
        ctx->host->arena_release(arena, mark);
        return status;
    }
    int rows = (x->spikes.stride_t ? x->spikes.T : 1) * x->spikes.B;
    dim3 grid((unsigned)rows, (unsigned)((map->ld + RV_CUDA_BLOCK - 1) / RV_CUDA_BLOCK));
    RV_LAUNCH(event_forward, grid, RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue), *map, x->spikes, y);
    return rv_cuda_check(ctx, cudaGetLastError(), "an event product");
}

/* ---- adjoint ------------------------------------------------------------------------------- */
/* Padding of the rows must come out as zero, and the product does not write it. */
static rv_status rows_zero(rv_ctx *ctx, rv_queue *queue, rv_values v) {
    size_t bytes = sizeof(float) * (size_t)v.B * (size_t)v.ld;
    int frames = values_frames(v);
    if (rows_even(v)) return rv_cuda_zero(ctx, queue, v.data, bytes * (size_t)frames);
    for (int t = 0; t < frames; t++)
        PASS(rv_cuda_zero(ctx, queue, values_row(v, t, 0), bytes));
    return RV_OK;
}

/* The adjoint is never sparse: always a product with the transposed weights. */
rv_status rv_cuda_map_backward(rv_ctx *ctx, rv_queue *queue, const rv_map *map, rv_values g,
                               rv_values gx, bool add, rv_arena *) {
    int frames = values_frames(gx);
    /* A held adjoint serves every step of gx: then steps are products of their own. */
    bool merge = rows_even(g) && rows_even(gx) && values_frames(g) == frames;
    if (!add) PASS(rows_zero(ctx, queue, gx));
    for (int t = 0; t < (merge ? 1 : frames); t++) {
        const product p = {merge ? frames * gx.B : gx.B,
                           map->in,
                           map->out,
                           values_row(g, t, 0),
                           map->weight,
                           g.ld,
                           map->ld,
                           false,
                           true,
                           values_row(gx, t, 0),
                           gx.ld,
                           true};
        PASS(product_run(ctx, queue, &p));
    }
    return RV_OK;
}

/* ---- weight gradient ------------------------------------------------------------------------ */
/* A visit is a row of the batch in the order in which gradients add: t descending, b ascending. */
static __device__ inline int visit_time(int visit, int frames, int B) {
    return frames - 1 - visit / B;
}

/* Bits of 32 inputs at 32 visits, turned: a warp reads a word per lane and gives one word for each
 * of the inputs by ballot. to: [inputs, whole words][words of visits]. */
static __global__ void turn(rv_spikes x, int frames, int visit_words, uint32_t *to) {
    int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    int column = (int)blockIdx.x * warps + (int)threadIdx.x / 32, word = (int)blockIdx.y;
    int visit = column * 32 + lane, rows = frames * x.B;
    if (column >= visit_words) return;
    uint32_t bits =
        visit < rows ? spikes_row(x, visit_time(visit, frames, x.B), visit % x.B)[word] : 0;
    for (int k = 0; k < 32; k++) {
        uint32_t turned = __ballot_sync(RV_CUDA_WARP, bits >> k & 1u);
        if (lane == k) to[((size_t)word * 32 + (size_t)k) * (size_t)visit_words + column] = turned;
    }
}

/* An input per block along x, columns along y. */
static __global__ void event_weight(const uint32_t *turned, int visit_words, int frames,
                                    rv_values g, int ld, float *gw) {
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const uint32_t *bits = turned + (size_t)blockIdx.x * (size_t)visit_words;
    if (col >= ld) return;
    float *to = gw + (size_t)blockIdx.x * (size_t)ld + col, sum = *to;
    for (int w = 0; w < visit_words; w++) /* visits ascending: t descending, b ascending */
        for (uint32_t word = bits[w]; word; word &= word - 1) {
            int visit = w * 32 + __ffs((int)word) - 1;
            sum += values_row(g, visit_time(visit, frames, g.B), visit % g.B)[col];
        }
    *to = sum;
}

/* A column per thread: the sum goes on from what is there, in the order of visits. */
static __global__ void bias_weight(rv_values g, int frames, int ld, float *gb) {
    size_t col = item_index();
    if (col >= (size_t)ld) return;
    float sum = gb[col];
    for (int t = frames - 1; t >= 0; t--)
        for (int b = 0; b < g.B; b++)
            sum += values_row(g, t, b)[col];
    gb[col] = sum;
}

/* Turning costs one pass over the bits; then every input finds its visits as it needs them. */
static rv_status event_gradient(rv_ctx *ctx, rv_queue *queue, const rv_map *map, rv_spikes x,
                                rv_values g, float *gw, rv_arena *arena) {
    int frames = x.stride_t ? x.T : 1, words = rv_words(map->in);
    int visit_words = rv_words(frames * x.B), warps = RV_CUDA_BLOCK / 32;
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    uint32_t *turned = NULL;
    PASS(ctx->host->arena_get(arena, (size_t)words * 32 * (size_t)visit_words, sizeof *turned,
                              &turned));
    RV_LAUNCH(turn, dim3((unsigned)((visit_words + warps - 1) / warps), (unsigned)words),
              RV_CUDA_BLOCK, stream, x, frames, visit_words, turned);
    PASS(rv_cuda_check(ctx, cudaGetLastError(), "turning spikes"));
    RV_LAUNCH(event_weight,
              dim3((unsigned)map->in, (unsigned)((map->ld + RV_CUDA_BLOCK - 1) / RV_CUDA_BLOCK)),
              RV_CUDA_BLOCK, stream, turned, visit_words, frames, g, map->ld, gw);
    return rv_cuda_check(ctx, cudaGetLastError(), "a weight gradient");
}

/* Steps are one product where they lie without a gap, else they add t descending. */
static rv_status dense_gradient(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                                rv_values g, float *gw, rv_arena *arena) {
    rv_values v;
    PASS(as_values(ctx, queue, x, arena, &v));
    int frames = values_frames(v);
    bool merge = rows_even(v) && rows_even(g);
    for (int t = merge ? 0 : frames - 1; t >= 0; t--) {
        const product p = {map->in,
                           map->ld,
                           merge ? frames * v.B : v.B,
                           values_row(v, t, 0),
                           values_row(g, t, 0),
                           v.ld,
                           g.ld,
                           true,
                           false,
                           gw,
                           map->ld,
                           true};
        PASS(product_run(ctx, queue, &p));
    }
    return RV_OK;
}

/* A held input comes as one frame, with the adjoint summed over time. */
rv_status rv_cuda_map_weight(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                             rv_values g, float *gw, float *gb, rv_arena *arena) {
    size_t mark = ctx->host->arena_mark(arena);
    bool event = x->spikes.bits && map->form != RV_FORM_DENSE;
    PASS(rv_cuda_enter(ctx));
    rv_status status = event ? event_gradient(ctx, queue, map, x->spikes, g, gw, arena)
                             : dense_gradient(ctx, queue, map, x, g, gw, arena);
    ctx->host->arena_release(arena, mark);
    if (status != RV_OK || !gb) return status;
    RV_LAUNCH(bias_weight, rv_cuda_grid((size_t)map->ld), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue),
              g, values_frames(g), map->ld, gb);
    return rv_cuda_check(ctx, cudaGetLastError(), "a bias gradient");
}
