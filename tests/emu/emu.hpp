/*
 * CUDA on the CPU, for tests: the part of its language and runtime that kernels/cuda_*.cu use, so
 * that the same files compile with g++ and run under the sanitizers. It checks logic, not hardware:
 *
 *   threads   one fibre each, blocks one after the other; a fibre runs until it waits. Order: see
 *             RV_EMU_ORDER. Two barriers at once, lanes that left, and waits without end are fatal
 *   memory    comes filled with not-a-number, is listed with its device, and every copy, fill and
 *             product is checked against the list: range and direction. Shared memory is filled
 *             anew for every block and lies between red zones (address sanitizer)
 *   streams   a real thread each, so what nobody waits for is a race (thread sanitizer); the NULL
 *             stream is fatal, as is a stream of another than the current device
 *   watchdog  aborts, naming every stream's work, when nothing moves for RV_EMU_SECONDS (60)
 *
 * Environment: RV_EMU_DEVICES (8), RV_EMU_ORDER (0 ascending, 1 descending, else a seed),
 * RV_EMU_DRIVER (version; 0 none), RV_EMU_SECONDS. What it finds it prints and aborts.
 */
#ifndef RV_EMU_HPP
#define RV_EMU_HPP

#include <functional>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
};

/* ---- runtime ------------------------------------------------------------------------------- */
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaMemAttachGlobal = 1 };
enum cudaDeviceAttr { cudaDevAttrConcurrentManagedAccess = 89 };
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaMallocManaged(void **memory, size_t bytes, unsigned flags = cudaMemAttachGlobal);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

/* ---- cuBLAS: a plain product ------------------------------------------------------------------
 */
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
typedef struct emu_blas *cublasHandle_t;
const char *cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const float *alpha, const float *a, int lda,
                           const float *b, int ldb, const float *beta, float *c, int ldc);

/* ---- inside kernels ----------------------------------------------------------------------------
 */
namespace emu {
struct index {
    unsigned x, y, z;
};
index thread_index(), block_index(), block_dim(), grid_dim();
void sync_threads(const char *file, int line);
void sync_warp(const char *file, int line);
/* Values of the lanes of `mask`, in `all` where that is not NULL; the value of `lane` is returned.
 */
uint32_t meet(uint32_t mask, uint32_t value, int lane, uint32_t *all, const char *file, int line);
int lane_index();
/* The same memory for all threads of a block that come by this place. */
void *shared(size_t bytes, const char *file, int line);
void enqueue(cudaStream_t stream, dim3 grid, dim3 block, const char *name,
             std::function<void()> thread);

/* Arguments are copied when the launch is called, as CUDA does. */
template <class... P, class... A>
void launch(cudaStream_t stream, dim3 grid, dim3 block, const char *name, void (*kernel)(P...),
            A... arguments) {
    std::tuple<P...> values(arguments...);
    enqueue(stream, grid, block, name, [kernel, values] { std::apply(kernel, values); });
}

inline uint32_t ballot(uint32_t mask, bool value, const char *file, int line) {
    uint32_t all[32], bits = 0;
    meet(mask, value, 0, all, file, line);
    for (int k = 0; k < 32; k++)
        bits |= (mask >> k & 1u && all[k] ? 1u : 0u) << k;
    return bits;
}
template <class T> T shuffle(uint32_t mask, T value, int lane, const char *file, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "whole words only");
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof words);
    for (uint32_t &word : words) /* lanes meet once for each, in turn */
        word = meet(mask, word, lane & 31, nullptr, file, line);
    memcpy(&value, words, sizeof words);
    return value;
}
} // namespace emu

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_dim())
#define gridDim (emu::grid_dim())
#define __syncthreads() emu::sync_threads(__FILE__, __LINE__)
#define __syncwarp() emu::sync_warp(__FILE__, __LINE__)
#define __ballot_sync(mask, value) emu::ballot(mask, value, __FILE__, __LINE__)
#define __shfl_sync(mask, value, lane) emu::shuffle(mask, value, lane, __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, delta)                                                       \
    emu::shuffle(mask, value, emu::lane_index() + (delta), __FILE__, __LINE__)

static inline int __popc(unsigned word) {
    return __builtin_popcount(word);
}
static inline int __ffs(int word) {
    return __builtin_ffs(word);
}
template <class T> T atomicAdd(T *at, T value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T> T atomicOr(T *at, T value) {
    return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}

#endif
