/*
 * `plan` and `verify`: what a training would do, without a run folder. Both open the recipe as
 * training does; verify then trains some steps twice: on one device and in the pipeline, or, where
 * gradients are delayed, under the oracle and in the pipeline.
 */
#include <string.h>

#include "pipeline/compare.h"
#include "pipeline/plan.h"

/* The first step has no history; later ones show what optimiser and statistics have kept. */
enum { STEPS = 3, DELAYED_STEPS = 50 };

typedef struct trial {
    const rv_plan_options *options;
    rv_setup setup;
    rv_share train;
    rv_plan plan;
    rv_version *start;
} trial;

/* In the reverse of opening: the plan and the weights refer to the network of the setup. */
static void trial_finish(trial *t) {
    rv_version_destroy(t->start);
    rv_plan_finish(&t->plan);
    rv_share_close(&t->train);
    rv_setup_finish(&t->setup);
}

/* Recipe, data, device, network, forms, plan: as for training. */
static rv_status trial_open(trial *t, bool bare) {
    rv_status status = RV_OK;
    const rv_plan_options *options = t->options;
    const rv_wish wish = {.schedule_file = options->schedule_file,
                          .profile = options->profile,
                          .devices = options->devices,
                          .bare = bare};
    rv_setup *setup = &t->setup;
    TRY(rv_config_load(options->config, options->sets, options->set_count, &setup->config));
    setup->config->train.scratch = options->scratch;
    TRY(rv_setup_delay(setup, wish.schedule_file));
    TRY(rv_share_open(&t->train, setup->config, RV_SPLIT_TRAIN, true));
    TRY(rv_setup_delay_check(setup, t->train.source.count));
    TRY(rv_setup_device(setup, options->isa, options->threads));
    TRY(rv_setup_net(setup, &t->train.source));
    /* With --devices the recipe's own number of stages is not used, so it cannot be wrong. */
    if (!options->devices) TRY(rv_setup_check_pipeline(setup));
    TRY(rv_setup_forms(setup, &t->train, NULL, &t->start));
    TRY(rv_setup_plan(setup, &t->train, &wish, &t->plan));
out:
    return status;
}

/* ---- plan ------------------------------------------------------------------------------- */

/* Committed whole: a reader finds the old file or the new one, never half of it. */
static rv_status write_text(const char *path, const rv_plan *plan,
                            rv_status (*make)(const rv_plan *plan, char **text)) {
    rv_status status = RV_OK;
    char *text = NULL;
    TRY(make(plan, &text));
    TRY(rv_commit(path, NULL, text, strlen(text)));
out:
    rv_free(text);
    return status;
}

static rv_status dump_text(const rv_plan *plan, char **text) {
    return rv_schedule_print(&plan->schedule, text);
}

rv_status rv_plan_run(const rv_plan_options *options, char **json) {
    rv_status status = RV_OK;
    trial t = {.options = options};
    TRY(trial_open(&t, false));
    if (options->dump) TRY(write_text(options->dump, &t.plan, dump_text));
    if (options->svg) TRY(write_text(options->svg, &t.plan, rv_plan_svg));
    TRY(rv_json_text(rv_plan_json(&t.plan, t.setup.net), false, json));
out:
    trial_finish(&t);
    return status;
}

/* ---- verify ----------------------------------------------------------------------------- */

/* An index only where there is one: loss and norm have none, and neither has padding. */
static json_t *difference_json(const rv_difference *first, int step) {
    return json_pack("{s:i, s:s, s:s?, s:s?, s:o, s:o, s:o}", "step", step, "what", first->what,
                     "layer", first->layer, "tensor", first->tensor, "index",
                     first->index < 0 ? json_null() : json_integer(first->index), "one_device",
                     rv_json_number(first->a), "pipeline", rv_json_number(first->b));
}

/* The next batch; after the last of an epoch the first of the next. */
static rv_status next_batch(trial *t, uint32_t *epoch, const rv_batch **batch) {
    rv_status status = RV_OK;
    TRY(rv_loader_next(t->train.loader, batch));
    if (*batch) goto out;
    TRY(rv_loader_start(t->train.loader, ++*epoch, 0));
    TRY(rv_loader_next(t->train.loader, batch));
out:
    return status;
}

/* Both engines are given the very same batch. The first difference ends it, because all later steps
 * only carry it on. */
static rv_status steps_compare(trial *t, rv_engine *one, rv_engine *many, int steps, json_t *losses,
                               int64_t *compared, json_t **difference) {
    rv_status status = RV_OK;
    uint32_t epoch = 0;
    *difference = NULL;
    TRY(rv_loader_start(t->train.loader, epoch, 0));
    for (int step = 1; step <= steps && !*difference; step++) {
        const rv_batch *batch = NULL;
        rv_step_result a = {0}, b = {0};
        rv_difference first;
        TRY(next_batch(t, &epoch, &batch));
        TRY(rv_engine_step(one, batch, &a));
        TRY(rv_engine_step(many, batch, &b));
        json_array_append_new(losses, rv_json_number(a.loss));
        if (rv_engines_differ(t->setup.net, one, &a, many, &b, &first, compared))
            *difference = difference_json(&first, step);
    }
out:
    return status;
}

/* The pipeline is fed as far ahead as it wants; what it found waits for the oracle, which trains on
 * the same batches after it. A weight that differs shows in a later loss, at the latest at the end,
 * where everything is compared. */
static rv_status updates_compare(trial *t, rv_engine *one, rv_engine *many, int steps,
                                 json_t *losses, int64_t *compared, json_t **difference) {
    rv_status status = RV_OK;
    const rv_batch *batch = NULL;
    rv_step_result *found = NULL;
    uint32_t epoch = 0;
    int ahead = rv_engine_ahead(many);
    *difference = NULL;
    TRY(rv_alloc((size_t)steps, sizeof *found, "results", &found));
    TRY(rv_loader_start(t->train.loader, epoch, 0));
    for (int u = 0, fed = 0; u < steps; u++) {
        for (; fed < steps && fed <= u + ahead; fed++) {
            TRY(next_batch(t, &epoch, &batch));
            TRY(rv_engine_feed(many, batch));
        }
        TRY(rv_engine_await(many, &found[u]));
    }
    epoch = 0;
    TRY(rv_loader_start(t->train.loader, epoch, 0));
    for (int u = 0; u < steps && !*difference; u++) {
        rv_step_result a = {0};
        rv_difference first;
        TRY(next_batch(t, &epoch, &batch));
        TRY(rv_engine_step(one, batch, &a));
        json_array_append_new(losses, rv_json_number(a.loss));
        if (u == steps - 1
                ? rv_engines_differ(t->setup.net, one, &a, many, &found[u], &first, compared)
                : rv_results_differ(&a, &found[u], &first, compared))
            *difference = difference_json(&first, u + 1);
    }
out:
    rv_free(found);
    return status;
}

/* What the pipeline has to equal. */
static rv_status measure_open(trial *t, int64_t horizon) {
    rv_status status = RV_OK;
    rv_setup *setup = &t->setup;
    if (setup->delay.mode)
        TRY(rv_setup_oracle(setup, &t->plan, horizon, &setup->engine));
    else
        TRY(rv_setup_one(setup, horizon, &setup->engine));
    memcpy(rv_engine_block(setup->engine), rv_version_block(t->start),
           setup->net->n_all * sizeof(float));
    TRY(rv_engine_push(setup->engine));
out:
    return status;
}

/* Both start from one block of weights, under which the forms were chosen, and both look as far
 * ahead in the rate schedule. The answer is complete even where the bits differ and the call
 * fails. */
rv_status rv_verify_run(const rv_plan_options *options, char **json) {
    rv_status status = RV_OK;
    trial t = {.options = options};
    rv_engine *many = NULL;
    json_t *losses = json_array(), *difference = NULL;
    int64_t compared = 0;
    TRY(trial_open(&t, true));
    bool delayed = t.setup.delay.mode != NULL;
    int steps = options->steps ? options->steps : delayed ? DELAYED_STEPS : STEPS;
    TRY(measure_open(&t, steps));
    TRY(rv_setup_pipeline(&t.setup, &t.plan, t.start, steps, &many));
    TRY((delayed ? updates_compare : steps_compare)(&t, t.setup.engine, many, steps, losses,
                                                    &compared, &difference));
    bool identical = !difference;
    /* `losses` is shared with root ("O") and let go below; `difference` is handed over ("o"). */
    json_t *root =
        json_pack("{s:b, s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:O, s:o}", "identical", identical,
                  "steps", (int)json_array_size(losses), "schedule", t.plan.schedule.name, "stages",
                  t.plan.stages, "chunks", t.plan.chunks, "micro_batches", t.plan.micros, "slots",
                  t.plan.schedule.slots, "compared", (json_int_t)compared, "losses", losses,
                  "first_difference", identical ? json_null() : difference);
    TRY(rv_json_text(root, false, json));
    if (!identical)
        status = rv_fail(RV_INTERNAL, "the pipeline differs from %s",
                         delayed ? "the oracle" : "one device");
out:
    json_decref(losses);
    rv_engine_destroy(many);
    trial_finish(&t);
    return status;
}
