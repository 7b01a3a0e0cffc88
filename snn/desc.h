/*
 * What a network is made from: batches and sources, descriptions of layers, losses and training,
 * the options of layer rows, the tables configuration chooses from. Part of snn/snn.h, through
 * which the other folders include it.
 */
#ifndef RV_SNN_DESC_H
#define RV_SNN_DESC_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where part i of `parts` of `total` begins; part i ends where i + 1 begins. */
static inline int rv_cut(int i, int parts, int total) {
    return (int)((int64_t)i * total / parts);
}

#define RV_NAME_MAX 64
#define RV_MAX_INPUTS 8 /* layers one add or concat may take */

/* Units as rank 1 [units], or rank 3 [channels, height, width]. */
typedef struct rv_shape {
    int rank, dim[3];
} rv_shape;
int rv_shape_units(rv_shape shape);
bool rv_shape_equal(rv_shape a, rv_shape b);
const char *rv_shape_text(rv_shape shape, char buffer[48]); /* "[1, 28, 28]"; returns buffer */

/* ---- a batch ---------------------------------------------------------------------------- */
/* Raw samples as a source gives them, before encoding. All memory is the loader's, valid until
 * it is asked for the batch after the next. */
typedef struct rv_batch {
    int B;                /* samples in it; the last of an epoch may be ragged */
    rv_signal input;      /* values with stride_t 0: one frame; else values or bits of all T */
    const int32_t *label; /* [B] class index, or NULL */
    const float *target;  /* [B][target_width] or [T][B][target_width], or NULL */
    int target_width;
    bool target_per_step;
    const int32_t *length;  /* [B] steps that count, or NULL: all T */
    const uint32_t *starts; /* [T][rv_words(B)], or NULL */
    const uint64_t *sample; /* [B] index in the data set: keys of all random numbers */
    uint32_t epoch;
} rv_batch;

/* Where samples come from: implemented by data/ and tests. */
typedef struct rv_source {
    void *self;
    int64_t count; /* samples */
    rv_shape shape;
    int classes; /* 0: float targets */
    int steps;   /* time steps of its frames or bits; 0: static frames */
    bool spikes; /* gives bits */
    /* Fill rows 0..count-1 of `batch` (memory prepared by the caller, shapes set). Thread-safe.
     * RV_DATA, RV_IO. */
    rv_status (*read)(void *self, const uint64_t *index, int count, uint32_t epoch,
                      rv_batch *batch);
    void (*close)(void *self);
} rv_source;

/* ---- description ------------------------------------------------------------------------ */
typedef struct rv_layer_row rv_layer_row; /* snn/layer.h; begins with an rv_row */

typedef struct rv_layer_desc {
    char name[RV_NAME_MAX];
    const rv_row *row;               /* of rv_layer_table() or rv_neuron_table() */
    void *options;                   /* of the row's options_size; neuron rows: rv_neuron_options */
    const char *from[RV_MAX_INPUTS]; /* names; from_count 0 = the layer before */
    int from_count;
    bool trainable;
    rv_form form;          /* AUTO: by the measured rates */
    rv_choice init;        /* row NULL: default (pytorch) */
    rv_choice regularizer; /* row NULL: none */
    rv_where where;        /* for messages */
} rv_layer_desc;

typedef struct rv_net_desc {
    rv_shape input;
    bool input_spikes; /* the encoder gives bits */
    bool input_held;   /* the encoder gives one frame for all steps */
    int steps;         /* T */
    uint64_t seed;
    int layer_count;
    rv_layer_desc *layers;
} rv_net_desc;

typedef struct rv_loss_desc {
    rv_choice loss; /* row of rv_loss_table() */
    rv_readout readout;
    int population; /* outputs per class, 1 = plain */
    int classes;    /* 0: float targets */
    double label_smoothing;
    rv_reals class_weights; /* count 0: none */
    rv_where where;
} rv_loss_desc;

typedef struct rv_group_desc { /* parameter group: tensors whose name matches the pattern */
    char *pattern;             /* fnmatch on "layer.tensor" */
    double lr, weight_decay;   /* NAN: the optimiser's */
    rv_where where;
} rv_group_desc;

/* What becomes of the tape of a layer between F and B. */
typedef enum rv_tape_policy { RV_TAPE_KEEP, RV_TAPE_RECOMPUTE, RV_TAPE_SPILL } rv_tape_policy;

#define RV_TAPE_TYPES "float32|float16"
typedef enum rv_tape_type { RV_TAPE_FLOAT32, RV_TAPE_FLOAT16 } rv_tape_type;

typedef struct rv_train_desc {
    int64_t epochs, max_steps; /* max_steps 0 = off */
    int64_t early_stop;        /* end after so many epochs without better validation; 0 = off */
    int64_t total_steps;       /* lr_schedule.total_steps; 0 = min(epochs * updates, max_steps) */
    int batch, micro_batches, chunks;
    const uint8_t *tape; /* [layers] rv_tape_policy, of a pipeline; NULL: all are kept */
    const char *scratch; /* folder on the disk of spilled tapes, and theirs where a run has none;
                            NULL: the system's own for temporary files */
    int tape_dtype;      /* rv_tape_type of membranes between F and B, whatever `tape` is */
    int truncate;        /* chunks an adjoint goes back over at most; 0: all */
    rv_choice optimizer; /* rv_optimizer_table() */
    bool velocity;       /* sgd keeps its velocity without momentum, too */
    double share;        /* sgd: samples of an update over those that lr and momentum, whoever
                          * gives them, are meant for (rv_optimizer_share); 0: as many */
    rv_choice schedule;  /* rv_schedule_table() */
    double clip_norm;    /* 0 = off */
    int group_count;
    rv_group_desc *groups;
} rv_train_desc;

/* Options of the layer rows. */
typedef struct rv_linear_options {
    int units;
    bool bias;
} rv_linear_options;
typedef struct rv_conv_options { /* [0] rows, [1] columns; conv1d: [1] alone */
    int out_channels;
    int kernel_size[2], stride[2], padding[2], dilation[2];
    int groups;
    bool bias;
} rv_conv_options;
typedef struct rv_pool_options {
    int kernel_size[2], stride[2], padding[2]; /* stride 0: kernel_size */
} rv_pool_options;
typedef struct rv_norm_options {
    int statistics; /* step|sequence */
    double momentum, epsilon;
    bool affine;
} rv_norm_options;
typedef struct rv_delay_options {
    rv_reals delay;       /* NAN: `steps` */
    int steps, max_delay; /* max_delay 0: from the delays */
    bool learnable;
} rv_delay_options;
typedef struct rv_dropout_options {
    double p;
} rv_dropout_options;
typedef struct rv_scale_options {
    rv_reals factor;
} rv_scale_options;
typedef struct rv_threshold_options {
    rv_reals threshold;
    int compare; /* ge|gt */
    rv_choice surrogate;
} rv_threshold_options;

/* Tables for configuration and `list`. */
const rv_table *rv_layer_table(void); /* maps, pools, joins, ... (neurons: rv_neuron_table) */
const rv_table *rv_loss_table(void);
const rv_table *rv_optimizer_table(void);
const rv_table *rv_schedule_table(void);
const rv_table *rv_encoder_table(void);
const rv_table *rv_init_table(void);
const rv_table *rv_regularizer_table(void);

#ifdef __cplusplus
}
#endif
#endif
