/*
 * Inside pipeline/: a pipeline is stages, the links between them and a driver that steps them: a
 * thread per worker, or, for tests, one thread in an order drawn from a seed. It gives the bits of
 * the plain trainer at the same micro-batches and chunks.
 */
#ifndef RV_PIPELINE_RUN_H
#define RV_PIPELINE_RUN_H

#include "pipeline/blocks.h"
#include "pipeline/stage.h"
#include "pipeline/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rv_driver {
    RV_DRIVER_THREADS, /* sleep while there is nothing to do */
    RV_DRIVER_SEEDED,  /* in the calling thread, in random order; so is the writing of tapes */
    RV_DRIVER_NONE     /* who has the stages steps them: the pipeline makes no step itself */
} rv_driver;

typedef struct rv_pipeline_desc {
    const rv_net *net; /* forms chosen */
    const rv_choice *encoder;
    const rv_loss_desc *loss;
    const rv_train_desc *train;
    int64_t total_steps;
    const rv_schedule *schedule; /* of one step, with its U, simulated; borrowed */
    /* With a mode: stages never flush, and `schedule` is rv_schedule_endless of it. Borrowed. */
    const rv_delay_desc *delay;
    const rv_ranks *ranks; /* with a mode of blocks: how its workers share the stages. Borrowed. */
    const int *first;      /* [stages + 1]: stage s has layers first[s] .. first[s+1]-1 */
    const rv_device_list *devices; /* of the stages, over and over; NULL: the CPU */
    rv_isa isa;
    int threads;                   /* per stage */
    const rv_transport *transport; /* NULL: in this process */
    rv_driver driver;
    uint64_t seed; /* of RV_DRIVER_SEEDED */
    /* Of RV_DRIVER_THREADS: seconds without any progress after which a step fails (RV_PEER) with
     * where every stage is; 0: never. A stage that computes for so long is told as slow. */
    double timeout;
    void (*say)(void *user, const char *line); /* in the thread that called; NULL: nobody listens */
    void *user;
    const char *trace;     /* file of the timeline (timeline.h), or NULL */
    const double *scratch; /* [stages]: bytes an item takes; NULL or 0: they grow as they are used;
                              read by create alone */
} rv_pipeline_desc;

typedef struct rv_pipeline rv_pipeline;
/* RV_CONFIG: the lists cannot give the bits of one device (see rv_schedule_check_canonical), or the
 * recipe cannot run so. Starts with the network's initial weights. */
RV_CHECKED rv_status rv_pipeline_create(const rv_pipeline_desc *desc, rv_pipeline **out);
void rv_pipeline_destroy(rv_pipeline *pipeline);
/* As rv_serial_step, rv_serial_eval and rv_serial_observe. An error names stage, item and layer;
 * every other stage has stopped when it is returned, and the pipeline only fails from then on. An
 * observer is called by every stage for its own layers, by several at once. */
RV_CHECKED rv_status rv_pipeline_step(rv_pipeline *pipeline, const rv_batch *batch,
                                      rv_step_result *out);
RV_CHECKED rv_status rv_pipeline_eval(rv_pipeline *pipeline, const rv_batch *batch,
                                      rv_step_result *out, int64_t *spikes, int32_t *predictions);
/* Before the first step: the folder for tapes that are spilled; without, they go to
 * rv_train_desc.scratch when the first step begins. RV_CREATE, RV_IO: no room. */
RV_CHECKED rv_status rv_pipeline_folder(rv_pipeline *pipeline, const char *folder);
/* Of a delayed pipeline. Batches may be fed up to rv_pipeline_ahead updates beyond the one that is
 * awaited next, and should be, so that no stage lacks any; await blocks until all stages have made
 * it. rest: until all that was fed is done; what reads or writes weights, and evaluation, come to
 * rest by themselves. Rest costs time and changes no bit: versions go by number. */
RV_CHECKED rv_status rv_pipeline_feed(rv_pipeline *pipeline, const rv_batch *batch);
RV_CHECKED rv_status rv_pipeline_await(rv_pipeline *pipeline, rv_step_result *out);
void rv_pipeline_rest(rv_pipeline *pipeline);
/* Before a batch is fed: `copy` is called for every stage when it has made the update of that
 * batch, by the thread that made it, before that stage goes on. All calls have returned when the
 * update was awaited. One update at a time. */
typedef void rv_pipeline_copy(void *self, int stage);
void rv_pipeline_keep(rv_pipeline *pipeline, rv_pipeline_copy *copy, void *self);
bool rv_pipeline_kept(const rv_pipeline *pipeline);  /* it is the update awaited last */
bool rv_pipeline_still(const rv_pipeline *pipeline); /* nothing is under way */
int rv_pipeline_ahead(const rv_pipeline *pipeline);  /* 0: not delayed */
void rv_pipeline_observe(rv_pipeline *pipeline, const rv_observer *observer);
/* Between steps: weights [n_all], optimiser (either NULL: left alone) and the gradient of the
 * latest step [n_trained], of the whole network; part: what a stage has of the first two, where
 * nobody steps it. */
void rv_pipeline_read(rv_pipeline *pipeline, float *block, rv_optimizer *optimizer);
void rv_pipeline_part(rv_pipeline *pipeline, int stage, float *block, rv_optimizer *optimizer);
RV_CHECKED rv_status rv_pipeline_write(rv_pipeline *pipeline, const float *block,
                                       rv_optimizer *optimizer);
void rv_pipeline_gradient(rv_pipeline *pipeline, float *gradient);
/* Are weights and gradients finite? Of the latest step; delayed: of all updates so far. */
bool rv_pipeline_sound(const rv_pipeline *pipeline);
rv_timeline *rv_pipeline_timeline(rv_pipeline *pipeline); /* NULL: without threads */
int rv_pipeline_stages(const rv_pipeline *pipeline);
rv_stage *rv_pipeline_stage(rv_pipeline *pipeline, int stage); /* for tests and measurements */

#ifdef __cplusplus
}
#endif
#endif
