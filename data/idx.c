/*
 * Reader `idx`: the format of MNIST (LeCun, "The MNIST database", appendix), plain or gzip.
 * Two zero bytes, a type byte (8 = unsigned byte), the rank, `rank` big-endian 32-bit sizes, then
 * the bytes. A header is believed only as far as the file can hold what it promises, and memory is
 * taken in steps while the bytes arrive, so a small file cannot ask for much. Samples stay bytes.
 */
#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum {
    RANK_MOST = 4,
    TYPE_BYTE = 8,
    SAMPLE_MOST = 1 << 22, /* bytes of one sample */
    STEP = 1 << 20,        /* bytes taken at a time */
    DEFLATE_MOST = 1032,   /* times its size a deflate stream can grow (zlib technical details) */
    BUFFER = 1 << 17,      /* packed bytes read at a time */
};

typedef struct stream {
    const char *path;
    int fd;        /* -1: not open */
    int64_t bytes; /* of the file on disk */
    int64_t offset;
    bool packed;
    /* of a packed one */
    z_stream z;
    unsigned char *buffer;
    bool between; /* one member has ended and none begun */
} stream;

typedef struct idx_file { /* samples in slabs of `per_slab`, so that growing copies nothing */
    int rank;
    uint32_t dim[RANK_MOST];
    int64_t count;
    size_t sample; /* bytes */
    int64_t per_slab, slabs;
    unsigned char **slab;
} idx_file;

/* ---- reading ----------------------------------------------------------------------------- */
/* Packed or plain is told by the first two bytes. */
static rv_status stream_open(stream *in, const char *path) {
    rv_status status = RV_OK;
    struct stat about;
    unsigned char magic[2] = {0};
    *in = (stream){.path = path, .fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    if (in->fd < 0) FAIL(RV_INPUT, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(in->fd, &about) != 0)
        FAIL(RV_INPUT, "%s: cannot look at it: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode)) FAIL(RV_INPUT, "%s: not a regular file", path);
    in->bytes = about.st_size;
    if (pread(in->fd, magic, 2, 0) < 0) FAIL(RV_IO, "%s: cannot read: %s", path, strerror(errno));
    if (magic[0] != 0x1F || magic[1] != 0x8B) goto out;
    TRY(rv_alloc(BUFFER, 1, path, &in->buffer));
    if (inflateInit2(&in->z, 16 + MAX_WBITS) != Z_OK) /* 16: with gzip's header and checksum */
        FAIL(RV_MEMORY, "out of memory while opening %s", path);
    in->packed = true;
out:
    return status;
}

static void stream_close(stream *in) {
    if (in->packed) (void)inflateEnd(&in->z); /* fails only for a stream that is none */
    rv_free(in->buffer);
    if (in->fd >= 0) (void)close(in->fd);
    *in = (stream){.fd = -1};
}

/* *got is 0 only at the end of the file. */
static rv_status file_read(const stream *in, void *bytes, size_t size, unsigned *got) {
    ssize_t count;
    do
        count = read(in->fd, bytes, size);
    while (count < 0 && errno == EINTR);
    if (count < 0)
        return rv_fail(RV_IO, "%s: cannot read after byte %lld of its data: %s", in->path,
                       (long long)in->offset, strerror(errno));
    *got = (unsigned)count;
    return RV_OK;
}

/* Members may follow each other; anything else after one is not for gzip, and most likely a sign
 * that the file was put together wrongly. gzread would pass over it in silence. */
static rv_status packed_read(stream *in, void *bytes, unsigned size, unsigned *got) {
    rv_status status = RV_OK;
    z_stream *z = &in->z;
    z->next_out = bytes;
    z->avail_out = size;
    while (z->avail_out > 0) {
        if (z->avail_in == 0) {
            TRY(file_read(in, in->buffer, BUFFER, &z->avail_in));
            z->next_in = in->buffer;
            if (z->avail_in == 0 && in->between) break;
        }
        if (in->between && inflateReset(z) != Z_OK) FAIL(RV_INTERNAL, "inflateReset");
        int code = inflate(z, Z_NO_FLUSH);
        int64_t after = in->offset + (size - z->avail_out);
        if (code == Z_MEM_ERROR) FAIL(RV_MEMORY, "out of memory while reading %s", in->path);
        if (code != Z_OK && code != Z_STREAM_END)
            FAIL(RV_DATA, "%s: damaged gzip data after byte %lld: %s", in->path, (long long)after,
                 in->between         ? "what follows is not gzip"
                 : z->msg            ? z->msg
                 : z->avail_in == 0u ? "unexpected end of file"
                                     : "not gzip");
        in->between = code == Z_STREAM_END;
    }
out:
    *got = size - z->avail_out;
    return status;
}

/* Up to `size` bytes; *got < size at the end of the data. A damaged gzip stream is RV_DATA. */
static rv_status stream_read(stream *in, void *bytes, unsigned size, unsigned *got) {
    rv_status status = RV_OK;
    *got = 0;
    if (in->packed) {
        TRY(packed_read(in, bytes, size, got));
    } else {
        unsigned one = 1;
        for (; *got < size && one; *got += one)
            TRY(file_read(in, (char *)bytes + *got, size - *got, &one));
    }
    in->offset += *got;
out:
    return status;
}

/* In steps, so that zlib's counters (unsigned int) never see a large size. */
static rv_status stream_fill(stream *in, void *bytes, size_t size, const char *what) {
    rv_status status = RV_OK;
    for (size_t done = 0; done < size;) {
        unsigned want = size - done < STEP ? (unsigned)(size - done) : STEP, got = 0;
        TRY(stream_read(in, (char *)bytes + done, want, &got));
        if (got == 0)
            FAIL(RV_DATA, "%s: truncated at byte %lld in the %s: %zu bytes missing of %zu",
                 in->path, (long long)in->offset, what, size - done, size);
        done += got;
    }
out:
    return status;
}

/* ---- header ------------------------------------------------------------------------------ */
/* The type is part of it: only bytes are read. */
static bool idx_match(const unsigned char first[4]) {
    return first[0] == 0 && first[1] == 0 && first[2] == TYPE_BYTE && first[3] >= 1 &&
           first[3] <= RANK_MOST;
}

/* Each size is checked as it comes, in 64 bits, and the product against what the file can hold. */
static rv_status header_read(stream *in, idx_file *file) {
    rv_status status = RV_OK;
    unsigned char head[4] = {0}, size[4];
    uint64_t total = 1, held;
    TRY(stream_fill(in, head, 4, "header"));
    if (!idx_match(head))
        FAIL(RV_DATA,
             "%s: byte 0: magic number 0x%02x%02x%02x%02x; expected 0x000008 and a rank of 1 to %d",
             in->path, head[0], head[1], head[2], head[3], RANK_MOST);
    file->rank = head[3];
    for (int i = 0; i < file->rank; i++) {
        TRY(stream_fill(in, size, 4, "header"));
        file->dim[i] = (uint32_t)size[0] << 24 | (uint32_t)size[1] << 16 | (uint32_t)size[2] << 8 |
                       (uint32_t)size[3];
        if (file->dim[i] == 0)
            FAIL(RV_DATA, "%s: byte %d: size %d of the header is 0", in->path, 4 + 4 * i, i);
        if (__builtin_mul_overflow(total, file->dim[i], &total) || total > INT64_MAX)
            FAIL(RV_DATA, "%s: byte %d: the header promises more than 2^63 bytes", in->path,
                 4 + 4 * i);
    }
    file->count = file->dim[0];
    if (total / file->dim[0] > SAMPLE_MOST)
        FAIL(RV_DATA, "%s: a sample of %llu bytes; at most %d are read", in->path,
             (unsigned long long)(total / file->dim[0]), SAMPLE_MOST);
    file->sample = (size_t)(total / file->dim[0]);
    held = (uint64_t)in->bytes * (in->packed ? DEFLATE_MOST : 1);
    if (total > held)
        FAIL(RV_DATA,
             "%s: the header promises %llu bytes; a file of %lld bytes cannot hold more than %llu",
             in->path, (unsigned long long)total, (long long)in->bytes, (unsigned long long)held);
out:
    return status;
}

/* ---- whole files ------------------------------------------------------------------------- */
/* Also of a file whose loading stopped half-way: `slabs` counts those that exist. */
static void idx_free(idx_file *file) {
    for (int64_t i = 0; file->slab && i < file->slabs; i++)
        rv_free(file->slab[i]);
    rv_free(file->slab);
    *file = (idx_file){0};
}

/* Slabs hold whole samples, so a sample is never cut. */
static const unsigned char *idx_sample(const idx_file *file, uint64_t index) {
    uint64_t per = (uint64_t)file->per_slab;
    return file->slab[index / per] + index % per * file->sample;
}

/* After the last byte the file must end; the attempt also makes zlib check its checksum. A
 * longer file means that header and data do not belong together. */
static rv_status end_check(stream *in) {
    rv_status status = RV_OK;
    unsigned char more;
    unsigned got = 0;
    TRY(stream_read(in, &more, 1, &got));
    if (got)
        FAIL(RV_DATA, "%s: more data than the header promises: it should end at byte %lld",
             in->path, (long long)in->offset - 1);
out:
    return status;
}

/* A slab is allocated when the bytes before it have arrived: a lying header costs one slab at
 * most. */
static rv_status idx_load(const char *path, idx_file *file) {
    rv_status status = RV_OK;
    stream in = {.fd = -1};
    int64_t slabs;
    TRY(stream_open(&in, path));
    TRY(header_read(&in, file));
    file->per_slab = file->sample < STEP ? STEP / (int64_t)file->sample : 1;
    slabs = (file->count + file->per_slab - 1) / file->per_slab;
    TRY(rv_alloc((size_t)slabs, sizeof *file->slab, path, &file->slab));
    for (int64_t i = 0; i < slabs; i++) {
        int64_t left = file->count - i * file->per_slab;
        size_t bytes = (size_t)(left < file->per_slab ? left : file->per_slab) * file->sample;
        TRY(rv_alloc(bytes, 1, path, &file->slab[i]));
        file->slabs = i + 1;
        TRY(stream_fill(&in, file->slab[i], bytes, "samples"));
    }
    TRY(end_check(&in));
out:
    stream_close(&in);
    if (status != RV_OK) idx_free(file);
    return status;
}

/* Loading everything is the check that the file is whole. */
static rv_status idx_describe(const char *path, rv_data_info *out) {
    rv_status status = RV_OK;
    idx_file file = {0};
    TRY(idx_load(path, &file));
    *out = (rv_data_info){.format = "idx", .type = "uint8", .rank = file.rank};
    for (int i = 0; i < file.rank; i++)
        out->dim[i] = file.dim[i];
out:
    idx_free(&file);
    return status;
}

/* ---- the source -------------------------------------------------------------------------- */
typedef struct idx_options {
    char *root, *train_inputs, *train_labels, *test_inputs, *test_labels;
    int classes;
} idx_options;
_Static_assert(sizeof(idx_options) <= RV_READER_OPTIONS, "room for the options");

static const char *const file_options[] = {"root",        "train.inputs", "train.labels",
                                           "test.inputs", "test.labels",  NULL};

const rv_spec rv_reader_idx_specs[] = {
    {"root", RV_T_TEXT, offsetof(idx_options, root), 0, 1, .choices = ".",
     .sentence = "folder of the files"},
    {"train.inputs", RV_T_TEXT, offsetof(idx_options, train_inputs), 0, 1,
     .sentence = "IDX file of bytes, plain or gzip: [n][units], [n][h][w] or [n][c][h][w]"},
    {"train.labels", RV_T_TEXT, offsetof(idx_options, train_labels), 0, 1,
     .sentence = "IDX file of bytes [n]"},
    {"test.inputs", RV_T_TEXT, offsetof(idx_options, test_inputs),
     .sentence = "the same for the test split; default: none"},
    {"test.labels", RV_T_TEXT, offsetof(idx_options, test_labels),
     .sentence = "the same for the test split; default: none"},
    {"classes", RV_T_INT, offsetof(idx_options, classes), 10, 1, 256,
     .sentence = "labels are smaller than this"},
    {.name = NULL},
};

typedef struct idx_source {
    idx_file inputs, labels;
    float value[256]; /* of each byte, normalized */
} idx_source;

/* The table of 256 values replaces a division a pixel. Padding past the last unit stays zero. */
static rv_status idx_read(void *self, const uint64_t *index, int count, uint32_t epoch,
                          rv_batch *batch) {
    const idx_source *source = self;
    const rv_values *values = &batch->input.values;
    (void)epoch;
    for (int b = 0; b < count; b++) {
        const unsigned char *bytes = idx_sample(&source->inputs, index[b]);
        float *row = values->data + (size_t)b * (size_t)values->ld;
        for (size_t u = 0; u < source->inputs.sample; u++)
            row[u] = source->value[bytes[u]];
        /* The batch's memory is the caller's and meant to be filled here. */
        ((int32_t *)batch->label)[b] = *idx_sample(&source->labels, index[b]);
        ((uint64_t *)batch->sample)[b] = index[b];
    }
    return RV_OK;
}

static void idx_close(void *self) {
    idx_source *source = self;
    if (!source) return;
    idx_free(&source->inputs);
    idx_free(&source->labels);
    rv_free(source);
}

/* An absolute name stands for itself. */
static rv_status path_of(const idx_options *options, const char *name, char **out) {
    rv_status status = RV_OK;
    size_t size = strlen(options->root) + strlen(name) + 2;
    TRY(rv_alloc(size, 1, "a path", out));
    snprintf(*out, size, "%s%s%s", name[0] == '/' ? "" : options->root, name[0] == '/' ? "" : "/",
             name);
out:
    return status;
}

/* What no single file can tell. Labels are looked at once here, so training need not. */
static rv_status fits_check(const idx_source *source, const char *inputs, const char *labels,
                            int classes) {
    rv_status status = RV_OK;
    if (source->inputs.rank < 2)
        FAIL(RV_DATA, "%s: rank 1; samples need a rank of 2 to %d", inputs, RANK_MOST);
    if (source->labels.rank != 1)
        FAIL(RV_DATA, "%s: rank %d; labels need rank 1", labels, source->labels.rank);
    if (source->inputs.count != source->labels.count)
        FAIL(RV_DATA, "%s has %lld samples, but %s %lld labels", inputs,
             (long long)source->inputs.count, labels, (long long)source->labels.count);
    for (int64_t i = 0; i < source->labels.count; i++)
        if (*idx_sample(&source->labels, (uint64_t)i) >= classes)
            FAIL(RV_DATA, "%s: byte %lld: label %d of sample %lld; data.classes is %d", labels,
                 (long long)i + 8, *idx_sample(&source->labels, (uint64_t)i), (long long)i,
                 classes);
out:
    return status;
}

/* Labels first: they are small, and a wrong name there should not cost reading the images. */
static rv_status idx_open(const rv_config *config, rv_split split, rv_source *out) {
    rv_status status = RV_OK;
    const idx_options *options = config->data.options;
    bool test = split == RV_SPLIT_TEST;
    const char *input_name = test ? options->test_inputs : options->train_inputs;
    const char *label_name = test ? options->test_labels : options->train_labels;
    char *inputs = NULL, *labels = NULL;
    idx_source *source = NULL;
    rv_shape shape = {0};
    if (!input_name && !label_name) goto out;
    if (!input_name || !label_name)
        FAIL_AT(RV_CONFIG, config->data.where, "data.test", NULL,
                "\"data.test\" needs both inputs and labels");
    TRY(path_of(options, input_name, &inputs));
    TRY(path_of(options, label_name, &labels));
    TRY(rv_alloc(1, sizeof *source, "a data set", &source));
    TRY(idx_load(labels, &source->labels));
    TRY(idx_load(inputs, &source->inputs));
    TRY(fits_check(source, inputs, labels, options->classes));
    for (int i = 0; i < 256; i++) /* in float32, as the Python libraries normalize */
        source->value[i] = ((float)i / 255.0f - (float)config->data.mean) / (float)config->data.std;
    shape.rank = source->inputs.rank == 2 ? 1 : 3;
    for (int i = 0; i < shape.rank; i++) /* [n][h][w] has one channel */
        shape.dim[i] = source->inputs.rank == 3 ? (i ? (int)source->inputs.dim[i] : 1)
                                                : (int)source->inputs.dim[i + 1];
    *out = (rv_source){.self = source,
                       .count = source->inputs.count,
                       .shape = shape,
                       .classes = options->classes,
                       .read = idx_read,
                       .close = idx_close};
    source = NULL;
out:
    idx_close(source);
    rv_free(inputs);
    rv_free(labels);
    return status;
}

/* ---- digest ------------------------------------------------------------------------------ */
/* A gzip member ends with the checksum and the size of what is in it (RFC 1952). Where that is the
 * size the header promises, it is the only member, and nothing need be unpacked: that the checksum
 * is right is seen when the file is loaded. *whole: found so. */
static rv_status digest_trailer(stream *in, bool *whole, int64_t *size, uLong *crc) {
    rv_status status = RV_OK;
    idx_file file = {0};
    unsigned char end[8];
    uint32_t word[2] = {0};
    TRY(header_read(in, &file));
    *size = in->offset + file.count * (int64_t)file.sample;
    if (pread(in->fd, end, sizeof end, in->bytes - (int64_t)sizeof end) != sizeof end)
        FAIL(RV_IO, "%s: cannot read its last bytes: %s", in->path, strerror(errno));
    for (int i = 7; i >= 0; i--)
        word[i / 4] = word[i / 4] << 8 | end[i];
    *whole = word[1] == (uint32_t)*size;
    *crc = word[0];
out:
    return status;
}

/* Of the bytes within a gzip file: packing it anew does not change the data. */
static rv_status digest_file(const idx_options *options, const char *name, uint64_t *hash) {
    rv_status status = RV_OK;
    char *path = NULL, *bytes = NULL;
    stream in = {.fd = -1};
    unsigned got = 1;
    bool whole = false;
    int64_t size = 0;
    uLong crc = crc32(0, NULL, 0);
    TRY(path_of(options, name, &path));
    TRY(stream_open(&in, path));
    if (in.packed) {
        TRY(digest_trailer(&in, &whole, &size, &crc));
        if (!whole) { /* from the start */
            stream_close(&in);
            TRY(stream_open(&in, path));
            crc = crc32(0, NULL, 0);
        }
    }
    if (!whole) {
        TRY(rv_alloc(STEP, 1, "a buffer", &bytes));
        while (got) {
            TRY(stream_read(&in, bytes, STEP, &got));
            crc = crc32(crc, (const Bytef *)bytes, got);
        }
        size = in.offset;
    }
    *hash = rv_hash(*hash, &size, sizeof size);
    *hash = rv_hash(*hash, &crc, sizeof crc);
out:
    stream_close(&in);
    rv_free(bytes);
    rv_free(path);
    return status;
}

/* Both splits: test data do not train, but they decide what is reported. */
static rv_status idx_digest(const rv_config *config, uint64_t *hash) {
    rv_status status = RV_OK;
    const idx_options *options = config->data.options;
    const char *const names[] = {options->train_inputs, options->train_labels, options->test_inputs,
                                 options->test_labels};
    for (int i = 0; i < 4; i++)
        if (names[i]) TRY(digest_file(options, names[i], hash));
out:
    return status;
}

const rv_reader rv_reader_idx = {file_options, idx_open, idx_digest, idx_match, idx_describe};
