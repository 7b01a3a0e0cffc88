/*
 * For tests of the pipeline: a transport whose messages come late, by times drawn from a seed. For
 * threads the sender sleeps before it publishes; for the one-thread driver a message is not seen
 * until it was looked for some times. It may also spoil the n-th message, or fail there.
 */
#ifndef RV_TESTS_SLOW_LINK_H
#define RV_TESTS_SLOW_LINK_H

#include <string.h>
#include <time.h>

#include "pipeline/link.h"

typedef struct slow_plan {
    uint64_t seed;
    bool sleeps;           /* else looked for in vain */
    int spoil_at, fail_at; /* message of any link, from 1; 0: none */
    size_t spoil_byte;     /* of the head */
    int sent;
} slow_plan;

typedef struct slow_link {
    rv_link link;
    rv_link *inner;
    slow_plan *plan;
    uint32_t turn;
    int hold; /* looks in vain before the next message; -1: not drawn */
} slow_link;

static inline uint32_t slow_draw(slow_link *it, uint32_t below) {
    uint32_t out[4];
    const uint32_t counter[4] = {it->turn++, (uint32_t)it->link.name[0], (uint32_t)it->link.name[5],
                                 1};
    rv_philox(out, counter, it->plan->seed);
    return out[0] % below;
}

static inline rv_status slow_acquire(rv_link *link, rv_queue *queue, void **slot) {
    slow_link *it = (slow_link *)(void *)link;
    return it->inner->ops->acquire(it->inner, queue, slot);
}

static inline rv_status slow_publish(rv_link *link, rv_queue *queue) {
    slow_link *it = (slow_link *)(void *)link;
    slow_plan *plan = it->plan;
    int n = plan->spoil_at || plan->fail_at ? ++plan->sent : 0; /* one thread only */
    if (n && n == plan->fail_at) return rv_fail(RV_PEER, "link %s is broken", link->name);
    if (n && n == plan->spoil_at) {
        void *slot;
        if (it->inner->ops->acquire(it->inner, queue, &slot) != RV_OK) return RV_PEER;
        ((char *)slot)[plan->spoil_byte] ^= 1;
    }
    if (plan->sleeps) {
        struct timespec pause = {0, (long)slow_draw(it, 200000)};
        nanosleep(&pause, NULL);
    }
    return it->inner->ops->publish(it->inner, queue);
}

static inline rv_status slow_peek(rv_link *link, rv_queue *queue, void **slot) {
    slow_link *it = (slow_link *)(void *)link;
    rv_status status = it->inner->ops->peek(it->inner, queue, slot);
    if (status != RV_OK || !*slot || it->plan->sleeps) return status;
    if (it->hold < 0) it->hold = (int)slow_draw(it, 4);
    if (it->hold == 0) return RV_OK; /* seen once, seen until it is released */
    it->hold--;
    *slot = NULL;
    return RV_OK;
}

static inline rv_status slow_release(rv_link *link, rv_queue *queue) {
    slow_link *it = (slow_link *)(void *)link;
    it->hold = -1;
    return it->inner->ops->release(it->inner, queue);
}

static inline rv_status slow_poll(rv_link *link) {
    slow_link *it = (slow_link *)(void *)link;
    return it->inner->ops->poll(it->inner);
}

static inline void slow_abort(rv_link *link) {
    slow_link *it = (slow_link *)(void *)link;
    it->inner->ops->abort(it->inner);
}

static inline void slow_close(rv_link *link) {
    slow_link *it = (slow_link *)(void *)link;
    rv_link_close(it->inner);
    rv_free(it);
}

static inline rv_status slow_open(const rv_transport *self, const rv_link_desc *desc,
                                  rv_link **out) {
    static const rv_link_ops ops = {slow_acquire, slow_publish, slow_peek, slow_release,
                                    slow_poll,    slow_abort,   slow_close};
    rv_status status = RV_OK;
    slow_link *it = NULL;
    TRY(rv_alloc(1, sizeof *it, "a slow link", &it));
    TRY(rv_transport_local.open(&rv_transport_local, desc, &it->inner));
    it->link = *it->inner;
    it->link.ops = &ops;
    it->plan = self->context;
    it->hold = -1;
    *out = &it->link;
    it = NULL;
out:
    rv_free(it);
    return status;
}

#endif
