/*
 * What can be named in a recipe, as JSON, straight from the tables that check recipes: the list can
 * never say anything else than the program does.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/internal.h"

/* ---- parameters ------------------------------------------------------------------------- */

/* As a user would say it, not as the option struct holds it. */
static const char *type_text(rv_type type) {
    static const char *const names[] = {
        [RV_T_BOOL] = "bool",          [RV_T_INT] = "int",         [RV_T_REAL] = "real",
        [RV_T_REALS] = "reals",        [RV_T_CHOICE] = "choice",   [RV_T_TEXT] = "text",
        [RV_T_PAIR] = "int or [h, w]", [RV_T_ROW] = "{kind: ...}",
    };
    return (size_t)type < sizeof names / sizeof *names && names[type] ? names[type] : "other";
}

/* Word `index` of "a|b|c". */
static json_t *choice_word(const char *choices, int index) {
    for (; choices && index > 0; index--) {
        choices = strchr(choices, '|');
        if (choices) choices++;
    }
    return choices ? json_stringn(choices, strcspn(choices, "|")) : json_null();
}

/* The value a recipe gets that does not name the parameter; null: absent unless given. */
static json_t *default_json(const rv_spec *spec) {
    if (spec->type == RV_T_TEXT || spec->type == RV_T_ROW)
        return spec->choices ? json_string(spec->choices) : json_null();
    if (isnan(spec->initial)) return json_null();
    if (spec->type == RV_T_BOOL) return json_boolean(spec->initial != 0);
    if (spec->type == RV_T_CHOICE) return choice_word(spec->choices, (int)spec->initial);
    if (spec->type == RV_T_INT || spec->type == RV_T_PAIR)
        return json_integer((json_int_t)spec->initial);
    return rv_json_number(spec->initial);
}

static bool limited(double value) { /* a thousand million and beyond: no limit anyone meets */
    return isfinite(value) && fabs(value) < 1e9;
}

/* One text for all types: the words of a choice, the table a row is taken from, or a range. */
static json_t *limits_json(const rv_spec *spec) {
    char text[64] = "";
    if (spec->type == RV_T_CHOICE) return json_string(spec->choices);
    if (spec->type == RV_T_ROW) return json_string(spec->table->name);
    if (spec->type == RV_T_BOOL || spec->type == RV_T_TEXT) return json_string("");
    bool low = limited(spec->least), high = limited(spec->most);
    const char *open = spec->open ? ">" : ">=";
    if (low && high)
        snprintf(text, sizeof text, "%s %.10g, <= %.10g", open, spec->least, spec->most);
    else if (low)
        snprintf(text, sizeof text, "%s %.10g", open, spec->least);
    else if (high)
        snprintf(text, sizeof text, "<= %.10g", spec->most);
    return json_string(text);
}

/* Failed allocations below end as a NULL of json_pack, which rv_json_text reports. */
static json_t *row_json(const rv_row *row) {
    json_t *parameters = json_array();
    for (const rv_spec *spec = row->specs; spec && spec->name; spec++)
        json_array_append_new(parameters,
                              json_pack("{s:s, s:s, s:o, s:o, s:s}", "name", spec->name, "type",
                                        type_text(spec->type), "default", default_json(spec),
                                        "limits", limits_json(spec), "sentence",
                                        spec->sentence ? spec->sentence : ""));
    return json_pack("{s:s, s:s, s:s, s:o}", "name", row->name, "sentence",
                     row->sentence ? row->sentence : "", "source", row->source ? row->source : "",
                     "parameters", parameters);
}

static json_t *table_rows(const rv_table *table) {
    json_t *rows = json_array();
    for (int i = 0; i < table->count; i++)
        json_array_append_new(rows, row_json(rv_table_row(table, i)));
    return rows;
}

/* ---- kinds that are no table ------------------------------------------------------------- */

/* The unused parameter lets tables and these share one type of function. */
static json_t *keys_rows(const rv_table *(*unused)(void)) {
    (void)unused;
    int count = 0;
    const rv_key_row *keys = rv_config_keys(&count);
    json_t *rows = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s?, s:s}", "key", keys[i].path, "type",
                                              keys[i].type, "default", keys[i].initial, "sentence",
                                              keys[i].sentence));
    return rows;
}

/* Devices are found by opening them: what cannot be opened says why. False where no further one is
 * to be asked for; the first of a kind has a row in any case. */
static bool device_row(json_t *rows, const char *kind, int index) {
    const rv_device_list list = {.kind = kind, .count = 1, .index = {index}};
    rv_device device = {0};
    rv_status status = rv_device_open_at(&list, 0, RV_ISA_AUTO, 1, &device);
    bool cpu = strcmp(kind, "cpu") == 0;
    char name[32];
    snprintf(name, sizeof name, cpu ? "%s" : "%s:%d", kind, index);
    if (status == RV_OK)
        json_array_append_new(
            rows, json_pack("{s:s, s:b, s:s, s:o, s:s+}", "name", name, "available", 1, "isa",
                            cpu ? rv_isa_name(rv_device_isa(&device)) : device.ops->name, "threads",
                            cpu ? json_integer(rv_host_threads()) : json_null(), "sentence",
                            device.ops->lacks ? "no kernels for " : "",
                            device.ops->lacks ? device.ops->lacks : ""));
    else if (index == 0)
        json_array_append_new(rows,
                              json_pack("{s:s, s:b, s:n, s:n, s:s}", "name", name, "available", 0,
                                        "isa", "threads", "sentence", rv_error_get()->message));
    rv_device_close(&device);
    return status == RV_OK && !cpu;
}

static json_t *devices_rows(const rv_table *(*unused)(void)) {
    static const char *const kinds[] = {"cpu", "cuda", "emu"};
    (void)unused;
    json_t *rows = json_array();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int index = 0; device_row(rows, kinds[i], index); index++)
            continue;
    return rows;
}

static json_t *rows_of_table(const rv_table *(*table)(void)) {
    return table_rows(table());
}

/* Words that other people's scripts rely on. */
static const struct {
    const char *name;
    json_t *(*rows)(const rv_table *(*table)(void));
    const rv_table *(*table)(void);
} kinds[] = {
    {"neurons", rows_of_table, rv_neuron_table},
    {"surrogates", rows_of_table, rv_surrogate_table},
    {"layers", rows_of_table, rv_layer_table},
    {"losses", rows_of_table, rv_loss_table},
    {"regularizers", rows_of_table, rv_regularizer_table},
    {"optimizers", rows_of_table, rv_optimizer_table},
    {"schedules", rows_of_table, rv_schedule_table},
    {"pipeline_schedules", rows_of_table, rv_generator_table},
    {"delayed_schedules", rows_of_table, rv_delay_table},
    {"corrections", rows_of_table, rv_correction_table},
    {"encoders", rows_of_table, rv_encoder_table},
    {"init", rows_of_table, rv_init_table},
    {"readers", rows_of_table, rv_reader_table},
    {"augment", rows_of_table, rv_augment_table},
    {"devices", devices_rows, NULL},
    {"keys", keys_rows, NULL},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

rv_status rv_list_json(const char *kind, char **json) {
    const char *names[KINDS];
    char all[256] = "";
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(kind, kinds[i].name) == 0)
            return rv_json_text(
                json_pack("{s:s, s:o}", "kind", kind, "rows", kinds[i].rows(kinds[i].table)), false,
                json);
        names[i] = kinds[i].name;
        strcat(strcat(all, i ? ", " : ""), names[i]);
    }
    return rv_fail_at(RV_USAGE, (rv_where){0}, NULL, rv_name_nearest(kind, names, KINDS),
                      "unknown kind \"%s\" (one of %s)", kind, all);
}
