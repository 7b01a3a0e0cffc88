/*
 * Sums over planes and windows inside kernels, shared by cuda_norm.cu, cuda_conv.cu, cuda_pool.cu
 * and cuda_delay.cu. Sums are doubles in the order of cpu_rows.h: blocks of 256 in index order,
 * eight lanes within a block added as a tree, samples ascending; so the bits are those of the CPU.
 */
#ifndef RV_KERNELS_CUDA_PLANE_CUH
#define RV_KERNELS_CUDA_PLANE_CUH

#include "kernels/cuda_device.cuh"

/* gradient[i] += (float)sums[t][i], t descending, so chunks cannot matter: what each step has
 * summed apart. sums [frames][count]; one thread for each i. (cuda_conv.cu) */
rv_status rv_cuda_fold_steps(rv_ctx *ctx, rv_queue *queue, const double *sums, int frames,
                             size_t count, float *gradient);

/* ---- windows ------------------------------------------------------------------------------- */
/* Place of tap k of the window at output o, along one axis; negative: in the padding. */
static __device__ inline int tap_at(const rv_window *w, int axis, int o, int k, int size) {
    int i = o * w->stride[axis] + k * w->dilation[axis] - w->padding[axis];
    return i < size ? i : -1;
}
/* The output whose tap k lies on input i, along one axis; -1: none. As k descends it ascends. */
static __device__ inline int output_of(const rv_window *w, int axis, int i, int k, int outputs) {
    int from = i + w->padding[axis] - k * w->dilation[axis];
    if (from < 0 || from % w->stride[axis] != 0) return -1;
    return from / w->stride[axis] < outputs ? from / w->stride[axis] : -1;
}

/* ---- sums over planes and samples ----------------------------------------------------------- */
/* One value's part of a sum. */
enum moment {
    LEVEL,   /* x */
    SQUARE,  /* (x - mean)^2 */
    PRODUCT, /* (x - mean) * g */
};
enum { LANES = 8, GROUPS = 32 / LANES }; /* lanes of a block's sum, samples a warp has at once */

template <int moment>
static __device__ inline double part_of(const float *x, const float *g, float mean, int i) {
    if (moment == LEVEL) return (double)x[i];
    double d = (double)x[i] - (double)mean;
    return d * (moment == SQUARE ? d : (double)g[i]);
}

/* The sum of a plane of n, by the eight lanes of a group, which all get it: lane j takes the values
 * j, j + 8, ... of each block. All groups of a warp come here at once, those without a plane
 * (x NULL, sum 0) as well. */
template <int moment>
static __device__ inline double plane_sum(const float *x, const float *g, float mean, int n) {
    const int lane = (int)threadIdx.x % 32;
    double sum = 0;
    for (int start = 0; start < n; start += 256) {
        int end = start + 256 < n ? start + 256 : n;
        double part = 0;
        for (int i = start + lane % LANES; x && i < end; i += LANES)
            part += part_of<moment>(x, g, mean, i);
        for (int distance = 1; distance < LANES; distance *= 2)
            part += __shfl_sync(RV_CUDA_WARP, part, lane ^ distance);
        sum += part;
    }
    return sum;
}

/* The sum over all samples of the plane of n that begins at unit `first` of step t, by a warp,
 * whose lanes all get it: four samples at a time, added in their order. g: of PRODUCT only. */
template <int moment>
static __device__ inline double samples_sum(rv_values x, const rv_values *g, int t, size_t first,
                                            int n, float mean) {
    double sum = 0;
    for (int start = 0; start < x.B; start += GROUPS) {
        int b = start + (int)threadIdx.x % 32 / LANES;
        const float *row = b < x.B ? values_row(x, t, b) + first : NULL;
        const float *other = moment == PRODUCT && row ? values_row(*g, t, b) + first : NULL;
        double plane = plane_sum<moment>(row, other, mean, n);
        for (int group = 0; group < GROUPS; group++) /* one without a sample adds 0 */
            sum += __shfl_sync(RV_CUDA_WARP, plane, group * LANES);
    }
    return sum;
}

#endif
