/*
 * What the recipe says of delayed gradients: the mode, its corrections, when the delay ends. Names
 * are looked up here and not by the parser, which does not know the tables; what goes together is
 * for delay.c.
 */
#include <stdlib.h>
#include <string.h>

#include "pipeline/order.h"
#include "pipeline/plan.h"

/* A failure is put where the key stands. */
static rv_status placed(const rv_config *config, const char *section, const char *key,
                        rv_status status) {
    const rv_error error = *rv_error_get();
    char path[RV_NAME_MAX];
    if (status != RV_CONFIG) return status;
    snprintf(path, sizeof path, "%s.%s", section, key);
    return rv_fail_at(status, rv_config_place(config, section, key), path, NULL, "%s",
                      error.message);
}

/* What a stage that never waits has no place for. */
static rv_status able(const rv_config *config, const rv_delay_mode *mode,
                      const char *schedule_file) {
    const struct {
        bool found;
        const char *section, *key, *why;
    } cannot[] = {
        {config->train.tape, "pipeline", "tape", "keeps whole tapes: leave it out"},
        {config->train.truncate > 0, "pipeline", "truncate", "goes back over all chunks"},
        {config->chunks_auto, "pipeline", "chunks", "has delays by chunks: give their number"},
        {config->health_policy == RV_HEALTH_SKIP_STEP, "health", "policy",
         "cannot take an update back: use abort"},
        {mode->blocks && config->cut_count, "pipeline", "cuts",
         "has every block as a stage: leave it out"},
    };
    for (size_t i = 0; i < sizeof cannot / sizeof *cannot; i++)
        if (cannot[i].found)
            return placed(config, cannot[i].section, cannot[i].key,
                          rv_fail(RV_CONFIG, "\"%s.%s\": schedule %s %s", cannot[i].section,
                                  cannot[i].key, mode->row.name, cannot[i].why));
    if (schedule_file)
        return rv_fail(RV_CONFIG, "%s is the order of one step, schedule %s has no steps",
                       schedule_file, mode->row.name);
    return RV_OK;
}

static rv_status corrections_add(const rv_config *config, rv_delay_desc *delay) {
    const rv_table *table = rv_correction_table();
    const char *names[RV_CORRECTIONS_MOST];
    for (int i = 0; i < table->count; i++)
        names[i] = rv_table_row(table, i)->name;
    for (int i = 0; i < config->correction_count; i++) {
        const rv_correction_key *it = &config->corrections[i];
        const bool known = rv_table_find(table, it->name) != NULL;
        const bool twice = rv_delay_on(delay, it->name, NULL);
        rv_status status = rv_delay_add(delay, it->name, it->parameter, it->value);
        const rv_error error = *rv_error_get();
        char path[2 * RV_NAME_MAX + 32] = "pipeline.corrections";
        if (!status) continue;
        if (known && !twice) /* the parameter is what is wrong */
            snprintf(path, sizeof path, "pipeline.corrections.%s.%s", it->name, it->parameter);
        return rv_fail_at(status, known && !twice ? it->value_where : it->where, path,
                          known ? NULL : rv_name_nearest(it->name, names, table->count), "%s",
                          error.message);
    }
    return RV_OK;
}

rv_status rv_setup_delay(rv_setup *setup, const char *schedule_file) {
    rv_status status = RV_OK;
    rv_config *config = setup->config;
    rv_train_desc *train = &config->train;
    rv_delay_desc *delay = &setup->delay;
    delay->mode = (const void *)rv_table_find(rv_delay_table(), config->schedule);
    TRY(corrections_add(config, delay));
    if (delay->mode) TRY(able(config, delay->mode, schedule_file));
    if (delay->mode && !delay->mode->batch) {
        if (train->batch % train->micro_batches != 0)
            TRY(placed(
                config, "train", "micro_batches",
                rv_fail(RV_CONFIG,
                        "schedule %s updates after every micro-batch, and a batch of %d does "
                        "not make %d equal ones",
                        config->schedule, train->batch, train->micro_batches)));
        train->batch /= train->micro_batches;
        train->micro_batches = 1;
    }
    rv_delay_train(delay, train);
out:
    return status;
}

rv_status rv_setup_delay_check(rv_setup *setup, int64_t samples) {
    const rv_config *config = setup->config;
    int64_t epoch = (samples + config->train.batch - 1) / config->train.batch;
    setup->delay.until = config->async_until * (config->async_epochs ? epoch : 1);
    return placed(config, "pipeline", config->correction_count ? "corrections" : "schedule",
                  rv_delay_check(&setup->delay, &config->train));
}

rv_status rv_setup_delay_device(const rv_setup *setup) {
    const rv_config *config = setup->config;
    if (!setup->delay.mode || !setup->device.ops->apart) return RV_OK;
    return placed(config, "pipeline", "schedule",
                  rv_fail(RV_CONFIG,
                          "schedule %s keeps versions of weights, and updates on device %s make "
                          "none: take device cpu, or a schedule that is not delayed",
                          config->schedule, setup->device.ops->name));
}

#define CUTS "cut before layer"

rv_status rv_setup_delay_words(const rv_setup *setup, char **words) {
    const rv_delay_desc *delay = &setup->delay;
    const rv_plan *plan = setup->plan;
    const rv_table *table = rv_correction_table();
    enum { HEAD = 256, CORRECTION = RV_NAME_MAX + 32, CUT = 12 };
    const size_t size = HEAD + (size_t)table->count * CORRECTION + (size_t)plan->stages * CUT;
    char *text = NULL;
    *words = NULL;
    rv_status status = rv_alloc(size, 1, "words of delayed stages", &text);
    if (status) return status;
    int at = snprintf(text, size, "%s, %d chunks, %d micro-batches, until %lld",
                      delay->mode->row.name, plan->chunks, plan->micros, (long long)delay->until);
    for (int i = 0; i < table->count; i++) {
        const rv_correction *row = (const void *)rv_table_row(table, i);
        if (!delay->on[i]) continue;
        at += snprintf(text + at, size - (size_t)at, ", %s", row->row.name);
        if (row->parameter) at += snprintf(text + at, size - (size_t)at, " %.17g", delay->value[i]);
    }
    for (int s = 1; s < plan->stages; s++)
        at +=
            snprintf(text + at, size - (size_t)at, "%s %d", s > 1 ? "" : ", " CUTS, plan->first[s]);
    *words = text;
    return RV_OK;
}

int rv_setup_delay_cuts(const char *words, int *cuts, int most) {
    const char *at = strstr(words, CUTS);
    int count = 0;
    if (!at) return 0;
    at += strlen(CUTS);
    for (char *end; count < most; at = end, count++) {
        const long layer = strtol(at, &end, 10);
        if (end == at || layer < 1 || layer > INT32_MAX) break;
        cuts[count] = (int)layer;
    }
    return count;
}

rv_status rv_setup_delay_keep(const rv_setup *setup) {
    rv_status status = RV_OK;
    const rv_plan *plan = setup->plan;
    const rv_delay_mode *mode = setup->delay.mode;
    char *text = NULL;
    if (!mode || mode->blocks || plan->stages < 2) return RV_OK;
    const size_t size = sizeof "pipeline.cuts=[]" + (size_t)plan->stages * (RV_NAME_MAX + 4);
    TRY(rv_alloc(size, 1, "cuts", &text));
    int at = snprintf(text, size, "pipeline.cuts=[");
    for (int s = 1; s < plan->stages; s++) /* quoted: a name may be a word that YAML retypes */
        at += snprintf(text + at, size - (size_t)at, "%s\"%s\"", s > 1 ? ", " : "",
                       rv_net_layer_name(setup->net, plan->first[s]));
    snprintf(text + at, size - (size_t)at, "]");
    TRY(rv_tree_set(setup->config->tree, text));
out:
    rv_free(text);
    return status;
}

rv_status rv_setup_oracle(rv_setup *setup, const rv_plan *plan, int64_t total_steps,
                          rv_engine **engine) {
    const rv_config *config = setup->config;
    const rv_oracle_desc desc = {.net = setup->net,
                                 .device = &setup->device,
                                 .encoder = &config->encode,
                                 .loss = &config->loss,
                                 .train = &config->train,
                                 .total_steps = total_steps,
                                 .delay = &setup->delay,
                                 .stages = plan->stages,
                                 .first = plan->first};
    return rv_engine_oracle(&desc, engine);
}
