/*
 * Damaged model files through the loader's own entry: every damage is found or without effect,
 * never a crash, a hang or a silently wrong model.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "data/model.h"
#include "tests/scale.h"
#include "tests/spawn.h"

/* HDF5 1.10 forgets the object header it was reading when the header's checksum is wrong. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5\n";
}

static char *good; /* bytes of a checkpoint */
static size_t good_size;
static rv_model *good_model;
static int found, harmless;
static double slowest;

static int enter(void **state) {
    char path[256];
    if (group_setup(state) != 0) return -1;
    if (!rv_h5_available()) return 0;
    snprintf(path, sizeof path, "%s", in_folder("model/last.h5"));
    if (RUN("train", "recipe.yaml", "-q", "-o", "model", "--set", "network.hidden.units=5", "--set",
            "train.max_steps=2") != 0)
        return -1;
    return rv_read_file(path, SIZE_MAX - 1, &good, &good_size) == RV_OK &&
                   rv_model_read(good, good_size, "good", &good_model) == RV_OK
               ? 0
               : -1;
}

static int leave(void **state) {
    rv_model_close(good_model);
    rv_free(good);
    return group_teardown(state);
}

/* Everything a reader could ask for, to the bit. */
static bool same_content(const rv_model *model) {
    const rv_h5_list *a = &good_model->list, *b = &model->list;
    bool same = a->count == b->count && strcmp(good_model->config, model->config) == 0;
    for (int i = 0; same && i < a->count; i++) {
        const rv_h5_item *item = &a->items[i];
        const rv_h5_item *other = rv_h5_find(b, item->path, item->attribute, item->type);
        same = other && other->count == item->count && other->rank == item->rank &&
               memcmp(other->dim, item->dim, (size_t)item->rank * sizeof *item->dim) == 0 &&
               memcmp(other->data, item->data, rv_h5_size(item)) == 0;
    }
    return same;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void try(const char *bytes, size_t size, const char *what, size_t where) {
    rv_model *model = NULL;
    double begun = now();
    rv_status status = rv_model_read(bytes, size, "mutant", &model);
    double took = now() - begun;
    if (took > slowest) slowest = took;
    if (took > 2) fail_msg("%s at %zu: %.1f s", what, where, took);
    if (status == RV_OK && !same_content(model)) fail_msg("%s at %zu: silently wrong", what, where);
    if (status != RV_OK && status != RV_DATA)
        fail_msg("%s at %zu: %d %s", what, where, status, rv_error_get()->message);
    status == RV_OK ? harmless++ : found++;
    rv_model_close(model);
}

static uint32_t random_next(void) {
    static uint32_t seed = 2463534242u;
    seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
    return seed;
}

/* One kind of damage to a copy; returns the size that is left. */
static size_t damage(int kind, char *bytes, size_t size, size_t *where) {
    static const unsigned char odd[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe, 0x40, 0x20};
    size_t at = random_next() % size;
    *where = at;
    if (kind == 0) {
        bytes[at] ^= (char)(1 << random_next() % 8);
    } else if (kind == 1) {
        bytes[at] = (char)odd[random_next() % sizeof odd];
    } else if (kind == 2) {
        return at;
    } else if (kind == 3) {
        at = at / 512 * 512;
        memset(bytes + at, 0, size - at < 512 ? size - at : 512);
    } else { /* where the structure is */
        at = random_next() % (size < 4096 ? size - 4 : 4092);
        *where = at;
        for (int i = 0; i < 4; i++)
            bytes[at + (size_t)i] = (char)random_next();
    }
    return size;
}

static void mutants_are_found_or_harmless(void **state) {
    (void)state;
    static const char *const kinds[] = {"a flipped bit", "an odd byte", "a cut", "a lost block",
                                        "four random bytes"};
    if (!rv_h5_available()) skip();
    char *bytes = malloc(good_size);
    int count = scaled(FULL_MUTANTS, 500);
    size_t where;
    assert_non_null(bytes);
    found = harmless = 0;
    for (int i = 0; i < count; i++) {
        memcpy(bytes, good, good_size);
        size_t size = damage(i % 5, bytes, good_size, &where);
        try(bytes, size, kinds[i % 5], where);
    }
    free(bytes);
    print_message("           %d mutants of %zu bytes: %d found, %d harmless, slowest %.0f ms\n",
                  count, good_size, found, harmless, 1e3 * slowest);
    assert_true(found > harmless);
}

static void single_bits_are_found_or_harmless(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    char *bytes = malloc(good_size);
    size_t step = (size_t)stride() == 1 ? 1 : 7 * (size_t)stride(); /* 7: every bit in turn */
    assert_non_null(bytes);
    memcpy(bytes, good, good_size);
    found = harmless = 0;
    for (size_t bit = 0; bit < 8 * good_size; bit += step) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        try(bytes, good_size, "bit", bit);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    free(bytes);
    print_message("           %d bits of %zu: %d found, %d harmless\n", found + harmless,
                  8 * good_size, found, harmless);
    assert_true(found > harmless);
}

/* The program itself: 65, or 0 where nothing was changed. */
static void mutants_through_check_are_65(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    char *bytes = malloc(good_size);
    int count = scaled(FULL_CHECKS, 5);
    size_t where;
    rv_model *model = NULL;
    assert_non_null(bytes);
    for (int i = 0; i < count; i++) {
        memcpy(bytes, good, good_size);
        size_t size = damage(i % 5, bytes, good_size, &where);
        rv_status expected = rv_model_read(bytes, size, "mutant", &model);
        rv_model_close(model);
        model = NULL;
        tiny_put(in_folder("mutant.h5"), bytes, size);
        int code = RUN("check", "mutant.h5");
        /* A cut or a changed signature: no model any more, but nothing else either. */
        if (code != (expected == RV_OK ? 0 : 65)) fail_msg("%d: %d: %s", i, code, err_text);
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutants_are_found_or_harmless),
        cmocka_unit_test(single_bits_are_found_or_harmless),
        cmocka_unit_test(mutants_through_check_are_65),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
