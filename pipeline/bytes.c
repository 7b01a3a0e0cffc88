/* Bytes of weights in all their forms, and of saving them. */
#include <math.h>

#include "pipeline/bytes.h"
#include "pipeline/weights.h"

/* Three terms of two bytes for each weight (kernels/cpu_amx.c), whole tiles; what oneDNN and event
 * sums make of a convolution's weights. */
#define PACKED_LINEAR 1.5
#define PACKED_CONV 3.0
enum { LEAST = 64, TILE = 32 }; /* units of a product that is worth packing; of a tile */

/* Only products of B have a form for linear weights. */
static double tensor_packed(const rv_tensor *tensor, rv_isa isa) {
    const double weights = (double)rv_tensor_elements(tensor);
    if (tensor->rank > 2) return sizeof(float) * PACKED_CONV * weights;
    if (isa != RV_ISA_AMX || tensor->layout != RV_LAYOUT_LINEAR || !tensor->back) return 0;
    if (tensor->dim[0] < LEAST || tensor->dim[1] < LEAST) return 0;
    return sizeof(float) * PACKED_LINEAR * rv_round_up(tensor->dim[0], TILE) *
           (double)rv_round_up(tensor->dim[1], TILE);
}

double rv_bytes_packed(const rv_range *range, rv_isa isa) {
    double bytes = 0;
    for (int i = 0; i < range->net->tensor_count; i++) {
        const rv_tensor *tensor = &range->net->tensors[i];
        if (tensor->layer >= range->first && tensor->layer < range->last)
            bytes += tensor_packed(tensor, isa);
    }
    return bytes;
}

double rv_bytes_weights(const rv_range *range, const rv_train_desc *train, rv_isa isa,
                        const rv_delay_rule *rule) {
    const double slots = rv_optimizer_slots_of(train), packed = rule ? rv_weights_packed(rule) : 1;
    return sizeof(float) * ((double)range->n_all + (1 + slots) * (double)range->n_trained) +
           packed * rv_bytes_packed(range, isa);
}

static double state_bytes(const rv_net *net, const rv_train_desc *train) {
    const double slots = rv_optimizer_slots_of(train);
    return sizeof(float) * ((double)net->n_all + slots * (double)net->n_trained);
}

double rv_bytes_copy(const rv_net *net, const rv_train_desc *train, double versions) {
    return state_bytes(net, train) + sizeof(float) * (double)net->n_trained + versions;
}

double rv_bytes_saving(const rv_net *net, const rv_train_desc *train, double versions) {
    enum { CHUNKS = 3 << 20 }; /* of HDF5: those of a dataset, and the end of the file */
    const double state = state_bytes(net, train) + versions;
    double largest = 0;
    if (!rv_h5_available()) return 0;
    for (int i = 0; i < net->tensor_count; i++)
        largest = fmax(largest, sizeof(float) * (double)rv_tensor_elements(&net->tensors[i]));
    return 2 * state + largest + CHUNKS;
}

double rv_bytes_health(const rv_net *net, const rv_train_desc *train, int policy) {
    return policy == RV_HEALTH_SKIP_STEP ? state_bytes(net, train) : 0;
}

double rv_bytes_records(const rv_net *net, double records) {
    enum { RECORD = 768, LAYER = 192 };
    return records * (RECORD + (net->layer_count + 1.0) * LAYER);
}

/* About a tape where layers are planes; products of others run in parts, a quarter as measured. */
double rv_bytes_beside(const rv_net *net, double tape) {
    return (net->desc->input.rank > 1 ? 1 : 0.25) * tape;
}
