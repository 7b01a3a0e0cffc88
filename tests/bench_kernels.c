/*
 * Each op over sizes and spike rates against what the machine can do: `make bench-kernels`. Not a
 * test: it prints, and fails only where an op does.
 *
 * Roofs are measured here, on one thread, just before: multiply-adds on registers, reads that stay
 * in the second cache, a copy through memory. A line is one op: its best processor time of several,
 * the rate of its work, and that as a share of the roof named. Processor time, so that other
 * programs disturb less; they still share caches and units.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/kernels.h"
#include "kernels/neuron.h"
#include "kernels/surrogate.h"

#define MUST(expression)                                                                           \
    do {                                                                                           \
        if ((expression) != RV_OK) {                                                               \
            fprintf(stderr, "bench_kernels: %s: %s\n", #expression, rv_error_get()->message);      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { STEPS = 8, BATCH = 64, ROWS = STEPS * BATCH, ADAM = 1 };

static rv_device device;
static rv_arena arena;
static uint32_t seed = 1;

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static float *floats(size_t count) {
    void *memory = NULL;
    MUST(rv_alloc(count, sizeof(float), "bench", &memory));
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)memory)[i] = (float)(seed >> 8) * 0x1p-24f - 0.5f;
    }
    return memory;
}

/* ---- roofs ------------------------------------------------------------------------------- */
typedef enum roof { ARITHMETIC, CACHE, MEMORY, ROOFS } roof;
static const char *const roof_name[ROOFS] = {"multiply-add", "second cache", "memory"};
static double roof_rate[ROOFS]; /* 10^9 a second: operations, bytes, bytes */

/* Twelve chains hide the latency of a multiply-add; sums of a buffer the latency of a load. */
#define ROOF_LOOPS(name, isa, vec, width, fma)                                                     \
    __attribute__((target(isa))) static double flops_##name(long turns) {                          \
        typedef float v __attribute__((vector_size(4 * (width)), may_alias));                      \
        v sum[12] = {{0}}, x = (v){0} + 0.5f;                                                      \
        double begun = now();                                                                      \
        for (long i = 0; i < turns; i++)                                                           \
            _Pragma("GCC unroll 12") for (int k = 0; k < 12; k++) {                                \
                sum[k] = (v)fma((vec)sum[k], (vec)x, (vec)x);                                      \
                __asm__ volatile("" : "+x"(sum[k]));                                               \
            }                                                                                      \
        return 12.0 * 2 * (width) * (double)turns / (now() - begun);                               \
    }                                                                                              \
    __attribute__((target(isa))) static double reads_##name(const float *from, size_t count,       \
                                                            long turns) {                          \
        typedef float v __attribute__((vector_size(4 * (width)), may_alias));                      \
        v sum[8] = {{0}};                                                                          \
        double begun = now();                                                                      \
        for (long i = 0; i < turns; i++)                                                           \
            for (size_t j = 0; j < count; j += 8 * (width))                                        \
                _Pragma("GCC unroll 8") for (int k = 0; k < 8; k++) {                              \
                    sum[k] += *(const v *)(from + j + (size_t)k * (width));                        \
                    __asm__ volatile("" : "+x"(sum[k]));                                           \
                }                                                                                  \
        return 4.0 * (double)count * (double)turns / (now() - begun);                              \
    }
#if defined(__x86_64__)
ROOF_LOOPS(avx512, "avx512f", __m512, 16, _mm512_fmadd_ps)
ROOF_LOOPS(avx2, "avx2,fma", __m256, 8, _mm256_fmadd_ps)
#endif

static void roofs(void) {
    enum { NEAR = 1 << 17, FAR = 1 << 24 }; /* floats: 512 KiB, 64 MiB */
    float *near = floats(NEAR), *far = floats(FAR), *copy = floats(FAR);
    for (int k = 0; k < 5; k++) {
        double rate[ROOFS] = {0}, begun = now();
        memcpy(copy, far, FAR * sizeof(float));
        rate[MEMORY] = 2.0 * FAR * sizeof(float) / (now() - begun);
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f")) {
            rate[ARITHMETIC] = flops_avx512(2000000), rate[CACHE] = reads_avx512(near, NEAR, 200);
        } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            rate[ARITHMETIC] = flops_avx2(2000000), rate[CACHE] = reads_avx2(near, NEAR, 200);
        }
#endif
        for (int r = 0; r < ROOFS; r++)
            roof_rate[r] = fmax(roof_rate[r], rate[r] * 1e-9);
    }
    for (int r = 0; r < ROOFS; r++)
        printf("roof  %-13s %8.1f %s\n", roof_name[r], roof_rate[r],
               r == ARITHMETIC ? "GFLOP/s" : "GB/s");
    rv_free(near), rv_free(far), rv_free(copy);
}

/* ---- one line ---------------------------------------------------------------------------- */
/* Best of at least five runs and a tenth of a second. work: operations or bytes of a run. */
#define LINE(op, size, rate, roof, work, call)                                                     \
    do {                                                                                           \
        double best = INFINITY, spent = 0;                                                         \
        for (int turn = 0; turn < 5 || (spent < 0.1 && turn < 1000); turn++) {                     \
            double begun = now(), took;                                                            \
            MUST(call);                                                                            \
            took = now() - begun;                                                                  \
            best = fmin(best, took), spent += took;                                                \
            rv_arena_reset(&arena);                                                                \
        }                                                                                          \
        double done = (work)*1e-9 / best;                                                          \
        printf("%-18s %6d %6.3f %10.1f us %8.1f %-7s", op, size, rate, best * 1e6, done,           \
               (roof) == ARITHMETIC ? "GFLOP/s" : "GB/s");                                         \
        if (roof_rate[roof] > 0)                                                                   \
            printf(" %4.0f %% of %s", 100 * done / roof_rate[roof], roof_name[roof]);              \
        printf("\n");                                                                              \
    } while (0)

/* ---- ops --------------------------------------------------------------------------------- */
static rv_spikes spikes_of(int n, double rate, double *count) {
    rv_spikes s = rv_spikes_of(NULL, STEPS, BATCH, n);
    void *memory = NULL;
    MUST(rv_alloc((size_t)STEPS * s.stride_t, sizeof *s.bits, "bench", &memory));
    s.bits = memory, *count = 0;
    for (int row = 0; row < ROWS; row++)
        for (int u = 0; u < n; u++) {
            seed = seed * 1664525u + 1013904223u;
            bool fires = (seed >> 8) * 0x1p-24 < rate;
            s.bits[row * rv_words(n) + u / 32] |= (uint32_t)fires << u % 32;
            *count += fires;
        }
    return s;
}
static rv_values values_of(int n) {
    rv_values v = rv_values_of(NULL, STEPS, BATCH, n);
    v.data = floats((size_t)STEPS * v.stride_t);
    return v;
}

/* Products of n inputs and n outputs: a spike reads one row of weights and adds it; the weight
 * gradient reads one row of adjoints. */
static void products(int n) {
    static const double rates[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3};
    rv_map map = {.in = n, .out = n, .ld = rv_round_up(n, RV_LANES), .form = RV_FORM_DENSE};
    size_t block = (size_t)n * (size_t)map.ld;
    float *weight = floats(block), *bias = floats((size_t)map.ld), *gw = floats(block);
    rv_values x = values_of(n), y = values_of(n);
    rv_signal in = {.values = x};
    double flops = 2.0 * ROWS * n * n;
    map.weight = weight, map.bias = bias;
    LINE("dense forward", n, 1.0, ARITHMETIC, flops,
         device.ops->map_forward(device.ctx, NULL, &map, &in, y, &arena));
    LINE("dense backward", n, 1.0, ARITHMETIC, flops,
         device.ops->map_backward(device.ctx, NULL, &map, y, x, false, &arena));
    LINE("dense weight", n, 1.0, ARITHMETIC, flops,
         device.ops->map_weight(device.ctx, NULL, &map, &in, y, gw, bias, &arena));
    for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
        double count;
        rv_signal s = {.spikes = spikes_of(n, rates[k], &count)};
        map.form = RV_FORM_EVENT;
        LINE("event forward", n, rates[k], CACHE, 4.0 * count * map.ld,
             device.ops->map_forward(device.ctx, NULL, &map, &s, y, &arena));
        LINE("event weight", n, rates[k], CACHE, 4.0 * count * map.ld,
             device.ops->map_weight(device.ctx, NULL, &map, &s, y, gw, bias, &arena));
        rv_free(s.spikes.bits);
    }
    rv_free(weight), rv_free(bias), rv_free(gw), rv_free(x.data), rv_free(y.data);
}

/* Forward reads x and writes h; the adjoint reads h and gs and writes over h. */
static void neurons(int n) {
    rv_neuron neuron = {.kind = RV_NEURON_lif,
                        .reset = RV_RESET_SUBTRACT,
                        .detach_reset = true,
                        .surrogate = {.kind = RV_SURROGATE_atan, .p = {2}}};
    rv_values x = values_of(n), h = values_of(n), gs = values_of(n);
    double count, bytes = 4.0 * ROWS * x.ld;
    rv_spikes s = spikes_of(n, 0.0, &count);
    float *v = floats((size_t)BATCH * (size_t)x.ld), *beta = floats((size_t)x.ld);
    for (int u = 0; u < x.ld; u++)
        beta[u] = 0.9f;
    rv_neuron_forward f = {.neuron = &neuron,
                           .T = STEPS,
                           .B = BATCH,
                           .n = n,
                           .ld = x.ld,
                           .x = x,
                           .h = h,
                           .s = s,
                           .state = {.v = v}};
    rv_neuron_backward b = {.neuron = &neuron,
                            .T = STEPS,
                            .B = BATCH,
                            .n = n,
                            .ld = x.ld,
                            .h = h,
                            .s = s,
                            .gs = gs,
                            .before = {.v = v},
                            .adjoint = {.v = v}};
    f.param[RV_P_BETA] = b.param[RV_P_BETA] = beta;
    LINE("lif forward", n, 0.0, MEMORY, 2 * bytes,
         device.ops->neuron_forward(device.ctx, NULL, &f, &arena));
    LINE("lif backward", n, 0.0, MEMORY, 3 * bytes,
         device.ops->neuron_backward(device.ctx, NULL, &b, &arena));
    rv_free(x.data), rv_free(h.data), rv_free(gs.data), rv_free(s.bits), rv_free(v), rv_free(beta);
}

/* Average and maximum of 2 x 2 over `side` x `side` planes. */
static void pools(int channels, int side) {
    static const char *const names[2][2] = {{"avg pool forward", "avg pool backward"},
                                            {"max pool forward", "max pool backward"}};
    static const rv_pool_kind kinds[2] = {RV_POOL_AVG, RV_POOL_MAX};
    int n = channels * side * side;
    rv_values x = values_of(n), y = values_of(n / 4), gx = values_of(n);
    rv_signal in = {.values = x};
    for (int k = 0; k < 2; k++) {
        rv_pool pool = {.kind = kinds[k],
                        .in = {channels, side, side},
                        .out = {channels, side / 2, side / 2},
                        .window = {{2, 2}, {2, 2}, {0, 0}, {1, 1}}};
        LINE(names[k][0], n, 1.0, MEMORY, 4.0 * ROWS * (n + n / 4),
             device.ops->pool_forward(device.ctx, NULL, &pool, &in, y, &arena));
        LINE(names[k][1], n, 1.0, MEMORY, 4.0 * ROWS * (n + n / 4 + (k ? n : 0)),
             device.ops->pool_backward(device.ctx, NULL, &pool, &in, y, gx, false, &arena));
    }
    rv_free(x.data), rv_free(y.data), rv_free(gx.data);
}

/* Weight, m and v are read and written, the gradient read. */
static void optimizers(int n) {
    float *block[4];
    for (int k = 0; k < 4; k++)
        block[k] = floats((size_t)n);
    memset(block[3], 0, (size_t)n * sizeof(float));
    rv_optim_update u = {.kind = ADAM,
                         .n = (size_t)n,
                         .weight = block[0],
                         .grad = block[1],
                         .slot = {block[2], block[3]},
                         .scale = 1,
                         .rate = 1e-6,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .epsilon = 1e-8};
    LINE("adam", n, 1.0, MEMORY, 7.0 * 4 * n, device.ops->optim_update(device.ctx, NULL, &u));
    for (int k = 0; k < 4; k++)
        rv_free(block[k]);
}

int main(void) {
    rv_isa isa = rv_isa_best();
    MUST(rv_device_open("cpu", isa, 1, &device));
    (void)rv_flush_set();
    printf("isa   %s, one thread, %d steps of %d samples\n", rv_isa_name(isa), STEPS, BATCH);
    roofs();
    printf("%-18s %6s %6s %13s %16s\n", "op", "units", "rate", "time", "speed");
    static const int sizes[] = {256, 1024, 4096};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        products(sizes[k]);
        neurons(sizes[k]);
    }
    pools(32, 28);
    pools(64, 14);
    optimizers(1 << 16);
    optimizers(1 << 24);
    rv_arena_finish(&arena);
    rv_device_close(&device);
    return 0;
}
