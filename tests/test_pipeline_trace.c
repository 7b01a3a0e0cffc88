/*
 * The timeline of a training: a Chrome trace that readers of JSON understand, also after a kill,
 * with every item, message and queue; the sums of its stages in the log and in metrics.jsonl.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>

#include "data/data.h"
#include "pipeline/internal.h"
#include "pipeline/timeline.h"
#include "tests/spawn.h"

/* The trace as an array; one that was cut short gets the bracket that the format lets it lack. */
static json_t *trace_read(const char *name, bool cut) {
    static char text[1 << 22];
    json_error_t error;
    read_text(in_folder(name), text, sizeof text - 2);
    if (cut) {
        assert_null(strstr(text, "\n]"));
        strcat(text, "]");
    }
    json_t *root = json_loads(text, 0, &error);
    if (!root) fail_msg("%s: %s at %d", name, error.text, error.position);
    assert_true(json_is_array(root));
    return root;
}

static const char *word(const json_t *event, const char *key) {
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static double number(const json_t *event, const char *key) {
    return json_number_value(json_object_get(event, key));
}

static json_int_t arg(const json_t *event, const char *key) {
    return json_integer_value(json_object_get(json_object_get(event, "args"), key));
}

/* How many events are of a phase, and of a category where one is given. */
static int count(const json_t *root, const char *phase, const char *category) {
    size_t i;
    json_t *event;
    int found = 0;
    json_array_foreach(root, i, event) found +=
        strcmp(word(event, "ph"), phase) == 0 &&
        (!category || strcmp(word(event, "cat"), category) == 0);
    return found;
}

static const json_t *arrow_end(const json_t *root, json_int_t id) {
    size_t i;
    json_t *event;
    json_array_foreach(root, i, event) if (strcmp(word(event, "ph"), "f") == 0 &&
                                           json_integer_value(json_object_get(event, "id")) ==
                                               id) return event;
    return NULL;
}

enum { STEPS = 4, STAGES = 2, MICROS = 2, CHUNKS = 3 };

static void trace_holds_every_item_message_and_queue(void **state) {
    (void)state;
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "traced", "--stages", "2", "--chunks", "3",
                         "--micro-batches", "2", "--schedule", "filldrain+2bp", "--threads", "1",
                         "--set", "train.max_steps=4", "--set", "data.validation=0", "--trace",
                         "trace.json"),
                     0);
    json_t *root = trace_read("trace.json", false), *event;
    int items = 0, waits = 0, depth = 0;
    size_t i;
    json_array_foreach(root, i, event) {
        bool step = strcmp(word(event, "cat"), "step") == 0;
        bool compute = number(event, "tid") == 1 || number(event, "tid") == 5;
        bool wait = strncmp(word(event, "name"), "wait", 4) == 0;
        items += step && compute && !wait;
        waits += step && wait;
        if (strcmp(word(event, "ph"), "X") == 0) assert_true(number(event, "dur") >= 0);
        if (strcmp(word(event, "ph"), "C") == 0) {
            depth = (int)arg(event, "messages");
            assert_true(depth >= 0 && depth <= MICROS * CHUNKS);
        }
        if (strcmp(word(event, "ph"), "s") == 0) { /* every arrow arrives, and not before it left */
            const json_t *last = arrow_end(root, json_integer_value(json_object_get(event, "id")));
            assert_non_null(last);
            assert_true(number(last, "ts") >= number(event, "ts"));
            assert_string_equal(word(last, "name"), word(event, "name"));
        }
    }
    assert_int_equal(depth, 0); /* nothing is left in the last queue */
    assert_int_equal(items, STEPS * STAGES * (3 * MICROS * CHUNKS + 1));
    assert_int_equal(count(root, "X", "plan"), items);
    assert_true(waits > 0);
    /* The test share is evaluated in parts of their own number, forward alone. */
    int messages = count(root, "s", "message");
    assert_int_equal(count(root, "f", "message"), messages);
    assert_int_equal(count(root, "C", NULL), 2 * messages);
    assert_true(messages > STEPS * 2 * MICROS * CHUNKS);
    json_decref(root);
}

/* What the writers do: tapes of every stage on its own track, checkpoints on theirs. */
static void trace_holds_what_goes_to_files(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    enum { WRITER = 4, SAVES = STAGES * 4 + 1 };
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "filed", "--stages", "2", "--chunks", "3",
                         "--micro-batches", "2", "--schedule", "filldrain", "--threads", "1",
                         "--set", "train.max_steps=4", "--set", "checkpoint.every=2", "--set",
                         "pipeline.tape=spill", "--trace", "filed.json"),
                     0);
    json_t *root = trace_read("filed.json", false), *event;
    int wrote[STAGES] = {0}, fetched[STAGES] = {0}, saves = 0;
    size_t i;
    json_array_foreach(root, i, event) {
        if (strcmp(word(event, "cat"), "writer") != 0) continue;
        const int track = (int)number(event, "tid"), stage = track / WRITER - 1;
        const char *name = word(event, "name");
        assert_true(number(event, "dur") >= 0);
        if (strcmp(name, "checkpoint") == 0) {
            assert_int_equal(track, SAVES);
            saves++;
            continue;
        }
        assert_true(stage >= 0 && stage < STAGES && track % WRITER == 0);
        wrote[stage] += strncmp(name, "write F", 7) == 0;
        fetched[stage] += strncmp(name, "read B", 6) == 0;
    }
    for (int s = 0; s < STAGES; s++) {
        assert_true(fetched[s] > 0 && fetched[s] <= wrote[s]); /* some are still in memory */
        assert_true(wrote[s] <= STEPS * MICROS * CHUNKS);
    }
    assert_true(saves >= 2);
    json_decref(root);
}

/* Shares of the time of a stage are all there is of it; the line is in the log and in the file. */
static void report_accounts_for_the_time_of_every_stage(void **state) {
    (void)state;
    static char text[1 << 16];
    char *line = NULL;
    /* One epoch: no checkpoint is written beside its steps, so all but the cold ones count. */
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "told", "--stages", "2", "--chunks", "2",
                         "--threads", "1", "--set", "train.epochs=1", "--set", "train.batch=4"),
                     0);
    assert_contains(err_text, "stage 1: busy ");
    assert_contains(err_text, "bubble over ");
    read_text(in_folder("told/metrics.jsonl"), text, sizeof text);
    for (char *at = text; (at = strstr(at, "{\"event\"")); at++)
        if (strstr(at, "\"pipeline\"")) line = at;
    assert_non_null(line);
    json_t *root = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL), *stage;
    assert_non_null(root);
    assert_true(number(root, "steps") > 10);
    assert_true(number(root, "bubble_measured") > -0.01 && number(root, "bubble_measured") < 1);
    size_t i;
    json_array_foreach(json_object_get(root, "stages"), i, stage) {
        static const char *const parts[] = {"busy",      "fill",      "drain",
                                            "wait_data", "wait_slot", "optimizer"};
        double sum = number(stage, "other");
        assert_true(fabs(sum) < 0.2); /* clocks, and sleeping a little longer than needed */
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            assert_true(number(stage, parts[k]) >= 0);
            sum += number(stage, parts[k]);
        }
        assert_true(fabs(sum - 1) < 1e-6);
    }
    assert_int_equal(json_array_size(json_object_get(root, "stages")), 2);
    json_decref(root);
}

/* A round in which stage 1 waits 10 ms, computes F for `f` ms, waits 5 ms for a message and 3 ms
 * for a slot, computes B for 8 ms, updates for 7 ms, and rests for 12 ms and more. */
static void round_play(rv_timeline *timeline, double f) {
    const rv_work work[] = {{.kind = RV_WORK_F}, {.kind = RV_WORK_B}, {.kind = RV_WORK_U}};
    rv_timeline_begin(timeline, true);
    double at = rv_host_seconds() + 0.010, ms = 0.001;
    for (int s = 0; s < 2; s++) {
        rv_track *track = rv_timeline_track(timeline, s);
        double b = at + (f + 8) * ms;
        rv_track_wait(track, NULL, true, at - 10 * ms, at);
        rv_track_item(track, &work[0], at, at + f * ms);
        rv_track_wait(track, NULL, true, at + f * ms, at + (f + 5) * ms);
        rv_track_wait(track, NULL, false, at + (f + 5) * ms, b);
        rv_track_item(track, &work[1], b, b + 8 * ms);
        rv_track_item(track, &work[2], b + 8 * ms, b + 15 * ms);
    }
    while (rv_host_seconds() < at + (f + 8 + 15 + 12) * ms)
        usleep(500);
    rv_timeline_end(timeline);
}

/* Every class gets what was spent in it, cold rounds left out, and nothing is left over: what no
 * class counts would be `other`. */
static void every_class_of_time_counts_what_was_spent_in_it(void **state) {
    (void)state;
    const rv_schedule schedule = {.stages = 2, .micros = 1, .chunks = 1};
    rv_timeline *timeline = NULL;
    assert_int_equal(rv_timeline_create(NULL, &schedule, NULL, 0, &timeline), RV_OK);
    double begun = 0;
    for (int round = 0; round < 4; round++) {
        if (round == 2) begun = rv_host_seconds();
        round_play(timeline, round < 2 ? 90 : 20);
    }
    double wall = rv_host_seconds() - begun;
    assert_int_equal(rv_timeline_steps(timeline), 2);
    for (int s = 0; s < 2; s++) {
        rv_stage_times t;
        rv_timeline_times(timeline, s, &t);
        const double want[] = {0.056, 0.010, 0.006, 0.014},
                     got[] = {t.busy, t.data, t.slot, t.optimizer};
        for (int k = 0; k < 4; k++)
            if (fabs(got[k] - want[k]) > 1e-6) fail_msg("class %d: %g, not %g", k, got[k], want[k]);
        assert_true(t.fill >= 0.020 && t.drain >= 0.024); /* and what the machine was late */
        assert_true(fabs(t.other) < 1e-6);
        double sum = t.busy + t.fill + t.drain + t.data + t.slot + t.optimizer + t.other;
        assert_true(fabs(sum - t.total) < 1e-6);
        assert_true(t.total <= wall && t.total > 0.056 + 0.050 + 0.024);
    }
    rv_timeline_destroy(timeline);
}

/* One stage is run as a pipeline then: the same bits. */
static void one_stage_is_traced_and_keeps_its_bits(void **state) {
    (void)state;
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "plain", "--set", "train.epochs=1"),
                     0);
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "single", "--set", "train.epochs=1",
                         "--trace", "single.json"),
                     0);
    json_t *root = trace_read("single.json", false);
    assert_true(count(root, "X", "step") > 0);
    assert_int_equal(count(root, "s", NULL), 0);
    json_decref(root);
    if (rv_h5_available()) assert_int_equal(RUN("diff", "plain", "single"), 0);
}

static void trace_of_a_killed_run_is_valid(void **state) {
    (void)state;
    for (int k = 0; k < 3; k++) {
        pid_t child =
            start((const char *const[]){"train", "recipe.yaml", "-q", "-o",
                                        k == 0   ? "k0"
                                        : k == 1 ? "k1"
                                                 : "k2",
                                        "--stages", "2", "--chunks", "3", "--set",
                                        "train.epochs=10000", "--trace", "killed.json", NULL});
        long size = 0;
        for (int i = 0; i < 5000 && size < 20000 * (k + 1); i++) {
            FILE *file = fopen(in_folder("killed.json"), "r");
            if (file) {
                assert_int_equal(fseek(file, 0, SEEK_END), 0);
                size = ftell(file);
                assert_int_equal(fclose(file), 0);
            }
            usleep(2000);
        }
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(end(child), 1000 + SIGKILL);
        json_t *root = trace_read("killed.json", true);
        assert_true(count(root, "X", "step") > 20);
        json_decref(root);
    }
}

static void file_that_cannot_be_made_is_refused(void **state) {
    (void)state;
    ERROR(73, "none/trace.json", "train", "recipe.yaml", "-q", "-o", "refused", "--trace",
          "none/trace.json");
    assert_int_not_equal(access(in_folder("refused"), F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_holds_every_item_message_and_queue),
        cmocka_unit_test(trace_holds_what_goes_to_files),
        cmocka_unit_test(report_accounts_for_the_time_of_every_stage),
        cmocka_unit_test(every_class_of_time_counts_what_was_spent_in_it),
        cmocka_unit_test(one_stage_is_traced_and_keeps_its_bits),
        cmocka_unit_test(trace_of_a_killed_run_is_valid),
        cmocka_unit_test(file_that_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
