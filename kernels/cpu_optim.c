/*
 * Optimisers (optim.h): one pass over a tensor; then the limit of the tensor. Norms, the rate
 * encoder and spike counts.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"
#include "kernels/cpu_vec.h"
#include "kernels/optim.h"

#include <math.h>
#include <string.h>

/* Floats of an item; of a piece of it, whose rows in all blocks fit the first cache; of an update
 * from which on no cache keeps the blocks until they are read. */
enum { BLOCK = 4096, PIECE = 1024, LARGE = 1 << 19 };

/* One row of `updates`: floats [first, first + count) of a tensor, whose weights go from `old` to
 * `w`, both at `first`, which may be one place. */
typedef void (*update_fn)(const rv_optim_update *u, const rv_optim_factors *f, size_t first,
                          size_t count, const float *old, float *w);

/* Plain descent has no buffer: slot[0] may be absent. */
static void update_sgd(const rv_optim_update *u, const rv_optim_factors *given, size_t first,
                       size_t count, const float *old, float *w) {
    const rv_optim_factors f = *given;
    float *restrict m = u->slot[0];
    const float *restrict grad = u->grad + first;
    if (!m) {
        RV_INDEPENDENT for (size_t i = 0; i < count; i++) w[i] =
            rv_update_plain(&f, old[i], grad[i]);
        return;
    }
    m += first;
    RV_INDEPENDENT for (size_t i = 0; i < count; i++) {
        float buffer = m[i];
        w[i] = rv_update_momentum(&f, old[i], grad[i], &buffer);
        m[i] = buffer;
    }
}

static void update_adam(const rv_optim_update *u, const rv_optim_factors *given, size_t first,
                        size_t count, const float *old, float *w) {
    const rv_optim_factors f = *given;
    float *restrict m = u->slot[0] + first, *restrict v = u->slot[1] + first;
    const float *restrict grad = u->grad + first;
    RV_INDEPENDENT for (size_t i = 0; i < count; i++) {
        float mean = m[i], square = v[i];
        w[i] = rv_update_adam(&f, old[i], grad[i], &mean, &square);
        m[i] = mean;
        v[i] = square;
    }
}

/* Slots that are not there are a number nobody keeps. */
static void update_rmsprop(const rv_optim_update *u, const rv_optim_factors *f, size_t first,
                           size_t count, const float *old, float *w) {
    float *v = u->slot[0], *buffer = u->slot[1], *average = u->slot[2];
    bool moves = f->momentum != 0;
    for (size_t k = 0; k < count; k++) {
        float none[2] = {0};
        size_t i = first + k;
        w[k] = rv_update_rmsprop(f, old[k], u->grad[i], &v[i], moves ? &buffer[i] : &none[0],
                                 f->centered ? &average[i] : &none[1]);
    }
}

static const update_fn updates[RV_OPTIMS] = {[RV_OPTIM_SGD] = update_sgd,
                                             [RV_OPTIM_ADAM] = update_adam,
                                             [RV_OPTIM_ADAMW] = update_adam,
                                             [RV_OPTIM_RMSPROP] = update_rmsprop};

static void limit_apply(rv_limit limit, float *w, size_t count) {
    for (size_t i = 0; limit != RV_LIMIT_NONE && i < count; i++)
        w[i] = rv_limited(limit, w[i]);
}

/* A sum in which what is not finite stays: x*x*0 is 0 or NAN. In vectors said to be such, as a loop
 * over an array of sums does not become one. */
static bool sound(const float *x, size_t count) {
    rv_vec even = {0}, odd = {0};
    float rest = 0;
    size_t i = 0;
    for (; i + 2 * RV_WIDTH <= count; i += 2 * RV_WIDTH) {
        rv_vec a = vec_load(x + i), b = vec_load(x + i + RV_WIDTH);
        even += a * a * 0.0f;
        odd += b * b * 0.0f;
    }
    for (; i < count; i++)
        rest += x[i] * x[i] * 0.0f;
    for (int k = 0; k < RV_WIDTH; k++)
        rest += even[k] + odd[k];
    return rest == 0;
}

/* ---- views --------------------------------------------------------------------------------- */

static void trend_move(const rv_optim_update *u, size_t first, size_t count,
                       const float *restrict old, const float *restrict w) {
    float *restrict trend = u->trend + first;
    const float keep = (float)u->keep, fresh = (float)(1 - u->keep);
    for (size_t i = 0; i < count; i++)
        trend[i] = rv_fma(keep, trend[i], fresh * (w[i] - old[i]));
}

/* One term after the other over the piece. `old`: read where there is a `since`. */
static void view_make(const rv_optim_update *u, const rv_optim_view *view, size_t first,
                      size_t count, const float *restrict old, const float *restrict w,
                      float *restrict to) {
    memcpy(to, w, sizeof *to * count);
    for (int k = 0; k < view->terms; k++) {
        const float *restrict m = u->slot[0] + first, *restrict v = u->slot[1] + first;
        const float factor = -view->factor[k], root = view->root[k], epsilon = (float)u->epsilon;
        if (u->kind == RV_OPTIM_SGD) {
            for (size_t i = 0; i < count; i++)
                to[i] = rv_fma(factor, m[i], to[i]);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            float under = rv_fma(rv_sqrt(v[i]), root, epsilon);
            to[i] = rv_fma(factor, under > 0 ? m[i] / under : 0, to[i]);
        }
    }
    if (view->since != 0)
        for (size_t i = 0; i < count; i++)
            to[i] = rv_fma(view->since, w[i] - old[i], to[i]);
    if (view->mean != 0)
        for (size_t i = 0; i < count; i++)
            to[i] = rv_fma(-view->mean, u->trend[first + i], to[i]);
    limit_apply(u->limit, to, count);
}

typedef struct update_job {
    const rv_optim_update *u;
    rv_optim_factors f;
    bool large; /* what is only written goes past the caches */
    bool old;   /* the weights found are needed when the new ones are there */
} update_job;

/* Each block is read from memory once and written once: the limit, other views and the look for
 * what is not finite find the piece in the first cache. */
static void update_piece(const update_job *job, size_t first, size_t count) {
    const rv_optim_update *u = job->u;
    float before[PIECE], after[PIECE], seen[PIECE];
    const float *old = (u->from ? u->from : u->weight) + first;
    float *w = u->from && job->large ? after : u->weight + first;
    if (job->old && !u->from) old = memcpy(before, old, sizeof *before * count);
    updates[u->kind](u, &job->f, first, count, old, w);
    limit_apply(u->limit, w, count);
    if (u->trend) trend_move(u, first, count, old, w);
    for (int k = 0; k < 2; k++) {
        if (!u->view[k]) continue;
        float *to = job->large ? seen : u->view[k]->to + first;
        view_make(u, u->view[k], first, count, old, w, to);
        if (to == seen) vec_stream(u->view[k]->to + first, seen, count);
    }
    if (u->bad && !(sound(u->grad + first, count) && sound(w, count)))
        __atomic_store_n(u->bad, 1u, __ATOMIC_RELAXED); /* by several workers */
    if (w == after) vec_stream(u->weight + first, after, count);
}

static void update_item(void *argument, int item, int worker) {
    const update_job *job = argument;
    size_t first = (size_t)item * BLOCK, last = first + BLOCK;
    (void)worker;
    if (last > job->u->n) last = job->u->n;
    for (; first < last; first += PIECE)
        update_piece(job, first, last - first < PIECE ? last - first : PIECE);
    if (job->large) vec_streamed();
}

static int blocks_of(size_t n) {
    return (int)((n + BLOCK - 1) / BLOCK);
}

rv_status RV_CPU(optim_update)(rv_ctx *ctx, rv_queue *queue, const rv_optim_update *u) {
    (void)queue;
    if (u->kind < 0 || u->kind >= RV_OPTIMS)
        return rv_fail(RV_INTERNAL, "the CPU has no optimiser %d", u->kind);
    update_job job = {u, rv_optim_factors_of(u), u->n >= LARGE, u->trend != NULL};
    for (int k = 0; k < 2; k++)
        job.old |= u->view[k] && u->view[k]->since != 0;
    rv_cpu_run(ctx, blocks_of(u->n), update_item, &job);
    return RV_OK;
}

/* ---- norm ---------------------------------------------------------------------------------- */
/* Eight sums within a block, so that it vectorises; blocks are added in order in one thread, which
 * memory bounds anyway. */
rv_status RV_CPU(norm2)(rv_ctx *ctx, rv_queue *queue, const float *x, size_t n, double *sum) {
    double total = 0;
    (void)ctx, (void)queue;
    for (size_t first = 0; first < n; first += 256) {
        size_t last = first + 256 < n ? first + 256 : n, i = first;
        double lane[8] = {0};
        for (; i + 8 <= last; i += 8)
            for (int k = 0; k < 8; k++)
                lane[k] += (double)x[i + (size_t)k] * (double)x[i + (size_t)k];
        for (int k = 0; i < last; i++, k++)
            lane[k] += (double)x[i] * (double)x[i];
        total += ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
                 ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    }
    *sum = total;
    return RV_OK;
}

/* ---- spikes --------------------------------------------------------------------------------- */
/* One frame per sample; steps t0 ... of it. */
typedef struct encode_job {
    rv_values frame;
    const uint64_t *sample;
    uint64_t seed;
    uint32_t epoch;
    int t0;
    rv_spikes out;
} encode_job;

/* Each output of the generator is a counter's function, so four neighbours are independent of all
 * others and the loop vectorises over counters. */
static void encode_item(void *argument, int item, int worker) {
    const encode_job *job = argument;
    int t = item / job->out.B, b = item % job->out.B, n = job->out.n;
    const float *frame = values_row(job->frame, 0, b);
    uint32_t *bits = spikes_row(job->out, t, b);
    (void)worker;
    for (int w = 0; w < rv_words(n); w++) {
        uint32_t random[8][4], word = 0;
        int units = n - w * 32 < 32 ? n - w * 32 : 32;
        for (int q = 0; q < 8; q++)
            rv_random4(random[q], job->seed, RV_FOR_ENCODE, 0, job->epoch, (uint32_t)job->sample[b],
                       (uint32_t)(job->t0 + t), (uint32_t)(w * 8 + q));
        for (int k = 0; k < units; k++)
            word |= (uint32_t)(rv_uniform(random[k / 4][k % 4]) < frame[w * 32 + k]) << k;
        bits[w] = word;
    }
}

rv_status RV_CPU(encode_rate)(rv_ctx *ctx, rv_queue *queue, rv_values frame, const uint64_t *sample,
                              uint64_t seed, uint32_t epoch, int t0, rv_spikes out) {
    encode_job job = {frame, sample, seed, epoch, t0, out};
    (void)queue;
    rv_cpu_run(ctx, out.T * out.B, encode_item, &job);
    return RV_OK;
}

/* One pass over bits is cheaper than waking the pool. */
rv_status RV_CPU(count_spikes)(rv_ctx *ctx, rv_queue *queue, rv_spikes s, int64_t *counts) {
    int words = rv_words(s.n);
    (void)ctx, (void)queue;
    for (int t = 0; t < s.T; t++)
        for (int b = 0; b < s.B; b++) {
            const uint32_t *bits = spikes_row(s, t, b);
            for (int w = 0; w < words; w++)
                counts[b] += __builtin_popcount(bits[w]);
        }
    return RV_OK;
}
