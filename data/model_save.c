/*
 * Writing model and checkpoint files: what of a network, an optimiser and a training run goes into
 * which array (README, "Model files"), on top of h5.c and commit.c.
 */
#include "data/model.h"
#include "data/reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum { SLOTS = 4 /* arrays an optimiser keeps beside the weights, at most */, TEXTS = 4 };

/* What goes into a file, borrowed from a running training or from a copy of it. */
typedef struct content {
    const rv_net *net;
    const float *block;
    int slots;
    const char *slot_name[SLOTS];
    const float *slot[SLOTS];
    int64_t step, total;
    rv_plateau plateau;
    const rv_progress *progress; /* may be NULL */
    const char *config_text, *isa, *resume_digest;
    const float *health;
    int health_count;
    const float *versions;
    size_t version_count;
    const char *delay;
} content;

/* ---- digest ------------------------------------------------------------------------------ */
/* A sum over items, so that the order in which a file lists them does not matter. CRC-32 for the
 * bulk of the bytes, as it runs at memory speed; names and shapes are few and get the longer
 * hash. */
rv_status rv_model_sum(const rv_h5_list *list, uint64_t *out) {
    rv_status status = RV_OK;
    uint64_t sum = 0;
    for (int i = 0; i < list->count; i++) {
        const rv_h5_item *item = &list->items[i];
        uint64_t hash = rv_hash_text(RV_HASH_START, item->path);
        const void *data;
        void *made;
        if (item->attribute && strcmp(item->attribute, "digest") == 0) continue;
        TRY(rv_h5_data(item, &data, &made));
        uLong crc = crc32_z(crc32(0, NULL, 0), data, rv_h5_size(item));
        rv_free(made);
        hash = rv_hash_text(hash, item->attribute ? item->attribute : "");
        hash = rv_hash(hash, &item->type, sizeof item->type);
        hash = rv_hash(hash, item->dim, (size_t)item->rank * sizeof *item->dim);
        sum += rv_hash(hash, &crc, sizeof crc);
    }
    *out = sum;
out:
    return status;
}

/* ---- names ------------------------------------------------------------------------------- */
void rv_model_tensor_path(const rv_net *net, const rv_tensor *tensor, char path[RV_MODEL_PATH]) {
    snprintf(path, RV_MODEL_PATH, "/layers/%s/%s", rv_net_layer_name(net, tensor->layer),
             tensor->local);
}

void rv_model_slot_path(const rv_tensor *tensor, const char *slot, char path[RV_MODEL_PATH]) {
    snprintf(path, RV_MODEL_PATH, "/optimizer/%s/%s", tensor->name, slot);
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

/* ---- progress ---------------------------------------------------------------------------- */
#define FIELD(name, real)                                                                          \
    { #name, offsetof(rv_progress, name), real }
const rv_model_field rv_progress_fields[] = {
    FIELD(step, false),           FIELD(epoch, false),
    FIELD(batch_in_epoch, false), FIELD(best_validation, true),
    FIELD(best_epoch, false),     FIELD(best_test, true),
    FIELD(last_test, true),       FIELD(shown_validation, true),
    FIELD(shown_test, true),      FIELD(epoch_loss, true),
    FIELD(epoch_correct, false),  FIELD(epoch_samples, false),
    FIELD(metrics, false),        {NULL, 0, false},
};
const rv_model_field rv_plateau_fields[] = {
    {"plateau_scale", offsetof(rv_plateau, scale), true},
    {"plateau_best", offsetof(rv_plateau, best), true},
    {"plateau_bad", offsetof(rv_plateau, bad), false},
    {NULL, 0, false},
};

/* By name and not by place, so that fields may be added. */
static rv_status put_fields(rv_h5_list *list, const rv_model_field *field, const void *from) {
    rv_status status = RV_OK;
    for (; field->name; field++) {
        const void *at = (const char *)from + field->offset;
        TRY(field->real ? rv_h5_add_real(list, "/progress", field->name, *(const double *)at)
                        : rv_h5_add_integer(list, "/progress", field->name, *(const int64_t *)at));
    }
out:
    return status;
}

/* ---- writing ----------------------------------------------------------------------------- */
/* In PyTorch's axis order and without padding, whatever the layout in memory. */
static void tensor_fill(const void *tensor, const float *block, void *data) {
    rv_tensor_export(tensor, block, data);
}

/* One after the other when they are written: a file in the making holds them all already. */
static rv_status put_tensor(rv_h5_list *list, const rv_tensor *tensor, const char *path,
                            const float *block) {
    const rv_h5_item like = {.type = RV_H5_FLOAT, .fill = tensor_fill, .of = tensor, .from = block};
    return rv_h5_add_like(list, path, tensor->rank, tensor->dim, &like);
}

static rv_status put_floats(rv_h5_list *list, const char *path, int count, const float *floats) {
    const rv_h5_item like = {.type = RV_H5_FLOAT, .view = floats};
    return rv_h5_add_like(list, path, 1, &count, &like);
}

/* Layers without tensors are there too, with their parameters. */
static rv_status put_net(rv_h5_list *list, const content *what) {
    rv_status status = RV_OK;
    const rv_net *net = what->net;
    char path[RV_MODEL_PATH];
    for (int i = 0; i < net->desc->layer_count; i++) {
        const rv_layer_desc *layer = &net->desc->layers[i];
        snprintf(path, sizeof path, "/layers/%s", layer->name);
        TRY(rv_h5_add_text(list, path, "kind", layer->row->name));
        TRY(put_specs(list, path, "", layer->row->specs, layer->options));
    }
    for (int i = 0; i < net->tensor_count; i++) {
        rv_model_tensor_path(net, &net->tensors[i], path);
        TRY(put_tensor(list, &net->tensors[i], path, what->block));
    }
out:
    return status;
}

/* Slots have the shape of their tensor, so that a checkpoint can be looked at beside the
 * weights. */
static rv_status put_optimizer(rv_h5_list *list, const content *what) {
    rv_status status = RV_OK;
    char path[RV_MODEL_PATH];
    TRY(rv_h5_add_integer(list, "/progress", "optimizer_step", what->step));
    TRY(rv_h5_add_integer(list, "/progress", "total_steps", what->total));
    TRY(put_fields(list, rv_plateau_fields, &what->plateau));
    for (int slot = 0; slot < what->slots; slot++) {
        for (int i = 0; i < what->net->tensor_count; i++) {
            const rv_tensor *tensor = &what->net->tensors[i];
            if (!tensor->trained) continue;
            rv_model_slot_path(tensor, what->slot_name[slot], path);
            TRY(put_tensor(list, tensor, path, what->slot[slot]));
        }
    }
out:
    return status;
}

/* What every file has: weights and progress; without progress it is a model, not a checkpoint. */
static rv_status put_model(rv_h5_list *list, const content *what) {
    rv_status status = RV_OK;
    rv_h5_item *text = NULL;
    size_t length = strlen(what->config_text);
    int count = (int)length;
    TRY(rv_h5_add_text(list, "/meta", "format", RV_MODEL_FORMAT));
    TRY(rv_h5_add_integer(list, "/meta", "version", RV_MODEL_VERSION));
    TRY(rv_h5_add_text(list, "/meta", "isa", what->isa ? what->isa : ""));
    if (what->resume_digest)
        TRY(rv_h5_add_text(list, "/meta", "resume_digest", what->resume_digest));
    TRY(rv_h5_add(list, "/meta/config", NULL, RV_H5_BYTES, 1, &count, &text));
    memcpy(text->data, what->config_text, length);
    TRY(put_net(list, what));
    if (what->progress) TRY(put_fields(list, rv_progress_fields, what->progress));
out:
    return status;
}

/* Delayed stages go on from the versions that passes have still to read. */
static rv_status put_versions(rv_h5_list *list, const content *what) {
    rv_status status = RV_OK;
    const int count = (int)what->version_count;
    if (what->version_count > INT32_MAX)
        FAIL(RV_RESOURCE, "versions of weights of %zu values: a file holds at most 2^31 of them",
             what->version_count);
    TRY(rv_h5_add_text(list, "/meta", "delay", what->delay));
    TRY(put_floats(list, "/versions", count, what->versions));
out:
    return status;
}

/* What training needs to go on, beside the model. */
static rv_status put_training(rv_h5_list *list, const content *what) {
    rv_status status = RV_OK;
    TRY(put_optimizer(list, what));
    if (what->health) TRY(put_floats(list, "/progress/health", what->health_count, what->health));
    if (what->versions) TRY(put_versions(list, what));
out:
    return status;
}

/* The digest is an attribute like any other and leaves itself out; `sum` grows by the items from
 * `*summed` on, so that what two files share is summed once. */
static rv_status list_write(rv_h5_list *list, int *summed, uint64_t *sum, const char *path,
                            const char *previous) {
    rv_status status = RV_OK;
    rv_h5_list rest = {.items = list->items + *summed, .count = list->count - *summed};
    size_t size = 0;
    char *bytes = NULL, hex[17];
    uint64_t added;
    TRY(rv_model_sum(&rest, &added));
    *sum += added;
    snprintf(hex, sizeof hex, "%016" PRIx64, *sum);
    TRY(rv_h5_add_text(list, "/meta", "digest", hex));
    TRY(rv_h5_write(list, path, &bytes, &size));
    TRY(rv_commit(path, previous, bytes, size));
    rv_h5_drop_last(list); /* a longer list gets another digest */
    *summed = list->count;
out:
    rv_free(bytes);
    return status;
}

/* The model alone, then with what training needs; a path that is NULL is left out. What
 * both files have is listed once. */
static rv_status content_write(const content *what, const char *model, const char *checkpoint,
                               const char *previous) {
    rv_status status = RV_OK;
    rv_h5_list list = {0};
    uint64_t sum = 0;
    int summed = 0;
    TRY(put_model(&list, what));
    if (model) TRY(list_write(&list, &summed, &sum, model, checkpoint ? NULL : previous));
    if (checkpoint) {
        TRY(put_training(&list, what));
        TRY(list_write(&list, &summed, &sum, checkpoint, previous));
    }
out:
    rv_h5_finish(&list);
    return status;
}

/* ---- for the caller ---------------------------------------------------------------------- */
/* Views of the caller's arrays; the optimiser hands its slots out for reading and writing. */
static content content_of(const rv_model_save *model) {
    rv_optimizer *optimizer = (rv_optimizer *)model->optimizer;
    content what = {.net = model->net,
                    .block = model->block,
                    .progress = model->progress,
                    .config_text = model->config_text,
                    .isa = model->isa,
                    .resume_digest = model->resume_digest,
                    .health = model->health,
                    .health_count = model->health_count,
                    .versions = model->versions,
                    .version_count = model->version_count,
                    .delay = model->delay};
    if (!optimizer) return what;
    what.step = rv_optimizer_step(optimizer);
    what.total = rv_optimizer_total(optimizer);
    what.plateau = *rv_optimizer_plateau(optimizer);
    what.slots = rv_optimizer_slots(optimizer);
    for (int i = 0; i < what.slots; i++) {
        what.slot_name[i] = rv_optimizer_slot_name(optimizer, i);
        what.slot[i] = rv_optimizer_slot(optimizer, i);
    }
    return what;
}

rv_status rv_model_write(const char *path, const char *previous, const rv_model_save *model) {
    content what = content_of(model);
    bool training = model->optimizer != NULL;
    return content_write(&what, training ? NULL : path, training ? path : NULL, previous);
}

/* ---- snapshots --------------------------------------------------------------------------- */
struct rv_snapshot {
    content what; /* its arrays are those below */
    rv_progress progress;
    float *block, *slot[SLOTS], *health, *versions;
    char *texts[TEXTS];
};

/* All memory that saving takes on the training thread's behalf is taken here, once. */
rv_status rv_snapshot_create(const rv_model_save *model, rv_snapshot **out) {
    rv_status status = RV_OK;
    rv_snapshot *s = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *s, "a copy for checkpoints", &s));
    s->what = content_of(model);
    TRY(rv_alloc(model->net->n_all, sizeof(float), "a copy for checkpoints", &s->block));
    for (int i = 0; i < s->what.slots; i++)
        TRY(rv_alloc(model->net->n_trained, sizeof(float), "a copy for checkpoints", &s->slot[i]));
    TRY(rv_alloc((size_t)model->health_count, sizeof(float), "a copy for checkpoints", &s->health));
    TRY(rv_alloc(model->version_count, sizeof(float), "a copy for checkpoints", &s->versions));
    rv_snapshot_drop(s);
    TRY(rv_strdup(model->config_text, &s->texts[0]));
    TRY(rv_strdup(model->isa ? model->isa : "", &s->texts[1]));
    TRY(rv_strdup(model->resume_digest ? model->resume_digest : "", &s->texts[2]));
    TRY(rv_strdup(model->delay ? model->delay : "", &s->texts[3]));
    s->what.delay = s->texts[3];
    s->what.config_text = s->texts[0];
    s->what.isa = s->texts[1];
    s->what.resume_digest = model->resume_digest ? s->texts[2] : NULL;
    *out = s;
    s = NULL;
out:
    rv_snapshot_destroy(s);
    return status;
}

/* Copies of memory in memory's own order: the order of files is made by whoever writes. */
void rv_snapshot_take(rv_snapshot *s, const rv_model_save *model) {
    content now = content_of(model);
    memcpy(s->block, now.block, now.net->n_all * sizeof *s->block);
    for (int i = 0; i < now.slots; i++)
        memcpy(s->slot[i], now.slot[i], now.net->n_trained * sizeof *s->block);
    if (now.health) memcpy(s->health, now.health, (size_t)now.health_count * sizeof *s->health);
    s->what.health = now.health ? s->health : NULL;
    if (now.versions) memcpy(s->versions, now.versions, now.version_count * sizeof *s->versions);
    s->what.versions = now.versions ? s->versions : NULL;
    s->progress = *model->progress;
    s->what.step = now.step, s->what.total = now.total, s->what.plateau = now.plateau;
    s->what.block = s->block;
    s->what.progress = &s->progress;
    for (int i = 0; i < now.slots; i++)
        s->what.slot[i] = s->slot[i];
}

/* Most of a run passes between two saves. */
void rv_snapshot_drop(rv_snapshot *s) {
    rv_idle(s->block, s->what.net->n_all * sizeof *s->block);
    for (int i = 0; i < s->what.slots; i++)
        rv_idle(s->slot[i], s->what.net->n_trained * sizeof *s->block);
    rv_idle(s->versions, s->what.version_count * sizeof *s->versions);
}

rv_status rv_snapshot_write(const rv_snapshot *s, const char *model, const char *checkpoint,
                            const char *previous) {
    return content_write(&s->what, model, checkpoint, previous);
}

/* Checksums, names and attributes are few beside the arrays. */
size_t rv_snapshot_bytes(const rv_snapshot *s, bool optimizer) {
    const rv_net *net = s->what.net;
    size_t state = (size_t)s->what.slots * net->n_trained + s->what.version_count;
    size_t floats = net->n_all + (optimizer ? state : 0);
    size_t arrays = (size_t)net->tensor_count * (size_t)(optimizer ? 1 + s->what.slots : 1);
    return floats * sizeof(float) + floats / 64 + strlen(s->what.config_text) +
           2048 * (arrays + (size_t)net->layer_count) + 16384;
}

void rv_snapshot_destroy(rv_snapshot *s) {
    if (!s) return;
    for (int i = 0; i < TEXTS; i++)
        rv_free(s->texts[i]);
    for (int i = 0; i < SLOTS; i++)
        rv_free(s->slot[i]);
    rv_free(s->versions);
    rv_free(s->health);
    rv_free(s->block);
    rv_free(s);
}
