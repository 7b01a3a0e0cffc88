/*
 * For tests that compare runs of the program: recipes that differ in their training, and whether
 * two runs have the same weights and metrics. Include after cmocka.h.
 */
#ifndef RV_TESTS_RUNS_H
#define RV_TESTS_RUNS_H

#include <string.h>

#include "tests/spawn.h"

/* A recipe of the folder: constant rate unless it says otherwise, so that max_steps may differ. */
static inline void recipe_put(const char *name, const char *optimizer, const char *schedule) {
    char text[4096], whole[8192];
    read_text(in_folder("recipe.yaml"), text, sizeof text);
    char *train = strstr(text, "\ntrain:");
    assert_non_null(train);
    *train = 0;
    int size = snprintf(whole, sizeof whole,
                        "%s\ntrain: {epochs: 4, batch: 16, optimizer: %s, lr_schedule: %s}\n", text,
                        optimizer, schedule);
    tiny_put(in_folder(name), whole, (size_t)size);
}

/* metrics.jsonl without its times, one line behind the other; the line about the work of stages is
 * nothing but times, and that about delay tells what was in flight. */
static inline char *metrics_of(const char *run) {
    static char kept[2][1 << 18], text[1 << 18];
    static int turn;
    char *out = kept[turn++ % 2], path[256];
    out[0] = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    read_text(in_folder(path), text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        assert_non_null(root);
        json_object_del(root, "seconds");
        json_object_del(root, "samples_per_s");
        char *dump = json_dumps(root, JSON_COMPACT);
        if (!strstr(dump, "\"event\":\"pipeline\"") && !strstr(dump, "\"event\":\"delay\""))
            strcat(strcat(out, dump), "\n");
        free(dump);
        json_decref(root);
    }
    return out;
}

static inline void expect_same(const char *a, const char *b) {
    if (RUN("diff", a, b) != 0) fail_msg("%s%s", out_text, err_text);
    assert_contains(out_text, "same: ");
    assert_string_equal(metrics_of(a), metrics_of(b));
}

#endif
