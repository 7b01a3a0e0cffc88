/*
 * Inside data/: a reader is one file with a const rv_reader and its specs, and one line in the
 * table of readers.c. Its options come from the `data` map of the recipe by its specs.
 */
#ifndef RV_DATA_READER_H
#define RV_DATA_READER_H

#include "data/config.h"

typedef struct rv_reader {
    /* Text options that name files, NULL-terminated; the first is the folder of the others. They
     * are left out of the digest: contents count, not paths. NULL: reads no file. */
    const char *const *files;
    /* Open the training or test samples. count 0: the recipe names none. The source fills rows
     * 0..count-1 of a batch: frames [B][ld] (steps = 0), values or bits [T][B][..] (steps = T),
     * labels and sample = index; rows are zero before. `config` outlives the source. */
    rv_status (*open)(const rv_config *config, rv_split split, rv_source *out);
    /* Mix the contents of all files into *hash; NULL: no files. */
    rv_status (*digest)(const rv_config *config, uint64_t *hash);
    /* Does a file (uncompressed) begin like this? And what is in it? NULL: no file format. */
    bool (*match)(const unsigned char first[4]);
    rv_status (*describe)(const char *path, rv_data_info *out);
} rv_reader;

struct rv_reader_row { /* of rv_reader_table() */
    rv_row head;
    const rv_reader *reader;
};
enum { RV_READER_OPTIONS = 256 }; /* room for any reader's options, which each asserts */

extern const rv_reader rv_reader_idx, rv_reader_bernoulli, rv_reader_manifold;
extern const rv_spec rv_reader_idx_specs[], rv_reader_bernoulli_specs[];
extern const rv_spec rv_reader_manifold_specs[];

/* 0..count-1 in an order drawn by (seed, purpose, epoch): Fisher-Yates on Philox. */
void rv_permute(uint64_t *index, int64_t count, uint64_t seed, rv_purpose purpose, uint32_t epoch);

/* A source of some samples of another: index[i] of base is sample i. Takes index (rv_free). close
 * leaves `base` alone and calls `done(user)`. Keys of random numbers stay those of base. */
RV_CHECKED rv_status rv_subset_open(const rv_source *base, uint64_t *index, int64_t count,
                                    void (*done)(void *user), void *user, rv_source *out);

/* data.augment (augment.c). keys: read the list of the source tree, write it to `out` of the
 * resolved one. check, apply: can the source's samples be changed? And change a batch in place;
 * scratch [units of a frame]. */
RV_CHECKED rv_status rv_augment_keys(rv_config *config, const rv_node *source, rv_node *out);
RV_CHECKED rv_status rv_augment_check(const rv_config *config, const rv_source *source);
void rv_augment_apply(const rv_config *config, const rv_source *source, const rv_batch *batch,
                      float *scratch);

/* The training source, opened once for the training and the validation share; and what the first
 * split that was opened is like, as every other must be. */
typedef struct rv_shared_source {
    rv_source source;
    int users;
    rv_source like; /* shape, steps, spikes; shape.rank 0: none yet */
    rv_split like_split;
} rv_shared_source;

/* 64-bit FNV-1a. */
#define RV_HASH_START 0xCBF29CE484222325u
static inline uint64_t rv_hash(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *at = (const unsigned char *)bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001B3u;
    return hash;
}
static inline uint64_t rv_hash_text(uint64_t hash, const char *text) {
    size_t size = 0;
    while (text[size])
        size++;
    return rv_hash(hash, text, size + 1); /* with its NUL: "ab","c" is not "a","bc" */
}

#endif
