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
    bool sgd;  /* with momentum; else adam */
    bool half; /* membranes of tapes in 16 bits */
    const rv_transport *transport;
    double timeout; /* and who is told, as in rv_pipeline_desc */
    void (*say)(void *user, const char *line);
    void *user;
} pipe_way;

static inline void pipe_sgd(small *s) {
    rv_choice *sgd = &s->train.optimizer;
    *sgd = small_choice(s, rv_optimizer_table(), "sgd");
    for (const rv_spec *spec = sgd->row->specs; spec->name; spec++) {
        double *value = (void *)((char *)sgd->options + spec->offset);
        if (strcmp(spec->name, "lr") == 0) *value = 0.05;
        if (strcmp(spec->name, "momentum") == 0) *value = 0.9;
    }
}

static inline void pipe_open(small *s, const pipe_net *net, const pipe_way *way) {
    memset(s, 0, sizeof *s);
    s->net_desc.input = (rv_shape){1, {PIPE_IN}};
    s->net_desc.seed = 11;
    net->layers(s);
    s->train.clip_norm = way->clip;
    if (way->sgd) pipe_sgd(s);
    if (way->half) s->train.tape_dtype = RV_TAPE_FLOAT16;
    small_batch(s, PIPE_BATCH, net->frames, PIPE_OUT, 3);
    small_open(s, net->encoder, PIPE_STEPS, way->chunks, way->micros, 1);
}

/* The schedule of a way, simulated; RV_CONFIG: with so few slots it cannot run. */
static inline rv_status pipe_schedule(const pipe_way *way, rv_schedule *schedule) {
    static const double cost[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const rv_costs costs = {.f = cost, .b = cost, .w = cost};
    OK(rv_schedule_make(rv_generator_find(way->schedule), way->stages, way->micros, way->chunks,
                        way->slots, &costs, schedule));
    OK(rv_schedule_add_updates(schedule, way->micros, way->clip > 0));
    return rv_schedule_simulate(schedule, &costs, NULL);
}

/* The layers of stages, evenly where the way does not say: first [stages + 1]. */
static inline void pipe_cut(const small *s, const pipe_way *way, int *first) {
    for (int k = 0; k <= way->stages; k++)
        first[k] = way->first ? way->first[k] : rv_cut(k, way->stages, s->net->layer_count);
}

static inline rv_pipeline_desc pipe_desc(const small *s, const pipe_way *way, const int *first,
                                         const rv_schedule *schedule) {
    return (rv_pipeline_desc){.net = s->net,
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
                              .seed = way->seed,
                              .timeout = way->timeout,
                              .say = way->say,
                              .user = way->user};
}

/* The schedule of a way in `schedule`; the pipeline for it. `first` [stages + 1]. */
static inline rv_pipeline *pipe_make(small *s, const pipe_way *way, int *first,
                                     rv_schedule *schedule) {
    rv_pipeline *pipeline = NULL;
    pipe_cut(s, way, first);
    OK(pipe_schedule(way, schedule));
    const rv_pipeline_desc desc = pipe_desc(s, way, first, schedule);
    OK(rv_pipeline_create(&desc, &pipeline));
    return pipeline;
}

/* NULL, or where two blocks of the network's tensors differ. The text lives until the next call. */
static inline const char *pipe_difference(const char *what, const small *s, const float *want,
                                          const float *got, size_t count) {
    static char text[256];
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&want[i], &got[i], sizeof *got) == 0) continue;
        const char *tensor = "?";
        for (int k = 0; k < s->net->tensor_count; k++)
            if (i >= s->net->tensors[k].offset) tensor = s->net->tensors[k].name;
        snprintf(text, sizeof text, "%s differs at %zu (%s): %.9g is %.9g", what, i, tensor,
                 (double)want[i], (double)got[i]);
        return text;
    }
    return NULL;
}

static inline void pipe_same(const char *what, const small *s, const float *want, const float *got,
                             size_t count) {
    const char *found = pipe_difference(what, s, want, got, count);
    if (found) fail_msg("%s", found);
}

/* A pipeline beside the plain trainer of `s`. */
typedef struct pipe_pair {
    small *s;
    rv_pipeline *pipeline;
    rv_schedule schedule;
    int first[SMALL_LAYERS + 1];
    bool norm;      /* is computed */
    rv_batch batch; /* of the latest step */
    rv_optimizer *optimizer;
    float *block;
} pipe_pair;

static inline void pipe_pair_open(pipe_pair *p, small *s, const pipe_way *way) {
    memset(p, 0, sizeof *p);
    p->s = s, p->norm = way->clip > 0;
    p->pipeline = pipe_make(s, way, p->first, &p->schedule);
    p->block = small_memory(s, s->net->n_all + 1, sizeof *p->block);
    OK(rv_optimizer_create(s->net, &s->train, 100, &p->optimizer));
}

static inline void pipe_pair_finish(pipe_pair *p) {
    rv_optimizer_destroy(p->optimizer);
    rv_pipeline_destroy(p->pipeline);
    rv_schedule_finish(&p->schedule);
}

/* What both hold after a step: gradient, weights, optimiser, all bits. */
static inline const char *pipe_pair_state(pipe_pair *p) {
    const small *s = p->s;
    size_t all = s->net->n_all, trained = s->net->n_trained;
    rv_optimizer *want = rv_serial_optimizer(s->serial);
    const char *found;
    rv_pipeline_gradient(p->pipeline, p->block);
    found = pipe_difference("gradient", s, rv_serial_last_gradient(s->serial), p->block, trained);
    if (found) return found;
    rv_pipeline_read(p->pipeline, p->block, p->optimizer);
    found =
        pipe_difference("weight", s, rv_version_block(rv_serial_version(s->serial)), p->block, all);
    for (int k = 0; !found && k < rv_optimizer_slots(p->optimizer); k++)
        found = pipe_difference("optimiser", s, rv_optimizer_slot(want, k),
                                rv_optimizer_slot(p->optimizer, k), trained);
    if (!found && rv_optimizer_step(p->optimizer) != rv_optimizer_step(want))
        found = "the optimiser's steps differ";
    return found;
}

/* A step of both over the first B samples. NULL, or what differs; an error of the pipeline is its
 * message. */
static inline const char *pipe_pair_step(pipe_pair *p, int B, uint32_t epoch) {
    rv_step_result want = {0}, got = {0};
    p->batch = p->s->batch;
    p->batch.B = B, p->batch.epoch = epoch;
    OK(rv_serial_step(p->s->serial, &p->batch, &want));
    if (rv_pipeline_step(p->pipeline, &p->batch, &got) != RV_OK) return rv_error_get()->message;
    if (memcmp(&want.loss, &got.loss, sizeof want.loss) != 0) return "the loss differs";
    if (want.correct != got.correct) return "the number of correct samples differs";
    if (want.rate != got.rate) return "the rate differs";
    if (p->norm ? want.norm != got.norm : !isnan(got.norm)) return "the norm differs";
    return pipe_pair_state(p);
}

/* An evaluation by both: NULL, or what differs. */
static inline const char *pipe_pair_eval(pipe_pair *p) {
    rv_step_result want = {0}, got = {0};
    int64_t spikes[2][SMALL_LAYERS] = {{0}};
    int32_t predictions[2][PIPE_BATCH] = {{0}};
    const rv_batch *batch = &p->s->batch;
    OK(rv_serial_eval(p->s->serial, batch, &want, spikes[0], predictions[0]));
    if (rv_pipeline_eval(p->pipeline, batch, &got, spikes[1], predictions[1]) != RV_OK)
        return rv_error_get()->message;
    if (want.loss != got.loss || want.correct != got.correct) return "an evaluation differs";
    if (memcmp(spikes[0], spikes[1], sizeof spikes[0]) != 0) return "spikes differ";
    if (memcmp(predictions[0], predictions[1], sizeof predictions[0]) != 0)
        return "predictions differ";
    return NULL;
}

/* Samples of the steps that are compared: the second step is ragged, the third smaller than most
 * M. */
static const int pipe_samples[] = {PIPE_BATCH, PIPE_BATCH - 2, 1};
enum { PIPE_SAMPLES = sizeof pipe_samples / sizeof *pipe_samples };

/* Three steps and an evaluation. */
static inline void pipe_compare(small *s, const pipe_way *way, const char *name) {
    pipe_pair pair;
    const char *found = NULL;
    pipe_pair_open(&pair, s, way);
    for (int step = 0; !found && step < PIPE_SAMPLES; step++)
        found = pipe_pair_step(&pair, pipe_samples[step], (uint32_t)step);
    if (!found) found = pipe_pair_eval(&pair);
    if (found)
        fail_msg("%s, %s S=%d M=%d C=%d: %s", name, way->schedule, way->stages, way->micros,
                 way->chunks, found);
    pipe_pair_finish(&pair);
}

static inline void pipe_check(const pipe_net *net, const pipe_way *way) {
    small s;
    pipe_open(&s, net, way);
    pipe_compare(&s, way, net->name);
    small_finish(&s);
}

/* With more slots where stages would wait for each other with so few. */
static inline void pipe_simulate(rv_schedule *schedule, const rv_costs *costs) {
    rv_status status;
    while ((status = rv_schedule_simulate(schedule, costs, NULL)) == RV_CONFIG)
        schedule->slots++;
    OK(status);
}

#endif
