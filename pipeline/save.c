/*
 * Saving while training goes on. The training thread copies its state (memory to memory) and hands
 * it to the writer thread, which makes the files; there is one copy, so one save is in flight at
 * most and the next one waits for it. A failed save is reported by the next call.
 */
#include <stdio.h>
#include <string.h>

#include "pipeline/durable.h"

struct rv_saver {
    const rv_setup *setup;
    rv_run *run;
    rv_writer *writer;
    rv_snapshot *snapshot;
    rv_model_save model; /* what is copied; its texts belong to the snapshot's maker */
    char *last, *previous, *best;
    int keep;
    bool drop_last;
    double took;    /* of the newest save; the writer's until it is idle */
    double seconds; /* the longest seen so far */
};

static rv_status path_of(rv_run *run, const char *name, char **out) {
    return rv_strdup(rv_run_file(run, name), out);
}

/* Files that a whole run has at once: last, previous and best, and one that is being written. Those
 * that are there already need no more room. */
static rv_status room_check(const rv_saver *saver, bool fresh) {
    size_t state = rv_snapshot_bytes(saver->snapshot, true);
    size_t best = rv_snapshot_bytes(saver->snapshot, false), log = 1 << 20;
    return rv_commit_room(rv_run_path(saver->run), "checkpoints",
                          (fresh ? 3 * state + best : state) + log);
}

/* The files' names are made here: the run hands out one at a time, and the writer must not ask. */
rv_status rv_saver_create(const rv_setup *setup, rv_run *run, const char *recipe,
                          const char *digest, rv_health *health, bool fresh, rv_saver **out) {
    rv_status status = RV_OK;
    rv_saver *saver = NULL;
    char *words = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *saver, "a saver", &saver));
    saver->setup = setup;
    saver->run = run;
    saver->model = (rv_model_save){
        .net = setup->net,
        .block = rv_engine_block(setup->engine),
        .optimizer = rv_engine_optimizer(setup->engine),
        .config_text = recipe,
        .isa = rv_isa_name(rv_device_isa(&setup->device)),
        .resume_digest = digest,
    };
    saver->model.health = rv_health_state(health, &saver->model.health_count);
    saver->model.versions = rv_engine_versions(setup->engine, &saver->model.version_count);
    if (saver->model.versions) {
        TRY(rv_setup_delay_words(setup, &words));
        saver->model.delay = words;
    }
    TRY(path_of(run, "last.h5", &saver->last));
    TRY(path_of(run, "previous.h5", &saver->previous));
    TRY(path_of(run, "best.h5", &saver->best));
    TRY(rv_snapshot_create(&saver->model, &saver->snapshot));
    saver->model.delay = NULL; /* the snapshot has it */
    TRY(room_check(saver, fresh));
    TRY(rv_writer_create(1, &saver->writer));
    *out = saver;
    saver = NULL;
out:
    rv_free(words);
    rv_saver_destroy(saver);
    return status;
}

void rv_saver_destroy(rv_saver *saver) {
    if (!saver) return;
    rv_writer_destroy(saver->writer);
    rv_snapshot_destroy(saver->snapshot);
    rv_free(saver->best);
    rv_free(saver->previous);
    rv_free(saver->last);
    rv_free(saver);
}

/* In the writer's thread. The best first: after a crash between the two it is made again. The
 * metrics before the checkpoint that counts on them. */
static rv_status write_files(void *self) {
    rv_status status = RV_OK;
    rv_saver *saver = self;
    double begun = rv_host_seconds();
    TRY(rv_run_sync(saver->run));
    TRY(rv_snapshot_write(saver->snapshot, saver->keep & RV_KEEP_BEST ? saver->best : NULL,
                          saver->keep & RV_KEEP_LAST ? saver->last : NULL,
                          saver->drop_last ? NULL : saver->previous));
    saver->drop_last = false;
    saver->took = rv_host_seconds() - begun;
    rv_timeline_save(rv_engine_timeline(saver->setup->engine), begun);
out:
    return status;
}

/* Also after a write that failed or was left out. */
static void written(void *self) {
    rv_saver *saver = self;
    rv_snapshot_drop(saver->snapshot);
    /* What is freed in the middle of the heap or by the writer's thread would stay resident until
     * the next save. */
    rv_host_trim();
}

rv_status rv_saver_save(rv_saver *saver, const rv_progress *progress, int keep) {
    rv_status status = RV_OK;
    const rv_writer_job job = {write_files, written, saver};
    TRY(rv_saver_wait(saver));
    saver->model.progress = progress;
    rv_engine_pull(saver->setup->engine);
    rv_snapshot_take(saver->snapshot, &saver->model);
    saver->keep = keep;
    TRY(rv_writer_submit(saver->writer, &job));
out:
    return status;
}

/* The writer's figures may be read only when it is idle. */
rv_status rv_saver_check(rv_saver *saver, bool *idle) {
    rv_status status = rv_writer_check(saver->writer, idle);
    if (*idle) saver->seconds = fmax(saver->seconds, saver->took);
    return status;
}

rv_status rv_saver_wait(rv_saver *saver) {
    rv_status status = rv_writer_wait(saver->writer);
    saver->seconds = fmax(saver->seconds, saver->took);
    return status;
}

double rv_saver_seconds(const rv_saver *saver) {
    return saver->seconds;
}

/* For one save: then last.h5 is good again. */
void rv_saver_drop_last(rv_saver *saver) {
    saver->drop_last = true;
}
