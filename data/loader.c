/*
 * Batches in a drawn or in file order. One thread prepares batch k+1 while the caller works on k;
 * batch k-1 stays valid until k+1 is asked for, so there are three slots and batch k lies in slot
 * k modulo 3. All counters are guarded by one mutex; the slots are not: a slot belongs to the
 * thread while its batch is being made and to the caller afterwards.
 */
#include "data/reader.h"

#include <pthread.h>
#include <string.h>

enum { SLOTS = 3 };

typedef struct slot { /* memory for one batch, of `room` samples */
    int room;
    float *values;
    uint32_t *bits;
    size_t value_count, bit_count;
    int32_t *label;
    uint64_t *sample;
    rv_batch batch;
} slot;

struct rv_loader {
    const rv_source *source;
    int batch;
    bool shuffle;
    uint64_t seed;
    const rv_config *augment; /* NULL: samples stay as they are */
    float *scratch;           /* of one frame, for augmenting */
    slot slots[SLOTS], first;
    uint64_t *order; /* of this epoch */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, ready; /* for the thread; for the caller */
    bool made_mutex, made_work, made_ready, made_thread;
    /* guarded by the mutex */
    bool quit, busy;
    uint32_t epoch;
    int64_t count;       /* batches of an epoch */
    int64_t asked, done; /* batch last asked for; batches before `done` are made */
    rv_status status;
    rv_error error; /* of the thread, when status is not RV_OK */
};

/* ---- one batch --------------------------------------------------------------------------- */
/* Memory for a full batch, taken once; a smaller batch uses the front of it. */
static rv_status slot_init(slot *at, const rv_source *source, int room) {
    rv_status status = RV_OK;
    size_t units = (size_t)rv_shape_units(source->shape);
    size_t width =
        source->spikes ? (size_t)rv_words((int)units) : (size_t)rv_round_up((int)units, RV_LANES);
    size_t count = 0;
    at->room = room;
    TRY(rv_size_mul(width, (size_t)room, &count));
    if (source->steps) TRY(rv_size_mul(count, (size_t)source->steps, &count));
    if (source->spikes) {
        at->bit_count = count;
        TRY(rv_alloc(count, sizeof *at->bits, "a batch", &at->bits));
    } else {
        at->value_count = count;
        TRY(rv_alloc(count, sizeof *at->values, "a batch", &at->values));
    }
    TRY(rv_alloc((size_t)room, sizeof *at->label, "labels of a batch", &at->label));
    TRY(rv_alloc((size_t)room, sizeof *at->sample, "samples of a batch", &at->sample));
out:
    return status;
}

static void slot_finish(slot *at) {
    rv_free(at->values);
    rv_free(at->bits);
    rv_free(at->label);
    rv_free(at->sample);
    *at = (slot){0};
}

/* Views have the shape of the actual batch, so the rows of a ragged one lie together. Readers
 * set bits with `or`, and rows have padding: both rely on zeros. */
static rv_status slot_fill(slot *at, const rv_source *source, const uint64_t *index, int count,
                           uint32_t epoch) {
    int units = rv_shape_units(source->shape), steps = source->steps ? source->steps : 1;
    rv_batch *batch = &at->batch;
    *batch = (rv_batch){.B = count,
                        .label = source->classes ? at->label : NULL,
                        .sample = at->sample,
                        .epoch = epoch};
    if (source->spikes) {
        memset(at->bits, 0, at->bit_count * sizeof *at->bits);
        batch->input.spikes = rv_spikes_of(at->bits, steps, count, units);
    } else {
        memset(at->values, 0, at->value_count * sizeof *at->values);
        batch->input.values = rv_values_of(at->values, steps, count, units);
        if (!source->steps) batch->input.values.stride_t = 0; /* one frame for all steps */
    }
    return source->read(source->self, index, count, epoch, batch);
}

/* ---- the thread -------------------------------------------------------------------------- */
/* One batch ahead of the one asked for: its slot was that of the batch which has just ended. */
static bool has_work(const rv_loader *loader) {
    return loader->status == RV_OK && loader->done < loader->count &&
           loader->done <= loader->asked + 1;
}

/* Work is done with the mutex released. `busy` tells rv_loader_start when the order may change. */
static void *loader_run(void *argument) {
    rv_loader *loader = argument;
    pthread_mutex_lock(&loader->mutex);
    for (;;) {
        int64_t k, begin;
        int count;
        uint32_t epoch;
        rv_status status;
        while (!loader->quit && !has_work(loader))
            pthread_cond_wait(&loader->work, &loader->mutex);
        if (loader->quit) break;
        k = loader->done;
        epoch = loader->epoch;
        loader->busy = true;
        pthread_mutex_unlock(&loader->mutex);

        begin = k * loader->batch;
        count = loader->source->count - begin < loader->batch ? (int)(loader->source->count - begin)
                                                              : loader->batch;
        status = slot_fill(&loader->slots[k % SLOTS], loader->source, loader->order + begin, count,
                           epoch);
        if (status == RV_OK && loader->augment)
            rv_augment_apply(loader->augment, loader->source, &loader->slots[k % SLOTS].batch,
                             loader->scratch);

        pthread_mutex_lock(&loader->mutex);
        loader->busy = false;
        loader->status = status;
        if (status == RV_OK)
            loader->done = k + 1;
        else
            loader->error = *rv_error_get();
        pthread_cond_broadcast(&loader->ready);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* ---- for the caller ---------------------------------------------------------------------- */
/* Everything an epoch needs is allocated here, the thread comes last. */
rv_status rv_loader_create(const rv_source *source, int batch, uint64_t seed, bool shuffle,
                           rv_loader **out) {
    rv_status status = RV_OK;
    rv_loader *loader = NULL;
    if (source->count < 1) FAIL(RV_CONFIG, "there are no samples to take batches of");
    if (shuffle && batch > source->count)
        FAIL(RV_CONFIG, "a batch of %d is more than the %lld samples there are", batch,
             (long long)source->count);
    TRY(rv_alloc(1, sizeof *loader, "a loader", &loader));
    loader->source = source;
    loader->batch = batch < source->count ? batch : (int)source->count;
    loader->seed = seed;
    loader->shuffle = shuffle;
    TRY(rv_alloc((size_t)source->count, sizeof *loader->order, "the order of samples",
                 &loader->order));
    for (int i = 0; i < SLOTS; i++)
        TRY(slot_init(&loader->slots[i], source, loader->batch));
    if (pthread_mutex_init(&loader->mutex, NULL) != 0) FAIL(RV_RESOURCE, "cannot make a mutex");
    loader->made_mutex = true;
    if (pthread_cond_init(&loader->work, NULL) != 0) FAIL(RV_RESOURCE, "cannot make a condition");
    loader->made_work = true;
    if (pthread_cond_init(&loader->ready, NULL) != 0) FAIL(RV_RESOURCE, "cannot make a condition");
    loader->made_ready = true;
    if (pthread_create(&loader->thread, NULL, loader_run, loader) != 0)
        FAIL(RV_RESOURCE, "cannot start the thread that prepares batches");
    loader->made_thread = true;
    *out = loader;
    loader = NULL;
out:
    rv_loader_destroy(loader);
    return status;
}

/* The thread ends after at most one more batch; nothing is left running when this returns. */
void rv_loader_destroy(rv_loader *loader) {
    if (!loader) return;
    if (loader->made_thread) {
        pthread_mutex_lock(&loader->mutex);
        loader->quit = true;
        pthread_cond_signal(&loader->work);
        pthread_mutex_unlock(&loader->mutex);
        pthread_join(loader->thread, NULL);
    }
    if (loader->made_ready) pthread_cond_destroy(&loader->ready);
    if (loader->made_work) pthread_cond_destroy(&loader->work);
    if (loader->made_mutex) pthread_mutex_destroy(&loader->mutex);
    for (int i = 0; i < SLOTS; i++)
        slot_finish(&loader->slots[i]);
    slot_finish(&loader->first);
    rv_free(loader->scratch);
    rv_free(loader->order);
    rv_free(loader);
}

/* The thread looks at it when it has work, which comes under the mutex. */
rv_status rv_loader_augment(rv_loader *loader, const rv_config *config) {
    rv_status status = RV_OK;
    if (!config->data.augment_count) goto out;
    TRY(rv_augment_check(config, loader->source));
    TRY(rv_alloc((size_t)rv_shape_units(loader->source->shape), sizeof *loader->scratch, "a sample",
                 &loader->scratch));
    loader->augment = config;
out:
    return status;
}

/* Waits for a batch in the making, then forgets what was made: slots belong to no batch until
 * done counts them again. */
rv_status rv_loader_start(rv_loader *loader, uint32_t epoch, int64_t first_batch) {
    rv_status status = RV_OK;
    int64_t count = (loader->source->count + loader->batch - 1) / loader->batch;
    if (first_batch < 0 || first_batch > count)
        FAIL(RV_CONFIG, "batch %lld of an epoch of %lld", (long long)first_batch, (long long)count);
    pthread_mutex_lock(&loader->mutex);
    loader->count = 0; /* no further work while the order changes */
    while (loader->busy)
        pthread_cond_wait(&loader->ready, &loader->mutex);
    if (loader->shuffle)
        rv_permute(loader->order, loader->source->count, loader->seed, RV_FOR_SHUFFLE, epoch);
    else
        for (int64_t i = 0; i < loader->source->count; i++)
            loader->order[i] = (uint64_t)i;
    loader->epoch = epoch;
    loader->status = RV_OK;
    loader->done = first_batch;
    loader->asked = first_batch - 1;
    loader->count = count;
    pthread_cond_signal(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
out:
    return status;
}

/* Batches made before an error are still handed out, so the error comes where it belongs. */
rv_status rv_loader_next(rv_loader *loader, const rv_batch **out) {
    rv_status status = RV_OK;
    *out = NULL;
    pthread_mutex_lock(&loader->mutex);
    if (loader->asked + 1 < loader->count) {
        int64_t k = ++loader->asked;
        pthread_cond_signal(&loader->work);
        while (loader->done <= k && loader->status == RV_OK)
            pthread_cond_wait(&loader->ready, &loader->mutex);
        if (loader->done > k) {
            *out = &loader->slots[k % SLOTS].batch;
        } else { /* every further call tells the same */
            loader->asked--;
            status = loader->status;
            rv_error_set(&loader->error);
        }
    }
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

/* In the caller's thread and in memory of its own: the running epoch is not disturbed. */
rv_status rv_loader_first(rv_loader *loader, int count, const rv_batch **out) {
    rv_status status = RV_OK;
    uint64_t *index = NULL;
    if (count < 1 || count > loader->source->count)
        FAIL(RV_CONFIG, "%d samples of %lld", count, (long long)loader->source->count);
    if (loader->first.room < count) {
        slot_finish(&loader->first);
        TRY(slot_init(&loader->first, loader->source, count));
    }
    TRY(rv_alloc((size_t)count, sizeof *index, "an order of samples", &index));
    for (int i = 0; i < count; i++)
        index[i] = (uint64_t)i;
    TRY(slot_fill(&loader->first, loader->source, index, count, 0));
    *out = &loader->first.batch;
out:
    rv_free(index);
    return status;
}
