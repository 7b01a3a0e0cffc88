/*
 * Reader `bernoulli`: synthetic spikes for tests and benchmarks. Each class has a pattern of signs
 * over the units; unit u of a sample of class k spikes at every step with probability
 * rate * (1 + signal * sign[k][u]), independently. Bits are drawn from Philox by
 * (seed, split, sample, step, unit), so order cannot matter and nothing need be stored. A set of
 * few bits is drawn once and kept, so that benchmarks do not measure random numbers. With steps 0 a
 * sample is these probabilities, for encoder `rate`: then no sequence is ever in memory as a whole.
 */
#include "data/reader.h"

#include <string.h>

typedef struct bernoulli_options {
    int units, classes, samples, test_samples, steps;
    double rate, signal;
} bernoulli_options;
_Static_assert(sizeof(bernoulli_options) <= RV_READER_OPTIONS, "room for the options");

#define AT(field) offsetof(bernoulli_options, field)
const rv_spec rv_reader_bernoulli_specs[] = {
    {"units", RV_T_INT, AT(units), 64, 1, 1 << 20, .sentence = "inputs"},
    {"classes", RV_T_INT, AT(classes), 2, 1, 4096,
     .sentence = "class of sample s is s modulo this"},
    {"samples", RV_T_INT, AT(samples), 1024, 1, 1 << 30, .sentence = "training samples"},
    {"test_samples", RV_T_INT, AT(test_samples), 256, 0, 1 << 30, .sentence = "test samples"},
    {"steps", RV_T_INT, AT(steps), 25, 0, 1 << 20,
     .sentence = "time steps; 0: values without time, the probability of a spike"},
    {"rate", RV_T_REAL, AT(rate), 0.1, 0, 1, .sentence = "mean spikes per unit and step"},
    {"signal", RV_T_REAL, AT(signal), 0.5, 0, 1,
     .sentence = "how far a class moves the rate of a unit up or down, as a share of it"},
    {.name = NULL},
};

enum { LAYER_SAMPLES, LAYER_SIGNS }; /* keeps the two kinds of numbers apart */
enum { KEPT = 1 << 23 };             /* words of a set that is kept: 32 MiB */

typedef struct bernoulli_source {
    bernoulli_options options;
    uint64_t seed;
    uint32_t split;
    float limit[2]; /* of a unit whose sign is -, + */
    uint32_t *kept; /* [sample][step][words]; NULL: drawn when read */
} bernoulli_source;

/* One bit for each of four units, the same in every sample of the class. */
static uint32_t sign_bits(const bernoulli_source *source, uint32_t class, uint32_t unit4) {
    uint32_t words[4], bits = 0;
    rv_random4(words, source->seed, RV_FOR_DATA, LAYER_SIGNS, 0, class, 0, unit4);
    for (uint32_t i = 0; i < 4; i++)
        bits |= (words[i] >> 31) << i;
    return bits;
}

/* The bits of one sample onto zeros, its steps `stride` words apart. Units outermost, as the signs
 * of four units serve all steps. */
static void sample_draw(const bernoulli_source *source, uint32_t sample, int steps, uint32_t *to,
                        size_t stride) {
    int units = source->options.units;
    uint32_t class = sample % (uint32_t)source->options.classes;
    for (int u = 0; u < units; u += 4) {
        uint32_t signs = sign_bits(source, class, (uint32_t)u / 4);
        int some = units - u < 4 ? units - u : 4;
        for (int t = 0; t < steps; t++) {
            uint32_t draw[4], bits = 0;
            rv_random4(draw, source->seed, RV_FOR_DATA, LAYER_SAMPLES, source->split, sample,
                       (uint32_t)t, (uint32_t)u / 4);
            for (int i = 0; i < some; i++)
                bits |= (uint32_t)(rv_uniform(draw[i]) < source->limit[signs >> i & 1]) << i;
            to[(size_t)t * stride + (size_t)u / 32] |= bits << u % 32;
        }
    }
}

static void sample_copy(const bernoulli_source *source, uint32_t sample, const rv_spikes *spikes,
                        uint32_t *to) {
    size_t words = (size_t)rv_words(spikes->n);
    const uint32_t *from = source->kept + (size_t)sample * (size_t)source->options.steps * words;
    for (int t = 0; t < spikes->T; t++)
        memcpy(to + (size_t)t * spikes->stride_t, from + (size_t)t * words, words * sizeof *to);
}

/* The probabilities themselves. */
static void sample_values(const bernoulli_source *source, uint32_t sample, float *to) {
    uint32_t class = sample % (uint32_t)source->options.classes;
    for (int u = 0; u < source->options.units; u++)
        to[u] = source->limit[sign_bits(source, class, (uint32_t)u / 4) >> u % 4 & 1];
}

static rv_status bernoulli_read(void *self, const uint64_t *index, int count, uint32_t epoch,
                                rv_batch *batch) {
    const bernoulli_source *source = self;
    const rv_spikes *spikes = &batch->input.spikes;
    size_t words = (size_t)rv_words(spikes->n);
    (void)epoch; /* the data set is the same in every epoch */
    for (int b = 0; b < count; b++) {
        uint32_t sample = (uint32_t)index[b];
        if (source->options.steps == 0)
            sample_values(source, sample,
                          batch->input.values.data + (size_t)b * (size_t)batch->input.values.ld);
        else if (source->kept)
            sample_copy(source, sample, spikes, spikes->bits + (size_t)b * words);
        else
            sample_draw(source, sample, spikes->T, spikes->bits + (size_t)b * words,
                        spikes->stride_t);
        ((int32_t *)batch->label)[b] = (int32_t)(sample % (uint32_t)source->options.classes);
        ((uint64_t *)batch->sample)[b] = index[b];
    }
    return RV_OK;
}

static rv_status bernoulli_keep(bernoulli_source *source, int64_t count) {
    rv_status status = RV_OK;
    const bernoulli_options *options = &source->options;
    size_t words = (size_t)rv_words(options->units), sample = words * (size_t)options->steps;
    if (sample == 0 || sample > KEPT || (size_t)count > KEPT / sample) goto out;
    TRY(rv_alloc((size_t)count, sample * sizeof *source->kept, "synthetic spikes", &source->kept));
    for (int64_t s = 0; s < count; s++)
        sample_draw(source, (uint32_t)s, options->steps, source->kept + (size_t)s * sample, words);
out:
    return status;
}

static void bernoulli_close(void *self) {
    bernoulli_source *source = self;
    if (source) rv_free(source->kept);
    rv_free(source);
}

/* A large set costs no memory and no time to open. */
static rv_status bernoulli_open(const rv_config *config, rv_split split, rv_source *out) {
    rv_status status = RV_OK;
    const bernoulli_options *options = config->data.options;
    bool test = split == RV_SPLIT_TEST;
    bernoulli_source *source = NULL;
    if (test && options->test_samples == 0) goto out;
    TRY(rv_alloc(1, sizeof *source, "a data set", &source));
    *source = (bernoulli_source){.options = *options, .seed = config->seed, .split = test};
    source->limit[0] = (float)(options->rate * (1 - options->signal));
    source->limit[1] = (float)(options->rate * (1 + options->signal)); /* above 1: always */
    TRY(bernoulli_keep(source, test ? options->test_samples : options->samples));
    *out = (rv_source){.self = source,
                       .count = test ? options->test_samples : options->samples,
                       .shape = {1, {options->units}},
                       .classes = options->classes,
                       .steps = options->steps,
                       .spikes = options->steps > 0,
                       .read = bernoulli_read,
                       .close = bernoulli_close};
    source = NULL;
out:
    bernoulli_close(source);
    return status;
}

const rv_reader rv_reader_bernoulli = {.open = bernoulli_open};
