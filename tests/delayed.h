/*
 * A recipe trained under a rule for delayed gradients by the sequential oracle, whose bits every
 * pipeline has: a stage for every block, all data of the recipe, then its test accuracy.
 */
#ifndef RV_TESTS_DELAYED_H
#define RV_TESTS_DELAYED_H

#include <stdio.h>
#include <string.h>

#include "pipeline/internal.h"
#include "pipeline/oracle.h"
#include "snn/layer.h"

typedef struct delayed_result {
    double accuracy, train_loss, seconds;
    int64_t updates;
} delayed_result;

/* "gc lwp_v:cap=3": corrections with a parameter or without. */
static inline rv_status delayed_words(rv_delay_desc *desc, const char *words) {
    rv_status status = RV_OK;
    char copy[128], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *parameter = strchr(word, ':'), *value = strchr(word, '=');
        if (parameter) *parameter++ = 0;
        if (value) *value++ = 0;
        TRY(rv_delay_add(desc, word, parameter, value ? strtod(value, NULL) : 0));
    }
out:
    return status;
}

static inline rv_status delayed_open(const rv_setup *setup, const rv_delay_desc *desc,
                                     int64_t total, rv_oracle **oracle) {
    rv_status status = RV_OK;
    const rv_net *net = setup->net;
    rv_train_desc *train = &setup->config->train;
    enum { MOST = 64 };
    static int first[MOST + 1];
    int stages = 0;
    for (int l = 0; l < net->layer_count; l++)
        if (net->layers[l].kind->map && stages < MOST) first[stages++] = l;
    first[0] = 0, first[stages] = net->layer_count;
    TRY(rv_delay_check(desc, train));
    rv_delay_train(desc, train);
    const rv_oracle_desc how = {.net = net,
                                .device = &setup->device,
                                .encoder = &setup->config->encode,
                                .loss = &setup->config->loss,
                                .train = train,
                                .total_steps = total,
                                .delay = desc,
                                .stages = stages,
                                .first = first};
    TRY(rv_oracle_create(&how, oracle));
out:
    return status;
}

static inline rv_status delayed_train(rv_setup *setup, rv_share *share, const rv_delay_desc *desc,
                                      delayed_result *out) {
    rv_status status = RV_OK;
    const rv_train_desc *train = &setup->config->train;
    rv_oracle *oracle = NULL;
    rv_step_result result;
    const rv_batch *batch;
    double begun = rv_host_seconds();
    int64_t each = (share->source.count + train->batch - 1) / train->batch;
    TRY(delayed_open(setup, desc, each * train->epochs, &oracle));
    for (int64_t epoch = 0; epoch < train->epochs; epoch++) {
        double loss = 0;
        TRY(rv_loader_start(share->loader, (uint32_t)epoch, 0));
        for (int64_t k = 0; k < each; k++, out->updates++) {
            TRY(rv_loader_next(share->loader, &batch));
            TRY(rv_oracle_step(oracle, batch, &result));
            loss += result.loss;
        }
        out->train_loss = loss / (double)each;
    }
    rv_oracle_read(oracle, rv_engine_block(setup->engine), NULL);
    TRY(rv_engine_push(setup->engine));
    out->seconds = rv_host_seconds() - begun;
out:
    rv_oracle_destroy(oracle);
    return status;
}

/* mode "sync": none. */
static inline rv_status delayed_run(const char *recipe, const char *const *sets, int set_count,
                                    const char *mode, const char *words, delayed_result *out) {
    rv_status status = RV_OK;
    rv_setup setup = {0};
    rv_share train = {0}, test = {0};
    rv_score score = {0};
    rv_delay_desc desc = {0};
    *out = (delayed_result){0};
    desc.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), mode);
    if (!desc.mode && strcmp(mode, "sync") != 0) FAIL(RV_USAGE, "no mode \"%s\"", mode);
    TRY(delayed_words(&desc, words));
    TRY(rv_config_load(recipe, sets, set_count, &setup.config));
    TRY(rv_share_open(&train, setup.config, RV_SPLIT_TRAIN, true));
    TRY(rv_share_open(&test, setup.config, RV_SPLIT_TEST, false));
    TRY(rv_setup_device(&setup, NULL, 1));
    TRY(rv_setup_net(&setup, &train.source));
    TRY(rv_setup_serial(&setup, &train, NULL, 1000000));
    TRY(delayed_train(&setup, &train, &desc, out));
    TRY(rv_score_share(&setup, &test, NULL, &score));
    out->accuracy = rv_score_accuracy(&score);
out:
    rv_score_finish(&score);
    rv_setup_finish(&setup);
    rv_share_close(&test);
    rv_share_close(&train);
    return status;
}

#endif
