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
    const char *inner; /* the group below each top-level one whose groups are the cases */
} known[] = {
    {"neurons.h5", golden_neuron, NULL},
    {"surrogates.h5", golden_surrogate, NULL},
    {"optim.h5", golden_optim, NULL},
    {"encoders.h5", golden_encoder, NULL},
    {"losses.h5", golden_loss, NULL},
    {"networks.h5", golden_network, NULL},
    {"delays.h5", golden_delay, "modes"},
    {"delays_quadratic.csv", golden_quadratic, NULL},
    {"partition.json", golden_partition, NULL},
    {"schedules.json", golden_schedule, NULL},
    {"schedules_invalid.json", golden_schedule_flaw, NULL},
    {"schedules_staleness.json", golden_staleness, NULL},
};

static void report(golden_run *run, golden_verdict verdict, const char *file, const char *name,
                   const char *text) {
    static const char *const word[] = {"", "outside", "not yet known", "DIFFERS"};
    run->count[verdict]++;
    if (verdict == GOLDEN_REPLAYED) return;
    printf("%-13s  %s%s%s%s%s\n", word[verdict], file, *name ? " " : "", name, *text ? ": " : "",
           text);
}

/* One case; its group, object or line may be missing. */
static void replay_case(golden_run *run, const struct known *known_file, golden_case c,
                        bool there) {
    golden_verdict verdict = GOLDEN_UNKNOWN;
    c.file = known_file->name, c.device = &run->device, c.arena = &run->arena;
    if (!there) {
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

/* The groups in `at` (path "." or `inner`); the number of them. */
static int replay_groups(golden_run *run, const struct known *known_file, hid_t root, hid_t at,
                         const char *path) {
    golden_case c = {.file = known_file->name, .name = "", .at = at};
    int count = 0;
    const char *const *names = NULL;
    golden_names(&c, path, &count, &names);
    for (int i = 0; i < count; i++) {
        char below[512];
        snprintf(below, sizeof below, "%s/%s", path, names[i]);
        hid_t group = H5Gopen2(at, below, H5P_DEFAULT);
        if (known_file->inner && strcmp(path, ".") == 0) {
            if (group < 0 || replay_groups(run, known_file, root, group, known_file->inner) == 0)
                report(run, GOLDEN_DIFFER, known_file->name, names[i], "holds no case");
        } else {
            const golden_case one = {.name = names[i], .at = group, .around = at, .root = root};
            replay_case(run, known_file, one, group >= 0);
        }
        if (group >= 0) H5Gclose(group);
    }
    if (c.failed) report(run, GOLDEN_DIFFER, known_file->name, "", c.text);
    golden_finish(&c);
    return count;
}

static void replay_file(golden_run *run, const struct known *known_file, const char *path) {
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0)
        report(run, GOLDEN_DIFFER, known_file->name, "", "cannot be read as HDF5");
    else if (replay_groups(run, known_file, file, file, ".") == 0)
        report(run, GOLDEN_DIFFER, known_file->name, "", "holds no case");
    if (file >= 0) H5Fclose(file);
}

/* Every line but the first, which names the columns. */
static void replay_lines(golden_run *run, const struct known *known_file, const char *path) {
    char line[512];
    long count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        const golden_case one = {.name = line, .at = H5I_INVALID_HID};
        if (count++ > 0) replay_case(run, known_file, one, true);
    }
    if (count < 2) report(run, GOLDEN_DIFFER, known_file->name, "", "holds no case");
    if (file) fclose(file);
}

/* Cases are named by their place, counted from 0: "linear 12", or "12". */
static void replay_json_list(golden_run *run, const struct known *known_file, const char *key,
                             const json_t *list) {
    if (json_array_size(list) == 0) report(run, GOLDEN_DIFFER, known_file->name, key, "no case");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char name[96];
        snprintf(name, sizeof name, "%.64s%s%zu", key, *key ? " " : "", i);
        const golden_case one = {
            .name = name, .at = H5I_INVALID_HID, .json = json_array_get(list, i)};
        replay_case(run, known_file, one, json_is_object(one.json));
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
            replay_lines(run, row, path);
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
