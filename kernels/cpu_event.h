/*
 * Event form: sums of the weight rows of active inputs. Lists of active inputs are scratch of one
 * op. A tile is at most EVENT_TILE columns whose accumulators stay in registers; a sum starts from
 * the bias and adds rows in ascending order, so bits do not depend on tiles. Internal to kernels/.
 */
#ifndef RV_KERNELS_CPU_EVENT_H
#define RV_KERNELS_CPU_EVENT_H

#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"

#ifdef RV_LEVEL
enum { EVENT_VECTORS = 8, EVENT_TILE = EVENT_VECTORS * RV_WIDTH };

/* Floats of a tile that stay in the second cache beside what passes by: half of 2 MiB. */
enum { EVENT_STAYS = 1 << 18 };
/* Columns of a tile of so many rows: a whole number of times in EVENT_TILE, two vectors at least,
 * as with fewer a row's address costs more than its sum. */
static inline int event_columns(int rows) {
    int columns = EVENT_TILE;
    while (columns > 2 * RV_WIDTH && columns > RV_LANES && rows > EVENT_STAYS / columns)
        columns /= 2;
    return columns;
}

#define rv_cpu_lists RV_CPU(lists)
#define rv_cpu_event_forward RV_CPU(event_forward)
#define rv_cpu_event_pack RV_CPU(event_pack)
#define rv_cpu_event_weight RV_CPU(event_weight)

/* Active inputs of rows r = t*B + b, ascending: index[start[r]] .. index[start[r+1]]. */
typedef struct rv_lists {
    size_t *start;
    uint32_t *index;
} rv_lists;
/* Lists of frames*B rows of bits; memory from the arena. */
RV_CHECKED rv_status rv_cpu_lists(rv_ctx *ctx, rv_spikes s, int frames, rv_arena *arena,
                                  rv_lists *out);

/* Rows of one tile as they are summed from: where it pays, `rows` of them copied side by side. In
 * place they lie ld apart, often a power of two, so that they compete for a few sets of the caches
 * and each needs a page's address. */
typedef struct rv_tile_rows {
    const float *row0;
    size_t ld;
} rv_tile_rows;
/* packed: room for rows * cols, or NULL; reads: row reads to come. */
rv_tile_rows rv_cpu_event_pack(const float *row0, size_t ld, int rows, int cols, size_t reads,
                               float *packed);

RV_CHECKED rv_status rv_cpu_event_forward(rv_ctx *ctx, const rv_map *map, rv_spikes x, rv_values y,
                                          rv_arena *arena);
RV_CHECKED rv_status rv_cpu_event_weight(rv_ctx *ctx, const rv_map *map, rv_spikes x, rv_values g,
                                         float *gw, float *gb, rv_arena *arena);

RV_INLINE void event_sum_any(int vectors, const float *row0, size_t ld, const uint32_t *index,
                             size_t count, const float *start, float *out) {
    rv_vec sum[EVENT_VECTORS];
    RV_UNROLL for (int j = 0; j < vectors; j++) sum[j] =
        start ? vec_load(start + j * RV_WIDTH) : vec_all(0);
    for (size_t k = 0; k < count; k++) {
        const float *row = row0 + index[k] * ld;
        RV_UNROLL for (int j = 0; j < vectors; j++) sum[j] += vec_load(row + j * RV_WIDTH);
    }
    RV_UNROLL for (int j = 0; j < vectors; j++) vec_store(out + j * RV_WIDTH, sum[j]);
}

/* out[cols] = start (NULL: 0) + sum over k of row0[index[k]*ld ..]; cols <= EVENT_TILE, a multiple
 * of RV_LANES. out may be start. */
static inline void event_sum(int cols, const float *row0, size_t ld, const uint32_t *index,
                             size_t count, const float *start, float *out) {
    switch (cols / RV_WIDTH) {
#define EVENT_CASE(vectors)                                                                        \
    case vectors:                                                                                  \
        event_sum_any(vectors, row0, ld, index, count, start, out);                                \
        break;
        EVENT_CASE(8)
#if RV_LANES == 16 && defined(__AVX512F__)
        EVENT_CASE(7)
        EVENT_CASE(5)
        EVENT_CASE(3)
        EVENT_CASE(1)
#endif
        EVENT_CASE(6)
        EVENT_CASE(4)
        EVENT_CASE(2)
#undef EVENT_CASE
    }
}
#endif

#endif
