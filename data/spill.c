/*
 * Records on the disk for as long as a run lasts. HDF5 makes the frame of the file, in which the
 * records lie in one piece; they are written and read at their places by plain calls, so that a
 * full disk is an error of the write that met it. No run syncs: after a crash nobody wants them.
 */
#include "data/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CALL(site, call) (rv_fault(site) ? (errno = EIO, (ssize_t)-1) : (call))

typedef struct sums { /* of a record as far as it has gone */
    uint64_t written, read;
} sums;

struct rv_spill {
    char *path;
    bool named; /* there is a file to remove */
    int fd;
    size_t records, bytes;
    uint64_t offset; /* of the first record */
    sums *sums;      /* [records] */
};

/* FNV-1a over words: as fast as the memory, and one wrong bit changes it. A rest that is no word
 * counts as one. */
static uint64_t sum_on(uint64_t sum, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    for (uint64_t word = 0; size > 0; word = 0) {
        size_t part = size < sizeof word ? size : sizeof word;
        memcpy(&word, at, part);
        sum = (sum ^ word) * 0x100000001b3u;
        sum ^= sum >> 32; /* high bits come down, too */
        at += part, size -= part;
    }
    return sum;
}

/* A name of its own, which is taken away again once the file is open. */
static rv_status nameless(rv_spill *it, const char *folder) {
    rv_status status = RV_OK;
    static const char pattern[] = "/ranvier-tapes-XXXXXX";
    size_t size = strlen(folder) + sizeof pattern;
    TRY(rv_alloc(size, 1, "a path", &it->path));
    snprintf(it->path, size, "%s%s", folder, pattern);
    int fd = mkstemp(it->path);
    if (fd < 0) {
        status = rv_fail_create(it->path);
        goto out;
    }
    it->named = true;
    if (close(fd) != 0) status = rv_fail_io(it->path, "close", 0);
out:
    return status;
}

static rv_status named(rv_spill *it, const char *folder, const char *name) {
    rv_status status = RV_OK;
    size_t size = strlen(folder) + strlen(name) + sizeof "/.tmp";
    TRY(rv_alloc(size, 1, "a path", &it->path));
    snprintf(it->path, size, "%s/%s.tmp", folder, name);
    it->named = true;
out:
    return status;
}

/* HDF5 1.10 crashes at the end of a process in which closing a file has failed: so it never makes
 * one that is larger than a file may be. */
static rv_status size_check(const char *folder, size_t bytes) {
    enum { FRAME = 1 << 16 }; /* more than HDF5 puts around the records */
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return RV_OK;
    if (bytes <= SIZE_MAX - FRAME && bytes + FRAME <= limit.rlim_cur) return RV_OK;
    return rv_fail(RV_IO,
                   "%s: spilled tapes need a file of %zu bytes, %llu are allowed (ulimit -f)",
                   folder, bytes, (unsigned long long)limit.rlim_cur);
}

rv_status rv_spill_create(const char *folder, const char *name, size_t records, size_t bytes,
                          rv_spill **out) {
    rv_status status = RV_OK;
    rv_spill *it = NULL;
    size_t all;
    *out = NULL;
    if (!folder) folder = P_tmpdir;
    TRY(rv_size_mul(records, bytes, &all));
    TRY(rv_alloc(1, sizeof *it, "a file for tapes", &it));
    it->fd = -1, it->records = records, it->bytes = bytes;
    TRY(rv_alloc(records, sizeof *it->sums, "sums", &it->sums));
    TRY(rv_commit_room(folder, "spilled tapes", all));
    TRY(size_check(folder, all));
    TRY(name ? named(it, folder, name) : nameless(it, folder));
    TRY(rv_h5_reserve(it->path, "tapes", records, bytes, &it->offset));
    it->fd = open(it->path, O_RDWR | O_CLOEXEC);
    if (it->fd < 0) {
        status = rv_fail_create(it->path);
        goto out;
    }
    if (!name) {
        if (unlink(it->path) != 0) status = rv_fail_io(it->path, "unlink", 0);
        it->named = false;
    }
    if (status) goto out;
    *out = it;
    it = NULL;
out:
    rv_spill_destroy(it);
    return status;
}

void rv_spill_destroy(rv_spill *it) {
    if (!it) return;
    if (it->fd >= 0) (void)close(it->fd);
    if (it->named) (void)unlink(it->path);
    rv_free(it->sums);
    rv_free(it->path);
    rv_free(it);
}

/* Short counts and interrupted calls go on. */
rv_status rv_spill_write(rv_spill *it, size_t record, size_t at, const void *from, size_t size) {
    const char *bytes = from;
    uint64_t place = it->offset + (uint64_t)record * it->bytes + at;
    sums *own = &it->sums[record];
    for (size_t done = 0; done < size;) {
        ssize_t count =
            CALL(RV_FAULT_WRITE, pwrite(it->fd, bytes + done, size - done, (off_t)(place + done)));
        if (count > 0) {
            done += (size_t)count;
        } else if (count == 0 || errno != EINTR) {
            if (count == 0) errno = ENOSPC;
            return rv_fail_io(it->path, "write", it->bytes);
        }
    }
    own->written = sum_on(at == 0 ? 0 : own->written, from, size);
    return RV_OK;
}

rv_status rv_spill_flush(rv_spill *it) {
    if (fdatasync(it->fd) != 0) return rv_fail_io(it->path, "fdatasync", 0);
    int error = posix_fadvise(it->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (!error) return RV_OK;
    errno = error;
    return rv_fail_io(it->path, "posix_fadvise", 0);
}

rv_status rv_spill_read(rv_spill *it, size_t record, size_t at, void *to, size_t size) {
    char *bytes = to;
    uint64_t place = it->offset + (uint64_t)record * it->bytes + at;
    sums *own = &it->sums[record];
    for (size_t done = 0; done < size;) {
        ssize_t count = pread(it->fd, bytes + done, size - done, (off_t)(place + done));
        if (count == 0) return rv_fail(RV_IO, "%s: ends before a tape does", it->path);
        if (count < 0 && errno != EINTR) return rv_fail_io(it->path, "read", it->bytes);
        if (count > 0) done += (size_t)count;
    }
    own->read = sum_on(at == 0 ? 0 : own->read, to, size);
    if (at + size == it->bytes && own->read != own->written)
        return rv_fail(RV_DATA, "%s: record %zu is not what was written", it->path, record);
    return RV_OK;
}
