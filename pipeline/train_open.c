/*
 * Opening a training: recipe, run folder, data, device, network, and where to start. Everything
 * that can be refused is refused here, before the first step, and a refusal leaves no new folder
 * and changes nothing in an old one.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/plan.h"
#include "pipeline/train.h"

static void say_line(void *user, const char *line) {
    rv_training_say(user, "%s", line);
}

static void say_tensor(void *user, const char *name, const char *why) {
    rv_training_say(user, "--init: %s %s", name, why);
}

/* File name without folder and extension: the default name of the run. */
static void stem_of(const char *path, char *stem, size_t size) {
    const char *slash = strrchr(path, '/');
    snprintf(stem, size, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(stem, '.');
    if (dot && dot != stem) *dot = 0;
}

/* One line: the neurons, the preset, the form of every product, the processor. */
static void say_what_runs(const rv_training *training) {
    static const char *const form_names[] = {
#define FORM_NAME(name, word) word,
        RV_FORM_LIST(FORM_NAME)
#undef FORM_NAME
    };
    const rv_setup *setup = &training->setup;
    char neurons[512], forms[256] = "";
    size_t used = 0;
    rv_net_describe(setup->net, neurons, sizeof neurons);
    for (int i = 0; i < setup->net->layer_count && used < sizeof forms; i++) {
        rv_form form = rv_net_layer_form(setup->net, i);
        if (form == RV_FORM_AUTO) continue;
        used += (size_t)snprintf(forms + used, sizeof forms - used, "%s%s %s", used ? ", " : "",
                                 rv_net_layer_name(setup->net, i), form_names[form]);
    }
    if (setup->devices.why[0]) rv_training_say(training, "no GPU: %s", setup->devices.why);
    rv_training_say(training, "%s (preset %s); forms: %s; isa %s, %d thread%s", neurons,
                    setup->config->preset, forms, rv_setup_isa(setup), setup->threads,
                    setup->threads == 1 ? "" : "s");
}

/* "b, c": the layers with which later stages begin. */
static void cuts_write(const rv_setup *setup, char *text, size_t size) {
    const rv_plan *plan = setup->plan;
    size_t used = 0;
    *text = 0;
    for (int s = 1; plan && s < plan->stages && used < size; s++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", s > 1 ? ", " : "",
                                 rv_net_layer_name(setup->net, plan->first[s]));
}

/* Cuts that the recipe leaves open are not open in a delayed run: others are another training. */
static void say_cuts(const rv_training *training) {
    const rv_setup *setup = &training->setup;
    const rv_delay_mode *mode = setup->delay.mode;
    char cuts[256];
    cuts_write(setup, cuts, sizeof cuts);
    if (mode && !mode->blocks && *cuts && setup->config->cut_count == 0)
        rv_training_say(training,
                        "cuts: before %s; they are part of the rule of schedule %s, config.yaml "
                        "holds them",
                        cuts, setup->plan->schedule.name);
}

/* One line: where the network is cut, in which order its parts work, what that should bring. */
static void say_plan(const rv_training *training) {
    const rv_setup *setup = &training->setup;
    const rv_plan *plan = setup->plan;
    char cuts[256], tapes[256] = "", shared[64] = "";
    size_t used = 0;
    int truncate = setup->config->train.truncate;
    if (truncate > 0)
        rv_training_say(training,
                        "warning: pipeline.truncate: gradients go back over at most %d chunk%s; "
                        "what lies longer ago is not learned from",
                        truncate, truncate == 1 ? "" : "s");
    if (plan && plan->waits > 0)
        rv_training_say(
            training,
            "warning: schedule %s with %d micro-batch%s an update waits for the version "
            "before; from train.micro_batches %d on it does not (its bits are those "
            "of the rule either way)",
            plan->schedule.name, plan->micros, plan->micros == 1 ? "" : "es", plan->waits);
    if (!plan || plan->serial == 0) return; /* nothing was chosen */
    cuts_write(setup, cuts, sizeof cuts);
    if (plan->workers != plan->stages)
        snprintf(shared, sizeof shared, ", shared by %d worker%s", plan->workers,
                 plan->workers == 1 ? "" : "s");
    for (int s = 0; plan->tape && s < plan->stages && used < sizeof tapes; s++)
        used += (size_t)snprintf(tapes + used, sizeof tapes - used, "%s%s",
                                 s > 0 ? ", " : "; tapes: ", rv_plan_tape(plan, s));
    if (plan->mixed != RV_MIXED_NONE && used < sizeof tapes)
        snprintf(tapes + used, sizeof tapes - used,
                 "%s (by measured costs; another mix is at most %.1f %% faster)",
                 plan->tape ? "" : "; tapes: keep", 100 * rv_plan_mix_gain(plan));
    rv_training_say(training,
                    "plan: %d stage%s%s%s%s; schedule %s, %d micro-batch%s, %d chunk%s, %d slot%s; "
                    "%.3g ms a step, %.2f times one device%s",
                    plan->stages, plan->stages == 1 ? "" : "s", *cuts ? ", cut before " : "", cuts,
                    shared, plan->schedule.name, plan->micros, plan->micros == 1 ? "" : "es",
                    plan->chunks, plan->chunks == 1 ? "" : "s", plan->schedule.slots,
                    plan->schedule.slots == 1 ? "" : "s", 1e3 * plan->step,
                    plan->serial / plan->step, tapes);
}

/* A folder that exists is locked first of all, so that a second run is told at once. */
static rv_status folder_claim(rv_training *training, const char *stem) {
    rv_status status = RV_OK;
    const rv_train_options *options = training->options;
    bool must = false;
    TRY(rv_resume_path(options->resume, options->out, stem, &training->path, &must));
    if (training->path && access(training->path, F_OK) == 0)
        TRY(rv_run_claim(training->path, &training->run));
    bool holds = training->run && rv_run_holds(training->run);
    if (must && !holds) FAIL(RV_INPUT, "%s: holds no run to resume", training->path);
    if (!holds) goto out;
    if (!options->resume) {
        status = rv_run_taken(training->run);
        goto out;
    }
    TRY(rv_resume_open(training->run, say_line, training, &training->resume));
    training->resumed = training->resume.model != NULL;
    if (!training->resumed)
        rv_training_say(training, "%s: no checkpoint in it, starting at the beginning",
                        training->path);
out:
    return status;
}

/* The deepest folder on the way to the run's that is there before it: what is measured before the
 * run begins is measured on the run's disk. */
static rv_status disk_find(rv_training *training) {
    rv_status status = RV_OK;
    const char *path = training->path ? training->path : "runs";
    const size_t size = strlen(path) + sizeof ".";
    char *disk = NULL;
    TRY(rv_alloc(size, 1, "a path", &disk));
    snprintf(disk, size, "%s", path);
    while (strcmp(disk, ".") != 0 && strcmp(disk, "/") != 0 && access(disk, F_OK) != 0) {
        char *cut = strrchr(disk, '/');
        if (cut)
            cut[cut == disk] = 0;
        else
            snprintf(disk, size, ".");
    }
    training->disk = disk;
    training->setup.config->train.scratch = disk;
out:
    return status;
}

/* Weights to start from, [n_all]: those of the checkpoint, of --init, or (NULL) the initial ones.
 */
static rv_status weights_find(rv_training *training, float **block) {
    rv_status status = RV_OK;
    const rv_net *net = training->setup.net;
    const char *init = training->options->init;
    rv_model *model = NULL;
    int taken = 0;
    if (!training->resumed && !init) return RV_OK;
    TRY(rv_alloc(net->n_all, sizeof **block, "weights", block));
    if (training->resumed) {
        TRY(rv_model_load(training->resume.model, net, *block, NULL, &training->progress));
        goto out;
    }
    TRY(rv_net_init(net, *block));
    TRY(rv_model_open(init, &model));
    TRY(rv_model_import(model, net, *block, say_tensor, training, &taken));
    rv_training_say(training, "--init: %d of %d tensors from %s", taken, net->tensor_count, init);
out:
    rv_model_close(model);
    return status;
}

/* A new folder is made last of all openings: a recipe that fails leaves no empty run behind. */
static rv_status run_open(rv_training *training, const char *stem) {
    rv_status status = RV_OK;
    const rv_setup *setup = &training->setup;
    const rv_run_info info = {
        .version = RANVIER_VERSION,
        .isa = rv_setup_isa(setup),
        .schedule = setup->plan ? setup->plan->schedule.name : "serial",
        .digest = training->digest,
        .seed = setup->config->seed,
        .threads = setup->threads,
        .net = setup->net,
    };
    TRY(rv_setup_delay_keep(setup));
    if (training->run)
        TRY(rv_run_begin(training->run, setup->config, &info, training->progress.metrics));
    else
        TRY(rv_run_create(training->path, stem, setup->config, &info, &training->run));
    training->begun_run = true;
    TRY(rv_strdup(rv_run_path(training->run), &training->trainer->run));
    if (*rv_run_note(training->run)) rv_training_say(training, "%s", rv_run_note(training->run));
    TRY(rv_events_create(training->trainer->run, training->progress.step, rv_host_date(),
                         &training->events));
    /* After config.yaml is written: there the forms stay `auto`, as the user said it. */
    TRY(rv_setup_recipe(setup, &training->recipe));
out:
    return status;
}

/* The first save: proves that the folder takes one, tells how long it takes, and is there for a run
 * that is killed early. */
static rv_status saving_open(rv_training *training) {
    rv_status status = RV_OK;
    double grace = training->options->grace, took;
    if (!rv_h5_available()) {
        rv_training_say(training, "built without HDF5: no model file is written");
        return RV_OK;
    }
    TRY(rv_saver_create(&training->setup, training->run, training->recipe, training->digest,
                        training->health, !training->resumed, &training->saver));
    if (training->steps == 0) goto out; /* its only save is its last */
    if (training->resume.fell_back) rv_saver_drop_last(training->saver);
    training->progress.metrics = rv_run_metrics(training->run);
    TRY(rv_saver_save(training->saver, &training->progress, RV_KEEP_LAST));
    TRY(rv_saver_wait(training->saver));
    took = rv_saver_seconds(training->saver);
    if (grace > 0 && took > grace)
        FAIL(RV_RESOURCE,
             "saving a checkpoint takes %.1f s here, more than the %g s of --grace: a signal could "
             "not be obeyed in time",
             took, grace);
out:
    return status;
}

/* Where the run stands and how long it is. */
static void length_find(rv_training *training) {
    const rv_config *config = training->setup.config;
    int64_t count = training->share[RV_SPLIT_TRAIN].source.count, batch = config->train.batch;
    training->steps_per_epoch = (count + batch - 1) / batch;
    training->steps = config->train.epochs * training->steps_per_epoch;
    if (config->train.max_steps && config->train.max_steps < training->steps)
        training->steps = config->train.max_steps;
    training->progress = (rv_progress){.best_validation = NAN,
                                       .best_test = NAN,
                                       .last_test = NAN,
                                       .shown_validation = NAN,
                                       .shown_test = NAN};
}

/* The horizon of the rate is fixed at the first start, so that a resumed run follows the same curve
 * whatever its epochs are now. */
static int64_t horizon_of(const rv_training *training) {
    const rv_config *config = training->setup.config;
    if (training->resumed) return training->resume.horizon;
    int64_t horizon = config->train.total_steps ? config->train.total_steps : training->steps;
    return horizon > 0 ? horizon : 1; /* 1: epochs: 0 */
}

/* Nothing left to do: every step is made and the last epoch closed. An epoch that max_steps cut
 * short stays open for a longer max_steps; run.json tells whether it was closed for this one. */
static bool complete(const rv_training *training) {
    const rv_progress *at = &training->progress;
    if (!training->resumed) return false;
    return rv_training_stale(training) ||
           (at->step >= training->steps &&
            (at->batch_in_epoch == 0 || rv_run_complete(training->run)));
}

static rv_status early_stop_check(const rv_training *training) {
    const rv_config *config = training->setup.config;
    if (config->train.early_stop == 0 || training->share[RV_SPLIT_VALIDATION].source.count > 0)
        return RV_OK;
    return rv_fail_at(RV_CONFIG, rv_config_place(config, "train", "early_stop"), "train.early_stop",
                      NULL,
                      "early stop judges by validation accuracy: set data.validation above 0");
}

/* Stages of a delayed run go on as they were cut, and with nothing else. */
static rv_status delay_cuts(const rv_training *training, int **cuts) {
    rv_status status = RV_OK;
    const rv_config *config = training->setup.config;
    const int count = config->stages - 1;
    int *found = NULL;
    *cuts = NULL;
    if (!training->resumed || !training->setup.delay.mode || training->setup.delay.mode->blocks ||
        config->cut_count || count < 1)
        goto out;
    TRY(rv_alloc((size_t)count, sizeof *found, "cuts", &found));
    if (rv_setup_delay_cuts(rv_model_delay(training->resume.model), found, count) == count)
        *cuts = found, found = NULL;
out:
    rv_free(found);
    return status;
}

static rv_status delay_match(const rv_training *training) {
    rv_status status = RV_OK;
    char *own = NULL;
    if (!training->resumed || !training->setup.delay.mode) return RV_OK;
    const char *held = rv_model_delay(training->resume.model);
    TRY(rv_setup_delay_words(&training->setup, &own));
    if (strcmp(held, own) != 0)
        FAIL(RV_CONFIG,
             "cannot resume with other delayed stages: the checkpoint is of %.300s, this is "
             "%.300s; a synchronous schedule goes on from its newest weights",
             *held ? held : "a synchronous run", own);
out:
    rv_free(own);
    return status;
}

static rv_status versions_load(rv_training *training) {
    rv_status status = RV_OK;
    size_t count;
    float *versions = rv_engine_versions(training->setup.engine, &count);
    if (!versions) return RV_OK;
    TRY(rv_model_versions(training->resume.model, versions, count));
    TRY(rv_engine_push_versions(training->setup.engine));
out:
    return status;
}

/* The folder is locked first and written to last. Recipe and data are compared with those of the
 * checkpoint before the network is made: it takes its forms from there. */
rv_status rv_training_open(rv_training *training) {
    rv_status status = RV_OK;
    const rv_train_options *options = training->options;
    rv_setup *setup = &training->setup;
    rv_share *train = &training->share[RV_SPLIT_TRAIN];
    /* A timeline sets what was planned beside what was. */
    rv_wish wish = {.schedule_file = options->schedule_file, .bare = !options->trace};
    char stem[256];
    float *block = NULL, *health;
    int count, *cuts = NULL;
    setup->trace = options->trace, setup->say = say_line, setup->user = training;
    TRY(rv_config_load(options->config, options->sets, options->set_count, &setup->config));
    TRY(rv_setup_delay(setup, options->schedule_file));
    stem_of(options->config, stem, sizeof stem);
    TRY(folder_claim(training, stem));
    TRY(disk_find(training));
    TRY(delay_cuts(training, &cuts));
    wish.cuts = cuts;
    for (int split = 0; split < RV_SPLITS; split++)
        TRY(rv_share_open(&training->share[split], setup->config, (rv_split)split,
                          split == RV_SPLIT_TRAIN));
    TRY(rv_setup_delay_check(setup, train->source.count));
    TRY(early_stop_check(training));
    TRY(rv_setup_device(setup, options->isa, options->threads));
    TRY(rv_config_digest(setup->config, training->digest));
    if (training->resumed)
        TRY(rv_resume_match(&training->resume, setup->config, training->digest, rv_setup_isa(setup),
                            say_line, training));
    TRY(rv_setup_net(setup, &train->source));
    length_find(training);
    TRY(rv_training_memory(training));
    TRY(weights_find(training, &block));
    TRY(rv_setup_trainer(setup, train, block, horizon_of(training), &wish));
    rv_training_memory_say(training);
    TRY(delay_match(training));
    training->done = complete(training); /* before run.json is written anew */
    TRY(run_open(training, stem));
    if (training->done) {
        rv_training_say(training, "%s: complete after %lld steps, nothing to do",
                        training->trainer->run, (long long)training->progress.step);
        goto out;
    }
    TRY(rv_health_create(setup, training->run, &training->health));
    if (training->resumed) {
        TRY(rv_model_load(training->resume.model, setup->net, block,
                          rv_engine_optimizer(setup->engine), NULL));
        TRY(rv_engine_push(setup->engine));
        TRY(versions_load(training));
        health = rv_health_state(training->health, &count);
        rv_model_health(training->resume.model, health, count);
        rv_training_say(training, "%s: going on after step %lld of %lld", training->trainer->run,
                        (long long)training->progress.step, (long long)training->steps);
    }
    TRY(rv_engine_folder(setup->engine, rv_run_path(training->run)));
    TRY(saving_open(training));
    TRY(rv_training_limit(training));
    say_what_runs(training);
    say_plan(training);
    say_cuts(training);
out:
    rv_free(cuts);
    rv_free(block);
    rv_resume_finish(&training->resume);
    return status;
}
