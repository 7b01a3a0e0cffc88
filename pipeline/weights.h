/*
 * Inside pipeline/: the weights of a stage and their versions. The newest are w(made); forward
 * reads version j as its rule shows it (w(j), or a prediction made from it), which is kept as long
 * as a pass may ask for it: the last D+1. Backward reads the newest, what the rule makes of them,
 * or what forward has read. A synchronous stage has one version, changed in place. One thread.
 */
#ifndef RV_PIPELINE_WEIGHTS_H
#define RV_PIPELINE_WEIGHTS_H

#include "pipeline/delay.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed = empty. */
typedef struct rv_weights {
    rv_range range;
    const rv_device *device;
    rv_delay_rule rule;
    int rows; /* of products, for packing */
    rv_optimizer *optimizer;
    int kept;
    rv_version **shown;   /* [kept]: version j in slot j % kept, as forward sees it */
    int64_t *number;      /* [kept]: j of what a slot holds; -1: none yet */
    rv_version *own;      /* w(made) where forward sees something else */
    rv_version *backward; /* w(made) as backward sees it; NULL: not its own */
    float *trend;
    int64_t made; /* updates */
    bool unready; /* own has not the forms of forward, which nothing but evaluation reads */
} rv_weights;

RV_CHECKED rv_status rv_weights_init(rv_weights *w, const rv_range *range, const rv_device *device,
                                     const rv_train_desc *train, int64_t total_steps,
                                     const rv_delay_rule *rule, int rows);
void rv_weights_finish(rv_weights *w);
/* w(made). What an evaluation reads of it is there after rv_weights_ready. */
rv_version *rv_weights_newest(const rv_weights *w);
RV_CHECKED rv_status rv_weights_ready(rv_weights *w);
/* After the newest block was written: it becomes version `made` and all before it. */
RV_CHECKED rv_status rv_weights_start(rv_weights *w, int64_t made);

/* All that passes to come may read, in a row of floats: to a checkpoint, and back after
 * rv_weights_start with the number of updates it was taken at. */
size_t rv_weights_floats(const rv_weights *w);
void rv_weights_give(const rv_weights *w, float *to);
RV_CHECKED rv_status rv_weights_take(rv_weights *w, const float *from);

/* Whether the forward of update u can run: its version is made. */
bool rv_weights_has(const rv_weights *w, int64_t u);
/* What passes of update u read. RV_INTERNAL: not kept, or not yet made. */
RV_CHECKED rv_status rv_weights_forward(const rv_weights *w, int64_t u, const rv_version **out);
RV_CHECKED rv_status rv_weights_backward(const rv_weights *w, int64_t u, const rv_version **out);

/* Version made -> made + 1. statistics: called with the new version after its weights are made, to
 * move its buffers; may be NULL. */
RV_CHECKED rv_status rv_weights_update(rv_weights *w, const float *gradient, double scale,
                                       void (*statistics)(void *self, rv_version *version),
                                       void *self);
/* Blocks of weights beside the newest, and their bytes; what is derived from them is left out. */
int rv_weights_copies(const rv_delay_rule *rule);
double rv_weights_bytes(const rv_delay_rule *rule, const rv_range *range);
/* Versions, the newest among them, that have derived forms which B reads. */
int rv_weights_packed(const rv_delay_rule *rule);

/* What there really is: the version that a pass of w was given (the newest, unless forward sees
 * it), versions that a pass may still read, the newest among them, and the bytes beside it. */
int64_t rv_weights_number(const rv_weights *w, const rv_version *version);
int rv_weights_live(const rv_weights *w);
double rv_weights_stash(const rv_weights *w);

#ifdef __cplusplus
}
#endif
#endif
