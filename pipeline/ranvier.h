/*
 * Ranvier: train spiking neural networks, cut along layers and along time. The one installed
 * header: the command line and other languages stand on it.
 *
 * Opaque handles, plain arrays, status codes that are the exit codes of the program. Option and
 * result structs begin with struct_size = sizeof(the struct), so that they can grow. Functions
 * block until their work is done; a handle is used by one thread at a time, different handles by
 * different threads. Strings are UTF-8 and owned by the handle they came from.
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

/* ---- training --------------------------------------------------------------------------- */
typedef struct rv_trainer rv_trainer;

typedef struct rv_train_progress rv_train_progress;

typedef struct rv_train_options {
    size_t struct_size;
    const char *config;      /* recipe file; required */
    const char *const *sets; /* "path.to.key=value" */
    int set_count;
    const char *out;    /* run folder, or NULL: runs/<stem>, -2, -3 */
    const char *isa;    /* NULL: best */
    int threads;        /* per stage; 0: as many as this process may use */
    volatile int *stop; /* not 0: finish the step, save, return 75; may be NULL */
    /* Called after every step (epoch_end false) and epoch, from the calling thread; may be NULL. */
    void (*progress)(void *user, const rv_train_progress *progress);
    void (*log)(void *user, const char *line); /* one line without newline; may be NULL */
    void *user;
} rv_train_options;

struct rv_train_progress {
    int64_t epoch, epochs, step, steps_in_epoch, step_in_epoch;
    bool epoch_end;
    double loss, accuracy;      /* of the epoch so far */
    double validation_accuracy; /* at epoch_end; NAN when there is no validation share */
    double samples_per_s, seconds_left;
};

typedef struct rv_train_result {
    size_t struct_size;
    double test_accuracy, test_accuracy_last, validation_accuracy, train_loss; /* NAN: absent */
    int64_t epochs, steps;
    double seconds, step_ms_median, samples_per_s, peak_mb, peak_step_mb;
    int layer_count;
    const char *const *layer_name; /* spiking layers in network order */
    const double *layer_rate;      /* spikes per unit and step over the test split */
    const char *run;               /* the run folder */
} rv_train_result;

/* Train as the recipe says. *trainer (even on failure after it was made) holds the result's memory
 * until rv_trainer_destroy. */
rv_code rv_train(const rv_train_options *options, rv_trainer **trainer, rv_train_result *result);
void rv_trainer_destroy(rv_trainer *trainer);

/* ---- evaluation ------------------------------------------------------------------------- */
typedef struct rv_eval rv_eval;

typedef struct rv_eval_options {
    size_t struct_size;
    const char *model; /* model file or run folder */
    const char *data;  /* recipe that gives data and encode, or NULL: the model's own */
    const char *const *sets;
    int set_count;
    const char *split;       /* train | validation | test; NULL: test */
    const char *predictions; /* CSV to write, or NULL */
    const char *isa;
    int threads;
} rv_eval_options;

typedef struct rv_eval_result {
    size_t struct_size;
    double accuracy, loss;
    int64_t samples;
    int classes;
    const int64_t *confusion; /* [classes][classes], row = label, column = prediction */
    int layer_count;
    const char *const *layer_name;
    const int64_t *layer_spikes; /* totals over the split */
    const double *layer_rate;
    const int64_t *layer_synops; /* spikes times existing targets, padding not counted */
    int64_t dense_operations;    /* multiply-adds of products whose input is not spikes */
} rv_eval_result;

rv_code rv_evaluate(const rv_eval_options *options, rv_eval **eval, rv_eval_result *result);
void rv_eval_destroy(rv_eval *eval);

/* ---- looking at things ------------------------------------------------------------------ */
/* Each gives one JSON object as text, to be freed with rv_text_free. */
/* kind: neurons, surrogates, layers, losses, optimizers, schedules, encoders, init, readers,
 * devices, keys. Unknown kind: 64. */
rv_code rv_list(const char *kind, char **json);
/* A model file, run folder or data file: format, layers, tensors, parameters. */
rv_code rv_info(const char *path, char **json);
/* Verify a model file's checksums, a run folder, or a recipe. 65 damaged, 78 configuration. */
rv_code rv_check(const char *path, const char *const *sets, int set_count, char **json);
void rv_text_free(void *text);

#ifdef __cplusplus
}
#endif
#endif
