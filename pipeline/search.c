/*
 * `schedule: auto`, `chunks: auto`, `slots: auto`: simulate, keep the best, leave out only what
 * cannot be better. A candidate is one fixed order of the items, which is never slower and never
 * smaller with more slots: so the most slots that fit give its best time, and the fewest that keep
 * this time are found by halving.
 */
#include <math.h>
#include <stdlib.h>

#include "pipeline/schedule.h"

/* Costs are measured: differences below this are none. */
static const double close = 1e-9;
/* Grids of more cells than FINE are left out where they could gain less than `coarse`: they differ
 * by less from each other, and costs are not known so well. */
static const double coarse = 1e-3, class_width = 1e-2;
/* Planning an item costs about as much as simulating so many; a floor as a stage and micro-batch of
 * it by so many. */
enum { FINE = RV_CELLS_FEW, PLAN_EFFORT = 3, FLOOR_EFFORT = 6, CAPS = 5, SCOUT_MOST = 64 };

typedef struct found {
    rv_schedule schedule; /* zeroed: nothing yet */
    double tapes;         /* largest share of a sequence any stage holds */
    int row;
} found;

typedef struct candidate {
    int chunks;
    double bound; /* no schedule at these chunks takes less */
    double class; /* of it: 0 the least */
    bool done;
} candidate;

typedef struct hunt {
    const rv_search *search;
    rv_searched told;
    rv_costs costs; /* at the chunks at hand, */
    candidate at;
    int messages; /* of an edge; more slots have no use */
    int *cap;     /* [stages] */
    found best;
    double fastest; /* total of the fastest candidate, `best` is as fast to `close`; or the limit */
    double effort;  /* so far */
    candidate smallest; /* of those that cannot fit */
    double smallest_bytes;
} hunt;

/* ---- candidates ------------------------------------------------------------------------- */

static double tapes_of(const rv_schedule *schedule, const rv_costs *costs) {
    double most = 0, steps = 0;
    for (int s = 0; s < schedule->stages; s++)
        most = fmax(most, schedule->forecast.peak_steps[s]);
    for (int c = 0; c < schedule->chunks; c++)
        steps += rv_chunk_steps(costs, schedule->chunks, c);
    return most / steps;
}

/* Of candidates of one time. */
static bool better(const found *a, const found *b) {
    if (fabs(a->tapes - b->tapes) > close) return a->tapes < b->tapes;
    if (a->schedule.slots != b->schedule.slots) return a->schedule.slots < b->schedule.slots;
    if (a->schedule.chunks != b->schedule.chunks) return a->schedule.chunks < b->schedule.chunks;
    return a->row < b->row;
}

static bool slower(const hunt *h, double total) {
    return total > h->fastest * (1 + close);
}

/* Take the candidate when it is better; what is not kept stays in *it. */
static void keep(hunt *h, found *it) {
    const double total = it->schedule.forecast.total;
    if (slower(h, total)) return;
    h->fastest = fmin(h->fastest, total);
    const bool first = !h->best.schedule.items || slower(h, h->best.schedule.forecast.total);
    if (!first && !better(it, &h->best)) return;
    found other = h->best;
    h->best = *it;
    *it = other;
}

/* *runs false: it cannot run or be made, the error says why; that is no failure of the search. */
static rv_status judged(rv_status status, bool *runs) {
    *runs = status == RV_OK;
    return status == RV_CONFIG ? RV_OK : status;
}

static rv_status simulate(hunt *h, found *it, int slots, bool *runs) {
    rv_flaw flaw;
    h->effort += rv_schedule_count(&it->schedule);
    it->schedule.slots = slots;
    return judged(rv_schedule_simulate(&it->schedule, &h->costs, &flaw), runs);
}

static rv_status make(hunt *h, int row, int order, found *it, bool *runs) {
    const rv_search *search = h->search;
    const rv_generator *generator = (const void *)rv_table_row(rv_generator_table(), row);
    rv_status status = rv_schedule_order(generator, order, search->stages, search->micros,
                                         h->at.chunks, &h->costs, &it->schedule);
    it->row = row;
    if (status == RV_OK)
        status = rv_schedule_add_updates(&it->schedule, search->micros, search->norm);
    if (generator->by_costs) h->effort += PLAN_EFFORT * (double)rv_schedule_count(&it->schedule);
    return judged(status, runs);
}

/* ---- slots ------------------------------------------------------------------------------ */

static rv_status bytes_at(const hunt *h, const found *it, int slots, double *bytes) {
    const rv_search *search = h->search;
    *bytes = 0;
    if (!search->memory) return RV_OK;
    return search->bytes(search->context, h->at.chunks, slots, &it->schedule, bytes);
}

/* The most slots up to `most` that fit the memory, 0: none. Tapes follow from the order alone.
 * Bytes mostly grow in a straight line, which leads to the place at once; else by halving. */
static rv_status slots_fitting(const hunt *h, const found *it, int most, int *slots) {
    rv_status status = RV_OK;
    const double memory = h->search->memory;
    double less, more, bytes; /* at `low`, which fits, at `high`, which does not */
    int low = 1, high = most;
    *slots = most;
    TRY(bytes_at(h, it, most, &more));
    if (more <= memory) goto out;
    *slots = 0;
    TRY(bytes_at(h, it, 1, &less));
    if (less > memory) goto out;
    for (int tries = 0; high - low > 1; tries++) {
        const double share = tries < 2 ? (memory - less) / (more - less) : 0.5;
        int at = low + (int)(share * (high - low));
        at = at > low ? at : low + 1;
        at = at < high ? at : high - 1;
        TRY(bytes_at(h, it, at, &bytes));
        if (bytes <= memory)
            low = at, less = bytes;
        else
            high = at, more = bytes;
    }
    *slots = low;
out:
    return status;
}

/* The fewest slots up to `most` with which it takes at most `total`, and the simulation of it. With
 * `most` it does. Few are enough for most orders, so the halving starts from below. */
static rv_status slots_fewest(hunt *h, found *it, int most, double total) {
    rv_status status = RV_OK;
    int low = 0, high = most, at = most;
    bool runs;
    while (high - low > 1) {
        at = high == most && 2 * low < most ? 2 * low + !low : low + (high - low) / 2;
        TRY(simulate(h, it, at, &runs));
        if (runs && it->schedule.forecast.total <= total)
            high = at;
        else
            low = at;
    }
    if (at != high) TRY(simulate(h, it, high, &runs));
out:
    return status;
}

/* For the error's text: what the order takes with the fewest slots with which it runs. Nobody will
 * ask once something fits. */
static rv_status least_note(hunt *h, found *it) {
    rv_status status = RV_OK;
    double bytes;
    if (isfinite(h->fastest)) goto out;
    TRY(bytes_at(h, it, h->search->slots ? h->search->slots : 1, &bytes));
    if (bytes >= h->told.least) goto out;
    if (!h->search->slots) TRY(slots_fewest(h, it, h->messages, INFINITY));
    TRY(bytes_at(h, it, it->schedule.slots, &bytes));
    h->told.least = fmin(h->told.least, bytes);
out:
    return status;
}

/* ---- one number of chunks --------------------------------------------------------------- */

static rv_status try_order(hunt *h, int row, int order) {
    rv_status status = RV_OK;
    found it = {0};
    bool runs;
    int slots = h->search->slots ? h->search->slots : h->messages, fitting = slots;
    TRY(make(h, row, order, &it, &runs));
    if (!runs) goto out;
    TRY(simulate(h, &it, slots, &runs));
    if (!runs || slower(h, it.schedule.forecast.total)) goto out;
    if (h->search->memory) TRY(slots_fitting(h, &it, slots, &fitting));
    if (fitting < slots && (h->search->slots || fitting == 0)) {
        TRY(least_note(h, &it));
        goto out;
    }
    if (fitting < slots) {
        TRY(simulate(h, &it, fitting, &runs));
        if (!runs) TRY(least_note(h, &it));
        if (!runs || slower(h, it.schedule.forecast.total)) goto out;
    }
    const double total = it.schedule.forecast.total;
    it.tapes = tapes_of(&it.schedule, &h->costs);
    it.schedule.slots = 1; /* at best */
    const bool useless = h->best.schedule.items && total >= h->fastest && !better(&it, &h->best);
    it.schedule.slots = fitting;
    if (useless) goto out;
    h->fastest = fmin(h->fastest, total);
    if (!h->search->slots) TRY(slots_fewest(h, &it, fitting, total * (1 + close)));
    keep(h, &it);
out:
    rv_schedule_finish(&it.schedule);
    return status;
}

static bool exhausted(const hunt *h) {
    return isfinite(h->fastest) && h->search->effort > 0 && h->effort > h->search->effort;
}

/* All orders of a row, until one is as fast as can be. */
static rv_status try_orders(hunt *h, int row) {
    rv_status status = RV_OK;
    const rv_generator *it = (const void *)rv_table_row(rv_generator_table(), row);
    const int orders = rv_generator_orders(it, h->search->stages, h->search->micros, h->at.chunks);
    for (int order = 0; order < orders && !exhausted(h); order++) {
        if (order > 0 && h->fastest <= h->at.bound * (1 + close)) break;
        TRY(try_order(h, row, order));
    }
out:
    return status;
}

/* A row that plans with caps: without one, with its own, and where memory is limited with ever
 * smaller ones down to one sequence. Always the same set, so that a wish for another slot count
 * finds nothing else. */
static rv_status try_row(hunt *h, int row) {
    rv_status status = RV_OK;
    const rv_generator *it = (const void *)rv_table_row(rv_generator_table(), row);
    const int stages = h->search->stages, spare = 2 * (stages - 1);
    if (!it->by_costs || h->costs.cap) return try_orders(h, row);
    for (int i = CAPS, last = -1; i >= (h->search->memory ? 0 : CAPS - 1); i--) {
        int cap = i == CAPS ? h->messages : h->at.chunks + spare * i / (CAPS - 1);
        cap = cap < h->messages ? cap : h->messages;
        if (cap == last) continue;
        last = cap;
        for (int s = 0; s < stages; s++)
            h->cap[s] = cap;
        h->costs.cap = h->cap;
        status = try_orders(h, row);
        h->costs.cap = NULL;
        TRY(status);
    }
out:
    return status;
}

static rv_status try_chunks(hunt *h) {
    rv_status status = RV_OK;
    const rv_search *search = h->search;
    TRY(search->costs(search->context, h->at.chunks, &h->costs));
    h->messages = search->micros * h->at.chunks;
    for (int row = 0; row < rv_generator_table()->count; row++) {
        const rv_generator *it = (const void *)rv_table_row(rv_generator_table(), row);
        if (search->generator && it != search->generator) continue;
        if (it->one_stage && search->stages > 1 && !search->generator) continue;
        TRY(try_row(h, row));
    }
out:
    return status;
}

/* ---- all -------------------------------------------------------------------------------- */

static double cells_of(const hunt *h, int chunks) {
    return (double)h->search->stages * h->search->micros * chunks;
}

/* The promising first, by classes; of a class 1, 2, 4 ..., then 3, 6, 12 ..., then 5, 10 ...:
 * should the effort end, it was spent near all of them. */
static int by_bound(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    const int odd[] = {a->chunks / (a->chunks & -a->chunks), b->chunks / (b->chunks & -b->chunks)};
    if (a->class != b->class) return a->class < b->class ? -1 : 1;
    if (odd[0] != odd[1]) return odd[0] < odd[1] ? -1 : 1;
    return (a->chunks > b->chunks) - (a->chunks < b->chunks);
}

/* A limit of memory is one of tapes, too. */
static rv_status bounds_find(hunt *h, candidate *list) {
    rv_status status = RV_OK;
    const rv_search *search = h->search;
    double least = INFINITY;
    rv_costs costs;
    for (int i = 0; i < search->chunk_count; i++) {
        candidate *it = &list[i];
        it->chunks = search->chunks[i];
        TRY(search->costs(search->context, it->chunks, &costs));
        if (search->caps && !costs.cap) {
            TRY(search->caps(search->context, it->chunks, h->cap));
            costs.cap = h->cap;
        }
        TRY(rv_schedule_floor(search->stages, search->micros, it->chunks, &costs, search->norm,
                              &it->bound));
        least = fmin(least, it->bound);
    }
    h->effort += cells_of(h, search->chunk_count) / FLOOR_EFFORT;
    for (int i = 0; i < search->chunk_count; i++)
        list[i].class = least > 0 ? floor(log(list[i].bound / least) / class_width) : 0;
    qsort(list, (size_t)search->chunk_count, sizeof *list, by_bound);
out:
    return status;
}

/* False: nothing at these chunks fits. The smallest of such is remembered for the error's text. */
static rv_status may_fit(hunt *h, bool *may) {
    rv_status status = RV_OK;
    const rv_search *search = h->search;
    double bytes = 0;
    if (search->memory)
        TRY(search->bytes(search->context, h->at.chunks, search->slots ? search->slots : 1, NULL,
                          &bytes));
    *may = bytes <= search->memory;
    if (!*may && bytes < h->smallest_bytes) h->smallest_bytes = bytes, h->smallest = h->at;
out:
    return status;
}

/* Few chunks cost little effort to try, so they come first where effort has a limit: bounds alone
 * might lead to many chunks for all of it. */
static rv_status scout(hunt *h, candidate *list) {
    rv_status status = RV_OK;
    bool may;
    for (int i = 0; i < h->search->chunk_count; i++) {
        const int c = list[i].chunks;
        if (!h->search->effort || c > SCOUT_MOST || (c & (c - 1))) continue;
        h->at = list[i];
        TRY(may_fit(h, &may));
        if (!may || slower(h, h->at.bound) || exhausted(h)) continue;
        TRY(try_chunks(h));
        list[i].done = !exhausted(h);
        h->told.tried += list[i].done;
    }
out:
    return status;
}

static rv_status hunt_at(hunt *h, const candidate *it) {
    rv_status status = RV_OK;
    rv_searched *told = &h->told;
    const double cells = cells_of(h, it->chunks);
    const bool large = h->search->effort > 0 && cells > FINE;
    const bool near = large && it->bound >= h->fastest * (1 - coarse);
    bool may = it->bound < h->fastest * (1 - close);
    h->at = *it;
    told->near += may && near;
    may &= !near;
    if (may) TRY(may_fit(h, &may));
    if (!may) {
        told->ruled_out++;
        goto out;
    }
    if (!exhausted(h) && !(large && isfinite(h->fastest) && cells > h->search->effort)) {
        TRY(try_chunks(h));
        if (!exhausted(h)) {
            told->tried++;
            goto out;
        }
    }
    if (slower(h, it->bound)) {
        told->ruled_out++;
        goto out;
    }
    told->left++; /* begun ones among them */
    told->left_bound = fmin(told->left_bound, it->bound);
out:
    return status;
}

static rv_status hunt_all(hunt *h, candidate *list) {
    rv_status status = RV_OK;
    TRY(scout(h, list));
    for (int i = 0; i < h->search->chunk_count; i++)
        if (!list[i].done) TRY(hunt_at(h, &list[i]));
    if (isinf(h->fastest) && isfinite(h->smallest_bytes)) { /* its bytes are a bound: see */
        h->at = h->smallest;
        TRY(try_chunks(h));
    }
out:
    return status;
}

rv_status rv_schedule_search(const rv_search *search, rv_schedule *best, rv_searched *searched) {
    rv_status status = RV_OK;
    hunt h = {.search = search,
              .fastest = search->limit > 0 ? search->limit * (1 + 3 * close) : INFINITY,
              .smallest_bytes = INFINITY};
    candidate *list = NULL; /* the limit a little above: what takes just so much is to be found */
    h.told = (rv_searched){.left_bound = INFINITY, .least = INFINITY};
    *best = (rv_schedule){0};
    if (search->chunk_count < 1) FAIL(RV_CONFIG, "schedule: no number of chunks to choose from");
    rv_fail(RV_CONFIG, "schedule: nothing was tried"); /* what the text says if nothing runs */
    TRY(rv_alloc((size_t)search->chunk_count, sizeof *list, "chunks", &list));
    TRY(rv_alloc((size_t)search->stages, sizeof *h.cap, "caps", &h.cap));
    TRY(bounds_find(&h, list));
    TRY(hunt_all(&h, list));
    if (!h.best.schedule.items) { /* the last candidate's reason stands in the thread's error */
        if (isfinite(h.told.least))
            FAIL(RV_RESOURCE, "schedule: none fits %.1f MB; the least found needs %.1f MB",
                 search->memory / 1e6, h.told.least / 1e6);
        status = RV_CONFIG;
        goto out;
    }
    *best = h.best.schedule;
    h.best.schedule = (rv_schedule){0};
out:
    if (searched) *searched = h.told;
    rv_schedule_finish(&h.best.schedule);
    rv_free(h.cap);
    rv_free(list);
    return status;
}
