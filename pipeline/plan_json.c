/* A plan as JSON: figures, stages, rivals, the picture. */
#include <string.h>

#include "pipeline/plan.h"

static json_t *stage_json(const rv_plan *plan, const rv_net *net, int s) {
    const rv_plan_stage *stage = &plan->stage[s];
    const rv_part_cost *cost = &stage->cost;
    const rv_plan_bytes *bytes = &stage->bytes;
    double busy = plan->micros * (cost->f + cost->b + cost->w) + cost->u;
    return json_pack("{s:i, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:i, s:{s:f, s:f, s:f, s:f, "
                     "s:f, s:f}, s:f, s:f, "
                     "s:f}",
                     "stage", s, "first", rv_net_layer_name(net, plan->first[s]), "last",
                     rv_net_layer_name(net, plan->first[s + 1] - 1), "tape", rv_plan_tape(plan, s),
                     "f_ms", 1e3 * cost->f, "b_ms", 1e3 * cost->b, "w_ms", 1e3 * cost->w, "u_ms",
                     1e3 * cost->u, "busy", busy / plan->schedule.forecast.total, "tapes",
                     plan->schedule.forecast.peak[s], "bytes", "weights", bytes->weights,
                     "versions", bytes->versions, "tapes", bytes->tapes, "state", bytes->state,
                     "slots", bytes->slots, "scratch", bytes->scratch, "peak_bytes",
                     rv_plan_stage_bytes(stage), "forward_message_bytes", stage->forward_message,
                     "backward_message_bytes", stage->backward_message);
}

static json_t *rival_json(const rv_plan_rival *rival, double taken) {
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:s}", "schedule", rival->name, "total_ms",
                     rv_json_number(rival->runs ? 1e3 * rival->total : NAN), "against_plan",
                     rv_json_number(rival->runs ? rival->total / taken : NAN), "slots",
                     rival->runs ? json_integer(rival->slots) : json_null(), "tapes",
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

/* Chunk counts the search simulated, ruled out by their bounds, and left for lack of effort. */
static json_t *searched_json(const rv_plan *plan) {
    const rv_searched *it = &plan->searched;
    return json_pack("{s:i, s:i, s:i, s:o}", "tried", it->tried, "ruled_out", it->ruled_out, "left",
                     it->left, "left_bound_ms",
                     rv_json_number(it->left ? 1e3 * it->left_bound : NAN));
}

json_t *rv_plan_json(const rv_plan *plan, const rv_net *net) {
    const rv_forecast *forecast = &plan->schedule.forecast;
    json_t *stages = json_array(), *rivals = json_array(), *lines = json_array();
    for (int s = 0; s < plan->stages; s++)
        json_array_append_new(stages, stage_json(plan, net, s));
    for (int i = 0; i < plan->rival_count; i++)
        json_array_append_new(rivals, rival_json(&plan->rivals[i], forecast->total));
    if (picture_json(plan, lines) != RV_OK) json_array_clear(lines);
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, "
        "s:o, s:o}",
        "schedule", plan->schedule.name, "stages", plan->stages, "chunks", plan->chunks,
        "micro_batches", plan->micros, "slots", plan->schedule.slots, "makespan_ms",
        1e3 * forecast->total, "bubble", forecast->bubble, "lower_bound_ms", 1e3 * plan->bound,
        "one_device_ms", 1e3 * plan->serial, "speed_up", plan->serial / forecast->total,
        "peak_bytes", plan->bytes, "copy_bytes", plan->copy, "latency_ms", 1e3 * plan->latency,
        "bytes_per_s", plan->bandwidth, "stage", stages, "why", rivals, "picture", lines, "profile",
        rv_profile_json(plan, net), "searched", searched_json(plan));
}
