/* Readouts of the output layer (readout.h). */
#include "kernels/cuda_device.cuh"
#include "kernels/readout.h"

/* ---- readouts ------------------------------------------------------------------------------ */
/* A thread is an output of a sample: its steps are folded in the order of time. */
static __global__ void fold(rv_readout readout, rv_signal y, int T, int B, int n, rv_span span,
                            rv_course *course) {
    size_t i = item_index();
    int b = (int)(i / (size_t)n), u = (int)(i % (size_t)n);
    if (b >= B) return;
    rv_course c = {0, -1};
    int length = rv_span_length(span, b);
    if (span.t0 > 0) c = course[i];
    for (int t = 0; t < T && span.t0 + t < length; t++)
        rv_readout_step(readout, &c, (double)signal_at(&y, t, b, u), span.t0 + t, length);
    course[i] = c;
}

/* Lengths, where there are any, are memory of the device. */
rv_status rv_cuda_readout_fold(rv_ctx *ctx, rv_queue *queue, rv_readout readout, const rv_signal *y,
                               rv_span span, rv_course *course) {
    bool bits = !y->values.data;
    int T = bits ? y->spikes.T : y->values.T, B = bits ? y->spikes.B : y->values.B;
    int n = bits ? y->spikes.n : y->values.n;
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(fold, rv_cuda_grid((size_t)B * (size_t)n), RV_CUDA_BLOCK, rv_cuda_stream(ctx, queue),
              readout, *y, T, B, n, span, course);
    return rv_cuda_check(ctx, cudaGetLastError(), "a readout");
}

/* A number per thread, padding included. */
static __global__ void spread(const rv_course *course, bool one, const float *gradient,
                              rv_span span, rv_values g) {
    size_t i = item_index();
    int u = (int)(i % (size_t)g.ld), row = (int)(i / (size_t)g.ld), t = row / g.B, b = row % g.B;
    if (t >= g.T) return;
    bool read = u < g.n && rv_readout_reads(&course[(size_t)b * (size_t)g.n + (size_t)u], one,
                                            span.t0 + t, rv_span_length(span, b));
    values_row(g, t, b)[u] = read ? gradient[(size_t)b * (size_t)g.ld + (size_t)u] : 0.0f;
}

/* Only where the slope is not the same at all steps: else the caller shows one frame for all. */
rv_status rv_cuda_readout_spread(rv_ctx *ctx, rv_queue *queue, const rv_course *course, bool one,
                                 const float *gradient, rv_span span, rv_values g) {
    PASS(rv_cuda_enter(ctx));
    RV_LAUNCH(spread, rv_cuda_grid((size_t)g.T * (size_t)g.B * (size_t)g.ld), RV_CUDA_BLOCK,
              rv_cuda_stream(ctx, queue), course, one, gradient, span, g);
    return rv_cuda_check(ctx, cudaGetLastError(), "the slope of a readout");
}
