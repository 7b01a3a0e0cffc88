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

static double accuracy_of(const char *mode, const char *words, const char *set, const char *other) {
    delayed_result result;
    const char *sets[] = {set, other};
    int set_count = (set ? 1 : 0) + (other ? 1 : 0);
    unsigned flush = rv_flush_set();
    rv_status status = delayed_run(recipe, sets, set_count, mode, words, &result);
    rv_flush_restore(flush);
    if (status) fail_msg("%s %s: %s", mode, words, rv_error_get()->message);
    print_message("%s %s%s%s: %.1f %%, %.1f s\n", mode, words, set ? ", " : "", set ? set : "",
                  100 * result.accuracy, result.seconds);
    return result.accuracy;
}

/* Kosson et al. 2021: a gradient eight updates late costs much at a usual batch; at single samples,
 * with rate and momentum scaled to them and both corrections, it costs nothing, and without the
 * scale nothing is learnt. */
static void delay_costs_accuracy_and_corrections_give_it_back(void **state) {
    (void)state;
    if (stride() == 100) skip();
    double sync = accuracy_of("sync", "", NULL, NULL), late = accuracy_of("pb", "", NULL, NULL);
    double corrected = accuracy_of("pb", "gc lwp_v scale:batch=20", "train.batch=1", NULL);
    double plain = accuracy_of("pb", "", "train.batch=1", NULL);
    assert_true(sync > 0.9);
    assert_true(late < sync - 0.08);
    assert_true(corrected > sync - 0.015);
    assert_true(plain < sync - 0.015);
}

/* What gc and lwp_v do themselves, where a delay costs something: at a usual batch one update does;
 * at single samples eight do at five times the rate only. */
static void gc_and_lwp_v_each_give_back(void **state) {
    static const char whole[] = "train.micro_batches=4", hot[] = "train.optimizer.lr=0.05";
    (void)state;
    if (stride() == 100) skip();
    double late = accuracy_of("2bw", "", whole, NULL);
    assert_true(accuracy_of("2bw", "gc", whole, NULL) > late + 0.03);
    assert_true(accuracy_of("2bw", "lwp_v", whole, NULL) > late + 0.03);
    late = accuracy_of("pb", "scale:batch=20", "train.batch=1", hot);
    assert_true(accuracy_of("pb", "gc lwp_v scale:batch=20", "train.batch=1", hot) > late + 0.08);
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
        cmocka_unit_test(gc_and_lwp_v_each_give_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
