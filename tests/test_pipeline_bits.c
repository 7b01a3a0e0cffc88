/*
 * What may change around a run without changing a bit of it: stages and chunks of a later part,
 * threads, load, locale, saving.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>

#include "data/data.h"
#include "tests/runs.h"
#include "tests/scale.h"

/* Stages are no other run: stopped with some, continued with others. */
static void resume_with_other_stages_has_the_same_bits(void **state) {
    (void)state;
    static const char *const stages[][2] = {{"1", "2"}, {"2", "1"}, {"2", "2"}};
    if (!rv_h5_available()) skip();
    recipe_put("resume.yaml", "{kind: adam, lr: 0.02}", "{kind: cosine, total_steps: 24}");
    assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", "stage_whole"), 0);
    for (int i = 0; i < 3; i++) {
        char run[16];
        snprintf(run, sizeof run, "stage%d", i);
        assert_int_equal(RUN("train", "resume.yaml", "-q", "-o", run, "--stages", stages[i][0],
                             "--set", "train.max_steps=9"),
                         0);
        assert_int_equal(
            RUN("train", "resume.yaml", "-q", "--resume", run, "--stages", stages[i][1]), 0);
        expect_same("stage_whole", run);
    }
}

/* Stopped in three stages and five chunks of six steps, a run of events goes on in one stage, and
 * in one chunk: event sums have one order whatever the chunks. */
static void resume_with_other_chunks_has_the_same_bits(void **state) {
    (void)state;
    static const char *const after[][2] = {{"1", "5"}, {"1", "1"}, {"2", "3"}};
    static const char *const layer = "  - {name: %s, kind: linear, units: %d, form: event}\n"
                                     "  - {name: %s_lif, kind: lif, beta: 0.9, threshold: 0.5}\n";
    char text[4096], whole[8192];
    if (!rv_h5_available()) skip();
    read_text(in_folder("recipe.yaml"), text, sizeof text);
    char *end = strstr(text, "\nencode:");
    assert_non_null(end);
    *end = 0;
    int size = snprintf(whole, sizeof whole,
                        "%s\nencode: {kind: rate, steps: 6}\nloss: {kind: cross_entropy}\n"
                        "train: {epochs: 3, batch: 16, optimizer: {kind: adam, lr: 0.02}, "
                        "lr_schedule: {kind: cosine, total_steps: 18}}\n"
                        "network:\n",
                        text);
    static const char *const names[] = {"first", "second", "out"};
    for (int i = 0; i < 3; i++)
        size += snprintf(whole + size, sizeof whole - (size_t)size, layer, names[i],
                         i == 2 ? 4 : 24 - 8 * i, names[i]);
    tiny_put(in_folder("events.yaml"), whole, (size_t)size);
    assert_int_equal(RUN("train", "events.yaml", "-q", "-o", "chunk_whole", "--chunks", "5"), 0);
    for (int i = 0; i < 3; i++) {
        char run[16];
        snprintf(run, sizeof run, "chunk%d", i);
        assert_int_equal(RUN("train", "events.yaml", "-q", "-o", run, "--stages", "3", "--chunks",
                             "5", "--set", "train.max_steps=9"),
                         0);
        assert_int_equal(RUN("train", "events.yaml", "-q", "--resume", run, "--stages", after[i][0],
                             "--chunks", after[i][1]),
                         0);
        expect_same("chunk_whole", run);
    }
}

/* Threads, a busy machine, a comma for a point, another saving rhythm: none of them is a reason for
 * other bits. */
static void training_has_the_same_bits_whatever_surrounds_it(void **state) {
    (void)state;
    static const char *const threads[] = {"1", "2", "3", "4"};
    pid_t busy[4];
    if (!rv_h5_available()) skip();
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "same", "--threads", "1"), 0);
    for (int i = 0; i < 4; i++) {
        busy[i] = fork();
        assert_true(busy[i] >= 0);
        if (busy[i] == 0)
            for (volatile unsigned turn = 0;; turn++)
                ;
    }
    assert_int_equal(setenv("LC_ALL", "de_DE.UTF-8", 1), 0); /* where it is not known: C */
    int repeats = scaled(FULL_REPEATS, 1);
    for (int i = 0; i < 4 * repeats; i++) {
        char run[16];
        snprintf(run, sizeof run, "same%d", i);
        assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", run, "--threads", threads[i % 4],
                             "--set", i % 2 ? "checkpoint.every=1" : "checkpoint.every=1epoch"),
                         0);
        expect_same("same", run);
    }
    assert_int_equal(unsetenv("LC_ALL"), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(kill(busy[i], SIGKILL), 0);
        assert_int_equal(waitpid(busy[i], NULL, 0), busy[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_with_other_stages_has_the_same_bits),
        cmocka_unit_test(resume_with_other_chunks_has_the_same_bits),
        cmocka_unit_test(training_has_the_same_bits_whatever_surrounds_it),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
