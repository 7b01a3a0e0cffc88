/*
 * Stages that share workers (spikepipe): the oracle's bits whatever the workers, chunks and links
 * are, list scheduling by the longest remaining path, and what ends a run.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/flows.h"
#include "tests/lossy_link.h"
#include "tests/slow_link.h"
/* after cmocka.h */
#include "tests/late.h"
#include "tests/profile.h"

enum { BLOCKS = 7, UPDATES = 50 };

/* ---- what is counted: linked with --wrap (Makefile) --------------------------------------- */

static atomic_long allocations;
static atomic_bool counting;
static pthread_t caller;

static void seen(void) {
    if (atomic_load(&counting) && !pthread_equal(pthread_self(), caller))
        atomic_fetch_add(&allocations, 1);
}

#define WRAP(result, name, parameters, arguments)                                                  \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters {                                                              \
        seen();                                                                                    \
        return __real_##name arguments;                                                            \
    }
WRAP(int, posix_memalign, (void **out, size_t align, size_t size), (out, align, size))
WRAP(void *, malloc, (size_t size), (size))
WRAP(void *, calloc, (size_t count, size_t size), (count, size))
WRAP(void *, realloc, (void *memory, size_t size), (memory, size))

/* ---- trials ------------------------------------------------------------------------------ */

static void many_blocks(small *s) {
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    static const char *const neurons[] = {"na", "nb", "nc", "nd", "ne", "nf"};
    for (int k = 0; k < BLOCKS - 1; k++) {
        small_linear(s, names[k], PIPE_HIDDEN + 3 * k, k % 2 == 0);
        pipe_neuron(s, neurons[k], k == 0 ? 0.3 : 0.2);
    }
    pipe_end(s);
}
static const pipe_net net_of_blocks = {"blocks", "rate", 0, many_blocks};

/* A flow whose stages, the blocks, share workers by rank. */
typedef struct trial {
    flow flow;
    double cost[4][BLOCKS];
    rv_costs costs;
    rv_ranks ranks;
} trial;

static rv_delay_desc delay_of(const char *const *corrections) {
    rv_delay_desc delay = {.mode = (const void *)rv_table_find(rv_delay_table(), "spikepipe")};
    assert_non_null(delay.mode);
    for (; corrections && *corrections; corrections++)
        OK(rv_delay_add(&delay, *corrections, NULL, 0));
    return delay;
}

/* Costs from a seed; 0: all alike, updates free. */
static void costs_of(trial *t, int seed) {
    for (int k = 0; k < 4; k++)
        for (int s = 0; s < BLOCKS; s++)
            t->cost[k][s] =
                seed ? 0.2 + small_random((uint32_t)seed, (uint64_t)(k * BLOCKS + s)) : (k < 3);
    t->costs = (rv_costs){.f = t->cost[0], .b = t->cost[1], .w = t->cost[2], .u = t->cost[3]};
}

static void trial_open(trial *t, const pipe_way *way, int seed, const char *const *corrections) {
    flow *f = &t->flow;
    const rv_delay_desc delay = delay_of(corrections);
    flow_begin(f, &net_of_blocks, &delay, way);
    costs_of(t, seed);
    assert_int_equal(f->s.net->block_count, BLOCKS);
    memcpy(f->first, f->s.net->block_first, sizeof *f->first * BLOCKS);
    f->first[BLOCKS] = f->s.net->layer_count;
    OK(rv_ranks_init(&t->ranks, BLOCKS, way->chunks, way->stages, &t->costs));
    OK(rv_schedule_blocks(&f->delay, &t->ranks, &t->costs, UPDATES, way->slots, &f->schedule));
    flow_join(f, way, BLOCKS, &t->ranks);
}

static void trial_finish(trial *t) {
    flow_finish(&t->flow);
    rv_ranks_finish(&t->ranks);
}

/* ---- bits -------------------------------------------------------------------------------- */

/* Every pass read the version its number names, and what it holds is counted. */
static void accounts_check(const flow *t, int chunks, const char *what) {
    for (int s = 0; s < BLOCKS; s++) {
        const rv_account *got = &rv_pipeline_stage(t->pipeline, s)->account;
        int D = (2 * (chunks - 1) + 2 * (BLOCKS - 1 - s)) / chunks;
        if (got->versions != D + 1 || got->flying != 0 || got->updates != UPDATES)
            fail_msg("%s, stage %d: %d versions, %lld in flight", what, s, got->versions,
                     (long long)got->flying);
        for (int d = 0; d <= D; d++)
            assert_int_equal(got->forward[d], chunks * (d < D ? 1 : UPDATES - D));
    }
}

static void workers_have_the_bits_of_the_oracle(void **state) {
    (void)state;
    static const char *const corrections[][4] = {
        {NULL}, {"lwp_w", NULL}, {"stash", NULL}, {"t2", "t1", NULL}, {"ema", NULL}};
    for (int workers = 1, k = 0; workers <= 6; workers++)
        for (int chunks = 1; chunks <= 3; chunks++, k++) {
            slow_plan plan = {.seed = (uint64_t)k, .sleeps = k % 3 != 2};
            const rv_transport slow = {"slow", slow_open, &plan};
            trial t = {0};
            char what[64];
            const pipe_way way = {.stages = workers,
                                  .micros = 1,
                                  .chunks = chunks,
                                  .slots = k % 4,
                                  .timeout = 20,
                                  .driver = k % 3 == 2 ? RV_DRIVER_SEEDED : RV_DRIVER_THREADS,
                                  .seed = (uint64_t)k,
                                  .transport = k % 3 ? &slow : NULL};
            snprintf(what, sizeof what, "%d workers, %d chunks", workers, chunks);
            trial_open(&t, &way, k, corrections[k % 5]);
            flow_run(&t.flow, what, UPDATES, k % 2 ? 0 : 11);
            accounts_check(&t.flow, chunks, what);
            trial_finish(&t);
        }
}

/* After the first updates, in the threads that run the stages. */
static void workers_allocate_nothing(void **state) {
    (void)state;
    const pipe_way way = {.stages = 3, .micros = 1, .chunks = 2, .timeout = 20};
    trial t = {0};
    trial_open(&t, &way, 0, NULL);
    rv_oracle_destroy(t.flow.oracle);
    t.flow.oracle = NULL;
    caller = pthread_self();
    OK(flow_feed(&t.flow, "before", 14, 0));
    atomic_store(&counting, true);
    OK(flow_feed(&t.flow, "after", UPDATES, 0));
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&allocations), 0);
    trial_finish(&t);
}

/* ---- ends -------------------------------------------------------------------------------- */

/* The first error is told and every thread is free again: destroy joins them. */
static void link_that_fails_ends_all_workers(void **state) {
    (void)state;
    for (int workers = 1; workers <= 6; workers += 2) {
        slow_plan plan = {.seed = 5, .sleeps = true, .fail_at = 100 + workers};
        const rv_transport slow = {"slow", slow_open, &plan};
        const pipe_way way = {
            .stages = workers, .micros = 1, .chunks = 2, .timeout = 20, .transport = &slow};
        trial t = {0};
        trial_open(&t, &way, 0, NULL);
        assert_int_not_equal(flow_feed(&t.flow, "fails", UPDATES, 0), RV_OK);
        assert_non_null(strstr(rv_error_get()->message, "stage "));
        trial_finish(&t);
    }
}

typedef struct heard {
    char text[8192];
} heard;

static void hear(void *user, const char *line) {
    heard *h = user;
    size_t used = strlen(h->text);
    snprintf(h->text + used, sizeof h->text - used, "%s\n", line);
}

static void lost_message_is_told_by_who_waits_for_it(void **state) {
    (void)state;
    static const struct {
        lossy_plan plan;
        const char *text;
    } cases[] = {
        {{2, 3, 5}, "stage 3 waits for F of micro-batch 2, chunk 1 from stage 2 since "},
        {{4, 3, 2}, "stage 3 waits for B of micro-batch 1, chunk 1 from stage 4 since "},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        heard h = {0};
        const rv_transport lossy = {"lossy", lossy_open, (void *)(uintptr_t)&cases[k].plan};
        const pipe_way way = {.stages = 2,
                              .micros = 1,
                              .chunks = 2,
                              .timeout = 0.4,
                              .transport = &lossy,
                              .say = hear,
                              .user = &h};
        trial t = {0};
        trial_open(&t, &way, 0, NULL);
        assert_int_equal(flow_feed(&t.flow, "lost", UPDATES, 0), RV_PEER);
        if (!strstr(rv_error_get()->message, "pipeline.peer_timeout") ||
            !strstr(h.text, cases[k].text))
            fail_msg("%s\n%s", rv_error_get()->message, h.text);
        trial_finish(&t);
    }
}

/* ---- list scheduling --------------------------------------------------------------------- */

/* Two stages, one chunk, by hand: F0 F1 B1 B0 W0 U0. */
static void remaining_paths_are_the_longest(void **state) {
    (void)state;
    static const double f[] = {1, 2}, b[] = {4, 8}, w[] = {16, 32}, u[] = {0.5, 0.25};
    const rv_costs costs = {.f = f, .b = b, .w = w, .u = u, .latency = 0.125};
    rv_ranks ranks;
    OK(rv_ranks_init(&ranks, 2, 1, 2, &costs));
    const double want[] = {43.375, 42.25, 20.5, 40.25, 16.5, 32.25, 0.5, 0.25};
    for (int k = 0; k < 8; k++)
        assert_true(ranks.rest[k] == want[k]);
    assert_true(ranks.period == 42.25);
    rv_work x = {.kind = RV_WORK_F}, y = {.kind = RV_WORK_B, .stage = 1};
    assert_true(rv_ranks_before(&ranks, &x, &y));
    x.micro = 1;
    assert_true(rv_ranks_before(&ranks, &y, &x));
    rv_ranks_finish(&ranks);
    /* Ties: B, F, W. */
    static const double none[] = {0, 0};
    const rv_costs nothing = {.f = none, .b = none, .w = none};
    OK(rv_ranks_init(&ranks, 2, 1, 1, &nothing));
    const rv_work tied[] = {{.kind = RV_WORK_B, .micro = 1},
                            {.kind = RV_WORK_F},
                            {.kind = RV_WORK_W},
                            {.kind = RV_WORK_W, .micro = 1},
                            {.kind = RV_WORK_W, .micro = 1, .stage = 1}};
    for (int k = 0; k < 4; k++) {
        assert_true(rv_ranks_before(&ranks, &tied[k], &tied[k + 1]));
        assert_false(rv_ranks_before(&ranks, &tied[k + 1], &tied[k]));
    }
    rv_ranks_finish(&ranks);
}

static int items_at(const rv_schedule *schedule, int stage, double time) {
    int count = 0;
    for (int p = schedule->first[stage]; p < schedule->first[stage + 1]; p++)
        count += schedule->forecast.start[p] <= time && time < schedule->forecast.end[p];
    return count;
}

/* Never more items than workers, never two of a stage; every item after what it needs. With equal
 * stages and two workers the pipe is full: the paper's bound of 0.67 of one worker's time holds by
 * far. */
static void lists_keep_workers_busy_and_dependencies(void **state) {
    (void)state;
    for (int workers = 1; workers <= 6; workers++)
        for (int chunks = 1; chunks <= 3; chunks += 2)
            for (int slots = 0; slots <= 2; slots++) {
                trial t = {0};
                rv_schedule again = {0};
                const rv_delay_desc delay = delay_of(NULL);
                costs_of(&t, workers % 2 ? workers : 0);
                OK(rv_ranks_init(&t.ranks, BLOCKS, chunks, workers, &t.costs));
                OK(rv_schedule_blocks(&delay, &t.ranks, &t.costs, UPDATES, slots,
                                      &t.flow.schedule));
                const rv_schedule *it = &t.flow.schedule;
                for (int p = 0; p < rv_schedule_count(it); p += 1 + p % 3) {
                    double time = it->forecast.start[p];
                    int all = 0;
                    for (int s = 0; s < BLOCKS; s++) {
                        int own = items_at(it, s, time);
                        assert_true(own <= 1);
                        all += own;
                    }
                    assert_true(all <= workers);
                }
                /* The simulator takes the same lists, each stage by itself: no item can begin
                 * later there than here, and none is out of order or lacks a slot. */
                double made = rv_schedule_made(it, 0, 40) - rv_schedule_made(it, 0, 25);
                if (workers <= 2 && slots == 0)
                    assert_true(made < 15 * t.ranks.period * (workers == 1 ? 1 + 1e-9 : 1.03));
                assert_true(made > 15 * t.ranks.period * 0.9);
                OK(rv_schedule_blocks(&delay, &t.ranks, &t.costs, UPDATES, slots, &again));
                double *end = calloc((size_t)rv_schedule_count(&again), sizeof *end);
                assert_non_null(end);
                memcpy(end, again.forecast.end, sizeof *end * (size_t)rv_schedule_count(&again));
                OK(rv_schedule_simulate(&again, &t.costs, NULL));
                for (int p = 0; p < rv_schedule_count(&again); p++)
                    assert_true(again.forecast.end[p] <= end[p] + 1e-9);
                free(end);
                rv_schedule_finish(&again);
                rv_schedule_finish(&t.flow.schedule);
                rv_ranks_finish(&t.ranks);
            }
}

/* ---- the program ------------------------------------------------------------------------- */

static const late_mode mode = {"spikepipe", "[]", LATE_SGD, 2, 2};

/* Stopped after any update and gone on, with as many workers as one likes: the oracle's bits. */
static void runs_go_on_with_the_same_bits(void **state) {
    (void)state;
    static const char *const sets[] = {"pipeline.cuts=[]"};
    char steps[64];
    late_state it;
    if (!rv_h5_available()) skip();
    late_recipe("blocks.yaml", &mode, "");
    late_open(&it, "blocks.yaml", sets, 1);
    assert_int_equal(it.plan.stages, 4);
    late_train(&it);
    for (int n = 0; n < 9; n++) {
        static const char *const workers[] = {"1", "2", "3", "4"};
        snprintf(steps, sizeof steps, "train.max_steps=%d", n < 6 ? 1 + n : 6 * n - 27);
        if (RUN("train", "blocks.yaml", "-q", n ? "--resume" : "-o", "blocks", "--stages",
                workers[n % 4], "--set", sets[0], "--set", steps) != 0)
            fail_msg("%s: %s", steps, err_text);
    }
    assert_int_equal(
        RUN("train", "blocks.yaml", "-q", "--resume", "blocks", "--stages", "2", "--set", sets[0]),
        0);
    late_same(&it, "blocks", "blocks");
    assert_int_equal(RUN("train", "blocks.yaml", "-o", "told", "--stages", "2", "--set", sets[0],
                         "--set", "train.max_steps=3"),
                     0);
    assert_contains(err_text, "cut before b, c, out, shared by 2 workers; schedule spikepipe");
    late_finish(&it);
    ERROR(78, "other delayed stages", "train", "blocks.yaml", "--resume", "blocks", "--set",
          sets[0], "--set", "pipeline.schedule=pb");
}

static void plan_has_a_stage_for_every_block(void **state) {
    (void)state;
    late_recipe("plan.yaml", &mode, "");
    ERROR(78, "has every block as a stage", "plan", "plan.yaml");
    ERROR(78, "5 stages, but the network has 4 blocks", "verify", "plan.yaml", "--stages", "5",
          "--set", "pipeline.cuts=[]");
    ERROR(78, "4 stages to share out among 5 workers", "plan", "plan.yaml", "--devices", "5",
          "--set", "pipeline.cuts=[]");
    assert_int_equal(RUN("plan", "plan.yaml", "--stages", "2", "--set", "pipeline.cuts=[]"), 0);
    assert_contains(out_text, "schedule spikepipe: 4 stages, 1 micro-batches, 2 chunks");
    assert_contains(out_text, "slots per edge, 2 workers\n");
    static const char *const first[] = {"a", "b", "c", "out"};
    assert_int_equal(RUN("plan", "plan.yaml", "--json", "--stages", "2", "--set",
                         "pipeline.cuts=[]", "--profile", profile_put(first, 4, 0.5, 0)),
                     0);
    json_t *plan = parse_out();
    assert_int_equal(json_integer_value(json_object_get(plan, "workers")), 2);
    double step = json_number_value(json_object_get(plan, "makespan_ms"));
    double all = json_number_value(json_object_get(plan, "one_device_ms"));
    assert_true(step >= json_number_value(json_object_get(plan, "lower_bound_ms")) * (1 - 1e-9));
    assert_true(step >= all / 2 * (1 - 1e-9) && step < all / 2 * 1.05);
    const json_t *stage, *stages = json_object_get(plan, "stage");
    size_t s;
    json_array_foreach((json_t *)stages, s, stage) {
        const json_t *delay = json_object_get(stage, "delay");
        assert_int_equal(json_integer_value(json_object_get(delay, "versions")),
                         (2 + 2 * (3 - (int)s)) / 2 + 1);
    }
    json_decref(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_have_the_bits_of_the_oracle),
        cmocka_unit_test(workers_allocate_nothing),
        cmocka_unit_test(link_that_fails_ends_all_workers),
        cmocka_unit_test(lost_message_is_told_by_who_waits_for_it),
        cmocka_unit_test(remaining_paths_are_the_longest),
        cmocka_unit_test(lists_keep_workers_busy_and_dependencies),
        cmocka_unit_test(runs_go_on_with_the_same_bits),
        cmocka_unit_test(plan_has_a_stage_for_every_block),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
