/*
 * Adjoint of the neurons, t descending. As forward, one function does one step of one tile,
 * specialised for kind, reset, detachment and what learns. Per-unit gradients are sums over t
 * descending, b ascending, so a layer that learns any goes step by step; others sample by sample,
 * which keeps what is carried in the first cache.
 */
#include "kernels/cpu_dense.h"
#include "kernels/cpu_event.h"
#include "kernels/cpu_neuron.h"
#include "kernels/cpu_rows.h"
#include "kernels/neuron.h"
#include "kernels/surrogate.h"

#include <string.h>

/* ---- slopes: the surrogate of one tile ------------------------------------------------------ */
/* One loop per surrogate: a call per tile costs nothing, a choice per unit would. */
typedef void (*slope_fn)(int cols, const float *h, const float *theta, const float *p, float *out);

#define SLOPE(name, form, source, parameters)                                                      \
    static void slope_##name(int cols, const float *restrict h, const float *restrict theta,       \
                             const float *restrict p, float *restrict out) {                       \
        const float q[RV_SURROGATE_PARAMS] = {p[0], p[1], p[2], p[3]};                             \
        for (; cols > 0; cols -= RV_LANES, h += RV_LANES, theta += RV_LANES, out += RV_LANES)      \
            for (int j = 0; j < RV_LANES; j++)                                                     \
                out[j] = rv_surrogate_##name(h[j] - theta[j], q);                                  \
    }
RV_SURROGATE_LIST(SLOPE)
#define SLOPE_ROW(name, form, source, parameters) slope_##name,
static const slope_fn slopes[RV_SURROGATES] = {RV_SURROGATE_LIST(SLOPE_ROW)};

/* ---- one step of one tile ------------------------------------------------------------------- */
/* Nothing learns, or something does; a tied gain gives its gradient to beta. */
typedef enum learning { LEARN_NONE, LEARN_FREE, LEARN_TIED, LEARNINGS } learning;

typedef struct adjoint_tile {
    int cols;
    const float *param[RV_P_COUNT]; /* at the tile's first column, like all pointers here */
    const float *back[RV_P_COUNT];
    const float *h, *i, *a; /* of t; i and a: zeros where not kept */
    const uint16_t *s;
    const float *v_last, *i_last, *a_last;
    const float *slope, *gs, *gv, *gh;
    const float *feed;  /* adjoint that reaches s[t] through the adaptation, or zeros */
    float *v, *ci, *ca; /* carried */
    float *gx;
    float (*part)[EVENT_TILE]; /* [RV_P_COUNT]: this step's parts of the parameters' gradients */
} adjoint_tile;

/* The specialised step, and the kind's inline function it is made from. */
typedef void (*adjoint_fn)(const adjoint_tile *tile);
typedef rv_real (*cell_fn)(const rv_neuron *n, const rv_unit *p, const rv_trace *r, rv_carry *c,
                           rv_unit *g);

/* Constant arguments, as in the forward step: the loop has no branches, and what does not learn is
 * not computed. */
RV_INLINE void adjoint_any(cell_fn cell, unsigned traits, rv_cpu_reset reset, bool detached,
                           learning learn, const adjoint_tile *tile) {
    /* The adaptation's path to the spike comes in through `feed`. */
    const rv_neuron n = {.reset = rv_cpu_reset_plain(reset),
                         .reset_over_beta = reset == RV_CPU_RESET_NEXT,
                         .detach_reset = detached,
                         .detach_adaptation = true,
                         .gain_tied = learn == LEARN_TIED};
    const bool current = traits & RV_HAS_CURRENT, adaptation = traits & RV_HAS_ADAPTATION;
    const bool spikes = traits & RV_HAS_SPIKES;
    for (int at = 0; at < tile->cols; at += RV_LANES) {
        uint32_t bits = spikes ? tile->s[at / RV_LANES] : 0;
        RV_INDEPENDENT for (int j = 0; j < RV_LANES; j++) {
            int u = at + j;
            rv_unit p = rv_cpu_unit(tile->back, u), g;
            rv_trace r = {.h = tile->h[u], .gv = tile->gv[u], .gh = tile->gh[u]};
            rv_carry c = {.v = tile->v[u]};
            if (current) c.i = tile->ci[u];
            if (adaptation) {
                r.a = tile->a[u];
                c.a = tile->ca[u];
            }
            if (spikes) {
                r.s = (float)(bits >> j & 1u);
                r.slope = tile->slope[u];
                r.gs = tile->gs[u];
                if (adaptation) r.gs += tile->feed[u];
            }
            if (learn != LEARN_NONE) {
                r.i = tile->i[u];
                r.v_last = tile->v_last[u];
                if (current) r.i_last = tile->i_last[u];
                if (adaptation) r.a_last = tile->a_last[u];
            }
            tile->gx[u] = cell(&n, &p, &r, &c, &g);
            tile->v[u] = c.v;
            if (current) tile->ci[u] = c.i;
            if (adaptation) tile->ca[u] = c.a;
            if (learn != LEARN_NONE) {
                if (current) tile->part[RV_P_ALPHA][u] = g.alpha;
                tile->part[RV_P_BETA][u] = g.beta;
                tile->part[RV_P_GAIN][u] = g.gain;
                tile->part[RV_P_LEAK][u] = g.v_leak;
                tile->part[RV_P_THETA][u] = g.threshold;
                tile->part[RV_P_RESET][u] = g.v_reset;
                if (adaptation) {
                    tile->part[RV_P_RHO][u] = g.rho;
                    tile->part[RV_P_KAPPA][u] = g.kappa;
                }
            }
        }
    }
}

/* Every combination a layer can ask for; kinds without spikes have no reset. */
#define ADJOINT(name, traits, reset, detached, learn)                                              \
    static void adjoint_##name##_##reset##_##detached##_##learn(const adjoint_tile *tile) {        \
        adjoint_any(rv_##name##_adjoint, traits, RV_CPU_RESET_##reset, detached, LEARN_##learn,    \
                    tile);                                                                         \
    }
#define ADJOINT_LEARN(name, traits, reset, detached)                                               \
    ADJOINT(name, traits, reset, detached, NONE)                                                   \
    ADJOINT(name, traits, reset, detached, FREE)                                                   \
    ADJOINT(name, traits, reset, detached, TIED)
#define ADJOINT_DETACH(name, traits, reset)                                                        \
    ADJOINT_LEARN(name, traits, reset, 0)                                                          \
    ADJOINT_LEARN(name, traits, reset, 1)
#define ADJOINTS(name, traits, parameters, sentence, source)                                       \
    ADJOINT_DETACH(name, traits, SUBTRACT)                                                         \
    ADJOINT_DETACH(name, traits, ZERO)                                                             \
    ADJOINT_DETACH(name, traits, VALUE)                                                            \
    ADJOINT_DETACH(name, traits, NONE)                                                             \
    ADJOINT_DETACH(name, traits, NEXT)
RV_NEURON_LIST(ADJOINTS)

#define ADJOINT_THREE(name, reset, detached)                                                       \
    {                                                                                              \
        adjoint_##name##_##reset##_##detached##_NONE,                                              \
            adjoint_##name##_##reset##_##detached##_FREE,                                          \
            adjoint_##name##_##reset##_##detached##_TIED                                           \
    }
#define ADJOINT_SIX(name, reset)                                                                   \
    [RV_CPU_RESET_##reset] = {ADJOINT_THREE(name, reset, 0), ADJOINT_THREE(name, reset, 1)}
#define ADJOINT_ROW(name, traits, parameters, sentence, source)                                    \
    {ADJOINT_SIX(name, SUBTRACT), ADJOINT_SIX(name, ZERO), ADJOINT_SIX(name, VALUE),               \
     ADJOINT_SIX(name, NONE), ADJOINT_SIX(name, NEXT)},
static const adjoint_fn adjoints[RV_NEURONS][RV_CPU_RESETS][2][LEARNINGS] = {
    RV_NEURON_LIST(ADJOINT_ROW)};

/* ---- driver ---------------------------------------------------------------------------------- */
typedef struct adjoint_job {
    const rv_neuron_backward *n;
    adjoint_fn step;
    slope_fn slope;
    unsigned traits;
    bool overwrite;      /* h becomes the adjoint of x */
    int t0, t1, columns; /* steps; columns of one item */
    const float *sums;   /* recurrent: adjoint of s[t0] with the feedback's part [B][ld] */
} adjoint_job;

enum { SAMPLES = 16 }; /* of one item */
static const float zeros[EVENT_TILE];

/* Absent adjoints are read as zeros: one loop serves all cases. */
static const float *row_or_zeros(rv_values v, int t, int b, int col) {
    return v.data ? values_row(v, t, b) + col : zeros;
}
/* The same of a state plane. */
static const float *plane_or_zeros(const float *plane, int b, int ld, int col) {
    return plane ? plane + (size_t)b * (size_t)ld + col : zeros;
}
/* What is carried must be there where the kind has it; NULL where not. */
static float *plane_at(float *plane, int b, int ld, int col) {
    return plane ? plane + (size_t)b * (size_t)ld + col : NULL;
}
/* Spikes of a tile, sixteen units in each number: x86 and arm are little endian. */
static const uint16_t *bits_at(rv_spikes s, int t, int b, int col) {
    return s.bits ? (const uint16_t *)spikes_row(s, t, b) + col / RV_LANES : NULL;
}

/* theta[t] of an adaptive kind; others have their parameter array. */
static void thresholds(const adjoint_job *job, const adjoint_tile *tile, const float *a,
                       float *out) {
    for (int j = 0; j < tile->cols; j++) {
        rv_unit p = rv_cpu_unit(tile->param, j);
        out[j] = rv_threshold(job->traits, &p, a[j]);
    }
}

/* The membrane after step t-1, from what the tape keeps of it. */
static void membrane_before(const adjoint_job *job, const adjoint_tile *tile, int t, int b, int col,
                            float *out) {
    const rv_neuron_backward *n = job->n;
    const float *h = row_or_zeros(n->h, t - 1, b, col), *a = row_or_zeros(n->a, t - 1, b, col);
    const uint16_t *s = bits_at(n->s, t - 1, b, col);
    for (int j = 0; j < tile->cols; j++) {
        rv_unit p = rv_cpu_unit(tile->param, j);
        float fired = s ? (float)(s[j / RV_LANES] >> j % RV_LANES & 1) : 0.0f;
        out[j] =
            s ? rv_membrane(n->neuron, &p, h[j], rv_threshold(job->traits, &p, a[j]), fired) : h[j];
    }
}

/* State of t-1 for the gradients of learned parameters; zeros before a sample's first step. */
static void state_before(const adjoint_job *job, adjoint_tile *tile, int t, int b, int col,
                         float *membrane) {
    const rv_neuron_backward *n = job->n;
    tile->v_last = tile->i_last = tile->a_last = zeros;
    if (rv_cpu_starts(n->starts, n->B, t, b)) return;
    if (t == 0) {
        tile->v_last = plane_or_zeros(n->before.v, b, n->ld, col);
        tile->i_last = plane_or_zeros(n->before.i, b, n->ld, col);
        tile->a_last = plane_or_zeros(n->before.a, b, n->ld, col);
        return;
    }
    membrane_before(job, tile, t, b, col, membrane);
    tile->v_last = membrane;
    tile->i_last = row_or_zeros(n->i, t - 1, b, col);
    tile->a_last = row_or_zeros(n->a, t - 1, b, col);
}

/* Units that only pad take part in nothing: their parameters are those of a real unit. */
static void adjoint_pad(const adjoint_tile *tile, int first) {
    size_t bytes = (size_t)(tile->cols - first) * sizeof(float);
    float *planes[] = {tile->gx, tile->v, tile->ci, tile->ca};
    for (size_t k = 0; k < sizeof planes / sizeof planes[0]; k++)
        if (planes[k]) memset(planes[k] + first, 0, bytes);
    for (int p = 0; tile->part && p < RV_P_COUNT; p++)
        memset(tile->part[p] + first, 0, bytes);
}

/* A sample that starts at step t owes nothing to step t-1. */
static void adjoint_restart(const adjoint_tile *tile) {
    size_t bytes = (size_t)tile->cols * sizeof(float);
    memset(tile->v, 0, bytes);
    if (tile->ci) memset(tile->ci, 0, bytes);
    if (tile->ca) memset(tile->ca, 0, bytes);
}

/* Everything of one step of one tile, in the order the equations need it: slopes from h before h is
 * overwritten, state of t-1 from the tape, the step, then what it feeds. */
static void adjoint_tile_run(const adjoint_job *job, int t, int b, int col, int cols) {
    const rv_neuron_backward *n = job->n;
    const bool learns = n->neuron->learn != 0, adaptation = job->traits & RV_HAS_ADAPTATION;
    float slope[EVENT_TILE], theta[EVENT_TILE], gx[EVENT_TILE], membrane[EVENT_TILE];
    float part[RV_P_COUNT][EVENT_TILE], feed[EVENT_TILE];
    adjoint_tile tile = {.cols = cols,
                         .h = values_row(n->h, t, b) + col,
                         .i = row_or_zeros(n->i, t, b, col),
                         .a = row_or_zeros(n->a, t, b, col),
                         .s = bits_at(n->s, t, b, col),
                         .slope = slope,
                         .gs = job->sums ? plane_or_zeros(job->sums, b, n->ld, col)
                                         : row_or_zeros(n->gs, t, b, col),
                         .gv = row_or_zeros(n->gv, t, b, col),
                         .gh = row_or_zeros(n->gh, t, b, col),
                         .feed = zeros,
                         .v = plane_at(n->adjoint.v, b, n->ld, col),
                         .ci = plane_at(n->adjoint.i, b, n->ld, col),
                         .ca = plane_at(n->adjoint.a, b, n->ld, col),
                         .gx = job->overwrite ? values_row(n->h, t, b) + col : gx,
                         .part = learns ? part : NULL};
    for (int p = 0; p < RV_P_COUNT; p++)
        tile.param[p] = n->param[p] + col, tile.back[p] = n->back[p] + col;
    /* Rows end at page borders, where the processor's own prefetch stops. */
    for (int j = 0; b + 1 < n->B && j < cols; j += RV_LANES) {
        __builtin_prefetch(tile.h + n->h.ld + j, 1);
        if (tile.gs != zeros) __builtin_prefetch(tile.gs + n->ld + j);
    }
    if (job->slope) {
        const float *at = tile.param[RV_P_THETA];
        if (adaptation) {
            thresholds(job, &tile, tile.a, theta);
            at = theta;
        }
        job->slope(cols, tile.h, at, n->neuron->surrogate.p, slope);
    }
    /* s[t] feeds a[t+1]: the step overwrites the carried adjoint, so it reads a copy. */
    if (adaptation && !n->neuron->detach_adaptation) {
        memcpy(feed, tile.ca, (size_t)cols * sizeof(float));
        tile.feed = feed;
    }
    if (learns) state_before(job, &tile, t, b, col, membrane);
    job->step(&tile);
    if (rv_cpu_starts(n->starts, n->B, t, b)) adjoint_restart(&tile);
    if (col + cols > n->n) adjoint_pad(&tile, n->n - col);
    /* A static input takes the sum over time. */
    if (n->held.data) {
        float *held = values_row(n->held, 0, b) + col;
        for (int j = 0; j < cols; j++)
            held[j] += tile.gx[j];
    }
    /* Only what the caller asked for; the rest of `part` was computed along the way. */
    for (int p = 0; learns && p < RV_P_COUNT; p++) {
        if (!(n->neuron->learn >> p & 1u) || !n->grad[p]) continue;
        for (int j = 0; j < cols; j++)
            n->grad[p][col + j] += part[p][j];
    }
}

/* Some samples, all columns: rows are read and written in the order they lie, and what a few
 * samples carry stays in the second cache. */
static void samples_item(void *argument, int item, int worker) {
    const adjoint_job *job = argument;
    const rv_neuron_backward *n = job->n;
    int first = item * SAMPLES, last = first + SAMPLES < n->B ? first + SAMPLES : n->B;
    (void)worker;
    for (int t = job->t1 - 1; t >= job->t0; t--)
        for (int b = first; b < last; b++)
            for (int col = 0; col < n->ld; col += EVENT_TILE)
                adjoint_tile_run(job, t, b, col,
                                 n->ld - col < EVENT_TILE ? n->ld - col : EVENT_TILE);
}

/* Some columns, all samples: the order in which gradients are added. */
static void columns_item(void *argument, int item, int worker) {
    const adjoint_job *job = argument;
    const rv_neuron_backward *n = job->n;
    int first = item * job->columns;
    int last = first + job->columns < n->ld ? first + job->columns : n->ld;
    (void)worker;
    for (int t = job->t1 - 1; t >= job->t0; t--)
        for (int b = 0; b < n->B; b++)
            for (int col = first; col < last; col += EVENT_TILE)
                adjoint_tile_run(job, t, b, col, last - col < EVENT_TILE ? last - col : EVENT_TILE);
}

/* Learned parameters fix the order of samples; without them it is free. */
static void adjoint_steps(rv_ctx *ctx, adjoint_job *job) {
    const rv_neuron_backward *n = job->n;
    if (n->neuron->learn)
        rv_cpu_run(ctx, (n->ld + job->columns - 1) / job->columns, columns_item, job);
    else
        rv_cpu_run(ctx, (n->B + SAMPLES - 1) / SAMPLES, samples_item, job);
}

/* ---- recurrence: s[t] feeds x[t+1] ------------------------------------------------------------
 */
/* gs[t] += W gx[t+1]: a dense product at every step, whose rows are the samples. */
typedef struct feedback {
    float *transposed; /* recurrent weights [to][from] */
    float *next;       /* adjoint of x[t+1], nothing where a sample starts there [B][ld] */
    float *sums;       /* [B][ld] */
} feedback;

/* The weights are transposed once for all steps. */
static rv_status feedback_prepare(const rv_neuron_backward *n, rv_arena *arena, feedback *f) {
    rv_status status = RV_OK;
    size_t rows = (size_t)n->B * (size_t)n->ld, ld = (size_t)n->ld;
    TRY(rv_arena_get(arena, (size_t)n->n * ld, sizeof(float), &f->transposed));
    TRY(rv_arena_get(arena, rows, sizeof(float), &f->next));
    TRY(rv_arena_get(arena, rows, sizeof(float), &f->sums));
    memset(f->transposed, 0, (size_t)n->n * ld * sizeof(float));
    for (int from = 0; from < n->n; from++)
        for (int to = 0; to < n->n; to++)
            f->transposed[(size_t)to * ld + (size_t)from] =
                n->recurrent->weight[(size_t)from * (size_t)n->recurrent->ld + (size_t)to];
    /* The step after this chunk left its adjoint with the state. */
    if (n->adjoint.x)
        memcpy(f->next, n->adjoint.x, rows * sizeof(float));
    else
        memset(f->next, 0, rows * sizeof(float));
out:
    return status;
}

/* Keep gx of step t for step t-1. */
static void feedback_keep(const rv_neuron_backward *n, int t, float *to) {
    size_t bytes = (size_t)n->ld * sizeof(float);
    for (int b = 0; b < n->B; b++) {
        float *row = to + (size_t)b * (size_t)n->ld;
        if (rv_cpu_starts(n->starts, n->B, t, b))
            memset(row, 0, bytes);
        else
            memcpy(row, values_row(n->h, t, b), bytes);
    }
}

/* t descending: the product needs gx of the whole layer at t+1, so steps cannot be taken apart. */
static rv_status recurrent_run(rv_ctx *ctx, adjoint_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    const rv_neuron_backward *n = job->n;
    size_t bytes = (size_t)n->ld * sizeof(float);
    feedback f = {0};
    TRY(feedback_prepare(n, arena, &f));
    rv_product product = {.m = n->B,
                          .n = n->n,
                          .k = n->n,
                          .a = f.next,
                          .lda = (size_t)n->ld,
                          .b = f.transposed,
                          .ldb = (size_t)n->ld,
                          .c = f.sums,
                          .ldc = (size_t)n->ld,
                          .add = true};
    job->sums = f.sums;
    for (int t = n->T - 1; t >= 0; t--) {
        for (int b = 0; b < n->B; b++) {
            /* the product adds onto what others send to the spikes */
            float *row = f.sums + (size_t)b * (size_t)n->ld;
            if (n->gs.data)
                memcpy(row, values_row(n->gs, t, b), bytes);
            else
                memset(row, 0, bytes);
        }
        TRY(rv_cpu_product(ctx, &product, arena));
        job->t0 = t;
        job->t1 = t + 1;
        adjoint_steps(ctx, job);
        feedback_keep(n, t, f.next);
    }
    if (n->adjoint.x) memcpy(n->adjoint.x, f.next, (size_t)n->B * bytes);
out:
    return status;
}

rv_status RV_CPU(neuron_backward)(rv_ctx *ctx, rv_queue *queue, const rv_neuron_backward *n,
                                  rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    const rv_neuron *neuron = n->neuron;
    rv_neuron_backward own = *n;
    const float *back[RV_P_COUNT];
    int tiles = (n->ld + EVENT_TILE - 1) / EVENT_TILE, threads = rv_cpu_threads(ctx);
    /* the specialised step */
    learning learn = !neuron->learn ? LEARN_NONE : neuron->gain_tied ? LEARN_TIED : LEARN_FREE;
    adjoint_job job = {
        .n = &own,
        .step = adjoints[neuron->kind][rv_cpu_reset_of(neuron)][neuron->detach_reset][learn],
        .traits = rv_neuron_traits(neuron->kind),
        .overwrite = !n->held.data || n->recurrent,
        .t1 = n->T,
        .columns = (tiles + threads - 1) / threads * EVENT_TILE};
    (void)queue;
    if (job.traits & RV_HAS_SPIKES) job.slope = slopes[neuron->surrogate.kind];
    TRY(rv_cpu_params(neuron, n->param, n->ld, arena, own.param));
    for (int p = 0; p < RV_P_COUNT; p++)
        back[p] = n->back[p] ? n->back[p] : own.param[p];
    TRY(rv_cpu_params(neuron, back, n->ld, arena, own.back));
    if (n->recurrent)
        TRY(recurrent_run(ctx, &job, arena));
    else
        adjoint_steps(ctx, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}
