/* The interface in process: struct sizes, progress, stopping, the choice of the epoch, and that the
 * same seed gives the same weights for any number of threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <unistd.h>

#include "data/data.h"
#include "pipeline/ranvier.h"
#include "tests/tiny.h"

static char folder[] = "/tmp/rv_api_XXXXXX";

static int group_setup(void **state) {
    (void)state;
    return tiny_make(folder);
}

static int group_teardown(void **state) {
    (void)state;
    return tiny_remove(folder);
}

static const char *in_folder(const char *name) {
    return tiny_path(folder, name);
}

/* ---- one training ----------------------------------------------------------------------- */

typedef struct run {
    rv_trainer *trainer;
    rv_train_result result;
    char path[TINY_PATH];
    int steps, epochs; /* calls of progress */
    volatile int stop; /* set after `stop_after` steps */
    int stop_after, lines;
    rv_train_progress last;
} run;

static void count_progress(void *user, const rv_train_progress *progress) {
    run *r = user;
    if (progress->epoch_end)
        r->epochs++;
    else
        r->steps++;
    r->last = *progress;
    if (r->stop_after && r->steps == r->stop_after) r->stop = 1;
}

static void count_lines(void *user, const char *line) {
    run *r = user;
    assert_null(strchr(line, '\n'));
    r->lines++;
}

static rv_code train(run *r, const char *name, int threads, const char *const *sets) {
    snprintf(r->path, sizeof r->path, "%s", in_folder(name));
    rv_train_options options = {
        .struct_size = sizeof options,
        .config = in_folder("recipe.yaml"),
        .sets = sets,
        .out = r->path,
        .threads = threads,
        .stop = &r->stop,
        .progress = count_progress,
        .log = count_lines,
        .user = r,
    };
    while (sets && sets[options.set_count])
        options.set_count++;
    r->result.struct_size = sizeof r->result;
    return rv_train(&options, &r->trainer, &r->result);
}
#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- weights ---------------------------------------------------------------------------- */

/* The parameter block of a run's last.h5. *block: rv_free. */
static void load(const char *name, float **block, size_t *floats) {
    char path[TINY_PATH];
    rv_model *model = NULL;
    rv_config *config = NULL;
    rv_net *net = NULL;
    rv_source source = {0};
    snprintf(path, sizeof path, "%s/last.h5", in_folder(name));
    assert_int_equal(rv_model_open(path, &model), RV_OK);
    const char *text = rv_model_config(model);
    assert_int_equal(rv_config_parse(text, strlen(text), path, &config), RV_OK);
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
    assert_int_equal(rv_config_bind(config, &source), RV_OK);
    assert_int_equal(rv_net_create(&config->net, &net), RV_OK);
    *floats = net->n_all;
    assert_int_equal(rv_alloc(net->n_all, sizeof **block, "block", block), RV_OK);
    assert_int_equal(rv_model_load(model, net, *block, NULL, NULL), RV_OK);
    source.close(source.self);
    rv_net_destroy(net);
    rv_config_free(config);
    rv_model_close(model);
}

static bool same_weights(const char *a, const char *b) {
    float *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    load(a, &x, &n);
    load(b, &y, &m);
    assert_int_equal(n, m);
    bool same = memcmp(x, y, n * sizeof *x) == 0;
    rv_free(x);
    rv_free(y);
    return same;
}

static void train_same_seed_gives_same_weights(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    run a = {0}, b = {0}, two = {0}, other = {0};
    assert_int_equal(train(&a, "same_a", 1, NULL), RV_OK);
    assert_int_equal(train(&b, "same_b", 1, NULL), RV_OK);
    assert_int_equal(train(&two, "same_two", 2, NULL), RV_OK);
    assert_int_equal(train(&other, "same_other", 1, SETS("seed=8")), RV_OK);
    assert_true(same_weights("same_a", "same_b"));
    assert_true(same_weights("same_a", "same_two"));
    assert_false(same_weights("same_a", "same_other"));
    assert_true(a.result.train_loss == two.result.train_loss);
    assert_true(a.result.test_accuracy == two.result.test_accuracy);
    rv_trainer_destroy(a.trainer);
    rv_trainer_destroy(b.trainer);
    rv_trainer_destroy(two.trainer);
    rv_trainer_destroy(other.trainer);
}

/* ---- progress and results ---------------------------------------------------------------- */

static void train_progress_counts_every_step(void **state) {
    (void)state;
    run r = {0};
    assert_int_equal(train(&r, "progress", 1, NULL), RV_OK);
    assert_int_equal(r.steps, 24);
    assert_int_equal(r.epochs, 4);
    assert_int_equal(r.result.steps, 24);
    assert_int_equal(r.result.epochs, 4);
    assert_int_equal(r.last.epoch, 4);
    assert_int_equal(r.last.step, 24);
    assert_int_equal(r.last.steps_in_epoch, 6);
    assert_true(r.last.validation_accuracy >= 0 && r.last.validation_accuracy <= 1);
    assert_true(r.lines >= 1);
    assert_string_equal(r.result.run, r.path);
    assert_int_equal(r.result.layer_count, 2);
    assert_string_equal(r.result.layer_name[0], "hidden_lif");
    assert_string_equal(r.result.layer_name[1], "out_lif");
    assert_true(r.result.seconds > 0 && r.result.samples_per_s > 0);
    assert_true(r.result.step_ms_median > 0);
    assert_true(r.result.peak_mb > 1 && r.result.peak_step_mb > 1);
    assert_true(r.result.peak_step_mb <= r.result.peak_mb);
    rv_trainer_destroy(r.trainer);
}

static void train_max_steps_ends_within_an_epoch(void **state) {
    (void)state;
    run r = {0};
    assert_int_equal(train(&r, "max_steps", 1, SETS("train.max_steps=8")), RV_OK);
    assert_int_equal(r.result.steps, 8);
    assert_int_equal(r.result.epochs, 2);
    assert_int_equal(r.steps, 8);
    rv_trainer_destroy(r.trainer);
}

static void train_without_validation_keeps_the_last(void **state) {
    (void)state;
    run r = {0};
    assert_int_equal(train(&r, "no_validation", 1, SETS("data.validation=0.0")), RV_OK);
    assert_true(isnan(r.result.validation_accuracy));
    assert_true(r.result.test_accuracy == r.result.test_accuracy_last);
    assert_int_equal(r.last.steps_in_epoch, 8); /* all 120 samples, the last batch of 8 */
    rv_trainer_destroy(r.trainer);
}

/* The result belongs to the first epoch with the greatest validation accuracy in the metrics. */
static void train_best_epoch_is_chosen_on_validation(void **state) {
    (void)state;
    run r = {0};
    char name[TINY_PATH + 32];
    double best = -1, test = NAN, last = NAN;
    assert_int_equal(train(&r, "best", 1, SETS("train.epochs=12", "train.optimizer.lr=0.2")),
                     RV_OK);
    snprintf(name, sizeof name, "%s/metrics.jsonl", r.path);
    FILE *file = fopen(name, "r");
    char line[4096];
    int lines = 0;
    assert_non_null(file);
    for (; fgets(line, sizeof line, file); lines++) {
        json_t *root = json_loads(line, 0, NULL);
        assert_non_null(root);
        if (strcmp(json_string_value(json_object_get(root, "event")), "epoch") != 0) {
            lines--; /* a warning */
            json_decref(root);
            continue;
        }
        double accuracy = json_number_value(json_object_get(root, "validation_accuracy"));
        last = json_number_value(json_object_get(root, "test_accuracy"));
        if (accuracy > best) {
            best = accuracy;
            test = last;
        }
        assert_int_equal(json_integer_value(json_object_get(root, "epoch")), lines + 1);
        json_decref(root);
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(lines, 12);
    assert_float_equal(r.result.validation_accuracy, best, 1e-9);
    assert_float_equal(r.result.test_accuracy, test, 1e-9);
    assert_float_equal(r.result.test_accuracy_last, last, 1e-9);
    rv_trainer_destroy(r.trainer);
}

/* A model file says with which forms it was trained; run.json says the same. */
static void train_model_holds_its_forms(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    run r = {0};
    char path[TINY_PATH + 32];
    rv_model *model = NULL;
    rv_config *config = NULL;
    assert_int_equal(train(&r, "forms", 1, NULL), RV_OK);
    snprintf(path, sizeof path, "%s/run.json", r.path);
    json_t *info = json_load_file(path, 0, NULL), *forms = json_object_get(info, "forms");
    snprintf(path, sizeof path, "%s/best.h5", r.path);
    assert_int_equal(rv_model_open(path, &model), RV_OK);
    const char *text = rv_model_config(model);
    assert_int_equal(rv_config_parse(text, strlen(text), path, &config), RV_OK);
    assert_int_equal(config->net.layers[0].form, RV_FORM_DENSE); /* an analog input has no events */
    assert_string_equal(json_string_value(json_object_get(forms, "hidden")), "dense");
    rv_form out = config->net.layers[2].form;
    assert_true(out == RV_FORM_DENSE || out == RV_FORM_EVENT);
    assert_string_equal(json_string_value(json_object_get(forms, "out")),
                        out == RV_FORM_EVENT ? "event" : "dense");
    json_decref(info);
    rv_config_free(config);
    rv_model_close(model);
    rv_trainer_destroy(r.trainer);
}

/* ---- ends before the end ------------------------------------------------------------------ */

static void assert_status(const run *r, const char *status) {
    char name[TINY_PATH + 32];
    snprintf(name, sizeof name, "%s/run.json", r->path);
    json_t *root = json_load_file(name, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "status")), status);
    json_decref(root);
}

static void train_stop_saves_after_the_step(void **state) {
    (void)state;
    run r = {.stop_after = 9};
    rv_error_info error = {.struct_size = sizeof error};
    assert_int_equal(train(&r, "stopped", 1, NULL), RV_AGAIN);
    assert_int_equal(r.steps, 9);
    assert_int_equal(r.result.steps, 9);
    rv_last_error(&error);
    assert_int_equal(error.code, RV_AGAIN);
    assert_non_null(strstr(error.message, "step 9 of 24"));
    assert_status(&r, "checkpointed");
    if (rv_h5_available()) {
        char name[TINY_PATH + 32];
        rv_model *model = NULL;
        snprintf(name, sizeof name, "%s/last.h5", r.path);
        assert_int_equal(rv_model_open(name, &model), RV_OK);
        rv_model_close(model);
    }
    rv_trainer_destroy(r.trainer);
}

static void train_loss_not_finite_is_70(void **state) {
    (void)state;
    run r = {0};
    char name[TINY_PATH + 32], text[8192];
    assert_int_equal(train(&r, "infinite", 1,
                           SETS("loss.readout=membrane_mean", "loss.kind=mse",
                                "train.optimizer.kind=sgd", "train.optimizer.lr=1.0e+6")),
                     RV_INTERNAL);
    assert_non_null(strstr(rv_error_get()->message, "not finite"));
    assert_status(&r, "failed");
    snprintf(name, sizeof name, "%s/metrics.jsonl", r.path);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    assert_int_equal(fclose(file), 0);
    assert_non_null(strstr(text, "\"train_loss\":null"));
    assert_non_null(strstr(text, "\"nonfinite\":[\"train_loss\"]"));
    rv_trainer_destroy(r.trainer);
}

static void train_checkpoint_every_keeps_two(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    run r = {.stop_after = 5};
    char name[TINY_PATH + 32];
    rv_code code = train(&r, "every", 1, SETS("checkpoint.every=2"));
    assert_int_equal(code, RV_AGAIN);
    snprintf(name, sizeof name, "%s/previous.h5", r.path); /* of step 4 */
    assert_int_equal(access(name, R_OK), 0);
    rv_trainer_destroy(r.trainer);
}

/* ---- structs of other sizes ---------------------------------------------------------------- */

static void structs_without_size_are_refused(void **state) {
    (void)state;
    rv_train_options options = {.config = "x.yaml"};
    rv_train_result result = {.struct_size = sizeof result};
    rv_trainer *trainer = NULL;
    rv_error_info error = {.struct_size = sizeof error};
    assert_int_equal(rv_train(&options, &trainer, &result), RV_USAGE);
    rv_last_error(&error);
    assert_int_equal(error.code, RV_USAGE);
    assert_non_null(strstr(error.message, "struct_size"));
    assert_null(error.file);
    options.struct_size = sizeof options;
    options.config = NULL;
    assert_int_equal(rv_train(&options, &trainer, &result), RV_USAGE);
    assert_int_equal(rv_train(NULL, &trainer, &result), RV_USAGE);
    assert_int_equal(rv_train(&options, NULL, &result), RV_USAGE);
    assert_int_equal(rv_list(NULL, NULL), RV_USAGE);
    assert_null(trainer);
    rv_trainer_destroy(NULL);
    rv_eval_destroy(NULL);
    rv_text_free(NULL);
}

static void structs_of_older_callers_are_not_overrun(void **state) {
    (void)state;
    run r = {0};
    assert_int_equal(train(&r, "sizes", 1, SETS("train.max_steps=1")), RV_OK);
    struct {
        rv_train_result result;
        char guard[64];
    } old;
    memset(&old, 0x5a, sizeof old);
    size_t size = offsetof(rv_train_result, epochs);
    old.result.struct_size = size; /* a caller that knows the accuracies and the loss alone */
    rv_train_options options = {.struct_size = offsetof(rv_train_options, out),
                                .config = in_folder("recipe.yaml"),
                                .sets = SETS("train.max_steps=1"),
                                .set_count = 1};
    rv_trainer *trainer = NULL;
    char home[4096];
    assert_non_null(getcwd(home, sizeof home));
    assert_int_equal(chdir(folder), 0); /* no `out` in its options: runs/recipe */
    assert_int_equal(rv_train(&options, &trainer, &old.result), RV_OK);
    assert_int_equal(chdir(home), 0);
    assert_int_equal(old.result.struct_size, size);
    assert_true(old.result.train_loss == r.result.train_loss);
    for (size_t i = size; i < sizeof old; i++)
        assert_int_equal(((unsigned char *)&old)[i], 0x5a);
    rv_trainer_destroy(trainer);
    rv_trainer_destroy(r.trainer);
}

static void eval_reports_in_network_order(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    run r = {0};
    assert_int_equal(train(&r, "eval", 1, NULL), RV_OK);
    const rv_eval_options options = {.struct_size = sizeof options, .model = r.path};
    rv_eval_result result = {.struct_size = sizeof result};
    rv_eval *eval = NULL;
    assert_int_equal(rv_evaluate(&options, &eval, &result), RV_OK);
    assert_true(result.accuracy == r.result.test_accuracy);
    assert_int_equal(result.classes, TINY_CLASSES);
    assert_int_equal(result.samples, TINY_TEST);
    assert_int_equal(result.input_spikes, -1);
    assert_string_equal(result.layer_name[0], "hidden_lif");
    assert_string_equal(result.layer_name[1], "out_lif");
    assert_non_null(strstr(result.model, "best.h5"));
    rv_eval_destroy(eval);
    rv_trainer_destroy(r.trainer);
}

/* ---- where the caller lives --------------------------------------------------------------- */

static char *text_of(const char *in, const char *name) {
    static char texts[2][1 << 14];
    static int turn;
    char *text = texts[turn++ % 2], path[64];
    snprintf(path, sizeof path, "%s/%s", in, name);
    FILE *file = fopen(in_folder(path), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof texts[0] - 1, file)] = 0;
    assert_int_equal(fclose(file), 0);
    return text;
}

static double loss_of(const char *in) {
    json_t *line = json_loads(text_of(in, "metrics.jsonl"), 0, NULL);
    double loss = json_number_value(json_object_get(line, "train_loss"));
    json_decref(line);
    return loss;
}

/* A locale of our own, with a decimal comma and nothing else: false where none can be made. */
static bool comma_make(void) {
    static const char source[] = "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\n"
                                 "grouping 3;3\nEND LC_NUMERIC\n"
                                 "LC_CTYPE\ncopy \"POSIX\"\nEND LC_CTYPE\n";
    char command[2 * TINY_PATH + 64];
    tiny_put(in_folder("comma.src"), source, sizeof source - 1);
    snprintf(command, sizeof command, "localedef -c -i %s %s/comma >/dev/null 2>&1",
             in_folder("comma.src"), folder);
    (void)!system(command); /* also warns with its exit code */
    return setenv("LOCPATH", folder, 1) == 0 && setlocale(LC_ALL, "comma") != NULL;
}

/* A program with a window often lives in its user's locale: recipes, files and bits are the same,
 * and the caller's numbers look afterwards as they did. */
static void caller_with_a_decimal_comma_changes_nothing(void **state) {
    (void)state;
    static const char *const files[] = {"config.yaml", "run.json"};
    const char *const *sets = SETS("train.optimizer.lr=0.0125", "network.hidden_lif.beta=0.875",
                                   "checkpoint.every=1.5min", "train.epochs=1");
    run r = {0}, comma = {0};
    char *list[2], number[16];
    assert_int_equal(train(&r, "point", 1, sets), RV_OK);
    assert_int_equal(rv_list("neurons", &list[0]), RV_OK);
    if (!comma_make()) skip();
    snprintf(number, sizeof number, "%.1f", 1.5);
    assert_string_equal(number, "1,5");
    rv_code code = train(&comma, "comma_run", 2, sets);
    rv_code listed = rv_list("neurons", &list[1]);
    snprintf(number, sizeof number, "%.1f", 1.5);
    assert_non_null(setlocale(LC_ALL, "C"));
    assert_string_equal(number, "1,5");
    assert_int_equal(code, RV_OK);
    assert_int_equal(listed, RV_OK);
    assert_string_equal(list[0], list[1]);
    for (int i = 0; i < 2; i++) {
        char *a = text_of("point", files[i]), *b = text_of("comma_run", files[i]);
        char *threads = strstr(b, "\"threads\": 2");
        if (threads) threads[11] = '1';
        assert_string_equal(a, b);
    }
    assert_true(loss_of("point") > 0.0 && loss_of("point") == loss_of("comma_run"));
    if (rv_h5_available()) {
        char *json = NULL;
        assert_int_equal(rv_diff(r.path, comma.path, NULL, &json), RV_OK);
        rv_text_free(json);
    }
    for (int i = 0; i < 2; i++)
        rv_text_free(list[i]);
    rv_trainer_destroy(comma.trainer);
    rv_trainer_destroy(r.trainer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_same_seed_gives_same_weights),
        cmocka_unit_test(train_progress_counts_every_step),
        cmocka_unit_test(train_max_steps_ends_within_an_epoch),
        cmocka_unit_test(train_without_validation_keeps_the_last),
        cmocka_unit_test(train_best_epoch_is_chosen_on_validation),
        cmocka_unit_test(train_model_holds_its_forms),
        cmocka_unit_test(train_stop_saves_after_the_step),
        cmocka_unit_test(train_loss_not_finite_is_70),
        cmocka_unit_test(train_checkpoint_every_keeps_two),
        cmocka_unit_test(structs_without_size_are_refused),
        cmocka_unit_test(structs_of_older_callers_are_not_overrun),
        cmocka_unit_test(eval_reports_in_network_order),
        cmocka_unit_test(caller_with_a_decimal_comma_changes_nothing),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
