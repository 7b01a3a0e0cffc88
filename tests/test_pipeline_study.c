/* What delay does to a deep network, and what takes it away: trainings of
 * scripts/recipes/delay_study.yaml under the oracle. `make test-long`; all rules:
 * scripts/delay_study. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/delayed.h"
#include "tests/scale.h"

static const char recipe[] = "scripts/recipes/delay_study.yaml";

/* Mean over the seeds: a single one moves by three points. */
static double accuracy_of(const char *mode, const char *words, const char *set) {
    enum { SEEDS = 3 };
    double sum = 0, seconds = 0;
    for (int seed = 1; seed <= SEEDS; seed++) {
        delayed_result result;
        char text[16];
        const char *sets[] = {text, set};
        snprintf(text, sizeof text, "seed=%d", seed);
        if (delayed_run(recipe, sets, set ? 2 : 1, mode, words, &result) != RV_OK)
            fail_msg("%s %s: %s", mode, words, rv_error_get()->message);
        sum += result.accuracy, seconds += result.seconds;
    }
    print_message("%s %s: %.1f %%, %.1f s\n", mode, words, 100 * sum / SEEDS, seconds);
    return sum / SEEDS;
}

/* Kosson et al. 2021: a gradient eight updates late costs much at a usual batch; at single samples,
 * with rate and momentum scaled to them and both corrections, it costs nothing. At a usual batch a
 * correction gives back some of what a delay of one update takes. */
static void delay_costs_accuracy_and_corrections_give_it_back(void **state) {
    (void)state;
    if (stride() == 100) skip();
    unsigned flush = rv_flush_set();
    double sync = accuracy_of("sync", "", NULL), late = accuracy_of("pb", "", NULL);
    double corrected = accuracy_of("pb", "gc lwp_v scale:batch=20", "train.batch=1");
    double one = accuracy_of("2bw", "", NULL), one_corrected = accuracy_of("2bw", "gc", NULL);
    rv_flush_restore(flush);
    assert_true(sync > 0.9);
    assert_true(late < sync - 0.08);
    assert_true(corrected > sync - 0.015);
    assert_true(one_corrected > one + 0.03);
}

/* A short one of them, so that they are never only there in name. */
static void oracle_trains_a_recipe_with_all_its_data(void **state) {
    (void)state;
    delayed_result result;
    const char *sets[] = {"train.epochs=1", "data.samples=90", "train.batch=20"};
    unsigned flush = rv_flush_set();
    rv_status status = delayed_run(recipe, sets, 3, "pb", "gc lwp_v:cap=3", &result);
    rv_flush_restore(flush);
    assert_int_equal(status, RV_OK);
    assert_int_equal(result.updates, 5); /* the ragged one too */
    assert_true(result.train_loss > 0 && result.accuracy > 0);
    assert_int_equal(delayed_run(recipe, sets, 3, "pb", "gc lwp_v:steps=3", &result), RV_CONFIG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_trains_a_recipe_with_all_its_data),
        cmocka_unit_test(delay_costs_accuracy_and_corrections_give_it_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
