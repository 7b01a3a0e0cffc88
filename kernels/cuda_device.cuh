/*
 * A GPU as a device, internal to kernels/cuda_*.cu: its context, what every op does to launch and
 * to tell of errors, and rows of views inside kernels. The same files compile with nvcc and,
 * against the emulator of the tests, with g++; what is not plain CUDA in them is the three macros
 * below.
 *
 * Memory is unified: the host may look at it when no queue has ops on it that have not ended. All
 * work goes to streams of our own, never to the NULL stream.
 */
#ifndef RV_KERNELS_CUDA_DEVICE_CUH
#define RV_KERNELS_CUDA_DEVICE_CUH

#ifdef __CUDACC__
#include <cublas_v2.h>
#include <cuda_runtime.h>
#define RV_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#define RV_SHARED(type, name, count) __shared__ type name[count]
#define RV_PLUGIN_NAME "cuda"
#else
#include <emu.hpp>
#define RV_LAUNCH(kernel, grid, block, stream, ...)                                                \
    emu::launch(stream, grid, block, #kernel, kernel, __VA_ARGS__)
#define RV_SHARED(type, name, count)                                                               \
    type *name = (type *)emu::shared(sizeof(type) * (count), __FILE__, __LINE__)
#define RV_PLUGIN_NAME "emu"
#endif

#include <type_traits>

#include "kernels/plugin.h"

/* What these files implement: all of rv_ops. */
/* clang-format off */
#define RV_CUDA_OPS(X)                                                                             \
    X(close) X(alloc) X(free) X(copy) X(zero)                                                      \
    X(queue_create) X(queue_destroy) X(queue_record) X(queue_wait) X(event_destroy) X(queue_sync)  \
    X(map_pack) X(map_unpack) X(map_forward) X(map_neuron_forward) X(map_backward) X(map_weight)   \
    X(neuron_forward) X(neuron_backward) X(norm_forward) X(norm_backward)                          \
    X(conv_pack) X(conv_unpack) X(conv_forward) X(conv_backward) X(conv_weight)                    \
    X(delay_forward) X(delay_backward) X(pool_forward) X(pool_backward)                            \
    X(scale) X(scale_weight) X(copy_units) X(dropout) X(threshold_forward) X(threshold_backward)   \
    X(optim_update) X(norm2) X(readout_fold) X(readout_spread) X(encode_rate) X(count_spikes)
/* clang-format on */
#define RV_CUDA_DECLARE(op) std::remove_pointer_t<decltype(rv_ops::op)> rv_cuda_##op;
RV_CUDA_OPS(RV_CUDA_DECLARE)
#undef RV_CUDA_DECLARE

enum { RV_CUDA_BLOCK = 128, RV_CUDA_STAGES = 4 };
static const unsigned RV_CUDA_WARP = 0xFFFFFFFFu; /* all lanes */

/* Memory of the host that copies pass through, so that the caller's is free at once. */
typedef struct rv_cuda_stage {
    void *memory;
    size_t bytes;
    cudaEvent_t done;
} rv_cuda_stage;

struct rv_ctx {
    const rv_host *host;
    int device;
    cudaStream_t stream; /* of the queue NULL */
    cublasHandle_t blas;
    rv_cuda_stage stage[RV_CUDA_STAGES];
    int turn;      /* the stage whose copy is the oldest */
    void *scratch; /* of ops without an arena, one at a time */
    size_t scratch_bytes;
};
struct rv_queue {
    cudaStream_t stream;
};
struct rv_event {
    cudaEvent_t event;
};

static inline cudaStream_t rv_cuda_stream(const rv_ctx *ctx, const rv_queue *queue) {
    return queue ? queue->stream : ctx->stream;
}
/* RV_OK, or the error with what was done; also makes the device current for the calling thread. */
rv_status rv_cuda_enter(const rv_ctx *ctx);
rv_status rv_cuda_check(const rv_ctx *ctx, cudaError_t error, const char *what);
rv_status rv_cuda_blas(const rv_ctx *ctx, cublasStatus_t error, const char *what);
rv_status rv_cuda_fail(const rv_host *host, rv_status status, const char *format, ...)
    RV_PRINTF(3, 4);
/* Scratch of the context, at least so large; what was in it is lost. */
rv_status rv_cuda_scratch(rv_ctx *ctx, size_t bytes, void *out);

/* Nothing here needs to be given back on the way out. */
#define PASS(expression)                                                                           \
    do {                                                                                           \
        rv_status status_ = (expression);                                                          \
        if (status_ != RV_OK) return status_;                                                      \
    } while (0)

/* One thread for each of `items`, in blocks along x. */
static inline dim3 rv_cuda_grid(size_t items) {
    return dim3((unsigned)((items + RV_CUDA_BLOCK - 1) / RV_CUDA_BLOCK));
}

/* ---- inside kernels ------------------------------------------------------------------------ */
static __device__ inline size_t item_index(void) {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __host__ __device__ inline int values_frames(rv_values v) {
    return v.stride_t ? v.T : 1;
}
static __host__ __device__ inline int signal_frames(const rv_signal *x) {
    if (!x->spikes.bits) return values_frames(x->values);
    return x->spikes.stride_t ? x->spikes.T : 1;
}
static __host__ __device__ inline float *values_row(rv_values v, int t, int b) {
    return v.data + (size_t)t * v.stride_t + (size_t)b * (size_t)v.ld;
}
static __host__ __device__ inline uint32_t *spikes_row(rv_spikes s, int t, int b) {
    return s.bits + (size_t)t * s.stride_t + (size_t)b * (size_t)((s.n + 31) / 32);
}
/* Output of a signal as a number, whichever it is. */
static __device__ inline float signal_at(const rv_signal *x, int t, int b, int u) {
    if (x->values.data) return values_row(x->values, t, b)[u];
    return (float)(spikes_row(x->spikes, t, b)[u / 32] >> (u % 32) & 1u);
}
static __device__ inline bool starts_at(const uint32_t *starts, int B, int t, int b) {
    return starts &&
           (starts[(size_t)t * (size_t)((B + 31) / 32) + (size_t)b / 32] >> (b % 32) & 1u);
}
/* Bias, then the rows of the active inputs, ascending: column `col` of an event product. */
static __device__ inline float event_sum(const uint32_t *bits, int words, const float *weight,
                                         int ld, const float *bias, int col) {
    float sum = bias ? bias[col] : 0.0f;
    for (int w = 0; w < words; w++)
        for (uint32_t word = bits[w]; word; word &= word - 1) {
            int i = w * 32 + __ffs((int)word) - 1;
            sum += weight[(size_t)i * (size_t)ld + (size_t)col];
        }
    return sum;
}

#endif
