/* The program from outside: usage, lists, and every refusal with its exit code, text and JSON. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>

#include "data/data.h"
#include "tests/spawn.h"

/* ---- usage ------------------------------------------------------------------------------ */

static void help_is_printed(void **state) {
    (void)state;
    assert_int_equal(RUN("--help"), 0);
    assert_contains(out_text, "Usage: ranvier COMMAND");
    assert_contains(out_text, "train");
    assert_int_equal(RUN("-h"), 0);
    assert_int_equal(RUN("train", "--help"), 0);
    assert_contains(out_text, "--threads=N");
    assert_contains(out_text, "CONFIG");
    assert_int_equal(RUN("eval", "-h"), 0);
    assert_contains(out_text, "--predictions=FILE");
    assert_int_equal(RUN("--version"), 0);
    assert_contains(out_text, "ranvier ");
}

static void usage_unknown_command_names_nearest(void **state) {
    (void)state;
    ERROR(64, "unknown command \"trian\"", "trian", "recipe.yaml");
    assert_int_equal(RUN("trian"), 64);
    assert_string_equal(err_text,
                        "ranvier: error: unknown command \"trian\" (did you mean \"train\"?)\n");
    assert_int_equal(RUN("--versoin"), 64);
    assert_contains(err_text, "(did you mean \"--version\"?)");
    assert_int_equal(run_words((const char *const[]){NULL}), 64);
    assert_contains(err_text, "no command");
}

static void usage_unknown_option_names_nearest(void **state) {
    (void)state;
    ERROR(64, "unknown option \"--thread-count\"", "train", "recipe.yaml", "--thread-count", "2");
    ERROR(64, "unknown option \"-z\"", "train", "-z", "recipe.yaml");
    assert_int_equal(RUN("train", "recipe.yaml", "--quite"), 64);
    assert_contains(err_text, "(did you mean \"--quiet\"?)");
    ERROR(64, "unknown option \"--out\"", "list", "neurons", "--out", "x"); /* not list's */
}

static void usage_wrong_values_are_refused(void **state) {
    (void)state;
    ERROR(64, "--threads takes a whole number", "train", "recipe.yaml", "--threads", "two");
    ERROR(64, "--threads takes a whole number", "train", "recipe.yaml", "--threads=0");
    ERROR(64, "--json takes no value", "train", "recipe.yaml", "--json=1");
    ERROR(64, "train needs CONFIG", "train");
    ERROR(64, "\"b.yaml\" is too much", "train", "recipe.yaml", "b.yaml");
    ERROR(64, "unknown instruction set", "train", "recipe.yaml", "--isa", "sse9");
    assert_int_equal(RUN("train", "recipe.yaml", "--threads"), 64);
    assert_contains(err_text, "--threads needs N");
    ERROR(64, "unknown split \"tset\"", "eval", "none.h5", "--split", "tset");
    assert_int_equal(RUN("train", "recipe.yaml", "--set", "nonsense"), 64);
}

/* ---- list ------------------------------------------------------------------------------- */

static void list_every_kind_is_json_and_narrow_text(void **state) {
    (void)state;
    static const char *const kinds[] = {
        "neurons",   "surrogates", "layers",  "losses",  "init",    "regularizers", "optimizers",
        "schedules", "encoders",   "readers", "augment", "devices", "keys"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        assert_int_equal(RUN("list", kinds[i], "--json"), 0);
        json_t *root = parse_out();
        assert_string_equal(json_string_value(json_object_get(root, "kind")), kinds[i]);
        json_decref(root);
        assert_int_equal(RUN("list", kinds[i]), 0);
        for (char *line = strtok(out_text, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > 100) fail_msg("list %s: line too wide: \"%s\"", kinds[i], line);
    }
}

static void list_neurons_holds_lif(void **state) {
    (void)state;
    bool beta = false;
    size_t index, at;
    json_t *row, *parameter;
    assert_int_equal(RUN("list", "neurons", "--json"), 0);
    json_t *root = parse_out();
    json_array_foreach(json_object_get(root, "rows"), index, row) {
        if (strcmp(json_string_value(json_object_get(row, "name")), "lif") != 0) continue;
        json_array_foreach(json_object_get(row, "parameters"), at, parameter) {
            if (strcmp(json_string_value(json_object_get(parameter, "name")), "beta") == 0)
                beta = json_number_value(json_object_get(parameter, "default")) == 0.95 &&
                       json_object_get(parameter, "type");
        }
    }
    json_decref(root);
    assert_true(beta);
}

static void list_unknown_kind_names_nearest(void **state) {
    (void)state;
    ERROR(64, "unknown kind \"neuron\"", "list", "neuron");
    assert_int_equal(RUN("list", "neuron"), 64);
    assert_contains(err_text, "(did you mean \"neurons\"?)");
}

/* ---- recipes that are wrong ------------------------------------------------------------- */

static void config_unknown_key_shows_place_and_nearest(void **state) {
    (void)state;
    char text[4096];
    read_text(in_folder("recipe.yaml"), text, sizeof text);
    char *word = strstr(text, "threshold");
    assert_non_null(word);
    memmove(word + 1, word + 2, strlen(word + 2) + 1); /* threshold -> treshold */
    tiny_put(in_folder("typo.yaml"), text, strlen(text));
    assert_int_equal(RUN("train", "typo.yaml"), 78);
    assert_string_equal(err_text, "typo.yaml:16:46: error: unknown key \"treshold\" (did you mean "
                                  "\"threshold\"?)\n");
    assert_int_equal(RUN("train", "typo.yaml", "--json"), 78);
    json_t *root = parse_out(), *error = json_object_get(root, "error");
    assert_string_equal(json_string_value(json_object_get(error, "file")), "typo.yaml");
    assert_int_equal(json_integer_value(json_object_get(error, "line")), 16);
    assert_int_equal(json_integer_value(json_object_get(error, "column")), 46);
    assert_string_equal(json_string_value(json_object_get(error, "hint")), "threshold");
    assert_non_null(json_string_value(json_object_get(error, "key")));
    json_decref(root);
    assert_int_equal(RUN("check", "typo.yaml"), 78);
}

static void config_wrong_values_are_refused(void **state) {
    (void)state;
    ERROR(78, "", "train", "recipe.yaml", "--set", "train.epochs=many");
    ERROR(78, "", "train", "recipe.yaml", "--set", "network.hidden_lif.beta=1.5");
    ERROR(78, "", "train", "recipe.yaml", "--set", "network.hidden.kind=linaer");
    ERROR(78, "", "train", "recipe.yaml", "--set", "input=[35]");          /* the data have 36 */
    ERROR(78, "", "train", "recipe.yaml", "--set", "network.out.units=3"); /* 4 classes */
    ERROR(78, "batch of 97 is larger than the train share of 96", "train", "recipe.yaml", "--set",
          "train.batch=97");
    assert_true(access(in_folder("runs"), F_OK) != 0); /* nothing was begun */
}

static void config_set_shows_the_option_as_place(void **state) {
    (void)state;
    assert_int_equal(RUN("train", "recipe.yaml", "--set", "train.batch=0"), 78);
    assert_string_equal(err_text,
                        "--set: error: \"train.batch\" must lie in [1, 1048576], found 0\n");
    assert_int_equal(RUN("train", "recipe.yaml", "--set", "trian.batch=1"), 78);
    assert_string_equal(err_text,
                        "--set: error: unknown key \"trian\" (did you mean \"train\"?)\n");
    assert_int_equal(RUN("train", "recipe.yaml", "--set", "loss={kind: mse, onn: 1}"), 78);
    assert_contains(err_text, "--set: error: unknown key \"onn\"");
    assert_int_equal(RUN("train", "recipe.yaml", "--set", "pipeline.chunks=5000"), 78);
    assert_contains(err_text, "--set: error: \"pipeline.chunks\"");
}

static void config_missing_file_is_66(void **state) {
    (void)state;
    ERROR(66, "nowhere.yaml", "train", "nowhere.yaml");
    ERROR(66, "nowhere.h5", "eval", "nowhere.h5");
    ERROR(66, "nowhere", "info", "nowhere");
    ERROR(66, "nowhere", "check", "nowhere");
    ERROR(66, "no-images", "train", "recipe.yaml", "--set", "data.train.inputs=no-images");
}

/* ---- data that are wrong ---------------------------------------------------------------- */

/* A signal from outside stands for a defect; a sanitizer has a report of its own. */
static void crash_says_where_and_keeps_its_signal(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    static const int numbers[] = {SIGSEGV, SIGABRT};
    static const char *const names[] = {"crashed: segmentation fault", "crashed: aborted"};
    static const char *const runs[] = {"crash0", "crash1"};
    for (int i = 0; i < 2; i++) {
        const char *const words[] = {"train",      "recipe.yaml", "-o",
                                     runs[i],      "--set",       "train.epochs=1000000",
                                     "--max-time", "00:00:20",    NULL};
        char mark[64];
        snprintf(mark, sizeof mark, "%s/metrics.jsonl", runs[i]);
        pid_t child = start(words);
        for (int tries = 0; tries < 2000 && access(in_folder(mark), F_OK) != 0; tries++)
            usleep(5000);
        assert_int_equal(kill(child, numbers[i]), 0);
        assert_int_equal(end(child), 1000 + numbers[i]);
        assert_contains(err_text, names[i]);
        assert_contains(err_text, "train recipe.yaml -o crash");
        assert_contains(err_text, "ranvier(+0x");
        assert_contains(err_text, "--resume auto");
    }
}

static void data_damaged_is_65(void **state) {
    (void)state;
    static char bytes[16 + TINY_TRAIN * TINY_SIDE * TINY_SIDE + 8];
    FILE *file = fopen(in_folder("train-images"), "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    assert_int_equal(fclose(file), 0);
    tiny_put(in_folder("short"), bytes, size - 1);
    tiny_put(in_folder("long"), bytes, size + 1);
    tiny_put(in_folder("head"), bytes, 9);
    tiny_put(in_folder("false.gz"), "this is no gzip file", 20);
    static const char *const bad[] = {"short", "long", "head", "false.gz"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char assignment[64];
        snprintf(assignment, sizeof assignment, "data.train.inputs=%s", bad[i]);
        ERROR(65, bad[i], "train", "recipe.yaml", "--set", assignment);
    }
    ERROR(65, "short", "check", "short");
    ERROR(65, "long", "info", "long");
}

static void data_counts_differ_is_refused(void **state) {
    (void)state;
    int code = RUN("train", "recipe.yaml", "--set", "data.train.labels=test-labels");
    assert_true(code == 65 || code == 78);
    assert_contains(err_text, "40");
    assert_contains(err_text, "120");
}

/* More units, fewer, and as many in another shape: the network was made for the training split. */
static void data_test_split_of_other_shape_is_65(void **state) {
    (void)state;
    static const unsigned char sides[][2] = {{7, 7}, {5, 5}, {1, 1}, {4, 9}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        size_t pixels = (size_t)sides[i][0] * sides[i][1];
        unsigned char file[16 + TINY_TEST * 49] = {0};
        tiny_put32(file, 0x00000803), tiny_put32(file + 4, TINY_TEST);
        tiny_put32(file + 8, sides[i][0]), tiny_put32(file + 12, sides[i][1]);
        tiny_put(in_folder("other-images"), file, 16 + TINY_TEST * pixels);
        ERROR(65, "samples of the test split are [1, ", "train", "recipe.yaml", "--set",
              "data.test.inputs=other-images");
        ERROR(65, "those of the train split [1, 6, 6]", "check", "recipe.yaml", "--set",
              "data.test.inputs=other-images");
    }
}

static void data_label_beyond_outputs_is_refused(void **state) {
    (void)state;
    tiny_set(folder, "shifted", TINY_TRAIN, 1, 3);
    int code = RUN("train", "recipe.yaml", "--set", "data.train.labels=shifted-labels");
    assert_true(code == 65 || code == 78);
    code = RUN("train", "recipe.yaml", "--set", "data.train.labels=shifted-labels", "--json");
    assert_true(code == 65 || code == 78);
    json_decref(parse_out());
    assert_true(access(in_folder("runs"), F_OK) != 0);
}

/* Tapes of a verification have no run folder. */
static void temporary_files_go_where_the_environment_says(void **state) {
    (void)state;
    static const char *const words[] = {"verify",  "recipe.yaml", "--stages",
                                        "2",       "--set",       "pipeline.tape=spill",
                                        "--steps", "2",           NULL};
    if (!rv_h5_available()) skip();
    assert_int_equal(setenv("TMPDIR", "/nowhere/at/all", 1), 0);
    int code = run_words(words);
    assert_int_equal(setenv("TMPDIR", folder, 1), 0);
    assert_int_equal(code, 73);
    assert_contains(err_text, "/nowhere/at/all/ranvier-tapes-");
    code = run_words(words);
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_int_equal(code, 0);
}

/* Said once when it is asked for, in --json runs on stderr, too; never otherwise. */
static void cut_gradients_are_warned_of(void **state) {
    (void)state;
    static const char warning[] = "warning: pipeline.truncate: gradients go back over at most ";
#define TRAIN(folder, ...)                                                                         \
    RUN("train", "recipe.yaml", "-o", folder, "--set", "train.max_steps=1", "--set",               \
        "pipeline.chunks=3", __VA_ARGS__)
    assert_int_equal(TRAIN("cut0", "--set", "pipeline.truncate=0"), 0);
    assert_null(strstr(err_text, "truncate"));
    assert_int_equal(TRAIN("cut1", "--set", "pipeline.truncate=1"), 0);
    assert_contains(err_text, warning);
    assert_contains(err_text, "at most 1 chunk; what lies longer ago is not learned from");
    assert_null(strstr(strstr(err_text, warning) + 1, warning));
    assert_int_equal(TRAIN("cut2", "--set", "pipeline.truncate=2", "--stages", "2", "--json"), 0);
    assert_contains(err_text, "at most 2 chunks; what lies longer ago is not learned from");
#undef TRAIN
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_is_printed),
        cmocka_unit_test(usage_unknown_command_names_nearest),
        cmocka_unit_test(usage_unknown_option_names_nearest),
        cmocka_unit_test(usage_wrong_values_are_refused),
        cmocka_unit_test(list_every_kind_is_json_and_narrow_text),
        cmocka_unit_test(list_neurons_holds_lif),
        cmocka_unit_test(list_unknown_kind_names_nearest),
        cmocka_unit_test(config_unknown_key_shows_place_and_nearest),
        cmocka_unit_test(config_wrong_values_are_refused),
        cmocka_unit_test(config_set_shows_the_option_as_place),
        cmocka_unit_test(config_missing_file_is_66),
        cmocka_unit_test(crash_says_where_and_keeps_its_signal),
        cmocka_unit_test(temporary_files_go_where_the_environment_says),
        cmocka_unit_test(cut_gradients_are_warned_of),
        cmocka_unit_test(data_damaged_is_65),
        cmocka_unit_test(data_counts_differ_is_refused),
        cmocka_unit_test(data_test_split_of_other_shape_is_65),
        cmocka_unit_test(data_label_beyond_outputs_is_refused),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
