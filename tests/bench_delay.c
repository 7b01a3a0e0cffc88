/*
 * What corrections of delayed gradients cost: updates of two stages under `pb` with and without
 * them, in turn, between training steps that leave the caches as a run leaves them. Not a test: it
 * prints. `make bench-delay`.
 *
 * bench_delay RECIPE [ROUNDS]: of every correction the median over the rounds of (its update - the
 * plain one of the same round) as a share of a step, quartiles beside it; a step is a micro-batch
 * on one thread, which in delayed modes makes an update.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/internal.h"
#include "pipeline/weights.h"

#define MUST(expression)                                                                           \
    do {                                                                                           \
        if ((expression) != RV_OK) {                                                               \
            fprintf(stderr, "bench_delay: %s: %s\n", #expression, rv_error_get()->message);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { STAGES = 2, ROUNDS_MOST = 200, SETS = 4, RUNS = 12 };

typedef struct set {
    const char *words; /* corrections */
    rv_weights stage[STAGES];
    double took[ROUNDS_MOST];
} set;

/* One optimiser; the first set is the plain one. */
typedef struct group {
    const char *sets[SETS], *words[RUNS];
    set runs[RUNS];
} group;

static group groups[] = {
    {.sets = {"train.optimizer.kind=sgd", "train.optimizer.momentum=0.9"},
     .words = {"", "gc", "lwp_v", "gc lwp_v", "lwp_w", "msnag", "spectrain", "stash gc", "t1", "t2",
               "ema"}},
    {.sets = {"train.optimizer.kind=adam"}, .words = {"", "lwp_v", "msnag", "lwp_w", "t1", "t2"}},
};

static void weights_open(set *s, const rv_net *net, const rv_device *device, rv_train_desc *train,
                         const float *block) {
    rv_delay_desc desc = {0};
    char copy[64], *rest = NULL;
    desc.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), "pb");
    snprintf(copy, sizeof copy, "%s", s->words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        MUST(rv_delay_add(&desc, word, NULL, 0));
    MUST(rv_delay_check(&desc, train));
    rv_delay_train(&desc, train);
    for (int k = 0; k < STAGES; k++) {
        const rv_delay_shape shape = {STAGES, train->chunks, train->micro_batches, k, 0};
        const rv_delay_rule rule = rv_delay_rule_of(&desc, &shape);
        int layers = net->layer_count;
        const rv_range range =
            rv_net_range(net, rv_cut(k, STAGES, layers), rv_cut(k + 1, STAGES, layers));
        MUST(rv_weights_init(&s->stage[k], &range, device, train, 1000000, &rule, train->batch));
        rv_range_take(&range, block, rv_version_block(rv_weights_newest(&s->stage[k])), false);
        MUST(rv_weights_start(&s->stage[k], 0));
    }
}

static double update(set *s, const float *gradient) {
    double begun = rv_host_seconds();
    for (int k = 0; k < STAGES; k++)
        MUST(rv_weights_update(&s->stage[k], gradient, 1, NULL, NULL));
    return rv_host_seconds() - begun;
}

static int order(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print(const char *what, double *of, int rounds) {
    qsort(of, (size_t)rounds, sizeof *of, order);
    printf("%-44s %8.3f  (%.3f to %.3f)\n", what, of[rounds / 2], of[rounds / 4],
           of[3 * rounds / 4]);
}

static void group_run(group *g, const char *recipe, int rounds) {
    static double step[ROUNDS_MOST], of[ROUNDS_MOST];
    rv_setup setup = {0};
    rv_share share = {0};
    const rv_batch *batch;
    rv_version *start = NULL;
    rv_step_result result;
    float *gradient;
    int sets = 0;
    const char *all[SETS + 3] = {"train.micro_batches=1", "train.batch=32", "pipeline.stages=1"};
    for (; g->sets[sets]; sets++)
        all[sets + 3] = g->sets[sets];
    MUST(rv_config_load(recipe, all, sets + 3, &setup.config));
    MUST(rv_share_open(&share, setup.config, RV_SPLIT_TRAIN, true));
    MUST(rv_setup_device(&setup, NULL, 1));
    MUST(rv_setup_net(&setup, &share.source));
    MUST(rv_setup_forms(&setup, &share, NULL, &start));
    MUST(rv_setup_one(&setup, 1000000, &setup.engine));
    MUST(rv_alloc(setup.net->n_trained, sizeof *gradient, "a gradient", &gradient));
    MUST(rv_loader_first(share.loader, setup.config->train.batch, &batch));
    rv_train_desc train = setup.config->train;
    printf("%s\n", g->sets[0]);
    for (int k = 0; k < RUNS; k++)
        g->runs[k].words = g->words[k];
    for (set *s = g->runs; s->words; s++)
        weights_open(s, setup.net, &setup.device, &train, rv_version_block(start));
    for (int i = -1; i < rounds; i++) /* the first touches memory */
        for (set *s = g->runs; s->words; s++) {
            double begun = rv_host_seconds();
            MUST(rv_engine_step(setup.engine, batch, &result));
            double middle = rv_host_seconds();
            double took = update(s, gradient);
            if (i < 0) continue;
            if (s == g->runs) step[i] = middle - begun;
            s->took[i] = took;
        }
    for (int i = 0; i < rounds; i++)
        of[i] = 1e3 * step[i];
    print("  step of one thread, ms", of, rounds);
    for (set *s = g->runs; s->words; s++) {
        char what[96];
        for (int i = 0; i < rounds; i++)
            of[i] =
                s == g->runs ? 1e3 * s->took[i] : 100 * (s->took[i] - g->runs->took[i]) / step[i];
        snprintf(what, sizeof what, s->words[0] ? "  %s: %% of a step" : "  plain update, ms%s",
                 s->words);
        print(what, of, rounds);
        for (int k = 0; k < STAGES; k++)
            rv_weights_finish(&s->stage[k]);
    }
    rv_free(gradient);
    rv_version_destroy(start);
    rv_share_close(&share);
    rv_setup_finish(&setup);
}

int main(int count, char **words) {
    int rounds = count > 2 ? atoi(words[2]) : 15;
    if (count < 2 || rounds < 1 || rounds > ROUNDS_MOST) {
        fprintf(stderr, "bench_delay RECIPE [ROUNDS]\n");
        return 64;
    }
    (void)rv_flush_set();
    for (size_t k = 0; k < sizeof groups / sizeof *groups; k++)
        group_run(&groups[k], words[1], rounds);
    return 0;
}
