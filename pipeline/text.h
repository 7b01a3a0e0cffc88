/* Inside pipeline/: JSON text and names, for the interface and the command line. */
#ifndef RV_PIPELINE_TEXT_H
#define RV_PIPELINE_TEXT_H

#include <jansson.h>

#include "kernels/base.h"

/* A number, or null when it is not finite. NULL: out of memory (as all of jansson). */
json_t *rv_json_number(double value);
/* Take ownership of `root` and print it; compact: one line. RV_MEMORY when root is NULL. */
RV_CHECKED rv_status rv_json_text(json_t *root, bool compact, char **text);
/* Parse a file; RV_INPUT, RV_DATA with line and column. *out: json_decref. */
RV_CHECKED rv_status rv_json_load(const char *path, json_t **out);
/* The name nearest to `word`, or NULL when none is near enough to be meant. */
const char *rv_name_nearest(const char *word, const char *const *names, int count);

#endif
