/* Inside snn/: what optim.c needs of the rate schedules in rate.c. */
#ifndef RV_SNN_RATE_H
#define RV_SNN_RATE_H

#include "snn/layer.h"

/* Tell a schedule that listens the validation loss of an epoch. A loss that is no number counts as
 * one that is not better. */
void rv_plateau_epoch(const rv_choice *schedule, rv_plateau *plateau, double loss);
/* The rate after the plateaus so far. */
double rv_plateau_rate(const rv_choice *schedule, const rv_plateau *plateau, double rate);

#endif
