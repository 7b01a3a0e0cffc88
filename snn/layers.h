/*
 * Inside snn/: the layer kinds besides linear and neurons, their parameters, and what their files
 * share. Each file layer_*.c holds the kinds of one family; the rows stand in layer.c's table.
 */
#ifndef RV_SNN_LAYERS_H
#define RV_SNN_LAYERS_H

#include "snn/layer.h"

extern const rv_layer_kind rv_kind_conv2d, rv_kind_conv1d;
extern const rv_layer_kind rv_kind_avg_pool, rv_kind_max_pool, rv_kind_sum_pool;
extern const rv_layer_kind rv_kind_batch_norm, rv_kind_delay;
extern const rv_layer_kind rv_kind_flatten, rv_kind_add, rv_kind_concat;
extern const rv_layer_kind rv_kind_dropout, rv_kind_scale, rv_kind_threshold;

extern const rv_spec rv_conv2d_specs[], rv_conv1d_specs[], rv_pool_specs[];
extern const rv_spec rv_batch_norm_specs[], rv_delay_specs[];
extern const rv_spec rv_dropout_specs[], rv_scale_specs[], rv_threshold_specs[];

/* One input whose shape, kind of time and units go on unchanged: the start of most checks. */
RV_CHECKED rv_status rv_layer_same_shape(const rv_net *net, rv_layer *layer);
/* Planes of a shape: rank 1 has a channel per unit. */
rv_plane rv_shape_plane(rv_shape shape);
/* Shape of a window's output over the planes of the layer's input; RV_CONFIG when nothing fits. */
RV_CHECKED rv_status rv_window_shape(const rv_net *net, const rv_layer *layer, rv_plane in,
                                     const rv_window *window, int channels, rv_plane *out);
/* Values from a description, one or one a channel or unit, as an array [layer->ld] per unit; the
 * padding repeats the last. Made once per version: `stored` wins over `given`. */
RV_CHECKED rv_status rv_layer_spread(rv_version *version, const rv_layer *layer,
                                     const float *stored, const rv_reals *given);
/* RV_CONFIG unless `given` has one value, one per channel, or one per unit. */
RV_CHECKED rv_status rv_layer_check_reals(const rv_layer *layer, const char *key,
                                          const rv_reals *given);

#endif
