/* Run folders: names, what is in them, what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>

#include "tests/data_files.h"

static const rv_run_info info = {.version = "0.1.0",
                                 .isa = "avx2",
                                 .schedule = "serial",
                                 .digest = "0123456789abcdef",
                                 .seed = 9223372036854775807,
                                 .threads = 2};

static rv_config *config;
static char home[2048];

/* Runs go to runs/ in the working folder: work in the tests' own. */
static int enter(void **state) {
    if (folder_setup(state) != 0 || !getcwd(home, sizeof home) || chdir(data_folder) != 0)
        return -1;
    config = config_of("{reader: bernoulli}");
    return 0;
}

static int leave(void **state) {
    rv_config_free(config);
    return chdir(home) == 0 ? folder_teardown(state) : -1;
}

static json_t *run_json(const char *folder) {
    char name[256];
    json_error_t error;
    snprintf(name, sizeof name, "%s/run.json", folder);
    json_t *json = json_load_file(path_to(name), 0, &error);
    if (!json) fail_msg("%s: %s", name, error.text);
    return json;
}

static void run_new_holds_recipe_and_status(void **state) {
    (void)state;
    rv_run *run = NULL;
    size_t size;
    char *text = NULL;
    assert_int_equal(rv_run_create("deep/er/one", "x", config, &info, &run), RV_OK);
    assert_string_equal(rv_run_path(run), "deep/er/one");
    assert_string_equal(rv_run_file(run, "last.h5"), "deep/er/one/last.h5");
    json_t *json = run_json("deep/er/one");
    assert_string_equal(json_string_value(json_object_get(json, "status")), "running");
    assert_string_equal(json_string_value(json_object_get(json, "digest")), info.digest);
    assert_true(json_integer_value(json_object_get(json, "seed")) == 9223372036854775807);
    assert_int_equal(json_object_size(json_object_get(json, "forms")), 0);
    json_decref(json);
    assert_int_equal(rv_config_text(config, &text), RV_OK);
    char *found = get_file(path_to("deep/er/one/config.yaml"), &size);
    assert_int_equal(size, strlen(text));
    assert_memory_equal(found, text, size);
    free(found);
    rv_free(text);
    assert_int_equal(rv_run_status(run, "complete"), RV_OK);
    rv_run_destroy(run);
    json = run_json("deep/er/one");
    assert_string_equal(json_string_value(json_object_get(json, "status")), "complete");
    json_decref(json);
}

static void run_metrics_are_there_at_once(void **state) {
    (void)state;
    rv_run *run = NULL;
    size_t size;
    assert_int_equal(rv_run_create("metrics", "x", config, &info, &run), RV_OK);
    assert_int_equal(rv_run_metric(run, "{\"a\":1}"), RV_OK);
    assert_int_equal(rv_run_metric(run, "{\"a\":2}"), RV_OK);
    char *found = get_file(path_to("metrics/metrics.jsonl"), &size); /* before the run ends */
    assert_int_equal(size, 16);
    assert_memory_equal(found, "{\"a\":1}\n{\"a\":2}\n", 16);
    free(found);
    rv_run_destroy(run);
}

static void run_without_path_takes_next_free_name(void **state) {
    (void)state;
    static const char *const names[] = {"runs/stem", "runs/stem-2", "runs/stem-3"};
    for (int i = 0; i < 3; i++) {
        rv_run *run = NULL;
        assert_int_equal(rv_run_create(NULL, "stem", config, &info, &run), RV_OK);
        assert_string_equal(rv_run_path(run), names[i]);
        rv_run_destroy(run);
    }
}

static void run_where_one_is_is_refused_and_untouched(void **state) {
    (void)state;
    rv_run *run = NULL;
    assert_int_equal(rv_run_create("twice", "x", config, &info, &run), RV_OK);
    assert_int_equal(rv_run_status(run, "complete"), RV_OK);
    rv_run_destroy(run);
    run = NULL;
    assert_int_equal(rv_run_create("twice", "x", config, &info, &run), RV_CREATE);
    assert_null(run);
    assert_non_null(strstr(rv_error_get()->message, "twice: holds a run already"));
    assert_non_null(strstr(rv_error_get()->message, "-o"));
    json_t *json = run_json("twice");
    assert_string_equal(json_string_value(json_object_get(json, "status")), "complete");
    json_decref(json);
}

static void run_in_use_is_refused_and_names_the_other(void **state) {
    (void)state;
    rv_run *run = NULL, *second = NULL;
    assert_int_equal(rv_run_create("busy", "x", config, &info, &run), RV_OK);
    assert_int_equal(rv_run_claim("busy", &second), RV_CREATE);
    assert_null(second);
    assert_non_null(strstr(rv_error_get()->message, "busy: in use by another run: host "));
    rv_run_destroy(run);
    assert_int_equal(rv_run_claim("busy", &second), RV_OK);
    rv_run_destroy(second);
}

static void run_claimed_again_goes_on_where_told(void **state) {
    (void)state;
    rv_run *run = NULL;
    size_t size;
    assert_int_equal(rv_run_create("again", "x", config, &info, &run), RV_OK);
    assert_int_equal(rv_run_metric(run, "{\"a\":1}"), RV_OK);
    int64_t place = rv_run_metrics(run);
    assert_int_equal(place, 8);
    assert_int_equal(rv_run_metric(run, "{\"a\":2}"), RV_OK);
    assert_int_equal(rv_run_sync(run), RV_OK);
    assert_int_equal(rv_run_status(run, "checkpointed"), RV_OK);
    rv_run_destroy(run);
    put_file("again/last.h5.tmp", "half", 4);
    put_file("again/tmp", "mine", 4);
    put_file("again/last.h5", "whole", 5);
    assert_int_equal(rv_run_claim("again", &run), RV_OK);
    assert_true(rv_run_holds(run));
    assert_int_equal(rv_run_begin(run, config, &info, place), RV_OK);
    assert_int_equal(rv_run_metric(run, "{\"a\":3}"), RV_OK);
    assert_int_equal(rv_run_metrics(run), 16);
    rv_run_destroy(run);
    char *found = get_file(path_to("again/metrics.jsonl"), &size);
    assert_int_equal(size, 16);
    assert_memory_equal(found, "{\"a\":1}\n{\"a\":3}\n", 16);
    free(found);
    assert_false(file_there("again/last.h5.tmp")); /* swept */
    assert_true(file_there("again/tmp"));
    assert_true(file_there("again/last.h5"));
    json_t *json = run_json("again");
    assert_string_equal(json_string_value(json_object_get(json, "status")), "running");
    json_decref(json);
}

static void room_that_is_not_there_is_refused(void **state) {
    (void)state;
    assert_int_equal(rv_commit_room(".", "it", 1), RV_OK);
    assert_int_equal(rv_commit_room(".", "it", SIZE_MAX / 2), RV_IO);
    assert_non_null(strstr(rv_error_get()->message, "bytes needed"));
}

static void run_in_an_empty_folder_is_taken(void **state) {
    (void)state;
    rv_run *run = NULL;
    assert_int_equal(mkdir("ready", 0700), 0);
    assert_int_equal(rv_run_create("ready", "x", config, &info, &run), RV_OK);
    rv_run_destroy(run);
    assert_true(file_there("ready/run.json"));
}

static void run_that_cannot_be_made_is_create(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "file", "file/under", "/proc/none", "/dev/null/x"};
    char longer[400];
    rv_run *run = NULL;
    put_file("file", "x", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (rv_run_create(wrong[i], "x", config, &info, &run) != RV_CREATE)
            fail_msg("\"%s\": %s", wrong[i], rv_error_get()->message);
        assert_null(run);
    }
    memset(longer, 'n', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(rv_run_create(longer, "x", config, &info, &run), RV_CREATE);
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_int_equal(rv_run_create("loop", "x", config, &info, &run), RV_CREATE);
    if (geteuid() != 0) {
        assert_int_equal(mkdir("shut", 0500), 0);
        assert_int_equal(rv_run_create("shut", "x", config, &info, &run), RV_CREATE);
        assert_int_equal(rv_run_create("shut/in", "x", config, &info, &run), RV_CREATE);
    }
}

#ifdef RV_FAULTS
static void run_with_any_failing_call_leaves_no_half_run(void **state) {
    (void)state;
    static const rv_fault_site sites[] = {RV_FAULT_ALLOC, RV_FAULT_WRITE, RV_FAULT_FSYNC,
                                          RV_FAULT_CLOSE, RV_FAULT_RENAME};
    for (int s = 0; s < 5; s++) {
        rv_status status = RV_IO;
        for (int k = 0; k < 500 && status != RV_OK; k++) {
            char name[64];
            rv_run *run = NULL;
            snprintf(name, sizeof name, "fault-%d-%d", s, k);
            rv_fault_arm(sites[s], k, false);
            status = rv_run_create(name, "x", config, &info, &run);
            if (status == RV_OK) status = rv_run_metric(run, "{}");
            rv_fault_arm(sites[s], -1, false);
            assert_true(status == RV_OK || status == RV_IO || status == RV_MEMORY);
            rv_run_destroy(run);
        }
        assert_int_equal(status, RV_OK);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_new_holds_recipe_and_status),
        cmocka_unit_test(run_metrics_are_there_at_once),
        cmocka_unit_test(run_without_path_takes_next_free_name),
        cmocka_unit_test(run_where_one_is_is_refused_and_untouched),
        cmocka_unit_test(run_in_use_is_refused_and_names_the_other),
        cmocka_unit_test(run_claimed_again_goes_on_where_told),
        cmocka_unit_test(room_that_is_not_there_is_refused),
        cmocka_unit_test(run_in_an_empty_folder_is_taken),
        cmocka_unit_test(run_that_cannot_be_made_is_create),
#ifdef RV_FAULTS
        cmocka_unit_test(run_with_any_failing_call_leaves_no_half_run),
#endif
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
