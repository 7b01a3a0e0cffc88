/*
 * Planning: measure, cut, search, and look whether it fits. Blocks are measured to find the cut;
 * the stages of that cut are then measured themselves, since neighbours in one stage share caches
 * and spare each other messages. What is chosen never changes the bits of a run but for the number
 * of chunks, which is chosen only where the recipe says `auto`.
 */
#include <math.h>
#include <string.h>

#include "pipeline/partition.h"
#include "pipeline/plan_search.h"

/* ---- costs at any number of chunks ------------------------------------------------------ */

static double between(double a, double b, double share) {
    return fmax(0, a + (b - a) * (b < a && share > 1 ? 1 : share));
}

/* Chunks longer than any that was measured have more scratch. */
static rv_part_cost scratch_scaled(const rv_cost_points *points, rv_part_cost cost, int chunks) {
    if (chunks < points->chunks[0]) cost.scratch_bytes *= (double)points->chunks[0] / chunks;
    return cost;
}

/* An item has a cost of its own beside that of its steps, so the sum grows in straight lines. What
 * falls from one measurement to the next does not go on falling beyond them: it would reach
 * nothing. */
rv_part_cost rv_plan_cost_at(const rv_cost_points *points, int part, int chunks) {
    if (points->count == 1) return scratch_scaled(points, points->part[0][part], chunks);
    const int k = points->count > 2 && chunks > points->chunks[1], *at = points->chunks + k;
    const rv_part_cost *one = &points->part[k][part], *other = &points->part[k + 1][part];
    rv_part_cost cost = points->part[0][part];
    double share = (double)(chunks - at[0]) / (at[1] - at[0]);
    cost.f = between(one->f, other->f, share);
    cost.b = between(one->b, other->b, share);
    cost.w = between(one->w, other->w, share);
    /* One chunk alone cannot tell what is done once. */
    const double whole[] = {cost.f, cost.b, cost.w};
    for (int w = RV_WORK_F; w <= RV_WORK_W; w++)
        cost.once[w] = fmin(other->once[w], whole[w]);
    cost.scatter = between(one->scatter, other->scatter, fmin(1, share));
    cost.scratch_bytes = fmax(one->scratch_bytes, other->scratch_bytes);
    return scratch_scaled(points, cost, chunks);
}

static void points_finish(rv_cost_points *points) {
    for (int k = 0; k < RV_COST_POINTS; k++)
        rv_free(points->part[k]);
    *points = (rv_cost_points){0};
}

/* At one number of chunks. B has an F in it where tapes are recomputed. */
static rv_status point_measure(const rv_plan_desc *desc, const int *first, int parts,
                               const uint8_t *recompute, int chunks, rv_part_cost *point) {
    rv_status status = RV_OK;
    rv_train_desc train = *desc->cost.train;
    rv_cost_desc cost = desc->cost;
    train.chunks = chunks;
    if (recompute) train.tape = recompute;
    cost.train = &train;
    cost.busy = desc->workers ? desc->workers : desc->stages;
    for (int i = 0; i < parts; i++)
        point[i].first = first[i], point[i].last = first[i + 1];
    TRY(rv_cost_measure(&cost, parts, point));
    for (int i = 0; recompute && i < parts; i++) {
        rv_part_cost *part = &point[i];
        part->b = fmax(0, part->b - part->f);
        part->once[RV_WORK_B] =
            fmin(part->b, fmax(0, part->once[RV_WORK_B] - part->once[RV_WORK_F]));
    }
out:
    return status;
}

/* chunks and count are set. first: [parts + 1]. Where tapes may be too large to keep they are
 * recomputed while costs are measured. With a limit of memory few chunks may be too long to be
 * measured: then more of them tell alone. */
static rv_status points_measure(const rv_plan_desc *desc, const int *first, int parts,
                                rv_cost_points *points) {
    rv_status status = RV_OK;
    uint8_t *recompute = NULL;
    size_t layers = (size_t)desc->cost.net->layer_count;
    const int count = points->count;
    if (rv_plan_mixes(desc)) {
        TRY(rv_alloc(layers, sizeof *recompute, "policies of tapes", &recompute));
        memset(recompute, RV_TAPE_RECOMPUTE, layers);
    }
    points->parts = parts;
    points->count = 0;
    for (int k = 0; k < count; k++) {
        const int at = points->count, chunks = points->chunks[k];
        if (!points->part[at])
            TRY(rv_alloc((size_t)parts, sizeof(rv_part_cost), "costs", &points->part[at]));
        status = point_measure(desc, first, parts, recompute, chunks, points->part[at]);
        if (status == RV_RESOURCE && k + 1 < count) continue;
        if (status == RV_RESOURCE && at > 0)
            status = RV_OK;
        else if (status)
            goto out;
        else
            points->chunks[points->count++] = chunks;
    }
out:
    rv_free(recompute);
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
                for (int w = RV_WORK_F; w <= RV_WORK_W; w++)
                    sum->once[w] += share * block->once[w];
                sum->scatter = fmax(sum->scatter, share > 0 ? block->scatter : 0);
                if (share > 0) sum->scratch_bytes = fmax(sum->scratch_bytes, block->scratch_bytes);
            }
        }
    }
out:
    return status;
}

/* A whole sequence, chunks as there are mostly, and small ones: from few to more of them costs can
 * fall, for caches hold them, so that two would not tell what a chunk costs. A fixed number needs
 * no other. */
static void points_choose(const rv_plan_desc *desc, rv_cost_points *points) {
    static const int most[RV_COST_POINTS] = {1, 8, 64};
    const int T = desc->cost.net->desc->steps;
    points->count = 1;
    points->chunks[0] = desc->chunks_auto ? 1 : desc->cost.train->chunks;
    if (!desc->chunks_auto || rv_net_check_chunks(desc->cost.net, 2) != RV_OK) return;
    for (int k = 1; k < RV_COST_POINTS && points->chunks[k - 1] < T; k++)
        points->chunks[points->count++] = T < most[k] ? T : most[k];
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
    first[0] = 0, first[desc->stages] = net->layer_count;
    for (int s = 1; s < desc->stages; s++) /* where there is one way only */
        first[s] = net->block_first[s];
    if (!plan->blocks.parts) return RV_OK;
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

/* ---- schedule --------------------------------------------------------------------------- */

/* A schedule from a file: it must be of this plan's shape; updates are added where it has none. */
static rv_status file_read(const rv_plan_desc *desc, rv_plan_search *s, rv_plan *plan) {
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
        FAIL(RV_CONFIG, "%s has %sNORM items; train.clip_norm is %s", desc->file,
             schedule->norm ? "" : "no ", train->clip_norm > 0 ? "on" : "off");
    TRY(rv_plan_costs(s, schedule->chunks, &costs));
    status = rv_schedule_simulate(schedule, &costs, NULL);
    if (status == RV_CONFIG) {
        const rv_error error = *rv_error_get();
        FAIL(RV_CONFIG, "%s: %s", desc->file, error.message);
    }
    TRY(status);
    TRY(rv_plan_adopt(s, plan));
    if (desc->memory > 0 && plan->bytes > desc->memory)
        FAIL(RV_RESOURCE, "pipeline.memory: %s needs %.1f MB, allowed are %.1f MB", desc->file,
             plan->bytes / 1e6, desc->memory / 1e6);
out:
    rv_free(text);
    return status;
}

/* ---- what is measured -------------------------------------------------------------------- */

/* Cuts are chosen by costs where there is more than one way to cut. */
static bool cuts_open(const rv_plan_desc *desc) {
    return !desc->cuts && desc->stages > 1 && desc->stages < desc->cost.net->block_count;
}

/* Nothing depends on what a part costs, and nobody asks: then a run begins at once. Scratch memory
 * comes from the same measurement, so a limit of memory needs it. */
static bool costs_idle(const rv_plan_desc *desc) {
    const rv_generator *generator = desc->generator;
    const bool fixed = desc->file || (generator && !generator->by_costs && generator->orders == 1);
    return desc->bare && !desc->profile && fixed && (desc->file || desc->slots > 0) &&
           !desc->chunks_auto && !cuts_open(desc) && desc->memory == 0 && desc->workers == 0 &&
           !(desc->delay && desc->delay->mode);
}

/* Every stage counts as one. */
static rv_status points_unit(const rv_plan_desc *desc, const int *first, rv_cost_points *points) {
    rv_status status = RV_OK;
    *points =
        (rv_cost_points){.parts = desc->stages, .count = 1, .chunks = {desc->cost.train->chunks}};
    TRY(rv_alloc((size_t)desc->stages, sizeof(rv_part_cost), "costs", &points->part[0]));
    for (int s = 0; s < desc->stages; s++)
        points->part[0][s] =
            (rv_part_cost){.first = first[s], .last = first[s + 1], .f = 1, .b = 1, .w = 1};
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
    if (desc->workers > desc->stages)
        FAIL(RV_CONFIG, "%d stages to share out among %d workers: at most one each", desc->stages,
             desc->workers);
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
    if (costs_idle(desc)) return points_unit(desc, plan->first, points);
    /* Every block a stage: that has been measured. */
    if (plan->blocks.parts == plan->stages &&
        memcmp(plan->first, desc->cost.net->block_first,
               sizeof *plan->first * (size_t)plan->stages) == 0)
        return points_sum(&plan->blocks, plan->first, plan->stages, points);
    points_choose(desc, points);
    return points_measure(desc, plan->first, plan->stages, points);
}

static rv_status blocks_cost(const rv_plan_desc *desc, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    int *first = NULL;
    if (desc->profile) TRY(rv_profile_read(desc->profile, net, plan));
    if (rv_plan_mixes(desc) && plan->spill == 0 && rv_h5_available()) {
        plan->cached = rv_plan_cached(desc);
        TRY(rv_cost_disk(desc->cost.train->scratch, false, &plan->spill));
    }
    if (desc->profile || costs_idle(desc)) goto out;
    TRY(rv_cost_transport(&plan->latency, &plan->bandwidth));
    /* Blocks tell where to cut; smaller cuts are looked for where memory is short. */
    if (desc->bare && !cuts_open(desc)) goto out;
    TRY(rv_alloc((size_t)net->block_count + 1, sizeof *first, "cuts", &first));
    memcpy(first, net->block_first, sizeof *first * (size_t)net->block_count);
    first[net->block_count] = net->layer_count;
    points_choose(desc, &plan->blocks);
    TRY(points_measure(desc, first, net->block_count, &plan->blocks));
out:
    rv_free(first);
    return status;
}

/* The fastest cuts cannot be run within the memory: those that take least may. Costs are measured
 * anew, for the stages are others. */
static rv_status seek_smaller(const rv_plan_desc *desc, rv_plan_search *s, rv_cost_points *points,
                              rv_plan *plan) {
    rv_status status = RV_OK;
    int *first = NULL;
    const size_t size = sizeof *first * ((size_t)plan->stages + 1);
    rv_error fault = *rv_error_get();
    const double least = plan->searched.least;
    TRY(rv_alloc((size_t)plan->stages + 1, sizeof *first, "cuts", &first));
    TRY(rv_plan_smallest_cuts(s, &plan->blocks, first));
    if (memcmp(first, plan->first, size) == 0) goto nothing;
    memcpy(plan->first, first, size);
    points_finish(points);
    TRY(stages_cost(desc, plan, points));
    status = (s->delay ? rv_plan_seek_endless : rv_plan_seek)(s, plan);
    if (status != RV_RESOURCE || plan->searched.least <= least) goto out;
nothing:
    status = rv_fail(RV_RESOURCE, "%s", fault.message);
out:
    rv_free(first);
    return status;
}

/* Of a step; what an endless order has told of itself stays. */
void rv_plan_tell(rv_plan *plan) {
    const rv_forecast *forecast = &plan->schedule.forecast;
    if (plan->delay.mode) return;
    plan->step = plan->until = forecast->total;
    plan->bubble = plan->expected = forecast->bubble;
    for (int i = 0; i < plan->stages; i++) {
        const rv_part_cost *cost = &plan->stage[i].cost;
        plan->stage[i].busy =
            (plan->micros * (cost->f + cost->b + cost->w) + cost->u) / forecast->total;
    }
}

/* In an endless order the busiest stage has nothing to wait for. */
static rv_status sum_up(const rv_plan_desc *desc, rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    rv_costs costs;
    double busiest = 0;
    for (int i = 0; i < plan->stages; i++) {
        const rv_part_cost *cost = &plan->stage[i].cost;
        double own = plan->micros * (cost->f + cost->b + cost->w) + cost->u;
        plan->serial += own;
        busiest = fmax(busiest, own);
        if (desc->cost.train->clip_norm > 0) plan->serial += cost->norm;
    }
    rv_plan_tell(plan);
    TRY(rv_plan_costs(s, plan->chunks, &costs));
    if (!s->delay) TRY(rv_schedule_expect(&plan->schedule, costs, &plan->expected));
    TRY(rv_schedule_bound(plan->stages, plan->micros, plan->chunks, &costs, &plan->bound));
    if (s->delay) plan->bound = fmax(busiest, plan->ranks.period);
    TRY(rv_plan_rivals(s, plan));
out:
    return status;
}

/* What the plan keeps of the policies it was made with. */
static rv_status tape_tell(const rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    size_t layers = (size_t)s->desc->cost.net->layer_count;
    const rv_range whole = rv_net_range(s->desc->cost.net, 0, (int)layers);
    if (!rv_tape_has(&whole, s->tape, RV_TAPE_RECOMPUTE) &&
        !rv_tape_has(&whole, s->tape, RV_TAPE_SPILL))
        goto out;
    TRY(rv_alloc(layers, sizeof *plan->tape, "policies of tapes", &plan->tape));
    memcpy(plan->tape, s->tape, layers);
out:
    return status;
}

double rv_plan_mix_gain(const rv_plan *plan) {
    const double gain = plan->mixed_bound > 0 ? plan->step / plan->mixed_bound - 1 : 0;
    return gain > 1e-6 ? gain : 0; /* less is rounding */
}

const char *rv_plan_tape(const rv_plan *plan, int stage) {
    static const char *const words[] = {"keep", "recompute", "spill"};
    int first = plan->first[stage], last = plan->first[stage + 1];
    for (int l = first; plan->tape && l < last; l++)
        if (plan->tape[l] != plan->tape[first]) return "mixed";
    return words[plan->tape ? plan->tape[first] : RV_TAPE_KEEP];
}

rv_status rv_plan_make(const rv_plan_desc *desc, rv_plan *out) {
    rv_status status = RV_OK;
    const rv_net *net = desc->cost.net;
    rv_plan plan = {.stages = desc->stages,
                    .workers = desc->workers ? desc->workers : desc->stages,
                    .micros = desc->cost.train->micro_batches};
    rv_cost_points points = {0};
    rv_plan_search s = {0};
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
    TRY(rv_plan_search_init(&s, desc, &plan, &points));
    if (desc->file) {
        TRY(file_read(desc, &s, &plan));
    } else {
        status = (s.delay ? rv_plan_seek_endless : rv_plan_seek)(&s, &plan);
        if (status == RV_RESOURCE && cuts_open(desc))
            status = seek_smaller(desc, &s, &points, &plan);
        TRY(status);
    }
    TRY(sum_up(desc, &s, &plan));
    if (costs_idle(desc)) plan.serial = 0;
    TRY(tape_tell(&s, &plan));
    *out = plan;
    plan = (rv_plan){0};
out:
    rv_plan_search_finish(&s);
    points_finish(&points);
    rv_plan_finish(&plan);
    return status;
}

void rv_plan_finish(rv_plan *plan) {
    for (int s = 0; plan->stage && s < plan->stages; s++)
        rv_account_finish(&plan->stage[s].account);
    rv_free(plan->tape);
    rv_free(plan->rivals);
    points_finish(&plan->blocks);
    rv_free(plan->stage);
    rv_schedule_finish(&plan->schedule);
    rv_ranks_finish(&plan->ranks);
    rv_free(plan->first);
    *plan = (rv_plan){0};
}
