/*
 * YAML into a tree that keeps line and column. libyaml's events are taken as they come; anchors,
 * aliases and tags are refused (a recipe needs none, and aliases let a small file grow without
 * bound). Limits on bytes, depth, keys and nodes hold before memory is taken.
 */
#include "data/config.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

enum {
    BYTES_MOST = 1 << 20,
    DEPTH_MOST = 32,
    KEYS_MOST = 256,      /* of one map: keys are compared with each other */
    NODES_MOST = 1 << 17, /* of one file */
};

typedef struct root { /* the root node and the name its places point at */
    rv_node node;
    char *name;
} root;

typedef struct source {
    yaml_parser_t yaml;
    const char *name;
    int nodes;
    rv_status bad; /* RV_CONFIG, or RV_USAGE for a value of --set */
} source;

/* ---- nodes ------------------------------------------------------------------------------- */
/* Frees what hangs below a node and its text, not its key: the node itself stays in its parent. */
static void node_clear(rv_node *node) {
    for (int i = 0; i < node->count; i++) {
        node_clear(node->items[i]);
        rv_free(node->items[i]->key);
        rv_free(node->items[i]);
    }
    rv_free(node->items);
    rv_free(node->text);
    node->items = NULL;
    node->text = NULL;
    node->count = 0;
}

/* An assignment and a resolved section replace a value in place, so that the order of keys and
 * the key itself stay as they were. */
void rv_node_become(rv_node *node, rv_node_kind kind) {
    node_clear(node);
    node->kind = kind;
    node->quoted = false;
}

/* Only a root may be given here: it alone owns the file's name that all places point at. */
void rv_tree_free(rv_node *tree) {
    root *whole = (root *)tree;
    if (!whole) return;
    node_clear(&whole->node);
    rv_free(whole->name);
    rv_free(whole);
}

/* The name is copied, because places are looked at long after the caller's text is gone. */
rv_status rv_node_root(const char *name, rv_node **out) {
    rv_status status = RV_OK;
    root *whole = NULL;
    TRY(rv_alloc(1, sizeof *whole, "a configuration tree", &whole));
    TRY(rv_strdup(name, &whole->name));
    whole->node.kind = RV_NODE_MAP;
    whole->node.where = (rv_where){whole->name, 1, 1};
    *out = &whole->node;
    whole = NULL;
out:
    rv_free(whole);
    return status;
}

/* A child starts with its parent's place: nodes made by the program (resolved trees) then point
 * at the nearest thing the user wrote. */
rv_status rv_node_add(rv_node *parent, rv_node_kind kind, const char *key, rv_node **out) {
    rv_status status = RV_OK;
    rv_node *node = NULL, **items = NULL;
    TRY(rv_alloc(1, sizeof *node, "a configuration node", &node));
    node->kind = kind;
    node->where = parent->where;
    if (key) TRY(rv_strdup(key, &node->key));
    if ((parent->count & (parent->count - 1)) == 0) { /* full: capacities are powers of two */
        size_t more = parent->count ? 2 * (size_t)parent->count : 1;
        TRY(rv_alloc(more, sizeof *items, "configuration nodes", &items));
        if (parent->count) memcpy(items, parent->items, (size_t)parent->count * sizeof *items);
        rv_free(parent->items);
        parent->items = items;
    }
    parent->items[parent->count++] = node;
    *out = node;
    node = NULL;
out:
    if (node) rv_free(node->key);
    rv_free(node);
    return status;
}

rv_status rv_node_add_text(rv_node *parent, const char *key, const char *text, bool quoted) {
    rv_status status = RV_OK;
    rv_node *node = NULL;
    TRY(rv_node_add(parent, RV_NODE_SCALAR, key, &node));
    node->quoted = quoted && text;
    TRY(rv_strdup(text ? text : "null", &node->text));
out:
    return status;
}

/* A linear search: maps have at most KEYS_MOST keys, and most have fewer than ten. */
rv_node *rv_tree_get(const rv_node *map, const char *key) {
    if (!map || map->kind != RV_NODE_MAP) return NULL;
    for (int i = 0; i < map->count; i++) {
        if (strcmp(map->items[i]->key, key) == 0) {
            map->items[i]->used = true;
            return map->items[i];
        }
    }
    return NULL;
}

/* The spellings of YAML 1.1, so that PyYAML and this program agree on what is absent. */
bool rv_node_null(const rv_node *node) {
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (!node) return true;
    if (node->kind != RV_NODE_SCALAR || node->quoted) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(node->text, words[i]) == 0) return true;
    return false;
}

rv_status rv_node_find(const rv_node *map, const char *base, const char *dotted, rv_node **out) {
    rv_status status = RV_OK;
    const rv_node *at = map;
    const char *rest = dotted;
    char word[RV_NAME_MAX + 32], path[RV_PATH_MAX];
    *out = NULL;
    while (!rv_node_null(at)) {
        size_t length = strcspn(rest, ".");
        if (at->kind != RV_NODE_MAP) {
            snprintf(path, sizeof path, "%s%s%.*s", base, *base && rest > dotted ? "." : "",
                     rest > dotted ? (int)(rest - dotted) - 1 : 0, dotted);
            FAIL_AT(RV_CONFIG, at->where, path, NULL, "\"%s\" must be a map", path);
        }
        snprintf(word, sizeof word, "%.*s", (int)length, rest);
        at = rv_tree_get(at, word);
        if (rest[length] == 0) {
            *out = rv_node_null(at) ? NULL : (rv_node *)at;
            break;
        }
        rest += length + 1;
    }
out:
    return status;
}

/* ---- parsing ----------------------------------------------------------------------------- */
/* Line and column count from 0 in libyaml and from 1 in messages. */
static int place(size_t zero_based) {
    return zero_based < INT_MAX ? (int)zero_based + 1 : INT_MAX;
}

static rv_where where_of(const source *from, yaml_mark_t mark) {
    return (rv_where){from->name, place(mark.line), place(mark.column)};
}

/* libyaml tells malformed text by a return value and leaves the reason in the parser; the place
 * is that of the problem, not of the context that began earlier. */
static rv_status event_next(source *from, yaml_event_t *event) {
    const yaml_parser_t *yaml = &from->yaml;
    if (yaml_parser_parse(&from->yaml, event)) return RV_OK;
    if (yaml->error == YAML_MEMORY_ERROR)
        return rv_fail(RV_MEMORY, "out of memory while reading %s", from->name);
    return rv_fail_at(from->bad, where_of(from, yaml->problem_mark), NULL, NULL,
                      "malformed YAML: %s%s%s%s", yaml->problem ? yaml->problem : "unreadable",
                      yaml->context ? " (" : "", yaml->context ? yaml->context : "",
                      yaml->context ? ")" : "");
}

/* A key or scalar as C text; what an embedded NUL would cut off is refused, not lost. */
static rv_status scalar_text(const source *from, const yaml_event_t *event, char **out) {
    rv_status status = RV_OK;
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        FAIL_AT(from->bad, where_of(from, event->start_mark), NULL, NULL,
                "a NUL character is not allowed");
    TRY(rv_strdup(text, out));
out:
    return status;
}

/* Checked for every event before anything is allocated for it. Merge keys (<<) need an alias and
 * so cannot occur. */
static rv_status event_allowed(const source *from, const yaml_event_t *event, int depth) {
    rv_where where = where_of(from, event->start_mark);
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_ALIAS_EVENT)
        return rv_fail_at(from->bad, where, NULL, NULL, "aliases are not allowed");
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor) return rv_fail_at(from->bad, where, NULL, NULL, "anchors are not allowed");
    if (tag) return rv_fail_at(from->bad, where, NULL, NULL, "tags are not allowed");
    if (depth > DEPTH_MOST)
        return rv_fail_at(from->bad, where, NULL, NULL, "nested deeper than %d", DEPTH_MOST);
    if (from->nodes >= NODES_MOST)
        return rv_fail_at(from->bad, where, NULL, NULL, "more than %d values", NODES_MOST);
    return RV_OK;
}

static rv_status value_read(source *from, const yaml_event_t *event, rv_node *node, int depth);

/* One key and its value. Duplicate keys are an error here though YAML parsers often take the
 * last: in a recipe the second one is a mistake the user wants to see. */
static rv_status entry_read(source *from, const yaml_event_t *key, rv_node *map, int depth) {
    rv_status status = RV_OK;
    yaml_event_t event = {0};
    rv_where where = where_of(from, key->start_mark);
    rv_node *node = NULL;
    char *text = NULL;
    TRY(event_allowed(from, key, depth));
    if (key->type != YAML_SCALAR_EVENT) FAIL_AT(from->bad, where, NULL, NULL, "a key must be text");
    TRY(scalar_text(from, key, &text));
    for (int i = 0; i < map->count; i++)
        if (strcmp(map->items[i]->key, text) == 0)
            FAIL_AT(from->bad, where, text, NULL, "key \"%s\" appears twice (first in line %d)",
                    text, map->items[i]->where.line);
    if (map->count >= KEYS_MOST)
        FAIL_AT(from->bad, where, text, NULL, "more than %d keys in one map", KEYS_MOST);
    TRY(rv_node_add(map, RV_NODE_SCALAR, text, &node));
    TRY(event_next(from, &event));
    TRY(value_read(from, &event, node, depth));
    node->where = where; /* of the key: where a reader looks for it */
out:
    yaml_event_delete(&event);
    rv_free(text);
    return status;
}

/* The items of a map or list up to its end event. Ends at the matching end event, which libyaml
 * has already paired with its start. */
static rv_status items_read(source *from, rv_node *node, int depth) {
    rv_status status = RV_OK;
    yaml_event_type_t end =
        node->kind == RV_NODE_MAP ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    yaml_event_t event = {0};
    for (;;) {
        TRY(event_next(from, &event));
        if (event.type == end) break;
        if (node->kind == RV_NODE_MAP) {
            TRY(entry_read(from, &event, node, depth + 1));
        } else {
            rv_node *item = NULL;
            TRY(event_allowed(from, &event, depth + 1));
            TRY(rv_node_add(node, RV_NODE_SCALAR, NULL, &item));
            TRY(value_read(from, &event, item, depth + 1));
        }
        yaml_event_delete(&event);
    }
out:
    yaml_event_delete(&event);
    return status;
}

/* The recursion is as deep as the file nests, which event_allowed bounds. */
static rv_status value_read(source *from, const yaml_event_t *event, rv_node *node, int depth) {
    rv_status status = RV_OK;
    TRY(event_allowed(from, event, depth));
    from->nodes++;
    node->where = where_of(from, event->start_mark);
    if (event->type == YAML_SCALAR_EVENT) {
        node->kind = RV_NODE_SCALAR;
        node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        TRY(scalar_text(from, event, &node->text));
    } else {
        node->kind = event->type == YAML_MAPPING_START_EVENT ? RV_NODE_MAP : RV_NODE_LIST;
        TRY(items_read(from, node, depth));
    }
out:
    return status;
}

/* One document into `node`; on failure node may be half filled. */
static rv_status document_read(const char *text, size_t size, const char *name, rv_status bad,
                               rv_node *node) {
    rv_status status = RV_OK;
    source from = {.name = name, .bad = bad};
    yaml_event_t event = {0};
    if (size > BYTES_MOST)
        return rv_fail_at(bad, (rv_where){name, 1, 1}, NULL, NULL, "larger than %d bytes",
                          BYTES_MOST);
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        text += 3, size -= 3; /* as editors put it */
    if (!yaml_parser_initialize(&from.yaml))
        return rv_fail(RV_MEMORY, "out of memory while reading %s", name);
    yaml_parser_set_input_string(&from.yaml, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&from.yaml, YAML_UTF8_ENCODING);
    TRY(event_next(&from, &event)); /* start of the stream */
    yaml_event_delete(&event);
    TRY(event_next(&from, &event));
    if (event.type == YAML_STREAM_END_EVENT)
        FAIL_AT(bad, ((rv_where){name, 1, 1}), NULL, NULL, "nothing in it");
    yaml_event_delete(&event);
    TRY(event_next(&from, &event));
    TRY(value_read(&from, &event, node, 0));
    yaml_event_delete(&event);
    TRY(event_next(&from, &event)); /* end of the document */
    yaml_event_delete(&event);
    TRY(event_next(&from, &event));
    if (event.type != YAML_STREAM_END_EVENT)
        FAIL_AT(bad, where_of(&from, event.start_mark), NULL, NULL, "a second document");
out:
    yaml_event_delete(&event);
    yaml_parser_delete(&from.yaml);
    return status;
}

rv_status rv_tree_parse(const char *text, size_t size, const char *name, rv_node **out) {
    rv_status status = RV_OK;
    rv_node *tree = NULL;
    TRY(rv_node_root(name, &tree));
    TRY(document_read(text, size, ((root *)tree)->name, RV_CONFIG, tree));
    *out = tree;
    tree = NULL;
out:
    rv_tree_free(tree);
    return status;
}

/* The reader refuses larger files by the same limit, before reading them. */
rv_status rv_tree_load(const char *path, rv_node **out) {
    rv_status status = RV_OK;
    char *text = NULL;
    size_t size = 0;
    TRY(rv_read_file(path, BYTES_MOST, &text, &size));
    TRY(rv_tree_parse(text, size, path, out));
out:
    rv_free(text);
    return status;
}

/* ---- --set ------------------------------------------------------------------------------- */
/* Compared by address: places outlive the tree, and a recipe may have any name. */
const char rv_set_place[] = "--set";

/* A column of the assignment would help nobody who typed several of them; the message names the
 * key. */
static void place_assigned(rv_node *node) {
    node->where = (rv_where){rv_set_place, 0, 0};
    for (int i = 0; i < node->count; i++)
        place_assigned(node->items[i]);
}

/* One step of a path: into a map by key (made when missing), into a list by `name` or index.
 * Entries of a list are named by `name`, as layers are; a number is for lists without names. A
 * hint is given only for names, since keys of a map may be new. */
static rv_status set_step(rv_node *at, const char *word, const char *assignment, rv_node **out) {
    rv_status status = RV_OK;
    rv_nearest nearest = {.word = word};
    *out = NULL;
    if (at->kind == RV_NODE_MAP) {
        *out = rv_tree_get(at, word);
        if (!*out) {
            TRY(rv_node_add_text(at, word, NULL, false));
            *out = at->items[at->count - 1];
            place_assigned(*out);
        }
        (*out)->used = false;
        goto out;
    }
    if (at->kind != RV_NODE_LIST)
        FAIL(RV_USAGE, "--set %s: what holds \"%s\" is neither a map nor a list", assignment, word);
    for (int i = 0; i < at->count && !*out; i++) {
        const rv_node *name = rv_tree_get(at->items[i], "name");
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        if (name && name->text) rv_nearest_offer(&nearest, name->text, strlen(name->text));
        if ((name && name->text && strcmp(name->text, word) == 0) || strcmp(number, word) == 0)
            *out = at->items[i];
    }
    if (!*out)
        FAIL_AT(RV_USAGE, ((rv_where){0}), word, rv_nearest_word(&nearest),
                "--set %s: no entry is named \"%s\"", assignment, word);
out:
    return status;
}

/* The value is plain text to the end, whatever it holds, so that paths and names need no quoting
 * in a shell; lists, maps and quoted text begin with their bracket or quote. */
rv_status rv_tree_set(rv_node *tree, const char *assignment) {
    rv_status status = RV_OK;
    const char *equals = strchr(assignment, '='), *at = assignment;
    rv_node *node = tree;
    if (!equals) FAIL(RV_USAGE, "--set %s: expected path.to.key=value", assignment);
    while (at < equals) {
        size_t length = strcspn(at, ".=");
        char word[RV_NAME_MAX + 32];
        if (length == 0 || length >= sizeof word ||
            (at[length] == '.' && at + length + 1 == equals))
            break;
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        /* A key that is missing or null on the way becomes a map. */
        if (rv_node_null(node) && node != tree) rv_node_become(node, RV_NODE_MAP);
        TRY(set_step(node, word, assignment, &node));
        at += length + (at[length] == '.');
    }
    if (at != equals || at == assignment)
        FAIL(RV_USAGE, "--set %s: a name in the path is empty or too long", assignment);
    rv_node_become(node, RV_NODE_SCALAR);
    if (equals[1] && strchr("[{\"'", equals[1])) { /* flow YAML; anything else is plain text */
        TRY(document_read(equals + 1, strlen(equals + 1), rv_set_place, RV_USAGE, node));
    } else {
        TRY(rv_strdup(equals + 1, &node->text));
    }
    place_assigned(node);
out:
    return status;
}
