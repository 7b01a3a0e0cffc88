/*
 * Forms of products, and shapes and parameters of what runs over planes (convolution, pools, batch
 * normalisation, delays): the part of kernels.h that their ops take. Include kernels.h, not this.
 */
#ifndef RV_KERNELS_PLANE_H
#define RV_KERNELS_PLANE_H

#include "kernels/base.h"

/* How a product is computed; fixed before the first step (README, "Same bits"). */
#define RV_FORM_LIST(X)                                                                            \
    X(AUTO, "auto")   /* decide by the measured rates */                                           \
    X(EVENT, "event") /* add weight rows of the active inputs; spikes only */                      \
    X(DENSE, "dense") /* matrix product */
#define RV_FORM_ENUM(name, text) RV_FORM_##name,
typedef enum rv_form { RV_FORM_LIST(RV_FORM_ENUM) RV_FORMS } rv_form;
#undef RV_FORM_ENUM

/* ---- maps over planes, pools, and parameter-free layers ---------------------------------- */
/* Images are rows of a signal, [channel][row][column] flattened. Convolution: weight
 * [out_c][in_c/groups][kh][kw] as PyTorch, bias [out_c] or NULL. Every product runs in panels of
 * images of one time step, their number fixed by the micro-batch; weight gradients add them t, then
 * images descending: bits do not depend on chunks or threads. conv1d: height 1. */
typedef struct rv_plane {
    int c, h, w;
} rv_plane;
typedef struct rv_window { /* [0] rows, [1] columns */
    int kernel[2], stride[2], padding[2], dilation[2];
} rv_window;
typedef struct rv_conv {
    rv_plane in, out;
    rv_window window;
    int groups;
    rv_form form;
    bool bf16; /* every input is a number that bf16 holds, as spikes are: a level may use it */
    bool no_forward, no_backward; /* conv_pack: will not be asked for under these weights */
    const float *weight, *bias;
    void *packed;
} rv_conv;
typedef enum rv_pool_kind { RV_POOL_AVG, RV_POOL_MAX, RV_POOL_SUM } rv_pool_kind;
typedef struct rv_pool { /* avg divides by the whole window (count_include_pad); max: first wins */
    rv_pool_kind kind;
    rv_plane in, out;
    rv_window window;
} rv_pool;

/* Batch normalisation per channel of `plane` (Ioffe, Szegedy 2015), biased variance, over the
 * micro-batch at each step (sequence false) or over all steps of the call (true). */
typedef struct rv_norm {
    rv_plane plane;
    bool sequence, training; /* training false: running statistics */
    float epsilon;
    const float *gamma, *beta;               /* [c]; NULL: 1, 0 */
    const float *running_mean, *running_var; /* [c] */
    float *mean, *var; /* tape: [T][c] ([1][c] if sequence), written by forward, read by backward */
} rv_norm;

/* Delay per channel (Hammouamri, Khalfaoui-Hassani, Masquelier 2024, two-tap interpolation): y[t]
 * = (1-f)*x[t-k] + f*x[t-k-1], k = floor(d), f = d - k; d in [0, max]. The ring keeps the last
 * max+1 inputs [max+1][B][ld] in order of age (0 = newest); its adjoint twin the same. */
typedef struct rv_delay {
    rv_plane plane;
    int max;
    const float *delay;     /* [c], as forward had them */
    const uint32_t *starts; /* as of neurons: nothing from before a start is seen; or NULL */
    float *ring;            /* state before (forward: in and out; backward: as forward found it) */
    float *ring_adjoint;
    const float *back; /* [c] those that move the adjoint; NULL: delay */
} rv_delay;

#endif
