/*
 * Convolution in one and two dimensions: PyTorch's words, weights and shapes. conv1d is conv2d over
 * planes of one row; only its specs, its check and the rank of its weight differ. As every map it
 * begins a block: a neuron that follows takes its output in place.
 */
#include <math.h>
#include <stdio.h>

#include "snn/layers.h"

#define PAIR(field, value, least, sentence)                                                        \
    {                                                                                              \
#field, RV_T_PAIR, offsetof(rv_conv_options, field), value, least, 1 << 16, false, NULL,   \
            NULL, sentence                                                                         \
    }
#define COLUMN(field, value, least, sentence)                                                      \
    {                                                                                              \
#field, RV_T_INT, offsetof(rv_conv_options, field[1]), value, least, 1 << 16, false, NULL, \
            NULL, sentence                                                                         \
    }
#define CHANNELS                                                                                   \
    {                                                                                              \
        "out_channels", RV_T_INT, offsetof(rv_conv_options, out_channels), NAN, 1, 1 << 20, false, \
            NULL, NULL, "planes of the output"                                                     \
    }
#define GROUPS_AND_BIAS                                                                            \
    {"groups",                                                                                     \
     RV_T_INT,                                                                                     \
     offsetof(rv_conv_options, groups),                                                            \
     1,                                                                                            \
     1,                                                                                            \
     1 << 20,                                                                                      \
     false,                                                                                        \
     NULL,                                                                                         \
     NULL,                                                                                         \
     "parts of the channels that do not see each other"},                                          \
        {"bias", RV_T_BOOL, offsetof(rv_conv_options, bias),          1, 0, 1, false,              \
         NULL,   NULL,      "add a trained constant to every channel"},                            \
    {                                                                                              \
        0                                                                                          \
    }

const rv_spec rv_conv2d_specs[] = {
    CHANNELS,
    PAIR(kernel_size, NAN, 1, "rows and columns of the window"),
    PAIR(stride, 1, 1, "distance of windows"),
    PAIR(padding, 0, 0, "zeros on every side"),
    PAIR(dilation, 1, 1, "distance of a window's taps"),
    GROUPS_AND_BIAS,
};
const rv_spec rv_conv1d_specs[] = {
    CHANNELS,
    COLUMN(kernel_size, NAN, 1, "taps of the window"),
    COLUMN(stride, 1, 1, "distance of windows"),
    COLUMN(padding, 0, 0, "zeros on both sides"),
    COLUMN(dilation, 1, 1, "distance of a window's taps"),
    GROUPS_AND_BIAS,
};

enum { WEIGHT, BIAS };

/* ---- check ------------------------------------------------------------------------------- */
/* plan: an rv_conv without weights. `window` is complete, `in` the planes of the input. */
static rv_status conv_check(rv_net *net, rv_layer *layer, rv_plane in, rv_window window, int rank) {
    rv_status status = RV_OK;
    const rv_conv_options *options = layer->desc->options;
    rv_conv *plan = layer->plan;
    char needs[96];
    *plan = (rv_conv){.in = in, .window = window, .groups = options->groups};
    plan->bf16 = rv_layer_in_bf16(net, layer, 0);
    if (options->out_channels < 1 || window.kernel[0] < 1 || window.kernel[1] < 1)
        TRY(rv_fail_at(RV_CONFIG, layer->desc->where,
                       options->out_channels < 1 ? "out_channels" : "kernel_size", NULL,
                       "layer \"%s\" (%s) needs out_channels and kernel_size, at least 1",
                       layer->desc->name, layer->desc->row->name));
    if (in.c % options->groups || options->out_channels % options->groups) {
        snprintf(needs, sizeof needs,
                 "has groups %d and needs channels (out_channels %d) it divides", options->groups,
                 options->out_channels);
        TRY(rv_layer_misfit(net, layer, 0, needs));
    }
    TRY(rv_window_shape(net, layer, in, &window, options->out_channels, &plan->out));
    layer->shape = (rv_shape){3, {plan->out.c, plan->out.h, plan->out.w}};
    layer->held = rv_layer_in_held(net, layer, 0);
    /* File order is memory order: [out][in/groups][kernel...], so nothing is transposed. */
    rv_tensor_desc weight = {"weight", rank, {plan->out.c, in.c / options->groups, 0, 0}, 0, 0, 0};
    for (int d = 2; d < rank; d++)
        weight.dim[d] = window.kernel[d - rank + 2];
    rv_layer_tensor(net, layer, WEIGHT, &weight);
    if (options->bias)
        rv_layer_tensor(net, layer, BIAS,
                        &(rv_tensor_desc){"bias", 1, {plan->out.c}, RV_LAYOUT_FLAT, 0, false});
    TRY(rv_layer_choose_form(net, layer));
out:
    return status;
}

/* Planes in, planes out: flat units have no neighbours, so they are refused here. */
static rv_status conv2d_check(rv_net *net, rv_layer *layer) {
    const rv_conv_options *o = layer->desc->options;
    rv_shape shape = rv_layer_in_shape(net, layer, 0);
    if (layer->input_count != 1) return rv_layer_misfit(net, layer, 1, "takes one input");
    if (shape.rank != 3) return rv_layer_misfit(net, layer, 0, "needs [channels, height, width]");
    rv_window window = {{o->kernel_size[0], o->kernel_size[1]},
                        {o->stride[0], o->stride[1]},
                        {o->padding[0], o->padding[1]},
                        {o->dilation[0], o->dilation[1]}};
    return conv_check(net, layer, rv_shape_plane(shape), window, 4);
}

/* A row of units is one channel of that width; planes must have one row. */
static rv_status conv1d_check(rv_net *net, rv_layer *layer) {
    const rv_conv_options *o = layer->desc->options;
    rv_shape shape = rv_layer_in_shape(net, layer, 0);
    if (layer->input_count != 1) return rv_layer_misfit(net, layer, 1, "takes one input");
    if (shape.rank == 3 && shape.dim[1] != 1)
        return rv_layer_misfit(net, layer, 0, "needs [units] or [channels, 1, width]");
    rv_plane in = shape.rank == 3 ? rv_shape_plane(shape) : (rv_plane){1, 1, shape.dim[0]};
    rv_window window = {
        {1, o->kernel_size[1]}, {1, o->stride[1]}, {0, o->padding[1]}, {1, o->dilation[1]}};
    return conv_check(net, layer, in, window, 3);
}

/* ---- F, B, W ----------------------------------------------------------------------------- */
/* The plan with the weights of one version. */
static rv_conv conv_of(const rv_version *version, const rv_layer *layer) {
    rv_conv conv = *(const rv_conv *)layer->plan;
    conv.form = layer->form;
    conv.no_forward = !(version->reads & RV_READS_FORWARD);
    conv.no_backward = !(version->reads & RV_READS_BACKWARD && rv_layer_back(version->net, layer));
    conv.weight = rv_version_tensor(version, layer, WEIGHT);
    conv.bias = rv_version_tensor(version, layer, BIAS);
    conv.packed = version->derived[layer->index].packed;
    return conv;
}

/* A held input is one frame: the op sees that from its stride and computes one. */
static rv_status conv_forward(rv_pass *pass, const rv_layer *layer) {
    rv_conv conv = conv_of(pass->version, layer);
    return pass->device->ops->conv_forward(pass->device->ctx, pass->queue, &conv,
                                           rv_pass_input(pass, layer, 0),
                                           rv_pass_output(pass, layer)->values, pass->arena);
}

/* The adjoint of the input; that of the weights waits for W, which may run later. */
static rv_status conv_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_conv conv = conv_of(rv_pass_back(pass), layer);
    rv_values g = rv_pass_adjoint(pass, layer), gx;
    bool add;
    if (!g.data) return RV_OK;
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    if (gx.data)
        TRY(pass->device->ops->conv_backward(pass->device->ctx, pass->queue, &conv, g, gx, add,
                                             pass->arena));
out:
    return status;
}

/* W: frozen tensors have no gradient, which the op takes as NULL. */
static rv_status conv_weight(rv_pass *pass, const rv_layer *layer) {
    rv_conv conv = conv_of(pass->version, layer);
    return pass->device->ops->conv_weight(
        pass->device->ctx, pass->queue, &conv, rv_pass_input(pass, layer, 0),
        rv_pass_adjoint(pass, layer), rv_pass_gradient(pass, layer, WEIGHT),
        rv_pass_gradient(pass, layer, BIAS), pass->arena);
}

/* ---- versions ---------------------------------------------------------------------------- */
/* Frees what derive made. */
static void conv_discard(rv_version *version, const rv_layer *layer) {
    struct rv_derived *derived = &version->derived[layer->index];
    if (derived->packed) version->device->ops->conv_unpack(version->device->ctx, derived->packed);
    derived->packed = NULL;
}

/* Packed forms belong to a product form: the choice of forms may change it once. */
static rv_status conv_derive(rv_version *version, const rv_layer *layer, int rows) {
    struct rv_derived *derived = &version->derived[layer->index];
    if (derived->form != layer->form) conv_discard(version, layer);
    derived->form = layer->form;
    rv_conv conv = conv_of(version, layer);
    return version->device->ops->conv_pack(version->device->ctx, NULL, &conv, rows,
                                           &derived->packed);
}

/* With few channels looking for spikes under every window costs more than it saves. */
static double conv_event_rate(const rv_net *net, const rv_layer *layer) {
    const rv_conv *conv = layer->plan;
    (void)net;
    return rv_form_rate(&rv_conv_rates, conv->in.c / conv->groups, conv->out.c / conv->groups);
}

/* Outputs a tap reaches on one axis, summed over the taps: padding has no synapses. */
static int64_t axis_targets(const rv_window *w, int axis, int in, int out) {
    int64_t count = 0;
    for (int k = 0; k < w->kernel[axis]; k++)
        for (int o = 0; o < out; o++) {
            int at = o * w->stride[axis] + k * w->dilation[axis] - w->padding[axis];
            count += at >= 0 && at < in;
        }
    return count;
}

static int64_t conv_targets(const rv_net *net, const rv_layer *layer) {
    const rv_conv *c = layer->plan;
    (void)net;
    return axis_targets(&c->window, 0, c->in.h, c->out.h) *
           axis_targets(&c->window, 1, c->in.w, c->out.w) * (c->in.c / c->groups) * c->out.c;
}

#define CONV_KIND(check_function)                                                                  \
    {                                                                                              \
        .map = true, .keeps_input = true, .plan_size = sizeof(rv_conv), .check = check_function,   \
        .forward = conv_forward, .backward = conv_backward, .weight = conv_weight,                 \
        .derive = conv_derive, .discard = conv_discard, .event_rate = conv_event_rate,             \
        .targets = conv_targets,                                                                   \
    }
const rv_layer_kind rv_kind_conv2d = CONV_KIND(conv2d_check);
const rv_layer_kind rv_kind_conv1d = CONV_KIND(conv1d_check);
