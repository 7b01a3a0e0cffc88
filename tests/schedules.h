/* What the tests of schedules share: costs and short calls that must succeed. */
#ifndef TESTS_SCHEDULES_H
#define TESTS_SCHEDULES_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/schedule.h"

enum { MOST = 64 };

/* Costs whose sums are exact. */
typedef struct cost_data {
    rv_costs costs;
    double f[MOST], b[MOST], w[MOST], once[RV_WORK_BW][MOST], u[MOST], norm[MOST];
    int cap[MOST];
} cost_data;

static inline uint32_t draw(uint32_t seed, uint32_t n, uint32_t below) {
    uint32_t out[4];
    rv_random4(out, seed, RV_FOR_DATA, 0, 0, n, 0, 0);
    return out[0] % below;
}

static inline const rv_costs *equal_costs(cost_data *d, double f, double b, double w) {
    memset(d, 0, sizeof *d);
    for (int s = 0; s < MOST; s++)
        d->f[s] = f, d->b[s] = b, d->w[s] = w;
    d->costs = (rv_costs){.f = d->f, .b = d->b, .w = d->w};
    return &d->costs;
}

static inline const rv_costs *random_costs(cost_data *d, uint32_t seed) {
    equal_costs(d, 0, 0, 0);
    for (uint32_t s = 0; s < MOST; s++) {
        d->f[s] = (1 + draw(seed, 4 * s, 12)) / 4.0;
        d->b[s] = (1 + draw(seed, 4 * s + 1, 12)) / 4.0;
        d->w[s] = draw(seed, 4 * s + 2, 12) / 4.0;
        d->u[s] = draw(seed, 4 * s + 3, 3) / 8.0;
        d->norm[s] = 0.25;
        for (uint32_t k = RV_WORK_F; k <= RV_WORK_W; k++) {
            const double *const whole[] = {d->f, d->b, d->w};
            d->once[k][s] = seed % 2 ? whole[k][s] * draw(seed, 2000 + 4 * s + k, 4) / 4 : 0;
            d->costs.once[k] = d->once[k];
        }
    }
    d->costs.u = d->u, d->costs.norm = d->norm;
    d->costs.latency = draw(seed, 1000, 3) / 16.0;
    return &d->costs;
}

static inline void make(const char *name, int S, int M, int C, int slots, const rv_costs *costs,
                        rv_schedule *out) {
    assert_int_equal(rv_schedule_make(rv_generator_find(name), S, M, C, slots, costs, out), RV_OK);
}

static inline void simulate(rv_schedule *schedule, const rv_costs *costs) {
    rv_flaw flaw;
    rv_status status = rv_schedule_simulate(schedule, costs, &flaw);
    if (status) fail_msg("%s: %s", schedule->name, rv_error_get()->message);
    assert_int_equal(flaw.kind, RV_FLAW_NONE);
}

/* The same item of the grid; versions are compared apart. */
static inline bool same_work(const rv_work *a, const rv_work *b) {
    return a->kind == b->kind && a->stage == b->stage && a->micro == b->micro &&
           a->chunk == b->chunk;
}

/* To rounding. */
#define CLOSE(a, b) assert_float_equal(a, b, 1e-9 * (1 + fabs((double)(b))))

#endif
