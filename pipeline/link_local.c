/*
 * Links within one process: the slots are a ring, its ends two counters. The sender alone moves
 * one, the receiver the other, so neither needs a lock; a counter that moves publishes what was
 * written before it. What a queue has yet to write or read an event of the slot stands for: the
 * counter that follows it hands it over.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/link.h"

/* The counters lie apart: each belongs to another thread. */
typedef struct local {
    rv_link link;
    rv_wake sender, receiver;
    const rv_device *from, *to;   /* NULL: ops there have run when they return */
    rv_event **filled, **emptied; /* [slots] by the sender's queue, by the receiver's */
    char *memory;
    size_t stride;
    _Alignas(64) atomic_ulong sent;
    _Alignas(64) atomic_ulong taken;
    _Alignas(64) atomic_bool aborted;
} local;

static void wake(rv_wake who) {
    if (who.ring) who.ring(who.self);
}

/* Every call comes through here, so that an end that never waits learns of an abort, too. */
static rv_status local_poll(rv_link *link) {
    local *it = (local *)(void *)link;
    if (rv_fault(RV_FAULT_LINK)) return rv_fail(RV_PEER, "link %s failed", link->name);
    if (atomic_load_explicit(&it->aborted, memory_order_relaxed))
        return rv_fail(RV_PEER, "link %s was stopped", link->name);
    return RV_OK;
}

/* One end notes where its queue is, the other's queue waits until it has come there. */
static rv_status note(const rv_device *device, rv_queue *queue, rv_event **event) {
    return device ? device->ops->queue_record(device->ctx, queue, event) : RV_OK;
}

static rv_status await(const rv_device *device, rv_queue *queue, rv_event *event) {
    return device && event ? device->ops->queue_wait(device->ctx, queue, event) : RV_OK;
}

/* Own counter relaxed, since no one else moves it. The other's with acquire: the receiver is done
 * with the slot before this thread writes to it. */
static rv_status local_acquire(rv_link *link, rv_queue *queue, void **slot) {
    rv_status status = RV_OK;
    local *it = (local *)(void *)link;
    *slot = NULL;
    TRY(local_poll(link));
    unsigned long sent = atomic_load_explicit(&it->sent, memory_order_relaxed);
    unsigned long at = sent % (unsigned long)link->slots;
    if (sent - atomic_load_explicit(&it->taken, memory_order_acquire) >= (unsigned long)link->slots)
        goto out;
    TRY(await(it->from, queue, it->emptied[at]));
    *slot = it->memory + at * it->stride;
out:
    return status;
}

/* Release: head and payload are there before the counter says so. The bell comes after the counter,
 * or the woken receiver would find nothing and sleep again. */
static rv_status local_publish(rv_link *link, rv_queue *queue) {
    rv_status status = RV_OK;
    local *it = (local *)(void *)link;
    TRY(local_poll(link));
    unsigned long sent = atomic_load_explicit(&it->sent, memory_order_relaxed);
    TRY(note(it->from, queue, &it->filled[sent % (unsigned long)link->slots]));
    atomic_fetch_add_explicit(&it->sent, 1, memory_order_release);
    wake(it->receiver);
out:
    return status;
}

/* The mirror image of acquire. Nothing is taken, so it may be asked any number of times. */
static rv_status local_peek(rv_link *link, rv_queue *queue, void **slot) {
    rv_status status = RV_OK;
    local *it = (local *)(void *)link;
    *slot = NULL;
    TRY(local_poll(link));
    unsigned long taken = atomic_load_explicit(&it->taken, memory_order_relaxed);
    unsigned long at = taken % (unsigned long)link->slots;
    if (taken == atomic_load_explicit(&it->sent, memory_order_acquire)) goto out;
    TRY(await(it->to, queue, it->filled[at]));
    *slot = it->memory + at * it->stride;
out:
    return status;
}

/* From here on the slot may be overwritten: who calls has read all it needs. */
static rv_status local_release(rv_link *link, rv_queue *queue) {
    rv_status status = RV_OK;
    local *it = (local *)(void *)link;
    TRY(local_poll(link));
    unsigned long taken = atomic_load_explicit(&it->taken, memory_order_relaxed);
    TRY(note(it->to, queue, &it->emptied[taken % (unsigned long)link->slots]));
    atomic_fetch_add_explicit(&it->taken, 1, memory_order_release);
    wake(it->sender);
out:
    return status;
}

/* The flag before the bells: who wakes up looks again and must see it. */
static void local_abort(rv_link *link) {
    local *it = (local *)(void *)link;
    atomic_store(&it->aborted, true);
    wake(it->receiver);
    wake(it->sender);
}

/* One struct for both ends: closed once, when no thread uses either of them. */
static void local_close(rv_link *link) {
    local *it = (local *)(void *)link;
    for (int i = 0; it->filled && it->from && i < link->slots; i++)
        it->from->ops->event_destroy(it->from->ctx, it->filled[i]);
    for (int i = 0; it->emptied && it->to && i < link->slots; i++)
        it->to->ops->event_destroy(it->to->ctx, it->emptied[i]);
    if (it->to)
        it->to->ops->free(it->to->ctx, it->memory);
    else
        rv_free(it->memory);
    rv_free(it->emptied);
    rv_free(it->filled);
    rv_free(it);
}

static const rv_link_ops local_ops = {
    .acquire = local_acquire,
    .publish = local_publish,
    .peek = local_peek,
    .release = local_release,
    .poll = local_poll,
    .abort = local_abort,
    .close = local_close,
};

/* Only devices with memory apart have queues. */
static const rv_device *queued(const rv_device *device) {
    return device && device->ops->apart ? device : NULL;
}

/* Slots begin on a vector: ops read and write the payload in place. */
static rv_status local_open(const rv_transport *self, const rv_link_desc *desc, rv_link **out) {
    rv_status status = RV_OK;
    local *it = NULL;
    (void)self;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *it, "a link", &it));
    it->link = (rv_link){.ops = &local_ops, .slots = desc->slots, .bytes = desc->bytes};
    snprintf(it->link.name, sizeof it->link.name, "%d -> %d", desc->from, desc->to);
    it->sender = desc->sender, it->receiver = desc->receiver;
    it->stride = RV_HEAD_BYTES + (desc->bytes + 63) / 64 * 64;
    it->from = queued(desc->from_device), it->to = queued(desc->to_device);
    TRY(rv_alloc((size_t)desc->slots, sizeof(rv_event *), "a link", &it->filled));
    TRY(rv_alloc((size_t)desc->slots, sizeof(rv_event *), "a link", &it->emptied));
    if (it->to)
        TRY(it->to->ops->alloc(it->to->ctx, (size_t)desc->slots * it->stride, "the slots of a link",
                               (void **)&it->memory));
    else
        TRY(rv_alloc((size_t)desc->slots, it->stride, "the slots of a link", &it->memory));
    *out = &it->link;
    it = NULL;
out:
    if (it) local_close(&it->link);
    return status;
}

const rv_transport rv_transport_local = {"local", local_open, NULL};

/* ---- messages --------------------------------------------------------------------------- */
/* Without ids (generated data) the places stand in for them: count and order are still checked. */
uint64_t rv_samples_digest(const uint64_t *sample, int count) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a over whole words: order and number count */
    for (int b = 0; b < count; b++)
        hash = (hash ^ (sample ? sample[b] : (uint64_t)b)) * 0x100000001b3u;
    return hash ^ (uint64_t)count;
}

/* In the order in which a mix-up would be understood. */
rv_status rv_head_check(const rv_head *got, const rv_head *want, const char *edge) {
    const struct {
        const char *name;
        int64_t got, want;
    } fields[] = {
        {"magic", got->magic, want->magic},
        {"kind", got->kind, want->kind},
        {"micro-batch", got->micro, want->micro},
        {"chunk", got->chunk, want->chunk},
        {"version", got->version, want->version},
        {"bytes", (int64_t)got->bytes, (int64_t)want->bytes},
        {"samples", (int64_t)got->samples, (int64_t)want->samples},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].got != fields[i].want)
            return rv_fail(RV_INTERNAL,
                           "a message on link %s has %s %" PRId64 ", expected was %" PRId64, edge,
                           fields[i].name, fields[i].got, fields[i].want);
    return RV_OK;
}
