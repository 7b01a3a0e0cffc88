/*
 * Dense products of the CPU. Every element of a result is one chain of multiply-adds in the order
 * of the inner axis, so its bits depend on nothing but the operands: not on the number of rows, on
 * threads, or on where a caller cuts the inner axis. Internal to kernels/.
 */
#ifndef RV_KERNELS_CPU_DENSE_H
#define RV_KERNELS_CPU_DENSE_H

#include "kernels/cpu.h"

#ifdef RV_LEVEL
#define rv_cpu_product RV_CPU(product)
#define rv_cpu_product_weight RV_CPU(product_weight)

/* c[m][n] = start + sum over k ascending of a[m][k] * b[k][n]; start = c (add), bias, or 0.
 * Rows of c and columns of b are processed in whole vectors: n is rounded up to RV_LANES, b's
 * padding columns are zero and c's are written. */
typedef struct rv_product {
    int m, n, k;
    const float *a;
    size_t lda;
    const float *b; /* [k][ldb], or [n][ldb] when transposed */
    size_t ldb;
    bool transposed;
    float *c;
    size_t ldc;
    const float *bias; /* [n] rounded up, or NULL */
    bool add;
} rv_product;
RV_CHECKED rv_status rv_cpu_product(rv_ctx *ctx, const rv_product *product, rv_arena *arena);

/* gw[x units][ldw] += sum over t descending, b ascending of x[t][b][:]^T g[t][b][:]. */
RV_CHECKED rv_status rv_cpu_product_weight(rv_ctx *ctx, const rv_signal *x, rv_values g, float *gw,
                                           size_t ldw, rv_arena *arena);
#endif

#endif
