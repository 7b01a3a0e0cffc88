/*
 * Steady state: after the first step of a size (convolutions have a plan for each number of rows) a
 * stage allocates nothing, calls nothing that blocks but the wait for a message or a slot, and
 * holds no lock across an item. Counted at the calls themselves: the program is linked with --wrap
 * for each of them (Makefile), which catches those of our own code and of no library.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "tests/pipes.h"
#include "tests/turns.h"

/* ---- what is counted --------------------------------------------------------------------- */

/* ALLOCATION, BLOCKING, LOCK and MOVE (a job for the writer) inside turns of a stage, that is while
 * it looks whether it can go on, or runs an item. HELD: a lock that was taken before a turn, or
 * that outlives one. IDLE: a wait between two items where nothing lacked. */
enum { ALLOCATION, BLOCKING, HELD, IDLE, FORBIDDEN, LOCK = FORBIDDEN, MOVE, TURN, ITEM, COUNTS };
static const char *const count_names[FORBIDDEN] = {"allocations", "blocking calls",
                                                   "locks held across an item", "needless waits"};
static atomic_long counts[COUNTS];
static _Thread_local bool inside; /* of a turn */
static _Thread_local bool ran;    /* the last turn ran an item */
static _Thread_local int locks;   /* held by this thread */

static void count(int what) {
    atomic_fetch_add(&counts[what], 1);
}

static void seen(int what) {
    if (inside) count(what);
}

/* A disk that is slow: in a step its thread writes nothing before the first stage waits, or is
 * blocked, and then leaves every job long after it has told its end. */
static bool slow;
static atomic_bool stuck = true; /* the first stage; before the steps that are counted it may be */
static _Thread_local bool writes;

int __real_nanosleep(const struct timespec *time, struct timespec *left);
static void pause_briefly(void) {
    static const struct timespec moment = {0, 100000};
    (void)__real_nanosleep(&moment, NULL);
}

static void writer_waits(void) {
    writes = slow && !inside;
    while (writes && !atomic_load(&stuck))
        pause_briefly();
}

static void wait_seen(void) {
    seen(BLOCKING);
    if (inside) atomic_store(&stuck, true);
    if (ran) count(IDLE);
}

#define WRAP(result, name, parameters, arguments, ...)                                             \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters {                                                              \
        __VA_ARGS__;                                                                               \
        return __real_##name arguments;                                                            \
    }
WRAP(int, posix_memalign, (void **out, size_t align, size_t size), (out, align, size),
     seen(ALLOCATION))
WRAP(void *, malloc, (size_t size), (size), seen(ALLOCATION))
WRAP(void *, calloc, (size_t count, size_t size), (count, size), seen(ALLOCATION))
WRAP(void *, realloc, (void *memory, size_t size), (memory, size), seen(ALLOCATION))
WRAP(int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left),
     seen(BLOCKING))
WRAP(int, usleep, (useconds_t time), (time), seen(BLOCKING))
WRAP(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), seen(BLOCKING))
WRAP(ssize_t, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at), seen(BLOCKING))
WRAP(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), seen(BLOCKING))
WRAP(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at),
     seen(BLOCKING);
     writer_waits())
WRAP(int, fsync, (int fd), (fd), seen(BLOCKING))
WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *how, void *(*run)(void *), void *argument),
     (thread, how, run, argument), seen(BLOCKING))
WRAP(int, pthread_join, (pthread_t thread, void **result), (thread, result), seen(BLOCKING))
WRAP(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *lock), (condition, lock),
     wait_seen())
WRAP(int, pthread_cond_timedwait,
     (pthread_cond_t * condition, pthread_mutex_t *lock, const struct timespec *until),
     (condition, lock, until), seen(BLOCKING))
WRAP(int, pthread_mutex_lock, (pthread_mutex_t * lock), (lock), seen(LOCK); locks++;
     if (writes) pause_briefly())
WRAP(int, pthread_mutex_unlock, (pthread_mutex_t * lock), (lock), locks--)
WRAP(rv_status, rv_writer_submit, (rv_writer * writer, const rv_writer_job *job), (writer, job),
     seen(MOVE))

static rv_status enter(void *self, rv_stage *stage, bool *stalls) {
    (void)self, (void)stage, (void)stalls;
    if (locks != 0) count(HELD);
    count(TURN);
    ran = false;
    inside = true;
    return RV_OK;
}

static void leave(void *self, rv_stage *stage, int at, rv_turn turn) {
    (void)self, (void)at;
    inside = false;
    if (locks != 0) count(HELD);
    ran = turn == RV_TURN_DONE;
    if (ran) count(ITEM);
    if (turn == RV_TURN_WAIT && stage->desc.index == 0) atomic_store(&stuck, true);
}

/* ---- what is run ------------------------------------------------------------------------- */

enum { SIZES = 3, STEPS = 6 };

/* How tapes are held: a policy for all layers, or every one somewhere. */
typedef enum tapes { KEPT, RECOMPUTED, SPILLED, MIXED, TAPES } tapes;
static const char *const tape_names[TAPES] = {"kept", "recomputed", "spilled", "of each kind"};

static void tapes_set(small *s, tapes how) {
    static uint8_t policy[SMALL_LAYERS];
    static const rv_tape_policy all[] = {RV_TAPE_KEEP, RV_TAPE_RECOMPUTE, RV_TAPE_SPILL};
    for (int l = 0; l < SMALL_LAYERS; l++)
        policy[l] = (uint8_t)all[how == MIXED ? l % MIXED : (int)how];
    s->train.tape = how == KEPT ? NULL : policy;
}

static rv_status one_step(rv_pipeline *pipeline, const small *s, int step) {
    rv_step_result result;
    rv_batch batch = s->batch;
    batch.epoch = (uint32_t)step;
    batch.B -= step % SIZES;
    return rv_pipeline_step(pipeline, &batch, &result);
}

/* Steps of a pipeline in threads, counted after one of every size. Samples of these are another
 * half as bright, so that more spikes come than in the first steps. */
static void count_steps(const pipe_net *net, const pipe_way *way, tapes how,
                        const rv_observer *observer) {
    int first[SMALL_LAYERS + 1];
    rv_schedule schedule;
    small s;
    pipe_open(&s, net, way);
    tapes_set(&s, how);
    rv_pipeline *pipeline = pipe_make(&s, way, first, &schedule);
    for (int step = 0; step < SIZES; step++)
        OK(one_step(pipeline, &s, step));
    for (int k = 0; k < COUNTS; k++)
        atomic_store(&counts[k], 0);
    rv_pipeline_observe(pipeline, observer);
    const rv_values *x = &s.batch.input.values;
    for (size_t k = 0; k < (size_t)(x->stride_t ? x->T : 1) * (size_t)(x->B * x->ld); k++)
        x->data[k] *= 1.5f;
    turns_now = (turns){enter, leave, NULL};
    for (int step = 0; step < STEPS; step++) {
        atomic_store(&stuck, false);
        OK(one_step(pipeline, &s, step));
    }
    turns_now = (turns){0};
    atomic_store(&stuck, true);
    rv_pipeline_destroy(pipeline);
    rv_schedule_finish(&schedule);
    small_finish(&s);
}

/* A message that is sent or a slot that is freed rings the bell of the other end, under its lock:
 * an item takes two at most, NORM at the last stage two for every other. Where tapes have benches
 * each turn of F and B looks for one under the lock of the tapes, and each item for two more to
 * fetch ahead; a job marks its bench under that lock and goes to the writer under the writer's. */
static long locks_due(tapes how) {
    long items = atomic_load(&counts[ITEM]), due = 4 * items;
    if (how != KEPT) due += atomic_load(&counts[TURN]);
    if (how >= SPILLED) due += 2 * items + 2 * atomic_load(&counts[MOVE]);
    return due;
}

static void check_steps(const pipe_net *net, const pipe_way *way, tapes how) {
    count_steps(net, way, how, NULL);
    for (int what = 0; what < FORBIDDEN; what++)
        if (atomic_load(&counts[what]) != 0)
            fail_msg("%s, %s, S=%d M=%d C=%d, tapes %s: %ld %s in %ld items", net->name,
                     way->schedule, way->stages, way->micros, way->chunks, tape_names[how],
                     atomic_load(&counts[what]), count_names[what], atomic_load(&counts[ITEM]));
    if (atomic_load(&counts[LOCK]) > locks_due(how))
        fail_msg("%s, %s, S=%d M=%d C=%d, tapes %s: %ld locks in %ld items, %ld are due", net->name,
                 way->schedule, way->stages, way->micros, way->chunks, tape_names[how],
                 atomic_load(&counts[LOCK]), atomic_load(&counts[ITEM]), locks_due(how));
}

static void after_the_first_step_nothing_is_allocated_and_nothing_blocks(void **state) {
    (void)state;
    static const char *const schedules[] = {"1f1b", "zb", "filldrain+2bp"};
    const int kinds = rv_h5_available() ? TAPES : SPILLED;
    long sum[COUNTS] = {0};
    for (int k = 0; k < 2 * kinds * PIPE_NETS; k++) {
        const pipe_way way = {.schedule = schedules[k % 3],
                              .stages = 1 + k % 4,
                              .micros = 1 + k % 3,
                              .chunks = 1 + k % PIPE_STEPS,
                              .slots = k % 2 ? 4 : 0,
                              .clip = k % 5 == 0 ? 0.1 : 0,
                              .timeout = 60};
        check_steps(&pipe_nets[k % PIPE_NETS], &way, (tapes)(k / PIPE_NETS % kinds));
        for (int what = 0; what < COUNTS; what++)
            sum[what] += atomic_load(&counts[what]);
    }
    print_message("           %ld items in %ld turns, %ld tapes moved, %ld locks\n", sum[ITEM],
                  sum[TURN], sum[MOVE], sum[LOCK]);
    assert_true((sum[MOVE] > 0) == (kinds == TAPES));
}

/* With W put off there is a bench for every chunk, with F and BW there are three; either way all
 * that are not in use are with the writer at once. */
static void a_disk_that_is_slow_blocks_no_stage(void **state) {
    (void)state;
    static const char *const schedules[] = {"filldrain+2bp", "filldrain"};
    if (!rv_h5_available()) skip();
    slow = true;
    for (int k = 0; k < 4; k++) {
        const pipe_way way = {.schedule = schedules[k % 2],
                              .stages = 1 + k / 2,
                              .micros = 3,
                              .chunks = PIPE_STEPS,
                              .timeout = 60};
        check_steps(&pipe_nets[0], &way, SPILLED);
    }
    slow = false;
}

/* ---- that it would be seen --------------------------------------------------------------- */

static pthread_mutex_t kept = PTHREAD_MUTEX_INITIALIZER;

/* In F of the first stage's first chunk. */
static rv_status plant(void *self, const rv_pass *pass) {
    const int *what = self;
    void *memory = NULL;
    if (pass->first > 0 || pass->chunk > 0 || pass->row > 0) return RV_OK;
    if (*what == ALLOCATION) OK(rv_alloc(1, 8, "nothing", &memory));
    if (*what == BLOCKING) usleep(1);
    rv_free(memory);
    return RV_OK;
}

static void planted_allocations_waits_and_locks_are_counted(void **state) {
    (void)state;
    const pipe_way way = {.schedule = "1f1b", .stages = 2, .micros = 2, .chunks = 2};
    static const int kinds[] = {ALLOCATION, BLOCKING};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int what = kinds[k];
        const rv_observer observer = {&what, plant};
        count_steps(&pipe_nets[0], &way, KEPT, &observer);
        assert_int_equal(atomic_load(&counts[what]), STEPS);
    }
    /* A turn that begins under a lock, and one that ends so. */
    rv_stage stage = {0};
    bool stalls = false;
    atomic_store(&counts[HELD], 0);
    assert_int_equal(pthread_mutex_lock(&kept), 0);
    OK(enter(NULL, &stage, &stalls));
    leave(NULL, &stage, 0, RV_TURN_DONE);
    assert_int_equal(pthread_mutex_unlock(&kept), 0);
    assert_int_equal(atomic_load(&counts[HELD]), 2);
    ran = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_the_first_step_nothing_is_allocated_and_nothing_blocks),
        cmocka_unit_test(a_disk_that_is_slow_blocks_no_stage),
        cmocka_unit_test(planted_allocations_waits_and_locks_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
