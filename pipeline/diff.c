/* Two models compared, as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "pipeline/internal.h"

/* Of a run folder the newest state: what it has become. */
static rv_status model_open(const char *path, char file[4096], rv_model **out) {
    struct stat about;
    bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    if (snprintf(file, 4096, "%s%s", path, folder ? "/last.h5" : "") >= 4096)
        return rv_fail(RV_INPUT, "%s: path too long", path);
    return rv_model_open(file, out);
}

/* Bits in hexadecimal, as many digits as the type has. */
static json_t *bits_json(uint64_t bits, bool wide) {
    char text[24];
    snprintf(text, sizeof text, wide ? "0x%016" PRIx64 : "0x%08" PRIx64, bits);
    return json_string(text);
}

/* Values come with their bits, because two that differ may print alike, and zeros and NANs have
 * more than one pattern. Differences of shape or presence have no values. */
static json_t *difference_json(const rv_model_difference *first) {
    json_t *index = json_array();
    for (int i = 0; i < first->rank; i++)
        json_array_append_new(index, json_integer(first->index[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:o}", "name", first->name, "what", first->what, "index", index);
    if (strcmp(first->what, "value") != 0) return root;
    json_object_set_new(root, "a", rv_json_number(first->a));
    json_object_set_new(root, "b", rv_json_number(first->b));
    json_object_set_new(root, "a_bits", bits_json(first->bits_a, first->wide));
    json_object_set_new(root, "b_bits", bits_json(first->bits_b, first->wide));
    return root;
}

/* A difference is an answer: the JSON is made first, then the status says it. */
rv_status rv_diff_json(const char *a, const char *b, const char *layer, char **json) {
    rv_status status = RV_OK;
    char files[2][4096];
    rv_model *first = NULL, *second = NULL;
    rv_model_difference difference;
    int compared = 0;
    TRY(model_open(a, files[0], &first));
    TRY(model_open(b, files[1], &second));
    bool differs = rv_model_differs(first, second, layer, &difference, &compared);
    /* Else a misspelt layer would be reported as the same in both. */
    if (layer && !differs && compared == 0)
        FAIL(RV_USAGE, "neither model has a layer \"%s\" with tensors", layer);
    json_t *root = json_pack("{s:s, s:s, s:b, s:i, s:o}", "a", files[0], "b", files[1], "same",
                             !differs, "compared", compared, "first",
                             differs ? difference_json(&difference) : json_null());
    TRY(rv_json_text(root, false, json));
    if (differs)
        status =
            rv_fail(RV_DIFFERENT, "%s and %s differ at %s", files[0], files[1], difference.name);
out:
    rv_model_close(second);
    rv_model_close(first);
    return status;
}
