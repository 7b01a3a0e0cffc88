/* ranvier status RUN...: a table of runs with mean and spread. */
#include <math.h>

#include "pipeline/cmd.h"

enum { COLUMNS = 8, CELL = 24 };

/* NAN for what a run does not have (yet): it is printed as a dash, never as zero. */
static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The cells of one row that are figures; the others are the caller's. */
static void figures_fill(const json_t *run, char cells[COLUMNS][CELL], const char **row) {
    static const char *const keys[] = {"validation_accuracy", "test_accuracy",
                                       "test_accuracy_last"};
    double loss = number(run, "train_loss");
    snprintf(cells[4], CELL, isnan(loss) ? "-" : "%.4g", loss);
    for (int i = 0; i < 3; i++)
        rv_percent(number(run, keys[i]), cells[5 + i]);
    for (int i = 4; i < COLUMNS; i++)
        row[i] = cells[i];
}

/* Cells hold text the table makes, rows point at it or into `root`: both live until it is
 * printed. */
static rv_status print_table(const json_t *root) {
    rv_status status = RV_OK;
    static const char *const head[COLUMNS] = {"run",        "status", "epoch",     "step",
                                              "train loss", "valid.", "test best", "test last"};
    static const bool right[COLUMNS] = {false, false, true, true, true, true, true, true};
    const json_t *runs = json_object_get(root, "runs");
    size_t count = json_array_size(runs);
    const char **row = NULL;
    char(*cells)[COLUMNS][CELL] = NULL;
    TRY(rv_alloc((count + 3) * COLUMNS, sizeof *row, "a table", &row));
    TRY(rv_alloc(count + 3, sizeof *cells, "a table", &cells));
    for (int i = 0; i < COLUMNS; i++)
        row[i] = head[i];
    for (size_t i = 0; i < count; i++) {
        const json_t *run = json_array_get(runs, i);
        const char **at = row + (i + 1) * COLUMNS;
        figures_fill(run, cells[i], at);
        snprintf(cells[i][2], CELL, "%lld",
                 (long long)json_integer_value(json_object_get(run, "epoch")));
        snprintf(cells[i][3], CELL, "%lld",
                 (long long)json_integer_value(json_object_get(run, "step")));
        at[0] = json_string_value(json_object_get(run, "run"));
        at[1] = json_string_value(json_object_get(run, "status"));
        at[2] = cells[i][2], at[3] = cells[i][3];
    }
    /* Always filled in, but shown only for several runs: of a single one they would say nothing. */
    row[(count + 1) * COLUMNS] = "mean";
    row[(count + 2) * COLUMNS] = "spread";
    figures_fill(json_object_get(root, "mean"), cells[count], row + (count + 1) * COLUMNS);
    figures_fill(json_object_get(root, "spread"), cells[count + 1], row + (count + 2) * COLUMNS);
    rv_print_grid(&(rv_grid){COLUMNS, 0, right}, row, (int)(count > 1 ? count + 3 : count + 1));
out:
    rv_free(cells);
    rv_free(row);
    return status;
}

/* With --json the answer is passed on as it is, the same text a program gets from rv_runs. */
rv_code rv_cmd_status(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    char *text = NULL;
    json_t *root = NULL;
    TRY((rv_status)rv_runs(arguments->operand, arguments->operand_count, &text));
    if (arguments->json) {
        puts(text);
        goto out;
    }
    root = json_loads(text, 0, NULL);
    if (!root) FAIL(RV_MEMORY, "out of memory for the answer");
    TRY(print_table(root));
out:
    json_decref(root);
    rv_text_free(text);
    return status;
}
