/*
 * How much memory a training will need, before it takes it: a run that would end in the kernel's
 * killing it, or in swapping, is refused with both numbers instead.
 */
#include <math.h>

#include "pipeline/train.h"

#define USABLE 0.9 /* of what there is: the rest is for what others take meanwhile */

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

/* Weights as they are and packed, gradient, optimiser; the copy that is saved, and the file in the
 * making (as arrays, as HDF5's image, as bytes). */
static double weights_bytes(const rv_net *net, const rv_train_desc *train) {
    double slots = rv_optimizer_slots_of(train);
    double state = 4 * ((double)net->n_all + slots * (double)net->n_trained);
    return state + 4 * ((double)net->n_all + (double)net->n_trained) +
           (rv_h5_available() ? 4 * state : 0);
}

/* Tapes of a step and states of its micro-batches, whoever runs them; what B needs beside them is
 * about a tape more. */
static double tapes_bytes(const rv_net *net, const rv_train_desc *train) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    int T = net->desc->steps, M = train->micro_batches, C = train->chunks < 1 ? 1 : train->chunks;
    int rows = (train->batch + M - 1) / M, steps = (T + C - 1) / C;
    double tape = (double)rv_tape_bytes(&whole, NULL, steps, rows);
    double state = (double)rv_state_bytes(&whole, rows);
    const rv_taping how = {train->tape, train->tape_dtype == RV_TAPE_FLOAT16};
    size_t words[RV_TAPE_PARTS];
    rv_tape_sizes(&whole, NULL, &how, steps, rows, words);
    bool parts = train->tape || train->tape_dtype;
    double kept = state + 4 * (double)words[RV_PART_KEPT] + 2 * (double)words[RV_PART_MEMBRANES];
    return C * (parts ? kept : tape) + (parts ? 2 : 1) * tape + 2 * state;
}

rv_status rv_training_memory(const rv_training *training) {
    const rv_setup *setup = &training->setup;
    const rv_train_desc *train = &setup->config->train;
    double need = rv_host_resident() + batches_bytes(training) + weights_bytes(setup->net, train) +
                  tapes_bytes(setup->net, train);
    /* The plan will see to it. */
    if (setup->config->tape_auto && setup->config->pipeline_memory > 0)
        need = fmin(need, setup->config->pipeline_memory);
    double there = rv_host_memory("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
    if (need > USABLE * there)
        return rv_fail(RV_RESOURCE,
                       "about %.0f MB of memory needed, %.0f MB there: a smaller train.batch, more "
                       "train.micro_batches or fewer units need less",
                       need / 1e6, there / 1e6);
    rv_training_say(training, "memory: about %.0f MB needed, %.0f MB there", need / 1e6,
                    there / 1e6);
    return RV_OK;
}
