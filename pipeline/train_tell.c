/* What a training tells: log lines, progress, the lines of metrics.jsonl, its result. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "pipeline/train.h"

/* A message cut at 1023 bytes is still a message. */
void rv_training_say(const rv_training *training, const char *format, ...) {
    if (!training->options->log) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    training->options->log(training->options->user, line);
}

/* Progress counts whole epochs and batches of the next: so the number is the same just before and
 * just after the end of an epoch. */
int64_t rv_training_epoch(const rv_training *training) {
    return training->progress.epoch + (training->progress.batch_in_epoch > 0);
}

/* Of the epoch so far; NAN before its first sample (epochs: 0), which prints as null. */
static double mean_loss(const rv_training *training) {
    const rv_progress *at = &training->progress;
    return at->epoch_samples ? at->epoch_loss / (double)at->epoch_samples : NAN;
}

/* The counterpart of mean_loss, NAN in the same case. */
static double mean_accuracy(const rv_training *training) {
    const rv_progress *at = &training->progress;
    return at->epoch_samples ? (double)at->epoch_correct / (double)at->epoch_samples : NAN;
}

/* Called with the pace running or in a pause: its rate stands still in pauses. */
void rv_training_tell(const rv_training *training, bool epoch_end) {
    if (!training->options->progress) return;
    const rv_progress *at = &training->progress;
    double rate = rv_pace_rate(&training->pace);
    /* At the end of an epoch the counters have moved on; the user still means the old one. */
    int64_t step_in_epoch = epoch_end ? training->steps_per_epoch : at->batch_in_epoch;
    /* In samples, because that is what the rate counts. */
    double left = (double)(training->steps - at->step) * training->setup.config->train.batch;
    const rv_train_progress progress = {
        .epoch = rv_training_epoch(training),
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

/* Without an evaluation the scores belong to an earlier epoch: they are null here, not repeated. */
rv_status rv_training_metric(rv_training *training, bool evaluated) {
    rv_status status = RV_OK;
    char *line = NULL;
    double loss = mean_loss(training);
    bool bad = training->progress.epoch_samples && !isfinite(loss);
    const rv_score *score = training->score;
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event", "epoch", "epoch",
        (json_int_t)rv_training_epoch(training), "step", (json_int_t)training->progress.step,
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

/* Names and rates are borrowed from the trainer, which outlives the training. NAN where the memory
 * of steps was not watched. */
/* What exists of the epoch's figures, and a rate a layer. */
rv_status rv_training_events(rv_training *training) {
    enum { FIGURES = 5 };
    rv_status status = RV_OK;
    const rv_layers *layers = &training->trainer->layers;
    const char *const names[FIGURES] = {"train/loss", "train/accuracy", "validation/accuracy",
                                        "test/accuracy", "samples_per_s"};
    const double figures[FIGURES] = {mean_loss(training), mean_accuracy(training),
                                     rv_score_accuracy(&training->score[RV_SPLIT_VALIDATION]),
                                     rv_score_accuracy(&training->score[RV_SPLIT_TEST]),
                                     rv_pace_rate(&training->pace)};
    const char **tags = NULL;
    double *values = NULL;
    char(*rates)[RV_NAME_MAX + 8] = NULL;
    size_t most = (size_t)(FIGURES + layers->count);
    int count = 0;
    TRY(rv_alloc(most, sizeof *tags, "figures", &tags));
    TRY(rv_alloc(most, sizeof *values, "figures", &values));
    TRY(rv_alloc(most, sizeof *rates, "figures", &rates));
    for (int i = 0; i < FIGURES; i++)
        if (isfinite(figures[i])) tags[count] = names[i], values[count++] = figures[i];
    for (int i = 0; i < layers->count; i++) {
        snprintf(rates[i], sizeof rates[i], "rate/%s", layers->name[i]);
        tags[count] = rates[i], values[count++] = layers->rate[i];
    }
    TRY(rv_events_scalars(training->events, training->progress.step, rv_host_date(), tags, values,
                          count));
out:
    rv_free(rates);
    rv_free(values);
    rv_free(tags);
    return status;
}

void rv_training_result(const rv_training *training, rv_train_result *result) {
    const rv_trainer *trainer = training->trainer;
    const rv_progress *at = &training->progress;
    *result = (rv_train_result){
        .struct_size = sizeof *result,
        .test_accuracy = at->shown_test,
        .test_accuracy_last = at->last_test,
        .validation_accuracy = at->shown_validation,
        .train_loss = mean_loss(training),
        .epochs = rv_training_epoch(training),
        .steps = at->step,
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
