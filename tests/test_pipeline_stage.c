/*
 * A pipeline gives the bits of the plain trainer: every schedule, stages, micro-batches, chunks,
 * slots, threads and cuts, for networks that are hard to cut.
 */
#include "tests/pipes.h"

static const char *const schedules[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static void every_schedule_gives_the_bits_of_one_device(void **state) {
    (void)state;
    static const int chunks[] = {1, 2, 3, PIPE_STEPS};
    for (int k = 0; k < SCHEDULES; k++)
        for (int S = 1; S <= 4; S++)
            for (int M = 1; M <= 3; M++)
                for (int c = 0; c < 4; c++) {
                    const pipe_way way = {
                        .schedule = schedules[k], .stages = S, .micros = M, .chunks = chunks[c]};
                    pipe_check(&pipe_nets[(k + S + M + c) % 2], &way);
                }
}

/* Two stages, cut before every layer; then three, at all pairs of places. */
static void every_cut_of_every_network_gives_the_bits_of_one_device(void **state) {
    (void)state;
    for (int n = 0; n < PIPE_NETS; n++) {
        small s;
        pipe_way way = {.schedule = "1f1b", .stages = 2, .micros = 2, .chunks = 3};
        pipe_open(&s, &pipe_nets[n], &way);
        int layers = s.net->layer_count;
        small_finish(&s);
        for (int a = 1; a < layers; a++)
            for (int b = a; b < layers; b++) {
                const int two[] = {0, a, layers}, three[] = {0, a, b, layers};
                way.stages = a == b ? 2 : 3;
                way.first = a == b ? two : three;
                way.schedule = schedules[(a + b) % SCHEDULES];
                way.clip = (a + b) % 2 ? 0.05 : 0;
                pipe_check(&pipe_nets[n], &way);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_bits_of_one_device),
        cmocka_unit_test(every_cut_of_every_network_gives_the_bits_of_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
