/* ranvier eval MODEL|DIR: as JSON with keys that scripts rely on, or as tables for people. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/cmd.h"

enum { CONFUSION_SHOWN = 16, CELL = 24 }; /* larger confusions are only in the JSON */

/* ---- JSON ------------------------------------------------------------------------------- */

/* Rows are labels, columns predictions. */
static json_t *confusion_json(const rv_eval_result *result) {
    json_t *rows = json_array();
    for (int label = 0; label < result->classes; label++) {
        json_t *row = json_array();
        for (int guess = 0; guess < result->classes; guess++)
            json_array_append_new(
                row, json_integer(
                         (json_int_t)result->confusion[(int64_t)label * result->classes + guess]));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Objects are keyed by spiking layer in network order. Input figures only where the encoder gives
 * spikes: zero would read as "none were given". */
static rv_status print_json(const rv_eval_result *result) {
    rv_status status = RV_OK;
    char *text = NULL;
    json_t *spikes = json_object(), *rates = json_object(), *synops = json_object(), *root;
    for (int i = 0; i < result->layer_count; i++) {
        const char *name = result->layer_name[i];
        json_object_set_new(spikes, name, json_integer((json_int_t)result->layer_spikes[i]));
        json_object_set_new(rates, name, rv_json_number(result->layer_rate[i]));
        json_object_set_new(synops, name, json_integer((json_int_t)result->layer_synops[i]));
    }
    root = json_pack("{s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:I, s:s}", "accuracy",
                     rv_json_number(result->accuracy), "loss", rv_json_number(result->loss),
                     "samples", (json_int_t)result->samples, "confusion", confusion_json(result),
                     "spikes", spikes, "rates", rates, "synops", synops, "dense_operations",
                     (json_int_t)result->dense_operations, "model", result->model);
    if (root && result->input_spikes >= 0) {
        json_object_set_new(root, "input_spikes", json_integer((json_int_t)result->input_spikes));
        json_object_set_new(root, "input_synops", json_integer((json_int_t)result->input_synops));
    }
    TRY(rv_json_text(root, false, &text));
    puts(text);
out:
    rv_free(text);
    return status;
}

/* ---- text ------------------------------------------------------------------------------- */

/* One row per spiking layer, before them the encoded input where it is spikes. The cells' text must
 * outlive the grid's drawing: it lies in `text`. */
static rv_status print_layers(const rv_eval_result *result) {
    enum { COLUMNS = 4 };
    static const bool right[COLUMNS] = {false, true, true, true};
    rv_status status = RV_OK;
    int extra = result->input_spikes >= 0, rows = 1 + extra + result->layer_count, r = 1;
    char(*text)[COLUMNS][CELL] = NULL;
    const char **cells = NULL;
    TRY(rv_alloc((size_t)rows, sizeof *text, "the table", &text));
    TRY(rv_alloc((size_t)rows * COLUMNS, sizeof *cells, "the table", &cells));
    static const char *const head[COLUMNS] = {"layer", "spikes", "rate", "synops"};
    memcpy(cells, head, sizeof head);
    if (extra) {
        snprintf(text[r][1], CELL, "%lld", (long long)result->input_spikes);
        snprintf(text[r][3], CELL, "%lld", (long long)result->input_synops);
        cells[r * COLUMNS] = "(input)";
        r++;
    }
    for (int i = 0; i < result->layer_count; i++, r++) {
        snprintf(text[r][1], CELL, "%lld", (long long)result->layer_spikes[i]);
        snprintf(text[r][2], CELL, "%.4f", result->layer_rate[i]);
        snprintf(text[r][3], CELL, "%lld", (long long)result->layer_synops[i]);
        cells[r * COLUMNS] = result->layer_name[i];
    }
    for (r = 1; r < rows; r++)
        for (int c = 1; c < COLUMNS; c++)
            cells[r * COLUMNS + c] = text[r][c];
    rv_print_grid(&(rv_grid){COLUMNS, 0, right}, cells, rows);
out:
    rv_free(cells);
    rv_free(text);
    return status;
}

/* With row and column numbers as headings. */
static rv_status print_confusion(const rv_eval_result *result) {
    rv_status status = RV_OK;
    int classes = result->classes, columns = classes + 1;
    bool right[CONFUSION_SHOWN + 1];
    char(*text)[CELL] = NULL;
    const char **cells = NULL;
    if (classes < 1 || classes >= CONFUSION_SHOWN) return RV_OK;
    TRY(rv_alloc((size_t)columns * (size_t)columns, sizeof *text, "the table", &text));
    TRY(rv_alloc((size_t)columns * (size_t)columns, sizeof *cells, "the table", &cells));
    for (int r = 0; r < columns; r++)
        for (int c = 0; c < columns; c++) {
            char *cell = text[r * columns + c];
            if (!r && !c)
                snprintf(cell, CELL, "label");
            else if (!r || !c)
                snprintf(cell, CELL, "%d", r + c - 1);
            else
                snprintf(cell, CELL, "%lld",
                         (long long)result->confusion[(int64_t)(r - 1) * classes + c - 1]);
            cells[r * columns + c] = cell;
        }
    for (int c = 0; c < columns; c++)
        right[c] = true;
    puts("confusion (row label, column prediction)");
    rv_print_grid(&(rv_grid){columns, 0, right}, cells, columns);
out:
    rv_free(cells);
    rv_free(text);
    return status;
}

/* The line that matters stands last, where a terminal leaves it in sight. */
static rv_status print_text(const rv_eval_result *result) {
    rv_status status = RV_OK;
    char accuracy[16];
    printf("%s\n", result->model);
    TRY(print_confusion(result));
    TRY(print_layers(result));
    printf("dense operations %lld\n", (long long)result->dense_operations);
    printf("accuracy %s, loss %.6g, %lld samples\n", rv_percent(result->accuracy, accuracy),
           result->loss, (long long)result->samples);
out:
    return status;
}

rv_code rv_cmd_eval(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    const rv_eval_options options = {
        .struct_size = sizeof options,
        .model = arguments->operand[0],
        .data = arguments->data,
        .sets = arguments->sets,
        .set_count = arguments->set_count,
        .split = arguments->split,
        .predictions = arguments->predictions,
        .isa = arguments->isa,
        .threads = arguments->threads,
    };
    rv_eval_result result = {.struct_size = sizeof result};
    rv_eval *eval = NULL;
    TRY((rv_status)rv_evaluate(&options, &eval, &result));
    TRY(arguments->json ? print_json(&result) : print_text(&result));
out:
    rv_eval_destroy(eval);
    return status;
}
