/*
 * Convolution by oneDNN. A plan holds the three products of one shape (forward, input gradient,
 * weight gradient) for panels of B images; oneDNN picks its own blocked orders, so images are
 * reordered on the way in and out and weights once per version. The same panel shape always gives
 * the same bits. Internal to kernels/; present only with RV_DNNL. Callers have set their OpenMP
 * team to one thread.
 *
 * bf16x3: where bf16 holds the input, forward is the sum of three products in bf16, one for each
 * term of the weights (as in cpu_amx.h), added in float32: float32's accuracy on the tiles of AMX.
 */
#ifndef RV_KERNELS_DNNL_CONV_H
#define RV_KERNELS_DNNL_CONV_H

#include "kernels/kernels.h"

#ifdef RV_DNNL

/* Plans of one device, made at first use. Thread-safe. */
typedef struct rv_conv_cache rv_conv_cache;
typedef struct rv_conv_plan rv_conv_plan;

typedef enum rv_conv_product { RV_CONV_FORWARD, RV_CONV_BACKWARD, RV_CONV_WEIGHT } rv_conv_product;

RV_CHECKED rv_status rv_conv_cache_create(rv_conv_cache **out);
void rv_conv_cache_destroy(rv_conv_cache *cache); /* NULL allowed */

/* The plan for panels of B images whose rows are ld_in and ld_out floats apart; owned by the
 * cache. amx: the processor has it and may use it. RV_INTERNAL when oneDNN has no such primitive.
 */
RV_CHECKED rv_status rv_conv_plan_get(rv_conv_cache *cache, const rv_conv *conv, bool amx, int B,
                                      int ld_in, int ld_out, const rv_conv_plan **out);

/* Floats of the weights in a product's order, and of the scratch one rv_conv_plan_run needs. */
size_t rv_conv_plan_weights(const rv_conv_plan *plan, rv_conv_product product);
size_t rv_conv_plan_scratch(const rv_conv_plan *plan, rv_conv_product product);
/* Whether weights packed by `from` may be used with `plan`. */
bool rv_conv_plan_fits(const rv_conv_plan *plan, const rv_conv_plan *from, rv_conv_product product);

/* PyTorch's order to the product's order and back; exact copies, padding zero. Terms of bf16x3
 * have no way back. */
RV_CHECKED rv_status rv_conv_plan_pack(const rv_conv_plan *plan, rv_conv_product product,
                                       const float *plain, float *packed);
RV_CHECKED rv_status rv_conv_plan_unpack(const rv_conv_plan *plan, rv_conv_product product,
                                         const float *packed, float *plain);

/* One panel. FORWARD: out = conv(in) + bias. BACKWARD: in = adjoint of out. WEIGHT: weights =
 * gradient of this panel alone (bias unused). `in` [B][ld_in], `out` [B][ld_out], 64-byte aligned
 * like all memory of a device; floats past an image's units are left alone. */
RV_CHECKED rv_status rv_conv_plan_run(const rv_conv_plan *plan, rv_conv_product product, float *in,
                                      float *weights, const float *bias, float *out,
                                      float *scratch);

#endif
#endif
