/*
 * Planning: measure, cut, search, and look whether it fits. Blocks are measured to find the cut;
 * the stages of that cut are then measured themselves, since neighbours in one stage share caches
 * and spare each other messages. What is chosen never changes the bits of a run but for the number
 * of chunks, which is chosen only where the recipe says `auto`.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/partition.h"
#include "pipeline/plan.h"

/* ---- costs at any number of chunks ------------------------------------------------------ */

static double between(double a, double b, double share) {
    return fmax(0, a + (b - a) * share);
}

/* An item has a cost of its own beside that of its steps, so the sum grows in a straight line. */
static rv_part_cost cost_at(const rv_cost_points *points, int part, int chunks) {
    rv_part_cost cost = points->part[0][part];
    if (points->count == 1) return cost;
    const rv_part_cost *other = &points->part[1][part];
    double share = (double)(chunks - points->chunks[0]) / (points->chunks[1] - points->chunks[0]);
    cost.f = between(cost.f, other->f, share);
    cost.b = between(cost.b, other->b, share);
    cost.w = between(cost.w, other->w, share);
    cost.scratch_bytes = fmax(cost.scratch_bytes, other->scratch_bytes);
    return cost;
}

static void points_finish(rv_cost_points *points) {
    rv_free(points->part[1]);
    rv_free(points->part[0]);
    *points = (rv_cost_points){0};
}

/* chunks and count are set. first: [parts + 1]. */
static rv_status points_measure(const rv_plan_desc *desc, const int *first, int parts,
                                rv_cost_points *points) {
    rv_status status = RV_OK;
    points->parts = parts;
    for (int k = 0; k < points->count; k++) {
        rv_train_desc train = *desc->cost.train;
        rv_cost_desc cost = desc->cost;
        train.chunks = points->chunks[k];
        cost.train = &train;
        cost.busy = desc->stages;
        TRY(rv_alloc((size_t)parts, sizeof(rv_part_cost), "costs", &points->part[k]));
        for (int i = 0; i < parts; i++)
            points->part[k][i].first = first[i], points->part[k][i].last = first[i + 1];
        TRY(rv_cost_measure(&cost, parts, points->part[k]));
    }
out:
    return status;
}

/* Costs of stages as sums over their blocks: for costs from a file. A cut inside a block shares its
 * cost by layers. */
static rv_status points_sum(const rv_cost_points *blocks, const int *first, int stages,
                            rv_cost_points *points) {
    rv_status status = RV_OK;
    *points = (rv_cost_points){.parts = stages, .count = blocks->count};
    for (int k = 0; k < blocks->count; k++) {
        points->chunks[k] = blocks->chunks[k];
        TRY(rv_alloc((size_t)stages, sizeof(rv_part_cost), "costs", &points->part[k]));
        for (int s = 0; s < stages; s++) {
            rv_part_cost *sum = &points->part[k][s];
            sum->first = first[s], sum->last = first[s + 1];
            for (int i = 0; i < blocks->parts; i++) {
                const rv_part_cost *block = &blocks->part[k][i];
                int from = block->first > sum->first ? block->first : sum->first;
                int to = block->last < sum->last ? block->last : sum->last;
                double share = to > from ? (double)(to - from) / (block->last - block->first) : 0;
                sum->f += share * block->f, sum->b += share * block->b;
                sum->w += share * block->w, sum->u += share * block->u;
                sum->norm += share * block->norm;
                if (share > 0) sum->scratch_bytes = fmax(sum->scratch_bytes, block->scratch_bytes);
            }
        }
    }
out:
    return status;
}

/* Two numbers of chunks tell the cost of every other; a fixed number needs no other. */
static void points_choose(const rv_plan_desc *desc, rv_cost_points *points) {
    int T = desc->cost.net->desc->steps, other = T < 8 ? T : 8;
    bool whole = rv_net_check_chunks(desc->cost.net, 2) != RV_OK;
    points->count = 1;
    points->chunks[0] = desc->chunks_auto ? 1 : desc->cost.train->chunks;
    if (!desc->chunks_auto || whole || other < 2) return;
    points->chunks[points->count++] = other;
}

/* ---- cuts ------------------------------------------------------------------------------- */

static rv_status cuts_check(const rv_plan_desc *desc) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    for (int s = 0; s + 1 < desc->stages; s++) {
        int before = s > 0 ? desc->cuts[s - 1] : 0;
        if (desc->cuts[s] <= before || desc->cuts[s] >= net->layer_count)
            FAIL(RV_CONFIG, "pipeline.cuts: \"%s\" leaves a stage without a layer",
                 rv_net_layer_name(net, desc->cuts[s] < net->layer_count ? desc->cuts[s] : 0));
    }
out:
    return status;
}

/* By measured costs plus messages, exactly. An update comes once a step: its share counts. */
static rv_status cuts_find(const rv_plan_desc *desc, const rv_plan *plan, int *first) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    int blocks = net->block_count, stages = desc->stages;
    double *compute = NULL, *forward = NULL, *backward = NULL;
    rv_wire *wires = NULL;
    rv_cuts cuts = {0};
    TRY(rv_alloc((size_t)blocks, sizeof *compute, "costs", &compute));
    TRY(rv_alloc((size_t)blocks, sizeof *forward, "costs", &forward));
    TRY(rv_alloc((size_t)blocks, sizeof *backward, "costs", &backward));
    TRY(rv_alloc((size_t)stages, sizeof *wires, "costs", &wires));
    for (int i = 0; i < blocks; i++) {
        const rv_part_cost *cost = &plan->blocks.part[0][i];
        compute[i] = cost->f + cost->b + cost->w + cost->u / plan->micros;
        forward[i] = cost->forward_bytes, backward[i] = cost->backward_bytes;
    }
    for (int s = 0; s < stages; s++)
        wires[s] = (rv_wire){plan->latency, plan->bandwidth, plan->bandwidth};
    const rv_chain chain = {.blocks = blocks,
                            .stages = stages,
                            .compute = compute,
                            .forward_bytes = forward,
                            .backward_bytes = backward,
                            .wires = wires,
                            .transfer = RV_TRANSFER_BLOCKING};
    TRY(rv_partition(&chain, &cuts));
    first[0] = 0, first[stages] = net->layer_count;
    for (int s = 1; s < stages; s++)
        first[s] = net->block_first[cuts.cuts[s - 1]];
out:
    rv_free(cuts.cuts);
    rv_free(wires);
    rv_free(backward);
    rv_free(forward);
    rv_free(compute);
    return status;
}

/* ---- memory ----------------------------------------------------------------------------- */

double rv_plan_stage_bytes(const rv_plan_stage *stage) {
    const rv_plan_bytes *b = &stage->bytes;
    return b->weights + b->versions + b->tapes + b->state + b->slots + b->scratch;
}

/* Micro-batches between first F and last W need a state each; little, so M of them are counted. */
static rv_status bytes_fill(const rv_plan_desc *desc, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    const rv_train_desc *train = desc->cost.train;
    int T = net->desc->steps, M = plan->micros, rows = (train->batch + M - 1) / M;
    int steps = (T + plan->chunks - 1) / plan->chunks;
    int slots = plan->schedule.slots ? plan->schedule.slots : M * plan->chunks;
    rv_crossing before = {0}, after = {0};
    rv_optimizer *optimizer = NULL;
    TRY(rv_optimizer_create(net, train, INT32_MAX, &optimizer));
    double copies = 2 + rv_optimizer_slots(optimizer); /* weights, gradient, slots */
    plan->copy = copies * 4 * (double)net->n_all;
    plan->bytes = plan->stages > 1 ? plan->copy : 0;
    for (int s = 0; s < plan->stages; s++) {
        rv_plan_stage *stage = &plan->stage[s];
        const rv_range range = rv_net_range(net, plan->first[s], plan->first[s + 1]);
        TRY(rv_net_crossing(net, range.first, &before));
        TRY(rv_net_crossing(net, range.last, &after));
        double in = (double)rv_wire_forward_bytes(&before, steps, rows);
        stage->forward_message = (double)rv_wire_forward_bytes(&after, steps, rows);
        stage->backward_message = (double)rv_wire_backward_bytes(&after, steps, rows);
        rv_tapes_desc tapes = {.range = &range,
                               .before = &before,
                               .policy = train->tape,
                               .steps = steps,
                               .rows = rows,
                               .records = plan->schedule.forecast.peak[s]};
        tapes.list = rv_schedule_list(&plan->schedule, s, &tapes.count);
        stage->bytes = (rv_plan_bytes){
            .weights = 4 * ((double)range.n_all + (copies - 1) * (double)range.n_trained),
            .tapes = (double)rv_tapes_bytes(&tapes),
            .state = (M + 1.0) * (double)rv_state_bytes(&range, rows),
            .slots = slots * (in + stage->backward_message),
            .scratch = stage->cost.scratch_bytes,
        };
        plan->bytes += rv_plan_stage_bytes(stage);
        rv_free(before.tensor);
        rv_free(after.tensor);
        before = after = (rv_crossing){0};
    }
out:
    rv_free(before.tensor);
    rv_free(after.tensor);
    rv_optimizer_destroy(optimizer);
    return status;
}

/* ---- search ----------------------------------------------------------------------------- */

/* What rv_schedule_search asks for; arrays are of the stages. */
typedef struct sought {
    const rv_cost_points *points;
    int stages, steps;
    double latency;
    double *f, *b, *w, *u, *norm;
    int *cap; /* every stage alike; [0] 0: none */
    int *chunk_steps;
} sought;

static rv_status costs_at(void *context, int chunks, rv_costs *costs) {
    sought *s = context;
    for (int i = 0; i < s->stages; i++) {
        rv_part_cost cost = cost_at(s->points, i, chunks);
        s->f[i] = cost.f, s->b[i] = cost.b, s->w[i] = cost.w;
        s->u[i] = cost.u, s->norm[i] = cost.norm;
    }
    for (int c = 0; c < chunks; c++)
        s->chunk_steps[c] = rv_cut(c + 1, chunks, s->steps) - rv_cut(c, chunks, s->steps);
    *costs = (rv_costs){.f = s->f,
                        .b = s->b,
                        .w = s->w,
                        .u = s->u,
                        .norm = s->norm,
                        .chunk_steps = s->chunk_steps,
                        .cap = s->cap[0] ? s->cap : NULL,
                        .latency = s->latency};
    return RV_OK;
}

static void sought_finish(sought *s) {
    rv_free(s->chunk_steps);
    rv_free(s->cap);
    rv_free(s->f);
}

static rv_status sought_init(sought *s, const rv_plan_desc *desc, const rv_plan *plan,
                             const rv_cost_points *points) {
    rv_status status = RV_OK;
    size_t n = (size_t)plan->stages;
    *s = (sought){.points = points,
                  .stages = plan->stages,
                  .steps = desc->cost.net->desc->steps,
                  .latency = plan->latency};
    TRY(rv_alloc(5 * n, sizeof *s->f, "costs", &s->f));
    s->b = s->f + n, s->w = s->b + n, s->u = s->w + n, s->norm = s->u + n;
    TRY(rv_alloc(n, sizeof *s->cap, "costs", &s->cap));
    TRY(rv_alloc((size_t)s->steps, sizeof *s->chunk_steps, "costs", &s->chunk_steps));
out:
    return status;
}

/* All numbers of chunks up to 32, then ever coarser ones, and T. */
static int chunks_list(const rv_plan_desc *desc, int *list) {
    int T = desc->cost.net->desc->steps, count = 0;
    if (!desc->chunks_auto || rv_net_check_chunks(desc->cost.net, 2) != RV_OK) {
        list[count++] = desc->chunks_auto ? 1 : desc->cost.train->chunks;
        return count;
    }
    for (int c = 1; c < T; c += 1 + c / 32)
        list[count++] = c;
    list[count++] = T;
    return count;
}

/* A schedule from a file: it must be of this plan's shape; updates are added where it has none. */
static rv_status file_read(const rv_plan_desc *desc, sought *s, rv_plan *plan) {
    rv_status status = RV_OK;
    char *text = NULL;
    size_t size;
    rv_costs costs;
    const rv_train_desc *train = desc->cost.train;
    rv_schedule *schedule = &plan->schedule;
    TRY(rv_read_file(desc->file, 1 << 26, &text, &size));
    TRY(rv_schedule_parse(desc->file, text, schedule));
    if (schedule->stages != desc->stages || schedule->micros != train->micro_batches ||
        schedule->chunks != train->chunks)
        FAIL(RV_CONFIG,
             "%s has %d stages, %d micro-batches and %d chunks; the recipe has %d, %d and %d",
             desc->file, schedule->stages, schedule->micros, schedule->chunks, desc->stages,
             train->micro_batches, train->chunks);
    if (schedule->group == 0)
        TRY(rv_schedule_add_updates(schedule, schedule->micros, train->clip_norm > 0));
    if (schedule->norm != (train->clip_norm > 0))
        FAIL(RV_CONFIG, "%s has %s NORM items; train.clip_norm is %s", desc->file,
             schedule->norm ? "" : "no", train->clip_norm > 0 ? "on" : "off");
    TRY(costs_at(s, schedule->chunks, &costs));
    TRY(rv_schedule_simulate(schedule, &costs, NULL));
out:
    rv_free(text);
    return status;
}

static rv_status search_once(const rv_plan_desc *desc, sought *s, const int *chunks, int count,
                             const rv_generator *generator, rv_schedule *best) {
    const rv_search search = {.stages = desc->stages,
                              .micros = desc->cost.train->micro_batches,
                              .chunks = chunks,
                              .chunk_count = count,
                              .slots = desc->slots,
                              .norm = desc->cost.train->clip_norm > 0,
                              .generator = generator,
                              .costs = costs_at,
                              .context = s};
    return rv_schedule_search(&search, best);
}

/* Take the schedule that was found: costs and bytes of its stages. */
static rv_status adopt(const rv_plan_desc *desc, const sought *s, rv_plan *plan) {
    plan->chunks = plan->schedule.chunks;
    for (int i = 0; i < plan->stages; i++)
        plan->stage[i].cost = cost_at(s->points, i, plan->chunks);
    return bytes_fill(desc, plan);
}

/* Without a limit the fastest; with one the fastest that fits: tapes are capped lower and lower, at
 * every stage alike. Nothing fits: the least bytes that were found are told. */
static rv_status search_fitting(const rv_plan_desc *desc, sought *s, rv_plan *plan) {
    rv_status status = RV_OK;
    int *chunks = NULL, count, cap = 0;
    double least = INFINITY;
    TRY(rv_alloc((size_t)s->steps + 1, sizeof *chunks, "chunks", &chunks));
    count = chunks_list(desc, chunks);
    for (;;) {
        rv_schedule found = {0};
        for (int i = 0; i < plan->stages; i++)
            s->cap[i] = cap;
        status = search_once(desc, s, chunks, count, desc->generator, &found);
        if (status == RV_CONFIG && cap > 0)
            FAIL(RV_RESOURCE,
                 "pipeline.memory: no schedule fits %.1f MB; the least found needs %.1f MB",
                 desc->memory / 1e6, least / 1e6);
        TRY(status);
        rv_schedule_finish(&plan->schedule);
        plan->schedule = found;
        TRY(adopt(desc, s, plan));
        if (plan->bytes < least) least = plan->bytes;
        if (desc->memory <= 0 || plan->bytes <= desc->memory) break;
        int most = 0;
        for (int i = 0; i < plan->stages; i++)
            if (found.forecast.peak[i] > most) most = found.forecast.peak[i];
        if (most <= 1)
            FAIL(RV_RESOURCE,
                 "pipeline.memory: no schedule fits %.1f MB; the least found needs %.1f MB",
                 desc->memory / 1e6, least / 1e6);
        cap = most - 1;
    }
out:
    rv_free(chunks);
    return status;
}

/* What every row would give at these chunks: why the plan is as it is. */
static rv_status rivals_find(const rv_plan_desc *desc, sought *s, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_table *table = rv_generator_table();
    TRY(rv_alloc((size_t)table->count, sizeof *plan->rivals, "schedules", &plan->rivals));
    for (int row = 0; row < table->count; row++) {
        const rv_generator *generator = (const void *)rv_table_row(table, row);
        rv_plan_rival *rival = &plan->rivals[plan->rival_count];
        rv_schedule found = {0};
        if (generator->one_stage && plan->stages > 1) continue;
        plan->rival_count++;
        rival->name = generator->row.name;
        status = search_once(desc, s, &plan->chunks, 1, generator, &found);
        if (status != RV_OK && status != RV_CONFIG) goto out;
        rival->runs = status == RV_OK;
        if (!rival->runs)
            snprintf(rival->why, sizeof rival->why, "%.150s", rv_error_get()->message);
        status = RV_OK;
        if (!rival->runs) continue;
        rival->total = found.forecast.total;
        rival->slots = found.slots;
        for (int i = 0; i < plan->stages; i++)
            if (found.forecast.peak[i] > rival->peak) rival->peak = found.forecast.peak[i];
        rv_schedule_finish(&found);
    }
out:
    return status;
}

/* ---- all together ----------------------------------------------------------------------- */

static rv_status shape_check(const rv_plan_desc *desc) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    const rv_train_desc *train = desc->cost.train;
    if (!desc->cuts && desc->stages > net->block_count)
        FAIL(RV_CONFIG,
             "%d stages, but the network has %d blocks (a map with what follows it); pipeline.cuts "
             "may cut elsewhere",
             desc->stages, net->block_count);
    if (desc->cuts) TRY(cuts_check(desc));
    if (train->chunks < 1 || train->chunks > net->desc->steps)
        FAIL(RV_CONFIG, "%d chunks of %d steps: 1 to %d are possible", train->chunks,
             net->desc->steps, net->desc->steps);
    if (!desc->chunks_auto) TRY(rv_net_check_chunks(net, train->chunks));
out:
    return status;
}

/* Costs of the stages: measured, or from blocks that a file tells. */
static rv_status stages_cost(const rv_plan_desc *desc, const rv_plan *plan,
                             rv_cost_points *points) {
    if (desc->profile) return points_sum(&plan->blocks, plan->first, plan->stages, points);
    points_choose(desc, points);
    return points_measure(desc, plan->first, plan->stages, points);
}

static rv_status blocks_cost(const rv_plan_desc *desc, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    int *first = NULL;
    if (desc->profile) return rv_profile_read(desc->profile, net, plan);
    TRY(rv_cost_transport(&plan->latency, &plan->bandwidth));
    TRY(rv_alloc((size_t)net->block_count + 1, sizeof *first, "cuts", &first));
    memcpy(first, net->block_first, sizeof *first * (size_t)net->block_count);
    first[net->block_count] = net->layer_count;
    points_choose(desc, &plan->blocks);
    TRY(points_measure(desc, first, net->block_count, &plan->blocks));
out:
    rv_free(first);
    return status;
}

static rv_status sum_up(const rv_plan_desc *desc, sought *s, rv_plan *plan) {
    rv_status status = RV_OK;
    rv_costs costs;
    for (int i = 0; i < plan->stages; i++) {
        const rv_part_cost *cost = &plan->stage[i].cost;
        plan->serial += plan->micros * (cost->f + cost->b + cost->w) + cost->u;
        if (desc->cost.train->clip_norm > 0) plan->serial += cost->norm;
    }
    TRY(costs_at(s, plan->chunks, &costs));
    TRY(rv_schedule_bound(plan->stages, plan->micros, plan->chunks, &costs, &plan->bound));
    TRY(rivals_find(desc, s, plan));
out:
    return status;
}

rv_status rv_plan_make(const rv_plan_desc *desc, rv_plan *out) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    rv_plan plan = {.stages = desc->stages, .micros = desc->cost.train->micro_batches};
    rv_cost_points points = {0};
    sought s = {0};
    *out = (rv_plan){0};
    TRY(shape_check(desc));
    TRY(rv_alloc((size_t)plan.stages + 1, sizeof *plan.first, "cuts", &plan.first));
    TRY(rv_alloc((size_t)plan.stages, sizeof *plan.stage, "stages", &plan.stage));
    TRY(blocks_cost(desc, &plan));
    if (desc->cuts) {
        memcpy(plan.first + 1, desc->cuts, sizeof *plan.first * (size_t)(plan.stages - 1));
        plan.first[plan.stages] = net->layer_count;
    } else {
        TRY(cuts_find(desc, &plan, plan.first));
    }
    TRY(stages_cost(desc, &plan, &points));
    TRY(sought_init(&s, desc, &plan, &points));
    if (desc->file) {
        TRY(file_read(desc, &s, &plan));
        TRY(adopt(desc, &s, &plan));
        if (desc->memory > 0 && plan.bytes > desc->memory)
            FAIL(RV_RESOURCE, "pipeline.memory: %s needs %.1f MB, allowed are %.1f MB", desc->file,
                 plan.bytes / 1e6, desc->memory / 1e6);
    } else {
        TRY(search_fitting(desc, &s, &plan));
    }
    TRY(sum_up(desc, &s, &plan));
    *out = plan;
    plan = (rv_plan){0};
out:
    sought_finish(&s);
    points_finish(&points);
    rv_plan_finish(&plan);
    return status;
}

void rv_plan_finish(rv_plan *plan) {
    rv_free(plan->rivals);
    points_finish(&plan->blocks);
    rv_free(plan->stage);
    rv_schedule_finish(&plan->schedule);
    rv_free(plan->first);
    *plan = (rv_plan){0};
}
