/*
 * Whole pipelines in one thread, everything drawn from a seed: network, cuts, schedule, slots,
 * tapes, who is asked next, when a spilled tape is written or read, messages and slots that come
 * late, stages and a disk that stall, and a failure of an item or of the disk. Each must give the
 * bits of the plain trainer and run every item once, or stop everyone with the first cause, and
 * leave no file. RV_TEST_SEED=N runs one seed, turn by turn as it ran before.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

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
    BUG_DEAF,    /* links that do not hear of a failure */
    BUG_DISK     /* one bit of a tape that is read */
} bug;

/* How a disk fails. */
typedef struct disk_failure {
    bool reads;     /* else it is a write that does */
    ssize_t result; /* of the call, with errno */
    int error;
    const char *told; /* in the message */
} disk_failure;
static const disk_failure disk_failures[] = {{false, -1, ENOSPC, "No space left on device"},
                                             {false, 0, 0, "No space left on device"},
                                             {true, -1, EIO, "Input/output error"},
                                             {true, 0, 0, "ends before a tape does"}};
enum { DISK_FAILURES = sizeof disk_failures / sizeof *disk_failures };

typedef struct place {
    int step, stage, at; /* of training; item of the stage's list */
} place;

typedef struct sim {
    uint64_t seed;
    uint32_t drawn;
    uint64_t other; /* the same in another order of turns */
    bug bug;
    const pipe_net *net;
    pipe_way way;
    slow_plan links;
    rv_transport transport;
    int first[SMALL_LAYERS + 1];
    uint8_t policy[SMALL_LAYERS];
    char tapes[SMALL_LAYERS + 1]; /* the policy in letters */
    bool named;                   /* files of tapes are */
    rv_status fails;              /* RV_OK: nothing does */
    const disk_failure *disk;     /* NULL: no failure of the disk */
    place place;                  /* of another, or of the bug */
    int disk_at;                  /* the write or read that fails or is spoiled, from 1 */
    /* as it runs */
    int step, stall[STAGES], done[STAGES][ITEMS];
    int disk_stall, disk_calls; /* of the kind that fails */
    bool writing, steals;       /* the writer has its turn; a tape moved without it */
    long items, waits, stalls, moves;
    uint64_t turns; /* digest of all: who was asked, where it was, what became of it */
    uint64_t order; /* of tapes that moved, among items */
    bool struck;    /* the bug or the failure has come */
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

static void digest(uint64_t *sum, uint64_t word) {
    *sum = (*sum ^ word) * 0x100000001b3u;
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
    if (it->fails && !it->disk) {
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
        digest(&it->turns, (uint64_t)word[k]);
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

/* ---- what happens at the disk ------------------------------------------------------------ */

bool __real_rv_writer_step(rv_writer *writer);
bool __wrap_rv_writer_step(rv_writer *writer);
ssize_t __real_pread(int fd, void *to, size_t size, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t at);
ssize_t __real_pwrite(int fd, const void *from, size_t size, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at);

bool __wrap_rv_writer_step(rv_writer *writer) {
    sim *it = turns_now.self;
    if (!it) return __real_rv_writer_step(writer);
    if (it->disk_stall == 0 && draw(it, 16) == 0) it->disk_stall = 1 + draw(it, 20);
    if (it->disk_stall > 0) return it->disk_stall--, false;
    it->writing = true;
    bool moved = __real_rv_writer_step(writer);
    it->writing = false;
    it->moves += moved;
    digest(&it->turns, moved);
    if (moved) digest(&it->order, (uint64_t)it->items);
    return moved;
}

/* Some calls are interrupted, some do a part. True: it has failed, with *result and errno. */
static bool disk_fails(sim *it, bool reads, int fd, off_t at, size_t *size, ssize_t *result) {
    const disk_failure *how = it->disk;
    const uint64_t word[] = {reads, (uint64_t)fd, (uint64_t)at, *size};
    for (int k = 0; k < 4; k++)
        digest(&it->turns, word[k]), digest(&it->order, word[k]);
    it->steals |= !it->writing;
    it->disk_calls += how ? how->reads == reads : reads;
    if (how && how->reads == reads && it->disk_calls == it->disk_at) {
        it->struck = true;
        errno = how->error, *result = how->result;
        return true;
    }
    int chance = draw(it, 8);
    if (chance == 0) *size = (*size + 1) / 2;
    errno = EINTR, *result = -1;
    return chance == 1;
}

ssize_t __wrap_pread(int fd, void *to, size_t size, off_t at) {
    sim *it = turns_now.self;
    ssize_t got;
    if (it && disk_fails(it, true, fd, at, &size, &got)) return got;
    got = __real_pread(fd, to, size, at);
    if (!it || it->bug != BUG_DISK || it->struck || it->disk_calls < it->disk_at || got <= 0)
        return got;
    ((char *)to)[draw(it, (int)got)] ^= (char)(1 << draw(it, 8));
    it->struck = true;
    return got;
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at) {
    sim *it = turns_now.self;
    ssize_t done;
    if (it && disk_fails(it, false, fd, at, &size, &done)) return done;
    return __real_pwrite(fd, from, size, at);
}

/* What the next file would get: another one is open than before where it differs. */
static int next_file(void) {
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && close(fd) == 0);
    return fd;
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
                         .half = draw(it, 4) == 0,
                         .driver = RV_DRIVER_SEEDED,
                         .seed = it->seed + it->other};
    if (it->bug == BUG_DISK) it->way.micros = 3, it->way.chunks = PIPE_STEPS; /* much is read */
    it->links.seed = it->seed;
    if (it->bug == BUG_SWAP) it->links.swap_at = 1 + draw(it, 12);
    if (it->bug == BUG_PAYLOAD)
        it->links.spoil_at = 1 + draw(it, 12), it->links.spoil_byte = RV_HEAD_BYTES + 2;
    it->links.deaf = it->bug == BUG_DEAF;
    it->transport = (rv_transport){"slow", slow_open, &it->links};
    it->way.transport = &it->transport;
}

/* Layers mostly alike, or any mix. Without HDF5 nothing is spilled. */
static void draw_tapes(sim *it, int layers) {
    static const rv_tape_policy kinds[][3] = {
        {RV_TAPE_KEEP, RV_TAPE_KEEP, RV_TAPE_KEEP},
        {RV_TAPE_RECOMPUTE, RV_TAPE_RECOMPUTE, RV_TAPE_RECOMPUTE},
        {RV_TAPE_KEEP, RV_TAPE_KEEP, RV_TAPE_RECOMPUTE},
        {RV_TAPE_SPILL, RV_TAPE_SPILL, RV_TAPE_SPILL},
        {RV_TAPE_KEEP, RV_TAPE_SPILL, RV_TAPE_SPILL},
        {RV_TAPE_KEEP, RV_TAPE_RECOMPUTE, RV_TAPE_SPILL},
    };
    int kind = it->bug == BUG_DISK ? 3 : draw(it, rv_h5_available() ? 6 : 3);
    for (int l = 0; l < layers; l++) {
        it->policy[l] = (uint8_t)kinds[kind][draw(it, 3)];
        it->tapes[l] = "krs"[it->policy[l]];
    }
    it->named = draw(it, 2);
}

/* Of an item, or, where tapes are spilled, also of the disk, soon enough to be met. */
static void draw_failure(sim *it) {
    const int cells = it->way.micros * it->way.chunks;
    bool item = draw(it, 3) == 0, disk = strchr(it->tapes, 's') && draw(it, 2);
    it->disk_at = 1 + draw(it, 2 * cells);
    if (it->bug == BUG_DEAF || (!it->bug && item)) {
        it->fails = (const rv_status[]){RV_MEMORY, RV_PEER, RV_IO}[draw(it, 3)];
    } else if (!it->bug && disk) {
        it->fails = RV_IO;
        it->disk = &disk_failures[draw(it, DISK_FAILURES)];
    }
}

/* Stages of any size, tapes of any layer, a place for the failure. A schedule that would stand
 * still with so few slots is refused before it starts; it gets slots without limit. */
static void draw_stages(sim *it, const small *s) {
    int layers = s->net->layer_count, count;
    rv_schedule schedule;
    it->way.stages = 1 + draw(it, layers < STAGES ? layers : STAGES);
    for (int cut = 1; cut < it->way.stages; cut++) /* of those left to each its share */
        it->first[cut] =
            it->first[cut - 1] + 1 + draw(it, layers - it->first[cut - 1] - (it->way.stages - cut));
    it->first[it->way.stages] = layers;
    it->way.first = it->first;
    draw_tapes(it, layers);
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
    draw_failure(it);
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

/* Every stage that still has to do with others learns of the failure when it next looks, one that
 * waits for a tape when it has come. */
static const char *everyone_hears(const sim *it, const pipe_pair *p) {
    static char text[100];
    for (int s = 0; s < it->way.stages; s++) {
        rv_stage *stage = rv_pipeline_stage(p->pipeline, s);
        rv_turn turn = RV_TURN_DONE;
        rv_link *edge;
        rv_status status = RV_OK;
        while (status == RV_OK &&
               (turn == RV_TURN_DONE ||
                (turn == RV_TURN_WAIT && stage->desc.writer && rv_writer_step(stage->desc.writer))))
            status = rv_stage_step(stage, &turn, &edge);
        if ((status == RV_OK && turn == RV_TURN_END) || status == RV_PEER) continue;
        if (it->disk && status == it->fails) continue;
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
    if (it->disk ? !strstr(first, it->disk->told) : strcmp(first, cause) != 0) return first;
    if (rv_pipeline_step(p->pipeline, &p->s->batch, &result) != it->fails ||
        strcmp(rv_error_get()->message, first) != 0)
        return "the next step does not fail as the first did";
    return everyone_hears(it, p);
}

/* Steps until one fails, and an evaluation. NULL, or what is wrong. */
static const char *steps(sim *it, pipe_pair *p) {
    const char *found = NULL;
    turns_now = (turns){before, after, it};
    for (it->step = 0; it->step < PIPE_SAMPLES && !found; it->step++) {
        found = pipe_pair_step(p, pipe_samples[it->step], (uint32_t)it->step);
        if (it->fails && (it->disk ? it->struck : it->step == it->place.step)) break;
        if (!found) found = each_item_once(it, p);
    }
    if (it->disk && !it->struck)
        it->disk = NULL, it->fails = RV_OK; /* so many calls there were not */
    if (it->fails)
        found = failure_is_told(it, p, found);
    else if (!found && !(found = pipe_pair_eval(p)))
        found = each_item_once(it, p);
    turns_now = (turns){0};
    return !found && it->steals ? "a tape moved out of the writer's turn" : found;
}

static void run(sim *it) {
    small s;
    pipe_pair pair;
    char folder[] = "/tmp/ranvier-test-XXXXXX";
    const int fd = next_file();
    running = true;
    draw_way(it);
    pipe_open(&s, it->net, &it->way);
    draw_stages(it, &s);
    s.train.tape = it->policy;
    pipe_pair_open(&pair, &s, &it->way);
    assert_non_null(mkdtemp(folder));
    if (it->named) OK(rv_pipeline_folder(pair.pipeline, folder));
    const char *found = steps(it, &pair);
    snprintf(it->verdict, sizeof it->verdict, "%s", found ? found : "");
    if (it->links.swap_at || it->links.spoil_at)
        it->struck = it->links.sent >= it->links.swap_at + it->links.spoil_at;
    pipe_pair_finish(&pair);
    small_finish(&s);
    if (rmdir(folder) != 0 || next_file() != fd)
        snprintf(it->verdict, sizeof it->verdict, "a file of tapes is left");
    running = false;
}

static sim *run_seed(uint64_t seed, bug planted, uint64_t other) {
    now = (sim){.seed = seed, .bug = planted, .other = other};
    now.turns = now.order = 0xcbf29ce484222325u;
    run(&now);
    return &now;
}

/* ---- tests ------------------------------------------------------------------------------- */

static const char *program; /* as it was called */

static void every_seed_gives_the_bits_of_one_device(void **state) {
    (void)state;
    const char *only = getenv("RV_TEST_SEED");
    uint64_t seed = only ? strtoull(only, NULL, 10) : 0;
    int count = only ? 1 : scaled(FULL_SEEDS, 100), failures = 0, of_disk[DISK_FAILURES] = {0};
    long items = 0, waits = 0, stalls = 0, moves = 0;
    for (uint64_t end = seed + (uint64_t)count; seed < end; seed++) {
        const sim *it = run_seed(seed, NO_BUG, 0);
        if (it->verdict[0])
            fail_msg("seed %d (%s, %s, S=%d M=%d C=%d, %d slots, tapes %s): %s; again: "
                     "RV_TEST_SEED=%d %s",
                     (int)seed, it->net->name, it->way.schedule, it->way.stages, it->way.micros,
                     it->way.chunks, it->way.slots, it->tapes, it->verdict, (int)seed, program);
        items += it->items, waits += it->waits, stalls += it->stalls, moves += it->moves;
        failures += it->fails != RV_OK;
        if (it->disk) of_disk[it->disk - disk_failures]++;
    }
    print_message("           %d seeds, %d with a failure (%d + %d writes, %d + %d reads): "
                  "%ld items, %ld waits, %ld stalls, %ld tapes moved\n",
                  count, failures, of_disk[0], of_disk[1], of_disk[2], of_disk[3], items, waits,
                  stalls, moves);
    if (only) return;
    assert_true(failures >= count / 5 && waits > 10 * count && stalls > 10 * count);
    if (!rv_h5_available()) return;
    assert_true(moves > 5 * count);
    for (int k = 0; k < DISK_FAILURES; k++)
        assert_true(of_disk[k] > 0);
}

/* The same seed: the same turns, those of the writer among them. Another order of turns: tapes move
 * in another order, too, and the verdict is the same. */
static void seed_runs_again_turn_by_turn(void **state) {
    (void)state;
    int spilled = 0, others = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint64_t all = run_seed(seed, NO_BUG, 0)->turns, order = now.order;
        long moves = now.moves;
        assert_true(all == run_seed(seed, NO_BUG, 0)->turns && order == now.order);
        assert_string_equal(run_seed(seed, NO_BUG, 1)->verdict, "");
        if (moves <= 10) continue;
        spilled++;
        others += now.turns != all && now.order != order;
    }
    assert_true(others == spilled && spilled >= (rv_h5_available() ? 3 : 0));
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
                {BUG_DEAF, "links that do not hear", 50},
                {BUG_DISK, "a bit of a tape that is read", 100}};
    for (size_t k = 0; k < sizeof bugs / sizeof *bugs; k++) {
        int struck = 0, found = 0;
        if (bugs[k].bug == BUG_DISK && !rv_h5_available()) continue;
        for (uint64_t seed = 0; seed < 30; seed++) {
            const sim *it = run_seed(seed, bugs[k].bug, 0);
            struck += it->struck;
            found += it->struck && it->verdict[0];
        }
        print_message("           %s: %d of %d found\n", bugs[k].name, found, struck);
        assert_true(struck >= 15 && 100 * found >= bugs[k].percent * struck);
    }
}

static int tell_seed(void **state) {
    (void)state;
    if (running)
        print_message("           in seed %d; again: RV_TEST_SEED=%d %s\n", (int)now.seed,
                      (int)now.seed, program);
    return 0;
}

int main(int argc, char **argv) {
    program = argc > 0 ? argv[0] : "";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_seed_gives_the_bits_of_one_device, tell_seed),
        cmocka_unit_test_teardown(seed_runs_again_turn_by_turn, tell_seed),
        cmocka_unit_test_teardown(planted_bugs_are_found, tell_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
