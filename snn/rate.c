/*
 * Rate schedules: the rate of update `step` of `total`, as PyTorch's schedulers give it (a
 * scheduler stepped once after every update). Steps count from 0.
 */
#include <math.h>

#include "snn/rate.h"

static const double pi = 3.14159265358979323846;

typedef struct schedule_options {
    int warmup, every, anneal, patience;
    double warmup_start, min, factor, start, end, rise, div_factor, final_div_factor;
    double base_momentum, max_momentum, threshold;
    rv_reals at, factors;
} schedule_options;

typedef struct schedule_row {
    rv_row head;
    bool listens; /* to validation losses */
    /* The rate; *momentum is set where the schedule moves it (and it is not NULL). */
    double (*rate)(const schedule_options *o, double lr, double step, double total,
                   double *momentum);
} schedule_row;

/* ---- rows -------------------------------------------------------------------------------- */
/* Also the row of plateau, whose falls are remembered by the optimiser. */
static double constant_rate(const schedule_options *o, double lr, double step, double total,
                            double *momentum) {
    (void)o, (void)step, (void)total, (void)momentum;
    return lr;
}

/* min + (lr - min) (1 + cos(pi step/total))/2; beyond total it rises again, as PyTorch's does. */
static double cosine_rate(const schedule_options *o, double lr, double step, double total,
                          double *momentum) {
    (void)momentum;
    return o->min + (lr - o->min) * (1 + cos(pi * step / total)) / 2;
}

/* lr factor^floor(step/every), whatever the horizon. */
static double step_rate(const schedule_options *o, double lr, double step, double total,
                        double *momentum) {
    (void)total, (void)momentum;
    return lr * pow(o->factor, floor(step / o->every));
}

static double real_at(const rv_reals *reals, int k) {
    return (double)(reals->count > 1 ? reals->data[k] : reals->value);
}

/* lr times the factor of the last turning point that has come. */
static double piecewise_rate(const schedule_options *o, double lr, double step, double total,
                             double *momentum) {
    (void)total, (void)momentum;
    double factor = 1;
    for (int k = 0; k < o->at.count && k < o->factors.count; k++)
        if (step >= real_at(&o->at, k)) factor = real_at(&o->factors, k);
    return lr * factor;
}

/* A straight line from start to end, in shares of lr; then it stays. */
static double linear_rate(const schedule_options *o, double lr, double step, double total,
                          double *momentum) {
    (void)momentum;
    return lr * (o->start + (o->end - o->start) * fmin(step / total, 1));
}

/* Between two turning points; share runs from 0 to 1. */
static double anneal(const schedule_options *o, double from, double to, double share) {
    if (o->anneal) return from + (to - from) * share; /* linear */
    return to + (from - to) / 2 * (1 + cos(pi * share));
}

/* Up to lr over the first share of the updates, then far below where it began; momentum moves the
 * other way. */
static double one_cycle_rate(const schedule_options *o, double lr, double step, double total,
                             double *momentum) {
    double top = o->rise * total - 1, last = total - 1;
    double first = lr / o->div_factor, end = first / o->final_div_factor;
    bool up = step <= top;
    double share = up ? (top > 0 ? step / top : 1) : fmin((step - top) / (last - top), 1);
    double high = o->max_momentum, low = o->base_momentum;
    if (momentum) *momentum = up ? anneal(o, high, low, share) : anneal(o, low, high, share);
    return up ? anneal(o, first, lr, share) : anneal(o, lr, end, share);
}

/* ---- table ------------------------------------------------------------------------------- */
#define REAL(name, field, initial, least, most, open, sentence)                                    \
    {                                                                                              \
        name, RV_T_REAL, offsetof(schedule_options, field), initial, least, most, open, NULL,      \
            NULL, sentence                                                                         \
    }
#define INT(name, field, initial, least, sentence)                                                 \
    {                                                                                              \
        name, RV_T_INT, offsetof(schedule_options, field), initial, least, 1 << 30, false, NULL,   \
            NULL, sentence                                                                         \
    }
#define WARMUP                                                                                     \
    INT("warmup", warmup, 0, 0, "updates of a linear rise before the schedule, within total"),     \
        REAL("warmup_start", warmup_start, 0.1, 0, 1, false, "share of the rate at its begin")
#define MIN REAL("min", min, 0, 0, 1e6, false, "smallest rate")

static const rv_spec constant_specs[] = {WARMUP, {0}};
static const rv_spec cosine_specs[] = {MIN, WARMUP, {0}};
static const rv_spec step_specs[] = {
    INT("every", every, 1000, 1, "updates between two falls"),
    REAL("factor", factor, 0.1, 0, 1, true, "of the rate at each fall"),
    WARMUP,
    {0},
};
static const rv_spec piecewise_specs[] = {
    {"at", RV_T_REALS, offsetof(schedule_options, at), INFINITY, 0, INFINITY, false, NULL, NULL,
     "updates from which the factors hold, ascending"},
    {"factors", RV_T_REALS, offsetof(schedule_options, factors), 1, 0, 1e6, false, NULL, NULL,
     "of the rate, one for each"},
    WARMUP,
    {0},
};
static const rv_spec linear_specs[] = {
    REAL("start", start, 1, 0, 1e6, false, "share of the rate at the first update"),
    REAL("end", end, 0, 0, 1e6, false, "share of the rate at the last update"),
    WARMUP,
    {0},
};
static const rv_spec one_cycle_specs[] = {
    REAL("rise", rise, 0.3, 0, 1, true, "share of the updates until the rate is reached"),
    REAL("div_factor", div_factor, 25, 0, 1e12, true, "rate over the rate at the begin"),
    REAL("final_div_factor", final_div_factor, 1e4, 0, 1e12, true,
         "rate at the begin over that at the end"),
    {"anneal", RV_T_CHOICE, offsetof(schedule_options, anneal), 0, 0, 0, false, "cos|linear", NULL,
     "course between the turning points"},
    REAL("base_momentum", base_momentum, 0.85, 0, 1, false, "momentum (beta1) at the top"),
    REAL("max_momentum", max_momentum, 0.95, 0, 1, false, "momentum (beta1) at begin and end"),
    {0},
};
static const rv_spec plateau_specs[] = {
    REAL("factor", factor, 0.1, 0, 1, true, "of the rate when the validation loss stays"),
    INT("patience", patience, 10, 0, "epochs without a better loss that are borne"),
    REAL("threshold", threshold, 1e-4, 0, 1, false, "share by which a better loss is better"),
    MIN,
    WARMUP,
    {0},
};

static const schedule_row rows[] = {
    {{"constant", "the rate stays", "PyTorch ConstantLR", constant_specs, sizeof(schedule_options)},
     false,
     constant_rate},
    {{"cosine", "half a cosine from the rate to min over all updates",
      "Loshchilov, Hutter 2017; PyTorch CosineAnnealingLR", cosine_specs, sizeof(schedule_options)},
     false,
     cosine_rate},
    {{"step", "the rate falls by a factor every so many updates", "PyTorch StepLR", step_specs,
      sizeof(schedule_options)},
     false,
     step_rate},
    {{"piecewise", "the rate times a factor from each of some updates on", "PyTorch MultiStepLR",
      piecewise_specs, sizeof(schedule_options)},
     false,
     piecewise_rate},
    {{"linear", "a straight line over all updates", "PyTorch LinearLR", linear_specs,
      sizeof(schedule_options)},
     false,
     linear_rate},
    {{"one_cycle", "up to the rate and down again, momentum the other way",
      "Smith, Topin 2017; PyTorch OneCycleLR", one_cycle_specs, sizeof(schedule_options)},
     false,
     one_cycle_rate},
    {{"plateau", "the rate falls when the validation loss stays", "PyTorch ReduceLROnPlateau",
      plateau_specs, sizeof(schedule_options)},
     true,
     constant_rate},
};

const rv_table *rv_schedule_table(void) {
    static const rv_table table = {"schedules", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

/* A recipe without lr_schedule keeps its rate. */
static const schedule_row *row_of(const rv_choice *schedule) {
    return schedule->row ? (const schedule_row *)(const void *)schedule->row : &rows[0];
}

/* Options may be missing where a row was named without any. */
static schedule_options options_of(const rv_choice *schedule) {
    schedule_options options = {0};
    if (schedule->row && schedule->options) return *(const schedule_options *)schedule->options;
    rv_specs_default(row_of(schedule)->head.specs, &options);
    return options;
}

/* A function of the update's number alone: resuming needs no state, and every stage of a
 * pipeline finds the same rate. */
rv_status rv_schedule_rate(const rv_choice *schedule, double lr, int64_t step, int64_t total,
                           double *rate, double *momentum) {
    const schedule_options o = options_of(schedule);
    double rest = fmax((double)(total - o.warmup), 1); /* a warm-up may be all there is */
    if (total < 1) return rv_fail(RV_CONFIG, "a rate schedule over %lld updates", (long long)total);
    if (step < o.warmup)
        *rate = lr * (o.warmup_start + (1 - o.warmup_start) * (double)step / o.warmup);
    else
        *rate = row_of(schedule)->rate(&o, lr, (double)(step - o.warmup), rest, momentum);
    return RV_OK;
}

/* ---- plateaus ---------------------------------------------------------------------------- */
void rv_plateau_epoch(const rv_choice *schedule, rv_plateau *plateau, double loss) {
    const schedule_options o = options_of(schedule);
    if (!row_of(schedule)->listens) return;
    if (loss < plateau->best * (1 - o.threshold)) {
        plateau->best = loss;
        plateau->bad = 0;
    } else if (++plateau->bad > o.patience) {
        plateau->scale *= o.factor;
        plateau->bad = 0;
    }
}

/* Applied after the schedule proper, so that a warm-up is scaled as well. */
double rv_plateau_rate(const rv_choice *schedule, const rv_plateau *plateau, double rate) {
    if (!row_of(schedule)->listens) return rate;
    return fmax(rate * plateau->scale, options_of(schedule).min);
}
