/*
 * golden FOLDER [ISA]: replays the reference vectors in a folder. Files are taken by name; a
 * folder `nir`, or FOLDER itself, may hold NAME.nir and NAME.h5 pairs. Prints a line for each case
 * that differs, what is outside and why, what is not yet known, and four counts. Exit code 1 when
 * a case differs or a known file cannot be read, 66 when there is no folder.
 */
#include "tests/golden.h"
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct golden_run {
    rv_device device;
    rv_arena arena;
    long count[GOLDEN_VERDICTS];
} golden_run;

/* Files by name. replay NULL: nothing here can run it yet; its cases are then only counted. */
static const struct known {
    const char *name;
    golden_verdict (*replay)(golden_case *c);
} known[] = {
    {"neurons.h5", golden_neuron},
    {"surrogates.h5", golden_surrogate},
    {"optim.h5", golden_optim},
    {"encoders.h5", golden_encoder},
    {"losses.h5", golden_loss},
    {"networks.h5", golden_network},
    {"delays.h5", NULL},
    {"delays_quadratic.csv", NULL},
    {"partition.json", golden_partition},
    {"schedules.json", golden_schedule},
    {"schedules_invalid.json", golden_schedule_flaw},
    {"schedules_staleness.json", golden_staleness},
};

static void report(golden_run *run, golden_verdict verdict, const char *file, const char *name,
                   const char *text) {
    static const char *const word[] = {"", "outside", "not yet known", "DIFFERS"};
    run->count[verdict]++;
    if (verdict == GOLDEN_REPLAYED) return;
    printf("%-13s  %s%s%s%s%s\n", word[verdict], file, *name ? " " : "", name, *text ? ": " : "",
           text);
}

/* One case, whose group or object may be missing. */
static void replay_case(golden_run *run, const struct known *known_file, hid_t at,
                        const json_t *json, const char *name) {
    golden_case c = {.file = known_file->name,
                     .name = name,
                     .at = at,
                     .json = json,
                     .device = &run->device,
                     .arena = &run->arena};
    golden_verdict verdict = GOLDEN_UNKNOWN;
    if (at < 0 && !json_is_object(json)) {
        golden_fail(&c, "cannot be read");
        verdict = GOLDEN_DIFFER;
    } else if (known_file->replay) {
        verdict = known_file->replay(&c);
        if (c.failed) verdict = GOLDEN_DIFFER;
    }
    report(run, verdict, c.file, c.name, c.text);
    rv_arena_reset(&run->arena);
    golden_finish(&c);
}

static void replay_file(golden_run *run, const struct known *known_file, const char *path) {
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    golden_case c = {.file = known_file->name, .name = "", .at = file};
    int count = 0;
    const char *const *names = NULL;
    if (file < 0)
        golden_fail(&c, "cannot be read as HDF5");
    else
        golden_names(&c, ".", &count, &names);
    if (!c.failed && count == 0) golden_fail(&c, "holds no case");
    if (c.failed) report(run, GOLDEN_DIFFER, c.file, "", c.text);
    for (int i = 0; i < count; i++) {
        hid_t at = H5Gopen2(file, names[i], H5P_DEFAULT);
        replay_case(run, known_file, at, NULL, names[i]);
        if (at >= 0) H5Gclose(at);
    }
    golden_finish(&c);
    if (file >= 0) H5Fclose(file);
}

/* Cases are named by their place, counted from 0: "linear 12", or "12". */
static void replay_json_list(golden_run *run, const struct known *known_file, const char *key,
                             const json_t *list) {
    if (json_array_size(list) == 0) report(run, GOLDEN_DIFFER, known_file->name, key, "no case");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char name[96];
        snprintf(name, sizeof name, "%.64s%s%zu", key, *key ? " " : "", i);
        replay_case(run, known_file, -1, json_array_get(list, i), name);
    }
}

static void replay_json(golden_run *run, const struct known *known_file, const char *path) {
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    const char *key;
    json_t *list;
    if (!root)
        report(run, GOLDEN_DIFFER, known_file->name, "", error.text);
    else if (json_object_size(root) == 0)
        replay_json_list(run, known_file, "", root);
    else
        json_object_foreach(root, key, list) replay_json_list(run, known_file, key, list);
    json_decref(root);
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* A NIR file and the vectors beside it: an importer is needed to run the pair. */
static void replay_pair(golden_run *run, const char *path, const char *name) {
    FILE *file = fopen(path, "rb");
    unsigned char head[8] = {0};
    static const unsigned char hdf5[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    bool good = file && fread(head, 1, 8, file) == 8 && memcmp(head, hdf5, 8) == 0;
    if (file) fclose(file);
    if (good)
        report(run, GOLDEN_UNKNOWN, name, "", "");
    else
        report(run, GOLDEN_DIFFER, name, "", "cannot be read as HDF5");
}

static int walk(golden_run *run, const char *folder) {
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0) {
        fprintf(stderr, "golden: %s: %s\n", folder, strerror(errno));
        return RV_INPUT;
    }
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        char path[4096];
        struct stat info;
        const struct known *row = NULL;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (strcmp(name, known[k].name) == 0) row = &known[k];
        if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) continue;
        if (strcmp(name, "nir") == 0)
            walk(run, path);
        else if (row && stat(path, &info) != 0)
            report(run, GOLDEN_DIFFER, name, "", strerror(errno));
        else if (row && ends_with(name, ".h5"))
            replay_file(run, row, path);
        else if (row && ends_with(name, ".json"))
            replay_json(run, row, path);
        else if (row)
            report(run, GOLDEN_UNKNOWN, name, "", "");
        else if (ends_with(name, ".nir"))
            replay_pair(run, path, name);
        free(entries[i]);
    }
    free(entries);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: golden FOLDER [ISA]\n");
        return RV_USAGE;
    }
    golden_run run = {0};
    int isa = argc == 3 ? 0 : RV_ISA_AUTO;
    while (argc == 3 && isa < RV_ISAS && strcmp(argv[2], rv_isa_name((rv_isa)isa)) != 0)
        isa++;
    if (isa == RV_ISAS) {
        fprintf(stderr, "golden: %s is not one of %s\n", argv[2], RV_ISA_NAMES);
        return RV_USAGE;
    }
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    unsigned mode = rv_flush_set();
    if (rv_device_open("cpu", (rv_isa)isa, 1, &run.device)) {
        fprintf(stderr, "golden: %s\n", rv_error_get()->message);
        return RV_INTERNAL;
    }
    int code = walk(&run, argv[1]);
    rv_arena_finish(&run.arena);
    rv_device_close(&run.device);
    rv_flush_restore(mode);
    if (code) return code;
    const long *n = run.count;
    printf("replayed %ld, outside %ld, not yet known %ld, differ %ld\n", n[GOLDEN_REPLAYED],
           n[GOLDEN_OUTSIDE], n[GOLDEN_UNKNOWN], n[GOLDEN_DIFFER]);
    return n[GOLDEN_DIFFER] > 0;
}
