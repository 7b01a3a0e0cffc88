/*
 * Short floats: the terms of bf16 that a float is the sum of, and half floats (IEEE 754 binary16),
 * for values that are stored and not computed with. Without branches, so that the compiler
 * vectorises the loops; halves are the same bits with and without flushing of denormals, since no
 * operand or result of an operation is one.
 */
#include "kernels/base.h"

#include <string.h>

#define HALF_MOST 0x477fe000u   /* 65504 as a float: the largest half */
#define NORMAL_MOST 0x38800000u /* 2^-14: from here on halves have an exponent of their own */
#define REBIAS 0x38000000u      /* between the exponents of both */
#define INFINITE 0x7f800000u

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To the nearest, ties to even. Finite values beyond the largest become the largest: a gradient
 * that is a little wrong is better than one that is not a number. */
static inline uint16_t pack(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    uint32_t finite = size < HALF_MOST ? size : HALF_MOST;
    uint32_t normal = (finite - REBIAS + 0xfffu + (finite >> 13 & 1u)) >> 13;
    /* Beside 0.5 a float has the last place of the smallest half. */
    float small = float_of(finite < NORMAL_MOST ? finite : 0) + 0.5f;
    uint32_t half = finite < NORMAL_MOST ? bits_of(small) - 0x3f000000u : normal;
    uint32_t odd = size > INFINITE ? 0x7e00u : 0x7c00u;
    return (uint16_t)(sign | (size >= INFINITE ? odd : half));
}

static inline float unpack(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, size = half & 0x7fffu;
    uint32_t small = bits_of((float)(int32_t)size * 0x1p-24f);
    uint32_t normal = (size << 13) + REBIAS, odd = size << 13 | INFINITE;
    return float_of(sign | (size >= 0x7c00u ? odd : size < 0x400u ? small : normal));
}

void rv_bf16_rest(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]);
        values[i] -= float_of((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
    }
}

void rv_half_pack(const float *from, uint16_t *to, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = pack(from[i]);
}

void rv_half_unpack(const uint16_t *from, float *to, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = unpack(from[i]);
}
