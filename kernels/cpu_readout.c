/* Readouts of the output layer: few outputs, so a pass over them is cheaper than waking the pool.
 */
#include "kernels/cpu.h"
#include "kernels/cpu_rows.h"
#include "kernels/readout.h"

/* The output of one step: a row of values, or the bits as they are. */
static double output_at(const rv_signal *y, int t, int b, int u) {
    if (y->values.data) return (double)values_row(y->values, t, b)[u];
    return (double)(spikes_row(y->spikes, t, b)[u / 32] >> u % 32 & 1u);
}

rv_status RV_CPU(readout_fold)(rv_ctx *ctx, rv_queue *queue, rv_readout readout, const rv_signal *y,
                               rv_span span, rv_course *course) {
    int n = signal_units(y), T = y->values.data ? y->values.T : y->spikes.T;
    int B = y->values.data ? y->values.B : y->spikes.B;
    (void)ctx, (void)queue;
    for (int k = 0; span.t0 == 0 && k < B * n; k++)
        course[k] = (rv_course){0, -1};
    for (int b = 0; b < B; b++) {
        int length = rv_span_length(span, b);
        for (int t = 0; t < T && span.t0 + t < length; t++)
            for (int u = 0; u < n; u++)
                rv_readout_step(readout, &course[b * n + u], output_at(y, t, b, u), span.t0 + t,
                                length);
    }
    return RV_OK;
}

/* Padding is written, too: ops read whole vectors. */
rv_status RV_CPU(readout_spread)(rv_ctx *ctx, rv_queue *queue, const rv_course *course, bool one,
                                 const float *gradient, rv_span span, rv_values g) {
    (void)ctx, (void)queue;
    for (int t = 0; t < g.T; t++)
        for (int b = 0; b < g.B; b++) {
            const rv_course *c = course + (size_t)b * (size_t)g.n;
            float *row = values_row(g, t, b);
            int length = rv_span_length(span, b);
            for (int u = 0; u < g.n; u++)
                row[u] = rv_readout_reads(&c[u], one, span.t0 + t, length)
                             ? gradient[(size_t)b * (size_t)g.ld + (size_t)u]
                             : 0.0f;
            row_pad(g, row);
        }
    return RV_OK;
}
