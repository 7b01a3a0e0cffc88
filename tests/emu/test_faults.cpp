/*
 * What the emulator and the sanitizers catch: each fault is planted in a kernel or a call, run in a
 * process of its own, and must end that process with the right words; without the fault the same
 * code must end well. Which build finds which fault is written beside it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include <emu.hpp>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef EMU_SAN
#define EMU_SAN ""
#endif
#define LAUNCH(kernel, blocks, threads, stream, ...)                                               \
    emu::launch(stream, blocks, threads, #kernel, kernel, __VA_ARGS__)
#define SHARED(type, name, count)                                                                  \
    type *name = (type *)emu::shared(sizeof(type) * (count), __FILE__, __LINE__)

enum { N = 64 };

/* ---- devices of a case --------------------------------------------------------------------- */
struct bench {
    cudaStream_t stream[2];
    float *a, *b; /* [N] device memory */
    float *host;  /* [N] */
};

static void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "unexpected: %s\n", cudaGetErrorString(error));
    _exit(3);
}

static bench bench_open() {
    bench s;
    must(cudaSetDevice(0));
    for (cudaStream_t &stream : s.stream)
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(cudaMalloc((void **)&s.a, N * sizeof(float)));
    must(cudaMalloc((void **)&s.b, N * sizeof(float)));
    s.host = (float *)calloc(N, sizeof(float));
    must(cudaMemsetAsync(s.a, 0, N * sizeof(float), s.stream[0]));
    must(cudaStreamSynchronize(s.stream[0]));
    return s;
}

static void bench_close(bench &s) {
    for (cudaStream_t stream : s.stream)
        must(cudaStreamDestroy(stream));
    must(cudaFree(s.a));
    must(cudaFree(s.b));
    free(s.host);
}

/* ---- kernels with a fault on demand ---------------------------------------------------------- */
static __global__ void write_one(float *at, int place) {
    if (threadIdx.x == 0) at[place] = 1;
}

/* Every thread reads its neighbour's number. */
static __global__ void neighbours(float *to, bool sync, int beyond) {
    SHARED(float, all, N);
    int i = (int)threadIdx.x;
    all[i + (i == N - 1 ? beyond : 0)] = (float)i;
    if (sync) __syncthreads();
    to[i] = all[(i + 1) % N];
}

static __global__ void sum_of_shared(float *to, bool fill) {
    SHARED(float, all, N);
    if (fill) all[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float sum = 0;
    for (int i = 0; i < N; i++)
        sum += all[i];
    to[0] = sum;
}

static __global__ void add_all(float *to, int *counter, bool atomic) {
    if (atomic)
        atomicAdd(counter, 1);
    else
        *counter += 1;
    to[threadIdx.x] = 0;
}

static __global__ void two_barriers(float *to, bool apart) {
    if (apart && threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
    to[threadIdx.x] = 0;
}

static __global__ void lanes_leave(float *to, bool leave) {
    if (leave && threadIdx.x == 5) return;
    to[threadIdx.x] = (float)__popc(__ballot_sync(0xFFFFFFFFu, true));
}

/* Waits for what no thread will do. */
static __global__ void forever(volatile float *at, bool wait) {
    while (wait && at[0] >= 0)
        continue;
}

/* ---- cases: each with and without its fault ----------------------------------------------------
 */
static void global_bounds(bench &s, bool fault) {
    LAUNCH(write_one, 1, 32, s.stream[0], s.a, fault ? (int)N : N - 1);
}
static void shared_bounds(bench &s, bool fault) {
    LAUNCH(neighbours, 1, N, s.stream[0], s.b, true, fault ? 1 : 0);
}
static void barrier_missing(bench &s, bool fault) {
    LAUNCH(neighbours, 1, N, s.stream[0], s.b, !fault, 0);
}
static void atomic_missing(bench &s, bool fault) {
    LAUNCH(add_all, 1, N, s.stream[0], s.b, (int *)s.a, !fault);
}
static void barriers_apart(bench &s, bool fault) {
    LAUNCH(two_barriers, 1, N, s.stream[0], s.b, fault);
}
static void lane_gone(bench &s, bool fault) {
    LAUNCH(lanes_leave, 1, 32, s.stream[0], s.b, fault);
}
/* Shows as a result that is no number. */
static void shared_unset(bench &s, bool fault) {
    LAUNCH(sum_of_shared, 1, N, s.stream[0], s.b, !fault);
    must(cudaMemcpyAsync(s.host, s.b, sizeof(float), cudaMemcpyDeviceToHost, s.stream[0]));
    must(cudaStreamSynchronize(s.stream[0]));
    if (s.host[0] != (float)N) {
        fprintf(stderr, "the sum is %f\n", (double)s.host[0]);
        _exit(1);
    }
}
/* One queue writes, another reads. */
static void event_missing(bench &s, bool fault) {
    cudaEvent_t event;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    LAUNCH(write_one, 1, 32, s.stream[0], s.a, 0);
    must(cudaEventRecord(event, s.stream[0]));
    if (!fault) must(cudaStreamWaitEvent(s.stream[1], event, 0));
    must(cudaMemcpyAsync(s.b, s.a, sizeof(float), cudaMemcpyDeviceToDevice, s.stream[1]));
    must(cudaStreamSynchronize(s.stream[1]));
    must(cudaEventDestroy(event));
}
/* The host looks at memory of both sides before the queue is done. */
static void sync_missing(bench &s, bool fault) {
    float *both = NULL, seen;
    must(cudaMallocManaged((void **)&both, sizeof(float)));
    LAUNCH(write_one, 1, 32, s.stream[0], both, 0);
    if (!fault) must(cudaStreamSynchronize(s.stream[0]));
    seen = *both;
    must(cudaStreamSynchronize(s.stream[0]));
    must(cudaFree(both));
    s.host[0] = seen;
}
static void copy_long(bench &s, bool fault) {
    must(cudaMemcpyAsync(s.a, s.host, (size_t)(fault ? N + 1 : (int)N) * sizeof(float),
                         cudaMemcpyHostToDevice, s.stream[0]));
}
static void copy_direction(bench &s, bool fault) {
    must(cudaMemcpyAsync(s.a, s.host, sizeof(float),
                         fault ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, s.stream[0]));
}
static void product_bounds(bench &s, bool fault) {
    cublasHandle_t blas;
    const float one = 1, zero = 0;
    if (cublasCreate(&blas) || cublasSetStream(blas, s.stream[0])) _exit(3);
    if (cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, fault ? 9 : 8, &one, s.a, 8, s.a, 8,
                    &zero, s.b, 8))
        _exit(3);
    if (cublasDestroy(blas)) _exit(3);
}
static void null_stream(bench &s, bool fault) {
    must(cudaMemsetAsync(s.a, 0, sizeof(float), fault ? NULL : s.stream[0]));
}
static void other_device(bench &s, bool fault) {
    if (fault) must(cudaSetDevice(1));
    must(cudaMemsetAsync(s.a, 0, sizeof(float), s.stream[0]));
    must(cudaSetDevice(0));
}
static void no_end(bench &s, bool fault) {
    LAUNCH(forever, 1, 1, s.stream[0], s.a, fault);
}

/* `builds`: sanitizers that find it; NULL: every build. */
static const struct planted {
    const char *name;
    void (*run)(bench &s, bool fault);
    const char *builds, *words;
} faults[] = {
    {"global_memory_out_of_bounds_is_found", global_bounds, "address", "heap-buffer-overflow"},
    {"shared_memory_out_of_bounds_is_found", shared_bounds, "address", "use-after-poison"},
    {"missing___syncthreads_is_found", barrier_missing, "thread", "data race"},
    {"missing_atomic_is_found", atomic_missing, "thread", "data race"},
    {"missing_wait_for_an_event_is_found", event_missing, "thread", "data race"},
    {"missing_wait_of_the_host_is_found", sync_missing, "thread", "data race"},
    {"threads_at_two_barriers_is_found", barriers_apart, NULL, "threads of one block wait at"},
    {"lane_that_has_ended_is_found", lane_gone, NULL, "lane 5 of warp 0 has ended"},
    {"shared_memory_nobody_has_set_is_found", shared_unset, NULL, "the sum is"},
    {"copy_beyond_an_allocation_is_found", copy_long, NULL,
     "bytes at offset 0 of an allocation of 256"},
    {"copy_in_the_wrong_direction_is_found", copy_direction, NULL, "wrong direction"},
    {"product_beyond_an_allocation_is_found", product_bounds, NULL, "cublasSgemm, a"},
    {"NULL_stream_is_found", null_stream, NULL, "the NULL stream is used"},
    {"stream_of_another_device_is_found", other_device, NULL, "while device 1 is current"},
    {"kernel_without_end_is_found", no_end, NULL, "nothing has moved for 2 s"},
};

/* In a child, since most faults end the process. What it printed goes to `text`. */
static int run_apart(const planted *p, bool fault, char *text, size_t size) {
    int ends[2], code = -1;
    size_t used = 0;
    ssize_t got;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        setenv("RV_EMU_SECONDS", "2", 1);
        bench s = bench_open();
        p->run(s, fault);
        must(cudaStreamSynchronize(s.stream[0]));
        bench_close(s);
        exit(0);
    }
    close(ends[1]);
    while (used + 1 < size && (got = read(ends[0], text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &code, 0), child);
    return code;
}

static void planted_fault_is_found(void **state) {
    const planted *p = (const planted *)*state;
    static char text[1 << 16];
    if (p->builds && !strstr(p->builds, EMU_SAN[0] ? EMU_SAN : "none")) skip();
    int code = run_apart(p, true, text, sizeof text);
    if (code == 0 || !strstr(text, p->words))
        fail_msg("%s: exit %d, \"%s\" is not in \"%s\"", p->name, code, p->words, text);
}

static void same_code_without_fault_ends_well(void **state) {
    (void)state;
    static char text[1 << 16];
    for (const planted &p : faults) {
        int code = run_apart(&p, false, text, sizeof text);
        if (code != 0) fail_msg("%s: exit %d: %s", p.name, code, text);
    }
}

/* In every order of threads the correct kernel gives the same, and one without its barrier does
 * not: the plain build sees that much. */
static void orders_of_threads_show_a_missing_barrier(void **state) {
    (void)state;
    float got[2][2][N];
    for (int order = 0; order < 2; order++) {
        setenv("RV_EMU_ORDER", order ? "1" : "0", 1);
        for (int sync = 0; sync < 2; sync++) {
            if (!sync && strcmp(EMU_SAN, "thread") == 0) continue; /* it would report the race */
            bench s = bench_open();
            LAUNCH(neighbours, 1, N, s.stream[0], s.b, sync != 0, 0);
            must(cudaMemcpyAsync(got[order][sync], s.b, sizeof got[0][0], cudaMemcpyDeviceToHost,
                                 s.stream[0]));
            must(cudaStreamSynchronize(s.stream[0]));
            bench_close(s);
        }
    }
    unsetenv("RV_EMU_ORDER");
    assert_memory_equal(got[0][1], got[1][1], sizeof got[0][1]);
    if (strcmp(EMU_SAN, "thread") != 0)
        assert_int_not_equal(memcmp(got[0][0], got[1][0], sizeof got[0][0]), 0);
}

static void memory_comes_filled_with_not_a_number(void **state) {
    (void)state;
    bench s = bench_open();
    must(cudaMemcpyAsync(s.host, s.b, N * sizeof(float), cudaMemcpyDeviceToHost, s.stream[0]));
    must(cudaStreamSynchronize(s.stream[0]));
    for (int i = 0; i < N; i++)
        assert_true(s.host[i] != s.host[i]);
    bench_close(s);
}

int main() {
    enum { FAULTS = sizeof faults / sizeof *faults };
    CMUnitTest tests[FAULTS + 3];
    for (int i = 0; i < FAULTS; i++)
        tests[i] = {faults[i].name, planted_fault_is_found, NULL, NULL, (void *)&faults[i]};
    tests[FAULTS] = cmocka_unit_test(same_code_without_fault_ends_well);
    tests[FAULTS + 1] = cmocka_unit_test(orders_of_threads_show_a_missing_barrier);
    tests[FAULTS + 2] = cmocka_unit_test(memory_comes_filled_with_not_a_number);
    return _cmocka_run_group_tests("planted faults", tests, FAULTS + 3, NULL, NULL);
}
