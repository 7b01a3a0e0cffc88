/* Augmented training samples: what each row does, what it is keyed by, where it does not apply. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/data_files.h"

enum { C = 2, H = 3, W = 5, UNITS = C * H * W, N = 64, STEPS = 2 };

/* Every pixel of every sample and frame has a value of its own; nothing is 0. */
static float pixel(uint64_t sample, int t, int c, int y, int x) {
    return (float)(1 + x + W * (y + H * (c + C * (t + STEPS * (int)sample))));
}

static rv_status image_read(void *self, const uint64_t *index, int count, uint32_t epoch,
                            rv_batch *batch) {
    rv_values v = batch->input.values;
    (void)self, (void)epoch;
    for (int b = 0; b < count; b++) {
        for (int t = 0; t < v.T; t++)
            for (int u = 0; u < UNITS; u++)
                v.data[(size_t)t * v.stride_t + (size_t)b * (size_t)v.ld + (size_t)u] =
                    pixel(index[b], t, u / W / H, u / W % H, u % W);
        ((int32_t *)batch->label)[b] = 0;
        ((uint64_t *)batch->sample)[b] = index[b];
    }
    return RV_OK;
}

static rv_source images(int steps) {
    return (rv_source){
        .count = N, .shape = {3, {C, H, W}}, .classes = 2, .steps = steps, .read = image_read};
}

static rv_config *augmented(const char *list) {
    char data[256];
    snprintf(data, sizeof data,
             "{reader: bernoulli, normalize: {mean: 0.5, std: 0.25}, augment: %s}", list);
    return config_of(data);
}

/* All samples of an epoch by number: [N][STEPS][UNITS]. */
static void walk(const rv_source *source, const rv_config *config, int size, uint32_t epoch,
                 int64_t from, float *out) {
    rv_loader *loader = NULL;
    const rv_batch *batch = NULL;
    int frames = source->steps ? source->steps : 1;
    assert_int_equal(rv_loader_create(source, size, config->seed, true, &loader), RV_OK);
    assert_int_equal(rv_loader_augment(loader, config), RV_OK);
    assert_int_equal(rv_loader_start(loader, epoch, from), RV_OK);
    for (;;) {
        assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
        if (!batch) break;
        rv_values v = batch->input.values;
        for (int b = 0; b < batch->B; b++)
            for (int t = 0; t < frames; t++) {
                const float *row = v.data + (size_t)t * v.stride_t + (size_t)b * (size_t)v.ld;
                memcpy(out + ((size_t)batch->sample[b] * STEPS + (size_t)t) * UNITS, row,
                       UNITS * sizeof *out);
                for (int u = UNITS; u < v.ld; u++) /* padding stays zero */
                    assert_true(row[u] == 0);
            }
    }
    rv_loader_destroy(loader);
}

/* The move of a sample, told by one of its frames; -1 when it is none. */
static int move_of(const float *frame, uint64_t sample, int t, int most) {
    for (int down = -most; down <= most; down++)
        for (int right = -most; right <= most; right++) {
            bool same = true;
            for (int u = 0; u < UNITS && same; u++) {
                int c = u / W / H, y = u / W % H - down, x = u % W - right;
                bool inside = y >= 0 && y < H && x >= 0 && x < W;
                same = frame[u] == (inside ? pixel(sample, t, c, y, x) : -2.0f);
            }
            if (same) return (down + most) * (2 * most + 1) + right + most;
        }
    return -1;
}

static void shift_moves_all_frames_alike_and_fills_with_black(void **state) {
    (void)state;
    static float out[N * STEPS * UNITS];
    rv_config *config = augmented("[{kind: shift, pixels: 1}]");
    rv_source source = images(STEPS);
    int seen[9] = {0};
    walk(&source, config, 7, 3, 0, out);
    for (uint64_t i = 0; i < N; i++) {
        int move = move_of(out + i * STEPS * UNITS, i, 0, 1);
        assert_in_range(move, 0, 8);
        assert_int_equal(move_of(out + (i * STEPS + 1) * UNITS, i, 1, 1), move);
        seen[move]++;
    }
    for (int k = 0; k < 9; k++) /* 7 expected of each */
        assert_in_range(seen[k], 1, 18);
    rv_config_free(config);
}

static void flip_mirrors_its_share(void **state) {
    (void)state;
    static float out[N * STEPS * UNITS];
    static const struct {
        const char *list;
        int least, most;
    } cases[] = {{"[{kind: flip, p: 0.0}]", 0, 0},
                 {"[{kind: flip, p: 1.0}]", N, N},
                 {"[flip]", 20, 44}}; /* three deviations */
    rv_source source = images(0);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rv_config *config = augmented(cases[k].list);
        int flipped = 0;
        walk(&source, config, 8, 1, 0, out);
        for (uint64_t i = 0; i < N; i++) {
            const float *frame = out + i * STEPS * UNITS;
            bool mirrored = frame[0] != pixel(i, 0, 0, 0, 0);
            for (int u = 0; u < UNITS; u++)
                assert_true(frame[u] ==
                            pixel(i, 0, u / W / H, u / W % H, mirrored ? W - 1 - u % W : u % W));
            flipped += mirrored;
        }
        assert_in_range(flipped, cases[k].least, cases[k].most);
        rv_config_free(config);
    }
}

static void draws_are_keyed_by_seed_epoch_and_sample(void **state) {
    (void)state;
    static float a[N * STEPS * UNITS], b[N * STEPS * UNITS];
    rv_config *config = augmented("[{kind: shift, pixels: 1}, {kind: flip}]");
    rv_source source = images(0);
    walk(&source, config, 8, 5, 0, a);
    walk(&source, config, 3, 5, 0, b); /* other batches, the same samples */
    assert_memory_equal(a, b, sizeof a);
    walk(&source, config, 8, 5, 4, b); /* resumed: what is left is the same, b keeps the others */
    assert_memory_equal(a, b, sizeof a);
    walk(&source, config, 8, 6, 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    config->seed++;
    walk(&source, config, 8, 5, 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    rv_config_free(config);
}

/* Each place in the list draws for itself: two mirrors do not always cancel. */
static void draws_of_two_rows_are_independent(void **state) {
    (void)state;
    static float out[N * STEPS * UNITS];
    rv_config *config = augmented("[flip, flip]");
    rv_source source = images(0);
    int flipped = 0;
    walk(&source, config, 8, 1, 0, out);
    for (uint64_t i = 0; i < N; i++)
        flipped += out[i * STEPS * UNITS] != pixel(i, 0, 0, 0, 0);
    assert_in_range(flipped, 20, 44);
    rv_config_free(config);
}

static void first_samples_are_never_changed(void **state) {
    (void)state;
    rv_config *config = augmented("[{kind: flip, p: 1.0}]");
    rv_source source = images(0);
    rv_loader *loader = NULL;
    const rv_batch *batch = NULL;
    assert_int_equal(rv_loader_create(&source, 4, 1, true, &loader), RV_OK);
    assert_int_equal(rv_loader_augment(loader, config), RV_OK);
    assert_int_equal(rv_loader_first(loader, 4, &batch), RV_OK);
    for (int b = 0; b < 4; b++)
        for (int u = 0; u < UNITS; u++)
            assert_true(batch->input.values.data[b * batch->input.values.ld + u] ==
                        pixel((uint64_t)b, 0, u / W / H, u / W % H, u % W));
    rv_loader_destroy(loader);
    rv_config_free(config);
}

static void samples_that_are_no_images_are_refused(void **state) {
    (void)state;
    rv_config *config = augmented("[flip]");
    rv_source row = {.count = N, .shape = {1, {UNITS}}, .classes = 2, .read = image_read};
    rv_source bits = images(STEPS), *sources[] = {&row, &bits};
    bits.spikes = true;
    for (int k = 0; k < 2; k++) {
        rv_loader *loader = NULL;
        assert_int_equal(rv_loader_create(sources[k], 4, 1, true, &loader), RV_OK);
        assert_int_equal(rv_loader_augment(loader, config), RV_CONFIG);
        assert_string_equal(rv_error_get()->key, "data.augment");
        assert_int_equal(rv_error_get()->line, 2);
        rv_loader_destroy(loader);
    }
    rv_config_free(config);
}

static void recipe_resolved_keeps_the_list(void **state) {
    (void)state;
    rv_config *config = augmented("[{kind: shift, pixels: 3}, flip]"), *again = NULL;
    char *text = NULL, one[17], two[17];
    assert_int_equal(config->data.augment_count, 2);
    assert_int_equal(rv_config_text(config, &text), RV_OK);
    assert_non_null(strstr(text, "pixels: 3"));
    assert_int_equal(rv_config_parse(text, strlen(text), "again", &again), RV_OK);
    assert_int_equal(rv_config_digest(config, one), RV_OK);
    assert_int_equal(rv_config_digest(again, two), RV_OK);
    assert_string_equal(one, two);
    rv_config_free(again);
    again = augmented("[{kind: shift, pixels: 2}, flip]");
    assert_int_equal(rv_config_digest(again, two), RV_OK);
    assert_string_not_equal(one, two);
    rv_config_free(again), rv_config_free(config), rv_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shift_moves_all_frames_alike_and_fills_with_black),
        cmocka_unit_test(flip_mirrors_its_share),
        cmocka_unit_test(draws_are_keyed_by_seed_epoch_and_sample),
        cmocka_unit_test(draws_of_two_rows_are_independent),
        cmocka_unit_test(first_samples_are_never_changed),
        cmocka_unit_test(samples_that_are_no_images_are_refused),
        cmocka_unit_test(recipe_resolved_keeps_the_list),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
