/* Descriptions: what is refused and with which words; blocks, tensors, their places and files. */
#include "tests/small.h"

static void refused(small *s, const char *words, int line) {
    s->net_desc.steps = 4;
    rv_net *net = NULL;
    rv_status status = rv_net_create(&s->net_desc, &net);
    rv_net_destroy(net);
    if (status != RV_CONFIG) fail_msg("status %d, wanted a refusal with \"%s\"", status, words);
    if (!strstr(rv_error_get()->message, words))
        fail_msg("\"%s\" is not in \"%s\"", words, rv_error_get()->message);
    assert_int_equal(rv_error_get()->line, line);
    small_finish(s);
}

static void accepted(small *s) {
    s->net_desc.steps = 4;
    OK(rv_net_create(&s->net_desc, &s->net));
}

static void name_twice_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    strcpy(s.layers[3].name, "lif1");
    refused(&s, "\"lif1\" is used twice", 4);
}

static void name_with_dash_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    strcpy(s.layers[1].name, "lif-1");
    refused(&s, "lif-1", 2);
}

static void from_unknown_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    s.layers[2].from[0] = "lif7", s.layers[2].from_count = 1;
    refused(&s, "takes from \"lif7\", but no layer has that name", 3);
}

static void from_later_layer_is_a_cycle(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    s.layers[0].from[0] = "lif1", s.layers[0].from_count = 1;
    refused(&s, "cycles are not allowed", 1);
}

static void layer_without_takers_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    s.layers[2].from[0] = "input", s.layers[2].from_count = 1;
    refused(&s, "nothing takes from layer \"lif1\"", 2);
}

static void neuron_on_spikes_is_refused_with_both_layers(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    s.layers[3].from[0] = "lif1", s.layers[3].from_count = 1;
    refused(&s,
            "layer \"lif2\" (lif) takes a current, put a linear layer before it, but \"lif1\" "
            "gives spikes [7]",
            4);
}

static void event_form_on_values_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    s.layers[0].form = RV_FORM_EVENT;
    refused(&s, "has form event and takes spikes, but \"input\" gives values [5]", 1);
}

static void values_per_unit_of_wrong_count_are_refused(void **state) {
    (void)state;
    small s = {0};
    float three[3] = {0.1f, 0.2f, 0.3f};
    small_two(&s, 5, 7, 3);
    ((rv_neuron_options *)s.layers[1].options)->beta = (rv_reals){3, three, three[0]};
    refused(&s, "has 7 units, but beta lists 3 values", 2);
}

static void learning_what_is_not_there_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    ((rv_neuron_options *)s.layers[1].options)->learn = "beta kappa";
    refused(&s, "cannot learn \"kappa\"", 2);
}

static void linear_without_units_is_refused(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 0, 3);
    refused(&s, "needs units", 1);
}

static void blocks_begin_at_maps(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 7, 3);
    accepted(&s);
    assert_int_equal(s.net->block_count, 2);
    assert_int_equal(s.net->block_first[0], 0);
    assert_int_equal(s.net->block_first[1], 2);
    assert_true(s.net->output_spikes);
    assert_int_equal(rv_net_layer_find(s.net, "fc2"), 2);
    assert_int_equal(rv_net_layer_find(s.net, "fc3"), -1);
    assert_int_equal(rv_net_layer_targets(s.net, 0), 35);
    assert_int_equal(rv_net_layer_targets(s.net, 1), 0);
    small_finish(&s);
}

static void tensors_are_ordered_trained_first_on_vectors(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 20, 3);
    s.layers[0].trainable = false;
    ((rv_neuron_options *)s.layers[3].options)->learn = "threshold";
    accepted(&s);
    const char *names[] = {"fc2.weight", "fc2.bias", "lif2.threshold", "fc1.weight", "fc1.bias"};
    size_t counts[] = {20 * 16, 16, 16, 5 * 32, 32}, at = 0;
    assert_int_equal(s.net->tensor_count, 5);
    for (int k = 0; k < 5; k++) {
        const rv_tensor *tensor = &s.net->tensors[k];
        assert_string_equal(tensor->name, names[k]);
        assert_int_equal(tensor->offset, at);
        assert_int_equal(tensor->offset % 16, 0);
        assert_int_equal(tensor->count, counts[k]);
        assert_int_equal(tensor->trained, k < 3);
        at += counts[k];
    }
    assert_int_equal(s.net->n_trained, 20 * 16 + 32);
    assert_int_equal(s.net->n_all, at);
    assert_int_equal(s.net->tensors[2].limit, RV_LIMIT_POSITIVE);
    small_finish(&s);
}

static void linear_weight_is_transposed_and_padded_with_zeros(void **state) {
    (void)state;
    small s = {0};
    small_two(&s, 5, 20, 3);
    accepted(&s);
    const rv_tensor *weight = rv_net_tensor_find(s.net, "fc1.weight");
    float *block = small_memory(&s, s.net->n_all, sizeof *block), file[100], back[100];
    for (size_t k = 0; k < s.net->n_all; k++)
        block[k] = NAN;
    for (int k = 0; k < 100; k++)
        file[k] = (float)k + 1;
    assert_int_equal(rv_tensor_elements(weight), 100);
    rv_tensor_import(weight, file, block);
    for (int i = 0; i < 5; i++)
        for (int o = 0; o < 32; o++)
            assert_true(block[weight->offset + (size_t)(i * 32 + o)] ==
                        (o < 20 ? file[o * 5 + i] : 0));
    rv_tensor_export(weight, block, back);
    assert_memory_equal(file, back, sizeof file);
    small_finish(&s);
}

static void decay_is_stored_as_it_was_given(void **state) {
    (void)state;
    static const struct {
        const char *kind, *learn;
        double beta, tau;
        int decay;
        const char *tensor;
        double stored;
        rv_limit limit;
    } cases[] = {
        {"lif", "beta", 0.9, NAN, 0, "lif1.beta", 0.9, RV_LIMIT_UNIT},
        {"lif", "tau", 0.9, 4, 0, "lif1.tau", 4, RV_LIMIT_POSITIVE},
        {"lif", "beta", 0.9, 4, 1, "lif1.tau", 4, RV_LIMIT_POSITIVE},
        {"lif", "w", 0.75, NAN, 0, "lif1.w", -1.0986122886681098, RV_LIMIT_NONE},
        {"plif", "beta", 0.9, 4, 0, "lif1.w", -1.0986122886681098, RV_LIMIT_NONE},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        small s = {0};
        s.net_desc.input = (rv_shape){1, {5}};
        small_linear(&s, "fc1", 20, true);
        rv_neuron_options *options = small_neuron(&s, "lif1", cases[k].kind, cases[k].beta);
        small_real(&options->tau, cases[k].tau);
        options->decay = cases[k].decay;
        options->learn = (char *)(uintptr_t)cases[k].learn;
        accepted(&s);
        const rv_tensor *tensor = rv_net_tensor_find(s.net, cases[k].tensor);
        if (!tensor) fail_msg("no tensor %s", cases[k].tensor);
        assert_int_equal(tensor->limit, cases[k].limit);
        float *block = small_memory(&s, s.net->n_all, sizeof *block);
        OK(rv_net_init(s.net, block));
        assert_true(fabs((double)block[tensor->offset] - cases[k].stored) < 1e-6);
        small_finish(&s);
    }
}

static void description_line_names_what_runs(void **state) {
    (void)state;
    small s = {0};
    char line[256];
    small_two(&s, 5, 20, 3);
    accepted(&s);
    rv_net_describe(s.net, line, sizeof line);
    assert_string_equal(line, "neurons: subtract, same step, >=, input x1, reset detached");
    rv_net_destroy(s.net);
    ((rv_neuron_options *)s.layers[3].options)->reset = RV_RESET_ZERO;
    ((rv_neuron_options *)s.layers[3].options)->compare = 1;
    accepted(&s);
    rv_net_describe(s.net, line, sizeof line);
    assert_string_equal(line, "neurons: subtract, same step, >=, input x1, reset detached; from "
                              "lif2 on: zero, same step, >, input x1, reset detached");
    small_finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(name_twice_is_refused),
        cmocka_unit_test(name_with_dash_is_refused),
        cmocka_unit_test(from_unknown_is_refused),
        cmocka_unit_test(from_later_layer_is_a_cycle),
        cmocka_unit_test(layer_without_takers_is_refused),
        cmocka_unit_test(neuron_on_spikes_is_refused_with_both_layers),
        cmocka_unit_test(event_form_on_values_is_refused),
        cmocka_unit_test(values_per_unit_of_wrong_count_are_refused),
        cmocka_unit_test(learning_what_is_not_there_is_refused),
        cmocka_unit_test(linear_without_units_is_refused),
        cmocka_unit_test(blocks_begin_at_maps),
        cmocka_unit_test(tensors_are_ordered_trained_first_on_vectors),
        cmocka_unit_test(linear_weight_is_transposed_and_padded_with_zeros),
        cmocka_unit_test(decay_is_stored_as_it_was_given),
        cmocka_unit_test(description_line_names_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
