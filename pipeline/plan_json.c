/* A plan as JSON: figures, stages, rivals, the picture. */
#include <string.h>

#include "pipeline/plan.h"

static json_t *stage_json(const rv_plan *plan, const rv_net *net, int s) {
    const rv_plan_stage *stage = &plan->stage[s];
    const rv_part_cost *cost = &stage->cost;
    const rv_plan_bytes *bytes = &stage->bytes;
    return json_pack("{s:i, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:i, s:{s:f, s:f, s:f, s:f, "
                     "s:f, s:f}, s:f, s:f, "
                     "s:f, s:o}",
                     "stage", s, "first", rv_net_layer_name(net, plan->first[s]), "last",
                     rv_net_layer_name(net, plan->first[s + 1] - 1), "tape", rv_plan_tape(plan, s),
                     "f_ms", 1e3 * cost->f, "b_ms", 1e3 * cost->b, "w_ms", 1e3 * cost->w, "u_ms",
                     1e3 * cost->u, "busy", stage->busy, "tapes", plan->schedule.forecast.peak[s],
                     "bytes", "weights", bytes->weights, "versions", bytes->versions, "tapes",
                     bytes->tapes, "state", bytes->state, "slots", bytes->slots, "scratch",
                     bytes->scratch, "peak_bytes", rv_plan_stage_bytes(stage),
                     "forward_message_bytes", stage->forward_message, "backward_message_bytes",
                     stage->backward_message, "delay",
                     plan->delay.mode ? rv_account_json(&stage->account) : json_null());
}

static json_t *rival_json(const rv_plan_rival *rival, double taken) {
    return json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:s}", "schedule", rival->name, "delayed",
                     rival->endless, "total_ms",
                     rv_json_number(rival->runs ? 1e3 * rival->total : NAN), "bubble",
                     rv_json_number(rival->runs && !rival->endless ? rival->bubble : NAN),
                     "against_plan", rv_json_number(rival->runs ? rival->total / taken : NAN),
                     "slots", rival->runs ? json_integer(rival->slots) : json_null(), "tapes",
                     rival->runs ? json_integer(rival->peak) : json_null(), "why", rival->why);
}

/* The picture as a list of lines. */
static rv_status picture_json(const rv_plan *plan, json_t *lines) {
    rv_status status = RV_OK;
    char *text = NULL;
    TRY(rv_plan_picture(plan, 100, &text));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        json_array_append_new(lines, json_string(line));
    }
out:
    rv_free(text);
    return status;
}

/* Chunk counts the search simulated, ruled out by their bounds, some of them though they could be
 * faster by 0.1 %, and left for lack of effort. */
static json_t *searched_json(const rv_plan *plan) {
    const rv_searched *it = &plan->searched;
    return json_pack("{s:i, s:i, s:i, s:i, s:o}", "tried", it->tried, "ruled_out", it->ruled_out,
                     "near", it->near, "left", it->left, "left_bound_ms",
                     rv_json_number(it->left ? 1e3 * it->left_bound : NAN));
}

/* How tapes were chosen; null: they were not. */
static json_t *mixed_json(const rv_plan *plan) {
    if (plan->mixed == RV_MIXED_NONE) return json_null();
    return json_pack("{s:s, s:f, s:f}", "policies",
                     plan->mixed == RV_MIXED_SOME ? "one_change" : "all", "bound_ms",
                     1e3 * plan->mixed_bound, "could_gain", rv_plan_mix_gain(plan));
}

/* Corrections by name, and what the same updates would take in steps that flush. */
static json_t *delay_json(const rv_plan *plan) {
    const rv_table *table = rv_correction_table();
    const rv_plan_rival *flush = NULL;
    json_t *corrections = json_array();
    if (!plan->delay.mode) {
        json_decref(corrections);
        return json_null();
    }
    for (int k = 0; k < table->count; k++)
        if (plan->delay.on[k])
            json_array_append_new(corrections, json_string(rv_table_row(table, k)->name));
    for (int i = 0; i < plan->rival_count; i++)
        if (strcmp(plan->rivals[i].name, "1f1b") == 0 && plan->rivals[i].runs)
            flush = &plan->rivals[i];
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:f, s:i}", "corrections", corrections,
                     "async_until", (json_int_t)plan->delay.until, "step_1f1b_ms",
                     rv_json_number(flush ? 1e3 * flush->total : NAN), "bubble_1f1b",
                     rv_json_number(flush ? flush->bubble : NAN), "speed_up_1f1b",
                     rv_json_number(flush ? flush->total / plan->step : NAN), "batches_bytes",
                     plan->batches, "waits_below_micro_batches", plan->waits);
}

json_t *rv_plan_json(const rv_plan *plan, const rv_net *net) {
    json_t *stages = json_array(), *rivals = json_array(), *lines = json_array();
    for (int s = 0; s < plan->stages; s++)
        json_array_append_new(stages, stage_json(plan, net, s));
    for (int i = 0; i < plan->rival_count; i++)
        json_array_append_new(rivals, rival_json(&plan->rivals[i], plan->step));
    if (picture_json(plan, lines) != RV_OK) json_array_clear(lines);
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, "
        "s:o, "
        "s:o, s:o, s:o, s:o, s:f}",
        "schedule", plan->schedule.name, "stages", plan->stages, "workers", plan->workers, "chunks",
        plan->chunks, "micro_batches", plan->micros, "slots", plan->schedule.slots, "makespan_ms",
        1e3 * plan->step, "bubble", plan->bubble, "lower_bound_ms", 1e3 * plan->bound,
        "one_device_ms", 1e3 * plan->serial, "speed_up", plan->serial / plan->step, "peak_bytes",
        plan->bytes, "copy_bytes", plan->copy, "latency_ms", 1e3 * plan->latency, "bytes_per_s",
        plan->bandwidth, "stage", stages, "why", rivals, "picture", lines, "profile",
        rv_profile_json(plan, net), "searched", searched_json(plan), "delay", delay_json(plan),
        "tapes_chosen", mixed_json(plan), "bubble_expected", plan->expected);
}
