/*
 * At which rate of spikes does the dense product overtake the sum of weight rows? Prints, for maps
 * and for 3x3 convolutions of several sizes, the crossing of forward, of the weight gradient, and
 * of both together, which is what a training step does. `scripts/measure_forms` runs it and stores
 * the last. The input gradient is dense in either form.
 */
#include "snn/layer.h"
#include "tests/bench.h"

enum { SIZES = RV_FORM_SIZES, RATES = 11, STEPS = 4, BATCH = 64, SIDE = 14 };
static const double rates[RATES] = {0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5};

typedef struct times {
    double forward, weight;
} times;

/* One size of one kind of product, in either form, on given spikes. */
typedef times (*timer)(int in, int out, rv_form form, double rate);

static times linear_times(int in, int out, rv_form form, double rate) {
    times t;
    double count;
    int ld = rv_round_up(out, RV_LANES);
    float *weight = floats((size_t)in * (size_t)ld), *gw = floats((size_t)in * (size_t)ld);
    float *bias = floats((size_t)ld);
    rv_map map = {in, out, ld, form, .weight = weight, .bias = bias};
    rv_signal x = {.spikes = spikes_of(STEPS, BATCH, in, rate, &count)};
    rv_values y = values_of(STEPS, BATCH, out);
    MUST(device.ops->map_pack(device.ctx, NULL, &map, BATCH, &map.packed));
    BEST(&t.forward, 3, device.ops->map_forward(device.ctx, NULL, &map, &x, y, &arena));
    BEST(&t.weight, 3, device.ops->map_weight(device.ctx, NULL, &map, &x, y, gw, bias, &arena));
    device.ops->map_unpack(device.ctx, map.packed);
    rv_free(weight), rv_free(gw), rv_free(bias), rv_free(x.spikes.bits), rv_free(y.data);
    return t;
}

static times conv_times(int in, int out, rv_form form, double rate) {
    times t;
    double count;
    size_t block = (size_t)in * (size_t)out * 9;
    float *weight = floats(block), *gw = floats(block);
    rv_conv conv = {.in = {in, SIDE, SIDE},
                    .out = {out, SIDE, SIDE},
                    .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}},
                    .groups = 1,
                    .form = form,
                    .weight = weight};
    rv_signal x = {.spikes = spikes_of(STEPS, BATCH, in * SIDE * SIDE, rate, &count)};
    rv_values y = values_of(STEPS, BATCH, out * SIDE * SIDE);
    MUST(device.ops->conv_pack(device.ctx, NULL, &conv, BATCH, &conv.packed));
    BEST(&t.forward, 3, device.ops->conv_forward(device.ctx, NULL, &conv, &x, y, &arena));
    BEST(&t.weight, 3, device.ops->conv_weight(device.ctx, NULL, &conv, &x, y, gw, NULL, &arena));
    device.ops->conv_unpack(device.ctx, conv.packed);
    rv_free(weight), rv_free(gw), rv_free(x.spikes.bits), rv_free(y.data);
    return t;
}

/* Where the times of events reach that of the product, between two rates on a straight line. 0:
 * dense is faster even at the lowest rate, taken down to no spikes at all; the last rate: nowhere.
 */
static double crossing(const double event[RATES], double dense) {
    if (event[0] >= dense) return 0;
    for (int k = 1; k < RATES; k++)
        if (event[k] >= dense)
            return rates[k - 1] +
                   (rates[k] - rates[k - 1]) * (dense - event[k - 1]) / (event[k] - event[k - 1]);
    return rates[RATES - 1];
}

static void measure(const char *name, const int *in, const int *out, timer timed) {
    for (int i = 0; i < SIZES; i++)
        for (int o = 0; o < SIZES; o++) {
            double event[3][RATES];
            times dense = timed(in[i], out[o], RV_FORM_DENSE, 0.1);
            for (int k = 0; k < RATES; k++) {
                times t = timed(in[i], out[o], RV_FORM_EVENT, rates[k]);
                event[0][k] = t.forward, event[1][k] = t.weight;
                event[2][k] = t.forward + t.weight;
            }
            printf("%s %d %d %.3f %.3f %.3f\n", name, in[i], out[o],
                   crossing(event[0], dense.forward), crossing(event[1], dense.weight),
                   crossing(event[2], dense.forward + dense.weight));
            fflush(stdout);
        }
}

int main(void) {
    static const int units[SIZES] = {64, 256, 1024, 4096}, outputs[SIZES] = {16, 128, 512, 2048};
    static const int channels[SIZES] = {1, 8, 32, 128}, planes[SIZES] = {8, 32, 64, 128};
    rv_isa isa = rv_isa_best();
    MUST(rv_device_open("cpu", isa, 1, &device));
    (void)rv_flush_set();
    printf("isa %s\n", rv_isa_name(isa));
    measure("linear", units, outputs, linear_times);
    measure("conv", channels, planes, conv_times);
    rv_arena_finish(&arena);
    rv_device_close(&device);
    return 0;
}
