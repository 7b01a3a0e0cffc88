/* The IDX reader: values, what a damaged or lying file does, and what it must not do to memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/data_files.h"

/* Growth allowed to a refused file. Sanitizers keep freed memory and shadows of it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { GROWTH = 512 << 20 };
#else
enum { GROWTH = 16 << 20 };
#endif

enum { COUNT = 5, ROWS = 3, COLUMNS = 2, PIXELS = ROWS * COLUMNS };

static unsigned char images[16 + COUNT * PIXELS], labels[8 + COUNT];

static int make(void **state) {
    static const uint32_t image_dim[] = {COUNT, ROWS, COLUMNS}, label_dim[] = {COUNT};
    if (folder_setup(state) != 0) return -1;
    idx_header(images, 3, image_dim);
    idx_header(labels, 1, label_dim);
    for (int i = 0; i < COUNT * PIXELS; i++)
        images[16 + i] = (unsigned char)(i * 37);
    for (int i = 0; i < COUNT; i++)
        labels[8 + i] = (unsigned char)(i % 3);
    put_file("images", images, sizeof images);
    put_file("labels", labels, sizeof labels);
    put_packed("images.gz", images, sizeof images);
    put_packed("labels.gz", labels, sizeof labels);
    return 0;
}

static rv_config *config_for(const char *inputs, const char *truth, const char *more) {
    char data[1024];
    snprintf(data, sizeof data, "{reader: idx, root: %s, train: {inputs: %s, labels: %s}%s}",
             data_folder, inputs, truth, more);
    return config_of(data);
}

/* Opening must fail with this status; part is in the message. */
static void refuse(const char *inputs, const char *truth, rv_status expected, const char *part) {
    rv_config *config = config_for(inputs, truth, "");
    rv_source source = {0};
    rv_status status = rv_data_open(config, RV_SPLIT_TRAIN, &source);
    if (status != expected || !strstr(rv_error_get()->message, part))
        fail_msg("%s, %s: status %d, \"%s\" without \"%s\"", inputs, truth, status,
                 status ? rv_error_get()->message : "", part);
    assert_null(source.self);
    rv_config_free(config);
}

static void check_values(const rv_source *source, float mean, float std) {
    float data[COUNT * RV_LANES] = {0};
    int32_t label[COUNT] = {0};
    uint64_t sample[COUNT] = {0}, index[COUNT] = {4, 1, 0, 3, 2};
    rv_batch batch = {.B = COUNT, .label = label, .sample = sample};
    batch.input.values = rv_values_of(data, 1, COUNT, PIXELS);
    assert_int_equal(source->count, COUNT);
    assert_int_equal(source->read(source->self, index, COUNT, 0, &batch), RV_OK);
    for (int b = 0; b < COUNT; b++) {
        assert_int_equal(label[b], (int)index[b] % 3);
        assert_int_equal(sample[b], index[b]);
        for (int u = 0; u < RV_LANES; u++) {
            unsigned char byte = u < PIXELS ? images[16 + index[b] * PIXELS + (size_t)u] : 0;
            float expected = u < PIXELS ? ((float)byte / 255.0f - mean) / std : 0;
            assert_true(data[b * RV_LANES + u] == expected);
        }
    }
}

static void file_plain_or_packed_gives_normalized_values(void **state) {
    (void)state;
    static const char *const names[][2] = {{"images", "labels"}, {"images.gz", "labels.gz"}};
    for (int i = 0; i < 2; i++) {
        rv_config *config =
            config_for(names[i][0], names[i][1], ", normalize: {mean: 0.25, std: 0.5}");
        rv_source source;
        assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
        assert_int_equal(source.shape.rank, 3);
        assert_int_equal(source.shape.dim[0], 1);
        assert_int_equal(source.shape.dim[1], ROWS);
        assert_int_equal(source.shape.dim[2], COLUMNS);
        assert_int_equal(source.classes, 10);
        assert_int_equal(source.steps, 0);
        assert_false(source.spikes);
        check_values(&source, 0.25f, 0.5f);
        source.close(source.self);
        assert_int_equal(rv_data_open(config, RV_SPLIT_TEST, &source), RV_OK);
        assert_int_equal(source.count, 0); /* no test files named */
        rv_config_free(config);
    }
}

static void file_of_other_rank_has_its_shape(void **state) {
    (void)state;
    static const uint32_t two[] = {COUNT, PIXELS}, four[] = {COUNT, 2, 3, 1};
    unsigned char flat[sizeof images + 4];
    rv_source source;
    for (int rank = 2; rank <= 4; rank += 2) {
        size_t head = idx_header(flat, rank, rank == 2 ? two : four);
        memcpy(flat + head, images + 16, COUNT * PIXELS);
        put_file("flat", flat, head + COUNT * PIXELS);
        rv_config *config = config_for("flat", "labels", "");
        assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
        assert_int_equal(source.shape.rank, rank == 2 ? 1 : 3);
        assert_int_equal(source.shape.dim[0], rank == 2 ? PIXELS : 2);
        check_values(&source, 0, 1);
        source.close(source.self);
        rv_config_free(config);
    }
}

static void file_missing_is_input(void **state) {
    (void)state;
    refuse("nowhere", "labels", RV_INPUT, "nowhere: cannot open");
    refuse("images", "nowhere", RV_INPUT, "nowhere: cannot open");
    refuse(".", "labels", RV_INPUT, "not a regular file");
}

static void file_that_does_not_fit_is_data(void **state) {
    (void)state;
    unsigned char bad[sizeof images + 1];
    memcpy(bad, labels, sizeof labels);
    bad[8 + 3] = 10;
    put_file("bad", bad, sizeof labels);
    refuse("images", "bad", RV_DATA, "byte 11: label 10 of sample 3; data.classes is 10");
    bad[7] = COUNT - 1;
    put_file("bad", bad, sizeof labels - 1);
    refuse("images", "bad", RV_DATA, "has 5 samples, but");
    refuse("labels", "labels", RV_DATA, "rank 1; samples need");
    refuse("images", "images", RV_DATA, "rank 3; labels need rank 1");
    memcpy(bad, images, sizeof images);
    bad[2] = 9;
    put_file("bad", bad, sizeof images);
    refuse("bad", "labels", RV_DATA, "byte 0: magic number 0x00000903; expected 0x000008");
    bad[2] = 8, bad[3] = 5;
    put_file("bad", bad, sizeof images);
    refuse("bad", "labels", RV_DATA, "magic number 0x00000805");
    memcpy(bad, images, sizeof images);
    put_file("bad", bad, sizeof images + 1);
    refuse("bad", "labels", RV_DATA,
           "more data than the header promises: it should end at byte 46");
    put_packed("bad.gz", bad, sizeof images + 1);
    refuse("bad.gz", "labels", RV_DATA, "more data than the header promises");
    put_file("bad", "", 0);
    refuse("bad", "labels", RV_DATA, "truncated at byte 0 in the header");
    memcpy(bad, images, sizeof images);
    bad[7] = 100; /* samples */
    put_file("bad", bad, sizeof images);
    refuse("bad", "labels", RV_DATA, "promises 600 bytes; a file of 46 bytes cannot hold more");
}

/* gzip knows files of several members, and nothing else behind a member. */
static void file_packed_goes_on_only_with_another_member(void **state) {
    (void)state;
    static const char junk[] = "junk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    unsigned char packed[2048];
    size_t size, rest;
    rv_source source = {0};
    char *whole = get_file(path_to("images.gz"), &size);
    memcpy(packed, whole, size);
    for (size_t more = 1; more < sizeof junk; more++) {
        memcpy(packed + size, junk, more);
        put_file("long.gz", packed, size + more);
        refuse("long.gz", "labels", RV_DATA, "long.gz: damaged gzip data after byte 46: ");
        memset(packed + size, 0, more);
        put_file("long.gz", packed, size + more);
        refuse("long.gz", "labels", RV_DATA, "long.gz: damaged gzip data after byte 46: ");
    }
    free(whole);
    put_packed("first.gz", images, 20);
    put_packed("second.gz", images + 20, sizeof images - 20);
    char *first = get_file(path_to("first.gz"), &size);
    char *second = get_file(path_to("second.gz"), &rest);
    memcpy(packed, first, size);
    memcpy(packed + size, second, rest);
    put_file("parts.gz", packed, size + rest);
    rv_config *config = config_for("parts.gz", "labels", "");
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
    source.close(source.self);
    rv_config_free(config);
    for (size_t cut = size + 1; cut < size + rest; cut++) {
        put_file("parts.gz", packed, cut);
        refuse("parts.gz", "labels", RV_DATA, "parts.gz: ");
    }
    free(second);
    free(first);
}

static void file_truncated_anywhere_is_data(void **state) {
    (void)state;
    size_t size;
    char *packed = get_file(path_to("images.gz"), &size);
    for (size_t cut = 0; cut < sizeof images; cut++) {
        put_file("cut", images, cut);
        refuse("cut", "labels", RV_DATA, "cut: ");
    }
    for (size_t cut = 0; cut < size; cut++) {
        put_file("cut", packed, cut);
        refuse("cut", "labels", RV_DATA, "cut: ");
    }
    free(packed);
}

/* A flipped bit is found, or lies where nothing is said of the data: in the gzip header, or in the
 * bits that fill the last byte of the deflate stream. */
static void file_packed_with_a_flipped_bit_never_lies(void **state) {
    (void)state;
    size_t size;
    int accepted = 0;
    char *packed = get_file(path_to("images.gz"), &size);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        rv_source source = {0};
        packed[bit / 8] ^= (char)(1 << bit % 8);
        put_file("flip", packed, size);
        packed[bit / 8] ^= (char)(1 << bit % 8);
        rv_config *config = config_for("flip", "labels", "");
        rv_status status = rv_data_open(config, RV_SPLIT_TRAIN, &source);
        if (status == RV_OK) {
            assert_true(bit / 8 < 10 || bit / 8 == size - 9);
            check_values(&source, 0, 1);
            source.close(source.self);
            accepted++;
        } else {
            assert_int_equal(status, RV_DATA);
        }
        rv_config_free(config);
    }
    assert_true(accepted > 0 && accepted <= 72);
    free(packed);
}

/* Sizes up to 2^32-1 in each field, in files of a few bytes: refused, and no memory taken. */
static void header_lying_takes_no_memory(void **state) {
    (void)state;
    static const uint32_t sizes[] = {0, 1, 1u << 16, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu};
    enum { SIZES = 6 };
    long before = resident();
    for (int rank = 1; rank <= 4; rank++) {
        for (int code = 0; code < SIZES * SIZES * SIZES * SIZES; code++) {
            uint32_t dim[4];
            unsigned char file[64] = {0};
            int rest = code;
            bool harmless = true;
            for (int i = 0; i < rank; i++, rest /= SIZES) {
                dim[i] = sizes[rest % SIZES];
                harmless = harmless && dim[i] == 1;
            }
            if (rest || harmless) continue;
            size_t size = idx_header(file, rank, dim) + 8;
            bool packed = code % 7 == 0;
            if (packed)
                put_packed("bomb", file, size);
            else
                put_file("bomb", file, size);
            refuse("images", "bomb", RV_DATA, "bomb: ");
        }
    }
    assert_true(resident() - before < GROWTH);
}

/* Well packed zeros: the file could hold what the header says, but does not. */
static void header_beyond_a_packed_payload_takes_little_memory(void **state) {
    (void)state;
    size_t size = 16 + (8 << 20);
    unsigned char *zeros = calloc(size, 1);
    uint32_t dim[] = {4, 2048, 2048};
    long before = resident();
    idx_header(zeros, 3, dim);
    dim[0] = 1;
    put_packed("zeros", zeros, 1 << 20); /* of 16 MiB promised */
    refuse("zeros", "labels", RV_DATA, "bytes");
    dim[1] = 4096; /* all of it there, but one sample is too large */
    idx_header(zeros, 3, dim);
    put_packed("zeros", zeros, size);
    free(zeros);
    refuse("zeros", "labels", RV_DATA, "a sample of 8388608 bytes; at most 4194304 are read");
    assert_true(resident() - before < GROWTH);
}

static void data_described_or_refused(void **state) {
    (void)state;
    rv_data_info info = {0};
    assert_int_equal(rv_data_describe(path_to("images.gz"), &info), RV_OK);
    assert_string_equal(info.format, "idx");
    assert_string_equal(info.type, "uint8");
    assert_int_equal(info.rank, 3);
    assert_int_equal(info.dim[0], COUNT);
    assert_int_equal(info.dim[2], COLUMNS);
    put_file("text", "hello world", 11);
    assert_int_equal(rv_data_describe(path_to("text"), &info), RV_DATA);
    assert_non_null(strstr(rv_error_get()->message, "no reader knows"));
    put_file("cut", images, sizeof images - 1);
    assert_int_equal(rv_data_describe(path_to("cut"), &info), RV_DATA);
    assert_int_equal(rv_data_describe(path_to("nowhere"), &info), RV_INPUT);
    assert_int_equal(rv_data_describe(data_folder, &info), RV_INPUT);
}

static void digest_changes_with_contents_not_with_paths(void **state) {
    (void)state;
    char plain[17], packed[17], moved[17], changed[17], parts[17];
    unsigned char other[sizeof images];
    char *one = NULL, *two = NULL;
    size_t size_one = 0, size_two = 0;
    rv_config *config = config_for("images", "labels", "");
    assert_int_equal(rv_config_digest(config, plain), RV_OK);
    rv_config_free(config);
    config = config_for("images.gz", "labels.gz", "");
    assert_int_equal(rv_config_digest(config, packed), RV_OK);
    rv_config_free(config);
    assert_string_equal(plain, packed);
    put_file("elsewhere", images, sizeof images);
    config = config_for("elsewhere", "labels", "");
    assert_int_equal(rv_config_digest(config, moved), RV_OK);
    rv_config_free(config);
    memcpy(other, images, sizeof other);
    other[20] ^= 1;
    put_file("elsewhere", other, sizeof other);
    config = config_for("elsewhere", "labels", "");
    assert_int_equal(rv_config_digest(config, changed), RV_OK);
    rv_config_free(config);
    /* Two members: the trailer of the last is not that of the whole. */
    put_packed("one.gz", images, 20);
    put_packed("two.gz", images + 20, sizeof images - 20);
    one = get_file(path_to("one.gz"), &size_one), two = get_file(path_to("two.gz"), &size_two);
    memcpy(one + size_one, two, size_two); /* get_file leaves room */
    put_file("parts.gz", one, size_one + size_two);
    free(one), free(two);
    config = config_for("parts.gz", "labels", "");
    assert_int_equal(rv_config_digest(config, parts), RV_OK);
    rv_config_free(config);
    put_packed("other.gz", other, sizeof other);
    config = config_for("other.gz", "labels", "");
    assert_int_equal(rv_config_digest(config, packed), RV_OK);
    rv_config_free(config);
    assert_string_equal(changed, packed);
    assert_string_equal(plain, parts);
    assert_string_equal(plain, moved);
    assert_string_not_equal(plain, changed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_plain_or_packed_gives_normalized_values),
        cmocka_unit_test(file_of_other_rank_has_its_shape),
        cmocka_unit_test(file_missing_is_input),
        cmocka_unit_test(file_that_does_not_fit_is_data),
        cmocka_unit_test(file_packed_goes_on_only_with_another_member),
        cmocka_unit_test(file_truncated_anywhere_is_data),
        cmocka_unit_test(file_packed_with_a_flipped_bit_never_lies),
        cmocka_unit_test(header_lying_takes_no_memory),
        cmocka_unit_test(header_beyond_a_packed_payload_takes_little_memory),
        cmocka_unit_test(data_described_or_refused),
        cmocka_unit_test(digest_changes_with_contents_not_with_paths),
    };
    return cmocka_run_group_tests(tests, make, folder_teardown);
}
