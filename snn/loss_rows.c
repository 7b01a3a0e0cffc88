/*
 * The loss table: how one vector of logits is judged. A row returns the loss of one sample (or of
 * one of its steps) and leaves the slope by every logit; weights and means are the caller's.
 */
#include <math.h>

#include "snn/loss.h"

/* ---- rows -------------------------------------------------------------------------------- */
/* Logits of first_spike are negative times. They are judged as they are, or as 1/(time + 1), which
 * tells early spikes apart better than late ones. Returns the derivative by the logit. */
static double time_logit(const rv_judgement *j, double logit, double *out) {
    *out = logit;
    if (!j->options->time || j->desc->readout != RV_READ_FIRST_SPIKE) return 1;
    *out = 1 / (1 - logit);
    return *out * *out;
}

/* -sum q log p with p = softmax(logit) and q the smoothed one-hot label; slope p - q. The largest
 * logit is subtracted first, so exp cannot overflow. */
static double cross_entropy(const rv_judgement *j) {
    double most = -INFINITY, sum = 0, loss = 0, smoothing = j->desc->label_smoothing, logit;
    for (int c = 0; c < j->classes; c++) {
        time_logit(j, j->logit[c], &logit);
        if (logit > most) most = logit;
    }
    for (int c = 0; c < j->classes; c++) {
        time_logit(j, j->logit[c], &logit);
        sum += exp(logit - most);
    }
    for (int c = 0; c < j->classes; c++) {
        double share = smoothing / j->classes + (c == j->label ? 1 - smoothing : 0);
        double inner = time_logit(j, j->logit[c], &logit);
        double log_p = logit - most - log(sum);
        if (share > 0) loss -= share * log_p;
        j->slope[c] = (exp(log_p) - share) * inner;
    }
    return loss;
}

/* Mean over the classes of weight * (logit - target)^2. */
static double square(const rv_judgement *j, int c, double target, double weight) {
    double apart = j->logit[c] - target;
    j->slope[c] = 2 * weight * apart / j->classes;
    return weight * apart * apart / j->classes;
}

/* Float targets where the data has them, else one value for the label's class and one for all
 * others. */
static double mse(const rv_judgement *j) {
    double loss = 0;
    for (int c = 0; c < j->classes; c++) {
        double label = c == j->label ? j->options->on : j->options->off;
        loss += square(j, c, j->target ? (double)j->target[c] : label, 1);
    }
    return loss;
}

/* Targets are whole spikes: a share of the steps of all outputs of the class, cut off. */
static double mse_count(const rv_judgement *j) {
    double loss = 0;
    for (int c = 0; c < j->classes; c++) {
        double rate = c == j->label ? j->options->on : j->options->off;
        loss += square(j, c, floor(j->length * rate * j->desc->population), 1.0 / j->length);
    }
    return loss;
}

/* The logit of first_spike is the negative time. A target below 0 is the last step. */
static double mse_temporal(const rv_judgement *j) {
    double loss = 0;
    for (int c = 0; c < j->classes; c++) {
        double time = c == j->label ? j->options->on : j->options->off;
        if (time < 0) time = j->length - 1;
        loss += square(j, c, -time, 1.0 / ((double)j->length * j->length));
    }
    return loss;
}

/* (1 - share) cross entropy + share mean (logit - level)^2 of a step. */
static double tet(const rv_judgement *j) {
    double loss = (1 - j->options->share) * cross_entropy(j);
    for (int c = 0; c < j->classes; c++) {
        double apart = j->logit[c] - j->options->level, slope = j->slope[c];
        loss += j->options->share * apart * apart / j->classes;
        j->slope[c] = (1 - j->options->share) * slope + 2 * j->options->share * apart / j->classes;
    }
    return loss;
}

#define REAL(name, field, initial, least, most, sentence)                                          \
    {                                                                                              \
        name, RV_T_REAL, offsetof(rv_loss_options, field), initial, least, most, false, NULL,      \
            NULL, sentence                                                                         \
    }
static const rv_spec cross_entropy_specs[] = {
    {"time", RV_T_CHOICE, offsetof(rv_loss_options, time), 0, 0, 0, false, "negate|reciprocal",
     NULL, "what readout first_spike makes of a time: -time, or 1/(time + 1)"},
    {0},
};
static const rv_spec mse_specs[] = {
    REAL("on", on, 1, -1e6, 1e6, "target of the label's class, without float targets"),
    REAL("off", off, 0, -1e6, 1e6, "target of the other classes"),
    {0},
};
static const rv_spec count_specs[] = {
    REAL("on", on, 1, 0, 1, "spikes per step wanted of the label's class"),
    REAL("off", off, 0, 0, 1, "spikes per step wanted of the other classes"),
    {0},
};
static const rv_spec temporal_specs[] = {
    REAL("on", on, 0, -1, 1e6, "step of the first spike of the label's class"),
    REAL("off", off, -1, -1, 1e6, "step of the first spike of the others; -1: the last step"),
    {0},
};
static const rv_spec tet_specs[] = {
    REAL("share", share, 0.05, 0, 1, "weight of the squared distance to `level` (lambda)"),
    REAL("level", level, 1, -1e6, 1e6, "value the outputs are drawn to"),
    {0},
};

static const rv_loss_row rows[] = {
    {{"cross_entropy", "cross entropy of the softmax of the logits", "PyTorch CrossEntropyLoss",
      cross_entropy_specs, sizeof(rv_loss_options)},
     RV_TARGET_LABELS,
     cross_entropy},
    {{"mse", "mean square of readout minus target", "PyTorch MSELoss", mse_specs,
      sizeof(rv_loss_options)},
     RV_TARGET_EITHER,
     mse},
    {{"mse_count", "mean square of spike count minus wanted count, over the steps",
      "snnTorch mse_count_loss", count_specs, sizeof(rv_loss_options)},
     RV_TARGET_LABELS,
     mse_count},
    {{"mse_membrane", "mean square of membrane minus on or off", "snnTorch mse_membrane_loss",
      mse_specs, sizeof(rv_loss_options)},
     RV_TARGET_LABELS,
     mse},
    {{"mse_temporal", "mean square of first spike minus wanted step, in units of the length",
      "snnTorch mse_temporal_loss", temporal_specs, sizeof(rv_loss_options)},
     RV_TARGET_LABELS,
     mse_temporal},
    {{"tet", "cross entropy of each step, and outputs drawn to a level; readout every_step",
      "Deng et al. 2022", tet_specs, sizeof(rv_loss_options)},
     RV_TARGET_LABELS,
     tet},
};

/* A description without a loss means cross entropy. */
const rv_loss_row *rv_loss_row_of(const rv_choice *choice) {
    return choice->row ? (const rv_loss_row *)(const void *)choice->row : &rows[0];
}

const rv_table *rv_loss_table(void) {
    static const rv_table table = {"losses", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}
