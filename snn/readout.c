/*
 * Readouts: how the course of an output over time, which the device has folded into a record,
 * becomes one number per output. A row says what the record means at the end, and where a slope
 * goes.
 */
#include "snn/loss.h"

/* What step left there: a count, a maximum, a last value. */
static double result_sum(const rv_course *c, int length) {
    (void)length;
    return c->sum;
}

/* Over the steps that count for the sample. */
static double result_mean(const rv_course *c, int length) {
    return c->sum / length;
}

/* The sooner the larger; without a spike as if it came at the last step. */
static double result_first(const rv_course *c, int length) {
    return -(double)(c->when < 0 ? length - 1 : c->when);
}

/* The result is the value itself at the step that made it, or a sum. */
static double slope_one(const rv_course *c, int length) {
    (void)c, (void)length;
    return 1;
}

/* Every step has the same share. */
static double slope_mean(const rv_course *c, int length) {
    (void)c;
    return 1.0 / length;
}

/* every_step judges each step; its sum only serves the prediction. */
static const rv_readout_row rows[] = {
    [RV_READ_SPIKE_COUNT] = {"spike_count", RV_READS_SPIKES, RV_SPREAD_ALL, result_sum, slope_one},
    [RV_READ_SPIKE_RATE] = {"spike_rate", RV_READS_SPIKES, RV_SPREAD_ALL, result_mean, slope_mean},
    [RV_READ_FIRST_SPIKE] = {"first_spike", RV_READS_SPIKES, RV_SPREAD_ONE, result_first,
                             slope_one},
    [RV_READ_MEMBRANE_MAX] = {"membrane_max", RV_READS_MEMBRANE, RV_SPREAD_ONE, result_sum,
                              slope_one},
    [RV_READ_MEMBRANE_MEAN] = {"membrane_mean", RV_READS_MEMBRANE, RV_SPREAD_ALL, result_mean,
                               slope_mean},
    [RV_READ_MEMBRANE_LAST] = {"membrane_last", RV_READS_MEMBRANE, RV_SPREAD_ONE, result_sum,
                               slope_one},
    [RV_READ_EVERY_STEP] = {"every_step", RV_READS_OUTPUT, RV_SPREAD_EACH, result_mean, slope_mean},
};

/* The enum is part of the interface: a value from outside may be anything. */
const rv_readout_row *rv_readout_find(rv_readout readout) {
    size_t count = sizeof rows / sizeof *rows;
    return (size_t)readout < count ? &rows[readout] : NULL;
}
