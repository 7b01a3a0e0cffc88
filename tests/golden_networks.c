/*
 * networks.h5: small networks of plain PyTorch, built in memory: spikes, membranes, logits, loss
 * and every gradient of one pass, then three full-batch steps of SGD, Adam and AdamW.
 */
#include "tests/golden.h"
#include <stdio.h>

/* ---- a network in memory ------------------------------------------------------------------- */
bool golden_layer(golden_case *c, golden_net *g, const rv_table *table, const char *kind,
                  const char *name, rv_choice *out) {
    rv_layer_desc *layer = &g->layers[g->desc.layer_count];
    if (!golden_choose(c, table, kind, out)) return false;
    snprintf(layer->name, sizeof layer->name, "%s", name);
    layer->row = out->row;
    layer->options = out->options;
    layer->trainable = true;
    g->desc.layer_count++;
    return true;
}

bool golden_net_open(golden_case *c, golden_net *g, const golden_array *input) {
    if (c->failed) return false;
    if (input->rank < 3 || input->rank > 5) return golden_fail(c, "input: not [T][B][...]");
    int T = (int)input->dim[0], B = (int)input->dim[1];
    g->desc.input.rank = input->rank - 2;
    for (int i = 2; i < input->rank; i++)
        g->desc.input.dim[i - 2] = (int)input->dim[i];
    g->desc.steps = T;
    g->desc.layers = g->layers;
    if (!golden_ok(c, rv_net_create(&g->desc, &g->net)) ||
        !golden_ok(c, rv_version_create(g->net, c->device, &g->version)) ||
        !golden_ok(c, rv_state_create(g->net, c->device, B, &g->state)) ||
        !golden_ok(c, rv_state_create(g->net, c->device, B, &g->adjoint)) ||
        !golden_ok(c, rv_tape_create(g->net, c->device, T, B, &g->tape)) ||
        !golden_ok(c, rv_net_init(g->net, rv_version_block(g->version))))
        return false;
    g->gradient = golden_memory(c, g->net->n_trained, sizeof(float));
    int units = rv_shape_units(g->desc.input);
    golden_array flat = *input; /* the units of an image are one row */
    flat.rank = 3, flat.dim[2] = (size_t)units;
    uint64_t *sample = golden_memory(c, (size_t)B, sizeof *sample);
    for (int b = 0; b < B; b++)
        sample[b] = (uint64_t)b;
    g->batch = (rv_batch){.B = B, .sample = sample};
    g->batch.input.values = rv_values_of(NULL, T, B, units);
    g->batch.input.values.data = golden_rows(c, &flat, g->batch.input.values.ld);
    g->pass = (rv_pass){.net = g->net,
                        .device = c->device,
                        .arena = c->arena,
                        .last = g->net->layer_count,
                        .version = g->version,
                        .state = g->state,
                        .adjoint = g->adjoint,
                        .tape = g->tape,
                        .gradient = g->gradient,
                        .B = B,
                        .t1 = T,
                        .chunks = 1,
                        .batch = &g->batch,
                        .training = true};
    return true;
}

void golden_net_close(golden_net *g) {
    rv_tape_destroy(g->tape);
    rv_state_destroy(g->adjoint);
    rv_state_destroy(g->state);
    rv_version_destroy(g->version);
    rv_net_destroy(g->net);
}

/* ---- the networks of the file --------------------------------------------------------------- */
typedef struct plan {
    golden_net g;
    rv_loss_desc loss;
} plan;

static bool linear(golden_case *c, golden_net *g, const char *name) {
    rv_choice layer;
    char path[128];
    snprintf(path, sizeof path, "param/%s.weight", name);
    const golden_array *w = golden_get(c, path);
    snprintf(path, sizeof path, "param/%s.bias", name);
    return golden_layer(c, g, rv_layer_table(), "linear", name, &layer) &&
           golden_set(c, &layer, "units", (double)w->dim[0]) &&
           golden_set(c, &layer, "bias", golden_has(c, path));
}

static bool conv(golden_case *c, golden_net *g, const char *name, int stride) {
    rv_choice layer;
    char path[128];
    snprintf(path, sizeof path, "param/%s.weight", name);
    const golden_array *w = golden_get(c, path);
    return golden_layer(c, g, rv_layer_table(), "conv2d", name, &layer) &&
           golden_set(c, &layer, "out_channels", (double)w->dim[0]) &&
           golden_set(c, &layer, "kernel_size", (double)w->dim[w->rank > 2 ? 2 : 0]) &&
           golden_set(c, &layer, "padding", 1) && golden_set(c, &layer, "stride", stride);
}

/* kind lif or li with the file's constants; beta: the attribute that holds its decay. */
static bool neuron(golden_case *c, golden_net *g, const char *kind, const char *name,
                   const char *beta, rv_choice *layer) {
    rv_choice atan_;
    if (!golden_layer(c, g, rv_neuron_table(), kind, name, layer) ||
        !golden_set(c, layer, "beta", golden_number(c, beta, 0.9)))
        return false;
    if (strcmp(kind, "li") == 0) return true;
    return golden_set(c, layer, "threshold", golden_number(c, "th", 1)) &&
           golden_choose(c, rv_surrogate_table(), "atan", &atan_) &&
           golden_set(c, &atan_, "alpha", golden_number(c, "alpha", 2)) &&
           golden_row_set(c, layer, "surrogate", atan_);
}

static bool spiking(golden_case *c, golden_net *g, const char *name) {
    rv_choice layer;
    return neuron(c, g, "lif", name, "beta", &layer);
}

static bool fc(golden_case *c, plan *p) {
    p->loss.readout = RV_READ_SPIKE_COUNT;
    return linear(c, &p->g, "fc1") && spiking(c, &p->g, "lif1") && linear(c, &p->g, "fc2") &&
           spiking(c, &p->g, "lif2");
}

static bool readout(golden_case *c, plan *p, rv_readout what) {
    rv_choice out;
    p->loss.readout = what;
    return linear(c, &p->g, "fc1") && spiking(c, &p->g, "lif1") && linear(c, &p->g, "fc2") &&
           neuron(c, &p->g, "li", "out", "beta_out", &out);
}
static bool readout_max(golden_case *c, plan *p) {
    return readout(c, p, RV_READ_MEMBRANE_MAX);
}
static bool readout_mean(golden_case *c, plan *p) {
    return readout(c, p, RV_READ_MEMBRANE_MEAN);
}

static bool recurrent(golden_case *c, plan *p) {
    rv_choice lif;
    p->loss.readout = RV_READ_MEMBRANE_MEAN;
    return linear(c, &p->g, "fc1") && neuron(c, &p->g, "lif", "lif1", "beta", &lif) &&
           golden_set(c, &lif, "recurrent", 1) && linear(c, &p->g, "fc2");
}

static bool batchnorm(golden_case *c, plan *p) {
    rv_choice norm;
    p->loss.readout = RV_READ_MEMBRANE_MEAN;
    return linear(c, &p->g, "fc1") &&
           golden_layer(c, &p->g, rv_layer_table(), "batch_norm", "bn", &norm) &&
           spiking(c, &p->g, "lif1") && linear(c, &p->g, "fc2");
}

static bool conv_net(golden_case *c, plan *p) {
    rv_choice pool, flatten;
    golden_net *g = &p->g;
    p->loss.readout = RV_READ_SPIKE_COUNT;
    return conv(c, g, "conv1", 1) && spiking(c, g, "lif1") &&
           golden_layer(c, g, rv_layer_table(), "avg_pool", "pool", &pool) &&
           golden_set(c, &pool, "kernel_size", 2) && golden_set(c, &pool, "stride", 2) &&
           conv(c, g, "conv2", 2) && spiking(c, g, "lif2") &&
           golden_layer(c, g, rv_layer_table(), "flatten", "flatten", &flatten) &&
           linear(c, g, "fc") && spiking(c, g, "lif3");
}

static bool regularised(golden_case *c, plan *p) {
    rv_choice rate;
    if (!fc(c, p) || !golden_choose(c, rv_regularizer_table(), "rate", &rate) ||
        !golden_set(c, &rate, "upper", golden_number(c, "upper", 0)) ||
        !golden_set(c, &rate, "strength", golden_number(c, "reg", 0)))
        return false;
    p->g.layers[1].regularizer = rate;
    return true;
}

static const struct network {
    const char *name;
    bool (*build)(golden_case *c, plan *p);
} networks[] = {
    {"fc", fc},
    {"fc_clip", fc},
    {"readout_max", readout_max},
    {"readout_mean", readout_mean},
    {"recurrent", recurrent},
    {"batchnorm", batchnorm},
    {"conv", conv_net},
    {"regularised", regularised},
};

/* ---- tensors by the file's names ------------------------------------------------------------ */
static const rv_tensor *tensor_of(golden_case *c, const rv_net *net, const char *name) {
    static const char *const other[][2] = {{"rec.weight", "lif1.recurrent_weight"}};
    for (size_t k = 0; k < sizeof other / sizeof *other; k++)
        if (strcmp(name, other[k][0]) == 0) name = other[k][1];
    const rv_tensor *tensor = rv_net_tensor_find(net, name);
    if (!tensor) golden_fail(c, "no tensor %s", name);
    return tensor;
}

/* The parameters of group `path` become those of the version. */
static bool load(golden_case *c, golden_net *g, rv_version *version, const char *path) {
    int count = 0;
    const char *const *names = NULL;
    golden_names(c, path, &count, &names);
    for (int k = 0; k < count && !c->failed; k++) {
        char full[512];
        if (strstr(names[k], "_f64")) continue;
        snprintf(full, sizeof full, "%s/%s", path, names[k]);
        const rv_tensor *tensor = tensor_of(c, g->net, names[k]);
        const golden_array *a = golden_get(c, full);
        if (c->failed) return false;
        if (rv_tensor_elements(tensor) != a->n)
            return golden_fail(c, "%s: %zu values for %zu", full, a->n, rv_tensor_elements(tensor));
        rv_tensor_import(tensor, golden_rows(c, a, (int)a->dim[a->rank - 1]),
                         rv_version_block(version));
    }
    return !c->failed && golden_ok(c, rv_version_derive(version, g->pass.B));
}

/* Every data set of group `path` that names a tensor equals what the block holds there. */
static bool same_block(golden_case *c, const golden_net *g, const char *path, const float *block,
                       double limit, double floor) {
    int count = 0;
    const char *const *names = NULL;
    golden_names(c, path, &count, &names);
    for (int k = 0; k < count && !c->failed; k++) {
        char full[512];
        if (strstr(names[k], "_f64") || strstr(names[k], "_per_step") ||
            strcmp(names[k], "input") == 0 || strcmp(names[k], "eval_logits") == 0)
            continue;
        snprintf(full, sizeof full, "%s/%s", path, names[k]);
        const rv_tensor *tensor = tensor_of(c, g->net, names[k]);
        const golden_array *want = golden_get(c, full);
        if (c->failed || want->n != rv_tensor_elements(tensor))
            return golden_fail(c, "%s: not of the tensor's size", full);
        float *file = golden_memory(c, want->n, sizeof *file);
        rv_tensor_export(tensor, block, file);
        golden_close(c, full, want, file, (int)want->dim[want->rank - 1], limit, floor);
    }
    return !c->failed;
}

/* ---- one pass -------------------------------------------------------------------------------- */
/* v[t] of a layer: h - threshold*s, which the file calls membrane. */
static void check_layers(golden_case *c, golden_net *g) {
    float theta = (float)golden_number(c, "th", 1);
    for (int l = 0; l < g->net->layer_count; l++) {
        char path[128];
        rv_spikes s = rv_tape_signal(g->tape, l)->spikes;
        snprintf(path, sizeof path, "spikes/%s", rv_net_layer_name(g->net, l));
        if (golden_has(c, path)) golden_same_spikes(c, path, golden_get(c, path), s);
        snprintf(path, sizeof path, "membrane/%s", rv_net_layer_name(g->net, l));
        if (!golden_has(c, path)) continue;
        const golden_array *want = golden_get(c, path);
        rv_values h = rv_tape_membrane(g->tape, l);
        if (c->failed || want->n != (size_t)h.T * (size_t)h.B * (size_t)h.n) {
            golden_fail(c, "%s: not of the layer's size", path);
            return;
        }
        golden_array flat = *want;
        flat.rank = 1, flat.dim[0] = (size_t)h.n;
        float *v = golden_memory(c, (size_t)h.T * h.stride_t, sizeof *v);
        for (size_t k = 0; k < (size_t)h.T * h.stride_t; k++) {
            size_t row = k / (size_t)h.ld, u = k % (size_t)h.ld;
            bool bit = s.bits && u < (size_t)h.n &&
                       s.bits[row * (size_t)rv_words(h.n) + u / 32] >> (u % 32) & 1;
            v[k] = bit ? fmaf(-theta, 1, h.data[k]) : h.data[k];
        }
        golden_close(c, path, &flat, v, h.ld, GOLDEN_MEMBRANE, 1);
    }
}

/* F and the loss: spikes, membranes, logits and the loss with its penalty. */
static bool forward(golden_case *c, plan *p, rv_loss *loss) {
    golden_net *g = &p->g;
    rv_pass *pass = &g->pass;
    rv_loss_result result = {0};
    if (!golden_ok(c, rv_state_clear(g->state, NULL)) || !golden_ok(c, rv_net_forward(pass)) ||
        !golden_ok(c, rv_loss_observe(loss, pass)) ||
        !golden_ok(c, rv_loss_finish(loss, pass, pass->B, &result, NULL)))
        return false;
    const char *logits = pass->training ? "logits" : "after_first_forward/eval_logits";
    golden_close(c, logits, golden_get(c, logits), rv_loss_logits(loss), p->loss.classes,
                 GOLDEN_MEMBRANE, 1);
    if (!pass->training) return !c->failed;
    float value = (float)result.loss;
    check_layers(c, g);
    golden_close(c, "loss", golden_get(c, "loss"), &value, 1, GOLDEN_MEMBRANE, 1);
    if (golden_has(c, "penalty")) {
        value = (float)rv_tape_penalty(g->tape, 0, pass->last, 0);
        golden_close(c, "penalty", golden_get(c, "penalty"), &value, 1, GOLDEN_MEMBRANE, 0);
    }
    return !c->failed;
}

static bool backward(golden_case *c, plan *p, rv_loss *loss) {
    golden_net *g = &p->g;
    rv_pass *pass = &g->pass;
    if (!golden_ok(c, rv_state_clear(g->adjoint, NULL)) ||
        !golden_ok(c, rv_loss_adjoint(loss, pass)) || !golden_ok(c, rv_net_backward(pass)) ||
        !golden_ok(c, rv_net_weight(pass)))
        return false;
    golden_array flat = *golden_get(c, "grad/input"); /* an image's units are one row */
    flat.rank = 1, flat.dim[0] = (size_t)pass->gx.n;
    golden_close(c, "grad/input", &flat, pass->gx.data, pass->gx.ld, GOLDEN_GRADIENT, 0);
    return !c->failed && same_block(c, g, "grad", g->gradient, GOLDEN_GRADIENT, 0);
}

/* Running statistics after the pass, and what the network then says without training. */
static bool running(golden_case *c, plan *p, rv_loss *loss) {
    golden_net *g = &p->g;
    float *block = rv_version_block(g->version);
    rv_net_statistics_apply(g->net, 0, g->pass.last, g->pass.statistics, g->pass.B, g->version);
    g->pass.training = false;
    return same_block(c, g, "after_first_forward", block, GOLDEN_MEMBRANE, 1) &&
           golden_ok(c, rv_version_derive(g->version, g->pass.B)) && forward(c, p, loss);
}

static bool one_pass(golden_case *c, plan *p) {
    golden_net *g = &p->g;
    rv_pass *pass = &g->pass;
    rv_loss *loss = NULL;
    if (!golden_ok(c, rv_loss_create(&p->loss, g->net, pass->device, pass->B, &loss))) return false;
    *rv_tape_signal(g->tape, -1) = g->batch.input;
    pass->gx = golden_values(c, pass->t1, pass->B, rv_shape_units(g->desc.input));
    pass->statistics =
        golden_memory(c, (size_t)pass->t1 * rv_net_statistics(g->net), sizeof(float));
    if (forward(c, p, loss) && backward(c, p, loss) && golden_has(c, "after_first_forward"))
        running(c, p, loss);
    rv_loss_destroy(loss);
    return !c->failed;
}

/* ---- three steps ------------------------------------------------------------------------------
 */
static bool optimizer(golden_case *c, const char *name, rv_choice *out) {
    static const struct {
        const char *name, *option, *attribute;
    } options[] = {
        {"sgd", "lr", "sgd_lr"},         {"sgd", "momentum", "sgd_momentum"},
        {"adam", "lr", "adam_lr"},       {"adam", "beta1", "adam_beta1"},
        {"adam", "beta2", "adam_beta2"}, {"adam", "epsilon", "adam_eps"},
        {"adamw", "lr", "adamw_lr"},     {"adamw", "weight_decay", "adamw_weight_decay"},
    };
    if (!golden_choose(c, rv_optimizer_table(), name, out)) return false;
    for (size_t k = 0; k < sizeof options / sizeof *options; k++)
        if (strcmp(options[k].name, name) == 0 && golden_has(c, options[k].attribute) &&
            !golden_set(c, out, options[k].option, golden_number(c, options[k].attribute, 0)))
            return false;
    return true;
}

static bool three_steps(golden_case *c, plan *p, const char *name) {
    golden_net *g = &p->g;
    rv_choice encoder;
    rv_train_desc train = {.epochs = 1, .batch = g->pass.B, .micro_batches = 1, .chunks = 1};
    rv_serial *serial = NULL;
    char path[128];
    train.clip_norm = golden_number(c, "clip", 0);
    if (!optimizer(c, name, &train.optimizer) ||
        !golden_choose(c, rv_schedule_table(), "constant", &train.schedule) ||
        !golden_choose(c, rv_encoder_table(), "constant", &encoder) ||
        !golden_set(c, &encoder, "steps", g->desc.steps))
        return golden_fail(c, "%s", c->text);
    rv_serial_desc desc = {.net = g->net,
                           .device = c->device,
                           .encoder = &encoder,
                           .loss = &p->loss,
                           .train = &train,
                           .total_steps = 3};
    if (golden_ok(c, rv_serial_create(&desc, &serial)) &&
        load(c, g, rv_serial_version(serial), "param")) {
        snprintf(path, sizeof path, "after3/%s/loss_per_step", name);
        const golden_array *losses = golden_get(c, path);
        float *loss = golden_memory(c, losses->n + 1, sizeof *loss);
        float *norm = golden_memory(c, losses->n + 1, sizeof *norm);
        for (size_t k = 0; k < losses->n && !c->failed; k++) {
            rv_step_result result;
            if (golden_ok(c, rv_serial_step(serial, &g->batch, &result)))
                loss[k] = (float)result.loss, norm[k] = (float)result.norm;
        }
        golden_close(c, path, losses, loss, (int)losses->n, GOLDEN_MEMBRANE, 1);
        snprintf(path, sizeof path, "after3/%s/grad_norm_per_step", name);
        if (golden_has(c, path))
            golden_close(c, path, golden_get(c, path), norm, (int)losses->n, GOLDEN_GRADIENT, 0);
        snprintf(path, sizeof path, "after3/%s", name);
        same_block(c, g, path, rv_version_block(rv_serial_version(serial)), GOLDEN_GRADIENT, 0);
    }
    rv_serial_destroy(serial);
    return !c->failed;
}

golden_verdict golden_network(golden_case *c) {
    plan p = {.loss = {.population = 1}};
    const struct network *row = NULL;
    for (size_t k = 0; k < sizeof networks / sizeof *networks; k++)
        if (strcmp(c->name, networks[k].name) == 0) row = &networks[k];
    if (!row || !row->build(c, &p) ||
        !golden_choose(c, rv_loss_table(), "cross_entropy", &p.loss.loss))
        return GOLDEN_UNKNOWN;
    const golden_array *target = golden_get(c, "target"), *logits = golden_get(c, "logits");
    p.loss.classes = (int)logits->dim[logits->rank > 1 ? 1 : 0];
    if (golden_net_open(c, &p.g, golden_get(c, "input"))) {
        int32_t *label = golden_memory(c, (size_t)p.g.pass.B, sizeof *label);
        for (size_t b = 0; b < target->n && b < (size_t)p.g.pass.B; b++)
            label[b] = (int32_t)target->v[b];
        p.g.batch.label = label;
        if (load(c, &p.g, p.g.version, "param") && one_pass(c, &p)) {
            int count = 0;
            const char *const *names = NULL;
            golden_names(c, "after3", &count, &names);
            for (int k = 0; k < count && !c->failed; k++)
                three_steps(c, &p, names[k]);
        }
    }
    golden_net_close(&p.g);
    return golden_done(c);
}
