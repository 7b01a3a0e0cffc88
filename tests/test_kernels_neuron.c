/*
 * The neuron ops against the model in double, and against themselves: the same bits chunked and
 * whole, fused and unfused, for every number of threads and, up to the spikes, every instruction
 * set.
 */
#include "tests/neuron_model.h"
#include "tests/levels.h"

enum { B = 19, STEPS = 6 }; /* more samples than one item of the ops takes */
static const int sizes[] = {1, 10, 15, 16, 17, 31, 33, 127, 128, 129, 130};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- a layer in the device's form ----------------------------------------------------------- */
typedef struct layer {
    rv_neuron neuron;
    int n, ld;
    model *sample; /* [B] */
    float *param[RV_P_COUNT], *weight, *bias;
    rv_map recurrent;
    bool is_recurrent, starts;
    uint32_t start_bits[STEPS];
    rv_values x, gs, gv, gh;
    rv_neuron_state first;
} layer;

typedef struct outcome {
    rv_values h, i, a, gx, held;
    rv_spikes s;
    rv_neuron_state state, adjoint;
    float *grad[RV_P_COUNT];
} outcome;

static uint32_t *test_bits(size_t words) {
    void *memory = NULL;
    CHECK(rv_alloc(words, sizeof(uint32_t), "test", &memory));
    return memory;
}

static rv_neuron_state state_make(int n) {
    size_t plane = (size_t)(B * rv_round_up(n, RV_LANES));
    return (rv_neuron_state){test_floats(plane), test_floats(plane), test_floats(plane),
                             test_floats(plane), test_bits((size_t)(B * rv_words(n)))};
}
static void state_free(rv_neuron_state s) {
    rv_free(s.v);
    rv_free(s.i);
    rv_free(s.a);
    rv_free(s.x);
    rv_free(s.last);
}
static void state_copy(rv_neuron_state to, rv_neuron_state from, int n) {
    size_t bytes = (size_t)(B * rv_round_up(n, RV_LANES)) * sizeof(float);
    memcpy(to.v, from.v, bytes);
    memcpy(to.i, from.i, bytes);
    memcpy(to.a, from.a, bytes);
    memcpy(to.x, from.x, bytes);
    memcpy(to.last, from.last, (size_t)(B * rv_words(n)) * sizeof(uint32_t));
}

/* Copies of the models' numbers, rounded to float on both sides. */
static void layer_fill(layer *l, uint32_t *state) {
    for (int b = 0; b < B; b++) {
        model *m = &l->sample[b];
        *m = (model){.neuron = l->neuron, .T = STEPS, .n = l->n};
        model_fill(m, state);
        memcpy(m->unit, l->sample[0].unit, sizeof m->unit);
        for (int u = 0; u < l->n; u++) {
            for (int p = 0; p < RV_P_COUNT; p++) {
                double *value = model_param(&m->unit[u], p);
                *value = (double)(float)*value;
                l->param[p][u] = (float)*value;
            }
            l->first.v[b * l->ld + u] = (float)(m->first[u].v = (double)(float)m->first[u].v);
            l->first.i[b * l->ld + u] = (float)(m->first[u].i = (double)(float)m->first[u].i);
            l->first.a[b * l->ld + u] = (float)(m->first[u].a = (double)(float)m->first[u].a);
            bool last = test_random(state) % 4 == 0;
            m->first[u].s = last;
            if (last) l->first.last[b * rv_words(l->n) + u / 32] |= 1u << (u % 32);
            for (int t = 0; t < STEPS; t++) {
                *test_at(l->x, t, b, u) = (float)(m->x[t][u] = (double)(float)m->x[t][u]);
                *test_at(l->gs, t, b, u) = (float)(m->gs[t][u] = (double)(float)m->gs[t][u]);
                *test_at(l->gv, t, b, u) = (float)(m->gv[t][u] = (double)(float)m->gv[t][u]);
                *test_at(l->gh, t, b, u) = (float)(m->gh[t][u] = (double)(float)m->gh[t][u]);
            }
        }
        for (int t = 0; t < STEPS; t++) {
            m->starts[t] = l->starts && (t + b) % 4 == 2;
            if (m->starts[t]) l->start_bits[t] |= 1u << b;
        }
    }
    for (int p = 0; p < RV_P_COUNT; p++)
        for (int u = l->n; u < l->ld; u++)
            l->param[p][u] = l->param[p][l->n - 1]; /* as layers do: padding is a real unit's */
}

static void recurrent_fill(layer *l, uint32_t *state) {
    double *weight = NULL, *bias = NULL;
    size_t n = (size_t)l->n, ld = (size_t)l->ld;
    CHECK(rv_alloc(n * n, sizeof(double), "test", &weight));
    CHECK(rv_alloc(n, sizeof(double), "test", &bias));
    l->weight = test_floats(n * ld);
    l->bias = test_floats(ld);
    for (size_t from = 0; from < n; from++)
        for (size_t to = 0; to < n; to++) {
            float w = test_uniform(state) * 0.3f / sqrtf((float)n);
            weight[from * n + to] = (double)(l->weight[from * ld + to] = w);
        }
    for (size_t to = 0; to < n; to++)
        bias[to] = (double)(l->bias[to] = test_uniform(state) * 0.1f);
    for (int b = 0; b < B; b++) {
        l->sample[b].weight = weight;
        l->sample[b].bias = bias;
    }
    l->recurrent = (rv_map){l->n, l->n, l->ld, RV_FORM_EVENT, l->weight, l->bias, NULL, false};
}

static void layer_free(layer *l) {
    if (l->is_recurrent) {
        rv_free(l->sample[0].weight);
        rv_free(l->sample[0].bias);
    }
    for (int p = 0; p < RV_P_COUNT; p++)
        rv_free(l->param[p]);
    rv_free(l->weight);
    rv_free(l->bias);
    rv_free(l->sample);
    rv_free(l->x.data);
    rv_free(l->gs.data);
    rv_free(l->gv.data);
    rv_free(l->gh.data);
    state_free(l->first);
}

static void layer_make(layer *l, const rv_neuron *neuron, int n, bool recurrent, bool starts,
                       uint32_t *state) {
    *l = (layer){.neuron = *neuron, .n = n, .ld = rv_round_up(n, RV_LANES)};
    l->is_recurrent = recurrent;
    l->starts = starts;
    CHECK(rv_alloc(B, sizeof(model), "test", &l->sample));
    l->first = state_make(n);
    for (int p = 0; p < RV_P_COUNT; p++)
        l->param[p] = test_floats((size_t)l->ld);
    l->x = test_values(STEPS, B, n, false, state);
    l->gs = test_values(STEPS, B, n, false, state);
    l->gv = test_values(STEPS, B, n, false, state);
    l->gh = test_values(STEPS, B, n, false, state);
    layer_fill(l, state);
    for (int row = 0; row < STEPS * B; row++)
        for (int u = n; u < l->ld; u++) /* not even then may padding get an adjoint */
            l->gs.data[row * l->ld + u] = 7;
    if (recurrent) recurrent_fill(l, state);
}

static rv_neuron_forward forward_of(const layer *l, outcome *o, int t0, int t1) {
    rv_neuron_forward f = {.neuron = &l->neuron, .T = t1 - t0, .B = B, .n = l->n, .ld = l->ld};
    unsigned keeps = rv_neuron_keeps(&l->neuron);
    for (int p = 0; p < RV_P_COUNT; p++)
        f.param[p] = l->param[p];
    f.x = test_steps(l->x, t0, t1);
    f.h = test_steps(o->h, t0, t1);
    if (keeps & RV_KEEP_I) f.i = test_steps(o->i, t0, t1);
    if (keeps & RV_KEEP_A) f.a = test_steps(o->a, t0, t1);
    if (rv_neuron_spikes(&l->neuron)) {
        f.s = o->s;
        f.s.bits += (size_t)t0 * o->s.stride_t;
        f.s.T = t1 - t0;
    }
    if (l->is_recurrent) f.recurrent = &l->recurrent;
    if (l->starts) f.starts = l->start_bits + t0;
    f.state = o->state;
    return f;
}

static rv_values steps_or_none(rv_values v, int t0, int t1) {
    return v.data ? test_steps(v, t0, t1) : v;
}

/* Forward and backward of a layer in chunks; the adjoint's last chunk first. */
static outcome outcome_run(const layer *l, test_device which, int chunks, bool held) {
    rv_device device = test_device_open(which);
    rv_arena arena = {0};
    outcome o = {test_empty(STEPS, B, l->n, false),
                 test_empty(STEPS, B, l->n, false),
                 test_empty(STEPS, B, l->n, false),
                 {0},
                 {0},
                 {0},
                 state_make(l->n),
                 state_make(l->n),
                 {0}};
    rv_neuron_state before[STEPS];
    o.s = rv_spikes_of(test_bits((size_t)(STEPS * B * rv_words(l->n))), STEPS, B, l->n);
    memset(o.s.bits, 0xFF, STEPS * o.s.stride_t * sizeof(uint32_t));
    o.held = test_values(1, B, l->n, true, &(uint32_t){5});
    state_copy(o.state, l->first, l->n);
    for (int k = 0; k < chunks; k++) {
        int t0 = k * STEPS / chunks, t1 = (k + 1) * STEPS / chunks;
        before[k] = state_make(l->n);
        state_copy(before[k], o.state, l->n);
        rv_neuron_forward f = forward_of(l, &o, t0, t1);
        CHECK(device.ops->neuron_forward(device.ctx, NULL, &f, &arena));
        rv_arena_reset(&arena);
    }
    o.gx = test_copy(o.h);
    for (int p = 0; p < RV_P_COUNT; p++)
        o.grad[p] = test_floats((size_t)l->ld);
    for (int k = chunks - 1; k >= 0; k--) {
        int t0 = k * STEPS / chunks, t1 = (k + 1) * STEPS / chunks;
        rv_neuron_forward f = forward_of(l, &o, t0, t1);
        rv_neuron_backward g = {.neuron = &l->neuron,
                                .T = t1 - t0,
                                .B = B,
                                .n = l->n,
                                .ld = l->ld,
                                .h = test_steps(o.gx, t0, t1),
                                .i = f.i,
                                .a = f.a,
                                .gs = steps_or_none(l->gs, t0, t1),
                                .gv = steps_or_none(l->gv, t0, t1),
                                .gh = steps_or_none(l->gh, t0, t1),
                                .s = f.s,
                                .recurrent = f.recurrent,
                                .starts = f.starts,
                                .before = before[k],
                                .adjoint = o.adjoint};
        memcpy(g.param, f.param, sizeof g.param);
        memcpy(g.grad, o.grad, sizeof g.grad);
        if (held) g.held = o.held;
        CHECK(device.ops->neuron_backward(device.ctx, NULL, &g, &arena));
        state_free(before[k]);
        rv_arena_reset(&arena);
    }
    rv_arena_finish(&arena);
    rv_device_close(&device);
    return o;
}

static void outcome_free(outcome *o) {
    rv_free(o->h.data);
    rv_free(o->i.data);
    rv_free(o->a.data);
    rv_free(o->gx.data);
    rv_free(o->held.data);
    rv_free(o->s.bits);
    state_free(o->state);
    state_free(o->adjoint);
    for (int p = 0; p < RV_P_COUNT; p++)
        rv_free(o->grad[p]);
}

static void outcome_same(const layer *l, const outcome *a, const outcome *b) {
    size_t plane = (size_t)(B * l->ld) * sizeof(float);
    test_same_bits(a->h, b->h);
    test_same_bits(a->gx, b->gx);
    test_same_bits(a->held, b->held);
    if (rv_neuron_spikes(&l->neuron))
        assert_memory_equal(a->s.bits, b->s.bits, STEPS * a->s.stride_t * sizeof(uint32_t));
    assert_memory_equal(a->state.v, b->state.v, plane);
    assert_memory_equal(a->state.i, b->state.i, plane);
    assert_memory_equal(a->state.a, b->state.a, plane);
    assert_memory_equal(a->state.last, b->state.last,
                        (size_t)(B * rv_words(l->n)) * sizeof(uint32_t));
    assert_memory_equal(a->adjoint.v, b->adjoint.v, plane);
    assert_memory_equal(a->adjoint.x, b->adjoint.x, plane);
    for (int p = 0; p < RV_P_COUNT; p++)
        assert_memory_equal(a->grad[p], b->grad[p], (size_t)l->ld * sizeof(float));
}

/* ---- against the model ----------------------------------------------------------------------- */
/* False where a spike depends on rounding. */
static bool outcome_check(const layer *l, const outcome *o) {
    static model_run run;
    double grad[RV_P_COUNT][MODEL_N] = {{0}};
    bool spikes = rv_neuron_spikes(&l->neuron);
    model_hook.smooth = NULL;
    model_hook.held = NULL;
    model_hook.nearest = 1;
    for (int b = 0; b < B; b++) {
        model_forward(&l->sample[b], &run);
        if (model_hook.nearest < 2e-5) return false;
        model_backward(&l->sample[b], &run);
        for (int t = 0; t < STEPS; t++)
            for (int u = 0; u < rv_words(l->n) * 32; u++) {
                const rv_cell *c = &run.cell[t + 1][u < l->n ? u : 0];
                uint32_t word =
                    o->s.bits[(size_t)t * o->s.stride_t + (size_t)(b * rv_words(l->n) + u / 32)];
                if (spikes) assert_int_equal(word >> u % 32 & 1u, u < l->n && c->s > 0);
                if (u >= l->n) continue;
                test_close((double)*test_at(o->h, t, b, u), c->h, 1e-5);
                test_close((double)*test_at(o->gx, t, b, u), run.gx[t][u], 1e-4);
            }
        for (int u = 0; u < l->n; u++) {
            test_close((double)o->state.v[b * l->ld + u], run.cell[STEPS][u].v, 1e-5);
            test_close((double)o->adjoint.v[b * l->ld + u], run.g_first_v[u], 1e-4);
            test_close((double)o->adjoint.i[b * l->ld + u], run.g_first_i[u], 1e-4);
            for (int p = 0; p < RV_P_COUNT; p++)
                grad[p][u] += *model_param(&run.grad[u], p);
        }
    }
    for (int p = 0; p < RV_P_COUNT; p++)
        for (int u = 0; u < l->ld; u++) {
            bool learns = l->neuron.learn >> p & 1u && u < l->n;
            test_close((double)o->grad[p][u], learns ? grad[p][u] : 0, 3e-4);
        }
    test_padded(o->h);
    test_padded(o->gx);
    return true;
}

/* Neuron number k of all kinds, resets and flags; false past the last. */
static bool neuron_at(int k, rv_neuron *out) {
    int kind = k / 40, reset = k / 8 % 5, flags = k % 8;
    if (kind >= RV_NEURONS) return false;
    *out = (rv_neuron){.kind = kind,
                       .reset = reset < 4 ? (rv_reset)reset : RV_RESET_SUBTRACT,
                       .reset_over_beta = reset == 4,
                       .strict = k % 3 == 0,
                       .detach_reset = flags & 1,
                       .gain_tied = flags & 2,
                       .detach_adaptation = flags & 4,
                       .surrogate = {k * 7 % RV_SURROGATES, {2, 0.5, 1.5, 1}},
                       .learn = flags & 1 ? model_kinds[kind].params : 0};
    if (out->gain_tied) out->learn &= ~RV_BIT(GAIN);
    if (out->reset != RV_RESET_VALUE) out->learn &= ~RV_BIT(RESET);
    return true;
}

static void ops_every_neuron_equals_the_model(void **state) {
    (void)state;
    rv_neuron neuron;
    uint32_t random = 1;
    for (int k = 0; neuron_at(k, &neuron); k++) {
        layer l;
        bool recurrent = rv_neuron_spikes(&neuron) && k % 4 == 1;
        test_device which;
        if (!test_device_at(k % 6, &which)) test_device_at(0, &which);
        for (int tries = 0;; tries++) {
            layer_make(&l, &neuron, sizes[k % SIZES], recurrent, k % 5 == 2, &random);
            outcome o = outcome_run(&l, which, 1, false);
            bool done = outcome_check(&l, &o);
            outcome_free(&o);
            layer_free(&l);
            if (done) break;
            if (tries == 30) fail_msg("no layer whose spikes do not depend on rounding");
        }
    }
}

static void ops_chunked_and_threaded_give_the_same_bits(void **state) {
    (void)state;
    rv_neuron neuron;
    uint32_t random = 2;
    for (int k = 0; neuron_at(k, &neuron); k++) {
        layer l;
        bool recurrent = rv_neuron_spikes(&neuron) && k % 3 == 1;
        rv_isa isa =
            (rv_isa)(RV_ISA_BASELINE + k % ((int)rv_isa_best() - (int)RV_ISA_BASELINE + 1));
        layer_make(&l, &neuron, sizes[(k + 5) % SIZES], recurrent, k % 2 == 1, &random);
        outcome whole = outcome_run(&l, (test_device){isa, 1}, 1, k % 5 == 0);
        for (int threads = 1; threads <= 3; threads++) {
            outcome cut = outcome_run(&l, (test_device){isa, threads},
                                      threads == 3 ? STEPS : threads + 1, k % 5 == 0);
            outcome_same(&l, &whole, &cut);
            outcome_free(&cut);
        }
        outcome_free(&whole);
        layer_free(&l);
    }
}

static void ops_every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    rv_neuron neuron;
    uint32_t random = 3;
    for (int k = 0; neuron_at(k, &neuron); k += 3) {
        layer l;
        test_device which;
        layer_make(&l, &neuron, sizes[k % SIZES], false, k % 2 == 0, &random);
        outcome first = outcome_run(&l, (test_device){RV_ISA_BASELINE, 1}, 1, false);
        for (int d = 2; test_device_at(d, &which); d += 2) {
            outcome o = outcome_run(&l, which, 1, false);
            outcome_same(&l, &first, &o);
            outcome_free(&o);
        }
        outcome_free(&first);
        layer_free(&l);
    }
}

/* ---- fused ------------------------------------------------------------------------------------
 */
static void fused_equals_map_then_neuron(void **state) {
    (void)state;
    rv_neuron neuron;
    uint32_t random = 4;
    for (int k = 0; neuron_at(k, &neuron); k += 3) {
        layer l;
        test_device which;
        int in = sizes[(k + 3) % SIZES];
        if (!test_device_at(k % 6, &which)) test_device_at(0, &which);
        rv_device device = test_device_open(which);
        rv_arena arena = {0};
        layer_make(&l, &neuron, sizes[k % SIZES], rv_neuron_spikes(&neuron) && k % 2, k % 5 == 0,
                   &random);
        rv_signal x = test_signal(true, STEPS, B, in, &random);
        float *weight = test_random_floats((size_t)in * (size_t)l.ld, &random);
        for (int row = 0; row < in; row++)
            for (int u = l.n; u < l.ld; u++)
                weight[row * l.ld + u] = 0;
        rv_map map = {in,   l.n,  l.ld, RV_FORM_EVENT, weight, k % 4 ? NULL : l.param[RV_P_THETA],
                      NULL, false};
        outcome apart = outcome_run(&l, which, 1, false), fused = outcome_run(&l, which, 1, false);
        rv_neuron_forward f = forward_of(&l, &apart, 0, STEPS);
        state_copy(apart.state, l.first, l.n);
        CHECK(device.ops->map_forward(device.ctx, NULL, &map, &x, apart.h, &arena));
        f.x = apart.h; /* in place */
        CHECK(device.ops->neuron_forward(device.ctx, NULL, &f, &arena));
        state_copy(fused.state, l.first, l.n);
        for (int t = 0; t < STEPS; t += STEPS / 2) {
            rv_signal part = test_signal_steps(x, t, t + STEPS / 2);
            f = forward_of(&l, &fused, t, t + STEPS / 2);
            f.x = (rv_values){0};
            CHECK(device.ops->map_neuron_forward(device.ctx, NULL, &map, &part, &f, &arena));
        }
        outcome_same(&l, &apart, &fused);
        outcome_free(&apart);
        outcome_free(&fused);
        test_signal_free(x);
        rv_free(weight);
        layer_free(&l);
        rv_arena_finish(&arena);
        rv_device_close(&device);
    }
}

/* ---- held --------------------------------------------------------------------------------------
 */
static void held_input_and_adjoint_equal_copies_at_every_step(void **state) {
    (void)state;
    uint32_t random = 5;
    rv_neuron neuron = {.kind = RV_NEURON_lif, .surrogate = {RV_SURROGATE_atan, {2}}};
    layer l, copy;
    layer_make(&l, &neuron, 37, false, false, &random);
    random = 5;
    layer_make(&copy, &neuron, 37, false, false, &random);
    rv_values *held[] = {&l.x, &l.gv, &l.gh}, *full[] = {&copy.x, &copy.gv, &copy.gh};
    for (int k = 0; k < 3; k++) {
        held[k]->stride_t = 0;
        for (int t = 1; t < STEPS; t++)
            memcpy(test_at(*full[k], t, 0, 0), full[k]->data, (size_t)(B * l.ld) * sizeof(float));
    }
    outcome a = outcome_run(&l, (test_device){RV_ISA_AUTO, 1}, 2, true);
    outcome b = outcome_run(&copy, (test_device){RV_ISA_AUTO, 1}, 1, true);
    outcome c = outcome_run(&copy, (test_device){RV_ISA_AUTO, 1}, 1, false);
    outcome_same(&l, &a, &b);
    test_same_bits(a.gx, a.h);        /* nobody asked for each step's */
    for (int row = 0; row < B; row++) /* and the held sum is the sum over t descending */
        for (int u = 0; u < l.n; u++) {
            float sum = *test_at(c.held, 0, row, u);
            for (int t = STEPS - 1; t >= 0; t--)
                sum += *test_at(c.gx, t, row, u);
            assert_true(sum == *test_at(b.held, 0, row, u));
        }
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
    layer_free(&l);
    layer_free(&copy);
}

static void absent_adjoints_and_parameters_count_as_nothing(void **state) {
    (void)state;
    uint32_t random = 6;
    rv_neuron neuron = {.kind = RV_NEURON_if, .surrogate = {RV_SURROGATE_atan, {2}}};
    layer l;
    layer_make(&l, &neuron, 20, false, false, &random);
    float *kept[RV_P_COUNT];
    memset(l.gv.data, 0, test_count(l.gv) * sizeof(float));
    memset(l.gh.data, 0, test_count(l.gh) * sizeof(float));
    for (int u = 0; u < l.ld; u++) {
        l.param[RV_P_GAIN][u] = l.param[RV_P_THETA][u] = 1;
    }
    outcome given = outcome_run(&l, (test_device){RV_ISA_AUTO, 1}, 1, false);
    rv_values gv = l.gv, gh = l.gh;
    l.gv.data = l.gh.data = NULL;
    memcpy(kept, l.param, sizeof kept);
    memset(l.param, 0, sizeof l.param);
    outcome absent = outcome_run(&l, (test_device){RV_ISA_AUTO, 1}, 1, false);
    outcome_same(&l, &given, &absent);
    memcpy(l.param, kept, sizeof kept);
    l.gv = gv;
    l.gh = gh;
    outcome_free(&given);
    outcome_free(&absent);
    layer_free(&l);
}

static void keeps_only_what_the_adjoint_reads(void **state) {
    (void)state;
    rv_neuron neuron = {.kind = RV_NEURON_lif, .learn = RV_BIT(BETA)};
    assert_int_equal(rv_neuron_keeps(&neuron), 0);
    neuron.gain_tied = true;
    assert_int_equal(rv_neuron_keeps(&neuron), RV_KEEP_I);
    neuron = (rv_neuron){.kind = RV_NEURON_cuba, .learn = RV_BIT(ALPHA)};
    assert_int_equal(rv_neuron_keeps(&neuron), RV_KEEP_I);
    neuron = (rv_neuron){.kind = RV_NEURON_alif};
    assert_int_equal(rv_neuron_keeps(&neuron), RV_KEEP_A);
    neuron = (rv_neuron){.kind = RV_NEURON_li};
    assert_false(rv_neuron_spikes(&neuron));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_every_neuron_equals_the_model),
        cmocka_unit_test(ops_chunked_and_threaded_give_the_same_bits),
        cmocka_unit_test(ops_every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(fused_equals_map_then_neuron),
        cmocka_unit_test(held_input_and_adjoint_equal_copies_at_every_step),
        cmocka_unit_test(absent_adjoints_and_parameters_count_as_nothing),
        cmocka_unit_test(keeps_only_what_the_adjoint_reads),
    };
    (void)rv_flush_set();
    return cmocka_run_group_tests_name("kernels_neuron", tests, NULL, NULL);
}
