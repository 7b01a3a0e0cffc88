/* The program from outside: training, evaluation, info and check, from recipe to files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "data/data.h"
#include "tests/spawn.h"

/* ---- success ---------------------------------------------------------------------------- */

static void train_text_ends_with_accuracy_and_run(void **state) {
    (void)state;
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "run_text"), 0);
    char *line = strstr(out_text, "test accuracy ");
    assert_non_null(line);
    assert_true(line == out_text || line[-1] == '\n');
    double percent = atof(line + strlen("test accuracy "));
    assert_true(percent >= 80 && percent <= 100);
    char *next = strchr(line, '\n');
    assert_non_null(next);
    assert_contains(next, "run_text");
    assert_string_equal(strchr(next + 1, '\n'), "\n"); /* the last line */
    assert_contains(err_text, "neurons:");
    assert_contains(err_text, "preset ranvier");
    assert_contains(err_text, "threads");
    assert_contains(err_text, "epoch 4/4");
    assert_null(strchr(err_text, '\r')); /* no bar where there is no terminal */
}

static void train_json_has_every_key(void **state) {
    (void)state;
    static const char *const numbers[] = {"test_accuracy",
                                          "test_accuracy_last",
                                          "validation_accuracy",
                                          "train_loss",
                                          "epochs",
                                          "steps",
                                          "seconds",
                                          "step_ms_median",
                                          "samples_per_s",
                                          "peak_mb",
                                          "peak_step_mb"};
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "run_json", "--json", "--quiet"), 0);
    assert_string_equal(err_text, "");
    json_t *root = parse_out();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!json_is_number(json_object_get(root, numbers[i])))
            fail_msg("%s is no number in %s", numbers[i], out_text);
    assert_int_equal(json_object_size(root), 13);
    assert_int_equal(json_integer_value(json_object_get(root, "epochs")), 4);
    assert_int_equal(json_integer_value(json_object_get(root, "steps")), 24);
    double accuracy = json_number_value(json_object_get(root, "test_accuracy"));
    assert_true(accuracy >= 0.8 && accuracy <= 1.0);
    json_t *rates = json_object_get(root, "rates");
    assert_int_equal(json_object_size(rates), 2);
    double rate = json_number_value(json_object_get(rates, "hidden_lif"));
    assert_true(rate > 0 && rate < 1);
    assert_contains(json_string_value(json_object_get(root, "run")), "run_json");
    json_decref(root);
}

static void train_metrics_and_run_files_are_there(void **state) {
    (void)state;
    static const char *const keys[] = {"event",         "epoch",          "step",
                                       "train_loss",    "train_accuracy", "validation_accuracy",
                                       "test_accuracy", "seconds",        "samples_per_s",
                                       "rates"};
    char text[1 << 16];
    int lines = 0;
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "run_files", "--quiet"), 0);
    read_text(in_folder("run_files/metrics.jsonl"), text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        assert_non_null(root);
        if (strcmp(json_string_value(json_object_get(root, "event")), "epoch") == 0) lines++;
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            assert_non_null(json_object_get(root, keys[i]));
        json_decref(root);
    }
    assert_int_equal(lines, 4);
    json_t *run = json_load_file(in_folder("run_files/run.json"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(run, "status")), "complete");
    json_decref(run);
    assert_int_equal(access(in_folder("run_files/config.yaml"), R_OK), 0);
    if (rv_h5_available()) {
        assert_int_equal(access(in_folder("run_files/best.h5"), R_OK), 0);
        assert_int_equal(access(in_folder("run_files/last.h5"), R_OK), 0);
        assert_int_equal(access(in_folder("run_files/previous.h5"), R_OK), 0);
    }
    assert_int_equal(RUN("info", "run_files", "--json"), 0);
    json_decref(parse_out());
    assert_int_equal(RUN("check", "run_files"), 0);
    /* The resolved recipe trains again, elsewhere. */
    assert_int_equal(RUN("check", "run_files/config.yaml"), 0);
}

static void train_default_folders_are_numbered(void **state) {
    (void)state;
    static const char *const names[] = {"runs/recipe", "runs/recipe-2", "runs/recipe-3"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(RUN("train", "recipe.yaml", "--set", "train.max_steps=1", "-q"), 0);
        char *end_of_text = out_text + strlen(out_text) - 1;
        *end_of_text = 0;
        assert_string_equal(strrchr(out_text, '\n') + 1, names[i]);
        assert_int_equal(access(in_folder(names[i]), R_OK), 0);
    }
}

static void train_unwritable_output_is_73(void **state) {
    (void)state;
    tiny_put(in_folder("plain"), "x", 1);
    ERROR(73, "plain", "train", "recipe.yaml", "-q", "-o", "plain/run"); /* a file on the way */
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "taken", "--set", "train.max_steps=1"), 0);
    ERROR(73, "taken", "train", "recipe.yaml", "-q", "-o", "taken");
}

static void train_early_stop_ends_without_better_validation(void **state) {
    (void)state; /* nothing is learnt, so the first epoch stays the best */
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "run_early", "--json", "-q", "--set",
                         "train.optimizer.lr=1e-30", "--set", "train.epochs=20", "--set",
                         "train.early_stop=2"),
                     0);
    json_t *root = parse_out();
    assert_int_equal(json_integer_value(json_object_get(root, "epochs")), 3);
    json_decref(root);
    ERROR(78, "data.validation", "train", "recipe.yaml", "-q", "-o", "run_blind", "--set",
          "train.early_stop=2", "--set", "data.validation=0");
}

static void train_zero_epochs_writes_the_untrained_model(void **state) {
    (void)state;
    assert_int_equal(
        RUN("train", "recipe.yaml", "-o", "run_zero", "--json", "-q", "--set", "train.epochs=0"),
        0);
    json_t *root = parse_out();
    assert_int_equal(json_integer_value(json_object_get(root, "steps")), 0);
    assert_true(json_is_null(json_object_get(root, "train_loss")));
    assert_true(json_is_null(json_object_get(root, "step_ms_median")));
    assert_true(json_is_number(json_object_get(root, "test_accuracy")));
    json_decref(root);
    if (rv_h5_available()) assert_int_equal(access(in_folder("run_zero/last.h5"), R_OK), 0);
}

static void train_signal_saves_and_exits_75(void **state) {
    (void)state;
    const struct timespec pause = {0, 20000000};
    pid_t child = start((const char *const[]){"train", "recipe.yaml", "-o", "run_stop", "-v",
                                              "--set", "train.epochs=100000", NULL});
    for (int i = 0; i < 500 && access(in_folder("run_stop/metrics.jsonl"), R_OK) != 0; i++)
        nanosleep(&pause, NULL);
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(end(child), 75);
    assert_contains(err_text, "stopped after step");
    json_t *run = json_load_file(in_folder("run_stop/run.json"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(run, "status")), "checkpointed");
    json_decref(run);
    if (rv_h5_available()) assert_int_equal(access(in_folder("run_stop/last.h5"), R_OK), 0);
}

/* A second SIGINT does not wait for the step. A signal may hit the end of a step: some tries. */
static void train_second_interrupt_exits_130(void **state) {
    (void)state;
    const struct timespec start_up = {0, 20000000}, moment = {0, 5000000};
    int code = 0;
    for (int try = 0; try < 5 && code != 130; try++) {
        char name[32], json[64];
        snprintf(name, sizeof name, "run_int%d", try);
        snprintf(json, sizeof json, "%s/run.json", name);
        pid_t child = start((const char *const[]){
            "train", "recipe.yaml", "-o", name, "-q", "--set", "encode.steps=2000", "--set",
            "network.hidden.units=100", "--set", "train.batch=96", "--set", "train.epochs=1000",
            "--threads", "1", NULL});
        for (int i = 0; i < 500 && access(in_folder(json), R_OK) != 0; i++)
            nanosleep(&start_up, NULL);
        nanosleep(&start_up, NULL);
        assert_int_equal(kill(child, SIGINT), 0);
        nanosleep(&moment, NULL);
        (void)kill(child, SIGINT); /* it may have ended */
        code = end(child);
        assert_true(code == 130 || code == 75);
    }
    assert_int_equal(code, 130);
}

/* ---- models ----------------------------------------------------------------------------- */

static void eval_equals_training(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    assert_int_equal(
        RUN("train", "recipe.yaml", "-o", "run_eval", "--json", "-q", "--set", "train.max_steps=2"),
        0); /* half learnt: wrong guesses must show */
    json_t *train = parse_out();
    assert_int_equal(RUN("eval", "run_eval", "--json", "--predictions", "guess.csv"), 0);
    json_t *eval = parse_out();
    assert_true(json_number_value(json_object_get(eval, "accuracy")) ==
                json_number_value(json_object_get(train, "test_accuracy")));
    assert_int_equal(json_integer_value(json_object_get(eval, "samples")), TINY_TEST);
    assert_true(json_number_value(json_object_get(eval, "accuracy")) < 1);

    /* The confusion's rows hold the labels' counts, its diagonal the right guesses. */
    json_t *confusion = json_object_get(eval, "confusion");
    json_int_t right = 0;
    assert_int_equal(json_array_size(confusion), TINY_CLASSES);
    for (size_t label = 0; label < TINY_CLASSES; label++) {
        json_int_t sum = 0;
        json_t *row = json_array_get(confusion, label);
        for (size_t guess = 0; guess < TINY_CLASSES; guess++)
            sum += json_integer_value(json_array_get(row, guess));
        assert_int_equal(sum, TINY_TEST / TINY_CLASSES);
        right += json_integer_value(json_array_get(row, label));
    }
    assert_true((double)right / TINY_TEST == json_number_value(json_object_get(eval, "accuracy")));

    /* Rates, spikes and operations say the same: 24 units, 6 steps, 4 targets. */
    json_t *spikes = json_object_get(eval, "spikes"), *rates = json_object_get(eval, "rates");
    json_int_t hidden = json_integer_value(json_object_get(spikes, "hidden_lif"));
    assert_true(hidden > 0);
    assert_float_equal(json_number_value(json_object_get(rates, "hidden_lif")),
                       (double)hidden / (24.0 * 6 * TINY_TEST), 1e-9);
    json_t *synops = json_object_get(eval, "synops");
    assert_int_equal(json_integer_value(json_object_get(synops, "hidden_lif")), 4 * hidden);
    assert_int_equal(json_integer_value(json_object_get(synops, "out_lif")), 0);
    assert_int_equal(json_integer_value(json_object_get(eval, "dense_operations")),
                     36 * 24 * TINY_TEST); /* a constant input: once per sample */
    json_decref(eval);
    json_decref(train);

    /* The CSV has a header and one line per sample that agree with the accuracy. */
    char text[1 << 14];
    int lines = 0, hits = 0;
    read_text(in_folder("guess.csv"), text, sizeof text);
    assert_int_equal(strncmp(text, "sample,label,prediction\n", 24), 0);
    for (char *line = strtok(text + 24, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        int sample, label, guess;
        assert_int_equal(sscanf(line, "%d,%d,%d", &sample, &label, &guess), 3);
        assert_int_equal(sample, lines);
        assert_int_equal(label, sample % TINY_CLASSES);
        hits += label == guess;
    }
    assert_int_equal(lines, TINY_TEST);
    assert_int_equal(hits, right);
}

static void eval_other_data_and_splits(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "run_split", "-q"), 0);
    static const struct {
        const char *split;
        int samples;
    } cases[] = {{"train", 96}, {"validation", 24}, {"test", 40}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(RUN("eval", "run_split/last.h5", "--json", "--split", cases[i].split), 0);
        json_t *root = parse_out();
        assert_int_equal(json_integer_value(json_object_get(root, "samples")), cases[i].samples);
        json_decref(root);
    }
    assert_int_equal(RUN("eval", "run_split", "--json", "--data", "recipe.yaml", "--set",
                         "data.test.inputs=train-images", "--set", "data.test.labels=train-labels",
                         "--set", "encode.kind=rate"),
                     0);
    json_t *root = parse_out();
    assert_int_equal(json_integer_value(json_object_get(root, "samples")), TINY_TRAIN);
    assert_int_equal(json_integer_value(json_object_get(root, "dense_operations")), 0);
    json_int_t spikes = json_integer_value(json_object_get(root, "input_spikes"));
    assert_true(spikes > 0);
    assert_int_equal(json_integer_value(json_object_get(root, "input_synops")), 24 * spikes);
    json_decref(root);

    /* The loss is a mean over samples, whatever the batches: 5 of 7 and a ragged one of 5. */
    double loss[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            RUN("eval", "run_split", "--json", "--set", i ? "train.batch=7" : "train.batch=40"), 0);
        root = parse_out();
        loss[i] = json_number_value(json_object_get(root, "loss"));
        json_decref(root);
    }
    assert_true(loss[0] > 0);
    assert_float_equal(loss[1], loss[0], 1e-5 * loss[0]);

    assert_int_equal(RUN("eval", "run_split"), 0);
    assert_contains(out_text, "accuracy ");
    assert_contains(out_text, "hidden_lif");
    assert_contains(out_text, "confusion");
    ERROR(73, "no_folder", "eval", "run_split", "--predictions", "no_folder/guess.csv");
}

static void put_text(const char *name, const char *text) {
    tiny_put(in_folder(name), text, strlen(text));
}

static void info_and_check_know_files(void **state) {
    (void)state;
    assert_int_equal(RUN("info", "train-images", "--json"), 0);
    json_t *root = parse_out(), *shape = json_object_get(root, "shape");
    assert_string_equal(json_string_value(json_object_get(root, "format")), "idx");
    assert_string_equal(json_string_value(json_object_get(root, "type")), "uint8");
    assert_int_equal(json_array_size(shape), 3);
    assert_int_equal(json_integer_value(json_array_get(shape, 0)), TINY_TRAIN);
    json_decref(root);
    assert_int_equal(RUN("check", "recipe.yaml", "--json"), 0);
    root = parse_out();
    assert_true(json_is_true(json_object_get(root, "ok")));
    json_decref(root);
    assert_int_equal(RUN("info", "recipe.yaml"), 0);
    assert_contains(out_text, "hidden_lif");
    if (!rv_h5_available()) return;
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "run_info", "-q"), 0);
    assert_int_equal(RUN("info", "run_info/best.h5", "--json"), 0);
    root = parse_out();
    assert_string_equal(json_string_value(json_object_get(root, "format")), "model");
    assert_int_equal(json_integer_value(json_object_get(root, "parameters")),
                     36 * 24 + 24 + 24 * 4 + 4);
    json_decref(root);
    assert_int_equal(RUN("check", "run_info/best.h5"), 0);
    /* Single files of a run are known too, a torn last line of the log included. */
    assert_int_equal(RUN("info", "run_info/run.json", "--json"), 0);
    root = parse_out();
    assert_string_equal(json_string_value(json_object_get(root, "format")), "run record");
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "run"), "status")),
                        "complete");
    json_decref(root);
    assert_int_equal(RUN("check", "run_info/run.json"), 0);
    FILE *log = fopen(in_folder("run_info/metrics.jsonl"), "a");
    assert_non_null(log);
    assert_true(fputs("{\"event\":", log) >= 0);
    assert_int_equal(fclose(log), 0);
    assert_int_equal(RUN("check", "run_info/metrics.jsonl"), 0);
    assert_int_equal(RUN("info", "run_info/metrics.jsonl", "--json"), 0);
    root = parse_out();
    assert_string_equal(json_string_value(json_object_get(root, "format")), "metrics");
    assert_int_equal(json_integer_value(json_object_get(root, "metrics")), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "last"), "epoch")),
                     4);
    json_decref(root);
    put_text("odd.json", "{\"format\": \"ranvier-run\", oops}");
    ERROR(65, "not JSON", "info", "odd.json");
    put_text("odd.json", "{\"format\": \"ranvier-run\"}");
    ERROR(65, "has no status", "check", "odd.json");
    put_text("odd.jsonl", "{\"event\":\n{\"event\":1}\n");
    ERROR(65, "not JSON", "check", "odd.jsonl");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0); /* nobody will ever write into it */
    ERROR(66, "not a regular file", "info", "pipe");
    ERROR(66, "not a regular file", "train", "pipe");
    ERROR(66, "not a regular file", "eval", "pipe");
    ERROR(66, "not a regular file", "train", "recipe.yaml", "-o", "no", "--set",
          "data.train.inputs=pipe");
    ERROR(65, "not a model file", "eval", "recipe.yaml");
    ERROR(65, "not a model file", "diff", "run_info", "run_info/run.json");
    ERROR(66, "a file, not a run folder", "status", "recipe.yaml");
    ERROR(66, "a file, not a run folder", "plot", "recipe.yaml", "-o", "x.svg");
    FILE *file = fopen(in_folder("run_info/best.h5"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(in_folder("run_info/best.h5"), size / 2), 0);
    ERROR(65, "best.h5", "check", "run_info/best.h5");
    ERROR(65, "best.h5", "check", "run_info");
    ERROR(65, "best.h5", "eval", "run_info");
    tiny_put(in_folder("run_info/metrics.jsonl"), "{\"event\":1}\n\0torn\n", 19); /* a whole line */
    ERROR(65, "not JSON", "check", "run_info");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_text_ends_with_accuracy_and_run),
        cmocka_unit_test(train_json_has_every_key),
        cmocka_unit_test(train_metrics_and_run_files_are_there),
        cmocka_unit_test(train_default_folders_are_numbered),
        cmocka_unit_test(train_unwritable_output_is_73),
        cmocka_unit_test(train_early_stop_ends_without_better_validation),
        cmocka_unit_test(train_zero_epochs_writes_the_untrained_model),
        cmocka_unit_test(train_signal_saves_and_exits_75),
        cmocka_unit_test(train_second_interrupt_exits_130),
        cmocka_unit_test(eval_equals_training),
        cmocka_unit_test(eval_other_data_and_splits),
        cmocka_unit_test(info_and_check_know_files),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
