/*
 * Inside pipeline/: one training, shared by its opening (train_open.c), its steps and epochs
 * (train.c) and what it tells (train_tell.c).
 */
#ifndef RV_PIPELINE_TRAIN_H
#define RV_PIPELINE_TRAIN_H

#include "pipeline/durable.h"
#include "pipeline/health.h"

/* Outlives the training: the strings and arrays of the result point into it. */
struct rv_trainer {
    char *run;
    rv_layers layers;
};

/* Bytes of a training. `most` stands for what is needed until a plan knows better. */
typedef struct rv_need {
    double taken;     /* before costs are measured, and what no order of work decides */
    double measuring; /* while they are, beside those */
    double most;      /* at the peak, by what any schedule of that name holds */
    double there;     /* in the machine */
} rv_need;

/* One call of rv_train: all it opens is closed in rv_train_run, in reverse order. */
typedef struct rv_training {
    const rv_train_options *options;
    rv_trainer *trainer;
    rv_setup setup;
    double peak; /* bytes the process held at most before it began */
    rv_need need;
    rv_share share[RV_SPLITS];
    rv_score score[RV_SPLITS]; /* of the newest evaluation */
    char *path;                /* of the run folder, when it was given */
    char *disk;                /* a folder on the same disk, which is there already */
    rv_run *run;
    bool begun_run;    /* run.json is this training's */
    rv_events *events; /* for TensorBoard */
    char *recipe;      /* text that model files carry */
    char digest[17];   /* of all that resuming depends on */
    rv_saver *saver;   /* NULL: a build without HDF5 */
    rv_health *health;
    rv_resume resume; /* while opening */
    bool resumed;     /* goes on from a checkpoint */
    bool done;        /* which had nothing left to do */
    rv_progress progress;
    int64_t steps, steps_per_epoch; /* in the whole run, in an epoch */
    int64_t fed;                    /* updates whose batch the engine has */
    bool resting;                   /* no more are fed until none is under way */
    int64_t keep;                   /* the update after which is saved, the newest such one */
    double begun, saved;            /* when the call began, when a save was last due */
    double step_seconds;            /* of the newest step; of a delayed one rather too much */
    rv_pace pace;
    rv_watch watch;
    bool watching;
} rv_training;

/* ---- train_open.c ----------------------------------------------------------------------- */
/* Everything before the first step, cheapest refusals first. */
RV_CHECKED rv_status rv_training_open(rv_training *training);

/* ---- need.c ----------------------------------------------------------------------------- */
/* Sets `need`. RV_RESOURCE when the run needs more memory than there is. */
RV_CHECKED rv_status rv_training_memory(rv_training *training);
/* One line of the log, by the plan where there is one. */
void rv_training_memory_say(const rv_training *training);
/* RV_RESOURCE: the process has taken more than pipeline.memory while the training was opened. */
RV_CHECKED rv_status rv_training_limit(const rv_training *training);
/* The same of the whole training, as a warning. */
void rv_training_limit_say(const rv_training *training);

/* ---- train_tell.c ----------------------------------------------------------------------- */
/* One line for the log. */
void rv_training_say(const rv_training *training, const char *format, ...) RV_PRINTF(2, 3);
/* Number of the epoch begun last, from 1; 0: none. */
int64_t rv_training_epoch(const rv_training *training);
/* Whether train.early_stop ends the run: so many whole epochs since the best validation. */
bool rv_training_stale(const rv_training *training);
/* Tell the caller's progress function. */
void rv_training_tell(const rv_training *training, bool epoch_end);
/* The epoch's line of metrics.jsonl. evaluated: the scores belong to this epoch. */
RV_CHECKED rv_status rv_training_metric(rv_training *training, bool evaluated);
/* The same figures for TensorBoard. */
RV_CHECKED rv_status rv_training_events(rv_training *training);
/* From whatever state the training ended in; absent figures are NAN. */
void rv_training_result(const rv_training *training, rv_train_result *result);

/* ---- train_timeline.c ------------------------------------------------------------------- */
/* What the stages did, to the log and to metrics.jsonl; nothing of the plain trainer. */
RV_CHECKED rv_status rv_training_timeline(rv_training *training);
/* train_delay.c: where gradients are late, and nothing otherwise; at rest. Before an epoch; the
 * line of its metrics; lines of the log about the last one. */
void rv_training_delay_begin(rv_training *training);
RV_CHECKED rv_status rv_training_delay(rv_training *training);
void rv_training_delay_say(const rv_training *training);

#endif
