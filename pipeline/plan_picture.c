/* The timeline of a plan as lines of letters and as SVG. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/plan.h"

/* ---- growing text ----------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t size, capacity;
} page;

RV_PRINTF(2, 3) static rv_status put(page *p, const char *format, ...) {
    rv_status status = RV_OK;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof line) FAIL(RV_INTERNAL, "a picture's line is long");
    if (p->size + (size_t)length + 1 > p->capacity) {
        char *more = NULL;
        size_t capacity = 2 * p->capacity + sizeof line;
        TRY(rv_alloc(capacity, 1, "a picture", &more));
        if (p->size) memcpy(more, p->text, p->size);
        rv_free(p->text);
        p->text = more;
        p->capacity = capacity;
    }
    memcpy(p->text + p->size, line, (size_t)length + 1);
    p->size += (size_t)length;
out:
    return status;
}

/* ---- letters ---------------------------------------------------------------------------- */

enum { LABEL = 9, CELLS_MOST = 512 };

/* Small letters for odd micro-batches: where one ends and the next begins can be seen. */
static char letter_of(const rv_work *work) {
    static const char big[RV_WORK_KINDS] = "FBWBUN", small[RV_WORK_KINDS] = "fbwbun";
    return work->micro % 2 ? small[work->kind] : big[work->kind];
}

/* A cell shows what took most of its time; nothing where that is waiting. */
static void line_of(const rv_plan *plan, int worker, int cells, char *line) {
    const rv_schedule *schedule = &plan->schedule;
    double width = (plan->until - plan->from) / cells, most[CELLS_MOST], idle[CELLS_MOST];
    for (int i = 0; i < cells; i++)
        line[i] = '.', most[i] = 0, idle[i] = width;
    line[cells] = 0;
    for (int p = schedule->first[worker]; p < schedule->first[worker + 1]; p++) {
        double start = schedule->forecast.start[p] - plan->from;
        double end = fmin(schedule->forecast.end[p], plan->until) - plan->from;
        if (end <= 0) continue;
        for (int i = (int)(fmax(start, 0) / width); i < cells && i * width < end; i++) {
            double share = fmin(end, (i + 1) * width) - fmax(start, i * width);
            idle[i] -= fmax(share, 0);
            if (share <= most[i]) continue;
            most[i] = share;
            line[i] = letter_of(&schedule->items[p]);
        }
    }
    for (int i = 0; i < cells; i++)
        if (idle[i] > most[i]) line[i] = '.';
}

rv_status rv_plan_picture(const rv_plan *plan, int columns, char **text) {
    rv_status status = RV_OK;
    page p = {0};
    char line[CELLS_MOST + 1], end[32];
    int cells = columns - LABEL < CELLS_MOST ? columns - LABEL : CELLS_MOST;
    *text = NULL;
    for (int s = 0; s < plan->stages; s++) {
        line_of(plan, s, cells, line);
        TRY(put(&p, "stage %-3d%s\n", s, line));
    }
    int length = snprintf(end, sizeof end, "%.3g ms", 1e3 * (plan->until - plan->from));
    TRY(put(&p, "%*s0%*s\n", LABEL, "", cells - 1, length < cells ? end : ""));
    *text = p.text;
    p.text = NULL;
out:
    rv_free(p.text);
    return status;
}

/* ---- SVG -------------------------------------------------------------------------------- */

enum { WIDTH = 1000, ROW = 28, LEFT = 70, FOOT = 40 };

/* A bar, its name as a tooltip. Forward blue, backward green, weights orange; shade by micro-batch.
 */
static rv_status bar(page *p, const rv_plan *plan, int worker, int at) {
    static const char *const colours[RV_WORK_KINDS] = {"#3b7dd8", "#3fa45b", "#e08a2e",
                                                       "#2f8f6b", "#666666", "#b04fb0"};
    const rv_schedule *schedule = &plan->schedule;
    const rv_work *work = &schedule->items[at];
    double scale = (WIDTH - LEFT - 10) / (plan->until - plan->from);
    double start = fmax(schedule->forecast.start[at], plan->from) - plan->from;
    double end = fmin(schedule->forecast.end[at], plan->until) - plan->from;
    char name[RV_WORK_TEXT];
    if (end <= 0 || end <= start) return RV_OK; /* before or after what is shown */
    rv_work_print(work, worker, name);
    return put(p,
               "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
               "fill-opacity=\"%.2f\"><title>%s %.3f-%.3f ms</title></rect>\n",
               LEFT + scale * start, 10 + worker * ROW, fmax(0.2, scale * (end - start) - 0.5),
               ROW - 6, colours[work->kind], work->micro % 2 ? 0.65 : 1.0, name, 1e3 * start,
               1e3 * end);
}

rv_status rv_plan_svg(const rv_plan *plan, char **text) {
    rv_status status = RV_OK;
    page p = {0};
    const rv_schedule *schedule = &plan->schedule;
    int height = 10 + plan->stages * ROW + FOOT;
    *text = NULL;
    TRY(put(&p,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, height));
    for (int s = 0; s < plan->stages; s++) {
        TRY(put(&p, "<text x=\"10\" y=\"%d\">stage %d</text>\n", 10 + s * ROW + ROW / 2 + 2, s));
        for (int at = schedule->first[s]; at < schedule->first[s + 1]; at++)
            TRY(bar(&p, plan, s, at));
    }
    TRY(put(&p,
            "<text x=\"%d\" y=\"%d\">%s, %d chunks, %d micro-batches: %.3g ms, bubble %.1f %%"
            "</text>\n</svg>\n",
            LEFT, height - 12, schedule->name, plan->chunks, plan->micros, 1e3 * plan->step,
            100 * plan->bubble));
    *text = p.text;
    p.text = NULL;
out:
    rv_free(p.text);
    return status;
}
