/*
 * Inside data/: an HDF5 file as a flat list of named arrays, so that HDF5 stays in h5.c. A group
 * exists where something lies below it.
 */
#ifndef RV_DATA_H5_H
#define RV_DATA_H5_H

#include "data/data.h"

typedef enum rv_h5_type {
    RV_H5_FLOAT,
    RV_H5_BYTES,
    RV_H5_REAL,
    RV_H5_INTEGER,
    RV_H5_TEXT
} rv_h5_type;

/* A dataset (FLOAT, BYTES) or, with `attribute` set, an attribute of the group at `path` (REAL,
 * INTEGER, TEXT). rank 0: one value. TEXT: `count` bytes without a NUL; read back, one follows. */
typedef struct rv_h5_item {
    char *path, *attribute;
    rv_h5_type type;
    int rank, dim[4];
    size_t count;     /* elements */
    void *data;       /* owned; NULL: one of the two below */
    const void *view; /* the caller's, who keeps it */
    /* Made of the caller's whenever it is needed, so that a list of large arrays holds none. */
    void (*fill)(const void *of, const float *from, void *data);
    const void *of;
    const float *from;
} rv_h5_item;

typedef struct rv_h5_list { /* a zeroed one is empty */
    rv_h5_item *items;
    int count, room;
} rv_h5_list;

/* Append an item; its data (rv_h5_size bytes, zeroed) is to be filled by the caller. */
RV_CHECKED rv_status rv_h5_add(rv_h5_list *list, const char *path, const char *attribute,
                               rv_h5_type type, int rank, const int *dim, rv_h5_item **out);
/* Append a dataset that is a view, or made by `fill`: `like` says which. */
RV_CHECKED rv_status rv_h5_add_like(rv_h5_list *list, const char *path, int rank, const int *dim,
                                    const rv_h5_item *like);
RV_CHECKED rv_status rv_h5_add_text(rv_h5_list *list, const char *path, const char *attribute,
                                    const char *text);
RV_CHECKED rv_status rv_h5_add_integer(rv_h5_list *list, const char *path, const char *attribute,
                                       int64_t value);
RV_CHECKED rv_status rv_h5_add_real(rv_h5_list *list, const char *path, const char *attribute,
                                    double value);
/* The item's data; *made: NULL, or what of it was made now (rv_free). */
RV_CHECKED rv_status rv_h5_data(const rv_h5_item *item, const void **data, void **made);
size_t rv_h5_size(const rv_h5_item *item); /* bytes */
size_t rv_h5_width(rv_h5_type type);       /* of one element */
/* NULL: none of that name and type. */
const rv_h5_item *rv_h5_find(const rv_h5_list *list, const char *path, const char *attribute,
                             rv_h5_type type);
void rv_h5_drop_last(rv_h5_list *list); /* the newest item */
void rv_h5_finish(rv_h5_list *list);

/* The list as the bytes of an HDF5 file (rv_free): newest format, every dataset chunked with
 * Fletcher32. `name` for messages. RV_CONFIG in a build without HDF5. */
RV_CHECKED rv_status rv_h5_write(const rv_h5_list *list, const char *name, char **bytes,
                                 size_t *size);
/* Every item of an HDF5 file held in memory. Only what rv_h5_write makes is taken: groups, datasets
 * of float32 and bytes, attributes of one value or a list. RV_DATA: damaged or something else. */
RV_CHECKED rv_status rv_h5_read(const char *bytes, size_t size, const char *name, rv_h5_list *list);

/* A new file at `path` with the dataset /NAME, bytes [rows][columns] in one piece, whose contents
 * are not written: its place in the file, for those who write and read it without HDF5. The file's
 * end is set, disk space is taken when it is written to. RV_CREATE; RV_CONFIG in a build without
 * HDF5. */
RV_CHECKED rv_status rv_h5_reserve(const char *path, const char *name, size_t rows, size_t columns,
                                   uint64_t *offset);

#endif
