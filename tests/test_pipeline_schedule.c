/* The checker: every flaw, alone. */
#include "tests/schedules.h"

/* ---- flaws ------------------------------------------------------------------------------ */

/* Put an item before position p (an index of `items`), or take one out. */
static void insert(rv_schedule *x, int k, int p, rv_work item) {
    rv_work *items;
    int n = rv_schedule_count(x);
    assert_int_equal(rv_alloc((size_t)n + 1, sizeof *items, "items", &items), RV_OK);
    memcpy(items, x->items, sizeof *items * (size_t)p);
    memcpy(items + p + 1, x->items + p, sizeof *items * (size_t)(n - p));
    items[p] = item;
    rv_free(x->items);
    x->items = items;
    for (int i = k + 1; i <= x->workers; i++)
        x->first[i]++;
}

static void take_out(rv_schedule *x, int k, int p) {
    memmove(x->items + p, x->items + p + 1,
            sizeof *x->items * (size_t)(rv_schedule_count(x) - p - 1));
    for (int i = k + 1; i <= x->workers; i++)
        x->first[i]--;
}

static rv_flaw flaw_of(rv_schedule *x, const rv_costs *costs) {
    rv_flaw flaw;
    assert_int_equal(rv_schedule_simulate(x, costs, &flaw), RV_CONFIG);
    assert_true(strlen(rv_error_get()->message) > 20);
    return flaw;
}

static void check_each_item_missing_doubled_unknown(void **state) {
    (void)state;
    static const char *const names[] = {"1f1b", "1f1b+2bp"};
    cost_data d;
    const rv_costs *costs = equal_costs(&d, 1, 1, 1);
    for (int i = 0; i < 2; i++) {
        rv_schedule x;
        make(names[i], 3, 4, 2, 0, costs, &x);
        for (int k = 0; k < 3; k++)
            for (int p = x.first[k]; p < x.first[k + 1]; p++) {
                rv_work item = x.items[p], other = item;
                take_out(&x, k, p);
                rv_flaw flaw = flaw_of(&x, costs);
                assert_int_equal(flaw.kind, RV_FLAW_MISSING);
                assert_true(same_work(&flaw.item, &item));
                insert(&x, k, p, item);
                insert(&x, k, x.first[k + 1], item);
                flaw = flaw_of(&x, costs);
                assert_int_equal(flaw.kind, RV_FLAW_DOUBLED);
                assert_true(same_work(&flaw.item, &item));
                assert_int_equal(flaw.position, x.first[k + 1] - x.first[k] - 1);
                take_out(&x, k, x.first[k + 1] - 1);
                for (int bad = 0; bad < 6; bad++) {
                    x.items[p] = other;
                    if (bad == 0) x.items[p].chunk = 2;
                    if (bad == 1) x.items[p].micro = 4;
                    if (bad == 2) x.items[p].micro = -1;
                    if (bad == 3) x.items[p].stage = 3;
                    if (bad == 4) x.items[p].kind = RV_WORK_U;
                    if (bad == 5) x.items[p].kind = i ? RV_WORK_BW : RV_WORK_W;
                    flaw = flaw_of(&x, costs);
                    assert_int_equal(flaw.kind, RV_FLAW_UNKNOWN);
                    assert_int_equal(flaw.worker, k);
                    assert_int_equal(flaw.position, p - x.first[k]);
                }
                x.items[p] = item;
            }
        simulate(&x, costs);
        rv_schedule_finish(&x);
    }
}

static void check_deadlocks_name_their_cause(void **state) {
    (void)state;
    cost_data d;
    const rv_costs *costs = equal_costs(&d, 1, 1, 1);
    rv_schedule x;
    make("1f1b", 3, 4, 2, 0, costs, &x);
    rv_work *last = x.items + x.first[2], item = last[0]; /* F0.0 F0.1 -> F0.1 F0.0 */
    last[0] = last[1], last[1] = item;
    rv_flaw flaw = flaw_of(&x, costs);
    assert_int_equal(flaw.kind, RV_FLAW_DEADLOCK);
    assert_int_equal(flaw.cause, RV_CAUSE_ORDER_IN_STAGE);
    assert_true(flaw.item.chunk == 1 && flaw.needs.chunk == 0 && flaw.worker == 2);
    rv_schedule_finish(&x);

    make("filldrain", 2, 2, 1, 0, costs, &x); /* F0 F1 B0 B1 -> F0 B0 F1 B1 at stage 0 */
    item = x.items[1], x.items[1] = x.items[2], x.items[2] = item;
    flaw = flaw_of(&x, costs);
    assert_int_equal(flaw.cause, RV_CAUSE_ACROSS_STAGES);
    assert_true(flaw.worker == 0 && flaw.position == 1 && flaw.needs.stage == 1);
    assert_non_null(strstr(rv_error_get()->message, "BW0.0 of stage 0"));
    assert_non_null(strstr(rv_error_get()->message, "waits for BW0.0 of stage 1"));
    rv_schedule_finish(&x);
}

/* U and NORM anywhere before the last W of their stage. */
static void check_updates_before_their_sums_are_refused(void **state) {
    (void)state;
    cost_data d;
    const rv_costs *costs = equal_costs(&d, 1, 1, 1);
    for (int norm = 0; norm < 2; norm++) {
        rv_schedule x;
        make("1f1b+2bp", 3, 2, 2, 0, costs, &x);
        assert_int_equal(rv_schedule_add_updates(&x, 2, norm), RV_OK);
        int end = x.first[1];
        for (int p = end - 2; p >= x.first[0]; p--) { /* the U wanders to the front */
            rv_work item = x.items[p];
            x.items[p] = x.items[p + 1], x.items[p + 1] = item;
            rv_flaw flaw = flaw_of(&x, costs);
            assert_int_equal(flaw.cause, RV_CAUSE_ORDER_IN_STAGE);
            assert_int_equal(flaw.item.kind, RV_WORK_U);
            assert_int_equal(flaw.position, p);
            assert_true(flaw.needs.kind == RV_WORK_W || (norm && flaw.needs.kind == RV_WORK_NORM));
        }
        rv_schedule_finish(&x);
    }
}

static void check_memory_cap_per_stage(void **state) {
    (void)state;
    cost_data d;
    rv_costs costs = *equal_costs(&d, 1, 1, 1);
    rv_schedule x;
    costs.cap = d.cap;
    for (int s = 0; s < 3; s++)
        d.cap[s] = 2 + 3 - 1 - s;
    make("1f1b", 3, 4, 2, 0, &costs, &x);
    simulate(&x, &costs);
    for (int s = 0; s < 3; s++) {
        d.cap[s]--;
        rv_flaw flaw = flaw_of(&x, &costs);
        assert_int_equal(flaw.kind, RV_FLAW_MEMORY_CAP);
        assert_true(flaw.item.stage == s && flaw.item.kind == RV_WORK_F);
        assert_true(flaw.limit == d.cap[s] && flaw.held == d.cap[s] + 1);
        assert_int_equal(x.forecast.peak[s], d.cap[s] + 1);
        d.cap[s]++;
    }
    rv_schedule_finish(&x);
}

static void check_bad_costs_are_refused(void **state) {
    (void)state;
    cost_data d;
    const rv_costs *costs = equal_costs(&d, 1, 1, 1);
    rv_schedule x;
    rv_flaw flaw;
    make("1f1b", 2, 2, 2, 0, costs, &x);
    d.b[1] = -1;
    assert_int_equal(rv_schedule_simulate(&x, costs, &flaw), RV_CONFIG);
    d.b[1] = NAN;
    assert_int_equal(rv_schedule_simulate(&x, costs, NULL), RV_CONFIG);
    d.b[1] = 1;
    simulate(&x, costs);
    rv_schedule_finish(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_each_item_missing_doubled_unknown),
        cmocka_unit_test(check_deadlocks_name_their_cause),
        cmocka_unit_test(check_updates_before_their_sums_are_refused),
        cmocka_unit_test(check_memory_cap_per_stage),
        cmocka_unit_test(check_bad_costs_are_refused),
    };
    return cmocka_run_group_tests_name("pipeline_schedule", tests, NULL, NULL);
}
