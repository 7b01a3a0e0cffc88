/*
 * Ranvier networks: description and check, flat parameters, state, tape, forward (F), backward (B)
 * and weight gradient (W) of a range of layers over one chunk of time, losses, optimisers,
 * encoders, initialisation, and the plain serial trainer that every pipeline must equal.
 *
 * Knows kernels/ only: no files, no stages, no threads of its own. A description is borrowed for
 * the life of what is made from it. Steps count time; chunk c of C covers [c*T/C, (c+1)*T/C), and
 * micro-batch m of M covers the samples [m*B/M, (m+1)*B/M); both may be ragged.
 */
#ifndef RV_SNN_H
#define RV_SNN_H

#include "kernels/kernels.h"
#include "snn/desc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- network ---------------------------------------------------------------------------- */
/* How a tensor lies in memory and in files. */
typedef enum rv_layout {
    RV_LAYOUT_FLAT,   /* as in files */
    RV_LAYOUT_LINEAR, /* memory [in][ld], file [out][in] */
} rv_layout;

typedef struct rv_tensor {
    char name[RV_NAME_MAX + 32]; /* "hidden.weight" */
    const char *local;           /* "weight", "bias", "beta", ... */
    int layer;
    size_t offset, count; /* floats in the block, padding included; offset a multiple of 16 */
    int rank, dim[4];     /* file shape, PyTorch's axes */
    rv_layout layout;
    int ld;                     /* LINEAR: distance of rows */
    rv_limit limit;             /* applied in U */
    bool trained, buffer, back; /* in [0, n_trained); running statistics; B of a map reads it */
} rv_tensor;

typedef struct rv_layer rv_layer; /* snn/layer.h */
typedef struct rv_version rv_version;

typedef struct rv_net {
    const rv_net_desc *desc;
    int layer_count;
    rv_layer *layers; /* topological order = the order of the description */
    int tensor_count;
    rv_tensor *tensors;      /* trained first, then frozen, then buffers */
    size_t n_trained, n_all; /* floats of the parameter block */
    size_t statistics;       /* rv_net_statistics */
    int block_count;         /* maps with what follows; automatic cuts lie between blocks */
    int *block_first;        /* first layer of each block */
    rv_shape output;
    bool output_spikes; /* the last layer gives bits; else values */
} rv_net;

/* Check a description and lay it out. RV_CONFIG with line and column for shapes that do not fit
 * (both layers and shapes named), unknown `from`, cycles, names used twice, bad parameters. */
RV_CHECKED rv_status rv_net_create(const rv_net_desc *desc, rv_net **out);
void rv_net_destroy(rv_net *net);
int rv_net_layer_find(const rv_net *net, const char *name); /* -1: none */
const char *rv_net_layer_name(const rv_net *net, int layer);
rv_shape rv_net_layer_shape(const rv_net *net, int layer);
bool rv_net_layer_spikes(const rv_net *net, int layer);  /* a neuron layer that emits spikes */
rv_form rv_net_layer_form(const rv_net *net, int layer); /* AUTO for layers without a product */
/* Synaptic targets of one spike of each input unit of a map (or recurrent layer), summed: synaptic
 * operations are spikes * targets / input units. 0: no product. */
int64_t rv_net_layer_targets(const rv_net *net, int layer);
const rv_tensor *rv_net_tensor_find(const rv_net *net, const char *name); /* NULL: none */
/* "neurons: subtract, same step, >=, input x1, reset detached": what runs, one line. */
void rv_net_describe(const rv_net *net, char *buffer, size_t size);

/* Running statistics (batch norm). In training F leaves the statistics of every step of a
 * micro-batch in pass->statistics; after the update, U moves the buffers of layers [first, last)
 * by them: micro-batches ascending, one call each, steps ascending within. */
size_t rv_net_statistics(const rv_net *net); /* floats of one step; 0: none */
void rv_net_statistics_apply(const rv_net *net, int first, int last, const float *statistics, int B,
                             rv_version *version);
/* RV_CONFIG where a layer trains on whole sequences only (statistics: sequence) and chunks > 1. */
RV_CHECKED rv_status rv_net_check_chunks(const rv_net *net, int chunks);

/* Between the block's memory and a file's order; `file` holds the product of dim floats. */
size_t rv_tensor_elements(const rv_tensor *tensor);
void rv_tensor_export(const rv_tensor *tensor, const float *block, float *file);
void rv_tensor_import(const rv_tensor *tensor, const float *file, float *block);

/* ---- layer ranges ----------------------------------------------------------------------- */
/* Layers [first, last), a stage's. Its blocks: own trained, frozen, buffers in network order. */
typedef struct rv_range {
    const rv_net *net;
    int first, last;
    size_t n_trained, n_all;  /* floats of its blocks */
    size_t from[3], count[3]; /* where its trained, frozen, buffers lie in the network's block */
    bool input;               /* it takes the network's input */
} rv_range;
rv_range rv_net_range(const rv_net *net, int first, int last);
/* Between blocks of network and range: [n_all], or of gradients and slots [n_trained]. */
void rv_range_take(const rv_range *range, const float *whole, float *part, bool trained);
void rv_range_give(const rv_range *range, const float *part, float *whole, bool trained);

/* Outputs of layers before a cut that layers from it on take, in topological order; the network's
 * input is not among them, since any range can encode it. Views are looked through. */
typedef struct rv_crossed {
    int layer, n, ld;
    bool spikes, held, live; /* live: its adjoint goes back */
} rv_crossed;
typedef struct rv_crossing {
    int count;
    rv_crossed *tensor; /* owned: rv_free */
} rv_crossing;
RV_CHECKED rv_status rv_net_crossing(const rv_net *net, int cut, rv_crossing *out);

/* ---- parameters and versions ------------------------------------------------------------ */
/* A parameter block is n_all floats; gradients and optimiser slots are n_trained floats. */
RV_CHECKED rv_status rv_net_init(const rv_net *net, float *block); /* initial values from seed */

/* A weight version: a block and what is derived from it (packed forms, per-unit arrays); of the
 * whole network or of a range. */
RV_CHECKED rv_status rv_version_create(const rv_net *net, const rv_device *device,
                                       rv_version **out);
RV_CHECKED rv_status rv_version_create_range(const rv_range *range, const rv_device *device,
                                             rv_version **out);
void rv_version_destroy(rv_version *version);
float *rv_version_block(rv_version *version);
/* Rebuild the derived forms after the block changed. rows: batch rows products will have. */
RV_CHECKED rv_status rv_version_derive(rv_version *version, int rows);
/* Passes that will read it, of which derive then makes the forms: at first all. */
enum rv_readers { RV_READS_FORWARD = 1, RV_READS_BACKWARD = 2 };
void rv_version_reads(rv_version *version, unsigned reads);

/* ---- state, tape, pass ------------------------------------------------------------------ */
/* All layers' state at a chunk border of one micro-batch of at most B samples; one flat block, so
 * a copy is one call. Its adjoint twin has the same layout. */
typedef struct rv_state rv_state;
/* What F leaves for B and W of one (micro-batch, chunk) of at most T steps. */
typedef struct rv_tape rv_tape;
RV_CHECKED rv_status rv_state_create(const rv_net *net, const rv_device *device, int B,
                                     rv_state **out);
RV_CHECKED rv_status rv_state_create_range(const rv_range *range, const rv_device *device, int B,
                                           rv_state **out);
void rv_state_destroy(rv_state *state);
size_t rv_state_bytes(const rv_range *range, int B);
RV_CHECKED rv_status rv_state_clear(rv_state *state, rv_queue *queue); /* at rest */
RV_CHECKED rv_status rv_state_start(rv_state *state, rv_queue *queue); /* before the first chunk */
RV_CHECKED rv_status rv_state_copy(rv_state *to, const rv_state *from, rv_queue *queue); /* alike */
/* Of an adjoint: nothing goes on to earlier steps (pipeline.truncate). */
RV_CHECKED rv_status rv_state_cut(rv_state *adjoint, rv_queue *queue);
RV_CHECKED rv_status rv_tape_create(const rv_net *net, const rv_device *device, int T, int B,
                                    rv_tape **out);
/* `before`: what crosses the range's front, for which the tape has room. */
RV_CHECKED rv_status rv_tape_create_range(const rv_range *range, const rv_crossing *before,
                                          const rv_device *device, int T, int B, rv_tape **out);
void rv_tape_destroy(rv_tape *tape);
/* What becomes of the tape of a layer between F and B: rv_train_desc.tape. A map that writes into
 * the neuron it feeds is kept as that is. */
rv_tape_policy rv_tape_policy_of(const rv_net *net, const uint8_t *policy, int layer);
bool rv_tape_has(const rv_range *range, const uint8_t *policy, rv_tape_policy what);
/* A tape whose layers have policies lies in parts, one after the other. */
typedef enum rv_tape_part {
    RV_PART_KEPT,      /* borrowed memory (rv_tape_attach, 64-byte aligned) that stays */
    RV_PART_MEMBRANES, /* with `half`: membranes that are kept, to be packed and unpacked */
    RV_PART_SPILLED,   /* to be written elsewhere and read back */
    RV_PART_SPILLED_MEMBRANES,
    RV_PART_AGAIN, /* computed again; adjoints that B leaves for W */
    RV_TAPE_PARTS
} rv_tape_part;
typedef struct rv_taping { /* zeroed: all in one block of the tape */
    const uint8_t *policy; /* [layers]; NULL: all are kept */
    bool half;             /* membranes between F and B as half floats */
} rv_taping;
RV_CHECKED rv_status rv_tape_create_parts(const rv_range *range, const rv_crossing *before,
                                          const rv_device *device, const rv_taping *how, int T,
                                          int B, rv_tape **out);
/* Words of every part. */
void rv_tape_sizes(const rv_range *range, const rv_crossing *before, const rv_taping *how, int T,
                   int B, size_t words[RV_TAPE_PARTS]);
float *rv_tape_part_memory(const rv_tape *tape, rv_tape_part part); /* of the tape's own; words as
                                                                     * above */
void rv_tape_attach(rv_tape *tape, float *kept);
/* Is the encoded input neither kept nor spilled? Then it is encoded again before B. */
bool rv_tape_encodes_again(const rv_range *range, const uint8_t *policy);
/* Membranes of the range become the nearest half floats: after F, before the loss or B look at
 * them. */
RV_CHECKED rv_status rv_tape_round(rv_tape *tape);
size_t rv_tape_bytes(const rv_range *range, const rv_crossing *before, int T, int B);
/* The tape's own memory for T steps of B samples of the encoded input (layer -1; none for a held
 * one) or of a tensor that crosses the range's front. */
rv_signal rv_tape_memory(const rv_tape *tape, int layer, int T, int B);
/* The signal of a layer (-1: the network's input) on this tape; set by F or by a receiver. */
rv_signal *rv_tape_signal(rv_tape *tape, int layer);
rv_values rv_tape_membrane(const rv_tape *tape, int layer); /* h, valid between F and B */

/* `before` plus the penalties of the regularisers of layers [first, last), added in network order:
 * complete on the tape of the last chunk after F in training. */
double rv_tape_penalty(const rv_tape *tape, int first, int last, double before);

/* One item: F, B or W of layers [first, last) over chunk `chunk` of one micro-batch. */
typedef struct rv_pass {
    const rv_net *net;
    const rv_device *device;
    rv_queue *queue;
    rv_arena *arena;
    int first, last;
    int layer; /* out: the one that ran last, for messages */
    const rv_version *version;
    /* B: whatever multiplies or moves the adjoint on its way back: weights of products, recurrent
     * ones too, factors, delays, decays of neurons. Slopes, membranes and gradients belong to what
     * forward saw, `version`. NULL: `version` for all. */
    const rv_version *back;
    rv_state *state;   /* F: in and out */
    rv_state *adjoint; /* B: in and out */
    rv_tape *tape;
    float *gradient; /* [n_trained] of the version's range, added to */
    int B, t0, t1, chunk, chunks;
    const rv_batch *batch; /* rows [row, row + B) are this micro-batch */
    int row;
    bool training; /* dropout and batch statistics on */
    /* F in training, out: [net steps][rv_net_statistics] of the micro-batch, in memory of the
     * device; NULL: not wanted. */
    float *statistics;
    /* F once more, on a tape whose other layers are there: those that this policy recomputes, and
     * the views of all. */
    const uint8_t *again; /* NULL: all layers */
    double penalty;       /* of the layers before `first` in this micro-batch, for rv_loss_finish */
    /* B: adjoint of the last layer's outputs over the chunk, from the loss; data NULL where absent.
     * gv, gh: of the membrane after, before reset. May be held. */
    rv_values gs, gv, gh;
    /* B, out: adjoint of the network's input, caller memory, data NULL when not wanted: [T][B][ld];
     * of a held input one frame [B][ld] (T 1, stride_t 0), added to over the chunks and complete at
     * chunk 0. */
    rv_values gx;
    /* What crosses the range's ends; NULL: nothing. Of the live ones B takes the adjoints g_after
     * and leaves g_before, one of each per tensor, caller memory that may be written to:
     * [T][B][ld]; of held ones a frame, at chunk 0 only. */
    const rv_crossing *before, *after;
    rv_values *g_before, *g_after;
} rv_pass;
RV_CHECKED rv_status rv_pass_sync(const rv_pass *pass); /* ops so far have ended: host may look */
RV_CHECKED rv_status rv_net_forward(rv_pass *pass);
RV_CHECKED rv_status rv_net_backward(rv_pass *pass);
RV_CHECKED rv_status rv_net_weight(rv_pass *pass);
/* After F: spikes[layer] += those within each sample's length, of the layers of the range. */
RV_CHECKED rv_status rv_pass_count_spikes(const rv_pass *pass, int64_t *spikes);

/* Fix the form of every product: rates of the first min(128, batch, count) samples over the first
 * min(T, 64) steps under `version`. Pure: no clock, no C, no threads. */
RV_CHECKED rv_status rv_net_choose_forms(rv_net *net, const rv_device *device, rv_version *version,
                                         const rv_choice *encoder, const rv_batch *first);

/* ---- encoders --------------------------------------------------------------------------- */
/* Steps [t0, t1) of the samples `row`..`row+B` of a batch as bits or values. Where `out` holds
 * memory on entry it is used; else `out` shows the batch's own memory, or the arena's. A pure
 * function of (sample, t0, t1). Every encoder's options begin with `int steps`. */
typedef struct rv_encoding { /* what an encoder gives for a source */
    rv_shape shape;
    bool spikes, held;
    int steps;
} rv_encoding;
RV_CHECKED rv_status rv_encoder_check(const rv_choice *encoder, const rv_source *source,
                                      rv_encoding *out);
RV_CHECKED rv_status rv_encode(const rv_choice *encoder, const rv_device *device, rv_queue *queue,
                               const rv_batch *batch, int row, int B, uint64_t seed, int t0, int t1,
                               rv_arena *arena, rv_signal *out);

/* ---- losses ----------------------------------------------------------------------------- */
/* Per micro-batch: observe every chunk ascending, finish once, adjoint of every chunk descending.
 * Membrane readouts read h, the membrane before reset, of a neuron layer (for an integrator that is
 * its value, for snnTorch's neurons `mem`): a reset forgets how far the membrane had come. A last
 * layer that is no neuron is read as it is. Prediction: the largest logit, the first on ties. */
typedef struct rv_loss rv_loss;
/* RV_CONFIG: the network's last layer does not fit readout, classes, population. */
RV_CHECKED rv_status rv_loss_check(const rv_loss_desc *desc, const rv_net *net);
RV_CHECKED rv_status rv_loss_create(const rv_loss_desc *desc, const rv_net *net,
                                    const rv_device *device, int B, rv_loss **out);
void rv_loss_destroy(rv_loss *loss);
typedef struct rv_loss_result {
    double loss;     /* summed over samples, each weighing 1/batch_size */
    int64_t correct; /* samples whose prediction equals the label */
} rv_loss_result;
RV_CHECKED rv_status rv_loss_observe(rv_loss *loss, const rv_pass *pass);
/* batch_size: samples of the whole batch (weights 1/batch_size). predictions [B] or NULL. */
RV_CHECKED rv_status rv_loss_finish(rv_loss *loss, const rv_pass *pass, int batch_size,
                                    rv_loss_result *out, int32_t *predictions);
/* Sets pass->gs / gv / gh for the chunk (memory of the loss or the arena). */
RV_CHECKED rv_status rv_loss_adjoint(rv_loss *loss, rv_pass *pass);
const float *rv_loss_logits(const rv_loss *loss); /* [B][classes] after finish */

/* ---- optimiser -------------------------------------------------------------------------- */
typedef struct rv_optimizer rv_optimizer;
RV_CHECKED rv_status rv_optimizer_create(const rv_net *net, const rv_train_desc *desc,
                                         int64_t total_steps, rv_optimizer **out);
/* Of the trained tensors of a range: block, gradient and slots are the range's. Groups that match
 * none of them are no error. device: whose memory the slots are; NULL, as above: the host's. */
RV_CHECKED rv_status rv_optimizer_create_range(const rv_range *range, const rv_device *device,
                                               const rv_train_desc *desc, int64_t total_steps,
                                               rv_optimizer **out);
void rv_optimizer_destroy(rv_optimizer *optimizer);
/* U: one pass over the trained tensors, gradients times `scale`; counts the step. */
RV_CHECKED rv_status rv_optimizer_update(rv_optimizer *optimizer, const rv_device *device,
                                         rv_queue *queue, float *block, const float *gradient,
                                         double scale);
/* What an update of late gradients does beside. Weights w(j) are those after j updates; a view of
 * them is made in the pass that makes w(j). All blocks are [n_trained] of the range or more. */
typedef enum rv_look {
    RV_LOOK_RATE,     /* w - horizon*rate(j)*direction: the next update's rate for all of it */
    RV_LOOK_MOMENTUM, /* what momentum alone makes of it in `horizon` updates, each at its rate */
    RV_LOOK_STEP,     /* w + horizon*(w(j) - w(j-1)) */
    RV_LOOK_TREND,    /* w - horizon*trend; of `backward` alone */
} rv_look;
typedef struct rv_view {
    rv_look look;
    double horizon; /* RV_LOOK_MOMENTUM: whole; of adam at most RV_VIEW_TERMS */
    float *to;      /* NULL: not wanted */
} rv_view;
typedef struct rv_late {
    const float *from; /* w(j-1), elsewhere; NULL: in the block */
    int delay;         /* sgd: of the gradient, to be made up for; 0: not */
    double slow;       /* the update's rate is divided by it */
    float *trend;      /* moving mean of w(j) - w(j-1), of which `keep` stays; NULL: none */
    double keep;
    /* Trend and `backward` are made of tensors that B reads: of maps whose input wants no adjoint
     * they stay as they are. */
    rv_view forward, backward;
} rv_late;
RV_CHECKED rv_status rv_optimizer_update_late(rv_optimizer *optimizer, const rv_device *device,
                                              rv_queue *queue, const rv_late *late, float *block,
                                              const float *gradient, double scale);
/* Names: "sgd", "adam", ...; whether sgd has the plain form (no nesterov, no dampening). */
const char *rv_optimizer_name(const rv_train_desc *desc, bool *plain);
/* Were the gradients and new weights of the last update, which has ended, finite, and their squares
 * too? */
bool rv_optimizer_sound(const rv_optimizer *optimizer);
double rv_optimizer_rate(const rv_optimizer *optimizer); /* rate of the next update */
/* Rate and momentum of updates of B samples from those of updates of B_r, share = B/B_r: what a
 * sample adds lasts as many samples, and moves the weights by as much (Kosson et al. 2021).
 *   m = m_r^share,  rate = rate_r * share * (1-m)/(1-m_r) */
void rv_optimizer_share(double share, double *rate, double *momentum);
int rv_optimizer_slots(const rv_optimizer *optimizer);
int rv_optimizer_slots_of(const rv_train_desc *desc); /* before there is one */
const char *rv_optimizer_slot_name(const rv_optimizer *optimizer, int slot); /* "m", "v" */
float *rv_optimizer_slot(rv_optimizer *optimizer, int slot);                 /* [n_trained] */
int64_t rv_optimizer_step(const rv_optimizer *optimizer);
void rv_optimizer_step_set(rv_optimizer *optimizer, int64_t step);
int64_t rv_optimizer_total(const rv_optimizer *optimizer); /* horizon of the rate schedule */
/* The rate a schedule gives update `step`; *momentum is set by schedules that move it (one_cycle)
 * and may be NULL. RV_CONFIG: total below 1. */
RV_CHECKED rv_status rv_schedule_rate(const rv_choice *schedule, double lr, int64_t step,
                                      int64_t total, double *rate, double *momentum);
/* Tell plateau schedules the validation loss at an epoch's end; what they remember of it belongs
 * into a checkpoint. */
void rv_optimizer_epoch(rv_optimizer *optimizer, double validation_loss);
typedef struct rv_plateau {
    double scale, best; /* of the rate; best loss so far, INFINITY = none */
    int64_t bad;        /* epochs since */
} rv_plateau;
rv_plateau *rv_optimizer_plateau(rv_optimizer *optimizer);

/* ---- observers -------------------------------------------------------------------------- */
/* Called at the end of F of every chunk; reads the tape (spikes, h). Recording, metrics and health
 * checks implement it. */
typedef struct rv_observer {
    void *self;
    rv_status (*forward)(void *self, const rv_pass *pass);
} rv_observer;

/* ---- the serial trainer ----------------------------------------------------------------- */
/* Knows M micro-batches and C chunks, no stages: the yardstick of every schedule. */
typedef struct rv_serial rv_serial;
typedef struct rv_serial_desc {
    const rv_net *net;
    const rv_device *device;
    const rv_choice *encoder;
    const rv_loss_desc *loss;
    const rv_train_desc *train;
    int64_t total_steps; /* horizon of the rate schedule */
} rv_serial_desc;
typedef struct rv_step_result {
    double loss;
    int64_t correct;
    int B;
    double rate, norm; /* rate used; gradient norm, NAN when not computed */
} rv_step_result;
RV_CHECKED rv_status rv_serial_create(const rv_serial_desc *desc, rv_serial **out);
void rv_serial_destroy(rv_serial *serial);
/* One optimiser step on one batch. */
RV_CHECKED rv_status rv_serial_step(rv_serial *serial, const rv_batch *batch, rv_step_result *out);
/* Forward only. spikes[layer] += counts (NULL: not wanted); predictions [B] or NULL. */
RV_CHECKED rv_status rv_serial_eval(rv_serial *serial, const rv_batch *batch, rv_step_result *out,
                                    int64_t *spikes, int32_t *predictions);
/* Gradient of one batch without an update, [n_trained] (tests). */
RV_CHECKED rv_status rv_serial_gradient(rv_serial *serial, const rv_batch *batch,
                                        rv_step_result *out, const float **gradient);
const float *rv_serial_last_gradient(const rv_serial *serial);          /* of the latest step */
void rv_serial_observe(rv_serial *serial, const rv_observer *observer); /* borrowed; NULL: none */
rv_version *rv_serial_version(rv_serial *serial);
rv_optimizer *rv_serial_optimizer(rv_serial *serial);

#ifdef __cplusplus
}
#endif
#endif
