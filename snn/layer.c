/*
 * F, B and W of a layer range over one chunk: sets views, walks the layers, sums adjoints.
 *
 * Layers do not know each other. They find the signal of an input and the place for its adjoint on
 * the tape, under the input's index, where the driver below puts a view before it calls them. So a
 * range may begin and end anywhere: what comes from outside is set by whoever runs the range.
 */
#include <string.h>

#include "snn/layers.h"

/* Maps, pools, joins, ...: a new kind is one file and one line here. Neurons have their own table.
 */
static const rv_layer_row layer_rows[] = {
    {{"linear", "every output is a weighted sum of all inputs", "y = W x + b", rv_linear_specs,
      sizeof(rv_linear_options)},
     &rv_kind_linear},
    {{"conv2d", "every output is a weighted sum of a window of the input planes", "PyTorch Conv2d",
      rv_conv2d_specs, sizeof(rv_conv_options)},
     &rv_kind_conv2d},
    {{"conv1d", "conv2d over planes of one row", "PyTorch Conv1d", rv_conv1d_specs,
      sizeof(rv_conv_options)},
     &rv_kind_conv1d},
    {{"avg_pool", "mean of a window; padding counts", "PyTorch AvgPool2d", rv_pool_specs,
      sizeof(rv_pool_options)},
     &rv_kind_avg_pool},
    {{"max_pool", "largest value of a window, the first on ties", "PyTorch MaxPool2d",
      rv_pool_specs, sizeof(rv_pool_options)},
     &rv_kind_max_pool},
    {{"sum_pool", "sum of a window", "sinabs SumPool2d", rv_pool_specs, sizeof(rv_pool_options)},
     &rv_kind_sum_pool},
    {{"batch_norm", "each channel to mean 0 and variance 1, then a factor and a constant",
      "Ioffe, Szegedy 2015", rv_batch_norm_specs, sizeof(rv_norm_options)},
     &rv_kind_batch_norm},
    {{"delay", "the input some steps later", "Hammouamri, Khalfaoui-Hassani, Masquelier 2024",
      rv_delay_specs, sizeof(rv_delay_options)},
     &rv_kind_delay},
    {{"flatten", "planes as one row of units", "PyTorch Flatten", NULL, 0}, &rv_kind_flatten},
    {{"add", "sum of its inputs, unit by unit", "He et al. 2016", NULL, 0}, &rv_kind_add},
    {{"concat", "channels of its inputs one after the other", "PyTorch cat", NULL, 0},
     &rv_kind_concat},
    {{"dropout", "silences units, the same ones at every step of a sample",
      "Srivastava et al. 2014; SpikingJelly", rv_dropout_specs, sizeof(rv_dropout_options)},
     &rv_kind_dropout},
    {{"scale", "a factor per network, channel or unit", "NIR Scale", rv_scale_specs,
      sizeof(rv_scale_options)},
     &rv_kind_scale},
    {{"threshold", "a spike where the input reaches a threshold, without memory", "NIR Threshold",
      rv_threshold_specs, sizeof(rv_threshold_options)},
     &rv_kind_threshold},
};

const rv_table *rv_layer_table(void) {
    static const rv_table table = {"layers", layer_rows, sizeof *layer_rows,
                                   sizeof layer_rows / sizeof *layer_rows};
    return &table;
}

/* ---- views ------------------------------------------------------------------------------- */
/* Steps of the chunk at hand; chunks may differ by one. */
static int pass_steps(const rv_pass *pass) {
    return pass->t1 - pass->t0;
}

/* One frame that stands for T: stride 0 is how every op recognises it. */
static rv_values held_values(float *data, int T, int B, int n) {
    rv_values values = rv_values_of(data, T, B, n);
    values.stride_t = 0;
    return values;
}

/* Where a layer's output lies: with the input (view), in the state (held), in the h of the neuron
 * that takes it or of the layer itself (integrator without takers), else in its own slot. */
static rv_signal output_signal(const rv_pass *pass, const rv_layer *layer) {
    const rv_tape *tape = pass->tape;
    int T = pass_steps(pass), B = pass->B;
    rv_signal signal = {{0}, {0}};
    if (layer->kind->view) return *rv_pass_input(pass, layer, 0);
    if (layer->held) {
        signal.values =
            held_values(rv_state_slot(pass->state, layer, RV_SLOT_HELD), T, B, layer->n);
        return signal;
    }
    float *memory = rv_tape_slot(tape, layer, RV_SLOT_OUT);
    if (!memory) {
        bool neuron = layer->kind == &rv_kind_neuron;
        memory =
            rv_tape_slot(tape, neuron ? layer : &pass->net->layers[layer->consumer], RV_SLOT_H);
    }
    if (layer->spikes) { /* a frame before the chunk holds the last spikes of the chunk before */
        size_t before = layer->tape[RV_SLOT_OUT].sample * (size_t)B;
        signal.spikes = rv_spikes_of((uint32_t *)(void *)memory + before, T, B, layer->n);
    } else {
        signal.values = rv_values_of(memory, T, B, layer->n);
    }
    return signal;
}

/* Steps and samples are those of the last F on this tape. B overwrites h. Other kinds of layers
 * have something else in that slot. */
rv_values rv_tape_membrane(const rv_tape *tape, int layer) {
    const rv_layer *l = &tape->net->layers[layer];
    const rv_signal *signal = &tape->signal[layer + 1];
    bool bits = signal->spikes.bits;
    if (l->kind != &rv_kind_neuron) return (rv_values){0};
    return rv_values_of(rv_tape_slot(tape, l, RV_SLOT_H),
                        bits ? signal->spikes.T : signal->values.T,
                        bits ? signal->spikes.B : signal->values.B, l->n);
}

/* ---- copies ------------------------------------------------------------------------------ */
/* By the device, so in the order of its queue. A held frame of several steps goes into a held view
 * once for each of them; the op takes it for one. */
rv_status rv_values_copy(const rv_pass *pass, rv_values to, rv_values from, bool add) {
    rv_status status = RV_OK;
    const rv_signal x = {.values = from};
    int times = to.stride_t == 0 && from.stride_t == 0 ? from.T : 1;
    for (int k = 0; k < times; k++)
        TRY(pass->device->ops->copy_units(pass->device->ctx, pass->queue, &x, 0, to, 0, to.n,
                                          add || k > 0));
out:
    return status;
}

rv_status rv_pass_sync(const rv_pass *pass) {
    return pass->device->ops->queue_sync(pass->device->ctx, pass->queue);
}

static rv_status values_zero(const rv_pass *pass, rv_values v) {
    size_t count = v.stride_t ? (size_t)v.T * v.stride_t : (size_t)v.B * (size_t)v.ld;
    return pass->device->ops->zero(pass->device->ctx, pass->queue, v.data, count * sizeof *v.data);
}

/* Restart bits of the batch are packed by its samples; a micro-batch needs them from its own
 * first row on, and a chunk from its own first step. */
rv_status rv_pass_starts(const rv_pass *pass, const uint32_t **out) {
    const rv_batch *batch = pass->batch;
    int from = rv_words(batch ? batch->B : 0), to = rv_words(pass->B), T = pass_steps(pass);
    uint32_t *starts = NULL;
    rv_status status = RV_OK;
    *out = NULL;
    if (!batch || !batch->starts) return RV_OK;
    TRY(rv_arena_get(pass->arena, (size_t)T * (size_t)to, sizeof *starts, &starts));
    TRY(rv_pass_sync(pass)); /* ops may still use what lay there before */
    memset(starts, 0, sizeof *starts * (size_t)T * (size_t)to);
    for (int t = 0; t < T; t++) {
        const uint32_t *bits = batch->starts + (size_t)(pass->t0 + t) * (size_t)from;
        for (int b = 0; b < pass->B; b++) {
            int at = pass->row + b;
            starts[(size_t)t * (size_t)to + (size_t)b / 32] |= (bits[at / 32] >> at % 32 & 1u)
                                                               << b % 32;
        }
    }
    *out = starts;
out:
    return status;
}

/* Only what one op can do: an event product whose current goes to a single neuron layer of the
 * same range, without recurrence, which would add to the current inside the time loop. */
const rv_layer *rv_pass_fused(const rv_pass *pass, const rv_layer *map) {
    const rv_layer *neuron = &pass->net->layers[map->consumer];
    bool fused = map->kind == &rv_kind_linear && map->form == RV_FORM_EVENT &&
                 map->consumer_count > 0 && neuron->in_place && neuron->index < pass->last &&
                 !neuron->recurrent && pass->device->ops->map_neuron_forward;
    return fused ? neuron : NULL;
}

/* ---- F ----------------------------------------------------------------------------------- */
/* Scratch of a layer is given back before the next one runs: the arena holds the largest layer,
 * not the sum. A held layer runs at the first step of a micro-batch only; its signal is the
 * frame that the state carries to later chunks. */
rv_status rv_net_forward(rv_pass *pass) {
    rv_status status = RV_OK;
    /* Held frames lie in the state, which, where layers run again, is as it was before this chunk.
     */
    bool held = !pass->again || rv_tape_has(&pass->tape->range, pass->again, RV_TAPE_RECOMPUTE);
    for (int l = pass->first; l < pass->last; l++) {
        const rv_layer *layer = &pass->net->layers[l];
        size_t mark = rv_arena_mark(pass->arena);
        pass->layer = l;
        pass->tape->signal[l + 1] = output_signal(pass, layer);
        if (layer->kind->view || (layer->held && (pass->t0 != 0 || !held))) continue;
        if (pass->again && !layer->held &&
            rv_tape_policy_of(pass->net, pass->again, l) != RV_TAPE_RECOMPUTE)
            continue;
        TRY(layer->kind->forward(pass, layer));
        if (layer->desc->regularizer.row && pass->training) {
            TRY(rv_pass_sync(pass));
            rv_regularizer_forward(pass, layer);
        }
        rv_arena_release(pass->arena, mark);
    }
out:
    return status;
}

/* ---- B ----------------------------------------------------------------------------------- */
/* The layer whose memory `layer` shows: views looked through; -1 = the network's input. */
static int look_through(const rv_net *net, int layer) {
    while (layer >= 0 && net->layers[layer].kind->view)
        layer = net->layers[layer].input[0];
    return layer;
}

/* A range may end in views; the adjoint then belongs to what they show. */
int rv_pass_last(const rv_pass *pass) {
    return look_through(pass->net, pass->last - 1);
}

/* Memory for the adjoint of a map's output, which must last until W. */
static rv_values map_adjoint(const rv_pass *pass, const rv_layer *layer) {
    float *memory = rv_tape_slot(pass->tape, layer, RV_SLOT_G);
    if (!memory) memory = rv_tape_slot(pass->tape, &pass->net->layers[layer->consumer], RV_SLOT_H);
    return layer->held ? held_values(memory, 1, pass->B, layer->n)
                       : rv_values_of(memory, pass_steps(pass), pass->B, layer->n);
}

/* The twin of the frame in the state: zero at the last chunk, summed by every chunk down to 0. */
static rv_values held_adjoint(const rv_pass *pass, const rv_layer *layer) {
    return held_values(rv_state_slot(pass->adjoint, layer, RV_SLOT_HELD), 1, pass->B, layer->n);
}

size_t rv_layer_edge(const rv_net *net, const rv_layer *layer, int k) {
    const rv_layer *source = layer->input[k] < 0 ? NULL : &net->layers[layer->input[k]];
    return source && source->held && source->live ? (size_t)source->ld : 0;
}

/* Takers of several held inputs have the sums one after the other. */
static rv_values edge_adjoint(const rv_pass *pass, const rv_layer *layer, int k) {
    float *memory = rv_state_slot(pass->adjoint, layer, RV_SLOT_EDGES);
    for (int j = 0; j < k; j++)
        memory += rv_layer_edge(pass->net, layer, j) * (size_t)pass->B;
    return held_values(memory, 1, pass->B, pass->net->layers[layer->input[k]].n);
}

static int crossing_find(const rv_crossing *crossing, int layer) {
    for (int k = 0; crossing && k < crossing->count; k++)
        if (crossing->tensor[k].layer == layer) return k;
    return -1;
}

/* Adjoints of layers without W live as long as B needs them: from the last taker that adds to
 * them to the layer itself. As B walks down, they end in the order of a stack, or later. */
static rv_status scratch_adjoint(rv_pass *pass, const rv_layer *layer, rv_values *out) {
    rv_status status = RV_OK;
    rv_tape *tape = pass->tape;
    float *memory = NULL;
    int T = pass_steps(pass);
    tape->stack[tape->depth] = (rv_scratch){rv_arena_mark(pass->arena), layer->index};
    TRY(rv_arena_get(pass->arena, (size_t)T * (size_t)pass->B * (size_t)layer->ld, sizeof *memory,
                     &memory));
    tape->depth++;
    *out = rv_values_of(memory, T, pass->B, layer->n);
out:
    return status;
}

/* The first to ask (the last taker in topological order) writes, those after it add: so sums
 * over takers have one order in every schedule. Of a held source each taker sums over time apart,
 * into the state's twin: those sums must not depend on who runs when. */
rv_status rv_pass_adjoint_in(rv_pass *pass, const rv_layer *layer, int k, rv_values *out,
                             bool *add) {
    rv_status status = RV_OK;
    const rv_net *net = pass->net;
    int source = layer->input[k];
    rv_values *sum = &pass->tape->adjoint[source + 1];
    if (rv_layer_edge(net, layer, k)) {
        *add = true;
        *out = edge_adjoint(pass, layer, k);
        return RV_OK;
    }
    *add = sum->data != NULL;
    if (!sum->data) {
        if (source < 0) {
            *sum = pass->gx;
            *add = sum->data && sum->stride_t == 0; /* a held frame sums over the chunks */
        } else if (source < pass->first) {
            int at = crossing_find(pass->before, source);
            if (at >= 0) *sum = pass->g_before[at];
        } else if (net->layers[source].live) {
            if (net->layers[source].kind->map)
                *sum = map_adjoint(pass, &net->layers[source]);
            else
                TRY(scratch_adjoint(pass, &net->layers[source], sum));
        }
    }
    *out = *sum;
out:
    return status;
}

/* ---- what crosses the ends --------------------------------------------------------------- */
/* An adjoint that the takers in the range add to: of a layer of the range, or of one before it
 * that the range hands on. */
static rv_status seed_adjoint(rv_pass *pass, int source, rv_values g) {
    rv_values *adjoint = &pass->tape->adjoint[source + 1];
    if (!g.data) return RV_OK;
    if (source < pass->first) {
        int at = crossing_find(pass->before, source);
        if (at < 0 || !pass->g_before[at].data) return RV_OK;
        *adjoint = pass->g_before[at];
        return rv_values_copy(pass, *adjoint, g, adjoint->stride_t == 0);
    }
    const rv_layer *layer = &pass->net->layers[source];
    if (layer->held && layer->live) return rv_values_copy(pass, *adjoint, g, true);
    if (layer->kind->map && layer->live) { /* W reads it after the caller's memory is gone */
        *adjoint = map_adjoint(pass, layer);
        return rv_values_copy(pass, *adjoint, g, false);
    }
    *adjoint = g;
    return RV_OK;
}

/* What is known before the walk: the adjoints of what leaves the range, the sums of held ones. */
static rv_status seed_adjoints(rv_pass *pass) {
    rv_status status = RV_OK;
    const rv_net *net = pass->net;
    rv_values *adjoint = pass->tape->adjoint;
    memset(adjoint, 0, sizeof *adjoint * ((size_t)net->layer_count + 1));
    for (int l = pass->first; l < pass->last; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->held && layer->live) adjoint[l + 1] = held_adjoint(pass, layer);
    }
    for (int k = 0; pass->before && k < pass->before->count && pass->t0 == 0; k++) {
        rv_values g = pass->g_before[k];
        if (g.data && g.stride_t == 0) TRY(values_zero(pass, g));
    }
    TRY(seed_adjoint(pass, rv_pass_last(pass), pass->gs));
    for (int k = 0; pass->after && k < pass->after->count; k++)
        if (!pass->after->tensor[k].held || pass->t0 == 0)
            TRY(seed_adjoint(pass, pass->after->tensor[k].layer, pass->g_after[k]));
out:
    return status;
}

/* The takers' sums of a held source, complete at chunk 0: the last taker in topological order
 * first, as everywhere. */
static rv_status sum_edges(const rv_pass *pass, int source, rv_values sum) {
    rv_status status = RV_OK;
    for (int l = pass->last - 1; l >= pass->first; l--) {
        const rv_layer *layer = &pass->net->layers[l];
        for (int k = 0; k < layer->input_count && !layer->kind->view; k++)
            if (layer->input[k] == source)
                TRY(rv_values_copy(pass, sum, edge_adjoint(pass, layer, k), true));
    }
out:
    return status;
}

/* After the walk: held sums; zero for what no adjoint has reached. */
static rv_status leave_adjoints(const rv_pass *pass) {
    rv_status status = RV_OK;
    for (int k = 0; pass->before && k < pass->before->count; k++) {
        rv_values g = pass->g_before[k];
        int source = pass->before->tensor[k].layer;
        if (!g.data) continue;
        if (g.stride_t == 0) {
            if (pass->t0 == 0) TRY(sum_edges(pass, source, g));
        } else if (!pass->tape->adjoint[source + 1].data) {
            TRY(values_zero(pass, g));
        }
    }
out:
    return status;
}

/* The adjoint so far may be the caller's memory: the penalty is added to a copy. */
static rv_status regularize(rv_pass *pass, const rv_layer *layer) {
    rv_status status = RV_OK;
    rv_values *sum = &pass->tape->adjoint[layer->index + 1], own;
    TRY(scratch_adjoint(pass, layer, &own));
    TRY(sum->data ? rv_values_copy(pass, own, *sum, false) : values_zero(pass, own));
    TRY(rv_pass_sync(pass));
    rv_regularizer_backward(pass, layer, own);
    *sum = own;
out:
    return status;
}

/* Layers descending. A held layer waits for chunk 0, when the sum over time is complete; its sum
 * is copied to the tape first, because the state may serve the next micro-batch before W runs. */
rv_status rv_net_backward(rv_pass *pass) {
    rv_status status = RV_OK;
    rv_tape *tape = pass->tape;
    tape->depth = 0;
    TRY(seed_adjoints(pass));
    for (int l = pass->last - 1; l >= pass->first; l--) {
        const rv_layer *layer = &pass->net->layers[l];
        if (!layer->live || layer->kind->view || (layer->held && pass->t0 != 0)) continue;
        pass->layer = l;
        if (layer->held) TRY(sum_edges(pass, l, tape->adjoint[l + 1]));
        if (layer->held && layer->kind->map) { /* the state's twin is not W's to read */
            rv_values g = map_adjoint(pass, layer);
            TRY(rv_values_copy(pass, g, tape->adjoint[l + 1], false));
            tape->adjoint[l + 1] = g;
        }
        if (layer->desc->regularizer.row) TRY(regularize(pass, layer));
        TRY(layer->kind->backward(pass, layer));
        while (tape->depth > 0 && tape->stack[tape->depth - 1].layer >= l)
            rv_arena_release(pass->arena, tape->stack[--tape->depth].mark);
    }
    TRY(leave_adjoints(pass));
out:
    return status;
}

/* ---- W ----------------------------------------------------------------------------------- */
/* Products only: neuron and norm parameters got their gradients in B. A map that no adjoint has
 * reached (a loss that looks at other chunks) has nothing to add. */
rv_status rv_net_weight(rv_pass *pass) {
    rv_status status = RV_OK;
    for (int l = pass->first; l < pass->last; l++) {
        const rv_layer *layer = &pass->net->layers[l];
        size_t mark = rv_arena_mark(pass->arena);
        pass->layer = l;
        if (!layer->kind->weight || !layer->trained || (layer->held && pass->t0 != 0)) continue;
        if (!pass->tape->adjoint[l + 1].data && layer->kind->map) continue;
        TRY(layer->kind->weight(pass, layer));
        rv_arena_release(pass->arena, mark);
    }
out:
    return status;
}
