/* For programs that time ops (tests/bench_kernels.c, tests/measure_forms.c): memory with something
 * in it, bits at a rate, the best of several runs. Processor time of one thread, so that other
 * programs disturb less; they still share caches and units. */
#ifndef RV_TESTS_BENCH_H
#define RV_TESTS_BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

#define MUST(expression)                                                                           \
    do {                                                                                           \
        if ((expression) != RV_OK) {                                                               \
            fprintf(stderr, "bench: %s: %s\n", #expression, rv_error_get()->message);              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static rv_device device;
static rv_arena arena;
static uint32_t seed = 1;

static inline double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 24 bits that look drawn. */
static inline uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static inline float *floats(size_t count) {
    void *memory = NULL;
    MUST(rv_alloc(count, sizeof(float), "bench", &memory));
    for (size_t i = 0; i < count; i++)
        ((float *)memory)[i] = (float)draw() * 0x1p-24f - 0.5f;
    return memory;
}

static inline rv_values values_of(int steps, int batch, int n) {
    rv_values v = rv_values_of(NULL, steps, batch, n);
    v.data = floats((size_t)steps * v.stride_t);
    return v;
}

/* count: spikes there are. */
static inline rv_spikes spikes_of(int steps, int batch, int n, double rate, double *count) {
    rv_spikes s = rv_spikes_of(NULL, steps, batch, n);
    void *memory = NULL;
    MUST(rv_alloc((size_t)steps * s.stride_t, sizeof *s.bits, "bench", &memory));
    s.bits = memory, *count = 0;
    for (int row = 0; row < steps * batch; row++)
        for (int u = 0; u < n; u++) {
            bool fires = draw() * 0x1p-24 < rate;
            s.bits[row * rv_words(n) + u / 32] |= (uint32_t)fires << u % 32;
            *count += fires;
        }
    return s;
}

/* Seconds of the best of at least `turns` runs and a tenth of a second, into *best. */
#define BEST(best, turns, call)                                                                    \
    do {                                                                                           \
        double spent_ = 0;                                                                         \
        *(best) = INFINITY;                                                                        \
        for (int turn_ = 0; turn_ < (turns) || (spent_ < 0.1 && turn_ < 1000); turn_++) {          \
            double begun_ = now(), took_;                                                          \
            MUST(call);                                                                            \
            took_ = now() - begun_;                                                                \
            *(best) = fmin(*(best), took_), spent_ += took_;                                       \
            rv_arena_reset(&arena);                                                                \
        }                                                                                          \
    } while (0)

#endif
