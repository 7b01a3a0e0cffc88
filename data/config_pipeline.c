/*
 * The keys of `pipeline` that a table cannot say: whole numbers or `auto`, layers by name, bytes
 * with a unit. What schedules there are, and whether the parts fit together, is for the planner.
 */
#include "data/config.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS_MOST = 1 << 20, SLOTS_MOST = 1 << 16, STAGES_MOST = 4096, CORRECTIONS_MOST = 64 };

typedef struct keys {
    rv_config *config;
    const rv_node *source; /* as given */
    const rv_node *tree;   /* `pipeline` as resolved */
} keys;

/* The node of a key as given (NULL: absent) and as resolved. */
static rv_status find(const keys *k, const char *key, rv_node **in, rv_node **out) {
    char path[RV_PATH_MAX];
    snprintf(path, sizeof path, "pipeline.%s", key);
    *out = rv_tree_get(k->tree, key);
    return rv_node_find(k->source, "", path, in);
}

static rv_status write(rv_node *node, const char *text) {
    rv_node_become(node, RV_NODE_SCALAR);
    return rv_strdup(text, &node->text);
}

/* *value stays for `auto`, and when the key is absent. */
static rv_status count_load(const keys *k, const char *key, int most, bool *is_auto, int *value) {
    rv_status status = RV_OK;
    rv_node *in = NULL, *out = NULL;
    char text[32], allowed[64], path[RV_PATH_MAX], *end = NULL;
    snprintf(path, sizeof path, "pipeline.%s", key);
    TRY(find(k, key, &in, &out));
    bool word = in && in->kind == RV_NODE_SCALAR && strcmp(in->text, "auto") == 0;
    if (in) *is_auto = word;
    if (in && !word) {
        bool digits = in->kind == RV_NODE_SCALAR && isdigit((unsigned char)in->text[0]);
        long number = digits ? strtol(in->text, &end, 10) : 0;
        snprintf(allowed, sizeof allowed, "a whole number from 1 to %d, or auto", most);
        if (!digits || *end || number < 1 || number > most) TRY(rv_node_wrong(in, path, allowed));
        *value = (int)number;
    }
    snprintf(text, sizeof text, "%d", *value);
    TRY(write(out, *is_auto ? "auto" : text));
out:
    return status;
}

/* Layers with which the stages after the first begin; they also say how many stages there are. */
static rv_status cuts_load(const keys *k) {
    rv_status status = RV_OK;
    rv_config *config = k->config;
    rv_node *in = NULL, *out = NULL, *stages = NULL, *resolved = NULL;
    char text[32];
    TRY(find(k, "cuts", &in, &out));
    rv_node_become(out, RV_NODE_LIST);
    if (!in || (in->kind == RV_NODE_LIST && in->count == 0)) goto out;
    int count = in->kind == RV_NODE_LIST ? in->count : 1;
    if (in->kind == RV_NODE_MAP) TRY(rv_node_wrong(in, "pipeline.cuts", "a list of layers"));
    if (count >= STAGES_MOST)
        FAIL_AT(RV_CONFIG, in->where, "pipeline.cuts", NULL,
                "\"pipeline.cuts\" has %d entries, at most %d are possible", count,
                STAGES_MOST - 1);
    TRY(rv_pool_get(config->memory, (size_t)count, sizeof *config->cuts, "cuts", &config->cuts));
    for (int i = 0; i < count; i++) {
        const rv_node *one = in->kind == RV_NODE_LIST ? in->items[i] : in;
        int layer = 0;
        if (one->kind != RV_NODE_SCALAR)
            TRY(rv_node_wrong(one, "pipeline.cuts", "a list of names of layers"));
        while (layer < config->net.layer_count &&
               strcmp(config->net.layers[layer].name, one->text) != 0)
            layer++;
        if (layer == config->net.layer_count)
            FAIL_AT(RV_CONFIG, one->where, "pipeline.cuts", NULL,
                    "\"pipeline.cuts\" names \"%.80s\", which is no layer of the network",
                    one->text);
        if (layer <= (i > 0 ? config->cuts[i - 1] : 0))
            FAIL_AT(RV_CONFIG, one->where, "pipeline.cuts", NULL,
                    "\"pipeline.cuts\": \"%.80s\" leaves the stage before it without a layer (cuts "
                    "are the first layers of the later stages, in order)",
                    one->text);
        config->cuts[config->cut_count++] = layer;
        TRY(rv_node_add_text(out, NULL, one->text, true));
    }
    TRY(find(k, "stages", &stages, &resolved));
    if (stages && config->stages != count + 1)
        FAIL_AT(RV_CONFIG, in->where, "pipeline.cuts", NULL,
                "%d cuts make %d stages, \"stages\" says %d", count, count + 1, config->stages);
    config->stages = count + 1;
    snprintf(text, sizeof text, "%d", config->stages);
    TRY(write(resolved, text));
out:
    return status;
}

/* 500000, 512MiB, 2 GiB. */
static rv_status memory_load(const keys *k) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
    rv_status status = RV_OK;
    rv_node *in = NULL, *out = NULL;
    char *end = NULL;
    TRY(find(k, "memory", &in, &out));
    if (!in) goto out;
    const char *text = in->kind == RV_NODE_SCALAR ? in->text : "";
    double number = isdigit((unsigned char)*text) ? strtod(text, &end) : 0;
    while (end && *end == ' ')
        end++;
    for (int i = 0; i < 4 && number > 0; i++)
        if (strcmp(end, units[i].name) == 0) k->config->pipeline_memory = number * units[i].bytes;
    if (!(k->config->pipeline_memory >= 1) || k->config->pipeline_memory > 1e18)
        TRY(rv_node_wrong(in, "pipeline.memory", "bytes (500000, 512MiB, 2GiB)"));
    TRY(write(out, text));
    out->quoted = !*end ? in->quoted : true;
out:
    return status;
}

static rv_status tape_word(const rv_node *node, uint8_t *policy) {
    static const char *const words[] = {"keep", "recompute", "spill"};
    for (uint8_t i = 0; node->kind == RV_NODE_SCALAR && i < 3; i++)
        if (strcmp(node->text, words[i]) == 0) {
            *policy = i;
            return RV_OK;
        }
    return rv_node_wrong(node, "pipeline.tape",
                         "keep, recompute or spill, for all layers also auto");
}

/* One word for all layers, or a map of layers; those it does not name are kept. */
static rv_status tape_load(const keys *k) {
    rv_status status = RV_OK;
    rv_config *config = k->config;
    rv_node *in = NULL, *out = NULL;
    int layers = config->net.layer_count;
    uint8_t *policy = NULL, word = RV_TAPE_KEEP;
    TRY(find(k, "tape", &in, &out));
    config->tape_auto = !in || (in->kind == RV_NODE_SCALAR && strcmp(in->text, "auto") == 0);
    if (config->tape_auto) {
        TRY(write(out, "auto"));
        goto out;
    }
    TRY(rv_pool_get(config->memory, (size_t)layers, sizeof *policy, "tapes", &policy));
    if (in->kind != RV_NODE_MAP) {
        TRY(tape_word(in, &word));
        TRY(write(out, in->text));
        memset(policy, word, (size_t)layers);
    } else {
        rv_node_become(out, RV_NODE_MAP);
        for (int i = 0; i < in->count; i++) {
            const rv_node *one = in->items[i];
            int layer = 0;
            while (layer < layers && strcmp(config->net.layers[layer].name, one->key) != 0)
                layer++;
            if (layer == layers)
                FAIL_AT(RV_CONFIG, one->where, "pipeline.tape", NULL,
                        "\"pipeline.tape\" names \"%.80s\", which is no layer of the network",
                        one->key);
            TRY(tape_word(one, &policy[layer]));
            TRY(rv_node_add_text(out, one->key, one->text, true));
        }
    }
    for (int i = 0; i < layers; i++)
        if (policy[i] != RV_TAPE_KEEP) config->train.tape = policy;
out:
    return status;
}

static rv_where correction_place(const keys *k, const rv_node *node) {
    rv_where where = node->where;
    if (where.file != rv_set_place) where.file = k->config->path;
    return where;
}

/* `gc`, or {lwp_v: {cap: 3}}. */
static rv_status correction_load(const keys *k, const rv_node *one, rv_node *out,
                                 rv_correction_key *to) {
    rv_status status = RV_OK;
    rv_node *entry = NULL, *inner = NULL;
    const rv_node *map = one->kind == RV_NODE_MAP && one->count == 1 ? one->items[0] : NULL;
    rv_node *value = map && map->kind == RV_NODE_MAP && map->count == 1 ? map->items[0] : NULL;
    char text[40], path[RV_PATH_MAX];
    to->where = to->value_where = correction_place(k, one);
    if (one->kind == RV_NODE_SCALAR) {
        TRY(rv_pool_text(k->config->memory, one->text, &to->name));
        TRY(rv_node_add_text(out, NULL, one->text, true));
        goto out;
    }
    if (!value)
        TRY(rv_node_wrong(map ? map : one, "pipeline.corrections",
                          "a list of names, or of maps like {lwp_v: {cap: 3}}"));
    snprintf(path, sizeof path, "pipeline.corrections.%s", map->key);
    const rv_section section = {k->config->memory, NULL, path, map->where};
    const rv_spec number = {
        .name = value->key, .type = RV_T_REAL, .least = -INFINITY, .most = INFINITY};
    TRY(rv_spec_read_node(&section, &number, value, &to->value));
    to->value_where = correction_place(k, value);
    TRY(rv_pool_text(k->config->memory, map->key, &to->name));
    TRY(rv_pool_text(k->config->memory, value->key, &to->parameter));
    rv_real_text(to->value, false, text);
    TRY(rv_node_add(out, RV_NODE_MAP, NULL, &entry));
    TRY(rv_node_add(entry, RV_NODE_MAP, to->name, &inner));
    TRY(rv_node_add_text(inner, to->parameter, text, false));
out:
    return status;
}

/* What there is to correct with, and what goes together, is for the planner. */
static rv_status corrections_load(const keys *k) {
    rv_status status = RV_OK;
    rv_config *config = k->config;
    rv_node *in = NULL, *out = NULL;
    TRY(find(k, "corrections", &in, &out));
    rv_node_become(out, RV_NODE_LIST);
    if (!in) goto out;
    int count = in->kind == RV_NODE_LIST ? in->count : 1;
    if (count > CORRECTIONS_MOST)
        FAIL_AT(RV_CONFIG, in->where, "pipeline.corrections", NULL,
                "\"pipeline.corrections\" has %d entries, at most %d are possible", count,
                CORRECTIONS_MOST);
    if (count == 0) goto out;
    TRY(rv_pool_get(config->memory, (size_t)count, sizeof *config->corrections, "corrections",
                    &config->corrections));
    for (int i = 0; i < count; i++) {
        const rv_node *one = in->kind == RV_NODE_LIST ? in->items[i] : in;
        TRY(correction_load(k, one, out, &config->corrections[config->correction_count++]));
    }
out:
    return status;
}

/* 500, or 2epoch. */
static rv_status until_load(const keys *k) {
    rv_status status = RV_OK;
    rv_config *config = k->config;
    rv_node *in = NULL, *out = NULL;
    char *end = NULL;
    TRY(find(k, "async_until", &in, &out));
    if (!in) goto out;
    const char *text = in->kind == RV_NODE_SCALAR ? in->text : "";
    long long number = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : 0;
    config->async_epochs = end && strcmp(end, "epoch") == 0;
    if (number < 1 || number > INT32_MAX || (*end && !config->async_epochs))
        TRY(rv_node_wrong(in, "pipeline.async_until", "updates (500) or epochs (2epoch)"));
    config->async_until = number;
    TRY(write(out, text));
    out->quoted = config->async_epochs;
out:
    return status;
}

rv_status rv_pipeline_keys(rv_config *config, const rv_node *source, const rv_node *tree) {
    rv_status status = RV_OK;
    const keys k = {config, source, rv_tree_get(tree, "pipeline")};
    bool slots_auto = true;
    config->train.chunks = 1;
    TRY(count_load(&k, "chunks", CHUNKS_MOST, &config->chunks_auto, &config->train.chunks));
    TRY(count_load(&k, "slots", SLOTS_MOST, &slots_auto, &config->slots));
    TRY(cuts_load(&k));
    TRY(memory_load(&k));
    TRY(tape_load(&k));
    TRY(corrections_load(&k));
    TRY(until_load(&k));
out:
    return status;
}
