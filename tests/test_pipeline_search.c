/* `auto` against every fixed choice. */
#include "tests/schedules.h"

typedef struct task {
    cost_data data;
    double overhead; /* of every item: many chunks cost */
    double scaled[3][MOST];
    double tape[MOST], message[MOST]; /* of a whole sequence */
    int stages, micros;
    double memory; /* of which caps follow */
} task;

/* What a measurement gives: a whole sequence cut into C chunks costs C launches more. */
static rv_status costs_at(void *context, int chunks, rv_costs *costs) {
    task *t = context;
    *costs = t->data.costs;
    for (int s = 0; s < MOST; s++) {
        t->scaled[0][s] = t->data.f[s] + t->overhead * chunks;
        t->scaled[1][s] = t->data.b[s] + t->overhead * chunks;
        t->scaled[2][s] = t->data.w[s] + t->overhead * chunks;
    }
    costs->f = t->scaled[0], costs->b = t->scaled[1], costs->w = t->scaled[2];
    return RV_OK;
}

enum { CHUNKS = 6 };
static const int chunk_list[] = {1, 2, 3, 4, 6, 8};

/* Tapes, slots and weights of made-up sizes: a chunk takes its share of a sequence. */
static double weight_of(const task *t, int S, int C, int slots, const int *peak) {
    double bytes = 100;
    for (int s = 0; s < S; s++)
        bytes += (t->tape[s] * (peak ? peak[s] : C) + t->message[s] * slots) / C;
    return bytes;
}

static rv_status bytes_of(void *context, int chunks, int slots, const rv_schedule *schedule,
                          double *bytes) {
    const task *t = context;
    *bytes = weight_of(t, t->stages, chunks, slots, schedule ? schedule->forecast.peak : NULL);
    return RV_OK;
}

/* What is left beside one sequence at each stage and one slot, all for one stage. */
static rv_status caps_of(void *context, int chunks, int *cap) {
    const task *t = context;
    const double left = t->memory - weight_of(t, t->stages, chunks, 1, NULL);
    for (int s = 0; s < t->stages; s++)
        cap[s] = chunks + (int)(fmax(0, left) * chunks / t->tape[s]);
    return RV_OK;
}

/* Total time of the best order with these costs; INFINITY: none runs, or all need more than
 * `memory` (0: no limit). */
static double ordered(const task *t, const rv_costs *costs, const rv_generator *it, int S, int M,
                      int C, int slots, bool norm, double memory, double *least) {
    double fastest = INFINITY;
    for (int order = 0; order < rv_generator_orders(it, S, M, C); order++) {
        rv_schedule x;
        if (rv_schedule_order(it, order, S, M, C, costs, &x)) return fastest;
        assert_int_equal(rv_schedule_add_updates(&x, M, norm), RV_OK);
        x.slots = slots;
        if (rv_schedule_simulate(&x, costs, NULL) == RV_OK) {
            double bytes = weight_of(t, S, C, slots, x.forecast.peak);
            if (least) *least = fmin(*least, bytes);
            if (memory == 0 || bytes <= memory) fastest = fmin(fastest, x.forecast.total);
        }
        rv_schedule_finish(&x);
    }
    return fastest;
}

/* Total time of a fixed choice, zb with its cap and without one. From the generators and the
 * simulator alone. *least: the least bytes of all that run. */
static double fixed(task *t, int row, int S, int M, int C, int slots, bool norm, double memory,
                    double *least) {
    rv_costs costs;
    int cap[MOST];
    const rv_generator *it = (const void *)rv_table_row(rv_generator_table(), row);
    assert_int_equal(costs_at(t, C, &costs), RV_OK);
    double fastest = ordered(t, &costs, it, S, M, C, slots, norm, memory, least);
    if (!it->by_costs || costs.cap) return fastest;
    for (int s = 0; s < S; s++)
        cap[s] = M * C;
    costs.cap = cap;
    return fmin(fastest, ordered(t, &costs, it, S, M, C, slots, norm, memory, least));
}

/* What a recipe with these three words gets. */
static double wished(task *t, rv_search search, int row, int C, int slots) {
    rv_schedule best;
    double total = INFINITY;
    search.generator = (const void *)rv_table_row(rv_generator_table(), row);
    search.chunks = &C, search.chunk_count = 1, search.slots = slots, search.context = t;
    if (rv_schedule_search(&search, &best, NULL) == RV_OK) total = best.forecast.total;
    rv_schedule_finish(&best);
    return total;
}

static void random_task(task *t, uint32_t seed, rv_search *search) {
    *t = (task){.overhead = draw(seed, 5000, 3) / 16.0};
    random_costs(&t->data, seed);
    int S = 1 + (int)draw(seed, 5001, 6), M = 1 + (int)draw(seed, 5002, 6);
    t->stages = S;
    for (int s = 0; s < S; s++) {
        t->data.cap[s] = 8 + (int)draw(seed, 5004, 16);
        t->tape[s] = 1 + draw(seed, 6000 + (uint32_t)s, 40);
        t->message[s] = draw(seed, 6100 + (uint32_t)s, 20);
    }
    *search = (rv_search){.stages = S,
                          .micros = M,
                          .chunks = chunk_list,
                          .chunk_count = CHUNKS,
                          .norm = draw(seed, 5003, 2),
                          .costs = costs_at,
                          .bytes = bytes_of,
                          .context = t};
}

/* Every row, number of chunks and number of slots, one by one. */
static void search_never_loses_to_a_fixed_choice(void **state) {
    (void)state;
    int chosen[8] = {0}, rows = rv_generator_table()->count;
    for (uint32_t seed = 0; seed < 30; seed++) {
        task t;
        rv_search search;
        random_task(&t, seed, &search);
        if (draw(seed, 5005, 2)) t.data.costs.cap = t.data.cap;
        const int S = search.stages, M = search.micros;
        rv_schedule best;
        rv_searched searched;
        assert_int_equal(rv_schedule_search(&search, &best, &searched), RV_OK);
        assert_int_equal(best.group, M);
        assert_int_equal(searched.tried + searched.ruled_out, CHUNKS);
        assert_int_equal(searched.left, 0);
        double total = best.forecast.total;
        for (int row = 0; row < rows; row++) {
            if (strcmp(rv_table_row(rv_generator_table(), row)->name, best.name) == 0) {
                chosen[row]++;
                CLOSE(wished(&t, search, row, best.chunks, best.slots), total);
                CLOSE(fixed(&t, row, S, M, best.chunks, best.slots, search.norm, 0, NULL), total);
            }
            for (int c = 0; c < CHUNKS; c++)
                for (int k = 1; k <= M * chunk_list[c]; k++) {
                    double other = fixed(&t, row, S, M, chunk_list[c], k, search.norm, 0, NULL);
                    if (other < total * (1 - 2e-9))
                        fail_msg("seed %u: row %d, %d chunks, %d slots take %g, auto %g", seed, row,
                                 chunk_list[c], k, other, total);
                }
        }
        rv_schedule_finish(&best);
    }
    int kinds = 0;
    for (int row = 0; row < rows; row++)
        kinds += chosen[row] > 0;
    assert_true(kinds >= 4); /* no schedule is best always */
}

/* Chunk counts up to many, all candidates: fixed choices are drawn. */
static void search_never_loses_among_many_chunks(void **state) {
    (void)state;
    enum { MANY = 150, DRAWS = 40 };
    int all[MANY], ruled_out = 0;
    for (int c = 0; c < MANY; c++)
        all[c] = c + 1;
    for (uint32_t seed = 100; seed < 108; seed++) {
        task t;
        rv_search search;
        rv_schedule best;
        rv_searched searched;
        random_task(&t, seed, &search);
        t.overhead = (1 + draw(seed, 5000, 8)) / 256.0;
        search.chunks = all, search.chunk_count = MANY;
        search.micros = 1 + search.micros / 2;
        assert_int_equal(rv_schedule_search(&search, &best, &searched), RV_OK);
        assert_int_equal(searched.left, 0);
        ruled_out += searched.ruled_out;
        for (uint32_t n = 0; n < DRAWS; n++) {
            int row = (int)draw(seed, 7000 + n, (uint32_t)rv_generator_table()->count);
            int C = 1 + (int)draw(seed, 7100 + n, MANY), k = 1 + (int)draw(seed, 7200 + n, 20);
            double other = fixed(&t, row, search.stages, search.micros, C, k, search.norm, 0, NULL);
            assert_true(other >= best.forecast.total * (1 - 2e-9));
        }
        rv_schedule_finish(&best);
    }
    assert_true(ruled_out > MANY); /* or the bounds rule nothing out */
}

/* Long sequences, costs with and without a price of a chunk, with a limit of effort: of 20,000
 * counts few are left, none where the orders reach the floor, and what is fixed is faster by a
 * thousandth at most; in a grid of few cells not at all, if none is left. */
static void search_large_grids_lose_a_thousandth_at_most(void **state) {
    (void)state;
    enum { MANY = 20000, DRAWS = 6 };
    static int all[MANY];
    int near = 0, large = 0, whole = 0;
    for (int c = 0; c < MANY; c++)
        all[c] = c + 1;
    for (uint32_t seed = 200; seed < 208; seed++) {
        task t;
        rv_search search;
        rv_schedule best;
        rv_searched searched;
        random_task(&t, seed, &search);
        t.overhead = seed % 2 ? 0 : (1 + draw(seed, 5000, 8)) / 65536.0;
        search.chunks = all, search.chunk_count = MANY, search.effort = 8e6;
        assert_int_equal(rv_schedule_search(&search, &best, &searched), RV_OK);
        assert_int_equal(searched.tried + searched.ruled_out + searched.left, MANY);
        assert_true(searched.left < MANY / 20);
        near += searched.near, large += best.chunks > 100, whole += searched.left == 0;
        for (uint32_t n = 0; n < DRAWS; n++) {
            const int row = (int)draw(seed, 7000 + n, (uint32_t)rv_generator_table()->count);
            const int most = n % 2 ? MANY : RV_CELLS_FEW / (search.stages * search.micros);
            const int C = 1 + (int)draw(seed, 7100 + n, (uint32_t)most);
            double one = fixed(&t, row, search.stages, search.micros, C, 0, search.norm, 0, NULL);
            const bool exact = searched.left == 0 && n % 2 == 0;
            assert_true(one >= best.forecast.total * (1 - (exact ? 2e-9 : 1e-3)));
        }
        rv_schedule_finish(&best);
    }
    assert_true(near > 0 && large > 1 && whole > 3); /* or nothing was large, or all too much */
}

/* With a limit of memory: it fits whenever a fixed choice fits, and none that fits is faster. */
static void search_fits_whenever_a_fixed_choice_fits(void **state) {
    (void)state;
    int rows = rv_generator_table()->count, nothing = 0, fits = 0;
    for (uint32_t seed = 0; seed < 24; seed++) {
        task t;
        rv_search search;
        rv_schedule best;
        rv_searched searched;
        random_task(&t, seed, &search);
        search.chunk_count = 4;
        const int S = search.stages, M = search.micros;
        double least = INFINITY, small = weight_of(&t, S, 4, 1, NULL);
        for (int row = 0; row < rows; row++)
            for (int c = 0; c < search.chunk_count; c++)
                for (int k = 1; k <= M * chunk_list[c]; k++)
                    fixed(&t, row, S, M, chunk_list[c], k, search.norm, 0, &least);
        search.memory = (small + least) / 2 + (draw(seed, 5010, 9) - 2.0) * (1 + least - small) / 4;
        rv_status status = rv_schedule_search(&search, &best, &searched);
        assert_true(status == RV_OK || status == RV_RESOURCE);
        double total = status == RV_OK ? best.forecast.total : INFINITY;
        if (status == RV_OK)
            assert_true(weight_of(&t, S, best.chunks, best.slots, best.forecast.peak) <=
                        search.memory);
        else
            assert_true(searched.least > search.memory && searched.least <= least);
        nothing += status != RV_OK, fits += status == RV_OK;
        for (int row = 0; row < rows; row++)
            for (int c = 0; c < search.chunk_count; c++)
                for (int k = 1; k <= M * chunk_list[c]; k++) {
                    int C = chunk_list[c];
                    double one = fixed(&t, row, S, M, C, k, search.norm, search.memory, NULL);
                    assert_true(fmin(one, wished(&t, search, row, C, k)) >= total * (1 - 2e-9));
                }
        rv_schedule_finish(&best);
    }
    assert_true(nothing > 2 && fits > 8);
}

/* One sequence of tapes at each stage and one slot are enough: just so much memory is used. */
static void search_least_memory_is_enough(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 40; seed++) {
        task t;
        rv_search search;
        rv_schedule best;
        random_task(&t, seed, &search);
        search.memory = INFINITY;
        for (int c = 0; c < CHUNKS; c++)
            search.memory =
                fmin(search.memory, weight_of(&t, search.stages, chunk_list[c], 1, NULL));
        assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_OK);
        assert_int_equal(best.slots, 1);
        for (int s = 0; s < search.stages; s++)
            assert_int_equal(best.forecast.peak[s], best.chunks);
        rv_schedule_finish(&best);
        search.memory *= 0.99;
        assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_RESOURCE);
        assert_null(best.items);
    }
}

/* Caps that follow from the memory rule out more and lose nothing; nor does a limit of time of just
 * what the best takes, and below it there is nothing. */
static void search_within_caps_and_limit_finds_the_same(void **state) {
    (void)state;
    int ruled_out = 0, more = 0;
    for (uint32_t seed = 0; seed < 60; seed++) {
        task t;
        rv_search search;
        rv_schedule best, other;
        rv_searched plain, capped;
        random_task(&t, seed, &search);
        t.memory = weight_of(&t, search.stages, chunk_list[seed % CHUNKS], 1 + (int)seed % 3, NULL);
        search.memory = t.memory *= 1 + 0.1 * (double)(seed % 4);
        assert_int_equal(rv_schedule_search(&search, &best, &plain), RV_OK);
        const double total = best.forecast.total;
        search.caps = caps_of;
        assert_int_equal(rv_schedule_search(&search, &other, &capped), RV_OK);
        CLOSE(other.forecast.total, total);
        rv_schedule_finish(&other);
        search.limit = total;
        assert_int_equal(rv_schedule_search(&search, &other, NULL), RV_OK);
        CLOSE(other.forecast.total, total);
        rv_schedule_finish(&other);
        search.limit = total * (1 - 1e-6);
        assert_int_not_equal(rv_schedule_search(&search, &other, NULL), RV_OK);
        assert_null(other.items);
        ruled_out += plain.ruled_out, more += capped.ruled_out;
        rv_schedule_finish(&best);
    }
    assert_true(more > ruled_out);
}

/* When the effort is spent, what was not tried is told with a bound below which none of it lies. */
static void search_limited_effort_tells_what_is_left(void **state) {
    (void)state;
    int all[64];
    task t;
    rv_search search;
    rv_schedule best;
    rv_searched searched;
    for (int c = 0; c < 64; c++)
        all[c] = c + 1;
    random_task(&t, 3, &search);
    t.overhead = 0;
    search.chunks = all, search.chunk_count = 64, search.effort = 1;
    assert_int_equal(rv_schedule_search(&search, &best, &searched), RV_OK);
    assert_true(searched.left > 0 && searched.left_bound <= best.forecast.total);
    rv_schedule_finish(&best);
    search.effort = 0;
    assert_int_equal(rv_schedule_search(&search, &best, &searched), RV_OK);
    assert_int_equal(searched.left, 0);
    assert_true(isinf(searched.left_bound));
    rv_schedule_finish(&best);
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
        assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_OK);
        int row = rv_table_index(rv_generator_table(), &search.generator->row), M = cases[i].micros;
        double least = INFINITY;
        for (int k = 1; k <= 4 * M; k++)
            least = fmin(least, fixed(&t, row, 5, M, 4, k, false, 0, NULL));
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
    assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_OK);
    assert_string_equal(best.name, "1f1b");
    assert_int_equal(best.slots, 2); /* full speed from two on, the notes say */
    CLOSE(best.forecast.makespan, 3.0 * (16 + 2) / 4);
    rv_schedule_finish(&best);
    search.generator = NULL;
    for (int s = 0; s < 3; s++)
        t.data.b[s] = t.data.w[s] = 0; /* all orders take the same time: 1f1b holds least */
    assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_OK);
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
    assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_OK);
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
    assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "allowed"));
    assert_null(best.items);
    search.chunk_count = 0;
    assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_CONFIG);
    search.chunk_count = 1, search.generator = rv_generator_find("serial");
    assert_int_equal(rv_schedule_search(&search, &best, NULL), RV_CONFIG);
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
        status = rv_schedule_search(&search, &best, NULL);
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
        cmocka_unit_test(search_never_loses_among_many_chunks),
        cmocka_unit_test(search_large_grids_lose_a_thousandth_at_most),
        cmocka_unit_test(search_fits_whenever_a_fixed_choice_fits),
        cmocka_unit_test(search_least_memory_is_enough),
        cmocka_unit_test(search_within_caps_and_limit_finds_the_same),
        cmocka_unit_test(search_limited_effort_tells_what_is_left),
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
