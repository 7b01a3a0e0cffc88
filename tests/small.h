/*
 * For the tests of snn/: networks, batches and trainers in memory, made from a few words. Memory
 * of a `small` is its own and freed by small_finish; a failing call ends the test with its message.
 */
#ifndef RV_TESTS_SMALL_H
#define RV_TESTS_SMALL_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snn/snn.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != RV_OK) fail_msg("%s: %s", #call, rv_error_get()->message);                   \
    } while (0)

enum { SMALL_LAYERS = 20, SMALL_PIECES = 96 };

typedef struct small {
    rv_layer_desc layers[SMALL_LAYERS];
    rv_net_desc net_desc;
    rv_loss_desc loss;
    rv_train_desc train;
    rv_choice encoder;
    rv_batch batch;
    rv_device device;
    rv_net *net;
    rv_serial *serial;
    void *pieces[SMALL_PIECES];
    int piece_count;
} small;

static inline void *small_memory(small *s, size_t count, size_t size) {
    assert_true(s->piece_count < SMALL_PIECES);
    OK(rv_alloc(count, size, "test", &s->pieces[s->piece_count]));
    return s->pieces[s->piece_count++];
}

/* A row with its default options. */
static inline rv_choice small_choice(small *s, const rv_table *table, const char *name) {
    rv_choice choice = {rv_table_find(table, name), NULL};
    if (!choice.row) fail_msg("no %s in %s", name, table->name);
    choice.options = small_memory(s, 1, choice.row->options_size + 1);
    rv_specs_default(choice.row->specs, choice.options);
    return choice;
}

static inline rv_layer_desc *small_layer(small *s, const char *name, rv_choice choice) {
    rv_layer_desc *layer = &s->layers[s->net_desc.layer_count++];
    assert_true(s->net_desc.layer_count <= SMALL_LAYERS);
    snprintf(layer->name, sizeof layer->name, "%s", name);
    layer->row = choice.row;
    layer->options = choice.options;
    layer->trainable = true;
    layer->where = (rv_where){"net.yaml", s->net_desc.layer_count, 3};
    s->net_desc.layers = s->layers;
    return layer;
}

static inline rv_layer_desc *small_linear(small *s, const char *name, int units, bool bias) {
    rv_choice choice = small_choice(s, rv_layer_table(), "linear");
    *(rv_linear_options *)choice.options = (rv_linear_options){units, bias};
    return small_layer(s, name, choice);
}

static inline rv_neuron_options *small_neuron(small *s, const char *name, const char *kind,
                                              double beta) {
    rv_choice choice = small_choice(s, rv_neuron_table(), kind);
    rv_neuron_options *options = choice.options;
    options->beta = (rv_reals){1, &options->beta.value, (float)beta};
    small_layer(s, name, choice);
    return options;
}

static inline void small_real(rv_reals *reals, double value) {
    *reals = (rv_reals){1, &reals->value, (float)value};
}

/* linear-lif-linear-lif: the shape of most tests. */
static inline void small_two(small *s, int in, int hidden, int out) {
    s->net_desc.input = (rv_shape){1, {in}};
    small_linear(s, "fc1", hidden, true);
    small_neuron(s, "lif1", "lif", 0.9);
    small_linear(s, "fc2", out, true);
    small_neuron(s, "lif2", "lif", 0.8);
}

/* Numbers in [0, 1) that only depend on `seed` and the index. */
static inline double small_random(uint64_t seed, uint64_t index) {
    uint32_t out[4];
    const uint32_t counter[4] = {(uint32_t)(index / 4), (uint32_t)(index >> 34), 0x5eed, 0};
    rv_philox(out, counter, seed);
    return (double)rv_uniform(out[index % 4]);
}

/* B samples of the network's input: one frame each (steps 0), or `steps` frames, in [0, 1). */
static inline void small_batch(small *s, int B, int steps, int classes, uint64_t seed) {
    int n = rv_shape_units(s->net_desc.input), T = steps ? steps : 1;
    rv_values x = rv_values_of(NULL, T, B, n);
    x.data = small_memory(s, (size_t)T * x.stride_t, sizeof(float));
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++)
            for (int u = 0; u < n; u++)
                x.data[(size_t)t * x.stride_t + (size_t)(b * x.ld + u)] =
                    (float)small_random(seed, (uint64_t)((t * B + b) * n + u));
    if (!steps) x.stride_t = 0;
    int32_t *label = small_memory(s, (size_t)B, sizeof *label);
    uint64_t *sample = small_memory(s, (size_t)B, sizeof *sample);
    for (int b = 0; b < B; b++)
        label[b] = (int32_t)(small_random(seed + 1, (uint64_t)b) * classes),
        sample[b] = (uint64_t)b;
    s->batch = (rv_batch){.B = B, .input = {.values = x}, .label = label, .sample = sample};
    s->loss.classes = classes;
}

/* Network and trainer from what `s` says; encoder "constant" or "rate". */
static inline void small_open(small *s, const char *encoder, int T, int chunks, int micro_batches,
                              int threads) {
    rv_encoding encoding;
    rv_source source = {.shape = s->net_desc.input, .classes = s->loss.classes};
    source.steps = s->batch.input.values.stride_t ? s->batch.input.values.T : 0;
    s->encoder = small_choice(s, rv_encoder_table(), encoder);
    *(int *)s->encoder.options = T;
    OK(rv_encoder_check(&s->encoder, &source, &encoding));
    s->net_desc.input_spikes = encoding.spikes;
    s->net_desc.input_held = encoding.held;
    s->net_desc.steps = encoding.steps;
    if (!s->loss.population) s->loss.population = 1;
    if (!s->train.optimizer.row) s->train.optimizer = small_choice(s, rv_optimizer_table(), "adam");
    s->train.batch = s->batch.B;
    s->train.chunks = chunks;
    s->train.micro_batches = micro_batches;
    OK(rv_device_open("cpu", RV_ISA_AUTO, threads, &s->device));
    OK(rv_net_create(&s->net_desc, &s->net));
    rv_serial_desc desc = {s->net, &s->device, &s->encoder, &s->loss, &s->train, 100};
    OK(rv_serial_create(&desc, &s->serial));
}

static inline void small_finish(small *s) {
    rv_serial_destroy(s->serial);
    rv_net_destroy(s->net);
    if (s->device.ops) rv_device_close(&s->device);
    for (int k = 0; k < s->piece_count; k++)
        rv_free(s->pieces[k]);
    memset(s, 0, sizeof *s);
}

#endif
