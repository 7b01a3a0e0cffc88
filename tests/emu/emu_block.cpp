/*
 * Blocks, warps and their barriers: the threads of a block are fibres of one thread. A fibre runs
 * until it waits; then the next thread begins, or one that may go on. So kernels without barriers
 * never switch, and every order of threads can be had on purpose.
 */
#include "emu_run.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

/* No loop becomes a call of the C library here: the thread sanitizer would see it. */
#pragma GCC optimize("no-tree-loop-distribute-patterns")

namespace emu {
enum { MOST = 1024, SITES = 32, SHARED = 227 * 1024, ZONE = 64, STACK = 256 * 1024 };
enum state { FRESH, RUNS, READY, AT_BARRIER, AT_WARP, ENDED };

/* ---- fibres ---------------------------------------------------------------------------------- */
struct fibre {
    void *sp;
    char *stack;
    const void *bottom; /* as the address sanitizer wants it */
    size_t size;
    void *fake, *thread; /* of the sanitizers */
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

struct site {
    const char *file;
    int line;
};

struct warp {
    uint32_t mask, arrived, value[32], done[32];
    site where;
    unsigned generation[32]; /* of each lane: how many __syncwarp it has passed */
    char sync[2];            /* addresses for the thread sanitizer */
};

struct worker {
    fibre main, *pool[MOST], *unused[MOST];
    int made, unused_count;
    index grid, block, at; /* sizes, and the block that runs */
    const std::function<void()> *thread;
    const char *name;
    int threads, alive, current, next; /* next: place in `order` of the next thread to begin */
    int order[MOST], queue[MOST], head, count; /* ready ones, first in first out */
    state states[MOST];
    fibre *of[MOST];
    site waits[MOST];
    int arrived;
    site barrier;
    unsigned generation;
    char sync[2], begin, end; /* addresses for the thread sanitizer */
    warp warps[MOST / 32];
    char *shared;
    size_t shared_used;
    struct {
        site where;
        char *memory;
        size_t bytes;
    } arrays[SITES];
    int array_count;
};

static thread_local worker *here;

void fatal(const char *format, ...) {
    va_list list;
    fflush(NULL);
    fputs("emu: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    abort();
}

int setting(const char *name, int initial) {
    const char *text = getenv(name);
    return text ? atoi(text) : initial;
}

#if defined(__x86_64__)
/* Saves what the calling convention keeps, changes stacks. A system call less than swapcontext. */
extern "C" void emu_swap(void **from, void *to);
__asm__(".text\n.globl emu_swap\n.hidden emu_swap\n.type emu_swap,@function\nemu_swap:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emu_swap,.-emu_swap\n");
#endif

static void swap(fibre *from, fibre *to) {
#ifdef EMU_ADDRESS
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef EMU_THREAD
    __tsan_switch_to_fiber(to->thread, 1); /* switching orders nothing */
#endif
#if defined(__x86_64__)
    emu_swap(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef EMU_ADDRESS
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

static void fibre_main();

static fibre *fibre_make() {
    fibre *f = (fibre *)calloc(1, sizeof *f);
    f->stack =
        (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->stack == MAP_FAILED) fatal("no memory for the stacks of threads");
    if (mprotect(f->stack, 4096, PROT_NONE) != 0) fatal("no guard below the stack of a thread");
    f->bottom = f->stack + 4096;
    f->size = STACK - 4096;
#ifdef EMU_THREAD
    f->thread = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
    void **top = (void **)(void *)(f->stack + STACK - 64);
    *top = (void *)fibre_main; /* `ret` goes there, with the stack as after a call */
    f->sp = top - 6;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, fibre_main, 0);
#endif
    return f;
}

/* Under the thread sanitizer every thread has a fibre of its own: its clock is that thread's. */
static fibre *fibre_take(int thread) {
    worker *w = here;
#ifdef EMU_THREAD
    return w->pool[thread];
#else
    (void)thread;
    if (w->unused_count > 0) return w->unused[--w->unused_count];
    return w->pool[w->made++] = fibre_make();
#endif
}

void run_finish() {
    worker *w = here;
    if (!w) return;
    for (int i = 0; i < MOST; i++) {
        if (!w->pool[i]) continue;
#ifdef EMU_THREAD
        __tsan_destroy_fiber(w->pool[i]->thread);
#endif
        munmap(w->pool[i]->stack, STACK);
        free(w->pool[i]);
    }
    EMU_UNPOISON(w->shared, SHARED);
    free(w->shared);
    free(w);
    here = NULL;
}

/* ---- who is next -------------------------------------------------------------------------------
 */
static void ready(int thread) {
    worker *w = here;
    w->states[thread] = READY;
    w->queue[(w->head + w->count++) % MOST] = thread;
}

/* Nobody can go on: say where they are. */
[[noreturn]] static void stuck() {
    worker *w = here;
    for (int i = 0; i < w->threads; i++)
        if (w->states[i] == AT_BARRIER || w->states[i] == AT_WARP)
            fatal("%s: thread %d of block %u,%u waits without end at %s:%d", w->name, i, w->at.x,
                  w->at.y, w->waits[i].file, w->waits[i].line);
    fatal("%s: nothing can go on", w->name);
}

/* The calling fibre has nothing to do. Threads that have not begun come first, so all get to a
 * barrier; the end of a block goes back to the thread the fibres belong to. */
static void pass_on(fibre *mine) {
    worker *w = here;
    fibre *to = &w->main;
    if (w->next < w->threads) {
        w->current = w->order[w->next++];
        to = w->of[w->current] = fibre_take(w->current);
    } else if (w->count > 0) {
        w->current = w->queue[w->head];
        w->head = (w->head + 1) % MOST;
        w->count--;
        to = w->of[w->current];
    } else if (w->alive > 0) {
        stuck();
    }
    if (to != &w->main) w->states[w->current] = RUNS;
    if (to != mine) swap(mine, to);
}

static void park(state why, site where) {
    worker *w = here;
    int me = w->current;
    w->states[me] = why;
    w->waits[me] = where;
    pass_on(w->of[me]);
}

/* ---- barriers ----------------------------------------------------------------------------------
 */
/* All that still run have come. In the order of threads, so that the order can be varied. */
static void barrier_open() {
    worker *w = here;
    w->arrived = 0;
    for (int k = 0; k < w->threads; k++)
        if (w->states[w->order[k]] == AT_BARRIER) ready(w->order[k]);
}

void sync_threads(const char *file, int line) {
    worker *w = here;
    unsigned generation = w->generation;
    if (w->arrived && (w->barrier.file != file || w->barrier.line != line))
        fatal("%s: threads of one block wait at %s:%d and at %s:%d", w->name, w->barrier.file,
              w->barrier.line, file, line);
    w->barrier = {file, line};
    EMU_RELEASE(&w->sync[generation & 1]);
    if (++w->arrived == w->alive) {
        w->generation++;
        barrier_open();
    } else {
        park(AT_BARRIER, {file, line});
    }
    EMU_ACQUIRE(&w->sync[generation & 1]);
}

int lane_index() {
    return here->current % 32;
}

/* Lanes meet and see each other's values. This orders no memory, as CUDA says. */
uint32_t meet(uint32_t mask, uint32_t value, int lane, uint32_t *all, const char *file, int line) {
    worker *w = here;
    int me = w->current;
    warp *p = &w->warps[me / 32];
    if (!(mask >> me % 32 & 1u)) fatal("%s:%d: a lane is not in the mask it gives", file, line);
    if (p->arrived && (p->mask != mask || p->where.file != file || p->where.line != line))
        fatal("%s: lanes of one warp wait at %s:%d and at %s:%d, or with other masks", w->name,
              p->where.file, p->where.line, file, line);
    for (int k = 0; k < 32; k++) {
        int other = me / 32 * 32 + k;
        if (mask >> k & 1u && (other >= w->threads || w->states[other] == ENDED))
            fatal("%s: %s:%d: lane %d of warp %d has ended, but mask %08x waits for it", w->name,
                  file, line, k, me / 32, mask);
    }
    p->mask = mask;
    p->where = {file, line};
    p->value[me % 32] = value;
    p->arrived |= 1u << me % 32;
    if (p->arrived == mask) {
        p->arrived = 0;
        for (int k = 0; k < 32; k++)
            p->done[k] = p->value[k];
        for (int k = 0; k < w->threads; k++) {
            int other = w->order[k];
            if (other / 32 == me / 32 && w->states[other] == AT_WARP) ready(other);
        }
    } else {
        park(AT_WARP, {file, line});
    }
    for (int k = 0; all && k < 32; k++)
        all[k] = p->done[k];
    return mask >> lane & 1u ? p->done[lane] : value;
}

/* A meeting of all lanes that does order memory. */
void sync_warp(const char *file, int line) {
    warp *p = &here->warps[here->current / 32];
    char *sync = &p->sync[p->generation[here->current % 32]++ & 1];
    EMU_RELEASE(sync);
    meet(0xFFFFFFFFu, 0, 0, NULL, file, line);
    EMU_ACQUIRE(sync);
}

/* ---- shared memory -----------------------------------------------------------------------------
 */
void *shared(size_t bytes, const char *file, int line) {
    worker *w = here;
    for (int i = 0; i < w->array_count; i++)
        if (w->arrays[i].where.file == file && w->arrays[i].where.line == line)
            return w->arrays[i].memory;
    size_t room = (bytes + ZONE - 1) / ZONE * ZONE + ZONE;
    if (w->array_count == SITES || w->shared_used + room > SHARED)
        fatal("%s: %s:%d: more shared memory than a block has", w->name, file, line);
    char *memory = w->shared + w->shared_used;
    EMU_UNPOISON(memory, bytes);
    w->arrays[w->array_count++] = {{file, line}, memory, bytes};
    w->shared_used += room;
    return memory;
}

/* A block finds not-a-number: what the block before has left must not help it. */
static void shared_reset() {
    worker *w = here;
    EMU_UNPOISON(w->shared, w->shared_used);
    memset(w->shared, 0xff, w->shared_used);
    EMU_POISON(w->shared, w->shared_used);
    w->shared_used = ZONE;
    w->array_count = 0;
}

/* ---- blocks ------------------------------------------------------------------------------------
 */
index thread_index() {
    const worker *w = here;
    unsigned t = (unsigned)w->current;
    return {t % w->block.x, t / w->block.x % w->block.y, t / w->block.x / w->block.y};
}
index block_index() {
    return here->at;
}
index block_dim() {
    return here->block;
}
index grid_dim() {
    return here->grid;
}

/* A thread's whole life; then this fibre serves another, or waits until one is needed. */
static void fibre_main() {
    worker *w = here;
#ifdef EMU_ADDRESS
    __sanitizer_finish_switch_fiber(NULL, w->main.bottom ? NULL : &w->main.bottom,
                                    w->main.bottom ? NULL : &w->main.size);
#endif
    for (;;) {
        fibre *mine = w->of[w->current];
        EMU_ACQUIRE(&w->begin);
        (*w->thread)();
        EMU_RELEASE(&w->end);
        w->states[w->current] = ENDED;
        w->alive--;
        if (w->arrived && w->arrived == w->alive) {
            w->generation++;
            barrier_open();
        }
#ifndef EMU_THREAD
        w->unused[w->unused_count++] = mine;
#endif
        pass_on(mine);
    }
}

static void shuffle_order(uint32_t seed) {
    worker *w = here;
    for (int i = 0; i < w->threads; i++)
        w->order[i] = seed == 1 ? w->threads - 1 - i : i;
    for (int i = w->threads - 1; seed > 1 && i > 0; i--) {
        seed = seed * 1664525u + 1013904223u;
        int k = (int)((seed >> 8) % (unsigned)(i + 1)), swap = w->order[i];
        w->order[i] = w->order[k];
        w->order[k] = swap;
    }
}

static void run_block(index at) {
    worker *w = here;
    w->at = at;
    w->alive = w->threads;
    w->next = w->head = w->count = w->arrived = 0;
    for (int i = 0; i < w->threads; i++)
        w->states[i] = FRESH;
    for (int i = 0; i < (w->threads + 31) / 32; i++) {
        w->warps[i].arrived = 0;
        for (int k = 0; k < 32; k++)
            w->warps[i].generation[k] = 0;
    }
    shared_reset();
    EMU_ACQUIRE(&w->end);
    EMU_RELEASE(&w->begin);
    pass_on(&w->main);
    EMU_ACQUIRE(&w->end);
}

void run_blocks(dim3 grid, dim3 block, const char *name, const std::function<void()> &thread,
                volatile unsigned long *tick) {
    unsigned order = (unsigned)setting("RV_EMU_ORDER", 0);
    unsigned long blocks = (unsigned long)grid.x * grid.y * grid.z;
    if (!here) {
        here = (worker *)calloc(1, sizeof *here);
        if (here) here->shared = (char *)aligned_alloc(ZONE, SHARED);
        if (!here || !here->shared) fatal("no memory for a worker");
        here->shared_used = SHARED;
#ifdef EMU_THREAD
        here->main.thread = __tsan_get_current_fiber();
#endif
    }
    worker *w = here;
    w->grid = {grid.x, grid.y, grid.z};
    w->block = {block.x, block.y, block.z};
    w->threads = (int)(block.x * block.y * block.z);
    w->thread = &thread;
    w->name = name;
    shuffle_order(order);
#ifdef EMU_THREAD
    /* By this thread, for who makes a fibre comes before all it does. */
    for (int i = 0; i < w->threads; i++)
        if (!w->pool[i]) w->pool[i] = fibre_make();
#endif
    for (unsigned long k = 0; k < blocks; k++) {
        unsigned long b = order == 1 ? blocks - 1 - k : k;
        run_block({(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                   (unsigned)(b / grid.x / grid.y)});
        ++*tick;
    }
}
} // namespace emu
