/* The writer: order, a full queue, failures that reach the caller; without a thread, too. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "data/data.h"

enum { JOBS = 64 };
static int order[JOBS], ran, ended;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static rv_status note(void *self) {
    order[ran++] = *(int *)self;
    return RV_OK;
}

static rv_status wait_at_gate(void *self) {
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return note(self);
}

static rv_status refuse(void *self) {
    ran++;
    return rv_fail(RV_IO, "job %d failed", *(int *)self);
}

static rv_status signals_are_blocked(void *self) {
    sigset_t mask;
    (void)self;
    if (pthread_sigmask(SIG_SETMASK, NULL, &mask) != 0 || !sigismember(&mask, SIGTERM))
        return rv_fail(RV_INTERNAL, "SIGTERM would arrive here");
    return RV_OK;
}

static void count_end(void *self) {
    (void)self;
    ended++;
}

static int begin(void **state) {
    (void)state;
    ran = ended = 0;
    return 0;
}

static void writer_runs_jobs_in_order(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    int number[JOBS];
    bool idle = false;
    assert_int_equal(rv_writer_create(3, &writer), RV_OK);
    for (int i = 0; i < JOBS; i++) {
        number[i] = i;
        assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, count_end, &number[i]}),
                         RV_OK);
    }
    assert_int_equal(rv_writer_wait(writer), RV_OK);
    assert_int_equal(rv_writer_check(writer, &idle), RV_OK);
    assert_true(idle);
    assert_int_equal(ran, JOBS);
    assert_int_equal(ended, JOBS);
    for (int i = 0; i < JOBS; i++)
        assert_int_equal(order[i], i);
    rv_writer_destroy(writer);
}

static void writer_works_while_the_caller_does(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    int number = 5;
    bool idle = true;
    assert_int_equal(rv_writer_create(1, &writer), RV_OK);
    pthread_mutex_lock(&gate);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){wait_at_gate, NULL, &number}),
                     RV_OK); /* comes back although the job waits */
    assert_int_equal(rv_writer_check(writer, &idle), RV_OK);
    assert_false(idle);
    pthread_mutex_unlock(&gate);
    rv_writer_destroy(writer); /* what waits is still done */
    assert_int_equal(order[0], 5);
}

static void *submit_late(void *argument) {
    static int number = 2;
    assert_int_equal(rv_writer_submit(argument, &(rv_writer_job){note, NULL, &number}), RV_OK);
    ended = 1;
    return NULL;
}

static void writer_full_makes_the_caller_wait(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    pthread_t other;
    int number = 1;
    assert_int_equal(rv_writer_create(1, &writer), RV_OK);
    pthread_mutex_lock(&gate);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){wait_at_gate, NULL, &number}),
                     RV_OK);
    assert_int_equal(pthread_create(&other, NULL, submit_late, writer), 0);
    usleep(50000);
    assert_int_equal(ended, 0);
    pthread_mutex_unlock(&gate);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(rv_writer_wait(writer), RV_OK);
    assert_int_equal(ran, 2);
    rv_writer_destroy(writer);
}

static void writer_failure_reaches_every_later_call(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    int number[3] = {0, 1, 2};
    assert_int_equal(rv_writer_create(4, &writer), RV_OK);
    pthread_mutex_lock(&gate);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){wait_at_gate, NULL, &number[0]}),
                     RV_OK);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){refuse, count_end, &number[1]}),
                     RV_OK);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, count_end, &number[2]}),
                     RV_OK);
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rv_writer_wait(writer), RV_IO);
        assert_string_equal(rv_error_get()->message, "job 1 failed");
        assert_int_equal(rv_fail(RV_USAGE, "something else"), RV_USAGE);
    }
    assert_int_equal(ran, 2); /* the third was dropped */
    assert_int_equal(ended, 2);
    assert_int_equal(rv_writer_check(writer, NULL), RV_IO);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, NULL, &number[2]}), RV_IO);
    rv_writer_destroy(writer);
    assert_int_equal(ran, 2);
}

/* Jobs run in the calling thread: at a step, or where a call would block. */
static void writer_without_a_thread_runs_jobs_when_it_is_told(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    int number[5] = {0, 1, 2, 3, 4};
    bool idle = true;
    assert_int_equal(rv_writer_create_stepped(2, &writer), RV_OK);
    assert_false(rv_writer_step(writer));
    for (int i = 0; i < 3; i++)
        assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, count_end, &number[i]}),
                         RV_OK);
    assert_int_equal(ran, 1); /* for the third there was no room */
    assert_true(rv_writer_step(writer));
    assert_int_equal(ran, 2);
    assert_int_equal(rv_writer_check(writer, &idle), RV_OK);
    assert_false(idle);
    assert_int_equal(rv_writer_wait(writer), RV_OK);
    assert_int_equal(ran, 3);
    assert_false(rv_writer_step(writer));
    for (int i = 3; i < 5; i++)
        assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, count_end, &number[i]}),
                         RV_OK);
    rv_writer_destroy(writer); /* what waits is still done */
    assert_int_equal(ended, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(order[i], i);
}

static void writer_without_a_thread_keeps_its_failure(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    int number[2] = {0, 1};
    assert_int_equal(rv_writer_create_stepped(2, &writer), RV_OK);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){refuse, count_end, &number[0]}),
                     RV_OK);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, count_end, &number[1]}),
                     RV_OK);
    assert_true(rv_writer_step(writer));
    assert_int_equal(rv_fail(RV_USAGE, "something else"), RV_USAGE);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){note, NULL, &number[1]}), RV_IO);
    assert_string_equal(rv_error_get()->message, "job 0 failed");
    assert_int_equal(rv_writer_wait(writer), RV_IO);
    assert_int_equal(ran, 1); /* the second was dropped */
    assert_int_equal(ended, 2);
    rv_writer_destroy(writer);
}

static void writer_is_spared_from_signals(void **state) {
    (void)state;
    rv_writer *writer = NULL;
    sigset_t mask;
    assert_int_equal(rv_writer_create(1, &writer), RV_OK);
    assert_int_equal(rv_writer_submit(writer, &(rv_writer_job){signals_are_blocked, NULL, NULL}),
                     RV_OK);
    assert_int_equal(rv_writer_wait(writer), RV_OK);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    assert_false(sigismember(&mask, SIGTERM)); /* the caller is not */
    rv_writer_destroy(writer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(writer_runs_jobs_in_order, begin),
        cmocka_unit_test_setup(writer_works_while_the_caller_does, begin),
        cmocka_unit_test_setup(writer_full_makes_the_caller_wait, begin),
        cmocka_unit_test_setup(writer_failure_reaches_every_later_call, begin),
        cmocka_unit_test_setup(writer_without_a_thread_runs_jobs_when_it_is_told, begin),
        cmocka_unit_test_setup(writer_without_a_thread_keeps_its_failure, begin),
        cmocka_unit_test_setup(writer_is_spared_from_signals, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
