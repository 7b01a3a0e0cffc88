/*
 * Tapes of a stage. What is recomputed has the bits it had: F is a pure function of the state at
 * the chunk's start, the weights, which no synchronous schedule changes between F and B, and the
 * input, which is kept where another stage made it and encoded again where this one did.
 *
 * A bench is with the stage (`used`), with the writer (`moving`), or free; what is on a free one
 * can be had again, so any may be taken, best the one whose cell B needs last. The writer runs its
 * jobs in order: what B asks for was written before.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/internal.h"
#include "pipeline/tape.h"

enum { NONE = -1, AHEAD = 2 /* cells fetched before B needs them */, PIECE = 1 << 14 /* floats */ };

typedef enum contents { NOTHING, SPILLED /* what was spilled is there again */, WHOLE } contents;

typedef struct bench { /* a tape without what is kept, and the state F of its cell goes on with */
    rv_tapes *owner;
    rv_tape *tape;
    rv_state *state;
    contents holds;
    int cell; /* whose */
    bool used;
    bool back, ended; /* the writer's job: to read; it went well */
    bool moving;      /* under `lock` */
} bench;

typedef struct record { /* what stays of a cell between F and B */
    rv_tape *tape;      /* all of it; NULL: with benches */
    float *kept;
    uint16_t *packed; /* membranes that are kept */
    rv_state *border; /* where layers are recomputed */
    bool written;     /* what is spilled has been given to the writer */
} record;

struct rv_tapes {
    rv_tapes_desc desc;
    uint8_t *policy; /* owned, where the description has none but benches need one */
    size_t words[RV_TAPE_PARTS];
    bool spills, again;
    record *records;
    int *free, free_count; /* records that no cell has */
    bench *benches;
    int bench_count;           /* 0: tapes are kept whole */
    int *record_of, *bench_of; /* [cells] */
    int *forward_at, *back_at; /* [cells] places in the list */
    int *next_back;            /* [count + 1] of the list: the next B from there on */
    rv_spill *file;
    uint16_t *piece; /* the writer's, [PIECE] */
    rv_link edge;    /* a name for waits */
    rv_timeline *timeline;
    bool failed; /* under `lock` */
    pthread_mutex_t lock;
};

/* ---- sizes ------------------------------------------------------------------------------ */

static bool has(const rv_tapes_desc *desc, rv_tape_policy policy) {
    return rv_tape_has(desc->range, desc->how.policy, policy);
}

static bool with_benches(const rv_tapes_desc *desc) {
    return desc->how.half || has(desc, RV_TAPE_RECOMPUTE) || has(desc, RV_TAPE_SPILL);
}

/* One for the F or B at hand; where tapes are spilled others, which the writer fills or empties
 * meanwhile. */
static int benches_spare(const rv_tapes_desc *desc) {
    return 1 + (has(desc, RV_TAPE_SPILL) ? AHEAD : 0);
}

/* And those that hold what W still needs, at most. */
static int benches_most(const rv_work *list, int count, int spare) {
    int held = 0, most = 0;
    for (int i = 0; i < count; i++) {
        held += list[i].kind == RV_WORK_B;
        if (held > most) most = held;
        held -= list[i].kind == RV_WORK_W;
    }
    return most + spare;
}

int rv_tapes_jobs(const rv_work *list, int count) {
    return benches_most(list, count, 1 + AHEAD); /* a bench has one job at a time */
}

static size_t spilled_of(const rv_tapes_desc *desc, const size_t words[RV_TAPE_PARTS]) {
    return 4 * words[RV_PART_SPILLED] +
           (desc->how.half ? 2u : 4u) * words[RV_PART_SPILLED_MEMBRANES];
}

rv_tapes_sizes rv_tapes_sizes_of(const rv_tapes_desc *desc) {
    size_t words[RV_TAPE_PARTS], own = 0;
    size_t state = has(desc, RV_TAPE_RECOMPUTE) ? rv_state_bytes(desc->range, desc->rows) : 0;
    if (!with_benches(desc))
        return (rv_tapes_sizes){
            .record = rv_tape_bytes(desc->range, desc->before, desc->steps, desc->rows)};
    rv_tape_sizes(desc->range, desc->before, &desc->how, desc->steps, desc->rows, words);
    for (int part = RV_PART_KEPT + 1; part < RV_TAPE_PARTS; part++)
        own += 4 * words[part];
    return (rv_tapes_sizes){.record =
                                4 * words[RV_PART_KEPT] + 2 * words[RV_PART_MEMBRANES] + state,
                            .bench = own + state,
                            .spilled = spilled_of(desc, words),
                            .spare = benches_spare(desc)};
}

size_t rv_tapes_bytes(const rv_tapes_sizes *sizes, int records, const rv_work *list, int count) {
    size_t kept = (size_t)records * sizes->record;
    if (!sizes->spare) return kept;
    return kept + (size_t)benches_most(list, count, sizes->spare) * sizes->bench;
}

/* ---- making ----------------------------------------------------------------------------- */

static rv_status record_create(const rv_tapes *it, record *r) {
    rv_status status = RV_OK;
    const rv_tapes_desc *d = &it->desc;
    if (it->bench_count == 0)
        return rv_tape_create_range(d->range, d->before, d->device, d->steps, d->rows, &r->tape);
    if (it->again) TRY(rv_state_create_range(d->range, d->device, d->rows, &r->border));
    TRY(d->device->ops->alloc(d->device->ctx, 4 * it->words[RV_PART_KEPT], "a tape",
                              (void **)&r->kept));
    TRY(rv_alloc(it->words[RV_PART_MEMBRANES], sizeof *r->packed, "a tape", &r->packed));
out:
    return status;
}

static rv_status benches_create(rv_tapes *it) {
    rv_status status = RV_OK;
    const rv_tapes_desc *d = &it->desc;
    int count = benches_most(d->list, d->count, benches_spare(d));
    if (!d->how.policy) {
        TRY(rv_alloc((size_t)d->range->net->layer_count, 1, "tapes", &it->policy));
        it->desc.how.policy = it->policy;
    }
    rv_tape_sizes(d->range, d->before, &d->how, d->steps, d->rows, it->words);
    TRY(rv_alloc((size_t)count, sizeof *it->benches, "tapes", &it->benches));
    it->bench_count = count;
    for (int i = 0; i < count; i++) {
        bench *b = &it->benches[i];
        b->owner = it, b->cell = NONE;
        TRY(rv_tape_create_parts(d->range, d->before, d->device, &d->how, d->steps, d->rows,
                                 &b->tape));
        if (it->again) TRY(rv_state_create_range(d->range, d->device, d->rows, &b->state));
    }
    it->spills = spilled_of(d, it->words) > 0; /* a range of views has nothing to spill */
    if (it->spills && !d->writer) FAIL(RV_INTERNAL, "tapes are spilled without a writer");
    if (it->spills) TRY(rv_alloc(PIECE, sizeof *it->piece, "tapes", &it->piece));
out:
    return status;
}

/* Where the list has the F and B of every cell. */
static rv_status places_find(rv_tapes *it) {
    rv_status status = RV_OK;
    const rv_tapes_desc *d = &it->desc;
    size_t cells = (size_t)d->micros * (size_t)d->chunks;
    TRY(rv_alloc(cells, sizeof *it->forward_at, "tapes", &it->forward_at));
    TRY(rv_alloc(cells, sizeof *it->back_at, "tapes", &it->back_at));
    TRY(rv_alloc((size_t)d->count + 1, sizeof *it->next_back, "tapes", &it->next_back));
    it->next_back[d->count] = d->count;
    for (int i = d->count - 1; i >= 0; i--) {
        const rv_work *work = &d->list[i];
        bool back = work->kind == RV_WORK_B || work->kind == RV_WORK_BW;
        it->next_back[i] = back ? i : it->next_back[i + 1];
        if (back) it->back_at[work->micro * d->chunks + work->chunk] = i;
        if (work->kind == RV_WORK_F) it->forward_at[work->micro * d->chunks + work->chunk] = i;
    }
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
    it->again = has(desc, RV_TAPE_RECOMPUTE);
    snprintf(it->edge.name, sizeof it->edge.name, "tapes");
    pthread_mutex_init(&it->lock, NULL); /* on Linux these cannot fail */
    TRY(rv_alloc(cells, sizeof *it->record_of, "tapes", &it->record_of));
    TRY(rv_alloc(cells, sizeof *it->bench_of, "tapes", &it->bench_of));
    for (size_t i = 0; i < cells; i++)
        it->record_of[i] = it->bench_of[i] = NONE;
    TRY(places_find(it));
    TRY(rv_alloc((size_t)desc->records, sizeof *it->records, "tapes", &it->records));
    TRY(rv_alloc((size_t)desc->records, sizeof *it->free, "tapes", &it->free));
    if (with_benches(desc)) TRY(benches_create(it));
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

rv_status rv_tapes_open(rv_tapes *it, const char *folder, bool named) {
    char name[32];
    if (!it->spills || it->file) return RV_OK;
    snprintf(name, sizeof name, "tapes-%d.h5", it->desc.stage);
    return rv_spill_create(folder, named ? name : NULL, (size_t)it->desc.records,
                           spilled_of(&it->desc, it->words), &it->file);
}

void rv_tapes_watch(rv_tapes *it, rv_timeline *timeline) {
    it->timeline = timeline;
}

void rv_tapes_destroy(rv_tapes *it) {
    if (!it) return;
    const rv_device *device = it->desc.device;
    rv_spill_destroy(it->file);
    for (int i = 0; it->records && i < it->desc.records; i++) {
        rv_tape_destroy(it->records[i].tape);
        rv_state_destroy(it->records[i].border);
        rv_free(it->records[i].packed);
        device->ops->free(device->ctx, it->records[i].kept);
    }
    for (int i = 0; it->benches && i < it->bench_count; i++) {
        rv_state_destroy(it->benches[i].state);
        rv_tape_destroy(it->benches[i].tape);
    }
    pthread_mutex_destroy(&it->lock);
    rv_free(it->piece);
    rv_free(it->benches);
    rv_free(it->free);
    rv_free(it->records);
    rv_free(it->next_back);
    rv_free(it->back_at);
    rv_free(it->forward_at);
    rv_free(it->bench_of);
    rv_free(it->record_of);
    rv_free(it->policy);
    rv_free(it);
}

static record *record_at(const rv_tapes *it, int cell) {
    return &it->records[it->record_of[cell]];
}

/* ---- the writer's side ------------------------------------------------------------------ */

/* Membranes as they are on the disk, piece by piece. */
static rv_status membranes_move(const rv_tapes *it, const bench *b, size_t slot, size_t at) {
    rv_status status = RV_OK;
    float *h = rv_tape_part_memory(b->tape, RV_PART_SPILLED_MEMBRANES);
    size_t count = it->words[RV_PART_SPILLED_MEMBRANES];
    for (size_t i = 0; i < count; i += PIECE) {
        size_t part = count - i < PIECE ? count - i : PIECE;
        if (b->back) {
            TRY(rv_spill_read(it->file, slot, at + 2 * i, it->piece, 2 * part));
            rv_half_unpack(it->piece, h + i, part);
        } else {
            rv_half_pack(h + i, it->piece, part);
            TRY(rv_spill_write(it->file, slot, at + 2 * i, it->piece, 2 * part));
        }
    }
out:
    return status;
}

/* Both parts of what is spilled lie one after the other. */
static rv_status move(void *self) {
    rv_status status = RV_OK;
    bench *b = self;
    const rv_tapes *it = b->owner;
    size_t slot = (size_t)it->record_of[b->cell];
    size_t plain = 4 * (it->words[RV_PART_SPILLED] +
                        (it->desc.how.half ? 0 : it->words[RV_PART_SPILLED_MEMBRANES]));
    float *memory = rv_tape_part_memory(b->tape, RV_PART_SPILLED);
    const double begun = rv_host_seconds();
    TRY(b->back ? rv_spill_read(it->file, slot, 0, memory, plain)
                : rv_spill_write(it->file, slot, 0, memory, plain));
    if (it->desc.how.half) TRY(membranes_move(it, b, slot, plain));
    b->ended = true;
    rv_timeline_tape(it->timeline, it->desc.stage, b->back, b->cell / it->desc.chunks,
                     b->cell % it->desc.chunks, begun);
out:
    return status;
}

/* Also of a job that was dropped. */
static void move_done(void *self) {
    bench *b = self;
    rv_tapes *it = b->owner;
    const rv_wake wake = it->desc.wake;
    pthread_mutex_lock(&it->lock);
    b->moving = false;
    it->failed |= !b->ended;
    pthread_mutex_unlock(&it->lock);
    if (wake.ring) wake.ring(wake.self);
}

/* Ops may still read or write what the writer will. There is room for the job, so submit does not
 * wait. */
static rv_status move_begin(rv_tapes *it, bench *b, bool back) {
    rv_status status = RV_OK;
    const rv_writer_job job = {move, move_done, b};
    const rv_device *device = it->desc.device;
    TRY(device->ops->queue_sync(device->ctx, NULL));
    b->back = back, b->ended = false;
    pthread_mutex_lock(&it->lock);
    b->moving = true;
    pthread_mutex_unlock(&it->lock);
    status = rv_writer_submit(it->desc.writer, &job);
    if (status == RV_OK) return RV_OK;
    pthread_mutex_lock(&it->lock);
    b->moving = false;
    pthread_mutex_unlock(&it->lock);
out:
    return status;
}

/* The writer tells why once it has put the failed job away. A stage blocks here, but only after a
 * failure, and not for long: jobs are dropped from then on. */
static rv_status failure(const rv_tapes *it) {
    rv_status status = rv_writer_wait(it->desc.writer);
    return status ? status : rv_fail(RV_INTERNAL, "a tape was not moved");
}

/* ---- benches ---------------------------------------------------------------------------- */

/* The bench that has the cell, moving or not; else a free one that is empty, or whose cell is
 * needed last, and later than `after`. Under the lock. NULL: none. */
static bench *bench_choose(rv_tapes *it, int cell, int after) {
    bench *best = NULL;
    for (int i = 0; i < it->bench_count; i++) {
        bench *b = &it->benches[i];
        if (b->used) continue;
        if (b->holds != NOTHING && b->cell == cell) return b;
        if (b->moving || (b->holds != NOTHING && it->back_at[b->cell] <= after)) continue;
        if (!best || (best->holds != NOTHING &&
                      (b->holds == NOTHING || it->back_at[b->cell] > it->back_at[best->cell])))
            best = b;
    }
    return best;
}

static void bench_give(rv_tapes *it, bench *b, int cell) {
    if (b->cell != cell) b->holds = NOTHING;
    b->cell = cell, b->used = true;
    it->bench_of[cell] = (int)(b - it->benches);
}

/* What B finds on its bench, or lacks. */
static bool ready(const rv_tapes *it, const bench *b, bool back) {
    return !back || !it->spills || b->holds != NOTHING;
}

rv_status rv_tapes_seek(rv_tapes *it, int cell, bool back, rv_link **edge) {
    rv_status status = RV_OK;
    if (it->bench_count == 0 || *edge) return RV_OK;
    if (back && it->record_of[cell] == NONE) return RV_OK; /* recall tells */
    pthread_mutex_lock(&it->lock);
    int own = it->bench_of[cell];
    bench *b = own == NONE ? bench_choose(it, cell, NONE) : &it->benches[own];
    bool moving = false, failed = it->failed, still = b && !b->moving;
    for (int i = 0; i < it->bench_count; i++)
        moving |= it->benches[i].moving;
    if (still && own == NONE) bench_give(it, b, cell);
    pthread_mutex_unlock(&it->lock);
    if (failed) return failure(it);
    if (!b && !moving) FAIL(RV_INTERNAL, "all %d benches of tapes are in use", it->bench_count);
    if (still && ready(it, b, back)) goto out;
    *edge = &it->edge;
    if (!still) goto out;
    b->holds = SPILLED;
    TRY(move_begin(it, b, true));
out:
    return status;
}

const rv_link *rv_tapes_edge(const rv_tapes *it) {
    return &it->edge;
}

/* Begin to read what the next B need, as far as there are benches for it. */
static rv_status fetch_ahead(rv_tapes *it, int at) {
    rv_status status = RV_OK;
    const rv_tapes_desc *d = &it->desc;
    if (!it->spills) return RV_OK;
    for (int k = 0; k < AHEAD; k++) {
        at = it->next_back[at + 1];
        if (at == d->count) break;
        int cell = d->list[at].micro * d->chunks + d->list[at].chunk;
        if (it->bench_of[cell] != NONE) continue;
        if (it->record_of[cell] == NONE || !record_at(it, cell)->written) continue;
        pthread_mutex_lock(&it->lock);
        bench *b = bench_choose(it, cell, at);
        pthread_mutex_unlock(&it->lock);
        if (!b || (b->holds != NOTHING && b->cell == cell)) continue;
        b->cell = cell, b->holds = SPILLED;
        TRY(move_begin(it, b, true));
    }
out:
    return status;
}

/* ---- cells ------------------------------------------------------------------------------ */

/* Any unused record will do, since F fills all of it that B and W read. The simulator foretold how
 * many are held at once, so to find none means that list and forecast disagree. */
rv_status rv_tapes_take(rv_tapes *it, int cell, rv_tape **tape) {
    rv_status status = RV_OK;
    if (it->free_count == 0) FAIL(RV_INTERNAL, "all %d tapes are in use", it->desc.records);
    it->record_of[cell] = it->free[--it->free_count];
    record_at(it, cell)->written = false;
    *tape = record_at(it, cell)->tape;
    if (it->bench_count == 0) goto out;
    bench *b = &it->benches[it->bench_of[cell]];
    b->holds = NOTHING;
    rv_tape_attach(b->tape, record_at(it, cell)->kept);
    *tape = b->tape;
out:
    return status;
}

rv_status rv_tapes_border(rv_tapes *it, int cell, const rv_state *state) {
    return it->again ? rv_state_copy(record_at(it, cell)->border, state, NULL) : RV_OK;
}

/* The contents stay until another cell needs the bench: a B that follows at once finds them. */
rv_status rv_tapes_rest(rv_tapes *it, int cell, bool empty) {
    rv_status status = RV_OK;
    const rv_tapes_desc *d = &it->desc;
    if (it->bench_count == 0) goto out;
    bench *b = &it->benches[it->bench_of[cell]];
    b->holds = WHOLE;
    if (d->how.half && !empty) TRY(rv_tape_round(b->tape));
    /* No use in writing what is read next: it stays where it is. */
    if (it->spills && it->back_at[cell] == it->forward_at[cell] + 1) goto out;
    rv_half_pack(rv_tape_part_memory(b->tape, RV_PART_MEMBRANES), record_at(it, cell)->packed,
                 it->words[RV_PART_MEMBRANES]);
    b->used = false;
    it->bench_of[cell] = NONE;
    if (!it->spills) goto out;
    record_at(it, cell)->written = true;
    TRY(move_begin(it, b, false));
    TRY(fetch_ahead(it, it->forward_at[cell]));
out:
    return status;
}

/* The held frames that the tape of F shows lie in the state of F, which goes on to later chunks;
 * they are set once for all chunks, so they are still those. */
rv_status rv_tapes_recall(rv_tapes *it, int cell, rv_tape **tape, rv_state **state,
                          const uint8_t **again) {
    rv_status status = RV_OK;
    *again = NULL;
    if (it->record_of[cell] == NONE) FAIL(RV_INTERNAL, "the tape of this chunk is not there");
    const record *r = record_at(it, cell);
    *tape = r->tape;
    if (it->bench_count == 0) goto out;
    bench *b = &it->benches[it->bench_of[cell]];
    *tape = b->tape;
    if (b->holds == WHOLE) goto out;
    rv_tape_attach(b->tape, r->kept);
    rv_half_unpack(r->packed, rv_tape_part_memory(b->tape, RV_PART_MEMBRANES),
                   it->words[RV_PART_MEMBRANES]);
    *again = it->desc.how.policy;
    if (!it->again) goto out;
    TRY(rv_state_copy(b->state, r->border, NULL));
    *state = b->state;
out:
    return status;
}

rv_status rv_tapes_whole(rv_tapes *it, int cell, bool again) {
    rv_status status = RV_OK;
    if (it->bench_count == 0) goto out;
    bench *b = &it->benches[it->bench_of[cell]];
    if (again && it->desc.how.half) TRY(rv_tape_round(b->tape));
    b->holds = WHOLE;
    TRY(fetch_ahead(it, it->back_at[cell]));
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
        b->holds = NOTHING;
        it->bench_of[cell] = NONE;
    }
    it->free[it->free_count++] = it->record_of[cell];
    it->record_of[cell] = NONE;
}
