/* Every generator over a grid of stages, micro-batches and chunks; speed. */
#include <time.h>

#include "tests/schedules.h"

static const int stage_grid[] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int micro_grid[] = {1, 2, 4, 8};
static const int chunk_grid[] = {1, 2, 3, 4, 8};

/* ---- generators over a grid ------------------------------------------------------------- */

typedef void grid_case(const rv_generator *row, int S, int M, int C);

static void over_grid(grid_case *test) {
    const rv_table *table = rv_generator_table();
    for (int row = 0; row < table->count; row++)
        for (size_t s = 0; s < sizeof stage_grid / sizeof *stage_grid; s++)
            for (size_t m = 0; m < sizeof micro_grid / sizeof *micro_grid; m++)
                for (size_t c = 0; c < sizeof chunk_grid / sizeof *chunk_grid; c++) {
                    const rv_generator *it = (const void *)rv_table_row(table, row);
                    if (it->one_stage && stage_grid[s] > 1) continue;
                    test(it, stage_grid[s], micro_grid[m], chunk_grid[c]);
                }
}

static void every_item_once(const rv_generator *row, int S, int M, int C) {
    cost_data d;
    rv_schedule x;
    make(row->row.name, S, M, C, 0, equal_costs(&d, 1, 2, 1), &x);
    char *seen = calloc((size_t)(S * M * C) * RV_WORK_KINDS, 1);
    assert_non_null(seen);
    assert_int_equal(rv_schedule_count(&x), S * M * C * (row->fused ? 2 : 3));
    for (int k = 0; k < x.workers; k++) {
        int n;
        const rv_work *list = rv_schedule_list(&x, k, &n);
        for (int p = 0; p < n; p++) {
            assert_int_equal(list[p].stage, k);
            assert_in_range(list[p].micro, 0, M - 1);
            assert_in_range(list[p].chunk, 0, C - 1);
            assert_int_equal(list[p].version, RV_NO_VERSION);
            char *at = &seen[((list[p].kind * S + k) * M + list[p].micro) * C + list[p].chunk];
            assert_int_equal(*at, 0);
            *at = 1;
        }
    }
    for (int i = 0; i < S * M * C * RV_WORK_KINDS; i++) {
        int kind = i / (S * M * C);
        bool used = kind == RV_WORK_F || (row->fused ? kind == RV_WORK_BW : kind <= RV_WORK_W);
        assert_int_equal(seen[i], used);
    }
    free(seen);
    rv_schedule_finish(&x);
}

static void generate_grid_holds_every_item_once(void **state) {
    (void)state;
    over_grid(every_item_once);
}

/* W, and so the sum of gradients, in one order everywhere: micro-batches up, chunks down. */
static void sums_in_order(const rv_generator *row, int S, int M, int C) {
    cost_data d;
    rv_schedule x;
    make(row->row.name, S, M, C, 2, random_costs(&d, (uint32_t)(S * M * C)), &x);
    for (int k = 0; k < x.workers; k++) {
        int n, sum = 0;
        const rv_work *list = rv_schedule_list(&x, k, &n);
        for (int p = 0; p < n; p++) {
            if (list[p].kind != RV_WORK_W && list[p].kind != RV_WORK_BW) continue;
            assert_int_equal(list[p].micro, sum / C);
            assert_int_equal(list[p].chunk, C - 1 - sum % C);
            sum++;
        }
    }
    rv_schedule_finish(&x);
}

static void generate_grid_adds_gradients_in_one_order(void **state) {
    (void)state;
    over_grid(sums_in_order);
}

static void makespan_and_peaks(const rv_generator *row, int S, int M, int C) {
    cost_data d;
    rv_schedule x;
    double bound;
    const char *name = row->row.name;
    const rv_costs *costs = equal_costs(&d, 1, 1, 1);
    const int L = M * C;
    make(name, S, M, C, 0, costs, &x);
    simulate(&x, costs);
    assert_int_equal(rv_schedule_bound(S, M, C, costs, &bound), RV_OK);
    const double makespan = x.forecast.makespan;
    assert_true(makespan >= bound * (1 - 1e-12));
    CLOSE(x.forecast.bubble, 1 - 3.0 * M / makespan);
    CLOSE(x.forecast.total, makespan);
    if (row->fused) {
        CLOSE(makespan, 3.0 * (L + S - 1) / C);
        CLOSE(x.forecast.bubble, (S - 1.0) / (L + S - 1));
    }
    if (strcmp(name, "1f1b+2bp") == 0 && (M - 1) * C >= S - 1)
        CLOSE(makespan, (3.0 * L + S - 1) / C);
    if (strcmp(name, "zb") == 0 && C > 1 && M > S) CLOSE(makespan, bound);
    for (int s = 0; s < S; s++) {
        int peak = x.forecast.peak[s], seq = C + S - 1 - s < L ? C + S - 1 - s : L;
        assert_int_equal(peak, x.forecast.peak_steps[s]);
        int n, held = 0, most = 0;
        const rv_work *list = rv_schedule_list(&x, s, &n);
        for (int p = 0; p < n; p++) {
            held += list[p].kind == RV_WORK_F;
            most = held > most ? held : most;
            held -= list[p].kind == RV_WORK_W || list[p].kind == RV_WORK_BW;
        }
        assert_int_equal(peak, most);
        if (strcmp(name, "serial") == 0) assert_int_equal(peak, C);
        if (strncmp(name, "filldrain", 9) == 0) assert_int_equal(peak, L);
        if (strcmp(name, "1f1b") == 0) assert_int_equal(peak, seq);
        if (strcmp(name, "1f1b+2bp") == 0) assert_in_range(peak, seq, L);
        if (strcmp(name, "zb") == 0) assert_true(peak <= C + 2 * (S - 1));
    }
    rv_schedule_finish(&x);
}

static void simulate_grid_makespan_bubble_peaks_as_formulas(void **state) {
    (void)state;
    over_grid(makespan_and_peaks);
}

/* Unequal stages, latency, few slots: every generator's order runs, no faster than the bound; zb
 * keeps to its caps. */
static void unequal(const rv_generator *row, int S, int M, int C) {
    cost_data d;
    for (uint32_t seed = 0; seed < 2; seed++) {
        rv_costs costs = *random_costs(&d, seed + (uint32_t)(8 * S + M + C));
        double bound, makespan[3];
        for (int slots = 0; slots < 3; slots++) {
            rv_schedule x;
            rv_flaw flaw;
            for (int s = 0; s < S; s++)
                d.cap[s] = C + S - 1;
            if (row->by_costs) costs.cap = d.cap;
            make(row->row.name, S, M, C, slots, &costs, &x);
            assert_int_equal(rv_schedule_simulate(&x, &costs, &flaw), RV_OK);
            makespan[slots] = x.forecast.makespan;
            assert_int_equal(rv_schedule_bound(S, M, C, &costs, &bound), RV_OK);
            assert_true(makespan[slots] >= bound * (1 - 1e-12));
            rv_schedule_finish(&x);
        }
        assert_true(makespan[1] >= makespan[2] * (1 - 1e-12));
        assert_true(makespan[2] >= makespan[0] * (1 - 1e-12));
    }
}

static void simulate_grid_unequal_stages_never_beat_the_bound(void **state) {
    (void)state;
    over_grid(unequal);
}

static void generate_zb_is_never_slower_than_its_plain_rule(void **state) {
    (void)state;
    const rv_zb_variant plain = {.patience = 1e-9};
    int better = 0, stuck = 0;
    for (uint32_t seed = 0; seed < 200; seed++) {
        cost_data d;
        const rv_costs *costs = random_costs(&d, seed);
        rv_schedule x, rule;
        rv_flaw flaw;
        int S = 2 + (int)draw(seed, 4000, 5), M = 1 + (int)draw(seed, 4001, 5);
        int C = 1 << draw(seed, 4002, 4), slots = (int)draw(seed, 4003, 4);
        make("zb", S, M, C, slots, costs, &x);
        simulate(&x, costs);
        assert_int_equal(rv_schedule_init(&rule, S, M, C, false, 0), RV_OK);
        assert_int_equal(rv_zb_plan(costs, &plain, &rule), RV_OK);
        rule.slots = slots;
        rv_status status = rv_schedule_simulate(&rule, costs, &flaw);
        stuck += status != RV_OK;
        if (status == RV_OK) {
            assert_true(x.forecast.makespan <= rule.forecast.makespan * (1 + 1e-12));
            better += x.forecast.makespan < rule.forecast.makespan * (1 - 1e-9);
        }
        rv_schedule_finish(&rule);
        rv_schedule_finish(&x);
    }
    assert_true(better > 10 && stuck > 10); /* what the other plans are for */
}

static void generate_zb_meets_the_bound_of_the_notes(void **state) {
    (void)state;
    static const int S[] = {2, 4, 8}, M[] = {1, 4, 8}, C[] = {1, 4, 16};
    cost_data d;
    const rv_costs *costs = equal_costs(&d, 1, 1, 1);
    for (int i = 0; i < 27; i++) {
        rv_schedule x;
        double bound;
        int s = S[i / 9], m = M[i / 3 % 3], c = C[i % 3];
        make("zb", s, m, c, 0, costs, &x);
        simulate(&x, costs);
        assert_int_equal(rv_schedule_bound(s, m, c, costs, &bound), RV_OK);
        CLOSE(x.forecast.makespan, bound);
        rv_schedule_finish(&x);
    }
}

static void generate_impossible_is_refused(void **state) {
    (void)state;
    cost_data d;
    rv_schedule x;
    rv_costs costs = *equal_costs(&d, 1, 1, 1);
    assert_int_equal(rv_schedule_make(rv_generator_find("serial"), 2, 1, 1, 0, &costs, &x),
                     RV_CONFIG);
    assert_int_equal(rv_schedule_make(rv_generator_find("1f1b"), 0, 1, 1, 0, &costs, &x),
                     RV_CONFIG);
    assert_int_equal(rv_schedule_make(rv_generator_find("1f1b"), 2, 1, 70000, 0, &costs, &x),
                     RV_CONFIG);
    costs.cap = d.cap;
    d.cap[0] = 4, d.cap[1] = 3;
    assert_int_equal(rv_schedule_make(rv_generator_find("zb"), 2, 2, 4, 0, &costs, &x), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "stage 1"));
    assert_null(rv_generator_find("gpipe"));
}

/* ---- speed ------------------------------------------------------------------------------ */

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void generate_and_check_64_64_8_takes_under_a_second(void **state) {
    (void)state;
    cost_data d;
    const rv_costs *costs = random_costs(&d, 5);
    const rv_table *table = rv_generator_table();
    for (int row = 1; row < table->count; row++)
        for (int slots = 0; slots < 3; slots += 2) {
            rv_schedule x;
            double begin = cpu_seconds();
            make(rv_table_row(table, row)->name, 64, 8, 64, slots, costs, &x);
            simulate(&x, costs);
            double seconds = cpu_seconds() - begin;
            print_message("%s, %d slots: %.3f s\n", x.name, slots, seconds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
            assert_true(seconds < 1);
#endif
            rv_schedule_finish(&x);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_grid_holds_every_item_once),
        cmocka_unit_test(generate_grid_adds_gradients_in_one_order),
        cmocka_unit_test(simulate_grid_makespan_bubble_peaks_as_formulas),
        cmocka_unit_test(simulate_grid_unequal_stages_never_beat_the_bound),
        cmocka_unit_test(generate_zb_is_never_slower_than_its_plain_rule),
        cmocka_unit_test(generate_zb_meets_the_bound_of_the_notes),
        cmocka_unit_test(generate_impossible_is_refused),
        cmocka_unit_test(generate_and_check_64_64_8_takes_under_a_second),
    };
    return cmocka_run_group_tests_name("pipeline_generators", tests, NULL, NULL);
}
