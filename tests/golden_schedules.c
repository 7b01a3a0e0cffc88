/* Schedules: orders, makespans, bubbles, peaks, deadlocks, flaws, delays. Times are sums of rounded
 * numbers in another order: equal to 1e-9. */
#include "tests/golden.h"
#include "pipeline/schedule.h"
#include <jansson.h>

enum { GRID_MOST = 4096 }; /* of stages, micro-batches, chunks each: a bad file must not take all */

typedef struct grid {
    int S, M, C;
    bool fused;
    rv_costs costs;
} grid;

static bool read_grid(golden_case *c, grid *g) {
    g->S = golden_json_int(c, NULL, "S");
    g->M = golden_json_int(c, NULL, "M");
    g->C = golden_json_int(c, NULL, "C");
    g->fused = json_is_true(json_object_get(c->json, "fused"));
    bool good = g->S >= 1 && g->M >= 1 && g->C >= 1;
    if (c->failed || !good || g->S > GRID_MOST || g->M > GRID_MOST || g->C > GRID_MOST)
        return golden_fail(c, "S, M, C: %d, %d, %d", g->S, g->M, g->C);
    if (json_object_get(c->json, "cap_chunks"))
        g->costs.cap = golden_json_ints(c, NULL, "cap_chunks", g->S);
    if (json_object_get(c->json, "chunk_steps"))
        g->costs.chunk_steps = golden_json_ints(c, NULL, "chunk_steps", g->C);
    return !c->failed;
}

/* Lists of words as a schedule. False: a word is no item, and what is wrong is known already. */
static bool read_order(golden_case *c, const grid *g, const json_t *order, rv_schedule *x) {
    size_t count = 0, lists = json_array_size(order);
    for (size_t k = 0; k < lists; k++)
        count += json_array_size(json_array_get(order, k));
    if (!golden_ok(c, rv_schedule_init(x, g->S, g->M, g->C, g->fused, count ? count : 1)))
        return false;
    if (lists != (size_t)g->S) return golden_fail(c, "order: %zu lists", lists);
    int n = 0;
    for (int k = 0; k < g->S; k++) {
        const json_t *list = json_array_get(order, (size_t)k);
        x->first[k] = n;
        for (size_t p = 0; p < json_array_size(list); p++) {
            const char *text = json_string_value(json_array_get(list, p));
            if (!text || !rv_work_parse(text, strlen(text), k, &x->items[n++])) return false;
        }
    }
    x->first[g->S] = n;
    return true;
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

static bool same_work(const rv_work *a, const rv_work *b) {
    return a->kind == b->kind && a->stage == b->stage && a->micro == b->micro &&
           a->chunk == b->chunk;
}

static void same_peaks(golden_case *c, const char *key, int S, const int *got) {
    if (!json_object_get(c->json, key)) return;
    const int *want = golden_json_ints(c, NULL, key, S);
    for (int s = 0; s < S && !c->failed; s++)
        if (got[s] != want[s])
            golden_fail(c, "%s: %d at stage %d, not %d", key, got[s], s, want[s]);
}

/* Simulate an order whose results are exact. */
static void same_results(golden_case *c, const grid *g, rv_schedule *x) {
    rv_flaw flaw;
    bool deadlock = json_is_true(json_object_get(c->json, "deadlock"));
    rv_status status = rv_schedule_simulate(x, &g->costs, &flaw);
    if (status && flaw.kind != RV_FLAW_DEADLOCK) {
        golden_ok(c, status);
        return;
    }
    if (deadlock != (flaw.kind == RV_FLAW_DEADLOCK)) {
        golden_fail(c, "%s", deadlock ? "runs, a deadlock is known" : rv_error_get()->message);
        return;
    }
    same_peaks(c, "peak_tapes_per_stage", g->S, x->forecast.peak);
    same_peaks(c, "peak_steps_per_stage", g->S, x->forecast.peak_steps);
    if (deadlock || c->failed) return;
    double makespan = golden_json_number(c, NULL, "makespan");
    double bubble = golden_json_number(c, NULL, "bubble");
    if (!near(x->forecast.makespan, makespan))
        golden_fail(c, "makespan %.12g, not %.12g", x->forecast.makespan, makespan);
    if (!near(x->forecast.bubble, bubble))
        golden_fail(c, "bubble %.12g, not %.12g", x->forecast.bubble, bubble);
}

/* The generated order of a schedule whose order is a free choice: between bound and reference. */
static void no_worse(golden_case *c, const grid *g, rv_schedule *x) {
    double bound, lower = golden_json_number(c, NULL, "lower_bound");
    if (!golden_ok(c, rv_schedule_bound(g->S, g->M, g->C, &g->costs, &bound))) return;
    if (!near(bound, lower)) golden_fail(c, "bound %.12g, not %.12g", bound, lower);
    if (!golden_ok(c, rv_schedule_simulate(x, &g->costs, NULL))) return;
    double got = x->forecast.makespan;
    if (got < lower && !near(got, lower))
        golden_fail(c, "makespan %.12g, below the bound %.12g", got, lower);
    if (json_is_true(json_object_get(c->json, "deadlock"))) return;
    double most = golden_json_number(c, NULL, "makespan");
    if (got > most && !near(got, most)) golden_fail(c, "makespan %.12g, above %.12g", got, most);
}

golden_verdict golden_schedule(golden_case *c) {
    grid g = {0};
    rv_schedule made = {0}, given = {0};
    const char *name = json_string_value(json_object_get(c->json, "schedule"));
    const json_t *order = json_object_get(c->json, "order");
    const rv_generator *generator = rv_generator_find(name ? name : "");
    if (!generator) {
        snprintf(c->text, sizeof c->text, "schedule %s", name ? name : "?");
        return GOLDEN_UNKNOWN;
    }
    if (!read_grid(c, &g)) return GOLDEN_DIFFER;
    g.costs.f = golden_json_numbers(c, NULL, "f", g.S);
    g.costs.b = golden_json_numbers(c, NULL, "b", g.S);
    g.costs.w = golden_json_numbers(c, NULL, "w", g.S);
    g.costs.latency = golden_json_number(c, NULL, "latency");
    int slots = golden_json_int(c, NULL, "slots");
    if (g.fused != generator->fused) golden_fail(c, "items of another kind");
    if (c->failed ||
        !golden_ok(c, rv_schedule_make(generator, g.S, g.M, g.C, slots, &g.costs, &made)))
        return GOLDEN_DIFFER;
    if (order && !read_order(c, &g, order, &given)) golden_fail(c, "order: no item");
    given.slots = slots;
    if (order && !generator->by_costs && !c->failed) {
        int n = rv_schedule_count(&made);
        if (n != rv_schedule_count(&given)) golden_fail(c, "order: %d items made", n);
        for (int p = 0; p < n && !c->failed; p++)
            if (!same_work(&made.items[p], &given.items[p])) golden_fail(c, "item %d differs", p);
    }
    if (!c->failed && generator->by_costs) no_worse(c, &g, &made);
    if (!c->failed && !generator->by_costs) same_results(c, &g, &made);
    if (!c->failed && order) same_results(c, &g, &given);
    rv_schedule_finish(&given);
    rv_schedule_finish(&made);
    return golden_done(c);
}

/* ---- flaws ------------------------------------------------------------------------------ */

/* Micro-batches per update, from the numbers of the updates in the lists; 0: there are none. */
static int group_of(const rv_schedule *x) {
    int updates = 0, group = 1;
    for (int p = 0; p < rv_schedule_count(x); p++)
        if (x->items[p].kind == RV_WORK_U && x->items[p].micro >= updates)
            updates = x->items[p].micro + 1;
    while (updates && (x->micros - 1) / group + 1 > updates)
        group++;
    return updates ? group : 0;
}

/* A schedule with one flaw must be refused; that another kind is reported is no mistake. */
golden_verdict golden_schedule_flaw(golden_case *c) {
    grid g = {0};
    rv_schedule x = {0};
    const char *fault = json_string_value(json_object_get(c->json, "fault"));
    const json_t *order = json_object_get(c->json, "order");
    if (!fault || !order) golden_fail(c, "no fault, or no order");
    if (c->failed || !read_grid(c, &g)) return GOLDEN_DIFFER;
    double *ones = golden_memory(c, (size_t)g.S, sizeof *ones);
    for (int s = 0; s < g.S; s++)
        ones[s] = 1;
    g.costs.f = g.costs.b = g.costs.w = ones;
    rv_status status = RV_CONFIG;
    if (read_order(c, &g, order, &x)) {
        x.slots = golden_json_int(c, NULL, "slots");
        x.group = group_of(&x);
        if (json_object_get(c->json, "versions_kept"))
            x.kept = golden_json_int(c, NULL, "versions_kept");
        status = rv_schedule_simulate(&x, &g.costs, NULL);
    }
    if (!c->failed && strcmp(fault, "ok") == 0)
        golden_ok(c, status);
    else if (!c->failed && status != RV_CONFIG)
        golden_fail(c, "%s: not refused", fault);
    rv_schedule_finish(&x);
    return golden_done(c);
}

/* ---- delays ----------------------------------------------------------------------------- */

golden_verdict golden_staleness(golden_case *c) {
    int S = golden_json_int(c, NULL, "S"), C = golden_json_int(c, NULL, "C");
    const json_t *delay = json_object_get(c->json, "delay");
    if (c->failed || S < 1 || C < 1 || json_array_size(delay) != (size_t)S)
        return golden_fail(c, "S, C, delay: bad"), GOLDEN_DIFFER;
    const int *first = golden_json_ints(c, NULL, "delay_first_chunk", S);
    const int *last = golden_json_ints(c, NULL, "delay_last_chunk", S);
    const int *kept = golden_json_ints(c, NULL, "versions_kept", S);
    const int *two = golden_json_ints(c, NULL, "two_streams_delay_first_chunk", S);
    int group = golden_json_int(c, NULL, "min_micro_batches_per_update_2bw");
    if (rv_group_2bw(S, C) != group)
        golden_fail(c, "2bw: %d micro-batches an update, not %d", rv_group_2bw(S, C), group);
    for (int s = 0; s < S && !c->failed; s++) {
        const json_t *row = json_array_get(delay, (size_t)s);
        if (json_array_size(row) != (size_t)C) golden_fail(c, "delay: row %d", s);
        for (int k = 0; k < C && !c->failed; k++)
            if (rv_delay_1f1b(S, C, s, k) != json_integer_value(json_array_get(row, (size_t)k)))
                golden_fail(c, "delay %d at stage %d, chunk %d", rv_delay_1f1b(S, C, s, k), s, k);
        int begin = rv_delay_1f1b(S, C, s, 0), end = rv_delay_1f1b(S, C, s, C - 1);
        if (begin != first[s] || end != last[s] || begin + 1 != kept[s])
            golden_fail(c, "stage %d: delays %d to %d", s, begin, end);
        if (rv_delay_two_streams(S, C, s) != two[s])
            golden_fail(c, "stage %d: two streams %d", s, rv_delay_two_streams(S, C, s));
    }
    return golden_done(c);
}
