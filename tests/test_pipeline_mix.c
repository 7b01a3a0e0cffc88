/*
 * Which stages keep, recompute or spill: the choice is the best of all that fit, found without
 * looking at all of them, and the same for the same costs.
 */
#include "pipeline/mix.h"
#include "tests/small.h"

enum { STAGES_MOST = 7 };

/* Stages of random sizes and costs on a machine of random memory. A step takes what its slowest
 * stage takes and a share of the others; the bound leaves the share out. */
typedef struct world {
    int stages, looked;
    double bytes[STAGES_MOST][3], seconds[STAGES_MOST][3], memory;
} world;

static void world_draw(world *w, uint64_t seed, int stages) {
    uint64_t at = 0;
    double all = 0;
    *w = (world){.stages = stages};
    for (int s = 0; s < stages; s++) {
        double kept = 1 + (int)(8 * small_random(seed, at++)); /* whole numbers: equals occur */
        double time = 1 + (int)(4 * small_random(seed, at++));
        const double bytes[3] = {kept, 1, 0.5}, extra[3] = {0, (int)(3 * small_random(seed, at++)),
                                                            (int)(3 * small_random(seed, at++))};
        for (int k = 0; k < 3; k++)
            w->bytes[s][k] = bytes[k], w->seconds[s][k] = time + extra[k];
        all += kept;
    }
    w->memory = all * small_random(seed, at++);
}

static bool fits(const world *w, const uint8_t *policy) {
    double sum = 0;
    for (int s = 0; s < w->stages; s++)
        sum += w->bytes[s][policy[s]];
    return sum <= w->memory;
}

static double slowest(const world *w, const uint8_t *policy) {
    double most = 0;
    for (int s = 0; s < w->stages; s++)
        most = fmax(most, w->seconds[s][policy[s]]);
    return most;
}

static double total(const world *w, const uint8_t *policy) {
    double sum = 0;
    for (int s = 0; s < w->stages; s++)
        sum += w->seconds[s][policy[s]];
    return slowest(w, policy) + 0.25 * sum;
}

/* The bound knows only half of what does not fit. */
static rv_status bound(void *context, const uint8_t *policy, double *seconds) {
    const world *w = context;
    double sum = 0;
    for (int s = 0; s < w->stages; s++)
        sum += w->bytes[s][policy[s]];
    *seconds = sum > 2 * w->memory ? INFINITY : slowest(w, policy);
    return RV_OK;
}

/* And the guess knows less than that. */
static rv_status guess(void *context, const uint8_t *policy, double *seconds) {
    const world *w = context;
    *seconds = fmax(1, w->seconds[w->stages - 1][policy[w->stages - 1]]);
    return RV_OK;
}

static rv_status seconds(void *context, const uint8_t *policy, double limit, double *out) {
    world *w = context;
    w->looked++;
    *out = fits(w, policy) && total(w, policy) <= limit ? total(w, policy) : INFINITY;
    return RV_OK;
}

/* More than RV_MIX_ALL stages: at most one change of policy. */
static bool allowed(const world *w, const uint8_t *policy) {
    int changes = 0;
    for (int s = 1; s < w->stages; s++)
        changes += policy[s] != policy[s - 1];
    return w->stages <= RV_MIX_ALL || changes <= 1;
}

/* Every policy in the order of numbers; the first of the best. false: none fits. */
static bool brute(const world *w, int policies, uint8_t *best, double *least, int *count) {
    int all = 1;
    uint8_t policy[STAGES_MOST];
    *least = INFINITY, *count = 0;
    for (int s = 0; s < w->stages; s++)
        all *= policies;
    for (int i = 0; i < all; i++) {
        for (int s = w->stages - 1, rest = i; s >= 0; s--, rest /= policies)
            policy[s] = (uint8_t)(rest % policies);
        if (!allowed(w, policy)) continue;
        ++*count;
        if (!fits(w, policy) || total(w, policy) >= *least) continue;
        *least = total(w, policy);
        memcpy(best, policy, sizeof policy);
    }
    return !isinf(*least);
}

static void choices_are_those_of_trying_all(void **state) {
    (void)state;
    int none = 0, mixed = 0, spared = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        world w;
        uint8_t want[STAGES_MOST], got[STAGES_MOST];
        double least, found;
        int stages = 1 + (int)(seed % STAGES_MOST), policies = seed % 5 ? 3 : 2, count;
        world_draw(&w, seed, stages);
        const rv_mix mix = {stages, policies, guess, bound, seconds, &w};
        bool any = brute(&w, policies, want, &least, &count);
        OK(rv_mix_choose(&mix, got, &found));
        assert_true(isinf(found) == !any);
        assert_true(w.looked <= count);
        spared += w.looked < count / 2;
        none += !any;
        if (!any) continue;
        assert_true(found == least);
        if (stages <= RV_MIX_ALL) assert_memory_equal(got, want, (size_t)stages);
        assert_true(fits(&w, got) && total(&w, got) == least && allowed(&w, got));
        for (int s = 1; s < stages; s++)
            if (got[s] != got[0]) {
                mixed++;
                break;
            }
    }
    assert_true(none > 30 && mixed > 500 && spared > 500);
}

/* Room for all: kept, and nothing else is looked at. */
static void tapes_are_kept_where_there_is_room(void **state) {
    (void)state;
    world w;
    uint8_t got[STAGES_MOST];
    double found;
    world_draw(&w, 5, 3);
    w.memory = 1e9;
    for (int s = 0; s < 3; s++)
        w.seconds[s][1]++, w.seconds[s][2]++;
    const rv_mix mix = {3, 3, guess, bound, seconds, &w};
    OK(rv_mix_choose(&mix, got, &found));
    for (int s = 0; s < 3; s++)
        assert_int_equal(got[s], RV_TAPE_KEEP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_those_of_trying_all),
        cmocka_unit_test(tapes_are_kept_where_there_is_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
