/* Rate schedules: the rate of update `step` of `total`, as PyTorch's schedulers give it. */
#include <math.h>

#include "snn/layer.h"

typedef struct schedule_options {
    double min;
} schedule_options;

typedef struct schedule_row {
    rv_row head;
    double (*rate)(const schedule_options *options, double lr, double step, double total);
} schedule_row;

static double constant_rate(const schedule_options *options, double lr, double step, double total) {
    (void)options, (void)step, (void)total;
    return lr;
}

static double cosine_rate(const schedule_options *options, double lr, double step, double total) {
    return options->min +
           (lr - options->min) * (1 + cos(3.14159265358979323846 * step / total)) / 2;
}

static const rv_spec no_specs[] = {{0}};
static const rv_spec cosine_specs[] = {
    {"min", RV_T_REAL, offsetof(schedule_options, min), 0, 0, 1e6, false, NULL, NULL,
     "rate at the end"},
    {0},
};

static const schedule_row rows[] = {
    {{"constant", "the rate stays", "PyTorch ConstantLR", no_specs, sizeof(schedule_options)},
     constant_rate},
    {{"cosine", "half a cosine from the rate to min over all updates",
      "Loshchilov, Hutter 2017; PyTorch CosineAnnealingLR", cosine_specs, sizeof(schedule_options)},
     cosine_rate},
};

const rv_table *rv_schedule_table(void) {
    static const rv_table table = {"schedules", rows, sizeof *rows, sizeof rows / sizeof *rows};
    return &table;
}

rv_status rv_schedule_rate(const rv_choice *schedule, double lr, int64_t step, int64_t total,
                           double *rate, double *momentum) {
    const schedule_row *row =
        schedule->row ? (const schedule_row *)(const void *)schedule->row : &rows[0];
    schedule_options defaults = {0};
    const schedule_options *options = schedule->options;
    (void)momentum;
    if (!schedule->row || !options) {
        rv_specs_default(row->head.specs, &defaults);
        options = &defaults;
    }
    if (total < 1) return rv_fail(RV_CONFIG, "a rate schedule over %lld updates", (long long)total);
    *rate = row->rate(options, lr, (double)step, (double)total);
    return RV_OK;
}

void rv_optimizer_epoch(rv_optimizer *optimizer, double validation_loss) {
    (void)optimizer, (void)validation_loss; /* no row listens yet */
}
