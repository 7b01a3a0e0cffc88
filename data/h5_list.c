/* The contents of an HDF5 file as a list, on which h5.c works: nothing of HDF5 itself is here. */
#include "data/h5.h"

#include <string.h>

/* ---- lists ------------------------------------------------------------------------------- */
static const size_t sizes[] = {[RV_H5_FLOAT] = sizeof(float),
                               [RV_H5_BYTES] = 1,
                               [RV_H5_REAL] = sizeof(double),
                               [RV_H5_INTEGER] = sizeof(int64_t),
                               [RV_H5_TEXT] = 1};

size_t rv_h5_width(rv_h5_type type) {
    return sizes[type];
}

size_t rv_h5_size(const rv_h5_item *item) {
    return item->count * sizes[item->type];
}

/* An item of that name and shape, without data. */
static rv_status append(rv_h5_list *list, const char *path, const char *attribute, rv_h5_type type,
                        int rank, const int *dim) {
    rv_status status = RV_OK;
    rv_h5_item *items = NULL, *item;
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 32;
        TRY(rv_alloc((size_t)room, sizeof *items, "a list of arrays", &items));
        if (list->count) memcpy(items, list->items, (size_t)list->count * sizeof *items);
        rv_free(list->items);
        list->items = items;
        list->room = room;
    }
    item = &list->items[list->count++]; /* from here rv_h5_finish frees what it holds */
    *item = (rv_h5_item){.type = type, .rank = rank, .count = 1};
    for (int i = 0; i < rank; i++) {
        item->dim[i] = dim[i];
        TRY(rv_size_mul(item->count, (size_t)dim[i], &item->count));
    }
    TRY(rv_strdup(path, &item->path));
    if (attribute) TRY(rv_strdup(attribute, &item->attribute));
out:
    return status;
}

/* One element more than asked for is allocated, so that text read back ends with a NUL. */
rv_status rv_h5_add(rv_h5_list *list, const char *path, const char *attribute, rv_h5_type type,
                    int rank, const int *dim, rv_h5_item **out) {
    rv_status status = RV_OK;
    rv_h5_item *item;
    TRY(append(list, path, attribute, type, rank, dim));
    item = &list->items[list->count - 1];
    TRY(rv_alloc(item->count + 1, sizes[type], path, &item->data));
    *out = item;
out:
    return status;
}

rv_status rv_h5_add_like(rv_h5_list *list, const char *path, int rank, const int *dim,
                         const rv_h5_item *like) {
    rv_status status = RV_OK;
    rv_h5_item *item;
    TRY(append(list, path, NULL, like->type, rank, dim));
    item = &list->items[list->count - 1];
    item->view = like->view;
    item->fill = like->fill, item->of = like->of, item->from = like->from;
out:
    return status;
}

rv_status rv_h5_data(const rv_h5_item *item, const void **data, void **made) {
    rv_status status = RV_OK;
    *made = NULL;
    *data = item->data ? item->data : item->view;
    if (*data) goto out;
    TRY(rv_alloc(item->count, sizes[item->type], item->path, made));
    item->fill(item->of, item->from, *made);
    *data = *made;
out:
    return status;
}

/* Stored at its own length, without a NUL, as other languages expect. */
rv_status rv_h5_add_text(rv_h5_list *list, const char *path, const char *attribute,
                         const char *text) {
    rv_status status = RV_OK;
    rv_h5_item *item = NULL;
    int length = (int)strlen(text);
    TRY(rv_h5_add(list, path, attribute, RV_H5_TEXT, 1, &length, &item));
    memcpy(item->data, text, (size_t)length);
    item->rank = 0; /* one string, as long as its text */
out:
    return status;
}

rv_status rv_h5_add_integer(rv_h5_list *list, const char *path, const char *attribute,
                            int64_t value) {
    rv_status status = RV_OK;
    rv_h5_item *item = NULL;
    TRY(rv_h5_add(list, path, attribute, RV_H5_INTEGER, 0, NULL, &item));
    memcpy(item->data, &value, sizeof value);
out:
    return status;
}

rv_status rv_h5_add_real(rv_h5_list *list, const char *path, const char *attribute, double value) {
    rv_status status = RV_OK;
    rv_h5_item *item = NULL;
    TRY(rv_h5_add(list, path, attribute, RV_H5_REAL, 0, NULL, &item));
    memcpy(item->data, &value, sizeof value);
out:
    return status;
}

/* Linear: a file holds some hundred items, and each is looked for once. */
const rv_h5_item *rv_h5_find(const rv_h5_list *list, const char *path, const char *attribute,
                             rv_h5_type type) {
    for (int i = 0; i < list->count; i++) {
        const rv_h5_item *item = &list->items[i];
        if (item->type == type && strcmp(item->path, path) == 0 && !item->attribute == !attribute &&
            (!attribute || strcmp(item->attribute, attribute) == 0))
            return item;
    }
    return NULL;
}

void rv_h5_drop_last(rv_h5_list *list) {
    rv_h5_item *item = &list->items[--list->count];
    rv_free(item->path);
    rv_free(item->attribute);
    rv_free(item->data);
}

void rv_h5_finish(rv_h5_list *list) {
    while (list->count)
        rv_h5_drop_last(list);
    rv_free(list->items);
    *list = (rv_h5_list){0};
}
