/*
 * losses.h5: losses and accuracy of snnTorch and SpikingJelly on a given output. The output is
 * made by one layer that passes it on: h = x, and s = x where x holds spikes.
 */
#include "tests/golden.h"

/* The file's cases as rows of our losses. */
static const struct row {
    const char *name, *loss;
    rv_readout readout;
    golden_option options[3];
} losses[] = {
    {"sj_tet_cross_entropy", "cross_entropy", RV_READ_EVERY_STEP, {{0}}},
    {"st_ce_rate_loss", "cross_entropy", RV_READ_EVERY_STEP, {{0}}},
    {"st_ce_count_loss*", "cross_entropy", RV_READ_SPIKE_COUNT, {{0}}},
    {"st_ce_max_membrane_loss", "cross_entropy", RV_READ_MEMBRANE_MAX, {{0}}},
    {"st_ce_temporal_loss_negate", "cross_entropy", RV_READ_FIRST_SPIKE, {{0}}},
    /* `time` counts its words from 0: negate, reciprocal */
    {"st_ce_temporal_loss_reciprocal", "cross_entropy", RV_READ_FIRST_SPIKE, {{"time", NULL, 1}}},
    {"st_mse_count_loss*",
     "mse_count",
     RV_READ_SPIKE_COUNT,
     {{"on", "correct_rate", 0}, {"off", "incorrect_rate", 0}}},
    {"st_mse_membrane_loss",
     "mse_membrane",
     RV_READ_EVERY_STEP,
     {{"on", "on_target", 0}, {"off", "off_target", 0}}},
    {"st_mse_temporal_loss",
     "mse_temporal",
     RV_READ_FIRST_SPIKE,
     {{"on", "on_target", 0}, {"off", "off_target", 0}}},
    /* with its defaults the library wants step 0 of every output */
    {"st_mse_temporal_loss_default",
     "mse_temporal",
     RV_READ_FIRST_SPIKE,
     {{"on", NULL, 0}, {"off", NULL, 0}}},
    {"st_accuracy", "cross_entropy", RV_READ_SPIKE_COUNT, {{0}}},
};

static const struct row *row_of(const char *name) {
    for (size_t k = 0; k < sizeof losses / sizeof *losses; k++) {
        golden_outside one[] = {{losses[k].name, ""}, {NULL, NULL}};
        if (golden_reason(one, name)) return &losses[k];
    }
    return NULL;
}

/* A layer whose membrane is its input: beta 0, gain 1; spikes where it is 1. */
static bool passing_layer(golden_case *c, golden_net *g, bool spikes) {
    rv_choice layer;
    return golden_layer(c, g, rv_neuron_table(), spikes ? "lif" : "li", "out", &layer) &&
           golden_set(c, &layer, "beta", 0) && golden_set(c, &layer, "gain", 1) &&
           (!spikes || golden_set(c, &layer, "threshold", 0.5));
}

/* The adjoint of the output at each step: what the loss gives for s, v and h together. */
static float *adjoint(golden_case *c, const rv_pass *pass, int ld) {
    size_t rows = (size_t)pass->t1 * (size_t)pass->B;
    float *sum = golden_memory(c, rows * (size_t)ld, sizeof *sum);
    const rv_values *parts[] = {&pass->gs, &pass->gv, &pass->gh};
    for (size_t p = 0; p < 3; p++)
        for (size_t r = 0; parts[p]->data && r < rows; r++) {
            size_t t = r / (size_t)pass->B, b = r % (size_t)pass->B;
            const float *from = parts[p]->data + t * parts[p]->stride_t + b * (size_t)parts[p]->ld;
            for (int u = 0; u < parts[p]->n; u++)
                sum[r * (size_t)ld + (size_t)u] += from[u];
        }
    return sum;
}

static bool run(golden_case *c, golden_net *g, const rv_loss_desc *desc) {
    rv_pass *pass = &g->pass;
    rv_loss *loss = NULL;
    rv_loss_result result = {0};
    if (!golden_ok(c, rv_state_clear(g->state, NULL)) ||
        !golden_ok(c, rv_version_derive(g->version, pass->B)) ||
        !golden_ok(c, rv_loss_create(desc, g->net, pass->device, pass->B, &loss)))
        return false;
    *rv_tape_signal(g->tape, -1) = g->batch.input;
    if (golden_ok(c, rv_net_forward(pass)) && golden_ok(c, rv_loss_observe(loss, pass)) &&
        golden_ok(c, rv_loss_finish(loss, pass, pass->B, &result, NULL))) {
        float value = (float)result.loss, correct = (float)result.correct / (float)pass->B;
        const char *accuracy =
            desc->readout == RV_READ_FIRST_SPIKE ? "accuracy_temporal" : "accuracy_rate";
        if (golden_has(c, accuracy))
            golden_close(c, accuracy, golden_get(c, accuracy), &correct, 1, 1e-6, 1);
        if (golden_has(c, "loss"))
            golden_close(c, "loss", golden_get(c, "loss"), &value, 1, 1e-6, 1);
        if (golden_has(c, "gx") && golden_ok(c, rv_loss_adjoint(loss, pass))) {
            int ld = g->batch.input.values.ld;
            golden_close(c, "gx", golden_get(c, "gx"), adjoint(c, pass, ld), ld, GOLDEN_MEMBRANE,
                         0);
        }
    }
    rv_loss_destroy(loss);
    return !c->failed;
}

golden_verdict golden_loss(golden_case *c) {
    const struct row *row = row_of(c->name);
    golden_net g = {0};
    rv_loss_desc desc = {.population = 1};
    if (!row || !golden_choose(c, rv_loss_table(), row->loss, &desc.loss) ||
        !golden_set_all(c, &desc.loss, row->options))
        return GOLDEN_UNKNOWN;
    desc.readout = row->readout;
    const golden_array *x = golden_get(c, "x"), *target = golden_get(c, "target");
    bool spikes = true;
    for (size_t k = 0; k < x->n; k++)
        spikes = spikes && (x->v[k] == 0 || x->v[k] == 1);
    if (!passing_layer(c, &g, spikes)) return GOLDEN_UNKNOWN;
    if (golden_net_open(c, &g, x)) {
        int outputs = g.batch.input.values.n;
        desc.classes = (int)golden_number(c, "num_classes", outputs);
        desc.population = desc.classes > 0 ? outputs / desc.classes : 1;
        int32_t *label = golden_memory(c, (size_t)g.pass.B, sizeof *label);
        for (size_t b = 0; b < target->n && b < (size_t)g.pass.B; b++)
            label[b] = (int32_t)target->v[b];
        g.batch.label = label;
        run(c, &g, &desc);
        if (golden_has(c, "accuracy_temporal")) {
            desc.readout = RV_READ_FIRST_SPIKE;
            run(c, &g, &desc);
        }
    }
    golden_net_close(&g);
    return golden_done(c);
}
