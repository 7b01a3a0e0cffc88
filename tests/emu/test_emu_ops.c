/*
 * The kernels of the GPU, run by the emulator, against the CPU: the same calls on equal inputs, in
 * several orders of threads. Event products, neurons, spikes, readouts, encoders and optimisers
 * give the same bits; dense products stay within 1e-6 of the sum of the sizes of their terms.
 */
#include "tests/emu/places.h"

#include "kernels/neuron.h"
#include "kernels/surrogate.h"

/* ---- neurons --------------------------------------------------------------------------------- */
typedef struct neuron_case {
    rv_neuron neuron;
    int T, B, n;
    bool starts, held, fused;
} neuron_case;

/* What a pass leaves, at each place. */
typedef struct neuron_end {
    rv_values h, i, a;
    rv_spikes s;
    rv_neuron_state state, adjoint;
    float *grad[RV_P_COUNT];
} neuron_end;

static rv_neuron_state put_state(place *p, const neuron_case *c, const float *random,
                                 const uint32_t *last) {
    int ld = rv_round_up(c->n, RV_LANES);
    size_t bytes = (size_t)c->B * (size_t)ld * sizeof(float);
    return (rv_neuron_state){.v = put(p, random, bytes),
                             .i = put(p, random, bytes),
                             .a = put(p, random, bytes),
                             .last = put(p, last, (size_t)c->B * (size_t)rv_words(c->n) * 4)};
}

/* Forward, then the adjoint of what it left, from the same random numbers at both places. */
static neuron_end neuron_run(place *p, const neuron_case *c) {
    uint32_t random = 77;
    int ld = rv_round_up(c->n, RV_LANES), in = 70;
    const rv_ops *ops = p->device.ops;
    neuron_end end = {0};
    const float *param[RV_P_COUNT];
    float *host = test_floats((size_t)ld);
    for (int k = 0; k < RV_P_COUNT; k++) {
        for (int u = 0; u < ld; u++)
            host[u] = 0.55f + 0.4f * test_uniform(&random);
        param[k] = put(p, host, (size_t)ld * sizeof(float));
    }
    rv_free(host);
    rv_values x = test_values(c->T, c->B, c->n, false, &random);
    rv_values g = test_values(c->T, c->B, c->n, false, &random);
    rv_values gv = test_values(c->T, c->B, c->n, true, &random);
    rv_values start = test_values(1, c->B, c->n, false, &random);
    rv_spikes last = test_spikes(1, c->B, c->n, &random);
    rv_spikes events = test_spikes(c->T, c->B, in, &random);
    float *weight = test_random_floats((size_t)in * (size_t)ld, &random);
    for (size_t k = 0; k < test_count(x); k++)
        x.data[k] *= 2;
    size_t words = (size_t)c->T * (size_t)rv_words(c->B);
    uint32_t *starts = NULL;
    CHECK(rv_alloc(words, 4, "test", &starts));
    for (int t = 0; t < c->T; t += 2)
        starts[(size_t)t * (size_t)rv_words(c->B)] = 2u >> (t % 4 / 2);
    rv_neuron_forward f = {.neuron = &c->neuron,
                           .T = c->T,
                           .B = c->B,
                           .n = c->n,
                           .ld = ld,
                           .x = put_values(p, x),
                           .h = put_values(p, rv_values_of(NULL, c->T, c->B, c->n)),
                           .i = put_values(p, rv_values_of(NULL, c->T, c->B, c->n)),
                           .a = put_values(p, rv_values_of(NULL, c->T, c->B, c->n)),
                           .starts = c->starts ? put(p, starts, words * 4) : NULL,
                           .state = put_state(p, c, start.data, last.bits)};
    memcpy(f.param, param, sizeof param);
    if (rv_neuron_spikes(&c->neuron)) f.s = put_spikes(p, rv_spikes_of(NULL, c->T, c->B, c->n));
    if (c->fused) {
        const rv_map map = {in,   c->n, ld,   RV_FORM_EVENT, put(p, weight, (size_t)(in * ld) * 4),
                            NULL, NULL, false};
        const rv_signal y = {.spikes = put_spikes(p, events)};
        CHECK(ops->map_neuron_forward(p->device.ctx, NULL, &map, &y, &f, &p->arena));
    } else {
        CHECK(ops->neuron_forward(p->device.ctx, NULL, &f, &p->arena));
    }
    rv_neuron_backward b = {.neuron = &c->neuron,
                            .T = c->T,
                            .B = c->B,
                            .n = c->n,
                            .ld = ld,
                            .h = f.h,
                            .i = f.i,
                            .a = f.a,
                            .gv = put_values(p, gv),
                            .s = f.s,
                            .starts = f.starts,
                            .before = put_state(p, c, start.data, last.bits),
                            .adjoint = put_state(p, c, start.data, last.bits)};
    memcpy(b.param, param, sizeof param);
    if (c->starts) b.back[RV_P_BETA] = param[RV_P_GAIN], b.back[RV_P_GAIN] = param[RV_P_BETA];
    if (rv_neuron_spikes(&c->neuron)) b.gs = put_values(p, g);
    for (int k = 0; k < RV_P_COUNT; k++)
        b.grad[k] = end.grad[k] = put(p, NULL, (size_t)ld * sizeof(float));
    if (c->held) b.held = put_values(p, gv);
    CHECK(ops->neuron_backward(p->device.ctx, NULL, &b, &p->arena));
    end.h = c->held ? b.held : f.h, end.i = f.i, end.a = f.a, end.s = f.s;
    end.state = f.state, end.adjoint = b.adjoint;
    test_signal_free((rv_signal){.values = x});
    rv_free(g.data), rv_free(gv.data), rv_free(start.data);
    rv_free(last.bits), rv_free(events.bits), rv_free(weight), rv_free(starts);
    return end;
}

static void neuron_compare(const neuron_case *c) {
    neuron_end a = neuron_run(&places[0], c), b = neuron_run(&places[1], c);
    unsigned traits = rv_neuron_traits(c->neuron.kind);
    size_t plane = (size_t)c->B * (size_t)rv_round_up(c->n, RV_LANES) * sizeof(float);
    char what[96];
    sync_both();
    snprintf(what, sizeof what, "kind %d, reset %d, n %d, learn %x", c->neuron.kind,
             (int)c->neuron.reset, c->n, c->neuron.learn);
    same(a.h.data, b.h.data, test_count(a.h) * sizeof(float), what);
    if (traits & RV_HAS_SPIKES) same(a.s.bits, b.s.bits, (size_t)c->T * a.s.stride_t * 4, what);
    same(a.state.v, b.state.v, plane, what);
    same(a.adjoint.v, b.adjoint.v, plane, what);
    if (traits & RV_HAS_CURRENT) same(a.state.i, b.state.i, plane, what);
    if (traits & RV_HAS_CURRENT) same(a.adjoint.i, b.adjoint.i, plane, what);
    if (traits & RV_HAS_ADAPTATION) same(a.state.a, b.state.a, plane, what);
    if (traits & RV_HAS_ADAPTATION) same(a.adjoint.a, b.adjoint.a, plane, what);
    if (traits & RV_HAS_SPIKES)
        same(a.state.last, b.state.last, (size_t)c->B * (size_t)rv_words(c->n) * 4, what);
    for (int k = 0; k < RV_P_COUNT; k++)
        if (c->neuron.learn >> k & 1u)
            same(a.grad[k], b.grad[k], (size_t)c->n * sizeof(float), what);
    clear();
}

static neuron_case neuron_of(int kind) {
    return (neuron_case){
        .neuron = {.kind = kind, .detach_reset = true, .surrogate = {RV_SURROGATE_atan, {2}}},
        .T = 5,
        .B = 3,
        .n = 33};
}

static void neurons_all(void) {
    for (int kind = 0; kind < RV_NEURONS; kind++) {
        for (int variant = 0; variant < 6; variant++) {
            neuron_case c = neuron_of(kind);
            c.neuron.reset = (rv_reset)(variant % 4);
            c.neuron.reset_over_beta = variant == 4;
            c.neuron.strict = variant & 1;
            c.neuron.detach_reset = variant < 3;
            c.neuron.detach_adaptation = variant & 1;
            c.neuron.gain_tied = variant == 5;
            c.neuron.learn = variant & 1 ? rv_neuron_parameters(kind) : 0;
            c.starts = variant == 2 || variant == 3;
            c.held = variant == 0;
            c.fused = variant == 1 || variant == 2;
            neuron_compare(&c);
        }
    }
}

static void neurons_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    each_order(neurons_all);
}

static void neurons_at_the_edges_of_warps_and_blocks_give_the_same_bits(void **state) {
    (void)state;
    static const int units[] = {1, 16, 31, 32, 127, 128, 129};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        for (int T = 1; T < 4; T += 2) {
            neuron_case c = neuron_of(RV_NEURON_lif);
            c.n = units[i], c.T = T, c.B = 2;
            c.fused = i % 2;
            neuron_compare(&c);
        }
}

static void surrogates_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (int kind = 0; kind < RV_SURROGATES; kind++) {
        neuron_case c = neuron_of(RV_NEURON_lif);
        c.neuron.surrogate = (rv_surrogate){kind, {1.5f, 0.5f, 2, 0.75f}};
        neuron_compare(&c);
    }
}

/* ---- linear maps -------------------------------------------------------------------------------
 */
typedef struct map_end {
    rv_values y, gx;
    float *gw, *gb;
} map_end;

static map_end map_run(place *p, rv_form form, bool spikes, bool add, int T, int B, int in,
                       int out) {
    uint32_t random = 5;
    const rv_ops *ops = p->device.ops;
    int ld = rv_round_up(out, RV_LANES);
    size_t count = (size_t)in * (size_t)ld;
    float *weight = test_random_floats(count, &random);
    float *bias = test_random_floats((size_t)ld, &random);
    for (size_t k = 0; k < count; k++)
        if ((int)(k % (size_t)ld) >= out) weight[k] = 0;
    for (int u = out; u < ld; u++)
        bias[u] = 0;
    rv_signal x = test_signal(spikes, T, B, in, &random), dx = put_signal(p, x);
    rv_values g = test_values(T, B, out, false, &random);
    rv_values start = test_values(T, B, in, false, &random);
    const rv_map map = {
        in, out, ld, form, put(p, weight, count * 4), put(p, bias, (size_t)ld * 4), NULL, false};
    map_end end = {.y = put_values(p, rv_values_of(NULL, T, B, out)),
                   .gx = put_values(p, start),
                   .gw = put(p, weight, count * 4),
                   .gb = put(p, bias, (size_t)ld * 4)};
    rv_values dg = put_values(p, g);
    CHECK(ops->map_forward(p->device.ctx, NULL, &map, &dx, end.y, &p->arena));
    CHECK(ops->map_backward(p->device.ctx, NULL, &map, dg, end.gx, add, &p->arena));
    CHECK(ops->map_weight(p->device.ctx, NULL, &map, &dx, dg, end.gw, end.gb, &p->arena));
    test_signal_free(x);
    rv_free(g.data), rv_free(start.data), rv_free(weight), rv_free(bias);
    return end;
}

/* Inputs lie within 1, so the sizes of the terms of a sum of k are at most k + 1. */
static void near(const float *a, const float *b, size_t count, int terms, const char *what) {
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= 1e-6 * (terms + 1)))
            fail_msg("%s: number %zu is %.9g on the CPU, %.9g on the GPU", what, i, (double)a[i],
                     (double)b[i]);
}

static void map_compare(rv_form form, bool spikes, bool add, int T, int B, int in, int out) {
    map_end a = map_run(&places[0], form, spikes, add, T, B, in, out);
    map_end b = map_run(&places[1], form, spikes, add, T, B, in, out);
    size_t weights = (size_t)in * (size_t)rv_round_up(out, RV_LANES);
    bool event = spikes && form == RV_FORM_EVENT;
    sync_both();
    if (event) {
        same(a.y.data, b.y.data, test_count(a.y) * 4, "event sums");
        same(a.gw, b.gw, weights * 4, "weight gradient of events");
    }
    near(a.y.data, b.y.data, test_count(a.y), in, "products");
    near(a.gx.data, b.gx.data, test_count(a.gx), out, "input gradient");
    near(a.gw, b.gw, weights, T * B, "weight gradient");
    same(a.gb, b.gb, (size_t)rv_round_up(out, RV_LANES) * 4, "bias gradient");
    test_padded(b.y);
    test_padded(b.gx);
    clear();
}

static void maps_all(void) {
    static const int shapes[][4] = {{1, 1, 1, 1},     {4, 3, 31, 10},   {3, 5, 32, 16},
                                    {2, 40, 33, 130}, {1, 33, 100, 17}, {7, 2, 64, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *s = shapes[i];
        map_compare(RV_FORM_EVENT, true, i & 1, s[0], s[1], s[2], s[3]);
        map_compare(RV_FORM_DENSE, true, !(i & 1), s[0], s[1], s[2], s[3]);
        map_compare(RV_FORM_DENSE, false, i & 1, s[0], s[1], s[2], s[3]);
    }
}

static void products_agree_with_the_cpu(void **state) {
    (void)state;
    each_order(maps_all);
}

/* ---- optimisers ------------------------------------------------------------------------------ */
enum { SIZE = 1000 };

static void updates_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    static const rv_optim_update cases[] = {
        {.kind = 0, .scale = 1, .rate = 0.1},
        {.kind = 0, .scale = 0.5f, .rate = 0.1, .decay = 0.05, .momentum = 0.9, .nesterov = true},
        {.kind = 0, .scale = 1, .rate = 0.1, .momentum = 0.9, .dampening = 0.25},
        {.kind = 1,
         .scale = 0.5f,
         .rate = 0.01,
         .decay = 0.1,
         .beta1 = 0.9,
         .beta2 = 0.999,
         .epsilon = 1e-8,
         .limit = RV_LIMIT_UNIT},
        {.kind = 2,
         .scale = 1,
         .rate = 0.01,
         .decay = 0.1,
         .beta1 = 0.9,
         .beta2 = 0.999,
         .epsilon = 1e-8,
         .limit = RV_LIMIT_POSITIVE},
        {.kind = 3,
         .scale = 1,
         .rate = 0.01,
         .alpha = 0.99,
         .epsilon = 1e-8,
         .momentum = 0.5,
         .centered = true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        float *weight[2], *slot[2][3];
        uint32_t *bad[2];
        for (int d = 0; d < 2; d++) {
            place *p = &places[d];
            uint32_t random = 9;
            float *host = test_random_floats(SIZE, &random);
            rv_optim_update u = cases[k];
            u.n = SIZE, u.weight = weight[d] = put(p, host, SIZE * 4);
            u.bad = bad[d] = put(p, NULL, 4);
            for (int j = 0; j < 3; j++)
                u.slot[j] = slot[d][j] = put(p, NULL, SIZE * 4);
            for (u.step = 0; u.step < 3; u.step++) {
                rv_free(host);
                host = test_random_floats(SIZE, &random);
                u.grad = put(p, host, SIZE * 4);
                CHECK(p->device.ops->optim_update(p->device.ctx, NULL, &u));
                CHECK(p->device.ops->queue_sync(p->device.ctx, NULL));
            }
            assert_int_equal(*bad[d], 0);
            host[SIZE - 1] = k & 1 ? NAN : 1e30f;
            u.grad = put(p, host, SIZE * 4);
            CHECK(p->device.ops->optim_update(p->device.ctx, NULL, &u));
            rv_free(host);
        }
        sync_both();
        same(weight[0], weight[1], (SIZE - 1) * 4, "weights");
        for (int j = 0; j < 3; j++)
            same(slot[0][j], slot[1][j], (SIZE - 1) * 4, "slots");
        assert_int_equal(*bad[0], 1);
        assert_int_equal(*bad[1], 1);
        clear();
    }
}

static void norms_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 255, 256, 257, 5003};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        double sum[2] = {-1, -2};
        for (int d = 0; d < 2; d++) {
            uint32_t random = 3;
            float *host = test_random_floats(sizes[k], &random);
            for (size_t i = 0; i < sizes[k]; i++) /* sums that are rounded show their order */
                host[i] = ldexpf(host[i], (int)(test_random(&random) % 40) - 20);
            const float *x = put(&places[d], host, sizes[k] * 4);
            CHECK(places[d].device.ops->norm2(places[d].device.ctx, NULL, x, sizes[k], &sum[d]));
            rv_free(host);
        }
        same(&sum[0], &sum[1], sizeof sum[0], "norm");
        clear();
    }
}

/* ---- spikes, readouts ------------------------------------------------------------------
 */
static void rate_encoder_and_counts_give_the_same_bits(void **state) {
    (void)state;
    static const uint64_t samples[] = {7, 123456, 0, 99};
    rv_spikes out[2];
    int64_t counts[2][4] = {{0}};
    for (int d = 0; d < 2; d++) {
        place *p = &places[d];
        uint32_t random = 4;
        rv_values frame = test_values(1, 4, 100, true, &random);
        out[d] = put_spikes(p, rv_spikes_of(NULL, 6, 4, 100));
        rv_values on_device = put_values(p, frame);
        CHECK(
            p->device.ops->encode_rate(p->device.ctx, NULL, on_device, samples, 42, 3, 5, out[d]));
        CHECK(p->device.ops->count_spikes(p->device.ctx, NULL, out[d], counts[d]));
        rv_free(frame.data);
    }
    sync_both();
    same(out[0].bits, out[1].bits, 6 * out[0].stride_t * 4, "encoded spikes");
    same(counts[0], counts[1], sizeof counts[0], "spike counts");
    assert_true(counts[0][0] > 0);
    clear();
}

/* Two chunks, samples of unequal length, bits and values. */
static void readouts_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    enum { T = 4, B = 3, UNITS = 35 };
    static const int32_t length[B] = {8, 3, 0};
    for (int readout = 0; readout <= RV_READ_EVERY_STEP; readout++)
        for (int spikes = 0; spikes < 2; spikes++) {
            rv_course *course[2];
            rv_values g[2];
            for (int d = 0; d < 2; d++) {
                place *p = &places[d];
                const rv_ops *ops = p->device.ops;
                uint32_t random = 6;
                const int32_t *own = put(p, length, sizeof length);
                course[d] = put(p, NULL, B * UNITS * sizeof *course[d]);
                rv_values gradient = test_values(1, B, UNITS, true, &random);
                for (int t0 = 0; t0 < 2 * T; t0 += T) {
                    rv_signal y = test_signal(spikes, T, B, UNITS, &random);
                    rv_signal own_y = put_signal(p, y);
                    CHECK(ops->readout_fold(p->device.ctx, NULL, (rv_readout)readout, &own_y,
                                            (rv_span){t0, 2 * T, own}, course[d]));
                    test_signal_free(y);
                }
                g[d] = put_values(p, rv_values_of(NULL, T, B, UNITS));
                rv_values own_gradient = put_values(p, gradient);
                CHECK(ops->readout_spread(p->device.ctx, NULL, course[d], readout % 2,
                                          own_gradient.data, (rv_span){T, 2 * T, own}, g[d]));
                rv_free(gradient.data);
            }
            sync_both();
            for (int k = 0; k < B * UNITS; k++) { /* there is padding between the members */
                same(&course[0][k].sum, &course[1][k].sum, sizeof(double), "readout");
                assert_int_equal(course[0][k].when, course[1][k].when);
            }
            same(g[0].data, g[1].data, test_count(g[0]) * 4, "slope of a readout");
            clear();
        }
}

/* ---- queues
 * -------------------------------------------------------------------------------------- */
/* Numbers go from the host over a queue, an event and a second queue, and come back. */
static void queues_and_events_order_what_is_put_in(void **state) {
    (void)state;
    place *p = &places[1];
    const rv_ops *ops = p->device.ops;
    rv_queue *queue = NULL;
    rv_event *event = NULL;
    CHECK(ops->queue_create(p->device.ctx, &queue));
    float *a = put(p, NULL, 4), *b = put(p, NULL, 4), back;
    for (int round = 0; round < 50; round++) {
        float value = (float)round;
        CHECK(ops->copy(p->device.ctx, queue, a, false, &value, true, 4));
        value = -1; /* the source is free at once */
        CHECK(ops->queue_record(p->device.ctx, queue, &event));
        CHECK(ops->queue_wait(p->device.ctx, NULL, event));
        CHECK(ops->copy(p->device.ctx, NULL, b, false, a, false, 4));
        CHECK(ops->copy(p->device.ctx, NULL, &back, true, b, false, 4));
        assert_true(back == (float)round);
    }
    ops->event_destroy(p->device.ctx, event);
    ops->queue_destroy(p->device.ctx, queue);
    clear();
}

static void recurrent_neurons_are_refused_and_named(void **state) {
    (void)state;
    rv_device *device = &places[1].device;
    const rv_map map = {0};
    const rv_neuron neuron = {.kind = RV_NEURON_lif};
    const rv_neuron_forward forward = {.neuron = &neuron, .recurrent = &map};
    const rv_neuron_backward backward = {.neuron = &neuron, .recurrent = &map};
    rv_arena *arena = &places[1].arena;
    assert_int_equal(device->ops->neuron_forward(device->ctx, NULL, &forward, arena), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "has no kernels for recurrent neurons"));
    assert_int_equal(device->ops->neuron_backward(device->ctx, NULL, &backward, arena), RV_CONFIG);
    assert_string_equal(device->ops->lacks, "recurrent neurons");
    assert_true(device->ops->apart);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neurons_give_the_bits_of_the_cpu),
        cmocka_unit_test(neurons_at_the_edges_of_warps_and_blocks_give_the_same_bits),
        cmocka_unit_test(surrogates_give_the_bits_of_the_cpu),
        cmocka_unit_test(products_agree_with_the_cpu),
        cmocka_unit_test(updates_give_the_bits_of_the_cpu),
        cmocka_unit_test(norms_give_the_bits_of_the_cpu),
        cmocka_unit_test(rate_encoder_and_counts_give_the_same_bits),
        cmocka_unit_test(readouts_give_the_bits_of_the_cpu),
        cmocka_unit_test(queues_and_events_order_what_is_put_in),
        cmocka_unit_test(recurrent_neurons_are_refused_and_named),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("emulated GPU", tests, open_both, close_both);
}
