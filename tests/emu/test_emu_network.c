/*
 * Networks on emulated GPUs, by the program: pipeline and plain trainer give the same bits,
 * training learns what it learns on the CPU, and what cannot run says why.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FASHION "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"

/* The thread sanitizer makes a kernel some hundred times slower: it gets the same layers, smaller.
 */
#if defined(__SANITIZE_THREAD__)
#define WIDE "100"
#define CHANGES 2 /* of those below */
#define DEEP "64"
#else
#define WIDE "1000"
#define CHANGES 4
#define DEEP "1024"
#endif

static char recipes[4096]; /* of the source tree: tests run in a folder of their own */

static const char *recipe(const char *name) {
    static char path[8192];
    snprintf(path, sizeof path, "%s/scripts/recipes/%s.yaml", recipes, name);
    return path;
}

static int setup(void **state) {
    return realpath(".", recipes) ? group_setup(state) : -1;
}

static void same_bits(int code) {
    if (code != 0) fail_msg("exit %d: %s%s", code, out_text, err_text);
    json_t *root = parse_out();
    assert_true(json_is_true(json_object_get(root, "identical")));
    assert_true(json_integer_value(json_object_get(root, "compared")) > 1000);
    json_decref(root);
}

static void bench_fc_in_two_stages_on_two_devices_gives_the_bits_of_one(void **state) {
    (void)state;
    if (access(FASHION, R_OK) != 0) skip();
    same_bits(RUN("verify", recipe("bench_fc"), "--json", "--device", "emu:0,1", "--stages", "2",
                  "--chunks", "5", "--micro-batches", "2", "--steps", "2", "--set", "train.batch=4",
                  "--set", "encode.steps=10", "--set", "network.fc1.units=" WIDE));
}

static void bench_deep_in_two_stages_on_two_devices_gives_the_bits_of_one(void **state) {
    (void)state;
    if (access(FASHION, R_OK) != 0) skip();
    same_bits(RUN("verify", recipe("bench_deep"), "--json", "--device", "emu:0,1", "--stages", "2",
                  "--chunks", "2", "--steps", "1", "--set", "train.batch=2", "--set",
                  "encode.steps=6", "--set", "network.fc1.units=" DEEP, "--set",
                  "network.fc2.units=" DEEP, "--set", "network.fc3.units=" DEEP, "--set",
                  "network.fc4.units=" DEEP));
}

/* Batch normalisation and dropout; running statistics are among the numbers compared. */
static void fashion_fc_in_two_stages_on_two_devices_gives_the_bits_of_one(void **state) {
    (void)state;
    if (access(FASHION, R_OK) != 0) skip();
    same_bits(RUN("verify", recipe("fashion_fc"), "--json", "--device", "emu:0,1", "--stages", "2",
                  "--chunks", "2", "--micro-batches", "2", "--steps", "2", "--set", "train.batch=6",
                  "--set", "encode.steps=5", "--set", "network.hidden.units=" WIDE));
}

/* Pools, normalisation over planes and over a sequence, joins, trained factors, thresholds,
 * convolutions, learned delays over chunks. */
static void all_kinds_of_layers_give_the_bits_of_one_device(void **state) {
    (void)state;
    static const char *const networks[] = {
        "network=[{name: mean, kind: avg_pool, kernel_size: 2, from: [input]},"
        "{name: most, kind: max_pool, kernel_size: 2, from: [input]},"
        "{name: both, kind: concat, from: [mean, most]}, {name: level, kind: batch_norm},"
        "{name: fire, kind: threshold, threshold: 0.5},"
        "{name: more, kind: sum_pool, kernel_size: 2}, {name: flat, kind: flatten},"
        "{name: hidden, kind: linear, units: 40}, {name: hidden_lif, kind: lif},"
        "{name: out, kind: linear, units: 4}, {name: lif, kind: lif}]",
        "network=[{name: a, kind: linear, units: 20}, {name: b, kind: linear, units: 20, from: "
        "[input]}, {name: sum, kind: add, from: [a, b]}, {name: level, kind: batch_norm, "
        "statistics: sequence}, {name: gain, kind: scale, factor: 1.5}, {name: hidden, kind: lif}, "
        "{name: drop, kind: dropout}, {name: out, kind: linear, units: 4}, {name: lif, kind: lif}]",
        "network=[{name: conv, kind: conv2d, out_channels: 6, kernel_size: 3, stride: 2},"
        "{name: conv_lif, kind: lif},"
        "{name: second, kind: conv2d, out_channels: 4, kernel_size: 2, groups: 2, form: event},"
        "{name: second_lif, kind: lif},"
        "{name: late, kind: delay, delay: 1.5, max_delay: 3, learnable: true},"
        "{name: out, kind: linear, units: 40}, {name: lif, kind: lif},"
        "{name: out2, kind: linear, units: 4}, {name: last, kind: lif}]",
    };
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
        same_bits(RUN("verify", "recipe.yaml", "--json", "--device", "emu:2,5", "--stages", "2",
                      "--chunks", i == 1 ? "1" : "3", "--micro-batches", "2", "--set", networks[i],
                      "--set", i == 1 ? "encode.kind=constant" : "encode.kind=rate"));
}

/* More stages than devices: they go round. Everything that is no longer the default. */
static void other_encoders_losses_and_optimisers_give_the_bits_of_one_device(void **state) {
    (void)state;
    static const char *const changes[][4] = {
        {"encode={kind: rate, steps: 6}", "train.optimizer={kind: sgd, lr: 0.1, momentum: 0.9}",
         "train.clip_norm=1.0", "loss.readout=membrane_max"},
        {"network.hidden_lif.kind=plif", "loss.readout=every_step",
         "train.optimizer={kind: rmsprop, lr: 0.01}", "network.out_lif.reset=zero"},
        {"network.hidden.form=dense", "encode={kind: latency, steps: 7}",
         "network.hidden_lif.kind=alif", "loss.readout=first_spike"},
        {"network.hidden_lif.kind=cuba", "network.out.form=dense", "train.optimizer.kind=adamw",
         "loss.label_smoothing=0.1"},
    };
    for (size_t i = 0; i < CHANGES; i++) {
        const char *const *c = changes[i];
        int code = RUN("verify", "recipe.yaml", "--json", "--device", "emu:2,5", "--stages", "2",
                       "--chunks", "3", "--micro-batches", "3", "--schedule", "1f1b", "--set", c[0],
                       "--set", c[1], "--set", c[2], "--set", c[3], "--steps", "2");
        if (code != 0) fail_msg("change %zu: exit %d: %s%s", i, code, out_text, err_text);
        same_bits(code);
    }
}

static double accuracy(const char *key) {
    json_t *root = parse_out();
    double value = json_number_value(json_object_get(root, key));
    json_decref(root);
    return value;
}

/* The model is no different from one of the CPU: that is where it is evaluated. */
static void training_on_two_devices_learns_and_its_model_serves_the_cpu(void **state) {
    (void)state;
    if (RUN("train", "recipe.yaml", "--json", "--device", "emu:0,1", "--stages", "2", "--chunks",
            "2", "-o", "trained") != 0)
        fail_msg("%s%s", out_text, err_text);
    double trained = accuracy("test_accuracy");
    assert_true(trained > 0.9);
    assert_int_equal(RUN("eval", "trained", "--json", "--device", "cpu"), 0);
    assert_true(accuracy("accuracy") > 0.9);
    assert_int_equal(RUN("eval", "trained", "--json", "--device", "emu:3"), 0);
    assert_true(accuracy("accuracy") == trained);
}

static void what_cannot_run_is_refused_with_its_reason(void **state) {
    (void)state;
    ERROR(78, "has no kernels for recurrent neurons", "verify", "recipe.yaml", "--device", "emu:0",
          "--set", "network.hidden_lif.recurrent=true");
    for (int k = 0; k < 2; k++)
        ERROR(78, "updates on device emu make none: take device cpu", k ? "train" : "verify",
              "recipe.yaml", "--device", "emu:0,1", "--stages", "2", "--schedule", "pb",
              k ? "-o" : "--steps", k ? "delayed" : "2");
    assert_true(access(in_folder("delayed"), F_OK) != 0);
    ERROR(69, "there is no device emu:8, but 8", "verify", "recipe.yaml", "--device", "emu:8");
    assert_int_equal(setenv("RV_EMU_DRIVER", "12040", 1), 0);
    ERROR(69, "the driver is too old: it is of CUDA 12.4, needed is 13.0", "verify", "recipe.yaml",
          "--device", "emu:0");
    assert_int_equal(setenv("RV_EMU_DRIVER", "0", 1), 0);
    ERROR(69, "the driver is missing", "verify", "recipe.yaml", "--device", "emu:0");
    assert_int_equal(unsetenv("RV_EMU_DRIVER"), 0);
    assert_int_equal(setenv("RV_EMU_DEVICES", "0", 1), 0);
    ERROR(69, "the driver finds no GPU", "verify", "recipe.yaml", "--device", "emu:0");
    assert_int_equal(unsetenv("RV_EMU_DEVICES"), 0);
    assert_int_equal(RUN("list", "devices"), 0);
    assert_contains(out_text, "emu:7");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bench_fc_in_two_stages_on_two_devices_gives_the_bits_of_one),
        cmocka_unit_test(bench_deep_in_two_stages_on_two_devices_gives_the_bits_of_one),
        cmocka_unit_test(fashion_fc_in_two_stages_on_two_devices_gives_the_bits_of_one),
        cmocka_unit_test(all_kinds_of_layers_give_the_bits_of_one_device),
        cmocka_unit_test(other_encoders_losses_and_optimisers_give_the_bits_of_one_device),
        cmocka_unit_test(training_on_two_devices_learns_and_its_model_serves_the_cpu),
        cmocka_unit_test(what_cannot_run_is_refused_with_its_reason),
    };
    return cmocka_run_group_tests_name("networks on emulated GPUs", tests, setup, group_teardown);
}
