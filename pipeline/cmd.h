/*
 * The command line: a table of commands (main.c) over a table of options (cmd_options.c). Stands on
 * ranvier.h alone; kernels/base.h gives the status codes, text.h names and JSON.
 */
#ifndef RV_PIPELINE_CMD_H
#define RV_PIPELINE_CMD_H

#include <jansson.h>
#include <stdio.h>

#include "kernels/base.h"
#include "pipeline/ranvier.h"
#include "pipeline/text.h"

enum { RV_TEXT_COLUMNS = 100, RV_OPERANDS_MOST = 1 << 20 };

/* What the user typed. Strings are those of argv. */
typedef struct rv_arguments {
    bool help, json, quiet, verbose;
    int threads; /* 0: not given */
    const char *out, *isa, *data, *split, *predictions, *resume, *init, *layer, *sample;
    const char *schedule_file, *profile, *dump, *svg, *trace;
    int devices, steps; /* 0: not given */
    double max_seconds; /* 0: not given */
    double grace;
    const char **sets; /* owned */
    int set_count;
    char **made; /* assignments that options stand for; owned */
    int made_count;
    const char **operand; /* owned */
    int operand_count;
    const volatile int *stop; /* set by a signal; main.c */
    const char *scratch;      /* TMPDIR of the environment, or NULL; main.c */
} rv_arguments;

/* A command prints its result on stdout; on failure it returns the code with the thread's error
 * filled, and main prints that. */
typedef struct rv_command {
    const char *name, *operands, *sentence;
    const char *options; /* names of the options it takes, each with a blank around it */
    int least, most;     /* operands */
    bool stops;          /* a signal asks it to save and stop; else signals end the process */
    rv_code (*run)(const rv_arguments *arguments);
} rv_command;

rv_code rv_cmd_train(const rv_arguments *arguments);
rv_code rv_cmd_eval(const rv_arguments *arguments);
rv_code rv_cmd_plan(const rv_arguments *arguments);
rv_code rv_cmd_verify(const rv_arguments *arguments);
rv_code rv_cmd_info(const rv_arguments *arguments);
rv_code rv_cmd_check(const rv_arguments *arguments);
rv_code rv_cmd_diff(const rv_arguments *arguments);
rv_code rv_cmd_plot(const rv_arguments *arguments);
rv_code rv_cmd_status(const rv_arguments *arguments);
rv_code rv_cmd_list(const rv_arguments *arguments);

/* ---- cmd_options.c ---------------------------------------------------------------------- */
/* argv[0] is "ranvier COMMAND". RV_USAGE with the nearest name as hint. help: only that is set. */
RV_CHECKED rv_status rv_arguments_parse(const rv_command *command, int argc, char **argv,
                                        rv_arguments *out);
void rv_arguments_finish(rv_arguments *arguments);

/* ---- cmd_print.c ------------------------------------------------------------------------ */
/* The thread's last error: one line on stderr, or with json one object on stdout. */
void rv_print_error(bool json);
/* Rows of cells in aligned columns within RV_TEXT_COLUMNS, cells wrapped where they are too wide.
 * cells [rows][columns], NULL = empty; `right` [columns]: numbers, may be NULL; `indent` blanks. */
typedef struct rv_grid {
    int columns, indent;
    const bool *right;
} rv_grid;
void rv_print_grid(const rv_grid *grid, const char *const *cells, int rows);
/* A list of objects: one row each, columns named by the keys of the first. */
void rv_print_objects(const json_t *list, int indent);
/* Any JSON as text: "name value" lines, lists of objects as grids. */
void rv_print_json(const json_t *root, int indent);
/* Print a JSON text as it is, or parsed as rv_print_json does. */
RV_CHECKED rv_status rv_print_text(const char *text, bool json);
/* 0.8812 as "88.12 %"; NAN as "-". Returns buffer. */
const char *rv_percent(double fraction, char buffer[16]);

#endif
