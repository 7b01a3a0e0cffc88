/*
 * Updates inside the lists, the versions of delayed runs, and how old these are. Lists are built
 * without updates and get them here, so a generator need not know how often weights change, and
 * synchronous and delayed runs differ in nothing but where their U stand.
 */
#include <string.h>

#include "pipeline/schedule_index.h"

/* ---- closed forms ----------------------------------------------------------------------- */

static int ceil_div(int a, int b) { /* b > 0, a of any sign */
    return a >= 0 ? (a + b - 1) / b : -(-a / b);
}

/* In the steady state a stage is ahead of its own backward by its warm-up, C+S-2-s chunks; what of
 * it lies beyond chunk c of the micro-batch itself is counted in whole micro-batches. */
int rv_delay_1f1b(int stages, int chunks, int stage, int chunk) {
    return 1 + ceil_div(stages - 2 - stage - chunk, chunks);
}

int rv_delay_two_streams(int stages, int chunks, int stage) {
    return (2 * (chunks - 1) + 2 * (stages - 1 - stage)) / chunks;
}

/* Forward may be one version old if no stage is ahead by more than one group. */
int rv_group_2bw(int stages, int chunks) {
    int least = ceil_div(chunks + stages - 2, chunks);
    return least > 1 ? least : 1;
}

/* ---- updates ---------------------------------------------------------------------------- */

rv_status rv_schedule_add_updates(rv_schedule *schedule, int group, bool norm) {
    rv_status status = RV_OK;
    rv_work *items = NULL;
    int *first = NULL, *left = NULL, n = 0;
    if (group < 1 || schedule->group > 0)
        FAIL(RV_CONFIG, "schedule: updates of %d micro-batches cannot be added", group);
    schedule->group = group < schedule->micros ? group : schedule->micros;
    schedule->norm = norm;
    size_t updates = (size_t)rv_schedule_updates(schedule), stages = (size_t)schedule->stages;
    size_t more = updates * stages * (norm ? 2 : 1);
    TRY(rv_alloc((size_t)rv_schedule_count(schedule) + more, sizeof *items,
                 "the items of a schedule", &items));
    TRY(rv_alloc((size_t)schedule->workers + 1, sizeof *first, "the lists of a schedule", &first));
    TRY(rv_alloc(updates * stages, sizeof *left, "the updates of a schedule", &left));
    for (size_t i = 0; i < updates * stages; i++) {
        int u = (int)(i % updates);
        left[i] = (rv_group_end(schedule, u) - u * schedule->group) * schedule->chunks;
    }
    /* Right after the last W of the group, not at its micro-batch: zb puts W off. */
    for (int k = 0; k < schedule->workers; k++) {
        first[k] = n;
        for (int p = schedule->first[k]; p < schedule->first[k + 1]; p++) {
            const rv_work *x = &schedule->items[p];
            items[n++] = *x;
            if (x->kind != rv_schedule_w(schedule)) continue;
            int u = x->micro / schedule->group;
            if (--left[(size_t)x->stage * updates + (size_t)u] != 0) continue;
            rv_work update = {
                .kind = RV_WORK_NORM, .stage = x->stage, .micro = u, .version = RV_NO_VERSION};
            if (norm) items[n++] = update;
            update.kind = RV_WORK_U;
            items[n++] = update;
        }
    }
    first[schedule->workers] = n;
    rv_free(schedule->items);
    rv_free(schedule->first);
    schedule->items = items, schedule->first = first;
    items = NULL, first = NULL;
out:
    rv_free(left);
    rv_free(first);
    rv_free(items);
    return status;
}

/* ---- order ------------------------------------------------------------------------------ */

/* Sums of gradients and messages follow the order of the lists. */
rv_status rv_schedule_check_canonical(const rv_schedule *schedule) {
    rv_status status = RV_OK;
    const int C = schedule->chunks;
    if (schedule->workers != schedule->stages || schedule->kept > 0 ||
        rv_schedule_updates(schedule) != 1)
        FAIL(RV_CONFIG,
             "schedule: a synchronous run takes one list per stage and one update (these are %d "
             "lists, %d stages, %d updates)",
             schedule->workers, schedule->stages, rv_schedule_updates(schedule));
    for (int k = 0; k < schedule->workers; k++) {
        int count, done[RV_WORK_KINDS] = {0};
        const rv_work *list = rv_schedule_list(schedule, k, &count);
        for (int i = 0; i < count; i++) {
            const rv_work *x = &list[i];
            char item[RV_WORK_TEXT];
            int n = done[x->kind]++, micro = x->kind < RV_WORK_U ? n / C : n;
            int chunk = x->kind >= RV_WORK_U ? 0 : x->kind == RV_WORK_F ? n % C : C - 1 - n % C;
            if (x->stage == k && x->micro == micro && x->chunk == chunk) continue;
            rv_work_print(x, k, item);
            FAIL(RV_CONFIG,
                 "schedule: worker %d, item %d: %s is out of order: on one stage F takes "
                 "micro-batches and chunks ascending, B and W chunks descending",
                 k, i + 1, item);
        }
    }
out:
    return status;
}

/* ---- versions --------------------------------------------------------------------------- */

rv_status rv_schedule_pin(rv_schedule *schedule, const int *delay, bool newest) {
    rv_status status = RV_OK;
    int *updates = NULL;
    if (schedule->group < 1) FAIL(RV_CONFIG, "schedule: versions need updates in the lists");
    TRY(rv_alloc((size_t)schedule->stages, sizeof *updates, "the versions of a schedule",
                 &updates));
    schedule->newest = newest;
    schedule->kept = 1;
    for (int p = 0; p < rv_schedule_count(schedule); p++) {
        rv_work *x = &schedule->items[p];
        int *done = &updates[x->stage];
        *done += x->kind == RV_WORK_U;
        if (x->kind >= RV_WORK_W && x->kind != RV_WORK_BW) continue;
        int u = x->micro / schedule->group, old = u - delay[x->stage];
        x->version = newest && x->kind != RV_WORK_F ? u : old > 0 ? old : 0;
        if (*done - x->version + 1 > schedule->kept) schedule->kept = *done - x->version + 1;
    }
out:
    rv_free(updates);
    return status;
}
