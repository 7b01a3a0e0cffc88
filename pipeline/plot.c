/*
 * What is drawn of a run: the curves of its metrics, or what one sample does in one layer of its
 * best model: a raster of spikes and some membranes, from one forward pass.
 */
#include "pipeline/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PANELS = 3, MEMBRANES = 6 };

/* ---- curves ------------------------------------------------------------------------------ */
/* The epoch lines of metrics.jsonl, as a list; a torn last line is none. */
static rv_status epochs_load(const char *run, json_t **out) {
    rv_status status = RV_OK;
    char path[4096], *line = NULL;
    size_t room = 0;
    FILE *file = NULL;
    json_t *list = json_array();
    TRY(rv_runs_folder(run));
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", run) >= (int)sizeof path)
        FAIL(RV_INPUT, "%s: path too long", run);
    file = fopen(path, "re");
    if (!file) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    while (getline(&line, &room, file) >= 0) {
        json_t *root = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(root, "event"));
        if (event && strcmp(event, "epoch") == 0) json_array_append(list, root);
        json_decref(root);
    }
    if (json_array_size(list) == 0) FAIL(RV_INPUT, "%s: no epoch has ended yet", path);
    *out = json_incref(list);
out:
    free(line);
    if (file) fclose(file);
    json_decref(list);
    return status;
}

/* One figure over the epochs; `object` NULL: of the line itself. */
static rv_status curve_add(rv_panel *panel, const char *name, const json_t *epochs,
                           const char *object, const char *key) {
    rv_status status = RV_OK;
    rv_series *series = NULL;
    int count = (int)json_array_size(epochs);
    TRY(rv_panel_add(panel, name, count, &series));
    for (int i = 0; i < count; i++) {
        const json_t *line = json_array_get(epochs, (size_t)i);
        const json_t *from = object ? json_object_get(line, object) : line;
        const json_t *value = json_object_get(from, key);
        series->x[i] = (double)json_integer_value(json_object_get(line, "epoch"));
        series->y[i] = json_is_number(value) ? json_number_value(value) : NAN;
    }
    series->count = count;
out:
    return status;
}

static void panel_name(rv_panel *panel, const char *title, const char *x, const char *y) {
    snprintf(panel->title, sizeof panel->title, "%.120s", title);
    snprintf(panel->x, sizeof panel->x, "%s", x);
    snprintf(panel->y, sizeof panel->y, "%s", y);
}

/* Layers are those of the first epoch: a run has the same in all. */
static rv_status curves_gather(const char *run, rv_panel panels[PANELS]) {
    rv_status status = RV_OK;
    json_t *epochs = NULL;
    TRY(epochs_load(run, &epochs));
    panel_name(&panels[0], run, "epoch", "loss");
    TRY(curve_add(&panels[0], "train", epochs, NULL, "train_loss"));
    panel_name(&panels[1], "accuracy", "epoch", "share");
    panels[1].share = true;
    TRY(curve_add(&panels[1], "train", epochs, NULL, "train_accuracy"));
    TRY(curve_add(&panels[1], "validation", epochs, NULL, "validation_accuracy"));
    TRY(curve_add(&panels[1], "test", epochs, NULL, "test_accuracy"));
    panel_name(&panels[2], "spikes a unit and step", "epoch", "rate");
    const char *name;
    json_t *rate, *first = json_object_get(json_array_get(epochs, 0), "rates");
    json_object_foreach(first, name, rate) TRY(curve_add(&panels[2], name, epochs, "rates", name));
out:
    json_decref(epochs);
    return status;
}

/* ---- one sample -------------------------------------------------------------------------- */
typedef struct activity {
    int layer, units, steps;
    float *h;       /* [steps][units]; NULL: no membrane */
    bool *spike;    /* [steps][units] */
    bool any_spike; /* the layer gives spikes */
} activity;

/* Chunk by chunk of the only sample there is, row 0. */
static rv_status activity_take(void *self, const rv_pass *pass) {
    activity *to = self;
    if (to->layer < pass->first || to->layer >= pass->last) return RV_OK;
    rv_values h = rv_tape_membrane(pass->tape, to->layer);
    rv_spikes s = rv_tape_signal(pass->tape, to->layer)->spikes;
    for (int t = pass->t0; t < pass->t1; t++) {
        size_t row = (size_t)t * (size_t)to->units, at = (size_t)(t - pass->t0);
        for (int u = 0; u < to->units; u++) {
            if (h.data) to->h[row + (size_t)u] = h.data[at * h.stride_t + (size_t)u];
            if (s.bits)
                to->spike[row + (size_t)u] = s.bits[at * s.stride_t + (size_t)u / 32] >> u % 32 & 1;
        }
    }
    return RV_OK;
}

/* One series with a point a spike; an empty one where nothing spikes. */
static rv_status raster_gather(const activity *from, const char *title, rv_panel *panel) {
    rv_status status = RV_OK;
    rv_series *series = NULL;
    int count = 0;
    for (int i = 0; i < from->steps * from->units; i++)
        count += from->spike[i];
    panel_name(panel, title, "time step", "unit");
    panel->dots = true;
    panel->width = from->steps - 1;
    panel->height = from->units - 1;
    TRY(rv_panel_add(panel, "spikes", count + 1, &series));
    for (int t = 0; t < from->steps; t++)
        for (int u = 0; u < from->units; u++)
            if (from->spike[t * from->units + u]) {
                series->x[series->count] = t;
                series->y[series->count++] = u;
            }
out:
    return status;
}

/* Units that spike most come first: they show how the neuron works. */
static rv_status membranes_gather(const activity *from, rv_panel *panel) {
    rv_status status = RV_OK;
    bool taken[1 << 12] = {false};
    panel_name(panel, "membrane before reset", "time step", "h");
    for (int k = 0; k < MEMBRANES && k < from->units; k++) {
        int best = -1, most = -1;
        rv_series *series = NULL;
        char name[32];
        for (int u = 0; u < from->units && u < (1 << 12); u++) {
            int spikes = 0;
            for (int t = 0; t < from->steps; t++)
                spikes += from->spike[t * from->units + u];
            if (!taken[u] && spikes > most) best = u, most = spikes;
        }
        if (best < 0) break; /* more units than are looked at */
        taken[best] = true;
        snprintf(name, sizeof name, "unit %d", best);
        TRY(rv_panel_add(panel, name, from->steps, &series));
        for (int t = 0; t < from->steps; t++) {
            series->x[t] = t;
            series->y[t] = (double)from->h[t * from->units + best];
        }
        series->count = from->steps;
    }
out:
    return status;
}

/* The layer asked for, or the first that spikes. */
static rv_status layer_find(const rv_net *net, const char *name, int *layer) {
    *layer = name ? rv_net_layer_find(net, name) : -1;
    for (int l = 0; !name && l < net->layer_count && *layer < 0; l++)
        if (rv_net_layer_spikes(net, l)) *layer = l;
    if (*layer >= 0) return RV_OK;
    return rv_fail(RV_USAGE, "--layer: no layer \"%s\" in the network",
                   name ? name : "with spikes");
}

/* Open the model for one sample, run it, and keep what its layer did. */
static rv_status sample_run(const rv_plot_options *options, const char *file, rv_panel *panels) {
    rv_status status = RV_OK;
    rv_setup setup = {0};
    rv_share share = {0};
    rv_model *model = NULL;
    float *block = NULL;
    activity seen = {0};
    const rv_observer observer = {&seen, activity_take};
    rv_loader *loader = NULL;
    const rv_batch *batch = NULL;
    rv_step_result result;
    rv_split split;
    int32_t prediction = -1;
    char title[128];
    TRY(rv_split_parse(options->split, &split));
    TRY(rv_model_open(file, &model));
    const char *text = rv_model_config(model);
    TRY(rv_config_parse(text, strlen(text), file, &setup.config));
    setup.config->stages = 1;
    TRY(rv_share_open(&share, setup.config, split, false));
    if (!share.loader) FAIL(RV_CONFIG, "%s has no %s share", file, rv_split_name(split));
    if (options->sample >= share.source.count)
        FAIL(RV_USAGE, "--sample %lld: the %s share has %lld samples", (long long)options->sample,
             rv_split_name(split), (long long)share.source.count);
    TRY(rv_setup_net(&setup, &share.source));
    TRY(layer_find(setup.net, options->layer, &seen.layer));
    TRY(rv_alloc(setup.net->n_all, sizeof *block, "weights", &block));
    TRY(rv_model_load(model, setup.net, block, NULL, NULL));
    TRY(rv_setup_device(&setup, NULL, 1));
    TRY(rv_setup_serial(&setup, &share, block, 1));
    seen.units = rv_shape_units(rv_net_layer_shape(setup.net, seen.layer));
    seen.steps = setup.net->desc->steps;
    size_t cells = (size_t)seen.units * (size_t)seen.steps;
    TRY(rv_alloc(cells, sizeof *seen.h, "membranes", &seen.h));
    TRY(rv_alloc(cells, sizeof *seen.spike, "spikes", &seen.spike));
    TRY(rv_loader_create(&share.source, 1, setup.config->seed, false, &loader));
    TRY(rv_loader_start(loader, 0, options->sample));
    TRY(rv_loader_next(loader, &batch));
    rv_engine_observe(setup.engine, &observer);
    TRY(rv_engine_eval(setup.engine, batch, &result, NULL, &prediction));
    snprintf(title, sizeof title, "%.60s, sample %lld: label %d, prediction %d",
             rv_net_layer_name(setup.net, seen.layer), (long long)options->sample,
             batch->label ? (int)batch->label[0] : -1, (int)prediction);
    TRY(raster_gather(&seen, title, &panels[0]));
    TRY(membranes_gather(&seen, &panels[1]));
out:
    rv_loader_destroy(loader);
    rv_free(seen.spike);
    rv_free(seen.h);
    rv_free(block);
    rv_model_close(model);
    rv_share_close(&share); /* before the recipe it was opened by */
    rv_setup_finish(&setup);
    return status;
}

/* Everything is gathered before the file is touched. */
rv_status rv_plot_run(const rv_plot_options *options) {
    rv_status status = RV_OK;
    rv_panel panels[PANELS] = {{.count = 0}};
    char *file = NULL;
    bool sample = options->sample >= 0;
    if (sample) {
        TRY(rv_model_find(options->run, &file));
        TRY(sample_run(options, file, panels));
    } else {
        TRY(curves_gather(options->run, panels));
    }
    TRY(rv_draw(panels, sample ? 2 : PANELS, options->out));
out:
    rv_panels_finish(panels, PANELS);
    rv_free(file);
    return status;
}
