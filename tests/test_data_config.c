/* Recipes: defaults, every kind of error with its place, resolved text, presets, digest, binding.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/data.h"

/* Line numbers below count from here. */
static const char recipe[] = "seed: 1\n"
                             "data:\n"
                             "  reader: bernoulli\n"
                             "  units: 8\n"
                             "encode: {kind: constant, steps: 0}\n"
                             "network:\n"
                             "  - {name: hidden, kind: linear, units: 16}\n"
                             "  - {name: hidden_lif, kind: lif, beta: 0.5}\n"
                             "  - name: out\n"
                             "    kind: linear\n"
                             "    units: 2\n"
                             "  - {name: out_lif, kind: lif}\n"
                             "train:\n"
                             "  optimizer: {kind: sgd, lr: 0.5}\n";

static rv_config *load_with(const char *text, const char *const *sets, int count) {
    rv_config *config = NULL;
    if (rv_config_parse_with(text, strlen(text), "r.yaml", sets, count, &config) != RV_OK)
        fail_msg("%s:%d:%d: %s", rv_error_get()->file, rv_error_get()->line, rv_error_get()->column,
                 rv_error_get()->message);
    return config;
}

static rv_config *load(const char *set) {
    return load_with(recipe, &set, set ? 1 : 0);
}

static char *resolved(const rv_config *config) {
    char *text = NULL;
    assert_int_equal(rv_config_text(config, &text), RV_OK);
    return text;
}

static const void *option(const rv_layer_desc *layer, const char *name) {
    for (const rv_spec *spec = layer->row->specs; spec->name; spec++)
        if (strcmp(spec->name, name) == 0) return (const char *)layer->options + spec->offset;
    fail_msg("%s has no %s", layer->row->name, name);
    return NULL;
}

static void recipe_short_gets_defaults(void **state) {
    (void)state;
    rv_config *config = load(NULL);
    const rv_neuron_options *lif = config->net.layers[1].options;
    assert_int_equal(config->seed, 1);
    assert_int_equal(config->net.seed, 1);
    assert_string_equal(config->preset, "ranvier");
    assert_int_equal(config->net.layer_count, 4);
    assert_string_equal(config->net.layers[2].name, "out");
    assert_int_equal(config->net.layers[2].where.line, 9);
    assert_string_equal(config->net.layers[2].where.file, "r.yaml");
    assert_true(config->net.layers[0].trainable);
    assert_string_equal(config->net.layers[0].init.row->name, "pytorch");
    assert_int_equal(*(const int *)option(&config->net.layers[0], "units"), 16);
    assert_true(lif->beta.value == 0.5f && lif->beta.count == 1);
    assert_string_equal(lif->surrogate.row->name, "atan");
    assert_non_null(lif->surrogate.options);
    assert_int_equal(config->train.epochs, 5);
    assert_int_equal(config->train.batch, 128);
    assert_int_equal(config->train.chunks, 1);
    assert_string_equal(config->train.optimizer.row->name, "sgd");
    assert_string_equal(config->train.schedule.row->name, "constant");
    assert_string_equal(config->loss.loss.row->name, "cross_entropy");
    assert_int_equal(config->loss.population, 1);
    assert_int_equal(config->loss.class_weights.count, 0);
    assert_int_equal(config->checkpoint_steps, 0);
    assert_true(config->data.std == 1 && config->data.validation == 0);
    rv_config_free(config);
}

/* One changed key, and where the error must point. line 0: the place of --set. */
typedef struct wrong {
    const char *set;
    const char *key, *hint, *part;
} wrong;

static void recipe_wrong_key_names_it(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"sed=1", "sed", "seed", "unknown key"},
        {"network.hidden.unit=1", "network.hidden.unit", "units", "unknown key"},
        {"network.hidden_lif.treshold=1", "network.hidden_lif.treshold", "threshold", "unknown"},
        {"data.normalize.means=1", "data.normalize.means", "mean", "unknown key"},
        {"train.optimizer.momentm=1", "train.optimizer.momentm", "momentum", "unknown key"},
        {"encode.kind=rte", "encode.kind", "rate", "must name one of the encoders"},
        {"network.hidden.kind=liner", "network.hidden.kind", "linear", "must name one of"},
        {"data.reader=idxx", "data.reader", "idx", "must name one of the readers"},
        {"network.hidden_lif.surrogate.kind=attan", "network.hidden_lif.surrogate.kind", "atan",
         "surrogates"},
        {"data.augment=[{kind: shft}]", "data.augment.kind", "shift",
         "must name one of the augment"},
        {"data.augment=[{kind: shift, pixel: 1}]", "data.augment.pixel", "pixels", "unknown key"},
        {"data.augment=shift", "data.augment", "", "must be a list"},
        {"network.hidden_lif.surrogate=attan", "network.hidden_lif.surrogate", "atan",
         "surrogates"},
        {"network.hidden_lif.reset=zro", "network.hidden_lif.reset", "zero", "must be one of"},
        {"seed=-1", "seed", "", "must lie in [0,"},
        {"seed=1.5", "seed", "", "whole number"},
        {"seed=99999999999999999999", "seed", "", "too large"},
        {"seed='1'", "seed", "", "found the text"},
        {"seed=[1]", "seed", "", "found a list"},
        {"train.batch=0", "train.batch", "", "must lie in [1, 1048576], found 0"},
        {"train.batch={}", "train.batch", "", "found a map"},
        {"network.hidden_lif.beta=1.5", "network.hidden_lif.beta", "", "must lie in [0, 1]"},
        {"network.hidden_lif.beta=nan", "network.hidden_lif.beta", "", "must be a number"},
        {"network.hidden_lif.beta=0x1", "network.hidden_lif.beta", "", "must be a number"},
        {"network.hidden_lif.beta=.", "network.hidden_lif.beta", "", "must be a number"},
        {"network.hidden_lif.beta=[]", "network.hidden_lif.beta", "", "a number or a list"},
        {"network.hidden_lif.beta=[0.5, x]", "network.hidden_lif.beta", "", "must be a number"},
        {"network.hidden_lif.threshold=0", "network.hidden_lif.threshold", "", "lie in (0,"},
        {"network.hidden_lif.gain=1e300", "network.hidden_lif.gain", "", "must lie in"},
        {"network.hidden_lif.recurrent=2", "network.hidden_lif.recurrent", "", "true or false"},
        {"network.hidden_lif.tau=3", "tau", "", "give one of them"},
        {"network.hidden.units=null", "network.hidden.units", "", "is required"},
        {"network.hidden.kind=null", "network.hidden.kind", "", "is required"},
        {"network.hidden.name=null", "network.0.name", "", "is required"},
        {"network.hidden.name=2x", "name", "", "must match [A-Za-z_]"},
        {"network.out.from=hiden_lif", "from", "hidden_lif", "no layer has the name \"hiden_lif\""},
        {"network.out.from=[hidden_lif, nix]", "from", "", "no layer has the name \"nix\""},
        {"network.hidden.name=a b", "name", "", "must match [A-Za-z_]"},
        {"network.hidden.name=out", "name", "", "used twice"},
        {"network.hidden.from=[]", "from", "", "1 to 8 layers"},
        {"network.hidden.from=[[a]]", "from", "", "names of layers"},
        {"network.hidden=1", "network.0", "", "must be a map"},
        {"network=[]", "network", "", "list of 1 to"},
        {"network=null", "network", "", "is required"},
        {"data=3", "data", "", "must name one of the readers"},
        {"train=3", "train", "", "must be a map"},
        {"data.normalize=3", "data.normalize", "", "must be a map"},
        {"data.normalize.std=0.0", "data.normalize.std", "", "must lie in (0, inf)"},
        {"data.validation=0.95", "data.validation", "", "must lie in [0, 0.9]"},
        {"input=[1, 2]", "input", "", "[channels, height, width]"},
        {"input=[0]", "input", "", "must lie in [1,"},
        {"input=[100000, 100000, 1]", "input", "", "more than"},
        {"pipeline.slots=0", "pipeline.slots", "", "a whole number from 1 to 65536, or auto"},
        {"pipeline.chunks=some", "pipeline.chunks", "",
         "a whole number from 1 to 1048576, or auto"},
        {"pipeline.cuts=[nowhere]", "pipeline.cuts", "", "\"nowhere\", which is no layer"},
        {"pipeline.memory=2TB", "pipeline.memory", "", "must be bytes (500000, 512MiB, 2GiB)"},
        {"pipeline.corrections=[[gc]]", "pipeline.corrections", "", "found a list"},
        {"pipeline.corrections={t1: {steps: 1, x: 2}}", "pipeline.corrections", "", "found a map"},
        {"pipeline.corrections={t1: {steps: many}}", "pipeline.corrections.t1.steps", "",
         "must be a number, found \"many\""},
        {"pipeline.tape=[keep]", "pipeline.tape", "", "for all layers also auto, found a list"},
        {"pipeline.tape={hidden: {keep: 1}}", "pipeline.tape", "", "also auto, found a map"},
        {"pipeline.tape=kepe", "pipeline.tape", "", "also auto, found \"kepe\""},
        {"pipeline.cuts=[[out]]", "pipeline.cuts", "", "names of layers, found a list"},
        {"pipeline.cuts={out: 1}", "pipeline.cuts", "", "found a map"},
        {"pipeline.slots=[1]", "pipeline.slots", "", "or auto, found a list"},
        {"pipeline.memory={}", "pipeline.memory", "", "2GiB), found a map"},
        {"pipeline.async_until=[5]", "pipeline.async_until", "", "(2epoch), found a list"},
        {"checkpoint.every=[5]", "checkpoint.every", "", "1epoch, found a list"},
        {"pipeline.async_until=1.5", "pipeline.async_until", "", "must be updates (500)"},
        {"device=cuda:x", "device", "", "auto, cpu"},
        {"preset=snntorc", "preset", "snntorch", "must be one of"},
        {"train.micro_batches=129", "train.micro_batches", "", "more than \"train.batch\""},
        {"checkpoint.every=10m", "checkpoint.every", "", "1epoch"},
        {"checkpoint.every=0", "checkpoint.every", "", "1epoch"},
        {"train.optimizer.groups=x", "train.optimizer.groups", "", "list of at most"},
        {"train.optimizer.groups=[x]", "train.optimizer.groups", "", "a group must be a map"},
        {"train.optimizer.groups=[{lr: 1}]", "train.optimizer.groups.pattern", "", "required"},
        {"train.optimizer.groups=[{pattrn: a}]", "train.optimizer.groups.pattrn", "pattern",
         "unknown"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const wrong *one = &cases[i];
        rv_config *config = NULL;
        const rv_error *error = rv_error_get();
        if (rv_config_parse_with(recipe, strlen(recipe), "r.yaml", &one->set, 1, &config) !=
            RV_CONFIG)
            fail_msg("%s: no configuration error (%s)", one->set, error->message);
        assert_null(config);
        if (strcmp(error->key, one->key) != 0 ||
            (*one->hint && strcmp(error->hint, one->hint) != 0) ||
            !strstr(error->message, one->part) ||
            (strcmp(error->file, "--set") != 0 && error->line < 1))
            fail_msg("%s: key %s, hint %s, line %d, message %s", one->set, error->key, error->hint,
                     error->line, error->message);
    }
}

static void recipe_error_points_into_file(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int line, column;
    } cases[] = {
        {"data: {reader: bernoulli}\nencode:\n  stps: 3\n", 3, 3},
        {"data: {reader: bernoulli}\nnetwork:\n- {name: a, kind: linear, units: x}\n", 3, 27},
        {"data: {reader: bernoulli}\nnetwork:\n- {name: a, kind: linear}\n", 3, 3},
        {"data: {reader: bernoulli}\nnetwork:\n- {name: a, kind: lif, beta: [0.5, 2]}\n", 3, 36},
        {"data: {reader: bernoulli}\nnetwork:\n- {name: a, kind: linear, units: 4}\n"
         "pipeline:\n  corrections:\n  - t1:\n      steps: many\n",
         7, 7},
        {"data: {reader: idx}\n", 1, 1},
        {"data: {reader: bernoulli}\n", 1, 1},
        {"[1]\n", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rv_config *config = NULL;
        const rv_error *error = rv_error_get();
        assert_int_equal(rv_config_parse(cases[i].text, strlen(cases[i].text), "p.yaml", &config),
                         RV_CONFIG);
        assert_string_equal(error->file, "p.yaml");
        if (error->line != cases[i].line || error->column != cases[i].column)
            fail_msg("case %zu: %d:%d %s", i, error->line, error->column, error->message);
    }
}

/* What a row's sentence calls optional can be left out of a recipe. */
static void recipe_without_optional_parameters_is_taken(void **state) {
    (void)state;
    static const char *const layers[] = {
        "{name: a, kind: avg_pool, kernel_size: 2}",
        "{name: a, kind: max_pool, kernel_size: 2}",
        "{name: a, kind: sum_pool, kernel_size: 2}",
        "{name: a, kind: delay, delay: 1.5}",
        "{name: a, kind: delay, steps: 2}",
        "{name: a, kind: delay, delay: 0}",
        "{name: a, kind: conv2d, out_channels: 1, kernel_size: 2}",
        "{name: a, kind: delay, steps: 2, max_delay: 4, learnable: true}",
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char text[256];
        rv_net *net = NULL;
        snprintf(text, sizeof text, "data: {reader: bernoulli}\nnetwork: [%s]\n", layers[i]);
        rv_config *config = load_with(text, NULL, 0);
        config->net.input = (rv_shape){3, {1, 4, 4}};
        config->net.steps = 5;
        if (rv_net_create(&config->net, &net) != RV_OK)
            fail_msg("%s: %s", layers[i], rv_error_get()->message);
        rv_net_destroy(net);
        rv_config_free(config);
    }
}

static void recipe_truncated_anywhere_never_crashes(void **state) {
    (void)state;
    int accepted = 0;
    for (size_t size = 0; size < sizeof recipe; size++) {
        rv_config *config = NULL;
        rv_status status = rv_config_parse(recipe, size, "cut.yaml", &config);
        if (status == RV_OK) {
            accepted++;
            rv_config_free(config);
        } else {
            assert_int_equal(status, RV_CONFIG);
            assert_null(config);
            assert_true(rv_error_get()->message[0]);
        }
    }
    assert_true(accepted > 1); /* cuts between whole entries are recipes too */
}

static void recipe_with_any_byte_changed_never_crashes(void **state) {
    (void)state;
    char text[sizeof recipe];
    for (size_t i = 0; i + 1 < sizeof recipe; i++) {
        static const char bytes[] = {'\0', '[', '\t', '"', ':', '\xff', '-', '9'};
        for (size_t k = 0; k < sizeof bytes; k++) {
            rv_config *config = NULL;
            memcpy(text, recipe, sizeof recipe);
            text[i] = bytes[k];
            if (rv_config_parse(text, sizeof recipe - 1, "bad.yaml", &config) != RV_OK)
                assert_null(config);
            rv_config_free(config);
        }
    }
}

/* The text read again gives itself; and PyYAML, when it is there, finds the same values. */
static void again(const rv_config *config) {
    rv_config *second = NULL;
    char *text = resolved(config), *same;
    if (rv_config_parse(text, strlen(text), "resolved", &second) != RV_OK)
        fail_msg("line %d: %s\n%s", rv_error_get()->line, rv_error_get()->message, text);
    same = resolved(second);
    assert_string_equal(same, text);
    rv_free(same);
    rv_free(text);
    rv_config_free(second);
}

static void resolved_text_read_again_is_the_same(void **state) {
    (void)state;
    static const char *const sets[] = {
        "seed=9223372036854775807",
        "preset=spikingjelly",
        "preset=snntorch",
        "preset=norse",
        "preset=sinabs",
        "preset=nir",
        "network.hidden_lif.beta=[0.1, 0.25, 1.0e-7]",
        "network.hidden_lif.beta=[0.5]",
        "network.hidden_lif={name: y, kind: lif, tau: 3}",
        "network.hidden_lif={name: no, kind: plif, learn: [w, threshold]}",
        "network.hidden.from=hidden",
        "network.hidden_lif.surrogate=sigmoid",
        "train.optimizer.groups=[{pattern: 'hidden.*', lr: 0.1}, {pattern: yes}]",
        "train.optimizer={kind: adam, lr: 1e-5, epsilon: 123456.789012345678}",
        "checkpoint.every=500",
        "checkpoint.every=10min",
        "pipeline.corrections=[gc, {lwp_v: {cap: 3}}, {t2: {decay: 0.135}}]",
        "pipeline.corrections={t1: {steps: 1e3}}",
        "pipeline.corrections='1'",
        "pipeline.async_until=500",
        "pipeline.async_until=2epoch",
        "input=[8]",
        "loss.class_weights=[1, 0.333333]",
        "loss.label_smoothing=1e-300",
        "train.max_steps=1000000000000",
        "data={reader: idx, root: 'on', train: {inputs: '1e3', labels: \"t\\u00e4 'st\\\"\\n\"}}",
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        rv_config *config = load(sets[i]);
        again(config);
        rv_config_free(config);
    }
}

static void resolved_text_quotes_what_yaml_would_retype(void **state) {
    (void)state;
    const char *set = "data={reader: idx, root: /x, train: {inputs: 'no', labels: '1e3'}, test: "
                      "{inputs: '~', labels: 2020-01-01}}";
    rv_config *config = load(set);
    char *text = resolved(config);
    assert_non_null(strstr(text, "inputs: \"no\"\n"));
    assert_non_null(strstr(text, "labels: \"1e3\"\n"));
    assert_non_null(strstr(text, "inputs: \"~\"\n"));
    assert_non_null(strstr(text, "labels: \"2020-01-01\"\n"));
    assert_non_null(strstr(text, "root: /x\n"));
    assert_non_null(strstr(text, "lr: 0.5\n"));
    assert_non_null(strstr(text, "clip_norm: 0.0\n"));
    rv_free(text);
    rv_config_free(config);
}

static void resolved_text_holds_absolute_folder(void **state) {
    (void)state;
    static const struct {
        const char *root, *tail;
    } cases[] = {{"a/b", "/a/b"}, {"./a", "/a"}, {".", ""}, {"./", ""}};
    char here[2048], line[4096], set[256];
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(set, sizeof set, "data={reader: idx, root: %s, train: {inputs: i, labels: l}}",
                 cases[i].root);
        rv_config *config = load(set);
        char *text = resolved(config);
        snprintf(line, sizeof line, "root: %s%s\n", here, cases[i].tail);
        if (!strstr(text, line)) fail_msg("no %s in %s", line, text);
        rv_free(text);
        rv_config_free(config);
    }
}

static void number_real_survives_shortest_text(void **state) {
    (void)state;
    static const char *const lr[][2] = {
        {"0.1", "lr: 0.1\n"},
        {"1e-3", "lr: 0.001\n"},
        {"1E-9", "lr: 1.0e-09\n"},
        {"3", "lr: 3.0\n"},
        {"0.30000000000000004", "lr: 0.30000000000000004\n"},
        {"1.5e+5", "lr: 150000.0\n"},
    };
    for (size_t i = 0; i < sizeof lr / sizeof *lr; i++) {
        char set[64];
        snprintf(set, sizeof set, "train.optimizer.lr=%s", lr[i][0]);
        rv_config *config = load(set);
        char *text = resolved(config);
        if (!strstr(text, lr[i][1])) fail_msg("no %s in %s", lr[i][1], text);
        rv_free(text);
        rv_config_free(config);
    }
}

static void preset_changes_defaults_only(void **state) {
    (void)state;
    rv_config *config = load("preset=spikingjelly");
    const rv_neuron_options *given = config->net.layers[1].options;
    const rv_neuron_options *open = config->net.layers[3].options;
    assert_true(given->beta.value == 0.5f && isnan(given->tau.value));
    assert_true(isnan(open->beta.value) && open->tau.value == 2.0f);
    assert_string_equal(open->surrogate.row->name, "sigmoid");
    assert_true(*(const double *)open->surrogate.options == 4.0);
    assert_int_equal(open->reset, RV_RESET_ZERO);
    assert_false(open->detach_reset);
    rv_config_free(config);
    config = load("preset=snntorch");
    open = config->net.layers[3].options;
    assert_int_equal(open->compare, 1);
    assert_int_equal(open->reset_delay, 1);
    assert_true(open->beta.value == 0.95f);
    rv_config_free(config);
}

static void digest_follows_what_resume_depends_on(void **state) {
    (void)state;
    static const struct {
        const char *set;
        bool same;
    } cases[] = {
        {"seed=2", false},
        {"data.rate=0.2", false},
        {"encode.steps=7", false},
        {"network.hidden.units=17", false},
        {"loss.label_smoothing=0.1", false},
        {"train.batch=64", false},
        {"train.optimizer.lr=0.25", false},
        {"train.epochs=9", true},
        {"train.max_steps=9", true},
        {"checkpoint.every=9", true},
        {"pipeline.chunks=1", true},
        {"device=cpu", true},
        {"network.hidden.form=dense", true},
    };
    char first[17], other[17];
    rv_config *config = load(NULL);
    assert_int_equal(rv_config_digest(config, first), RV_OK);
    assert_int_equal(strlen(first), 16);
    rv_config_free(config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config = load(cases[i].set);
        assert_int_equal(rv_config_digest(config, other), RV_OK);
        if ((strcmp(first, other) == 0) != cases[i].same) fail_msg("%s", cases[i].set);
        rv_config_free(config);
    }
}

static void bind_joins_network_to_source(void **state) {
    (void)state;
    rv_source source = {.count = 4, .shape = {3, {1, 2, 4}}, .classes = 2};
    rv_config *config = load("encode.steps=5");
    assert_int_equal(rv_config_bind(config, &source), RV_OK);
    assert_int_equal(config->net.input.rank, 3);
    assert_int_equal(config->net.steps, 5);
    assert_int_equal(config->loss.classes, 2);
    assert_true(config->net.input_held);
    rv_config_free(config);
    const char *fits[] = {"encode.steps=5", "input=[8]"}, *not [] = {"encode.steps=5", "input=[9]"};
    config = load_with(recipe, fits, 2);
    assert_int_equal(rv_config_bind(config, &source), RV_OK);
    assert_int_equal(config->net.input.rank, 1);
    rv_config_free(config);
    config = load_with(recipe, not, 2);
    assert_int_equal(rv_config_bind(config, &source), RV_CONFIG);
    assert_string_equal(rv_error_get()->key, "input");
    rv_config_free(config);
}

static void bind_encoder_error_has_a_place(void **state) {
    (void)state;
    rv_source source = {.count = 4, .shape = {3, {1, 2, 4}}, .classes = 2};
    rv_config *config = load(NULL); /* steps: 0, and the source has none */
    assert_int_equal(rv_config_bind(config, &source), RV_CONFIG);
    assert_string_equal(rv_error_get()->file, "r.yaml");
    assert_int_equal(rv_error_get()->line, 5);
    assert_string_equal(rv_error_get()->key, "encode");
    rv_config_free(config);
}

static void bind_shape_other_way_round_is_refused(void **state) {
    (void)state;
    rv_source source = {.count = 4, .shape = {3, {1, 2, 4}}, .classes = 2};
    const char *sets[] = {"encode.steps=5", "input=[1, 4, 2]"};
    rv_config *config = load_with(recipe, sets, 2);
    assert_int_equal(rv_config_bind(config, &source), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "[1, 2, 4]"));
    rv_config_free(config);
}

/* Each key with a default says the default that the tables give. */
static void keys_listed_defaults_are_those_of_the_tables(void **state) {
    (void)state;
    int count = 0, seen = 0;
    const rv_key_row *keys = rv_config_keys(&count);
    rv_config *config = load(NULL);
    assert_true(count >= 25);
    for (int i = 0; i < count; i++) {
        char set[256];
        assert_true(keys[i].sentence[0] && keys[i].type[0]);
        if (!keys[i].initial[0] || strchr(keys[i].path, '[') || keys[i].initial[0] == '{' ||
            strncmp(keys[i].path, "data.reader", 11) == 0 || strcmp(keys[i].path, "seed") == 0 ||
            strcmp(keys[i].path, "train.optimizer.kind") == 0)
            continue;
        snprintf(set, sizeof set, "%s=%s", keys[i].path, keys[i].initial);
        rv_config *given = load(set);
        char *a = resolved(config), *b = resolved(given);
        if (strcmp(a, b) != 0) fail_msg("default of %s is not %s", keys[i].path, keys[i].initial);
        rv_free(a), rv_free(b);
        rv_config_free(given);
        seen++;
    }
    assert_true(seen >= 18);
    rv_config_free(config);
}

static void file_missing_is_input(void **state) {
    (void)state;
    rv_config *config = NULL;
    assert_int_equal(rv_config_load("/nowhere/r.yaml", NULL, 0, &config), RV_INPUT);
    assert_null(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipe_short_gets_defaults),
        cmocka_unit_test(recipe_wrong_key_names_it),
        cmocka_unit_test(recipe_error_points_into_file),
        cmocka_unit_test(recipe_without_optional_parameters_is_taken),
        cmocka_unit_test(recipe_truncated_anywhere_never_crashes),
        cmocka_unit_test(recipe_with_any_byte_changed_never_crashes),
        cmocka_unit_test(resolved_text_read_again_is_the_same),
        cmocka_unit_test(resolved_text_quotes_what_yaml_would_retype),
        cmocka_unit_test(resolved_text_holds_absolute_folder),
        cmocka_unit_test(number_real_survives_shortest_text),
        cmocka_unit_test(preset_changes_defaults_only),
        cmocka_unit_test(digest_follows_what_resume_depends_on),
        cmocka_unit_test(bind_joins_network_to_source),
        cmocka_unit_test(bind_encoder_error_has_a_place),
        cmocka_unit_test(bind_shape_other_way_round_is_refused),
        cmocka_unit_test(keys_listed_defaults_are_those_of_the_tables),
        cmocka_unit_test(file_missing_is_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
