/*
 * The three forms of convolution on the CPU, internal to kernels/: plain loops (cpu_conv.c), panels
 * of oneDNN (cpu_conv_panel.c), events (cpu_conv_event.c).
 *
 * Event form: sums of the weight rows of the spikes under each window. Weights lie in rows
 * [group][kernel row][kernel column][channel of the group], one row of outputs of the group each,
 * padded to whole vectors with zeros. An output adds its window's taps in that order; a weight's
 * gradient adds steps descending, samples ascending, places ascending, onto what is there. So bits
 * depend on neither chunks nor threads.
 */
#ifndef RV_KERNELS_CPU_CONV_H
#define RV_KERNELS_CPU_CONV_H

#include "kernels/cpu.h"

#ifdef RV_LEVEL
/* Weights of one version in the orders of the forms that read them; NULL where none does. */
typedef struct rv_conv_packed {
    float *event;
    float *weights[2];               /* RV_CONV_FORWARD, RV_CONV_BACKWARD of dnnl_conv.h */
    const struct rv_conv_plan *plan; /* NULL: plain loops */
} rv_conv_packed;

/* What a product works on. */
typedef struct rv_conv_job {
    const rv_conv *conv;
    const rv_signal *x;
    rv_values y;  /* forward: out; else adjoint of it */
    rv_values gx; /* backward */
    bool add;
    int t; /* plain weight gradient: the step */
    float *gw, *gb;
    float *scratch; /* per worker */
    size_t scratch_floats;
} rv_conv_job;

static inline int conv_units(rv_plane p) {
    return p.c * p.h * p.w;
}
static inline int conv_ld(rv_plane p) {
    return rv_round_up(conv_units(p), RV_LANES);
}
static inline float *conv_scratch(const rv_conv_job *job, int worker) {
    return job->scratch + (size_t)worker * job->scratch_floats;
}
#define rv_cpu_conv_scratch RV_CPU(conv_scratch)
#define rv_cpu_conv_images RV_CPU(conv_images)
/* `floats` of scratch for every worker. */
RV_CHECKED rv_status rv_cpu_conv_scratch(rv_ctx *ctx, rv_conv_job *job, size_t floats,
                                         rv_arena *arena);
/* `count` images of step t, from `first` on, side by side, ld apart; bits may write 32 floats past
 * the last. */
void rv_cpu_conv_images(const rv_signal *x, int t, int first, int count, int ld, float *to);

#ifdef RV_DNNL
#define rv_cpu_conv_panel_pack RV_CPU(conv_panel_pack)
#define rv_cpu_conv_panel_forward RV_CPU(conv_panel_forward)
#define rv_cpu_conv_panel_backward RV_CPU(conv_panel_backward)
#define rv_cpu_conv_panel_weight RV_CPU(conv_panel_weight)
RV_CHECKED rv_status rv_cpu_conv_panel_pack(rv_ctx *ctx, const rv_conv *conv, int B,
                                            rv_conv_packed *packed);
RV_CHECKED rv_status rv_cpu_conv_panel_forward(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena);
RV_CHECKED rv_status rv_cpu_conv_panel_backward(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena);
RV_CHECKED rv_status rv_cpu_conv_panel_weight(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena);
#endif

#define rv_cpu_conv_event_floats RV_CPU(conv_event_floats)
#define rv_cpu_conv_event_pack RV_CPU(conv_event_pack)
#define rv_cpu_conv_event_forward RV_CPU(conv_event_forward)
#define rv_cpu_conv_event_weight RV_CPU(conv_event_weight)

size_t rv_cpu_conv_event_floats(const rv_conv *conv);
/* plain [out_c][in_c/groups][kh][kw] into rows. */
void rv_cpu_conv_event_pack(const rv_conv *conv, const float *plain, float *rows);

RV_CHECKED rv_status rv_cpu_conv_event_forward(rv_ctx *ctx, const rv_conv *conv, rv_spikes x,
                                               rv_values y, rv_arena *arena);
/* gw in PyTorch's order; the bias is the caller's. */
RV_CHECKED rv_status rv_cpu_conv_event_weight(rv_ctx *ctx, const rv_conv *conv, rv_spikes x,
                                              rv_values g, float *gw, rv_arena *arena);
#endif

#endif
