/* Model files: what is written comes back bit for bit; what is damaged is found, never believed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "data/h5.h"
#include "data/model.h"
#include "tests/data_files.h"

/* HDF5 1.10 forgets the object header it was reading when the header's checksum is wrong. The fast
 * unwinder sees only the library's name. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5\n";
}

static const char recipe[] = "seed: 5\n"
                             "data: {reader: bernoulli, units: 3}\n"
                             "network:\n"
                             "  - {name: hidden, kind: linear, units: 18}\n"
                             "  - {name: hidden_lif, kind: lif, beta: 0.5, learn: beta}\n"
                             "  - {name: frozen, kind: linear, units: 2, trainable: false}\n";

/* A network of the recipe with arbitrary weights and optimiser state. */
typedef struct fixture {
    rv_config *config;
    rv_net *net;
    rv_optimizer *optimizer;
    float *block;
    char *text;
} fixture;

static void fill(float *values, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(int)seed / 1e9f;
    }
}

static void fixture_init(fixture *f, const char *set) {
    rv_source source = {.count = 8, .shape = {1, {3}}, .classes = 2, .steps = 4, .spikes = true};
    *f = (fixture){0};
    assert_int_equal(
        rv_config_parse_with(recipe, sizeof recipe - 1, "m.yaml", &set, set ? 1 : 0, &f->config),
        RV_OK);
    assert_int_equal(rv_config_bind(f->config, &source), RV_OK);
    assert_int_equal(rv_net_create(&f->config->net, &f->net), RV_OK);
    assert_int_equal(rv_optimizer_create(f->net, &f->config->train, 100, &f->optimizer), RV_OK);
    assert_int_equal(rv_alloc(f->net->n_all, sizeof(float), "weights", &f->block), RV_OK);
    assert_int_equal(rv_config_text(f->config, &f->text), RV_OK);
}

static void fixture_fill(fixture *f) {
    float *row = NULL;
    assert_int_equal(rv_alloc(4096, sizeof *row, "values", &row), RV_OK);
    for (int i = 0; i < f->net->tensor_count; i++) {
        const rv_tensor *tensor = &f->net->tensors[i];
        fill(row, rv_tensor_elements(tensor), (unsigned)i + 1);
        rv_tensor_import(tensor, row, f->block);
        for (int s = 0; tensor->trained && s < rv_optimizer_slots(f->optimizer); s++) {
            fill(row, rv_tensor_elements(tensor), (unsigned)(i + 100 * s + 7));
            rv_tensor_import(tensor, row, rv_optimizer_slot(f->optimizer, s));
        }
    }
    rv_optimizer_step_set(f->optimizer, 42);
    rv_free(row);
}

static void fixture_finish(fixture *f) {
    rv_free(f->text);
    rv_free(f->block);
    rv_optimizer_destroy(f->optimizer);
    rv_net_destroy(f->net);
    rv_config_free(f->config);
}

static const rv_progress progress = {
    .step = 7, .epoch = 3, .batch_in_epoch = 2, .best_validation = 0.8125, .best_epoch = 1};

static rv_status save(const fixture *f, const char *name) {
    const rv_model_save model = {.net = f->net,
                                 .block = f->block,
                                 .optimizer = f->optimizer,
                                 .progress = &progress,
                                 .config_text = f->text,
                                 .isa = "baseline"};
    return rv_model_write(path_to(name), NULL, &model);
}

/* Does the file hold exactly what `f` holds? */
static rv_status compare(const fixture *f, const char *name) {
    fixture other;
    rv_model *model = NULL;
    rv_progress found = {0};
    rv_status status = rv_model_open(path_to(name), &model);
    if (status != RV_OK) return status;
    fixture_init(&other, NULL);
    assert_int_equal(rv_model_load(model, other.net, other.block, other.optimizer, &found), RV_OK);
    assert_memory_equal(other.block, f->block, f->net->n_all * sizeof(float));
    for (int s = 0; s < rv_optimizer_slots(f->optimizer); s++)
        assert_memory_equal(rv_optimizer_slot(other.optimizer, s),
                            rv_optimizer_slot(f->optimizer, s), f->net->n_trained * sizeof(float));
    assert_int_equal(rv_optimizer_step(other.optimizer), 42);
    assert_int_equal(found.step, progress.step);
    assert_int_equal(found.epoch, progress.epoch);
    assert_int_equal(found.batch_in_epoch, progress.batch_in_epoch);
    assert_int_equal(found.best_epoch, progress.best_epoch);
    assert_true(found.best_validation == progress.best_validation);
    assert_string_equal(rv_model_config(model), f->text);
    rv_model_close(model);
    fixture_finish(&other);
    return RV_OK;
}

static void model_written_comes_back_bit_for_bit(void **state) {
    (void)state;
    fixture f;
    rv_model *model = NULL;
    const rv_model_tensor *tensors;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    uint32_t odd[] = {0x7FC01234u, 0xFF800000u, 0x00000001u, 0x80000000u}; /* NaN, -inf, tiny, -0 */
    memcpy(f.block + f.net->tensors[0].offset, odd, sizeof odd);
    assert_int_equal(save(&f, "model.h5"), RV_OK);
    assert_false(file_there("model.h5.tmp"));
    assert_int_equal(compare(&f, "model.h5"), RV_OK);
    assert_int_equal(rv_model_check(path_to("model.h5")), RV_OK);
    assert_int_equal(rv_model_open(path_to("model.h5"), &model), RV_OK);
    assert_int_equal(rv_model_version(model), 1);
    assert_int_equal(rv_model_tensors(model, &tensors), f.net->tensor_count);
    int known = 0;
    for (int i = 0; i < f.net->tensor_count; i++) {
        const rv_tensor *tensor = rv_net_tensor_find(f.net, tensors[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensors[i].rank, tensor->rank);
        assert_memory_equal(tensors[i].dim, tensor->dim, (size_t)tensor->rank * sizeof(int));
        if (strcmp(tensors[i].name, "hidden.weight") == 0) {
            known++;
            assert_int_equal(tensors[i].dim[0], 18); /* PyTorch: [out][in] */
            assert_int_equal(tensors[i].dim[1], 3);
        }
    }
    assert_int_equal(known, 1);
    rv_model_close(model);
    fixture_finish(&f);
}

/* Over all a file holds but times; the file must be good by its own digest. */
static uint64_t sum_of(const char *name) {
    rv_h5_list list = {0};
    size_t size;
    char *bytes = get_file(path_to(name), &size);
    assert_int_equal(rv_model_check(path_to(name)), RV_OK);
    assert_int_equal(rv_h5_read(bytes, size, name, &list), RV_OK);
    uint64_t sum;
    assert_int_equal(rv_model_sum(&list, &sum), RV_OK);
    rv_h5_finish(&list);
    free(bytes);
    return sum;
}

static void snapshot_written_as_two_files_equals_each_alone(void **state) {
    (void)state;
    static const float health[3] = {1, 2, 3};
    fixture f;
    rv_snapshot *copy = NULL;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    const rv_model_save model = {.net = f.net,
                                 .block = f.block,
                                 .optimizer = f.optimizer,
                                 .progress = &progress,
                                 .config_text = f.text,
                                 .health = health,
                                 .health_count = 3};
    assert_int_equal(rv_snapshot_create(&model, &copy), RV_OK);
    rv_snapshot_take(copy, &model);
    assert_int_equal(rv_snapshot_write(copy, path_to("best.h5"), NULL, NULL), RV_OK);
    assert_int_equal(rv_snapshot_write(copy, NULL, path_to("last.h5"), NULL), RV_OK);
    uint64_t best = sum_of("best.h5"), last = sum_of("last.h5");
    assert_true(best != last);
    f.block[0] += 1; /* the copy does not see it */
    char *previous = strdup(path_to("previous.h5")), *first = strdup(path_to("best.h5"));
    char *second = strdup(path_to("last.h5"));
    assert_int_equal(rv_snapshot_write(copy, first, second, previous), RV_OK);
    f.block[0] -= 1;
    assert_true(sum_of("best.h5") == best && sum_of("last.h5") == last);
    assert_true(sum_of("previous.h5") == last);
    free(previous), free(first), free(second);
    rv_snapshot_destroy(copy);
    fixture_finish(&f);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static double peak_mb(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kb = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0) kb = strtod(line + 6, NULL);
    fclose(file);
    return kb / 1024;
}

enum { LARGE = 3 << 20 }; /* floats */

static void large_fill(const void *of, const float *from, void *data) {
    memcpy(data, of, LARGE * sizeof *from);
}

/* Eight arrays of 12 MiB each: the file is held once, and one of them while it is written. The
 * first test of all, for the peak of a process only grows. */
static void file_in_the_making_is_held_once(void **state) {
    (void)state;
    enum { COUNT = 8 };
    const double array = LARGE * 4.0 / (1 << 20);
    rv_h5_list list = {0};
    float *floats = NULL;
    char *bytes = NULL, name[16];
    size_t size;
    const int count = LARGE;
    assert_int_equal(rv_alloc(LARGE, sizeof *floats, "floats", &floats), RV_OK);
    fill(floats, LARGE, 1);
    const rv_h5_item like = {.type = RV_H5_FLOAT, .fill = large_fill, .of = floats};
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "/a%d", i);
        assert_int_equal(rv_h5_add_like(&list, name, 1, &count, &like), RV_OK);
    }
    double before = peak_mb();
    assert_int_equal(rv_h5_write(&list, "large", &bytes, &size), RV_OK);
    double took = peak_mb() - before;
    assert_true(size > COUNT * LARGE * sizeof *floats && size < COUNT * LARGE * 4.01);
    if (took > (COUNT + 1) * array + 16) fail_msg("%g MiB beyond %g", took, before);
    rv_h5_finish(&list);
    assert_int_equal(rv_h5_read(bytes, size, "large", &list), RV_OK);
    assert_int_equal(list.count, COUNT);
    for (int i = 0; i < COUNT; i++)
        assert_memory_equal(list.items[i].data, floats, LARGE * sizeof *floats);
    rv_h5_finish(&list);
    rv_free(bytes);
    rv_free(floats);
}
#endif

static void model_of_another_network_is_a_mismatch(void **state) {
    (void)state;
    static const struct {
        const char *set, *part;
    } cases[] = {
        {"network.hidden.units=17", "another shape"},
        {"network.hidden.name=first", "has no /layers/"},
        {"network.hidden_lif.learn=null", "has 5 tensors, the network 4"},
        {"train.optimizer={kind: sgd, momentum: 0.5}", "has no /optimizer/"},
    };
    fixture f, other;
    rv_model *model = NULL;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    assert_int_equal(save(&f, "model.h5"), RV_OK);
    assert_int_equal(rv_model_open(path_to("model.h5"), &model), RV_OK);
    for (int i = 0; i < 4; i++) {
        fixture_init(&other, cases[i].set);
        assert_int_equal(rv_model_load(model, other.net, other.block, other.optimizer, NULL),
                         RV_CONFIG);
        if (!strstr(rv_error_get()->message, cases[i].part))
            fail_msg("%s", rv_error_get()->message);
        fixture_finish(&other);
    }
    rv_model_close(model);
    fixture_finish(&f);
}

static void model_missing_or_something_else_says_so(void **state) {
    (void)state;
    rv_model *model = NULL;
    put_file("empty", "", 0);
    put_file("text", "not a model at all", 18);
    assert_int_equal(rv_model_open(path_to("none.h5"), &model), RV_INPUT);
    assert_int_equal(rv_model_open(data_folder, &model), RV_INPUT);
    assert_int_equal(rv_model_open(path_to("empty"), &model), RV_DATA);
    assert_int_equal(rv_model_open(path_to("text"), &model), RV_DATA);
    assert_non_null(strstr(rv_error_get()->message, "text: not a model file"));
    assert_null(model);
}

static void model_truncated_anywhere_is_found(void **state) {
    (void)state;
    fixture f;
    size_t size;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    assert_int_equal(save(&f, "model.h5"), RV_OK);
    free(get_file(path_to("model.h5"), &size));
    for (size_t cut = size; cut-- > 0;) {
        assert_int_equal(truncate(path_to("model.h5"), (off_t)cut), 0);
        if (rv_model_check(path_to("model.h5")) != RV_DATA)
            fail_msg("cut at %zu of %zu", cut, size);
    }
    fixture_finish(&f);
}

/* One bit in every third byte, each time another: found, or nothing of the content changed. */
static void model_with_a_flipped_bit_never_lies(void **state) {
    (void)state;
    fixture f;
    size_t size;
    int harmless = 0;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    assert_int_equal(save(&f, "model.h5"), RV_OK);
    char *bytes = get_file(path_to("model.h5"), &size);
    for (size_t at = 0; at < size; at += 3) {
        char bit = (char)(1 << (at * 5 + at / 8) % 8);
        bytes[at] ^= bit;
        put_file("flip.h5", bytes, size);
        bytes[at] ^= bit;
        rv_status status = compare(&f, "flip.h5");
        if (status == RV_OK)
            harmless++;
        else if (status != RV_DATA)
            fail_msg("byte %zu: status %d: %s", at, status, rv_error_get()->message);
    }
    print_message("           %zu bytes, %d flips without effect\n", size, harmless);
    assert_true((size_t)harmless < size / 9);
    free(bytes);
    fixture_finish(&f);
}

/* A file changed by hand: its numbers, then without its digest. */
static void model_edited_names_what_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *path, *attribute, *part;
        rv_h5_type type;
    } cases[] = {
        {"/meta", "version", "format version 9; this program reads up to 1", RV_H5_INTEGER},
        {"/meta", "format", "not a model file", RV_H5_TEXT},
        {"/meta", "digest", "damaged: digest", RV_H5_TEXT},
        {"/progress", "step", "damaged: digest", RV_H5_INTEGER},
        {"/layers/hidden", "kind", "damaged: digest", RV_H5_TEXT},
        {"/layers/hidden/weight", NULL, "damaged: digest", RV_H5_FLOAT},
        {"/meta/config", NULL, "damaged: digest", RV_H5_BYTES},
    };
    fixture f;
    size_t size;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    assert_int_equal(save(&f, "model.h5"), RV_OK);
    char *bytes = get_file(path_to("model.h5"), &size);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rv_h5_list list = {0};
        char *edited = NULL;
        size_t edited_size;
        rv_model *model = NULL;
        assert_int_equal(rv_h5_read(bytes, size, "m", &list), RV_OK);
        const rv_h5_item *item =
            rv_h5_find(&list, cases[i].path, cases[i].attribute, cases[i].type);
        assert_non_null(item);
        if (item->type == RV_H5_INTEGER)
            *(int64_t *)item->data = 9;
        else
            *(char *)item->data ^= 1;
        assert_int_equal(rv_h5_write(&list, "m", &edited, &edited_size), RV_OK);
        put_file("edited.h5", edited, edited_size);
        assert_int_equal(rv_model_open(path_to("edited.h5"), &model), RV_DATA);
        if (!strstr(rv_error_get()->message, cases[i].part))
            fail_msg("%zu: %s", i, rv_error_get()->message);
        rv_free(edited);
        rv_h5_finish(&list);
    }
    free(bytes);
    fixture_finish(&f);
}

#ifdef RV_FAULTS
/* Every allocation of ours at every k: an error or a good file, and the old file stays. */
static void model_write_with_any_failing_call_keeps_the_old(void **state) {
    (void)state;
    static const rv_fault_site sites[] = {RV_FAULT_ALLOC, RV_FAULT_WRITE, RV_FAULT_FSYNC,
                                          RV_FAULT_CLOSE, RV_FAULT_RENAME};
    fixture f;
    fixture_init(&f, NULL);
    fixture_fill(&f);
    assert_int_equal(save(&f, "model.h5"), RV_OK);
    for (int s = 0; s < 5; s++) {
        rv_status status = RV_IO;
        for (int k = 0; k < 2000 && status != RV_OK; k++) {
            rv_fault_arm(sites[s], k, false);
            status = save(&f, "model.h5");
            rv_fault_arm(sites[s], -1, false);
            assert_true(status == RV_OK || status == RV_IO || status == RV_MEMORY);
            assert_false(file_there("model.h5.tmp"));
            assert_int_equal(compare(&f, "model.h5"), RV_OK);
        }
        assert_int_equal(status, RV_OK);
    }
    rv_status status = RV_MEMORY;
    for (int k = 0; k < 2000 && status != RV_OK; k++) {
        rv_fault_arm(RV_FAULT_ALLOC, k, false);
        status = rv_model_check(path_to("model.h5"));
        rv_fault_arm(RV_FAULT_ALLOC, -1, false);
        assert_true(status == RV_OK || status == RV_MEMORY);
    }
    assert_int_equal(status, RV_OK);
    fixture_finish(&f);
}
#endif

static void model_in_a_build_without_hdf5_says_so(void **state) {
    (void)state;
    fixture f;
    rv_model *model = NULL;
    fixture_init(&f, NULL);
    assert_int_equal(save(&f, "model.h5"), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "built without HDF5"));
    assert_false(file_there("model.h5"));
    put_file("model.h5", "\x89HDF\r\n\x1a\n", 8);
    assert_int_equal(rv_model_open(path_to("model.h5"), &model), RV_CONFIG);
    assert_null(model);
    fixture_finish(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(file_in_the_making_is_held_once),
#endif
        cmocka_unit_test(model_written_comes_back_bit_for_bit),
        cmocka_unit_test(snapshot_written_as_two_files_equals_each_alone),
        cmocka_unit_test(model_of_another_network_is_a_mismatch),
        cmocka_unit_test(model_missing_or_something_else_says_so),
        cmocka_unit_test(model_truncated_anywhere_is_found),
        cmocka_unit_test(model_with_a_flipped_bit_never_lies),
        cmocka_unit_test(model_edited_names_what_is_wrong),
#ifdef RV_FAULTS
        cmocka_unit_test(model_write_with_any_failing_call_keeps_the_old),
#endif
    };
    const struct CMUnitTest without[] = {
        cmocka_unit_test(model_in_a_build_without_hdf5_says_so),
    };
    if (!rv_h5_available()) return cmocka_run_group_tests(without, folder_setup, folder_teardown);
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
