/*
 * Delays of whole or fractional steps, one or one per channel, fixed or learned. The ring of past
 * inputs is state, so a delay crosses chunk borders; what a chunk's adjoint owes to inputs before
 * it travels in the ring of the adjoint twin.
 */
#include <math.h>

#include "snn/layers.h"

const rv_spec rv_delay_specs[] = {
    {"delay", RV_T_REALS, offsetof(rv_delay_options, delay), NAN, 0, 1 << 16, false, NULL, NULL,
     "steps, one or one per channel; fractions interpolate between two steps"},
    {"steps", RV_T_INT, offsetof(rv_delay_options, steps), 0, 0, 1 << 16, false, NULL, NULL,
     "the same as a whole number, where delay is not given"},
    {"max_delay", RV_T_INT, offsetof(rv_delay_options, max_delay), 0, 0, 1 << 16, false, NULL, NULL,
     "longest delay; 0: the next whole number from the largest given"},
    {"learnable", RV_T_BOOL, offsetof(rv_delay_options, learnable), 0, 0, 1, false, NULL, NULL,
     "train the delays, within 0 to max_delay"},
    {0},
};

enum { DELAY };
enum { STATE_RING = RV_SLOT_STATE };
enum { TAPE_RING = RV_SLOT_TAPE };

typedef struct delay_plan {
    rv_plane plane;
    rv_reals given;
    int max;
} delay_plan;

/* Delays of the description, the ring they need, and the tensor where they are learned. */
static rv_status delay_check(rv_net *net, rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_delay_options *options = layer->desc->options;
    delay_plan *plan = layer->plan;
    float largest = 0.0f;
    bool listed = options->delay.count > 1 || !isnan(options->delay.value);
    TRY(rv_layer_same_shape(net, layer));
    layer->held = false; /* the first steps see nothing yet */
    plan->plane = rv_shape_plane(layer->shape);
    plan->given = options->delay;
    if (listed && options->steps)
        TRY(rv_fail_at(RV_CONFIG, layer->desc->where, "steps", NULL,
                       "layer \"%s\": \"delay\" and \"steps\" say the same thing: give one of them",
                       layer->desc->name));
    if (!listed) plan->given = (rv_reals){1, &plan->given.value, (float)options->steps};
    if (plan->given.count != 1 && plan->given.count != plan->plane.c)
        TRY(rv_fail_at(RV_CONFIG, layer->desc->where, "delay", NULL,
                       "layer \"%s\" has %d channels, but delay lists %d values", layer->desc->name,
                       plan->plane.c, plan->given.count));
    for (int k = 0; k < plan->given.count; k++)
        largest = fmaxf(largest, plan->given.data[k]);
    plan->max = options->max_delay ? options->max_delay : (int)ceilf(largest);
    if (largest > (float)plan->max)
        TRY(rv_fail_at(RV_CONFIG, layer->desc->where, "max_delay", NULL,
                       "layer \"%s\" has max_delay %d, but a delay of %g steps", layer->desc->name,
                       plan->max, (double)largest));
    if (options->learnable)
        rv_layer_tensor(net, layer, DELAY,
                        &(rv_tensor_desc){"delay", 1, {plan->plane.c}, RV_LAYOUT_FLAT, 0, false});
    size_t ring = (size_t)(plan->max + 1) * (size_t)rv_round_up(rv_shape_units(layer->shape), 16);
    layer->state[STATE_RING].sample = ring;
    layer->tape[TAPE_RING].sample = ring;
out:
    return status;
}

/* One number serves all channels. */
static float delay_value(const delay_plan *plan, int channel) {
    return plan->given.data[plan->given.count == 1 ? 0 : channel];
}

static void delay_initial(const rv_net *net, const rv_layer *layer, int k, float *file) {
    const delay_plan *plan = layer->plan;
    (void)net, (void)k;
    for (int c = 0; c < plan->plane.c; c++)
        file[c] = delay_value(plan, c);
}

/* Fixed delays become an array once; learned ones are read where they are stored. */
static rv_status delay_derive(rv_version *version, const rv_layer *layer, int rows) {
    rv_status status = RV_OK;
    const delay_plan *plan = layer->plan;
    struct rv_derived *derived = &version->derived[layer->index];
    (void)rows;
    if (layer->tensor[DELAY] >= 0 || derived->params) return RV_OK; /* the tensor itself serves */
    TRY(rv_alloc((size_t)plan->plane.c, sizeof(float), "delays", &derived->params));
    for (int c = 0; c < plan->plane.c; c++)
        derived->params[c] = delay_value(plan, c);
out:
    return status;
}
static void delay_discard(rv_version *version, const rv_layer *layer) {
    rv_free(version->derived[layer->index].params);
}

/* The ring is set by the caller: F works on the state, B on what F found. */
static const float *delays_in(const rv_version *version, const rv_layer *layer) {
    const float *learned = rv_version_tensor(version, layer, DELAY);
    return learned ? learned : version->derived[layer->index].params;
}
static rv_delay delay_of(const rv_pass *pass, const rv_layer *layer) {
    const delay_plan *plan = layer->plan;
    return (rv_delay){.plane = plan->plane,
                      .max = plan->max,
                      .delay = delays_in(pass->version, layer),
                      .back = delays_in(rv_pass_back(pass), layer)};
}

static rv_status delay_forward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_device *device = pass->device;
    rv_delay delay = delay_of(pass, layer);
    size_t bytes = (size_t)(delay.max + 1) * (size_t)pass->B * (size_t)layer->ld * sizeof(float);
    delay.ring = rv_state_slot(pass->state, layer, STATE_RING);
    TRY(rv_pass_starts(pass, &delay.starts));
    /* B needs the ring of the chunk's start, and the state moves on. */
    TRY(device->ops->copy(device->ctx, pass->queue, rv_tape_slot(pass->tape, layer, TAPE_RING),
                          false, delay.ring, false, bytes));
    TRY(device->ops->delay_forward(device->ctx, pass->queue, &delay, rv_pass_input(pass, layer, 0),
                                   rv_pass_output(pass, layer)->values, pass->arena));
out:
    return status;
}

/* The adjoint twin's ring comes in as later chunks left it and goes out for earlier ones. */
static rv_status delay_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_delay delay = delay_of(pass, layer);
    rv_values g = rv_pass_adjoint(pass, layer), gx;
    bool add;
    if (!g.data) return RV_OK;
    delay.ring = rv_tape_slot(pass->tape, layer, TAPE_RING);
    delay.ring_adjoint = rv_state_slot(pass->adjoint, layer, STATE_RING);
    TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    size_t mark = rv_arena_mark(pass->arena);
    TRY(rv_pass_starts(pass, &delay.starts));
    TRY(pass->device->ops->delay_backward(pass->device->ctx, pass->queue, &delay,
                                          rv_pass_input(pass, layer, 0), g, gx, add,
                                          rv_pass_gradient(pass, layer, DELAY), pass->arena));
    rv_arena_release(pass->arena, mark);
out:
    return status;
}

const rv_layer_kind rv_kind_delay = {
    .carried = 1u << STATE_RING,
    .keeps_input = true,
    .plan_size = sizeof(delay_plan),
    .check = delay_check,
    .forward = delay_forward,
    .backward = delay_backward,
    .derive = delay_derive,
    .discard = delay_discard,
    .initial = delay_initial,
};
