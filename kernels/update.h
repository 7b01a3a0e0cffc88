/*
 * What an update of weights takes: one tensor, its gradient and state, and which other weights are
 * wanted beside the new ones. Part of kernels/kernels.h, through which the other folders include
 * it.
 */
#ifndef RV_UPDATE_H
#define RV_UPDATE_H

#include "kernels/base.h"

typedef enum rv_limit { RV_LIMIT_NONE, RV_LIMIT_UNIT, RV_LIMIT_POSITIVE } rv_limit; /* 0..1, > 0 */

/* Other weights that an update makes in the same pass, from those it leaves (w'), those it found
 * (w) and the state it leaves: w' - sum of factor*direction(root) + since*(w' - w) - mean*trend'.
 * The direction is the velocity (sgd; root is not read) or m/(sqrt(v)*root + epsilon) (adam). */
enum { RV_VIEW_TERMS = 64 };
typedef struct rv_optim_view {
    float *to; /* NULL: not wanted */
    int terms;
    float factor[RV_VIEW_TERMS], root[RV_VIEW_TERMS];
    float since, mean;
} rv_optim_view;

/* One tensor's update, applied to n floats starting at the given pointers. Elementwise, fmaf. */
typedef struct rv_optim_update {
    int kind; /* row of snn's optimiser table */
    size_t n;
    float *weight;     /* in and out */
    const float *from; /* the weights to start from, elsewhere; NULL: in `weight` */
    const float *grad;
    float *slot[3]; /* optimiser state blocks (m, v, ...), NULL where unused */
    float scale;    /* the gradient is multiplied by it first (clipping; 1 = none) */
    double rate, decay, momentum, dampening, beta1, beta2, epsilon, alpha;
    bool nesterov, decoupled, centered;
    int64_t step; /* updates made before this one */
    /* sgd: the gradient comes this many updates late and at once moves the weights by all it would
     * have moved them by now; 0: it does not. Without nesterov and dampening. */
    int late;
    float *trend; /* keep*trend + (1-keep)*(w' - w); NULL: none */
    double keep;
    const rv_optim_view *view[2]; /* NULL: none; `mean` needs `trend` */
    rv_limit limit;
    uint32_t *bad; /* set to 1 where a gradient or a new weight is not finite, or its square is
                    * not; or NULL */
} rv_optim_update;

#endif
