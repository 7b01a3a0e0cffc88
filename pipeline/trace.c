/*
 * A timeline as a Chrome trace: a JSON array of events, one a line, whose closing bracket is
 * optional by that format, so the file may end after any of them. It is written in pieces that
 * never cross the border of a page: the kernel finishes such a write even for a process that is
 * being killed, so no event is cut in two. Process 1 is what happened, process 2 the plan, moved to
 * the start of each step.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/timeline.h"

enum { PAGE = 4096, EVENT_MOST = 512 };
enum { COMPUTE, RECEIVE, SEND, WRITER, LANES }; /* tracks of a stage */
enum { MEASURED = 1, PLANNED = 2 };             /* processes */
enum { NO_STAGE = -1 };

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

/* ---- events ----------------------------------------------------------------------------- */

/* An event under way, the comma before it included. Words and numbers are put by hand: a format of
 * the library for each would be most of what a trace costs. */
typedef struct text {
    char at[EVENT_MOST];
    size_t used; /* beyond EVENT_MOST: it was too long */
} text;

static void put_bytes(text *t, const char *bytes, size_t count) {
    if (t->used + count <= sizeof t->at) memcpy(t->at + t->used, bytes, count);
    t->used += count;
}

static void put(text *t, const char *words) {
    put_bytes(t, words, strlen(words));
}

static void put_number(text *t, int64_t number) {
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[--at] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (number < 0) digits[--at] = '-';
    put_bytes(t, digits + at, sizeof digits - at);
}

/* Microseconds, as the format has them, to the nanosecond. */
static void put_time(text *t, const char *key, double seconds) {
    const int64_t nanos = llround(1e9 * seconds), size = nanos < 0 ? -nanos : nanos;
    const char places[] = {'.', (char)('0' + size / 100 % 10), (char)('0' + size / 10 % 10),
                           (char)('0' + size % 10)};
    put(t, key);
    if (nanos < 0) put(t, "-");
    put_number(t, size / 1000);
    put_bytes(t, places, sizeof places);
}

static text event_begin(const rv_trace *it, const char *phase, int process, int track) {
    text t;
    t.used = 0;
    put(&t, it->begun ? ",\n{\"ph\":\"" : "[\n{\"ph\":\"");
    put(&t, phase);
    put(&t, "\",\"pid\":");
    put_number(&t, process);
    put(&t, ",\"tid\":");
    put_number(&t, track);
    return t;
}

static rv_status event_end(rv_trace *it, text *t) {
    put(t, "}");
    if (t->used > sizeof t->at) return rv_fail(RV_INTERNAL, "an event of %zu bytes", t->used);
    it->begun = true;
    return event_write(it, t->at, (int)t->used);
}

/* ---- making ----------------------------------------------------------------------------- */

static int lane(int stage, int which) {
    return stage * LANES + which + 1;
}

/* Of the whole training. */
static int lane_of_saves(const rv_trace *it) {
    return lane(it->stages, 0);
}

/* stage NO_STAGE: the name stands alone. */
static rv_status name_write(rv_trace *it, const char *what, int process, int track, int stage,
                            const char *name) {
    text t = event_begin(it, "M", process, track);
    put(&t, ",\"name\":\"");
    put(&t, what);
    put(&t, "\",\"args\":{\"name\":\"");
    if (stage != NO_STAGE) {
        put(&t, "stage ");
        put_number(&t, stage);
        put(&t, " ");
    }
    put(&t, name);
    put(&t, "\"}");
    return event_end(it, &t);
}

/* Tracks are shown in the order of their numbers. */
static rv_status order_write(rv_trace *it, int process, int track) {
    text t = event_begin(it, "M", process, track);
    put(&t, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":");
    put_number(&t, track);
    put(&t, "}");
    return event_end(it, &t);
}

/* Names of processes and tracks, and the order in which they are shown. */
static rv_status names_write(rv_trace *it) {
    static const char *const lanes[LANES] = {"compute", "receive", "send", "writer"};
    rv_status status = RV_OK;
    TRY(name_write(it, "process_name", MEASURED, 0, NO_STAGE, "measured"));
    TRY(name_write(it, "process_name", PLANNED, 0, NO_STAGE, "planned"));
    for (int pid = MEASURED; pid <= PLANNED; pid++)
        for (int s = 0; s < it->stages; s++)
            for (int k = 0; k < (pid == MEASURED ? LANES : 1); k++) {
                TRY(name_write(it, "thread_name", pid, lane(s, k), s, lanes[k]));
                TRY(order_write(it, pid, lane(s, k)));
            }
    TRY(name_write(it, "thread_name", MEASURED, lane_of_saves(it), NO_STAGE, "checkpoints"));
    TRY(order_write(it, MEASURED, lane_of_saves(it)));
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

/* Where a span stands, and the words before its item, message or link. */
static const struct {
    int lane;
    const char *words;
} kinds[RV_SPAN_KINDS] = {
    [RV_SPAN_ITEM] = {COMPUTE, ""},
    [RV_SPAN_RECEIVE] = {RECEIVE, ""},
    [RV_SPAN_SEND] = {SEND, ""},
    [RV_SPAN_DATA] = {COMPUTE, "wait for data "},
    [RV_SPAN_SLOT] = {COMPUTE, "wait for a slot "},
    [RV_SPAN_WRITE] = {WRITER, "write "},
    [RV_SPAN_READ] = {WRITER, "read "},
    [RV_SPAN_SAVE] = {LANES, "checkpoint"},
};

/* "BW3.0" */
static void put_cell(text *t, int kind, int micro, int chunk) {
    put(t, letters[kind]);
    put_number(t, micro);
    put(t, ".");
    put_number(t, chunk);
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
    text t = event_begin(it, send ? "s" : "f", MEASURED, lane(stage, send ? SEND : RECEIVE));
    put_time(&t, ",\"ts\":", span->begin - it->zero);
    put(&t, ",\"id\":");
    put_number(&t, (int64_t)id + number);
    put(&t, ",\"cat\":\"message\",\"name\":\"");
    put(&t, letters[span->work]);
    put_number(&t, span->micro);
    put(&t, send ? "\"" : "\",\"bp\":\"e\"");
    return event_end(it, &t);
}

static void put_round(text *t, const char *category, int64_t round) {
    put(t, "\",\"cat\":\"");
    put(t, category);
    put(t, "\",\"args\":{\"round\":");
    put_number(t, round);
    put(t, "}");
}

static rv_status slice(rv_trace *it, const rv_round *round, const rv_lapse *span, int stage) {
    const bool save = span->kind == RV_SPAN_SAVE,
               wait = span->link && kinds[span->kind].lane == COMPUTE;
    const bool writer = save || kinds[span->kind].lane == WRITER;
    text t = event_begin(it, "X", MEASURED,
                         save ? lane_of_saves(it) : lane(stage, kinds[span->kind].lane));
    put_time(&t, ",\"ts\":", span->begin - it->zero);
    put_time(&t, ",\"dur\":", span->end - span->begin);
    put(&t, ",\"name\":\"");
    put(&t, kinds[span->kind].words);
    if (wait)
        put(&t, span->link->name);
    else if (!save)
        put_cell(&t, span->work, span->micro, span->chunk);
    put_round(&t, writer ? "writer" : round->training ? "step" : "evaluation", round->number);
    return event_end(it, &t);
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
        text t = event_begin(it, "C", MEASURED, 0);
        put_time(&t, ",\"ts\":", c->time - it->zero);
        put(&t, ",\"name\":\"queue ");
        put(&t, it->links[c->link]->name);
        if (c->link / (it->stages - 1) > 1) put(&t, " norm");
        put(&t, "\",\"args\":{\"messages\":");
        put_number(&t, it->sent[c->link]);
        put(&t, "}");
        TRY(event_end(it, &t));
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
            text t = event_begin(it, "X", PLANNED, lane(s, COMPUTE));
            put_time(&t, ",\"ts\":", round->begin - it->zero + begin);
            put_time(&t, ",\"dur\":", end - begin);
            put(&t, ",\"name\":\"");
            put_cell(&t, work->kind, work->micro, work->chunk);
            put_round(&t, "plan", round->number);
            TRY(event_end(it, &t));
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
