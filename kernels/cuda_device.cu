/*
 * A GPU: what the plug-in exports, memory, copies, queues and events. Every error of the runtime is
 * told with what was being done; a launch whose error nobody reads would seem to have worked.
 */
#include "kernels/cuda_device.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- errors -------------------------------------------------------------------------------- */
rv_status rv_cuda_fail(const rv_host *host, rv_status status, const char *format, ...) {
    char message[512];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    return host->fail(status, message);
}

/* Device and call are named: with several stages it matters whose it was. */
rv_status rv_cuda_check(const rv_ctx *ctx, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return RV_OK;
    return rv_cuda_fail(ctx->host, error == cudaErrorMemoryAllocation ? RV_MEMORY : RV_INTERNAL,
                        RV_PLUGIN_NAME ":%d, %s: %s", ctx->device, what, cudaGetErrorString(error));
}

/* cuBLAS has errors of its own. */
rv_status rv_cuda_blas(const rv_ctx *ctx, cublasStatus_t error, const char *what) {
    if (error == CUBLAS_STATUS_SUCCESS) return RV_OK;
    return rv_cuda_fail(ctx->host, RV_INTERNAL, RV_PLUGIN_NAME ":%d, %s: %s", ctx->device, what,
                        cublasGetStatusString(error));
}

/* Which device is current belongs to the thread, and a context may be used by several in turn. */
rv_status rv_cuda_enter(const rv_ctx *ctx) {
    return rv_cuda_check(ctx, cudaSetDevice(ctx->device), "choosing the device");
}

/* ---- memory -------------------------------------------------------------------------------- */
/* Unified memory: cuBLAS and kernels use it as any other, and the host may look at it in between.
 * Zeroed before it is handed out, since the contract of alloc says so and the host may read it. */
rv_status rv_cuda_alloc(rv_ctx *ctx, size_t bytes, const char *what, void **out) {
    void *memory = NULL;
    size_t size = bytes ? bytes : 1;
    *out = NULL;
    PASS(rv_cuda_enter(ctx));
    PASS(rv_cuda_check(ctx, cudaMallocManaged(&memory, size, cudaMemAttachGlobal), what));
    *out = memory;
    PASS(rv_cuda_zero(ctx, NULL, memory, size));
    return rv_cuda_queue_sync(ctx, NULL);
}

/* Waits for what still runs, as freeing device memory does. */
void rv_cuda_free(rv_ctx *ctx, void *memory) {
    if (!memory || rv_cuda_enter(ctx) != RV_OK) return;
    (void)rv_cuda_check(ctx, cudaFree(memory), "freeing memory");
}

/* Grows only: after the first items no op allocates any more. */
rv_status rv_cuda_scratch(rv_ctx *ctx, size_t bytes, void *out) {
    if (bytes > ctx->scratch_bytes) {
        rv_cuda_free(ctx, ctx->scratch);
        ctx->scratch_bytes = 0;
        PASS(rv_cuda_alloc(ctx, bytes, "scratch", &ctx->scratch));
        ctx->scratch_bytes = bytes;
    }
    memcpy(out, &ctx->scratch, sizeof ctx->scratch);
    return RV_OK;
}

/* A stage whose last copy has ended, large enough. */
static rv_status stage_take(rv_ctx *ctx, size_t bytes, rv_cuda_stage **out) {
    rv_cuda_stage *stage = &ctx->stage[ctx->turn];
    ctx->turn = (ctx->turn + 1) % RV_CUDA_STAGES;
    PASS(rv_cuda_check(ctx, cudaEventSynchronize(stage->done), "waiting for a copy"));
    if (stage->bytes < bytes) {
        if (stage->memory) PASS(rv_cuda_check(ctx, cudaFreeHost(stage->memory), "freeing memory"));
        stage->memory = NULL, stage->bytes = 0;
        PASS(rv_cuda_check(ctx, cudaMallocHost(&stage->memory, bytes), "memory for copies"));
        stage->bytes = bytes;
    }
    *out = stage;
    return RV_OK;
}

/* From the host by way of a stage, so the source is free at once; to the host it is waited for. */
rv_status rv_cuda_copy(rv_ctx *ctx, rv_queue *queue, void *to, bool to_host, const void *from,
                       bool from_host, size_t bytes) {
    cudaStream_t stream = rv_cuda_stream(ctx, queue);
    rv_cuda_stage *stage = NULL;
    if (bytes == 0) return RV_OK;
    PASS(rv_cuda_enter(ctx));
    if (from_host && to_host) {
        memmove(to, from, bytes);
        return RV_OK;
    }
    if (to_host) {
        PASS(rv_cuda_check(ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream),
                           "copying to the host"));
        return rv_cuda_queue_sync(ctx, queue);
    }
    if (!from_host)
        return rv_cuda_check(
            ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying");
    PASS(stage_take(ctx, bytes, &stage));
    memcpy(stage->memory, from, bytes);
    PASS(rv_cuda_check(ctx,
                       cudaMemcpyAsync(to, stage->memory, bytes, cudaMemcpyHostToDevice, stream),
                       "copying from the host"));
    return rv_cuda_check(ctx, cudaEventRecord(stage->done, stream), "copying from the host");
}

/* In the order of the queue, as all the rest. */
rv_status rv_cuda_zero(rv_ctx *ctx, rv_queue *queue, void *memory, size_t bytes) {
    if (bytes == 0) return RV_OK;
    PASS(rv_cuda_enter(ctx));
    return rv_cuda_check(ctx, cudaMemsetAsync(memory, 0, bytes, rv_cuda_stream(ctx, queue)),
                         "zeroing memory");
}

/* ---- queues -------------------------------------------------------------------------------- */
/* Non-blocking: such a stream does not wait for the NULL stream, which libraries may use. */
rv_status rv_cuda_queue_create(rv_ctx *ctx, rv_queue **out) {
    rv_queue *queue = NULL;
    *out = NULL;
    PASS(rv_cuda_enter(ctx));
    PASS(ctx->host->alloc(1, sizeof *queue, "a queue", &queue));
    rv_status status = rv_cuda_check(
        ctx, cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking), "making a queue");
    if (status == RV_OK)
        *out = queue;
    else
        ctx->host->free(queue);
    return status;
}

/* What was put in still runs: the runtime waits for it. */
void rv_cuda_queue_destroy(rv_ctx *ctx, rv_queue *queue) {
    if (!queue || rv_cuda_enter(ctx) != RV_OK) return;
    (void)rv_cuda_check(ctx, cudaStreamDestroy(queue->stream), "closing a queue");
    ctx->host->free(queue);
}

/* An event is made once and recorded over and over; who waits sees the latest record before the
 * wait. No times are taken, which makes it cheaper. */
rv_status rv_cuda_queue_record(rv_ctx *ctx, rv_queue *queue, rv_event **event) {
    PASS(rv_cuda_enter(ctx));
    if (!*event) {
        rv_event *made = NULL;
        PASS(ctx->host->alloc(1, sizeof *made, "an event", &made));
        rv_status status = rv_cuda_check(
            ctx, cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming), "making an event");
        if (status != RV_OK) {
            ctx->host->free(made);
            return status;
        }
        *event = made;
    }
    return rv_cuda_check(ctx, cudaEventRecord((*event)->event, rv_cuda_stream(ctx, queue)),
                         "recording an event");
}

/* Of this or another device: the wait is on the device, no thread sleeps for it. */
rv_status rv_cuda_queue_wait(rv_ctx *ctx, rv_queue *queue, rv_event *event) {
    PASS(rv_cuda_enter(ctx));
    return rv_cuda_check(ctx, cudaStreamWaitEvent(rv_cuda_stream(ctx, queue), event->event, 0),
                         "waiting for an event");
}

/* One that is still waited for may go: the runtime frees it when it has been reached. */
void rv_cuda_event_destroy(rv_ctx *ctx, rv_event *event) {
    if (!event) return;
    (void)rv_cuda_check(ctx, cudaEventDestroy(event->event), "closing an event");
    ctx->host->free(event);
}

/* An error of a kernel shows here at the latest. */
rv_status rv_cuda_queue_sync(rv_ctx *ctx, rv_queue *queue) {
    PASS(rv_cuda_enter(ctx));
    return rv_cuda_check(ctx, cudaStreamSynchronize(rv_cuda_stream(ctx, queue)),
                         "running what was queued");
}

/* ---- table ---------------------------------------------------------------------------------- */
/* Filled by name, since C++ has no initialisers out of order. */
static rv_ops make_ops(void) {
    rv_ops ops = {};
    ops.abi = 1, ops.struct_size = sizeof ops;
    ops.name = RV_PLUGIN_NAME;
    ops.apart = true;
    ops.lacks = "recurrent neurons";
#define RV_CUDA_FILL(op) ops.op = rv_cuda_##op;
    RV_CUDA_OPS(RV_CUDA_FILL)
#undef RV_CUDA_FILL
    return ops;
}
static const rv_ops ops_table = make_ops();

/* ---- opening ------------------------------------------------------------------------------- */
/* Takes a context that is only half made. */
void rv_cuda_close(rv_ctx *ctx) {
    if (!ctx) return;
    const rv_host *host = ctx->host;
    if (rv_cuda_enter(ctx) == RV_OK) {
        rv_cuda_free(ctx, ctx->scratch);
        for (int i = 0; i < RV_CUDA_STAGES; i++) {
            if (ctx->stage[i].memory)
                (void)rv_cuda_check(ctx, cudaFreeHost(ctx->stage[i].memory), "freeing memory");
            if (ctx->stage[i].done)
                (void)rv_cuda_check(ctx, cudaEventDestroy(ctx->stage[i].done), "closing an event");
        }
        if (ctx->blas) (void)rv_cuda_blas(ctx, cublasDestroy(ctx->blas), "closing cuBLAS");
        if (ctx->stream)
            (void)rv_cuda_check(ctx, cudaStreamDestroy(ctx->stream), "closing a queue");
    }
    host->free(ctx);
}

/* Unified memory must be open to both sides at once: the host looks at weights while other stages
 * of the same device are at work. */
static rv_status open_parts(rv_ctx *ctx) {
    int both = 0;
    PASS(rv_cuda_enter(ctx));
    PASS(rv_cuda_check(
        ctx, cudaDeviceGetAttribute(&both, cudaDevAttrConcurrentManagedAccess, ctx->device),
        "asking for its abilities"));
    if (!both)
        return rv_cuda_fail(ctx->host, RV_RESOURCE,
                            RV_PLUGIN_NAME ":%d has no unified memory for both sides at once",
                            ctx->device);
    PASS(rv_cuda_check(ctx, cudaStreamCreateWithFlags(&ctx->stream, cudaStreamNonBlocking),
                       "making a queue"));
    for (int i = 0; i < RV_CUDA_STAGES; i++)
        PASS(rv_cuda_check(ctx,
                           cudaEventCreateWithFlags(&ctx->stage[i].done, cudaEventDisableTiming),
                           "making an event"));
    return rv_cuda_blas(ctx, cublasCreate(&ctx->blas), "opening cuBLAS");
}

/* Every stage opens its own context, with its own stream, also on a device it shares. */
static rv_status plugin_open(const rv_host *host, int index, rv_device *out) {
    rv_ctx *ctx = NULL;
    PASS(host->alloc(1, sizeof *ctx, "a device", &ctx));
    ctx->host = host;
    ctx->device = index;
    rv_status status = open_parts(ctx);
    if (status != RV_OK) {
        rv_cuda_close(ctx);
        return status;
    }
    out->ops = &ops_table;
    out->ctx = ctx;
    out->index = index;
    return RV_OK;
}

/* The runtime says the same of a driver that is not there and of one that is too old; the version
 * it reports tells them apart. */
static rv_status plugin_count(const rv_host *host, int *out) {
    int driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(out);
    if (error == cudaSuccess && *out > 0) return RV_OK;
    (void)cudaGetLastError(); /* it is told here */
    *out = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
    if (driver == 0) return rv_cuda_fail(host, RV_RESOURCE, "the driver is missing");
    if (driver < runtime)
        return rv_cuda_fail(host, RV_RESOURCE,
                            "the driver is too old: it is of CUDA %d.%d, needed is %d.%d",
                            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorNoDevice || error == cudaSuccess)
        return rv_cuda_fail(host, RV_RESOURCE, "the driver finds no GPU");
    return rv_cuda_fail(host, RV_RESOURCE, "no GPU can be used: %s", cudaGetErrorString(error));
}

static const rv_plugin plugin = {RV_PLUGIN_ABI, sizeof(rv_plugin), RV_PLUGIN_NAME, plugin_count,
                                 plugin_open};

/* The one symbol that is visible. */
extern "C" __attribute__((visibility("default"))) const rv_plugin *
rv_plugin_open(const rv_host *host) {
    bool known = host->abi == RV_PLUGIN_ABI && host->struct_size >= sizeof(rv_host);
    return known ? &plugin : NULL;
}
