/*
 * Ranvier: train spiking neural networks, cut along layers and along time. The one installed
 * header: the command line and other languages stand on it.
 *
 * Opaque handles, plain arrays, status codes that are the exit codes of the program. Option and
 * result structs begin with struct_size = sizeof(the struct), set by the caller in both: a shorter
 * struct of an older caller gets the defaults of what it lacks, a longer one zeros. Functions block
 * until their work is done; a handle is used by one thread at a time, different handles by
 * different threads. Strings are UTF-8 and live as long as the handle they came with. Nothing is
 * printed and no signal handler is installed. NAN stands for a number that does not exist.
 */
#ifndef RANVIER_H
#define RANVIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RANVIER_VERSION "0.1.0"

/* 0 = ok; other values are listed in the README under "Exit codes". */
typedef int rv_code;

typedef struct rv_error_info {
    size_t struct_size;
    int code;
    const char *message, *file, *key, *hint; /* file, key, hint: NULL when there is none */
    int line, column;                        /* 0: none */
} rv_error_info;
/* The calling thread's last error; strings valid until its next failing call. */
void rv_last_error(rv_error_info *out);
/* One word for a code ("usage", "input missing"); constant text, never NULL. */
const char *rv_code_text(rv_code code);

/* ---- training --------------------------------------------------------------------------- */
typedef struct rv_trainer rv_trainer; /* what a training left behind: the result's memory */

typedef struct rv_train_progress {
    int64_t epoch, epochs; /* epoch counts from 1; 0 = the untrained network */
    int64_t step, steps;   /* updates made so far and in the whole run */
    int64_t step_in_epoch, steps_in_epoch;
    bool epoch_end;
    double loss, accuracy;                     /* over the training samples of the epoch so far */
    double validation_accuracy, test_accuracy; /* at epoch_end; NAN: no such share */
    double samples_per_s, seconds_left;
} rv_train_progress;

typedef struct rv_train_options {
    size_t struct_size;
    const char *config;      /* recipe file; required */
    const char *const *sets; /* "path.to.key=value", applied in order */
    int set_count;
    const char *out;          /* run folder, or NULL: runs/<stem>, then -2, -3 */
    const char *isa;          /* instruction set, or NULL: the best of this processor */
    int threads;              /* of a stage; 0: its share of this process's processors */
    const volatile int *stop; /* not 0: finish the step, save, return 75; may be NULL */
    /* Called after every step (epoch_end false) and every epoch, from the calling thread; may be
     * NULL. */
    void (*progress)(void *user, const rv_train_progress *progress);
    void (*log)(void *user, const char *line); /* one line without newline; may be NULL */
    void *user;
    const char *resume; /* a run folder, or "auto": `out` or runs/<stem>, started or continued */
    const char *init;   /* model file whose tensors of equal name and shape are the first weights */
    double max_seconds; /* save and return 75 in time for this; 0: no limit */
    double grace;       /* refuse (69) to start where a save takes longer than this; 0: never */
    const char *schedule_file; /* order of the work in text form, or NULL */
    const char *trace;         /* file for a timeline as Chrome trace, or NULL */
} rv_train_options;

typedef struct rv_train_result {
    size_t struct_size;
    /* Fractions. test_accuracy: of the epoch with the best validation accuracy (validation: 0: of
     * the last epoch); test_accuracy_last: of the last epoch. */
    double test_accuracy, test_accuracy_last, validation_accuracy;
    double train_loss; /* mean over the samples of the last epoch */
    int64_t epochs, steps;
    double seconds;        /* wall time of the call */
    double step_ms_median; /* start to start of steps; first two, saving, evaluation left out */
    double samples_per_s;  /* training samples by the time of the steps */
    double peak_mb;        /* largest resident size of the process, 10^6 bytes */
    double peak_step_mb;   /* the same over training steps alone */
    int layer_count;       /* spiking layers, in network order */
    const char *const *layer_name;
    const double *layer_rate; /* spikes per unit and step over the test share */
    const char *run;          /* the run folder */
} rv_train_result;

/* Train as the recipe says, write the run folder, evaluate. Codes: 66 input missing, 65 damaged
 * data, 78 recipe or resume mismatch, 73 the run folder exists, is in use or cannot be created
 * (before any step), 74 writing failed, 70 the loss is not finite, 75 stopped through `stop` or by
 * max_seconds after saving last.h5. A resumed run has the bits of one that never stopped.
 * *trainer, NULL when nothing was made, is the caller's and holds the strings and arrays of
 * *result. On failure *result holds what is known (run may be NULL). */
rv_code rv_train(const rv_train_options *options, rv_trainer **trainer, rv_train_result *result);
void rv_trainer_destroy(rv_trainer *trainer); /* NULL allowed */

/* ---- evaluation ------------------------------------------------------------------------- */
typedef struct rv_eval rv_eval; /* the memory of a result */

typedef struct rv_eval_options {
    size_t struct_size;
    const char *model;       /* model file, or run folder (best.h5, else last.h5); required */
    const char *data;        /* recipe that gives data and encode, or NULL: the model's own */
    const char *const *sets; /* applied to `data`, else to the model's recipe */
    int set_count;
    const char *split;       /* train | validation | test; NULL: test */
    const char *predictions; /* CSV file to write: sample,label,prediction; or NULL */
    const char *isa;
    int threads;
} rv_eval_options;

typedef struct rv_eval_result {
    size_t struct_size;
    double accuracy, loss; /* loss: mean over the samples */
    int64_t samples;
    int classes;
    const int64_t *confusion; /* [classes][classes], row = label, column = prediction */
    int layer_count;          /* spiking layers, in network order */
    const char *const *layer_name;
    const int64_t *layer_spikes; /* totals over the split */
    const double *layer_rate;    /* spikes per unit and step */
    const int64_t *layer_synops; /* spikes times existing targets, padding not counted */
    int64_t input_spikes;        /* of the encoded input; -1: the input is not spikes */
    int64_t input_synops;
    int64_t dense_operations; /* multiply-adds of products whose input is not spikes */
    const char *model;        /* the file that was read */
} rv_eval_result;

/* Codes: 64 unknown split, 66 no such file, 65 damaged, 78 the model and the data do not fit, 73
 * or 74 the predictions cannot be written (the folder is tried before the work). */
rv_code rv_evaluate(const rv_eval_options *options, rv_eval **eval, rv_eval_result *result);
void rv_eval_destroy(rv_eval *eval); /* NULL allowed */

/* ---- looking at things ------------------------------------------------------------------ */
/* Each gives one JSON object as text, to be freed with rv_text_free; NULL on failure. */

/* kind: one of neurons, surrogates, layers, losses, regularizers, optimizers, schedules,
 * pipeline_schedules, encoders, init, readers, augment, devices, keys; another word: 64 with the
 * nearest. {"kind", "rows": [{"name", "sentence", "source", "parameters": [{"name", "type",
 * "default", "limits", "sentence"}]}]}; devices: {"name", "available", "isa", "threads",
 * "sentence"}; keys:
 * {"key", "type", "default", "sentence"}. */
rv_code rv_list(const char *kind, char **json);
/* A model file, run folder, recipe or data file, told apart by its contents. {"path", "format",
 * ...}; model: version, parameters, tensors, layers, recipe; data: type, shape. */
rv_code rv_info(const char *path, char **json);
/* Verify a model file's checksums, every file of a run folder, a data file, or a recipe with its
 * data and network. 65 damaged, 66 missing, 78 recipe. {"path", "format", "ok": true, ...}. */
rv_code rv_check(const char *path, const char *const *sets, int set_count, char **json);
typedef struct rv_plan_options {
    size_t struct_size;
    const char *config; /* recipe file; required */
    const char *const *sets;
    int set_count;
    const char *isa;
    int threads;               /* per stage; 0: those of the process shared */
    int devices;               /* stages, whatever the recipe says; 0: as it says */
    int steps;                 /* verify; 0: 3 */
    const char *schedule_file; /* or NULL */
    const char *profile;       /* costs from this file instead of measuring; or NULL */
    const char *dump, *svg;    /* plan: files to write the schedule to; or NULL */
    const char *scratch;       /* folder for temporary files (spilled tapes); NULL: /tmp */
} rv_plan_options;
/* Cut, schedule, costs, memory and timeline of a training, without training (README, "Plan"). 69
 * nothing fits pipeline.memory, 78 recipe. */
rv_code rv_make_plan(const rv_plan_options *options, char **json);
/* Train a few steps on one device and in the pipeline and compare all bits: {"identical", "steps",
 * "first_difference", ...}. 70 different, *json says where. Writes nothing. */
rv_code rv_verify(const rv_plan_options *options, char **json);
/* Compare two model files (of a run folder its last.h5) to the bit; layer: its tensors alone, or
 * NULL. 0 same, 1 different. {"a", "b", "same", "compared", "first": {"name", "what", "index", "a",
 * "b", "a_bits", "b_bits"}}. */
rv_code rv_diff(const char *a, const char *b, const char *layer, char **json);
/* What became of runs: {"runs": [{"run", "status", ...}], "mean", "spread"}. */
rv_code rv_runs(const char *const *paths, int count, char **json);
typedef struct rv_plot_options {
    size_t struct_size;
    const char *run;   /* run folder (with sample >= 0 also a model file); required */
    const char *out;   /* FILE.svg or FILE.png; required */
    int64_t sample;    /* of `split`, through the best model; < 0: the curves of the run */
    const char *layer; /* of the sample; NULL: the first that spikes */
    const char *split; /* NULL: test */
} rv_plot_options;
rv_code rv_plot(const rv_plot_options *options);
void rv_text_free(void *text); /* NULL allowed */

#ifdef __cplusplus
}
#endif
#endif
