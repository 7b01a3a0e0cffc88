/* Names of devices, and why one that comes in a plug-in is not there. */
#include "tests/ops.h"

static void names_give_kind_and_numbers(void **state) {
    (void)state;
    rv_device_list list;
    CHECK(rv_device_parse("cuda:3,0,11", &list));
    assert_string_equal(list.kind, "cuda");
    assert_int_equal(list.count, 3);
    assert_int_equal(list.index[0], 3);
    assert_int_equal(list.index[2], 11);
    CHECK(rv_device_parse("emu", &list));
    assert_int_equal(list.count, 1);
    assert_int_equal(list.index[0], 0);
    CHECK(rv_device_parse("auto", &list));
    assert_string_equal(list.kind, "auto");
}

static void names_that_mean_nothing_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",        "gpu",     "cpu:0",    "cuda:",  "cuda:x", "cuda:0,",         "cuda:0,,1",
        "cuda:-1", "cuda: 1", "cuda:0;1", "auto:0", "cud",    "cuda:99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rv_device_list list;
        if (rv_device_parse(bad[i], &list) != RV_CONFIG) fail_msg("\"%s\" is taken", bad[i]);
    }
}

/* Beside this test lies no plug-in for GPUs. */
static void plugin_that_is_missing_is_named(void **state) {
    (void)state;
    rv_device device;
    assert_int_equal(rv_device_open("cuda:0", RV_ISA_AUTO, 1, &device), RV_RESOURCE);
    assert_non_null(strstr(rv_error_get()->message, "ranvier_cuda.so is not beside"));
    assert_non_null(strstr(rv_error_get()->message, "make cuda"));
    assert_null(device.ops);
}

static void auto_falls_back_to_the_cpu_and_says_why(void **state) {
    (void)state;
    rv_device_list list;
    rv_device device;
    CHECK(rv_device_parse("auto", &list));
    rv_device_choose(&list);
    assert_string_equal(list.kind, "cpu");
    assert_non_null(strstr(list.why, "not beside the program"));
    CHECK(rv_device_open_at(&list, 7, RV_ISA_AUTO, 1, &device)); /* the list goes round */
    assert_string_equal(device.ops->name, "cpu");
    assert_false(device.ops->apart);
    rv_device_close(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_give_kind_and_numbers),
        cmocka_unit_test(names_that_mean_nothing_are_refused),
        cmocka_unit_test(plugin_that_is_missing_is_named),
        cmocka_unit_test(auto_falls_back_to_the_cpu_and_says_why),
    };
    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
