/*
 * Inside pipeline/: which stages keep their tapes, recompute or spill them, when not all can be
 * kept. Of all policies, one a stage, the one with which a step takes least; the same for the same
 * costs.
 */
#ifndef RV_PIPELINE_MIX_H
#define RV_PIPELINE_MIX_H

#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RV_MIX_ALL = 6 }; /* stages up to which every policy is tried */

typedef struct rv_mix {
    int stages;
    int policies; /* RV_TAPE_KEEP and so on, as many */
    /* Seconds of a step with a policy [stages]: no plan takes less, by a quick look and by a closer
     * one that never says less; the best plan, which never takes less than either. INFINITY: none
     * fits; of the best plan also where it would take more than `limit`. */
    rv_status (*guess)(void *context, const uint8_t *policy, double *seconds);
    rv_status (*bound)(void *context, const uint8_t *policy, double *seconds);
    rv_status (*seconds)(void *context, const uint8_t *policy, double limit, double *seconds);
    void *context;
} rv_mix;

/* policy [stages]: the fastest, of equals (to 1e-9) the first in the order of numbers written with
 * the first stage's policy in front. *seconds INFINITY: none fits. Of more than RV_MIX_ALL stages
 * the first ones have one policy and the others another, which is what tapes that shrink from stage
 * to stage ask for. Only policies whose guess is below the best are looked at, and closely those
 * whose bound is. */
RV_CHECKED rv_status rv_mix_choose(const rv_mix *mix, uint8_t *policy, double *seconds);

#ifdef __cplusplus
}
#endif
#endif
