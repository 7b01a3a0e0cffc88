/*
 * Inside pipeline/: the schedule as data. Generators make one list of work items per worker; one
 * simulator checks the lists and foretells when every item runs; the text form prints and reads
 * them; an executor walks them. No threads, no devices, no clock.
 *
 * Symbols: S stages, M micro-batches of one optimiser step (or of the whole delayed run), C chunks
 * of time per micro-batch, s, m, c one of each. Times are doubles in any unit, the same everywhere.
 *
 * What an item needs to have ended (its stage's list may say more, never less):
 *   F(s,m,c)   F(s-1,m,c) and F(s,m,c-1)
 *   B(s,m,c)   F(s,m,c), B(s+1,m,c) and B(s,m,c+1); so at the last stage the whole sequence
 *   W(s,m,c)   B(s,m,c). BW is B and W in one; its message leaves after W
 *   NORM(s,u)  every W of update u at s; at the last stage also the NORM of all others
 *   U(s,u)     every W of update u at s; with NORM items, NORM(S-1,u)
 * What comes from another stage arrives `latency` after its producer ended. With k slots on a
 * directed edge, the producer of message n does not start before the consumer of n-k has ended.
 */
#ifndef RV_PIPELINE_SCHEDULE_H
#define RV_PIPELINE_SCHEDULE_H

#include "kernels/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- items ------------------------------------------------------------------------------ */
/* X(name, has a chunk): the letter of an item. NORM adds the squares of the gradient. */
#define RV_WORK_LIST(X) X(F, true) X(B, true) X(W, true) X(BW, true) X(U, false) X(NORM, false)
#define RV_WORK_ENUM(name, chunk) RV_WORK_##name,
typedef enum rv_work_kind { RV_WORK_LIST(RV_WORK_ENUM) RV_WORK_KINDS } rv_work_kind;
#undef RV_WORK_ENUM

enum { RV_NO_VERSION = -1, RV_STAGES_MOST = 4096, RV_CHUNKS_MOST = 65535 };

typedef struct rv_work {
    int32_t micro;   /* micro-batch; of U and NORM the number of the update */
    int32_t version; /* of the stage's weights it reads: how many updates made them; RV_NO_VERSION:
                        the newest */
    uint16_t stage, chunk; /* chunk 0 for U and NORM */
    uint8_t kind;          /* rv_work_kind */
} rv_work;

/* ---- costs ------------------------------------------------------------------------------ */
/* All arrays are borrowed. A chunk costs its share of the whole sequence, less what is done once a
 * sequence (the product with an input that is held, its weight gradient): chunk 0 has that. */
typedef struct rv_costs {
    const double *f, *b, *w;        /* [stages]: one micro-batch over the whole sequence */
    const double *once[RV_WORK_BW]; /* F, B, W: [stages], that part of them; NULL: nothing */
    const double *u, *norm;         /* [stages]: one item; NULL: nothing */
    const int *chunk_steps;         /* [chunks]: time steps of each, >= 1; NULL: as `steps` says */
    int steps;      /* of a sequence, cut as evenly as whole steps can be; 0: chunks all alike */
    const int *cap; /* [stages]: tapes, in chunks, a stage may hold; NULL: no limit */
    double latency; /* of one message */
    const double *scatter; /* [stages]: standard deviation of what an item takes, over its cost; may
                              be NULL where draw is 0 */
    uint32_t draw; /* which times are drawn: they depend on it and on the item alone. 0: every item
                      takes what it costs */
} rv_costs;

/* ---- schedules -------------------------------------------------------------------------- */
/* What the simulator computes. */
typedef struct rv_forecast {
    double makespan; /* start of the first item to the end of the last F, B, W, BW; NAN: deadlock */
    double total;    /* to the end of the last item of any kind */
    double bubble;   /* 1 - M*sum of f+b+w over all stages / (workers * makespan); NAN: deadlock */
    double *start, *end; /* one entry per item, in the order of `items` */
    int *peak;           /* [stages]: most tapes held at once, in chunks */
    int *peak_steps;     /* [stages]: the same in time steps (chunk_steps; else one each) */
} rv_forecast;

/* Share of `whole` in which nothing is done; where all of it is busy, rounding leaves no less. */
static inline double rv_idle_share(double busy, double whole) {
    return busy < whole ? 1 - busy / whole : 0;
}

/* Owned by the caller: zeroed = empty; rv_schedule_finish frees. Lists may be edited in place
 * before they are simulated. */
typedef struct rv_schedule {
    char name[16];              /* row of the generator, or as the text form says */
    int stages, micros, chunks; /* S, M, C */
    bool fused;                 /* items F and BW; else F, B and W */
    bool norm;                  /* every update has its NORM items */
    bool newest; /* backward reads another version than forward; else it must be the same */
    int slots;   /* per directed edge; 0: no limit */
    int group;   /* micro-batches per update; 0: the lists hold no U (one update at the end) */
    int kept;    /* versions a stage keeps: after n updates n-kept+1..n; 0: items name none */
    int workers;
    int *first; /* [workers + 1]: list of worker k = items first[k] .. first[k+1]-1, in order */
    rv_work *items;
    rv_forecast forecast;
} rv_schedule;

/* Room for `count` items (M*C*(fused ? 2 : 3) a stage when count is 0), zeroed, and lists of equal
 * length for as many workers as stages. RV_CONFIG: a number below 1 or beyond what items hold. */
RV_CHECKED rv_status rv_schedule_init(rv_schedule *schedule, int stages, int micros, int chunks,
                                      bool fused, size_t count);
void rv_schedule_finish(rv_schedule *schedule);
static inline int rv_schedule_count(const rv_schedule *schedule) {
    return schedule->first ? schedule->first[schedule->workers] : 0;
}
/* The list of a worker, for an executor; *count items. Borrowed. */
static inline const rv_work *rv_schedule_list(const rv_schedule *schedule, int worker, int *count) {
    *count = schedule->first[worker + 1] - schedule->first[worker];
    return schedule->items + schedule->first[worker];
}
/* Updates the lists hold: ceil(M / group), 0 when group is 0. */
int rv_schedule_updates(const rv_schedule *schedule);

/* ---- simulator and checker (schedule.c, simulate.c) ------------------------------------- */
typedef enum rv_flaw_kind {
    RV_FLAW_NONE,
    RV_FLAW_UNKNOWN, /* not an item of this schedule */
    RV_FLAW_MISSING,
    RV_FLAW_DOUBLED,
    RV_FLAW_DEADLOCK,
    RV_FLAW_MEMORY_CAP,
    RV_FLAW_VERSION_NOT_KEPT,
    RV_FLAW_VERSION_NOT_PINNED, /* chunks of one micro-batch under several versions */
    RV_FLAW_KINDS
} rv_flaw_kind;
typedef enum rv_flaw_cause {
    RV_CAUSE_NONE,
    RV_CAUSE_ORDER_IN_STAGE, /* a list contradicts itself */
    RV_CAUSE_ACROSS_STAGES,  /* lists contradict each other */
    RV_CAUSE_SLOTS,          /* would run with more slots */
    RV_CAUSES
} rv_flaw_cause;

/* The first flaw found, in the order unknown, doubled, missing, order in a stage, versions,
 * memory, then what the run shows. */
typedef struct rv_flaw {
    rv_flaw_kind kind;
    rv_flaw_cause cause; /* of a deadlock */
    rv_work item;        /* the item that cannot run */
    rv_work needs;       /* deadlock: what it waits for; not pinned: the item it disagrees with */
    int worker;          /* whose list holds `item`; -1 when missing */
    int position;        /* in that list, from 0 */
    int held, limit;     /* memory cap: tapes held then and allowed; versions: updates done, kept */
    char circle[256];    /* deadlock across stages: "0/F1.0 needs 1/B0.0, 1/B0.0 needs ..." */
} rv_flaw;

const char *rv_flaw_name(rv_flaw_kind kind);    /* "none", "missing", ... */
const char *rv_cause_name(rv_flaw_cause cause); /* "order_in_stage", ... */

/* Check the lists and fill `forecast`. Every list runs strictly in order, one item at a time, each
 * as early as it can. RV_CONFIG: *flaw says what, the error text says it in words (flaw may be
 * NULL). The peaks stand in `forecast` for a memory cap and a deadlock too. Cost O(items).
 * A stage's items may lie in several lists, where they need no slots and no versions. */
RV_CHECKED rv_status rv_schedule_simulate(rv_schedule *schedule, const rv_costs *costs,
                                          rv_flaw *flaw);

/* Draws of times to take a mean over; few of long schedules. 0: no stage's items scatter. */
int rv_schedule_draws(const rv_schedule *schedule, const rv_costs *costs);
/* The bubble to expect where items scatter: mean over the draws. The schedule can run; its forecast
 * is then that without scatter. */
RV_CHECKED rv_status rv_schedule_expect(rv_schedule *schedule, rv_costs costs, double *bubble);

/* ---- lower bounds (bound.c) ------------------------------------------------------------- */
/* No synchronous schedule of these costs has a smaller makespan (golden README, section 2). */
RV_CHECKED rv_status rv_schedule_bound(int stages, int micros, int chunks, const rv_costs *costs,
                                       double *bound);

/* The same of `total`, with U and where asked NORM, closer: nothing is looked at chunk by chunk but
 * chunk_steps, so that many numbers of chunks can be compared. O(S*M). RV_CONFIG: a number below 1,
 * more chunks than steps. */
RV_CHECKED rv_status rv_schedule_floor(int stages, int micros, int chunks, const rv_costs *costs,
                                       bool norm, double *bound);

/* Time steps of chunk c; 1 where costs do not say. */
int rv_chunk_steps(const rv_costs *costs, int chunks, int c);
/* share[c] of the whole sequence belongs to chunk c. */
void rv_chunk_shares(const rv_costs *costs, int chunks, double *share);
/* Of an item; share [chunks], as rv_chunk_shares gives it. */
double rv_item_cost(const rv_costs *costs, const double *share, rv_work_kind kind, int stage,
                    int chunk);
/* What it takes in the costs' draw: few items take much longer and none much shorter, an
 * exponential distribution moved to mean 1. */
double rv_item_time(const rv_costs *costs, const double *share, const rv_work *work);

/* ---- text form (schedule_text.c) -------------------------------------------------------- */
/* A header of `key value` lines, then `worker K` and its items, free in white space, # to the end
 * of the line is a comment. An item is F3.0 or, reading version 2, F3.0@2; U3; one of another stage
 * than its list's number 1/F3.0. Print and parse are inverses. */
enum { RV_WORK_TEXT = 48 };
/* `worker`: the number of the list it stands in; no stage is written when it is the same. */
void rv_work_print(const rv_work *work, int worker, char text[RV_WORK_TEXT]);
/* The first `length` characters. False: not an item. */
bool rv_work_parse(const char *text, size_t length, int worker, rv_work *work);
RV_CHECKED rv_status rv_schedule_print(const rv_schedule *schedule, char **text); /* rv_free */
/* RV_CONFIG with line and column. Says nothing about whether the schedule can run. */
RV_CHECKED rv_status rv_schedule_parse(const char *file, const char *text, rv_schedule *schedule);

/* ---- generators (generators.c, zb.c) ---------------------------------------------------- */
typedef struct rv_generator {
    rv_row row;
    bool fused;
    bool one_stage; /* S = 1 only */
    bool by_costs;  /* the order depends on costs */
    int orders;     /* so many lists it can make; the first is the plain one, */
    int few_orders; /* and so many of them it makes where the grid has over RV_CELLS_FEW cells */
    /* Fill the lists of `schedule` (made by rv_schedule_init for this row) with order 0 .. */
    rv_status (*generate)(const rv_costs *costs, int order, rv_schedule *schedule);
} rv_generator;
/* Rows serial, filldrain, filldrain+2bp, 1f1b, 1f1b+2bp, zb. */
const rv_table *rv_generator_table(void);
const rv_generator *rv_generator_find(const char *name); /* NULL: none */
/* In a large grid one order is as good as another, and each takes long. */
enum { RV_CELLS_FEW = 4096 };
int rv_generator_orders(const rv_generator *generator, int stages, int micros, int chunks);
/* Slots of an edge that so many messages pass in a step: 0 stands for no limit, and more than there
 * are messages have no use. */
static inline int rv_schedule_slots(int slots, int messages) {
    return slots > 0 && slots < messages ? slots : messages;
}
/* The lists of one order, without a limit of slots, not yet simulated. Costs are read by zb only:
 * it plans with their times and with their caps, C+2(S-1) where there are none. RV_CONFIG: S > 1
 * for serial, a cap below C for zb. No order is slower with more slots. */
RV_CHECKED rv_status rv_schedule_order(const rv_generator *generator, int order, int stages,
                                       int micros, int chunks, const rv_costs *costs,
                                       rv_schedule *schedule);
/* The lists of the order that is fastest with so many slots; simulate it to see its times. */
RV_CHECKED rv_status rv_schedule_make(const rv_generator *generator, int stages, int micros,
                                      int chunks, int slots, const rv_costs *costs,
                                      rv_schedule *schedule);
/* One greedy order of zb (zb.c); the generator has several. */
typedef struct rv_zb_variant {
    double patience; /* in chunks of the costliest stage: what arrives so soon is waited for. Never
                        0 in the plain form: rounding must not decide what is at one time */
    int slots;       /* > 0: an item also waits for its slot, so that the order runs with these */
} rv_zb_variant;
RV_CHECKED rv_status rv_zb_plan(const rv_costs *costs, const rv_zb_variant *variant,
                                rv_schedule *schedule);

/* ---- updates and versions (staleness.c) ------------------------------------------------- */
/* Put the U of every `group` micro-batches (NORM before it when asked) after the last W of the
 * group. The lists come from a generator, or were simulated without a flaw, and hold no U yet. */
RV_CHECKED rv_status rv_schedule_add_updates(rv_schedule *schedule, int group, bool norm);
/* Name the versions of a delayed run: forward of micro-batch m reads max(0, u - delay[s]), u = m /
 * group; backward the same, or u when `newest`. kept becomes the least that suffices. Needs U. */
RV_CHECKED rv_status rv_schedule_pin(rv_schedule *schedule, const int *delay, bool newest);

/* Lists that give the bits of one device: worker s runs stage s; F with micro-batches and chunks
 * ascending, B and W with micro-batches ascending and chunks descending; one update at the end.
 * RV_CONFIG names the first item out of order. */
RV_CHECKED rv_status rv_schedule_check_canonical(const rv_schedule *schedule);

/* Never-flushed 1f1b with one update per micro-batch: versions between what the forward of chunk c
 * at stage s sees live and the newest when its micro-batch updates. Chunk 0 gives the delay of a
 * pinned run: 1 + ceil((S-2-s-c)/C). */
int rv_delay_1f1b(int stages, int chunks, int stage, int chunk);
/* The same with forward and backward at once on two streams: floor((2(C-1) + 2(S-1-s))/C). */
int rv_delay_two_streams(int stages, int chunks, int stage);
/* Least micro-batches per update for a constant delay of one: max(1, ceil((C+S-2)/C)). */
int rv_group_2bw(int stages, int chunks);

/* ---- search (search.c) ------------------------------------------------------------------ */
/* `auto`: generators, their orders, chunk counts and slot counts are tried by simulation. */
typedef struct rv_search {
    int stages, micros;
    const int *chunks; /* candidates, ascending, [chunk_count] */
    int chunk_count;
    int slots;                     /* 0: any; else these */
    bool norm;                     /* the step has NORM items */
    const rv_generator *generator; /* NULL: all */
    /* Costs at C chunks; what it points to lives until the next call. */
    rv_status (*costs)(void *context, int chunks, rv_costs *costs);
    /* With a limit of memory: bytes at `chunks` and `slots`, never less with more slots. `schedule`
     * is simulated and tells the tapes; NULL: the least that any schedule needs, one sequence of
     * tapes at each stage. */
    rv_status (*bytes)(void *context, int chunks, int slots, const rv_schedule *schedule,
                       double *bytes);
    double memory; /* 0: no limit; else zb is also tried with fewer tapes */
    /* With it, or NULL: tapes, in chunks, that a stage can hold at most, cap [stages], at least one
     * sequence. */
    rv_status (*caps)(void *context, int chunks, int *cap);
    double limit; /* nothing that takes more seconds is asked for; 0: anything is */
    /* Items to plan and simulate before it gives up once it has a schedule; then, too, grids of
     * more than RV_CELLS_FEW cells are left out where they could gain 0.1 % at most. 0: any. */
    double effort;
    void *context;
} rv_search;
/* How thorough it was. */
typedef struct rv_searched {
    int tried, ruled_out, left; /* chunk counts: simulated, cannot be faster or fit, not tried */
    int near;                   /* ruled out because they could be faster by 0.1 % at most */
    double left_bound;          /* nothing that was not tried takes less than that; INFINITY: all */
    double least;               /* bytes: of all that runs, the least that was met; INFINITY */
} rv_searched;
/* The schedule of one step of least total time, with its U, simulated; among equals (to 1e-9) that
 * of least peak (largest share of a sequence held by any stage), then fewest slots, fewest chunks,
 * first row. Chunk counts are taken by their lower bounds, the promising first, and left out when
 * the bound is above what was found: unless `left` or `near` says otherwise, no fixed choice among
 * the candidates, any count of slots included, is faster within the memory, and it finds one that
 * fits whenever there is one. RV_CONFIG: none runs (the last reason is in the text), or none within
 * `limit`; RV_RESOURCE: none fits the memory. searched may be NULL. */
RV_CHECKED rv_status rv_schedule_search(const rv_search *search, rv_schedule *best,
                                        rv_searched *searched);

#ifdef __cplusplus
}
#endif
#endif
