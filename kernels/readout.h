/*
 * Readouts: how the course of an output over time is folded into a record, and which steps its
 * slope belongs to. One output of one sample, inline, compiled by gcc and nvcc. Sums are in double
 * and in the order of time.
 */
#ifndef RV_KERNELS_READOUT_H
#define RV_KERNELS_READOUT_H

#include "kernels/kernels.h"

/* A sample without a single step would divide by zero: it counts as one step. */
static RV_HD int rv_span_length(rv_span span, int b) {
    int length = span.length ? span.length[b] : span.steps;
    return length < 1 ? 1 : length > span.steps ? span.steps : length;
}

/* Later spikes do not move the first; of equal maxima the first stands, as in PyTorch's max; the
 * last step is that of the sample, not of the chunk or the batch. */
static RV_HD void rv_readout_step(rv_readout readout, rv_course *c, double y, int t, int length) {
    switch (readout) {
    case RV_READ_FIRST_SPIKE:
        if (c->when < 0 && y > 0) c->when = t;
        break;
    case RV_READ_MEMBRANE_MAX:
        if (c->when >= 0 && y <= c->sum) break;
        c->sum = y;
        c->when = t;
        break;
    case RV_READ_MEMBRANE_LAST:
        if (t != length - 1) break;
        c->sum = y;
        c->when = t;
        break;
    default: /* counts, rates, means */
        c->sum += y;
    }
}

/* Whether the slope of a result belongs to step t. */
static RV_HD bool rv_readout_reads(const rv_course *c, bool one, int t, int length) {
    int when = c->when < 0 ? length - 1 : c->when;
    return t < length && (!one || t == when);
}

#endif
