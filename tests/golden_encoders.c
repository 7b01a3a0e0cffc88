/* encoders.h5: deterministic encoders of snnTorch and SpikingJelly. */
#include "tests/golden.h"
#include <stdio.h>

/* The file's functions as rows of our encoders; `of`: which of a function's forms. */
static const struct row {
    const char *function, *of, *row;
    golden_option options[6];
} encoders[] = {
    {"spikegen.latency",
     "",
     "latency",
     {{"tau", "tau", 0},
      {"threshold", "threshold", 0},
      {"linear", "linear", 0},
      {"normalize", "normalize", 0},
      {"clip", "clip", 0}}},
    {"LatencyEncoder",
     "linear",
     "latency",
     {{"linear", NULL, 1}, {"normalize", NULL, 1}, {"threshold", NULL, 0}}},
    {"LatencyEncoder", "log", "latency", {{"log", NULL, 1}}},
    {"spikegen.delta",
     "",
     "delta",
     {{"threshold", "threshold", 0}, {"off_spike", "off_spike", 0}, {"padding", "padding", 0}}},
    {"WeightedPhaseEncoder", "", "phase", {{"bits", "K", 0}}},
    {"PopSpikeEncoderDeterministic",
     "",
     "population",
     {{"neurons", "pop_dim", 0},
      {"low", "mean_low", 0},
      {"high", "mean_high", 0},
      {"std", "std", 0},
      {"threshold", "threshold", 0}}},
};

/* Spikes, or signed spikes as values. */
static void compare(golden_case *c, const golden_array *want, const rv_signal *got) {
    if (got->spikes.bits)
        golden_same_spikes(c, "spikes", want, got->spikes);
    else
        golden_close(c, "spikes", want, got->values.data, got->values.ld, 0, 0);
}

golden_verdict golden_encoder(golden_case *c) {
    const struct row *row = NULL;
    rv_choice encoder;
    for (size_t k = 0; k < sizeof encoders / sizeof *encoders; k++)
        if (strcmp(golden_word(c, "function"), encoders[k].function) == 0 &&
            strcmp(golden_word(c, "enc_function"), encoders[k].of) == 0)
            row = &encoders[k];
    if (!row) {
        snprintf(c->text, sizeof c->text, "no encoder for %s", golden_word(c, "function"));
        return GOLDEN_UNKNOWN;
    }
    if (!golden_choose(c, rv_encoder_table(), row->row, &encoder) ||
        !golden_set_all(c, &encoder, row->options))
        return GOLDEN_UNKNOWN;
    const golden_array *x = golden_get(c, "x"), *want = golden_get(c, "spikes");
    if (c->failed || want->rank != 3 || x->rank < 2)
        return golden_fail(c, "x or spikes: not [B][n] or [T][B][n]"), GOLDEN_DIFFER;
    int T = (int)want->dim[0], B = (int)want->dim[1];
    bool frames = x->rank == 3;
    if (!golden_set(c, &encoder, "steps", T)) return GOLDEN_UNKNOWN;
    uint64_t *sample = golden_memory(c, (size_t)B, sizeof *sample);
    rv_batch batch = {.B = B, .sample = sample};
    rv_values *in = &batch.input.values;
    *in = rv_values_of(NULL, T, B, (int)x->dim[x->rank - 1]);
    in->data = golden_rows(c, x, in->ld);
    if (!frames) in->stride_t = 0;
    rv_signal out = {{0}, {0}};
    if (golden_ok(c, rv_encode(&encoder, c->device, NULL, &batch, 0, B, 1, 0, T, c->arena, &out)))
        compare(c, want, &out);
    return golden_done(c);
}
