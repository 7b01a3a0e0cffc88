/* The plan of a pipeline of one stage, for what the plain trainer cannot do: tapes not kept. */
#include "pipeline/plan.h"

rv_status rv_plan_one(const rv_net *net, const rv_train_desc *train, rv_plan *out) {
    rv_status status = RV_OK;
    static const double one = 1;
    const rv_costs costs = {.f = &one, .b = &one, .w = &one};
    rv_plan plan = {
        .stages = 1, .workers = 1, .micros = train->micro_batches, .chunks = train->chunks};
    *out = (rv_plan){0};
    TRY(rv_alloc(2, sizeof *plan.first, "cuts", &plan.first));
    TRY(rv_alloc(1, sizeof *plan.stage, "stages", &plan.stage));
    plan.first[1] = net->layer_count;
    TRY(rv_schedule_make(rv_generator_find("serial"), 1, plan.micros, plan.chunks, 0, &costs,
                         &plan.schedule));
    TRY(rv_schedule_add_updates(&plan.schedule, plan.micros, train->clip_norm > 0));
    TRY(rv_schedule_simulate(&plan.schedule, &costs, NULL));
    rv_plan_tell(&plan);
    *out = plan;
    plan = (rv_plan){0};
out:
    rv_plan_finish(&plan);
    return status;
}
