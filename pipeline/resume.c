/*
 * Finding the place to go on from: which folder, which checkpoint of it, and whether recipe and
 * data are still those the run began with. Bits of a resumed run are those of one that never
 * stopped; whatever could change them silently is refused or said.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/durable.h"

/* `auto` goes on if it can and else begins; a named folder has to be there, because a slip of the
 * pen would otherwise start a new training in silence. */
rv_status rv_resume_path(const char *resume, const char *out, const char *stem, char **path,
                         bool *must) {
    rv_status status = RV_OK;
    char name[512];
    *path = NULL;
    *must = resume && strcmp(resume, "auto") != 0;
    if (*must && out && strcmp(resume, out) != 0)
        FAIL(RV_USAGE, "--resume %s and --out %s name two folders", resume, out);
    if (*must) {
        TRY(rv_strdup(resume, path));
    } else if (out) {
        TRY(rv_strdup(out, path));
    } else if (resume) {
        snprintf(name, sizeof name, "runs/%s", stem);
        TRY(rv_strdup(name, path));
    }
out:
    return status;
}

/* RV_OK with *model NULL: the file is not there. */
static rv_status checkpoint_open(const char *path, int64_t *horizon, rv_model **model) {
    rv_status status = RV_OK;
    *model = NULL;
    if (access(path, F_OK) != 0 && errno == ENOENT) return RV_OK;
    TRY(rv_model_open(path, model));
    if (!rv_model_checkpoint(*model, horizon))
        status = rv_fail(RV_DATA, "%s: a model without the state to go on from", path);
out:
    if (status != RV_OK) {
        rv_model_close(*model);
        *model = NULL;
    }
    return status;
}

rv_status rv_resume_open(rv_run *run, rv_say say, void *user, rv_resume *out) {
    static const char *const names[] = {"last.h5", "previous.h5"};
    rv_status status = RV_OK;
    rv_error first = {0};
    char line[1024];
    *out = (rv_resume){0};
    if (!rv_h5_available())
        FAIL(RV_CONFIG, "--resume: this program was built without HDF5 and has no checkpoints");
    for (int i = 0; i < 2 && !out->model; i++) {
        status = checkpoint_open(rv_run_file(run, names[i]), &out->horizon, &out->model);
        if (status == RV_OK && out->model) out->fell_back = i > 0;
        if (status == RV_OK) continue;
        if (status != RV_DATA) goto out; /* not the file's fault: memory, permission */
        /* Of two damaged files the newer one is reported: it is what the user will ask about. */
        if (first.status == RV_OK) first = *rv_error_get();
    }
    status = RV_OK;
    if (!out->model && first.status != RV_OK) {
        rv_error_set(&first);
        status = first.status;
        goto out;
    }
    if (out->fell_back) {
        snprintf(line, sizeof line, "last.h5 %s%s; going on from previous.h5",
                 first.status == RV_OK ? "is missing" : "is damaged: ", first.message);
        say(user, line);
    }
out:
    return status;
}

/* The old network is the new one (equal digests) but for the forms: those stay what they were. A
 * form decides in which order a product is summed; choosing anew could change bits. */
static void forms_take(const rv_config *old, rv_config *config) {
    for (int i = 0; i < config->net.layer_count && i < old->net.layer_count; i++)
        config->net.layers[i].form = old->net.layers[i].form;
}

/* The recipe of the checkpoint, not the file it once came from, is what the run began with. Recipe
 * and data are refused; an isa is only warned of, since moving to another machine is a good
 * reason. */
rv_status rv_resume_match(const rv_resume *resume, rv_config *config, const char *digest,
                          const char *isa, rv_say say, void *user) {
    rv_status status = RV_OK;
    rv_config *old = NULL;
    const char *text = rv_model_config(resume->model);
    char line[512], where[320];
    TRY(rv_config_parse(text, strlen(text), "the checkpoint's recipe", &old));
    if (rv_config_differs(old, config, where, sizeof where))
        FAIL(RV_CONFIG, "cannot resume with another recipe: %s", where);
    if (strcmp(digest, rv_model_resume_digest(resume->model)) != 0)
        FAIL(RV_CONFIG, "cannot resume with other data: the contents of the files of \"data\" are "
                        "not those the run began with");
    if (strcmp(isa, rv_model_isa(resume->model)) != 0) {
        snprintf(line, sizeof line,
                 "warning: the run began with isa %s, this is %s: bits may differ",
                 rv_model_isa(resume->model), isa);
        say(user, line);
    }
    forms_take(old, config);
out:
    rv_config_free(old);
    return status;
}

void rv_resume_finish(rv_resume *resume) {
    rv_model_close(resume->model);
    *resume = (rv_resume){0};
}
