/* The driver of tests: all stages, and the writer of spilled tapes, in the calling thread, in an
 * order drawn from a seed. */
#include "pipeline/run_inside.h"

/* A number from a counter and the seed: the same seed gives the same order on every machine, so
 * what goes wrong in one order can be looked at again. */
static int draw(rv_pipeline *p, int below) {
    uint32_t out[4];
    const uint32_t counter[4] = {(uint32_t)p->turns, (uint32_t)(p->turns >> 32), 0, 0};
    p->turns++;
    rv_philox(out, counter, p->desc.seed);
    return (int)(out[0] % (uint32_t)below);
}

/* One attempt of a stage. */
static rv_turn stage_turn(rv_worker *w) {
    rv_turn turn;
    rv_link *edge;
    if (rv_stage_step(w->stage, &turn, &edge) != RV_OK) {
        rv_run_fail(w->pipeline, w->stage);
        return RV_TURN_WAIT;
    }
    if (w->pipeline->flow && w->made != w->stage->weights.made) rv_run_flow_made(w);
    return turn;
}

/* Stages and the writer sit in a ring: from one drawn at random on, the first that can go goes. */
bool rv_run_turn(rv_pipeline *p, int *ended) {
    int actors = p->stages + (p->writer != NULL), from = draw(p, actors);
    *ended = 0;
    for (int k = 0; k < actors && !rv_flag_get(&p->failed); k++) {
        int one = (from + k) % actors;
        if (one == p->stages) {
            if (rv_writer_step(p->writer)) return true;
            continue;
        }
        rv_turn turn = stage_turn(&p->workers[one]);
        *ended += turn == RV_TURN_END;
        if (turn == RV_TURN_DONE) return true;
    }
    return false;
}

/* If none can go, and each was asked again as often as a slow link may need, none ever will. */
void rv_run_seeded(rv_pipeline *p) {
    enum { PATIENCE = 1000 };
    for (int idle = 0, ended; idle < PATIENCE;) {
        idle = rv_run_turn(p, &ended) ? 0 : idle + 1;
        if (ended == p->stages || rv_flag_get(&p->failed)) return;
    }
    for (int s = 0; s < p->stages; s++) {
        const rv_stage *stage = p->workers[s].stage;
        if (stage->at == stage->count) continue;
        /* Of all that are stuck the first stage is named; its item says what it was about to do. */
        if (rv_fail(RV_INTERNAL, "nothing can go on") != RV_OK) rv_run_fail(p, stage);
        return;
    }
}
