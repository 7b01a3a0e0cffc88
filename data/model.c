/*
 * Reading model and checkpoint files. A file is read whole and verified before anything is
 * believed: checksums of HDF5, then a digest over all names, shapes and values.
 */
#include "data/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------- */
/* For what every file of ours has; its absence is damage. */
static rv_status integer_find(const rv_model *model, const char *path, const char *attribute,
                              int64_t *out) {
    const rv_h5_item *item = rv_h5_find(&model->list, path, attribute, RV_H5_INTEGER);
    if (!item || item->count != 1)
        return rv_fail(RV_DATA, "%s: %s has no %s", model->name, path, attribute);
    memcpy(out, item->data, sizeof *out);
    return RV_OK;
}

/* Is this a model, of a version we know, and undamaged? In this order, so that a newer file is
 * called newer and not damaged. */
static rv_status meta_check(rv_model *model) {
    rv_status status = RV_OK;
    const rv_h5_item *format = rv_h5_find(&model->list, "/meta", "format", RV_H5_TEXT);
    const rv_h5_item *stored = rv_h5_find(&model->list, "/meta", "digest", RV_H5_TEXT);
    int64_t version = 0;
    uint64_t sum;
    char hex[17];
    if (!format || strcmp(format->data, RV_MODEL_FORMAT) != 0)
        FAIL(RV_DATA, "%s: not a model file of this program", model->name);
    TRY(integer_find(model, "/meta", "version", &version));
    if (version < 1 || version > RV_MODEL_VERSION)
        FAIL(RV_DATA, "%s: format version %" PRId64 "; this program reads up to %d", model->name,
             version, RV_MODEL_VERSION);
    model->version = (int)version;
    TRY(rv_model_sum(&model->list, &sum));
    snprintf(hex, sizeof hex, "%016" PRIx64, sum);
    if (!stored || strcmp(stored->data, hex) != 0)
        FAIL(RV_DATA, "%s: damaged: digest of its contents is %s, it should be %s", model->name,
             hex, stored ? (const char *)stored->data : "there");
out:
    return status;
}

/* "/layers/hidden/weight" as "hidden.weight"; false when the item is no tensor. Names that are
 * too long cannot come from this program. */
static bool tensor_of(const rv_h5_item *item, rv_model_tensor *out) {
    const char *layer = item->path + 8, *local;
    if (item->attribute || item->type != RV_H5_FLOAT || strncmp(item->path, "/layers/", 8) != 0)
        return false;
    local = strchr(layer, '/');
    if (!local || strlen(layer) >= sizeof out->name) return false;
    snprintf(out->name, sizeof out->name, "%.*s.%s", (int)(local - layer), layer, local + 1);
    out->rank = item->rank;
    memcpy(out->dim, item->dim, sizeof out->dim);
    return true;
}

/* Room for all items; most are attributes, but the list is short. */
static rv_status tensors_list(rv_model *model) {
    rv_status status = RV_OK;
    rv_model_tensor one;
    TRY(rv_alloc((size_t)model->list.count, sizeof one, "a list of tensors", &model->tensors));
    for (int i = 0; i < model->list.count; i++)
        if (tensor_of(&model->list.items[i], &one)) model->tensors[model->tensor_count++] = one;
out:
    return status;
}

/* After this nothing of the file is open: all arrays are in memory and verified. */
rv_status rv_model_read(const char *bytes, size_t size, const char *name, rv_model **out) {
    rv_status status = RV_OK;
    static const char hdf5[8] = "\x89HDF\r\n\x1a\n";
    rv_model *model = NULL;
    const rv_h5_item *config;
    if (size < sizeof hdf5 || memcmp(bytes, hdf5, sizeof hdf5) != 0)
        FAIL(RV_DATA, "%s: not a model file, as training writes them (last.h5 in a run folder)",
             name);
    TRY(rv_alloc(1, sizeof *model, "a model", &model));
    TRY(rv_strdup(name, &model->name));
    TRY(rv_h5_read(bytes, size, name, &model->list));
    TRY(meta_check(model));
    config = rv_h5_find(&model->list, "/meta/config", NULL, RV_H5_BYTES);
    if (!config) FAIL(RV_DATA, "%s: no recipe in it", name);
    TRY(rv_alloc(config->count + 1, 1, "a recipe", &model->config));
    memcpy(model->config, config->data, config->count);
    TRY(tensors_list(model));
    *out = model;
    model = NULL;
out:
    rv_model_close(model);
    return status;
}

rv_status rv_model_open(const char *path, rv_model **out) {
    rv_status status = RV_OK;
    char *bytes = NULL;
    size_t size = 0;
    TRY(rv_read_file(path, SIZE_MAX - 1, &bytes, &size));
    TRY(rv_model_read(bytes, size, path, out));
out:
    rv_free(bytes);
    return status;
}

/* Also of a model that was never fully opened. */
void rv_model_close(rv_model *model) {
    if (!model) return;
    rv_h5_finish(&model->list);
    rv_free(model->tensors);
    rv_free(model->config);
    rv_free(model->name);
    rv_free(model);
}

const char *rv_model_config(const rv_model *model) {
    return model->config;
}

int rv_model_version(const rv_model *model) {
    return model->version;
}

/* Texts of /meta that a file may lack. */
static const char *meta_text(const rv_model *model, const char *attribute) {
    const rv_h5_item *item = rv_h5_find(&model->list, "/meta", attribute, RV_H5_TEXT);
    return item ? item->data : "";
}

const char *rv_model_isa(const rv_model *model) {
    return meta_text(model, "isa");
}

const char *rv_model_resume_digest(const rv_model *model) {
    return meta_text(model, "resume_digest");
}

/* Every checkpoint has the horizon, and nothing else has. */
bool rv_model_checkpoint(const rv_model *model, int64_t *total_steps) {
    const rv_h5_item *item = rv_h5_find(&model->list, "/progress", "total_steps", RV_H5_INTEGER);
    if (item && item->count == 1) memcpy(total_steps, item->data, sizeof *total_steps);
    return item != NULL;
}

int rv_model_tensors(const rv_model *model, const rv_model_tensor **out) {
    *out = model->tensors;
    return model->tensor_count;
}

/* Opening verifies everything there is to verify. */
rv_status rv_model_check(const char *path) {
    rv_status status = RV_OK;
    rv_model *model = NULL;
    TRY(rv_model_open(path, &model));
out:
    rv_model_close(model);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------- */
/* A shape that differs is a mismatch between recipe and file, not damage. */
static rv_status tensor_load(const rv_model *model, const rv_tensor *tensor, const char *path,
                             float *block) {
    rv_status status = RV_OK;
    const rv_h5_item *item = rv_h5_find(&model->list, path, NULL, RV_H5_FLOAT);
    if (!item) FAIL(RV_CONFIG, "%s: has no %s, which the network needs", model->name, path);
    if (item->rank != tensor->rank ||
        memcmp(item->dim, tensor->dim, (size_t)tensor->rank * sizeof *tensor->dim) != 0)
        FAIL(RV_CONFIG, "%s: %s has another shape than the network's (%zu and %zu values)",
             model->name, path, item->count, rv_tensor_elements(tensor));
    rv_tensor_import(tensor, item->data, block);
out:
    return status;
}

/* All fields or none. */
static rv_status fields_load(const rv_model *model, const rv_model_field *field, void *to) {
    rv_status status = RV_OK;
    for (; field->name; field++) {
        const rv_h5_item *item = rv_h5_find(&model->list, "/progress", field->name,
                                            field->real ? RV_H5_REAL : RV_H5_INTEGER);
        if (!item || item->count != 1)
            FAIL(RV_DATA, "%s: /progress has no %s", model->name, field->name);
        memcpy((char *)to + field->offset, item->data, rv_h5_size(item));
    }
out:
    return status;
}

/* Written by another optimiser: a slot is missing, which names it. */
static rv_status optimizer_load(const rv_model *model, const rv_net *net, rv_optimizer *optimizer) {
    rv_status status = RV_OK;
    int64_t step = 0;
    char path[RV_MODEL_PATH];
    for (int slot = 0; slot < rv_optimizer_slots(optimizer); slot++) {
        for (int i = 0; i < net->tensor_count; i++) {
            if (!net->tensors[i].trained) continue;
            rv_model_slot_path(&net->tensors[i], rv_optimizer_slot_name(optimizer, slot), path);
            TRY(tensor_load(model, &net->tensors[i], path, rv_optimizer_slot(optimizer, slot)));
        }
    }
    TRY(integer_find(model, "/progress", "optimizer_step", &step));
    TRY(fields_load(model, rv_plateau_fields, rv_optimizer_plateau(optimizer)));
    rv_optimizer_step_set(optimizer, step);
out:
    return status;
}

/* Tensors the network does not know are as wrong as missing ones: nothing is dropped silently. */
rv_status rv_model_load(const rv_model *model, const rv_net *net, float *block,
                        rv_optimizer *optimizer, rv_progress *progress) {
    rv_status status = RV_OK;
    char path[RV_MODEL_PATH];
    for (int i = 0; i < net->tensor_count; i++) {
        rv_model_tensor_path(net, &net->tensors[i], path);
        TRY(tensor_load(model, &net->tensors[i], path, block));
    }
    if (model->tensor_count != net->tensor_count)
        FAIL(RV_CONFIG, "%s: has %d tensors, the network %d", model->name, model->tensor_count,
             net->tensor_count);
    if (optimizer) TRY(optimizer_load(model, net, optimizer));
    if (progress) TRY(fields_load(model, rv_progress_fields, progress));
out:
    return status;
}

/* Of another network or version: warnings begin anew, which is no reason to refuse a file. */
void rv_model_health(const rv_model *model, float *health, int count) {
    const rv_h5_item *item = rv_h5_find(&model->list, "/progress/health", NULL, RV_H5_FLOAT);
    if (item && item->count == (size_t)count) memcpy(health, item->data, rv_h5_size(item));
}

const char *rv_model_delay(const rv_model *model) {
    return meta_text(model, "delay");
}

rv_status rv_model_versions(const rv_model *model, float *versions, size_t count) {
    const rv_h5_item *item = rv_h5_find(&model->list, "/versions", NULL, RV_H5_FLOAT);
    if (!item || item->count != count)
        return rv_fail(RV_CONFIG, "%s: /versions has %zu values, the stages need %zu", model->name,
                       item ? item->count : 0, count);
    memcpy(versions, item->data, rv_h5_size(item));
    return RV_OK;
}

/* Equal name and shape; what the network has and the file lacks keeps its values. */
rv_status rv_model_import(const rv_model *model, const rv_net *net, float *block,
                          void (*say)(void *user, const char *name, const char *why), void *user,
                          int *taken) {
    rv_status status = RV_OK;
    char path[RV_MODEL_PATH];
    *taken = 0;
    for (int i = 0; i < net->tensor_count; i++) {
        const rv_tensor *tensor = &net->tensors[i];
        rv_model_tensor_path(net, tensor, path);
        const rv_h5_item *item = rv_h5_find(&model->list, path, NULL, RV_H5_FLOAT);
        if (!item)
            say(user, tensor->name, "not in the file: keeps its initial values");
        else if (tensor_load(model, tensor, path, block) != RV_OK)
            say(user, tensor->name, "has another shape in the file: keeps its initial values");
        else
            ++*taken;
    }
    for (int i = 0; i < model->tensor_count; i++)
        if (!rv_net_tensor_find(net, model->tensors[i].name))
            say(user, model->tensors[i].name, "of the file is not in the network: left out");
    if (*taken == 0)
        FAIL(RV_CONFIG, "%s: no tensor of it has a name and shape of the network's", model->name);
out:
    return status;
}
