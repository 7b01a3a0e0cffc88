/* Commits: the old file or the new one, never a mixture, nothing left over. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/data_files.h"

static void expect_file(const char *name, const char *text) {
    size_t size = 0;
    char *bytes = get_file(path_to(name), &size);
    assert_int_equal(size, strlen(text));
    assert_memory_equal(bytes, text, size);
    free(bytes);
}

static void commit_new_and_again_keeps_previous(void **state) {
    (void)state;
    char path[512], previous[512];
    snprintf(path, sizeof path, "%s", path_to("a"));
    snprintf(previous, sizeof previous, "%s", path_to("a.old"));
    assert_int_equal(rv_commit(path, previous, "one", 3), RV_OK);
    expect_file("a", "one");
    assert_false(file_there("a.old"));
    assert_int_equal(rv_commit(path, previous, "three", 5), RV_OK);
    expect_file("a", "three");
    expect_file("a.old", "one");
    assert_int_equal(rv_commit(path, NULL, "", 0), RV_OK);
    expect_file("a", "");
    expect_file("a.old", "one");
    assert_false(file_there("a.tmp"));
}

static void commit_to_relative_path_uses_working_folder(void **state) {
    (void)state;
    char here[2048];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(data_folder), 0);
    assert_int_equal(rv_commit("plain", NULL, "x", 1), RV_OK);
    assert_int_equal(chdir(here), 0);
    expect_file("plain", "x");
}

static void commit_where_nothing_can_be_made_is_create(void **state) {
    (void)state;
    put_file("file", "x", 1);
    assert_int_equal(rv_commit(path_to("no/such"), NULL, "x", 1), RV_CREATE);
    assert_int_equal(rv_commit(path_to("file/under"), NULL, "x", 1), RV_CREATE);
    assert_non_null(strstr(rv_error_get()->message, "file/under.tmp: cannot create"));
    if (geteuid() != 0) {
        assert_int_equal(mkdir(path_to("shut"), 0500), 0);
        assert_int_equal(rv_commit(path_to("shut/a"), NULL, "x", 1), RV_CREATE);
    }
}

static void commit_over_a_folder_is_refused(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_to("taken"), 0700), 0);
    assert_int_equal(rv_commit(path_to("taken"), NULL, "x", 1), RV_IO);
    assert_false(file_there("taken.tmp"));
}

/* A limit on the file's size: the first write is short, the next fails, as on a full disk. */
static void commit_on_a_full_disk_names_bytes_and_keeps_the_old(void **state) {
    (void)state;
    static char large[100000];
    put_file("full", "old", 3);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {3000, 3000};
        signal(SIGXFSZ, SIG_IGN);
        bool good = setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
                    rv_commit(path_to("full"), path_to("full.old"), large, sizeof large) == RV_IO &&
                    strstr(rv_error_get()->message, "full: cannot write") &&
                    strstr(rv_error_get()->message, "(100000 bytes needed, ") &&
                    strstr(rv_error_get()->message, " free)");
        _exit(good ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    expect_file("full", "old");
    assert_false(file_there("full.tmp"));
    assert_false(file_there("full.old"));
}

/* Killed at a random moment, the file is one of the versions, whole. */
static void commit_killed_leaves_a_whole_version(void **state) {
    (void)state;
    enum { SIZE = 200000, KILLS = 20 };
    static char bytes[SIZE];
    put_file("kill", bytes, SIZE);
    fflush(NULL);
    for (int kill_no = 0; kill_no < KILLS; kill_no++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            for (int version = 1;; version++) {
                memset(bytes, version % 100, SIZE);
                if (rv_commit(path_to("kill"), path_to("kill.old"), bytes, SIZE) != RV_OK) _exit(1);
            }
        usleep((useconds_t)(3000 + 2500 * kill_no));
        assert_int_equal(kill(child, SIGKILL), 0);
        int result = 0;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result)); /* it was still committing */
        /* Between the two renames only the previous name exists. */
        const char *name = file_there("kill") ? "kill" : "kill.old";
        size_t size = 0;
        char *found = get_file(path_to(name), &size);
        assert_int_equal(size, SIZE);
        for (size_t i = 1; i < size; i++)
            assert_int_equal(found[i], found[0]);
        free(found);
    }
}

static void read_file_gives_bytes_or_says_why(void **state) {
    (void)state;
    char *bytes = NULL;
    size_t size = 0;
    put_file("read", "a\0b", 3);
    assert_int_equal(rv_read_file(path_to("read"), 3, &bytes, &size), RV_OK);
    assert_int_equal(size, 3);
    assert_memory_equal(bytes, "a\0b\0", 4);
    rv_free(bytes);
    bytes = NULL;
    assert_int_equal(rv_read_file(path_to("read"), 2, &bytes, &size), RV_DATA);
    assert_int_equal(rv_read_file(path_to("none"), 9, &bytes, &size), RV_INPUT);
    assert_int_equal(rv_read_file(data_folder, 9, &bytes, &size), RV_INPUT);
    assert_int_equal(mkfifo(path_to("pipe"), 0600), 0); /* nobody will ever write into it */
    assert_int_equal(rv_read_file(path_to("pipe"), 9, &bytes, &size), RV_INPUT);
    assert_null(bytes);
}

#ifdef RV_FAULTS
/* Every call that can fail, at every k, once and for good, until a pass is clean. */
static void commit_with_any_failing_call_keeps_the_old(void **state) {
    (void)state;
    static const rv_fault_site sites[] = {RV_FAULT_ALLOC, RV_FAULT_WRITE, RV_FAULT_FSYNC,
                                          RV_FAULT_CLOSE, RV_FAULT_RENAME};
    char path[512], previous[512];
    snprintf(path, sizeof path, "%s", path_to("f"));
    snprintf(previous, sizeof previous, "%s", path_to("f.old"));
    for (int s = 0; s < 5; s++) {
        for (int sticky = 0; sticky < 2; sticky++) {
            int failed = 0;
            for (int k = 0; k < 20; k++) {
                rv_status status;
                put_file("f", "old", 3);
                rv_fault_arm(sites[s], k, sticky);
                status = rv_commit(path, previous, "newer", 5);
                rv_fault_arm(sites[s], -1, false);
                assert_false(file_there("f.tmp"));
                if (status == RV_OK) {
                    expect_file("f", "newer");
                    expect_file("f.old", "old");
                    break;
                }
                failed++;
                assert_int_equal(status, sites[s] == RV_FAULT_ALLOC ? RV_MEMORY : RV_IO);
                /* Only the last sync, of the folder, comes after the new file is in place. */
                bool placed = sites[s] == RV_FAULT_FSYNC && k == 1;
                expect_file("f", placed ? "newer" : "old");
            }
            assert_true(failed > 0 && failed < 20);
        }
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_new_and_again_keeps_previous),
        cmocka_unit_test(commit_to_relative_path_uses_working_folder),
        cmocka_unit_test(commit_where_nothing_can_be_made_is_create),
        cmocka_unit_test(commit_over_a_folder_is_refused),
        cmocka_unit_test(commit_on_a_full_disk_names_bytes_and_keeps_the_old),
        cmocka_unit_test(commit_killed_leaves_a_whole_version),
        cmocka_unit_test(read_file_gives_bytes_or_says_why),
#ifdef RV_FAULTS
        cmocka_unit_test(commit_with_any_failing_call_keeps_the_old),
#endif
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
