/*
 * The plain trainer: M micro-batches, C chunks, no stages. Every schedule must equal it.
 *
 * Order of a step: micro-batches ascending; in each F of chunks ascending, the loss, B and W of
 * chunks descending; then norm, update, running statistics, derived weights. A pipeline may run
 * these items elsewhere and at other times, but every sum has the order they have here.
 */
#include <math.h>
#include <string.h>

#include "snn/layer.h"

struct rv_serial {
    rv_serial_desc desc;
    const rv_net *net;
    const rv_device *device;
    int B, rows, chunks; /* samples of a batch and of a micro-batch at most */
    rv_version *version;
    rv_state *state, *adjoint;
    rv_tape **tape; /* one a chunk */
    rv_loss *loss;
    rv_optimizer *optimizer;
    float *gradient;
    float *statistics; /* [M][steps][rv_net_statistics] of a batch */
    rv_arena arena;
    const rv_observer *observer;
};

/* All memory of a run: versions, one state and its twin, a tape a chunk, optimiser slots. Only
 * the arena grows during the first items. */
rv_status rv_serial_create(const rv_serial_desc *desc, rv_serial **out) {
    rv_status status = RV_OK;
    rv_serial *s = NULL;
    const rv_net *net = desc->net;
    const rv_train_desc *train = desc->train;
    int T = net->desc->steps, C = train->chunks, M = train->micro_batches;
    *out = NULL;
    if (C < 1 || C > T) FAIL(RV_CONFIG, "%d chunks of %d steps: 1 to %d are possible", C, T, T);
    if (M < 1 || M > train->batch)
        FAIL(RV_CONFIG, "%d micro-batches of a batch of %d: 1 to %d are possible", M, train->batch,
             train->batch);
    TRY(rv_alloc(1, sizeof *s, "trainer", &s));
    s->desc = *desc, s->net = net, s->device = desc->device;
    s->arena.memory = rv_device_memory(s->device);
    s->B = train->batch, s->rows = (train->batch + M - 1) / M, s->chunks = C;
    TRY(rv_version_create(net, desc->device, &s->version));
    TRY(rv_net_init(net, rv_version_block(s->version)));
    TRY(rv_version_derive(s->version, s->rows));
    TRY(rv_state_create(net, desc->device, s->rows, &s->state));
    TRY(rv_state_create(net, desc->device, s->rows, &s->adjoint));
    TRY(rv_alloc((size_t)C, sizeof *s->tape, "tapes", &s->tape));
    for (int c = 0; c < C; c++)
        TRY(rv_tape_create(net, desc->device, (T + C - 1) / C, s->rows, &s->tape[c]));
    TRY(rv_loss_create(desc->loss, net, desc->device, s->rows, &s->loss));
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    TRY(rv_optimizer_create_range(&whole, desc->device, train, desc->total_steps, &s->optimizer));
    TRY(s->device->ops->alloc(s->device->ctx, sizeof(float) * net->n_trained, "gradient",
                              (void **)&s->gradient));
    TRY(rv_net_check_chunks(net, C));
    TRY(s->device->ops->alloc(s->device->ctx,
                              sizeof(float) * (size_t)M * (size_t)T * rv_net_statistics(net),
                              "running statistics", (void **)&s->statistics));
    *out = s;
    s = NULL;
out:
    rv_serial_destroy(s);
    return status;
}

/* In reverse order; takes a trainer that was only half made. */
void rv_serial_destroy(rv_serial *s) {
    if (!s) return;
    rv_arena_finish(&s->arena);
    s->device->ops->free(s->device->ctx, s->statistics);
    s->device->ops->free(s->device->ctx, s->gradient);
    rv_optimizer_destroy(s->optimizer);
    rv_loss_destroy(s->loss);
    for (int c = 0; s->tape && c < s->chunks; c++)
        rv_tape_destroy(s->tape[c]);
    rv_free(s->tape);
    rv_state_destroy(s->adjoint);
    rv_state_destroy(s->state);
    rv_version_destroy(s->version);
    rv_free(s);
}

void rv_serial_observe(rv_serial *s, const rv_observer *observer) {
    s->observer = observer;
}

rv_version *rv_serial_version(rv_serial *s) {
    return s->version;
}

rv_optimizer *rv_serial_optimizer(rv_serial *s) {
    return s->optimizer;
}

/* ---- items ------------------------------------------------------------------------------- */
/* An item over all layers; a pipeline fills the same struct for a range. */
static rv_pass pass_of(rv_serial *s, const rv_batch *batch, int row, int B, int chunk,
                       bool training) {
    int T = s->net->desc->steps;
    return (rv_pass){.net = s->net,
                     .device = s->device,
                     .arena = &s->arena,
                     .first = 0,
                     .last = s->net->layer_count,
                     .version = s->version,
                     .state = s->state,
                     .adjoint = s->adjoint,
                     .tape = s->tape[chunk],
                     .gradient = s->gradient,
                     .B = B,
                     .t0 = rv_cut(chunk, s->chunks, T),
                     .t1 = rv_cut(chunk + 1, s->chunks, T),
                     .chunk = chunk,
                     .chunks = s->chunks,
                     .batch = batch,
                     .row = row,
                     .training = training};
}

/* F of every chunk of one micro-batch, then the loss. statistics: NULL outside training. */
static rv_status forward(rv_serial *s, const rv_batch *batch, int row, int B, float *statistics,
                         rv_step_result *out, int64_t *spikes, int32_t *predictions) {
    rv_status status = RV_OK;
    rv_loss_result result;
    rv_pass pass;
    TRY(rv_state_start(s->state, NULL));
    for (int c = 0; c < s->chunks; c++) {
        pass = pass_of(s, batch, row, B, c, statistics != NULL);
        pass.statistics = statistics;
        rv_signal *input = rv_tape_signal(pass.tape, -1);
        *input = rv_tape_memory(pass.tape, -1, pass.t1 - pass.t0, B);
        TRY(rv_encode(s->desc.encoder, s->device, NULL, batch, row, B, s->net->desc->seed, pass.t0,
                      pass.t1, &s->arena, input));
        TRY(rv_net_forward(&pass));
        if (spikes) TRY(rv_pass_count_spikes(&pass, spikes));
        if (s->observer) TRY(rv_pass_sync(&pass));
        if (s->observer) TRY(s->observer->forward(s->observer->self, &pass));
        TRY(rv_loss_observe(s->loss, &pass));
        rv_arena_reset(&s->arena);
    }
    TRY(rv_loss_finish(s->loss, &pass, batch->B, &result, predictions));
    out->loss += result.loss;
    out->correct += result.correct;
out:
    return status;
}

/* B, then W, of every chunk from the last to the first. */
static rv_status backward(rv_serial *s, const rv_batch *batch, int row, int B) {
    rv_status status = RV_OK;
    TRY(rv_state_clear(s->adjoint, NULL));
    for (int c = s->chunks - 1; c >= 0; c--) {
        rv_pass pass = pass_of(s, batch, row, B, c, true);
        int truncate = s->desc.train->truncate;
        if (s->desc.train->tape_dtype == RV_TAPE_FLOAT16) TRY(rv_tape_round(pass.tape));
        if (truncate > 0 && (c + 1) % truncate == 0) TRY(rv_state_cut(s->adjoint, NULL));
        TRY(rv_loss_adjoint(s->loss, &pass));
        TRY(rv_net_backward(&pass));
        TRY(rv_net_weight(&pass));
        rv_arena_reset(&s->arena);
    }
out:
    return status;
}

/* Kept per micro-batch until U, which applies them in order. */
static float *batch_statistics(const rv_serial *s, int m) {
    return s->statistics + (size_t)m * (size_t)s->net->desc->steps * rv_net_statistics(s->net);
}

/* After the update, so that the weights of a step and its statistics change together. */
static void apply_statistics(rv_serial *s, const rv_batch *batch) {
    int M = s->desc.train->micro_batches;
    for (int m = 0; m < M; m++) {
        int B = rv_cut(m + 1, M, batch->B) - rv_cut(m, M, batch->B);
        if (B > 0)
            rv_net_statistics_apply(s->net, 0, s->net->layer_count, batch_statistics(s, m), B,
                                    s->version);
    }
}

/* Buffers were made for so many samples: more would write beyond them. */
static rv_status check_batch(const rv_serial *s, const rv_batch *batch) {
    if (batch->B >= 1 && batch->B <= s->B) return RV_OK;
    return rv_fail(RV_INTERNAL, "a batch of %d samples, the trainer was made for 1 to %d", batch->B,
                   s->B);
}

/* Micro-batches ascending onto one gradient; each sample weighs 1/B of the batch at hand, so
 * unequal and ragged parts add up to its mean. */
static rv_status gradient(rv_serial *s, const rv_batch *batch, rv_step_result *out) {
    rv_status status = RV_OK;
    int M = s->desc.train->micro_batches;
    *out = (rv_step_result){.B = batch->B, .norm = NAN};
    TRY(check_batch(s, batch));
    TRY(s->device->ops->zero(s->device->ctx, NULL, s->gradient, sizeof(float) * s->net->n_trained));
    for (int m = 0; m < M; m++) {
        int row = rv_cut(m, M, batch->B), B = rv_cut(m + 1, M, batch->B) - row;
        if (B == 0) continue; /* a ragged batch smaller than M */
        TRY(forward(s, batch, row, B, batch_statistics(s, m), out, NULL, NULL));
        TRY(backward(s, batch, row, B));
    }
    TRY(s->device->ops->queue_sync(s->device->ctx, NULL));
out:
    return status;
}

/* ---- interface --------------------------------------------------------------------------- */
/* Factor that brings the gradient's global norm to at most clip_norm, as PyTorch's. */
static rv_status clip(rv_serial *s, rv_step_result *out, double *scale) {
    rv_status status = RV_OK;
    double sum = 0, limit = s->desc.train->clip_norm;
    *scale = 1;
    if (limit <= 0) return RV_OK;
    for (int k = 0; k < s->net->tensor_count && s->net->tensors[k].trained; k++) {
        const rv_tensor *tensor = &s->net->tensors[k];
        double part = 0;
        TRY(s->device->ops->norm2(s->device->ctx, NULL, s->gradient + tensor->offset, tensor->count,
                                  &part));
        sum += part;
    }
    out->norm = sqrt(sum);
    *scale = fmin(1, limit / (out->norm + 1e-6));
out:
    return status;
}

/* The rate is read before the update, which counts the step. */
rv_status rv_serial_step(rv_serial *s, const rv_batch *batch, rv_step_result *out) {
    rv_status status = RV_OK;
    double scale, rate = rv_optimizer_rate(s->optimizer);
    TRY(gradient(s, batch, out));
    out->rate = rate;
    TRY(clip(s, out, &scale));
    TRY(rv_optimizer_update(s->optimizer, s->device, NULL, rv_version_block(s->version),
                            s->gradient, scale));
    TRY(s->device->ops->queue_sync(s->device->ctx, NULL));
    apply_statistics(s, batch);
    TRY(rv_version_derive(s->version, s->rows));
out:
    return status;
}

/* In parts of the size of a micro-batch, which is what the buffers hold. */
rv_status rv_serial_eval(rv_serial *s, const rv_batch *batch, rv_step_result *out, int64_t *spikes,
                         int32_t *predictions) {
    rv_status status = RV_OK;
    *out = (rv_step_result){.B = batch->B, .norm = NAN};
    TRY(check_batch(s, batch));
    for (int row = 0; row < batch->B; row += s->rows) {
        int B = batch->B - row < s->rows ? batch->B - row : s->rows;
        TRY(forward(s, batch, row, B, NULL, out, spikes, predictions ? predictions + row : NULL));
    }
out:
    return status;
}

const float *rv_serial_last_gradient(const rv_serial *s) {
    return s->gradient;
}

/* The pointer stays valid; the values until the next call. */
rv_status rv_serial_gradient(rv_serial *s, const rv_batch *batch, rv_step_result *out,
                             const float **gradient_out) {
    *gradient_out = s->gradient;
    return gradient(s, batch, out);
}
