/*
 * How long a plan takes, for every schedule the search looks at, and with which policies of tapes
 * it takes least.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/mix.h"
#include "pipeline/plan_search.h"

/* Where bytes are weighed at many counts of chunks: all up to CHUNKS_ALL, above it in steps of one
 * in CHUNKS_ALL / 2. EFFORT items are planned and simulated in about a second. */
enum { CHUNKS_ALL = 1024, EFFORT = 8000000, EFFORT_RIVAL = EFFORT / 16 };

/* ---- search ----------------------------------------------------------------------------- */

rv_status rv_plan_costs(void *search, int chunks, rv_costs *costs) {
    rv_status status = RV_OK;
    rv_plan_search *s = search;
    for (int i = 0; i < s->stages; i++) {
        rv_part_cost cost;
        TRY(rv_plan_cost(s, i, chunks, &cost));
        s->f[i] = cost.f, s->b[i] = cost.b, s->w[i] = cost.w;
        s->u[i] = cost.u, s->norm[i] = cost.norm, s->scatter[i] = cost.scatter;
        for (int k = RV_WORK_F; k <= RV_WORK_W; k++)
            s->once[k][i] = cost.once[k];
    }
    *costs = (rv_costs){.f = s->f,
                        .b = s->b,
                        .w = s->w,
                        .once = {s->once[RV_WORK_F], s->once[RV_WORK_B], s->once[RV_WORK_W]},
                        .u = s->u,
                        .norm = s->norm,
                        .steps = s->steps,
                        .latency = s->latency,
                        .scatter = s->scatter};
out:
    return status;
}

void rv_plan_search_finish(rv_plan_search *s) {
    rv_free(s->units);
    rv_free(s->layers);
    rv_free(s->spilled);
    rv_free(s->policy);
    rv_free(s->f);
    *s = (rv_plan_search){0};
}

rv_status rv_plan_search_init(rv_plan_search *s, const rv_plan_desc *desc, const rv_plan *plan,
                              const rv_cost_points *points) {
    rv_status status = RV_OK;
    size_t n = (size_t)plan->stages;
    *s = (rv_plan_search){.desc = desc,
                          .points = points,
                          .first = plan->first,
                          .stages = plan->stages,
                          .workers = plan->workers,
                          .micros = plan->micros,
                          .steps = desc->cost.net->desc->steps,
                          .latency = plan->latency,
                          .tape = desc->cost.train->tape,
                          .spill = plan->spill,
                          .paces = {plan->spill, plan->spill},
                          .cached = plan->cached,
                          .delay = desc->delay && desc->delay->mode ? desc->delay : NULL,
                          .idle = desc->stages * desc->cost.threads < rv_host_threads()};
    TRY(rv_alloc((6 + RV_WORK_BW) * n, sizeof *s->f, "costs", &s->f));
    s->b = s->f + n, s->w = s->b + n, s->u = s->w + n, s->norm = s->u + n;
    s->scatter = s->norm + n;
    for (int k = RV_WORK_F; k <= RV_WORK_W; k++)
        s->once[k] = s->scatter + ((size_t)k + 1) * n;
    TRY(rv_plan_units_create(s));
    if (!rv_plan_mixes(desc)) goto out;
    TRY(rv_alloc(n, sizeof *s->policy, "policies of tapes", &s->policy));
    TRY(rv_alloc(n, sizeof *s->spilled, "policies of tapes", &s->spilled));
    TRY(rv_alloc((size_t)desc->cost.net->layer_count, sizeof *s->layers, "policies of tapes",
                 &s->layers));
out:
    return status;
}

/* Numbers of chunks to choose from: all, or `some`. list: [steps + 1]. */
static int chunks_list(const rv_plan_search *s, bool some, int *list) {
    int most = s->steps < RV_CHUNKS_MOST ? s->steps : RV_CHUNKS_MOST, count = 0;
    if (!s->desc->chunks_auto) {
        list[count++] = s->desc->cost.train->chunks;
        return count;
    }
    if (rv_net_check_chunks(s->desc->cost.net, 2) != RV_OK) most = 1;
    for (int c = 1; c < most; c += some && c >= CHUNKS_ALL ? c / (CHUNKS_ALL / 2) : 1)
        list[count++] = c;
    list[count++] = most;
    return count;
}

static rv_status search_once(rv_plan_search *s, const int *chunks, int count,
                             const rv_generator *generator, int effort, double limit,
                             rv_schedule *best, rv_searched *searched) {
    const rv_search search = {.stages = s->stages,
                              .micros = s->micros,
                              .chunks = chunks,
                              .chunk_count = count,
                              .slots = s->desc->slots,
                              .norm = s->desc->cost.train->clip_norm > 0,
                              .generator = generator,
                              .costs = rv_plan_costs,
                              .bytes = rv_plan_bytes_of,
                              .memory = s->desc->memory,
                              .caps = s->desc->memory > 0 ? rv_plan_caps : NULL,
                              .limit = isfinite(limit) ? limit : 0,
                              .effort = effort,
                              .context = s};
    return rv_schedule_search(&search, best, searched);
}

/* ---- policies of tapes ------------------------------------------------------------------ */

/* A stage at a number of chunks under a policy. What a stage weighs depends on its own alone, so
 * all mixes are sums of these. */
typedef struct cell {
    double bytes, record; /* one chunk of tapes more */
    double work;          /* seconds of a step */
} cell;

typedef struct mixing {
    rv_plan_search *search;
    const int *chunks;
    int count, policies;
    cell *cells;   /* [count][stages][policies] */
    double *base;  /* [count] bytes that no stage has */
    int *cap;      /* [stages] of a policy */
    double *floor; /* [count] no mix makes the step shorter: that of tapes that are all kept */
    double left;   /* the least that may have been missed for want of effort; INFINITY: none */
    double least;  /* bytes: the least that was met */
} mixing;

static void policy_set(rv_plan_search *s, const uint8_t *policy) {
    double bytes = 0;
    memmove(s->policy, policy, (size_t)s->stages);
    for (int i = 0; i < s->stages; i++) {
        bytes += policy[i] == RV_TAPE_SPILL ? s->spilled[i] : 0;
        memset(s->layers + s->first[i], policy[i], (size_t)(s->first[i + 1] - s->first[i]));
    }
    s->tape = s->layers;
    s->spill = s->paces[bytes > s->cached];
}

/* What the disk has to take. Only where all that could be spilled is too much for the system's
 * memory the medium is measured. */
static rv_status disk_find(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    double all = 0;
    if (plan->spill <= 0) goto out;
    memset(s->policy, RV_TAPE_SPILL, (size_t)s->stages);
    policy_set(s, s->policy);
    for (int i = 0; i < s->stages; i++) {
        TRY(rv_plan_spilled(s, i, 1, &s->spilled[i]));
        all += s->spilled[i] *= s->micros;
    }
    if (all > s->cached && plan->sustained == 0)
        TRY(rv_cost_disk(s->desc->cost.train->scratch, true, &plan->sustained));
    s->paces[1] = plan->sustained > 0 ? fmin(plan->spill, plan->sustained) : plan->spill;
out:
    return status;
}

static cell *cell_of(const mixing *it, int k, int stage) {
    return &it->cells[((size_t)k * (size_t)it->search->stages + (size_t)stage) *
                      (size_t)it->policies];
}

/* cap: [stages], or NULL. */
static rv_status floor_of(rv_plan_search *s, int chunks, const int *cap, double *floor) {
    rv_costs costs;
    rv_status status = rv_plan_costs(s, chunks, &costs);
    if (status != RV_OK) return status;
    costs.cap = cap;
    return rv_schedule_floor(s->stages, s->micros, chunks, &costs,
                             s->desc->cost.train->clip_norm > 0, floor);
}

/* One policy for all stages at a time; with as few slots as there can be. */
static rv_status mix_weigh(mixing *it) {
    rv_status status = RV_OK;
    rv_plan_search *s = it->search;
    const int slots = s->desc->slots ? s->desc->slots : 1;
    const size_t stages = (size_t)s->stages, rows = (size_t)it->count * stages;
    rv_plan_stage *stage = NULL;
    uint8_t *policy = NULL;
    TRY(rv_alloc(stages, sizeof *stage, "stages", &stage));
    TRY(rv_alloc(stages, sizeof *policy, "policies of tapes", &policy));
    TRY(rv_alloc(rows * (size_t)it->policies, sizeof *it->cells, "policies of tapes", &it->cells));
    TRY(rv_alloc(stages, sizeof *it->cap, "policies of tapes", &it->cap));
    TRY(rv_alloc((size_t)it->count, sizeof *it->base, "policies of tapes", &it->base));
    TRY(rv_alloc((size_t)it->count, sizeof *it->floor, "policies of tapes", &it->floor));
    for (int p = 0; p < it->policies; p++) {
        memset(policy, p, stages);
        policy_set(s, policy);
        s->spill = s->paces[0]; /* a mix may spill less than all stages together */
        for (int k = 0; k < it->count; k++) {
            double bytes;
            TRY(rv_plan_weigh(s, it->chunks[k], slots, NULL, stage, &bytes));
            if (p == RV_TAPE_KEEP) TRY(floor_of(s, it->chunks[k], NULL, &it->floor[k]));
            it->base[k] = rv_plan_base_bytes(s, it->chunks[k], slots);
            for (int i = 0; i < s->stages; i++) {
                rv_part_cost cost;
                TRY(rv_plan_cost(s, i, it->chunks[k], &cost));
                cell_of(it, k, i)[p] = (cell){rv_plan_stage_bytes(&stage[i]), stage[i].bytes.record,
                                              s->micros * (cost.f + cost.b + cost.w)};
            }
        }
    }
out:
    rv_free(policy);
    rv_free(stage);
    return status;
}

static double mix_bytes(const mixing *it, const uint8_t *policy, int k) {
    double bytes = it->base[k];
    for (int i = 0; i < it->search->stages; i++)
        bytes += cell_of(it, k, i)[policy[i]].bytes;
    return bytes;
}

/* INFINITY: it does not fit at these chunks. */
static double guess_at(mixing *it, const uint8_t *policy, int k) {
    double bytes = mix_bytes(it, policy, k), least = it->floor[k];
    for (int i = 0; i < it->search->stages; i++)
        least = fmax(least, cell_of(it, k, i)[policy[i]].work);
    it->least = fmin(it->least, bytes);
    return bytes > it->search->desc->memory ? INFINITY : least;
}

/* The best number of chunks. -1: it fits at none. */
static int guess_best(mixing *it, const uint8_t *policy, double *seconds) {
    int best = -1;
    *seconds = INFINITY;
    for (int k = 0; k < it->count; k++) {
        const double guess = guess_at(it, policy, k);
        if (guess < *seconds) *seconds = guess, best = k;
    }
    return best;
}

/* The policy is set and fits. */
static rv_status mix_floor(const mixing *it, int k, double *seconds) {
    rv_plan_search *s = it->search;
    const double left = s->desc->memory - mix_bytes(it, s->policy, k);
    for (int i = 0; i < s->stages; i++)
        it->cap[i] = rv_plan_cap(s, it->chunks[k], left, cell_of(it, k, i)[s->policy[i]].record);
    return floor_of(s, it->chunks[k], it->cap, seconds);
}

/* The busiest stage alone, and none faster than if all were kept. */
static rv_status mix_guess(void *context, const uint8_t *policy, double *seconds) {
    guess_best(context, policy, seconds);
    return RV_OK;
}

/* The most promising number of chunks first: it rules most of the others out. */
static rv_status mix_bound(void *context, const uint8_t *policy, double *seconds) {
    rv_status status = RV_OK;
    mixing *it = context;
    rv_plan_search *s = it->search;
    const int first = guess_best(it, policy, seconds);
    if (first < 0) return RV_OK;
    policy_set(s, policy);
    TRY(mix_floor(it, first, seconds));
    for (int k = 0; k < it->count; k++) {
        double bound;
        if (k == first || guess_at(it, policy, k) >= *seconds) continue;
        TRY(mix_floor(it, k, &bound));
        *seconds = fmin(*seconds, bound);
    }
out:
    return status;
}

/* Only at numbers of chunks that could be fast enough. */
static rv_status mix_seconds(void *context, const uint8_t *policy, double limit, double *seconds) {
    rv_status status = RV_OK;
    mixing *it = context;
    rv_plan_search *s = it->search;
    rv_schedule found = {0};
    rv_searched searched;
    int *chunks = NULL, count = 0;
    *seconds = INFINITY;
    policy_set(s, policy);
    TRY(rv_alloc((size_t)it->count, sizeof *chunks, "chunks", &chunks));
    for (int k = 0; k < it->count; k++) {
        double floor = guess_at(it, policy, k);
        if (floor <= limit && isfinite(floor)) TRY(mix_floor(it, k, &floor));
        if (floor <= limit && isfinite(floor)) chunks[count++] = it->chunks[k];
    }
    if (count == 0) goto out;
    status =
        search_once(s, chunks, count, s->desc->generator, EFFORT_RIVAL, limit, &found, &searched);
    if (status == RV_RESOURCE) it->least = fmin(it->least, searched.least);
    if (status == RV_OK) *seconds = found.forecast.total;
    if (searched.left > 0) it->left = fmin(it->left, searched.left_bound);
    if (status == RV_CONFIG || status == RV_RESOURCE) status = RV_OK;
out:
    rv_schedule_finish(&found);
    rv_free(chunks);
    return status;
}

/* Kept where that fits and no limit slows it down: then nothing else is looked at closely. Where
 * not every mix is tried: nothing is faster than if all were kept, had there been room. */
static rv_status mix_find(rv_plan_search *s, const int *chunks, int count, rv_plan *plan) {
    rv_status status = RV_OK;
    double seconds;
    mixing it = {.search = s,
                 .chunks = chunks,
                 .count = count,
                 .policies = s->spill > 0 ? 3 : 2,
                 .left = INFINITY,
                 .least = INFINITY};
    const rv_mix mix = {.stages = s->stages,
                        .policies = it.policies,
                        .guess = mix_guess,
                        .bound = mix_bound,
                        .seconds = mix_seconds,
                        .context = &it};
    uint8_t *policy = NULL;
    TRY(rv_alloc((size_t)s->stages, sizeof *policy, "policies of tapes", &policy));
    TRY(disk_find(s, plan));
    TRY(mix_weigh(&it));
    plan->mixed = s->stages <= RV_MIX_ALL ? RV_MIXED_ALL : RV_MIXED_SOME;
    TRY(rv_mix_choose(&mix, policy, &seconds));
    plan->mixed_bound = fmin(seconds, it.left);
    for (int k = 0; plan->mixed == RV_MIXED_SOME && k < count; k++)
        plan->mixed_bound = fmin(plan->mixed_bound, it.floor[k]);
    policy_set(s, policy);
    if (isinf(seconds))
        FAIL(RV_RESOURCE,
             "pipeline.memory: no schedule fits the %.1f MB that are left of it, with tapes kept, "
             "recomputed or spilled; the least found needs %.1f MB",
             s->desc->memory / 1e6, it.least / 1e6);
out:
    rv_free(it.floor);
    rv_free(it.cap);
    rv_free(it.base);
    rv_free(it.cells);
    rv_free(policy);
    return status;
}

bool rv_plan_mixes(const rv_plan_desc *desc) {
    return desc->mixes && desc->memory > 0 && !desc->file;
}

rv_status rv_plan_seek(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    int *chunks = NULL;
    TRY(rv_alloc((size_t)s->steps + 1, sizeof *chunks, "chunks", &chunks));
    if (s->policy) TRY(mix_find(s, chunks, chunks_list(s, true, chunks), plan));
    status = search_once(s, chunks, chunks_list(s, false, chunks), s->desc->generator, EFFORT,
                         INFINITY, &plan->schedule, &plan->searched);
    if (status == RV_RESOURCE)
        FAIL(RV_RESOURCE,
             "pipeline.memory: no schedule fits the %.1f MB that are left of it; the least found "
             "needs %.1f MB",
             s->desc->memory / 1e6, plan->searched.least / 1e6);
    TRY(status);
    TRY(rv_plan_adopt(s, plan));
out:
    rv_free(chunks);
    return status;
}

/* Of steps: without the versions and batches of an endless order. */
static rv_status rivals_of_steps(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_table *table = rv_generator_table();
    const rv_delay_desc *delay = s->delay;
    s->delay = NULL;
    for (int row = 0; row < table->count; row++) {
        const rv_generator *generator = (const void *)rv_table_row(table, row);
        rv_plan_rival *rival = &plan->rivals[plan->rival_count];
        rv_schedule found = {0};
        if (generator->one_stage && plan->stages > 1) continue;
        plan->rival_count++;
        rival->name = generator->row.name;
        status = search_once(s, &plan->chunks, 1, generator, EFFORT_RIVAL, INFINITY, &found, NULL);
        if (status != RV_OK && status != RV_CONFIG && status != RV_RESOURCE) goto out;
        rival->runs = status == RV_OK;
        if (!rival->runs)
            snprintf(rival->why, sizeof rival->why, "%.150s", rv_error_get()->message);
        status = RV_OK;
        if (!rival->runs) continue;
        rival->total = found.forecast.total;
        rival->bubble = found.forecast.bubble;
        rival->slots = found.slots;
        for (int i = 0; i < plan->stages; i++)
            if (found.forecast.peak[i] > rival->peak) rival->peak = found.forecast.peak[i];
        rv_schedule_finish(&found);
    }
out:
    s->delay = delay;
    return status;
}

/* Endless orders are compared with those that update as often. */
static rv_status rivals_endless(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    const rv_table *table = rv_delay_table();
    for (int row = 0; row < table->count; row++) {
        const rv_delay_desc other = {.mode = (const void *)rv_table_row(table, row)};
        if (other.mode->batch != s->delay->mode->batch && s->micros > 1) continue;
        if (other.mode->blocks != s->delay->mode->blocks) continue; /* of other stages */
        TRY(rv_plan_endless_rival(s, plan->chunks, &other, &plan->rivals[plan->rival_count++]));
    }
out:
    return status;
}

rv_status rv_plan_rivals(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    size_t most = (size_t)(rv_generator_table()->count + rv_delay_table()->count);
    TRY(rv_alloc(most, sizeof *plan->rivals, "schedules", &plan->rivals));
    if (!s->delay || !s->delay->mode->blocks) TRY(rivals_of_steps(s, plan));
    if (s->delay) TRY(rivals_endless(s, plan));
out:
    return status;
}

/* ---- cuts of least memory --------------------------------------------------------------- */

/* least[s * (blocks + 1) + j]: of s stages with the first j blocks; from: where the last begins. */
static rv_status cuts_at(const rv_plan_search *s, const rv_cost_points *blocks, int chunks,
                         double *least, int *from) {
    rv_status status = RV_OK;
    const int L = blocks->parts, row = L + 1;
    for (int i = 0; i < (s->stages + 1) * row; i++)
        least[i] = i == 0 ? 0 : INFINITY;
    for (int i = 0; i < L; i++)
        for (int j = i + 1; j <= L; j++) {
            double bytes;
            for (int k = 1; k <= s->stages; k++) {
                if (k == 1 || s->delay)
                    TRY(rv_plan_blocks_weigh(s, blocks, k - 1, i, j, chunks, &bytes));
                double sum = least[(k - 1) * row + i] + bytes;
                if (sum < least[k * row + j]) least[k * row + j] = sum, from[k * row + j] = i;
            }
        }
out:
    return status;
}

rv_status rv_plan_smallest_cuts(rv_plan_search *s, const rv_cost_points *blocks, int *first) {
    rv_status status = RV_OK;
    const int L = blocks->parts, row = L + 1;
    size_t cells = (size_t)(s->stages + 1) * (size_t)row;
    double *least = NULL, best = INFINITY;
    int *from = NULL, *chunks = NULL;
    TRY(rv_alloc(cells, sizeof *least, "cuts", &least));
    TRY(rv_alloc(cells, sizeof *from, "cuts", &from));
    TRY(rv_alloc((size_t)s->steps + 1, sizeof *chunks, "chunks", &chunks));
    int count = chunks_list(s, true, chunks);
    for (int i = 0; i < count; i += 1 + i / 8) { /* bytes change little from one to the next */
        int c = chunks[count - 1 - i];
        TRY(cuts_at(s, blocks, c, least, from));
        if (!(least[s->stages * row + L] < best)) continue;
        best = least[s->stages * row + L];
        first[s->stages] = blocks->part[0][L - 1].last;
        for (int k = s->stages, j = L; k > 0; k--) {
            j = from[k * row + j];
            first[k - 1] = blocks->part[0][j].first;
        }
    }
out:
    rv_free(chunks);
    rv_free(from);
    rv_free(least);
    return status;
}
