/* A ring of batches. A batch is copied into one block of its own, which grows to the largest. */
#include "pipeline/flow.h"

#include <stdatomic.h>
#include <string.h>

typedef struct place {
    char *memory;
    size_t size;
    rv_batch batch;
    rv_step_result result;
} place;

struct rv_flow {
    atomic_llong fed; /* stored after the batch is whole: who sees the number sees the batch */
    int depth;
    place *places;
};

rv_status rv_flow_create(int depth, rv_flow **out) {
    rv_status status = RV_OK;
    rv_flow *flow = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *flow, "batches under way", &flow));
    flow->depth = depth;
    TRY(rv_alloc((size_t)depth, sizeof *flow->places, "batches under way", &flow->places));
    *out = flow;
    flow = NULL;
out:
    rv_flow_destroy(flow);
    return status;
}

void rv_flow_destroy(rv_flow *flow) {
    if (!flow) return;
    for (int i = 0; flow->places && i < flow->depth; i++)
        rv_free(flow->places[i].memory);
    rv_free(flow->places);
    rv_free(flow);
}

void rv_flow_start(rv_flow *flow, int64_t next) {
    atomic_store(&flow->fed, next);
}

static place *place_of(const rv_flow *flow, int64_t update) {
    return &flow->places[update % flow->depth];
}

/* ---- copies ----------------------------------------------------------------------------- */

typedef struct part {
    const void *from;
    size_t bytes;
} part;
enum { ALIGN = 64 };
enum { BITS, VALUES, LABEL, TARGET, LENGTH, STARTS, SAMPLE, PARTS };

/* All that a batch points to. Frames of one time step have no stride; a target per step has as many
 * steps as the starts or the input have. */
static void parts_of(const rv_batch *b, part out[PARTS]) {
    const rv_spikes *bits = &b->input.spikes;
    const rv_values *values = &b->input.values;
    size_t B = (size_t)b->B, T = (size_t)(bits->bits ? bits->T : values->T);
    size_t steps = values->stride_t ? (size_t)values->T * values->stride_t : B * (size_t)values->ld;
    size_t rows = b->target_per_step ? T * B : B;
    out[BITS] = (part){bits->bits, (size_t)bits->T * bits->stride_t * sizeof *bits->bits};
    out[VALUES] = (part){values->data, steps * sizeof *values->data};
    out[LABEL] = (part){b->label, B * sizeof *b->label};
    out[TARGET] = (part){b->target, rows * (size_t)b->target_width * sizeof *b->target};
    out[LENGTH] = (part){b->length, B * sizeof *b->length};
    out[STARTS] = (part){b->starts, T * (size_t)rv_words(b->B) * sizeof *b->starts};
    out[SAMPLE] = (part){b->sample, B * sizeof *b->sample};
}

static size_t room_of(const part *of) {
    return of->from ? (of->bytes + ALIGN - 1) / ALIGN * ALIGN : 0;
}

size_t rv_flow_bytes(const rv_batch *batch) {
    part parts[PARTS];
    size_t size = 0;
    parts_of(batch, parts);
    for (int i = 0; i < PARTS; i++)
        size += room_of(&parts[i]);
    return size;
}

rv_status rv_flow_feed(rv_flow *flow, const rv_batch *batch) {
    rv_status status = RV_OK;
    int64_t update = rv_flow_fed(flow);
    place *to = place_of(flow, update);
    part parts[PARTS];
    void *at[PARTS] = {0};
    size_t size = rv_flow_bytes(batch), used = 0;
    parts_of(batch, parts);
    if (size > to->size) {
        rv_free(to->memory);
        to->memory = NULL, to->size = 0;
        TRY(rv_alloc(size, 1, "batches under way", &to->memory));
        to->size = size;
    }
    for (int i = 0; i < PARTS; i++) {
        if (!parts[i].from) continue;
        at[i] = to->memory + used;
        memcpy(at[i], parts[i].from, parts[i].bytes);
        used += room_of(&parts[i]);
    }
    to->batch = *batch;
    to->batch.input.spikes.bits = at[BITS];
    to->batch.input.values.data = at[VALUES];
    to->batch.label = at[LABEL], to->batch.target = at[TARGET];
    to->batch.length = at[LENGTH], to->batch.starts = at[STARTS], to->batch.sample = at[SAMPLE];
    atomic_store(&flow->fed, update + 1);
out:
    return status;
}

int64_t rv_flow_fed(const rv_flow *flow) {
    return atomic_load(&((rv_flow *)flow)->fed);
}

const rv_batch *rv_flow_batch(const rv_flow *flow, int64_t update) {
    return &place_of(flow, update)->batch;
}

rv_step_result *rv_flow_result(const rv_flow *flow, int64_t update) {
    return &place_of(flow, update)->result;
}
