/*
 * Layer ranges: two ranges that hand on signals and adjoints give the bits of the whole, wherever
 * the cut lies; recurrent, adaptive and learning neurons over chunks; the choice of forms; the
 * rate regulariser.
 */
#include "snn/layer.h"
#include "tests/small.h"

enum { IN = 20, HIDDEN = 33, OUT = 6, BATCH = 7, STEPS = 9, CHUNKS = 2, PARTS = 2 };

/* What one range owns, for both chunks. */
typedef struct range {
    int first, last;
    rv_state *state, *adjoint;
    rv_tape *tape[CHUNKS];
} range;

static void range_open(range *r, const small *s, int first, int last) {
    r->first = first, r->last = last;
    OK(rv_state_create(s->net, &s->device, BATCH, &r->state));
    OK(rv_state_create(s->net, &s->device, BATCH, &r->adjoint));
    for (int c = 0; c < CHUNKS; c++)
        OK(rv_tape_create(s->net, &s->device, STEPS, BATCH, &r->tape[c]));
}

static void range_close(range *r) {
    for (int c = 0; c < CHUNKS; c++)
        rv_tape_destroy(r->tape[c]);
    rv_state_destroy(r->adjoint);
    rv_state_destroy(r->state);
}

static rv_pass pass_of(small *s, const range *r, int chunk, float *gradient, rv_arena *arena) {
    return (rv_pass){.net = s->net,
                     .device = &s->device,
                     .arena = arena,
                     .first = r->first,
                     .last = r->last,
                     .version = rv_serial_version(s->serial),
                     .state = r->state,
                     .adjoint = r->adjoint,
                     .tape = r->tape[chunk],
                     .gradient = gradient,
                     .B = BATCH,
                     .t0 = rv_cut(chunk, CHUNKS, STEPS),
                     .t1 = rv_cut(chunk + 1, CHUNKS, STEPS),
                     .chunk = chunk,
                     .chunks = CHUNKS,
                     .batch = &s->batch,
                     .training = true};
}

/* The gradient of ranges [0, cut) and [cut, L) that exchange copies; spikes in between too. */
static void run_cut(small *s, int cut, float *gradient, double *loss_value) {
    range part[PARTS];
    rv_loss *loss = NULL;
    rv_loss_result result;
    rv_arena arena = {0};
    rv_crossing crossing;
    rv_pass pass;
    OK(rv_net_crossing(s->net, cut, &crossing));
    assert_int_equal(crossing.count, 1);
    range_open(&part[0], s, 0, cut);
    range_open(&part[1], s, cut, s->net->layer_count);
    OK(rv_loss_create(&s->loss, s->net, &s->device, BATCH, &loss));
    for (int c = 0; c < CHUNKS; c++) {
        pass = pass_of(s, &part[0], c, gradient, &arena);
        *rv_tape_signal(pass.tape, -1) = (rv_signal){{0}, {0}};
        OK(rv_encode(&s->encoder, &s->device, NULL, &s->batch, 0, BATCH, s->net_desc.seed, pass.t0,
                     pass.t1, &arena, rv_tape_signal(pass.tape, -1)));
        /* the encoder's bits live in the arena: keep them for W */
        rv_signal *input = rv_tape_signal(pass.tape, -1);
        if (input->spikes.bits) {
            size_t bytes = sizeof(uint32_t) * (size_t)(pass.t1 - pass.t0) * input->spikes.stride_t;
            uint32_t *bits = small_memory(s, bytes, 1);
            memcpy(bits, input->spikes.bits, bytes);
            input->spikes.bits = bits;
        }
        OK(rv_net_forward(&pass));
        *rv_tape_signal(part[1].tape[c], cut - 1) = *rv_tape_signal(pass.tape, cut - 1);
        pass = pass_of(s, &part[1], c, gradient, &arena);
        OK(rv_net_forward(&pass));
        OK(rv_loss_observe(loss, &pass));
        rv_arena_reset(&arena);
    }
    OK(rv_loss_finish(loss, &pass, BATCH, &result, NULL));
    *loss_value = result.loss;
    int n = rv_shape_units(rv_net_layer_shape(s->net, cut - 1));
    rv_values held = rv_tape_signal(part[0].tape[0], cut - 1)->values;
    bool one_frame = held.data && held.stride_t == 0;
    rv_values gx = rv_values_of(NULL, one_frame ? 1 : STEPS, BATCH, n);
    gx.data = small_memory(s, (size_t)gx.T * gx.stride_t, sizeof(float));
    if (one_frame) gx.stride_t = 0;
    for (int c = CHUNKS - 1; c >= 0; c--) {
        rv_pass back = pass_of(s, &part[1], c, gradient, &arena);
        if (!one_frame) gx.T = back.t1 - back.t0;
        back.before = &crossing, back.g_before = &gx;
        OK(rv_loss_adjoint(loss, &back));
        OK(rv_net_backward(&back));
        OK(rv_net_weight(&back));
        rv_arena_reset(&arena);
        back = pass_of(s, &part[0], c, gradient, &arena);
        back.after = &crossing, back.g_after = &gx;
        OK(rv_net_backward(&back));
        OK(rv_net_weight(&back));
        rv_arena_reset(&arena);
    }
    rv_loss_destroy(loss);
    rv_arena_finish(&arena);
    range_close(&part[0]);
    range_close(&part[1]);
    rv_free(crossing.tensor);
}

/* Three maps; a skip would not cross a cut here. */
static void open_net(small *s, const char *encoder, const char *kind, bool recurrent,
                     const char *learn, int chunks) {
    memset(s, 0, sizeof *s);
    s->net_desc.input = (rv_shape){1, {IN}};
    s->net_desc.seed = 5;
    small_linear(s, "fc1", HIDDEN, true);
    rv_neuron_options *options = small_neuron(s, "n1", kind, 0.9);
    options->recurrent = recurrent;
    options->learn = (char *)(uintptr_t)learn;
    small_real(&options->threshold, 0.4);
    small_linear(s, "fc2", HIDDEN, false);
    small_real(&small_neuron(s, "n2", "lif", 0.9)->threshold, 0.3);
    small_linear(s, "fc3", OUT, true);
    small_neuron(s, "n3", "li", 0.8);
    s->loss.readout = RV_READ_MEMBRANE_MEAN;
    small_batch(s, BATCH, strcmp(encoder, "delta") == 0 ? STEPS : 0, OUT, 3);
    small_open(s, encoder, STEPS, chunks, 1, 1);
}

static void cuts_give_the_bits_of_the_whole(void **state) {
    (void)state;
    for (int rate = 0; rate < 2; rate++)
        for (int cut = 1; cut < 6; cut++) {
            small s;
            rv_step_result whole;
            const float *want;
            double loss;
            open_net(&s, rate ? "rate" : "constant", "lif", false, "beta threshold", CHUNKS);
            float *got = small_memory(&s, s.net->n_trained, sizeof *got);
            run_cut(&s, cut, got, &loss);
            OK(rv_serial_gradient(s.serial, &s.batch, &whole, &want));
            assert_true(loss == whole.loss);
            if (memcmp(got, want, sizeof *got * s.net->n_trained) != 0)
                fail_msg("cut before layer %d, %s: gradient differs", cut, rate ? "rate" : "held");
            double sum = 0;
            for (size_t k = 0; k < s.net->n_trained; k++)
                sum += fabs((double)got[k]);
            assert_true(sum > 0.1);
            small_finish(&s);
        }
}

/* A map alone on a static input: its adjoint is the sum over time of that of every step. */
static void map_alone_on_a_held_input_sums_over_time(void **state) {
    (void)state;
    static const rv_readout readouts[] = {RV_READ_MEMBRANE_MEAN, RV_READ_EVERY_STEP};
    for (int k = 0; k < 2; k++) {
        float *first = NULL;
        small s[3];
        for (int c = 0; c < 3; c++) {
            rv_step_result result;
            const float *got;
            memset(&s[c], 0, sizeof s[c]);
            s[c].net_desc.input = (rv_shape){1, {IN}};
            small_linear(&s[c], "fc", OUT, true);
            s[c].loss.readout = readouts[k];
            small_batch(&s[c], BATCH, 0, OUT, 3);
            small_open(&s[c], "constant", STEPS, 4 * c + 1, 1, 1);
            OK(rv_serial_gradient(s[c].serial, &s[c].batch, &result, &got));
            const rv_tensor *bias = rv_net_tensor_find(s[c].net, "fc.bias");
            const rv_tensor *weight = rv_net_tensor_find(s[c].net, "fc.weight");
            const float *block = rv_version_block(rv_serial_version(s[c].serial));
            double want[OUT] = {0};
            for (int b = 0; b < BATCH; b++) {
                double y[OUT], sum = 0;
                for (int o = 0; o < OUT; o++) {
                    y[o] = (double)block[bias->offset + (size_t)o];
                    for (int i = 0; i < IN; i++)
                        y[o] += (double)block[weight->offset + (size_t)(i * weight->ld + o)] *
                                (double)s[c].batch.input.values.data[b * rv_round_up(IN, 16) + i];
                    sum += exp(y[o]);
                }
                for (int o = 0; o < OUT; o++)
                    want[o] += (exp(y[o]) / sum - (s[c].batch.label[b] == o)) / BATCH;
            }
            for (int o = 0; o < OUT; o++)
                assert_true(fabs((double)got[bias->offset + (size_t)o] - want[o]) < 1e-6);
            if (!first) first = small_memory(&s[0], s[0].net->n_trained, sizeof *first);
            if (c == 0) memcpy(first, got, sizeof *first * s[0].net->n_trained);
            assert_memory_equal(first, got, sizeof *first * s[0].net->n_trained);
        }
        for (int c = 0; c < 3; c++)
            small_finish(&s[c]);
    }
}

/* ---- neurons over chunks ----------------------------------------------------------------- */
static const struct {
    const char *kind, *learn;
    bool recurrent;
} neurons[] = {
    {"lif", "beta threshold gain", false},
    {"lif", "beta", true},
    {"plif", "w", false},
    {"cuba", "alpha beta", false},
    {"cuba", "alpha", true},
    {"alif", "rho kappa", false},
    {"alif", "beta", true},
    {"if", "threshold", true},
};

static void chunks_give_the_same_bits_for_every_neuron(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof neurons / sizeof *neurons; k++) {
        small a, b;
        rv_step_result ra, rb;
        const float *ga, *gb;
        open_net(&a, "rate", neurons[k].kind, neurons[k].recurrent, neurons[k].learn, 1);
        OK(rv_serial_gradient(a.serial, &a.batch, &ra, &ga));
        for (int chunks = 2; chunks <= STEPS; chunks += 3) {
            open_net(&b, "rate", neurons[k].kind, neurons[k].recurrent, neurons[k].learn, chunks);
            OK(rv_serial_gradient(b.serial, &b.batch, &rb, &gb));
            assert_true(ra.loss == rb.loss);
            if (memcmp(ga, gb, sizeof *ga * a.net->n_trained) != 0)
                fail_msg("%s learning %s: %d chunks differ", neurons[k].kind, neurons[k].learn,
                         chunks);
            small_finish(&b);
        }
        for (int t = 0; t < a.net->tensor_count; t++) {
            const rv_tensor *tensor = &a.net->tensors[t];
            double most = 0;
            for (size_t i = 0; i < tensor->count; i++)
                most = fmax(most, fabs((double)ga[tensor->offset + i]));
            if (!(most > 0)) fail_msg("%s: %s has no gradient", neurons[k].kind, tensor->name);
        }
        small_finish(&a);
    }
}

/* Recurrence adds recurrent_weight times the spikes of the step before: nothing when it is 0. */
static void recurrence_is_off_with_zero_weights_and_on_with_others(void **state) {
    (void)state;
    small plain, looped;
    rv_step_result want, zero, on;
    const float *gradient;
    open_net(&plain, "rate", "lif", false, NULL, 2);
    open_net(&looped, "rate", "lif", true, NULL, 2);
    float *block = rv_version_block(rv_serial_version(looped.serial));
    for (int t = 0; t < looped.net->tensor_count; t++) {
        const rv_tensor *to = &looped.net->tensors[t];
        const rv_tensor *from = rv_net_tensor_find(plain.net, to->name);
        const float *source = rv_version_block(rv_serial_version(plain.serial));
        if (from) memcpy(block + to->offset, source + from->offset, sizeof *block * to->count);
    }
    OK(rv_serial_gradient(plain.serial, &plain.batch, &want, &gradient));
    OK(rv_version_derive(rv_serial_version(looped.serial), BATCH));
    OK(rv_serial_gradient(looped.serial, &looped.batch, &on, &gradient));
    const rv_tensor *loop = rv_net_tensor_find(looped.net, "n1.recurrent_weight");
    memset(block + loop->offset, 0, sizeof *block * loop->count);
    OK(rv_version_derive(rv_serial_version(looped.serial), BATCH));
    OK(rv_serial_gradient(looped.serial, &looped.batch, &zero, &gradient));
    assert_true(zero.loss == want.loss);
    assert_true(on.loss != want.loss);
    small_finish(&plain);
    small_finish(&looped);
}

/* The loss of an integrator is smooth in its own decay: tau, w and beta against differences. */
static void decay_gradient_follows_what_is_stored(void **state) {
    (void)state;
    static const struct {
        const char *learn, *tensor;
        double tau;
        int decay;
    } cases[] = {{"beta", "n3.beta", NAN, 0},
                 {"tau", "n3.tau", 4, 0},
                 {"tau", "n3.tau", 4, 1},
                 {"w", "n3.w", NAN, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        small s = {0};
        rv_step_result at, up, down;
        const float *gradient;
        s.net_desc.input = (rv_shape){1, {IN}};
        small_linear(&s, "fc3", OUT, true);
        rv_neuron_options *options = small_neuron(&s, "n3", "li", 0.8);
        options->learn = (char *)(uintptr_t)cases[k].learn;
        options->decay = cases[k].decay;
        small_real(&options->tau, cases[k].tau);
        s.loss.readout = RV_READ_MEMBRANE_LAST;
        small_batch(&s, BATCH, 0, OUT, 3);
        small_open(&s, "constant", STEPS, 2, 1, 1);
        OK(rv_serial_gradient(s.serial, &s.batch, &at, &gradient));
        const rv_tensor *tensor = rv_net_tensor_find(s.net, cases[k].tensor);
        double slope = (double)gradient[tensor->offset];
        float *stored = rv_version_block(rv_serial_version(s.serial)) + tensor->offset;
        float middle = *stored, high = middle + 0.01f, low = middle - 0.01f;
        *stored = high;
        OK(rv_version_derive(rv_serial_version(s.serial), BATCH));
        OK(rv_serial_eval(s.serial, &s.batch, &up, NULL, NULL));
        *stored = low;
        OK(rv_version_derive(rv_serial_version(s.serial), BATCH));
        OK(rv_serial_eval(s.serial, &s.batch, &down, NULL, NULL));
        double want = (up.loss - down.loss) / ((double)high - (double)low);
        if (!(fabs(slope - want) < 2e-3 * fabs(want)) || slope == 0)
            fail_msg("%s: %g, differences say %g", cases[k].tensor, slope, want);
        small_finish(&s);
    }
}

/* ---- forms ------------------------------------------------------------------------------- */
static void set_input(small *s, float value) {
    rv_values x = s->batch.input.values;
    for (int b = 0; b < BATCH; b++)
        for (int u = 0; u < IN; u++)
            x.data[b * x.ld + u] = value;
}

static void forms_follow_the_rate_of_the_input(void **state) {
    (void)state;
    static const struct {
        float rate;
        rv_form described, want;
    } cases[] = {{0.1f, RV_FORM_AUTO, RV_FORM_EVENT},
                 {0.6f, RV_FORM_AUTO, RV_FORM_DENSE},
                 {0.6f, RV_FORM_EVENT, RV_FORM_EVENT},
                 {0.1f, RV_FORM_DENSE, RV_FORM_DENSE}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        small s;
        open_net(&s, "rate", "lif", false, NULL, 1);
        s.layers[0].form = cases[k].described;
        rv_serial_destroy(s.serial), s.serial = NULL;
        rv_net_destroy(s.net), s.net = NULL;
        rv_device_close(&s.device);
        small_open(&s, "rate", STEPS, 1, 1, 1);
        set_input(&s, cases[k].rate);
        rv_version *version = rv_serial_version(s.serial);
        OK(rv_net_choose_forms(s.net, &s.device, version, &s.encoder, &s.batch));
        assert_int_equal(rv_net_layer_form(s.net, 0), cases[k].want);
        assert_int_equal(rv_net_layer_form(s.net, 1), RV_FORM_AUTO);
        small_finish(&s);
    }
}

/* Sizes between those of the table take the smaller, those below it the smallest. */
static void form_rate_is_that_of_the_size_not_above(void **state) {
    (void)state;
    const rv_form_rates rates = {{10, 20, 30, 40},
                                 {100, 200, 300, 400},
                                 {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}, {13, 14, 15, 16}}};
    static const struct {
        int in, out;
        double want;
    } cases[] = {{1, 1, 1},     {10, 100, 1},   {19, 250, 2},     {20, 199, 5},
                 {39, 300, 11}, {40, 1000, 16}, {100000, 99, 13}, {5, 400, 4}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        assert_true(rv_form_rate(&rates, cases[k].in, cases[k].out) == cases[k].want);
}

/* What scripts/measure_forms has written is a table that the search above can read. */
static void form_rates_measured_are_rates_of_ascending_sizes(void **state) {
    (void)state;
    const rv_form_rates *const tables[] = {&rv_linear_rates, &rv_conv_rates};
    for (int k = 0; k < 2; k++) {
        for (int i = 1; i < RV_FORM_SIZES; i++)
            assert_true(tables[k]->in[i - 1] < tables[k]->in[i] &&
                        tables[k]->out[i - 1] < tables[k]->out[i]);
        for (int i = 0; i < RV_FORM_SIZES; i++)
            for (int o = 0; o < RV_FORM_SIZES; o++)
                assert_true(tables[k]->rate[i][o] >= 0 && tables[k]->rate[i][o] <= 0.5);
    }
}

/* A silent hidden layer leaves the next map to events, a dense one does not; values stay dense. */
static void forms_follow_the_rate_of_hidden_layers(void **state) {
    (void)state;
    for (int loud = 0; loud < 2; loud++) {
        small s;
        open_net(&s, "constant", "lif", false, NULL, 1);
        rv_version *version = rv_serial_version(s.serial);
        float *block = rv_version_block(version);
        const rv_tensor *bias = rv_net_tensor_find(s.net, "fc1.bias");
        for (int u = 0; u < HIDDEN; u++)
            block[bias->offset + (size_t)u] = loud ? 5.0f : -5.0f;
        OK(rv_version_derive(version, BATCH));
        OK(rv_net_choose_forms(s.net, &s.device, version, &s.encoder, &s.batch));
        assert_int_equal(rv_net_layer_form(s.net, 0), RV_FORM_DENSE);
        assert_int_equal(rv_net_layer_form(s.net, 2), loud ? RV_FORM_DENSE : RV_FORM_EVENT);
        small_finish(&s);
    }
}

static void dense_and_event_forms_agree(void **state) {
    (void)state;
    small a, b;
    rv_step_result ra, rb;
    const float *ga, *gb;
    open_net(&a, "rate", "lif", false, NULL, 1);
    open_net(&b, "rate", "lif", false, NULL, 1);
    b.layers[0].form = b.layers[2].form = b.layers[4].form = RV_FORM_DENSE;
    rv_serial_destroy(b.serial), b.serial = NULL;
    rv_net_destroy(b.net), b.net = NULL;
    rv_device_close(&b.device);
    small_open(&b, "rate", STEPS, 1, 1, 1);
    assert_int_equal(rv_net_layer_form(b.net, 2), RV_FORM_DENSE);
    OK(rv_serial_gradient(a.serial, &a.batch, &ra, &ga));
    OK(rv_serial_gradient(b.serial, &b.batch, &rb, &gb));
    assert_true(fabs(ra.loss - rb.loss) < 1e-6);
    for (size_t k = 0; k < a.net->n_trained; k++)
        assert_true(fabs((double)ga[k] - (double)gb[k]) < 1e-6);
    small_finish(&a);
    small_finish(&b);
}

/* ---- regulariser ------------------------------------------------------------------------- */
static void option(const rv_choice *choice, const char *name, double value) {
    for (const rv_spec *spec = choice->row->specs; spec->name; spec++)
        if (strcmp(spec->name, name) == 0)
            *(double *)(void *)((char *)choice->options + spec->offset) = value;
}

static void open_regularised(small *s, double strength, int chunks, int micro_batches) {
    memset(s, 0, sizeof *s);
    s->net_desc.input = (rv_shape){1, {IN}};
    small_linear(s, "fc1", HIDDEN, true);
    rv_layer_desc *layer = &s->layers[1];
    small_real(&small_neuron(s, "n1", "lif", 0.9)->threshold, 0.4);
    layer->regularizer = small_choice(s, rv_regularizer_table(), "rate");
    option(&layer->regularizer, "upper", 0.05);
    option(&layer->regularizer, "lower", 0.02);
    option(&layer->regularizer, "strength", strength);
    small_linear(s, "fc2", OUT, true);
    small_neuron(s, "n2", "li", 0.8);
    s->loss.readout = RV_READ_MEMBRANE_MEAN;
    small_batch(s, BATCH, 0, OUT, 3);
    small_open(s, "constant", STEPS, chunks, micro_batches, 1);
}

typedef struct counter {
    double count[PARTS][HIDDEN]; /* by micro-batch: rows before and from BATCH/2 on */
} counter;

static rv_status count_units(void *self, const rv_pass *pass) {
    counter *c = self;
    rv_spikes s = rv_tape_signal(pass->tape, 1)->spikes;
    for (int t = 0; t < s.T; t++)
        for (int b = 0; b < s.B; b++)
            for (int u = 0; u < s.n; u++)
                c->count[pass->row > 0][u] +=
                    s.bits[(size_t)t * s.stride_t + (size_t)(b * rv_words(s.n) + u / 32)] >>
                        u % 32 &
                    1u;
    return RV_OK;
}

/* Rates are those of the micro-batch, which weighs by its samples. */
static void penalty_is_the_squared_distance_to_the_range(void **state) {
    (void)state;
    for (int parts = 1; parts <= PARTS; parts++) {
        small a, b;
        rv_step_result ra, rb, evaluated;
        const float *gradient;
        counter seen = {{{0}}};
        double want = 0;
        open_regularised(&a, 2, 3, parts);
        open_regularised(&b, 0, 3, parts);
        rv_observer observer = {&seen, count_units};
        rv_serial_observe(a.serial, &observer);
        OK(rv_serial_gradient(a.serial, &a.batch, &ra, &gradient));
        rv_serial_observe(a.serial, NULL);
        OK(rv_serial_gradient(b.serial, &b.batch, &rb, &gradient));
        for (int m = 0; m < parts; m++) {
            int B = rv_cut(m + 1, parts, BATCH) - rv_cut(m, parts, BATCH);
            for (int u = 0; u < HIDDEN; u++) {
                double rate = seen.count[m][u] / (B * STEPS);
                want +=
                    2 * (pow(fmax(rate - 0.05, 0), 2) + pow(fmax(0.02 - rate, 0), 2)) * B / BATCH;
            }
        }
        assert_true(want > 0.01);
        assert_true(fabs(ra.loss - rb.loss - want) < 1e-9);
        OK(rv_serial_eval(a.serial, &a.batch, &evaluated, NULL, NULL));
        assert_true(fabs(evaluated.loss - rb.loss) < 1e-12); /* evaluation judges without it */
        small_finish(&a);
        small_finish(&b);
    }
}

/* Its slope: what a unit of rate costs reaches the bias through the surrogate, as a loss on the
 * same spikes would. Twice the strength is twice the difference of the gradients. */
static void penalty_gradient_is_linear_in_its_strength(void **state) {
    (void)state;
    for (int parts = 1; parts <= PARTS; parts++) {
        small s[3];
        const float *gradient[3];
        rv_step_result result;
        double most = 0;
        for (int k = 0; k < 3; k++) {
            open_regularised(&s[k], 4 * k, 2, parts);
            OK(rv_serial_gradient(s[k].serial, &s[k].batch, &result, &gradient[k]));
        }
        for (size_t i = 0; i < s[0].net->n_trained; i++) {
            double one = (double)gradient[1][i] - (double)gradient[0][i];
            double two = (double)gradient[2][i] - (double)gradient[0][i];
            most = fmax(most, fabs(one));
            assert_true(fabs(two - 2 * one) < 1e-5);
        }
        assert_true(most > 1e-3);
        for (int k = 0; k < 3; k++)
            small_finish(&s[k]);
    }
}

static void strong_penalty_brings_the_rates_into_the_range(void **state) {
    (void)state;
    small s;
    rv_step_result result;
    int64_t before[4] = {0}, after[4] = {0};
    open_regularised(&s, 100, 2, 2);
    OK(rv_serial_eval(s.serial, &s.batch, &result, before, NULL));
    for (int step = 0; step < 300; step++)
        OK(rv_serial_step(s.serial, &s.batch, &result));
    OK(rv_serial_eval(s.serial, &s.batch, &result, after, NULL));
    double places = BATCH * STEPS * HIDDEN;
    assert_true((double)before[1] / places > 0.1);
    assert_true((double)after[1] / places < 0.06 && (double)after[1] / places > 0.015);
    small_finish(&s);
}

static void regulariser_gives_the_same_bits_for_every_chunk_count(void **state) {
    (void)state;
    small a, b;
    rv_step_result ra, rb;
    const float *ga, *gb;
    open_regularised(&a, 2, 1, 1);
    OK(rv_serial_gradient(a.serial, &a.batch, &ra, &ga));
    for (int chunks = 2; chunks <= STEPS; chunks++) {
        open_regularised(&b, 2, chunks, 1);
        OK(rv_serial_gradient(b.serial, &b.batch, &rb, &gb));
        assert_true(ra.loss == rb.loss);
        assert_memory_equal(ga, gb, sizeof *ga * a.net->n_trained);
        small_finish(&b);
    }
    small_finish(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_give_the_bits_of_the_whole),
        cmocka_unit_test(map_alone_on_a_held_input_sums_over_time),
        cmocka_unit_test(chunks_give_the_same_bits_for_every_neuron),
        cmocka_unit_test(recurrence_is_off_with_zero_weights_and_on_with_others),
        cmocka_unit_test(decay_gradient_follows_what_is_stored),
        cmocka_unit_test(forms_follow_the_rate_of_the_input),
        cmocka_unit_test(form_rate_is_that_of_the_size_not_above),
        cmocka_unit_test(form_rates_measured_are_rates_of_ascending_sizes),
        cmocka_unit_test(forms_follow_the_rate_of_hidden_layers),
        cmocka_unit_test(dense_and_event_forms_agree),
        cmocka_unit_test(penalty_is_the_squared_distance_to_the_range),
        cmocka_unit_test(penalty_gradient_is_linear_in_its_strength),
        cmocka_unit_test(strong_penalty_brings_the_rates_into_the_range),
        cmocka_unit_test(regulariser_gives_the_same_bits_for_every_chunk_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
