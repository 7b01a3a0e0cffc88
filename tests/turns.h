/*
 * For tests of the pipeline: whoever drives the stages, every turn of every stage goes through
 * here. A program that includes it is linked with --wrap=rv_stage_step (Makefile: TURN_TESTS), so
 * that pipeline/ needs no hook for it.
 */
#ifndef RV_TESTS_TURNS_H
#define RV_TESTS_TURNS_H

#include "pipeline/stage.h"

typedef struct turns {
    /* Before a turn, in the thread that takes it; may be NULL. An error is that of the item the
     * stage is at. *stalls: the stage is not asked, it waits for nothing (one thread only). */
    rv_status (*before)(void *self, rv_stage *stage, bool *stalls);
    /* After a turn without an error; may be NULL. `at` is where the stage was. */
    void (*after)(void *self, rv_stage *stage, int at, rv_turn turn);
    void *self;
} turns;

static turns turns_now; /* changed only while no stage runs */

rv_status __real_rv_stage_step(rv_stage *stage, rv_turn *turn, rv_link **edge);
rv_status __wrap_rv_stage_step(rv_stage *stage, rv_turn *turn, rv_link **edge);

rv_status __wrap_rv_stage_step(rv_stage *stage, rv_turn *turn, rv_link **edge) {
    rv_status status = RV_OK;
    bool stalls = false;
    *turn = RV_TURN_WAIT;
    *edge = NULL;
    if (turns_now.before) TRY(turns_now.before(turns_now.self, stage, &stalls));
    if (stalls) goto out;
    int at = stage->at;
    TRY(__real_rv_stage_step(stage, turn, edge));
    if (turns_now.after) turns_now.after(turns_now.self, stage, at, *turn);
out:
    return status;
}

#endif
