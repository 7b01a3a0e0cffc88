/* The run of lists: against a second, plain simulator; updates; stages in several lists. */
#include "tests/schedules.h"

/* ---- the second simulator: searches for everything, sweeps until nothing changes -------- */

static int where(const rv_schedule *x, int kind, int s, int m, int c) {
    for (int p = 0; p < rv_schedule_count(x); p++) {
        const rv_work *i = &x->items[p];
        if (i->kind == kind && i->stage == s && i->micro == m && i->chunk == c) return p;
    }
    return -1;
}

/* The item that takes the message `slots` before that of item p of list k, or -1. */
static int plain_slot(const rv_schedule *x, int k, int p) {
    const rv_work *i = &x->items[p];
    int to = i->kind == RV_WORK_F ? i->stage + 1 : i->stage - 1, back = x->slots;
    if (x->slots == 0 || i->kind == RV_WORK_W || to < 0 || to >= x->stages) return -1;
    for (int q = p - 1; q >= x->first[k]; q--)
        if (x->items[q].kind == i->kind && --back == 0)
            return where(x, i->kind, to, x->items[q].micro, x->items[q].chunk);
    return -1;
}

/* End of every item, NAN where it never runs; no U. Returns whether all ran. */
static bool plain_run(const rv_schedule *x, const rv_costs *costs, double *end) {
    const int b = x->fused ? RV_WORK_BW : RV_WORK_B, n = rv_schedule_count(x);
    for (int p = 0; p < n; p++)
        end[p] = NAN;
    for (bool change = true; change;) {
        change = false;
        for (int k = 0; k < x->workers; k++)
            for (int p = x->first[k]; p < x->first[k + 1]; p++) {
                const rv_work *i = &x->items[p];
                int s = i->stage, m = i->micro, c = i->chunk, needs[5], count = 0, remote = -1;
                double cost = i->kind == RV_WORK_F   ? costs->f[s]
                              : i->kind == RV_WORK_B ? costs->b[s]
                              : i->kind == RV_WORK_W ? costs->w[s]
                                                     : costs->b[s] + costs->w[s];
                double once = i->kind == RV_WORK_BW
                                  ? costs->once[RV_WORK_B][s] + costs->once[RV_WORK_W][s]
                                  : costs->once[i->kind][s];
                if (p > x->first[k]) needs[count++] = p - 1;
                if (i->kind == RV_WORK_F) {
                    if (s > 0) remote = where(x, RV_WORK_F, s - 1, m, c);
                    if (c > 0) needs[count++] = where(x, RV_WORK_F, s, m, c - 1);
                } else if (i->kind == b) {
                    if (s + 1 < x->stages) remote = where(x, b, s + 1, m, c);
                    if (c + 1 < x->chunks) needs[count++] = where(x, b, s, m, c + 1);
                    needs[count++] = where(x, RV_WORK_F, s, m, c);
                } else {
                    needs[count++] = where(x, b, s, m, c);
                }
                int slot = plain_slot(x, k, p);
                if (slot >= 0) needs[count++] = slot;
                double start = remote >= 0 ? end[remote] + costs->latency : 0;
                for (int j = 0; j < count; j++) /* a sum or maximum with NAN stays NAN here */
                    start = end[needs[j]] > start || isnan(end[needs[j]]) ? end[needs[j]] : start;
                if (isnan(start) || !isnan(end[p])) continue;
                end[p] = start + (cost - once) / x->chunks + (c == 0 ? once : 0);
                change = true;
            }
    }
    for (int p = 0; p < n; p++)
        if (isnan(end[p])) return false;
    return true;
}

/* Exchange items of a list at random: most such schedules still make some sense. */
static void shuffle(rv_schedule *x, uint32_t seed) {
    uint32_t times = draw(seed, 2000, 4);
    for (uint32_t i = 0; i < times; i++) {
        int k = (int)draw(seed, 2001 + 3 * i, (uint32_t)x->workers), n;
        const rv_work *list = rv_schedule_list(x, k, &n);
        int p = (int)draw(seed, 2002 + 3 * i, (uint32_t)n - 1);
        rv_work *at = x->items + (list - x->items) + p, item = at[0];
        at[0] = at[1], at[1] = item;
    }
}

static void simulate_random_lists_equal_the_plain_simulator(void **state) {
    (void)state;
    static const char *const names[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
    int causes[RV_CAUSES] = {0};
    for (uint32_t seed = 0; seed < 1500; seed++) {
        cost_data d;
        const rv_costs *costs = random_costs(&d, seed);
        rv_schedule x;
        rv_flaw flaw;
        int S = 2 + (int)draw(seed, 3000, 3), M = 1 + (int)draw(seed, 3001, 3);
        int C = 1 << draw(seed, 3002, 3), slots = (int)draw(seed, 3003, 4);
        make(names[draw(seed, 3004, 5)], S, M, C, 0, costs, &x);
        x.slots = slots; /* zb was planned without them: some deadlock */
        shuffle(&x, seed);
        double *end = calloc((size_t)rv_schedule_count(&x), sizeof *end);
        assert_non_null(end);
        bool runs = plain_run(&x, costs, end);
        rv_status status = rv_schedule_simulate(&x, costs, &flaw);
        causes[flaw.cause]++;
        if (runs) {
            assert_int_equal(status, RV_OK);
            for (int p = 0; p < rv_schedule_count(&x); p++)
                CLOSE(x.forecast.end[p], end[p]);
        } else {
            assert_int_equal(status, RV_CONFIG);
            assert_int_equal(flaw.kind, RV_FLAW_DEADLOCK);
            int p = x.first[flaw.worker] + flaw.position;
            assert_true(same_work(&x.items[p], &flaw.item));
            assert_true(isnan(end[p])); /* the item it names is one that never runs */
            assert_true(isnan(x.forecast.makespan));
            x.slots = 0;
            assert_int_equal(flaw.cause == RV_CAUSE_SLOTS, plain_run(&x, costs, end));
        }
        free(end);
        rv_schedule_finish(&x);
    }
    for (int cause = 0; cause < RV_CAUSES; cause++)
        assert_true(causes[cause] > 20); /* the draw holds all of them */
}

/* ---- uneven chunks, updates, several lists a stage --------------------------------------- */

static void simulate_uneven_chunks_weigh_by_steps(void **state) {
    (void)state;
    static const int steps[] = {3, 3, 2};
    cost_data d;
    rv_schedule x;
    rv_costs costs = *equal_costs(&d, 8, 8, 8);
    costs.chunk_steps = steps;
    make("filldrain", 1, 2, 3, 0, &costs, &x);
    simulate(&x, &costs);
    CLOSE(x.forecast.end[0], 3);
    CLOSE(x.forecast.end[2], 8);
    CLOSE(x.forecast.makespan, 48);
    assert_int_equal(x.forecast.peak[0], 6);
    assert_int_equal(x.forecast.peak_steps[0], 16);
    rv_schedule_finish(&x);
}

/* A held input: its product in F of chunk 0, its weight gradient in W of chunk 0. */
static void simulate_chunk_zero_has_what_is_done_once(void **state) {
    (void)state;
    static const double f_once[] = {5}, w_once[] = {2}, too_much[] = {9};
    cost_data d;
    rv_schedule x;
    rv_flaw flaw;
    rv_costs costs = *equal_costs(&d, 8, 3, 5);
    costs.once[RV_WORK_F] = f_once, costs.once[RV_WORK_W] = w_once;
    make("filldrain", 1, 1, 3, 0, &costs, &x);
    simulate(&x, &costs);
    CLOSE(x.forecast.end[0], 6);
    CLOSE(x.forecast.end[1], 7);
    CLOSE(x.forecast.end[2], 8);
    CLOSE(x.forecast.end[3], 10); /* chunk 2 */
    CLOSE(x.forecast.end[4], 12);
    CLOSE(x.forecast.end[5], 16);
    costs.once[RV_WORK_F] = too_much;
    assert_int_equal(rv_schedule_simulate(&x, &costs, &flaw), RV_CONFIG);
    rv_schedule_finish(&x);
}

static void simulate_updates_end_after_the_bubble(void **state) {
    (void)state;
    cost_data d;
    rv_schedule x;
    rv_costs costs = *equal_costs(&d, 1, 1, 1);
    costs.u = d.u, costs.norm = d.norm, costs.latency = 0.25;
    for (int s = 0; s < 3; s++)
        d.u[s] = 2, d.norm[s] = 0.5;
    make("filldrain", 3, 2, 1, 0, &costs, &x);
    assert_int_equal(rv_schedule_add_updates(&x, 2, true), RV_OK);
    simulate(&x, &costs);
    /* stage 0 is last with its W; its norm goes to stage 2, whose sum comes back to all */
    CLOSE(x.forecast.makespan, 2 * 3 + 2 * (1 + 0.25) + 2 * (2 + 0.25));
    CLOSE(x.forecast.total, x.forecast.makespan + 0.5 + 0.25 + 0.5 + 0.25 + 2);
    rv_schedule_finish(&x);
}

/* One device never waits, whatever the rounding of sums in two orders. */
static void simulate_one_stage_has_no_bubble(void **state) {
    (void)state;
    for (int k = 1; k <= 64; k++) {
        cost_data d;
        rv_schedule x;
        const rv_costs *costs = equal_costs(&d, 0.1 * k, 0.7 / k, 0.3);
        make("1f1b", 1, 3, 1 + k % 5, 0, costs, &x);
        simulate(&x, costs);
        if (signbit(x.forecast.bubble) || x.forecast.bubble > 1e-12)
            fail_msg("%d: bubble %g", k, x.forecast.bubble);
        rv_schedule_finish(&x);
    }
}

/* One stage whose items lie in two lists, `count` of them each. */
static void two_lists(rv_schedule *x, int M, int C, const char *const *texts, int count) {
    assert_int_equal(rv_schedule_init(x, 1, M, C, true, 0), RV_OK);
    assert_int_equal(rv_schedule_count(x), 2 * count);
    rv_free(x->first);
    assert_int_equal(rv_alloc(3, sizeof(int), "lists", &x->first), RV_OK);
    x->workers = 2, x->first[1] = count, x->first[2] = 2 * count;
    for (int p = 0; p < 2 * count; p++)
        assert_true(rv_work_parse(texts[p], strlen(texts[p]), 0, &x->items[p]));
}

/* F in one list, B in another: two streams. */
static void simulate_two_streams_peak_by_the_clock(void **state) {
    (void)state;
    static const char *const texts[] = {"F0.0",  "F1.0",  "F2.0",  "F3.0",
                                        "BW0.0", "BW1.0", "BW2.0", "BW3.0"};
    cost_data d;
    rv_schedule x;
    rv_flaw flaw;
    rv_costs costs = *equal_costs(&d, 1, 0.5, 0.5);
    two_lists(&x, 4, 1, texts, 4);
    simulate(&x, &costs);
    CLOSE(x.forecast.makespan, 5);
    assert_int_equal(x.forecast.peak[0], 2); /* what ends when F begins is gone by then */
    d.b[0] = 1;
    simulate(&x, &costs);
    CLOSE(x.forecast.makespan, 1 + 4 * 1.5);
    assert_int_equal(x.forecast.peak[0], 3);
    costs.cap = d.cap;
    d.cap[0] = 2;
    assert_int_equal(rv_schedule_simulate(&x, &costs, &flaw), RV_CONFIG);
    assert_int_equal(flaw.kind, RV_FLAW_MEMORY_CAP);
    x.slots = 1; /* messages of one edge must lie in one list to be counted */
    assert_int_equal(rv_schedule_simulate(&x, &costs, &flaw), RV_CONFIG);
    assert_int_equal(flaw.kind, RV_FLAW_UNKNOWN);
    rv_schedule_finish(&x);
}

/* Every need inside a stage counts where the lists do not imply it. */
static void simulate_stage_in_two_lists_runs_by_the_graph(void **state) {
    (void)state;
    static const char *const texts[] = {"F0.0", "BW0.0", "F0.1", "BW0.1"};
    cost_data d;
    rv_schedule x;
    rv_flaw flaw;
    two_lists(&x, 1, 2, texts, 2);
    simulate(&x, equal_costs(&d, 2, 2, 2));
    static const double start[] = {0, 4, 1, 2};
    for (int p = 0; p < 4; p++)
        CLOSE(x.forecast.start[p], start[p]);
    rv_work item = x.items[0]; /* BW0.0 F0.0 | F0.1 BW0.1: a list contradicts itself */
    x.items[0] = x.items[1], x.items[1] = item;
    assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
    assert_int_equal(flaw.cause, RV_CAUSE_ORDER_IN_STAGE);
    x.items[1] = x.items[3], x.items[3] = item; /* BW0.0 BW0.1 | F0.1 F0.0 */
    assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
    assert_int_equal(flaw.kind, RV_FLAW_DEADLOCK);
    rv_schedule_finish(&x);
}

/* Mean, deviation and least of what is drawn; a time belongs to its item and draw. */
static void items_scatter_around_what_they_cost(void **state) {
    (void)state;
    enum { ITEMS = 20000 };
    static const double scatter[] = {0.5, 0.2}, share[] = {0.5, 0.5};
    cost_data d;
    rv_costs costs = *equal_costs(&d, 4, 2, 2);
    costs.scatter = scatter;
    for (uint32_t n = 1; n <= 2; n++) {
        double sum = 0, squares = 0, least = INFINITY;
        costs.draw = n;
        for (int i = 0; i < ITEMS; i++) {
            const rv_work work = {.kind = RV_WORK_BW, .stage = 1, .micro = i, .chunk = i % 2};
            double time = rv_item_time(&costs, share, &work) / 2;
            sum += time, squares += time * time, least = fmin(least, time);
        }
        double mean = sum / ITEMS;
        assert_float_equal(mean, 1, 0.005);
        assert_float_equal(sqrt(squares / ITEMS - mean * mean), scatter[1], 0.01);
        assert_true(least >= 0.8 && least < 0.801);
    }
    const rv_work one = {.kind = RV_WORK_F, .stage = 0, .micro = 3, .chunk = 1};
    const double second = rv_item_time(&costs, share, &one);
    costs.draw = 1;
    assert_true(rv_item_time(&costs, share, &one) != second);
    costs.draw = 2;
    assert_true(rv_item_time(&costs, share, &one) == second);
    costs.draw = 0;
    assert_true(rv_item_time(&costs, share, &one) == 2);
}

/* Stages in turn lose what items scatter, one stage alone nothing; the forecast stays that of equal
 * items. */
static void expected_bubble_has_the_scatter_in_it(void **state) {
    (void)state;
    static const double none[] = {0, 0}, scatter[] = {0.25, 0.25};
    cost_data d;
    for (int S = 1; S <= 2; S++) {
        rv_costs costs = *equal_costs(&d, 1, 2, 0);
        rv_schedule x;
        double bubble[3];
        costs.scatter = none;
        make("1f1b", S, 4, 8, 0, &costs, &x);
        simulate(&x, &costs);
        const double makespan = x.forecast.makespan, last = x.forecast.end[9];
        assert_int_equal(rv_schedule_draws(&x, &costs), 0);
        assert_int_equal(rv_schedule_expect(&x, costs, &bubble[0]), RV_OK);
        assert_true(bubble[0] == x.forecast.bubble);
        costs.scatter = scatter;
        assert_int_equal(rv_schedule_expect(&x, costs, &bubble[1]), RV_OK);
        assert_int_equal(rv_schedule_expect(&x, costs, &bubble[2]), RV_OK);
        assert_true(bubble[1] == bubble[2]);
        if (S == 1)
            assert_true(bubble[1] < 1e-12);
        else
            assert_true(bubble[1] > bubble[0] + 0.03 && bubble[1] < bubble[0] + 0.12);
        assert_true(x.forecast.makespan == makespan && x.forecast.end[9] == last);
        assert_true(x.forecast.bubble == bubble[0]);
        rv_schedule_finish(&x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulate_random_lists_equal_the_plain_simulator),
        cmocka_unit_test(simulate_uneven_chunks_weigh_by_steps),
        cmocka_unit_test(simulate_chunk_zero_has_what_is_done_once),
        cmocka_unit_test(simulate_updates_end_after_the_bubble),
        cmocka_unit_test(simulate_one_stage_has_no_bubble),
        cmocka_unit_test(simulate_two_streams_peak_by_the_clock),
        cmocka_unit_test(simulate_stage_in_two_lists_runs_by_the_graph),
        cmocka_unit_test(items_scatter_around_what_they_cost),
        cmocka_unit_test(expected_bubble_has_the_scatter_in_it),
    };
    return cmocka_run_group_tests_name("pipeline_simulate", tests, NULL, NULL);
}
