/* YAML trees: places, limits, what is refused, assignments. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/data.h"

static rv_node *parse(const char *text) {
    rv_node *tree = NULL;
    assert_int_equal(rv_tree_parse(text, strlen(text), "t.yaml", &tree), RV_OK);
    return tree;
}

static void refuse(const char *text, size_t size, int line, int column, const char *part) {
    rv_node *tree = NULL;
    assert_int_equal(rv_tree_parse(text, size, "t.yaml", &tree), RV_CONFIG);
    assert_null(tree);
    const rv_error *error = rv_error_get();
    assert_string_equal(error->file, "t.yaml");
    if (!strstr(error->message, part)) fail_msg("\"%s\" lacks \"%s\"", error->message, part);
    assert_int_equal(error->line, line);
    assert_int_equal(error->column, column);
}

static void tree_nested_keeps_places_and_quotes(void **state) {
    (void)state;
    rv_node *tree = parse("a: 1\nb:\n  c: 'x'\n  d: [2, {e: \"\"}]\n");
    rv_node *b = rv_tree_get(tree, "b"), *c = rv_tree_get(b, "c"), *d = rv_tree_get(b, "d");
    assert_string_equal(rv_tree_get(tree, "a")->text, "1");
    assert_false(rv_tree_get(tree, "a")->quoted);
    assert_true(rv_tree_get(tree, "a")->used);
    assert_true(c->quoted);
    assert_int_equal(c->where.line, 3);
    assert_int_equal(c->where.column, 3);
    assert_string_equal(c->where.file, "t.yaml");
    assert_int_equal(d->count, 2);
    assert_int_equal(d->items[1]->where.column, 10);
    assert_string_equal(rv_tree_get(d->items[1], "e")->text, "");
    assert_null(rv_tree_get(tree, "c"));
    assert_null(rv_tree_get(c, "c"));
    assert_null(rv_tree_get(NULL, "c"));
    rv_tree_free(tree);
}

static void tree_malformed_names_place(void **state) {
    (void)state;
    refuse("a: 1\nb: [1, 2\n", 13, 3, 1, "malformed YAML");
    refuse("a: 1\n b: 2\n", 11, 2, 3, "malformed YAML");
    refuse("", 0, 1, 1, "nothing in it");
    refuse("# only a comment\n", 17, 1, 1, "nothing in it");
    refuse("a: 1\n---\nb: 2\n", 14, 2, 1, "second document");
    refuse("a: \"\\0\"\n", 8, 1, 4, "NUL");
    refuse("a: \xff\n", 5, 1, 1, "malformed YAML");
}

static void tree_forbidden_constructs_are_refused(void **state) {
    (void)state;
    refuse("a: &x 1\nb: *x\n", 14, 1, 4, "anchors");
    refuse("b: *x\n", 6, 1, 4, "aliases");
    refuse("a: !!str 1\n", 11, 1, 4, "tags");
    refuse("&k a: 1\n", 8, 1, 1, "anchors");
    refuse("[a]: 1\n", 7, 1, 1, "key must be text");
    refuse("a: 1\nb: 2\na: 3\n", 15, 3, 1, "appears twice (first in line 1)");
}

/* "[[[...]]]" of this depth. */
static char *nested(int depth) {
    char *text = calloc(2 * (size_t)depth + 1, 1);
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    return text;
}

static void tree_beyond_limits_is_refused(void **state) {
    (void)state;
    char *deep = nested(34), *fits = nested(33), *large = malloc(3 << 20), *at = large;
    rv_tree_free(parse(fits));
    refuse(deep, strlen(deep), 1, 34, "nested deeper than 32");
    memset(large, ' ', (1 << 20) + 1);
    refuse(large, (1 << 20) + 1, 1, 1, "larger than 1048576 bytes");
    *at++ = '[';
    for (int i = 0; i < 140000; i++)
        *at++ = '1', *at++ = ',';
    *at++ = ']';
    refuse(large, (size_t)(at - large), 1, 262144, "more than 131072 values");
    at = large;
    for (int i = 0; i < 300; i++)
        at += sprintf(at, "k%d: 1\n", i);
    refuse(large, (size_t)(at - large), 257, 1, "more than 256 keys");
    free(large), free(fits), free(deep);
}

static void text_with_byte_order_mark_is_read(void **state) {
    (void)state;
    rv_node *tree = parse("\xEF\xBB\xBFseed: 1\n");
    assert_string_equal(rv_tree_get(tree, "seed")->text, "1");
    assert_int_equal(rv_tree_get(tree, "seed")->where.column, 1);
    rv_tree_free(tree);
}

static void set_path_reaches_maps_and_named_entries(void **state) {
    (void)state;
    rv_node *tree = parse("network:\n- {name: hidden, units: 8}\n- {name: out}\ntrain: {}\nx: ~\n");
    rv_node *list = rv_tree_get(tree, "network");
    assert_int_equal(rv_tree_set(tree, "network.hidden.units=16"), RV_OK);
    assert_string_equal(rv_tree_get(list->items[0], "units")->text, "16");
    assert_int_equal(rv_tree_set(tree, "network.1.surrogate.kind=atan"), RV_OK);
    assert_string_equal(rv_tree_get(rv_tree_get(list->items[1], "surrogate"), "kind")->text,
                        "atan");
    assert_int_equal(rv_tree_set(tree, "train.epochs=3"), RV_OK);
    assert_string_equal(rv_tree_get(rv_tree_get(tree, "train"), "epochs")->text, "3");
    assert_int_equal(rv_tree_set(tree, "x.y.z=a=b: c"), RV_OK);
    rv_node *z = rv_tree_get(rv_tree_get(rv_tree_get(tree, "x"), "y"), "z");
    assert_string_equal(z->text, "a=b: c");
    assert_string_equal(z->where.file, "--set");
    assert_int_equal(z->where.line, 0);
    assert_int_equal(rv_tree_set(tree, "x=[1, {k: 'v'}]"), RV_OK);
    assert_int_equal(rv_tree_get(tree, "x")->count, 2);
    rv_node *k = rv_tree_get(rv_tree_get(tree, "x")->items[1], "k");
    assert_true(k->quoted);
    assert_string_equal(k->where.file, "--set");
    assert_int_equal(k->where.line, 0);
    assert_int_equal(list->where.line, 1); /* what was not set keeps its place */
    rv_tree_free(tree);
}

static void set_wrong_path_is_usage(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "a", "=1", ".a=1", "a.=1", "a..b=1", "network.hiden.units=1", "seed.x=1", "a=[1", "a={",
    };
    rv_node *tree = parse("network:\n- {name: hidden}\nseed: 1\n");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (rv_tree_set(tree, wrong[i]) != RV_USAGE) fail_msg("accepted: %s", wrong[i]);
        if (i == 5) assert_string_equal(rv_error_get()->hint, "hidden");
    }
    rv_tree_free(tree);
}

static void load_missing_or_folder_is_input(void **state) {
    (void)state;
    rv_node *tree = NULL;
    assert_int_equal(rv_tree_load("/nowhere/at.yaml", &tree), RV_INPUT);
    assert_int_equal(rv_tree_load("/tmp", &tree), RV_INPUT);
    assert_null(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_nested_keeps_places_and_quotes),
        cmocka_unit_test(tree_malformed_names_place),
        cmocka_unit_test(tree_forbidden_constructs_are_refused),
        cmocka_unit_test(tree_beyond_limits_is_refused),
        cmocka_unit_test(text_with_byte_order_mark_is_read),
        cmocka_unit_test(set_path_reaches_maps_and_named_entries),
        cmocka_unit_test(set_wrong_path_is_usage),
        cmocka_unit_test(load_missing_or_folder_is_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
