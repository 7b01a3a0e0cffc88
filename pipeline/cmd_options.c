/*
 * Options of all commands: one row each. A command names those it takes; argp gets exactly these,
 * so help, short forms and order come from one table. argp's own messages are switched off: errors
 * must have our form, as text or JSON, with the nearest name.
 */
#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/cmd.h"

/* What a value becomes. SET may be given many times; of the others the last one counts. */
typedef enum rv_option_type {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_COUNT,
    OPTION_SET,
    OPTION_CLOCK,   /* HH:MM:SS, as seconds */
    OPTION_SECONDS, /* above 0 */
    OPTION_KEY,     /* a key of the recipe: `sentence` begins with it */
} rv_option_type;

/* `offset` is that of the field in rv_arguments; its C type follows from `type`. */
typedef struct rv_option_row {
    const char *name;
    char letter; /* short form; 0: none */
    const char *value, *sentence;
    rv_option_type type;
    size_t offset;
} rv_option_row;

enum { NO_LETTER = UCHAR_MAX + 1 };
#define FIELD(name) offsetof(rv_arguments, name)
static const rv_option_row option_rows[] = {
    {"out", 'o', "PATH", "where to write (train: the run folder)", OPTION_TEXT, FIELD(out)},
    {"set", 0, "PATH=VALUE", "change the recipe: train.epochs=3; list entries by name", OPTION_SET,
     FIELD(sets)},
    {"threads", 0, "N", "threads of a stage (default: its share of those of this process)",
     OPTION_COUNT, FIELD(threads)},
    {"isa", 0, "NAME", "instruction set: baseline, avx2, avx512, amx", OPTION_TEXT, FIELD(isa)},
    {"data", 0, "CONFIG", "take data and encoder from this recipe", OPTION_TEXT, FIELD(data)},
    {"split", 0, "NAME", "train, validation or test (default)", OPTION_TEXT, FIELD(split)},
    {"predictions", 0, "FILE", "write sample,label,prediction as CSV", OPTION_TEXT,
     FIELD(predictions)},
    {"resume", 0, "auto|RUN",
     "go on with a run; auto: the one of this recipe or of --out, else begin it", OPTION_TEXT,
     FIELD(resume)},
    {"init", 0, "FILE", "begin with the weights of this model, by name and shape", OPTION_TEXT,
     FIELD(init)},
    {"max-time", 0, "HH:MM:SS", "save and exit with 75 in time", OPTION_CLOCK, FIELD(max_seconds)},
    {"grace", 0, "SECONDS", "time for the last save after a signal (default 20)", OPTION_SECONDS,
     FIELD(grace)},
    {"layer", 0, "NAME", "this layer alone", OPTION_TEXT, FIELD(layer)},
    {"sample", 0, "N", "draw what this sample does in a layer, instead of curves", OPTION_TEXT,
     FIELD(sample)},
    {"stages", 0, "N", "pipeline.stages: parts along the layers", OPTION_KEY, 0},
    {"chunks", 0, "N|auto", "pipeline.chunks: parts along time", OPTION_KEY, 0},
    {"micro-batches", 0, "N", "train.micro_batches: parts of a batch", OPTION_KEY, 0},
    {"schedule", 0, "NAME", "pipeline.schedule: order of the work, or auto", OPTION_KEY, 0},
    {"device", 0, "LIST", "device: auto, cpu, or for the stages in turn: cuda:0,1", OPTION_KEY, 0},
    {"schedule-file", 0, "FILE", "order of the work in text form (plan --dump)", OPTION_TEXT,
     FIELD(schedule_file)},
    {"devices", 0, "N", "plan for so many, whatever the recipe says", OPTION_COUNT, FIELD(devices)},
    {"profile", 0, "FILE", "costs from this file (plan --json) instead of measuring", OPTION_TEXT,
     FIELD(profile)},
    {"dump", 0, "FILE", "write the schedule in text form", OPTION_TEXT, FIELD(dump)},
    {"trace", 0, "FILE", "write a timeline of every step (Chrome trace, Perfetto)", OPTION_TEXT,
     FIELD(trace)},
    {"svg", 0, "FILE", "draw the timeline", OPTION_TEXT, FIELD(svg)},
    {"steps", 0, "N", "steps to compare (default 3; delayed: 50)", OPTION_COUNT, FIELD(steps)},
    {"json", 0, NULL, "print one JSON object on standard output", OPTION_FLAG, FIELD(json)},
    {"quiet", 'q', NULL, "no progress and no log", OPTION_FLAG, FIELD(quiet)},
    {"verbose", 'v', NULL, "more in the log", OPTION_FLAG, FIELD(verbose)},
    {"help", 'h', NULL, "show this help", OPTION_FLAG, FIELD(help)},
};
enum { OPTIONS = sizeof option_rows / sizeof *option_rows, COUNT_MOST = 4096 };

/* What argp calls an option: its letter, or for lack of one its place, above all letters. */
static int key_of(int row) {
    return option_rows[row].letter ? option_rows[row].letter : NO_LETTER + row;
}

typedef struct rv_parse {
    const rv_command *command;
    rv_arguments *arguments;
    rv_status status; /* of our own checks; argp's failures are told apart by RV_OK */
} rv_parse;

/* Whether the command takes the option: its name stands in the list between blanks. */
static bool takes(const rv_command *command, const rv_option_row *row) {
    if (strcmp(row->name, "help") == 0) return true;
    size_t length = strlen(row->name);
    for (const char *at = command->options; (at = strstr(at, row->name)); at += length)
        if ((at == command->options || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
            return true;
    return false;
}

/* The whole word must be the number: "2x" and "" are mistakes. */
static rv_status count_parse(const char *name, const char *text, int *out) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 1 || value > COUNT_MOST)
        return rv_fail(RV_USAGE, "--%s takes a whole number from 1 to %d, not \"%s\"", name,
                       COUNT_MOST, text);
    *out = (int)value;
    return RV_OK;
}

/* Hours may have any number of digits, the others have two. */
static rv_status clock_parse(const char *name, const char *text, double *out) {
    int hours = 0, minutes = 0, seconds = 0, end = 0;
    if (sscanf(text, "%6d:%2d:%2d%n", &hours, &minutes, &seconds, &end) != 3 || text[end] ||
        strspn(text, "0123456789:") != strlen(text) || end < 7 || text[end - 3] != ':' ||
        text[end - 6] != ':' || minutes > 59 || seconds > 59 || hours + minutes + seconds == 0)
        return rv_fail(RV_USAGE, "--%s takes HH:MM:SS, not \"%s\"", name, text);
    *out = 3600.0 * hours + 60 * minutes + seconds;
    return RV_OK;
}

static rv_status seconds_parse(const char *name, const char *text, double *out) {
    char *end = NULL;
    *out = isdigit((unsigned char)*text) || *text == '.' ? strtod(text, &end) : 0;
    if (!end || *end || !(*out > 0 && *out <= 86400))
        return rv_fail(RV_USAGE, "--%s takes seconds above 0 up to a day, not \"%s\"", name, text);
    return RV_OK;
}

/* --stages 2 is --set pipeline.stages=2. */
static rv_status key_store(const rv_option_row *row, const char *value, rv_arguments *arguments) {
    rv_status status = RV_OK;
    size_t key = strcspn(row->sentence, ":"), size = key + strlen(value) + 2;
    char *assignment = NULL;
    TRY(rv_alloc(size, 1, "an assignment", &assignment));
    snprintf(assignment, size, "%.*s=%s", (int)key, row->sentence, value);
    arguments->made[arguments->made_count++] = assignment;
    arguments->sets[arguments->set_count++] = assignment;
out:
    return status;
}

/* There are never more assignments than words on the line: `sets` has room for all of argv. */
static rv_status option_store(const rv_option_row *row, const char *value,
                              rv_arguments *arguments) {
    char *field = (char *)arguments + row->offset;
    if (row->type == OPTION_FLAG)
        *(bool *)field = true;
    else if (row->type == OPTION_TEXT)
        *(const char **)field = value;
    else if (row->type == OPTION_COUNT)
        return count_parse(row->name, value, (int *)field);
    else if (row->type == OPTION_CLOCK)
        return clock_parse(row->name, value, (double *)field);
    else if (row->type == OPTION_SECONDS)
        return seconds_parse(row->name, value, (double *)field);
    else if (row->type == OPTION_KEY)
        return key_store(row, value, arguments);
    else
        arguments->sets[arguments->set_count++] = value;
    return RV_OK;
}

/* argp's callback: options by key, then operands one by one, then the end of the line. */
static error_t parse_one(int key, char *value, struct argp_state *state) {
    rv_parse *parse = state->input;
    rv_arguments *arguments = parse->arguments;
    const rv_command *command = parse->command;
    for (int i = 0; i < OPTIONS; i++)
        if (key == key_of(i)) {
            parse->status = option_store(&option_rows[i], value, arguments);
            return parse->status == RV_OK ? 0 : EINVAL;
        }
    if (key == ARGP_KEY_ARG) {
        if (arguments->operand_count < command->most)
            arguments->operand[arguments->operand_count++] = value;
        else
            parse->status = rv_fail(RV_USAGE, "%s takes %s: \"%s\" is too much", command->name,
                                    command->operands, value);
        return parse->status == RV_OK ? 0 : EINVAL;
    }
    if (key == ARGP_KEY_END && arguments->operand_count < command->least && !arguments->help) {
        parse->status = rv_fail(RV_USAGE, "%s needs %s", command->name, command->operands);
        return EINVAL;
    }
    return key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
}

/* ---- why argp refused ------------------------------------------------------------------- */

/* Long options may be shortened as far as they stay alone; NULL: none or several. */
static const rv_option_row *long_find(const rv_command *command, const char *name, size_t length) {
    const rv_option_row *found = NULL;
    int count = 0;
    for (int i = 0; i < OPTIONS; i++) {
        const rv_option_row *row = &option_rows[i];
        if (!takes(command, row) || strncmp(row->name, name, length) != 0) continue;
        if (strlen(row->name) == length) return row;
        found = row;
        count++;
    }
    return count == 1 ? found : NULL;
}

static const rv_option_row *letter_find(const rv_command *command, int letter) {
    for (int i = 0; i < OPTIONS; i++)
        if (option_rows[i].letter == letter && takes(command, &option_rows[i]))
            return &option_rows[i];
    return NULL;
}

/* `shown` as typed, `word` without dashes and value, for the search. Only options of this command
 * are offered. */
static rv_status unknown_option(const rv_command *command, const char *shown, const char *word) {
    const char *names[OPTIONS], *near;
    char hint[64] = "";
    int count = 0;
    for (int i = 0; i < OPTIONS; i++)
        if (takes(command, &option_rows[i])) names[count++] = option_rows[i].name;
    near = rv_name_nearest(word, names, count);
    if (near) snprintf(hint, sizeof hint, "--%s", near);
    return rv_fail_at(RV_USAGE, (rv_where){0}, NULL, near ? hint : NULL,
                      "%s: unknown option \"%s\"", command->name, shown);
}

/* argp says only that something is wrong; find it the way getopt reads the line. */
static rv_status find_culprit(const rv_command *command, int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || !word[1]) continue;
        if (word[1] == '-') {
            const char *name = word + 2;
            size_t length = strcspn(name, "=");
            char shown[64];
            snprintf(shown, sizeof shown, "%.*s", (int)length, name);
            const rv_option_row *row = long_find(command, name, length);
            if (!row) return unknown_option(command, word, shown);
            if (!row->value && name[length])
                return rv_fail(RV_USAGE, "--%s takes no value", row->name);
            if (row->value && !name[length] && ++i == argc)
                return rv_fail(RV_USAGE, "--%s needs %s", row->name, row->value);
            continue;
        }
        for (const char *letter = word + 1; *letter; letter++) {
            const rv_option_row *row = letter_find(command, (unsigned char)*letter);
            if (!row) return unknown_option(command, word, word + 1);
            if (!row->value) continue;
            if (!letter[1] && ++i == argc)
                return rv_fail(RV_USAGE, "-%c needs %s", *letter, row->value);
            break;
        }
    }
    return rv_fail(RV_USAGE, "%s: wrong options", command->name);
}

/* Help wins over missing operands, so `ranvier train --help` works; see parse_one. */
rv_status rv_arguments_parse(const rv_command *command, int argc, char **argv, rv_arguments *out) {
    rv_status status = RV_OK;
    struct argp_option options[OPTIONS + 1] = {0};
    int count = 0;
    for (int i = 0; i < OPTIONS; i++) {
        const rv_option_row *row = &option_rows[i];
        if (takes(command, row))
            options[count++] =
                (struct argp_option){row->name, key_of(i), row->value, 0, row->sentence, 0};
    }
    const struct argp argp = {.options = options,
                              .parser = parse_one,
                              .args_doc = command->operands,
                              .doc = command->sentence};
    rv_parse parse = {command, out, RV_OK};
    TRY(rv_alloc((size_t)argc, sizeof *out->sets, "assignments", &out->sets));
    TRY(rv_alloc((size_t)argc, sizeof *out->operand, "operands", &out->operand));
    TRY(rv_alloc((size_t)argc, sizeof *out->made, "assignments", &out->made));
    error_t failed =
        argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_EXIT | ARGP_NO_HELP, NULL, &parse);
    TRY(parse.status);
    if (failed) TRY(find_culprit(command, argc, argv));
    if (out->help)
        argp_help(&argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC, argv[0]);
out:
    return status;
}

void rv_arguments_finish(rv_arguments *arguments) {
    for (int i = 0; i < arguments->made_count; i++)
        rv_free(arguments->made[i]);
    rv_free(arguments->made);
    rv_free(arguments->operand);
    rv_free(arguments->sets);
    *arguments = (rv_arguments){0};
}
