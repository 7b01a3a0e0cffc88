/*
 * Inside pipeline/: the account of delay of one stage: how many updates old the weights were that
 * its passes read, how many versions it kept for that and in how many bytes, how many samples it
 * had in flight. An executor counts what its passes have really read; a planner walks the lists:
 * both through the same functions, so that measured and planned can be compared. Counts of a stage
 * belong to whoever steps it.
 */
#ifndef RV_PIPELINE_ACCOUNT_H
#define RV_PIPELINE_ACCOUNT_H

#include "pipeline/schedule.h"
#include "pipeline/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed = empty: counts nothing. */
typedef struct rv_account {
    int most;          /* updates; the last entry also counts what is older */
    int64_t *forward;  /* [most + 1]: passes of a chunk whose weights were so many updates old */
    int64_t *backward; /* [most + 1] */
    int64_t updates;
    int versions;    /* of weights kept at once, the newest among them: the most */
    double stash;    /* bytes of weights kept beside the newest: the most */
    int64_t samples; /* between their first F and their last W: the most */
    int64_t flying;  /* the same now */
} rv_account;

RV_CHECKED rv_status rv_account_init(rv_account *account, int most);
void rv_account_finish(rv_account *account);
/* Begins anew; what is in flight stays so. */
void rv_account_clear(rv_account *account);
/* An item has ended: F, B, W or BW of `samples` samples, under weights `late` updates old. */
void rv_account_pass(rv_account *account, const rv_work *work, int64_t late, int samples);
void rv_account_update(rv_account *account, int versions, double stash);

/* All items of a stage in the lists of an endless schedule, `rows` samples a micro-batch, between
 * its updates `from` and `to`; in flight is what was begun before. Versions and bytes are left to
 * the caller. */
void rv_account_list(rv_account *account, const rv_schedule *schedule, int stage, int from, int to,
                     int rows);
double rv_account_mean(const int64_t *counts, int most); /* NAN: nothing was counted */
/* {"updates", "forward": [count at delay 0, 1, ...], "backward", "versions", "stash_bytes",
 * "samples_in_flight"}. NULL: out of memory. */
json_t *rv_account_json(const rv_account *account);

#ifdef __cplusplus
}
#endif
#endif
