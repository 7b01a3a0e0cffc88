/*
 * Inside snn/: a loss is a readout (what of the output's course over time is judged) and a row of
 * the loss table (how one vector of logits is judged). readout.c holds the first, loss_rows.c the
 * second, loss.c what runs them.
 */
#ifndef RV_SNN_LOSS_H
#define RV_SNN_LOSS_H

#include "snn/layer.h"

typedef enum rv_reads { RV_READS_SPIKES, RV_READS_MEMBRANE, RV_READS_OUTPUT } rv_reads;
/* Where the adjoint of a result goes: to every step alike, to one step, or by judging each step. */
typedef enum rv_spread { RV_SPREAD_ALL, RV_SPREAD_ONE, RV_SPREAD_EACH } rv_spread;

typedef struct rv_readout_row {
    const char *name;
    rv_reads reads;
    rv_spread spread;
    double (*result)(const rv_course *course, int length);
    double (*slope)(const rv_course *course, int length); /* of the result by y at the step(s) */
} rv_readout_row;
const rv_readout_row *rv_readout_find(rv_readout readout); /* NULL: no such */

/* ---- rows of the loss table --------------------------------------------------------------- */
typedef struct rv_loss_options {
    int time; /* negate|reciprocal */
    double on, off, share, level;
} rv_loss_options;

/* What a row sees of one sample (or one of its steps). */
typedef struct rv_judgement {
    const rv_loss_desc *desc;
    const rv_loss_options *options;
    int classes, label, length;
    const float *target; /* [classes], or NULL: the label is meant */
    const double *logit; /* [classes] */
    double *slope;       /* out: derivative of the loss by each logit */
} rv_judgement;

typedef enum rv_loss_target { RV_TARGET_LABELS, RV_TARGET_EITHER } rv_loss_target;
typedef struct rv_loss_row {
    rv_row head;
    rv_loss_target target; /* either: float targets as well */
    double (*judge)(const rv_judgement *j);
} rv_loss_row;

const rv_loss_row *rv_loss_row_of(const rv_choice *choice); /* the chosen one, or the default */

#endif
