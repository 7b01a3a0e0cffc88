/*
 * Ranvier kernels: the arithmetic of one device. A device is {ops, ctx}; every op works on ONE
 * WHOLE CHUNK of one micro-batch and takes a queue first: NULL is the device's own. On the CPU an
 * op has run when it returns; on a GPU it is put in the queue's order and does not block, but for
 * what gives host memory a value. Ops never allocate on the heap after the first item: scratch
 * comes from the stage's arena. Pointers are device memory unless said otherwise; the host may
 * touch that memory where no op that is still queued does (queue_sync). Nothing here knows of
 * layers, files or stages.
 *
 * Order of axes: time, sample, unit. Units in PyTorch's flatten order (channel, row, column).
 * Sums are added in a fixed order (see each op), so bits do not depend on chunks or threads.
 */
#ifndef RV_KERNELS_H
#define RV_KERNELS_H

#include "kernels/base.h"
#include "kernels/plane.h"  /* rv_form, rv_conv, rv_pool, rv_norm, rv_delay */
#include "kernels/update.h" /* rv_limit, rv_optim_view, rv_optim_update */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- views ------------------------------------------------------------------------------ */
/* Spikes: bits [T][B][rv_words(n)], bit u%32 of word u/32; bits past n are 0. stride_t is in
 * words (B*rv_words(n) when dense; 0 = one frame held for all T). Borrowed memory. */
typedef struct rv_spikes {
    uint32_t *bits; /* NULL: absent */
    int T, B, n;
    size_t stride_t;
} rv_spikes;

/* Values: float32 [T][B][ld], ld >= n the distance of rows, a multiple of RV_LANES in all our own
 * buffers with zero padding. stride_t in floats; 0 = one frame held for all T (a static input). */
typedef struct rv_values {
    float *data; /* NULL: absent */
    int T, B, n, ld;
    size_t stride_t;
} rv_values;

/* What flows between layers: bits or values, never both. */
typedef struct rv_signal {
    rv_spikes spikes;
    rv_values values;
} rv_signal;

static inline rv_spikes rv_spikes_of(uint32_t *bits, int T, int B, int n) {
    return (rv_spikes){bits, T, B, n, (size_t)B * (size_t)rv_words(n)};
}
static inline rv_values rv_values_of(float *data, int T, int B, int n) {
    int ld = rv_round_up(n, RV_LANES);
    return (rv_values){data, T, B, n, ld, (size_t)B * (size_t)ld};
}

typedef struct rv_queue rv_queue; /* a stream; opaque, owned by the device */
typedef struct rv_event rv_event; /* a point in a queue */

/* ---- linear maps ------------------------------------------------------------------------ */
/* A linear map's weights of one version. weight [in][ld], ld = out rounded up to RV_LANES, padding
 * zero. bias [ld] or NULL. `packed`: derived form made by map_pack, or NULL. */
typedef struct rv_map {
    int in, out, ld;
    rv_form form;
    const float *weight, *bias;
    void *packed;
    bool adjoint; /* map_backward will be asked for */
} rv_map;

/* ---- neurons ---------------------------------------------------------------------------- */
/* Per-unit parameters of a neuron layer, each an array [ld] (scalars are broadcast by the owner of
 * the weight version). Equations: neuron.h. */
#define RV_NEURON_PARAM_LIST(X)                                                                    \
    X(ALPHA, alpha)     /* decay of the synaptic current per step */                               \
    X(BETA, beta)       /* decay of the membrane per step */                                       \
    X(GAIN, gain)       /* factor of the current */                                                \
    X(LEAK, v_leak)     /* resting membrane */                                                     \
    X(THETA, threshold) /* threshold */                                                            \
    X(RESET, v_reset)   /* membrane after a spike (reset value) */                                 \
    X(RHO, rho)         /* decay of the adaptation */                                              \
    X(KAPPA, kappa)     /* threshold rise per unit of adaptation */
#define RV_NEURON_PARAM_ENUM(name, text) RV_P_##name,
typedef enum rv_neuron_param {
    RV_NEURON_PARAM_LIST(RV_NEURON_PARAM_ENUM) RV_P_COUNT
} rv_neuron_param;
#undef RV_NEURON_PARAM_ENUM

typedef enum rv_reset { RV_RESET_SUBTRACT, RV_RESET_ZERO, RV_RESET_VALUE, RV_RESET_NONE } rv_reset;
#define RV_RESET_NAMES "subtract|zero|value|none"

#define RV_SURROGATE_PARAMS 4
typedef struct rv_surrogate { /* row of surrogate.h and its parameters */
    int kind;
    float p[RV_SURROGATE_PARAMS];
} rv_surrogate;

/* What is constant for a layer: chosen once, so loops are specialised on it. */
typedef struct rv_neuron {
    int kind; /* row of neuron.h */
    rv_reset reset;
    bool strict;            /* spike where h > theta; false: h >= theta */
    bool detach_reset;      /* s in the reset carries no gradient */
    bool detach_adaptation; /* s in the adaptation carries no gradient */
    bool gain_tied;         /* gain = 1 - beta, whatever RV_P_GAIN holds; beta takes its gradient */
    bool reset_over_beta;   /* subtract theta/beta: a reset one step later that does not decay */
    rv_surrogate surrogate;
    unsigned learn; /* bit p set: the gradient of parameter p is wanted */
} rv_neuron;

enum { RV_KEEP_I = 1, RV_KEEP_A = 2 }; /* tape planes besides h */
/* Which planes (RV_KEEP_*) this neuron's adjoint reads, and whether it emits spikes at all. */
unsigned rv_neuron_keeps(const rv_neuron *neuron);
bool rv_neuron_spikes(const rv_neuron *neuron);

/* State of a neuron layer at a chunk border: planes [B][ld] (NULL where the kind has none) and
 * the last spikes [B][rv_words(n)] (recurrent or adaptive). The adjoint twin holds in v and i the
 * adjoints of those, in a the adjoint of the adaptation of the step after the border (it reaches
 * both a and the last spikes), and in `last` nothing; `x` [B][ld] carries the adjoint of the
 * current of that step (recurrent). All zero = at rest (v starts at 0). */
typedef struct rv_neuron_state {
    float *v, *i, *a, *x;
    uint32_t *last;
} rv_neuron_state;

typedef struct rv_neuron_forward {
    const rv_neuron *neuron;
    int T, B, n, ld;
    const float *param[RV_P_COUNT]; /* each [ld]; NULL: what leaves the equations unchanged */
    rv_values x;                    /* in: input current; may be held; may be h itself */
    rv_values h, i, a;              /* out: tape planes [T][B][ld]; i and a NULL unless kept */
    rv_spikes s;                    /* out; bits NULL for neurons that do not spike */
    const rv_map *recurrent;        /* x[t] += recurrent(s[t-1]), inside the time loop; or NULL */
    const uint32_t *starts; /* [T][rv_words(B)] bit b: sample b restarts before step t; or NULL */
    rv_neuron_state state;  /* in: before the chunk; out: after it */
} rv_neuron_forward;

typedef struct rv_neuron_backward {
    const rv_neuron *neuron;
    int T, B, n, ld;
    const float *param[RV_P_COUNT]; /* as forward had them: slopes, membranes */
    const float *back[RV_P_COUNT];  /* in the adjoint's equations; NULL: that of `param` */
    rv_values h, i, a; /* tape planes; h is overwritten by the adjoint of x, but where `held` is
                        * wanted and nothing recurs it is left alone */
    rv_values gs;      /* adjoint of the spikes, or data NULL */
    rv_values gv, gh;  /* adjoint of v[t] (after reset) and of h[t], or data NULL; may be held */
    rv_spikes s;       /* the spikes forward gave; bits NULL for neurons that do not spike */
    const rv_map *recurrent;
    const uint32_t *starts;
    rv_neuron_state before;  /* state at the chunk's start, as forward found it */
    rv_neuron_state adjoint; /* in: adjoint at the chunk's end; out: at its start */
    float
        *grad[RV_P_COUNT]; /* += per-unit sums [ld] where `learn` asks, t descending, b ascending */
    rv_values held; /* data not NULL: += sum over t (descending) of the adjoint of x [B][ld] */
} rv_neuron_backward;

/* ---- losses ----------------------------------------------------------------------------- */
/* What a loss reads of the output over time (readout.h). */
typedef enum rv_readout {
    RV_READ_SPIKE_COUNT,
    RV_READ_SPIKE_RATE,
    RV_READ_FIRST_SPIKE,
    RV_READ_MEMBRANE_MAX,
    RV_READ_MEMBRANE_MEAN,
    RV_READ_MEMBRANE_LAST,
    RV_READ_EVERY_STEP,
} rv_readout;
#define RV_READOUT_NAMES                                                                           \
    "spike_count|spike_rate|first_spike|membrane_max|membrane_mean|membrane_last|every_step"
/* The course of one output of one sample, folded step by step. */
typedef struct rv_course {
    double sum; /* or the value that stands */
    int when;   /* step of that value; -1: none yet */
} rv_course;
/* Steps [t0, t0 + T) of samples that last length[b] steps each, NULL: all `steps`; a length is
 * taken as at least 1 and at most `steps`. */
typedef struct rv_span {
    int t0, steps;
    const int32_t *length;
} rv_span;

/* ---- ops -------------------------------------------------------------------------------- */
typedef struct rv_ctx rv_ctx; /* a device's own data */

typedef struct rv_ops {
    uint32_t abi, struct_size;
    const char *name;  /* "cpu" */
    bool apart;        /* what the host allocated must be copied to the device before ops read it */
    const char *lacks; /* layers it has no kernels for, which ops refuse (RV_CONFIG); NULL: none */

    void (*close)(rv_ctx *ctx);
    /* Memory of the device, 64-byte aligned, zeroed. copy: the flags say what is memory the host
     * allocated; from there the source may change once it returns, to there it has arrived. */
    rv_status (*alloc)(rv_ctx *ctx, size_t bytes, const char *what, void **out);
    void (*free)(rv_ctx *ctx, void *memory);
    rv_status (*copy)(rv_ctx *ctx, rv_queue *queue, void *to, bool to_host, const void *from,
                      bool from_host, size_t bytes);
    rv_status (*zero)(rv_ctx *ctx, rv_queue *queue, void *memory, size_t bytes);
    /* Queues. record makes *event where it is NULL; wait holds the queue, not the caller, until
     * what any queue had when it was recorded is done. sync blocks until all put in is done. */
    rv_status (*queue_create)(rv_ctx *ctx, rv_queue **out);
    void (*queue_destroy)(rv_ctx *ctx, rv_queue *queue);
    rv_status (*queue_record)(rv_ctx *ctx, rv_queue *queue, rv_event **event);
    rv_status (*queue_wait)(rv_ctx *ctx, rv_queue *queue, rv_event *event);
    void (*event_destroy)(rv_ctx *ctx, rv_event *event); /* NULL allowed */
    rv_status (*queue_sync)(rv_ctx *ctx, rv_queue *queue);

    /* Derived form of a map's weights for its form, batch rows at most `rows` (0: unknown). Made
     * once per weight version: *packed is created when NULL, else rebuilt in place; it stays NULL
     * on a device that needs none. */
    rv_status (*map_pack)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, int rows, void **packed);
    void (*map_unpack)(rv_ctx *ctx, void *packed);

    /* y[t][b][:] = bias + sum over inputs ascending of x * weight row. y.T = x.T, or 1 when x is
     * held (then y is held too). Event form: x.spikes; dense: either. */
    rv_status (*map_forward)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                             rv_values y, rv_arena *arena);
    /* Fused map and neuron, event form: the current never goes to memory. May be NULL. n->x is
     * ignored. Bits equal those of map_forward followed by neuron_forward. */
    rv_status (*map_neuron_forward)(rv_ctx *ctx, rv_queue *queue, const rv_map *map,
                                    const rv_signal *x, const rv_neuron_forward *n,
                                    rv_arena *arena);
    /* gx[t][b][in] (+)= g[t][b][:] . weight row; add: onto what is there. */
    rv_status (*map_backward)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, rv_values g,
                              rv_values gx, bool add, rv_arena *arena);
    /* gw[in][ld] += sum over t descending, b ascending of x * g; gb[ld] += sum of g (NULL: no
     * bias). Held x: g must be held too (the time-sum). Event: active entries only. */
    rv_status (*map_weight)(rv_ctx *ctx, rv_queue *queue, const rv_map *map, const rv_signal *x,
                            rv_values g, float *gw, float *gb, rv_arena *arena);

    rv_status (*neuron_forward)(rv_ctx *ctx, rv_queue *queue, const rv_neuron_forward *n,
                                rv_arena *arena);
    rv_status (*neuron_backward)(rv_ctx *ctx, rv_queue *queue, const rv_neuron_backward *n,
                                 rv_arena *arena);

    /* Convolution and its parts, as map_* above. */
    rv_status (*conv_pack)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, int B, void **packed);
    void (*conv_unpack)(rv_ctx *ctx, void *packed);
    rv_status (*conv_forward)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, const rv_signal *x,
                              rv_values y, rv_arena *arena);
    rv_status (*conv_backward)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, rv_values g,
                               rv_values gx, bool add, rv_arena *arena);
    rv_status (*conv_weight)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, const rv_signal *x,
                             rv_values g, float *gw, float *gb, rv_arena *arena);
    rv_status (*pool_forward)(rv_ctx *ctx, rv_queue *queue, const rv_pool *pool, const rv_signal *x,
                              rv_values y, rv_arena *arena);
    rv_status (*pool_backward)(rv_ctx *ctx, rv_queue *queue, const rv_pool *pool,
                               const rv_signal *x, rv_values g, rv_values gx, bool add,
                               rv_arena *arena);
    rv_status (*norm_forward)(rv_ctx *ctx, rv_queue *queue, const rv_norm *norm, rv_values x,
                              rv_values y, rv_arena *arena);
    /* g_gamma, g_beta [c] += t descending (NULL: not wanted). */
    rv_status (*norm_backward)(rv_ctx *ctx, rv_queue *queue, const rv_norm *norm, rv_values x,
                               rv_values g, rv_values gx, bool add, float *g_gamma, float *g_beta,
                               rv_arena *arena);
    rv_status (*delay_forward)(rv_ctx *ctx, rv_queue *queue, const rv_delay *delay,
                               const rv_signal *x, rv_values y, rv_arena *arena);
    /* g_delay [c] += (NULL: not wanted). ring_adjoint: in at the chunk's end, out at its start. */
    rv_status (*delay_backward)(rv_ctx *ctx, rv_queue *queue, const rv_delay *delay,
                                const rv_signal *x, rv_values g, rv_values gx, bool add,
                                float *g_delay, rv_arena *arena);
    /* y (+)= factor * x: factor [n] per unit (NULL: 1). Bits or values in. */
    rv_status (*scale)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, const float *factor,
                       rv_values y, bool add, rv_arena *arena);
    /* g_factor[n] += sum over t descending, b ascending of x*g. */
    rv_status (*scale_weight)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, rv_values g,
                              float *g_factor, rv_arena *arena);
    /* y[..][offset_y + u] (+)= x[..][offset_x + u], u < count: add, concat and their adjoints. A
     * held x serves every step of y, a held y takes the sum over the steps of x, t descending. */
    rv_status (*copy_units)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, int offset_x,
                            rv_values y, int offset_y, int count, bool add);
    /* One mask for all steps of a sample: y (+)= x/(1-p) where rv_random4(seed, RV_FOR_DROPOUT,
     * layer, epoch, sample, 0, u/4) >= p, else 0. Its adjoint is itself. */
    rv_status (*dropout)(rv_ctx *ctx, rv_queue *queue, const rv_signal *x, float p, uint64_t seed,
                         int layer, uint32_t epoch, const uint64_t *sample, rv_values y, bool add,
                         rv_arena *arena);
    /* Stateless spikes: s = x >= theta (or >); adjoint gx (+)= g * surrogate(x - theta), and
     * g_theta[n] -= the same (NULL: not wanted). theta [n]. */
    rv_status (*threshold_forward)(rv_ctx *ctx, rv_queue *queue, rv_values x, const float *theta,
                                   bool strict, rv_spikes s);
    rv_status (*threshold_backward)(rv_ctx *ctx, rv_queue *queue, rv_values x, const float *theta,
                                    const rv_surrogate *surrogate, rv_values g, rv_values gx,
                                    bool add, float *g_theta);

    rv_status (*optim_update)(rv_ctx *ctx, rv_queue *queue, const rv_optim_update *u);
    /* *sum = sum of squares of n floats in double, blocks of 256 in index order (host memory). */
    rv_status (*norm2)(rv_ctx *ctx, rv_queue *queue, const float *x, size_t n, double *sum);

    /* course[b][u] of B samples of n outputs: folds in the steps of y that are within a sample's
     * length; begins anew at span.t0 = 0. */
    rv_status (*readout_fold)(rv_ctx *ctx, rv_queue *queue, rv_readout readout, const rv_signal *y,
                              rv_span span, rv_course *course);
    /* g[t][b][u] = gradient[b][u] (rows of g.ld) at every step within the sample's length, or with
     * `one` at course.when alone (-1: at the last step); else 0. */
    rv_status (*readout_spread)(rv_ctx *ctx, rv_queue *queue, const rv_course *course, bool one,
                                const float *gradient, rv_span span, rv_values g);
    /* Rate encoder: bit u of sample b at step t0+t is set where uniform < frame[b][u], uniform
     * from rv_random4(seed, RV_FOR_ENCODE, 0, epoch, sample[b], t0+t, u/4). */
    rv_status (*encode_rate)(rv_ctx *ctx, rv_queue *queue, rv_values frame, const uint64_t *sample,
                             uint64_t seed, uint32_t epoch, int t0, rv_spikes out);
    /* counts[b] += spikes of sample b over the chunk (b < B), for rates and metrics; host int64. */
    rv_status (*count_spikes)(rv_ctx *ctx, rv_queue *queue, rv_spikes s, int64_t *counts);
} rv_ops;

typedef struct rv_device {
    const rv_ops *ops;
    rv_ctx *ctx;
    int index;
} rv_device;

/* ---- devices: instruction sets of the CPU, ascending; AUTO picks the best there is ---------- */
#define RV_ISA_LIST(X)                                                                             \
    X(AUTO, "auto") X(BASELINE, "baseline") X(AVX2, "avx2") X(AVX512, "avx512") X(AMX, "amx")
#define RV_ISA_ENUM(name, text) RV_ISA_##name,
typedef enum rv_isa { RV_ISA_LIST(RV_ISA_ENUM) RV_ISAS } rv_isa;
#undef RV_ISA_ENUM
#define RV_ISA_NAMES "auto|baseline|avx2|avx512|amx"
const char *rv_isa_name(rv_isa isa);
rv_isa rv_isa_best(void); /* of this processor; never AUTO */

/* "auto", "cpu", or "cuda" or "emu" with the numbers of devices: "cuda:0,1". RV_CONFIG: none of
 * these. choose makes `auto` cuda:0 where there is one, else cpu: `why` then says why not. */
enum { RV_DEVICES_MOST = 64 };
typedef struct rv_device_list {
    const char *kind; /* constant text */
    int count, index[RV_DEVICES_MOST];
    char why[256];
} rv_device_list;
RV_CHECKED rv_status rv_device_parse(const char *text, rv_device_list *out);
void rv_device_choose(rv_device_list *list);
/* Open entry `at` modulo count: stages beyond the list share its devices. threads >= 1: pool size
 * of the CPU. isa: AUTO or at most rv_isa_best (else RV_CONFIG). RV_RESOURCE when it is not there:
 * the plug-in, the driver or the device is missing, or the driver too old (devices.c). */
RV_CHECKED rv_status rv_device_open_at(const rv_device_list *list, int at, rv_isa isa, int threads,
                                       rv_device *out);
/* The first of the list that `name` means. */
RV_CHECKED rv_status rv_device_open(const char *name, rv_isa isa, int threads, rv_device *out);
void rv_device_close(rv_device *device);
rv_isa rv_device_isa(const rv_device *device); /* AUTO: not the CPU */
/* Scratch in a device's memory: what rv_arena.memory points at. The device must not move. */
rv_memory rv_device_memory(const rv_device *device);

/* Rows of neuron.h and surrogate.h, for configuration and `list`. */
extern const rv_table rv_surrogates; /* what rv_surrogate_table gives, for other tables' rows */
const rv_table *rv_surrogate_table(void); /* options: float p[RV_SURROGATE_PARAMS] as double */
const rv_table *rv_neuron_table(void);    /* options: rv_neuron_options */
typedef struct rv_surrogate_options {
    double p[RV_SURROGATE_PARAMS];
} rv_surrogate_options;
/* Derivative and its argument's type are in surrogate.h; this one is for tests and `list`. */
double rv_surrogate_value(const rv_surrogate *surrogate, double u);

/* Options of every neuron layer (a row's specs list those it has). `tau`/`decay` are another way
 * to say beta and alpha: decay euler 1-1/tau, exp exp(-1/tau), shift 1-2^-tau. NAN = not given. */
typedef struct rv_neuron_options {
    rv_reals alpha, beta, gain, v_leak, threshold, v_reset, rho, kappa;
    rv_reals tau, tau_syn;
    int decay;   /* euler|exp|shift */
    int reset;   /* RV_RESET_NAMES */
    int compare; /* ge|gt */
    bool detach_reset, detach_adaptation, recurrent;
    int input;       /* gain|one_minus_beta: the second ties gain to 1 - beta */
    int reset_delay; /* same|next: next = subtract theta/beta */
    rv_choice surrogate;
    char *learn; /* names of learnable parameters, space-separated, or NULL */
} rv_neuron_options;

#ifdef __cplusplus
}
#endif
#endif
