/*
 * Profiles: block costs as JSON, so that a plan can be made where the machine is not. Times are in
 * milliseconds, as everywhere in JSON.
 */
#include <math.h>
#include <string.h>

#include "pipeline/plan.h"

/* ---- writing ---------------------------------------------------------------------------- */

static json_t *block_json(const rv_part_cost *block, const rv_net *net) {
    return json_pack(
        "{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "first",
        rv_net_layer_name(net, block->first), "last", rv_net_layer_name(net, block->last - 1),
        "f_ms", 1e3 * block->f, "b_ms", 1e3 * block->b, "w_ms", 1e3 * block->w, "u_ms",
        1e3 * block->u, "norm_ms", 1e3 * block->norm, "f_once_ms", 1e3 * block->once[RV_WORK_F],
        "b_once_ms", 1e3 * block->once[RV_WORK_B], "w_once_ms", 1e3 * block->once[RV_WORK_W],
        "scatter", block->scatter, "forward_bytes", block->forward_bytes, "backward_bytes",
        block->backward_bytes, "scratch_bytes", block->scratch_bytes);
}

json_t *rv_profile_json(const rv_plan *plan, const rv_net *net) {
    json_t *points = json_array();
    for (int k = 0; k < plan->blocks.count; k++) {
        json_t *blocks = json_array();
        for (int i = 0; i < plan->blocks.parts; i++)
            json_array_append_new(blocks, block_json(&plan->blocks.part[k][i], net));
        json_array_append_new(
            points, json_pack("{s:i, s:o}", "chunks", plan->blocks.chunks[k], "blocks", blocks));
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "latency_ms", 1e3 * plan->latency,
                     "bytes_per_s", plan->bandwidth, "spill_bytes_per_s", plan->spill,
                     "spill_sustained_bytes_per_s", plan->sustained, "spill_cached_bytes",
                     plan->sustained > 0 ? plan->cached : 0.0, "points", points);
}

/* ---- reading ---------------------------------------------------------------------------- */

/* Not negative and finite, or the simulator would refuse it without saying where it stands. */
static bool number(const json_t *object, const char *key, double *out) {
    *out = json_number_value(json_object_get(object, key));
    return json_is_number(json_object_get(object, key)) && *out >= 0 && *out < 1e18;
}

static rv_status block_read(const char *path, const json_t *json, const rv_net *net, int i,
                            rv_part_cost *block) {
    static const double whole = 1;
    const struct {
        const char *key;
        double *to, scale;
        const double *most; /* may lack, and is part of that; NULL: must be there */
    } fields[] = {
        {"f_ms", &block->f, 1e-3, NULL},
        {"b_ms", &block->b, 1e-3, NULL},
        {"w_ms", &block->w, 1e-3, NULL},
        {"u_ms", &block->u, 1e-3, NULL},
        {"norm_ms", &block->norm, 1e-3, NULL},
        {"f_once_ms", &block->once[RV_WORK_F], 1e-3, &block->f},
        {"b_once_ms", &block->once[RV_WORK_B], 1e-3, &block->b},
        {"w_once_ms", &block->once[RV_WORK_W], 1e-3, &block->w},
        {"scatter", &block->scatter, 1, &whole},
        {"forward_bytes", &block->forward_bytes, 1, NULL},
        {"backward_bytes", &block->backward_bytes, 1, NULL},
        {"scratch_bytes", &block->scratch_bytes, 1, NULL},
    };
    const char *first = json_string_value(json_object_get(json, "first"));
    block->first = net->block_first[i];
    block->last = i + 1 < net->block_count ? net->block_first[i + 1] : net->layer_count;
    if (!first || strcmp(first, rv_net_layer_name(net, block->first)) != 0)
        return rv_fail(RV_DATA, "%s: block %d begins with \"%s\", in the recipe with \"%s\"", path,
                       i, first ? first : "?", rv_net_layer_name(net, block->first));
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) {
        if (fields[k].most && !json_object_get(json, fields[k].key)) continue;
        if (!number(json, fields[k].key, fields[k].to))
            return rv_fail(RV_DATA, "%s: block %d has no good %s", path, i, fields[k].key);
        *fields[k].to *= fields[k].scale;
        if (fields[k].most && *fields[k].to > *fields[k].most)
            return rv_fail(RV_DATA, "%s: block %d has more %s than all of it", path, i,
                           fields[k].key);
    }
    return RV_OK;
}

static rv_status point_read(const char *path, const json_t *json, const rv_net *net, int k,
                            rv_cost_points *points) {
    rv_status status = RV_OK;
    const json_t *blocks = json_object_get(json, "blocks");
    points->chunks[k] = (int)json_integer_value(json_object_get(json, "chunks"));
    if (points->chunks[k] < 1 || (k > 0 && points->chunks[k] <= points->chunks[k - 1]))
        FAIL(RV_DATA, "%s: points need \"chunks\", at least 1 and ascending", path);
    if (json_array_size(blocks) != (size_t)net->block_count)
        FAIL(RV_DATA, "%s has %zu blocks, the recipe %d", path, json_array_size(blocks),
             net->block_count);
    TRY(rv_alloc((size_t)net->block_count, sizeof(rv_part_cost), "costs", &points->part[k]));
    points->count = k + 1;
    for (int i = 0; i < net->block_count; i++)
        TRY(block_read(path, json_array_get(blocks, (size_t)i), net, i, &points->part[k][i]));
out:
    return status;
}

/* Shares of nothing are no numbers. */
static bool is_free(const rv_cost_points *points) {
    double sum = INFINITY;
    for (int k = 0; k < points->count; k++) {
        double point = 0;
        for (int i = 0; i < points->parts; i++) {
            const rv_part_cost *block = &points->part[k][i];
            point += block->f + block->b + block->w;
        }
        sum = fmin(sum, point);
    }
    return sum <= 0;
}

/* The profile itself, or the JSON of a plan that holds one. */
rv_status rv_profile_read(const char *path, const rv_net *net, rv_plan *plan) {
    rv_status status = RV_OK;
    char *text = NULL;
    size_t size;
    json_error_t error;
    json_t *root = NULL;
    TRY(rv_read_file(path, 1 << 26, &text, &size));
    root = json_loadb(text, size, 0, &error);
    if (!root) {
        const rv_where where = {path, error.line, error.column};
        TRY(rv_fail_at(RV_DATA, where, NULL, NULL, "no JSON: %s", error.text));
    }
    const json_t *inner = json_object_get(root, "profile"), *profile = inner ? inner : root;
    const json_t *points = json_object_get(profile, "points");
    if (!number(profile, "latency_ms", &plan->latency) ||
        !number(profile, "bytes_per_s", &plan->bandwidth) || plan->bandwidth <= 0)
        FAIL(RV_DATA, "%s: a profile needs latency_ms and bytes_per_s", path);
    plan->latency *= 1e-3;
    /* 0 where it was not measured; older profiles have none. */
    const struct {
        const char *key;
        double *value;
    } disk[] = {{"spill_bytes_per_s", &plan->spill},
                {"spill_sustained_bytes_per_s", &plan->sustained},
                {"spill_cached_bytes", &plan->cached}};
    for (int i = 0; i < 3; i++)
        if (json_object_get(profile, disk[i].key) && !number(profile, disk[i].key, disk[i].value))
            FAIL(RV_DATA, "%s: bad %s", path, disk[i].key);
    if (plan->sustained <= 0) plan->cached = INFINITY;
    if (json_array_size(points) < 1 || json_array_size(points) > RV_COST_POINTS)
        FAIL(RV_DATA, "%s: a profile has one to three points", path);
    plan->blocks.parts = net->block_count;
    for (size_t k = 0; k < json_array_size(points); k++)
        TRY(point_read(path, json_array_get(points, k), net, (int)k, &plan->blocks));
    if (is_free(&plan->blocks)) FAIL(RV_DATA, "%s: all costs of a point are 0", path);
out:
    json_decref(root);
    rv_free(text);
    return status;
}
