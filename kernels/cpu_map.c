/* Linear maps: each op in the form the map was given. */
#include "kernels/cpu_amx.h"
#include "kernels/cpu_dense.h"
#include "kernels/cpu_event.h"
#include "kernels/cpu_rows.h"

/* Dense products in float32 copy panels of the weights as they go, event sums read them as they
 * lie: only products in bf16 derive something from a version, the terms of the weights. */
rv_status RV_CPU(map_pack)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, int rows,
                           void **packed) {
    rv_status status = RV_OK;
    (void)ctx, (void)queue, (void)map, (void)rows, (void)packed;
#ifdef RV_AMX
    if (map->adjoint && rv_cpu_amx_pays(ctx, map->in, map->out)) {
        if (!*packed)
            TRY(rv_alloc(rv_cpu_amx_terms(map->in, map->out), sizeof(uint16_t), "packed weights",
                         packed));
        rv_cpu_amx_pack(ctx, map->weight, (size_t)map->ld, map->in, map->out, *packed);
    }
out:
#endif
    return status;
}

void RV_CPU(map_unpack)(rv_ctx *ctx, void *packed) {
    (void)ctx;
    rv_free(packed);
}

/* Whether all rows of a view are the same distance apart, so that steps can be merged. */
static bool rows_even(rv_values v) {
    return values_frames(v) == 1 || v.stride_t == (size_t)v.B * (size_t)v.ld;
}

/* ---- forward ------------------------------------------------------------------------------ */
/* Rows [first, ...) of a signal of bits as floats. */
typedef struct unpack_job {
    const rv_signal *x;
    int first;
    float *to;
    size_t ld;
} unpack_job;

/* Rows need not be whole words of floats apart in the source, but are in `to`. */
static void unpack_item(void *argument, int item, int worker) {
    const unpack_job *job = argument;
    int row = job->first + item, B = job->x->spikes.B;
    (void)worker;
    (void)signal_row(job->x, row / B, row % B, job->to + (size_t)item * job->ld);
}

/* Rows of spikes unpacked to floats at a time: as many as a product takes as a block, per thread */
static rv_status dense_spikes(rv_ctx *ctx, const rv_map *map, const rv_signal *x, rv_values y,
                              rv_arena *arena) {
    rv_status status = RV_OK;
    enum { ROWS = 252 };
    /* a block of rows for every thread, so that all have work between two unpackings */
    int rows = signal_frames(x) * y.B, each = ROWS * rv_cpu_threads(ctx);
    unpack_job job = {.x = x, .ld = row_floats(map->in)};
    TRY(rv_arena_get(arena, (size_t)(rows < each ? rows : each), job.ld * sizeof(float), &job.to));
    for (; job.first < rows; job.first += each) {
        rv_product p = {.n = map->out,
                        .k = map->in,
                        .a = job.to,
                        .lda = job.ld,
                        .b = map->weight,
                        .ldb = (size_t)map->ld,
                        .c = values_row(y, job.first / y.B, job.first % y.B),
                        .ldc = (size_t)y.ld,
                        .bias = map->bias};
        p.m = rows - job.first < each ? rows - job.first : each;
        rv_cpu_run(ctx, p.m, unpack_item, &job);
        TRY(rv_cpu_product(ctx, &p, arena));
    }
out:
    return status;
}

/* Steps that follow each other without a gap are one product of many rows. */
static rv_status dense_forward(rv_ctx *ctx, const rv_map *map, const rv_signal *x, rv_values y,
                               rv_arena *arena) {
    rv_status status = RV_OK;
    rv_values v = x->values;
    int frames = values_frames(v);
    bool merge = rows_even(v) && rows_even(y); /* bits do not depend on it */
    rv_product p = {.m = merge ? frames * v.B : v.B,
                    .n = map->out,
                    .k = map->in,
                    .lda = (size_t)v.ld,
                    .b = map->weight,
                    .ldb = (size_t)map->ld,
                    .ldc = (size_t)y.ld,
                    .bias = map->bias};
    for (int t = 0; t < (merge ? 1 : frames); t++) {
        p.a = values_row(v, t, 0);
        p.c = values_row(y, t, 0);
        TRY(rv_cpu_product(ctx, &p, arena));
    }
out:
    return status;
}

/* Values have one form; bits have the one the map was given. */
rv_status RV_CPU(map_forward)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                              rv_values y, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    (void)queue;
    if (!x->spikes.bits)
        status = dense_forward(ctx, map, x, y, arena);
    else if (map->form == RV_FORM_DENSE)
        status = dense_spikes(ctx, map, x, y, arena);
    else
        status = rv_cpu_event_forward(ctx, map, x->spikes, y, arena);
    rv_arena_release(arena, mark);
    return status;
}

/* ---- adjoints ----------------------------------------------------------------------------- */
/* The adjoint is never sparse: always a product with the transposed weights. */
rv_status RV_CPU(map_backward)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, rv_values g,
                               rv_values gx, bool add, rv_arena *arena) {
    rv_status status = RV_OK;
    int frames = values_frames(gx);
    bool merge = rows_even(g) && rows_even(gx) && values_frames(g) == frames;
    rv_product p = {.m = merge ? frames * gx.B : gx.B,
                    .n = map->in,
                    .k = map->out, /* the sum runs over outputs */
                    .lda = (size_t)g.ld,
                    .b = map->weight,
                    .ldb = (size_t)map->ld,
                    .transposed = true,
                    .ldc = (size_t)gx.ld,
                    .add = add};
    (void)queue;
    for (int t = 0; t < (merge ? 1 : frames); t++) {
        p.a = values_row(g, t, 0);
        p.c = values_row(gx, t, 0);
#ifdef RV_AMX
        if (map->packed) {
            TRY(rv_cpu_amx_product(ctx, &p, map->packed, arena));
            continue;
        }
#endif
        TRY(rv_cpu_product(ctx, &p, arena));
    }
out:
    return status;
}

/* Adjoints of a dense map added up: the gradient of its bias. */
typedef struct bias_job {
    rv_values g;
    float *gb;
} bias_job;

/* Columns are independent; within one, t descending and b ascending as everywhere. */
static void bias_item(void *argument, int item, int worker) {
    const bias_job *job = argument;
    int col = item * EVENT_TILE, ld = rv_round_up(job->g.n, RV_LANES);
    int cols = ld - col < EVENT_TILE ? ld - col : EVENT_TILE;
    (void)worker;
    for (int t = values_frames(job->g) - 1; t >= 0; t--)
        for (int b = 0; b < job->g.B; b++) {
            const float *g = values_row(job->g, t, b) + col;
            for (int j = 0; j < cols; j++)
                job->gb[col + j] += g[j];
        }
}

/* Event form adds the bias's part while a tile of g is near; dense form makes a pass of its own. */
rv_status RV_CPU(map_weight)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                             rv_values g, float *gw, float *gb, rv_arena *arena) {
    rv_status status = RV_OK;
    (void)queue;
    if (x->spikes.bits && map->form != RV_FORM_DENSE)
        return rv_cpu_event_weight(ctx, map, x->spikes, g, gw, gb, arena);
    TRY(rv_cpu_product_weight(ctx, x, g, gw, (size_t)map->ld, arena));
    if (gb) {
        bias_job job = {g, gb};
        rv_cpu_run(ctx, (map->ld + EVENT_TILE - 1) / EVENT_TILE, bias_item, &job);
    }
out:
    return status;
}
