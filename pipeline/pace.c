/*
 * How long steps take: the intervals between their starts, pauses left out. From start to start,
 * because what lies between steps (waiting for the next batch) is part of what a user waits for.
 */
#include <math.h>
#include <string.h>

#include "pipeline/internal.h"

enum { WARM_UP = 2 }; /* first intervals: caches, arenas and pages are still being set up */

/* Kept all, four bytes each, for an exact median: a million steps are 4 MB. */
static rv_status interval_add(rv_pace *pace, double seconds) {
    rv_status status = RV_OK;
    if (pace->count == pace->capacity) {
        int64_t capacity = pace->capacity ? 2 * pace->capacity : 1024;
        float *interval = NULL;
        TRY(rv_alloc((size_t)capacity, sizeof *interval, "step times", &interval));
        if (pace->count) memcpy(interval, pace->interval, (size_t)pace->count * sizeof *interval);
        rv_free(pace->interval);
        pace->interval = interval;
        pace->capacity = capacity;
    }
    pace->interval[pace->count++] = (float)seconds;
    pace->seconds += seconds;
out:
    return status;
}

/* A step ends where the next one begins, or where training does. */
static rv_status step_end(rv_pace *pace, double now) {
    return pace->start > 0 ? interval_add(pace, now - pace->start - pace->paused) : RV_OK;
}

rv_status rv_pace_start(rv_pace *pace, int samples) {
    rv_status status = RV_OK;
    double now = rv_host_seconds();
    TRY(step_end(pace, now));
    pace->start = now;
    pace->paused = 0;
    pace->samples += samples;
out:
    return status;
}

/* Pauses do not nest. */
void rv_pace_pause(rv_pace *pace) {
    pace->pause_start = rv_host_seconds();
}

void rv_pace_resume(rv_pace *pace) {
    pace->paused += rv_host_seconds() - pace->pause_start;
    pace->pause_start = 0;
}

rv_status rv_pace_close(rv_pace *pace) {
    rv_status status = step_end(pace, rv_host_seconds());
    pace->start = 0;
    return status;
}

/* The n-th smallest, from 0: bisection over bit patterns, which times have in their own order.
 * Needs no memory, which may have run out where a run ends, and leaves the order of steps as it
 * was. */
static double nth_of(const float *times, int64_t count, int64_t n) {
    uint32_t low = 0, high = 0x7f800000u; /* infinity */
    float value;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        int64_t below = 0;
        memcpy(&value, &middle, sizeof value);
        for (int64_t i = 0; i < count; i++)
            below += times[i] <= value;
        if (below > n)
            high = middle;
        else
            low = middle + 1;
    }
    memcpy(&value, &low, sizeof value);
    return (double)value;
}

double rv_pace_median_ms(const rv_pace *pace) {
    const int64_t count = pace->count - WARM_UP;
    if (count < 1) return NAN;
    const float *times = pace->interval + WARM_UP;
    return 1e3 * 0.5 * (nth_of(times, count, (count - 1) / 2) + nth_of(times, count, count / 2));
}

/* With the time of the step in progress, so that a long first step does not look like none. */
double rv_pace_rate(const rv_pace *pace) {
    double seconds = pace->seconds;
    if (pace->start > 0) {
        double now = pace->pause_start > 0 ? pace->pause_start : rv_host_seconds();
        seconds += now - pace->start - pace->paused;
    }
    return seconds > 0 && pace->samples ? (double)pace->samples / seconds : NAN;
}

void rv_pace_finish(rv_pace *pace) {
    rv_free(pace->interval);
    *pace = (rv_pace){0};
}
