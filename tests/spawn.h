/*
 * For tests of the program from outside: run it in a folder with the tiny data set, keep what it
 * prints. Include after cmocka.h.
 */
#ifndef RV_TESTS_SPAWN_H
#define RV_TESTS_SPAWN_H

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/tiny.h"

#ifndef RV_PROGRAM
#define RV_PROGRAM "build/ranvier"
#endif

static char folder[32] = "/tmp/rv_run_XXXXXX";
static char program[4096];

static char out_text[1 << 18], err_text[1 << 16]; /* of the last run */

/* In memory where there is room: these tests kill processes, not machines, and save thousands of
 * times, which a slow disk would make minutes of. Tests of data/ use the disk. */
static inline int group_setup(void **state) {
    (void)state;
    struct statvfs room;
    if (access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &room) == 0 &&
        room.f_bavail * room.f_frsize >= 60u << 20)
        strcpy(folder, "/dev/shm/rv_run_XXXXXX");
    return realpath(RV_PROGRAM, program) && tiny_make(folder) == 0 ? 0 : -1;
}

static inline int group_teardown(void **state) {
    (void)state;
    return tiny_remove(folder);
}

static inline const char *in_folder(const char *name) {
    return tiny_path(folder, name);
}

static inline void read_text(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t got = fread(text, 1, size - 1, file);
    text[got] = 0;
    assert_int_equal(fclose(file), 0);
}

/* Start the program in the folder with its output in files. */
static inline pid_t start(const char *const *words) {
    const char *argv[32] = {"ranvier"};
    int count = 1;
    while (words[count - 1]) {
        assert_true(count < 31);
        argv[count] = words[count - 1];
        count++;
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int out = open(in_folder("stdout"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open(in_folder("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (out < 0 || err < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 || chdir(folder) != 0)
            _exit(99);
        execv(program, (char **)argv);
        _exit(98);
    }
    return child;
}

static inline int end(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    read_text(in_folder("stdout"), out_text, sizeof out_text);
    read_text(in_folder("stderr"), err_text, sizeof err_text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static inline int run_words(const char *const *words) {
    return end(start(words));
}
#define RUN(...) run_words((const char *const[]){__VA_ARGS__, NULL})

static inline void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static inline json_t *parse_out(void) {
    json_error_t error;
    json_t *root = json_loads(out_text, 0, &error); /* refuses text after the object */
    if (!root) fail_msg("not one JSON object: %s in \"%s\"", error.text, out_text);
    return root;
}

/* Run with --json: the error object must be alone on stdout and hold this code and text. */
static inline void assert_json_error(const char *const *words, int code, const char *part) {
    assert_int_equal(run_words(words), code);
    json_t *root = parse_out(), *error = json_object_get(root, "error");
    static const char *const keys[] = {"code", "message", "file", "line", "column", "key", "hint"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(json_object_get(error, keys[i]));
    assert_int_equal(json_object_size(error), 7);
    assert_int_equal(json_integer_value(json_object_get(error, "code")), code);
    assert_contains(json_string_value(json_object_get(error, "message")), part);
    json_decref(root);
}
#define JSON_ERROR(code, part, ...)                                                                \
    assert_json_error((const char *const[]){__VA_ARGS__, "--json", NULL}, code, part)

/* Of a training just run with --json: its log foretold its peak within 10 % or 8 MiB. */
static inline void assert_memory_foretold(const char *what) {
    json_t *root = parse_out();
    const double peak = json_real_value(json_object_get(root, "peak_mb"));
    const char *told = strstr(err_text, "memory: about ");
    assert_non_null(told);
    const double need = strtod(told + strlen("memory: about "), NULL);
    print_message("%s: %.0f MB foretold, %.0f MB taken\n", what, need, peak);
    if (fabs(need - peak) > fmax(0.1 * peak, 8.4))
        fail_msg("%s: %.0f MB foretold, %.0f MB taken", what, need, peak);
    json_decref(root);
}

/* Both forms: text on stderr with nothing on stdout, and JSON. */
#define ERROR(code, part, ...)                                                                     \
    do {                                                                                           \
        assert_int_equal(RUN(__VA_ARGS__), code);                                                  \
        assert_contains(err_text, part);                                                           \
        assert_string_equal(out_text, "");                                                         \
        JSON_ERROR(code, part, __VA_ARGS__);                                                       \
    } while (0)

#endif
