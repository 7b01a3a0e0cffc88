/*
 * Convolution. Dense products are panels of images of one time step run by oneDNN (dnnl_conv.h), or
 * plain loops in the order of the weights where it is absent or nothing is packed; spikes may take
 * the event form (cpu_conv.h). Weight gradients add t descending onto what is there, so bits depend
 * on neither chunks nor threads.
 */
#include "kernels/cpu_conv.h"
#include "kernels/cpu_rows.h"

#include <string.h>

static size_t filter_floats(const rv_conv *conv) { /* weights of one output channel */
    return (size_t)(conv->in.c / conv->groups) *
           (size_t)(conv->window.kernel[0] * conv->window.kernel[1]);
}
/* The arena belongs to the thread that called the op, so workers get their scratch before they
 * start. */
rv_status rv_cpu_conv_scratch(rv_ctx *ctx, rv_conv_job *job, size_t floats, rv_arena *arena) {
    job->scratch_floats = (floats + RV_LANES - 1) / RV_LANES * RV_LANES;
    return rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job->scratch_floats * sizeof(float),
                        &job->scratch);
}

/* ---- plain loops ------------------------------------------------------------------------- */
/* One weight of output channel o: the input plane it reads, and the outputs it reaches. */
typedef struct tap {
    int channel, y0, y1, x0, x1; /* output rows and columns [y0, y1), [x0, x1) */
    int dy, dx;                  /* input row = output row * stride + dy */
} tap;

/* Outputs [first, last) of one axis whose tap, `shift` away from the window's first input, lies
 * inside: what is left out would read padding, which is zero. Knowing it beforehand keeps tests out
 * of the inner loops, so they vectorise over output columns. */
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
/* The input row a tap reads for output row oy. */
static const float *tap_row(const rv_conv *conv, const float *image, const tap *t, int oy) {
    int iy = oy * conv->window.stride[0] + t->dy;
    return image + ((size_t)t->channel * (size_t)conv->in.h + (size_t)iy) * (size_t)conv->in.w;
}

/* One image: every output starts from the bias and adds its weights in the order of the file. */
static void forward_row(void *argument, int row, int worker) {
    const rv_conv_job *job = argument;
    const rv_conv *conv = job->conv;
    int t = row / job->y.B, b = row % job->y.B, stride = conv->window.stride[1];
    const float *x = signal_row(job->x, t, b, conv_scratch(job, worker));
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

/* Adjoint of one image, gathered apart and added once: what an earlier consumer left there must
 * not change the order of the sums within this one. */
static void backward_row(void *argument, int row, int worker) {
    const rv_conv_job *job = argument;
    const rv_conv *conv = job->conv;
    int t = row / job->y.B, b = row % job->y.B, stride = conv->window.stride[1];
    const float *g = values_row(job->y, t, b), *weight = conv->weight;
    float *gx = values_row(job->gx, t, b), *sum = conv_scratch(job, worker);
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
static void weight_channel(void *argument, int o, int worker) {
    const rv_conv_job *job = argument;
    const rv_conv *conv = job->conv;
    int stride = conv->window.stride[1];
    float *gw = job->gw + (size_t)o * filter_floats(conv);
    (void)worker;
    for (size_t k = 0; k < filter_floats(conv); k++) {
        tap p = tap_of(conv, o, k);
        double sum = 0.0;
        for (int b = 0; b < job->y.B; b++) {
            const float *x = job->scratch + (size_t)b * (size_t)conv_ld(conv->in);
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

/* Side by side in `to`, whatever the signal is. */
void rv_cpu_conv_images(const rv_signal *x, int t, int first, int count, int ld, float *to) {
    for (int b = first; b < first + count; b++, to += ld) {
        const float *row = signal_row(x, t, b, to);
        if (row != to) memcpy(to, row, (size_t)signal_units(x) * sizeof *to);
    }
}

/* gb[o] += each step's sum over samples and plane, t descending. Channels side by side in memory
 * are taken together, so that rows are read in stretches. */
enum { BIAS_CHANNELS = 16 };
static void bias_gradient(void *argument, int item, int worker) {
    const rv_conv_job *job = argument;
    int n = job->conv->out.h * job->conv->out.w, first = item * BIAS_CHANNELS;
    int count = job->conv->out.c - first < BIAS_CHANNELS ? job->conv->out.c - first : BIAS_CHANNELS;
    (void)worker;
    for (int t = signal_frames(job->x) - 1; t >= 0; t--) {
        double sum[BIAS_CHANNELS] = {0};
        for (int b = 0; b < job->y.B; b++)
            for (int o = 0; o < count; o++)
                sum[o] += row_sum(values_row(job->y, t, b) + (size_t)(first + o) * (size_t)n, n);
        for (int o = 0; o < count; o++)
            job->gb[first + o] += (float)sum[o];
    }
}

static rv_status plain_forward(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    TRY(rv_cpu_conv_scratch(ctx, job, row_floats(signal_units(job->x)), arena));
    rv_cpu_run(ctx, signal_frames(job->x) * job->y.B, forward_row, job);
out:
    return status;
}
static rv_status plain_backward(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    TRY(rv_cpu_conv_scratch(ctx, job, (size_t)job->gx.ld, arena));
    rv_cpu_run(ctx, values_frames(job->gx) * job->gx.B, backward_row, job);
out:
    return status;
}
static rv_status plain_weight(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    int ld = conv_ld(job->conv->in);
    /* A row of bits unpacks to whole words: one row more than B is room enough. */
    TRY(rv_arena_get(arena, (size_t)(job->y.B + 1) * (size_t)ld + 32, sizeof(float),
                     &job->scratch));
    for (job->t = signal_frames(job->x) - 1; job->t >= 0; job->t--) {
        rv_cpu_conv_images(job->x, job->t, 0, job->y.B, ld, job->scratch);
        rv_cpu_run(ctx, job->conv->out.c, weight_channel, job);
    }
out:
    return status;
}

/* ---- ops -------------------------------------------------------------------------------- */
static void packed_destroy(rv_conv_packed *packed) {
    if (!packed) return;
    rv_free(packed->event);
    rv_free(packed->weights[0]);
    rv_free(packed->weights[1]);
    rv_free(packed);
}

/* Packed for events and given events: analog input of the same layer has no event form. */
static bool by_events(const rv_conv *conv, const rv_signal *x) {
    const rv_conv_packed *packed = conv->packed;
    return packed && packed->event && x->spikes.bits && conv->form == RV_FORM_EVENT;
}

/* The dense forms. */
typedef rv_status (*product)(rv_ctx *ctx, rv_conv_job *job, rv_arena *arena);
typedef struct dense_form {
    product forward, backward, weight;
} dense_form;
static const dense_form plain_form = {plain_forward, plain_backward, plain_weight};
#ifdef RV_DNNL
static const dense_form panel_form = {rv_cpu_conv_panel_forward, rv_cpu_conv_panel_backward,
                                      rv_cpu_conv_panel_weight};
#endif

/* oneDNN where the weights were packed for it; tests run the loops by packing nothing. */
static const dense_form *dense_form_of(const rv_conv *conv) {
#ifdef RV_DNNL
    const rv_conv_packed *packed = conv->packed;
    if (packed && packed->plan) return &panel_form;
#else
    (void)conv;
#endif
    return &plain_form;
}

rv_status RV_CPU(conv_pack)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, int B,
                            void **packed) {
    rv_status status = RV_OK;
    rv_conv_packed *p = *packed;
    (void)queue;
    /* Kept in *packed at once, so that whatever fails below is freed with the version. */
    if (!p) {
        TRY(rv_alloc(1, sizeof *p, "packed convolution", &p));
        *packed = p;
    }
    if (conv->form == RV_FORM_EVENT && !conv->no_forward) {
        if (!p->event)
            TRY(rv_alloc(rv_cpu_conv_event_floats(conv), sizeof(float),
                         "packed convolution weights", &p->event));
        rv_cpu_conv_event_pack(conv, conv->weight, p->event);
    }
#ifdef RV_DNNL
    if (rv_cpu_convs(ctx)) TRY(rv_cpu_conv_panel_pack(ctx, conv, B > 0 ? B : 1, p));
#else
    (void)ctx, (void)B;
#endif
out:
    return status;
}

void RV_CPU(conv_unpack)(rv_ctx *ctx, void *packed) {
    (void)ctx;
    packed_destroy(packed);
}

rv_status RV_CPU(conv_forward)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv,
                               const rv_signal *x, rv_values y, rv_arena *arena) {
    rv_status status;
    size_t mark = rv_arena_mark(arena);
    rv_conv_job job = {.conv = conv, .x = x, .y = y};
    (void)queue;
    if (by_events(conv, x))
        status = rv_cpu_conv_event_forward(ctx, conv, x->spikes, y, arena);
    else
        status = dense_form_of(conv)->forward(ctx, &job, arena);
    rv_arena_release(arena, mark);
    return status;
}

rv_status RV_CPU(conv_backward)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, rv_values g,
                                rv_values gx, bool add, rv_arena *arena) {
    size_t mark = rv_arena_mark(arena);
    rv_conv_job job = {.conv = conv, .y = g, .gx = gx, .add = add};
    (void)queue;
    rv_status status = dense_form_of(conv)->backward(ctx, &job, arena);
    rv_arena_release(arena, mark);
    return status;
}

rv_status RV_CPU(conv_weight)(rv_ctx *ctx, rv_queue *queue, const rv_conv *conv, const rv_signal *x,
                              rv_values g, float *gw, float *gb, rv_arena *arena) {
    rv_status status;
    size_t mark = rv_arena_mark(arena);
    rv_conv_job job = {.conv = conv, .x = x, .y = g, .gw = gw, .gb = gb};
    (void)queue;
    if (by_events(conv, x))
        status = rv_cpu_conv_event_weight(ctx, conv, x->spikes, g, gw, arena);
    else
        status = dense_form_of(conv)->weight(ctx, &job, arena);
    if (status == RV_OK && gb)
        rv_cpu_run(ctx, (conv->out.c + BIAS_CHANNELS - 1) / BIAS_CHANNELS, bias_gradient, &job);
    rv_arena_release(arena, mark);
    return status;
}
