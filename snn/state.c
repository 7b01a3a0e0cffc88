/*
 * State, its adjoint twin, and tape: flat blocks cut into the slots the layers asked for.
 *
 * A slot's size is linear in steps and samples, so one walk over all slots with the same numbers
 * gives the same offsets everywhere: state and twin, tapes of different chunks, the planner.
 */
#include <string.h>

#include "snn/layer.h"

/* Slots begin on a vector, so views into them are aligned for every kernel. */
static size_t slot_words(const rv_slot *slot, int T, int B) {
    size_t words =
        (slot->step * (size_t)B + slot->time) * (size_t)T + slot->sample * (size_t)B + slot->fixed;
    return (words + RV_LANES - 1) / RV_LANES * RV_LANES;
}

/* Offsets of all slots; returns the end. SIZE_MAX marks an empty slot. */
static size_t place_slots(const rv_slot slots[RV_LAYER_SLOTS], int T, int B, size_t at,
                          size_t *offset) {
    for (int k = 0; k < RV_LAYER_SLOTS; k++) {
        size_t words = slot_words(&slots[k], T, B);
        if (offset) offset[k] = words ? at : SIZE_MAX;
        at += words;
    }
    return at;
}

/* ---- state ------------------------------------------------------------------------------- */
/* Layers outside the range have none. offset NULL: the size alone. */
static size_t place_state(const rv_range *range, int B, size_t *offset) {
    static const rv_slot none[RV_LAYER_SLOTS];
    size_t at = 0;
    for (int l = 0; l < range->net->layer_count; l++, offset += offset ? RV_LAYER_SLOTS : 0) {
        bool in = l >= range->first && l < range->last;
        at = place_slots(in ? range->net->layers[l].state : none, 0, B, at, offset);
    }
    return at;
}

size_t rv_state_bytes(const rv_range *range, int B) {
    return 4 * place_state(range, B, NULL);
}

/* Made for B samples; a smaller micro-batch uses the front of every slot. */
rv_status rv_state_create_range(const rv_range *range, const rv_device *device, int B,
                                rv_state **out) {
    rv_status status = RV_OK;
    rv_state *state = NULL;
    const rv_net *net = range->net;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *state, "state", &state));
    state->net = net, state->device = device, state->B = B;
    TRY(rv_alloc((size_t)net->layer_count * RV_LAYER_SLOTS, sizeof *state->offset, "state",
                 &state->offset));
    state->size = place_state(range, B, state->offset);
    TRY(device->ops->alloc(device->ctx, 4 * state->size, "state", (void **)&state->block));
    *out = state;
    state = NULL;
out:
    rv_state_destroy(state);
    return status;
}

rv_status rv_state_create(const rv_net *net, const rv_device *device, int B, rv_state **out) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    return rv_state_create_range(&whole, device, B, out);
}

void rv_state_destroy(rv_state *state) {
    if (!state) return;
    state->device->ops->free(state->device->ctx, state->block);
    rv_free(state->offset);
    rv_free(state);
}

/* Zero is rest for every kind: membranes start at 0 and no spike came before. */
rv_status rv_state_clear(rv_state *state, rv_queue *queue) {
    return state->device->ops->zero(state->device->ctx, queue, state->block, 4 * state->size);
}

/* The frames of held outputs, the largest part of a state, are left: the first chunk writes them
 * before anything reads them. */
rv_status rv_state_start(rv_state *state, rv_queue *queue) {
    rv_status status = RV_OK;
    const rv_device *device = state->device;
    size_t at = 0;
    for (int l = 0; l <= state->net->layer_count; l++) {
        const rv_layer *layer = l < state->net->layer_count ? &state->net->layers[l] : NULL;
        size_t held = layer ? state->offset[l * RV_LAYER_SLOTS + RV_SLOT_HELD] : state->size;
        if (held == SIZE_MAX) continue;
        if (held > at)
            TRY(device->ops->zero(device->ctx, queue, state->block + at, 4 * (held - at)));
        if (layer) at = held + slot_words(&layer->state[RV_SLOT_HELD], 0, state->B);
    }
out:
    return status;
}

/* The adjoint twin has the same offsets: one function serves both. */
float *rv_state_slot(const rv_state *state, const rv_layer *layer, int k) {
    size_t offset = state->offset[layer->index * RV_LAYER_SLOTS + k];
    return offset == SIZE_MAX ? NULL : state->block + offset;
}

rv_status rv_state_copy(rv_state *to, const rv_state *from, rv_queue *queue) {
    return to->device->ops->copy(to->device->ctx, queue, to->block, false, from->block, false,
                                 4 * from->size);
}

/* Sums over time (held outputs, parameters, slopes of penalties) go on; what a step owes to the one
 * before ends. */
rv_status rv_state_cut(rv_state *adjoint, rv_queue *queue) {
    rv_status status = RV_OK;
    const rv_device *device = adjoint->device;
    for (int l = 0; l < adjoint->net->layer_count; l++) {
        const rv_layer *layer = &adjoint->net->layers[l];
        for (int k = 0; k < RV_LAYER_SLOTS; k++) {
            float *slot = rv_state_slot(adjoint, layer, k);
            if (slot && layer->kind->carried >> k & 1u)
                TRY(device->ops->zero(device->ctx, queue, slot,
                                      4 * slot_words(&layer->state[k], 0, adjoint->B)));
        }
    }
out:
    return status;
}

/* ---- tape -------------------------------------------------------------------------------- */
/* A row of what is kept as slot OUT: at every step, or once. */
static rv_slot row_slot(int n, bool spikes, bool held) {
    size_t row = spikes ? (size_t)rv_words(n) : (size_t)rv_round_up(n, RV_LANES);
    return held ? (rv_slot){.sample = row} : (rv_slot){.step = row};
}

/* Slots a layer has on the tape of a range that it does not belong to: room for what crosses the
 * front; h of a neuron behind the end, where the map before it writes its current. */
static void outside_slots(const rv_range *range, const rv_crossing *before, int l,
                          rv_slot slots[RV_LAYER_SLOTS]) {
    const rv_layer *layer = &range->net->layers[l];
    memset(slots, 0, sizeof(rv_slot) * RV_LAYER_SLOTS);
    for (int k = 0; before && k < before->count; k++)
        if (before->tensor[k].layer == l)
            slots[RV_SLOT_OUT] = row_slot(layer->n, layer->spikes, layer->held);
    if (l >= range->last && layer->in_place && layer->input[0] >= range->first &&
        layer->input[0] < range->last)
        slots[RV_SLOT_H] = layer->tape[RV_SLOT_H];
}

/* The encoded input has slot OUT of an entry past the layers; a held one is the batch's own, unless
 * that memory is apart from the device's. */
static void input_slots(const rv_range *range, bool apart, rv_slot slots[RV_LAYER_SLOTS]) {
    const rv_net_desc *desc = range->net->desc;
    int n = rv_shape_units(desc->input);
    memset(slots, 0, sizeof(rv_slot) * RV_LAYER_SLOTS);
    if (range->input && (apart || !desc->input_held))
        slots[RV_SLOT_OUT] = row_slot(n, desc->input_spikes, desc->input_held);
}

/* A map that writes into the neuron it feeds has its memory there, and shares its fate. */
rv_tape_policy rv_tape_policy_of(const rv_net *net, const uint8_t *policy, int layer) {
    const rv_layer *it = &net->layers[layer];
    const rv_layer *taker = it->consumer_count == 1 ? &net->layers[it->consumer] : NULL;
    if (!policy) return RV_TAPE_KEEP;
    bool shares = it->kind->map && taker && taker->in_place && taker->input[0] == layer;
    return policy[shares ? taker->index : layer];
}

bool rv_tape_has(const rv_range *range, const uint8_t *policy, rv_tape_policy what) {
    for (int l = range->first; l < range->last; l++)
        if (rv_tape_policy_of(range->net, policy, l) == what) return true;
    return false;
}

/* What becomes of an entry (a layer, or past the layers the input). What comes from before the
 * range cannot be computed again here; the input can, since encoders are pure. */
static rv_tape_policy entry_policy(const rv_range *range, const uint8_t *policy, int l) {
    const rv_net *net = range->net;
    bool spills = rv_tape_has(range, policy, RV_TAPE_SPILL);
    if (l == net->layer_count && rv_tape_has(range, policy, RV_TAPE_RECOMPUTE))
        return RV_TAPE_RECOMPUTE;
    if (l >= range->last && l < net->layer_count && net->layers[l].in_place)
        l = net->layers[l].input[0];
    if (l < range->first || l >= range->last) return spills ? RV_TAPE_SPILL : RV_TAPE_KEEP;
    return rv_tape_policy_of(net, policy, l);
}

bool rv_tape_encodes_again(const rv_range *range, const uint8_t *policy) {
    return entry_policy(range, policy, range->net->layer_count) == RV_TAPE_RECOMPUTE;
}

/* The part that slot k of an entry belongs to. Of a map's own adjoint nothing is there before B. */
static rv_tape_part part_of(const rv_range *range, const rv_taping *how, int l, int k) {
    bool inside = l >= range->first && l < range->last;
    bool half = inside && k == RV_SLOT_H && range->net->layers[l].kind == &rv_kind_neuron;
    if ((!how->policy && !how->half) || (inside && k == RV_SLOT_G)) return RV_PART_AGAIN;
    switch (entry_policy(range, how->policy, l)) {
    case RV_TAPE_KEEP:
        return half && how->half ? RV_PART_MEMBRANES : RV_PART_KEPT;
    case RV_TAPE_SPILL:
        return half ? RV_PART_SPILLED_MEMBRANES : RV_PART_SPILLED;
    case RV_TAPE_RECOMPUTE:
        break;
    }
    return RV_PART_AGAIN;
}

static void entry_slots(const rv_range *range, const rv_crossing *before, bool apart, int l,
                        rv_slot slots[RV_LAYER_SLOTS]) {
    if (l == range->net->layer_count)
        input_slots(range, apart, slots);
    else if (l >= range->first && l < range->last)
        memcpy(slots, range->net->layers[l].tape, sizeof(rv_slot) * RV_LAYER_SLOTS);
    else
        outside_slots(range, before, l, slots);
}

/* The same walk gives offsets and, without them, the sizes: a plan can ask for bytes before
 * anything is made. Part after part; end: where each ends. */
static void place_tape(const rv_range *range, const rv_crossing *before, bool apart,
                       const rv_taping *how, int T, int B, size_t *offset,
                       size_t end[RV_TAPE_PARTS]) {
    int entries = range->net->layer_count + 1;
    size_t at = 0;
    for (int part = 0; part < RV_TAPE_PARTS; part++) {
        for (int l = 0; l < entries; l++) {
            rv_slot slots[RV_LAYER_SLOTS];
            entry_slots(range, before, apart, l, slots);
            for (int k = 0; k < RV_LAYER_SLOTS; k++) {
                if (part_of(range, how, l, k) != (rv_tape_part)part) continue;
                size_t words = slot_words(&slots[k], T, B);
                if (offset) offset[l * RV_LAYER_SLOTS + k] = words ? at : SIZE_MAX;
                at += words;
            }
        }
        end[part] = at;
    }
}

/* What a planner counts per micro-batch and chunk in flight. */
size_t rv_tape_bytes(const rv_range *range, const rv_crossing *before, int T, int B) {
    static const rv_taping whole;
    size_t end[RV_TAPE_PARTS];
    place_tape(range, before, false, &whole, T, B, NULL, end);
    return 4 * end[RV_TAPE_PARTS - 1];
}

void rv_tape_sizes(const rv_range *range, const rv_crossing *before, const rv_taping *how, int T,
                   int B, size_t words[RV_TAPE_PARTS]) {
    place_tape(range, before, false, how, T, B, NULL, words);
    for (int part = RV_TAPE_PARTS - 1; part > 0; part--)
        words[part] -= words[part - 1];
}

/* All memory of a chunk in one block: F to W touch it in order, and freeing is one call. The
 * views (signal, adjoint) are set anew by every item, for the steps and samples it really has. */
rv_status rv_tape_create_parts(const rv_range *range, const rv_crossing *before,
                               const rv_device *device, const rv_taping *how, int T, int B,
                               rv_tape **out) {
    rv_status status = RV_OK;
    rv_tape *tape = NULL;
    const rv_net *net = range->net;
    size_t layers = (size_t)net->layer_count;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *tape, "tape", &tape));
    tape->range = *range, tape->net = net, tape->device = device, tape->T = T, tape->B = B;
    TRY(rv_alloc((layers + 1) * RV_LAYER_SLOTS, sizeof *tape->offset, "tape", &tape->offset));
    TRY(rv_alloc(layers + 1, sizeof *tape->signal, "tape", &tape->signal));
    TRY(rv_alloc(layers + 1, sizeof *tape->adjoint, "tape", &tape->adjoint));
    TRY(rv_alloc(2 * layers + 1, sizeof *tape->stack, "tape", &tape->stack));
    place_tape(range, before, device->ops->apart, how, T, B, tape->offset, tape->end);
    TRY(device->ops->alloc(device->ctx, 4 * (tape->end[RV_PART_AGAIN] - tape->end[RV_PART_KEPT]),
                           "tape", (void **)&tape->block));
    *out = tape;
    tape = NULL;
out:
    rv_tape_destroy(tape);
    return status;
}

rv_status rv_tape_create_range(const rv_range *range, const rv_crossing *before,
                               const rv_device *device, int T, int B, rv_tape **out) {
    static const rv_taping whole;
    return rv_tape_create_parts(range, before, device, &whole, T, B, out);
}

rv_status rv_tape_create(const rv_net *net, const rv_device *device, int T, int B, rv_tape **out) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    return rv_tape_create_range(&whole, NULL, device, T, B, out);
}

void rv_tape_attach(rv_tape *tape, float *kept) {
    tape->kept = kept;
}

float *rv_tape_part_memory(const rv_tape *tape, rv_tape_part part) {
    return tape->block + tape->end[part - 1] - tape->end[RV_PART_KEPT];
}

/* Signals and kept memory are borrowed; only the block and the arrays are the tape's. */
void rv_tape_destroy(rv_tape *tape) {
    if (!tape) return;
    tape->device->ops->free(tape->device->ctx, tape->block);
    rv_free(tape->stack);
    rv_free(tape->adjoint);
    rv_free(tape->signal);
    rv_free(tape->offset);
    rv_free(tape);
}

/* Entries are the layers, then the input. */
static float *tape_at(const rv_tape *tape, int entry, int k) {
    size_t offset = tape->offset[entry * RV_LAYER_SLOTS + k];
    if (offset == SIZE_MAX) return NULL;
    size_t kept = tape->end[RV_PART_KEPT];
    return offset < kept ? tape->kept + offset : tape->block + offset - kept;
}

float *rv_tape_slot(const rv_tape *tape, const rv_layer *layer, int k) {
    return tape_at(tape, layer->index, k);
}

/* A held input of the host needs no copy: the batch outlives the item. What an encoder draws does
 * not, nor does a message. */
rv_signal rv_tape_memory(const rv_tape *tape, int layer, int T, int B) {
    const rv_net_desc *desc = tape->net->desc;
    const rv_layer *l = layer < 0 ? NULL : &tape->net->layers[layer];
    int n = l ? l->n : rv_shape_units(desc->input);
    bool spikes = l ? l->spikes : desc->input_spikes, held = l ? l->held : desc->input_held;
    float *memory = tape_at(tape, l ? layer : tape->net->layer_count, RV_SLOT_OUT);
    rv_signal signal = {{0}, {0}};
    if (!memory) return signal;
    if (spikes)
        signal.spikes = rv_spikes_of((uint32_t *)(void *)memory, T, B, n);
    else
        signal.values = rv_values_of(memory, T, B, n);
    if (held) signal.values.stride_t = 0;
    return signal;
}

/* A receiver sets the signal of a tensor that crosses the front. */
rv_signal *rv_tape_signal(rv_tape *tape, int layer) {
    return &tape->signal[layer + 1];
}

/* In pieces that stay in the first cache. */
rv_status rv_tape_round(rv_tape *tape) {
    rv_status status = RV_OK;
    enum { PIECE = 1024 };
    uint16_t piece[PIECE];
    TRY(tape->device->ops->queue_sync(tape->device->ctx, NULL));
    for (int l = tape->range.first; l < tape->range.last; l++) {
        if (tape->net->layers[l].kind != &rv_kind_neuron) continue;
        const rv_values h = rv_tape_membrane(tape, l);
        size_t count = (size_t)h.T * (size_t)h.B * (size_t)h.ld;
        for (size_t i = 0; i < count; i += PIECE) {
            size_t part = count - i < PIECE ? count - i : PIECE;
            rv_half_pack(h.data + i, piece, part);
            rv_half_unpack(piece, h.data + i, part);
        }
    }
out:
    return status;
}
