/* Two trainings compared to the bit. */
#include <string.h>

#include "pipeline/compare.h"

/* Not ==, which takes 0 for -0 and no NAN for itself. */
static bool same(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Place of a float of the block in the tensor's file; -1: padding. */
static int64_t file_index(const rv_tensor *tensor, size_t at) {
    if (tensor->layout == RV_LAYOUT_FLAT) return at < rv_tensor_elements(tensor) ? (int64_t)at : -1;
    int64_t in = (int64_t)at / tensor->ld, out = (int64_t)at % tensor->ld;
    return out < tensor->dim[0] ? out * tensor->dim[1] + in : -1;
}

/* Tensors by layer, so that the first difference is the first a reader would look for. `trained`:
 * blocks of trained tensors alone. */
static bool blocks_differ(const rv_net *net, const float *a, const float *b, bool trained,
                          const char *what, rv_difference *first, int64_t *compared) {
    for (int l = 0; l < net->layer_count; l++)
        for (int k = 0; k < net->tensor_count; k++) {
            const rv_tensor *tensor = &net->tensors[k];
            if (tensor->layer != l || (trained && !tensor->trained)) continue;
            /* Padding is compared, too: ops count on its zeros. It has no place in files, hence no
             * index. */
            for (size_t i = 0; i < tensor->count; i++) {
                size_t at = tensor->offset + i;
                if (memcmp(&a[at], &b[at], sizeof *a) == 0) continue;
                *first = (rv_difference){what,          rv_net_layer_name(net, l),
                                         tensor->local, file_index(tensor, i),
                                         (double)a[at], (double)b[at]};
                return true;
            }
            *compared += (int64_t)rv_tensor_elements(tensor);
        }
    return false;
}

bool rv_results_differ(const rv_step_result *a, const rv_step_result *b, rv_difference *first,
                       int64_t *compared) {
    const struct {
        const char *what;
        double a, b;
    } numbers[] = {{"loss", a->loss, b->loss},
                   {"correct", (double)a->correct, (double)b->correct},
                   {"norm", a->norm, b->norm}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!same(numbers[i].a, numbers[i].b)) {
            *first = (rv_difference){numbers[i].what, NULL, NULL, -1, numbers[i].a, numbers[i].b};
            return true;
        }
        (*compared)++;
    }
    return false;
}

/* In the order of cause and effect: a wrong gradient is reported as such and not as the weights it
 * spoils. What comes after it (weights, slots of the optimiser) is looked at only when it is
 * right. */
bool rv_engines_differ(const rv_net *net, rv_engine *a, const rv_step_result *of_a, rv_engine *b,
                       const rv_step_result *of_b, rv_difference *first, int64_t *compared) {
    if (blocks_differ(net, rv_engine_gradient(a), rv_engine_gradient(b), true, "gradient", first,
                      compared))
        return true;
    rv_engine_pull(a);
    rv_engine_pull(b);
    if (blocks_differ(net, rv_engine_block(a), rv_engine_block(b), false, "weight", first,
                      compared))
        return true;
    rv_optimizer *mine = rv_engine_optimizer(a), *other = rv_engine_optimizer(b);
    for (int k = 0; k < rv_optimizer_slots(mine); k++)
        if (blocks_differ(net, rv_optimizer_slot(mine, k), rv_optimizer_slot(other, k), true,
                          rv_optimizer_slot_name(mine, k), first, compared))
            return true;
    return rv_results_differ(of_a, of_b, first, compared);
}
