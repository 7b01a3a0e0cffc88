/*
 * Optimisers: a table of names, defaults and slots; the arithmetic of a tensor is the device's.
 *
 * What differs between tensors (group, limit) is settled once, as runs of neighbouring tensors
 * with equal rules; an update is one call a run. Slots are blocks of n_trained floats laid out as
 * the gradient is, which is how files and all-reduce find a tensor's part.
 */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "snn/rate.h"

/* ---- optimisers -------------------------------------------------------------------------- */
typedef struct optimizer_options {
    double lr, weight_decay, momentum, dampening, beta1, beta2, epsilon, alpha;
    bool nesterov, centered;
} optimizer_options;

enum { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW, OPTIM_RMSPROP }; /* rows of the table */
enum { SLOTS = 3 };
typedef struct optimizer_row { /* index = kind of rv_optim_update */
    rv_row head;
    const char *slot[SLOTS];
    bool decoupled; /* weight decay outside the gradient */
} optimizer_row;

#define REAL(field, initial, least, most, sentence)                                                \
    {                                                                                              \
#field, RV_T_REAL, offsetof(optimizer_options, field), initial, least, most, false, NULL,  \
            NULL, sentence                                                                         \
    }
#define FLAG(field, sentence)                                                                      \
    { #field, RV_T_BOOL, offsetof(optimizer_options, field), 0, 0, 1, false, NULL, NULL, sentence }
#define LR(initial) REAL(lr, initial, 0, 1e6, "learning rate")
#define DECAY(initial) REAL(weight_decay, initial, 0, 1e6, "weight decay")

static const rv_spec sgd_specs[] = {
    LR(0.01),
    REAL(momentum, 0, 0, 1, "share of the last direction that is kept"),
    REAL(dampening, 0, 0, 1, "share of the gradient left out of the momentum"),
    DECAY(0),
    FLAG(nesterov, "look ahead along the momentum"),
    {0},
};
static const rv_spec adam_specs[] = {
    LR(0.001),
    REAL(beta1, 0.9, 0, 1, "decay of the mean"),
    REAL(beta2, 0.999, 0, 1, "decay of the mean square"),
    REAL(epsilon, 1e-8, 0, 1e6, "added to the root of the mean square"),
    DECAY(0),
    {0},
};
static const rv_spec adamw_specs[] = {
    LR(0.001),
    REAL(beta1, 0.9, 0, 1, "decay of the mean"),
    REAL(beta2, 0.999, 0, 1, "decay of the mean square"),
    REAL(epsilon, 1e-8, 0, 1e6, "added to the root of the mean square"),
    DECAY(0.01),
    {0},
};
static const rv_spec rmsprop_specs[] = {
    LR(0.01),
    REAL(alpha, 0.99, 0, 1, "decay of the mean square"),
    REAL(epsilon, 1e-8, 0, 1e6, "added to the root of the mean square"),
    REAL(momentum, 0, 0, 1, "share of the last direction that is kept"),
    FLAG(centered, "divide by the deviation instead of the root mean square"),
    DECAY(0),
    {0},
};

static const optimizer_row optimizers[] = {
    {{"sgd", "gradient descent, with momentum or Nesterov's momentum", "PyTorch optim.SGD",
      sgd_specs, sizeof(optimizer_options)},
     {"momentum"},
     false},
    {{"adam", "mean over root mean square of the gradient", "Kingma, Ba 2015", adam_specs,
      sizeof(optimizer_options)},
     {"m", "v"},
     false},
    {{"adamw", "adam with weight decay outside the gradient", "Loshchilov, Hutter 2019",
      adamw_specs, sizeof(optimizer_options)},
     {"m", "v"},
     true},
    {{"rmsprop", "gradient over its root mean square", "Tieleman, Hinton 2012; PyTorch",
      rmsprop_specs, sizeof(optimizer_options)},
     {"v", "momentum", "mean"},
     false},
};

const rv_table *rv_optimizer_table(void) {
    static const rv_table table = {"optimizers", optimizers, sizeof *optimizers,
                                   sizeof optimizers / sizeof *optimizers};
    return &table;
}

/* ---- the optimiser ----------------------------------------------------------------------- */
/* Neighbouring tensors with the same rules are updated by one call. */
typedef struct run {
    size_t offset, count;
    double lr, weight_decay;
    rv_limit limit;
    bool back; /* B reads it */
} run;

struct rv_optimizer {
    rv_range range;
    const rv_device *device; /* NULL: slots are host memory */
    const optimizer_row *row;
    const optimizer_options *options;
    const rv_choice *schedule;
    optimizer_options defaults;
    int run_count;
    run *runs;
    int slots;
    float *slot[SLOTS];
    int64_t step, total;
    double share;  /* 0: none */
    uint32_t *bad; /* the last update met or made a value that is not finite */
    rv_plateau plateau;
};

/* Only the slots that the rules write exist: plain descent has none. */
static int slot_count(const optimizer_row *row, const optimizer_options *options, bool velocity) {
    int kind = (int)(row - optimizers), slots = 0;
    while (slots < SLOTS && row->slot[slots])
        slots++;
    if (kind == OPTIM_SGD && options->momentum == 0 && !velocity) slots = 0;
    if (kind == OPTIM_RMSPROP && !options->centered) slots = options->momentum > 0 ? 2 : 1;
    return slots;
}

/* Row and options of a description; `defaults` holds the options it does not give. */
static const optimizer_row *row_of(const rv_train_desc *desc, optimizer_options *defaults,
                                   const optimizer_options **options) {
    const optimizer_row *row = desc->optimizer.row
                                   ? (const optimizer_row *)(const void *)desc->optimizer.row
                                   : &optimizers[OPTIM_ADAM];
    rv_specs_default(row->head.specs, defaults);
    *options = desc->optimizer.row && desc->optimizer.options ? desc->optimizer.options : defaults;
    return row;
}

const char *rv_optimizer_name(const rv_train_desc *desc, bool *plain) {
    optimizer_options defaults;
    const optimizer_options *options;
    const optimizer_row *row = row_of(desc, &defaults, &options);
    *plain = !options->nesterov && options->dampening == 0;
    return row->head.name;
}

int rv_optimizer_slots_of(const rv_train_desc *desc) {
    optimizer_options defaults;
    const optimizer_options *options;
    const optimizer_row *row = row_of(desc, &defaults, &options);
    return slot_count(row, options, desc->velocity);
}

/* The first pattern that matches wins; which ones matched is noted for the check. */
static const rv_group_desc *group_of(const rv_train_desc *desc, const rv_tensor *tensor,
                                     bool *used) {
    for (int g = 0; g < desc->group_count; g++) {
        if (fnmatch(desc->groups[g].pattern, tensor->name, 0) != 0) continue;
        used[g] = true;
        return &desc->groups[g];
    }
    return NULL;
}

/* A limited tensor is updated without its padding, which the limit would lift above 0. */
static run run_of(const rv_optimizer *o, const rv_tensor *tensor, const rv_group_desc *group) {
    const rv_net *net = o->range.net;
    run r = {rv_range_offset(&o->range, tensor),
             tensor->count,
             o->options->lr,
             o->options->weight_decay,
             tensor->limit,
             rv_layer_back(net, &net->layers[tensor->layer])};
    if (tensor->limit != RV_LIMIT_NONE) r.count = rv_tensor_elements(tensor); /* padding stays 0 */
    if (group && !isnan(group->lr)) r.lr = group->lr;
    if (group && !isnan(group->weight_decay)) r.weight_decay = group->weight_decay;
    return r;
}

/* Limits are applied to whole calls, so limited tensors stand alone. */
static bool run_extends(const run *a, const run *b) {
    return a->limit == RV_LIMIT_NONE && b->limit == RV_LIMIT_NONE && a->lr == b->lr &&
           a->weight_decay == b->weight_decay && a->back == b->back &&
           a->offset + a->count == b->offset;
}

/* A pattern that matches nothing is a typing error that would silently train with other rates. */
static rv_status make_runs(rv_optimizer *o, const rv_train_desc *desc) {
    rv_status status = RV_OK;
    const rv_net *net = o->range.net;
    bool *used = NULL, whole = o->range.first == 0 && o->range.last == net->layer_count;
    TRY(rv_alloc((size_t)desc->group_count, sizeof *used, "parameter groups", &used));
    TRY(rv_alloc((size_t)net->tensor_count, sizeof *o->runs, "parameter groups", &o->runs));
    for (int k = 0; k < net->tensor_count && net->tensors[k].trained; k++) {
        const rv_tensor *tensor = &net->tensors[k];
        if (tensor->layer < o->range.first || tensor->layer >= o->range.last) continue;
        run next = run_of(o, tensor, group_of(desc, tensor, used));
        if (o->run_count > 0 && run_extends(&o->runs[o->run_count - 1], &next))
            o->runs[o->run_count - 1].count += next.count;
        else
            o->runs[o->run_count++] = next;
    }
    for (int g = 0; g < desc->group_count && whole; g++) {
        if (!used[g])
            TRY(rv_fail_at(RV_CONFIG, desc->groups[g].where, "train.optimizer.groups", NULL,
                           "parameter group \"%s\" matches no trained tensor (or only tensors of "
                           "earlier groups)",
                           desc->groups[g].pattern));
    }
out:
    rv_free(used);
    return status;
}

/* Where the update will run: it reads and writes slots and flag in place. */
static rv_status memory_get(const rv_optimizer *o, size_t bytes, void *out) {
    if (!o->device) return rv_alloc(bytes, 1, "optimiser state", out);
    return o->device->ops->alloc(o->device->ctx, bytes, "optimiser state", out);
}

static void memory_free(const rv_optimizer *o, void *memory) {
    if (!o->device)
        rv_free(memory);
    else
        o->device->ops->free(o->device->ctx, memory);
}

/* The horizon is checked here, before the first step could fail. */
rv_status rv_optimizer_create_range(const rv_range *range, const rv_device *device,
                                    const rv_train_desc *desc, int64_t total_steps,
                                    rv_optimizer **out) {
    rv_status status = RV_OK;
    rv_optimizer *o = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *o, "optimiser", &o));
    o->range = *range;
    o->device = device;
    o->total = total_steps;
    o->share = desc->share;
    o->plateau = (rv_plateau){1, INFINITY, 0};
    o->schedule = &desc->schedule;
    o->row = row_of(desc, &o->defaults, &o->options);
    double rate; /* refuse a horizon the schedule cannot have */
    TRY(rv_schedule_rate(o->schedule, o->options->lr, 0, total_steps, &rate, NULL));
    TRY(make_runs(o, desc));
    o->slots = slot_count(o->row, o->options, desc->velocity);
    for (int k = 0; k < o->slots; k++)
        TRY(memory_get(o, range->n_trained * sizeof(float), &o->slot[k]));
    TRY(memory_get(o, sizeof *o->bad, &o->bad));
    *out = o;
    o = NULL;
out:
    rv_optimizer_destroy(o);
    return status;
}

rv_status rv_optimizer_create(const rv_net *net, const rv_train_desc *desc, int64_t total_steps,
                              rv_optimizer **out) {
    const rv_range whole = rv_net_range(net, 0, net->layer_count);
    return rv_optimizer_create_range(&whole, NULL, desc, total_steps, out);
}

void rv_optimizer_destroy(rv_optimizer *o) {
    if (!o) return;
    for (int k = 0; k < SLOTS; k++)
        memory_free(o, o->slot[k]);
    memory_free(o, o->bad);
    rv_free(o->runs);
    rv_free(o);
}

/* What a schedule may move: beta1 of the Adams, a momentum that is on. */
static double *cycled_momentum(const rv_optimizer *o, rv_optim_update *u) {
    if (u->kind == OPTIM_ADAM || u->kind == OPTIM_ADAMW) return &u->beta1;
    return o->options->momentum > 0 ? &u->momentum : NULL;
}

/* ---- late gradients ---------------------------------------------------------------------- */

/* At m_r = 1 nothing is ever forgotten, and the quotient is its limit. */
void rv_optimizer_share(double share, double *rate, double *momentum) {
    double reference = *momentum;
    *momentum = pow(reference, share);
    *rate *= share * (reference < 1 ? (1 - *momentum) / (1 - reference) : share);
}

/* Rate and momentum (beta1) of update `step` of a run, as the schedule and the plateau give them,
 * for updates of this many samples. */
static rv_status course(const rv_optimizer *o, const run *r, int64_t step, rv_optim_update *u) {
    u->momentum = o->options->momentum;
    rv_status status =
        rv_schedule_rate(o->schedule, r->lr, step, o->total, &u->rate, cycled_momentum(o, u));
    if (status == RV_OK) u->rate = rv_plateau_rate(o->schedule, &o->plateau, u->rate);
    if (o->share > 0) rv_optimizer_share(o->share, &u->rate, &u->momentum);
    return status;
}

/* A term moves by `share` of the direction, whose bias was corrected for `updates` of them. */
static void term_add(const rv_optim_update *u, double share, int64_t updates, rv_optim_view *view) {
    bool adam = u->kind != OPTIM_SGD;
    double bias1 = adam ? 1 - pow(u->beta1, (double)updates) : 1;
    double bias2 = adam ? 1 - pow(u->beta2, (double)updates) : 1;
    int k = adam ? view->terms : 0; /* the velocity is the same in all terms */
    view->factor[k] = (float)(share / bias1 + (k < view->terms ? (double)view->factor[k] : 0));
    view->root[k] = (float)(1 / sqrt(bias2));
    view->terms = k + 1;
}

/* u: the update that makes w(j), j = o->step + 1. */
static rv_status view_of(const rv_optimizer *o, const run *r, const rv_optim_update *u,
                         const rv_view *want, rv_optim_view *view) {
    rv_status status = RV_OK;
    rv_optim_update next = *u;
    int64_t j = o->step + 1;
    double share = 0;
    *view = (rv_optim_view){.to = want->to + r->offset};
    if (want->look == RV_LOOK_STEP) view->since = (float)want->horizon;
    if (want->look == RV_LOOK_TREND) view->mean = (float)want->horizon;
    if (want->look == RV_LOOK_RATE && want->horizon != 0) {
        TRY(course(o, r, j, &next));
        term_add(u, want->horizon * next.rate, j, view);
    }
    if (want->look == RV_LOOK_MOMENTUM) {
        for (int k = 1; k <= (int)want->horizon; k++) {
            TRY(course(o, r, j + k - 1, &next));
            if (u->kind == OPTIM_SGD)
                share += next.rate * pow(u->momentum, k);
            else
                term_add(u, next.rate * pow(u->beta1, k), j + k, view);
        }
        if (share != 0) term_add(u, share, j, view);
    }
out:
    return status;
}

/* The step counts after all runs: within one update every tensor sees the same one (bias
 * correction, rate). */
rv_status rv_optimizer_update_late(rv_optimizer *o, const rv_device *device, rv_queue *queue,
                                   const rv_late *late, float *block, const float *gradient,
                                   double scale) {
    rv_status status = RV_OK;
    const optimizer_options *options = o->options;
    rv_optim_view views[2];
    TRY(device->ops->zero(device->ctx, queue, o->bad, sizeof *o->bad));
    for (int k = 0; k < o->run_count; k++) {
        const run *r = &o->runs[k];
        rv_optim_update u = {
            .kind = (int)(o->row - optimizers),
            .n = r->count,
            .weight = block + r->offset,
            .grad = gradient + r->offset,
            .scale = (float)scale,
            .decay = r->weight_decay,
            .dampening = options->dampening,
            .beta1 = options->beta1,
            .beta2 = options->beta2,
            .epsilon = options->epsilon,
            .alpha = options->alpha,
            .nesterov = options->nesterov,
            .decoupled = o->row->decoupled,
            .centered = options->centered,
            .step = o->step,
            .limit = r->limit,
            .bad = o->bad,
        };
        TRY(course(o, r, o->step, &u));
        for (int j = 0; j < o->slots; j++)
            u.slot[j] = o->slot[j] + r->offset;
        if (late) {
            const rv_view *want[2] = {&late->forward, &late->backward};
            u.late = late->delay;
            u.rate /= late->slow;
            u.keep = late->keep;
            if (late->from) u.from = late->from + r->offset;
            if (late->trend && r->back) u.trend = late->trend + r->offset;
            for (int j = 0; j < 2; j++) {
                if (!want[j]->to || (want[j] == &late->backward && !r->back)) continue;
                TRY(view_of(o, r, &u, want[j], &views[j]));
                u.view[j] = &views[j];
            }
        }
        TRY(device->ops->optim_update(device->ctx, queue, &u));
    }
    o->step++;
out:
    return status;
}

rv_status rv_optimizer_update(rv_optimizer *o, const rv_device *device, rv_queue *queue,
                              float *block, const float *gradient, double scale) {
    return rv_optimizer_update_late(o, device, queue, NULL, block, gradient, scale);
}

/* Of the recipe's lr; groups scale alike. */
double rv_optimizer_rate(const rv_optimizer *o) {
    const run whole = {.lr = o->options->lr};
    rv_optim_update u = {.kind = (int)(o->row - optimizers)};
    return course(o, &whole, o->step, &u) == RV_OK ? u.rate : NAN;
}

void rv_optimizer_epoch(rv_optimizer *o, double validation_loss) {
    rv_plateau_epoch(o->schedule, &o->plateau, validation_loss);
}

rv_plateau *rv_optimizer_plateau(rv_optimizer *o) {
    return &o->plateau;
}

bool rv_optimizer_sound(const rv_optimizer *o) {
    return *o->bad == 0;
}

int rv_optimizer_slots(const rv_optimizer *o) {
    return o->slots;
}

const char *rv_optimizer_slot_name(const rv_optimizer *o, int slot) {
    return o->row->slot[slot];
}

float *rv_optimizer_slot(rv_optimizer *o, int slot) {
    return o->slot[slot];
}

int64_t rv_optimizer_step(const rv_optimizer *o) {
    return o->step;
}

/* A resumed run goes on at its update: rates and bias corrections follow from the number. */
void rv_optimizer_step_set(rv_optimizer *o, int64_t step) {
    o->step = step;
}

int64_t rv_optimizer_total(const rv_optimizer *o) {
    return o->total;
}
