/*
 * Optimisers: one element's update after PyTorch's formulas, inline, compiled by gcc for the CPU
 * and by nvcc for the GPU. Scalars are computed in double, as PyTorch does, then rounded once.
 */
#ifndef RV_KERNELS_OPTIM_H
#define RV_KERNELS_OPTIM_H

#include "kernels/kernels.h"
#include "kernels/real.h"

/* Rows of the optimiser table, in its order. */
enum { RV_OPTIM_SGD, RV_OPTIM_ADAM, RV_OPTIM_ADAMW, RV_OPTIM_RMSPROP, RV_OPTIMS };

/* Least value of a tensor that must stay above 0. */
#define RV_LEAST_POSITIVE 1e-6f

/* What an update needs of its options, once per tensor. */
typedef struct rv_optim_factors {
    float scale, rate, decay, momentum, keep, ahead, own;
    float new1, beta2, new2, step, root, epsilon, shrink, mixed;
    bool centered;
} rv_optim_factors;

/* The first buffer of a descent with momentum is the gradient itself, undamped. A gradient D
 * updates late would by now have moved the weights by 1 + m + ... + m^D times itself: m^D of it is
 * in the velocity, the rest (1-m^D)/(1-m) comes from `own` (Kosson et al. 2021). */
static inline rv_optim_factors rv_optim_factors_of(const rv_optim_update *u) {
    bool decoupled = u->decoupled || u->kind == RV_OPTIM_ADAMW, first = u->step == 0;
    double beta2 = u->kind == RV_OPTIM_RMSPROP ? u->alpha : u->beta2;
    double bias1 = 1 - pow(u->beta1, (double)u->step + 1);
    double bias2 = 1 - pow(u->beta2, (double)u->step + 1);
    double ahead = u->nesterov ? u->momentum : pow(u->momentum, u->late);
    rv_optim_factors f;
    f.scale = u->scale;
    f.rate = (float)u->rate;
    f.decay = decoupled ? 0.0f : (float)u->decay;
    f.momentum = (float)u->momentum;
    f.mixed = first ? 0.0f : f.momentum;
    f.keep = first ? 1.0f : (float)(1 - u->dampening);
    f.ahead = (float)ahead;
    f.own = u->nesterov       ? 1.0f
            : u->momentum < 1 ? (float)((1 - ahead) / (1 - u->momentum))
                              : (float)u->late;
    f.new1 = (float)(1 - u->beta1);
    f.beta2 = (float)beta2;
    f.new2 = (float)(1 - beta2);
    f.step = (float)(u->rate / bias1);
    f.root = (float)(1 / sqrt(bias2));
    f.epsilon = (float)u->epsilon;
    f.shrink = decoupled ? (float)(1 - u->rate * u->decay) : 1.0f;
    f.centered = u->centered;
    return f;
}

/* Each gives the new weight; s0, s1, s2 are the slots' elements, in and out. */

static RV_HD float rv_update_plain(const rv_optim_factors *f, float w, float grad) {
    return rv_fma(-f->rate, rv_fma(f->decay, w, grad * f->scale), w);
}

/* Sutskever et al. 2013 in PyTorch's form: buf = momentum*buf + (1-dampening)*g; w -= rate*buf */
static RV_HD float rv_update_momentum(const rv_optim_factors *f, float w, float grad, float *s0) {
    float g = rv_fma(f->decay, w, grad * f->scale);
    float buffer = rv_fma(f->mixed, *s0, f->keep * g);
    *s0 = buffer;
    return rv_fma(-f->rate, rv_fma(f->ahead, buffer, f->own * g), w);
}

/* Kingma, Ba 2015; decoupled: Loshchilov, Hutter 2019. A unit without any gradient so far does not
 * move, whatever epsilon. */
static RV_HD float rv_update_adam(const rv_optim_factors *f, float w, float grad, float *s0,
                                  float *s1) {
    float before = w * f->shrink, g = rv_fma(f->decay, w, grad * f->scale);
    float mean = rv_fma(f->new1, g - *s0, *s0);
    float square = rv_fma(f->new2 * g, g, f->beta2 * *s1);
    float under = rv_fma(rv_sqrt(square), f->root, f->epsilon);
    float move = under > 0 ? mean / under : 0;
    *s0 = mean;
    *s1 = square;
    return rv_fma(-f->step, move, before);
}

/* Tieleman, Hinton 2012; centred: Graves 2013. Slots: square average, momentum, average; those that
 * are not used are read and written all the same. */
static RV_HD float rv_update_rmsprop(const rv_optim_factors *f, float w, float grad, float *s0,
                                     float *s1, float *s2) {
    float g = rv_fma(f->decay, w, grad * f->scale), square, move;
    *s0 = square = rv_fma(f->new2 * g, g, f->beta2 * *s0);
    if (f->centered) {
        *s2 = rv_fma(f->new2, g - *s2, *s2);
        square = rv_max(0, rv_fma(-*s2, *s2, square));
    }
    square = rv_sqrt(square) + f->epsilon;
    move = square > 0 ? g / square : 0;
    if (f->momentum != 0) *s1 = move = rv_fma(f->momentum, *s1, move);
    return rv_fma(-f->rate, move, w);
}

/* Decays and thresholds must stay what they are whatever the step was. */
static RV_HD float rv_limited(rv_limit limit, float w) {
    if (limit == RV_LIMIT_UNIT) return rv_min(rv_max(w, 0.0f), 1.0f);
    return limit == RV_LIMIT_POSITIVE ? rv_max(w, RV_LEAST_POSITIVE) : w;
}

#endif
