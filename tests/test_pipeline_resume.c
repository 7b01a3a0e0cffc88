/*
 * Runs that are stopped, killed, damaged, moved: what goes on has the bits of a run that never
 * stopped, and what cannot is refused with its reason.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>

#include "data/data.h"
#include "tests/runs.h"
#include "tests/scale.h"
#include "tests/spawn.h"

static void expect_status(const char *run, const char *status) {
    char path[256];
    snprintf(path, sizeof path, "%s/run.json", run);
    json_t *root = json_load_file(in_folder(path), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "status")), status);
    json_decref(root);
}

/* ---- stopping --------------------------------------------------------------------------- */

/* Stopped after every number of steps, mid-epoch and at its end, then continued: SGD with momentum
 * and plateau, Adam with cosine. */
static void resume_after_any_step_has_the_same_bits(void **state) {
    (void)state;
    static const char *const optimizers[] = {"{kind: sgd, lr: 0.5, momentum: 0.9}",
                                             "{kind: adam, lr: 0.02}"};
    static const char *const schedules[] = {
        "{kind: plateau, patience: 0, factor: 0.5, total_steps: 24}",
        "{kind: cosine, total_steps: 24}"};
    char steps[64], run[64], whole[16];
    if (!rv_h5_available()) skip();
    for (int k = 0; k < 2; k++) {
        recipe_put("resume.yaml", optimizers[k], schedules[k]);
        snprintf(whole, sizeof whole, "whole%d", k);
        assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", whole), 0);
        for (int stop = 1 + k; stop < 24; stop += stride() == 1 ? 1 : 6) {
            snprintf(run, sizeof run, "part%d_%d", k, stop);
            snprintf(steps, sizeof steps, "train.max_steps=%d", stop);
            assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", run, "--set", steps), 0);
            assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", run, "--resume", "auto"), 0);
            expect_same(whole, run);
        }
    }
}

/* Waits until the child has the run, and with it its signal handlers. */
static void wait_locked(const char *run, pid_t child) {
    const struct timespec pause = {0, 5000000};
    rv_owner owner = {0};
    for (int i = 0; i < 2000 && owner.pid != child; i++) {
        nanosleep(&pause, NULL);
        (void)rv_lock_look(in_folder(run), &owner);
    }
    assert_int_equal(owner.pid, child);
}

/* Waits until the run says something of its state. */
static void wait_for(const char *name, pid_t child) {
    const struct timespec pause = {0, 5000000};
    for (int i = 0; i < 2000 && access(in_folder(name), R_OK) != 0; i++) {
        nanosleep(&pause, NULL);
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    }
}

static void signals_save_and_the_next_start_goes_on(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    const struct timespec moment = {0, 30000000};
    if (!rv_h5_available()) skip();
    recipe_put("resume.yaml", "{kind: adam, lr: 0.001}", "{kind: constant}");
    assert_int_equal(
        RUN("train", "resume.yaml", "-q", "-o", "signal_whole", "--set", "train.epochs=300"), 0);
    pid_t child =
        start((const char *const[]){"train", "resume.yaml", "-q", "-o", "signal", "--resume",
                                    "auto", "--set", "train.epochs=300", NULL});
    int stops = 0, code = 0;
    int most = scaled(FULL_SIGNALS, 8);
    for (int i = 0; i < most; i++) { /* the same line starts, and goes on after every stop */
        wait_locked("signal", child);
        nanosleep(&moment, NULL);
        (void)kill(child, signals[i % 3]); /* it may have ended */
        code = end(child);
        if (code == 0) break;
        assert_int_equal(code, 75);
        assert_contains(err_text, "stopped after step");
        assert_contains(err_text, "--resume auto");
        expect_status("signal", "checkpointed");
        stops++;
        child = start((const char *const[]){"train", "resume.yaml", "-q", "-o", "signal",
                                            "--resume", "auto", "--set", "train.epochs=300", NULL});
    }
    if (code != 0) {
        assert_int_equal(end(child), 0);
    }
    assert_true(stops > 0);
    expect_same("signal_whole", "signal");
}

static void max_time_saves_in_time(void **state) {
    (void)state;
    struct timespec a, b;
    if (!rv_h5_available()) skip();
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "timed", "--max-time", "00:00:01",
                         "--set", "train.epochs=1000000"),
                     75);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true(difftime(b.tv_sec, a.tv_sec) <= 2);
    assert_contains(err_text, "stopped by --max-time after step");
    assert_int_equal(RUN("check", "timed"), 0);
    ERROR(64, "HH:MM:SS", "train", "recipe.yaml", "--max-time", "90");
    ERROR(64, "HH:MM:SS", "train", "recipe.yaml", "--max-time", "00:61:00");
}

static void grace_shorter_than_a_save_is_refused(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    ERROR(69, "--grace", "train", "recipe.yaml", "-q", "--grace", "0.000001");
    ERROR(64, "seconds", "train", "recipe.yaml", "--grace", "-1");
}

/* A step that outlasts the grace: the program ends all the same, on what was saved before. */
static void step_longer_than_the_grace_leaves_the_last_checkpoint(void **state) {
    (void)state;
    struct timespec a, b;
    if (!rv_h5_available()) skip();
    pid_t child =
        start((const char *const[]){"train", "recipe.yaml", "-q", "-o", "slow", "--grace", "1",
                                    "--threads", "1", "--set", "encode.steps=30000", "--set",
                                    "network.hidden.units=200", "--set", "train.batch=96", NULL});
    wait_for("slow/last.h5", child);
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(end(child), 75);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true(difftime(b.tv_sec, a.tv_sec) <= 3);
    assert_contains(err_text, "no time to save");
    assert_int_equal(RUN("check", "slow/last.h5"), 0);
    assert_int_equal(RUN("status", "slow"), 0);
    assert_contains(out_text, "dead");
}

/* ---- which run -------------------------------------------------------------------------- */

static void resume_auto_starts_continues_and_is_content(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    recipe_put("auto.yaml", "{kind: sgd, lr: 0.1}", "{kind: constant}");
    assert_int_equal(RUN("train", "auto.yaml", "--resume", "auto", "--set", "train.max_steps=7"),
                     0);
    assert_contains(out_text, "runs/auto\n");
    assert_int_equal(RUN("train", "auto.yaml", "--resume", "auto"), 0);
    assert_contains(err_text, "going on after step 7 of 24");
    assert_int_equal(RUN("train", "auto.yaml", "--resume", "auto", "--json"), 0);
    assert_contains(err_text, "complete after 24 steps");
    json_t *root = parse_out();
    assert_int_equal(json_integer_value(json_object_get(root, "steps")), 24);
    assert_true(json_number_value(json_object_get(root, "test_accuracy")) > 0.5);
    json_decref(root);
    /* More epochs are no other run. */
    assert_int_equal(RUN("train", "auto.yaml", "--resume", "auto", "--set", "train.epochs=5"), 0);
    assert_contains(err_text, "going on after step 24 of 30");
    assert_int_equal(
        RUN("train", "auto.yaml", "--resume", "runs/auto", "-q", "--set", "train.epochs=5"), 0);
    expect_status("runs/auto", "complete");
    ERROR(66, "runs/none", "train", "auto.yaml", "--resume", "runs/none");
    ERROR(64, "two folders", "train", "auto.yaml", "--resume", "runs/auto", "-o", "other");
}

static void resume_with_another_recipe_names_the_first_difference(void **state) {
    (void)state;
    static const struct {
        const char *set, *part;
    } cases[] = {
        {"network.hidden.units=25", "network.hidden.units was 24, now 25"},
        {"seed=8", "seed was 7, now 8"},
        {"train.optimizer.lr=0.5", "train.optimizer.lr was 0.02, now 0.5"},
        {"encode.steps=7", "encode.steps was 6, now 7"},
        {"data.validation=0.1", "data.validation was 0.2, now 0.1"},
        {"train.optimizer={kind: sgd}", "train.optimizer.kind was adam, now sgd"},
    };
    if (!rv_h5_available()) skip();
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "fixed", "--set", "train.max_steps=3"),
                     0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ERROR(78, cases[i].part, "train", "recipe.yaml", "-q", "--resume", "fixed", "--set",
              cases[i].set);
    /* These are no other run: where and how long it runs, how it is cut and saved. */
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "--resume", "fixed", "--set",
                         "train.epochs=2", "--set", "checkpoint.every=2", "--set", "device=cpu",
                         "--threads", "1"),
                     0);
    /* Other contents under the same names are. */
    tiny_set(folder, "test", TINY_TEST, 3, 0);
    ERROR(78, "other data", "train", "recipe.yaml", "-q", "--resume", "fixed");
    tiny_set(folder, "test", TINY_TEST, 2, 0);
    expect_status("fixed", "complete"); /* untouched by refusals */
}

static void resume_on_another_instruction_set_warns(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "isa", "--isa", "baseline", "--set",
                         "train.max_steps=3"),
                     0);
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "isa", "--isa", "baseline", "--resume",
                         "auto", "--set", "train.epochs=1"),
                     0);
    assert_null(strstr(err_text, "warning"));
    int code = RUN("train", "recipe.yaml", "-o", "isa", "--isa", "avx2", "--resume", "auto",
                   "--set", "train.epochs=2");
    if (code == 69) skip(); /* this processor has none other */
    assert_int_equal(code, 0);
    assert_contains(err_text, "warning: the run began with isa baseline, this is avx2");
}

static void run_in_use_is_73_at_once(void **state) {
    (void)state;
    struct timespec a, b;
    char pid[32];
    pid_t child = start((const char *const[]){"train", "recipe.yaml", "-q", "-o", "busy", "--set",
                                              "train.epochs=1000000", NULL});
    wait_for("busy/run.json", child);
    snprintf(pid, sizeof pid, "pid %d, started 2", (int)child);
    for (int resume = 0; resume < 2; resume++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        pid_t second =
            start((const char *const[]){"train", "recipe.yaml", "-q", "-o", "busy",
                                        resume ? "--resume" : "-v", resume ? "auto" : NULL, NULL});
        assert_int_equal(end(second), 73);
        clock_gettime(CLOCK_MONOTONIC, &b);
        assert_contains(err_text, "busy: in use by another run: host ");
        assert_contains(err_text, pid);
        assert_true((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec) < 2);
    }
    assert_int_equal(RUN("status", "busy", "--json"), 0);
    json_t *root = parse_out(), *run = json_array_get(json_object_get(root, "runs"), 0);
    assert_string_equal(json_string_value(json_object_get(run, "status")), "running");
    assert_int_equal(json_integer_value(json_object_get(run, "pid")), child);
    json_decref(root);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(end(child), 1009);
    assert_int_equal(RUN("status", "busy"), 0);
    assert_contains(out_text, "dead");
    if (!rv_h5_available()) return;
    /* Taken over, and said. */
    assert_int_equal(
        RUN("train", "recipe.yaml", "-o", "busy", "--resume", "auto", "--set", "train.epochs=1"),
        0);
    assert_contains(err_text, "taken over from a run that died");
    assert_contains(err_text, pid);
}

/* ---- damage ----------------------------------------------------------------------------- */

static void damaged_last_falls_back_to_previous(void **state) {
    (void)state;
    char path[128];
    if (!rv_h5_available()) skip();
    recipe_put("resume.yaml", "{kind: adam, lr: 0.02}", "{kind: constant, total_steps: 24}");
    assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", "hurt_whole"), 0);
    for (int kind = 0; kind < 3; kind++) {
        char run[16];
        snprintf(run, sizeof run, "hurt%d", kind);
        assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", run, "--set", "train.max_steps=13",
                             "--set", "checkpoint.every=5"),
                         0);
        snprintf(path, sizeof path, "%s/last.h5", run);
        FILE *file = fopen(in_folder(path), "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, 3000, SEEK_SET), 0);
        if (kind == 0) assert_int_equal(fputc(fgetc(file) ^ 64, file) < 0, 0);
        assert_int_equal(fclose(file), 0);
        if (kind == 1) assert_int_equal(truncate(in_folder(path), 4000), 0);
        if (kind == 2) assert_int_equal(unlink(in_folder(path)), 0);
        if (kind < 2) {
            file = fopen(in_folder(path), "r+b");
            assert_int_equal(fseek(file, 2000, SEEK_SET), 0);
            for (int i = 0; i < 500; i++)
                assert_int_equal(fputc(0x5a, file), 0x5a);
            assert_int_equal(fclose(file), 0);
            ERROR(65, "last.h5", "check", run);
        }
        assert_int_equal(RUN("train", "resume.yaml", "--resume", run), 0);
        assert_contains(err_text, kind < 2 ? "last.h5 is damaged" : "last.h5 is missing");
        assert_contains(err_text, "going on from previous.h5");
        expect_same("hurt_whole", run);
        assert_int_equal(RUN("check", run), 0); /* the damage is gone */
    }
    /* Neither is good. */
    assert_int_equal(truncate(in_folder("hurt0/last.h5"), 100), 0);
    assert_int_equal(truncate(in_folder("hurt0/previous.h5"), 100), 0);
    ERROR(65, "last.h5", "train", "resume.yaml", "-q", "--resume", "hurt0");
}

/* ---- kills ------------------------------------------------------------------------------ */

enum { STEPS_EPOCH = 6 };
static const char *const killed_words[] = {
    "train",           "resume.yaml", "--resume",           "auto", "-o", "killed", "--set",
    "train.epochs=30", "--set",       "checkpoint.every=1", NULL};

static bool holds(const char *name) {
    return access(in_folder(name), F_OK) == 0;
}

/* Whole lines of the log, each of which must parse; half a line can only be the last. */
static int epochs_logged(void) {
    static char text[1 << 18];
    int count = 0;
    if (!holds("killed/metrics.jsonl")) return 0;
    read_text(in_folder("killed/metrics.jsonl"), text, sizeof text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *root = json_loadb(line, (size_t)(end - line), 0, NULL);
        assert_non_null(root);
        count += strcmp(json_string_value(json_object_get(root, "event")), "epoch") == 0;
        json_decref(root);
    }
    return count;
}

/* Sleeps until a checkpoint begins to be written. Bounded: the child may end before. */
static void wait_commit(int watch) {
    char events[4096] __attribute__((aligned(8)));
    struct pollfd poll_for = {watch, POLLIN, 0};
    while (read(watch, events, sizeof events) > 0) /* what was before */
        ;
    for (int i = 0; i < 50 && poll(&poll_for, 1, 100) >= 0; i++) {
        ssize_t size = read(watch, events, sizeof events);
        for (ssize_t at = 0; at < size;) {
            const struct inotify_event *event = (const void *)(events + at);
            if (event->len && strcmp(event->name, "last.h5.tmp") == 0) return;
            at += (ssize_t)(sizeof *event + event->len);
        }
    }
}

/* After a kill: a good file is there as soon as there was one, and no more than the newest save is
 * lost. `logged`: epochs in the log before this start, each written before its last save. */
static void expect_going_on(int logged, bool had) {
    long long step = 0;
    const char *said = strstr(err_text, "going on after step ");
    if (strstr(err_text, "is damaged")) fail_msg("a damaged file: %s", err_text);
    if (said) assert_int_equal(sscanf(said, "going on after step %lld", &step), 1);
    if (had && !said && !strstr(err_text, "complete after"))
        fail_msg("nothing to go on from: %s", err_text);
    if (said && step < (long long)STEPS_EPOCH * logged - 1)
        fail_msg("%d epochs were done, but it goes on after step %lld", logged, step);
}

/* At random times, every second one while a checkpoint is being written: what is there is whole,
 * and goes on to the same bits. */
static void killed_runs_go_on_to_the_same_bits(void **state) {
    (void)state;
    int kills = scaled(FULL_KILLS, 6), inside = 0, finished = 0;
    unsigned seed = 12345;
    if (!rv_h5_available()) skip();
    recipe_put("resume.yaml", "{kind: adam, lr: 0.001}", "{kind: constant}");
    assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", "kill_whole", "--set",
                         "train.epochs=30", "--set", "checkpoint.every=1"),
                     0);
    /* On a disk, where writing takes its time; a run folder may be a link. */
    char disk[] = "/tmp/rv_killed_XXXXXX", command[TINY_PATH];
    assert_non_null(mkdtemp(disk));
    assert_int_equal(symlink(disk, in_folder("killed")), 0);
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(watch >= 0 && inotify_add_watch(watch, disk, IN_CREATE) >= 0);
    for (int k = 0; k < kills; k++) {
        int logged = epochs_logged();
        bool had = holds("killed/last.h5") || holds("killed/previous.h5");
        pid_t child = start(killed_words);
        seed = seed * 1664525u + 1013904223u;
        if (k % 2) {
            usleep((useconds_t)(seed / 16 % 60000));
            wait_commit(watch);
        } else {
            usleep((useconds_t)(20000 + seed / 16 % 120000));
        }
        (void)kill(child, SIGKILL);
        int code = end(child);
        assert_true(code == 1009 || code == 0);
        bool whole = holds("killed/last.h5") && !holds("killed/last.h5.tmp");
        inside += code != 0 && had && !whole;
        /* A start that was killed before it said anything proves nothing. */
        if (strstr(err_text, "step")) expect_going_on(logged, had);
        if (code == 0) { /* came to its end: begin anew */
            finished++;
            expect_same("kill_whole", "killed");
            snprintf(command, sizeof command, "rm -rf %s/*", disk);
            assert_int_equal(system(command), 0);
        }
    }
    assert_int_equal(close(watch), 0);
    int logged = epochs_logged();
    bool had = holds("killed/last.h5") || holds("killed/previous.h5");
    assert_int_equal(run_words(killed_words), 0);
    expect_going_on(logged, had);
    expect_same("kill_whole", "killed");
    print_message("           %d kills, %d of them with a half-written checkpoint; %d runs came to "
                  "their end meanwhile\n",
                  kills, inside, finished);
    snprintf(command, sizeof command, "rm -rf %s", disk);
    assert_int_equal(system(command), 0);
}

/* ---- fine-tuning ------------------------------------------------------------------------ */

static void init_takes_what_fits_and_names_the_rest(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "base"), 0);
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "tuned", "--init", "base/best.h5", "--set",
                         "network.out.units=4", "--set", "network.hidden.trainable=false"),
                     0);
    assert_contains(err_text, "--init: 4 of 4 tensors");
    assert_int_equal(RUN("diff", "base/best.h5", "tuned/best.h5", "--layer", "hidden"), 0);
    assert_int_equal(RUN("diff", "base/best.h5", "tuned/best.h5", "--layer", "out", "--json"), 1);
    json_t *root = parse_out(), *first = json_object_get(root, "first");
    assert_true(json_is_false(json_object_get(root, "same")));
    assert_contains(json_string_value(json_object_get(first, "name")), "out.");
    assert_int_equal(strlen(json_string_value(json_object_get(first, "a_bits"))), 10);
    assert_true(json_array_size(json_object_get(first, "index")) > 0);
    json_decref(root);
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "wider", "--init", "base/best.h5", "--set",
                         "network.hidden.units=30", "--set", "network.out.bias=false"),
                     78); /* nothing fits */
    assert_contains(err_text, "no tensor of it");
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "wider", "--init", "base/best.h5", "--set",
                         "network.hidden.bias=false", "--set", "train.max_steps=1"),
                     0);
    assert_contains(err_text, "hidden.bias of the file is not in the network");
    assert_contains(err_text, "3 of 3 tensors");
    ERROR(66, "none.h5", "train", "recipe.yaml", "-q", "-o", "never", "--init", "none.h5");
    ERROR(64, "no_layer", "diff", "base", "tuned", "--layer", "no_layer");
}

/* ---- many runs -------------------------------------------------------------------------- */

static void status_gives_mean_and_spread(void **state) {
    (void)state;
    double sum = 0, squares = 0, loss[3];
    for (int i = 0; i < 3; i++) {
        char seed[16], run[16];
        snprintf(seed, sizeof seed, "seed=%d", i + 1);
        snprintf(run, sizeof run, "seed%d", i);
        assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", run, "--json", "--set", seed), 0);
        json_t *root = parse_out();
        loss[i] = json_number_value(json_object_get(root, "train_loss"));
        sum += loss[i];
        json_decref(root);
    }
    for (int i = 0; i < 3; i++)
        squares += (loss[i] - sum / 3) * (loss[i] - sum / 3);
    assert_int_equal(RUN("status", "seed0", "seed1", "seed2", "--json"), 0);
    json_t *root = parse_out();
    assert_int_equal(json_array_size(json_object_get(root, "runs")), 3);
    assert_float_equal(
        json_number_value(json_object_get(json_object_get(root, "mean"), "train_loss")), sum / 3,
        1e-9);
    assert_float_equal(
        json_number_value(json_object_get(json_object_get(root, "spread"), "train_loss")),
        sqrt(squares / 2), 1e-9);
    json_decref(root);
    assert_int_equal(RUN("status", "seed0", "seed1", "seed2"), 0);
    assert_contains(out_text, "spread");
    assert_contains(out_text, "complete");
    ERROR(66, "nowhere", "status", "seed0", "nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_after_any_step_has_the_same_bits),
        cmocka_unit_test(signals_save_and_the_next_start_goes_on),
        cmocka_unit_test(max_time_saves_in_time),
        cmocka_unit_test(grace_shorter_than_a_save_is_refused),
        cmocka_unit_test(step_longer_than_the_grace_leaves_the_last_checkpoint),
        cmocka_unit_test(resume_auto_starts_continues_and_is_content),
        cmocka_unit_test(resume_with_another_recipe_names_the_first_difference),
        cmocka_unit_test(resume_on_another_instruction_set_warns),
        cmocka_unit_test(run_in_use_is_73_at_once),
        cmocka_unit_test(damaged_last_falls_back_to_previous),
        cmocka_unit_test(killed_runs_go_on_to_the_same_bits),
        cmocka_unit_test(init_takes_what_fits_and_names_the_rest),
        cmocka_unit_test(status_gives_mean_and_spread),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
