/*
 * How much memory a training will need, before it takes it: a run that would end in the kernel's
 * killing it, or in swapping, is refused with both numbers instead.
 */
#include <math.h>
#include <string.h>

#include "pipeline/bytes.h"
#include "pipeline/order.h"
#include "pipeline/plan.h"
#include "pipeline/stage.h"
#include "pipeline/train.h"

#define USABLE 0.9 /* of what there is: the rest is for what others take meanwhile */
#define AHEAD 1    /* of two tapes that are read before B needs them, as measured */

/* Of the first batch, by which forms are chosen and costs are measured. Those that the loader fills
 * are resident by now. */
static double first_bytes(const rv_training *training) {
    const rv_config *config = training->setup.config;
    const rv_source *source = &training->share[RV_SPLIT_TRAIN].source;
    const int units = rv_shape_units(source->shape), M = config->train.micro_batches;
    const double width = source->spikes ? rv_words(units) : rv_round_up(units, RV_LANES);
    const double rows =
        fmax((config->train.batch + M - 1) / M, fmin(config->train.batch, RV_FORM_SAMPLES));
    return sizeof(float) * width * fmax(1, source->steps) * fmin(rows, (double)source->count);
}

/* Chunks between F and W, over all stages: as many of each as 1f1b or zb hold, or all. */
static double chunks_held(const rv_config *config) {
    double all = (double)config->train.micro_batches * config->train.chunks, S = config->stages;
    double most = config->train.chunks + S - 1;
    if (strncmp(config->schedule, "filldrain", strlen("filldrain")) == 0) return all;
    return S > 1 ? fmin(all, most) : config->train.chunks;
}

/* Stages as the run will have them: every block one, or as the recipe cuts. Where it has no cuts,
 * or such as the plan will refuse, they have an equal share each of what `parts` stages weigh that
 * are the whole network. */
static rv_range part_of(const rv_setup *setup, int stages, int s, int *parts) {
    const rv_net *net = setup->net;
    const rv_config *config = setup->config;
    const int last = net->layer_count;
    const int *cuts = config->cut_count == stages - 1 ? config->cuts : NULL;
    if (setup->delay.mode && setup->delay.mode->blocks) cuts = net->block_first + 1;
    const int from = cuts && s > 0 ? cuts[s - 1] : 0, to = cuts && s < stages - 1 ? cuts[s] : last;
    const bool known = cuts && from < to && to <= last;
    *parts = known ? 1 : stages;
    return known ? rv_net_range(net, from, to) : rv_net_range(net, 0, last);
}

/* What all stages train. Of delayed ones the versions that they keep, too, and the tapes they
 * hold, a mean of them. */
static double stages_bytes(const rv_setup *setup, double *versions, double *tapes) {
    const rv_train_desc *train = &setup->config->train;
    const bool delayed = setup->delay.mode != NULL, blocks = delayed && setup->delay.mode->blocks;
    const int S = blocks ? setup->net->block_count : setup->config->stages;
    const rv_isa isa = rv_device_isa(&setup->device);
    double bytes = 0;
    if (delayed) *tapes = 0;
    for (int s = 0; s < S; s++) {
        const rv_delay_shape shape = {S, train->chunks, train->micro_batches, s,
                                      setup->config->slots};
        int parts;
        const rv_range part = part_of(setup, S, s, &parts);
        rv_order order = {.chunks = train->chunks, .group = train->micro_batches};
        if (delayed) order.rule = rv_delay_rule_of(&setup->delay, &shape);
        bytes += rv_bytes_weights(&part, train, isa, delayed ? &order.rule : NULL) / parts;
        if (!delayed) continue;
        *versions += rv_weights_bytes(&order.rule, &part) / parts;
        *tapes += (double)rv_order_tapes(&order) / S;
    }
    return bytes;
}

/* Tapes of a step and states of its micro-batches. What is not kept B makes on a bench, which is
 * taken until W has run. */
static double tapes_bytes(const rv_net *net, const rv_train_desc *train, double chunks,
                          double benches) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    int T = net->desc->steps, M = train->micro_batches, C = train->chunks;
    int rows = (train->batch + M - 1) / M, steps = (T + C - 1) / C;
    double tape = (double)rv_tape_bytes(&whole, NULL, steps, rows);
    double state = (double)rv_state_bytes(&whole, rows);
    const rv_taping how = {train->tape, train->tape_dtype == RV_TAPE_FLOAT16};
    size_t words[RV_TAPE_PARTS];
    rv_tape_sizes(&whole, NULL, &how, steps, rows, words);
    bool parts = train->tape || train->tape_dtype;
    double kept = state + 4 * (double)words[RV_PART_KEPT] + 2 * (double)words[RV_PART_MEMBRANES];
    if (!parts) benches = 0;
    return chunks * (parts ? kept : tape) + rv_bytes_beside(net, tape) + benches * (tape + state) +
           2 * state;
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
    const rv_train_desc *train = &config->train;
    double messages, rigs = fmin(config->stages, rv_host_threads());
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    const bool spills = rv_tape_has(&whole, train->tape, RV_TAPE_SPILL);
    TRY(messages_bytes(net, train, &messages));
    double chunks = chunks_held(config), versions = 0;
    *measuring = 0;
    *running = stages_bytes(setup, &versions, &chunks) + versions;
    /* The newest is saved among them. */
    if (setup->delay.mode) versions += 4 * (double)net->n_all;
    *running += rv_bytes_saving(net, train, versions) +
                rv_bytes_health(net, train, config->health_policy) +
                tapes_bytes(net, train, chunks, spills ? 1 + AHEAD : 1);
    bool copied = config->stages > 1 || setup->delay.mode || train->tape || train->tape_dtype;
    if (copied) *running += rv_bytes_copy(net, train, versions);
    if (config->stages < 2) goto out;
    /* Beside the weights to start from. There all B run before the first W. */
    const rv_isa isa = rv_device_isa(&setup->device);
    *measuring =
        8 * (double)net->n_all + rigs * (rv_bytes_weights(&whole, train, isa, NULL) + messages +
                                         tapes_bytes(net, train, train->chunks, train->chunks));
    double slots = fmin(4, train->micro_batches * train->chunks) / train->chunks;
    *running += slots * messages * (config->stages - 1) / fmax(1, net->block_count - 1);
out:
    return status;
}

rv_status rv_training_memory(rv_training *training) {
    rv_status status = RV_OK;
    const rv_setup *setup = &training->setup;
    rv_need *need = &training->need;
    double running;
    need->taken = rv_host_resident() + first_bytes(training) + RV_BYTES_LIBRARIES;
    TRY(phases_bytes(setup, &need->measuring, &running));
    need->most = need->taken + fmax(need->measuring, running);
    /* The plan will see to it. */
    if (setup->config->tape_auto && setup->config->pipeline_memory > 0)
        need->most = fmin(need->most, setup->config->pipeline_memory);
    need->there = rv_host_memory("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
    if (need->most > USABLE * need->there)
        FAIL(RV_RESOURCE,
             "about %.0f MB of memory needed, %.0f MB there: a smaller train.batch, more "
             "train.micro_batches or fewer units need less",
             need->most / 1e6, need->there / 1e6);
out:
    return status;
}

void rv_training_memory_say(const rv_training *training) {
    const rv_setup *setup = &training->setup;
    const rv_config *config = setup->config;
    const rv_need *need = &training->need;
    const double planned = setup->plan ? setup->plan->bytes : 0;
    double most = need->most;
    if (planned > 0) {
        most = need->taken +
               fmax(need->measuring,
                    planned + rv_bytes_health(setup->net, &config->train, config->health_policy));
        if (config->pipeline_memory > 0) most = fmin(most, config->pipeline_memory);
    }
    rv_training_say(training, "memory: about %.0f MB needed, %.0f MB there", most / 1e6,
                    need->there / 1e6);
}

rv_status rv_training_limit(const rv_training *training) {
    const rv_config *config = training->setup.config;
    const double limit = config->pipeline_memory, peak = rv_host_peak();
    if (limit <= 0 || peak <= limit || peak <= training->peak) return RV_OK;
    return rv_fail_at(RV_RESOURCE, rv_config_place(config, "pipeline", "memory"), "memory", NULL,
                      "pipeline.memory: %.1f MB, but %.1f MB were taken before the first step",
                      limit / 1e6, peak / 1e6);
}

void rv_training_limit_say(const rv_training *training) {
    const rv_config *config = training->setup.config;
    const double limit = config ? config->pipeline_memory : 0, peak = 1e6 * training->watch.peak_mb;
    if (limit <= 0 || peak <= limit || peak <= training->peak) return;
    rv_training_say(training, "warning: pipeline.memory: %.1f MB, but the peak was %.1f MB",
                    limit / 1e6, peak / 1e6);
}
