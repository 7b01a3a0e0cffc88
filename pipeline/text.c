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
enum { WORD_MAX = 64 }; /* longer words are no typing slips of any name we have */

/* Edits (insert, delete, replace, swap of neighbours) that turn one word into the other: optimal
 * string alignment, three rows of the table at a time. */
static int edit_distance(const char *a, const char *b) {
    int rows[3][WORD_MAX + 1];
    int m = (int)strlen(a), n = (int)strlen(b);
    if (m > WORD_MAX || n > WORD_MAX) return 2 * WORD_MAX;
    int *older = rows[0], *old = rows[1], *now = rows[2];
    for (int j = 0; j <= n; j++)
        old[j] = j;
    for (int i = 1; i <= m; i++) {
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = old[j - 1] + (a[i - 1] != b[j - 1]);
            if (old[j] + 1 < best) best = old[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                older[j - 2] + 1 < best)
                best = older[j - 2] + 1;
            now[j] = best;
        }
        int *spare = older;
        older = old, old = now, now = spare;
    }
    return old[n];
}

/* The first of equally near names wins. A name must share at least one letter with the word. */
const char *rv_name_nearest(const char *word, const char *const *names, int count) {
    const char *nearest = NULL;
    int least = (int)strlen(word) / 3 + 2; /* one slip in a short word, a few in a long one */
    for (int i = 0; i < count; i++) {
        int distance = edit_distance(word, names[i]);
        if (distance < least && distance < (int)strlen(names[i])) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
