/*
 * Model and checkpoint files: what of a network, an optimiser and a training run goes into which
 * array (README, "Model files"), on top of h5.c. A file is read whole and verified before anything
 * is believed: checksums of HDF5, then a digest over all names, shapes and values.
 */
#include "data/h5.h"
#include "data/reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#define FORMAT "ranvier-model"
enum { VERSION = 1, PATH_MOST = 2 * RV_NAME_MAX + 64 };

struct rv_model {
    char *name; /* of the file, for messages */
    rv_h5_list list;
    char *config;
    int version;
    rv_model_tensor *tensors;
    int tensor_count;
};

/* ---- digest ------------------------------------------------------------------------------ */
/* A sum over items, so that the order in which a file lists them does not matter. CRC-32 for the
 * bulk of the bytes, as it runs at memory speed; names and shapes are few and get the longer
 * hash. */
static uint64_t digest(const rv_h5_list *list) {
    uint64_t sum = 0;
    for (int i = 0; i < list->count; i++) {
        const rv_h5_item *item = &list->items[i];
        uint64_t hash = rv_hash_text(RV_HASH_START, item->path);
        uLong crc = crc32_z(crc32(0, NULL, 0), item->data, rv_h5_size(item));
        if (item->attribute && strcmp(item->attribute, "digest") == 0) continue;
        hash = rv_hash_text(hash, item->attribute ? item->attribute : "");
        hash = rv_hash(hash, &item->type, sizeof item->type);
        hash = rv_hash(hash, item->dim, (size_t)item->rank * sizeof *item->dim);
        sum += rv_hash(hash, &crc, sizeof crc);
    }
    return sum;
}

/* ---- parameters as attributes ------------------------------------------------------------ */
static rv_status put_specs(rv_h5_list *list, const char *path, const char *prefix,
                           const rv_spec *specs, const void *options);

/* One value for all units is an attribute of one number, else a list as long as the layer. */
static rv_status put_reals(rv_h5_list *list, const char *path, const char *name,
                           const rv_reals *reals) {
    rv_status status = RV_OK;
    rv_h5_item *item = NULL;
    if (reals->count <= 1) /* NAN: not given */
        return isnan(reals->value) ? RV_OK : rv_h5_add_real(list, path, name, (double)reals->value);
    TRY(rv_h5_add(list, path, name, RV_H5_REAL, 1, &reals->count, &item));
    for (int i = 0; i < reals->count; i++)
        ((double *)item->data)[i] = (double)reals->data[i];
out:
    return status;
}

/* As its word: numbers of words change when words are added. */
static rv_status put_choice(rv_h5_list *list, const char *path, const char *name,
                            const char *choices, int index) {
    char word[RV_NAME_MAX];
    rv_word_at(choices, index, word);
    return rv_h5_add_text(list, path, name, word);
}

/* Always two numbers. */
static rv_status put_pair(rv_h5_list *list, const char *path, const char *name, const int *pair) {
    rv_status status = RV_OK;
    rv_h5_item *item = NULL;
    int two = 2;
    TRY(rv_h5_add(list, path, name, RV_H5_INTEGER, 1, &two, &item));
    for (int i = 0; i < 2; i++)
        ((int64_t *)item->data)[i] = pair[i];
out:
    return status;
}

/* A row's own parameters get its name as prefix: surrogate = atan, surrogate.alpha = 2. */
static rv_status put_row(rv_h5_list *list, const char *path, const char *name,
                         const rv_choice *choice) {
    rv_status status = RV_OK;
    char prefix[2 * RV_NAME_MAX + 2];
    if (!choice->row) return RV_OK;
    snprintf(prefix, sizeof prefix, "%s.", name);
    TRY(rv_h5_add_text(list, path, name, choice->row->name));
    if (choice->options) TRY(put_specs(list, path, prefix, choice->row->specs, choice->options));
out:
    return status;
}

/* Parameters are for people and other programs who open the file; this program rebuilds the
 * network from the recipe in /meta/config. */
static rv_status put_spec(rv_h5_list *list, const char *path, const char *name, const rv_spec *spec,
                          const void *at) {
    switch (spec->type) {
    case RV_T_BOOL:
        return rv_h5_add_integer(list, path, name, *(const bool *)at);
    case RV_T_INT:
        return rv_h5_add_integer(list, path, name, *(const int *)at);
    case RV_T_REAL:
        return isnan(*(const double *)at) ? RV_OK
                                          : rv_h5_add_real(list, path, name, *(const double *)at);
    case RV_T_REALS:
        return put_reals(list, path, name, at);
    case RV_T_CHOICE:
        return put_choice(list, path, name, spec->choices, *(const int *)at);
    case RV_T_TEXT:
        return *(char *const *)at ? rv_h5_add_text(list, path, name, *(char *const *)at) : RV_OK;
    case RV_T_PAIR:
        return put_pair(list, path, name, at);
    case RV_T_ROW:
        return put_row(list, path, name, at);
    }
    return RV_OK;
}

/* Every parameter, defaults too: a reader without our tables must not guess. */
static rv_status put_specs(rv_h5_list *list, const char *path, const char *prefix,
                           const rv_spec *specs, const void *options) {
    rv_status status = RV_OK;
    for (const rv_spec *spec = specs; spec && spec->name; spec++) {
        char name[2 * RV_NAME_MAX];
        snprintf(name, sizeof name, "%s%s", prefix, spec->name);
        TRY(put_spec(list, path, name, spec, (const char *)options + spec->offset));
    }
out:
    return status;
}

/* ---- writing ----------------------------------------------------------------------------- */
/* In PyTorch's axis order and without padding, whatever the layout in memory. */
static rv_status put_tensor(rv_h5_list *list, const rv_tensor *tensor, const char *path,
                            const float *block) {
    rv_status status = RV_OK;
    rv_h5_item *item = NULL;
    TRY(rv_h5_add(list, path, NULL, RV_H5_FLOAT, tensor->rank, tensor->dim, &item));
    rv_tensor_export(tensor, block, item->data);
out:
    return status;
}

static void tensor_path(const rv_net *net, const rv_tensor *tensor, char path[PATH_MOST]) {
    snprintf(path, PATH_MOST, "/layers/%s/%s", rv_net_layer_name(net, tensor->layer),
             tensor->local);
}

static void slot_path(const rv_tensor *tensor, const char *slot, char path[PATH_MOST]) {
    snprintf(path, PATH_MOST, "/optimizer/%s/%s", tensor->name, slot);
}

/* Layers without tensors are there too, with their parameters. */
static rv_status put_net(rv_h5_list *list, const rv_model_save *model) {
    rv_status status = RV_OK;
    const rv_net *net = model->net;
    char path[PATH_MOST];
    for (int i = 0; i < net->desc->layer_count; i++) {
        const rv_layer_desc *layer = &net->desc->layers[i];
        snprintf(path, sizeof path, "/layers/%s", layer->name);
        TRY(rv_h5_add_text(list, path, "kind", layer->row->name));
        TRY(put_specs(list, path, "", layer->row->specs, layer->options));
    }
    for (int i = 0; i < net->tensor_count; i++) {
        tensor_path(net, &net->tensors[i], path);
        TRY(put_tensor(list, &net->tensors[i], path, model->block));
    }
out:
    return status;
}

/* Slots have the shape of their tensor, so that a checkpoint can be looked at beside the
 * weights. */
static rv_status put_optimizer(rv_h5_list *list, const rv_model_save *model) {
    rv_status status = RV_OK;
    /* Slots are read only here; the interface hands them out for both. */
    rv_optimizer *optimizer = (rv_optimizer *)model->optimizer;
    char path[PATH_MOST];
    if (!optimizer) goto out;
    TRY(rv_h5_add_integer(list, "/progress", "optimizer_step", rv_optimizer_step(optimizer)));
    TRY(rv_h5_add_integer(list, "/progress", "total_steps", rv_optimizer_total(optimizer)));
    for (int slot = 0; slot < rv_optimizer_slots(optimizer); slot++) {
        for (int i = 0; i < model->net->tensor_count; i++) {
            const rv_tensor *tensor = &model->net->tensors[i];
            if (!tensor->trained) continue;
            slot_path(tensor, rv_optimizer_slot_name(optimizer, slot), path);
            TRY(put_tensor(list, tensor, path, rv_optimizer_slot(optimizer, slot)));
        }
    }
out:
    return status;
}

/* The fields of rv_progress by name, for both directions. */
static const struct {
    const char *name;
    size_t offset;
    bool real;
} progress_fields[] = {
    {"step", offsetof(rv_progress, step), false},
    {"epoch", offsetof(rv_progress, epoch), false},
    {"batch_in_epoch", offsetof(rv_progress, batch_in_epoch), false},
    {"best_validation", offsetof(rv_progress, best_validation), true},
    {"best_epoch", offsetof(rv_progress, best_epoch), false},
};
enum { PROGRESS_FIELDS = sizeof progress_fields / sizeof *progress_fields };

/* Without progress the file is a model, not a checkpoint. */
static rv_status put_progress(rv_h5_list *list, const rv_progress *progress) {
    rv_status status = RV_OK;
    for (int i = 0; progress && i < PROGRESS_FIELDS; i++) {
        const char *name = progress_fields[i].name;
        const void *at = (const char *)progress + progress_fields[i].offset;
        TRY(progress_fields[i].real
                ? rv_h5_add_real(list, "/progress", name, *(const double *)at)
                : rv_h5_add_integer(list, "/progress", name, *(const int64_t *)at));
    }
out:
    return status;
}

/* The digest is an attribute like any other and leaves itself out. */
rv_status rv_model_write(const char *path, const char *previous, const rv_model_save *model) {
    rv_status status = RV_OK;
    rv_h5_list list = {0};
    rv_h5_item *text = NULL;
    size_t size = 0, length = strlen(model->config_text);
    char *bytes = NULL, hex[17];
    int count = (int)length;
    TRY(rv_h5_add_text(&list, "/meta", "format", FORMAT));
    TRY(rv_h5_add_integer(&list, "/meta", "version", VERSION));
    TRY(rv_h5_add_text(&list, "/meta", "isa", model->isa ? model->isa : ""));
    TRY(rv_h5_add(&list, "/meta/config", NULL, RV_H5_BYTES, 1, &count, &text));
    memcpy(text->data, model->config_text, length);
    TRY(put_net(&list, model));
    TRY(put_optimizer(&list, model));
    TRY(put_progress(&list, model->progress));
    snprintf(hex, sizeof hex, "%016" PRIx64, digest(&list));
    TRY(rv_h5_add_text(&list, "/meta", "digest", hex));
    TRY(rv_h5_write(&list, path, &bytes, &size));
    TRY(rv_commit(path, previous, bytes, size));
out:
    rv_free(bytes);
    rv_h5_finish(&list);
    return status;
}

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
    char hex[17];
    if (!format || strcmp(format->data, FORMAT) != 0)
        FAIL(RV_DATA, "%s: not a model file of this program", model->name);
    TRY(integer_find(model, "/meta", "version", &version));
    if (version < 1 || version > VERSION)
        FAIL(RV_DATA, "%s: format version %" PRId64 "; this program reads up to %d", model->name,
             version, VERSION);
    model->version = (int)version;
    snprintf(hex, sizeof hex, "%016" PRIx64, digest(&model->list));
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
rv_status rv_model_open(const char *path, rv_model **out) {
    rv_status status = RV_OK;
    rv_model *model = NULL;
    char *bytes = NULL;
    size_t size = 0;
    const rv_h5_item *config;
    TRY(rv_alloc(1, sizeof *model, "a model", &model));
    TRY(rv_strdup(path, &model->name));
    TRY(rv_read_file(path, SIZE_MAX - 1, &bytes, &size));
    TRY(rv_h5_read(bytes, size, path, &model->list));
    TRY(meta_check(model));
    config = rv_h5_find(&model->list, "/meta/config", NULL, RV_H5_BYTES);
    if (!config) FAIL(RV_DATA, "%s: no recipe in it", path);
    TRY(rv_alloc(config->count + 1, 1, "a recipe", &model->config));
    memcpy(model->config, config->data, config->count);
    TRY(tensors_list(model));
    *out = model;
    model = NULL;
out:
    rv_free(bytes);
    rv_model_close(model);
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

/* Written by another optimiser: a slot is missing, which names it. */
static rv_status optimizer_load(const rv_model *model, const rv_net *net, rv_optimizer *optimizer) {
    rv_status status = RV_OK;
    int64_t step = 0;
    char path[PATH_MOST];
    for (int slot = 0; slot < rv_optimizer_slots(optimizer); slot++) {
        for (int i = 0; i < net->tensor_count; i++) {
            if (!net->tensors[i].trained) continue;
            slot_path(&net->tensors[i], rv_optimizer_slot_name(optimizer, slot), path);
            TRY(tensor_load(model, &net->tensors[i], path, rv_optimizer_slot(optimizer, slot)));
        }
    }
    TRY(integer_find(model, "/progress", "optimizer_step", &step));
    rv_optimizer_step_set(optimizer, step);
out:
    return status;
}

/* All fields or none. */
static rv_status progress_load(const rv_model *model, rv_progress *progress) {
    rv_status status = RV_OK;
    for (int i = 0; i < PROGRESS_FIELDS; i++) {
        const char *name = progress_fields[i].name;
        const rv_h5_item *item = rv_h5_find(&model->list, "/progress", name,
                                            progress_fields[i].real ? RV_H5_REAL : RV_H5_INTEGER);
        if (!item || item->count != 1) FAIL(RV_DATA, "%s: /progress has no %s", model->name, name);
        memcpy((char *)progress + progress_fields[i].offset, item->data, rv_h5_size(item));
    }
out:
    return status;
}

/* Tensors the network does not know are as wrong as missing ones: nothing is dropped silently. */
rv_status rv_model_load(const rv_model *model, const rv_net *net, float *block,
                        rv_optimizer *optimizer, rv_progress *progress) {
    rv_status status = RV_OK;
    char path[PATH_MOST];
    for (int i = 0; i < net->tensor_count; i++) {
        tensor_path(net, &net->tensors[i], path);
        TRY(tensor_load(model, &net->tensors[i], path, block));
    }
    if (model->tensor_count != net->tensor_count)
        FAIL(RV_CONFIG, "%s: has %d tensors, the network %d", model->name, model->tensor_count,
             net->tensor_count);
    if (optimizer) TRY(optimizer_load(model, net, optimizer));
    if (progress) TRY(progress_load(model, progress));
out:
    return status;
}
