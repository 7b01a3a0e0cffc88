/*
 * One run in a folder at a time. The kernel's lock on a file decides and ends with its process; the
 * file's text tells others who holds it. Where the file system knows no locks (ENOLCK and its like
 * on NFS and Lustre), a second file that only one process can create takes its place, and a dead
 * owner is found by host, boot, pid and the start of that process.
 */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 12, PAUSE_MS = 25, TEXT = 1024, NAME = 24 };
static const char lock_name[] = "run.lock";       /* carries the kernel's lock */
static const char owner_name[] = "run.owner";     /* exists while a run without one goes on */
static const char seize_name[] = "run.owner.new"; /* held while a dead owner is replaced */

struct rv_lock {
    char *folder, *path; /* path: of the file that is ours */
    int fd;              /* -1: held by its existence alone */
    bool ours;
    char note[400];
};

/* ---- who --------------------------------------------------------------------------------- */
/* First word of a small file of the kernel; empty when there is none. */
static void word_read(const char *path, char *word, size_t size) {
    FILE *file = fopen(path, "re");
    word[0] = 0;
    if (!file) return;
    if (fgets(word, (int)size, file)) word[strcspn(word, "\n")] = 0;
    (void)fclose(file);
}

/* Ticks after boot at which a process began: tells it from a later one with its number. */
static int64_t ticks_of(int64_t pid) {
    char path[64], line[1024], *at;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    word_read(path, line, sizeof line);
    at = strrchr(line, ')'); /* the name before it may hold anything */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoll(at, NULL, 10) : 0;
}

/* Parts the system does not tell stay empty or 0 and are compared as such. */
static void owner_self(rv_owner *owner) {
    time_t now = time(NULL);
    struct tm utc;
    *owner = (rv_owner){.pid = getpid()};
    if (gethostname(owner->host, sizeof owner->host - 1) != 0) owner->host[0] = 0;
    word_read("/proc/sys/kernel/random/boot_id", owner->boot, sizeof owner->boot);
    owner->ticks = ticks_of(owner->pid);
    if (gmtime_r(&now, &utc))
        (void)strftime(owner->started, sizeof owner->started, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* Dead for certain: it was on this machine, and its boot or its process is over. */
static bool owner_dead(const rv_owner *owner) {
    rv_owner self;
    owner_self(&self);
    if (strcmp(owner->host, self.host) != 0) return false;
    if (strcmp(owner->boot, self.boot) != 0) return true;
    if (owner->pid < 1 || (kill((pid_t)owner->pid, 0) != 0 && errno == ESRCH)) return true;
    return owner->ticks && ticks_of(owner->pid) != owner->ticks;
}

/* A file that cannot be read, is empty or says something else leaves an owner without a host. */
static void owner_read(int folder, const char *name, rv_owner *owner) {
    char text[TEXT];
    ssize_t size = -1;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    json_t *root = NULL;
    const char *host, *boot, *started;
    json_int_t pid, ticks;
    *owner = (rv_owner){0};
    if (fd >= 0) {
        size = read(fd, text, sizeof text);
        (void)close(fd);
    }
    if (size > 0) root = json_loadb(text, (size_t)size, 0, NULL);
    if (root && json_unpack(root, "{s:s, s:I, s:s, s:s, s:I}", "host", &host, "pid", &pid,
                            "started", &started, "boot", &boot, "ticks", &ticks) == 0) {
        snprintf(owner->host, sizeof owner->host, "%s", host);
        snprintf(owner->boot, sizeof owner->boot, "%s", boot);
        snprintf(owner->started, sizeof owner->started, "%s", started);
        owner->pid = pid;
        owner->ticks = ticks;
    }
    json_decref(root);
}

/* In place: the lock hangs on this very file. */
static rv_status owner_write(int fd, const char *path) {
    rv_status status = RV_OK;
    rv_owner self;
    owner_self(&self);
    json_t *root =
        json_pack("{s:s, s:I, s:s, s:s, s:I}", "host", self.host, "pid", (json_int_t)self.pid,
                  "started", self.started, "boot", self.boot, "ticks", (json_int_t)self.ticks);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (!text) FAIL(RV_MEMORY, "out of memory for %s", path);
    size_t size = strlen(text);
    errno = ENOSPC; /* what a write that falls short means */
    if (ftruncate(fd, 0) != 0 || rv_fault(RV_FAULT_WRITE) ||
        pwrite(fd, text, size, 0) != (ssize_t)size)
        status = rv_fail_io(path, "write", size);
out:
    free(text);
    json_decref(root);
    return status;
}

/* 73, naming the owner. `stale` says what to do when it is known to be gone. */
static rv_status fail_held(const char *folder, const rv_owner *owner, const char *stale) {
    if (!owner->host[0])
        return rv_fail(RV_CREATE, "%s: another run is starting in it%s", folder, stale);
    return rv_fail(RV_CREATE, "%s: in use by another run: host %s, pid %" PRId64 ", started %s%s",
                   folder, owner->host, owner->pid, owner->started, stale);
}

static void pause_ms(long milliseconds) {
    const struct timespec time = {0, milliseconds * 1000000};
    (void)nanosleep(&time, NULL);
}

/* ---- with the kernel's lock -------------------------------------------------------------- */
static bool unsupported(int error) {
    return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

/* Never waits; tests make it fail as file systems without locks do. */
static int lock_file(int fd, int how) {
    if (rv_fault(RV_FAULT_LOCK)) {
        errno = ENOLCK;
        return -1;
    }
    return flock(fd, how | LOCK_NB);
}

/* The path may have been removed by its last owner since we opened it: a lock on that file locks
 * nobody out. */
static bool still_there(int folder, int fd) {
    struct stat ours, there;
    return fstat(fd, &ours) == 0 && fstatat(folder, lock_name, &there, 0) == 0 &&
           ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

/* *supported false: this file system has no locks. Tried for a moment: a look at the lock from
 * outside holds it too. */
static rv_status lock_kernel(rv_lock *lock, int folder, bool *supported) {
    rv_status status = RV_OK;
    rv_owner owner;
    *supported = true;
    for (int i = 0;; i++) {
        int fd = openat(folder, lock_name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) {
            status = rv_fail_create(lock->path);
            goto out;
        }
        if (lock_file(fd, LOCK_EX) == 0) {
            if (still_there(folder, fd)) {
                lock->fd = fd;
                break;
            }
            (void)close(fd);
            continue;
        }
        int error = errno;
        (void)close(fd);
        if (unsupported(error)) {
            *supported = false;
            (void)unlinkat(folder, lock_name, 0);
            goto out;
        }
        if (error != EWOULDBLOCK && error != EINTR)
            FAIL(RV_CREATE, "%s: cannot lock: %s", lock->path, strerror(error));
        owner_read(folder, lock_name, &owner);
        if (i >= TRIES) {
            status = fail_held(lock->folder, &owner, "");
            goto out;
        }
        pause_ms(PAUSE_MS);
    }
    owner_read(folder, lock_name, &owner); /* left by a run that did not end by itself */
    if (owner.host[0])
        snprintf(lock->note, sizeof lock->note,
                 "%s: taken over from a run that died (host %s, pid %" PRId64 ", started %s)",
                 lock->folder, owner.host, owner.pid, owner.started);
    TRY(owner_write(lock->fd, lock->path));
    lock->ours = true;
out:
    return status;
}

/* ---- without it -------------------------------------------------------------------------- */
/* Only one process replaces a dead owner: it holds a third file meanwhile and looks again. */
static rv_status owner_replace(const rv_lock *lock, int folder, const rv_owner *dead) {
    rv_status status = RV_OK;
    rv_owner now;
    int fd = openat(folder, seize_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        char hint[64];
        snprintf(hint, sizeof hint, "; being taken over (else remove %s)", seize_name);
        return fail_held(lock->folder, dead, hint);
    }
    owner_read(folder, owner_name, &now);
    if (now.pid == dead->pid && now.ticks == dead->ticks && strcmp(now.host, dead->host) == 0 &&
        unlinkat(folder, owner_name, 0) != 0)
        status = rv_fail(RV_CREATE, "%s: cannot remove: %s", lock->path, strerror(errno));
    (void)close(fd);
    (void)unlinkat(folder, seize_name, 0);
    return status;
}

/* Creation decides. Only a live owner on this machine is known for certain to be one, and only a
 * dead one may be replaced; of other machines the user has to know. */
static rv_status lock_exclusive(rv_lock *lock, int folder) {
    rv_status status = RV_OK;
    rv_owner owner;
    int fd = -1;
    for (int i = 0; fd < 0; i++) {
        fd = openat(folder, owner_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) break;
        if (errno != EEXIST) {
            status = rv_fail_create(lock->path);
            goto out;
        }
        owner_read(folder, owner_name, &owner);
        bool dead = owner.host[0] && owner_dead(&owner);
        if (i >= TRIES || (owner.host[0] && !dead)) {
            char hint[64];
            snprintf(hint, sizeof hint, "; if it is gone, remove %s", owner_name);
            status = fail_held(lock->folder, &owner, hint);
            goto out;
        }
        if (dead)
            TRY(owner_replace(lock, folder, &owner));
        else
            pause_ms(PAUSE_MS); /* its owner is about to write into it */
    }
    lock->ours = true;
    snprintf(lock->note, sizeof lock->note,
             "%s: this file system has no locks; %s keeps other runs out", lock->folder,
             owner_name);
    TRY(owner_write(fd, lock->path));
out:
    if (fd >= 0) (void)close(fd);
    return status;
}

/* ---- for the caller ---------------------------------------------------------------------- */
rv_status rv_lock_take(const char *path, rv_lock **out) {
    rv_status status = RV_OK;
    rv_lock *lock = NULL;
    bool supported = true;
    size_t size = strlen(path) + NAME;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *out = NULL;
    if (folder < 0) FAIL(RV_CREATE, "%s: cannot open: %s", path, strerror(errno));
    TRY(rv_alloc(1, sizeof *lock, "a lock", &lock));
    lock->fd = -1;
    TRY(rv_strdup(path, &lock->folder));
    TRY(rv_alloc(size, 1, "a path", &lock->path));
    snprintf(lock->path, size, "%s/%s", path, lock_name);
    TRY(lock_kernel(lock, folder, &supported));
    if (!supported) {
        snprintf(lock->path, size, "%s/%s", path, owner_name);
        TRY(lock_exclusive(lock, folder));
    }
    *out = lock;
    lock = NULL;
out:
    if (folder >= 0) (void)close(folder);
    rv_lock_release(lock);
    return status;
}

const char *rv_lock_note(const rv_lock *lock) {
    return lock->note;
}

/* The file goes before the lock, so that nobody finds a name in it that holds nothing. */
void rv_lock_release(rv_lock *lock) {
    if (!lock) return;
    if (lock->ours) (void)unlink(lock->path);
    if (lock->fd >= 0) (void)close(lock->fd);
    rv_free(lock->path);
    rv_free(lock->folder);
    rv_free(lock);
}

/* A shared lock for an instant: held by nobody if it can be had. */
bool rv_lock_look(const char *path, rv_owner *owner) {
    bool held = false;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
    *owner = (rv_owner){0};
    if (folder < 0) return false;
    owner_read(folder, owner_name, owner);
    if (owner->host[0]) {
        held = !owner_dead(owner);
    } else {
        fd = openat(folder, lock_name, O_RDONLY | O_CLOEXEC);
        held = fd >= 0 && lock_file(fd, LOCK_SH) != 0 && errno == EWOULDBLOCK;
        owner_read(folder, lock_name, owner);
    }
    if (fd >= 0) (void)close(fd);
    (void)close(folder);
    return held;
}
