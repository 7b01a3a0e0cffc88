/*
 * Devices that come in a shared library beside the program: found, opened and asked when one is
 * named. Each reason for which there is none has a message of its own, since each has another cure.
 */
#include "kernels/plugins.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* `needs`: a library without which opening the plug-in is not worth its time, for loading those of
 * a GPU takes most of a second; asked for first. `made`: how one gets the plug-in. */
static const struct plugin_row {
    const char *kind, *needs, *made;
} rows[] = {
    {"cuda", "libcuda.so.1", "make cuda"},
    {"emu", NULL, "make emu"},
};

static const struct plugin_row *row_find(const char *kind) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].kind, kind) == 0) return &rows[i];
    return NULL;
}

bool rv_plugin_known(const char *kind) {
    return row_find(kind) != NULL;
}

/* ---- what plug-ins are given ---------------------------------------------------------------- */
static rv_status host_fail(rv_status status, const char *message) {
    return rv_fail(status, "%s", message);
}

static const rv_host host = {
    .abi = RV_PLUGIN_ABI,
    .struct_size = sizeof(rv_host),
    .fail = host_fail,
    .alloc = rv_alloc,
    .free = rv_free,
    .arena_get = rv_arena_get,
    .arena_mark = rv_arena_mark,
    .arena_release = rv_arena_release,
};

/* ---- finding and opening one ---------------------------------------------------------------- */
/* Beside the program, wherever it was started from and through whatever links. */
static rv_status path_of(const char *kind, char path[PATH_MAX]) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return rv_fail(RV_RESOURCE, "cannot tell where this program lies");
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    *(slash ? slash : program) = '\0';
    int size = snprintf(path, PATH_MAX, "%s/ranvier_%s.so", program, kind);
    if (size >= PATH_MAX) return rv_fail(RV_RESOURCE, "the path of this program is too long");
    return RV_OK;
}

/* A driver that is not there is the usual case, and cheap to find out. */
static rv_status needs_check(const struct plugin_row *row) {
    void *library = row->needs ? dlopen(row->needs, RTLD_LAZY | RTLD_LOCAL) : NULL;
    if (row->needs && !library) return rv_fail(RV_RESOURCE, "the driver is missing: %s", dlerror());
    if (library) dlclose(library);
    return RV_OK;
}

/* Loaded once however often it is asked for, and never unloaded: its ops may run until the end. */
static rv_status plugin_find(const char *kind, const rv_plugin **out) {
    rv_status status = RV_OK;
    const struct plugin_row *row = row_find(kind);
    char path[PATH_MAX];
    const rv_plugin *(*open)(const rv_host *host) = NULL;
    TRY(path_of(kind, path));
    if (access(path, F_OK) != 0)
        FAIL(RV_RESOURCE, "the plug-in ranvier_%s.so is not beside the program (%s)", kind,
             row->made);
    TRY(needs_check(row));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) FAIL(RV_RESOURCE, "the plug-in cannot be loaded: %s", dlerror());
    void *symbol = dlsym(library, RV_PLUGIN_SYMBOL);
    memcpy(&open, &symbol, sizeof open); /* C has no cast from data to functions */
    const rv_plugin *plugin = open ? open(&host) : NULL;
    if (!plugin || plugin->abi != RV_PLUGIN_ABI || plugin->struct_size < sizeof(rv_plugin))
        FAIL(RV_RESOURCE, "the plug-in %s belongs to another version of the program (%s)", path,
             row->made);
    *out = plugin;
out:
    return status;
}

rv_status rv_plugin_count(const char *kind, int *out) {
    rv_status status = RV_OK;
    const rv_plugin *plugin = NULL;
    *out = 0;
    TRY(plugin_find(kind, &plugin));
    TRY(plugin->count(&host, out));
out:
    return status;
}

rv_status rv_plugin_device(const char *kind, int index, rv_device *out) {
    rv_status status = RV_OK;
    const rv_plugin *plugin = NULL;
    int count = 0;
    TRY(plugin_find(kind, &plugin));
    TRY(plugin->count(&host, &count));
    if (index >= count)
        FAIL(RV_RESOURCE, "there is no device %s:%d, but %d, from 0 on", kind, index, count);
    TRY(plugin->open(&host, index, out));
    if (out->ops->abi != 1 || out->ops->struct_size != sizeof(rv_ops))
        FAIL(RV_RESOURCE, "the ops of ranvier_%s.so are those of another version (%s)", kind,
             row_find(kind)->made);
out:
    return status;
}
