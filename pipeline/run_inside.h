/*
 * Inside pipeline/: a pipeline's insides, shared by the drivers of steps (run.c) and of an endless
 * training (run_flow.c).
 */
#ifndef RV_PIPELINE_RUN_INSIDE_H
#define RV_PIPELINE_RUN_INSIDE_H

#include <pthread.h>

#include "pipeline/internal.h"
#include "pipeline/run.h"
#include "pipeline/watch.h"

/* Flags that threads read and write without a lock; <stdatomic.h> is not for C++, which must be
 * able to read this header. */
static inline bool rv_flag_get(const bool *flag) {
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}
static inline void rv_flag_set(bool *flag, bool value) {
    __atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
}

enum { FORWARD, BACKWARD, NORM, FACTOR, EDGES }; /* kinds of links */

/* Rung when something may have changed for a stage. The count tells a sleeper what it missed. */
typedef struct rv_bell {
    pthread_mutex_t lock;
    pthread_cond_t rung;
    unsigned long count;
} rv_bell;

typedef struct rv_crew rv_crew; /* threads that share the stages (run_crew.c) */

typedef struct rv_worker {
    rv_pipeline *pipeline;
    rv_stage *stage;
    rv_device device;
    rv_bell bell;
    rv_post *post;
    pthread_t thread;
    bool started;
    int64_t made; /* updates of the stage; under the pipeline's `lock` */
    bool sound;   /* all of them were finite */
} rv_worker;

struct rv_pipeline {
    rv_pipeline_desc desc;
    int stages;
    int threads;        /* workers [0, threads) have one; as many as stages, but with a crew */
    rv_worker *workers; /* [stages] */
    rv_crew *crew;      /* NULL: each thread steps the stage of its worker */
    rv_link **links;    /* [EDGES][stages - 1] */
    rv_guard guard;
    rv_writer *writer;     /* of spilled tapes; NULL: none */
    rv_timeline *timeline; /* NULL: without threads */
    bool pinned;
    uint64_t turns; /* of the seeded driver: numbers drawn */
    bool failed;
    rv_error error; /* the first; under `lock` */
    pthread_mutex_t lock;
    pthread_cond_t go, done;
    unsigned long round; /* steps begun */
    int busy;            /* workers in this step */
    bool stop;
    /* of an endless training (run_flow.c) */
    rv_flow *flow;   /* NULL: steps */
    int64_t awaited; /* updates the caller was told of */
    bool flowing;    /* a round has begun that ends when the caller wants rest */
    int64_t begun;   /* updates before it */
    bool resting;    /* under `lock`: workers with nothing to do leave the round */
    int64_t kept;    /* under `lock`: when so many updates are made, `copy` is called; 0: never */
    rv_pipeline_copy *copy;
    void *copy_self;
};

/* Called by links from any thread. */
void rv_bell_ring(void *self);
rv_bell *rv_run_bell(rv_pipeline *p, int stage); /* where who steps the stage sleeps */
/* The first error is kept, with where it happened (stage NULL: everywhere), and stops all. */
void rv_run_fail(rv_pipeline *p, const rv_stage *stage);
/* The first error becomes the calling thread's. */
RV_CHECKED rv_status rv_run_outcome(rv_pipeline *p);
/* Wait under `lock` until a worker may have signalled `done`, for at most a moment, and look
 * whether anything moves. *look: when to look next, 0 at first. */
void rv_run_watch(rv_pipeline *p, double *look);
/* Begin a round of the workers. */
void rv_run_round(rv_pipeline *p);
/* A round of the one-thread driver (run_seeded.c). */
void rv_run_seeded(rv_pipeline *p);
/* One turn of it: *ended stages have nothing to do; false: nothing could go. */
bool rv_run_turn(rv_pipeline *p, int *ended);

/* run_crew.c */
RV_CHECKED rv_status rv_run_crew_open(rv_pipeline *p);
void rv_run_crew_close(rv_pipeline *p);
rv_bell *rv_run_crew_bell(rv_crew *crew);
/* A round, in the thread of worker w. */
void rv_run_crew(rv_worker *w);

/* run_flow.c */
RV_CHECKED rv_status rv_run_flow_open(rv_pipeline *p);
/* After an update of the worker's stage. */
void rv_run_flow_made(rv_worker *w);
/* Of a worker with nothing to do: false when the round is over for it. */
bool rv_run_flow_waits(rv_worker *w);

#endif
