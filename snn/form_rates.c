/*
 * Written by scripts/measure_forms --write: rates of spikes below which adding weight rows takes
 * less time than the dense product, forward and weight gradient together. One thread of Intel Xeon
 * Processor (family 6, model 167), amx, 2026-12-02.
 */
#include "snn/layer.h"

const rv_form_rates rv_linear_rates = {.in = {64, 256, 1024, 4096},
                                       .out = {16, 128, 512, 2048},
                                       .rate = {{0.437, 0.392, 0.500, 0.497},
                                                {0.500, 0.372, 0.377, 0.380},
                                                {0.471, 0.416, 0.489, 0.432},
                                                {0.500, 0.409, 0.409, 0.491}}};

const rv_form_rates rv_conv_rates = {.in = {1, 8, 32, 128},
                                     .out = {8, 32, 64, 128},
                                     .rate = {{0.000, 0.000, 0.000, 0.000},
                                              {0.000, 0.034, 0.114, 0.259},
                                              {0.019, 0.054, 0.190, 0.293},
                                              {0.072, 0.139, 0.267, 0.314}}};
