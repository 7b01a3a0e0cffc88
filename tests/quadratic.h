/*
 * Delayed momentum on a parabola: rows of golden/delays_quadratic.csv, "D,momentum,rule,eta_max".
 * The largest stable step holds when weights that go 2 % less far shrink and weights that go 2 %
 * further grow, in the program's own versions and updates.
 */
#ifndef RV_TESTS_QUADRATIC_H
#define RV_TESTS_QUADRATIC_H

#include "pipeline/weights.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct quadratic_row {
    int delay;
    double momentum, eta;
    char rule[32];
} quadratic_row;

static inline bool quadratic_read(const char *line, quadratic_row *row) {
    return sscanf(line, "%d,%lf,%31[^,],%lf", &row->delay, &row->momentum, row->rule, &row->eta) ==
           4;
}

/* Options of sgd by name. */
static inline void quadratic_set(const rv_choice *sgd, const char *name, double value) {
    for (const rv_spec *spec = sgd->row->specs; spec->name; spec++)
        if (strcmp(spec->name, name) == 0)
            *(double *)(void *)((char *)sgd->options + spec->offset) = value;
}

/* Corrections of "gc+lwp_v", "none". */
static inline rv_status quadratic_rule(const quadratic_row *row, rv_delay_desc *desc) {
    rv_status status = RV_OK;
    char words[32], *rest = NULL;
    desc->mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), "stale");
    strcpy(words, row->rule);
    for (char *word = strtok_r(words, "+", &rest); word; word = strtok_r(NULL, "+", &rest))
        if (strcmp(word, "none") != 0) TRY(rv_delay_add(desc, word, NULL, 0));
out:
    return status;
}

/* Two weights, each on a parabola of its own curvature around 1, under one rate. The largest of the
 * last windows against that of the middle: what else there is in the recursion has died by then. */
static inline rv_status quadratic_run(const quadratic_row *row, rv_weights *w, double share,
                                      bool *grows) {
    rv_status status = RV_OK;
    const int steps = 60 * (row->delay + 1) *
                      (row->momentum > 0.95 ? 60
                       : row->momentum > 0  ? 8
                                            : 4);
    double middle = 0, last = 0;
    float gradient[16] = {0};
    rv_version_block(rv_weights_newest(w))[0] = 1;
    TRY(rv_weights_start(w, 0));
    for (int i = 0; i < steps; i++) {
        const rv_version *seen;
        TRY(rv_weights_forward(w, i, &seen));
        gradient[0] = (float)share * rv_version_block((rv_version *)seen)[0];
        TRY(rv_weights_update(w, gradient, 1, NULL, NULL));
        double size = fabs((double)rv_version_block(rv_weights_newest(w))[0]);
        if (!isfinite(size) || size > 1e30) {
            *grows = true;
            return RV_OK;
        }
        if (i >= steps / 2 && i < 5 * steps / 8) middle = fmax(middle, size);
        if (i >= 7 * steps / 8) last = fmax(last, size);
    }
    *grows = last > middle;
out:
    return status;
}

static inline bool quadratic_holds(const quadratic_row *row, const rv_device *device, char *why,
                                   size_t size) {
    rv_status status = RV_OK;
    double values[32] = {0};
    rv_linear_options linear = {1, false};
    rv_layer_desc layer = {.name = "w",
                           .row = rv_table_find(rv_layer_table(), "linear"),
                           .options = &linear,
                           .trainable = true};
    const rv_net_desc net_desc = {
        .input = {1, {1}}, .steps = 1, .layer_count = 1, .layers = &layer};
    rv_train_desc train = {.batch = 1, .micro_batches = 1, .chunks = 1};
    rv_delay_desc desc = {0};
    const rv_delay_shape shape = {row->delay + 1, 1, 1, 0, 0};
    rv_net *net = NULL;
    bool ok = false;
    train.optimizer = (rv_choice){rv_table_find(rv_optimizer_table(), "sgd"), values};
    if (train.optimizer.row->options_size > sizeof values) return false;
    rv_specs_default(train.optimizer.row->specs, values);
    quadratic_set(&train.optimizer, "lr", row->eta);
    quadratic_set(&train.optimizer, "momentum", row->momentum);
    TRY(quadratic_rule(row, &desc));
    TRY(rv_delay_check(&desc, &train));
    rv_delay_train(&desc, &train);
    TRY(rv_net_create(&net_desc, &net));
    ok = true;
    for (int k = 0; k < 2 && ok; k++) {
        const rv_delay_rule rule = rv_delay_rule_of(&desc, &shape);
        const rv_range range = rv_net_range(net, 0, 1);
        rv_weights w = {0};
        bool grows = k == 0;
        status = rv_weights_init(&w, &range, device, &train, 1, &rule, 1);
        if (status == RV_OK) status = quadratic_run(row, &w, k ? 1.02 : 0.98, &grows);
        rv_weights_finish(&w);
        ok = status == RV_OK && grows == (k == 1);
        snprintf(why, size, "%s %s at %d %% of the step", row->rule,
                 grows ? "grows" : "does not grow", k ? 102 : 98);
    }
out:
    rv_net_destroy(net);
    if (status) snprintf(why, size, "%.200s", rv_error_get()->message);
    return ok && status == RV_OK;
}

#endif
