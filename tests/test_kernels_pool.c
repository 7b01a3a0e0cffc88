/* Pools against loops in double; ties, padding, not-a-number, every instruction set and pool size.
 */
#include "tests/ops.h"

typedef struct pool_case {
    int c, h, w, kernel[2], stride[2], padding[2], dilation[2];
} pool_case;
static const pool_case cases[] = {
    {1, 4, 4, {2, 2}, {2, 2}, {0, 0}, {1, 1}},  {3, 7, 9, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {3, 7, 9, {2, 2}, {2, 2}, {0, 0}, {1, 1}},  {2, 28, 28, {2, 2}, {2, 2}, {0, 0}, {1, 1}},
    {5, 6, 11, {3, 2}, {2, 1}, {1, 0}, {1, 2}}, {2, 5, 5, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {4, 1, 34, {1, 4}, {1, 3}, {0, 2}, {1, 1}},
};
enum { CASES = sizeof cases / sizeof *cases, T = 3, B = 2 };

static int out_size(int in, const pool_case *c, int axis) {
    int reach = (c->kernel[axis] - 1) * c->dilation[axis] + 1;
    return (in + 2 * c->padding[axis] - reach) / c->stride[axis] + 1;
}
static rv_pool pool_of(const pool_case *c, rv_pool_kind kind) {
    rv_pool p = {.kind = kind, .in = {c->c, c->h, c->w}};
    p.out = (rv_plane){c->c, out_size(c->h, c, 0), out_size(c->w, c, 1)};
    for (int a = 0; a < 2; a++) {
        p.window.kernel[a] = c->kernel[a], p.window.stride[a] = c->stride[a];
        p.window.padding[a] = c->padding[a], p.window.dilation[a] = c->dilation[a];
    }
    return p;
}
static int units(rv_plane p) {
    return p.c * p.h * p.w;
}

/* Input unit of tap (ky, kx) of output ou, or -1 in the padding. */
static int tap(const rv_pool *p, int ou, int ky, int kx) {
    const rv_window *w = &p->window;
    int c = ou / (p->out.h * p->out.w), oy = ou / p->out.w % p->out.h, ox = ou % p->out.w;
    int iy = oy * w->stride[0] - w->padding[0] + ky * w->dilation[0];
    int ix = ox * w->stride[1] - w->padding[1] + kx * w->dilation[1];
    if (iy < 0 || iy >= p->in.h || ix < 0 || ix >= p->in.w) return -1;
    return (c * p->in.h + iy) * p->in.w + ix;
}

/* y[ou], and what it sends to gx for g = *g. */
static double reference(const rv_pool *p, const rv_signal *x, int t, int b, int ou, double g,
                        double *gx) {
    double sum = 0.0, best = -INFINITY;
    int at = -1, area = p->window.kernel[0] * p->window.kernel[1];
    double share = p->kind == RV_POOL_AVG ? 1.0 / area : 1.0;
    for (int k = 0; k < area; k++) {
        int iu = tap(p, ou, k / p->window.kernel[1], k % p->window.kernel[1]);
        if (iu < 0) continue;
        double value = test_in(x, t, b, iu);
        sum += value * share;
        if (at < 0 || value > best) best = value, at = iu;
        if (p->kind != RV_POOL_MAX) gx[iu] += g * share;
    }
    if (p->kind == RV_POOL_MAX) gx[at] += g;
    return p->kind == RV_POOL_MAX ? best : sum;
}

static void check_case(const rv_device *device, const rv_pool *p, bool spikes) {
    uint32_t seed = 3;
    rv_arena arena = {0};
    int in = units(p->in), out = units(p->out);
    rv_signal x = test_signal(spikes, T, B, in, &seed);
    rv_values y = test_empty(T, B, out, false), g = test_values(T, B, out, false, &seed);
    rv_values gx = test_empty(T, B, in, false), before = test_values(T, B, in, false, &seed);
    rv_values added = test_copy(before);
    double *want = calloc((size_t)in, sizeof *want);
    CHECK(device->ops->pool_forward(device->ctx, NULL, p, &x, y, &arena));
    CHECK(device->ops->pool_backward(device->ctx, NULL, p, &x, g, gx, false, &arena));
    CHECK(device->ops->pool_backward(device->ctx, NULL, p, &x, g, added, true, &arena));
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++) {
            memset(want, 0, (size_t)in * sizeof *want);
            for (int u = 0; u < out; u++)
                test_close((double)*test_at(y, t, b, u),
                           reference(p, &x, t, b, u, (double)*test_at(g, t, b, u), want), 1e-6);
            for (int u = 0; u < in; u++) {
                test_close((double)*test_at(gx, t, b, u), want[u], 2e-6);
                test_close((double)*test_at(added, t, b, u),
                           want[u] + (double)*test_at(before, t, b, u), 2e-6);
            }
        }
    test_padded(y), test_padded(gx), test_padded(added);
    assert_int_equal(arena.used, 0);
    free(want);
    test_signal_free(x);
    rv_free(y.data), rv_free(g.data), rv_free(gx.data), rv_free(before.data), rv_free(added.data);
    rv_arena_finish(&arena);
}

static void pool_ops_on_every_shape_equal_loops_in_double(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        rv_device device = test_open(threads);
        for (int c = 0; c < CASES; c++)
            for (int kind = RV_POOL_AVG; kind <= RV_POOL_SUM; kind++)
                for (int spikes = 0; spikes < 2; spikes++) {
                    rv_pool p = pool_of(&cases[c], (rv_pool_kind)kind);
                    check_case(&device, &p, spikes);
                }
        rv_device_close(&device);
    }
}

/* Padding is minus infinity, the first of equal values wins, a not-a-number is kept. */
static void max_pool_on_ties_padding_and_nan_is_as_agreed(void **state) {
    (void)state;
    rv_device device = test_open(2);
    rv_arena arena = {0};
    const pool_case c = {1, 2, 4, {2, 2}, {1, 2}, {1, 0}, {1, 1}};
    rv_pool p = pool_of(&c, RV_POOL_MAX);
    rv_values x = rv_values_of(NULL, 1, 1, 8), y, g, gx;
    static const float frame[8] = {-2, -2, -3, NAN, -2, -2, -1, -3};
    x.data = test_floats(16);
    memcpy(x.data, frame, sizeof frame);
    y = test_empty(1, 1, units(p.out), false), gx = test_empty(1, 1, 8, false);
    g = test_empty(1, 1, units(p.out), false);
    for (int u = 0; u < units(p.out); u++)
        g.data[u] = (float)(1 << u);
    rv_signal in = {.values = x};
    CHECK(device.ops->pool_forward(device.ctx, NULL, &p, &in, y, &arena));
    CHECK(device.ops->pool_backward(device.ctx, NULL, &p, &in, g, gx, false, &arena));
    assert_int_equal(units(p.out), 6);
    for (int row = 0; row < 3; row++)
        assert_true(y.data[2 * row] == -2.0f);
    assert_true(isnan(y.data[1]) && isnan(y.data[3]) && y.data[5] == -1.0f);
    static const float want[8] = {1 + 4, 0, 0, 2 + 8, 16, 0, 32, 0};
    for (int u = 0; u < 8; u++)
        assert_true(gx.data[u] == want[u]);
    rv_free(x.data), rv_free(y.data), rv_free(g.data), rv_free(gx.data);
    rv_arena_finish(&arena);
    rv_device_close(&device);
}

static int group(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_ops_on_every_shape_equal_loops_in_double),
        cmocka_unit_test(max_pool_on_ties_padding_and_nan_is_as_agreed),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return test_each_isa(group);
}
