/*
 * neurons.h5: one layer of neurons of SpikingJelly, snnTorch, Norse and sinabs, run through the
 * device's neuron ops. Each library's equations are ours (kernels/neuron.h) with other names for
 * the parameters and a map of the initial state; the tool adds the gradients of both maps.
 */
#include "tests/golden.h"
#include <stdio.h>

/* Not modelled, on purpose. */
static const golden_outside outside[] = {
    {"no_lsnn*", "the threshold jumps in the step of the spike and decays towards v_th"},
    {"si_iaf_multi_min_v", "several spikes in one step, and a floor under the membrane"},
    {"si_lif_min_v", "a floor under the membrane"},
    {"si_lif_multi*", "several spikes in one step"},
    {"si_lif_single_hard_value", "the reset adds its value to zero with another gradient"},
    {"si_alif*", "the adapted threshold has no gradient in the spike but one in the reset"},
    {"st_alpha_zero", "a membrane that is the difference of two currents, all three reset"},
    {"st_*subtract_nodelay", "the reset is corrected by the last step's spike"},
    {"st_*zero_nodelay", "the reset is corrected by the last step's spike"},
    {"st_r*_zero_delay", "the reset also removes the input of its step"},
    {"st_synaptic_zero_delay", "the reset also removes the input of its step"},
    {NULL, NULL},
};

/* A case in our words. */
typedef struct setup {
    rv_neuron neuron;
    float param[RV_P_COUNT];
    bool before;      /* the file's membrane is h, not v */
    bool fresh;       /* the library ignores v0 */
    double i0_scale;  /* our i[-1] = i0_scale * i0 */
    bool no_autapses; /* the diagonal of w_rec has no gradient */
    bool delayed;     /* v[-1] = reset(v0) where v0 > threshold, by the reset of the layer */
    double tau_slope; /* d beta / d tau_mem, d beta / d w: 0 where not learned */
} setup;

static bool kind_of(golden_case *c, const char *name, rv_neuron *neuron) {
    const rv_row *row = rv_table_find(rv_neuron_table(), name);
    if (!row) {
        snprintf(c->text, sizeof c->text, "no neuron %s", name);
        return false;
    }
    neuron->kind = rv_table_index(rv_neuron_table(), row);
    return true;
}

/* i and h of the layer: integrator or not, with a current or not. */
static bool start(golden_case *c, setup *s, bool current) {
    bool spikes = golden_has(c, "spikes");
    *s = (setup){.i0_scale = 1};
    s->neuron.reset = RV_RESET_NONE;
    s->neuron.strict = strcmp(golden_word(c, "compare"), ">") == 0;
    s->neuron.detach_reset = golden_number(c, "reset_detached", 0) != 0;
    s->param[RV_P_GAIN] = 1;
    s->param[RV_P_THETA] = 1;
    if (!kind_of(c, spikes ? (current ? "cuba" : "lif") : (current ? "cuba_li" : "li"), &s->neuron))
        return false;
    s->before = strcmp(golden_word(c, "membrane_is"), "before reset") == 0;
    return true;
}

/* `soft` subtracts the threshold, `hard` sets v_reset. */
static void reset_of(golden_case *c, setup *s, const char *value) {
    const char *reset = golden_word(c, "reset");
    s->param[RV_P_RESET] = (float)golden_number(c, value, 0);
    if (strcmp(reset, "soft") == 0 || strcmp(reset, "subtract") == 0)
        s->neuron.reset = RV_RESET_SUBTRACT;
    else if (strcmp(reset, "hard") == 0)
        s->neuron.reset = s->param[RV_P_RESET] != 0 ? RV_RESET_VALUE : RV_RESET_ZERO;
    else if (strcmp(reset, "zero") == 0)
        s->neuron.reset = RV_RESET_ZERO;
}

/* q = 1/tau or sigmoid(w): h = v + (x - (v - v_reset))*q, or x without the q. */
static bool spikingjelly(golden_case *c, setup *s) {
    const char *class = golden_word(c, "class");
    if (!start(c, s, golden_has(c, "c_decay"))) return false;
    reset_of(c, s, "v_reset");
    s->param[RV_P_THETA] = (float)golden_number(c, "v_threshold", 1);
    s->param[RV_P_ALPHA] = (float)golden_number(c, "c_decay", 0);
    if (strcmp(class, "IFNode") == 0) {
        s->param[RV_P_BETA] = 1;
    } else if (golden_has(c, "v_decay")) {
        s->param[RV_P_BETA] = (float)golden_number(c, "v_decay", 0);
    } else {
        double q = 1 / golden_number(c, "tau", 2);
        if (golden_has(c, "w")) {
            q = 1 / (1 + exp(-golden_get(c, "w")->v[0]));
            s->tau_slope = -q * (1 - q);
        }
        s->param[RV_P_BETA] = (float)(1 - q);
        s->neuron.gain_tied = golden_number(c, "decay_input", 1) != 0;
        s->param[RV_P_LEAK] = s->param[RV_P_RESET];
    }
    s->fresh = strcmp(class, "NonSpikingLIFNode") == 0;
    return true;
}

/* The reset of a spike comes one step later and is not decayed: r = threshold / beta. */
static bool snntorch(golden_case *c, setup *s) {
    if (!start(c, s, golden_has(c, "alpha"))) return false;
    reset_of(c, s, "v_reset");
    s->delayed = golden_number(c, "reset_delay", 1) != 0;
    s->neuron.reset_over_beta = s->neuron.reset == RV_RESET_SUBTRACT;
    s->param[RV_P_BETA] = (float)golden_get(c, "beta")->v[0];
    s->param[RV_P_THETA] = (float)golden_get(c, "threshold")->v[0];
    if (golden_has(c, "alpha")) s->param[RV_P_ALPHA] = (float)golden_get(c, "alpha")->v[0];
    return true;
}

/* The current is stored after its decay, so i[-1] = i0 / alpha; km = dt*tau_mem_inv. */
static bool norse(golden_case *c, setup *s) {
    double dt = golden_number(c, "dt", 0.001), km = dt * golden_number(c, "tau_mem_inv", 0);
    if (!start(c, s, golden_has(c, "i0"))) return false;
    reset_of(c, s, "v_reset");
    s->param[RV_P_THETA] = (float)golden_number(c, "v_th", 1);
    s->param[RV_P_BETA] = (float)(1 - km);
    s->param[RV_P_LEAK] = (float)golden_number(c, "v_leak", 0);
    if (km != 0) s->param[RV_P_GAIN] = (float)km;
    if (golden_has(c, "i0")) {
        double alpha = 1 - dt * golden_number(c, "tau_syn_inv", 0);
        s->param[RV_P_ALPHA] = (float)alpha;
        s->i0_scale = 1 / alpha;
    }
    s->no_autapses = true;
    return true;
}

/* beta = exp(-1/tau_mem); norm_input multiplies the input by 1 - beta. */
static bool sinabs(golden_case *c, setup *s) {
    if (!start(c, s, golden_has(c, "tau_syn"))) return false;
    reset_of(c, s, "reset_value");
    s->param[RV_P_THETA] = (float)golden_number(c, "threshold", 1);
    double tau = golden_has(c, "tau_mem") ? golden_get(c, "tau_mem")->v[0]
                                          : golden_number(c, "tau_mem_value", INFINITY);
    double beta = exp(-1 / tau);
    s->param[RV_P_BETA] = (float)beta;
    s->tau_slope = beta / (tau * tau);
    s->neuron.gain_tied = golden_number(c, "norm_input", 0) != 0;
    return true;
}

/* ---- the run ------------------------------------------------------------------------------ */
typedef struct layer {
    int T, B, n, ld, in;
    setup set;
    float *param[RV_P_COUNT];
    rv_map input, recurrent; /* weight NULL: none */
    rv_values x, current;    /* the file's input; what the neurons get */
    rv_values h, i;
    rv_spikes s;
    rv_neuron_state before;
} layer;

static bool map_of(golden_case *c, const char *weight, const char *bias, rv_form form,
                   rv_map *map) {
    const golden_array *w = golden_get(c, weight);
    if (c->failed || w->rank != 2) return golden_fail(c, "%s: not a matrix", weight);
    map->in = (int)w->dim[1], map->out = (int)w->dim[0];
    map->ld = rv_round_up(map->out, RV_LANES);
    map->weight = golden_weight(c, w, map->ld);
    if (bias && golden_has(c, bias)) map->bias = golden_rows(c, golden_get(c, bias), map->ld);
    map->form = form;
    return golden_ok(c, c->device->ops->map_pack(c->device->ctx, NULL, map, 0, &map->packed));
}

static rv_neuron_state state_of(golden_case *c, const layer *l) {
    size_t plane = (size_t)l->B * (size_t)l->ld;
    rv_neuron_state state = {.v = golden_memory(c, plane, sizeof(float)),
                             .i = golden_memory(c, plane, sizeof(float)),
                             .a = golden_memory(c, plane, sizeof(float)),
                             .x = golden_memory(c, plane, sizeof(float))};
    state.last = golden_memory(c, (size_t)l->B * (size_t)rv_words(l->n), sizeof(uint32_t));
    return state;
}

/* Where the library resets v0 before its first step. */
static bool resets(const layer *l, const golden_array *v0, size_t k) {
    return l->set.delayed && v0->v[k] > l->set.param[RV_P_THETA];
}

static void initial(golden_case *c, layer *l) {
    l->before = state_of(c, l);
    const setup *s = &l->set;
    size_t n = (size_t)l->n, cells = (size_t)l->B * n;
    if (golden_has(c, "v0") && !s->fresh) {
        const golden_array *v0 = golden_get(c, "v0");
        for (size_t k = 0; k < v0->n && k < cells; k++) {
            double v = v0->v[k];
            if (resets(l, v0, k) && s->neuron.reset == RV_RESET_SUBTRACT)
                v -= (double)s->param[RV_P_THETA] / (double)s->param[RV_P_BETA];
            if (resets(l, v0, k) && s->neuron.reset == RV_RESET_ZERO) v = 0;
            l->before.v[k / n * (size_t)l->ld + k % n] = (float)v;
        }
    }
    if (golden_has(c, "i0")) {
        const golden_array *i0 = golden_get(c, "i0");
        for (size_t k = 0; k < i0->n && k < cells; k++)
            l->before.i[k / n * (size_t)l->ld + k % n] = (float)(i0->v[k] * s->i0_scale);
    }
}

static bool open_layer(golden_case *c, layer *l) {
    const golden_array *x = golden_get(c, "x"), *m = golden_get(c, "membrane");
    if (c->failed) return false;
    if (x->rank != 3 || m->rank != 3 || m->dim[0] != x->dim[0] || m->dim[1] != x->dim[1])
        return golden_fail(c, "x or membrane: not [T][B][n]");
    l->T = (int)x->dim[0], l->B = (int)x->dim[1], l->in = (int)x->dim[2], l->n = (int)m->dim[2];
    l->ld = rv_round_up(l->n, RV_LANES);
    l->x = rv_values_of(NULL, l->T, l->B, l->in);
    l->x.data = golden_rows(c, x, l->x.ld);
    for (int p = 0; p < RV_P_COUNT; p++) {
        l->param[p] = golden_memory(c, (size_t)l->ld, sizeof(float));
        for (int u = 0; u < l->n; u++)
            l->param[p][u] = l->set.param[p];
    }
    l->h = golden_values(c, l->T, l->B, l->n);
    l->i = golden_values(c, l->T, l->B, l->n);
    l->s = golden_spikes(c, l->T, l->B, l->n);
    initial(c, l);
    if (golden_has(c, "w_rec") && !map_of(c, "w_rec", "b_rec", RV_FORM_EVENT, &l->recurrent))
        return false;
    l->current = l->x;
    if (!golden_has(c, "w_in")) return l->in == l->n || golden_fail(c, "x and membrane differ");
    if (!map_of(c, "w_in", NULL, RV_FORM_DENSE, &l->input)) return false;
    l->current = golden_values(c, l->T, l->B, l->n);
    rv_signal signal = {.values = l->x};
    return golden_ok(c, c->device->ops->map_forward(c->device->ctx, NULL, &l->input, &signal,
                                                    l->current, c->arena));
}

/* Steps [t0, t1) from `state`, which moves on. */
static bool forward(golden_case *c, layer *l, int t0, int t1, rv_neuron_state state) {
    unsigned keeps = rv_neuron_keeps(&l->set.neuron);
    bool spikes = rv_neuron_spikes(&l->set.neuron);
    rv_neuron_forward f = {.neuron = &l->set.neuron, .T = t1 - t0, .B = l->B, .n = l->n};
    f.ld = l->ld;
    for (int p = 0; p < RV_P_COUNT; p++)
        f.param[p] = l->param[p];
    f.x = l->current, f.h = l->h, f.i = l->i, f.s = l->s;
    f.x.T = f.h.T = f.i.T = f.s.T = t1 - t0;
    f.x.data += (size_t)t0 * f.x.stride_t;
    f.h.data += (size_t)t0 * f.h.stride_t;
    f.i.data += (size_t)t0 * f.i.stride_t;
    f.s.bits += (size_t)t0 * f.s.stride_t;
    if (!(keeps & RV_KEEP_I)) f.i.data = NULL;
    if (!spikes) f.s.bits = NULL;
    f.recurrent = l->recurrent.weight ? &l->recurrent : NULL;
    f.state = state;
    return golden_ok(c, c->device->ops->neuron_forward(c->device->ctx, NULL, &f, c->arena));
}

static void copy_state(const layer *l, rv_neuron_state to) {
    size_t bytes = (size_t)l->B * (size_t)l->ld * sizeof(float);
    memcpy(to.v, l->before.v, bytes);
    memcpy(to.i, l->before.i, bytes);
}

/* Spikes and membrane; in one piece, and step by step to see v after each step. */
static bool check_forward(golden_case *c, layer *l) {
    const golden_array *membrane = golden_get(c, "membrane");
    rv_values v = golden_values(c, l->T, l->B, l->n);
    rv_neuron_state state = state_of(c, l);
    copy_state(l, state);
    for (int t = 0; t < l->T; t++) {
        if (!forward(c, l, t, t + 1, state)) return false;
        memcpy(v.data + (size_t)t * v.stride_t, state.v, v.stride_t * sizeof(float));
    }
    const float *got = l->set.before ? l->h.data : v.data;
    golden_close(c, "membrane, step by step", membrane, got, l->ld, GOLDEN_MEMBRANE, 1);
    if (golden_has(c, "spikes"))
        golden_same_spikes(c, "spikes, step by step", golden_get(c, "spikes"), l->s);
    state = state_of(c, l);
    copy_state(l, state);
    if (!forward(c, l, 0, l->T, state)) return false;
    if (golden_has(c, "spikes")) golden_same_spikes(c, "spikes", golden_get(c, "spikes"), l->s);
    if (l->set.before) golden_close(c, "membrane", membrane, l->h.data, l->ld, GOLDEN_MEMBRANE, 1);
    return !c->failed;
}

/* ---- gradients ---------------------------------------------------------------------------- */
/* A data set of gradients, `NAME` or `NAME_with_gv`; NULL when the file has none. */
static const golden_array *wanted(golden_case *c, const char *name, const char *form, char *what,
                                  size_t size) {
    snprintf(what, size, "%s%s", name, form);
    return golden_has(c, what) ? golden_get(c, what) : NULL;
}

static void check_scalar(golden_case *c, const char *name, const char *form, double got) {
    char what[64];
    const golden_array *want = wanted(c, name, form, what, sizeof what);
    float value = (float)got;
    if (want) golden_close(c, what, want, &value, 1, GOLDEN_GRADIENT, 0);
}

static void check_rows(golden_case *c, const char *name, const char *form, const float *got,
                       int ld) {
    char what[64];
    const golden_array *want = wanted(c, name, form, what, sizeof what);
    if (want) golden_close(c, what, want, got, ld, GOLDEN_GRADIENT, 0);
}

static double sum(const layer *l, const float *grad) {
    double total = 0;
    for (int u = 0; u < l->n; u++)
        total += (double)grad[u];
    return total;
}

/* Parameters' gradients: ours, and what the map of the initial state adds. */
static void check_params(golden_case *c, const layer *l, const char *form,
                         float *const grad[RV_P_COUNT], const rv_neuron_state *adjoint) {
    const setup *s = &l->set;
    double theta = (double)s->param[RV_P_THETA], beta = (double)s->param[RV_P_BETA];
    double g_theta = sum(l, grad[RV_P_THETA]), g_beta = sum(l, grad[RV_P_BETA]);
    if (golden_has(c, "v0") && s->neuron.reset_over_beta) {
        const golden_array *v0 = golden_get(c, "v0");
        for (size_t k = 0; k < v0->n; k++) {
            double g = (double)adjoint->v[k / (size_t)l->n * (size_t)l->ld + k % (size_t)l->n];
            if (!resets(l, v0, k)) continue;
            g_theta -= g / beta;
            g_beta += g * theta / (beta * beta);
        }
    }
    check_scalar(c, "g_threshold", form, g_theta);
    check_scalar(c, "g_beta", form, g_beta);
    check_scalar(c, "g_alpha", form, sum(l, grad[RV_P_ALPHA]));
    check_scalar(c, "g_tau_mem", form, g_beta * s->tau_slope);
    check_scalar(c, "g_w", form, g_beta * s->tau_slope);
}

/* Gradients of the initial state through its map. */
static void check_initial(golden_case *c, const layer *l, const char *form,
                          const rv_neuron_state *adjoint) {
    size_t n = (size_t)l->n, cells = (size_t)l->B * n;
    float *g = golden_memory(c, (size_t)l->B * (size_t)l->ld, sizeof *g);
    if (golden_has(c, "v0")) {
        const golden_array *v0 = golden_get(c, "v0");
        for (size_t k = 0; k < v0->n && k < cells; k++) {
            size_t at = k / n * (size_t)l->ld + k % n;
            bool cut = l->set.fresh || (resets(l, v0, k) && l->set.neuron.reset == RV_RESET_ZERO);
            g[at] = cut ? 0 : adjoint->v[at];
        }
        check_rows(c, "g_v0", form, g, l->ld);
    }
    for (size_t k = 0; k < (size_t)l->B * (size_t)l->ld; k++)
        g[k] = (float)((double)adjoint->i[k] * l->set.i0_scale);
    check_rows(c, "g_i0", form, g, l->ld);
}

/* Weight gradients of the recurrent and of the input map; gx through the input map. */
static bool check_maps(golden_case *c, const layer *l, const char *form, rv_values gx) {
    const rv_ops *ops = c->device->ops;
    rv_ctx *ctx = c->device->ctx;
    char what[64];
    if (l->recurrent.weight) {
        float *gw = golden_memory(c, (size_t)l->n * (size_t)l->ld, sizeof *gw);
        float *gb = golden_memory(c, (size_t)l->ld, sizeof *gb);
        rv_signal last = {.spikes = golden_spikes(c, l->T, l->B, l->n)}; /* s[t-1] */
        if (l->T > 1)
            memcpy(last.spikes.bits + last.spikes.stride_t, l->s.bits,
                   (size_t)(l->T - 1) * l->s.stride_t * sizeof(uint32_t));
        if (!golden_ok(c, ops->map_weight(ctx, NULL, &l->recurrent, &last, gx, gw, gb, c->arena)))
            return false;
        for (int u = 0; l->set.no_autapses && u < l->n; u++)
            gw[u * l->ld + u] = 0;
        const golden_array *want = wanted(c, "g_w_rec", form, what, sizeof what);
        if (want) golden_close_weight(c, what, want, gw, l->ld, GOLDEN_GRADIENT);
        check_rows(c, "g_b_rec", form, gb, l->ld);
    }
    if (!l->input.weight) {
        check_rows(c, "gx", form, gx.data, l->ld);
        return !c->failed;
    }
    float *gw = golden_memory(c, (size_t)l->in * (size_t)l->ld, sizeof *gw);
    rv_values below = golden_values(c, l->T, l->B, l->in);
    rv_signal x = {.values = l->x};
    if (!golden_ok(c, ops->map_weight(ctx, NULL, &l->input, &x, gx, gw, NULL, c->arena)) ||
        !golden_ok(c, ops->map_backward(ctx, NULL, &l->input, gx, below, false, c->arena)))
        return false;
    const golden_array *want = wanted(c, "g_w_in", form, what, sizeof what);
    if (want) golden_close_weight(c, what, want, gw, l->ld, GOLDEN_GRADIENT);
    check_rows(c, "gx", form, below.data, below.ld);
    return !c->failed;
}

/* loss = sum(gs*spikes), plus sum(gv*membrane) when with_membrane. */
static bool check_backward(golden_case *c, layer *l, bool with_membrane) {
    const char *form = with_membrane ? "_with_gv" : "";
    rv_neuron_state state = state_of(c, l), adjoint = state_of(c, l);
    copy_state(l, state);
    if (!forward(c, l, 0, l->T, state)) return false; /* h was overwritten */
    rv_neuron_backward b = {.neuron = &l->set.neuron, .T = l->T, .B = l->B, .n = l->n};
    b.ld = l->ld;
    for (int p = 0; p < RV_P_COUNT; p++) {
        b.param[p] = l->param[p];
        b.grad[p] = golden_memory(c, (size_t)l->ld, sizeof(float));
    }
    b.h = l->h, b.i = l->i, b.s = l->s;
    if (!(rv_neuron_keeps(&l->set.neuron) & RV_KEEP_I)) b.i.data = NULL;
    if (golden_has(c, "gs")) {
        b.gs = rv_values_of(NULL, l->T, l->B, l->n);
        b.gs.data = golden_rows(c, golden_get(c, "gs"), l->ld);
    }
    if (with_membrane) {
        rv_values *gv = l->set.before ? &b.gh : &b.gv;
        *gv = rv_values_of(NULL, l->T, l->B, l->n);
        gv->data = golden_rows(c, golden_get(c, "gv"), l->ld);
    }
    b.recurrent = l->recurrent.weight ? &l->recurrent : NULL;
    b.before = l->before;
    b.adjoint = adjoint;
    if (c->failed ||
        !golden_ok(c, c->device->ops->neuron_backward(c->device->ctx, NULL, &b, c->arena)))
        return false;
    check_params(c, l, form, b.grad, &adjoint);
    check_initial(c, l, form, &adjoint);
    return check_maps(c, l, form, b.h);
}

golden_verdict golden_neuron(golden_case *c) {
    static const struct {
        const char *library;
        bool (*setup)(golden_case *c, setup *s);
    } libraries[] = {{"spikingjelly", spikingjelly},
                     {"snntorch", snntorch},
                     {"norse", norse},
                     {"sinabs", sinabs}};
    const char *reason = golden_reason(outside, c->name), *library = golden_word(c, "library");
    if (reason) {
        snprintf(c->text, sizeof c->text, "%s", reason);
        return GOLDEN_OUTSIDE;
    }
    layer l = {0};
    bool found = false;
    for (size_t k = 0; k < sizeof libraries / sizeof *libraries && !found; k++)
        if (strcmp(library, libraries[k].library) == 0) {
            if (!libraries[k].setup(c, &l.set)) return GOLDEN_UNKNOWN;
            found = true;
        }
    if (!found) return GOLDEN_UNKNOWN;
    if (l.set.param[RV_P_BETA] == 1 && !golden_has(c, "i0") && golden_has(c, "spikes") &&
        !kind_of(c, "if", &l.set.neuron))
        return GOLDEN_UNKNOWN;
    if (golden_has(c, "surrogate") &&
        !golden_surrogate_of(c, golden_word(c, "surrogate"), "surrogate_",
                             (double)l.set.param[RV_P_THETA], &l.set.neuron.surrogate))
        return GOLDEN_UNKNOWN;
    l.set.neuron.learn = 1u << RV_P_BETA | 1u << RV_P_THETA;
    if (golden_has(c, "alpha")) l.set.neuron.learn |= 1u << RV_P_ALPHA;
    if (open_layer(c, &l) && check_forward(c, &l)) {
        if (golden_has(c, "gx")) check_backward(c, &l, false);
        if (!c->failed) check_backward(c, &l, true);
    }
    const rv_ops *ops = c->device->ops;
    if (l.input.packed) ops->map_unpack(c->device->ctx, l.input.packed);
    if (l.recurrent.packed) ops->map_unpack(c->device->ctx, l.recurrent.packed);
    return golden_done(c);
}
