/* Delays by closed form against counting in never-flushed lists; versions in lists. */
#include "tests/schedules.h"

static void delay_closed_form_equals_counting_in_lists(void **state) {
    (void)state;
    cost_data d;
    for (int S = 1; S <= 8; S++)
        for (int C = 1; C <= 8; C++) {
            rv_schedule x;
            int M = 4 * S + 8, watched = M / 2; /* far from both ends */
            make("1f1b", S, M, C, 0, equal_costs(&d, 1, 1, 1), &x);
            assert_int_equal(rv_schedule_add_updates(&x, 1, false), RV_OK);
            assert_int_equal(rv_schedule_count(&x), 2 * S * M * C + S * M);
            for (int k = 0; k < S; k++) {
                int n, updates = 0;
                const rv_work *list = rv_schedule_list(&x, k, &n);
                for (int p = 0; p < n; p++) {
                    const rv_work *i = &list[p];
                    updates += i->kind == RV_WORK_U;
                    if (i->kind == RV_WORK_F && i->micro == watched)
                        assert_int_equal(i->micro - updates, rv_delay_1f1b(S, C, k, i->chunk));
                }
            }
            simulate(&x, &d.costs);
            rv_schedule_finish(&x);
        }
    assert_int_equal(rv_delay_two_streams(8, 1, 0), 14);
    assert_int_equal(rv_delay_two_streams(8, 4, 0), 5);
    assert_int_equal(rv_delay_two_streams(8, 16, 7), 1);
}

/* A delayed run: pinned at chunk 0, no version more than needed, one less is refused. */
static void pin_delayed_run_keeps_the_least(void **state) {
    (void)state;
    cost_data d;
    for (int newest = 0; newest < 2; newest++)
        for (int S = 1; S <= 6; S++)
            for (int C = 1; C <= 4; C++) {
                rv_schedule x;
                rv_flaw flaw;
                int delay[8], M = 3 * S + 4, most = 0;
                for (int s = 0; s < S; s++)
                    delay[s] = rv_delay_1f1b(S, C, s, 0), most = delay[s] > most ? delay[s] : most;
                make("1f1b", S, M, C, 0, equal_costs(&d, 1, 1, 1), &x);
                assert_int_equal(rv_schedule_add_updates(&x, 1, false), RV_OK);
                assert_int_equal(rv_schedule_pin(&x, delay, newest), RV_OK);
                simulate(&x, &d.costs);
                if (!newest) assert_int_equal(x.kept, most + 1);
                if (x.kept > 1) {
                    x.kept--;
                    assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
                    assert_int_equal(flaw.kind, RV_FLAW_VERSION_NOT_KEPT);
                    x.kept++;
                }
                x.newest = false; /* who sees the newest going back is not pinned to forward */
                if (newest && most > 0) {
                    assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
                    assert_int_equal(flaw.kind, RV_FLAW_VERSION_NOT_PINNED);
                }
                rv_schedule_finish(&x);
            }
}

static void pin_2bw_needs_its_least_group(void **state) {
    (void)state;
    cost_data d;
    const int delay[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int S = 2; S <= 8; S++)
        for (int C = 1; C <= 8; C++) {
            int least = rv_group_2bw(S, C);
            for (int G = least > 1 ? least - 1 : 1; G <= least + 1; G++) {
                rv_schedule x;
                rv_flaw flaw;
                make("1f1b", S, 6 * G, C, 0, equal_costs(&d, 1, 1, 1), &x);
                assert_int_equal(rv_schedule_add_updates(&x, G, false), RV_OK);
                assert_int_equal(rv_schedule_updates(&x), 6);
                assert_int_equal(rv_schedule_pin(&x, delay, false), RV_OK);
                rv_status status = rv_schedule_simulate(&x, &d.costs, &flaw);
                if (G >= least) {
                    assert_int_equal(status, RV_OK);
                    assert_int_equal(x.kept, 2);
                } else { /* a version that does not exist yet */
                    assert_int_equal(flaw.kind, RV_FLAW_VERSION_NOT_KEPT);
                    assert_true(flaw.item.version > flaw.held);
                }
                rv_schedule_finish(&x);
            }
        }
}

static void check_versions_each_flaw(void **state) {
    (void)state;
    cost_data d;
    rv_flaw flaw;
    rv_schedule x;
    const int delay[] = {2, 1, 1};
    make("1f1b", 3, 6, 2, 0, equal_costs(&d, 1, 1, 1), &x);
    assert_int_equal(rv_schedule_pin(&x, delay, false), RV_CONFIG); /* no updates yet */
    assert_int_equal(rv_schedule_add_updates(&x, 1, false), RV_OK);
    assert_int_equal(rv_schedule_add_updates(&x, 1, false), RV_CONFIG); /* only once */
    assert_int_equal(rv_schedule_pin(&x, delay, false), RV_OK);
    simulate(&x, &d.costs);
    for (int p = 0; p < rv_schedule_count(&x); p++) {
        rv_work *i = &x.items[p], good = *i;
        if (i->kind == RV_WORK_U) continue;
        i->version = RV_NO_VERSION;
        assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
        assert_int_equal(flaw.kind, RV_FLAW_UNKNOWN);
        i->version = good.version + 1;
        assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
        assert_true(flaw.kind == RV_FLAW_VERSION_NOT_KEPT ||
                    flaw.kind == RV_FLAW_VERSION_NOT_PINNED);
        i->version = 99;
        assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
        assert_int_equal(flaw.kind, RV_FLAW_VERSION_NOT_KEPT);
        assert_int_equal(flaw.position, p - x.first[i->stage]);
        *i = good;
    }
    x.kept = 0; /* versions named, none kept */
    assert_int_equal(rv_schedule_simulate(&x, &d.costs, &flaw), RV_CONFIG);
    assert_int_equal(flaw.kind, RV_FLAW_VERSION_NOT_KEPT);
    rv_schedule_finish(&x);
}

static void updates_ragged_group_is_last(void **state) {
    (void)state;
    cost_data d;
    rv_schedule x;
    make("filldrain+2bp", 2, 5, 2, 0, equal_costs(&d, 1, 1, 1), &x);
    assert_int_equal(rv_schedule_add_updates(&x, 2, true), RV_OK);
    assert_int_equal(rv_schedule_updates(&x), 3);
    simulate(&x, &d.costs);
    int n;
    const rv_work *list = rv_schedule_list(&x, 1, &n);
    assert_true(list[n - 1].kind == RV_WORK_U && list[n - 1].micro == 2);
    assert_true(list[n - 2].kind == RV_WORK_NORM && list[n - 5].kind == RV_WORK_U);
    rv_schedule_finish(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delay_closed_form_equals_counting_in_lists),
        cmocka_unit_test(pin_delayed_run_keeps_the_least),
        cmocka_unit_test(pin_2bw_needs_its_least_group),
        cmocka_unit_test(check_versions_each_flaw),
        cmocka_unit_test(updates_ragged_group_is_last),
    };
    return cmocka_run_group_tests_name("pipeline_staleness", tests, NULL, NULL);
}
