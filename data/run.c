/*
 * Run folders. A run is claimed (locked) before anything in it is read or written. run.json and
 * config.yaml are committed (crash-safe); metrics.jsonl is appended to, each line by one write, so
 * a crash leaves whole lines.
 */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rv_run {
    char *path, *file; /* the folder; path/name of the last question */
    rv_lock *lock;
    int metrics; /* descriptor, -1: not open */
    int64_t metrics_size;
    json_t *info;
};

enum { NAMES_MOST = 10000 }; /* runs of one recipe in runs/ */

/* ---- the folder -------------------------------------------------------------------------- */
/* Make one folder. *made false: something of that name is there already. */
static rv_status folder_make(const char *path, bool *made) {
    *made = mkdir(path, 0777) == 0;
    if (*made || errno == EEXIST) return RV_OK;
    return rv_fail_create(path);
}

/* The folders around `path`. An existing part may be a folder or a link to one; if it is a file,
 * the next mkdir says so. */
static rv_status parents_make(const char *path) {
    rv_status status = RV_OK;
    char *part = NULL;
    bool made;
    TRY(rv_strdup(path, &part));
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        TRY(folder_make(part, &made));
        *slash = '/';
    }
out:
    rv_free(part);
    return status;
}

/* A folder that is there may be used: schedulers like to make it before. */
static rv_status folder_given(const char *path) {
    rv_status status = RV_OK;
    bool made;
    if (!*path) FAIL(RV_CREATE, "the name of the run folder is empty");
    TRY(parents_make(path));
    TRY(folder_make(path, &made));
out:
    return status;
}

/* runs/<stem>, or the next free runs/<stem>-2, -3; mkdir decides, so two starts get two folders.
 * A bound on the search, so that an unwritable or odd folder cannot make it endless. */
static rv_status folder_next(const char *stem, char **out) {
    rv_status status = RV_OK;
    size_t size = strlen(stem) + 32;
    char *path = NULL;
    bool made = false;
    TRY(rv_alloc(size, 1, "a path", &path));
    TRY(folder_make("runs", &made));
    made = false;
    for (int i = 1; !made && i <= NAMES_MOST; i++) {
        snprintf(path, size, i == 1 ? "runs/%s" : "runs/%s-%d", stem, i);
        TRY(folder_make(path, &made));
    }
    if (!made) FAIL(RV_CREATE, "runs/%s: %d runs of that name; use -o", stem, NAMES_MOST);
    *out = path;
    path = NULL;
out:
    rv_free(path);
    return status;
}

/* ---- run.json ---------------------------------------------------------------------------- */
/* Put a new value (taken) under a key; jansson hands back -1 for a NULL value too. The value is
 * taken even on failure (jansson's `_new`), so callers have nothing to free. */
static rv_status put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) == 0) return RV_OK;
    return rv_fail(RV_MEMORY, "out of memory, or text that is not UTF-8, for \"%s\" of run.json",
                   key);
}

/* Layers without a product have no form and are left out. */
static rv_status forms_put(json_t *info, const rv_net *net) {
    static const char *const names[] = {
#define FORM_NAME(name, text) text,
        RV_FORM_LIST(FORM_NAME)
#undef FORM_NAME
    };
    rv_status status = RV_OK;
    json_t *forms = json_object();
    for (int i = 0; net && i < net->layer_count; i++) {
        rv_form form = rv_net_layer_form(net, i);
        if (form != RV_FORM_AUTO)
            TRY(put(forms, rv_net_layer_name(net, i), json_string(names[form])));
    }
    TRY(put(info, "forms", json_incref(forms)));
out:
    json_decref(forms);
    return status;
}

/* No time in it: runs are compared by content, and files have dates of their own. */
static rv_status info_make(const rv_run_info *info, json_t **out) {
    rv_status status = RV_OK;
    char host[256] = "";
    json_t *json = json_object();
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    TRY(put(json, "format", json_string("ranvier-run")));
    TRY(put(json, "version", json_string(info->version)));
    TRY(put(json, "status", json_string("running")));
    TRY(put(json, "seed", json_integer((json_int_t)info->seed)));
    TRY(put(json, "digest", json_string(info->digest)));
    TRY(put(json, "isa", json_string(info->isa)));
    TRY(put(json, "threads", json_integer(info->threads)));
    TRY(put(json, "schedule", json_string(info->schedule)));
    TRY(put(json, "host", json_string(host)));
    TRY(forms_put(json, info->net));
    *out = json;
    json = NULL;
out:
    json_decref(json);
    return status;
}

/* Indented: people read it. */
static rv_status info_write(rv_run *run) {
    rv_status status = RV_OK;
    char *text = json_dumps(run->info, JSON_INDENT(2));
    if (!text) FAIL(RV_MEMORY, "out of memory for run.json");
    TRY(rv_commit(rv_run_file(run, "run.json"), NULL, text, strlen(text)));
out:
    free(text);
    return status;
}

/* ---- for the caller ---------------------------------------------------------------------- */
rv_status rv_run_claim(const char *path, rv_run **out) {
    rv_status status = RV_OK;
    rv_run *run = NULL;
    struct stat about;
    if (stat(path, &about) != 0)
        FAIL(RV_CREATE, "%s: cannot look at it: %s", path, strerror(errno));
    if (!S_ISDIR(about.st_mode)) FAIL(RV_CREATE, "%s: there is a file of that name", path);
    TRY(rv_alloc(1, sizeof *run, "a run", &run));
    run->metrics = -1;
    TRY(rv_strdup(path, &run->path));
    TRY(rv_alloc(strlen(path) + 257, 1, "a path", &run->file));
    TRY(rv_lock_take(path, &run->lock));
    TRY(rv_commit_sweep(path));
    *out = run;
    run = NULL;
out:
    rv_run_destroy(run);
    return status;
}

/* Whatever it may say: what is there is not overwritten unasked. */
bool rv_run_holds(rv_run *run) {
    return access(rv_run_file(run, "run.json"), F_OK) == 0 || errno != ENOENT;
}

/* A file that cannot be read says nothing. */
bool rv_run_complete(rv_run *run) {
    json_t *info = json_load_file(rv_run_file(run, "run.json"), 0, NULL);
    const char *text = json_string_value(json_object_get(info, "status"));
    bool complete = text && strcmp(text, "complete") == 0;
    json_decref(info);
    return complete;
}

const char *rv_run_note(const rv_run *run) {
    return rv_lock_note(run->lock);
}

/* Lines after the place a checkpoint remembers are of steps that will be made again. A log that is
 * shorter has been touched by someone; what is left of it is kept. */
static rv_status metrics_open(rv_run *run, int64_t size) {
    rv_status status = RV_OK;
    struct stat about;
    const char *file = rv_run_file(run, "metrics.jsonl");
    run->metrics = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (run->metrics < 0) {
        status = rv_fail_create(file);
        goto out;
    }
    if (fstat(run->metrics, &about) != 0 ||
        (about.st_size > size && ftruncate(run->metrics, size) != 0))
        FAIL(RV_IO, "%s: cannot cut at byte %lld: %s", file, (long long)size, strerror(errno));
    run->metrics_size = about.st_size < size ? about.st_size : size;
out:
    return status;
}

/* What can fail without touching the disk comes first. */
rv_status rv_run_begin(rv_run *run, const rv_config *config, const rv_run_info *info,
                       int64_t metrics) {
    rv_status status = RV_OK;
    char *text = NULL;
    TRY(info_make(info, &run->info));
    TRY(rv_config_text(config, &text));
    TRY(rv_commit(rv_run_file(run, "config.yaml"), NULL, text, strlen(text)));
    TRY(metrics_open(run, metrics));
    TRY(info_write(run));
out:
    rv_free(text);
    return status;
}

/* Two starts that name the same folder get past mkdir both: the lock parts them. */
rv_status rv_run_create(const char *path, const char *stem, const rv_config *config,
                        const rv_run_info *info, rv_run **out) {
    rv_status status = RV_OK;
    rv_run *run = NULL;
    char *next = NULL;
    if (path)
        TRY(folder_given(path));
    else
        TRY(folder_next(stem, &next));
    TRY(rv_run_claim(path ? path : next, &run));
    if (rv_run_holds(run)) {
        status = rv_run_taken(run);
        goto out;
    }
    TRY(rv_run_begin(run, config, info, 0));
    *out = run;
    run = NULL;
out:
    rv_free(next);
    rv_run_destroy(run);
    return status;
}

rv_status rv_run_taken(const rv_run *run) {
    return rv_fail(RV_CREATE,
                   "%s: holds a run already; continue it with --resume auto or name another folder "
                   "with -o",
                   run->path);
}

const char *rv_run_path(const rv_run *run) {
    return run->path;
}

/* Names are our own and short; the room is for 256 characters. */
const char *rv_run_file(rv_run *run, const char *name) {
    size_t size = strlen(run->path) + 257;
    snprintf(run->file, size, "%s/%s", run->path, name);
    return run->file;
}

/* O_APPEND and one write a line: a reader never sees half of one, and nothing waits in a buffer
 * when the program dies. */
rv_status rv_run_metric(rv_run *run, const char *json) {
    rv_status status = RV_OK;
    size_t length = strlen(json), done = 0;
    char *line = NULL;
    TRY(rv_alloc(length + 2, 1, "a line of metrics", &line));
    memcpy(line, json, length);
    line[length] = '\n';
    while (done < length + 1) {
        ssize_t count = rv_fault(RV_FAULT_WRITE)
                            ? (errno = ENOSPC, -1)
                            : write(run->metrics, line + done, length + 1 - done);
        if (count < 0 && errno != EINTR) {
            status = rv_fail_io(rv_run_file(run, "metrics.jsonl"), "write", length + 1 - done);
            goto out;
        }
        if (count > 0) done += (size_t)count;
    }
    run->metrics_size += (int64_t)done;
out:
    rv_free(line);
    return status;
}

/* Counted here rather than asked of the file: writes of others are not ours to count on. */
int64_t rv_run_metrics(const rv_run *run) {
    return run->metrics_size;
}

/* A checkpoint that counts on lines which a power cut took away would be no use. */
rv_status rv_run_sync(const rv_run *run) {
    char file[4096];
    if (!rv_fault(RV_FAULT_FSYNC) && fsync(run->metrics) == 0) return RV_OK;
    snprintf(file, sizeof file, "%s/metrics.jsonl", run->path);
    return rv_fail_io(file, "sync", 0);
}

/* The whole file anew: a crash leaves the old status or the new one. */
rv_status rv_run_status(rv_run *run, const char *status_text) {
    rv_status status = RV_OK;
    TRY(put(run->info, "status", json_string(status_text)));
    TRY(info_write(run));
out:
    return status;
}

/* The lock last: until then the folder is ours. */
void rv_run_destroy(rv_run *run) {
    if (!run) return;
    if (run->metrics >= 0) (void)close(run->metrics);
    json_decref(run->info);
    rv_lock_release(run->lock);
    rv_free(run->file);
    rv_free(run->path);
    rv_free(run);
}
