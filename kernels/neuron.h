/*
 * Neurons: one step forward and its adjoint, for one unit, inline over rv_real (real.h), compiled
 * by gcc for the CPU, by nvcc for the GPU and in double by the tests.
 *
 *   i[t] = alpha*i[t-1] + x[t]                          (kinds without current: i = x)
 *   a[t] = rho*a[t-1] + s[t-1],  theta[t] = theta + kappa*a[t]      (adaptive kinds; else theta)
 *   h[t] = beta*v[t-1] + gain*i[t] + (1-beta)*v_leak    (gain_tied: gain = 1 - beta)
 *   s[t] = H(h[t] - theta[t])                           (>=, or > when strict)
 *   v[t] = h - r*s  (subtract; r = theta[t], or theta[t]/beta when reset_over_beta)
 *        = (1-s)*h + s*v_reset  (value; zero: v_reset = 0)  = h  (none)
 *
 * Adjoint, t descending (g is the adjoint of ..., u = h - theta, slope = surrogate(u)):
 *   gv[t]  = beta*gh[t+1] + what reads v[t];   gs = what reads s[t] + ga[t+1] (not if detached)
 *   gs    += gv * dv/ds                                 (not if the reset is detached)
 *   gh     = gs*slope + gv*dv/dh + what reads h[t]
 *   gtheta = -gs*slope - s*gv*dr/dtheta;   ga = kappa*gtheta + rho*ga[t+1]
 *   gi     = gain*gh + alpha*gi[t+1];   gx = gi
 *
 * To add a kind: two inline functions and a row in RV_NEURON_LIST. A row names the kind, its
 * traits (what state it has), the parameters it has, and says what it is and where it comes from.
 */
#ifndef RV_NEURON_H
#define RV_NEURON_H

#include "kernels/kernels.h"
#include "kernels/real.h"

/* Traits: which state and output a kind has. */
enum {
    RV_HAS_CURRENT = 1,    /* plane i */
    RV_HAS_ADAPTATION = 2, /* plane a; needs the last spike */
    RV_HAS_SPIKES = 4,
};

/* Parameters as the bits of `rv_neuron.learn` and of a row. */
#define RV_BIT(p) (1u << RV_P_##p)
#define RV_LEAKY (RV_BIT(BETA) | RV_BIT(GAIN) | RV_BIT(LEAK))
#define RV_FIRES (RV_BIT(THETA) | RV_BIT(RESET))

#define RV_NEURON_LIST(X)                                                                          \
    X(if, RV_HAS_SPIKES, RV_BIT(GAIN) | RV_FIRES,                                                  \
      "integrate and fire: the membrane does not leak", "Lapicque 1907")                           \
    X(lif, RV_HAS_SPIKES, RV_LEAKY | RV_FIRES, "leaky integrate and fire", "Stein 1965")           \
    X(plif, RV_HAS_SPIKES, RV_LEAKY | RV_FIRES,                                                    \
      "leaky integrate and fire, decay learned as beta = 1 - sigmoid(w)", "Fang et al. 2021")      \
    X(cuba, RV_HAS_SPIKES | RV_HAS_CURRENT, RV_BIT(ALPHA) | RV_LEAKY | RV_FIRES,                   \
      "leaky integrate and fire with a synaptic current", "Gerstner, Kistler 2002")                \
    X(alif, RV_HAS_SPIKES | RV_HAS_ADAPTATION, RV_LEAKY | RV_FIRES | RV_BIT(RHO) | RV_BIT(KAPPA),  \
      "leaky integrate and fire whose threshold rises with its own spikes", "Bellec et al. 2018")  \
    X(li, 0, RV_LEAKY, "leaky integrator without spikes, a readout", "Bellec et al. 2018")         \
    X(cuba_li, RV_HAS_CURRENT, RV_BIT(ALPHA) | RV_LEAKY,                                           \
      "leaky integrator of a synaptic current, without spikes", "NIR CubaLI")

#define RV_NEURON_ENUM(name, traits, parameters, sentence, source) RV_NEURON_##name,
enum { RV_NEURON_LIST(RV_NEURON_ENUM) RV_NEURONS };
#undef RV_NEURON_ENUM

/* Parameters of one unit, in the order of RV_NEURON_PARAM_LIST. */
typedef struct rv_unit {
    rv_real alpha, beta, gain, v_leak, threshold, v_reset, rho, kappa;
} rv_unit;

/* One unit in time. A step reads v, i, a, s of t-1 and leaves those of t, and h. */
typedef struct rv_cell {
    rv_real v, i, a, s, h;
} rv_cell;

/* What the adjoint of step t reads, and the adjoints of what others read of v[t], h[t], s[t]. */
typedef struct rv_trace {
    rv_real h, s, i, a;             /* of t; i is read only for learned parameters */
    rv_real v_last, i_last, a_last; /* of t-1, likewise */
    rv_real slope, gs, gv, gh;
} rv_trace;

/* What the adjoint carries from t to t-1: v = beta*gh[t], i = alpha*gi[t], a = ga[t]. */
typedef struct rv_carry {
    rv_real v, i, a;
} rv_carry;

/* Tests replace the hard spike by a smooth one and hold detached spikes at what was recorded. */
#ifndef RV_SPIKE
#define RV_SPIKE(strict, h, theta) (((strict) ? (h) > (theta) : (h) >= (theta)) ? 1 : 0)
#define RV_DETACHED(s) (s)
#endif

/* ---- shared by the kinds ----------------------------------------------------------------- */
static RV_HD rv_real rv_threshold(unsigned traits, const rv_unit *p, rv_real a) {
    return traits & RV_HAS_ADAPTATION ? rv_fma(p->kappa, a, p->threshold) : p->threshold;
}

static RV_HD rv_real rv_subtracted(const rv_neuron *n, const rv_unit *p, rv_real theta) {
    return n->reset_over_beta ? theta / p->beta : theta;
}

static RV_HD rv_real rv_reset_value(const rv_neuron *n, const rv_unit *p) {
    return n->reset == RV_RESET_VALUE ? p->v_reset : (rv_real)0;
}

/* v after the reset of a spike s */
static RV_HD rv_real rv_membrane(const rv_neuron *n, const rv_unit *p, rv_real h, rv_real theta,
                                 rv_real s) {
    if (n->reset == RV_RESET_NONE) return h;
    if (n->reset == RV_RESET_SUBTRACT) return rv_fma(-rv_subtracted(n, p, theta), s, h);
    return rv_fma(s, rv_reset_value(n, p), (1 - s) * h);
}

static RV_HD void rv_step_any(const rv_neuron *n, unsigned traits, const rv_unit *p, rv_real x,
                              rv_cell *c) {
    rv_real gain = n->gain_tied ? 1 - p->beta : p->gain, theta;
    c->i = traits & RV_HAS_CURRENT ? rv_fma(p->alpha, c->i, x) : x;
    if (traits & RV_HAS_ADAPTATION) {
        rv_real s = n->detach_adaptation ? RV_DETACHED(c->s) : c->s;
        c->a = rv_fma(p->rho, c->a, s);
    }
    theta = rv_threshold(traits, p, c->a);
    c->h = rv_fma(p->beta, c->v, rv_fma(gain, c->i, (1 - p->beta) * p->v_leak));
    if (traits & RV_HAS_SPIKES) {
        c->s = (rv_real)RV_SPIKE(n->strict, c->h, theta);
        c->v = rv_membrane(n, p, c->h, theta, n->detach_reset ? RV_DETACHED(c->s) : c->s);
    } else {
        c->v = c->h;
    }
}

/* Returns gx[t]; g receives this step's part of each parameter's gradient. */
static RV_HD rv_real rv_adjoint_any(const rv_neuron *n, unsigned traits, const rv_unit *p,
                                    const rv_trace *r, rv_carry *c, rv_unit *g) {
    rv_real gain = n->gain_tied ? 1 - p->beta : p->gain;
    rv_real gv = c->v + r->gv, gh, gi, gtheta = 0, gbeta = 0;
    g->v_reset = 0;
    if (traits & RV_HAS_SPIKES) {
        rv_real theta = rv_threshold(traits, p, r->a), s = r->s, gs = r->gs, spike;
        if (traits & RV_HAS_ADAPTATION && !n->detach_adaptation) gs += c->a;
        if (n->reset == RV_RESET_SUBTRACT) {
            rv_real subtracted = rv_subtracted(n, p, theta), fired = s * gv;
            if (!n->detach_reset) gs = rv_fma(-subtracted, gv, gs);
            spike = gs * r->slope;
            gh = spike + gv + r->gh;
            gtheta = -spike - (n->reset_over_beta ? fired / p->beta : fired);
            if (n->reset_over_beta) gbeta = fired * subtracted / p->beta;
        } else {
            bool passes = n->reset == RV_RESET_NONE;
            rv_real value = rv_reset_value(n, p);
            if (!passes && !n->detach_reset) gs = rv_fma(value - r->h, gv, gs);
            spike = gs * r->slope;
            gh = spike + (passes ? gv : (1 - s) * gv) + r->gh;
            gtheta = -spike;
            if (n->reset == RV_RESET_VALUE) g->v_reset = s * gv;
        }
    } else {
        gh = gv + r->gh;
    }
    gi = traits & RV_HAS_CURRENT ? rv_fma(gain, gh, c->i) : gain * gh;
    g->threshold = gtheta;
    g->beta = rv_fma(gh, r->v_last - p->v_leak - (n->gain_tied ? r->i : 0), gbeta);
    g->v_leak = (1 - p->beta) * gh;
    g->gain = gh * r->i;
    g->alpha = g->rho = g->kappa = 0;
    if (traits & RV_HAS_CURRENT) {
        g->alpha = gi * r->i_last;
        c->i = p->alpha * gi;
    }
    if (traits & RV_HAS_ADAPTATION) {
        c->a = rv_fma(p->kappa, gtheta, p->rho * c->a);
        g->kappa = gtheta * r->a;
        g->rho = c->a * r->a_last;
    }
    c->v = p->beta * gh;
    return gi;
}

/* ---- the kinds --------------------------------------------------------------------------- */
/* Most kinds are the equations above with some state left out: the traits say which. */
#define RV_NEURON_PLAIN(name, traits)                                                              \
    static RV_HD void rv_##name##_step(const rv_neuron *n, const rv_unit *p, rv_real x,            \
                                       rv_cell *c) {                                               \
        rv_step_any(n, traits, p, x, c);                                                           \
    }                                                                                              \
    static RV_HD rv_real rv_##name##_adjoint(const rv_neuron *n, const rv_unit *p,                 \
                                             const rv_trace *r, rv_carry *c, rv_unit *g) {         \
        return rv_adjoint_any(n, traits, p, r, c, g);                                              \
    }
RV_NEURON_PLAIN(lif, RV_HAS_SPIKES)
RV_NEURON_PLAIN(plif, RV_HAS_SPIKES)
RV_NEURON_PLAIN(cuba, RV_HAS_SPIKES | RV_HAS_CURRENT)
RV_NEURON_PLAIN(alif, RV_HAS_SPIKES | RV_HAS_ADAPTATION)
RV_NEURON_PLAIN(li, 0)
RV_NEURON_PLAIN(cuba_li, RV_HAS_CURRENT)

/* The membrane keeps all: beta is 1 whatever its array holds, and no gain can be tied to it. */
static RV_HD void rv_if_step(const rv_neuron *n, const rv_unit *p, rv_real x, rv_cell *c) {
    rv_neuron free = *n;
    rv_unit whole = *p;
    free.gain_tied = false;
    whole.beta = 1;
    rv_step_any(&free, RV_HAS_SPIKES, &whole, x, c);
}
static RV_HD rv_real rv_if_adjoint(const rv_neuron *n, const rv_unit *p, const rv_trace *r,
                                   rv_carry *c, rv_unit *g) {
    rv_neuron free = *n;
    rv_unit whole = *p;
    free.gain_tied = false;
    whole.beta = 1;
    return rv_adjoint_any(&free, RV_HAS_SPIKES, &whole, r, c, g);
}

static RV_HD unsigned rv_neuron_traits(int kind) {
    switch (kind) {
#define RV_NEURON_CASE(name, traits, parameters, sentence, source)                                 \
    case RV_NEURON_##name:                                                                         \
        return traits;
        RV_NEURON_LIST(RV_NEURON_CASE)
#undef RV_NEURON_CASE
    }
    return 0;
}

/* The parameters a kind has, as bits. */
static RV_HD unsigned rv_neuron_parameters(int kind) {
    switch (kind) {
#define RV_NEURON_CASE(name, traits, parameters, sentence, source)                                 \
    case RV_NEURON_##name:                                                                         \
        return parameters;
        RV_NEURON_LIST(RV_NEURON_CASE)
#undef RV_NEURON_CASE
    }
    return 0;
}

#endif
