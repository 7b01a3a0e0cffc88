/*
 * Rows of views for the CPU's layer ops: row (t, b) of a view, bits unpacked to floats. Included by
 * kernels/cpu_*.c only; everything is static, so each instruction set gets its own.
 */
#ifndef RV_KERNELS_CPU_ROWS_H
#define RV_KERNELS_CPU_ROWS_H

#include "kernels/kernels.h"

/* Frames a view really holds: 1 when it is held. */
static inline int values_frames(rv_values v) {
    return v.stride_t ? v.T : 1;
}
static inline int signal_frames(const rv_signal *x) {
    if (!x->spikes.bits) return values_frames(x->values);
    return x->spikes.stride_t ? x->spikes.T : 1;
}
static inline int signal_units(const rv_signal *x) {
    return x->spikes.bits ? x->spikes.n : x->values.n;
}
static inline float *values_row(rv_values v, int t, int b) {
    return v.data + (size_t)t * v.stride_t + (size_t)b * (size_t)v.ld;
}
static inline uint32_t *spikes_row(rv_spikes s, int t, int b) {
    return s.bits + (size_t)t * s.stride_t + (size_t)b * (size_t)rv_words(s.n);
}

/* Floats of scratch one unpacked row needs (whole words). */
static inline size_t row_floats(int n) {
    return (size_t)rv_words(n) * 32;
}
static inline void word_unpack(uint32_t word, float *out) {
    for (int k = 0; k < 32; k++)
        out[k] = (float)(word >> k & 1u);
}
/* Row (t, b) of a signal as floats: values where they lie, bits unpacked into `scratch`. */
static inline const float *signal_row(const rv_signal *x, int t, int b, float *scratch) {
    if (!x->spikes.bits) return values_row(x->values, t, b);
    const uint32_t *bits = spikes_row(x->spikes, t, b);
    for (int w = 0; w < rv_words(x->spikes.n); w++)
        word_unpack(bits[w], scratch + w * 32);
    return scratch;
}

/* Our buffers have zero padding; ops that write a row write its padding too. */
static inline void row_pad(rv_values v, float *row) {
    for (int u = v.n; u < v.ld; u++)
        row[u] = 0.0f;
}

/* Sum of n floats in double: blocks of 256 in index order, eight lanes within a block. */
static inline double row_sum(const float *x, int n) {
    double sum = 0.0;
    for (int start = 0; start < n; start += 256) {
        int end = start + 256 < n ? start + 256 : n, i = start;
        double lane[8] = {0};
        for (; i + 8 <= end; i += 8)
            for (int k = 0; k < 8; k++)
                lane[k] += (double)x[i + k];
        for (int k = 0; i + k < end; k++)
            lane[k] += (double)x[i + k];
        sum += ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
               ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    }
    return sum;
}

#endif
