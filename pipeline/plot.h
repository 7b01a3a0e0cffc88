/*
 * Inside pipeline/: pictures of a run. plot.c gathers what is drawn, plot_draw.c draws it with
 * cairo, the only file that knows it.
 */
#ifndef RV_PIPELINE_PLOT_H
#define RV_PIPELINE_PLOT_H

#include "pipeline/internal.h"

typedef struct rv_series {
    char name[RV_NAME_MAX + 32];
    int count;
    double *x, *y; /* owned; y NAN: no such value */
} rv_series;

/* One system of axes. Zeroed = empty. */
typedef struct rv_panel {
    char title[128], x[32], y[32];
    int count;
    rv_series *series; /* owned */
    bool dots; /* a point each (a raster), no lines; the field is then 0..width, 0..height */
    double width, height;
    bool share; /* y from 0 to 1 */
} rv_panel;

/* Panels below each other into `path`, whose ending (.svg or .png) is its format. RV_USAGE another
 * ending; RV_CONFIG a build without cairo; RV_CREATE, RV_IO. */
RV_CHECKED rv_status rv_draw(const rv_panel *panels, int count, const char *path);
RV_CHECKED rv_status rv_panel_add(rv_panel *panel, const char *name, int room, rv_series **out);
void rv_panels_finish(rv_panel *panels, int count);

#endif
