/*
 * Plans of orders that never end: what they foretell of delay, versions and samples in flight is
 * what stages do; their rate is that of as long a run as one likes; slots, memory, and how it looks
 * from outside.
 */
#include "tests/accounts.h"
/* after cmocka.h */
#include "tests/late.h"
#include "tests/profile.h"

/* ---- plans of given costs ---------------------------------------------------------------- */

static const char *profile_of(const rv_net *net, double spread, double scatter) {
    const char *first[SMALL_LAYERS];
    for (int i = 0; i < net->block_count; i++)
        first[i] = rv_net_layer_name(net, net->block_first[i]);
    return profile_put(first, net->block_count, spread, scatter);
}

static rv_plan_desc plan_desc(trial *t, double spread) {
    t->s.train.batch = SAMPLES;
    return (rv_plan_desc){.cost = {.net = t->s.net,
                                   .encoder = &t->s.encoder,
                                   .loss = &t->s.loss,
                                   .train = &t->s.train,
                                   .batch = &t->s.batch,
                                   .threads = 1},
                          .stages = t->way.stages,
                          .slots = t->way.slots,
                          .profile = profile_of(t->s.net, spread, 0),
                          .delay = &t->delay};
}

/* The account of a stage in the steady state: as many passes an update, of the same ages. */
static void stage_check(const rv_plan *plan, const rv_stage *stage, const char *where) {
    const int s = stage->desc.index, rows = SAMPLES / plan->micros;
    const rv_account *got = &stage->account;
    const rv_account *want = &plan->stage[s].account;
    if (got->versions != want->versions || got->samples != want->samples ||
        got->stash != want->stash || want->stash != plan->stage[s].bytes.versions)
        fail_msg("%s: %d versions, %lld samples, %g bytes, not %d, %lld, %g (%g)", where,
                 got->versions, (long long)got->samples, got->stash, want->versions,
                 (long long)want->samples, want->stash, plan->stage[s].bytes.versions);
    assert_true(plan->stage[s].bytes.state ==
                (stage->flights + 1.0) * (double)rv_state_bytes(&stage->range, rows));
    assert_true(want->updates > 3 && got->updates > 3);
    for (int d = 0; d <= want->most; d++)
        if (got->forward[d] * want->updates != want->forward[d] * got->updates ||
            got->backward[d] * want->updates != want->backward[d] * got->updates)
            fail_msg("%s: delay %d: %lld and %lld passes in %lld updates, not %lld and %lld in "
                     "%lld",
                     where, d, (long long)got->forward[d], (long long)got->backward[d],
                     (long long)got->updates, (long long)want->forward[d],
                     (long long)want->backward[d], (long long)want->updates);
}

static void plan_foretells_what_stages_do(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++)
        for (int n = 0; n < 2 * STAGES; n++) {
            char where[96];
            trial t = {.way = {.stages = 1 + n % STAGES,
                               .micros = modes[k].micros,
                               .chunks = n / STAGES % 2 ? 3 : 1,
                               .timeout = 60,
                               .driver = (n + k) % 2 ? RV_DRIVER_SEEDED : RV_DRIVER_THREADS,
                               .seed = (uint64_t)k}};
            rv_plan plan;
            trial_open(&t, k);
            const rv_plan_desc desc = plan_desc(&t, 1);
            OK(rv_plan_make(&desc, &plan));
            trial_run(&t, &plan.schedule, plan.first, 15);
            for (int s = 0; s < t.way.stages; s++) {
                snprintf(where, sizeof where, "%s %s, stage %d of %d, %d chunks", modes[k].mode,
                         modes[k].corrections, s, t.way.stages, t.way.chunks);
                stage_check(&plan, rv_pipeline_stage(t.pipeline, s), where);
            }
            assert_true(plan.batches >= (double)rv_flow_bytes(&t.s.batch));
            trial_finish(&t);
            rv_plan_finish(&plan);
        }
}

/* ---- rates and slots --------------------------------------------------------------------- */

/* Seconds an update, and the busy share of every stage, of a run that is much longer than the
 * planned one; without end where stages wait for each other. */
static double long_run(const trial *t, const rv_plan *plan, int slots, double *busy) {
    enum { FROM = 60, TO = 260, ALL = 300 };
    double cost[4][STAGES];
    rv_schedule schedule;
    for (int s = 0; s < plan->stages; s++) {
        const rv_part_cost *part = &plan->stage[s].cost;
        cost[0][s] = part->f, cost[1][s] = part->b, cost[2][s] = part->w, cost[3][s] = part->u;
    }
    const rv_costs costs = {.f = cost[0],
                            .b = cost[1],
                            .w = cost[2],
                            .u = cost[3],
                            .chunk_steps = plan->chunks == 3 ? (const int[]){2, 2, 3} : NULL,
                            .latency = plan->latency};
    OK(rv_schedule_endless(&t->delay, plan->stages, plan->micros, plan->chunks, ALL, slots,
                           &schedule));
    if (rv_schedule_simulate(&schedule, &costs, NULL) != RV_OK) {
        rv_schedule_finish(&schedule);
        return INFINITY;
    }
    double made = rv_schedule_made(&schedule, 0, TO) - rv_schedule_made(&schedule, 0, FROM);
    for (int s = 0; s < plan->stages; s++)
        busy[s] = rv_schedule_busy(&schedule, s, FROM, TO);
    rv_schedule_finish(&schedule);
    return made / (TO - FROM);
}

static void rate_is_that_of_a_long_run_with_the_fewest_slots(void **state) {
    (void)state;
    int more = 0;
    for (int k = 0; k < 7; k++)
        for (int n = 0; n < 6; n++) {
            trial t = {
                .way = {.stages = 2 + n / 2, .micros = modes[k].micros, .chunks = 1 + n % 2 * 2}};
            rv_plan plan;
            double work = 0, serial = 0, busy[STAGES], other[STAGES];
            trial_open(&t, k);
            const rv_plan_desc desc = plan_desc(&t, 1.5);
            OK(rv_plan_make(&desc, &plan));
            double free = long_run(&t, &plan, 0, other),
                   same = long_run(&t, &plan, plan.schedule.slots, busy);
            if (fabs(plan.step / free - 1) > 1e-4 || fabs(same / free - 1) > 1e-4)
                fail_msg("%s, %d stages, %d chunks: %g ms an update; a long run %g ms, without a "
                         "limit %g ms",
                         modes[k].mode, plan.stages, plan.chunks, 1e3 * plan.step, 1e3 * same,
                         1e3 * free);
            if (plan.schedule.slots > 1) {
                more++;
                double fewer = long_run(&t, &plan, plan.schedule.slots - 1, other);
                if (!(fewer > free * (1 + 1e-7)))
                    fail_msg("%s, %d stages, %d chunks: %d slots would do", modes[k].mode,
                             plan.stages, plan.chunks, plan.schedule.slots - 1);
            }
            for (int s = 0; s < plan.stages; s++) {
                const rv_part_cost *part = &plan.stage[s].cost;
                double own = plan.micros * (part->f + part->b + part->w);
                work += own, serial += own + part->u;
                assert_true(fabs(plan.stage[s].busy - busy[s]) < 2e-3);
            }
            assert_true(plan.step >= plan.bound * (1 - 1e-9) && plan.step < serial);
            assert_true(fabs(plan.bubble - (1 - work / (plan.stages * plan.step))) < 1e-9);
            assert_true(fabs(plan.serial - serial) < 1e-9);
            rv_plan_finish(&plan);
            small_finish(&t.s);
        }
    assert_true(more > 5);
}

/* Five blocks of which the first costs as much as two others, so that two stages are balanced. */
static const char *even_profile(const rv_net *net, double scatter) {
    static const char *const keys[] = {"f_ms", "b_ms", "w_ms", "u_ms"};
    const char *path = profile_of(net, 0, scatter);
    json_t *root = json_load_file(path, 0, NULL);
    json_t *point = json_array_get(json_object_get(root, "points"), 0);
    json_t *block = json_array_get(json_object_get(point, "blocks"), 0);
    for (int k = 0; k < 4; k++)
        json_real_set(json_object_get(block, keys[k]),
                      2 * json_real_value(json_object_get(block, keys[k])));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

/* As few slots as keep stages busy: more of them where items scatter. */
static void slots_are_more_where_items_scatter(void **state) {
    (void)state;
    trial t = {.way = {.stages = 2, .micros = 1, .chunks = 7}};
    double expected[2];
    int slots[2];
    trial_open(&t, 0); /* pb */
    rv_plan_desc desc = plan_desc(&t, 0);
    for (int n = 0; n < 2; n++) {
        rv_plan plan;
        desc.profile = even_profile(t.s.net, 0.25 * n);
        OK(rv_plan_make(&desc, &plan));
        assert_true(n ? plan.expected > plan.bubble : plan.expected == plan.bubble);
        expected[n] = plan.expected, slots[n] = plan.schedule.slots;
        rv_plan_finish(&plan);
        if (n == 0) continue;
        desc.slots = 2;
        OK(rv_plan_make(&desc, &plan));
        assert_true(plan.expected > expected[n] + 0.01);
        rv_plan_finish(&plan);
    }
    assert_true(slots[0] == 2 && slots[1] > 2);
    small_finish(&t.s);
}

/* Fewer slots, then other cuts, then nothing. */
static void memory_of_versions_is_kept_within_the_limit(void **state) {
    (void)state;
    trial t = {.way = {.stages = 3, .micros = 1, .chunks = 3}};
    rv_plan plan;
    trial_open(&t, 2); /* pipedream */
    rv_plan_desc desc = plan_desc(&t, 1.5);
    OK(rv_plan_make(&desc, &plan));
    double most = plan.bytes, versions = 0, rest = plan.copy + plan.batches, bytes = 0;
    int slots = plan.schedule.slots;
    for (int s = 0; s < 3; s++) {
        bytes += rv_plan_stage_bytes(&plan.stage[s]);
        versions += plan.stage[s].bytes.versions;
    }
    assert_true(fabs(rest + bytes - most) < 1 && versions > 0.05 * bytes && slots > 1);
    rv_plan_finish(&plan);
    desc.memory = most - 1;
    OK(rv_plan_make(&desc, &plan));
    assert_true(plan.bytes <= desc.memory && plan.schedule.slots < slots);
    rv_plan_finish(&plan);
    while (rv_plan_make(&desc, &plan) == RV_OK) {
        assert_true(plan.bytes <= desc.memory);
        rv_plan_finish(&plan);
        desc.memory -= 4096;
    }
    assert_true(desc.memory < most - 0.01 * bytes && desc.memory > versions + rest);
    assert_non_null(strstr(rv_error_get()->message, "schedule pipedream does not fit"));
    desc.memory = 0, desc.slots = slots + 3; /* as they are asked for */
    OK(rv_plan_make(&desc, &plan));
    assert_int_equal(plan.schedule.slots, slots + 3);
    rv_plan_finish(&plan);
    small_finish(&t.s);
}

/* ---- from outside ------------------------------------------------------------------------ */

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

static void deep_put(void) {
    char text[2048];
    int size = snprintf(text, sizeof text,
                        "seed: 7\n" TINY_DATA "encode: {kind: rate, steps: 7}\n"
                        "network:\n"
                        "  - {name: fc1, kind: linear, units: 24}\n"
                        "  - {name: n1, kind: lif, beta: 0.9, threshold: 0.5}\n"
                        "  - {name: fc2, kind: linear, units: 24}\n"
                        "  - {name: n2, kind: lif, beta: 0.9, threshold: 0.3}\n"
                        "  - {name: fc3, kind: linear, units: 4}\n"
                        "  - {name: n3, kind: li, beta: 0.9}\n"
                        "loss: {kind: cross_entropy, readout: membrane_mean}\n"
                        "train: {epochs: 3, batch: 16, micro_batches: 2, optimizer: {kind: adam, "
                        "lr: 0.02}}\n",
                        folder);
    tiny_put(in_folder("deep.yaml"), text, (size_t)size);
}

static void delayed_plans_are_shown(void **state) {
    (void)state;
    char svg[1 << 17];
    deep_put();
    for (int k = 0; k < rv_delay_table()->count; k++) {
        const char *mode = rv_table_row(rv_delay_table(), k)->name;
        const rv_delay_mode *row = (const void *)rv_table_row(rv_delay_table(), k);
        const bool batch = row->batch;
        assert_int_equal(RUN("plan", "deep.yaml", "--stages", "2", "--chunks", "3", "--schedule",
                             mode, "--json"),
                         0);
        json_t *plan = parse_out(), *delay = json_object_get(plan, "delay"), *stage;
        size_t s;
        double sum = number(plan, "copy_bytes") + number(delay, "batches_bytes");
        assert_string_equal(json_string_value(json_object_get(plan, "schedule")), mode);
        assert_int_equal(number(plan, "micro_batches"), batch ? 2 : 1);
        if (!row->blocks) { /* whose workers steps have not */
            assert_true(fabs(number(delay, "speed_up_1f1b") -
                             number(delay, "step_1f1b_ms") / number(plan, "makespan_ms")) < 1e-9);
            assert_true(number(delay, "bubble_1f1b") > 0);
        }
        json_array_foreach(json_object_get(plan, "stage"), s, stage) {
            const json_t *late = json_object_get(stage, "delay");
            const json_t *counts = json_object_get(late, "forward");
            double passes = json_number_value(json_array_get(counts, json_array_size(counts) - 1));
            sum += number(stage, "peak_bytes");
            /* Workers that share stages may be some F before or behind where the window ends. */
            double cut = passes - number(late, "updates") * 3 * (batch ? 2 : 1);
            assert_true(fabs(cut) <= (row->blocks ? 3 * number(late, "versions") : 0));
            assert_int_equal(number(late, "versions"), json_array_size(counts));
            assert_true(number(late, "stash_bytes") ==
                        number(json_object_get(stage, "bytes"), "versions"));
            assert_true(number(stage, "busy") > 0 && number(stage, "busy") < 1 + 1e-9);
        }
        assert_true(fabs(sum - number(plan, "peak_bytes")) < 1);
        json_decref(plan);
    }
    assert_int_equal(RUN("plan", "deep.yaml", "--devices", "3", "--schedule", "pb", "--svg",
                         "t.svg", "--dump", "order.txt", "--set", "pipeline.corrections=stash"),
                     0);
    assert_contains(out_text, "schedule pb: 3 stages, 1 micro-batches, 1 chunks");
    assert_contains(out_text, "stage 2  ");
    assert_contains(out_text, "samples in flight");
    assert_contains(out_text, "times as fast as 1f1b");
    assert_contains(out_text, "<- taken");
    for (const char *line = out_text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (end - line > 100) fail_msg("%d columns: %.120s", (int)(end - line), line);
    read_text(in_folder("t.svg"), svg, sizeof svg);
    assert_contains(svg, "</svg>");
    assert_contains(svg, "<title>F");
    read_text(in_folder("order.txt"), svg, sizeof svg);
    assert_contains(svg, "@3");
    assert_int_equal(RUN("plan", "deep.yaml", "--json"), 0);
    json_t *plan = parse_out();
    assert_true(json_is_null(json_object_get(plan, "delay")));
    json_decref(plan);
}

/* One update old at every depth needs as many micro-batches as that takes. */
static void too_few_micro_batches_of_2bw_are_told(void **state) {
    (void)state;
    deep_put();
    assert_int_equal(
        RUN("plan", "deep.yaml", "--stages", "3", "--schedule", "2bw", "--micro-batches", "1"), 0);
    assert_contains(out_text, "with fewer than 2 micro-batches an update waits");
    assert_int_equal(RUN("plan", "deep.yaml", "--stages", "3", "--schedule", "2bw"), 0);
    assert_null(strstr(out_text, "waits for its version"));
}

/* ---- training ---------------------------------------------------------------------------- */

static void same_share(const json_t *stage, const json_t *planned, const char *key,
                       const char *what) {
    const json_t *got = json_object_get(stage, key), *want = json_object_get(planned, key);
    for (size_t d = 0; d < json_array_size(got) || d < json_array_size(want); d++) {
        double share = json_number_value(json_array_get(got, d)) / number(stage, "updates");
        if (share != json_number_value(json_array_get(want, d)) / number(planned, "updates"))
            fail_msg("%s: %s: %g passes an update are %zu updates late", what, key, share, d);
    }
}

/* A line an epoch: in the last one the pipe is full. How many samples are in flight depends on how
 * fast they are fed. */
static void training_tells_its_delay(void **state) {
    (void)state;
    static char text[1 << 16];
    char what[128], run[32], path[64];
    for (int k = 0; k < LATE_MODES; k++) {
        const late_mode *mode = &late_modes[k];
        int lines = 0;
        late_recipe("late.yaml", mode, "");
        snprintf(run, sizeof run, "told%d", k);
        assert_int_equal(RUN("train", "late.yaml", "-o", run, "--set", "checkpoint.every=3"), 0);
        assert_contains(err_text, "samples in flight (planned");
        snprintf(path, sizeof path, "%s/metrics.jsonl", run);
        read_text(in_folder(path), text, sizeof text);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            json_t *root = json_loads(line, 0, NULL), *stage;
            size_t s;
            if (strcmp(json_string_value(json_object_get(root, "event")), "delay") == 0) {
                lines++;
                assert_int_equal(number(root, "epoch"), lines);
                assert_int_equal(json_array_size(json_object_get(root, "stages")), 4);
            }
            json_array_foreach(json_object_get(root, "stages"), s, stage) {
                const json_t *planned = json_object_get(stage, "planned");
                if (!planned || lines < LATE_EPOCHS) continue;
                snprintf(what, sizeof what, "%s %s, stage %zu", mode->schedule, mode->corrections,
                         s);
                same_share(stage, planned, "forward", what);
                same_share(stage, planned, "backward", what);
                assert_int_equal(number(stage, "versions"), number(planned, "versions"));
                assert_true(number(stage, "stash_bytes") == number(planned, "stash_bytes"));
                assert_true(number(stage, "samples_in_flight") > 0 &&
                            number(stage, "samples_in_flight") <=
                                number(planned, "samples_in_flight"));
            }
            json_decref(root);
        }
        assert_int_equal(lines, LATE_EPOCHS);
    }
    assert_int_equal(RUN("train", "late.yaml", "-o", "steps", "--set", "pipeline.schedule=1f1b",
                         "--set", "pipeline.corrections=[]"),
                     0);
    read_text(in_folder("steps/metrics.jsonl"), text, sizeof text);
    assert_null(strstr(text, "\"delay\""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_foretells_what_stages_do),
        cmocka_unit_test(rate_is_that_of_a_long_run_with_the_fewest_slots),
        cmocka_unit_test(slots_are_more_where_items_scatter),
        cmocka_unit_test(memory_of_versions_is_kept_within_the_limit),
        cmocka_unit_test(delayed_plans_are_shown),
        cmocka_unit_test(too_few_micro_batches_of_2bw_are_told),
        cmocka_unit_test(training_tells_its_delay),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
