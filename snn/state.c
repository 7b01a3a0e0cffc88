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
/* Made for B samples; a smaller micro-batch uses the front of every slot. */
rv_status rv_state_create(const rv_net *net, const rv_device *device, int B, rv_state **out) {
    rv_status status = RV_OK;
    rv_state *state = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *state, "state", &state));
    state->net = net, state->device = device, state->B = B;
    TRY(rv_alloc((size_t)net->layer_count * RV_LAYER_SLOTS, sizeof *state->offset, "state",
                 &state->offset));
    for (int l = 0; l < net->layer_count; l++)
        state->size = place_slots(net->layers[l].state, 0, B, state->size,
                                  state->offset + l * RV_LAYER_SLOTS);
    TRY(device->ops->alloc(device->ctx, 4 * state->size, "state", (void **)&state->block));
    *out = state;
    state = NULL;
out:
    rv_state_destroy(state);
    return status;
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

/* The adjoint twin has the same offsets: one function serves both. */
float *rv_state_slot(const rv_state *state, const rv_layer *layer, int k) {
    size_t offset = state->offset[layer->index * RV_LAYER_SLOTS + k];
    return offset == SIZE_MAX ? NULL : state->block + offset;
}

/* ---- tape -------------------------------------------------------------------------------- */
/* The encoded input has slot OUT of an entry past the layers. */
static void input_slots(const rv_net *net, rv_slot slots[RV_LAYER_SLOTS]) {
    int n = rv_shape_units(net->desc->input);
    memset(slots, 0, sizeof(rv_slot) * RV_LAYER_SLOTS);
    if (net->desc->input_held) return;
    slots[RV_SLOT_OUT].step =
        net->desc->input_spikes ? (size_t)rv_words(n) : (size_t)rv_round_up(n, RV_LANES);
}

/* The same walk gives offsets and, without them, the size: a plan can ask for bytes before
 * anything is made. */
static size_t place_tape(const rv_net *net, int T, int B, size_t *offset) {
    rv_slot slots[RV_LAYER_SLOTS];
    size_t at = 0;
    for (int l = 0; l < net->layer_count; l++, offset += offset ? RV_LAYER_SLOTS : 0)
        at = place_slots(net->layers[l].tape, T, B, at, offset);
    input_slots(net, slots);
    return place_slots(slots, T, B, at, offset);
}

/* What a planner counts per micro-batch and chunk in flight. */
size_t rv_tape_bytes(const rv_net *net, int T, int B) {
    return 4 * place_tape(net, T, B, NULL);
}

/* All memory of a chunk in one block: F to W touch it in order, and freeing is one call. The
 * views (signal, adjoint) are set anew by every item, for the steps and samples it really has. */
rv_status rv_tape_create(const rv_net *net, const rv_device *device, int T, int B, rv_tape **out) {
    rv_status status = RV_OK;
    rv_tape *tape = NULL;
    size_t layers = (size_t)net->layer_count;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *tape, "tape", &tape));
    tape->net = net, tape->device = device, tape->T = T, tape->B = B;
    TRY(rv_alloc((layers + 1) * RV_LAYER_SLOTS, sizeof *tape->offset, "tape", &tape->offset));
    TRY(rv_alloc(layers + 1, sizeof *tape->signal, "tape", &tape->signal));
    TRY(rv_alloc(layers + 1, sizeof *tape->adjoint, "tape", &tape->adjoint));
    TRY(rv_alloc(2 * layers + 1, sizeof *tape->stack, "tape", &tape->stack));
    tape->size = place_tape(net, T, B, tape->offset);
    TRY(device->ops->alloc(device->ctx, 4 * tape->size, "tape", (void **)&tape->block));
    *out = tape;
    tape = NULL;
out:
    rv_tape_destroy(tape);
    return status;
}

/* Signals are borrowed; only the block and the arrays are the tape's. */
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
    return offset == SIZE_MAX ? NULL : tape->block + offset;
}

float *rv_tape_slot(const rv_tape *tape, const rv_layer *layer, int k) {
    return tape_at(tape, layer->index, k);
}

/* A held input needs no copy: the batch outlives the item. What an encoder draws does not. */
rv_signal rv_tape_input(const rv_tape *tape, int T, int B) {
    const rv_net_desc *desc = tape->net->desc;
    int n = rv_shape_units(desc->input);
    float *memory = tape_at(tape, tape->net->layer_count, RV_SLOT_OUT);
    rv_signal signal = {{0}, {0}};
    if (desc->input_spikes)
        signal.spikes = rv_spikes_of((uint32_t *)(void *)memory, T, B, n);
    else if (memory)
        signal.values = rv_values_of(memory, T, B, n);
    return signal;
}

/* A receiver sets the signal of the layer before its range to the slot of the link. */
rv_signal *rv_tape_signal(rv_tape *tape, int layer) {
    return &tape->signal[layer + 1];
}
