/* Event form: lists of active inputs, the forward sum, and the weight gradient. */
#include "kernels/cpu_event.h"
#include "kernels/cpu_rows.h"

#include <string.h>

/* Rows one item covers: enough work for a thread, lists that stay near. */
enum { ROWS = 64 };

/* ---- lists ------------------------------------------------------------------------------- */
/* Active units of one row; writes up to RV_LANES past the last. Returns how many. */
static size_t row_list(const uint32_t *bits, int words, uint32_t *index) {
    uint32_t *to = index;
#if defined(__AVX512F__)
    /* Sixteen units at a time: those whose bit is set, packed to the front of a vector. */
    __m512i unit = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i next = _mm512_set1_epi32(16);
    for (int w = 0; w < words; w++) {
        uint32_t word = bits[w];
        for (int half = 0; half < 2; half++, word >>= 16) {
            __mmask16 mask = (__mmask16)word;
            _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, unit));
            to += __builtin_popcount(mask);
            unit = _mm512_add_epi32(unit, next);
        }
    }
#else /* one unit at a time, lowest bit first */
    for (int w = 0; w < words; w++)
        for (uint32_t word = bits[w]; word; word &= word - 1)
            *to++ = (uint32_t)w * 32 + (uint32_t)__builtin_ctz(word);
#endif
    return (size_t)(to - index);
}

/* Where each row's list begins is known from a count of bits before any list is written, so rows
 * can be listed by any worker. */
typedef struct list_job {
    rv_spikes s;
    int rows;
    rv_lists lists;
    uint32_t *spare; /* per worker: one row's list with room past its end */
    size_t spare_words;
} list_job;

/* The store of a whole vector would reach into the next row's list, which another worker may be
 * writing: every row but those inside the item's own range goes through the spare. */
static void list_item(void *argument, int item, int worker) {
    const list_job *job = argument;
    int words = rv_words(job->s.n), first = item * ROWS;
    int last = first + ROWS < job->rows ? first + ROWS : job->rows;
    uint32_t *spare = job->spare + (size_t)worker * job->spare_words;
    for (int r = first; r < last; r++) {
        uint32_t *to = job->lists.index + job->lists.start[r];
        const uint32_t *bits = spikes_row(job->s, r / job->s.B, r % job->s.B);
        if (job->lists.start[last] - job->lists.start[r + 1] >= RV_LANES) {
            row_list(bits, words, to);
        } else {
            size_t count = row_list(bits, words, spare);
            memcpy(to, spare, count * sizeof *to);
        }
    }
}

/* Two passes over the bits: they are 1/32 of what the lists and their sums will touch. */
rv_status rv_cpu_lists(rv_ctx *ctx, rv_spikes s, int frames, rv_arena *arena, rv_lists *out) {
    rv_status status = RV_OK;
    int words = rv_words(s.n);
    size_t total = 0;
    list_job job = {.s = s, .rows = frames * s.B};
    TRY(rv_arena_get(arena, (size_t)job.rows + 1, sizeof *job.lists.start, &job.lists.start));
    for (int r = 0; r < job.rows; r++) {
        const uint32_t *bits = spikes_row(s, r / s.B, r % s.B);
        job.lists.start[r] = total;
        for (int w = 0; w < words; w++)
            total += (size_t)__builtin_popcount(bits[w]);
    }
    job.lists.start[job.rows] = total;
    job.spare_words = (size_t)words * 32 + RV_LANES;
    TRY(rv_arena_get(arena, total + RV_LANES, sizeof *job.lists.index, &job.lists.index));
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job.spare_words * sizeof *job.spare,
                     &job.spare));
    rv_cpu_run(ctx, (job.rows + ROWS - 1) / ROWS, list_item, &job);
    *out = job.lists;
out:
    return status;
}

/* ---- tiles --------------------------------------------------------------------------------- */
enum { PACK_ROWS = 64, PACK_READS = 3 }; /* fewer rows stay in the first cache; reads of a row */
enum { PACK_AHEAD = 16 };                /* rows fetched before they are copied */

/* Rows lie pages apart, where the processor does not fetch ahead by itself. */
RV_INLINE void row_pack(const float *from, const float *later, int cols, float *to) {
    for (int j = 0; j < cols; j += RV_LANES)
        __builtin_prefetch(later + j);
    for (int j = 0; j < cols; j += RV_WIDTH)
        vec_store(to + j, vec_load(from + j));
}

rv_tile_rows rv_cpu_event_pack(const float *row0, size_t ld, int rows, int cols, size_t reads,
                               float *packed) {
    bool pays =
        packed && ld > (size_t)cols && rows >= PACK_ROWS && reads / PACK_READS > (size_t)rows;
    if (!pays) return (rv_tile_rows){row0, ld};
    for (int i = 0; i < rows; i++)
        row_pack(row0 + (size_t)i * ld,
                 row0 + (size_t)(i + PACK_AHEAD < rows ? i + PACK_AHEAD : i) * ld, cols,
                 packed + (size_t)i * (size_t)cols);
    return (rv_tile_rows){packed, (size_t)cols};
}

/* ---- forward ------------------------------------------------------------------------------ */
/* An item is one tile of columns of FORWARD_ROWS rows. */
enum { FORWARD_ROWS = 512 };

typedef struct forward_job {
    const rv_map *map;
    rv_values y;
    rv_lists lists;
    int rows, blocks, columns;
    float *packed; /* per worker: a tile of the weights */
} forward_job;

/* Tiles outermost: the weights of one tile stay in the second cache while all rows pass. */
static void forward_item(void *argument, int item, int worker) {
    const forward_job *job = argument;
    const rv_map *map = job->map;
    int col = item / job->blocks * job->columns, first = item % job->blocks * FORWARD_ROWS;
    int cols = map->ld - col < job->columns ? map->ld - col : job->columns;
    int last = first + FORWARD_ROWS < job->rows ? first + FORWARD_ROWS : job->rows;
    rv_tile_rows w =
        rv_cpu_event_pack(map->weight + col, (size_t)map->ld, map->in, cols,
                          job->lists.start[last] - job->lists.start[first],
                          job->packed + (size_t)worker * (size_t)map->in * (size_t)job->columns);
    for (int r = first; r < last; r++)
        event_sum(cols, w.row0, w.ld, job->lists.index + job->lists.start[r],
                  job->lists.start[r + 1] - job->lists.start[r], map->bias ? map->bias + col : NULL,
                  values_row(job->y, r / job->y.B, r % job->y.B) + col);
}

rv_status rv_cpu_event_forward(rv_ctx *ctx, const rv_map *map, rv_spikes x, rv_values y,
                               rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    int frames = x.stride_t ? x.T : 1, columns = event_columns(map->in);
    int tiles = (map->ld + columns - 1) / columns;
    forward_job job = {.map = map, .y = y, .rows = frames * x.B, .columns = columns};
    job.blocks = (job.rows + FORWARD_ROWS - 1) / FORWARD_ROWS;
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx) * (size_t)map->in,
                     (size_t)columns * sizeof *job.packed, &job.packed));
    TRY(rv_cpu_lists(ctx, x, frames, arena, &job.lists));
    rv_cpu_run(ctx, tiles * job.blocks, forward_item, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}

/* ---- weight gradient ----------------------------------------------------------------------- */
/* Rows are visited t descending, b ascending. A narrow gradient stays in the first cache: each
 * row's adjoint is added to the gradient rows of its active inputs. A wide one goes by input: the
 * transposed lists of a run of rows, accumulators in registers, started from what is there. Both
 * add in the same order, so the choice does not show in the bits. */
enum { NARROW = 32, RUN = 2048, GRADIENTS_AHEAD = 8 };

/* A visit is a row in the order of addition: visit 0 is the first sample of the last step. */
typedef struct weight_job {
    const rv_map *map;
    rv_values g;
    float *gw, *gb;
    rv_lists lists;
    int frames, rows;
    int first, run, most; /* visits of the transposed lists; of the longest run */
    size_t *start;        /* [in + 1] */
    uint32_t *transposed;
    const float **adjoint; /* [run] the rows of g */
    int columns;           /* of a tile */
    int blocks;            /* of inputs: more than one where there are more threads than tiles */
    float *packed;         /* per worker: a run's adjoints of one tile */
} weight_job;

/* Row t*B + b of a visit, and where its adjoint lies. */
static int visit_row(const weight_job *job, int visit) {
    int B = job->g.B;
    return (job->frames - 1 - visit / B) * B + visit % B;
}
static const float *visit_adjoint(const weight_job *job, int visit) {
    int row = visit_row(job, visit);
    return values_row(job->g, row / job->g.B, row % job->g.B);
}

/* The same input occurs once in a row, so the adds of one row do not wait for each other. */
RV_INLINE void narrow_any(const weight_job *job, int first, int last, int vectors) {
    size_t ld = (size_t)job->map->ld;
    /* the bias's gradient stays in registers over all rows */
    rv_vec bias[EVENT_VECTORS];
    RV_UNROLL for (int j = 0; j < vectors; j++) bias[j] =
        job->gb ? vec_load(job->gb + j * RV_WIDTH) : vec_all(0);
    for (int visit = first; visit < last; visit++) {
        int row = visit_row(job, visit);
        const float *from = visit_adjoint(job, visit);
        const uint32_t *index = job->lists.index + job->lists.start[row];
        size_t count = job->lists.start[row + 1] - job->lists.start[row];
        rv_vec g[EVENT_VECTORS];
        RV_UNROLL for (int j = 0; j < vectors; j++) {
            g[j] = vec_load(from + j * RV_WIDTH);
            bias[j] += g[j];
        }
        for (size_t k = 0; k < count; k++) {
            float *to = job->gw + index[k] * ld;
            RV_UNROLL for (int j = 0; j < vectors; j++)
                vec_store(to + j * RV_WIDTH, vec_load(to + j * RV_WIDTH) + g[j]);
        }
    }
    if (job->gb)
        RV_UNROLL for (int j = 0; j < vectors; j++) vec_store(job->gb + j * RV_WIDTH, bias[j]);
}

/* One thread: the whole gradient is a few cache pages, splitting it costs more than it saves. */
static void narrow_weight(const weight_job *job) {
    if (job->map->ld == RV_LANES)
        narrow_any(job, 0, job->rows, RV_LANES / RV_WIDTH);
    else
        narrow_any(job, 0, job->rows, 2 * RV_LANES / RV_WIDTH);
}

/* Counting sort of the lists of visits [first, first + run) by input. An entry is the visit's
 * number in the run. */
static void transpose_run(weight_job *job) {
    int in = job->map->in;
    size_t sum = 0;
    memset(job->start, 0, ((size_t)in + 1) * sizeof *job->start);
    for (int v = 0; v < job->run; v++) {
        int row = visit_row(job, job->first + v);
        job->adjoint[v] = visit_adjoint(job, job->first + v);
        for (size_t k = job->lists.start[row]; k < job->lists.start[row + 1]; k++)
            job->start[job->lists.index[k]]++;
    }
    for (int i = 0; i <= in; i++) {
        size_t count = job->start[i];
        job->start[i] = sum;
        sum += count;
    }
    for (int v = 0; v < job->run; v++) {
        int row = visit_row(job, job->first + v);
        for (size_t k = job->lists.start[row]; k < job->lists.start[row + 1]; k++)
            job->transposed[job->start[job->lists.index[k]]++] = (uint32_t)v;
    }
    /* Filling moved every start to its end, which is the next one's start. */
    memmove(job->start + 1, job->start, (size_t)in * sizeof *job->start);
    job->start[0] = 0;
}

/* A run's adjoints of one tile, copied side by side: they stay in the second cache while the inputs
 * pass. */
static void wide_item(void *argument, int item, int worker) {
    const weight_job *job = argument;
    int ld = job->map->ld, col = item / job->blocks * job->columns, block = item % job->blocks;
    int cols = ld - col < job->columns ? ld - col : job->columns;
    int first = (int)((int64_t)block * job->map->in / job->blocks);
    int last = (int)((int64_t)(block + 1) * job->map->in / job->blocks);
    float *packed = job->packed + (size_t)worker * (size_t)job->most * (size_t)job->columns;
    for (int v = 0; v < job->run; v++)
        row_pack(job->adjoint[v] + col,
                 job->adjoint[v + PACK_AHEAD < job->run ? v + PACK_AHEAD : v] + col, cols,
                 packed + (size_t)v * (size_t)cols);
    for (int i = first; i < last; i++) {
        float *to = job->gw + (size_t)i * (size_t)ld + col;
        size_t count = job->start[i + 1] - job->start[i];
        const float *later = to + (i + GRADIENTS_AHEAD < last ? (size_t)ld * GRADIENTS_AHEAD : 0);
        for (int j = 0; j < cols; j += RV_LANES)
            __builtin_prefetch(later + j, 1);
        if (count > 0)
            event_sum(cols, packed, (size_t)cols, job->transposed + job->start[i], count, to, to);
    }
    /* The bias takes every row, active or not; one of the items of a tile adds it. */
    if (!job->gb || block > 0) return;
    for (int v = 0; v < job->run; v++)
        for (int j = 0; j < cols; j++)
            job->gb[col + j] += packed[(size_t)v * (size_t)cols + j];
}

/* Runs follow each other in the order of visits and add onto what the last left: where they are cut
 * cannot show. */
static rv_status wide_weight(rv_ctx *ctx, weight_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    job->most = job->rows < RUN ? job->rows : RUN;
    job->columns = event_columns(job->most);
    int tiles = (job->map->ld + job->columns - 1) / job->columns;
    size_t most = 0;
    job->blocks = (rv_cpu_threads(ctx) + tiles - 1) / tiles;
    /* One list serves all runs: as long as the longest. */
    for (job->first = 0; job->first < job->rows; job->first += RUN) {
        size_t count = 0;
        for (int v = job->first; v < job->first + RUN && v < job->rows; v++) {
            int row = visit_row(job, v);
            count += job->lists.start[row + 1] - job->lists.start[row];
        }
        if (most < count) most = count;
    }
    TRY(rv_arena_get(arena, (size_t)job->map->in + 1, sizeof *job->start, &job->start));
    TRY(rv_arena_get(arena, most, sizeof *job->transposed, &job->transposed));
    TRY(rv_arena_get(arena, (size_t)job->most, sizeof *job->adjoint, &job->adjoint));
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx) * (size_t)job->most,
                     (size_t)job->columns * sizeof *job->packed, &job->packed));
    for (job->first = 0; job->first < job->rows; job->first += job->run) {
        job->run = job->rows - job->first < RUN ? job->rows - job->first : RUN;
        transpose_run(job);
        rv_cpu_run(ctx, tiles * job->blocks, wide_item, job);
    }
out:
    return status;
}

rv_status rv_cpu_event_weight(rv_ctx *ctx, const rv_map *map, rv_spikes x, rv_values g, float *gw,
                              float *gb, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    weight_job job = {.map = map, .g = g, .gw = gw, .gb = gb};
    job.frames = x.stride_t ? x.T : 1;
    job.rows = job.frames * x.B;
    TRY(rv_cpu_lists(ctx, x, job.frames, arena, &job.lists));
    if (map->ld <= NARROW)
        narrow_weight(&job);
    else
        TRY(wide_weight(ctx, &job, arena));
out:
    rv_arena_release(arena, mark);
    return status;
}
