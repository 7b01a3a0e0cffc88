/*
 * A timeline as a Chrome trace: a JSON array of events, one a line, whose closing bracket is
 * optional by that format, so the file may end after any of them. It is written in pieces that
 * never cross the border of a page: the kernel finishes such a write even for a process that is
 * being killed, so no event is cut in two. Process 1 is what happened, process 2 the plan, moved to
 * the start of each step.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/timeline.h"

enum { PAGE = 4096, EVENT_MOST = 512 };
enum { COMPUTE, RECEIVE, SEND, WRITER, LANES }; /* tracks of a stage */
enum { MEASURED = 1, PLANNED = 2 };             /* processes */

typedef struct change { /* of the messages in a link */
    double time;
    int link, by;
} change;

struct rv_trace {
    const rv_schedule *schedule;
    int stages, link_count;
    rv_link *const *links;
    int file;
    char *path;
    char page[PAGE];
    int used; /* of the page */
    off_t at; /* of the page in the file */
    double zero;
    bool begun;
    change *changes; /* [change_room] */
    int change_count, change_room;
    int *sent, *received; /* [link_count] messages of the round so far */
};

/* ---- the file --------------------------------------------------------------------------- */

/* The page as far as it is filled: written again, longer, when more comes. */
static rv_status page_write(rv_trace *it) {
    ssize_t done;
    do
        done = pwrite(it->file, it->page, (size_t)it->used, it->at);
    while (done < 0 && errno == EINTR);
    if (done != it->used || rv_fault(RV_FAULT_WRITE))
        return rv_fail(RV_IO, "%s: %s", it->path, done < 0 ? strerror(errno) : "disk full");
    return RV_OK;
}

/* An event that does not fit begins the next page; the rest of this one is white space. */
static rv_status event_write(rv_trace *it, const char *text, int length) {
    rv_status status = RV_OK;
    if (it->used + length > PAGE) {
        memset(it->page + it->used, ' ', (size_t)(PAGE - it->used));
        it->used = PAGE;
        TRY(page_write(it));
        it->at += PAGE;
        it->used = 0;
    }
    memcpy(it->page + it->used, text, (size_t)length);
    it->used += length;
out:
    return status;
}

/* One event, after a comma unless it is the first of the array. */
static rv_status event(rv_trace *it, const char *format, ...) RV_PRINTF(2, 3);
static rv_status event(rv_trace *it, const char *format, ...) {
    char text[EVENT_MOST];
    int from = snprintf(text, sizeof text, it->begun ? ",\n" : "[\n");
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + from, sizeof text - (size_t)from, format, arguments) + from;
    va_end(arguments);
    if (length >= EVENT_MOST) return rv_fail(RV_INTERNAL, "an event of %d bytes", length);
    it->begun = true;
    return event_write(it, text, length);
}

/* ---- making ----------------------------------------------------------------------------- */

static int lane(int stage, int which) {
    return stage * LANES + which + 1;
}

/* Names of processes and tracks, and the order in which they are shown. */
static rv_status names_write(rv_trace *it) {
    static const char *const lanes[LANES] = {"compute", "receive", "send", "writer"};
    static const char *const processes[] = {[MEASURED] = "measured", [PLANNED] = "planned"};
    rv_status status = RV_OK;
    for (int pid = MEASURED; pid <= PLANNED; pid++) {
        TRY(event(it,
                  "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
                  pid, processes[pid]));
        for (int s = 0; s < it->stages; s++)
            for (int k = 0; k < (pid == MEASURED ? LANES : 1); k++) {
                TRY(event(it,
                          "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                          "\"name\":\"stage %d %s\"}}",
                          pid, lane(s, k), s, lanes[k]));
                TRY(event(it,
                          "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\","
                          "\"args\":{\"sort_index\":%d}}",
                          pid, lane(s, k), lane(s, k)));
            }
    }
    TRY(page_write(it));
out:
    return status;
}

rv_status rv_trace_create(const char *path, const rv_schedule *schedule, rv_link *const *links,
                          int link_count, rv_trace **out) {
    rv_status status = RV_OK;
    rv_trace *it = NULL;
    size_t edges = (size_t)link_count + 1;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *it, "a trace", &it));
    it->schedule = schedule, it->stages = schedule->stages;
    it->links = links, it->link_count = link_count;
    it->file = -1, it->zero = -1;
    it->change_room = 2 * link_count * schedule->micros * schedule->chunks + 1;
    TRY(rv_strdup(path, &it->path));
    TRY(rv_alloc((size_t)it->change_room, sizeof *it->changes, "a trace", &it->changes));
    TRY(rv_alloc(edges, sizeof *it->sent, "a trace", &it->sent));
    TRY(rv_alloc(edges, sizeof *it->received, "a trace", &it->received));
    it->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (it->file < 0) FAIL(RV_CREATE, "%s: %s", path, strerror(errno));
    TRY(names_write(it));
    *out = it;
    it = NULL;
out:
    rv_trace_destroy(it);
    return status;
}

/* The bracket is for readers that know JSON alone; without it the file is valid, too. */
void rv_trace_destroy(rv_trace *it) {
    if (!it) return;
    if (it->file >= 0) {
        if (event_write(it, "\n]\n", 3) == RV_OK) (void)(page_write(it) == RV_OK);
        (void)close(it->file);
    }
    rv_free(it->received);
    rv_free(it->sent);
    rv_free(it->changes);
    rv_free(it->path);
    rv_free(it);
}

/* ---- spans ------------------------------------------------------------------------------ */

static const char *const letters[] = {"F", "B", "W", "BW", "U", "NORM"};

static double micros_of(const rv_trace *it, double seconds) {
    return 1e6 * (seconds - it->zero);
}

static int link_find(const rv_trace *it, const rv_link *link) {
    for (int i = 0; i < it->link_count; i++)
        if (it->links[i] == link) return i;
    return -1;
}

/* A message of its link is known by its number, since links keep their order. An arrow begins in
 * the slice of the sender and ends in that of the receiver. */
static rv_status arrow(rv_trace *it, const rv_round *round, const rv_lapse *span, int stage) {
    int link = link_find(it, span->link);
    bool send = span->kind == RV_SPAN_SEND;
    if (link < 0) return RV_OK;
    int number = send ? it->sent[link]++ : it->received[link]++;
    uint64_t id = ((uint64_t)round->number * (uint64_t)it->link_count + (uint64_t)link) << 22;
    if (it->change_count < it->change_room)
        it->changes[it->change_count++] = (change){span->end, link, send ? 1 : -1};
    return event(it,
                 "{\"ph\":\"%s\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"id\":%" PRIu64
                 ",\"cat\":\"message\",\"name\":\"%s%d\"%s}",
                 send ? "s" : "f", lane(stage, send ? SEND : RECEIVE), micros_of(it, span->begin),
                 id + (uint64_t)number, letters[span->work], span->micro,
                 send ? "" : ",\"bp\":\"e\"");
}

static rv_status slice(rv_trace *it, const rv_round *round, const rv_lapse *span, int stage) {
    static const int lanes[RV_SPAN_KINDS] = {
        [RV_SPAN_ITEM] = COMPUTE,  [RV_SPAN_RECEIVE] = RECEIVE, [RV_SPAN_SEND] = SEND,
        [RV_SPAN_WRITER] = WRITER, [RV_SPAN_DATA] = COMPUTE,    [RV_SPAN_SLOT] = COMPUTE};
    char name[80];
    if (span->kind == RV_SPAN_DATA || span->kind == RV_SPAN_SLOT)
        snprintf(name, sizeof name, "wait for %s %s",
                 span->kind == RV_SPAN_DATA ? "data" : "a slot", span->link->name);
    else
        snprintf(name, sizeof name, "%s%d.%d", letters[span->work], span->micro, span->chunk);
    return event(it,
                 "{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\","
                 "\"cat\":\"%s\",\"args\":{\"round\":%" PRId64 "}}",
                 lane(stage, lanes[span->kind]), micros_of(it, span->begin),
                 1e6 * (span->end - span->begin), name, round->training ? "step" : "evaluation",
                 round->number);
}

static rv_status span_write(rv_trace *it, const rv_round *round, const rv_lapse *span, int stage) {
    rv_status status = RV_OK;
    TRY(slice(it, round, span, stage));
    if (span->kind == RV_SPAN_SEND || span->kind == RV_SPAN_RECEIVE)
        TRY(arrow(it, round, span, stage));
out:
    return status;
}

/* ---- counters, plan --------------------------------------------------------------------- */

/* At one time what comes stands before what goes: a count is never negative. */
static int earlier(const void *left, const void *right) {
    const change *a = left, *b = right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return b->by - a->by;
}

static rv_status counters_write(rv_trace *it) {
    rv_status status = RV_OK;
    qsort(it->changes, (size_t)it->change_count, sizeof *it->changes, earlier);
    memset(it->sent, 0, sizeof *it->sent * (size_t)it->link_count);
    for (int i = 0; i < it->change_count; i++) {
        const change *c = &it->changes[i];
        it->sent[c->link] += c->by;
        TRY(event(it,
                  "{\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"name\":\"queue %s%s\",\"args\":{"
                  "\"messages\":%d}}",
                  micros_of(it, c->time), it->links[c->link]->name,
                  c->link / (it->stages - 1) > 1 ? " norm" : "", it->sent[c->link]));
    }
out:
    return status;
}

static rv_status plan_write(rv_trace *it, const rv_round *round) {
    rv_status status = RV_OK;
    const rv_schedule *schedule = it->schedule;
    for (int s = 0; s < it->stages; s++)
        for (int p = schedule->first[s]; p < schedule->first[s + 1]; p++) {
            const rv_work *work = &schedule->items[p];
            double begin = schedule->forecast.start[p], end = schedule->forecast.end[p];
            TRY(event(it,
                      "{\"ph\":\"X\",\"pid\":2,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s%d."
                      "%d\",\"cat\":\"plan\",\"args\":{\"round\":%" PRId64 "}}",
                      lane(s, COMPUTE), micros_of(it, round->begin + begin), 1e6 * (end - begin),
                      letters[work->kind], work->micro, work->chunk, round->number));
        }
out:
    return status;
}

rv_status rv_trace_round(const rv_round *round) {
    rv_status status = RV_OK;
    rv_trace *it = round->trace;
    if (it->zero < 0) it->zero = round->begin;
    it->change_count = 0;
    memset(it->sent, 0, sizeof *it->sent * (size_t)it->link_count);
    memset(it->received, 0, sizeof *it->received * (size_t)it->link_count);
    for (int s = 0; s < it->stages; s++)
        for (int i = 0; i < round->track[s].count; i++)
            TRY(span_write(it, round, &round->track[s].span[i], s));
    TRY(counters_write(it));
    if (round->training) TRY(plan_write(it, round));
    TRY(page_write(it));
out:
    return status;
}
