/*
 * From the recipe's words to a plan, and from a plan to what trains. What the recipe says wrongly
 * about the pipeline is refused here, with its place, before anything is written.
 */
#include <stdio.h>
#include <string.h>

#include "pipeline/bytes.h"
#include "pipeline/flow.h"
#include "pipeline/plan.h"

/* NULL in *out: auto, or delayed. The name is looked up here and not by the parser, which does not
 * know the generators. */
static rv_status generator_of(const rv_config *config, const rv_generator **out) {
    const rv_table *const tables[] = {rv_generator_table(), rv_delay_table()};
    const char *names[32] = {"auto"};
    int count = 1;
    *out = NULL;
    if (strcmp(config->schedule, "auto") == 0) return RV_OK;
    *out = rv_generator_find(config->schedule);
    if (*out || rv_table_find(rv_delay_table(), config->schedule)) return RV_OK;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < tables[k]->count && count < 32; i++)
            names[count++] = rv_table_row(tables[k], i)->name;
    return rv_fail_at(RV_CONFIG, rv_config_place(config, "pipeline", "schedule"),
                      "pipeline.schedule", rv_name_nearest(config->schedule, names, count),
                      "\"pipeline.schedule\" must be auto or a row of `list pipeline_schedules` "
                      "or `list delayed_schedules`, found \"%.80s\"",
                      config->schedule);
}

/* A failure of the plan is put where `pipeline` stands, unless it knows a better place. */
static rv_status placed(const rv_config *config, const char *key, rv_status status) {
    rv_error error = *rv_error_get();
    if ((status != RV_CONFIG && status != RV_RESOURCE) || error.line) return status;
    return rv_fail_at(status, rv_config_place(config, "pipeline", key),
                      error.key[0] ? error.key : NULL, NULL, "%s", error.message);
}

/* Cheap and without a clock, so that a training is refused before it measures or writes
 * anything. */
rv_status rv_setup_check_pipeline(const rv_setup *setup) {
    rv_status status = RV_OK;
    const rv_config *config = setup->config;
    const rv_generator *generator;
    TRY(generator_of(config, &generator));
    if (generator && generator->one_stage && config->stages > 1)
        status = rv_fail(RV_CONFIG, "schedule %s has one stage, not %d", config->schedule,
                         config->stages);
    else if (config->cut_count == 0 && config->stages > setup->net->block_count)
        status = rv_fail(
            RV_CONFIG, "%d stages, but the network has %d blocks (a map with what follows it)%s",
            config->stages, setup->net->block_count,
            setup->delay.mode && setup->delay.mode->blocks ? ", and no more workers can share them"
                                                           : "; pipeline.cuts may cut elsewhere");
    status = placed(config, "stages", status);
out:
    return status;
}

/* The limit is for the whole process: data, batches and network have taken their part already,
 * libraries and heap will take theirs. *left: what stages and saving may have. */
static rv_status memory_left(const rv_setup *setup, double *left) {
    const rv_config *config = setup->config;
    const double taken = rv_host_resident() + RV_BYTES_LIBRARIES +
                         rv_bytes_health(setup->net, &config->train, config->health_policy);
    *left = config->pipeline_memory - taken;
    if (*left > 0) return RV_OK;
    return placed(
        config, "memory",
        rv_fail(RV_RESOURCE,
                "pipeline.memory: %.1f MB, but the process takes %.1f MB before it trains",
                config->pipeline_memory / 1e6, taken / 1e6));
}

/* Cuts of the recipe fit the recipe's stages alone, and chunks of a schedule file are fixed: each
 * is left out where the wish overrules it. */
rv_status rv_setup_plan(rv_setup *setup, rv_share *first, const rv_wish *wish, rv_plan *plan) {
    rv_status status = RV_OK;
    rv_config *config = setup->config;
    rv_train_desc *train = &config->train;
    const rv_batch *batch = NULL;
    int rows = (train->batch + train->micro_batches - 1) / train->micro_batches;
    rv_plan_desc desc = {
        .stages = wish->devices ? wish->devices : config->stages,
        .file = wish->schedule_file,
        .slots = config->slots,
        .chunks_auto = config->chunks_auto && !wish->schedule_file,
        .cuts = config->cut_count && !wish->devices ? config->cuts : wish->cuts,
        .profile = wish->profile,
        .bare = wish->bare,
        .mixes = config->tape_auto && !setup->delay.mode,
        .delay = &setup->delay,
    };
    TRY(generator_of(config, &desc.generator));
    if (setup->delay.mode && setup->delay.mode->blocks) {
        desc.workers = desc.stages;
        desc.stages = setup->net->block_count;
        desc.cuts = setup->net->block_first + 1;
    }
    /* Costs are measured with one micro-batch of real data, since events cost what spikes there
     * are. */
    if (first->source.count < rows) rows = (int)first->source.count;
    TRY(rv_loader_first(first->loader, rows, &batch));
    if (config->pipeline_memory > 0) TRY(memory_left(setup, &desc.memory));
    desc.cost = (rv_cost_desc){
        .net = setup->net,
        .encoder = &config->encode,
        .loss = &config->loss,
        .train = train,
        .batch = batch,
        .devices = &setup->devices,
        .isa = rv_device_isa(&setup->device),
        .threads = setup->threads,
        .memory = config->pipeline_memory > 0 ? config->pipeline_memory - RV_BYTES_LIBRARIES : 0,
    };
    TRY(placed(config, "schedule", rv_plan_make(&desc, plan)));
    /* From here on config and plan agree: stages are made from the one, lists from the other. */
    train->chunks = plan->chunks;
    if (config->tape_auto) train->tape = plan->tape; /* lives as long as what is made of the plan */
out:
    return status;
}

/* Weights of the start into the engine. */
static rv_status weights_give(rv_setup *setup, rv_version *start) {
    memcpy(rv_engine_block(setup->engine), rv_version_block(start),
           setup->net->n_all * sizeof(float));
    return rv_engine_push(setup->engine);
}

/* The engine copies the starting weights, so `start` stays the caller's. */
rv_status rv_setup_pipeline(rv_setup *setup, const rv_plan *plan, rv_version *start,
                            int64_t total_steps, rv_engine **engine) {
    rv_status status = RV_OK;
    const rv_config *config = setup->config;
    double *scratch = NULL;
    TRY(rv_alloc((size_t)plan->stages, sizeof *scratch, "stages", &scratch));
    for (int s = 0; s < plan->stages; s++)
        scratch[s] = plan->stage[s].bytes.scratch;
    const rv_pipeline_desc desc = {
        .net = setup->net,
        .encoder = &config->encode,
        .loss = &config->loss,
        .train = &config->train,
        .total_steps = total_steps,
        .schedule = &plan->schedule,
        .delay = &setup->delay,
        .ranks = plan->ranks.workers ? &plan->ranks : NULL,
        .first = plan->first,
        .devices = &setup->devices,
        .isa = rv_device_isa(&setup->device),
        .threads = setup->threads,
        .timeout = config->peer_timeout,
        .say = setup->say,
        .user = setup->user,
        .trace = setup->trace,
        .scratch = scratch,
    };
    TRY(placed(config, "schedule", rv_engine_pipeline(&desc, engine)));
    memcpy(rv_engine_block(*engine), rv_version_block(start), setup->net->n_all * sizeof(float));
    TRY(rv_engine_push(*engine));
out:
    rv_free(scratch);
    return status;
}

/* Forms before the plan, since costs depend on them. Where nothing is to be decided (one stage,
 * fixed chunks, no limit of memory, no file) there is no plan: measuring would only delay the
 * start. A timeline is of a pipeline: one stage has the bits of the plain trainer. */
rv_status rv_setup_trainer(rv_setup *setup, rv_share *first, const float *block,
                           int64_t total_steps, const rv_wish *wish) {
    rv_status status = RV_OK;
    const rv_config *config = setup->config;
    rv_version *start = NULL;
    bool piped;
    bool delayed = setup->delay.mode != NULL; /* chunks alone make a delay */
    bool planned = config->stages > 1 || delayed || setup->trace || config->chunks_auto ||
                   config->pipeline_memory > 0 || wish->schedule_file;
    TRY(rv_setup_check_pipeline(setup));
    TRY(rv_setup_forms(setup, first, block, &start));
    if (planned) {
        TRY(rv_alloc(1, sizeof *setup->plan, "a plan", &setup->plan));
        TRY(rv_setup_plan(setup, first, wish, setup->plan));
    }
    piped = config->stages > 1 || delayed || setup->trace || config->train.tape ||
            config->train.tape_dtype;
    if (piped && !planned) {
        TRY(rv_alloc(1, sizeof *setup->plan, "a plan", &setup->plan));
        TRY(rv_plan_one(setup->net, &config->train, setup->plan));
    }
    if (piped) {
        TRY(rv_setup_pipeline(setup, setup->plan, start, total_steps, &setup->engine));
    } else {
        TRY(rv_setup_one(setup, total_steps, &setup->engine));
        TRY(weights_give(setup, start));
    }
out:
    rv_version_destroy(start);
    return status;
}

/* May be called twice, and for a setup that never had a plan. */
void rv_setup_plan_finish(rv_setup *setup) {
    if (!setup->plan) return;
    rv_plan_finish(setup->plan);
    rv_free(setup->plan);
    setup->plan = NULL;
}
