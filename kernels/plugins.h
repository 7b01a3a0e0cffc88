/* Devices from plug-ins (plugins.c). `kind` is the word of --device. Internal to kernels/. */
#ifndef RV_KERNELS_PLUGINS_H
#define RV_KERNELS_PLUGINS_H

#include "kernels/plugin.h"

bool rv_plugin_known(const char *kind);
/* RV_RESOURCE: the plug-in is not there, or finds no device; the message says why. */
RV_CHECKED rv_status rv_plugin_count(const char *kind, int *out);
RV_CHECKED rv_status rv_plugin_device(const char *kind, int index, rv_device *out);

#endif
