/* Scale, copy, dropout and the stateless threshold against loops; held views; threads. */
#include "tests/ops.h"

enum { T = 3, B = 4, N = 41 };

static void scale_ops_on_bits_and_values_multiply_unit_by_unit(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++)
        for (int mode = 0; mode < 8; mode++) {
            rv_device device = test_open(threads);
            rv_arena arena = {0};
            bool spikes = mode & 1, add = mode & 2, factored = mode & 4;
            uint32_t seed = 2;
            rv_signal x = test_signal(spikes, T, B, N, &seed);
            float *factor = test_random_floats(N, &seed), *gradient = test_random_floats(N, &seed);
            rv_values y = add ? test_values(T, B, N, false, &seed) : test_empty(T, B, N, false);
            rv_values before = test_copy(y), g = test_values(T, B, N, false, &seed);
            float want[N];
            memcpy(want, gradient, sizeof want);
            CHECK(
                device.ops->scale(device.ctx, NULL, &x, factored ? factor : NULL, y, add, &arena));
            CHECK(device.ops->scale_weight(device.ctx, NULL, &x, g, gradient, &arena));
            for (int t = T - 1; t >= 0; t--)
                for (int b = 0; b < B; b++)
                    for (int u = 0; u < N; u++) {
                        float v = (float)test_in(&x, t, b, u) * (factored ? factor[u] : 1.0f);
                        v = add ? *test_at(before, t, b, u) + v : v;
                        assert_true(*test_at(y, t, b, u) == v);
                        want[u] += (float)test_in(&x, t, b, u) * *test_at(g, t, b, u);
                    }
            assert_memory_equal(gradient, want, sizeof want); /* t descending, b ascending */
            test_padded(y);
            test_signal_free(x);
            rv_free(factor), rv_free(gradient), rv_free(g.data);
            rv_free(y.data), rv_free(before.data);
            rv_arena_finish(&arena);
            rv_device_close(&device);
        }
}

static void copy_units_between_offsets_moves_only_those(void **state) {
    (void)state;
    static const int moves[][3] = {{0, 0, N}, {3, 20, 38}, {31, 1, 10}, {40, 59, 1}, {32, 0, 9}};
    for (int threads = 1; threads <= 2; threads++)
        for (int mode = 0; mode < 4; mode++)
            for (size_t m = 0; m < sizeof moves / sizeof *moves; m++) {
                rv_device device = test_open(threads);
                bool spikes = mode & 1, add = mode & 2;
                int from = moves[m][0], to = moves[m][1], count = moves[m][2];
                uint32_t seed = 2;
                rv_signal x = test_signal(spikes, T, B, N, &seed);
                rv_values y = test_values(T, B, 60, false, &seed), before = test_copy(y);
                CHECK(device.ops->copy_units(device.ctx, NULL, &x, from, y, to, count, add));
                for (int t = 0; t < T; t++)
                    for (int b = 0; b < B; b++)
                        for (int u = 0; u < 60; u++) {
                            bool moved = u >= to && u < to + count;
                            float old = *test_at(before, t, b, u);
                            float v = moved ? (float)test_in(&x, t, b, from + u - to) : old;
                            assert_true(*test_at(y, t, b, u) == (moved && add ? old + v : v));
                        }
                test_padded(y);
                test_signal_free(x);
                rv_free(y.data), rv_free(before.data);
                rv_device_close(&device);
            }
}

/* The adjoint of a held input of a join is the sum over time; a held input serves all steps. */
static void copy_units_with_held_views_sums_or_repeats(void **state) {
    (void)state;
    for (int add = 0; add < 2; add++) {
        rv_device device = test_open(2);
        uint32_t seed = 2;
        rv_signal x = {.values = test_values(T, B, N, false, &seed)}, frame = {{0}, {0}};
        rv_values sum = add ? test_values(T, B, N, true, &seed) : test_empty(T, B, N, true);
        rv_values before = test_copy(sum), all = test_empty(T, B, N, false);
        CHECK(device.ops->copy_units(device.ctx, NULL, &x, 0, sum, 0, N, add));
        frame.values = sum;
        CHECK(device.ops->copy_units(device.ctx, NULL, &frame, 0, all, 0, N, false));
        for (int b = 0; b < B; b++)
            for (int u = 0; u < N; u++) {
                float want = add ? *test_at(before, 0, b, u) : 0.0f;
                for (int t = T - 1; t >= 0; t--)
                    want += *test_at(x.values, t, b, u);
                assert_true(*test_at(sum, 0, b, u) == want);
                for (int t = 0; t < T; t++)
                    assert_true(*test_at(all, t, b, u) == want);
            }
        rv_free(x.values.data), rv_free(sum.data), rv_free(before.data), rv_free(all.data);
        rv_device_close(&device);
    }
}

static void dropout_mask_is_one_per_sample_and_keyed_by_it(void **state) {
    (void)state;
    enum { BIG = 64, WIDE = 1000 };
    for (int threads = 1; threads <= 2; threads++)
        for (int add = 0; add < 2; add++) {
            rv_device device = test_open(threads);
            rv_arena arena = {0};
            uint32_t seed = 2;
            rv_signal x = {.values = test_values(2, BIG, WIDE, false, &seed)};
            rv_values y =
                add ? test_values(2, BIG, WIDE, false, &seed) : test_empty(2, BIG, WIDE, false);
            rv_values before = test_copy(y);
            uint64_t sample[BIG];
            int kept = 0;
            for (int b = 0; b < BIG; b++)
                sample[b] = (uint64_t)(1000 - 3 * b);
            CHECK(
                device.ops->dropout(device.ctx, NULL, &x, 0.25f, 99, 5, 7, sample, y, add, &arena));
            for (int b = 0; b < BIG; b++)
                for (int u = 0; u < WIDE; u++) {
                    uint32_t words[4];
                    rv_random4(words, 99, RV_FOR_DROPOUT, 5, 7, (uint32_t)sample[b], 0,
                               (uint32_t)u / 4);
                    bool keep = rv_uniform(words[u % 4]) >= 0.25f;
                    kept += keep;
                    for (int t = 0; t < 2; t++) {
                        float v = *test_at(x.values, t, b, u) * (keep ? 1.0f / 0.75f : 0.0f);
                        if (add) v = *test_at(before, t, b, u) + v;
                        assert_true(*test_at(y, t, b, u) == v);
                    }
                }
            assert_true(fabs(kept / (double)(BIG * WIDE) - 0.75) < 0.01);
            test_padded(y);
            rv_free(x.values.data), rv_free(y.data), rv_free(before.data);
            rv_arena_finish(&arena);
            rv_device_close(&device);
        }
}

static void threshold_forward_at_equality_follows_the_comparison(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++)
        for (int strict = 0; strict < 2; strict++) {
            rv_device device = test_open(threads);
            uint32_t seed = 2;
            rv_values x = test_values(T, B, N, false, &seed);
            float *theta = test_random_floats(N, &seed);
            rv_spikes s = test_spikes(T, B, N, &seed);
            *test_at(x, 1, 1, 40) = theta[40], *test_at(x, 2, 0, 0) = theta[0];
            CHECK(device.ops->threshold_forward(device.ctx, NULL, x, theta, strict, s));
            rv_signal out = {.spikes = s};
            for (int t = 0; t < T; t++)
                for (int b = 0; b < B; b++) {
                    for (int u = 0; u < N; u++) {
                        float v = *test_at(x, t, b, u);
                        assert_true(test_in(&out, t, b, u) ==
                                    (strict ? v > theta[u] : v >= theta[u]));
                    }
                    assert_int_equal(s.bits[(t * B + b) * 2 + 1] >> (N - 32), 0);
                }
            rv_free(x.data), rv_free(theta), rv_free(s.bits);
            rv_device_close(&device);
        }
}

/* Every surrogate: the adjoint is g times its value; thresholds take the opposite sign. */
static void threshold_backward_uses_every_surrogate(void **state) {
    (void)state;
    enum { UNITS = 300 };
    const rv_table *table = rv_surrogate_table();
    for (int threads = 1; threads <= 2; threads++)
        for (int kind = 0; kind < table->count; kind++) {
            rv_device device = test_open(threads);
            uint32_t seed = 2;
            const rv_row *row = rv_table_row(table, kind);
            rv_surrogate_options options;
            rv_surrogate surrogate = {kind, {0}};
            rv_specs_default(row->specs, &options);
            for (int k = 0; k < RV_SURROGATE_PARAMS; k++)
                surrogate.p[k] = (float)options.p[k];
            rv_values x = test_values(T, B, UNITS, false, &seed);
            rv_values g = test_values(T, B, UNITS, false, &seed);
            rv_values gx = test_empty(T, B, UNITS, false), held = test_empty(T, B, UNITS, true);
            float *theta = test_random_floats(UNITS, &seed), *gt = test_floats(UNITS);
            const rv_ops *ops = device.ops;
            CHECK(
                ops->threshold_backward(device.ctx, NULL, x, theta, &surrogate, g, gx, false, gt));
            CHECK(ops->threshold_backward(device.ctx, NULL, x, theta, &surrogate, g, held, false,
                                          NULL));
            for (int u = 0; u < UNITS; u++) {
                double sum = 0.0, frame = 0.0;
                for (int t = 0; t < T; t++)
                    for (int b = 0; b < B; b++) {
                        float at = *test_at(x, t, b, u) - theta[u];
                        double want = rv_surrogate_value(&surrogate, (double)at) *
                                      (double)*test_at(g, t, b, u);
                        test_close((double)*test_at(gx, t, b, u), want, 1e-4);
                        sum -= (double)*test_at(gx, t, b, u);
                        if (b == 0) frame += (double)*test_at(gx, t, b, u);
                    }
                test_close((double)gt[u], sum, 1e-5);
                test_close((double)*test_at(held, 0, 0, u), frame, 1e-5);
            }
            test_padded(gx), test_padded(held);
            CHECK(
                ops->threshold_backward(device.ctx, NULL, x, theta, &surrogate, g, gx, true, NULL));
            rv_free(x.data), rv_free(g.data), rv_free(gx.data), rv_free(held.data);
            rv_free(theta), rv_free(gt);
            rv_device_close(&device);
        }
}

static int group(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_ops_on_bits_and_values_multiply_unit_by_unit),
        cmocka_unit_test(copy_units_between_offsets_moves_only_those),
        cmocka_unit_test(copy_units_with_held_views_sums_or_repeats),
        cmocka_unit_test(dropout_mask_is_one_per_sample_and_keyed_by_it),
        cmocka_unit_test(threshold_forward_at_equality_follows_the_comparison),
        cmocka_unit_test(threshold_backward_uses_every_surrogate),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return test_each_isa(group);
}
