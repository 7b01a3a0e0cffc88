/*
 * Records on the disk: what was written comes back, a record that another hand changed does not go
 * unseen, the file is HDF5 to others and gone afterwards. Half floats, in which some are written.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != RV_OK) fail_msg("%s: %s", #call, rv_error_get()->message);                   \
    } while (0)

enum { RECORDS = 5, BYTES = 10007, FIRST = 4096 };

static void fill(unsigned char *bytes, int record) {
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + record * 31 + i / 256);
}

static void write_record(rv_spill *spill, int record) {
    unsigned char bytes[BYTES];
    fill(bytes, record);
    OK(rv_spill_write(spill, (size_t)record, 0, bytes, FIRST));
    OK(rv_spill_write(spill, (size_t)record, FIRST, bytes + FIRST, BYTES - FIRST));
}

static rv_status read_record(rv_spill *spill, int record, unsigned char *bytes) {
    rv_status status = rv_spill_read(spill, (size_t)record, 0, bytes, FIRST);
    return status ? status
                  : rv_spill_read(spill, (size_t)record, FIRST, bytes + FIRST, BYTES - FIRST);
}

static void records_come_back_in_any_order(void **state) {
    (void)state;
    static const int order[] = {3, 0, 4, 2, 1, 3};
    unsigned char got[BYTES], want[BYTES];
    rv_spill *spill = NULL;
    if (!rv_h5_available()) skip();
    OK(rv_spill_create(NULL, NULL, RECORDS, BYTES, &spill));
    for (int r = 0; r < RECORDS; r++)
        write_record(spill, r);
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        OK(read_record(spill, order[k], got));
        fill(want, order[k]);
        assert_memory_equal(got, want, BYTES);
    }
    rv_spill_destroy(spill);
}

static void files_are_hdf5_named_and_gone_at_the_end(void **state) {
    (void)state;
    static const unsigned char magic[8] = "\x89HDF\r\n\x1a\n";
    char folder[] = "/tmp/ranvier-test-XXXXXX", path[64];
    unsigned char head[8], byte = 255, got[BYTES];
    struct stat about;
    rv_spill *spill = NULL;
    if (!rv_h5_available()) skip();
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t.h5.tmp", folder);
    OK(rv_spill_create(folder, "t.h5", RECORDS, BYTES, &spill));
    for (int r = 0; r < RECORDS; r++)
        write_record(spill, r);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, head, 8, 0), 8);
    assert_memory_equal(head, magic, 8);
    assert_int_equal(fstat(fd, &about), 0);
    assert_true(about.st_size >= RECORDS * BYTES && about.st_size < RECORDS * BYTES + 8192);
    /* The records are one piece at the file's end: change a byte of the last. */
    assert_int_equal(pread(fd, got, 1, about.st_size - 1 - BYTES / 2), 1);
    byte = (unsigned char)~got[0];
    assert_int_equal(pwrite(fd, &byte, 1, about.st_size - 1 - BYTES / 2), 1);
    assert_int_equal(close(fd), 0);
    OK(read_record(spill, 0, got));
    assert_int_equal(read_record(spill, RECORDS - 1, got), RV_DATA);
    assert_non_null(strstr(rv_error_get()->message, path));
    rv_spill_destroy(spill);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void folders_that_are_not_there_are_told(void **state) {
    (void)state;
    rv_spill *spill = NULL;
    if (!rv_h5_available()) skip();
    assert_int_equal(rv_spill_create("/nowhere/at/all", "t.h5", 1, 64, &spill), RV_CREATE);
    assert_non_null(strstr(rv_error_get()->message, "/nowhere/at/all/t.h5.tmp"));
    assert_null(spill);
}

/* In the folder that was asked for, and in no other. */
static void files_without_a_name_lie_in_their_folder(void **state) {
    (void)state;
    char folder[] = "/tmp/ranvier-test-XXXXXX", link[64], path[256];
    rv_spill *spill = NULL;
    int found = 0;
    if (!rv_h5_available()) skip();
    assert_non_null(mkdtemp(folder));
    OK(rv_spill_create(folder, NULL, RECORDS, BYTES, &spill));
    for (int fd = 0; fd < 64; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, path, sizeof path - 1);
        path[size > 0 ? size : 0] = 0;
        found += strncmp(path, folder, strlen(folder)) == 0 && strstr(path, " (deleted)") != NULL;
    }
    assert_int_equal(found, 1);
    assert_int_equal(rmdir(folder), 0); /* nothing has a name there */
    rv_spill_destroy(spill);
    assert_int_equal(rv_spill_create(folder, NULL, 1, 64, &spill), RV_CREATE);
    assert_non_null(strstr(rv_error_get()->message, folder));
}

/* ---- half floats ------------------------------------------------------------------------ */

static double value_of(uint16_t half) {
    int exponent = half >> 10 & 31, digits = half & 1023;
    double size = exponent ? ldexp(1024 + digits, exponent - 25) : ldexp(digits, -24);
    return half >> 15 ? -size : size;
}

static void every_half_is_itself_and_the_nearest_to_what_lies_around(void **state) {
    (void)state;
    unsigned mode = rv_flush_set(); /* as in training */
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t half = (uint16_t)h, back;
        float value;
        rv_half_unpack(&half, &value, 1);
        if ((h & 0x7c00) == 0x7c00) { /* infinities and what is no number stay that */
            rv_half_pack(&value, &back, 1);
            assert_true(h & 1023 ? isnan(value) && (back & 0x7fff) > 0x7c00 : back == half);
            continue;
        }
        assert_true((double)value == value_of(half));
        rv_half_pack(&value, &back, 1);
        assert_int_equal(back, half);
        if ((h & 0x7fff) == 0x7bff) continue;
        /* Up to the middle of two neighbours it is the nearer; the middle goes to the even one. */
        double next = value_of((uint16_t)(half + 1)), middle = ((double)value + next) / 2;
        float around[3] = {nextafterf((float)middle, value), (float)middle,
                           nextafterf((float)middle, (float)next)};
        uint16_t want[3] = {half, (uint16_t)(half + (half & 1)), (uint16_t)(half + 1)}, got[3];
        rv_half_pack(around, got, 3);
        assert_memory_equal(got, want, sizeof got);
    }
    rv_flush_restore(mode);
}

static void finite_values_stay_finite(void **state) {
    (void)state;
    const float far[] = {65504, 65519, 65520, 1e9f, 3e38f, -1e9f, 1e-30f, -1e-30f, INFINITY};
    const uint16_t want[] = {0x7bff, 0x7bff, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 0, 0x8000, 0x7c00};
    uint16_t got[9];
    rv_half_pack(far, got, 9);
    assert_memory_equal(got, want, sizeof got);
}

/* Before HDF5 meets the limit of a file's size. */
static void file_that_may_not_be_so_large_is_refused(void **state) {
    (void)state;
    struct rlimit before, limit;
    rv_spill *spill = NULL;
    if (!rv_h5_available()) skip();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = RECORDS * BYTES;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    rv_status status = rv_spill_create(NULL, NULL, RECORDS, BYTES, &spill);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, RV_IO);
    assert_non_null(strstr(rv_error_get()->message, "ulimit -f"));
    assert_null(spill);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_that_may_not_be_so_large_is_refused),
        cmocka_unit_test(records_come_back_in_any_order),
        cmocka_unit_test(files_are_hdf5_named_and_gone_at_the_end),
        cmocka_unit_test(files_without_a_name_lie_in_their_folder),
        cmocka_unit_test(folders_that_are_not_there_are_told),
        cmocka_unit_test(every_half_is_itself_and_the_nearest_to_what_lies_around),
        cmocka_unit_test(finite_values_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
