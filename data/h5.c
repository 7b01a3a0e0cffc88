/*
 * The only caller of HDF5 for our own files. Files that last are built and read as images in memory
 * (core driver), because HDF5 writing in place loses files at a crash and hides a full disk. Newest
 * format: its metadata carry checksums, Fletcher32 guards the data. Of files that end with the run
 * HDF5 writes the frame alone.
 */
#include "data/h5.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef RV_HDF5
#include <hdf5.h>
#endif

#ifndef RV_HDF5

bool rv_h5_available(void) {
    return false;
}

rv_status rv_h5_write(const rv_h5_list *list, const char *name, char **bytes, size_t *size) {
    (void)list, (void)bytes, (void)size;
    return rv_fail(RV_CONFIG, "%s: this program was built without HDF5 and has no model files",
                   name);
}

rv_status rv_h5_reserve(const char *path, const char *name, size_t rows, size_t columns,
                        uint64_t *offset) {
    (void)name, (void)rows, (void)columns, (void)offset;
    return rv_fail(RV_CONFIG, "%s: this program was built without HDF5 and has no such files",
                   path);
}

/* On failure the list holds what had been read; the caller frees it either way. */
rv_status rv_h5_read(const char *bytes, size_t size, const char *name, rv_h5_list *list) {
    (void)bytes, (void)size, (void)list;
    return rv_fail(RV_CONFIG, "%s: this program was built without HDF5 and has no model files",
                   name);
}

#else

enum {
    CHUNK_MOST = 1 << 20, /* bytes of a chunk: what one checksum guards */
    DEPTH_MOST = 8,
    ITEMS_MOST = 1 << 16,
    TEXT_MOST = 4096, /* bytes of a text attribute */
};

bool rv_h5_available(void) {
    return true;
}

/* HDF5's own description of what went wrong, innermost first, as far as it fits. Called for each
 * entry of the stack; the first is the deepest and says most. */
static herr_t error_walk(unsigned n, const H5E_error2_t *error, void *text) {
    if (n == 0 && error->desc) snprintf(text, 200, "%s", error->desc);
    return 0;
}

/* The stack is cleared, so that a later message does not repeat an old reason. */
static rv_status fail_h5(rv_status status, const char *name, const char *what, const char *path) {
    char text[200] = "no reason given";
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, error_walk, text);
    (void)H5Eclear2(H5E_DEFAULT);
    return rv_fail(status, "%s: cannot %s %s: %s", name, what, path, text);
}

/* No plug-ins (a file must not load code), no printing. Done before every use: it is cheap, and
 * both are state of the library or thread. H5open first: before it the constants of types have
 * no values. */
static rv_status library_init(const char *name) {
    rv_status status = RV_OK;
    if (H5open() < 0 || H5PLset_loading_state(0) < 0 || H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0)
        status = rv_fail(RV_INTERNAL, "%s: the HDF5 library does not start", name);
    return status;
}

/* A type as it lies in the file: little endian, whatever this machine is. */
static hid_t file_type(rv_h5_type type) {
    switch (type) {
    case RV_H5_FLOAT:
        return H5T_IEEE_F32LE;
    case RV_H5_BYTES:
        return H5T_STD_U8LE;
    case RV_H5_REAL:
        return H5T_IEEE_F64LE;
    case RV_H5_INTEGER:
        return H5T_STD_I64LE;
    case RV_H5_TEXT:
        break;
    }
    return H5I_INVALID_HID; /* made for its length */
}

static hid_t memory_type(rv_h5_type type) {
    switch (type) {
    case RV_H5_FLOAT:
        return H5T_NATIVE_FLOAT;
    case RV_H5_BYTES:
        return H5T_NATIVE_UINT8;
    case RV_H5_REAL:
        return H5T_NATIVE_DOUBLE;
    case RV_H5_INTEGER:
        return H5T_NATIVE_INT64;
    case RV_H5_TEXT:
        break;
    }
    return H5I_INVALID_HID;
}

/* NUL-padded rather than terminated: every character of the text counts. */
static hid_t text_type(size_t length) {
    hid_t type = H5Tcopy(H5T_C_S1);
    /* A string of no characters is stored as one NUL. */
    if (type >= 0 &&
        (H5Tset_size(type, length ? length : 1) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0)) {
        (void)H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

/* For files in memory: without backing store the core driver opens none, and the file's name is a
 * label only. */
static hid_t memory_access(void) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access >= 0 &&
        (H5Pset_fapl_core(access, CHUNK_MOST, 0) < 0 ||
         H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) < 0 ||
         H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) < 0)) { /* nothing outlives the file */
        (void)H5Pclose(access);
        return H5I_INVALID_HID;
    }
    return access;
}

/* ---- writing ----------------------------------------------------------------------------- */
/* Fletcher32 is a filter, and filters need chunks. */
static hid_t chunked(const rv_h5_item *item, const hsize_t *dim) {
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[4], bytes = rv_h5_width(item->type);
    if (create < 0) return create;
    /* Whole inner axes, then as many outer ones as fit. */
    for (int i = item->rank - 1; i >= 0; i--) {
        hsize_t fit = CHUNK_MOST / bytes;
        chunk[i] = dim[i] < fit ? dim[i] : fit;
        if (chunk[i] < 1) chunk[i] = 1;
        bytes *= chunk[i];
    }
    if (H5Pset_chunk(create, item->rank, chunk) < 0 || H5Pset_fletcher32(create) < 0) {
        (void)H5Pclose(create);
        return H5I_INVALID_HID;
    }
    return create;
}

/* Groups on the way are made by HDF5 itself. */
static rv_status dataset_write(hid_t file, const rv_h5_item *item, const char *name) {
    rv_status status = RV_OK;
    hsize_t dim[4];
    hid_t space = H5I_INVALID_HID, create = H5I_INVALID_HID, links = H5I_INVALID_HID,
          data = H5I_INVALID_HID;
    herr_t closed = 0;
    const void *values;
    void *made = NULL;
    for (int i = 0; i < item->rank; i++)
        dim[i] = (hsize_t)item->dim[i];
    space = H5Screate_simple(item->rank, dim, NULL);
    create = chunked(item, dim);
    links = H5Pcreate(H5P_LINK_CREATE);
    if (space < 0 || create < 0 || links < 0 || H5Pset_create_intermediate_group(links, 1) < 0)
        TRY(fail_h5(RV_INTERNAL, name, "describe", item->path));
    TRY(rv_h5_data(item, &values, &made));
    data = H5Dcreate2(file, item->path, file_type(item->type), space, links, create, H5P_DEFAULT);
    if (data < 0 ||
        H5Dwrite(data, memory_type(item->type), H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)
        TRY(fail_h5(RV_INTERNAL, name, "write", item->path));
out:
    /* H5Dclose is where HDF5 tells of chunks it could not write. */
    if (data >= 0) closed = H5Dclose(data);
    if (closed < 0 && status == RV_OK) status = fail_h5(RV_INTERNAL, name, "close", item->path);
    if (links >= 0) (void)H5Pclose(links);
    if (create >= 0) (void)H5Pclose(create);
    if (space >= 0) (void)H5Sclose(space);
    rv_free(made);
    return status;
}

/* The group at an absolute path, with those around it. Several attributes hang on one group, so
 * it may be there. */
static rv_status group_make(hid_t file, const char *path, const char *name) {
    rv_status status = RV_OK;
    hid_t links = H5Pcreate(H5P_LINK_CREATE), group = H5I_INVALID_HID;
    if (links < 0 || H5Pset_create_intermediate_group(links, 1) < 0)
        TRY(fail_h5(RV_INTERNAL, name, "make", path));
    /* Absent ones make H5Lexists fail on the way there: that is not an error here. */
    if (strcmp(path, "/") == 0 || H5Lexists(file, path, H5P_DEFAULT) > 0) goto out;
    (void)H5Eclear2(H5E_DEFAULT);
    group = H5Gcreate2(file, path, links, H5P_DEFAULT, H5P_DEFAULT);
    if (group < 0 || H5Gclose(group) < 0) TRY(fail_h5(RV_INTERNAL, name, "make", path));
out:
    if (links >= 0) (void)H5Pclose(links);
    return status;
}

/* Attributes hang on groups, which may hold nothing else. */
static rv_status attribute_write(hid_t file, const rv_h5_item *item, const char *name) {
    rv_status status = RV_OK;
    hsize_t dim[4];
    bool text = item->type == RV_H5_TEXT;
    hid_t space = H5I_INVALID_HID, type = H5I_INVALID_HID, data = H5I_INVALID_HID;
    TRY(group_make(file, item->path, name));
    for (int i = 0; i < item->rank; i++)
        dim[i] = (hsize_t)item->dim[i];
    space = item->rank ? H5Screate_simple(item->rank, dim, NULL) : H5Screate(H5S_SCALAR);
    type = text ? text_type(item->count) : file_type(item->type);
    if (space < 0 || type < 0) TRY(fail_h5(RV_INTERNAL, name, "describe", item->attribute));
    data = H5Acreate_by_name(file, item->path, item->attribute, type, space, H5P_DEFAULT,
                             H5P_DEFAULT, H5P_DEFAULT);
    if (data < 0 || H5Awrite(data, text ? type : memory_type(item->type), item->data) < 0)
        TRY(fail_h5(RV_INTERNAL, name, "write", item->attribute));
out:
    if (data >= 0 && H5Aclose(data) < 0 && status == RV_OK)
        status = fail_h5(RV_INTERNAL, name, "close", item->attribute);
    if (text && type >= 0) (void)H5Tclose(type);
    if (space >= 0) (void)H5Sclose(space);
    return status;
}

/* ---- a frame on the disk ------------------------------------------------------------------- */
/* Placed when it is made, never filled: then it is one piece whose address is known at once. */
static hid_t placed(void) {
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    if (create >= 0 && (H5Pset_layout(create, H5D_CONTIGUOUS) < 0 ||
                        H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY) < 0 ||
                        H5Pset_fill_time(create, H5D_FILL_TIME_NEVER) < 0)) {
        (void)H5Pclose(create);
        return H5I_INVALID_HID;
    }
    return create;
}

rv_status rv_h5_reserve(const char *path, const char *name, size_t rows, size_t columns,
                        uint64_t *offset) {
    rv_status status = RV_OK;
    const hsize_t dim[2] = {rows, columns};
    hid_t file = H5I_INVALID_HID, access = H5I_INVALID_HID, space = H5I_INVALID_HID,
          create = H5I_INVALID_HID, data = H5I_INVALID_HID;
    haddr_t at = HADDR_UNDEF;
    TRY(library_init(path));
    access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0 || H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) < 0)
        TRY(fail_h5(RV_INTERNAL, path, "describe", name));
    file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    space = H5Screate_simple(2, dim, NULL);
    create = placed();
    if (file < 0) TRY(fail_h5(RV_CREATE, path, "create", name));
    if (space < 0 || create < 0) TRY(fail_h5(RV_INTERNAL, path, "describe", name));
    data = H5Dcreate2(file, name, H5T_STD_U8LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    if (data >= 0) at = H5Dget_offset(data);
    if (at == HADDR_UNDEF) TRY(fail_h5(RV_CREATE, path, "place", name));
    *offset = (uint64_t)at;
out:
    if (data >= 0 && H5Dclose(data) < 0 && status == RV_OK)
        status = fail_h5(RV_CREATE, path, "close", name);
    if (create >= 0) (void)H5Pclose(create);
    if (space >= 0) (void)H5Sclose(space);
    if (file >= 0 && H5Fclose(file) < 0 && status == RV_OK)
        status = fail_h5(RV_CREATE, path, "write", name);
    if (access >= 0) (void)H5Pclose(access);
    return status;
}

/* ---- the image ----------------------------------------------------------------------------- */
/* The core driver's memory is the file: it is taken over when the file is closed, where
 * H5Fget_file_image would make another copy. (In 1.10 that copy also has a wrong checksum over its
 * superblock.) The driver asks for whole CHUNK_MOST; those are maps of their own that move without
 * being copied. */
typedef struct image {
    char *memory;
    size_t room;
} image;

static void *image_resize(void *memory, size_t size, H5FD_file_image_op_t why, void *self) {
    image *it = self;
    char *grown = realloc(memory, size);
    (void)why;
    if (grown) it->memory = grown, it->room = size;
    return grown;
}

/* Nothing: whoever has `image` has the memory. */
static herr_t image_keep(void *memory, H5FD_file_image_op_t why, void *self) {
    (void)memory, (void)why, (void)self;
    return 0;
}

static void *self_copy(void *self) {
    return self;
}

static herr_t self_free(void *self) {
    (void)self;
    return 0;
}

/* Bytes of the file as its superblock has them (version 3: signature, 4 bytes, base, extension,
 * end); what lies behind them is the driver's. 0: none. */
static size_t image_size(const image *it) {
    enum { VERSION = 8, OFFSETS = 9, END = 28, SIZE = 48 };
    size_t size = 0;
    const unsigned char *at = (const unsigned char *)it->memory;
    if (it->room < SIZE || at[VERSION] != 3 || at[OFFSETS] != 8) return 0;
    for (int i = 7; i >= 0; i--)
        size = size << 8 | at[END + i];
    return size <= it->room ? size : 0;
}

static rv_status items_write(hid_t file, const rv_h5_list *list, const char *name) {
    rv_status status = RV_OK;
    for (int i = 0; i < list->count; i++) {
        const rv_h5_item *item = &list->items[i];
        TRY(item->attribute ? attribute_write(file, item, name) : dataset_write(file, item, name));
    }
out:
    return status;
}

rv_status rv_h5_write(const rv_h5_list *list, const char *name, char **bytes, size_t *size) {
    rv_status status = RV_OK;
    image it = {0};
    H5FD_file_image_callbacks_t keep = {.image_realloc = image_resize,
                                        .image_free = image_keep,
                                        .udata_copy = self_copy,
                                        .udata_free = self_free,
                                        .udata = &it};
    hid_t file = H5I_INVALID_HID, access = H5I_INVALID_HID;
    TRY(library_init(name));
    access = memory_access();
    if (access >= 0 && H5Pset_file_image_callbacks(access, &keep) >= 0)
        file = H5Fcreate("memory", H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (file < 0) TRY(fail_h5(RV_INTERNAL, name, "build", "the file"));
    TRY(items_write(file, list, name));
out:
    if (file >= 0 && H5Fclose(file) < 0) {
        it.memory = NULL; /* HDF5 may still have it */
        if (status == RV_OK) status = fail_h5(RV_INTERNAL, name, "close", "the file");
    }
    if (access >= 0) (void)H5Pclose(access);
    *size = status ? 0 : image_size(&it);
    if (status == RV_OK && *size == 0)
        status = rv_fail(RV_INTERNAL, "%s: HDF5 made something else than a file", name);
    *bytes = status ? NULL : it.memory;
    if (status) rv_free(it.memory);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------- */
typedef struct walk {
    const char *name;
    size_t size; /* of the file: no dataset can hold more */
    rv_h5_list *list;
    char path[512];
    int depth, links; /* links followed: hard links may form cycles */
    rv_status status; /* HDF5's iterators give back only "failed" */
} walk;

/* Shape of a dataspace as an item; what the file cannot hold is refused before memory is taken.
 * Datasets are chunked and unpacked, so a whole array cannot be larger than the file. */
static rv_status item_add(walk *at, hid_t space, const char *attribute, rv_h5_type type,
                          rv_h5_item **out) {
    rv_status status = RV_OK;
    hsize_t dim[4], count = 1;
    int whole[4] = {0}, rank = H5Sget_simple_extent_ndims(space);
    if (rank < 0 || rank > 4 || H5Sget_simple_extent_type(space) == H5S_NULL ||
        (rank > 0 && H5Sget_simple_extent_dims(space, dim, NULL) != rank))
        FAIL(RV_DATA, "%s: %s has a shape that is not read", at->name, at->path);
    for (int i = 0; i < rank; i++) {
        if (dim[i] > INT_MAX || __builtin_mul_overflow(count, dim[i], &count) ||
            count * rv_h5_width(type) > at->size)
            FAIL(RV_DATA, "%s: %s promises more than the file holds", at->name, at->path);
        whole[i] = (int)dim[i];
    }
    if (at->list->count >= ITEMS_MOST)
        FAIL(RV_DATA, "%s: more than %d arrays", at->name, ITEMS_MOST);
    TRY(rv_h5_add(at->list, at->path, attribute, type, rank, whole, out));
out:
    return status;
}

/* Chunked, with no filter but Fletcher32, and nothing stored elsewhere. An allow-list: whatever
 * other filters, layouts or outside files could do, they are not followed. */
static bool layout_known(hid_t data) {
    unsigned flags, config;
    size_t values = 0;
    hid_t create = H5Dget_create_plist(data);
    bool known =
        create >= 0 && H5Pget_layout(create) == H5D_CHUNKED && H5Pget_nfilters(create) == 1 &&
        H5Pget_external_count(create) == 0 &&
        H5Pget_filter2(create, 0, &flags, &values, NULL, 0, NULL, &config) == H5Z_FILTER_FLETCHER32;
    if (create >= 0) (void)H5Pclose(create);
    return known;
}

/* H5Dread checks Fletcher32; a chunk that fails it fails the call. */
static rv_status dataset_read(walk *at, hid_t data) {
    rv_status status = RV_OK;
    hid_t space = H5Dget_space(data), type = H5Dget_type(data);
    rv_h5_type kind = RV_H5_FLOAT;
    rv_h5_item *item = NULL;
    if (space < 0 || type < 0) TRY(fail_h5(RV_DATA, at->name, "describe", at->path));
    while (kind <= RV_H5_BYTES && H5Tequal(type, file_type(kind)) <= 0)
        kind++;
    if (kind > RV_H5_BYTES) FAIL(RV_DATA, "%s: %s has an unknown type", at->name, at->path);
    if (!layout_known(data))
        FAIL(RV_DATA, "%s: %s is not stored as this program stores it", at->name, at->path);
    TRY(item_add(at, space, NULL, kind, &item));
    if (H5Dread(data, memory_type(kind), H5S_ALL, H5S_ALL, H5P_DEFAULT, item->data) < 0)
        TRY(fail_h5(RV_DATA, at->name, "read", at->path));
out:
    if (type >= 0) (void)H5Tclose(type);
    if (space >= 0) (void)H5Sclose(space);
    return status;
}

/* Fixed length only: variable-length strings live in the global heap, which has crashed readers. */
static rv_status attribute_text(walk *at, hid_t data, hid_t type, const char *attribute) {
    rv_status status = RV_OK;
    size_t length = H5Tget_size(type);
    int count = (int)length;
    rv_h5_item *item = NULL;
    if (H5Tis_variable_str(type) != 0 || length == 0 || length > TEXT_MOST)
        FAIL(RV_DATA, "%s: %s: attribute %s is no short text", at->name, at->path, attribute);
    TRY(rv_h5_add(at->list, at->path, attribute, RV_H5_TEXT, 1, &count, &item));
    if (H5Aread(data, type, item->data) < 0) TRY(fail_h5(RV_DATA, at->name, "read", attribute));
    item->rank = 0;
    item->count = strlen(item->data); /* rv_h5_add left a NUL behind */
out:
    return status;
}

/* Types are compared with those this program writes; nothing is converted but byte order. */
static rv_status attribute_read(walk *at, hid_t data, const char *attribute) {
    rv_status status = RV_OK;
    hid_t space = H5Aget_space(data), type = H5Aget_type(data);
    rv_h5_type kind = RV_H5_REAL;
    rv_h5_item *item = NULL;
    if (space < 0 || type < 0) TRY(fail_h5(RV_DATA, at->name, "describe", attribute));
    if (H5Tget_class(type) == H5T_STRING && H5Sget_simple_extent_ndims(space) == 0) {
        TRY(attribute_text(at, data, type, attribute));
        goto out;
    }
    while (kind <= RV_H5_INTEGER && H5Tequal(type, file_type(kind)) <= 0)
        kind++;
    if (kind > RV_H5_INTEGER)
        FAIL(RV_DATA, "%s: %s: attribute %s has an unknown type", at->name, at->path, attribute);
    TRY(item_add(at, space, attribute, kind, &item));
    if (H5Aread(data, memory_type(kind), item->data) < 0)
        TRY(fail_h5(RV_DATA, at->name, "read", attribute));
out:
    if (type >= 0) (void)H5Tclose(type);
    if (space >= 0) (void)H5Sclose(space);
    return status;
}

/* A negative result ends the iteration; the reason waits in `status`. */
static herr_t attribute_visit(hid_t object, const char *attribute, const H5A_info_t *info,
                              void *user) {
    walk *at = user;
    hid_t data = H5Aopen(object, attribute, H5P_DEFAULT);
    (void)info;
    at->status = data < 0 ? fail_h5(RV_DATA, at->name, "open", attribute)
                          : attribute_read(at, data, attribute);
    if (data >= 0) (void)H5Aclose(data);
    return at->status == RV_OK ? 0 : -1;
}

static herr_t link_visit(hid_t group, const char *link, const H5L_info_t *info, void *user);

/* A group's attributes, then what lies in it. In the order of names, so that two readings give
 * the same list. */
static rv_status group_read(walk *at, hid_t group) {
    hsize_t index = 0;
    at->status = RV_OK;
    if ((H5Aiterate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, attribute_visit, at) < 0 ||
         H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &index, link_visit, at) < 0) &&
        at->status == RV_OK)
        at->status = fail_h5(RV_DATA, at->name, "list", at->path);
    return at->status;
}

/* Named types and anything newer are refused. */
static rv_status object_read(walk *at, hid_t object) {
    H5I_type_t kind = H5Iget_type(object);
    if (kind == H5I_DATASET) return dataset_read(at, object);
    if (kind == H5I_GROUP && at->depth < DEPTH_MOST) return group_read(at, object);
    return rv_fail(RV_DATA, "%s: %s is neither a dataset nor a group near the root", at->name,
                   at->path);
}

/* Only plain links: soft, external and user-defined ones may lead out of the file. */
static herr_t link_visit(hid_t group, const char *link, const H5L_info_t *info, void *user) {
    walk *at = user;
    size_t length = strlen(at->path);
    hid_t object = H5I_INVALID_HID;
    snprintf(at->path + length, sizeof at->path - length, "%s%s", length > 1 ? "/" : "", link);
    at->depth++;
    if (++at->links > ITEMS_MOST)
        at->status = rv_fail(RV_DATA, "%s: more than %d links", at->name, ITEMS_MOST);
    else if (info->type != H5L_TYPE_HARD)
        at->status = rv_fail(RV_DATA, "%s: %s is a link out of place", at->name, at->path);
    else if ((object = H5Oopen(group, link, H5P_DEFAULT)) < 0)
        at->status = fail_h5(RV_DATA, at->name, "open", at->path);
    else
        at->status = object_read(at, object);
    if (object >= 0) (void)H5Oclose(object);
    at->depth--;
    at->path[length] = 0;
    return at->status == RV_OK ? 0 : -1;
}

rv_status rv_h5_read(const char *bytes, size_t size, const char *name, rv_h5_list *list) {
    rv_status status = RV_OK;
    walk at = {.name = name, .size = size, .list = list, .path = "/"};
    hid_t file = H5I_INVALID_HID, access = H5I_INVALID_HID, root = H5I_INVALID_HID;
    if (size == 0) FAIL(RV_DATA, "%s: empty file", name);
    TRY(library_init(name));
    access = memory_access();
    if (access >= 0 && H5Pset_file_image(access, (void *)bytes, size) >= 0) /* HDF5 copies it */
        file = H5Fopen("memory", H5F_ACC_RDONLY, access);
    if (file < 0) TRY(fail_h5(RV_DATA, name, "open", "it as HDF5"));
    root = H5Gopen2(file, "/", H5P_DEFAULT);
    if (root < 0) TRY(fail_h5(RV_DATA, name, "open", "its root"));
    TRY(group_read(&at, root));
out:
    if (root >= 0) (void)H5Gclose(root);
    if (file >= 0) (void)H5Fclose(file);
    if (access >= 0) (void)H5Pclose(access);
    return status;
}

#endif
