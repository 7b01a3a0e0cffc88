/*
 * Optimisers against PyTorch's formulas in double, limits, the norm's order, the rate encoder and
 * spike counts; the same bits for every number of threads.
 */
#include "tests/levels.h"

enum { N = 10007, STEPS = 6 };
enum { SGD, ADAM, ADAMW, RMSPROP };

/* One parameter by the book (torch.optim's documentation). */
typedef struct book {
    double w, m, v, a;
} book;

static void book_step(const rv_optim_update *u, book *b, double g) {
    double step = (double)u->step + 1;
    g *= (double)u->scale;
    if (u->kind == ADAMW)
        b->w -= u->rate * u->decay * b->w;
    else
        g += u->decay * b->w;
    if (u->kind == SGD) {
        if (u->momentum != 0) {
            b->m = u->step == 0 ? g : u->momentum * b->m + (1 - u->dampening) * g;
            g = u->nesterov ? g + u->momentum * b->m : b->m;
        }
        b->w -= u->rate * g;
    } else if (u->kind == RMSPROP) {
        b->v = u->alpha * b->v + (1 - u->alpha) * g * g;
        b->a = u->alpha * b->a + (1 - u->alpha) * g;
        double under = sqrt(u->centered ? b->v - b->a * b->a : b->v) + u->epsilon;
        b->m = u->momentum * b->m + g / under;
        b->w -= u->rate * b->m;
    } else {
        b->m = u->beta1 * b->m + (1 - u->beta1) * g;
        b->v = u->beta2 * b->v + (1 - u->beta2) * g * g;
        double under = sqrt(b->v) / sqrt(1 - pow(u->beta2, step)) + u->epsilon;
        b->w -= u->rate / (1 - pow(u->beta1, step)) * b->m / under;
    }
}

static const rv_optim_update cases[] = {
    {.kind = SGD, .scale = 1, .rate = 0.1},
    {.kind = SGD, .scale = 0.5f, .rate = 0.1, .decay = 0.05, .momentum = 0.9},
    {.kind = SGD, .scale = 1, .rate = 0.1, .momentum = 0.9, .dampening = 0.25},
    {.kind = SGD, .scale = 1, .rate = 0.1, .momentum = 0.9, .nesterov = true},
    {.kind = ADAM, .scale = 1, .rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
    {.kind = ADAM,
     .scale = 0.25f,
     .rate = 0.01,
     .decay = 0.1,
     .beta1 = 0.8,
     .beta2 = 0.95,
     .epsilon = 1e-4},
    {.kind = ADAMW,
     .scale = 1,
     .rate = 0.01,
     .decay = 0.1,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .epsilon = 1e-8},
    {.kind = RMSPROP, .scale = 1, .rate = 0.01, .alpha = 0.99, .epsilon = 1e-8},
    {.kind = RMSPROP,
     .scale = 1,
     .rate = 0.01,
     .decay = 0.01,
     .alpha = 0.9,
     .epsilon = 1e-3,
     .momentum = 0.9,
     .centered = true},
};

/* weight, slots after STEPS updates */
static void run_updates(rv_optim_update u, test_device which, float *block, book *books) {
    rv_device device = test_device_open(which);
    uint32_t random = 3;
    float *grad = test_floats(N);
    u.n = N;
    u.weight = block;
    u.grad = grad;
    for (int k = 0; k < 3; k++)
        u.slot[k] = block + (k + 1) * N;
    for (int i = 0; i < N; i++)
        block[i] = test_uniform(&random);
    for (int i = 0; books && i < N; i++)
        books[i] = (book){.w = (double)block[i]};
    for (u.step = 0; u.step < STEPS; u.step++) {
        for (int i = 0; i < N; i++)
            grad[i] = test_uniform(&random);
        for (int i = 0; books && i < N; i++)
            book_step(&u, &books[i], (double)grad[i]);
        CHECK(device.ops->optim_update(device.ctx, NULL, &u));
    }
    rv_free(grad);
    rv_device_close(&device);
}

static void optimizers_equal_the_formulas(void **state) {
    (void)state;
    static book books[N];
    test_device which;
    float *block = test_floats(4 * N);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int d = 0; test_device_at(d, &which); d++) {
            memset(block, 0, 4 * N * sizeof(float));
            run_updates(cases[k], which, block, books);
            for (int i = 0; i < N; i++)
                test_close((double)block[i], books[i].w, 2e-5);
        }
    rv_free(block);
}

static void optimizers_give_the_same_bits_for_every_thread_count(void **state) {
    (void)state;
    float *one = test_floats(4 * N), *three = test_floats(4 * N);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        memset(one, 0, 4 * N * sizeof(float));
        memset(three, 0, 4 * N * sizeof(float));
        run_updates(cases[k], (test_device){RV_ISA_AUTO, 1}, one, NULL);
        run_updates(cases[k], (test_device){RV_ISA_AUTO, 3}, three, NULL);
        assert_memory_equal(one, three, 4 * N * sizeof(float));
    }
    rv_free(one);
    rv_free(three);
}

static void limits_are_applied_after_the_update(void **state) {
    (void)state;
    float w[16], g[16];
    rv_device device = test_device_open((test_device){RV_ISA_AUTO, 1});
    for (int limit = 0; limit < 3; limit++) {
        rv_optim_update u = {.kind = SGD, .n = 16, .weight = w, .grad = g, .scale = 1, .rate = 1};
        u.limit = (rv_limit)limit;
        for (int i = 0; i < 16; i++) {
            w[i] = 0.5f;
            g[i] = (float)(i - 8) / 4;
        }
        CHECK(device.ops->optim_update(device.ctx, NULL, &u));
        for (int i = 0; i < 16; i++) {
            float want = 0.5f - g[i];
            if (limit == RV_LIMIT_UNIT) want = fminf(fmaxf(want, 0), 1);
            if (limit == RV_LIMIT_POSITIVE) want = fmaxf(want, 1e-6f);
            assert_true(w[i] == want);
        }
    }
    rv_device_close(&device);
}

/* Padding: no gradient and no epsilon must not become not-a-number. */
static void no_gradient_and_no_epsilon_do_not_move(void **state) {
    (void)state;
    float block[4 * 16] = {0};
    float grad[16] = {0};
    rv_device device = test_device_open((test_device){RV_ISA_AUTO, 1});
    for (int kind = ADAM; kind <= RMSPROP; kind++) {
        rv_optim_update u = {.kind = kind,
                             .n = 16,
                             .weight = block,
                             .grad = grad,
                             .slot = {block + 16, block + 32, block + 48},
                             .scale = 1,
                             .rate = 1,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .alpha = 0.9};
        CHECK(device.ops->optim_update(device.ctx, NULL, &u));
        for (int i = 0; i < 64; i++)
            assert_true(block[i] == 0);
    }
    rv_optim_update unknown = {.kind = 99};
    assert_int_equal(device.ops->optim_update(device.ctx, NULL, &unknown), RV_INTERNAL);
    rv_device_close(&device);
}

/* Whatever the rule, the place and the thread: a bad gradient, and a bad weight. */
static void updates_tell_of_what_is_not_finite(void **state) {
    (void)state;
    static const float bad_values[] = {NAN, INFINITY, -INFINITY, 1e38f};
    static const size_t places[] = {0, 15, 16, N / 2, N - 1};
    test_device which;
    float *block = test_floats(4 * N), *grad = test_floats(N);
    uint32_t bad = 1;
    for (int d = 0; test_device_at(d, &which); d++) {
        rv_device device = test_device_open(which);
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            rv_optim_update u = cases[k];
            u.n = N, u.weight = block, u.grad = grad, u.bad = &bad;
            for (int i = 0; i < 3; i++)
                u.slot[i] = block + (i + 1) * N;
            for (size_t v = 0; v < 4 * sizeof places / sizeof *places; v++) {
                size_t at = places[v / 4];
                for (int weight = 0; weight < 2; weight++) {
                    memset(block, 0, 4 * N * sizeof(float));
                    memset(grad, 0, N * sizeof(float));
                    bad = 0;
                    CHECK(device.ops->optim_update(device.ctx, NULL, &u));
                    assert_int_equal(bad, 0);
                    (weight ? block : grad)[at] = bad_values[v % 4];
                    CHECK(device.ops->optim_update(device.ctx, NULL, &u));
                    assert_int_equal(bad, 1);
                }
            }
        }
        rv_device_close(&device);
    }
    rv_free(grad);
    rv_free(block);
}

/* An update with everything that it can make, `parts` floats a call, in place or from weights
 * elsewhere. */
enum { LOTS = (1 << 19) + 1037, APART = (1 << 19) + 1040 };
enum { WEIGHT, SLOTS, TREND = SLOTS + 3, FIRST_VIEW, SECOND_VIEW, FROM, BLOCKS };
enum { ALL = BLOCKS * APART };
static void update_all(test_device which, rv_optim_update u, int parts, bool from, float *block,
                       const float *grad) {
    rv_device device = test_device_open(which);
    rv_optim_view view[2] = {{.terms = 1, .factor = {0.25f}, .root = {1.5f}, .since = 2},
                             {.mean = 3}};
    uint32_t random = 7;
    for (int i = 0; i < ALL; i++)
        block[i] = fabsf(test_uniform(&random));
    memcpy(block + FROM * APART, block, LOTS * sizeof *block);
    u.keep = 0.75;
    for (int first = 0; first < LOTS; first += parts) {
        u.n = (size_t)(LOTS - first < parts ? LOTS - first : parts);
        u.weight = block + first, u.grad = grad + first;
        u.from = from ? block + FROM * APART + first : NULL;
        for (int k = 0; k < 3; k++)
            u.slot[k] = block + (SLOTS + k) * APART + first;
        u.trend = block + TREND * APART + first;
        for (int k = 0; k < 2; k++) {
            view[k].to = block + (FIRST_VIEW + k) * APART + first;
            u.view[k] = &view[k];
        }
        CHECK(device.ops->optim_update(device.ctx, NULL, &u));
    }
    rv_device_close(&device);
}

/* Large ones write past the caches what they only write; weights in place are kept for what looks
 * back at them. */
static void updates_of_any_size_and_place_give_the_same_bits(void **state) {
    (void)state;
    test_device which;
    uint32_t random = 8;
    float *want = test_floats(ALL), *got = test_floats(ALL);
    float *grad = test_random_floats(LOTS, &random);
    for (int d = 0; test_device_at(d, &which); d++)
        for (int kind = SGD; kind <= ADAM; kind++) {
            const rv_optim_update u = cases[kind == SGD ? 1 : 5];
            update_all(which, u, 5003, true, want, grad);
            for (int k = 0; k < 3; k++) {
                update_all(which, u, k < 2 ? LOTS : 5003, k == 0, got, grad);
                assert_memory_equal(got, want, ALL * sizeof *got);
            }
        }
    for (const float *w = want; w < want + LOTS; w++) { /* adam's, by the formulas */
        double mean = (double)w[SLOTS * APART], square = (double)w[(SLOTS + 1) * APART];
        double moved = (double)*w - (double)w[FROM * APART], trend = (double)w[TREND * APART];
        double ahead = (double)*w - 0.25 * mean / (sqrt(square) * 1.5 + 1e-4) + 2 * moved;
        test_close((double)w[FIRST_VIEW * APART], ahead, 1e-5);
        test_close((double)w[SECOND_VIEW * APART], (double)*w - 3 * trend, 1e-5);
    }
    rv_free(grad);
    rv_free(got);
    rv_free(want);
}

static void norm_adds_blocks_of_256_in_order(void **state) {
    (void)state;
    uint32_t random = 4;
    float *x = test_random_floats(N, &random);
    test_device which;
    double want = 0;
    for (int i = 0; i < N; i++)
        want += (double)x[i] * (double)x[i];
    double first = 0;
    for (int d = 0; test_device_at(d, &which); d++) {
        rv_device device = test_device_open(which);
        double sum = 0, blocks = 0, part;
        CHECK(device.ops->norm2(device.ctx, NULL, x, N, &sum));
        assert_true(fabs(sum - want) < 1e-12 * want);
        for (int i = 0; i < N; i += 256) {
            CHECK(device.ops->norm2(device.ctx, NULL, x + i, N - i < 256 ? (size_t)(N - i) : 256,
                                    &part));
            blocks += part;
        }
        assert_true(blocks == sum);
        if (d == 0) first = sum;
        assert_true(first == sum);
        rv_device_close(&device);
    }
    rv_free(x);
}

static void rate_encoder_is_a_function_of_sample_and_step(void **state) {
    (void)state;
    enum { T = 7, B = 5, UNITS = 45 };
    uint32_t random = 5;
    uint64_t sample[B] = {3, 70000, 1, 12, 9};
    rv_values frame = test_values(1, B, UNITS, true, &random);
    test_device which;
    for (int i = 0; i < B * frame.ld; i++)
        frame.data[i] = fabsf(frame.data[i]);
    frame.data[0] = 0;
    frame.data[1] = 1;
    for (int d = 0; test_device_at(d, &which); d++) {
        rv_device device = test_device_open(which);
        uint32_t bits[T * B * 2];
        rv_spikes out = rv_spikes_of(bits, T, B, UNITS);
        memset(bits, 0xFF, sizeof bits);
        CHECK(device.ops->encode_rate(device.ctx, NULL, frame, sample, 42, 6, 100, out));
        for (int t = 0; t < T; t++)
            for (int b = 0; b < B; b++)
                for (int u = 0; u < 64; u++) {
                    uint32_t word[4], got = bits[(t * B + b) * 2 + u / 32] >> u % 32 & 1u;
                    rv_random4(word, 42, RV_FOR_ENCODE, 0, 6, (uint32_t)sample[b],
                               (uint32_t)(100 + t), (uint32_t)u / 4);
                    bool want = u < UNITS && rv_uniform(word[u % 4]) < frame.data[b * frame.ld + u];
                    assert_int_equal(got, want);
                }
        rv_device_close(&device);
    }
    rv_free(frame.data);
}

static void counts_are_added_per_sample(void **state) {
    (void)state;
    uint32_t random = 6;
    rv_spikes s = test_spikes(4, 3, 70, &random);
    rv_device device = test_device_open((test_device){RV_ISA_AUTO, 1});
    int64_t counts[3] = {5, 0, 0}, want[3] = {5, 0, 0};
    rv_signal x = {s, {0}};
    for (int t = 0; t < 4; t++)
        for (int b = 0; b < 3; b++)
            for (int u = 0; u < 70; u++)
                want[b] += (int64_t)test_in(&x, t, b, u);
    CHECK(device.ops->count_spikes(device.ctx, NULL, s, counts));
    assert_memory_equal(counts, want, sizeof counts);
    rv_device_close(&device);
    rv_free(s.bits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_equal_the_formulas),
        cmocka_unit_test(optimizers_give_the_same_bits_for_every_thread_count),
        cmocka_unit_test(limits_are_applied_after_the_update),
        cmocka_unit_test(no_gradient_and_no_epsilon_do_not_move),
        cmocka_unit_test(updates_tell_of_what_is_not_finite),
        cmocka_unit_test(updates_of_any_size_and_place_give_the_same_bits),
        cmocka_unit_test(norm_adds_blocks_of_256_in_order),
        cmocka_unit_test(rate_encoder_is_a_function_of_sample_and_step),
        cmocka_unit_test(counts_are_added_per_sample),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("kernels_optim", tests, NULL, NULL);
}
