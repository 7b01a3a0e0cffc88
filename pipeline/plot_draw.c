/* Drawing panels with cairo, as SVG or PNG. */
#include "pipeline/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#ifdef RV_CAIRO
#include <cairo-svg.h>
#include <cairo.h>
#endif

rv_status rv_panel_add(rv_panel *panel, const char *name, int room, rv_series **out) {
    rv_status status = RV_OK;
    rv_series *series = NULL, *one;
    TRY(rv_alloc((size_t)panel->count + 1, sizeof *series, "a plot", &series));
    if (panel->count) memcpy(series, panel->series, (size_t)panel->count * sizeof *series);
    rv_free(panel->series);
    panel->series = series;
    one = &series[panel->count++];
    snprintf(one->name, sizeof one->name, "%s", name);
    TRY(rv_alloc((size_t)room, sizeof(double), "a plot", &one->x));
    TRY(rv_alloc((size_t)room, sizeof(double), "a plot", &one->y));
    *out = one;
out:
    return status;
}

void rv_panels_finish(rv_panel *panels, int count) {
    for (int p = 0; p < count; p++) {
        for (int i = 0; i < panels[p].count; i++) {
            rv_free(panels[p].series[i].x);
            rv_free(panels[p].series[i].y);
        }
        rv_free(panels[p].series);
        panels[p] = (rv_panel){0};
    }
}

#ifndef RV_CAIRO

rv_status rv_draw(const rv_panel *panels, int count, const char *path) {
    (void)panels, (void)count;
    return rv_fail(RV_CONFIG, "%s: this program was built without cairo and draws nothing", path);
}

#else

enum { WIDTH = 760, HEIGHT = 280, LEFT = 70, RIGHT = 150, TOP = 34, BOTTOM = 44, SIZE = 12 };

/* Tells lines apart also without colours seen as such (Okabe, Ito 2008). */
static const double colours[][3] = {{0.00, 0.45, 0.70}, {0.84, 0.37, 0.00}, {0.00, 0.62, 0.45},
                                    {0.80, 0.47, 0.65}, {0.34, 0.71, 0.91}, {0.90, 0.62, 0.00},
                                    {0.00, 0.00, 0.00}};
enum { COLOURS = sizeof colours / sizeof *colours };

typedef struct axes {
    cairo_t *to;
    double left, top, width, height; /* of the field */
    double x0, x1, y0, y1;           /* values at its edges */
} axes;

/* From values to the surface's units; y grows upwards. */
static double at_x(const axes *a, double x) {
    return a->left + (x - a->x0) / (a->x1 - a->x0) * a->width;
}

static double at_y(const axes *a, double y) {
    return a->top + a->height - (y - a->y0) / (a->y1 - a->y0) * a->height;
}

/* All that is finite, with a little air; a single value gets a field of its own. */
static void range_find(axes *a, const rv_panel *panel) {
    a->x0 = a->y0 = INFINITY;
    a->x1 = a->y1 = -INFINITY;
    for (int i = 0; i < panel->count; i++)
        for (int k = 0; k < panel->series[i].count; k++) {
            double x = panel->series[i].x[k], y = panel->series[i].y[k];
            if (!isfinite(y)) continue;
            a->x0 = fmin(a->x0, x), a->x1 = fmax(a->x1, x);
            a->y0 = fmin(a->y0, y), a->y1 = fmax(a->y1, y);
        }
    if (panel->dots) a->x0 = 0, a->x1 = panel->width, a->y0 = 0, a->y1 = panel->height;
    if (a->x0 > a->x1) a->x0 = 0, a->x1 = 1, a->y0 = 0, a->y1 = 1; /* nothing */
    if (panel->share) a->y0 = 0, a->y1 = 1;
    if (a->x0 == a->x1) a->x0 -= 0.5, a->x1 += 0.5;
    double air = a->y0 == a->y1 ? 0.5 : 0.04 * (a->y1 - a->y0);
    if (!panel->share) a->y0 -= air, a->y1 += air;
}

/* 1, 2 or 5 times a power of ten: about `parts` of them in a span. */
static double tick_of(double span, int parts) {
    double rough = span / parts, power = pow(10, floor(log10(rough))), lead = rough / power;
    return power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
}

/* align: 0 begins at x, 0.5 is centred, 1 ends there. */
static void text_at(cairo_t *to, double x, double y, double align, const char *text) {
    cairo_text_extents_t size;
    cairo_text_extents(to, text, &size);
    cairo_move_to(to, x - align * size.x_advance, y);
    cairo_show_text(to, text);
}

/* Grid below, then the numbers at its lines, the frame, and what the axes are. */
static void frame_draw(const axes *a, const rv_panel *panel) {
    cairo_t *to = a->to;
    char text[32];
    double step = fmax(1, tick_of(a->x1 - a->x0, 8)); /* epochs and time steps are whole */
    cairo_set_line_width(to, 1);
    for (double x = ceil(a->x0 / step) * step; x <= a->x1 + 1e-9 * step; x += step) {
        cairo_set_source_rgb(to, 0.9, 0.9, 0.9);
        cairo_move_to(to, at_x(a, x), a->top);
        cairo_line_to(to, at_x(a, x), a->top + a->height);
        cairo_stroke(to);
        cairo_set_source_rgb(to, 0.2, 0.2, 0.2);
        snprintf(text, sizeof text, "%.6g", fabs(x) < 1e-9 * step ? 0 : x);
        text_at(to, at_x(a, x), a->top + a->height + SIZE + 4, 0.5, text);
    }
    step = tick_of(a->y1 - a->y0, 5);
    for (double y = ceil(a->y0 / step) * step; y <= a->y1 + 1e-9 * step; y += step) {
        cairo_set_source_rgb(to, 0.9, 0.9, 0.9);
        cairo_move_to(to, a->left, at_y(a, y));
        cairo_line_to(to, a->left + a->width, at_y(a, y));
        cairo_stroke(to);
        cairo_set_source_rgb(to, 0.2, 0.2, 0.2);
        snprintf(text, sizeof text, "%.6g", fabs(y) < 1e-9 * step ? 0 : y);
        text_at(to, a->left - 6, at_y(a, y) + SIZE / 3.0, 1, text);
    }
    cairo_rectangle(to, a->left, a->top, a->width, a->height);
    cairo_stroke(to);
    text_at(to, a->left + a->width / 2, a->top - 10, 0.5, panel->title);
    text_at(to, a->left + a->width / 2, a->top + a->height + 2 * SIZE + 10, 0.5, panel->x);
    text_at(to, a->left, a->top - 10, 0.5, panel->y);
}

/* A gap where a value is missing: a line across it would be made up. Few points are marked, so that
 * a single one can be seen. */
static void series_draw(const axes *a, const rv_panel *panel, int index) {
    const rv_series *series = &panel->series[index];
    const double *colour = colours[index % COLOURS];
    cairo_t *to = a->to;
    bool pen = false;
    cairo_set_source_rgb(to, colour[0], colour[1], colour[2]);
    cairo_set_line_width(to, 1.6);
    for (int k = 0; k < series->count; k++) {
        double x = at_x(a, series->x[k]), y = at_y(a, series->y[k]);
        bool there = isfinite(series->y[k]);
        if (there && panel->dots)
            cairo_rectangle(to, x - 1.5, y - 1.5, 3, 3);
        else if (there && pen)
            cairo_line_to(to, x, y);
        else if (there)
            cairo_move_to(to, x, y);
        pen = there;
    }
    panel->dots ? cairo_fill(to) : cairo_stroke(to);
    for (int k = 0; k < series->count && !panel->dots && series->count <= 60; k++) {
        if (!isfinite(series->y[k])) continue;
        cairo_arc(to, at_x(a, series->x[k]), at_y(a, series->y[k]), 2, 0, 6.2832);
        cairo_fill(to);
    }
    double y = a->top + 12 + 16 * index;
    if (y > a->top + a->height) return; /* more names than fit beside the field */
    cairo_rectangle(to, a->left + a->width + 10, y - 6, 12, 4);
    cairo_fill(to);
    cairo_set_source_rgb(to, 0.2, 0.2, 0.2);
    text_at(to, a->left + a->width + 26, y, 0, series->name);
}

/* On white, whatever the viewer's background is. */
static void panels_draw(cairo_t *to, const rv_panel *panels, int count) {
    cairo_set_source_rgb(to, 1, 1, 1);
    cairo_paint(to);
    cairo_select_font_face(to, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(to, SIZE);
    for (int p = 0; p < count; p++) {
        axes a = {.to = to,
                  .left = LEFT,
                  .top = p * HEIGHT + TOP,
                  .width = WIDTH - LEFT - RIGHT,
                  .height = HEIGHT - TOP - BOTTOM};
        range_find(&a, &panels[p]);
        frame_draw(&a, &panels[p]);
        for (int i = 0; i < panels[p].count; i++)
            series_draw(&a, &panels[p], i);
    }
}

/* ---- the file ---------------------------------------------------------------------------- */
/* Gathered in memory, so that the file is committed whole like any other. */
typedef struct bytes {
    char *data;
    size_t size, room;
} bytes;

/* Doubling: cairo hands out a picture in small pieces. */
static cairo_status_t bytes_add(void *user, const unsigned char *data, unsigned length) {
    bytes *to = user;
    if (to->size + length > to->room) {
        size_t room = 2 * (to->size + length) + 65536;
        char *data_new = NULL;
        if (rv_alloc(room, 1, "a picture", &data_new) != RV_OK) return CAIRO_STATUS_NO_MEMORY;
        if (to->size) memcpy(data_new, to->data, to->size);
        rv_free(to->data);
        to->data = data_new;
        to->room = room;
    }
    memcpy(to->data + to->size, data, length);
    to->size += length;
    return CAIRO_STATUS_SUCCESS;
}

static bool ends_with(const char *path, const char *end) {
    size_t length = strlen(path), size = strlen(end);
    return length > size && strcmp(path + length - size, end) == 0;
}

rv_status rv_draw(const rv_panel *panels, int count, const char *path) {
    rv_status status = RV_OK;
    bool svg = ends_with(path, ".svg");
    bytes out = {0};
    cairo_surface_t *surface = NULL;
    cairo_t *to = NULL;
    cairo_status_t drawn;
    if (!svg && !ends_with(path, ".png"))
        FAIL(RV_USAGE, "%s: its name must end in .svg or .png", path);
    surface = svg ? cairo_svg_surface_create_for_stream(bytes_add, &out, WIDTH, HEIGHT * count)
                  : cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH, HEIGHT * count);
    to = cairo_create(surface);
    panels_draw(to, panels, count);
    drawn = cairo_status(to);
    if (drawn == CAIRO_STATUS_SUCCESS && !svg)
        drawn = cairo_surface_write_to_png_stream(surface, bytes_add, &out);
    cairo_surface_finish(surface);
    if (drawn == CAIRO_STATUS_SUCCESS) drawn = cairo_surface_status(surface);
    if (drawn != CAIRO_STATUS_SUCCESS)
        FAIL(RV_INTERNAL, "%s: cannot draw: %s", path, cairo_status_to_string(drawn));
    TRY(rv_commit(path, NULL, out.data, out.size));
out:
    if (to) cairo_destroy(to);
    if (surface) cairo_surface_destroy(surface);
    rv_free(out.data);
    return status;
}

#endif
