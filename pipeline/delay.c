/*
 * The published rules for delayed gradients: one function and one row each. Formulas and their
 * sources: tests/golden/README_schedules.md, section 1. A row fills or changes the constants of a
 * stage; the order of corrections in the table is the order in which they are applied.
 */
#include "pipeline/delay.h"

#include <math.h>
#include <string.h>

#include "pipeline/schedule.h"

static int ceil_div(int a, int b) { /* a >= 0, b > 0 */
    return (a + b - 1) / b;
}

/* ---- modes ------------------------------------------------------------------------------ */

static int delay_two_ways(const rv_delay_shape *shape) {
    return rv_delay_two_streams(shape->stages, shape->chunks, shape->stage);
}

static int delay_in_turn(const rv_delay_shape *shape) {
    return rv_delay_1f1b(shape->stages, shape->chunks, shape->stage, 0);
}

static int delay_one(const rv_delay_shape *shape) {
    (void)shape;
    return 1;
}

/* Whole batches that are under way below. */
static int delay_xpipe(const rv_delay_shape *shape) {
    return ceil_div(shape->chunks - 1 + shape->stages - 1 - shape->stage,
                    shape->chunks * shape->micros);
}

/* Chunks by which a stage may be ahead of the next, the same for all: as many as slots take up,
 * AHEAD at most. Two, one on its way down and one on its way up, keep stages busy whose items all
 * take equally long, one where they take turns; but no two items do. More is held up by versions:
 * forward of an update waits for the one `delay` before to be made, so whoever is ahead by more
 * than that runs in bursts, between which others run empty; half an update, shared by the stages
 * below, does no harm. By simulation of equal stages, two to eight with one to nine chunks: none
 * has a gap; two of pb with eight chunks whose items scatter by 0.23, as on a shared machine, are
 * busy 0.952 with two slots, 0.978 with three, 0.985 with four and 0.991 with eight. On bench_pipe
 * there, where items are slow for a while: 0.949 and 0.964 with two, 0.967 and 0.979 with four. */
static int gap_of(const rv_delay_shape *shape, int group,
                  int (*delay)(const rv_delay_shape *shape)) {
    enum { AHEAD = 8 };
    const int update = group * shape->chunks;
    int gap = shape->slots > 0 && shape->slots < AHEAD ? shape->slots : AHEAD;
    rv_delay_shape at = *shape;
    for (at.stage = 0; at.stage + 1 < shape->stages; at.stage++) {
        const int below = shape->stages - 1 - at.stage;
        const int most = delay(&at) * update + (update - 1) / (2 * below) - (shape->chunks - 1);
        if (most < gap * below) gap = most / below;
    }
    return gap > 1 ? gap : 1;
}

/* How far forward may be ahead of backward: a whole sequence, and the gaps below. No bit depends on
 * it. */
static void fill_evenly(const rv_delay_shape *shape, int group,
                        int (*delay)(const rv_delay_shape *shape), rv_delay_rule *rule) {
    const int below = shape->stages - 1 - shape->stage;
    rule->delay = delay(shape);
    rule->lead = shape->chunks - 1 + gap_of(shape, group, delay) * below;
}

/* Forward of one sample and backward of another at once: both pass a stage at every tick, so what
 * comes back has been on its way down and up again. */
static void fill_two_ways(const rv_delay_shape *shape, rv_delay_rule *rule) {
    fill_evenly(shape, 1, delay_two_ways, rule);
}

static void fill_in_turn(const rv_delay_shape *shape, rv_delay_rule *rule) {
    fill_evenly(shape, 1, delay_in_turn, rule);
}

static void fill_2bw(const rv_delay_shape *shape, rv_delay_rule *rule) {
    fill_evenly(shape, shape->micros, delay_one, rule);
}

/* Workers choose what is ready, so that nothing is gained by more than the chunks on their way. */
static void fill_blocks(const rv_delay_shape *shape, rv_delay_rule *rule) {
    rule->delay = delay_two_ways(shape);
    rule->lead = shape->chunks - 1 + 2 * (shape->stages - 1 - shape->stage);
}

/* The first micro-batch of a batch finds the weights of as many updates ago as whole batches are
 * under way below; both passes look ahead to where the optimiser will have gone by then. round()
 * takes halves away from zero, as the method wants it. */
static void fill_xpipe(const rv_delay_shape *shape, rv_delay_rule *rule) {
    double T = shape->micros, s = shape->stage;
    fill_evenly(shape, shape->micros, delay_xpipe, rule);
    rule->looks_forward = rule->looks_backward = true;
    rule->forward = rule->backward = RV_LOOK_RATE;
    rule->forward_horizon = round((shape->stages + T - s / 2 - 2) / T);
    rule->backward_horizon = round((T + floor(s / 2) - 1) / T);
}

#define MODE(name_, sentence_, source_)                                                            \
    .row = {.name = name_, .sentence = sentence_, .source = source_}, .with = RV_WITH_ANY
static const rv_delay_mode modes[] = {
    {MODE("pb",
          "an update every micro-batch, forward under weights 2(S-1-s) updates old, backward "
          "under the newest",
          "Kosson et al. 2021 (pipelined backpropagation)"),
     .fill = fill_two_ways},
    {MODE("stale", "as pb in 1f1b order: S-1-s updates old", "Zhang, Abdelrahman 2021"),
     .fill = fill_in_turn},
    {MODE("pipedream", "as stale, but backward under the weights of its forward",
          "Narayanan et al. 2019 (PipeDream)"),
     .decides = RV_DECIDES_BACKWARD, .stash = true, .fill = fill_in_turn},
    {MODE("ddg", "decoupled modules as published: pipedream", "Huo et al. 2018 (DDG)"),
     .decides = RV_DECIDES_BACKWARD, .stash = true, .fill = fill_in_turn},
    {MODE("ddg_code", "decoupled modules as in their released code: stale",
          "Huo et al. 2018 (DDG), slowbull/DDG"),
     .fill = fill_in_turn},
    {MODE("2bw", "an update every batch, both passes one update old, two versions at any depth",
          "Narayanan et al. 2021 (PipeDream-2BW)"),
     .decides = RV_DECIDES_BACKWARD, .stash = true, .batch = true, .fill = fill_2bw},
    {.row = {.name = "xpipe",
             .sentence = "an update every batch, both passes under predicted weights (adam)",
             .source = "Guan et al. 2019 (XPipe)"},
     .decides = RV_DECIDES_FORWARD | RV_DECIDES_BACKWARD | RV_DECIDES_GRADIENT,
     .with = RV_WITH_ADAM,
     .batch = true,
     .fill = fill_xpipe},
    {MODE("spikepipe",
          "pb with every block of the network as a stage; pipeline.stages workers share out what "
          "is to be done, the longest remaining path first",
          "Sanjeet et al. 2024 (SpikePipe)"),
     .blocks = true, .fill = fill_blocks},
};
#undef MODE

/* ---- corrections ------------------------------------------------------------------------ */

static void apply_stash(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape, (void)value;
    rule->stash = true;
}

static void apply_gc(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape, (void)value;
    rule->late = rule->delay;
}

static void look_ahead(rv_delay_rule *rule, rv_look look, double horizon) {
    rule->looks_forward = horizon > 0;
    rule->forward = look;
    rule->forward_horizon = horizon;
}

static void look_back(rv_delay_rule *rule, rv_look look, double horizon) {
    rule->looks_backward = horizon > 0;
    rule->backward = look;
    rule->backward_horizon = horizon;
}

static void apply_lwp_v(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape;
    look_ahead(rule, RV_LOOK_RATE, fmin(rule->delay, value));
}

static void apply_lwp_w(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape;
    look_ahead(rule, RV_LOOK_STEP, fmin(rule->delay, value));
}

static void apply_msnag(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape;
    look_ahead(rule, RV_LOOK_MOMENTUM, fmin(rule->delay, value));
}

/* Both passes aim at one moment, so the last stages, without delay, look ahead as well. */
static void apply_spectrain(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    int half = shape->stage / 2;
    (void)value;
    look_ahead(rule, RV_LOOK_RATE, rule->delay + half);
    look_back(rule, RV_LOOK_RATE, half);
}

static void apply_t1(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape;
    if (rule->delay == 0) return;
    rule->slow = rule->delay + 1.0;
    rule->slow_steps = value;
}

static void apply_t2(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape;
    if (rule->delay == 0) return;
    rule->trend = true;
    rule->keep = pow(value, 1.0 / rule->delay);
    look_back(rule, RV_LOOK_TREND, rule->delay);
}

static void apply_ema(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape, (void)value;
    if (rule->delay == 0) return;
    rule->trend = rule->age = true;
    rule->keep = 1 - 1.0 / rule->delay;
    look_back(rule, RV_LOOK_TREND, rule->delay);
}

static void apply_t3(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape;
    rule->from = (int64_t)value;
}

/* Of the optimiser, which has no stages: rv_delay_train. */
static void apply_scale(const rv_delay_shape *shape, double value, rv_delay_rule *rule) {
    (void)shape, (void)value, (void)rule;
}

enum { STEPS_MOST = 1 << 30 };
#define ROW(name_, sentence_, source_)                                                             \
    .row = {.name = name_, .sentence = sentence_, .source = source_}
static const rv_correction corrections[] = {
    {ROW("stash", "backward under the weights of its forward", "Harlap et al. 2018"),
     .decides = RV_DECIDES_BACKWARD, .with = RV_WITH_ANY, .apply = apply_stash},
    {ROW("gc", "a late gradient at once moves the weights by all it would have moved them by now",
         "Kosson et al. 2021 (spike compensation)"),
     .decides = RV_DECIDES_GRADIENT, .with = RV_WITH_SGD, .apply = apply_gc},
    {ROW("lwp_v", "forward under weights moved on by the velocity, at most `cap` updates",
         "Kosson et al. 2021"),
     .decides = RV_DECIDES_FORWARD, .with = RV_WITH_SGD | RV_WITH_ADAM, .parameter = "cap",
     .initial = STEPS_MOST, .least = 1, .most = STEPS_MOST, .apply = apply_lwp_v},
    {ROW("lwp_w", "forward under weights moved on by the last step, at most `cap` updates",
         "Kosson et al. 2021"),
     .decides = RV_DECIDES_FORWARD, .with = RV_WITH_ANY, .parameter = "cap", .initial = STEPS_MOST,
     .least = 1, .most = STEPS_MOST, .apply = apply_lwp_w},
    {ROW("msnag", "forward under weights moved on by what momentum alone will do",
         "Elichai et al. 2021 (FTPipe)"),
     .decides = RV_DECIDES_FORWARD, .with = RV_WITH_SGD | RV_WITH_ADAM, .parameter = "cap",
     .initial = STEPS_MOST, .least = 1, .most = STEPS_MOST, .apply = apply_msnag},
    {ROW("spectrain", "both passes under weights predicted for one moment by the velocity",
         "Chen et al. 2018 (SpecTrain)"),
     .decides = RV_DECIDES_FORWARD | RV_DECIDES_BACKWARD, .with = RV_WITH_SGD,
     .apply = apply_spectrain},
    {ROW("t1", "rates start smaller by the delay and reach their own after `steps` updates",
         "Yang et al. 2021 (PipeMare)"),
     .decides = RV_DECIDES_RATE, .with = RV_WITH_ANY, .parameter = "steps", .initial = 1000,
     .least = 1, .most = STEPS_MOST, .apply = apply_t1},
    {ROW("t2", "backward under weights moved back by a moving mean of steps",
         "Yang et al. 2021 (PipeMare)"),
     .decides = RV_DECIDES_BACKWARD, .with = RV_WITH_ANY, .parameter = "decay", .initial = 0.135,
     .least = 1e-6, .most = 0.999999, .apply = apply_t2},
    {ROW("ema", "as t2 by the true age, the mean corrected for its start",
         "Unnikrishnan, Parhi 2025 (LayerPipe2)"),
     .decides = RV_DECIDES_BACKWARD, .with = RV_WITH_ANY, .apply = apply_ema},
    {ROW("t3", "a synchronous start of `steps` updates", "Yang et al. 2021 (PipeMare)"),
     .decides = RV_DECIDES_START, .with = RV_WITH_ANY, .parameter = "steps", .initial = 100,
     .least = 1, .most = STEPS_MOST, .apply = apply_t3},
    {ROW("scale", "rate and momentum are those of a reference batch of `batch` samples",
         "Kosson et al. 2021; Chiley et al. 2019"),
     .decides = RV_DECIDES_SCALE, .with = RV_WITH_SGD, .parameter = "batch", .initial = 128,
     .least = 1, .most = STEPS_MOST, .synchronous = true, .apply = apply_scale},
};
#undef ROW
enum { CORRECTIONS = sizeof corrections / sizeof *corrections };
_Static_assert((int)CORRECTIONS <= (int)RV_CORRECTIONS_MOST, "room for all corrections");

const rv_table *rv_delay_table(void) {
    static const rv_table table = {"delayed_schedules", modes, sizeof *modes,
                                   sizeof modes / sizeof *modes};
    return &table;
}

const rv_table *rv_correction_table(void) {
    static const rv_table table = {"corrections", corrections, sizeof *corrections, CORRECTIONS};
    return &table;
}

/* ---- descriptions ----------------------------------------------------------------------- */

rv_status rv_delay_add(rv_delay_desc *desc, const char *name, const char *parameter, double value) {
    const rv_row *row = rv_table_find(rv_correction_table(), name);
    if (!row) return rv_fail(RV_CONFIG, "there is no correction \"%.60s\"", name);
    int k = rv_table_index(rv_correction_table(), row);
    const rv_correction *c = &corrections[k];
    if (parameter && (!c->parameter || strcmp(parameter, c->parameter) != 0))
        return rv_fail(RV_CONFIG, "correction %s has no parameter \"%.60s\"%s%s", name, parameter,
                       c->parameter ? ", but " : "", c->parameter ? c->parameter : "");
    if (desc->on[k]) return rv_fail(RV_CONFIG, "correction %s is there twice", name);
    bool whole = c->least >= 1;
    if (parameter && !(value >= c->least && value <= c->most && (!whole || value == floor(value))))
        return rv_fail(RV_CONFIG,
                       "correction %s: %s must be a %snumber from %.10g to %.10g, found %.10g",
                       name, parameter, whole ? "whole " : "", c->least, c->most, value);
    desc->on[k] = true;
    desc->value[k] = parameter ? value : c->initial;
    return RV_OK;
}

bool rv_delay_on(const rv_delay_desc *desc, const char *correction, double *value) {
    const rv_row *row = rv_table_find(rv_correction_table(), correction);
    int k = row ? rv_table_index(rv_correction_table(), row) : 0;
    if (!row || !desc->on[k]) return false;
    if (value) *value = desc->value[k];
    return true;
}

static rv_status with_check(const char *what, int with, const char *optimizer, bool plain) {
    bool sgd = strcmp(optimizer, "sgd") == 0, adam = strncmp(optimizer, "adam", 4) == 0;
    if (with == RV_WITH_ANY) return RV_OK;
    if (!(sgd && with & RV_WITH_SGD) && !(adam && with & RV_WITH_ADAM))
        return rv_fail(RV_CONFIG, "%s has no form for the optimiser %s", what, optimizer);
    if (sgd && !plain)
        return rv_fail(RV_CONFIG, "%s has no form for sgd with nesterov or dampening", what);
    return RV_OK;
}

/* Every pair that decides of one thing is refused; the later one is named first, as it is the one
 * to leave out. */
rv_status rv_delay_check(const rv_delay_desc *desc, const rv_train_desc *train) {
    rv_status status = RV_OK;
    const rv_delay_mode *mode = desc->mode;
    bool plain;
    double from = 0;
    const char *optimizer = rv_optimizer_name(train, &plain);
    if (mode) TRY(with_check(mode->row.name, mode->with, optimizer, plain));
    for (int k = 0; k < CORRECTIONS; k++) {
        const rv_correction *c = &corrections[k];
        if (!desc->on[k]) continue;
        TRY(with_check(c->row.name, c->with, optimizer, plain));
        if (!mode && !c->synchronous)
            FAIL(RV_CONFIG, "correction %s corrects a delay, and a synchronous schedule has none",
                 c->row.name);
        if (mode && mode->decides & c->decides)
            FAIL(RV_CONFIG, "correction %s cannot go with %s: both decide of one thing",
                 c->row.name, mode->row.name);
        for (int j = 0; j < k; j++)
            if (desc->on[j] && corrections[j].decides & c->decides)
                FAIL(RV_CONFIG,
                     "corrections %s and %s cannot go together: both decide of one thing",
                     c->row.name, corrections[j].row.name);
    }
    if (desc->until && !mode)
        FAIL(RV_CONFIG, "pipeline.async_until ends a delayed schedule, this one is synchronous");
    if (desc->until && rv_delay_on(desc, "t3", &from) && (int64_t)from >= desc->until)
        FAIL(RV_CONFIG, "correction t3 starts after pipeline.async_until has ended the delay");
    if (mode && train->clip_norm > 0)
        FAIL(RV_CONFIG,
             "train.clip_norm needs all gradients of an update at once, which %s has not",
             mode->row.name);
out:
    return status;
}

/* An update has the samples of a batch, or of a micro-batch where each makes one. */
void rv_delay_train(const rv_delay_desc *desc, rv_train_desc *train) {
    bool parts = desc->mode && !desc->mode->batch;
    double reference, samples = (double)train->batch / (parts ? train->micro_batches : 1);
    train->velocity = rv_delay_on(desc, "lwp_v", NULL) || rv_delay_on(desc, "msnag", NULL) ||
                      rv_delay_on(desc, "spectrain", NULL);
    train->share = rv_delay_on(desc, "scale", &reference) ? samples / reference : 0;
}

rv_delay_rule rv_delay_rule_of(const rv_delay_desc *desc, const rv_delay_shape *shape) {
    rv_delay_rule rule = {.until = desc->until ? desc->until : INT64_MAX};
    if (!desc->mode) return (rv_delay_rule){.from = INT64_MAX, .until = INT64_MAX};
    rule.stash = desc->mode->stash;
    rule.split = desc->mode->blocks;
    desc->mode->fill(shape, &rule);
    for (int k = 0; k < CORRECTIONS; k++)
        if (desc->on[k]) corrections[k].apply(shape, desc->value[k], &rule);
    return rule;
}

/* ---- by number -------------------------------------------------------------------------- */

static bool asynchronous(const rv_delay_rule *rule, int64_t u) {
    return u >= rule->from && u < rule->until;
}

int64_t rv_delay_forward(const rv_delay_rule *rule, int64_t u) {
    if (!asynchronous(rule, u)) return u;
    return u - rule->delay > rule->from ? u - rule->delay : rule->from;
}

/* Views are those of version u+1, which this update makes. */
void rv_delay_late(const rv_delay_rule *rule, int64_t u, rv_late *late) {
    int64_t j = u + 1;
    bool now = asynchronous(rule, u), then = asynchronous(rule, j);
    double power = 1 - fmin((double)(u - rule->from) / rule->slow_steps, 1);
    double age = (double)(j - rv_delay_forward(rule, j));
    *late = (rv_late){
        .delay = now ? rule->late : 0,
        .slow = now && rule->slow > 0 ? pow(rule->slow, power) : 1,
        .keep = rule->keep,
        .forward = {rule->forward, then ? rule->forward_horizon : 0, NULL},
        .backward = {rule->backward, then ? rule->backward_horizon : 0, NULL},
    };
    if (rule->age && age > 0)
        late->backward.horizon = age / (1 - pow(rule->keep, (double)j));
    else if (rule->age)
        late->backward.horizon = 0;
}
