/* The driver of tests: all stages in the calling thread, in an order drawn from a seed. */
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

/* From a stage drawn at random on, the first that can go goes. */
bool rv_run_turn(rv_pipeline *p, int *ended) {
    int from = draw(p, p->stages);
    rv_turn turn = RV_TURN_WAIT;
    *ended = 0;
    for (int k = 0; k < p->stages && turn != RV_TURN_DONE; k++) {
        rv_worker *w = &p->workers[(from + k) % p->stages];
        rv_link *edge;
        if (rv_stage_step(w->stage, &turn, &edge) != RV_OK) {
            rv_run_fail(p, w->stage);
            return false;
        }
        *ended += turn == RV_TURN_END;
        if (p->flow && w->made != w->stage->weights.made) rv_run_flow_made(w);
    }
    return turn == RV_TURN_DONE;
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
