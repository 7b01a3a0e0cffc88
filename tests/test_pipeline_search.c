/* `auto` against every fixed choice. */
#include "tests/schedules.h"

typedef struct task {
    cost_data data;
    double overhead; /* of every item: many chunks cost */
    double scaled[3][MOST];
    int calls;
} task;

/* What a measurement gives: a whole sequence cut into C chunks costs C launches more. */
static rv_status costs_at(void *context, int chunks, rv_costs *costs) {
    task *t = context;
    t->calls++;
    *costs = t->data.costs;
    for (int s = 0; s < MOST; s++) {
        t->scaled[0][s] = t->data.f[s] + t->overhead * chunks;
        t->scaled[1][s] = t->data.b[s] + t->overhead * chunks;
        t->scaled[2][s] = t->data.w[s] + t->overhead * chunks;
    }
    costs->f = t->scaled[0], costs->b = t->scaled[1], costs->w = t->scaled[2];
    return RV_OK;
}

static const int chunk_list[] = {1, 2, 3, 4, 6, 8}, slot_list[] = {1, 2, 3, 4, 6, 8, 12, 16};

/* Total time of a fixed choice; INFINITY: it does not run. */
static double fixed(task *t, int row, int S, int M, int C, int slots, bool norm) {
    rv_schedule x;
    rv_costs costs;
    double total = INFINITY;
    assert_int_equal(costs_at(t, C, &costs), RV_OK);
    if (rv_schedule_make((const void *)rv_table_row(rv_generator_table(), row), S, M, C, slots,
                         &costs, &x))
        return total;
    assert_int_equal(rv_schedule_add_updates(&x, M, norm), RV_OK);
    if (rv_schedule_simulate(&x, &costs, NULL) == RV_OK) total = x.forecast.total;
    rv_schedule_finish(&x);
    return total;
}

static void search_never_loses_to_a_fixed_choice(void **state) {
    (void)state;
    int chosen[8] = {0}, rows = rv_generator_table()->count;
    for (uint32_t seed = 0; seed < 60; seed++) {
        task t = {.overhead = draw(seed, 5000, 3) / 16.0};
        random_costs(&t.data, seed);
        int S = 1 + (int)draw(seed, 5001, 6), M = 1 + (int)draw(seed, 5002, 6);
        bool norm = draw(seed, 5003, 2);
        for (int s = 0; s < S; s++)
            t.data.cap[s] = 8 + (int)draw(seed, 5004, 16);
        if (draw(seed, 5005, 2)) t.data.costs.cap = t.data.cap;
        rv_search search = {.stages = S,
                            .micros = M,
                            .chunks = chunk_list,
                            .chunk_count = 6,
                            .norm = norm,
                            .costs = costs_at,
                            .context = &t};
        rv_schedule best;
        assert_int_equal(rv_schedule_search(&search, &best), RV_OK);
        assert_int_equal(best.group, M);
        double total = best.forecast.total;
        for (int row = 0; row < rows; row++) {
            if (strcmp(rv_table_row(rv_generator_table(), row)->name, best.name) == 0) {
                chosen[row]++;
                assert_true(fixed(&t, row, S, M, best.chunks, best.slots, norm) == total);
            }
            for (int c = 0; c < 6; c++)
                for (int k = 0; k < 8; k++)
                    assert_true(fixed(&t, row, S, M, chunk_list[c], slot_list[k], norm) >=
                                total * (1 - 1e-9));
        }
        rv_schedule_finish(&best);
    }
    int kinds = 0;
    for (int row = 0; row < rows; row++)
        kinds += chosen[row] > 0;
    assert_true(kinds >= 4); /* no schedule is best always */
}

/* The greedy order of zb can be better with fewer slots than with many: its counts are all tried.
 */
static void search_zb_tries_every_count_of_slots(void **state) {
    (void)state;
    static const struct {
        uint32_t seed;
        int micros, slots;
    } cases[] = {{854, 3, 3}, {1880, 3, 3}, {2449, 2, 3}};
    static const int four[] = {4};
    for (int i = 0; i < 3; i++) {
        task t = {0};
        random_costs(&t.data, cases[i].seed);
        rv_search search = {.stages = 5,
                            .micros = cases[i].micros,
                            .chunks = four,
                            .chunk_count = 1,
                            .generator = rv_generator_find("zb"),
                            .costs = costs_at,
                            .context = &t};
        rv_schedule best;
        assert_int_equal(rv_schedule_search(&search, &best), RV_OK);
        int row = rv_table_index(rv_generator_table(), &search.generator->row), M = cases[i].micros;
        double least = INFINITY;
        for (int k = 0; k < 8; k++)
            least = fmin(least, fixed(&t, row, 5, M, 4, slot_list[k], false));
        CLOSE(best.forecast.total, least);
        rv_schedule_finish(&best);
    }
}

static void search_equal_choices_take_least_memory_then_slots(void **state) {
    (void)state;
    static const int four[] = {4};
    task t = {0};
    equal_costs(&t.data, 1, 1, 1);
    rv_search search = {.stages = 3,
                        .micros = 4,
                        .chunks = four,
                        .chunk_count = 1,
                        .generator = rv_generator_find("1f1b"),
                        .costs = costs_at,
                        .context = &t};
    rv_schedule best;
    assert_int_equal(rv_schedule_search(&search, &best), RV_OK);
    assert_string_equal(best.name, "1f1b");
    assert_int_equal(best.slots, 2); /* full speed from two on, the notes say */
    CLOSE(best.forecast.makespan, 3.0 * (16 + 2) / 4);
    rv_schedule_finish(&best);
    search.generator = NULL;
    for (int s = 0; s < 3; s++)
        t.data.b[s] = t.data.w[s] = 0; /* all orders take the same time: 1f1b holds least */
    assert_int_equal(rv_schedule_search(&search, &best), RV_OK);
    for (int s = 0; s < 3; s++)
        assert_true(best.forecast.peak[s] <= 4 + 3 - 1 - s);
    rv_schedule_finish(&best);
}

static void search_fixed_slots_are_kept(void **state) {
    (void)state;
    task t = {0};
    random_costs(&t.data, 9);
    rv_search search = {.stages = 4,
                        .micros = 4,
                        .chunks = chunk_list,
                        .chunk_count = 6,
                        .slots = 5,
                        .costs = costs_at,
                        .context = &t};
    rv_schedule best;
    assert_int_equal(rv_schedule_search(&search, &best), RV_OK);
    assert_int_equal(best.slots, 5);
    rv_schedule_finish(&best);
}

static void search_nothing_runs_says_why(void **state) {
    (void)state;
    task t = {0};
    equal_costs(&t.data, 1, 1, 1);
    t.data.costs.cap = t.data.cap; /* no tape at all */
    rv_search search = {.stages = 2,
                        .micros = 2,
                        .chunks = chunk_list,
                        .chunk_count = 2,
                        .costs = costs_at,
                        .context = &t};
    rv_schedule best;
    assert_int_equal(rv_schedule_search(&search, &best), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "allowed"));
    assert_null(best.items);
    search.chunk_count = 0;
    assert_int_equal(rv_schedule_search(&search, &best), RV_CONFIG);
    search.chunk_count = 1, search.generator = rv_generator_find("serial");
    assert_int_equal(rv_schedule_search(&search, &best), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "one stage"));
}

#ifdef RV_FAULTS
/* The n-th allocation fails: a clean error (and no leak, the sanitizer says), for every n. */
static void search_failing_allocation_is_reported(void **state) {
    (void)state;
    task t = {0};
    random_costs(&t.data, 3);
    rv_search search = {.stages = 2,
                        .micros = 2,
                        .chunks = chunk_list,
                        .chunk_count = 2,
                        .norm = true,
                        .costs = costs_at,
                        .context = &t};
    rv_status status = RV_MEMORY;
    for (long n = 0; status != RV_OK; n++) {
        rv_schedule best;
        char *text = NULL;
        rv_schedule again = {0};
        rv_fault_arm(RV_FAULT_ALLOC, n, false);
        status = rv_schedule_search(&search, &best);
        if (status == RV_OK) status = rv_schedule_print(&best, &text);
        if (status == RV_OK) status = rv_schedule_parse("plan", text, &again);
        rv_fault_arm(RV_FAULT_ALLOC, -1, false);
        assert_true(status == RV_OK || status == RV_MEMORY);
        rv_schedule_finish(&again);
        rv_free(text);
        rv_schedule_finish(&best);
        assert_true(n < 100000);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(search_never_loses_to_a_fixed_choice),
        cmocka_unit_test(search_zb_tries_every_count_of_slots),
        cmocka_unit_test(search_equal_choices_take_least_memory_then_slots),
        cmocka_unit_test(search_fixed_slots_are_kept),
        cmocka_unit_test(search_nothing_runs_says_why),
#ifdef RV_FAULTS
        cmocka_unit_test(search_failing_allocation_is_reported),
#endif
    };
    return cmocka_run_group_tests_name("pipeline_search", tests, NULL, NULL);
}
