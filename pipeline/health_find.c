/*
 * Finding the value that is not finite: rare and slow, while looking for one (health.c) is done
 * every step and must be fast.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/health_find.h"

/* A sum in which anything not finite stays: x*x*0 is 0 or NAN. In lanes, so that it vectorises. */
bool rv_finite(const float *values, size_t n) {
    typedef float lanes __attribute__((vector_size(64)));
    enum { WIDTH = sizeof(lanes) / sizeof(float), STRIDE = 2 * WIDTH };
    lanes sum[2] = {{0}}, x[2];
    float rest = 0;
    size_t i = 0;
    for (; i + STRIDE <= n; i += STRIDE) {
        memcpy(x, values + i, sizeof x);
        sum[0] += x[0] * x[0] * 0.0f;
        sum[1] += x[1] * x[1] * 0.0f;
    }
    for (; i < n; i++)
        rest += values[i] * values[i] * 0.0f;
    for (int k = 0; k < WIDTH; k++)
        rest += sum[0][k] + sum[1][k];
    return rest == 0;
}

/* The same of one value. */
static bool good(float value) {
    return isfinite(value * value);
}

/* ---- the dump ---------------------------------------------------------------------------- */
/* NumPy's format, version 1.0: little-endian float32 in C order. */
static rv_status dump(rv_finding *found, const char *path, const float *values, int rank,
                      const int *dim) {
    enum { HEAD = 128 };
    rv_status status = RV_OK;
    size_t count = 1;
    char *bytes = NULL, shape[64] = "";
    int used = 0;
    for (int i = 0; i < rank; i++) {
        count *= (size_t)dim[i];
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%d, ", dim[i]);
    }
    TRY(rv_alloc(HEAD + count * sizeof(float), 1, "a dump", &bytes));
    memset(bytes, ' ', HEAD);
    memcpy(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
    used = snprintf(bytes + 10, HEAD - 10,
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", shape);
    bytes[10 + used] = ' ';
    bytes[HEAD - 1] = '\n';
    memcpy(bytes + HEAD, values, count * sizeof(float));
    TRY(rv_commit(path, NULL, bytes, HEAD + count * sizeof(float)));
    found->dumped = true;
out:
    rv_free(bytes);
    return status;
}

/* ---- views ------------------------------------------------------------------------------- */
/* The first in the order of time, sample, unit. */
bool rv_find_in_values(rv_values v, const rv_pass *pass, rv_finding *found) {
    int steps = v.stride_t ? v.T : 1;
    for (int t = 0; t < steps; t++)
        for (int b = 0; b < v.B; b++) {
            const float *row = v.data + (size_t)t * v.stride_t + (size_t)b * (size_t)v.ld;
            for (int u = 0; u < v.n; u++)
                if (!good(row[u])) {
                    found->value = row[u];
                    found->time = pass->t0 + t;
                    found->index = u;
                    found->row = b;
                    found->sample = pass->batch->sample
                                        ? (int64_t)pass->batch->sample[pass->row + b]
                                        : pass->row + b;
                    return true;
                }
        }
    return false;
}

/* [T][B][n] without the padding of rows. */
rv_status rv_dump_values(rv_finding *found, const char *path, rv_values v) {
    rv_status status = RV_OK;
    float *packed = NULL, *to;
    const int dim[3] = {v.stride_t ? v.T : 1, v.B, v.n};
    TRY(rv_alloc((size_t)dim[0] * (size_t)v.B * (size_t)v.n, sizeof *packed, "a dump", &packed));
    to = packed;
    for (int t = 0; t < dim[0]; t++)
        for (int b = 0; b < v.B; b++, to += v.n)
            memcpy(to, v.data + (size_t)t * v.stride_t + (size_t)b * (size_t)v.ld,
                   (size_t)v.n * sizeof *to);
    TRY(dump(found, path, packed, 3, dim));
out:
    rv_free(packed);
    return status;
}

/* ---- tensors ----------------------------------------------------------------------------- */
/* The first bad element of a tensor that is not excused; -1: none. */
static int64_t element_find(const float *file, const float *excuse, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!good(file[i]) && (!excuse || good(excuse[i]))) return (int64_t)i;
    return -1;
}

/* Tensors in the order of files, so that an element is called as other programs call it. A full
 * disk must not hide what was found. */
static bool find_in_tensor(const rv_tensor *tensor, const float *block, const float *excuse,
                           rv_finding *found, const char *path) {
    size_t count = rv_tensor_elements(tensor);
    float *file = NULL, *other = NULL;
    int64_t at = -1;
    if (rv_alloc(count, sizeof *file, tensor->name, &file) != RV_OK ||
        (excuse && rv_alloc(count, sizeof *other, tensor->name, &other) != RV_OK))
        goto out;
    rv_tensor_export(tensor, block, file);
    if (excuse) rv_tensor_export(tensor, excuse, other);
    at = element_find(file, other, count);
    if (at < 0) goto out;
    found->layer = tensor->layer;
    found->value = file[at];
    found->index = at;
    snprintf(found->tensor, sizeof found->tensor, "%s", tensor->name);
    if (dump(found, path, file, tensor->rank, tensor->dim) != RV_OK) found->dumped = false;
out:
    rv_free(other);
    rv_free(file);
    return at >= 0;
}

/* Whole tensors first, as only few are not sound. */
bool rv_find_in_block(const rv_net *net, const float *block, bool trained, const float *excuse,
                      rv_finding *found, const char *path) {
    for (int k = 0; k < net->tensor_count; k++) {
        const rv_tensor *tensor = &net->tensors[k];
        if (trained && !tensor->trained) break;
        if (rv_finite(block + tensor->offset, tensor->count)) continue;
        if (find_in_tensor(tensor, block, tensor->trained ? excuse : NULL, found, path))
            return true;
    }
    return false;
}

/* ---- words ------------------------------------------------------------------------------- */
static const char *const kind_names[] = {"none", "input", "weight", "membrane", "gradient", "loss"};

/* JSON has no numbers for these, and people know the names. */
static const char *value_text(double value, char text[32]) {
    if (isfinite(value))
        snprintf(text, 32, "%.9g", value);
    else
        snprintf(text, 32, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return text;
}

/* Says where first, so that a cut message still tells. */
void rv_finding_text(const rv_finding *found, const rv_net *net, char *text, size_t size) {
    const char *layer = found->layer >= 0 ? rv_net_layer_name(net, found->layer) : "the input";
    const char *fault =
        isfinite(found->value) ? "too large (its square is not finite)" : "not finite";
    char value[32];
    value_text(found->value, value);
    if (found->kind == RV_FOUND_LOSS)
        snprintf(text, size, "the loss is %s (%s)", fault, value);
    else if (found->kind == RV_FOUND_WEIGHT || found->kind == RV_FOUND_GRADIENT)
        snprintf(text, size, "a %s is %s: %s[%lld] is %s", kind_names[found->kind], fault,
                 found->tensor, (long long)found->index, value);
    else
        snprintf(text, size, "%s %s is %s: layer %s, time step %d, sample %lld, unit %lld is %s",
                 found->kind == RV_FOUND_INPUT ? "an" : "a", kind_names[found->kind], fault, layer,
                 found->time, (long long)found->sample, (long long)found->index, value);
}

/* Keys that do not apply are null. */
json_t *rv_finding_json(const rv_finding *found, const rv_net *net, int64_t step,
                        const char *action) {
    bool view = found->kind == RV_FOUND_INPUT || found->kind == RV_FOUND_MEMBRANE;
    bool loss = found->kind == RV_FOUND_LOSS;
    const char *layer = found->layer >= 0 ? rv_net_layer_name(net, found->layer) : NULL;
    char value[32];
    return json_pack("{s:s, s:I, s:s, s:s, s:s?, s:s?, s:o, s:o, s:o, s:s}", "event", "nonfinite",
                     "step", (json_int_t)step, "action", action, "kind", kind_names[found->kind],
                     "layer", layer, "tensor", *found->tensor ? found->tensor : NULL, "time",
                     view ? json_integer(found->time) : json_null(), "sample",
                     view ? json_integer((json_int_t)found->sample) : json_null(), "index",
                     loss ? json_null() : json_integer((json_int_t)found->index), "value",
                     value_text(found->value, value));
}
