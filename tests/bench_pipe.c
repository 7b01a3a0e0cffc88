/*
 * Stages against one device, in one process and step by step in turn, so that what else a machine
 * does at the time meets all of them alike: `make bench-pipe`. Not a test: it prints.
 *
 * bench_pipe RECIPE ROUNDS: every figure is the median over the rounds of a ratio of two steps of
 * the same round, its quartiles beside it. `together` are two independent one-thread trainings at
 * once: no pipeline of two threads can be faster than what they get.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/internal.h"
#include "pipeline/plan.h"

#define MUST(expression)                                                                           \
    do {                                                                                           \
        if ((expression) != RV_OK) {                                                               \
            fprintf(stderr, "bench_pipe: %s: %s\n", #expression, rv_error_get()->message);         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { ROUNDS_MOST = 1000, PLAN_EVERY = 8, SETS = 4 };

typedef enum which { ONE, TWIN, TWO, FOUR, WHOLE, WIDE, RUNNERS } which;

typedef struct runner {
    const char *name;
    int threads;
    const char *set[SETS];
    rv_setup setup;
    rv_share share;
    rv_batch batch;
    rv_engine *engine;
    double step[ROUNDS_MOST], foretold[ROUNDS_MOST];
} runner;

static runner runners[RUNNERS] = {
    [ONE] = {"one device, one thread", 1, {"pipeline.stages=1"}},
    [TWIN] = {"", 1, {"pipeline.stages=1"}},
    [TWO] = {"two stages", 1, {"pipeline.stages=2"}},
    [FOUR] = {"four stages", 1, {"pipeline.stages=4"}},
    [WHOLE] = {"one device, M = C = 1",
               1,
               {"pipeline.stages=1", "pipeline.chunks=1", "train.micro_batches=1"}},
    [WIDE] = {"one device, two threads", 2, {"pipeline.stages=1"}},
};
static double together[ROUNDS_MOST];

/* ---- making ----------------------------------------------------------------------------- */

/* Costs are measured, and the whole is planned, anew. */
static double plan_again(runner *r, rv_plan *plan) {
    const rv_wish wish = {0};
    rv_plan_finish(plan);
    MUST(rv_setup_plan(&r->setup, &r->share, &wish, plan));
    return plan->schedule.forecast.total;
}

static void open_runner(runner *r, const char *recipe) {
    int sets = 0;
    const rv_batch *batch;
    rv_version *start = NULL;
    rv_plan *plan = NULL;
    while (sets < SETS && r->set[sets])
        sets++;
    MUST(rv_config_load(recipe, r->set, sets, &r->setup.config));
    MUST(rv_share_open(&r->share, r->setup.config, RV_SPLIT_TRAIN, true));
    MUST(rv_setup_device(&r->setup, NULL, r->threads));
    MUST(rv_setup_net(&r->setup, &r->share.source));
    MUST(rv_setup_forms(&r->setup, &r->share, NULL, &start));
    if (r->setup.config->stages > 1) {
        MUST(rv_alloc(1, sizeof *plan, "a plan", &plan));
        r->foretold[0] = plan_again(r, plan);
        r->setup.plan = plan;
        MUST(rv_setup_pipeline(&r->setup, plan, start, 1000000, &r->engine));
        printf("%s: %s, %d slots, cut before", r->name, plan->schedule.name, plan->schedule.slots);
        for (int s = 1; s < plan->stages; s++)
            printf(" %s", rv_net_layer_name(r->setup.net, plan->first[s]));
        printf("\n");
    } else {
        MUST(rv_setup_one(&r->setup, 1000000, &r->engine));
    }
    rv_version_destroy(start);
    MUST(rv_loader_first(r->share.loader, r->setup.config->train.batch, &batch));
    r->batch = *batch;
}

/* ---- running ---------------------------------------------------------------------------- */

static double step(runner *r) {
    rv_step_result result;
    double begun = rv_host_seconds();
    MUST(rv_engine_step(r->engine, &r->batch, &result));
    return rv_host_seconds() - begun;
}

static void *step_thread(void *of) {
    (void)rv_flush_set();
    (void)step(of);
    return NULL;
}

/* Both begin at once; the slower one counts. */
static double step_together(void) {
    pthread_t other;
    double begun = rv_host_seconds();
    if (pthread_create(&other, NULL, step_thread, &runners[TWIN])) MUST(RV_RESOURCE);
    (void)step(&runners[ONE]);
    pthread_join(other, NULL);
    return rv_host_seconds() - begun;
}

/* ---- printing --------------------------------------------------------------------------- */

static int order(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Median of factor * a[i] / b[i] (b NULL: 1) with quartiles. */
static void ratio(const char *what, double factor, const double *a, const double *b, int rounds) {
    static double of[ROUNDS_MOST];
    for (int i = 0; i < rounds; i++)
        of[i] = factor * a[i] / (b ? b[i] : 1);
    qsort(of, (size_t)rounds, sizeof *of, order);
    printf("%-58s %8.3f  (%.3f to %.3f)\n", what, of[rounds / 2], of[rounds / 4],
           of[3 * rounds / 4]);
}

static void print(int rounds) {
    char what[96];
    for (int k = 0; k < RUNNERS; k++) {
        if (k == TWIN) continue;
        snprintf(what, sizeof what, "%s, ms", runners[k].name);
        ratio(what, 1e3, runners[k].step, NULL, rounds);
    }
    for (int k = TWO; k < RUNNERS; k++) {
        snprintf(what, sizeof what, "%s: times as fast as one device", runners[k].name);
        ratio(what, 1, runners[ONE].step, runners[k].step, rounds);
    }
    ratio("two stages: foretold, ms", 1e3, runners[TWO].foretold, NULL, rounds);
    ratio("two stages: of the speed foretold", 1, runners[TWO].foretold, runners[TWO].step, rounds);
    ratio("together, r: two independent runs, as a multiple of one", 2, runners[ONE].step, together,
          rounds);
    ratio("four stages: time of two", 1, runners[FOUR].step, runners[TWO].step, rounds);
}

int main(int count, char **words) {
    int rounds = count > 2 ? atoi(words[2]) : 20;
    if (count < 2 || rounds < 1 || rounds > ROUNDS_MOST) {
        fprintf(stderr, "bench_pipe RECIPE [ROUNDS]\n");
        return 64;
    }
    (void)rv_flush_set();
    for (int k = 0; k < RUNNERS; k++) {
        open_runner(&runners[k], words[1]);
        (void)step(&runners[k]); /* first touch of memory */
    }
    for (int i = 0; i < rounds; i++) {
        runner *two = &runners[TWO];
        if (i > 0) two->foretold[i] = two->foretold[i - 1];
        if (i > 0 && i % PLAN_EVERY == 0) {
            rv_plan plan = {0};
            two->foretold[i] = plan_again(two, &plan);
            rv_plan_finish(&plan);
        }
        for (int k = 0; k < RUNNERS; k++)
            if (k != TWIN) runners[k].step[i] = step(&runners[k]);
        together[i] = step_together();
    }
    print(rounds);
    for (int k = 0; k < RUNNERS; k++) {
        rv_engine_destroy(runners[k].engine);
        rv_share_close(&runners[k].share);
        rv_setup_finish(&runners[k].setup);
    }
    return 0;
}
