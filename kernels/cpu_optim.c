/*
 * Optimisers: one pass over a tensor, elementwise, after PyTorch's formulas; then the limit of the
 * tensor. Norms, the rate encoder and spike counts.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"
#include "kernels/real.h"

#include <math.h>

/* Least value of a tensor that must stay above 0. */
#define LEAST_POSITIVE 1e-6f

enum { BLOCK = 4096 }; /* floats of one item */

/* What an update needs of its options, in float, once per tensor. */
typedef struct factors {
    float rate, decay, momentum, keep, beta1, new1, beta2, new2, step, root, epsilon, shrink;
} factors;

/* One row of `updates`: floats [first, last) of a tensor. */
typedef void (*update_fn)(const rv_optim_update *u, const factors *f, size_t first, size_t last);

/* Sutskever et al. 2013 in PyTorch's form: buf = momentum*buf + (1-dampening)*g; w -= rate*buf */
static void update_sgd(const rv_optim_update *u, const factors *f, size_t first, size_t last) {
    float *restrict w = u->weight, *restrict m = u->slot[0];
    const float *restrict grad = u->grad;
    if (f->momentum == 0) { /* no buffer: slot[0] may be absent */
        for (size_t i = first; i < last; i++) {
            float g = rv_fma(f->decay, w[i], grad[i] * u->scale);
            w[i] = rv_fma(-f->rate, g, w[i]);
        }
        return;
    }
    /* The first buffer is the gradient itself, undamped. */
    const float keep = u->step == 0 ? 1.0f : f->keep, momentum = u->step == 0 ? 0.0f : f->momentum;
    const float ahead = u->nesterov ? f->momentum : 1.0f, own = u->nesterov ? 1.0f : 0.0f;
    for (size_t i = first; i < last; i++) {
        float g = rv_fma(f->decay, w[i], grad[i] * u->scale);
        float buffer = rv_fma(momentum, m[i], keep * g);
        m[i] = buffer;
        w[i] = rv_fma(-f->rate, rv_fma(ahead, buffer, own * g), w[i]);
    }
}

/* Kingma, Ba 2015; decoupled: Loshchilov, Hutter 2019. A unit without any gradient so far does not
 * move, whatever epsilon. */
static void update_adam(const rv_optim_update *u, const factors *f, size_t first, size_t last) {
    float *restrict w = u->weight, *restrict m = u->slot[0], *restrict v = u->slot[1];
    const float *restrict grad = u->grad;
    const float scale = u->scale;
    for (size_t i = first; i < last; i++) {
        float before = w[i] * f->shrink, g = rv_fma(f->decay, w[i], grad[i] * scale);
        float mean = rv_fma(f->new1, g - m[i], m[i]);
        float square = rv_fma(f->new2 * g, g, f->beta2 * v[i]);
        float under = rv_fma(rv_sqrt(square), f->root, f->epsilon);
        float move = under > 0 ? mean / under : 0;
        m[i] = mean;
        v[i] = square;
        w[i] = rv_fma(-f->step, move, before);
    }
}

/* Tieleman, Hinton 2012; centred: Graves 2013. Slots: square average, momentum, average. */
static void update_rmsprop(const rv_optim_update *u, const factors *f, size_t first, size_t last) {
    float *w = u->weight, *v = u->slot[0], *buffer = u->slot[1], *average = u->slot[2];
    for (size_t i = first; i < last; i++) {
        float g = rv_fma(f->decay, w[i], u->grad[i] * u->scale), square, move;
        v[i] = square = rv_fma(f->new2 * g, g, f->beta2 * v[i]);
        if (u->centered) {
            average[i] = rv_fma(f->new2, g - average[i], average[i]);
            square = rv_max(0, rv_fma(-average[i], average[i], square));
        }
        square = rv_sqrt(square) + f->epsilon;
        move = square > 0 ? g / square : 0;
        if (f->momentum != 0) buffer[i] = move = rv_fma(f->momentum, buffer[i], move);
        w[i] = rv_fma(-f->rate, move, w[i]);
    }
}

/* Rows of the optimiser table, in its order. */
enum { SGD, ADAM, ADAMW, RMSPROP, KINDS };
static const update_fn updates[KINDS] = {
    [SGD] = update_sgd, [ADAM] = update_adam, [ADAMW] = update_adam, [RMSPROP] = update_rmsprop};

/* In double, as PyTorch computes its scalars, then rounded once. */
static factors factors_of(const rv_optim_update *u) {
    bool decoupled = u->decoupled || u->kind == ADAMW;
    double beta2 = u->kind == RMSPROP ? u->alpha : u->beta2;
    double bias1 = 1 - pow(u->beta1, (double)u->step + 1);
    double bias2 = 1 - pow(u->beta2, (double)u->step + 1);
    return (factors){.rate = (float)u->rate,
                     .decay = decoupled ? 0.0f : (float)u->decay,
                     .momentum = (float)u->momentum,
                     .keep = (float)(1 - u->dampening),
                     .beta1 = (float)u->beta1,
                     .new1 = (float)(1 - u->beta1),
                     .beta2 = (float)beta2,
                     .new2 = (float)(1 - beta2),
                     .step = (float)(u->rate / bias1),
                     .root = (float)(1 / sqrt(bias2)),
                     .epsilon = (float)u->epsilon,
                     .shrink = decoupled ? (float)(1 - u->rate * u->decay) : 1.0f};
}

/* Decays and thresholds must stay what they are whatever the step was. */
static void limit_apply(rv_limit limit, float *w, size_t first, size_t last) {
    if (limit == RV_LIMIT_UNIT)
        for (size_t i = first; i < last; i++)
            w[i] = rv_min(rv_max(w[i], 0.0f), 1.0f);
    if (limit == RV_LIMIT_POSITIVE)
        for (size_t i = first; i < last; i++)
            w[i] = rv_max(w[i], LEAST_POSITIVE);
}

/* Vectors as wide as this level has; floats of any place may be looked at as such. */
#if defined(__AVX512F__)
enum { SOUND_BYTES = 64 };
#elif defined(__AVX__)
enum { SOUND_BYTES = 32 };
#else
enum { SOUND_BYTES = 16 };
#endif
typedef float lanes __attribute__((vector_size(SOUND_BYTES), aligned(4), may_alias));

/* A sum in which what is not finite stays: x*x*0 is 0 or NAN. In vectors said to be such, as a loop
 * over an array of sums does not become one. */
static bool sound(const float *x, size_t first, size_t last) {
    enum { WIDTH = SOUND_BYTES / sizeof(float) };
    lanes even = {0}, odd = {0};
    float rest = 0;
    size_t i = first;
    for (; i + 2 * WIDTH <= last; i += 2 * WIDTH) {
        lanes a = *(const lanes *)(x + i), b = *(const lanes *)(x + i + WIDTH);
        even += a * a * 0.0f;
        odd += b * b * 0.0f;
    }
    for (; i < last; i++)
        rest += x[i] * x[i] * 0.0f;
    for (int k = 0; k < WIDTH; k++)
        rest += even[k] + odd[k];
    return rest == 0;
}

typedef struct update_job {
    const rv_optim_update *u;
    factors f;
} update_job;

/* The limit and the look for what is not finite follow while the block is still in the first
 * cache. */
static void update_item(void *argument, int item, int worker) {
    const update_job *job = argument;
    size_t first = (size_t)item * BLOCK, last = first + BLOCK;
    (void)worker;
    if (last > job->u->n) last = job->u->n;
    updates[job->u->kind](job->u, &job->f, first, last);
    limit_apply(job->u->limit, job->u->weight, first, last);
    if (job->u->bad && !(sound(job->u->grad, first, last) && sound(job->u->weight, first, last)))
        __atomic_store_n(job->u->bad, 1u, __ATOMIC_RELAXED); /* by several workers */
}

static int blocks_of(size_t n) {
    return (int)((n + BLOCK - 1) / BLOCK);
}

rv_status RV_CPU(optim_update)(rv_ctx *ctx, rv_queue *queue, const rv_optim_update *u) {
    (void)queue;
    if (u->kind < 0 || u->kind >= KINDS)
        return rv_fail(RV_INTERNAL, "the CPU has no optimiser %d", u->kind);
    update_job job = {u, factors_of(u)};
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
