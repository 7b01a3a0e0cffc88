/*
 * Regularisers: a penalty on the firing rates of a spiking layer over a micro-batch. F counts; at
 * the end of the last chunk the penalty and its slope per unit go to that chunk's tape; B takes
 * the slope from there into the adjoint state and adds it to the adjoint of every spike.
 */
#include <math.h>
#include <string.h>

#include "snn/layer.h"

typedef struct rate_options {
    double upper, lower, strength;
} rate_options;

typedef struct regularizer_row {
    rv_row head;
    /* Penalty of one unit's rate (spikes per step) and its derivative. */
    double (*penalty)(const rate_options *o, double rate, double *slope);
} regularizer_row;

/* Nothing within [lower, upper]; outside the square of the distance. */
static double rate_penalty(const rate_options *o, double rate, double *slope) {
    double over = fmax(rate - o->upper, 0), under = fmax(o->lower - rate, 0);
    *slope = o->strength * 2 * (over - under);
    return o->strength * (over * over + under * under);
}

static const rv_spec rate_specs[] = {
    {"upper", RV_T_REAL, offsetof(rate_options, upper), 1, 0, 1, false, NULL, NULL,
     "spikes per step above which a unit is held back"},
    {"lower", RV_T_REAL, offsetof(rate_options, lower), 0, 0, 1, false, NULL, NULL,
     "spikes per step below which a unit is driven"},
    {"strength", RV_T_REAL, offsetof(rate_options, strength), 1, 0, 1e9, false, NULL, NULL,
     "factor of the penalty"},
    {0},
};

static const regularizer_row rows[] = {
    {{"rate", "squared distance of every unit's rate to a range, summed over the units",
      "Zenke, Vogels 2021", rate_specs, sizeof(rate_options)},
     rate_penalty},
};

const rv_table *rv_regularizer_table(void) {
    static const rv_table table = {"regularizers", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

/* Counts in the state (the slope in its adjoint twin), the finished slope and penalty on the
 * tape of the last chunk. */
rv_status rv_regularizer_slots(rv_layer *layer) {
    const rv_layer_desc *desc = layer->desc;
    if (!desc->regularizer.row) return RV_OK;
    if (!layer->spikes)
        return rv_fail_at(RV_CONFIG, desc->where, "regularizer", NULL,
                          "layer \"%s\" (%s) gives no spikes, whose rate could be regularised",
                          desc->name, desc->row->name);
    layer->state[RV_SLOT_RATE].fixed = (size_t)layer->ld;
    layer->tape[RV_SLOT_PENALTY].fixed = (size_t)layer->ld + RV_LANES;
    return RV_OK;
}

/* ---- F ----------------------------------------------------------------------------------- */
/* Rates ignore steps beyond a sample's length. */
static int steps_of(const rv_pass *pass, int b) {
    int T = pass->net->desc->steps;
    int length = pass->batch->length ? pass->batch->length[pass->row + b] : T;
    return length < T ? length : T;
}

/* Set bits only: rates are low where a regulariser is of use. */
static void count(const rv_pass *pass, const rv_layer *layer, uint32_t *counts) {
    rv_spikes s = pass->tape->signal[layer->index + 1].spikes;
    for (int b = 0; b < pass->B; b++) {
        int end = steps_of(pass, b) < pass->t1 ? steps_of(pass, b) : pass->t1;
        for (int t = 0; t < end - pass->t0; t++) {
            const uint32_t *bits =
                s.bits + (size_t)t * s.stride_t + (size_t)b * (size_t)rv_words(s.n);
            for (int w = 0; w < rv_words(s.n); w++)
                for (uint32_t word = bits[w]; word; word &= word - 1)
                    counts[w * 32 + __builtin_ctz(word)]++;
        }
    }
}

/* The mean over the batch is the sum over micro-batches of their share. */
void rv_regularizer_forward(const rv_pass *pass, const rv_layer *layer) {
    const rv_choice *choice = &layer->desc->regularizer;
    const regularizer_row *row = (const regularizer_row *)(const void *)choice->row;
    uint32_t *counts = (uint32_t *)(void *)rv_state_slot(pass->state, layer, RV_SLOT_RATE);
    float *tape = rv_tape_slot(pass->tape, layer, RV_SLOT_PENALTY);
    double places = 0, sum = 0, share = (double)pass->B / pass->batch->B;
    rate_options defaults;
    count(pass, layer, counts);
    if (pass->t1 < pass->net->desc->steps) return;
    rv_specs_default(row->head.specs, &defaults);
    for (int b = 0; b < pass->B; b++)
        places += steps_of(pass, b);
    for (int u = 0; u < layer->n; u++) {
        double slope;
        sum +=
            row->penalty(choice->options ? choice->options : &defaults, counts[u] / places, &slope);
        tape[u] = (float)(share * slope / places);
    }
    sum *= share;
    memcpy(tape + layer->ld, &sum, sizeof sum);
}

/* The double lies behind the slopes, moved by memcpy: slots are words. */
double rv_tape_penalty(const rv_tape *tape, int first, int last, double before) {
    double total = before, part;
    for (int l = first; l < last; l++) {
        const float *slot = rv_tape_slot(tape, &tape->net->layers[l], RV_SLOT_PENALTY);
        if (!slot) continue;
        memcpy(&part, slot + tape->net->layers[l].ld, sizeof part);
        total += part;
    }
    return total;
}

/* ---- B ----------------------------------------------------------------------------------- */
void rv_regularizer_backward(const rv_pass *pass, const rv_layer *layer, rv_values g) {
    float *slope = rv_state_slot(pass->adjoint, layer, RV_SLOT_RATE);
    if (pass->t1 == pass->net->desc->steps)
        memcpy(slope, rv_tape_slot(pass->tape, layer, RV_SLOT_PENALTY),
               sizeof *slope * (size_t)layer->ld);
    for (int t = 0; t < g.T; t++) {
        for (int b = 0; b < g.B; b++) {
            float *row = g.data + (size_t)t * g.stride_t + (size_t)b * (size_t)g.ld;
            if (pass->t0 + t >= steps_of(pass, b)) continue;
            for (int u = 0; u < layer->n; u++)
                row[u] += slope[u];
        }
    }
}
