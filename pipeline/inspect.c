/*
 * What a path holds (info) and whether it is whole (check): model, run, recipe or data file. One
 * row of `things` each. info reads as little as it needs; check reads every byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/internal.h"

/* ---- what a path is --------------------------------------------------------------------- */

typedef enum rv_thing {
    THING_MODEL,
    THING_RUN,
    THING_RECORD, /* run.json */
    THING_METRICS,
    THING_RECIPE,
    THING_DATA,
    THINGS
} rv_thing;

/* Files of a run that are JSON; any other JSON object is a recipe in YAML's flow style. */
static rv_thing text_of(const char *head) {
    static const char event[] = "{\"event\":";
    const char *format = strstr(head, "\"ranvier-run\"");
    if (strncmp(head, event, sizeof event - 1) == 0) return THING_METRICS;
    return head[0] == '{' && format ? THING_RECORD : THING_RECIPE;
}

/* Told by contents: HDF5 signature, folder, text of a mapping; all else is left to the readers. */
static rv_status thing_of(const char *path, rv_thing *out) {
    static const unsigned char hdf5[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    rv_status status = RV_OK;
    struct stat info;
    char head[4097] = "";
    int file = -1;
    if (stat(path, &info) != 0) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        *out = THING_RUN;
        return RV_OK;
    }
    if (!S_ISREG(info.st_mode)) FAIL(RV_INPUT, "%s: not a regular file", path);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    ssize_t got = read(file, head, sizeof head - 1);
    if (got < 0) FAIL(RV_IO, "%s: %s", path, strerror(errno));
    *out = THING_DATA;
    if (got >= 8 && memcmp(head, hdf5, 8) == 0)
        *out = THING_MODEL;
    else if (got > 0 && !memchr(head, 0, (size_t)got) && memchr(head, ':', (size_t)got))
        *out = text_of(head);
out:
    if (file >= 0) close(file);
    return status;
}

/* ---- parts ------------------------------------------------------------------------------ */

/* jansson's *_new calls take NULL and fail then: an allocation that failed anywhere below shows up
 * as a NULL root, which rv_json_text reports. */
static json_t *ints_json(const int64_t *values, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_integer((json_int_t)values[i]));
    return list;
}

/* The lines of a recipe that tell networks apart. */
static json_t *recipe_json(const rv_config *config) {
    json_t *layers = json_array();
    for (int i = 0; i < config->net.layer_count; i++) {
        const rv_layer_desc *layer = &config->net.layers[i];
        json_array_append_new(
            layers, json_pack("{s:s, s:s}", "name", layer->name, "kind", layer->row->name));
    }
    const rv_train_desc *train = &config->train;
    return json_pack("{s:I, s:s?, s:s, s:s, s:i, s:s, s:s, s:s, s:I, s:i, s:o}", "seed",
                     (json_int_t)config->seed, "preset", config->preset, "reader",
                     config->data.reader->name, "encode", config->encode.row->name, "steps",
                     config->steps, "loss", config->loss.loss.row->name, "optimizer",
                     train->optimizer.row->name, "lr_schedule", train->schedule.row->name, "epochs",
                     (json_int_t)train->epochs, "batch", train->batch, "layers", layers);
}

/* Names and shapes as the file holds them: PyTorch's axes, no padding. */
static json_t *tensors_json(const rv_model *model, int64_t *parameters) {
    const rv_model_tensor *tensors = NULL;
    int count = rv_model_tensors(model, &tensors);
    json_t *list = json_array();
    *parameters = 0;
    for (int i = 0; i < count; i++) {
        int64_t dim[4], product = 1;
        for (int d = 0; d < tensors[i].rank; d++)
            product *= dim[d] = tensors[i].dim[d];
        *parameters += product;
        json_array_append_new(list, json_pack("{s:s, s:o}", "name", tensors[i].name, "shape",
                                              ints_json(dim, tensors[i].rank)));
    }
    return list;
}

/* ---- model ------------------------------------------------------------------------------ */

/* Opening already verifies the file: what is printed can be believed. */
static rv_status model_info(const char *path, json_t **out) {
    rv_status status = RV_OK;
    rv_model *model = NULL;
    rv_config *config = NULL;
    int64_t parameters = 0;
    TRY(rv_model_open(path, &model));
    const char *text = rv_model_config(model);
    TRY(rv_config_parse(text, strlen(text), path, &config));
    json_t *tensors = tensors_json(model, &parameters);
    *out = json_pack("{s:s, s:s, s:i, s:I, s:o, s:o}", "path", path, "format", "model", "version",
                     rv_model_version(model), "parameters", (json_int_t)parameters, "tensors",
                     tensors, "recipe", recipe_json(config));
out:
    rv_config_free(config);
    rv_model_close(model);
    return status;
}

static rv_status model_check(const char *path, const char *const *sets, int set_count,
                             json_t **out) {
    rv_status status = RV_OK;
    (void)sets, (void)set_count;
    TRY(rv_model_check(path));
    *out = json_pack("{s:s, s:s, s:b}", "path", path, "format", "model", "ok", 1);
out:
    return status;
}

/* ---- run folder ------------------------------------------------------------------------- */

/* In the order a user asks for them; each may be absent in a run that has just begun. */
static const char *const model_files[] = {"best.h5", "last.h5", "previous.h5"};
enum { MODEL_FILES = sizeof model_files / sizeof *model_files };

/* folder/name, refused rather than cut. */
static rv_status join(const char *folder, const char *name, char path[4096]) {
    if (snprintf(path, 4096, "%s/%s", folder, name) >= 4096)
        return rv_fail(RV_INPUT, "%s: path too long", folder);
    return RV_OK;
}

/* Every line of metrics.jsonl must be JSON; *last is the newest, or NULL. */
static rv_status metrics_load(const char *path, int64_t *count, json_t **last) {
    rv_status status = RV_OK;
    char *line = NULL;
    size_t capacity = 0;
    *count = 0;
    *last = NULL;
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT) return RV_OK; /* no epoch has ended yet */
    if (!file) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    for (ssize_t size; (size = getline(&line, &capacity, file)) > 0;) { /* runs can be long */
        json_error_t error;
        json_t *root = json_loadb(line, (size_t)size, 0, &error);
        /* The torn last line of a run that was killed: the next start cuts it off. */
        if (!root && line[size - 1] != '\n') break;
        ++*count;
        if (!root) {
            rv_where where = {path, (int)*count, error.column};
            status = rv_fail_at(RV_DATA, where, NULL, NULL, "not JSON: %s", error.text);
            goto out;
        }
        json_decref(*last);
        *last = root;
    }
    if (ferror(file)) FAIL(RV_IO, "%s: %s", path, strerror(errno));
out:
    if (status != RV_OK) {
        json_decref(*last);
        *last = NULL;
    }
    free(line);
    if (file) fclose(file);
    return status;
}

/* run.json as it is, which model files there are, and the newest line of the metrics. */
static rv_status run_info(const char *path, json_t **out) {
    rv_status status = RV_OK;
    char file[4096];
    json_t *run = NULL, *last = NULL, *files = NULL;
    int64_t lines = 0;
    TRY(join(path, "run.json", file));
    TRY(rv_json_load(file, &run));
    TRY(join(path, "metrics.jsonl", file));
    TRY(metrics_load(file, &lines, &last));
    files = json_array();
    for (int i = 0; i < MODEL_FILES; i++) {
        TRY(join(path, model_files[i], file));
        if (access(file, F_OK) == 0) json_array_append_new(files, json_string(model_files[i]));
    }
    *out = json_pack("{s:s, s:s, s:O, s:O, s:I, s:O?}", "path", path, "format", "run", "run", run,
                     "models", files, "metrics", (json_int_t)lines, "last", last);
out:
    json_decref(files);
    json_decref(last);
    json_decref(run);
    return status;
}

/* The resolved recipe must load again: that is how a run is continued or repeated. */
static rv_status run_check(const char *path, const char *const *sets, int set_count, json_t **out) {
    rv_status status = RV_OK;
    char file[4096];
    json_t *run = NULL, *last = NULL, *checked = json_array();
    rv_config *config = NULL;
    int64_t lines = 0;
    (void)sets, (void)set_count;
    TRY(join(path, "run.json", file));
    TRY(rv_json_load(file, &run));
    json_array_append_new(checked, json_string("run.json"));
    TRY(join(path, "config.yaml", file));
    TRY(rv_config_load(file, NULL, 0, &config));
    json_array_append_new(checked, json_string("config.yaml"));
    TRY(join(path, "metrics.jsonl", file));
    TRY(metrics_load(file, &lines, &last));
    if (lines) json_array_append_new(checked, json_string("metrics.jsonl"));
    for (int i = 0; i < MODEL_FILES; i++) {
        TRY(join(path, model_files[i], file));
        if (access(file, F_OK) != 0) continue;
        TRY(rv_model_check(file));
        json_array_append_new(checked, json_string(model_files[i]));
    }
    *out =
        json_pack("{s:s, s:s, s:b, s:O}", "path", path, "format", "run", "ok", 1, "files", checked);
out:
    rv_config_free(config);
    json_decref(checked);
    json_decref(last);
    json_decref(run);
    return status;
}

/* ---- single files of a run ---------------------------------------------------------------- */

static rv_status record_info(const char *path, json_t **out) {
    rv_status status = RV_OK;
    json_t *run = NULL;
    TRY(rv_json_load(path, &run));
    *out = json_pack("{s:s, s:s, s:o}", "path", path, "format", "run record", "run", run);
out:
    return status;
}

/* What `status` and `--resume` read of it. */
static rv_status record_check(const char *path, const char *const *sets, int set_count,
                              json_t **out) {
    rv_status status = RV_OK;
    json_t *run = NULL;
    (void)sets, (void)set_count;
    TRY(rv_json_load(path, &run));
    if (!json_is_string(json_object_get(run, "status"))) FAIL(RV_DATA, "%s: has no status", path);
    *out = json_pack("{s:s, s:s, s:b}", "path", path, "format", "run record", "ok", 1);
out:
    json_decref(run);
    return status;
}

static rv_status metrics_info(const char *path, json_t **out) {
    rv_status status = RV_OK;
    json_t *last = NULL;
    int64_t lines = 0;
    TRY(metrics_load(path, &lines, &last));
    *out = json_pack("{s:s, s:s, s:I, s:o?}", "path", path, "format", "metrics", "metrics",
                     (json_int_t)lines, "last", last);
out:
    return status;
}

static rv_status metrics_check(const char *path, const char *const *sets, int set_count,
                               json_t **out) {
    rv_status status = RV_OK;
    (void)sets, (void)set_count;
    TRY(metrics_info(path, out)); /* parses every line */
    if (*out) json_object_set_new(*out, "ok", json_true());
out:
    return status;
}

/* ---- recipe ----------------------------------------------------------------------------- */

/* Without its data: a recipe can be looked at on another machine. */
static rv_status recipe_info(const char *path, json_t **out) {
    rv_status status = RV_OK;
    rv_config *config = NULL;
    TRY(rv_config_load(path, NULL, 0, &config));
    *out = json_pack("{s:s, s:s, s:o}", "path", path, "format", "recipe", "recipe",
                     recipe_json(config));
out:
    rv_config_free(config);
    return status;
}

/* All that training would refuse before its first step, but for the run folder. The loss is made
 * because only it knows whether the last layer fits the classes. */
static rv_status recipe_check(const char *path, const char *const *sets, int set_count,
                              json_t **out) {
    rv_status status = RV_OK;
    rv_setup setup = {0};
    rv_share share[RV_SPLITS] = {0};
    size_t parameters = 0;
    TRY(rv_config_load(path, sets, set_count, &setup.config));
    TRY(rv_setup_delay(&setup, NULL));
    for (int split = 0; split < RV_SPLITS; split++)
        TRY(rv_share_open(&share[split], setup.config, (rv_split)split, split == RV_SPLIT_TRAIN));
    const rv_source *source = &share[RV_SPLIT_TRAIN].source;
    TRY(rv_setup_delay_check(&setup, source->count));
    TRY(rv_setup_net(&setup, source));
    TRY(rv_setup_check_pipeline(&setup));
    for (int i = 0; i < setup.net->tensor_count; i++)
        parameters += rv_tensor_elements(&setup.net->tensors[i]);
    TRY(rv_loss_check(&setup.config->loss, setup.net));
    *out = json_pack("{s:s, s:s, s:b, s:{s:I, s:I, s:I}, s:I, s:o}", "path", path, "format",
                     "recipe", "ok", 1, "samples", "train", (json_int_t)source->count, "validation",
                     (json_int_t)share[RV_SPLIT_VALIDATION].source.count, "test",
                     (json_int_t)share[RV_SPLIT_TEST].source.count, "parameters",
                     (json_int_t)parameters, "recipe", recipe_json(setup.config));
out:
    for (int split = 0; split < RV_SPLITS; split++)
        rv_share_close(&share[split]);
    rv_setup_finish(&setup);
    return status;
}

/* ---- data file -------------------------------------------------------------------------- */

static rv_status data_info(const char *path, json_t **out) {
    rv_status status = RV_OK;
    rv_data_info info;
    TRY(rv_data_describe(path, &info));
    *out = json_pack("{s:s, s:s, s:s, s:o}", "path", path, "format", info.format, "type", info.type,
                     "shape", ints_json(info.dim, info.rank));
out:
    return status;
}

static rv_status data_check(const char *path, const char *const *sets, int set_count,
                            json_t **out) {
    rv_status status = RV_OK;
    (void)sets, (void)set_count;
    TRY(data_info(path, out)); /* reads the whole file */
    if (*out) json_object_set_new(*out, "ok", json_true());
out:
    return status;
}

/* ---- entry ------------------------------------------------------------------------------ */

static const struct {
    rv_status (*info)(const char *path, json_t **out);
    rv_status (*check)(const char *path, const char *const *sets, int set_count, json_t **out);
} things[THINGS] = {
    [THING_MODEL] = {model_info, model_check},    [THING_RUN] = {run_info, run_check},
    [THING_RECORD] = {record_info, record_check}, [THING_METRICS] = {metrics_info, metrics_check},
    [THING_RECIPE] = {recipe_info, recipe_check}, [THING_DATA] = {data_info, data_check},
};

rv_status rv_info_json(const char *path, char **json) {
    rv_status status = RV_OK;
    rv_thing thing;
    json_t *root = NULL;
    TRY(thing_of(path, &thing));
    TRY(things[thing].info(path, &root));
    TRY(rv_json_text(root, false, json));
out:
    return status;
}

rv_status rv_check_json(const char *path, const char *const *sets, int set_count, char **json) {
    rv_status status = RV_OK;
    rv_thing thing;
    json_t *root = NULL;
    TRY(thing_of(path, &thing));
    TRY(things[thing].check(path, sets, set_count, &root));
    TRY(rv_json_text(root, false, json));
out:
    return status;
}
