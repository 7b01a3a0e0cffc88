/* Cuts of a chain: slowest stage, message time, cuts and how many share them, all exact. */
#include "tests/golden.h"
#include "pipeline/partition.h"
#include <jansson.h>

enum { STAGES_MOST = 4096 };

static void same_cuts(golden_case *c, const char *what, const rv_chain *chain, const json_t *want) {
    rv_cuts got;
    rv_status status = rv_partition(chain, &got);
    const char *reason = json_string_value(json_object_get(want, "reason"));
    if (json_is_false(json_object_get(want, "feasible"))) {
        bool memory = reason && strcmp(reason, "memory") == 0;
        if (status != (memory ? RV_RESOURCE : RV_CONFIG))
            golden_fail(c, "%s: status %d, known: %s", what, status,
                        reason ? reason : "infeasible");
    } else if (golden_ok(c, status)) {
        double slowest = golden_json_number(c, want, "max_stage");
        double transfer = golden_json_number(c, want, "transfer");
        double ties = golden_json_number(c, want, "ties");
        const int *cuts = golden_json_ints(c, want, "cuts", chain->stages - 1);
        if (got.slowest != slowest)
            golden_fail(c, "%s: slowest %.17g, not %.17g", what, got.slowest, slowest);
        if (got.transfer != transfer)
            golden_fail(c, "%s: transfer %.17g, not %.17g", what, got.transfer, transfer);
        if (got.ties != ties) golden_fail(c, "%s: %g ties, not %g", what, got.ties, ties);
        for (int s = 0; s < chain->stages - 1 && !c->failed; s++)
            if (got.cuts[s] != cuts[s])
                golden_fail(c, "%s: cut %d at %d, not %d", what, s, got.cuts[s], cuts[s]);
    }
    rv_free(got.cuts);
}

golden_verdict golden_partition(golden_case *c) {
    static const char *const rules[RV_TRANSFERS] = {
        [RV_TRANSFER_BLOCKING] = "blocking", [RV_TRANSFER_OVERLAP] = "overlap"};
    static const char *const limits[] = {"free", "capped"};
    if (strncmp(c->name, "linear", 6) != 0) return GOLDEN_UNKNOWN;
    int L = golden_json_int(c, NULL, "L"), S = golden_json_int(c, NULL, "S");
    if (c->failed || L < 1 || S < 1 || S > STAGES_MOST)
        return golden_fail(c, "L, S: %d, %d", L, S), GOLDEN_DIFFER;
    double bandwidth = golden_json_number(c, NULL, "bandwidth");
    rv_wire *wires = golden_memory(c, (size_t)S, sizeof *wires);
    for (int s = 0; s < S; s++)
        wires[s] = (rv_wire){golden_json_number(c, NULL, "latency"), bandwidth, bandwidth};
    rv_chain chain = {.blocks = L,
                      .stages = S,
                      .compute = golden_json_numbers(c, NULL, "compute", L),
                      .forward_bytes = golden_json_numbers(c, NULL, "forward_bytes", L - 1),
                      .backward_bytes = golden_json_numbers(c, NULL, "backward_bytes", L - 1),
                      .slowdown = golden_json_numbers(c, NULL, "slowdown", S),
                      .wires = wires,
                      .weight_bytes = golden_json_numbers(c, NULL, "weight_bytes", L),
                      .tape_bytes = golden_json_numbers(c, NULL, "tape_bytes", L),
                      .tapes = golden_json_ints(c, NULL, "tapes", S),
                      .weight_copies = golden_json_number(c, NULL, "weight_copies")};
    const double *cap = golden_json_numbers(c, NULL, "cap", S);
    for (int i = 0; i < 2 * RV_TRANSFERS && !c->failed; i++) {
        char what[32];
        const json_t *known =
            json_object_get(json_object_get(c->json, limits[i / 2]), rules[i % 2]);
        snprintf(what, sizeof what, "%s %s", limits[i / 2], rules[i % 2]);
        chain.cap = i / 2 ? cap : NULL;
        chain.transfer = (rv_transfer)(i % 2);
        if (!json_is_object(known))
            golden_fail(c, "%s: missing", what);
        else
            same_cuts(c, what, &chain, known);
    }
    return golden_done(c);
}
