/*
 * The layer of every neuron kind: state and tape around the device's neuron ops.
 *
 * The kinds differ in neuron.h of the kernels only; here a layer is planes of memory: what the op
 * carries from chunk to chunk (state), what B reads of F (h, and i, a where asked for), what it
 * sums per unit (parameter gradients). h is also where the map in front writes its current and
 * where B leaves the adjoint of that current for W, so one plane of T*B floats is all a layer
 * needs besides its bits.
 */
#include <string.h>

#include "snn/neuron.h"

/* ---- F ----------------------------------------------------------------------------------- */
static rv_neuron_state state_of(const rv_state *state, const rv_layer *layer) {
    return (rv_neuron_state){
        .v = rv_state_slot(state, layer, STATE_V),
        .i = rv_state_slot(state, layer, STATE_I),
        .a = rv_state_slot(state, layer, STATE_A),
        .x = rv_state_slot(state, layer, STATE_X),
        .last = (uint32_t *)(void *)rv_state_slot(state, layer, STATE_LAST),
    };
}

/* Planes a kind does not keep have no slot; ops take that as "not there". */
static rv_values plane_of(const rv_pass *pass, const rv_layer *layer, int slot) {
    float *memory = rv_tape_slot(pass->tape, layer, slot);
    if (!memory) return (rv_values){0};
    return rv_values_of(memory, pass->t1 - pass->t0, pass->B, layer->n);
}

/* The frame of bits before the chunk's, in front of the output (recurrent layers). */
static uint32_t *frame_before(const rv_pass *pass, const rv_layer *layer) {
    return (uint32_t *)(void *)rv_tape_slot(pass->tape, layer, RV_SLOT_OUT);
}

/* Device memory on both sides. */
static rv_status keep_plane(const rv_pass *pass, void *to, const void *from, size_t words) {
    const rv_device *device = pass->device;
    if (!to || !from) return RV_OK;
    return device->ops->copy(device->ctx, pass->queue, to, false, from, false, 4 * words);
}

/* F overwrites the state, and B of this chunk comes after F of later ones: what it needs of the
 * time before the chunk is copied here. */
static rv_status keep_before(const rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_neuron_state state = state_of(pass->state, layer);
    size_t plane = (size_t)pass->B * (size_t)layer->ld;
    size_t bits = (size_t)pass->B * (size_t)rv_words(layer->n);
    TRY(keep_plane(pass, rv_tape_slot(pass->tape, layer, TAPE_V0), state.v, plane));
    TRY(keep_plane(pass, rv_tape_slot(pass->tape, layer, TAPE_I0), state.i, plane));
    TRY(keep_plane(pass, rv_tape_slot(pass->tape, layer, TAPE_A0), state.a, plane));
    if (layer->recurrent) TRY(keep_plane(pass, frame_before(pass, layer), state.last, bits));
out:
    return status;
}

/* A learned scalar and a constant look alike to the ops: arrays of ld floats. */
static void param_arrays(const rv_version *version, const rv_layer *layer,
                         const float *param[RV_P_COUNT]) {
    const float *all = version->derived[layer->index].params;
    for (int p = 0; p < RV_P_COUNT; p++)
        param[p] = all + (size_t)p * (size_t)layer->ld;
}

/* x is h itself where the map wrote into it; the op reads a value before it overwrites it. In a
 * fused op the current never exists. */
static rv_status neuron_forward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_device *device = pass->device;
    const neuron_plan *plan = layer->plan;
    const rv_layer *source =
        layer->input[0] < pass->first ? NULL : &pass->net->layers[layer->input[0]];
    rv_map map = {0};
    rv_neuron_forward n = {
        .neuron = &plan->neuron,
        .T = pass->t1 - pass->t0,
        .B = pass->B,
        .n = layer->n,
        .ld = layer->ld,
        .x = rv_pass_input(pass, layer, 0)->values,
        .h = plane_of(pass, layer, TAPE_H),
        .i = plane_of(pass, layer, TAPE_I),
        .a = plane_of(pass, layer, TAPE_A),
        .s = rv_pass_output(pass, layer)->spikes,
        .state = state_of(pass->state, layer),
    };
    param_arrays(pass->version, layer, n.param);
    TRY(rv_pass_starts(pass, &n.starts));
    TRY(keep_before(pass, layer));
    /* One of the two: a recurrent layer is never fused. */
    if (layer->recurrent) map = rv_neuron_map(pass->version, layer), n.recurrent = &map;
    if (source && layer->in_place && rv_pass_fused(pass, source)) {
        map = rv_linear_map(pass->version, source);
        TRY(device->ops->map_neuron_forward(device->ctx, pass->queue, &map,
                                            rv_pass_input(pass, source, 0), &n, pass->arena));
    } else {
        TRY(device->ops->neuron_forward(device->ctx, pass->queue, &n, pass->arena));
    }
    /* An integrator whose value is used by other layers: they read it after B has put the
     * adjoint into h. */
    rv_values out = rv_pass_output(pass, layer)->values;
    if (out.data && out.data != n.h.data) TRY(rv_values_copy(pass, out, n.h, false));
out:
    return status;
}

/* ---- B ----------------------------------------------------------------------------------- */
enum { PART_FLOATS = 1 << 19 }; /* of the spikes' adjoint: the second cache, or one step */

/* Learned parameters look back over the border of a part, a penalty at the whole adjoint, and
 * feedback adds to it inside the time loop. */
const rv_layer *rv_pass_parts(const rv_pass *pass, const rv_layer *layer) {
    const rv_layer *map = &pass->net->layers[layer->consumer];
    if (layer->kind != &rv_kind_neuron || layer->consumer_count != 1) return NULL;
    const neuron_plan *plan = layer->plan;
    bool parts = layer->spikes && layer->live && !layer->recurrent && plan->learned == 0 &&
                 !layer->desc->regularizer.row && map->kind == &rv_kind_linear &&
                 map->index < pass->last;
    return parts ? map : NULL;
}

/* Steps [t0, t1) of a view. */
static rv_values steps_of(rv_values v, int t0, int t1) {
    if (v.data) v.data += (size_t)t0 * v.stride_t, v.T = t1 - t0;
    return v;
}

/* A part is a chunk to both ops, and chunks give the same bits as the whole. */
static rv_status parts_backward(rv_pass *pass, const rv_layer *map_layer,
                                const rv_neuron_backward *n) {
    rv_status status = RV_OK;
    const rv_device *device = pass->device;
    const rv_map map = rv_linear_map(rv_pass_back(pass), map_layer);
    const rv_values g = rv_pass_adjoint(pass, map_layer);
    size_t step = (size_t)n->B * (size_t)n->ld;
    int most = step < PART_FLOATS ? (int)(PART_FLOATS / step) : 1;
    float *memory = NULL;
    if (most > n->T) most = n->T;
    TRY(rv_arena_get(pass->arena, (size_t)most * step, sizeof *memory, &memory));
    for (int t1 = n->T, t0; t1 > 0; t1 = t0) {
        t0 = t1 > most ? t1 - most : 0;
        rv_neuron_backward part = *n;
        part.T = t1 - t0;
        part.h = steps_of(n->h, t0, t1);
        part.i = steps_of(n->i, t0, t1);
        part.a = steps_of(n->a, t0, t1);
        part.s.bits += (size_t)t0 * n->s.stride_t;
        part.s.T = part.T;
        if (n->starts) part.starts += (size_t)t0 * (size_t)rv_words(n->B);
        part.gs = rv_values_of(memory, part.T, n->B, n->n);
        TRY(device->ops->map_backward(device->ctx, pass->queue, &map, steps_of(g, t0, t1), part.gs,
                                      false, pass->arena));
        TRY(device->ops->neuron_backward(device->ctx, pass->queue, &part, pass->arena));
    }
out:
    return status;
}

static rv_status neuron_backward(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    const rv_device *device = pass->device;
    const neuron_plan *plan = layer->plan;
    rv_values adjoint = rv_pass_adjoint(pass, layer), gx = {0};
    bool last = layer->index == rv_pass_last(pass), add = false;
    bool held = rv_layer_in_held(pass->net, layer, 0);
    bool in_place = layer->in_place && layer->input[0] >= pass->first;
    rv_map map = {0};
    rv_neuron_backward n = {
        .neuron = &plan->neuron,
        .T = pass->t1 - pass->t0,
        .B = pass->B,
        .n = layer->n,
        .ld = layer->ld,
        .h = plane_of(pass, layer, TAPE_H),
        .i = plane_of(pass, layer, TAPE_I),
        .a = plane_of(pass, layer, TAPE_A),
        .s = rv_pass_output(pass, layer)->spikes,
        .before = {.v = rv_tape_slot(pass->tape, layer, TAPE_V0),
                   .i = rv_tape_slot(pass->tape, layer, TAPE_I0),
                   .a = rv_tape_slot(pass->tape, layer, TAPE_A0),
                   .last = layer->recurrent ? frame_before(pass, layer) : NULL},
        .adjoint = state_of(pass->adjoint, layer),
    };
    param_arrays(pass->version, layer, n.param);
    if (plan->learned) param_arrays(rv_pass_back(pass), layer, n.back);
    if (layer->spikes)
        n.gs = adjoint;
    else
        n.gv = adjoint; /* an integrator's output is v = h */
    if (last && pass->gv.data) n.gv = pass->gv;
    if (last) n.gh = pass->gh;
    for (int p = 0; p < RV_P_COUNT; p++) {
        if (plan->param[p].grad >= 0)
            n.grad[p] = rv_state_slot(pass->adjoint, layer, STATE_GRAD) +
                        (size_t)plan->param[p].grad * (size_t)layer->ld;
    }
    if (layer->recurrent) map = rv_neuron_map(rv_pass_back(pass), layer), n.recurrent = &map;
    if (!in_place) TRY(rv_pass_adjoint_in(pass, layer, 0, &gx, &add));
    if (held) n.held = gx;
    size_t mark = rv_arena_mark(pass->arena);
    TRY(rv_pass_starts(pass, &n.starts));
    const rv_layer *parts = rv_pass_parts(pass, layer);
    if (parts && rv_pass_adjoint(pass, parts).data)
        TRY(parts_backward(pass, parts, &n));
    else
        TRY(device->ops->neuron_backward(device->ctx, pass->queue, &n, pass->arena));
    rv_arena_release(pass->arena, mark);
    if (in_place)
        pass->tape->adjoint[layer->input[0] + 1] = n.h;
    else if (gx.data && !held)
        TRY(rv_values_copy(pass, gx, n.h, add));
    if (pass->t0 == 0 && plan->learned) {
        TRY(rv_pass_sync(pass));
        rv_neuron_gradients(pass, layer);
    }
out:
    return status;
}

/* ---- W ----------------------------------------------------------------------------------- */
/* Spikes of the step before, from the frame in front of the chunk on. A sample that restarts
 * before step t takes nothing from step t-1. */
static rv_status spikes_before(const rv_pass *pass, const rv_layer *layer, rv_spikes *out) {
    rv_status status = RV_OK;
    const uint32_t *starts = NULL;
    uint32_t *bits = NULL;
    int words = rv_words(layer->n), T = pass->t1 - pass->t0;
    *out = rv_spikes_of(frame_before(pass, layer), T, pass->B, layer->n);
    TRY(rv_pass_starts(pass, &starts));
    if (!starts) goto out;
    size_t count = (size_t)T * out->stride_t;
    TRY(rv_arena_get(pass->arena, count, sizeof *bits, &bits));
    TRY(rv_pass_sync(pass)); /* the host reads spikes, and writes where ops may have been */
    memcpy(bits, out->bits, sizeof *bits * count);
    for (int t = 0; t < T; t++) {
        for (int b = 0; b < pass->B; b++) {
            if (starts[(size_t)t * (size_t)rv_words(pass->B) + (size_t)b / 32] >> b % 32 & 1u)
                memset(bits + (size_t)t * out->stride_t + (size_t)b * (size_t)words, 0,
                       sizeof *bits * (size_t)words);
        }
    }
    out->bits = bits;
out:
    return status;
}

/* The recurrent weight sees the spikes of the step before and the adjoint of the current, which
 * B left in h. */
static rv_status neuron_weight(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    float *gradient = rv_pass_gradient(pass, layer, RECURRENT);
    rv_map map = {0};
    rv_signal x = {{0}, {0}};
    if (!gradient) goto out;
    map = rv_neuron_map(pass->version, layer);
    TRY(spikes_before(pass, layer, &x.spikes));
    TRY(pass->device->ops->map_weight(pass->device->ctx, pass->queue, &map, &x,
                                      plane_of(pass, layer, TAPE_H), gradient, NULL, pass->arena));
out:
    return status;
}

/* Recurrence is all to all; other neuron layers have no product. */
static int64_t neuron_targets(const rv_net *net, const rv_layer *layer) {
    (void)net;
    return layer->recurrent ? (int64_t)layer->n * layer->n : 0;
}

const rv_layer_kind rv_kind_neuron = {
    .carried = 1u << STATE_V | 1u << STATE_I | 1u << STATE_A | 1u << STATE_X | 1u << STATE_LAST,
    .plan_size = sizeof(neuron_plan),
    .check = rv_neuron_check,
    .forward = neuron_forward,
    .backward = neuron_backward,
    .weight = neuron_weight,
    .derive = rv_neuron_derive,
    .discard = rv_neuron_discard,
    .initial = rv_neuron_initial,
    .targets = neuron_targets,
};
