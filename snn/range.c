/*
 * Layer ranges: which part of the network's block belongs to one, and what crosses a cut.
 *
 * Tensors stand in three classes (trained, frozen, buffers), each in network order, so those of a
 * range are one stretch per class; its own block is these three, one after the other.
 */
#include <string.h>

#include "snn/layer.h"

/* ---- blocks ------------------------------------------------------------------------------ */
rv_range rv_net_range(const rv_net *net, int first, int last) {
    rv_range range = {.net = net, .first = first, .last = last};
    for (int k = 0; k < net->tensor_count; k++) {
        const rv_tensor *tensor = &net->tensors[k];
        int class = rv_tensor_class(tensor);
        if (tensor->layer < first || tensor->layer >= last) continue;
        if (range.count[class] == 0) range.from[class] = tensor->offset;
        range.count[class] += tensor->count;
    }
    range.n_trained = range.count[0];
    range.n_all = range.count[0] + range.count[1] + range.count[2];
    for (int l = first; l < last; l++)
        for (int k = 0; k < net->layers[l].input_count; k++)
            range.input |= net->layers[l].input[k] < 0;
    return range;
}

size_t rv_range_offset(const rv_range *range, const rv_tensor *tensor) {
    int class = rv_tensor_class(tensor);
    size_t at = 0;
    for (int k = 0; k < class; k++)
        at += range->count[k];
    return at + tensor->offset - range->from[class];
}

void rv_range_take(const rv_range *range, const float *whole, float *part, bool trained) {
    for (int class = 0; class < (trained ? 1 : 3); part += range->count[class ++])
        memcpy(part, whole + range->from[class], sizeof *part * range->count[class]);
}

void rv_range_give(const rv_range *range, const float *part, float *whole, bool trained) {
    for (int class = 0; class < (trained ? 1 : 3); part += range->count[class ++])
        memcpy(whole + range->from[class], part, sizeof *part * range->count[class]);
}

/* ---- cuts -------------------------------------------------------------------------------- */
/* A view takes nothing itself, those that take from it do; but the last one's output is read by
 * the loss. */
static bool taken_from(const rv_net *net, int cut, int source) {
    for (int l = cut; l < net->layer_count; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->kind->view && l + 1 < net->layer_count) continue;
        for (int k = 0; k < layer->input_count; k++)
            if (layer->input[k] == source) return true;
    }
    return false;
}

rv_status rv_net_crossing(const rv_net *net, int cut, rv_crossing *out) {
    rv_status status = RV_OK;
    *out = (rv_crossing){0};
    TRY(rv_alloc((size_t)cut, sizeof *out->tensor, "what crosses a cut", &out->tensor));
    for (int l = 0; l < cut; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->kind->view || !taken_from(net, cut, l)) continue;
        out->tensor[out->count++] =
            (rv_crossed){l, layer->n, layer->ld, layer->spikes, layer->held, layer->live};
    }
out:
    return status;
}

/* ---- counting ---------------------------------------------------------------------------- */
/* Spikes of one sample within its length: views of one row, for sample counts differ. */
static rv_status count_sample(const rv_pass *pass, rv_spikes s, int b, int64_t *count) {
    const int32_t *length = pass->batch->length;
    int steps = length ? length[pass->row + b] - pass->t0 : s.T;
    s.bits += (size_t)b * (size_t)rv_words(s.n);
    s.B = 1;
    if (steps < s.T) s.T = steps < 0 ? 0 : steps;
    return pass->device->ops->count_spikes(pass->device->ctx, pass->queue, s, count);
}

rv_status rv_pass_count_spikes(const rv_pass *pass, int64_t *spikes) {
    rv_status status = RV_OK;
    for (int l = pass->first; l < pass->last; l++) {
        rv_spikes s = pass->tape->signal[l + 1].spikes;
        for (int b = 0; s.bits && b < pass->B; b++)
            TRY(count_sample(pass, s, b, &spikes[l]));
    }
out:
    return status;
}
