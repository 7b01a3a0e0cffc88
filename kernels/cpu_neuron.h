/* What the neuron's forward and adjoint share. Internal to kernels/. */
#ifndef RV_KERNELS_CPU_NEURON_H
#define RV_KERNELS_CPU_NEURON_H

#include "kernels/cpu.h"
#include "kernels/cpu_vec.h"
#include "kernels/neuron.h"

#ifdef RV_LEVEL
#define rv_cpu_starts RV_CPU(starts)
#define rv_cpu_params RV_CPU(params)

/* Whether sample b restarts before step t. */
bool rv_cpu_starts(const uint32_t *starts, int B, int t, int b);
/* The parameter arrays: those not given (NULL) filled with what leaves the equations unchanged,
 * the gain 1 - beta where it is tied to it. */
RV_CHECKED rv_status rv_cpu_params(const rv_neuron *neuron, const float *const given[RV_P_COUNT],
                                   int ld, rv_arena *arena, const float *param[RV_P_COUNT]);

/* The parameters of one unit, out of their arrays. */
RV_INLINE rv_unit rv_cpu_unit(const float *const param[RV_P_COUNT], int u) {
    rv_unit unit = {param[RV_P_ALPHA][u], param[RV_P_BETA][u],  param[RV_P_GAIN][u],
                    param[RV_P_LEAK][u],  param[RV_P_THETA][u], param[RV_P_RESET][u],
                    param[RV_P_RHO][u],   param[RV_P_KAPPA][u]};
    return unit;
}

/* Resets that loops are specialised for: those of rv_reset, and to subtract one step later. */
typedef enum rv_cpu_reset {
    RV_CPU_RESET_SUBTRACT = RV_RESET_SUBTRACT,
    RV_CPU_RESET_ZERO = RV_RESET_ZERO,
    RV_CPU_RESET_VALUE = RV_RESET_VALUE,
    RV_CPU_RESET_NONE = RV_RESET_NONE,
    RV_CPU_RESET_NEXT,
    RV_CPU_RESETS
} rv_cpu_reset;

static inline rv_cpu_reset rv_cpu_reset_of(const rv_neuron *neuron) {
    bool next = neuron->reset == RV_RESET_SUBTRACT && neuron->reset_over_beta;
    return next ? RV_CPU_RESET_NEXT : (rv_cpu_reset)neuron->reset;
}
static inline rv_reset rv_cpu_reset_plain(rv_cpu_reset reset) {
    return reset == RV_CPU_RESET_NEXT ? RV_RESET_SUBTRACT : (rv_reset)reset;
}
#endif

#endif
