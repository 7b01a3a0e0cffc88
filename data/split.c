/* Orders drawn by seed, and a source that is some samples of another. */
#include "data/reader.h"

#include <string.h>

/* Position i draws from a counter of its own, so the order is the same on every machine. */
void rv_permute(uint64_t *index, int64_t count, uint64_t seed, rv_purpose purpose, uint32_t epoch) {
    for (int64_t i = 0; i < count; i++)
        index[i] = (uint64_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t words[4];
        uint64_t draw, other, kept = index[i];
        rv_random4(words, seed, purpose, 0, epoch, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), 0);
        draw = (uint64_t)words[1] << 32 | words[0];
        /* The high half of draw * (i + 1) is even over 0..i to within 2^-32 of these counts. */
        other = (uint64_t)(((unsigned __int128)draw * (uint64_t)(i + 1)) >> 64);
        index[i] = index[other];
        index[other] = kept;
    }
}

typedef struct subset {
    const rv_source *base;
    uint64_t *index;
    void (*done)(void *user);
    void *user;
} subset;

/* The indices of the base are written where the reader is going to write them anyway. */
static rv_status subset_read(void *self, const uint64_t *index, int count, uint32_t epoch,
                             rv_batch *batch) {
    const subset *some = self;
    uint64_t *sample = (uint64_t *)batch->sample; /* the caller's memory, filled by readers */
    for (int b = 0; b < count; b++)
        sample[b] = some->index[index[b]];
    return some->base->read(some->base->self, sample, count, epoch, batch);
}

static void subset_close(void *self) {
    subset *some = self;
    if (!some) return;
    if (some->done) some->done(some->user);
    rv_free(some->index);
    rv_free(some);
}

/* On failure the caller still owns the index. */
rv_status rv_subset_open(const rv_source *base, uint64_t *index, int64_t count,
                         void (*done)(void *user), void *user, rv_source *out) {
    rv_status status = RV_OK;
    subset *some = NULL;
    TRY(rv_alloc(1, sizeof *some, "a share of the samples", &some));
    *some = (subset){base, index, done, user};
    *out = *base;
    out->self = some;
    out->count = count;
    out->read = subset_read;
    out->close = subset_close;
out:
    return status;
}
