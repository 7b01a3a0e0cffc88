/*
 * A stage that fails at any of its items: the step ends for all of them, with the first cause and
 * its stage, item and layer; no thread is left, and no memory (the address sanitizer says).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/pipes.h"
#include "tests/threads.h"
#include "tests/turns.h"

enum { TEXT = sizeof((rv_error *)0)->message };

/* A sanitizer's own thread begins with the first of the program's: before anything is counted. */
static void *nothing(void *argument) {
    return argument;
}

static int group_setup(void **state) {
    pthread_t thread;
    (void)state;
    if (pthread_create(&thread, NULL, nothing, NULL) != 0) return -1;
    return pthread_join(thread, NULL);
}

/* Joined threads may be seen for a moment longer. */
static void expect_threads(int want) {
    for (int k = 0; k < 1000 && threads_here() != want; k++)
        usleep(1000);
    assert_int_equal(threads_here(), want);
}

/* Steps until one fails, or `most`; then once more, which must fail alike. Message in `text`. */
static rv_status steps(rv_pipeline *pipeline, const rv_batch *batch, int most, char text[TEXT]) {
    rv_step_result result;
    rv_status status = RV_OK;
    for (int k = 0; k < most && status == RV_OK; k++)
        status = rv_pipeline_step(pipeline, batch, &result);
    snprintf(text, TEXT, "%s", status ? rv_error_get()->message : "");
    if (status == RV_OK) return status;
    assert_int_equal(rv_pipeline_step(pipeline, batch, &result), status);
    assert_string_equal(rv_error_get()->message, text);
    return status;
}

static void expect(const char *what, int n, rv_status want, const char *message, rv_status got,
                   const char *text) {
    if (got != want || strcmp(message, text) != 0)
        fail_msg("%s %d: code %d, \"%s\" instead of %d, \"%s\"", what, n, got, text, want, message);
}

/* ---- items ------------------------------------------------------------------------------- */

typedef struct planted {
    int stage, at, step; /* item of the stage's list, in the step after so many */
    rv_status status;
    atomic_bool reached;
} planted;

/* Others that have begun an item meanwhile go on after the failure, and meet its echo. */
static rv_status fail_there(void *self, rv_stage *stage, bool *stalls) {
    planted *p = self;
    (void)stalls;
    if (stage->desc.index != p->stage && atomic_load(&p->reached)) usleep(1000);
    if (stage->desc.index != p->stage || stage->at != p->at ||
        rv_optimizer_step(stage->weights.optimizer) != p->step)
        return RV_OK;
    atomic_store(&p->reached, true);
    usleep(300);
    return rv_fail(p->status, "planted");
}

/* The item before it has run on the layer that is named; the first one on none of this step. */
static void any_item_that_fails_ends_the_step_for_all(void **state) {
    (void)state;
    static const char *const schedules[] = {"1f1b", "zb", "filldrain+2bp"};
    static const rv_status kinds[] = {RV_MEMORY, RV_PEER, RV_IO};
    int failures = 0;
    for (int k = 0; k < 6; k++) {
        const pipe_way way = {.schedule = schedules[k % 3],
                              .stages = 3,
                              .micros = 2,
                              .chunks = 2,
                              .clip = 0.1,
                              .slots = k < 3 ? 4 : 0,
                              .driver = k < 3 ? RV_DRIVER_THREADS : RV_DRIVER_SEEDED};
        small s;
        pipe_open(&s, &pipe_nets[2], &way);
        int before = threads_here(), count = 1;
        for (int stage = 0; stage < 3; stage++)
            for (int at = 0; at < count; at++, failures++) {
                int first[SMALL_LAYERS + 1];
                char text[TEXT], item[RV_WORK_TEXT], want[TEXT];
                rv_schedule schedule;
                planted there = {stage, at, 1, kinds[failures % 3], false};
                rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
                const rv_work *list = rv_schedule_list(&schedule, stage, &count);
                turns_now = (turns){.before = fail_there, .self = &there};
                rv_status status = steps(pipeline, &s.batch, 2, text);
                turns_now = (turns){0};
                rv_work_print(&list[at], stage, item);
                snprintf(want, sizeof want, "stage %d, %s, layer \"%s\": planted", stage, item,
                         rv_net_layer_name(s.net, rv_pipeline_stage(pipeline, stage)->layer));
                expect("item", at, kinds[failures % 3], want, status, text);
                rv_pipeline_destroy(pipeline);
                expect_threads(before);
                rv_schedule_finish(&schedule);
            }
        small_finish(&s);
    }
    print_message("           %d items failed\n", failures);
}

/* ---- ops --------------------------------------------------------------------------------- */

static rv_ops whole;  /* of the device */
static long ops_left; /* good calls before one fails; of the stage that has the broken ones */

#define BREAK(op, parameters, arguments)                                                           \
    static rv_status broken_##op parameters {                                                      \
        if (ops_left-- == 0) return rv_fail(RV_RESOURCE, "planted");                               \
        return whole.op arguments;                                                                 \
    }
BREAK(map_forward,
      (rv_ctx * c, rv_queue *q, const rv_map *map, const rv_signal *x, rv_values y, rv_arena *a),
      (c, q, map, x, y, a))
BREAK(map_weight,
      (rv_ctx * c, rv_queue *q, const rv_map *map, const rv_signal *x, rv_values g, float *gw,
       float *gb, rv_arena *a),
      (c, q, map, x, g, gw, gb, a))
BREAK(neuron_forward, (rv_ctx * c, rv_queue *q, const rv_neuron_forward *n, rv_arena *a),
      (c, q, n, a))
BREAK(neuron_backward, (rv_ctx * c, rv_queue *q, const rv_neuron_backward *n, rv_arena *a),
      (c, q, n, a))

/* Who calls an op, for which layers of a stage, in which order. */
typedef struct op_case {
    const char *name;
    rv_work_kind kind;
    bool maps; /* else neurons */
    bool descending;
} op_case;
static const op_case ops[] = {
    {"map_forward", RV_WORK_F, true, false},
    {"neuron_forward", RV_WORK_F, false, false},
    {"neuron_backward", RV_WORK_B, false, true},
    {"map_weight", RV_WORK_W, true, false},
};
enum { OPS = sizeof ops / sizeof *ops };

static void break_op(rv_ops *table, int op) {
    *table = whole;
    table->map_neuron_forward = NULL; /* so that map and neuron are apart */
    if (op == 0) table->map_forward = broken_map_forward;
    if (op == 1) table->neuron_forward = broken_neuron_forward;
    if (op == 2) table->neuron_backward = broken_neuron_backward;
    if (op == 3) table->map_weight = broken_map_weight;
}

/* Layers of a stage that an op is called for, in its order. */
static int layers_of(const small *s, const op_case *op, int first, int last, int *layer) {
    int count = 0;
    for (int k = first; k < last; k++) {
        int l = op->descending ? last - 1 - (k - first) : k;
        if ((strcmp(s->layers[l].row->name, "linear") == 0) == op->maps) layer[count++] = l;
    }
    return count;
}

/* What the n-th call of the op on a stage would say; "" beyond the last. */
static void told_by(const small *s, const op_case *op, const rv_schedule *schedule,
                    const int *first, int stage, int n, char text[TEXT]) {
    int layer[SMALL_LAYERS], count;
    int layers = layers_of(s, op, first[stage], first[stage + 1], layer);
    const rv_work *list = rv_schedule_list(schedule, stage, &count);
    char item[RV_WORK_TEXT];
    text[0] = 0;
    for (int at = 0; at < count; at++) {
        if (list[at].kind != op->kind) continue;
        if (n >= layers) {
            n -= layers;
            continue;
        }
        rv_work_print(&list[at], stage, item);
        snprintf(text, TEXT, "stage %d, %s, layer \"%s\": planted", stage, item,
                 s->layers[layer[n]].name);
        return;
    }
}

static void any_op_that_fails_names_stage_item_and_layer(void **state) {
    (void)state;
    int failures = 0;
    const pipe_way way = {.schedule = "1f1b+2bp", .stages = 3, .micros = 2, .chunks = 2};
    for (int op = 0; op < OPS; op++)
        for (int stage = 0; stage < 3; stage++) {
            rv_status status = RV_RESOURCE;
            for (int n = 0; status; n++) {
                small s;
                char text[TEXT], want[TEXT];
                int first[SMALL_LAYERS + 1];
                rv_schedule schedule;
                rv_ops broken;
                pipe_open(&s, &pipe_nets[0], &way);
                rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
                const rv_device *device = rv_pipeline_stage(pipeline, stage)->desc.device;
                const rv_ops *good = device->ops;
                whole = *good;
                break_op(&broken, op);
                ops_left = n;
                ((rv_device *)(uintptr_t)device)->ops = &broken;
                status = steps(pipeline, &s.batch, 1, text);
                ((rv_device *)(uintptr_t)device)->ops = good;
                told_by(&s, &ops[op], &schedule, first, stage, n, want);
                expect(ops[op].name, n, want[0] ? RV_RESOURCE : RV_OK, want, status, text);
                failures += status != RV_OK;
                rv_pipeline_destroy(pipeline);
                rv_schedule_finish(&schedule);
                small_finish(&s);
            }
        }
    print_message("           %d ops failed\n", failures);
    assert_true(failures > 60);
}

#ifdef RV_FAULTS
/* ---- allocations and links --------------------------------------------------------------- */

enum { TURNS = 4000 };

/* Calls at a site when each turn of a good step begins, and where its stage was. */
typedef struct diary {
    rv_fault_site site;
    int turns;
    long calls[TURNS];
    char item[TURNS][160];
} diary;

static rv_status write_diary(void *self, rv_stage *stage, bool *stalls) {
    diary *d = self;
    (void)stalls;
    assert_true(d->turns < TURNS);
    char *item = rv_stage_item(stage, d->item[d->turns]) ? d->item[d->turns] : NULL;
    *strstr(item, ", layer") = 0;
    d->calls[d->turns++] = rv_fault_count(d->site);
    return RV_OK;
}

/* A pipeline and its first step, while the n-th call fails (< 0: none). */
static rv_status step_with_fault(rv_fault_site site, long n, rv_driver driver, char text[TEXT]) {
    const pipe_way way = {
        .schedule = "1f1b", .stages = 2, .micros = 2, .chunks = 2, .driver = driver, .clip = 0.1};
    small s;
    rv_schedule schedule;
    rv_pipeline *pipeline = NULL;
    int first[SMALL_LAYERS + 1], before;
    pipe_open(&s, &pipe_nets[2], &way);
    pipe_cut(&s, &way, first);
    OK(pipe_schedule(&way, &schedule));
    const rv_pipeline_desc desc = pipe_desc(&s, &way, first, &schedule);
    before = threads_here();
    rv_fault_arm(site, n, false);
    rv_status status = rv_pipeline_create(&desc, &pipeline);
    snprintf(text, TEXT, "%s", status ? rv_error_get()->message : "");
    if (status == RV_OK) status = steps(pipeline, &s.batch, 1, text);
    rv_fault_arm(site, -1, false);
    rv_pipeline_destroy(pipeline);
    expect_threads(before);
    rv_schedule_finish(&schedule);
    small_finish(&s);
    return status;
}

/* With one thread a call falls into the same turn every time: its item is named. With threads any
 * item may meet it, and one is named. A call before the first turn makes the pipeline. */
static void any_allocation_or_link_call_that_fails_names_its_item(void **state) {
    (void)state;
    static const struct {
        const char *name;
        rv_fault_site site;
        rv_status want;
    } kinds[] = {{"allocations", RV_FAULT_ALLOC, RV_MEMORY},
                 {"link calls", RV_FAULT_LINK, RV_PEER}};
    static diary d;
    char text[TEXT];
    for (int k = 0; k < 2; k++)
        for (int driver = 0; driver < 2; driver++) {
            long n = 0, inside = 0;
            rv_status status;
            d = (diary){.site = kinds[k].site};
            if (driver == RV_DRIVER_SEEDED) turns_now = (turns){.before = write_diary, .self = &d};
            OK(step_with_fault(kinds[k].site, -1, (rv_driver)driver, text));
            turns_now = (turns){0};
            for (; (status = step_with_fault(kinds[k].site, n, (rv_driver)driver, text)); n++) {
                int at = d.turns;
                while (at > 0 && d.calls[at - 1] > n)
                    at--;
                inside += strncmp(text, "stage ", 6) == 0;
                if (status != kinds[k].want || strlen(text) < 10 ||
                    (at > 0 && strncmp(text, d.item[at - 1], strlen(d.item[at - 1])) != 0))
                    fail_msg("%s, call %ld: code %d, \"%s\" instead of %d, \"%s\"", kinds[k].name,
                             n, status, text, kinds[k].want, at ? d.item[at - 1] : "");
            }
            print_message("           %s, %s: %ld failed, %ld of them in items\n", kinds[k].name,
                          driver == RV_DRIVER_SEEDED ? "one thread" : "threads", n, inside);
            assert_true(n > 30 && inside > 0);
        }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_item_that_fails_ends_the_step_for_all),
        cmocka_unit_test(any_op_that_fails_names_stage_item_and_layer),
#ifdef RV_FAULTS
        cmocka_unit_test(any_allocation_or_link_call_that_fails_names_its_item),
#endif
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
