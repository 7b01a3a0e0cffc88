/* ranvier diff A B: are two models the same to the bit, and if not, where first? */
#include <string.h>

#include "pipeline/cmd.h"

/* One line a person can act on. */
static void print_difference(const json_t *root) {
    const json_t *first = json_object_get(root, "first"), *index = json_object_get(first, "index");
    const char *what = json_string_value(json_object_get(first, "what"));
    printf("different: %s", json_string_value(json_object_get(first, "name")));
    if (strcmp(what, "value") != 0) {
        printf(" (%s)\n", what);
        return;
    }
    for (size_t i = 0; i < json_array_size(index); i++)
        printf("%s%lld", i ? ", " : "[", (long long)json_integer_value(json_array_get(index, i)));
    printf("%s: %.9g (%s) and %.9g (%s)\n", json_array_size(index) ? "]" : "",
           json_number_value(json_object_get(first, "a")),
           json_string_value(json_object_get(first, "a_bits")),
           json_number_value(json_object_get(first, "b")),
           json_string_value(json_object_get(first, "b_bits")));
}

/* A difference is a result: it is printed, and its code handed on. */
rv_code rv_cmd_diff(const rv_arguments *arguments) {
    rv_status status = RV_OK, found;
    char *text = NULL;
    json_t *root = NULL;
    found =
        (rv_status)rv_diff(arguments->operand[0], arguments->operand[1], arguments->layer, &text);
    if (found != RV_DIFFERENT) TRY(found);
    if (arguments->json) {
        puts(text);
        goto out;
    }
    root = json_loads(text, 0, NULL);
    if (!root) FAIL(RV_MEMORY, "out of memory for the answer");
    if (found == RV_DIFFERENT)
        print_difference(root);
    else
        printf("same: %lld arrays\n",
               (long long)json_integer_value(json_object_get(root, "compared")));
out:
    json_decref(root);
    rv_text_free(text);
    return status == RV_OK ? found : status;
}
