/*
 * The linear map: y = W x + b, with W as [in][out rounded up], so that a spike of input i adds row
 * i of W, and the dense product reads the same memory.
 */
#include <math.h>

#include "snn/layer.h"

const rv_spec rv_linear_specs[] = {
    {"units", RV_T_INT, offsetof(rv_linear_options, units), NAN, 1, 1 << 24, false, NULL, NULL,
     "outputs"},
    {"bias", RV_T_BOOL, offsetof(rv_linear_options, bias), 1, 0, 1, false, NULL, NULL,
     "add a trained constant to every output"},
    {NULL, RV_T_BOOL, 0, 0, 0, 0, false, NULL, NULL, NULL},
};

enum { WEIGHT, BIAS };

/* Also the recurrence of a neuron layer, whose weight is another tensor of the same layout. */
rv_map rv_layer_map(const rv_version *version, const rv_layer *layer, int in, int out, int weight,
                    int bias) {
    return (rv_map){.in = in,
                    .out = out,
                    .ld = rv_round_up(out, RV_LANES),
                    .form = layer->form,
                    .weight = rv_version_tensor(version, layer, weight),
                    .bias = bias < 0 ? NULL : rv_version_tensor(version, layer, bias),
                    .packed = version->derived[layer->index].packed};
}

rv_map rv_linear_map(const rv_version *version, const rv_layer *layer) {
    int in = version->net->tensors[layer->tensor[WEIGHT]].dim[1];
    rv_map map = rv_layer_map(version, layer, in, layer->n, WEIGHT, BIAS);
    map.adjoint = version->reads & RV_READS_BACKWARD && rv_layer_back(version->net, layer);
    return map;
}

/* Planes are taken as the row they are: PyTorch's flatten order is the memory order. */
static rv_status linear_check(rv_net *net, rv_layer *layer) {
    const rv_linear_options *options = layer->desc->options;
    int in = rv_shape_units(rv_layer_in_shape(net, layer, 0)), out = options->units;
    if (layer->input_count != 1) return rv_layer_misfit(net, layer, 1, "takes one input");
    if (out < 1)
        return rv_fail_at(RV_CONFIG, layer->desc->where, "units", NULL,
                          "layer \"%s\" (linear) needs units, at least 1", layer->desc->name);
    layer->shape = (rv_shape){1, {out, 0, 0}};
    layer->held = rv_layer_in_held(net, layer, 0);
    rv_layer_tensor(net, layer, WEIGHT,
                    &(rv_tensor_desc){"weight", 2, {out, in}, RV_LAYOUT_LINEAR, 0, false});
    if (options->bias)
        rv_layer_tensor(net, layer, BIAS,
                        &(rv_tensor_desc){"bias", 1, {out}, RV_LAYOUT_FLAT, 0, false});
    return rv_layer_choose_form(net, layer);
}

/* A held signal as the one frame it is. */
static rv_signal frame_of(rv_signal signal) {
    if (signal.values.data && signal.values.stride_t == 0) signal.values.T = 1;
    return signal;
}

/* A held input gives a held current: one product per sample, whatever T. */
static rv_status linear_forward(rv_pass *pass, const rv_layer *layer) {
    rv_map map = rv_linear_map(pass->version, layer);
    rv_signal x = frame_of(*rv_pass_input(pass, layer, 0));
    rv_signal y = frame_of(*rv_pass_output(pass, layer));
    if (rv_pass_fused(pass, layer)) return RV_OK; /* the neuron does both */
    return pass->device->ops->map_forward(pass->device->ctx, pass->queue, &map, &x, y.values,
                                          pass->arena);
}

/* Skipped where nobody wants the adjoint of the input: nearly always for the first map, which
 * has the most inputs. */
static rv_status linear_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_map map = rv_linear_map(rv_pass_back(pass), layer);
    rv_values g = rv_pass_adjoint(pass, layer), gx;
    bool add;
    int source = layer->input[0];
    if (!g.data) return RV_OK;
    if (source >= pass->first && rv_pass_parts(pass, &pass->net->layers[source])) return RV_OK;
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    if (!gx.data) goto out;
    size_t mark = rv_arena_mark(pass->arena);
    if (layer->held) gx.T = 1;
    TRY(pass->device->ops->map_backward(pass->device->ctx, pass->queue, &map, g, gx, add,
                                        pass->arena));
    rv_arena_release(pass->arena, mark);
out:
    return status;
}

/* The adjoint is where B left it: in the h of the neuron behind, or in slot G. */
static rv_status linear_weight(rv_pass *pass, const rv_layer *layer) {
    rv_map map = rv_linear_map(pass->version, layer);
    rv_signal x = frame_of(*rv_pass_input(pass, layer, 0));
    return pass->device->ops->map_weight(
        pass->device->ctx, pass->queue, &map, &x, rv_pass_adjoint(pass, layer),
        rv_pass_gradient(pass, layer, WEIGHT), rv_pass_gradient(pass, layer, BIAS), pass->arena);
}

/* What packing does is the device's business; for events it may be nothing. */
static rv_status linear_derive(rv_version *version, const rv_layer *layer, int rows) {
    rv_map map = rv_linear_map(version, layer);
    return rv_version_pack(version, layer, &map, rows);
}

static double linear_event_rate(const rv_net *net, const rv_layer *layer) {
    return rv_form_rate(&rv_linear_rates, rv_shape_units(rv_layer_in_shape(net, layer, 0)),
                        layer->n);
}

/* Every input reaches every output; the padding of rows is no synapse. */
static int64_t linear_targets(const rv_net *net, const rv_layer *layer) {
    const rv_tensor *weight = &net->tensors[layer->tensor[WEIGHT]];
    return (int64_t)weight->dim[0] * weight->dim[1];
}

const rv_layer_kind rv_kind_linear = {
    .map = true,
    .check = linear_check,
    .forward = linear_forward,
    .backward = linear_backward,
    .weight = linear_weight,
    .derive = linear_derive,
    .discard = rv_version_unpack,
    .event_rate = linear_event_rate,
    .targets = linear_targets,
};
