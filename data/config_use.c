/* What is done with a checked recipe: its text, its digest, joining it to the data. */
#include "data/reader.h"

#include <stdio.h>
#include <string.h>

/* The tree, not the structs: it also carries what was set after loading (forms). */
rv_status rv_config_text(const rv_config *config, char **text) {
    return rv_tree_text(config->tree, text);
}

/* ---- binding ----------------------------------------------------------------------------- */
/* An encoder knows neither recipe nor place: what it finds wrong is put where `encode` stands. */
static rv_status encode_check(const rv_config *config, const rv_source *source,
                              rv_encoding *encoding) {
    rv_status status = rv_encoder_check(&config->encode, source, encoding);
    const rv_node *node = rv_tree_get(config->tree, "encode");
    if (status == RV_CONFIG && node && !rv_error_get()->file[0])
        status = rv_fail_at(status, node->where, "encode", NULL, "%s", rv_error_get()->message);
    return status;
}

/* Only here do recipe and data meet; what they disagree on is a fault of the recipe. */
rv_status rv_config_bind(rv_config *config, const rv_source *source) {
    rv_status status = RV_OK;
    rv_encoding encoding = {0};
    rv_where where = {config->path, 0, 0};
    char given[48], got[48];
    const rv_node *input = rv_tree_get(config->tree, "input");
    if (input) where = input->where;
    TRY(encode_check(config, source, &encoding));
    config->net.input = encoding.shape;
    if (config->input.rank) {
        /* The same units in another shape are the same input: [784] for [1, 28, 28]. */
        bool fits = config->input.rank == encoding.shape.rank
                        ? rv_shape_equal(config->input, encoding.shape)
                        : rv_shape_units(config->input) == rv_shape_units(encoding.shape);
        if (!fits)
            FAIL_AT(RV_CONFIG, where, "input", NULL,
                    "\"input\" is %s, but reader and encoder give %s",
                    rv_shape_text(config->input, given), rv_shape_text(encoding.shape, got));
        config->net.input = config->input;
    }
    config->net.input_spikes = encoding.spikes;
    config->net.input_held = encoding.held;
    config->net.steps = config->steps = encoding.steps;
    config->loss.classes = source->classes;
    if (config->train.chunks > config->steps) {
        const rv_node *node = rv_tree_get(rv_tree_get(config->tree, "pipeline"), "chunks");
        FAIL_AT(RV_CONFIG, node ? node->where : where, "pipeline.chunks", NULL,
                "\"pipeline.chunks\" (%d) is more than the time steps (%d)", config->train.chunks,
                config->steps);
    }
    if (config->loss.class_weights.count && config->loss.class_weights.count != source->classes)
        FAIL_AT(RV_CONFIG, config->loss.where, "loss.class_weights", NULL,
                "\"loss.class_weights\" has %d factors, the data %d classes",
                config->loss.class_weights.count, source->classes);
out:
    return status;
}

/* ---- digest ------------------------------------------------------------------------------ */
/* Keys whose change does not make it another training run: where it runs, how long, how it is cut
 * or saved. Forms come from the checkpoint. */
static const char *const digest_without[] = {
    "preset",           "train.epochs", "train.max_steps",
    "train.early_stop", "pipeline",     "checkpoint",
    "health",           "device",       "form",
};

/* By full path, or by key wherever it stands (`form`). */
static bool digest_skips(const rv_reader *reader, const char *path, const char *key) {
    for (size_t i = 0; i < sizeof digest_without / sizeof *digest_without; i++)
        if (strcmp(digest_without[i], path) == 0 || strcmp(digest_without[i], key) == 0)
            return true;
    for (int i = 0; reader->files && reader->files[i]; i++)
        if (strncmp(path, "data.", 5) == 0 && strcmp(reader->files[i], path + 5) == 0) return true;
    return false;
}

/* Kinds, keys and ends are mixed in, so that moving a value between maps changes the digest. */
static uint64_t digest_node(const rv_reader *reader, const rv_node *node, const char *path,
                            uint64_t hash) {
    hash = rv_hash_text(
        hash, node->kind == RV_NODE_SCALAR ? node->text : (node->kind == RV_NODE_MAP ? "{" : "["));
    for (int i = 0; i < node->count; i++) {
        const rv_node *item = node->items[i];
        char below[RV_PATH_MAX];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", item->key ? item->key : "");
        if (item->key && digest_skips(reader, below, item->key)) continue;
        if (item->key) hash = rv_hash_text(hash, item->key);
        hash = digest_node(reader, item, below, hash);
    }
    return rv_hash_text(hash, "end");
}

/* Computed from the resolved tree: recipes that say the same in different words are the same. */
rv_status rv_config_digest(const rv_config *config, char hex[17]) {
    rv_status status = RV_OK;
    const rv_reader *reader = ((const rv_reader_row *)config->data.reader)->reader;
    uint64_t hash = digest_node(reader, config->tree, "", RV_HASH_START);
    hex[0] = 0;
    if (reader->digest) TRY(reader->digest(config, &hash));
    snprintf(hex, 17, "%016llx", (unsigned long long)hash);
out:
    return status;
}

/* ---- difference -------------------------------------------------------------------------- */
/* A value as a message shows it. */
static void value_show(const rv_node *node, char text[64]) {
    if (!node)
        snprintf(text, 64, "absent");
    else if (node->kind == RV_NODE_SCALAR)
        snprintf(text, 64, "%.60s", node->text);
    else
        snprintf(text, 64, node->kind == RV_NODE_MAP ? "a map of %d" : "a list of %d", node->count);
}

/* Entries of lists are called by their names, as --set calls them. */
static void path_join(const char *path, const rv_node *item, int index, char below[RV_PATH_MAX]) {
    const rv_node *name =
        !item->key && item->kind == RV_NODE_MAP ? rv_tree_get(item, "name") : NULL;
    char number[16];
    snprintf(number, sizeof number, "%d", index);
    snprintf(below, RV_PATH_MAX, "%s%s%s", path, *path ? "." : "",
             item->key ? item->key
             : name    ? name->text
                       : number);
}

/* The first place where b is not a, with both values, into `text`; false: none. Lists are compared
 * by position. skip: the path as the digest knows it, without the names of entries. */
static bool node_differs(const rv_reader *reader, const rv_node *a, const rv_node *b,
                         const char *path, const char *skip, char *text, size_t size) {
    char old[64], new[64], below[RV_PATH_MAX], plain[RV_PATH_MAX];
    bool same = a && b && a->kind == b->kind &&
                (a->kind != RV_NODE_SCALAR || strcmp(a->text, b->text) == 0);
    if (!same) {
        value_show(a, old), value_show(b, new);
        snprintf(text, size, "%s was %s, now %s", path, old, new);
        return true;
    }
    for (int i = 0; i < a->count + b->count; i++) { /* what a has, then what b has */
        int k = i < a->count ? i : i - a->count;
        const rv_node *item = i < a->count ? a->items[k] : b->items[k];
        bool map = a->kind == RV_NODE_MAP;
        const rv_node *left = map ? rv_tree_get(a, item->key) : k < a->count ? a->items[k] : NULL;
        const rv_node *right = map ? rv_tree_get(b, item->key) : k < b->count ? b->items[k] : NULL;
        path_join(path, item, k, below);
        snprintf(plain, sizeof plain, "%s%s%s", skip, *skip ? "." : "", item->key ? item->key : "");
        if (item->key && digest_skips(reader, plain, item->key)) continue;
        if (node_differs(reader, left, right, below, plain, text, size)) return true;
    }
    return false;
}

bool rv_config_differs(const rv_config *a, const rv_config *b, char *text, size_t size) {
    const rv_reader *reader = ((const rv_reader_row *)a->data.reader)->reader;
    return node_differs(reader, a->tree, b->tree, "", "", text, size);
}

/* ---- names ------------------------------------------------------------------------------- */
/* Names that `from` holds are those of layers, or of the input. The network asks that too, but only
 * here the place of the word is known. */
rv_status rv_config_from_check(const rv_net_desc *net, const rv_node *from) {
    rv_status status = RV_OK;
    for (int k = 0; !rv_node_null(from) && k < (from->kind == RV_NODE_LIST ? from->count : 1);
         k++) {
        const rv_node *one = from->kind == RV_NODE_LIST ? from->items[k] : from;
        rv_nearest nearest = {.word = one->text};
        bool known = strcmp(one->text, "input") == 0;
        for (int i = 0; i < net->layer_count; i++) {
            known |= strcmp(one->text, net->layers[i].name) == 0;
            rv_nearest_offer(&nearest, net->layers[i].name, strlen(net->layers[i].name));
        }
        if (!known)
            FAIL_AT(RV_CONFIG, one->where, "from", rv_nearest_word(&nearest),
                    "no layer has the name \"%s\"", one->text);
    }
out:
    return status;
}
