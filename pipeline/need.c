/*
 * How much memory a training will need, before it takes it: a run that would end in the kernel's
 * killing it, or in swapping, is refused with both numbers instead.
 */
#include <math.h>
#include <string.h>

#include "pipeline/order.h"
#include "pipeline/plan.h"
#include "pipeline/stage.h"
#include "pipeline/train.h"

#define USABLE 0.9    /* of what there is: the rest is for what others take meanwhile */
#define AHEAD 1       /* of two tapes that are read before B needs them, as measured */
#define LIBRARIES 5e6 /* bytes of code that only steps and saves touch */

/* Batches in the making: three of a share, and the first ones for the choice of forms. */
static double batches_bytes(const rv_training *training) {
    double bytes = 0;
    for (int split = 0; split < RV_SPLITS; split++) {
        const rv_source *source = &training->share[split].source;
        int units = rv_shape_units(source->shape), steps = source->steps ? source->steps : 1;
        double width = source->spikes ? rv_words(units) : rv_round_up(units, RV_LANES);
        if (source->count > 0)
            bytes += 4 * width * steps * 4.0 * training->setup.config->train.batch;
    }
    return bytes;
}

/* Weights and what the optimiser keeps. */
static double state_bytes(const rv_net *net, const rv_train_desc *train) {
    double slots = rv_optimizer_slots_of(train);
    return 4 * ((double)net->n_all + slots * (double)net->n_trained);
}

/* As they are and packed, and the gradient. */
static double weights_bytes(const rv_net *net, const rv_train_desc *train) {
    return state_bytes(net, train) + 4 * ((double)net->n_all + (double)net->n_trained);
}

/* The copy that is saved, and the file in the making (as arrays, as HDF5's image, as bytes). */
static double saving_bytes(const rv_net *net, const rv_train_desc *train) {
    return rv_h5_available() ? 4 * state_bytes(net, train) : 0;
}

/* Chunks between F and W, over all stages: as many of each as 1f1b or zb hold, or all. */
static double chunks_held(const rv_config *config) {
    double all = (double)config->train.micro_batches * config->train.chunks, S = config->stages;
    double most = config->train.chunks + S - 1;
    if (strncmp(config->schedule, "filldrain", strlen("filldrain")) == 0) return all;
    return S > 1 ? fmin(all, most) : config->train.chunks;
}

/* Weights that delayed stages keep beside the newest. Where the recipe has no cuts, or such as the
 * plan will refuse, stages have an equal share each. And the tapes they hold, a mean of them. */
static double versions_bytes(const rv_setup *setup, double *chunks) {
    const rv_train_desc *train = &setup->config->train;
    const int S = setup->config->stages;
    const int last = setup->net->layer_count;
    const int *cuts = setup->config->cut_count == S - 1 ? setup->config->cuts : NULL;
    const rv_range whole = rv_net_range(setup->net, 0, last);
    double bytes = 0, tapes = 0;
    for (int s = 0; s < S; s++) {
        const rv_delay_shape shape = {S, train->chunks, train->micro_batches, s};
        const rv_order order = {.rule = rv_delay_rule_of(&setup->delay, &shape),
                                .chunks = train->chunks,
                                .group = train->micro_batches};
        const int from = cuts && s > 0 ? cuts[s - 1] : 0, to = cuts && s < S - 1 ? cuts[s] : last;
        const bool known = cuts && from < to && to <= last;
        const rv_range part = known ? rv_net_range(setup->net, from, to) : whole;
        bytes += rv_weights_bytes(&order.rule, &part) / (known ? 1 : S);
        tapes += (double)rv_order_tapes(&order) / S;
    }
    *chunks = tapes;
    return bytes;
}

/* Tapes of a step and states of its micro-batches. What is not kept B makes on a bench, which is
 * taken until W has run. What B needs beside them is about a tape more where layers are planes;
 * products of others run in parts, a quarter as measured. */
static double tapes_bytes(const rv_net *net, const rv_train_desc *train, double chunks,
                          double benches) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    int T = net->desc->steps, M = train->micro_batches, C = train->chunks;
    int rows = (train->batch + M - 1) / M, steps = (T + C - 1) / C;
    double tape = (double)rv_tape_bytes(&whole, NULL, steps, rows);
    double state = (double)rv_state_bytes(&whole, rows);
    double beside = net->desc->input.rank > 1 ? 1 : 0.25;
    const rv_taping how = {train->tape, train->tape_dtype == RV_TAPE_FLOAT16};
    size_t words[RV_TAPE_PARTS];
    rv_tape_sizes(&whole, NULL, &how, steps, rows, words);
    bool parts = train->tape || train->tape_dtype;
    double kept = state + 4 * (double)words[RV_PART_KEPT] + 2 * (double)words[RV_PART_MEMBRANES];
    if (!parts) benches = 0;
    return chunks * (parts ? kept : tape) + beside * tape + benches * (tape + state) + 2 * state;
}

/* Messages of one micro-batch over every edge between blocks. */
static rv_status messages_bytes(const rv_net *net, const rv_train_desc *train, double *bytes) {
    rv_status status = RV_OK;
    int M = train->micro_batches, rows = (train->batch + M - 1) / M, T = net->desc->steps;
    *bytes = 0;
    for (int b = 1; b < net->block_count; b++) {
        rv_crossing crossing = {0};
        TRY(rv_net_crossing(net, net->block_first[b], &crossing));
        *bytes += (double)rv_wire_forward_bytes(&crossing, T, rows) +
                  (double)rv_wire_backward_bytes(&crossing, T, rows);
        rv_free(crossing.tensor);
    }
out:
    return status;
}

/* What is there at once: while costs are measured, a network of one micro-batch, a stage for every
 * block, for each stage that the machine can run beside others; then the run. Stages have a common
 * copy of all they hold, out of which is saved. */
static rv_status phases_bytes(const rv_setup *setup, double *measuring, double *running) {
    rv_status status = RV_OK;
    const rv_config *config = setup->config;
    const rv_net *net = setup->net;
    const bool delayed = setup->delay.mode != NULL;
    const rv_train_desc *train = &config->train;
    double messages, rigs = fmin(config->stages, rv_host_threads());
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    const bool spills = rv_tape_has(&whole, train->tape, RV_TAPE_SPILL);
    TRY(messages_bytes(net, train, &messages));
    double chunks = chunks_held(config), kept = 0;
    if (delayed) kept = versions_bytes(setup, &chunks);
    *running = weights_bytes(net, train) + saving_bytes(net, train) +
               tapes_bytes(net, train, chunks, spills ? 1 + AHEAD : 1);
    *measuring = 0;
    /* Versions are there packed as well. Common to all stages is a copy of them and the newest, in
     * which a file is made as out of the weights. */
    if (delayed)
        *running += 2 * kept + (rv_h5_available() ? 5 : 1) * (kept + 4 * (double)net->n_all);
    bool copied = config->stages > 1 || delayed || train->tape || train->tape_dtype;
    if (copied) *running += weights_bytes(net, train) - 4 * (double)net->n_all;
    if (config->stages < 2) goto out;
    /* Beside the weights to start from. There all B run before the first W. */
    *measuring =
        8 * (double)net->n_all + rigs * (weights_bytes(net, train) + messages +
                                         tapes_bytes(net, train, train->chunks, train->chunks));
    double slots = fmin(4, train->micro_batches * train->chunks) / train->chunks;
    *running += slots * messages * (config->stages - 1) / fmax(1, net->block_count - 1);
out:
    return status;
}

rv_status rv_training_memory(const rv_training *training) {
    rv_status status = RV_OK;
    const rv_setup *setup = &training->setup;
    double measuring, running;
    TRY(phases_bytes(setup, &measuring, &running));
    double need =
        rv_host_resident() + batches_bytes(training) + fmax(measuring, running) + LIBRARIES;
    /* The plan will see to it, but for the file in the making. */
    if (setup->config->tape_auto && setup->config->pipeline_memory > 0)
        need = fmin(need, setup->config->pipeline_memory +
                              0.75 * saving_bytes(setup->net, &setup->config->train));
    double there = rv_host_memory("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
    if (need > USABLE * there)
        FAIL(RV_RESOURCE,
             "about %.0f MB of memory needed, %.0f MB there: a smaller train.batch, more "
             "train.micro_batches or fewer units need less",
             need / 1e6, there / 1e6);
    rv_training_say(training, "memory: about %.0f MB needed, %.0f MB there", need / 1e6,
                    there / 1e6);
out:
    return status;
}
