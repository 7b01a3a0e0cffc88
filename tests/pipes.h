/*
 * For tests of the pipeline: networks that are hard to cut, made on a `small`, and the comparison
 * of a pipeline with the plain trainer.
 */
#ifndef RV_TESTS_PIPES_H
#define RV_TESTS_PIPES_H

#include "pipeline/run.h"
#include "tests/small.h"

enum { PIPE_IN = 18, PIPE_HIDDEN = 20, PIPE_OUT = 5, PIPE_BATCH = 7, PIPE_STEPS = 7 };

typedef struct pipe_net {
    const char *name, *encoder;
    int frames; /* steps of the data; 0: static */
    void (*layers)(small *s);
} pipe_net;

static inline void pipe_neuron(small *s, const char *name, double threshold) {
    small_real(&small_neuron(s, name, "lif", 0.9)->threshold, threshold);
}

static inline rv_layer_desc *pipe_layer(small *s, const char *name, const char *kind) {
    return small_layer(s, name, small_choice(s, rv_layer_table(), kind));
}

static inline void pipe_from(rv_layer_desc *layer, const char *a, const char *b) {
    layer->from[0] = a, layer->from[1] = b;
    layer->from_count = b ? 2 : 1;
}

static inline void pipe_end(small *s) {
    small_linear(s, "out", PIPE_OUT, true);
    small_neuron(s, "last", "li", 0.8);
    s->loss.readout = RV_READ_MEMBRANE_MEAN;
}

/* Five maps. */
static inline void pipe_chain(small *s) {
    small_linear(s, "fc1", PIPE_HIDDEN, true);
    pipe_neuron(s, "n1", 0.3);
    small_linear(s, "fc2", PIPE_HIDDEN, true);
    pipe_neuron(s, "n2", 0.2);
    small_linear(s, "fc3", PIPE_HIDDEN, false);
    pipe_neuron(s, "n3", 0.2);
    small_linear(s, "fc4", 33, true);
    pipe_neuron(s, "n4", 0.2);
    pipe_end(s);
}

/* Recurrent and learning neurons, a regulariser, a spiking output judged by its count. */
static inline void pipe_recurrent(small *s) {
    small_linear(s, "fc1", PIPE_HIDDEN, true);
    rv_neuron_options *options = small_neuron(s, "n1", "lif", 0.9);
    small_real(&options->threshold, 0.3);
    options->recurrent = true;
    options->learn = (char *)(uintptr_t) "beta threshold";
    rv_choice *rate = &s->layers[1].regularizer;
    *rate = small_choice(s, rv_regularizer_table(), "rate");
    for (const rv_spec *spec = rate->row->specs; spec->name; spec++)
        if (strcmp(spec->name, "upper") == 0)
            *(double *)(void *)((char *)rate->options + spec->offset) = 0.1; /* they fire more */
    small_linear(s, "fc2", PIPE_HIDDEN, true);
    pipe_neuron(s, "n2", 0.2);
    s->layers[3].regularizer = *rate;
    small_linear(s, "fc3", PIPE_OUT, true);
    pipe_neuron(s, "n3", 0.2);
    s->layers[5].regularizer = *rate;
}

/* Sums that reach over one and over several cuts; a source with three takers. */
static inline void pipe_residual(small *s) {
    small_linear(s, "fc1", PIPE_HIDDEN, true);
    pipe_neuron(s, "n1", 0.3);
    small_linear(s, "fc2", PIPE_HIDDEN, true);
    pipe_neuron(s, "n2", 0.2);
    pipe_from(pipe_layer(s, "sum1", "add"), "n1", "n2");
    small_linear(s, "fc3", PIPE_HIDDEN, false);
    pipe_neuron(s, "n3", 0.2);
    pipe_from(pipe_layer(s, "sum2", "add"), "n3", "sum1");
    pipe_from(pipe_layer(s, "both", "concat"), "sum2", "n1");
    small_linear(s, "fc4", PIPE_HIDDEN, true);
    pipe_neuron(s, "n4", 0.2);
    pipe_end(s);
}

/* A static input: held currents that several layers take, at several places. */
static inline void pipe_held(small *s) {
    small_linear(s, "fc1", PIPE_HIDDEN, true);
    pipe_layer(s, "scaled", "scale");
    small_linear(s, "fc2", PIPE_HIDDEN, true);
    pipe_neuron(s, "n1", 0.2);
    small_linear(s, "fc3", PIPE_HIDDEN, true);
    pipe_from(pipe_layer(s, "sum1", "add"), "fc3", "scaled");
    pipe_neuron(s, "n2", 0.2);
    pipe_from(pipe_layer(s, "sum2", "add"), "n2", "scaled");
    small_linear(s, "fc4", PIPE_HIDDEN, true);
    pipe_from(pipe_layer(s, "sum3", "add"), "fc4", "scaled");
    pipe_neuron(s, "n3", 0.2);
    pipe_end(s);
}

/* Planes, norms, pools, delays, dropout, views: ranges without parameters lie among them. */
static inline void pipe_planes(small *s) {
    s->net_desc.input = (rv_shape){3, {2, 6, 6}};
    rv_layer_desc *conv = pipe_layer(s, "conv1", "conv2d");
    *(rv_conv_options *)conv->options =
        (rv_conv_options){4, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true};
    pipe_layer(s, "norm1", "batch_norm");
    pipe_neuron(s, "n1", 0.4);
    rv_layer_desc *pool = pipe_layer(s, "pool", "avg_pool");
    *(rv_pool_options *)pool->options = (rv_pool_options){{2, 2}, {0, 0}, {0, 0}};
    rv_layer_desc *delay = pipe_layer(s, "late", "delay");
    rv_delay_options *options = delay->options;
    small_real(&options->delay, 1.5);
    options->learnable = true;
    pipe_layer(s, "drop", "dropout");
    ((rv_dropout_options *)s->layers[s->net_desc.layer_count - 1].options)->p = 0.3;
    conv = pipe_layer(s, "conv2", "conv2d");
    *(rv_conv_options *)conv->options =
        (rv_conv_options){4, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, false};
    pipe_from(pipe_layer(s, "sum", "add"), "conv2", "pool");
    pipe_layer(s, "norm2", "batch_norm");
    pipe_neuron(s, "n2", 0.4);
    pipe_layer(s, "flat", "flatten");
    pipe_end(s);
}

/* The last layer is a view: the loss reads through it what another stage has made. */
static inline void pipe_view(small *s) {
    s->net_desc.input = (rv_shape){3, {2, 5, 5}};
    rv_layer_desc *conv = pipe_layer(s, "conv1", "conv2d");
    *(rv_conv_options *)conv->options =
        (rv_conv_options){3, {3, 3}, {1, 1}, {0, 0}, {1, 1}, 1, true};
    pipe_neuron(s, "n1", 0.3);
    conv = pipe_layer(s, "conv2", "conv2d");
    *(rv_conv_options *)conv->options =
        (rv_conv_options){PIPE_OUT, {3, 3}, {1, 1}, {0, 0}, {1, 1}, 1, true};
    pipe_neuron(s, "n2", 0.2);
    pipe_layer(s, "flat", "flatten");
}

static const pipe_net pipe_nets[] = {
    {"chain", "rate", 0, pipe_chain},
    {"chain", "constant", 0, pipe_chain},
    {"recurrent", "rate", 0, pipe_recurrent},
    {"residual", "rate", 0, pipe_residual},
    {"held", "constant", 0, pipe_held},
    {"planes", "rate", 0, pipe_planes},
    {"planes", "constant", PIPE_STEPS, pipe_planes},
    {"view", "rate", 0, pipe_view},
};
enum { PIPE_NETS = sizeof pipe_nets / sizeof *pipe_nets };

/* How a network is run; zeros: one stage, one chunk, one micro-batch, no limit. */
typedef struct pipe_way {
    const char *schedule;
    int stages, micros, chunks, slots;
    const int *first; /* NULL: evenly by layers */
    rv_driver driver;
    int threads;
    uint64_t seed;
    double clip;
    const rv_transport *transport;
} pipe_way;

static inline void pipe_open(small *s, const pipe_net *net, const pipe_way *way) {
    memset(s, 0, sizeof *s);
    s->net_desc.input = (rv_shape){1, {PIPE_IN}};
    s->net_desc.seed = 11;
    net->layers(s);
    s->train.clip_norm = way->clip;
    small_batch(s, PIPE_BATCH, net->frames, PIPE_OUT, 3);
    small_open(s, net->encoder, PIPE_STEPS, way->chunks, way->micros, 1);
}

/* The schedule of a way, simulated, in `schedule`; the pipeline for it. `first` [stages + 1]. */
static inline rv_pipeline *pipe_make(small *s, const pipe_way *way, int *first,
                                     rv_schedule *schedule) {
    static const double cost[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const rv_costs costs = {.f = cost, .b = cost, .w = cost};
    rv_pipeline *pipeline = NULL;
    for (int k = 0; k <= way->stages; k++)
        first[k] = way->first ? way->first[k] : rv_cut(k, way->stages, s->net->layer_count);
    OK(rv_schedule_make(rv_generator_find(way->schedule), way->stages, way->micros, way->chunks,
                        way->slots, &costs, schedule));
    OK(rv_schedule_add_updates(schedule, way->micros, way->clip > 0));
    OK(rv_schedule_simulate(schedule, &costs, NULL));
    const rv_pipeline_desc desc = {.net = s->net,
                                   .encoder = &s->encoder,
                                   .loss = &s->loss,
                                   .train = &s->train,
                                   .total_steps = 100,
                                   .schedule = schedule,
                                   .first = first,
                                   .isa = RV_ISA_AUTO,
                                   .threads = way->threads ? way->threads : 1,
                                   .transport = way->transport,
                                   .driver = way->driver,
                                   .seed = way->seed};
    OK(rv_pipeline_create(&desc, &pipeline));
    return pipeline;
}

static inline void pipe_same(const char *what, const small *s, const float *want, const float *got,
                             size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&want[i], &got[i], sizeof *got) == 0) continue;
        const char *tensor = "?";
        for (int k = 0; k < s->net->tensor_count; k++)
            if (i >= s->net->tensors[k].offset) tensor = s->net->tensors[k].name;
        fail_msg("%s differs at %zu (%s): %.9g is %.9g", what, i, tensor, (double)want[i],
                 (double)got[i]);
    }
}

/* Three steps, the second ragged, the third smaller than most M: losses, norms, gradients, weights,
 * optimiser, all bits; then an evaluation. */
static inline void pipe_compare(small *s, const pipe_way *way, const char *name) {
    static const int samples[] = {PIPE_BATCH, PIPE_BATCH - 2, 1};
    char what[128];
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    rv_optimizer *optimizer = NULL;
    rv_pipeline *pipeline = pipe_make(s, way, first, &schedule);
    size_t all = s->net->n_all, trained = s->net->n_trained;
    float *got = small_memory(s, all + 1, sizeof *got);
    OK(rv_optimizer_create(s->net, &s->train, 100, &optimizer));
    snprintf(what, sizeof what, "%s, %s S=%d M=%d C=%d", name, way->schedule, way->stages,
             way->micros, way->chunks);
    for (size_t step = 0; step < sizeof samples / sizeof *samples; step++) {
        rv_step_result want = {0}, result = {0};
        rv_batch batch = s->batch;
        batch.B = samples[step], batch.epoch = (uint32_t)step;
        OK(rv_serial_step(s->serial, &batch, &want));
        if (rv_pipeline_step(pipeline, &batch, &result) != RV_OK)
            fail_msg("%s: %s", what, rv_error_get()->message);
        if (memcmp(&want.loss, &result.loss, sizeof want.loss) != 0)
            fail_msg("%s: step %zu: loss %.17g is %.17g", what, step, want.loss, result.loss);
        assert_int_equal(want.correct, result.correct);
        assert_true(want.rate == result.rate);
        assert_true(way->clip > 0 ? want.norm == result.norm : isnan(result.norm));
        rv_pipeline_gradient(pipeline, got);
        pipe_same(what, s, rv_serial_last_gradient(s->serial), got, trained);
        rv_pipeline_read(pipeline, got, optimizer);
        pipe_same(what, s, rv_version_block(rv_serial_version(s->serial)), got, all);
        for (int k = 0; k < rv_optimizer_slots(optimizer); k++)
            pipe_same(what, s, rv_optimizer_slot(rv_serial_optimizer(s->serial), k),
                      rv_optimizer_slot(optimizer, k), trained);
        assert_int_equal(rv_optimizer_step(optimizer),
                         rv_optimizer_step(rv_serial_optimizer(s->serial)));
    }
    rv_step_result want = {0}, result = {0};
    int64_t spikes[2][SMALL_LAYERS] = {{0}};
    int32_t predictions[2][PIPE_BATCH] = {{0}};
    OK(rv_serial_eval(s->serial, &s->batch, &want, spikes[0], predictions[0]));
    OK(rv_pipeline_eval(pipeline, &s->batch, &result, spikes[1], predictions[1]));
    assert_true(want.loss == result.loss && want.correct == result.correct);
    assert_memory_equal(spikes[0], spikes[1], sizeof spikes[0]);
    assert_memory_equal(predictions[0], predictions[1], sizeof predictions[0]);
    rv_optimizer_destroy(optimizer);
    rv_pipeline_destroy(pipeline);
    rv_schedule_finish(&schedule);
}

static inline void pipe_check(const pipe_net *net, const pipe_way *way) {
    small s;
    pipe_open(&s, net, way);
    pipe_compare(&s, way, net->name);
    small_finish(&s);
}

#endif
