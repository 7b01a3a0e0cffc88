/*
 * Every set of corrections that goes together, under every optimiser with a form for it, through
 * the threaded stages: the bits of the oracle over 50 updates, one to six stages, links that are
 * late by random times. One such case after the other is numbered; short runs try every so many-th
 * and all single corrections and pairs, `make soak` tries all.
 */
#include "tests/flows.h"
#include "tests/scale.h"
#include "tests/slow_link.h"

enum { UPDATES = 50 };

static const struct {
    const char *name;
    int micros, chunks;
} modes[] = {{"pb", 1, 1}, {"stale", 1, 3}, {"pipedream", 1, 1}, {"2bw", 3, 1}};

/* Parameters with which all of a correction happens within the updates that are compared. */
static const struct {
    const char *name, *parameter;
    double value;
} short_ones[] = {{"t1", "steps", 16}, {"t3", "steps", 5}, {"scale", "batch", 24}};

/* Bit k of `set`: row k of the table. Whether they go together. */
static bool desc_of(const char *mode, unsigned set, const rv_train_desc *train, rv_delay_desc *desc,
                    char *words, size_t size) {
    const rv_table *table = rv_correction_table();
    int at = snprintf(words, size, "%s", mode);
    *desc = (rv_delay_desc){0};
    desc->mode = (const rv_delay_mode *)(const void *)rv_table_find(rv_delay_table(), mode);
    for (int k = 0; k < table->count; k++) {
        const char *name = rv_table_row(table, k)->name, *parameter = NULL;
        double value = 0;
        if (!(set >> k & 1)) continue;
        for (size_t i = 0; i < sizeof short_ones / sizeof *short_ones; i++)
            if (strcmp(name, short_ones[i].name) == 0)
                parameter = short_ones[i].parameter, value = short_ones[i].value;
        OK(rv_delay_add(desc, name, parameter, value));
        at += snprintf(words + at, size - (size_t)at, " %s", name);
    }
    return rv_delay_check(desc, train) == RV_OK;
}

static int bits_of(unsigned set) {
    int count = 0;
    for (; set; set &= set - 1)
        count++;
    return count;
}

static void flow_check(int number, const rv_delay_desc *delay, int mode, int stages, bool sgd,
                       const char *words) {
    slow_plan plan = {.seed = (uint64_t)number, .sleeps = number % 4 == 0};
    const rv_transport slow = {"slow", slow_open, &plan};
    char what[128];
    flow f;
    const pipe_way way = {.stages = stages,
                          .micros = modes[mode].micros,
                          .chunks = modes[mode].chunks,
                          .slots = 1 + number % 3,
                          .timeout = 20,
                          .sgd = sgd,
                          .driver = plan.sleeps ? RV_DRIVER_THREADS : RV_DRIVER_SEEDED,
                          .seed = (uint64_t)number,
                          .transport = &slow};
    snprintf(what, sizeof what, "%s, %s, %d stages", words, sgd ? "sgd" : "adam", stages);
    flow_open(&f, &pipe_nets[number % 5 == 4 ? 2 : 0], delay, &way);
    flow_run(&f, what, UPDATES, number % 3 == 0 ? 11 : 0);
    flow_finish(&f);
}

static void corrections_together_are_the_oracle(void **state) {
    (void)state;
    static const int every[] = {[0] = 1, [1] = 11, [2] = 37}; /* soak, test-long, test */
    const int step = every[stride() == 1 ? 0 : stride() == 10 ? 1 : 2];
    const int rows = rv_correction_table()->count;
    unsigned tried = 0;
    int number = 0;
    for (int sgd = 0; sgd < 2; sgd++)
        for (int mode = 0; mode < (int)(sizeof modes / sizeof *modes); mode++)
            for (unsigned set = 1; set < 1u << rows; set++) {
                small s = {0};
                rv_delay_desc delay;
                char words[96];
                if (sgd)
                    pipe_sgd(&s);
                else
                    s.train.optimizer = small_choice(&s, rv_optimizer_table(), "adam");
                bool fine = desc_of(modes[mode].name, set, &s.train, &delay, words, sizeof words);
                for (int p = 0; p < s.piece_count; p++)
                    rv_free(s.pieces[p]);
                for (int stages = 1; fine && stages <= FLOW_STAGES; stages++, number++) {
                    bool always = mode == 0 && bits_of(set) <= 2 && stages == 3 + number % 2;
                    if (number % step != 0 && !always) continue;
                    flow_check(number, &delay, mode, stages, sgd, words);
                    tried |= set;
                }
            }
    print_message("%d cases, every %d\n", number, step);
    assert_int_equal(tried, (1u << rows) - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corrections_together_are_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
