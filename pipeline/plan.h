/*
 * Inside pipeline/: the plan of a run: where the network is cut, the schedule of a step, and what
 * both cost, all known before the first step.
 */
#ifndef RV_PIPELINE_PLAN_H
#define RV_PIPELINE_PLAN_H

#include "pipeline/blocks.h"
#include "pipeline/cost.h"
#include "pipeline/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rv_plan_desc {
    rv_cost_desc cost; /* train->chunks: as fixed; busy is ignored */
    int stages;
    int workers;                   /* that share out the stages' work; 0: each has its own */
    const rv_generator *generator; /* NULL: the best */
    const char *file;              /* a schedule in text form instead; or NULL */
    int slots;                     /* 0: the fewest that reach full speed */
    bool chunks_auto;
    const int *cuts; /* [stages - 1]: first layers of the stages after the first; NULL: by costs */
    double memory;   /* bytes for all stages together; 0: no limit */
    bool mixes;      /* with a limit: tapes are kept, recomputed or spilled, whatever is fastest */
    const char *profile; /* costs from this file instead of measuring; or NULL */
    bool bare;           /* nobody asks what it costs: only what is needed to choose is measured */
    /* With a mode: the endless order of it, at fixed chunks and with whole tapes. Borrowed. */
    const rv_delay_desc *delay;
} rv_plan_desc;

typedef struct rv_plan_bytes { /* of a stage at its peak */
    double weights;            /* with gradient and optimiser */
    double versions;           /* kept beside the newest */
    double tapes, state, slots, scratch;
    double record; /* of the tapes: what one chunk more would add */
} rv_plan_bytes;

/* Without `delay` what is said of a step is that of one step; with it, of one update while the pipe
 * is full. */

typedef struct rv_plan_stage {
    rv_part_cost cost; /* at the plan's chunks */
    rv_plan_bytes bytes;
    double forward_message,
        backward_message; /* bytes of the largest to the next stage, and from it */
    double busy;          /* share of the time */
    rv_account account;   /* of delay; zeroed: none */
} rv_plan_stage;

typedef struct rv_plan_rival { /* a schedule that was not, or was, taken */
    const char *name;
    bool runs, endless;
    double total, bubble;
    int slots, peak; /* most tapes of a stage, in chunks */
    char why[160];   /* not */
} rv_plan_rival;

/* Costs of the same parts at one to three numbers of chunks; between and beyond them they go on in
 * straight lines. */
enum { RV_COST_POINTS = 3 };
typedef struct rv_cost_points {
    int parts, count, chunks[RV_COST_POINTS]; /* ascending */
    rv_part_cost *part[RV_COST_POINTS];       /* owned */
} rv_cost_points;

/* Which policies of tapes the plan has looked at: there was nothing to choose; all; one for all
 * stages, or one up to a stage and another from there. */
typedef enum rv_mixed { RV_MIXED_NONE, RV_MIXED_ALL, RV_MIXED_SOME } rv_mixed;

/* Zeroed = empty. Times in seconds. */
typedef struct rv_plan {
    int stages, micros, chunks;
    int workers;    /* as many as stages where each has its own */
    rv_ranks ranks; /* by which they do; zeroed: each has its own */
    int *first;     /* [stages + 1] layers */
    rv_schedule schedule;
    double step, bubble;  /* seconds; the share of the stages' time, U and NORM left out */
    double expected;      /* the bubble where items scatter as they did when they were measured */
    double from, until;   /* times of the schedule between which it is shown */
    rv_searched searched; /* how thorough the search was */
    rv_plan_stage *stage;
    uint8_t *tape; /* [layers] rv_tape_policy as planned; NULL: all kept */
    rv_mixed mixed;
    double mixed_bound; /* where there was a choice: no mix at all makes the step shorter */
    double latency, bandwidth;
    double spill; /* bytes per second to and from the disk; 0: not measured */
    /* The same where a step writes more than `cached` bytes, so that the medium sets the pace; 0:
     * no mix does, or not measured. */
    double sustained, cached;
    double serial; /* one step on one device, by the same costs; 0: nothing was measured */
    double bound;  /* no schedule has a smaller makespan */
    double bytes;  /* of all stages, and the copy that saving takes */
    double copy;
    double batches;      /* bytes of batches under way, where gradients are late */
    rv_delay_desc delay; /* zeroed: none */
    int waits; /* micro-batches of an update with fewer of which an order of batches waits; 0: no */
    rv_cost_points blocks; /* parts 0: not measured */
    rv_plan_rival *rivals;
    int rival_count;
} rv_plan;

/* RV_CONFIG: more stages than blocks, cuts or chunks that cannot be, a schedule that cannot run
 * (the circle is named); RV_RESOURCE: nothing fits the memory (the least found is named). */
RV_CHECKED rv_status rv_plan_make(const rv_plan_desc *desc, rv_plan *out);
/* One stage with nothing to choose: nothing is measured, costs are all 1 and `serial` 0. */
RV_CHECKED rv_status rv_plan_one(const rv_net *net, const rv_train_desc *train, rv_plan *out);
void rv_plan_finish(rv_plan *plan);
void rv_plan_tell(rv_plan *plan); /* step, bubbles, busy from the schedule of a step */
double rv_plan_stage_bytes(const rv_plan_stage *stage);
bool rv_plan_mixes(const rv_plan_desc *desc); /* policies of tapes are chosen */
/* Another mix may be faster by this share; 0: none is. */
double rv_plan_mix_gain(const rv_plan *plan);
/* "keep", "recompute", "spill", or "mixed": the tapes of a stage. */
const char *rv_plan_tape(const rv_plan *plan, int stage);
/* The cost of a part at any number of chunks. */
rv_part_cost rv_plan_cost_at(const rv_cost_points *points, int part, int chunks);

/* ---- profiles (plan_profile.c) ---------------------------------------------------------- */
/* Block costs as JSON: the object "profile" of `plan --json`, and what --profile reads. */
json_t *rv_profile_json(const rv_plan *plan, const rv_net *net);
/* RV_INPUT, RV_DATA: not such a file, or not of this network. */
RV_CHECKED rv_status rv_profile_read(const char *path, const rv_net *net, rv_plan *plan);

/* ---- pictures (plan_picture.c) ---------------------------------------------------------- */
/* The timeline from plan->from to plan->until: one line per stage, at most `columns` wide. *text:
 * rv_free. */
RV_CHECKED rv_status rv_plan_picture(const rv_plan *plan, int columns, char **text);
RV_CHECKED rv_status rv_plan_svg(const rv_plan *plan, char **text);

/* ---- as JSON (plan_json.c) -------------------------------------------------------------- */
json_t *rv_plan_json(const rv_plan *plan, const rv_net *net);

#ifdef __cplusplus
}
#endif
#endif
