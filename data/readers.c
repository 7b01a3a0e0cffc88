/* The table of readers, opening the splits of a recipe, and what a data file holds. */
#include "data/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static const rv_reader_row rows[] = {
    {{"idx", "images and labels of bytes, as MNIST and Fashion-MNIST come, plain or gzip",
      "LeCun, Cortes, Burges: The MNIST database of handwritten digits", rv_reader_idx_specs,
      RV_READER_OPTIONS},
     &rv_reader_idx},
    {{"bernoulli", "synthetic spikes whose rates depend on the class",
      "independent Bernoulli bits from Philox", rv_reader_bernoulli_specs, RV_READER_OPTIONS},
     &rv_reader_bernoulli},
    {{"manifold", "synthetic values: each class a smooth surface, each sample a point of it",
      "sums of products of sines; Zenke, Vogels 2021 (random manifolds)", rv_reader_manifold_specs,
      RV_READER_OPTIONS},
     &rv_reader_manifold},
};
enum { ROWS = sizeof rows / sizeof *rows };

const rv_table *rv_reader_table(void) {
    static const rv_table table = {"readers", rows, sizeof *rows, ROWS};
    return &table;
}

/* The words of --split and of metrics. */
const char *rv_split_name(rv_split split) {
    static const char *const names[RV_SPLITS] = {"train", "validation", "test"};
    return names[split];
}

/* ---- shares of the training samples ------------------------------------------------------ */
/* Called by the last share that closes, in any order. */
static void shared_done(void *user) {
    rv_shared_source *shared = user;
    if (--shared->users > 0) return;
    if (shared->source.close) shared->source.close(shared->source.self);
    shared->source = (rv_source){0};
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* One share: the first `held` of the drawn order are validation, the others train; each is kept
 * in file order. Drawing the order of all samples and cutting it keeps both shares exact
 * complements. */
static rv_status share_open(const rv_config *config, rv_shared_source *shared, rv_split split,
                            rv_source *out) {
    rv_status status = RV_OK;
    const rv_source *base = &shared->source;
    int64_t held = (int64_t)((double)base->count * config->data.validation + 0.5);
    int64_t count = split == RV_SPLIT_VALIDATION ? held : base->count - held;
    uint64_t *order = NULL, *index = NULL;
    if (held < 1 || held >= base->count)
        FAIL_AT(RV_CONFIG, config->data.where, "data.validation", NULL,
                "\"data.validation\" %g of %lld samples leaves a share empty",
                config->data.validation, (long long)base->count);
    TRY(rv_alloc((size_t)base->count, sizeof *order, "the order of samples", &order));
    TRY(rv_alloc((size_t)count, sizeof *index, "the samples of a share", &index));
    rv_permute(order, base->count, config->seed, RV_FOR_SPLIT, 0);
    memcpy(index, split == RV_SPLIT_VALIDATION ? order : order + held,
           (size_t)count * sizeof *index);
    qsort(index, (size_t)count, sizeof *index, ascending);
    TRY(rv_subset_open(base, index, count, shared_done, shared, out));
    index = NULL;
out:
    rv_free(index);
    rv_free(order);
    return status;
}

/* The network is made for one split and reads the others as if they were the same. */
static rv_status split_fits(const rv_config *config, rv_split split, const rv_source *source) {
    rv_status status = RV_OK;
    rv_shared_source *shared = config->data.shared;
    const rv_source *like = &shared->like;
    char one[48], other[48];
    if (!source->shape.rank) goto out; /* a recipe need not have a test split */
    if (!like->shape.rank) {
        shared->like =
            (rv_source){.shape = source->shape, .steps = source->steps, .spikes = source->spikes};
        shared->like_split = split;
    }
    if (!rv_shape_equal(source->shape, like->shape))
        FAIL_AT(RV_DATA, config->data.where, "data", NULL,
                "samples of the %s split are %s, those of the %s split %s", rv_split_name(split),
                rv_shape_text(source->shape, one), rv_split_name(shared->like_split),
                rv_shape_text(like->shape, other));
    if (source->steps != like->steps || source->spikes != like->spikes)
        FAIL_AT(RV_DATA, config->data.where, "data", NULL,
                "samples of the %s split are %s over %d steps, those of the %s split %s over %d",
                rv_split_name(split), source->spikes ? "spikes" : "values", source->steps,
                rv_split_name(shared->like_split), like->spikes ? "spikes" : "values", like->steps);
out:
    return status;
}

/* Without a validation share the training source is handed out itself, without a detour. */
rv_status rv_data_open(const rv_config *config, rv_split split, rv_source *out) {
    rv_status status = RV_OK;
    const rv_reader *reader = ((const rv_reader_row *)config->data.reader)->reader;
    rv_shared_source *shared = config->data.shared;
    *out = (rv_source){0};
    if (split == RV_SPLIT_TEST || (split == RV_SPLIT_TRAIN && config->data.validation <= 0)) {
        TRY(reader->open(config, split, out));
        status = split_fits(config, split, out);
        if (status != RV_OK) {
            out->close(out->self);
            *out = (rv_source){0};
        }
        goto out;
    }
    if (config->data.validation <= 0) goto out; /* no validation share */
    if (shared->users == 0) TRY(reader->open(config, RV_SPLIT_TRAIN, &shared->source));
    shared->users++;
    status = split_fits(config, split, &shared->source);
    if (status == RV_OK) status = share_open(config, shared, split, out);
    if (status != RV_OK) shared_done(shared);
out:
    return status;
}

/* ---- looking at a file ------------------------------------------------------------------- */
/* The first four bytes choose the reader, whose own check then reads everything. */
rv_status rv_data_describe(const char *path, rv_data_info *out) {
    rv_status status = RV_OK;
    unsigned char first[4] = {0};
    gzFile file = gzopen(path, "rbe");
    int got, error = Z_OK;
    if (!file && errno == ENOMEM) FAIL(RV_MEMORY, "out of memory while opening %s", path);
    if (!file) FAIL(RV_INPUT, "%s: cannot open: %s", path, strerror(errno));
    got = gzread(file, first, sizeof first);
    (void)gzerror(file, &error);
    if (got < 0 && error == Z_ERRNO) FAIL(RV_INPUT, "%s: cannot read: %s", path, strerror(errno));
    for (int i = 0; i < ROWS; i++) {
        if (got == sizeof first && rows[i].reader->match && rows[i].reader->match(first)) {
            TRY(rows[i].reader->describe(path, out));
            goto out;
        }
    }
    FAIL(RV_DATA, "%s: %s", path, got < 0 ? "damaged gzip data" : "no reader knows this format");
out:
    if (file) (void)gzclose(file);
    return status;
}
