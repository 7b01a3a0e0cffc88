/*
 * The runtime: memory that is listed and checked, streams that are threads, events, the watchdog,
 * and cuBLAS as a plain product. Locks are made of futexes, which the thread sanitizer does not
 * know: only what CUDA orders is told to it.
 */
#include "emu_run.hpp"

#include <atomic>
#include <deque>
#include <linux/futex.h>
#include <limits.h>
#include <map>
#include <memory>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {
using emu::fatal;

/* ---- waiting -----------------------------------------------------------------------------------
 */
void futex_wait(std::atomic<uint32_t> *at, uint32_t value) {
    const struct timespec second = {1, 0};
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, &second, NULL, 0);
}
void futex_wake(std::atomic<uint32_t> *at) {
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
struct lock {
    std::atomic<uint32_t> held{0};
    void take() {
        while (held.exchange(1, std::memory_order_acquire))
            futex_wait(&held, 1);
    }
    void give() {
        held.store(0, std::memory_order_release);
        futex_wake(&held);
    }
};
struct holding {
    lock &mine;
    explicit holding(lock &l) : mine(l) {
        mine.take();
    }
    ~holding() {
        mine.give();
    }
};
} // namespace

/* ---- streams and events
 * -------------------------------------------------------------------------- */
struct operation {
    std::function<void(volatile unsigned long *tick)> run;
    const char *name;
};

struct emu_stream {
    emu_stream *next; /* in the list of all */
    int users;        /* who walks the list and stands here; both under the list's lock */
    int device;
    pthread_t thread;
    lock mine;
    std::deque<operation> work;
    std::atomic<uint32_t> put{0}, done{0}; /* operations, modulo 2^32 */
    std::atomic<bool> stop{false};
    const char *name = NULL;          /* of what runs */
    volatile unsigned long ticks = 0; /* moves while it does */
    char started, ended;              /* addresses for the thread sanitizer */
};

struct point { /* shared by an event and the operations that name it */
    std::atomic<uint32_t> recorded{0}, reached{0};
    char sync;
};
struct emu_event {
    std::shared_ptr<point> at = std::make_shared<point>();
};

namespace {
struct allocation {
    size_t bytes;
    int device; /* -1: pinned host memory */
    bool managed;
};

/* All that exists. Never destroyed: threads may outlive the end of main. The streams are no vector:
 * the thread sanitizer, which does not know our lock, would see the C library move one. */
struct world {
    lock mine;
    std::map<uintptr_t, allocation> memory;
    emu_stream *streams = NULL;
    bool watched = false;
};
world &all() {
    static world *w = new world;
    return *w;
}

thread_local int device_now;
thread_local cudaError_t last_error;

cudaError_t give(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

int devices() {
    return emu::setting("RV_EMU_DRIVER", 13000) < 13000 ? 0 : emu::setting("RV_EMU_DEVICES", 8);
}

/* ---- the watchdog
 * -------------------------------------------------------------------------------- */
/* Moves of all streams together, and whether any has work. */
unsigned long moves(bool *busy) {
    unsigned long sum = 0;
    *busy = false;
    for (emu_stream *s = all().streams; s; s = s->next) {
        sum += s->ticks + s->done.load();
        *busy = *busy || s->done.load() != s->put.load();
    }
    return sum;
}

void *watch(void *) {
    int limit = emu::setting("RV_EMU_SECONDS", 60), idle = 0;
    unsigned long last = 0;
    for (;;) { /* until the program ends */
        bool busy;
        sleep(1);
        holding h(all().mine);
        unsigned long now = moves(&busy);
        idle = busy && now == last ? idle + 1 : 0;
        last = now;
        if (idle < limit) continue;
        for (emu_stream *s = all().streams; s; s = s->next)
            fprintf(stderr, "emu: device %d: %u operations wait behind %s\n", s->device,
                    s->put.load() - s->done.load(), s->name ? s->name : "nothing");
        fatal("nothing has moved for %d s", limit);
    }
}

/* ---- a stream's thread
 * ----------------------------------------------------------------------------- */
void *stream_main(void *argument) {
    emu_stream *s = (emu_stream *)argument;
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* as -ftz=true: denormals are flushed, also where read */
#endif
    for (;;) {
        uint32_t done = s->done.load();
        if (done == s->put.load()) {
            if (s->stop.load()) break;
            futex_wait(&s->put, done);
            continue;
        }
        operation next;
        {
            holding h(s->mine);
            next = std::move(s->work.front());
            s->work.pop_front();
        }
        EMU_ACQUIRE(&s->started);
        s->name = next.name;
        next.run(&s->ticks);
        next.run = nullptr;
        s->name = NULL;
        EMU_RELEASE(&s->ended);
        s->done.fetch_add(1);
        futex_wake(&s->done);
    }
    emu::run_finish();
    return NULL;
}

/* Every call that takes a stream comes by here. */
void check_stream(cudaStream_t s, const char *what) {
    if (!s) fatal("%s: the NULL stream is used", what);
    if (s->device != device_now)
        fatal("%s: a stream of device %d is used while device %d is current", what, s->device,
              device_now);
}

void put(cudaStream_t s, const char *name, std::function<void(volatile unsigned long *)> run) {
    {
        holding h(s->mine);
        s->work.push_back({std::move(run), name});
    }
    EMU_RELEASE(&s->started);
    s->put.fetch_add(1);
    futex_wake(&s->put);
}

void wait_for(emu_stream *s) {
    uint32_t wanted = s->put.load(), done;
    while ((int32_t)((done = s->done.load()) - wanted) < 0)
        futex_wait(&s->done, done);
    EMU_ACQUIRE(&s->ended);
}

/* ---- memory
 * ---------------------------------------------------------------------------------------- */
/* What holds `at`; NULL: memory of the host that was not asked for here. */
const allocation *find(const void *at, uintptr_t *start) {
    auto next = all().memory.upper_bound((uintptr_t)at);
    if (next == all().memory.begin()) return NULL;
    --next;
    if ((uintptr_t)at >= next->first + next->second.bytes) return NULL;
    *start = next->first;
    return &next->second;
}

enum side { DEVICE_SIDE, HOST_SIDE, ANY_SIDE };

/* Memory on the side it must be on, and all of it there. */
void check_range(const void *at, size_t bytes, side wanted, const char *what) {
    holding h(all().mine);
    uintptr_t start = 0;
    const allocation *a = find(at, &start);
    bool device = a && a->device >= 0;
    if (bytes == 0) return;
    if (wanted == DEVICE_SIDE && !device)
        fatal("%s: %p is not memory of a device: wrong direction", what, at);
    if (wanted == HOST_SIDE && device && !a->managed)
        fatal("%s: %p is memory of device %d: wrong direction", what, at, a->device);
    if (a && (uintptr_t)at + bytes > start + a->bytes)
        fatal("%s: %zu bytes at offset %zu of an allocation of %zu", what, bytes,
              (size_t)((uintptr_t)at - start), a->bytes);
}

cudaError_t get(void **memory, size_t bytes, int device, bool managed) {
    *memory = NULL;
    if (device >= 0 && devices() == 0) return give(cudaErrorInsufficientDriver);
    size_t size = bytes ? bytes : 1;
    if (posix_memalign(memory, 256, size) != 0) return give(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, size);
    holding h(all().mine);
    all().memory[(uintptr_t)*memory] = {size, device, managed};
    return cudaSuccess;
}

/* From one stream (NULL: from the start) to the next; where one stands it is not destroyed. */
emu_stream *stream_after(emu_stream *s) {
    holding h(all().mine);
    emu_stream *next = s ? s->next : all().streams;
    if (next) next->users++;
    if (s) s->users--;
    return next;
}

/* Waits for the devices, as the real one does: what still runs may use it. */
cudaError_t put_back(void *memory, bool host) {
    if (!memory) return cudaSuccess;
    {
        holding h(all().mine);
        auto a = all().memory.find((uintptr_t)memory);
        if (a == all().memory.end() || (a->second.device < 0) != host)
            fatal("free: %p is no such allocation", memory);
    }
    for (emu_stream *s = stream_after(NULL); s; s = stream_after(s))
        wait_for(s);
    {
        holding h(all().mine);
        all().memory.erase((uintptr_t)memory);
    }
    free(memory);
    return cudaSuccess;
}
} // namespace

/* ---- devices
 * ------------------------------------------------------------------------------------------ */
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    default:
        return "invalid argument";
    }
}
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = emu::setting("RV_EMU_DRIVER", 13000);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = devices();
    if (emu::setting("RV_EMU_DRIVER", 13000) < 13000) return give(cudaErrorInsufficientDriver);
    return *count ? cudaSuccess : give(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) return give(cudaErrorInvalidDevice);
    device_now = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
    *value = 1;
    return cudaSuccess;
}

/* ---- memory
 * --------------------------------------------------------------------------------------------- */
cudaError_t cudaMalloc(void **memory, size_t bytes) {
    return get(memory, bytes, device_now, false);
}
cudaError_t cudaMallocManaged(void **memory, size_t bytes, unsigned) {
    return get(memory, bytes, device_now, true);
}
cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    return get(memory, bytes, -1, false);
}
cudaError_t cudaFree(void *memory) {
    return put_back(memory, false);
}
cudaError_t cudaFreeHost(void *memory) {
    return put_back(memory, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    static const side sides[][2] = {{HOST_SIDE, HOST_SIDE},
                                    {DEVICE_SIDE, HOST_SIDE},
                                    {HOST_SIDE, DEVICE_SIDE},
                                    {DEVICE_SIDE, DEVICE_SIDE},
                                    {ANY_SIDE, ANY_SIDE}};
    check_stream(stream, "cudaMemcpyAsync");
    check_range(to, bytes, sides[kind][0], "cudaMemcpyAsync, to");
    check_range(from, bytes, sides[kind][1], "cudaMemcpyAsync, from");
    put(stream, "cudaMemcpyAsync", [=](volatile unsigned long *) { memmove(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int byte, size_t bytes, cudaStream_t stream) {
    check_stream(stream, "cudaMemsetAsync");
    check_range(memory, bytes, DEVICE_SIDE, "cudaMemsetAsync");
    put(stream, "cudaMemsetAsync", [=](volatile unsigned long *) { memset(memory, byte, bytes); });
    return cudaSuccess;
}

/* ---- streams
 * ---------------------------------------------------------------------------------------------- */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    if (flags != cudaStreamNonBlocking) fatal("a stream that waits for the NULL stream is made");
    emu_stream *s = new emu_stream;
    s->device = device_now;
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) fatal("no thread for a stream");
    holding h(all().mine);
    pthread_t watchdog;
    if (!all().watched &&
        (pthread_create(&watchdog, NULL, watch, NULL) != 0 || pthread_detach(watchdog) != 0))
        fatal("no watchdog");
    all().watched = true;
    s->users = 0;
    s->next = all().streams;
    all().streams = s;
    *stream = s;
    return cudaSuccess;
}

/* False while another thread stands at the stream. */
static bool stream_unlink(emu_stream *stream) {
    holding h(all().mine);
    if (stream->users > 0) return false;
    emu_stream **at = &all().streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    return true;
}

/* What was put in still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    check_stream(stream, "cudaStreamDestroy");
    wait_for(stream);
    stream->stop.store(true);
    futex_wake(&stream->put);
    pthread_join(stream->thread, NULL);
    while (!stream_unlink(stream))
        sched_yield();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    check_stream(stream, "cudaStreamSynchronize");
    wait_for(stream);
    return cudaSuccess;
}

void emu::enqueue(cudaStream_t stream, dim3 grid, dim3 block, const char *name,
                  std::function<void()> thread) {
    check_stream(stream, name);
    if (block.x * block.y * block.z > 1024 || block.x * block.y * block.z < 1 || grid.x < 1 ||
        grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535)
        fatal("%s: a launch of %u,%u,%u blocks of %u,%u,%u threads", name, grid.x, grid.y, grid.z,
              block.x, block.y, block.z);
    put(stream, name,
        [=](volatile unsigned long *tick) { emu::run_blocks(grid, block, name, thread, tick); });
}

/* ---- events
 * -------------------------------------------------------------------------------------------------
 */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new emu_event;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    check_stream(stream, "cudaEventRecord");
    std::shared_ptr<point> at = event->at;
    uint32_t number = at->recorded.fetch_add(1) + 1;
    put(stream, "cudaEventRecord", [=](volatile unsigned long *) {
        EMU_RELEASE(&at->sync);
        at->reached.store(number);
        futex_wake(&at->reached);
    });
    return cudaSuccess;
}

/* Waits for the last record before this call; of none it does not wait. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    check_stream(stream, "cudaStreamWaitEvent");
    std::shared_ptr<point> at = event->at;
    uint32_t wanted = at->recorded.load();
    if (wanted == 0) return cudaSuccess;
    put(stream, "cudaStreamWaitEvent", [=](volatile unsigned long *) {
        uint32_t reached;
        while ((int32_t)((reached = at->reached.load()) - wanted) < 0)
            futex_wait(&at->reached, reached);
        EMU_ACQUIRE(&at->sync);
    });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    uint32_t wanted = event->at->recorded.load(), reached;
    while ((int32_t)((reached = event->at->reached.load()) - wanted) < 0)
        futex_wait(&event->at->reached, reached);
    EMU_ACQUIRE(&event->at->sync);
    return cudaSuccess;
}

/* ---- cuBLAS
 * ---------------------------------------------------------------------------------------------------
 */
struct emu_blas {
    cudaStream_t stream;
};
const char *cublasGetStatusString(cublasStatus_t) {
    return "no error";
}
cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    *handle = new emu_blas{NULL};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

/* Columns of `rows` floats each, ld apart: in an allocation, and used by this operation. */
static void check_matrix(const float *at, int rows, int columns, int ld, const char *what) {
    if (ld < rows) fatal("cublasSgemm: %s: rows %d, distance %d", what, rows, ld);
    check_range(at, 4 * ((size_t)ld * (size_t)(columns - 1) + (size_t)rows), DEVICE_SIDE, what);
}

/* c = alpha*op(a)*op(b) + beta*c, column by column, sums in the order of k. */
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const float *alpha, const float *a, int lda,
                           const float *b, int ldb, const float *beta, float *c, int ldc) {
    bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
    float scale = *alpha, keep = *beta;
    check_stream(handle->stream, "cublasSgemm");
    if (m < 1 || n < 1 || k < 1) fatal("cublasSgemm: a product of %d x %d x %d", m, n, k);
    check_matrix(a, ta ? k : m, ta ? m : k, lda, "cublasSgemm, a");
    check_matrix(b, tb ? n : k, tb ? k : n, ldb, "cublasSgemm, b");
    check_matrix(c, m, n, ldc, "cublasSgemm, c");
    put(handle->stream, "cublasSgemm", [=](volatile unsigned long *tick) {
        std::vector<float> columns((size_t)m * (size_t)k); /* op(a), column by column */
        for (int i = 0; i < (ta ? m : k); i++)
            EMU_READS(a + (size_t)i * (size_t)lda, 4ul * (size_t)(ta ? k : m));
        for (int i = 0; i < (tb ? k : n); i++)
            EMU_READS(b + (size_t)i * (size_t)ldb, 4ul * (size_t)(tb ? n : k));
        for (int p = 0; p < k; p++)
            for (int i = 0; i < m; i++)
                columns[(size_t)p * (size_t)m + (size_t)i] =
                    ta ? a[(size_t)i * (size_t)lda + (size_t)p]
                       : a[(size_t)p * (size_t)lda + (size_t)i];
        for (int j = 0; j < n; j++, ++*tick) {
            float *to = c + (size_t)j * (size_t)ldc;
            EMU_WRITES(to, 4ul * (size_t)m);
            for (int i = 0; i < m; i++)
                to[i] = keep == 0 ? 0 : keep * to[i]; /* not read where beta is 0 */
            for (int p = 0; p < k; p++) {
                const float *from = columns.data() + (size_t)p * (size_t)m;
                float factor = scale * (tb ? b[(size_t)p * (size_t)ldb + (size_t)j]
                                           : b[(size_t)j * (size_t)ldb + (size_t)p]);
                for (int i = 0; i < m; i++)
                    to[i] += factor * from[i];
            }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}
