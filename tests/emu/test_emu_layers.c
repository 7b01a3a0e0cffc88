/*
 * Layers without products as kernels of the GPU, run by the emulator, against the CPU: batch
 * normalisation, dropout, scale, threshold, copies. All give the same bits.
 */
#include "tests/emu/places.h"

#include "kernels/surrogate.h"

/* ---- batch normalisation --------------------------------------------------------------------- */
typedef struct norm_case {
    rv_plane plane;
    int T, B;
    bool sequence, training, held, affine, add, wide;
} norm_case;

typedef struct norm_end {
    rv_values y, gx;
    float *mean, *var, *g_gamma, *g_beta;
} norm_end;

static float *put_channels(place *p, int c, float low, uint32_t *random) {
    float *host = test_random_floats((size_t)c, random);
    for (int k = 0; k < c; k++)
        host[k] = low + 0.5f * (host[k] + 1);
    float *to = put(p, host, (size_t)c * sizeof *host);
    rv_free(host);
    return to;
}

/* Large numbers that the next sample cancels: what is left of a sum shows its order. */
static void widen(rv_values v) {
    for (int b = 0; b + 1 < v.B; b += 2)
        for (int u = 0; u < v.n; u += 3)
            *test_at(v, 0, b, u) = 0x1p40f, *test_at(v, 0, b + 1, u) = -0x1p40f;
}

/* Values far from zero: a variance from sums of squares would lose its digits. */
static norm_end norm_run(place *p, const norm_case *k) {
    uint32_t random = 21;
    const rv_ops *ops = p->device.ops;
    int c = k->plane.c, n = c * k->plane.h * k->plane.w;
    size_t statistics = (size_t)k->T * (size_t)c * sizeof(float);
    rv_norm norm = {k->plane, k->sequence, k->training, 1e-5f, NULL, NULL, NULL, NULL, NULL, NULL};
    if (k->affine) norm.gamma = put_channels(p, c, 0.5f, &random);
    if (k->affine) norm.beta = put_channels(p, c, -0.5f, &random);
    norm.running_mean = put_channels(p, c, -0.5f, &random);
    norm.running_var = put_channels(p, c, 0.5f, &random);
    norm.mean = put(p, NULL, statistics), norm.var = put(p, NULL, statistics);
    rv_values x = test_values(k->T, k->B, n, k->held, &random);
    rv_values g = test_values(k->T, k->B, n, k->held, &random);
    rv_values start = test_values(k->T, k->B, n, k->held, &random);
    for (size_t i = 0; i < test_count(x); i++)
        x.data[i] = x.data[i] == 0 ? 0 : 100 + x.data[i];
    if (k->wide) widen(x), widen(g);
    norm_end end = {.y = put_values(p, start),
                    .gx = put_values(p, start),
                    .mean = norm.mean,
                    .var = norm.var,
                    .g_gamma = put_channels(p, c, 0, &random),
                    .g_beta = put_channels(p, c, 0, &random)};
    rv_values dx = put_values(p, x), dg = put_values(p, g);
    CHECK(ops->norm_forward(p->device.ctx, NULL, &norm, dx, end.y, &p->arena));
    CHECK(ops->norm_backward(p->device.ctx, NULL, &norm, dx, dg, end.gx, k->add, end.g_gamma,
                             end.g_beta, &p->arena));
    rv_free(x.data), rv_free(g.data), rv_free(start.data);
    return end;
}

static void norm_compare(const norm_case *k) {
    norm_end a = norm_run(&places[0], k), b = norm_run(&places[1], k);
    size_t channels = (size_t)k->plane.c * sizeof(float);
    size_t rows = k->sequence || k->held ? 1 : (size_t)k->T;
    sync_both();
    same(a.mean, b.mean, rows * channels, "means");
    same(a.var, b.var, rows * channels, "variances");
    same(a.y.data, b.y.data, test_count(a.y) * 4, "normalised");
    same(a.gx.data, b.gx.data, test_count(a.gx) * 4, "adjoint of a normalisation");
    same(a.g_gamma, b.g_gamma, channels, "gradient of a factor");
    same(a.g_beta, b.g_beta, channels, "gradient of a constant");
    test_padded(b.y);
    clear();
}

/* Units, small planes, planes of more than one block of 256. */
static void norms_all(void) {
    static const rv_plane planes[] = {{33, 1, 1}, {1, 1, 1}, {130, 1, 1}, {5, 3, 3}, {2, 17, 19}};
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++)
        for (int variant = 0; variant < 6; variant++)
            norm_compare(&(norm_case){.plane = planes[i],
                                      .T = variant == 3 ? 1 : 3,
                                      .B = variant == 4 ? 1 : 4 + variant,
                                      .sequence = variant == 1 || variant == 4,
                                      .training = variant != 2,
                                      .held = variant == 5,
                                      .affine = variant != 3,
                                      .add = variant % 2,
                                      .wide = variant < 2});
}

static void batch_normalisation_gives_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(norms_all);
}

/* What nobody wants is left alone. */
static void batch_normalisation_without_gradients_leaves_them(void **state) {
    (void)state;
    place *p = &places[1];
    uint32_t random = 3;
    rv_norm norm = {{4, 2, 2}, false, true, 1e-5f, NULL, NULL, NULL, NULL, NULL, NULL};
    norm.mean = put(p, NULL, 2 * 4 * 4), norm.var = put(p, NULL, 2 * 4 * 4);
    rv_values x = test_values(2, 3, 16, false, &random), none = rv_values_of(NULL, 2, 3, 16);
    rv_values dx = put_values(p, x), y = put_values(p, none);
    CHECK(p->device.ops->norm_forward(p->device.ctx, NULL, &norm, dx, y, &p->arena));
    CHECK(p->device.ops->norm_backward(p->device.ctx, NULL, &norm, dx, dx, none, false, NULL, NULL,
                                       &p->arena));
    CHECK(p->device.ops->queue_sync(p->device.ctx, NULL));
    rv_free(x.data);
    clear();
}

/* ---- unit by unit ------------------------------------------------------------------------------
 */
/* Bits and values, held and moving, onto what is there and in its place. */
static void units_all(void) {
    static const uint64_t samples[] = {7, 123456, 0};
    for (int k = 0; k < 16; k++) {
        bool spikes = k & 1, add = k & 2, held = (k & 4) && !spikes, factor = k & 8;
        rv_values scaled[2], dropped[2];
        float *gradient[2];
        for (int d = 0; d < 2; d++) {
            place *p = &places[d];
            const rv_ops *ops = p->device.ops;
            uint32_t random = 11;
            rv_signal x = {{0}, {0}};
            if (spikes)
                x.spikes = test_spikes(4, 3, 70, &random);
            else
                x.values = test_values(4, 3, 70, held, &random);
            rv_values start = test_values(4, 3, 70, held, &random);
            rv_values g = test_values(4, 3, 70, held, &random);
            rv_signal own = put_signal(p, x);
            const float *factors = put_channels(p, 70, -0.5f, &random);
            scaled[d] = put_values(p, start), dropped[d] = put_values(p, start);
            gradient[d] = put_channels(p, 70, 0, &random);
            CHECK(ops->scale(p->device.ctx, NULL, &own, factor ? factors : NULL, scaled[d], add,
                             &p->arena));
            CHECK(ops->scale_weight(p->device.ctx, NULL, &own, put_values(p, g), gradient[d],
                                    &p->arena));
            CHECK(ops->dropout(p->device.ctx, NULL, &own, factor ? 0.2f : 0.7f, 42, 5, 3, samples,
                               dropped[d], add, &p->arena));
            test_signal_free(x);
            rv_free(start.data), rv_free(g.data);
        }
        sync_both();
        same(scaled[0].data, scaled[1].data, test_count(scaled[0]) * 4, "scaled");
        same(gradient[0], gradient[1], 70 * 4, "gradient of factors");
        same(dropped[0].data, dropped[1].data, test_count(dropped[0]) * 4, "dropout");
        test_padded(scaled[1]);
        test_padded(dropped[1]);
        clear();
    }
}

static void scale_and_dropout_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(units_all);
}

/* Every pairing of held and moving views, bits and values, parts of rows. */
static void copies_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (int k = 0; k < 32; k++) {
        bool held_x = k & 1, held_y = k & 2, add = k & 4, spikes = k & 8 && !held_x, part = k & 16;
        rv_values y[2];
        if (held_y && !held_x && !add && !spikes && part) continue;
        for (int d = 0; d < 2; d++) {
            uint32_t random = 8;
            rv_signal x = {{0}, {0}};
            if (spikes)
                x.spikes = test_spikes(4, 3, 40, &random);
            else
                x.values = test_values(4, 3, 40, held_x, &random);
            rv_values start = test_values(4, 3, 40, held_y, &random);
            rv_signal own = put_signal(&places[d], x);
            y[d] = put_values(&places[d], start);
            CHECK(places[d].device.ops->copy_units(places[d].device.ctx, NULL, &own, part ? 3 : 0,
                                                   y[d], part ? 5 : 0, part ? 20 : 40, add));
            test_signal_free(x);
            rv_free(start.data);
        }
        sync_both();
        same(y[0].data, y[1].data, test_count(y[0]) * 4, "copied units");
        clear();
    }
}

static void thresholds_all(void) {
    static const int units[] = {1, 32, 33, 129};
    for (int k = 0; k < 16; k++) {
        int n = units[k / 4];
        bool strict = k & 1, held = k & 2;
        rv_spikes s[2];
        rv_values gx[2];
        float *g_theta[2];
        for (int d = 0; d < 2; d++) {
            place *p = &places[d];
            const rv_ops *ops = p->device.ops;
            uint32_t random = 13;
            const rv_surrogate surrogate = {RV_SURROGATE_atan, {2}};
            rv_values x = test_values(4, 3, n, held, &random);
            rv_values g = test_values(4, 3, n, false, &random);
            rv_values start = test_values(4, 3, n, held, &random);
            const float *theta = put(p, x.data, (size_t)n * 4); /* reached by the first row */
            rv_values dx = put_values(p, x), dg = put_values(p, g);
            s[d] = put_spikes(p, rv_spikes_of(NULL, 4, 3, n));
            gx[d] = put_values(p, start);
            g_theta[d] = put_channels(p, n, 0, &random);
            CHECK(ops->threshold_forward(p->device.ctx, NULL, dx, theta, strict, s[d]));
            CHECK(ops->threshold_backward(p->device.ctx, NULL, dx, theta, &surrogate, dg, gx[d],
                                          strict, g_theta[d]));
            CHECK(ops->threshold_backward(p->device.ctx, NULL, dx, theta, &surrogate, dg,
                                          (rv_values){0}, false, g_theta[d]));
            rv_free(x.data), rv_free(g.data), rv_free(start.data);
        }
        sync_both();
        same(s[0].bits, s[1].bits, 4 * s[0].stride_t * 4, "spikes of a threshold");
        same(gx[0].data, gx[1].data, test_count(gx[0]) * 4, "adjoint of a threshold");
        same(g_theta[0], g_theta[1], (size_t)n * 4, "gradient of thresholds");
        clear();
    }
}

static void thresholds_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(thresholds_all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_normalisation_gives_the_bits_of_the_cpu),
        cmocka_unit_test(batch_normalisation_without_gradients_leaves_them),
        cmocka_unit_test(scale_and_dropout_give_the_bits_of_the_cpu),
        cmocka_unit_test(copies_give_the_bits_of_the_cpu),
        cmocka_unit_test(thresholds_give_the_bits_of_the_cpu),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("layers on an emulated GPU", tests, open_both, close_both);
}
