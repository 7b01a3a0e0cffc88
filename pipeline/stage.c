/*
 * Stages: making one, and what it takes to run an item. All memory is made here, sized by what the
 * simulator found for the schedule; an item allocates nothing but scratch of its arena.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/health.h"
#include "pipeline/stage_items.h"

/* ---- sizes ------------------------------------------------------------------------------ */

/* Chunks and micro-batches are cut as evenly as whole numbers allow, so none is larger than the
 * quotient rounded up. Buffers are made for that size and serve all. */
static int steps_most(const rv_stage *stage) {
    int T = stage->desc.net->desc->steps, C = stage->desc.train->chunks;
    return (T + C - 1) / C;
}

static int rows_most(const rv_stage *stage) {
    int M = stage->desc.train->micro_batches;
    return (stage->desc.train->batch + M - 1) / M;
}

/* A link lies in the memory of its receiver, so it is the receiver that says how large it is. The
 * sender's crossing is the same one and gives the same number. */
void rv_stage_bytes(const rv_stage *stage, size_t *forward_in, size_t *backward_in) {
    *forward_in = rv_wire_forward_bytes(&stage->before, steps_most(stage), rows_most(stage));
    *backward_in = rv_wire_backward_bytes(&stage->after, steps_most(stage), rows_most(stage));
}

/* Evaluation runs parts of the same size as training, which is what buffers hold. */
const rv_batch *rv_stage_rows(const rv_stage *stage, int m, int *row, int *B) {
    int M = stage->desc.train->micro_batches;
    const rv_batch *batch = stage->batch;
    if (!batch) {
        batch = rv_flow_batch(stage->desc.flow, m / M);
        m %= M;
    }
    int all = batch->B;
    int from = stage->training ? rv_cut(m, M, all) : m * rows_most(stage);
    int to = stage->training ? rv_cut(m + 1, M, all) : from + rows_most(stage);
    *row = from < all ? from : all;
    *B = (to < all ? to : all) - *row;
    return batch;
}

int64_t rv_stage_update(const rv_stage *stage, int m) {
    return stage->batch ? stage->weights.made : m / stage->desc.train->micro_batches;
}

/* Most micro-batches between their first F and their last W: what a held frame must outlive. */
static int flights_most(const rv_work *list, int count, int chunks) {
    int begun = 0, ended = 0, most = 1;
    /* Micro-batches end in the order they began (the lists are canonical), so the W seen so far
     * tell how many have ended, and those in flight are neighbours: micro % most never meets
     * another. */
    for (int i = 0; i < count; i++) {
        begun += list[i].kind == RV_WORK_F && list[i].chunk == 0;
        if (begun - ended / chunks > most) most = begun - ended / chunks;
        ended += list[i].kind == RV_WORK_W || list[i].kind == RV_WORK_BW;
    }
    return most;
}

/* ---- making ----------------------------------------------------------------------------- */

/* Each flight has a forward state of its own, for its chunks may be far apart in the list. Adjoints
 * need one for all: B ends with a micro-batch before it begins the next. */
static rv_status make_flights(rv_stage *stage) {
    rv_status status = RV_OK;
    const rv_stage_desc *desc = &stage->desc;
    const rv_work *list = rv_schedule_list(desc->schedule, desc->index, &stage->count);
    stage->flights = desc->flow ? rv_order_flights(&stage->order)
                                : flights_most(list, stage->count, desc->train->chunks);
    stage->ring = stage->flights + desc->train->micro_batches;
    TRY(rv_alloc((size_t)stage->flights, sizeof *stage->flight, "micro-batches in flight",
                 &stage->flight));
    for (int i = 0; i < stage->flights; i++) {
        TRY(rv_state_create_range(&stage->range, desc->device, rows_most(stage),
                                  &stage->flight[i].state));
        if (desc->index + 1 == desc->stages)
            TRY(rv_loss_create(desc->loss, desc->net, desc->device, rows_most(stage),
                               &stage->flight[i].loss));
    }
    TRY(rv_state_create_range(&stage->range, desc->device, rows_most(stage), &stage->adjoint));
out:
    return status;
}

/* The simulator has counted how many tapes the list holds at its peak: that many always suffice,
 * and one fewer would not. */
static rv_status make_tapes(rv_stage *stage) {
    const rv_stage_desc *desc = &stage->desc;
    rv_tapes_desc tapes = {
        .range = &stage->range,
        .before = &stage->before,
        .device = desc->device,
        .how = {desc->train->tape, desc->train->tape_dtype == RV_TAPE_FLOAT16},
        .steps = steps_most(stage),
        .rows = rows_most(stage),
        .micros = desc->train->micro_batches + stage->flights,
        .chunks = desc->train->chunks,
        .records =
            desc->flow ? rv_order_tapes(&stage->order) : desc->schedule->forecast.peak[desc->index],
        .writer = desc->writer,
        .wake = desc->wake,
        .stage = desc->index,
    };
    /* Tapes that are all kept need no list, and an endless one has more cells than there are. */
    if (!desc->flow) tapes.list = rv_schedule_list(desc->schedule, desc->index, &tapes.count);
    return rv_tapes_create(&tapes, &stage->tapes);
}

/* The list of an evaluation: F alone. Micro-batches and chunks ascending, which is the order in
 * which the plain trainer adds up losses. */
static rv_status make_forward(rv_stage *stage) {
    rv_status status = RV_OK;
    int M = stage->desc.train->micro_batches, C = stage->desc.train->chunks;
    TRY(rv_alloc((size_t)M * (size_t)C, sizeof *stage->forward, "work items", &stage->forward));
    for (int i = 0; i < M * C; i++)
        stage->forward[i] = (rv_work){.micro = i / C,
                                      .chunk = (uint16_t)(i % C),
                                      .stage = (uint16_t)stage->desc.index,
                                      .version = RV_NO_VERSION,
                                      .kind = RV_WORK_F};
out:
    return status;
}

/* Room for what an item fills anew every time. An arena that grows as it is used leaves holes in
 * the heap, several times its size. */
static rv_status make_scratch(rv_stage *stage) {
    rv_status status = RV_OK;
    const rv_net *net = stage->desc.net;
    const rv_device *device = stage->desc.device;
    int most = stage->before.count > stage->after.count ? stage->before.count : stage->after.count;
    size_t views = (size_t)most + 1;
    void *all;
    TRY(rv_alloc(views, sizeof *stage->signal, "views of a message", &stage->signal));
    TRY(rv_alloc(views, sizeof *stage->g_before, "views of a message", &stage->g_before));
    TRY(rv_alloc(views, sizeof *stage->g_after, "views of a message", &stage->g_after));
    TRY(rv_alloc((size_t)net->tensor_count + 1, sizeof *stage->norm, "norms", &stage->norm));
    /* Not scratch: filled by F and kept for U, which applies those of all micro-batches in
     * order. */
    TRY(device->ops->alloc(device->ctx,
                           sizeof(float) * (size_t)stage->ring * (size_t)net->desc->steps *
                               rv_net_statistics(net),
                           "running statistics", (void **)&stage->statistics));
    if (stage->desc.scratch > 0)
        TRY(rv_arena_get(&stage->arena, (size_t)stage->desc.scratch, 1, &all));
    rv_arena_reset(&stage->arena);
out:
    return status;
}

/* What cannot run is refused before memory is taken. A stage that fails half made is given to
 * rv_stage_destroy, so everything in it is either made or zero. */
rv_status rv_stage_create(const rv_stage_desc *desc, rv_stage **out) {
    rv_status status = RV_OK;
    rv_stage *stage = NULL;
    *out = NULL;
    TRY(rv_net_check_chunks(desc->net, desc->train->chunks));
    TRY(rv_alloc(1, sizeof *stage, "a stage", &stage));
    stage->desc = *desc;
    stage->arena.memory = rv_device_memory(desc->device);
    stage->range = rv_net_range(desc->net, desc->first, desc->last);
    TRY(rv_net_crossing(desc->net, desc->first, &stage->before));
    TRY(rv_net_crossing(desc->net, desc->last, &stage->after));
    static const rv_delay_rule at_once = {.from = INT64_MAX, .until = INT64_MAX};
    const rv_delay_rule *rule = desc->flow ? &desc->rule : &at_once;
    stage->order = (rv_order){.rule = *rule,
                              .stage = desc->index,
                              .chunks = desc->train->chunks,
                              .group = desc->train->micro_batches};
    TRY(rv_weights_init(&stage->weights, &stage->range, desc->device, desc->train,
                        desc->total_steps, rule, rows_most(stage)));
    TRY(desc->device->ops->alloc(desc->device->ctx, sizeof(float) * stage->range.n_trained,
                                 "gradient", (void **)&stage->gradient));
    if (desc->flow) TRY(rv_account_init(&stage->account, rule->delay + 1));
    TRY(make_flights(stage));
    TRY(make_tapes(stage));
    TRY(make_forward(stage));
    TRY(make_scratch(stage));
    *out = stage;
    stage = NULL;
out:
    rv_stage_destroy(stage);
    return status;
}

/* In the reverse of making; links and schedule are borrowed and stay. */
void rv_stage_destroy(rv_stage *stage) {
    if (!stage) return;
    rv_arena_finish(&stage->arena);
    stage->desc.device->ops->free(stage->desc.device->ctx, stage->statistics);
    rv_free(stage->norm);
    rv_free(stage->g_after);
    rv_free(stage->g_before);
    rv_free(stage->signal);
    rv_free(stage->forward);
    rv_tapes_destroy(stage->tapes);
    rv_state_destroy(stage->adjoint);
    for (int i = 0; stage->flight && i < stage->flights; i++) {
        rv_loss_destroy(stage->flight[i].loss);
        rv_state_destroy(stage->flight[i].state);
    }
    rv_free(stage->flight);
    stage->desc.device->ops->free(stage->desc.device->ctx, stage->gradient);
    rv_weights_finish(&stage->weights);
    rv_account_finish(&stage->account);
    rv_free(stage->after.tensor);
    rv_free(stage->before.tensor);
    rv_free(stage);
}

/* ---- running ---------------------------------------------------------------------------- */

rv_status rv_stage_begin(rv_stage *stage, const rv_batch *batch, bool training) {
    rv_status status = RV_OK;
    const rv_stage_desc *desc = &stage->desc;
    if (batch->B < 1 || batch->B > desc->train->batch)
        FAIL(RV_INTERNAL, "a batch of %d samples, the stage was made for 1 to %d", batch->B,
             desc->train->batch);
    stage->batch = batch;
    stage->training = training;
    stage->at = 0;
    stage->layer = desc->first;
    /* Stands where the step has no NORM items; else NORM (last stage) or U (others) sets it. */
    stage->scale = 1;
    stage->result = (rv_step_result){
        .B = batch->B, .norm = NAN, .rate = rv_optimizer_rate(stage->weights.optimizer)};
    stage->list = stage->forward;
    stage->count = desc->train->micro_batches * desc->train->chunks;
    /* The last update may have left its weights without what evaluation reads. */
    if (!training) TRY(rv_weights_ready(&stage->weights));
    if (!training) goto out;
    TRY(rv_tapes_open(stage->tapes, desc->train->scratch, false)); /* unless it has been */
    stage->list = rv_schedule_list(desc->schedule, desc->index, &stage->count);
out:
    return status;
}

void rv_stage_flow(rv_stage *stage) {
    stage->batch = NULL;
    stage->training = true;
    stage->layer = stage->desc.first;
    stage->scale = 1;
    stage->sound = true;
    stage->list = &stage->next;
    stage->at = 0, stage->count = 1;
    rv_order_start(&stage->order, stage->weights.made);
}

int rv_stage_offers(const rv_stage *stage, rv_work offers[RV_OFFERS]) {
    if (!stage->batch)
        return rv_order_offers(&stage->order,
                               rv_flow_fed(stage->desc.flow) * stage->desc.train->micro_batches,
                               offers);
    if (stage->at == stage->count) return 0;
    offers[0] = stage->list[stage->at];
    return 1;
}

/* `at` moves on only when an item is done: one that waits is tried again as a whole, and after an
 * error it still names the item that failed. An endless order has its item in a list of one. */
rv_status rv_stage_try(rv_stage *stage, const rv_work *work, rv_turn *turn, rv_link **edge) {
    static const rv_item items[RV_WORK_KINDS] = {
        [RV_WORK_F] = rv_item_forward, [RV_WORK_B] = rv_item_backward,
        [RV_WORK_W] = rv_item_weight,  [RV_WORK_BW] = rv_item_backward,
        [RV_WORK_U] = rv_item_update,  [RV_WORK_NORM] = rv_item_norm,
    };
    rv_status status = RV_OK;
    *edge = NULL;
    if (!stage->batch) stage->next = *work, stage->at = 0;
    TRY(items[work->kind](stage, work, edge));
    *turn = *edge ? RV_TURN_WAIT : RV_TURN_DONE;
    if (*edge) goto out;
    if (stage->batch)
        stage->at++;
    else
        rv_order_done(&stage->order, work);
    /* Nothing an item leaves behind may lie in the arena: state, tapes and messages hold it all. */
    rv_arena_reset(&stage->arena);
out:
    return status;
}

rv_status rv_stage_end(rv_stage *stage) {
    const rv_device *device = stage->desc.device;
    if (!stage->batch) stage->at = stage->count;
    /* Between steps the host reads and writes what the ops of a step have left. */
    return device->ops->queue_sync(device->ctx, NULL);
}

rv_status rv_stage_step(rv_stage *stage, rv_turn *turn, rv_link **edge) {
    rv_status status = RV_OK;
    rv_work offers[RV_OFFERS];
    int count = rv_stage_offers(stage, offers);
    *turn = RV_TURN_END;
    *edge = NULL;
    if (count == 0) return rv_stage_end(stage);
    for (int i = 0; i < count && *turn != RV_TURN_DONE; i++)
        TRY(rv_stage_try(stage, &offers[i], turn, edge));
out:
    return status;
}

/* What is trained the update has looked at; frozen weights and statistics follow it in a block. */
bool rv_stage_sound(const rv_stage *stage) {
    const float *block = rv_version_block(rv_weights_newest(&stage->weights));
    size_t trained = stage->range.n_trained;
    return rv_optimizer_sound(stage->weights.optimizer) &&
           rv_finite(block + trained, stage->range.n_all - trained);
}

const char *rv_stage_item(const rv_stage *stage, char text[160]) {
    char item[RV_WORK_TEXT] = "the end";
    int s = stage->desc.index;
    if (stage->list && stage->at < stage->count) rv_work_print(&stage->list[stage->at], s, item);
    snprintf(text, 160, "stage %d, %s, layer \"%s\"", s, item,
             rv_net_layer_name(stage->desc.net, stage->layer));
    return text;
}
