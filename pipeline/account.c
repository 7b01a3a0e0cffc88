/* Counts of delay. */
#include "pipeline/account.h"

#include <math.h>
#include <string.h>

rv_status rv_account_init(rv_account *account, int most) {
    rv_status status = RV_OK;
    *account = (rv_account){.most = most};
    TRY(rv_alloc(2 * ((size_t)most + 1), sizeof *account->forward, "counts of delay",
                 &account->forward));
    account->backward = account->forward + most + 1;
out:
    return status;
}

void rv_account_finish(rv_account *account) {
    rv_free(account->forward);
    *account = (rv_account){0};
}

void rv_account_clear(rv_account *account) {
    int64_t flying = account->flying;
    if (!account->forward) return;
    memset(account->forward, 0, 2 * ((size_t)account->most + 1) * sizeof *account->forward);
    *account = (rv_account){.most = account->most,
                            .forward = account->forward,
                            .backward = account->backward,
                            .flying = flying,
                            .samples = flying};
}

/* A micro-batch begins with F and ends with W of chunk 0. */
void rv_account_pass(rv_account *account, const rv_work *work, int64_t late, int samples) {
    bool forward = work->kind == RV_WORK_F, weights = work->kind == RV_WORK_W;
    if (!account->forward) return;
    if (!weights)
        (forward ? account->forward
                 : account->backward)[late < account->most ? late : account->most]++;
    if (work->chunk > 0) return;
    if (forward) account->flying += samples;
    if (account->flying > account->samples) account->samples = account->flying;
    if (weights || work->kind == RV_WORK_BW) account->flying -= samples;
}

void rv_account_update(rv_account *account, int versions, double stash) {
    if (!account->forward) return;
    account->updates++;
    if (versions > account->versions) account->versions = versions;
    account->stash = fmax(account->stash, stash);
}

void rv_account_list(rv_account *account, const rv_schedule *schedule, int stage, int from, int to,
                     int rows) {
    int count, made = 0;
    const rv_work *list = rv_schedule_list(schedule, stage, &count);
    for (int i = 0; i < count && made < to; i++) {
        const rv_work *x = &list[i];
        if (x->kind != RV_WORK_U)
            rv_account_pass(account, x, x->micro / schedule->group - x->version, rows);
        else if (++made == from)
            rv_account_clear(account);
        else
            rv_account_update(account, 0, 0);
    }
}

double rv_account_mean(const int64_t *counts, int most) {
    double sum = 0, all = 0;
    for (int k = 0; k <= most; k++)
        sum += k * (double)counts[k], all += (double)counts[k];
    return all > 0 ? sum / all : NAN;
}

/* Up to the last that is not 0. */
static json_t *counts_json(const int64_t *counts, int most) {
    json_t *list = json_array();
    while (most > 0 && counts[most] == 0)
        most--;
    for (int k = 0; k <= most; k++)
        json_array_append_new(list, json_integer((json_int_t)counts[k]));
    return list;
}

json_t *rv_account_json(const rv_account *account) {
    return json_pack("{s:I, s:o, s:o, s:i, s:f, s:I}", "updates", (json_int_t)account->updates,
                     "forward", counts_json(account->forward, account->most), "backward",
                     counts_json(account->backward, account->most), "versions", account->versions,
                     "stash_bytes", account->stash, "samples_in_flight",
                     (json_int_t)account->samples);
}
