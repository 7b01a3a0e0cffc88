/* Inside pipeline/: between health.c and health_find.c. */
#ifndef RV_PIPELINE_HEALTH_FIND_H
#define RV_PIPELINE_HEALTH_FIND_H

#include "pipeline/health.h"

typedef enum rv_found {
    RV_FOUND_NOTHING,
    RV_FOUND_INPUT,
    RV_FOUND_WEIGHT,
    RV_FOUND_MEMBRANE,
    RV_FOUND_GRADIENT,
    RV_FOUND_LOSS,
} rv_found;

typedef struct rv_finding {
    rv_found kind;
    int layer;        /* -1: the network's input, or none */
    char tensor[128]; /* of weights and gradients */
    int time, row;    /* step; row of the micro-batch */
    int64_t sample;   /* index in the data */
    int64_t index;    /* unit, or element in the tensor's file order */
    double value;
    bool dumped;
} rv_finding;

/* Fill all but the kind and the layer; false: all finite. */
bool rv_find_in_values(rv_values values, const rv_pass *pass, rv_finding *found);
/* In a block of the whole network; trained: a gradient, which has only those tensors. Elements that
 * are bad in `excuse` too (a gradient; NULL: none) are passed over. Dumps the tensor to `path`. */
bool rv_find_in_block(const rv_net *net, const float *block, bool trained, const float *excuse,
                      rv_finding *found, const char *path);
RV_CHECKED rv_status rv_dump_values(rv_finding *found, const char *path, rv_values values);

void rv_finding_text(const rv_finding *found, const rv_net *net, char *text, size_t size);
/* An event; NULL: out of memory. */
json_t *rv_finding_json(const rv_finding *found, const rv_net *net, int64_t step,
                        const char *action);

#endif
