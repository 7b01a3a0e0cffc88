/* What the machine gives this process: processors, time, memory. Linux, /proc and cgroups. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "pipeline/internal.h"

/* CLOCK_MONOTONIC exists on every Linux: it cannot fail. */
double rv_host_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double rv_host_date(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- threads ---------------------------------------------------------------------------- */

/* Processors of the affinity mask. The mask's size is not known beforehand: the kernel refuses one
 * that is too small. */
static int affinity_count(void) {
    for (int capacity = 1024; capacity <= 1 << 16; capacity *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)capacity);
        if (!set) return 1;
        size_t size = CPU_ALLOC_SIZE((size_t)capacity);
        int failed = sched_getaffinity(0, size, set);
        int reason = errno, count = failed ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (!failed) return count > 0 ? count : 1;
        if (reason != EINVAL) return 1;
    }
    return 1;
}

/* First line of a small file without its newline; false when it cannot be read. */
static bool line_read(const char *path, char *line, int size) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool got = fgets(line, size, file) != NULL;
    fclose(file);
    if (got) line[strcspn(line, "\n")] = 0;
    return got;
}

/* Quota of one group in processors, 0 when it has none. Version 2 (unified) writes both numbers
 * into one file, version 1 into two; -1 or "max" is no limit. */
static double quota_of_group(const char *folder, bool unified) {
    char path[4096], line[128];
    double quota = -1, period = 0;
    if (unified) { /* "max 100000" or "150000 100000" */
        if (snprintf(path, sizeof path, "%s/cpu.max", folder) >= (int)sizeof path) return 0;
        if (!line_read(path, line, sizeof line)) return 0;
        if (sscanf(line, "%lf %lf", &quota, &period) != 2) return 0;
    } else {
        if (snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder) >= (int)sizeof path)
            return 0;
        if (!line_read(path, line, sizeof line)) return 0;
        quota = strtod(line, NULL);
        if (snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder) >= (int)sizeof path)
            return 0;
        if (!line_read(path, line, sizeof line)) return 0;
        period = strtod(line, NULL);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Whether a comma-separated list has a word. */
static bool list_has(const char *list, const char *word) {
    while (*list) {
        size_t length = strcspn(list, ",");
        if (length == strlen(word) && memcmp(list, word, length) == 0) return true;
        list += length + (list[length] == ',');
    }
    return false;
}

/* Limit of one group in bytes, 0 when it has none: version 1 writes a number no machine has. */
static double memory_of_group(const char *folder, bool unified) {
    char path[4096], line[128];
    const char *name = unified ? "memory.max" : "memory.limit_in_bytes";
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
    if (!line_read(path, line, sizeof line)) return 0;
    double limit = strtod(line, NULL); /* "max": 0 */
    return limit < 0x1p60 ? limit : 0;
}

typedef double (*limit_fn)(const char *folder, bool unified);

/* The tightest limit of `group` and of those above it, up to the mount itself: a container often
 * sees its own group as "/" and finds the limit there. */
static double limit_of_branch(const char *mount, const char *group, bool unified, limit_fn of) {
    char path[4096];
    int root = (int)strlen(mount);
    if (snprintf(path, sizeof path, "%s%s", mount, group) >= (int)sizeof path) return 0;
    double least = 0;
    for (;;) {
        double quota = of(path, unified);
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
        char *slash = strrchr(path, '/');
        if (!slash || slash < path + root) return least;
        *slash = 0;
    }
}

/* Every line names one hierarchy and our group in it. A machine may have both versions mounted; the
 * tightest limit of all wins. What cannot be read sets none. controller: of version 1. */
static double limit_of(const char *cgroup, const char *mount, const char *controller, limit_fn of) {
    FILE *file = fopen(cgroup, "re");
    if (!file) return 0;
    char line[4096], branch[4096];
    double least = 0;
    while (fgets(line, sizeof line, file)) { /* "0::/group" or "4:cpu,cpuacct:/group" */
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0, list++;
        bool unified = *list == 0;
        if (!unified && !list_has(list, controller)) continue;
        if (snprintf(branch, sizeof branch, "%s%s%s", mount, unified ? "" : "/",
                     unified ? "" : controller) >= (int)sizeof branch)
            continue;
        double quota = limit_of_branch(branch, group, unified, of);
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
    }
    fclose(file);
    return least;
}

double rv_host_quota(const char *cgroup, const char *mount) {
    return limit_of(cgroup, mount, "cpu", quota_of_group);
}

/* A quota of 1.5 processors runs two threads: one would leave a third of it unused. */
int rv_host_threads(void) {
    int count = affinity_count();
    double quota = rv_host_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && ceil(quota) < count) count = (int)ceil(quota);
    return count;
}

_Static_assert(sizeof(rv_processors) == sizeof(cpu_set_t), "a mask of the system");

rv_processors rv_host_pin(int first, int count) {
    rv_processors before = {{0}};
    cpu_set_t mine, own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) return before;
    memcpy(&before, &mine, sizeof before);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mine)) continue;
        if (seen >= first && seen < first + count) CPU_SET(cpu, &own);
        seen++;
    }
    if (CPU_COUNT(&own) > 0) (void)sched_setaffinity(0, sizeof own, &own);
    return before;
}

void rv_host_unpin(const rv_processors *before) {
    cpu_set_t mine;
    memcpy(&mine, before, sizeof mine);
    if (CPU_COUNT(&mine) > 0) (void)sched_setaffinity(0, sizeof mine, &mine);
}

/* ---- memory ----------------------------------------------------------------------------- */

/* A field of /proc/self/status in 10^6 bytes; 0 when it is not there. */
static double status_mb(const char *field) {
    FILE *file = fopen("/proc/self/status", "re");
    if (!file) return 0;
    char line[256];
    size_t length = strlen(field);
    double mb = 0;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, length) == 0 && line[length] == ':') {
            mb = strtod(line + length + 1, NULL) * 1024 / 1e6;
            break;
        }
    fclose(file);
    return mb;
}

double rv_host_resident(void) {
    return 1e6 * status_mb("VmRSS");
}

double rv_host_peak(void) {
    return 1e6 * status_mb("VmHWM");
}

void rv_host_trim(void) {
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

double rv_host_memory(const char *meminfo, const char *cgroup, const char *mount) {
    double limit = limit_of(cgroup, mount, "memory", memory_of_group), free = 0;
    FILE *file = fopen(meminfo, "re");
    char line[256];
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "MemAvailable:", 13) == 0) free = strtod(line + 13, NULL) * 1024;
    if (file) fclose(file);
    free = free > 0 ? free + rv_host_resident() : INFINITY;
    return limit > 0 ? fmin(limit, free) : free;
}

/* 5 = "reset the peak resident size" (proc(5)); refused in some containers. */
static bool peak_reset(void) {
    int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool done = write(file, "5", 1) == 1;
    close(file);
    return done;
}

static void peak_fold(double *peak, double mb) {
    if (mb > *peak) *peak = mb;
}

/* The kernel knows one peak. What it held is kept before it is reset for the steps alone. */
void rv_watch_begin(rv_watch *watch) {
    peak_fold(&watch->peak_mb, status_mb("VmHWM"));
    watch->sampled = !peak_reset();
}

void rv_watch_step(rv_watch *watch) {
    if (watch->sampled) peak_fold(&watch->step_mb, status_mb("VmRSS"));
}

void rv_watch_end(rv_watch *watch) {
    double peak = status_mb("VmHWM");
    peak_fold(&watch->peak_mb, peak);
    if (!watch->sampled) peak_fold(&watch->step_mb, peak);
}

void rv_watch_close(rv_watch *watch) {
    peak_fold(&watch->peak_mb, status_mb("VmHWM"));
}
