/*
 * Inside snn/: one layer of a network, the kind that gives it its behaviour, and the memory a layer
 * asks for. A new kind of layer is one file with a const rv_layer_kind, its specs and its option
 * struct (snn.h), and one row in the table of layer.c; every neuron shares one kind (neuron.c).
 *
 * Memory. A layer declares slots: of the state (at chunk borders, per micro-batch; the adjoint
 * twin has the same ones) and of the tape (what F leaves for B and W of one chunk). Two slots have
 * a fixed meaning for every layer; the driver in layer.c makes their views:
 *   state RV_SLOT_HELD  values of a held output (one frame for all steps), computed once per
 *                       micro-batch at t0 = 0; its adjoint twin holds the adjoint's sum over time
 *   tape  RV_SLOT_OUT   bits or values of the output
 *   tape  RV_SLOT_G     adjoint of a map's output, which W reads after B has ended
 *   state RV_SLOT_EDGES  in the twin: the adjoint's sum over time for each held input. Takers sum
 *                        apart, so that the order of sums is the same wherever they run
 * A map whose only consumer is a neuron owns neither OUT nor G: its output is written into the
 * neuron's h, which B overwrites with the adjoint of the map's output.
 */
#ifndef RV_SNN_LAYER_H
#define RV_SNN_LAYER_H

#include "snn/snn.h"

enum { RV_LAYER_TENSORS = 10, RV_LAYER_SLOTS = 10 };
enum { RV_SLOT_HELD = 0, RV_SLOT_STATE = 1 };              /* state: first slot of the kind's own */
enum { RV_SLOT_OUT = 0, RV_SLOT_G = 1, RV_SLOT_TAPE = 2 }; /* tape: likewise */
enum { RV_SLOT_H = RV_SLOT_TAPE };                         /* tape: h of a neuron layer */
enum { RV_SLOT_RATE = RV_LAYER_SLOTS - 1, RV_SLOT_PENALTY = RV_LAYER_SLOTS - 1 }; /* regularize.c */
enum { RV_SLOT_EDGES = RV_LAYER_SLOTS - 2 };                                      /* state: below */

/* Size of a slot in 32-bit words: step*T*B + time*T + sample*B + fixed, rounded up to a vector. */
typedef struct rv_slot {
    size_t step, time, sample, fixed;
} rv_slot;

/* Rates of active inputs below which events beat a dense product, by inputs and outputs of a map,
 * or input and output channels of a group of a 3x3 convolution. Measured once and stored
 * (form_rates.c): choosing asks no clock. */
enum { RV_FORM_SIZES = 4 };
typedef struct rv_form_rates {
    int in[RV_FORM_SIZES], out[RV_FORM_SIZES]; /* ascending */
    double rate[RV_FORM_SIZES][RV_FORM_SIZES]; /* [in][out] */
} rv_form_rates;
extern const rv_form_rates rv_linear_rates, rv_conv_rates;
/* Of the largest sizes of the table that are not above these; else of the smallest. */
double rv_form_rate(const rv_form_rates *rates, int in, int out);

typedef struct rv_layer_kind {
    bool map;         /* a product: begins a block, has W */
    bool view;        /* the output is the input in another shape; no code runs */
    unsigned carried; /* bit k: the adjoint of state slot k goes from a step to the one before */
    bool keeps_input; /* B or W reads the input, so its values must outlive B of other layers */
    size_t plan_size; /* bytes of rv_layer.plan, zeroed before check */
    /* Check inputs, set shape, spikes, held; add tensors; set slots; fill the plan. */
    rv_status (*check)(rv_net *net, rv_layer *layer);
    /* F: read rv_pass_input, fill the signal of this layer, which the driver has set. */
    rv_status (*forward)(rv_pass *pass, const rv_layer *layer);
    /* B: read rv_pass_adjoint, add to what rv_pass_adjoint_in gives for every input. */
    rv_status (*backward)(rv_pass *pass, const rv_layer *layer);
    rv_status (*weight)(rv_pass *pass, const rv_layer *layer); /* W; NULL: none */
    /* Derived forms of a version; NULL: none. */
    rv_status (*derive)(rv_version *version, const rv_layer *layer, int rows);
    void (*discard)(rv_version *version, const rv_layer *layer);
    /* Initial values of tensor k in file order; NULL: by the init table. */
    void (*initial)(const rv_net *net, const rv_layer *layer, int k, float *file);
    /* Rate of active inputs below which events beat a dense product; NULL: no event form. */
    double (*event_rate)(const rv_net *net, const rv_layer *layer);
    /* Synapses of the product; NULL: none. See rv_net_layer_targets. */
    int64_t (*targets)(const rv_net *net, const rv_layer *layer);
    /* U: move the buffers by a micro-batch's statistics (rv_net_statistics_apply); NULL: none. */
    void (*update)(rv_version *version, const rv_layer *layer, const float *statistics, int B);
} rv_layer_kind;

struct rv_layer_row { /* of rv_layer_table() */
    rv_row head;
    const rv_layer_kind *kind;
};

struct rv_layer {
    const rv_layer_desc *desc;
    const rv_layer_kind *kind;
    int index;
    int input_count, input[RV_MAX_INPUTS]; /* layers, views looked through; -1 = network input */
    int consumer_count, consumer;          /* how many layers take the output; the last of them */
    rv_shape shape;
    int n, ld;     /* units; values per row */
    bool spikes;   /* the output is bits */
    bool bf16;     /* bf16 holds every value of the output */
    bool held;     /* the output is one frame for all steps */
    bool trained;  /* owns a trained tensor */
    bool live;     /* a tensor in it or before it is trained: B is needed */
    bool in_place; /* neuron: the input's memory is h */
    bool recurrent;
    bool whole;                   /* trains on whole sequences only: one chunk */
    size_t statistic, statistics; /* place and floats of a step in rv_pass.statistics */
    rv_form form;                 /* of its product; AUTO: none */
    int tensor[RV_LAYER_TENSORS]; /* index into rv_net.tensors, -1 = absent */
    rv_slot state[RV_LAYER_SLOTS], tape[RV_LAYER_SLOTS];
    void *plan;
};

/* ---- for check (net.c, params.c) --------------------------------------------------------- */
rv_shape rv_layer_in_shape(const rv_net *net, const rv_layer *layer, int k);
bool rv_layer_in_spikes(const rv_net *net, const rv_layer *layer, int k);
bool rv_layer_in_bf16(const rv_net *net, const rv_layer *layer, int k); /* spikes, too */
bool rv_layer_in_held(const rv_net *net, const rv_layer *layer, int k);
const char *rv_layer_in_name(const rv_net *net, const rv_layer *layer, int k);
/* RV_CONFIG naming this layer, its input k and both shapes. `needs` says what it takes. */
RV_CHECKED rv_status rv_layer_misfit(const rv_net *net, const rv_layer *layer, int k,
                                     const char *needs);
/* Form of the layer's product before rates are known: as described, else event for spikes. */
RV_CHECKED rv_status rv_layer_choose_form(const rv_net *net, rv_layer *layer);
typedef struct rv_tensor_desc {
    const char *local;
    int rank, dim[4];
    rv_layout layout;
    rv_limit limit;
    bool buffer;
} rv_tensor_desc;
/* Tensor k of the layer. Trained when the description says so and it is no buffer. */
void rv_layer_tensor(rv_net *net, rv_layer *layer, int k, const rv_tensor_desc *desc);
/* Order the tensors (trained, frozen, buffers) and give them their offsets. */
RV_CHECKED rv_status rv_net_lay_out(rv_net *net);
int rv_tensor_class(const rv_tensor *tensor); /* 0 trained, 1 frozen, 2 buffer */
/* Whether B reads weights of the layer: not those of a map whose inputs' adjoints nobody wants. */
bool rv_layer_back(const rv_net *net, const rv_layer *layer);
/* Where a tensor of the range lies in the range's block. */
size_t rv_range_offset(const rv_range *range, const rv_tensor *tensor);

/* ---- versions (params.c) ----------------------------------------------------------------- */
struct rv_version {
    rv_range range;
    const rv_net *net;
    const rv_device *device;
    float *block;
    int rows;       /* of the last derive */
    unsigned reads; /* rv_readers: passes that forms are derived for */
    struct rv_derived {
        rv_form form;  /* packed holds */
        void *packed;  /* of the layer's map */
        float *params; /* neurons: [RV_P_COUNT][ld] */
    } * derived;       /* per layer */
};
/* Tensor k of a layer in a version's block; NULL when absent. */
float *rv_version_tensor(const rv_version *version, const rv_layer *layer, int k);
/* Pack `map` (weight, bias, form set) for the layer and put the result into it. */
RV_CHECKED rv_status rv_version_pack(rv_version *version, const rv_layer *layer, const rv_map *map,
                                     int rows);
void rv_version_unpack(rv_version *version, const rv_layer *layer); /* free what pack made */
/* The same tensor's gradient; NULL when it is not trained. */
float *rv_pass_gradient(const rv_pass *pass, const rv_layer *layer, int k);

/* ---- state and tape (state.c) ------------------------------------------------------------ */
struct rv_state {
    const rv_net *net;
    const rv_device *device;
    int B;
    float *block;
    size_t size;    /* words */
    size_t *offset; /* [layer_count][RV_LAYER_SLOTS] words; SIZE_MAX: empty slot */
};

typedef struct rv_scratch { /* an adjoint in the arena, given back once its layer's B has run */
    size_t mark;
    int layer;
} rv_scratch;

struct rv_tape {
    rv_range range;
    const rv_net *net;
    const rv_device *device;
    int T, B;
    float *block;
    float *kept;               /* borrowed memory of the first part; the others are in block */
    size_t end[RV_TAPE_PARTS]; /* words, of the parts */
    size_t *offset;            /* [layer_count + 1][RV_LAYER_SLOTS]; entry layer_count: the input */
    rv_signal *signal;         /* [layer_count + 1], entry 0: the input */
    rv_values *adjoint;        /* [layer_count + 1], of each layer's output; data NULL: none */
    rv_scratch *stack;         /* [2 * layer_count] */
    int depth;
};
/* NULL for an empty slot. */
float *rv_state_slot(const rv_state *state, const rv_layer *layer, int k);
float *rv_tape_slot(const rv_tape *tape, const rv_layer *layer, int k);

/* ---- for forward and backward (layer.c) -------------------------------------------------- */
extern const rv_layer_kind rv_kind_neuron, rv_kind_linear;
extern const rv_spec rv_linear_specs[];

static inline const rv_signal *rv_pass_input(const rv_pass *pass, const rv_layer *layer, int k) {
    return &pass->tape->signal[layer->input[k] + 1];
}
static inline rv_signal *rv_pass_output(const rv_pass *pass, const rv_layer *layer) {
    return &pass->tape->signal[layer->index + 1];
}
/* Adjoint of the layer's output; data NULL: nothing reached it. Held outputs: the sum over time. */
static inline rv_values rv_pass_adjoint(const rv_pass *pass, const rv_layer *layer) {
    return pass->tape->adjoint[layer->index + 1];
}
/* Weights that carry the adjoint back. Slopes, membranes and gradients are made from what forward
 * saw, pass->version. */
static inline const rv_version *rv_pass_back(const rv_pass *pass) {
    return pass->back ? pass->back : pass->version;
}
/* Where the adjoint of input k goes: *add tells whether a later consumer has been there before.
 * out->data NULL: nobody wants it. */
RV_CHECKED rv_status rv_pass_adjoint_in(rv_pass *pass, const rv_layer *layer, int k, rv_values *out,
                                        bool *add);
/* to (+)= from, rows of to.n values; a held `from` serves every step of `to`. A held `to` takes the
 * sum over the steps of `from`, with add; without, `from` has one step. */
RV_CHECKED rv_status rv_values_copy(const rv_pass *pass, rv_values to, rv_values from, bool add);
/* `starts` of this micro-batch's rows over the chunk, from the arena; NULL without. */
RV_CHECKED rv_status rv_pass_starts(const rv_pass *pass, const uint32_t **out);
/* Values a row of the sum for held input k takes in RV_SLOT_EDGES; 0: that input needs none. */
size_t rv_layer_edge(const rv_net *net, const rv_layer *layer, int k);
int rv_pass_last(const rv_pass *pass); /* the layer whose output leaves the range */
/* The neuron that takes this map's output in place within this pass, run as one op with it;
 * NULL: none. */
const rv_layer *rv_pass_fused(const rv_pass *pass, const rv_layer *map);
/* The map that alone takes this neuron layer's spikes, where the neuron's B runs the map's product
 * in parts along time, so that the adjoint of the spikes is never whole; NULL: it does not. */
const rv_layer *rv_pass_parts(const rv_pass *pass, const rv_layer *neuron);
/* The linear map of a layer: tensors weight k and bias k (-1: none), packed form of the version. */
rv_map rv_linear_map(const rv_version *version, const rv_layer *layer); /* of a linear layer */
rv_map rv_layer_map(const rv_version *version, const rv_layer *layer, int in, int out, int weight,
                    int bias);

/* The surrogate of a description: its row, or the first, with its options or their defaults. */
rv_surrogate rv_surrogate_of(const rv_choice *choice);

/* ---- regularisers (regularize.c) --------------------------------------------------------- */
RV_CHECKED rv_status rv_regularizer_slots(rv_layer *layer); /* RV_CONFIG: the layer has no spikes */
void rv_regularizer_forward(const rv_pass *pass, const rv_layer *layer);
/* Add the penalty's slope to the adjoint of the layer's spikes. */
void rv_regularizer_backward(const rv_pass *pass, const rv_layer *layer, rv_values g);

/* ---- initialisation (init.c) ------------------------------------------------------------- */
/* Fill tensor k of a layer in file order from its init choice. Rank 1 is the bias of tensor 0. */
void rv_init_fill(const rv_net *net, const rv_layer *layer, int k, float *file);
/* Sum of squares of a neuron's membrane over `steps` steps after one unit input; its threshold. */
double rv_neuron_response(const rv_layer *neuron, int steps, double *threshold);

#endif
