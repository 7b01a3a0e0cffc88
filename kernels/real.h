/*
 * The number type of the per-unit arithmetic, and the elementary functions it needs, written out
 * so that gcc (any level), g++ and nvcc give the same bits and so that loops over them vectorise.
 * float by default; double where a test defines RV_REAL_DOUBLE. No function here has side effects.
 */
#ifndef RV_REAL_H
#define RV_REAL_H

#include "kernels/base.h"

#include <math.h>
#include <string.h>

#ifdef RV_REAL_DOUBLE
typedef double rv_real;
#else
typedef float rv_real;
#endif

/* a*b + c in float with one rounding, without a fused instruction. The product of two floats is
 * exact in double; the sum is rounded to odd there, after which rounding to float is right
 * (Boldo, Melquiond: "Emulation of a FMA and correctly rounded sums", 2008). */
static RV_HD float rv_fma_emulated(float a, float b, float c) {
    double product = (double)a * (double)b, sum = product + (double)c;
    double part = sum - product;
    double rest = (product - (sum - part)) + ((double)c - part);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    uint64_t odd = (bits - (uint64_t)((rest < 0) != (sum < 0))) | 1u;
    bits = rest != 0 && rest == rest ? odd : bits;
    memcpy(&sum, &bits, sizeof sum);
    return (float)sum;
}

#ifdef RV_REAL_DOUBLE
static RV_HD double rv_fma(double a, double b, double c) {
    return fma(a, b, c);
}
static RV_HD double rv_abs(double x) {
    return fabs(x);
}
static RV_HD double rv_sqrt(double x) {
    return sqrt(x);
}
static RV_HD double rv_exp(double x) {
    return exp(x);
}
static RV_HD double rv_log(double x) {
    return log(x);
}
static RV_HD double rv_frac(double x) {
    return x - floor(x);
}

#else
static RV_HD float rv_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__) || defined(__CUDA_ARCH__)
    return fmaf(a, b, c);
#else
    return rv_fma_emulated(a, b, c);
#endif
}
static RV_HD float rv_abs(float x) {
    return fabsf(x);
}
static RV_HD float rv_sqrt(float x) {
    return sqrtf(x);
}

/* Adding this to a float of at most 2^22 rounds it to a whole number, kept in the low bits. */
#define RV_ROUNDER 12582912.0f

static RV_HD int32_t rv_bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static RV_HD float rv_float_of(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* exp(x) for x <= 0, within 2 units in the last place; 0 below the logarithm of the least normal
 * float. Polynomial: Moshier, Cephes. */
static RV_HD float rv_exp(float x) {
    const float least = -87.33f;
    float y = x > least ? x : least;
    float rounded = rv_fma(y, 1.44269504088896341f, RV_ROUNDER), n = rounded - RV_ROUNDER;
    float r = rv_fma(n, -0.693359375f, y);
    r = rv_fma(n, 2.12194440e-4f, r);
    float p = rv_fma(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = rv_fma(p, r, 8.3334519073e-3f);
    p = rv_fma(p, r, 4.1665795894e-2f);
    p = rv_fma(p, r, 1.6666665459e-1f);
    p = rv_fma(p, r, 5.0000001201e-1f);
    p = rv_fma(p, r * r, r) + 1.0f;
    int32_t exponent = rv_bits_of(rounded) - rv_bits_of(RV_ROUNDER);
    float power = rv_float_of((int32_t)((uint32_t)(exponent + 127) << 23));
    return x > least ? p * power : 0.0f;
}

/* log(x) for normal x > 0, within 2 units in the last place. Polynomial: Moshier, Cephes. */
static RV_HD float rv_log(float x) {
    /* x = m * 2^e with m in [sqrt(1/2), sqrt(2)) */
    int32_t bits = rv_bits_of(x) - 0x3f3504f3;
    float e = (float)(bits >> 23);
    float m = rv_float_of((bits & 0x007fffff) + 0x3f3504f3) - 1.0f, z = m * m;
    float p = rv_fma(7.0376836292e-2f, m, -1.1514610310e-1f);
    p = rv_fma(p, m, 1.1676998740e-1f);
    p = rv_fma(p, m, -1.2420140846e-1f);
    p = rv_fma(p, m, 1.4249322787e-1f);
    p = rv_fma(p, m, -1.6668057665e-1f);
    p = rv_fma(p, m, 2.0000714765e-1f);
    p = rv_fma(p, m, -2.4999993993e-1f);
    p = rv_fma(p, m, 3.3333331174e-1f);
    p = p * m * z;
    p = rv_fma(e, -2.12194440e-4f, p);
    p = rv_fma(z, -0.5f, p);
    return rv_fma(e, 0.693359375f, m + p);
}

/* x minus the largest whole number not above it, in [0, 1]; 0 where x has no fraction. */
static RV_HD float rv_frac(float x) {
    const float whole = 4194304.0f; /* 2^22 */
    float y = rv_abs(x) < whole ? x : 0.0f;
    float r = y - ((y + RV_ROUNDER) - RV_ROUNDER);
    return r < 0 ? r + 1.0f : r;
}
#endif

static RV_HD rv_real rv_max(rv_real a, rv_real b) {
    return a > b ? a : b;
}
static RV_HD rv_real rv_min(rv_real a, rv_real b) {
    return a < b ? a : b;
}

#endif
