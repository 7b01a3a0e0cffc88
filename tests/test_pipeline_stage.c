/*
 * A pipeline gives the bits of the plain trainer: every schedule, stages, micro-batches, chunks,
 * slots, threads and cuts, for networks that are hard to cut.
 */
#include "tests/pipes.h"
#include "tests/slow_link.h"

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

/* More stages than micro-batches, more micro-batches than samples of the last step, any chunks. */
static void five_to_eight_stages_give_the_bits_of_one_device(void **state) {
    (void)state;
    static const int micros[] = {1, 3, 5}, nets[] = {0, 3, 5};
    const pipe_way one = {.schedule = "serial", .stages = 1, .micros = 3, .chunks = 5};
    pipe_check(&pipe_nets[2], &one);
    for (int k = 0; k < SCHEDULES; k++)
        for (int S = 5; S <= 8; S++)
            for (int m = 0; m < 3; m++) {
                const pipe_way way = {.schedule = schedules[k],
                                      .stages = S,
                                      .micros = micros[m],
                                      .chunks = 1 + (2 * k + S + 3 * m) % PIPE_STEPS,
                                      .threads = 1 + (k + S) % 2,
                                      .clip = m == 1 ? 0.05 : 0};
                pipe_check(&pipe_nets[nets[(k + S + m) % 3]], &way);
            }
}

/* Two stages, cut before every layer; then three, at all pairs of places. The thread sanitizer is
 * slow, and one pair is to it as good as another: there every fourth. */
static void every_cut_of_every_network_gives_the_bits_of_one_device(void **state) {
    (void)state;
    for (int n = 0; n < PIPE_NETS; n++) {
        small s;
        pipe_way way = {.schedule = "1f1b", .stages = 2, .micros = 2, .chunks = 3};
        pipe_open(&s, &pipe_nets[n], &way);
        int layers = s.net->layer_count;
        small_finish(&s);
#ifdef __SANITIZE_THREAD__
        const int every = 4;
#else
        const int every = 1;
#endif
        for (int a = 1; a < layers; a++)
            for (int b = a; b < layers; b += every) {
                const int two[] = {0, a, layers}, three[] = {0, a, b, layers};
                way.stages = a == b ? 2 : 3;
                way.first = a == b ? two : three;
                way.schedule = schedules[(a + b) % SCHEDULES];
                way.clip = (a + b) % 2 ? 0.05 : 0;
                pipe_check(&pipe_nets[n], &way);
            }
    }
}

/* ---- drivers, slots, threads, delays ----------------------------------------------------- */
static void eight_stages_run_with_every_number_of_slots(void **state) {
    (void)state;
    for (int k = 0; k < SCHEDULES; k++)
        for (int slots = 1; slots <= 5; slots += 2) {
            small s;
            rv_schedule schedule;
            const pipe_way way = {
                .schedule = schedules[k], .stages = 8, .micros = 2, .chunks = 3, .slots = slots};
            bool runs = pipe_schedule(&way, &schedule) == RV_OK;
            rv_schedule_finish(&schedule);
            if (!runs) continue; /* refused before it starts */
            pipe_open(&s, &pipe_nets[3 + slots % 2], &way);
            pipe_compare(&s, &way, "slots");
            small_finish(&s);
        }
}

static void any_order_of_the_stages_gives_the_same_bits(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        slow_plan plan = {.seed = seed};
        const rv_transport slow = {"slow", slow_open, &plan};
        const pipe_way way = {.schedule = schedules[seed % SCHEDULES],
                              .stages = 1 + (int)seed % 5,
                              .micros = 1 + (int)seed % 3,
                              .chunks = 1 + (int)(seed * 7) % PIPE_STEPS,
                              .slots = seed % 4 ? 0 : 3,
                              .driver = RV_DRIVER_SEEDED,
                              .seed = seed,
                              .clip = seed % 2 ? 0.1 : 0,
                              .transport = seed % 3 ? &slow : NULL};
        pipe_check(&pipe_nets[seed % PIPE_NETS], &way);
    }
}

static void late_messages_and_threads_of_a_stage_change_no_bits(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        slow_plan plan = {.seed = seed, .sleeps = true};
        const rv_transport slow = {"slow", slow_open, &plan};
        const pipe_way way = {.schedule = schedules[seed % SCHEDULES],
                              .stages = 2 + (int)seed % 3,
                              .micros = 2,
                              .chunks = 3,
                              .slots = 4,
                              .threads = 1 + (int)seed % 3,
                              .clip = seed % 2 ? 0.1 : 0,
                              .transport = &slow};
        pipe_check(&pipe_nets[seed % PIPE_NETS], &way);
    }
}

/* ---- what goes wrong --------------------------------------------------------------------- */
/* A label that no class has: the last stage meets it, the others wait for what never comes. */
static void first_error_stops_all_and_names_its_place(void **state) {
    (void)state;
    for (int driver = 0; driver < 2; driver++) {
        const pipe_way way = {.schedule = "1f1b",
                              .stages = 3,
                              .micros = 3,
                              .chunks = 2,
                              .slots = 4,
                              .driver = (rv_driver)driver};
        small s;
        int first[SMALL_LAYERS + 1];
        rv_schedule schedule;
        rv_step_result result;
        pipe_open(&s, &pipe_nets[0], &way);
        rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
        OK(rv_pipeline_step(pipeline, &s.batch, &result));
        ((int32_t *)(uintptr_t)s.batch.label)[PIPE_BATCH - 1] = 99;
        for (int again = 0; again < 2; again++) { /* and it stays so */
            assert_int_equal(rv_pipeline_step(pipeline, &s.batch, &result), RV_DATA);
            const char *message = rv_error_get()->message;
            if (!strstr(message, "stage 2, F2.0, layer \"last\": ") || !strstr(message, "label 99"))
                fail_msg("%s", message);
        }
        rv_pipeline_destroy(pipeline);
        rv_schedule_finish(&schedule);
        small_finish(&s);
    }
}

/* Any field of any head, and any link that breaks. */
static void spoilt_heads_and_broken_links_are_noticed(void **state) {
    (void)state;
    static const size_t fields[] = {
        offsetof(rv_head, magic),   offsetof(rv_head, kind),    offsetof(rv_head, micro),
        offsetof(rv_head, chunk),   offsetof(rv_head, version), offsetof(rv_head, bytes),
        offsetof(rv_head, samples),
    };
    for (size_t k = 0; k <= sizeof fields / sizeof *fields; k++)
        for (int at = 1; at <= 13; at += 3) {
            bool breaks = k == sizeof fields / sizeof *fields;
            slow_plan plan = {.spoil_at = breaks ? 0 : at,
                              .fail_at = breaks ? at : 0,
                              .spoil_byte = breaks ? 0 : fields[k]};
            const rv_transport slow = {"slow", slow_open, &plan};
            const pipe_way way = {.schedule = "1f1b",
                                  .stages = 3,
                                  .micros = 2,
                                  .chunks = 2,
                                  .driver = RV_DRIVER_SEEDED,
                                  .clip = 0.1,
                                  .transport = &slow};
            small s;
            int first[SMALL_LAYERS + 1];
            rv_schedule schedule;
            rv_step_result result;
            pipe_open(&s, &pipe_nets[0], &way);
            rv_pipeline *pipeline = pipe_make(&s, &way, first, &schedule);
            assert_int_equal(rv_pipeline_step(pipeline, &s.batch, &result),
                             breaks ? RV_PEER : RV_INTERNAL);
            if (!strstr(rv_error_get()->message, "stage ")) fail_msg("no place");
            rv_pipeline_destroy(pipeline);
            rv_schedule_finish(&schedule);
            small_finish(&s);
        }
}

/* Sums would have another order: refused before anything runs. */
static void lists_out_of_order_are_refused(void **state) {
    (void)state;
    const pipe_way way = {.schedule = "filldrain+2bp", .stages = 2, .micros = 2, .chunks = 2};
    static const double cost[2] = {1, 1};
    const rv_costs costs = {.f = cost, .b = cost, .w = cost};
    rv_schedule schedule;
    OK(rv_schedule_make(rv_generator_find(way.schedule), 2, 2, 2, 0, &costs, &schedule));
    assert_int_equal(rv_schedule_check_canonical(&schedule), RV_CONFIG); /* no update yet */
    OK(rv_schedule_add_updates(&schedule, 2, false));
    OK(rv_schedule_check_canonical(&schedule));
    for (int p = schedule.first[1]; p < schedule.first[2]; p++) {
        if (schedule.items[p].kind != RV_WORK_W) continue;
        rv_work other = schedule.items[p];
        schedule.items[p] = schedule.items[p + 1];
        schedule.items[p + 1] = other;
        break;
    }
    OK(rv_schedule_simulate(&schedule, &costs, NULL)); /* it could run */
    assert_int_equal(rv_schedule_check_canonical(&schedule), RV_CONFIG);
    assert_non_null(strstr(rv_error_get()->message, "W0.0 is out of order"));
    rv_schedule_finish(&schedule);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_bits_of_one_device),
        cmocka_unit_test(five_to_eight_stages_give_the_bits_of_one_device),
        cmocka_unit_test(every_cut_of_every_network_gives_the_bits_of_one_device),
        cmocka_unit_test(eight_stages_run_with_every_number_of_slots),
        cmocka_unit_test(any_order_of_the_stages_gives_the_same_bits),
        cmocka_unit_test(late_messages_and_threads_of_a_stage_change_no_bits),
        cmocka_unit_test(first_error_stops_all_and_names_its_place),
        cmocka_unit_test(spoilt_heads_and_broken_links_are_noticed),
        cmocka_unit_test(lists_out_of_order_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
