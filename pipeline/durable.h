/*
 * Inside pipeline/: what makes a training last. Saving while training goes on (save.c), and finding
 * the place to go on from (resume.c).
 */
#ifndef RV_PIPELINE_DURABLE_H
#define RV_PIPELINE_DURABLE_H

#include "pipeline/health.h"

/* One line for the log. */
typedef void (*rv_say)(void *user, const char *line);

/* ---- save.c ----------------------------------------------------------------------------- */
typedef enum rv_keep { RV_KEEP_LAST = 1, RV_KEEP_BEST = 2 } rv_keep; /* files of one save */
typedef struct rv_saver rv_saver;
/* `run` is borrowed. fresh: the folder has no checkpoint yet. RV_IO when the folder's disk has no
 * room for the files of a run. */
RV_CHECKED rv_status rv_saver_create(const rv_setup *setup, rv_run *run, const char *recipe,
                                     const char *digest, rv_health *health, bool fresh,
                                     rv_saver **out);
void rv_saver_destroy(rv_saver *saver); /* blocks until a save in flight has ended */
/* Copy the training's state and let the writer make best.h5, then last.h5, of it. Blocks only while
 * an earlier save is in flight. Any call gives the failure of an earlier save. */
RV_CHECKED rv_status rv_saver_save(rv_saver *saver, const rv_progress *progress, int keep);
RV_CHECKED rv_status rv_saver_check(rv_saver *saver, bool *idle); /* never blocks */
RV_CHECKED rv_status rv_saver_wait(rv_saver *saver);
double rv_saver_seconds(const rv_saver *saver); /* the longest save so far */
/* last.h5 is damaged: the next save must not put it in the place of previous.h5. */
void rv_saver_drop_last(rv_saver *saver);

/* ---- resume.c --------------------------------------------------------------------------- */
typedef struct rv_resume {
    rv_model *model; /* NULL: nothing to go on from, start at the beginning */
    bool fell_back;  /* last.h5 is damaged or missing, this is previous.h5 */
    int64_t horizon; /* of the rate schedule */
} rv_resume;
/* The newest good checkpoint of a run. RV_DATA when there are some but none is good. */
RV_CHECKED rv_status rv_resume_open(rv_run *run, rv_say say, void *user, rv_resume *out);
/* Refuse (RV_CONFIG, naming the first difference) a recipe or data that are not those the run began
 * with; else take over the forms of its products. Warns when bits may differ. */
RV_CHECKED rv_status rv_resume_match(const rv_resume *resume, rv_config *config, const char *digest,
                                     const char *isa, rv_say say, void *user);
void rv_resume_finish(rv_resume *resume);

/* Where --resume and -o lead: *path is to be freed with rv_free, NULL: a new folder of the default
 * name. *must: a run has to be there. RV_USAGE when both are given and differ. */
RV_CHECKED rv_status rv_resume_path(const char *resume, const char *out, const char *stem,
                                    char **path, bool *must);

#endif
