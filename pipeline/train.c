/*
 * Training: recipe -> data, network, device -> epochs -> run folder. The serial trainer does the
 * arithmetic; here is what surrounds a step: order, saving, evaluation, figures.
 *
 * Order matters: everything that can be refused (recipe, data, batch, output folder) is refused
 * before the first step, and after every step the run can be left in a state to go on from.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/internal.h"

/* Outlives the training: the strings and arrays of the result point into it. */
struct rv_trainer {
    char *run;
    rv_layers layers;
};

/* One call of rv_train: all it opens is closed in rv_train_run, in reverse order. */
typedef struct rv_training {
    const rv_train_options *options;
    rv_trainer *trainer;
    rv_setup setup;
    rv_share share[RV_SPLITS];
    rv_score score[RV_SPLITS]; /* of the newest evaluation */
    rv_run *run;
    char *recipe; /* text that model files carry */
    rv_progress progress;
    int64_t steps, steps_per_epoch; /* in the whole run, in an epoch */
    double loss, correct;           /* sums over the samples of this epoch */
    int64_t samples;
    double begun, saved; /* when the call began, when last.h5 was written */
    double best_test;    /* test accuracy of the best epoch */
    rv_pace pace;
    rv_watch watch;
} rv_training;

/* One line for the log. A message cut at 1023 bytes is still a message. */
RV_PRINTF(2, 3) static void say(const rv_training *training, const char *format, ...) {
    if (!training->options->log) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    training->options->log(training->options->user, line);
}

/* Read once a step: the signal handler that sets it runs in any thread at any time. */
static bool stopped(const rv_training *training) {
    return training->options->stop && *training->options->stop;
}

/* Of the epoch so far; NAN before its first sample (epochs: 0), which prints as null. */
static double mean_loss(const rv_training *training) {
    return training->samples ? training->loss / (double)training->samples : NAN;
}

static double mean_accuracy(const rv_training *training) {
    return training->samples ? training->correct / (double)training->samples : NAN;
}

/* ---- before the first step -------------------------------------------------------------- */

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
    say(training, "%s (preset %s); forms: %s; isa %s, %d thread%s", neurons, setup->config->preset,
        forms, rv_isa_name(rv_device_isa(&setup->device)), setup->threads,
        setup->threads == 1 ? "" : "s");
}

/* The folder is made last of all openings: a recipe that fails leaves no empty run behind. */
static rv_status run_open(rv_training *training) {
    rv_status status = RV_OK;
    const rv_setup *setup = &training->setup;
    char digest[17], stem[256];
    rv_config_digest(setup->config, digest);
    stem_of(training->options->config, stem, sizeof stem);
    const rv_run_info info = {
        .version = RANVIER_VERSION,
        .isa = rv_isa_name(rv_device_isa(&setup->device)),
        .schedule = "serial",
        .digest = digest,
        .seed = setup->config->seed,
        .threads = setup->threads,
        .net = setup->net,
    };
    TRY(rv_run_create(training->options->out, stem, setup->config, &info, &training->run));
    TRY(rv_strdup(rv_run_path(training->run), &training->trainer->run));
    /* After config.yaml is written: there the forms stay `auto`, as the user said it. */
    TRY(rv_setup_recipe(setup, &training->recipe));
    if (!rv_h5_available()) say(training, "built without HDF5: no model file is written");
out:
    return status;
}

/* Everything before the first step, cheapest refusals first. */
static rv_status training_open(rv_training *training) {
    rv_status status = RV_OK;
    const rv_train_options *options = training->options;
    rv_setup *setup = &training->setup;
    TRY(rv_config_load(options->config, options->sets, options->set_count, &setup->config));
    const rv_config *config = setup->config;
    for (int split = 0; split < RV_SPLITS; split++)
        TRY(rv_share_open(&training->share[split], config, (rv_split)split,
                          split == RV_SPLIT_TRAIN));
    rv_share *train = &training->share[RV_SPLIT_TRAIN];
    TRY(rv_setup_net(setup, &train->source));
    training->steps_per_epoch =
        (train->source.count + config->train.batch - 1) / config->train.batch;
    training->steps = config->train.epochs * training->steps_per_epoch;
    if (config->train.max_steps && config->train.max_steps < training->steps)
        training->steps = config->train.max_steps;
    TRY(rv_setup_device(setup, options->isa, options->threads));
    /* The horizon is fixed at the start, so that a resumed run follows the same curve. */
    int64_t horizon = config->train.total_steps ? config->train.total_steps : training->steps;
    TRY(rv_setup_serial(setup, train, NULL, horizon > 0 ? horizon : 1)); /* 1: epochs: 0 */
    TRY(run_open(training));
    say_what_runs(training);
    training->progress.best_validation = NAN;
    training->best_test = NAN;
out:
    return status;
}

/* ---- saving ----------------------------------------------------------------------------- */

/* Write a model file of the run; previous: name that the old file keeps, or NULL. Only files to go
 * on from (those with a previous one) carry the optimiser's state: best.h5 is for use. */
static rv_status save(rv_training *training, const char *name, const char *previous) {
    rv_status status = RV_OK;
    char *path = NULL, *old = NULL;
    if (!rv_h5_available()) return RV_OK;
    rv_serial *serial = training->setup.serial;
    const rv_model_save model = {
        .net = training->setup.net,
        .block = rv_version_block(rv_serial_version(serial)),
        .optimizer = previous ? rv_serial_optimizer(serial) : NULL,
        .progress = &training->progress,
        .config_text = training->recipe,
        .isa = rv_isa_name(rv_device_isa(&training->setup.device)),
    };
    TRY(rv_strdup(rv_run_file(training->run, name), &path));
    if (previous) TRY(rv_strdup(rv_run_file(training->run, previous), &old));
    TRY(rv_model_write(path, old, &model));
out:
    rv_free(old);
    rv_free(path);
    return status;
}

static rv_status save_last(rv_training *training) {
    rv_status status = save(training, "last.h5", "previous.h5");
    training->saved = rv_host_seconds();
    return status;
}

/* checkpoint.every in updates or in seconds; every epoch ends with a save anyway. */
static bool save_is_due(const rv_training *training) {
    const rv_config *config = training->setup.config;
    return (config->checkpoint_steps && training->progress.step % config->checkpoint_steps == 0) ||
           (config->checkpoint_seconds > 0 &&
            rv_host_seconds() - training->saved >= config->checkpoint_seconds);
}

/* ---- telling ---------------------------------------------------------------------------- */

/* Called with the pace running or in a pause: its rate stands still in pauses. */
static void tell(const rv_training *training, bool epoch_end) {
    if (!training->options->progress) return;
    const rv_progress *at = &training->progress;
    double rate = rv_pace_rate(&training->pace);
    /* At the end of an epoch the counters have moved on; the user still means the old one. */
    int64_t step_in_epoch = epoch_end ? training->steps_per_epoch : at->batch_in_epoch;
    double left = (double)(training->steps - at->step) * training->setup.config->train.batch;
    const rv_train_progress progress = {
        .epoch = at->epoch + !epoch_end,
        .epochs = training->setup.config->train.epochs,
        .step = at->step,
        .steps = training->steps,
        .step_in_epoch = step_in_epoch,
        .steps_in_epoch = training->steps_per_epoch,
        .epoch_end = epoch_end,
        .loss = mean_loss(training),
        .accuracy = mean_accuracy(training),
        .validation_accuracy = rv_score_accuracy(&training->score[RV_SPLIT_VALIDATION]),
        .test_accuracy = rv_score_accuracy(&training->score[RV_SPLIT_TEST]),
        .samples_per_s = rate,
        .seconds_left = left / rate,
    };
    training->options->progress(training->options->user, &progress);
}

/* Keyed by layer in network order; jansson keeps the order of insertion. */
static json_t *rates_json(const rv_layers *layers) {
    json_t *rates = json_object();
    for (int i = 0; rates && i < layers->count; i++)
        json_object_set_new(rates, layers->name[i], rv_json_number(layers->rate[i]));
    return rates;
}

/* The epoch's line of metrics.jsonl. evaluated: the scores belong to this epoch. */
static rv_status metric_epoch(rv_training *training, bool evaluated) {
    rv_status status = RV_OK;
    char *line = NULL;
    double loss = mean_loss(training);
    bool bad = training->samples && !isfinite(loss);
    const rv_score *score = training->score;
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event", "epoch", "epoch",
        (json_int_t)training->progress.epoch, "step", (json_int_t)training->progress.step,
        "train_loss", rv_json_number(loss), "train_accuracy",
        rv_json_number(mean_accuracy(training)), "validation_accuracy",
        rv_json_number(evaluated ? rv_score_accuracy(&score[RV_SPLIT_VALIDATION]) : NAN),
        "test_accuracy", rv_json_number(evaluated ? rv_score_accuracy(&score[RV_SPLIT_TEST]) : NAN),
        "seconds", rv_json_number(rv_host_seconds() - training->begun), "samples_per_s",
        rv_json_number(rv_pace_rate(&training->pace)), "rates",
        evaluated ? rates_json(&training->trainer->layers) : json_object());
    /* null alone could also mean "there is no such share". */
    if (root && bad) json_object_set_new(root, "nonfinite", json_pack("[s]", "train_loss"));
    TRY(rv_json_text(root, true, &line));
    TRY(rv_run_metric(training->run, line));
out:
    rv_free(line);
    return status;
}

/* ---- epochs ----------------------------------------------------------------------------- */

/* Score validation and test shares under the weights as they are. Both after every epoch: the test
 * accuracy of the chosen epoch is then known without keeping or reloading its weights, and costs
 * a few per cent of an epoch. Nothing is ever chosen by the test share. */
static rv_status evaluate(rv_training *training) {
    rv_status status = RV_OK;
    const rv_score *shown = NULL;
    for (int split = RV_SPLIT_VALIDATION; split <= RV_SPLIT_TEST; split++) {
        rv_share *share = &training->share[split];
        if (!share->loader) continue;
        rv_score_finish(&training->score[split]);
        TRY(rv_score_share(&training->setup, share, NULL, &training->score[split]));
        shown = &training->score[split]; /* rates are those of the test share where there is one */
    }
    if (shown) {
        rv_layers_finish(&training->trainer->layers);
        TRY(rv_layers_fill(&training->trainer->layers, training->setup.net, shown));
    }
out:
    return status;
}

/* Evaluate, choose, save and report at the end of an epoch (or of none: the untrained network). */
static rv_status epoch_close(rv_training *training) {
    rv_status status = RV_OK;
    rv_progress *at = &training->progress;
    const rv_score *validation = &training->score[RV_SPLIT_VALIDATION];
    TRY(evaluate(training));
    if (validation->samples)
        rv_optimizer_epoch(rv_serial_optimizer(training->setup.serial), validation->loss);
    double accuracy = rv_score_accuracy(validation);
    if (isnan(accuracy) || !(accuracy <= at->best_validation)) { /* no validation: the newest */
        at->best_validation = accuracy;
        at->best_epoch = at->epoch;
        training->best_test = rv_score_accuracy(&training->score[RV_SPLIT_TEST]);
        TRY(save(training, "best.h5", NULL));
    }
    /* The file first: a metrics line promises that its epoch can be gone on from. */
    TRY(save_last(training));
    TRY(metric_epoch(training, true));
out:
    return status;
}

/* Leave a file to go on from and say so. */
static rv_status stop_here(rv_training *training) {
    rv_status status = RV_OK;
    rv_watch_end(&training->watch);
    TRY(save_last(training));
    TRY(rv_run_status(training->run, "checkpointed"));
    FAIL(RV_AGAIN, "stopped after step %lld of %lld, saved in %s",
         (long long)training->progress.step, (long long)training->steps, training->trainer->run);
out:
    return status;
}

/* One update and its account. A loss that is not finite ends the run here: no later step can mend
 * the weights, and the last good checkpoint must not be overwritten. */
static rv_status step(rv_training *training, const rv_batch *batch) {
    rv_status status = RV_OK;
    rv_step_result result = {0};
    TRY(rv_serial_step(training->setup.serial, batch, &result));
    rv_watch_step(&training->watch);
    training->loss += result.loss * result.B;
    training->correct += (double)result.correct;
    training->samples += result.B;
    training->progress.step++;
    training->progress.batch_in_epoch++;
    if (!isfinite(result.loss)) {
        TRY(metric_epoch(training, false));
        FAIL(RV_INTERNAL,
             "the loss is not finite at step %lld (epoch %lld): lower "
             "train.optimizer.lr or set train.clip_norm",
             (long long)training->progress.step, (long long)training->progress.epoch + 1);
    }
    tell(training, false);
out:
    return status;
}

/* The steps of one epoch, or fewer when max_steps or `stop` ends them. The order of samples depends
 * on seed and epoch alone. */
static rv_status epoch_run(rv_training *training) {
    rv_status status = RV_OK;
    rv_progress *at = &training->progress;
    rv_loader *loader = training->share[RV_SPLIT_TRAIN].loader;
    const rv_batch *batch = NULL;
    training->loss = training->correct = 0;
    training->samples = 0;
    rv_watch_begin(&training->watch);
    TRY(rv_loader_start(loader, (uint32_t)at->epoch, 0));
    while (at->step < training->steps) {
        TRY(rv_loader_next(loader, &batch));
        if (!batch) break;
        TRY(rv_pace_start(&training->pace, batch->B));
        TRY(step(training, batch));
        if (stopped(training)) TRY(stop_here(training));
        if (save_is_due(training)) { /* neither the pace nor the memory of steps sees it */
            rv_watch_end(&training->watch);
            rv_pace_pause(&training->pace);
            TRY(save_last(training));
            rv_pace_resume(&training->pace);
            rv_watch_begin(&training->watch);
        }
    }
    rv_watch_end(&training->watch);
out:
    return status;
}

/* All epochs. The pace pauses while shares are evaluated; a stop asked for meanwhile is honoured
 * once the epoch is closed, unless nothing is left to do. */
static rv_status train(rv_training *training) {
    rv_status status = RV_OK;
    rv_progress *at = &training->progress;
    training->saved = rv_host_seconds();
    if (training->steps == 0) TRY(epoch_close(training));
    while (at->step < training->steps) {
        TRY(epoch_run(training));
        at->epoch++;
        at->batch_in_epoch = 0;
        rv_pace_pause(&training->pace);
        TRY(epoch_close(training));
        rv_pace_resume(&training->pace);
        tell(training, true);
        if (stopped(training) && at->step < training->steps) TRY(stop_here(training));
    }
    TRY(rv_pace_close(&training->pace));
    TRY(rv_run_status(training->run, "complete"));
out:
    return status;
}

/* From whatever state the training ended in; absent figures are NAN. */
static void result_fill(const rv_training *training, rv_train_result *result) {
    const rv_trainer *trainer = training->trainer;
    *result = (rv_train_result){
        .struct_size = sizeof *result,
        .test_accuracy = training->best_test,
        .test_accuracy_last = rv_score_accuracy(&training->score[RV_SPLIT_TEST]),
        .validation_accuracy = training->progress.best_validation,
        .train_loss = mean_loss(training),
        .epochs = training->progress.epoch,
        .steps = training->progress.step,
        .seconds = rv_host_seconds() - training->begun,
        .step_ms_median = rv_pace_median_ms(&training->pace),
        .samples_per_s = rv_pace_rate(&training->pace),
        .peak_mb = training->watch.peak_mb,
        .peak_step_mb = training->watch.step_mb > 0 ? training->watch.step_mb : NAN,
        .layer_count = trainer->layers.count,
        .layer_name = trainer->layers.name,
        .layer_rate = trainer->layers.rate,
        .run = trainer->run,
    };
}

rv_status rv_train_run(const rv_train_options *options, rv_trainer **trainer,
                       rv_train_result *result) {
    rv_status status = RV_OK;
    rv_training training = {.options = options, .begun = rv_host_seconds()};
    *trainer = NULL;
    TRY(rv_alloc(1, sizeof *training.trainer, "the trainer", &training.trainer));
    *trainer = training.trainer;
    TRY(training_open(&training));
    TRY(train(&training));
out:
    if (status != RV_OK && status != RV_AGAIN && training.run) {
        rv_error first = *rv_error_get(); /* what failed first is what the user must read */
        if (rv_run_status(training.run, "failed") != RV_OK) rv_error_set(&first);
    }
    rv_watch_close(&training.watch);
    if (training.trainer) result_fill(&training, result);
    rv_pace_finish(&training.pace);
    rv_run_destroy(training.run);
    rv_free(training.recipe);
    for (int split = 0; split < RV_SPLITS; split++) {
        rv_score_finish(&training.score[split]);
        rv_share_close(&training.share[split]);
    }
    rv_setup_finish(&training.setup);
    return status;
}

void rv_trainer_destroy(rv_trainer *trainer) {
    if (!trainer) return;
    rv_layers_finish(&trainer->layers);
    rv_free(trainer->run);
    rv_free(trainer);
}
