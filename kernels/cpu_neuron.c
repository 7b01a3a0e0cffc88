/*
 * Neurons forward. A step of one tile (some columns of one sample) is one function, specialised
 * for kind, reset and comparison; drivers bring the current to it: from memory, from an event sum
 * (fused), and from the recurrent weights. All go through the same function, so fused and unfused,
 * chunked and whole give the same bits.
 */
#include "kernels/cpu_event.h"
#include "kernels/cpu_neuron.h"
#include "kernels/cpu_rows.h"
#include "kernels/neuron.h"

#include <string.h>

/* ---- one step of one tile ------------------------------------------------------------------ */
typedef struct step_tile {
    int cols;
    const float *param[RV_P_COUNT]; /* at the tile's first column, like all pointers here */
    const float *x;
    float *v, *i, *a;     /* state */
    float *h, *ti, *ta;   /* tape; ti and ta NULL unless kept */
    const uint16_t *last; /* spikes of the step before */
    uint16_t *fired;
} step_tile;

/* The specialised step, and the kind's inline function it is made from. */
typedef void (*step_fn)(const step_tile *tile);
typedef void (*cell_fn)(const rv_neuron *n, const rv_unit *p, rv_real x, rv_cell *c);

/* Constant arguments: what is left of the cell after inlining is a loop without branches. The
 * array of gains already is 1 - beta where they are tied. */
RV_INLINE void step_any(cell_fn cell, unsigned traits, rv_cpu_reset reset, bool strict,
                        const step_tile *tile) {
    const rv_neuron n = {.reset = rv_cpu_reset_plain(reset),
                         .strict = strict,
                         .reset_over_beta = reset == RV_CPU_RESET_NEXT};
    for (int at = 0; at < tile->cols; at += RV_LANES) {
        /* What a kind lacks or the tape does not keep goes to memory nobody reads, so that the loop
         * below has no conditions. */
        float unused[2][RV_LANES];
        int32_t fired[RV_LANES];
        uint32_t last = traits & RV_HAS_ADAPTATION ? tile->last[at / RV_LANES] : 0;
        float *v = tile->v + at, *h = tile->h + at;
        float *i = traits & RV_HAS_CURRENT ? tile->i + at : unused[0];
        float *a = traits & RV_HAS_ADAPTATION ? tile->a + at : unused[0];
        float *ti = tile->ti ? tile->ti + at : unused[1];
        float *ta = tile->ta ? tile->ta + at : unused[1];
        const float *x = tile->x + at;
        RV_INDEPENDENT for (int j = 0; j < RV_LANES; j++) {
            rv_unit p = rv_cpu_unit(tile->param, at + j);
            rv_cell c = {.v = v[j], .s = (float)(last >> j & 1u)};
            if (traits & RV_HAS_CURRENT) c.i = i[j];
            if (traits & RV_HAS_ADAPTATION) c.a = a[j];
            cell(&n, &p, x[j], &c);
            v[j] = c.v;
            h[j] = c.h;
            if (traits & RV_HAS_CURRENT) i[j] = c.i;
            if (traits & RV_HAS_ADAPTATION) a[j] = ta[j] = c.a;
            if (traits & RV_HAS_SPIKES) fired[j] = c.s > 0 ? -1 : 0;
            ti[j] = c.i;
        }
        if (traits & RV_HAS_SPIKES) tile->fired[at / RV_LANES] = (uint16_t)lanes_mask(fired);
    }
}

/* One function for every kind, reset and comparison. The compiler folds those that came out equal.
 */
#define STEP(name, traits, reset, strict)                                                          \
    static void step_##name##_##reset##_##strict(const step_tile *tile) {                          \
        step_any(rv_##name##_step, traits, RV_CPU_RESET_##reset, strict, tile);                    \
    }
#define STEP_BOTH(name, traits, reset) STEP(name, traits, reset, 0) STEP(name, traits, reset, 1)
#define STEPS(name, traits, parameters, sentence, source)                                          \
    STEP_BOTH(name, traits, SUBTRACT)                                                              \
    STEP_BOTH(name, traits, ZERO)                                                                  \
    STEP_BOTH(name, traits, VALUE)                                                                 \
    STEP_BOTH(name, traits, NONE)                                                                  \
    STEP_BOTH(name, traits, NEXT)
RV_NEURON_LIST(STEPS)

#define STEP_PAIR(name, reset)                                                                     \
    [RV_CPU_RESET_##reset] = {step_##name##_##reset##_0, step_##name##_##reset##_1}
#define STEP_ROW(name, traits, parameters, sentence, source)                                       \
    {STEP_PAIR(name, SUBTRACT), STEP_PAIR(name, ZERO), STEP_PAIR(name, VALUE),                     \
     STEP_PAIR(name, NONE), STEP_PAIR(name, NEXT)},
static const step_fn steps[RV_NEURONS][RV_CPU_RESETS][2] = {RV_NEURON_LIST(STEP_ROW)};

/* ---- driver -------------------------------------------------------------------------------- */
typedef struct forward_job {
    const rv_neuron_forward *n;
    const rv_map *map;  /* fused: current from the event sum of `lists`; NULL: from n->x */
    rv_lists lists;     /* of all steps */
    rv_lists recurrent; /* of step t0, when the layer is recurrent */
    step_fn step;
    int t0, t1, blocks, tiles;
    int columns;            /* of a tile */
    const uint16_t *silent; /* bits of a step without spikes */
    float *packed;          /* per worker: a tile of the map's weights; NULL: read in place */
} forward_job;

enum { SAMPLES = 16 }; /* of one item */

/* starts NULL: samples start at step 0 of the whole sequence only, with the state they are given.
 */
bool rv_cpu_starts(const uint32_t *starts, int B, int t, int b) {
    return starts && (starts[(size_t)t * (size_t)rv_words(B) + (size_t)b / 32] >> b % 32 & 1u);
}

/* Units that only pad must read as nothing: their parameters are those of a real unit. */
static void step_pad(const rv_neuron_forward *n, const step_tile *tile, int col) {
    int first = n->n - col;
    size_t bytes = (size_t)(tile->cols - first) * sizeof(float);
    if (first >= tile->cols) return; /* this tile ends before the last unit */
    float *planes[] = {tile->v, tile->i, tile->a, tile->h, tile->ti, tile->ta};
    for (size_t k = 0; k < sizeof planes / sizeof planes[0]; k++)
        if (planes[k]) memset(planes[k] + first, 0, bytes);
    if (tile->fired) tile->fired[first / RV_LANES] &= (uint16_t)((1u << first % RV_LANES) - 1);
}

/* Column `col` of sample b in a state plane; NULL where the kind has none. */
static float *plane_at(float *plane, int b, int ld, int col) {
    return plane ? plane + (size_t)b * (size_t)ld + col : NULL;
}

/* The same in a view, at step t. */
static float *values_at(rv_values v, int t, int b, int col) {
    return v.data ? values_row(v, t, b) + col : NULL;
}

/* Everything of one step of one tile: fresh state where the sample starts, current, step, padding.
 * weight: of the fused map, or NULL. */
static void forward_tile(const forward_job *job, const rv_tile_rows *weight, int t, int b, int col,
                         int cols) {
    const rv_neuron_forward *n = job->n;
    const rv_map *map = job->map, *recurrent = n->recurrent;
    float sum[EVENT_TILE], back[EVENT_TILE];
    bool starts = rv_cpu_starts(n->starts, n->B, t, b);
    step_tile tile = {.cols = cols,
                      .x = values_at(n->x, t, b, col),
                      .v = plane_at(n->state.v, b, n->ld, col),
                      .i = plane_at(n->state.i, b, n->ld, col),
                      .a = plane_at(n->state.a, b, n->ld, col),
                      .h = values_at(n->h, t, b, col),
                      .ti = values_at(n->i, t, b, col),
                      .ta = values_at(n->a, t, b, col)};
    for (int p = 0; p < RV_P_COUNT; p++)
        tile.param[p] = n->param[p] + col;
    if (n->s.bits) tile.fired = (uint16_t *)spikes_row(n->s, t, b) + col / RV_LANES;
    /* The spikes of the step before: of this chunk, of the chunk before, or none. */
    if (starts)
        tile.last = job->silent;
    else if (t > 0)
        tile.last = (const uint16_t *)spikes_row(n->s, t - 1, b) + col / RV_LANES;
    else if (n->state.last)
        tile.last =
            (const uint16_t *)(n->state.last + (size_t)b * (size_t)rv_words(n->n)) + col / RV_LANES;
    else
        tile.last = job->silent;
    if (starts) { /* at rest: all state is zero */
        size_t bytes = (size_t)cols * sizeof(float);
        memset(tile.v, 0, bytes);
        if (tile.i) memset(tile.i, 0, bytes);
        if (tile.a) memset(tile.a, 0, bytes);
    }
    /* The current: bias, then inputs ascending; then the feedback, bias and units ascending. */
    if (weight) {
        size_t r = (size_t)t * (size_t)n->B + (size_t)b, first = job->lists.start[r];
        event_sum(cols, weight->row0, weight->ld, job->lists.index + first,
                  job->lists.start[r + 1] - first, map->bias ? map->bias + col : NULL, sum);
        tile.x = sum;
    }
    if (recurrent) {
        size_t first = job->recurrent.start[b];
        event_sum(cols, recurrent->weight + col, (size_t)recurrent->ld,
                  job->recurrent.index + first, job->recurrent.start[b + 1] - first,
                  recurrent->bias ? recurrent->bias + col : NULL, back);
        for (int j = 0; j < cols; j++)
            sum[j] = tile.x[j] + back[j];
        tile.x = sum;
    }
    job->step(&tile);
    if (col + cols > n->n) step_pad(n, &tile, col);
    /* the word of the last units may be longer than their lanes */
    if (tile.fired && col + cols == n->ld && n->ld % 32 != 0 && rv_words(n->n) * 32 > n->ld)
        tile.fired[cols / RV_LANES] = 0;
}

/* Event sums go tile by tile, so that the weights of a tile stay in the second cache. */
static void tile_item(void *argument, int item, int worker) {
    const forward_job *job = argument;
    const rv_neuron_forward *n = job->n;
    int col = item / job->blocks * job->columns, first = item % job->blocks * SAMPLES;
    int cols = n->ld - col < job->columns ? n->ld - col : job->columns;
    int last = first + SAMPLES < n->B ? first + SAMPLES : n->B;
    rv_tile_rows weight;
    if (job->map) { /* samples fire about alike */
        const rv_map *map = job->map;
        size_t reads = job->lists.start[(size_t)n->T * (size_t)n->B] / (size_t)job->blocks;
        float *packed = job->packed;
        if (packed) packed += (size_t)worker * (size_t)map->in * (size_t)job->columns;
        weight =
            rv_cpu_event_pack(map->weight + col, (size_t)map->ld, map->in, cols, reads, packed);
    }
    for (int t = job->t0; t < job->t1; t++)
        for (int b = first; b < last; b++)
            forward_tile(job, job->map ? &weight : NULL, t, b, col, cols);
}

/* Without sums rows are read and written in the order they lie. */
static void samples_item(void *argument, int item, int worker) {
    const forward_job *job = argument;
    const rv_neuron_forward *n = job->n;
    int first = item * SAMPLES, last = first + SAMPLES < n->B ? first + SAMPLES : n->B;
    (void)worker;
    for (int t = job->t0; t < job->t1; t++)
        for (int b = first; b < last; b++)
            for (int col = 0; col < n->ld; col += EVENT_TILE)
                forward_tile(job, NULL, t, b, col,
                             n->ld - col < EVENT_TILE ? n->ld - col : EVENT_TILE);
}

/* Whatever the order of tiles and samples, a unit sees its steps in order and nothing else. */
static void forward_steps(rv_ctx *ctx, forward_job *job) {
    if (job->map || job->n->recurrent)
        rv_cpu_run(ctx, job->tiles * job->blocks, tile_item, job);
    else
        rv_cpu_run(ctx, job->blocks, samples_item, job);
}

/* Spikes that feed step t: those of t-1, none where a sample starts. */
static rv_status recurrent_lists(rv_ctx *ctx, const rv_neuron_forward *n, int t, rv_arena *arena,
                                 rv_lists *out) {
    rv_status status = RV_OK;
    size_t words = (size_t)rv_words(n->n);
    uint32_t *bits = NULL;
    TRY(rv_arena_get(arena, (size_t)n->B * words, sizeof *bits, &bits));
    for (int b = 0; b < n->B; b++) {
        uint32_t *to = bits + (size_t)b * words;
        const uint32_t *from = t > 0           ? spikes_row(n->s, t - 1, b)
                               : n->state.last ? n->state.last + (size_t)b * words
                                               : NULL;
        if (!from || rv_cpu_starts(n->starts, n->B, t, b))
            memset(to, 0, words * sizeof *to);
        else
            memcpy(to, from, words * sizeof *to);
    }
    TRY(rv_cpu_lists(ctx, rv_spikes_of(bits, 1, n->B, n->n), 1, arena, out));
out:
    return status;
}

/* Scratch of the op; layers usually give every array, so nothing is copied. */
rv_status rv_cpu_params(const rv_neuron *neuron, const float *const given[RV_P_COUNT], int ld,
                        rv_arena *arena, const float *param[RV_P_COUNT]) {
    static const float neutral[RV_P_COUNT] = {[RV_P_BETA] = 1, [RV_P_GAIN] = 1, [RV_P_THETA] = 1};
    rv_status status = RV_OK;
    for (int p = 0; p < RV_P_COUNT; p++) {
        float *array = NULL;
        param[p] = given[p];
        if (given[p]) continue;
        TRY(rv_arena_get(arena, (size_t)ld, sizeof *array, &array));
        for (int u = 0; u < ld; u++)
            array[u] = neutral[p];
        param[p] = array;
    }
    if (neuron->gain_tied && rv_neuron_parameters(neuron->kind) & RV_BIT(BETA)) {
        float *gain = NULL;
        TRY(rv_arena_get(arena, (size_t)ld, sizeof *gain, &gain));
        for (int u = 0; u < ld; u++)
            gain[u] = 1 - param[RV_P_BETA][u];
        param[RV_P_GAIN] = gain;
    }
out:
    return status;
}

/* With feedback all samples finish a step before its spikes are listed for the next. */
static rv_status forward_run(rv_ctx *ctx, const rv_map *map, const rv_signal *x,
                             const rv_neuron_forward *n, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena), words = (size_t)rv_words(n->n);
    rv_neuron_forward own = *n;
    uint32_t *silent = NULL;
    forward_job job = {.n = &own, .map = map, .t1 = n->T};
    const rv_neuron *neuron = n->neuron;
    TRY(rv_cpu_params(neuron, n->param, n->ld, arena, own.param));
    TRY(rv_arena_get(arena, words, sizeof *silent, &silent));
    memset(silent, 0, words * sizeof *silent);
    job.silent = (const uint16_t *)silent;
    job.step = steps[neuron->kind][rv_cpu_reset_of(neuron)][neuron->strict];
    job.columns = map ? event_columns(map->in) : EVENT_TILE;
    job.tiles = (n->ld + job.columns - 1) / job.columns;
    job.blocks = (n->B + SAMPLES - 1) / SAMPLES;
    if (map) TRY(rv_cpu_lists(ctx, x->spikes, n->T, arena, &job.lists));
    if (map && !n->recurrent) /* with feedback an item is one step: too few reads */
        TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx) * (size_t)map->in,
                         (size_t)job.columns * sizeof *job.packed, &job.packed));
    if (!n->recurrent) forward_steps(ctx, &job);
    for (int t = 0; n->recurrent && t < n->T; t++) {
        size_t inner = rv_arena_mark(arena);
        TRY(recurrent_lists(ctx, n, t, arena, &job.recurrent));
        job.t0 = t;
        job.t1 = t + 1;
        forward_steps(ctx, &job);
        rv_arena_release(arena, inner);
    }
    /* The chunk after this one begins with the spikes of the last step. */
    if (n->state.last && n->s.bits && n->T > 0)
        memcpy(n->state.last, spikes_row(n->s, n->T - 1, 0),
               (size_t)n->B * words * sizeof *n->state.last);
out:
    rv_arena_release(arena, mark);
    return status;
}

rv_status RV_CPU(neuron_forward)(rv_ctx *ctx, rv_queue *queue, const rv_neuron_forward *n,
                                 rv_arena *arena) {
    (void)queue;
    return forward_run(ctx, NULL, NULL, n, arena);
}

rv_status RV_CPU(map_neuron_forward)(rv_ctx *ctx, rv_queue *queue, const rv_map *map,
                                     const rv_signal *x, const rv_neuron_forward *n,
                                     rv_arena *arena) {
    (void)queue;
    return forward_run(ctx, map, x, n, arena);
}
