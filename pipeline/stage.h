/*
 * Inside pipeline/: a stage is a range of layers with all that belongs to it (weights, versions,
 * optimiser, states, tapes; the last one also the loss) and a list of work items: that of a step,
 * or, where gradients come late, the endless order of its rule (order.h). rv_stage_step
 * runs the next item when it can and never blocks: threads, the one-thread driver of tests and
 * other drivers only decide when to call it. One thread at a time calls into a stage.
 */
#ifndef RV_PIPELINE_STAGE_H
#define RV_PIPELINE_STAGE_H

#include "pipeline/account.h"
#include "pipeline/flow.h"
#include "pipeline/link.h"
#include "pipeline/order.h"
#include "pipeline/schedule.h"
#include "pipeline/tape.h"
#include "pipeline/timeline.h"
#include "pipeline/weights.h"
#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what a message holds (wire.c) ------------------------------------------------------ */
/* All tensors of a crossing, in its order, for T steps of B samples. Forward: bits or values;
 * back: float32 adjoints of the live ones. A held tensor is one frame. */
size_t rv_wire_forward_bytes(const rv_crossing *crossing, int T, int B);
size_t rv_wire_backward_bytes(const rv_crossing *crossing, int T, int B);
/* Views of the payload. signal, g: [crossing->count]; data NULL where nothing goes back. */
void rv_wire_forward(const rv_crossing *crossing, int T, int B, void *payload, rv_signal *signal);
void rv_wire_backward(const rv_crossing *crossing, int T, int B, void *payload, rv_values *g);
/* Copy `from` (of any strides) to `to`. */
RV_CHECKED rv_status rv_wire_copy(const rv_device *device, rv_queue *queue, const rv_signal *from,
                                  const rv_signal *to);

/* ---- stages ----------------------------------------------------------------------------- */
typedef struct rv_stage_desc {
    int index, stages, first, last; /* layers [first, last) */
    const rv_net *net;
    const rv_device *device; /* of this stage alone */
    const rv_choice *encoder;
    const rv_loss_desc *loss;
    const rv_train_desc *train;
    int64_t total_steps;
    const rv_schedule *schedule; /* simulated; list `index` is this stage's; borrowed */
    rv_writer *writer;           /* of spilled tapes; NULL: none are */
    rv_wake wake;                /* rung when they have moved; ring NULL: nobody sleeps */
    rv_flow *flow;               /* the endless order takes its batches there; NULL: steps */
    rv_delay_rule rule;          /* with flow */
    double scratch; /* bytes that no item is thought to exceed: taken at once, in one piece */
} rv_stage_desc;

/* Edges of a stage; NULL where there is none. Owned by who made them. */
typedef struct rv_stage_links {
    rv_link *forward_in, *forward_out, *backward_in, *backward_out;
    rv_link *norm, *factor;     /* of the stages before the last: to it, and from it */
    rv_link **norms, **factors; /* of the last stage: [stages - 1] */
} rv_stage_links;

typedef struct rv_flight { /* a micro-batch between its first F and its last W */
    rv_state *state;
    rv_loss *loss; /* last stage */
} rv_flight;

typedef struct rv_stage {
    rv_stage_desc desc;
    rv_stage_links links;
    rv_range range;
    rv_crossing before, after;
    rv_weights weights; /* and optimiser, of the range */
    float *gradient;    /* [range.n_trained], of the latest update */
    rv_state *adjoint;
    int flights; /* ring of micro-batches: slot micro % flights */
    rv_flight *flight;
    rv_tapes *tapes;
    int ring;          /* micro-batches whose statistics may wait for their update */
    float *statistics; /* [ring][steps][rv_net_statistics]; NULL: none here */
    rv_signal *signal; /* scratch of a message */
    rv_values *g_before, *g_after;
    double *norm; /* sums of squares: of own tensors, last stage: of all */
    double scale; /* factor on the gradient of this step */
    rv_arena arena;
    rv_track *track;  /* of the timeline; NULL: none */
    rv_work *forward; /* F of all micro-batches: the list of an evaluation */
    rv_order order;   /* with flow: where it stands, its next item (a list of one), and whether */
    rv_work next;     /* all weights and gradients so far were finite */
    bool sound;
    rv_account account; /* with flow: what passes of training read */
    /* the step at hand */
    const rv_work *list;
    int count, at;
    const rv_batch *batch;
    bool training;
    int layer;             /* that ran last, for messages */
    rv_step_result result; /* loss, correct, norm: last stage; rate */
    int64_t *spikes;       /* of an evaluation; may be NULL */
    int32_t *predictions;
    const rv_observer *observer;
    bool taped; /* the encoded input lies on the tape, and not in the batch */
} rv_stage;

/* RV_CONFIG where the recipe cannot run so. The stage starts with weights of zero. */
RV_CHECKED rv_status rv_stage_create(const rv_stage_desc *desc, rv_stage **out);
void rv_stage_destroy(rv_stage *stage);
/* Payload bytes of the largest message over each edge. */
void rv_stage_bytes(const rv_stage *stage, size_t *forward_in, size_t *backward_in);

/* Begin a step of training, or an evaluation (forward only). */
RV_CHECKED rv_status rv_stage_begin(rv_stage *stage, const rv_batch *batch, bool training);
/* With flow: go on with the endless order. It has no end, but rv_stage_step says RV_TURN_END while
 * no batch is left to begin and none is under way. */
void rv_stage_flow(rv_stage *stage);

typedef enum rv_turn {
    RV_TURN_DONE, /* an item ran */
    RV_TURN_WAIT, /* it would wait for *edge */
    RV_TURN_END   /* the list is at its end */
} rv_turn;
/* Items that may go next; more than one where its order is split. Returns how many; 0: the end. */
int rv_stage_offers(const rv_stage *stage, rv_work offers[RV_OFFERS]);
/* Run one of them, or find that it would wait. Errors as below. */
RV_CHECKED rv_status rv_stage_try(rv_stage *stage, const rv_work *work, rv_turn *turn,
                                  rv_link **edge);
/* None is left to go: the ops of all have ended when it returns. */
RV_CHECKED rv_status rv_stage_end(rv_stage *stage);
/* Run at most one item. An error is that of the item: rv_stage_item names it. */
RV_CHECKED rv_status rv_stage_step(rv_stage *stage, rv_turn *turn, rv_link **edge);
/* "stage 1, B3.0, layer "fc2"": where a stage is. Returns text. */
const char *rv_stage_item(const rv_stage *stage, char text[160]);

/* Its batch, and the rows [row, row + B) of it that are micro-batch m; B may be 0. */
const rv_batch *rv_stage_rows(const rv_stage *stage, int m, int *row, int *B);
/* Are its newest weights finite, and the gradient they were made with? */
bool rv_stage_sound(const rv_stage *stage);
/* The update micro-batch m belongs to. */
int64_t rv_stage_update(const rv_stage *stage, int m);

#ifdef __cplusplus
}
#endif
#endif
