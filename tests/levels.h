/* Devices of every instruction set in one process, for ops that do not use oneDNN. */
#ifndef RV_TESTS_LEVELS_H
#define RV_TESTS_LEVELS_H

#include "tests/ops.h"

typedef struct test_device {
    rv_isa isa;
    int threads;
} test_device;

/* Index 0, 1, ... of the devices: each instruction set with one thread, then with two; false past
 * the last. */
static inline bool test_device_at(int index, test_device *out) {
    int isas = (int)rv_isa_best() - (int)RV_ISA_BASELINE + 1;
    if (index >= 2 * isas) return false;
    *out = (test_device){(rv_isa)(RV_ISA_BASELINE + index / 2), 1 + index % 2};
    return true;
}

static inline rv_device test_device_open(test_device which) {
    rv_device device;
    CHECK(rv_device_open("cpu", which.isa, which.threads, &device));
    return device;
}

#endif
