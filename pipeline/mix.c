/* Best first: by lower bounds, until none of those left can be better. */
#include "pipeline/mix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    double bound;
    int number;
} candidate;

static const double close = 1e-9; /* costs are measured: differences below are none */

static int count_of(const rv_mix *mix) {
    int count = 1, others = mix->policies * (mix->policies - 1);
    if (mix->stages > RV_MIX_ALL) return mix->policies + others * (mix->stages - 1);
    for (int s = 0; s < mix->stages; s++)
        count *= mix->policies;
    return count;
}

/* Few stages: the digits of the number. Many: alike, or one of two policies up to a stage. */
static void policy_of(const rv_mix *mix, int number, uint8_t *policy) {
    const int P = mix->policies, S = mix->stages;
    if (S <= RV_MIX_ALL) {
        for (int s = S - 1; s >= 0; s--, number /= P)
            policy[s] = (uint8_t)(number % P);
        return;
    }
    int first = number, rest = number, cut = S;
    if (number >= P) {
        number -= P;
        cut = 1 + number % (S - 1);
        number /= S - 1;
        first = number / (P - 1);
        rest = number % (P - 1);
        rest += rest >= first;
    }
    for (int s = 0; s < S; s++)
        policy[s] = (uint8_t)(s < cut ? first : rest);
}

static int compare(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    if (a->bound != b->bound) return a->bound < b->bound ? -1 : 1;
    return a->number - b->number;
}

rv_status rv_mix_choose(const rv_mix *mix, uint8_t *policy, double *seconds) {
    rv_status status = RV_OK;
    candidate *all = NULL;
    int count = count_of(mix), best = -1;
    *seconds = INFINITY;
    TRY(rv_alloc((size_t)count, sizeof *all, "policies of tapes", &all));
    for (int i = 0; i < count; i++) {
        all[i].number = i;
        policy_of(mix, i, policy);
        TRY(mix->bound(mix->context, policy, &all[i].bound));
    }
    qsort(all, (size_t)count, sizeof *all, compare);
    for (int i = 0; i < count && all[i].bound <= *seconds * (1 + close); i++) {
        double total;
        if (isinf(all[i].bound)) break;
        policy_of(mix, all[i].number, policy);
        TRY(mix->seconds(mix->context, policy, &total));
        if (isinf(total) || total > *seconds * (1 + close)) continue;
        if (total >= *seconds * (1 - close) && best >= 0 && all[i].number > best) continue;
        *seconds = total < *seconds ? total : *seconds;
        best = all[i].number;
    }
    policy_of(mix, best < 0 ? 0 : best, policy);
out:
    rv_free(all);
    return status;
}
