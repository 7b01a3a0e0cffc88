/* Base services: errors, memory, arena, parameter tables, denormals, fault hooks. See base.h. */
#include "kernels/base.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- errors ------------------------------------------------------------------------------ */
/* One per thread: a worker's failure is copied to the thread that reports it (rv_error_set). */
static _Thread_local rv_error thread_error;

/* A switch and not an array: the numbers are exit codes, with gaps. */
const char *rv_status_text(rv_status status) {
    switch (status) {
#define RV_STATUS_CASE(name, code, text)                                                           \
    case RV_##name:                                                                                \
        return text;
        RV_STATUS_LIST(RV_STATUS_CASE)
#undef RV_STATUS_CASE
    }
    return "unknown status";
}

const rv_error *rv_error_get(void) {
    return &thread_error;
}

/* The caller may hand back what rv_error_get gave it. */
void rv_error_set(const rv_error *error) {
    if (error != &thread_error) thread_error = *error;
}

/* snprintf truncates: a message that is too long keeps its beginning, which says what happened. */
static void text_set(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from ? from : "");
}

/* Bytes of the UTF-8 character at `at`; 0: none. RFC 3629: no overlong form, no surrogate. */
static int character_length(const unsigned char *at) {
    const int length = at[0] < 0x80   ? 1
                       : at[0] < 0xc2 ? 0
                       : at[0] < 0xe0 ? 2
                       : at[0] < 0xf0 ? 3
                                      : 4;
    if (length == 0 || at[0] > 0xf4) return 0;
    for (int i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if (at[0] == 0xe0 && at[1] < 0xa0) return 0;
    if (at[0] == 0xed && at[1] > 0x9f) return 0;
    if (at[0] == 0xf0 && at[1] < 0x90) return 0;
    if (at[0] == 0xf4 && at[1] > 0x8f) return 0;
    return length;
}

/* Errors quote damaged files: what no terminal and no JSON reader takes becomes a question mark, a
 * character that the end of the buffer has cut among it. */
static void text_clean(char *text) {
    unsigned char *at = (unsigned char *)text;
    while (*at) {
        const int length = character_length(at);
        const bool control = (*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f;
        if (length == 0 || control) *at = '?';
        at += length ? length : 1;
    }
}

/* The one place that fills the error; the two public forms differ in what they know. */
static rv_status fail_list(rv_status status, rv_where where, const char *key, const char *hint,
                           const char *format, va_list arguments) {
    /* The arguments may point into the old error (a message wrapped in another), so build anew. */
    rv_error error = {.status = status, .line = where.line, .column = where.column};
    vsnprintf(error.message, sizeof error.message, format, arguments);
    text_set(error.file, sizeof error.file, where.file);
    text_set(error.key, sizeof error.key, key);
    text_set(error.hint, sizeof error.hint, hint);
    text_clean(error.message);
    text_clean(error.file);
    text_clean(error.key);
    text_clean(error.hint);
    thread_error = error;
    return status;
}

rv_status rv_fail(rv_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail_list(status, (rv_where){0}, NULL, NULL, format, arguments);
    va_end(arguments);
    return status;
}

rv_status rv_fail_at(rv_status status, rv_where where, const char *key, const char *hint,
                     const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail_list(status, where, key, hint, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- fault hooks ------------------------------------------------------------------------- */
#ifdef RV_FAULTS
#include <stdatomic.h>

/* The one mutable table of the program, present in fault builds only. at <= 0: disarmed. */
static struct {
    atomic_long at, calls;
    atomic_bool sticky;
} faults[RV_FAULT_SITES];

/* Arming counts anew, so that a test can walk n = 0, 1, ... until nothing fails. */
void rv_fault_arm(rv_fault_site site, long nth, bool sticky) {
    atomic_store(&faults[site].at, nth < 0 ? 0 : nth + 1);
    atomic_store(&faults[site].sticky, sticky);
    atomic_store(&faults[site].calls, 0);
}

/* Several threads may pass a site at once: each call gets a number of its own. */
bool rv_fault(rv_fault_site site) {
    long call = atomic_fetch_add(&faults[site].calls, 1) + 1, at = atomic_load(&faults[site].at);
    return at > 0 && (atomic_load(&faults[site].sticky) ? call >= at : call == at);
}

long rv_fault_count(rv_fault_site site) {
    return atomic_load(&faults[site].calls);
}
#endif

/* ---- sizes and memory -------------------------------------------------------------------- */
#define ALIGN ((size_t)64) /* a cache line, and the widest vector */

/* Sizes come from configuration and files: every product of them goes through here. */
rv_status rv_size_mul(size_t a, size_t b, size_t *out) {
    if (__builtin_mul_overflow(a, b, out))
        return rv_fail(RV_MEMORY, "a size does not fit in memory: %zu times %zu", a, b);
    return RV_OK;
}

rv_status rv_size_add(size_t a, size_t b, size_t *out) {
    if (__builtin_add_overflow(a, b, out))
        return rv_fail(RV_MEMORY, "a size does not fit in memory: %zu plus %zu", a, b);
    return RV_OK;
}

/* Bytes of count*size rounded up to whole cache lines, at least one. */
static rv_status size_lines(size_t count, size_t size, size_t *out) {
    rv_status status = RV_OK;
    size_t bytes = 0;
    TRY(rv_size_mul(count, size, &bytes));
    if (bytes == 0) bytes = 1;
    TRY(rv_size_add(bytes, ALIGN - 1, &bytes));
    *out = bytes & ~(ALIGN - 1);
out:
    return status;
}

/* Large blocks lie on huge pages where the system has them: rows of weights are visited in any
 * order, and small pages cost a table walk each. Advice only, so its result does not matter. */
static void *memory_get(size_t bytes) {
    const size_t huge = (size_t)2 << 20;
    void *memory = NULL;
    if (rv_fault(RV_FAULT_ALLOC)) return NULL;
    if (posix_memalign(&memory, bytes < huge ? ALIGN : huge, bytes) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= huge) (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

/* Zeroing here touches every page at once, so that running out of memory shows in the caller that
 * asked and not in the middle of a step. */
rv_status rv_alloc(size_t count, size_t size, const char *what, void *out) {
    rv_status status = RV_OK;
    size_t bytes = 0;
    void *memory = NULL;
    TRY(size_lines(count, size, &bytes));
    memory = memory_get(bytes);
    if (!memory) FAIL(RV_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
    memset(memory, 0, bytes);
    memcpy(out, &memory, sizeof memory);
out:
    return status;
}

void rv_free(void *memory) {
    free(memory);
}

/* Whole pages only: others share the first and the last. A system that refuses keeps the pages,
 * which costs memory and nothing else. */
void rv_idle(void *memory, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory;
    size_t skip = (size_t)(-begin & (page - 1));
    if (bytes < skip + page) return;
    (void)madvise((char *)memory + skip, (bytes - skip) / page * page, MADV_DONTNEED);
}

/* From rv_alloc, so that one function frees all. */
rv_status rv_strdup(const char *text, char **out) {
    rv_status status = RV_OK;
    size_t size = strlen(text) + 1;
    TRY(rv_alloc(size, 1, "text", out));
    memcpy(*out, text, size);
out:
    return status;
}

/* Three rows of the table are enough: an exchange looks back two. */
int rv_edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    enum { MOST = 64 };
    int row[3][MOST + 1]; /* rows i-2, i-1, i, by i modulo 3 */
    if (a_length > MOST || b_length > MOST) return INT_MAX;
    for (size_t j = 0; j <= b_length; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[a_length % 3][b_length];
}

/* ---- arena ------------------------------------------------------------------------------- */
/* Blocks newest first; `start` is the arena's `used` when the block became the newest. In host
 * memory the header takes the cache line before the data; that of a device the host leaves alone.
 */
typedef struct rv_arena_block {
    struct rv_arena_block *older;
    size_t size, start, used;
    char *data;
} rv_arena_block;
_Static_assert(sizeof(rv_arena_block) <= ALIGN, "the header must fit in one line");

enum { ARENA_LEAST = 64 * 1024 };

/* A new newest block. What is left of the one before stays unused until the reset: blocks are few
 * and only the first items make them. */
static rv_status arena_grow(rv_arena *arena, size_t bytes) {
    rv_status status = RV_OK;
    rv_arena_block *block = NULL;
    size_t size = bytes > ARENA_LEAST ? bytes : ARENA_LEAST, total = 0;
    /* After a reset the first block holds all that an item has ever needed. */
    if (!arena->block && size < arena->peak) size = arena->peak;
    TRY(rv_size_add(arena->memory.alloc ? 0 : size, ALIGN, &total));
    block = memory_get(total);
    if (!block) FAIL(RV_MEMORY, "out of memory: %zu bytes of scratch", total);
    *block = (rv_arena_block){
        .older = arena->block, .size = size, .start = arena->used, .data = (char *)block + ALIGN};
    if (arena->memory.alloc) {
        void *data = NULL;
        TRY(arena->memory.alloc(arena->memory.self, size, "scratch", &data));
        block->data = data;
    }
    arena->block = block;
    block = NULL;
out:
    free(block);
    return status;
}

static void block_free(const rv_arena *arena, rv_arena_block *block) {
    if (arena->memory.alloc) arena->memory.free(arena->memory.self, block->data);
    free(block);
}

/* Whole cache lines, so that what follows is aligned and workers do not share a line. */
rv_status rv_arena_get(rv_arena *arena, size_t count, size_t size, void *out) {
    rv_status status = RV_OK;
    size_t bytes = 0;
    void *memory = NULL;
    TRY(size_lines(count, size, &bytes));
    if (!arena->block || arena->block->size - arena->block->used < bytes)
        TRY(arena_grow(arena, bytes));
    memory = arena->block->data + arena->block->used;
    arena->block->used += bytes;
    arena->used += bytes;
    if (arena->peak < arena->used) arena->peak = arena->used;
    memcpy(out, &memory, sizeof memory);
out:
    return status;
}

/* A mark is the number of bytes taken: blocks made later start at or above it. */
size_t rv_arena_mark(const rv_arena *arena) {
    return arena->used;
}

void rv_arena_release(rv_arena *arena, size_t mark) {
    rv_arena_block *block = arena->block;
    if (!block || mark >= arena->used) return;
    /* The newest block is kept even when empty, so that nested scratch in a loop does not
     * allocate again each time; empty ones in between go. */
    while (block->older && block->older->start >= mark && block->start >= mark) {
        rv_arena_block *empty = block->older;
        block->older = empty->older;
        block_free(arena, empty);
    }
    if (block->start >= mark) {
        if (block->older) block->older->used = mark - block->older->start;
        block->start = mark;
        block->used = 0;
    } else {
        block->used = mark - block->start;
    }
    arena->used = mark;
}

/* The peak is kept: it sizes the block of the next item. */
static void arena_free(rv_arena *arena) {
    while (arena->block) {
        rv_arena_block *older = arena->block->older;
        block_free(arena, arena->block);
        arena->block = older;
    }
    arena->used = 0;
}

/* One block that was large enough for the largest item is kept; several are given back, and the
 * next item makes one of their size together. */
void rv_arena_reset(rv_arena *arena) {
    rv_arena_block *block = arena->block;
    if (block && !block->older && block->size >= arena->peak) {
        block->used = 0;
        block->start = 0;
        arena->used = 0;
    } else {
        arena_free(arena); /* the next item gets one block of the peak size */
    }
}

void rv_arena_finish(rv_arena *arena) {
    if (!arena) return;
    arena_free(arena);
    arena->peak = 0;
}

/* ---- parameter tables -------------------------------------------------------------------- */
/* Rows of different tables differ in size; each begins with an rv_row. */
const rv_row *rv_table_row(const rv_table *table, int index) {
    return (const rv_row *)((const char *)table->rows + (size_t)index * table->stride);
}

/* Tables hold a few dozen rows and are searched while a configuration is read: no index. */
const rv_row *rv_table_find(const rv_table *table, const char *name) {
    for (int i = 0; i < table->count; i++) {
        const rv_row *row = rv_table_row(table, i);
        if (strcmp(row->name, name) == 0) return row;
    }
    return NULL;
}

/* The row is one of the table's own, so its address says where it is. */
int rv_table_index(const rv_table *table, const rv_row *row) {
    for (int i = 0; i < table->count; i++)
        if (rv_table_row(table, i) == row) return i;
    return -1;
}

/* Required numbers have NAN for a default; converting it would be undefined. */
static int default_int(double value) {
    return value >= INT_MIN && value <= INT_MAX ? (int)value : 0; /* NAN: 0 */
}

/* One case per type of rv_type: a new type is a compiler warning here. */
void rv_specs_default(const rv_spec *specs, void *options) {
    for (const rv_spec *spec = specs; spec && spec->name; spec++) {
        char *at = (char *)options + spec->offset;
        int whole = default_int(spec->initial);
        switch (spec->type) {
        case RV_T_BOOL:
            *(bool *)at = whole != 0;
            break;
        case RV_T_INT:
        case RV_T_CHOICE:
            *(int *)at = whole;
            break;
        case RV_T_REAL:
            *(double *)at = spec->initial;
            break;
        case RV_T_REALS: { /* a scalar: its array is its own value */
            rv_reals *reals = (rv_reals *)at;
            *reals = (rv_reals){1, &reals->value, (float)spec->initial};
            break;
        }
        case RV_T_TEXT: /* the text itself, owned by nobody */
            *(const char **)at = spec->choices;
            break;
        case RV_T_PAIR:
            ((int *)at)[0] = ((int *)at)[1] = whole;
            break;
        case RV_T_ROW:
            *(rv_choice *)at = (rv_choice){
                spec->table && spec->choices ? rv_table_find(spec->table, spec->choices) : NULL,
                NULL};
            break;
        }
    }
}

/* ---- denormals --------------------------------------------------------------------------- */
#if defined(__x86_64__)
enum { FLUSH_BITS = 0x8040 }; /* MXCSR: flush to zero, denormals are zero */

unsigned rv_flush_set(void) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_BITS);
    return mode;
}

void rv_flush_restore(unsigned mode) {
    /* Only our two bits: exception flags raised meanwhile stay raised. */
    _mm_setcsr((_mm_getcsr() & ~(unsigned)FLUSH_BITS) | (mode & FLUSH_BITS));
}
#elif defined(__aarch64__)
enum { FLUSH_BITS = 1 << 24 }; /* FPCR.FZ: inputs and results */

unsigned rv_flush_set(void) {
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | FLUSH_BITS));
    return (unsigned)mode;
}

void rv_flush_restore(unsigned mode) {
    unsigned long now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    __asm__ volatile("msr fpcr, %0"
                     :
                     : "r"((now & ~(unsigned long)FLUSH_BITS) | (mode & FLUSH_BITS)));
}
#else /* elsewhere denormals stay: slower where they occur, and other last bits */
unsigned rv_flush_set(void) {
    return 0;
}

void rv_flush_restore(unsigned mode) {
    (void)mode;
}
#endif
