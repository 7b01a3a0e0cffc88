/*
 * Training with delayed gradients by the program: the oracle's bits whatever is saved, evaluated or
 * stopped meanwhile, and what is told of it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <time.h>

#include "tests/late.h"
#include "tests/scale.h"

/* Epochs end, checkpoints are saved every third update: the pipeline rests, and it shows nowhere.
 * Without HDF5 there is no state to look at. */
static void train_has_the_bits_of_the_oracle(void **state) {
    (void)state;
    char what[128], run[32];
    if (!rv_h5_available()) skip();
    for (int k = 0; k < LATE_MODES; k++) {
        const late_mode *mode = &late_modes[k];
        late_state it;
        late_recipe("late.yaml", mode, k % 2 ? ", async_until: 2epoch" : "");
        snprintf(what, sizeof what, "%s %s", mode->schedule, mode->corrections);
        snprintf(run, sizeof run, "oracle%d", k);
        if (RUN("train", "late.yaml", "-q", "-o", run, "--set",
                k % 3 ? "checkpoint.every=3" : "checkpoint.every=1epoch") != 0)
            fail_msg("%s: %s", what, err_text);
        late_open(&it, "late.yaml", NULL, 0);
        late_train(&it);
        late_same(&it, what, run);
        late_finish(&it);
    }
}

static json_t *metric_find(const char *run, const char *event) {
    static char text[1 << 16];
    char path[256];
    json_t *found = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    read_text(in_folder(path), text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        if (strcmp(json_string_value(json_object_get(root, "event")), event) == 0) {
            json_decref(found);
            found = json_incref(root);
        }
        json_decref(root);
    }
    assert_non_null(found);
    return found;
}

/* The report counts updates, not rounds; max_steps ends in the middle of the first epoch, whose
 * round no checkpoint is written beside. */
static void steps_are_updates(void **state) {
    (void)state;
    late_recipe("steps.yaml", &late_modes[0], "");
    assert_int_equal(RUN("train", "steps.yaml", "-o", "steps", "--json", "--set",
                         "train.max_steps=19", "--set", "data.samples=400", "--trace",
                         "steps.json"),
                     0);
    json_t *root = parse_out(), *line = metric_find("steps", "pipeline");
    assert_int_equal(json_integer_value(json_object_get(root, "steps")), 19);
    assert_int_equal(json_integer_value(json_object_get(line, "steps")), 19);
    assert_true(json_real_value(json_object_get(root, "step_ms_median")) > 0);
    double planned = json_real_value(json_object_get(line, "bubble_planned"));
    double measured = json_real_value(json_object_get(line, "bubble_measured"));
    assert_true(planned >= 0 && planned < 1 && measured >= 0 && measured < 1);
    assert_null(strstr(err_text, "the trace is not whole"));
    json_decref(line);
    json_decref(root);
    /* Every update of every stage is in the trace. */
    root = json_load_file(in_folder("steps.json"), 0, NULL);
    int updates = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *event = json_array_get(root, i);
        const char *name = json_string_value(json_object_get(event, "name"));
        updates += name[0] == 'U' && json_integer_value(json_object_get(event, "pid")) == 1;
    }
    assert_int_equal(updates, 4 * 19);
    json_decref(root);
}

/* A file has room for a round of so many updates: a longer one is cut, and none is lost. */
static void trace_of_a_long_round_is_whole(void **state) {
    (void)state;
    late_recipe("long.yaml", &late_modes[0], "");
    assert_int_equal(RUN("train", "long.yaml", "-o", "long", "--set", "data.samples=40000", "--set",
                         "train.batch=6", "--set", "train.epochs=1", "--trace", "long.json"),
                     0);
    assert_null(strstr(err_text, "the trace is not whole"));
}

/* A signal stops the feeding; what is under way is made, saved and gone on from. */
static void signals_leave_whole_updates(void **state) {
    (void)state;
    const struct timespec moment = {0, 150000000};
    late_state it;
    const char *const sets[] = {"train.epochs=100"};
    if (!rv_h5_available()) skip();
    late_recipe("late.yaml", &late_modes[0], "");
    pid_t child = start((const char *const[]){"train", "late.yaml", "-q", "-o", "told", "--set",
                                              "train.epochs=1000000", NULL});
    nanosleep(&moment, NULL);
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(end(child), 75);
    assert_contains(err_text, "stopped after step");
    assert_int_equal(RUN("check", "told"), 0);
    assert_int_equal(RUN("train", "late.yaml", "-q", "-o", "timed", "--max-time", "00:00:01",
                         "--set", "train.epochs=1000000"),
                     75);
    assert_int_equal(RUN("train", "late.yaml", "-q", "-o", "many", "--set", sets[0], "--set",
                         "checkpoint.every=7"),
                     0);
    late_open(&it, "late.yaml", sets, 1);
    late_train(&it);
    late_same(&it, "100 epochs", "many");
    late_finish(&it);
}

/* Stopped after some updates and gone on again and again: as if it had never been. */
static void stopped_runs_go_on_with_the_same_bits(void **state) {
    (void)state;
    const int points = scaled(FULL_RESUMES, 4);
    if (!rv_h5_available()) skip();
    for (int k = 0; k < LATE_MODES; k++) {
        char what[128], run[32], steps[64];
        late_state it;
        late_recipe("on.yaml", &late_modes[k], k % 2 ? ", async_until: 2epoch" : "");
        snprintf(what, sizeof what, "%s %s", late_modes[k].schedule, late_modes[k].corrections);
        snprintf(run, sizeof run, "on%d", k);
        late_open(&it, "on.yaml", NULL, 0);
        late_train(&it);
        for (int n = 0; n <= points; n++) {
            /* Every one of the first, where forward still reads version 0, and then further ones.
             */
            int64_t step = n < points / 2 ? n + 1 : 1 + n * (it.updates - 1) / points;
            snprintf(steps, sizeof steps, "train.max_steps=%lld", (long long)step);
            if (RUN("train", "on.yaml", "-q", n ? "--resume" : "-o", run, "--set", steps) != 0)
                fail_msg("%s, %s: %s", what, steps, err_text);
        }
        assert_int_equal(RUN("train", "on.yaml", "-q", "--resume", run), 0);
        late_same(&it, what, run);
        late_finish(&it);
    }
}

/* What was saved while later updates were under way: the one before the last, which a run that
 * ends with its second epoch leaves in previous.h5. */
static void checkpoints_beside_updates_are_gone_on_from(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    for (int k = 0; k < LATE_MODES; k++) {
        char what[128], run[32], every[32], from[256], to[256];
        late_state it;
        late_recipe("amid.yaml", &late_modes[k], k % 2 ? ", async_until: 13" : "");
        snprintf(what, sizeof what, "%s %s", late_modes[k].schedule, late_modes[k].corrections);
        late_open(&it, "amid.yaml", NULL, 0);
        late_train(&it);
        const int each = (int)(it.updates / LATE_EPOCHS);
        for (int step = each + 1 + k % 2; step < 2 * each; step += each / 2) {
            snprintf(run, sizeof run, "amid%d-%d", k, step);
            snprintf(every, sizeof every, "checkpoint.every=%d", step);
            if (RUN("train", "amid.yaml", "-q", "-o", run, "--set", every, "--set",
                    "train.epochs=2") != 0)
                fail_msg("%s, %s: %s", what, every, err_text);
            snprintf(from, sizeof from, "%s/previous.h5", in_folder(run));
            snprintf(to, sizeof to, "%s/last.h5", in_folder(run));
            assert_int_equal(rename(from, to), 0);
            if (RUN("train", "amid.yaml", "--resume", run) != 0)
                fail_msg("%s, %s: %s", what, every, err_text);
            snprintf(every, sizeof every, "after step %d", step);
            assert_contains(err_text, every);
            late_same(&it, what, run);
        }
        late_finish(&it);
    }
}

/* Rounds of the stages that a trace shows: they last until the stages rest. */
static int rounds_of(const char *trace) {
    json_t *root = json_load_file(in_folder(trace), 0, NULL);
    json_int_t last = 0;
    int rounds = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *event = json_array_get(root, i), *cat = json_object_get(event, "cat");
        if (!cat || strcmp(json_string_value(cat), "step") != 0) continue;
        json_t *round = json_object_get(json_object_get(event, "args"), "round");
        rounds += json_integer_value(round) != last;
        last = json_integer_value(round);
    }
    json_decref(root);
    return rounds;
}

/* Every stage copies its part when it makes the update that is saved, and goes on. */
static void stages_do_not_rest_for_a_checkpoint(void **state) {
    (void)state;
    static const char *const every[] = {"checkpoint.every=1epoch", "checkpoint.every=9"};
    if (!rv_h5_available()) skip();
    for (int k = 0; k < 2; k++) {
        late_recipe("amid.yaml", &late_modes[0], "");
        assert_int_equal(RUN("train", "amid.yaml", "-q", "-o", every[k] + 17, "--set", every[k],
                             "--set", "data.samples=1200", "--set", "train.epochs=1", "--trace",
                             "amid.json"),
                         0);
        assert_int_equal(rounds_of("amid.json"), 1);
    }
}

/* An interval in seconds ends amid an epoch, between the save a run begins with and the one it
 * stops with. */
static void checkpoints_by_time_come_amid_an_epoch(void **state) {
    (void)state;
    char from[256], to[256];
#if defined(__SANITIZE_THREAD__) /* under it steps take many times as long */
    static const char b[] = "network.b.units=32", c[] = "network.c.units=32";
#else
    static const char b[] = "network.b.units=512", c[] = "network.c.units=512";
#endif
    if (!rv_h5_available()) skip();
    late_recipe("timed.yaml", &late_modes[0], "");
    assert_int_equal(RUN("train", "timed.yaml", "-q", "-o", "amid", "--set", "checkpoint.every=1s",
                         "--set", b, "--set", c, "--set", "data.samples=200000", "--max-time",
                         "00:00:03"),
                     75);
    snprintf(from, sizeof from, "%s/previous.h5", in_folder("amid"));
    snprintf(to, sizeof to, "%s/last.h5", in_folder("amid"));
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(RUN("train", "timed.yaml", "--resume", "amid", "--set", b, "--set", c, "--set",
                         "data.samples=200000", "--max-time", "00:00:01"),
                     75);
    assert_contains(err_text, "going on after step ");
    assert_null(strstr(err_text, "after step 0 of"));
}

/* Versions belong to a mode, its corrections and its stages; the newest weights to any schedule. */
static void runs_go_on_with_their_own_delay_alone(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    late_recipe("own.yaml", &late_modes[1], "");
    assert_int_equal(RUN("train", "own.yaml", "-q", "-o", "own", "--set", "train.max_steps=5"), 0);
    static const char *const others[] = {
        "pipeline.corrections=[gc]",     "pipeline.corrections=[gc, {lwp_v: {cap: 2}}]",
        "pipeline.schedule=stale",       "pipeline.chunks=3",
        "pipeline.cuts=[b, b_lif, out]", "pipeline.async_until=9"};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        ERROR(78, "other delayed stages: the checkpoint is of pb, 2 chunks", "train", "own.yaml",
              "--resume", "own", "--set", others[k]);
    assert_int_equal(RUN("diff", "own", "own"), 0);
    /* Cuts by costs are those of the checkpoint. */
    assert_int_equal(RUN("train", "own.yaml", "-q", "--resume", "own", "--set", "pipeline.cuts=[]",
                         "--set", "train.max_steps=7"),
                     0);
    assert_int_equal(RUN("train", "own.yaml", "-q", "--resume", "own", "--set",
                         "pipeline.schedule=1f1b", "--set", "pipeline.corrections=[]", "--set",
                         "train.max_steps=9"),
                     0);
    ERROR(78, "the checkpoint is of a synchronous run", "train", "own.yaml", "--resume", "own");
}

/* Which weights a late pass sees depends on the cuts; where measured costs decide them, the run's
 * own recipe says how they fell, and trains it again. */
static void run_with_cuts_by_costs_can_be_repeated(void **state) {
    (void)state;
    static char text[2][1 << 14];
    late_recipe("free.yaml", &late_modes[1], "");
    for (int k = 0; k < 2; k++) { /* from the recipe, from what it became */
        const char *run = k ? "free1" : "free0", *recipe = k ? "free0/config.yaml" : "free.yaml";
        assert_int_equal(RUN("train", recipe, "-o", run, "--set", "train.max_steps=17", "--set",
                             k ? "pipeline.stages=2" : "pipeline.cuts=[]", "--set",
                             "pipeline.stages=2"),
                         0);
        assert_int_equal(strstr(err_text, "they are part of the rule of schedule pb") != NULL, !k);
        read_text(in_folder(k ? "free1/config.yaml" : "free0/config.yaml"), text[k], sizeof *text);
        assert_null(strstr(text[k], "cuts: []"));
    }
    assert_string_equal(text[0], text[1]);
    /* No bit of a synchronous run depends on them, and they stay open. */
    assert_int_equal(RUN("train", "free.yaml", "-q", "-o", "sync", "--set", "pipeline.cuts=[]",
                         "--set", "train.max_steps=2", "--set", "pipeline.schedule=1f1b", "--set",
                         "pipeline.corrections=[]"),
                     0);
    read_text(in_folder("sync/config.yaml"), text[1], sizeof *text);
    assert_contains(text[1], "cuts: []");
    if (!rv_h5_available()) return;
    expect_same("free0", "free1");
    /* Gone on with, by the open recipe and by the run's own, it is the same run. */
    assert_int_equal(
        RUN("train", "free0/config.yaml", "-q", "-o", "part", "--set", "train.max_steps=5"), 0);
    assert_int_equal(RUN("train", "free.yaml", "-q", "--resume", "part", "--set",
                         "pipeline.cuts=[]", "--set", "pipeline.stages=2", "--set",
                         "train.max_steps=11"),
                     0);
    read_text(in_folder("part/config.yaml"), text[1], sizeof *text);
    assert_null(strstr(text[1], "cuts: []"));
    assert_int_equal(
        RUN("train", "part/config.yaml", "-q", "--resume", "part", "--set", "train.max_steps=17"),
        0);
    read_text(in_folder("part/config.yaml"), text[1], sizeof *text);
    assert_string_equal(text[0], text[1]);
    assert_int_equal(RUN("diff", "free0", "part"), 0);
}

/* `scale` is of the rate and needs no delay: a synchronous run goes on with it. */
static void synchronous_runs_go_on_scaled(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    late_mode mode = {"1f1b", "[{scale: {batch: 24}}]", LATE_SGD, 3, 1};
    late_recipe("scaled.yaml", &mode, "");
    assert_int_equal(RUN("train", "scaled.yaml", "-q", "-o", "scaled"), 0);
    assert_int_equal(RUN("train", "scaled.yaml", "-q", "-o", "parts", "--set", "train.max_steps=5"),
                     0);
    assert_int_equal(
        RUN("train", "scaled.yaml", "-q", "--resume", "parts", "--set", "train.max_steps=11"), 0);
    assert_int_equal(RUN("train", "scaled.yaml", "-q", "--resume", "parts"), 0);
    assert_int_equal(RUN("diff", "scaled", "parts"), 0);
    assert_int_equal(
        RUN("train", "scaled.yaml", "-q", "-o", "plain", "--set", "pipeline.corrections=[]"), 0);
    assert_int_equal(RUN("diff", "scaled", "plain"), 1);
    ERROR(78, "correction gc corrects a delay", "train", "scaled.yaml", "--resume", "parts",
          "--set", "pipeline.corrections=[gc]");
    ERROR(78, "pipeline.async_until ends a delayed schedule", "train", "scaled.yaml", "--resume",
          "parts", "--set", "pipeline.async_until=9");
}

/* What is saved of a delay has no length of its own: all cuts come back. */
static void words_hold_every_cut(void **state) {
    (void)state;
    enum { MANY = 3000 };
    rv_plan plan = {.stages = MANY, .chunks = 1, .micros = 1};
    rv_setup setup = {.plan = &plan};
    int *cuts = calloc(2 * MANY + 1, sizeof *cuts);
    char *words = NULL;
    assert_non_null(cuts);
    plan.first = cuts;
    setup.delay.mode = (const void *)rv_table_find(rv_delay_table(), "pb");
    OK(rv_delay_add(&setup.delay, "lwp_v", "cap", 3));
    for (int s = 0; s < MANY; s++)
        plan.first[s] = 100000 + s;
    OK(rv_setup_delay_words(&setup, &words));
    assert_int_equal(rv_setup_delay_cuts(words, cuts + MANY, MANY), MANY - 1);
    assert_memory_equal(plan.first + 1, cuts + MANY, (MANY - 1) * sizeof *cuts);
    rv_free(words);
    free(cuts);
}

static int count_of(const char *text, const char *word) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        count++;
    return count;
}

/* A rule of batches whose parts are too few to fill the stages: one warning, and none with more. */
static void batches_of_few_parts_are_told(void **state) {
    (void)state;
    const char *warning = "warning: schedule 2bw with";
    late_mode mode = {"2bw", "[]", LATE_SGD, 2, 1};
    late_recipe("few.yaml", &mode, "");
    assert_int_equal(RUN("train", "few.yaml", "-o", "few"), 0);
    assert_int_equal(count_of(err_text, warning), 1);
    mode.micros = 4;
    late_recipe("enough.yaml", &mode, "");
    assert_int_equal(RUN("train", "enough.yaml", "-o", "enough"), 0);
    assert_int_equal(count_of(err_text, warning), 0);
}

/* A network of which the weights are the larger part. */
#define WIDE                                                                                       \
    "--set", "network.a.units=1024", "--set", "network.b.units=1024", "--set",                     \
        "network.c.units=1024", "--set", "data.units=1024", "--set", "train.max_steps=9", "--set", \
        "data.samples=120"

/* What is told to be needed before the start is what is taken: versions in the stages, packed, and
 * in every shape on their way into a file. Sanitizers take memory of their own. */
static void memory_of_versions_is_foretold(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    if (!rv_h5_available()) skip();
    for (int k = 0; k < LATE_MODES; k += stride() == 100 ? 4 : 1) {
        const late_mode *mode = &late_modes[k];
        char run[32];
        late_recipe("wide.yaml", mode, "");
        snprintf(run, sizeof run, "wide%d", k);
        if (RUN("train", "wide.yaml", "-o", run, "--json", WIDE) != 0) fail_msg("%s", err_text);
        snprintf(run, sizeof run, "%s %s", mode->schedule, mode->corrections);
        assert_memory_foretold(run);
    }
}

/* The least limit that is not refused is one that the process keeps, while it measures, trains and
 * saves. Every refusal tells what lacks. */
static void limit_of_memory_is_kept(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    if (!rv_h5_available()) skip();
    static const int modes[] = {0, 4};
    for (int k = 0; k < 2; k++) {
        char run[32], limit[48];
        double mb = 20, peak = 0;
        int code = 69;
        late_recipe("wide.yaml", &late_modes[modes[k]], "");
        snprintf(run, sizeof run, "limit%d", k);
        for (int tries = 0; code == 69 && tries < 12; tries++) {
            snprintf(limit, sizeof limit, "pipeline.memory=%.0f", 1e6 * mb);
            code = RUN("train", "wide.yaml", "-o", run, "--json", WIDE, "--set", limit, "--set",
                       "checkpoint.every=1");
            json_t *root = parse_out();
            peak = json_real_value(json_object_get(root, "peak_mb"));
            const json_t *error = json_object_get(root, "error");
            const char *told = json_string_value(json_object_get(error, "message"));
            double numbers[2] = {0};
            for (int n = 0; code == 69 && n < 2 && (told = strstr(told, " MB")); n++, told++) {
                const char *from = told;
                while ((from[-1] >= '0' && from[-1] <= '9') || from[-1] == '.')
                    from--;
                numbers[n] = strtod(from, NULL);
            }
            if (code == 69) mb += fabs(numbers[1] - numbers[0]) + 0.2;
            json_decref(root);
        }
        if (code != 0) fail_msg("%s: %s", limit, err_text);
        print_message("%s: %.1f MB allowed, %.1f MB taken\n", late_modes[modes[k]].schedule, mb,
                      peak);
        assert_true(peak > 0.7 * mb && peak <= mb);
        assert_null(strstr(err_text, "warning: pipeline.memory"));
    }
}

/* What a stage meets while others are ahead ends the run, and is told as in a step. */
static void weights_that_burst_are_found(void **state) {
    (void)state;
    late_recipe("burst.yaml", &late_modes[0], "");
    assert_int_equal(
        RUN("train", "burst.yaml", "-q", "-o", "burst", "--set", "train.optimizer.lr=1000000.0"),
        70);
    json_t *line = metric_find("burst", "nonfinite");
    assert_non_null(json_object_get(line, "layer"));
    json_decref(line);
}

/* Refusals have their place, and leave no folder. */
static void what_a_delayed_training_cannot_do_is_refused(void **state) {
    (void)state;
    late_recipe("no.yaml", &late_modes[0], "");
    ERROR(78, "pipeline.tape", "train", "no.yaml", "-o", "no", "--set", "pipeline.tape=recompute");
    ERROR(78, "clip_norm", "train", "no.yaml", "-o", "no", "--set", "train.clip_norm=1.0");
    ERROR(78, "correction t1 corrects a delay", "train", "no.yaml", "-o", "no", "--set",
          "pipeline.schedule=1f1b", "--set", "pipeline.corrections=[t1]");
    ERROR(78, "cannot take an update back", "check", "no.yaml", "--set", "health.policy=skip_step");
    assert_int_equal(RUN("check", "no.yaml"), 0);
    assert_true(access(in_folder("no"), F_OK) != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_has_the_bits_of_the_oracle),
        cmocka_unit_test(steps_are_updates),
        cmocka_unit_test(trace_of_a_long_round_is_whole),
        cmocka_unit_test(signals_leave_whole_updates),
        cmocka_unit_test(stopped_runs_go_on_with_the_same_bits),
        cmocka_unit_test(checkpoints_beside_updates_are_gone_on_from),
        cmocka_unit_test(stages_do_not_rest_for_a_checkpoint),
        cmocka_unit_test(checkpoints_by_time_come_amid_an_epoch),
        cmocka_unit_test(runs_go_on_with_their_own_delay_alone),
        cmocka_unit_test(run_with_cuts_by_costs_can_be_repeated),
        cmocka_unit_test(synchronous_runs_go_on_scaled),
        cmocka_unit_test(memory_of_versions_is_foretold),
        cmocka_unit_test(limit_of_memory_is_kept),
        cmocka_unit_test(words_hold_every_cut),
        cmocka_unit_test(batches_of_few_parts_are_told),
        cmocka_unit_test(weights_that_burst_are_found),
        cmocka_unit_test(what_a_delayed_training_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
