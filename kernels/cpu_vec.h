/*
 * The widest float vector of a level, and the few things gcc's vector extension lacks. Included by
 * kernels/cpu_*.c only. Loads and stores need no alignment.
 */
#ifndef RV_KERNELS_CPU_VEC_H
#define RV_KERNELS_CPU_VEC_H

#include "kernels/base.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { RV_WIDTH = 16 }; /* floats of one vector */
#elif defined(__AVX2__)
enum { RV_WIDTH = 8 };
#else
enum { RV_WIDTH = 4 };
#endif
typedef float rv_vec __attribute__((vector_size(RV_WIDTH * 4)));
typedef float rv_vec_loose __attribute__((vector_size(RV_WIDTH * 4), aligned(4), may_alias));

#define RV_INLINE static inline __attribute__((always_inline))
#define RV_UNROLL _Pragma("GCC unroll 16")
/* What a loop writes is not read by its other turns. */
#ifdef __clang__
#define RV_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RV_INDEPENDENT _Pragma("GCC ivdep")
#endif

RV_INLINE rv_vec vec_load(const float *p) {
    return *(const rv_vec_loose *)p;
}
RV_INLINE void vec_store(float *p, rv_vec v) {
    *(rv_vec_loose *)p = v;
}
RV_INLINE rv_vec vec_all(float x) {
    return x - (rv_vec){0};
}
/* a*b + c; one rounding where the level has it */
RV_INLINE rv_vec vec_fma(rv_vec a, rv_vec b, rv_vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* Copy what no cache will keep until it is read: whole lines go straight to memory, which else were
 * read first. Other threads may read it after vec_streamed. */
RV_INLINE void vec_stream(float *to, const float *from, size_t count) {
    size_t whole = (uintptr_t)to % 64 == 0 ? count / RV_LANES * RV_LANES : 0;
    for (size_t i = 0; i < whole; i += RV_WIDTH) {
#if defined(__AVX512F__)
        _mm512_stream_ps(to + i, vec_load(from + i));
#elif defined(__AVX2__)
        _mm256_stream_ps(to + i, vec_load(from + i));
#elif defined(__SSE2__)
        _mm_stream_ps(to + i, vec_load(from + i));
#else
        vec_store(to + i, vec_load(from + i));
#endif
    }
    for (size_t i = whole; i < count; i++)
        to[i] = from[i];
}
RV_INLINE void vec_streamed(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* Bit j of the result: lane j of 16 ints is negative (all ones where a comparison held). */
RV_INLINE uint32_t lanes_mask(const int32_t lane[RV_LANES]) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask(_mm512_loadu_si512(lane));
#elif defined(__AVX2__)
    uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_loadu_ps((const float *)lane));
    uint32_t high = (uint32_t)_mm256_movemask_ps(_mm256_loadu_ps((const float *)(lane + 8)));
    return low | high << 8;
#elif defined(__SSE2__)
    uint32_t mask = 0;
    for (int k = 0; k < 4; k++)
        mask |= (uint32_t)_mm_movemask_ps(_mm_loadu_ps((const float *)(lane + 4 * k))) << 4 * k;
    return mask;
#else
    uint32_t mask = 0;
    for (int j = 0; j < RV_LANES; j++)
        mask |= (uint32_t)(lane[j] < 0) << j;
    return mask;
#endif
}

#endif
