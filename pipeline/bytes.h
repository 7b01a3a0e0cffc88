/*
 * Inside pipeline/: bytes of what a training holds that no order of work decides. One place for all
 * who add them up: the forecast of a run (need.c), its plan, which pipeline.memory is compared with
 * (plan_search.c), and what measuring costs takes (cost.c). All are bytes, as doubles.
 */
#ifndef RV_PIPELINE_BYTES_H
#define RV_PIPELINE_BYTES_H

#include "pipeline/delay.h"
#include "pipeline/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Code and tables of libraries that only steps and saves touch, stacks, and what the heap leaves
 * unused between blocks: measured over the trainings of `scripts/overheads limit`. */
#define RV_BYTES_LIBRARIES 7e6
/* Scratch grows with the spikes there are: so many times what was measured is taken. */
#define RV_BYTES_SCRATCH 1.25

/* Forms of one version's weights that only products read, of linear ones only those of backward
 * passes (rv_tensor.back); a bound where layers are small. */
double rv_bytes_packed(const rv_range *range, rv_isa isa);
/* What a stage of the range trains: weights, packed too, gradient, optimiser; with a rule the
 * packed forms of the versions beside the newest, whose weights are rv_weights_bytes. */
double rv_bytes_weights(const rv_range *range, const rv_train_desc *train, rv_isa isa,
                        const rv_delay_rule *rule);
/* The copy of what all stages hold, out of which is saved: weights, gradient, optimiser, and
 * `versions` bytes of versions. A plain trainer has none. */
double rv_bytes_copy(const rv_net *net, const rv_train_desc *train, double versions);
/* While a file is made: a snapshot, the file, and one array in the order of files. 0: without
 * HDF5. */
double rv_bytes_saving(const rv_net *net, const rv_train_desc *train, double versions);
/* What a step that may be passed over keeps: nothing unless health.policy is skip_step. */
double rv_bytes_health(const rv_net *net, const rv_train_desc *train, int policy);
/* Of `records` tapes, what is no array of floats: structs, offsets, views, items of the lists. Of
 * little account but for thousands of chunks. */
double rv_bytes_records(const rv_net *net, double records);
/* Scratch of an item beside a tape of `tape` bytes, where it was not measured. */
double rv_bytes_beside(const rv_net *net, double tape);

#ifdef __cplusplus
}
#endif
#endif
