/*
 * Batch normalisation per channel over the samples of a micro-batch at each step, or over all steps
 * of a sequence. Sums are doubles: planes in blocks of 256 (cpu_rows.h), samples ascending, steps
 * ascending; so the bits depend on neither threads nor chunks.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"

#include <math.h>

typedef struct norm_job {
    const rv_norm *norm;
    rv_values x, y, g, gx;
    bool add;
    int frames;     /* steps computed */
    double count;   /* values behind one statistic */
    double *first;  /* [frames][c] sums of x, then of g */
    double *second; /* [frames][c] sums of squared distances, then of g * xhat */
    float *factors; /* [frames][3][c] what a step multiplies with */
} norm_job;

static int norm_pixels(const rv_norm *n) {
    return n->plane.h * n->plane.w;
}
/* Row of the statistics that step t uses. */
static size_t norm_at(const norm_job *job, int t) {
    return job->norm->sequence ? 0 : (size_t)t * (size_t)job->norm->plane.c;
}

/* Sum of (x - mean) * y over a plane, y = g, or x - mean itself where g is NULL; as row_sum. */
static inline double moment_sum(const float *g, const float *x, float mean, int n) {
    double sum = 0.0;
    for (int start = 0; start < n; start += 256) {
        int end = start + 256 < n ? start + 256 : n, i = start;
        double lane[8] = {0};
        for (; i + 8 <= end; i += 8)
            for (int k = 0; k < 8; k++) {
                double d = (double)x[i + k] - (double)mean;
                lane[k] += d * (g ? (double)g[i + k] : d);
            }
        for (int k = 0; i + k < end; k++) {
            double d = (double)x[i + k] - (double)mean;
            lane[k] += d * (g ? (double)g[i + k] : d);
        }
        sum += ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
               ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    }
    return sum;
}

/* Per channel of one row: sum[k] += the plane's sum of (x - mean) * (g or x - mean). Rows of units
 * (planes of one value) run across channels. */
static void row_moments(const float *g, const float *x, const float *mean, int c, int n,
                        double *sum) {
    if (n == 1) {
        for (int k = 0; k < c; k++) {
            double d = (double)x[k] - (double)mean[k];
            sum[k] += d * (g ? (double)g[k] : d);
        }
        return;
    }
    for (int k = 0; k < c; k++, x += n, g = g ? g + n : NULL)
        sum[k] += moment_sum(g, x, mean[k], n);
}
static void row_sums(const float *x, int c, int n, double *sum) {
    if (n == 1) {
        for (int k = 0; k < c; k++)
            sum[k] += (double)x[k];
        return;
    }
    for (int k = 0; k < c; k++)
        sum[k] += row_sum(x + (size_t)k * (size_t)n, n);
}

/* First pass: sums of x of one step. */
static void step_sum(void *argument, int t, int worker) {
    const norm_job *job = argument;
    int c = job->norm->plane.c, n = norm_pixels(job->norm);
    double *sum = job->first + (size_t)t * (size_t)c;
    (void)worker;
    for (int k = 0; k < c; k++)
        sum[k] = 0.0;
    for (int b = 0; b < job->x.B; b++) {
        row_sums(values_row(job->x, t, b), c, n, sum);
    }
}

/* Second pass: squared distances from the mean just found. One pass over sums of squares would
 * cancel where the mean is large against the deviation. */
static void step_square(void *argument, int t, int worker) {
    const norm_job *job = argument;
    int c = job->norm->plane.c, n = norm_pixels(job->norm);
    const float *mean = job->norm->mean + norm_at(job, t);
    double *sum = job->second + (size_t)t * (size_t)c;
    (void)worker;
    for (int k = 0; k < c; k++)
        sum[k] = 0.0;
    for (int b = 0; b < job->x.B; b++) {
        row_moments(NULL, values_row(job->x, t, b), mean, c, n, sum);
    }
}

/* Statistics of a step from its own sums, or of all steps from theirs, t ascending. */
static void spread(const norm_job *job, const double *sum, float *out) {
    int c = job->norm->plane.c;
    if (!job->norm->sequence) {
        for (size_t i = 0; i < (size_t)job->frames * (size_t)c; i++)
            out[i] = (float)(sum[i] / job->count);
        return;
    }
    for (int k = 0; k < c; k++) {
        double total = 0.0;
        for (int t = 0; t < job->frames; t++)
            total += sum[(size_t)t * (size_t)c + (size_t)k];
        out[k] = (float)(total / job->count);
    }
}

/* What a step is normalised with. */
static void step_statistics(const norm_job *job, int t, const float **mean, const float **var) {
    const rv_norm *n = job->norm;
    *mean = n->training ? n->mean + norm_at(job, t) : n->running_mean;
    *var = n->training ? n->var + norm_at(job, t) : n->running_var;
}

/* y = (x - mean) * scale + shift, factors made once per step. */
static void step_apply(void *argument, int t, int worker) {
    const norm_job *job = argument;
    const rv_norm *norm = job->norm;
    int c = norm->plane.c, n = norm_pixels(norm);
    float *scale = job->factors + (size_t)t * 3 * (size_t)c, *shift = scale + c;
    const float *mean, *var;
    (void)worker;
    step_statistics(job, t, &mean, &var);
    for (int k = 0; k < c; k++) {
        scale[k] = (norm->gamma ? norm->gamma[k] : 1.0f) / sqrtf(var[k] + norm->epsilon);
        shift[k] = norm->beta ? norm->beta[k] : 0.0f;
    }
    for (int b = 0; b < job->x.B; b++) {
        const float *x = values_row(job->x, t, b);
        float *y = values_row(job->y, t, b);
        for (int k = 0; n == 1 && k < c; k++)
            y[k] = (x[k] - mean[k]) * scale[k] + shift[k];
        for (int k = 0; n > 1 && k < c; k++)
            for (int i = k * n; i < (k + 1) * n; i++)
                y[i] = (x[i] - mean[k]) * scale[k] + shift[k];
        row_pad(job->y, y);
    }
}

/* Sums of every step side by side: workers take different steps. */
static rv_status norm_scratch(norm_job *job, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t sums = (size_t)job->frames * (size_t)job->norm->plane.c;
    TRY(rv_arena_get(arena, sums, sizeof(double), &job->first));
    TRY(rv_arena_get(arena, sums, sizeof(double), &job->second));
    TRY(rv_arena_get(arena, sums, 3 * sizeof(float), &job->factors));
out:
    return status;
}

/* A held input has the statistics of its one frame at every step. */
static norm_job norm_job_of(const rv_norm *norm, rv_values x) {
    norm_job job = {.norm = norm, .x = x, .frames = values_frames(x)};
    job.count = (double)x.B * (double)norm_pixels(norm) * (norm->sequence ? job.frames : 1);
    return job;
}

rv_status RV_CPU(norm_forward)(rv_ctx *ctx, rv_queue *queue, const rv_norm *norm, rv_values x,
                               rv_values y, rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    norm_job job = norm_job_of(norm, x);
    (void)queue;
    job.y = y;
    TRY(norm_scratch(&job, arena));
    if (norm->training) {
        rv_cpu_run(ctx, job.frames, step_sum, &job);
        spread(&job, job.first, norm->mean);
        rv_cpu_run(ctx, job.frames, step_square, &job);
        spread(&job, job.second, norm->var);
    }
    rv_cpu_run(ctx, job.frames, step_apply, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}

/* Sums of g and of g * xhat of one step. */
static void step_adjoint_sum(void *argument, int t, int worker) {
    const norm_job *job = argument;
    const rv_norm *norm = job->norm;
    int c = norm->plane.c, n = norm_pixels(norm);
    double *first = job->first + (size_t)t * (size_t)c;
    double *second = job->second + (size_t)t * (size_t)c;
    const float *mean, *var;
    (void)worker;
    step_statistics(job, t, &mean, &var);
    for (int k = 0; k < c; k++)
        first[k] = second[k] = 0.0;
    for (int b = 0; b < job->x.B; b++) {
        const float *g = values_row(job->g, t, b);
        row_sums(g, c, n, first);
        row_moments(g, values_row(job->x, t, b), mean, c, n, second);
    }
    for (int k = 0; k < c; k++)
        second[k] /= sqrt((double)var[k] + (double)norm->epsilon);
}

/* gx = gamma/sigma * (g - mean(g) - xhat * mean(g * xhat)); running statistics are constants. */
static void step_adjoint_apply(void *argument, int t, int worker) {
    const norm_job *job = argument;
    const rv_norm *norm = job->norm;
    int c = norm->plane.c, n = norm_pixels(norm);
    const double *first = job->first + norm_at(job, t), *second = job->second + norm_at(job, t);
    float *scale = job->factors + (size_t)t * 3 * (size_t)c, *level = scale + c, *slope = level + c;
    const float *mean, *var;
    (void)worker;
    step_statistics(job, t, &mean, &var);
    for (int k = 0; k < c; k++) {
        float sigma = sqrtf(var[k] + norm->epsilon);
        scale[k] = (norm->gamma ? norm->gamma[k] : 1.0f) / sigma;
        level[k] = norm->training ? (float)(first[k] / job->count) : 0.0f;
        slope[k] = norm->training ? (float)(second[k] / job->count) / sigma : 0.0f;
    }
    for (int b = 0; b < job->x.B; b++) {
        const float *x = values_row(job->x, t, b), *g = values_row(job->g, t, b);
        float *gx = values_row(job->gx, t, b);
        if (!job->add)
            for (int i = 0; i < job->gx.ld; i++)
                gx[i] = 0.0f;
        for (int k = 0; n == 1 && k < c; k++)
            gx[k] += scale[k] * (g[k] - level[k] - (x[k] - mean[k]) * slope[k]);
        for (int k = 0; n > 1 && k < c; k++)
            for (int i = k * n; i < (k + 1) * n; i++)
                gx[i] += scale[k] * (g[i] - level[k] - (x[i] - mean[k]) * slope[k]);
    }
}

/* Each step's sum is added to the gradient, t descending, so chunks cannot matter. */
static void norm_gradient(const norm_job *job, const double *sums, float *gradient) {
    int c = job->norm->plane.c;
    for (int t = job->frames - 1; gradient && t >= 0; t--)
        for (int k = 0; k < c; k++)
            gradient[k] += (float)sums[(size_t)t * (size_t)c + (size_t)k];
}

/* Statistics over a sequence need the sums of all steps; they end in row 0. */
static void sum_steps(const norm_job *job, double *sums) {
    int c = job->norm->plane.c;
    for (int t = 1; t < job->frames; t++)
        for (int k = 0; k < c; k++)
            sums[k] += sums[(size_t)t * (size_t)c + (size_t)k];
}

rv_status RV_CPU(norm_backward)(rv_ctx *ctx, rv_queue *queue, const rv_norm *norm, rv_values x,
                                rv_values g, rv_values gx, bool add, float *g_gamma, float *g_beta,
                                rv_arena *arena) {
    rv_status status = RV_OK;
    size_t mark = rv_arena_mark(arena);
    norm_job job = norm_job_of(norm, x);
    (void)queue;
    job.g = g, job.gx = gx, job.add = add;
    TRY(norm_scratch(&job, arena));
    rv_cpu_run(ctx, job.frames, step_adjoint_sum, &job);
    norm_gradient(&job, job.second, g_gamma);
    norm_gradient(&job, job.first, g_beta);
    /* After the parameters' gradients, which want each step's own sums. */
    if (norm->sequence) sum_steps(&job, job.first), sum_steps(&job, job.second);
    if (gx.data) rv_cpu_run(ctx, job.frames, step_adjoint_apply, &job);
out:
    rv_arena_release(arena, mark);
    return status;
}
