/*
 * Inside snn/: what the two files of neuron layers share. neuron_plan.c turns options into a plan,
 * parameters and their gradients; neuron.c runs F, B and W.
 */
#ifndef RV_SNN_NEURON_H
#define RV_SNN_NEURON_H

#include "snn/layer.h"

typedef struct storage {
    double (*value)(double stored);
    double (*slope)(double stored);
} storage;
enum { RECURRENT = RV_P_COUNT }; /* tensor index after the parameters' */
enum { STATE_V = RV_SLOT_STATE, STATE_I, STATE_A, STATE_X, STATE_LAST, STATE_GRAD };
enum { TAPE_H = RV_SLOT_H, TAPE_I, TAPE_A, TAPE_V0, TAPE_I0, TAPE_A0 };

typedef struct neuron_plan {
    rv_neuron neuron;
    struct {
        const rv_reals *given; /* of the description; NULL: absent */
        const storage *given_as, *stored_as;
        int grad; /* row of STATE_GRAD, -1 = not learned */
    } param[RV_P_COUNT];
    int learned; /* rows of STATE_GRAD */
} neuron_plan;

RV_CHECKED rv_status rv_neuron_check(rv_net *net, rv_layer *layer);
RV_CHECKED rv_status rv_neuron_derive(rv_version *version, const rv_layer *layer, int rows);
void rv_neuron_discard(rv_version *version, const rv_layer *layer);
void rv_neuron_initial(const rv_net *net, const rv_layer *layer, int k, float *file);
rv_map rv_neuron_map(const rv_version *version, const rv_layer *layer); /* of the recurrence */
/* The per-unit sums of STATE_GRAD, complete at t0 = 0, into the gradient of what is stored. */
void rv_neuron_gradients(const rv_pass *pass, const rv_layer *layer);

#endif
