/* What surrounds a step: quota of a control group, step times, resident size, names, JSON. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pipeline/internal.h"

/* ---- control groups: a made-up /sys/fs/cgroup -------------------------------------------- */

static char folder[] = "/tmp/rv_host_XXXXXX";

static int folder_make(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int folder_remove(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text) {
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void make(const char *name) {
    assert_int_equal(mkdir(in_folder(name), 0700), 0);
}

static double quota_of(const char *mount) {
    char cgroup[256];
    snprintf(cgroup, sizeof cgroup, "%s", in_folder("cgroup"));
    return rv_host_quota(cgroup, in_folder(mount));
}

static void quota_unified_is_read(void **state) {
    (void)state;
    make("two"), make("two/a"), make("two/a/b");
    put("cgroup", "0::/a/b\n");
    put("two/a/b/cpu.max", "150000 100000\n");
    assert_float_equal(quota_of("two"), 1.5, 1e-12);
}

static void quota_parent_tighter_wins(void **state) {
    (void)state;
    put("two/a/cpu.max", "50000 100000\n");
    assert_float_equal(quota_of("two"), 0.5, 1e-12);
    put("two/a/cpu.max", "max 100000\n");
    assert_float_equal(quota_of("two"), 1.5, 1e-12);
    put("two/cpu.max", "25000 100000\n"); /* the mount itself: a container's own group */
    assert_float_equal(quota_of("two"), 0.25, 1e-12);
}

static void quota_version1_is_read(void **state) {
    (void)state;
    make("one"), make("one/cpu"), make("one/cpu/job");
    put("cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n");
    put("one/cpu/job/cpu.cfs_quota_us", "300000\n");
    put("one/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_float_equal(quota_of("one"), 3.0, 1e-12);
    put("one/cpu/job/cpu.cfs_quota_us", "-1\n");
    assert_float_equal(quota_of("one"), 0.0, 0);
}

static void quota_absent_is_no_limit(void **state) {
    (void)state;
    put("cgroup", "0::/nowhere\n3:cpuset:/job\nrubbish\n");
    assert_float_equal(quota_of("one"), 0.0, 0);
    assert_float_equal(rv_host_quota(in_folder("missing"), folder), 0.0, 0);
}

static void threads_default_is_within_the_machine(void **state) {
    (void)state;
    int threads = rv_host_threads();
    assert_true(threads >= 1);
    assert_true(threads <= sysconf(_SC_NPROCESSORS_CONF));
}

/* ---- step times ------------------------------------------------------------------------- */

static void wait_ms(int ms) {
    struct timespec time = {0, ms * 1000000L};
    nanosleep(&time, NULL);
}

/* In any order, odd and even in number, equal ones among them. */
static void pace_median_is_the_middle_of_all(void **state) {
    (void)state;
    static float times[] = {9, 9, 0.5f, 0.125f, 2, 0.25f, 0.25f, 1e-6f};
    static const double medians[] = {500, 312.5, 500, 375, 250, 250}; /* of the first 1, 2, ... */
    for (int n = 1; n <= 6; n++) {
        const rv_pace pace = {.interval = times, .count = n + 2};
        assert_float_equal(rv_pace_median_ms(&pace), medians[n - 1], 0);
    }
}

static void pace_median_leaves_out_two_and_pauses(void **state) {
    (void)state;
    rv_pace pace = {0};
    static const int waits[] = {200, 200, 4, 4}; /* the first two are warm-up */
    assert_true(isnan(rv_pace_median_ms(&pace)));
    assert_true(isnan(rv_pace_rate(&pace)));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rv_pace_start(&pace, 10), RV_OK);
        wait_ms(waits[i]);
        if (i == 3) {
            rv_pace_pause(&pace);
            double rate = rv_pace_rate(&pace);
            wait_ms(80);
            assert_float_equal(rv_pace_rate(&pace), rate, 1e-6 * rate); /* it stands still */
            rv_pace_resume(&pace);
        }
    }
    assert_int_equal(rv_pace_close(&pace), RV_OK);
    assert_int_equal(pace.count, 4);
    double median = rv_pace_median_ms(&pace);
    assert_true(median >= 4.0 && median < 60.0);
    assert_true(pace.interval[3] < 0.070f); /* 4 ms of work, 80 ms of pause */
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)pace.interval[i];
    assert_float_equal(rv_pace_rate(&pace), 40 / sum, 0.01 * 40 / sum);
    rv_pace_finish(&pace);
}

static void pace_many_steps_grow(void **state) {
    (void)state;
    rv_pace pace = {0};
    for (int i = 0; i < 5000; i++)
        assert_int_equal(rv_pace_start(&pace, 1), RV_OK);
    assert_int_equal(rv_pace_close(&pace), RV_OK);
    assert_int_equal(pace.count, 5000);
    assert_int_equal(pace.samples, 5000);
    rv_pace_finish(&pace);
}

/* ---- resident size ----------------------------------------------------------------------- */

enum { BIG = 64 << 20 };

static void touch_and_free(void) {
    char *memory = malloc(BIG);
    assert_non_null(memory);
    for (size_t i = 0; i < BIG; i += 4096)
        ((volatile char *)memory)[i] = 1;
    free(memory);
}

static void watch_peak_outside_steps_is_not_theirs(void **state) {
    (void)state;
    rv_watch watch = {0};
    touch_and_free(); /* before: loading */
    rv_watch_begin(&watch);
    rv_watch_step(&watch);
    rv_watch_end(&watch);
    touch_and_free(); /* after: evaluation */
    rv_watch_close(&watch);
    assert_true(watch.peak_mb >= BIG / 1e6);
    assert_true(watch.step_mb > 0);
    assert_true(watch.step_mb < watch.peak_mb - 0.5 * BIG / 1e6);
}

static void watch_peak_inside_steps_counts(void **state) {
    (void)state;
    rv_watch watch = {0};
    rv_watch_begin(&watch);
    if (watch.sampled) skip(); /* a size between samples is not seen */
    touch_and_free();
    rv_watch_step(&watch);
    rv_watch_end(&watch);
    assert_true(watch.step_mb >= BIG / 1e6);
}

/* ---- names and JSON ---------------------------------------------------------------------- */

static void nearest_slip_is_found(void **state) {
    (void)state;
    static const char *const names[] = {"train", "eval", "info", "check", "list"};
    assert_string_equal(rv_name_nearest("trian", names, 5), "train");
    assert_string_equal(rv_name_nearest("evall", names, 5), "eval");
    assert_string_equal(rv_name_nearest("lst", names, 5), "list");
    assert_null(rv_name_nearest("zzzzzz", names, 5));
    assert_null(rv_name_nearest("", names, 5));
}

static void json_not_finite_is_null(void **state) {
    (void)state;
    char *text = NULL;
    json_t *root = json_pack("{s:o, s:o, s:o}", "a", rv_json_number(NAN), "b",
                             rv_json_number(INFINITY), "c", rv_json_number(0.8812));
    assert_int_equal(rv_json_text(root, true, &text), RV_OK);
    assert_string_equal(text, "{\"a\":null,\"b\":null,\"c\":0.8812}");
    rv_free(text);
    assert_int_equal(rv_json_text(NULL, true, &text), RV_MEMORY);
}

static void json_damaged_file_says_where(void **state) {
    (void)state;
    json_t *root = NULL;
    put("bad.json", "{\n  \"a\": 1,\n  oops\n}\n");
    assert_int_equal(rv_json_load(in_folder("bad.json"), &root), RV_DATA);
    assert_null(root);
    assert_int_equal(rv_error_get()->line, 3);
    assert_int_equal(rv_json_load(in_folder("none.json"), &root), RV_INPUT);
}

static double memory_of(const char *mount) {
    char cgroup[256], meminfo[256];
    snprintf(cgroup, sizeof cgroup, "%s", in_folder("cgroup"));
    snprintf(meminfo, sizeof meminfo, "%s", in_folder("meminfo"));
    return rv_host_memory(meminfo, cgroup, in_folder(mount));
}

static void memory_is_the_least_of_machine_and_groups(void **state) {
    (void)state;
    make("memory"), make("memory/a"), make("memory/memory"), make("memory/memory/g");
    put("meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n");
    put("cgroup", "0::/a\n4:cpu:/g\n5:memory:/g\n");
    double machine = memory_of("memory");
    assert_true(machine > 8e6 * 1024 && machine < 8e6 * 1024 + 1e9); /* and what we have */
    put("memory/a/memory.max", "max\n");
    put("memory/memory/g/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_float_equal(memory_of("memory"), machine, 1e8);
    put("memory/memory/g/memory.limit_in_bytes", "3000000000\n");
    assert_float_equal(memory_of("memory"), 3e9, 1);
    put("memory/memory.max", "2000000000\n"); /* of the group above */
    assert_float_equal(memory_of("memory"), 2e9, 1);
    put("meminfo", "nothing\n");
    put("cgroup", "");
    assert_true(isinf(memory_of("memory")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quota_unified_is_read),
        cmocka_unit_test(quota_parent_tighter_wins),
        cmocka_unit_test(quota_version1_is_read),
        cmocka_unit_test(quota_absent_is_no_limit),
        cmocka_unit_test(threads_default_is_within_the_machine),
        cmocka_unit_test(pace_median_is_the_middle_of_all),
        cmocka_unit_test(pace_median_leaves_out_two_and_pauses),
        cmocka_unit_test(pace_many_steps_grow),
        cmocka_unit_test(watch_peak_outside_steps_is_not_theirs),
        cmocka_unit_test(watch_peak_inside_steps_counts),
        cmocka_unit_test(nearest_slip_is_found),
        cmocka_unit_test(json_not_finite_is_null),
        cmocka_unit_test(json_damaged_file_says_where),
        cmocka_unit_test(memory_is_the_least_of_machine_and_groups),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
