/* For tests of data/: a folder of their own, files in it, recipes about them. Include after
 * cmocka.h. */
#ifndef RV_TESTS_DATA_FILES_H
#define RV_TESTS_DATA_FILES_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "data/data.h"

static char data_folder[] = "/tmp/rv_data_XXXXXX";

static inline int folder_setup(void **state) {
    (void)state;
    return mkdtemp(data_folder) ? 0 : -1;
}

static inline int folder_teardown(void **state) {
    char command[256];
    (void)state;
    snprintf(command, sizeof command, "chmod -R u+rwx '%s'; rm -rf '%s'", data_folder, data_folder);
    return system(command);
}

/* Path in the folder; the last four results stay valid. */
static inline const char *path_to(const char *name) {
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", data_folder, name);
    return path;
}

/* unlink first: file systems write a truncated file to the disk at once, a new one later. */
static inline void put_file(const char *name, const void *bytes, size_t size) {
    (void)unlink(path_to(name));
    FILE *file = fopen(path_to(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void put_packed(const char *name, const void *bytes, size_t size) {
    (void)unlink(path_to(name));
    gzFile file = gzopen(path_to(name), "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

/* The whole file, freed by the caller. */
static inline char *get_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(1 << 20);
    assert_non_null(file);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 1 << 20, file);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

/* An IDX file in memory; payload bytes follow by the caller. Its header's size. */
static inline size_t idx_header(unsigned char *to, int rank, const uint32_t *dim) {
    memset(to, 0, 4);
    to[2] = 8, to[3] = (unsigned char)rank;
    for (int i = 0; i < rank; i++)
        for (int k = 0; k < 4; k++)
            to[4 + 4 * i + k] = (unsigned char)(dim[i] >> (24 - 8 * k));
    return 4 + 4 * (size_t)rank;
}

static inline bool file_there(const char *name) {
    return access(path_to(name), F_OK) == 0;
}

/* Resident bytes of this process. */
static inline long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    assert_int_equal(fclose(file), 0);
    return pages * sysconf(_SC_PAGESIZE);
}

/* A recipe whose `data` map is given. */
static inline rv_config *config_of(const char *data) {
    char text[2048];
    rv_config *config = NULL;
    int size = snprintf(text, sizeof text,
                        "seed: 3\ndata: %s\nencode: {kind: constant, steps: 0}\nnetwork:\n"
                        "  - {name: out, kind: linear, units: 2}\n",
                        data);
    if (rv_config_parse(text, (size_t)size, "t.yaml", &config) != RV_OK)
        fail_msg("%d: %s", rv_error_get()->line, rv_error_get()->message);
    return config;
}

#endif
