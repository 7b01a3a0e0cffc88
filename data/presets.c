/*
 * Presets: what a neuron is when the recipe does not say, after the library of that name. Each row
 * is one default of one option, as a recipe would write it; nothing else knows the presets.
 * Sources: the libraries' own code (SpikingJelly LIFNode, snnTorch Leaky and Synaptic, Norse
 * lif_box and lif feed-forward, Sinabs LIF, the NIR specification).
 */
#include "data/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct preset_row {
    const char *preset, *key, *value; /* key NULL: the preset changes nothing */
} preset_row;

static const preset_row rows[] = {
    {"ranvier", NULL, NULL},
    /* h = v + (x - v)/tau, hard reset to 0, gradient through the reset. */
    {"spikingjelly", "tau", "2.0"},
    {"spikingjelly", "decay", "euler"},
    {"spikingjelly", "input", "one_minus_beta"},
    {"spikingjelly", "reset", "zero"},
    {"spikingjelly", "compare", "ge"},
    {"spikingjelly", "detach_reset", "false"},
    {"spikingjelly", "surrogate", "{kind: sigmoid, alpha: 4.0}"},
    /* The threshold is taken off one step later and does not decay: r = theta/beta. */
    {"snntorch", "reset", "subtract"},
    {"snntorch", "reset_delay", "next"},
    {"snntorch", "compare", "gt"},
    {"snntorch", "detach_reset", "true"},
    {"snntorch", "surrogate", "{kind: atan, alpha: 2.0}"},
    /* dt = 1 ms, tau_mem = 10 ms, tau_syn = 5 ms; only recurrent cells detach the reset. */
    {"norse", "tau", "10.0"},
    {"norse", "tau_syn", "5.0"},
    {"norse", "decay", "euler"},
    {"norse", "input", "one_minus_beta"},
    {"norse", "reset", "zero"},
    {"norse", "compare", "gt"},
    {"norse", "detach_reset", "false"},
    {"norse", "surrogate", "{kind: fast_sigmoid, slope: 1.0}"},
    /* norm_input: the current is scaled by 1 - beta. */
    {"sinabs", "decay", "exp"},
    {"sinabs", "input", "one_minus_beta"},
    {"sinabs", "reset", "subtract"},
    {"sinabs", "compare", "ge"},
    {"sinabs", "detach_reset", "true"},
    {"sinabs", "surrogate", "{kind: single_exponential, width: 0.5, scale: 1.0}"},
    /* tau dv/dt = (v_leak - v) + R I, spike where v > threshold, reset to v_reset. */
    {"nir", "decay", "euler"},
    {"nir", "input", "one_minus_beta"},
    {"nir", "reset", "zero"},
    {"nir", "compare", "gt"},
};
enum { ROWS = sizeof rows / sizeof *rows };

bool rv_preset_known(const char *name) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].preset, name) == 0) return true;
    return false;
}

/* Names come once per row; offering one twice does no harm. */
void rv_preset_names(rv_nearest *nearest) {
    for (int i = 0; i < ROWS; i++)
        rv_nearest_offer(nearest, rows[i].preset, strlen(rows[i].preset));
}

/* A row without the option (an integrator has no reset) is left alone by that line of the
 * preset. */
static const rv_spec *spec_find(const rv_row *row, const char *name) {
    for (const rv_spec *spec = row->specs; spec && spec->name; spec++)
        if (strcmp(spec->name, name) == 0) return spec;
    return NULL;
}

/* Values go through the same reader as a recipe, limits and all. */
rv_status rv_preset_apply(const char *preset, rv_pool_memory *pool, const rv_row *row,
                          void *options) {
    rv_status status = RV_OK;
    rv_node *node = NULL;
    for (int i = 0; i < ROWS; i++) {
        const rv_spec *spec = rows[i].key ? spec_find(row, rows[i].key) : NULL;
        rv_section section = {.pool = pool, .path = preset};
        if (!spec || strcmp(rows[i].preset, preset) != 0) continue;
        TRY(rv_tree_parse(rows[i].value, strlen(rows[i].value), preset, &node));
        TRY(rv_spec_read_node(&section, spec, node, options));
        rv_tree_free(node);
        node = NULL;
    }
out:
    rv_tree_free(node);
    return status;
}

/* Null counts as absent everywhere. */
static bool given(const rv_section *section, const char *key) {
    return section->node && !rv_node_null(rv_tree_get(section->node, key));
}

/* Without this the resolved file would hold a default beta beside the given tau, and could not
 * be read again: both are then explicit. */
rv_status rv_preset_settle(const rv_section *section, const rv_row *row, void *options) {
    static const char *const pairs[][2] = {{"beta", "tau"}, {"alpha", "tau_syn"}};
    rv_status status = RV_OK;
    for (int i = 0; i < 2; i++) {
        const rv_spec *factor = spec_find(row, pairs[i][0]), *time = spec_find(row, pairs[i][1]);
        rv_reals *drop;
        if (!factor || !time || factor->type != RV_T_REALS || time->type != RV_T_REALS) continue;
        if (given(section, factor->name) && given(section, time->name))
            FAIL_AT(RV_CONFIG, rv_tree_get(section->node, time->name)->where, time->name, NULL,
                    "\"%s\" and \"%s\" say the same thing: give one of them", factor->name,
                    time->name);
        drop = (rv_reals *)((char *)options + time->offset);
        if (!given(section, factor->name) && !isnan(drop->value))
            drop = (rv_reals *)((char *)options + factor->offset);
        *drop = (rv_reals){1, &drop->value, NAN};
    }
out:
    return status;
}
