/* Base services: status text, errors, sizes, memory, arena, tables, Philox, denormals, faults. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base.h"

static void status_text_known_and_unknown_never_null(void **state) {
    (void)state;
    assert_string_equal(rv_status_text(RV_MEMORY), "out of memory");
    assert_int_equal(RV_CONFIG, 78);
    assert_string_equal(rv_status_text((rv_status)12345), "unknown status");
}

static void *fail_elsewhere(void *argument) {
    (void)argument;
    (void)rv_fail(RV_IO, "another thread");
    return NULL;
}

static void error_in_another_thread_leaves_ours(void **state) {
    (void)state;
    pthread_t thread;
    rv_where where = {"recipe.yaml", 14, 9};
    rv_status status =
        rv_fail_at(RV_CONFIG, where, "treshold", "threshold", "unknown key \"%s\"", "treshold");
    assert_int_equal(status, RV_CONFIG);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    const rv_error *error = rv_error_get();
    assert_int_equal(error->status, RV_CONFIG);
    assert_string_equal(error->message, "unknown key \"treshold\"");
    assert_string_equal(error->file, "recipe.yaml");
    assert_int_equal(error->line, 14);
    assert_int_equal(error->column, 9);
    assert_string_equal(error->key, "treshold");
    assert_string_equal(error->hint, "threshold");
}

static void error_wrapping_its_own_message_keeps_it(void **state) {
    (void)state;
    char text[2000];
    (void)rv_fail(RV_DATA, "inner");
    (void)rv_fail(RV_DATA, "outer: %s", rv_error_get()->message);
    assert_string_equal(rv_error_get()->message, "outer: inner");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)rv_fail(RV_DATA, "%s", text);
    assert_int_equal(strlen(rv_error_get()->message), sizeof rv_error_get()->message - 1);
    rv_error copy = {.status = RV_PEER, .message = "copied"};
    rv_error_set(&copy);
    assert_string_equal(rv_error_get()->message, "copied");
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    size_t out = 0;
    void *memory = NULL;
    assert_int_equal(rv_size_mul(6, 7, &out), RV_OK);
    assert_int_equal(out, 42);
    assert_int_equal(rv_size_mul(SIZE_MAX / 2, 3, &out), RV_MEMORY);
    assert_int_equal(rv_size_add(SIZE_MAX, 1, &out), RV_MEMORY);
    assert_int_equal(rv_alloc(SIZE_MAX / 4, 8, "a test", &memory), RV_MEMORY);
    assert_int_equal(rv_alloc(SIZE_MAX - 8, 1, "a test", &memory), RV_MEMORY);
    assert_int_equal(rv_alloc((size_t)1 << 60, 1, "a huge test", &memory), RV_MEMORY);
    assert_non_null(strstr(rv_error_get()->message, "a huge test"));
    assert_null(memory);
}

static void memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    for (size_t size = 0; size < 300; size += 37) {
        unsigned char *memory = NULL;
        assert_int_equal(rv_alloc(size, 1, "a test", &memory), RV_OK);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(memory[i], 0);
        memset(memory, 255, size); /* so that a block taken again is dirty */
        rv_free(memory);
    }
    char *text = NULL;
    assert_int_equal(rv_strdup("spike", &text), RV_OK);
    assert_string_equal(text, "spike");
    rv_free(text);
    rv_free(NULL);
}

/* A neighbour of the block shares its first and last page. */
static void memory_idle_gives_back_whole_pages_only(void **state) {
    (void)state;
    enum { PAGES = 6 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = PAGES * page;
    unsigned char *memory = NULL, there[PAGES];
    assert_int_equal(rv_alloc(size + page, 1, "a test", &memory), RV_OK);
    unsigned char *first = memory + (-(uintptr_t)memory & (page - 1)); /* of a page */
    memset(first, 255, size);
    rv_idle(first + 1, 10);
    rv_idle(first + page / 2, size - page);
    assert_int_equal(mincore(first, size, there), 0);
    for (int p = 0; p < PAGES; p++)
        assert_int_equal(there[p] & 1, p == 0 || p == PAGES - 1);
    for (size_t i = 0; i < page; i++)
        assert_true(first[i] == 255 && first[size - page + i] == 255);
    memset(first, 1, size); /* and can be used again */
    assert_int_equal(first[size / 2], 1);
    rv_free(memory);
}

static void words_apart_by_edits_are_counted(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {
        {"", "", 0},          {"", "abc", 3},      {"beta", "beta", 0}, {"beta", "bta", 1},
        {"beta", "beeta", 1}, {"beta", "zeta", 1}, {"lr", "rl", 1}, /* neighbours exchanged: one
                                                                       edit, not two */
        {"ca", "abc", 3}, /* what was exchanged is not edited again */
    };
    char longer[66];
    memset(longer, 'a', sizeof longer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t a = strlen(cases[i].a), b = strlen(cases[i].b);
        assert_int_equal(rv_edit_distance(cases[i].a, a, cases[i].b, b), cases[i].distance);
        assert_int_equal(rv_edit_distance(cases[i].b, b, cases[i].a, a), cases[i].distance);
    }
    assert_int_equal(rv_edit_distance(longer, 64, longer, 64), 0);
    assert_int_equal(rv_edit_distance(longer, 65, "a", 1), INT_MAX);
}

static void arena_nested_scratch_keeps_what_lies_below(void **state) {
    (void)state;
    rv_arena arena = {0};
    unsigned char *kept = NULL, *inner = NULL;
    assert_int_equal(rv_arena_get(&arena, 1000, 1, &kept), RV_OK);
    memset(kept, 7, 1000);
    size_t mark = rv_arena_mark(&arena);
    for (int round = 0; round < 5; round++) {
        for (size_t size = 1000; size < 4000000; size *= 3) {
            assert_int_equal(rv_arena_get(&arena, size, 1, &inner), RV_OK);
            assert_int_equal((uintptr_t)inner % 64, 0);
            memset(inner, 9, size);
        }
        rv_arena_release(&arena, mark);
        assert_int_equal(rv_arena_mark(&arena), mark);
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(kept[i], 7);
    rv_arena_release(&arena, 0);
    assert_int_equal(arena.used, 0);
    rv_arena_finish(&arena);
    assert_null(arena.block);
}

static void arena_after_first_items_is_one_block(void **state) {
    (void)state;
    rv_arena arena = {0};
    void *first = NULL, *again = NULL, *memory = NULL;
    for (int item = 0; item < 4; item++) {
        assert_int_equal(rv_arena_get(&arena, 100000, 1, item == 2 ? &first : &again), RV_OK);
        for (int i = 0; i < 50; i++)
            assert_int_equal(rv_arena_get(&arena, 30000, 1, &memory), RV_OK);
        rv_arena_reset(&arena);
        if (item > 0) assert_non_null(arena.block); /* kept, not allocated anew */
        assert_int_equal(arena.used, 0);
    }
    assert_ptr_equal(first, again); /* the same block serves every later item */
    rv_arena_finish(&arena);
    rv_arena_finish(NULL);
}

typedef struct options {
    bool flag;
    int count, choice, pair[2];
    double real;
    rv_reals reals;
    const char *text;
    rv_choice row;
} options;

static void specs_default_fills_every_type(void **state) {
    (void)state;
    static const rv_row rows[] = {{.name = "first"}, {.name = "second"}};
    static const rv_table table = {"tests", rows, sizeof rows[0], 2};
    static const rv_spec specs[] = {
        {.name = "flag", .type = RV_T_BOOL, .offset = offsetof(options, flag), .initial = 1},
        {.name = "count", .type = RV_T_INT, .offset = offsetof(options, count), .initial = 3},
        {.name = "choice", .type = RV_T_CHOICE, .offset = offsetof(options, choice), .initial = 2},
        {.name = "pair", .type = RV_T_PAIR, .offset = offsetof(options, pair), .initial = 5},
        {.name = "real", .type = RV_T_REAL, .offset = offsetof(options, real), .initial = NAN},
        {.name = "reals", .type = RV_T_REALS, .offset = offsetof(options, reals), .initial = 0.5},
        {.name = "text", .type = RV_T_TEXT, .offset = offsetof(options, text), .choices = "t"},
        {.name = "row",
         .type = RV_T_ROW,
         .offset = offsetof(options, row),
         .table = &table,
         .choices = "second"},
        {0},
    };
    options o;
    memset(&o, 0xAA, sizeof o);
    rv_specs_default(specs, &o);
    assert_true(o.flag);
    assert_int_equal(o.count, 3);
    assert_int_equal(o.choice, 2);
    assert_int_equal(o.pair[0] + o.pair[1], 10);
    assert_true(isnan(o.real));
    assert_int_equal(o.reals.count, 1);
    assert_ptr_equal(o.reals.data, &o.reals.value);
    assert_true(o.reals.data[0] == 0.5f);
    assert_string_equal(o.text, "t");
    assert_ptr_equal(o.row.row, &rows[1]);
    assert_null(o.row.options);
    assert_int_equal(rv_table_index(&table, o.row.row), 1);
    assert_int_equal(rv_table_index(&table, NULL), -1);
    assert_null(rv_table_find(&table, "third"));
}

/* Known answers of Random123's kat_vectors, philox4x32 with 10 rounds. */
static void philox_known_vectors_equal(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t out[4];
    } known[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         0xffffffffffffffff,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        rv_philox(out, known[i].counter, known[i].key);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    assert_true(rv_uniform(0) == 0.0f);
    assert_true(rv_uniform(UINT32_MAX) < 1.0f);
}

static void random_purpose_layer_and_epoch_give_other_words(void **state) {
    (void)state;
    uint32_t a[4], b[4];
    rv_random4(a, 1, RV_FOR_ENCODE, 0, 0, 5, 6, 7);
    rv_random4(b, 1, RV_FOR_DROPOUT, 0, 0, 5, 6, 7);
    assert_memory_not_equal(a, b, sizeof a);
    rv_random4(b, 1, RV_FOR_ENCODE, 1, 0, 5, 6, 7);
    assert_memory_not_equal(a, b, sizeof a);
    rv_random4(b, 1, RV_FOR_ENCODE, 0, 1, 5, 6, 7);
    assert_memory_not_equal(a, b, sizeof a);
}

static void flush_set_and_restored_changes_denormals(void **state) {
    (void)state;
    volatile float least = FLT_MIN, half = 0.5f;
    unsigned mode = rv_flush_set();
#if defined(__x86_64__) || defined(__aarch64__)
    assert_true(least * half == 0.0f);
#endif
    unsigned inner = rv_flush_set();
    rv_flush_restore(inner);
#if defined(__x86_64__) || defined(__aarch64__)
    assert_true(least * half == 0.0f); /* nested use leaves the outer mode */
#endif
    rv_flush_restore(mode);
    assert_true(least * half > 0.0f);
}

#ifdef RV_FAULTS
static void fault_nth_allocation_fails_once_or_from_then_on(void **state) {
    (void)state;
    for (int sticky = 0; sticky < 2; sticky++) {
        rv_fault_arm(RV_FAULT_ALLOC, 2, sticky);
        for (int call = 0; call < 5; call++) {
            void *memory = NULL;
            rv_status expect = (sticky ? call >= 2 : call == 2) ? RV_MEMORY : RV_OK;
            assert_int_equal(rv_alloc(8, 8, "a test", &memory), expect);
            rv_free(memory);
        }
        assert_int_equal(rv_fault_count(RV_FAULT_ALLOC), 5);
        assert_false(rv_fault(RV_FAULT_WRITE));
    }
    rv_fault_arm(RV_FAULT_ALLOC, 0, false);
    rv_arena arena = {0};
    void *memory = NULL;
    assert_int_equal(rv_arena_get(&arena, 1, 1, &memory), RV_MEMORY);
    rv_fault_arm(RV_FAULT_ALLOC, -1, false);
    assert_int_equal(rv_arena_get(&arena, 1, 1, &memory), RV_OK);
    rv_arena_finish(&arena);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_text_known_and_unknown_never_null),
        cmocka_unit_test(error_in_another_thread_leaves_ours),
        cmocka_unit_test(error_wrapping_its_own_message_keeps_it),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(memory_idle_gives_back_whole_pages_only),
        cmocka_unit_test(words_apart_by_edits_are_counted),
        cmocka_unit_test(arena_nested_scratch_keeps_what_lies_below),
        cmocka_unit_test(arena_after_first_items_is_one_block),
        cmocka_unit_test(specs_default_fills_every_type),
        cmocka_unit_test(philox_known_vectors_equal),
        cmocka_unit_test(random_purpose_layer_and_epoch_give_other_words),
        cmocka_unit_test(flush_set_and_restored_changes_denormals),
#ifdef RV_FAULTS
        cmocka_unit_test(fault_nth_allocation_fails_once_or_from_then_on),
#endif
    };
    return cmocka_run_group_tests_name("kernels_base", tests, NULL, NULL);
}
