/* Products on the tiles of AMX: see cpu_amx.h. */
#include "kernels/cpu_amx.h"
#include "kernels/cpu_rows.h"
#include "kernels/cpu_vec.h"

#include <string.h>

#ifdef RV_AMX

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512bf16")))
/* Tile instructions do not tell the compiler which memory they touch. */
#define FENCE() __asm__ volatile("" ::: "memory")

/* A tile is SIDE rows of 64 bytes. Operands are packed as blocks of BLOCK numbers, one for SPAN
 * rows of a (columns of b) and STEP of the inner axis: for each term two tiles. Tiles of a hold
 * rows of 32 numbers, tiles of b pairs of the inner axis for 16 columns. */
enum { SIDE = 16, STEP = 32, SPAN = 2 * SIDE, TILE = SIDE * STEP, TERMS = 3 };
enum { BLOCK = TERMS * 2 * TILE };
/* Packed rows of a stay in the second cache beside a panel of b. */
enum { CACHE = 1 << 17, MOST_ROWS = 128 };

static int steps_of(int k) {
    return (k + STEP - 1) / STEP;
}

/* Below these a tile is mostly padding, and float32 is as fast. */
bool rv_cpu_amx_pays(const rv_ctx *ctx, int n, int k) {
    enum { LEAST = 64 };
    return rv_cpu_isa(ctx) == RV_ISA_AMX && n >= LEAST && k >= LEAST;
}

size_t rv_cpu_amx_terms(int n, int k) {
    return (size_t)((n + SPAN - 1) / SPAN) * (size_t)steps_of(k) * BLOCK;
}

/* ---- terms ------------------------------------------------------------------------------- */
AMX static inline __m512 widen(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Three terms of up to 32 floats; those past `count` are zero and not read. What is left after a
 * term is exact: it has fewer bits than the float had. */
AMX static inline void split(const float *from, int count, __m512i term[TERMS]) {
    uint32_t mask = count >= STEP ? UINT32_MAX : (1u << count) - 1;
    __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, from);
    __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> SIDE), from + SIDE);
    RV_UNROLL for (int q = 0; q < TERMS; q++) {
        term[q] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(term[q])));
        high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64(term[q], 1)));
    }
}

/* Rows of a, those past `rows` zero up to a whole span: [span][step][term][2 tiles]. */
AMX static void pack_rows(const float *a, size_t lda, int rows, int k, uint16_t *to) {
    int steps = steps_of(k);
    for (int r = 0; r < rv_round_up(rows, SPAN); r++) {
        uint16_t *tile = to + (size_t)(r / SPAN * steps) * BLOCK + r % SPAN * STEP;
        for (int s = 0; s < steps; s++, tile += BLOCK) {
            __m512i term[TERMS] = {_mm512_setzero_si512(), _mm512_setzero_si512(),
                                   _mm512_setzero_si512()};
            if (r < rows) split(a + (size_t)r * lda + s * STEP, k - s * STEP, term);
            RV_UNROLL for (int q = 0; q < TERMS; q++)
                _mm512_store_si512(tile + q * 2 * TILE, term[q]);
        }
    }
}

typedef struct pack_job {
    const float *b;
    size_t ldb;
    int n, k;
    uint16_t *to;
} pack_job;

/* One panel of SPAN columns. A tile's pairs are the 32-bit numbers of 16 rows of b, transposed. */
AMX static void pack_panel(void *argument, int panel, int worker) {
    const pack_job *job = argument;
    int steps = steps_of(job->k);
    const __m512i place =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(SIDE));
    (void)worker;
    for (int j = 0; j < SPAN; j++) {
        int col = panel * SPAN + j;
        uint16_t *tile = job->to + (size_t)(panel * steps) * BLOCK + j / SIDE * TILE + j % SIDE * 2;
        for (int s = 0; s < steps; s++, tile += BLOCK) {
            __m512i term[TERMS] = {_mm512_setzero_si512(), _mm512_setzero_si512(),
                                   _mm512_setzero_si512()};
            if (col < job->n)
                split(job->b + (size_t)col * job->ldb + s * STEP, job->k - s * STEP, term);
            RV_UNROLL for (int q = 0; q < TERMS; q++)
                _mm512_i32scatter_epi32(tile + q * 2 * TILE, place, term[q], 4);
        }
    }
}

void rv_cpu_amx_pack(rv_ctx *ctx, const float *b, size_t ldb, int n, int k, uint16_t *packed) {
    pack_job job = {b, ldb, n, k, packed};
    rv_cpu_run(ctx, (n + SPAN - 1) / SPAN, pack_panel, &job);
}

/* ---- tiles ------------------------------------------------------------------------------- */
typedef struct tile_config { /* palette 1: eight tiles of 16 rows of 64 bytes */
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

/* The state of tiles is a thread's; it is released after every item, so that switching threads
 * stays cheap. */
AMX static void tiles_begin(void) {
    tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++)
        config.bytes[i] = 64, config.rows[i] = SIDE;
    FENCE();
    _tile_loadconfig(&config);
}

/* Tiles 0 to 3 += rows of a (4, 5) times columns of b (6, 7): four chains hide each other's
 * latency. */
#define MULTIPLY                                                                                   \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    _tile_dpbf16ps(1, 4, 7);                                                                       \
    _tile_dpbf16ps(2, 5, 6);                                                                       \
    _tile_dpbf16ps(3, 5, 7)
#define LOAD(first, second, from)                                                                  \
    _tile_loadd(first, from, 64);                                                                  \
    _tile_loadd(second, (from) + TILE, 64)

/* The order of terms is the one with the fewest loads. */
AMX static inline void tiles_six(int steps, const uint16_t *a, const uint16_t *b) {
    enum { TERM = 2 * TILE };
    for (int s = 0; s < steps; s++, a += BLOCK, b += BLOCK) {
        LOAD(4, 5, a);
        LOAD(6, 7, b);
        MULTIPLY;
        LOAD(6, 7, b + TERM);
        MULTIPLY;
        LOAD(4, 5, a + TERM);
        MULTIPLY;
        LOAD(6, 7, b);
        MULTIPLY;
        LOAD(4, 5, a + 2 * TERM);
        MULTIPLY;
        LOAD(4, 5, a);
        LOAD(6, 7, b + 2 * TERM);
        MULTIPLY;
    }
}

AMX static inline void sums_load(const float *c, size_t ldc) {
    _tile_loadd(0, c, ldc * sizeof *c);
    _tile_loadd(1, c + SIDE, ldc * sizeof *c);
    _tile_loadd(2, c + SIDE * ldc, ldc * sizeof *c);
    _tile_loadd(3, c + SIDE * ldc + SIDE, ldc * sizeof *c);
}

AMX static inline void sums_store(float *c, size_t ldc) {
    _tile_stored(0, c, ldc * sizeof *c);
    _tile_stored(1, c + SIDE, ldc * sizeof *c);
    _tile_stored(2, c + SIDE * ldc, ldc * sizeof *c);
    _tile_stored(3, c + SIDE * ldc + SIDE, ldc * sizeof *c);
}

/* ---- c = a b ------------------------------------------------------------------------------- */
/* Items are blocks of rows times parts of the columns. */
typedef struct product_job {
    const rv_product *p;
    const uint16_t *packed;
    int rows, parts, panels; /* of an item; of a block of rows; of columns */
    char *scratch;           /* per worker: a square of c, packed rows of a */
    size_t scratch_bytes;
} product_job;

/* SPAN rows times SPAN columns; at the edges of c by way of `square`. */
AMX static void product_square(const rv_product *p, int row, int panel, const uint16_t *a,
                               const uint16_t *b, float *square) {
    int rows = p->m - row < SPAN ? p->m - row : SPAN;
    int cols = rv_round_up(p->n, RV_LANES) - panel * SPAN;
    float *c = p->c + (size_t)row * p->ldc + panel * SPAN, *sums = c;
    size_t ld = p->ldc;
    if (cols > SPAN) cols = SPAN;
    bool edge = rows < SPAN || cols < SPAN;
    if (edge) {
        sums = square, ld = SPAN;
        for (int i = 0; p->add && i < rows; i++)
            memcpy(square + i * SPAN, c + (size_t)i * p->ldc, (size_t)cols * sizeof *c);
    }
    FENCE();
    if (p->add) {
        sums_load(sums, ld);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    tiles_six(steps_of(p->k), a, b);
    sums_store(sums, ld);
    FENCE();
    for (int i = 0; edge && i < rows; i++)
        memcpy(c + (size_t)i * p->ldc, square + i * SPAN, (size_t)cols * sizeof *c);
}

/* A panel of b is near while all rows of the item pass. */
AMX static void product_item(void *argument, int item, int worker) {
    const product_job *job = argument;
    const rv_product *p = job->p;
    int row0 = item / job->parts * job->rows, part = item % job->parts, steps = steps_of(p->k);
    int rows = p->m - row0 < job->rows ? p->m - row0 : job->rows;
    char *scratch = job->scratch + (size_t)worker * job->scratch_bytes;
    float *square = (float *)(void *)scratch;
    uint16_t *a = (uint16_t *)(void *)(scratch + SPAN * SPAN * sizeof *square);
    pack_rows(p->a + (size_t)row0 * p->lda, p->lda, rows, p->k, a);
    tiles_begin();
    for (int panel = part * job->panels / job->parts; panel < (part + 1) * job->panels / job->parts;
         panel++) {
        const uint16_t *b = job->packed + (size_t)(panel * steps) * BLOCK;
        for (int i = 0; i < rows; i += SPAN)
            product_square(p, row0 + i, panel, a + (size_t)(i / SPAN * steps) * BLOCK, b, square);
    }
    _tile_release();
}

/* Blocks of few rows are divided by columns too, where there are more threads than blocks. */
rv_status rv_cpu_amx_product(rv_ctx *ctx, const rv_product *product, const uint16_t *packed,
                             rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    int threads = rv_cpu_threads(ctx), inner = rv_round_up(product->k, STEP);
    product_job job = {.p = product, .packed = packed, .parts = 1};
    job.panels = (product->n + SPAN - 1) / SPAN;
    job.rows = CACHE / inner / SPAN * SPAN;
    if (job.rows < SPAN) job.rows = SPAN;
    if (job.rows > MOST_ROWS) job.rows = MOST_ROWS;
    int blocks = (product->m + job.rows - 1) / job.rows;
    if (blocks < 2 * threads) job.parts = threads < job.panels ? threads : job.panels;
    job.scratch_bytes =
        SPAN * SPAN * sizeof(float) + (size_t)(job.rows * TERMS) * (size_t)inner * sizeof *packed;
    TRY(rv_arena_get(arena, (size_t)threads, job.scratch_bytes, &job.scratch));
    rv_cpu_run(ctx, blocks * job.parts, product_item, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}

#endif
