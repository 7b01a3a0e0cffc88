/*
 * Pools over planes: average, sum and maximum, and their adjoints, as PyTorch's AvgPool2d (padding
 * counts in the divisor) and MaxPool2d (padding is minus infinity, the first of equal values wins).
 * An item is one image; nothing is shared between images, so threads and chunks cannot change
 * bits. Rows of bits are unpacked, for a plane has few units and every one is read several times.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"

#include <math.h>

typedef struct pool_job {
    const rv_pool *pool;
    const rv_signal *x; /* read by the maximum's adjoint only */
    rv_values y;        /* forward: out; backward: adjoint of it */
    rv_values gx;       /* backward */
    bool add;
    float *scratch; /* per worker: a row of x, and of the planes' best values and places */
    size_t scratch_floats;
} pool_job;

/* Output columns [first, last) whose tap at offset kx falls inside a row of `width`. */
static void tap_range(const rv_window *w, int kx, int width, int columns, int *first, int *last) {
    int shift = kx * w->dilation[1] - w->padding[1], stride = w->stride[1];
    *first = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *last = width - shift > 0 ? (width - shift - 1) / stride + 1 : 0;
    if (*last > columns) *last = columns;
    if (*first > *last) *first = *last;
}

/* ---- windows of 2 x 2 side by side --------------------------------------------------------- */
/* Nearly every network's pool: rows of constant distance become vectors. The same operations in the
 * same order as below, hence the same bits. */
static bool halves(const rv_pool *p) {
    const rv_window *w = &p->window;
    bool half = true;
    for (int a = 0; a < 2; a++)
        half = half && w->kernel[a] == 2 && w->stride[a] == 2 && w->dilation[a] == 1 &&
               w->padding[a] == 0;
    return half;
}

static void sum_halves(const rv_pool *p, const float *restrict x, float *restrict y) {
    float count = p->kind == RV_POOL_AVG ? 4.0f : 1.0f;
    for (int oy = 0; oy < p->out.h; oy++) {
        const float *above = x + 2 * oy * p->in.w, *below = above + p->in.w;
        float *out = y + oy * p->out.w;
        for (int ox = 0; ox < p->out.w; ox++)
            out[ox] =
                (0.0f + above[2 * ox] + above[2 * ox + 1] + below[2 * ox] + below[2 * ox + 1]) /
                count;
    }
}

/* The adjoint is added (whole false: to what is there, or zeros) or is all there will be: then rows
 * need not be zeroed first, and windows fill them but for an odd last row or column. */
static void sum_halves_adjoint(const rv_pool *p, const float *restrict g, float *restrict gx,
                               bool whole) {
    float factor = p->kind == RV_POOL_AVG ? 0.25f : 1.0f;
    int width = 2 * p->out.w;
    for (int oy = 0; oy < p->out.h; oy++, g += p->out.w) {
        float *restrict above = gx + 2 * oy * p->in.w, *restrict below = above + p->in.w;
        if (whole) {
            for (int ox = 0; ox < p->out.w; ox++) {
                float share = 0.0f + g[ox] * factor; /* as a sum from zero: no negative zero */
                above[2 * ox] = above[2 * ox + 1] = share;
                below[2 * ox] = below[2 * ox + 1] = share;
            }
            for (int x = width; x < p->in.w; x++)
                above[x] = below[x] = 0.0f;
            continue;
        }
        for (int ox = 0; ox < p->out.w; ox++) {
            float share = g[ox] * factor;
            above[2 * ox] += share;
            above[2 * ox + 1] += share;
            below[2 * ox] += share;
            below[2 * ox + 1] += share;
        }
    }
    for (int i = 2 * p->out.h * p->in.w; whole && i < p->in.h * p->in.w; i++)
        gx[i] = 0.0f;
}

/* Selects instead of branches: which of four is the largest, no processor predicts. */
static void max_halves(const rv_pool *p, const float *restrict x, float *restrict y,
                       int32_t *restrict place) {
    for (int oy = 0; oy < p->out.h; oy++) {
        int32_t start = 2 * oy * p->in.w;
        const float *above = x + start, *below = above + p->in.w;
        for (int ox = 0; ox < p->out.w; ox++) {
            const float value[4] = {above[2 * ox], above[2 * ox + 1], below[2 * ox],
                                    below[2 * ox + 1]};
            const int32_t offset[4] = {0, 1, p->in.w, p->in.w + 1};
            float best = value[0];
            int32_t at = 0;
            for (int k = 1; k < 4; k++) {
                int better = (value[k] > best) | (value[k] != value[k]);
                best = better ? value[k] : best;
                at = better ? offset[k] : at;
            }
            y[oy * p->out.w + ox] = best;
            place[oy * p->out.w + ox] = start + 2 * ox + at;
        }
    }
}

/* ---- any window ---------------------------------------------------------------------------- */
/* One plane: taps ascending for every output, so a sum has one order whatever runs in parallel. */
static void sum_plane(const rv_pool *p, const float *x, float *y) {
    const rv_window *w = &p->window;
    if (halves(p)) {
        sum_halves(p, x, y);
        return;
    }
    for (int i = 0; i < p->out.h * p->out.w; i++)
        y[i] = 0.0f;
    for (int oy = 0; oy < p->out.h; oy++) {
        float *out = y + oy * p->out.w;
        for (int ky = 0; ky < w->kernel[0]; ky++) {
            int iy = oy * w->stride[0] + ky * w->dilation[0] - w->padding[0];
            if (iy < 0 || iy >= p->in.h) continue;
            for (int kx = 0; kx < w->kernel[1]; kx++) {
                const float *in = x + iy * p->in.w;
                int first, last, stride = w->stride[1];
                int shift = kx * w->dilation[1] - w->padding[1];
                tap_range(w, kx, p->in.w, p->out.w, &first, &last);
                for (int ox = first; ox < last; ox++)
                    out[ox] += in[ox * stride + shift];
            }
        }
        if (p->kind == RV_POOL_AVG) {
            float count = (float)(w->kernel[0] * w->kernel[1]);
            for (int ox = 0; ox < p->out.w; ox++)
                out[ox] /= count;
        }
    }
}

/* The largest value under each window and its place in the plane; the first one wins, and a
 * not-a-number is kept. place -1: the window lies in the padding altogether. */
static void max_plane(const rv_pool *p, const float *x, float *y, int32_t *place) {
    const rv_window *w = &p->window;
    if (halves(p)) {
        max_halves(p, x, y, place);
        return;
    }
    for (int oy = 0; oy < p->out.h; oy++) {
        float *best = y + oy * p->out.w;
        int32_t *at = place + oy * p->out.w;
        for (int ox = 0; ox < p->out.w; ox++)
            best[ox] = -INFINITY, at[ox] = -1;
        for (int ky = 0; ky < w->kernel[0]; ky++) {
            int iy = oy * w->stride[0] + ky * w->dilation[0] - w->padding[0];
            if (iy < 0 || iy >= p->in.h) continue;
            for (int kx = 0; kx < w->kernel[1]; kx++) {
                int first, last, stride = w->stride[1];
                int start = iy * p->in.w + kx * w->dilation[1] - w->padding[1];
                tap_range(w, kx, p->in.w, p->out.w, &first, &last);
                for (int ox = first; ox < last; ox++) {
                    float value = x[start + ox * stride];
                    bool better = value > best[ox] || value != value || at[ox] < 0;
                    best[ox] = better ? value : best[ox];
                    at[ox] = better ? start + ox * stride : at[ox];
                }
            }
        }
    }
}

/* Every output's share goes back to each input under its window; padding takes none. */
static void sum_plane_adjoint(const rv_pool *p, const float *g, float *gx) {
    const rv_window *w = &p->window;
    float factor = p->kind == RV_POOL_AVG ? 1.0f / (float)(w->kernel[0] * w->kernel[1]) : 1.0f;
    for (int oy = 0; oy < p->out.h; oy++)
        for (int ky = 0; ky < w->kernel[0]; ky++) {
            int iy = oy * w->stride[0] + ky * w->dilation[0] - w->padding[0];
            if (iy < 0 || iy >= p->in.h) continue;
            for (int kx = 0; kx < w->kernel[1]; kx++) {
                int first, last, stride = w->stride[1];
                int start = iy * p->in.w + kx * w->dilation[1] - w->padding[1];
                tap_range(w, kx, p->in.w, p->out.w, &first, &last);
                for (int ox = first; ox < last; ox++)
                    gx[start + ox * stride] += g[oy * p->out.w + ox] * factor;
            }
        }
}

/* One image. `place` is wanted only by the adjoint, but finding it costs a comparison the maximum
 * needs anyway. */
static void forward_row(void *argument, int row, int worker) {
    const pool_job *job = argument;
    const rv_pool *p = job->pool;
    int t = row / job->y.B, b = row % job->y.B;
    float *scratch = job->scratch + (size_t)worker * job->scratch_floats;
    const float *x = signal_row(job->x, t, b, scratch);
    float *y = values_row(job->y, t, b);
    int32_t *place = (int32_t *)(scratch + row_floats(signal_units(job->x)));
    for (int c = 0; c < p->in.c; c++) {
        const float *in = x + (size_t)c * (size_t)(p->in.h * p->in.w);
        float *out = y + (size_t)c * (size_t)(p->out.h * p->out.w);
        if (p->kind == RV_POOL_MAX)
            max_plane(p, in, out, place);
        else
            sum_plane(p, in, out);
    }
    row_pad(job->y, y);
}

/* Adjoint of one image. The places of the maxima are found again from x: keeping them would cost
 * as much tape as the output. */
static void backward_row(void *argument, int row, int worker) {
    const pool_job *job = argument;
    const rv_pool *p = job->pool;
    int t = row / job->y.B, b = row % job->y.B;
    int in_plane = p->in.h * p->in.w, out_plane = p->out.h * p->out.w;
    float *scratch = job->scratch + (size_t)worker * job->scratch_floats;
    float *best = scratch + row_floats(signal_units(job->x));
    int32_t *place = (int32_t *)(best + out_plane);
    const float *g = values_row(job->y, t, b);
    float *gx = values_row(job->gx, t, b);
    const float *x = p->kind == RV_POOL_MAX ? signal_row(job->x, t, b, scratch) : NULL;
    bool half = p->kind != RV_POOL_MAX && halves(p);
    if (half && !job->add)
        row_pad(job->gx, gx);
    else
        for (int u = 0; !job->add && u < job->gx.ld; u++)
            gx[u] = 0.0f;
    for (int c = 0; c < p->in.c; c++, g += out_plane, gx += in_plane) {
        if (half) {
            sum_halves_adjoint(p, g, gx, !job->add);
            continue;
        }
        if (p->kind != RV_POOL_MAX) {
            sum_plane_adjoint(p, g, gx);
            continue;
        }
        max_plane(p, x + (size_t)c * (size_t)in_plane, best, place);
        for (int o = 0; o < out_plane; o++)
            if (place[o] >= 0) gx[place[o]] += g[o];
    }
}

/* Room for a row of x as floats, and for the best values and places of one plane. */
static rv_status pool_run(rv_ctx *ctx, pool_job *job, rv_arena *arena,
                          void (*row)(void *, int, int)) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    size_t plane = (size_t)rv_round_up(job->pool->out.h * job->pool->out.w, RV_LANES);
    job->scratch_floats = row_floats(signal_units(job->x)) + 2 * plane;
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job->scratch_floats * sizeof(float),
                     &job->scratch));
    rv_cpu_run(ctx, signal_frames(job->x) * job->y.B, row, job);
out:
    rv_arena_release(arena, mark);
    return status;
}

rv_status RV_CPU(pool_forward)(rv_ctx *ctx, rv_queue *queue, const rv_pool *pool,
                               const rv_signal *x, rv_values y, rv_arena *arena) {
    (void)queue;
    pool_job job = {.pool = pool, .x = x, .y = y};
    return pool_run(ctx, &job, arena, forward_row);
}

rv_status RV_CPU(pool_backward)(rv_ctx *ctx, rv_queue *queue, const rv_pool *pool,
                                const rv_signal *x, rv_values g, rv_values gx, bool add,
                                rv_arena *arena) {
    (void)queue;
    pool_job job = {.pool = pool, .x = x, .y = g, .gx = gx, .add = add};
    return pool_run(ctx, &job, arena, backward_row);
}
