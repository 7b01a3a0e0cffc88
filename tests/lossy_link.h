/*
 * For tests of the pipeline: a transport that loses the n-th message over a link, as a peer does
 * that has stopped: nobody is told.
 */
#ifndef RV_TESTS_LOSSY_LINK_H
#define RV_TESTS_LOSSY_LINK_H

#include <stdatomic.h>

#include "pipeline/link.h"

typedef struct lossy_plan {
    int from, to, at; /* the link, and the message of it that does not come, from 0 */
} lossy_plan;

typedef struct lossy_link {
    rv_link link;
    rv_link *inner;
    const lossy_plan *plan;
    bool loses;
    int sent;
} lossy_link;

static inline rv_status lossy_acquire(rv_link *link, rv_queue *queue, void **slot) {
    lossy_link *it = (lossy_link *)(void *)link;
    return it->inner->ops->acquire(it->inner, queue, slot);
}

/* From the lost message on nothing arrives: links keep their order. */
static inline rv_status lossy_publish(rv_link *link, rv_queue *queue) {
    lossy_link *it = (lossy_link *)(void *)link;
    if (it->loses && it->sent++ >= it->plan->at) return RV_OK;
    return it->inner->ops->publish(it->inner, queue);
}

static inline rv_status lossy_peek(rv_link *link, rv_queue *queue, void **slot) {
    lossy_link *it = (lossy_link *)(void *)link;
    return it->inner->ops->peek(it->inner, queue, slot);
}

static inline rv_status lossy_release(rv_link *link, rv_queue *queue) {
    lossy_link *it = (lossy_link *)(void *)link;
    return it->inner->ops->release(it->inner, queue);
}

static inline rv_status lossy_poll(rv_link *link) {
    lossy_link *it = (lossy_link *)(void *)link;
    return it->inner->ops->poll(it->inner);
}

static inline void lossy_abort(rv_link *link) {
    lossy_link *it = (lossy_link *)(void *)link;
    it->inner->ops->abort(it->inner);
}

static inline void lossy_close(rv_link *link) {
    lossy_link *it = (lossy_link *)(void *)link;
    rv_link_close(it->inner);
    rv_free(it);
}

static inline rv_status lossy_open(const rv_transport *self, const rv_link_desc *desc,
                                   rv_link **out) {
    static const rv_link_ops ops = {lossy_acquire, lossy_publish, lossy_peek, lossy_release,
                                    lossy_poll,    lossy_abort,   lossy_close};
    rv_status status = RV_OK;
    lossy_link *it = NULL;
    TRY(rv_alloc(1, sizeof *it, "a lossy link", &it));
    TRY(rv_transport_local.open(&rv_transport_local, desc, &it->inner));
    it->link = *it->inner;
    it->link.ops = &ops;
    it->plan = self->context;
    it->loses = it->plan->from == desc->from && it->plan->to == desc->to;
    *out = &it->link;
    it = NULL;
out:
    rv_free(it);
    return status;
}

#endif
