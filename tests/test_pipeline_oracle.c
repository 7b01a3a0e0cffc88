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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_without_delay_is_the_plain_trainer),
        cmocka_unit_test(oracle_modes_differ_and_aliases_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
