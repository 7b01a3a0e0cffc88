/*
 * Linear maps against loops in double, in both forms; the same bits for every number of threads,
 * every cut in time and, for sums of events, every instruction set.
 */
#include "tests/levels.h"

static const int sizes[] = {1, 10, 15, 16, 17, 33, 64, 127, 128, 129, 130, 300};
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef struct map_case {
    int T, B, in, out;
    bool spikes, bias;
    rv_form form;
    float *weight, *biases;
    rv_map map;
    rv_signal x;
    rv_values g;
} map_case;

static map_case case_make(int T, int B, int in, int out, bool spikes, rv_form form, bool bias,
                          uint32_t *state) {
    map_case c = {T, B, in, out, spikes, bias, form, NULL, NULL, {0}, {{0}, {0}}, {0}};
    int ld = rv_round_up(out, RV_LANES);
    c.weight = test_floats((size_t)in * (size_t)ld);
    c.biases = test_floats((size_t)ld);
    for (int o = 0; o < out; o++) {
        c.biases[o] = test_uniform(state);
        for (int i = 0; i < in; i++)
            c.weight[i * ld + o] = test_uniform(state);
    }
    c.map = (rv_map){in, out, ld, form, c.weight, bias ? c.biases : NULL, NULL, true};
    c.x = test_signal(spikes, T, B, in, state);
    c.g = test_values(T, B, out, false, state);
    return c;
}

static void case_free(map_case *c) {
    rv_free(c->weight);
    rv_free(c->biases);
    test_signal_free(c->x);
    rv_free(c->g.data);
}

static double forward_want(const map_case *c, int t, int b, int o) {
    double y = c->bias ? (double)c->biases[o] : 0;
    for (int i = 0; i < c->in; i++)
        y += test_in(&c->x, t, b, i) * (double)c->weight[i * c->map.ld + o];
    return y;
}

static double backward_want(const map_case *c, int t, int b, int i) {
    double sum = 0;
    for (int o = 0; o < c->out; o++)
        sum += (double)*test_at(c->g, t, b, o) * (double)c->weight[i * c->map.ld + o];
    return sum;
}

static double weight_want(const map_case *c, int i, int o) { /* i < 0: bias */
    double sum = 0;
    for (int t = 0; t < c->T; t++)
        for (int b = 0; b < c->B; b++)
            sum += (i < 0 ? 1 : test_in(&c->x, t, b, i)) * (double)*test_at(c->g, t, b, o);
    return sum;
}

/* The three products of a case, in `chunks` pieces as a trainer cuts them. */
typedef struct results {
    rv_values y, gx;
    float *gw, *gb;
} results;

static results run_case(const map_case *c, test_device which, int chunks) {
    rv_device device = test_device_open(which);
    rv_arena arena = {0};
    size_t weights = (size_t)c->in * (size_t)c->map.ld;
    rv_map map = c->map;
    results r = {test_empty(c->T, c->B, c->out, false), test_empty(c->T, c->B, c->in, false),
                 test_floats(weights), test_floats((size_t)c->map.ld)};
    CHECK(device.ops->map_pack(device.ctx, NULL, &map, c->B, &map.packed));
    for (int k = 0; k < chunks; k++) {
        int t0 = k * c->T / chunks, t1 = (k + 1) * c->T / chunks;
        rv_signal x = test_signal_steps(c->x, t0, t1);
        CHECK(device.ops->map_forward(device.ctx, NULL, &map, &x, test_steps(r.y, t0, t1), &arena));
        rv_arena_reset(&arena);
    }
    for (int k = chunks - 1; k >= 0; k--) {
        int t0 = k * c->T / chunks, t1 = (k + 1) * c->T / chunks;
        rv_signal x = test_signal_steps(c->x, t0, t1);
        rv_values g = test_steps(c->g, t0, t1);
        CHECK(device.ops->map_backward(device.ctx, NULL, &map, g, test_steps(r.gx, t0, t1), false,
                                       &arena));
        CHECK(device.ops->map_weight(device.ctx, NULL, &map, &x, g, r.gw, r.gb, &arena));
        rv_arena_reset(&arena);
    }
    device.ops->map_unpack(device.ctx, map.packed);
    rv_arena_finish(&arena);
    rv_device_close(&device);
    return r;
}

static void results_free(results *r) {
    rv_free(r->y.data);
    rv_free(r->gx.data);
    rv_free(r->gw);
    rv_free(r->gb);
}

static void check_results(const map_case *c, const results *r) {
    for (int t = 0; t < c->T; t++)
        for (int b = 0; b < c->B; b++) {
            for (int o = 0; o < c->out; o++)
                test_close((double)*test_at(r->y, t, b, o), forward_want(c, t, b, o), 1e-5);
            for (int i = 0; i < c->in; i++)
                test_close((double)*test_at(r->gx, t, b, i), backward_want(c, t, b, i), 1e-5);
        }
    for (int o = 0; o < c->map.ld; o++) {
        test_close((double)r->gb[o], o < c->out ? weight_want(c, -1, o) : 0, 1e-5);
        for (int i = 0; i < c->in; i++)
            test_close((double)r->gw[i * c->map.ld + o], o < c->out ? weight_want(c, i, o) : 0,
                       1e-5);
    }
    test_padded(r->y);
    test_padded(r->gx);
}

static void same_results(const map_case *c, const results *a, const results *b) {
    test_same_bits(a->y, b->y);
    test_same_bits(a->gx, b->gx);
    assert_memory_equal(a->gw, b->gw, (size_t)c->in * (size_t)c->map.ld * sizeof(float));
    assert_memory_equal(a->gb, b->gb, (size_t)c->map.ld * sizeof(float));
}

static void against_loops(bool spikes, rv_form form) {
    uint32_t state = 1;
    for (int k = 0; k < SIZES; k++) {
        int in = sizes[k], out = sizes[(k * 7 + 4) % SIZES];
        map_case c = case_make(3, 1 + k % 5, in, out, spikes, form, k % 2 == 0, &state);
        test_device which;
        for (int d = 0; test_device_at(d, &which); d++) {
            results r = run_case(&c, which, 1);
            check_results(&c, &r);
            results_free(&r);
        }
        case_free(&c);
    }
}

static void event_all_sizes_equal_loops(void **state) {
    (void)state;
    against_loops(true, RV_FORM_EVENT);
}

static void dense_of_values_all_sizes_equal_loops(void **state) {
    (void)state;
    against_loops(false, RV_FORM_DENSE);
}

static void dense_of_spikes_all_sizes_equal_loops(void **state) {
    (void)state;
    against_loops(true, RV_FORM_DENSE);
}

/* More rows than one block, than one run of the transposed lists, than one block of the inner
 * axis; wide and narrow outputs. */
static void chunks_and_threads_give_the_same_bits(void **state) {
    (void)state;
    static const struct {
        int T, B, in, out;
    } shapes[] = {{17, 67, 70, 150},
                  {3, 64, 100, 4100},
                  {9, 130, 300, 10},
                  {9, 31, 530, 33},
                  {5, 1, 40, 300}};
    uint32_t random = 2;
    for (int form = 0; form < 3; form++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            map_case c = case_make(shapes[k].T, shapes[k].B, shapes[k].in, shapes[k].out, form != 1,
                                   form == 0 ? RV_FORM_EVENT : RV_FORM_DENSE, true, &random);
            for (int isa = RV_ISA_BASELINE; isa <= (int)rv_isa_best(); isa++) {
                results whole = run_case(&c, (test_device){(rv_isa)isa, 1}, 1);
                for (int threads = 1; threads <= 3; threads++) {
                    results cut = run_case(&c, (test_device){(rv_isa)isa, threads}, 1 + threads);
                    same_results(&c, &whole, &cut);
                    results_free(&cut);
                }
                results_free(&whole);
            }
            case_free(&c);
        }
}

static void event_every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    uint32_t random = 3;
    for (int wide = 0; wide < 2; wide++) {
        map_case c = case_make(4, 9, 129, wide ? 130 : 10, true, RV_FORM_EVENT, true, &random);
        results first = run_case(&c, (test_device){RV_ISA_BASELINE, 1}, 1);
        test_device which;
        for (int d = 0; test_device_at(d, &which); d++) {
            results r = run_case(&c, which, 2);
            test_same_bits(first.y, r.y);
            assert_memory_equal(first.gw, r.gw, 129 * (size_t)c.map.ld * sizeof(float));
            assert_memory_equal(first.gb, r.gb, (size_t)c.map.ld * sizeof(float));
            results_free(&r);
        }
        results_free(&first);
        case_free(&c);
    }
}

static void backward_added_is_what_was_there_plus_it(void **state) {
    (void)state;
    uint32_t random = 4;
    static const int ins[] = {45, 100};
    for (int k = 0; k < 2; k++) {
        int in = ins[k];
        map_case c = case_make(9, 5, in, 70, false, RV_FORM_DENSE, false, &random);
        rv_values gx = test_values(9, 5, in, false, &random), before = test_copy(gx);
        rv_device device = test_device_open((test_device){RV_ISA_AUTO, 2});
        rv_arena arena = {0};
        CHECK(device.ops->map_pack(device.ctx, NULL, &c.map, 5, &c.map.packed));
        CHECK(device.ops->map_backward(device.ctx, NULL, &c.map, c.g, gx, true, &arena));
        for (int t = 0; t < 9; t++)
            for (int b = 0; b < 5; b++)
                for (int i = 0; i < in; i++)
                    test_close((double)*test_at(gx, t, b, i),
                               backward_want(&c, t, b, i) + (double)*test_at(before, t, b, i),
                               1e-5);
        test_padded(gx);
        device.ops->map_unpack(device.ctx, c.map.packed);
        rv_arena_finish(&arena);
        rv_device_close(&device);
        rv_free(gx.data);
        rv_free(before.data);
        case_free(&c);
    }
}

/* bf16x6 where the processor has it: within what a chain of float32 may miss, sign for sign. */
static void backward_of_wide_numbers_keeps_float_accuracy(void **state) {
    (void)state;
    uint32_t random = 8;
    enum { IN = 96, OUT = 900 };
    map_case c = case_make(2, 20, IN, OUT, false, RV_FORM_DENSE, false, &random);
    for (int o = 0; o < OUT; o++) /* 2^-40 to 2^40: terms of every size meet */
        for (int i = 0; i < IN; i++)
            c.weight[i * c.map.ld + o] = ldexpf(c.weight[i * c.map.ld + o], o % 81 - 40);
    for (int t = 0; t < 2; t++)
        for (int b = 0; b < 20; b++)
            for (int o = 0; o < OUT; o++)
                *test_at(c.g, t, b, o) = ldexpf(*test_at(c.g, t, b, o), 40 - o % 81);
    results r = run_case(&c, (test_device){RV_ISA_AUTO, 1}, 1);
    for (int t = 0; t < 2; t++)
        for (int b = 0; b < 20; b++)
            for (int i = 0; i < IN; i++) {
                double size = 0;
                for (int o = 0; o < OUT; o++)
                    size +=
                        fabs((double)*test_at(c.g, t, b, o) * (double)c.weight[i * c.map.ld + o]);
                double miss = fabs((double)*test_at(r.gx, t, b, i) - backward_want(&c, t, b, i));
                assert_true(miss <= 4e-7 * size);
            }
    results_free(&r);
    case_free(&c);
}

/* A static input: one product, one frame out, and the time-sum of the adjoint for its weights. */
static void held_input_is_multiplied_once(void **state) {
    (void)state;
    uint32_t random = 5;
    map_case c = case_make(1, 6, 50, 40, false, RV_FORM_DENSE, true, &random);
    c.x.values.T = 7;
    c.x.values.stride_t = 0;
    rv_values y = test_empty(7, 6, 40, true), g = c.g;
    g.T = 7;
    g.stride_t = 0;
    float *gw = test_floats(50 * 48), *gb = test_floats(48);
    rv_device device = test_device_open((test_device){RV_ISA_AUTO, 1});
    rv_arena arena = {0};
    CHECK(device.ops->map_forward(device.ctx, NULL, &c.map, &c.x, y, &arena));
    CHECK(device.ops->map_weight(device.ctx, NULL, &c.map, &c.x, g, gw, gb, &arena));
    for (int b = 0; b < 6; b++)
        for (int o = 0; o < 40; o++)
            test_close((double)*test_at(y, 6, b, o), forward_want(&c, 0, b, o), 1e-5);
    for (int i = 0; i < 50; i++)
        for (int o = 0; o < 40; o++)
            test_close((double)gw[i * 48 + o], weight_want(&c, i, o), 1e-5);
    rv_arena_finish(&arena);
    rv_device_close(&device);
    rv_free(y.data);
    rv_free(gw);
    rv_free(gb);
    case_free(&c);
}

static void no_spikes_give_the_bias_and_no_gradient(void **state) {
    (void)state;
    uint32_t random = 6;
    map_case c = case_make(2, 3, 64, 20, true, RV_FORM_EVENT, true, &random);
    memset(c.x.spikes.bits, 0, 2 * c.x.spikes.stride_t * 4);
    results r = run_case(&c, (test_device){RV_ISA_AUTO, 2}, 2);
    for (int o = 0; o < 20; o++)
        assert_true(*test_at(r.y, 1, 2, o) == c.biases[o]);
    for (int k = 0; k < 64 * 32; k++)
        assert_true(r.gw[k] == 0);
    results_free(&r);
    case_free(&c);
}

static void device_of_unknown_name_or_too_good_isa_is_refused(void **state) {
    (void)state;
    rv_device device;
    assert_int_equal(rv_device_open("gpu", RV_ISA_AUTO, 1, &device), RV_CONFIG);
    assert_int_equal(rv_device_open("cpu", RV_ISA_AUTO, 0, &device), RV_CONFIG);
    if (rv_isa_best() < RV_ISA_AMX)
        assert_int_equal(rv_device_open("cpu", RV_ISA_AMX, 1, &device), RV_CONFIG);
    CHECK(rv_device_open("cpu", RV_ISA_AUTO, 2, &device));
    assert_int_equal(rv_device_isa(&device), rv_isa_best());
    assert_string_equal(rv_isa_name(RV_ISA_AVX2), "avx2");
    rv_device_close(&device);
    rv_device_close(&device); /* a closed one is empty */
    rv_device_close(NULL);
}

/* The pool: every item once, by a worker it knows, denormals flushed. */
static void pool_many_short_runs_lose_nothing(void **state) {
    (void)state;
    uint32_t random = 7;
    rv_device device = test_device_open((test_device){RV_ISA_AUTO, 3});
    rv_arena arena = {0};
    map_case c = case_make(1, 40, 8, 16, true, RV_FORM_EVENT, true, &random);
    rv_values y = test_empty(1, 40, 16, false);
    for (int round = 0; round < 300; round++) {
        memset(y.data, 0xFF, test_count(y) * sizeof(float));
        CHECK(device.ops->map_forward(device.ctx, NULL, &c.map, &c.x, y, &arena));
        for (int b = 0; b < 40; b++)
            assert_false(isnan(*test_at(y, 0, b, round % 16)));
        rv_arena_reset(&arena);
    }
    rv_arena_finish(&arena);
    rv_device_close(&device);
    rv_free(y.data);
    case_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(event_all_sizes_equal_loops),
        cmocka_unit_test(dense_of_values_all_sizes_equal_loops),
        cmocka_unit_test(dense_of_spikes_all_sizes_equal_loops),
        cmocka_unit_test(chunks_and_threads_give_the_same_bits),
        cmocka_unit_test(event_every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(backward_added_is_what_was_there_plus_it),
        cmocka_unit_test(backward_of_wide_numbers_keeps_float_accuracy),
        cmocka_unit_test(held_input_is_multiplied_once),
        cmocka_unit_test(no_spikes_give_the_bias_and_no_gradient),
        cmocka_unit_test(device_of_unknown_name_or_too_good_isa_is_refused),
        cmocka_unit_test(pool_many_short_runs_lose_nothing),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("kernels_map", tests, NULL, NULL);
}
