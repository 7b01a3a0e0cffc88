/* ranvier list KIND: tables with parameters get a block per row, all others one grid. */
#include <string.h>

#include "pipeline/cmd.h"

/* Empty where there is none: an empty cell takes no room. */
static const char *text_of(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

/* One default as it would be written in a recipe; "-" where the parameter is absent by default. */
static void default_text(const json_t *value, char *text, size_t size) {
    if (json_is_string(value))
        snprintf(text, size, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(text, size, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_integer(value))
        snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, size, "%.6g", json_real_value(value));
    else
        snprintf(text, size, "-");
}

/* Name, type, default, limits, sentence; only the defaults need text of their own. */
static rv_status print_parameters(const json_t *parameters) {
    enum { COLUMNS = 5, CELL = 48 };
    rv_status status = RV_OK;
    size_t count = json_array_size(parameters), index;
    char(*initial)[CELL] = NULL;
    const char **cells = NULL;
    json_t *row;
    TRY(rv_alloc(count, sizeof *initial, "the table", &initial));
    TRY(rv_alloc(count * COLUMNS, sizeof *cells, "the table", &cells));
    json_array_foreach((json_t *)parameters, index, row) {
        const char **line = cells + index * COLUMNS;
        default_text(json_object_get(row, "default"), initial[index], CELL);
        line[0] = text_of(row, "name");
        line[1] = text_of(row, "type");
        line[2] = initial[index];
        line[3] = text_of(row, "limits");
        line[4] = text_of(row, "sentence");
    }
    rv_print_grid(&(rv_grid){COLUMNS, 4, NULL}, cells, (int)count);
out:
    rv_free(cells);
    rv_free(initial);
    return status;
}

/* Rows of a table: name and sentence, where it comes from, its parameters. */
static rv_status print_rows(const json_t *rows) {
    rv_status status = RV_OK;
    size_t index;
    json_t *row;
    json_array_foreach((json_t *)rows, index, row) {
        const char *head[] = {text_of(row, "name"), text_of(row, "sentence")};
        const char *from[] = {"source:", text_of(row, "source")};
        rv_print_grid(&(rv_grid){2, 0, NULL}, head, 1);
        if (from[1][0]) rv_print_grid(&(rv_grid){2, 4, NULL}, from, 1);
        TRY(print_parameters(json_object_get(row, "parameters")));
    }
out:
    return status;
}

rv_code rv_cmd_list(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    char *text = NULL;
    json_t *root = NULL;
    json_error_t error;
    TRY((rv_status)rv_list(arguments->operand[0], &text));
    if (arguments->json) {
        puts(text);
        goto out;
    }
    root = json_loads(text, 0, &error);
    if (!root) FAIL(RV_INTERNAL, "own JSON does not parse: %s", error.text);
    const json_t *rows = json_object_get(root, "rows");
    if (json_object_get(json_array_get(rows, 0), "parameters"))
        TRY(print_rows(rows));
    else
        rv_print_objects(rows, 0);
out:
    json_decref(root);
    rv_text_free(text);
    return status;
}
