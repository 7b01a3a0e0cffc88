/*
 * Neurons. A thread is one unit of one sample and runs all steps of the chunk with its state in
 * registers; the spikes of 32 neighbours become one word by ballot. The equations are those of
 * neuron.h, so the bits are those of the CPU.
 *
 * Launches: blocks of 128 threads; x over the units of a row, y over the samples. Rows are read and
 * written by neighbours side by side, once a step: the kernels are bound by memory, and a step
 * waits for nothing but its own row. Where parameters learn, the sums over samples want one order,
 * and a thread takes a unit of all samples in turn.
 */
#include "kernels/cuda_device.cuh"
#include "kernels/neuron.h"
#include "kernels/surrogate.h"

/* Parameters of a unit; what is not given leaves the equations unchanged. */
static __device__ inline float param_at(const float *array, int u, float neutral) {
    return array ? array[u] : neutral;
}
static __device__ inline rv_unit unit_at(const float *const param[RV_P_COUNT], int u) {
    const rv_unit unit = {param_at(param[RV_P_ALPHA], u, 0), param_at(param[RV_P_BETA], u, 1),
                          param_at(param[RV_P_GAIN], u, 1),  param_at(param[RV_P_LEAK], u, 0),
                          param_at(param[RV_P_THETA], u, 1), param_at(param[RV_P_RESET], u, 0),
                          param_at(param[RV_P_RHO], u, 0),   param_at(param[RV_P_KAPPA], u, 0)};
    return unit;
}

/* The kind is a constant of each kernel: one case is left. */
static __device__ inline void step_of(int kind, const rv_neuron *n, const rv_unit *p, float x,
                                      rv_cell *c) {
    switch (kind) {
#define STEP_CASE(name, traits, parameters, sentence, source)                                      \
    case RV_NEURON_##name:                                                                         \
        rv_##name##_step(n, p, x, c);                                                              \
        break;
        RV_NEURON_LIST(STEP_CASE)
#undef STEP_CASE
    }
}
/* The same of the adjoint; returns that of the current. */
static __device__ inline float adjoint_of(int kind, const rv_neuron *n, const rv_unit *p,
                                          const rv_trace *r, rv_carry *c, rv_unit *g) {
    switch (kind) {
#define ADJOINT_CASE(name, traits, parameters, sentence, source)                                   \
    case RV_NEURON_##name:                                                                         \
        return rv_##name##_adjoint(n, p, r, c, g);
        RV_NEURON_LIST(ADJOINT_CASE)
#undef ADJOINT_CASE
    }
    return 0;
}

/* ---- forward ------------------------------------------------------------------------------- */
/* Given by value: what the host has may change as soon as the launch returns. */
struct forward_args {
    rv_neuron neuron;
    rv_neuron_forward n; /* its pointer to the neuron is the host's */
    rv_map map;          /* fused: the current is the event sum of `x`; weight NULL: it is n.x */
    rv_spikes x;
};

/* Units along x, whole warps per row; samples along y. */
template <int kind> static __global__ void forward(forward_args a) {
    const rv_neuron_forward *n = &a.n;
    const unsigned traits = rv_neuron_traits(kind);
    const int words = (n->n + 31) / 32, b = (int)blockIdx.y;
    const int u = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (u / 32 >= words) return; /* a whole warp */
    const bool real = u < n->n, inside = u < n->ld;
    const size_t at = (size_t)b * (size_t)n->ld + (size_t)u;
    const rv_unit p = unit_at(n->param, real ? u : 0);
    rv_cell c = {}; /* lanes past the last unit stay at rest and vote no */
    if (real) {
        c.v = n->state.v[at];
        if (traits & RV_HAS_CURRENT) c.i = n->state.i[at];
        if (traits & RV_HAS_ADAPTATION) c.a = n->state.a[at];
        if (n->state.last)
            c.s = (float)(n->state.last[(size_t)b * (size_t)words + (size_t)(u / 32)] >> (u % 32) &
                          1u);
    }
    uint32_t word = 0; /* spikes of the warp at the last step */
    for (int t = 0; t < n->T; t++) {
        if (starts_at(n->starts, n->B, t, b)) c = {};
        if (real) { /* the current, from memory or from the weights of the active inputs */
            float x = a.map.weight ? event_sum(spikes_row(a.x, t, b), (a.x.n + 31) / 32,
                                               a.map.weight, a.map.ld, a.map.bias, u)
                                   : values_row(n->x, t, b)[u];
            step_of(kind, &a.neuron, &p, x, &c);
        }
        if (inside) {
            values_row(n->h, t, b)[u] = real ? c.h : 0;
            if (n->i.data) values_row(n->i, t, b)[u] = real ? c.i : 0;
            if (n->a.data) values_row(n->a, t, b)[u] = real ? c.a : 0;
        }
        if (traits & RV_HAS_SPIKES) {
            word = __ballot_sync(RV_CUDA_WARP, real && c.s > 0); /* no branch: all lanes come */
            if (u % 32 == 0) spikes_row(n->s, t, b)[u / 32] = word;
        }
    }
    __syncwarp(); /* every lane has read the word that one of them writes */
    if (n->state.last && (traits & RV_HAS_SPIKES) && n->T > 0 && u % 32 == 0)
        n->state.last[(size_t)b * (size_t)words + (size_t)(u / 32)] = word;
    if (!inside) return; /* lanes that only fill the word of bits */
    n->state.v[at] = real ? c.v : 0;
    if (traits & RV_HAS_CURRENT) n->state.i[at] = real ? c.i : 0;
    if (traits & RV_HAS_ADAPTATION) n->state.a[at] = real ? c.a : 0;
}

/* Feedback needs the spikes of the whole layer at every step, so another kernel. */
static rv_status recurrence_refused(rv_ctx *ctx) {
    return rv_cuda_fail(ctx->host, RV_CONFIG,
                        "device " RV_PLUGIN_NAME
                        " has no kernels for recurrent neurons; use --device cpu");
}

/* One kernel per kind: what a kind lacks is not even compiled into it. */
static rv_status forward_run(rv_ctx *ctx, rv_queue *queue, const forward_args *a) {
    const rv_neuron_forward *n = &a->n;
    dim3 grid(((unsigned)rv_words(n->n) * 32 + RV_CUDA_BLOCK - 1) / RV_CUDA_BLOCK, (unsigned)n->B);
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    if (n->recurrent) return recurrence_refused(ctx);
    PASS(rv_cuda_enter(ctx));
    switch (a->neuron.kind) {
#define FORWARD_CASE(name, traits, parameters, sentence, source)                                   \
    case RV_NEURON_##name:                                                                         \
        RV_LAUNCH(forward<RV_NEURON_##name>, grid, RV_CUDA_BLOCK, stream, *a);                     \
        break;
        RV_NEURON_LIST(FORWARD_CASE)
#undef FORWARD_CASE
    }
    return rv_cuda_check(ctx, cudaGetLastError(), "neurons");
}

/* The current comes from memory, which may be that of h. */
rv_status rv_cuda_neuron_forward(rv_ctx *ctx, rv_queue *queue, const rv_neuron_forward *n,
                                 rv_arena *) {
    forward_args a = {};
    a.neuron = *n->neuron;
    a.n = *n;
    return forward_run(ctx, queue, &a);
}

/* Fused: each thread adds the weight rows of the active inputs for its own unit. */
rv_status rv_cuda_map_neuron_forward(rv_ctx *ctx, rv_queue *queue, const rv_map *map,
                                     const rv_signal *x, const rv_neuron_forward *n, rv_arena *) {
    forward_args a = {};
    a.neuron = *n->neuron;
    a.n = *n;
    a.map = *map;
    a.x = x->spikes;
    return forward_run(ctx, queue, &a);
}

/* ---- adjoint ------------------------------------------------------------------------------- */
/* Planes of the tape and adjoints, those not there as NULL; given by value, as above. */
struct backward_args {
    rv_neuron neuron;
    rv_neuron_backward n; /* its pointer to the neuron is the host's */
    bool overwrite;       /* h becomes the adjoint of x */
};

/* Absent adjoints and planes read as zero: one kernel serves all cases. */
static __device__ inline float value_or_zero(rv_values v, int t, int b, int u) {
    return v.data ? values_row(v, t, b)[u] : 0.0f;
}
static __device__ inline float plane_or_zero(const float *plane, size_t at) {
    return plane ? plane[at] : 0.0f;
}
static __device__ inline float spike_at(rv_spikes s, int t, int b, int u) {
    return s.bits ? (float)(spikes_row(s, t, b)[u / 32] >> (u % 32) & 1u) : 0.0f;
}

/* State of step t-1 for the gradients of learned parameters; zero before a sample's first step. */
static __device__ inline void state_before(const backward_args *a, unsigned traits,
                                           const rv_unit *p, int t, int b, int u, rv_trace *r) {
    const rv_neuron_backward *n = &a->n;
    const size_t at = (size_t)b * (size_t)n->ld + (size_t)u;
    r->v_last = r->i_last = r->a_last = 0;
    if (starts_at(n->starts, n->B, t, b)) return;
    if (t == 0) {
        r->v_last = plane_or_zero(n->before.v, at);
        r->i_last = plane_or_zero(n->before.i, at);
        r->a_last = plane_or_zero(n->before.a, at);
        return;
    }
    float h = value_or_zero(n->h, t - 1, b, u);
    r->i_last = value_or_zero(n->i, t - 1, b, u);
    r->a_last = value_or_zero(n->a, t - 1, b, u);
    r->v_last = n->s.bits ? rv_membrane(&a->neuron, p, h, rv_threshold(traits, p, r->a_last),
                                        spike_at(n->s, t - 1, b, u))
                          : h;
}

/* One step of one unit; the parts of the parameters' gradients are left in g. */
template <int kind>
static __device__ inline float backward_step(const backward_args *a, const rv_unit *p,
                                             const rv_unit *back, int t, int b, int u, bool learns,
                                             rv_carry *c, rv_unit *g) {
    const rv_neuron_backward *n = &a->n;
    const unsigned traits = rv_neuron_traits(kind);
    rv_trace r = {}; /* what forward left of this step, and what comes in from outside */
    r.h = values_row(n->h, t, b)[u];
    r.s = spike_at(n->s, t, b, u);
    r.i = value_or_zero(n->i, t, b, u);
    r.a = value_or_zero(n->a, t, b, u);
    r.gs = value_or_zero(n->gs, t, b, u);
    r.gv = value_or_zero(n->gv, t, b, u);
    r.gh = value_or_zero(n->gh, t, b, u);
    if (traits & RV_HAS_SPIKES) /* the spike's derivative, where forward compared */
        r.slope = rv_surrogate_slope(a->neuron.surrogate.kind, r.h - rv_threshold(traits, p, r.a),
                                     a->neuron.surrogate.p);
    if (learns) state_before(a, traits, p, t, b, u, &r);
    float gx = adjoint_of(kind, &a->neuron, back, &r, c, g);
    if (starts_at(n->starts, n->B, t, b)) *c = {}; /* it owes nothing to step t-1 */
    if (a->overwrite) values_row(n->h, t, b)[u] = gx;
    if (n->held.data) values_row(n->held, 0, b)[u] += gx;
    return gx;
}

/* Units that only pad: nothing reaches them. */
static __device__ inline void backward_pad(const backward_args *a, int t, int b, int u) {
    if (a->overwrite) values_row(a->n.h, t, b)[u] = 0;
}

/* What the adjoint carries from step to step, and from this chunk to the one before. */
static __device__ inline rv_carry carry_load(const rv_neuron_backward *n, unsigned traits,
                                             size_t at) {
    rv_carry c = {};
    c.v = n->adjoint.v[at];
    if (traits & RV_HAS_CURRENT) c.i = n->adjoint.i[at];
    if (traits & RV_HAS_ADAPTATION) c.a = n->adjoint.a[at];
    return c;
}
static __device__ inline void carry_store(const rv_neuron_backward *n, unsigned traits, size_t at,
                                          rv_carry c) {
    n->adjoint.v[at] = c.v;
    if (traits & RV_HAS_CURRENT) n->adjoint.i[at] = c.i;
    if (traits & RV_HAS_ADAPTATION) n->adjoint.a[at] = c.a;
}

/* Nothing learns: a thread is a unit of a sample. */
template <int kind> static __global__ void backward(backward_args a) {
    const rv_neuron_backward *n = &a.n;
    const unsigned traits = rv_neuron_traits(kind);
    const int u = (int)(blockIdx.x * blockDim.x + threadIdx.x), b = (int)blockIdx.y;
    if (u >= n->ld) return;
    const size_t at = (size_t)b * (size_t)n->ld + (size_t)u;
    const bool real = u < n->n;
    const rv_unit p = unit_at(n->param, real ? u : 0), back = unit_at(n->back, real ? u : 0);
    rv_carry c = {};
    rv_unit g; /* asked for by the equations, wanted by nobody */
    if (real) c = carry_load(n, traits, at);
    for (int t = n->T - 1; t >= 0; t--) {
        if (real)
            (void)backward_step<kind>(&a, &p, &back, t, b, u, false, &c, &g);
        else
            backward_pad(&a, t, b, u);
    }
    carry_store(n, traits, at, c);
}

/* Gradients are sums over t descending, b ascending: a thread is a unit of all samples. */
template <int kind> static __global__ void backward_learn(backward_args a) {
    const rv_neuron_backward *n = &a.n;
    const unsigned traits = rv_neuron_traits(kind);
    const int u = (int)item_index();
    if (u >= n->ld) return;
    const bool real = u < n->n;
    const rv_unit p = unit_at(n->param, real ? u : 0), back = unit_at(n->back, real ? u : 0);
    for (int t = n->T - 1; t >= 0; t--)
        for (int b = 0; b < n->B; b++) {
            const size_t at = (size_t)b * (size_t)n->ld + (size_t)u;
            rv_carry c = {};
            rv_unit g = {};
            if (real) {
                c = carry_load(n, traits, at);
                (void)backward_step<kind>(&a, &p, &back, t, b, u, true, &c, &g);
            } else {
                backward_pad(&a, t, b, u);
            }
            carry_store(n, traits, at, c); /* by memory: the next sample takes the registers */
            const float part[RV_P_COUNT] = {g.alpha,     g.beta,    g.gain, g.v_leak,
                                            g.threshold, g.v_reset, g.rho,  g.kappa};
            for (int k = 0; real && k < RV_P_COUNT; k++)
                if (a.neuron.learn >> k & 1u && n->grad[k]) n->grad[k][u] += part[k];
        }
}

/* Where the sum over time is wanted (a held input), h stays as forward left it. */
rv_status rv_cuda_neuron_backward(rv_ctx *ctx, rv_queue *queue, const rv_neuron_backward *n,
                                  rv_arena *) {
    backward_args a = {};
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    dim3 units = rv_cuda_grid((size_t)n->ld), both(units.x, (unsigned)n->B);
    if (n->recurrent) return recurrence_refused(ctx);
    PASS(rv_cuda_enter(ctx));
    a.neuron = *n->neuron;
    a.n = *n;
    for (int p = 0; p < RV_P_COUNT; p++)
        if (!n->back[p]) a.n.back[p] = n->param[p];
    a.overwrite = !n->held.data;
    switch (a.neuron.kind) {
#define BACKWARD_CASE(name, traits, parameters, sentence, source)                                  \
    case RV_NEURON_##name:                                                                         \
        if (a.neuron.learn)                                                                        \
            RV_LAUNCH(backward_learn<RV_NEURON_##name>, units, RV_CUDA_BLOCK, stream, a);          \
        else                                                                                       \
            RV_LAUNCH(backward<RV_NEURON_##name>, both, RV_CUDA_BLOCK, stream, a);                 \
        break;
        RV_NEURON_LIST(BACKWARD_CASE)
#undef BACKWARD_CASE
    }
    return rv_cuda_check(ctx, cudaGetLastError(), "the adjoint of neurons");
}
