/*
 * Inside pipeline/: two trainings compared to the bit, at the first difference by layer.
 */
#ifndef RV_PIPELINE_COMPARE_H
#define RV_PIPELINE_COMPARE_H

#include "pipeline/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_difference {
    const char *what;  /* loss, correct, norm, gradient, weight, or a slot of the optimiser */
    const char *layer; /* NULL: of no layer */
    const char *tensor;
    int64_t index; /* in the order of files */
    double a, b;
} rv_difference;

/* The results of a step and all that is left after it. False: no difference. `compared` grows by
 * the numbers compared. */
bool rv_results_differ(const rv_step_result *a, const rv_step_result *b, rv_difference *first,
                       int64_t *compared); /* the results alone */
bool rv_engines_differ(const rv_net *net, rv_engine *a, const rv_step_result *of_a, rv_engine *b,
                       const rv_step_result *of_b, rv_difference *first, int64_t *compared);

#ifdef __cplusplus
}
#endif
#endif
