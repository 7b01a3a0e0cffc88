/*
 * Training: recipe -> data, network, device -> epochs -> run folder. The engine does the
 * arithmetic; here is what surrounds a step: order, saving, evaluation, stopping.
 *
 * After every step the run can be left in a state to go on from; what is saved is all that the
 * following steps depend on, so a resumed run has the bits of one that never stopped.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/train.h"

/* ---- when to stop ----------------------------------------------------------------------- */

/* Read once a step: the signal handler that sets it runs in any thread at any time. */
static bool stopped(const rv_training *training) {
    return training->options->stop && *training->options->stop;
}

/* Another step, all that is under way and the save after it must fit; twice what they took, as
 * machines are shared. Asked when no save is in flight or right after a step: the figure of an
 * earlier save will do. */
static bool time_is_up(const rv_training *training) {
    double limit = training->options->max_seconds;
    double under_way = (double)(training->fed - training->progress.step);
    double need = 2 * training->step_seconds * (1 + under_way);
    if (limit <= 0) return false;
    if (training->saver) need += 2 * rv_saver_seconds(training->saver);
    return rv_host_seconds() - training->begun + need >= limit;
}

/* The two ways of being told to leave are one from here on. */
static bool must_stop(const rv_training *training) {
    return stopped(training) || time_is_up(training);
}

/* ---- saving ----------------------------------------------------------------------------- */

/* Copy the state and let it be written while training goes on. */
static rv_status save(rv_training *training, int keep) {
    training->saved = rv_host_seconds();
    if (!training->saver) return RV_OK;
    return rv_saver_save(training->saver, &training->progress, keep);
}

/* A save that was decided on waits for its update. */
static bool save_is_near(const rv_training *training) {
    return training->keep > training->progress.step;
}

/* After the update that is fed next. checkpoint.every in updates or in seconds; every epoch ends
 * with a save anyway. */
static bool save_is_due(const rv_training *training) {
    const rv_config *config = training->setup.config;
    return (config->checkpoint_steps && (training->fed + 1) % config->checkpoint_steps == 0) ||
           (config->checkpoint_seconds > 0 && !save_is_near(training) &&
            rv_host_seconds() - training->saved >= config->checkpoint_seconds);
}

/* Where the next step of ours counts on the file. */
static rv_status save_wait(rv_training *training) {
    return training->saver ? rv_saver_wait(training->saver) : RV_OK;
}

/* Leave a file to go on from and say so. */
static rv_status stop_here(rv_training *training) {
    rv_status status = RV_OK;
    bool signal = stopped(training);
    rv_watch_end(&training->watch);
    training->progress.metrics = rv_run_metrics(training->run);
    TRY(save(training, RV_KEEP_LAST));
    TRY(save_wait(training));
    TRY(rv_run_status(training->run, "checkpointed"));
    FAIL(RV_AGAIN, "stopped%s after step %lld of %lld, saved in %s; --resume auto goes on",
         signal ? "" : " by --max-time", (long long)training->progress.step,
         (long long)training->steps, training->trainer->run);
out:
    return status;
}

/* ---- evaluation ------------------------------------------------------------------------- */

/* A stop does not wait for the end of an evaluation. */
static rv_status sample_done(void *self, uint64_t sample, int32_t label, int32_t prediction) {
    (void)sample, (void)label, (void)prediction;
    return must_stop(self) ? rv_fail(RV_AGAIN, "stopped in an evaluation") : RV_OK;
}

/* Score validation and test shares under the weights as they are. Both after every epoch: the test
 * accuracy of the chosen epoch is then known without keeping or reloading its weights, and costs
 * a few per cent of an epoch. Nothing is ever chosen by the test share. */
static rv_status evaluate(rv_training *training) {
    rv_status status = RV_OK;
    const rv_score *shown = NULL;
    const rv_score_each each = {sample_done, training, rv_health_observer(training->health)};
    for (int split = RV_SPLIT_VALIDATION; split <= RV_SPLIT_TEST; split++) {
        rv_share *share = &training->share[split];
        if (!share->loader) continue;
        rv_score_finish(&training->score[split]);
        TRY(rv_score_share(&training->setup, share, &each, &training->score[split]));
        shown = &training->score[split]; /* rates are those of the test share where there is one */
    }
    if (shown) {
        rv_layers_finish(&training->trainer->layers);
        TRY(rv_layers_fill(&training->trainer->layers, training->setup.net, shown));
    }
out:
    return status;
}

/* Whether the newest evaluation is the best so far; without a validation share the newest is. One
 * of an epoch that is not whole is shown and its weights kept, but a run that goes on chooses among
 * whole epochs. */
static bool choose_best(rv_training *training, bool whole) {
    rv_progress *at = &training->progress;
    double accuracy = rv_score_accuracy(&training->score[RV_SPLIT_VALIDATION]);
    at->last_test = rv_score_accuracy(&training->score[RV_SPLIT_TEST]);
    bool best = !(accuracy <= at->best_validation); /* true for NAN */
    at->shown_validation = best ? accuracy : at->best_validation;
    at->shown_test = best ? at->last_test : at->best_test;
    if (!best || !whole) return best;
    at->best_validation = accuracy;
    at->best_epoch = rv_training_epoch(training);
    at->best_test = at->last_test;
    return true;
}

static void say_line(void *user, const char *line) {
    rv_training_say(user, "%s", line);
}

/* ---- epochs ----------------------------------------------------------------------------- */

/* Evaluate, choose, report and save at the end of an epoch (or of none: the untrained network). A
 * stop during the evaluation leaves the epoch open: it is closed when the run goes on. So does an
 * epoch that max_steps cut short, for a run that goes on with more: what is saved then has neither
 * its line of metrics nor its effect on the rate. */
static rv_status epoch_close(rv_training *training) {
    rv_status status = RV_OK;
    rv_progress *at = &training->progress;
    const rv_score *validation = &training->score[RV_SPLIT_VALIDATION];
    bool whole = at->step > 0 && at->batch_in_epoch >= training->steps_per_epoch;
    status = evaluate(training);
    if (status == RV_AGAIN) status = stop_here(training);
    TRY(status);
    if (whole) {
        at->epoch++;
        at->batch_in_epoch = 0;
        if (validation->samples) rv_engine_epoch(training->setup.engine, validation->loss);
    }
    int keep = RV_KEEP_LAST | (choose_best(training, whole || at->step == 0) ? RV_KEEP_BEST : 0);
    at->metrics = rv_run_metrics(training->run);
    TRY(rv_health_epoch(training->health, &training->trainer->layers, rv_training_epoch(training),
                        at->step, !whole, say_line, training));
    TRY(rv_training_metric(training, true));
    TRY(rv_training_delay(training));
    TRY(rv_training_events(training));
    if (whole) at->metrics = rv_run_metrics(training->run);
    TRY(save(training, keep));
    rv_training_tell(training, true);
out:
    return status;
}

/* The epoch that cannot be ended has a line of its own, with a loss that is no number. Gives back
 * the error that ended it. */
static rv_status last_words(rv_training *training) {
    rv_error first = *rv_error_get();
    training->progress.epoch_loss = NAN;
    training->progress.epoch_samples += training->progress.epoch_samples == 0;
    if (rv_training_metric(training, false) == RV_OK) rv_error_set(&first);
    return first.status;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Of the next update: only the last of an epoch may have fewer. */
static int samples_of(const rv_training *training) {
    int64_t batch = training->setup.config->train.batch;
    int64_t left =
        training->share[RV_SPLIT_TRAIN].source.count - training->progress.batch_in_epoch * batch;
    return (int)least(batch, left);
}

/* The batches of coming updates to the engine: as many ahead of the next one as it wants, none
 * beyond the epoch. What is saved the engine keeps as its stages come by, one update at a time:
 * that of another such one waits. After an error nothing is under way. */
static rv_status feed(rv_training *training) {
    rv_status status = RV_OK;
    const rv_progress *at = &training->progress;
    int64_t end = training->steps;
    rv_engine *engine = training->setup.engine;
    const rv_batch *batch = NULL;
    end = least(end, at->step - at->batch_in_epoch + training->steps_per_epoch);
    end = least(end, at->step + 1 + rv_engine_ahead(engine));
    while (training->fed < end && !training->resting) {
        bool due = save_is_due(training);
        if (due && save_is_near(training)) break;
        if (due) {
            rv_engine_keep(engine);
            training->keep = training->fed + 1;
        }
        TRY(rv_loader_next(training->share[RV_SPLIT_TRAIN].loader, &batch));
        TRY(rv_engine_feed(engine, batch));
        training->fed++;
    }
out:
    if (status) rv_engine_rest(engine);
    return status;
}

/* One update and its account. A value that is not finite ends the run here, unless the step can be
 * skipped: no later step can mend the weights, and the last good checkpoint must not be
 * overwritten. */
static rv_status step(rv_training *training) {
    rv_status status = RV_OK;
    rv_step_result result = {0};
    rv_progress *at = &training->progress;
    rv_engine *engine = training->setup.engine;
    double begun = rv_host_seconds();
    bool skipped = false;
    TRY(rv_health_before(training->health));
    status = feed(training);
    TRY(rv_pace_start(&training->pace, samples_of(training)));
    if (status == RV_OK) status = rv_engine_await(engine, &result);
    status = rv_health_after(training->health, status, at->step + 1, &result, &skipped);
    if (status == RV_INTERNAL) TRY(last_words(training));
    TRY(status);
    /* Stages that run ahead may end two updates at about the same time. */
    double fade = rv_engine_ahead(engine) ? 0.9 * training->step_seconds : 0;
    training->step_seconds = fmax(rv_host_seconds() - begun, fade);
    if (training->watching) rv_watch_step(&training->watch);
    if (!skipped) {
        at->epoch_loss += result.loss * result.B;
        at->epoch_correct += result.correct;
        at->epoch_samples += result.B;
    }
    at->step++;
    at->batch_in_epoch++;
    rv_training_tell(training, false);
out:
    return status;
}

/* The memory of steps is watched only while no save is in flight: figures of the two are apart. A
 * save that failed ends the run here. */
static rv_status watch(rv_training *training) {
    rv_status status = RV_OK;
    bool idle = true;
    if (training->saver) TRY(rv_saver_check(training->saver, &idle));
    if (!idle) rv_timeline_disturb(rv_engine_timeline(training->setup.engine));
    if (!idle || training->watching) goto out;
    rv_watch_begin(&training->watch);
    training->watching = true;
out:
    return status;
}

/* May be called when nobody watches. */
static void watch_end(rv_training *training) {
    if (training->watching) rv_watch_end(&training->watch);
    training->watching = false;
}

/* Neither the pace nor the memory of steps sees it. */
static rv_status save_between(rv_training *training) {
    watch_end(training);
    rv_pace_pause(&training->pace);
    training->progress.metrics = rv_run_metrics(training->run);
    rv_status status = save(training, RV_KEEP_LAST);
    rv_pace_resume(&training->pace);
    return status;
}

/* The steps of one epoch, or what is left of it, or fewer when max_steps or a stop ends them. The
 * order of samples depends on seed and epoch alone. */
static rv_status epoch_run(rv_training *training) {
    rv_status status = RV_OK;
    rv_progress *at = &training->progress;
    rv_loader *loader = training->share[RV_SPLIT_TRAIN].loader;
    if (at->batch_in_epoch == 0) {
        at->epoch_loss = 0;
        at->epoch_correct = at->epoch_samples = 0;
        rv_training_delay_begin(training);
    }
    TRY(rv_loader_start(loader, (uint32_t)at->epoch, at->batch_in_epoch));
    training->fed = at->step;
    while (at->step < training->steps && at->batch_in_epoch < training->steps_per_epoch) {
        TRY(watch(training));
        TRY(step(training));
        if (training->keep == at->step) TRY(save_between(training));
        /* What is under way is part of what a stop saves: it is waited for. */
        training->resting |= must_stop(training);
        if (training->fed > at->step) continue;
        training->resting = false;
        rv_engine_rest(training->setup.engine);
        if (must_stop(training)) TRY(stop_here(training));
    }
out:
    watch_end(training);
    return status;
}

bool rv_training_stale(const rv_training *training) {
    const rv_progress *at = &training->progress;
    int64_t patience = training->setup.config->train.early_stop;
    return patience > 0 && at->batch_in_epoch == 0 && at->epoch - at->best_epoch >= patience;
}

/* All epochs. The pace pauses while shares are evaluated; a stop asked for meanwhile is honoured
 * once the epoch is closed, unless nothing is left to do. */
static rv_status train(rv_training *training) {
    rv_status status = RV_OK;
    rv_progress *at = &training->progress;
    training->saved = rv_host_seconds();
    if (training->steps == 0) TRY(epoch_close(training));
    while (at->step < training->steps || at->batch_in_epoch > 0) {
        TRY(epoch_run(training));
        rv_pace_pause(&training->pace);
        TRY(epoch_close(training));
        rv_pace_resume(&training->pace);
        if (at->step >= training->steps) break;
        if (rv_training_stale(training)) {
            rv_training_say(training, "no better validation since epoch %lld: stopped early",
                            (long long)at->best_epoch);
            break;
        }
        if (must_stop(training)) TRY(stop_here(training));
    }
    TRY(rv_pace_close(&training->pace));
    TRY(save_wait(training));
out:
    rv_engine_rest(training->setup.engine); /* stages look at what is closed before them */
    return status;
}

rv_status rv_train_run(const rv_train_options *options, rv_trainer **trainer,
                       rv_train_result *result) {
    rv_status status = RV_OK;
    rv_training training = {.options = options, .begun = rv_host_seconds(), .peak = rv_host_peak()};
    *trainer = NULL;
    TRY(rv_alloc(1, sizeof *training.trainer, "the trainer", &training.trainer));
    *trainer = training.trainer;
    TRY(rv_training_open(&training));
    if (!training.done) {
        TRY(train(&training));
        TRY(rv_training_timeline(&training));
        rv_training_delay_say(&training);
    }
    TRY(rv_run_status(training.run, "complete"));
out:
    if (status != RV_OK && status != RV_AGAIN && training.begun_run) {
        rv_error first = *rv_error_get(); /* what failed first is what the user must read */
        if (rv_run_status(training.run, "failed") != RV_OK) rv_error_set(&first);
    }
    rv_saver_destroy(training.saver);
    rv_health_destroy(training.health);
    rv_events_destroy(training.events);
    rv_watch_close(&training.watch);
    rv_training_limit_say(&training);
    if (training.trainer) rv_training_result(&training, result);
    rv_pace_finish(&training.pace);
    rv_run_destroy(training.run);
    rv_free(training.disk);
    rv_free(training.path);
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
