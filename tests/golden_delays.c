/*
 * delays.h5: a chain of spiking stages under every delay rule, by the sequential oracle, and
 * delays_quadratic.csv: the largest stable step of delayed momentum on a parabola.
 */
#include "tests/golden.h"
#include "pipeline/oracle.h"
#include "tests/quadratic.h"
#include <jansson.h>
#include <stdio.h>

enum { STAGES_MOST = 8, LAYERS = 16, SNAPSHOTS_MOST = 64 };

/* What a mode's group says, with the network of the group around. */
typedef struct course {
    golden_net g;
    rv_loss_desc loss;
    rv_train_desc train;
    rv_choice encoder;
    rv_delay_desc delay;
    int stages, T, rows, group, chunks, first[LAYERS + 1];
    const golden_array *inputs, *labels;
} course;

/* Arrays and attributes of the network lie in the group around that of the mode. */
static hid_t outside(golden_case *c) {
    hid_t mine = c->at;
    c->at = c->around;
    return mine;
}

/* ---- the mode ------------------------------------------------------------------------------- */

static bool add(golden_case *c, course *r, const char *name, const char *parameter, double value) {
    return golden_ok(c, rv_delay_add(&r->delay, name, parameter, value));
}

static bool rate_steps(golden_case *c, course *r, const json_t *steps) {
    size_t n = json_array_size(steps);
    if (!golden_choose(c, rv_schedule_table(), "piecewise", &r->train.schedule)) return false;
    rv_reals lists[2];
    for (size_t k = 0; k < 2; k++) {
        lists[k] = (rv_reals){(int)n, golden_memory(c, n + 1, sizeof(float)), 0};
        for (size_t i = 0; i < n; i++)
            lists[k].data[i] =
                (float)json_number_value(json_array_get(json_array_get(steps, i), k));
        lists[k].value = lists[k].data[0];
    }
    return golden_reals_set(c, &r->train.schedule, "at", lists[0]) &&
           golden_reals_set(c, &r->train.schedule, "factors", lists[1]);
}

/* Every word of `options` is taken, or the mode is not known. */
static bool options_take(golden_case *c, course *r, const json_t *options) {
    const char *key;
    json_t *value, *root = (json_t *)(uintptr_t)options;
    bool ok = true;
    json_object_foreach(root, key, value) {
        double x = json_number_value(value);
        const json_t *steps = json_object_get(options, "t1_steps"),
                     *decay = json_object_get(options, "t2_decay"),
                     *cap = json_object_get(options, "cap");
        if (strcmp(key, "predict") == 0)
            ok = ok &&
                 add(c, r, json_string_value(value), cap ? "cap" : NULL, json_number_value(cap));
        else if (strcmp(key, "t1") == 0)
            ok = ok && add(c, r, "t1", steps ? "steps" : NULL, json_number_value(steps));
        else if (strcmp(key, "t2") == 0)
            ok = ok && add(c, r, "t2", decay ? "decay" : NULL, json_number_value(decay));
        else if (strcmp(key, "async_from") == 0)
            ok = ok && add(c, r, "t3", "steps", x);
        else if (strcmp(key, "async_until") == 0)
            r->delay.until = (int64_t)x;
        else if (strcmp(key, "gc") == 0 || strcmp(key, "ema") == 0)
            ok = ok && add(c, r, key, NULL, 0);
        else if (strcmp(key, "lr_steps") == 0)
            ok = ok && rate_steps(c, r, value);
        else if (strcmp(key, "cap") != 0 && strcmp(key, "t1_steps") != 0 &&
                 strcmp(key, "t2_decay") != 0 && strcmp(key, "xpipe") != 0)
            ok = golden_fail(c, "option %s is not known", key);
    }
    return ok;
}

static bool mode_read(golden_case *c, course *r) {
    static const char *const rows[][2] = {{"1f1b", "stale"}, {"sync", NULL}};
    const char *base = golden_word(c, "base"), *name = c->name;
    bool own = strcmp(name, "ddg") == 0 || strcmp(name, "ddg_code") == 0;
    if (own) base = name;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (base && strcmp(base, rows[k][0]) == 0) base = rows[k][1];
    if (base) {
        r->delay.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), base);
        if (!r->delay.mode) return golden_fail(c, "no mode %s", base);
        if (strcmp(golden_word(c, "backward"), "stash") == 0 && !r->delay.mode->stash &&
            !add(c, r, "stash", NULL, 0))
            return false;
    }
    r->group = (int)golden_number(c, "micro_batches_per_update", 1);
    r->chunks = strncmp(name, "chunks_", 7) == 0 ? r->chunks : 1;
    if (!golden_choose(c, rv_optimizer_table(), golden_word(c, "optimizer"), &r->train.optimizer) ||
        !golden_set(c, &r->train.optimizer, "lr", golden_number(c, "lr", 0)))
        return false;
    if (golden_has(c, "momentum") &&
        !golden_set(c, &r->train.optimizer, "momentum", golden_number(c, "momentum", 0)))
        return false;
    json_error_t error;
    json_t *options = json_loads(golden_word(c, "options"), 0, &error);
    bool ok = options ? options_take(c, r, options) : golden_fail(c, "options: %s", error.text);
    json_decref(options);
    return ok;
}

/* ---- the network ---------------------------------------------------------------------------- */

static bool network_read(golden_case *c, course *r) {
    double beta[STAGES_MOST], theta[STAGES_MOST];
    int sizes[STAGES_MOST + 1];
    int count = golden_numbers(c, "sizes", NULL, 0);
    if (count < 2 || count > STAGES_MOST + 1 || 2 * (count - 1) > LAYERS)
        return golden_fail(c, "sizes: %d numbers", count);
    double *size = golden_memory(c, (size_t)count, sizeof *size);
    r->stages = count - 1;
    golden_numbers(c, "sizes", size, count);
    if (golden_numbers(c, "beta", beta, r->stages) != r->stages ||
        golden_numbers(c, "theta", theta, r->stages) != r->stages)
        return golden_fail(c, "beta, theta: not one a stage");
    r->T = (int)golden_number(c, "T", 0), r->rows = (int)golden_number(c, "batch", 0);
    r->chunks = (int)golden_number(c, "chunks", 1);
    for (int s = 0; s < r->stages; s++) {
        char name[32], bias[32];
        rv_choice layer, surrogate;
        sizes[s + 1] = (int)size[s + 1];
        snprintf(name, sizeof name, "W%d", s);
        snprintf(bias, sizeof bias, "init/b%d", s);
        if (!golden_layer(c, &r->g, rv_layer_table(), "linear", name, &layer) ||
            !golden_set(c, &layer, "units", sizes[s + 1]) ||
            !golden_set(c, &layer, "bias", golden_has(c, bias)))
            return false;
        snprintf(name, sizeof name, "n%d", s);
        if (!golden_layer(c, &r->g, rv_neuron_table(), "lif", name, &layer) ||
            !golden_set(c, &layer, "beta", beta[s]) ||
            !golden_set(c, &layer, "threshold", theta[s]) ||
            !golden_choose(c, rv_surrogate_table(), "atan", &surrogate) ||
            !golden_set(c, &surrogate, "alpha", 2) ||
            !golden_row_set(c, &layer, "surrogate", surrogate))
            return false;
        r->first[s] = 2 * s, r->first[s + 1] = 2 * s + 2;
    }
    r->inputs = golden_get(c, "inputs"), r->labels = golden_get(c, "labels");
    r->g.desc.input = (rv_shape){1, {(int)size[0]}};
    r->g.desc.steps = r->T;
    r->g.desc.layers = r->g.layers;
    r->loss = (rv_loss_desc){.population = 1, .classes = (int)size[count - 1]};
    size_t want = (size_t)(r->T * r->rows) * (size_t)size[0];
    return !c->failed && r->inputs->rank == 4 && r->inputs->n == r->inputs->dim[0] * want &&
           r->labels->n == r->inputs->dim[0] * (size_t)r->rows;
}

/* W0 of the file is W0.weight here; true: found. */
static const rv_tensor *tensor_of(const rv_net *net, char kind, int s) {
    char name[48];
    snprintf(name, sizeof name, "W%d.%s", s, kind == 'W' ? "weight" : "bias");
    return rv_net_tensor_find(net, name);
}

/* All weights from `init`. */
static bool weights_read(golden_case *c, const course *r, float *block) {
    for (int s = 0; s < r->stages; s++)
        for (const char *kind = "Wb"; *kind; kind++) {
            const rv_tensor *tensor = tensor_of(r->g.net, *kind, s);
            char path[32];
            if (!tensor) continue;
            snprintf(path, sizeof path, "init/%c%d", *kind, s);
            const golden_array *a = golden_get(c, path);
            float *file = golden_memory(c, a->n + 1, sizeof *file);
            if (a->n != rv_tensor_elements(tensor)) return golden_fail(c, "%s: its size", path);
            for (size_t i = 0; i < a->n; i++)
                file[i] = (float)a->v[i];
            rv_tensor_import(tensor, file, block);
        }
    return !c->failed;
}

/* ---- the run -------------------------------------------------------------------------------- */

/* Micro-batches of update u side by side. */
static void batch_fill(const course *r, int u, rv_batch *batch, int32_t *label) {
    int n = r->g.desc.input.dim[0];
    for (int m = 0; m < r->group; m++)
        for (int b = 0; b < r->rows; b++) {
            size_t row = (size_t)(u * r->group + m);
            label[m * r->rows + b] = (int32_t)r->labels->v[row * (size_t)r->rows + (size_t)b];
            for (int t = 0; t < r->T; t++)
                for (int i = 0; i < n; i++)
                    batch->input.values
                        .data[(size_t)t * batch->input.values.stride_t +
                              (size_t)((m * r->rows + b) * batch->input.values.ld + i)] =
                        (float)r->inputs
                            ->v[((row * (size_t)r->T + (size_t)t) * (size_t)r->rows + (size_t)b) *
                                    (size_t)n +
                                (size_t)i];
        }
}

static void compare(golden_case *c, const course *r, const float *block, int snapshot, int update) {
    for (int s = 0; s < r->stages && !c->failed; s++)
        for (const char *kind = "Wb"; *kind && !c->failed; kind++) {
            const rv_tensor *tensor = tensor_of(r->g.net, *kind, s);
            char path[16], what[48];
            if (!tensor) continue;
            snprintf(path, sizeof path, "%c%d", *kind, s);
            snprintf(what, sizeof what, "%s after %d updates", path, update);
            golden_array part = *golden_get(c, path);
            if (part.rank < 2 || c->failed) return;
            part.n /= part.dim[0];
            part.v += (size_t)snapshot * part.n;
            part.rank--;
            memmove(part.dim, part.dim + 1, sizeof part.dim - sizeof *part.dim);
            if (part.n != rv_tensor_elements(tensor))
                golden_fail(c, "%s: its size", path);
            else if (*kind == 'W')
                golden_close_weight(c, what, &part, block + tensor->offset, tensor->ld, 1e-5);
            else
                golden_close(c, what, &part, block + tensor->offset, (int)part.n, 1e-5, 0);
        }
}

/* Versions that the rules name against those of the file. */
static void versions_compare(golden_case *c, rv_oracle *oracle, int stages, int u) {
    const golden_array *forward = golden_get(c, "version_forward");
    for (int s = 0; s < stages && !c->failed; s++) {
        const rv_weights *w = rv_oracle_weights(oracle, s);
        int64_t got = rv_delay_forward(&w->rule, u);
        double want = forward->v[(size_t)(u * stages + s)];
        if ((double)got != want)
            golden_fail(c, "update %d, stage %d: forward reads version %d, not %g", u, s, (int)got,
                        want);
    }
}

static bool run(golden_case *c, course *r) {
    int updates = (int)r->inputs->dim[0] / r->group, B = r->group * r->rows, snapshot = 0;
    rv_oracle *oracle = NULL;
    const golden_array *loss = golden_get(c, "loss");
    float *block = golden_memory(c, r->g.net->n_all, sizeof *block);
    hid_t mine = outside(c);
    bool read = weights_read(c, r, block);
    double after[SNAPSHOTS_MOST];
    c->at = c->root;
    int snapshots = golden_numbers(c, "snapshots", after, SNAPSHOTS_MOST);
    c->at = mine;
    if (snapshots > SNAPSHOTS_MOST) return golden_fail(c, "%d snapshots", snapshots);
    rv_batch batch = {.B = B,
                      .input = {.values = golden_values(c, r->T, B, r->g.desc.input.dim[0])}};
    int32_t *label = golden_memory(c, (size_t)B, sizeof *label);
    uint64_t *sample = golden_memory(c, (size_t)B, sizeof *sample);
    batch.label = label, batch.sample = sample;
    r->train.batch = B, r->train.micro_batches = r->group, r->train.chunks = r->chunks;
    rv_delay_train(&r->delay, &r->train);
    if (updates > (int)loss->n) updates = (int)loss->n;
    const rv_oracle_desc desc = {.net = r->g.net,
                                 .device = c->device,
                                 .encoder = &r->encoder,
                                 .loss = &r->loss,
                                 .train = &r->train,
                                 .total_steps = updates,
                                 .delay = &r->delay,
                                 .stages = r->stages,
                                 .first = r->first};
    float *losses = golden_memory(c, loss->n + 1, sizeof *losses);
    if (read && golden_ok(c, rv_delay_check(&r->delay, &r->train)) &&
        golden_ok(c, rv_oracle_create(&desc, &oracle)) &&
        golden_ok(c, rv_oracle_write(oracle, block)))
        for (int u = 0; u < updates && !c->failed; u++) {
            rv_step_result result;
            batch_fill(r, u, &batch, label);
            versions_compare(c, oracle, r->stages, u);
            if (!golden_ok(c, rv_oracle_step(oracle, &batch, &result))) break;
            losses[u] = (float)result.loss;
            if (snapshot == snapshots || u + 1 != (int)after[snapshot]) continue;
            rv_oracle_read(oracle, block, NULL);
            compare(c, r, block, snapshot++, u + 1);
        }
    if (!c->failed && snapshot < snapshots) golden_fail(c, "%d snapshots were met", snapshot);
    if (!c->failed) golden_close(c, "loss", loss, losses, (int)loss->n, 1e-5, 0);
    rv_oracle_destroy(oracle);
    return !c->failed;
}

golden_verdict golden_delay(golden_case *c) {
    course *r = golden_memory(c, 1, sizeof *r);
    hid_t mine = outside(c);
    bool read = network_read(c, r);
    c->at = mine;
    if (!read || !mode_read(c, r) ||
        !golden_choose(c, rv_encoder_table(), "constant", &r->encoder) ||
        !golden_set(c, &r->encoder, "steps", r->T))
        return GOLDEN_DIFFER;
    if (golden_ok(c, rv_net_create(&r->g.desc, &r->g.net))) run(c, r);
    golden_net_close(&r->g);
    if (!c->failed) return GOLDEN_REPLAYED;
    return GOLDEN_DIFFER;
}

golden_verdict golden_quadratic(golden_case *c) {
    quadratic_row row;
    char why[256];
    if (!quadratic_read(c->name, &row)) return golden_fail(c, "not a row"), GOLDEN_DIFFER;
    if (!quadratic_holds(&row, c->device, why, sizeof why)) golden_fail(c, "%s", why);
    return golden_done(c);
}
