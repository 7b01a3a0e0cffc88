/*
 * Inside pipeline/: where every stage is, told to whoever watches over a round. A worker posts what
 * it does; the calling thread, which waits for the round anyway, looks from time to time. Nothing
 * that moved for a whole `peer_timeout` while every stage waits is a hang; a stage that computes so
 * long is only slow.
 */
#ifndef RV_PIPELINE_WATCH_H
#define RV_PIPELINE_WATCH_H

#include "pipeline/stage.h"

/* What a worker does, readable by any thread. Times are rv_host_seconds. */
typedef struct rv_post rv_post;
/* The stage is about to try the item at its place. */
void rv_post_try(rv_post *post, double now);
void rv_post_moved(rv_post *post, const rv_stage *stage, double now);
void rv_post_wait(rv_post *post, const rv_link *edge, double since);

enum { RV_POST_TEXT = 160 };
/* "stage 2 waits for F of micro-batch 3, chunk 5 from stage 1 since 12 s". Returns text. */
const char *rv_post_print(const rv_post *post, const rv_stage *stage, double now,
                          char text[RV_POST_TEXT]);

/* Does the stage wait for a message on this edge, and not for a slot? */
bool rv_stage_takes(const rv_stage *stage, const rv_link *edge);

/* The watch over all stages of a pipeline; belongs to the thread that waits for the round. */
typedef struct rv_guard {
    int stages;
    rv_post *posts;   /* [stages] */
    rv_stage **stage; /* [stages] borrowed, set by the owner */
    double timeout;
    void (*say)(void *user, const char *line); /* NULL: nobody listens */
    void *user;
    double begun, warned; /* of the round; seconds after which a slow stage is told next */
    double stirred;       /* when work was last handed to it; set by the owner */
} rv_guard;
RV_CHECKED rv_status rv_guard_init(rv_guard *guard, int stages, double timeout,
                                   void (*say)(void *user, const char *line), void *user);
void rv_guard_finish(rv_guard *guard);
rv_post *rv_guard_post(const rv_guard *guard, int stage); /* borrowed */
void rv_guard_begin(rv_guard *guard);                     /* a round */
/* RV_PEER with where every stage is: nothing has moved for the timeout, and all wait. */
RV_CHECKED rv_status rv_guard_look(rv_guard *guard);

#endif
