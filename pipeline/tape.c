/*
 * Tapes of a stage. What is recomputed has the bits it had: F is a pure function of the state at
 * the chunk's start, the weights, which no synchronous schedule changes between F and B, and the
 * input, which is kept where another stage made it and encoded again where this one did.
 */
#include <string.h>

#include "pipeline/tape.h"

enum { NONE = -1 };

typedef struct bench { /* a tape without what is kept, and the state F of its cell goes on with */
    rv_tape *tape;
    rv_state *state;
    int cell; /* whose contents are on it; NONE */
    bool used;
} bench;

typedef struct record { /* what stays of a cell between F and B */
    rv_tape *tape;      /* all of it; NULL: with benches */
    float *kept;
    rv_state *border;
} record;

struct rv_tapes {
    rv_tapes_desc desc;
    size_t kept_bytes;
    record *records;
    int *free, free_count; /* records that no cell has */
    bench *benches;
    int bench_count;           /* 0: tapes are kept whole */
    int *record_of, *bench_of; /* [cells] */
};

/* ---- sizes ------------------------------------------------------------------------------ */

/* Benches that hold what W still needs, at most, and one for the F or B at hand. */
static int benches_most(const rv_tapes_desc *desc) {
    int held = 0, most = 0;
    for (int i = 0; i < desc->count; i++) {
        held += desc->list[i].kind == RV_WORK_B;
        if (held > most) most = held;
        held -= desc->list[i].kind == RV_WORK_W;
    }
    return most + 1;
}

static bool recomputes(const rv_tapes_desc *desc) {
    return rv_tape_has(desc->range, desc->policy, RV_TAPE_RECOMPUTE);
}

size_t rv_tapes_bytes(const rv_tapes_desc *desc) {
    size_t whole = rv_tape_bytes(desc->range, desc->before, desc->steps, desc->rows);
    size_t state = rv_state_bytes(desc->range, desc->rows), records = (size_t)desc->records;
    if (!recomputes(desc)) return records * whole;
    size_t kept =
        rv_tape_kept_bytes(desc->range, desc->before, desc->policy, desc->steps, desc->rows);
    return records * (kept + state) + (size_t)benches_most(desc) * (whole - kept + state);
}

/* ---- making ----------------------------------------------------------------------------- */

static rv_status record_create(const rv_tapes *it, record *r) {
    rv_status status = RV_OK;
    const rv_tapes_desc *d = &it->desc;
    if (it->bench_count == 0) {
        TRY(rv_tape_create_range(d->range, d->before, d->device, d->steps, d->rows, &r->tape));
        goto out;
    }
    TRY(rv_state_create_range(d->range, d->device, d->rows, &r->border));
    TRY(d->device->ops->alloc(d->device->ctx, it->kept_bytes, "a tape", (void **)&r->kept));
out:
    return status;
}

rv_status rv_tapes_create(const rv_tapes_desc *desc, rv_tapes **out) {
    rv_status status = RV_OK;
    rv_tapes *it = NULL;
    size_t cells = (size_t)desc->micros * (size_t)desc->chunks;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *it, "tapes", &it));
    it->desc = *desc;
    TRY(rv_alloc(cells, sizeof *it->record_of, "tapes", &it->record_of));
    TRY(rv_alloc(cells, sizeof *it->bench_of, "tapes", &it->bench_of));
    for (size_t i = 0; i < cells; i++)
        it->record_of[i] = it->bench_of[i] = NONE;
    TRY(rv_alloc((size_t)desc->records, sizeof *it->records, "tapes", &it->records));
    TRY(rv_alloc((size_t)desc->records, sizeof *it->free, "tapes", &it->free));
    if (recomputes(desc)) {
        it->kept_bytes =
            rv_tape_kept_bytes(desc->range, desc->before, desc->policy, desc->steps, desc->rows);
        it->bench_count = benches_most(desc);
        TRY(rv_alloc((size_t)it->bench_count, sizeof *it->benches, "tapes", &it->benches));
        for (int i = 0; i < it->bench_count; i++) {
            bench *b = &it->benches[i];
            b->cell = NONE;
            TRY(rv_tape_create_policy(desc->range, desc->before, desc->device, desc->policy,
                                      desc->steps, desc->rows, &b->tape));
            TRY(rv_state_create_range(desc->range, desc->device, desc->rows, &b->state));
        }
    }
    for (int i = 0; i < desc->records; i++) {
        TRY(record_create(it, &it->records[i]));
        it->free[it->free_count++] = i;
    }
    *out = it;
    it = NULL;
out:
    rv_tapes_destroy(it);
    return status;
}

void rv_tapes_destroy(rv_tapes *it) {
    if (!it) return;
    const rv_device *device = it->desc.device;
    for (int i = 0; it->records && i < it->desc.records; i++) {
        rv_tape_destroy(it->records[i].tape);
        rv_state_destroy(it->records[i].border);
        device->ops->free(device->ctx, it->records[i].kept);
    }
    for (int i = 0; it->benches && i < it->bench_count; i++) {
        rv_state_destroy(it->benches[i].state);
        rv_tape_destroy(it->benches[i].tape);
    }
    rv_free(it->benches);
    rv_free(it->free);
    rv_free(it->records);
    rv_free(it->bench_of);
    rv_free(it->record_of);
    rv_free(it);
}

/* ---- cells ------------------------------------------------------------------------------ */

static record *record_at(const rv_tapes *it, int cell) {
    return &it->records[it->record_of[cell]];
}

/* A bench for the cell: the one that still has its contents, else an empty one, else any. */
static rv_status bench_take(rv_tapes *it, int cell, bench **out) {
    int best = NONE;
    for (int i = 0; i < it->bench_count; i++) {
        const bench *b = &it->benches[i];
        if (b->used) continue;
        if (best == NONE || (b->cell == NONE && it->benches[best].cell != cell)) best = i;
        if (b->cell == cell) best = i;
    }
    if (best == NONE)
        return rv_fail(RV_INTERNAL, "all %d benches of tapes are in use", it->bench_count);
    it->benches[best].used = true;
    it->bench_of[cell] = best;
    rv_tape_attach(it->benches[best].tape, record_at(it, cell)->kept);
    *out = &it->benches[best];
    return RV_OK;
}

/* Any unused record will do, since F fills all of it that B and W read. The simulator foretold how
 * many are held at once, so to find none means that list and forecast disagree. */
rv_status rv_tapes_take(rv_tapes *it, int cell, rv_tape **tape) {
    rv_status status = RV_OK;
    bench *b = NULL;
    if (it->free_count == 0) FAIL(RV_INTERNAL, "all %d tapes are in use", it->desc.records);
    it->record_of[cell] = it->free[--it->free_count];
    *tape = record_at(it, cell)->tape;
    if (it->bench_count == 0) goto out;
    TRY(bench_take(it, cell, &b));
    b->cell = cell;
    *tape = b->tape;
out:
    return status;
}

rv_status rv_tapes_border(rv_tapes *it, int cell, const rv_state *state) {
    return it->bench_count ? rv_state_copy(record_at(it, cell)->border, state, NULL) : RV_OK;
}

/* The contents stay until another cell needs the bench: a B that follows at once finds them. */
void rv_tapes_rest(rv_tapes *it, int cell) {
    if (it->bench_count == 0) return;
    it->benches[it->bench_of[cell]].used = false;
    it->bench_of[cell] = NONE;
}

/* The held frames that the tape of F shows lie in the state of F, which goes on to later chunks;
 * they are set once for all chunks, so they are still those. */
rv_status rv_tapes_recall(rv_tapes *it, int cell, rv_tape **tape, rv_state **state,
                          const uint8_t **again) {
    rv_status status = RV_OK;
    bench *b = NULL;
    *again = NULL;
    if (it->record_of[cell] == NONE) FAIL(RV_INTERNAL, "the tape of this chunk is not there");
    *tape = record_at(it, cell)->tape;
    if (it->bench_count == 0) goto out;
    TRY(bench_take(it, cell, &b));
    *tape = b->tape;
    if (b->cell == cell) goto out;
    b->cell = cell;
    TRY(rv_state_copy(b->state, record_at(it, cell)->border, NULL));
    *state = b->state;
    *again = it->desc.policy;
out:
    return status;
}

rv_tape *rv_tapes_get(const rv_tapes *it, int cell) {
    if (it->record_of[cell] == NONE) return NULL;
    if (it->bench_count == 0) return record_at(it, cell)->tape;
    return it->bench_of[cell] == NONE ? NULL : it->benches[it->bench_of[cell]].tape;
}

void rv_tapes_leave(rv_tapes *it, int cell) {
    if (it->bench_count) {
        bench *b = &it->benches[it->bench_of[cell]];
        b->used = false;
        b->cell = NONE;
        it->bench_of[cell] = NONE;
    }
    it->free[it->free_count++] = it->record_of[cell];
    it->record_of[cell] = NONE;
}
