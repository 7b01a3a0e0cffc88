/*
 * Written by scripts/measure_forms --write: rates of spikes below which adding weight rows takes
 * less time than the dense product, forward and weight gradient together. One thread of Intel Xeon
 * Processor (family 6, model 167), amx, 2026-12-02.
 */
#include "snn/layer.h"

const rv_form_rates rv_linear_rates = {.in = {64, 256, 1024, 4096},
                                       .out = {16, 128, 512, 2048},
                                       .rate = {{0.500, 0.420, 0.450, 0.479},
                                                {0.464, 0.401, 0.404, 0.372},
                                                {0.500, 0.356, 0.368, 0.411},
                                                {0.497, 0.297, 0.381, 0.333}}};

const rv_form_rates rv_conv_rates = {.in = {1, 8, 32, 128},
                                     .out = {8, 32, 64, 128},
                                     .rate = {{0.000, 0.000, 0.000, 0.028},
                                              {0.000, 0.032, 0.072, 0.198},
                                              {0.014, 0.058, 0.187, 0.402},
                                              {0.063, 0.141, 0.222, 0.269}}};
