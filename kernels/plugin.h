/*
 * What a plug-in of devices and the program give each other. A plug-in is a shared library beside
 * the program that exports one symbol, rv_plugin_open; the program links none of its libraries and
 * starts where they are missing. Both tables begin with {abi, struct_size}: abi changes when a
 * member changes its meaning, struct_size grows when members are added at the end. Internal to
 * kernels/.
 */
#ifndef RV_KERNELS_PLUGIN_H
#define RV_KERNELS_PLUGIN_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RV_PLUGIN_ABI = 1 };

/* The program's services. They work as the functions of base.h they are named after. */
typedef struct rv_host {
    uint32_t abi, struct_size;
    rv_status (*fail)(rv_status status, const char *message); /* fills the thread's error */
    rv_status (*alloc)(size_t count, size_t size, const char *what, void *out);
    void (*free)(void *memory);
    rv_status (*arena_get)(rv_arena *arena, size_t count, size_t size, void *out);
    size_t (*arena_mark)(const rv_arena *arena);
    void (*arena_release)(rv_arena *arena, size_t mark);
} rv_host;

/* Devices of one kind. Owned by the plug-in, which stays loaded until the program ends. */
typedef struct rv_plugin {
    uint32_t abi, struct_size;
    const char *name; /* "cuda": the word of --device */
    /* How many there are: RV_RESOURCE with the reason where there can be none. */
    rv_status (*count)(const rv_host *host, int *out);
    /* out->ops and out->ctx; RV_RESOURCE: no such device, or it cannot be used. */
    rv_status (*open)(const rv_host *host, int index, rv_device *out);
} rv_plugin;

/* The one symbol. NULL: the plug-in does not know such a host. */
#define RV_PLUGIN_SYMBOL "rv_plugin_open"
const rv_plugin *rv_plugin_open(const rv_host *host);

#ifdef __cplusplus
}
#endif
#endif
