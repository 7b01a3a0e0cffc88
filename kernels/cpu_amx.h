/*
 * Products on the tiles of AMX, at the instruction set `amx` only. A float is the sum of three bf16
 * terms, rounded to nearest each; bf16 products are exact and added in float32. bf16x6: float times
 * float with the six products of terms that reach float32 accuracy (term 0-0, 0-1, 1-1, 1-0, 2-0,
 * 0-2, of every 32 steps of the inner axis in this order). Henry, Tang, Heinecke: "Leveraging the
 * bfloat16 artificial intelligence datatype for higher-precision computations", ARITH 2019.
 *
 * An element of a result is one chain over the inner axis, as in cpu_dense.h: its bits depend on
 * its operands alone, not on row counts or threads. Denormal terms count as zero. Infinity becomes
 * not-a-number. Internal to kernels/.
 */
#ifndef RV_KERNELS_CPU_AMX_H
#define RV_KERNELS_CPU_AMX_H

#include "kernels/cpu_dense.h"

#if defined(RV_LEVEL) && defined(__AVX512F__)
#define RV_AMX /* this level has these products, where rv_cpu_isa says amx */

#define rv_cpu_amx_pays RV_CPU(amx_pays)
#define rv_cpu_amx_terms RV_CPU(amx_terms)
#define rv_cpu_amx_pack RV_CPU(amx_pack)
#define rv_cpu_amx_product RV_CPU(amx_product)

/* Whether c[m][n] = a[m][k] b[k][n] is computed here: never a question of m. */
bool rv_cpu_amx_pays(const rv_ctx *ctx, int n, int k);
/* bf16 numbers of the packed terms of b. */
size_t rv_cpu_amx_terms(int n, int k);
/* The terms of a transposed b, [n][ldb], in the order of the tiles. */
void rv_cpu_amx_pack(rv_ctx *ctx, const float *b, size_t ldb, int n, int k, uint16_t *packed);
/* The product of cpu_dense.h by bf16x6; b of `product` is not read, bias must be NULL. */
RV_CHECKED rv_status rv_cpu_amx_product(rv_ctx *ctx, const rv_product *product,
                                        const uint16_t *packed, rv_arena *arena);
#endif

#endif
