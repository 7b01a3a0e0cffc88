/*
 * No hang: a message that never comes ends the step after pipeline.peer_timeout with where every
 * stage is; a stage that is slow is told about and goes on.
 */
#include <unistd.h>

#include "pipeline/watch.h"
#include "tests/lossy_link.h"
#include "tests/pipes.h"

typedef struct heard {
    char text[8192];
    int lines;
} heard;

static void hear(void *user, const char *line) {
    heard *h = user;
    size_t used = strlen(h->text);
    snprintf(h->text + used, sizeof h->text - used, "%s\n", line);
    h->lines++;
}

/* Every link and some messages of it, whatever they carry: 76, with all stages, and no thread is
 * left behind (destroy joins them). */
static void message_that_never_comes_ends_the_step_and_names_who_waits(void **state) {
    (void)state;
    static const struct {
        lossy_plan plan;
        const char *text;
    } cases[] = {
        {{0, 1, 0}, "stage 1 waits for F of micro-batch 0, chunk 0 from stage 0 since "},
        {{1, 2, 3}, "stage 2 waits for F of micro-batch 1, chunk 0 from stage 1 since "},
        {{2, 1, 0}, "stage 1 waits for B of micro-batch 0, chunk 2 from stage 2 since "},
        {{1, 0, 5}, "stage 0 waits for B of micro-batch 1, chunk 0 from stage 1 since "},
        {{0, 2, 0}, "stage 2 waits for NORM of update 0 from stage 0 since "},
        {{2, 0, 0}, "stage 0 waits for the norm from stage 2 since "},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        heard h = {0};
        const rv_transport lossy = {"lossy", lossy_open, (void *)(uintptr_t)&cases[k].plan};
        const pipe_way way = {.schedule = "1f1b",
                              .stages = 3,
                              .micros = 2,
                              .chunks = 3,
                              .slots = 4,
                              .clip = 0.1,
                              .transport = &lossy,
                              .timeout = 0.4,
                              .say = hear,
                              .user = &h};
        small s;
        int first[SMALL_LAYERS + 1];
        rv_schedule schedule;
        rv_step_result result;
        pipe_open(&s, &pipe_nets[0], &way);
        rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
        assert_int_equal(rv_pipeline_step(pipeline, &s.batch, &result), RV_PEER);
        if (!strstr(rv_error_get()->message, "pipeline.peer_timeout") ||
            !strstr(h.text, cases[k].text))
            fail_msg("%s\n%s", rv_error_get()->message, h.text);
        assert_int_equal(h.lines, 3);
        assert_int_equal(rv_pipeline_step(pipeline, &s.batch, &result), RV_PEER);
        rv_pipeline_destroy(pipeline);
        rv_schedule_finish(&schedule);
        small_finish(&s);
    }
}

/* Every slot is taken and none is given back. */
static void wait_for_a_slot_is_named(void **state) {
    (void)state;
    const pipe_way way = {
        .schedule = "filldrain", .stages = 2, .micros = 2, .chunks = 3, .timeout = 1};
    small s;
    int first[SMALL_LAYERS + 1];
    char text[RV_POST_TEXT];
    rv_schedule schedule;
    pipe_open(&s, &pipe_nets[0], &way);
    rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
    rv_stage *stage = rv_pipeline_stage(pipeline, 0);
    OK(rv_stage_begin(stage, &s.batch, true));
    rv_guard guard;
    OK(rv_guard_init(&guard, 1, 1, NULL, NULL));
    rv_post *post = rv_guard_post(&guard, 0);
    stage->at = 4;
    rv_post_moved(post, stage, 10);
    rv_post_wait(post, stage->links.forward_out, 10);
    assert_string_equal(
        rv_post_print(post, stage, 22.5, text),
        "stage 0 waits for a slot to stage 1 for F of micro-batch 1, chunk 1 since 12.5 s");
    rv_post_try(post, 12);
    assert_string_equal(rv_post_print(post, stage, 22.5, text),
                        "stage 0 computes F of micro-batch 1, chunk 1 since 10.5 s");
    stage->at = stage->count;
    rv_post_moved(post, stage, 20);
    assert_string_equal(rv_post_print(post, stage, 22.5, text), "stage 0 is done since 2.5 s");
    rv_guard_finish(&guard);
    rv_pipeline_destroy(pipeline);
    rv_schedule_finish(&schedule);
    small_finish(&s);
}

static rv_status linger(void *self, const rv_pass *pass) {
    int *left = self;
    if (pass->first > 0 && *left > 0 && (*left)--) usleep(500000);
    return RV_OK;
}

static void slow_stage_is_told_and_goes_on(void **state) {
    (void)state;
    heard h = {0};
    const pipe_way way = {.schedule = "1f1b",
                          .stages = 2,
                          .micros = 2,
                          .chunks = 2,
                          .timeout = 0.1,
                          .say = hear,
                          .user = &h};
    small s;
    int first[SMALL_LAYERS + 1], left = 1;
    rv_schedule schedule;
    rv_step_result result, want;
    pipe_open(&s, &pipe_nets[0], &way);
    rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
    const rv_observer observer = {&left, linger};
    rv_pipeline_observe(pipeline, &observer);
    OK(rv_pipeline_step(pipeline, &s.batch, &result));
    OK(rv_serial_step(s.serial, &s.batch, &want));
    assert_true(result.loss == want.loss);
    if (!strstr(h.text, "slow: stage 1 computes F of micro-batch 0, chunk 0 since 0."))
        fail_msg("%s", h.text);
    assert_true(h.lines >= 1 && h.lines <= 6); /* ever more seldom */
    OK(rv_pipeline_step(pipeline, &s.batch, &result));
    rv_pipeline_destroy(pipeline);
    rv_schedule_finish(&schedule);
    small_finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_that_never_comes_ends_the_step_and_names_who_waits),
        cmocka_unit_test(wait_for_a_slot_is_named),
        cmocka_unit_test(slow_stage_is_told_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
