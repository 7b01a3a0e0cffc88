/*
 * The interface: checks what it is given, brings structs of other sizes to ours and back. While it
 * works in the caller's thread denormals are flushed, and numbers are read and written as in C
 * whatever the caller's locale: a decimal comma would change recipes, JSON and pictures.
 */
#include <locale.h>
#include <string.h>

#include "pipeline/internal.h"

/* What is changed in the caller's thread and given back. */
typedef struct surroundings {
    unsigned flush;
    locale_t ours, theirs; /* ours 0: could not be made, the caller's stays */
} surroundings;

/* The "C" locale is part of the C library: it takes no memory and no file. */
static surroundings enter(void) {
    surroundings kept = {.flush = rv_flush_set(), .ours = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    if (kept.ours) kept.theirs = uselocale(kept.ours);
    return kept;
}

static void leave(const surroundings *kept) {
    if (kept->ours) {
        (void)uselocale(kept->theirs);
        freelocale(kept->ours);
    }
    rv_flush_restore(kept->flush);
}

/* Copy a caller's struct of any size into ours: what it lacks is zero. */
static rv_status take(void *ours, size_t size, const void *given, const char *what) {
    size_t theirs = 0;
    if (!given) return rv_fail(RV_USAGE, "%s: NULL", what);
    memcpy(&theirs, given, sizeof theirs);
    if (theirs < sizeof theirs || theirs > 1 << 16)
        return rv_fail(RV_USAGE, "%s: struct_size is not set", what);
    memset(ours, 0, size);
    memcpy(ours, given, theirs < size ? theirs : size);
    return RV_OK;
}

/* Copy our struct into a caller's of any size: what we lack is zero there; its size stays. */
static void give(void *given, const void *ours, size_t size) {
    size_t theirs = 0;
    memcpy(&theirs, given, sizeof theirs);
    memset(given, 0, theirs);
    memcpy(given, ours, theirs < size ? theirs : size);
    memcpy(given, &theirs, sizeof theirs);
}

/* A pointer that must be given; the message names the argument as the header does. */
static rv_status need(const void *pointer, const char *what) {
    return pointer ? RV_OK : rv_fail(RV_USAGE, "%s: NULL", what);
}

/* rv_error keeps texts in fixed arrays, where empty means none; callers get NULL for that. */
static const char *text_or_null(const char *text) {
    return text[0] ? text : NULL;
}

/* ---- errors ------------------------------------------------------------------------------ */
/* A caller without struct_size gets nothing: there is no telling how much room it has. */
void rv_last_error(rv_error_info *out) {
    const rv_error *error = rv_error_get();
    const rv_error_info info = {
        .struct_size = sizeof info,
        .code = error->status,
        .message = error->message,
        .file = text_or_null(error->file),
        .key = text_or_null(error->key),
        .hint = text_or_null(error->hint),
        .line = error->line,
        .column = error->column,
    };
    if (out && out->struct_size >= sizeof out->struct_size) give(out, &info, sizeof info);
}

const char *rv_code_text(rv_code code) {
    return rv_status_text((rv_status)code);
}

/* ---- work -------------------------------------------------------------------------------- */
rv_code rv_train(const rv_train_options *options, rv_trainer **trainer, rv_train_result *result) {
    rv_status status = RV_OK;
    rv_train_options ours;
    rv_train_result full = {0};
    bool started = false; /* result is known to be writable */
    const surroundings kept = enter();
    TRY(need(trainer, "trainer"));
    *trainer = NULL;
    TRY(take(&full, sizeof full, result, "result"));
    TRY(take(&ours, sizeof ours, options, "options"));
    TRY(need(ours.config, "options.config"));
    memset(&full, 0, sizeof full); /* what the caller left in it is no result */
    started = true;
    TRY(rv_train_run(&ours, trainer, &full));
out:
    /* Also on failure: a stopped training has a folder and figures the caller wants. */
    if (started) give(result, &full, sizeof full);
    leave(&kept);
    return status;
}

rv_code rv_evaluate(const rv_eval_options *options, rv_eval **eval, rv_eval_result *result) {
    rv_status status = RV_OK;
    rv_eval_options ours;
    rv_eval_result full = {0};
    const surroundings kept = enter();
    TRY(need(eval, "eval"));
    *eval = NULL;
    TRY(take(&full, sizeof full, result, "result"));
    TRY(take(&ours, sizeof ours, options, "options"));
    TRY(need(ours.model, "options.model"));
    memset(&full, 0, sizeof full);
    TRY(rv_evaluate_run(&ours, eval, &full));
    give(result, &full, sizeof full);
out:
    leave(&kept);
    return status;
}

/* ---- looking at things -------------------------------------------------------------------- */
rv_code rv_list(const char *kind, char **json) {
    rv_status status = RV_OK;
    const surroundings kept = enter();
    TRY(need(json, "json"));
    *json = NULL;
    TRY(need(kind, "kind"));
    TRY(rv_list_json(kind, json));
out:
    leave(&kept);
    return status;
}

rv_code rv_info(const char *path, char **json) {
    rv_status status = RV_OK;
    const surroundings kept = enter();
    TRY(need(json, "json"));
    *json = NULL;
    TRY(need(path, "path"));
    TRY(rv_info_json(path, json));
out:
    leave(&kept);
    return status;
}

rv_code rv_check(const char *path, const char *const *sets, int set_count, char **json) {
    rv_status status = RV_OK;
    const surroundings kept = enter();
    TRY(need(json, "json"));
    *json = NULL;
    TRY(need(path, "path"));
    TRY(rv_check_json(path, sets, set_count, json));
out:
    leave(&kept);
    return status;
}

static rv_status with_plan(const rv_plan_options *options, char **json,
                           rv_status (*run)(const rv_plan_options *options, char **json)) {
    rv_status status = RV_OK;
    rv_plan_options ours;
    const surroundings kept = enter();
    TRY(need(json, "json"));
    *json = NULL;
    TRY(take(&ours, sizeof ours, options, "options"));
    TRY(need(ours.config, "options.config"));
    TRY(run(&ours, json));
out:
    leave(&kept);
    return status;
}

rv_code rv_make_plan(const rv_plan_options *options, char **json) {
    return with_plan(options, json, rv_plan_run);
}

rv_code rv_verify(const rv_plan_options *options, char **json) {
    return with_plan(options, json, rv_verify_run);
}

rv_code rv_plot(const rv_plot_options *options) {
    rv_status status = RV_OK;
    rv_plot_options ours;
    const surroundings kept = enter();
    TRY(take(&ours, sizeof ours, options, "options"));
    TRY(need(ours.run, "options.run"));
    TRY(need(ours.out, "options.out"));
    TRY(rv_plot_run(&ours));
out:
    leave(&kept);
    return status;
}

rv_code rv_diff(const char *a, const char *b, const char *layer, char **json) {
    rv_status status = RV_OK;
    const surroundings kept = enter();
    TRY(need(json, "json"));
    *json = NULL;
    TRY(need(a, "a"));
    TRY(need(b, "b"));
    TRY(rv_diff_json(a, b, layer, json));
out:
    leave(&kept);
    return status;
}

rv_code rv_runs(const char *const *paths, int count, char **json) {
    rv_status status = RV_OK;
    const surroundings kept = enter();
    TRY(need(json, "json"));
    *json = NULL;
    TRY(need(paths, "paths"));
    TRY(rv_runs_json(paths, count, json));
out:
    leave(&kept);
    return status;
}

void rv_text_free(void *text) {
    rv_free(text);
}
