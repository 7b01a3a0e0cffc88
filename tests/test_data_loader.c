/* Batches: order, resuming, ragged ends, errors of the thread; shares of a source; bernoulli and
 * manifold. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/data_files.h"

/* ---- a source that says which sample it gives --------------------------------------------- */
typedef struct counting {
    int64_t fail_at; /* sample whose reading fails; -1: none */
} counting;

static rv_status counting_read(void *self, const uint64_t *index, int count, uint32_t epoch,
                               rv_batch *batch) {
    const counting *source = self;
    for (int b = 0; b < count; b++) {
        float *row = batch->input.values.data + (size_t)b * (size_t)batch->input.values.ld;
        if ((int64_t)index[b] == source->fail_at)
            return rv_fail(RV_DATA, "sample %lld is bad", (long long)index[b]);
        row[0] = (float)index[b];
        row[1] = (float)epoch;
        ((int32_t *)batch->label)[b] = (int32_t)(index[b] % 10);
        ((uint64_t *)batch->sample)[b] = index[b];
    }
    return RV_OK;
}

static rv_source source_of(counting *self, int64_t count) {
    return (rv_source){
        .self = self, .count = count, .shape = {1, {2}}, .classes = 10, .read = counting_read};
}

static rv_loader *loader_of(const rv_source *source, int batch, uint64_t seed, bool shuffle) {
    rv_loader *loader = NULL;
    assert_int_equal(rv_loader_create(source, batch, seed, shuffle, &loader), RV_OK);
    return loader;
}

/* Samples of an epoch from a batch on, in order; how many. */
static int walk(rv_loader *loader, uint32_t epoch, int64_t first, uint64_t *sample) {
    const rv_batch *batch;
    int count = 0;
    assert_int_equal(rv_loader_start(loader, epoch, first), RV_OK);
    for (;;) {
        assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
        if (!batch) return count;
        assert_int_equal(batch->epoch, epoch);
        assert_int_equal(batch->input.values.stride_t, 0);
        for (int b = 0; b < batch->B; b++) {
            const float *row = batch->input.values.data + b * batch->input.values.ld;
            assert_true(row[0] == (float)batch->sample[b] && row[1] == (float)epoch);
            for (int u = 2; u < batch->input.values.ld; u++)
                assert_true(row[u] == 0);
            assert_int_equal(batch->label[b], batch->sample[b] % 10);
            sample[count++] = batch->sample[b];
        }
    }
}

static void order_of_file_ends_with_ragged_batch(void **state) {
    (void)state;
    counting self = {-1};
    rv_source source = source_of(&self, 23);
    rv_loader *loader = loader_of(&source, 5, 1, false);
    uint64_t sample[23];
    const rv_batch *batch;
    assert_int_equal(walk(loader, 0, 0, sample), 23);
    for (uint64_t i = 0; i < 23; i++)
        assert_int_equal(sample[i], i);
    assert_int_equal(rv_loader_start(loader, 0, 4), RV_OK);
    assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
    assert_int_equal(batch->B, 3);
    assert_int_equal(batch->input.values.B, 3);
    for (int i = 0; i < 2; i++) { /* the end stays the end */
        assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
        assert_null(batch);
    }
    rv_loader_destroy(loader);
}

static void order_shuffled_is_a_permutation_by_seed_and_epoch(void **state) {
    (void)state;
    enum { N = 500 };
    counting self = {-1};
    rv_source source = source_of(&self, N);
    uint64_t a[N], b[N], seen[N] = {0};
    rv_loader *one = loader_of(&source, 7, 11, true), *two = loader_of(&source, 13, 11, true),
              *other = loader_of(&source, 7, 12, true);
    walk(one, 3, 0, a);
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[a[i]]++, 0);
    walk(two, 3, 0, b); /* another batch size: the same order */
    assert_memory_equal(a, b, sizeof a);
    walk(two, 4, 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    walk(other, 3, 0, b);
    assert_memory_not_equal(a, b, sizeof a);
    int fixed = 0, near = 0;
    for (int i = 0; i < N; i++) {
        fixed += a[i] == (uint64_t)i;
        near += i && a[i] == a[i - 1] + 1;
    }
    assert_true(fixed < 8 && near < 8); /* both expect 1 */
    for (uint32_t epoch = 100; epoch < 150; epoch++) {
        walk(one, epoch, 0, a);
        for (int i = 0; i < N; i++)
            fixed += a[i] == (uint64_t)i;
    }
    assert_true(fixed > 20 && fixed < 100); /* expect 51, deviation 7 */
    rv_loader_destroy(one), rv_loader_destroy(two), rv_loader_destroy(other);
}

static void order_resumed_at_any_batch_continues(void **state) {
    (void)state;
    enum { N = 40, B = 6, BATCHES = 7 };
    counting self = {-1};
    rv_source source = source_of(&self, N);
    rv_loader *loader = loader_of(&source, B, 5, true);
    uint64_t whole[N], rest[N];
    walk(loader, 2, 0, whole);
    for (int first = 0; first <= BATCHES; first++) {
        int left = first * B < N ? N - first * B : 0;
        assert_int_equal(walk(loader, 2, first, rest), left);
        assert_memory_equal(rest, whole + first * B, (size_t)left * sizeof *rest);
    }
    assert_int_equal(rv_loader_start(loader, 2, BATCHES + 1), RV_CONFIG);
    rv_loader_destroy(loader);
}

static void order_restarted_in_the_middle_is_whole(void **state) {
    (void)state;
    counting self = {-1};
    rv_source source = source_of(&self, 64);
    rv_loader *loader = loader_of(&source, 4, 5, true);
    uint64_t whole[64], again[64];
    const rv_batch *batch;
    walk(loader, 9, 0, whole);
    for (int taken = 0; taken < 8; taken++) {
        assert_int_equal(rv_loader_start(loader, 1, 0), RV_OK);
        for (int i = 0; i < taken; i++)
            assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
        walk(loader, 9, 0, again);
        assert_memory_equal(whole, again, sizeof whole);
    }
    rv_loader_destroy(loader);
}

static void batch_before_stays_while_the_next_is_used(void **state) {
    (void)state;
    counting self = {-1};
    rv_source source = source_of(&self, 400);
    rv_loader *loader = loader_of(&source, 2, 1, false);
    const rv_batch *before = NULL, *now;
    assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
    for (int k = 0; k < 200; k++) {
        assert_int_equal(rv_loader_next(loader, &now), RV_OK);
        if (k % 16 == 0) usleep(200); /* let the thread run as far ahead as it may */
        if (before) assert_int_equal(before->sample[0], 2 * (k - 1));
        assert_int_equal(now->sample[0], 2 * k);
        before = now;
    }
    rv_loader_destroy(loader);
}

static void batch_larger_than_data_is_refused_or_clamped(void **state) {
    (void)state;
    counting self = {-1};
    rv_source source = source_of(&self, 3), none = source_of(&self, 0);
    rv_loader *loader = NULL;
    uint64_t sample[3];
    assert_int_equal(rv_loader_create(&source, 4, 1, true, &loader), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "a batch of 4 is more than the 3 samples"));
    assert_int_equal(rv_loader_create(&none, 4, 1, false, &loader), RV_CONFIG);
    assert_null(loader);
    loader = loader_of(&source, 4, 1, false);
    assert_int_equal(walk(loader, 0, 0, sample), 3);
    rv_loader_destroy(loader);
}

static void error_of_the_thread_reaches_the_caller(void **state) {
    (void)state;
    counting self = {9};
    rv_source source = source_of(&self, 20);
    rv_loader *loader = loader_of(&source, 2, 1, false);
    const rv_batch *batch;
    assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
    for (int k = 0; k < 4; k++) { /* batches before the bad sample */
        assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
        assert_int_equal(batch->sample[0], 2 * k);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rv_loader_next(loader, &batch), RV_DATA);
        assert_null(batch);
        assert_string_equal(rv_error_get()->message, "sample 9 is bad");
    }
    self.fail_at = -1;
    assert_int_equal(rv_loader_start(loader, 0, 4), RV_OK); /* started anew, all is well */
    assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
    assert_int_equal(batch->sample[1], 9);
    rv_loader_destroy(loader);
}

static void loader_destroyed_at_any_time_joins(void **state) {
    (void)state;
    counting self = {-1};
    rv_source source = source_of(&self, 100);
    const rv_batch *batch;
    for (int k = 0; k < 40; k++) {
        rv_loader *loader = loader_of(&source, 3, 1, true);
        if (k % 4) assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
        for (int i = 0; i < k % 4 - 1; i++)
            assert_int_equal(rv_loader_next(loader, &batch), RV_OK);
        rv_loader_destroy(loader);
    }
    rv_loader_destroy(NULL);
}

static void first_samples_come_in_file_order(void **state) {
    (void)state;
    counting self = {-1};
    rv_source source = source_of(&self, 50);
    rv_loader *loader = loader_of(&source, 4, 1, true);
    const rv_batch *batch, *running;
    assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
    assert_int_equal(rv_loader_next(loader, &running), RV_OK);
    uint64_t kept = running->sample[0];
    for (int count = 1; count <= 50; count += 7) {
        assert_int_equal(rv_loader_first(loader, count, &batch), RV_OK);
        assert_int_equal(batch->B, count);
        for (int b = 0; b < count; b++)
            assert_int_equal(batch->sample[b], b);
    }
    assert_int_equal(running->sample[0], kept);
    assert_int_equal(rv_loader_first(loader, 51, &batch), RV_CONFIG);
    rv_loader_destroy(loader);
}

/* ---- shares ------------------------------------------------------------------------------- */
static void shares_are_disjoint_complete_and_by_seed(void **state) {
    (void)state;
    enum { N = 100 };
    rv_config *config = config_of("{reader: bernoulli, units: 4, samples: 100, validation: 0.25}");
    rv_source train, held;
    int seen[N] = {0};
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &train), RV_OK);
    assert_int_equal(rv_data_open(config, RV_SPLIT_VALIDATION, &held), RV_OK);
    assert_int_equal(train.count, 75);
    assert_int_equal(held.count, 25);
    const rv_source *shares[] = {&train, &held};
    uint64_t first_held = 0;
    for (int s = 0; s < 2; s++) {
        rv_loader *loader = loader_of(shares[s], 10, 1, false);
        const rv_batch *batch;
        uint64_t last = 0;
        int count = 0;
        assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
        while (rv_loader_next(loader, &batch) == RV_OK && batch)
            for (int b = 0; b < batch->B; b++, count++) {
                if (s == 1 && count == 0) first_held = batch->sample[b];
                assert_true(count == 0 || batch->sample[b] > last); /* file order */
                last = batch->sample[b];
                assert_int_equal(seen[last]++, 0);
                assert_int_equal(batch->label[b], last % 2);
            }
        rv_loader_destroy(loader);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    train.close(train.self);
    assert_int_equal(held.count, 25);
    held.close(held.self);
    /* Both closed: it opens again, the same. */
    assert_int_equal(rv_data_open(config, RV_SPLIT_VALIDATION, &held), RV_OK);
    rv_loader *loader = loader_of(&held, 1, 1, false);
    const rv_batch *batch;
    assert_int_equal(rv_loader_first(loader, 1, &batch), RV_OK);
    assert_int_equal(batch->sample[0], first_held);
    rv_loader_destroy(loader);
    held.close(held.self);
    rv_config_free(config);
}

static void shares_that_would_be_empty_are_refused(void **state) {
    (void)state;
    rv_config *config = config_of("{reader: bernoulli, samples: 4, validation: 0.1}");
    rv_source source;
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_CONFIG);
    assert_string_equal(rv_error_get()->key, "data.validation");
    assert_int_equal(rv_error_get()->line, 2);
    rv_config_free(config);
    config = config_of("{reader: bernoulli, samples: 4}");
    assert_int_equal(rv_data_open(config, RV_SPLIT_VALIDATION, &source), RV_OK);
    assert_int_equal(source.count, 0);
    rv_config_free(config);
}

/* ---- bernoulli ---------------------------------------------------------------------------- */
static void bernoulli_bits_have_the_asked_rates(void **state) {
    (void)state;
    enum { UNITS = 70, SAMPLES = 200, STEPS = 50, WORDS = 3 };
    rv_config *config = config_of("{reader: bernoulli, units: 70, classes: 2, samples: 200, "
                                  "test_samples: 6, steps: 50, rate: 0.2, signal: 0.5}");
    rv_source source, test;
    const rv_batch *batch;
    int count[2][UNITS] = {{0}};
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
    assert_int_equal(rv_data_open(config, RV_SPLIT_TEST, &test), RV_OK);
    assert_true(source.spikes);
    assert_int_equal(source.steps, STEPS);
    assert_int_equal(test.count, 6);
    rv_loader *loader = loader_of(&source, 10, 1, false), *other = loader_of(&test, 6, 1, false);
    assert_int_equal(rv_loader_first(loader, SAMPLES, &batch), RV_OK);
    const rv_spikes *spikes = &batch->input.spikes;
    assert_int_equal(spikes->stride_t, SAMPLES * WORDS);
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < SAMPLES; b++) {
            const uint32_t *row = spikes->bits + (size_t)t * spikes->stride_t + b * WORDS;
            assert_int_equal(row[2] >> (UNITS - 64), 0); /* nothing past the last unit */
            for (int u = 0; u < UNITS; u++)
                count[batch->label[b]][u] += row[u / 32] >> u % 32 & 1;
        }
    int high = 0, differ = 0;
    for (int u = 0; u < UNITS; u++)
        for (int c = 0; c < 2; c++) {
            double rate = count[c][u] / (STEPS * SAMPLES / 2.0);
            bool up = rate > 0.2;
            assert_true(fabs(rate - (up ? 0.3 : 0.1)) < 0.035); /* five deviations */
            high += up;
            differ += c && up != (count[0][u] / (STEPS * SAMPLES / 2.0) > 0.2);
        }
    assert_true(high > 40 && high < 100 && differ > 15 && differ < 55);
    const rv_batch *first;
    assert_int_equal(rv_loader_first(other, 6, &first), RV_OK);
    /* Test samples are other samples of the same classes. */
    assert_memory_not_equal(first->input.spikes.bits, spikes->bits, 6 * WORDS * 4);
    rv_loader_destroy(loader), rv_loader_destroy(other);
    source.close(source.self), test.close(test.self);
    rv_config_free(config);
}

static void bernoulli_bits_do_not_depend_on_batches(void **state) {
    (void)state;
    rv_config *config = config_of("{reader: bernoulli, units: 33, samples: 12, steps: 4}");
    rv_source source;
    const rv_batch *whole, *part;
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
    rv_loader *loader = loader_of(&source, 5, 1, false);
    assert_int_equal(rv_loader_first(loader, 12, &whole), RV_OK);
    assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(rv_loader_next(loader, &part), RV_OK);
        for (int t = 0; t < 4; t++)
            assert_memory_equal(part->input.spikes.bits + (size_t)t * part->input.spikes.stride_t,
                                whole->input.spikes.bits +
                                    (size_t)t * whole->input.spikes.stride_t + k * 5 * 2,
                                (size_t)part->B * 2 * sizeof(uint32_t));
    }
    rv_loader_destroy(loader);
    source.close(source.self);
    rv_config_free(config);
}

/* ---- manifold ----------------------------------------------------------------------------- */
/* Every sample lies on its class's surface: samples of a class differ, but hardly where the points
 * that made them are near each other; those of two classes differ whatever the points. */
static void manifold_samples_are_points_of_smooth_surfaces(void **state) {
    (void)state;
    enum { UNITS = 30, SAMPLES = 400, CLASSES = 2 };
    rv_config *config = config_of("{reader: manifold, units: 30, classes: 2, samples: 400, "
                                  "test_samples: 6, waves: 1}");
    rv_source source, test;
    const rv_batch *whole, *part;
    double least[CLASSES] = {INFINITY,
                             INFINITY}; /* from a sample to its nearest, mean over units */
    assert_int_equal(rv_data_open(config, RV_SPLIT_TRAIN, &source), RV_OK);
    assert_int_equal(rv_data_open(config, RV_SPLIT_TEST, &test), RV_OK);
    assert_true(!source.spikes && source.steps == 0 && test.count == 6);
    rv_loader *loader = loader_of(&source, 7, 1, false), *other = loader_of(&test, 6, 1, false);
    assert_int_equal(rv_loader_first(loader, SAMPLES, &whole), RV_OK);
    const rv_values *x = &whole->input.values;
    for (int b = 0; b < SAMPLES; b++) {
        const float *row = x->data + (size_t)b * (size_t)x->ld;
        assert_int_equal(whole->label[b], b % CLASSES);
        for (int u = 0; u < UNITS; u++)
            assert_true(row[u] >= 0 && row[u] <= 1);
        for (int a = 0; a < 2 && b > 1; a++) { /* sample 0 or 1 against all behind them */
            double sum = 0;
            for (int u = 0; u < UNITS; u++)
                sum += fabs((double)(row[u] - x->data[(size_t)a * (size_t)x->ld + (size_t)u]));
            bool same = a == b % CLASSES;
            if (!same) assert_true(sum / UNITS > 0.05);
            if (same && sum / UNITS < least[a]) least[a] = sum / UNITS;
        }
    }
    assert_true(least[0] > 0 && least[0] < 0.06 && least[1] > 0 && least[1] < 0.06);
    const rv_batch *first;
    assert_int_equal(rv_loader_first(other, 6, &first), RV_OK);
    assert_memory_not_equal(first->input.values.data, x->data, UNITS * sizeof(float));
    assert_int_equal(rv_loader_start(loader, 0, 0), RV_OK);
    for (int k = 0; k < SAMPLES / 7; k++) { /* batches give what the whole gives */
        assert_int_equal(rv_loader_next(loader, &part), RV_OK);
        assert_memory_equal(part->input.values.data, x->data + (size_t)(7 * k) * (size_t)x->ld,
                            7 * (size_t)x->ld * sizeof(float));
    }
    rv_loader_destroy(loader), rv_loader_destroy(other);
    source.close(source.self), test.close(test.self);
    rv_config_free(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_of_file_ends_with_ragged_batch),
        cmocka_unit_test(order_shuffled_is_a_permutation_by_seed_and_epoch),
        cmocka_unit_test(order_resumed_at_any_batch_continues),
        cmocka_unit_test(order_restarted_in_the_middle_is_whole),
        cmocka_unit_test(batch_before_stays_while_the_next_is_used),
        cmocka_unit_test(batch_larger_than_data_is_refused_or_clamped),
        cmocka_unit_test(error_of_the_thread_reaches_the_caller),
        cmocka_unit_test(loader_destroyed_at_any_time_joins),
        cmocka_unit_test(first_samples_come_in_file_order),
        cmocka_unit_test(shares_are_disjoint_complete_and_by_seed),
        cmocka_unit_test(shares_that_would_be_empty_are_refused),
        cmocka_unit_test(bernoulli_bits_have_the_asked_rates),
        cmocka_unit_test(bernoulli_bits_do_not_depend_on_batches),
        cmocka_unit_test(manifold_samples_are_points_of_smooth_surfaces),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
