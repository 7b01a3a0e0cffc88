/* ranvier plan CONFIG: cut, timeline, costs and memory of a training, without training. */
#include <math.h>
#include <string.h>

#include "pipeline/cmd.h"

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "-";
}

/* One line per stage, in units people read. */
static void print_stages(const json_t *plan) {
    enum { COLUMNS = 11, CELL = 48, STAGES_MOST = 4096 };
    static const char *const head[COLUMNS] = {"stage", "layers", "F ms", "B ms",  "W ms",   "U ms",
                                              "busy",  "tapes",  "MB",   "KB on", "KB back"};
    static const bool right[COLUMNS] = {true, false, true, true, true, true,
                                        true, true,  true, true, true};
    const json_t *stages = json_object_get(plan, "stage");
    size_t rows = json_array_size(stages) + 1;
    char(*text)[CELL] = calloc(rows * COLUMNS, CELL);
    const char **cells = calloc(rows * COLUMNS, sizeof *cells);
    for (size_t i = 0; text && cells && i < rows * COLUMNS; i++)
        cells[i] = i < COLUMNS ? head[i] : text[i];
    for (size_t r = 1; text && cells && r < rows; r++) {
        const json_t *s = json_array_get(stages, r - 1);
        char(*cell)[CELL] = text + r * COLUMNS;
        snprintf(cell[0], CELL, "%.0f", number(s, "stage"));
        snprintf(cell[1], CELL, "%.20s .. %.20s", word(s, "first"), word(s, "last"));
        snprintf(cell[2], CELL, "%.3f", number(s, "f_ms"));
        snprintf(cell[3], CELL, "%.3f", number(s, "b_ms"));
        snprintf(cell[4], CELL, "%.3f", number(s, "w_ms"));
        snprintf(cell[5], CELL, "%.3f", number(s, "u_ms"));
        snprintf(cell[6], CELL, "%.0f %%", 100 * number(s, "busy"));
        snprintf(cell[7], CELL, "%.0f", number(s, "tapes"));
        snprintf(cell[8], CELL, "%.1f", number(s, "peak_bytes") / 1e6);
        snprintf(cell[9], CELL, "%.1f", number(s, "forward_message_bytes") / 1e3);
        snprintf(cell[10], CELL, "%.1f", number(s, "backward_message_bytes") / 1e3);
    }
    const rv_grid grid = {COLUMNS, 0, right};
    if (text && cells) rv_print_grid(&grid, cells, (int)rows);
    free(cells);
    free(text);
}

/* "4 (24), 5 (2)": so many updates old, and how many passes of a chunk. */
static void counts_print(const json_t *counts, char *cell, size_t size) {
    const json_t *value;
    size_t d, used = 0;
    cell[0] = 0;
    json_array_foreach((json_t *)counts, d, value) {
        double count = json_number_value(value);
        if (count > 0 && used < size)
            used += (size_t)snprintf(cell + used, size - used, "%s%zu (%.0f)", used ? ", " : "", d,
                                     count);
    }
}

/* Of late gradients: how late, and what that takes. */
static void print_delay(const json_t *plan) {
    enum { COLUMNS = 10, CELL = 48 };
    static const char *const head[COLUMNS] = {"stage",   "forward",  "backward", "versions",
                                              "weights", "versions", "tapes",    "state",
                                              "slots",   "samples"};
    static const bool right[COLUMNS] = {true, false, false, true, true,
                                        true, true,  true,  true, true};
    const json_t *stages = json_object_get(plan, "stage");
    size_t rows = json_array_size(stages) + 1;
    char(*text)[CELL] = calloc(rows * COLUMNS, CELL);
    const char **cells = calloc(rows * COLUMNS, sizeof *cells);
    for (size_t i = 0; text && cells && i < rows * COLUMNS; i++)
        cells[i] = i < COLUMNS ? head[i] : text[i];
    for (size_t r = 1; text && cells && r < rows; r++) {
        static const char *const bytes[] = {"weights", "versions", "tapes", "state", "slots"};
        const json_t *s = json_array_get(stages, r - 1), *delay = json_object_get(s, "delay");
        char(*cell)[CELL] = text + r * COLUMNS;
        snprintf(cell[0], CELL, "%.0f", number(s, "stage"));
        counts_print(json_object_get(delay, "forward"), cell[1], CELL);
        counts_print(json_object_get(delay, "backward"), cell[2], CELL);
        snprintf(cell[3], CELL, "%.0f", number(delay, "versions"));
        for (int k = 0; k < 5; k++)
            snprintf(cell[4 + k], CELL, "%.2f",
                     number(json_object_get(s, "bytes"), bytes[k]) / 1e6);
        snprintf(cell[9], CELL, "%.0f", number(delay, "samples_in_flight"));
    }
    const rv_grid grid = {COLUMNS, 0, right};
    puts("\npasses under weights so many updates old, versions kept, MB at the peak, samples in "
         "flight:");
    if (text && cells) rv_print_grid(&grid, cells, (int)rows);
    free(cells);
    free(text);
}

/* Where one decimal is printed: what rounds to nothing has no sign. */
static double shown(double percent) {
    return fabs(percent) < 0.05 ? 0 : percent;
}

/* Every schedule at the chosen chunks: what the taken one is compared with. */
static void print_rivals(const json_t *plan) {
    const json_t *rivals = json_object_get(plan, "why"), *rival;
    size_t i;
    printf("\nwhy %s, at %.0f chunks:\n", word(plan, "schedule"), number(plan, "chunks"));
    json_array_foreach((json_t *)rivals, i, rival) {
        if (!json_is_number(json_object_get(rival, "total_ms"))) {
            printf("  %-14s cannot: %.70s\n", word(rival, "schedule"), word(rival, "why"));
            continue;
        }
        printf("  %-14s %10.3f ms  %+6.1f %%  %3.0f slots, %3.0f tapes%s\n",
               word(rival, "schedule"), number(rival, "total_ms"),
               shown(100 * (number(rival, "against_plan") - 1)), number(rival, "slots"),
               number(rival, "tapes"),
               strcmp(word(rival, "schedule"), word(plan, "schedule")) == 0 ? "  <- taken" : "");
    }
}

/* Whether a fixed choice could be faster. A schedule file was not searched for. */
static void print_searched(const json_t *plan) {
    const json_t *searched = json_object_get(plan, "searched");
    double tried = number(searched, "tried"), left = number(searched, "left");
    if (!tried) return;
    printf("searched: every count of slots at %.0f counts of chunks; %.0f ruled out by their lower "
           "bounds\n",
           tried, number(searched, "ruled_out"));
    if (number(searched, "near"))
        printf("          %.0f of them are large grids that are at most 0.1 %% faster\n",
               number(searched, "near"));
    if (left)
        printf("          %.0f not all tried: these are at most %.1f %% faster\n", left,
               shown(100 * (number(plan, "makespan_ms") / number(searched, "left_bound_ms") - 1)));
}

/* What becomes of tapes, where not all are kept or there was a choice. */
static void print_tapes(const json_t *plan) {
    const json_t *stages = json_object_get(plan, "stage"), *stage;
    const json_t *chosen = json_object_get(plan, "tapes_chosen");
    bool told = false;
    size_t i;
    json_array_foreach((json_t *)stages, i, stage) {
        if (strcmp(word(stage, "tape"), "keep") == 0) continue;
        printf("%s stage %zu %s", told ? "," : "tapes:", i, word(stage, "tape"));
        told = true;
    }
    if (told) puts("; the others are kept");
    if (!json_is_object(chosen)) return;
    if (!told) puts("tapes: all are kept");
    printf("       the fastest mix that fits pipeline.memory of %s\n",
           strcmp(word(chosen, "policies"), "all") == 0
               ? "all"
               : "those that change once from stage to stage (heuristic)");
    if (number(chosen, "could_gain") > 0)
        printf("       not all looked at closely: no other is more than %.1f %% faster\n",
               100 * number(chosen, "could_gain"));
}

static void print_plan(const json_t *plan) {
    const json_t *picture = json_object_get(plan, "picture"), *line;
    const json_t *delay = json_object_get(plan, "delay");
    bool delayed = json_is_object(delay);
    size_t i;
    printf("schedule %s: %.0f stages, %.0f micro-batches, %.0f chunks, %.0f slots per edge",
           word(plan, "schedule"), number(plan, "stages"), number(plan, "micro_batches"),
           number(plan, "chunks"), number(plan, "slots"));
    if (number(plan, "workers") != number(plan, "stages"))
        printf(", %.0f workers", number(plan, "workers"));
    puts("\n");
    json_array_foreach((json_t *)picture, i, line) puts(json_string_value(line));
    puts("         F forward, B backward, W weights, U update, N norm, . waiting; small: odd "
         "micro-batch\n");
    print_stages(plan);
    if (delayed) print_delay(plan);
    printf("\n%s %.3f ms, lower bound %.3f ms, one device %.3f ms: %.2f times as fast; bubble "
           "%.1f %%\n",
           delayed ? "update" : "step", number(plan, "makespan_ms"), number(plan, "lower_bound_ms"),
           number(plan, "one_device_ms"), number(plan, "speed_up"), 100 * number(plan, "bubble"));
    printf("with items that scatter as they did when they were measured: bubble %.1f %%\n",
           100 * number(plan, "bubble_expected"));
    if (json_is_number(json_object_get(delay, "step_1f1b_ms")))
        printf(
            "that is with a full pipe, and %.2f times as fast as 1f1b: %.3f ms, bubble %.1f %%\n",
            number(delay, "speed_up_1f1b"), number(delay, "step_1f1b_ms"),
            100 * number(delay, "bubble_1f1b"));
    if (number(delay, "waits_below_micro_batches") > 0)
        printf("with fewer than %.0f micro-batches an update waits for its version\n",
               number(delay, "waits_below_micro_batches"));
    printf("memory %.1f MB at the peak, of which %.1f MB are for saving; a message takes "
           "%.1f us\n",
           number(plan, "peak_bytes") / 1e6, number(plan, "copy_bytes") / 1e6,
           1e3 * number(plan, "latency_ms"));
    print_tapes(plan);
    print_rivals(plan);
    print_searched(plan);
}

rv_code rv_cmd_plan(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    char *text = NULL;
    json_t *root = NULL;
    const rv_plan_options options = {
        .struct_size = sizeof options,
        .config = arguments->operand[0],
        .sets = arguments->sets,
        .set_count = arguments->set_count,
        .isa = arguments->isa,
        .threads = arguments->threads,
        .devices = arguments->devices,
        .schedule_file = arguments->schedule_file,
        .profile = arguments->profile,
        .dump = arguments->dump,
        .svg = arguments->svg,
        .scratch = arguments->scratch,
    };
    TRY((rv_status)rv_make_plan(&options, &text));
    if (arguments->json) {
        puts(text);
        goto out;
    }
    root = json_loads(text, 0, NULL);
    if (!root) FAIL(RV_MEMORY, "out of memory for the answer");
    print_plan(root);
out:
    json_decref(root);
    rv_text_free(text);
    return status;
}
