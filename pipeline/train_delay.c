/* What the stages of a delayed training read and kept: a line of metrics.jsonl an epoch, and lines
 * of the log at its end. */
#include <string.h>

#include "pipeline/plan.h"
#include "pipeline/train.h"

static bool is_delayed(const rv_training *training) {
    return training->setup.delay.mode && rv_engine_account(training->setup.engine, 0);
}

/* Counts are of the epoch at hand. */
void rv_training_delay_begin(rv_training *training) {
    const rv_plan *plan = training->setup.plan;
    for (int s = 0; is_delayed(training) && s < plan->stages; s++)
        rv_account_clear(rv_engine_account(training->setup.engine, s));
}

rv_status rv_training_delay(rv_training *training) {
    rv_status status = RV_OK;
    const rv_plan *plan = training->setup.plan;
    char *line = NULL;
    if (!is_delayed(training)) return RV_OK;
    json_t *stages = json_array();
    for (int s = 0; s < plan->stages; s++) {
        json_t *stage = rv_account_json(rv_engine_account(training->setup.engine, s));
        json_object_set_new(stage, "planned", rv_account_json(&plan->stage[s].account));
        json_array_append_new(stages, stage);
    }
    json_t *root = json_pack("{s:s, s:I, s:I, s:s, s:o}", "event", "delay", "epoch",
                             (json_int_t)rv_training_epoch(training), "step",
                             (json_int_t)training->progress.step, "schedule", plan->schedule.name,
                             "stages", stages);
    TRY(rv_json_text(root, true, &line));
    TRY(rv_run_metric(training->run, line));
out:
    rv_free(line);
    return status;
}

void rv_training_delay_say(const rv_training *training) {
    const rv_plan *plan = training->setup.plan;
    for (int s = 0; is_delayed(training) && s < plan->stages; s++) {
        const rv_account *got = rv_engine_account(training->setup.engine, s);
        const rv_account *want = &plan->stage[s].account;
        rv_training_say(
            training,
            "stage %d: forward %.3g updates late, backward %.3g (planned %.3g, %.3g); "
            "at most %d versions, %.1f MB beside the newest, %lld samples in flight "
            "(planned %d, %.1f, %lld)",
            s, rv_account_mean(got->forward, got->most), rv_account_mean(got->backward, got->most),
            rv_account_mean(want->forward, want->most), rv_account_mean(want->backward, want->most),
            got->versions, got->stash / 1e6, (long long)got->samples, want->versions,
            want->stash / 1e6, (long long)want->samples);
    }
}
