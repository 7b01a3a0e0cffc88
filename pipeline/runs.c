/*
 * What became of runs: one row each from run.json, its lock and metrics.jsonl, and mean and spread
 * of their figures. Reads only; a run in progress is not disturbed.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "pipeline/internal.h"

/* Figures of a run that are worth a mean; as named in metrics.jsonl. */
static const char *const figures[] = {"train_loss", "validation_accuracy", "test_accuracy",
                                      "test_accuracy_last"};
enum { FIGURES = sizeof figures / sizeof *figures, LOSS = 0, VALIDATION, TEST, TEST_LAST };

typedef struct standing {
    int64_t epoch, step;
    double figure[FIGURES];
    double rate; /* samples per second */
} standing;

/* null, absent or a text: no figure. */
static double number_of(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* As training chooses: the first epoch with the best validation accuracy; without one the last. */
static void standing_add(standing *at, const json_t *line) {
    const char *event = json_string_value(json_object_get(line, "event"));
    if (!event || strcmp(event, "epoch") != 0) return;
    double validation = number_of(line, "validation_accuracy");
    double test = number_of(line, "test_accuracy");
    at->epoch = json_integer_value(json_object_get(line, "epoch"));
    at->step = json_integer_value(json_object_get(line, "step"));
    at->figure[LOSS] = number_of(line, "train_loss");
    at->figure[TEST_LAST] = test;
    at->rate = number_of(line, "samples_per_s");
    if (validation <= at->figure[VALIDATION]) return; /* false for NAN */
    at->figure[VALIDATION] = validation;
    at->figure[TEST] = test;
}

/* A line that is no JSON is the torn end of a run that died: the next start cuts it off. */
static rv_status standing_read(const char *path, standing *at) {
    rv_status status = RV_OK;
    char *line = NULL;
    size_t capacity = 0;
    *at = (standing){.rate = NAN};
    for (int i = 0; i < FIGURES; i++)
        at->figure[i] = NAN;
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT) return RV_OK; /* no epoch has ended yet */
    if (!file) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    while (getline(&line, &capacity, file) >= 0) {
        json_t *root = json_loads(line, 0, NULL);
        standing_add(at, root);
        json_decref(root);
    }
    if (ferror(file)) FAIL(RV_IO, "%s: %s", path, strerror(errno));
out:
    free(line);
    if (file) fclose(file);
    return status;
}

/* Else a file in its place would be told by what is missing in it. */
rv_status rv_runs_folder(const char *path) {
    struct stat about;
    if (stat(path, &about) != 0) return rv_fail(RV_INPUT, "%s: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode)) return RV_OK;
    return rv_fail(RV_INPUT, "%s: a file, not a run folder", path);
}

/* "running" is what the run said of itself; whether it lives its lock knows. */
static const char *state_of(const char *folder, const char *recorded, rv_owner *owner) {
    bool held = rv_lock_look(folder, owner);
    if (held) return "running";
    return strcmp(recorded, "running") == 0 ? "dead" : recorded;
}

/* A run that lives also says where. */
static rv_status run_json(const char *folder, standing *at, json_t **out) {
    rv_status status = RV_OK;
    char path[4096];
    json_t *run = NULL;
    rv_owner owner;
    TRY(rv_runs_folder(folder));
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", folder) >= (int)sizeof path)
        FAIL(RV_INPUT, "%s: path too long", folder);
    TRY(standing_read(path, at));
    snprintf(path, sizeof path, "%s/run.json", folder);
    TRY(rv_json_load(path, &run));
    const char *recorded = json_string_value(json_object_get(run, "status"));
    if (!recorded) FAIL(RV_DATA, "%s: has no status", path);
    const char *state = state_of(folder, recorded, &owner);
    *out =
        json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "run", folder, "status", state,
                  "epoch", (json_int_t)at->epoch, "step", (json_int_t)at->step, figures[LOSS],
                  rv_json_number(at->figure[LOSS]), figures[VALIDATION],
                  rv_json_number(at->figure[VALIDATION]), figures[TEST],
                  rv_json_number(at->figure[TEST]), figures[TEST_LAST],
                  rv_json_number(at->figure[TEST_LAST]), "samples_per_s", rv_json_number(at->rate));
    if (!*out) FAIL(RV_MEMORY, "out of memory for the state of runs");
    if (strcmp(state, "running") == 0) {
        json_object_set_new(*out, "host", json_string(owner.host));
        json_object_set_new(*out, "pid", json_integer((json_int_t)owner.pid));
        json_object_set_new(*out, "started", json_string(owner.started));
    }
out:
    json_decref(run);
    return status;
}

/* Mean and sample deviation of each figure over the runs that have it. */
static void summary_add(json_t *root, const standing *runs, int count) {
    json_t *mean = json_object(), *spread = json_object();
    for (int f = 0; f < FIGURES; f++) {
        double sum = 0, squares = 0;
        int n = 0;
        for (int i = 0; i < count; i++)
            if (!isnan(runs[i].figure[f])) sum += runs[i].figure[f], n++;
        for (int i = 0; i < count; i++)
            if (!isnan(runs[i].figure[f])) squares += pow(runs[i].figure[f] - sum / n, 2);
        json_object_set_new(mean, figures[f], rv_json_number(n ? sum / n : NAN));
        json_object_set_new(spread, figures[f],
                            rv_json_number(n > 1 ? sqrt(squares / (n - 1)) : NAN));
    }
    json_object_set_new(root, "mean", mean);
    json_object_set_new(root, "spread", spread);
}

/* One run that cannot be read fails all: a mean over the others would be taken for one over all. */
rv_status rv_runs_json(const char *const *paths, int count, char **json) {
    rv_status status = RV_OK;
    standing *runs = NULL;
    json_t *root = json_object(), *list = json_array(), *run = NULL;
    TRY(rv_alloc((size_t)count, sizeof *runs, "runs", &runs));
    for (int i = 0; i < count; i++) {
        TRY(run_json(paths[i], &runs[i], &run));
        json_array_append_new(list, run);
    }
    json_object_set(root, "runs", list);
    summary_add(root, runs, count);
    json_incref(root);
    TRY(rv_json_text(root, false, json));
out:
    rv_free(runs);
    json_decref(list);
    json_decref(root);
    return status;
}
