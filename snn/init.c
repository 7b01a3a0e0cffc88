/*
 * Initial values of maps: a table of distributions over Philox numbers. A row says how wide; the
 * numbers are the same for all rows of a shape.
 */
#include <math.h>

#include "snn/layer.h"

typedef struct init_options {
    double gain, std, rate, sigma;
} init_options;

/* What a distribution may depend on. */
typedef struct init_context {
    const rv_net *net;
    const rv_layer *layer;
    const init_options *options;
    double fan_in, fan_out;
    bool bias, recurrent;
} init_context;

typedef struct init_row {
    rv_row head;
    bool normal;
    /* Half width of the uniform or deviation of the normal distribution, both around 0. */
    double (*scale)(const init_context *c);
} init_row;

/* kaiming_uniform_ with a = sqrt(5), which is 1/sqrt(fan_in), and the same bound for the bias. */
static double pytorch_scale(const init_context *c) {
    return c->options->gain / sqrt(c->fan_in);
}

/* Keeps the variance of a layer's outputs where half of the inputs are cut off. */
static double kaiming_scale(const init_context *c) {
    return c->bias ? 0 : c->options->gain / sqrt(c->fan_in);
}

/* A compromise between the variance of outputs and of gradients. */
static double xavier_scale(const init_context *c) {
    return c->bias ? 0 : c->options->gain * sqrt(6 / (c->fan_in + c->fan_out));
}

/* The deviation as given, whatever the fan. */
static double normal_scale(const init_context *c) {
    return c->bias ? 0 : c->options->std;
}

/* Inputs of rate nu per step and weights of mean 0 give the membrane the variance
 * n nu var(w) sum_k kappa_k^2, kappa the response to one spike; with recurrence the inputs take
 * nine tenths of it (alpha = 0.9 of the paper). */
static double fluctuation_scale(const init_context *c) {
    const rv_layer *neuron =
        c->recurrent || !c->layer->consumer_count ? c->layer : &c->net->layers[c->layer->consumer];
    double threshold = 1, response = 1, share = 1;
    if (c->bias) return 0;
    if (neuron->kind == &rv_kind_neuron)
        response = rv_neuron_response(neuron, c->net->desc->steps, &threshold);
    if (neuron->recurrent) share = c->recurrent ? 0.1 : 0.9;
    return threshold * c->options->sigma * sqrt(share / (c->fan_in * c->options->rate * response));
}

#define GAIN(value)                                                                                \
    {                                                                                              \
        "gain", RV_T_REAL, offsetof(init_options, gain), value, 0, 1e6, false, NULL, NULL,         \
            "factor of the width"                                                                  \
    }
static const rv_spec unit_gain[] = {GAIN(1), {0}};
static const rv_spec relu_gain[] = {GAIN(1.4142135623730951), {0}};
static const rv_spec normal_specs[] = {
    {"std", RV_T_REAL, offsetof(init_options, std), 0.1, 0, 1e6, false, NULL, NULL,
     "standard deviation of the weights"},
    {0},
};
static const rv_spec fluctuation_specs[] = {
    {"rate", RV_T_REAL, offsetof(init_options, rate), 0.05, 0, 1e6, true, NULL, NULL,
     "expected spikes per input and step"},
    {"sigma", RV_T_REAL, offsetof(init_options, sigma), 1, 0, 1e6, true, NULL, NULL,
     "standard deviation of the membrane in thresholds (1/xi of the paper)"},
    {0},
};

static const init_row rows[] = {
    {{"pytorch", "uniform within gain/sqrt(fan_in), weight and bias", "PyTorch nn.Linear",
      unit_gain, sizeof(init_options)},
     false,
     pytorch_scale},
    {{"kaiming_normal", "normal, deviation gain/sqrt(fan_in); bias 0", "He et al. 2015", relu_gain,
      sizeof(init_options)},
     true,
     kaiming_scale},
    {{"xavier", "uniform within gain*sqrt(6/(fan_in + fan_out)); bias 0", "Glorot, Bengio 2010",
      unit_gain, sizeof(init_options)},
     false,
     xavier_scale},
    {{"normal", "normal, deviation std; bias 0", "PyTorch init.normal_", normal_specs,
      sizeof(init_options)},
     true,
     normal_scale},
    {{"fluctuation", "normal, so that inputs of a rate make the membrane fluctuate; bias 0",
      "Rossbroich, Gygax, Zenke 2022", fluctuation_specs, sizeof(init_options)},
     true,
     fluctuation_scale},
};

const rv_table *rv_init_table(void) {
    static const rv_table table = {"init", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

/* Four numbers of mean 0: uniform in [-1, 1), or normal of deviation 1 (Box, Muller 1958). */
static void four(const uint32_t word[4], bool normal, double out[4]) {
    for (int k = 0; k < 4; k += 2) {
        double a = ((double)(word[k] >> 8) + 0.5) * 0x1p-24;
        double b = ((double)(word[k + 1] >> 8) + 0.5) * 0x1p-24;
        double radius = sqrt(-2 * log(a)), angle = 6.283185307179586 * b;
        out[k] = normal ? radius * cos(angle) : 2 * a - 1;
        out[k + 1] = normal ? radius * sin(angle) : 2 * b - 1;
    }
}

/* The counter is the element's place in file order: values do not depend on padding, on the
 * order of layers in memory, or on how many numbers others drew. */
void rv_init_fill(const rv_net *net, const rv_layer *layer, int k, float *file) {
    const rv_tensor *tensor = &net->tensors[layer->tensor[k]];
    const rv_choice *choice = &layer->desc->init;
    const rv_row *head = choice->row ? choice->row : &rows[0].head;
    const init_row *row = (const init_row *)(const void *)head;
    init_options defaults;
    rv_specs_default(head->specs, &defaults);
    init_context context = {.net = net,
                            .layer = layer,
                            .options = choice->row && choice->options ? choice->options : &defaults,
                            .fan_in = 1,
                            .fan_out = 1,
                            .bias = tensor->rank == 1,
                            .recurrent = layer->kind == &rv_kind_neuron};
    const rv_tensor *weight = context.bias ? &net->tensors[layer->tensor[0]] : tensor;
    for (int d = 1; d < weight->rank; d++)
        context.fan_in *= weight->dim[d];
    context.fan_out = weight->dim[0];
    for (int d = 2; d < weight->rank; d++)
        context.fan_out *= weight->dim[d];
    double scale = row->scale(&context);
    size_t elements = rv_tensor_elements(tensor);
    for (size_t e = 0; e < elements; e += 4) {
        uint32_t word[4];
        double value[4];
        rv_random4(word, net->desc->seed, RV_FOR_INIT, layer->index, 0, (uint32_t)k, 0,
                   (uint32_t)(e / 4));
        four(word, row->normal, value);
        for (size_t j = e; j < e + 4 && j < elements; j++)
            file[j] = (float)(scale * value[j - e]);
    }
}

/* Every tensor goes through its file form, so that layouts need no case here. */
rv_status rv_net_init(const rv_net *net, float *block) {
    rv_status status = RV_OK;
    float *file = NULL;
    size_t most = 0;
    for (int t = 0; t < net->tensor_count; t++)
        if (rv_tensor_elements(&net->tensors[t]) > most)
            most = rv_tensor_elements(&net->tensors[t]);
    TRY(rv_alloc(most, sizeof *file, "initial values", &file));
    for (int l = 0; l < net->layer_count; l++) {
        const rv_layer *layer = &net->layers[l];
        for (int k = 0; k < RV_LAYER_TENSORS; k++) {
            if (layer->tensor[k] < 0) continue;
            if (layer->kind->initial)
                layer->kind->initial(net, layer, k, file);
            else
                rv_init_fill(net, layer, k, file);
            rv_tensor_import(&net->tensors[layer->tensor[k]], file, block);
        }
    }
out:
    rv_free(file);
    return status;
}
