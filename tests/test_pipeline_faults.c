/*
 * A training whose memory or disk fails at any call, once or for good: an error with its code, no
 * half-written file, and a folder from which the run goes on to the bits of one that never failed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "data/data.h"
#include "pipeline/ranvier.h"
#include "tests/scale.h"
#include "tests/spawn.h"
#include "tests/threads.h"

/* HDF5 1.10 forgets what it holds when memory runs out around it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5\n";
}

/* ---- a disk that is full ----------------------------------------------------------------- */

static bool mount_small(const char *name, int kibibytes) {
    char size[32];
    snprintf(size, sizeof size, "size=%dk", kibibytes);
    if (mkdir(in_folder(name), 0700) != 0 && access(in_folder(name), F_OK) != 0) return false;
    return mount("tmpfs", in_folder(name), "tmpfs", 0, size) == 0;
}

static bool any_temporary(const char *run) {
    bool any = false;
    DIR *files = opendir(in_folder(run));
    if (!files) return false;
    for (const struct dirent *file; (file = readdir(files));) {
        size_t length = strlen(file->d_name);
        any |= length > 4 && strcmp(file->d_name + length - 4, ".tmp") == 0;
    }
    assert_int_equal(closedir(files), 0);
    return any;
}

/* 4 to 512 KiB: refused before the first step, failed later, or done; never a crash. */
static void small_disks_fail_cleanly(void **state) {
    (void)state;
    int refused = 0, done = 0;
    if (!rv_h5_available()) skip();
    if (geteuid() != 0 || !mount_small("disk", 64)) skip();
    assert_int_equal(umount(in_folder("disk")), 0);
    for (int kibibytes = 4; kibibytes <= 4096; kibibytes += kibibytes / 4 > 4 ? kibibytes / 4 : 4) {
        assert_true(mount_small("disk", kibibytes));
        int code = RUN("train", "recipe.yaml", "-q", "-o", "disk/run", "--set", "train.epochs=2");
        assert_true(code == 0 || code == 73 || code == 74);
        if (code == 74) {
            assert_contains(err_text, "disk/run");
            assert_contains(err_text, "bytes needed");
        }
        assert_false(any_temporary("disk/run"));
        code == 0 ? done++ : refused++;
        assert_int_equal(umount(in_folder("disk")), 0);
    }
    print_message("           %d sizes failed, %d were enough\n", refused, done);
    assert_true(refused > 5 && done > 0);
}

static void remove_run(const char *run) {
    char command[TINY_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", in_folder(run));
    assert_int_equal(system(command), 0);
}

/* The disk fills while the run goes on: 74, and the checkpoint that is there goes on. With `tape`
 * the first write that meets it is one of a tape. */
static void fill_meanwhile(const char *tape, const char *meets) {
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "fill_whole", "--set",
                         "train.epochs=400", "--set", "pipeline.chunks=2"),
                     0);
    pid_t child = start((const char *const[]){
        "train", "recipe.yaml", "-q", "-o", "filled/run", "--set", "train.epochs=400", "--set",
        "checkpoint.every=3", "--set", "pipeline.chunks=2", "--set", tape, NULL});
    for (int i = 0; i < 2000 && access(in_folder("filled/run/previous.h5"), F_OK) != 0; i++)
        usleep(2000);
    FILE *filler = fopen(in_folder("filled/filler"), "w");
    assert_non_null(filler);
    setbuf(filler, NULL);
    while (fwrite(folder, 1, sizeof folder, filler) == sizeof folder)
        ;
    (void)fclose(filler);
    assert_int_equal(end(child), 74);
    assert_contains(err_text, meets);
    assert_contains(err_text, "No space left on device");
    assert_contains(err_text, "bytes needed");
    assert_false(any_temporary("filled/run"));
    assert_int_equal(unlink(in_folder("filled/filler")), 0);
    assert_int_equal(RUN("check", "filled/run/last.h5"), 0);
    assert_int_equal(RUN("train", "recipe.yaml", "-q", "-o", "filled/run", "--resume", "auto",
                         "--set", "train.epochs=400", "--set", "pipeline.chunks=2", "--set", tape),
                     0);
    assert_int_equal(RUN("diff", "fill_whole", "filled/run"), 0);
}

static void disk_filled_meanwhile_keeps_the_checkpoint(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"pipeline.tape=keep", "filled/run/"},
                                           {"pipeline.tape=spill", "filled/run/"}};
    if (!rv_h5_available()) skip();
    for (int i = 0; i < 2; i++) {
        remove_run("fill_whole");
        if (geteuid() != 0 || !mount_small("filled", 4096)) skip();
        fill_meanwhile(cases[i][0], cases[i][1]);
        assert_int_equal(umount(in_folder("filled")), 0);
    }
}

/* Files may no longer grow beyond what a checkpoint takes: the next tape that is spilled fails, and
 * the checkpoint that is there goes on. */
static void tapes_that_cannot_be_written_keep_the_checkpoint(void **state) {
    (void)state;
    static const char *const sets[] = {"train.epochs=40", "checkpoint.every=3", "encode.steps=600",
                                       "pipeline.tape=spill", "pipeline.chunks=6"};
    const char *words[] = {"train", "recipe.yaml", "-q",     "--isa", "baseline", "--stages",
                           "2",     "-o",          "spills", "--set", sets[0],    "--set",
                           sets[1], "--set",       sets[2],  "--set", sets[3],    "--set",
                           sets[4], "--resume",    "auto",   NULL};
    struct stat about;
    struct rlimit limit;
    if (!rv_h5_available()) skip();
    assert_true(signal(SIGXFSZ, SIG_DFL) != SIG_ERR); /* whoever started the tests may ignore it */
    pid_t child = start(words);
    for (int i = 0; i < 5000 && access(in_folder("spills/previous.h5"), F_OK) != 0; i++)
        usleep(1000);
    assert_int_equal(stat(in_folder("spills/last.h5"), &about), 0);
    assert_int_equal(prlimit(child, RLIMIT_FSIZE, NULL, &limit), 0);
    limit.rlim_cur = (rlim_t)about.st_size + 65536;
    assert_int_equal(stat(in_folder("spills/tapes-0.h5.tmp"), &about), 0);
    assert_true((rlim_t)about.st_size > limit.rlim_cur + 100000);
    assert_int_equal(prlimit(child, RLIMIT_FSIZE, &limit, NULL), 0);
    assert_int_equal(end(child), 74);
    assert_contains(err_text, "spills/tapes-");
    assert_contains(err_text, strerror(EFBIG));
    assert_contains(err_text, "bytes needed");
    assert_false(any_temporary("spills"));
    assert_int_equal(RUN("check", "spills/last.h5"), 0);
    assert_int_equal(RUN("check", "spills"), 0);
    assert_int_equal(run_words(words), 0);
    words[8] = "spills_whole";
    assert_int_equal(run_words(words), 0);
    assert_int_equal(RUN("diff", "spills_whole", "spills"), 0);
}

/* Files may not grow beyond 256 bytes from the start: what the main thread writes, with no signal
 * blocked as in the threads that save, fails as any other write does. */
static void a_file_over_the_limit_is_a_failed_write(void **state) {
    (void)state;
    static const struct {
        const char *words[6], *what;
    } cases[] = {{{"list", "keys"}, "standard output"},
                 {{"plan", "recipe.yaml", "--svg", "limit.svg"}, "limit.svg"},
                 {{"train", "recipe.yaml", "-q", "-o", "limit"}, "limit/"}};
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(signal(SIGXFSZ, SIG_DFL) != SIG_ERR); /* whoever started the tests may ignore it */
    limit = (struct rlimit){.rlim_cur = 256, .rlim_max = before.rlim_max};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0); /* the child has it, too */
        pid_t child = start(cases[i].words);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        int code = end(child);
        if (code != 74) fail_msg("%s: %d: %s", cases[i].what, code, err_text);
        assert_contains(err_text, cases[i].what);
        assert_contains(err_text, strerror(EFBIG));
    }
    assert_int_not_equal(access(in_folder("limit.svg"), F_OK), 0);
}

/* ---- memory that is not there ------------------------------------------------------------ */

static void memory_need_is_told_and_too_much_refused(void **state) {
    (void)state;
    assert_int_equal(RUN("train", "recipe.yaml", "-o", "fits", "--set", "train.max_steps=1"), 0);
    assert_contains(err_text, "memory: about ");
    ERROR(69, "MB of memory needed", "train", "recipe.yaml", "-q", "-o", "large", "--set",
          "network.hidden.units=16000000", "--set", "train.batch=96", "--set", "encode.steps=100");
    assert_int_not_equal(access(in_folder("large"), F_OK), 0);
}

/* ---- long runs --------------------------------------------------------------------------- */

typedef struct growth {
    long first, last; /* resident bytes after step 1,000 and now */
    int first_files, last_files;
} growth;

static int open_files(void) {
    int count = 0;
    DIR *files = opendir("/proc/self/fd");
    assert_non_null(files);
    while (readdir(files))
        count++;
    assert_int_equal(closedir(files), 0);
    return count;
}

static void look_at_step(void *user, const rv_train_progress *progress) {
    growth *seen = user;
    long pages = 0;
    if (progress->step % 500 != 0 || progress->step < 1000) return;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    seen->last_files = open_files();
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    assert_int_equal(fclose(file), 0);
    seen->last = pages * sysconf(_SC_PAGESIZE);
    if (progress->step > 1000) return;
    seen->first = seen->last;
    seen->first_files = seen->last_files;
}

/* What a run holds after 1,000 steps it holds at its end, many saves and epochs later. */
static void long_runs_do_not_grow(void **state) {
    (void)state;
    char steps[64], path[TINY_PATH];
    growth seen = {0};
    snprintf(steps, sizeof steps, "train.max_steps=%d", scaled(FULL_STEPS, 5000));
    const char *const sets[] = {steps, "train.epochs=1000000", "network.hidden.units=4",
                                "encode.steps=2", "checkpoint.every=100"};
    snprintf(path, sizeof path, "%s", in_folder("long"));
    const rv_train_options options = {.struct_size = sizeof options,
                                      .config = in_folder("recipe.yaml"),
                                      .sets = sets,
                                      .set_count = 5,
                                      .out = path,
                                      .threads = 2,
                                      .progress = look_at_step,
                                      .user = &seen};
    rv_train_result result = {.struct_size = sizeof result};
    rv_trainer *trainer = NULL;
    assert_int_equal(rv_train(&options, &trainer, &result), 0);
    rv_trainer_destroy(trainer);
    print_message("           %lld steps: %ld KiB, at the end %ld KiB; %d files, %d\n",
                  (long long)result.steps, seen.first / 1024, seen.last / 1024, seen.first_files,
                  seen.last_files);
    assert_true(seen.first > 0);
    /* The last look may come while a save has its file open. */
    assert_true(seen.last_files <= seen.first_files + 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(seen.last - seen.first <= 1 << 20);
#endif
}

#ifdef RV_FAULTS
/* ---- calls that fail --------------------------------------------------------------------- */

/* One stage, two, and two whose tapes go to the disk: all with the same bits. */
typedef enum way { ONE, TWO, SPILLED, WAYS } way;
static const char *const way_names[] = {"", ", two stages", ", two stages that spill"};

/* In this process, where the hooks are. */
static rv_code train(const char *run, const char *resume, way how) {
    static const int set_counts[] = {5, 9, 10};
    static const char *const sets[] = {
        "train.epochs=2",    "train.max_steps=9",  "checkpoint.every=2",  "network.hidden.units=6",
        "pipeline.chunks=2", "pipeline.stages=2",  "pipeline.cuts=[out]", "pipeline.schedule=1f1b",
        "pipeline.slots=2",  "pipeline.tape=spill"};
    char path[TINY_PATH];
    snprintf(path, sizeof path, "%s", in_folder(run));
    const rv_train_options options = {.struct_size = sizeof options,
                                      .config = in_folder("recipe.yaml"),
                                      .sets = sets,
                                      .set_count = set_counts[how],
                                      .out = path,
                                      .threads = 1,
                                      .isa = "baseline",
                                      .resume = resume};
    rv_train_result result = {.struct_size = sizeof result};
    rv_trainer *trainer = NULL;
    rv_code code = rv_train(&options, &trainer, &result);
    rv_trainer_destroy(trainer);
    return code;
}

static rv_code compare(const char *a, const char *b) {
    char *json = NULL, path[TINY_PATH];
    snprintf(path, sizeof path, "%s", in_folder(a));
    rv_code code = rv_diff(path, in_folder(b), NULL, &json);
    rv_text_free(json);
    return code;
}

/* What is in the folder is whole, and the run goes on from it. */
static void expect_good(const char *run, const char *what, long k, way how) {
    static const char *const names[] = {"last.h5", "previous.h5", "best.h5"};
    char path[128];
    if (any_temporary(run)) fail_msg("%s, call %ld: a temporary file is left", what, k);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", run, names[i]);
        if (access(in_folder(path), F_OK) == 0 && rv_model_check(in_folder(path)) != RV_OK)
            fail_msg("%s, call %ld: %s", what, k, rv_error_get()->message);
    }
    if (train(run, "auto", how) != 0)
        fail_msg("%s, call %ld: does not go on: %s", what, k, rv_error_get()->message);
    if (compare("fault_whole", run) != 0)
        fail_msg("%s, call %ld: %s", what, k, rv_error_get()->message);
}

/* The run that nothing failed in: the same bits in stages. */
static void make_whole(void) {
    remove_run("fault_whole");
    assert_int_equal(train("fault_whole", NULL, ONE), 0);
}

/* A failure may be lost only where it makes no difference: in a thread that keeps the others busy
 * while costs of stages are measured. */
static bool failed_well(rv_code code, const char *what, long k, rv_code expected, way how) {
    const char *message = rv_error_get()->message;
    if (code == 0 && (how == ONE || compare("fault_whole", "fault") != 0))
        fail_msg("%s, call %ld: the failure is lost", what, k);
    if (code != 0 && code != expected)
        fail_msg("%s, call %ld: code %d: %s", what, k, code, message);
    if (code != 0 && strlen(message) < 10) fail_msg("%s, call %ld: says nothing", what, k);
    return code != 0;
}

static void walk(rv_fault_site site, const char *what, rv_code expected, long every, way how) {
    long failed = 0, points = 0;
    int threads = threads_here();
    for (int sticky = 0; sticky < 2; sticky++)
        for (long k = 0, calls;; k += every) {
            remove_run("fault");
            rv_fault_arm(site, k, sticky);
            rv_code code = train("fault", NULL, how);
            calls = rv_fault_count(site);
            rv_fault_arm(site, -1, false);
            for (int wait = 0; wait < 1000 && threads_here() > threads; wait++)
                usleep(1000); /* joined threads may be seen for a moment longer */
            if (threads_here() > threads) fail_msg("%s, call %ld: a thread is left", what, k);
            if (code == 0 && calls <= k) break;
            if (!failed_well(code, what, k, expected, how)) continue;
            failed++;
            points = calls > points ? calls : points;
            expect_good("fault", what, k, how);
        }
    print_message("           %s%s: %ld of about %ld calls failed\n", what, way_names[how], failed,
                  2 * points);
    assert_true(failed > 2);
}

static long every_so_many(long soak, long longer, long shorter) {
    return stride() == 1 ? soak : stride() == 10 ? longer : shorter;
}

static void any_failing_disk_call_is_74_and_goes_on(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    make_whole();
    for (way how = ONE; how < WAYS; how++) {
        walk(RV_FAULT_WRITE, "write", 74, every_so_many(1, 2, 7), how);
        walk(RV_FAULT_FSYNC, "fsync", 74, every_so_many(1, 2, 7), how);
        walk(RV_FAULT_CLOSE, "close", 74, every_so_many(1, 2, 3), how);
        walk(RV_FAULT_RENAME, "rename", 74, every_so_many(1, 2, 7), how);
    }
}

static void any_failing_allocation_is_71_and_goes_on(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    make_whole();
    for (way how = ONE; how < WAYS; how++)
        walk(RV_FAULT_ALLOC, "alloc", 71, every_so_many(1, 23, 401), how);
}

static void any_failing_link_call_is_76_and_goes_on(void **state) {
    (void)state;
    if (!rv_h5_available()) skip();
    make_whole();
    walk(RV_FAULT_LINK, "link", 76, every_so_many(1, 7, 61), TWO);
}
#endif

/* A test that failed may have left its disk behind. */
static int leave(void **state) {
    (void)umount2(in_folder("disk"), MNT_DETACH);
    (void)umount2(in_folder("filled"), MNT_DETACH);
    return group_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_disks_fail_cleanly),
        cmocka_unit_test(disk_filled_meanwhile_keeps_the_checkpoint),
        cmocka_unit_test(tapes_that_cannot_be_written_keep_the_checkpoint),
        cmocka_unit_test(a_file_over_the_limit_is_a_failed_write),
        cmocka_unit_test(memory_need_is_told_and_too_much_refused),
        cmocka_unit_test(long_runs_do_not_grow),
#ifdef RV_FAULTS
        cmocka_unit_test(any_failing_disk_call_is_74_and_goes_on),
        cmocka_unit_test(any_failing_allocation_is_71_and_goes_on),
        cmocka_unit_test(any_failing_link_call_is_76_and_goes_on),
#endif
    };
    return cmocka_run_group_tests(tests, group_setup, leave);
}
