/*
 * The flat parameter block and weight versions: a block and what is derived from it.
 *
 * The block is one stretch of floats so that a copy (a stashed version), a step along a direction
 * (a predicted one) and an all-reduce are one call each. Derived forms belong to a version, never
 * to the network: two versions live side by side while items of both are in flight.
 */
#include <stdio.h>
#include <string.h>

#include "snn/layer.h"

/* ---- tensors ----------------------------------------------------------------------------- */
void rv_layer_tensor(rv_net *net, rv_layer *layer, int k, const rv_tensor_desc *desc) {
    rv_tensor *tensor = &net->tensors[net->tensor_count];
    layer->tensor[k] = net->tensor_count++;
    snprintf(tensor->name, sizeof tensor->name, "%s.%s", layer->desc->name, desc->local);
    tensor->local = desc->local;
    tensor->layer = layer->index;
    tensor->rank = desc->rank;
    memcpy(tensor->dim, desc->dim, sizeof tensor->dim);
    tensor->layout = desc->layout;
    tensor->limit = desc->limit;
    tensor->buffer = desc->buffer;
    tensor->trained = layer->desc->trainable && !desc->buffer;
    if (tensor->trained) layer->trained = true;
}

/* Of the file: padding does not count. */
size_t rv_tensor_elements(const rv_tensor *tensor) {
    size_t elements = 1;
    for (int k = 0; k < tensor->rank; k++)
        elements *= (size_t)tensor->dim[k];
    return elements;
}

/* Rows of a linear map round up to a vector, so a kernel never needs a remainder loop; the
 * padding is zero and stays zero, since nothing with an effect ever meets it. */
static rv_status tensor_place(rv_tensor *tensor, size_t *end) {
    rv_status status = RV_OK;
    size_t count = 1;
    if (tensor->layout == RV_LAYOUT_LINEAR) {
        tensor->ld = rv_round_up(tensor->dim[0], RV_LANES);
        TRY(rv_size_mul((size_t)tensor->dim[1], (size_t)tensor->ld, &count));
    } else {
        for (int k = 0; k < tensor->rank; k++)
            TRY(rv_size_mul(count, (size_t)tensor->dim[k], &count));
        TRY(rv_size_add(count, RV_LANES - 1, &count));
        count = count / RV_LANES * RV_LANES;
    }
    tensor->offset = *end;
    tensor->count = count;
    TRY(rv_size_add(*end, count, end));
out:
    return status;
}

/* The optimiser, norms and all-reduce run over one stretch [0, n_trained); so frozen tensors
 * come after it, and buffers, which no gradient ever reaches, last. */
int rv_tensor_class(const rv_tensor *tensor) {
    return tensor->trained ? 0 : tensor->buffer ? 2 : 1;
}

/* Layers have named their tensors in network order; a stable pass per class keeps that order
 * within each. Indices held by layers are mapped to the new places. */
rv_status rv_net_lay_out(rv_net *net) {
    rv_status status = RV_OK;
    rv_tensor *ordered = NULL;
    int *place = NULL, count = 0;
    size_t end = 0;
    TRY(rv_alloc((size_t)net->tensor_count, sizeof *ordered, "tensors", &ordered));
    TRY(rv_alloc((size_t)net->tensor_count, sizeof *place, "tensors", &place));
    for (int class = 0; class < 3; class ++) {
        for (int k = 0; k < net->tensor_count; k++) {
            if (rv_tensor_class(&net->tensors[k]) != class) continue;
            place[k] = count;
            ordered[count] = net->tensors[k];
            TRY(tensor_place(&ordered[count++], &end));
        }
        if (class == 0) net->n_trained = end;
    }
    net->n_all = end;
    for (int l = 0; l < net->layer_count; l++) {
        int *tensor = net->layers[l].tensor;
        for (int k = 0; k < RV_LAYER_TENSORS; k++)
            if (tensor[k] >= 0) tensor[k] = place[tensor[k]];
    }
    rv_free(net->tensors);
    net->tensors = ordered;
    ordered = NULL;
out:
    rv_free(place);
    rv_free(ordered);
    return status;
}

/* Walks the elements in file order; LINEAR is the transpose with padded rows. */
void rv_tensor_export(const rv_tensor *tensor, const float *block, float *file) {
    const float *from = block + tensor->offset;
    if (tensor->layout == RV_LAYOUT_FLAT) {
        memcpy(file, from, sizeof(float) * rv_tensor_elements(tensor));
        return;
    }
    size_t rows = (size_t)tensor->dim[0], columns = (size_t)tensor->dim[1], ld = (size_t)tensor->ld;
    for (size_t o = 0; o < rows; o++)
        for (size_t i = 0; i < columns; i++)
            file[o * columns + i] = from[i * ld + o];
}

/* Padding is cleared first: a block may hold anything before its first import. */
void rv_tensor_import(const rv_tensor *tensor, const float *file, float *block) {
    float *to = block + tensor->offset;
    memset(to, 0, sizeof(float) * tensor->count);
    if (tensor->layout == RV_LAYOUT_FLAT) {
        memcpy(to, file, sizeof(float) * rv_tensor_elements(tensor));
        return;
    }
    size_t rows = (size_t)tensor->dim[0], columns = (size_t)tensor->dim[1], ld = (size_t)tensor->ld;
    for (size_t o = 0; o < rows; o++)
        for (size_t i = 0; i < columns; i++)
            to[i * ld + o] = file[o * columns + i];
}

/* ---- versions ---------------------------------------------------------------------------- */
/* The block comes zeroed; derived forms are made by rv_version_derive, not before there are
 * weights. */
rv_status rv_version_create_range(const rv_range *range, const rv_device *device,
                                  rv_version **out) {
    rv_status status = RV_OK;
    rv_version *version = NULL;
    const rv_net *net = range->net;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *version, "weight version", &version));
    version->range = *range;
    version->net = net;
    version->device = device;
    version->reads = RV_READS_FORWARD | RV_READS_BACKWARD;
    TRY(rv_alloc((size_t)net->layer_count, sizeof *version->derived, "derived weights",
                 &version->derived));
    TRY(device->ops->alloc(device->ctx, sizeof(float) * range->n_all, "parameters",
                           (void **)&version->block));
    *out = version;
    version = NULL;
out:
    rv_version_destroy(version);
    return status;
}

rv_status rv_version_create(const rv_net *net, const rv_device *device, rv_version **out) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    return rv_version_create_range(&whole, device, out);
}

/* Takes a version that was only half made. */
void rv_version_destroy(rv_version *version) {
    if (!version) return;
    for (int l = version->range.first; version->derived && l < version->range.last; l++) {
        const rv_layer *layer = &version->net->layers[l];
        if (layer->kind->discard) layer->kind->discard(version, layer);
    }
    version->device->ops->free(version->device->ctx, version->block);
    rv_free(version->derived);
    rv_free(version);
}

float *rv_version_block(rv_version *version) {
    return version->block;
}

void rv_version_reads(rv_version *version, unsigned reads) {
    version->reads = reads;
}

/* Once per update: everything a product or a neuron reads besides the block itself. */
rv_status rv_version_derive(rv_version *version, int rows) {
    rv_status status = RV_OK;
    version->rows = rows;
    for (int l = version->range.first; l < version->range.last; l++) {
        const rv_layer *layer = &version->net->layers[l];
        if (layer->kind->derive) TRY(layer->kind->derive(version, layer, rows));
    }
out:
    return status;
}

/* Layers without that tensor (no bias, nothing learned) get NULL, as the ops expect it. */
float *rv_version_tensor(const rv_version *version, const rv_layer *layer, int k) {
    int tensor = layer->tensor[k];
    if (tensor < 0) return NULL;
    return version->block + rv_range_offset(&version->range, &version->net->tensors[tensor]);
}

/* Frozen tensors have no gradient: kernels take NULL for "not wanted". */
float *rv_pass_gradient(const rv_pass *pass, const rv_layer *layer, int k) {
    if (layer->tensor[k] < 0) return NULL;
    const rv_tensor *tensor = &pass->net->tensors[layer->tensor[k]];
    return tensor->trained ? pass->gradient + rv_range_offset(&pass->version->range, tensor) : NULL;
}

/* A packed form belongs to one product form: the choice of forms may change it once. */
rv_status rv_version_pack(rv_version *version, const rv_layer *layer, const rv_map *map, int rows) {
    struct rv_derived *derived = &version->derived[layer->index];
    if (derived->form != map->form) rv_version_unpack(version, layer);
    derived->form = map->form;
    return version->device->ops->map_pack(version->device->ctx, NULL, map, rows, &derived->packed);
}

/* Also called when a form changes; then the next pack makes a new one. */
void rv_version_unpack(rv_version *version, const rv_layer *layer) {
    struct rv_derived *derived = &version->derived[layer->index];
    if (derived->packed) version->device->ops->map_unpack(version->device->ctx, derived->packed);
    derived->packed = NULL;
}
