/*
 * Plans within pipeline.memory, with costs from a profile: what fits is taken, and tapes go to the
 * disk where its pace allows it. Bytes of the forms of weights.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/data.h"
#include "pipeline/bytes.h"
#include "pipeline/plan.h"
#include "tests/pipes.h"
#include "tests/spawn.h"

/* The profile of a plan with times of our own, so that no measurement decides what is taken. */
static const char *profile_put(const rv_plan *plan, const rv_net *net) {
    static const struct {
        const char *key;
        double value;
    } times[] = {{"f_ms", 1},      {"b_ms", 1},      {"w_ms", 1},      {"u_ms", 0.1},
                 {"norm_ms", 0.1}, {"f_once_ms", 0}, {"b_once_ms", 0}, {"w_once_ms", 0}};
    json_t *root = rv_profile_json(plan, net), *point, *block;
    size_t k, i;
    json_object_set_new(root, "latency_ms", json_real(0.01));
    json_object_set_new(root, "bytes_per_s", json_real(1e9));
    json_object_set_new(root, "spill_bytes_per_s", json_real(1e8));
    json_array_foreach(json_object_get(root, "points"), k, point)
        json_array_foreach(json_object_get(point, "blocks"), i, block) for (int t = 0; t < 8; t++)
            json_object_set_new(block, times[t].key, json_real(times[t].value));
    const char *path = in_folder("profile.json");
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

static void profile_edit(const char *path, const char *key, double value) {
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    json_object_set_new(root, key, json_real(value));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* A fast cache and a slow medium: what counts is whether a step's tapes fit the cache. */
static void spilling_beyond_the_cache_is_slower(const rv_plan_desc *desc) {
    static const double cached[] = {1e12, 0, 1e12};
    double step[3];
    rv_plan plan;
    profile_edit(desc->profile, "spill_bytes_per_s", 1e12);
    profile_edit(desc->profile, "spill_sustained_bytes_per_s", 1e3);
    for (int i = 0; i < 3; i++) {
        profile_edit(desc->profile, "spill_cached_bytes", cached[i]);
        OK(rv_plan_make(desc, &plan));
        step[i] = plan.step;
        bool spills = strcmp(rv_plan_tape(&plan, 0), "spill") == 0 ||
                      strcmp(rv_plan_tape(&plan, 1), "spill") == 0;
        if (!spills && i != 1)
            fail_msg("%d: %s, %s", i, rv_plan_tape(&plan, 0), rv_plan_tape(&plan, 1));
        rv_plan_finish(&plan);
    }
    assert_true(step[1] > 1.01 * step[0] && step[2] == step[0]);
}

/* Just below what the largest plan takes another one fits; below everything nothing does. */
static void memory_limit_takes_a_plan_that_fits(void **state) {
    (void)state;
    const pipe_way way = {.micros = 3, .chunks = PIPE_STEPS};
    small s;
    rv_plan plan;
    pipe_open(&s, &pipe_nets[0], &way);
    rv_plan_desc desc = {.cost = {.net = s.net,
                                  .encoder = &s.encoder,
                                  .loss = &s.loss,
                                  .train = &s.train,
                                  .batch = &s.batch,
                                  .threads = 1},
                         .stages = 2};
    desc.generator = rv_generator_find("filldrain");
    OK(rv_plan_make(&desc, &plan));
    char *profile = strdup(profile_put(&plan, s.net));
    assert_non_null(profile);
    rv_plan_finish(&plan);
    desc.profile = profile;
    OK(rv_plan_make(&desc, &plan));
    assert_int_equal(plan.schedule.forecast.peak[0], 3 * PIPE_STEPS);
    double most = plan.bytes;
    rv_plan_finish(&plan);
    desc.generator = NULL;
    desc.memory = most - 1;
    OK(rv_plan_make(&desc, &plan));
    assert_true(plan.bytes <= desc.memory && plan.bytes > 0.2 * desc.memory);
    assert_true(plan.schedule.forecast.peak[0] < 3 * PIPE_STEPS);
    rv_plan_finish(&plan);
    desc.memory = most - 1; /* down to what no schedule takes that keeps its tapes */
    while (rv_plan_make(&desc, &plan) == RV_OK) {
        rv_plan_finish(&plan);
        desc.memory -= 4096; /* what a file takes is the larger part, and the same for all */
    }
    desc.mixes = true;
    if (rv_h5_available()) { /* then some are not kept; computing them again alone may not do */
        OK(rv_plan_make(&desc, &plan));
        assert_true(plan.tape && plan.bytes <= desc.memory);
        assert_int_equal(plan.mixed, RV_MIXED_ALL);
        assert_true(plan.mixed_bound > 0 && plan.mixed_bound <= plan.step);
        assert_true(strcmp(rv_plan_tape(&plan, 0), "keep") ||
                    strcmp(rv_plan_tape(&plan, 1), "keep"));
        rv_plan_finish(&plan);
        spilling_beyond_the_cache_is_slower(&desc);
    }
    desc.memory = most;
    OK(rv_plan_make(&desc, &plan));
    assert_string_equal(rv_plan_tape(&plan, 0), "keep");
    rv_plan_finish(&plan);
    desc.mixes = false;
    desc.memory = 1000;
    assert_int_equal(rv_plan_make(&desc, &plan), RV_RESOURCE);
    assert_contains(rv_error_get()->message, "the least found needs ");
    assert_null(plan.first);
    free(profile);
    small_finish(&s);
}

/* Of a chain 128-128-128-64: no backward pass reads the first map, square as it is; a recurrent
 * weight has no form beside the one it lies in. */
static void forms_are_counted_that_backward_reads(void **state) {
    (void)state;
    enum { WIDE = 128, OUT = 64 };
    const double second = 1.5 * sizeof(float) * WIDE * WIDE, last = second * OUT / WIDE;
    small s = {.net_desc = {.input = {1, {WIDE}}}};
    small_linear(&s, "fc1", WIDE, true);
    small_neuron(&s, "lif1", "lif", 0.9)->recurrent = true;
    small_linear(&s, "fc2", WIDE, true);
    small_neuron(&s, "lif2", "lif", 0.9);
    small_linear(&s, "fc3", OUT, true);
    small_neuron(&s, "lif3", "lif", 0.9);
    small_batch(&s, 2, 0, OUT, 3);
    small_open(&s, "constant", 4, 1, 1, 1);
    const rv_range all = rv_net_range(s.net, 0, 6), front = rv_net_range(s.net, 0, 2);
    assert_true(rv_bytes_packed(&all, RV_ISA_AMX) == second + last);
    assert_true(rv_bytes_packed(&front, RV_ISA_AMX) == 0);
    assert_true(rv_bytes_packed(&all, RV_ISA_AVX512) == 0);
    small_finish(&s);
}

/* What is told to be needed is what is taken, where the most of it are batches that the loader
 * fills, and where the schedule decides how many tapes are held. Sanitizers take memory of their
 * own. */
static void memory_of_batches_and_tapes_is_foretold(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    static const char *const cases[][3] = {
        {"data.units=4096", "encode.steps=64", "pipeline.stages=1"},
        {"network.a.units=512", "network.b.units=512", "pipeline.schedule=1f1b"},
        {"network.a.units=512", "network.b.units=512", "pipeline.schedule=zb"},
    };
    static const char recipe[] =
        "seed: 1\n"
        "data: {reader: bernoulli, units: 64, classes: 8, samples: 1024, test_samples: 0, "
        "steps: 64, rate: 0.02}\n"
        "encode: {kind: constant, steps: 64}\n"
        "network:\n"
        "  - {name: a, kind: linear, units: 64}\n"
        "  - {name: a_lif, kind: lif}\n"
        "  - {name: b, kind: linear, units: 64}\n"
        "  - {name: b_lif, kind: lif}\n"
        "  - {name: c, kind: linear, units: 8}\n"
        "  - {name: c_lif, kind: lif}\n"
        "train: {batch: 512, micro_batches: 4, max_steps: 1}\n"
        "pipeline: {stages: 3, chunks: 4}\n";
    tiny_put(in_folder("recipe.yaml"), recipe, sizeof recipe - 1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char run[32];
        snprintf(run, sizeof run, "told%zu", k);
        if (RUN("train", "recipe.yaml", "-o", run, "--json", "--threads", "1", "--set", cases[k][0],
                "--set", cases[k][1], "--set", cases[k][2]) != 0)
            fail_msg("%s", err_text);
        assert_memory_foretold(cases[k][2]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_are_counted_that_backward_reads),
        cmocka_unit_test(memory_limit_takes_a_plan_that_fits),
        cmocka_unit_test(memory_of_batches_and_tapes_is_foretold),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
