/*
 * Description -> network: names, graph, shapes; then the tensors get their places.
 *
 * One pass down the layers checks each against those before it, because only what lies before is
 * known: a kind's check sees the shapes and kinds of its inputs and says its own. Then passes over
 * the whole graph find what depends on layers behind: who takes an output, whether two layers may
 * share memory, whether an adjoint is wanted, where blocks begin. Nothing here touches a device;
 * a network is a plan, and everything that holds numbers is made from it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "snn/layer.h"

/* ---- shapes ------------------------------------------------------------------------------ */
int rv_shape_units(rv_shape shape) {
    int units = shape.rank > 0 ? 1 : 0;
    for (int k = 0; k < shape.rank; k++)
        units *= shape.dim[k];
    return units;
}

/* Rank and dimensions: [784] and [1, 28, 28] differ though their units are as many. */
bool rv_shape_equal(rv_shape a, rv_shape b) {
    return a.rank == b.rank && memcmp(a.dim, b.dim, sizeof(int) * (size_t)a.rank) == 0;
}

/* The caller brings the memory, so a message may name two shapes at once. */
const char *rv_shape_text(rv_shape shape, char buffer[48]) {
    if (shape.rank == 3)
        snprintf(buffer, 48, "[%d, %d, %d]", shape.dim[0], shape.dim[1], shape.dim[2]);
    else
        snprintf(buffer, 48, shape.rank == 1 ? "[%d]" : "[]", shape.dim[0]);
    return buffer;
}

/* Products of three dimensions must stay an int: everything downstream counts units in int. */
static rv_status shape_check(rv_shape shape, rv_where where, const char *what) {
    char text[48];
    int64_t units = 1;
    if (shape.rank != 1 && shape.rank != 3)
        return rv_fail_at(RV_CONFIG, where, NULL, NULL,
                          "%s has %d dimensions; a shape is [units] or [channels, height, width]",
                          what, shape.rank);
    for (int k = 0; k < shape.rank; k++) {
        if (shape.dim[k] < 1 || (units *= shape.dim[k]) > (1 << 28))
            return rv_fail_at(RV_CONFIG, where, NULL, NULL,
                              "%s has shape %s; dimensions are at least 1, units at most 2^28",
                              what, rv_shape_text(shape, text));
    }
    return RV_OK;
}

/* ---- what check functions ask ------------------------------------------------------------ */
/* Inputs are looked up by layer index; -1 is what the encoder gives, which the description
 * tells. Every kind asks through these four, so none needs to know where an input comes from. */
rv_shape rv_layer_in_shape(const rv_net *net, const rv_layer *layer, int k) {
    return layer->input[k] < 0 ? net->desc->input : net->layers[layer->input[k]].shape;
}

bool rv_layer_in_spikes(const rv_net *net, const rv_layer *layer, int k) {
    return layer->input[k] < 0 ? net->desc->input_spikes : net->layers[layer->input[k]].spikes;
}

bool rv_layer_in_bf16(const rv_net *net, const rv_layer *layer, int k) {
    return rv_layer_in_spikes(net, layer, k) ||
           (layer->input[k] >= 0 && net->layers[layer->input[k]].bf16);
}

bool rv_layer_in_held(const rv_net *net, const rv_layer *layer, int k) {
    return layer->input[k] < 0 ? net->desc->input_held : net->layers[layer->input[k]].held;
}

const char *rv_layer_in_name(const rv_net *net, const rv_layer *layer, int k) {
    return layer->input[k] < 0 ? "input" : net->layers[layer->input[k]].desc->name;
}

/* One wording for every kind: who takes what, and who gives what instead. The place is that of
 * the layer that cannot take it, the line a user has to look at first. */
rv_status rv_layer_misfit(const rv_net *net, const rv_layer *layer, int k, const char *needs) {
    char text[48];
    return rv_fail_at(RV_CONFIG, layer->desc->where, NULL, NULL,
                      "layer \"%s\" (%s) %s, but \"%s\" gives %s %s", layer->desc->name,
                      layer->desc->row->name, needs, rv_layer_in_name(net, layer, k),
                      rv_layer_in_spikes(net, layer, k) ? "spikes" : "values",
                      rv_shape_text(rv_layer_in_shape(net, layer, k), text));
}

/* Before rates are measured spikes go as events: the measuring pass itself must have one form
 * for everybody, and events cost little where most units are silent. */
rv_status rv_layer_choose_form(const rv_net *net, rv_layer *layer) {
    bool spikes = rv_layer_in_spikes(net, layer, 0);
    layer->form = layer->desc->form != RV_FORM_AUTO ? layer->desc->form
                  : spikes                          ? RV_FORM_EVENT
                                                    : RV_FORM_DENSE;
    if (layer->form == RV_FORM_EVENT && !spikes)
        return rv_layer_misfit(net, layer, 0, "has form event and takes spikes");
    return RV_OK;
}

/* ---- names and edges --------------------------------------------------------------------- */
static bool name_valid(const char *name) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    size_t length = strnlen(name, RV_NAME_MAX);
    return length > 0 && length < RV_NAME_MAX && strchr(letters, name[0]) &&
           strspn(name, more) == length;
}

/* Linear search: networks have tens of layers, and a description is checked once. */
static int desc_find(const rv_net_desc *desc, const char *name) {
    for (int l = 0; l < desc->layer_count; l++) {
        if (strcmp(desc->layers[l].name, name) == 0) return l;
    }
    return -1;
}

/* Names become keys of files (`/layers/<name>`), of `--set` paths and of metrics, so they are
 * held to identifiers; "input" is taken by what the encoder gives. */
static rv_status check_name(const rv_net_desc *desc, int l) {
    const rv_layer_desc *layer = &desc->layers[l];
    if (!name_valid(layer->name) || strcmp(layer->name, "input") == 0)
        return rv_fail_at(RV_CONFIG, layer->where, "name", NULL,
                          "layer name \"%.63s\": letters, digits and _ only, no digit first, at "
                          "most 63, and not \"input\", which is the network's input",
                          layer->name);
    if (desc_find(desc, layer->name) != l)
        return rv_fail_at(RV_CONFIG, layer->where, "name", NULL, "layer name \"%s\" is used twice",
                          layer->name);
    return RV_OK;
}

/* Names become indices. The order of the description is the topological one: a layer may only
 * take from layers above it, which rules out cycles without a search. Views (flatten) are looked
 * through, so that what takes from a view shares memory with what the view shows. */
static rv_status resolve_inputs(rv_net *net, rv_layer *layer) {
    const rv_layer_desc *desc = layer->desc;
    if (desc->from_count < 0 || desc->from_count > RV_MAX_INPUTS)
        return rv_fail_at(RV_CONFIG, desc->where, "from", NULL,
                          "layer \"%s\" takes %d inputs, %d at "
                          "most",
                          desc->name, desc->from_count, RV_MAX_INPUTS);
    layer->input_count = desc->from_count ? desc->from_count : 1;
    layer->input[0] = layer->index - 1;
    for (int k = 0; k < desc->from_count; k++) {
        int source = strcmp(desc->from[k], "input") == 0 ? -1 : desc_find(net->desc, desc->from[k]);
        if (source < 0 && strcmp(desc->from[k], "input") != 0)
            return rv_fail_at(RV_CONFIG, desc->where, "from", NULL,
                              "layer \"%s\" takes from \"%s\", but no layer has that name",
                              desc->name, desc->from[k]);
        if (source >= layer->index)
            return rv_fail_at(
                RV_CONFIG, desc->where, "from", NULL,
                "layer \"%s\" takes from \"%s\", which does not come before it: cycles "
                "are not allowed (recurrence is `recurrent: true` of a neuron layer)",
                desc->name, desc->from[k]);
        layer->input[k] = source;
    }
    for (int k = 0; k < layer->input_count; k++) {
        int source = layer->input[k];
        if (source >= 0 && net->layers[source].kind->view)
            layer->input[k] = net->layers[source].input[0];
    }
    return RV_OK;
}

/* Who takes each output, and how many do: a single taker may share memory with it. */
static void count_consumers(rv_net *net) {
    for (int l = 0; l < net->layer_count; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->kind->view && l + 1 < net->layer_count)
            continue; /* its takers are looked through */
        for (int k = 0; k < layer->input_count; k++) {
            if (layer->input[k] < 0) continue;
            net->layers[layer->input[k]].consumer_count++;
            net->layers[layer->input[k]].consumer = l;
        }
    }
}

/* A layer nothing takes from is nearly always a slip in a `from`: refused rather than trained
 * for nothing. A view counts as used when a description names it or follows it, since the edges
 * resolved above no longer show it. */
static rv_status check_consumers(const rv_net *net) {
    for (int l = 0; l + 1 < net->layer_count; l++) {
        const rv_layer *layer = &net->layers[l];
        bool used = layer->consumer_count > 0;
        for (int j = l + 1; j < net->layer_count && layer->kind->view; j++) {
            const rv_layer_desc *desc = net->layers[j].desc;
            used = used || (desc->from_count == 0 && j == l + 1);
            for (int k = 0; k < desc->from_count; k++)
                used = used || strcmp(desc->from[k], layer->desc->name) == 0;
        }
        if (!used)
            return rv_fail_at(RV_CONFIG, layer->desc->where, NULL, NULL,
                              "nothing takes from layer \"%s\", and it is not the last one",
                              layer->desc->name);
    }
    return RV_OK;
}

/* ---- passes over the whole graph --------------------------------------------------------- */
/* A neuron takes its input's memory as its h where nothing else reads those values. */
static void choose_in_place(rv_net *net) {
    for (int l = 0; l < net->layer_count; l++) {
        rv_layer *layer = &net->layers[l];
        if (layer->kind != &rv_kind_neuron || layer->input[0] < 0) continue;
        rv_layer *source = &net->layers[layer->input[0]];
        layer->in_place = source->kind->map && source->consumer_count == 1 && !source->held;
        if (layer->in_place) memset(&source->tape[RV_SLOT_OUT], 0, sizeof(rv_slot));
        if (layer->in_place) memset(&source->tape[RV_SLOT_G], 0, sizeof(rv_slot));
    }
}

/* B runs only where a trained tensor lies at or before a layer: the adjoint of frozen first
 * layers, and of the input, is nobody's business unless the caller asks for it (rv_pass.gx). */
static void find_live(rv_net *net) {
    for (int l = 0; l < net->layer_count; l++) {
        rv_layer *layer = &net->layers[l];
        layer->live = layer->trained;
        for (int k = 0; k < layer->input_count; k++)
            layer->live |= layer->input[k] >= 0 && net->layers[layer->input[k]].live;
    }
}

bool rv_layer_back(const rv_net *net, const rv_layer *layer) {
    bool wanted = !layer->kind->map;
    for (int k = 0; k < layer->input_count; k++)
        wanted |= layer->input[k] >= 0 && net->layers[layer->input[k]].live;
    return wanted;
}

/* A recurrent weight is read as it lies, inside the neuron's time loop. */
static void find_back(rv_net *net) {
    for (int l = 0; l < net->layer_count; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->kind->map) net->tensors[layer->tensor[0]].back = rv_layer_back(net, layer);
    }
}

/* The slots every layer has, from what check found out. */
static void common_slots(rv_layer *layer) {
    size_t row = layer->spikes ? (size_t)rv_words(layer->n) : (size_t)layer->ld;
    if (layer->kind->view) return;
    if (layer->held) {
        layer->state[RV_SLOT_HELD].sample = row;
    } else {
        layer->tape[RV_SLOT_OUT].step += row;
    }
    if (!layer->kind->map) return;
    if (layer->held) {
        layer->tape[RV_SLOT_G].sample = (size_t)layer->ld;
    } else {
        layer->tape[RV_SLOT_G].step = (size_t)layer->ld;
    }
}

/* Where a layer adds up the adjoint of a held input over time. */
static void place_edges(rv_net *net) {
    for (int l = 0; l < net->layer_count; l++) {
        rv_layer *layer = &net->layers[l];
        for (int k = 0; k < layer->input_count && !layer->kind->view; k++)
            layer->state[RV_SLOT_EDGES].sample += rv_layer_edge(net, layer, k);
    }
}

/* Layers with running statistics share one row a step; each gets its place in it. */
static void place_statistics(rv_net *net) {
    for (int l = 0; l < net->layer_count; l++) {
        net->layers[l].statistic = net->statistics;
        net->statistics += net->layers[l].statistics;
    }
}

/* A block begins at every map, where messages are bits; parameter-free layers in front of the
 * first map are a block of their own. */
static rv_status find_blocks(rv_net *net) {
    rv_status status = RV_OK;
    TRY(rv_alloc((size_t)net->layer_count, sizeof(int), "blocks of the network",
                 &net->block_first));
    net->block_first[net->block_count++] = 0;
    for (int l = 1; l < net->layer_count; l++) {
        if (net->layers[l].kind->map) net->block_first[net->block_count++] = l;
    }
out:
    return status;
}

/* Everything about one layer that its own kind and the layers before it decide. What follows
 * from layers behind it (takers, memory in place, liveness) is found later, by passes over all. */
static rv_status check_layer(rv_net *net, int l) {
    rv_status status = RV_OK;
    rv_layer *layer = &net->layers[l];
    const rv_layer_desc *desc = layer->desc = &net->desc->layers[l];
    layer->index = l;
    for (int k = 0; k < RV_LAYER_TENSORS; k++)
        layer->tensor[k] = -1;
    TRY(check_name(net->desc, l));
    if (!desc->row)
        TRY(rv_fail_at(RV_CONFIG, desc->where, "kind", NULL, "layer \"%s\" has no kind",
                       desc->name));
    layer->kind = rv_table_index(rv_neuron_table(), desc->row) >= 0
                      ? &rv_kind_neuron
                      : ((const rv_layer_row *)(const void *)desc->row)->kind;
    TRY(resolve_inputs(net, layer));
    TRY(rv_alloc(1, layer->kind->plan_size, "plan of a layer", &layer->plan));
    TRY(layer->kind->check(net, layer));
    TRY(shape_check(layer->shape, desc->where, desc->name));
    layer->n = rv_shape_units(layer->shape);
    layer->ld = rv_round_up(layer->n, RV_LANES);
    common_slots(layer);
    TRY(rv_regularizer_slots(layer));
out:
    return status;
}

/* In the order in which things become known: each layer, then the edges backwards, then places. */
rv_status rv_net_create(const rv_net_desc *desc, rv_net **out) {
    rv_status status = RV_OK;
    rv_net *net = NULL;
    rv_where nowhere = {NULL, 0, 0};
    *out = NULL;
    TRY(rv_alloc(1, sizeof *net, "network", &net));
    net->desc = desc;
    /* An empty list would leave no output to judge. */
    if (desc->layer_count < 1) FAIL(RV_CONFIG, "the network has no layers");
    if (desc->steps < 1) FAIL(RV_CONFIG, "the network runs %d steps; at least 1", desc->steps);
    TRY(shape_check(desc->input, nowhere, "the network's input"));
    net->layer_count = desc->layer_count;
    TRY(rv_alloc((size_t)desc->layer_count, sizeof *net->layers, "layers", &net->layers));
    TRY(rv_alloc((size_t)desc->layer_count * RV_LAYER_TENSORS, sizeof *net->tensors, "tensors",
                 &net->tensors));
    for (int l = 0; l < desc->layer_count; l++)
        TRY(check_layer(net, l));
    /* From here on every layer is known to fit what it takes. */
    count_consumers(net);
    TRY(check_consumers(net));
    choose_in_place(net);
    TRY(rv_net_lay_out(net));
    find_live(net);
    find_back(net);
    place_edges(net);
    place_statistics(net);
    TRY(find_blocks(net));
    const rv_layer *last = &net->layers[net->layer_count - 1];
    net->output = last->shape;
    net->output_spikes = last->spikes;
    *out = net;
    net = NULL;
out:
    rv_net_destroy(net);
    return status;
}

void rv_net_destroy(rv_net *net) {
    if (!net) return;
    for (int l = 0; l < net->layer_count && net->layers; l++)
        rv_free(net->layers[l].plan);
    rv_free(net->block_first);
    rv_free(net->tensors);
    rv_free(net->layers);
    rv_free(net);
}

/* ---- running statistics ------------------------------------------------------------------ */
size_t rv_net_statistics(const rv_net *net) {
    return net->statistics;
}

/* Order matters: running means are not commutative, so U goes through micro-batches and steps
 * ascending in every schedule, and the statistics of all layers come in one block. */
void rv_net_statistics_apply(const rv_net *net, int first, int last, const float *statistics, int B,
                             rv_version *version) {
    for (int l = first; l < last; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->kind->update) layer->kind->update(version, layer, statistics, B);
    }
}

/* Statistics over a whole sequence are not known at the end of a chunk. */
rv_status rv_net_check_chunks(const rv_net *net, int chunks) {
    for (int l = 0; l < net->layer_count && chunks > 1; l++) {
        const rv_layer_desc *desc = net->layers[l].desc;
        if (net->layers[l].whole)
            return rv_fail_at(
                RV_CONFIG, desc->where, NULL, NULL,
                "layer \"%s\" (%s) trains on whole sequences, so pipeline.chunks must "
                "be 1, not %d",
                desc->name, desc->row->name, chunks);
    }
    return RV_OK;
}

/* ---- questions --------------------------------------------------------------------------- */
int rv_net_layer_find(const rv_net *net, const char *name) {
    return desc_find(net->desc, name);
}

const char *rv_net_layer_name(const rv_net *net, int layer) {
    return net->layers[layer].desc->name;
}

rv_shape rv_net_layer_shape(const rv_net *net, int layer) {
    return net->layers[layer].shape;
}

/* Pools and joins may pass spikes on; only a neuron layer makes them, and only those have rates. */
bool rv_net_layer_spikes(const rv_net *net, int layer) {
    return net->layers[layer].kind == &rv_kind_neuron && net->layers[layer].spikes;
}

rv_form rv_net_layer_form(const rv_net *net, int layer) {
    return net->layers[layer].form;
}

/* Kinds without a product have no synapses. */
int64_t rv_net_layer_targets(const rv_net *net, int layer) {
    const rv_layer *l = &net->layers[layer];
    return l->kind->targets ? l->kind->targets(net, l) : 0;
}

/* By the name files use. */
const rv_tensor *rv_net_tensor_find(const rv_net *net, const char *name) {
    for (int k = 0; k < net->tensor_count; k++) {
        if (strcmp(net->tensors[k].name, name) == 0) return &net->tensors[k];
    }
    return NULL;
}
