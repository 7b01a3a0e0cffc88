/*
 * A loss over a micro-batch: reads the output, judges every sample in double in a fixed order on
 * the calling thread, and gives the adjoint of the output.
 *
 * The outputs of a chunk are folded into one small record per output (rv_course) while their tape
 * is at hand, so nothing of a chunk is kept for the end but the tape itself. After the last chunk
 * each record is one number, outputs of a class are summed, and a row judges the vector. The way
 * back is the same in reverse: slope of the logits, of the readout, then the steps it belongs to.
 */
#include <math.h>
#include <string.h>

#include "snn/loss.h"

/* ---- the loss ---------------------------------------------------------------------------- */
struct rv_loss {
    const rv_loss_desc *desc;
    const rv_loss_row *row;
    const rv_loss_options *options;
    rv_loss_options defaults;
    const rv_readout_row *readout;
    const rv_layer *layer; /* the last one */
    const rv_device *device;
    int B, T, n, ld, classes;
    int32_t *length;       /* [B] where the device cannot read the batch's own */
    rv_course *course;     /* [B][n], of the device, as is the gradient */
    double *judged;        /* [B] loss of the steps so far (every_step) */
    double *weight;        /* [B] of the sample in the batch's mean */
    double *logit, *slope; /* [classes] of one sample */
    float *row_values;     /* [n] one step of one sample */
    float *gradient;       /* [B][ld] adjoint of the steps it goes to */
    float *logits;         /* [B][classes] */
};

/* All that a description can get wrong about the end of a network, with the place of `loss`. */
rv_status rv_loss_check(const rv_loss_desc *desc, const rv_net *net) {
    const rv_readout_row *readout = rv_readout_find(desc->readout);
    const rv_layer *last = &net->layers[net->layer_count - 1];
    const rv_loss_row *row = rv_loss_row_of(&desc->loss);
    int population = desc->population, n = last->n;
    char shape[48];
    if (!readout)
        return rv_fail_at(RV_CONFIG, desc->where, "readout", NULL, "unknown readout %d",
                          (int)desc->readout);
    if (desc->classes < 1 && row->target == RV_TARGET_LABELS)
        return rv_fail_at(RV_CONFIG, desc->where, "kind", NULL,
                          "loss %s needs classes, but the data has float targets", row->head.name);
    if (population < 1 || n % population != 0)
        return rv_fail_at(RV_CONFIG, desc->where, "population", NULL,
                          "layer \"%s\" gives %s, which does not divide into populations of %d",
                          last->desc->name, rv_shape_text(last->shape, shape), population);
    if (desc->classes > 0 && desc->classes != n / population)
        return rv_fail_at(RV_CONFIG, desc->where, NULL, NULL,
                          "layer \"%s\" gives %s, but %d classes of %d outputs each need [%d]",
                          last->desc->name, rv_shape_text(last->shape, shape), desc->classes,
                          population, desc->classes * population);
    if (readout->reads == RV_READS_SPIKES && !net->output_spikes)
        return rv_fail_at(RV_CONFIG, desc->where, "readout", NULL,
                          "readout %s needs spikes, but layer \"%s\" (%s) gives none",
                          readout->name, last->desc->name, last->desc->row->name);
    if (desc->class_weights.count > 1 && desc->class_weights.count != desc->classes)
        return rv_fail_at(RV_CONFIG, desc->where, "class_weights", NULL,
                          "%d class weights for %d classes", desc->class_weights.count,
                          desc->classes);
    return RV_OK;
}

static rv_status device_alloc(const rv_loss *loss, size_t bytes, void *out) {
    return loss->device->ops->alloc(loss->device->ctx, bytes, "loss", out);
}

/* Everything is sized for B samples here: steps allocate nothing. */
rv_status rv_loss_create(const rv_loss_desc *desc, const rv_net *net, const rv_device *device,
                         int B, rv_loss **out) {
    rv_status status = RV_OK;
    rv_loss *loss = NULL;
    size_t rows_B = (size_t)B;
    *out = NULL;
    TRY(rv_loss_check(desc, net));
    TRY(rv_alloc(1, sizeof *loss, "loss", &loss));
    loss->desc = desc;
    loss->device = device;
    loss->row = rv_loss_row_of(&desc->loss);
    rv_specs_default(loss->row->head.specs, &loss->defaults);
    loss->options = desc->loss.row && desc->loss.options ? desc->loss.options : &loss->defaults;
    loss->readout = rv_readout_find(desc->readout);
    loss->layer = &net->layers[net->layer_count - 1];
    loss->B = B, loss->T = net->desc->steps;
    loss->n = loss->layer->n, loss->ld = loss->layer->ld;
    loss->classes = loss->n / desc->population;
    size_t n = (size_t)loss->n, classes = (size_t)loss->classes;
    TRY(device_alloc(loss, rows_B * n * sizeof *loss->course, &loss->course));
    TRY(device_alloc(loss, rows_B * sizeof *loss->length, &loss->length));
    TRY(rv_alloc(rows_B, sizeof *loss->judged, "loss", &loss->judged));
    TRY(rv_alloc(rows_B, sizeof *loss->weight, "loss", &loss->weight));
    TRY(rv_alloc(classes, sizeof *loss->logit, "loss", &loss->logit));
    TRY(rv_alloc(classes, sizeof *loss->slope, "loss", &loss->slope));
    TRY(rv_alloc(n, sizeof *loss->row_values, "loss", &loss->row_values));
    TRY(device_alloc(loss, rows_B * (size_t)loss->ld * sizeof(float), &loss->gradient));
    TRY(rv_alloc(rows_B * classes, sizeof *loss->logits, "loss", &loss->logits));
    *out = loss;
    loss = NULL;
out:
    rv_loss_destroy(loss);
    return status;
}

void rv_loss_destroy(rv_loss *loss) {
    if (!loss) return;
    rv_free(loss->logits);
    loss->device->ops->free(loss->device->ctx, loss->gradient);
    rv_free(loss->row_values);
    rv_free(loss->slope);
    rv_free(loss->logit);
    rv_free(loss->weight);
    rv_free(loss->judged);
    loss->device->ops->free(loss->device->ctx, loss->length);
    loss->device->ops->free(loss->device->ctx, loss->course);
    rv_free(loss);
}

const float *rv_loss_logits(const rv_loss *loss) {
    return loss->logits;
}

/* ---- reading the output ------------------------------------------------------------------ */
/* As rv_span_length has it: at least one step. */
static int length_of(const rv_loss *loss, const rv_pass *pass, int b) {
    int length = pass->batch->length ? pass->batch->length[pass->row + b] : loss->T;
    return length < 1 ? 1 : length > loss->T ? loss->T : length;
}

/* Whether the adjoint belongs to the membrane rather than to the output. */
static bool reads_membrane(const rv_loss *loss) {
    bool neuron = loss->layer->kind == &rv_kind_neuron;
    return neuron && (loss->readout->reads == RV_READS_MEMBRANE || !loss->layer->spikes);
}

/* One step of one sample as n floats: a row of values, or bits spread out into row_values. */
static const float *row_at(const rv_loss *loss, const rv_pass *pass, int step, int b) {
    const rv_signal *signal = &pass->tape->signal[pass->net->layer_count];
    if (loss->layer->spikes && !reads_membrane(loss)) {
        const uint32_t *bits = signal->spikes.bits + (size_t)step * signal->spikes.stride_t +
                               (size_t)b * (size_t)rv_words(loss->n);
        for (int j = 0; j < loss->n; j++)
            loss->row_values[j] = (float)(bits[j / 32] >> j % 32 & 1u);
        return loss->row_values;
    }
    rv_values values = reads_membrane(loss)
                           ? rv_tape_membrane(pass->tape, pass->net->layer_count - 1)
                           : signal->values;
    return values.data + (size_t)step * values.stride_t + (size_t)b * (size_t)values.ld;
}

/* Judge loss->logit of a sample at a step; the slope is left in loss->slope. */
static double judge(const rv_loss *loss, const rv_pass *pass, int t, int b) {
    const rv_batch *batch = pass->batch;
    size_t row = (size_t)(pass->row + b), width = (size_t)batch->target_width;
    if (batch->target_per_step) row += (size_t)t * (size_t)batch->B;
    rv_judgement j = {.desc = loss->desc,
                      .options = loss->options,
                      .classes = loss->classes,
                      .label = batch->label ? batch->label[pass->row + b] : -1,
                      .length = length_of(loss, pass, b),
                      .target = loss->desc->classes == 0 ? batch->target + row * width : NULL,
                      .logit = loss->logit,
                      .slope = loss->slope};
    return loss->row->judge(&j);
}

/* Outputs of a class lie next to each other; their sum is its logit. */
static double judge_step(const rv_loss *loss, const rv_pass *pass, int t, int b, const float *y) {
    int population = loss->desc->population;
    for (int c = 0; c < loss->classes; c++) {
        loss->logit[c] = 0;
        for (int p = 0; p < population; p++)
            loss->logit[c] += (double)y[c * population + p];
    }
    return judge(loss, pass, t, b);
}

/* Labels come from files: one out of range would write beside the logits. */
static rv_status check_targets(const rv_loss *loss, const rv_pass *pass) {
    const rv_batch *batch = pass->batch;
    bool steps = batch->target_per_step && loss->readout->spread != RV_SPREAD_EACH;
    if (loss->desc->classes == 0 && (!batch->target || batch->target_width != loss->classes))
        return rv_fail(RV_DATA, "the data has %d targets, the loss takes %d", batch->target_width,
                       loss->classes);
    /* Float targets: the width must fit, and targets of every step need a readout of every step. */
    if (loss->desc->classes == 0)
        return steps ? rv_fail(RV_CONFIG, "targets of every step need readout every_step") : RV_OK;
    if (!batch->label) return rv_fail(RV_DATA, "the data has no labels");
    for (int b = 0; b < pass->B; b++) {
        int label = batch->label[pass->row + b];
        if (label < 0 || label >= loss->classes)
            return rv_fail(RV_DATA, "sample %llu has label %d, but there are %d classes",
                           (unsigned long long)batch->sample[pass->row + b], label, loss->classes);
    }
    return RV_OK;
}

/* What the readout reads of the last layer. */
static rv_signal output_of(const rv_loss *loss, const rv_pass *pass) {
    const int last = pass->net->layer_count - 1;
    if (!reads_membrane(loss)) return pass->tape->signal[last + 1];
    return (rv_signal){.values = rv_tape_membrane(pass->tape, last)};
}

/* Lengths lie in the batch, or in a copy that the first chunk has made. */
static rv_span span_of(const rv_loss *loss, const rv_pass *pass) {
    const int32_t *length = pass->batch->length;
    if (length) length = loss->device->ops->apart ? loss->length : length + pass->row;
    return (rv_span){pass->t0, loss->T, length};
}

/* Steps that are judged one by one are looked at by the host. */
static rv_status judge_steps(rv_loss *loss, const rv_pass *pass) {
    rv_status status = RV_OK;
    if (pass->t0 == 0) memset(loss->judged, 0, sizeof *loss->judged * (size_t)pass->B);
    if (loss->readout->spread != RV_SPREAD_EACH) return RV_OK;
    TRY(rv_pass_sync(pass));
    for (int b = 0; b < pass->B; b++) {
        int length = length_of(loss, pass, b), end = length < pass->t1 ? length : pass->t1;
        for (int t = pass->t0; t < end; t++)
            loss->judged[b] +=
                judge_step(loss, pass, t, b, row_at(loss, pass, t - pass->t0, b)) / length;
    }
out:
    return status;
}

/* The first chunk begins a new micro-batch. Steps beyond a sample's length do not exist. */
rv_status rv_loss_observe(rv_loss *loss, const rv_pass *pass) {
    rv_status status = RV_OK;
    const rv_device *device = loss->device;
    const rv_signal y = output_of(loss, pass);
    const int32_t *length = pass->batch->length;
    if (pass->t0 == 0) {
        TRY(check_targets(loss, pass));
        if (length && device->ops->apart)
            TRY(device->ops->copy(device->ctx, pass->queue, loss->length, false, length + pass->row,
                                  true, sizeof *length * (size_t)pass->B));
    }
    TRY(device->ops->readout_fold(device->ctx, pass->queue, loss->desc->readout, &y,
                                  span_of(loss, pass), loss->course));
    TRY(judge_steps(loss, pass));
out:
    return status;
}

/* ---- the end of a micro-batch ------------------------------------------------------------ */
/* PyTorch divides by the weights of the batch; a micro-batch does not know those of the others,
 * so class weights scale here the mean over samples. */
static double sample_weight(const rv_loss *loss, int label, int batch_size) {
    const rv_reals *weights = &loss->desc->class_weights;
    double weight = label < 0             ? 1
                    : weights->count > 1  ? weights->data[label]
                    : weights->count == 1 ? weights->value
                                          : 1;
    return weight / batch_size;
}

/* The only place where a readout becomes numbers per class; accuracy and loss see the same. */
static void logits_of(rv_loss *loss, int b, int length) {
    int population = loss->desc->population;
    const rv_course *course = loss->course + (size_t)b * (size_t)loss->n;
    for (int c = 0; c < loss->classes; c++) {
        loss->logit[c] = 0;
        for (int p = 0; p < population; p++)
            loss->logit[c] += loss->readout->result(&course[c * population + p], length);
        loss->logits[(size_t)b * (size_t)loss->classes + (size_t)c] = (float)loss->logit[c];
    }
}

/* Spread the slope of the logits over the outputs that make them. */
static void gradient_row(const rv_loss *loss, int b, int length, double weight, float *g) {
    const rv_course *course = loss->course + (size_t)b * (size_t)loss->n;
    for (int j = 0; j < loss->n; j++) {
        double slope = loss->slope[j / loss->desc->population];
        g[j] = (float)(weight * slope * loss->readout->slope(&course[j], length));
    }
}

/* Samples ascending, each with its final weight, in double: the sum over micro-batches is the
 * mean over the batch however it is cut. */
rv_status rv_loss_finish(rv_loss *loss, const rv_pass *pass, int batch_size, rv_loss_result *out,
                         int32_t *predictions) {
    rv_status status = RV_OK;
    *out = (rv_loss_result){0, 0};
    TRY(rv_pass_sync(pass)); /* for the records */
    for (int b = 0; b < pass->B; b++) {
        int label = loss->desc->classes ? pass->batch->label[pass->row + b] : -1;
        int length = length_of(loss, pass, b), best = 0;
        logits_of(loss, b, length);
        for (int c = 1; c < loss->classes; c++)
            if (loss->logit[c] > loss->logit[best]) best = c;
        if (predictions) predictions[b] = best;
        out->correct += best == label;
        loss->weight[b] = sample_weight(loss, label, batch_size);
        /* Its steps were judged as they passed; slopes are made again in rv_loss_adjoint. */
        if (loss->readout->spread == RV_SPREAD_EACH) {
            out->loss += loss->weight[b] * loss->judged[b];
            continue;
        }
        out->loss += loss->weight[b] * judge(loss, pass, 0, b);
        gradient_row(loss, b, length, loss->weight[b],
                     loss->gradient + (size_t)b * (size_t)loss->ld);
    }
    if (pass->training)
        out->loss += rv_tape_penalty(pass->tape, pass->first, pass->last, pass->penalty);
out:
    return status;
}

/* ---- adjoint ----------------------------------------------------------------------------- */
/* Whether some sample of the micro-batch is over before the chunk is. */
static bool ends_within(const rv_loss *loss, const rv_pass *pass) {
    for (int b = 0; b < pass->B; b++)
        if (length_of(loss, pass, b) < pass->t1) return true;
    return false;
}

/* Every step is judged again, by the host. */
static rv_status adjoint_steps(rv_loss *loss, const rv_pass *pass, rv_values g) {
    rv_status status = RV_OK;
    TRY(rv_pass_sync(pass)); /* ops may still use what lay in g */
    memset(g.data, 0, sizeof *g.data * (size_t)g.T * g.stride_t);
    for (int t = 0; t < g.T; t++)
        for (int b = 0; b < g.B; b++) {
            float *row = g.data + (size_t)t * g.stride_t + (size_t)b * (size_t)g.ld;
            int length = length_of(loss, pass, b);
            if (pass->t0 + t >= length) continue;
            judge_step(loss, pass, pass->t0 + t, b, row_at(loss, pass, t, b));
            gradient_row(loss, b, length, loss->weight[b], row);
        }
out:
    return status;
}

/* A sum over time has one adjoint for all steps: then one frame with stride 0 is all, as the ops
 * allow it. Otherwise rows are written step by step into scratch. */
rv_status rv_loss_adjoint(rv_loss *loss, rv_pass *pass) {
    rv_status status = RV_OK;
    const rv_device *device = loss->device;
    const rv_spread spread = loss->readout->spread;
    rv_values g = rv_values_of(loss->gradient, pass->t1 - pass->t0, pass->B, loss->n);
    pass->gs = pass->gv = pass->gh = (rv_values){0};
    if (spread == RV_SPREAD_ALL && !ends_within(loss, pass)) {
        g.stride_t = 0;
    } else {
        TRY(rv_arena_get(pass->arena, (size_t)g.T * g.stride_t, sizeof(float), &g.data));
        if (spread == RV_SPREAD_EACH)
            TRY(adjoint_steps(loss, pass, g));
        else
            TRY(device->ops->readout_spread(device->ctx, pass->queue, loss->course,
                                            spread == RV_SPREAD_ONE, loss->gradient,
                                            span_of(loss, pass), g));
    }
    if (reads_membrane(loss))
        pass->gh = g;
    else
        pass->gs = g;
out:
    return status;
}
