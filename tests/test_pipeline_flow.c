/*
 * Delayed pipelines have the bits of the oracle, whatever the threads and links do: every mode,
 * one to six stages, with and without chunks, links that are late by random times.
 */
#include "tests/flows.h"
#include "tests/slow_link.h"

enum { UPDATES = 50 };

/* A delayed description from words: "pb gc lwp_v". */
static rv_delay_desc desc_of(const char *words) {
    rv_delay_desc desc = {0};
    char copy[64], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    char *word = strtok_r(copy, " ", &rest);
    desc.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), word);
    if (!desc.mode) fail_msg("no mode %s", word);
    while ((word = strtok_r(NULL, " ", &rest))) {
        double steps = strcmp(word, "t3") == 0 ? 5 : strcmp(word, "t1") == 0 ? 16 : 0;
        OK(rv_delay_add(&desc, word, steps > 0 ? "steps" : NULL, steps));
    }
    return desc;
}

static const struct {
    const char *words;
    int micros;
} modes[] = {
    {"pb", 1},          {"stale", 1},    {"pipedream", 1}, {"ddg", 1},      {"ddg_code", 1},
    {"2bw", 3},         {"xpipe", 3},    {"pb stash", 1},  {"pb lwp_w", 1}, {"stale ema", 1},
    {"pb t1 t2 t3", 1}, {"pb lwp_v", 1}, {"2bw lwp_w", 2},
};
enum { MODES = sizeof modes / sizeof *modes };

static void threads_with_late_links_are_the_oracle(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++)
        for (int stages = 1; stages <= FLOW_STAGES; stages++)
            for (int chunks = 1; chunks <= 3; chunks += 2) {
                slow_plan plan = {.seed = (uint64_t)(17 * k + stages),
                                  .sleeps = (stages + k) % 3 == 0};
                rv_transport slow = {"slow", slow_open, &plan};
                char what[96];
                flow t;
                const rv_delay_desc delay = desc_of(modes[k].words);
                const pipe_way way = {.stages = stages,
                                      .micros = modes[k].micros,
                                      .chunks = chunks,
                                      .slots = 1 + k % 3,
                                      .timeout = 20,
                                      .driver = plan.sleeps || (stages + k) % 3 == 1
                                                    ? RV_DRIVER_THREADS
                                                    : RV_DRIVER_SEEDED,
                                      .seed = (uint64_t)k,
                                      .transport = (stages + k) % 3 == 1 ? NULL : &slow};
                flow_open(&t, &pipe_nets[k % 4 == 3 ? 2 : 0], &delay, &way);
                snprintf(what, sizeof what, "%s, %d stages, %d chunks", modes[k].words, stages,
                         chunks);
                flow_run(&t, what, UPDATES, stages == 3 ? 11 : 0);
                flow_finish(&t);
            }
}

/* Membranes on tapes are rounded alike, whoever runs the step. */
static void half_tapes_are_the_oracle(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++) {
        const rv_delay_desc delay = desc_of(modes[k].words);
        flow t;
        const pipe_way way = {.stages = 3,
                              .micros = modes[k].micros,
                              .chunks = 1 + k % 3,
                              .timeout = 20,
                              .half = true};
        flow_open(&t, &pipe_nets[k % 4 == 3 ? 2 : 0], &delay, &way);
        flow_run(&t, modes[k].words, UPDATES / 2, 0);
        flow_finish(&t);
    }
}

/* After `until` updates every version is the newest, and nothing was lost or applied twice. */
static void delay_that_ends_drains_clean(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++) {
        flow t;
        const rv_delay_desc delay = desc_of(modes[k].words);
        const pipe_way way = {.stages = 4, .micros = modes[k].micros, .chunks = 1, .timeout = 20};
        flow_open(&t, &pipe_nets[0], &delay, &way);
        rv_pipeline_destroy(t.pipeline);
        rv_oracle_destroy(t.oracle);
        t.delay.until = 13;
        rv_pipeline_desc desc = pipe_desc(&t.s, &way, t.first, &t.schedule);
        desc.delay = &t.delay;
        OK(rv_pipeline_create(&desc, &t.pipeline));
        const rv_oracle_desc how = {t.s.net,  &t.s.device, &t.s.encoder, &t.s.loss, &t.s.train, 100,
                                    &t.delay, 4,           t.first};
        OK(rv_oracle_create(&how, &t.oracle));
        flow_run(&t, modes[k].words, 24, 0);
        flow_finish(&t);
    }
}

/* Share of the time that the first of equal stages works in the steady state. */
static double busy_of(const rv_delay_desc *delay, int stages, int micros, int chunks, int slots,
                      double scatter) {
    enum { DRAWS = 8 };
    const double cost[FLOW_STAGES] = {1, 1, 1, 1, 1, 1}, none[FLOW_STAGES] = {0};
    const double same[FLOW_STAGES] = {scatter, scatter, scatter, scatter, scatter, scatter};
    rv_costs costs = {
        .f = cost, .b = cost, .w = cost, .u = none, .scatter = same, .latency = 0.001};
    rv_schedule schedule;
    double busy = 0;
    OK(rv_schedule_endless(delay, stages, micros, chunks, 60, slots, &schedule));
    for (uint32_t n = 1; n <= DRAWS; n++) {
        costs.draw = scatter > 0 ? n : 0;
        OK(rv_schedule_simulate(&schedule, &costs, NULL));
        busy += rv_schedule_busy(&schedule, 0, 20, 40) / DRAWS;
    }
    rv_schedule_finish(&schedule);
    return busy;
}

/* Nothing to wait for but two slots' messages: in the steady state no stage has a gap, however deep
 * the pipeline is. Of 2bw an update must have as many chunks as are under way. */
static void equal_stages_are_always_busy(void **state) {
    (void)state;
    for (int k = 0; k < MODES; k++)
        for (int stages = 2; stages <= FLOW_STAGES; stages++)
            for (int chunks = 1; chunks <= 8; chunks++)
                for (int slots = 2; slots <= 8; slots += slots > 3 ? 4 : 1) {
                    const rv_delay_desc delay = desc_of(modes[k].words);
                    if (delay.mode->batch && modes[k].micros * chunks < stages + chunks - 2)
                        continue;
                    double busy = busy_of(&delay, stages, modes[k].micros, chunks, slots, 0);
                    if (busy < 0.97)
                        fail_msg("%s, %d stages, %d chunks, %d slots: busy %.3f", modes[k].words,
                                 stages, chunks, slots, busy);
                }
}

/* With more slots a stage may be further ahead, and waits less for items that take longer. */
static void slack_keeps_two_stages_busy_whose_items_scatter(void **state) {
    (void)state;
    const rv_delay_mode *two_ways = desc_of("pb").mode;
    for (int k = 0; k < MODES; k++) {
        const rv_delay_desc delay = desc_of(modes[k].words);
        double busy[5];
        for (int slots = 1; slots <= 4; slots++) {
            busy[slots] = busy_of(&delay, 2, modes[k].micros, 8, slots, 0.2);
            if (slots > 1 && busy[slots] < busy[slots - 1] - 1e-3)
                fail_msg("%s: busy %.3f with %d slots, %.3f with one more", modes[k].words,
                         busy[slots - 1], slots - 1, busy[slots]);
        }
        /* A sequence an update in turn: versions leave half a sequence. */
        const bool little = modes[k].micros == 1 && delay.mode != two_ways;
        if (busy[4] < (little ? 0.96 : 0.98) || busy[4] < busy[2] + (little ? 0.002 : 0.01))
            fail_msg("%s: busy %.3f with two slots, %.3f with four", modes[k].words, busy[2],
                     busy[4]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_with_late_links_are_the_oracle),
        cmocka_unit_test(half_tapes_are_the_oracle),
        cmocka_unit_test(delay_that_ends_drains_clean),
        cmocka_unit_test(equal_stages_are_always_busy),
        cmocka_unit_test(slack_keeps_two_stages_busy_whose_items_scatter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
