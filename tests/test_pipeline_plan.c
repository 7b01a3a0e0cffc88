/*
 * plan, verify and training in stages, from outside: pictures, files, what is refused, and that a
 * run may change its stages when it goes on.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <sys/stat.h>

#include "data/data.h"
#include "pipeline/compare.h"
#include "pipeline/plan.h"
#include "tests/pipes.h"
#include "tests/spawn.h"

/* Five maps behind the tiny data set. `form` of every product. */
static void deep_put(const char *name, const char *form, const char *more) {
    char text[4096];
    int size = snprintf(
        text, sizeof text,
        "seed: 7\n" TINY_DATA "encode: {kind: rate, steps: 7}\n"
        "network:\n"
        "  - {name: fc1, kind: linear, units: 24, form: %s}\n"
        "  - {name: n1, kind: lif, beta: 0.9, threshold: 0.5}\n"
        "  - {name: fc2, kind: linear, units: 24, form: %s}\n"
        "  - {name: n2, kind: lif, beta: 0.9, threshold: 0.3}\n"
        "  - {name: fc3, kind: linear, units: 20, form: %s}\n"
        "  - {name: n3, kind: lif, beta: 0.9, threshold: 0.3}\n"
        "  - {name: fc4, kind: linear, units: 20, form: %s}\n"
        "  - {name: n4, kind: lif, beta: 0.9, threshold: 0.3}\n"
        "  - {name: fc5, kind: linear, units: 4, form: %s}\n"
        "  - {name: n5, kind: li, beta: 0.9}\n"
        "loss: {kind: cross_entropy, readout: membrane_mean}\n"
        "train: {epochs: 3, batch: 16, micro_batches: 2, clip_norm: 0.5, optimizer: {kind: adam, "
        "lr: 0.02}}\n"
        "%s",
        folder, form, form, form, form, form, more);
    tiny_put(in_folder(name), text, (size_t)size);
}

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

static const char *word(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static bool exists(const char *name) {
    struct stat about;
    return stat(in_folder(name), &about) == 0;
}

/* ---- plan ------------------------------------------------------------------------------- */

static void plan_shows_cut_timeline_and_memory(void **state) {
    (void)state;
    deep_put("deep.yaml", "auto", "");
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--chunks", "7", "--svg", "t.svg"),
                     0);
    assert_contains(out_text, "stage 0  ");
    assert_contains(out_text, "stage 2  ");
    assert_contains(out_text, "lower bound");
    assert_contains(out_text, "<- taken");
    for (const char *line = out_text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (end - line > 100) fail_msg("%d columns: %.120s", (int)(end - line), line);
    char svg[1 << 17];
    read_text(in_folder("t.svg"), svg, sizeof svg);
    assert_contains(svg, "<svg xmlns");
    assert_contains(svg, "</svg>");
    assert_false(exists("runs"));
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--chunks", "7", "--json"), 0);
    json_t *plan = parse_out(), *stages = json_object_get(plan, "stage");
    assert_int_equal(number(plan, "stages"), 3);
    assert_int_equal(number(plan, "chunks"), 7);
    assert_int_equal(json_array_size(stages), 3);
    assert_string_equal(word(json_array_get(stages, 0), "first"), "fc1");
    assert_string_equal(word(json_array_get(stages, 2), "last"), "n5");
    double sum = number(plan, "copy_bytes"), makespan = number(plan, "makespan_ms");
    for (size_t s = 0; s < 3; s++) {
        sum += number(json_array_get(stages, s), "peak_bytes");
        assert_true(number(json_array_get(stages, s), "busy") <= 1 + 1e-9);
    }
    assert_true(fabs(sum - number(plan, "peak_bytes")) < 1);
    assert_true(number(plan, "lower_bound_ms") <= makespan * (1 + 1e-9));
    assert_true(fabs(number(plan, "speed_up") - number(plan, "one_device_ms") / makespan) < 1e-6);
    json_decref(plan);
}

/* From a profile, so that clocks take no part: auto is never slower than any fixed choice, and the
 * forecast of a choice does not depend on how it was asked for. */
static void plan_auto_is_never_slower_than_a_fixed_choice(void **state) {
    (void)state;
    static const char *const schedules[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
    static const char *const chunks[] = {"1", "2", "3", "5", "7"};
    deep_put("deep.yaml", "auto", "");
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--chunks", "auto", "--json"), 0);
    tiny_put(in_folder("costs.json"), out_text, strlen(out_text));
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--chunks", "auto", "--json",
                         "--profile", "costs.json"),
                     0);
    json_t *plan = parse_out();
    double best = number(plan, "makespan_ms");
    char first[16];
    snprintf(first, sizeof first, "%.0f", number(plan, "chunks"));
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--chunks", first, "--schedule",
                         word(plan, "schedule"), "--json", "--profile", "costs.json"),
                     0);
    json_t *same = parse_out();
    assert_true(fabs(number(same, "makespan_ms") - best) <= 1e-9 * best);
    json_decref(same);
    json_decref(plan);
    for (int k = 0; k < 5; k++)
        for (int c = 0; c < 5; c++) {
            assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--chunks", chunks[c],
                                 "--schedule", schedules[k], "--json", "--profile", "costs.json"),
                             0);
            json_t *fixed = parse_out();
            assert_true(best <= number(fixed, "makespan_ms") * (1 + 1e-9));
            json_decref(fixed);
        }
    assert_int_equal(
        RUN("plan", "deep.yaml", "--devices", "4", "--json", "--profile", "costs.json"), 0);
    plan = parse_out();
    assert_int_equal(number(plan, "stages"), 4);
    json_decref(plan);
}

/* One device is always busy, and what is nothing but for rounding is printed without a sign. */
static void plan_prints_no_minus_zero(void **state) {
    (void)state;
    static const char *const schedules[] = {"auto", "1f1b", "filldrain", "zb", "pb", "stale"};
    char chunks[8];
    deep_put("deep.yaml", "auto", "");
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "1", "--json"), 0);
    tiny_put(in_folder("one.json"), out_text, strlen(out_text));
    for (int k = 0; k < 6 * 7; k++) {
        snprintf(chunks, sizeof chunks, "%d", 1 + k / 6);
        assert_int_equal(RUN("plan", "deep.yaml", "--stages", "1", "--chunks", chunks, "--schedule",
                             schedules[k % 6], "--profile", "one.json", "--set",
                             "train.clip_norm=0"),
                         0);
        if (strstr(out_text, "-0.0 %")) fail_msg("%s: %s", schedules[k % 6], out_text);
    }
}

static void plan_refuses_bad_profiles(void **state) {
    (void)state;
    deep_put("deep.yaml", "auto", "");
    tiny_put(in_folder("bad.json"), "{\"points\": [", 12);
    ERROR(65, "no JSON", "plan", "deep.yaml", "--profile", "bad.json");
    tiny_put(in_folder("bad.json"), "{\"latency_ms\": 1}", 17);
    ERROR(65, "latency_ms and bytes_per_s", "plan", "deep.yaml", "--profile", "bad.json");
    ERROR(66, "nowhere.json", "plan", "deep.yaml", "--profile", "nowhere.json");
    assert_int_equal(RUN("plan", "recipe.yaml", "--json"), 0);
    tiny_put(in_folder("other.json"), out_text, strlen(out_text));
    ERROR(65, "has 2 blocks, the recipe 5", "plan", "deep.yaml", "--profile", "other.json");
}

/* ---- what is refused -------------------------------------------------------------------- */

static void impossible_pipelines_are_refused_before_anything_is_written(void **state) {
    (void)state;
    static const char *const commands[] = {"train", "plan", "verify"};
    deep_put("deep.yaml", "auto", "");
    for (int k = 0; k < 3; k++) {
        const char *command = commands[k];
        ERROR(78, "network has 5 blocks", command, "deep.yaml", "--stages", "6");
        ERROR(78, "found \"1f1c\"", command, "deep.yaml", "--schedule", "1f1c");
        ERROR(78, "serial has one stage", command, "deep.yaml", "--stages", "2", "--schedule",
              "serial");
        ERROR(78, "which is no layer", command, "deep.yaml", "--set", "pipeline.cuts=[fc9]");
        ERROR(78, "without a layer", command, "deep.yaml", "--set", "pipeline.cuts=[fc3, fc2]");
        ERROR(78, "says 2", command, "deep.yaml", "--stages", "2", "--set",
              "pipeline.cuts=[fc2, fc3]");
        ERROR(78, "more than the time steps (7)", command, "deep.yaml", "--chunks", "8");
        ERROR(78, "more than \"train.batch\"", command, "deep.yaml", "--micro-batches", "17");
        ERROR(69, "pipeline.memory: ", command, "deep.yaml", "--stages", "2", "--set",
              "pipeline.memory=1MiB");
        assert_false(exists("runs"));
    }
    JSON_ERROR(78, "must be auto or a row", "plan", "deep.yaml", "--schedule", "1f1b+2pb");
    assert_contains(out_text, "\"hint\":\"1f1b+2bp\"");
}

/* The text of the file with the first `from` after `mark` replaced by `to`. */
static void edit(const char *name, const char *result, const char *mark, const char *from,
                 const char *to) {
    char text[8192], whole[8192];
    read_text(in_folder(name), text, sizeof text);
    char *at = strstr(text, mark);
    assert_non_null(at);
    at = strstr(at, from);
    assert_non_null(at);
    int size =
        snprintf(whole, sizeof whole, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    tiny_put(in_folder(result), whole, (size_t)size);
}

static void schedule_files_are_taken_and_bad_ones_refused(void **state) {
    (void)state;
    deep_put("deep.yaml", "auto", "");
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "2", "--chunks", "2", "--schedule",
                         "1f1b+2bp", "--dump", "order.txt"),
                     0);
    assert_int_equal(RUN("verify", "deep.yaml", "--stages", "2", "--chunks", "2", "--schedule-file",
                         "order.txt"),
                     0);
    assert_contains(out_text, "identical: 3 steps");
    assert_contains(out_text, "1f1b+2bp, 2 stages, 2 micro-batches, 2 chunks");
    edit("order.txt", "drop.txt", "worker 1", " F1.0", "");
    edit("order.txt", "double.txt", "worker 1", " F1.0", " F0.0");
    edit("order.txt", "twice.txt", "worker 1", " F1.0", " F1.0 F1.0");
    edit("order.txt", "word.txt", "worker 1", "F1.0", "G1.0");
    static const struct {
        const char *file, *part;
    } cases[] = {
        {"drop.txt", "drop.txt: schedule: F1.0 of stage 1 is missing"},
        {"double.txt", "F0.0 of stage 1 stands again"},
        {"twice.txt", "twice.txt: schedule: F1.0 of stage 1 stands again"},
        {"word.txt", "G1.0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ERROR(78, cases[i].part, "train", "deep.yaml", "--stages", "2", "--chunks", "2",
              "--schedule-file", cases[i].file);
    ERROR(78, "has 2 stages", "train", "deep.yaml", "--stages", "3", "--chunks", "2",
          "--schedule-file", "order.txt");
    ERROR(66, "none.txt", "train", "deep.yaml", "--stages", "2", "--schedule-file", "none.txt");
    assert_false(exists("runs"));
}

/* Either list can run alone, but stage 0 sends more ahead than one slot holds: the circle is told.
 */
static void too_few_slots_name_the_circle(void **state) {
    (void)state;
    static const char text[] =
        "ranvier-schedule own\nstages 2\nmicro_batches 4\nchunks 1\nfused 1\nslots 1\ngroup "
        "4\nnorm 0\nversions 0\nnewest 0\nworkers 2\n"
        "worker 0\nF0.0 F1.0 F2.0 F3.0 BW0.0 BW1.0 BW2.0 BW3.0 U0\n"
        "worker 1\nF0.0 BW0.0 F1.0 BW1.0 F2.0 BW2.0 F3.0 BW3.0 U0\n";
    deep_put("deep.yaml", "auto", "");
    tiny_put(in_folder("slots.txt"), text, strlen(text));
    ERROR(78, "it would run with more slots: 0/F3.0 needs 1/F2.0, 1/BW1.0 needs 0/BW0.0", "train",
          "deep.yaml", "--stages", "2", "--micro-batches", "4", "--set", "train.clip_norm=0",
          "--schedule-file", "slots.txt");
    assert_false(exists("runs"));
}

/* Slots that no message ever needs take no memory. */
static void more_slots_than_messages_are_not_made(void **state) {
    (void)state;
    static const char text[] =
        "ranvier-schedule own\nstages 2\nmicro_batches 1\nchunks 1\nfused 1\nslots 2000000000\n"
        "group 1\nnorm 0\nversions 0\nnewest 0\nworkers 2\n"
        "worker 0\nF0.0 BW0.0 U0\nworker 1\nF0.0 BW0.0 U0\n";
    deep_put("deep.yaml", "auto", "");
    tiny_put(in_folder("many.txt"), text, strlen(text));
    assert_int_equal(RUN("train", "deep.yaml", "-q", "-o", "many", "--stages", "2",
                         "--micro-batches", "1", "--chunks", "1", "--set", "train.clip_norm=0",
                         "--set", "train.epochs=1", "--schedule-file", "many.txt"),
                     0);
}

/* ---- verify ----------------------------------------------------------------------------- */

static void verify_finds_every_way_identical(void **state) {
    (void)state;
    static const char *const schedules[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
    char stages[8], chunks[8];
    deep_put("deep.yaml", "auto", "");
    for (int k = 0; k < 5; k++) {
        snprintf(stages, sizeof stages, "%d", k + 1);
        snprintf(chunks, sizeof chunks, "%d", k + 3);
        assert_int_equal(RUN("verify", "deep.yaml", "--stages", stages, "--chunks", chunks,
                             "--schedule", schedules[k], "--steps", "8", "--json"),
                         0);
        json_t *root = parse_out();
        assert_true(json_is_true(json_object_get(root, "identical")));
        assert_true(json_is_null(json_object_get(root, "first_difference")));
        assert_int_equal(number(root, "steps"), 8);
        assert_int_equal(number(root, "stages"), k + 1);
        assert_string_equal(word(root, "schedule"), schedules[k]);
        assert_true(number(root, "compared") > 8 * 4000);
        assert_int_equal(json_array_size(json_object_get(root, "losses")), 8);
        json_decref(root);
    }
    assert_false(exists("runs"));
}

/* Losses of delayed updates that were found identical to the oracle's; the caller lets go. `set`:
 * assignments, to NULL. */
static json_t *delayed(const char *schedule, const char *stages, const char *micros,
                       const char *const *set) {
    const char *words[40] = {"verify",   "deep.yaml", "--json",           "--steps", "20",
                             "--stages", stages,      "--micro-batches",  micros,    "--schedule",
                             schedule,   "--set",     "train.clip_norm=0"};
    int count = 13;
    for (; *set; set++)
        words[count++] = "--set", words[count++] = *set;
    if (run_words(words) != 0)
        fail_msg("%s, %s stages: %s%s", schedule, stages, out_text, err_text);
    json_t *root = parse_out(), *losses = json_incref(json_object_get(root, "losses"));
    assert_true(json_is_true(json_object_get(root, "identical")));
    assert_string_equal(word(root, "schedule"), schedule);
    assert_int_equal(json_array_size(losses), 20);
    bool batches = strcmp(schedule, "2bw") == 0 || strcmp(schedule, "xpipe") == 0;
    assert_int_equal(number(root, "micro_batches"), batches ? 2 : 1);
    json_decref(root);
    return losses;
}

/* What is delayed depends on the cuts, which measured costs would choose. */
#define DELAYED(schedule, ...)                                                                     \
    delayed(schedule, "3", "2",                                                                    \
            (const char *const[]){"pipeline.cuts=[fc3, fc4]", __VA_ARGS__, NULL})
#define SGD "train.optimizer={kind: sgd, lr: 0.05, momentum: 0.9}"

static void verify_finds_every_delayed_mode_identical_to_the_oracle(void **state) {
    (void)state;
    static const char *const stages[] = {"1", "2", "3", "5"};
    deep_put("deep.yaml", "auto", "");
    for (int k = 0; k < rv_delay_table()->count; k++)
        json_decref(delayed(rv_table_row(rv_delay_table(), k)->name, stages[(k + 1) % 4], "2",
                            (const char *const[]){k % 2 ? "pipeline.chunks=3" : "seed=5", NULL}));
    assert_int_equal(RUN("verify", "deep.yaml", "--stages", "2", "--schedule", "pb", "--set",
                         "train.clip_norm=0"),
                     0);
    assert_contains(out_text, "identical: 50 steps");
    assert_contains(out_text, "pb, 2 stages, 1 micro-batches, 1 chunks");
    assert_false(exists("runs"));
}

/* Both sides take them from one recipe and would be identical without them, too: so the losses must
 * be others. Batches of 8 of 96 samples: an epoch has 12 updates. */
static void corrections_of_the_recipe_reach_the_training(void **state) {
    (void)state;
    static const char *const sets[] = {
        "pipeline.corrections=gc",
        "pipeline.corrections=[stash, gc]",
        "pipeline.corrections=[{lwp_v: {cap: 2}}]",
        "pipeline.corrections=[{lwp_v: {cap: 3}}]",
        "pipeline.corrections=[gc, {scale: {batch: 64}}]",
        "pipeline.corrections=[{t1: {steps: 6}}, {t2: {decay: 0.5}}, {t3: {steps: 3}}]",
        "pipeline.async_until=10",
        "pipeline.async_until=1epoch",
    };
    enum { SETS = sizeof sets / sizeof *sets };
    json_t *losses[SETS + 1];
    deep_put("deep.yaml", "auto", "");
    losses[SETS] = DELAYED("pb", SGD);
    for (int k = 0; k < SETS; k++) {
        losses[k] = DELAYED("pb", SGD, sets[k]);
        assert_false(json_equal(losses[k], losses[SETS]));
        for (int j = 0; j < k; j++)
            if (json_equal(losses[k], losses[j])) fail_msg("%s is %s", sets[k], sets[j]);
    }
    /* The newest weights are seen from update `until` on, whose loss is the first of another. */
    for (size_t u = 0; u < 20; u++)
        for (int k = 6; k < 8; k++) {
            size_t until = k == 6 ? 10 : 12;
            bool equal = json_equal(json_array_get(losses[k], u), json_array_get(losses[SETS], u));
            if (u <= until && equal != (u < until)) fail_msg("%s: update %zu", sets[k], u);
        }
    for (int k = 0; k <= SETS; k++)
        json_decref(losses[k]);
    json_t *same = DELAYED("pb", SGD, "pipeline.corrections=[{scale: {batch: 8}}]");
    json_t *plain = DELAYED("pb", SGD);
    assert_true(json_equal(same, plain));
    json_decref(plain);
    json_decref(same);
}

static int lines_of(const char *name) {
    static char text[1 << 12];
    int lines = 0;
    read_text(in_folder(name), text, sizeof text);
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    return lines;
}

/* By key, place, what is allowed and what was found; in the recipe and by --set. */
static void parameters_of_corrections_are_refused_by_name(void **state) {
    (void)state;
    static const char *const values[][2] = {
        {"-1", "-1"},           {"0", "0"},
        {"1.0e+10", "1e+10"},   {"2.5", "2.5"},
        {".nan", "\".nan\""},   {"many", "\"many\""},
        {"1e999", "\"1e999\""}, {"\"3\"", "the text \"3\""},
        {"[3]", "a list"},
    };
    enum { NUMBERS = 4 }; /* the first of them, outside of what is allowed */
    const rv_table *table = rv_correction_table();
    char list[128], text[256];
    int parameters = 0;
    for (int k = 0; k < 2 * table->count; k++) {
        const rv_correction *row = (const void *)rv_table_row(table, k / 2);
        const char *name = row->row.name, *parameter = row->parameter;
        const bool given = k % 2;
        if (!parameter) continue;
        parameters++;
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            snprintf(list, sizeof list, "[gc, {%s: {%s: %s}}]", name, parameter, values[i][0]);
            snprintf(text, sizeof text, "pipeline: {stages: 2, schedule: pb, corrections: %s}\n",
                     given ? "[]" : list);
            deep_put("deep.yaml", "auto", text);
            snprintf(text, sizeof text, "pipeline.corrections=%s", list);
            assert_int_equal(
                RUN("check", "deep.yaml", "--json", "--set", given ? text : "train.clip_norm=0"),
                78);
            json_t *root = parse_out(), *error = json_object_get(root, "error");
            const char *message = word(error, "message");
            snprintf(text, sizeof text, "pipeline.corrections.%s.%s", name, parameter);
            assert_string_equal(word(error, "key"), text);
            if (!given) assert_int_equal(number(error, "line"), lines_of("deep.yaml"));
            snprintf(text, sizeof text, "%s, found %s",
                     i >= NUMBERS                      ? "number"
                     : strcmp(parameter, "decay") == 0 ? "number from 1e-06 to 0.999999"
                                                       : "whole number from 1 to 1073741824",
                     values[i][1]);
            if (!strstr(message, text)) fail_msg("%s: no \"%s\" in \"%s\"", list, text, message);
            json_decref(root);
        }
    }
    assert_int_equal(parameters, 2 * 7);
}

static void delayed_recipes_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"pipeline.tape=recompute", "pipeline.tape"},
        {"pipeline.tape={n1: spill}", "pipeline.tape"},
        {"pipeline.truncate=2", "pipeline.truncate"},
        {"pipeline.chunks=auto", "pipeline.chunks"},
        {"health.policy=skip_step", "health.policy"},
        {"train.clip_norm=0.5", "train.clip_norm"},
        {"train.micro_batches=3", "a batch of 16 does not make 3 equal ones"},
        {"pipeline.corrections=gcc", "no correction \"gcc\""},
        {"pipeline.corrections=[gc, gc]", "gc is there twice"},
        {"pipeline.corrections=[gc]", "gc has no form for the optimiser adam"},
        {"pipeline.corrections=[lwp_v, lwp_w]", "lwp_w and lwp_v cannot go together"},
        {"pipeline.corrections=[{lwp_v: {cup: 3}}]", "no parameter \"cup\", but cap"},
        {"pipeline.corrections=[{lwp_v: 3}]", "or of maps like {lwp_v: {cap: 3}}, found \"3\""},
        {"pipeline.corrections=[[gc]]", "or of maps like {lwp_v: {cap: 3}}, found a list"},
        {"pipeline.corrections=[{gc: 1, t2: 1}]", "or of maps like {lwp_v: {cap: 3}}, found a map"},
        {"pipeline.async_until=0", "pipeline.async_until"},
        {"pipeline.async_until=2epochs", "pipeline.async_until"},
        {"pipeline.schedule=spikepip", "found \"spikepip\""},
    };
    deep_put("deep.yaml", "auto", "");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        ERROR(78, cases[k][1], "verify", "deep.yaml", "--stages", "2", "--schedule", "pb", "--set",
              "train.clip_norm=0", "--set", cases[k][0]);
    ERROR(78, "a synchronous schedule has none", "verify", "deep.yaml", "--set",
          "pipeline.corrections=stash");
    ERROR(78, "this one is synchronous", "verify", "deep.yaml", "--set", "pipeline.async_until=5");
    ERROR(78, "is the order of one step", "verify", "deep.yaml", "--schedule", "pb", "--set",
          "train.clip_norm=0", "--schedule-file", "order.txt");
    assert_int_equal(RUN("verify", "deep.yaml", "--schedule", "pipedreem"), 78);
    assert_contains(err_text, "(did you mean \"pipedream\"?)");
    deep_put("delayed.yaml", "auto", "pipeline: {schedule: pb}\n");
    static const char *const commands[] = {"train", "plan", "verify", "check"};
    for (int k = 0; k < 4; k++)
        ERROR(78, "train.clip_norm", commands[k], "delayed.yaml");
    assert_false(exists("runs"));
}

/* One weight of the pipeline is moved by its last bit. */
static void difference_names_layer_tensor_and_index(void **state) {
    (void)state;
    const pipe_way way = {.schedule = "1f1b", .stages = 3, .micros = 2, .chunks = 2};
    small s;
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    rv_engine *one = NULL, *many = NULL;
    rv_difference difference;
    int64_t compared = 0;
    pipe_open(&s, &pipe_nets[0], &way);
    rv_pipeline_destroy(pipe_make(&s, &way, first, &schedule));
    const rv_serial_desc serial = {s.net, &s.device, &s.encoder, &s.loss, &s.train, 100};
    const rv_pipeline_desc pipeline = pipe_desc(&s, &way, first, &schedule);
    OK(rv_engine_serial(&serial, &one));
    OK(rv_engine_pipeline(&pipeline, &many));
    rv_step_result a = {0}, b = {0};
    OK(rv_engine_step(one, &s.batch, &a));
    OK(rv_engine_step(many, &s.batch, &b));
    assert_false(rv_engines_differ(s.net, one, &a, many, &b, &difference, &compared));
    assert_true(compared > 1000);
    const rv_tensor *weight = rv_net_tensor_find(s.net, "fc3.weight");
    uint32_t bits;
    float *at = rv_engine_block(many) + weight->offset + (size_t)(7 * weight->ld + 2);
    memcpy(&bits, at, sizeof bits);
    bits ^= 1;
    memcpy(at, &bits, sizeof bits);
    OK(rv_engine_push(many));
    assert_true(rv_engines_differ(s.net, one, &a, many, &b, &difference, &compared));
    assert_string_equal(difference.what, "weight");
    assert_string_equal(difference.layer, "fc3");
    assert_string_equal(difference.tensor, "weight");
    assert_int_equal(difference.index, 2 * PIPE_HIDDEN + 7); /* row 2, column 7, as in files */
    /* From here on the next step differs, too: first in a gradient. */
    OK(rv_engine_step(one, &s.batch, &a));
    OK(rv_engine_step(many, &s.batch, &b));
    assert_true(rv_engines_differ(s.net, one, &a, many, &b, &difference, &compared));
    b = a, b.loss = nextafter(a.loss, 2);
    OK(rv_engine_push(one));
    assert_true(rv_engines_differ(s.net, one, &a, one, &b, &difference, &compared));
    assert_string_equal(difference.what, "loss");
    rv_engine_destroy(many);
    rv_engine_destroy(one);
    rv_schedule_finish(&schedule);
    small_finish(&s);
}

/* ---- training --------------------------------------------------------------------------- */

static void same(const char *a, const char *b) {
    if (RUN("diff", a, b) != 0) fail_msg("%s%s", out_text, err_text);
}

static void training_in_stages_gives_the_files_of_one_device(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    deep_put("deep.yaml", "auto", "");
    assert_int_equal(RUN("train", "deep.yaml", "-o", "one", "--chunks", "5"), 0);
    assert_int_equal(RUN("train", "deep.yaml", "-o", "three", "--chunks", "5", "--stages", "3"), 0);
    assert_contains(err_text, "plan: 3 stages, cut before ");
    same("one", "three");
    char text[4096];
    read_text(in_folder("three/run.json"), text, sizeof text);
    assert_contains(text, "\"status\": \"complete\"");
    assert_int_equal(RUN("train", "deep.yaml", "-o", "cuts", "--chunks", "5", "--set",
                         "pipeline.cuts=[n1, n2, fc5]", "--set", "pipeline.slots=4", "--schedule",
                         "zb"),
                     0);
    same("one", "cuts");
}

/* Stopped at three stages and five chunks, it goes on at one stage: with five chunks to the bit;
 * with one where every weight gradient adds events, else close. */
static void run_goes_on_with_other_stages_and_chunks(void **state) {
    (void)state;
    static const char *const forms[] = {"event", "dense"};
    if (!rv_h5_available()) skip();
    for (int k = 0; k < 2; k++) {
        char whole[16], part[16], other[16], copy[128];
        snprintf(whole, sizeof whole, "whole%d", k), snprintf(part, sizeof part, "part%d", k);
        snprintf(other, sizeof other, "other%d", k);
        deep_put("deep.yaml", forms[k], "");
        assert_int_equal(RUN("train", "deep.yaml", "-o", whole, "--chunks", "5"), 0);
        assert_int_equal(RUN("train", "deep.yaml", "-o", part, "--chunks", "5", "--stages", "3",
                             "--set", "train.max_steps=7", "--set",
                             "train.lr_schedule.total_steps=18"),
                         0);
        snprintf(copy, sizeof copy, "cp -r %s/%s %s/%s", folder, part, folder, other);
        assert_int_equal(system(copy), 0);
        assert_int_equal(RUN("train", "deep.yaml", "--resume", part, "--chunks", "5", "--set",
                             "train.lr_schedule.total_steps=18"),
                         0);
        same(whole, part);
        assert_int_equal(RUN("train", "deep.yaml", "--resume", other, "--chunks", "1", "--set",
                             "train.lr_schedule.total_steps=18"),
                         0);
        if (k == 0) same(whole, other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_shows_cut_timeline_and_memory),
        cmocka_unit_test(plan_auto_is_never_slower_than_a_fixed_choice),
        cmocka_unit_test(plan_prints_no_minus_zero),
        cmocka_unit_test(plan_refuses_bad_profiles),
        cmocka_unit_test(impossible_pipelines_are_refused_before_anything_is_written),
        cmocka_unit_test(schedule_files_are_taken_and_bad_ones_refused),
        cmocka_unit_test(too_few_slots_name_the_circle),
        cmocka_unit_test(more_slots_than_messages_are_not_made),
        cmocka_unit_test(verify_finds_every_way_identical),
        cmocka_unit_test(verify_finds_every_delayed_mode_identical_to_the_oracle),
        cmocka_unit_test(corrections_of_the_recipe_reach_the_training),
        cmocka_unit_test(parameters_of_corrections_are_refused_by_name),
        cmocka_unit_test(delayed_recipes_that_cannot_be_are_refused),
        cmocka_unit_test(difference_names_layer_tensor_and_index),
        cmocka_unit_test(training_in_stages_gives_the_files_of_one_device),
        cmocka_unit_test(run_goes_on_with_other_stages_and_chunks),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
