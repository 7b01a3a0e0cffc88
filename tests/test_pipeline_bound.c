/* Lower bounds of a step against every order that the generators make. */
#include "tests/schedules.h"

enum { CHUNKS_MANY = 24 };

typedef struct grid {
    cost_data data;
    int S, M, C;
    int steps[CHUNKS_MANY];
    bool norm;
} grid;

/* Stages of very different costs, chunks of very different sizes, in every form costs have. */
static void random_grid(grid *g, uint32_t seed) {
    rv_costs *costs = &g->data.costs;
    random_costs(&g->data, seed);
    g->S = 1 + (int)draw(seed, 9000, 6), g->M = 1 + (int)draw(seed, 9001, 6);
    g->C = 1 + (int)draw(seed, 9002, CHUNKS_MANY), g->norm = draw(seed, 9003, 2);
    for (uint32_t c = 0; c < CHUNKS_MANY; c++)
        g->steps[c] = 1 + (int)draw(seed, 9100 + c, 5);
    switch (draw(seed, 9004, 3)) {
    case 0:
        costs->chunk_steps = g->steps;
        break;
    case 1:
        costs->steps = g->C + (int)draw(seed, 9005, 40);
        break;
    default:
        break;
    }
    for (int s = 0; s < g->S; s++)
        g->data.cap[s] = g->C + (int)draw(seed, 9200 + (uint32_t)s, 9);
    if (draw(seed, 9006, 4) == 0) costs->cap = g->data.cap;
}

static double order_of(const grid *g, const rv_costs *costs, const rv_generator *it, int order,
                       int slots) {
    rv_schedule x;
    double total = INFINITY;
    if (rv_schedule_order(it, order, g->S, g->M, g->C, costs, &x)) return INFINITY;
    assert_int_equal(rv_schedule_add_updates(&x, g->M, g->norm), RV_OK);
    x.slots = slots;
    if (rv_schedule_simulate(&x, costs, NULL) == RV_OK) total = x.forecast.total;
    rv_schedule_finish(&x);
    return total;
}

/* Least total over all rows and orders, zb without a cap too. */
static double best_of(const grid *g, int slots) {
    double best = INFINITY;
    rv_costs free = g->data.costs;
    int cap[MOST];
    for (int s = 0; s < g->S; s++)
        cap[s] = g->M * g->C;
    free.cap = cap;
    for (int row = 0; row < rv_generator_table()->count; row++) {
        const rv_generator *it = (const void *)rv_table_row(rv_generator_table(), row);
        for (int order = 0; order < it->orders; order++) {
            best = fmin(best, order_of(g, &g->data.costs, it, order, slots));
            if (!g->data.costs.cap) best = fmin(best, order_of(g, &free, it, order, slots));
        }
    }
    return best;
}

static double floor_of(const grid *g) {
    double bound;
    assert_int_equal(rv_schedule_floor(g->S, g->M, g->C, &g->data.costs, g->norm, &bound), RV_OK);
    return bound;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Never above an order, and close to the best one. */
static void floor_no_order_is_below_it(void **state) {
    (void)state;
    enum { CASES = 1200 };
    double gap[CASES], other[CASES];
    int n = 0;
    for (uint32_t seed = 0; seed < CASES; seed++) {
        grid g;
        double bound;
        random_grid(&g, seed);
        const double best = best_of(&g, 0), least = floor_of(&g);
        if (isinf(best)) continue; /* a cap that none keeps */
        if (best < least * (1 - 1e-12))
            fail_msg("seed %u: %d stages, %d micro-batches, %d chunks take %.12g, floor %.12g",
                     seed, g.S, g.M, g.C, best, least);
        if (draw(seed, 9007, 4) == 0) assert_true(best_of(&g, 1) >= best * (1 - 1e-12));
        assert_int_equal(rv_schedule_bound(g.S, g.M, g.C, &g.data.costs, &bound), RV_OK);
        gap[n] = best / least - 1, other[n++] = best / bound - 1;
    }
    qsort(gap, (size_t)n, sizeof *gap, ascending);
    qsort(other, (size_t)n, sizeof *other, ascending);
    assert_true(n > CASES / 2 && gap[n / 2] < 2e-4 && gap[n * 3 / 4] < 0.02);
    assert_true(gap[n / 2] < other[n / 2] / 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floor_no_order_is_below_it),
    };
    return cmocka_run_group_tests_name("pipeline_bound", tests, NULL, NULL);
}
