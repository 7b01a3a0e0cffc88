/*
 * Inside pipeline/: the tapes of a stage between F and W. Kept whole, one for every chunk that the
 * list holds at its peak; or, where layers are recomputed or spilled (rv_train_desc.tape) or
 * membranes are packed (tape_dtype), one record a chunk with what is kept and the state at the
 * chunk's start, and a few benches with room for the rest: F works on one and leaves it, B takes
 * one and runs F of the layers to recompute again. What is spilled a writer thread puts into a file
 * after F, and fetches a few chunks ahead of B. All memory is made here, none by an item. Cells are
 * micro * chunks + chunk.
 */
#ifndef RV_PIPELINE_TAPE_H
#define RV_PIPELINE_TAPE_H

#include "data/data.h"
#include "pipeline/link.h"
#include "pipeline/schedule.h"
#include "pipeline/timeline.h"
#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_tapes_desc {
    const rv_range *range;
    const rv_crossing *before;
    const rv_device *device;
    rv_taping how;   /* policy borrowed */
    int steps, rows; /* of a chunk, of a micro-batch, at most */
    int micros, chunks;
    int records;         /* cells between F and W at most */
    const rv_work *list; /* of the stage, [count]; borrowed */
    int count;
    /* Where layers are spilled: */
    rv_writer *writer; /* borrowed; has room for rv_tapes_jobs, and one more */
    rv_wake wake;      /* rung when a bench is there; ring NULL: nobody sleeps */
    int stage;         /* names the file */
} rv_tapes_desc;

typedef struct rv_tapes rv_tapes;
RV_CHECKED rv_status rv_tapes_create(const rv_tapes_desc *desc, rv_tapes **out);
/* Removes the file. No job is with the writer any more. */
void rv_tapes_destroy(rv_tapes *tapes);
/* What the writer does for these tapes goes there. Borrowed. */
void rv_tapes_watch(rv_tapes *tapes, rv_timeline *timeline);
/* Before the first step, make the file of what is spilled in the folder (NULL: where temporary ones
 * lie), one that a crash leaves there by its name, or one without. Does nothing the second time,
 * and where nothing is spilled. RV_CREATE, RV_IO: no room. */
RV_CHECKED rv_status rv_tapes_open(rv_tapes *tapes, const char *folder, bool named);

/* F, or B with `back`: have a bench for the cell, for B with what was spilled; *edge is set where
 * it is not there yet, and another call gets it. A write that failed is an error of whoever asks
 * next: RV_IO with path, bytes needed and free. */
RV_CHECKED rv_status rv_tapes_seek(rv_tapes *tapes, int cell, bool back, rv_link **edge);
const rv_link *rv_tapes_edge(const rv_tapes *tapes); /* that one, by which a wait is told */
/* F: a tape for the cell. RV_INTERNAL: more are in use than the list allows. */
RV_CHECKED rv_status rv_tapes_take(rv_tapes *tapes, int cell, rv_tape **tape);
/* F, before its layers run: the state it begins with. */
RV_CHECKED rv_status rv_tapes_border(rv_tapes *tapes, int cell, const rv_state *state);
/* F has ended: B takes what it needs later. Membranes are rounded where they are packed; `empty`: a
 * micro-batch without samples, whose tape holds nothing. */
RV_CHECKED rv_status rv_tapes_rest(rv_tapes *tapes, int cell, bool empty);
/* B: the tape of the cell; RV_INTERNAL: F has not run, or W has. *again: the policy with which F is
 * to run once more under *state, which is as F found it (rv_tapes_whole after it); NULL: everything
 * is there. */
RV_CHECKED rv_status rv_tapes_recall(rv_tapes *tapes, int cell, rv_tape **tape, rv_state **state,
                                     const uint8_t **again);
/* B, after that F, or without: the tape is whole, and later ones may be fetched. */
RV_CHECKED rv_status rv_tapes_whole(rv_tapes *tapes, int cell, bool again);
rv_tape *rv_tapes_get(const rv_tapes *tapes, int cell); /* between B and W; NULL: none */
void rv_tapes_leave(rv_tapes *tapes, int cell);         /* W, or F of an evaluation, has ended */

/* For a plan: bytes of a record, of a bench, and of a chunk's share of the file; benches beside
 * those that hold what W needs, 0: tapes are whole. Only range, before, how, steps and rows of the
 * description count. */
typedef struct rv_tapes_sizes {
    size_t record, bench, spilled;
    int spare;
} rv_tapes_sizes;
rv_tapes_sizes rv_tapes_sizes_of(const rv_tapes_desc *desc);
/* What the writer has for the tapes of a stage at a time, at most, where any are spilled. */
int rv_tapes_jobs(const rv_work *list, int count);
/* Of all of it; list: [count] of the stage, count 0: as few benches as can be. */
size_t rv_tapes_bytes(const rv_tapes_sizes *sizes, int records, const rv_work *list, int count);

#ifdef __cplusplus
}
#endif
#endif
