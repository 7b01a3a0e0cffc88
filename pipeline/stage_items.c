/*
 * What an item does on a stage: take the message it needs, run the layers, leave the message that
 * others need. First it looks whether message and slot are there; if not it has done nothing, and
 * is tried again.
 */
#include <math.h>
#include <string.h>

#include "pipeline/stage_items.h"

/* One item's surroundings. */
typedef struct item {
    rv_stage *stage;
    const rv_work *work;
    int row, B, T;
    int64_t update;       /* it belongs to */
    char *in, *out;       /* slots of messages; NULL: no such edge */
    double taken, filled; /* for the timeline: when the one was first read, the other written */
    rv_pass pass;
} item;

/* ---- messages --------------------------------------------------------------------------- */

/* *slot of the message an item needs or the slot it will fill; *edge is set where it is not there.
 * link NULL: nothing needed. */
static rv_status look(rv_link *link, bool receive, char **slot, rv_link **edge) {
    rv_status status = RV_OK;
    void *found = NULL;
    *slot = NULL;
    /* One missing edge is enough to wait for. Looking takes nothing: a slot or message once seen is
     * found again at the next attempt. */
    if (!link || *edge) return RV_OK;
    TRY(receive ? link->ops->peek(link, NULL, &found) : link->ops->acquire(link, NULL, &found));
    if (!found) *edge = link;
    *slot = found;
out:
    return status;
}

/* Heads are made by the same rule at both ends, so that a mix-up cannot go unseen. */
static rv_head head_of(const item *it, rv_work_kind kind, size_t bytes) {
    const rv_stage *stage = it->stage;
    const rv_batch *batch = it->pass.batch ? it->pass.batch : stage->batch;
    return (rv_head){
        .magic = RV_HEAD_MAGIC,
        .kind = (int32_t)kind,
        .micro = it->work->micro,
        .chunk = it->work->chunk,
        .version = it->update,
        .bytes = bytes,
        .samples = rv_samples_digest(batch->sample ? batch->sample + it->row : NULL, it->B),
    };
}

/* A message that is not the expected one is an error of ours and ends the run: going on with it
 * would train on the wrong samples without anyone noticing. */
static rv_status receive(item *it, const rv_link *link, rv_work_kind kind, size_t bytes,
                         rv_head *got) {
    const rv_head want = head_of(it, kind, bytes);
    it->taken = rv_track_now(it->stage->track);
    memcpy(got, it->in, sizeof *got);
    return rv_head_check(got, &want, link->name);
}

/* The slot of a message that was received is free. */
static rv_status release(const item *it, rv_link *link) {
    rv_track_message(it->stage->track, RV_SPAN_RECEIVE, link, it->work, it->taken);
    return link->ops->release(link, NULL);
}

/* The payload lies in the slot already. With the head in front the message is whole, and only
 * publish lets the receiver see it. */
static rv_status send(item *it, rv_link *link, const rv_head *head) {
    if (head->bytes > link->bytes)
        return rv_fail(RV_INTERNAL, "a message of %zu bytes for link %s, which takes %zu",
                       (size_t)head->bytes, link->name, link->bytes);
    if (it->filled == 0) it->filled = rv_track_now(it->stage->track);
    memcpy(it->out, head, sizeof *head);
    rv_track_message(it->stage->track, RV_SPAN_SEND, link, it->work, it->filled);
    return link->ops->publish(link, NULL);
}

/* ---- items ------------------------------------------------------------------------------ */

/* Of F, B and W. U and NORM have no pass: their `micro` counts updates and must not index
 * flights. */
static rv_status item_open(rv_stage *stage, const rv_work *work, item *out) {
    rv_status status = RV_OK;
    const rv_stage_desc *desc = &stage->desc;
    int T = desc->net->desc->steps, C = desc->train->chunks;
    int micro = work->micro, chunk = work->chunk;
    rv_flight *flight = &stage->flight[micro % stage->flights];
    item it = {.stage = stage, .work = work, .update = rv_stage_update(stage, micro)};
    const rv_batch *batch = rv_stage_rows(stage, micro, &it.row, &it.B);
    it.pass = (rv_pass){
        .net = desc->net,
        .device = desc->device,
        .arena = &stage->arena,
        .first = desc->first,
        .last = desc->last,
        .layer = desc->first,
        .version = rv_weights_newest(&stage->weights),
        .state = flight->state,
        .adjoint = stage->adjoint,
        .tape = rv_tapes_get(stage->tapes, micro % stage->ring * C + chunk),
        .gradient = stage->gradient,
        .B = it.B,
        .t0 = rv_cut(chunk, C, T),
        .t1 = rv_cut(chunk + 1, C, T),
        .chunk = chunk,
        .chunks = C,
        .batch = batch,
        .row = it.row,
        .training = stage->training,
        .before = &stage->before,
        .after = &stage->after,
        .g_before = stage->g_before,
        .g_after = stage->g_after,
    };
    it.T = it.pass.t1 - it.pass.t0;
    if (!stage->training) goto out;
    TRY(rv_weights_forward(&stage->weights, it.update, &it.pass.version));
    if (work->kind == RV_WORK_B || work->kind == RV_WORK_BW)
        TRY(rv_weights_backward(&stage->weights, it.update, &it.pass.back));
out:
    *out = it;
    return status;
}

/* B and W add to the gradient: the first B of an update finds it empty. */
static rv_status gradient_begin(const item *it) {
    const rv_stage *stage = it->stage;
    const rv_device *device = stage->desc.device;
    bool first = it->work->micro % stage->desc.train->micro_batches == 0 &&
                 it->work->chunk + 1 == it->pass.chunks;
    return first ? device->ops->zero(device->ctx, NULL, stage->gradient,
                                     sizeof(float) * stage->range.n_trained)
                 : RV_OK;
}

/* Where loss and rate of an update are told. */
static rv_step_result *result_of(const item *it) {
    rv_stage *stage = it->stage;
    return stage->batch ? &stage->result : rv_flow_result(stage->desc.flow, it->update);
}

static float *statistics_of(const rv_stage *stage, int micro) {
    return stage->statistics + (size_t)(micro % stage->ring) *
                                   (size_t)stage->desc.net->desc->steps *
                                   rv_net_statistics(stage->desc.net);
}

static bool is_last(const rv_stage *stage) {
    return stage->desc.index + 1 == stage->desc.stages;
}

static int cell_of(const item *it) {
    return it->work->micro % it->stage->ring * it->pass.chunks + it->work->chunk;
}

/* By the number of the version the pass was really given. An evaluation is none of training. */
static void tell(const item *it, const rv_version *read) {
    rv_stage *stage = it->stage;
    if (!stage->training) return;
    rv_account_pass(&stage->account, it->work,
                    it->update - rv_weights_number(&stage->weights, read), it->B);
}

/* The input never crosses a cut: whichever stage takes it encodes it, with the same bits from the
 * seed of the network. */
static rv_status encode(item *it) {
    rv_status status = RV_OK;
    const rv_pass *pass = &it->pass;
    rv_stage *stage = it->stage;
    rv_signal *input = rv_tape_signal(pass->tape, -1);
    if (!stage->range.input) return RV_OK;
    const rv_signal own = *input = rv_tape_memory(pass->tape, -1, it->T, it->B);
    if (pass->again && stage->taped && !rv_tape_encodes_again(&stage->range, pass->again))
        return RV_OK;
    TRY(rv_encode(stage->desc.encoder, pass->device, NULL, pass->batch, it->row, it->B,
                  pass->net->desc->seed, pass->t0, pass->t1, pass->arena, input));
    stage->taped = own.spikes.bits ? input->spikes.bits == own.spikes.bits
                                   : own.values.data && input->values.data == own.values.data;
out:
    return status;
}

/* ---- F ---------------------------------------------------------------------------------- */

/* W and B need what F takes, so it is copied to the tape, and the slot is free at once. */
static rv_status forward_receive(item *it) {
    rv_status status = RV_OK;
    rv_stage *stage = it->stage;
    const rv_crossing *before = &stage->before;
    rv_link *link = stage->links.forward_in;
    rv_head head;
    if (!link) return RV_OK;
    TRY(receive(it, link, RV_WORK_F, rv_wire_forward_bytes(before, it->T, it->B), &head));
    it->pass.penalty = head.penalty;
    rv_wire_forward(before, it->T, it->B, it->in + RV_HEAD_BYTES, stage->signal);
    for (int k = 0; k < before->count && it->B > 0; k++) {
        int layer = before->tensor[k].layer;
        rv_signal *own = rv_tape_signal(it->pass.tape, layer);
        *own = rv_tape_memory(it->pass.tape, layer, it->T, it->B);
        TRY(rv_wire_copy(it->pass.device, NULL, &stage->signal[k], own));
    }
    TRY(release(it, link));
out:
    return status;
}

/* A message is sent for a micro-batch without samples, too: what is expected next on a link then
 * follows from the list alone. The penalty is whole only when the last chunk has run. */
static rv_status forward_send(item *it) {
    rv_status status = RV_OK;
    rv_stage *stage = it->stage;
    const rv_crossing *after = &stage->after;
    rv_pass *pass = &it->pass;
    if (!stage->links.forward_out) return RV_OK;
    rv_head head = head_of(it, RV_WORK_F, rv_wire_forward_bytes(after, it->T, it->B));
    it->filled = rv_track_now(stage->track);
    rv_wire_forward(after, it->T, it->B, it->out + RV_HEAD_BYTES, stage->signal);
    for (int k = 0; k < after->count && it->B > 0; k++)
        TRY(rv_wire_copy(pass->device, NULL, rv_tape_signal(pass->tape, after->tensor[k].layer),
                         &stage->signal[k]));
    if (pass->training && it->B > 0 && pass->chunk + 1 == pass->chunks)
        head.penalty = rv_tape_penalty(pass->tape, pass->first, pass->last, pass->penalty);
    TRY(send(it, stage->links.forward_out, &head));
out:
    return status;
}

/* Micro-batches come in ascending order, so losses are added in the order of the plain trainer;
 * each weighs by the size of the whole batch, not of its part. */
static rv_status forward_loss(item *it) {
    rv_status status = RV_OK;
    rv_stage *stage = it->stage;
    rv_loss *loss = stage->flight[it->work->micro % stage->flights].loss;
    int32_t *predictions = stage->predictions ? stage->predictions + it->row : NULL;
    rv_loss_result result;
    TRY(rv_loss_observe(loss, &it->pass));
    if (it->pass.chunk + 1 < it->pass.chunks) goto out;
    TRY(rv_loss_finish(loss, &it->pass, it->pass.batch->B, &result, predictions));
    result_of(it)->loss += result.loss;
    result_of(it)->correct += result.correct;
out:
    return status;
}

static rv_status forward_layers(item *it) {
    rv_status status = RV_OK;
    rv_stage *stage = it->stage;
    rv_pass *pass = &it->pass;
    /* A flight's state is that of an earlier micro-batch until here; later chunks go on from it. */
    if (pass->chunk == 0) TRY(rv_state_start(pass->state, NULL));
    if (pass->training) pass->statistics = statistics_of(stage, it->work->micro);
    if (pass->training) TRY(rv_tapes_border(stage->tapes, cell_of(it), pass->state));
    TRY(encode(it));
    TRY(rv_net_forward(pass));
    if (stage->spikes) TRY(rv_pass_count_spikes(pass, stage->spikes));
    if (stage->observer) TRY(rv_pass_sync(pass));
    if (stage->observer) TRY(stage->observer->forward(stage->observer->self, pass));
    if (is_last(stage)) TRY(forward_loss(it));
out:
    return status;
}

/* Both edges are looked at before a tape is taken: an attempt that has to wait must change
 * nothing. */
rv_status rv_item_forward(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    item it;
    TRY(item_open(stage, work, &it));
    TRY(look(stage->links.forward_in, true, &it.in, edge));
    TRY(look(stage->links.forward_out, false, &it.out, edge));
    TRY(rv_tapes_seek(stage->tapes, cell_of(&it), false, edge));
    if (*edge) goto out;
    TRY(rv_tapes_take(stage->tapes, cell_of(&it), &it.pass.tape));
    if (!stage->batch && is_last(stage) && work->chunk == 0 &&
        work->micro % stage->desc.train->micro_batches == 0)
        *result_of(&it) = (rv_step_result){.B = it.pass.batch->B, .norm = NAN};
    TRY(forward_receive(&it));
    if (it.B > 0) TRY(forward_layers(&it)); /* a ragged batch may be smaller than M */
    TRY(forward_send(&it));
    /* In an evaluation no W follows that would give the tape back. */
    if (stage->training)
        TRY(rv_tapes_rest(stage->tapes, cell_of(&it), it.B == 0));
    else
        rv_tapes_leave(stage->tapes, cell_of(&it));
    tell(&it, it.pass.version);
out:
    stage->layer = it.pass.layer;
    return status;
}

/* ---- B, W ------------------------------------------------------------------------------- */

/* The tape as F left it: what was not kept is computed again, from what crossed the front and from
 * the input. Statistics and observers have seen it the first time. */
static rv_status backward_recall(item *it) {
    rv_status status = RV_OK;
    rv_stage *stage = it->stage;
    const rv_crossing *before = &stage->before;
    rv_pass *pass = &it->pass;
    TRY(rv_tapes_recall(stage->tapes, cell_of(it), &pass->tape, &pass->state, &pass->again));
    if (pass->again && it->B > 0) {
        for (int k = 0; k < before->count; k++)
            *rv_tape_signal(pass->tape, before->tensor[k].layer) =
                rv_tape_memory(pass->tape, before->tensor[k].layer, it->T, it->B);
        TRY(encode(it));
        TRY(rv_net_forward(pass));
    }
    TRY(rv_tapes_whole(stage->tapes, cell_of(it), pass->again && it->B > 0));
out:
    return status;
}

/* Adjoints are read, and added to, where the message lies, and written where the next will. */
static rv_status backward_layers(item *it) {
    rv_status status = RV_OK;
    rv_stage *stage = it->stage;
    rv_pass *pass = &it->pass;
    if (it->in)
        rv_wire_backward(&stage->after, it->T, it->B, it->in + RV_HEAD_BYTES, stage->g_after);
    if (it->out)
        rv_wire_backward(&stage->before, it->T, it->B, it->out + RV_HEAD_BYTES, stage->g_before);
    /* Backward begins with the last chunk, where no adjoint comes from a later time. */
    if (pass->chunk + 1 == pass->chunks) TRY(rv_state_clear(pass->adjoint, NULL));
    int truncate = stage->desc.train->truncate;
    if (truncate > 0 && (pass->chunk + 1) % truncate == 0) TRY(rv_state_cut(pass->adjoint, NULL));
    if (is_last(stage))
        TRY(rv_loss_adjoint(stage->flight[it->work->micro % stage->flights].loss, pass));
    TRY(rv_net_backward(pass));
    if (it->work->kind == RV_WORK_BW) TRY(rv_net_weight(pass));
out:
    return status;
}

/* The head says B for BW as well: the receiver needs not know how its neighbour splits the work. */
rv_status rv_item_backward(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    item it;
    TRY(item_open(stage, work, &it));
    rv_link *in = stage->links.backward_in, *out = stage->links.backward_out;
    rv_head head;
    TRY(look(in, true, &it.in, edge));
    TRY(look(out, false, &it.out, edge));
    TRY(rv_tapes_seek(stage->tapes, cell_of(&it), true, edge));
    if (*edge) goto out;
    if (in)
        TRY(receive(&it, in, RV_WORK_B, rv_wire_backward_bytes(&stage->after, it.T, it.B), &head));
    TRY(gradient_begin(&it));
    TRY(backward_recall(&it));
    if (it.B > 0) TRY(backward_layers(&it));
    if (work->kind == RV_WORK_BW) rv_tapes_leave(stage->tapes, cell_of(&it));
    /* Not before the layers have run: they read and change the adjoints in the message itself. B
     * leaves what W needs on the tape, so W does without the message. */
    if (in) TRY(release(&it, in));
    if (out) {
        head = head_of(&it, RV_WORK_B, rv_wire_backward_bytes(&stage->before, it.T, it.B));
        TRY(send(&it, out, &head));
    }
    tell(&it, it.pass.back);
out:
    stage->layer = it.pass.layer;
    return status;
}

/* W waits for nobody: all it reads lies on its tape. Then the tape is free for another F. */
rv_status rv_item_weight(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    item it;
    (void)edge;
    TRY(item_open(stage, work, &it));
    if (!it.pass.tape) FAIL(RV_INTERNAL, "the tape of this chunk is not there");
    if (it.B > 0) TRY(rv_net_weight(&it.pass));
    rv_tapes_leave(stage->tapes, cell_of(&it));
    tell(&it, it.pass.version);
out:
    stage->layer = it.pass.layer;
    return status;
}

/* ---- NORM ------------------------------------------------------------------------------- */

/* One sum of squares per trained tensor of the range, in network order; returns how many. They stay
 * apart until the last stage adds them. A sum per stage would be rounded in another order than on
 * one device, and the factor, so all weights, would differ in the last bits. */
static rv_status norm_parts(rv_stage *stage, double *parts, int *count) {
    rv_status status = RV_OK;
    const rv_stage_desc *desc = &stage->desc;
    const float *at = stage->gradient;
    *count = 0;
    for (int k = 0; k < desc->net->tensor_count && desc->net->tensors[k].trained; k++) {
        const rv_tensor *tensor = &desc->net->tensors[k];
        if (tensor->layer < desc->first || tensor->layer >= desc->last) continue;
        stage->layer = tensor->layer;
        TRY(desc->device->ops->norm2(desc->device->ctx, NULL, at, tensor->count,
                                     &parts[(*count)++]));
        at += tensor->count;
    }
out:
    return status;
}

/* To the last stage, which adds them. */
static rv_status norm_send(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    item it = {.stage = stage, .work = work, .B = stage->batch->B, .update = stage->weights.made};
    rv_head head;
    int count;
    TRY(look(stage->links.norm, false, &it.out, edge));
    if (*edge) goto out;
    TRY(norm_parts(stage, (double *)(void *)(it.out + RV_HEAD_BYTES), &count));
    head = head_of(&it, RV_WORK_NORM, (size_t)count * sizeof(double));
    TRY(send(&it, stage->links.norm, &head));
out:
    return status;
}

/* Every message and every slot for the answer must be there: an item does all or nothing. */
static rv_status norm_ready(rv_stage *stage, rv_link **edge) {
    rv_status status = RV_OK;
    char *slot;
    for (int s = 0; s + 1 < stage->desc.stages; s++) {
        TRY(look(stage->links.norms[s], true, &slot, edge));
        TRY(look(stage->links.factors[s], false, &slot, edge));
    }
out:
    return status;
}

/* The parts of a stage onto the sum, tensor by tensor. norm_ready has seen the message, and seen it
 * stays until it is released: here look cannot miss. */
static rv_status norm_receive(rv_stage *stage, const rv_work *work, int s, double *sum) {
    rv_status status = RV_OK;
    rv_link *link = stage->links.norms[s], *none = NULL;
    item it = {.stage = stage, .work = work, .B = stage->batch->B, .update = stage->weights.made};
    rv_head head;
    double part;
    TRY(look(link, true, &it.in, &none));
    TRY(receive(&it, link, RV_WORK_NORM, link->bytes, &head));
    for (size_t k = 0; k < head.bytes / sizeof part; k++) {
        /* Out of raw bytes by memcpy, which asks nothing of alignment or type. */
        memcpy(&part, it.in + RV_HEAD_BYTES + k * sizeof part, sizeof part);
        *sum += part;
    }
    TRY(release(&it, link));
out:
    return status;
}

/* The scale computed here goes to every stage, so that all update with the same bits of it. */
static rv_status factor_send(rv_stage *stage, const rv_work *work, int s) {
    rv_status status = RV_OK;
    rv_link *link = stage->links.factors[s], *none = NULL;
    item it = {.stage = stage, .work = work, .B = stage->batch->B, .update = stage->weights.made};
    rv_head head;
    TRY(look(link, false, &it.out, &none));
    head = head_of(&it, RV_WORK_NORM, sizeof stage->scale);
    memcpy(it.out + RV_HEAD_BYTES, &stage->scale, sizeof stage->scale);
    TRY(send(&it, link, &head));
out:
    return status;
}

/* At the last stage the squares of all tensors are added in network order, as one device would. */
rv_status rv_item_norm(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    double sum = 0, limit = stage->desc.train->clip_norm;
    int count;
    if (!is_last(stage)) return norm_send(stage, work, edge);
    TRY(norm_ready(stage, edge));
    if (*edge) goto out;
    for (int s = 0; s + 1 < stage->desc.stages; s++)
        TRY(norm_receive(stage, work, s, &sum));
    TRY(norm_parts(stage, stage->norm, &count));
    /* Own tensors last: this stage has the last layers of the network. */
    for (int k = 0; k < count; k++)
        sum += stage->norm[k];
    stage->result.norm = sqrt(sum);
    stage->scale = fmin(1, limit / (stage->result.norm + 1e-6));
    for (int s = 0; s + 1 < stage->desc.stages; s++)
        TRY(factor_send(stage, work, s));
out:
    return status;
}

/* ---- U ---------------------------------------------------------------------------------- */

/* The last stage has no such link: its own NORM, earlier in its list, has set the scale. */
static rv_status factor_receive(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    rv_link *link = stage->links.factor;
    item it = {.stage = stage, .work = work, .B = stage->batch->B, .update = stage->weights.made};
    rv_head head;
    TRY(look(link, true, &it.in, edge));
    if (!it.in) goto out;
    TRY(receive(&it, link, RV_WORK_NORM, sizeof stage->scale, &head));
    memcpy(&stage->scale, it.in + RV_HEAD_BYTES, sizeof stage->scale);
    TRY(release(&it, link));
out:
    return status;
}

/* Moving averages depend on the order in which they move: micro-batches ascending. */
static void statistics_apply(void *self, rv_version *version) {
    const rv_stage *stage = self;
    const rv_stage_desc *desc = &stage->desc;
    int M = desc->train->micro_batches, first = stage->batch ? 0 : (int)stage->weights.made * M;
    for (int m = first; m < first + M; m++) {
        int row, B;
        (void)rv_stage_rows(stage, m, &row, &B);
        if (B > 0)
            rv_net_statistics_apply(desc->net, desc->first, desc->last, statistics_of(stage, m), B,
                                    version);
    }
}

/* Weights, then running statistics, then what is derived from both, as the plain trainer does. */
rv_status rv_item_update(rv_stage *stage, const rv_work *work, rv_link **edge) {
    rv_status status = RV_OK;
    rv_weights *weights = &stage->weights;
    item it = {.stage = stage, .work = work, .update = weights->made};
    if (stage->desc.schedule->norm) TRY(factor_receive(stage, work, edge));
    if (*edge) goto out;
    if (!stage->batch && is_last(stage))
        result_of(&it)->rate = rv_optimizer_rate(weights->optimizer);
    TRY(rv_weights_update(weights, stage->gradient, stage->scale, statistics_apply, stage));
    rv_account_update(&stage->account, rv_weights_live(weights), rv_weights_stash(weights));
    stage->sound = stage->sound && rv_stage_sound(stage);
out:
    return status;
}
