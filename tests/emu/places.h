/*
 * For tests of the kernels of the GPU: the same calls at two places, the CPU and an emulated GPU,
 * on equal inputs, in several orders of threads. One group of cases: setup open_both, teardown
 * close_both.
 */
#ifndef RV_TESTS_EMU_PLACES_H
#define RV_TESTS_EMU_PLACES_H

#include "tests/ops.h"

enum { BUFFERS = 48 };

/* A device under test and the memory a case has on it. */
typedef struct place {
    rv_device device;
    rv_arena arena;
    void *memory[BUFFERS];
    int count;
} place;

/* [0] the CPU, [1] the emulated GPU; a case fills both alike. */
static place places[2];

static inline int open_both(void **state) {
    (void)state;
    const char *const names[] = {"cpu", "emu:1"};
    for (int d = 0; d < 2; d++) {
        CHECK(rv_device_open(names[d], RV_ISA_AUTO, 1, &places[d].device));
        places[d].arena.memory = rv_device_memory(&places[d].device);
    }
    return 0;
}

static inline int close_both(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++) {
        rv_arena_finish(&places[d].arena);
        rv_device_close(&places[d].device);
    }
    return 0;
}

/* Between cases. */
static inline void clear(void) {
    for (int d = 0; d < 2; d++) {
        place *p = &places[d];
        for (; p->count > 0; p->count--)
            p->device.ops->free(p->device.ctx, p->memory[p->count - 1]);
        rv_arena_reset(&p->arena);
    }
}

/* A copy of host memory on the device; NULL gives zeros. */
static inline void *put(place *p, const void *from, size_t bytes) {
    void *to = NULL;
    assert_true(p->count < BUFFERS);
    CHECK(p->device.ops->alloc(p->device.ctx, bytes, "test", &to));
    p->memory[p->count++] = to;
    if (from) CHECK(p->device.ops->copy(p->device.ctx, NULL, to, false, from, true, bytes));
    return to;
}

static inline void sync_both(void) {
    for (int d = 0; d < 2; d++)
        CHECK(places[d].device.ops->queue_sync(places[d].device.ctx, NULL));
}

/* After sync_both: unified memory is the host's to read. */
static inline void same(const void *cpu, const void *gpu, size_t bytes, const char *what) {
    const unsigned char *a = cpu, *b = gpu;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: word %zu is %08x on the CPU, %08x on the GPU", what, i / 4,
                     ((const uint32_t *)cpu)[i / 4], ((const uint32_t *)gpu)[i / 4]);
}

static inline rv_values put_values(place *p, rv_values v) {
    v.data = put(p, v.data, test_count(v) * sizeof(float));
    return v;
}
static inline rv_spikes put_spikes(place *p, rv_spikes s) {
    s.bits = put(p, s.bits, (size_t)s.T * s.stride_t * 4);
    return s;
}
static inline rv_signal put_signal(place *p, rv_signal x) {
    if (x.spikes.bits) x.spikes = put_spikes(p, x.spikes);
    if (x.values.data) x.values = put_values(p, x.values);
    return x;
}

/* Ascending, descending, and two at random. */
static inline void each_order(void (*test)(void)) {
    const char *const orders[] = {"0", "1", "2", "3"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(setenv("RV_EMU_ORDER", orders[i], 1), 0);
        test();
    }
    assert_int_equal(unsetenv("RV_EMU_ORDER"), 0);
}

#endif
