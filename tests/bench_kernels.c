/*
 * Each op over sizes and spike rates against what the machine can do: `make bench-kernels`. Not a
 * test: it prints, and fails only where an op does. Shares of roofs that fall show a regression.
 *
 * Roofs are measured here, on one thread, just before: multiply-adds on registers, reads that stay
 * in the second cache, a copy through memory. A line is one op: its best processor time of several,
 * the rate of its work, and that as a share of the roof named. Processor time, so that other
 * programs disturb less; they still share caches and units.
 */
#include <assert.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/neuron.h"
#include "kernels/surrogate.h"
#include "snn/snn.h"
#include "tests/bench.h"

enum { STEPS = 8, BATCH = 64, ROWS = STEPS * BATCH };

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
static FILE *json; /* the same as lines of JSON; NULL: not wanted */

static void line(const char *op, int size, double rate, roof of, double work, double seconds) {
    double done = work * 1e-9 / seconds;
    const char *unit = of == ARITHMETIC ? "GFLOP/s" : "GB/s";
    printf("%-24s %7d %6.3f %10.1f us %8.1f %-7s", op, size, rate, seconds * 1e6, done, unit);
    if (roof_rate[of] > 0) printf(" %4.0f %% of %s", 100 * done / roof_rate[of], roof_name[of]);
    printf("\n");
    if (json)
        fprintf(json,
                "{\"op\": \"%s\", \"units\": %d, \"rate\": %g, \"us\": %.2f, \"speed\": %.2f, "
                "\"unit\": \"%s\", \"share\": %.4f}\n",
                op, size, rate, seconds * 1e6, done, unit,
                roof_rate[of] > 0 ? done / roof_rate[of] : 0);
}

/* Best of at least five runs. work: operations or bytes of a run. */
#define LINE(op, size, rate, roof, work, call)                                                     \
    do {                                                                                           \
        double best_;                                                                              \
        BEST(&best_, 5, call);                                                                     \
        line(op, size, rate, roof, work, best_);                                                   \
    } while (0)

/* ---- products ---------------------------------------------------------------------------- */
/* Products of n inputs and n outputs: a spike reads one row of weights and adds it; the weight
 * gradient reads one row of adjoints. */
static void products(int n) {
    static const double rates[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3};
    rv_map map = {.in = n, .out = n, .ld = rv_round_up(n, RV_LANES), .form = RV_FORM_DENSE};
    size_t block = (size_t)n * (size_t)map.ld;
    float *weight = floats(block), *bias = floats((size_t)map.ld), *gw = floats(block);
    rv_values x = values_of(STEPS, BATCH, n), y = values_of(STEPS, BATCH, n);
    rv_signal in = {.values = x};
    double flops = 2.0 * ROWS * n * n;
    map.weight = weight, map.bias = bias, map.adjoint = true;
    MUST(device.ops->map_pack(device.ctx, NULL, &map, ROWS, &map.packed));
    LINE("dense forward", n, 1.0, ARITHMETIC, flops,
         device.ops->map_forward(device.ctx, NULL, &map, &in, y, &arena));
    LINE("dense backward", n, 1.0, ARITHMETIC, flops,
         device.ops->map_backward(device.ctx, NULL, &map, y, x, false, &arena));
    LINE("dense weight", n, 1.0, ARITHMETIC, flops,
         device.ops->map_weight(device.ctx, NULL, &map, &in, y, gw, bias, &arena));
    for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
        double count;
        rv_signal s = {.spikes = spikes_of(STEPS, BATCH, n, rates[k], &count)};
        map.form = RV_FORM_EVENT;
        LINE("event forward", n, rates[k], CACHE, 4.0 * count * map.ld,
             device.ops->map_forward(device.ctx, NULL, &map, &s, y, &arena));
        LINE("event weight", n, rates[k], CACHE, 4.0 * count * map.ld,
             device.ops->map_weight(device.ctx, NULL, &map, &s, y, gw, bias, &arena));
        rv_free(s.spikes.bits);
    }
    device.ops->map_unpack(device.ctx, map.packed);
    rv_free(weight), rv_free(bias), rv_free(gw), rv_free(x.data), rv_free(y.data);
}

/* 3x3 windows on `side` x `side` planes, c channels in and out. A spike adds nine rows. */
static void convolutions(int c, int side) {
    static const double rates[] = {0.02, 0.05, 0.1, 0.2};
    int n = c * side * side;
    size_t block = (size_t)c * (size_t)c * 9;
    float *weight = floats(block), *gw = floats(block);
    rv_conv conv = {.in = {c, side, side},
                    .out = {c, side, side},
                    .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}},
                    .groups = 1,
                    .form = RV_FORM_DENSE,
                    .weight = weight};
    rv_values x = values_of(STEPS, BATCH, n), y = values_of(STEPS, BATCH, n);
    rv_signal in = {.values = x};
    double flops = 2.0 * ROWS * 9 * c * n;
    MUST(device.ops->conv_pack(device.ctx, NULL, &conv, BATCH, &conv.packed));
    LINE("conv dense forward", n, 1.0, ARITHMETIC, flops,
         device.ops->conv_forward(device.ctx, NULL, &conv, &in, y, &arena));
    LINE("conv dense backward", n, 1.0, ARITHMETIC, flops,
         device.ops->conv_backward(device.ctx, NULL, &conv, y, x, false, &arena));
    LINE("conv dense weight", n, 1.0, ARITHMETIC, flops,
         device.ops->conv_weight(device.ctx, NULL, &conv, &in, y, gw, NULL, &arena));
    device.ops->conv_unpack(device.ctx, conv.packed), conv.packed = NULL;
    conv.form = RV_FORM_EVENT;
    MUST(device.ops->conv_pack(device.ctx, NULL, &conv, BATCH, &conv.packed));
    for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
        double count;
        rv_signal s = {.spikes = spikes_of(STEPS, BATCH, n, rates[k], &count)};
        LINE("conv event forward", n, rates[k], CACHE, 4.0 * count * 9 * c,
             device.ops->conv_forward(device.ctx, NULL, &conv, &s, y, &arena));
        LINE("conv event weight", n, rates[k], CACHE, 4.0 * count * 9 * c,
             device.ops->conv_weight(device.ctx, NULL, &conv, &s, y, gw, NULL, &arena));
        rv_free(s.spikes.bits);
    }
    device.ops->conv_unpack(device.ctx, conv.packed);
    rv_free(weight), rv_free(gw), rv_free(x.data), rv_free(y.data);
}

/* ---- neurons and what follows maps -------------------------------------------------------- */
/* Forward reads x and writes h and the planes that are kept; the adjoint reads them and the adjoint
 * of the output, and writes over h. */
static void neuron_of(int kind, int n) {
    rv_neuron neuron = {.kind = kind,
                        .reset = RV_RESET_SUBTRACT,
                        .detach_reset = true,
                        .surrogate = {.kind = RV_SURROGATE_atan, .p = {2}}};
    unsigned keeps = rv_neuron_keeps(&neuron);
    bool fires = rv_neuron_spikes(&neuron);
    char name[RV_NAME_MAX];
    rv_values x = values_of(STEPS, BATCH, n), h = values_of(STEPS, BATCH, n);
    rv_values g = values_of(STEPS, BATCH, n), i = {0}, a = {0};
    double count, plane = 4.0 * ROWS * x.ld, kept = !!(keeps & RV_KEEP_I) + !!(keeps & RV_KEEP_A);
    rv_spikes s = spikes_of(STEPS, BATCH, n, 0.1, &count);
    size_t row = (size_t)BATCH * (size_t)x.ld;
    rv_neuron_state state = {floats(row), floats(row), floats(row), floats(row), s.bits};
    float *beta = floats((size_t)x.ld), *alpha = floats((size_t)x.ld);
    if (keeps & RV_KEEP_I) i = values_of(STEPS, BATCH, n);
    if (keeps & RV_KEEP_A) a = values_of(STEPS, BATCH, n);
    for (int u = 0; u < x.ld; u++)
        beta[u] = 0.9f, alpha[u] = 0.8f;
    rv_neuron_forward f = {.neuron = &neuron,
                           .T = STEPS,
                           .B = BATCH,
                           .n = n,
                           .ld = x.ld,
                           .x = x,
                           .h = h,
                           .i = i,
                           .a = a,
                           .state = state};
    rv_neuron_backward b = {.neuron = &neuron,
                            .T = STEPS,
                            .B = BATCH,
                            .n = n,
                            .ld = x.ld,
                            .h = h,
                            .i = i,
                            .a = a,
                            .before = state,
                            .adjoint = state};
    uint32_t *last = calloc((size_t)BATCH * (size_t)rv_words(n), sizeof *last);
    if (!last) MUST(rv_fail(RV_MEMORY, "out of memory"));
    f.state.last = b.before.last = b.adjoint.last = last;
    if (fires) f.s = b.s = s, b.gs = g;
    if (!fires) b.gv = g;
    f.param[RV_P_BETA] = b.param[RV_P_BETA] = beta;
    f.param[RV_P_ALPHA] = b.param[RV_P_ALPHA] = alpha;
    snprintf(name, sizeof name, "%s forward", rv_table_row(rv_neuron_table(), kind)->name);
    LINE(name, n, 0.0, MEMORY, (2 + kept) * plane,
         device.ops->neuron_forward(device.ctx, NULL, &f, &arena));
    snprintf(name, sizeof name, "%s backward", rv_table_row(rv_neuron_table(), kind)->name);
    LINE(name, n, 0.0, MEMORY, (3 + kept) * plane,
         device.ops->neuron_backward(device.ctx, NULL, &b, &arena));
    rv_free(x.data), rv_free(h.data), rv_free(g.data), rv_free(i.data), rv_free(a.data);
    rv_free(state.v), rv_free(state.i), rv_free(state.a), rv_free(state.x), rv_free(s.bits);
    rv_free(beta), rv_free(alpha), free(last);
}

/* Least traffic: x in and y out; x, g in and gx out. */
static void norms(int channels, int side) {
    int n = channels * side * side;
    rv_values x = values_of(STEPS, BATCH, n), y = values_of(STEPS, BATCH, n);
    rv_values gx = values_of(STEPS, BATCH, n);
    size_t c = (size_t)channels;
    float *gamma = floats(c), *beta = floats(c), *mean = floats(STEPS * c),
          *var = floats(STEPS * c);
    rv_norm norm = {.plane = {channels, side, side},
                    .training = true,
                    .epsilon = 1e-5f,
                    .gamma = gamma,
                    .beta = beta,
                    .mean = mean,
                    .var = var};
    double plane = 4.0 * ROWS * n;
    LINE("norm forward", n, 1.0, MEMORY, 2 * plane,
         device.ops->norm_forward(device.ctx, NULL, &norm, x, y, &arena));
    LINE("norm backward", n, 1.0, MEMORY, 3 * plane,
         device.ops->norm_backward(device.ctx, NULL, &norm, x, y, gx, false, gamma, beta, &arena));
    rv_free(x.data), rv_free(y.data), rv_free(gx.data);
    rv_free(gamma), rv_free(beta), rv_free(mean), rv_free(var);
}

/* A delay of a step and a half for every unit: two inputs of each output. */
static void delays(int n) {
    enum { MOST = 3 };
    double count;
    rv_signal x = {.spikes = spikes_of(STEPS, BATCH, n, 0.1, &count)};
    rv_values y = values_of(STEPS, BATCH, n), gx = values_of(STEPS, BATCH, n);
    size_t ring = (size_t)(MOST + 1) * BATCH * (size_t)y.ld;
    float *delay = floats((size_t)n), *g_delay = floats((size_t)n);
    rv_delay d = {.plane = {n, 1, 1},
                  .max = MOST,
                  .delay = delay,
                  .ring = floats(ring),
                  .ring_adjoint = floats(ring)};
    for (int u = 0; u < n; u++)
        delay[u] = 1.5f;
    LINE("delay forward", n, 0.1, MEMORY, 4.0 * ROWS * n,
         device.ops->delay_forward(device.ctx, NULL, &d, &x, y, &arena));
    LINE("delay backward", n, 0.1, MEMORY, 2 * 4.0 * ROWS * n,
         device.ops->delay_backward(device.ctx, NULL, &d, &x, y, gx, false, g_delay, &arena));
    rv_free(x.spikes.bits), rv_free(y.data), rv_free(gx.data), rv_free(delay), rv_free(g_delay);
    rv_free(d.ring), rv_free(d.ring_adjoint);
}

/* Average and maximum of 2 x 2 over `side` x `side` planes. */
static void pools(int channels, int side) {
    static const char *const names[2][2] = {{"avg pool forward", "avg pool backward"},
                                            {"max pool forward", "max pool backward"}};
    static const rv_pool_kind kinds[2] = {RV_POOL_AVG, RV_POOL_MAX};
    int n = channels * side * side;
    rv_values x = values_of(STEPS, BATCH, n), y = values_of(STEPS, BATCH, n / 4),
              gx = values_of(STEPS, BATCH, n);
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

/* ---- updates and encoders ----------------------------------------------------------------- */
/* Weight and slots are read and written, the gradient read. */
static void optimizers(int n) {
    static const struct {
        const char *name;
        int slots;
    } kinds[] = {{"sgd", 1}, {"adam", 2}, {"adamw", 2}, {"rmsprop", 1}};
    float *block[4];
    for (int k = 0; k < 4; k++) { /* second moments are no smaller than 0 */
        block[k] = floats((size_t)n);
        for (int i = 0; k >= 2 && i < n; i++)
            block[k][i] = fabsf(block[k][i]);
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const rv_row *row = rv_table_find(rv_optimizer_table(), kinds[k].name);
        uint32_t bad = 0;
        assert(row);
        rv_optim_update u = {.kind = rv_table_index(rv_optimizer_table(), row),
                             .n = (size_t)n,
                             .weight = block[0],
                             .grad = block[1],
                             .slot = {block[kinds[k].slots == 1 ? 3 : 2], block[3]},
                             .scale = 1,
                             .rate = 1e-6,
                             .momentum = 0.9,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .alpha = 0.99,
                             .epsilon = 1e-8,
                             .bad = &bad};
        LINE(kinds[k].name, n, 1.0, MEMORY, (3.0 + 2 * kinds[k].slots) * 4 * n,
             device.ops->optim_update(device.ctx, NULL, &u));
    }
    for (int k = 0; k < 4; k++)
        rv_free(block[k]);
}

/* Every row of the table but the one that hands the values on. Frames in, bits out. */
static void encoders(int n) {
    static const int32_t label[BATCH];
    uint64_t sample[BATCH];
    rv_values frame = values_of(1, BATCH, n);
    rv_batch batch = {.B = BATCH, .input = {.values = frame}, .label = label, .sample = sample};
    rv_source source = {.count = BATCH, .shape = {1, {n}}, .classes = 10};
    batch.input.values.stride_t = 0;
    for (int b = 0; b < BATCH; b++)
        sample[b] = (uint64_t)b;
    for (size_t i = 0; i < (size_t)BATCH * (size_t)frame.ld; i++)
        frame.data[i] += 0.5f;
    for (int k = 0; k < rv_encoder_table()->count; k++) {
        rv_choice encoder = {rv_table_row(rv_encoder_table(), k), NULL};
        rv_encoding made = {.shape = source.shape};
        rv_signal out;
        if (strcmp(encoder.row->name, "constant") == 0) continue;
        if (strcmp(encoder.row->name, "delta") == 0) continue; /* needs frames of every step */
        MUST(rv_alloc(1, encoder.row->options_size, "bench", &encoder.options));
        rv_specs_default(encoder.row->specs, encoder.options);
        *(int *)encoder.options = STEPS; /* first of every encoder's */
        MUST(rv_encoder_check(&encoder, &source, &made));
        double bytes = 4.0 * BATCH * (n + STEPS * rv_words(rv_shape_units(made.shape)));
        LINE(encoder.row->name, n, 1.0, MEMORY, bytes,
             (out = (rv_signal){0},
              rv_encode(&encoder, &device, NULL, &batch, 0, BATCH, 1, 0, STEPS, &arena, &out)));
        rv_free(encoder.options);
    }
    rv_free(frame.data);
}

/* An argument names the file that gets the same lines as JSON. */
int main(int argc, char **argv) {
    static const int sizes[] = {256, 1024, 4096};
    rv_isa isa = rv_isa_best();
    if (argc > 1 && !(json = fopen(argv[1], "w"))) {
        perror(argv[1]);
        return 1;
    }
    MUST(rv_device_open("cpu", isa, 1, &device));
    (void)rv_flush_set();
    printf("isa   %s, one thread, %d steps of %d samples\n", rv_isa_name(isa), STEPS, BATCH);
    roofs();
    printf("%-24s %7s %6s %13s %16s\n", "op", "units", "rate", "time", "speed");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        products(sizes[k]);
    convolutions(32, 14);
    convolutions(64, 14);
    for (int kind = 0; kind < RV_NEURONS; kind++)
        neuron_of(kind, 1024);
    neuron_of(RV_NEURON_lif, 4096);
    norms(32, 28);
    pools(32, 28);
    pools(64, 14);
    delays(1024);
    optimizers(1 << 16);
    optimizers(1 << 24);
    encoders(784);
    rv_arena_finish(&arena);
    rv_device_close(&device);
    if (json && fclose(json) != 0) {
        perror(argv[1]);
        return 1;
    }
    return 0;
}
