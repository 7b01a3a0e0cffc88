/*
 * TensorBoard's event files, scalars only. A file is a row of records: length (8 bytes), masked
 * CRC-32C of the length, the record, masked CRC-32C of the record; a record is one Event in
 * protobuf (tensorflow/core/util/event.proto), written here by hand because it needs four fields.
 */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_MOST = 1 << 16, TAG_MOST = 256 };
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* wire types of protobuf */

struct rv_events {
    char *path;
    int fd;
};

/* Castagnoli's polynomial, reflected; bit by bit, as records are small and few. */
uint32_t rv_crc32c(const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* So that a CRC over bytes that hold CRCs stays one. */
static uint32_t masked(const void *bytes, size_t size) {
    uint32_t crc = rv_crc32c(bytes, size);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ---- protobuf ---------------------------------------------------------------------------- */
typedef struct message {
    unsigned char bytes[RECORD_MOST];
    size_t size;
} message;

/* Callers keep records far below the room; what would not fit is left out whole by them. */
static void put_bytes(message *to, const void *bytes, size_t size) {
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

/* Little-endian, whatever this machine is. */
static void put_little(message *to, uint64_t value, int size) {
    for (int i = 0; i < size; i++)
        to->bytes[to->size++] = (unsigned char)(value >> 8 * i);
}

/* Seven bits a byte, least first; the high bit says that more follow. */
static void put_varint(message *to, uint64_t value) {
    for (; value > 127; value >>= 7)
        to->bytes[to->size++] = (unsigned char)(value | 128);
    to->bytes[to->size++] = (unsigned char)value;
}

/* Every field begins with its number and the way its value is written. */
static void put_key(message *to, int field, int type) {
    put_varint(to, (uint64_t)(field << 3 | type));
}

/* Texts and messages alike: their length, then their bytes. */
static void put_text(message *to, int field, const void *bytes, size_t size) {
    put_key(to, field, BYTES);
    put_varint(to, size);
    put_bytes(to, bytes, size);
}

static void put_double(message *to, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(to, field, FIXED64);
    put_little(to, bits, 8);
}

/* Summary.Value {tag = 1, simple_value = 2} */
static size_t value_make(const char *tag, float number, unsigned char to[TAG_MOST + 16]) {
    message value = {.size = 0};
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_text(&value, 1, tag, strnlen(tag, TAG_MOST));
    put_key(&value, 2, FIXED32);
    put_little(&value, bits, 4);
    memcpy(to, value.bytes, value.size);
    return value.size;
}

/* ---- files ------------------------------------------------------------------------------- */
/* One write a record: a reader never sees half of one while the program lives. */
static rv_status record_write(rv_events *events, const message *event) {
    message record = {.size = 0};
    put_little(&record, event->size, 8);
    put_little(&record, masked(record.bytes, 8), 4);
    put_bytes(&record, event->bytes, event->size);
    put_little(&record, masked(event->bytes, event->size), 4);
    for (size_t done = 0; done < record.size;) {
        ssize_t count = rv_fault(RV_FAULT_WRITE)
                            ? (errno = ENOSPC, -1)
                            : write(events->fd, record.bytes + done, record.size - done);
        if (count < 0 && errno != EINTR)
            return rv_fail_io(events->path, "write", record.size - done);
        if (count > 0) done += (size_t)count;
    }
    return RV_OK;
}

/* The file of an earlier start at the same step is replaced: it holds nothing that lasted. */
rv_status rv_events_create(const char *folder, int64_t step, double wall_time, rv_events **out) {
    rv_status status = RV_OK;
    rv_events *events = NULL;
    message first = {.size = 0};
    size_t size = strlen(folder) + 64;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *events, "an event file", &events));
    events->fd = -1;
    TRY(rv_alloc(size, 1, "a path", &events->path));
    snprintf(events->path, size, "%s/events.out.tfevents.%010lld.ranvier", folder, (long long)step);
    events->fd = open(events->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (events->fd < 0) {
        status = rv_fail_create(events->path);
        goto out;
    }
    put_double(&first, 1, wall_time);
    put_text(&first, 3, "brain.Event:2", 13);
    TRY(record_write(events, &first));
    *out = events;
    events = NULL;
out:
    rv_events_destroy(events);
    return status;
}

/* Event {wall_time = 1, step = 2, summary = 5 {value = 1 ...}} */
rv_status rv_events_scalars(rv_events *events, int64_t step, double wall_time,
                            const char *const *tags, const double *values, int count) {
    message summary = {.size = 0}, event = {.size = 0};
    for (int i = 0; i < count && summary.size < RECORD_MOST / 2; i++) {
        unsigned char value[TAG_MOST + 16];
        put_text(&summary, 1, value, value_make(tags[i], (float)values[i], value));
    }
    put_double(&event, 1, wall_time);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_text(&event, 5, summary.bytes, summary.size);
    return record_write(events, &event);
}

void rv_events_destroy(rv_events *events) {
    if (!events) return;
    if (events->fd >= 0) (void)close(events->fd);
    rv_free(events->path);
    rv_free(events);
}
