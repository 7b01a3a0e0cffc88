/* What the parts of a network cost, as `plan` measures it and a profile tells it. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/data.h"
#include "tests/spawn.h"

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

/* Without it the bubble that is expected is that of equal items. */
static void plan_expects_what_the_profile_scatters(const json_t *measured) {
    json_t *profile = json_deep_copy(measured), *blocks, *plan, *block;
    size_t i;
    blocks = json_object_get(json_array_get(json_object_get(profile, "points"), 0), "blocks");
    for (int n = 0; n < 3; n++) {
        json_array_foreach(blocks, i, block) {
            double got = number(block, "scatter");
            assert_true(n > 0 || (got >= 0 && got <= 1));
            json_object_set_new(block, "scatter", json_real(n == 2 ? 1.1 : 0.4 * n));
        }
        assert_int_equal(json_dump_file(profile, in_folder("scatter.json"), 0), 0);
        if (n == 2) break;
        assert_int_equal(RUN("plan", "held.yaml", "--chunks", "8", "--json", "--stages", "2",
                             "--schedule", "1f1b", "--profile", "scatter.json"),
                         0);
        plan = parse_out();
        double more = number(plan, "bubble_expected") - number(plan, "bubble");
        assert_true(n ? more > 0.001 : more == 0);
        json_decref(plan);
    }
    ERROR(65, "block 0 has more scatter than all of it", "plan", "held.yaml", "--profile",
          "scatter.json");
    json_decref(profile);
}

/* The product with an input that is held, and its weight gradient, are work of chunk 0. */
static void plan_gives_chunk_zero_what_is_done_once(void **state) {
    (void)state;
    static const char text[] =
        "seed: 7\ndata: {reader: manifold, units: 1024, classes: 4, samples: 64}\n"
        "encode: {kind: constant, steps: 8}\n"
        "network:\n"
        "  - {name: fc1, kind: linear, units: 256, form: dense}\n"
        "  - {name: n1, kind: lif, beta: 0.9, threshold: 0.5}\n"
        "  - {name: fc2, kind: linear, units: 4}\n"
        "  - {name: n2, kind: li, beta: 0.9}\n"
        "loss: {kind: cross_entropy, readout: membrane_mean}\n"
        "train: {epochs: 1, batch: 64}\n";
    tiny_put(in_folder("held.yaml"), text, sizeof text - 1);
    assert_int_equal(
        RUN("plan", "held.yaml", "--chunks", "8", "--json", "--stages", "2", "--threads", "1"), 0);
    tiny_put(in_folder("held.json"), out_text, strlen(out_text));
    json_t *plan = parse_out(), *profile = json_object_get(plan, "profile");
    json_t *points = json_array_get(json_object_get(profile, "points"), 0);
    json_t *block = json_array_get(json_object_get(points, "blocks"), 0);
    assert_true(number(block, "f_once_ms") > 0.3 * number(block, "f_ms"));
    assert_true(number(block, "w_once_ms") > 0.3 * number(block, "w_ms"));
    plan_expects_what_the_profile_scatters(profile);
    /* A profile may lack it, but not have more of it than of the whole. */
    json_object_del(block, "f_once_ms");
    assert_int_equal(json_dump_file(profile, in_folder("held.json"), 0), 0);
    assert_int_equal(RUN("plan", "held.yaml", "--chunks", "8", "--profile", "held.json"), 0);
    json_object_set_new(block, "f_once_ms", json_real(1.1 * number(block, "f_ms")));
    assert_int_equal(json_dump_file(profile, in_folder("held.json"), 0), 0);
    ERROR(65, "block 0 has more f_once_ms than all of it", "plan", "held.yaml", "--profile",
          "held.json");
    /* Nor nothing but zeros. */
    static const char *const costs[] = {"f_ms",      "b_ms",      "w_ms",
                                        "f_once_ms", "b_once_ms", "w_once_ms"};
    for (size_t i = 0; i < json_array_size(json_object_get(points, "blocks")); i++)
        for (size_t k = 0; k < sizeof costs / sizeof *costs; k++)
            json_object_set_new(json_array_get(json_object_get(points, "blocks"), i), costs[k],
                                json_real(0));
    assert_int_equal(json_dump_file(profile, in_folder("held.json"), 0), 0);
    ERROR(65, "all costs of a point are 0", "plan", "held.yaml", "--stages", "1", "--profile",
          "held.json");
    json_decref(plan);
}

/* Seven stages are more than every mix is looked at: it says so, and how far off it may be. */
static void tapes_of_many_stages_say_what_they_may_lose(void **state) {
    (void)state;
    static const char head[] =
        "seed: 7\ndata: {reader: manifold, units: 32, classes: 4, samples: 64}\n"
        "encode: {kind: constant, steps: 6}\nnetwork:\n";
    char text[2048];
    size_t used = (size_t)snprintf(text, sizeof text, "%s", head);
    for (int i = 1; i <= 7; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "  - {name: fc%d, kind: linear, units: %d}\n"
                                 "  - {name: n%d, kind: %s, beta: 0.9}\n",
                                 i, i < 7 ? 16 : 4, i, i < 7 ? "lif" : "li");
    used += (size_t)snprintf(text + used, sizeof text - used,
                             "loss: {kind: cross_entropy, readout: membrane_mean}\n"
                             "train: {epochs: 1, batch: 16, micro_batches: 2}\n"
                             "pipeline: {stages: 7, chunks: 6, memory: 100MiB}\n");
    tiny_put(in_folder("many.yaml"), text, used);
    assert_int_equal(RUN("plan", "many.yaml", "--json"), 0);
    json_t *plan = parse_out(), *chosen = json_object_get(plan, "tapes_chosen");
    assert_string_equal(json_string_value(json_object_get(chosen, "policies")), "one_change");
    double gain = number(plan, "makespan_ms") / number(chosen, "bound_ms") - 1;
    assert_true(gain > -1e-6 && fabs(number(chosen, "could_gain") - fmax(0, gain)) < 1e-5);
    json_decref(plan);
    assert_int_equal(RUN("plan", "many.yaml"), 0);
    assert_contains(out_text, "stage to stage (heuristic)");
    assert_int_equal(RUN("plan", "many.yaml", "--stages", "6"), 0);
    assert_contains(out_text, "the fastest mix that fits pipeline.memory of all");
    /* A single stage that spills is a pipeline, which is saved from a copy. */
    double copy[2] = {0};
    for (int spills = 0; spills < (rv_h5_available() ? 2 : 1); spills++) {
        assert_int_equal(RUN("plan", "many.yaml", "--stages", "1", "--json", "--set",
                             spills ? "pipeline.tape=spill" : "pipeline.tape=keep"),
                         0);
        plan = parse_out();
        copy[spills] = number(plan, "copy_bytes");
        json_decref(plan);
    }
    assert_true((copy[0] > 0) == rv_h5_available()); /* the file in the making */
    if (rv_h5_available()) assert_true(copy[1] >= copy[0] + 4 * 32 * 16);
    assert_int_equal(RUN("plan", "many.yaml", "--set", "pipeline.memory=null", "--json"), 0);
    plan = parse_out();
    assert_true(json_is_null(json_object_get(plan, "tapes_chosen")));
    json_decref(plan);
}

/* With all fixed a training begins at once; its log then has no costs to tell. */
static void costs_are_measured_where_something_depends_on_them(void **state) {
    (void)state;
    static const struct {
        const char *word[4];
        bool measured;
    } cases[] = {
        {{"--set", "pipeline.cuts=[fc2]", "--set", "pipeline.slots=2"}, false},
        {{"--set", "pipeline.slots=2", "--max-time", "01:00:00"}, true}, /* cuts */
        {{"--set", "pipeline.cuts=[fc2]", "--set", "pipeline.slots=auto"}, true},
        {{"--set", "pipeline.cuts=[fc2]", "--set", "pipeline.memory=1GiB"}, true},
    };
    static const char text[] =
        "seed: 7\ndata: {reader: manifold, units: 32, classes: 4, samples: 64}\n"
        "encode: {kind: constant, steps: 6}\nnetwork:\n"
        "  - {name: fc1, kind: linear, units: 16}\n"
        "  - {name: n1, kind: lif, beta: 0.9}\n"
        "  - {name: fc2, kind: linear, units: 8}\n"
        "  - {name: n2, kind: lif, beta: 0.9}\n"
        "  - {name: fc3, kind: linear, units: 4}\n"
        "  - {name: n3, kind: li, beta: 0.9}\n"
        "loss: {kind: cross_entropy, readout: membrane_mean}\n"
        "train: {epochs: 1, batch: 16, micro_batches: 2}\n"
        "pipeline: {stages: 2, chunks: 3, schedule: 1f1b}\n";
    char out[16];
    tiny_put(in_folder("fixed.yaml"), text, sizeof text - 1);
    for (int k = 0; k < 4; k++) {
        const char *const *word = cases[k].word;
        snprintf(out, sizeof out, "fixed%d", k);
        assert_int_equal(RUN("train", "fixed.yaml", "-o", out, word[0], word[1], word[2], word[3]),
                         0);
        if (!strstr(err_text, " times one device") == cases[k].measured)
            fail_msg("case %d: %s", k, err_text);
        if (!strstr(err_text, " steps: planned ") == cases[k].measured)
            fail_msg("case %d: %s", k, err_text);
    }
    const char *const *word = cases[0].word; /* a timeline compares with what was planned */
    assert_int_equal(RUN("train", "fixed.yaml", "-o", "fixed4", "--trace", "t.json", word[0],
                         word[1], word[2], word[3]),
                     0);
    assert_contains(err_text, " times one device");
    assert_int_equal(RUN("plan", "fixed.yaml", word[0], word[1], word[2], word[3], "--json"), 0);
    json_t *plan = parse_out();
    assert_true(number(plan, "one_device_ms") > 0);
    assert_int_equal(json_array_size(json_object_get(json_object_get(plan, "profile"), "points")),
                     1);
    json_decref(plan);
    assert_int_equal(RUN("verify", "fixed.yaml", word[0], word[1], word[2], word[3]), 0);
}

/* What is spilled goes to the disk of the run, and of a plan where temporary files lie: there the
 * disk is measured, and nowhere else. */
static void disk_is_measured_where_the_run_will_be(void **state) {
    (void)state;
    static const struct {
        const char *command, *environment, *out;
        int code;
        const char *names;
    } cases[] = {{"train", "/nowhere/at/all", "disk/deep/run", 0, NULL},
                 {"train", NULL, "many.yaml/run", 73, "many.yaml/ranvier-tapes-"},
                 {"train", NULL, "/proc/none/run", 73, "/proc/ranvier-tapes-"},
                 {"plan", "/nowhere/at/all", NULL, 73, "/nowhere/at/all/ranvier-tapes-"},
                 {"plan", NULL, NULL, 0, NULL}};
    if (!rv_h5_available()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[] = {cases[i].command,           "many.yaml",  "--stages", "1",
                               cases[i].out ? "-o" : NULL, cases[i].out, NULL};
        if (cases[i].environment) assert_int_equal(setenv("TMPDIR", cases[i].environment, 1), 0);
        int code = run_words(words);
        assert_int_equal(unsetenv("TMPDIR"), 0);
        if (code != cases[i].code) fail_msg("case %zu: %d, %s", i, code, err_text);
        if (cases[i].names) assert_contains(err_text, cases[i].names);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_gives_chunk_zero_what_is_done_once),
        cmocka_unit_test(tapes_of_many_stages_say_what_they_may_lose),
        cmocka_unit_test(disk_is_measured_where_the_run_will_be),
        cmocka_unit_test(costs_are_measured_where_something_depends_on_them),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
