/*
 * What a plan weighs. Bytes are those the executor will allocate, so a limit of memory can be kept
 * before anything is made. A search asks for the same stage at the same length of a chunk over and
 * over, so that is remembered.
 */
#include <math.h>
#include <string.h>

#include "pipeline/bytes.h"
#include "pipeline/plan_search.h"

double rv_plan_stage_bytes(const rv_plan_stage *stage) {
    const rv_plan_bytes *b = &stage->bytes;
    return b->weights + b->versions + b->tapes + b->state + b->slots + b->scratch;
}

/* ---- a stage at a length of its chunks -------------------------------------------------- */

enum { UNITS = 256, POLICIES = 3 }; /* remembered of a stage and policy: lengths modulo UNITS */

struct rv_plan_unit {
    int first, last, steps; /* whose: cuts may change; steps 0: nothing yet */
    rv_tapes_sizes tapes;
    double in, forward, backward; /* bytes of messages from the stage before, to the next, and from
                                     it */
    double state;
};

rv_status rv_plan_units_create(rv_plan_search *s) {
    return rv_alloc((size_t)s->stages * POLICIES * UNITS, sizeof *s->units, "the sizes of stages",
                    &s->units);
}

/* Layers [first, last). */
static rv_status unit_find(const rv_plan_search *s, int first, int last, int steps,
                           rv_plan_unit *out) {
    rv_status status = RV_OK;
    const rv_net *net = s->desc->cost.net;
    const rv_train_desc *train = s->desc->cost.train;
    const int rows = (train->batch + s->micros - 1) / s->micros;
    const rv_range range = rv_net_range(net, first, last);
    rv_crossing before = {0}, after = {0};
    TRY(rv_net_crossing(net, first, &before));
    TRY(rv_net_crossing(net, last, &after));
    const rv_tapes_desc tapes = {.range = &range,
                                 .before = &before,
                                 .how = {s->tape, train->tape_dtype == RV_TAPE_FLOAT16},
                                 .steps = steps,
                                 .rows = rows};
    *out = (rv_plan_unit){
        .first = first,
        .last = last,
        .steps = steps,
        .tapes = rv_tapes_sizes_of(&tapes),
        .in = (double)rv_wire_forward_bytes(&before, steps, rows),
        .forward = (double)rv_wire_forward_bytes(&after, steps, rows),
        .backward = (double)rv_wire_backward_bytes(&after, steps, rows),
        .state = (double)rv_state_bytes(&range, rows),
    };
out:
    rv_free(before.tensor);
    rv_free(after.tensor);
    return status;
}

static int steps_of(const rv_plan_search *s, int chunks) {
    return (s->steps + chunks - 1) / chunks;
}

/* With the policy that is tried. */
static rv_status unit_of(const rv_plan_search *s, int stage, int chunks, rv_plan_unit *out) {
    rv_status status = RV_OK;
    const int policy = s->policy ? s->policy[stage] : 0, steps = steps_of(s, chunks);
    const int first = s->first[stage], last = s->first[stage + 1];
    rv_plan_unit *it = &s->units[(stage * POLICIES + policy) * UNITS + steps % UNITS];
    if (it->steps != steps || it->first != first || it->last != last)
        TRY(unit_find(s, first, last, steps, it));
    *out = *it;
out:
    return status;
}

rv_status rv_plan_spilled(const rv_plan_search *s, int stage, int chunks, double *bytes) {
    rv_status status = RV_OK;
    rv_plan_unit unit;
    TRY(unit_of(s, stage, chunks, &unit));
    *bytes = (double)chunks * (double)unit.tapes.spilled;
out:
    return status;
}

/* Linux lets a fifth of what is free wait for the disk before it holds writers up, and keeps what
 * has been written while there is room. */
double rv_plan_cached(const rv_plan_desc *desc) {
    double there = rv_host_memory("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
    return fmax(0, there - rv_host_resident() - desc->memory) / 4;
}

/* With the policy of tapes that is tried. F runs once more inside B; what goes to the disk and back
 * takes its time, beside F and B where a processor is left for it. */
rv_status rv_plan_cost(const rv_plan_search *s, int stage, int chunks, rv_part_cost *out) {
    rv_status status = RV_OK;
    double bytes;
    rv_part_cost cost = rv_plan_cost_at(s->points, stage, chunks);
    if (s->policy && s->policy[stage] == RV_TAPE_RECOMPUTE) {
        cost.b += cost.f;
        cost.once[RV_WORK_B] += cost.once[RV_WORK_F];
    } else if (s->policy && s->policy[stage] == RV_TAPE_SPILL) {
        TRY(rv_plan_spilled(s, stage, chunks, &bytes));
        const double disk = bytes / s->spill;
        cost.f = s->idle ? fmax(cost.f, disk) : cost.f + disk;
        cost.b = s->idle ? fmax(cost.b, disk) : cost.b + disk;
    }
    *out = cost;
out:
    return status;
}

/* ---- a stage ---------------------------------------------------------------------------- */

/* How the part of the net that a stage has is run. */
typedef struct piece {
    int chunks, slots;
    double scratch, weights, versions; /* bytes */
    int flights;
    int records;         /* tapes at the peak, in chunks */
    const rv_work *list; /* NULL: as few benches as can be */
    int count;
} piece;

/* Micro-batches between first F and last W need a state each; little, so of steps M are counted. */
static void part_weigh(const rv_plan_search *s, const rv_plan_unit *unit, const piece *part,
                       rv_plan_stage *stage) {
    const rv_net *net = s->desc->cost.net;
    stage->forward_message = unit->forward;
    stage->backward_message = unit->backward;
    stage->bytes = (rv_plan_bytes){
        .weights = part->weights,
        .versions = part->versions,
        .tapes = (double)rv_tapes_bytes(&unit->tapes, part->records, part->list, part->count) +
                 rv_bytes_records(net, part->records),
        .state = (part->flights + 1.0) * unit->state,
        .slots = part->slots * (unit->in + unit->backward),
        .scratch = RV_BYTES_SCRATCH * part->scratch,
        .record = (double)unit->tapes.record + rv_bytes_records(net, 1),
    };
}

/* What it trains; and what a stage of the endless order keeps that one of steps does not. */
static void part_endless(const rv_plan_search *s, int stage, int first, int last, piece *part) {
    const rv_train_desc *train = s->desc->cost.train;
    const rv_range range = rv_net_range(s->desc->cost.net, first, last);
    part->flights = s->micros;
    part->weights = rv_bytes_weights(&range, train, s->desc->cost.isa, NULL);
    if (!s->delay) return;
    const rv_delay_shape shape = {s->stages, part->chunks, s->micros, stage, part->slots};
    const rv_order order = {.rule = rv_delay_rule_of(s->delay, &shape), .chunks = part->chunks};
    part->weights = rv_bytes_weights(&range, train, s->desc->cost.isa, &order.rule);
    part->versions = rv_weights_bytes(&order.rule, &range);
    part->flights = rv_order_flights(&order);
    part->records = rv_order_tapes(&order);
    part->list = NULL, part->count = 0; /* tapes are whole, and it has more cells than there are */
}

/* Batches that the first stage may begin before the last update is awaited. */
static double batches_bytes(const rv_plan_search *s, int chunks, int slots) {
    const rv_batch *batch = s->desc->cost.batch;
    if (!s->delay) return 0;
    const rv_delay_shape shape = {s->stages, chunks, s->micros, 0, slots};
    const rv_order order = {
        .rule = rv_delay_rule_of(s->delay, &shape), .chunks = chunks, .group = s->micros};
    double update = (double)s->desc->cost.train->batch / batch->B;
    return (rv_order_fed(&order) + RV_FLOW_BESIDE) * update * (double)rv_flow_bytes(batch);
}

/* Saving takes a copy of everything (a plain trainer has it anyway), and makes a file of it. */
static double copy_bytes(const rv_plan_search *s, int chunks) {
    const rv_net *net = s->desc->cost.net;
    const rv_train_desc *train = s->desc->cost.train;
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    double versions = 0;
    bool piped = s->stages > 1 || s->delay || train->tape_dtype ||
                 rv_tape_has(&whole, s->tape, RV_TAPE_RECOMPUTE) ||
                 rv_tape_has(&whole, s->tape, RV_TAPE_SPILL);
    for (int i = 0; s->delay && i < s->stages; i++) {
        piece part = {.chunks = chunks};
        part_endless(s, i, s->first[i], s->first[i + 1], &part);
        versions += part.versions;
    }
    if (s->delay) versions += sizeof(float) * (double)net->n_all; /* the newest is among them */
    return (piped ? rv_bytes_copy(net, train, versions) : 0) +
           rv_bytes_saving(net, train, versions);
}

double rv_plan_base_bytes(const rv_plan_search *s, int chunks, int slots) {
    return copy_bytes(s, chunks) + batches_bytes(s, chunks, slots);
}

rv_status rv_plan_weigh(const rv_plan_search *s, int chunks, int slots, const rv_schedule *schedule,
                        rv_plan_stage *stage, double *bytes) {
    rv_status status = RV_OK;
    rv_plan_unit unit;
    *bytes = rv_plan_base_bytes(s, chunks, slots);
    for (int i = 0; i < s->stages; i++) {
        rv_plan_stage own = {0}, *to = stage ? &stage[i] : &own;
        piece part = {.chunks = chunks,
                      .slots = s->delay ? slots : rv_schedule_slots(slots, s->micros * chunks),
                      .scratch = rv_plan_cost_at(s->points, i, chunks).scratch_bytes,
                      .records = schedule ? schedule->forecast.peak[i] : chunks};
        if (schedule) part.list = rv_schedule_list(schedule, i, &part.count);
        part_endless(s, i, s->first[i], s->first[i + 1], &part);
        TRY(unit_of(s, i, chunks, &unit));
        part_weigh(s, &unit, &part, to);
        *bytes += rv_plan_stage_bytes(to);
    }
out:
    return status;
}

rv_status rv_plan_bytes_of(void *search, int chunks, int slots, const rv_schedule *schedule,
                           double *bytes) {
    return rv_plan_weigh(search, chunks, slots, schedule, NULL, bytes);
}

int rv_plan_cap(const rv_plan_search *s, int chunks, double left, double record) {
    const double most = (double)s->micros * chunks;
    return (int)fmin(most, chunks + fmax(0, left) / fmax(1, record));
}

rv_status rv_plan_caps(void *search, int chunks, int *cap) {
    rv_status status = RV_OK;
    rv_plan_search *s = search;
    const int slots = s->desc->slots ? s->desc->slots : 1;
    rv_plan_stage *stage = NULL;
    double bytes;
    TRY(rv_alloc((size_t)s->stages, sizeof *stage, "stages", &stage));
    TRY(rv_plan_weigh(s, chunks, slots, NULL, stage, &bytes));
    for (int i = 0; i < s->stages; i++)
        cap[i] = rv_plan_cap(s, chunks, s->desc->memory - bytes, stage[i].bytes.record);
out:
    rv_free(stage);
    return status;
}

rv_status rv_plan_adopt(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_schedule *schedule = &plan->schedule;
    plan->chunks = schedule->chunks;
    plan->copy = copy_bytes(s, plan->chunks);
    plan->batches = batches_bytes(s, plan->chunks, schedule->slots);
    for (int i = 0; i < plan->stages; i++)
        TRY(rv_plan_cost(s, i, plan->chunks, &plan->stage[i].cost));
    TRY(rv_plan_weigh(s, plan->chunks, schedule->slots, schedule, plan->stage, &plan->bytes));
out:
    return status;
}

rv_status rv_plan_blocks_weigh(const rv_plan_search *s, const rv_cost_points *blocks, int stage,
                               int from, int to, int chunks, double *bytes) {
    rv_status status = RV_OK;
    const int first = blocks->part[0][from].first, last = blocks->part[0][to - 1].last;
    rv_plan_stage weighed = {0};
    rv_plan_unit unit;
    piece part = {
        .chunks = chunks, .slots = s->desc->slots ? s->desc->slots : 1, .records = chunks};
    for (int i = from; i < to; i++)
        part.scratch = fmax(part.scratch, rv_plan_cost_at(blocks, i, chunks).scratch_bytes);
    part_endless(s, stage, first, last, &part);
    TRY(unit_find(s, first, last, steps_of(s, chunks), &unit));
    part_weigh(s, &unit, &part, &weighed);
    *bytes = rv_plan_stage_bytes(&weighed);
out:
    return status;
}
