/* Forward passes over a share of the data: accuracy, loss, spikes, synaptic operations. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/internal.h"

/* ---- spikes of the encoded input -------------------------------------------------------- */

typedef struct rv_input_counter {
    int64_t *per_sample; /* [batch] */
    int batch;
    int64_t total;
    const rv_observer *next; /* may be NULL */
} rv_input_counter;

/* The layers' own spikes are counted by the trainer; those of the encoder only pass by here. */
static rv_status count_input(void *self, const rv_pass *pass) {
    rv_input_counter *counter = self;
    rv_status status = RV_OK;
    if (counter->next) TRY(counter->next->forward(counter->next->self, pass));
    const rv_signal *input = rv_tape_signal(pass->tape, -1);
    if (pass->first != 0 || !input->spikes.bits) return RV_OK; /* one stage counts */
    rv_spikes spikes = input->spikes;
    memset(counter->per_sample, 0, (size_t)counter->batch * sizeof *counter->per_sample);
    TRY(pass->device->ops->count_spikes(pass->device->ctx, pass->queue, spikes,
                                        counter->per_sample));
    for (int b = 0; b < spikes.B; b++)
        counter->total += counter->per_sample[b];
out:
    return status;
}

/* ---- a share ---------------------------------------------------------------------------- */

/* Batches in file order, so that the CSV is sorted and sums are added the same way every time. The
 * batch loss is a mean over its samples: weighted by their number, a ragged last one counts as it
 * should. */
rv_status rv_score_share(const rv_setup *setup, rv_share *share, const rv_score_each *each,
                         rv_score *score) {
    rv_status status = RV_OK;
    const rv_batch *batch = NULL;
    int32_t *predictions = NULL;
    rv_input_counter counter = {.batch = setup->config->train.batch,
                                .next = each ? each->observer : NULL};
    const rv_observer observer = {&counter, count_input};
    double loss = 0;
    bool counted = setup->net->desc->input_spikes;

    *score = (rv_score){0};
    TRY(rv_alloc((size_t)setup->net->layer_count, sizeof *score->spikes, "spike counts",
                 &score->spikes));
    TRY(rv_alloc((size_t)counter.batch, sizeof *predictions, "predictions", &predictions));
    TRY(rv_alloc((size_t)counter.batch, sizeof *counter.per_sample, "spike counts",
                 &counter.per_sample));
    if (counted || counter.next) rv_engine_observe(setup->engine, &observer);
    TRY(rv_loader_start(share->loader, 0, 0));
    for (;;) {
        rv_step_result result = {0};
        TRY(rv_loader_next(share->loader, &batch));
        if (!batch) break;
        TRY(rv_engine_eval(setup->engine, batch, &result, score->spikes, predictions));
        loss += result.loss * batch->B;
        score->correct += result.correct;
        score->samples += batch->B;
        for (int b = 0; each && b < batch->B; b++)
            TRY(each->sample(each->self, batch->sample[b], batch->label ? batch->label[b] : -1,
                             predictions[b]));
    }
    score->loss = score->samples ? loss / (double)score->samples : NAN;
    score->input_spikes = counted ? counter.total : -1;
out:
    rv_engine_observe(setup->engine, NULL); /* the observer lives on this stack */
    rv_free(counter.per_sample);
    rv_free(predictions);
    return status;
}

void rv_score_finish(rv_score *score) {
    rv_free(score->spikes);
    *score = (rv_score){0};
}

/* ---- synaptic operations ---------------------------------------------------------------- */

enum { FROM_INPUT = -1, FROM_VALUES = -2 };

/* Whether a layer hands on its input's spikes unchanged. */
static bool passes_spikes(const rv_layer_desc *layer) {
    return strcmp(layer->row->name, "flatten") == 0;
}

/* The spiking layer whose spikes reach `layer`: its index, FROM_INPUT for the network's input
 * (spikes or not), FROM_VALUES where something in between makes values of them. */
static int source_of(const rv_net *net, int layer) {
    for (;;) {
        const rv_layer_desc *desc = &net->desc->layers[layer];
        if (desc->from_count > 1) return FROM_VALUES;
        int from = desc->from_count ? rv_net_layer_find(net, desc->from[0]) : layer - 1;
        if (from < 0) return FROM_INPUT;
        if (rv_net_layer_spikes(net, from)) return from;
        if (!passes_spikes(&net->desc->layers[from])) return FROM_VALUES;
        layer = from;
    }
}

/* Add the operations of one product: layer `to`, whose inputs have `targets` targets in all. */
static void product_add(rv_layers *layers, const int *row_of, const rv_net *net,
                        const rv_score *score, int to, int64_t targets) {
    const rv_net_desc *desc = net->desc;
    bool recurrent = rv_net_layer_spikes(net, to);
    int from = recurrent ? to : source_of(net, to);
    if (from >= 0)
        layers->synops[row_of[from]] +=
            score->spikes[from] * targets / rv_shape_units(rv_net_layer_shape(net, from));
    else if (from == FROM_INPUT && desc->input_spikes)
        layers->input_synops += score->input_spikes * targets / rv_shape_units(desc->input);
    else { /* a held input is multiplied once per sample */
        bool held = from == FROM_INPUT && desc->input_held;
        layers->dense += targets * (held ? 1 : desc->steps) * score->samples;
    }
}

/* Rows are spiking layers in network order; operations are added to the layer whose spikes cause
 * them, so a spiking last layer has none. */
rv_status rv_layers_fill(rv_layers *layers, const rv_net *net, const rv_score *score) {
    rv_status status = RV_OK;
    size_t most = (size_t)net->layer_count;
    int *row_of = NULL;
    *layers = (rv_layers){0};
    TRY(rv_alloc(most, sizeof *layers->name, "layer names", &layers->name));
    TRY(rv_alloc(most, sizeof *layers->names, "layer names", &layers->names));
    TRY(rv_alloc(most, sizeof *layers->rate, "layer rates", &layers->rate));
    TRY(rv_alloc(most, sizeof *layers->spikes, "layer spikes", &layers->spikes));
    TRY(rv_alloc(most, sizeof *layers->synops, "layer operations", &layers->synops));
    TRY(rv_alloc(most, sizeof *row_of, "layer rows", &row_of));
    for (int i = 0; i < net->layer_count; i++) {
        if (!rv_net_layer_spikes(net, i)) continue;
        int row = row_of[i] = layers->count++;
        /* every place a spike could have been */
        double places = (double)rv_shape_units(rv_net_layer_shape(net, i)) *
                        (double)net->desc->steps * (double)score->samples;
        snprintf(layers->names[row], sizeof layers->names[row], "%s", rv_net_layer_name(net, i));
        layers->name[row] = layers->names[row];
        layers->spikes[row] = score->spikes[i];
        layers->rate[row] = places > 0 ? (double)score->spikes[i] / places : NAN;
    }
    for (int i = 0; i < net->layer_count; i++) {
        int64_t targets = rv_net_layer_targets(net, i);
        if (targets) product_add(layers, row_of, net, score, i, targets);
    }
out:
    rv_free(row_of);
    return status;
}

void rv_layers_finish(rv_layers *layers) {
    rv_free(layers->synops);
    rv_free(layers->spikes);
    rv_free(layers->rate);
    rv_free(layers->names);
    rv_free(layers->name);
    *layers = (rv_layers){0};
}
