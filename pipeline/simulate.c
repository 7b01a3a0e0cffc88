/*
 * The run: every list strictly in order, each item as early as it can. No event queue is needed: a
 * list goes on until its next item lacks something, and is taken up again when that has ended.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/schedule_index.h"

/* Something with one end time that lists wait for: an item, all W of an update at a stage, all NORM
 * of an update. Nodes are numbered in this order. */
typedef struct node {
    double end;
    int left;    /* parts that have not ended; 0: ended */
    int waiting; /* first list that waits, -1: none */
} node;

enum { NEEDS_MOST = 4 };

typedef struct need {
    int node;
    double latency;
} need;

typedef struct run {
    rv_schedule *schedule;
    const rv_costs *costs;
    const rv_index *index;
    int items, sums, gathers; /* where the three kinds of nodes begin; `items` counts items */
    node *nodes;
    int *slot;    /* [items]: the consumer that frees the slot of this item's message, -1: none */
    int *at;      /* [workers]: next item */
    int *next;    /* [workers]: next list that waits for the same, or that may go on */
    int *lacks;   /* [workers]: the node it waits for */
    double *free; /* [workers]: when its last item ended */
    int ready;    /* first list that may go on, -1: none */
} run;

static void run_finish(run *r) {
    rv_free(r->free);
    rv_free(r->lacks);
    rv_free(r->next);
    rv_free(r->at);
    rv_free(r->slot);
    rv_free(r->nodes);
}

/* ---- slots ------------------------------------------------------------------------------ */

/* Stage that takes the message of an item; -1: it sends none. */
static int consumer_stage(const rv_schedule *schedule, const rv_work *work) {
    if (work->kind == RV_WORK_F) return work->stage + 1 < schedule->stages ? work->stage + 1 : -1;
    return work->kind == rv_schedule_b(schedule) ? work->stage - 1 : -1;
}

/* For every item the consumer of the message `slots` before its own. A stage's list holds all its
 * producers, so one walk numbers the messages of both its edges. */
static rv_status slots_find(run *r) {
    rv_status status = RV_OK;
    const rv_schedule *schedule = r->schedule;
    int per_edge = schedule->micros * schedule->chunks, *log = NULL, sent[2];
    TRY(rv_alloc(2 * (size_t)per_edge, sizeof *log, "the messages of a stage", &log));
    for (int s = 0; s < schedule->stages; s++) {
        int k = r->index->home[s];
        sent[0] = sent[1] = 0;
        for (int p = schedule->first[k]; p < schedule->first[k + 1]; p++) {
            const rv_work *x = &schedule->items[p];
            int to = x->stage == s ? consumer_stage(schedule, x) : -1;
            if (to < 0) continue;
            int back = x->kind != RV_WORK_F, n = sent[back]++;
            log[back * per_edge + n] =
                rv_index_at(r->index, schedule, x->kind, to, x->micro, x->chunk);
            if (n >= schedule->slots) r->slot[p] = log[back * per_edge + n - schedule->slots];
        }
    }
out:
    rv_free(log);
    return status;
}

/* ---- dependencies ----------------------------------------------------------------------- */

static int item(const run *r, int kind, int s, int m, int c) {
    return rv_index_at(r->index, r->schedule, kind, s, m, c);
}

static int sum_node(const run *r, int s, int u) { /* all W of update u at stage s */
    return r->sums + s * r->index->updates + u;
}

/* What item p needs; returns how many. */
static int needs_of(const run *r, int p, need needs[NEEDS_MOST]) {
    const rv_schedule *schedule = r->schedule;
    const rv_work *x = &schedule->items[p];
    const int s = x->stage, m = x->micro, c = x->chunk, last = schedule->stages - 1;
    const int b = rv_schedule_b(schedule);
    const double far = r->costs->latency;
    int n = 0;
    if (x->kind == RV_WORK_F) {
        if (s > 0) needs[n++] = (need){item(r, RV_WORK_F, s - 1, m, c), far};
        if (c > 0) needs[n++] = (need){item(r, RV_WORK_F, s, m, c - 1), 0};
    } else if (x->kind == b) {
        needs[n++] = (need){item(r, RV_WORK_F, s, m, c), 0};
        if (s < last) needs[n++] = (need){item(r, b, s + 1, m, c), far};
        if (c + 1 < schedule->chunks) needs[n++] = (need){item(r, b, s, m, c + 1), 0};
    } else if (x->kind == RV_WORK_W) {
        needs[n++] = (need){item(r, b, s, m, c), 0};
    } else {
        needs[n++] = (need){sum_node(r, s, m), 0};
        if (x->kind == RV_WORK_NORM && s == last && s > 0) needs[n++] = (need){r->gathers + m, far};
        if (x->kind == RV_WORK_U && schedule->norm)
            needs[n++] = (need){item(r, RV_WORK_NORM, last, m, 0), s == last ? 0 : far};
    }
    if (r->slot && r->slot[p] >= 0) needs[n++] = (need){r->slot[p], 0};
    return n;
}

/* ---- going on --------------------------------------------------------------------------- */

/* One part of a node has ended; its last part frees those who wait. */
static void node_end(run *r, int i, double end) {
    node *it = &r->nodes[i];
    it->end = fmax(it->end, end);
    if (--it->left > 0) return;
    for (int k = it->waiting, next; k >= 0; k = next) {
        next = r->next[k];
        r->next[k] = r->ready;
        r->ready = k;
    }
    it->waiting = -1;
}

static void item_end(run *r, int p, double end) {
    const rv_schedule *schedule = r->schedule;
    const rv_work *x = &schedule->items[p];
    node_end(r, p, end);
    if (x->kind == rv_schedule_w(schedule) && schedule->group > 0)
        node_end(r, sum_node(r, x->stage, x->micro / schedule->group), end);
    if (x->kind == RV_WORK_NORM && x->stage < schedule->stages - 1)
        node_end(r, r->gathers + x->micro, end);
}

/* Run list k until something is lacking. */
static void list_go(run *r, int k) {
    rv_schedule *schedule = r->schedule;
    for (; r->at[k] < schedule->first[k + 1]; r->at[k]++) {
        need needs[NEEDS_MOST];
        int p = r->at[k], count = needs_of(r, p, needs);
        double start = r->free[k];
        for (int i = 0; i < count; i++) {
            node *it = &r->nodes[needs[i].node];
            if (it->left > 0) {
                r->lacks[k] = needs[i].node;
                r->next[k] = it->waiting;
                it->waiting = k;
                return;
            }
            start = fmax(start, it->end + needs[i].latency);
        }
        schedule->forecast.start[p] = start;
        schedule->forecast.end[p] = r->free[k] =
            start + rv_item_time(r->costs, r->index->share, &schedule->items[p]);
        item_end(r, p, r->free[k]);
    }
    r->lacks[k] = -1;
}

/* Nodes as before the run; false: some list did not come to its end. */
static bool run_all(run *r) {
    const rv_schedule *schedule = r->schedule;
    int updates = r->index->updates, nodes = r->gathers + updates;
    for (int i = 0; i < nodes; i++) {
        int left = 1;
        if (i >= r->gathers)
            left = schedule->stages - 1;
        else if (i >= r->sums) {
            int u = (i - r->sums) % updates;
            left = (rv_group_end(schedule, u) - u * schedule->group) * schedule->chunks;
        }
        r->nodes[i] = (node){.left = left, .waiting = -1};
    }
    r->ready = -1;
    for (int k = schedule->workers - 1; k >= 0; k--) {
        r->at[k] = schedule->first[k];
        r->free[k] = 0;
        r->next[k] = r->ready;
        r->ready = k;
    }
    while (r->ready >= 0) {
        int k = r->ready;
        r->ready = r->next[k];
        list_go(r, k);
    }
    for (int k = 0; k < schedule->workers; k++)
        if (r->at[k] < schedule->first[k + 1]) return false;
    return true;
}

/* ---- deadlock --------------------------------------------------------------------------- */

/* An item a node lacks. */
static int node_item(const run *r, int i) {
    const rv_schedule *schedule = r->schedule;
    if (i < r->items) return i;
    int u = i >= r->gathers ? i - r->gathers : (i - r->sums) % r->index->updates;
    if (i >= r->gathers) {
        for (int s = 0; s < schedule->stages - 1; s++)
            if (r->nodes[item(r, RV_WORK_NORM, s, u, 0)].left > 0)
                return item(r, RV_WORK_NORM, s, u, 0);
    }
    int s = (i - r->sums) / r->index->updates, w = rv_schedule_w(schedule);
    for (int m = u * schedule->group; m < rv_group_end(schedule, u); m++)
        for (int c = schedule->chunks - 1; c >= 0; c--)
            if (r->nodes[item(r, w, s, m, c)].left > 0) return item(r, w, s, m, c);
    return -1;
}

static int worker_of(const rv_schedule *schedule, int p) {
    int low = 0, high = schedule->workers - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (schedule->first[middle] <= p)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The list from which the wait leads; those that wait wait for an item of a list that waits, so
 * following them ends in a circle. */
static int waits_for(const run *r, int k) {
    return worker_of(r->schedule, node_item(r, r->lacks[k]));
}

/* Every list of the circle with the item it cannot run; what it waits for stands, later, in the
 * next list. Cut where it is long. */
static void circle_print(const run *r, int from, char *text, size_t size) {
    const rv_schedule *schedule = r->schedule;
    size_t used = 0;
    int k = from;
    do {
        char item[RV_WORK_TEXT], needs[RV_WORK_TEXT];
        rv_work_print(&schedule->items[r->at[k]], -1, item);
        rv_work_print(&schedule->items[node_item(r, r->lacks[k])], -1, needs);
        used += (size_t)snprintf(text + used, size - used, "%s%s needs %s", used ? ", " : "", item,
                                 needs);
        k = waits_for(r, k);
    } while (k != from && used < size);
    if (used >= size) memcpy(text + size - 4, "...", 4);
}

static void deadlock(const run *r, rv_flaw *flaw) {
    const rv_schedule *schedule = r->schedule;
    int k = 0;
    while (r->at[k] == schedule->first[k + 1])
        k++;
    for (int i = 0; i < schedule->workers; i++) /* long enough to be in the circle */
        k = waits_for(r, k);
    int least = k;
    for (int i = waits_for(r, k); i != k; i = waits_for(r, i))
        if (i < least) least = i;
    circle_print(r, least, flaw->circle, sizeof flaw->circle);
    flaw->kind = RV_FLAW_DEADLOCK;
    flaw->item = schedule->items[r->at[least]];
    flaw->needs = schedule->items[node_item(r, r->lacks[least])];
    flaw->worker = least;
    flaw->position = r->at[least] - schedule->first[least];
}

/* ---- results ---------------------------------------------------------------------------- */

typedef struct event {
    double time;
    int held, steps; /* +1 at a start, -1 at an end */
} event;

static int event_order(const void *left, const void *right) {
    const event *a = left, *b = right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return a->held - b->held; /* what ends frees its room first */
}

/* Peaks of stages that lie in several lists: by the clock. */
static rv_status peaks_by_time(const run *r, rv_flaw *flaw) {
    rv_status status = RV_OK;
    const rv_schedule *schedule = r->schedule;
    const rv_forecast *forecast = &schedule->forecast;
    int cells = schedule->micros * schedule->chunks, w = rv_schedule_w(schedule);
    event *events = NULL;
    TRY(rv_alloc(2 * (size_t)cells, sizeof *events, "the tapes of a stage", &events));
    for (int s = 0; s < schedule->stages; s++) {
        if (r->index->home[s] >= 0) continue;
        for (int i = 0; i < cells; i++) {
            int m = i / schedule->chunks, c = i % schedule->chunks;
            int size = rv_chunk_steps(r->costs, schedule->chunks, c);
            events[2 * i] = (event){forecast->start[item(r, RV_WORK_F, s, m, c)], 1, size};
            events[2 * i + 1] = (event){forecast->end[item(r, w, s, m, c)], -1, -size};
        }
        qsort(events, 2 * (size_t)cells, sizeof *events, event_order);
        int held = 0, steps = 0;
        for (int i = 0; i < 2 * cells; i++) {
            held += events[i].held, steps += events[i].steps;
            if (held > forecast->peak[s]) forecast->peak[s] = held;
            if (steps > forecast->peak_steps[s]) forecast->peak_steps[s] = steps;
        }
        if (!r->costs->cap || forecast->peak[s] <= r->costs->cap[s]) continue;
        int p = item(r, RV_WORK_F, s, 0, 0);
        *flaw = (rv_flaw){.kind = RV_FLAW_MEMORY_CAP,
                          .item = schedule->items[p],
                          .worker = worker_of(schedule, p),
                          .held = forecast->peak[s],
                          .limit = r->costs->cap[s]};
        flaw->position = p - schedule->first[flaw->worker];
        TRY(rv_flaw_fail(schedule, flaw));
    }
out:
    rv_free(events);
    return status;
}

/* Of F, B and W, as drawn. */
static double busy_of(const rv_schedule *schedule) {
    const rv_forecast *forecast = &schedule->forecast;
    double busy = 0;
    for (int p = 0; p < rv_schedule_count(schedule); p++)
        if (schedule->items[p].kind < RV_WORK_U) busy += forecast->end[p] - forecast->start[p];
    return busy;
}

static void sum_up(const run *r) {
    const rv_schedule *schedule = r->schedule;
    rv_forecast *forecast = &r->schedule->forecast;
    double busy = 0;
    forecast->makespan = forecast->total = 0;
    for (int p = 0; p < r->items; p++) {
        forecast->total = fmax(forecast->total, forecast->end[p]);
        if (schedule->items[p].kind < RV_WORK_U)
            forecast->makespan = fmax(forecast->makespan, forecast->end[p]);
    }
    for (int s = 0; s < schedule->stages; s++)
        busy += schedule->micros * (r->costs->f[s] + r->costs->b[s] + r->costs->w[s]);
    if (r->costs->draw) busy = busy_of(schedule);
    forecast->bubble =
        forecast->makespan > 0 ? rv_idle_share(busy, schedule->workers * forecast->makespan) : 0;
}

rv_status rv_schedule_run(rv_schedule *schedule, const rv_costs *costs, const rv_index *index,
                          rv_flaw *flaw) {
    rv_status status = RV_OK;
    run r = {.schedule = schedule, .costs = costs, .index = index};
    size_t workers = (size_t)schedule->workers;
    bool spread = false;
    r.items = rv_schedule_count(schedule);
    r.sums = r.items;
    r.gathers = r.sums + schedule->stages * index->updates;
    size_t nodes = (size_t)r.gathers + (size_t)index->updates;
    TRY(rv_alloc(nodes, sizeof *r.nodes, "the run of a schedule", &r.nodes));
    TRY(rv_alloc(workers, sizeof *r.at, "the workers of a schedule", &r.at));
    TRY(rv_alloc(workers, sizeof *r.next, "the workers of a schedule", &r.next));
    TRY(rv_alloc(workers, sizeof *r.lacks, "the workers of a schedule", &r.lacks));
    TRY(rv_alloc(workers, sizeof *r.free, "the workers of a schedule", &r.free));
    if (schedule->slots > 0) {
        TRY(rv_alloc((size_t)r.items, sizeof *r.slot, "the slots of a schedule", &r.slot));
        for (int p = 0; p < r.items; p++)
            r.slot[p] = -1;
        TRY(slots_find(&r));
    }
    if (!run_all(&r)) {
        deadlock(&r, flaw);
        flaw->cause = RV_CAUSE_ACROSS_STAGES;
        if (r.slot) { /* the cause is the slots only if it runs without a limit */
            rv_free(r.slot);
            r.slot = NULL;
            if (run_all(&r)) flaw->cause = RV_CAUSE_SLOTS;
        }
        TRY(rv_flaw_fail(schedule, flaw));
    }
    for (int s = 0; s < schedule->stages; s++)
        spread |= index->home[s] < 0;
    if (spread) TRY(peaks_by_time(&r, flaw));
    sum_up(&r);
out:
    run_finish(&r);
    return status;
}

/* ---- items that scatter ----------------------------------------------------------------- */

int rv_schedule_draws(const rv_schedule *schedule, const rv_costs *costs) {
    enum { ITEMS = 200000, MOST = 16 };
    const int count = rv_schedule_count(schedule), most = ITEMS / (count > 0 ? count : 1);
    for (int s = 0; costs->scatter && s < schedule->stages; s++)
        if (costs->scatter[s] > 0) return most < 1 ? 1 : most < MOST ? most : MOST;
    return 0;
}

rv_status rv_schedule_expect(rv_schedule *schedule, rv_costs costs, double *bubble) {
    rv_status status = RV_OK;
    const int draws = rv_schedule_draws(schedule, &costs);
    *bubble = draws ? 0 : schedule->forecast.bubble;
    for (int n = draws; n > 0; n--) {
        costs.draw = (uint32_t)n;
        TRY(rv_schedule_simulate(schedule, &costs, NULL));
        *bubble += schedule->forecast.bubble / draws;
    }
    costs.draw = 0;
    if (draws) TRY(rv_schedule_simulate(schedule, &costs, NULL));
out:
    return status;
}
