/*
 * The ring of versions. An update writes the new weights beside the old ones, into the slot of the
 * version that no pass can ask for any more; so a stash costs no copy. Only where forward sees
 * other weights than those of its version are the weights themselves kept apart.
 */
#include <string.h>

#include "pipeline/weights.h"

static int kept_of(const rv_delay_rule *rule) {
    return rule->delay + 1;
}

int rv_weights_copies(const rv_delay_rule *rule) {
    return kept_of(rule) - 1 + rule->looks_forward + rule->looks_backward + rule->trend;
}

double rv_weights_bytes(const rv_delay_rule *rule, const rv_range *range) {
    double blocks = rv_weights_copies(rule) - rule->trend;
    return sizeof(float) * (blocks * (double)range->n_all + rule->trend * (double)range->n_trained);
}

/* Backward reads weights of its own, or the newest where forward does not see them. */
static bool is_apart(const rv_delay_rule *rule) {
    return !rule->stash && (rule->looks_forward || rule->looks_backward);
}

int rv_weights_packed(const rv_delay_rule *rule) {
    return (is_apart(rule) ? 0 : kept_of(rule)) + rule->looks_forward + rule->looks_backward;
}

rv_status rv_weights_init(rv_weights *w, const rv_range *range, const rv_device *device,
                          const rv_train_desc *train, int64_t total_steps,
                          const rv_delay_rule *rule, int rows) {
    rv_status status = RV_OK;
    *w = (rv_weights){.range = *range, .device = device, .rule = *rule, .rows = rows};
    const unsigned both = RV_READS_FORWARD | RV_READS_BACKWARD;
    w->kept = kept_of(rule);
    TRY(rv_optimizer_create_range(range, device, train, total_steps, &w->optimizer));
    TRY(rv_alloc((size_t)w->kept, sizeof *w->shown, "weight versions", &w->shown));
    TRY(rv_alloc((size_t)w->kept, sizeof *w->number, "weight versions", &w->number));
    for (int k = 0; k < w->kept; k++) {
        TRY(rv_version_create_range(range, device, &w->shown[k]));
        rv_version_reads(w->shown[k], is_apart(rule) ? RV_READS_FORWARD : both);
    }
    if (rule->looks_forward) TRY(rv_version_create_range(range, device, &w->own));
    if (rule->looks_backward) {
        TRY(rv_version_create_range(range, device, &w->backward));
        rv_version_reads(w->backward, RV_READS_BACKWARD);
    }
    if (rule->trend)
        TRY(device->ops->alloc(device->ctx, sizeof(float) * range->n_trained, "moving mean",
                               (void **)&w->trend));
out:
    return status;
}

void rv_weights_finish(rv_weights *w) {
    if (!w->device) return;
    w->device->ops->free(w->device->ctx, w->trend);
    rv_version_destroy(w->backward);
    rv_version_destroy(w->own);
    for (int k = 0; w->shown && k < w->kept; k++)
        rv_version_destroy(w->shown[k]);
    rv_free(w->number);
    rv_free(w->shown);
    rv_optimizer_destroy(w->optimizer);
    *w = (rv_weights){0};
}

static rv_version *shown_at(const rv_weights *w, int64_t version) {
    return w->shown[version % w->kept];
}

rv_version *rv_weights_newest(const rv_weights *w) {
    return w->own ? w->own : shown_at(w, w->made);
}

/* What passes of training read of the newest weights. */
static rv_status newest_derive(rv_weights *w) {
    rv_status status = RV_OK;
    w->unready = w->own != NULL;
    if (w->backward) TRY(rv_version_derive(w->backward, w->rows));
    if (!w->own || w->backward || w->rule.stash) goto out;
    rv_version_reads(w->own, RV_READS_BACKWARD);
    TRY(rv_version_derive(w->own, w->rows));
out:
    return status;
}

rv_status rv_weights_ready(rv_weights *w) {
    if (!w->unready) return RV_OK;
    w->unready = false;
    rv_version_reads(w->own, RV_READS_FORWARD);
    return rv_version_derive(w->own, w->rows);
}

static void block_copy(const rv_weights *w, rv_version *from, rv_version *to) {
    if (to && to != from)
        memcpy(rv_version_block(to), rv_version_block(from), sizeof(float) * w->range.n_all);
}

/* Nothing has been learned of the direction yet, so every view shows the weights as they are. */
rv_status rv_weights_start(rv_weights *w, int64_t made) {
    rv_status status = RV_OK;
    rv_version *newest = rv_weights_newest(w);
    for (int k = 0; k < w->kept; k++)
        block_copy(w, newest, w->shown[k]);
    block_copy(w, newest, w->backward);
    if (w->trend) memset(w->trend, 0, sizeof *w->trend * w->range.n_trained);
    w->made = made;
    for (int k = 0; k < w->kept; k++)
        w->number[k] = -1;
    for (int64_t j = made; j >= 0 && j > made - w->kept; j--)
        w->number[j % w->kept] = j;
    TRY(rv_version_derive(shown_at(w, made), w->rows));
    TRY(newest_derive(w));
out:
    return status;
}

/* ---- checkpoints ------------------------------------------------------------------------ */

/* Block k of what is kept, NULL: no more. */
static float *part_of(const rv_weights *w, int k, size_t *floats) {
    rv_version *const more[] = {w->own, w->backward};
    *floats = w->range.n_all;
    if (k < w->kept) return rv_version_block(w->shown[k]);
    int at = w->kept;
    for (int i = 0; i < 2; i++)
        if (more[i] && k == at++) return rv_version_block(more[i]);
    *floats = w->range.n_trained;
    return w->trend && k == at ? w->trend : NULL;
}

size_t rv_weights_floats(const rv_weights *w) {
    size_t sum = 0, floats;
    for (int k = 0; part_of(w, k, &floats); k++)
        sum += floats;
    return sum;
}

void rv_weights_give(const rv_weights *w, float *to) {
    size_t floats;
    const float *part;
    for (int k = 0; (part = part_of(w, k, &floats)); k++, to += floats)
        memcpy(to, part, sizeof *to * floats);
}

rv_status rv_weights_take(rv_weights *w, const float *from) {
    rv_status status = RV_OK;
    size_t floats;
    float *part;
    for (int k = 0; (part = part_of(w, k, &floats)); k++, from += floats)
        memcpy(part, from, sizeof *from * floats);
    for (int k = 0; k < w->kept; k++)
        if (w->number[k] >= 0) TRY(rv_version_derive(w->shown[k], w->rows));
    TRY(newest_derive(w));
out:
    return status;
}

/* ---- what passes read ------------------------------------------------------------------- */

bool rv_weights_has(const rv_weights *w, int64_t u) {
    return rv_delay_forward(&w->rule, u) <= w->made;
}

rv_status rv_weights_forward(const rv_weights *w, int64_t u, const rv_version **out) {
    int64_t j = rv_delay_forward(&w->rule, u);
    if (j > w->made || j < 0 || j <= w->made - w->kept)
        return rv_fail(RV_INTERNAL,
                       "update %lld reads version %lld of weights, kept are %d up to %lld",
                       (long long)u, (long long)j, w->kept, (long long)w->made);
    *out = shown_at(w, j);
    return RV_OK;
}

rv_status rv_weights_backward(const rv_weights *w, int64_t u, const rv_version **out) {
    if (w->rule.stash) return rv_weights_forward(w, u, out);
    if (u != w->made)
        return rv_fail(RV_INTERNAL, "backward of update %lld, but %lld were made", (long long)u,
                       (long long)w->made);
    *out = w->backward ? w->backward : rv_weights_newest(w);
    return RV_OK;
}

/* ---- account ---------------------------------------------------------------------------- */

int64_t rv_weights_number(const rv_weights *w, const rv_version *version) {
    for (int k = 0; k < w->kept; k++)
        if (w->shown[k] == version) return w->number[k];
    return w->made;
}

int rv_weights_live(const rv_weights *w) {
    int live = 0;
    for (int k = 0; k < w->kept; k++)
        live += w->number[k] >= 0 && w->number[k] > w->made - w->kept;
    return live;
}

/* Where forward sees the weights themselves, the newest is one of those it is shown. */
double rv_weights_stash(const rv_weights *w) {
    int blocks = w->kept - 1 + (w->own != NULL) + (w->backward != NULL);
    return sizeof(float) *
           (blocks * (double)w->range.n_all + (w->trend != NULL) * (double)w->range.n_trained);
}

/* ---- updates ---------------------------------------------------------------------------- */

/* All but what is trained, which the pass itself writes. */
static void rest_copy(const rv_weights *w, rv_version *from, rv_version *to) {
    size_t trained = w->range.n_trained;
    if (to && to != from)
        memcpy(rv_version_block(to) + trained, rv_version_block(from) + trained,
               sizeof(float) * (w->range.n_all - trained));
}

/* Where passes of version made + 1 will look for it. The backward view of the newest alone is kept:
 * no backward of an older one can be left. */
rv_status rv_weights_update(rv_weights *w, const float *gradient, double scale,
                            void (*statistics)(void *self, rv_version *version), void *self) {
    rv_status status = RV_OK;
    rv_version *old = rv_weights_newest(w), *next = old, *shown = shown_at(w, w->made + 1);
    rv_late late;
    rv_delay_late(&w->rule, w->made, &late);
    if (w->own)
        late.forward.to = rv_version_block(shown);
    else
        next = shown;
    if (next != old) late.from = rv_version_block(old);
    if (w->backward) late.backward.to = rv_version_block(w->backward);
    late.trend = w->trend;
    TRY(rv_optimizer_update_late(w->optimizer, w->device, NULL, &late, rv_version_block(next),
                                 gradient, scale));
    TRY(w->device->ops->queue_sync(w->device->ctx, NULL));
    rest_copy(w, old, next);
    if (statistics) statistics(self, next);
    rest_copy(w, next, shown);
    rest_copy(w, next, w->backward);
    w->made++;
    w->number[w->made % w->kept] = w->made;
    TRY(rv_version_derive(shown, w->rows));
    TRY(newest_derive(w));
out:
    return status;
}
