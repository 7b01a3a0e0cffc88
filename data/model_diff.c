/* Comparing two model files: the first place where they differ, to the bit. */
#include "data/model.h"

#include <stdio.h>
#include <string.h>

/* What a path of the file is called outside: the layer's name first. */
static void name_of(const rv_h5_item *item, char name[2 * RV_NAME_MAX + 64]) {
    const char *last = strrchr(item->path, '/');
    if (item->attribute)
        snprintf(name, 2 * RV_NAME_MAX + 64, "%.120s.%.60s", item->path + 1, item->attribute);
    else if (strncmp(item->path, "/layers/", 8) == 0)
        snprintf(name, 2 * RV_NAME_MAX + 64, "%.*s.%.60s", (int)(last - item->path - 8),
                 item->path + 8, last + 1);
    else
        snprintf(name, 2 * RV_NAME_MAX + 64, "%.180s",
                 item->path + (last == item->path ? 1 : strlen("/optimizer/")));
}

/* Does an array count? Of one layer: its tensors alone; else state too, where both have some. */
static bool counts(const rv_h5_item *item, const char *layer, bool state) {
    size_t length = layer ? strlen(layer) : 0;
    if (strncmp(item->path, "/layers/", 8) == 0)
        return !item->attribute && (!layer || (strncmp(item->path + 8, layer, length) == 0 &&
                                               item->path[8 + length] == '/'));
    if (layer || !state) return false;
    if (item->attribute) /* two logs of the same training differ in their times */
        return strcmp(item->path, "/progress") == 0 && strcmp(item->attribute, "metrics") != 0;
    return strncmp(item->path, "/optimizer/", 11) == 0 || strcmp(item->path, "/versions") == 0;
}

/* As a number for people and as bits for those who must know. */
static void value_of(const rv_h5_item *item, size_t at, double *value, uint64_t *bits) {
    float single;
    int64_t whole;
    uint32_t word;
    switch (item->type) {
    case RV_H5_FLOAT:
        memcpy(&single, (const float *)item->data + at, sizeof single);
        memcpy(&word, &single, sizeof word);
        *value = (double)single, *bits = word;
        break;
    case RV_H5_INTEGER:
        memcpy(&whole, (const int64_t *)item->data + at, sizeof whole);
        *value = (double)whole, *bits = (uint64_t)whole;
        break;
    default: /* RV_H5_REAL: nothing else is compared */
        memcpy(value, (const double *)item->data + at, sizeof *value);
        memcpy(bits, (const double *)item->data + at, sizeof *bits);
    }
}

/* Bits, not numbers: 0 and -0 differ, and a NAN is equal to itself. */
static bool item_differs(const rv_h5_item *a, const rv_h5_item *b, rv_model_difference *out) {
    size_t size = a->type == RV_H5_FLOAT ? sizeof(float) : sizeof(double), at = 0;
    out->wide = a->type != RV_H5_FLOAT;
    out->what = "shape";
    if (a->rank != b->rank || memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) != 0)
        return true;
    if (memcmp(a->data, b->data, a->count * size) == 0) return false;
    while (memcmp((const char *)a->data + at * size, (const char *)b->data + at * size, size) == 0)
        at++;
    out->what = "value";
    out->rank = a->rank;
    value_of(a, at, &out->a, &out->bits_a);
    value_of(b, at, &out->b, &out->bits_b);
    for (int i = a->rank - 1; i >= 0; i--) {
        out->index[i] = (int)(at % (size_t)a->dim[i]);
        at /= (size_t)a->dim[i];
    }
    return true;
}

/* In the order of the file, which is that of names: layers come first. */
bool rv_model_differs(const rv_model *a, const rv_model *b, const char *layer,
                      rv_model_difference *out, int *compared) {
    int64_t horizon;
    bool state = rv_model_checkpoint(a, &horizon) && rv_model_checkpoint(b, &horizon);
    *out = (rv_model_difference){0};
    *compared = 0;
    for (int side = 0; side < 2; side++) { /* then what only the second has */
        const rv_h5_list *list = side ? &b->list : &a->list;
        const rv_h5_list *others = side ? &a->list : &b->list;
        for (int i = 0; i < list->count; i++) {
            const rv_h5_item *item = &list->items[i];
            if (!counts(item, layer, state)) continue;
            const rv_h5_item *other = rv_h5_find(others, item->path, item->attribute, item->type);
            name_of(item, out->name);
            out->what = side ? "only in the second" : "only in the first";
            if (!other) return true;
            if (side) continue;
            ++*compared;
            if (item_differs(item, other, out)) return true;
        }
    }
    *out = (rv_model_difference){0};
    return false;
}
