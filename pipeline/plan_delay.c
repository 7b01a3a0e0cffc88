/*
 * The plan of an order that never ends: so many updates of it are simulated that the pipe is full
 * when they are looked at and does not yet run empty. Chunks are fixed and tapes whole, so slots
 * are all there is to choose.
 */
#include <math.h>

#include "pipeline/plan_search.h"

/* Items that are simulated at most where fewer updates will do, updates that are looked at. */
enum { ITEMS = 2000000, LOOK = 24, LOOK_LEAST = 4 };
/* Costs are measured: a rate that differs by less is the same. Where items scatter it is a mean. */
static const double close = 1e-6, close_mean = 5e-4;

typedef struct trial {
    rv_plan_search *search;
    const rv_delay_desc *delay;
    int chunks;
    int from, to, updates; /* the pipe is full from `from` on; looked at until `to`; simulated */
    rv_schedule schedule;  /* the one tried last */
    double period, judged; /* of an update; the same by which slots are chosen */
    rv_ranks ranks;        /* the same, of a mode of blocks */
} trial;

static trial trial_of(rv_plan_search *s, const rv_delay_desc *delay, int chunks) {
    const int settled = rv_schedule_settled(delay, s->stages, s->micros, chunks, s->desc->slots);
    const double items = s->stages * (2.0 * s->micros * chunks + 1);
    const int look = (int)fmax(LOOK_LEAST, fmin(LOOK, ITEMS / items - 2 * settled));
    return (trial){.search = s,
                   .delay = delay,
                   .chunks = chunks,
                   .from = settled,
                   .to = settled + look,
                   .updates = 2 * settled + look};
}

/* Workers share the stages. */
static rv_status try_blocks(trial *t, const rv_costs *costs, int slots) {
    rv_status status = RV_OK;
    rv_ranks_finish(&t->ranks);
    TRY(rv_ranks_init(&t->ranks, t->search->stages, t->chunks, t->search->workers, costs));
    TRY(rv_schedule_blocks(t->delay, &t->ranks, costs, t->updates, slots, &t->schedule));
out:
    return status;
}

static double period_of(const trial *t) {
    return (rv_schedule_made(&t->schedule, 0, t->to) - rv_schedule_made(&t->schedule, 0, t->from)) /
           (t->to - t->from);
}

/* Mean over the draws; 0: items do not scatter. */
static rv_status period_drawn(trial *t, rv_costs costs, double *period) {
    rv_status status = RV_OK;
    const int draws = rv_schedule_draws(&t->schedule, &costs);
    *period = 0;
    for (int n = draws; n > 0; n--) {
        costs.draw = (uint32_t)n;
        TRY(rv_schedule_simulate(&t->schedule, &costs, NULL));
        *period += period_of(t) / draws;
    }
out:
    return status;
}

/* What a measurement does not tell: stages that are nearly as busy as the busiest may be as busy in
 * the run, and items scatter more than in a quiet moment. Changes the costs that the search holds.
 */
static void stages_level(rv_plan_search *s) {
    static const double off = 1.05, least = 0.1;
    double most = 0;
    for (int i = 0; i < s->stages; i++)
        most = fmax(most, s->micros * (s->f[i] + s->b[i] + s->w[i]) + s->u[i]);
    for (int i = 0; i < s->stages; i++) {
        const double own = s->micros * (s->f[i] + s->b[i] + s->w[i]) + s->u[i];
        const double lift = fmin(off, most / own);
        s->f[i] *= lift, s->b[i] *= lift, s->w[i] *= lift, s->u[i] *= lift;
        for (int k = RV_WORK_F; k <= RV_WORK_W; k++)
            s->once[k][i] *= lift;
        if (s->scatter[i] > 0) s->scatter[i] = fmax(least, s->scatter[i]);
    }
}

/* Where items scatter slots are judged by level stages, for then they count most. */
static rv_status try_slots(trial *t, int slots) {
    rv_status status = RV_OK;
    rv_plan_search *s = t->search;
    rv_costs costs;
    rv_schedule_finish(&t->schedule);
    TRY(rv_plan_costs(s, t->chunks, &costs));
    t->judged = 0;
    if (t->delay->mode->blocks) {
        TRY(try_blocks(t, &costs, slots));
    } else {
        TRY(rv_schedule_endless(t->delay, s->stages, s->micros, t->chunks, t->updates, slots,
                                &t->schedule));
        stages_level(s);
        TRY(period_drawn(t, costs, &t->judged));
        TRY(rv_plan_costs(s, t->chunks, &costs));
        TRY(rv_schedule_simulate(&t->schedule, &costs, NULL));
    }
    t->period = period_of(t);
    if (t->judged <= 0) t->judged = t->period;
out:
    return status;
}

/* *enough: the order runs with so many slots, and is not slower than `period`; with too few, stages
 * may wait for each other. */
static rv_status are_enough(trial *t, int slots, double period, bool *enough) {
    const rv_status status = try_slots(t, slots);
    *enough = status == RV_OK && t->judged <= period;
    return status == RV_CONFIG ? RV_OK : status;
}

/* With more slots no order is slower, and without a limit none is faster. */
static rv_status fewest_slots(trial *t) {
    rv_status status = RV_OK;
    int low = 0, high = 1;
    bool enough = false;
    TRY(try_slots(t, 0));
    const double period = t->judged * (1 + (t->judged != t->period ? close_mean : close));
    for (;; low = high, high *= 2) {
        TRY(are_enough(t, high, period, &enough));
        if (enough) break;
    }
    while (high - low > 1) {
        const int at = low + (high - low) / 2;
        TRY(are_enough(t, at, period, &enough));
        *(enough ? &high : &low) = at;
    }
    TRY(try_slots(t, high));
out:
    return status;
}

/* Fewer slots where these do not fit the memory. */
static rv_status fit(trial *t, double *least) {
    rv_status status = RV_OK;
    const double memory = t->search->desc->memory;
    bool runs = true;
    for (int slots = t->schedule.slots; runs; slots--) {
        TRY(rv_plan_bytes_of(t->search, t->chunks, slots, &t->schedule, least));
        bool fits = memory <= 0 || *least <= memory, last = slots == 1 || t->search->desc->slots;
        if (fits && slots < t->schedule.slots) TRY(are_enough(t, slots, INFINITY, &runs));
        if (fits && runs) goto out;
        runs = runs && !last;
    }
    FAIL(RV_RESOURCE,
         "pipeline.memory: schedule %s does not fit the %.1f MB that are left of it; it needs %.1f "
         "MB",
         t->delay->mode->row.name, memory / 1e6, *least / 1e6);
out:
    return status;
}

/* ---- what is told ----------------------------------------------------------------------- */

/* So many updates that single items can be seen. */
static void picture_choose(const trial *t, rv_plan *plan) {
    int shown = 2 + 4 / (plan->micros * plan->chunks);
    int until = t->from + shown < t->to ? t->from + shown : t->to;
    plan->from = rv_schedule_made(&plan->schedule, plan->stages - 1, t->from);
    plan->until = rv_schedule_made(&plan->schedule, plan->stages - 1, until);
}

static rv_status stage_tell(const trial *t, rv_plan *plan, int s) {
    rv_status status = RV_OK;
    const rv_train_desc *train = t->search->desc->cost.train;
    const rv_delay_shape shape = {plan->stages, plan->chunks, plan->micros, s,
                                  plan->schedule.slots};
    const rv_delay_rule rule = rv_delay_rule_of(t->delay, &shape);
    const rv_range range =
        rv_net_range(t->search->desc->cost.net, plan->first[s], plan->first[s + 1]);
    const int rows = (train->batch + plan->micros - 1) / plan->micros;
    rv_plan_stage *stage = &plan->stage[s];
    const rv_part_cost *cost = &stage->cost;
    stage->busy = (plan->micros * (cost->f + cost->b + cost->w) + cost->u) / t->period;
    TRY(rv_account_init(&stage->account, rule.delay + 1));
    rv_account_list(&stage->account, &plan->schedule, s, t->from, t->to, rows);
    stage->account.versions = rule.delay + 1;
    stage->account.stash = rv_weights_bytes(&rule, &range);
out:
    return status;
}

static rv_status tell(trial *t, rv_plan *plan) {
    rv_status status = RV_OK;
    double work = 0, drawn = 0;
    rv_costs costs;
    if (!t->delay->mode->blocks) {
        TRY(rv_plan_costs(t->search, t->chunks, &costs));
        TRY(period_drawn(t, costs, &drawn));
        TRY(rv_schedule_simulate(&t->schedule, &costs, NULL));
    }
    plan->schedule = t->schedule;
    t->schedule = (rv_schedule){0};
    plan->ranks = t->ranks;
    t->ranks = (rv_ranks){0};
    TRY(rv_plan_adopt(t->search, plan));
    plan->delay = *t->delay;
    plan->step = t->period;
    for (int s = 0; s < plan->stages; s++) {
        const rv_part_cost *cost = &plan->stage[s].cost;
        work += plan->micros * (cost->f + cost->b + cost->w);
        TRY(stage_tell(t, plan, s));
    }
    plan->bubble = t->period > 0 ? rv_idle_share(work, plan->workers * t->period) : 0;
    plan->expected = drawn > 0 ? rv_idle_share(work, plan->workers * drawn) : plan->bubble;
    picture_choose(t, plan);
    int group = rv_group_2bw(plan->stages, plan->chunks);
    bool always_one = t->delay->mode->batch && t->delay->mode->stash;
    plan->waits = always_one && plan->micros < group ? group : 0;
out:
    return status;
}

rv_status rv_plan_seek_endless(rv_plan_search *s, rv_plan *plan) {
    rv_status status = RV_OK;
    trial t = trial_of(s, s->delay, s->desc->cost.train->chunks);
    TRY(s->desc->slots ? try_slots(&t, s->desc->slots) : fewest_slots(&t));
    TRY(fit(&t, &plan->searched.least));
    TRY(tell(&t, plan));
out:
    rv_ranks_finish(&t.ranks);
    rv_schedule_finish(&t.schedule);
    return status;
}

rv_status rv_plan_endless_rival(rv_plan_search *s, int chunks, const rv_delay_desc *delay,
                                rv_plan_rival *rival) {
    rv_status status = RV_OK;
    trial t = trial_of(s, delay, chunks);
    *rival = (rv_plan_rival){.name = delay->mode->row.name, .runs = true, .endless = true};
    if (s->desc->slots)
        TRY(are_enough(&t, s->desc->slots, INFINITY, &rival->runs));
    else
        TRY(fewest_slots(&t));
    if (!rival->runs) {
        snprintf(rival->why, sizeof rival->why, "%.150s", rv_error_get()->message);
        goto out;
    }
    rival->total = t.period;
    rival->slots = t.schedule.slots;
    for (int i = 0; i < s->stages; i++)
        if (t.schedule.forecast.peak[i] > rival->peak) rival->peak = t.schedule.forecast.peak[i];
out:
    rv_ranks_finish(&t.ranks);
    rv_schedule_finish(&t.schedule);
    return status;
}
