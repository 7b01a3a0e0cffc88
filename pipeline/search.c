/* `schedule: auto`, `chunks: auto`, `slots: auto`: simulate them all, keep the best. */
#include <math.h>

#include "pipeline/schedule.h"

/* Costs are measured: differences below this are none. */
static const double close = 1e-9;

typedef struct found {
    rv_schedule schedule; /* zeroed: nothing yet */
    double tapes;         /* largest share of a sequence any stage holds */
    int row;
} found;

static double tapes_of(const rv_schedule *schedule, const rv_costs *costs) {
    double most = 0, steps = 0;
    for (int s = 0; s < schedule->stages; s++)
        most = fmax(most, schedule->forecast.peak_steps[s]);
    for (int c = 0; c < schedule->chunks; c++)
        steps += costs->chunk_steps ? costs->chunk_steps[c] : 1;
    return most / steps;
}

static bool better(const found *a, const found *b) {
    if (!b->schedule.items) return true;
    double x = a->schedule.forecast.total, y = b->schedule.forecast.total;
    if (fabs(x - y) > close * y) return x < y;
    if (fabs(a->tapes - b->tapes) > close) return a->tapes < b->tapes;
    if (a->schedule.slots != b->schedule.slots) return a->schedule.slots < b->schedule.slots;
    if (a->schedule.chunks != b->schedule.chunks) return a->schedule.chunks < b->schedule.chunks;
    return a->row < b->row;
}

/* Make and simulate one candidate. *runs false: it cannot run or be made, the error says why. */
static rv_status make(const rv_search *search, const rv_costs *costs, int row, int chunks,
                      int slots, found *it, bool *runs) {
    rv_status status = RV_OK;
    rv_flaw flaw;
    *it = (found){.row = row};
    status = rv_schedule_make((const void *)rv_table_row(rv_generator_table(), row), search->stages,
                              search->micros, chunks, slots, costs, &it->schedule);
    if (status == RV_OK)
        status = rv_schedule_add_updates(&it->schedule, search->micros, search->norm);
    if (status == RV_OK) status = rv_schedule_simulate(&it->schedule, costs, &flaw);
    *runs = status == RV_OK;
    if (*runs)
        it->tapes = tapes_of(&it->schedule, costs);
    else
        rv_schedule_finish(&it->schedule);
    return status == RV_CONFIG ? RV_OK : status; /* what cannot run is no failure of the search */
}

/* Take the candidate when it is better, else free it. */
static void keep(found *best, found *it) {
    if (better(it, best)) {
        found other = *best;
        *best = *it;
        *it = other;
    }
    rv_schedule_finish(&it->schedule);
}

/* A row at C chunks with every count of slots that can make a difference. More slots never slow a
 * fixed order down, so most rows need only the fewest that reach their full speed; zb makes another
 * order for every count. As many slots as messages are no limit. */
static rv_status try_row(const rv_search *search, const rv_costs *costs, int row, int chunks,
                         found *best) {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
    rv_status status = RV_OK;
    const rv_generator *generator = (const void *)rv_table_row(rv_generator_table(), row);
    const int messages = search->micros * chunks;
    found it;
    bool runs;
    TRY(make(search, costs, row, chunks, search->slots ? search->slots : messages, &it, &runs));
    const double full = runs ? it.schedule.forecast.total : INFINITY;
    const bool fixed = !generator->by_costs;
    if (runs) keep(best, &it);
    if (search->slots || (fixed && full > best->schedule.forecast.total * (1 + close))) goto out;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] < messages; i++) {
        TRY(make(search, costs, row, chunks, counts[i], &it, &runs));
        if (!runs) continue;
        const double total = it.schedule.forecast.total;
        keep(best, &it);
        if (fixed && total <= full * (1 + close)) break;
    }
out:
    return status;
}

rv_status rv_schedule_search(const rv_search *search, rv_schedule *best) {
    rv_status status = RV_OK;
    found winner = {0};
    int rows = rv_generator_table()->count;
    *best = (rv_schedule){0};
    if (search->chunk_count < 1) FAIL(RV_CONFIG, "schedule: no number of chunks to choose from");
    rv_fail(RV_CONFIG, "schedule: nothing was tried"); /* what the text says if nothing runs */
    for (int i = 0; i < search->chunk_count; i++) {
        rv_costs costs = {0};
        double bound;
        TRY(search->costs(search->context, search->chunks[i], &costs));
        if (search->stages < 1 || search->micros < 1 || search->chunks[i] < 1)
            FAIL(RV_CONFIG, "schedule: %d stages, %d micro-batches, %d chunks", search->stages,
                 search->micros, search->chunks[i]);
        TRY(rv_schedule_bound(search->stages, search->micros, search->chunks[i], &costs, &bound));
        if (winner.schedule.items && bound > winner.schedule.forecast.total * (1 + close)) continue;
        for (int row = 0; row < rows; row++) {
            const rv_generator *it = (const void *)rv_table_row(rv_generator_table(), row);
            if (search->generator && it != search->generator) continue;
            if (it->one_stage && search->stages > 1 && !search->generator) continue;
            TRY(try_row(search, &costs, row, search->chunks[i], &winner));
        }
    }
    if (!winner.schedule.items) { /* the last candidate's reason stands in the thread's error */
        status = RV_CONFIG;
        goto out;
    }
    *best = winner.schedule;
    winner.schedule = (rv_schedule){0};
out:
    rv_schedule_finish(&winner.schedule);
    return status;
}
