/*
 * Option structs from configuration nodes and back, by the tables of rv_spec alone: one reader and
 * one writer per type, in a table indexed by rv_type. Nothing here knows a key by name.
 */
#include "data/config.h"

#include <float.h>
#include <limits.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- one value --------------------------------------------------------------------------- */
typedef struct reading {
    rv_pool_memory *pool;
    rv_node *node; /* not null */
    const char *path;
    const rv_spec *spec;
    void *at;
} reading;

/* snprintf cuts a path that is too long: it serves messages only. */
static void path_join(char out[RV_PATH_MAX], const char *path, const char *name) {
    snprintf(out, RV_PATH_MAX, "%s%s%s", path, *path ? "." : "", name);
}

rv_status rv_node_wrong(const rv_node *node, const char *path, const char *expected) {
    static const char *const found[] = {[RV_NODE_LIST] = "a list", [RV_NODE_MAP] = "a map"};
    bool scalar = node->kind == RV_NODE_SCALAR;
    return rv_fail_at(RV_CONFIG, node->where, path, NULL, "\"%s\" must be %s, found %s%.80s%s",
                      path, expected, scalar ? (node->quoted ? "the text \"" : "\"") : "",
                      scalar ? node->text : found[node->kind], scalar ? "\"" : "");
}

/* Written so that NAN limits would refuse: a comparison with NAN is false. */
static rv_status check_limits(const reading *v, const rv_node *node, double number) {
    const rv_spec *spec = v->spec;
    bool low = spec->open ? number <= spec->least : number < spec->least;
    if (!low && number <= spec->most) return RV_OK;
    return rv_fail_at(RV_CONFIG, node->where, v->path, NULL,
                      "\"%s\" must lie in %s%.10g, %.10g%s, found %.80s", v->path,
                      spec->open || isinf(spec->least) ? "(" : "[", spec->least, spec->most,
                      isinf(spec->most) ? ")" : "]", node->text);
}

/* Digits only: neither "1e3" nor "0x10" nor "1_000" is a whole number, as YAML versions differ
 * on all three. */
static rv_status parse_wide(const reading *v, const rv_node *node, int64_t *out) {
    rv_status status = RV_OK;
    const char *digits = node->kind == RV_NODE_SCALAR && !node->quoted ? node->text : "";
    const char *first = digits + (*digits == '-' || *digits == '+');
    long long number;
    if (!*first || first[strspn(first, "0123456789")])
        return rv_node_wrong(node, v->path, "a whole number");
    errno = 0;
    number = strtoll(digits, NULL, 10);
    if (errno)
        FAIL_AT(RV_CONFIG, node->where, v->path, NULL, "\"%s\" is too large: %.80s", v->path,
                node->text);
    TRY(check_limits(v, node, (double)number));
    *out = number;
out:
    return status;
}

/* Limits of the row come first, as their message is the better one. */
static rv_status parse_int(const reading *v, const rv_node *node, int *out) {
    rv_status status = RV_OK;
    int64_t number = 0;
    TRY(parse_wide(v, node, &number));
    if (number < INT_MIN || number > INT_MAX)
        FAIL_AT(RV_CONFIG, node->where, v->path, NULL, "\"%s\" is too large: %.80s", v->path,
                node->text);
    *out = (int)number;
out:
    return status;
}

/* Decimal only. "1e-3" is taken although YAML 1.1 calls it text: users write it, and the
 * resolved file gives it back with a point. */
static rv_status parse_real(const reading *v, const rv_node *node, double *out) {
    const char *text = node->kind == RV_NODE_SCALAR && !node->quoted ? node->text : "";
    char *end = NULL;
    double number;
    /* strtod also takes "inf", "nan" and hexadecimal, which are no numbers here. */
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return rv_node_wrong(node, v->path, "a number");
    number = strtod(text, &end);
    if (*end || end == text) return rv_node_wrong(node, v->path, "a number");
    if (isinf(number)) return rv_node_wrong(node, v->path, "a finite number");
    *out = number;
    return check_limits(v, node, number);
}

/* ---- readers by type --------------------------------------------------------------------- */
/* The words of YAML 1.1 in any case; `y` and `n` are left out because PyYAML leaves them out. */
static rv_status read_bool(const reading *v) {
    static const char *const words[] = {"false", "no", "off", "true", "yes", "on"};
    if (v->node->kind == RV_NODE_SCALAR && !v->node->quoted)
        for (int i = 0; i < 6; i++)
            if (strcasecmp(v->node->text, words[i]) == 0) {
                *(bool *)v->at = i >= 3;
                return RV_OK;
            }
    return rv_node_wrong(v->node, v->path, "true or false");
}

static rv_status read_int(const reading *v) {
    return parse_int(v, v->node, v->at);
}

static rv_status read_wide(const reading *v) {
    return parse_wide(v, v->node, v->at);
}

static rv_status read_real(const reading *v) {
    return parse_real(v, v->node, v->at);
}

/* A scalar lies in the option struct itself, a list in the pool. Values are float32 from here
 * on, so what is written back is what the network computes with. */
static rv_status read_reals(const reading *v) {
    rv_status status = RV_OK;
    rv_reals *reals = v->at;
    bool list = v->node->kind == RV_NODE_LIST;
    int count = list ? v->node->count : 1;
    float *data = &reals->value;
    if (count == 0) return rv_node_wrong(v->node, v->path, "a number or a list of numbers");
    if (list) TRY(rv_pool_get(v->pool, (size_t)count, sizeof *data, v->path, &data));
    for (int i = 0; i < count; i++) {
        const rv_node *node = list ? v->node->items[i] : v->node;
        double number = 0;
        TRY(parse_real(v, node, &number));
        if (fabs(number) > FLT_MAX)
            FAIL_AT(RV_CONFIG, node->where, v->path, NULL, "\"%s\" is too large: %.80s", v->path,
                    node->text);
        data[i] = (float)number;
    }
    reals->count = count;
    reals->value = data[0];
    reals->data = data;
out:
    return status;
}

/* The words are few: a scan of the spec's own text needs no table of them. */
static rv_status read_choice(const reading *v) {
    const char *text = v->node->kind == RV_NODE_SCALAR ? v->node->text : "";
    rv_nearest nearest = {.word = text};
    int index = 0;
    for (const char *at = v->spec->choices; *at; index++) {
        size_t length = strcspn(at, "|");
        if (length == strlen(text) && strncmp(at, text, length) == 0) {
            *(int *)v->at = index;
            return RV_OK;
        }
        rv_nearest_offer(&nearest, at, length);
        at += length + (at[length] == '|');
    }
    if (!*text) return rv_node_wrong(v->node, v->path, "a word");
    return rv_fail_at(RV_CONFIG, v->node->where, v->path, rv_nearest_word(&nearest),
                      "\"%s\" must be one of %s, found \"%.80s\"", v->path, v->spec->choices, text);
}

/* Text; a list of words is the same as the words with spaces between. So `learn: [beta,
 * threshold]` and `learn: beta threshold` are the same. */
static rv_status read_text(const reading *v) {
    rv_status status = RV_OK;
    const rv_node *node = v->node;
    size_t size = 1;
    char *text = NULL;
    if (node->kind == RV_NODE_SCALAR) {
        if (!*node->text && v->spec->least >= 1) return rv_node_wrong(node, v->path, "some text");
        TRY(rv_pool_text(v->pool, node->text, v->at));
        goto out;
    }
    if (node->kind == RV_NODE_MAP) return rv_node_wrong(node, v->path, "text");
    for (int i = 0; i < node->count; i++) {
        if (node->items[i]->kind != RV_NODE_SCALAR) return rv_node_wrong(node, v->path, "text");
        size += strlen(node->items[i]->text) + 1;
    }
    TRY(rv_pool_get(v->pool, size, 1, v->path, &text));
    for (int i = 0; i < node->count; i++) {
        if (i) strcat(text, " ");
        strcat(text, node->items[i]->text);
    }
    *(char **)v->at = text;
out:
    return status;
}

/* [h, w], or one number for both, as in PyTorch. */
static rv_status read_pair(const reading *v) {
    rv_status status = RV_OK;
    const rv_node *node = v->node;
    int *pair = v->at;
    if (node->kind != RV_NODE_LIST) {
        TRY(parse_int(v, node, &pair[0]));
        pair[1] = pair[0];
        goto out;
    }
    if (node->count != 2) return rv_node_wrong(node, v->path, "a whole number or two");
    for (int i = 0; i < 2; i++)
        TRY(parse_int(v, node->items[i], &pair[i]));
out:
    return status;
}

/* A row within a row, such as the surrogate of a neuron; read_row and rv_choice_read call each
 * other as deep as tables refer to tables. */
static rv_status read_row(const reading *v) {
    rv_section section = {v->pool, v->node, v->path, v->node->where};
    return rv_choice_read(&section, "kind", v->spec->table, NULL, NULL, v->at);
}

/* The code that owns the key reads it; here it is only known. */
static rv_status read_own(const reading *v) {
    (void)v;
    return RV_OK;
}

/* ---- writers by type --------------------------------------------------------------------- */
/* A float32 needs at most 9 digits and a double 17; the first count that reads back equal is the
 * shortest, and the one the user most likely wrote. */
void rv_real_text(double value, bool single, char buffer[40]) {
    char digits[32];
    const char *exponent;
    for (int precision = single ? 6 : 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        double back = strtod(digits, NULL);
        if (single ? (float)back == (float)value : back == value) break;
    }
    exponent = strchr(digits, 'e');
    /* YAML 1.1 takes "1e-05" and "1" for a string and a whole number: a point makes it a real. */
    snprintf(buffer, 40, "%.*s%s%s", exponent ? (int)(exponent - digits) : 32, digits,
             strchr(digits, '.') ? "" : ".0", exponent ? exponent : "");
}

static rv_status write_bool(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    (void)spec;
    return rv_node_add_text(map, key, *(const bool *)at ? "true" : "false", false);
}

static rv_status add_wide(rv_node *map, const char *key, int64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)number);
    return rv_node_add_text(map, key, text, false);
}

static rv_status write_int(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    (void)spec;
    return add_wide(map, key, *(const int *)at);
}

static rv_status write_wide(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    (void)spec;
    return add_wide(map, key, *(const int64_t *)at);
}

/* NAN stands for "not given" and is written as null, which reads back as the default: NAN. */
static rv_status add_real(rv_node *map, const char *key, double number, bool single) {
    char text[40];
    if (!isnan(number)) rv_real_text(number, single, text);
    return rv_node_add_text(map, key, isnan(number) ? NULL : text, false);
}

static rv_status write_real(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    (void)spec;
    return add_real(map, key, *(const double *)at, false);
}

/* The data pointer tells a scalar from a list: [0.5] stays a list of one, and means one unit. */
static rv_status write_reals(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    rv_status status = RV_OK;
    const rv_reals *reals = at;
    rv_node *list = NULL;
    (void)spec;
    /* A list of one stays a list; a scalar's data points at its value. */
    if (reals->data == &reals->value) return add_real(map, key, reals->value, true);
    if (reals->count == 0) return rv_node_add_text(map, key, NULL, false);
    TRY(rv_node_add(map, RV_NODE_LIST, key, &list));
    for (int i = 0; i < reals->count; i++)
        TRY(add_real(list, NULL, reals->data[i], true));
out:
    return status;
}

/* Words are text, though none of ours needs quotes. */
static rv_status write_choice(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    char word[RV_NAME_MAX];
    rv_word_at(spec->choices, *(const int *)at, word);
    return rv_node_add_text(map, key, word, true);
}

static rv_status write_text(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    (void)spec;
    return rv_node_add_text(map, key, *(char *const *)at, true);
}

/* Equal halves are written as the user would write them. */
static rv_status write_pair(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    rv_status status = RV_OK;
    const int *pair = at;
    rv_node *list = NULL;
    (void)spec;
    if (pair[0] == pair[1]) return add_wide(map, key, pair[0]);
    TRY(rv_node_add(map, RV_NODE_LIST, key, &list));
    for (int i = 0; i < 2; i++)
        TRY(add_wide(list, NULL, pair[i]));
out:
    return status;
}

/* Keeps the place of the key in the order of the file; its owner fills it. */
static rv_status write_own(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    (void)spec, (void)at;
    return rv_node_add_text(map, key, NULL, false);
}

/* The name first, then every parameter. */
static rv_status write_row(rv_node *map, const char *key, const rv_spec *spec, const void *at) {
    rv_status status = RV_OK;
    const rv_choice *choice = at;
    rv_node *row = NULL;
    (void)spec;
    if (!choice->row) return rv_node_add_text(map, key, NULL, false);
    TRY(rv_node_add(map, RV_NODE_MAP, key, &row));
    TRY(rv_node_add_text(row, "kind", choice->row->name, true));
    TRY(rv_specs_write(row, choice->row->specs, choice->options));
out:
    return status;
}

typedef struct type_row {
    rv_status (*read)(const reading *v);
    rv_status (*write)(rv_node *map, const char *key, const rv_spec *spec, const void *at);
} type_row;

static const type_row types[] = {
    [RV_T_BOOL] = {read_bool, write_bool},       [RV_T_INT] = {read_int, write_int},
    [RV_T_REAL] = {read_real, write_real},       [RV_T_REALS] = {read_reals, write_reals},
    [RV_T_CHOICE] = {read_choice, write_choice}, [RV_T_TEXT] = {read_text, write_text},
    [RV_T_PAIR] = {read_pair, write_pair},       [RV_T_ROW] = {read_row, write_row},
    [RV_T_WIDE] = {read_wide, write_wide},       [RV_T_OWN] = {read_own, write_own},
};

/* ---- whole structs ----------------------------------------------------------------------- */
/* Rows of other folders have none of our types, so rv_specs_default need not know them. */
void rv_keys_default(const rv_spec *specs, void *options) {
    rv_specs_default(specs, options);
    for (const rv_spec *spec = specs; spec && spec->name; spec++)
        if (spec->type == RV_T_WIDE)
            *(int64_t *)((char *)options + spec->offset) = (int64_t)spec->initial;
}

/* Also used alone: by presets, and for values without a key of their own. */
rv_status rv_spec_read_node(const rv_section *section, const rv_spec *spec, rv_node *node,
                            void *options) {
    char path[RV_PATH_MAX];
    reading v = {section->pool, node, path, spec, (char *)options + spec->offset};
    path_join(path, section->path, spec->name);
    return types[spec->type].read(&v);
}

/* What stays when a key is absent: the default already there, filled in for rows, or an error. */
static rv_status read_absent(const rv_section *section, const rv_spec *spec, void *options) {
    rv_status status = RV_OK;
    char path[RV_PATH_MAX];
    char *at = (char *)options + spec->offset;
    bool whole = spec->type == RV_T_INT || spec->type == RV_T_PAIR;
    bool text = spec->type == RV_T_TEXT && !spec->choices && spec->least >= 1;
    path_join(path, section->path, spec->name);
    if ((whole && isnan(spec->initial)) || (text && !*(char **)at))
        FAIL_AT(RV_CONFIG, section->where, path, NULL, "\"%s\" is required: %s", path,
                spec->sentence);
    if (spec->type == RV_T_ROW && ((rv_choice *)at)->row) {
        rv_section row = {section->pool, NULL, path, section->where};
        TRY(rv_choice_read(&row, "kind", spec->table, NULL, NULL, (rv_choice *)at));
    }
out:
    return status;
}

/* Values are read in the order of the table; a section's unknown keys have been refused before
 * (rv_specs_known), because a misspelt key explains a missing one. */
rv_status rv_specs_read(const rv_section *section, const rv_spec *specs, void *options) {
    rv_status status = RV_OK;
    for (const rv_spec *spec = specs; spec && spec->name; spec++) {
        rv_node *node = NULL;
        TRY(rv_node_find(section->node, section->path, spec->name, &node));
        if (node)
            TRY(rv_spec_read_node(section, spec, node, options));
        else
            TRY(read_absent(section, spec, options));
    }
out:
    return status;
}

/* Does a spec name the key at `prefix` (dotted, "" at the section's own level)? It may end there
 * (leaf) or go on below (inner). All names of that level are offered as hints. */
static void known_scan(const rv_spec *specs, const char *prefix, const char *key,
                       rv_nearest *nearest, bool *leaf, bool *inner) {
    size_t skip = strlen(prefix);
    for (const rv_spec *spec = specs; spec && spec->name; spec++) {
        const char *word = spec->name + skip;
        size_t length;
        if (strncmp(spec->name, prefix, skip) != 0) continue;
        length = strcspn(word, ".");
        if (strlen(key) == length && strncmp(word, key, length) == 0)
            *(word[length] ? inner : leaf) = true;
        rv_nearest_offer(nearest, word, length);
    }
}

static rv_status known_level(const rv_section *section, const rv_node *map, const char *prefix,
                             const rv_spec *a, const rv_spec *b, const char *word) {
    rv_status status = RV_OK;
    for (int i = 0; map && map->kind == RV_NODE_MAP && i < map->count; i++) {
        const rv_node *item = map->items[i];
        rv_nearest nearest = {.word = item->key};
        bool leaf = word && strcmp(item->key, word) == 0, inner = false;
        char path[RV_PATH_MAX], below[RV_PATH_MAX];
        if (word) rv_nearest_offer(&nearest, word, strlen(word));
        known_scan(a, prefix, item->key, &nearest, &leaf, &inner);
        known_scan(b, prefix, item->key, &nearest, &leaf, &inner);
        snprintf(below, sizeof below, "%s%s.", prefix, item->key);
        if (inner) {
            TRY(known_level(section, item, below, a, b, NULL));
        } else if (!leaf) {
            below[strlen(below) - 1] = 0;
            path_join(path, section->path, below);
            FAIL_AT(RV_CONFIG, item->where, path, rv_nearest_word(&nearest),
                    "unknown key \"%.80s\"", item->key);
        }
    }
out:
    return status;
}

/* Levels of a dotted name are walked with it: `normalize` is known because `normalize.mean` is. */
rv_status rv_specs_known(const rv_section *section, const rv_spec *a, const rv_spec *b,
                         const char *word) {
    return known_level(section, section->node, "", a, b, word);
}

/* Maps on the way to a dotted name are made when its first key comes, so keys that share one
 * stand together in the order of the table. */
rv_status rv_specs_write(rv_node *map, const rv_spec *specs, const void *options) {
    rv_status status = RV_OK;
    for (const rv_spec *spec = specs; spec && spec->name; spec++) {
        rv_node *at = map;
        const char *name = spec->name;
        for (size_t length = strcspn(name, "."); name[length]; length = strcspn(name, ".")) {
            char word[RV_NAME_MAX];
            rv_node *below;
            snprintf(word, sizeof word, "%.*s", (int)length, name);
            below = rv_tree_get(at, word);
            if (!below) TRY(rv_node_add(at, RV_NODE_MAP, word, &below));
            at = below;
            name += length + 1;
        }
        TRY(types[spec->type].write(at, name, spec, (const char *)options + spec->offset));
    }
out:
    return status;
}

/* ---- rows -------------------------------------------------------------------------------- */
/* Three ways to say which: by the key, by a scalar in place of the map, or not at all (what
 * *choice holds on entry). */
rv_status rv_choice_pick(const rv_section *section, const char *word, const rv_table *table,
                         const rv_table *other, rv_choice *choice) {
    rv_status status = RV_OK;
    rv_node *name = section->node;
    const rv_row *row = choice->row;
    char path[RV_PATH_MAX];
    path_join(path, section->path, word);
    if (name && name->kind == RV_NODE_MAP) {
        name = rv_tree_get(name, word);
        if (rv_node_null(name)) name = NULL;
    } else if (name) {
        snprintf(path, sizeof path, "%s", section->path);
    }
    if (name) {
        rv_nearest nearest = {.word = name->kind == RV_NODE_SCALAR ? name->text : ""};
        rv_nearest_table(&nearest, table);
        rv_nearest_table(&nearest, other);
        row = rv_table_find(table, nearest.word);
        if (!row && other) row = rv_table_find(other, nearest.word);
        if (!row)
            FAIL_AT(RV_CONFIG, name->where, path, rv_nearest_word(&nearest),
                    "\"%s\" must name one of the %s, found \"%.80s\"", path, table->name,
                    nearest.word);
    }
    if (!row)
        FAIL_AT(RV_CONFIG, section->where, path, NULL, "\"%s\" is required: one of the %s", path,
                table->name);
    /* Options already there (a preset's) stay when the row is the same. */
    if (row != choice->row || !choice->options) {
        choice->row = row;
        choice->options = NULL;
        if (row->options_size)
            TRY(rv_pool_get(section->pool, 1, row->options_size, "options", &choice->options));
        rv_specs_default(row->specs, choice->options);
    }
out:
    return status;
}

/* The map's keys are those of the row, of `extra`, and the word itself. */
rv_status rv_choice_read(const rv_section *section, const char *word, const rv_table *table,
                         const rv_spec *extra, void *extra_options, rv_choice *choice) {
    rv_status status = RV_OK;
    rv_section map = *section;
    TRY(rv_choice_pick(section, word, table, NULL, choice));
    if (map.node && map.node->kind != RV_NODE_MAP) map.node = NULL; /* the name alone */
    TRY(rv_specs_known(&map, choice->row->specs, extra, word));
    TRY(rv_specs_read(&map, extra, extra_options));
    TRY(rv_specs_read(&map, choice->row->specs, choice->options));
out:
    return status;
}
