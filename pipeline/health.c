/* Looking after a training, every step and every epoch: see health.h. */
#include "pipeline/health.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/health_find.h"

enum {
    RING = 32,       /* gradient norms whose median is the usual one */
    LEAST = 5,       /* of them, before there is a usual one */
    ZERO_MOST = 10,  /* measured steps in a row without any gradient */
    SMALL = 1 << 16, /* parameters: gradients are measured every step up to here, */
    SPARSE = 8,      /* and every so many-th above */
};
#define EXPLODED 100.0   /* times the usual norm */
#define SATURATED 0.9    /* spikes a unit and step */
#define DEAD_SHARE 0.5   /* of a layer's units */
#define RANGE_MOST 100.0 /* thresholds */

/* What is remembered from step to step, as floats for the checkpoint. */
enum { AT_COUNT, AT_NEXT, AT_NORM, AT_USUAL, AT_RING, AT_ZEROS = AT_RING + RING };

struct rv_health {
    const rv_setup *setup;
    const rv_net *net;
    rv_run *run;
    char *dump; /* path */
    bool skip;  /* the policy */
    int64_t limit, in_a_row;
    rv_observer training, evaluation;
    pthread_mutex_t mutex; /* guards found: stages look at the same time */
    rv_finding found;      /* of this step; the first in any stage */
    int every;             /* steps between two looks at the gradient's size */
    float *state;
    int state_count;
    /* under skip_step: what the step may spoil */
    float *block, *slot[8];
    int64_t update;
    /* of an evaluation, by layer: each is written by the stage that has it */
    uint32_t **fired; /* units that ever did; NULL: no spikes */
    float *range;     /* largest |h| */
    float *threshold; /* NAN: none */
};

/* ---- making ------------------------------------------------------------------------------ */

/* The largest of the recipe's; learned ones move, but not by a factor of a hundred. */
static float threshold_of(const rv_net *net, int layer) {
    const rv_layer_desc *desc = &net->desc->layers[layer];
    float most = 0;
    if (!rv_net_layer_spikes(net, layer) || !desc->options ||
        rv_table_index(rv_neuron_table(), desc->row) < 0)
        return NAN;
    const rv_reals *theta = &((const rv_neuron_options *)desc->options)->threshold;
    for (int i = 0; i < theta->count; i++)
        most = fmaxf(most, fabsf(theta->count > 1 ? theta->data[i] : theta->value));
    return most;
}

static int units_of(const rv_net *net, int layer) {
    return rv_shape_units(rv_net_layer_shape(net, layer));
}

/* Layers without spikes have neither fired units nor a threshold. */
static rv_status layers_create(rv_health *health) {
    rv_status status = RV_OK;
    const rv_net *net = health->net;
    size_t layers = (size_t)net->layer_count;
    TRY(rv_alloc(layers, sizeof *health->fired, "health", &health->fired));
    TRY(rv_alloc(layers, sizeof *health->range, "health", &health->range));
    TRY(rv_alloc(layers, sizeof *health->threshold, "health", &health->threshold));
    for (int l = 0; l < net->layer_count; l++) {
        health->threshold[l] = threshold_of(net, l);
        if (rv_net_layer_spikes(net, l))
            TRY(rv_alloc((size_t)rv_words(units_of(net, l)), sizeof(uint32_t), "health",
                         &health->fired[l]));
    }
out:
    return status;
}

/* Only skip_step pays for it. */
static rv_status backup_create(rv_health *health) {
    rv_status status = RV_OK;
    const rv_optimizer *optimizer = rv_engine_optimizer(health->setup->engine);
    if (!health->skip) return RV_OK;
    TRY(rv_alloc(health->net->n_all, sizeof(float), "a copy of the weights", &health->block));
    for (int k = 0; k < rv_optimizer_slots(optimizer); k++)
        TRY(rv_alloc(health->net->n_trained, sizeof(float), "a copy of the optimiser",
                     &health->slot[k]));
out:
    return status;
}

static rv_status look_forward(void *self, const rv_pass *pass);
static rv_status look_evaluation(void *self, const rv_pass *pass);

rv_status rv_health_create(const rv_setup *setup, rv_run *run, rv_health **out) {
    rv_status status = RV_OK;
    rv_health *health = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *health, "health", &health));
    health->setup = setup, health->net = setup->net, health->run = run;
    health->skip = setup->config->health_policy == RV_HEALTH_SKIP_STEP;
    health->limit = setup->config->health_limit;
    health->training = (rv_observer){health, look_forward};
    health->evaluation = (rv_observer){health, look_evaluation};
    health->every = setup->net->n_trained <= SMALL ? 1 : SPARSE;
    (void)pthread_mutex_init(&health->mutex, NULL); /* Linux: cannot fail */
    health->state_count = AT_ZEROS + setup->net->layer_count;
    TRY(rv_alloc((size_t)health->state_count, sizeof(float), "health", &health->state));
    TRY(rv_strdup(rv_run_file(run, "nonfinite.npy"), &health->dump));
    TRY(layers_create(health));
    TRY(backup_create(health));
    *out = health;
    health = NULL;
out:
    rv_health_destroy(health);
    return status;
}

void rv_health_destroy(rv_health *health) {
    if (!health) return;
    for (size_t k = 0; k < sizeof health->slot / sizeof *health->slot; k++)
        rv_free(health->slot[k]);
    for (int l = 0; health->fired && l < health->net->layer_count; l++)
        rv_free(health->fired[l]);
    rv_free(health->block);
    rv_free(health->threshold);
    rv_free(health->range);
    rv_free(health->fired);
    rv_free(health->dump);
    rv_free(health->state);
    (void)pthread_mutex_destroy(&health->mutex);
    rv_free(health);
}

float *rv_health_state(rv_health *health, int *count) {
    *count = health->state_count;
    return health->state;
}

/* ---- every step -------------------------------------------------------------------------- */

/* Rows of one step; a held frame is the same at all. */
static bool step_finite(rv_values v, int t) {
    return rv_finite(v.data + (size_t)t * v.stride_t, (size_t)v.B * (size_t)v.ld);
}

/* From the first step where it may vanish again, else the last alone. */
static bool values_finite(rv_values v, bool all) {
    int steps = v.stride_t ? v.T : 1;
    for (int t = all ? 0 : steps - 1; t < steps; t++)
        if (!step_finite(v, t)) return false;
    return true;
}

/* Weights of the stage at work, brought into the order of the whole network. */
static bool find_weight(rv_health *health, const rv_pass *pass, rv_finding *found) {
    const rv_net *net = health->net;
    const rv_range range = rv_net_range(net, pass->first, pass->last);
    const float *part = rv_version_block((rv_version *)pass->version);
    float *whole = NULL;
    bool hit = false;
    if (rv_finite(part, range.n_all)) return false;
    if (rv_alloc(net->n_all, sizeof *whole, "weights", &whole) != RV_OK) return false;
    rv_range_give(&range, part, whole, false);
    hit = rv_find_in_block(net, whole, false, NULL, found, health->dump);
    rv_free(whole);
    return hit;
}

/* Something is not finite: what came first? Padding that holds anything is no finding. */
static void search(rv_health *health, const rv_pass *pass, rv_finding *found) {
    const rv_signal *input = rv_tape_signal(pass->tape, -1);
    rv_values h;
    found->layer = -1;
    if (pass->first == 0 && input->values.data && rv_find_in_values(input->values, pass, found)) {
        found->kind = RV_FOUND_INPUT;
        if (rv_dump_values(found, health->dump, input->values) != RV_OK) found->dumped = false;
        return;
    }
    if (find_weight(health, pass, found)) {
        found->kind = RV_FOUND_WEIGHT;
        return;
    }
    for (int l = pass->first; l < pass->last; l++) {
        h = rv_tape_membrane(pass->tape, l);
        if (!h.data || !rv_find_in_values(h, pass, found)) continue;
        found->kind = RV_FOUND_MEMBRANE;
        found->layer = l;
        if (rv_dump_values(found, health->dump, h) != RV_OK) found->dumped = false;
        return;
    }
}

/* In whichever thread found it; rv_health_after tells it again, with step and dump. */
static rv_status fail_found(const rv_health *health) {
    char text[400];
    rv_finding_text(&health->found, health->net, text, sizeof text);
    return rv_fail(RV_INTERNAL, "%s", text);
}

/* At the end of F of a chunk, by whichever thread ran it. Under `abort` the step ends here, before
 * it can touch the weights. */
static rv_status look_forward(void *self, const rv_pass *pass) {
    rv_health *health = self;
    rv_status status = RV_OK;
    if (!pass->training) return RV_OK;
    const rv_signal *input = rv_tape_signal(pass->tape, -1);
    bool all = pass->batch->starts != NULL;
    bool good = pass->first != 0 || !input->values.data ||
                (!input->values.stride_t && pass->chunk > 0) || values_finite(input->values, true);
    for (int l = pass->first; good && l < pass->last; l++) {
        rv_values h = rv_tape_membrane(pass->tape, l);
        good = !h.data || values_finite(h, all);
    }
    if (good) return RV_OK;
    pthread_mutex_lock(&health->mutex);
    if (health->found.kind == RV_FOUND_NOTHING) search(health, pass, &health->found);
    if (health->found.kind != RV_FOUND_NOTHING && !health->skip) status = fail_found(health);
    pthread_mutex_unlock(&health->mutex);
    return status;
}

/* Evaluations have an observer of their own, so it is set before every step; while stages work they
 * have it, and what they find is not to be forgotten. */
rv_status rv_health_before(rv_health *health) {
    rv_engine *engine = health->setup->engine;
    rv_optimizer *optimizer = rv_engine_optimizer(engine);
    if (!rv_engine_still(engine)) return RV_OK;
    health->found = (rv_finding){.layer = -1};
    rv_engine_observe(engine, &health->training);
    if (!health->skip) return RV_OK;
    rv_engine_pull(engine);
    memcpy(health->block, rv_engine_block(engine), health->net->n_all * sizeof(float));
    for (int k = 0; k < rv_optimizer_slots(optimizer); k++)
        memcpy(health->slot[k], rv_optimizer_slot(optimizer, k),
               health->net->n_trained * sizeof(float));
    health->update = rv_optimizer_step(optimizer);
    return RV_OK;
}

/* As if the step had not been made; its batch is used up all the same. */
static rv_status restore(rv_health *health) {
    rv_engine *engine = health->setup->engine;
    rv_optimizer *optimizer = rv_engine_optimizer(engine);
    memcpy(rv_engine_block(engine), health->block, health->net->n_all * sizeof(float));
    for (int k = 0; k < rv_optimizer_slots(optimizer); k++)
        memcpy(rv_optimizer_slot(optimizer, k), health->slot[k],
               health->net->n_trained * sizeof(float));
    rv_optimizer_step_set(optimizer, health->update);
    return rv_engine_push(engine);
}

/* After the update. A bad weight whose own gradient is good was bad before; it may have spoilt
 * other gradients, so it comes first. The gradient is looked at too, because a limit mends the
 * weight and Adam swallows what is large. */
static void look_update(rv_health *health) {
    rv_engine *engine = health->setup->engine;
    rv_finding *found = &health->found;
    if (rv_engine_finite(engine)) return;
    const float *gradient = rv_engine_gradient(engine);
    rv_engine_pull(engine);
    if (rv_find_in_block(health->net, rv_engine_block(engine), false, gradient, found,
                         health->dump))
        found->kind = RV_FOUND_WEIGHT;
    else if (rv_find_in_block(health->net, gradient, true, NULL, found, health->dump))
        found->kind = RV_FOUND_GRADIENT;
}

/* ---- the gradient's size ----------------------------------------------------------------- */

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The upper one of two: a norm must be far above what is usual, not near it. */
static float median(const float *values, int count) {
    float sorted[RING];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_floats);
    return sorted[count / 2];
}

/* The largest norm of the epoch that was far above the usual ones of its time. */
static void norm_add(float *state, float norm) {
    int count = (int)state[AT_COUNT];
    if (count >= LEAST) {
        float usual = median(state + AT_RING, count);
        if (usual > 0 && norm > (float)EXPLODED * usual && norm > state[AT_NORM])
            state[AT_NORM] = norm, state[AT_USUAL] = usual;
    }
    state[AT_RING + (int)state[AT_NEXT]] = norm;
    state[AT_NEXT] = (float)(((int)state[AT_NEXT] + 1) % RING);
    if (count < RING) state[AT_COUNT] = (float)(count + 1);
}

/* Squares are added by tensor; a layer without any gradient has been so for one step more. */
static rv_status measure(rv_health *health) {
    rv_status status = RV_OK;
    const rv_net *net = health->net;
    const rv_device *device = &health->setup->device;
    const float *gradient = rv_engine_gradient(health->setup->engine);
    double sum = 0, part, of_layer = 0;
    float *zeros = health->state + AT_ZEROS;
    for (int k = 0; k < net->tensor_count && net->tensors[k].trained; k++) {
        const rv_tensor *tensor = &net->tensors[k];
        TRY(device->ops->norm2(device->ctx, NULL, gradient + tensor->offset, tensor->count, &part));
        sum += part;
        of_layer += part;
        bool end = k + 1 == net->tensor_count || !net->tensors[k + 1].trained ||
                   net->tensors[k + 1].layer != tensor->layer;
        if (!end) continue;
        /* Once it has lasted it is told at the epoch's end, whatever comes after. */
        if (zeros[tensor->layer] < ZERO_MOST)
            zeros[tensor->layer] = of_layer > 0 ? 0 : zeros[tensor->layer] + 1;
        of_layer = 0;
    }
    norm_add(health->state, (float)sqrt(sum));
out:
    return status;
}

/* The event and, at the end of patience, the error. */
static rv_status report(rv_health *health, int64_t step, bool skipped) {
    rv_status status = RV_OK;
    char *line = NULL, text[400];
    json_t *root = rv_finding_json(&health->found, health->net, step, skipped ? "skip" : "abort");
    TRY(rv_json_text(root, true, &line));
    TRY(rv_run_metric(health->run, line));
    if (skipped) goto out;
    rv_finding_text(&health->found, health->net, text, sizeof text);
    FAIL(
        RV_INTERNAL, "%s, at step %lld%s%s%s", text, (long long)step,
        health->found.dumped ? "; the tensor is in " : "", health->found.dumped ? health->dump : "",
        health->found.kind == RV_FOUND_INPUT ? "; the data hold it"
                                             : "; lower train.optimizer.lr or set train.clip_norm");
out:
    rv_free(line);
    return status;
}

/* What the forward pass met comes first, then what the update met, then the loss: later findings
 * may be consequences of earlier ones. Data and weights cannot be mended by leaving a step out. */
rv_status rv_health_after(rv_health *health, rv_status step_status, int64_t step,
                          const rv_step_result *result, bool *skipped) {
    rv_status status = RV_OK;
    rv_finding *found = &health->found;
    *skipped = false;
    /* Of a delayed pipeline other stages are ahead, and may be finding something now. */
    if (step_status != RV_OK || rv_engine_still(health->setup->engine))
        rv_engine_observe(health->setup->engine, NULL);
    pthread_mutex_lock(&health->mutex);
    bool none = found->kind == RV_FOUND_NOTHING;
    pthread_mutex_unlock(&health->mutex);
    if (!none) rv_engine_pull(health->setup->engine); /* comes to rest */
    if (step_status != RV_OK && found->kind == RV_FOUND_NOTHING) return step_status;
    if (found->kind == RV_FOUND_NOTHING) look_update(health);
    if (found->kind == RV_FOUND_NOTHING && !isfinite(result->loss)) {
        found->kind = RV_FOUND_LOSS;
        found->value = result->loss;
    }
    if (found->kind == RV_FOUND_NOTHING) {
        health->in_a_row = 0;
        if (step % health->every == 0 && rv_engine_still(health->setup->engine))
            TRY(measure(health));
        goto out;
    }
    *skipped = health->skip && step_status == RV_OK && found->kind != RV_FOUND_INPUT &&
               found->kind != RV_FOUND_WEIGHT && ++health->in_a_row <= health->limit;
    TRY(report(health, step, *skipped));
    TRY(restore(health));
out:
    return status;
}

/* ---- every epoch ------------------------------------------------------------------------- */

/* Magnitudes have the order of their bits as integers, which vectors compare at once. A NAN is no
 * largest value; training would have found it. */
static int32_t magnitude(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7fffffff;
    return bits > 0x7f800000 ? 0 : bits;
}

static float largest(rv_values v) {
    const float *row = v.data + (size_t)(v.stride_t ? v.T - 1 : 0) * v.stride_t;
    int32_t most = 0;
    float value;
    for (int b = 0; b < v.B; b++, row += v.ld)
        for (int u = 0; u < v.n; u++)
            most = magnitude(row[u]) > most ? magnitude(row[u]) : most;
    memcpy(&value, &most, sizeof value);
    return value;
}

/* Every layer is looked at by the thread that has it. */
static rv_status look_evaluation(void *self, const rv_pass *pass) {
    rv_health *health = self;
    for (int l = pass->first; l < pass->last; l++) {
        if (!health->fired[l]) continue;
        rv_spikes s = rv_tape_signal(pass->tape, l)->spikes;
        rv_values h = rv_tape_membrane(pass->tape, l);
        size_t words = (size_t)rv_words(s.n);
        for (int t = 0; s.bits && t < s.T; t++)
            for (int b = 0; b < s.B; b++) {
                const uint32_t *row = s.bits + (size_t)t * s.stride_t + (size_t)b * words;
                for (size_t w = 0; w < words; w++)
                    health->fired[l][w] |= row[w];
            }
        if (h.data) health->range[l] = fmaxf(health->range[l], largest(h));
    }
    return RV_OK;
}

const rv_observer *rv_health_training(const rv_health *health) {
    return &health->training;
}

/* Evaluations look at all shares together: a unit that fires for any of their samples lives. */
const rv_observer *rv_health_observer(rv_health *health) {
    for (int l = 0; l < health->net->layer_count; l++) {
        health->range[l] = 0;
        if (health->fired[l])
            memset(health->fired[l], 0,
                   (size_t)rv_words(units_of(health->net, l)) * sizeof(uint32_t));
    }
    return &health->evaluation;
}

typedef struct teller {
    rv_health *health;
    int64_t epoch, step;
    void (*say)(void *user, const char *line);
    void *user;
} teller;

/* One warning: an event and a line of the log. layer NULL: of the whole network. */
static rv_status warn(const teller *to, const char *warning, const char *layer, double value,
                      double limit, const char *sentence) {
    rv_status status = RV_OK;
    char *line = NULL, text[256];
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:s, s:s?, s:o, s:o}", "event", "health", "epoch",
                  (json_int_t)to->epoch, "step", (json_int_t)to->step, "warning", warning, "layer",
                  layer, "value", rv_json_number(value), "limit", rv_json_number(limit));
    TRY(rv_json_text(root, true, &line));
    TRY(rv_run_metric(to->health->run, line));
    snprintf(text, sizeof text, "warning: %s: %s%s%s (%.3g, limit %.3g)", warning,
             layer ? layer : "", layer ? ": " : "", sentence, value, limit);
    to->say(to->user, text);
out:
    rv_free(line);
    return status;
}

/* The gravest that holds for a layer; what follows from it is not told too. */
static rv_status warn_layer(const teller *to, int layer, double rate, bool *dead) {
    rv_status status = RV_OK;
    const rv_health *health = to->health;
    const char *name = rv_net_layer_name(health->net, layer);
    int units = units_of(health->net, layer), silent = 0;
    double limit = RANGE_MOST * (double)health->threshold[layer];
    for (int u = 0; u < units; u++)
        silent += !(health->fired[layer][u / 32] >> u % 32 & 1);
    if (silent == units) { /* layers that nothing reaches any more are no news */
        bool told = *dead;
        *dead = true;
        if (told) goto out;
        TRY(warn(to, "dead_layer", name, rate, 0, "no spike in the evaluation"));
        goto out;
    }
    if (silent > DEAD_SHARE * units)
        TRY(warn(to, "dead_units", name, (double)silent / units, DEAD_SHARE,
                 "this share of its units never fires"));
    if (rate > SATURATED)
        TRY(warn(to, "saturated", name, rate, SATURATED, "its units fire at nearly every step"));
    if ((double)health->range[layer] > limit) /* false for NAN: no threshold */
        TRY(warn(to, "membrane_range", name, (double)health->range[layer], limit,
                 "a membrane is far beyond the threshold"));
out:
    return status;
}

/* Behind a dead layer no gradient is expected. */
static rv_status warn_gradient(const teller *to, bool dead) {
    rv_status status = RV_OK;
    const rv_health *health = to->health;
    const float *state = health->state;
    for (int l = 0; l < health->net->layer_count && !dead; l++)
        if (state[AT_ZEROS + l] >= ZERO_MOST)
            TRY(warn(to, "zero_gradient", rv_net_layer_name(health->net, l),
                     (double)state[AT_ZEROS + l], ZERO_MOST,
                     "its gradient was zero for many steps in a row"));
    if (state[AT_NORM] > 0)
        TRY(warn(to, "exploding_gradient", NULL, (double)state[AT_NORM],
                 EXPLODED * (double)state[AT_USUAL], "the gradient's norm leapt"));
out:
    return status;
}

/* Streaks go on over epochs; what has been told begins anew. */
rv_status rv_health_epoch(rv_health *health, const rv_layers *layers, int64_t epoch, int64_t step,
                          bool keep, void (*say)(void *user, const char *line), void *user) {
    rv_status status = RV_OK;
    const teller to = {health, epoch, step, say, user};
    bool dead = false;
    for (int i = 0; i < layers->count; i++) {
        int layer = rv_net_layer_find(health->net, layers->name[i]);
        if (layer >= 0 && health->fired[layer]) TRY(warn_layer(&to, layer, layers->rate[i], &dead));
    }
    TRY(warn_gradient(&to, dead));
    if (keep) goto out;
    health->state[AT_NORM] = health->state[AT_USUAL] = 0;
    for (int l = 0; l < health->net->layer_count; l++)
        if (health->state[AT_ZEROS + l] >= ZERO_MOST) health->state[AT_ZEROS + l] = 0;
out:
    return status;
}
