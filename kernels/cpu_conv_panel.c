/*
 * Dense convolution by oneDNN in panels of some images of one time step: threads take different
 * panels. How many images make a panel depends on the micro-batch alone, so neither threads nor
 * chunks can change bits. See dnnl_conv.h.
 */
#include "kernels/cpu_conv.h"
#include "kernels/cpu_rows.h"
#include "kernels/dnnl_conv.h"

#include <string.h>

#ifdef RV_DNNL

typedef struct panel_job {
    rv_conv_job base;
    const rv_conv_plan *plan;
    float *weights;    /* packed; of the weight gradient: its total */
    float *panels;     /* weight gradient: one per panel of a round */
    size_t floats;     /* of packed weights */
    int images, each;  /* of a panel; panels of a step */
    int newest, count; /* a round: panels newest, newest - 1, ... */
    rv_status *result; /* per worker */
} panel_job;

/* Floats of a gradient one worker adds at a time: a few times the first cache's lines. */
enum { WEIGHT_BLOCK = 4096 };

/* Images of a panel: the largest share of B that leaves threads enough panels even of a single step
 * (a frame held for all steps), and whose images in oneDNN's order stay near in the cache. All of
 * a batch that has only small shares. */
static int panel_images(int B) {
    enum { MOST = 32, LEAST = 8 };
    int images = B < MOST ? B : MOST;
    while (B % images)
        images--;
    return images < LEAST ? B : images;
}

static size_t panel_floats(rv_plane plane, int B) { /* whole words of bits may pass the end */
    return (size_t)B * (size_t)conv_ld(plane) + 32;
}

/* The images of a panel, `first` of step t on: where they lie, or unpacked into `to`. */
static float *panel_in(const panel_job *job, int t, int first, float *to) {
    const rv_conv_job *base = &job->base;
    if (!base->x->spikes.bits) return values_row(base->x->values, t, first);
    rv_cpu_conv_images(base->x, t, first, job->images, conv_ld(base->conv->in), to);
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

static void panel_forward(void *argument, int panel, int worker) {
    const panel_job *job = argument;
    const rv_conv_job *base = &job->base;
    int t = panel / job->each, first = panel % job->each * job->images;
    float *scratch = conv_scratch(base, worker), *y = values_row(base->y, t, first);
    float *in = panel_in(job, t, first, scratch);
    scratch += panel_floats(base->conv->in, job->images);
    panel_run(job, worker, RV_CONV_FORWARD, in, job->weights, y, scratch);
    for (int b = first; b < first + job->images; b++)
        row_pad(base->y, values_row(base->y, t, b));
}

/* oneDNN overwrites its result; to add, the panel is made apart first. */
static void panel_backward(void *argument, int panel, int worker) {
    const panel_job *job = argument;
    const rv_conv_job *base = &job->base;
    int t = panel / job->each, first = panel % job->each * job->images;
    float *scratch = conv_scratch(base, worker), *gx = values_row(base->gx, t, first);
    float *to = base->add ? scratch : gx, *g = values_row(base->y, t, first);
    scratch += panel_floats(base->conv->in, job->images);
    panel_run(job, worker, RV_CONV_BACKWARD, to, job->weights, g, scratch);
    for (int b = 0; b < job->images; b++, gx += base->gx.ld, to += base->gx.ld) {
        for (int u = 0; base->add && u < base->gx.n; u++)
            gx[u] += to[u];
        row_pad(base->gx, gx);
    }
}

/* Panel newest - k of the round into its own sum: which worker takes it cannot matter. */
static void panel_weight(void *argument, int k, int worker) {
    const panel_job *job = argument;
    const rv_conv_job *base = &job->base;
    int panel = job->newest - k, t = panel / job->each, first = panel % job->each * job->images;
    float *scratch = conv_scratch(base, worker);
    float *in = panel_in(job, t, first, scratch);
    scratch += panel_floats(base->conv->in, job->images);
    panel_run(job, worker, RV_CONV_WEIGHT, in, job->panels + (size_t)k * job->floats,
              values_row(base->y, t, first), scratch);
}

/* Onto the total, newest panel first; blocks of weights are independent of each other. */
static void panel_add(void *argument, int block, int worker) {
    const panel_job *job = argument;
    size_t first = (size_t)block * WEIGHT_BLOCK, last = first + WEIGHT_BLOCK;
    (void)worker;
    if (last > job->floats) last = job->floats;
    for (int k = 0; k < job->count; k++) {
        const float *panel = job->panels + (size_t)k * job->floats;
        for (size_t i = first; i < last; i++)
            job->weights[i] += panel[i];
    }
}

static rv_status plan_of(rv_ctx *ctx, const rv_conv *conv, int images, int ld_in, int ld_out,
                         const rv_conv_plan **out) {
    bool amx = rv_cpu_isa(ctx) == RV_ISA_AMX;
    return rv_conv_plan_get(rv_cpu_convs(ctx), conv, amx, images, ld_in, ld_out, out);
}

/* Plan, packed weights and scratch of a product whose steps have B images. */
static rv_status panel_prepare(rv_ctx *ctx, panel_job *job, rv_conv_product kind, int B, int ld_in,
                               int ld_out, rv_arena *arena) {
    rv_status status = RV_OK;
    const rv_conv *conv = job->base.conv;
    const rv_conv_packed *packed = conv->packed;
    size_t workers = (size_t)rv_cpu_threads(ctx);
    rv_cpu_one_thread();
    job->images = panel_images(B);
    job->each = B / job->images;
    TRY(plan_of(ctx, conv, job->images, ld_in, ld_out, &job->plan));
    job->floats = rv_conv_plan_weights(job->plan, kind);
    TRY(rv_arena_get(arena, workers, sizeof *job->result, &job->result));
    memset(job->result, 0, workers * sizeof *job->result);
    TRY(rv_cpu_conv_scratch(
        ctx, &job->base,
        panel_floats(conv->in, job->images) + rv_conv_plan_scratch(job->plan, kind), arena));
    if (kind != RV_CONV_WEIGHT && packed->weights[kind] &&
        rv_conv_plan_fits(job->plan, packed->plan, kind)) {
        job->weights = packed->weights[kind];
        goto out;
    }
    /* Another number of images (a ragged batch) may want another order; or it was left out. */
    TRY(rv_arena_get(arena, job->floats, sizeof(float), &job->weights));
    TRY(rv_conv_plan_pack(job->plan, kind, kind == RV_CONV_WEIGHT ? job->base.gw : conv->weight,
                          job->weights));
out:
    return status;
}

/* A worker cannot fail the op itself: its status waits here, and so does its thread's message. */
static rv_status panel_finish(rv_ctx *ctx, const panel_job *job) {
    for (int w = 0; w < rv_cpu_threads(ctx); w++)
        if (job->result[w] != RV_OK)
            return rv_fail(job->result[w], "convolution: a product of oneDNN failed");
    return RV_OK;
}

/* Rows of bits are unpacked to our own distance, values keep theirs. */
rv_status rv_cpu_conv_panel_forward(rv_ctx *ctx, rv_conv_job *base, rv_arena *arena) {
    rv_status status = RV_OK;
    panel_job job = {.base = *base};
    int ld = base->x->spikes.bits ? conv_ld(base->conv->in) : base->x->values.ld;
    TRY(panel_prepare(ctx, &job, RV_CONV_FORWARD, base->y.B, ld, base->y.ld, arena));
    rv_cpu_run(ctx, signal_frames(base->x) * job.each, panel_forward, &job);
    TRY(panel_finish(ctx, &job));
out:
    return status;
}

rv_status rv_cpu_conv_panel_backward(rv_ctx *ctx, rv_conv_job *base, rv_arena *arena) {
    rv_status status = RV_OK;
    panel_job job = {.base = *base};
    TRY(panel_prepare(ctx, &job, RV_CONV_BACKWARD, base->gx.B, base->gx.ld, base->y.ld, arena));
    rv_cpu_run(ctx, values_frames(base->gx) * job.each, panel_backward, &job);
    TRY(panel_finish(ctx, &job));
out:
    return status;
}

/* The total is kept in oneDNN's order while the panels are added, then copied back exactly. */
rv_status rv_cpu_conv_panel_weight(rv_ctx *ctx, rv_conv_job *base, rv_arena *arena) {
    rv_status status = RV_OK;
    panel_job job = {.base = *base};
    int ld = base->x->spikes.bits ? conv_ld(base->conv->in) : base->x->values.ld;
    int workers = rv_cpu_threads(ctx);
    TRY(panel_prepare(ctx, &job, RV_CONV_WEIGHT, base->y.B, ld, base->y.ld, arena));
    TRY(rv_arena_get(arena, (size_t)workers, job.floats * sizeof(float), &job.panels));
    job.newest = signal_frames(base->x) * job.each - 1;
    for (; job.newest >= 0; job.newest -= job.count) {
        job.count = job.newest + 1 < workers ? job.newest + 1 : workers;
        rv_cpu_run(ctx, job.count, panel_weight, &job);
        rv_cpu_run(ctx, (int)((job.floats + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK), panel_add, &job);
    }
    TRY(panel_finish(ctx, &job));
    TRY(rv_conv_plan_unpack(job.plan, RV_CONV_WEIGHT, job.weights, base->gw));
out:
    return status;
}

/* Rebuilt in place unless other rows want another order. */
rv_status rv_cpu_conv_panel_pack(rv_ctx *ctx, const rv_conv *conv, int B, rv_conv_packed *packed) {
    rv_status status = RV_OK;
    const rv_conv_plan *plan;
    rv_cpu_one_thread();
    TRY(plan_of(ctx, conv, panel_images(B), conv_ld(conv->in), conv_ld(conv->out), &plan));
    for (int p = RV_CONV_FORWARD; p <= RV_CONV_BACKWARD; p++) {
        if (!packed->plan || !rv_conv_plan_fits(plan, packed->plan, (rv_conv_product)p)) {
            rv_free(packed->weights[p]);
            packed->weights[p] = NULL;
        }
        if (p == RV_CONV_FORWARD ? conv->no_forward : conv->no_backward) continue;
        if (!packed->weights[p])
            TRY(rv_alloc(rv_conv_plan_weights(plan, (rv_conv_product)p), sizeof(float),
                         "packed convolution weights", &packed->weights[p]));
        TRY(rv_conv_plan_pack(plan, (rv_conv_product)p, conv->weight, packed->weights[p]));
    }
    packed->plan = plan;
out:
    return status;
}

#endif
