/* Locks of run folders: one owner at a time, named to others, and none left behind by the dead. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/data_files.h"
#include "tests/scale.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Valid until the next one: path_to keeps only a few. */
static const char *new_folder(const char *name) {
    static char folder[512];
    snprintf(folder, sizeof folder, "%s", path_to(name));
    assert_int_equal(mkdir(folder, 0700), 0);
    return folder;
}

/* A child that tells what became of its try, then holds what it has until it is killed. */
typedef struct child {
    pid_t pid;
    int said; /* pipe */
} child;

static child start_child(const char *folder, int go, bool no_locks) {
    int said[2];
    assert_int_equal(pipe(said), 0);
    fflush(NULL);
    child made = {fork(), said[0]};
    assert_true(made.pid >= 0);
    if (made.pid == 0) {
        rv_lock *lock = NULL;
        char word = 0;
        (void)no_locks;
#ifdef RV_FAULTS
        if (no_locks) rv_fault_arm(RV_FAULT_LOCK, 0, true);
#endif
        if (go >= 0 && read(go, &word, 1) < 0) _exit(1);
        word = rv_lock_take(folder, &lock) == RV_OK ? 'y' : 'n';
        if (write(said[1], &word, 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(close(said[1]), 0);
    return made;
}

static char answer(const child *made) {
    char word = 0;
    assert_int_equal(read(made->said, &word, 1), 1);
    return word;
}

static void end_child(const child *made) {
    assert_int_equal(kill(made->pid, SIGKILL), 0);
    assert_int_equal(waitpid(made->pid, NULL, 0), made->pid);
    assert_int_equal(close(made->said), 0);
}

static void expect_named(pid_t pid) {
    char host[256] = "", text[64];
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    const char *message = rv_error_get()->message;
    assert_non_null(strstr(message, host));
    snprintf(text, sizeof text, "pid %d, started 20", (int)pid);
    if (!strstr(message, text)) fail_msg("no \"%s\" in \"%s\"", text, message);
}

static void lock_held_is_refused_and_named(void **state) {
    (void)state;
    const char *folder = new_folder("held");
    rv_lock *lock = NULL, *second = NULL;
    assert_int_equal(rv_lock_take(folder, &lock), RV_OK);
    assert_string_equal(rv_lock_note(lock), "");
    double begin = now();
    assert_int_equal(rv_lock_take(folder, &second), RV_CREATE);
    assert_true(now() - begin < 1);
    assert_null(second);
    expect_named(getpid());
    rv_lock_release(lock);
    assert_false(file_there("held/run.lock"));
    assert_int_equal(rv_lock_take(folder, &lock), RV_OK);
    rv_lock_release(lock);
}

static void lock_in_no_folder_is_create(void **state) {
    (void)state;
    rv_lock *lock = NULL;
    put_file("file", "x", 1);
    assert_int_equal(rv_lock_take(path_to("none"), &lock), RV_CREATE);
    assert_int_equal(rv_lock_take(path_to("file"), &lock), RV_CREATE);
    assert_null(lock);
}

static void lock_of_a_killed_process_is_taken_over(void **state) {
    (void)state;
    const char *folder = new_folder("dead");
    rv_lock *lock = NULL;
    rv_owner owner;
    child first = start_child(folder, -1, false);
    assert_int_equal(answer(&first), 'y');
    assert_true(rv_lock_look(folder, &owner));
    assert_int_equal(owner.pid, first.pid);
    assert_int_equal(rv_lock_take(folder, &lock), RV_CREATE);
    expect_named(first.pid);
    end_child(&first);
    assert_false(rv_lock_look(folder, &owner));
    assert_int_equal(owner.pid, first.pid); /* still says who it was */
    assert_int_equal(rv_lock_take(folder, &lock), RV_OK);
    assert_non_null(strstr(rv_lock_note(lock), "taken over"));
    assert_true(rv_lock_look(folder, &owner));
    rv_lock_release(lock);
    assert_false(rv_lock_look(folder, &owner));
}

/* All at once: one gets it, the others are told. */
static void race(const char *name, bool no_locks) {
    enum { RACERS = 8 };
    int rounds = scaled(FULL_LOCK_RACES, 3);
    const char *folder = new_folder(name);
    for (int round = 0; round < rounds; round++) {
        child racers[RACERS];
        int go[2], winners = 0;
        assert_int_equal(pipe(go), 0);
        for (int i = 0; i < RACERS; i++)
            racers[i] = start_child(folder, go[0], no_locks);
        assert_int_equal(write(go[1], "gogogogo", RACERS), RACERS);
        for (int i = 0; i < RACERS; i++)
            winners += answer(&racers[i]) == 'y';
        assert_int_equal(winners, 1);
        for (int i = 0; i < RACERS; i++)
            end_child(&racers[i]);
        assert_int_equal(close(go[0]), 0);
        assert_int_equal(close(go[1]), 0);
    }
}

static void lock_raced_for_has_one_winner(void **state) {
    (void)state;
    race("race", false);
}

#ifdef RV_FAULTS
static void lock_without_kernel_locks_keeps_others_out(void **state) {
    (void)state;
    const char *folder = new_folder("nfs");
    rv_lock *lock = NULL, *second = NULL;
    rv_owner owner;
    rv_fault_arm(RV_FAULT_LOCK, 0, true);
    child first = start_child(folder, -1, true);
    assert_int_equal(answer(&first), 'y');
    assert_true(rv_lock_look(folder, &owner));
    assert_int_equal(rv_lock_take(folder, &lock), RV_CREATE);
    expect_named(first.pid);
    end_child(&first);
    assert_false(rv_lock_look(folder, &owner));
    assert_int_equal(rv_lock_take(folder, &lock), RV_OK); /* its owner is dead */
    assert_non_null(strstr(rv_lock_note(lock), "no locks"));
    assert_int_equal(rv_lock_take(folder, &second), RV_CREATE);
    rv_lock_release(lock);
    assert_false(file_there("nfs/run.owner"));
    assert_false(file_there("nfs/run.owner.new"));
    /* On another machine nobody here can tell whether it lives. */
    static const char far[] = "{\"host\":\"far\",\"pid\":1,\"started\":\"2026-01-01T00:00:00Z\","
                              "\"boot\":\"x\",\"ticks\":1}";
    put_file("nfs/run.owner", far, sizeof far - 1);
    assert_true(rv_lock_look(folder, &owner));
    assert_int_equal(rv_lock_take(folder, &lock), RV_CREATE);
    assert_non_null(strstr(rv_error_get()->message, "host far, pid 1, started 2026-01-01"));
    assert_non_null(strstr(rv_error_get()->message, "remove run.owner"));
    /* Another boot of this one: nothing of it runs any more. */
    char text[512], host[256] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    int size = snprintf(text, sizeof text,
                        "{\"host\":\"%s\",\"pid\":%d,\"started\":\"s\",\"boot\":\"x\",\"ticks\":1}",
                        host, (int)getpid());
    put_file("nfs/run.owner", text, (size_t)size);
    assert_int_equal(rv_lock_take(folder, &lock), RV_OK);
    rv_lock_release(lock);
    rv_fault_arm(RV_FAULT_LOCK, -1, false);
}

static void lock_without_kernel_locks_raced_for_has_one_winner(void **state) {
    (void)state;
    race("race_nfs", true);
}

static void lock_that_cannot_be_written_is_not_held(void **state) {
    (void)state;
    const char *folder = new_folder("fault");
    static const rv_fault_site sites[] = {RV_FAULT_ALLOC, RV_FAULT_WRITE};
    rv_lock *lock = NULL;
    for (int s = 0; s < 2; s++) {
        int k = 0;
        for (rv_status status = RV_IO; status != RV_OK; k++) {
            rv_fault_arm(sites[s], k, false);
            status = rv_lock_take(folder, &lock);
            rv_fault_arm(sites[s], -1, false);
            assert_true(status == RV_OK || status == (s ? RV_IO : RV_MEMORY));
            if (status != RV_OK) assert_null(lock);
        }
        assert_true(k > 1);
        rv_lock_release(lock);
        assert_false(file_there("fault/run.lock"));
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lock_held_is_refused_and_named),
        cmocka_unit_test(lock_in_no_folder_is_create),
        cmocka_unit_test(lock_of_a_killed_process_is_taken_over),
        cmocka_unit_test(lock_raced_for_has_one_winner),
#ifdef RV_FAULTS
        cmocka_unit_test(lock_without_kernel_locks_keeps_others_out),
        cmocka_unit_test(lock_without_kernel_locks_raced_for_has_one_winner),
        cmocka_unit_test(lock_that_cannot_be_written_is_not_held),
#endif
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
