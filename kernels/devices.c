/* The table of devices: which instruction sets this processor has, and how to open each device. */
#include "kernels/plugins.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
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

/* ---- names of devices --------------------------------------------------------------------- */
/* "0,1,5": whole numbers with commas between them. */
static rv_status indices_parse(const char *text, const char *at, rv_device_list *out) {
    for (;;) {
        char *end = NULL;
        long index = strtol(at, &end, 10);
        if (end == at || !isdigit((unsigned char)*at) || index > INT_MAX || (*end && *end != ',') ||
            out->count == RV_DEVICES_MOST)
            return rv_fail(RV_CONFIG, "device \"%s\": numbers with commas are expected after \":\"",
                           text);
        out->index[out->count++] = (int)index;
        if (!*end) return RV_OK;
        at = end + 1;
    }
}

rv_status rv_device_parse(const char *text, rv_device_list *out) {
    static const char *const kinds[] = {"auto", "cpu", "cuda", "emu"};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    *out = (rv_device_list){0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i]) == length && strncmp(text, kinds[i], length) == 0)
            out->kind = kinds[i];
    if (!out->kind || (colon && !rv_plugin_known(out->kind)))
        return rv_fail(RV_CONFIG, "unknown device \"%.80s\"; known: auto, cpu, cuda:0,1, emu:0,1",
                       text);
    if (colon) return indices_parse(text, colon + 1, out);
    out->count = 1;
    return RV_OK;
}

/* The CPU runs every recipe; a GPU, whose kernels do not cover all layers yet, is taken by name
 * only. Why none is used is kept for who wants to tell it. */
void rv_device_choose(rv_device_list *list) {
    int count = 0;
    if (strcmp(list->kind, "auto") != 0) return;
    list->kind = "cpu";
    bool found = rv_plugin_count("cuda", &count) == RV_OK && count > 0;
    snprintf(list->why, sizeof list->why, "%.250s",
             found ? "a GPU was found; it is used when asked for: --device cuda"
                   : rv_error_get()->message);
}

/* ---- devices ------------------------------------------------------------------------------ */
/* The caller's device is empty on failure, so that closing it is harmless. */
rv_status rv_device_open_at(const rv_device_list *list, int at, rv_isa isa, int threads,
                            rv_device *out) {
    rv_status status;
    rv_device device = {.index = list->index[at % list->count]};
    *out = (rv_device){0};
    status = rv_plugin_known(list->kind) ? rv_plugin_device(list->kind, device.index, &device)
                                         : cpu_open(isa, threads, &device);
    if (status == RV_OK) *out = device;
    return status;
}

rv_status rv_device_open(const char *name, rv_isa isa, int threads, rv_device *out) {
    rv_status status = RV_OK;
    rv_device_list list;
    *out = (rv_device){0};
    TRY(rv_device_parse(name, &list));
    rv_device_choose(&list);
    TRY(rv_device_open_at(&list, 0, isa, threads, out));
out:
    return status;
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

/* ---- scratch ------------------------------------------------------------------------------ */
static rv_status device_alloc(void *self, size_t bytes, const char *what, void **out) {
    const rv_device *device = self;
    return device->ops->alloc(device->ctx, bytes, what, out);
}

static void device_free(void *self, void *memory) {
    const rv_device *device = self;
    device->ops->free(device->ctx, memory);
}

/* The host's own is what an arena takes by itself, without zeroing it. */
rv_memory rv_device_memory(const rv_device *device) {
    if (!device->ops->apart) return (rv_memory){0};
    return (rv_memory){device_alloc, device_free, (void *)(uintptr_t)device};
}
