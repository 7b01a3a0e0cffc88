/*
 * For tests of delayed training by the program: a recipe of four blocks, and the oracle trained as
 * the recipe says, in this process. Include after cmocka.h.
 */
#ifndef RV_TESTS_LATE_H
#define RV_TESTS_LATE_H

#include "pipeline/oracle.h"
#include "pipeline/plan.h"
#include "tests/runs.h"
#include "tests/small.h"

enum { LATE_EPOCHS = 3, LATE_EACH = 8, LATE_BATCH = 12 };

/* What a mode is run with; micros: of a batch, which is an update where the mode makes one a
 * batch. */
typedef struct late_mode {
    const char *schedule, *corrections, *optimizer;
    int micros, chunks;
} late_mode;
#define LATE_SGD "{kind: sgd, lr: 0.1, momentum: 0.9}"
#define LATE_ADAM "{kind: adam, lr: 0.01}"
static const late_mode late_modes[] = {
    {"pb", "[]", LATE_SGD, 1, 1},
    {"pb", "[gc, {lwp_v: {cap: 3}}]", LATE_SGD, 1, 2},
    {"pb", "[{t1: {steps: 9}}, t2, {t3: {steps: 6}}]", LATE_ADAM, 2, 1},
    {"pb", "[stash, lwp_w, {scale: {batch: 24}}]", LATE_SGD, 3, 1},
    {"stale", "[ema]", LATE_ADAM, 1, 3},
    {"stale", "[spectrain]", LATE_SGD, 1, 1},
    {"pipedream", "[msnag]", LATE_SGD, 1, 2},
    {"ddg", "[]", LATE_ADAM, 1, 1},
    {"ddg_code", "[lwp_w]", LATE_ADAM, 1, 1},
    {"2bw", "[gc]", LATE_SGD, 4, 1},
    {"2bw", "[{lwp_v: {cap: 1}}]", LATE_ADAM, 2, 2},
    {"xpipe", "[]", LATE_ADAM, 3, 1},
};
enum { LATE_MODES = sizeof late_modes / sizeof *late_modes };

/* The last batch of an epoch has a sample less. `more`: further words of `pipeline`. */
static inline void late_recipe(const char *name, const late_mode *mode, const char *more) {
    char text[4096];
    int size = snprintf(
        text, sizeof text,
        "seed: 7\n"
        "data: {reader: bernoulli, units: 24, classes: 4, samples: 114, test_samples: 24,\n"
        "       steps: 6, rate: 0.3, signal: 0.8, validation: 0.17}\n"
        "encode: {kind: constant, steps: 6}\n"
        "network:\n"
        "  - {name: a, kind: linear, units: 20}\n"
        "  - {name: a_lif, kind: lif, beta: 0.9, threshold: 0.3}\n"
        "  - {name: b, kind: linear, units: 20}\n"
        "  - {name: norm, kind: batch_norm}\n"
        "  - {name: b_lif, kind: lif, beta: 0.9, threshold: 0.3}\n"
        "  - {name: c, kind: linear, units: 20}\n"
        "  - {name: c_lif, kind: lif, beta: 0.9, threshold: 0.3}\n"
        "  - {name: out, kind: linear, units: 4}\n"
        "  - {name: out_li, kind: li, beta: 0.9}\n"
        "loss: {kind: cross_entropy, readout: membrane_mean}\n"
        "train: {epochs: %d, batch: %d, micro_batches: %d, optimizer: %s,\n"
        "        lr_schedule: {kind: cosine, total_steps: 40}}\n"
        "pipeline: {stages: 4, cuts: [b, c, out], schedule: %s, chunks: %d, corrections: %s%s}\n",
        LATE_EPOCHS, LATE_BATCH, mode->micros, mode->optimizer, mode->schedule, mode->chunks,
        mode->corrections, more);
    tiny_put(in_folder(name), text, (size_t)size);
}

/* The state a training must be in after its last update. */
typedef struct late_state {
    rv_setup setup;
    rv_share share;
    rv_plan plan;
    rv_engine *engine;
    int64_t updates;
    double epoch_loss; /* of the last epoch */
    unsigned flush;    /* the thread's, before */
} late_state;

static inline void late_open(late_state *it, const char *recipe, const char *const *sets,
                             int count) {
    rv_version *start = NULL;
    const rv_wish wish = {0};
    memset(it, 0, sizeof *it);
    it->flush = rv_flush_set(); /* as in training */
    OK(rv_config_load(in_folder(recipe), sets, count, &it->setup.config));
    OK(rv_setup_delay(&it->setup, NULL));
    OK(rv_share_open(&it->share, it->setup.config, RV_SPLIT_TRAIN, true));
    OK(rv_setup_delay_check(&it->setup, it->share.source.count));
    OK(rv_setup_device(&it->setup, NULL, 1));
    OK(rv_setup_net(&it->setup, &it->share.source));
    OK(rv_setup_forms(&it->setup, &it->share, NULL, &start));
    OK(rv_setup_plan(&it->setup, &it->share, &wish, &it->plan));
    OK(rv_setup_oracle(&it->setup, &it->plan, 40, &it->engine));
    memcpy(rv_engine_block(it->engine), rv_version_block(start),
           it->setup.net->n_all * sizeof(float));
    OK(rv_engine_push(it->engine));
    rv_version_destroy(start);
}

/* Every batch of every epoch in turn. */
static inline void late_train(late_state *it) {
    const rv_batch *batch = NULL;
    for (int epoch = 0; epoch < it->setup.config->train.epochs; epoch++) {
        it->epoch_loss = 0;
        OK(rv_loader_start(it->share.loader, (uint32_t)epoch, 0));
        for (;;) {
            rv_step_result result;
            OK(rv_loader_next(it->share.loader, &batch));
            if (!batch) break;
            OK(rv_engine_step(it->engine, batch, &result));
            it->epoch_loss += result.loss * result.B;
            it->updates++;
        }
    }
    rv_engine_pull(it->engine);
}

static inline void late_finish(late_state *it) {
    rv_engine_destroy(it->engine);
    rv_plan_finish(&it->plan);
    rv_share_close(&it->share);
    rv_setup_finish(&it->setup);
    rv_flush_restore(it->flush);
}

/* A run's last checkpoint holds this state. */
static inline void late_same(late_state *it, const char *what, const char *run) {
    const rv_net *net = it->setup.net;
    rv_optimizer *want = rv_engine_optimizer(it->engine), *got = NULL;
    rv_progress progress;
    rv_model *model = NULL;
    char path[256];
    float *block = calloc(net->n_all, sizeof *block);
    assert_non_null(block);
    snprintf(path, sizeof path, "%s/last.h5", run);
    OK(rv_model_open(in_folder(path), &model));
    OK(rv_optimizer_create(net, &it->setup.config->train, 40, &got));
    OK(rv_model_load(model, net, block, got, &progress));
    if (memcmp(block, rv_engine_block(it->engine), net->n_all * sizeof *block) != 0)
        fail_msg("%s: other weights than the oracle's", what);
    for (int k = 0; k < rv_optimizer_slots(want); k++)
        if (memcmp(rv_optimizer_slot(want, k), rv_optimizer_slot(got, k),
                   net->n_trained * sizeof *block) != 0)
            fail_msg("%s: another %s than the oracle's", what, rv_optimizer_slot_name(want, k));
    assert_int_equal(rv_optimizer_step(got), it->updates);
    assert_int_equal(progress.step, it->updates);
    assert_true(progress.epoch_loss == it->epoch_loss);
    rv_optimizer_destroy(got);
    rv_model_close(model);
    free(block);
}

#endif
