/*
 * Text on the terminal: errors, aligned columns, JSON read by people. Nothing here fails: text that
 * does not fit is wrapped or cut, and main.c checks at the end that standard output arrived.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/cmd.h"

/* ---- errors ----------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text) {
    return text ? json_string(text) : json_null();
}

static json_t *count_or_null(int value) {
    return value ? json_integer(value) : json_null();
}

/* All seven keys are always there: scripts need not ask which. */
static void error_json(const rv_error_info *error) {
    json_t *root =
        json_pack("{s:{s:i, s:s, s:o, s:o, s:o, s:o, s:o}}", "error", "code", error->code,
                  "message", error->message, "file", text_or_null(error->file), "line",
                  count_or_null(error->line), "column", count_or_null(error->column), "key",
                  text_or_null(error->key), "hint", text_or_null(error->hint));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    /* Without memory even the error must stay JSON. */
    printf("%s\n", text ? text : "{\"error\":{\"code\":71,\"message\":\"out of memory\"}}");
    free(text);
    json_decref(root);
}

/* "recipe.yaml:14:9: error: ...", the form that editors and CI understand. */
void rv_print_error(bool json) {
    rv_error_info error = {.struct_size = sizeof error};
    rv_last_error(&error);
    if (!*error.message) return; /* told already, as a result */
    if (json) {
        error_json(&error);
        return;
    }
    if (error.file && error.line)
        fprintf(stderr, "%s:%d:%d: ", error.file, error.line, error.column);
    else
        fprintf(stderr, "%s: ", error.file ? error.file : "ranvier");
    /* Stopping when asked is no error. */
    fprintf(stderr, "%s%s", error.code == RV_AGAIN ? "" : "error: ", error.message);
    if (error.hint) fprintf(stderr, " (did you mean \"%s\"?)", error.hint);
    fputc('\n', stderr);
}

const char *rv_percent(double fraction, char buffer[16]) {
    if (isfinite(fraction))
        snprintf(buffer, 16, "%.2f %%", 100 * fraction);
    else
        strcpy(buffer, "-");
    return buffer;
}

/* ---- grids ------------------------------------------------------------------------------ */

enum { GRID_COLUMNS = 16, GAP = 2, CELL_LEAST = 8, CELL_MOST = 28 };

/* Terminal columns of UTF-8 text: continuation bytes take none. */
/* Not a full wcwidth: double-width scripts would need a library; names here are ASCII. */
static int width_of(const char *text, size_t bytes) {
    int width = 0;
    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)text[i] & 0xC0) != 0x80;
    return width;
}

/* Bytes of the next line of a cell: up to `width` columns, broken after a blank, '|' or ',' where
 * there is one. */
static size_t line_bytes(const char *text, int width) {
    size_t bytes = 0, good = 0;
    int columns = 0;
    while (text[bytes]) {
        bool lead = ((unsigned char)text[bytes] & 0xC0) != 0x80;
        if (lead && columns == width) return good ? good : bytes;
        columns += lead;
        bytes++;
        if (strchr(" |,", text[bytes - 1])) good = bytes;
    }
    return bytes;
}

/* Natural widths, then cut the widest until the line fits; the last column takes what is left. */
static void widths_of(const rv_grid *grid, const char *const *cells, int rows, int *widths) {
    int total = grid->indent;
    for (int c = 0; c < grid->columns; c++) {
        widths[c] = 0;
        for (int r = 0; r < rows; r++) {
            const char *cell = cells[r * grid->columns + c];
            int width = cell ? width_of(cell, strlen(cell)) : 0;
            if (width > widths[c]) widths[c] = width;
        }
        if (c + 1 < grid->columns) {
            if (widths[c] > CELL_MOST && grid->columns > 2) widths[c] = CELL_MOST;
            total += widths[c] + GAP;
        }
    }
    int left = RV_TEXT_COLUMNS - total, last = grid->columns - 1;
    if (left < CELL_LEAST) left = CELL_LEAST;
    if (widths[last] > left) widths[last] = left;
}

/* Line by line: every column prints its next piece until all cells of the row are used up. */
void rv_print_grid(const rv_grid *grid, const char *const *cells, int rows) {
    int widths[GRID_COLUMNS];
    const char *rest[GRID_COLUMNS];
    if (grid->columns < 1 || grid->columns > GRID_COLUMNS) return;
    widths_of(grid, cells, rows, widths);
    for (int r = 0; r < rows; r++) {
        int open = 0; /* columns that still have text */
        for (int c = 0; c < grid->columns; c++) {
            rest[c] = cells[r * grid->columns + c];
            open += rest[c] && *rest[c];
        }
        do {
            int pending = grid->indent; /* blanks not yet printed: none at the end of a line */
            for (int c = 0; c < grid->columns; c++) {
                size_t bytes = rest[c] ? line_bytes(rest[c], widths[c]) : 0;
                size_t shown = bytes;
                while (shown && rest[c][shown - 1] == ' ')
                    shown--;
                int blank = widths[c] - width_of(rest[c] ? rest[c] : "", shown);
                bool right = grid->right && grid->right[c];
                if (right) pending += blank;
                if (shown) {
                    printf("%*s%.*s", pending, "", (int)shown, rest[c]);
                    pending = 0;
                }
                pending += (right ? 0 : blank) + GAP;
                if (bytes) {
                    rest[c] += bytes;
                    open -= !*rest[c];
                }
            }
            putchar('\n');
        } while (open > 0);
    }
}

/* ---- JSON for people -------------------------------------------------------------------- */

/* A scalar, or a list of scalars, as one cell. */
static void cell_print(const json_t *value, char *cell, size_t size) {
    char part[128];
    const json_t *item;
    size_t index;
    if (json_is_string(value))
        snprintf(cell, size, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(cell, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(cell, size, "%.6g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(cell, size, "%s", json_is_true(value) ? "yes" : "no");
    else if (json_is_array(value)) {
        size_t used = (size_t)snprintf(cell, size, "[");
        json_array_foreach((json_t *)value, index, item) {
            cell_print(item, part, sizeof part);
            if (used < size)
                used += (size_t)snprintf(cell + used, size - used, "%s%s", index ? ", " : "", part);
        }
        if (used < size) snprintf(cell + used, size - used, "]");
    } else
        snprintf(cell, size, "-");
}

/* Only such lists are drawn as grids; others fit in a cell. */
static bool is_list_of_objects(const json_t *value) {
    return json_array_size(value) > 0 && json_is_object(json_array_get(value, 0));
}

/* Without memory the list is left out: the JSON form has it. */
void rv_print_objects(const json_t *list, int indent) {
    enum { CELL = 256 };
    int columns = (int)json_object_size(json_array_get(list, 0));
    int rows = (int)json_array_size(list) + 1;
    if (columns > GRID_COLUMNS) columns = GRID_COLUMNS;
    bool right[GRID_COLUMNS] = {false};
    char *text = calloc((size_t)rows * (size_t)columns, CELL);
    const char **cells = calloc((size_t)rows * (size_t)columns, sizeof *cells);
    const char *key;
    json_t *value;
    int c = 0;
    for (int i = 0; text && cells && i < rows * columns; i++)
        cells[i] = text + (size_t)i * CELL;
    json_object_foreach(json_array_get(list, 0), key, value) {
        if (!text || !cells || c == columns) break;
        right[c] = json_is_number(value);
        snprintf(text + (size_t)c * CELL, CELL, "%s", key);
        for (int r = 1; r < rows; r++)
            cell_print(json_object_get(json_array_get(list, (size_t)r - 1), key),
                       text + ((size_t)r * (size_t)columns + (size_t)c) * CELL, CELL);
        c++;
    }
    const rv_grid grid = {columns, indent, right};
    if (text && cells) rv_print_grid(&grid, cells, rows);
    free(cells);
    free(text);
}

/* Values of one object are aligned; deeper objects are indented below their name. */
void rv_print_json(const json_t *root, int indent) {
    const char *key;
    json_t *value;
    int widest = 0;
    json_object_foreach((json_t *)root, key, value) {
        if ((int)strlen(key) > widest) widest = (int)strlen(key);
    }
    json_object_foreach((json_t *)root, key, value) {
        if (json_is_object(value) || is_list_of_objects(value)) {
            printf("%*s%s\n", indent, "", key);
            if (json_is_object(value))
                rv_print_json(value, indent + 4);
            else
                rv_print_objects(value, indent + 4);
            continue;
        }
        char cell[512], label[80];
        snprintf(label, sizeof label, "%-*s", widest, key);
        cell_print(value, cell, sizeof cell);
        const char *cells[] = {label, cell};
        const rv_grid grid = {2, indent, NULL};
        rv_print_grid(&grid, cells, 1);
    }
}

rv_status rv_print_text(const char *text, bool json) {
    if (json) {
        puts(text);
        return RV_OK;
    }
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    if (!root) return rv_fail(RV_INTERNAL, "own JSON does not parse: %s", error.text);
    rv_print_json(root, 0);
    json_decref(root);
    return RV_OK;
}
