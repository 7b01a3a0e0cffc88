/*
 * ranvier train CONFIG: results on standard output, everything that moves on standard error, so
 * that `ranvier train ... --json | script` works while a person watches.
 */
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pipeline/cmd.h"

/* ---- progress on standard error ---------------------------------------------------------- */

enum { BAR = 24 };
#define BAR_EVERY 0.1 /* seconds between drawings, and between lines where there is no terminal */
#define LINE_EVERY 30.0
#define VERBOSE_EVERY 1.0

typedef struct rv_display {
    bool quiet, verbose, terminal;
    bool drawn; /* a bar stands on the line */
    double shown;
} rv_display;

/* For pacing the display only; figures come from the interface. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Before any other line: the bar has no newline of its own. */
static void bar_clear(rv_display *display) {
    if (display->drawn) fputs("\r\033[K", stderr);
    display->drawn = false;
}

/* Time of day in front of lines that go to a file. */
static void stamp(const rv_display *display) {
    char text[16];
    struct tm day;
    time_t now = time(NULL);
    if (display->terminal || !localtime_r(&now, &day)) return;
    if (strftime(text, sizeof text, "%H:%M:%S", &day)) fprintf(stderr, "%s ", text);
}

/* m:ss, from an hour on h:mm:ss; "-" while the rate is not known. */
static void left_text(double left, char text[32]) {
    if (!isfinite(left) || left > 1e7) {
        strcpy(text, "-");
        return;
    }
    int whole = (int)(left + 0.5);
    if (whole >= 3600)
        snprintf(text, 32, "%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(text, 32, "%d:%02d", whole / 60, whole % 60);
}

/* The line that stays, on a terminal as in a file. */
static void show_epoch(rv_display *display, const rv_train_progress *at) {
    char train[16], validation[16], test[16];
    bar_clear(display);
    stamp(display);
    fprintf(stderr,
            "epoch %lld/%lld  loss %.4g  accuracy %s  validation %s  test %s  %.0f samples/s\n",
            (long long)at->epoch, (long long)at->epochs, at->loss, rv_percent(at->accuracy, train),
            rv_percent(at->validation_accuracy, validation), rv_percent(at->test_accuracy, test),
            at->samples_per_s);
}

/* A bar drawn over itself, or where there is no terminal a line of its own. */
static void show_step(rv_display *display, const rv_train_progress *at) {
    char bar[BAR + 1], left[32], accuracy[16];
    left_text(at->seconds_left, left);
    rv_percent(at->accuracy, accuracy);
    if (!display->terminal) {
        stamp(display);
        fprintf(
            stderr,
            "epoch %lld/%lld  step %lld/%lld  loss %.4g  accuracy %s  %.0f samples/s  %s left\n",
            (long long)at->epoch, (long long)at->epochs, (long long)at->step, (long long)at->steps,
            at->loss, accuracy, at->samples_per_s, left);
        return;
    }
    int done = (int)(BAR * at->step_in_epoch / at->steps_in_epoch);
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)(done > BAR ? BAR : done));
    bar[BAR] = 0;
    fprintf(stderr, "\r\033[Kepoch %lld/%lld [%s] %lld/%lld  loss %.4g  %s  %.0f/s  ETA %s",
            (long long)at->epoch, (long long)at->epochs, bar, (long long)at->step_in_epoch,
            (long long)at->steps_in_epoch, at->loss, accuracy, at->samples_per_s, left);
    display->drawn = true;
}

/* Called after every step: most calls end at the clock. */
static void show(void *user, const rv_train_progress *at) {
    rv_display *display = user;
    if (display->quiet) return;
    if (at->epoch_end) {
        show_epoch(display, at);
        return;
    }
    double every = display->terminal ? BAR_EVERY : display->verbose ? VERBOSE_EVERY : LINE_EVERY;
    double now = seconds();
    if (now - display->shown < every) return;
    display->shown = now;
    show_step(display, at);
}

static void show_line(void *user, const char *line) {
    rv_display *display = user;
    if (display->quiet) return;
    bar_clear(display);
    stamp(display);
    fprintf(stderr, "%s\n", line);
}

/* ---- result ----------------------------------------------------------------------------- */

/* Accuracies are fractions; a figure that does not exist is null. */
static rv_status print_json(const rv_train_result *result) {
    rv_status status = RV_OK;
    char *text = NULL;
    json_t *rates = json_object();
    for (int i = 0; rates && i < result->layer_count; i++)
        json_object_set_new(rates, result->layer_name[i], rv_json_number(result->layer_rate[i]));
    json_t *root = json_pack(
        "{s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "test_accuracy",
        rv_json_number(result->test_accuracy), "test_accuracy_last",
        rv_json_number(result->test_accuracy_last), "validation_accuracy",
        rv_json_number(result->validation_accuracy), "train_loss",
        rv_json_number(result->train_loss), "epochs", (json_int_t)result->epochs, "steps",
        (json_int_t)result->steps, "seconds", rv_json_number(result->seconds), "step_ms_median",
        rv_json_number(result->step_ms_median), "samples_per_s",
        rv_json_number(result->samples_per_s), "peak_mb", rv_json_number(result->peak_mb),
        "peak_step_mb", rv_json_number(result->peak_step_mb), "rates", rates, "run", result->run);
    TRY(rv_json_text(root, false, &text));
    puts(text);
out:
    rv_free(text);
    return status;
}

/* Two lines that scripts read: the accuracy, and last of all the folder. */
static void print_text(const rv_train_result *result) {
    char best[16], last[16], validation[16];
    printf("test accuracy %s, last epoch %s, validation %s, %lld epoch%s, %lld steps in %.1f s",
           rv_percent(result->test_accuracy, best), rv_percent(result->test_accuracy_last, last),
           rv_percent(result->validation_accuracy, validation), (long long)result->epochs,
           result->epochs == 1 ? "" : "s", (long long)result->steps, result->seconds);
    if (isfinite(result->samples_per_s)) printf(", %.0f samples/s", result->samples_per_s);
    printf("\n%s\n", result->run);
}

rv_code rv_cmd_train(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    rv_display display = {
        .quiet = arguments->quiet,
        .verbose = arguments->verbose,
        .terminal = isatty(STDERR_FILENO),
        .shown = seconds(),
    };
    const rv_train_options options = {
        .struct_size = sizeof options,
        .config = arguments->operand[0],
        .sets = arguments->sets,
        .set_count = arguments->set_count,
        .out = arguments->out,
        .isa = arguments->isa,
        .threads = arguments->threads,
        .stop = arguments->stop,
        .progress = show,
        .log = show_line,
        .user = &display,
        .resume = arguments->resume,
        .init = arguments->init,
        .max_seconds = arguments->max_seconds,
        .grace = arguments->grace,
        .schedule_file = arguments->schedule_file,
        .trace = arguments->trace,
    };
    rv_train_result result = {.struct_size = sizeof result};
    rv_trainer *trainer = NULL;
    TRY((rv_status)rv_train(&options, &trainer, &result));
    bar_clear(&display);
    if (arguments->json)
        TRY(print_json(&result));
    else
        print_text(&result);
out:
    bar_clear(&display);
    rv_trainer_destroy(trainer);
    return status;
}
