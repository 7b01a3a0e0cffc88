/* For tests of plans: costs that no clock decides. */
#ifndef RV_TESTS_PROFILE_H
#define RV_TESTS_PROFILE_H

#include <jansson.h>

#include "tests/small.h"
#include "tests/spawn.h"

/* A profile of the blocks that begin with layers `first`, as `plan --profile` reads it: all alike,
 * or with `spread` each another; items that scatter. Returns where it lies. */
static inline const char *profile_put(const char *const *first, int count, double spread,
                                      double scatter) {
    const char *path = in_folder("profile.json");
    json_t *blocks = json_array();
    for (int i = 0; i < count; i++) {
        double own = 1 + spread * small_random(5, (uint64_t)i);
        json_array_append_new(
            blocks, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:i}", "first",
                              first[i], "f_ms", own, "b_ms", 1.3 * own, "w_ms", 0.9 * own, "u_ms",
                              0.2, "norm_ms", 0.0, "scatter", scatter, "forward_bytes", 0,
                              "backward_bytes", 0, "scratch_bytes", 4096));
    }
    json_t *root = json_pack("{s:f, s:f, s:[{s:i, s:o}]}", "latency_ms", 0.01, "bytes_per_s", 1e9,
                             "points", "chunks", 1, "blocks", blocks);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

#endif
