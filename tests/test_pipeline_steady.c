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

/* ALLOCATION, BLOCKING and LOCK inside turns of a stage, that is while it looks whether it can go
 * on, or runs an item. HELD: a lock that was taken before a turn, or that outlives one. IDLE: a
 * wait between two items where nothing lacked. */
enum { ALLOCATION, BLOCKING, LOCK, HELD, IDLE, COUNTS };
static const char *const count_names[COUNTS] = {"allocations", "blocking calls", "locks",
                                                "locks held across an item", "needless waits"};
static atomic_long counts[COUNTS];
static _Thread_local bool inside; /* of a turn */
static _Thread_local bool ran;    /* the last turn ran an item */
static _Thread_local int locks;   /* held by this thread */

static void seen(int what) {
    if (inside) atomic_fetch_add(&counts[what], 1);
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
     seen(BLOCKING))
WRAP(int, fsync, (int fd), (fd), seen(BLOCKING))
WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *how, void *(*run)(void *), void *argument),
     (thread, how, run, argument), seen(BLOCKING))
WRAP(int, pthread_join, (pthread_t thread, void **result), (thread, result), seen(BLOCKING))
WRAP(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *lock), (condition, lock),
     seen(BLOCKING);
     if (ran) atomic_fetch_add(&counts[IDLE], 1))
WRAP(int, pthread_cond_timedwait,
     (pthread_cond_t * condition, pthread_mutex_t *lock, const struct timespec *until),
     (condition, lock, until), seen(BLOCKING))
WRAP(int, pthread_mutex_lock, (pthread_mutex_t * lock), (lock), seen(LOCK); locks++)
WRAP(int, pthread_mutex_unlock, (pthread_mutex_t * lock), (lock), locks--)

static rv_status enter(void *self, rv_stage *stage, bool *stalls) {
    (void)self, (void)stage, (void)stalls;
    if (locks != 0) atomic_fetch_add(&counts[HELD], 1);
    ran = false;
    inside = true;
    return RV_OK;
}

static void leave(void *self, rv_stage *stage, int at, rv_turn turn) {
    atomic_long *items = self;
    (void)stage, (void)at;
    inside = false;
    if (locks != 0) atomic_fetch_add(&counts[HELD], 1);
    ran = turn == RV_TURN_DONE;
    if (ran) atomic_fetch_add(items, 1);
}

/* ---- what is run ------------------------------------------------------------------------- */

enum { SIZES = 3, STEPS = 6 };

static rv_status one_step(rv_pipeline *pipeline, const small *s, int step) {
    rv_step_result result;
    rv_batch batch = s->batch;
    batch.epoch = (uint32_t)step;
    batch.B -= step % SIZES;
    return rv_pipeline_step(pipeline, &batch, &result);
}

/* Steps of a pipeline in threads, counted after one of every size; returns their items. Samples of
 * these are another half as bright, so that more spikes come than in the first steps. */
static long count_steps(const pipe_net *net, const pipe_way *way, bool recomputes,
                        const rv_observer *observer) {
    static uint8_t policy[SMALL_LAYERS];
    int first[SMALL_LAYERS + 1];
    atomic_long items = 0;
    rv_schedule schedule;
    small s;
    pipe_open(&s, net, way);
    memset(policy, RV_TAPE_RECOMPUTE, sizeof policy);
    s.train.tape = recomputes ? policy : NULL;
    rv_pipeline *pipeline = pipe_make(&s, way, first, &schedule);
    for (int step = 0; step < SIZES; step++)
        OK(one_step(pipeline, &s, step));
    for (int k = 0; k < COUNTS; k++)
        atomic_store(&counts[k], 0);
    rv_pipeline_observe(pipeline, observer);
    const rv_values *x = &s.batch.input.values;
    for (size_t k = 0; k < (size_t)(x->stride_t ? x->T : 1) * (size_t)(x->B * x->ld); k++)
        x->data[k] *= 1.5f;
    turns_now = (turns){enter, leave, &items};
    for (int step = 0; step < STEPS; step++)
        OK(one_step(pipeline, &s, step));
    turns_now = (turns){0};
    rv_pipeline_destroy(pipeline);
    rv_schedule_finish(&schedule);
    small_finish(&s);
    return atomic_load(&items);
}

/* A message that is sent or a slot that is freed rings the bell of the other end, under its lock:
 * an item takes two at most, NORM at the last stage two for every other. */
static void after_the_first_step_nothing_is_allocated_and_nothing_blocks(void **state) {
    (void)state;
    static const char *const schedules[] = {"1f1b", "zb", "filldrain+2bp"};
    long items = 0, taken = 0;
    for (int k = 0; k < 6 * PIPE_NETS; k++) {
        const pipe_way way = {.schedule = schedules[k % 3],
                              .stages = 1 + k % 4,
                              .micros = 1 + k % 3,
                              .chunks = 1 + k % PIPE_STEPS,
                              .slots = k % 2 ? 4 : 0,
                              .clip = k % 5 == 0 ? 0.1 : 0,
                              .timeout = 60};
        const pipe_net *net = &pipe_nets[k % PIPE_NETS];
        long ran_now = count_steps(net, &way, k / PIPE_NETS % 2, NULL);
        for (int what = 0; what < COUNTS; what++)
            if (what != LOCK && atomic_load(&counts[what]) != 0)
                fail_msg("%s, %s, S=%d M=%d C=%d: %ld %s in %ld items", net->name, way.schedule,
                         way.stages, way.micros, way.chunks, atomic_load(&counts[what]),
                         count_names[what], ran_now);
        assert_true(atomic_load(&counts[LOCK]) <= 4 * ran_now);
        items += ran_now, taken += atomic_load(&counts[LOCK]);
    }
    print_message("           %ld items, %ld rings\n", items, taken);
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
        assert_true(count_steps(&pipe_nets[0], &way, false, &observer) > 0);
        assert_int_equal(atomic_load(&counts[what]), STEPS);
    }
    /* A turn that begins under a lock, and one that ends so. */
    atomic_long items = 0;
    bool stalls = false;
    atomic_store(&counts[HELD], 0);
    assert_int_equal(pthread_mutex_lock(&kept), 0);
    OK(enter(NULL, NULL, &stalls));
    leave(&items, NULL, 0, RV_TURN_DONE);
    assert_int_equal(pthread_mutex_unlock(&kept), 0);
    assert_int_equal(atomic_load(&counts[HELD]), 2);
    ran = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_the_first_step_nothing_is_allocated_and_nothing_blocks),
        cmocka_unit_test(planted_allocations_waits_and_locks_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
