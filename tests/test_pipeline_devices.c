/*
 * The program where there is no GPU: it needs no library of one, starts fast, runs on the CPU, and
 * names the reason, a different one for each thing that can be missing. `scripts/test` adds the
 * plug-in that nvcc made, beside the program and under a driver that is too old.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/spawn.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static char *file_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    assert_true(length > 0);
    rewind(file);
    char *data = malloc((size_t)length + 1);
    assert_non_null(data);
    *size = fread(data, 1, (size_t)length, file);
    assert_int_equal(*size, length);
    assert_int_equal(fclose(file), 0);
    data[*size] = 0;
    return data;
}

static void file_copy(const char *from, const char *to) {
    size_t size;
    char *data = file_read(from, &size);
    tiny_put(to, data, size);
    assert_int_equal(chmod(to, 0700), 0);
    free(data);
}

/* ---- what the program needs -------------------------------------------------------------------
 */
/* Names of the libraries an ELF file needs; `data` is the whole file. Returns how many. */
static int needed(const char *data, const char *names[32]) {
    const Elf64_Ehdr *head = (const void *)data;
    assert_int_equal(memcmp(head->e_ident, ELFMAG, SELFMAG), 0);
    assert_int_equal(head->e_ident[EI_CLASS], ELFCLASS64);
    const Elf64_Shdr *section = (const void *)(data + head->e_shoff);
    int count = 0;
    for (int i = 0; i < head->e_shnum; i++) {
        if (section[i].sh_type != SHT_DYNAMIC) continue;
        const Elf64_Dyn *entry = (const void *)(data + section[i].sh_offset);
        const char *text = data + section[section[i].sh_link].sh_offset;
        for (; entry->d_tag != DT_NULL && count < 32; entry++)
            if (entry->d_tag == DT_NEEDED) names[count++] = text + entry->d_un.d_val;
    }
    return count;
}

static void program_needs_no_library_of_gpus(void **state) {
    (void)state;
    static const char *const kept_out[] = {"libcuda", "libcublas", "libnccl", "libmpi"};
    const char *names[32];
    size_t size;
    bool c_library = false;
    char *data = file_read(program, &size);
    int count = needed(data, names);
    for (int i = 0; i < count; i++) {
        c_library = c_library || strncmp(names[i], "libc.so", 7) == 0;
        for (size_t k = 0; k < sizeof kept_out / sizeof *kept_out; k++)
            if (strncmp(names[i], kept_out[k], strlen(kept_out[k])) == 0)
                fail_msg("the program needs %s", names[i]);
    }
    assert_true(c_library); /* it is the list that was looked at */
    free(data);
}

static bool driver_is_there(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (driver) dlclose(driver);
    return driver;
}

/* Processor time, the least of some runs: what else the machine does cannot make it less. */
static void program_starts_within_thirty_milliseconds(void **state) {
    (void)state;
    double least = 1e9;
    if (SANITIZED || driver_is_there()) skip();
    for (int run = 0; run < 9; run++) {
        struct rusage before, after;
        assert_int_equal(getrusage(RUSAGE_CHILDREN, &before), 0);
        assert_int_equal(RUN("list", "devices"), 0);
        assert_int_equal(getrusage(RUSAGE_CHILDREN, &after), 0);
        double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                         (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                         1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
                         1e-6 * (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec);
        if (seconds < least) least = seconds;
    }
    if (least > 0.03) fail_msg("it takes %.1f ms", 1e3 * least);
}

/* ---- why no GPU is used -----------------------------------------------------------------------
 */
/* `list devices` and a run that asks for the GPU say the same. */
static void expect_reason(const char *reason) {
    bool found = false;
    size_t i;
    json_t *row;
    assert_int_equal(RUN("list", "devices", "--json"), 0);
    json_t *root = parse_out();
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        if (strcmp(json_string_value(json_object_get(row, "name")), "cuda:0") != 0) continue;
        found = true;
        assert_true(json_is_false(json_object_get(row, "available")));
        assert_contains(json_string_value(json_object_get(row, "sentence")), reason);
    }
    assert_true(found);
    json_decref(root);
    ERROR(69, reason, "verify", "recipe.yaml", "--device", "cuda:0");
}

/* A program of its own, with nothing or with `plugin` beside it, and `driver` as libcuda.so.1. */
static void reason_with(const char *plugin, const char *driver, const char *reason) {
    char original[sizeof program], libraries[128];
    snprintf(original, sizeof original, "%s", program);
    snprintf(libraries, sizeof libraries, "%s", in_folder("."));
    file_copy(original, in_folder("ranvier"));
    snprintf(program, sizeof program, "%s", in_folder("ranvier"));
    if (plugin) file_copy(plugin, in_folder("ranvier_cuda.so"));
    if (driver) file_copy(driver, in_folder("libcuda.so.1"));
    if (driver) assert_int_equal(setenv("LD_LIBRARY_PATH", libraries, 1), 0);
    expect_reason(reason);
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    snprintf(program, sizeof program, "%s", original);
    (void)remove(in_folder("ranvier_cuda.so"));
    (void)remove(in_folder("libcuda.so.1"));
    assert_int_equal(remove(in_folder("ranvier")), 0);
}

/* Some library that is neither driver nor plug-in. */
static const char *other_library(void) {
    static Dl_info info;
    assert_int_not_equal(dladdr((void *)(uintptr_t)json_loads, &info), 0);
    return info.dli_fname;
}

static void missing_plugin_is_the_reason(void **state) {
    (void)state;
    reason_with(NULL, NULL, "the plug-in ranvier_cuda.so is not beside the program (make cuda)");
}

static void missing_driver_is_the_reason(void **state) {
    (void)state;
    if (driver_is_there()) skip();
    reason_with(in_folder("recipe.yaml"), NULL, "the driver is missing: libcuda.so.1");
}

static void plugin_that_cannot_be_loaded_is_the_reason(void **state) {
    (void)state;
    reason_with(in_folder("recipe.yaml"), other_library(), "the plug-in cannot be loaded");
}

static void plugin_of_another_version_is_the_reason(void **state) {
    (void)state;
    reason_with(other_library(), other_library(), "belongs to another version of the program");
}

/* The default is the CPU, whatever is or is not there. */
static void training_goes_on_without_a_gpu(void **state) {
    (void)state;
    assert_int_equal(RUN("verify", "recipe.yaml", "--json", "--device", "auto"), 0);
    json_t *root = parse_out();
    assert_true(json_is_true(json_object_get(root, "identical")));
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(program_needs_no_library_of_gpus),
        cmocka_unit_test(program_starts_within_thirty_milliseconds),
        cmocka_unit_test(missing_plugin_is_the_reason),
        cmocka_unit_test(missing_driver_is_the_reason),
        cmocka_unit_test(plugin_that_cannot_be_loaded_is_the_reason),
        cmocka_unit_test(plugin_of_another_version_is_the_reason),
        cmocka_unit_test(training_goes_on_without_a_gpu),
    };
    return cmocka_run_group_tests_name("programs without a GPU", tests, group_setup,
                                       group_teardown);
}
