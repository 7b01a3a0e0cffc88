/*
 * Files that survive a crash: written whole under a temporary name in the same folder, brought to
 * the disk, then renamed. After a power cut the path holds the old or the new file. A failing fsync
 * or close is a failed commit and not tried again: the kernel may have dropped the pages.
 */
#include "data/data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* One system call that fails when its fault hook says so. */
#define CALL(site, failed, call) (rv_fault(site) ? (errno = EIO, failed) : (call))

/* Where the temporary file lies: rename works within one file system only. */
static rv_status folder_of(const char *path, char **out) {
    rv_status status = RV_OK;
    const char *slash = strrchr(path, '/');
    TRY(rv_strdup(slash ? path : ".", out));
    if (slash) (*out)[slash == path ? 1 : slash - path] = 0;
out:
    return status;
}

/* Bytes needed and free tell a full disk from a broken one. */
rv_status rv_fail_io(const char *path, const char *what, size_t needed) {
    struct statvfs room;
    int error = errno;
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (statvfs(folder, &room) != 0)
        return rv_fail(RV_IO, "%s: cannot %s: %s (%zu bytes needed)", path, what, strerror(error),
                       needed);
    return rv_fail(RV_IO, "%s: cannot %s: %s (%zu bytes needed, %llu free)", path, what,
                   strerror(error), needed,
                   (unsigned long long)room.f_bavail * (unsigned long long)room.f_frsize);
}

rv_status rv_fail_create(const char *path) {
    if (errno == ENOSPC || errno == EDQUOT) return rv_fail_io(path, "create", 1);
    return rv_fail(RV_CREATE, "%s: cannot create: %s", path, strerror(errno));
}

/* Short writes and interrupted calls go on; the largest single write keeps below 2 GiB, where
 * Linux would cut it anyway. */
static int write_all(int fd, const char *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        size_t want = size - done < (1u << 30) ? size - done : 1u << 30;
        ssize_t count = CALL(RV_FAULT_WRITE, -1, write(fd, bytes + done, want));
        if (count > 0)
            done += (size_t)count;
        else if (count == 0 || errno != EINTR) {
            if (count == 0) errno = ENOSPC;
            return -1;
        }
    }
    return 0;
}

/* Makes the rename itself last. */
static rv_status folder_sync(const char *path, const char *folder, size_t size) {
    rv_status status = RV_OK;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return rv_fail_io(path, "open its folder", size);
    /* Some file systems cannot sync a folder and say so with EINVAL; they need no sync. */
    if (CALL(RV_FAULT_FSYNC, -1, fsync(fd)) != 0 && errno != EINVAL)
        status = rv_fail_io(path, "sync its folder", size);
    if (close(fd) != 0 && status == RV_OK) status = rv_fail_io(path, "close its folder", size);
    return status;
}

/* Every failure before the last rename leaves `path` as it was. After it only the sync of the
 * folder can fail, and then the new file is in place but may not outlive a power cut. */
rv_status rv_commit(const char *path, const char *previous, const void *bytes, size_t size) {
    rv_status status = RV_OK;
    char *folder = NULL, *temporary = NULL;
    size_t length = strlen(path) + sizeof ".tmp";
    bool made = false, moved = false;
    int fd = -1, closed;
    TRY(folder_of(path, &folder));
    TRY(rv_alloc(length, 1, "a path", &temporary));
    snprintf(temporary, length, "%s.tmp", path);
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = rv_fail_create(temporary);
        goto out;
    }
    made = true;
    if (write_all(fd, bytes, size) != 0) {
        status = rv_fail_io(path, "write", size);
        goto out;
    }
    if (CALL(RV_FAULT_FSYNC, -1, fsync(fd)) != 0) {
        status = rv_fail_io(path, "sync", size);
        goto out;
    }
    closed = close(fd); /* before the hook: an error must not leave the descriptor open */
    fd = -1;
    if (CALL(RV_FAULT_CLOSE, -1, closed) != 0) {
        status = rv_fail_io(path, "close", size);
        goto out;
    }
    if (previous) {
        moved = CALL(RV_FAULT_RENAME, -1, rename(path, previous)) == 0;
        if (!moved && errno != ENOENT) { /* no old file: nothing to keep */
            status = rv_fail_io(path, "keep the old file", size);
            goto out;
        }
    }
    if (CALL(RV_FAULT_RENAME, -1, rename(temporary, path)) != 0) {
        status = rv_fail_io(path, "rename", size);
        /* Put the old file back; should that fail too, it is still there under `previous`. */
        if (moved) (void)!rename(previous, path);
        goto out;
    }
    made = false;
    TRY(folder_sync(path, folder, size));
out:
    if (fd >= 0) (void)close(fd);
    if (made) (void)unlink(temporary);
    rv_free(temporary);
    rv_free(folder);
    return status;
}

/* ---- before a run ------------------------------------------------------------------------ */
/* Names end in .tmp only between the first write and the rename. */
rv_status rv_commit_sweep(const char *folder) {
    rv_status status = RV_OK;
    DIR *files = opendir(folder);
    const struct dirent *file;
    if (!files) FAIL(RV_CREATE, "%s: cannot list: %s", folder, strerror(errno));
    while ((file = readdir(files))) {
        size_t length = strlen(file->d_name);
        if (length < 5 || strcmp(file->d_name + length - 4, ".tmp") != 0) continue;
        if (unlinkat(dirfd(files), file->d_name, 0) != 0 && errno != ENOENT)
            FAIL(RV_CREATE, "%s/%s: cannot remove: %s", folder, file->d_name, strerror(errno));
    }
out:
    if (files) (void)closedir(files);
    return status;
}

rv_status rv_commit_room(const char *folder, const char *what, size_t bytes) {
    struct statvfs room;
    if (statvfs(folder, &room) != 0 || room.f_blocks == 0) return RV_OK;
    unsigned long long left = (unsigned long long)room.f_bavail * room.f_frsize;
    if (left >= bytes) return RV_OK;
    return rv_fail(RV_IO, "%s: not enough room for %s: %zu bytes needed, %llu free", folder, what,
                   bytes, left);
}

/* ---- reading ----------------------------------------------------------------------------- */
/* Regular files only: a pipe or device has no size to check the limit against. */
rv_status rv_read_file(const char *path, size_t limit, char **out, size_t *size) {
    rv_status status = RV_OK;
    struct stat about;
    char *bytes = NULL;
    size_t room, done = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* opening a pipe would wait */
    if (fd < 0) FAIL(RV_INPUT, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &about) != 0) FAIL(RV_INPUT, "%s: cannot look at it: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode)) FAIL(RV_INPUT, "%s: not a regular file", path);
    room = (size_t)about.st_size;
    if (room > limit) FAIL(RV_DATA, "%s: %zu bytes; at most %zu are read", path, room, limit);
    TRY(rv_alloc(room + 1, 1, path, &bytes)); /* a NUL behind the last byte */
    while (done < room) {
        ssize_t count = read(fd, bytes + done, room - done);
        if (count == 0) break; /* cut short meanwhile: what is there is what counts */
        if (count < 0 && errno != EINTR)
            FAIL(RV_IO, "%s: cannot read at byte %zu: %s", path, done, strerror(errno));
        if (count > 0) done += (size_t)count;
    }
    *out = bytes;
    *size = done;
    bytes = NULL;
out:
    if (fd >= 0) (void)close(fd);
    rv_free(bytes);
    return status;
}
