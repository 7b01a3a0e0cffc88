/* The sequential oracle: without delay it is the plain trainer, whatever the cut; its modes differ
 * from it and from each other where they should. That it follows the published rules is shown by
 * `make golden` (delays.h5). */
#include "tests/pipes.h"
#include "pipeline/oracle.h"

enum { UPDATES = 12 };

/* A delayed description from words: "pb gc lwp_v". */
static rv_delay_desc desc_of(const char *words) {
    rv_delay_desc desc = {0};
    char copy[64], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    char *word = strtok_r(copy, " ", &rest);
    desc.mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), word);
    if (!desc.mode && strcmp(word, "sync") != 0) fail_msg("no mode %s", word);
    while ((word = strtok_r(NULL, " ", &rest)))
        OK(rv_delay_add(&desc, word, NULL, 0));
    return desc;
}

static rv_oracle *oracle_open(small *s, const rv_delay_desc *desc, int stages, int *first) {
    rv_oracle *oracle = NULL;
    for (int k = 0; k <= stages; k++)
        first[k] = rv_cut(k, stages, s->net->layer_count);
    OK(rv_delay_check(desc, &s->train));
    const rv_oracle_desc how = {.net = s->net,
                                .device = &s->device,
                                .encoder = &s->encoder,
                                .loss = &s->loss,
                                .train = &s->train,
                                .total_steps = 100,
                                .delay = desc,
                                .stages = stages,
                                .first = first};
    OK(rv_oracle_create(&how, &oracle));
    return oracle;
}

/* Weights after some updates, [n_all]; freed by the small. */
static float *run(small *s, const char *words, int stages) {
    int first[SMALL_LAYERS + 1];
    const rv_delay_desc desc = desc_of(words);
    rv_oracle *oracle = oracle_open(s, &desc, stages, first);
    float *block = small_memory(s, s->net->n_all + 1, sizeof *block);
    for (int u = 0; u < UPDATES; u++) {
        rv_step_result result;
        rv_batch batch = s->batch;
        batch.epoch = (uint32_t)u;
        OK(rv_oracle_step(oracle, &batch, &result));
        assert_true(isfinite(result.loss) && result.B == batch.B);
    }
    rv_oracle_read(oracle, block, NULL);
    rv_oracle_destroy(oracle);
    return block;
}

static void oracle_without_delay_is_the_plain_trainer(void **state) {
    (void)state;
    for (int n = 0; n < PIPE_NETS; n++)
        for (int k = 0; k < 4; k++) {
            small s;
            /* A mode whose only stage is the last has no delay either, with one chunk. */
            const pipe_way way = {.micros = 1 + k % 2, .chunks = k < 2 ? 1 : 3};
            pipe_open(&s, &pipe_nets[n], &way);
            float *got = run(&s, "sync", k == 0 ? 1 : 3);
            float *other = k < 2 ? run(&s, "pb", 1) : got;
            for (int u = 0; u < UPDATES; u++) {
                rv_step_result result;
                rv_batch batch = s.batch;
                batch.epoch = (uint32_t)u;
                OK(rv_serial_step(s.serial, &batch, &result));
            }
            const float *want = rv_version_block(rv_serial_version(s.serial));
            pipe_same(pipe_nets[n].name, &s, want, got, s.net->n_all);
            pipe_same(pipe_nets[n].name, &s, want, other, s.net->n_all);
            small_finish(&s);
        }
}

static void oracle_modes_differ_and_aliases_do_not(void **state) {
    (void)state;
    static const char *const words[] = {"sync",     "pb",     "stale", "pipedream", "2bw",
                                        "pb lwp_w", "pb ema", "ddg",   "ddg_code"};
    enum { COUNT = sizeof words / sizeof *words };
    float *block[COUNT];
    small s;
    const pipe_way way = {.micros = 1, .chunks = 1};
    pipe_open(&s, &pipe_nets[0], &way);
    for (int k = 0; k < COUNT; k++)
        block[k] = run(&s, words[k], 4);
    size_t bytes = s.net->n_all * sizeof(float);
    for (int k = 0; k < 7; k++)
        for (int j = 0; j < k; j++)
            if (memcmp(block[k], block[j], bytes) == 0) fail_msg("%s is %s", words[k], words[j]);
    assert_memory_equal(block[7], block[3], bytes);
    assert_memory_equal(block[8], block[2], bytes);
    small_finish(&s);
}

/* ---- by hand ---------------------------------------------------------------------------- */

/* One update under versions kept without end: weights of the layers of each stage from where the
 * rule says, forward and backward, into one gradient and one optimiser for the whole network. */
typedef struct hand {
    small *s;
    rv_version *forward, *back, *newest;
    float *gradient, *statistics;
    float *history[UPDATES + 1]; /* [n_all] of the network after so many updates */
    rv_optimizer *optimizer;
    rv_state *state, *adjoint;
    rv_tape *tape;
    rv_loss *loss;
    rv_arena arena;
} hand;

static void hand_open(hand *h, small *s) {
    const rv_range whole = rv_net_range(s->net, 0, s->net->layer_count);
    *h = (hand){.s = s};
    OK(rv_version_create(s->net, &s->device, &h->forward));
    OK(rv_version_create(s->net, &s->device, &h->back));
    OK(rv_version_create(s->net, &s->device, &h->newest));
    OK(rv_optimizer_create_range(&whole, &s->device, &s->train, 100, &h->optimizer));
    OK(rv_state_create(s->net, &s->device, PIPE_BATCH, &h->state));
    OK(rv_state_create(s->net, &s->device, PIPE_BATCH, &h->adjoint));
    OK(rv_tape_create(s->net, &s->device, PIPE_STEPS, PIPE_BATCH, &h->tape));
    OK(rv_loss_create(&s->loss, s->net, &s->device, PIPE_BATCH, &h->loss));
    for (int u = 0; u <= UPDATES; u++)
        h->history[u] = small_memory(s, s->net->n_all, sizeof(float));
    h->gradient = small_memory(s, s->net->n_trained, sizeof(float));
    h->statistics = small_memory(s, PIPE_STEPS * rv_net_statistics(s->net) + 1, sizeof(float));
    OK(rv_net_init(s->net, h->history[0]));
}

static void hand_close(hand *h) {
    rv_arena_finish(&h->arena);
    rv_loss_destroy(h->loss);
    rv_tape_destroy(h->tape);
    rv_state_destroy(h->adjoint);
    rv_state_destroy(h->state);
    rv_optimizer_destroy(h->optimizer);
    rv_version_destroy(h->newest);
    rv_version_destroy(h->back);
    rv_version_destroy(h->forward);
}

/* Tensors of a stage's layers, out of a block of the whole network. */
static void hand_take(const hand *h, const float *from, int first, int last, rv_version *to) {
    const rv_net *net = h->s->net;
    for (int k = 0; k < net->tensor_count; k++) {
        const rv_tensor *tensor = &net->tensors[k];
        if (tensor->layer < first || tensor->layer >= last) continue;
        memcpy(rv_version_block(to) + tensor->offset, from + tensor->offset,
               tensor->count * sizeof *from);
    }
}

static void hand_step(hand *h, int u, const rv_batch *batch) {
    small *s = h->s;
    rv_loss_result result;
    rv_pass pass = {.net = s->net,
                    .device = &s->device,
                    .arena = &h->arena,
                    .last = s->net->layer_count,
                    .version = h->forward,
                    .back = h->back,
                    .state = h->state,
                    .adjoint = h->adjoint,
                    .tape = h->tape,
                    .gradient = h->gradient,
                    .B = batch->B,
                    .t1 = PIPE_STEPS,
                    .chunks = 1,
                    .batch = batch,
                    .training = true,
                    .statistics = h->statistics};
    rv_signal *input = rv_tape_signal(h->tape, -1);
    memset(h->gradient, 0, sizeof(float) * s->net->n_trained);
    OK(rv_version_derive(h->forward, PIPE_BATCH));
    OK(rv_version_derive(h->back, PIPE_BATCH));
    OK(rv_state_clear(h->state, NULL));
    OK(rv_state_clear(h->adjoint, NULL));
    *input = rv_tape_memory(h->tape, -1, PIPE_STEPS, batch->B);
    OK(rv_encode(&s->encoder, &s->device, NULL, batch, 0, batch->B, s->net_desc.seed, 0, PIPE_STEPS,
                 &h->arena, input));
    OK(rv_net_forward(&pass));
    OK(rv_loss_observe(h->loss, &pass));
    OK(rv_loss_finish(h->loss, &pass, batch->B, &result, NULL));
    OK(rv_loss_adjoint(h->loss, &pass));
    OK(rv_net_backward(&pass));
    OK(rv_net_weight(&pass));
    rv_arena_reset(&h->arena);
    float *newest = rv_version_block(h->newest);
    memcpy(newest, h->history[u], sizeof *newest * s->net->n_all);
    OK(rv_optimizer_update(h->optimizer, &s->device, NULL, newest, h->gradient, 1));
    rv_net_statistics_apply(s->net, 0, s->net->layer_count, h->statistics, batch->B, h->newest);
    memcpy(h->history[u + 1], newest, sizeof *newest * s->net->n_all);
}

static void oracle_with_delay_is_the_same_by_hand(void **state) {
    (void)state;
    enum { STAGES = 3 };
    static const struct {
        const char *mode;
        int hops;   /* of the delay, for every stage below */
        bool stash; /* backward under the weights of its forward */
    } cases[] = {{"pb", 2, false}, {"stale", 1, false}, {"pipedream", 1, true}};
    for (int n = 0; n < PIPE_NETS; n++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            small s;
            hand h;
            const pipe_way way = {.micros = 1, .chunks = 1};
            pipe_open(&s, &pipe_nets[n], &way);
            float *got = run(&s, cases[k].mode, STAGES);
            hand_open(&h, &s);
            for (int u = 0; u < UPDATES; u++) {
                rv_batch batch = s.batch;
                batch.epoch = (uint32_t)u;
                for (int j = 0; j < STAGES; j++) {
                    int first = rv_cut(j, STAGES, s.net->layer_count);
                    int last = rv_cut(j + 1, STAGES, s.net->layer_count);
                    int age = cases[k].hops * (STAGES - 1 - j), from = u > age ? u - age : 0;
                    hand_take(&h, h.history[from], first, last, h.forward);
                    hand_take(&h, h.history[cases[k].stash ? from : u], first, last, h.back);
                }
                hand_step(&h, u, &batch);
            }
            char what[64];
            snprintf(what, sizeof what, "%s, %s", pipe_nets[n].name, cases[k].mode);
            pipe_same(what, &s, h.history[UPDATES], got, s.net->n_all);
            hand_close(&h);
            small_finish(&s);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_without_delay_is_the_plain_trainer),
        cmocka_unit_test(oracle_modes_differ_and_aliases_do_not),
        cmocka_unit_test(oracle_with_delay_is_the_same_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
