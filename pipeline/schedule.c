/*
 * Schedules: memory, and every check that follows from the order of the lists alone: unknown,
 * doubled and missing items, lists that contradict themselves, versions, tapes. What needs the
 * lists to run against each other is in simulate.c. Each check is one walk over the items and finds
 * what it asks for by number, so that plans of a hundred thousand items are checked in milliseconds
 * and the planner can afford to try many.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/schedule_index.h"
#include "snn/snn.h"

/* ---- memory ----------------------------------------------------------------------------- */

rv_status rv_schedule_init(rv_schedule *schedule, int stages, int micros, int chunks, bool fused,
                           size_t count) {
    rv_status status = RV_OK;
    *schedule = (rv_schedule){
        .stages = stages, .micros = micros, .chunks = chunks, .fused = fused, .workers = stages};
    if (stages < 1 || micros < 1 || chunks < 1 || stages > RV_STAGES_MOST ||
        chunks > RV_CHUNKS_MOST)
        FAIL(RV_CONFIG,
             "schedule: %d stages, %d micro-batches, %d chunks: each at least 1, at most %d stages "
             "and %d chunks",
             stages, micros, chunks, RV_STAGES_MOST, RV_CHUNKS_MOST);
    size_t cells;
    TRY(rv_size_mul((size_t)stages * (size_t)chunks, (size_t)micros, &cells));
    /* Numbers of items, updates and groups are ints: leave room for all of them. */
    if (cells > INT32_MAX / 8 || count > INT32_MAX / 2)
        FAIL(RV_CONFIG, "schedule: %zu items are more than one plan can hold", cells);
    if (count == 0) count = cells * (fused ? 2 : 3);
    TRY(rv_alloc(count, sizeof *schedule->items, "the items of a schedule", &schedule->items));
    TRY(rv_alloc((size_t)stages + 1, sizeof(int), "the lists of a schedule", &schedule->first));
    for (int s = 0; s <= stages; s++)
        schedule->first[s] = (int)(count / (size_t)stages) * s;
out:
    if (status) rv_schedule_finish(schedule);
    return status;
}

/* A schedule is simulated again and again while it is edited: only the latest forecast is kept. */
static void forecast_finish(rv_forecast *forecast) {
    rv_free(forecast->peak_steps);
    rv_free(forecast->peak);
    rv_free(forecast->end);
    rv_free(forecast->start);
    *forecast = (rv_forecast){0};
}

void rv_schedule_finish(rv_schedule *schedule) {
    if (!schedule) return;
    forecast_finish(&schedule->forecast);
    rv_free(schedule->first);
    rv_free(schedule->items);
    *schedule = (rv_schedule){0};
}

int rv_schedule_updates(const rv_schedule *schedule) {
    return schedule->group > 0 ? (schedule->micros - 1) / schedule->group + 1 : 0;
}

/* ---- flaws ------------------------------------------------------------------------------ */

const char *rv_flaw_name(rv_flaw_kind kind) {
    static const char *const names[RV_FLAW_KINDS] = {
        "none",     "unknown",    "missing",          "doubled",
        "deadlock", "memory_cap", "version_not_kept", "version_not_pinned"};
    return names[kind];
}

const char *rv_cause_name(rv_flaw_cause cause) {
    static const char *const names[RV_CAUSES] = {"none", "order_in_stage", "across_stages",
                                                 "slots"};
    return names[cause];
}

/* In words a person can act on: which item of which list, and what it lacks. */
rv_status rv_flaw_fail(const rv_schedule *schedule, const rv_flaw *flaw) {
    static const char *const why[RV_CAUSES] = {"", "this list contradicts itself",
                                               "the lists contradict each other",
                                               "it would run with more slots"};
    char item[RV_WORK_TEXT], needs[RV_WORK_TEXT];
    rv_work_print(&flaw->item, flaw->item.stage, item);
    rv_work_print(&flaw->needs, flaw->needs.stage, needs);
    int s = flaw->item.stage, place = flaw->position + 1;
    switch (flaw->kind) {
    case RV_FLAW_UNKNOWN:
        return rv_fail(RV_CONFIG,
                       "schedule: worker %d, item %d: %s of stage %d does not belong there (%d "
                       "stages, %d micro-batches, %d chunks, %d updates, items %s)",
                       flaw->worker, place, item, s, schedule->stages, schedule->micros,
                       schedule->chunks, rv_schedule_updates(schedule),
                       schedule->fused ? "F and BW" : "F, B and W");
    case RV_FLAW_MISSING:
        return rv_fail(RV_CONFIG, "schedule: %s of stage %d is missing", item, s);
    case RV_FLAW_DOUBLED:
        return rv_fail(RV_CONFIG, "schedule: %s of stage %d stands again as item %d of worker %d",
                       item, s, place, flaw->worker);
    case RV_FLAW_DEADLOCK:
        return rv_fail(RV_CONFIG,
                       "schedule: deadlock: %s of stage %d (worker %d, item %d) waits for %s of "
                       "stage %d; %s%s%s",
                       item, s, flaw->worker, place, needs, flaw->needs.stage, why[flaw->cause],
                       *flaw->circle ? ": " : "", flaw->circle);
    case RV_FLAW_MEMORY_CAP:
        return rv_fail(RV_CONFIG, "schedule: stage %d holds %d chunks at %s, allowed are %d", s,
                       flaw->held, item, flaw->limit);
    case RV_FLAW_VERSION_NOT_KEPT:
        return rv_fail(RV_CONFIG,
                       "schedule: %s of stage %d: after %d updates the stage holds its newest %d "
                       "versions",
                       item, s, flaw->held, flaw->limit);
    case RV_FLAW_VERSION_NOT_PINNED:
        return rv_fail(RV_CONFIG, "schedule: %s of stage %d: its micro-batch began as %s", item, s,
                       needs);
    default:
        return rv_fail(RV_INTERNAL, "schedule: no flaw");
    }
}

/* Fill the flaw for the item at `position` of `items` and put it into words. */
static rv_status flaw_at(const rv_schedule *schedule, rv_flaw *flaw, rv_flaw_kind kind, int worker,
                         int position) {
    flaw->kind = kind;
    flaw->item = schedule->items[position];
    flaw->worker = worker;
    flaw->position = position - schedule->first[worker];
    return rv_flaw_fail(schedule, flaw);
}

/* ---- index: unknown, doubled, missing --------------------------------------------------- */

int rv_chunk_steps(const rv_costs *costs, int chunks, int c) {
    if (costs->chunk_steps) return costs->chunk_steps[c];
    if (!costs->steps) return 1;
    return rv_cut(c + 1, chunks, costs->steps) - rv_cut(c, chunks, costs->steps);
}

void rv_chunk_shares(const rv_costs *costs, int chunks, double *share) {
    double sum = 0;
    for (int c = 0; c < chunks; c++)
        sum += share[c] = rv_chunk_steps(costs, chunks, c);
    for (int c = 0; c < chunks; c++)
        share[c] /= sum;
}

double rv_item_cost(const rv_costs *costs, const double *share, rv_work_kind kind, int stage,
                    int chunk) {
    const double *const whole[] = {costs->f, costs->b, costs->w};
    if (kind == RV_WORK_BW)
        return rv_item_cost(costs, share, RV_WORK_B, stage, chunk) +
               rv_item_cost(costs, share, RV_WORK_W, stage, chunk);
    if (kind == RV_WORK_U) return costs->u ? costs->u[stage] : 0;
    if (kind == RV_WORK_NORM) return costs->norm ? costs->norm[stage] : 0;
    const double once = costs->once[kind] ? costs->once[kind][stage] : 0;
    return (whole[kind][stage] - once) * share[chunk] + (chunk == 0 ? once : 0);
}

double rv_item_time(const rv_costs *costs, const double *share, const rv_work *x) {
    const uint32_t counter[4] = {x->stage, x->kind, (uint32_t)x->micro, x->chunk};
    const double cost = rv_item_cost(costs, share, x->kind, x->stage, x->chunk);
    uint32_t out[4];
    if (costs->draw == 0) return cost;
    rv_philox(out, counter, costs->draw);
    return cost * (1 - costs->scatter[x->stage] * (1 + log1p(-(double)rv_uniform(out[0]))));
}

static void index_finish(rv_index *index) {
    rv_free(index->share);
    rv_free(index->home);
    rv_free(index->at);
}

static rv_status index_init(rv_index *index, const rv_schedule *schedule, const rv_costs *costs) {
    rv_status status = RV_OK;
    index->updates = rv_schedule_updates(schedule);
    index->cells = schedule->stages * schedule->micros * schedule->chunks;
    int per_stage = schedule->stages * index->updates;
    const int size[RV_WORK_KINDS] = {
        [RV_WORK_F] = index->cells,
        [RV_WORK_B] = schedule->fused ? 0 : index->cells,
        [RV_WORK_W] = schedule->fused ? 0 : index->cells,
        [RV_WORK_BW] = schedule->fused ? index->cells : 0,
        [RV_WORK_U] = per_stage,
        [RV_WORK_NORM] = schedule->norm ? per_stage : 0,
    };
    for (int kind = 0; kind < RV_WORK_KINDS; kind++) {
        index->base[kind] = size[kind] ? index->count : -1;
        index->count += size[kind];
    }
    TRY(rv_alloc((size_t)index->count, sizeof *index->at, "the index of a schedule", &index->at));
    TRY(rv_alloc((size_t)schedule->stages, sizeof *index->home, "the stages of a schedule",
                 &index->home));
    TRY(rv_alloc((size_t)schedule->chunks, sizeof *index->share, "the chunks of a schedule",
                 &index->share));
    for (int i = 0; i < index->count; i++)
        index->at[i] = -1;
    rv_chunk_shares(costs, schedule->chunks, index->share);
out:
    return status;
}

/* Lists may come from a file, so nothing about an item is taken for granted before this. */
static bool in_grid(const rv_index *index, const rv_schedule *schedule, const rv_work *work) {
    if (work->kind >= RV_WORK_KINDS || index->base[work->kind] < 0) return false;
    bool update = work->kind >= RV_WORK_U;
    return work->stage < schedule->stages && work->micro >= 0 &&
           work->micro < (update ? index->updates : schedule->micros) &&
           work->chunk < (update ? 1 : schedule->chunks);
}

/* The item with this number. */
static rv_work item_of(const rv_index *index, const rv_schedule *schedule, int number) {
    int kind = RV_WORK_KINDS - 1;
    while (index->base[kind] < 0 || index->base[kind] > number)
        kind--;
    bool update = kind >= RV_WORK_U;
    int chunks = update ? 1 : schedule->chunks;
    int micros = update ? index->updates : schedule->micros;
    int rest = number - index->base[kind];
    return (rv_work){.kind = (uint8_t)kind,
                     .version = RV_NO_VERSION,
                     .chunk = (uint16_t)(rest % chunks),
                     .micro = rest / chunks % micros,
                     .stage = (uint16_t)(rest / chunks / micros)};
}

/* Slots count messages and versions count updates in the order of one list: a stage that lies in
 * several can have neither. */
static rv_status index_fill(rv_index *index, const rv_schedule *schedule, rv_flaw *flaw) {
    enum { UNSEEN = -2 };
    for (int s = 0; s < schedule->stages; s++)
        index->home[s] = UNSEEN;
    for (int k = 0; k < schedule->workers; k++) {
        for (int p = schedule->first[k]; p < schedule->first[k + 1]; p++) {
            const rv_work *work = &schedule->items[p];
            if (!in_grid(index, schedule, work))
                return flaw_at(schedule, flaw, RV_FLAW_UNKNOWN, k, p);
            int *home = &index->home[work->stage];
            if (*home == UNSEEN) *home = k;
            if (*home != k) *home = -1;
            if (*home < 0 && (schedule->slots > 0 || schedule->kept > 0))
                return flaw_at(schedule, flaw, RV_FLAW_UNKNOWN, k, p);
            int *at = &index->at[rv_index_number(index, schedule, work->kind, work->stage,
                                                 work->micro, work->chunk)];
            if (*at >= 0) return flaw_at(schedule, flaw, RV_FLAW_DOUBLED, k, p);
            *at = p;
        }
    }
    for (int i = 0; i < index->count; i++)
        if (index->at[i] < 0) {
            flaw->kind = RV_FLAW_MISSING;
            flaw->item = item_of(index, schedule, i);
            flaw->worker = flaw->position = -1;
            return rv_flaw_fail(schedule, flaw);
        }
    return RV_OK;
}

/* ---- order in a list -------------------------------------------------------------------- */

/* Position of an item of the same stage that must come before the one at p and stands later in the
 * list that ends before `end`; -1: none. Direct needs suffice: whatever one stage's items need of
 * each other through other stages they also need through their own chain of chunks. */
static int later_need(const rv_index *index, const rv_schedule *schedule, int p, int end) {
    const rv_work *x = &schedule->items[p];
    const int b = rv_schedule_b(schedule), w = rv_schedule_w(schedule);
    const int s = x->stage, m = x->micro, c = x->chunk;
    int q = -1;
    if (x->kind == RV_WORK_F) {
        if (c > 0) q = rv_index_at(index, schedule, RV_WORK_F, s, m, c - 1);
    } else if (x->kind == b) {
        q = rv_index_at(index, schedule, RV_WORK_F, s, m, c);
        if (c + 1 < schedule->chunks && (q < p || q >= end))
            q = rv_index_at(index, schedule, b, s, m, c + 1);
    } else if (x->kind == RV_WORK_W) {
        q = rv_index_at(index, schedule, b, s, m, c);
    } else {
        for (int i = m * schedule->group; i < rv_group_end(schedule, m); i++)
            for (int k = 0; k < schedule->chunks; k++) {
                q = rv_index_at(index, schedule, w, s, i, k);
                if (q > p && q < end) return q;
            }
        if (x->kind == RV_WORK_U && schedule->norm)
            q = rv_index_at(index, schedule, RV_WORK_NORM, s, m, 0);
    }
    return q > p && q < end ? q : -1;
}

/* Before the run, because a list that cannot run by itself is the clearest thing to report: the run
 * would only show that everything stands still. */
static rv_status check_order(const rv_index *index, const rv_schedule *schedule, rv_flaw *flaw) {
    for (int k = 0; k < schedule->workers; k++) {
        int end = schedule->first[k + 1];
        for (int p = schedule->first[k]; p < end; p++) {
            int q = later_need(index, schedule, p, end);
            if (q < 0) continue;
            flaw->cause = RV_CAUSE_ORDER_IN_STAGE;
            flaw->needs = schedule->items[q];
            return flaw_at(schedule, flaw, RV_FLAW_DEADLOCK, k, p);
        }
    }
    return RV_OK;
}

/* ---- versions --------------------------------------------------------------------------- */

/* An update may fall between the first and the last chunk of a micro-batch; without a pin one
 * sequence would run under two sets of weights. The first item of a micro-batch at a stage sets the
 * pin; going back sets another one only where backward sees the newest.
 * pins: [2][S*M] positions + 1 of the item that pinned forward and backward, zeroed. */
static rv_status check_version(const rv_schedule *schedule, int *pins, int updates, int k, int p,
                               rv_flaw *flaw) {
    const rv_work *x = &schedule->items[p];
    bool reads = x->kind == RV_WORK_F || x->kind == rv_schedule_b(schedule);
    if (x->version == RV_NO_VERSION) /* W reads no weights: it need not say */
        return schedule->kept && reads ? flaw_at(schedule, flaw, RV_FLAW_UNKNOWN, k, p) : RV_OK;
    flaw->held = updates;
    flaw->limit = schedule->kept;
    if (x->version < 0 || x->version > updates || x->version <= updates - schedule->kept)
        return flaw_at(schedule, flaw, RV_FLAW_VERSION_NOT_KEPT, k, p);
    int *pin = &pins[x->stage * schedule->micros + x->micro];
    if (schedule->newest && x->kind != RV_WORK_F) pin += schedule->stages * schedule->micros;
    if (*pin == 0) *pin = p + 1;
    if (schedule->items[*pin - 1].version == x->version) return RV_OK;
    flaw->needs = schedule->items[*pin - 1];
    return flaw_at(schedule, flaw, RV_FLAW_VERSION_NOT_PINNED, k, p);
}

/* How many updates are done when an item runs is its place among the U of its stage's list. */
static rv_status check_versions(const rv_schedule *schedule, rv_flaw *flaw) {
    rv_status status = RV_OK;
    int *pins = NULL, *updates = NULL;
    TRY(rv_alloc(2 * (size_t)schedule->stages * (size_t)schedule->micros, sizeof *pins,
                 "the versions of a schedule", &pins));
    TRY(rv_alloc((size_t)schedule->stages, sizeof *updates, "the versions of a schedule",
                 &updates));
    for (int k = 0; k < schedule->workers; k++)
        for (int p = schedule->first[k]; p < schedule->first[k + 1]; p++) {
            const rv_work *x = &schedule->items[p];
            if (x->kind < RV_WORK_U)
                TRY(check_version(schedule, pins, updates[x->stage], k, p, flaw));
            updates[x->stage] += x->kind == RV_WORK_U;
        }
out:
    rv_free(updates);
    rv_free(pins);
    return status;
}

/* ---- tapes ------------------------------------------------------------------------------ */

/* Peaks of the stages that lie in one list: they follow from its order. A tape is held from the
 * start of F to the end of the item with W in it. The walk goes on after the cap is exceeded: the
 * peak tells by how much. */
static rv_status check_tapes(const rv_index *index, rv_schedule *schedule, const rv_costs *costs,
                             rv_flaw *flaw) {
    rv_status status = RV_OK;
    rv_flaw first = {0};
    int *held = NULL, *steps = NULL;
    TRY(rv_alloc((size_t)schedule->stages, sizeof *held, "the tapes of a schedule", &held));
    TRY(rv_alloc((size_t)schedule->stages, sizeof *steps, "the tapes of a schedule", &steps));
    for (int k = 0; k < schedule->workers; k++)
        for (int p = schedule->first[k]; p < schedule->first[k + 1]; p++) {
            const rv_work *x = &schedule->items[p];
            int s = x->stage, size = rv_chunk_steps(costs, schedule->chunks, x->chunk);
            if (index->home[s] < 0) continue;
            if (x->kind == rv_schedule_w(schedule)) held[s]--, steps[s] -= size;
            if (x->kind != RV_WORK_F) continue;
            held[s]++, steps[s] += size;
            rv_forecast *forecast = &schedule->forecast;
            if (held[s] > forecast->peak[s]) forecast->peak[s] = held[s];
            if (steps[s] > forecast->peak_steps[s]) forecast->peak_steps[s] = steps[s];
            if (first.kind || !costs->cap || held[s] <= costs->cap[s]) continue;
            first = (rv_flaw){.kind = RV_FLAW_MEMORY_CAP,
                              .item = *x,
                              .worker = k,
                              .position = p - schedule->first[k],
                              .held = held[s],
                              .limit = costs->cap[s]};
        }
    if (first.kind) {
        *flaw = first;
        TRY(rv_flaw_fail(schedule, flaw));
    }
out:
    rv_free(steps);
    rv_free(held);
    return status;
}

/* ---- all together ----------------------------------------------------------------------- */

static bool good(const double *value, int n) {
    for (int i = 0; value && i < n; i++)
        if (!(value[i] >= 0) || !isfinite(value[i])) return false;
    return true;
}

/* Measured costs pass through here too: a time that is no number would spoil every later one. */
static rv_status check_costs(const rv_schedule *schedule, const rv_costs *costs) {
    int n = schedule->stages;
    if (!good(costs->f, n) || !good(costs->b, n) || !good(costs->w, n) || !good(costs->u, n) ||
        !good(costs->norm, n) || !good(&costs->latency, 1))
        return rv_fail(RV_CONFIG, "schedule: costs must be finite and not negative");
    const double *const whole[] = {costs->f, costs->b, costs->w};
    for (int k = RV_WORK_F; k <= RV_WORK_W; k++)
        for (int s = 0; costs->once[k] && s < n; s++)
            if (!(costs->once[k][s] >= 0 && costs->once[k][s] <= whole[k][s]))
                return rv_fail(RV_CONFIG, "schedule: what stage %d does once costs more than all",
                               s);
    for (int c = 0; costs->chunk_steps && c < schedule->chunks; c++)
        if (costs->chunk_steps[c] < 1)
            return rv_fail(RV_CONFIG, "schedule: chunk %d has %d steps", c, costs->chunk_steps[c]);
    if (costs->steps < 0 || (costs->steps > 0 && costs->steps < schedule->chunks))
        return rv_fail(RV_CONFIG, "schedule: %d chunks of %d steps", schedule->chunks,
                       costs->steps);
    if (schedule->slots < 0 || schedule->kept < 0 || schedule->group < 0)
        return rv_fail(RV_CONFIG, "schedule: slots %d, versions %d, group %d: none below 0",
                       schedule->slots, schedule->kept, schedule->group);
    return RV_OK;
}

rv_status rv_schedule_simulate(rv_schedule *schedule, const rv_costs *costs, rv_flaw *flaw) {
    rv_status status = RV_OK;
    rv_index index = {0};
    rv_flaw own;
    if (!flaw) flaw = &own;
    *flaw = (rv_flaw){.worker = -1, .position = -1};
    rv_forecast *forecast = &schedule->forecast;
    forecast_finish(forecast);
    TRY(check_costs(schedule, costs));
    size_t count = (size_t)rv_schedule_count(schedule), stages = (size_t)schedule->stages;
    TRY(rv_alloc(count, sizeof(double), "the timeline of a schedule", &forecast->start));
    TRY(rv_alloc(count, sizeof(double), "the timeline of a schedule", &forecast->end));
    TRY(rv_alloc(stages, sizeof(int), "the peaks of a schedule", &forecast->peak));
    TRY(rv_alloc(stages, sizeof(int), "the peaks of a schedule", &forecast->peak_steps));
    forecast->makespan = forecast->total = forecast->bubble = NAN;
    TRY(index_init(&index, schedule, costs));
    TRY(index_fill(&index, schedule, flaw));
    TRY(check_order(&index, schedule, flaw));
    TRY(check_versions(schedule, flaw));
    TRY(check_tapes(&index, schedule, costs, flaw));
    TRY(rv_schedule_run(schedule, costs, &index, flaw));
out:
    index_finish(&index);
    return status;
}
