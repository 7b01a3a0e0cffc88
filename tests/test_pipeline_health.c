/*
 * Health: a value that is not finite, put anywhere, is found in the same step and named; warnings
 * are those of the net they are made for, and a sound net has none.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "pipeline/health.h"
#include "snn/layer.h"
#include "tests/scale.h"
#include "tests/spawn.h"

/* ---- values put into a training ---------------------------------------------------------- */

enum { T = 6, HIDDEN = 24, OUT = 4, PIXELS = 36, BATCH = 16 };

typedef struct lab {
    rv_setup setup;
    rv_share share;
    rv_run *run;
    rv_health *health;
    const rv_batch *batch;
    float *weights; /* the good ones */
    /* what the next step is given */
    int layer, time, row, unit; /* membrane at this place */
    float value;
    size_t gradient; /* offset; SIZE_MAX: none */
    bool membrane;
} lab;

/* Between two chunks of one step each: the membrane that the next step begins with. */
static rv_status inject(void *self, const rv_pass *pass) {
    lab *l = self;
    if (l->gradient != SIZE_MAX && pass->chunk == 0)
        ((float *)(uintptr_t)rv_engine_gradient(l->setup.engine))[l->gradient] = l->value;
    rv_status status = rv_health_training(l->health)->forward((void *)l->health, pass);
    bool here = l->layer >= pass->first && l->layer < pass->last;
    if (status == RV_OK && l->membrane && here && pass->t1 == l->time) {
        const rv_layer *layer = &l->setup.net->layers[l->layer];
        size_t ld = (size_t)rv_round_up(rv_shape_units(layer->shape), RV_LANES);
        float *v = rv_state_slot(pass->state, layer, RV_SLOT_STATE);
        v[(size_t)l->row * ld + (size_t)l->unit] = l->value;
    }
    return status;
}

static void lab_open_with(lab *l, const char *run, const char *policy, const char *stages) {
    const char *sets[] = {"pipeline.chunks=6", policy, stages};
    char path[TINY_PATH];
    *l = (lab){.gradient = SIZE_MAX};
    assert_int_equal(rv_config_load(in_folder("recipe.yaml"), sets, 3, &l->setup.config), RV_OK);
    assert_int_equal(rv_share_open(&l->share, l->setup.config, RV_SPLIT_TRAIN, true), RV_OK);
    assert_int_equal(rv_setup_device(&l->setup, "baseline", 1), RV_OK);
    assert_int_equal(rv_setup_net(&l->setup, &l->share.source), RV_OK);
    assert_int_equal(rv_setup_trainer(&l->setup, &l->share, NULL, 1000, &(rv_wish){0}), RV_OK);
    const rv_run_info info = {
        .version = "0", .isa = "baseline", .schedule = "serial", .digest = "", .net = l->setup.net};
    snprintf(path, sizeof path, "%s", in_folder(run));
    assert_int_equal(rv_run_create(path, "x", l->setup.config, &info, &l->run), RV_OK);
    assert_int_equal(rv_health_create(&l->setup, l->run, &l->health), RV_OK);
    assert_int_equal(rv_loader_start(l->share.loader, 0, 0), RV_OK);
    assert_int_equal(rv_loader_next(l->share.loader, &l->batch), RV_OK);
    assert_int_equal(rv_alloc(l->setup.net->n_all, sizeof(float), "w", &l->weights), RV_OK);
    memcpy(l->weights, rv_engine_block(l->setup.engine), l->setup.net->n_all * sizeof(float));
}

static void lab_open(lab *l, const char *run, const char *policy) {
    lab_open_with(l, run, policy, "pipeline.stages=1");
}

static void lab_close(lab *l) {
    rv_free(l->weights);
    rv_health_destroy(l->health);
    rv_run_destroy(l->run);
    rv_share_close(&l->share);
    rv_setup_finish(&l->setup);
}

/* Weights and optimiser as at the beginning. */
static void lab_reset(lab *l) {
    rv_optimizer *optimizer = rv_engine_optimizer(l->setup.engine);
    memcpy(rv_engine_block(l->setup.engine), l->weights, l->setup.net->n_all * sizeof(float));
    for (int k = 0; k < rv_optimizer_slots(optimizer); k++)
        memset(rv_optimizer_slot(optimizer, k), 0, l->setup.net->n_trained * sizeof(float));
    rv_optimizer_step_set(optimizer, 0);
    assert_int_equal(rv_engine_push(l->setup.engine), RV_OK);
    l->membrane = false;
    l->gradient = SIZE_MAX;
}

static rv_status lab_step(lab *l, bool *skipped) {
    rv_step_result result = {0};
    const rv_observer mine = {l, inject};
    assert_int_equal(rv_health_before(l->health), RV_OK);
    rv_engine_observe(l->setup.engine, &mine);
    rv_status status = rv_engine_step(l->setup.engine, l->batch, &result);
    return rv_health_after(l->health, status, 1, &result, skipped);
}

static void expect_found(lab *l, const char *text, float value) {
    bool skipped = true;
    (void)unlink(in_folder("lab/nonfinite.npy"));
    rv_status status = lab_step(l, &skipped);
    if (status != RV_INTERNAL || !strstr(rv_error_get()->message, text))
        fail_msg("%g: no \"%s\" in %d: %s", (double)value, text, status, rv_error_get()->message);
    assert_false(skipped);
    if (access(in_folder("lab/nonfinite.npy"), R_OK) != 0) fail_msg("%s: no dump", text);
    lab_reset(l);
}

static const float values[] = {NAN, INFINITY, -INFINITY, 1e38f};
enum { VALUES = sizeof values / sizeof *values };

/* A sound step in between: nothing found stays behind. */
static void expect_sound(lab *l) {
    bool skipped = true;
    if (lab_step(l, &skipped) != RV_OK) fail_msg("a sound step: %s", rv_error_get()->message);
    assert_false(skipped);
    lab_reset(l);
}

/* The hidden layer and the output at every time step; input, weights and gradients at as many
 * places: 480 of them. */
static void values_put_anywhere_are_found_and_named(void **state) {
    (void)state;
    lab l;
    char text[256];
    int cases = 0;
    lab_open(&l, "lab", "health.policy=abort");
    expect_sound(&l);
    for (int v = 0; v < VALUES; v++) {
        l.value = values[v];
        /* membranes: 2 layers, 5 times, 4 places */
        for (int k = 0; k < 40; k++) {
            l.layer = k % 2 ? 3 : 1, l.time = 1 + k / 2 % 5;
            l.row = (7 * k + 3 * v) % BATCH, l.unit = (5 * k + v) % OUT, l.membrane = true;
            snprintf(text, sizeof text,
                     "membrane is %s: layer %s, time step %d, sample %d, unit %d",
                     isfinite(l.value) ? "too large (its square is not finite)" : "not finite",
                     k % 2 ? "out_lif" : "hidden_lif", l.time, (int)l.batch->sample[l.row], l.unit);
            expect_found(&l, text, l.value);
            cases++;
        }
        for (int k = 0; k < 20; k++) { /* input */
            int row = (3 * k + v) % BATCH, unit = (11 * k + 5 * v) % PIXELS;
            float *at = l.batch->input.values.data + row * l.batch->input.values.ld + unit;
            float old = *at;
            *at = l.value;
            snprintf(text, sizeof text, "layer the input, time step 0, sample %d, unit %d",
                     (int)l.batch->sample[row], unit);
            expect_found(&l, text, l.value);
            *at = old;
            cases++;
        }
        for (int k = 0; k < 60; k++) { /* weights, gradients */
            const rv_tensor *tensor = &l.setup.net->tensors[k % l.setup.net->tensor_count];
            bool gradient = k >= 30;
            float file[HIDDEN * PIXELS] = {0};
            size_t count = rv_tensor_elements(tensor), element = (size_t)(13 * k + 7 * v) % count;
            float *block = NULL;
            assert_int_equal(rv_alloc(l.setup.net->n_all, sizeof *block, "b", &block), RV_OK);
            file[element] = 1;
            rv_tensor_import(tensor, file, block);
            size_t at = 0;
            while (block[at] != 1)
                at++;
            rv_free(block);
            if (gradient) {
                l.gradient = at;
            } else {
                rv_engine_block(l.setup.engine)[at] = l.value;
                assert_int_equal(rv_engine_push(l.setup.engine), RV_OK);
            }
            snprintf(text, sizeof text, "a %s is %s: %s[%zu] is ", gradient ? "gradient" : "weight",
                     isfinite(l.value) ? "too large (its square is not finite)" : "not finite",
                     tensor->name, element);
            expect_found(&l, text, l.value);
            cases++;
        }
        expect_sound(&l);
    }
    print_message("           %d of %d cases found\n", cases, FULL_NONFINITE);
    assert_int_equal(cases, FULL_NONFINITE);
    lab_close(&l);
}

/* Ten in a row are skipped and leave no trace; the eleventh ends the run. Data are never skipped.
 */
static void skip_step_leaves_weights_as_they_were(void **state) {
    (void)state;
    lab l;
    bool skipped = false;
    lab_open(&l, "skip", "health.policy=skip_step");
    rv_optimizer *optimizer = rv_engine_optimizer(l.setup.engine);
    assert_int_equal(lab_step(&l, &skipped), RV_OK); /* the optimiser has something to lose */
    size_t n = l.setup.net->n_all, m = l.setup.net->n_trained;
    float *weights = NULL, *slot = NULL;
    assert_int_equal(rv_alloc(n, sizeof *weights, "w", &weights), RV_OK);
    assert_int_equal(rv_alloc(m, sizeof *slot, "s", &slot), RV_OK);
    memcpy(weights, rv_engine_block(l.setup.engine), n * sizeof *weights);
    memcpy(slot, rv_optimizer_slot(optimizer, 1), m * sizeof *slot);
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 10; k++) {
            l.value = values[k % 3];
            l.membrane = k % 2, l.gradient = k % 2 ? SIZE_MAX : 5;
            l.layer = 1, l.time = 2, l.row = 3, l.unit = 1;
            assert_int_equal(lab_step(&l, &skipped), RV_OK);
            assert_true(skipped);
            assert_memory_equal(weights, rv_engine_block(l.setup.engine), n * sizeof *weights);
            assert_memory_equal(slot, rv_optimizer_slot(optimizer, 1), m * sizeof *slot);
            assert_int_equal(rv_optimizer_step(optimizer), 1 + round);
        }
        if (round == 1) break;
        l.membrane = false, l.gradient = SIZE_MAX; /* a good one in between: counted anew */
        assert_int_equal(lab_step(&l, &skipped), RV_OK);
        assert_false(skipped);
        memcpy(weights, rv_engine_block(l.setup.engine), n * sizeof *weights);
        memcpy(slot, rv_optimizer_slot(optimizer, 1), m * sizeof *slot);
    }
    assert_int_equal(lab_step(&l, &skipped), RV_INTERNAL); /* the eleventh in a row */
    lab_reset(&l);
    assert_int_equal(lab_step(&l, &skipped), RV_OK);
    float *at = l.batch->input.values.data;
    *at = NAN;
    assert_int_equal(lab_step(&l, &skipped), RV_INTERNAL);
    assert_non_null(strstr(rv_error_get()->message, "the data hold it"));
    rv_free(slot);
    rv_free(weights);
    lab_close(&l);
}

/* Every stage looks at its own layers; a pipeline is over after an error, but not after a skip. */
static void values_in_any_stage_are_found(void **state) {
    (void)state;
    bool skipped = false;
    lab l;
    for (int k = 0; k < 3; k++) {
        char run[16];
        snprintf(run, sizeof run, "stages%d", k);
        lab_open_with(&l, run, "health.policy=abort", "pipeline.stages=2");
        assert_int_equal(lab_step(&l, &skipped), RV_OK);
        l.value = NAN;
        if (k < 2) {
            l.membrane = true, l.layer = k ? 3 : 1, l.time = 3, l.row = 5, l.unit = 2;
        } else {
            rv_engine_pull(l.setup.engine);
            const rv_tensor *out = rv_net_tensor_find(l.setup.net, "out.weight");
            rv_engine_block(l.setup.engine)[out->offset + 1] = NAN;
            assert_int_equal(rv_engine_push(l.setup.engine), RV_OK);
        }
        assert_int_equal(lab_step(&l, &skipped), RV_INTERNAL);
        static const char *const texts[] = {"layer hidden_lif, time step 3",
                                            "layer out_lif, time step 3",
                                            "a weight is not finite: out.weight["};
        if (!strstr(rv_error_get()->message, texts[k]))
            fail_msg("no \"%s\" in %s", texts[k], rv_error_get()->message);
        lab_close(&l);
    }
    lab_open_with(&l, "stages_skip", "health.policy=skip_step", "pipeline.stages=2");
    assert_int_equal(lab_step(&l, &skipped), RV_OK);
    rv_engine_pull(l.setup.engine);
    memcpy(l.weights, rv_engine_block(l.setup.engine), l.setup.net->n_all * sizeof(float));
    l.value = INFINITY, l.membrane = true, l.layer = 3, l.time = 2, l.row = 1, l.unit = 1;
    for (int k = 0; k < 3; k++) {
        assert_int_equal(lab_step(&l, &skipped), RV_OK);
        assert_true(skipped);
        rv_engine_pull(l.setup.engine);
        assert_memory_equal(l.weights, rv_engine_block(l.setup.engine),
                            l.setup.net->n_all * sizeof(float));
    }
    l.membrane = false;
    assert_int_equal(lab_step(&l, &skipped), RV_OK);
    assert_false(skipped);
    lab_close(&l);
}

static void finite_sees_every_place(void **state) {
    (void)state;
    float x[200];
    for (size_t n = 0; n <= 150; n++) {
        for (size_t i = 0; i < 200; i++)
            x[i] = (float)i - 3e18f;
        assert_true(rv_finite(x + 1, n));
        x[0] = x[n + 1] = NAN; /* outside */
        assert_true(rv_finite(x + 1, n));
        for (size_t i = 1; i <= n; i++) {
            float old = x[i];
            x[i] = values[i % VALUES];
            assert_false(rv_finite(x + 1, n));
            x[i] = old;
        }
    }
}

/* ---- warnings ---------------------------------------------------------------------------- */

/* Names of the warnings of a run, each once, with blanks around. */
static const char *warnings_of(const char *run) {
    static char names[512], text[1 << 16];
    char path[128];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    read_text(in_folder(path), text, sizeof text);
    strcpy(names, " ");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        assert_non_null(root);
        const char *name = json_string_value(json_object_get(root, "warning"));
        char padded[64];
        snprintf(padded, sizeof padded, " %s ", name ? name : "");
        if (name && !strstr(names, padded)) strcat(names, padded + 1);
        json_decref(root);
    }
    return names;
}

static void each_sick_net_has_its_own_warning(void **state) {
    (void)state;
    static const struct {
        const char *set, *warnings;
    } cases[] = {
        {"network.hidden_lif.threshold=1000", " dead_layer "},
        {"network.hidden_lif.threshold=[9,9,9,9,9,9,9,9,9,9,9,9,9,9,.5,.5,.5,.5,.5,.5,.5,.5,.5,.5]",
         " dead_units "},
        {"network.hidden_lif.v_leak=60.0", " saturated "},
        {"network.hidden_lif.gain=500.0", " membrane_range "},
        {"network.hidden_lif.surrogate={kind: triangle, slope: 1000000.0}", " zero_gradient "},
        {"train.optimizer={kind: sgd, lr: 1.0}", " exploding_gradient "},
        {"seed=1", " "},
        {"seed=2", " "},
        {"network.hidden_lif.beta=0.5", " "},
    };
    char recipe[4096], run[16];
    /* A linear regression diverges for ever at a rate that is too high. */
    read_text(in_folder("recipe.yaml"), recipe, sizeof recipe);
    char *network = strstr(recipe, "network:");
    assert_non_null(network);
    strcpy(network, "network:\n  - {name: only, kind: linear, units: 4}\n"
                    "  - {name: read, kind: li, beta: 0.9}\n"
                    "loss: {kind: mse_membrane, readout: membrane_mean}\n"
                    "train: {batch: 16}\n");
    tiny_put(in_folder("regression.yaml"), recipe, strlen(recipe));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool regression = strstr(cases[i].warnings, "exploding") != NULL;
        snprintf(run, sizeof run, "sick%zu", i);
        if (RUN("train", regression ? "regression.yaml" : "recipe.yaml", "-o", run, "--set",
                "train.epochs=2", "--set", cases[i].set) != 0)
            fail_msg("%s: %s", cases[i].set, err_text);
        if (strcmp(warnings_of(run), cases[i].warnings) != 0)
            fail_msg("%s: \"%s\", not \"%s\"", cases[i].set, warnings_of(run), cases[i].warnings);
        if (cases[i].warnings[1]) assert_contains(err_text, "warning: ");
    }
}

static void explosion_ends_with_70_and_keeps_the_checkpoint(void **state) {
    (void)state;
    assert_int_equal(RUN("train", "regression.yaml", "-q", "-o", "bang", "--set",
                         "train.optimizer={kind: sgd, lr: 100.0}"),
                     70);
    assert_contains(err_text, "layer read, time step ");
    assert_contains(err_text, "bang/nonfinite.npy");
    assert_int_equal(access(in_folder("bang/nonfinite.npy"), R_OK), 0);
    if (rv_h5_available()) assert_int_equal(RUN("check", "bang/last.h5"), 0);
    char text[1 << 14];
    read_text(in_folder("bang/metrics.jsonl"), text, sizeof text);
    assert_contains(text, "\"event\":\"nonfinite\"");
    assert_contains(text, "\"kind\":\"membrane\",\"layer\":\"read\"");
    assert_contains(text, "\"action\":\"abort\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_sees_every_place),
        cmocka_unit_test(values_put_anywhere_are_found_and_named),
        cmocka_unit_test(values_in_any_stage_are_found),
        cmocka_unit_test(skip_step_leaves_weights_as_they_were),
        cmocka_unit_test(each_sick_net_has_its_own_warning),
        cmocka_unit_test(explosion_ends_with_70_and_keeps_the_checkpoint),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
