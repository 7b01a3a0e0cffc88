/*
 * Reader `manifold`: synthetic samples for studies, learnt by depth rather than by counting. Each
 * class is a smooth surface over the unit square: unit u of a sample of class k at the point (a, b)
 * is a sum of `waves` products of two sines with phases of their own, the n-th divided by
 * n^falling, brought to [0, 1]. A sample is one point, drawn evenly. Phases and points are drawn
 * from Philox, so order cannot matter and nothing need be stored. Values without time: encoder
 * `latency` makes one spike of each, whose time is the value.
 */
#include "data/reader.h"

#include <math.h>

typedef struct manifold_options {
    int units, classes, samples, test_samples, waves;
    double falling;
} manifold_options;
_Static_assert(sizeof(manifold_options) <= RV_READER_OPTIONS, "room for the options");

#define AT(field) offsetof(manifold_options, field)
const rv_spec rv_reader_manifold_specs[] = {
    {"units", RV_T_INT, AT(units), 40, 1, 1 << 16, .sentence = "inputs"},
    {"classes", RV_T_INT, AT(classes), 10, 1, 4096,
     .sentence = "class of sample s is s modulo this"},
    {"samples", RV_T_INT, AT(samples), 2000, 1, 1 << 30, .sentence = "training samples"},
    {"test_samples", RV_T_INT, AT(test_samples), 1000, 0, 1 << 30, .sentence = "test samples"},
    {"waves", RV_T_INT, AT(waves), 3, 1, 64, .sentence = "products of sines in the sum"},
    {"falling", RV_T_REAL, AT(falling), 2, 0, 10,
     .sentence = "the n-th product is divided by n to this power: larger is smoother"},
    {.name = NULL},
};

enum { LAYER_POINTS, LAYER_PHASES }; /* keeps the two kinds of numbers apart */

typedef struct manifold_source {
    manifold_options options;
    uint64_t seed;
    uint32_t split;
    float *phase; /* [classes][units][waves][2], in turns */
} manifold_source;

static void phases_draw(manifold_source *source) {
    const manifold_options *o = &source->options;
    float *to = source->phase;
    for (int k = 0; k < o->classes; k++)
        for (int u = 0; u < o->units; u++)
            for (int n = 0; n < o->waves; n++, to += 2) {
                uint32_t draw[4];
                rv_random4(draw, source->seed, RV_FOR_DATA, LAYER_PHASES, 0, (uint32_t)k,
                           (uint32_t)n, (uint32_t)u);
                to[0] = rv_uniform(draw[0]), to[1] = rv_uniform(draw[1]);
            }
}

static void sample_values(const manifold_source *source, uint32_t sample, float *to) {
    const manifold_options *o = &source->options;
    const double turn = 6.283185307179586;
    size_t class = sample % (uint32_t)o->classes;
    const float *phase = source->phase + class * (size_t)(o->units * o->waves * 2);
    uint32_t draw[4];
    rv_random4(draw, source->seed, RV_FOR_DATA, LAYER_POINTS, source->split, sample, 0, 0);
    double a = (double)rv_uniform(draw[0]), b = (double)rv_uniform(draw[1]);
    for (int u = 0; u < o->units; u++) {
        double sum = 0, most = 0;
        for (int n = 1; n <= o->waves; n++, phase += 2) {
            double share = pow(n, -o->falling);
            sum += share * sin(turn * (n * a + (double)phase[0])) *
                   sin(turn * (n * b + (double)phase[1]));
            most += share;
        }
        to[u] = (float)(0.5 + 0.5 * sum / most);
    }
}

static rv_status manifold_read(void *self, const uint64_t *index, int count, uint32_t epoch,
                               rv_batch *batch) {
    const manifold_source *source = self;
    (void)epoch; /* the data set is the same in every epoch */
    for (int b = 0; b < count; b++) {
        uint32_t sample = (uint32_t)index[b];
        sample_values(source, sample,
                      batch->input.values.data + (size_t)b * (size_t)batch->input.values.ld);
        ((int32_t *)batch->label)[b] = (int32_t)(sample % (uint32_t)source->options.classes);
        ((uint64_t *)batch->sample)[b] = index[b];
    }
    return RV_OK;
}

static void manifold_close(void *self) {
    manifold_source *source = self;
    if (source) rv_free(source->phase);
    rv_free(source);
}

static rv_status manifold_open(const rv_config *config, rv_split split, rv_source *out) {
    rv_status status = RV_OK;
    const manifold_options *options = config->data.options;
    bool test = split == RV_SPLIT_TEST;
    manifold_source *source = NULL;
    if (test && options->test_samples == 0) goto out;
    TRY(rv_alloc(1, sizeof *source, "a data set", &source));
    source->options = *options, source->seed = config->seed, source->split = test;
    TRY(rv_alloc((size_t)options->classes * (size_t)options->units,
                 (size_t)options->waves * 2 * sizeof *source->phase, "phases", &source->phase));
    phases_draw(source);
    *out = (rv_source){.self = source,
                       .count = test ? options->test_samples : options->samples,
                       .shape = {1, {options->units}},
                       .classes = options->classes,
                       .read = manifold_read,
                       .close = manifold_close};
    source = NULL;
out:
    manifold_close(source);
    return status;
}

const rv_reader rv_reader_manifold = {.open = manifold_open};
