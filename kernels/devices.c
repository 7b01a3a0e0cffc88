/* The table of devices: which instruction sets this processor has, and how to open each device. */
#include "kernels/kernels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* ---- instruction sets -------------------------------------------------------------------- */
#define RV_ISA_TEXT(name, text) text,
/* In the order of rv_isa. */
static const char *const isa_names[] = {RV_ISA_LIST(RV_ISA_TEXT)};
#undef RV_ISA_TEXT

const char *rv_isa_name(rv_isa isa) {
    return isa >= 0 && isa < RV_ISAS ? isa_names[isa] : "unknown";
}

#if defined(__x86_64__)
/* AMX needs the processor and the kernel's permission to use its large state (Linux 5.16). Asking
 * again is harmless. */
static bool amx_usable(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    const unsigned need = 1u << 22 | 1u << 24;            /* amx-bf16, amx-tile */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & need) != need) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* What marks the levels x86-64-v3 and -v4 of the objects; the rest of each level came in the same
 * processors. The operating system's support is part of the answer. */
static bool has_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_v4(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

rv_isa rv_isa_best(void) {
    __builtin_cpu_init();
    if (!has_v3()) return RV_ISA_BASELINE;
    if (!has_v4()) return RV_ISA_AVX2;
    return amx_usable() ? RV_ISA_AMX : RV_ISA_AVX512;
}
#else
rv_isa rv_isa_best(void) {
    return RV_ISA_BASELINE;
}
#endif

/* ---- the CPU ------------------------------------------------------------------------------ */
/* What each level of cpu_*.c exports (cpu.h). */
#define LEVEL(level)                                                                               \
    extern const rv_ops rv_cpu_table_##level;                                                      \
    rv_status rv_cpu_open_##level(rv_isa isa, int threads, rv_ctx **out);                          \
    rv_isa rv_cpu_isa_##level(const rv_ctx *ctx);
LEVEL(baseline)
#if defined(__x86_64__)
LEVEL(avx2)
LEVEL(avx512)
#endif
#undef LEVEL

/* Objects by instruction set. AMX adds products in bf16 to the vector objects of AVX-512; it is an
 * instruction set of its own because results are promised for one. */
static const struct cpu_row {
    const rv_ops *ops;
    rv_status (*open)(rv_isa isa, int threads, rv_ctx **out);
    rv_isa (*isa)(const rv_ctx *ctx);
} cpu_rows[RV_ISAS] = {
#define LEVEL(level)                                                                               \
    { &rv_cpu_table_##level, rv_cpu_open_##level, rv_cpu_isa_##level }
    [RV_ISA_BASELINE] = LEVEL(baseline),
#if defined(__x86_64__)
    [RV_ISA_AVX2] = LEVEL(avx2),
    [RV_ISA_AVX512] = LEVEL(avx512),
    [RV_ISA_AMX] = LEVEL(avx512),
#endif
#undef LEVEL
};

/* An instruction set the processor lacks is refused: silently taking a lower one would change bits
 * between machines without a word. */
static rv_status cpu_open(rv_isa isa, int threads, rv_device *out) {
    rv_status status = RV_OK;
    rv_isa best = rv_isa_best();
    if (threads < 1) FAIL(RV_CONFIG, "a device needs at least one thread, not %d", threads);
    if (isa == RV_ISA_AUTO) isa = best;
    if (isa < RV_ISA_BASELINE || isa > best)
        FAIL(RV_CONFIG, "this processor has no %s; its best is %s", rv_isa_name(isa),
             rv_isa_name(best));
    TRY(cpu_rows[isa].open(isa, threads, &out->ctx));
    out->ops = cpu_rows[isa].ops;
out:
    return status;
}

/* ---- devices ------------------------------------------------------------------------------ */
/* A further device is a row here. */
static const struct device_row {
    const char *name;
    rv_status (*open)(rv_isa isa, int threads, rv_device *out);
} devices[] = {
    {"cpu", cpu_open},
};

/* The caller's device is empty on failure, so that closing it is harmless. */
rv_status rv_device_open(const char *name, rv_isa isa, int threads, rv_device *out) {
    *out = (rv_device){0};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        if (strcmp(devices[i].name, name) == 0) return devices[i].open(isa, threads, out);
    return rv_fail(RV_CONFIG, "unknown device \"%s\"; known: cpu", name);
}

void rv_device_close(rv_device *device) {
    if (!device || !device->ops) return;
    device->ops->close(device->ctx);
    *device = (rv_device){0};
}

/* Which table the device uses says whose context it holds. */
rv_isa rv_device_isa(const rv_device *device) {
    for (int isa = RV_ISA_BASELINE; isa < RV_ISAS; isa++)
        if (cpu_rows[isa].ops == device->ops) return cpu_rows[isa].isa(device->ctx);
    return RV_ISA_AUTO;
}
