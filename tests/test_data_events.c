/* TensorBoard's event files, read back by a reader of our own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/data_files.h"

static uint64_t little(const unsigned char *at, int size) {
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static uint32_t unmasked(uint32_t crc) {
    crc -= 0xA282EAD8u;
    return crc >> 17 | crc << 15;
}

/* Size of the record at the front of `bytes` with its frame; 0: not whole, or damaged. */
static size_t record_size(const unsigned char *bytes, size_t size) {
    if (size < 12 || unmasked((uint32_t)little(bytes + 8, 4)) != rv_crc32c(bytes, 8)) return 0;
    uint64_t length = little(bytes, 8);
    if (length > size || size - length < 16) return 0;
    const unsigned char *body = bytes + 12;
    return unmasked((uint32_t)little(body + length, 4)) == rv_crc32c(body, length) ? 16 + length
                                                                                   : 0;
}

static int records(const unsigned char *bytes, size_t size) {
    int count = 0;
    for (size_t one; (one = record_size(bytes, size)) > 0; count++)
        bytes += one, size -= one;
    return count;
}

static void crc_gives_the_known_answer(void **state) {
    (void)state;
    assert_int_equal(rv_crc32c("123456789", 9), 0xE3069283u); /* RFC 3720, appendix B.4 */
    assert_int_equal(rv_crc32c("", 0), 0);
    static const unsigned char zeros[32];
    assert_int_equal(rv_crc32c(zeros, 32), 0x8A9136AAu);
}

static void events_are_records_of_scalars(void **state) {
    (void)state;
    rv_events *events = NULL;
    size_t size, one;
    static const char *const tags[] = {"train/loss", "rate/hidden"};
    const double values[] = {1.5, 0.25};
    assert_int_equal(rv_events_create(data_folder, 300, 7.0, &events), RV_OK);
    assert_int_equal(rv_events_scalars(events, 300, 8.0, tags, values, 2), RV_OK);
    unsigned char *bytes =
        (unsigned char *)get_file(path_to("events.out.tfevents.0000000300.ranvier"), &size);
    assert_int_equal(records(bytes, size), 2); /* while it is still open */
    one = record_size(bytes, size);
    static const unsigned char version[] = "\x09\0\0\0\0\0\0\x1c\x40\x1a\x0d"
                                           "brain.Event:2";
    assert_int_equal(one, 16 + sizeof version - 1);
    assert_memory_equal(bytes + 12, version, sizeof version - 1);
    static const unsigned char scalars[] = "\x09\0\0\0\0\0\0\x20\x40" /* wall time 8 */
                                           "\x10\xac\x02"             /* step 300 */
                                           "\x2a\x27"                 /* summary */
                                           "\x0a\x11\x0a\x0atrain/loss\x15\0\0\xc0\x3f"
                                           "\x0a\x12\x0a\x0brate/hidden\x15\0\0\x80\x3e";
    assert_int_equal(size - one, 16 + sizeof scalars - 1);
    assert_memory_equal(bytes + one + 12, scalars, sizeof scalars - 1);
    /* Cut anywhere, the records before are whole. */
    for (size_t cut = 0; cut <= size; cut++)
        assert_int_equal(records(bytes, cut), (cut >= one) + (cut >= size));
    /* And a changed bit is seen. */
    for (size_t at = 0; at < size; at++) {
        bytes[at] ^= 4;
        assert_true(records(bytes, size) < 2);
        bytes[at] ^= 4;
    }
    free(bytes);
    rv_events_destroy(events);
    assert_int_equal(rv_events_create(path_to("none"), 0, 0, &events), RV_CREATE);
    assert_null(events);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_gives_the_known_answer),
        cmocka_unit_test(events_are_records_of_scalars),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
