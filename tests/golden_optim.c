/* optim.h5: PyTorch's optimiser steps on one tensor, and its rate schedules. */
#include "tests/golden.h"
#include <stdio.h>

/* `step_*`: gradients are given, parameters after each step wanted. */
static golden_verdict steps(golden_case *c) {
    static const char *const names[][2] = {
        {"SGD", "sgd"}, {"Adam", "adam"}, {"AdamW", "adamw"}, {"RMSprop", "rmsprop"}};
    const char *name = "";
    rv_choice row;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (strcmp(golden_word(c, "optimiser"), names[k][0]) == 0) name = names[k][1];
    if (!golden_choose(c, rv_optimizer_table(), name, &row)) return GOLDEN_UNKNOWN;
    const golden_array *p0 = golden_get(c, "p0"), *grads = golden_get(c, "grads");
    const golden_array *want = golden_get(c, "p_after_each_step");
    if (c->failed || p0->n == 0 || grads->n % p0->n != 0 || want->n != grads->n)
        return golden_fail(c, "p0, grads and p_after_each_step do not fit"), GOLDEN_DIFFER;
    size_t n = p0->n, count = grads->n / n;
    float *weight = golden_rows(c, p0, (int)n), *grad = golden_rows(c, grads, (int)n);
    float *after = golden_memory(c, grads->n, sizeof *after);
    rv_optim_update u = {.kind = rv_table_index(rv_optimizer_table(), row.row),
                         .n = n,
                         .weight = weight,
                         .scale = 1,
                         .rate = golden_number(c, "lr", 0),
                         .decay = golden_number(c, "weight_decay", 0),
                         .momentum = golden_number(c, "momentum", 0),
                         .dampening = golden_number(c, "dampening", 0),
                         .beta1 = golden_number(c, "beta1", 0),
                         .beta2 = golden_number(c, "beta2", 0),
                         .epsilon = golden_number(c, "eps", 0),
                         .alpha = golden_number(c, "alpha", 0),
                         .nesterov = golden_number(c, "nesterov", 0) != 0,
                         .centered = golden_number(c, "centered", 0) != 0,
                         .decoupled = strcmp(name, "adamw") == 0};
    for (int k = 0; k < 3; k++)
        u.slot[k] = golden_memory(c, n, sizeof(float));
    for (u.step = 0; u.step < (int64_t)count; u.step++) {
        u.grad = grad + (size_t)u.step * n;
        if (!golden_ok(c, c->device->ops->optim_update(c->device->ctx, NULL, &u)))
            return GOLDEN_DIFFER;
        memcpy(after + (size_t)u.step * n, weight, n * sizeof *after);
    }
    golden_close(c, "p_after_each_step", want, after, (int)n, 2e-6, 1);
    return golden_done(c);
}

/* PyTorch's schedules as rows of ours; our horizon is the attribute `horizon` and, where another
 * schedule runs before, its `milestone`. */
static const struct schedule {
    const char *name, *row, *horizon;
    golden_option options[6];
} schedules[] = {
    {"CosineAnnealingLR", "cosine", "T_max", {{"min", "eta_min", 0}}},
    {"StepLR", "step", "steps", {{"every", "step_size", 0}, {"factor", "gamma", 0}}},
    {"LinearLR", "linear", "total_iters", {{"start", "start_factor", 0}, {"end", "end_factor", 0}}},
    {"OneCycleLR",
     "one_cycle",
     "total_steps",
     {{"rise", "pct_start", 0},
      {"div_factor", "div_factor", 0},
      {"final_div_factor", "final_div_factor", 0},
      {"base_momentum", "base_momentum", 0},
      {"max_momentum", "max_momentum", 0}}},
    {"SequentialLR",
     "cosine",
     "T_max",
     {{"warmup", "total_iters", 0}, {"warmup_start", "start_factor", 0}}},
};

static golden_verdict rates(golden_case *c) {
    const struct schedule *row = NULL;
    rv_choice choice;
    for (size_t k = 0; k < sizeof schedules / sizeof *schedules; k++)
        if (strcmp(golden_word(c, "schedule"), schedules[k].name) == 0) row = &schedules[k];
    if (!row) {
        snprintf(c->text, sizeof c->text, "no schedule for %s", golden_word(c, "schedule"));
        return GOLDEN_UNKNOWN;
    }
    if (!golden_choose(c, rv_schedule_table(), row->row, &choice)) return GOLDEN_UNKNOWN;
    if (!golden_set_all(c, &choice, row->options)) return GOLDEN_UNKNOWN;
    if (golden_has(c, "anneal") && !golden_word_set(c, &choice, "anneal", golden_word(c, "anneal")))
        return GOLDEN_UNKNOWN;
    const golden_array *want = golden_get(c, "lr");
    int64_t total = (int64_t)(golden_number(c, row->horizon, (double)want->n) +
                              golden_number(c, "milestone", 0));
    double lr = golden_number(c, "base_lr", 0);
    float *rate = golden_memory(c, want->n + 1, sizeof *rate);
    float *momentum = golden_memory(c, want->n + 1, sizeof *momentum);
    for (size_t k = 0; k < want->n; k++) {
        double r = 0, m = 0;
        if (!golden_ok(c, rv_schedule_rate(&choice, lr, (int64_t)k, total, &r, &m)))
            return GOLDEN_DIFFER;
        rate[k] = (float)r, momentum[k] = (float)m;
    }
    golden_close(c, "lr", want, rate, (int)want->n, 1e-6, 0);
    if (golden_has(c, "max_momentum"))
        golden_close(c, "momentum", golden_get(c, "momentum"), momentum, (int)want->n, 1e-6, 0);
    return golden_done(c);
}

golden_verdict golden_optim(golden_case *c) {
    if (strncmp(c->name, "step_", 5) == 0) return steps(c);
    if (strncmp(c->name, "schedule_", 9) == 0) return rates(c);
    return GOLDEN_UNKNOWN;
}
