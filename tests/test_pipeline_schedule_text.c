/* The text form: print and parse are inverses, errors say where. */
#include "tests/schedules.h"

static void same_schedule(const rv_schedule *a, const rv_schedule *b) {
    assert_string_equal(a->name, b->name);
    assert_true(a->stages == b->stages && a->micros == b->micros && a->chunks == b->chunks);
    assert_true(a->fused == b->fused && a->norm == b->norm && a->newest == b->newest);
    assert_true(a->slots == b->slots && a->group == b->group && a->kept == b->kept);
    assert_int_equal(a->workers, b->workers);
    assert_memory_equal(a->first, b->first, sizeof(int) * ((size_t)a->workers + 1));
    for (int p = 0; p < rv_schedule_count(a); p++) {
        const rv_work *i = &a->items[p], *j = &b->items[p];
        assert_true(same_work(i, j) && i->version == j->version);
    }
}

static void round_trip(const rv_schedule *x) {
    char *text = NULL, *again = NULL;
    rv_schedule y;
    assert_int_equal(rv_schedule_print(x, &text), RV_OK);
    if (rv_schedule_parse("plan", text, &y))
        fail_msg("%d:%d: %s\n%s", rv_error_get()->line, rv_error_get()->column,
                 rv_error_get()->message, text);
    same_schedule(x, &y);
    assert_int_equal(rv_schedule_print(&y, &again), RV_OK);
    assert_string_equal(text, again);
    rv_free(again);
    rv_free(text);
    rv_schedule_finish(&y);
}

static void text_print_parse_are_inverses(void **state) {
    (void)state;
    const rv_table *table = rv_generator_table();
    cost_data d;
    for (uint32_t seed = 0; seed < 300; seed++) {
        rv_schedule x;
        int row = (int)draw(seed, 1, (uint32_t)table->count), S = 1 + (int)draw(seed, 2, 8);
        int delay[8] = {2, 0, 1, 3, 1, 0, 0, 0};
        const rv_generator *it = (const void *)rv_table_row(table, row);
        if (it->one_stage) S = 1;
        make(it->row.name, S, 1 + (int)draw(seed, 3, 12), 1 + (int)draw(seed, 4, 12),
             (int)draw(seed, 5, 5), random_costs(&d, seed), &x);
        if (draw(seed, 6, 2))
            assert_int_equal(
                rv_schedule_add_updates(&x, 1 + (int)draw(seed, 7, 3), draw(seed, 8, 2)), RV_OK);
        if (x.group && draw(seed, 9, 2))
            assert_int_equal(rv_schedule_pin(&x, delay, draw(seed, 10, 2)), RV_OK);
        for (int p = 0; p < rv_schedule_count(&x); p += 7) /* as if by hand: any stage, version */
            x.items[p].stage = (uint16_t)draw(seed, (uint32_t)p, 70000), x.items[p].version = p;
        round_trip(&x);
        rv_schedule_finish(&x);
    }
}

static void item_print_parse_are_inverses(void **state) {
    (void)state;
    static const rv_work items[] = {
        {.kind = RV_WORK_F, .micro = 3, .version = RV_NO_VERSION},
        {.kind = RV_WORK_B, .micro = 0, .chunk = 65535, .version = 0},
        {.kind = RV_WORK_W, .micro = INT32_MAX, .chunk = 1, .version = INT32_MAX},
        {.kind = RV_WORK_BW, .micro = 10, .chunk = 20, .version = 30, .stage = 65535},
        {.kind = RV_WORK_U, .micro = 7, .version = RV_NO_VERSION},
        {.kind = RV_WORK_NORM, .micro = 7, .version = RV_NO_VERSION, .stage = 2},
    };
    static const char *const texts[] = {
        "F3.0", "B0.65535@0", "W2147483647.1@2147483647", "65535/BW10.20@30", "U7", "2/NORM7"};
    for (int i = 0; i < 6; i++) {
        char text[RV_WORK_TEXT];
        rv_work back;
        rv_work_print(&items[i], 0, text);
        assert_string_equal(text, texts[i]);
        assert_true(rv_work_parse(text, strlen(text), 0, &back));
        assert_true(same_work(&back, &items[i]) && back.version == items[i].version);
    }
    static const char *const bad[] = {
        "",     "F",        "F1",    "F1.",    "F01.0",      "F1.0@", "F1.0 ",   "X1.0",
        "U1.0", "F1.65536", "F-1.0", "1/",     "/F1.0",      "0",     "F1.0@-1", "W2147483648.0",
        "f1.0", "NORM",     "BW",    "B W1.0", "70000/F0.0", "F1.0x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rv_work work;
        if (rv_work_parse(bad[i], strlen(bad[i]), 0, &work)) fail_msg("\"%s\" was read", bad[i]);
    }
}

#define HEAD                                                                                       \
    "ranvier-schedule mine # by hand\nstages 1\nmicro_batches 1\nchunks 1\nfused 1\nslots 0\n"     \
    "group 0\nnorm 0\nversions 0\nnewest 0\nworkers 1\n"

static void text_by_hand_is_read(void **state) {
    (void)state;
    cost_data d;
    rv_schedule x;
    assert_int_equal(
        rv_schedule_parse("plan", HEAD "\n# the only list\nworker 0 F0.0\t#F9.9\r\n  BW0.0", &x),
        RV_OK);
    assert_string_equal(x.name, "mine");
    assert_int_equal(rv_schedule_count(&x), 2);
    simulate(&x, equal_costs(&d, 1, 1, 1));
    rv_schedule_finish(&x);
}

static void text_errors_say_where(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int line, column;
        const char *says;
    } cases[] = {
        {"", 1, 1, "expected ranvier-schedule, the text ends"},
        {"plan", 1, 1, "found \"plan\""},
        {"\x80\xff\x1b", 1, 1, "found \"???\""}, /* no terminal's or JSON's text */
        {"\xc3\xa4\xe2\x82", 1, 1, "found \"\xc3\xa4??\""},
        {"ranvier-schedule a_name_that_is_too_long\n", 1, 18, "name of the schedule"},
        {"ranvier-schedule x\nstages 0\n", 2, 8, "a number from 1 to"},
        {"ranvier-schedule x\n  stage 1\n", 2, 3, "expected stages, found \"stage\""},
        {"ranvier-schedule x\nstages 1\nmicro_batches 2147483648", 3, 15, "micro_batches"},
        {HEAD, 12, 1, "the text ends"},
        {HEAD "worker 1", 12, 8, "a number from 0 to 0"},
        {HEAD "worker 0\nF0.0 BW0,0\n", 13, 6, "found \"BW0,0\""},
        {HEAD "worker 0\nF0.0\nworker 1\n", 14, 1, "expected an item"},
        {HEAD "F0.0", 12, 1, "next worker"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rv_schedule x;
        assert_int_equal(rv_schedule_parse("plan.txt", cases[i].text, &x), RV_CONFIG);
        assert_null(x.items);
        const rv_error *error = rv_error_get();
        assert_string_equal(error->file, "plan.txt");
        assert_int_equal(error->line, cases[i].line);
        assert_int_equal(error->column, cases[i].column);
        if (!strstr(error->message, cases[i].says)) fail_msg("%s", error->message);
    }
}

/* Any prefix, any changed character: an error with a place or a schedule, never a crash. */
static void text_damaged_is_read_or_refused(void **state) {
    (void)state;
    cost_data d;
    rv_schedule x;
    char *text = NULL;
    make("1f1b", 2, 2, 2, 2, equal_costs(&d, 1, 1, 1), &x);
    assert_int_equal(rv_schedule_print(&x, &text), RV_OK);
    rv_schedule_finish(&x);
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) {
        static const char with[] = "0@F \n/#\xff";
        for (size_t j = 0; j < sizeof with; j++) {
            char was = text[i];
            text[i] = with[j];
            rv_status status = rv_schedule_parse("plan", text, &x);
            if (status == RV_OK) {
                status = rv_schedule_simulate(&x, &d.costs, NULL);
                assert_true(status == RV_OK || status == RV_CONFIG);
            } else {
                assert_true(status == RV_CONFIG && (j == 0 || rv_error_get()->line > 0));
            }
            rv_schedule_finish(&x);
            text[i] = was;
        }
    }
    rv_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_print_parse_are_inverses),
        cmocka_unit_test(item_print_parse_are_inverses),
        cmocka_unit_test(text_by_hand_is_read),
        cmocka_unit_test(text_errors_say_where),
        cmocka_unit_test(text_damaged_is_read_or_refused),
    };
    return cmocka_run_group_tests_name("pipeline_schedule_text", tests, NULL, NULL);
}
