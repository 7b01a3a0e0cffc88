/*
 * The layers besides linear and neurons, as parts of networks: gradients of a graph with every
 * smooth one against finite differences, the same bits under chunks and threads, running
 * statistics, equivalences between layers, messages, and that convolution nets learn.
 */
#include "tests/small.h"

enum { CLASSES = 4, BATCH = 6, STEPS = 7 };

/* Layer `kind` with default options; from: one or two names, NULL: the layer before. */
static void *layer(small *s, const char *name, const char *kind, const char *a, const char *b) {
    rv_layer_desc *desc = small_layer(s, name, small_choice(s, rv_layer_table(), kind));
    desc->from[0] = a, desc->from[1] = b;
    desc->from_count = (a != NULL) + (b != NULL);
    return desc->options;
}
static void conv(small *s, const char *name, const char *from, int channels, int kernel,
                 int padding) {
    rv_conv_options *o = layer(s, name, "conv2d", from, NULL);
    o->out_channels = channels;
    o->kernel_size[0] = o->kernel_size[1] = kernel;
    o->padding[0] = o->padding[1] = padding;
}
static void reals(small *s, rv_reals *to, int count, double first, double step) {
    to->count = count;
    to->data = small_memory(s, (size_t)count, sizeof(float));
    for (int k = 0; k < count; k++)
        to->data[k] = (float)(first + step * k);
    to->value = to->data[0];
}

static float *block_of(small *s) {
    return rv_version_block(rv_serial_version(s->serial));
}
static void derive(small *s) {
    OK(rv_version_derive(rv_serial_version(s->serial), s->train.batch));
}
static float *tensor(small *s, float *block, const char *name) {
    const rv_tensor *t = rv_net_tensor_find(s->net, name);
    if (!t) fail_msg("no tensor %s", name);
    return block + t->offset;
}

/* ---- a graph of every smooth layer -------------------------------------------------------- */
/*
 * input [2,6,6] - stem - norm - scale - late --+-- pool - narrow --+-- join (concat) - mix - drop -
 *                   |                          |                   |
 *                   +----------- side ------- sum - pooled --------+     full (covers the plane) -
 * li
 */
static void graph(small *s, const char *pool_kind, bool sequence) {
    s->net_desc.input = (rv_shape){3, {2, 6, 6}};
    conv(s, "stem", NULL, 3, 3, 1);
    rv_norm_options *norm = layer(s, "norm", "batch_norm", NULL, NULL);
    norm->statistics = sequence;
    rv_scale_options *scale = layer(s, "scale", "scale", NULL, NULL);
    reals(s, &scale->factor, 3, 0.7, 0.4);
    rv_delay_options *late = layer(s, "late", "delay", NULL, NULL);
    reals(s, &late->delay, 3, 0.3, 1.1);
    late->max_delay = 4, late->learnable = true;
    rv_pool_options *pool = layer(s, "pool", pool_kind, "late", NULL);
    pool->kernel_size[0] = pool->kernel_size[1] = 2;
    conv(s, "narrow", "pool", 2, 1, 0);
    conv(s, "side", "stem", 3, 1, 0);
    layer(s, "sum", "add", "side", "late");
    rv_pool_options *pooled = layer(s, "pooled", "avg_pool", "sum", NULL);
    pooled->kernel_size[0] = pooled->kernel_size[1] = 3;
    pooled->stride[0] = pooled->stride[1] = 2;
    pooled->padding[0] = pooled->padding[1] = 1;
    layer(s, "join", "concat", "narrow", "pooled");
    conv(s, "mix", "join", 4, 3, 1);
    rv_dropout_options *drop = layer(s, "drop", "dropout", NULL, NULL);
    drop->p = 0.25;
    conv(s, "full", NULL, CLASSES, 3, 0);
    small_neuron(s, "li", "li", 0.8);
    s->loss.readout = RV_READ_MEMBRANE_MEAN;
}

static void open_graph(small *s, const char *pool_kind, const char *encoder, bool frames,
                       bool sequence, int chunks, int threads) {
    graph(s, pool_kind, sequence);
    small_batch(s, BATCH, frames ? STEPS : 0, CLASSES, 3);
    small_open(s, encoder, STEPS, chunks, 1, threads);
}

static double loss_at(small *s, float *variable, float value, const float **gradient) {
    rv_step_result result;
    float before = *variable;
    *variable = value;
    derive(s);
    OK(rv_serial_gradient(s->serial, &s->batch, &result, gradient));
    *variable = before;
    return result.loss;
}

/* A few entries of every trained tensor; the limit is relative to the tensor's largest. */
static void check_differences(const char *encoder, bool frames, bool sequence) {
    const float h = 4e-3f;
    small s = {0};
    const float *unused, *now;
    rv_step_result result;
    open_graph(&s, "sum_pool", encoder, frames, sequence, sequence ? 1 : 2, 1);
    float *block = block_of(&s);
    OK(rv_serial_gradient(s.serial, &s.batch, &result, &now));
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    memcpy(gradient, now, s.net->n_trained * sizeof *gradient);
    for (int k = 0; k < s.net->tensor_count && s.net->tensors[k].trained; k++) {
        const rv_tensor *t = &s.net->tensors[k];
        size_t n = rv_tensor_elements(t), stride = n / 5 + 1;
        double most = 0;
        for (size_t i = 0; i < n; i++)
            most = fmax(most, fabs((double)gradient[t->offset + i]));
        if (most == 0) fail_msg("%s has no gradient", t->name);
        /* A constant before batch norm has none but rounding. */
        if (strcmp(t->name, "stem.bias") == 0) most = fmax(most, 0.05);
        for (size_t i = 0; i < n; i += stride) {
            float *at = block + t->offset + i, value = *at;
            double above = loss_at(&s, at, value + h, &unused);
            double below = loss_at(&s, at, value - h, &unused);
            double want = (above - below) / ((double)(value + h) - (double)(value - h));
            double got = (double)gradient[t->offset + i];
            if (!(fabs(got - want) <= 5e-3 * most))
                fail_msg("%s[%zu]: %g, differences give %g (largest %g)", t->name, i, got, want,
                         most);
        }
    }
    small_finish(&s);
}

static void graph_of_frames_agrees_with_finite_differences(void **state) {
    (void)state;
    check_differences("constant", true, false);
}
static void graph_of_a_held_input_agrees_with_finite_differences(void **state) {
    (void)state;
    check_differences("constant", false, false);
}
static void graph_of_spikes_agrees_with_finite_differences(void **state) {
    (void)state;
    check_differences("rate", false, false);
}
static void graph_with_sequence_statistics_agrees_with_finite_differences(void **state) {
    (void)state;
    check_differences("constant", true, true);
}

static float *graph_gradient(const char *encoder, bool frames, int chunks, int threads, size_t *n,
                             double *loss) {
    small s = {0};
    rv_step_result result;
    const float *gradient;
    open_graph(&s, "max_pool", encoder, frames, false, chunks, threads);
    OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
    *n = s.net->n_trained, *loss = result.loss;
    float *copy = malloc(*n * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, gradient, *n * sizeof *copy);
    small_finish(&s);
    return copy;
}

static void graph_under_chunks_and_threads_gives_the_same_bits(void **state) {
    (void)state;
    static const struct {
        const char *encoder;
        bool frames;
    } inputs[] = {{"constant", true}, {"constant", false}, {"rate", false}};
    static const int runs[][2] = {{1, 2}, {2, 1}, {3, 2}, {STEPS, 1}};
    for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++) {
        size_t n, m;
        double loss, other;
        float *want = graph_gradient(inputs[k].encoder, inputs[k].frames, 1, 1, &n, &loss);
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
            float *got = graph_gradient(inputs[k].encoder, inputs[k].frames, runs[r][0], runs[r][1],
                                        &m, &other);
            assert_true(n == m && loss == other);
            assert_memory_equal(want, got, n * sizeof *got);
            free(got);
        }
        free(want);
    }
}

/* ---- batch norm -------------------------------------------------------------------------- */
/* Norm straight on the input: what the running statistics become can be told from the batch. */
static void running_statistics_move_by_micro_batch_then_step(void **state) {
    (void)state;
    for (int held = 0; held < 2; held++)
        for (int sequence = 0; sequence < 2; sequence++) {
            small s = {0};
            rv_step_result result;
            s.net_desc.input = (rv_shape){3, {CLASSES, 1, 3}};
            rv_norm_options *norm = layer(&s, "norm", "batch_norm", NULL, NULL);
            norm->statistics = sequence, norm->momentum = 0.3;
            rv_pool_options *pool = layer(&s, "pool", "sum_pool", NULL, NULL);
            pool->kernel_size[0] = 1, pool->kernel_size[1] = 3;
            small_neuron(&s, "li", "li", 0.8);
            s.loss.readout = RV_READ_MEMBRANE_MEAN;
            small_batch(&s, 5, held ? 0 : STEPS, CLASSES, 3);
            small_open(&s, "constant", STEPS, sequence ? 1 : 2, 2, 1);
            OK(rv_serial_eval(s.serial, &s.batch, &result, NULL, NULL));
            double before = result.loss;
            OK(rv_serial_step(s.serial, &s.batch, &result));
            rv_values x = s.batch.input.values;
            for (int c = 0; c < CLASSES; c++) {
                double mean = 0, var = 1;
                for (int m = 0; m < 2; m++)
                    for (int t = 0; t < (sequence ? 1 : STEPS); t++) {
                        int row0 = rv_cut(m, 2, 5), row1 = rv_cut(m + 1, 2, 5), n = 0;
                        double sum = 0, squares = 0;
                        for (int i = t; i < (sequence && !held ? STEPS : t + 1); i++)
                            for (int b = row0; b < row1; b++)
                                for (int u = 3 * c; u < 3 * c + 3; u++, n++) {
                                    double v =
                                        (double)
                                            x.data[(size_t)i * x.stride_t + (size_t)(b * x.ld + u)];
                                    sum += v, squares += v * v;
                                }
                        double average = sum / n;
                        mean = 0.7 * mean + 0.3 * average;
                        var = 0.7 * var + 0.3 * (squares - n * average * average) / (n - 1);
                    }
                assert_true(fabs((double)tensor(&s, block_of(&s), "norm.running_mean")[c] - mean) <
                            1e-6);
                assert_true(fabs((double)tensor(&s, block_of(&s), "norm.running_var")[c] - var) <
                            1e-6);
            }
            OK(rv_serial_eval(s.serial, &s.batch, &result, NULL, NULL));
            assert_true(result.loss != before); /* they are what evaluation uses */
            small_finish(&s);
        }
}

static void sequence_statistics_with_chunks_are_refused(void **state) {
    (void)state;
    small s = {0};
    s.net_desc.input = (rv_shape){1, {CLASSES}};
    rv_norm_options *norm = layer(&s, "norm", "batch_norm", NULL, NULL);
    norm->statistics = 1;
    s.loss.readout = RV_READ_MEMBRANE_MEAN;
    small_batch(&s, BATCH, STEPS, CLASSES, 3);
    small_open(&s, "constant", STEPS, 1, 1, 1);
    rv_serial *serial = NULL;
    s.train.chunks = 2;
    rv_serial_desc desc = {s.net, &s.device, &s.encoder, &s.loss, &s.train, 100};
    assert_int_equal(rv_serial_create(&desc, &serial), RV_CONFIG);
    assert_int_equal(rv_error_get()->line, 1);
    assert_non_null(strstr(rv_error_get()->message, "norm"));
    small_finish(&s);
}

/* ---- equivalences ------------------------------------------------------------------------ */
typedef struct outcome {
    double loss;
    float gradient[4096];
    size_t n;
} outcome;
static void gradient_of(small *s, const char *encoder, int chunks, outcome *o) {
    rv_step_result result;
    const float *gradient;
    small_open(s, encoder, STEPS, chunks, 1, 1);
    OK(rv_serial_gradient(s->serial, &s->batch, &result, &gradient));
    o->loss = result.loss, o->n = s->net->n_trained;
    assert_true(o->n <= sizeof o->gradient / sizeof *gradient);
    memcpy(o->gradient, gradient, o->n * sizeof *gradient);
}

/* A neuron without memory is a threshold. */
static void threshold_equals_a_neuron_that_forgets(void **state) {
    (void)state;
    outcome got[2];
    for (int k = 0; k < 2; k++) {
        small s = {0};
        s.net_desc.input = (rv_shape){1, {20}};
        small_linear(&s, "in", 30, true);
        if (k == 0) {
            rv_neuron_options *o = small_neuron(&s, "fire", "lif", 0.0);
            small_real(&o->threshold, 0.2);
        } else {
            rv_threshold_options *o = layer(&s, "fire", "threshold", NULL, NULL);
            small_real(&o->threshold, 0.2);
        }
        small_linear(&s, "out", CLASSES, true);
        small_neuron(&s, "li", "li", 0.8);
        s.loss.readout = RV_READ_MEMBRANE_MEAN;
        small_batch(&s, BATCH, STEPS, CLASSES, 3);
        gradient_of(&s, "constant", 2, &got[k]);
        small_finish(&s);
    }
    assert_true(got[0].loss == got[1].loss);
    double most = 0;
    for (size_t i = 0; i < got[0].n; i++)
        most = fmax(most, fabs((double)got[0].gradient[i]));
    assert_true(most > 1e-3);
    for (size_t i = 0; i < got[0].n; i++)
        assert_true(fabs((double)got[0].gradient[i] - (double)got[1].gradient[i]) < 1e-6 * most);
}

/* A row of units through conv1d is planes of one row through conv2d. */
static void conv1d_equals_conv2d_of_one_row(void **state) {
    (void)state;
    outcome got[2];
    for (int k = 0; k < 2; k++) {
        small s = {0};
        if (k == 0) {
            s.net_desc.input = (rv_shape){1, {23}};
        } else {
            s.net_desc.input = (rv_shape){3, {1, 1, 23}};
        }
        rv_conv_options *o = layer(&s, "conv", k ? "conv2d" : "conv1d", NULL, NULL);
        o->out_channels = 6;
        o->kernel_size[1] = 5, o->stride[1] = 2, o->padding[1] = 1, o->dilation[1] = 2;
        if (k == 1) o->kernel_size[0] = 1, o->stride[0] = 1, o->padding[0] = 0, o->dilation[0] = 1;
        layer(&s, "flat", "flatten", NULL, NULL);
        small_linear(&s, "out", CLASSES, true);
        small_neuron(&s, "li", "li", 0.8);
        s.loss.readout = RV_READ_MEMBRANE_MEAN;
        small_batch(&s, BATCH, STEPS, CLASSES, 3);
        gradient_of(&s, "constant", 2, &got[k]);
        const rv_tensor *weight = rv_net_tensor_find(s.net, "conv.weight");
        assert_int_equal(weight->rank, k ? 4 : 3);
        assert_int_equal(weight->dim[weight->rank - 1], 5);
        small_finish(&s);
    }
    assert_true(got[0].loss == got[1].loss && got[0].n == got[1].n);
    assert_memory_equal(got[0].gradient, got[1].gradient, got[0].n * sizeof(float));
}

/* Delayed frames are frames shifted. */
static void delay_of_whole_steps_shifts_the_frames(void **state) {
    (void)state;
    outcome got[2];
    for (int k = 0; k < 2; k++) {
        small s = {0};
        s.net_desc.input = (rv_shape){1, {20}};
        if (k == 0) {
            rv_delay_options *late = layer(&s, "late", "delay", NULL, NULL);
            late->steps = 2;
        }
        small_linear(&s, "out", CLASSES, true);
        small_neuron(&s, "li", "li", 0.8);
        s.loss.readout = RV_READ_MEMBRANE_MEAN;
        small_batch(&s, BATCH, STEPS, CLASSES, 3);
        rv_values x = s.batch.input.values;
        for (int t = STEPS - 1; k == 1 && t >= 0; t--) {
            float *to = x.data + (size_t)t * x.stride_t;
            if (t >= 2)
                memcpy(to, to - 2 * x.stride_t, x.stride_t * sizeof *to);
            else
                memset(to, 0, x.stride_t * sizeof *to);
        }
        s.net_desc.seed = 5;
        small_open(&s, "constant", STEPS, 3, 1, 1);
        float *block = block_of(&s); /* initial values are keyed by the layer's index */
        for (size_t i = 0; i < s.net->n_trained; i++)
            block[i] = (float)small_random(9, i) - 0.5f;
        derive(&s);
        rv_step_result result;
        const float *gradient;
        OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
        got[k].loss = result.loss, got[k].n = s.net->n_trained;
        memcpy(got[k].gradient, gradient, got[k].n * sizeof *gradient);
        small_finish(&s);
    }
    assert_true(got[0].loss == got[1].loss && got[0].n == got[1].n);
    assert_memory_equal(got[0].gradient, got[1].gradient, got[0].n * sizeof(float));
}

/* Off in evaluation; in training the mean over many units is kept. */
static void dropout_in_evaluation_is_the_identity(void **state) {
    (void)state;
    double loss[2][2];
    for (int k = 0; k < 2; k++) {
        small s = {0};
        rv_step_result result;
        const float *gradient;
        s.net_desc.input = (rv_shape){1, {CLASSES}};
        rv_dropout_options *drop = layer(&s, "drop", "dropout", NULL, NULL);
        drop->p = k ? 0.5 : 0.0;
        small_neuron(&s, "li", "li", 0.8);
        s.loss.readout = RV_READ_MEMBRANE_MEAN;
        small_batch(&s, BATCH, STEPS, CLASSES, 3);
        small_open(&s, "constant", STEPS, 2, 1, 1);
        OK(rv_serial_eval(s.serial, &s.batch, &result, NULL, NULL));
        loss[k][0] = result.loss;
        OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
        loss[k][1] = result.loss;
        small_finish(&s);
    }
    assert_true(loss[0][0] == loss[1][0] && loss[0][0] == loss[0][1]);
    assert_true(loss[1][1] != loss[1][0]);
}

/* ---- messages ---------------------------------------------------------------------------- */
static void expect_refusal(small *s, int line, const char *const *words) {
    rv_net *net = NULL;
    s->net_desc.steps = STEPS;
    assert_int_equal(rv_net_create(&s->net_desc, &net), RV_CONFIG);
    assert_int_equal(rv_error_get()->line, line);
    assert_int_equal(rv_error_get()->column, 3);
    for (; *words; words++)
        if (!strstr(rv_error_get()->message, *words))
            fail_msg("\"%s\" not in: %s", *words, rv_error_get()->message);
    small_finish(s);
}
#define REFUSED(s, line, ...) expect_refusal(s, line, (const char *const[]){__VA_ARGS__, NULL})

static void shapes_that_do_not_fit_are_named_with_their_place(void **state) {
    (void)state;
    small s = {0};
    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    conv(&s, "a", NULL, 3, 3, 1);
    conv(&s, "b", "a", 3, 3, 0);
    layer(&s, "sum", "add", "a", "b");
    REFUSED(&s, 3, "\"sum\"", "\"a\"", "\"b\"", "[3, 6, 6]", "[3, 4, 4]");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    conv(&s, "a", NULL, 3, 3, 1);
    conv(&s, "b", "a", 3, 3, 0);
    layer(&s, "both", "concat", "a", "b");
    REFUSED(&s, 3, "\"both\"", "\"a\"", "\"b\"", "[3, 6, 6]", "[3, 4, 4]");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    conv(&s, "wide", NULL, 3, 9, 1);
    REFUSED(&s, 1, "\"wide\"", "at least 7", "[2, 6, 6]");

    s.net_desc.input = (rv_shape){1, {6}};
    conv(&s, "flat", NULL, 3, 3, 1);
    REFUSED(&s, 1, "\"flat\"", "[channels, height, width]", "[6]");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    conv(&s, "parts", NULL, 4, 3, 1);
    ((rv_conv_options *)s.layers[0].options)->groups = 4;
    REFUSED(&s, 1, "\"parts\"", "groups 4", "[2, 6, 6]");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    layer(&s, "alone", "add", "input", NULL);
    REFUSED(&s, 1, "\"alone\"", "two inputs");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    rv_pool_options *pool = layer(&s, "pool", "max_pool", NULL, NULL);
    pool->kernel_size[0] = pool->kernel_size[1] = 2, pool->padding[1] = 2;
    REFUSED(&s, 1, "\"pool\"", "padding");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    rv_delay_options *late = layer(&s, "late", "delay", NULL, NULL);
    reals(&s, &late->delay, 3, 1, 1);
    REFUSED(&s, 1, "\"late\"", "2 channels", "3 values");

    s.net_desc.input = (rv_shape){3, {2, 6, 6}};
    rv_scale_options *scale = layer(&s, "scale", "scale", NULL, NULL);
    reals(&s, &scale->factor, 5, 1, 1);
    REFUSED(&s, 1, "\"scale\"", "5 values");

    s.net_desc.input = (rv_shape){1, {6}};
    small_linear(&s, "in", 6, true);
    small_neuron(&s, "lif", "lif", 0.9);
    layer(&s, "norm", "batch_norm", NULL, NULL);
    REFUSED(&s, 3, "\"norm\"", "takes values", "\"lif\"", "spikes");
}

/* Padding has no synapses: 3x3 over 4x4 with padding 1 reaches 100 of its 144 taps. */
static void targets_of_a_convolution_leave_the_padding_out(void **state) {
    (void)state;
    small s = {0};
    s.net_desc.input = (rv_shape){3, {2, 4, 4}};
    s.net_desc.steps = 1;
    conv(&s, "a", NULL, 5, 3, 1);
    OK(rv_net_create(&s.net_desc, &s.net));
    assert_int_equal(rv_net_layer_targets(s.net, 0), 100 * 2 * 5);
    small_finish(&s);
}

/* ---- learning ---------------------------------------------------------------------------- */
/* Class k: a bright bar in row k of a noisy image. */
static void bars(small *s, int side) {
    int32_t *label = (int32_t *)(uintptr_t)s->batch.label;
    rv_values x = s->batch.input.values;
    for (int b = 0; b < s->batch.B; b++) {
        label[b] = b % CLASSES;
        for (int c = 0; c < side; c++)
            x.data[b * x.ld + label[b] * side + c] += 1.0f;
    }
}

static void train(small *s, const char *encoder, int side, int updates, double reach) {
    rv_step_result first, last, held_out;
    s->train.optimizer = small_choice(s, rv_optimizer_table(), "adam");
    *(double *)((char *)s->train.optimizer.options +
                rv_table_find(rv_optimizer_table(), "adam")->specs[0].offset) = 0.01;
    small_batch(s, 24, 0, CLASSES, 3);
    bars(s, side);
    small_open(s, encoder, STEPS, 2, 2, 1);
    OK(rv_serial_step(s->serial, &s->batch, &first));
    for (int k = 1; k < updates; k++)
        OK(rv_serial_step(s->serial, &s->batch, &last));
    OK(rv_serial_eval(s->serial, &s->batch, &held_out, NULL, NULL));
    if (!(last.loss < 0.5 * first.loss) || held_out.correct < reach * s->batch.B)
        fail_msg("loss %g to %g, %d of %d right", first.loss, last.loss, (int)held_out.correct,
                 s->batch.B);
    small_finish(s);
}

static void convolution_net_learns_bars(void **state) {
    (void)state;
    small s = {0};
    s.net_desc.input = (rv_shape){3, {1, 6, 6}};
    conv(&s, "conv1", NULL, 8, 3, 1);
    small_neuron(&s, "lif1", "lif", 0.9);
    rv_pool_options *pool = layer(&s, "pool", "avg_pool", NULL, NULL);
    pool->kernel_size[0] = pool->kernel_size[1] = 2;
    conv(&s, "conv2", NULL, 16, 3, 1);
    small_neuron(&s, "lif2", "lif", 0.9);
    layer(&s, "flat", "flatten", NULL, NULL);
    small_linear(&s, "fc", CLASSES, true);
    small_neuron(&s, "out", "lif", 0.9);
    train(&s, "constant", 6, 60, 0.95);
}

static void residual_net_with_batch_norm_learns_bars(void **state) {
    (void)state;
    small s = {0};
    s.net_desc.input = (rv_shape){3, {1, 6, 6}};
    conv(&s, "stem", NULL, 8, 3, 1);
    layer(&s, "norm0", "batch_norm", NULL, NULL);
    small_neuron(&s, "lif0", "lif", 0.8);
    conv(&s, "conv1", NULL, 8, 3, 1);
    layer(&s, "norm1", "batch_norm", NULL, NULL);
    small_neuron(&s, "lif1", "lif", 0.8);
    layer(&s, "sum", "add", "lif1", "lif0");
    layer(&s, "flat", "flatten", NULL, NULL);
    small_linear(&s, "fc", CLASSES, true);
    small_neuron(&s, "out", "lif", 0.9);
    train(&s, "rate", 6, 150, 0.9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_of_frames_agrees_with_finite_differences),
        cmocka_unit_test(graph_of_a_held_input_agrees_with_finite_differences),
        cmocka_unit_test(graph_of_spikes_agrees_with_finite_differences),
        cmocka_unit_test(graph_with_sequence_statistics_agrees_with_finite_differences),
        cmocka_unit_test(graph_under_chunks_and_threads_gives_the_same_bits),
        cmocka_unit_test(running_statistics_move_by_micro_batch_then_step),
        cmocka_unit_test(sequence_statistics_with_chunks_are_refused),
        cmocka_unit_test(threshold_equals_a_neuron_that_forgets),
        cmocka_unit_test(conv1d_equals_conv2d_of_one_row),
        cmocka_unit_test(delay_of_whole_steps_shifts_the_frames),
        cmocka_unit_test(dropout_in_evaluation_is_the_identity),
        cmocka_unit_test(shapes_that_do_not_fit_are_named_with_their_place),
        cmocka_unit_test(targets_of_a_convolution_leave_the_padding_out),
        cmocka_unit_test(convolution_net_learns_bars),
        cmocka_unit_test(residual_net_with_batch_norm_learns_bars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
