/*
 * Pools over planes: average (padding counts in the divisor), maximum, sum. The three kinds differ
 * in their plan alone, which is the device's rv_pool; there is nothing to train and no state.
 */
#include <math.h>

#include "snn/layers.h"

const rv_spec rv_pool_specs[] = {
    {"kernel_size", RV_T_PAIR, offsetof(rv_pool_options, kernel_size), NAN, 1, 1 << 16, false, NULL,
     NULL, "rows and columns of the window"},
    {"stride", RV_T_PAIR, offsetof(rv_pool_options, stride), 0, 0, 1 << 16, false, NULL, NULL,
     "distance of windows; 0: kernel_size"},
    {"padding", RV_T_PAIR, offsetof(rv_pool_options, padding), 0, 0, 1 << 16, false, NULL, NULL,
     "rows and columns around the plane, at most half a window"},
    {0},
};

/* Padding of more than half a window would let a maximum see padding alone. */
static rv_status pool_check(rv_net *net, rv_layer *layer, rv_pool_kind kind) {
    rv_status status = RV_OK;
    const rv_pool_options *options = layer->desc->options;
    rv_pool *plan = layer->plan;
    rv_shape shape = rv_layer_in_shape(net, layer, 0);
    if (layer->input_count != 1) TRY(rv_layer_misfit(net, layer, 1, "takes one input"));
    if (shape.rank != 3) TRY(rv_layer_misfit(net, layer, 0, "needs [channels, height, width]"));
    /* The window as the device wants it; stride 0 stands for the window itself. */
    plan->kind = kind;
    plan->in = rv_shape_plane(shape);
    for (int a = 0; a < 2; a++) {
        int kernel = options->kernel_size[a], stride = options->stride[a];
        if (kernel < 1 || options->padding[a] * 2 > kernel)
            TRY(rv_fail_at(RV_CONFIG, layer->desc->where, kernel < 1 ? "kernel_size" : "padding",
                           NULL,
                           "layer \"%s\" (%s) needs kernel_size, at least 1, and padding of at "
                           "most half of it",
                           layer->desc->name, layer->desc->row->name));
        plan->window.kernel[a] = kernel, plan->window.padding[a] = options->padding[a];
        plan->window.stride[a] = stride ? stride : kernel, plan->window.dilation[a] = 1;
    }
    TRY(rv_window_shape(net, layer, plan->in, &plan->window, plan->in.c, &plan->out));
    layer->shape = (rv_shape){3, {plan->out.c, plan->out.h, plan->out.w}};
    layer->held = rv_layer_in_held(net, layer, 0);
out:
    return status;
}

/* bf16 has eight digits: it holds a mean of spikes over a window of 2, 4, ... 256. */
static rv_status avg_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_pool *plan = layer->plan;
    TRY(pool_check(net, layer, RV_POOL_AVG));
    int area = plan->window.kernel[0] * plan->window.kernel[1];
    layer->bf16 = rv_layer_in_spikes(net, layer, 0) && area <= 256 && (area & (area - 1)) == 0;
out:
    return status;
}
static rv_status max_check(rv_net *net, rv_layer *layer) {
    return pool_check(net, layer, RV_POOL_MAX);
}
static rv_status sum_check(rv_net *net, rv_layer *layer) {
    return pool_check(net, layer, RV_POOL_SUM);
}

/* Pooled spikes are values: a mean is no bit, and a sum may exceed one. */
static rv_status pool_forward(rv_pass *pass, const rv_layer *layer) {
    return pass->device->ops->pool_forward(pass->device->ctx, pass->queue, layer->plan,
                                           rv_pass_input(pass, layer, 0),
                                           rv_pass_output(pass, layer)->values, pass->arena);
}

/* The maximum finds its places again in the input, which therefore stays on the tape. */
static rv_status pool_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_values g = rv_pass_adjoint(pass, layer), gx;
    bool add;
    if (!g.data) return RV_OK;
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    if (gx.data)
        TRY(pass->device->ops->pool_backward(pass->device->ctx, pass->queue, layer->plan,
                                             rv_pass_input(pass, layer, 0), g, gx, add,
                                             pass->arena));
out:
    return status;
}

#define POOL_KIND(check_function)                                                                  \
    {                                                                                              \
        .keeps_input = true, .plan_size = sizeof(rv_pool), .check = check_function,                \
        .forward = pool_forward, .backward = pool_backward,                                        \
    }
const rv_layer_kind rv_kind_avg_pool = POOL_KIND(avg_check);
const rv_layer_kind rv_kind_max_pool = POOL_KIND(max_check);
const rv_layer_kind rv_kind_sum_pool = POOL_KIND(sum_check);
