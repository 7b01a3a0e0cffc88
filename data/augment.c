/*
 * Changes to training samples, drawn anew in every epoch: rows of a table, applied one after the
 * other in the order of the recipe. What is drawn is keyed by (seed, place in the list, epoch,
 * sample), so batches, threads and resuming cannot matter. All frames of a sample move together.
 */
#include "data/reader.h"

#include <string.h>

enum { AUGMENTS_MOST = 16 };

typedef struct augment_row {
    rv_row head;
    /* The planes of one frame, changed as drawn; `empty` is what a byte of 0 becomes. */
    void (*apply)(const void *options, rv_shape shape, const uint32_t draw[4], float empty,
                  const float *from, float *to);
} augment_row;

/* ---- rows -------------------------------------------------------------------------------- */
typedef struct shift_options {
    int pixels;
} shift_options;
typedef struct flip_options {
    double p;
} flip_options;

/* Even over -most..most to within 2^-32 of these counts. */
static int offset_of(uint32_t word, int most) {
    return (int)(((uint64_t)word * (uint64_t)(2 * most + 1)) >> 32) - most;
}

/* What leaves one side does not come in at the other. */
static void shift_apply(const void *options, rv_shape shape, const uint32_t draw[4], float empty,
                        const float *from, float *to) {
    const shift_options *o = options;
    int height = shape.dim[1], width = shape.dim[2];
    int down = offset_of(draw[0], o->pixels), right = offset_of(draw[1], o->pixels);
    for (int c = 0; c < shape.dim[0]; c++)
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) {
                int sy = y - down, sx = x - right;
                bool inside = sy >= 0 && sy < height && sx >= 0 && sx < width;
                to[(c * height + y) * width + x] =
                    inside ? from[(c * height + sy) * width + sx] : empty;
            }
}

static void flip_apply(const void *options, rv_shape shape, const uint32_t draw[4], float empty,
                       const float *from, float *to) {
    const flip_options *o = options;
    int rows = shape.dim[0] * shape.dim[1], width = shape.dim[2];
    bool mirrored = rv_uniform(draw[0]) < (float)o->p;
    (void)empty;
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < width; x++)
            to[y * width + x] = from[y * width + (mirrored ? width - 1 - x : x)];
}

static const rv_spec shift_specs[] = {
    {"pixels", RV_T_INT, offsetof(shift_options, pixels), 2, 0, 1 << 12,
     .sentence = "farthest move along rows and along columns, each drawn evenly; nothing comes in"},
    {.name = NULL},
};
static const rv_spec flip_specs[] = {
    {"p", RV_T_REAL, offsetof(flip_options, p), 0.5, 0, 1, .sentence = "share of samples mirrored"},
    {.name = NULL},
};

static const augment_row rows[] = {
    {{"shift", "moves images by whole pixels", "Simard, Steinkraus, Platt 2003", shift_specs,
      sizeof(shift_options)},
     shift_apply},
    {{"flip", "mirrors images left to right", "torchvision RandomHorizontalFlip", flip_specs,
      sizeof(flip_options)},
     flip_apply},
};

const rv_table *rv_augment_table(void) {
    static const rv_table table = {"augment", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

/* ---- recipe ------------------------------------------------------------------------------ */
/* A list of rows with their parameters, in the order they are applied. */
rv_status rv_augment_keys(rv_config *config, const rv_node *source, rv_node *out) {
    rv_status status = RV_OK;
    rv_data_desc *data = &config->data;
    rv_section in = {config->memory, NULL, "data.augment", {config->path, 1, 1}};
    rv_node *list = NULL;
    TRY(rv_node_find(source, "", "data.augment", &list));
    rv_node_become(out, RV_NODE_LIST);
    if (!list) goto out;
    if (list->kind != RV_NODE_LIST || list->count > AUGMENTS_MOST)
        FAIL_AT(RV_CONFIG, list->where, "data.augment", NULL,
                "\"data.augment\" must be a list of at most %d maps {kind, ...}", AUGMENTS_MOST);
    TRY(rv_pool_get(config->memory, (size_t)list->count, sizeof *data->augment, "augment",
                    &data->augment));
    for (int i = 0; i < list->count; i++) {
        rv_choice *choice = &data->augment[data->augment_count++];
        rv_node *entry = NULL;
        in.node = list->items[i];
        in.where = in.node->where;
        TRY(rv_choice_read(&in, "kind", rv_augment_table(), NULL, NULL, choice));
        TRY(rv_node_add(out, RV_NODE_MAP, NULL, &entry));
        TRY(rv_node_add_text(entry, "kind", choice->row->name, true));
        TRY(rv_specs_write(entry, choice->row->specs, choice->options));
    }
out:
    return status;
}

/* ---- a batch ----------------------------------------------------------------------------- */
rv_status rv_augment_check(const rv_config *config, const rv_source *source) {
    rv_status status = RV_OK;
    char shape[48];
    const rv_node *node = rv_tree_get(rv_tree_get(config->tree, "data"), "augment");
    if (source->shape.rank != 3 || source->spikes)
        FAIL_AT(RV_CONFIG, node->where, "data.augment", NULL,
                "\"data.augment\" needs images of values; the samples are %s of shape %s",
                source->spikes ? "spikes" : "values", rv_shape_text(source->shape, shape));
out:
    return status;
}

void rv_augment_apply(const rv_config *config, const rv_source *source, const rv_batch *batch,
                      float *scratch) {
    const rv_data_desc *data = &config->data;
    const rv_values *values = &batch->input.values;
    size_t units = (size_t)values->n;
    int frames = values->stride_t ? values->T : 1;
    float empty = (0.0f - (float)data->mean) / (float)data->std;
    for (int k = 0; k < data->augment_count; k++) {
        const augment_row *row = (const augment_row *)data->augment[k].row;
        for (int b = 0; b < batch->B; b++) {
            uint32_t draw[4];
            rv_random4(draw, config->seed, RV_FOR_AUGMENT, k, batch->epoch,
                       (uint32_t)batch->sample[b], 0, 0);
            for (int t = 0; t < frames; t++) {
                float *frame =
                    values->data + (size_t)t * values->stride_t + (size_t)b * (size_t)values->ld;
                memcpy(scratch, frame, units * sizeof *frame);
                row->apply(data->augment[k].options, source->shape, draw, empty, scratch, frame);
            }
        }
    }
}
