/*
 * Whole pipelines in one thread, everything drawn from a seed: network, cuts, schedule, slots,
 * tapes, who is asked next, messages and slots that come late, stages that stall, and a failure
 * somewhere. Each must give the bits of the plain trainer and run every item once, or stop everyone
 * with the first cause. RV_TEST_SEED=N runs one seed, turn by turn as it ran before.
 */
#include "tests/pipes.h"
#include "tests/scale.h"
#include "tests/slow_link.h"
#include "tests/turns.h"

enum { STAGES = 6, ITEMS = 4 * 3 * PIPE_STEPS + 8, TEXT = 600 };

/* What is planted to see it found. */
typedef enum bug {
    NO_BUG,
    BUG_SWAP,    /* a message overtakes the one before it */
    BUG_PAYLOAD, /* one bit of a message */
    BUG_TWICE,   /* an item runs again */
    BUG_LOST,    /* an item is left out */
    BUG_DEAF     /* links that do not hear of a failure */
} bug;

typedef struct place {
    int step, stage, at; /* of training; item of the stage's list */
} place;

typedef struct sim {
    uint64_t seed;
    uint32_t drawn;
    bug bug;
    const pipe_net *net;
    pipe_way way;
    slow_plan links;
    rv_transport transport;
    int first[SMALL_LAYERS + 1];
    uint8_t policy[SMALL_LAYERS];
    bool recomputes;
    rv_status fails; /* RV_OK: nothing does */
    place place;     /* of the failure or the bug */
    /* as it runs */
    int step, stall[STAGES], done[STAGES][ITEMS];
    long items, waits, stalls;
    uint64_t turns; /* digest of all: who was asked, where it was, what became of it */
    bool struck;    /* the bug has come */
    char where[160], verdict[TEXT]; /* "": as it should be */
} sim;

static sim now;
static bool running; /* for a test that ends in the middle of one */

static int draw(sim *it, int below) {
    uint32_t out[4];
    const uint32_t counter[4] = {it->drawn++, 0, 0x51, 0};
    rv_philox(out, counter, it->seed);
    return (int)(out[0] % (uint32_t)below);
}

/* ---- what happens at turns --------------------------------------------------------------- */

static bool here(const sim *it, const rv_stage *stage) {
    return stage->training && it->step == it->place.step && stage->desc.index == it->place.stage &&
           stage->at == it->place.at;
}

static rv_status before(void *self, rv_stage *stage, bool *stalls) {
    sim *it = self;
    int s = stage->desc.index;
    if (it->stall[s] == 0 && draw(it, 8) == 0) it->stall[s] = 1 + draw(it, 20);
    *stalls = it->stall[s] > 0;
    it->stalls += *stalls;
    if (*stalls) return it->stall[s]--, RV_OK;
    if (!here(it, stage)) return RV_OK;
    if (it->fails) {
        rv_stage_item(stage, it->where);
        it->struck = true;
        return rv_fail(it->fails, "planted %d", it->place.at);
    }
    if (it->bug == BUG_LOST && !it->struck) stage->at++, it->struck = true;
    return RV_OK;
}

static void after(void *self, rv_stage *stage, int at, rv_turn turn) {
    sim *it = self;
    const int word[] = {stage->desc.index, at, (int)turn};
    for (int k = 0; k < 3; k++)
        it->turns = (it->turns ^ (uint64_t)word[k]) * 0x100000001b3u;
    it->waits += turn == RV_TURN_WAIT;
    if (turn != RV_TURN_DONE) return;
    it->items++;
    it->done[stage->desc.index][at]++;
    stage->at = at;
    if (it->bug == BUG_TWICE && !it->struck && here(it, stage))
        it->struck = true;
    else
        stage->at = at + 1;
}

/* ---- what is run ------------------------------------------------------------------------- */

/* What the network is opened with. */
static void draw_way(sim *it) {
    static const char *const schedules[] = {"filldrain", "filldrain+2bp", "1f1b", "1f1b+2bp", "zb"};
    it->net = &pipe_nets[draw(it, PIPE_NETS)];
    it->way = (pipe_way){.schedule = schedules[draw(it, 5)],
                         .micros = 1 + draw(it, 3),
                         .chunks = 1 + draw(it, PIPE_STEPS),
                         .slots = draw(it, 2) ? 1 + draw(it, 5) : 0,
                         .clip = draw(it, 2) ? 0.1 : 0,
                         .driver = RV_DRIVER_SEEDED,
                         .seed = it->seed};
    it->links.seed = it->seed;
    if (it->bug == BUG_SWAP) it->links.swap_at = 1 + draw(it, 12);
    if (it->bug == BUG_PAYLOAD)
        it->links.spoil_at = 1 + draw(it, 12), it->links.spoil_byte = RV_HEAD_BYTES + 2;
    it->links.deaf = it->bug == BUG_DEAF;
    it->transport = (rv_transport){"slow", slow_open, &it->links};
    it->way.transport = &it->transport;
}

/* Stages of any size, tapes of any layer, a place for the failure. A schedule that would stand
 * still with so few slots is refused before it starts; it gets slots without limit. */
static void draw_stages(sim *it, const small *s) {
    int layers = s->net->layer_count, kinds = draw(it, 3), count;
    rv_schedule schedule;
    it->way.stages = 1 + draw(it, layers < STAGES ? layers : STAGES);
    for (int cut = 1; cut < it->way.stages; cut++) /* of those left to each its share */
        it->first[cut] =
            it->first[cut - 1] + 1 + draw(it, layers - it->first[cut - 1] - (it->way.stages - cut));
    it->first[it->way.stages] = layers;
    it->way.first = it->first;
    for (int l = 0; l < layers; l++)
        it->policy[l] =
            kinds == 1 || (kinds == 2 && draw(it, 2)) ? RV_TAPE_RECOMPUTE : RV_TAPE_KEEP;
    it->recomputes = kinds > 0;
    if (pipe_schedule(&it->way, &schedule) != RV_OK) {
        rv_schedule_finish(&schedule);
        it->way.slots = 0;
        OK(pipe_schedule(&it->way, &schedule));
    }
    it->place.step = draw(it, PIPE_SAMPLES);
    it->place.stage = draw(it, it->way.stages);
    (void)rv_schedule_list(&schedule, it->place.stage, &count);
    assert_true(count <= ITEMS);
    it->place.at = draw(it, count);
    if (it->bug == BUG_DEAF || (!it->bug && draw(it, 3) == 0))
        it->fails = (const rv_status[]){RV_MEMORY, RV_PEER, RV_IO}[draw(it, 3)];
    rv_schedule_finish(&schedule);
}

/* ---- what must hold ---------------------------------------------------------------------- */

static const char *each_item_once(sim *it, const pipe_pair *p) {
    static char text[200];
    char item[160];
    const char *found = NULL;
    for (int s = 0; s < it->way.stages && !found; s++) {
        rv_stage *stage = rv_pipeline_stage(p->pipeline, s);
        int count = stage->count;
        for (stage->at = 0; stage->at < count && !found; stage->at++)
            if (it->done[s][stage->at] != 1) {
                snprintf(text, sizeof text, "%s ran %d times", rv_stage_item(stage, item),
                         it->done[s][stage->at]);
                found = text;
            }
        stage->at = count;
    }
    memset(it->done, 0, sizeof it->done);
    return found;
}

/* Every stage that still has to do with others learns of the failure when it next looks. */
static const char *everyone_hears(const sim *it, const pipe_pair *p) {
    static char text[100];
    for (int s = 0; s < it->way.stages; s++) {
        rv_stage *stage = rv_pipeline_stage(p->pipeline, s);
        rv_turn turn = RV_TURN_DONE;
        rv_link *edge;
        rv_status status = RV_OK;
        while (status == RV_OK && turn == RV_TURN_DONE)
            status = rv_stage_step(stage, &turn, &edge);
        if ((status == RV_OK && turn == RV_TURN_END) || status == RV_PEER) continue;
        snprintf(text, sizeof text, "stage %d does not hear of the failure", s);
        return text;
    }
    return NULL;
}

/* `found` is what the step gave. */
static const char *failure_is_told(sim *it, pipe_pair *p, const char *found) {
    static char first[TEXT];
    rv_step_result result;
    turns_now = (turns){0};
    if (!found || !it->struck) return "the failure is lost";
    if (rv_error_get()->status != it->fails) return "the failure has another code";
    snprintf(first, sizeof first, "%s", found);
    char cause[200];
    snprintf(cause, sizeof cause, "%s: planted %d", it->where, it->place.at);
    if (strcmp(first, cause) != 0) return first;
    if (rv_pipeline_step(p->pipeline, &p->s->batch, &result) != it->fails ||
        strcmp(rv_error_get()->message, first) != 0)
        return "the next step does not fail as the first did";
    return everyone_hears(it, p);
}

static void run(sim *it) {
    small s;
    pipe_pair pair;
    const char *found = NULL;
    running = true;
    draw_way(it);
    pipe_open(&s, it->net, &it->way);
    draw_stages(it, &s);
    s.train.tape = it->recomputes ? it->policy : NULL;
    pipe_pair_open(&pair, &s, &it->way);
    turns_now = (turns){before, after, it};
    for (it->step = 0; it->step < PIPE_SAMPLES && !found; it->step++) {
        found = pipe_pair_step(&pair, pipe_samples[it->step], (uint32_t)it->step);
        if (it->fails && it->step == it->place.step) break;
        if (!found) found = each_item_once(it, &pair);
    }
    if (it->fails)
        found = failure_is_told(it, &pair, found);
    else if (!found && !(found = pipe_pair_eval(&pair)))
        found = each_item_once(it, &pair);
    turns_now = (turns){0};
    snprintf(it->verdict, sizeof it->verdict, "%s", found ? found : "");
    if (it->links.swap_at || it->links.spoil_at)
        it->struck = it->links.sent >= it->links.swap_at + it->links.spoil_at;
    pipe_pair_finish(&pair);
    small_finish(&s);
    running = false;
}

static sim *run_seed(uint64_t seed, bug planted) {
    now = (sim){.seed = seed, .bug = planted, .turns = 0xcbf29ce484222325u};
    run(&now);
    return &now;
}

/* ---- tests ------------------------------------------------------------------------------- */

static void every_seed_gives_the_bits_of_one_device(void **state) {
    (void)state;
    const char *only = getenv("RV_TEST_SEED");
    uint64_t seed = only ? strtoull(only, NULL, 10) : 0;
    int count = only ? 1 : scaled(FULL_SEEDS, 100), failures = 0;
    long items = 0, waits = 0, stalls = 0;
    for (uint64_t end = seed + (uint64_t)count; seed < end; seed++) {
        const sim *it = run_seed(seed, NO_BUG);
        if (it->verdict[0])
            fail_msg("seed %d (%s, %s, S=%d M=%d C=%d, %d slots%s): %s", (int)seed, it->net->name,
                     it->way.schedule, it->way.stages, it->way.micros, it->way.chunks,
                     it->way.slots, it->recomputes ? ", tapes recomputed" : "", it->verdict);
        items += it->items, waits += it->waits, stalls += it->stalls;
        failures += it->fails != RV_OK;
    }
    print_message("           %d seeds, %d with a failure: %ld items, %ld waits, %ld stalls\n",
                  count, failures, items, waits, stalls);
    assert_true(only || (failures >= count / 5 && waits > 10 * count && stalls > 10 * count));
}

static void seed_runs_again_turn_by_turn(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        uint64_t first = run_seed(seed, NO_BUG)->turns;
        assert_true(first == run_seed(seed, NO_BUG)->turns);
        assert_true(first != run_seed(seed + 1, NO_BUG)->turns);
    }
}

/* Each kind of bug is found, whatever the seed, by the check it is meant for or an earlier one. A
 * bit may fall where nobody reads it (a micro-batch without samples, a unit without weight). */
static void planted_bugs_are_found(void **state) {
    (void)state;
    static const struct {
        bug bug;
        const char *name;
        int percent;
    } bugs[] = {{BUG_SWAP, "messages in another order", 100},
                {BUG_PAYLOAD, "a bit of a message", 70},
                {BUG_TWICE, "an item done twice", 100},
                {BUG_LOST, "an item left out", 100},
                {BUG_DEAF, "links that do not hear", 50}};
    for (size_t k = 0; k < sizeof bugs / sizeof *bugs; k++) {
        int struck = 0, found = 0;
        for (uint64_t seed = 0; seed < 30; seed++) {
            const sim *it = run_seed(seed, bugs[k].bug);
            struck += it->struck;
            found += it->struck && it->verdict[0];
        }
        print_message("           %s: %d of %d found\n", bugs[k].name, found, struck);
        assert_true(struck >= 15 && 100 * found >= bugs[k].percent * struck);
    }
}

static int tell_seed(void **state) {
    (void)state;
    if (running) print_message("           in seed %d\n", (int)now.seed);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_seed_gives_the_bits_of_one_device, tell_seed),
        cmocka_unit_test_teardown(seed_runs_again_turn_by_turn, tell_seed),
        cmocka_unit_test_teardown(planted_bugs_are_found, tell_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
