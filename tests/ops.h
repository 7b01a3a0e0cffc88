/*
 * For the tests of the layer ops: devices of every instruction set and pool size, random signals
 * in padded views, comparison against references in double. Every buffer's padding is filled with
 * not-a-number first, so an op that leaves it or reads it is found.
 */
#ifndef RV_TESTS_OPS_H
#define RV_TESTS_OPS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define CHECK(expression)                                                                          \
    do {                                                                                           \
        rv_status s_ = (expression);                                                               \
        if (s_ != RV_OK) fail_msg("%s: %s", #expression, rv_error_get()->message);                 \
    } while (0)

/* The instruction set under test. oneDNN keeps the first one a process asks for, so each runs in a
 * process of its own. */
static rv_isa test_isa = RV_ISA_BASELINE;

static inline rv_device test_open(int threads) {
    rv_device device;
    CHECK(rv_device_open("cpu", test_isa, threads, &device));
    return device;
}
/* Run a group once per instruction set; the number of failures. */
static inline int test_each_isa(int (*group)(const char *name)) {
    int failures = 0;
    rv_isa best = rv_isa_best();
    for (; test_isa <= best; test_isa++) {
        int result = 0;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            (void)rv_flush_set();
            result = group(rv_isa_name(test_isa));
            fflush(NULL);
            _exit(result);
        }
        if (child < 0 || waitpid(child, &result, 0) != child || !WIFEXITED(result))
            failures++;
        else
            failures += WEXITSTATUS(result);
    }
    return failures;
}

/* A cheap generator; state is the caller's. */
static inline uint32_t test_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}
static inline float test_uniform(uint32_t *state) { /* [-1, 1) */
    return (float)test_random(state) * 0x1p-23f - 1.0f;
}
static inline float *test_floats(size_t count) {
    void *memory = NULL;
    CHECK(rv_alloc(count ? count : 1, sizeof(float), "test", &memory));
    return memory;
}
static inline float *test_random_floats(size_t count, uint32_t *state) {
    float *x = test_floats(count);
    for (size_t i = 0; i < count; i++)
        x[i] = test_uniform(state);
    return x;
}

/* Values with not-a-number everywhere; held: one frame. Free .data with rv_free. */
static inline rv_values test_empty(int T, int B, int n, bool held) {
    rv_values v = rv_values_of(NULL, T, B, n);
    if (held) v.stride_t = 0;
    size_t count = (size_t)(held ? 1 : T) * (size_t)B * (size_t)v.ld;
    v.data = test_floats(count);
    for (size_t i = 0; i < count; i++)
        v.data[i] = NAN;
    return v;
}
static inline float *test_at(rv_values v, int t, int b, int u) {
    return v.data + (size_t)t * v.stride_t + (size_t)b * (size_t)v.ld + u;
}
static inline rv_values test_values(int T, int B, int n, bool held, uint32_t *state) {
    rv_values v = test_empty(T, B, n, held);
    for (int t = 0; t < (held ? 1 : T); t++)
        for (int b = 0; b < B; b++)
            for (int u = 0; u < v.ld; u++)
                *test_at(v, t, b, u) = u < n ? test_uniform(state) : 0.0f;
    return v;
}
static inline rv_spikes test_spikes(int T, int B, int n, uint32_t *state) {
    rv_spikes s = rv_spikes_of(NULL, T, B, n);
    void *memory = NULL;
    CHECK(rv_alloc((size_t)T * s.stride_t, 4, "test", &memory));
    s.bits = memory;
    for (int row = 0; row < T * B; row++)
        for (int u = 0; u < n; u++)
            if (test_random(state) % 3 == 0) s.bits[row * rv_words(n) + u / 32] |= 1u << (u % 32);
    return s;
}
/* A signal of either kind; free with test_signal_free. */
static inline rv_signal test_signal(bool spikes, int T, int B, int n, uint32_t *state) {
    rv_signal x = {{0}, {0}};
    if (spikes)
        x.spikes = test_spikes(T, B, n, state);
    else
        x.values = test_values(T, B, n, false, state);
    return x;
}
static inline void test_signal_free(rv_signal x) {
    rv_free(x.spikes.bits);
    rv_free(x.values.data);
}
static inline double test_in(const rv_signal *x, int t, int b, int u) {
    if (!x->spikes.bits) return (double)*test_at(x->values, t, b, u);
    const uint32_t *row =
        x->spikes.bits + (size_t)t * x->spikes.stride_t + (size_t)(b * rv_words(x->spikes.n));
    return row[u / 32] >> (u % 32) & 1u;
}
/* Steps [t0, t1) of a view. */
static inline rv_values test_steps(rv_values v, int t0, int t1) {
    v.data += (size_t)t0 * v.stride_t;
    v.T = t1 - t0;
    return v;
}
static inline rv_signal test_signal_steps(rv_signal x, int t0, int t1) {
    if (x.values.data) x.values = test_steps(x.values, t0, t1);
    if (x.spikes.bits) {
        x.spikes.bits += (size_t)t0 * x.spikes.stride_t;
        x.spikes.T = t1 - t0;
    }
    return x;
}
static inline size_t test_count(rv_values v) {
    return (size_t)(v.stride_t ? v.T : 1) * (size_t)v.B * (size_t)v.ld;
}
static inline rv_values test_copy(rv_values v) {
    rv_values c = v;
    c.data = test_floats(test_count(v));
    memcpy(c.data, v.data, test_count(v) * sizeof(float));
    return c;
}
static inline void test_same_bits(rv_values a, rv_values b) {
    assert_memory_equal(a.data, b.data, test_count(a) * sizeof(float));
}
/* Padding must be zero: later ops run over whole rows. */
static inline void test_padded(rv_values v) {
    for (int t = 0; t < (v.stride_t ? v.T : 1); t++)
        for (int b = 0; b < v.B; b++)
            for (int u = v.n; u < v.ld; u++)
                assert_true(*test_at(v, t, b, u) == 0.0f);
}
static inline void test_close(double got, double want, double limit) {
    if (!(fabs(got - want) <= limit * (1.0 + fabs(want))))
        fail_msg("%.9g, expected %.9g", got, want);
}

#endif
