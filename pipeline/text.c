/* JSON text through jansson, and the nearest name. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/internal.h"

/* ---- JSON -------------------------------------------------------------------------------- */
/* JSON has no NaN: readers of ours take null for "no such number". */
json_t *rv_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

rv_status rv_json_text(json_t *root, bool compact, char **text) {
    rv_status status = RV_OK;
    char *dump = NULL;
    *text = NULL;
    if (!root) FAIL(RV_MEMORY, "out of memory for JSON");
    /* 12 digits: 0.8812 reads as 0.8812, and two equal results never print differently. */
    dump = json_dumps(root, JSON_REAL_PRECISION(12) | (compact ? JSON_COMPACT : JSON_INDENT(2)));
    if (!dump) FAIL(RV_MEMORY, "out of memory for JSON text");
    TRY(rv_strdup(dump, text));
out:
    free(dump);
    json_decref(root);
    return status;
}

/* Duplicate keys are damage: one of the two values would be lost without a word. */
rv_status rv_json_load(const char *path, json_t **out) {
    rv_status status = RV_OK;
    json_error_t error;
    FILE *file = fopen(path, "re");
    *out = NULL;
    if (!file) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    *out = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    if (!*out) {
        rv_where where = {path, error.line, error.column};
        status = rv_fail_at(RV_DATA, where, NULL, NULL, "not JSON: %s", error.text);
    }
out:
    if (file) fclose(file);
    return status;
}

/* ---- names ------------------------------------------------------------------------------- */
/* The first of equally near names wins. A name must share at least one letter with the word. */
const char *rv_name_nearest(const char *word, const char *const *names, int count) {
    const char *nearest = NULL;
    int least = (int)strlen(word) / 3 + 2; /* one slip in a short word, a few in a long one */
    for (int i = 0; i < count; i++) {
        size_t length = strlen(names[i]);
        int distance = rv_edit_distance(word, strlen(word), names[i], length);
        if (distance < least && distance < (int)length) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
