/*
 * One function and one row a schedule. All of them take F with micro-batches and chunks ascending
 * and B with micro-batches ascending and chunks descending, and W in the order of B: then gradients
 * are added in one order everywhere, and both ends of an edge agree on the order of its messages.
 */
#include <math.h>
#include <string.h>

#include "pipeline/schedule_index.h"

/* ---- lists ------------------------------------------------------------------------------ */

/* Where a stage's list is being written. Items of a kind are numbered by their fixed order. */
typedef struct pen {
    rv_work *next;
    int stage, chunks, count; /* count: M*C */
    int done[RV_WORK_KINDS];
} pen;

static pen pen_at(rv_schedule *schedule, int stage) {
    return (pen){.next = schedule->items + schedule->first[stage],
                 .stage = stage,
                 .chunks = schedule->chunks,
                 .count = schedule->micros * schedule->chunks};
}

/* The next item of a kind. */
static void put(pen *to, rv_work_kind kind) {
    int n = to->done[kind]++, c = n % to->chunks;
    *to->next++ = (rv_work){.kind = (uint8_t)kind,
                            .stage = (uint16_t)to->stage,
                            .micro = n / to->chunks,
                            .chunk = (uint16_t)(kind == RV_WORK_F ? c : to->chunks - 1 - c),
                            .version = RV_NO_VERSION};
}

static void put_all(pen *to, rv_work_kind kind) {
    while (to->done[kind] < to->count)
        put(to, kind);
}

/* ---- schedules -------------------------------------------------------------------------- */

static rv_status generate_serial(const rv_costs *costs, int order, rv_schedule *schedule) {
    (void)costs, (void)order;
    pen to = pen_at(schedule, 0);
    for (int m = 0; m < schedule->micros; m++) {
        for (int c = 0; c < schedule->chunks; c++)
            put(&to, RV_WORK_F);
        for (int c = 0; c < schedule->chunks; c++)
            put(&to, RV_WORK_BW);
    }
    return RV_OK;
}

static rv_status generate_filldrain(const rv_costs *costs, int order, rv_schedule *schedule) {
    (void)costs, (void)order;
    for (int s = 0; s < schedule->stages; s++) {
        pen to = pen_at(schedule, s);
        put_all(&to, RV_WORK_F);
        put_all(&to, (rv_work_kind)rv_schedule_b(schedule));
        if (!schedule->fused) put_all(&to, RV_WORK_W);
    }
    return RV_OK;
}

/* The last stage needs the whole sequence before its first B, so C+S-2-s chunks warm up (C of them
 * at the last stage, the next F among them). With B alone, W waits for the cool-down: there one
 * stands before each B, and fills the time in which the stage would wait for it. */
static rv_status generate_1f1b(const rv_costs *costs, int order, rv_schedule *schedule) {
    (void)costs, (void)order;
    const rv_work_kind b = (rv_work_kind)rv_schedule_b(schedule);
    for (int s = 0; s < schedule->stages; s++) {
        pen to = pen_at(schedule, s);
        int warm = schedule->chunks + schedule->stages - 2 - s;
        for (int i = 0; i < warm && i < to.count; i++)
            put(&to, RV_WORK_F);
        while (to.done[RV_WORK_F] < to.count) {
            put(&to, RV_WORK_F);
            put(&to, b);
        }
        while (to.done[b] < to.count) {
            if (!schedule->fused && to.done[RV_WORK_W] < to.done[b]) put(&to, RV_WORK_W);
            put(&to, b);
        }
        if (!schedule->fused) put_all(&to, RV_WORK_W);
    }
    return RV_OK;
}

/* The first is the rule as published. A greedy choice can cost more than it brings, and which one
 * does cannot be seen while planning, so several orders are made and the best is kept. With few
 * slots a plan that looks at them is better by far, and may be the only one that runs; looking at
 * two slots can help even where there are more. The set is the same for every count of slots: so
 * zb, too, is never slower with more of them, and `auto` need not try every count. */
enum { ZB_FEW = 4 };
static const rv_zb_variant zb_variants[] = {
    {.patience = 1e-9},
    {.patience = 1e-9, .slots = 2},
    {.patience = 1e-9, .slots = 1},
    {.patience = 1e-9, .slots = 4},
    {.patience = 1e-9, .slots = 3},
    {.patience = 1e-9, .slots = 6},
    {.patience = 0.05},
    {.patience = 0.05, .slots = 1},
    {.patience = 0.05, .slots = 2},
    {.patience = 0.05, .slots = 4},
    {.patience = 0, .slots = 1},
    {.patience = 0, .slots = 2},
    {.patience = 0, .slots = 4},
};

static rv_status generate_zb(const rv_costs *costs, int order, rv_schedule *schedule) {
    return rv_zb_plan(costs, &zb_variants[order], schedule);
}

/* ---- table ------------------------------------------------------------------------------ */

static const rv_generator rows[] = {
    {.row = {.name = "serial", .sentence = "one stage, one micro-batch after the other"},
     .fused = true,
     .one_stage = true,
     .orders = 1,
     .few_orders = 1,
     .generate = generate_serial},
    {.row = {.name = "filldrain",
             .sentence = "all forward, then all backward; holds tapes of all micro-batches",
             .source = "Huang et al. 2019 (GPipe); Li et al. 2021 (TeraPipe)"},
     .fused = true,
     .orders = 1,
     .few_orders = 1,
     .generate = generate_filldrain},
    {.row = {.name = "filldrain+2bp",
             .sentence = "filldrain with weight gradients after all input gradients",
             .source = "Rae, Lee and Richings 2024 (2BP)"},
     .orders = 1,
     .few_orders = 1,
     .generate = generate_filldrain},
    {.row = {.name = "1f1b",
             .sentence = "forward and backward in turn; tapes of little more than one sequence",
             .source = "Fan et al. 2021 (DAPPLE); Sun et al. 2024 (Seq1F1B)"},
     .fused = true,
     .orders = 1,
     .few_orders = 1,
     .generate = generate_1f1b},
    {.row = {.name = "1f1b+2bp",
             .sentence = "1f1b with weight gradients put off to the drain; least idle, most memory",
             .source = "Rae, Lee and Richings 2024 (2BP)"},
     .orders = 1,
     .few_orders = 1,
     .generate = generate_1f1b},
    {.row = {.name = "zb",
             .sentence = "greedy by costs, weight gradients fill the gaps, within a memory cap",
             .source = "Qi et al. 2023 (zero bubble)"},
     .by_costs = true,
     .orders = sizeof zb_variants / sizeof *zb_variants,
     .few_orders = ZB_FEW,
     .generate = generate_zb},
};
static const rv_table table = {"pipeline_schedules", rows, sizeof *rows,
                               sizeof rows / sizeof *rows};

const rv_table *rv_generator_table(void) {
    return &table;
}

const rv_generator *rv_generator_find(const char *name) {
    return (const rv_generator *)rv_table_find(&table, name); /* the row is its first member */
}

int rv_generator_orders(const rv_generator *generator, int stages, int micros, int chunks) {
    double cells = (double)stages * micros * chunks;
    return cells > RV_CELLS_FEW ? generator->few_orders : generator->orders;
}

rv_status rv_schedule_order(const rv_generator *generator, int order, int stages, int micros,
                            int chunks, const rv_costs *costs, rv_schedule *schedule) {
    rv_status status = RV_OK;
    *schedule = (rv_schedule){0};
    if (generator->one_stage && stages > 1)
        FAIL(RV_CONFIG, "schedule: %s has one stage, not %d", generator->row.name, stages);
    TRY(rv_schedule_init(schedule, stages, micros, chunks, generator->fused, 0));
    strncpy(schedule->name, generator->row.name, sizeof schedule->name - 1);
    TRY(generator->generate(costs, order, schedule));
out:
    if (status) rv_schedule_finish(schedule);
    return status;
}

/* Makespan of one order with so many slots; INFINITY: it does not run. */
static rv_status order_try(rv_schedule *schedule, int slots, const rv_costs *costs,
                           double *makespan) {
    rv_flaw flaw;
    schedule->slots = slots;
    rv_status status = rv_schedule_simulate(schedule, costs, &flaw);
    if (status && flaw.kind != RV_FLAW_DEADLOCK) return status;
    *makespan = status ? INFINITY : schedule->forecast.makespan;
    return RV_OK;
}

rv_status rv_schedule_make(const rv_generator *generator, int stages, int micros, int chunks,
                           int slots, const rv_costs *costs, rv_schedule *schedule) {
    rv_status status = RV_OK;
    rv_schedule other = {0};
    double best = INFINITY, bound, makespan;
    const int orders = rv_generator_orders(generator, stages, micros, chunks);
    TRY(rv_schedule_order(generator, 0, stages, micros, chunks, costs, schedule));
    schedule->slots = slots;
    if (orders == 1) goto out;
    TRY(order_try(schedule, slots, costs, &best));
    TRY(rv_schedule_bound(stages, micros, chunks, costs, &bound));
    for (int order = 1; order < orders && best > bound * (1 + 1e-9); order++) {
        rv_schedule_finish(&other);
        TRY(rv_schedule_order(generator, order, stages, micros, chunks, costs, &other));
        TRY(order_try(&other, slots, costs, &makespan));
        if (!(makespan < best * (1 - 1e-9))) continue;
        best = makespan;
        rv_schedule slower = *schedule;
        *schedule = other;
        other = slower;
    }
out:
    rv_schedule_finish(&other);
    if (status) rv_schedule_finish(schedule);
    return status;
}
