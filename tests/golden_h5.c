/* Reading the reference vectors' HDF5 files, and comparing with what they hold. */
#include "tests/golden.h"
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct golden_block {
    struct golden_block *next;
    void *memory;
};

void *golden_memory(golden_case *c, size_t count, size_t size) {
    struct golden_block *block = NULL;
    if (rv_alloc(1, sizeof *block, "block of a reference case", &block) ||
        rv_alloc(count, size, "array of a reference case", &block->memory)) {
        fprintf(stderr, "golden: %s\n", rv_error_get()->message);
        exit(RV_MEMORY);
    }
    block->next = c->blocks;
    c->blocks = block;
    return block->memory;
}

void golden_finish(golden_case *c) {
    while (c->blocks) {
        struct golden_block *next = c->blocks->next;
        rv_free(c->blocks->memory);
        rv_free(c->blocks);
        c->blocks = next;
    }
}

bool golden_fail(golden_case *c, const char *format, ...) {
    if (!c->failed) { /* later differences follow from the first */
        va_list list;
        va_start(list, format);
        vsnprintf(c->text, sizeof c->text, format, list);
        va_end(list);
    }
    c->failed = true;
    return false;
}

bool golden_ok(golden_case *c, rv_status status) {
    return status == RV_OK || golden_fail(c, "%s", rv_error_get()->message);
}

const char *golden_reason(const golden_outside *table, const char *name) {
    for (; table->pattern; table++)
        if (fnmatch(table->pattern, name, 0) == 0) return table->reason;
    return NULL;
}

/* ---- reading ---------------------------------------------------------------------------- */
/* H5Lexists must be asked for each part of a path in turn. */
static bool link_exists(hid_t at, const char *path) {
    char part[256];
    for (size_t i = 0;; i++) {
        if (i >= sizeof part) return false;
        part[i] = path[i];
        if (path[i] != '/' && path[i] != 0) continue;
        part[i] = 0;
        if (H5Lexists(at, part, H5P_DEFAULT) <= 0) return false;
        if (path[i] == 0) return true;
        part[i] = '/';
    }
}

bool golden_has(const golden_case *c, const char *path) {
    return link_exists(c->at, path) || (!strchr(path, '/') && H5Aexists(c->at, path) > 0);
}

const golden_array *golden_get(golden_case *c, const char *path) {
    golden_array *a = golden_memory(c, 1, sizeof *a);
    a->v = golden_memory(c, 1, sizeof *a->v);
    a->dim[0] = 1;
    hid_t set = link_exists(c->at, path) ? H5Dopen2(c->at, path, H5P_DEFAULT) : H5I_INVALID_HID;
    hid_t space = set < 0 ? H5I_INVALID_HID : H5Dget_space(set);
    int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    hsize_t dim[8] = {0};
    if (rank < 1 || rank > 8 || H5Sget_simple_extent_dims(space, dim, NULL) != rank) {
        golden_fail(c, "%s: cannot be read", path);
    } else {
        size_t n = 1;
        for (int i = 0; i < rank; i++)
            n *= a->dim[i] = (size_t)dim[i];
        a->rank = rank;
        a->v = golden_memory(c, n, sizeof *a->v);
        a->n = n;
        if (H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, a->v) < 0)
            golden_fail(c, "%s: cannot be read", path);
    }
    if (space >= 0) H5Sclose(space);
    if (set >= 0) H5Dclose(set);
    return a;
}

double golden_number(golden_case *c, const char *attribute, double otherwise) {
    if (H5Aexists(c->at, attribute) <= 0) return otherwise;
    hid_t a = H5Aopen(c->at, attribute, H5P_DEFAULT);
    double value = 0;
    if (a < 0 || H5Aread(a, H5T_NATIVE_DOUBLE, &value) < 0)
        golden_fail(c, "attribute %s: cannot be read as a number", attribute);
    if (a >= 0) H5Aclose(a);
    return value;
}

int golden_numbers(golden_case *c, const char *attribute, double *out, int most) {
    hid_t a = H5Aopen(c->at, attribute, H5P_DEFAULT);
    hid_t space = a < 0 ? H5I_INVALID_HID : H5Aget_space(a);
    hssize_t count = space < 0 ? -1 : H5Sget_simple_extent_npoints(space);
    double *all = golden_memory(c, count > 0 ? (size_t)count : 1, sizeof *all);
    if (count < 1 || count > 1 << 16 || H5Aread(a, H5T_NATIVE_DOUBLE, all) < 0)
        golden_fail(c, "attribute %s: cannot be read as numbers", attribute);
    for (int i = 0; i < count && i < most; i++)
        out[i] = all[i];
    if (space >= 0) H5Sclose(space);
    if (a >= 0) H5Aclose(a);
    return (int)count;
}

/* Text of fixed or variable length. */
const char *golden_word(golden_case *c, const char *attribute) {
    if (H5Aexists(c->at, attribute) <= 0) return "";
    hid_t a = H5Aopen(c->at, attribute, H5P_DEFAULT);
    hid_t type = a < 0 ? H5I_INVALID_HID : H5Aget_type(a);
    bool variable = type >= 0 && H5Tis_variable_str(type) > 0;
    size_t size = type < 0 ? 0 : H5Tget_size(type);
    char *text = golden_memory(c, size + 1, 1), *given = NULL;
    if (type < 0 || H5Tget_class(type) != H5T_STRING ||
        H5Aread(a, type, variable ? (void *)&given : text) < 0)
        golden_fail(c, "attribute %s: cannot be read as text", attribute);
    if (given) {
        text = golden_memory(c, strlen(given) + 1, 1);
        strcpy(text, given);
        H5free_memory(given);
    }
    if (type >= 0) H5Tclose(type);
    if (a >= 0) H5Aclose(a);
    return text;
}

void golden_names(golden_case *c, const char *path, int *count, const char *const **names) {
    *count = 0;
    *names = NULL;
    hid_t group = H5Gopen2(c->at, path, H5P_DEFAULT);
    H5G_info_t info;
    if (group < 0 || H5Gget_info(group, &info) < 0) {
        golden_fail(c, "%s: cannot be read", path);
    } else {
        const char **list = golden_memory(c, (size_t)info.nlinks, sizeof *list);
        for (hsize_t i = 0; i < info.nlinks; i++) {
            char *name = golden_memory(c, 256, 1);
            if (H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, 256,
                                   H5P_DEFAULT) < 0)
                golden_fail(c, "%s: names cannot be read", path);
            list[i] = name;
        }
        *count = (int)info.nlinks;
        *names = list;
    }
    if (group >= 0) H5Gclose(group);
}

/* ---- views ------------------------------------------------------------------------------ */
static size_t last_dim(const golden_array *a) {
    return a->rank > 0 && a->dim[a->rank - 1] > 0 ? a->dim[a->rank - 1] : 1;
}

float *golden_rows(golden_case *c, const golden_array *a, int ld) {
    size_t n = last_dim(a), rows = a->n / n;
    float *out = golden_memory(c, rows * (size_t)ld, sizeof *out);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            out[r * (size_t)ld + i] = (float)a->v[r * n + i];
    return out;
}

float *golden_weight(golden_case *c, const golden_array *a, int ld) {
    size_t in = last_dim(a), out = a->n / in;
    float *w = golden_memory(c, in * (size_t)ld, sizeof *w);
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < in; i++)
            w[i * (size_t)ld + o] = (float)a->v[o * in + i];
    return w;
}

rv_values golden_values(golden_case *c, int T, int B, int n) {
    rv_values v = rv_values_of(NULL, T, B, n);
    v.data = golden_memory(c, (size_t)T * v.stride_t, sizeof(float));
    return v;
}

rv_spikes golden_spikes(golden_case *c, int T, int B, int n) {
    rv_spikes s = rv_spikes_of(NULL, T, B, n);
    s.bits = golden_memory(c, (size_t)T * s.stride_t, sizeof(uint32_t));
    return s;
}

/* ---- judging ---------------------------------------------------------------------------- */
static bool within(golden_case *c, const char *what, double error, double largest, double limit,
                   double floor) {
    double scale = largest > floor ? largest : floor;
    if (error <= limit * scale) return true; /* false for NaN */
    return golden_fail(c, "%s: off by %.3g, largest entry %.3g, limit %.0e of it", what, error,
                       largest, limit);
}

bool golden_close(golden_case *c, const char *what, const golden_array *want, const float *got,
                  int ld, double limit, double floor) {
    size_t n = last_dim(want);
    double error = 0, largest = 0;
    for (size_t k = 0; k < want->n; k++) {
        double e = fabs(got[k / n * (size_t)ld + k % n] - want->v[k]);
        if (!(e <= error)) error = e; /* NaN stays */
        if (isnan(error)) break;
        largest = fmax(largest, fabs(want->v[k]));
    }
    return within(c, what, error, largest, limit, floor);
}

bool golden_close_weight(golden_case *c, const char *what, const golden_array *want,
                         const float *got, int ld, double limit) {
    size_t in = last_dim(want);
    double error = 0, largest = 0;
    for (size_t k = 0; k < want->n; k++) {
        double e = fabs(got[k % in * (size_t)ld + k / in] - want->v[k]);
        if (!(e <= error)) error = e;
        if (isnan(error)) break;
        largest = fmax(largest, fabs(want->v[k]));
    }
    return within(c, what, error, largest, limit, 0);
}

bool golden_same_spikes(golden_case *c, const char *what, const golden_array *want, rv_spikes got) {
    size_t n = (size_t)got.n, wrong = 0;
    if (want->n != n * (size_t)got.B * (size_t)got.T)
        return golden_fail(c, "%s: %zu values where %d x %d x %d were made", what, want->n, got.T,
                           got.B, got.n);
    for (size_t k = 0; k < want->n; k++) {
        const uint32_t *row = got.bits + k / n * (size_t)rv_words(got.n);
        unsigned bit = row[k % n / 32] >> (k % n % 32) & 1;
        wrong += bit != (want->v[k] != 0);
    }
    return wrong == 0 || golden_fail(c, "%s: %zu of %zu spikes differ", what, wrong, want->n);
}
