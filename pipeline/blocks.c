/* Remaining paths, and list scheduling by them. */
#include "pipeline/blocks.h"

#include <math.h>
#include <string.h>

/* ---- remaining paths -------------------------------------------------------------------- */

enum { RESTS = RV_WORK_W + 2 }; /* kinds with a rest: U has the last */

static double *rest_of(const rv_ranks *r, int kind, int stage, int chunk) {
    int row = kind == RV_WORK_U ? RESTS - 1 : kind;
    return &r->rest[(row * r->stages + stage) * r->chunks + chunk];
}

/* From the update backwards: W go to chunk 0, B also to the stage below, F up and to the last
 * chunk, whose B follows. */
static void rests_fill(rv_ranks *r, const rv_costs *costs, const double *share) {
    const int S = r->stages, C = r->chunks;
    for (int s = 0; s < S; s++)
        for (int c = 0; c < C; c++) {
            double u = *rest_of(r, RV_WORK_U, s, c) = costs->u ? costs->u[s] : 0;
            double *w = rest_of(r, RV_WORK_W, s, c), *b = rest_of(r, RV_WORK_B, s, c);
            *w = rv_item_cost(costs, share, RV_WORK_W, s, c) + (c > 0 ? w[-1] : u);
            *b = fmax(*w, c > 0 ? b[-1] : 0);
            if (s > 0) *b = fmax(*b, costs->latency + *rest_of(r, RV_WORK_B, s - 1, c));
            *b += rv_item_cost(costs, share, RV_WORK_B, s, c);
        }
    for (int s = S - 1; s >= 0; s--)
        for (int c = C - 1; c >= 0; c--) {
            double *f = rest_of(r, RV_WORK_F, s, c);
            *f = c + 1 < C ? f[1] : *rest_of(r, RV_WORK_B, s, c);
            if (s + 1 < S) *f = fmax(*f, costs->latency + *rest_of(r, RV_WORK_F, s + 1, c));
            *f += rv_item_cost(costs, share, RV_WORK_F, s, c);
        }
}

rv_status rv_ranks_init(rv_ranks *r, int stages, int chunks, int workers, const rv_costs *costs) {
    rv_status status = RV_OK;
    double *share = NULL, all = 0, most = 0;
    *r = (rv_ranks){.stages = stages, .chunks = chunks, .workers = workers};
    TRY(rv_alloc((size_t)chunks, sizeof *share, "the chunks of a schedule", &share));
    TRY(rv_alloc(RESTS * (size_t)stages * (size_t)chunks, sizeof *r->rest, "remaining paths",
                 &r->rest));
    rv_chunk_shares(costs, chunks, share);
    rests_fill(r, costs, share);
    for (int s = 0; s < stages; s++) {
        double own = costs->f[s] + costs->b[s] + costs->w[s] + (costs->u ? costs->u[s] : 0);
        all += own, most = fmax(most, own);
    }
    r->period = fmax(all / workers, most);
out:
    rv_free(share);
    return status;
}

void rv_ranks_finish(rv_ranks *r) {
    rv_free(r->rest);
    *r = (rv_ranks){0};
}

bool rv_ranks_before(const rv_ranks *r, const rv_work *a, const rv_work *b) {
    static const int ties[RV_WORK_KINDS] = {
        [RV_WORK_F] = 1, [RV_WORK_W] = 2, [RV_WORK_U] = 2}; /* B: 0 */
    double left = *rest_of(r, a->kind, a->stage, a->chunk) - r->period * a->micro;
    double right = *rest_of(r, b->kind, b->stage, b->chunk) - r->period * b->micro;
    if (left != right) return left > right;
    if (ties[a->kind] != ties[b->kind]) return ties[a->kind] < ties[b->kind];
    return a->micro != b->micro ? a->micro < b->micro : a->stage < b->stage;
}

/* ---- simulation ------------------------------------------------------------------------- */

typedef struct seat { /* of a stage */
    rv_order order;   /* counts what has ended */
    bool taken;
    rv_work work; /* since taken */
    double until;
    int begun; /* F */
    int count; /* of its list */
} seat;

typedef struct run {
    rv_schedule *schedule;
    const rv_ranks *ranks;
    const rv_costs *costs;
    double *share;
    double *end[RV_WORK_W]; /* F, B: [stages][cells], when the n-th of a stage ended */
    seat *seats;
    int cells, free; /* items of a kind and stage; workers with nothing to do */
    double now, next;
} run;

/* The n-th F or B of a stage and that of the stage it comes from, which must have ended, and its
 * message come; and the slot of its own message must be free. */
static bool is_ready(run *r, const rv_work *x) {
    const int S = r->schedule->stages, s = x->stage, slots = r->schedule->slots;
    const bool forward = x->kind == RV_WORK_F;
    if (x->kind != RV_WORK_F && x->kind != RV_WORK_B) return true;
    const int from = forward ? s - 1 : s + 1, to = forward ? s + 1 : s - 1;
    const rv_order *own = &r->seats[s].order;
    const int64_t n = forward ? own->f : own->b;
    if (to >= 0 && to < S && slots > 0) {
        const rv_order *taker = &r->seats[to].order;
        if (n - (forward ? taker->f : taker->b) >= slots) return false;
    }
    if (from < 0 || from >= S) return true;
    const rv_order *maker = &r->seats[from].order;
    if (n >= (forward ? maker->f : maker->b)) return false;
    double comes = r->end[x->kind][from * r->cells + n] + r->costs->latency;
    if (comes > r->now) r->next = fmin(r->next, comes);
    return comes <= r->now;
}

static bool choose(run *r, rv_work *best) {
    bool found = false;
    for (int s = 0; s < r->schedule->stages; s++) {
        rv_work offers[RV_OFFERS];
        int count = 0;
        if (!r->seats[s].taken)
            count = rv_order_offers(&r->seats[s].order, r->schedule->micros, offers);
        for (int i = 0; i < count; i++) {
            if (!is_ready(r, &offers[i])) continue;
            if (found && !rv_ranks_before(r->ranks, &offers[i], best)) continue;
            *best = offers[i];
            found = true;
        }
    }
    return found;
}

static void begin(run *r, const rv_work *x) {
    rv_forecast *forecast = &r->schedule->forecast;
    seat *it = &r->seats[x->stage];
    int at = r->schedule->first[x->stage] + it->count++;
    it->taken = true, it->work = *x;
    it->until = r->now + rv_item_time(r->costs, r->share, x);
    r->schedule->items[at] = *x;
    forecast->start[at] = r->now, forecast->end[at] = it->until;
    r->free--;
    if (x->kind != RV_WORK_F) return;
    int held = ++it->begun - (int)it->order.w;
    if (held > forecast->peak[x->stage]) forecast->peak[x->stage] = held;
}

/* Ends what ends now; false: nothing is under way. */
static bool go_on(run *r) {
    for (int s = 0; s < r->schedule->stages; s++)
        if (r->seats[s].taken) r->next = fmin(r->next, r->seats[s].until);
    if (r->next == INFINITY) return false;
    r->now = r->next;
    for (int s = 0; s < r->schedule->stages; s++) {
        seat *it = &r->seats[s];
        if (!it->taken || it->until > r->now) continue;
        if (it->work.kind == RV_WORK_F) r->end[RV_WORK_F][s * r->cells + it->order.f] = it->until;
        if (it->work.kind == RV_WORK_B) r->end[RV_WORK_B][s * r->cells + it->order.b] = it->until;
        rv_order_done(&it->order, &it->work);
        it->taken = false;
        r->free++;
    }
    return true;
}

static rv_status run_init(run *r, const rv_delay_desc *delay, int updates, int slots) {
    rv_status status = RV_OK;
    rv_schedule *schedule = r->schedule;
    const int S = r->ranks->stages, C = r->ranks->chunks;
    size_t items = (size_t)S * (size_t)updates * (3 * (size_t)C + 1), stages = (size_t)S;
    TRY(rv_schedule_init(schedule, S, updates, C, false, items));
    rv_forecast *forecast = &schedule->forecast;
    schedule->slots = slots, schedule->group = 1, schedule->kept = 1, schedule->newest = true;
    strncpy(schedule->name, delay->mode->row.name, sizeof schedule->name - 1);
    TRY(rv_alloc(items, sizeof(double), "the timeline of a schedule", &forecast->start));
    TRY(rv_alloc(items, sizeof(double), "the timeline of a schedule", &forecast->end));
    TRY(rv_alloc(stages, sizeof(int), "the peaks of a schedule", &forecast->peak));
    r->cells = updates * C, r->free = r->ranks->workers;
    TRY(rv_alloc(stages, sizeof *r->seats, "stages", &r->seats));
    TRY(rv_alloc((size_t)C, sizeof *r->share, "the chunks of a schedule", &r->share));
    for (int k = RV_WORK_F; k <= RV_WORK_B; k++)
        TRY(rv_alloc(stages * (size_t)r->cells, sizeof(double), "the run of a schedule",
                     &r->end[k]));
    rv_chunk_shares(r->costs, C, r->share);
    for (int s = 0; s < S; s++) {
        r->seats[s].order = rv_order_of(delay, S, 1, C, slots, s);
        int kept = r->seats[s].order.rule.delay + 1;
        if (kept > schedule->kept) schedule->kept = kept;
    }
out:
    return status;
}

rv_status rv_schedule_blocks(const rv_delay_desc *delay, const rv_ranks *ranks,
                             const rv_costs *costs, int updates, int slots, rv_schedule *schedule) {
    rv_status status = RV_OK;
    run r = {.schedule = schedule, .ranks = ranks, .costs = costs};
    rv_work best;
    *schedule = (rv_schedule){0};
    TRY(run_init(&r, delay, updates, slots));
    do {
        r.next = INFINITY;
        while (r.free > 0 && choose(&r, &best))
            begin(&r, &best);
    } while (go_on(&r));
    for (int s = 0; s < ranks->stages; s++)
        if (r.seats[s].order.made < updates)
            FAIL(RV_INTERNAL, "schedule: stage %d stands still after %lld updates", s,
                 (long long)r.seats[s].order.made);
    schedule->forecast.makespan = schedule->forecast.total = r.now;
out:
    rv_free(r.end[RV_WORK_B]);
    rv_free(r.end[RV_WORK_F]);
    rv_free(r.share);
    rv_free(r.seats);
    if (status) rv_schedule_finish(schedule);
    return status;
}
