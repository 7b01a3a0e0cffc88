/*
 * The keys of a recipe that belong to no row of a table, each written once: where it is stored,
 * what it may be, what `list keys` says of it. Keys of rows (a neuron's beta, an optimiser's lr)
 * stand in the rows and are listed with them.
 */
#include "data/config.h"

#include <math.h>
#include <stddef.h>

#define FORM_CHOICE(name, text) text "|"
#define FORMS RV_FORM_LIST(FORM_CHOICE)
#define AT(field) offsetof(rv_config, field)
#define MOST_WIDE 9223372036854775807.0
#define MOST_INT 2147483647.0

/* prefix, key, type, offset, default, least, most, open, choices (text: its default), shown type,
 * shown default, sentence. OWN: known here, read by code in config.c. */
#define KEYS_TOP(X)                                                                                \
    X("", "seed", WIDE, AT(seed), 1, 0, MOST_WIDE, false, NULL, "integer", "1",                    \
      "seed of every random number")                                                               \
    X("", "preset", TEXT, AT(preset), 0, 1, 0, false, "ranvier", "text", "ranvier",                \
      "defaults of neurons: ranvier, spikingjelly, snntorch, norse, sinabs, nir")                  \
    X("", "input", OWN, 0, 0, 0, 0, false, NULL, "list", "",                                       \
      "[units] or [channels, height, width]; default: what reader and encoder give")               \
    X("", "data", OWN, 0, 0, 0, 0, false, NULL, "map", "", "reader, its files, and how to use it") \
    X("", "encode", OWN, 0, 0, 0, 0, false, NULL, "map", "{kind: constant}",                       \
      "how samples become spikes or currents")                                                     \
    X("", "network", OWN, 0, 0, 0, 0, false, NULL, "list", "", "layers, from the input on")        \
    X("", "loss", OWN, 0, 0, 0, 0, false, NULL, "map", "{kind: cross_entropy}",                    \
      "loss of the last layer's output")                                                           \
    X("", "train.epochs", WIDE, AT(train.epochs), 5, 0, MOST_INT, false, NULL, "integer", "5",     \
      "passes over the training share; 0 writes the untrained model")                              \
    X("", "train.batch", INT, AT(train.batch), 128, 1, 1 << 20, false, NULL, "integer", "128",     \
      "samples of one update")                                                                     \
    X("", "train.micro_batches", INT, AT(train.micro_batches), 1, 1, 1 << 16, false, NULL,         \
      "integer", "1", "parts a batch is cut into")                                                 \
    X("", "train.max_steps", WIDE, AT(train.max_steps), 0, 0, MOST_WIDE, false, NULL, "integer",   \
      "0", "stop after this many updates; 0 = off")                                                \
    X("", "train.early_stop", WIDE, AT(train.early_stop), 0, 0, MOST_INT, false, NULL, "integer",  \
      "0", "end after this many epochs without better validation accuracy; 0 = off")               \
    X("", "train.clip_norm", REAL, AT(train.clip_norm), 0, 0, INFINITY, false, NULL, "number",     \
      "0.0", "limit of the gradient's norm; 0 = off")                                              \
    X("", "train.optimizer", OWN, 0, 0, 0, 0, false, NULL, "map", "{kind: adam}",                  \
      "optimiser and its parameters")                                                              \
    X("", "train.lr_schedule", OWN, 0, 0, 0, 0, false, NULL, "map", "{kind: constant}",            \
      "how the rate changes with the updates")                                                     \
    X("", "pipeline.stages", INT, AT(stages), 1, 1, 4096, false, NULL, "integer", "1",             \
      "parts along the layers")                                                                    \
    X("", "pipeline.chunks", OWN, 0, 0, 0, 0, false, NULL, "integer or auto", "1",                 \
      "parts along time, at most encode.steps")                                                    \
    X("", "pipeline.schedule", TEXT, AT(schedule), 0, 1, 0, false, "auto", "text", "auto",         \
      "order of the work: a row of `list pipeline_schedules` or `list delayed_schedules`; auto: "  \
      "the fastest that is not delayed")                                                           \
    X("", "pipeline.slots", OWN, 0, 0, 0, 0, false, NULL, "integer or auto", "auto",               \
      "messages an edge between stages can hold; auto: the fewest that reach full speed")          \
    X("", "pipeline.cuts", OWN, 0, 0, 0, 0, false, NULL, "list", "[]",                             \
      "first layers of the stages after the first; default: by measured costs")                    \
    X("", "pipeline.memory", OWN, 0, 0, 0, 0, false, NULL, "text", "",                             \
      "most bytes of the whole process (2GiB, 512MiB); default: no limit")                         \
    X("", "pipeline.tape", OWN, 0, 0, 0, 0, false, NULL, "word or map", "auto",                    \
      "what B needs of F: keep, recompute from the states at chunk borders, or spill to the "      \
      "disk; "                                                                                     \
      "{layer: word} for some")                                                                    \
    X("", "pipeline.tape_dtype", CHOICE, AT(train.tape_dtype), 0, 0, 0, false, RV_TAPE_TYPES,      \
      "word", "float32",                                                                           \
      "membranes between F and B: float32 or float16 (another gradient, see Long sequences)")      \
    X("", "pipeline.truncate", INT, AT(train.truncate), 0, 0, MOST_INT, false, NULL, "integer",    \
      "0", "chunks that gradients go back over at most; 0: all, as they should")                   \
    X("", "pipeline.corrections", OWN, 0, 0, 0, 0, false, NULL, "list", "[]",                      \
      "of a delayed schedule: rows of `list corrections`, as [gc, {lwp_v: {cap: 3}}]")             \
    X("", "pipeline.async_until", OWN, 0, 0, 0, 0, false, NULL, "text", "",                        \
      "updates (500) or epochs (2epoch) after which a delayed schedule is synchronous; "           \
      "default: never")                                                                            \
    X("", "pipeline.peer_timeout", REAL, AT(peer_timeout), 120, 0, 86400, true, NULL, "number",    \
      "120.0", "seconds without any progress after which a run ends (76)")                         \
    X("", "checkpoint.every", OWN, 0, 0, 0, 0, false, NULL, "text", "1epoch",                      \
      "updates (500), or a time (90s, 10min, 2h), or 1epoch")                                      \
    X("", "health.policy", CHOICE, AT(health_policy), 0, 0, 0, false, RV_HEALTH_NAMES, "word",     \
      "abort", "a value that is not finite: abort, or skip_step (weights as before the step)")     \
    X("", "health.limit", INT, AT(health_limit), 10, 1, MOST_INT, false, NULL, "integer", "10",    \
      "steps in a row that skip_step may skip")                                                    \
    X("", "device", TEXT, AT(device), 0, 1, 0, false, "auto", "text", "auto",                      \
      "auto, cpu, or devices for the stages in turn: cuda:0,1; --device overrides")

#define KEYS_DATA(X)                                                                               \
    X("data.", "validation", REAL, AT(data.validation), 0, 0, 0.9, false, NULL, "number", "0.0",   \
      "share held out of the training samples, chosen by seed")                                    \
    X("data.", "normalize.mean", REAL, AT(data.mean), 0, -INFINITY, INFINITY, false, NULL,         \
      "number", "0.0", "bytes become (x/255 - mean)/std")                                          \
    X("data.", "normalize.std", REAL, AT(data.std), 1, 0, INFINITY, true, NULL, "number", "1.0",   \
      "bytes become (x/255 - mean)/std")                                                           \
    X("data.", "augment", OWN, 0, 0, 0, 0, false, NULL, "list", "[]",                              \
      "changes to training samples, one after the other: rows of `list augment`")

#define LAYER(field) offsetof(rv_layer_common, field)
#define KEYS_LAYER(X)                                                                              \
    X("network[].", "name", TEXT, LAYER(name), 0, 1, 0, false, NULL, "text", "",                   \
      "[A-Za-z_][A-Za-z0-9_]*, once in a network")                                                 \
    X("network[].", "kind", TEXT, LAYER(kind), 0, 1, 0, false, NULL, "text", "",                   \
      "a row of `list layers` or `list neurons`; its parameters are further keys")                 \
    X("network[].", "from", OWN, 0, 0, 0, 0, false, NULL, "list", "",                              \
      "layer or layers it takes; default: the one before")                                         \
    X("network[].", "trainable", BOOL, LAYER(trainable), 1, 0, 0, false, NULL, "true or false",    \
      "true", "its tensors are updated")                                                           \
    X("network[].", "form", CHOICE, LAYER(form), 0, 0, 0, false, FORMS, "word", "auto",            \
      "how its product is computed; auto: by the measured rates")                                  \
    X("network[].", "init", OWN, 0, 0, 0, 0, false, NULL, "map", "{kind: pytorch}",                \
      "initial weights: a row of `list init`")                                                     \
    X("network[].", "regularizer", OWN, 0, 0, 0, 0, false, NULL, "map", "",                        \
      "a loss on the layer's spikes; default: none")

#define LOSS(field) offsetof(rv_loss_desc, field)
#define KEYS_LOSS(X)                                                                               \
    X("loss.", "readout", CHOICE, LOSS(readout), 0, 0, 0, false, RV_READOUT_NAMES, "word",         \
      "spike_count", "what the loss reads of the output over time")                                \
    X("loss.", "label_smoothing", REAL, LOSS(label_smoothing), 0, 0, 1, false, NULL, "number",     \
      "0.0", "share of the target spread over all classes")                                        \
    X("loss.", "population", INT, LOSS(population), 1, 1, 1 << 16, false, NULL, "integer", "1",    \
      "outputs that stand for one class")                                                          \
    X("loss.", "class_weights", REALS, LOSS(class_weights), NAN, 0, INFINITY, false, NULL, "list", \
      "", "one factor per class; default: none")

#define KEYS_OPTIMIZER(X)                                                                          \
    X("train.optimizer.", "groups", OWN, 0, 0, 0, 0, false, NULL, "list", "[]",                    \
      "tensors with values of their own")

#define KEYS_SCHEDULE(X)                                                                           \
    X("train.lr_schedule.", "total_steps", WIDE, offsetof(rv_train_desc, total_steps), 0, 0,       \
      MOST_WIDE, false, NULL, "integer", "0",                                                      \
      "horizon in updates; 0: min(epochs * updates of an epoch, max_steps)")

#define GROUP(field) offsetof(rv_group_desc, field)
#define KEYS_GROUP(X)                                                                              \
    X("train.optimizer.groups[].", "pattern", TEXT, GROUP(pattern), 0, 1, 0, false, NULL, "text",  \
      "", "tensors it holds for, as in a shell: hidden.*")                                         \
    X("train.optimizer.groups[].", "lr", REAL, GROUP(lr), NAN, 0, INFINITY, false, NULL, "number", \
      "", "rate; default: the optimiser's")                                                        \
    X("train.optimizer.groups[].", "weight_decay", REAL, GROUP(weight_decay), NAN, 0, INFINITY,    \
      false, NULL, "number", "", "default: the optimiser's")

#define SPEC(prefix, key, type, at, initial, least, most, open, choices, shown, text, sentence)    \
    {key, RV_T_##type, at, initial, least, most, open, choices, NULL, sentence},
#define SPECS(list)                                                                                \
    list(SPEC) {                                                                                   \
        .name = NULL                                                                               \
    }

const rv_spec rv_keys_top[] = {SPECS(KEYS_TOP)};
const rv_spec rv_keys_data[] = {SPECS(KEYS_DATA)};
const rv_spec rv_keys_layer[] = {SPECS(KEYS_LAYER)};
const rv_spec rv_keys_loss[] = {SPECS(KEYS_LOSS)};
const rv_spec rv_keys_optimizer[] = {SPECS(KEYS_OPTIMIZER)};
const rv_spec rv_keys_schedule[] = {SPECS(KEYS_SCHEDULE)};
const rv_spec rv_keys_group[] = {SPECS(KEYS_GROUP)};

/* ---- for `list keys` --------------------------------------------------------------------- */
#define ROW(prefix, key, type, at, initial, least, most, open, choices, shown, text, sentence)     \
    {prefix key, shown, text, sentence},

static const rv_key_row key_rows[] = {
    KEYS_TOP(ROW) KEYS_DATA(ROW){"data.reader", "text", "idx",
                                 "a row of `list readers`; its parameters are further keys"},
    {"encode.kind", "text", "constant",
     "a row of `list encoders`; its parameters are further keys"},
    KEYS_LAYER(ROW){"loss.kind", "text", "cross_entropy",
                    "a row of `list losses`; its parameters are further keys"},
    KEYS_LOSS(ROW){"train.optimizer.kind", "text", "adam",
                   "a row of `list optimizers`; its parameters are further keys"},
    KEYS_OPTIMIZER(ROW)
        KEYS_GROUP(ROW){"train.lr_schedule.kind", "text", "constant",
                        "a row of `list schedules`; its parameters are further keys"},
    KEYS_SCHEDULE(ROW)};

const rv_key_row *rv_config_keys(int *count) {
    *count = (int)(sizeof key_rows / sizeof *key_rows);
    return key_rows;
}
