/* What the stages of a pipeline did over a run: lines of the log, one line of metrics.jsonl. */
#include <math.h>

#include "pipeline/plan.h"
#include "pipeline/train.h"

/* Shares of the time of the steps. */
static json_t *stage_json(const rv_stage_times *t) {
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "seconds", rv_json_number(t->total), "busy",
        rv_json_number(t->busy / t->total), "fill", rv_json_number(t->fill / t->total), "drain",
        rv_json_number(t->drain / t->total), "wait_data", rv_json_number(t->data / t->total),
        "wait_slot", rv_json_number(t->slot / t->total), "optimizer",
        rv_json_number(t->optimizer / t->total), "other", rv_json_number(t->other / t->total));
}

static void say_stage(const rv_training *training, int stage, const rv_stage_times *t) {
    double percent = 100 / t->total;
    rv_training_say(training,
                    "stage %d: busy %.1f %%, fill %.1f %%, drain %.1f %%, waits for data %.1f %%, "
                    "for a slot %.1f %%, optimiser %.1f %%, other %.1f %%",
                    stage, percent * t->busy, percent * t->fill, percent * t->drain,
                    percent * t->data, percent * t->slot, percent * t->optimizer,
                    percent * t->other);
}

/* At the end of a run, after its last checkpoint. */
rv_status rv_training_timeline(rv_training *training) {
    rv_status status = RV_OK;
    rv_timeline *timeline = rv_engine_timeline(training->setup.engine);
    const rv_plan *plan = training->setup.plan;
    char *line = NULL;
    json_t *stages = NULL;
    if (!timeline || rv_timeline_steps(timeline) == 0) return RV_OK;
    /* Where nothing was to be chosen costs were not measured: there is no plan to compare with. */
    double planned = plan->serial > 0 ? plan->expected : NAN;
    double measured = rv_timeline_bubble(timeline);
    stages = json_array();
    for (int s = 0; s < plan->stages; s++) {
        rv_stage_times times;
        rv_timeline_times(timeline, s, &times);
        say_stage(training, s, &times);
        json_array_append_new(stages, stage_json(&times));
    }
    const long long steps = rv_timeline_steps(timeline);
    if (isfinite(planned))
        rv_training_say(training, "bubble over %lld steps: planned %.1f %%, measured %.1f %%",
                        steps, 100 * planned, 100 * measured);
    else
        rv_training_say(training, "bubble over %lld steps: measured %.1f %%", steps,
                        100 * measured);
    if (rv_timeline_flaw(timeline))
        rv_training_say(training, "the trace is not whole: %s", rv_timeline_flaw(timeline));
    json_t *root = json_pack("{s:s, s:I, s:o, s:o, s:O}", "event", "pipeline", "steps",
                             (json_int_t)rv_timeline_steps(timeline), "bubble_planned",
                             rv_json_number(planned), "bubble_measured", rv_json_number(measured),
                             "stages", stages);
    TRY(rv_json_text(root, true, &line));
    TRY(rv_run_metric(training->run, line));
out:
    json_decref(stages);
    rv_free(line);
    return status;
}
