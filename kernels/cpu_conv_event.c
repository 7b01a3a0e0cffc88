/* Convolution of spikes, event form: see cpu_conv.h. */
#include "kernels/cpu_conv.h"
#include "kernels/cpu_event.h"
#include "kernels/cpu_rows.h"

#include <string.h>

/* Sizes every function needs. */
typedef struct shape {
    int in_area, out_area, group_in, group_out, ld, taps; /* ld: floats of a row */
} shape;
static shape shape_of(const rv_conv *conv) {
    int group_out = conv->out.c / conv->groups;
    return (shape){
        conv->in.h * conv->in.w,          conv->out.h * conv->out.w,
        conv->in.c / conv->groups,        group_out,
        rv_round_up(group_out, RV_LANES), conv->window.kernel[0] * conv->window.kernel[1]};
}

size_t rv_cpu_conv_event_floats(const rv_conv *conv) {
    shape s = shape_of(conv);
    return (size_t)(conv->groups * s.taps) * (size_t)s.group_in * (size_t)s.ld;
}

/* Where the weight of output o, group channel i, tap k lies in the rows. */
static size_t row_place(const shape *s, int o, int i, int k) {
    size_t row = ((size_t)(o / s->group_out) * (size_t)s->taps + (size_t)k) * (size_t)s->group_in;
    return (row + (size_t)i) * (size_t)s->ld + (size_t)(o % s->group_out);
}

void rv_cpu_conv_event_pack(const rv_conv *conv, const float *plain, float *rows) {
    shape s = shape_of(conv);
    memset(rows, 0, rv_cpu_conv_event_floats(conv) * sizeof *rows);
    for (int o = 0; o < conv->out.c; o++)
        for (int i = 0; i < s.group_in; i++)
            for (int k = 0; k < s.taps; k++)
                rows[row_place(&s, o, i, k)] = *plain++;
}

/* The way back: an exact copy, so a gradient may be carried into rows and out again. */
static void event_unpack(const rv_conv *conv, const float *rows, float *plain) {
    shape s = shape_of(conv);
    for (int o = 0; o < conv->out.c; o++)
        for (int i = 0; i < s.group_in; i++)
            for (int k = 0; k < s.taps; k++)
                *plain++ = rows[row_place(&s, o, i, k)];
}

/* to[c][r] = from[r][c], in blocks that stay in registers and lines. */
static void transpose(const float *from, int rows, int columns, size_t ld_from, float *to,
                      size_t ld_to) {
    enum { SIDE = 16 };
    for (int r = 0; r < rows; r += SIDE)
        for (int c = 0; c < columns; c += SIDE) {
            int height = rows - r < SIDE ? rows - r : SIDE;
            int width = columns - c < SIDE ? columns - c : SIDE;
            for (int j = 0; j < width; j++)
                for (int i = 0; i < height; i++)
                    to[(size_t)(c + j) * ld_to + (size_t)(r + i)] =
                        from[(size_t)(r + i) * ld_from + (size_t)(c + j)];
        }
}

/* First entry of an ascending list that is at least `least`. */
/* Lists are ascending and units run channel by channel, so a group or channel is one stretch. */
static size_t lower_bound(const uint32_t *list, size_t count, size_t least) {
    size_t low = 0;
    while (low < count) {
        size_t middle = (low + count) / 2;
        if (list[middle] < least)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* ---- forward ------------------------------------------------------------------------------ */
typedef struct forward_job {
    const rv_conv *conv;
    const float *rows;
    shape s;
    rv_values y;
    rv_lists lists;
    float *bias;   /* [groups][ld], or NULL */
    char *scratch; /* per worker */
    size_t scratch_bytes;
} forward_job;

/* A worker's scratch. */
typedef struct bench {
    uint32_t *start;   /* [in_area + 1] */
    uint32_t *channel; /* spikes of a group by place: the channels of each, ascending */
    uint32_t *index;   /* rows under one window */
    float *sums;       /* [out_area][ld] */
} bench;
/* Bytes of a bench at `base`, which `out` is pointed into; NULL: only count them. */
static size_t bench_layout(const shape *s, char *base, bench *out) {
    size_t counts[4] = {(size_t)s->in_area + 1, (size_t)s->in_area * (size_t)s->group_in,
                        (size_t)s->taps * (size_t)s->group_in, (size_t)s->out_area * (size_t)s->ld};
    size_t at[5] = {0};
    for (int k = 0; k < 4; k++)
        at[k + 1] = at[k] + (counts[k] + RV_LANES - 1) / RV_LANES * RV_LANES * 4;
    if (out)
        *out = (bench){(uint32_t *)(void *)(base + at[0]), (uint32_t *)(void *)(base + at[1]),
                       (uint32_t *)(void *)(base + at[2]), (float *)(void *)(base + at[3])};
    return at[4];
}

/* Counting sort of a group's spikes (ascending units from `first` on) by place. */
static void sort_by_place(const shape *s, const uint32_t *list, size_t count, size_t first,
                          bench *to) {
    uint32_t sum = 0, area = (uint32_t)s->in_area;
    memset(to->start, 0, ((size_t)s->in_area + 1) * sizeof *to->start);
    for (size_t k = 0; k < count; k++)
        to->start[(uint32_t)(list[k] - first) % area]++;
    for (int p = 0; p <= s->in_area; p++) {
        uint32_t here = to->start[p];
        to->start[p] = sum;
        sum += here;
    }
    for (size_t k = 0; k < count; k++) {
        uint32_t unit = (uint32_t)(list[k] - first);
        to->channel[to->start[unit % area]++] = unit / area;
    }
    /* Filling moved every start to its end, which is the next one's start. */
    memmove(to->start + 1, to->start, (size_t)s->in_area * sizeof *to->start);
    to->start[0] = 0;
}

/* Rows of the spikes under the window of output (oy, ox), in the order of the taps. */
static size_t window_rows(const forward_job *job, const bench *from, int oy, int ox) {
    const rv_conv *conv = job->conv;
    const rv_window *w = &conv->window;
    size_t count = 0;
    for (int ky = 0; ky < w->kernel[0]; ky++) {
        int iy = oy * w->stride[0] - w->padding[0] + ky * w->dilation[0];
        if (iy < 0 || iy >= conv->in.h) continue;
        for (int kx = 0; kx < w->kernel[1]; kx++) {
            int ix = ox * w->stride[1] - w->padding[1] + kx * w->dilation[1];
            if (ix < 0 || ix >= conv->in.w) continue;
            int place = iy * conv->in.w + ix;
            uint32_t row = (uint32_t)((ky * w->kernel[1] + kx) * job->s.group_in);
            for (uint32_t k = from->start[place]; k < from->start[place + 1]; k++)
                from->index[count++] = row + from->channel[k];
        }
    }
    return count;
}

/* One image. Spikes are sorted by place first: then a window is a walk over its few places, and
 * its sum stays in registers however many channels there are. */
static void forward_row(void *argument, int r, int worker) {
    const forward_job *job = argument;
    const shape *s = &job->s;
    const uint32_t *list = job->lists.index + job->lists.start[r];
    size_t total = job->lists.start[r + 1] - job->lists.start[r];
    size_t group_units = (size_t)s->group_in * (size_t)s->in_area;
    float *y = values_row(job->y, r / job->y.B, r % job->y.B);
    bench b;
    bench_layout(s, job->scratch + (size_t)worker * job->scratch_bytes, &b);
    for (int g = 0; g < job->conv->groups; g++) {
        size_t from = lower_bound(list, total, (size_t)g * group_units);
        size_t to = lower_bound(list, total, (size_t)(g + 1) * group_units);
        const float *rows = job->rows + (size_t)g * (size_t)(s->taps * s->group_in) * (size_t)s->ld;
        const float *bias = job->bias ? job->bias + (size_t)g * (size_t)s->ld : NULL;
        sort_by_place(s, list + from, to - from, (size_t)g * group_units, &b);
        for (int place = 0; place < s->out_area; place++) {
            size_t count = window_rows(job, &b, place / job->conv->out.w, place % job->conv->out.w);
            float *sums = b.sums + (size_t)place * (size_t)s->ld;
            for (int col = 0; col < s->ld; col += EVENT_TILE)
                event_sum(s->ld - col < EVENT_TILE ? s->ld - col : EVENT_TILE, rows + col,
                          (size_t)s->ld, b.index, count, bias ? bias + col : NULL, sums + col);
        }
        /* Sums lie with the channels of a place together; units want the places of a channel. */
        transpose(b.sums, s->out_area, s->group_out, (size_t)s->ld,
                  y + (size_t)g * (size_t)(s->group_out * s->out_area), (size_t)s->out_area);
    }
    row_pad(job->y, y);
}

rv_status rv_cpu_conv_event_forward(rv_ctx *ctx, const rv_conv *conv, rv_spikes x, rv_values y,
                                    rv_arena *arena) {
    rv_status status = RV_OK;
    const rv_conv_packed *packed = conv->packed;
    size_t mark = rv_arena_mark(arena);
    int frames = x.stride_t ? x.T : 1;
    forward_job job = {.conv = conv, .rows = packed->event, .s = shape_of(conv), .y = y};
    job.scratch_bytes = bench_layout(&job.s, NULL, NULL);
    TRY(rv_cpu_lists(ctx, x, frames, arena, &job.lists));
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job.scratch_bytes, &job.scratch));
    /* Padded like the rows, for sums start from whole vectors of it. */
    if (conv->bias) {
        size_t floats = (size_t)conv->groups * (size_t)job.s.ld;
        TRY(rv_arena_get(arena, floats, sizeof(float), &job.bias));
        memset(job.bias, 0, floats * sizeof(float));
        for (int o = 0; o < conv->out.c; o++)
            job.bias[o / job.s.group_out * job.s.ld + o % job.s.group_out] = conv->bias[o];
    }
    rv_cpu_run(ctx, frames * x.B, forward_row, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}

/* ---- weight gradient ----------------------------------------------------------------------- */
typedef struct weight_job {
    const rv_conv *conv;
    shape s;
    rv_values g;
    rv_lists lists;
    int t;
    float *turned; /* [B][groups][out_area][ld] adjoints of step t, units of a place together */
    float *rows;   /* the gradient in rows */
    int *row_map, *column_map; /* [kernel][in]: output row * width, column; -1: none */
    uint32_t *scratch;         /* per worker: places, then rows of adjoints, of one channel */
    size_t scratch_words;
} weight_job;

/* Which output of one axis an input reaches through each tap, or -1: strides skip some. */
static void fill_map(const rv_window *w, int axis, int in, int out, int factor, int *map) {
    for (int k = 0; k < w->kernel[axis]; k++)
        for (int i = 0; i < in; i++) {
            int at = i + w->padding[axis] - k * w->dilation[axis];
            bool hit = at >= 0 && at % w->stride[axis] == 0 && at / w->stride[axis] < out;
            *map++ = hit ? at / w->stride[axis] * factor : -1;
        }
}

/* Adjoint of one sample with the channels of a place together, so that a spike adds one row. */
static void turn_row(void *argument, int b, int worker) {
    const weight_job *job = argument;
    const shape *s = &job->s;
    size_t group = (size_t)s->out_area * (size_t)s->ld;
    const float *g = values_row(job->g, job->t, b);
    (void)worker;
    for (int k = 0; k < job->conv->groups; k++) {
        float *to = job->turned + ((size_t)b * (size_t)job->conv->groups + (size_t)k) * group;
        if (s->ld != s->group_out) memset(to, 0, group * sizeof *to);
        transpose(g + (size_t)k * (size_t)(s->group_out * s->out_area), s->group_out, s->out_area,
                  (size_t)s->out_area, to, (size_t)s->ld);
    }
}

/* All taps of one channel from the places of its spikes in one sample. */
static void channel_taps(const weight_job *job, int channel, int b, const uint32_t *place,
                         size_t count, uint32_t *index) {
    const shape *s = &job->s;
    const rv_conv *conv = job->conv;
    int group = channel / s->group_in, width = conv->in.w;
    size_t area = (size_t)s->out_area * (size_t)s->ld;
    const float *g = job->turned + ((size_t)b * (size_t)conv->groups + (size_t)group) * area;
    for (int k = 0; k < s->taps; k++) {
        const int *rows = job->row_map + k / conv->window.kernel[1] * conv->in.h;
        const int *columns = job->column_map + k % conv->window.kernel[1] * width;
        float *to = job->rows + row_place(s, group * s->group_out, channel % s->group_in, k);
        size_t hits = 0;
        for (size_t e = 0; e < count; e++) {
            int row = rows[(int)place[e] / width], column = columns[(int)place[e] % width];
            index[hits] = (uint32_t)(row + column);
            hits += row >= 0 && column >= 0;
        }
        for (int col = 0; hits > 0 && col < s->ld; col += EVENT_TILE)
            event_sum(s->ld - col < EVENT_TILE ? s->ld - col : EVENT_TILE, g + col, (size_t)s->ld,
                      index, hits, to + col, to + col);
    }
}

/* Channels of one item: together their gradients and one sample's adjoints stay in the cache. */
enum { CHANNELS = 16 };

static void channels_weight(void *argument, int item, int worker) {
    const weight_job *job = argument;
    uint32_t *place = job->scratch + (size_t)worker * job->scratch_words;
    uint32_t *index = place + job->s.in_area, area = (uint32_t)job->s.in_area;
    int first = item * CHANNELS, last = first + CHANNELS;
    if (last > job->conv->in.c) last = job->conv->in.c;
    for (int b = 0; b < job->g.B; b++) {
        size_t r = (size_t)job->t * (size_t)job->g.B + (size_t)b;
        const uint32_t *list = job->lists.index + job->lists.start[r];
        size_t total = job->lists.start[r + 1] - job->lists.start[r];
        size_t k = lower_bound(list, total, (size_t)first * area);
        for (int channel = first; channel < last; channel++) {
            size_t count = 0, end = (size_t)(channel + 1) * area;
            for (; k < total && list[k] < end; k++)
                place[count++] = list[k] - (uint32_t)channel * area;
            if (count) channel_taps(job, channel, b, place, count, index);
        }
    }
}

rv_status rv_cpu_conv_event_weight(rv_ctx *ctx, const rv_conv *conv, rv_spikes x, rv_values g,
                                   float *gw, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena), area;
    int frames = x.stride_t ? x.T : 1;
    weight_job job = {.conv = conv, .s = shape_of(conv), .g = g};
    const int *kernel = conv->window.kernel;
    area = (size_t)job.s.out_area * (size_t)job.s.ld;
    job.scratch_words = 2 * (size_t)job.s.in_area;
    TRY(rv_cpu_lists(ctx, x, frames, arena, &job.lists));
    TRY(rv_arena_get(arena, (size_t)(g.B * conv->groups), area * sizeof(float), &job.turned));
    TRY(rv_arena_get(arena, rv_cpu_conv_event_floats(conv), sizeof(float), &job.rows));
    TRY(rv_arena_get(arena, (size_t)(kernel[0] * conv->in.h), sizeof(int), &job.row_map));
    TRY(rv_arena_get(arena, (size_t)(kernel[1] * conv->in.w), sizeof(int), &job.column_map));
    TRY(rv_arena_get(arena, (size_t)rv_cpu_threads(ctx), job.scratch_words * sizeof(uint32_t),
                     &job.scratch));
    fill_map(&conv->window, 0, conv->in.h, conv->out.h, conv->out.w, job.row_map);
    fill_map(&conv->window, 1, conv->in.w, conv->out.w, 1, job.column_map);
    rv_cpu_conv_event_pack(conv, gw, job.rows);
    /* A barrier after each step keeps the order of sums; within it no two items share a gradient.
     */
    for (job.t = frames - 1; job.t >= 0; job.t--) {
        rv_cpu_run(ctx, g.B, turn_row, &job);
        rv_cpu_run(ctx, (conv->in.c + CHANNELS - 1) / CHANNELS, channels_weight, &job);
    }
    event_unpack(conv, job.rows, gw);
out:
    rv_arena_release(arena, mark);
    return status;
}
