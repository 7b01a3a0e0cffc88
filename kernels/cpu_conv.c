/*
 * Convolution. With packed weights every product is a panel of one time step of one micro-batch
 * run by oneDNN (dnnl_conv.h); without, plain loops add in the order of the weights. Weight
 * gradients add the panels t descending onto the gradient, so bits depend on neither chunks nor
 * threads.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"
#include "kernels/dnnl_conv.h"

#include <string.h>

typedef struct conv_job {
    const rv_conv *conv;
    const rv_signal *x;
    rv_values y;  /* forward: out; else adjoint of it */
    rv_values gx; /* backward */
    bool add;
    int t; /* plain weight gradient: the step */
    float *gw, *gb;
    float *scratch; /* per worker */
    size_t scratch_floats;
} conv_job;

static int plane_units(rv_plane p) {
    return p.c * p.h * p.w;
}
static int plane_ld(rv_plane p) {
    return rv_round_up(plane_units(p), RV_LANES);
}
static size_t filter_floats(const rv_conv *conv) { /* weights of one output channel */
    return (size_t)(conv->in.c / conv->groups) *
           (size_t)(conv->window.kernel[0] * conv->window.kernel[1]);
}
static rv_status job_scratch(rv_ctx *ctx, conv_job *job, size_t floats, rv_arena *arena) {
    job->scratch_floats = (floats + RV_LANES - 1) / RV_LANES * RV_LANES;
    return rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job->scratch_floats * sizeof(float),
                        &job->scratch);
}
static float *job_worker(const conv_job *job, int worker) {
    return job->scratch + (size_t)worker * job->scratch_floats;
}

/* ---- plain loops ------------------------------------------------------------------------- */
/* One weight of output channel o: the input plane it reads, and the outputs it reaches. */
typedef struct tap {
    int channel, y0, y1, x0, x1; /* output rows and columns [y0, y1), [x0, x1) */
    int dy, dx;                  /* input row = output row * stride + dy */
} tap;

static void axis_span(int shift, int stride, int in, int out, int *first, int *last) {
    *first = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *last = in - shift > 0 ? (in - shift - 1) / stride + 1 : 0;
    if (*last > out) *last = out;
}

static tap tap_of(const rv_conv *conv, int o, size_t weight) {
    const rv_window *w = &conv->window;
    int area = w->kernel[0] * w->kernel[1], group_in = conv->in.c / conv->groups;
    int k = (int)weight % area, group = o / (conv->out.c / conv->groups);
    tap t = {.channel = group * group_in + (int)weight / area};
    t.dy = k / w->kernel[1] * w->dilation[0] - w->padding[0];
    t.dx = k % w->kernel[1] * w->dilation[1] - w->padding[1];
    axis_span(t.dy, w->stride[0], conv->in.h, conv->out.h, &t.y0, &t.y1);
    axis_span(t.dx, w->stride[1], conv->in.w, conv->out.w, &t.x0, &t.x1);
    return t;
}
static const float *tap_row(const rv_conv *conv, const float *image, const tap *t, int oy) {
    int iy = oy * conv->window.stride[0] + t->dy;
    return image + ((size_t)t->channel * (size_t)conv->in.h + (size_t)iy) * (size_t)conv->in.w;
}

static void plain_forward(void *argument, int row, int worker) {
    const conv_job *job = argument;
    const rv_conv *conv = job->conv;
    int t = row / job->y.B, b = row % job->y.B, stride = conv->window.stride[1];
    const float *x = signal_row(job->x, t, b, job_worker(job, worker));
    const float *weight = conv->weight;
    float *y = values_row(job->y, t, b), *plane = y;
    for (int o = 0; o < conv->out.c; o++, plane += conv->out.h * conv->out.w) {
        for (int i = 0; i < conv->out.h * conv->out.w; i++)
            plane[i] = conv->bias ? conv->bias[o] : 0.0f;
        for (size_t k = 0; k < filter_floats(conv); k++) {
            tap p = tap_of(conv, o, k);
            float w = *weight++;
            for (int oy = p.y0; oy < p.y1; oy++) {
                const float *in = tap_row(conv, x, &p, oy);
                float *out = plane + oy * conv->out.w;
                for (int ox = p.x0; ox < p.x1; ox++)
                    out[ox] += w * in[ox * stride + p.dx];
            }
        }
    }
    row_pad(job->y, y);
}

static void plain_backward(void *argument, int row, int worker) {
    const conv_job *job = argument;
    const rv_conv *conv = job->conv;
    int t = row / job->y.B, b = row % job->y.B, stride = conv->window.stride[1];
    const float *g = values_row(job->y, t, b), *weight = conv->weight;
    float *gx = values_row(job->gx, t, b), *sum = job_worker(job, worker);
    memset(sum, 0, (size_t)job->gx.ld * sizeof *sum);
    for (int o = 0; o < conv->out.c; o++, g += conv->out.h * conv->out.w)
        for (size_t k = 0; k < filter_floats(conv); k++) {
            tap p = tap_of(conv, o, k);
            float w = *weight++;
            for (int oy = p.y0; oy < p.y1; oy++) {
                float *in = sum + (tap_row(conv, sum, &p, oy) - sum);
                const float *out = g + oy * conv->out.w;
                for (int ox = p.x0; ox < p.x1; ox++)
                    in[ox * stride + p.dx] += w * out[ox];
            }
        }
    for (int u = 0; u < job->gx.ld; u++)
        gx[u] = job->add ? gx[u] + sum[u] : sum[u];
}

/* Gradient of output channel o's weights from step job->t, whose images lie in the scratch. */
static void plain_weight(void *argument, int o, int worker) {
    const conv_job *job = argument;
    const rv_conv *conv = job->conv;
    int stride = conv->window.stride[1];
    float *gw = job->gw + (size_t)o * filter_floats(conv);
    (void)worker;
    for (size_t k = 0; k < filter_floats(conv); k++) {
        tap p = tap_of(conv, o, k);
        double sum = 0.0;
        for (int b = 0; b < job->y.B; b++) {
            const float *x = job->scratch + (size_t)b * (size_t)plane_ld(conv->in);
            const float *g =
                values_row(job->y, job->t, b) + (size_t)o * (size_t)(conv->out.h * conv->out.w);
            for (int oy = p.y0; oy < p.y1; oy++) {
                const float *in = tap_row(conv, x, &p, oy), *out = g + oy * conv->out.w;
                for (int ox = p.x0; ox < p.x1; ox++)
                    sum += (double)in[ox * stride + p.dx] * (double)out[ox];
            }
        }
        gw[k] += (float)sum;
    }
}

/* Images of step t side by side in `to`, whatever the signal is. */
static void step_images(const rv_signal *x, int t, int B, int ld, float *to) {
    for (int b = 0; b < B; b++, to += ld) {
        const float *row = signal_row(x, t, b, to);
        if (row != to) memcpy(to, row, (size_t)signal_units(x) * sizeof *to);
    }
}

/* gb[o] += each step's sum over samples and plane, t descending. */
static void bias_gradient(void *argument, int o, int worker) {
    const conv_job *job = argument;
    int n = job->conv->out.h * job->conv->out.w;
    (void)worker;
    for (int t = signal_frames(job->x) - 1; t >= 0; t--) {
        double sum = 0.0;
        for (int b = 0; b < job->y.B; b++)
            sum += row_sum(values_row(job->y, t, b) + (size_t)o * (size_t)n, n);
        job->gb[o] += (float)sum;
    }
}

static rv_status forward_plain(rv_ctx *ctx, conv_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    TRY(job_scratch(ctx, job, row_floats(signal_units(job->x)), arena));
    rv_cpu_run(ctx, signal_frames(job->x) * job->y.B, plain_forward, job);
out:
    return status;
}
static rv_status backward_plain(rv_ctx *ctx, conv_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    TRY(job_scratch(ctx, job, (size_t)job->gx.ld, arena));
    rv_cpu_run(ctx, values_frames(job->gx) * job->gx.B, plain_backward, job);
out:
    return status;
}
static rv_status weight_plain(rv_ctx *ctx, conv_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    int ld = plane_ld(job->conv->in);
    /* A row of bits unpacks to whole words: one row more than B is room enough. */
    TRY(rv_arena_get(arena, (size_t)(job->y.B + 1) * (size_t)ld + 32, sizeof(float),
                     &job->scratch));
    for (job->t = signal_frames(job->x) - 1; job->t >= 0; job->t--) {
        step_images(job->x, job->t, job->y.B, ld, job->scratch);
        rv_cpu_run(ctx, job->conv->out.c, plain_weight, job);
    }
out:
    return status;
}

/* ---- oneDNN ------------------------------------------------------------------------------- */
#ifdef RV_DNNL
/* Weights of one version in the orders of the products that read them. */
typedef struct conv_packed {
    const rv_conv_plan *plan;
    float *weights[2]; /* RV_CONV_FORWARD, RV_CONV_BACKWARD */
} conv_packed;

typedef struct panel_job {
    conv_job base;
    const rv_conv_plan *plan;
    float *weights;    /* packed; of the weight gradient: its total */
    float *panels;     /* weight gradient: one per step of a round */
    size_t floats;     /* of packed weights */
    int newest, steps; /* a round: steps newest, newest - 1, ... */
    rv_status *result; /* per worker */
} panel_job;

enum { WEIGHT_BLOCK = 4096 };

static size_t panel_floats(rv_plane plane, int B) { /* whole words of bits may pass the end */
    return (size_t)B * (size_t)plane_ld(plane) + 32;
}

/* Images of step t as a panel: where they lie, or unpacked into `to`. */
static float *step_panel(const conv_job *job, int t, float *to) {
    if (!job->x->spikes.bits) return values_row(job->x->values, t, 0);
    step_images(job->x, t, job->y.B, plane_ld(job->conv->in), to);
    return to;
}

/* One product on the calling worker. */
static void panel_run(const panel_job *job, int worker, rv_conv_product kind, float *in,
                      float *weights, float *out, float *scratch) {
    rv_cpu_one_thread();
    rv_status status =
        rv_conv_plan_run(job->plan, kind, in, weights, job->base.conv->bias, out, scratch);
    if (status != RV_OK) job->result[worker] = status;
}

static void panel_forward(void *argument, int t, int worker) {
    const panel_job *job = argument;
    const conv_job *base = &job->base;
    float *scratch = job_worker(base, worker), *y = values_row(base->y, t, 0);
    float *in = step_panel(base, t, scratch);
    scratch += panel_floats(base->conv->in, base->y.B);
    panel_run(job, worker, RV_CONV_FORWARD, in, job->weights, y, scratch);
    for (int b = 0; b < base->y.B; b++)
        row_pad(base->y, values_row(base->y, t, b));
}

static void panel_backward(void *argument, int t, int worker) {
    const panel_job *job = argument;
    const conv_job *base = &job->base;
    float *scratch = job_worker(base, worker), *gx = values_row(base->gx, t, 0);
    float *to = base->add ? scratch : gx, *g = values_row(base->y, t, 0);
    scratch += panel_floats(base->conv->in, base->gx.B);
    panel_run(job, worker, RV_CONV_BACKWARD, to, job->weights, g, scratch);
    for (int b = 0; b < base->gx.B; b++, gx += base->gx.ld, to += base->gx.ld) {
        for (int u = 0; base->add && u < base->gx.n; u++)
            gx[u] += to[u];
        row_pad(base->gx, gx);
    }
}

static void panel_weight(void *argument, int k, int worker) {
    const panel_job *job = argument;
    const conv_job *base = &job->base;
    int t = job->newest - k;
    float *scratch = job_worker(base, worker);
    float *in = step_panel(base, t, scratch);
    scratch += panel_floats(base->conv->in, base->y.B);
    panel_run(job, worker, RV_CONV_WEIGHT, in, job->panels + (size_t)k * job->floats,
              values_row(base->y, t, 0), scratch);
}

static void panel_add(void *argument, int block, int worker) {
    const panel_job *job = argument;
    size_t first = (size_t)block * WEIGHT_BLOCK, last = first + WEIGHT_BLOCK;
    (void)worker;
    if (last > job->floats) last = job->floats;
    for (int k = 0; k < job->steps; k++) {
        const float *panel = job->panels + (size_t)k * job->floats;
        for (size_t i = first; i < last; i++)
            job->weights[i] += panel[i];
    }
}

/* Plan, packed weights and scratch of a product of B images. */
static rv_status panel_prepare(rv_ctx *ctx, panel_job *job, rv_conv_product kind, int B, int ld_in,
                               int ld_out, rv_arena *arena) {
    rv_status status = RV_OK;
    const rv_conv *conv = job->base.conv;
    const conv_packed *packed = conv->packed;
    size_t workers = (size_t)rv_cpu_threads(ctx);
    rv_cpu_one_thread();
    TRY(rv_conv_plan_get(rv_cpu_convs(ctx), conv, B, ld_in, ld_out, &job->plan));
    job->floats = rv_conv_plan_weights(job->plan, kind);
    TRY(rv_arena_get(arena, workers, sizeof *job->result, &job->result));
    memset(job->result, 0, workers * sizeof *job->result);
    TRY(job_scratch(ctx, &job->base,
                    panel_floats(conv->in, B) + rv_conv_plan_scratch(job->plan, kind), arena));
    if (kind != RV_CONV_WEIGHT && rv_conv_plan_fits(job->plan, packed->plan, kind)) {
        job->weights = packed->weights[kind];
        goto out;
    }
    /* Another number of images (a ragged batch) may want another order. */
    TRY(rv_arena_get(arena, job->floats, sizeof(float), &job->weights));
    TRY(rv_conv_plan_pack(job->plan, kind, kind == RV_CONV_WEIGHT ? job->base.gw : conv->weight,
                          job->weights));
out:
    return status;
}

static rv_status panel_finish(rv_ctx *ctx, const panel_job *job) {
    for (int w = 0; w < rv_cpu_threads(ctx); w++)
        if (job->result[w] != RV_OK)
            return rv_fail(job->result[w], "convolution: a product of oneDNN failed");
    return RV_OK;
}

static rv_status forward_panels(rv_ctx *ctx, const conv_job *base, rv_arena *arena) {
    rv_status status = RV_OK;
    panel_job job = {.base = *base};
    int ld = base->x->spikes.bits ? plane_ld(base->conv->in) : base->x->values.ld;
    TRY(panel_prepare(ctx, &job, RV_CONV_FORWARD, base->y.B, ld, base->y.ld, arena));
    rv_cpu_run(ctx, signal_frames(base->x), panel_forward, &job);
    TRY(panel_finish(ctx, &job));
out:
    return status;
}

static rv_status backward_panels(rv_ctx *ctx, const conv_job *base, rv_arena *arena) {
    rv_status status = RV_OK;
    panel_job job = {.base = *base};
    TRY(panel_prepare(ctx, &job, RV_CONV_BACKWARD, base->gx.B, base->gx.ld, base->y.ld, arena));
    rv_cpu_run(ctx, values_frames(base->gx), panel_backward, &job);
    TRY(panel_finish(ctx, &job));
out:
    return status;
}

/* The total is kept in oneDNN's order while the panels are added, then copied back exactly. */
static rv_status weight_panels(rv_ctx *ctx, const conv_job *base, rv_arena *arena) {
    rv_status status = RV_OK;
    panel_job job = {.base = *base};
    int ld = base->x->spikes.bits ? plane_ld(base->conv->in) : base->x->values.ld;
    int workers = rv_cpu_threads(ctx);
    TRY(panel_prepare(ctx, &job, RV_CONV_WEIGHT, base->y.B, ld, base->y.ld, arena));
    TRY(rv_arena_get(arena, (size_t)workers, job.floats * sizeof(float), &job.panels));
    for (job.newest = signal_frames(base->x) - 1; job.newest >= 0; job.newest -= job.steps) {
        job.steps = job.newest + 1 < workers ? job.newest + 1 : workers;
        rv_cpu_run(ctx, job.steps, panel_weight, &job);
        rv_cpu_run(ctx, (int)((job.floats + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK), panel_add, &job);
    }
    TRY(panel_finish(ctx, &job));
    TRY(rv_conv_plan_unpack(job.plan, RV_CONV_WEIGHT, job.weights, base->gw));
out:
    return status;
}

static void packed_destroy(conv_packed *packed) {
    if (!packed) return;
    rv_free(packed->weights[0]);
    rv_free(packed->weights[1]);
    rv_free(packed);
}

static rv_status packed_create(const rv_conv_plan *plan, conv_packed **out) {
    rv_status status = RV_OK;
    conv_packed *packed = NULL;
    TRY(rv_alloc(1, sizeof *packed, "packed convolution", &packed));
    packed->plan = plan;
    for (int p = 0; p < 2; p++)
        TRY(rv_alloc(rv_conv_plan_weights(plan, (rv_conv_product)p), sizeof(float),
                     "packed convolution weights", &packed->weights[p]));
    *out = packed;
    packed = NULL;
out:
    packed_destroy(packed);
    return status;
}
#endif

/* ---- ops -------------------------------------------------------------------------------- */
#ifdef RV_DNNL
#define BY_PANELS(conv, panels, plain) ((conv)->packed ? (panels) : (plain))
#else
#define BY_PANELS(conv, panels, plain) (plain)
#endif

rv_status RV_CPU(conv_pack)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, int B,
                            void **packed) {
    rv_status status = RV_OK;
    (void)queue;
#ifdef RV_DNNL
    const rv_conv_plan *plan;
    conv_packed *p = *packed;
    if (!rv_cpu_convs(ctx)) return RV_OK; /* plain loops need none */
    rv_cpu_one_thread();
    TRY(rv_conv_plan_get(rv_cpu_convs(ctx), conv, B > 0 ? B : 1, plane_ld(conv->in),
                         plane_ld(conv->out), &plan));
    if (p && p->plan != plan) {
        packed_destroy(p);
        *packed = p = NULL;
    }
    if (!p) {
        TRY(packed_create(plan, &p));
        *packed = p;
    }
    TRY(rv_conv_plan_pack(plan, RV_CONV_FORWARD, conv->weight, p->weights[RV_CONV_FORWARD]));
    TRY(rv_conv_plan_pack(plan, RV_CONV_BACKWARD, conv->weight, p->weights[RV_CONV_BACKWARD]));
out:
#else
    (void)ctx, (void)conv, (void)B, (void)packed;
#endif
    return status;
}

void RV_CPU(conv_unpack)(rv_ctx *ctx, void *packed) {
    (void)ctx;
#ifdef RV_DNNL
    packed_destroy(packed);
#else
    (void)packed;
#endif
}

rv_status RV_CPU(conv_forward)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv,
                               const rv_signal *x, rv_values y, rv_arena *arena) {
    size_t mark = rv_arena_mark(arena);
    conv_job job = {.conv = conv, .x = x, .y = y};
    (void)queue;
    rv_status status =
        BY_PANELS(conv, forward_panels(ctx, &job, arena), forward_plain(ctx, &job, arena));
    rv_arena_release(arena, mark);
    return status;
}

rv_status RV_CPU(conv_backward)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, rv_values g,
                                rv_values gx, bool add, rv_arena *arena) {
    size_t mark = rv_arena_mark(arena);
    conv_job job = {.conv = conv, .y = g, .gx = gx, .add = add};
    (void)queue;
    rv_status status =
        BY_PANELS(conv, backward_panels(ctx, &job, arena), backward_plain(ctx, &job, arena));
    rv_arena_release(arena, mark);
    return status;
}

rv_status RV_CPU(conv_weight)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, const rv_signal *x,
                              rv_values g, float *gw, float *gb, rv_arena *arena) {
    size_t mark = rv_arena_mark(arena);
    conv_job job = {.conv = conv, .x = x, .y = g, .gw = gw, .gb = gb};
    (void)queue;
    rv_status status =
        BY_PANELS(conv, weight_panels(ctx, &job, arena), weight_plain(ctx, &job, arena));
    if (status == RV_OK && gb) rv_cpu_run(ctx, conv->out.c, bias_gradient, &job);
    rv_arena_release(arena, mark);
    return status;
}
