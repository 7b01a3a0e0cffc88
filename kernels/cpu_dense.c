/*
 * Dense products: a register tile of TILE_ROWS x TILE_COLS accumulators over operands copied into
 * the order the tile reads them (Goto, van de Geijn: "Anatomy of high-performance matrix
 * multiplication", 2008). See cpu_dense.h for why not a library: its bits depend on row counts.
 */
#include "kernels/cpu_dense.h"
#include "kernels/cpu_rows.h"
#include "kernels/cpu_vec.h"

#include <string.h>

/* Accumulators, operands of b and one of a fill the registers of a level. */
#if defined(__AVX512F__)
#define TILE_ROWS 14
#else
#define TILE_ROWS 6
#endif
enum {
    TILE_COLS = 2 * RV_WIDTH < RV_LANES ? RV_LANES : 2 * RV_WIDTH,
    INNER = 256,      /* steps of k whose columns of b stay in the first cache */
    BLOCK_ROWS = 252, /* rows of a that stay in the second cache */
    WEIGHT_INNER = 512,
    AHEAD = 16, /* rows of b fetched ahead of their copy */
};

/* ---- the tile ---------------------------------------------------------------------------- */
/* rows x vectors accumulators over k steps. a: element (i, k) at a[i*a_row + k*a_col]. */
RV_INLINE void tile_any(int rows, int vectors, int k, const float *a, size_t a_row, size_t a_col,
                        const float *b, int b_row, float *c, size_t ldc, const float *start) {
    rv_vec sum[TILE_ROWS][2];
    /* Five pointers reach 14 rows with the scaled addresses of the processor. */
    const float *at[5] = {a, a + 3 * a_row, a + 6 * a_row, a + 9 * a_row, a + 12 * a_row};
    RV_UNROLL for (int i = 0; i < rows; i++) {
        RV_UNROLL for (int j = 0; j < vectors; j++) {
            const float *from = start ? start : c + (size_t)i * ldc;
            sum[i][j] = vec_load(from + j * RV_WIDTH);
        }
    }
    for (int step = 0; step < k; step++) {
        rv_vec right[2];
        RV_UNROLL for (int j = 0; j < vectors; j++) right[j] = vec_load(b + j * RV_WIDTH);
        RV_UNROLL for (int i = 0; i < rows; i++) {
            rv_vec left = vec_all(at[i / 3][(size_t)(i % 3) * a_row]);
            RV_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                vec_fma(left, right[j], sum[i][j]);
        }
        RV_UNROLL for (int q = 0; q < (rows + 2) / 3; q++) at[q] += a_col;
        b += b_row;
    }
    RV_UNROLL for (int i = 0; i < rows; i++) {
        RV_UNROLL for (int j = 0; j < vectors; j++)
            vec_store(c + (size_t)i * ldc + j * RV_WIDTH, sum[i][j]);
    }
}

/* start: what the accumulators begin with, one row for all rows; NULL: what is at c. */
typedef void (*tile_fn)(int k, const float *a, size_t lda, const float *b, int b_row, float *c,
                        size_t ldc, const float *start);

/* Rows of a as they lie, and packed [k][rows]: one function for every number of rows. */
#define TILE(rows)                                                                                 \
    static void tile_rows_##rows##_1(int k, const float *a, size_t lda, const float *b, int b_row, \
                                     float *c, size_t ldc, const float *start) {                   \
        tile_any(rows, 1, k, a, lda, 1, b, b_row, c, ldc, start);                                  \
    }                                                                                              \
    static void tile_rows_##rows##_2(int k, const float *a, size_t lda, const float *b, int b_row, \
                                     float *c, size_t ldc, const float *start) {                   \
        tile_any(rows, 2, k, a, lda, 1, b, b_row, c, ldc, start);                                  \
    }                                                                                              \
    static void tile_pack_##rows##_1(int k, const float *a, size_t lda, const float *b, int b_row, \
                                     float *c, size_t ldc, const float *start) {                   \
        (void)lda;                                                                                 \
        tile_any(rows, 1, k, a, 1, rows, b, b_row, c, ldc, start);                                 \
    }                                                                                              \
    static void tile_pack_##rows##_2(int k, const float *a, size_t lda, const float *b, int b_row, \
                                     float *c, size_t ldc, const float *start) {                   \
        (void)lda;                                                                                 \
        tile_any(rows, 2, k, a, 1, rows, b, b_row, c, ldc, start);                                 \
    }
#define TILE_ROW(rows)                                                                             \
    {{tile_rows_##rows##_1, tile_rows_##rows##_2}, {tile_pack_##rows##_1, tile_pack_##rows##_2}},
#if TILE_ROWS == 14
#define TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
#define TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
TILES(TILE)
static const tile_fn tiles[TILE_ROWS][2][2] = {TILES(TILE_ROW)};

/* The tile [rows][cols] at c; cols a multiple of RV_WIDTH. */
RV_INLINE void tile_run(int rows, int cols, bool packed, int k, const float *a, size_t lda,
                        const float *b, int b_row, float *c, size_t ldc, const float *start) {
    int col = 0;
    for (; col + 2 * RV_WIDTH <= cols; col += 2 * RV_WIDTH)
        tiles[rows - 1][packed][1](k, a, lda, b + col, b_row, c + col, ldc,
                                   start ? start + col : NULL);
    if (col < cols)
        tiles[rows - 1][packed][0](k, a, lda, b + col, b_row, c + col, ldc,
                                   start ? start + col : NULL);
}

/* Rows per tile so that the tiles of m rows are about equal. */
/* Nine tiles of 14 rows and one of 2 would waste most of the last: ten of 13 do not. */
static int even_rows(int m) {
    int blocks = (m + TILE_ROWS - 1) / TILE_ROWS;
    return (m + blocks - 1) / blocks;
}

/* ---- a panel of b: columns [col, col + TILE_COLS), packed [k][TILE_COLS] -------------------- */
typedef float quad __attribute__((vector_size(16)));
typedef float quad_loose __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef __clang__
#define QUAD(a, b, w, x, y, z) __builtin_shufflevector(a, b, w, x, y, z)
#else
typedef int32_t quad_order __attribute__((vector_size(16)));
#define QUAD(a, b, w, x, y, z) __builtin_shuffle(a, b, (quad_order){w, x, y, z})
#endif

/* to[k][to_row] = from[row of k][from_row] for a 4 x 4 block */
static inline void transpose4(const float *from, size_t from_row, float *to, size_t to_row) {
    quad r[4], s[4];
    for (int i = 0; i < 4; i++)
        r[i] = *(const quad_loose *)(from + (size_t)i * from_row);
    s[0] = QUAD(r[0], r[1], 0, 4, 1, 5);
    s[1] = QUAD(r[0], r[1], 2, 6, 3, 7);
    s[2] = QUAD(r[2], r[3], 0, 4, 1, 5);
    s[3] = QUAD(r[2], r[3], 2, 6, 3, 7);
    *(quad_loose *)to = QUAD(s[0], s[2], 0, 1, 4, 5);
    *(quad_loose *)(to + to_row) = QUAD(s[0], s[2], 2, 3, 6, 7);
    *(quad_loose *)(to + 2 * to_row) = QUAD(s[1], s[3], 0, 1, 4, 5);
    *(quad_loose *)(to + 3 * to_row) = QUAD(s[1], s[3], 2, 3, 6, 7);
}

/* One row of a panel. Rows lie pages apart, where the processor does not prefetch by itself. */
static inline void panel_row(const float *from, const float *later, int cols, float *to) {
    for (int j = 0; j < cols; j += RV_LANES)
        __builtin_prefetch(later + j);
    for (int j = 0; j < cols; j += RV_WIDTH)
        vec_store(to + j, vec_load(from + j));
}

static void panel_pack(const rv_product *p, int col, int cols, float *panel) {
    if (!p->transposed) {
        for (int k = 0; k < p->k; k++) {
            const float *from = p->b + (size_t)k * p->ldb + col;
            panel_row(from, from + (k + AHEAD < p->k ? AHEAD * p->ldb : 0), cols,
                      panel + (size_t)k * TILE_COLS);
        }
        return;
    }
    /* Columns past the last are zero: c is written in whole vectors. Four rows of the panel at a
     * time, so that each of its lines is written once. */
    int real = p->n - col < cols ? p->n - col : cols, whole = real / 4 * 4;
    for (int k = 0; k < p->k; k += 4) {
        const float *from = p->b + (size_t)col * p->ldb + (size_t)k;
        float *to = panel + (size_t)k * TILE_COLS;
        int now = p->k - k < 4 ? p->k - k : 4, j = 0;
        for (; now == 4 && j < whole; j += 4)
            transpose4(from + (size_t)j * p->ldb, p->ldb, to + j, TILE_COLS);
        for (; j < cols; j++)
            for (int q = 0; q < now; q++)
                to[(size_t)q * TILE_COLS + j] = j < real ? from[(size_t)j * p->ldb + (size_t)q] : 0;
    }
}

/* ---- c = a b ------------------------------------------------------------------------------- */
/* Items are blocks of rows times panels of columns; each copies its own panel, which costs one part
 * in BLOCK_ROWS of the work and lets items run in any order. */
typedef struct product_job {
    const rv_product *p;
    int panels, cols; /* cols: n rounded up */
    float *scratch;   /* per worker: a panel */
    size_t scratch_floats;
    const float *start;
} product_job;

/* One item: one block of rows times one panel. */
static void product_item(void *argument, int item, int worker) {
    const product_job *job = argument;
    const rv_product *p = job->p;
    int row0 = item / job->panels * BLOCK_ROWS, col = item % job->panels * TILE_COLS;
    int rows = p->m - row0 < BLOCK_ROWS ? p->m - row0 : BLOCK_ROWS, each = even_rows(rows);
    int cols = job->cols - col < TILE_COLS ? job->cols - col : TILE_COLS;
    float *panel = job->scratch + (size_t)worker * job->scratch_floats;
    panel_pack(p, col, cols, panel);
    /* A sum cut at INNER goes on from what lies in c: the chain of operations stays one. */
    for (int k0 = 0; k0 == 0 || k0 < p->k; k0 += INNER) {
        int k = p->k - k0 < INNER ? p->k - k0 : INNER;
        const float *start = k0 == 0 && job->start ? job->start + (p->bias ? col : 0) : NULL;
        for (int i = 0; i < rows; i += each) {
            int now = rows - i < each ? rows - i : each;
            size_t row = (size_t)(row0 + i);
            tile_run(now, cols, false, k, p->a + row * p->lda + k0, p->lda,
                     panel + (size_t)k0 * TILE_COLS, TILE_COLS, p->c + row * p->ldc + col, p->ldc,
                     start);
        }
    }
}

/* A sum that does not continue what is there starts from the bias, else from zeros. */
rv_status rv_cpu_product(rv_ctx *ctx, const rv_product *product, rv_arena *arena) {
    static const float zeros[TILE_COLS];
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    product_job job = {.p = product, .cols = rv_round_up(product->n, RV_LANES)};
    job.panels = (job.cols + TILE_COLS - 1) / TILE_COLS;
    job.scratch_floats = (size_t)product->k * TILE_COLS;
    job.start = product->add ? NULL : product->bias ? product->bias : zeros;
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job.scratch_floats * sizeof(float),
                     &job.scratch));
    rv_cpu_run(ctx, (product->m + BLOCK_ROWS - 1) / BLOCK_ROWS * job.panels, product_item, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}

/* ---- gw += x^T g --------------------------------------------------------------------------- */
/* The inner axis is rows of x and g, taken in the order gradients are added; x is copied for a
 * tile's rows to lie together, which also turns bits into floats. */
typedef struct weight_job {
    const rv_signal *x;
    rv_values g;
    float *gw;
    size_t ldw;
    int units, rows; /* of x; per tile */
    int first, k;    /* rows [first, first + k) of the order t descending, b ascending */
    int panels, cols;
    float *left;    /* [tile][k][rows]: x, packed */
    float *scratch; /* per worker: a panel of g, a row of x */
    size_t scratch_floats;
} weight_job;

/* Row r of the order t descending, b ascending. */
static void order_row(const weight_job *job, int r, int *t, int *b) {
    *t = values_frames(job->g) - 1 - r / job->g.B;
    *b = r % job->g.B;
}

/* Without a division for every row. */
static void order_next(const weight_job *job, int *t, int *b) {
    if (++*b < job->g.B) return;
    *b = 0;
    --*t;
}

/* One row of x goes to its place in every tile. */
static void weight_left(void *argument, int item, int worker) {
    const weight_job *job = argument;
    float *row = job->scratch + (size_t)worker * job->scratch_floats;
    int t, b;
    order_row(job, job->first + item, &t, &b);
    const float *x = signal_row(job->x, t, b, row);
    for (int unit = 0; unit < job->units; unit += job->rows) {
        int rows = job->units - unit < job->rows ? job->units - unit : job->rows;
        float *to = job->left + (size_t)unit * (size_t)job->k + (size_t)item * (size_t)rows;
        for (int i = 0; i < rows; i++)
            to[i] = x[unit + i];
    }
}

/* One panel of columns, all tiles of rows: the panel stays in the first cache. */
static void weight_item(void *argument, int item, int worker) {
    const weight_job *job = argument;
    int col = item * TILE_COLS;
    int cols = job->cols - col < TILE_COLS ? job->cols - col : TILE_COLS;
    float *panel = job->scratch + (size_t)worker * job->scratch_floats;
    int t, b, later_t, later_b;
    order_row(job, job->first, &t, &b);
    order_row(job, job->first + (AHEAD < job->k ? AHEAD : 0), &later_t, &later_b);
    for (int k = 0; k < job->k; k++) {
        panel_row(values_row(job->g, t, b) + col, values_row(job->g, later_t, later_b) + col, cols,
                  panel + (size_t)k * TILE_COLS);
        order_next(job, &t, &b);
        if (k + AHEAD + 1 < job->k) order_next(job, &later_t, &later_b);
    }
    for (int k0 = 0; k0 < job->k; k0 += INNER) {
        int k = job->k - k0 < INNER ? job->k - k0 : INNER;
        for (int unit = 0; unit < job->units; unit += job->rows) {
            int rows = job->units - unit < job->rows ? job->units - unit : job->rows;
            const float *left =
                job->left + (size_t)unit * (size_t)job->k + (size_t)k0 * (size_t)rows;
            tile_run(rows, cols, true, k, left, 0, panel + (size_t)k0 * TILE_COLS, TILE_COLS,
                     job->gw + (size_t)unit * job->ldw + col, job->ldw, NULL);
        }
    }
}

rv_status rv_cpu_product_weight(rv_ctx *ctx, const rv_signal *x, rv_values g, float *gw, size_t ldw,
                                rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena), row;
    int total = values_frames(g) * g.B;
    weight_job job = {.x = x, .g = g, .gw = gw, .ldw = ldw, .units = signal_units(x)};
    job.rows = even_rows(job.units);
    job.cols = rv_round_up(g.n, RV_LANES);
    job.panels = (job.cols + TILE_COLS - 1) / TILE_COLS;
    row = row_floats(job.units);
    job.scratch_floats = (size_t)WEIGHT_INNER * TILE_COLS;
    if (job.scratch_floats < row) job.scratch_floats = row;
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job.scratch_floats * sizeof(float),
                     &job.scratch));
    TRY(rv_arena_get(arena, (size_t)job.units, WEIGHT_INNER * sizeof(float), &job.left));
    /* Blocks of rows one after the other; within one, panels in any order. */
    for (; job.first < total; job.first += job.k) {
        job.k = total - job.first < WEIGHT_INNER ? total - job.first : WEIGHT_INNER;
        rv_cpu_run(ctx, job.k, weight_left, &job);
        rv_cpu_run(ctx, job.panels, weight_item, &job);
    }
out:
    rv_arena_release(arena, mark);
    return status;
}
