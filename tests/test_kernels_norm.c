/* Batch norm: values against double, adjoints against finite differences, chunks bit for bit. */
#include "tests/ops.h"

typedef struct norm_case {
    rv_plane plane;
    int T, B;
    bool sequence, training, affine;
} norm_case;
static const norm_case cases[] = {
    {{5, 1, 1}, 3, 7, false, true, true},   {{5, 1, 1}, 3, 7, true, true, true},
    {{3, 2, 3}, 2, 4, false, true, true},   {{3, 2, 3}, 2, 4, true, true, false},
    {{2, 17, 19}, 2, 2, false, true, true}, {{4, 3, 3}, 2, 3, false, false, true},
    {{33, 1, 1}, 2, 3, false, true, false}, {{1, 1, 9}, 1, 2, true, false, true},
};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct problem {
    rv_norm norm;
    float *gamma, *beta, *running_mean, *running_var, *mean, *var;
    rv_values x, g;
    int n, pixels;
} problem;
static problem problem_of(const norm_case *k) {
    uint32_t seed = 11;
    size_t c = (size_t)k->plane.c;
    problem p;
    p.pixels = k->plane.h * k->plane.w, p.n = k->plane.c * p.pixels;
    p.gamma = test_random_floats(c, &seed), p.beta = test_random_floats(c, &seed);
    p.running_mean = test_random_floats(c, &seed), p.running_var = test_random_floats(c, &seed);
    for (size_t i = 0; i < c; i++)
        p.running_var[i] += 1.5f, p.gamma[i] += 1.5f;
    p.mean = test_floats((size_t)k->T * c), p.var = test_floats((size_t)k->T * c);
    p.x = test_values(k->T, k->B, p.n, false, &seed);
    p.g = test_values(k->T, k->B, p.n, false, &seed);
    for (size_t i = 0; i < test_count(p.x); i++)
        p.x.data[i] *= 3.0f;
    p.norm = (rv_norm){k->plane, k->sequence,    k->training,   1e-3f,  NULL,
                       NULL,     p.running_mean, p.running_var, p.mean, p.var};
    if (k->affine) p.norm.gamma = p.gamma, p.norm.beta = p.beta;
    return p;
}
static void problem_free(problem *p) {
    rv_free(p->gamma), rv_free(p->beta), rv_free(p->running_mean), rv_free(p->running_var);
    rv_free(p->mean), rv_free(p->var), rv_free(p->x.data), rv_free(p->g.data);
}

/* The same arithmetic in double on a dense array [T][B][n]; gamma and beta per channel. */
static void reference(const problem *p, const double *x, const double *gamma, const double *beta,
                      double *y) {
    int T = p->x.T, B = p->x.B, steps = p->norm.sequence ? T : 1;
    for (int first = 0; first < T; first += steps)
        for (int c = 0; c < p->norm.plane.c; c++) {
            double mean = 0.0, var = 0.0;
            int count = steps * B * p->pixels;
            for (int pass = 0; pass < 2; pass++)
                for (int i = 0; i < count; i++) {
                    int row = first * B + i / p->pixels;
                    double v = x[row * p->n + c * p->pixels + i % p->pixels];
                    if (pass)
                        var += (v - mean) * (v - mean) / count;
                    else
                        mean += v / count;
                }
            if (!p->norm.training)
                mean = (double)p->running_mean[c], var = (double)p->running_var[c];
            for (int i = 0; i < count; i++) {
                int at = (first * B + i / p->pixels) * p->n + c * p->pixels + i % p->pixels;
                y[at] = (x[at] - mean) / sqrt(var + (double)p->norm.epsilon) * gamma[c] + beta[c];
            }
        }
}

typedef struct doubles {
    double *x, *gamma, *beta, *y;
    int rows;
} doubles;
static doubles doubles_of(const problem *p) {
    doubles d;
    int c = p->norm.plane.c;
    d.rows = p->x.T * p->x.B;
    d.x = calloc((size_t)(d.rows * p->n), 8), d.y = calloc((size_t)(d.rows * p->n), 8);
    d.gamma = calloc((size_t)c, 8), d.beta = calloc((size_t)c, 8);
    for (int r = 0; r < d.rows; r++)
        for (int u = 0; u < p->n; u++)
            d.x[r * p->n + u] = (double)*test_at(p->x, r / p->x.B, r % p->x.B, u);
    for (int k = 0; k < c; k++) {
        d.gamma[k] = p->norm.gamma ? (double)p->norm.gamma[k] : 1.0;
        d.beta[k] = p->norm.beta ? (double)p->norm.beta[k] : 0.0;
    }
    return d;
}
static void doubles_free(doubles *d) {
    free(d->x), free(d->gamma), free(d->beta), free(d->y);
}
static double loss(const problem *p, doubles *d) {
    double sum = 0.0;
    reference(p, d->x, d->gamma, d->beta, d->y);
    for (int r = 0; r < d->rows; r++)
        for (int u = 0; u < p->n; u++)
            sum += d->y[r * p->n + u] * (double)*test_at(p->g, r / p->x.B, r % p->x.B, u);
    return sum;
}
static double slope(const problem *p, doubles *d, double *variable) {
    const double h = 1e-5, at = *variable;
    *variable = at + h;
    double above = loss(p, d);
    *variable = at - h;
    double below = loss(p, d);
    *variable = at;
    return (above - below) / (2 * h);
}

static void check_case(const rv_device *device, const norm_case *k) {
    problem p = problem_of(k);
    doubles d = doubles_of(&p);
    uint32_t seed = 4;
    rv_arena arena = {0};
    rv_values y = test_empty(k->T, k->B, p.n, false), gx = test_empty(k->T, k->B, p.n, false);
    rv_values before = test_values(k->T, k->B, p.n, false, &seed), added = test_copy(before);
    float *gg = test_floats((size_t)k->plane.c), *gb = test_floats((size_t)k->plane.c);
    const rv_ops *ops = device->ops;
    CHECK(ops->norm_forward(device->ctx, NULL, &p.norm, p.x, y, &arena));
    CHECK(ops->norm_backward(device->ctx, NULL, &p.norm, p.x, p.g, gx, false, gg, gb, &arena));
    CHECK(
        ops->norm_backward(device->ctx, NULL, &p.norm, p.x, p.g, added, true, NULL, NULL, &arena));
    loss(&p, &d);
    for (int r = 0; r < d.rows; r++)
        for (int u = 0; u < p.n; u++) {
            int t = r / k->B, b = r % k->B;
            test_close((double)*test_at(y, t, b, u), d.y[r * p.n + u], 1e-5);
        }
    int stride = 1 + d.rows * p.n / 300; /* some of a large one are enough */
    for (int i = 0; i < d.rows * p.n; i += stride) {
        int t = i / p.n / k->B, b = i / p.n % k->B, u = i % p.n;
        double want = slope(&p, &d, &d.x[i]);
        test_close((double)*test_at(gx, t, b, u), want, 1e-5);
        test_close((double)*test_at(added, t, b, u), want + (double)*test_at(before, t, b, u),
                   1e-5);
    }
    for (int c = 0; c < k->plane.c; c++) {
        test_close((double)gg[c], slope(&p, &d, &d.gamma[c]), 1e-5);
        test_close((double)gb[c], slope(&p, &d, &d.beta[c]), 1e-5);
    }
    test_padded(y), test_padded(gx);
    assert_int_equal(arena.used, 0);
    doubles_free(&d);
    problem_free(&p);
    rv_free(y.data), rv_free(gx.data), rv_free(before.data), rv_free(added.data);
    rv_free(gg), rv_free(gb);
    rv_arena_finish(&arena);
}

static void norm_ops_in_every_mode_agree_with_finite_differences(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        rv_device device = test_open(threads);
        for (int c = 0; c < CASES; c++)
            check_case(&device, &cases[c]);
        rv_device_close(&device);
    }
}

/* Statistics of each step alone: any chunks, any number of threads, the same bits. */
static void norm_by_step_under_chunks_and_threads_gives_the_same_bits(void **state) {
    (void)state;
    const norm_case k = {{6, 5, 7}, 5, 3, false, true, true};
    problem p[2] = {problem_of(&k), problem_of(&k)};
    rv_values y[2], gx[2];
    float *g[2];
    for (int run = 0; run < 2; run++) {
        rv_device device = test_open(1 + run);
        rv_arena arena = {0};
        static const int borders[2][4] = {{0, 5, 5, 5}, {0, 1, 3, 5}};
        const int *border = borders[run];
        y[run] = test_empty(k.T, k.B, p[run].n, false);
        gx[run] = test_empty(k.T, k.B, p[run].n, false);
        g[run] = test_floats(12);
        for (int c = 2; c >= 0; c--) { /* steps are independent: any order will do */
            rv_norm norm = p[run].norm;
            rv_values x = test_steps(p[run].x, border[c], border[c + 1]);
            if (x.T == 0) continue;
            norm.mean += border[c] * 6, norm.var += border[c] * 6;
            CHECK(device.ops->norm_forward(device.ctx, NULL, &norm, x,
                                           test_steps(y[run], border[c], border[c + 1]), &arena));
            CHECK(device.ops->norm_backward(
                device.ctx, NULL, &norm, x, test_steps(p[run].g, border[c], border[c + 1]),
                test_steps(gx[run], border[c], border[c + 1]), false, g[run], g[run] + 6, &arena));
        }
        rv_arena_finish(&arena);
        rv_device_close(&device);
    }
    test_same_bits(y[0], y[1]);
    test_same_bits(gx[0], gx[1]);
    assert_memory_equal(g[0], g[1], 12 * sizeof(float));
    assert_memory_equal(p[0].mean, p[1].mean, 30 * sizeof(float));
    assert_memory_equal(p[0].var, p[1].var, 30 * sizeof(float));
    for (int run = 0; run < 2; run++) {
        rv_free(y[run].data), rv_free(gx[run].data), rv_free(g[run]);
        problem_free(&p[run]);
    }
}

static int group(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_ops_in_every_mode_agree_with_finite_differences),
        cmocka_unit_test(norm_by_step_under_chunks_and_threads_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return test_each_isa(group);
}
