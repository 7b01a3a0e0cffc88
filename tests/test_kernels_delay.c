/* Delays: values and adjoints against double, delays by finite differences, chunks bit for bit. */
#include "tests/ops.h"

enum { T = 7, B = 3, MAX = 4, C = 6 };
static const rv_plane plane = {C, 1, 3};
enum { N = C * 3 };
/* Whole, none, fractional, the largest, and outside the range (held at its ends). */
static const float delays[C] = {2.0f, 0.0f, 1.25f, 4.0f, 3.625f, 5.5f};

static double clamped(double d) {
    return d < 0 ? 0 : d > MAX ? MAX : d;
}
/* Packed sequences: sample 1 begins anew at step 3, sample 2 at steps 1 and 5. */
static const uint32_t packed[T] = {0, 4, 0, 2, 0, 4, 0};
static const uint32_t *const starts_of[] = {NULL, packed};

/* Whether step t sees step s: nothing before the sequence, nor before its latest start. */
static bool sees(const uint32_t *starts, int t, int s, int b) {
    if (s < 0) return false;
    for (int k = s + 1; starts && k <= t; k++)
        if (starts[k] >> b & 1u) return false;
    return true;
}

typedef struct outcome {
    rv_values y, gx, added;
    float *ring, *ring_adjoint, *g_delay;
} outcome;
static void outcome_free(outcome *o) {
    rv_free(o->y.data), rv_free(o->gx.data), rv_free(o->added.data);
    rv_free(o->ring), rv_free(o->ring_adjoint), rv_free(o->g_delay);
}

/* Forward over the chunks, then backward over them descending, rings carried from one to the next.
 */
static outcome run_ops(const rv_device *device, const rv_signal *x, rv_values g,
                       const uint32_t *starts, const int *border, int chunks) {
    const rv_ops *ops = device->ops;
    rv_arena arena = {0};
    uint32_t seed = 21;
    size_t ring = (size_t)(MAX + 1) * B * (size_t)rv_round_up(N, RV_LANES);
    float *before[T], *adjoint = test_floats(ring);
    outcome o = {
        test_empty(T, B, N, false), test_empty(T, B, N, false), test_values(T, B, N, false, &seed),
        test_floats(ring),          test_floats(ring),          test_floats(C)};
    rv_delay delay = {plane, MAX, delays, NULL, o.ring, o.ring_adjoint, NULL};
    for (int k = 0; k < chunks; k++) {
        rv_signal xc = test_signal_steps(*x, border[k], border[k + 1]);
        before[k] = test_floats(ring);
        delay.starts = starts ? starts + border[k] : NULL;
        memcpy(before[k], o.ring, ring * sizeof(float));
        CHECK(ops->delay_forward(device->ctx, NULL, &delay, &xc,
                                 test_steps(o.y, border[k], border[k + 1]), &arena));
    }
    for (int k = chunks - 1; k >= 0; k--) {
        int t0 = border[k], t1 = border[k + 1];
        rv_signal xc = test_signal_steps(*x, t0, t1);
        rv_values gc = test_steps(g, t0, t1);
        delay.ring = before[k];
        delay.starts = starts ? starts + t0 : NULL;
        memcpy(adjoint, o.ring_adjoint, ring * sizeof(float));
        CHECK(ops->delay_backward(device->ctx, NULL, &delay, &xc, gc, test_steps(o.gx, t0, t1),
                                  false, o.g_delay, &arena));
        delay.ring_adjoint = adjoint; /* once more, onto what is there */
        CHECK(ops->delay_backward(device->ctx, NULL, &delay, &xc, gc, test_steps(o.added, t0, t1),
                                  true, NULL, &arena));
        delay.ring_adjoint = o.ring_adjoint;
        assert_int_equal(arena.used, 0);
        rv_free(before[k]);
    }
    rv_free(adjoint);
    rv_arena_finish(&arena);
    return o;
}

static double value(const rv_signal *x, const uint32_t *starts, int t, int b, int u, double delay) {
    double d = clamped(delay), f = d - floor(d), sum = 0.0;
    int near = t - (int)floor(d);
    if (sees(starts, t, near, b)) sum += (1 - f) * test_in(x, near, b, u);
    if (sees(starts, t, near - 1, b)) sum += f * test_in(x, near - 1, b, u);
    return sum;
}
static double loss(const rv_signal *x, rv_values g, const uint32_t *starts, int c, double delay) {
    double sum = 0.0;
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++)
            for (int u = 3 * c; u < 3 * c + 3; u++)
                sum += value(x, starts, t, b, u, delay) * (double)*test_at(g, t, b, u);
    return sum;
}

static void compare(const rv_signal *x, rv_values g, const uint32_t *starts, const outcome *o) {
    uint32_t seed = 21;
    rv_values before = test_values(T, B, N, false, &seed);
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++)
            for (int u = 0; u < N; u++) {
                double d = clamped((double)delays[u / 3]), f = d - floor(d), want = 0.0;
                int near = t + (int)floor(d);
                if (near < T && sees(starts, near, t, b))
                    want += (1 - f) * (double)*test_at(g, near, b, u);
                if (near + 1 < T && sees(starts, near + 1, t, b))
                    want += f * (double)*test_at(g, near + 1, b, u);
                test_close((double)*test_at(o->y, t, b, u),
                           value(x, starts, t, b, u, (double)delays[u / 3]), 1e-6);
                test_close((double)*test_at(o->gx, t, b, u), want, 1e-6);
                test_close((double)*test_at(o->added, t, b, u),
                           want + (double)*test_at(before, t, b, u), 1e-6);
            }
    for (int c = 0; c < C; c++) { /* at whole delays the slope is that of the longer side */
        const double h = 1e-4;
        double d = clamped((double)delays[c]);
        if (d == MAX) continue;
        test_close((double)o->g_delay[c],
                   (loss(x, g, starts, c, d + h) - loss(x, g, starts, c, d)) / h, 1e-6);
    }
    test_padded(o->y), test_padded(o->gx), test_padded(o->added);
    rv_free(before.data);
}

static void delay_ops_under_every_chunking_equal_double_and_each_other(void **state) {
    (void)state;
    static const int borders[][T + 1] = {
        {0, T}, {0, 1, T}, {0, 3, 5, T}, {0, 6, T}, {0, 1, 2, 3, 4, 5, 6, T}};
    static const int chunks[] = {1, 2, 3, 2, 7};
    for (int threads = 1; threads <= 2; threads++)
        for (int mode = 0; mode < 4; mode++) {
            bool spikes = mode & 1;
            const uint32_t *starts = starts_of[mode / 2];
            rv_device device = test_open(threads);
            uint32_t seed = 8;
            rv_signal x = test_signal(spikes, T, B, N, &seed);
            rv_values g = test_values(T, B, N, false, &seed);
            size_t ring = (size_t)(MAX + 1) * B * (size_t)rv_round_up(N, RV_LANES);
            outcome whole = run_ops(&device, &x, g, starts, borders[0], chunks[0]);
            compare(&x, g, starts, &whole);
            for (size_t i = 0; i < ring; i++) { /* age, then sample, then unit */
                int at = T - 1 - (int)(i / (32 * B)), b = (int)(i / 32 % B), u = (int)(i % 32);
                bool seen = u < N && sees(starts, T - 1, at, b);
                assert_true(whole.ring[i] == (seen ? (float)test_in(&x, at, b, u) : 0.0f));
            }
            for (size_t k = 1; k < sizeof chunks / sizeof *chunks; k++) {
                outcome cut = run_ops(&device, &x, g, starts, borders[k], chunks[k]);
                test_same_bits(whole.y, cut.y);
                test_same_bits(whole.gx, cut.gx);
                test_same_bits(whole.added, cut.added);
                assert_memory_equal(whole.ring, cut.ring, ring * sizeof(float));
                assert_memory_equal(whole.g_delay, cut.g_delay, C * sizeof(float));
                outcome_free(&cut);
            }
            outcome_free(&whole);
            test_signal_free(x);
            rv_free(g.data);
            rv_device_close(&device);
        }
}

/* A held input has one adjoint: the sum over time. */
static void delay_of_a_held_input_sums_its_adjoint(void **state) {
    (void)state;
    rv_device device = test_open(2);
    rv_arena arena = {0};
    uint32_t seed = 8;
    rv_signal x = {.values = test_values(T, B, N, true, &seed)};
    rv_values g = test_values(T, B, N, false, &seed), gx = test_empty(T, B, N, true);
    rv_values y = test_empty(T, B, N, false);
    size_t ring = (size_t)(MAX + 1) * B * (size_t)rv_round_up(N, RV_LANES);
    float *a = test_floats(ring), *b_ring = test_floats(ring);
    rv_delay delay = {plane, MAX, delays, NULL, a, b_ring, NULL};
    CHECK(device.ops->delay_backward(device.ctx, NULL, &delay, &x, g, gx, false, NULL, &arena));
    CHECK(device.ops->delay_forward(device.ctx, NULL, &delay, &x, y, &arena));
    for (int b = 0; b < B; b++)
        for (int u = 0; u < N; u++) {
            double want = 0.0;
            for (int t = 0; t < T; t++) {
                double d = clamped((double)delays[u / 3]), f = d - floor(d);
                int k = (int)floor(d);
                double weight = (t - k >= 0 ? 1 - f : 0) + (t - k - 1 >= 0 ? f : 0);
                want += weight * (double)*test_at(g, t, b, u);
                test_close((double)*test_at(y, t, b, u),
                           weight * (double)*test_at(x.values, 0, b, u), 1e-6);
            }
            test_close((double)*test_at(gx, 0, b, u), want, 1e-6);
        }
    rv_free(a), rv_free(b_ring);
    rv_free(x.values.data), rv_free(g.data), rv_free(gx.data), rv_free(y.data);
    rv_arena_finish(&arena);
    rv_device_close(&device);
}

static int group(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delay_ops_under_every_chunking_equal_double_and_each_other),
        cmocka_unit_test(delay_of_a_held_input_sums_its_adjoint),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return test_each_isa(group);
}
