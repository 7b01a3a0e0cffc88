/*
 * Cuts of a chain by dynamic programming. One pass finds the time T of the slowest stage; a second,
 * over stages no slower than T, the least message time; the cuts are then read off from the front,
 * each the first that keeps both. So all three orders of preference are exact.
 */
#include <math.h>
#include <string.h>

#include "pipeline/partition.h"

typedef struct table {
    const rv_chain *chain;
    double *compute, *weights, *tapes; /* [blocks + 1]: sums of the first i blocks */
    double *best;                      /* [stages + 1][blocks + 1] */
    double *count;                     /* [stages + 1][blocks + 1]: cuts that reach it */
} table;

static double *cell(const table *t, double *of, int s, int i) {
    return &of[(size_t)s * ((size_t)t->chain->blocks + 1) + (size_t)i];
}

/* ---- stages ----------------------------------------------------------------------------- */

static double forward_time(const rv_chain *chain, int s, int cut) {
    return chain->wires[s].latency + chain->forward_bytes[cut - 1] / chain->wires[s].forward;
}

static double backward_time(const rv_chain *chain, int s, int cut) {
    return chain->wires[s].latency + chain->backward_bytes[cut - 1] / chain->wires[s].backward;
}

/* Both messages between stages s and s+1 when the cut is in front of block `cut`. */
static double boundary(const rv_chain *chain, int s, int cut) {
    return s + 1 < chain->stages ? forward_time(chain, s, cut) + backward_time(chain, s, cut) : 0;
}

static double combine(rv_transfer how, double compute, double forward, double backward) {
    return how == RV_TRANSFER_OVERLAP ? fmax(compute, fmax(forward, backward))
                                      : compute + forward + backward;
}

/* Time of stage s with blocks from .. to-1; INFINITY: they do not fit its memory. */
static double stage_time(const table *t, int s, int from, int to) {
    const rv_chain *chain = t->chain;
    double compute = t->compute[to] - t->compute[from];
    if (chain->slowdown) compute *= chain->slowdown[s];
    if (chain->cap) {
        double bytes = chain->weight_copies * (t->weights[to] - t->weights[from]) +
                       chain->tapes[s] * (t->tapes[to] - t->tapes[from]);
        if (!(bytes <= chain->cap[s])) return INFINITY;
    }
    return combine(chain->transfer, compute, s + 1 < chain->stages ? forward_time(chain, s, to) : 0,
                   s > 0 ? backward_time(chain, s - 1, from) : 0);
}

/* ---- tables ----------------------------------------------------------------------------- */

/* best[s][i]: least slowest time of stages s.. over blocks i... */
static double least_slowest(table *t) {
    const int L = t->chain->blocks, S = t->chain->stages;
    *cell(t, t->best, S, L) = 0;
    for (int s = S - 1; s >= 0; s--)
        for (int i = s; i <= L - (S - s); i++) {
            double best = INFINITY;
            for (int k = i + 1; k <= L - (S - 1 - s); k++)
                best = fmin(best, fmax(stage_time(t, s, i, k), *cell(t, t->best, s + 1, k)));
            *cell(t, t->best, s, i) = best;
        }
    return *cell(t, t->best, 0, 0);
}

/* best[s][i]: least message time of stages s.. over blocks i.., none slower than `slowest`; and how
 * many cuts have it. */
static void least_transfer(table *t, double slowest) {
    const int L = t->chain->blocks, S = t->chain->stages;
    *cell(t, t->best, S, L) = 0;
    *cell(t, t->count, S, L) = 1;
    for (int s = S - 1; s >= 0; s--)
        for (int i = s; i <= L - (S - s); i++) {
            double best = INFINITY, count = 0;
            for (int k = i + 1; k <= L - (S - 1 - s); k++) {
                if (stage_time(t, s, i, k) > slowest) continue;
                double time = boundary(t->chain, s, k) + *cell(t, t->best, s + 1, k);
                if (time > best || time == INFINITY) continue;
                if (time < best) count = 0;
                best = time;
                count += *cell(t, t->count, s + 1, k);
            }
            *cell(t, t->best, s, i) = best;
            *cell(t, t->count, s, i) = count;
        }
}

static void read_cuts(const table *t, double slowest, int *cuts) {
    int i = 0;
    for (int s = 0; s < t->chain->stages - 1; s++) {
        int k = i + 1; /* the same sums as in the table: equality is exact */
        while (stage_time(t, s, i, k) > slowest ||
               boundary(t->chain, s, k) + *cell(t, t->best, s + 1, k) != *cell(t, t->best, s, i))
            k++;
        cuts[s] = i = k;
    }
}

/* ---- interface -------------------------------------------------------------------------- */

static rv_status sums(const double *of, int n, double **out) {
    rv_status status = RV_OK;
    TRY(rv_alloc((size_t)n + 1, sizeof **out, "sums over blocks", out));
    for (int i = 0; i < n; i++)
        (*out)[i + 1] = (*out)[i] + of[i];
out:
    return status;
}

rv_status rv_partition(const rv_chain *chain, rv_cuts *cuts) {
    rv_status status = RV_OK;
    table t = {.chain = chain};
    const int L = chain->blocks, S = chain->stages;
    *cuts = (rv_cuts){0};
    if (S < 1 || L < 1) FAIL(RV_CONFIG, "partition: %d stages of %d blocks", S, L);
    if (S > L) FAIL(RV_CONFIG, "partition: more stages than blocks: %d stages, %d blocks", S, L);
    for (int s = 0; s < S - 1; s++)
        if (!(chain->wires[s].forward > 0) || !(chain->wires[s].backward > 0))
            FAIL(RV_CONFIG, "partition: the wire after stage %d has no bandwidth", s);
    const size_t cells = ((size_t)S + 1) * ((size_t)L + 1);
    TRY(sums(chain->compute, L, &t.compute));
    if (chain->cap) TRY(sums(chain->weight_bytes, L, &t.weights));
    if (chain->cap) TRY(sums(chain->tape_bytes, L, &t.tapes));
    TRY(rv_alloc(cells, sizeof *t.best, "the table of cuts", &t.best));
    TRY(rv_alloc(cells, sizeof *t.count, "the table of cuts", &t.count));
    for (size_t i = 0; i < cells; i++)
        t.best[i] = INFINITY;
    double slowest = least_slowest(&t);
    if (slowest == INFINITY)
        FAIL(RV_RESOURCE, "partition: no cut of %d blocks into %d stages fits the memory", L, S);
    least_transfer(&t, slowest);
    TRY(rv_alloc((size_t)S, sizeof *cuts->cuts, "the cuts", &cuts->cuts));
    read_cuts(&t, slowest, cuts->cuts);
    cuts->slowest = slowest;
    cuts->transfer = *cell(&t, t.best, 0, 0);
    cuts->ties = *cell(&t, t.count, 0, 0);
out:
    rv_free(t.count);
    rv_free(t.best);
    rv_free(t.tapes);
    rv_free(t.weights);
    rv_free(t.compute);
    return status;
}

void rv_partition_times(const rv_chain *chain, const int *cuts, double *time) {
    for (int s = 0; s < chain->stages; s++) {
        int from = s > 0 ? cuts[s - 1] : 0, to = s + 1 < chain->stages ? cuts[s] : chain->blocks;
        double compute = 0;
        for (int i = from; i < to; i++)
            compute += chain->compute[i];
        if (chain->slowdown) compute *= chain->slowdown[s];
        time[s] = combine(chain->transfer, compute,
                          s + 1 < chain->stages ? forward_time(chain, s, to) : 0,
                          s > 0 ? backward_time(chain, s - 1, from) : 0);
    }
}
