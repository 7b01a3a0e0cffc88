/*
 * A recipe: YAML tree and assignments -> rv_config, checked against the tables, and the resolved
 * tree with every default written out. Each section is read and written side by side, so that the
 * resolved file read again gives itself.
 */
#include "data/reader.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS_MOST = 1024, GROUPS_MOST = 256, UNITS_MOST = 1 << 28 };

typedef struct loading {
    rv_config *config;
    rv_node *source; /* as given */
    rv_node *tree;   /* as resolved */
} loading;

/* Everything of a recipe is read through sections: pool, path for messages, place to fall back
 * on. */
static rv_section section_of(const loading *load, const char *path) {
    rv_section section = {load->config->memory, NULL, path, {load->config->path, 1, 1}};
    return section;
}

/* The source's name ends with its tree; the recipe's path says the same and lasts. */
static rv_where place_kept(rv_where where, const char *path) {
    if (where.file != rv_set_place) where.file = path;
    return where;
}

/* The section at a dotted path of the source, and its null in the resolved tree. The resolved
 * tree already has every key in its order, so a section is found there by the same path. */
static rv_status section_open(const loading *load, const char *path, rv_section *in,
                              rv_node **out) {
    rv_status status = RV_OK;
    rv_node *tree = load->tree;
    const char *dot = strchr(path, '.'), *last = dot ? dot + 1 : path;
    *in = section_of(load, path);
    TRY(rv_node_find(load->source, "", path, &in->node));
    if (in->node) in->where = in->node->where;
    if (dot) {
        char word[RV_NAME_MAX];
        snprintf(word, sizeof word, "%.*s", (int)(dot - path), path);
        tree = rv_tree_get(tree, word);
    }
    *out = rv_tree_get(tree, last);
out:
    return status;
}

/* A row with its further keys: read from `path`, written in its place. The default row is set
 * before reading; what the recipe says replaces it. */
static rv_status choice_load(const loading *load, const char *path, const char *word,
                             const rv_table *table, const char *initial, const rv_spec *extra,
                             void *extra_options, rv_choice *choice) {
    rv_status status = RV_OK;
    rv_section in;
    rv_node *out = NULL;
    TRY(section_open(load, path, &in, &out));
    choice->row = rv_table_find(table, initial);
    TRY(rv_choice_read(&in, word, table, extra, extra_options, choice));
    rv_node_become(out, RV_NODE_MAP);
    TRY(rv_node_add_text(out, word, choice->row->name, true));
    TRY(rv_specs_write(out, choice->row->specs, choice->options));
    TRY(rv_specs_write(out, extra, extra_options));
out:
    return status;
}

/* ---- input ------------------------------------------------------------------------------- */
/* A shape is no rv_type: its length decides its meaning. */
static rv_status input_load(const loading *load) {
    rv_status status = RV_OK;
    static const rv_spec axis = {"input", RV_T_INT, 0, NAN, 1, UNITS_MOST, .sentence = ""};
    rv_section in;
    rv_node *out = NULL, *one = NULL;
    rv_shape *shape = &load->config->input;
    int64_t units = 1;
    TRY(section_open(load, "input", &in, &out));
    if (!in.node) goto out;
    one = in.node;
    in.path = "";
    if (in.node->kind == RV_NODE_MAP ||
        (in.node->kind == RV_NODE_LIST && in.node->count != 1 && in.node->count != 3))
        FAIL_AT(RV_CONFIG, in.where, "input", NULL,
                "\"input\" must be [units] or [channels, height, width]");
    shape->rank = in.node->kind == RV_NODE_LIST ? in.node->count : 1;
    rv_node_become(out, RV_NODE_LIST);
    for (int i = 0; i < shape->rank; i++) {
        char text[16];
        TRY(rv_spec_read_node(&in, &axis, in.node->kind == RV_NODE_LIST ? in.node->items[i] : one,
                              &shape->dim[i]));
        units *= shape->dim[i];
        if (units > UNITS_MOST)
            FAIL_AT(RV_CONFIG, in.where, "input", NULL, "\"input\" has more than %d units",
                    UNITS_MOST);
        snprintf(text, sizeof text, "%d", shape->dim[i]);
        TRY(rv_node_add_text(out, NULL, text, false));
    }
out:
    return status;
}

/* ---- data -------------------------------------------------------------------------------- */
/* The first file option is the folder; the resolved recipe holds it from the root of the tree.
 * Not realpath: a link the user made to move data later must stay in the resolved file. */
static rv_status folder_resolve(const rv_config *config) {
    rv_status status = RV_OK;
    const rv_reader *reader = ((const rv_reader_row *)config->data.reader)->reader;
    for (const rv_spec *spec = reader->files ? config->data.reader->specs : NULL;
         spec && spec->name; spec++) {
        char **folder = (char **)((char *)config->data.options + spec->offset), *path = NULL;
        const char *rest;
        char here[4096];
        size_t size;
        if (strcmp(spec->name, reader->files[0]) != 0) continue;
        rest = *folder;
        if (rest[0] == '/') break;
        if (!getcwd(here, sizeof here))
            FAIL(RV_INPUT, "cannot find the working directory: %s", strerror(errno));
        while (rest[0] == '.' && (rest[1] == '/' || !rest[1]))
            rest += rest[1] ? 2 : 1;
        size = strlen(here) + strlen(rest) + 2;
        TRY(rv_pool_get(config->memory, size, 1, "a path", &path));
        snprintf(path, size, "%s%s%s", strcmp(here, "/") == 0 ? "" : here, *rest ? "/" : "", rest);
        *folder = *path ? path : "/";
        break;
    }
out:
    return status;
}

/* The reader's own options and the keys common to all readers share one map, as users expect. */
static rv_status data_load(const loading *load) {
    rv_status status = RV_OK;
    rv_config *config = load->config;
    rv_choice choice = {rv_table_find(rv_reader_table(), "idx"), NULL};
    rv_section in;
    rv_node *out = NULL;
    rv_keys_default(rv_keys_data, config);
    TRY(section_open(load, "data", &in, &out));
    TRY(rv_choice_read(&in, "reader", rv_reader_table(), rv_keys_data, config, &choice));
    config->data.reader = choice.row;
    config->data.options = choice.options;
    config->data.where = place_kept(in.where, config->path);
    TRY(folder_resolve(config));
    rv_node_become(out, RV_NODE_MAP);
    TRY(rv_node_add_text(out, "reader", choice.row->name, true));
    TRY(rv_specs_write(out, choice.row->specs, choice.options));
    TRY(rv_specs_write(out, rv_keys_data, config));
    TRY(rv_augment_keys(config, load->source, rv_tree_get(out, "augment")));
out:
    return status;
}

/* ---- network ----------------------------------------------------------------------------- */
/* Names become HDF5 groups, keys of --set and JSON keys: letters, digits and _ are safe in all. */
static rv_status name_check(const loading *load, const rv_section *in, const char *name) {
    rv_status status = RV_OK;
    rv_node *node = rv_tree_get(in->node, "name");
    const rv_net_desc *net = &load->config->net;
    for (const char *at = name; *at; at++)
        if (!(isalpha((unsigned char)*at) || *at == '_' ||
              (at > name && isdigit((unsigned char)*at))))
            FAIL_AT(RV_CONFIG, node->where, "name", NULL,
                    "layer name \"%.80s\" must match [A-Za-z_][A-Za-z0-9_]*", name);
    if (strlen(name) >= RV_NAME_MAX)
        FAIL_AT(RV_CONFIG, node->where, "name", NULL, "layer name \"%.80s\" is longer than %d",
                name, RV_NAME_MAX - 1);
    for (int i = 0; i < net->layer_count; i++)
        if (strcmp(net->layers[i].name, name) == 0)
            FAIL_AT(RV_CONFIG, node->where, "name", NULL,
                    "layer name \"%s\" is used twice (first in line %d)", name,
                    net->layers[i].where.line);
out:
    return status;
}

/* `from`: a name or a list of names. The strings move to the pool, as the source tree goes. */
static rv_status from_load(const loading *load, const rv_section *in, rv_layer_desc *layer,
                           rv_node *out) {
    rv_status status = RV_OK;
    rv_node *from = NULL, *list = rv_tree_get(out, "from");
    TRY(rv_node_find(in->node, in->path, "from", &from));
    if (!from) goto out;
    layer->from_count = from->kind == RV_NODE_LIST ? from->count : 1;
    if (layer->from_count < 1 || layer->from_count > RV_MAX_INPUTS)
        FAIL_AT(RV_CONFIG, from->where, "from", NULL, "\"from\" takes 1 to %d layers",
                RV_MAX_INPUTS);
    rv_node_become(list, RV_NODE_LIST);
    for (int i = 0; i < layer->from_count; i++) {
        const rv_node *one = from->kind == RV_NODE_LIST ? from->items[i] : from;
        char *name = NULL;
        if (one->kind != RV_NODE_SCALAR)
            FAIL_AT(RV_CONFIG, one->where, "from", NULL, "\"from\" takes names of layers");
        TRY(rv_pool_text(load->config->memory, one->text, &name));
        layer->from[i] = name;
        TRY(rv_node_add_text(list, NULL, name, true));
    }
out:
    return status;
}

/* A row under a key of a layer (init, regularizer); initial NULL: none by default. Written only
 * when there is one: null otherwise. */
static rv_status layer_choice(const loading *load, const rv_section *in, const char *key,
                              const rv_table *table, const char *initial, rv_choice *choice,
                              rv_node *out) {
    rv_status status = RV_OK;
    char path[RV_PATH_MAX];
    rv_section section = section_of(load, path);
    rv_node *node = rv_tree_get(out, key);
    snprintf(path, sizeof path, "%s.%s", in->path, key);
    section.where = in->where;
    TRY(rv_node_find(in->node, in->path, key, &section.node));
    if (initial) choice->row = rv_table_find(table, initial);
    if (!section.node && !choice->row) goto out;
    TRY(rv_choice_read(&section, "kind", table, NULL, NULL, choice));
    rv_node_become(node, RV_NODE_MAP);
    TRY(rv_node_add_text(node, "kind", choice->row->name, true));
    TRY(rv_specs_write(node, choice->row->specs, choice->options));
out:
    return status;
}

/* Defaults in three layers: the row's, the preset's, the recipe's. The preset comes before
 * reading, so that what the recipe says wins, and settle after it, when it is known what was
 * said. */
static rv_status layer_load(const loading *load, const rv_section *in, rv_layer_desc *layer,
                            rv_node *out) {
    rv_status status = RV_OK;
    rv_layer_common common = {0};
    rv_choice choice = {0};
    bool neuron;
    if (in->node->kind != RV_NODE_MAP)
        FAIL_AT(RV_CONFIG, in->where, in->path, NULL, "a layer must be a map {name, kind, ...}");
    TRY(rv_choice_pick(in, "kind", rv_layer_table(), rv_neuron_table(), &choice));
    layer->row = choice.row;
    layer->options = choice.options;
    layer->where = place_kept(in->where, load->config->path);
    neuron = rv_table_index(rv_neuron_table(), choice.row) >= 0;
    if (neuron)
        TRY(rv_preset_apply(load->config->preset, load->config->memory, choice.row,
                            choice.options));
    TRY(rv_specs_known(in, choice.row->specs, rv_keys_layer, "kind"));
    rv_keys_default(rv_keys_layer, &common);
    TRY(rv_specs_read(in, rv_keys_layer, &common));
    TRY(name_check(load, in, common.name));
    snprintf(layer->name, sizeof layer->name, "%s", common.name);
    layer->trainable = common.trainable;
    layer->form = (rv_form)common.form;
    TRY(rv_specs_read(in, choice.row->specs, choice.options));
    if (neuron) TRY(rv_preset_settle(in, choice.row, choice.options));
    TRY(rv_specs_write(out, rv_keys_layer, &common));
    TRY(from_load(load, in, layer, out));
    /* Neurons have no weights but recurrent ones: their init is shown only when asked for. */
    TRY(layer_choice(load, in, "init", rv_init_table(), neuron ? NULL : "pytorch", &layer->init,
                     out));
    TRY(layer_choice(load, in, "regularizer", rv_regularizer_table(), NULL, &layer->regularizer,
                     out));
    TRY(rv_specs_write(out, choice.row->specs, choice.options));
out:
    return status;
}

/* Layers are found in messages by name, or by number while they have none. */
static rv_status network_load(const loading *load) {
    rv_status status = RV_OK;
    rv_net_desc *net = &load->config->net;
    rv_section in;
    rv_node *out = NULL;
    TRY(section_open(load, "network", &in, &out));
    if (!in.node)
        FAIL_AT(RV_CONFIG, in.where, "network", NULL, "\"network\" is required: a list of layers");
    if (in.node->kind != RV_NODE_LIST || in.node->count < 1 || in.node->count > LAYERS_MOST)
        FAIL_AT(RV_CONFIG, in.where, "network", NULL,
                "\"network\" must be a list of 1 to %d layers", LAYERS_MOST);
    TRY(rv_pool_get(load->config->memory, (size_t)in.node->count, sizeof *net->layers, "layers",
                    &net->layers));
    rv_node_become(out, RV_NODE_LIST);
    for (int i = 0; i < in.node->count; i++) {
        char path[RV_PATH_MAX];
        rv_section layer = section_of(load, path);
        const rv_node *name = rv_tree_get(in.node->items[i], "name");
        rv_node *entry = NULL;
        if (!rv_node_null(name) && name->kind == RV_NODE_SCALAR)
            snprintf(path, sizeof path, "network.%.*s", RV_NAME_MAX, name->text);
        else
            snprintf(path, sizeof path, "network.%d", i);
        layer.node = in.node->items[i];
        layer.where = layer.node->where;
        TRY(rv_node_add(out, RV_NODE_MAP, NULL, &entry));
        TRY(layer_load(load, &layer, &net->layers[i], entry));
        net->layer_count++;
    }
    for (int i = 0; i < in.node->count; i++)
        TRY(rv_config_from_check(net, rv_tree_get(in.node->items[i], "from")));
    net->seed = load->config->seed;
out:
    return status;
}

/* ---- loss, train, pipeline, checkpoint --------------------------------------------------- */
/* Class weights have no default that is a number: absent is an empty list. */
static rv_status loss_load(const loading *load) {
    rv_status status = RV_OK;
    rv_loss_desc *loss = &load->config->loss;
    rv_section in;
    rv_node *out = NULL;
    rv_keys_default(rv_keys_loss, loss);
    loss->class_weights = (rv_reals){0};
    TRY(choice_load(load, "loss", "kind", rv_loss_table(), "cross_entropy", rv_keys_loss, loss,
                    &loss->loss));
    TRY(section_open(load, "loss", &in, &out));
    loss->where = place_kept(in.where, load->config->path);
out:
    return status;
}

/* Read after the optimiser itself, whose map they lie in. */
static rv_status groups_load(const loading *load) {
    rv_status status = RV_OK;
    rv_train_desc *train = &load->config->train;
    rv_section in;
    rv_node *out = NULL;
    TRY(section_open(load, "train.optimizer", &in, &out));
    out = rv_tree_get(out, "groups");
    rv_node_become(out, RV_NODE_LIST);
    if (!in.node || in.node->kind != RV_NODE_MAP) goto out;
    TRY(rv_node_find(in.node, in.path, "groups", &in.node));
    if (!in.node) goto out;
    if (in.node->kind != RV_NODE_LIST || in.node->count > GROUPS_MOST)
        FAIL_AT(RV_CONFIG, in.node->where, "train.optimizer.groups", NULL,
                "\"groups\" must be a list of at most %d maps", GROUPS_MOST);
    TRY(rv_pool_get(load->config->memory, (size_t)in.node->count, sizeof *train->groups, "groups",
                    &train->groups));
    for (int i = 0; i < in.node->count; i++) {
        rv_section group = section_of(load, "train.optimizer.groups");
        rv_node *entry = NULL;
        group.node = in.node->items[i];
        group.where = group.node->where;
        if (group.node->kind != RV_NODE_MAP)
            FAIL_AT(RV_CONFIG, group.where, "train.optimizer.groups", NULL,
                    "a group must be a map {pattern, lr, weight_decay}");
        TRY(rv_specs_known(&group, rv_keys_group, NULL, NULL));
        rv_keys_default(rv_keys_group, &train->groups[i]);
        TRY(rv_specs_read(&group, rv_keys_group, &train->groups[i]));
        train->groups[i].where = place_kept(group.where, load->config->path);
        TRY(rv_node_add(out, RV_NODE_MAP, NULL, &entry));
        TRY(rv_specs_write(entry, rv_keys_group, &train->groups[i]));
        train->group_count++;
    }
out:
    return status;
}

/* checkpoint.every: "500" updates, "10min" (s, min, h), or "1epoch". Whole updates or a time;
 * other multiples of an epoch would need the data's size to be known here. */
static rv_status checkpoint_load(const loading *load) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"s", 1}, {"min", 60}, {"h", 3600}};
    rv_status status = RV_OK;
    rv_config *config = load->config;
    rv_section in;
    rv_node *out = NULL;
    const char *text = "1epoch";
    char *end = NULL;
    double number;
    TRY(section_open(load, "checkpoint.every", &in, &out));
    if (in.node) text = in.node->kind == RV_NODE_SCALAR ? in.node->text : "";
    number = isdigit((unsigned char)*text) ? strtod(text, &end) : -1;
    if (number > 0 && number <= 1e15 && !*end && number == floor(number))
        config->checkpoint_steps = (int64_t)number;
    for (int i = 0; number > 0 && number <= 1e9 && i < 3; i++)
        if (strcmp(end, units[i].name) == 0) config->checkpoint_seconds = number * units[i].seconds;
    if (!config->checkpoint_steps && config->checkpoint_seconds <= 0 && strcmp(text, "1epoch") != 0)
        TRY(rv_node_wrong(in.node, "checkpoint.every",
                          "updates (500), a time (90s, 10min, 2h) or 1epoch"));
    rv_node_become(out, RV_NODE_SCALAR);
    out->quoted = config->checkpoint_steps == 0;
    TRY(rv_strdup(text, &out->text));
out:
    return status;
}

/* A word that is no CHOICE because what is known depends on the build or stands elsewhere. */
static rv_status word_check(const loading *load, const char *path, const char *word, bool known,
                            const rv_nearest *nearest, const char *expected) {
    rv_status status = RV_OK;
    rv_section in;
    rv_node *out = NULL;
    if (known) return RV_OK;
    TRY(section_open(load, path, &in, &out));
    FAIL_AT(RV_CONFIG, in.where, path, rv_nearest_word(nearest),
            "\"%s\" must be %s, found \"%.80s\"", path, expected, word);
out:
    return status;
}

/* What a table of limits cannot say. Only now, so that what a value is compared with has been
 * checked itself. */
static rv_status limits_check(const loading *load) {
    rv_status status = RV_OK;
    const rv_config *config = load->config;
    rv_nearest preset = {.word = config->preset}, device = {.word = config->device};
    rv_section in;
    rv_node *out = NULL;
    rv_preset_names(&preset);
    rv_device_list devices;
    rv_nearest_offer(&device, "cpu", 3);
    rv_nearest_offer(&device, "cuda:0", 6);
    TRY(word_check(load, "preset", config->preset, rv_preset_known(config->preset), &preset,
                   "one of ranvier, spikingjelly, snntorch, norse, sinabs, nir"));
    TRY(word_check(load, "device", config->device,
                   rv_device_parse(config->device, &devices) == RV_OK, &device,
                   "auto, cpu, or numbers of devices: cuda:0,1"));
    if (config->train.micro_batches > config->train.batch) {
        TRY(section_open(load, "train.micro_batches", &in, &out));
        FAIL_AT(RV_CONFIG, in.where, "train.micro_batches", NULL,
                "\"train.micro_batches\" (%d) is more than \"train.batch\" (%d)",
                config->train.micro_batches, config->train.batch);
    }
    if (config->steps && config->train.chunks > config->steps) {
        TRY(section_open(load, "pipeline.chunks", &in, &out));
        FAIL_AT(RV_CONFIG, in.where, "pipeline.chunks", NULL,
                "\"pipeline.chunks\" (%d) is more than the time steps (%d)", config->train.chunks,
                config->steps);
    }
out:
    return status;
}

/* ---- the whole --------------------------------------------------------------------------- */
/* Time steps of the encoder, when its row has them; else the source has (rv_config_bind). By
 * name, as encoders are rows like any other: most have `steps`. */
static int steps_of(const rv_choice *encode) {
    for (const rv_spec *spec = encode->row->specs; spec && spec->name; spec++)
        if (strcmp(spec->name, "steps") == 0 && spec->type == RV_T_INT)
            return *(int *)((char *)encode->options + spec->offset);
    return 0;
}

/* Places of the source for the same keys of the resolved tree, for later messages. Errors found
 * later (a shape that does not fit, a batch too large) then point into the user's file though
 * only the resolved tree is left. */
static void places_copy(rv_node *to, const rv_node *from, const char *file) {
    to->where = place_kept(from->where, file);
    for (int i = 0; i < to->count; i++) {
        const rv_node *match = to->items[i]->key ? rv_tree_get(from, to->items[i]->key) : NULL;
        if (!to->items[i]->key && from->kind == RV_NODE_LIST && i < from->count)
            match = from->items[i];
        places_copy(to->items[i], match ? match : from, file);
    }
}

/* Order matters twice: the preset is read before the network, and the keys of the top level lay
 * out the resolved file before its sections are filled. */
static rv_status sections_load(const loading *load) {
    rv_status status = RV_OK;
    rv_config *config = load->config;
    rv_section top = section_of(load, "");
    top.node = load->source;
    if (top.node->kind != RV_NODE_MAP)
        FAIL_AT(RV_CONFIG, top.node->where, NULL, NULL, "a recipe must be a map of keys");
    TRY(rv_specs_known(&top, rv_keys_top, NULL, NULL));
    rv_keys_default(rv_keys_top, config);
    TRY(rv_specs_read(&top, rv_keys_top, config));
    TRY(rv_specs_write(load->tree, rv_keys_top, config));
    TRY(input_load(load));
    TRY(data_load(load));
    TRY(choice_load(load, "encode", "kind", rv_encoder_table(), "constant", NULL, NULL,
                    &config->encode));
    config->steps = config->net.steps = steps_of(&config->encode);
    TRY(network_load(load));
    TRY(loss_load(load));
    TRY(choice_load(load, "train.optimizer", "kind", rv_optimizer_table(), "adam",
                    rv_keys_optimizer, config, &config->train.optimizer));
    TRY(groups_load(load));
    rv_keys_default(rv_keys_schedule, &config->train);
    TRY(choice_load(load, "train.lr_schedule", "kind", rv_schedule_table(), "constant",
                    rv_keys_schedule, &config->train, &config->train.schedule));
    TRY(rv_pipeline_keys(config, load->source, load->tree));
    TRY(checkpoint_load(load));
    TRY(limits_check(load));
out:
    return status;
}

/* Assignments change the tree before anything is checked: --set is nothing but another way to
 * write the file. */
static rv_status config_make(rv_node *source, const char *path, const char *const *sets,
                             int set_count, rv_config **out) {
    rv_status status = RV_OK;
    loading load = {.source = source};
    TRY(rv_alloc(1, sizeof *load.config, "a configuration", &load.config));
    TRY(rv_alloc(1, sizeof *load.config->memory, "a configuration", &load.config->memory));
    TRY(rv_pool_text(load.config->memory, path, &load.config->path));
    TRY(rv_pool_get(load.config->memory, 1, sizeof *load.config->data.shared, "shared data",
                    &load.config->data.shared));
    for (int i = 0; i < set_count; i++)
        TRY(rv_tree_set(source, sets[i]));
    TRY(rv_node_root(path, &load.config->tree));
    load.tree = load.config->tree;
    TRY(sections_load(&load));
    places_copy(load.tree, source, load.config->path);
    *out = load.config;
    load.config = NULL;
out:
    rv_config_free(load.config);
    return status;
}

/* The source tree is needed for reading only; places are copied out of it. */
rv_status rv_config_parse_with(const char *text, size_t size, const char *name,
                               const char *const *sets, int set_count, rv_config **out) {
    rv_status status = RV_OK;
    rv_node *source = NULL;
    TRY(rv_tree_parse(text, size, name, &source));
    TRY(config_make(source, name, sets, set_count, out));
out:
    rv_tree_free(source);
    return status;
}

/* For recipes stored inside other files. */
rv_status rv_config_parse(const char *text, size_t size, const char *name, rv_config **out) {
    return rv_config_parse_with(text, size, name, NULL, 0, out);
}

/* Paths in it are relative to the working directory, not to the file. */
rv_status rv_config_load(const char *path, const char *const *sets, int set_count,
                         rv_config **out) {
    rv_status status = RV_OK;
    rv_node *source = NULL;
    TRY(rv_tree_load(path, &source));
    TRY(config_make(source, path, sets, set_count, out));
out:
    rv_tree_free(source);
    return status;
}

/* Options, names and vectors all lie in the pool. */
void rv_config_free(rv_config *config) {
    if (!config) return;
    rv_tree_free(config->tree);
    rv_pool_finish(config->memory);
    rv_free(config->memory);
    rv_free(config);
}
