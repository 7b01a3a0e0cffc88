/*
 * Ranvier: what every folder uses. Status codes and error text, checked sizes, aligned memory,
 * the arena, parameter tables, Philox4x32-10, fault hooks.
 *
 * Conventions of the whole program: every fallible function returns rv_status; on failure it has
 * filled the calling thread's rv_error. Functions with clean-up declare `rv_status status = RV_OK;`
 * and end with one label `out:` that frees in reverse order; TRY and FAIL jump there.
 * init/finish work on caller memory, create/destroy on the heap; destroy and finish take NULL or
 * zeroed structs. Nothing here is blocking unless it says so.
 */
#ifndef RV_BASE_H
#define RV_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes. The number is the exit code of the program (README, "Exit codes"). */
#define RV_STATUS_LIST(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(DIFFERENT, 1, "different")                                                                   \
    X(USAGE, 64, "usage")                                                                          \
    X(DATA, 65, "bad data or damaged file")                                                        \
    X(INPUT, 66, "input missing")                                                                  \
    X(RESOURCE, 69, "not enough resources")                                                        \
    X(INTERNAL, 70, "internal")                                                                    \
    X(MEMORY, 71, "out of memory")                                                                 \
    X(CREATE, 73, "cannot create, exists, or locked")                                              \
    X(IO, 74, "input/output error or disk full")                                                   \
    X(AGAIN, 75, "checkpointed, run me again")                                                     \
    X(PEER, 76, "peer failed")                                                                     \
    X(CONFIG, 78, "configuration, plan or resume mismatch")                                        \
    X(INTERRUPT, 130, "interrupted")

#define RV_STATUS_ENUM(name, code, text) RV_##name = code,
typedef enum rv_status { RV_STATUS_LIST(RV_STATUS_ENUM) } rv_status;
#undef RV_STATUS_ENUM

#if defined(__GNUC__)
#define RV_CHECKED __attribute__((warn_unused_result))
#define RV_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define RV_CHECKED
#define RV_PRINTF(f, a)
#endif

#ifdef __CUDACC__
#define RV_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define RV_HD inline __attribute__((always_inline))
#else
#define RV_HD inline
#endif
#if defined(__cplusplus)
#define RV_RESTRICT __restrict__
#else
#define RV_RESTRICT restrict
#endif

/* A place in a text file, for messages. line 0 = no place. `file` is borrowed. */
typedef struct rv_where {
    const char *file;
    int line, column;
} rv_where;

/* The calling thread's last error. Valid until its next failing call. */
typedef struct rv_error {
    rv_status status;
    char message[512]; /* what, where, what to do; no newline */
    char file[256];    /* empty: no place */
    int line, column;
    char key[128];  /* configuration key concerned, or empty */
    char hint[128]; /* nearest key, or empty */
} rv_error;

const char *rv_status_text(rv_status status); /* constant text, never NULL */
const rv_error *rv_error_get(void);           /* thread-local, never NULL */
void rv_error_set(const rv_error *error);     /* copy another thread's error into this thread */
/* Fill the thread's error and return `status`. */
rv_status rv_fail(rv_status status, const char *format, ...) RV_PRINTF(2, 3);
/* The same with a place and optional key and hint (either may be NULL). */
rv_status rv_fail_at(rv_status status, rv_where where, const char *key, const char *hint,
                     const char *format, ...) RV_PRINTF(5, 6);

#define TRY(expression)                                                                            \
    do {                                                                                           \
        status = (expression);                                                                     \
        if (status != RV_OK) goto out;                                                             \
    } while (0)
#define FAIL(code, ...)                                                                            \
    do {                                                                                           \
        status = rv_fail(code, __VA_ARGS__);                                                       \
        goto out;                                                                                  \
    } while (0)

/* ---- sizes and memory ------------------------------------------------------------------- */
#define RV_LANES 16 /* floats of one 64-byte vector; rows of weights and values round up to it */

static inline int rv_round_up(int n, int to) {
    return (n + to - 1) / to * to;
}
static inline int rv_words(int n) { /* 32-bit words that hold n bits */
    return (n + 31) / 32;
}
/* *out = a*b, a+b; RV_MEMORY with a message when it does not fit in size_t. */
RV_CHECKED rv_status rv_size_mul(size_t a, size_t b, size_t *out);
RV_CHECKED rv_status rv_size_add(size_t a, size_t b, size_t *out);

/* Zeroed memory, 64-byte aligned. count*size is checked. *out is owned by the caller and freed
 * with rv_free. count*size = 0 gives a valid pointer. RV_MEMORY names `what` and the bytes. */
RV_CHECKED rv_status rv_alloc(size_t count, size_t size, const char *what, void *out);
void rv_free(void *memory); /* NULL allowed */
/* Until it is next written to, `memory` of rv_alloc keeps its addresses but no pages: for large
 * blocks that are rarely used. What it holds is lost. */
void rv_idle(void *memory, size_t bytes);
RV_CHECKED rv_status rv_strdup(const char *text, char **out); /* owned by caller, rv_free */

/* Edits (insert, delete, replace, exchange of two neighbours) that turn one word into the other:
 * optimal string alignment. INT_MAX when a word is longer than 64 letters: no name we have is. */
int rv_edit_distance(const char *a, size_t a_length, const char *b, size_t b_length);

/* Scratch memory of one stage: allocations of an item, all given back at once at its end. Grows
 * on the first items; then rv_arena_reset leaves one block and no further allocation happens. */
typedef struct rv_memory { /* where its memory comes from; alloc NULL: rv_alloc. Never zeroed. */
    rv_status (*alloc)(void *self, size_t bytes, const char *what, void **out);
    void (*free)(void *self, void *memory);
    void *self;
} rv_memory;
typedef struct rv_arena {
    struct rv_arena_block *block; /* newest first */
    size_t used, peak;            /* bytes of this item; largest so far */
    rv_memory memory;             /* set before the first call */
} rv_arena;
RV_CHECKED rv_status rv_arena_get(rv_arena *arena, size_t count, size_t size, void *out); /* aligned
                                                                       64, NOT zeroed */
/* Mark and return to it: nested scratch. */
size_t rv_arena_mark(const rv_arena *arena);
void rv_arena_release(rv_arena *arena, size_t mark);
void rv_arena_reset(rv_arena *arena);
void rv_arena_finish(rv_arena *arena);

/* ---- parameter tables ------------------------------------------------------------------- */
/* Every neuron, surrogate, layer, loss, optimiser, schedule, encoder and initialisation is a row
 * of a table. The row lists its parameters here; configuration checks values against them, fills
 * the row's option struct at `offset`, and `ranvier list` prints them. */
typedef enum rv_type {
    RV_T_BOOL,   /* bool */
    RV_T_INT,    /* int */
    RV_T_REAL,   /* double */
    RV_T_REALS,  /* rv_reals: one number, or a list with one per unit */
    RV_T_CHOICE, /* int: index into `choices` */
    RV_T_TEXT,   /* char *, owned by the configuration; default = `choices`, may be NULL */
    RV_T_PAIR,   /* int[2]: one int or [h, w] */
    RV_T_ROW,    /* rv_choice: {kind: name, parameters...}; `table` gives the rows */
} rv_type;

typedef struct rv_reals { /* data owned by the configuration; count 1 = scalar */
    int count;
    float *data;
    float value; /* the scalar (count = 1), else data[0] */
} rv_reals;

typedef struct rv_spec {
    const char *name;
    rv_type type;
    size_t offset;                /* in the row's option struct */
    double initial;               /* default; NAN = absent unless given (see the row's sentence).
                                     Required: INT and PAIR with NAN; TEXT without default, least 1 */
    double least, most;           /* inclusive limits; for CHOICE unused */
    bool open;                    /* the lower limit itself is excluded */
    const char *choices;          /* CHOICE: "a|b|c"; TEXT: default text */
    const struct rv_table *table; /* ROW */
    const char *sentence;         /* one line for `list` */
} rv_spec;

typedef struct rv_row {
    const char *name;
    const char *sentence; /* what it is, one sentence */
    const char *source;   /* paper or library the formula comes from */
    const rv_spec *specs; /* ends with name = NULL; may be NULL */
    size_t options_size;  /* bytes of the option struct, 0 = none */
} rv_row;

/* A table: `count` structs of `stride` bytes, each beginning with an rv_row. */
typedef struct rv_table {
    const char *name; /* "neurons", "surrogates", ...: the word of `ranvier list` */
    const void *rows;
    size_t stride;
    int count;
} rv_table;
typedef struct rv_choice { /* one chosen row and its filled options (owned by the configuration) */
    const rv_row *row;
    void *options;
} rv_choice;

const rv_row *rv_table_row(const rv_table *table, int index);
const rv_row *rv_table_find(const rv_table *table, const char *name); /* NULL: none */
int rv_table_index(const rv_table *table, const rv_row *row);
/* Fill an option struct with the defaults of its specs (REALS become scalars with data pointing
 * at `value`). ROW entries get the row named by `choices` and options NULL. */
void rv_specs_default(const rv_spec *specs, void *options);

/* ---- random numbers --------------------------------------------------------------------- */
/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11),
 * equal to curand_Philox4x32_10. key = seed; out holds four words. */
static RV_HD void rv_philox(uint32_t out[4], const uint32_t counter[4], uint64_t seed) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* What a random number is for: 4 bits of the last counter word. */
typedef enum rv_purpose {
    RV_FOR_INIT = 0,
    RV_FOR_ENCODE = 1,
    RV_FOR_DROPOUT = 2,
    RV_FOR_SHUFFLE = 3,
    RV_FOR_SPLIT = 4,
    RV_FOR_AUGMENT = 5,
    RV_FOR_DATA = 6,
} rv_purpose;

/* Counter words: unit/4, time, sample index, epoch(16) | purpose(4) | layer(12). Four outputs
 * serve four neighbouring units, so placement cannot matter. */
static RV_HD void rv_random4(uint32_t out[4], uint64_t seed, rv_purpose purpose, int layer,
                             uint32_t epoch, uint32_t sample, uint32_t time, uint32_t unit4) {
    const uint32_t counter[4] = {unit4, time, sample,
                                 (epoch & 0xFFFFu) << 16 | ((uint32_t)purpose & 0xFu) << 12 |
                                     ((uint32_t)layer & 0xFFFu)};
    rv_philox(out, counter, seed);
}
/* 24-bit uniform in [0, 1): word >> 8 times 2^-24. */
static RV_HD float rv_uniform(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f;
}

/* ---- denormals -------------------------------------------------------------------------- */
/* Flush denormals (FTZ and DAZ) in this thread; returns the earlier mode for rv_flush_restore. */
unsigned rv_flush_set(void);
void rv_flush_restore(unsigned mode);

/* ---- half floats ------------------------------------------------------------------------ */
/* To the nearest half, ties to even; what is finite stays finite (65504 at most). And back,
 * exactly: packing what was unpacked changes nothing. */
void rv_half_pack(const float *from, uint16_t *to, size_t count);
void rv_half_unpack(const uint16_t *from, float *to, size_t count);
/* What the nearest bf16 (ties to even) leaves of every value: exact, for it has fewer digits. Three
 * times leaves nothing. Infinity becomes not-a-number. */
void rv_bf16_rest(float *values, size_t count);

/* ---- fault hooks ------------------------------------------------------------------------ */
/* Under -DRV_FAULTS the k-th call at a site fails (once, or from then on). Otherwise a constant. */
typedef enum rv_fault_site {
    RV_FAULT_ALLOC,
    RV_FAULT_WRITE,
    RV_FAULT_FSYNC,
    RV_FAULT_CLOSE,
    RV_FAULT_RENAME,
    RV_FAULT_LINK,
    RV_FAULT_LOCK, /* as if the file system had no locks */
    RV_FAULT_SITES
} rv_fault_site;
#ifdef RV_FAULTS
void rv_fault_arm(rv_fault_site site, long nth, bool sticky); /* nth from 0; < 0: disarm */
bool rv_fault(rv_fault_site site);
long rv_fault_count(rv_fault_site site); /* calls since armed */
#else
#define rv_fault(site) false
#endif

#ifdef __cplusplus
}
#endif
#endif
