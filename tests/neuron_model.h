/*
 * A neuron layer of one sample in double, straight from kernels/neuron.h: the yardstick of the
 * adjoint's finite differences and of the device's ops. The spike is hard, or smooth: the
 * numerical integral of the surrogate, with detached spikes held at what was recorded.
 */
#ifndef RV_TESTS_NEURON_MODEL_H
#define RV_TESTS_NEURON_MODEL_H

#define RV_REAL_DOUBLE
#define RV_SPIKE(strict, h, theta) model_spike(strict, h, theta)
#define RV_DETACHED(s) model_detached(s)
#include <stdbool.h>
static double model_spike(bool strict, double h, double theta);
static double model_detached(double s);

#include "kernels/neuron.h"
#include "kernels/surrogate.h"
#include "tests/ops.h"

/* ---- the smooth spike -------------------------------------------------------------------- */
enum { PANELS = 32, REACH = 40, JUMPS = 8 }; /* panels per unit of u; |u| < REACH */
typedef struct smooth {
    int kind;
    double p[RV_SURROGATE_PARAMS];
    double sum[2 * REACH * PANELS + 1]; /* integral from 0 to each panel's border */
    double jump[JUMPS];                 /* where the surrogate is not continuous, or bends */
    int jumps;
} smooth;

/* Gauss and Legendre's rule, eight points. */
static double smooth_panel(const smooth *f, double from, double to) {
    static const double x[] = {0.1834346424956498, 0.5255324099163290, 0.7966664774136267,
                               0.9602898564975363};
    static const double w[] = {0.3626837833783620, 0.3137066458778873, 0.2223810344533745,
                               0.1012285362903763};
    double middle = (from + to) / 2, half = (to - from) / 2, sum = 0;
    for (int k = 0; k < 4; k++)
        sum += w[k] * (rv_surrogate_slope(f->kind, middle - half * x[k], f->p) +
                       rv_surrogate_slope(f->kind, middle + half * x[k], f->p));
    return sum * half;
}

/* Integral over part of one panel, cut at the jumps. */
static double smooth_part(const smooth *f, double from, double to) {
    double sum = 0, at = from;
    for (int k = 0; k < f->jumps; k++)
        if (f->jump[k] > at && f->jump[k] < to) {
            sum += smooth_panel(f, at, f->jump[k]);
            at = f->jump[k];
        }
    return sum + smooth_panel(f, at, to);
}

static inline void smooth_init(smooth *f, int kind) {
    const rv_row *row = rv_table_row(rv_surrogate_table(), kind);
    rv_surrogate_options options = {{0}};
    *f = (smooth){.kind = kind};
    rv_specs_default(row->specs, &options);
    for (int k = 0; k < RV_SURROGATE_PARAMS; k++)
        f->p[k] = options.p[k] < 8 ? options.p[k] : 8; /* steeper needs smaller differences */
    const double fine = 1e-3;
    for (double u = -4; u < 4; u += fine) {
        double low = u, high = u + fine;
        double step = rv_surrogate_slope(kind, high, f->p) - rv_surrogate_slope(kind, low, f->p);
        if (fabs(step) < 0.07 || f->jumps == JUMPS) continue;
        for (int k = 0; k < 60; k++) {
            double middle = (low + high) / 2;
            double left = rv_surrogate_slope(kind, low, f->p);
            bool above = fabs(rv_surrogate_slope(kind, middle, f->p) - left) > fabs(step) / 2;
            *(above ? &high : &low) = middle;
        }
        f->jump[f->jumps++] = high;
    }
    const int zero = REACH * PANELS;
    for (int k = 0; k < zero; k++) {
        double a = (double)k / PANELS, b = (double)(k + 1) / PANELS;
        f->sum[zero + k + 1] = f->sum[zero + k] + smooth_part(f, a, b);
        f->sum[zero - k - 1] = f->sum[zero - k] - smooth_part(f, -b, -a);
    }
}

/* ---- hooks of neuron.h ------------------------------------------------------------------- */
static struct model_hook {
    const smooth *smooth; /* NULL: hard */
    double nearest;       /* distance of any h to its threshold, of any u to a jump */
    bool outside;         /* some u was beyond the integral's reach */
    double *held;         /* detached spikes */
    int next;
    bool replay;
} model_hook;

static double model_spike(bool strict, double h, double theta) {
    const smooth *f = model_hook.smooth;
    double u = h - theta;
    if (fabs(u) < model_hook.nearest) model_hook.nearest = fabs(u);
    if (!f) return strict ? h > theta : h >= theta;
    for (int k = 0; k < f->jumps; k++)
        if (fabs(u - f->jump[k]) < model_hook.nearest) model_hook.nearest = fabs(u - f->jump[k]);
    if (!(fabs(u) < REACH - 1)) {
        model_hook.outside = true;
        return 0;
    }
    double border = floor(u * PANELS);
    return 0.5 + f->sum[(int)border + REACH * PANELS] + smooth_part(f, border / PANELS, u);
}

static double model_detached(double s) {
    if (!model_hook.held) return s;
    if (!model_hook.replay) model_hook.held[model_hook.next] = s;
    return model_hook.held[model_hook.next++];
}

/* ---- a layer ------------------------------------------------------------------------------ */
typedef void (*model_step)(const rv_neuron *, const rv_unit *, rv_real, rv_cell *);
typedef rv_real (*model_adjoint)(const rv_neuron *, const rv_unit *, const rv_trace *, rv_carry *,
                                 rv_unit *);
static const struct model_kind {
    model_step step;
    model_adjoint adjoint;
    unsigned traits, params;
} model_kinds[] = {
#define MODEL_KIND(name, traits, parameters, sentence, source)                                     \
    {rv_##name##_step, rv_##name##_adjoint, traits, parameters},
    RV_NEURON_LIST(MODEL_KIND)
#undef MODEL_KIND
};

enum { MODEL_T = 8, MODEL_N = 130 };
typedef struct model {
    rv_neuron neuron;
    int T, n;
    rv_unit unit[MODEL_N];
    double x[MODEL_T][MODEL_N];
    rv_cell first[MODEL_N]; /* v, i, a, s before step 0 */
    double *weight, *bias;  /* recurrent [from][n] and [n], or NULL */
    bool starts[MODEL_T];   /* the sample restarts before this step */
    double gs[MODEL_T][MODEL_N], gv[MODEL_T][MODEL_N], gh[MODEL_T][MODEL_N];
} model;

typedef struct model_run {
    rv_cell cell[MODEL_T + 1][MODEL_N]; /* after step t-1 */
    rv_cell before[MODEL_T][MODEL_N];   /* as step t found it */
    double gx[MODEL_T][MODEL_N];
    rv_unit grad[MODEL_N];
    double g_first_v[MODEL_N], g_first_i[MODEL_N];
    double loss;
} model_run;

static double *model_param(rv_unit *unit, int p) {
    return (double *)unit + p;
}

/* Loss = sum of gs*s + gv*v + gh*h. */
static double model_forward(const model *m, model_run *r) {
    const struct model_kind *kind = &model_kinds[m->neuron.kind];
    model_hook.next = 0;
    r->loss = 0;
    memcpy(r->cell[0], m->first, sizeof r->cell[0]);
    for (int t = 0; t < m->T; t++) {
        for (int u = 0; u < m->n; u++) {
            rv_cell c = r->cell[t][u];
            double x = m->x[t][u];
            if (m->starts[t]) c = (rv_cell){0};
            r->before[t][u] = c;
            if (m->weight) {
                x += m->bias ? m->bias[u] : 0;
                for (int from = 0; from < m->n && !m->starts[t]; from++)
                    x += r->cell[t][from].s * m->weight[from * m->n + u];
            }
            kind->step(&m->neuron, &m->unit[u], x, &c);
            r->cell[t + 1][u] = c;
            r->loss += m->gs[t][u] * c.s + m->gv[t][u] * c.v + m->gh[t][u] * c.h;
        }
    }
    return r->loss;
}

static void model_backward(const model *m, model_run *r) {
    const struct model_kind *kind = &model_kinds[m->neuron.kind];
    rv_carry carry[MODEL_N] = {{0}};
    double slope_p[RV_SURROGATE_PARAMS];
    for (int k = 0; k < RV_SURROGATE_PARAMS; k++)
        slope_p[k] = model_hook.smooth ? model_hook.smooth->p[k] : (double)m->neuron.surrogate.p[k];
    memset(r->grad, 0, sizeof r->grad);
    for (int t = m->T - 1; t >= 0; t--)
        for (int u = 0; u < m->n; u++) {
            const rv_cell *c = &r->cell[t + 1][u], *b = &r->before[t][u];
            rv_unit g;
            rv_trace trace = {.h = c->h,
                              .s = c->s,
                              .i = c->i,
                              .a = c->a,
                              .v_last = b->v,
                              .i_last = b->i,
                              .a_last = b->a,
                              .gs = m->gs[t][u],
                              .gv = m->gv[t][u],
                              .gh = m->gh[t][u]};
            trace.slope =
                rv_surrogate_slope(m->neuron.surrogate.kind,
                                   c->h - rv_threshold(kind->traits, &m->unit[u], c->a), slope_p);
            bool next = m->weight && t + 1 < m->T && !m->starts[t + 1];
            for (int to = 0; next && to < m->n; to++)
                trace.gs += m->weight[u * m->n + to] * r->gx[t + 1][to];
            r->gx[t][u] = kind->adjoint(&m->neuron, &m->unit[u], &trace, &carry[u], &g);
            for (int p = 0; p < RV_P_COUNT; p++)
                *model_param(&r->grad[u], p) += *model_param(&g, p);
            if (m->starts[t]) carry[u] = (rv_carry){0};
            r->g_first_v[u] = carry[u].v;
            r->g_first_i[u] = carry[u].i;
        }
}

static double model_random(uint32_t *state, double low, double high) {
    return low + (high - low) * (double)test_random(state) * 0x1p-24;
}

static void model_fill(model *m, uint32_t *state) {
    for (int u = 0; u < m->n; u++) {
        m->unit[u] = (rv_unit){.alpha = model_random(state, 0.3, 0.9),
                               .beta = model_random(state, 0.5, 0.95),
                               .gain = model_random(state, 0.5, 1.5),
                               .v_leak = model_random(state, -0.2, 0.2),
                               .threshold = model_random(state, 0.6, 1.2),
                               .v_reset = model_random(state, -0.3, 0.3),
                               .rho = model_random(state, 0.3, 0.9),
                               .kappa = model_random(state, 0.05, 0.4)};
        m->first[u] = (rv_cell){.v = model_random(state, -0.5, 0.9)};
        if (model_kinds[m->neuron.kind].traits & RV_HAS_CURRENT)
            m->first[u].i = model_random(state, -0.2, 0.5);
        if (model_kinds[m->neuron.kind].traits & RV_HAS_ADAPTATION)
            m->first[u].a = model_random(state, 0, 0.5);
        for (int t = 0; t < m->T; t++) {
            m->x[t][u] = model_random(state, -0.5, 1.2);
            m->gs[t][u] = model_random(state, -1, 1);
            m->gv[t][u] = model_random(state, -1, 1);
            m->gh[t][u] = model_random(state, -1, 1);
        }
    }
}

#endif
