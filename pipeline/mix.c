/* Best first: by lower bounds, made sharper when their turn comes, until none of those left can be
 * better. */
#include "pipeline/mix.h"

#include <math.h>

typedef enum known { GUESSED, BOUND, DONE } known;
typedef struct candidate {
    double bound;
    known known;
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

/* Of equals the first. -1: none that could run within `limit`. */
static int least_of(const candidate *all, int count, double limit) {
    int least = -1;
    for (int i = 0; i < count; i++)
        if (all[i].known != DONE && isfinite(all[i].bound) && all[i].bound <= limit &&
            (least < 0 || all[i].bound < all[least].bound))
            least = i;
    return least;
}

rv_status rv_mix_choose(const rv_mix *mix, uint8_t *policy, double *seconds) {
    rv_status status = RV_OK;
    candidate *all = NULL;
    int count = count_of(mix), best = -1, i;
    *seconds = INFINITY;
    TRY(rv_alloc((size_t)count, sizeof *all, "policies of tapes", &all));
    for (i = 0; i < count; i++) {
        policy_of(mix, i, policy);
        TRY(mix->guess(mix->context, policy, &all[i].bound));
    }
    while ((i = least_of(all, count, *seconds * (1 + close))) >= 0) {
        double total;
        policy_of(mix, i, policy);
        if (all[i].known++ == GUESSED) {
            TRY(mix->bound(mix->context, policy, &all[i].bound));
            continue;
        }
        TRY(mix->seconds(mix->context, policy, *seconds * (1 + close), &total));
        if (isinf(total) || total > *seconds * (1 + close)) continue;
        if (total >= *seconds * (1 - close) && best >= 0 && i > best) continue;
        *seconds = total < *seconds ? total : *seconds;
        best = i;
    }
    policy_of(mix, best < 0 ? 0 : best, policy);
out:
    rv_free(all);
    return status;
}
