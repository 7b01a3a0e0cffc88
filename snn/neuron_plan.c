/*
 * Neuron layers: options -> plan, tensors, slots; parameters of a version; their gradients.
 *
 * A parameter may be said in several ways (beta, tau with a rule, w), be one number or one per
 * unit, constant or trained. All of that ends here: ops see one array of ld floats per parameter,
 * and the sums they return become the gradient of what is stored by the chain rule.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "snn/neuron.h"

/* ---- parameters -------------------------------------------------------------------------- */
/* How a parameter follows from what is stored and trained, and its derivative. Decays may be given
 * as a time constant in steps, or as w with decay = 1 - sigmoid(w) (Fang et al. 2021, PLIF). */
static double plain_value(double x) {
    return x;
}
static double plain_slope(double x) {
    (void)x;
    return 1;
}
/* decay = 1 - 1/tau: one explicit Euler step of a leaky integrator. */
static double euler_value(double tau) {
    return 1 - 1 / tau;
}
static double euler_slope(double tau) {
    return 1 / (tau * tau);
}
/* decay = exp(-1/tau): its exact solution over a step. */
static double exp_value(double tau) {
    return exp(-1 / tau);
}
static double exp_slope(double tau) {
    return exp(-1 / tau) / (tau * tau);
}
/* decay = 1 - 2^-k: a shift and a subtraction in integer hardware. */
static double shift_value(double k) {
    return 1 - exp2(-k);
}
static double shift_slope(double k) {
    return log(2) * exp2(-k);
}
/* decay = 1 - sigmoid(w), within (0, 1) for every w. */
static double sigmoid_value(double w) {
    return 1 / (1 + exp(w));
}
static double sigmoid_slope(double w) {
    double beta = sigmoid_value(w);
    return -beta * (1 - beta);
}

enum { STORE_EULER, STORE_EXP, STORE_SHIFT, STORE_W, STORE_PLAIN }; /* first three: option decay */
static const storage storages[] = {
    [STORE_EULER] = {euler_value, euler_slope}, [STORE_EXP] = {exp_value, exp_slope},
    [STORE_SHIFT] = {shift_value, shift_slope}, [STORE_W] = {sigmoid_value, sigmoid_slope},
    [STORE_PLAIN] = {plain_value, plain_slope},
};

/* By rv_neuron_param. `tau`: the other option that says it, 0 = none; `absent`: its value for
 * kinds that do not have it. */
static const struct param_row {
    const char *name, *tau_name;
    size_t offset, tau_offset;
    float absent;
    rv_limit limit;
} params[RV_P_COUNT] = {
    [RV_P_ALPHA] = {"alpha", "tau_syn", offsetof(rv_neuron_options, alpha),
                    offsetof(rv_neuron_options, tau_syn), 0, RV_LIMIT_UNIT},
    [RV_P_BETA] = {"beta", "tau", offsetof(rv_neuron_options, beta),
                   offsetof(rv_neuron_options, tau), 1, RV_LIMIT_UNIT},
    [RV_P_GAIN] = {"gain", NULL, offsetof(rv_neuron_options, gain), 0, 1, RV_LIMIT_NONE},
    [RV_P_LEAK] = {"v_leak", NULL, offsetof(rv_neuron_options, v_leak), 0, 0, RV_LIMIT_NONE},
    [RV_P_THETA] = {"threshold", NULL, offsetof(rv_neuron_options, threshold), 0, 1,
                    RV_LIMIT_POSITIVE},
    [RV_P_RESET] = {"v_reset", NULL, offsetof(rv_neuron_options, v_reset), 0, 0, RV_LIMIT_NONE},
    [RV_P_RHO] = {"rho", NULL, offsetof(rv_neuron_options, rho), 0, 0, RV_LIMIT_UNIT},
    [RV_P_KAPPA] = {"kappa", NULL, offsetof(rv_neuron_options, kappa), 0, 0, RV_LIMIT_NONE},
};

/* ---- plan -------------------------------------------------------------------------------- */
static bool row_has(const rv_row *row, const char *name) {
    for (const rv_spec *spec = row->specs; spec && spec->name; spec++)
        if (strcmp(spec->name, name) == 0) return true;
    return false;
}

/* A scalar serves every unit. */
static double real_at(const rv_reals *reals, int u) {
    return reals->count > 1 ? reals->data[u] : reals->value;
}

/* Options a row does not list stay zeroed (count 0); those without a default are not a number. */
static bool real_given(const rv_reals *reals) {
    return reals->count > 1 || (reals->count == 1 && !isnan(reals->value));
}

/* What the ops see at the start: neutral for parameters the kind does not have. */
static double param_value(const neuron_plan *plan, int p, int u) {
    if (!plan->param[p].given) return params[p].absent;
    return plan->param[p].given_as->value(real_at(plan->param[p].given, u));
}

/* Which option gives each parameter: a time constant goes before a decay, which may be a default.
 */
static rv_status plan_params(const rv_layer *layer, neuron_plan *plan) {
    const rv_neuron_options *options = layer->desc->options;
    int n = rv_shape_units(layer->shape);
    for (int p = 0; p < RV_P_COUNT; p++) {
        const char *base = (const char *)options;
        const rv_reals *plain = (const rv_reals *)(const void *)(base + params[p].offset);
        const rv_reals *tau = (const rv_reals *)(const void *)(base + params[p].tau_offset);
        bool by_tau = params[p].tau_name && real_given(tau);
        plan->param[p].given = by_tau ? tau : real_given(plain) ? plain : NULL;
        plan->param[p].given_as = &storages[by_tau ? options->decay : STORE_PLAIN];
        plan->param[p].stored_as = plan->param[p].given_as;
        plan->param[p].grad = -1;
        const rv_reals *given = plan->param[p].given;
        if (given && given->count > 1 && given->count != n)
            return rv_fail_at(RV_CONFIG, layer->desc->where, params[p].name, NULL,
                              "layer \"%s\" has %d units, but %s lists %d values",
                              layer->desc->name, n, by_tau ? params[p].tau_name : params[p].name,
                              given->count);
    }
    return RV_OK;
}

/* One word of `learn`: a parameter, its time constant, or w. */
static rv_status learn_word(rv_net *net, rv_layer *layer, neuron_plan *plan, const char *word) {
    bool w = strcmp(word, "w") == 0;
    int p = w ? RV_P_BETA : -1;
    for (int k = 0; k < RV_P_COUNT && p < 0; k++) {
        if (strcmp(word, params[k].name) == 0 ||
            (params[k].tau_name && strcmp(word, params[k].tau_name) == 0))
            p = k;
    }
    if (p < 0 || !row_has(layer->desc->row, params[p].name) || layer->tensor[p] >= 0)
        return rv_fail_at(
            RV_CONFIG, layer->desc->where, "learn", NULL,
            "layer \"%s\" (%s) cannot learn \"%s\": no such parameter, or named twice",
            layer->desc->name, layer->desc->row->name, word);
    /* plif is named for it: whatever word asks for its decay, w is what is trained. */
    w = w || (p == RV_P_BETA && strcmp(layer->desc->row->name, "plif") == 0);
    if (w) plan->param[p].stored_as = &storages[STORE_W];
    const storage *stored = plan->param[p].stored_as;
    bool tau = stored != &storages[STORE_W] && stored != &storages[STORE_PLAIN];
    rv_tensor_desc desc = {.local = w     ? "w"
                                    : tau ? params[p].tau_name
                                          : params[p].name,
                           .rank = 1,
                           .dim = {plan->param[p].given ? plan->param[p].given->count : 1},
                           .limit = w     ? RV_LIMIT_NONE
                                    : tau ? RV_LIMIT_POSITIVE
                                          : params[p].limit};
    rv_layer_tensor(net, layer, p, &desc);
    if (!layer->trained) return RV_OK; /* frozen */
    plan->neuron.learn |= 1u << p;
    plan->param[p].grad = plan->learned++;
    return RV_OK;
}

/* `learn` is a list in one text, split here; options belong to the description and stay as they
 * are. */
static rv_status plan_learn(rv_net *net, rv_layer *layer, neuron_plan *plan) {
    const rv_neuron_options *options = layer->desc->options;
    rv_status status = RV_OK;
    char *words = NULL, *rest = NULL;
    TRY(rv_strdup(options->learn ? options->learn : "", &words));
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        TRY(learn_word(net, layer, plan, word));
out:
    rv_free(words);
    return status;
}

/* A description may leave out the surrogate, or name it without parameters. */
rv_surrogate rv_surrogate_of(const rv_choice *choice) {
    rv_surrogate_options options = {{0}};
    const rv_row *row = choice->row ? choice->row : rv_table_row(rv_surrogate_table(), 0);
    rv_surrogate surrogate = {.kind = rv_table_index(rv_surrogate_table(), row)};
    if (choice->options)
        options = *(const rv_surrogate_options *)choice->options;
    else
        rv_specs_default(row->specs, &options);
    for (int k = 0; k < RV_SURROGATE_PARAMS; k++)
        surrogate.p[k] = (float)options.p[k];
    return surrogate;
}

/* Memory follows from what the kind has and what is learned: a plain lif keeps h and its bits. */
static void neuron_slots(rv_layer *layer, const neuron_plan *plan) {
    int n = rv_shape_units(layer->shape);
    size_t ld = (size_t)rv_round_up(n, RV_LANES), words = (size_t)rv_words(n);
    unsigned keeps = rv_neuron_keeps(&plan->neuron);
    bool current = row_has(layer->desc->row, params[RV_P_ALPHA].name);
    bool adaptive = row_has(layer->desc->row, params[RV_P_KAPPA].name);
    bool learns = plan->learned > 0;
    layer->state[STATE_V].sample = ld;
    layer->state[STATE_I].sample = current ? ld : 0;
    layer->state[STATE_A].sample = adaptive ? ld : 0;
    layer->state[STATE_X].sample = layer->recurrent ? ld : 0;
    layer->state[STATE_LAST].sample = layer->recurrent || adaptive ? words : 0;
    layer->state[STATE_GRAD].fixed = (size_t)plan->learned * ld;
    layer->tape[TAPE_H].step = ld;
    layer->tape[TAPE_I].step = keeps & RV_KEEP_I ? ld : 0;
    layer->tape[TAPE_A].step = keeps & RV_KEEP_A ? ld : 0;
    /* The state before the chunk: only parameter gradients look back past its first step. */
    layer->tape[TAPE_V0].sample = learns ? ld : 0;
    layer->tape[TAPE_I0].sample = learns && current ? ld : 0;
    layer->tape[TAPE_A0].sample = learns && adaptive ? ld : 0;
    layer->tape[RV_SLOT_OUT].sample = layer->recurrent ? words : 0;
}

/* Neurons take currents, never spikes: a spike train has no scale of its own, and a forgotten
 * map between two neuron layers is the usual cause. */
rv_status rv_neuron_check(rv_net *net, rv_layer *layer) {
    const rv_neuron_options *options = layer->desc->options;
    rv_status status = RV_OK;
    neuron_plan *plan = layer->plan;
    if (layer->input_count != 1) TRY(rv_layer_misfit(net, layer, 1, "takes one input"));
    if (rv_layer_in_spikes(net, layer, 0))
        TRY(rv_layer_misfit(net, layer, 0, "takes a current, put a linear layer before it"));
    layer->shape = rv_layer_in_shape(net, layer, 0);
    layer->recurrent = options->recurrent;
    plan->neuron = (rv_neuron){
        .kind = rv_table_index(rv_neuron_table(), layer->desc->row),
        .reset = (rv_reset)options->reset,
        .strict = options->compare == 1,
        .detach_reset = options->detach_reset,
        .detach_adaptation = options->detach_adaptation,
        .gain_tied = options->input == 1,
        .reset_over_beta = options->reset_delay == 1,
        .surrogate = rv_surrogate_of(&options->surrogate),
    };
    layer->spikes = rv_neuron_spikes(&plan->neuron);
    if (layer->recurrent && !layer->spikes)
        TRY(rv_fail_at(RV_CONFIG, layer->desc->where, "recurrent", NULL,
                       "layer \"%s\" (%s) does not spike and cannot be recurrent",
                       layer->desc->name, layer->desc->row->name));
    TRY(plan_params(layer, plan));
    if (layer->recurrent) {
        int n = rv_shape_units(layer->shape);
        rv_tensor_desc desc = {"recurrent_weight", 2, {n, n}, RV_LAYOUT_LINEAR, 0, false};
        rv_layer_tensor(net, layer, RECURRENT, &desc);
        layer->form = RV_FORM_EVENT; /* one step of spikes at a time: never dense */
    }
    TRY(plan_learn(net, layer, plan));
    neuron_slots(layer, plan);
out:
    return status;
}

/* ---- versions ---------------------------------------------------------------------------- */
/* The inverse of the storage, for values given in another form. */
static double stored_value(const neuron_plan *plan, int p, int u) {
    double value = param_value(plan, p, u);
    if (plan->param[p].stored_as == &storages[STORE_W]) return log((1 - value) / value);
    return plan->param[p].given ? real_at(plan->param[p].given, u) : value;
}

/* Neuron parameters start where the description puts them; only the recurrent weight is drawn. */
void rv_neuron_initial(const rv_net *net, const rv_layer *layer, int k, float *file) {
    const rv_tensor *tensor = &net->tensors[layer->tensor[k]];
    if (k == RECURRENT) {
        rv_init_fill(net, layer, k, file);
        return;
    }
    for (int u = 0; u < tensor->dim[0]; u++)
        file[u] = (float)stored_value(layer->plan, k, u);
}

/* Every parameter as an array of ld floats; the units that only pad take the last one's. */
static void fill_params(const rv_version *version, const rv_layer *layer, float *to) {
    const neuron_plan *plan = layer->plan;
    for (int p = 0; p < RV_P_COUNT; p++, to += layer->ld) {
        const float *stored = rv_version_tensor(version, layer, p);
        bool each = plan->param[p].given && plan->param[p].given->count > 1;
        for (int u = 0; u < layer->ld; u++) {
            int at = u < layer->n ? u : layer->n - 1;
            if (u > 0 && (!each || at != u))
                to[u] = to[u - 1];
            else if (stored)
                to[u] = (float)plan->param[p].stored_as->value(stored[at]);
            else
                to[u] = (float)param_value(plan, p, at);
        }
    }
}

/* Square, without bias: the map in front has one already. */
rv_map rv_neuron_map(const rv_version *version, const rv_layer *layer) {
    return rv_layer_map(version, layer, layer->n, layer->n, RECURRENT, -1);
}

/* Constants are spread once, trained parameters after every update, when no op reads them. */
rv_status rv_neuron_derive(rv_version *version, const rv_layer *layer, int rows) {
    rv_status status = RV_OK;
    struct rv_derived *derived = &version->derived[layer->index];
    bool stored = false;
    for (int p = 0; p < RV_P_COUNT; p++)
        stored = stored || layer->tensor[p] >= 0;
    if (stored || !derived->params) {
        size_t count = (size_t)RV_P_COUNT * (size_t)layer->ld;
        const rv_device *device = version->device;
        if (!derived->params)
            TRY(device->ops->alloc(device->ctx, count * sizeof(float), "neuron parameters",
                                   (void **)&derived->params));
        TRY(device->ops->queue_sync(device->ctx, NULL));
        fill_params(version, layer, derived->params);
    }
    if (layer->recurrent) {
        rv_map map = rv_neuron_map(version, layer);
        TRY(rv_version_pack(version, layer, &map, rows));
    }
out:
    return status;
}

/* By simulation of one unit without spikes: the closed form has no use for alpha = beta. */
double rv_neuron_response(const rv_layer *neuron, int steps, double *threshold) {
    const neuron_plan *plan = neuron->plan;
    double beta = param_value(plan, RV_P_BETA, 0), alpha = param_value(plan, RV_P_ALPHA, 0);
    double gain = plan->neuron.gain_tied ? 1 - beta : param_value(plan, RV_P_GAIN, 0);
    double current = 1, membrane = 0, sum = 0;
    for (int t = 0; t < steps; t++, current *= alpha) {
        membrane = beta * membrane + gain * current;
        sum += membrane * membrane;
    }
    *threshold = param_value(plan, RV_P_THETA, 0);
    return sum;
}

/* Called for versions that were never derived, too. */
void rv_neuron_discard(rv_version *version, const rv_layer *layer) {
    rv_version_unpack(version, layer);
    version->device->ops->free(version->device->ctx, version->derived[layer->index].params);
}

/* ---- gradients ---- */
/* Per-unit sums of the whole micro-batch become the gradient of what is stored. Blocks of 256 in
 * index order, so that the bits do not depend on chunks. */
void rv_neuron_gradients(const rv_pass *pass, const rv_layer *layer) {
    const neuron_plan *plan = layer->plan;
    const float *sums = rv_state_slot(pass->adjoint, layer, STATE_GRAD);
    for (int p = 0; p < RV_P_COUNT; p++) {
        if (plan->param[p].grad < 0) continue;
        const float *sum = sums + (size_t)plan->param[p].grad * (size_t)layer->ld;
        const float *stored = rv_version_tensor(pass->version, layer, p);
        float *gradient = rv_pass_gradient(pass, layer, p);
        const storage *as = plan->param[p].stored_as;
        /* One value per unit: nothing to add up. */
        if (pass->net->tensors[layer->tensor[p]].dim[0] > 1) {
            for (int u = 0; u < layer->n; u++)
                gradient[u] += (float)(as->slope(stored[u]) * sum[u]);
            continue;
        }
        double total = 0;
        for (int u = 0; u < layer->n; u += 256) {
            double part = 0;
            for (int k = u; k < layer->n && k < u + 256; k++)
                part += sum[k];
            total += part;
        }
        gradient[0] += (float)(as->slope(stored[0]) * total);
    }
}

/* ---- description ------------------------------------------------------------------------- */
/* Only what changes what a spike does; constants are in the configuration. */
static void describe(const rv_layer *layer, char *buffer, size_t size) {
    static const char *const resets[] = {"subtract", "zero", "value", "no reset"};
    const rv_neuron_options *options = layer->desc->options;
    const rv_neuron *neuron = &((const neuron_plan *)layer->plan)->neuron;
    char gain[32] = "1 - beta";
    if (!neuron->gain_tied && options->gain.count <= 1)
        snprintf(gain, sizeof gain, "%g", param_value(layer->plan, RV_P_GAIN, 0));
    if (!neuron->gain_tied && options->gain.count > 1) snprintf(gain, sizeof gain, "gain");
    if (!layer->spikes) {
        snprintf(buffer, size, "no spikes, input x%s", gain);
        return;
    }
    snprintf(buffer, size, "%s, %s step, %s, input x%s, reset %s", resets[neuron->reset],
             neuron->reset_over_beta ? "next" : "same", neuron->strict ? ">" : ">=", gain,
             neuron->detach_reset ? "detached" : "differentiated");
}

/* One phrase when all layers agree, else each that differs from the one before is named. */
void rv_net_describe(const rv_net *net, char *buffer, size_t size) {
    char last[128] = "", here[128];
    size_t used = (size_t)snprintf(buffer, size, "neurons:");
    for (int l = 0; l < net->layer_count && used < size; l++) {
        const rv_layer *layer = &net->layers[l];
        if (layer->kind != &rv_kind_neuron) continue;
        describe(layer, here, sizeof here);
        if (strcmp(here, last) == 0) continue;
        used += (size_t)snprintf(buffer + used, size - used,
                                 last[0] ? "; from %s on: %s" : "%.0s %s", layer->desc->name, here);
        snprintf(last, sizeof last, "%s", here);
    }
    if (!last[0] && used < size) snprintf(buffer + used, size - used, " none");
}
