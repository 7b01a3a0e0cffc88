/*
 * A backward pass under other weights than its forward. What multiplies or moves the adjoint on its
 * way back is taken from the other version: with its weights doubled, gradients of what comes
 * before double to the bit, those of what comes after stay. Slopes, membranes and a layer's own
 * gradient belong to what forward saw.
 */
#include "snn/layer.h"
#include "tests/small.h"

enum { IN = 18, HIDDEN = 20, OUT = 5, BATCH = 6, STEPS = 7, CHUNKS = 2 };

typedef enum effect { SAME, TWICE, OTHER } effect;
static const char *const effects[] = {"the same", "twice", "other"};

/* A tensor multiplied by `factor`; what becomes of the gradients of layers before, and its own. */
static const struct {
    const char *tensor;
    float factor;
    effect before, own;
} cases[] = {
    {"conv1.weight", 2.0f, SAME, SAME},  {"norm.weight", 2.0f, TWICE, SAME},
    {"norm.bias", 2.0f, SAME, SAME},     {"scaled.factor", 2.0f, TWICE, SAME},
    {"late.delay", 1.25f, OTHER, SAME},  {"n1.beta", 0.5f, OTHER, OTHER},
    {"n1.threshold", 2.0f, SAME, SAME},  {"n1.recurrent_weight", 2.0f, OTHER, OTHER},
    {"conv2.weight", 2.0f, TWICE, SAME}, {"n2.alpha", 0.5f, OTHER, OTHER},
    {"fc.weight", 2.0f, TWICE, SAME},    {"last.beta", 0.5f, OTHER, OTHER},
};
enum { CASES = sizeof cases / sizeof *cases };

static rv_layer_desc *layer_of(small *s, const char *name, const char *kind) {
    return small_layer(s, name, small_choice(s, rv_layer_table(), kind));
}

static void conv_of(small *s, const char *name) {
    *(rv_conv_options *)layer_of(s, name, "conv2d")->options =
        (rv_conv_options){3, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true};
}

/* Every kind whose backward has weights. */
static void open_net(small *s) {
    memset(s, 0, sizeof *s);
    s->net_desc.input = (rv_shape){3, {2, 4, 4}};
    s->net_desc.seed = 5;
    conv_of(s, "conv1");
    layer_of(s, "norm", "batch_norm");
    small_real(&((rv_scale_options *)layer_of(s, "scaled", "scale")->options)->factor, 1.5);
    rv_delay_options *delay = layer_of(s, "late", "delay")->options;
    small_real(&delay->delay, 1.25);
    delay->max_delay = 3, delay->learnable = true;
    rv_neuron_options *options = small_neuron(s, "n1", "lif", 0.9);
    options->recurrent = true;
    options->learn = (char *)(uintptr_t) "beta threshold";
    small_real(&options->threshold, 0.4);
    conv_of(s, "conv2");
    options = small_neuron(s, "n2", "cuba", 0.8);
    options->learn = (char *)(uintptr_t) "alpha";
    small_real(&options->threshold, 0.3);
    small_real(&options->alpha, 0.5);
    layer_of(s, "flat", "flatten");
    small_linear(s, "fc", OUT, true);
    small_neuron(s, "last", "li", 0.8)->learn = (char *)(uintptr_t) "beta";
    s->loss.readout = RV_READ_MEMBRANE_MEAN;
    small_batch(s, BATCH, 0, OUT, 3);
    small_open(s, "rate", STEPS, CHUNKS, 1, 1);
}

/* Gradients of one micro-batch: forward under the trainer's weights, backward under `back`. */
static float *gradient_of(small *s, const rv_version *back) {
    float *gradient = small_memory(s, s->net->n_trained, sizeof *gradient);
    rv_state *state = NULL, *adjoint = NULL;
    rv_tape *tape[CHUNKS];
    rv_loss *loss = NULL;
    rv_loss_result result;
    rv_arena arena = {0};
    rv_pass pass[CHUNKS];
    OK(rv_state_create(s->net, &s->device, BATCH, &state));
    OK(rv_state_create(s->net, &s->device, BATCH, &adjoint));
    OK(rv_loss_create(&s->loss, s->net, &s->device, BATCH, &loss));
    for (int c = 0; c < CHUNKS; c++) {
        OK(rv_tape_create(s->net, &s->device, STEPS, BATCH, &tape[c]));
        pass[c] = (rv_pass){.net = s->net,
                            .device = &s->device,
                            .arena = &arena,
                            .last = s->net->layer_count,
                            .version = rv_serial_version(s->serial),
                            .back = back,
                            .state = state,
                            .adjoint = adjoint,
                            .tape = tape[c],
                            .gradient = gradient,
                            .B = BATCH,
                            .t0 = rv_cut(c, CHUNKS, STEPS),
                            .t1 = rv_cut(c + 1, CHUNKS, STEPS),
                            .chunk = c,
                            .chunks = CHUNKS,
                            .batch = &s->batch,
                            .training = true};
        rv_signal *input = rv_tape_signal(tape[c], -1);
        *input = rv_tape_memory(tape[c], -1, pass[c].t1 - pass[c].t0, BATCH);
        OK(rv_encode(&s->encoder, &s->device, NULL, &s->batch, 0, BATCH, s->net_desc.seed,
                     pass[c].t0, pass[c].t1, &arena, input));
        OK(rv_net_forward(&pass[c]));
        OK(rv_loss_observe(loss, &pass[c]));
        rv_arena_reset(&arena);
    }
    OK(rv_loss_finish(loss, &pass[CHUNKS - 1], BATCH, &result, NULL));
    for (int c = CHUNKS - 1; c >= 0; c--) {
        OK(rv_loss_adjoint(loss, &pass[c]));
        OK(rv_net_backward(&pass[c]));
        OK(rv_net_weight(&pass[c]));
        rv_arena_reset(&arena);
    }
    rv_loss_destroy(loss);
    for (int c = 0; c < CHUNKS; c++)
        rv_tape_destroy(tape[c]);
    rv_state_destroy(adjoint);
    rv_state_destroy(state);
    rv_arena_finish(&arena);
    return gradient;
}

static effect effect_on(const rv_tensor *tensor, const float *plain, const float *got) {
    size_t at = tensor->offset, bytes = tensor->count * sizeof *got;
    if (memcmp(plain + at, got + at, bytes) == 0) return SAME;
    for (size_t i = at; i < at + tensor->count; i++)
        if (got[i] != 2 * plain[i]) return OTHER;
    return TWICE;
}

static void back_weights_carry_the_adjoint_and_nothing_else(void **state) {
    small s;
    (void)state;
    open_net(&s);
    const rv_version *version = rv_serial_version(s.serial);
    const float *plain = gradient_of(&s, NULL);
    rv_version *back = NULL;
    OK(rv_version_create(s.net, &s.device, &back));
    for (int k = 0; k < CASES; k++) {
        float *block = rv_version_block(back);
        const rv_tensor *changed = rv_net_tensor_find(s.net, cases[k].tensor);
        if (!changed) fail_msg("no tensor %s", cases[k].tensor);
        memcpy(block, rv_version_block((rv_version *)version), sizeof *block * s.net->n_all);
        for (size_t i = 0; i < changed->count; i++)
            block[changed->offset + i] *= cases[k].factor;
        OK(rv_version_derive(back, BATCH));
        const float *got = gradient_of(&s, back);
        for (int j = 0; j < s.net->tensor_count && s.net->tensors[j].trained; j++) {
            const rv_tensor *tensor = &s.net->tensors[j];
            effect is = effect_on(tensor, plain, got), want = SAME;
            if (tensor->layer < changed->layer) want = cases[k].before;
            if (tensor == changed) want = cases[k].own;
            if (tensor->layer == changed->layer && tensor != changed) continue;
            if (is != want)
                fail_msg("%s times %g: gradient of %s is %s, not %s", changed->name,
                         (double)cases[k].factor, tensor->name, effects[is], effects[want]);
        }
    }
    rv_version_destroy(back);
    small_finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_weights_carry_the_adjoint_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
