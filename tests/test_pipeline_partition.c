/* Cuts of a chain: every cut list is tried on small chains. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <time.h>

#include "pipeline/partition.h"

enum { BLOCKS = 256, CASES = 1500 };

/* A chain whose numbers are small multiples of a power of two: sums are exact, ties are real. */
typedef struct chain_data {
    rv_chain chain;
    double compute[BLOCKS], forward[BLOCKS], backward[BLOCKS], slowdown[BLOCKS], weights[BLOCKS],
        tape[BLOCKS], cap[BLOCKS];
    int tapes[BLOCKS];
    rv_wire wires[BLOCKS];
} chain_data;

static uint32_t draw(uint32_t seed, uint32_t n, uint32_t below) {
    uint32_t out[4];
    rv_random4(out, seed, RV_FOR_DATA, 0, 0, n, 0, 0);
    return out[0] % below;
}

static void make_chain(chain_data *d, uint32_t seed, int blocks, int stages, bool capped) {
    static const double slow[] = {1, 1, 1, 2};
    uint32_t n = 0;
    for (int i = 0; i < blocks; i++) {
        d->compute[i] = 1 + draw(seed, n++, 5);
        d->forward[i] = 32 * draw(seed, n++, 2);
        d->backward[i] = 64 * draw(seed, n++, 3);
        d->weights[i] = 8 * (1 + draw(seed, n++, 8));
        d->tape[i] = 8 * (1 + draw(seed, n++, 8));
    }
    double bytes = 0;
    for (int i = 0; i < blocks; i++)
        bytes += 2 * d->weights[i] + stages * d->tape[i];
    for (int s = 0; s < stages; s++) {
        d->slowdown[s] = slow[draw(seed, n++, 4)];
        d->tapes[s] = 1 + stages - s;
        d->cap[s] = bytes * (1 + draw(seed, n++, 4)) / (3 * stages);
        d->wires[s] = (rv_wire){.latency = draw(seed, n++, 3),
                                .forward = 32 << draw(seed, n++, 2),
                                .backward = 32 << draw(seed, n++, 2)};
    }
    d->chain = (rv_chain){.blocks = blocks,
                          .stages = stages,
                          .compute = d->compute,
                          .forward_bytes = d->forward,
                          .backward_bytes = d->backward,
                          .slowdown = d->slowdown,
                          .wires = d->wires,
                          .transfer = (rv_transfer)draw(seed, n++, RV_TRANSFERS),
                          .weight_bytes = d->weights,
                          .tape_bytes = d->tape,
                          .tapes = d->tapes,
                          .cap = capped ? d->cap : NULL,
                          .weight_copies = 2};
}

/* ---- the yardstick: all cut lists in lexicographic order -------------------------------- */

typedef struct brute {
    double slowest, transfer;
    int ties, cuts[BLOCKS];
} brute;

static void judge(const chain_data *d, const int *cuts, brute *best) {
    const rv_chain *c = &d->chain;
    double slowest = 0, transfer = 0;
    for (int s = 0; s < c->stages; s++) {
        int from = s ? cuts[s - 1] : 0, to = s + 1 < c->stages ? cuts[s] : c->blocks;
        double work = 0, bytes = 0, forward = 0, backward = 0;
        for (int i = from; i < to; i++) {
            work += d->compute[i] * d->slowdown[s];
            bytes += 2 * d->weights[i] + d->tapes[s] * d->tape[i];
        }
        if (c->cap && bytes > d->cap[s]) return;
        if (to < c->blocks) {
            forward = d->wires[s].latency + d->forward[to - 1] / d->wires[s].forward;
            transfer += forward + d->wires[s].latency + d->backward[to - 1] / d->wires[s].backward;
        }
        if (from > 0)
            backward = d->wires[s - 1].latency + d->backward[from - 1] / d->wires[s - 1].backward;
        double time = c->transfer == RV_TRANSFER_BLOCKING ? work + forward + backward
                                                          : fmax(work, fmax(forward, backward));
        slowest = fmax(slowest, time);
    }
    if (slowest == best->slowest && transfer == best->transfer) best->ties++;
    if (slowest > best->slowest || (slowest == best->slowest && transfer >= best->transfer)) return;
    *best = (brute){.slowest = slowest, .transfer = transfer, .ties = 1};
    memcpy(best->cuts, cuts, sizeof(int) * (size_t)(c->stages - 1));
}

static void try_all(const chain_data *d, int s, int *cuts, brute *best) {
    const rv_chain *c = &d->chain;
    if (s == c->stages - 1) {
        judge(d, cuts, best);
        return;
    }
    for (cuts[s] = s ? cuts[s - 1] + 1 : 1; cuts[s] <= c->blocks - (c->stages - 1 - s); cuts[s]++)
        try_all(d, s + 1, cuts, best);
}

/* ---- cases ------------------------------------------------------------------------------ */

static void partition_small_chains_equal_brute_force(void **state) {
    (void)state;
    int infeasible = 0, tied = 0;
    for (uint32_t seed = 0; seed < CASES; seed++) {
        chain_data d;
        int blocks = 1 + (int)draw(seed, 900, 9), stages = 1 + (int)draw(seed, 901, 5),
            cuts[BLOCKS];
        if (stages > blocks) stages = blocks;
        make_chain(&d, seed, blocks, stages, seed % 2);
        brute best = {.slowest = INFINITY, .transfer = INFINITY};
        try_all(&d, 0, cuts, &best);
        rv_cuts got;
        rv_status status = rv_partition(&d.chain, &got);
        if (best.slowest == INFINITY) {
            infeasible++;
            assert_int_equal(status, RV_RESOURCE);
            assert_null(got.cuts);
            continue;
        }
        assert_int_equal(status, RV_OK);
        tied += best.ties > 1;
        assert_true(got.slowest == best.slowest);
        assert_true(got.transfer == best.transfer);
        assert_true(got.ties == best.ties);
        for (int s = 0; s < stages - 1; s++)
            assert_int_equal(got.cuts[s], best.cuts[s]);
        double time[BLOCKS], slowest = 0;
        rv_partition_times(&d.chain, got.cuts, time);
        for (int s = 0; s < stages; s++)
            slowest = fmax(slowest, time[s]);
        assert_true(slowest == got.slowest);
        rv_free(got.cuts);
    }
    assert_in_range(infeasible, 20, CASES / 2); /* the draw holds both */
    assert_in_range(tied, 20, CASES);
}

static void partition_more_stages_than_blocks_is_refused(void **state) {
    (void)state;
    chain_data d;
    rv_cuts cuts;
    make_chain(&d, 1, 3, 3, false);
    d.chain.stages = 4;
    assert_int_equal(rv_partition(&d.chain, &cuts), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "more stages than blocks"));
    d.chain.stages = 0;
    assert_int_equal(rv_partition(&d.chain, &cuts), RV_CONFIG);
    d.chain.stages = 3;
    d.wires[1].backward = 0;
    assert_int_equal(rv_partition(&d.chain, &cuts), RV_CONFIG);
}

static void partition_one_stage_takes_all(void **state) {
    (void)state;
    chain_data d;
    rv_cuts cuts;
    make_chain(&d, 3, 5, 1, false);
    assert_int_equal(rv_partition(&d.chain, &cuts), RV_OK);
    assert_true(cuts.transfer == 0 && cuts.ties == 1);
    rv_free(cuts.cuts);
}

static void partition_large_chain_takes_under_a_second(void **state) {
    (void)state;
    chain_data d;
    rv_cuts cuts;
    struct timespec a, b;
    make_chain(&d, 7, BLOCKS, 64, false);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    rv_status status = rv_partition(&d.chain, &cuts);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    assert_int_equal(status, RV_OK);
    rv_free(cuts.cuts);
    assert_true((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9 < 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partition_small_chains_equal_brute_force),
        cmocka_unit_test(partition_more_stages_than_blocks_is_refused),
        cmocka_unit_test(partition_one_stage_takes_all),
        cmocka_unit_test(partition_large_chain_takes_under_a_second),
    };
    return cmocka_run_group_tests_name("pipeline_partition", tests, NULL, NULL);
}
