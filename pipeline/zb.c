/*
 * The greedy order of zb: a discrete-event run of all stages at once in which a free stage takes
 * the next B if it has arrived, else the next F if it has arrived and a tape is free, else the
 * oldest W that is left. What ends at time t counts as done for choices at t.
 */
#include <math.h>
#include <string.h>

#include "pipeline/schedule.h"

typedef struct event {
    double time;
    int stage;
} event;

typedef struct stage {
    int done[RV_WORK_BW]; /* F, B, W so far: each kind has one order */
    int cap;
    double free;
    rv_work *next; /* where its list goes on */
} stage;

typedef struct plan {
    const rv_costs *costs;
    rv_schedule *schedule;
    int slots, count; /* count: M*C */
    double *share;    /* [chunks] */
    double *end[2];   /* [stages][count]: when F and B number n ended; INFINITY: not begun */
    stage *stages;
    event *heap; /* least time first */
    int heap_count;
    double patience; /* what arrives within this time counts as arrived */
} plan;

/* ---- events ----------------------------------------------------------------------------- */

static bool before(event a, event b) {
    return a.time < b.time || (a.time == b.time && a.stage < b.stage);
}

static void push(plan *p, double time, int s) {
    event new = {time, s};
    int i = p->heap_count++;
    for (; i > 0 && before(new, p->heap[(i - 1) / 2]); i = (i - 1) / 2)
        p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = new;
}

static event pop(plan *p) {
    event top = p->heap[0], last = p->heap[--p->heap_count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < p->heap_count; i = child) {
        if (child + 1 < p->heap_count && before(p->heap[child + 1], p->heap[child])) child++;
        if (!before(p->heap[child], last)) break;
        p->heap[i] = p->heap[child];
    }
    p->heap[i] = last;
    return top;
}

/* ---- one stage -------------------------------------------------------------------------- */

static double ended(const plan *p, rv_work_kind kind, int s, int n) {
    return p->end[kind][(size_t)s * (size_t)p->count + (size_t)n];
}

/* When the next F or B of stage s may start; INFINITY: not known yet. */
static double may_start(const plan *p, rv_work_kind kind, int s) {
    const bool back = kind == RV_WORK_B;
    const int n = p->stages[s].done[kind], C = p->schedule->chunks;
    const int from = back ? s + 1 : s - 1, to = back ? s - 1 : s + 1;
    const int last = p->schedule->stages - 1;
    double time = 0;
    if (n == p->count) return INFINITY;
    if (from >= 0 && from <= last) time = ended(p, kind, from, n) + p->costs->latency;
    if (back) /* its own F: the n-th B is another chunk of the same micro-batch than the n-th F */
        time = fmax(time, ended(p, RV_WORK_F, s, n - n % C + (C - 1 - n % C)));
    if (p->slots > 0 && n >= p->slots && to >= 0 && to <= last)
        time = fmax(time, ended(p, kind, to, n - p->slots));
    return time;
}

/* Ask a stage at `time`; one that is busy then is asked when it is free. */
static void wake(plan *p, double time, int s) {
    if (s >= 0 && s < p->schedule->stages && time >= p->stages[s].free) push(p, time, s);
}

static void start(plan *p, double now, int s, rv_work_kind kind) {
    stage *it = &p->stages[s];
    const int n = it->done[kind]++, C = p->schedule->chunks;
    const int c = kind == RV_WORK_F ? n % C : C - 1 - n % C, ahead = kind == RV_WORK_F ? 1 : -1;
    *it->next++ = (rv_work){.kind = (uint8_t)kind,
                            .stage = (uint16_t)s,
                            .micro = n / C,
                            .chunk = (uint16_t)c,
                            .version = RV_NO_VERSION};
    it->free = now + rv_item_cost(p->costs, p->share, kind, s, c);
    push(p, it->free, s);
    if (kind == RV_WORK_W) return;
    p->end[kind][(size_t)s * (size_t)p->count + (size_t)n] = it->free;
    /* Its message wakes one neighbour, the slot it frees the other. */
    wake(p, it->free + p->costs->latency, s + ahead);
    if (p->slots > 0) wake(p, it->free, s - ahead);
}

static void choose(plan *p, double now, int s) {
    stage *it = &p->stages[s];
    if (it->free > now) return;
    const double back = may_start(p, RV_WORK_B, s);
    const bool room = it->done[RV_WORK_F] - it->done[RV_WORK_W] < it->cap;
    const double forth = room ? may_start(p, RV_WORK_F, s) : INFINITY;
    if (back <= now + p->patience)
        start(p, fmax(now, back), s, RV_WORK_B);
    else if (forth <= now + p->patience)
        start(p, fmax(now, forth), s, RV_WORK_F);
    else if (it->done[RV_WORK_W] < it->done[RV_WORK_B])
        start(p, now, s, RV_WORK_W);
}

/* ---- all -------------------------------------------------------------------------------- */

static rv_status plan_init(plan *p, const rv_zb_variant *variant) {
    rv_status status = RV_OK;
    double largest = 0;
    const rv_schedule *schedule = p->schedule;
    size_t stages = (size_t)schedule->stages, cells = stages * (size_t)p->count;
    TRY(rv_alloc((size_t)schedule->chunks, sizeof(double), "the plan of zb", &p->share));
    TRY(rv_alloc(stages, sizeof *p->stages, "the plan of zb", &p->stages));
    /* Three items a cell; F and B wake two neighbours besides their own stage, W none. */
    TRY(rv_alloc(7 * cells + stages, sizeof *p->heap, "the plan of zb", &p->heap));
    for (int kind = 0; kind < 2; kind++) {
        TRY(rv_alloc(cells, sizeof(double), "the plan of zb", &p->end[kind]));
        for (size_t i = 0; i < cells; i++)
            p->end[kind][i] = INFINITY;
    }
    rv_chunk_shares(p->costs, schedule->chunks, p->share);
    for (int s = 0; s < schedule->stages; s++) {
        const rv_costs *costs = p->costs;
        int cap = costs->cap ? costs->cap[s] : schedule->chunks + 2 * (schedule->stages - 1);
        if (cap < schedule->chunks)
            FAIL(RV_CONFIG, "schedule: zb needs tapes for %d chunks at stage %d, %d are allowed",
                 schedule->chunks, s, cap);
        p->stages[s] = (stage){.cap = cap, .next = schedule->items + schedule->first[s]};
        largest = fmax(largest, costs->f[s] + costs->b[s] + costs->w[s]);
        push(p, 0, s);
    }
    p->patience = variant->patience * largest / schedule->chunks;
out:
    return status;
}

rv_status rv_zb_plan(const rv_costs *costs, const rv_zb_variant *variant, rv_schedule *schedule) {
    rv_status status = RV_OK;
    plan p = {.costs = costs,
              .schedule = schedule,
              .slots = variant->slots,
              .count = schedule->micros * schedule->chunks};
    TRY(plan_init(&p, variant));
    while (p.heap_count > 0) {
        event next = pop(&p);
        choose(&p, next.time, next.stage);
    }
    for (int s = 0; s < schedule->stages; s++)
        if (p.stages[s].done[RV_WORK_W] < p.count)
            FAIL(RV_INTERNAL, "schedule: zb stopped at stage %d", s);
out:
    rv_free(p.end[1]);
    rv_free(p.end[0]);
    rv_free(p.heap);
    rv_free(p.stages);
    rv_free(p.share);
    return status;
}
