/*
 * Inside pipeline/: delayed gradients. A stage that never waits for its gradient makes forward
 * passes under weights that are some updates old. A mode says how old and what backward sees; a
 * correction changes what a pass sees or how the late gradient is applied. Both are rows of tables;
 * together they give the constants of a stage (rv_delay_rule), from which oracle, executor and
 * planner take everything by number.
 *
 * Version j of a stage: its weights after j updates of its own. Sample i (a micro-batch, or in
 * modes that update once a batch a batch) makes update i, which turns version i into version i+1.
 * Its forward reads version max(from, i-D), where `from` is the first asynchronous update. Backward
 * weights multiply or move the adjoint on its way back (rv_pass.back) and enter nothing else;
 * slopes and gradients are made from what forward used. Formulas: tests/golden/README_schedules.md,
 * section 1.
 */
#ifndef RV_PIPELINE_DELAY_H
#define RV_PIPELINE_DELAY_H

#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a row decides of; two that decide of the same exclude each other. */
typedef enum rv_decides {
    RV_DECIDES_FORWARD = 1,  /* which weights forward sees */
    RV_DECIDES_BACKWARD = 2, /* which weights backward sees */
    RV_DECIDES_GRADIENT = 4, /* how the gradient is applied */
    RV_DECIDES_RATE = 8,
    RV_DECIDES_START = 16,
    RV_DECIDES_SCALE = 32,
} rv_decides;
/* Optimisers a row has a form for. */
enum { RV_WITH_SGD = 1, RV_WITH_ADAM = 2, RV_WITH_ANY = 7 };

typedef struct rv_delay_shape {
    int stages, chunks, micros, stage; /* micros: of a batch */
    int slots; /* of an edge, 0: any number; how far a stage may be ahead follows from it, no bit */
} rv_delay_shape;

/* The constants of one stage. Zeroed: a synchronous one. */
typedef struct rv_delay_rule {
    int lead;   /* chunks forward may be ahead of backward, in the order that never waits */
    int delay;  /* D, in updates */
    bool stash; /* backward reads the version its forward read */
    bool split; /* B and W are items of their own, and what is ready first goes first */
    bool looks_forward, looks_backward; /* a pass sees other weights than those of its version */
    rv_look forward, backward;
    double forward_horizon, backward_horizon;
    int late;    /* of the gradient, made up for */
    bool trend;  /* a moving mean of steps is kept */
    double keep; /* of it at each update */
    bool age;    /* the backward horizon is the true age, and the mean corrected for its start */
    double slow; /* D+1: rates start divided by it and reach their own after `slow_steps`; 0: not */
    double slow_steps;
    int64_t from, until; /* updates [from, until) are asynchronous, others read version i */
} rv_delay_rule;

typedef struct rv_delay_mode {
    rv_row row;
    int decides, with;
    bool stash;
    bool batch;  /* one update a batch */
    bool blocks; /* every block of the network is a stage; the recipe's `stages` are workers */
    void (*fill)(const rv_delay_shape *shape, rv_delay_rule *rule);
} rv_delay_mode;

typedef struct rv_correction {
    rv_row row;
    int decides, with;
    const char *parameter;       /* NULL: none */
    double initial, least, most; /* from 1 on it counts: whole numbers */
    bool synchronous;            /* means something without delay, too */
    void (*apply)(const rv_delay_shape *shape, double value, rv_delay_rule *rule);
} rv_correction;

const rv_table *rv_delay_table(void);      /* modes */
const rv_table *rv_correction_table(void); /* corrections, applied in this order */
enum { RV_CORRECTIONS_MOST = 16 };

typedef struct rv_delay_desc { /* zeroed: synchronous */
    const rv_delay_mode *mode; /* NULL: none */
    bool on[RV_CORRECTIONS_MOST];
    double value[RV_CORRECTIONS_MOST];
    int64_t until; /* first synchronous update after the asynchronous ones; 0: never */
} rv_delay_desc;

/* Switch a correction on. parameter NULL: its default. RV_CONFIG: unknown, out of range. */
RV_CHECKED rv_status rv_delay_add(rv_delay_desc *desc, const char *name, const char *parameter,
                                  double value);
/* RV_CONFIG naming what does not go together: corrections with each other, with the mode, with the
 * optimiser. */
RV_CHECKED rv_status rv_delay_check(const rv_delay_desc *desc, const rv_train_desc *train);
rv_delay_rule rv_delay_rule_of(const rv_delay_desc *desc, const rv_delay_shape *shape);
bool rv_delay_on(const rv_delay_desc *desc, const char *correction, double *value);
/* What corrections ask of the optimiser: sets train->velocity and train->share. */
void rv_delay_train(const rv_delay_desc *desc, rv_train_desc *train);

/* Version the forward of update u reads. */
int64_t rv_delay_forward(const rv_delay_rule *rule, int64_t u);
/* What update u does beside; block pointers are left to the caller. */
void rv_delay_late(const rv_delay_rule *rule, int64_t u, rv_late *late);

#ifdef __cplusplus
}
#endif
#endif
