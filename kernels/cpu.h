/*
 * The CPU device, internal to kernels/. Every cpu_*.c is compiled once per instruction set with
 * RV_LEVEL = baseline, avx2 or avx512; RV_CPU gives its external names the level as a suffix, so
 * the levels share nothing and devices.c picks one table.
 *
 * A context serves one op at a time: a stage has its own. Ops split work into items whose results
 * do not depend on which worker takes them, so bits never depend on the number of threads.
 */
#ifndef RV_KERNELS_CPU_H
#define RV_KERNELS_CPU_H

#include "kernels/kernels.h"

#define RV_CPU_JOIN(name, level) rv_cpu_##name##_##level
#define RV_CPU_NAME(name, level) RV_CPU_JOIN(name, level)
#define RV_CPU(name) RV_CPU_NAME(name, RV_LEVEL)

/* Every op of rv_ops the CPU has; each is a function RV_CPU(op) of the type of that member. */
/* clang-format off */
#define RV_CPU_OPS(X)                                                                              \
    X(close) X(alloc) X(free) X(copy) X(zero)                                                      \
    X(queue_create) X(queue_destroy) X(queue_record) X(queue_wait) X(event_destroy) X(queue_sync)  \
    X(map_pack) X(map_unpack) X(map_forward) X(map_neuron_forward) X(map_backward) X(map_weight)   \
    X(neuron_forward) X(neuron_backward)                                                           \
    X(conv_pack) X(conv_unpack) X(conv_forward) X(conv_backward) X(conv_weight)                    \
    X(pool_forward) X(pool_backward) X(norm_forward) X(norm_backward)                              \
    X(delay_forward) X(delay_backward) X(scale) X(scale_weight) X(copy_units) X(dropout)           \
    X(threshold_forward) X(threshold_backward)                                                     \
    X(optim_update) X(norm2) X(readout_fold) X(readout_spread) X(encode_rate) X(count_spikes)
/* clang-format on */

#ifdef RV_LEVEL
#define RV_CPU_DECLARE(op) extern __typeof__(*((rv_ops *)NULL)->op) RV_CPU(op);
RV_CPU_OPS(RV_CPU_DECLARE)
#undef RV_CPU_DECLARE

/* ---- the pool ---------------------------------------------------------------------------- */
#define rv_cpu_threads RV_CPU(threads)
#define rv_cpu_run RV_CPU(run)
#define rv_cpu_isa RV_CPU(isa)
#define rv_cpu_one_thread RV_CPU(one_thread)

int rv_cpu_threads(const rv_ctx *ctx); /* workers, at least 1 */
rv_isa rv_cpu_isa(const rv_ctx *ctx);  /* AMX runs the objects of avx512 */
/* fn(job, item, worker) once for each item in [0, items), worker in [0, threads); returns when all
 * have ended. Denormals are flushed in every worker. The calling thread is worker 0. */
void rv_cpu_run(rv_ctx *ctx, int items, void (*fn)(void *job, int item, int worker), void *job);
/* oneDNN of a distribution starts a team of OpenMP threads in each thread that calls it, unless
 * that thread asked for one: call before entering oneDNN. */
void rv_cpu_one_thread(void);

#ifdef RV_DNNL
#define rv_cpu_convs RV_CPU(convs)
struct rv_conv_cache *rv_cpu_convs(rv_ctx *ctx); /* dnnl_conv.h */
#endif

/* ---- a device ---------------------------------------------------------------------------- */
RV_CHECKED rv_status RV_CPU(open)(rv_isa isa, int threads, rv_ctx **out);
extern const rv_ops RV_CPU(table);
#endif

#endif
