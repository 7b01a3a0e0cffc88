/* ranvier plot RUN -o FILE: curves of a run, or one sample in one layer, as SVG or PNG. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/cmd.h"

/* -1: not given. */
static rv_status sample_parse(const char *text, int64_t *sample) {
    *sample = -1;
    if (!text) return RV_OK;
    size_t length = strlen(text);
    if (length == 0 || length > 12 || strspn(text, "0123456789") != length)
        return rv_fail(RV_USAGE, "--sample takes a whole number from 0, not \"%s\"", text);
    *sample = atoll(text);
    return RV_OK;
}

/* A layer alone means its first sample. */
rv_code rv_cmd_plot(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    rv_plot_options options = {
        .struct_size = sizeof options,
        .run = arguments->operand[0],
        .out = arguments->out,
        .layer = arguments->layer,
        .split = arguments->split,
    };
    if (!options.out) FAIL(RV_USAGE, "plot needs -o FILE.svg or FILE.png");
    TRY(sample_parse(arguments->sample, &options.sample));
    if (options.sample < 0 && options.layer) options.sample = 0;
    TRY((rv_status)rv_plot(&options));
    if (arguments->json)
        printf("{\"file\": \"%s\"}\n", options.out);
    else
        puts(options.out);
out:
    return status;
}
