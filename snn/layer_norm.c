/*
 * Batch normalisation. Statistics are of the micro-batch, at each step or over the sequence; those
 * of every step go to pass->statistics, and U moves the running ones, micro-batches then steps
 * ascending, so that a pipeline's order of items cannot matter.
 */
#include "snn/layers.h"

const rv_spec rv_batch_norm_specs[] = {
    {"statistics", RV_T_CHOICE, offsetof(rv_norm_options, statistics), 0, 0, 0, false,
     "step|sequence", NULL, "mean and variance of each step alone, or over all steps"},
    {"momentum", RV_T_REAL, offsetof(rv_norm_options, momentum), 0.1, 0, 1, false, NULL, NULL,
     "share of the newest statistics in the running ones"},
    {"epsilon", RV_T_REAL, offsetof(rv_norm_options, epsilon), 1e-5, 0, 1, true, NULL, NULL,
     "added to the variance"},
    {"affine", RV_T_BOOL, offsetof(rv_norm_options, affine), 1, 0, 1, false, NULL, NULL,
     "learn a factor and a constant per channel"},
    {0},
};

enum { WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR };
enum { TAPE_MEAN = RV_SLOT_TAPE, TAPE_VAR };
enum { BY_STEP, BY_SEQUENCE };

/* Whether one mean serves all steps. */
static bool by_sequence(const rv_layer *layer) {
    return ((const rv_norm_options *)layer->desc->options)->statistics == BY_SEQUENCE;
}

/* PyTorch's names, so that files carry over; running ones are buffers, which no optimiser sees. */
static rv_status norm_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_norm_options *options = layer->desc->options;
    TRY(rv_layer_same_shape(net, layer));
    if (rv_layer_in_spikes(net, layer, 0))
        TRY(rv_layer_misfit(net, layer, 0, "takes values, as a linear or conv layer gives"));
    int c = rv_shape_plane(layer->shape).c;
    rv_tensor_desc tensor = {"weight", 1, {c}, RV_LAYOUT_FLAT, RV_LIMIT_NONE, false};
    if (options->affine) {
        rv_layer_tensor(net, layer, WEIGHT, &tensor);
        tensor.local = "bias";
        rv_layer_tensor(net, layer, BIAS, &tensor);
    }
    tensor.buffer = true;
    tensor.local = "running_mean";
    rv_layer_tensor(net, layer, RUNNING_MEAN, &tensor);
    tensor.local = "running_var";
    rv_layer_tensor(net, layer, RUNNING_VAR, &tensor);
    /* B needs the statistics F used; U needs them later still, when the tape may be gone. */
    layer->tape[TAPE_MEAN].time = layer->tape[TAPE_VAR].time = (size_t)c;
    layer->statistics = 2 * (size_t)c;
    layer->whole = by_sequence(layer);
out:
    return status;
}

static void norm_initial(const rv_net *net, const rv_layer *layer, int k, float *file) {
    int c = net->tensors[layer->tensor[k]].dim[0];
    for (int i = 0; i < c; i++)
        file[i] = k == WEIGHT || k == RUNNING_VAR ? 1.0f : 0.0f;
}

/* What the device needs, over this pass's version and tape. */
static rv_norm norm_of(const rv_pass *pass, const rv_layer *layer) {
    const rv_norm_options *options = layer->desc->options;
    return (rv_norm){
        .plane = rv_shape_plane(layer->shape),
        .sequence = by_sequence(layer),
        .training = pass->training,
        .epsilon = (float)options->epsilon,
        .gamma = rv_version_tensor(pass->version, layer, WEIGHT),
        .beta = rv_version_tensor(pass->version, layer, BIAS),
        .running_mean = rv_version_tensor(pass->version, layer, RUNNING_MEAN),
        .running_var = rv_version_tensor(pass->version, layer, RUNNING_VAR),
        .mean = rv_tape_slot(pass->tape, layer, TAPE_MEAN),
        .var = rv_tape_slot(pass->tape, layer, TAPE_VAR),
    };
}

/* Rows [t0, t1) of the micro-batch's statistics; a held input has the same at every step, those of
 * a sequence stand in row 0. Copied by the device, in the order of its queue: the tape may serve
 * another micro-batch before U reads them. */
static rv_status keep_statistics(const rv_pass *pass, const rv_layer *layer, const rv_norm *norm) {
    rv_status status = RV_OK;
    int c = norm->plane.c, end = layer->held ? pass->net->desc->steps : pass->t1;
    int rows = norm->sequence ? 1 : end - pass->t0;
    size_t row = rv_net_statistics(pass->net);
    float *to = pass->statistics + (size_t)pass->t0 * row + layer->statistic;
    float *const from[] = {norm->mean, norm->var};
    for (int k = 0; k < 2 && rows > 0; k++, to += c) {
        const rv_signal x = {.values = {from[k], rows, 1, c, c, layer->held ? 0 : (size_t)c}};
        const rv_values y = {to, rows, 1, c, c, row};
        TRY(pass->device->ops->copy_units(pass->device->ctx, pass->queue, &x, 0, y, 0, c, false));
    }
out:
    return status;
}

/* Outside training the running statistics are used, and nothing is left for U. */
static rv_status norm_forward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_norm norm = norm_of(pass, layer);
    if (pass->training) TRY(rv_net_check_chunks(pass->net, pass->chunks));
    TRY(pass->device->ops->norm_forward(pass->device->ctx, pass->queue, &norm,
                                        rv_pass_input(pass, layer, 0)->values,
                                        rv_pass_output(pass, layer)->values, pass->arena));
    if (pass->training && pass->statistics) TRY(keep_statistics(pass, layer, &norm));
out:
    return status;
}

/* Gradients of factor and constant are added here: B is the last to see the adjoint. */
static rv_status norm_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_norm norm = norm_of(pass, layer);
    rv_values g = rv_pass_adjoint(pass, layer), gx;
    bool add;
    if (!g.data) return RV_OK;
    norm.gamma = rv_version_tensor(rv_pass_back(pass), layer, WEIGHT);
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    TRY(pass->device->ops->norm_backward(
        pass->device->ctx, pass->queue, &norm, rv_pass_input(pass, layer, 0)->values, g, gx, add,
        rv_pass_gradient(pass, layer, WEIGHT), rv_pass_gradient(pass, layer, BIAS), pass->arena));
out:
    return status;
}

/* The running variance takes the unbiased one, as PyTorch's. */
static void norm_update(rv_version *version, const rv_layer *layer, const float *statistics,
                        int B) {
    const rv_net *net = version->net;
    const rv_norm_options *options = layer->desc->options;
    rv_plane plane = rv_shape_plane(layer->shape);
    float *mean = rv_version_tensor(version, layer, RUNNING_MEAN);
    float *var = rv_version_tensor(version, layer, RUNNING_VAR);
    float share = (float)options->momentum, rest = (float)(1 - options->momentum);
    bool sequence = by_sequence(layer);
    double count = (double)B * plane.h * plane.w;
    if (sequence && !layer->held) count *= net->desc->steps;
    float unbiased = count > 1 ? (float)(count / (count - 1)) : 1.0f;
    for (int t = 0; t < (sequence ? 1 : net->desc->steps); t++) {
        const float *row = statistics + (size_t)t * rv_net_statistics(net) + layer->statistic;
        for (int c = 0; c < plane.c; c++) {
            mean[c] = rest * mean[c] + share * row[c];
            var[c] = rest * var[c] + share * (row[plane.c + c] * unbiased);
        }
    }
}

const rv_layer_kind rv_kind_batch_norm = {
    .keeps_input = true,
    .check = norm_check,
    .forward = norm_forward,
    .backward = norm_backward,
    .initial = norm_initial,
    .update = norm_update,
};
