/*
 * Inside data/: what the files of the configuration share. A recipe is read in three steps:
 * tree.c turns YAML into nodes, spec.c fills option structs from nodes by the tables of rv_spec,
 * and writes them back as nodes; config.c joins the two; yaml.c prints nodes.
 */
#ifndef RV_DATA_CONFIG_H
#define RV_DATA_CONFIG_H

#include "data/data.h"

/* FAIL with a place, the key concerned and the nearest known word (either may be NULL). */
#define FAIL_AT(code, where, key, hint, ...)                                                       \
    do {                                                                                           \
        status = rv_fail_at(code, where, key, hint, __VA_ARGS__);                                  \
        goto out;                                                                                  \
    } while (0)

enum { RV_PATH_MAX = 192 }; /* a dotted key; longer ones are cut in messages */

/* ---- memory of a configuration: given back all at once (words.c) -------------------------- */
typedef struct rv_pool_memory {
    struct rv_pool_block *blocks;
} rv_pool_memory;
RV_CHECKED rv_status rv_pool_get(rv_pool_memory *pool, size_t count, size_t size, const char *what,
                                 void *out);
RV_CHECKED rv_status rv_pool_text(rv_pool_memory *pool, const char *text, char **out);
void rv_pool_finish(rv_pool_memory *pool);

/* ---- nodes (tree.c) ---------------------------------------------------------------------- */
/* An empty map as root; *out is freed with rv_tree_free. */
RV_CHECKED rv_status rv_node_root(const char *name, rv_node **out);
/* Append a child to a map (key given) or list (key NULL); *out is owned by the parent. */
RV_CHECKED rv_status rv_node_add(rv_node *parent, rv_node_kind kind, const char *key,
                                 rv_node **out);
/* Append a scalar. text NULL: null. quoted: it is text, whatever it looks like. */
RV_CHECKED rv_status rv_node_add_text(rv_node *parent, const char *key, const char *text,
                                      bool quoted);
/* The child at a dotted path below `map`, all nodes on the way marked used. *out NULL: absent or
 * null. RV_CONFIG when something on the way is no map; `base` is the path of `map`. */
RV_CHECKED rv_status rv_node_find(const rv_node *map, const char *base, const char *dotted,
                                  rv_node **out);
/* The file of a place that --set made; such a place has no line. */
extern const char rv_set_place[];
/* Drop what a node holds; it becomes an empty one of this kind. */
void rv_node_become(rv_node *node, rv_node_kind kind);
bool rv_node_null(const rv_node *node); /* NULL, or a plain scalar that YAML calls null */

/* RV_CONFIG: "path" must be `expected`, and what was found, the text or its kind. (spec.c) */
RV_CHECKED rv_status rv_node_wrong(const rv_node *node, const char *path, const char *expected);

/* ---- words (words.c)
 * ------------------------------------------------------------------------------- */
/* The nearest of several words, offered one by one: best stays NULL when none is near. */
typedef struct rv_nearest {
    const char *word;
    char best[128];
    int distance;
} rv_nearest;
void rv_nearest_offer(rv_nearest *nearest, const char *candidate, size_t length);
void rv_nearest_table(rv_nearest *nearest, const rv_table *table);
const char *rv_nearest_word(const rv_nearest *nearest); /* NULL: none near enough */
/* Word `index` of "a|b|c". */
void rv_word_at(const char *choices, int index, char word[RV_NAME_MAX]);

/* ---- option structs (spec.c) ------------------------------------------------------------- */
/* Two types beyond rv_type, for keys that no row has. */
#define RV_T_WIDE ((rv_type)(RV_T_ROW + 1)) /* int64_t */
#define RV_T_OWN ((rv_type)(RV_T_ROW + 2))  /* read by code of its own; written as null */

/* A map and where it stands. Spec names may be dotted: `train.inputs` lies in a map `train`. */
typedef struct rv_section {
    rv_pool_memory *pool;
    rv_node *node;    /* NULL: absent, all defaults */
    const char *path; /* dotted path of the map, "" at the top */
    rv_where where;   /* of the map, or of the nearest map around an absent one */
} rv_section;

/* rv_specs_default, which leaves our own types alone, and theirs. */
void rv_keys_default(const rv_spec *specs, void *options);
/* Required: INT and PAIR with initial NAN, TEXT without default and with least = 1. */
RV_CHECKED rv_status rv_specs_read(const rv_section *section, const rv_spec *specs, void *options);
/* Read one scalar, list or map for one spec. */
RV_CHECKED rv_status rv_spec_read_node(const rv_section *section, const rv_spec *spec,
                                       rv_node *node, void *options);
/* Refuse keys that neither table (either may be NULL) nor `word` names. */
RV_CHECKED rv_status rv_specs_known(const rv_section *section, const rv_spec *a, const rv_spec *b,
                                    const char *word);
RV_CHECKED rv_status rv_specs_write(rv_node *map, const rv_spec *specs, const void *options);

/* A row named by key `word` ("kind", "reader"): rows of `table`, then of `other` (may be NULL).
 * The section may also be a scalar: the row's name alone. */
RV_CHECKED rv_status rv_choice_pick(const rv_section *section, const char *word,
                                    const rv_table *table, const rv_table *other,
                                    rv_choice *choice);
/* The same, and its parameters; `extra` are further keys of the map, filled in extra_options. */
RV_CHECKED rv_status rv_choice_read(const rv_section *section, const char *word,
                                    const rv_table *table, const rv_spec *extra,
                                    void *extra_options, rv_choice *choice);

/* A real as YAML 1.1 reads it back: shortest digits, a point, a signed exponent. */
void rv_real_text(double value, bool single, char buffer[40]);

/* ---- key tables (config_keys.c), presets (presets.c), text (yaml.c) ----------------------- */
extern const rv_spec rv_keys_top[], rv_keys_data[], rv_keys_layer[], rv_keys_loss[],
    rv_keys_optimizer[], rv_keys_group[], rv_keys_schedule[];

typedef struct rv_layer_common { /* filled by rv_keys_layer */
    char *name, *kind;
    bool trainable;
    int form;
    rv_choice init, regularizer;
} rv_layer_common;

bool rv_preset_known(const char *name);
void rv_preset_names(rv_nearest *nearest);
/* Set the preset's values in the options of a neuron row that has just got its defaults. */
RV_CHECKED rv_status rv_preset_apply(const char *preset, rv_pool_memory *pool, const rv_row *row,
                                     void *options);
/* beta or tau, alpha or tau_syn: what is given decides; the other becomes NAN. */
RV_CHECKED rv_status rv_preset_settle(const rv_section *section, const rv_row *row, void *options);

/* The keys of `pipeline` beside those of the table, after the network (config_pipeline.c). */
RV_CHECKED rv_status rv_pipeline_keys(rv_config *config, const rv_node *source,
                                      const rv_node *tree);

/* Every layer that a layer's `from` (NULL: absent) names is one of the network's; RV_CONFIG at the
 * word that is not (config_use.c). */
RV_CHECKED rv_status rv_config_from_check(const rv_net_desc *net, const rv_node *from);

RV_CHECKED rv_status rv_tree_text(const rv_node *root, char **text);

#endif
