/*
 * What a message holds: the tensors that cross a cut, one after the other, each beginning on a
 * vector. Both ends compute the places from steps and samples, so nothing but data is sent.
 */
#include <string.h>

#include "pipeline/stage.h"

/* 64 bytes are the widest vector: ops read and write the payload in place. */
static size_t to_vector(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* A held tensor is the same at all steps, so one frame stands for T. */
static size_t rows_of(const rv_crossed *tensor, int T, int B) {
    return (size_t)(tensor->held ? 1 : T) * (size_t)B;
}

/* Rows keep the padding they have in memory: whole frames are copied, and ops work in place. */
static size_t forward_bytes(const rv_crossed *tensor, int T, int B) {
    int words = tensor->spikes ? rv_words(tensor->n) : tensor->ld;
    return to_vector(4 * rows_of(tensor, T, B) * (size_t)words);
}

/* Adjoints are real numbers even where forward sends bits. A tensor that is not live gets none, so
 * it takes no room. */
static size_t backward_bytes(const rv_crossed *tensor, int T, int B) {
    return tensor->live ? to_vector(4 * rows_of(tensor, T, B) * (size_t)tensor->ld) : 0;
}

size_t rv_wire_forward_bytes(const rv_crossing *crossing, int T, int B) {
    size_t bytes = 0;
    for (int k = 0; k < crossing->count; k++)
        bytes += forward_bytes(&crossing->tensor[k], T, B);
    return bytes;
}

size_t rv_wire_backward_bytes(const rv_crossing *crossing, int T, int B) {
    size_t bytes = 0;
    for (int k = 0; k < crossing->count; k++)
        bytes += backward_bytes(&crossing->tensor[k], T, B);
    return bytes;
}

/* Stride 0 lets ops walk over T steps of a held tensor while there is memory for one. */
void rv_wire_forward(const rv_crossing *crossing, int T, int B, void *payload, rv_signal *signal) {
    char *at = payload;
    for (int k = 0; k < crossing->count; k++) {
        const rv_crossed *tensor = &crossing->tensor[k];
        signal[k] = (rv_signal){{0}, {0}};
        if (tensor->spikes)
            signal[k].spikes = rv_spikes_of((uint32_t *)(void *)at, T, B, tensor->n);
        else
            signal[k].values = rv_values_of((float *)(void *)at, T, B, tensor->n);
        if (tensor->held) signal[k].values.stride_t = 0;
        at += forward_bytes(tensor, T, B);
    }
}

/* The same tensors in the same order; those that are not live take no room and no view. */
void rv_wire_backward(const rv_crossing *crossing, int T, int B, void *payload, rv_values *g) {
    char *at = payload;
    for (int k = 0; k < crossing->count; k++) {
        const rv_crossed *tensor = &crossing->tensor[k];
        g[k] = (rv_values){0};
        if (!tensor->live) continue;
        g[k] = rv_values_of((float *)(void *)at, tensor->held ? 1 : T, B, tensor->n);
        if (tensor->held) g[k].stride_t = 0;
        at += backward_bytes(tensor, T, B);
    }
}

/* Whole frames: rows lie the same way at both ends. */
rv_status rv_wire_copy(const rv_device *device, rv_queue *queue, const rv_signal *from,
                       const rv_signal *to) {
    rv_status status = RV_OK;
    bool bits = to->spikes.bits != NULL;
    const void *source = bits ? (const void *)from->spikes.bits : (const void *)from->values.data;
    void *target = bits ? (void *)to->spikes.bits : (void *)to->values.data;
    size_t frame = bits ? (size_t)to->spikes.B * (size_t)rv_words(to->spikes.n)
                        : (size_t)to->values.B * (size_t)to->values.ld;
    bool held = !bits && to->values.stride_t == 0;
    size_t frames = held ? 1 : (size_t)(bits ? to->spikes.T : to->values.T);
    size_t stride = bits ? from->spikes.stride_t : from->values.stride_t;
    if (!source) FAIL(RV_INTERNAL, "a tensor that crosses a cut was not computed");
    /* Without gaps between frames, which is the usual case, it is one long copy. */
    if (stride == frame || frames == 1) {
        TRY(device->ops->copy(device->ctx, queue, target, false, source, false,
                              4 * frame * frames));
        goto out;
    }
    for (size_t t = 0; t < frames; t++)
        TRY(device->ops->copy(device->ctx, queue, (char *)target + 4 * t * frame, false,
                              (const char *)source + 4 * t * stride, false, 4 * frame));
out:
    return status;
}
