/*
 * The serial trainer against loops in double, and against itself: the same bits whatever the
 * chunks and threads, the same sums whatever the micro-batches; and that it learns.
 */
#include "tests/small.h"

enum { IN = 12, HIDDEN = 37, OUT = 5, BATCH = 9, STEPS = 11 };

/* ---- the reference ----------------------------------------------------------------------- */
typedef struct reference {
    double w1[HIDDEN][IN], b1[HIDDEN], w2[OUT][HIDDEN], b2[OUT]; /* PyTorch's order */
    double g1[HIDDEN][IN], gb1[HIDDEN], g2[OUT][HIDDEN], gb2[OUT];
    double gbeta1, beta1, beta2;
    double s1[STEPS][BATCH][HIDDEN], s2[STEPS][BATCH][OUT];
    double loss;
} reference;

static double atan_slope(double u) {
    double k = M_PI * u; /* pi/2 * alpha * u with alpha 2 */
    return 1 / (1 + k * k);
}

/* h[t] = beta v[t-1] + x[t], s = h >= 1, v = h - s, as backpropagation through time wants it. */
static void lif(int n, double beta, const double *x, double *h, double *s) {
    for (int u = 0; u < n; u++) {
        double v = 0;
        for (int t = 0; t < STEPS; t++) {
            h[t * n + u] = beta * v + x[t * n + u];
            s[t * n + u] = h[t * n + u] >= 1;
            v = h[t * n + u] - s[t * n + u];
        }
    }
}

static double lif_adjoint(int n, double beta, const double *h, const double *s, const double *gs,
                          double *gx) {
    double gbeta = 0;
    for (int u = 0; u < n; u++) {
        double gv = 0;
        for (int t = STEPS - 1; t >= 0; t--) {
            gx[t * n + u] = gs[t * n + u] * atan_slope(h[t * n + u] - 1) + gv;
            if (t > 0) gbeta += gx[t * n + u] * (h[(t - 1) * n + u] - s[(t - 1) * n + u]);
            gv = beta * gx[t * n + u];
        }
    }
    return gbeta;
}

/* x(t, b, i) from the frames of the batch or as given bits. */
static void reference_run(reference *r, const small *s, const double *x) {
    for (int b = 0; b < BATCH; b++) {
        static double x1[STEPS][HIDDEN], h1[STEPS][HIDDEN], s1[STEPS][HIDDEN];
        static double x2[STEPS][OUT], h2[STEPS][OUT], s2[STEPS][OUT], g2[STEPS][OUT];
        static double gs1[STEPS][HIDDEN], g1[STEPS][HIDDEN], gs2[STEPS][OUT];
        double count[OUT] = {0}, sum = 0;
        for (int t = 0; t < STEPS; t++)
            for (int o = 0; o < HIDDEN; o++) {
                x1[t][o] = r->b1[o];
                for (int i = 0; i < IN; i++)
                    x1[t][o] += r->w1[o][i] * x[(t * BATCH + b) * IN + i];
            }
        lif(HIDDEN, r->beta1, *x1, *h1, *s1);
        for (int t = 0; t < STEPS; t++)
            for (int o = 0; o < OUT; o++) {
                x2[t][o] = r->b2[o];
                for (int i = 0; i < HIDDEN; i++)
                    x2[t][o] += r->w2[o][i] * s1[t][i];
            }
        lif(OUT, r->beta2, *x2, *h2, *s2);
        for (int t = 0; t < STEPS; t++) {
            memcpy(r->s1[t][b], s1[t], sizeof s1[t]);
            memcpy(r->s2[t][b], s2[t], sizeof s2[t]);
            for (int o = 0; o < OUT; o++)
                count[o] += s2[t][o];
        }
        for (int o = 0; o < OUT; o++)
            sum += exp(count[o]);
        r->loss += (log(sum) - count[s->batch.label[b]]) / BATCH;
        for (int t = 0; t < STEPS; t++)
            for (int o = 0; o < OUT; o++)
                gs2[t][o] = (exp(count[o]) / sum - (o == s->batch.label[b])) / BATCH;
        lif_adjoint(OUT, r->beta2, *h2, *s2, *gs2, *g2);
        for (int t = 0; t < STEPS; t++) {
            for (int i = 0; i < HIDDEN; i++)
                gs1[t][i] = 0;
            for (int o = 0; o < OUT; o++) {
                r->gb2[o] += g2[t][o];
                for (int i = 0; i < HIDDEN; i++) {
                    r->g2[o][i] += g2[t][o] * s1[t][i];
                    gs1[t][i] += g2[t][o] * r->w2[o][i];
                }
            }
        }
        r->gbeta1 += lif_adjoint(HIDDEN, r->beta1, *h1, *s1, *gs1, *g1);
        for (int t = 0; t < STEPS; t++)
            for (int o = 0; o < HIDDEN; o++) {
                r->gb1[o] += g1[t][o];
                for (int i = 0; i < IN; i++)
                    r->g1[o][i] += g1[t][o] * x[(t * BATCH + b) * IN + i];
            }
    }
}

/* ---- comparing --------------------------------------------------------------------------- */
static void tensor_get(const small *s, const char *name, const float *block, double *out) {
    const rv_tensor *tensor = rv_net_tensor_find(s->net, name);
    if (!tensor) fail_msg("no tensor %s", name);
    size_t n = rv_tensor_elements(tensor);
    float *file = malloc(n * sizeof *file);
    assert_non_null(file);
    rv_tensor_export(tensor, block, file);
    for (size_t k = 0; k < n; k++)
        out[k] = file[k];
    free(file);
}

/* Difference relative to the largest entry. */
static void tensor_close(const small *s, const char *name, const float *block, const double *want,
                         double limit) {
    double got[HIDDEN * (IN + OUT)], most = 0, apart = 0;
    size_t n = rv_tensor_elements(rv_net_tensor_find(s->net, name));
    tensor_get(s, name, block, got);
    for (size_t k = 0; k < n; k++) {
        most = fmax(most, fabs(want[k]));
        apart = fmax(apart, fabs(want[k] - got[k]));
    }
    if (most == 0 || !(apart <= limit * most)) fail_msg("%s: apart by %g of %g", name, apart, most);
}

typedef struct record { /* what an observer saw: bits of both neuron layers, by time and sample */
    uint32_t bits[2][STEPS][BATCH][2];
} record;

static rv_status record_forward(void *self, const rv_pass *pass) {
    record *r = self;
    for (int k = 0; k < 2; k++) {
        rv_spikes s = rv_tape_signal(pass->tape, 2 * k + 1)->spikes;
        int words = rv_words(s.n);
        for (int t = pass->t0; t < pass->t1; t++)
            for (int b = 0; b < pass->B; b++)
                memcpy(r->bits[k][t][pass->row + b],
                       s.bits + (size_t)(t - pass->t0) * s.stride_t + (size_t)(b * words),
                       sizeof(uint32_t) * (size_t)words);
    }
    return RV_OK;
}

static void open_two(small *s, const char *encoder, bool frames, int chunks, int micro_batches,
                     int threads) {
    small_two(s, IN, HIDDEN, OUT);
    ((rv_neuron_options *)s->layers[1].options)->learn = (char *)(uintptr_t) "beta";
    small_batch(s, BATCH, frames ? STEPS : 0, OUT, 7);
    small_open(s, encoder, STEPS, chunks, micro_batches, threads);
    float *block = rv_version_block(rv_serial_version(s->serial));
    for (size_t k = 0; k < s->net->n_all; k++)
        block[k] *= 1.6f; /* spikes in both layers */
    const rv_tensor *beta = rv_net_tensor_find(s->net, "lif1.beta");
    block[beta->offset] = 0.85f;
    OK(rv_version_derive(rv_serial_version(s->serial), BATCH));
}

static void check_reference(const char *encoder, bool frames) {
    small s = {0};
    record seen = {0};
    rv_step_result result;
    const float *gradient;
    reference *r = calloc(1, sizeof *r);
    double *x = calloc(STEPS * BATCH * IN, sizeof *x);
    assert_non_null(r);
    assert_non_null(x);
    open_two(&s, encoder, frames, 3, 1, 1);
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++)
            for (int i = 0; i < IN; i++) {
                rv_values in = s.batch.input.values;
                double value = in.data[(size_t)t * in.stride_t + (size_t)(b * in.ld + i)];
                uint32_t word[4];
                rv_random4(word, s.net_desc.seed, RV_FOR_ENCODE, 0, 0, (uint32_t)b, (uint32_t)t,
                           (uint32_t)i / 4);
                if (strcmp(encoder, "rate") == 0) value = (double)rv_uniform(word[i % 4]) < value;
                x[(t * BATCH + b) * IN + i] = value;
            }
    const float *block = rv_version_block(rv_serial_version(s.serial));
    tensor_get(&s, "fc1.weight", block, *r->w1);
    tensor_get(&s, "fc1.bias", block, r->b1);
    tensor_get(&s, "fc2.weight", block, *r->w2);
    tensor_get(&s, "fc2.bias", block, r->b2);
    tensor_get(&s, "lif1.beta", block, &r->beta1);
    r->beta2 = (double)0.8f;
    reference_run(r, &s, x);
    rv_observer observer = {&seen, record_forward};
    rv_serial_observe(s.serial, &observer);
    OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
    int spikes[2] = {0};
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++) {
            for (int u = 0; u < HIDDEN; u++) {
                assert_int_equal(seen.bits[0][t][b][u / 32] >> u % 32 & 1, r->s1[t][b][u]);
                spikes[0] += r->s1[t][b][u] > 0;
            }
            for (int u = 0; u < OUT; u++) {
                assert_int_equal(seen.bits[1][t][b][0] >> u & 1, r->s2[t][b][u]);
                spikes[1] += r->s2[t][b][u] > 0;
            }
        }
    assert_true(spikes[0] > 100 && spikes[1] > 20);
    assert_true(fabs(result.loss - r->loss) < 1e-6);
    tensor_close(&s, "fc1.weight", gradient, *r->g1, 1e-5);
    tensor_close(&s, "fc1.bias", gradient, r->gb1, 1e-5);
    tensor_close(&s, "fc2.weight", gradient, *r->g2, 1e-5);
    tensor_close(&s, "fc2.bias", gradient, r->gb2, 1e-5);
    tensor_close(&s, "lif1.beta", gradient, &r->gbeta1, 1e-5);
    free(x);
    free(r);
    small_finish(&s);
}

static void gradient_of_frames_equals_loops_in_double(void **state) {
    (void)state;
    check_reference("constant", true);
}
static void gradient_of_held_input_equals_loops_in_double(void **state) {
    (void)state;
    check_reference("constant", false);
}
static void gradient_of_rate_spikes_equals_loops_in_double(void **state) {
    (void)state;
    check_reference("rate", false);
}

/* ---- the same bits ----------------------------------------------------------------------- */
typedef struct outcome {
    double loss;
    int64_t correct;
    record seen;
    float *gradient;
    size_t n;
} outcome;

static void run(outcome *o, const char *encoder, int chunks, int micro_batches, int threads) {
    small s = {0};
    rv_step_result result;
    const float *gradient;
    memset(o, 0, sizeof *o);
    open_two(&s, encoder, false, chunks, micro_batches, threads);
    rv_observer observer = {&o->seen, record_forward};
    rv_serial_observe(s.serial, &observer);
    OK(rv_serial_gradient(s.serial, &s.batch, &result, &gradient));
    o->loss = result.loss, o->correct = result.correct, o->n = s.net->n_trained;
    o->gradient = malloc(o->n * sizeof *gradient);
    assert_non_null(o->gradient);
    memcpy(o->gradient, gradient, o->n * sizeof *gradient);
    small_finish(&s);
}

static void same_bits(const char *encoder, int chunks, int threads) {
    outcome a, b;
    run(&a, encoder, 1, 1, 1);
    run(&b, encoder, chunks, 1, threads);
    assert_true(a.loss == b.loss);
    assert_int_equal(a.correct, b.correct);
    assert_memory_equal(&a.seen, &b.seen, sizeof a.seen);
    assert_memory_equal(a.gradient, b.gradient, a.n * sizeof *a.gradient);
    free(a.gradient);
    free(b.gradient);
}

static void chunks_give_the_same_bits(void **state) {
    (void)state;
    const int chunks[] = {2, 3, 5, STEPS};
    for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
        same_bits("rate", chunks[k], 1);
        same_bits("constant", chunks[k], 1);
    }
}

/* A layer whose adjoint is made in parts of two steps and, at the front, one; chunks of one step
 * have one part each. */
static void parts_of_a_wide_layer_give_the_same_bits(void **state) {
    (void)state;
    enum { UNITS = 20000, FEW = 5 };
    float *gradient[2] = {0};
    size_t n = 0;
    for (int k = 0; k < 2; k++) {
        small s = {0};
        rv_step_result result;
        const float *from;
        small_two(&s, IN, UNITS, OUT);
        small_batch(&s, BATCH, 0, OUT, 7);
        small_open(&s, "rate", FEW, k ? FEW : 1, 1, 1);
        OK(rv_serial_gradient(s.serial, &s.batch, &result, &from));
        n = s.net->n_trained;
        gradient[k] = malloc(n * sizeof *from);
        assert_non_null(gradient[k]);
        memcpy(gradient[k], from, n * sizeof *from);
        small_finish(&s);
    }
    assert_memory_equal(gradient[0], gradient[1], n * sizeof(float));
    free(gradient[0]);
    free(gradient[1]);
}

static void threads_give_the_same_bits(void **state) {
    (void)state;
    same_bits("rate", 3, 2);
    same_bits("constant", 3, 2);
}

/* The same numbers added in another order. */
static void sums_close(const float *a, const float *b, size_t n) {
    double most = 0, apart = 0;
    for (size_t k = 0; k < n; k++) {
        most = fmax(most, fabs((double)a[k]));
        apart = fmax(apart, fabs((double)a[k] - (double)b[k]));
    }
    if (!(apart <= 1e-6 * most)) fail_msg("apart by %g of %g", apart, most);
}

/* 9 samples in 2, 4 and 9 micro-batches: unequal ones weigh by their samples. */
static void micro_batches_give_the_same_sums(void **state) {
    (void)state;
    const int parts[] = {2, 4, BATCH};
    outcome a, b;
    run(&a, "rate", 2, 1, 1);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        run(&b, "rate", 2, parts[k], 1);
        assert_true(fabs(a.loss - b.loss) < 1e-12);
        assert_memory_equal(&a.seen, &b.seen, sizeof a.seen);
        sums_close(a.gradient, b.gradient, a.n);
        free(b.gradient);
    }
    free(a.gradient);
}

/* ---- steps ------------------------------------------------------------------------------- */
static void ragged_batch_equals_a_trainer_of_its_size(void **state) {
    (void)state;
    const int sizes[] = {1, 2, 5}; /* micro-batches: 3, so 1 and 2 leave some empty */
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        small a = {0}, b = {0};
        rv_step_result ra, rb;
        const float *ga, *gb;
        open_two(&a, "rate", false, 2, 3, 1);
        a.batch.B = sizes[k];
        OK(rv_serial_gradient(a.serial, &a.batch, &ra, &ga));
        small_two(&b, IN, HIDDEN, OUT);
        ((rv_neuron_options *)b.layers[1].options)->learn = (char *)(uintptr_t) "beta";
        small_batch(&b, BATCH, 0, OUT, 7);
        b.batch.B = sizes[k];
        small_open(&b, "rate", STEPS, 2, 1, 1);
        memcpy(rv_version_block(rv_serial_version(b.serial)),
               rv_version_block(rv_serial_version(a.serial)), sizeof *ga * a.net->n_all);
        OK(rv_version_derive(rv_serial_version(b.serial), sizes[k]));
        OK(rv_serial_gradient(b.serial, &b.batch, &rb, &gb));
        assert_int_equal(ra.B, sizes[k]);
        assert_true(fabs(ra.loss - rb.loss) < 1e-12);
        sums_close(ga, gb, a.net->n_trained);
        small_finish(&a);
        small_finish(&b);
    }
}

/* A large rate makes the 1e-6 of PyTorch's factor show; a wide limit leaves the gradient alone. */
static void clipping_scales_to_the_norm(void **state) {
    (void)state;
    const double limits[] = {1e-4, 1e4}, rate = 1000;
    for (int k = 0; k < 2; k++) {
        small a = {0}, b = {0};
        rv_step_result ra, rb;
        const float *gradient;
        double norm = 0;
        a.train.clip_norm = limits[k];
        a.train.optimizer = small_choice(&a, rv_optimizer_table(), "sgd");
        b.train.optimizer = small_choice(&b, rv_optimizer_table(), "sgd");
        *(double *)a.train.optimizer.options = rate; /* lr comes first */
        open_two(&a, "rate", false, 2, 1, 1);
        open_two(&b, "rate", false, 2, 1, 1);
        float *block = rv_version_block(rv_serial_version(a.serial));
        OK(rv_serial_gradient(b.serial, &b.batch, &rb, &gradient));
        for (size_t i = 0; i < b.net->n_trained; i++)
            norm += (double)gradient[i] * (double)gradient[i];
        norm = sqrt(norm);
        double factor = fmin(1, limits[k] / (norm + 1e-6));
        float before = block[3];
        OK(rv_serial_step(a.serial, &a.batch, &ra));
        assert_true(fabs(ra.norm - norm) < 1e-6 * norm);
        assert_true(ra.rate == rate);
        double want = rate * (double)gradient[3] * factor, got = (double)before - (double)block[3];
        assert_true(gradient[3] != 0);
        assert_true(fabs(got - want) < 1e-4 * fabs(want));
        small_finish(&a);
        small_finish(&b);
    }
}

/* After a step everything derived from the weights is that of the new ones. */
static void step_leaves_a_derived_version(void **state) {
    (void)state;
    small a = {0}, b = {0};
    rv_step_result ra, rb;
    a.train.optimizer = small_choice(&a, rv_optimizer_table(), "adam");
    *(double *)a.train.optimizer.options = 0.05;
    open_two(&a, "rate", false, 2, 1, 1);
    open_two(&b, "rate", false, 2, 1, 1);
    for (int step = 0; step < 3; step++)
        OK(rv_serial_step(a.serial, &a.batch, &ra));
    memcpy(rv_version_block(rv_serial_version(b.serial)),
           rv_version_block(rv_serial_version(a.serial)), sizeof(float) * a.net->n_all);
    OK(rv_serial_eval(b.serial, &b.batch, &rb, NULL, NULL)); /* still with the old beta */
    OK(rv_serial_eval(a.serial, &a.batch, &ra, NULL, NULL));
    assert_true(ra.loss != rb.loss);
    OK(rv_version_derive(rv_serial_version(b.serial), BATCH));
    OK(rv_serial_eval(b.serial, &b.batch, &rb, NULL, NULL));
    assert_true(ra.loss == rb.loss);
    small_finish(&a);
    small_finish(&b);
}

static void evaluation_counts_spikes_and_changes_nothing(void **state) {
    (void)state;
    small s = {0};
    rv_step_result trained, evaluated;
    const float *gradient;
    int64_t spikes[4] = {0}, seen = 0;
    int32_t predictions[BATCH];
    record bits = {0};
    open_two(&s, "rate", false, 3, 2, 1);
    OK(rv_serial_gradient(s.serial, &s.batch, &trained, &gradient));
    rv_observer observer = {&bits, record_forward};
    rv_serial_observe(s.serial, &observer);
    OK(rv_serial_eval(s.serial, &s.batch, &evaluated, spikes, predictions));
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++)
            for (int w = 0; w < 2; w++)
                seen += __builtin_popcount(bits.bits[0][t][b][w]);
    assert_int_equal(spikes[1], seen);
    assert_int_equal(spikes[0], 0);
    assert_true(spikes[3] > 0);
    assert_true(fabs(trained.loss - evaluated.loss) < 1e-12);
    assert_int_equal(trained.correct, evaluated.correct);
    int64_t correct = 0;
    for (int b = 0; b < BATCH; b++)
        correct += predictions[b] == s.batch.label[b];
    assert_int_equal(correct, evaluated.correct);
    small_finish(&s);
}

static void spikes_after_the_length_do_not_count(void **state) {
    (void)state;
    static const int32_t length[BATCH] = {STEPS, 1, 2, 3, 4, 5, 6, 7, 8};
    small s = {0};
    rv_step_result result;
    int64_t spikes[4] = {0}, seen = 0, all = 0;
    record bits = {0};
    open_two(&s, "rate", false, 3, 2, 1);
    s.batch.length = length;
    rv_observer observer = {&bits, record_forward};
    rv_serial_observe(s.serial, &observer);
    OK(rv_serial_eval(s.serial, &s.batch, &result, spikes, NULL));
    for (int t = 0; t < STEPS; t++)
        for (int b = 0; b < BATCH; b++)
            for (int w = 0; w < 2; w++) {
                int here = __builtin_popcount(bits.bits[0][t][b][w]);
                all += here;
                if (t < length[b]) seen += here;
            }
    assert_int_equal(spikes[1], seen);
    assert_true(seen < all);
    small_finish(&s);
}

/* ---- learning ---------------------------------------------------------------------------- */
/* Four classes: the bright quarter of 16 inputs. */
static void separable_task_is_learnt(const char *encoder) {
    enum { SAMPLES = 64 };
    small s = {0};
    rv_step_result result;
    s.net_desc.seed = 3;
    small_two(&s, 16, 32, 4);
    small_batch(&s, SAMPLES, 0, 4, 11);
    for (int b = 0; b < SAMPLES; b++)
        for (int u = 0; u < 16; u++)
            s.batch.input.values.data[b * s.batch.input.values.ld + u] *=
                u / 4 == s.batch.label[b] ? 1.0f : 0.2f;
    s.train.optimizer = small_choice(&s, rv_optimizer_table(), "adam");
    *(double *)s.train.optimizer.options = 0.01; /* lr comes first */
    small_open(&s, encoder, 12, 2, 1, 1);
    for (int step = 0; step < 100; step++) {
        s.batch.epoch = (uint32_t)step;
        OK(rv_serial_step(s.serial, &s.batch, &result));
    }
    s.batch.epoch = 1000;
    OK(rv_serial_eval(s.serial, &s.batch, &result, NULL, NULL));
    if (result.correct <= SAMPLES * 95 / 100)
        fail_msg("%s: %d of %d right", encoder, (int)result.correct, SAMPLES);
    small_finish(&s);
}

static void separable_images_are_learnt(void **state) {
    (void)state;
    separable_task_is_learnt("constant");
}
static void separable_rates_are_learnt(void **state) {
    (void)state;
    separable_task_is_learnt("rate");
}

#ifdef RV_FAULTS
/* Net, trainer and one step, with the k-th allocation failing: an error, and nothing is left. */
static rv_status net_and_step(small *s) {
    rv_status status = RV_OK;
    rv_net *net = NULL;
    rv_serial *serial = NULL;
    rv_step_result result;
    TRY(rv_net_create(&s->net_desc, &net));
    rv_serial_desc desc = {net, &s->device, &s->encoder, &s->loss, &s->train, 100};
    TRY(rv_serial_create(&desc, &serial));
    TRY(rv_net_choose_forms(net, &s->device, rv_serial_version(serial), &s->encoder, &s->batch));
    TRY(rv_serial_step(serial, &s->batch, &result));
out:
    rv_serial_destroy(serial);
    rv_net_destroy(net);
    return status;
}

static void any_failing_allocation_is_reported(void **state) {
    (void)state;
    small s = {0};
    rv_status status = RV_MEMORY;
    long k = 0;
    open_two(&s, "rate", false, 2, 1, 1);
    for (; status != RV_OK && k < 1000; k++) {
        rv_fault_arm(RV_FAULT_ALLOC, k, false);
        status = net_and_step(&s);
        rv_fault_arm(RV_FAULT_ALLOC, -1, false);
        if (status != RV_OK && status != RV_MEMORY)
            fail_msg("allocation %ld: status %d, %s", k, status, rv_error_get()->message);
    }
    assert_true(status == RV_OK && k > 20);
    small_finish(&s);
}
#endif

static int flush(void **state) {
    (void)state;
    rv_flush_set();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_of_frames_equals_loops_in_double),
        cmocka_unit_test(gradient_of_held_input_equals_loops_in_double),
        cmocka_unit_test(gradient_of_rate_spikes_equals_loops_in_double),
        cmocka_unit_test(chunks_give_the_same_bits),
        cmocka_unit_test(parts_of_a_wide_layer_give_the_same_bits),
        cmocka_unit_test(threads_give_the_same_bits),
        cmocka_unit_test(micro_batches_give_the_same_sums),
        cmocka_unit_test(ragged_batch_equals_a_trainer_of_its_size),
        cmocka_unit_test(clipping_scales_to_the_norm),
        cmocka_unit_test(step_leaves_a_derived_version),
        cmocka_unit_test(evaluation_counts_spikes_and_changes_nothing),
        cmocka_unit_test(spikes_after_the_length_do_not_count),
#ifdef RV_FAULTS
        cmocka_unit_test(any_failing_allocation_is_reported),
#endif
        cmocka_unit_test(separable_images_are_learnt),
        cmocka_unit_test(separable_rates_are_learnt),
    };
    return cmocka_run_group_tests(tests, flush, NULL);
}
