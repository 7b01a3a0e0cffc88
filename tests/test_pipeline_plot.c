/* Pictures of runs: what is in the file, and what cannot be drawn. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/data.h"
#include "pipeline/plot.h"
#include "tests/spawn.h"

static bool drawn; /* this build has cairo */

static int enter(void **state) {
    if (group_setup(state) != 0 || RUN("train", "recipe.yaml", "-q", "-o", "run") != 0) return -1;
    int code = RUN("plot", "run", "-o", "first.svg");
    drawn = code == 0;
    return code == 0 || code == 78 ? 0 : -1;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        count++;
    return count;
}

static void curves_are_drawn(void **state) {
    (void)state;
    static char text[1 << 20];
    if (!drawn) skip();
    assert_int_equal(RUN("plot", "run", "-o", "curves.svg"), 0);
    assert_string_equal(out_text, "curves.svg\n");
    read_text(in_folder("curves.svg"), text, sizeof text);
    assert_contains(text, "<svg");
    assert_contains(text, "</svg>");
    /* Three panels with 1 + 3 + 2 lines of four points each. */
    assert_int_equal(count_of(text, "stroke-width:1.6"), 6);
    assert_int_equal(RUN("plot", "run", "-o", "curves.png"), 0);
    read_text(in_folder("curves.png"), text, sizeof text);
    assert_memory_equal(text, "\x89PNG\r\n\x1a\n", 8);
}

/* As many dots as eval counts spikes for the same single sample. */
static void sample_is_drawn(void **state) {
    (void)state;
    static char text[1 << 20];
    if (!drawn || !rv_h5_available()) skip();
    assert_int_equal(
        RUN("plot", "run", "-o", "sample.svg", "--sample", "3", "--layer", "hidden_lif"), 0);
    read_text(in_folder("sample.svg"), text, sizeof text);
    assert_contains(text, "</svg>");
    assert_int_equal(RUN("plot", "run", "-o", "other.svg", "--sample", "2", "--layer", "out_lif",
                         "--split", "validation"),
                     0);
    assert_int_equal(RUN("plot", "run", "-o", "default.png", "--sample", "0"), 0);
    ERROR(64, "40 samples", "plot", "run", "-o", "x.svg", "--sample", "40");
    ERROR(64, "no layer", "plot", "run", "-o", "x.svg", "--sample", "1", "--layer", "none");
    ERROR(64, "whole number", "plot", "run", "-o", "x.svg", "--sample", "-1");
    ERROR(64, "unknown split", "plot", "run", "-o", "x.svg", "--sample", "1", "--split", "best");
}

static void what_cannot_be_drawn_is_told(void **state) {
    (void)state;
    ERROR(64, "-o FILE", "plot", "run");
    ERROR(66, "nowhere", "plot", "nowhere", "-o", "x.svg");
    if (!drawn) {
        ERROR(78, "without cairo", "plot", "run", "-o", "x.svg");
        return;
    }
    ERROR(64, ".svg or .png", "plot", "run", "-o", "x.pdf");
    ERROR(73, "no_folder", "plot", "run", "-o", "no_folder/x.svg");
}

/* Axes of values that are hard: none, one, equal, not finite. */
static void odd_values_are_drawn(void **state) {
    (void)state;
    if (!drawn) skip();
    static const double values[][3] = {{1, 1, 1}, {NAN, NAN, NAN}, {1e30, -1e30, 0}, {0, NAN, 1}};
    rv_panel panels[4] = {{.count = 0}};
    char path[TINY_PATH];
    snprintf(path, sizeof path, "%s", in_folder("odd.svg"));
    for (int p = 0; p < 4; p++)
        for (int n = 0; n <= 3; n += 1 + p) {
            rv_series *series = NULL;
            assert_int_equal(rv_panel_add(&panels[p], "s", 3, &series), RV_OK);
            for (int k = 0; k < n; k++)
                series->x[k] = k, series->y[k] = values[p][k];
            series->count = n;
        }
    assert_int_equal(rv_draw(panels, 4, path), RV_OK);
    static char text[1 << 20];
    read_text(path, text, sizeof text);
    assert_contains(text, "</svg>");
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    rv_panels_finish(panels, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_are_drawn),
        cmocka_unit_test(sample_is_drawn),
        cmocka_unit_test(what_cannot_be_drawn_is_told),
        cmocka_unit_test(odd_values_are_drawn),
    };
    return cmocka_run_group_tests(tests, enter, group_teardown);
}
