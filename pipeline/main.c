/*
 * The program: which command, which signals, which exit code. The only place that reads the
 * environment, installs signal handlers or ends the process. A status is the exit code.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <execinfo.h>
#include <malloc.h>
#endif

#include "pipeline/cmd.h"

/* A new command is one row here and one cmd_<name>.c. */
#define COMMON " json quiet verbose "
#define PIPELINE " stages chunks micro-batches schedule schedule-file device "
static const rv_command commands[] = {
    {"train", "CONFIG", "train a network as the recipe says and write a run folder",
     COMMON PIPELINE "out set threads isa resume init max-time grace trace", 1, 1, true,
     rv_cmd_train},
    {"eval", "MODEL|DIR", "evaluate a model file or the best model of a run folder",
     COMMON "data set split predictions threads isa device", 1, 1, false, rv_cmd_eval},
    {"plan", "CONFIG", "cut, schedule, timeline and memory of a training, without training",
     COMMON PIPELINE "set threads isa devices profile dump svg", 1, 1, false, rv_cmd_plan},
    {"verify", "CONFIG", "train some steps on one device and in the pipeline, compare all bits",
     COMMON PIPELINE "set threads isa steps", 1, 1, false, rv_cmd_verify},
    {"info", "FILE", "say what a model, run folder, recipe or data file holds", COMMON, 1, 1, false,
     rv_cmd_info},
    {"check", "FILE|RUN|CONFIG", "verify a file, a run folder, or a recipe with its data",
     COMMON "set", 1, 1, false, rv_cmd_check},
    {"diff", "A B", "compare two models or runs to the bit: exit 0 same, 1 different",
     COMMON "layer", 2, 2, false, rv_cmd_diff},
    {"plot", "RUN", "draw a run's curves, or one sample in one layer, as SVG or PNG",
     COMMON "out sample layer split", 1, 1, false, rv_cmd_plot},
    {"status", "RUN...", "a table of runs, with mean and spread", COMMON, 1, RV_OPERANDS_MOST,
     false, rv_cmd_status},
    {"list", "KIND",
     "list neurons, surrogates, layers, losses, regularizers, optimizers, schedules, "
     "pipeline_schedules, encoders, init, readers, augment, devices or keys",
     COMMON, 1, 1, false, rv_cmd_list},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* ---- signals ---------------------------------------------------------------------------- */

#define GRACE 20 /* seconds for the last save after a signal; Slurm kills after 30 */

static volatile sig_atomic_t stop;  /* the signal that asked for an end */
static volatile sig_atomic_t grace; /* whole seconds from then on */

/* The first asks to save and stop; a second SIGINT is a user who will not wait. */
static void on_signal(int number) {
    if (stop && number == SIGINT) _exit(RV_INTERRUPT);
    if (!stop) alarm((unsigned)grace);
    stop = number;
}

/* The step in progress was too long: what the last save left is there to go on from, and half a
 * save is swept away by the next run. */
static void on_alarm(int number) {
    static const char text[] = "ranvier: no time to save; the last checkpoint stands\n";
    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(RV_AGAIN);
}

/* A file beyond what the user may write is a failed write (74), not a death. */
static rv_status limit_told(void) {
    if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
        return rv_fail(RV_INTERNAL, "signal: %s", strerror(errno));
    return RV_OK;
}

/* SA_RESTART: the first signal interrupts no read or write of the step in progress. */
static rv_status signals_install(double seconds) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGALRM};
    grace = (sig_atomic_t)ceil(seconds);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = {.sa_handler = numbers[i] == SIGALRM ? on_alarm : on_signal,
                                   .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], &action, NULL) != 0)
            return rv_fail(RV_INTERNAL, "sigaction: %s", strerror(errno));
    }
    return RV_OK;
}

/* ---- crashes ---------------------------------------------------------------------------- */

static const struct {
    int number;
    const char *text;
} crashes[] = {{SIGSEGV, "segmentation fault"},
               {SIGBUS, "bus error"},
               {SIGFPE, "arithmetic exception"},
               {SIGILL, "illegal instruction"},
               {SIGABRT, "aborted"}};
enum { CRASHES = sizeof crashes / sizeof *crashes, FRAMES = 32 };

static void say(const char *text) {
    (void)!write(STDERR_FILENO, text, strlen(text));
}

/* The words the program was started with, from the kernel: a handler has no argv. */
static void say_words(void) {
    char words[1024];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, words, sizeof words - 1);
    for (ssize_t i = 0; i + 1 < size; i++)
        if (!words[i]) words[i] = ' ';
    words[size > 0 ? size : 0] = 0;
    if (fd >= 0) (void)close(fd);
    say(words);
}

/* Says what it can and lets the signal take its usual course (status, core file). Nothing but what
 * is safe in a handler; backtrace is once it has been called (crashes_install). */
static void on_crash(int number) {
    say("\nranvier " RANVIER_VERSION " crashed: ");
    for (int i = 0; i < CRASHES; i++)
        if (crashes[i].number == number) say(crashes[i].text);
    say("\nin: ");
    say_words();
    say("\n");
#ifdef __GLIBC__
    void *frames[FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
#endif
    say("This is a defect of the program: please report these lines. The last checkpoint stands, "
        "metrics.jsonl says how far the run came, --resume auto goes on.\n");
    (void)raise(number); /* SA_RESETHAND: the default action, once this handler has ended */
}

/* `stack`: for the handler when the main thread's own is used up. What a sanitizer has installed
 * says more and stays. */
static rv_status crashes_install(void *stack, size_t size) {
    const stack_t other = {.ss_sp = stack, .ss_size = size};
#ifdef __GLIBC__
    void *frame;
    (void)backtrace(&frame, 1); /* loads what it needs, which a handler must not */
#endif
    if (sigaltstack(&other, NULL) != 0)
        return rv_fail(RV_INTERNAL, "sigaltstack: %s", strerror(errno));
    for (int i = 0; i < CRASHES; i++) {
        struct sigaction old,
            action = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        if (sigaction(crashes[i].number, NULL, &old) != 0 ||
            (old.sa_handler == SIG_DFL && sigaction(crashes[i].number, &action, NULL) != 0))
            return rv_fail(RV_INTERNAL, "sigaction: %s", strerror(errno));
    }
    return RV_OK;
}

/* ---- commands --------------------------------------------------------------------------- */

/* Of the program; the options of a command are argp's to print. */
static void print_help(void) {
    const char *cells[COMMANDS][2];
    puts("Usage: ranvier COMMAND [OPTION...]\n"
         "Train spiking neural networks, cut along layers and along time.\n");
    for (int i = 0; i < COMMANDS; i++) {
        cells[i][0] = commands[i].name;
        cells[i][1] = commands[i].sentence;
    }
    rv_print_grid(&(rv_grid){2, 2, NULL}, &cells[0][0], COMMANDS);
    puts("\nranvier COMMAND --help shows a command's options; ranvier --version the version.");
}

/* Options of the program itself count as words too: --verison is a slip of --version. */
static rv_status find_command(const char *word, const rv_command **out) {
    const char *names[COMMANDS + 2];
    for (int i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(word, names[i]) == 0) {
            *out = &commands[i];
            return RV_OK;
        }
    }
    names[COMMANDS] = "--help";
    names[COMMANDS + 1] = "--version";
    return rv_fail_at(RV_USAGE, (rv_where){0}, NULL, rv_name_nearest(word, names, COMMANDS + 2),
                      "unknown %s \"%s\"", word[0] == '-' ? "option" : "command", word);
}

/* Where this user wants temporary files; NULL: nothing said. */
static const char *scratch_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : NULL;
}

/* argv[0] becomes "ranvier COMMAND", which argp prints in usage lines. */
static rv_status run_command(const rv_command *command, int argc, char **argv) {
    rv_status status = RV_OK;
    rv_arguments arguments = {.stop = &stop, .grace = GRACE, .scratch = scratch_folder()};
    char name[32];
    snprintf(name, sizeof name, "ranvier %s", command->name);
    argv[0] = name;
    TRY(rv_arguments_parse(command, argc, argv, &arguments));
    if (arguments.help) goto out;
    if (command->stops) TRY(signals_install(arguments.grace));
    TRY((rv_status)command->run(&arguments));
out:
    rv_arguments_finish(&arguments);
    return status;
}

/* Output that did not arrive is a failure, whatever the command thought. */
static rv_status flush_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout))
        return rv_fail(RV_IO, "standard output: %s", strerror(errno));
    return RV_OK;
}

static rv_status dispatch(int argc, char **argv) {
    const rv_command *command = NULL;
    rv_status status = RV_OK;
    char stack[1 << 16]; /* as long as a command runs; signal frames hold all registers */
    const stack_t none = {.ss_flags = SS_DISABLE};
    if (argc < 2) FAIL(RV_USAGE, "no command; ranvier --help lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        print_help();
    else if (strcmp(argv[1], "--version") == 0)
        puts("ranvier " RANVIER_VERSION);
    else {
        TRY(find_command(argv[1], &command));
        TRY(crashes_install(stack, sizeof stack));
        TRY(limit_told());
        TRY(run_command(command, argc - 1, argv + 1));
    }
    TRY(flush_output());
out:
    (void)sigaltstack(&none, NULL);
    return status;
}

int main(int argc, char **argv) {
#ifdef M_MMAP_THRESHOLD
    /* Left alone it grows with what is freed, and the arrays of a save then leave holes in a heap
     * instead of going back: a tenth of a run's memory. One heap for all threads, so that what one
     * has freed another can use: none allocates while steps run. */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallopt(M_ARENA_MAX, 1);
#endif
    bool json = false; /* known before the options are read, so that their errors are JSON too */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        json |= strcmp(argv[i], "--json") == 0;
    rv_status status = dispatch(argc, argv);
    if (status != RV_OK && status != RV_DIFFERENT) { /* a difference found is a result */
        rv_print_error(json);
        fflush(stdout);
    }
    return status;
}
