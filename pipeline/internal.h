/*
 * Inside pipeline/: what api.c, train.c, evaluate.c and inspect.c share. Nothing here is seen by
 * the command line.
 */
#ifndef RV_PIPELINE_INTERNAL_H
#define RV_PIPELINE_INTERNAL_H

#include <math.h>
#include <stdlib.h>

#include "data/data.h"
#include "pipeline/engine.h"
#include "pipeline/ranvier.h"
#include "pipeline/text.h"

/* ---- host.c: the machine we run on ------------------------------------------------------ */
double rv_host_seconds(void); /* monotonic */
double rv_host_date(void);    /* since 1970; for people and TensorBoard only */
/* Threads this process may use: processors of its affinity mask, at most the quota of its control
 * group rounded up; at least 1. */
int rv_host_threads(void);
/* Bind the calling thread to `count` of its processors, from number `first` on; threads it makes
 * inherit that. Returns the processors it had, for rv_host_unpin. Where the system refuses, nothing
 * changes: it is a matter of speed alone. */
typedef struct rv_processors {
    uint64_t mask[16];
} rv_processors;
rv_processors rv_host_pin(int first, int count);
void rv_host_unpin(const rv_processors *before);
/* The quota alone: `cgroup` is /proc/self/cgroup, `mount` /sys/fs/cgroup. 0: no limit. Versions 1
 * and 2; the tightest of the group and those above it. */
double rv_host_quota(const char *cgroup, const char *mount);

/* Bytes this process may come to use: MemAvailable of `meminfo` (/proc/meminfo) and what it has, at
 * most the limit of its control group and those above. INFINITY: nothing says. */
double rv_host_memory(const char *meminfo, const char *cgroup, const char *mount);
double rv_host_resident(void); /* bytes of the process in memory now; 0: not known */
double rv_host_peak(void);     /* the most it was, as far as the kernel was not told to forget */
void rv_host_trim(void);       /* give back what is freed in the middle of the heap */

/* Largest resident size of the process, and of the spans marked as training steps. The kernel's
 * own peak is reset at the start of a span where that is allowed, else the size is sampled. */
typedef struct rv_watch {
    double peak_mb, step_mb;
    bool sampled; /* the peak cannot be reset */
} rv_watch;
void rv_watch_begin(rv_watch *watch); /* steps begin */
void rv_watch_step(rv_watch *watch);  /* a step has ended */
void rv_watch_end(rv_watch *watch);   /* saving or evaluation begins */
void rv_watch_close(rv_watch *watch); /* all is done */

/* ---- pace.c: how long steps take -------------------------------------------------------- */
/* Start to start of successive steps; what lies between pause and resume is left out. */
typedef struct rv_pace {
    float *interval; /* seconds; owned */
    int64_t count, capacity;
    double start, paused, pause_start; /* of the step in progress; 0: none, not in a pause */
    double seconds;                    /* of all steps, pauses left out */
    int64_t samples;
} rv_pace;
RV_CHECKED rv_status rv_pace_start(rv_pace *pace, int samples); /* a step of `samples` begins */
void rv_pace_pause(rv_pace *pace);
void rv_pace_resume(rv_pace *pace);
RV_CHECKED rv_status rv_pace_close(rv_pace *pace); /* the last step has ended */
double rv_pace_median_ms(const rv_pace *pace);     /* without the first two; NAN: none left */
double rv_pace_rate(const rv_pace *pace);          /* samples per second so far; NAN: none */
void rv_pace_finish(rv_pace *pace);

/* ---- setup.c: from a recipe to something that runs -------------------------------------- */
/* One share of the data and its batches. loader NULL: the share does not exist. It must not move
 * in memory. shuffle: for training, which needs at least one full batch (RV_CONFIG). */
typedef struct rv_share {
    rv_source source;
    rv_loader *loader;
} rv_share;
RV_CHECKED rv_status rv_share_open(rv_share *share, const rv_config *config, rv_split split,
                                   bool shuffle);
void rv_share_close(rv_share *share);

typedef struct rv_setup {
    rv_config *config;
    rv_device_list devices; /* stage s is on the s-th of them, over and over */
    rv_device device;       /* the first */
    rv_net *net;
    rv_engine *engine;
    struct rv_plan *plan; /* NULL: one stage, nothing to choose */
    rv_delay_desc delay;  /* rv_setup_delay; zeroed: synchronous */
    int threads;
    const char *trace; /* file of a pipeline's timeline, or NULL */
    void (*say)(void *user, const char *line);
    void *user;
} rv_setup;
RV_CHECKED rv_status rv_isa_parse(const char *name, rv_isa *out); /* NULL: best. RV_USAGE */
/* What arithmetic a run has, as files keep it: the instruction set, or the kind of device. */
const char *rv_setup_isa(const rv_setup *setup);
/* Open the device; threads: per stage, 0: those of the process shared among the stages. */
RV_CHECKED rv_status rv_setup_device(rv_setup *setup, const char *isa, int threads);
/* Bind the recipe to the source, lay out the network. */
RV_CHECKED rv_status rv_setup_net(rv_setup *setup, const rv_source *source);
/* Fix the forms under the weights `block` ([n_all]; NULL: the initial ones), make the trainer and
 * give it these weights. total_steps: horizon of the rate schedule. */
RV_CHECKED rv_status rv_setup_serial(rv_setup *setup, rv_share *first, const float *block,
                                     int64_t total_steps);
enum { RV_FORM_SAMPLES = 128 }; /* whose rates fix the forms (README, "Same bits") */
/* Its two halves: the starting weights, under which forms are chosen (rv_version_destroy), and the
 * plain trainer with the network's own. */
RV_CHECKED rv_status rv_setup_forms(rv_setup *setup, rv_share *first, const float *block,
                                    rv_version **start);
RV_CHECKED rv_status rv_setup_one(rv_setup *setup, int64_t total_steps, rv_engine **engine);

/* setup_plan.c: the same with what the recipe says of the pipeline. */
typedef struct rv_wish { /* from the command line; zeros: nothing */
    const char *schedule_file, *profile;
    const int *cuts; /* [stages - 1] where the recipe has none, or NULL */
    int devices;     /* stages, whatever the recipe says */
    bool bare;       /* costs are measured only where something is to be chosen by them */
} rv_wish;
RV_CHECKED rv_status rv_setup_trainer(rv_setup *setup, rv_share *first, const float *block,
                                      int64_t total_steps, const rv_wish *wish);
/* What can be said wrongly about the pipeline without measuring: RV_CONFIG with its place. */
RV_CHECKED rv_status rv_setup_check_pipeline(const rv_setup *setup);
/* Plan after the forms are chosen; config's train.chunks becomes the plan's. */
RV_CHECKED rv_status rv_setup_plan(rv_setup *setup, rv_share *first, const rv_wish *wish,
                                   struct rv_plan *plan);
RV_CHECKED rv_status rv_setup_pipeline(rv_setup *setup, const struct rv_plan *plan,
                                       rv_version *start, int64_t total_steps, rv_engine **engine);
void rv_setup_plan_finish(rv_setup *setup);

/* setup_delay.c: what the recipe says of delayed gradients. Before the data are opened: where every
 * micro-batch makes an update, it is the config's batch from then on. RV_CONFIG with its place: no
 * such correction, or something that a delayed stage cannot do. */
RV_CHECKED rv_status rv_setup_delay(rv_setup *setup, const char *schedule_file);
/* The rest, once the number of training samples is known: when the delay ends, what goes together.
 */
RV_CHECKED rv_status rv_setup_delay_check(rv_setup *setup, int64_t samples);
/* The device, open, has what a delayed schedule needs: else RV_CONFIG with its place. */
RV_CHECKED rv_status rv_setup_delay_device(const rv_setup *setup);
/* What the versions in a checkpoint belong to: mode, corrections, stages and their cuts. *words:
 * rv_free. */
RV_CHECKED rv_status rv_setup_delay_words(const rv_setup *setup, char **words);
/* Cuts that such words tell, at most `most`; how many. */
int rv_setup_delay_cuts(const char *words, int *cuts, int most);
/* Into the resolved recipe go the cuts of a planned delayed training, which decide what its late
 * passes see: by costs they are found with a clock. Nothing where each block is a stage. */
RV_CHECKED rv_status rv_setup_delay_keep(const rv_setup *setup);
/* The oracle on the plan's stages. */
RV_CHECKED rv_status rv_setup_oracle(rv_setup *setup, const struct rv_plan *plan,
                                     int64_t total_steps, rv_engine **engine);

void rv_setup_finish(rv_setup *setup);
/* Place of `section: {key: ...}` in the recipe, for messages. */
rv_where rv_config_place(const rv_config *config, const char *section, const char *key);
/* The recipe's text with the chosen forms written into it: what a model file holds, so that a later
 * evaluation computes the same bits. *text: rv_free. */
RV_CHECKED rv_status rv_setup_recipe(const rv_setup *setup, char **text);

/* ---- score.c: forward passes over a share ----------------------------------------------- */
typedef struct rv_score {
    int64_t samples, correct;
    double loss;     /* mean over the samples */
    int64_t *spikes; /* [layer_count], owned */
    int64_t input_spikes;
} rv_score;
/* Called for every sample in file order. */
typedef struct rv_score_each {
    rv_status (*sample)(void *self, uint64_t sample, int32_t label, int32_t prediction);
    void *self;
    const rv_observer *observer; /* of the forward passes; NULL: none */
} rv_score_each;
/* Evaluate all of a share; `each` may be NULL. *score is zeroed first; rv_score_finish. */
RV_CHECKED rv_status rv_score_share(const rv_setup *setup, rv_share *share,
                                    const rv_score_each *each, rv_score *score);
void rv_score_finish(rv_score *score);
static inline double rv_score_accuracy(const rv_score *score) {
    return score->samples ? (double)score->correct / (double)score->samples : NAN;
}

/* What a score says of each spiking layer, in network order. */
typedef struct rv_layers {
    int count;
    const char **name; /* borrowed from the copies in `names` */
    char (*names)[RV_NAME_MAX];
    double *rate;
    int64_t *spikes, *synops;
    int64_t input_synops, dense;
} rv_layers;
RV_CHECKED rv_status rv_layers_fill(rv_layers *layers, const rv_net *net, const rv_score *score);
void rv_layers_finish(rv_layers *layers);

/* ---- one function per public call, on full structs -------------------------------------- */
RV_CHECKED rv_status rv_train_run(const rv_train_options *options, rv_trainer **trainer,
                                  rv_train_result *result);
RV_CHECKED rv_status rv_evaluate_run(const rv_eval_options *options, rv_eval **eval,
                                     rv_eval_result *result);
RV_CHECKED rv_status rv_plan_run(const rv_plan_options *options, char **json);
RV_CHECKED rv_status rv_verify_run(const rv_plan_options *options, char **json);
RV_CHECKED rv_status rv_list_json(const char *kind, char **json);
RV_CHECKED rv_status rv_info_json(const char *path, char **json);
RV_CHECKED rv_status rv_plot_run(const rv_plot_options *options);
/* NULL: test. RV_USAGE. Of a run folder best.h5, else last.h5; *out: rv_free. (evaluate.c) */
RV_CHECKED rv_status rv_split_parse(const char *name, rv_split *out);
RV_CHECKED rv_status rv_model_find(const char *path, char **out);
RV_CHECKED rv_status rv_diff_json(const char *a, const char *b, const char *layer, char **json);
RV_CHECKED rv_status rv_runs_json(const char *const *paths, int count, char **json);
RV_CHECKED rv_status rv_runs_folder(const char *path); /* RV_INPUT: not there, or a file */
RV_CHECKED rv_status rv_check_json(const char *path, const char *const *sets, int set_count,
                                   char **json);

#endif
