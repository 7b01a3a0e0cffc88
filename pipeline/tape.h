/*
 * Inside pipeline/: the tapes of a stage between F and W. Kept whole, one for every chunk that the
 * list holds at its peak; or, where layers are recomputed (rv_train_desc.tape), one record a chunk
 * with what is kept and the state at the chunk's start, and a few benches with room for the rest: F
 * works on one and leaves it, B takes one and runs F of those layers again. All memory is made
 * here, none by an item. Cells are micro * chunks + chunk.
 */
#ifndef RV_PIPELINE_TAPE_H
#define RV_PIPELINE_TAPE_H

#include "pipeline/schedule.h"
#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_tapes_desc {
    const rv_range *range;
    const rv_crossing *before;
    const rv_device *device;
    const uint8_t *policy; /* [layers]; NULL: all are kept. Borrowed */
    int steps, rows;       /* of a chunk, of a micro-batch, at most */
    int micros, chunks;
    int records;         /* cells between F and W at most */
    const rv_work *list; /* of the stage, [count] */
    int count;
} rv_tapes_desc;

typedef struct rv_tapes rv_tapes;
RV_CHECKED rv_status rv_tapes_create(const rv_tapes_desc *desc, rv_tapes **out);
void rv_tapes_destroy(rv_tapes *tapes);

/* F: a tape for the cell. RV_INTERNAL: more are in use than the list allows. */
RV_CHECKED rv_status rv_tapes_take(rv_tapes *tapes, int cell, rv_tape **tape);
/* F, before its layers run: the state it begins with. */
RV_CHECKED rv_status rv_tapes_border(rv_tapes *tapes, int cell, const rv_state *state);
void rv_tapes_rest(rv_tapes *tapes, int cell); /* F has ended: B takes what it needs later */
/* B: the tape of the cell; RV_INTERNAL: F has not run, or W has. *again: the policy whose layers
 * are to run once more under *state, which is as F found it; NULL: everything is there. */
RV_CHECKED rv_status rv_tapes_recall(rv_tapes *tapes, int cell, rv_tape **tape, rv_state **state,
                                     const uint8_t **again);
rv_tape *rv_tapes_get(const rv_tapes *tapes, int cell); /* between B and W; NULL: none */
void rv_tapes_leave(rv_tapes *tapes, int cell);         /* W, or F of an evaluation, has ended */

/* Bytes of all of it, for a plan. */
size_t rv_tapes_bytes(const rv_tapes_desc *desc);

#ifdef __cplusplus
}
#endif
#endif
