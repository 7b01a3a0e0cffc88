/*
 * For tests of the pipeline: a transport whose messages come late, by times drawn from a seed. For
 * threads the sender sleeps before it publishes; for the one-thread driver a message or a free slot
 * is not seen until it was looked for some times. It may also spoil the n-th message, let the next
 * one overtake it, fail there, or not hear that it is stopped.
 */
#ifndef RV_TESTS_SLOW_LINK_H
#define RV_TESTS_SLOW_LINK_H

#include <string.h>
#include <time.h>

#include "pipeline/link.h"

typedef struct slow_plan {
    uint64_t seed;
    bool sleeps;                    /* else looked for in vain */
    int spoil_at, fail_at, swap_at; /* message of any link, from 1; 0: none */
    size_t spoil_byte;              /* of the head, or behind it */
    bool deaf;
    int sent;
} slow_plan;

typedef struct slow_link {
    rv_link link;
    rv_link *inner;
    slow_plan *plan;
    uint32_t turn;
    int hold_in, hold_out; /* looks in vain before the next message, slot; -1: not drawn */
    void *overtaken;       /* a message that the next one overtakes */
} slow_link;

static inline uint32_t slow_draw(slow_link *it, uint32_t below) {
    uint32_t out[4];
    const uint32_t counter[4] = {it->turn++, (uint32_t)it->link.name[0], (uint32_t)it->link.name[5],
                                 1};
    rv_philox(out, counter, it->plan->seed);
    return out[0] % below;
}

/* Whether a slot may be seen now: once it is, it is seen until the next one is asked for. */
static inline void slow_hold(slow_link *it, int *hold, void **slot) {
    if (!*slot || it->plan->sleeps) return;
    if (*hold < 0) *hold = (int)slow_draw(it, 4);
    if (*hold == 0) return;
    --*hold;
    *slot = NULL;
}

/* The overtaken message, when there is room for it. */
static inline rv_status slow_catch_up(slow_link *it, rv_queue *queue) {
    rv_status status = RV_OK;
    void *slot = NULL;
    TRY(it->inner->ops->acquire(it->inner, queue, &slot));
    if (!slot) goto out;
    memcpy(slot, it->overtaken, RV_HEAD_BYTES + it->link.bytes);
    rv_free(it->overtaken);
    it->overtaken = NULL;
    TRY(it->inner->ops->publish(it->inner, queue));
out:
    return status;
}

static inline rv_status slow_acquire(rv_link *link, rv_queue *queue, void **slot) {
    slow_link *it = (slow_link *)(void *)link;
    rv_status status = it->inner->ops->acquire(it->inner, queue, slot);
    if (status == RV_OK) slow_hold(it, &it->hold_out, slot);
    return status;
}

static inline rv_status slow_publish(rv_link *link, rv_queue *queue) {
    rv_status status = RV_OK;
    slow_link *it = (slow_link *)(void *)link;
    slow_plan *plan = it->plan;
    void *slot = NULL;
    bool counts = plan->spoil_at || plan->fail_at || plan->swap_at;
    int n = counts ? __atomic_add_fetch(&plan->sent, 1, __ATOMIC_SEQ_CST) : 0;
    it->hold_out = -1;
    if (n && n == plan->fail_at) return rv_fail(RV_PEER, "link %s is broken", link->name);
    if (n && (n == plan->spoil_at || n == plan->swap_at))
        TRY(it->inner->ops->acquire(it->inner, queue, &slot));
    if (n && n == plan->spoil_at) ((char *)slot)[plan->spoil_byte] ^= 1;
    if (n && n == plan->swap_at) {
        TRY(rv_alloc(1, RV_HEAD_BYTES + link->bytes, "a message", &it->overtaken));
        memcpy(it->overtaken, slot, RV_HEAD_BYTES + link->bytes);
        goto out;
    }
    if (plan->sleeps) {
        struct timespec pause = {0, (long)slow_draw(it, 200000)};
        nanosleep(&pause, NULL);
    }
    TRY(it->inner->ops->publish(it->inner, queue));
    if (it->overtaken) TRY(slow_catch_up(it, queue));
out:
    return status;
}

static inline rv_status slow_peek(rv_link *link, rv_queue *queue, void **slot) {
    slow_link *it = (slow_link *)(void *)link;
    rv_status status = it->inner->ops->peek(it->inner, queue, slot);
    if (status == RV_OK) slow_hold(it, &it->hold_in, slot);
    return status;
}

static inline rv_status slow_release(rv_link *link, rv_queue *queue) {
    slow_link *it = (slow_link *)(void *)link;
    it->hold_in = -1;
    return it->inner->ops->release(it->inner, queue);
}

static inline rv_status slow_poll(rv_link *link) {
    slow_link *it = (slow_link *)(void *)link;
    return it->inner->ops->poll(it->inner);
}

static inline void slow_abort(rv_link *link) {
    slow_link *it = (slow_link *)(void *)link;
    if (!it->plan->deaf) it->inner->ops->abort(it->inner);
}

static inline void slow_close(rv_link *link) {
    slow_link *it = (slow_link *)(void *)link;
    rv_link_close(it->inner);
    rv_free(it->overtaken);
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
    it->hold_in = it->hold_out = -1;
    *out = &it->link;
    it = NULL;
out:
    rv_free(it);
    return status;
}

#endif
