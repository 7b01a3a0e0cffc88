/*
 * Tapes that are not kept: F once more inside B gives the bits of the plain trainer, for all layers
 * or some, in every schedule, at every cut; gradients that are cut on request; the words of
 * recipes.
 */
#include "tests/pipes.h"

#include <dirent.h>
#include <sys/mount.h>
#include <unistd.h>

#include "data/data.h"
#include "pipeline/tape.h"

static const char *const schedules[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* Every layer as `word` says, or, with RV_TAPE_POLICIES, each by a die that `seed` throws. */
enum { RV_TAPE_POLICIES = 3 };
static void check(const pipe_net *net, const pipe_way *way, int word, uint64_t seed, int truncate,
                  int dtype) {
    small s;
    uint8_t policy[SMALL_LAYERS];
    for (int l = 0; l < SMALL_LAYERS; l++)
        policy[l] = (uint8_t)(word < RV_TAPE_POLICIES
                                  ? word
                                  : (int)(3 * small_random(seed, (uint64_t)l)) % RV_TAPE_POLICIES);
    pipe_open(&s, net, way);
    s.train.tape = policy;
    s.train.truncate = truncate;
    s.train.tape_dtype = dtype;
    pipe_compare(&s, way, net->name);
    small_finish(&s);
}

static void every_schedule_at(int word, int dtype, rv_driver driver) {
    static const int chunks[] = {1, 3, PIPE_STEPS};
    for (int k = 0; k < SCHEDULES; k++)
        for (int S = 1; S <= 4; S++)
            for (int c = 0; c < 3; c++) {
                const pipe_way way = {.schedule = schedules[k],
                                      .stages = S,
                                      .micros = 1 + (k + c) % 3,
                                      .chunks = chunks[c],
                                      .driver = driver,
                                      .clip = c == 1 ? 0.1 : 0};
                for (int n = 0; n < PIPE_NETS; n++)
                    if ((n + k + S) % 2 == 0) check(&pipe_nets[n], &way, word, 0, 0, dtype);
            }
}

static void recomputed_tapes_have_the_bits_of_kept_ones(void **state) {
    (void)state;
    every_schedule_at(RV_TAPE_RECOMPUTE, RV_TAPE_FLOAT32, RV_DRIVER_THREADS);
}

static void spilled_tapes_have_the_bits_of_kept_ones(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    every_schedule_at(RV_TAPE_SPILL, RV_TAPE_FLOAT32, RV_DRIVER_THREADS);
    every_schedule_at(RV_TAPE_SPILL, RV_TAPE_FLOAT32, RV_DRIVER_SEEDED);
}

/* Half floats: wherever and whenever membranes are rounded, it is the plain trainer's rounding. */
static void membranes_as_half_floats_have_the_same_bits_everywhere(void **state) {
    (void)state;
    every_schedule_at(RV_TAPE_KEEP, RV_TAPE_FLOAT16, RV_DRIVER_THREADS);
    every_schedule_at(RV_TAPE_RECOMPUTE, RV_TAPE_FLOAT16, RV_DRIVER_SEEDED);
    if (rv_h5_available()) every_schedule_at(RV_TAPE_SPILL, RV_TAPE_FLOAT16, RV_DRIVER_THREADS);
}

static void any_mix_of_layers_has_the_bits_of_kept_ones(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    for (uint64_t seed = 1; seed <= 120; seed++) {
        const pipe_way way = {.schedule = schedules[seed % SCHEDULES],
                              .stages = 1 + (int)seed % 5,
                              .micros = 1 + (int)seed % 3,
                              .chunks = 1 + (int)(seed * 7) % PIPE_STEPS,
                              .driver = seed % 4 ? RV_DRIVER_SEEDED : RV_DRIVER_THREADS,
                              .seed = seed};
        check(&pipe_nets[seed % PIPE_NETS], &way, RV_TAPE_POLICIES, seed, seed % 3 == 0 ? 2 : 0,
              seed % 2 ? RV_TAPE_FLOAT32 : RV_TAPE_FLOAT16);
    }
}

/* What stays between F and B is less, and benches are as few as the list allows. */
static void recomputed_tapes_take_less_memory(void **state) {
    (void)state;
    small s;
    const pipe_way way = {.schedule = "serial", .stages = 1, .micros = 1, .chunks = PIPE_STEPS};
    uint8_t policy[SMALL_LAYERS];
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    memset(policy, RV_TAPE_RECOMPUTE, sizeof policy);
    pipe_open(&s, &pipe_nets[2], &way);
    rv_pipeline_destroy(pipe_make(&s, &way, first, &schedule));
    const rv_range whole = rv_net_range(s.net, 0, s.net->layer_count);
    rv_tapes_desc desc = {.range = &whole, .steps = 100, .rows = PIPE_BATCH};
    rv_tapes_sizes sizes = rv_tapes_sizes_of(&desc);
    size_t words[RV_TAPE_PARTS];
    desc.list = rv_schedule_list(&schedule, 0, &desc.count);
    size_t tape = rv_tape_bytes(&whole, NULL, 100, PIPE_BATCH);
    size_t border = rv_state_bytes(&whole, PIPE_BATCH);
    assert_int_equal(rv_tapes_bytes(&sizes, PIPE_STEPS, desc.list, desc.count), PIPE_STEPS * tape);
    desc.how.policy = policy;
    rv_tape_sizes(&whole, NULL, &desc.how, 100, PIPE_BATCH, words);
    assert_int_equal(words[RV_PART_KEPT], 0);
    sizes = rv_tapes_sizes_of(&desc);
    size_t bytes = rv_tapes_bytes(&sizes, PIPE_STEPS, desc.list, desc.count);
    assert_true(bytes >= PIPE_STEPS * border + tape);
    assert_true(bytes <= PIPE_STEPS * border + 2 * (tape + border));
    policy[1] = RV_TAPE_KEEP; /* a recurrent layer, and so the map that writes into it */
    rv_tape_sizes(&whole, NULL, &desc.how, 100, PIPE_BATCH, words);
    size_t kept = 4 * words[RV_PART_KEPT];
    assert_true(kept > 4 * 100 * PIPE_BATCH * PIPE_HIDDEN && kept < tape);
    rv_schedule_finish(&schedule);
    small_finish(&s);
}

/* Rounding is there and small: a part in 2,000 of a membrane moves a slope a little. */
static void half_floats_change_gradients_a_little(void **state) {
    (void)state;
    for (int n = 0; n < PIPE_NETS; n++) {
        static float kept[1 << 14];
        double distance = 0, size = 0;
        for (int dtype = 0; dtype < 2; dtype++) {
            small s;
            const pipe_way way = {.stages = 1, .micros = 1, .chunks = 2};
            const float *gradient;
            rv_step_result result;
            pipe_open(&s, &pipe_nets[n], &way);
            s.train.tape_dtype = dtype;
            OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
            assert_true(s.net->n_trained <= sizeof kept / sizeof *kept);
            for (size_t i = 0; dtype && i < s.net->n_trained; i++) {
                distance += pow((double)gradient[i] - (double)kept[i], 2);
                size += pow((double)kept[i], 2);
            }
            if (!dtype) memcpy(kept, gradient, s.net->n_trained * sizeof *kept);
            small_finish(&s);
        }
        double error = sqrt(distance / size);
        if (!(error > 1e-8 && error < 5e-3)) fail_msg("%s: %g", pipe_nets[n].name, error);
    }
}

/* ---- a disk that fails ------------------------------------------------------------------ */

/* One step of a spilling pipeline in a folder of its own; the n-th write fails. */
static rv_status step_with_fault(const char *folder, long nth, rv_driver driver, char *message) {
    small s;
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    rv_step_result result;
    uint8_t policy[SMALL_LAYERS];
    const pipe_way way = {
        .schedule = "1f1b", .stages = 2, .micros = 2, .chunks = 4, .driver = driver};
    memset(policy, RV_TAPE_SPILL, sizeof policy);
    pipe_open(&s, &pipe_nets[0], &way);
    s.train.tape = policy;
    rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
    rv_status status = rv_pipeline_folder(pipeline, folder);
#ifdef RV_FAULTS
    rv_fault_arm(RV_FAULT_WRITE, nth, false);
#else
    (void)nth;
#endif
    if (status == RV_OK) status = rv_pipeline_step(pipeline, &s.batch, &result);
#ifdef RV_FAULTS
    rv_fault_arm(RV_FAULT_WRITE, -1, false);
#endif
    snprintf(message, 512, "%s", status ? rv_error_get()->message : "");
    rv_pipeline_destroy(pipeline);
    rv_schedule_finish(&schedule);
    small_finish(&s);
    return status;
}

/* Names in a folder besides . and .. */
static int files_in(const char *folder) {
    int count = 0;
    DIR *files = opendir(folder);
    assert_non_null(files);
    while (readdir(files))
        count++;
    assert_int_equal(closedir(files), 0);
    return count - 2;
}

static void writes_that_fail_end_the_step_and_leave_no_file(void **state) {
    (void)state;
    char folder[] = "/tmp/ranvier-test-XXXXXX", message[512];
    int failed = 0;
    if (!rv_h5_available()) skip();
    assert_non_null(mkdtemp(folder));
    for (long nth = 0; nth < 20; nth++) {
        rv_status status =
            step_with_fault(folder, nth, nth % 2 ? RV_DRIVER_SEEDED : RV_DRIVER_THREADS, message);
        assert_true(status == RV_OK || status == RV_IO);
        failed += status == RV_IO;
        if (status == RV_IO && (!strstr(message, "tapes-") || !strstr(message, "bytes needed")))
            fail_msg("%s", message);
        assert_int_equal(files_in(folder), 0);
    }
#ifdef RV_FAULTS
    assert_true(failed > 4);
#else
    assert_int_equal(failed, 0);
#endif
    assert_int_equal(rmdir(folder), 0);
}

/* Asked before the first step. */
static void disks_without_room_are_refused_at_the_start(void **state) {
    (void)state;
    char folder[] = "/tmp/ranvier-test-XXXXXX", message[512];
    if (!rv_h5_available() || geteuid() != 0) skip();
    assert_non_null(mkdtemp(folder));
    if (mount("tmpfs", folder, "tmpfs", 0, "size=8k") != 0) {
        assert_int_equal(rmdir(folder), 0);
        skip();
    }
    rv_status status = step_with_fault(folder, -1, RV_DRIVER_THREADS, message);
    int files = files_in(folder);
    assert_int_equal(umount(folder), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(status, RV_IO);
    assert_non_null(strstr(message, "not enough room for spilled tapes"));
    assert_int_equal(files, 0);
}

/* ---- gradients that are cut ------------------------------------------------------------- */
static void gradient_at(int truncate, float *out, size_t *count) {
    small s;
    const pipe_way way = {.stages = 1, .micros = 1, .chunks = PIPE_STEPS};
    const float *gradient;
    rv_step_result result;
    pipe_open(&s, &pipe_nets[2], &way);
    s.train.truncate = truncate;
    OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
    *count = s.net->n_trained;
    assert_true(*count <= 1 << 14);
    memcpy(out, gradient, *count * sizeof *out);
    small_finish(&s);
}

/* A cut at or beyond the end is none; a nearer one takes something away from what lies before. */
static void cut_gradients_differ_only_when_there_is_a_cut(void **state) {
    (void)state;
    static float whole[1 << 14], cut[1 << 14];
    size_t count, same;
    gradient_at(0, whole, &count);
    gradient_at(PIPE_STEPS, cut, &same);
    assert_memory_equal(whole, cut, count * sizeof *whole);
    double before = 0;
    for (int k = PIPE_STEPS - 3; k >= 1; k -= 2) {
        double distance = 0;
        gradient_at(k, cut, &same);
        for (size_t i = 0; i < count; i++)
            distance += fabs((double)whole[i] - (double)cut[i]);
        assert_true(distance > 0 && isfinite(distance));
        before = distance;
    }
    assert_true(before > 0);
}

/* ---- recipes ---------------------------------------------------------------------------- */
static rv_status parse(const char *pipeline, rv_config **config) {
    char text[1024];
    int size = snprintf(text, sizeof text,
                        "data: {reader: bernoulli, units: 8, classes: 2}\n"
                        "network:\n"
                        "  - {name: a, kind: linear, units: 4}\n"
                        "  - {name: b, kind: lif, beta: 0.9}\n"
                        "  - {name: c, kind: linear, units: 2}\n"
                        "  - {name: d, kind: lif, beta: 0.9}\n"
                        "pipeline: {%s}\n",
                        pipeline);
    return rv_config_parse(text, (size_t)size, "r.yaml", config);
}

static void recipes_say_what_is_kept_for_all_or_for_some(void **state) {
    (void)state;
    static const struct {
        const char *text, *policy; /* a letter a layer; NULL: none */
    } good[] = {{"", NULL},
                {"tape: keep", NULL},
                {"tape: recompute", "rrrr"},
                {"tape: {b: recompute}", "krkk"},
                {"tape: {a: keep, d: recompute}", "kkkr"},
                {"tape: spill", "ssss"},
                {"tape: {b: spill, c: recompute}", "ksrk"}};
    static const struct {
        const char *text, *error;
    } bad[] = {{"tape: {b: spil}",
                "must be keep, recompute or spill, for all layers also auto, found \"spil\""},
               {"tape: {x: keep}", "names \"x\", which is no layer"},
               {"tape: [keep]", "must be keep, recompute or spill"},
               {"truncate: -1", "truncate"}};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++)
        for (int again = 0; again < 2; again++) { /* the resolved recipe says the same */
            rv_config *config = NULL, *second = NULL;
            char *text = NULL;
            OK(parse(good[k].text, &config));
            OK(rv_config_text(config, &text));
            if (again) OK(rv_config_parse(text, strlen(text), "again.yaml", &second));
            const uint8_t *policy = (again ? second : config)->train.tape;
            assert_int_equal(policy != NULL, good[k].policy != NULL);
            for (int l = 0; policy && l < 4; l++)
                assert_int_equal("krs"[policy[l]], good[k].policy[l]);
            rv_free(text);
            rv_config_free(second);
            rv_config_free(config);
        }
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        rv_config *config = NULL;
        assert_int_equal(parse(bad[k].text, &config), RV_CONFIG);
        if (!strstr(rv_error_get()->message, bad[k].error)) fail_msg("%s", rv_error_get()->message);
        assert_int_not_equal(rv_error_get()->line, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputed_tapes_have_the_bits_of_kept_ones),
        cmocka_unit_test(spilled_tapes_have_the_bits_of_kept_ones),
        cmocka_unit_test(membranes_as_half_floats_have_the_same_bits_everywhere),
        cmocka_unit_test(any_mix_of_layers_has_the_bits_of_kept_ones),
        cmocka_unit_test(recomputed_tapes_take_less_memory),
        cmocka_unit_test(half_floats_change_gradients_a_little),
        cmocka_unit_test(writes_that_fail_end_the_step_and_leave_no_file),
        cmocka_unit_test(disks_without_room_are_refused_at_the_start),
        cmocka_unit_test(cut_gradients_differ_only_when_there_is_a_cut),
        cmocka_unit_test(recipes_say_what_is_kept_for_all_or_for_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
