/*
 * The text form of a schedule: made to be printed, edited by hand, checked and run. It says all
 * that a schedule is and nothing that can be computed from it, and every schedule has exactly one
 * text, so two plans can be compared by diff. Reading is not checking: items that fit their fields
 * are taken, and the checker says what is wrong with them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/schedule.h"

static const char title[] = "ranvier-schedule";

/* ---- items ------------------------------------------------------------------------------ */

#define NAME(name, chunk) #name,
#define CHUNK(name, chunk) chunk,
static const char *const kind_names[] = {RV_WORK_LIST(NAME)};
static const bool kind_chunk[] = {RV_WORK_LIST(CHUNK)};
#undef NAME
#undef CHUNK

void rv_work_print(const rv_work *work, int worker, char text[RV_WORK_TEXT]) {
    char stage[16] = "", chunk[16] = "", version[16] = "";
    if (work->kind >= RV_WORK_KINDS) {
        snprintf(text, RV_WORK_TEXT, "?");
        return;
    }
    if (work->stage != worker) snprintf(stage, sizeof stage, "%d/", work->stage);
    if (kind_chunk[work->kind]) snprintf(chunk, sizeof chunk, ".%d", work->chunk);
    if (work->version != RV_NO_VERSION) snprintf(version, sizeof version, "@%d", work->version);
    snprintf(text, RV_WORK_TEXT, "%s%s%d%s%s", stage, kind_names[work->kind], work->micro, chunk,
             version);
}

/* Digits in front of `end`, at most `most`; moves *at. A leading zero is refused, so that every
 * number has one spelling. */
static bool number(const char **at, const char *end, int most, int *value) {
    const char *begin = *at;
    int64_t sum = 0;
    while (*at < end && **at >= '0' && **at <= '9' && sum <= most)
        sum = 10 * sum + (*(*at)++ - '0');
    *value = (int)sum;
    return *at > begin && sum <= most && (*begin != '0' || *at == begin + 1);
}

bool rv_work_parse(const char *text, size_t length, int worker, rv_work *work) {
    const char *at = text, *end = text + length;
    int stage = worker, micro, chunk = 0, version = RV_NO_VERSION;
    if (at < end && *at >= '0' && *at <= '9')
        if (!number(&at, end, UINT16_MAX, &stage) || at == end || *at++ != '/') return false;
    int kind = -1; /* the longest name that fits: B is the head of BW */
    size_t best = 0;
    for (int i = 0; i < RV_WORK_KINDS; i++) {
        size_t n = strlen(kind_names[i]);
        if (n > best && n <= (size_t)(end - at) && memcmp(at, kind_names[i], n) == 0)
            kind = i, best = n;
    }
    at += best;
    if (kind < 0 || stage > UINT16_MAX || !number(&at, end, INT32_MAX, &micro)) return false;
    if (kind_chunk[kind])
        if (at == end || *at++ != '.' || !number(&at, end, UINT16_MAX, &chunk)) return false;
    if (at < end)
        if (*at++ != '@' || !number(&at, end, INT32_MAX, &version)) return false;
    *work = (rv_work){.kind = (uint8_t)kind,
                      .stage = (uint16_t)stage,
                      .micro = micro,
                      .chunk = (uint16_t)chunk,
                      .version = version};
    return at == end;
}

/* ---- header ----------------------------------------------------------------------------- */

/* One line each, in this order, all required. */
static const struct field {
    const char *key;
    size_t offset;
    bool flag; /* bool, written 0 or 1 */
    int least, most;
} fields[] = {
    {"stages", offsetof(rv_schedule, stages), false, 1, RV_STAGES_MOST},
    {"micro_batches", offsetof(rv_schedule, micros), false, 1, INT32_MAX},
    {"chunks", offsetof(rv_schedule, chunks), false, 1, RV_CHUNKS_MOST},
    {"fused", offsetof(rv_schedule, fused), true, 0, 1},
    {"slots", offsetof(rv_schedule, slots), false, 0, INT32_MAX},
    {"group", offsetof(rv_schedule, group), false, 0, INT32_MAX},
    {"norm", offsetof(rv_schedule, norm), true, 0, 1},
    {"versions", offsetof(rv_schedule, kept), false, 0, INT32_MAX},
    {"newest", offsetof(rv_schedule, newest), true, 0, 1},
    {"workers", offsetof(rv_schedule, workers), false, 1, UINT16_MAX},
};
enum { FIELDS = sizeof fields / sizeof *fields };

/* The table works by offsets so that print and parse cannot disagree about a key. */
static int field_get(const struct field *field, const rv_schedule *schedule) {
    const char *at = (const char *)schedule + field->offset;
    return field->flag ? *(const bool *)at : *(const int *)at;
}

static void field_set(const struct field *field, rv_schedule *schedule, int value) {
    char *at = (char *)schedule + field->offset;
    if (field->flag)
        *(bool *)at = value;
    else
        *(int *)at = value;
}

/* ---- print ------------------------------------------------------------------------------ */

rv_status rv_schedule_print(const rv_schedule *schedule, char **text) {
    enum { LINE = 96 };
    rv_status status = RV_OK;
    size_t room, used = 0;
    TRY(rv_size_mul((size_t)rv_schedule_count(schedule), RV_WORK_TEXT, &room));
    room += LINE * (FIELDS + 2 + (size_t)schedule->workers);
    TRY(rv_alloc(room, 1, "the text of a schedule", text));
    char *out = *text;
    const char *name = schedule->name[0] ? schedule->name : "custom";
    used += (size_t)snprintf(out, room, "%s %s\n", title, name);
    for (int i = 0; i < FIELDS; i++)
        used += (size_t)snprintf(out + used, room - used, "%s %d\n", fields[i].key,
                                 field_get(&fields[i], schedule));
    for (int k = 0; k < schedule->workers; k++) {
        used += (size_t)snprintf(out + used, room - used, "worker %d\n", k);
        size_t line = used;
        for (int p = schedule->first[k]; p < schedule->first[k + 1]; p++) {
            char item[RV_WORK_TEXT];
            rv_work_print(&schedule->items[p], k, item);
            if (used > line && used + strlen(item) >= line + LINE) {
                out[used++] = '\n';
                line = used;
            }
            used += (size_t)snprintf(out + used, room - used, "%s%s", used > line ? " " : "", item);
        }
        if (used > line) out[used++] = '\n';
    }
out:
    return status;
}

/* ---- parse ------------------------------------------------------------------------------ */

typedef struct reader {
    const char *at, *line; /* next character, start of its line */
    rv_where where;        /* of the last word */
    const char *word;
    size_t length; /* 0: end of the text */
} reader;

static bool blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The next word; comments and white space go by. */
static void next_word(reader *r) {
    while (blank(*r->at) || *r->at == '#') {
        if (*r->at == '#') {
            r->at += strcspn(r->at, "\n");
        } else if (*r->at++ == '\n') {
            r->where.line++;
            r->line = r->at;
        }
    }
    r->word = r->at;
    while (*r->at && !blank(*r->at) && *r->at != '#')
        r->at++;
    r->length = (size_t)(r->at - r->word);
    r->where.column = (int)(r->word - r->line) + 1;
}

static bool is_word(const reader *r, const char *word) {
    return strlen(word) == r->length && memcmp(r->word, word, r->length) == 0;
}

static rv_status expected(const reader *r, const char *what) {
    if (r->length == 0)
        return rv_fail_at(RV_CONFIG, r->where, NULL, NULL, "expected %s, the text ends", what);
    return rv_fail_at(RV_CONFIG, r->where, NULL, NULL, "expected %s, found \"%.*s\"", what,
                      r->length > 64 ? 64 : (int)r->length, r->word);
}

static rv_status read_key(reader *r, const char *key) {
    next_word(r);
    return is_word(r, key) ? RV_OK : expected(r, key);
}

static rv_status read_number(reader *r, const char *what, int least, int most, int *value) {
    char text[96];
    next_word(r);
    const char *at = r->word;
    if (number(&at, r->word + r->length, most, value) && at == r->word + r->length &&
        *value >= least)
        return RV_OK;
    snprintf(text, sizeof text, "%s, a number from %d to %d", what, least, most);
    return expected(r, text);
}

static rv_status read_header(reader *r, rv_schedule *head) {
    rv_status status = RV_OK;
    TRY(read_key(r, title));
    next_word(r);
    if (r->length == 0 || r->length >= sizeof head->name) {
        status = expected(r, "the name of the schedule (at most 15 letters)");
        goto out;
    }
    memcpy(head->name, r->word, r->length);
    for (int i = 0; i < FIELDS; i++) {
        int value;
        TRY(read_key(r, fields[i].key));
        TRY(read_number(r, fields[i].key, fields[i].least, fields[i].most, &value));
        field_set(&fields[i], head, value);
    }
out:
    return status;
}

/* Words left in the text: no more items than that, so what is taken for them follows the
 * text, never what its header claims. */
static size_t words_left(reader r) {
    size_t count = 0;
    for (next_word(&r); r.length; next_word(&r))
        count++;
    return count;
}

static rv_status read_lists(reader *r, rv_schedule *schedule) {
    rv_status status = RV_OK;
    int n = 0;
    next_word(r);
    for (int k = 0; k < schedule->workers; k++) {
        int number_of_list;
        if (!is_word(r, "worker")) {
            status = expected(r, "an item such as F3.0 or BW3.0@2, or the next worker");
            goto out;
        }
        TRY(read_number(r, "the next worker", k, k, &number_of_list));
        schedule->first[k] = n;
        for (next_word(r); rv_work_parse(r->word, r->length, k, &schedule->items[n]); next_word(r))
            n++;
    }
    schedule->first[schedule->workers] = n;
    if (r->length > 0) status = expected(r, "an item such as F3.0 or BW3.0@2");
out:
    return status;
}

rv_status rv_schedule_parse(const char *file, const char *text, rv_schedule *schedule) {
    rv_status status = RV_OK;
    reader r = {.at = text, .line = text, .where = {.file = file, .line = 1, .column = 1}};
    rv_schedule head = {0};
    *schedule = (rv_schedule){0};
    TRY(read_header(&r, &head));
    /* One more than there can be: the word that ends a list is tried in the next free place. */
    TRY(rv_schedule_init(schedule, head.stages, head.micros, head.chunks, head.fused,
                         words_left(r) + 1));
    head.items = schedule->items;
    rv_free(schedule->first);
    *schedule = head;
    TRY(rv_alloc((size_t)head.workers + 1, sizeof(int), "the lists of a schedule",
                 &schedule->first));
    TRY(read_lists(&r, schedule));
out:
    if (status) rv_schedule_finish(schedule);
    return status;
}
