/*
 * Convolutions, pools and delays as kernels of the GPU, run by the emulator, against the CPU. All
 * give the same bits; of the CPU's convolutions, those of its plain loops (nothing is packed).
 */
#include "tests/emu/places.h"

/* ---- pools --------------------------------------------------------------------------------------
 */
typedef struct pool_case {
    rv_plane in;
    rv_window window;
} pool_case;

static rv_pool pool_of(const pool_case *c, rv_pool_kind kind) {
    rv_pool pool = {kind, c->in, c->in, c->window};
    const rv_window *w = &c->window;
    int size[] = {c->in.h, c->in.w}, out[2];
    for (int a = 0; a < 2; a++)
        out[a] =
            (size[a] + 2 * w->padding[a] - (w->kernel[a] - 1) * w->dilation[a] - 1) / w->stride[a] +
            1;
    pool.out.h = out[0], pool.out.w = out[1];
    return pool;
}

static void pool_compare(const rv_pool *pool, bool spikes, bool add, bool nan) {
    int in = pool->in.c * pool->in.h * pool->in.w, out = pool->out.c * pool->out.h * pool->out.w;
    rv_values y[2], gx[2];
    for (int d = 0; d < 2; d++) {
        place *p = &places[d];
        uint32_t random = 17;
        rv_signal x = test_signal(spikes, 2, 3, in, &random);
        rv_values g = test_values(2, 3, out, false, &random);
        rv_values start = test_values(2, 3, in, false, &random);
        if (nan && !spikes) x.values.data[in / 2] = NAN;
        rv_signal own = put_signal(p, x);
        y[d] = put_values(p, rv_values_of(NULL, 2, 3, out)), gx[d] = put_values(p, start);
        CHECK(p->device.ops->pool_forward(p->device.ctx, NULL, pool, &own, y[d], &p->arena));
        CHECK(p->device.ops->pool_backward(p->device.ctx, NULL, pool, &own, put_values(p, g), gx[d],
                                           add, &p->arena));
        test_signal_free(x);
        rv_free(g.data), rv_free(start.data);
    }
    sync_both();
    if (!nan) same(y[0].data, y[1].data, test_count(y[0]) * 4, "pooled");
    for (size_t i = 0; nan && i < test_count(y[0]); i++)
        assert_int_equal(isnan(y[0].data[i]), isnan(y[1].data[i]));
    same(gx[0].data, gx[1].data, test_count(gx[0]) * 4, "adjoint of a pool");
    test_padded(y[1]);
    test_padded(gx[1]);
    clear();
}

/* The usual window, overlapping ones, holes, padding wider than the plane. */
static void pools_all(void) {
    static const pool_case cases[] = {
        {{3, 4, 6}, {{2, 2}, {2, 2}, {0, 0}, {1, 1}}},
        {{2, 5, 7}, {{2, 2}, {2, 2}, {0, 0}, {1, 1}}},
        {{2, 6, 5}, {{3, 3}, {1, 2}, {1, 1}, {1, 1}}},
        {{1, 7, 9}, {{3, 2}, {2, 1}, {1, 0}, {2, 3}}},
        {{33, 1, 4}, {{1, 2}, {1, 2}, {0, 1}, {1, 1}}},
        {{1, 2, 2}, {{2, 2}, {1, 1}, {2, 2}, {1, 1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = RV_POOL_AVG; kind <= RV_POOL_SUM; kind++) {
            const rv_pool pool = pool_of(&cases[i], (rv_pool_kind)kind);
            pool_compare(&pool, true, i & 1, false);
            pool_compare(&pool, false, !(i & 1), false);
            pool_compare(&pool, false, false, kind == RV_POOL_MAX);
        }
}

static void pools_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(pools_all);
}

/* ---- convolutions ------------------------------------------------------------------------------
 */
typedef struct conv_case {
    rv_plane in;
    int channels, groups;
    rv_window window;
} conv_case;

static rv_conv conv_of(const conv_case *c) {
    const pool_case shape = {c->in, c->window};
    const rv_pool pool = pool_of(&shape, RV_POOL_SUM);
    rv_conv conv = {.in = c->in, .out = pool.out, .window = c->window, .groups = c->groups};
    conv.out.c = c->channels;
    return conv;
}

static void conv_compare(const conv_case *c, bool spikes, bool add, bool bias) {
    rv_conv conv = conv_of(c);
    int in = conv.in.c * conv.in.h * conv.in.w, out = conv.out.c * conv.out.h * conv.out.w;
    size_t weights = (size_t)(conv.out.c * conv.in.c / conv.groups) *
                     (size_t)(conv.window.kernel[0] * conv.window.kernel[1]);
    rv_values y[2], gx[2];
    float *gw[2], *gb[2];
    for (int d = 0; d < 2; d++) {
        place *p = &places[d];
        const rv_ops *ops = p->device.ops;
        uint32_t random = 19;
        float *weight = test_random_floats(weights + (size_t)conv.out.c, &random);
        rv_signal x = test_signal(spikes, 3, 5, in, &random);
        rv_values g = test_values(3, 5, out, false, &random);
        rv_values start = test_values(3, 5, in, false, &random);
        rv_signal own = put_signal(p, x);
        gw[d] = put(p, weight, weights * 4), conv.weight = put(p, weight, weights * 4);
        gb[d] = put(p, weight + weights, (size_t)conv.out.c * 4);
        conv.bias = bias ? put(p, weight + weights, (size_t)conv.out.c * 4) : NULL;
        if (d == 1) CHECK(ops->conv_pack(p->device.ctx, NULL, &conv, 5, &conv.packed));
        y[d] = put_values(p, rv_values_of(NULL, 3, 5, out)), gx[d] = put_values(p, start);
        rv_values dg = put_values(p, g);
        CHECK(ops->conv_forward(p->device.ctx, NULL, &conv, &own, y[d], &p->arena));
        CHECK(ops->conv_backward(p->device.ctx, NULL, &conv, dg, gx[d], add, &p->arena));
        CHECK(ops->conv_weight(p->device.ctx, NULL, &conv, &own, dg, gw[d], bias ? gb[d] : NULL,
                               &p->arena));
        test_signal_free(x);
        rv_free(g.data), rv_free(start.data), rv_free(weight);
    }
    sync_both();
    same(y[0].data, y[1].data, test_count(y[0]) * 4, "convolved");
    same(gx[0].data, gx[1].data, test_count(gx[0]) * 4, "adjoint of a convolution");
    same(gw[0], gw[1], weights * 4, "gradient of filters");
    same(gb[0], gb[1], (size_t)conv.out.c * 4, "gradient of a bias");
    test_padded(y[1]);
    test_padded(gx[1]);
    clear();
}

/* Same and smaller planes, strides, holes, groups, one row, planes beyond a block of 256. */
static void convs_all(void) {
    static const conv_case cases[] = {
        {{3, 5, 6}, 4, 1, {{3, 3}, {1, 1}, {1, 1}, {1, 1}}},
        {{4, 7, 5}, 6, 2, {{3, 2}, {2, 1}, {0, 1}, {1, 2}}},
        {{4, 4, 4}, 4, 4, {{2, 2}, {2, 2}, {0, 0}, {1, 1}}},
        {{2, 1, 9}, 3, 1, {{1, 4}, {1, 3}, {0, 2}, {1, 1}}},
        {{1, 18, 18}, 2, 1, {{3, 3}, {1, 1}, {1, 1}, {1, 1}}},
        {{5, 1, 1}, 3, 1, {{1, 1}, {1, 1}, {0, 0}, {1, 1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conv_compare(&cases[i], true, i & 1, true);
        conv_compare(&cases[i], false, !(i & 1), i & 1);
    }
}

static void convolutions_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(convs_all);
}

/* ---- delays -------------------------------------------------------------------------------------
 */
enum { B = 3, MAX = 3, CHANNELS = 5, UNITS = CHANNELS * 7 };

/* A chunk, longer or shorter than the ring, which is full of what came before; starts, held inputs,
 * other delays on the way back. */
static void delay_compare(int T, bool spikes, bool held, bool add, bool packed, bool other,
                          bool learns) {
    /* Whole, none, fractional, the largest, outside the range. */
    static const float delays[2][CHANNELS] = {{2, 0, 1.25f, 3, 5.5f}, {1.5f, 0.5f, 2, 0, -1}};
    static const uint32_t starts[] = {0, 4, 0, 2, 0};
    size_t ring = (size_t)(MAX + 1) * B * (size_t)rv_round_up(UNITS, RV_LANES);
    rv_values y[2], gx[2];
    float *rings[2], *adjoint[2], *g_delay[2];
    for (int d = 0; d < 2; d++) {
        place *p = &places[d];
        const rv_ops *ops = p->device.ops;
        uint32_t random = 23;
        rv_values past = test_values(MAX + 1, B, UNITS, false, &random);
        rv_values x = test_values(T, B, UNITS, held, &random);
        rv_values g = test_values(T, B, UNITS, false, &random);
        rv_values start = test_values(T, B, UNITS, held, &random);
        rv_spikes s = test_spikes(T, B, UNITS, &random);
        if (!learns) x.data[0] = INFINITY; /* a whole delay does not read the step before */
        const rv_signal signal = spikes ? (rv_signal){.spikes = s} : (rv_signal){.values = x};
        const rv_signal own = put_signal(p, signal);
        rv_delay delay = {.plane = {CHANNELS, 1, UNITS / CHANNELS}, .max = MAX};
        delay.delay = put(p, delays[0], sizeof delays[0]);
        if (other) delay.back = put(p, delays[1], sizeof delays[1]);
        if (packed) delay.starts = put(p, starts, sizeof starts);
        delay.ring = rings[d] = put(p, past.data, ring * 4);
        delay.ring_adjoint = adjoint[d] = put(p, past.data, ring * 4);
        y[d] = put_values(p, rv_values_of(NULL, T, B, UNITS)), gx[d] = put_values(p, start);
        g_delay[d] = put(p, delays[1], sizeof delays[1]);
        CHECK(ops->delay_forward(p->device.ctx, NULL, &delay, &own, y[d], &p->arena));
        delay.ring = put(p, past.data, ring * 4); /* as forward found it */
        CHECK(ops->delay_backward(p->device.ctx, NULL, &delay, &own, put_values(p, g), gx[d], add,
                                  learns ? g_delay[d] : NULL, &p->arena));
        rv_free(past.data), rv_free(x.data), rv_free(g.data), rv_free(start.data), rv_free(s.bits);
    }
    sync_both();
    same(y[0].data, y[1].data, test_count(y[0]) * 4, "delayed");
    same(rings[0], rings[1], ring * 4, "ring");
    same(gx[0].data, gx[1].data, test_count(gx[0]) * 4, "adjoint of a delay");
    same(adjoint[0], adjoint[1], ring * 4, "adjoint of a ring");
    same(g_delay[0], g_delay[1], sizeof delays[0], "gradient of delays");
    test_padded(y[1]);
    test_padded(gx[1]);
    clear();
}

static void delays_all(void) {
    for (int k = 0; k < 32; k++) {
        bool spikes = k & 1;
        delay_compare(k % 3 ? 5 : 2, spikes, !spikes && k & 2, k & 4, k & 8, k & 16, k % 5);
    }
}

static void delays_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(delays_all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_give_the_bits_of_the_cpu),
        cmocka_unit_test(convolutions_give_the_bits_of_the_cpu),
        cmocka_unit_test(delays_give_the_bits_of_the_cpu),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("planes on an emulated GPU", tests, open_both, close_both);
}
