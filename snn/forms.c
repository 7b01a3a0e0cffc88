/*
 * The choice of product forms: a pure function of network, batch and starting weights.
 *
 * Forms change the order of additions, hence bits. So they are fixed before the first step by
 * counting, not by timing, on samples, steps and weights that every schedule and every number of
 * chunks and threads has alike.
 */
#include <string.h>

#include "snn/layer.h"

enum { SAMPLES = 128, STEPS = 64, CHUNK = 8 };

typedef struct meter {
    int64_t *spikes;  /* [layer_count + 1] of each layer's output; entry 0: the input */
    int64_t *samples; /* [B] */
} meter;

/* Bits of all layers and of the input; values have no rate. */
static rv_status count_signals(const rv_pass *pass, meter *m) {
    rv_status status = RV_OK;
    for (int l = 0; l <= pass->net->layer_count; l++) {
        rv_spikes spikes = pass->tape->signal[l].spikes;
        if (!spikes.bits) continue;
        memset(m->samples, 0, sizeof *m->samples * (size_t)pass->B);
        TRY(pass->device->ops->count_spikes(pass->device->ctx, pass->queue, spikes, m->samples));
        for (int b = 0; b < pass->B; b++)
            m->spikes[l] += m->samples[b];
    }
out:
    return status;
}

/* With memory of its own, in short chunks: the answer must not depend on the chunks of the
 * recipe, and the whole sequence of 128 samples need not fit. */
static rv_status measure(const rv_net *net, const rv_device *device, const rv_version *version,
                         const rv_choice *encoder, const rv_batch *first, int B, int T, meter *m) {
    rv_status status = RV_OK;
    rv_state *state = NULL;
    rv_tape *tape = NULL;
    rv_arena arena = {.memory = rv_device_memory(device)};
    TRY(rv_state_create(net, device, B, &state));
    TRY(rv_tape_create(net, device, T < CHUNK ? T : CHUNK, B, &tape));
    for (int t = 0; t < T; t += CHUNK) {
        rv_pass pass = {.net = net,
                        .device = device,
                        .arena = &arena,
                        .last = net->layer_count,
                        .version = version,
                        .state = state,
                        .tape = tape,
                        .B = B,
                        .t0 = t,
                        .t1 = t + CHUNK < T ? t + CHUNK : T,
                        .batch = first};
        rv_signal *input = rv_tape_signal(tape, -1);
        *input = rv_tape_memory(tape, -1, pass.t1 - pass.t0, B);
        TRY(rv_encode(encoder, device, NULL, first, 0, B, net->desc->seed, pass.t0, pass.t1, &arena,
                      input));
        TRY(rv_net_forward(&pass));
        TRY(count_signals(&pass, m));
        rv_arena_reset(&arena);
    }
out:
    rv_arena_finish(&arena);
    rv_tape_destroy(tape);
    rv_state_destroy(state);
    return status;
}

/* Index of the largest size that is not above n; else 0. */
static int size_index(const int sizes[RV_FORM_SIZES], int n) {
    int at = 0;
    while (at + 1 < RV_FORM_SIZES && sizes[at + 1] <= n)
        at++;
    return at;
}

double rv_form_rate(const rv_form_rates *rates, int in, int out) {
    return rates->rate[size_index(rates->in, in)][size_index(rates->out, out)];
}

/* Layers whose form the recipe gives are left alone; dense is the only form of values. */
rv_status rv_net_choose_forms(rv_net *net, const rv_device *device, rv_version *version,
                              const rv_choice *encoder, const rv_batch *first) {
    rv_status status = RV_OK;
    meter m = {0};
    int B = first->B < SAMPLES ? first->B : SAMPLES;
    int T = net->desc->steps < STEPS ? net->desc->steps : STEPS;
    TRY(rv_alloc((size_t)net->layer_count + 1, sizeof *m.spikes, "spike counts", &m.spikes));
    TRY(rv_alloc((size_t)B, sizeof *m.samples, "spike counts", &m.samples));
    TRY(measure(net, device, version, encoder, first, B, T, &m));
    for (int l = 0; l < net->layer_count; l++) {
        rv_layer *layer = &net->layers[l];
        bool open = layer->form != RV_FORM_AUTO && layer->desc->form == RV_FORM_AUTO;
        if (!layer->kind->map || !open || !rv_layer_in_spikes(net, layer, 0)) continue;
        double places = (double)T * B * rv_shape_units(rv_layer_in_shape(net, layer, 0));
        double rate = (double)m.spikes[layer->input[0] + 1] / places;
        bool events = layer->kind->event_rate && rate < layer->kind->event_rate(net, layer);
        layer->form = events ? RV_FORM_EVENT : RV_FORM_DENSE;
    }
    TRY(rv_version_derive(version, version->rows));
out:
    rv_free(m.samples);
    rv_free(m.spikes);
    return status;
}
