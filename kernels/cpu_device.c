/* The CPU device: its pool of threads, memory, queues (none: ops run before they return), table. */
#include "kernels/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#ifdef RV_DNNL
#include <dnnl.h>
#endif

#include "kernels/dnnl_conv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() ((void)0)
#endif

/* Polls before a waiting thread sleeps: about 20 microseconds, several times a wake-up's cost,
 * spent only where every thread has a processor of its own. */
enum { SPINS = 400 };

typedef struct pool {
    int threads, started; /* workers wanted, threads made: started + 1 when complete */
    int spins;            /* 0 where threads have to share processors */
    pthread_t *thread;
    pthread_mutex_t turn; /* one run at a time */
    pthread_mutex_t lock; /* of the two conditions */
    pthread_cond_t wake, done;
    atomic_uint round;     /* runs begun; a change is the signal to work */
    atomic_int next, left; /* item to take; workers still in this round */
    atomic_bool stop;
    int items, grain; /* of this run; items a worker takes at a time */
    void (*fn)(void *job, int item, int worker);
    void *job;
} pool;

/* A device. Its caches are filled by ops, which run one at a time. */
struct rv_ctx {
    rv_isa isa;
    pool pool;
#ifdef RV_DNNL
    rv_conv_cache *convs;
#endif
};

/* ---- the pool ---------------------------------------------------------------------------- */
/* Which worker takes an item is left to chance; items are made so that it cannot show. */
static void take_items(pool *p, int worker) {
    for (;;) {
        int first = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        int last = first + p->grain < p->items ? first + p->grain : p->items;
        if (first >= p->items) return;
        for (int item = first; item < last; item++)
            p->fn(p->job, item, worker);
    }
}

/* What a new thread is told; it frees this. */
typedef struct worker_start {
    pool *pool;
    int worker;
} worker_start;

/* Polls for a new round, then sleeps for one; works; the last of a round wakes the caller. The
 * round is changed under the lock, so a worker that checks it there cannot miss the signal. */
static void *worker_main(void *argument) {
    worker_start start = *(worker_start *)argument;
    pool *p = start.pool;
    unsigned seen = 0;
    rv_free(argument);
    (void)rv_flush_set();
    rv_cpu_one_thread();
    for (;;) {
        for (int spin = 0; spin < p->spins && atomic_load(&p->round) == seen; spin++)
            PAUSE();
        if (atomic_load(&p->round) == seen) {
            pthread_mutex_lock(&p->lock);
            while (atomic_load(&p->round) == seen)
                pthread_cond_wait(&p->wake, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        seen = atomic_load(&p->round);
        if (atomic_load(&p->stop)) return NULL;
        take_items(p, start.worker);
        if (atomic_fetch_sub(&p->left, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

/* Everything the workers read was written before; changing the round publishes it. */
static void pool_round(pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* Also after a start that failed half way: `started` threads are there to end. */
static void pool_finish(pool *p) {
    if (!p->thread) return;
    atomic_store(&p->stop, true);
    pool_round(p);
    /* They see `stop` with the round and leave without touching the job. */
    for (int i = 0; i < p->started; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->turn);
    rv_free(p->thread);
}

/* Workers are numbered from 1: the caller is 0. */
static rv_status worker_create(pool *p) {
    rv_status status = RV_OK;
    worker_start *start = NULL;
    TRY(rv_alloc(1, sizeof *start, "a worker's start", &start));
    *start = (worker_start){p, p->started + 1};
    int error = pthread_create(&p->thread[p->started], NULL, worker_main, start);
    if (error) FAIL(RV_RESOURCE, "cannot start thread %d: %s", p->started + 1, strerror(error));
    start = NULL; /* the thread's now */
    p->started++;
out:
    rv_free(start);
    return status;
}

/* With one thread there is no pool: items run in the caller. */
static rv_status pool_init(pool *p, int threads) {
    rv_status status = RV_OK;
    cpu_set_t mine;
    sigset_t all, before;
    p->threads = threads;
    if (threads == 1) return RV_OK;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) >= threads)
        p->spins = SPINS;
    TRY(rv_alloc((size_t)threads, sizeof *p->thread, "threads", &p->thread));
    pthread_mutex_init(&p->turn, NULL); /* on Linux these four cannot fail */
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    /* Signals are for the threads that know what to do with them. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (status == RV_OK && p->started < threads - 1)
        status = worker_create(p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
out:
    return status;
}

int rv_cpu_threads(const rv_ctx *ctx) {
    return ctx->pool.threads;
}

rv_isa rv_cpu_isa(const rv_ctx *ctx) {
    return ctx->isa;
}

/* The caller works too, then waits for the rest: a worker that found nothing left still counts
 * down, so that no round overlaps the next. */
void rv_cpu_run(rv_ctx *ctx, int items, void (*fn)(void *job, int item, int worker), void *job) {
    pool *p = &ctx->pool;
    if (p->threads == 1 || items <= 1) {
        for (int item = 0; item < items; item++)
            fn(job, item, 0);
        return;
    }
    pthread_mutex_lock(&p->turn); /* several threads may share a device, if they must */
    p->fn = fn;
    p->job = job;
    p->items = items;
    p->grain = items / (p->threads * 8) + 1; /* few takes, yet an even end */
    atomic_store(&p->next, 0);
    atomic_store(&p->left, p->threads - 1);
    pool_round(p);
    take_items(p, 0);
    for (int spin = 0; spin < p->spins && atomic_load(&p->left) > 0; spin++)
        PAUSE();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->left) > 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->turn);
}

/* Weak: there is none in a build without oneDNN. */
extern void omp_set_num_threads(int threads) __attribute__((weak));

void rv_cpu_one_thread(void) {
    if (omp_set_num_threads) omp_set_num_threads(1);
}

/* ---- context ----------------------------------------------------------------------------- */
#ifdef RV_DNNL
/* oneDNN must not use more than the instruction set the results are promised for. It listens only
 * until its first primitive: a process that opens devices of several levels keeps the first. */
static void dnnl_limit(rv_isa isa) {
    static const dnnl_cpu_isa_t most[RV_ISAS] = {
        [RV_ISA_BASELINE] = dnnl_cpu_isa_sse41,
        [RV_ISA_AVX2] = dnnl_cpu_isa_avx2,
        [RV_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
        [RV_ISA_AMX] = dnnl_cpu_isa_avx512_core_amx,
    };
    (void)dnnl_set_max_cpu_isa(most[isa]);
}

struct rv_conv_cache *rv_cpu_convs(rv_ctx *ctx) {
    return ctx->convs;
}
#endif

/* Also of a context that was only half opened. */
void RV_CPU(close)(rv_ctx *ctx) {
    if (!ctx) return;
    pool_finish(&ctx->pool);
#ifdef RV_DNNL
    rv_conv_cache_destroy(ctx->convs);
#endif
    rv_free(ctx);
}

rv_status RV_CPU(open)(rv_isa isa, int threads, rv_ctx **out) {
    rv_status status = RV_OK;
    rv_ctx *ctx = NULL;
    TRY(rv_alloc(1, sizeof *ctx, "a device", &ctx));
    ctx->isa = isa;
#ifdef RV_DNNL
    rv_cpu_one_thread();
    dnnl_limit(isa);
    TRY(rv_conv_cache_create(&ctx->convs));
#endif
    TRY(pool_init(&ctx->pool, threads));
    *out = ctx;
    ctx = NULL;
out:
    RV_CPU(close)(ctx);
    return status;
}

/* ---- memory ------------------------------------------------------------------------------ */
/* Host memory: alignment and zeroing are rv_alloc's. */
rv_status RV_CPU(alloc)(rv_ctx *ctx, size_t bytes, const char *what, void **out) {
    (void)ctx;
    return rv_alloc(bytes, 1, what, out);
}

void RV_CPU(free)(rv_ctx *ctx, void *memory) {
    (void)ctx;
    rv_free(memory);
}

rv_status RV_CPU(copy)(rv_ctx *ctx, rv_queue *queue, void *to, bool to_host, const void *from,
                       bool from_host, size_t bytes) {
    (void)ctx, (void)queue, (void)to_host, (void)from_host;
    memmove(to, from, bytes); /* both sides are host memory, and may overlap */
    return RV_OK;
}

rv_status RV_CPU(zero)(rv_ctx *ctx, rv_queue *queue, void *memory, size_t bytes) {
    (void)ctx, (void)queue;
    memset(memory, 0, bytes);
    return RV_OK;
}

/* ---- queues: an op has run when it returns, so there is nothing to wait for ---------------- */
rv_status RV_CPU(queue_create)(rv_ctx *ctx, rv_queue **out) {
    (void)ctx;
    *out = NULL;
    return RV_OK;
}

void RV_CPU(queue_destroy)(rv_ctx *ctx, rv_queue *queue) {
    (void)ctx, (void)queue;
}

rv_status RV_CPU(queue_record)(rv_ctx *ctx, rv_queue *queue, rv_event **event) {
    (void)ctx, (void)queue;
    *event = NULL;
    return RV_OK;
}

rv_status RV_CPU(queue_wait)(rv_ctx *ctx, rv_queue *queue, rv_event *event) {
    (void)ctx, (void)queue, (void)event;
    return RV_OK;
}

void RV_CPU(event_destroy)(rv_ctx *ctx, rv_event *event) {
    (void)ctx, (void)event;
}

rv_status RV_CPU(queue_sync)(rv_ctx *ctx, rv_queue *queue) {
    (void)ctx, (void)queue;
    return RV_OK;
}

/* ---- the table --------------------------------------------------------------------------- */
#define OP(op) .op = RV_CPU(op),
const rv_ops RV_CPU(table) = {
    .abi = 1, .struct_size = sizeof(rv_ops), .name = "cpu", RV_CPU_OPS(OP)};
#undef OP
