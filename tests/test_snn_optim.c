/* Optimisers and rate schedules: runs of tensors, groups, limits, slots; closed forms of rates. */
#include "tests/small.h"

static void open_optimizer(small *s, const char *name, double lr, rv_optimizer **out) {
    s->net_desc.steps = 1;
    if (!s->net) {
        OK(rv_device_open("cpu", RV_ISA_AUTO, 1, &s->device));
        OK(rv_net_create(&s->net_desc, &s->net));
    }
    s->train.optimizer = small_choice(s, rv_optimizer_table(), name);
    *(double *)s->train.optimizer.options = lr; /* lr comes first */
    OK(rv_optimizer_create(s->net, &s->train, 100, out));
}

static void real_option(const rv_choice *choice, const char *name, double value) {
    for (const rv_spec *spec = choice->row->specs; spec->name; spec++)
        if (strcmp(spec->name, name) == 0) {
            char *at = (char *)choice->options + spec->offset;
            if (spec->type == RV_T_REAL)
                *(double *)(void *)at = value;
            else if (spec->type == RV_T_BOOL)
                *(bool *)(void *)at = value != 0;
            else
                *(int *)(void *)at = (int)value;
            return;
        }
    fail_msg("%s has no option %s", choice->row->name, name);
}

/* ---- optimisers -------------------------------------------------------------------------- */
static void plain_descent_moves_every_trained_value(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o;
    small_two(&s, 5, 20, 3);
    s.layers[2].trainable = false;
    open_optimizer(&s, "sgd", 0.5, &o);
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    for (size_t k = 0; k < s.net->n_all; k++)
        block[k] = 10;
    for (size_t k = 0; k < s.net->n_trained; k++)
        gradient[k] = (float)k;
    OK(rv_optimizer_update(o, &s.device, NULL, block, gradient, 0.25));
    for (size_t k = 0; k < s.net->n_all; k++) {
        double want = k < s.net->n_trained ? 10 - 0.5 * 0.25 * (double)k : 10;
        assert_true(fabs((double)block[k] - want) < 1e-4);
    }
    assert_int_equal(rv_optimizer_step(o), 1);
    assert_int_equal(rv_optimizer_slots(o), 0);
    rv_optimizer_destroy(o);
    small_finish(&s);
}

static void groups_take_their_own_rate(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o;
    char bias[] = "*.bias", first[] = "fc1.*";
    rv_group_desc groups[2] = {{bias, 2, NAN, {0}}, {first, 3, 0.5, {0}}};
    small_two(&s, 5, 20, 3);
    s.train.groups = groups, s.train.group_count = 2;
    open_optimizer(&s, "sgd", 1, &o);
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    for (size_t k = 0; k < s.net->n_trained; k++)
        gradient[k] = 1, block[k] = 8;
    OK(rv_optimizer_update(o, &s.device, NULL, block, gradient, 1));
    static const struct {
        const char *name;
        double want;
    } rows[] = {{"fc1.weight", 8 - 3 * (1 + 0.5 * 8)}, /* decay is added to the gradient */
                {"fc1.bias", 6},
                {"fc2.weight", 7},
                {"fc2.bias", 6}};
    for (int k = 0; k < 4; k++) {
        const rv_tensor *tensor = rv_net_tensor_find(s.net, rows[k].name);
        assert_true(fabs((double)block[tensor->offset] - rows[k].want) < 1e-5);
        assert_true(fabs((double)block[tensor->offset + tensor->count - 1] - rows[k].want) < 1e-5);
    }
    rv_optimizer_destroy(o);
    small_finish(&s);
}

static void group_without_tensors_is_refused(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o = NULL;
    char pattern[] = "fc7.*";
    rv_group_desc group = {pattern, 2, NAN, {0}};
    small_two(&s, 5, 20, 3);
    s.net_desc.steps = 1;
    OK(rv_net_create(&s.net_desc, &s.net));
    s.train.groups = &group, s.train.group_count = 1;
    assert_int_equal(rv_optimizer_create(s.net, &s.train, 1, &o), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "fc7.*"));
    assert_null(o);
    small_finish(&s);
}

static void limits_hold_for_neuron_parameters(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o;
    small_two(&s, 5, 20, 3);
    ((rv_neuron_options *)s.layers[1].options)->learn = (char *)(uintptr_t) "beta threshold";
    open_optimizer(&s, "sgd", 100, &o);
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    OK(rv_net_init(s.net, block));
    size_t beta = rv_net_tensor_find(s.net, "lif1.beta")->offset;
    size_t threshold = rv_net_tensor_find(s.net, "lif1.threshold")->offset;
    gradient[beta] = -1, gradient[threshold] = 1;
    OK(rv_optimizer_update(o, &s.device, NULL, block, gradient, 1));
    assert_true(block[beta] <= 1 && block[beta] > 0.99f);
    assert_true(block[threshold] > 0 && block[threshold] < 0.01f);
    for (size_t k = 1; k < 16; k++)
        assert_true(block[beta + k] == 0 && block[threshold + k] == 0);
    gradient[beta] = 1;
    OK(rv_optimizer_update(o, &s.device, NULL, block, gradient, 1));
    assert_true(block[beta] == 0);
    rv_optimizer_destroy(o);
    small_finish(&s);
}

static void slots_are_those_the_rules_write(void **state) {
    (void)state;
    static const struct {
        const char *name, *option;
        double value;
        int slots;
        const char *first;
    } rows[] = {
        {"sgd", "momentum", 0, 0, NULL},    {"sgd", "momentum", 0.9, 1, "momentum"},
        {"adam", "beta1", 0.9, 2, "m"},     {"adamw", "beta1", 0.9, 2, "m"},
        {"rmsprop", "momentum", 0, 1, "v"}, {"rmsprop", "momentum", 0.9, 2, "v"},
        {"rmsprop", "centered", 1, 3, "v"},
    };
    small s = {0};
    small_two(&s, 5, 20, 3);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        rv_optimizer *o;
        open_optimizer(&s, rows[k].name, 0.1, &o);
        rv_optimizer_destroy(o);
        real_option(&s.train.optimizer, rows[k].option, rows[k].value);
        OK(rv_optimizer_create(s.net, &s.train, 100, &o));
        assert_int_equal(rv_optimizer_slots(o), rows[k].slots);
        if (rows[k].first) assert_string_equal(rv_optimizer_slot_name(o, 0), rows[k].first);
        for (int j = 0; j < rows[k].slots; j++)
            assert_non_null(rv_optimizer_slot(o, j));
        rv_optimizer_destroy(o);
    }
    small_finish(&s);
}

/* A trainer resumed from slots and step goes on with the same bits. */
static void resumed_state_continues_with_the_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"sgd", "adam", "adamw", "rmsprop"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        small s = {0};
        rv_optimizer *whole, *rest;
        small_two(&s, 5, 20, 3);
        s.train.schedule = small_choice(&s, rv_schedule_table(), "cosine");
        open_optimizer(&s, names[k], 0.1, &whole);
        size_t n = s.net->n_trained;
        float *a = small_memory(&s, n, sizeof *a), *b = small_memory(&s, n, sizeof *b);
        float *gradient = small_memory(&s, n, sizeof *gradient);
        for (int step = 0; step < 6; step++) {
            for (size_t i = 0; i < n; i++)
                gradient[i] = (float)small_random((uint64_t)step, i) - 0.5f;
            if (step == 3) {
                OK(rv_optimizer_create(s.net, &s.train, 100, &rest));
                memcpy(b, a, n * sizeof *a);
                for (int j = 0; j < rv_optimizer_slots(rest); j++)
                    memcpy(rv_optimizer_slot(rest, j), rv_optimizer_slot(whole, j), n * sizeof *a);
                rv_optimizer_step_set(rest, rv_optimizer_step(whole));
            }
            OK(rv_optimizer_update(whole, &s.device, NULL, a, gradient, 1));
            if (step >= 3) OK(rv_optimizer_update(rest, &s.device, NULL, b, gradient, 1));
        }
        assert_memory_equal(a, b, n * sizeof *a);
        assert_true(a[7] != 0);
        rv_optimizer_destroy(whole);
        rv_optimizer_destroy(rest);
        small_finish(&s);
    }
}

/* ---- rate schedules ---------------------------------------------------------------------- */
static double rate_at(const rv_choice *schedule, double lr, int step, int total, double *momentum) {
    double rate = -1;
    OK(rv_schedule_rate(schedule, lr, step, total, &rate, momentum));
    return rate;
}

static void cosine_is_the_closed_form(void **state) {
    (void)state;
    small s = {0};
    rv_choice cosine = small_choice(&s, rv_schedule_table(), "cosine");
    real_option(&cosine, "min", 0.02);
    for (int k = 0; k <= 40; k++) {
        double want = 0.02 + (0.3 - 0.02) * 0.5 * (1 + cos(M_PI * k / 40));
        assert_true(fabs(rate_at(&cosine, 0.3, k, 40, NULL) - want) < 1e-15);
    }
    small_finish(&s);
}

static void step_and_linear_are_their_closed_forms(void **state) {
    (void)state;
    small s = {0};
    rv_choice step = small_choice(&s, rv_schedule_table(), "step");
    rv_choice linear = small_choice(&s, rv_schedule_table(), "linear");
    real_option(&step, "every", 6), real_option(&step, "factor", 0.5);
    real_option(&linear, "start", 0.1), real_option(&linear, "end", 0.7);
    const double falls[] = {0.4, 0.2, 0.1, 0.05};
    for (int k = 0; k < 24; k++) {
        assert_true(fabs(rate_at(&step, 0.4, k, 24, NULL) - falls[k / 6]) < 1e-15);
        double share = k < 10 ? 0.1 + 0.06 * k : 0.7;
        assert_true(fabs(rate_at(&linear, 0.4, k, 10, NULL) - 0.4 * share) < 1e-15);
    }
    small_finish(&s);
}

static void one_cycle_rises_to_the_rate_and_falls_below_its_begin(void **state) {
    (void)state;
    small s = {0};
    rv_choice cycle = small_choice(&s, rv_schedule_table(), "one_cycle");
    double momentum = 0;
    assert_true(fabs(rate_at(&cycle, 0.5, 0, 100, &momentum) - 0.5 / 25) < 1e-12);
    assert_true(fabs(momentum - 0.95) < 1e-12);
    assert_true(fabs(rate_at(&cycle, 0.5, 29, 100, &momentum) - 0.5) < 1e-12);
    assert_true(fabs(momentum - 0.85) < 1e-12);
    assert_true(fabs(rate_at(&cycle, 0.5, 99, 100, &momentum) - 0.5 / 25 / 1e4) < 1e-12);
    assert_true(fabs(momentum - 0.95) < 1e-12);
    for (int k = 1; k < 100; k++)
        assert_true((rate_at(&cycle, 0.5, k, 100, NULL) > rate_at(&cycle, 0.5, k - 1, 100, NULL)) ==
                    (k <= 29));
    small_finish(&s);
}

static void warmup_comes_before_the_schedule(void **state) {
    (void)state;
    small s = {0};
    rv_choice cosine = small_choice(&s, rv_schedule_table(), "cosine");
    real_option(&cosine, "warmup", 5);
    for (int k = 0; k < 5; k++)
        assert_true(fabs(rate_at(&cosine, 1, k, 20, NULL) - (0.1 + 0.18 * k)) < 1e-15);
    for (int k = 5; k < 20; k++)
        assert_true(fabs(rate_at(&cosine, 1, k, 20, NULL) - (1 + cos(M_PI * (k - 5) / 15)) / 2) <
                    1e-15);
    small_finish(&s);
}

static void plateau_falls_after_patience_and_not_below_min(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o;
    small_two(&s, 5, 20, 3);
    s.train.schedule = small_choice(&s, rv_schedule_table(), "plateau");
    real_option(&s.train.schedule, "patience", 2);
    real_option(&s.train.schedule, "min", 0.05);
    open_optimizer(&s, "sgd", 1, &o);
    const double losses[] = {3, 2, 2, 2, 1.99999, 1.5, 1.5, 1, NAN, NAN, NAN, 1, 1, 1};
    const double rates[] = {1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05};
    for (int k = 0; k < 14; k++) {
        rv_optimizer_epoch(o, losses[k]);
        if (!(fabs(rv_optimizer_rate(o) - rates[k]) < 1e-12))
            fail_msg("after epoch %d: %g, wanted %g", k, rv_optimizer_rate(o), rates[k]);
    }
    assert_true(rv_optimizer_plateau(o)->best == 1);
    rv_optimizer_destroy(o);
    small_finish(&s);
}

static void one_cycle_moves_the_momentum_of_the_update(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o;
    small_two(&s, 5, 20, 3);
    s.train.schedule = small_choice(&s, rv_schedule_table(), "one_cycle");
    open_optimizer(&s, "sgd", 1, &o);
    rv_optimizer_destroy(o);
    real_option(&s.train.optimizer, "momentum", 0.5);
    OK(rv_optimizer_create(s.net, &s.train, 100, &o));
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    gradient[0] = 1;
    OK(rv_optimizer_update(o, &s.device, NULL, block, gradient, 1));
    OK(rv_optimizer_update(o, &s.device, NULL, block, gradient, 1));
    double momentum = 0;
    rate_at(&s.train.schedule, 1, 1, 100, &momentum);
    assert_true(fabs((double)rv_optimizer_slot(o, 0)[0] - (momentum + 1)) < 1e-6);
    rv_optimizer_destroy(o);
    small_finish(&s);
}

/* Kosson et al. 2021: from batches of 20 to single samples. A schedule goes on as it was. */
static void share_keeps_what_a_sample_does(void **state) {
    (void)state;
    double rate = 0.1, momentum = 0.9;
    rv_optimizer_share(0.05, &rate, &momentum);
    assert_true(fabs(momentum - 0.994746) < 1e-6 && fabs(rate - 2.627e-4) < 1e-7);
    rate = 0.1, momentum = 1;
    rv_optimizer_share(0.5, &rate, &momentum);
    assert_true(momentum == 1 && fabs(rate - 0.025) < 1e-12);
    small s = {0};
    rv_optimizer *o;
    small_two(&s, 5, 20, 3);
    s.train.share = 0.05;
    s.train.schedule = small_choice(&s, rv_schedule_table(), "step");
    real_option(&s.train.schedule, "every", 1);
    real_option(&s.train.schedule, "factor", 0.1);
    open_optimizer(&s, "sgd", 0.1, &o);
    rv_optimizer_destroy(o);
    real_option(&s.train.optimizer, "momentum", 0.9);
    OK(rv_optimizer_create(s.net, &s.train, 100, &o));
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    float *view = small_memory(&s, s.net->n_all, sizeof *view);
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    const rv_late late = {.slow = 1, .forward = {RV_LOOK_MOMENTUM, 2, view}};
    double w = 0, v = 0, m = pow(0.9, 0.05), first = 0.1 * 0.05 * (1 - m) / 0.1;
    gradient[0] = 1;
    for (int k = 0; k < 3; k++) {
        double now = first * pow(0.1, k);
        assert_true(fabs(rv_optimizer_rate(o) / now - 1) < 1e-12);
        OK(rv_optimizer_update_late(o, &s.device, NULL, &late, block, gradient, 1));
        v = m * v + 1, w -= now * v;
        assert_true(fabs((double)block[0] / w - 1) < 1e-5);
        double ahead = w - now * (0.1 * m + 0.01 * m * m) * v;
        assert_true(fabs((double)view[0] / ahead - 1) < 1e-5);
    }
    rv_optimizer_destroy(o);
    small_finish(&s);
}

/* Of the first map, whose input wants no adjoint, B reads no weights: nothing is made of them. Its
 * update and what forward sees are as ever. */
static void backward_views_are_made_of_what_backward_reads(void **state) {
    (void)state;
    small s = {0};
    rv_optimizer *o;
    small_two(&s, 5, 20, 3);
    open_optimizer(&s, "sgd", 0.5, &o);
    float *block = small_memory(&s, s.net->n_all, sizeof *block);
    float *blocks = small_memory(&s, 3 * s.net->n_all, sizeof *blocks);
    float *trend = blocks, *forward = trend + s.net->n_all, *backward = forward + s.net->n_all;
    float *gradient = small_memory(&s, s.net->n_trained, sizeof *gradient);
    const rv_late late = {.slow = 1,
                          .trend = trend,
                          .keep = 0.75,
                          .forward = {RV_LOOK_STEP, 2, forward},
                          .backward = {RV_LOOK_TREND, 2, backward}};
    for (size_t i = 0; i < s.net->n_trained; i++)
        gradient[i] = 1;
    OK(rv_optimizer_update_late(o, &s.device, NULL, &late, block, gradient, 1));
    for (int k = 0; k < s.net->tensor_count; k++) {
        const rv_tensor *tensor = &s.net->tensors[k];
        bool first = strncmp(tensor->name, "fc1.", 4) == 0;
        for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            assert_true(block[i] == -0.5f && forward[i] == -1.5f);
            assert_true(trend[i] == (first ? 0 : -0.125f));
            assert_true(backward[i] == (first ? 0 : -0.25f)); /* w - 2*trend */
        }
    }
    rv_optimizer_destroy(o);
    small_finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_descent_moves_every_trained_value),
        cmocka_unit_test(groups_take_their_own_rate),
        cmocka_unit_test(group_without_tensors_is_refused),
        cmocka_unit_test(limits_hold_for_neuron_parameters),
        cmocka_unit_test(slots_are_those_the_rules_write),
        cmocka_unit_test(resumed_state_continues_with_the_same_bits),
        cmocka_unit_test(cosine_is_the_closed_form),
        cmocka_unit_test(step_and_linear_are_their_closed_forms),
        cmocka_unit_test(one_cycle_rises_to_the_rate_and_falls_below_its_begin),
        cmocka_unit_test(warmup_comes_before_the_schedule),
        cmocka_unit_test(plateau_falls_after_patience_and_not_below_min),
        cmocka_unit_test(one_cycle_moves_the_momentum_of_the_update),
        cmocka_unit_test(share_keeps_what_a_sample_does),
        cmocka_unit_test(backward_views_are_made_of_what_backward_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
