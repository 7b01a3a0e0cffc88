/* The tables of surrogates and neurons for configuration and `list`; their arithmetic in double. */
#define RV_REAL_DOUBLE
#include "kernels/neuron.h"
#include "kernels/surrogate.h"

/* ---- surrogates --------------------------------------------------------------------------- */
/* RV_P and RV_P_ABOVE of the list become rv_specs; the closed form in the row's sentence says what
 * each parameter does. */
#define RV_P_SPEC(index, name, initial, least, most, open)                                         \
    {name, RV_T_REAL, offsetof(rv_surrogate_options, p[index]),  initial, least, most, open,       \
     NULL, NULL,      "parameter of the surrogate's closed form"},
#define RV_P(index, name, initial, least, most) RV_P_SPEC(index, name, initial, least, most, false)
#define RV_P_ABOVE(index, name, initial, least, most)                                              \
    RV_P_SPEC(index, name, initial, least, most, true)
#define RV_P_NONE

/* First every row's parameters, then the rows that point at them. */
#define SURROGATE_SPECS(name, form, source, parameters)                                            \
    static const rv_spec surrogate_specs_##name[] = {parameters{0}};
RV_SURROGATE_LIST(SURROGATE_SPECS)

#define SURROGATE_ROW(name, form, source, parameters)                                              \
    {#name, form, source, surrogate_specs_##name, sizeof(rv_surrogate_options)},
static const rv_row surrogate_rows[] = {RV_SURROGATE_LIST(SURROGATE_ROW)};

const rv_table rv_surrogates = {"surrogates", surrogate_rows, sizeof surrogate_rows[0],
                                RV_SURROGATES};

const rv_table *rv_surrogate_table(void) {
    return &rv_surrogates;
}

/* In double, from the same inline functions the kernels run in float. */
double rv_surrogate_value(const rv_surrogate *surrogate, double u) {
    double p[RV_SURROGATE_PARAMS];
    for (int i = 0; i < RV_SURROGATE_PARAMS; i++)
        p[i] = (double)surrogate->p[i];
    return rv_surrogate_slope(surrogate->kind, u, p);
}

/* ---- neurons ------------------------------------------------------------------------------ */
/* rv_neuron_options serves all kinds; a kind lists the members it has. */
#define AT(member) offsetof(rv_neuron_options, member)
/* One number, or one for every unit. */
#define REALS(name, initial, least, most, open, sentence)                                          \
    {#name, RV_T_REALS, AT(name), initial, least, most, open, NULL, NULL, sentence},

/* Options by what a kind has; a kind's list is put together from these. */
/* A time constant, when given, goes before the decay; how it becomes one is `decay`. */
#define SPECS_CURRENT                                                                              \
    REALS(alpha, 0.9, 0, 1, false, "decay of the synaptic current per step")                       \
    REALS(tau_syn, NAN, 0, 1e9, true, "time constant of the synaptic current, instead of alpha")
#define SPECS_LEAK                                                                                 \
    REALS(beta, 0.95, 0, 1, false, "decay of the membrane per step")                               \
    REALS(tau, NAN, 0, 1e9, true, "time constant of the membrane in steps, instead of beta")       \
    REALS(v_leak, 0, -1e9, 1e9, false, "resting membrane"){                                        \
        "decay",   RV_T_CHOICE,                                                                    \
        AT(decay), 0,                                                                              \
        0,         0,                                                                              \
        false,     "euler|exp|shift",                                                              \
        NULL,      "what tau means: decay 1-1/tau, exp(-1/tau) or 1-2^-tau"},                      \
        {"input",   RV_T_CHOICE,                                                                   \
         AT(input), 0,                                                                             \
         0,         0,                                                                             \
         false,     "gain|one_minus_beta",                                                         \
         NULL,      "factor of the current: the gain, or 1 - beta"},
#define SPECS_GAIN REALS(gain, 1, -1e9, 1e9, false, "factor of the current")
/* Threshold, reset and surrogate of every kind that spikes. */
#define SPECS_SPIKES                                                                                \
    REALS(threshold, 1, 0, 1e9, true, "threshold of the membrane")                                  \
    REALS(v_reset, 0, -1e9, 1e9, false, "membrane after a spike (reset: value)"){                   \
        "reset", RV_T_CHOICE, AT(reset),      0,    0,                                              \
        0,       false,       RV_RESET_NAMES, NULL, "what a spike does to the membrane"},           \
        {"compare",   RV_T_CHOICE,                                                                  \
         AT(compare), 0,                                                                            \
         0,           0,                                                                            \
         false,       "ge|gt",                                                                      \
         NULL,        "spike where the membrane is at or above (ge), or above (gt) the threshold"}, \
        {"reset_delay",                                                                             \
         RV_T_CHOICE,                                                                               \
         AT(reset_delay),                                                                           \
         0,                                                                                         \
         0,                                                                                         \
         0,                                                                                         \
         false,                                                                                     \
         "same|next",                                                                               \
         NULL,                                                                                      \
         "subtract in the same step, or one step later and undecayed (theta/beta)"},                \
        {"detach_reset",                                                                            \
         RV_T_BOOL,                                                                                 \
         AT(detach_reset),                                                                          \
         1,                                                                                         \
         0,                                                                                         \
         0,                                                                                         \
         false,                                                                                     \
         NULL,                                                                                      \
         NULL,                                                                                      \
         "no gradient through the spike in the reset"},                                             \
        {"recurrent",                                                                               \
         RV_T_BOOL,                                                                                 \
         AT(recurrent),                                                                             \
         0,                                                                                         \
         0,                                                                                         \
         0,                                                                                         \
         false,                                                                                     \
         NULL,                                                                                      \
         NULL,                                                                                      \
         "spikes feed back into the layer one step later through recurrent_weight"},                \
        {"surrogate",                                                                               \
         RV_T_ROW,                                                                                  \
         AT(surrogate),                                                                             \
         0,                                                                                         \
         0,                                                                                         \
         0,                                                                                         \
         false,                                                                                     \
         "atan",                                                                                    \
         &rv_surrogates,                                                                            \
         "derivative of the spike in the backward pass"},
#define SPECS_ADAPTATION                                                                           \
    REALS(rho, 0.97, 0, 1, false, "decay of the adaptation per step")                              \
    REALS(kappa, 0.05, 0, 1e9, false, "rise of the threshold per unit of adaptation"){             \
        "detach_adaptation",                                                                       \
        RV_T_BOOL,                                                                                 \
        AT(detach_adaptation),                                                                     \
        0,                                                                                         \
        0,                                                                                         \
        0,                                                                                         \
        false,                                                                                     \
        NULL,                                                                                      \
        NULL,                                                                                      \
        "no gradient through the spike in the adaptation"},
/* Ends a list. plif is lif with another default here: its decay is stored as w and learns. */
#define SPECS_LEARN(names)                                                                         \
    {"learn", RV_T_TEXT, AT(learn), 0,    0,                                                       \
     0,       false,     names,     NULL, "learnable parameters, separated by spaces"},            \
    {                                                                                              \
        0                                                                                          \
    }

/* One list per row of RV_NEURON_LIST, found by its name. */
static const rv_spec if_specs[] = {SPECS_GAIN SPECS_SPIKES SPECS_LEARN(NULL)};
static const rv_spec lif_specs[] = {SPECS_LEAK SPECS_GAIN SPECS_SPIKES SPECS_LEARN(NULL)};
static const rv_spec plif_specs[] = {SPECS_LEAK SPECS_GAIN SPECS_SPIKES SPECS_LEARN("w")};
static const rv_spec cuba_specs[] = {
    SPECS_CURRENT SPECS_LEAK SPECS_GAIN SPECS_SPIKES SPECS_LEARN(NULL)};
static const rv_spec alif_specs[] = {
    SPECS_LEAK SPECS_GAIN SPECS_SPIKES SPECS_ADAPTATION SPECS_LEARN(NULL)};
static const rv_spec li_specs[] = {SPECS_LEAK SPECS_GAIN SPECS_LEARN(NULL)};
static const rv_spec cuba_li_specs[] = {SPECS_CURRENT SPECS_LEAK SPECS_GAIN SPECS_LEARN(NULL)};

/* All kinds have one option struct, so a layer reads any of them the same way. */
#define NEURON_ROW(name, traits, parameters, sentence, source)                                     \
    {#name, sentence, source, name##_specs, sizeof(rv_neuron_options)},
static const rv_row neuron_rows[] = {RV_NEURON_LIST(NEURON_ROW)};

const rv_table *rv_neuron_table(void) {
    static const rv_table table = {"neurons", neuron_rows, sizeof neuron_rows[0], RV_NEURONS};
    return &table;
}

/* Integrators have no spikes; their output is the membrane. */
bool rv_neuron_spikes(const rv_neuron *neuron) {
    return rv_neuron_traits(neuron->kind) & RV_HAS_SPIKES;
}

/* h is always kept. i is read only for the gradients of alpha, of the gain, and of a beta the gain
 * is tied to; the threshold of step t needs a. */
unsigned rv_neuron_keeps(const rv_neuron *neuron) {
    unsigned keeps = 0, reads = RV_BIT(ALPHA);
    reads |= neuron->gain_tied ? RV_BIT(BETA) : RV_BIT(GAIN);
    if (neuron->learn & reads) keeps |= RV_KEEP_I;
    if (rv_neuron_traits(neuron->kind) & RV_HAS_ADAPTATION) keeps |= RV_KEEP_A;
    return keeps;
}
