/*
 * Inside pipeline/: links, the directed edges between stages. A link is k slots of fixed size in
 * the receiver's memory; messages arrive in the order they were sent. One thread sends, one
 * receives, and nothing here blocks: who finds no slot or no message does something else or sleeps
 * until it is woken. Every call takes a queue (NULL: the device's own), in whose order it happens:
 * a message is written when the sender's queue has come to publish, and a slot is free when the
 * receiver's has come to release; the other end's queue waits for that. The head alone is the
 * host's to read and write, as is a payload that no op touches. A transport is one file
 * link_<name>.c with one row in the table of run.c.
 */
#ifndef RV_PIPELINE_LINK_H
#define RV_PIPELINE_LINK_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- messages --------------------------------------------------------------------------- */
enum { RV_HEAD_BYTES = 64, RV_HEAD_MAGIC = 0x4c4e5652 }; /* "RVNL" */

/* What stands in front of every payload. The receiver knows all of it beforehand. */
typedef struct rv_head {
    uint32_t magic;
    int32_t kind;         /* rv_work_kind of the sending item */
    int32_t micro, chunk; /* NORM: chunk 0, micro the number of the update */
    int64_t version;      /* updates made at the sender */
    uint64_t bytes;       /* of the payload */
    uint64_t samples;     /* digest of the sample ids */
    double penalty;       /* regularisers of the layers so far; not checked */
} rv_head;

/* RV_INTERNAL naming the first field that is not as expected. `edge` names the link. */
RV_CHECKED rv_status rv_head_check(const rv_head *got, const rv_head *want, const char *edge);
/* Digest of sample ids, order included. */
uint64_t rv_samples_digest(const uint64_t *sample, int count);

/* ---- links ------------------------------------------------------------------------------ */
typedef struct rv_link rv_link;

/* Called by the other end when there may be something to do; from any thread, must not block. */
typedef struct rv_wake {
    void (*ring)(void *self); /* NULL: nobody sleeps */
    void *self;
} rv_wake;

typedef struct rv_link_ops {
    /* The next slot to fill, head first; *slot NULL: none is free. The same until it is published.
     * RV_PEER after abort, as all others. */
    rv_status (*acquire)(rv_link *link, rv_queue *queue, void **slot);
    rv_status (*publish)(rv_link *link, rv_queue *queue);
    /* The oldest message that was not released; *slot NULL: none has come. Once seen it is seen
     * until it is released. It may be written to. */
    rv_status (*peek)(rv_link *link, rv_queue *queue, void **slot);
    rv_status (*release)(rv_link *link, rv_queue *queue);
    /* Move transfers on where no one else does. RV_PEER when the other end is gone. */
    rv_status (*poll)(rv_link *link);
    void (*abort)(rv_link *link); /* from any thread; both ends fail from now on and are woken */
    void (*close)(rv_link *link);
} rv_link_ops;

struct rv_link { /* first member of every transport's own struct */
    const rv_link_ops *ops;
    char name[32]; /* "0 -> 1", for messages */
    int slots;
    size_t bytes; /* of a payload, at most */
};

typedef struct rv_link_desc {
    int from, to; /* stages */
    int slots;
    size_t bytes;
    /* Slots are memory of the receiver's device; NULL: of the host. */
    const rv_device *from_device, *to_device;
    rv_wake sender, receiver;
} rv_link_desc;

/* A way to make links. */
typedef struct rv_transport rv_transport;
struct rv_transport {
    const char *name;
    rv_status (*open)(const rv_transport *self, const rv_link_desc *desc, rv_link **out);
    void *context; /* of the transport */
};
extern const rv_transport rv_transport_local; /* within one process (link_local.c) */

static inline void rv_link_close(rv_link *link) { /* NULL allowed */
    if (link) link->ops->close(link);
}

#ifdef __cplusplus
}
#endif
#endif
