/* Convolution against loops in double: shapes, instruction sets, threads, chunks, both forms. */
#include "tests/ops.h"

typedef struct conv_case {
    int B, in_c, in_h, in_w, out_c, kernel[2], stride[2], padding[2], dilation[2], groups;
    bool bias, spikes;
} conv_case;

static const conv_case cases[] = {
    {3, 1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, true, false},
    {2, 3, 7, 5, 4, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, false, false},
    {4, 2, 9, 11, 5, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, true},
    {2, 1, 28, 28, 16, {5, 5}, {1, 1}, {0, 0}, {1, 1}, 1, true, false},
    {3, 16, 8, 8, 32, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, true},
    {2, 17, 6, 9, 19, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, true, true},
    {2, 3, 12, 10, 7, {5, 1}, {1, 1}, {2, 0}, {1, 1}, 1, true, false},
    {2, 4, 1, 33, 6, {1, 5}, {1, 2}, {0, 2}, {1, 1}, 1, true, true},
    {2, 3, 13, 12, 4, {3, 3}, {1, 1}, {2, 2}, {2, 2}, 1, true, false},
    {2, 3, 14, 9, 4, {3, 2}, {2, 3}, {3, 1}, {2, 1}, 1, false, true},
    {2, 6, 7, 7, 9, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 3, true, false},
    {2, 8, 7, 7, 8, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 8, true, true},
    {2, 32, 5, 5, 64, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2, true, true},
    {5, 2, 4, 4, 3, {4, 4}, {1, 1}, {0, 0}, {1, 1}, 1, true, true},
    {2, 3, 4, 5, 150, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, true},
    /* several panels of oneDNN in a step (two of 24, three of 22), and a batch without shares */
    {48, 2, 4, 4, 3, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, true},
    {66, 1, 4, 3, 2, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, false},
    {37, 2, 3, 3, 2, {2, 2}, {1, 1}, {0, 0}, {1, 1}, 1, false, true},
};
enum { CASES = sizeof cases / sizeof *cases, T = 3 };
enum { PLAIN, DENSE, EVENT }; /* nothing packed; oneDNN where it is built in; events */

static int out_size(int in, const conv_case *c, int axis) {
    int reach = (c->kernel[axis] - 1) * c->dilation[axis] + 1;
    return (in + 2 * c->padding[axis] - reach) / c->stride[axis] + 1;
}
static rv_conv conv_of(const conv_case *c, const float *weight, const float *bias) {
    rv_conv conv = {.in = {c->in_c, c->in_h, c->in_w}, .groups = c->groups, .form = RV_FORM_DENSE};
    conv.out = (rv_plane){c->out_c, out_size(c->in_h, c, 0), out_size(c->in_w, c, 1)};
    for (int a = 0; a < 2; a++) {
        conv.window.kernel[a] = c->kernel[a], conv.window.stride[a] = c->stride[a];
        conv.window.padding[a] = c->padding[a], conv.window.dilation[a] = c->dilation[a];
    }
    conv.weight = weight, conv.bias = bias;
    return conv;
}
static int units(rv_plane p) {
    return p.c * p.h * p.w;
}
static size_t weight_count(const rv_conv *c) {
    return (size_t)(c->out.c * (c->in.c / c->groups) * c->window.kernel[0] * c->window.kernel[1]);
}

/* Every product x[b][iu] * w[k] that goes into y[b][ou], each once: what all three ops must sum. */
typedef void (*visitor)(void *self, int iu, size_t k, int ou);
static void visit(const rv_conv *c, visitor each, void *self) {
    int in_group = c->in.c / c->groups, out_group = c->out.c / c->groups;
    const rv_window *w = &c->window;
    size_t k = 0;
    for (int o = 0; o < c->out.c; o++)
        for (int i = 0; i < in_group; i++)
            for (int ky = 0; ky < w->kernel[0]; ky++)
                for (int kx = 0; kx < w->kernel[1]; kx++, k++)
                    for (int oy = 0; oy < c->out.h; oy++)
                        for (int ox = 0; ox < c->out.w; ox++) {
                            int iy = oy * w->stride[0] - w->padding[0] + ky * w->dilation[0];
                            int ix = ox * w->stride[1] - w->padding[1] + kx * w->dilation[1];
                            int channel = o / out_group * in_group + i;
                            if (iy < 0 || iy >= c->in.h || ix < 0 || ix >= c->in.w) continue;
                            each(self, (channel * c->in.h + iy) * c->in.w + ix, k,
                                 (o * c->out.h + oy) * c->out.w + ox);
                        }
}

typedef struct reference {
    const rv_conv *conv;
    const rv_signal *x;
    rv_values g;
    int t, b;
    double *y, *gx, *gw; /* of row (t, b); gw of all rows */
} reference;
static void reference_product(void *self, int iu, size_t k, int ou) {
    reference *r = self;
    double x = test_in(r->x, r->t, r->b, iu), g = (double)*test_at(r->g, r->t, r->b, ou);
    r->y[ou] += x * (double)r->conv->weight[k];
    r->gx[iu] += g * (double)r->conv->weight[k];
    r->gw[k] += g * x;
}

/* One run of the three ops on given data. */
typedef struct outcome {
    rv_values y, gx, gx_added;
    float *gw, *gb;
} outcome;
static void outcome_free(outcome *o) {
    rv_free(o->y.data), rv_free(o->gx.data), rv_free(o->gx_added.data);
    rv_free(o->gw), rv_free(o->gb);
}

/* border: 0, ..., T: chunks forward ascending, backward and weight gradient descending. */
static outcome run_ops(const rv_device *device, rv_conv *conv, const rv_signal *x, rv_values g,
                       const int *border, int chunks, int form, int pack_B) {
    const rv_ops *ops = device->ops;
    rv_arena arena = {0};
    uint32_t seed = 77;
    outcome o;
    conv->packed = NULL;
    conv->form = form == EVENT ? RV_FORM_EVENT : RV_FORM_DENSE;
    if (form != PLAIN) CHECK(ops->conv_pack(device->ctx, NULL, conv, pack_B, &conv->packed));
    o.y = test_empty(T, g.B, units(conv->out), false);
    o.gx = test_empty(T, g.B, units(conv->in), false);
    o.gx_added = test_values(T, g.B, units(conv->in), false, &seed);
    o.gw = test_floats(weight_count(conv)), o.gb = test_floats((size_t)conv->out.c);
    for (size_t k = 0; k < weight_count(conv); k++)
        o.gw[k] = 0.5f;
    for (int k = 0; k < chunks; k++) {
        rv_signal xc = test_signal_steps(*x, border[k], border[k + 1]);
        CHECK(ops->conv_forward(device->ctx, NULL, conv, &xc,
                                test_steps(o.y, border[k], border[k + 1]), &arena));
    }
    for (int k = chunks - 1; k >= 0; k--) {
        int t0 = border[k], t1 = border[k + 1];
        rv_signal xc = test_signal_steps(*x, t0, t1);
        rv_values gc = test_steps(g, t0, t1);
        CHECK(ops->conv_backward(device->ctx, NULL, conv, gc, test_steps(o.gx, t0, t1), false,
                                 &arena));
        CHECK(ops->conv_backward(device->ctx, NULL, conv, gc, test_steps(o.gx_added, t0, t1), true,
                                 &arena));
        CHECK(ops->conv_weight(device->ctx, NULL, conv, &xc, gc, o.gw, o.gb, &arena));
        assert_int_equal(arena.used, 0); /* scratch is given back */
    }
    ops->conv_unpack(device->ctx, conv->packed);
    rv_arena_finish(&arena);
    return o;
}

static void compare(const rv_conv *conv, const rv_signal *x, rv_values g, const outcome *o) {
    int in = units(conv->in), out = units(conv->out), plane = conv->out.h * conv->out.w;
    uint32_t seed = 77;
    rv_values before = test_values(T, g.B, in, false, &seed);
    double *y = calloc((size_t)out, sizeof *y), *gx = calloc((size_t)in, sizeof *gx);
    double *gw = calloc(weight_count(conv), sizeof *gw), *gb = calloc((size_t)conv->out.c, 8);
    reference r = {conv, x, g, 0, 0, y, gx, gw};
    for (r.t = 0; r.t < T; r.t++)
        for (r.b = 0; r.b < g.B; r.b++) {
            memset(gx, 0, (size_t)in * sizeof *gx);
            for (int u = 0; u < out; u++) {
                y[u] = conv->bias ? (double)conv->bias[u / plane] : 0.0;
                gb[u / plane] += (double)*test_at(g, r.t, r.b, u);
            }
            visit(conv, reference_product, &r);
            for (int u = 0; u < out; u++)
                test_close((double)*test_at(o->y, r.t, r.b, u), y[u], 2e-5);
            for (int u = 0; u < in; u++) {
                test_close((double)*test_at(o->gx, r.t, r.b, u), gx[u], 2e-5);
                test_close((double)*test_at(o->gx_added, r.t, r.b, u),
                           gx[u] + (double)*test_at(before, r.t, r.b, u), 2e-5);
            }
        }
    for (size_t k = 0; k < weight_count(conv); k++)
        test_close((double)o->gw[k], 0.5 + gw[k], 2e-5);
    for (int c = 0; c < conv->out.c; c++)
        test_close((double)o->gb[c], gb[c], 2e-5);
    test_padded(o->y), test_padded(o->gx), test_padded(o->gx_added);
    free(y), free(gx), free(gw), free(gb);
    rv_free(before.data);
}

static void assert_same(const rv_conv *conv, const outcome *a, const outcome *b) {
    test_same_bits(a->y, b->y);
    test_same_bits(a->gx, b->gx);
    test_same_bits(a->gx_added, b->gx_added);
    assert_memory_equal(a->gw, b->gw, weight_count(conv) * sizeof(float));
    assert_memory_equal(a->gb, b->gb, (size_t)conv->out.c * sizeof(float));
}

typedef struct problem {
    rv_conv conv;
    float *weight, *bias;
    rv_signal x;
    rv_values g;
} problem;
static problem problem_of(const conv_case *c) {
    uint32_t seed = 5;
    problem p;
    p.conv = conv_of(c, NULL, NULL);
    p.weight = test_random_floats(weight_count(&p.conv), &seed);
    p.bias = test_random_floats((size_t)c->out_c, &seed);
    p.conv.weight = p.weight, p.conv.bias = c->bias ? p.bias : NULL;
    p.x = test_signal(c->spikes, T, c->B, units(p.conv.in), &seed);
    p.conv.bf16 = c->spikes;
    p.g = test_values(T, c->B, units(p.conv.out), false, &seed);
    return p;
}
static void problem_free(problem *p) {
    rv_free(p->weight), rv_free(p->bias);
    test_signal_free(p->x);
    rv_free(p->g.data);
}

static const int whole[] = {0, T}, cut[] = {0, 1, T};

static int forms_of(const conv_case *c) {
    return c->spikes ? EVENT : DENSE;
}

static void conv_ops_on_every_shape_equal_loops_in_double(void **state) {
    (void)state;
    rv_device device = test_open(1);
    for (int c = 0; c < CASES; c++)
        for (int form = PLAIN; form <= forms_of(&cases[c]); form++) {
            problem p = problem_of(&cases[c]);
            outcome o = run_ops(&device, &p.conv, &p.x, p.g, whole, 1, form, p.g.B);
            compare(&p.conv, &p.x, p.g, &o);
            outcome_free(&o);
            problem_free(&p);
        }
    rv_device_close(&device);
}

static void conv_bits_under_threads_and_chunks_are_the_same(void **state) {
    (void)state;
    rv_device one = test_open(1), two = test_open(2);
    for (int c = 0; c < CASES; c++)
        for (int form = PLAIN; form <= forms_of(&cases[c]); form++) {
            problem p = problem_of(&cases[c]);
            outcome a = run_ops(&one, &p.conv, &p.x, p.g, whole, 1, form, p.g.B);
            outcome b = run_ops(&two, &p.conv, &p.x, p.g, whole, 1, form, p.g.B);
            outcome e = run_ops(&one, &p.conv, &p.x, p.g, cut, 2, form, p.g.B);
            assert_same(&p.conv, &a, &b);
            assert_same(&p.conv, &a, &e);
            outcome_free(&a), outcome_free(&b), outcome_free(&e);
            problem_free(&p);
        }
    rv_device_close(&one);
    rv_device_close(&two);
}

/* A last batch may be ragged: weights packed for other rows serve it with the same bits. */
static void conv_weights_packed_for_other_rows_serve_a_ragged_batch(void **state) {
    (void)state;
    rv_device device = test_open(2);
    for (int c = 0; c < CASES; c++) {
        problem p = problem_of(&cases[c]);
        outcome a = run_ops(&device, &p.conv, &p.x, p.g, whole, 1, DENSE, p.g.B);
        outcome b = run_ops(&device, &p.conv, &p.x, p.g, whole, 1, DENSE, p.g.B + 3);
        assert_same(&p.conv, &a, &b);
        outcome_free(&a), outcome_free(&b);
        problem_free(&p);
    }
    rv_device_close(&device);
}

static const conv_case wide = {3, 32, 6, 5, 48, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, false};

/* Means of four spikes: values that bf16 holds. */
static void conv_of_pooled_spikes_equals_loops_in_double(void **state) {
    (void)state;
    rv_device device = test_open(1);
    problem p = problem_of(&wide);
    for (size_t i = 0; i < test_count(p.x.values); i++)
        p.x.values.data[i] = floorf(p.x.values.data[i] * 4.0f) / 4.0f;
    p.conv.bf16 = true;
    outcome o = run_ops(&device, &p.conv, &p.x, p.g, whole, 1, DENSE, p.g.B);
    compare(&p.conv, &p.x, p.g, &o);
    outcome_free(&o);
    problem_free(&p);
    rv_device_close(&device);
}

/* Under a single spike outputs are single weights: none of their bits may be missing. */
static void conv_of_a_single_spike_gives_the_weights_to_the_last_bit(void **state) {
    (void)state;
    rv_device device = test_open(1);
    rv_arena arena = {0};
    problem p = problem_of(&wide);
    rv_values y = test_empty(T, p.g.B, units(p.conv.out), false);
    int channel = 7, row = 2, col = 3, places = p.conv.out.h * p.conv.out.w;
    memset(p.x.values.data, 0, test_count(p.x.values) * sizeof(float));
    *test_at(p.x.values, 1, 2, (channel * p.conv.in.h + row) * p.conv.in.w + col) = 1.0f;
    p.conv.bf16 = true, p.conv.bias = NULL;
    CHECK(device.ops->conv_pack(device.ctx, NULL, &p.conv, p.g.B, &p.conv.packed));
    CHECK(device.ops->conv_forward(device.ctx, NULL, &p.conv, &p.x, y, &arena));
    for (int o = 0; o < p.conv.out.c; o++)
        for (int k = 0; k < 9; k++) {
            int at = o * places + (row + 1 - k / 3) * p.conv.out.w + col + 1 - k % 3;
            assert_true(*test_at(y, 1, 2, at) ==
                        p.weight[(size_t)((o * p.conv.in.c + channel) * 9 + k)]);
        }
    device.ops->conv_unpack(device.ctx, p.conv.packed);
    rv_free(y.data);
    problem_free(&p);
    rv_arena_finish(&arena);
    rv_device_close(&device);
}

/* A held input is one frame: one panel gives what every step would. */
static void conv_of_a_held_input_computes_one_frame(void **state) {
    (void)state;
    rv_device device = test_open(2);
    rv_arena arena = {0};
    problem p = problem_of(&cases[3]);
    rv_signal x = p.x;
    rv_values y = test_empty(T, p.g.B, units(p.conv.out), true), g = p.g;
    rv_values all = test_empty(1, p.g.B, units(p.conv.out), false);
    rv_signal first = test_signal_steps(p.x, 0, 1);
    float *gw[2], *gb[2];
    x.values.stride_t = 0, g.stride_t = 0;
    CHECK(device.ops->conv_pack(device.ctx, NULL, &p.conv, p.g.B, &p.conv.packed));
    CHECK(device.ops->conv_forward(device.ctx, NULL, &p.conv, &x, y, &arena));
    CHECK(device.ops->conv_forward(device.ctx, NULL, &p.conv, &first, all, &arena));
    test_same_bits(y, all);
    for (int k = 0; k < 2; k++) {
        gw[k] = test_floats(weight_count(&p.conv)), gb[k] = test_floats((size_t)p.conv.out.c);
        CHECK(device.ops->conv_weight(device.ctx, NULL, &p.conv, k ? &x : &first,
                                      k ? g : test_steps(p.g, 0, 1), gw[k], gb[k], &arena));
    }
    assert_memory_equal(gw[0], gw[1], weight_count(&p.conv) * sizeof(float));
    assert_memory_equal(gb[0], gb[1], (size_t)p.conv.out.c * sizeof(float));
    device.ops->conv_unpack(device.ctx, p.conv.packed);
    for (int k = 0; k < 2; k++)
        rv_free(gw[k]), rv_free(gb[k]);
    rv_free(y.data), rv_free(all.data);
    problem_free(&p);
    rv_arena_finish(&arena);
    rv_device_close(&device);
}

/* New weights, same memory: the packed forms are rebuilt in place. */
static void conv_pack_again_follows_the_weights(void **state) {
    (void)state;
    rv_device device = test_open(1);
    rv_arena arena = {0};
    for (int form = DENSE; form <= EVENT; form++) {
        problem p = problem_of(&cases[4]);
        rv_values y[2];
        p.conv.form = form == EVENT ? RV_FORM_EVENT : RV_FORM_DENSE;
        for (int k = 0; k < 2; k++) {
            y[k] = test_empty(T, p.g.B, units(p.conv.out), false);
            CHECK(device.ops->conv_pack(device.ctx, NULL, &p.conv, p.g.B, &p.conv.packed));
            CHECK(device.ops->conv_forward(device.ctx, NULL, &p.conv, &p.x, y[k], &arena));
            for (size_t i = 0; i < weight_count(&p.conv); i++)
                p.weight[i] *= 2.0f;
            for (int o = 0; o < p.conv.out.c; o++)
                p.bias[o] *= 2.0f;
        }
        for (size_t i = 0; i < test_count(y[0]); i++)
            assert_true(y[1].data[i] == 2.0f * y[0].data[i]);
        device.ops->conv_unpack(device.ctx, p.conv.packed);
        rv_free(y[0].data), rv_free(y[1].data);
        problem_free(&p);
    }
    rv_arena_finish(&arena);
    rv_device_close(&device);
}

static int group(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_ops_on_every_shape_equal_loops_in_double),
        cmocka_unit_test(conv_bits_under_threads_and_chunks_are_the_same),
        cmocka_unit_test(conv_weights_packed_for_other_rows_serve_a_ragged_batch),
        cmocka_unit_test(conv_of_pooled_spikes_equals_loops_in_double),
        cmocka_unit_test(conv_of_a_single_spike_gives_the_weights_to_the_last_bit),
        cmocka_unit_test(conv_of_a_held_input_computes_one_frame),
        cmocka_unit_test(conv_pack_again_follows_the_weights),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return test_each_isa(group);
}
