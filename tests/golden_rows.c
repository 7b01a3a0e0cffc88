/* Options of our tables' rows, set by name. */
#include "tests/golden.h"
#include <stdio.h>

bool golden_choose(golden_case *c, const rv_table *table, const char *name, rv_choice *out) {
    out->row = rv_table_find(table, name);
    if (!out->row) {
        snprintf(c->text, sizeof c->text, "no %s in %s", name, table->name);
        return false;
    }
    out->options = golden_memory(c, 1, out->row->options_size + 1);
    if (out->row->specs) rv_specs_default(out->row->specs, out->options);
    return true;
}

static const rv_spec *spec_of(golden_case *c, const rv_choice *choice, const char *option) {
    const rv_spec *spec = choice->row->specs;
    while (spec && spec->name && strcmp(spec->name, option) != 0)
        spec++;
    if (spec && spec->name) return spec;
    snprintf(c->text, sizeof c->text, "%s has no option %s", choice->row->name, option);
    return NULL;
}

bool golden_set(golden_case *c, const rv_choice *choice, const char *option, double value) {
    const rv_spec *spec = spec_of(c, choice, option);
    if (!spec) return false;
    char *at = (char *)choice->options + spec->offset;
    if (spec->type == RV_T_BOOL) {
        *(bool *)at = value != 0;
    } else if (spec->type == RV_T_REAL) {
        *(double *)(void *)at = value;
    } else if (spec->type == RV_T_REALS) {
        rv_reals *reals = (rv_reals *)(void *)at;
        reals->count = 1;
        reals->value = (float)value;
        reals->data = &reals->value;
    } else if (spec->type == RV_T_PAIR) {
        ((int *)(void *)at)[0] = ((int *)(void *)at)[1] = (int)value;
    } else {
        *(int *)(void *)at = (int)value;
    }
    return true;
}

bool golden_word_set(golden_case *c, const rv_choice *choice, const char *option,
                     const char *word) {
    const rv_spec *spec = spec_of(c, choice, option);
    if (!spec) return false;
    size_t length = strlen(word);
    int index = 0;
    for (const char *p = spec->choices; p; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, word, length) == 0 && (p[length] == '|' || p[length] == 0)) {
            *(int *)(void *)((char *)choice->options + spec->offset) = index;
            return true;
        }
        index++;
    }
    snprintf(c->text, sizeof c->text, "%s: no %s %s", choice->row->name, option, word);
    return false;
}

bool golden_row_set(golden_case *c, const rv_choice *choice, const char *option, rv_choice row) {
    const rv_spec *spec = spec_of(c, choice, option);
    if (!spec) return false;
    *(rv_choice *)(void *)((char *)choice->options + spec->offset) = row;
    return true;
}

bool golden_reals_set(golden_case *c, const rv_choice *choice, const char *option, rv_reals list) {
    const rv_spec *spec = spec_of(c, choice, option);
    if (!spec) return false;
    *(rv_reals *)(void *)((char *)choice->options + spec->offset) = list;
    return true;
}

bool golden_set_all(golden_case *c, const rv_choice *choice, const golden_option *options) {
    for (; options->option; options++) {
        const char *attribute = options->attribute;
        if (attribute && !golden_has(c, attribute)) continue;
        double value = attribute ? golden_number(c, attribute, 0) : options->constant;
        if (!golden_set(c, choice, options->option, value)) return false;
    }
    return true;
}
