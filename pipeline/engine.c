/*
 * One interface over the plain trainer and a pipeline. The trainer's weights are those of the whole
 * network already; a pipeline's are gathered into a copy when someone asks for them.
 */
#include "pipeline/engine.h"
#include "pipeline/health.h"

struct rv_engine {
    rv_serial *serial; /* one of the three */
    rv_pipeline *pipeline;
    rv_oracle *oracle;
    const rv_batch *batch;   /* handed over and not yet trained on; of what does one at a time */
    float *block, *gradient; /* copies; NULL where the trainer's own serve */
    float *versions;         /* of all stages in turn; NULL: one version each */
    size_t version_floats;
    bool keeps; /* stages copy what they have after an update that was not pulled yet */
    rv_optimizer *optimizer;
    int rows; /* of a micro-batch */
    size_t n_all, n_trained;
};

static int rows_of(const rv_train_desc *train) {
    return (train->batch + train->micro_batches - 1) / train->micro_batches;
}

rv_status rv_engine_serial(const rv_serial_desc *desc, rv_engine **out) {
    rv_status status = RV_OK;
    rv_engine *engine = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *engine, "a trainer", &engine));
    engine->rows = rows_of(desc->train);
    engine->n_all = desc->net->n_all;
    engine->n_trained = desc->net->n_trained;
    TRY(rv_serial_create(desc, &engine->serial));
    *out = engine;
    engine = NULL;
out:
    rv_engine_destroy(engine);
    return status;
}

/* What is gathered from several stages. */
static rv_status copies_create(rv_engine *engine, const rv_net *net, const rv_train_desc *train,
                               int64_t total_steps) {
    rv_status status = RV_OK;
    engine->rows = rows_of(train);
    TRY(rv_optimizer_create(net, train, total_steps, &engine->optimizer));
    TRY(rv_alloc(net->n_all, sizeof(float), "a copy of the weights", &engine->block));
    TRY(rv_alloc(net->n_trained, sizeof(float), "a copy of the gradient", &engine->gradient));
out:
    return status;
}

rv_status rv_engine_oracle(const rv_oracle_desc *desc, rv_engine **out) {
    rv_status status = RV_OK;
    rv_engine *engine = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *engine, "a trainer", &engine));
    TRY(copies_create(engine, desc->net, desc->train, desc->total_steps));
    TRY(rv_oracle_create(desc, &engine->oracle));
    *out = engine;
    engine = NULL;
out:
    rv_engine_destroy(engine);
    return status;
}

static rv_weights *weights_of(rv_engine *engine, int stage) {
    return &rv_pipeline_stage(engine->pipeline, stage)->weights;
}

static rv_status versions_create(rv_engine *engine) {
    if (!rv_engine_ahead(engine)) return RV_OK;
    for (int s = 0; s < rv_pipeline_stages(engine->pipeline); s++)
        engine->version_floats += rv_weights_floats(weights_of(engine, s));
    return rv_alloc(engine->version_floats, sizeof(float), "a copy of the versions",
                    &engine->versions);
}

/* The optimiser of the whole network also checks what no stage can: that every parameter group
 * matches something. */
rv_status rv_engine_pipeline(const rv_pipeline_desc *desc, rv_engine **out) {
    rv_status status = RV_OK;
    rv_engine *engine = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *engine, "a trainer", &engine));
    TRY(copies_create(engine, desc->net, desc->train, desc->total_steps));
    TRY(rv_pipeline_create(desc, &engine->pipeline));
    TRY(versions_create(engine));
    rv_engine_pull(engine);
    *out = engine;
    engine = NULL;
out:
    rv_engine_destroy(engine);
    return status;
}

void rv_engine_destroy(rv_engine *engine) {
    if (!engine) return;
    rv_pipeline_destroy(engine->pipeline);
    rv_serial_destroy(engine->serial);
    rv_oracle_destroy(engine->oracle);
    rv_free(engine->versions);
    rv_free(engine->gradient);
    rv_free(engine->block);
    rv_optimizer_destroy(engine->optimizer);
    rv_free(engine);
}

/* ---- steps ------------------------------------------------------------------------------ */

int rv_engine_ahead(const rv_engine *engine) {
    return engine->pipeline ? rv_pipeline_ahead(engine->pipeline) : 0;
}

rv_status rv_engine_feed(rv_engine *engine, const rv_batch *batch) {
    if (rv_engine_ahead(engine) > 0) return rv_pipeline_feed(engine->pipeline, batch);
    engine->batch = batch;
    return RV_OK;
}

rv_status rv_engine_await(rv_engine *engine, rv_step_result *out) {
    if (rv_engine_ahead(engine) > 0) return rv_pipeline_await(engine->pipeline, out);
    if (engine->oracle) return rv_oracle_step(engine->oracle, engine->batch, out);
    return engine->serial ? rv_serial_step(engine->serial, engine->batch, out)
                          : rv_pipeline_step(engine->pipeline, engine->batch, out);
}

bool rv_engine_still(const rv_engine *engine) {
    return !engine->pipeline || rv_pipeline_still(engine->pipeline);
}

void rv_engine_rest(rv_engine *engine) {
    if (engine->pipeline) rv_pipeline_rest(engine->pipeline);
}

rv_status rv_engine_step(rv_engine *engine, const rv_batch *batch, rv_step_result *out) {
    rv_status status = RV_OK;
    TRY(rv_engine_feed(engine, batch));
    TRY(rv_engine_await(engine, out));
out:
    return status;
}

rv_status rv_engine_eval(rv_engine *engine, const rv_batch *batch, rv_step_result *out,
                         int64_t *spikes, int32_t *predictions) {
    return engine->serial ? rv_serial_eval(engine->serial, batch, out, spikes, predictions)
                          : rv_pipeline_eval(engine->pipeline, batch, out, spikes, predictions);
}

void rv_engine_observe(rv_engine *engine, const rv_observer *observer) {
    if (engine->serial)
        rv_serial_observe(engine->serial, observer);
    else
        rv_pipeline_observe(engine->pipeline, observer);
}

rv_status rv_engine_folder(rv_engine *engine, const char *folder) {
    return engine->pipeline ? rv_pipeline_folder(engine->pipeline, folder) : RV_OK;
}

rv_timeline *rv_engine_timeline(rv_engine *engine) {
    return engine->pipeline ? rv_pipeline_timeline(engine->pipeline) : NULL;
}

rv_account *rv_engine_account(rv_engine *engine, int stage) {
    if (!engine->pipeline || !rv_engine_ahead(engine)) return NULL;
    return &rv_pipeline_stage(engine->pipeline, stage)->account;
}

/* Every stage's optimiser has what plateau schedules remember. */
void rv_engine_epoch(rv_engine *engine, double validation_loss) {
    if (engine->serial) rv_optimizer_epoch(rv_serial_optimizer(engine->serial), validation_loss);
    for (int s = 0; engine->pipeline && s < rv_pipeline_stages(engine->pipeline); s++)
        rv_optimizer_epoch(rv_pipeline_stage(engine->pipeline, s)->weights.optimizer,
                           validation_loss);
}

/* ---- state ------------------------------------------------------------------------------ */

float *rv_engine_block(rv_engine *engine) {
    return engine->serial ? rv_version_block(rv_serial_version(engine->serial)) : engine->block;
}

rv_optimizer *rv_engine_optimizer(rv_engine *engine) {
    return engine->serial ? rv_serial_optimizer(engine->serial) : engine->optimizer;
}

/* Of a stage; while others may go on. */
static void part_pull(void *self, int stage) {
    rv_engine *engine = self;
    float *to = engine->versions;
    rv_pipeline_part(engine->pipeline, stage, engine->block, engine->optimizer);
    for (int s = 0; to && s < stage; s++)
        to += rv_weights_floats(weights_of(engine, s));
    if (to) rv_weights_give(weights_of(engine, stage), to);
}

void rv_engine_keep(rv_engine *engine) {
    if (rv_engine_ahead(engine) == 0) return;
    rv_pipeline_keep(engine->pipeline, part_pull, engine);
    engine->keeps = true;
}

/* What stages have copied serves once: an epoch's end may change the optimiser after it. */
void rv_engine_pull(rv_engine *engine) {
    bool kept = engine->keeps && rv_pipeline_kept(engine->pipeline);
    engine->keeps = engine->keeps && !kept;
    if (engine->oracle) rv_oracle_read(engine->oracle, engine->block, engine->optimizer);
    if (!engine->pipeline || kept) return;
    rv_pipeline_rest(engine->pipeline);
    for (int s = 0; s < rv_pipeline_stages(engine->pipeline); s++)
        part_pull(engine, s);
}

float *rv_engine_versions(rv_engine *engine, size_t *count) {
    *count = engine->version_floats;
    return engine->versions;
}

rv_status rv_engine_push_versions(rv_engine *engine) {
    rv_status status = RV_OK;
    const float *from = engine->versions;
    for (int s = 0; from && s < rv_pipeline_stages(engine->pipeline); s++) {
        TRY(rv_weights_take(weights_of(engine, s), from));
        from += rv_weights_floats(weights_of(engine, s));
    }
out:
    return status;
}

rv_status rv_engine_push(rv_engine *engine) {
    if (engine->oracle) return rv_oracle_write(engine->oracle, engine->block);
    return engine->serial ? rv_version_derive(rv_serial_version(engine->serial), engine->rows)
                          : rv_pipeline_write(engine->pipeline, engine->block, engine->optimizer);
}

/* What is trained the update has looked at; frozen weights and statistics follow it in a block. */
static bool part_finite(const rv_optimizer *optimizer, const float *block, size_t n_trained,
                        size_t n_all) {
    return rv_optimizer_sound(optimizer) && rv_finite(block + n_trained, n_all - n_trained);
}

bool rv_engine_finite(rv_engine *engine) {
    if (engine->serial)
        return part_finite(rv_serial_optimizer(engine->serial),
                           rv_version_block(rv_serial_version(engine->serial)), engine->n_trained,
                           engine->n_all);
    return rv_pipeline_sound(engine->pipeline);
}

const float *rv_engine_gradient(rv_engine *engine) {
    if (engine->serial) return rv_serial_last_gradient(engine->serial);
    if (engine->oracle) return rv_oracle_gradient(engine->oracle);
    rv_pipeline_gradient(engine->pipeline, engine->gradient);
    return engine->gradient;
}
