/* What is known of the values a layer holds: which fit into bf16, which are membranes. */
#include "snn/layers.h"
#include "tests/small.h"

enum { CLASSES = 4, STEPS = 7 };

static void *layer(small *s, const char *name, const char *kind) {
    return small_layer(s, name, small_choice(s, rv_layer_table(), kind))->options;
}

static void conv(small *s, const char *name) {
    rv_conv_options *o = layer(s, name, "conv2d");
    o->out_channels = 4;
    o->kernel_size[0] = o->kernel_size[1] = 3;
    o->padding[0] = o->padding[1] = 1;
}

static void pool(small *s, const char *name, int side) {
    rv_pool_options *o = layer(s, name, "avg_pool");
    o->kernel_size[0] = o->kernel_size[1] = side;
}

/* Spikes, and means of 2, 4, 8, ... of them; a mean of nine has no end. */
static void convolutions_know_what_bf16_holds(void **state) {
    (void)state;
    for (int side = 2; side <= 4; side++) {
        small s = {0};
        s.net_desc.input = (rv_shape){3, {1, 12, 12}};
        s.net_desc.steps = 1;
        conv(&s, "a");
        small_neuron(&s, "lif", "lif", 0.9);
        conv(&s, "b");
        small_neuron(&s, "lif2", "lif", 0.9);
        pool(&s, "pool", side);
        conv(&s, "c");
        pool(&s, "values", 2);
        conv(&s, "d");
        OK(rv_net_create(&s.net_desc, &s.net));
        const bool want[] = {false, true, side != 3, false};
        for (int l = 0, k = 0; l < s.net->layer_count; l++)
            if (s.net->layers[l].kind == &rv_kind_conv2d)
                assert_int_equal(((const rv_conv *)s.net->layers[l].plan)->bf16, want[k++]);
        small_finish(&s);
    }
}

static rv_status membranes_count(void *self, const rv_pass *pass) {
    int *wrong = self;
    for (int l = 0; l < pass->net->layer_count; l++)
        *wrong += (rv_tape_membrane(pass->tape, l).data != NULL) !=
                  (pass->net->layers[l].kind == &rv_kind_neuron);
    return RV_OK;
}

/* What other layers keep on a tape is no membrane, and has not its size. */
static void membranes_are_those_of_neurons(void **state) {
    (void)state;
    small s = {0};
    int wrong = 0;
    const rv_observer observer = {&wrong, membranes_count};
    rv_step_result result;
    s.net_desc.input = (rv_shape){3, {1, 6, 6}};
    conv(&s, "conv");
    layer(&s, "norm", "batch_norm");
    small_neuron(&s, "lif", "lif", 0.9);
    layer(&s, "drop", "dropout");
    layer(&s, "flat", "flatten");
    small_linear(&s, "fc", CLASSES, true);
    small_neuron(&s, "out", "lif", 0.9);
    s.train.optimizer = small_choice(&s, rv_optimizer_table(), "adam");
    small_batch(&s, 24, 0, CLASSES, 3);
    small_open(&s, "constant", STEPS, 2, STEPS, 1);
    rv_serial_observe(s.serial, &observer);
    OK(rv_serial_step(s.serial, &s.batch, &result));
    assert_int_equal(wrong, 0);
    small_finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_know_what_bf16_holds),
        cmocka_unit_test(membranes_are_those_of_neurons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
