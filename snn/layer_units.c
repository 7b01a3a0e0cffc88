/*
 * Layers without products: flatten, add, concat, dropout, scale, stateless threshold; and the
 * helpers all layer files share. Of these only threshold gives bits, and only scale trains. A layer
 * whose inputs are all held is held itself: one frame, computed once per micro-batch.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "snn/layers.h"

const rv_spec rv_dropout_specs[] = {
    {"p", RV_T_REAL, offsetof(rv_dropout_options, p), 0.5, 0, 0.999, false, NULL, NULL,
     "share of units silenced; one draw a sample, for all its steps"},
    {0},
};
const rv_spec rv_scale_specs[] = {
    {"factor", RV_T_REALS, offsetof(rv_scale_options, factor), 1, -1e30, 1e30, false, NULL, NULL,
     "one number, one per channel, or one per unit"},
    {0},
};
const rv_spec rv_threshold_specs[] = {
    {"threshold", RV_T_REALS, offsetof(rv_threshold_options, threshold), 1, -1e30, 1e30, false,
     NULL, NULL, "a spike where the input reaches it; one, one per channel, or one per unit"},
    {"compare", RV_T_CHOICE, offsetof(rv_threshold_options, compare), 0, 0, 0, false, "ge|gt", NULL,
     "at the threshold itself: ge fires, gt does not"},
    {"surrogate", RV_T_ROW, offsetof(rv_threshold_options, surrogate), 0, 0, 0, false, "atan",
     &rv_surrogates, "derivative of the spike"},
    {0},
};

/* ---- what the files share ----------------------------------------------------------------- */
rv_plane rv_shape_plane(rv_shape shape) {
    if (shape.rank == 3) return (rv_plane){shape.dim[0], shape.dim[1], shape.dim[2]};
    return (rv_plane){shape.dim[0], 1, 1};
}

/* More inputs are refused by their second one, which the message can name. */
rv_status rv_layer_same_shape(const rv_net *net, rv_layer *layer) {
    if (layer->input_count != 1) return rv_layer_misfit(net, layer, 1, "takes one input");
    layer->shape = rv_layer_in_shape(net, layer, 0);
    layer->held = rv_layer_in_held(net, layer, 0);
    return RV_OK;
}

/* In 64 bits: a window of the largest size and dilation does not fit in an int. */
rv_status rv_window_shape(const rv_net *net, const rv_layer *layer, rv_plane in,
                          const rv_window *window, int channels, rv_plane *out) {
    const int size[2] = {in.h, in.w};
    int result[2];
    char needs[96];
    for (int a = 0; a < 2; a++) {
        int64_t reach = (int64_t)(window->kernel[a] - 1) * window->dilation[a] + 1;
        int64_t room = size[a] + 2 * (int64_t)window->padding[a] - reach;
        if (room < 0) {
            snprintf(needs, sizeof needs, "needs at least %lld %s with its padding",
                     (long long)(reach - 2 * (int64_t)window->padding[a]), a ? "columns" : "rows");
            return rv_layer_misfit(net, layer, 0, needs);
        }
        result[a] = (int)(room / window->stride[a]) + 1;
    }
    *out = (rv_plane){channels, result[0], result[1]};
    return RV_OK;
}

/* Whose number unit u takes of `count` ones. */
static int spread_at(const rv_layer *layer, int count, int u) {
    int pixels = layer->n / rv_shape_plane(layer->shape).c;
    return count == 1 ? 0 : count == layer->n ? u : u / pixels;
}

rv_status rv_layer_check_reals(const rv_layer *layer, const char *key, const rv_reals *given) {
    int channels = rv_shape_plane(layer->shape).c, units = rv_shape_units(layer->shape);
    if (given->count == 1 || given->count == channels || given->count == units) return RV_OK;
    return rv_fail_at(RV_CONFIG, layer->desc->where, key, NULL,
                      "layer \"%s\" has %d channels and %d units, but %s lists %d values",
                      layer->desc->name, channels, units, key, given->count);
}

rv_status rv_layer_spread(rv_version *version, const rv_layer *layer, const float *stored,
                          const rv_reals *given) {
    rv_status status = RV_OK;
    float **params = &version->derived[layer->index].params;
    if (!*params) TRY(rv_alloc((size_t)layer->ld, sizeof(float), "layer parameters", params));
    for (int u = 0; u < layer->ld; u++) {
        int at = spread_at(layer, given->count, u < layer->n ? u : layer->n - 1);
        (*params)[u] = stored ? stored[at] : given->data[at];
    }
out:
    return status;
}
/* Frees what spread made. */
static void spread_discard(rv_version *version, const rv_layer *layer) {
    rv_free(version->derived[layer->index].params);
}

/* A layer that maps its one input linearly onto itself: F and B are one op on other views. */
typedef rv_status (*unit_op)(rv_pass *pass, const rv_layer *layer, const rv_signal *x, rv_values y,
                             bool add);
static rv_status unit_backward(rv_pass *pass, const rv_layer *layer, unit_op op) {
    rv_status status = RV_OK;
    rv_signal g = {.values = rv_pass_adjoint(pass, layer)};
    rv_values gx;
    bool add;
    if (!g.values.data) return RV_OK;
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    if (gx.data) TRY(op(pass, layer, &g, gx, add));
out:
    return status;
}

/* ---- flatten ------------------------------------------------------------------------------ */
/* Units already lie in this order, so the view shares memory and bits stay bits. */
static rv_status flatten_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    TRY(rv_layer_same_shape(net, layer));
    layer->shape = (rv_shape){1, {rv_shape_units(layer->shape), 0, 0}};
    layer->spikes = rv_layer_in_spikes(net, layer, 0);
out:
    return status;
}
const rv_layer_kind rv_kind_flatten = {.view = true, .check = flatten_check};

/* ---- add, concat -------------------------------------------------------------------------- */
/* Held only where every input is: one that changes makes the result change. */
static bool all_held(const rv_net *net, const rv_layer *layer) {
    bool held = true;
    for (int k = 0; k < layer->input_count; k++)
        held = held && rv_layer_in_held(net, layer, k);
    return held;
}

/* One input is most often a list forgotten. */
static rv_status check_two(const rv_net *net, const rv_layer *layer) {
    if (layer->input_count >= 2) return RV_OK;
    return rv_layer_misfit(net, layer, 0, "takes two inputs or more (from: [a, b])");
}

/* Shapes must be equal: nothing is broadcast, so a wrong edge is found here. */
static rv_status add_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    char needs[160], text[48];
    TRY(check_two(net, layer));
    layer->shape = rv_layer_in_shape(net, layer, 0);
    layer->held = all_held(net, layer);
    for (int k = 1; k < layer->input_count; k++) {
        if (rv_shape_equal(layer->shape, rv_layer_in_shape(net, layer, k))) continue;
        snprintf(needs, sizeof needs, "adds to \"%s\" %s", rv_layer_in_name(net, layer, 0),
                 rv_shape_text(layer->shape, text));
        TRY(rv_layer_misfit(net, layer, k, needs));
    }
out:
    return status;
}

/* Channels lie one after the other, so joining them is joining units. */
static rv_status concat_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    char needs[160], text[48];
    TRY(check_two(net, layer));
    rv_shape first = layer->shape = rv_layer_in_shape(net, layer, 0);
    layer->held = all_held(net, layer);
    for (int k = 1; k < layer->input_count; k++) {
        rv_shape shape = rv_layer_in_shape(net, layer, k);
        bool fits = shape.rank == first.rank;
        for (int d = 1; d < first.rank; d++)
            fits = fits && shape.dim[d] == first.dim[d];
        layer->shape.dim[0] += shape.dim[0];
        if (fits) continue;
        snprintf(needs, sizeof needs, "joins channels of equal height and width to \"%s\" %s",
                 rv_layer_in_name(net, layer, 0), rv_shape_text(first, text));
        TRY(rv_layer_misfit(net, layer, k, needs));
    }
out:
    return status;
}

/* Offset of input k's units in the output: 0 for add. */
static int join_offset(const rv_pass *pass, const rv_layer *layer, int k) {
    int offset = 0;
    for (int j = 0; j < k && layer->kind == &rv_kind_concat; j++)
        offset += rv_shape_units(rv_layer_in_shape(pass->net, layer, j));
    return offset;
}

/* Sums and copies are values even of bits: two spikes may meet. */
static rv_status join_forward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    for (int k = 0; k < layer->input_count; k++) {
        int count = rv_shape_units(rv_layer_in_shape(pass->net, layer, k));
        bool add = k > 0 && layer->kind == &rv_kind_add;
        TRY(pass->device->ops->copy_units(
            pass->device->ctx, pass->queue, rv_pass_input(pass, layer, k), 0,
            rv_pass_output(pass, layer)->values, join_offset(pass, layer, k), count, add));
    }
out:
    return status;
}

/* Every input gets the adjoint of its share; a held one the sum over time, which the copy makes. */
static rv_status join_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_signal g = {.values = rv_pass_adjoint(pass, layer)};
    if (!g.values.data) return RV_OK;
    for (int k = 0; k < layer->input_count; k++) {
        int count = rv_shape_units(rv_layer_in_shape(pass->net, layer, k));
        rv_values gx;
        bool add;
        TRY(rv_pass_adjoint_in(pass, layer, k, &gx, &add));
        if (!gx.data) continue;
        TRY(pass->device->ops->copy_units(pass->device->ctx, pass->queue, &g,
                                          join_offset(pass, layer, k), gx, 0, count, add));
    }
out:
    return status;
}
const rv_layer_kind rv_kind_add = {
    .check = add_check,
    .forward = join_forward,
    .backward = join_backward,
};
const rv_layer_kind rv_kind_concat = {
    .check = concat_check,
    .forward = join_forward,
    .backward = join_backward,
};

/* ---- dropout ------------------------------------------------------------------------------ */
static rv_status dropout_check(rv_net *net, rv_layer *layer) {
    return rv_layer_same_shape(net, layer);
}

/* Off outside training: a copy. */
static rv_status dropout_op(rv_pass *pass, const rv_layer *layer, const rv_signal *x, rv_values y,
                            bool add) {
    const rv_device *device = pass->device;
    const rv_dropout_options *options = layer->desc->options;
    if (!pass->training)
        return device->ops->scale(device->ctx, pass->queue, x, NULL, y, add, pass->arena);
    return device->ops->dropout(device->ctx, pass->queue, x, (float)options->p,
                                pass->net->desc->seed, layer->index, pass->batch->epoch,
                                pass->batch->sample + pass->row, y, add, pass->arena);
}
/* The mask is drawn again in B from the same numbers rather than kept. */
static rv_status dropout_forward(rv_pass *pass, const rv_layer *layer) {
    return dropout_op(pass, layer, rv_pass_input(pass, layer, 0),
                      rv_pass_output(pass, layer)->values, false);
}
static rv_status dropout_backward(rv_pass *pass, const rv_layer *layer) {
    return unit_backward(pass, layer, dropout_op);
}
const rv_layer_kind rv_kind_dropout = {
    .check = dropout_check,
    .forward = dropout_forward,
    .backward = dropout_backward,
};

/* ---- scale -------------------------------------------------------------------------------- */
enum { FACTOR };
enum { STATE_GRAD = RV_SLOT_STATE }; /* of the adjoint: per-unit sums over the micro-batch */

/* One factor, one a channel or one a unit: stored as given, spread to units per version. */
static rv_status scale_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_scale_options *options = layer->desc->options;
    TRY(rv_layer_same_shape(net, layer));
    TRY(rv_layer_check_reals(layer, "factor", &options->factor));
    rv_layer_tensor(net, layer, FACTOR,
                    &(rv_tensor_desc){"factor", 1, {options->factor.count}, 0, 0, false});
    if (layer->trained)
        layer->state[STATE_GRAD].fixed =
            (size_t)rv_round_up(rv_shape_units(layer->shape), RV_LANES);
out:
    return status;
}

/* The description's numbers, as listed. */
static void scale_initial(const rv_net *net, const rv_layer *layer, int k, float *file) {
    const rv_scale_options *options = layer->desc->options;
    (void)net, (void)k;
    memcpy(file, options->factor.data, (size_t)options->factor.count * sizeof *file);
}

/* The spread form follows the stored one at every version. */
static rv_status scale_derive(rv_version *version, const rv_layer *layer, int rows) {
    const rv_scale_options *options = layer->desc->options;
    (void)rows;
    return rv_layer_spread(version, layer, rv_version_tensor(version, layer, FACTOR),
                           &options->factor);
}

static rv_status scale_op(rv_pass *pass, const rv_version *version, const rv_layer *layer,
                          const rv_signal *x, rv_values y, bool add) {
    return pass->device->ops->scale(pass->device->ctx, pass->queue, x,
                                    version->derived[layer->index].params, y, add, pass->arena);
}
static rv_status scale_forward(rv_pass *pass, const rv_layer *layer) {
    return scale_op(pass, pass->version, layer, rv_pass_input(pass, layer, 0),
                    rv_pass_output(pass, layer)->values, false);
}

static rv_status scale_carry(rv_pass *pass, const rv_layer *layer, const rv_signal *x, rv_values y,
                             bool add) {
    return scale_op(pass, rv_pass_back(pass), layer, x, y, add);
}

/* The sums of all chunks, complete at t0 = 0, onto the numbers as stored; blocks of 256. */
static void scale_gradient(const rv_layer *layer, const float *sums, int count, float *gradient) {
    int run = count == layer->n ? 1 : count == 1 ? layer->n : layer->n / count;
    for (int k = 0; k < count; k++) {
        double total = 0.0;
        for (int start = k * run; start < (k + 1) * run; start += 256) {
            double block = 0.0;
            for (int u = start; u < start + 256 && u < (k + 1) * run; u++)
                block += (double)sums[u];
            total += block;
        }
        gradient[k] += (float)total;
    }
}

static rv_status scale_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_scale_options *options = layer->desc->options;
    rv_values g = rv_pass_adjoint(pass, layer);
    float *sums = rv_state_slot(pass->adjoint, layer, STATE_GRAD);
    if (g.data && sums) {
        TRY(pass->device->ops->scale_weight(pass->device->ctx, pass->queue,
                                            rv_pass_input(pass, layer, 0), g, sums, pass->arena));
        if (pass->t0 == 0) {
            TRY(rv_pass_sync(pass)); /* the host adds them up */
            scale_gradient(layer, sums, options->factor.count,
                           rv_pass_gradient(pass, layer, FACTOR));
        }
    }
    TRY(unit_backward(pass, layer, scale_carry));
out:
    return status;
}
const rv_layer_kind rv_kind_scale = {
    .keeps_input = true,
    .check = scale_check,
    .forward = scale_forward,
    .backward = scale_backward,
    .derive = scale_derive,
    .discard = spread_discard,
    .initial = scale_initial,
};

/* ---- threshold ---------------------------------------------------------------------------- */
/* Thresholds are fixed: a trained one would be a neuron without memory, which lif can be. */
static rv_status threshold_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_threshold_options *options = layer->desc->options;
    TRY(rv_layer_same_shape(net, layer));
    if (rv_layer_in_spikes(net, layer, 0)) TRY(rv_layer_misfit(net, layer, 0, "takes values"));
    TRY(rv_layer_check_reals(layer, "threshold", &options->threshold));
    layer->spikes = true;
    layer->held = false; /* bits of every step */
    *(rv_surrogate *)layer->plan = rv_surrogate_of(&options->surrogate);
out:
    return status;
}

/* Nothing stored, so the first version's array never changes. */
static rv_status threshold_derive(rv_version *version, const rv_layer *layer, int rows) {
    const rv_threshold_options *options = layer->desc->options;
    (void)rows;
    if (version->derived[layer->index].params) return RV_OK;
    return rv_layer_spread(version, layer, NULL, &options->threshold);
}

/* A held input fires at every step alike, but bits are kept for each. */
static rv_status threshold_forward(rv_pass *pass, const rv_layer *layer) {
    const rv_threshold_options *options = layer->desc->options;
    return pass->device->ops->threshold_forward(
        pass->device->ctx, pass->queue, rv_pass_input(pass, layer, 0)->values,
        pass->version->derived[layer->index].params, options->compare == 1,
        rv_pass_output(pass, layer)->spikes);
}

/* The input is still on the tape: the surrogate is taken where the forward compared. */
static rv_status threshold_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_values g = rv_pass_adjoint(pass, layer), gx;
    bool add;
    if (!g.data) return RV_OK;
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    if (gx.data)
        TRY(pass->device->ops->threshold_backward(
            pass->device->ctx, pass->queue, rv_pass_input(pass, layer, 0)->values,
            pass->version->derived[layer->index].params, layer->plan, g, gx, add, NULL));
out:
    return status;
}
const rv_layer_kind rv_kind_threshold = {
    .keeps_input = true,
    .plan_size = sizeof(rv_surrogate),
    .check = threshold_check,
    .forward = threshold_forward,
    .backward = threshold_backward,
    .derive = threshold_derive,
    .discard = spread_discard,
};
