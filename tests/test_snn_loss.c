/*
 * Losses and readouts on a layer that passes its input on (h = x, s = x >= 1/2): values against
 * closed forms, adjoints against differences of the value, and both for any number of chunks.
 */
#include "tests/small.h"

enum { STEPS = 7, BATCH = 4, CLASSES = 3, MOST = 6 };

typedef struct course {
    small s;
    int n, chunks;
    double loss;
    int64_t correct;
    int32_t prediction[BATCH];
    float logit[BATCH * CLASSES];
    double adjoint[STEPS][BATCH][MOST];
} course;

static float *cell(const course *c, int t, int b, int u) {
    rv_values x = c->s.batch.input.values;
    return x.data + (size_t)t * x.stride_t + (size_t)(b * x.ld + u);
}

/* n outputs of random values in [-1, 2), or of spikes. */
static void start(course *c, int n, bool spikes, const char *loss, rv_readout readout) {
    memset(c, 0, sizeof *c);
    c->n = n, c->chunks = 1;
    c->s.net_desc.input = (rv_shape){1, {n}};
    rv_neuron_options *options = small_neuron(&c->s, "out", spikes ? "lif" : "li", 0);
    if (spikes) small_real(&options->threshold, 0.5);
    small_batch(&c->s, BATCH, STEPS, CLASSES, 5);
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++)
            for (int u = 0; u < n; u++) {
                float x = *cell(c, t, b, u) * 3 - 1;
                *cell(c, t, b, u) = spikes ? x > 0.8f : x;
            }
    c->s.loss.loss = small_choice(&c->s, rv_loss_table(), loss);
    c->s.loss.readout = readout;
    c->s.loss.population = n / CLASSES;
    c->s.net_desc.steps = STEPS;
    OK(rv_device_open("cpu", RV_ISA_AUTO, 1, &c->s.device));
    OK(rv_net_create(&c->s.net_desc, &c->s.net));
}

static void finish(course *c) {
    small_finish(&c->s);
}

static void add_adjoint(course *c, rv_values g, int t0, int t1) {
    for (int t = t0; g.data && t < t1; t++)
        for (int b = 0; b < BATCH; b++)
            for (int u = 0; u < c->n; u++)
                c->adjoint[t][b][u] +=
                    (double)g.data[(size_t)(t - t0) * g.stride_t + (size_t)(b * g.ld + u)];
}

static rv_status judge(course *c, rv_loss *loss) {
    rv_status status = RV_OK;
    const rv_net *net = c->s.net;
    rv_state *state = NULL;
    rv_tape *tape[STEPS] = {NULL};
    rv_version *version = NULL;
    rv_arena arena = {0};
    rv_loss_result result;
    rv_pass pass[STEPS];
    TRY(rv_version_create(net, &c->s.device, &version));
    TRY(rv_version_derive(version, BATCH));
    TRY(rv_state_create(net, &c->s.device, BATCH, &state));
    for (int k = 0; k < c->chunks; k++) {
        int t0 = rv_cut(k, c->chunks, STEPS), t1 = rv_cut(k + 1, c->chunks, STEPS);
        rv_values x = c->s.batch.input.values;
        TRY(rv_tape_create(net, &c->s.device, t1 - t0, BATCH, &tape[k]));
        pass[k] = (rv_pass){.net = net,
                            .device = &c->s.device,
                            .arena = &arena,
                            .last = 1,
                            .version = version,
                            .state = state,
                            .tape = tape[k],
                            .B = BATCH,
                            .t0 = t0,
                            .t1 = t1,
                            .chunk = k,
                            .chunks = c->chunks,
                            .batch = &c->s.batch};
        x.data += (size_t)t0 * x.stride_t;
        x.T = t1 - t0;
        *rv_tape_signal(tape[k], -1) = (rv_signal){.values = x};
        TRY(rv_net_forward(&pass[k]));
        TRY(rv_loss_observe(loss, &pass[k]));
    }
    TRY(rv_loss_finish(loss, &pass[c->chunks - 1], BATCH, &result, c->prediction));
    c->loss = result.loss, c->correct = result.correct;
    memcpy(c->logit, rv_loss_logits(loss), sizeof c->logit);
    memset(c->adjoint, 0, sizeof c->adjoint);
    for (int k = c->chunks - 1; k >= 0; k--) {
        TRY(rv_loss_adjoint(loss, &pass[k]));
        add_adjoint(c, pass[k].gs, pass[k].t0, pass[k].t1);
        add_adjoint(c, pass[k].gh, pass[k].t0, pass[k].t1);
    }
out:
    rv_arena_finish(&arena);
    for (int k = 0; k < STEPS; k++)
        rv_tape_destroy(tape[k]);
    rv_state_destroy(state);
    rv_version_destroy(version);
    return status;
}

static void run(course *c) {
    rv_loss *loss = NULL;
    OK(rv_loss_create(&c->s.loss, c->s.net, &c->s.device, BATCH, &loss));
    OK(judge(c, loss));
    rv_loss_destroy(loss);
}

static void refused(course *c, rv_status wanted, const char *words) {
    rv_loss *loss = NULL;
    rv_status status = rv_loss_create(&c->s.loss, c->s.net, &c->s.device, BATCH, &loss);
    if (status == RV_OK) status = judge(c, loss);
    rv_loss_destroy(loss);
    assert_int_equal(status, wanted);
    if (!strstr(rv_error_get()->message, words))
        fail_msg("\"%s\" is not in \"%s\"", words, rv_error_get()->message);
    finish(c);
}

/* ---- closed forms ------------------------------------------------------------------------ */
static double cross_entropy(const double *logit, int label, double smoothing) {
    double sum = 0, loss = 0;
    for (int c = 0; c < CLASSES; c++)
        sum += exp(logit[c]);
    for (int c = 0; c < CLASSES; c++)
        loss -= (smoothing / CLASSES + (c == label) * (1 - smoothing)) * (logit[c] - log(sum));
    return loss;
}

static int argmax(const double *logit) {
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        if (logit[c] > logit[best]) best = c;
    return best;
}

/* What each readout says of sample b, class k, written down another way. */
static double read(const course *c, rv_readout readout, int b, int u, int length) {
    double sum = 0, most = -INFINITY;
    int first = length - 1;
    for (int t = length - 1; t >= 0; t--) {
        double x = (double)*cell(c, t, b, u);
        sum += x;
        most = fmax(most, x);
        if (x > 0.5) first = t;
    }
    const double by_readout[] = {
        [RV_READ_SPIKE_COUNT] = sum,
        [RV_READ_SPIKE_RATE] = sum / length,
        [RV_READ_FIRST_SPIKE] = -first,
        [RV_READ_MEMBRANE_MAX] = most,
        [RV_READ_MEMBRANE_MEAN] = sum / length,
        [RV_READ_MEMBRANE_LAST] = (double)*cell(c, length - 1, b, u),
        [RV_READ_EVERY_STEP] = sum / length,
    };
    return by_readout[readout];
}

static void check_value(course *c, rv_readout readout, double smoothing) {
    double want = 0, correct = 0;
    run(c);
    for (int b = 0; b < BATCH; b++) {
        double logit[CLASSES] = {0};
        int length = c->s.batch.length ? c->s.batch.length[b] : STEPS, label = c->s.batch.label[b];
        int population = c->n / CLASSES;
        double weight = 1.0 / BATCH;
        for (int u = 0; u < c->n; u++)
            logit[u / population] += read(c, readout, b, u, length);
        if (c->s.loss.class_weights.count) weight *= (double)c->s.loss.class_weights.data[label];
        if (readout != RV_READ_EVERY_STEP) want += weight * cross_entropy(logit, label, smoothing);
        for (int t = 0; t < length && readout == RV_READ_EVERY_STEP; t++) {
            double now[CLASSES] = {0};
            for (int u = 0; u < c->n; u++)
                now[u / population] += (double)*cell(c, t, b, u);
            want += weight * cross_entropy(now, label, smoothing) / length;
        }
        assert_int_equal(c->prediction[b], argmax(logit));
        correct += argmax(logit) == label;
        for (int k = 0; k < CLASSES; k++)
            assert_true(fabs((double)c->logit[b * CLASSES + k] - logit[k]) < 1e-6);
    }
    if (!(fabs(c->loss - want) < 1e-6)) fail_msg("loss %.9f, wanted %.9f", c->loss, want);
    assert_true((double)c->correct == correct);
}

static bool of_spikes(rv_readout readout) {
    return readout <= RV_READ_FIRST_SPIKE;
}

static void readouts_give_their_closed_forms(void **state) {
    (void)state;
    for (int readout = 0; readout <= RV_READ_EVERY_STEP; readout++) {
        course c;
        start(&c, CLASSES, of_spikes((rv_readout)readout), "cross_entropy", (rv_readout)readout);
        check_value(&c, (rv_readout)readout, 0);
        finish(&c);
    }
}

static void samples_end_at_their_length(void **state) {
    (void)state;
    static const int32_t length[BATCH] = {STEPS, 3, 1, 5};
    for (int readout = 0; readout <= RV_READ_EVERY_STEP; readout++) {
        course c;
        start(&c, CLASSES, of_spikes((rv_readout)readout), "cross_entropy", (rv_readout)readout);
        c.s.batch.length = length;
        c.chunks = 3;
        check_value(&c, (rv_readout)readout, 0);
        for (int b = 0; b < BATCH; b++)
            for (int t = length[b]; t < STEPS; t++)
                for (int u = 0; u < CLASSES; u++)
                    assert_true(c.adjoint[t][b][u] == 0);
        finish(&c);
    }
}

static void populations_smoothing_and_weights_give_their_closed_forms(void **state) {
    (void)state;
    float weights[CLASSES] = {0.5f, 2, 3};
    course c;
    start(&c, 2 * CLASSES, true, "cross_entropy", RV_READ_SPIKE_COUNT);
    c.s.loss.label_smoothing = 0.1;
    c.s.loss.class_weights = (rv_reals){CLASSES, weights, weights[0]};
    check_value(&c, RV_READ_SPIKE_COUNT, 0.1);
    finish(&c);
}

static void tie_is_won_by_the_first_class(void **state) {
    (void)state;
    course c;
    start(&c, CLASSES, true, "cross_entropy", RV_READ_SPIKE_COUNT);
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++)
            for (int u = 0; u < CLASSES; u++)
                *cell(&c, t, b, u) = t < 3 && u > 0;
    run(&c);
    for (int b = 0; b < BATCH; b++)
        assert_int_equal(c.prediction[b], 1);
    finish(&c);
}

/* 1/(t + 1) instead of -t: its slope goes to the step of the first spike. */
static void reciprocal_times_are_judged_by_their_own_softmax(void **state) {
    (void)state;
    course c;
    double want = 0;
    start(&c, CLASSES, true, "cross_entropy", RV_READ_FIRST_SPIKE);
    *(int *)c.s.loss.loss.options = 1; /* time comes first */
    run(&c);
    for (int b = 0; b < BATCH; b++) {
        double logit[CLASSES], sum = 0;
        int label = c.s.batch.label[b];
        for (int k = 0; k < CLASSES; k++) {
            logit[k] = 1 / (1 - read(&c, RV_READ_FIRST_SPIKE, b, k, STEPS));
            sum += exp(logit[k]);
        }
        want += cross_entropy(logit, label, 0) / BATCH;
        for (int k = 0; k < CLASSES; k++) {
            int first = (int)-read(&c, RV_READ_FIRST_SPIKE, b, k, STEPS);
            double slope = (exp(logit[k]) / sum - (k == label)) * logit[k] * logit[k] / BATCH;
            for (int t = 0; t < STEPS; t++)
                assert_true(fabs(c.adjoint[t][b][k] - (t == first ? slope : 0)) < 1e-7);
        }
    }
    assert_true(fabs(c.loss - want) < 1e-6);
    finish(&c);
}

/* The slope of a maximum that comes twice goes to the first. */
static void equal_maxima_belong_to_the_first_step(void **state) {
    (void)state;
    course c;
    start(&c, CLASSES, false, "cross_entropy", RV_READ_MEMBRANE_MAX);
    *cell(&c, 2, 0, 0) = *cell(&c, 5, 0, 0) = 9;
    c.chunks = 2;
    run(&c);
    assert_true(c.adjoint[2][0][0] != 0);
    assert_true(c.adjoint[5][0][0] == 0);
    finish(&c);
}

/* ---- adjoints ---------------------------------------------------------------------------- */
static void check_adjoint(course *c) {
    double got[STEPS][BATCH][MOST];
    const double step = 1e-3;
    run(c);
    memcpy(got, c->adjoint, sizeof got);
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++)
            for (int u = 0; u < c->n; u++) {
                float *x = cell(c, t, b, u), at = *x;
                *x = at + (float)step;
                double up = (double)*x;
                run(c);
                double high = c->loss;
                *x = at - (float)step;
                double down = (double)*x;
                run(c);
                *x = at;
                double slope = (high - c->loss) / (up - down);
                if (!(fabs(slope - got[t][b][u]) < 1e-5))
                    fail_msg("t %d b %d u %d: %g, differences say %g", t, b, u, got[t][b][u],
                             slope);
            }
}

static void adjoints_of_membranes_equal_differences(void **state) {
    (void)state;
    static const char *const losses[] = {"cross_entropy", "mse", "mse_membrane", "tet"};
    for (int readout = RV_READ_MEMBRANE_MAX; readout <= RV_READ_EVERY_STEP; readout++)
        for (size_t k = 0; k < sizeof losses / sizeof *losses; k++) {
            course c;
            start(&c, CLASSES, false, losses[k], (rv_readout)readout);
            check_adjoint(&c);
            finish(&c);
        }
}

/* The loss of a count is smooth in it: its slope goes to every step of the output. */
static void adjoint_of_a_count_is_the_slope_at_every_step(void **state) {
    (void)state;
    course c;
    start(&c, CLASSES, true, "cross_entropy", RV_READ_SPIKE_COUNT);
    run(&c);
    for (int b = 0; b < BATCH; b++) {
        double logit[CLASSES], sum = 0;
        for (int k = 0; k < CLASSES; k++) {
            logit[k] = (double)c.logit[b * CLASSES + k];
            sum += exp(logit[k]);
        }
        for (int k = 0; k < CLASSES; k++)
            for (int t = 0; t < STEPS; t++) {
                double want = (exp(logit[k]) / sum - (k == c.s.batch.label[b])) / BATCH;
                assert_true(fabs(c.adjoint[t][b][k] - want) < 1e-7);
            }
    }
    finish(&c);
}

static void float_targets_are_taken_per_sample_or_step(void **state) {
    (void)state;
    float target[STEPS * BATCH * CLASSES];
    for (size_t k = 0; k < sizeof target / sizeof *target; k++)
        target[k] = (float)small_random(9, k);
    for (int per_step = 0; per_step < 2; per_step++) {
        course c;
        double want = 0;
        rv_readout readout = per_step ? RV_READ_EVERY_STEP : RV_READ_MEMBRANE_LAST;
        start(&c, CLASSES, false, "mse", readout);
        c.s.loss.classes = 0, c.s.batch.label = NULL;
        c.s.batch.target = target, c.s.batch.target_width = CLASSES;
        c.s.batch.target_per_step = per_step;
        for (int t = per_step ? 0 : STEPS - 1; t < STEPS; t++)
            for (int k = 0; k < BATCH * CLASSES; k++) {
                double x = (double)*cell(&c, t, k / CLASSES, k % CLASSES);
                double apart = x - (double)target[per_step ? t * BATCH * CLASSES + k : k];
                want += apart * apart / CLASSES / BATCH / (per_step ? STEPS : 1);
            }
        run(&c);
        assert_true(fabs(c.loss - want) < 1e-6);
        assert_int_equal(c.correct, 0);
        check_adjoint(&c);
        finish(&c);
    }
}

/* ---- chunks and refusals ----------------------------------------------------------------- */
static void chunks_give_the_same_bits(void **state) {
    (void)state;
    for (int readout = 0; readout <= RV_READ_EVERY_STEP; readout++) {
        course a, b;
        start(&a, CLASSES, of_spikes((rv_readout)readout), "cross_entropy", (rv_readout)readout);
        run(&a);
        for (int chunks = 2; chunks <= STEPS; chunks++) {
            start(&b, CLASSES, of_spikes((rv_readout)readout), "cross_entropy",
                  (rv_readout)readout);
            b.chunks = chunks;
            run(&b);
            assert_true(a.loss == b.loss);
            assert_memory_equal(a.adjoint, b.adjoint, sizeof a.adjoint);
            finish(&b);
        }
        finish(&a);
    }
}

static void classes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    course c;
    start(&c, CLASSES, false, "cross_entropy", RV_READ_MEMBRANE_MEAN);
    c.s.loss.classes = 5;
    refused(&c, RV_CONFIG, "layer \"out\" gives [3], but 5 classes of 1 outputs each need [5]");
}

static void spike_readout_of_an_integrator_is_refused(void **state) {
    (void)state;
    course c;
    start(&c, CLASSES, false, "cross_entropy", RV_READ_SPIKE_COUNT);
    refused(&c, RV_CONFIG, "readout spike_count needs spikes");
}

static void label_out_of_range_is_refused(void **state) {
    (void)state;
    course c;
    int32_t labels[BATCH] = {0, 1, 3, 0};
    start(&c, CLASSES, false, "cross_entropy", RV_READ_MEMBRANE_MEAN);
    c.s.batch.label = labels;
    refused(&c, RV_DATA, "sample 2 has label 3, but there are 3 classes");
}

static void cross_entropy_of_float_targets_is_refused(void **state) {
    (void)state;
    course c;
    start(&c, CLASSES, false, "cross_entropy", RV_READ_MEMBRANE_MEAN);
    c.s.loss.classes = 0;
    refused(&c, RV_CONFIG, "needs classes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readouts_give_their_closed_forms),
        cmocka_unit_test(samples_end_at_their_length),
        cmocka_unit_test(populations_smoothing_and_weights_give_their_closed_forms),
        cmocka_unit_test(tie_is_won_by_the_first_class),
        cmocka_unit_test(reciprocal_times_are_judged_by_their_own_softmax),
        cmocka_unit_test(equal_maxima_belong_to_the_first_step),
        cmocka_unit_test(adjoints_of_membranes_equal_differences),
        cmocka_unit_test(adjoint_of_a_count_is_the_slope_at_every_step),
        cmocka_unit_test(float_targets_are_taken_per_sample_or_step),
        cmocka_unit_test(chunks_give_the_same_bits),
        cmocka_unit_test(classes_that_do_not_fit_are_refused),
        cmocka_unit_test(spike_readout_of_an_integrator_is_refused),
        cmocka_unit_test(label_out_of_range_is_refused),
        cmocka_unit_test(cross_entropy_of_float_targets_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
