/*
 * The sequential oracle. For every sample it puts together one set of weights for forward and one
 * for backward, each stage's part from the version the rules name, and runs the whole network under
 * them. So it has no stages that could meet the wrong version, and nothing to wait for.
 */
#include "pipeline/oracle.h"

#include <math.h>

struct rv_oracle {
    rv_oracle_desc desc;
    int rows;
    rv_weights *stage;          /* [stages] */
    rv_version *forward, *back; /* of the whole network, put together */
    rv_state *state, *adjoint;
    rv_tape **tape; /* [chunks] */
    rv_loss *loss;
    float *gradient, *part; /* of the network; of a stage */
    float *statistics;      /* [micro][steps][...] */
    rv_arena arena;
    const rv_batch *batch; /* of the step at hand */
};

rv_status rv_oracle_create(const rv_oracle_desc *desc, rv_oracle **out) {
    rv_status status = RV_OK;
    rv_oracle *o = NULL;
    const rv_net *net = desc->net;
    const rv_device *device = desc->device;
    const rv_train_desc *train = desc->train;
    int T = net->desc->steps, C = train->chunks, M = train->micro_batches;
    float *block = NULL;
    *out = NULL;
    TRY(rv_net_check_chunks(net, C));
    TRY(rv_alloc(1, sizeof *o, "the oracle", &o));
    o->arena.memory = rv_device_memory(device);
    o->desc = *desc, o->rows = (train->batch + M - 1) / M;
    TRY(rv_alloc((size_t)desc->stages, sizeof *o->stage, "stages", &o->stage));
    for (int s = 0; s < desc->stages; s++) {
        const rv_delay_shape shape = {desc->stages, C, M, s, 0};
        const rv_delay_rule rule = rv_delay_rule_of(desc->delay, &shape);
        const rv_range range = rv_net_range(net, desc->first[s], desc->first[s + 1]);
        TRY(rv_weights_init(&o->stage[s], &range, device, train, desc->total_steps, &rule,
                            o->rows));
    }
    TRY(rv_version_create(net, device, &o->forward));
    TRY(rv_version_create(net, device, &o->back));
    TRY(rv_state_create(net, device, o->rows, &o->state));
    TRY(rv_state_create(net, device, o->rows, &o->adjoint));
    TRY(rv_alloc((size_t)C, sizeof *o->tape, "tapes", &o->tape));
    for (int c = 0; c < C; c++)
        TRY(rv_tape_create(net, device, (T + C - 1) / C, o->rows, &o->tape[c]));
    TRY(rv_loss_create(desc->loss, net, device, o->rows, &o->loss));
    TRY(device->ops->alloc(device->ctx, sizeof(float) * net->n_trained, "gradient",
                           (void **)&o->gradient));
    TRY(device->ops->alloc(device->ctx, sizeof(float) * net->n_trained, "gradient",
                           (void **)&o->part));
    TRY(device->ops->alloc(device->ctx,
                           sizeof(float) * (size_t)M * (size_t)T * rv_net_statistics(net),
                           "running statistics", (void **)&o->statistics));
    TRY(rv_alloc(net->n_all, sizeof *block, "initial weights", &block));
    TRY(rv_net_init(net, block));
    TRY(rv_oracle_write(o, block));
    *out = o;
    o = NULL;
out:
    rv_free(block);
    rv_oracle_destroy(o);
    return status;
}

void rv_oracle_destroy(rv_oracle *o) {
    if (!o) return;
    rv_arena_finish(&o->arena);
    o->desc.device->ops->free(o->desc.device->ctx, o->statistics);
    o->desc.device->ops->free(o->desc.device->ctx, o->part);
    o->desc.device->ops->free(o->desc.device->ctx, o->gradient);
    rv_loss_destroy(o->loss);
    for (int c = 0; o->tape && c < o->desc.train->chunks; c++)
        rv_tape_destroy(o->tape[c]);
    rv_free(o->tape);
    rv_state_destroy(o->adjoint);
    rv_state_destroy(o->state);
    rv_version_destroy(o->back);
    rv_version_destroy(o->forward);
    for (int s = 0; o->stage && s < o->desc.stages; s++)
        rv_weights_finish(&o->stage[s]);
    rv_free(o->stage);
    rv_free(o);
}

/* ---- one sample ------------------------------------------------------------------------- */

/* Each stage's part of both sets, by the number of the update the sample belongs to. */
static rv_status weights_gather(rv_oracle *o, int64_t u) {
    rv_status status = RV_OK;
    for (int s = 0; s < o->desc.stages; s++) {
        rv_weights *w = &o->stage[s];
        const rv_version *forward, *back;
        TRY(rv_weights_forward(w, u, &forward));
        TRY(rv_weights_backward(w, u, &back));
        rv_range_give(&w->range, rv_version_block((rv_version *)forward),
                      rv_version_block(o->forward), false);
        rv_range_give(&w->range, rv_version_block((rv_version *)back), rv_version_block(o->back),
                      false);
    }
    TRY(rv_version_derive(o->forward, o->rows));
    TRY(rv_version_derive(o->back, o->rows));
out:
    return status;
}

static rv_pass pass_of(rv_oracle *o, int row, int B, int chunk) {
    int T = o->desc.net->desc->steps, C = o->desc.train->chunks;
    return (rv_pass){.net = o->desc.net,
                     .device = o->desc.device,
                     .arena = &o->arena,
                     .last = o->desc.net->layer_count,
                     .version = o->forward,
                     .back = o->back,
                     .state = o->state,
                     .adjoint = o->adjoint,
                     .tape = o->tape[chunk],
                     .gradient = o->gradient,
                     .B = B,
                     .t0 = rv_cut(chunk, C, T),
                     .t1 = rv_cut(chunk + 1, C, T),
                     .chunk = chunk,
                     .chunks = C,
                     .batch = o->batch,
                     .row = row,
                     .training = true};
}

static float *statistics_of(rv_oracle *o, int m) {
    const rv_net *net = o->desc.net;
    return o->statistics + (size_t)m * (size_t)net->desc->steps * rv_net_statistics(net);
}

/* As the plain trainer runs a micro-batch, but for `back`. */
static rv_status sample_run(rv_oracle *o, int m, int row, int B, rv_step_result *out) {
    rv_status status = RV_OK;
    int C = o->desc.train->chunks;
    const rv_net *net = o->desc.net;
    rv_loss_result result;
    rv_pass pass = {0};
    TRY(rv_state_start(o->state, NULL));
    for (int c = 0; c < C; c++) {
        pass = pass_of(o, row, B, c);
        pass.statistics = statistics_of(o, m);
        rv_signal *input = rv_tape_signal(pass.tape, -1);
        *input = rv_tape_memory(pass.tape, -1, pass.t1 - pass.t0, B);
        TRY(rv_encode(o->desc.encoder, pass.device, NULL, o->batch, row, B, net->desc->seed,
                      pass.t0, pass.t1, &o->arena, input));
        TRY(rv_net_forward(&pass));
        TRY(rv_loss_observe(o->loss, &pass));
        rv_arena_reset(&o->arena);
    }
    TRY(rv_loss_finish(o->loss, &pass, o->batch->B, &result, NULL));
    out->loss += result.loss;
    out->correct += result.correct;
    TRY(rv_state_clear(o->adjoint, NULL));
    for (int c = C - 1; c >= 0; c--) {
        pass = pass_of(o, row, B, c);
        if (o->desc.train->tape_dtype == RV_TAPE_FLOAT16) TRY(rv_tape_round(pass.tape));
        TRY(rv_loss_adjoint(o->loss, &pass));
        TRY(rv_net_backward(&pass));
        TRY(rv_net_weight(&pass));
        rv_arena_reset(&o->arena);
    }
out:
    return status;
}

/* ---- one update ------------------------------------------------------------------------- */

typedef struct moved {
    rv_oracle *oracle;
    int stage;
} moved;

static void statistics_apply(void *self, rv_version *version) {
    const moved *it = self;
    rv_oracle *o = it->oracle;
    int M = o->desc.train->micro_batches;
    for (int m = 0; m < M; m++) {
        int B = rv_cut(m + 1, M, o->batch->B) - rv_cut(m, M, o->batch->B);
        if (B > 0)
            rv_net_statistics_apply(o->desc.net, o->desc.first[it->stage],
                                    o->desc.first[it->stage + 1], statistics_of(o, m), B, version);
    }
}

rv_status rv_oracle_step(rv_oracle *o, const rv_batch *batch, rv_step_result *out) {
    rv_status status = RV_OK;
    int M = o->desc.train->micro_batches;
    *out = (rv_step_result){
        .B = batch->B, .norm = NAN, .rate = rv_optimizer_rate(o->stage[0].optimizer)};
    if (batch->B < 1 || batch->B > o->desc.train->batch)
        FAIL(RV_INTERNAL, "a batch of %d samples, the oracle was made for 1 to %d", batch->B,
             o->desc.train->batch);
    o->batch = batch;
    TRY(o->desc.device->ops->zero(o->desc.device->ctx, NULL, o->gradient,
                                  sizeof(float) * o->desc.net->n_trained));
    TRY(weights_gather(o, o->stage[0].made));
    for (int m = 0; m < M; m++) {
        int row = rv_cut(m, M, batch->B), B = rv_cut(m + 1, M, batch->B) - row;
        if (B > 0) TRY(sample_run(o, m, row, B, out));
    }
    TRY(o->desc.device->ops->queue_sync(o->desc.device->ctx, NULL));
    for (int s = 0; s < o->desc.stages; s++) {
        moved it = {o, s};
        rv_range_take(&o->stage[s].range, o->gradient, o->part, true);
        TRY(rv_weights_update(&o->stage[s], o->part, 1, statistics_apply, &it));
    }
out:
    return status;
}

/* ---- interface -------------------------------------------------------------------------- */

void rv_oracle_read(const rv_oracle *o, float *block, rv_optimizer *optimizer) {
    for (int s = 0; s < o->desc.stages; s++) {
        const rv_weights *w = &o->stage[s];
        if (block) rv_range_give(&w->range, rv_version_block(rv_weights_newest(w)), block, false);
        for (int k = 0; optimizer && k < rv_optimizer_slots(optimizer); k++)
            rv_range_give(&w->range, rv_optimizer_slot(w->optimizer, k),
                          rv_optimizer_slot(optimizer, k), true);
    }
    if (optimizer) rv_optimizer_step_set(optimizer, rv_optimizer_step(o->stage[0].optimizer));
}

rv_status rv_oracle_write(rv_oracle *o, const float *block) {
    rv_status status = RV_OK;
    for (int s = 0; s < o->desc.stages; s++) {
        rv_weights *w = &o->stage[s];
        rv_range_take(&w->range, block, rv_version_block(rv_weights_newest(w)), false);
        TRY(rv_weights_start(w, w->made));
    }
out:
    return status;
}

rv_weights *rv_oracle_weights(rv_oracle *o, int stage) {
    return &o->stage[stage];
}

const float *rv_oracle_gradient(const rv_oracle *o) {
    return o->gradient;
}
