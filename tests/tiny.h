/*
 * For tests of the whole program: a folder with a tiny data set as IDX files and a recipe for it.
 * Four classes of 6 x 6 images: a bright quadrant in noise; learnt in a second.
 */
#ifndef RV_TESTS_TINY_H
#define RV_TESTS_TINY_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TINY_SIDE = 6, TINY_CLASSES = 4, TINY_TRAIN = 120, TINY_TEST = 40, TINY_PATH = 512 };

/* Path of a file in the folder; a few results live at a time. */
static inline const char *tiny_path(const char *folder, const char *name) {
    static char paths[8][TINY_PATH];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, TINY_PATH, "%s/%s", folder, name);
    return path;
}

static inline void tiny_put(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        abort();
    }
}

static inline void tiny_put32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> (24 - 8 * i));
}

/* Images and labels of `count` samples; `shift` is added to every label (to make bad ones). */
static inline void tiny_set(const char *folder, const char *name, int count, unsigned seed,
                            int shift) {
    char file[64];
    size_t pixels = TINY_SIDE * TINY_SIDE, images = 16 + (size_t)count * pixels;
    unsigned char *image = calloc(images, 1), *label = calloc(8 + (size_t)count, 1);
    if (!image || !label) abort();
    tiny_put32(image, 0x00000803), tiny_put32(image + 4, (uint32_t)count);
    tiny_put32(image + 8, TINY_SIDE), tiny_put32(image + 12, TINY_SIDE);
    tiny_put32(label, 0x00000801), tiny_put32(label + 4, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        int class = i % TINY_CLASSES;
        label[8 + i] = (unsigned char)(class + shift);
        for (int y = 0; y < TINY_SIDE; y++)
            for (int x = 0; x < TINY_SIDE; x++) {
                int quadrant = 2 * (y >= TINY_SIDE / 2) + (x >= TINY_SIDE / 2);
                seed = seed * 1664525u + 1013904223u;
                image[16 + (size_t)i * pixels + (size_t)(y * TINY_SIDE + x)] =
                    (unsigned char)((seed >> 24) / 4 + (quadrant == class ? 150 : 0));
            }
    }
    snprintf(file, sizeof file, "%s-images", name);
    tiny_put(tiny_path(folder, file), image, images);
    snprintf(file, sizeof file, "%s-labels", name);
    tiny_put(tiny_path(folder, file), label, 8 + (size_t)count);
    free(label);
    free(image);
}

/* The `data` of recipes; its argument is the folder. */
#define TINY_DATA                                                                                  \
    "data:\n"                                                                                      \
    "  reader: idx\n"                                                                              \
    "  root: %s\n"                                                                                 \
    "  classes: 4\n"                                                                               \
    "  train: {inputs: train-images, labels: train-labels}\n"                                      \
    "  test: {inputs: test-images, labels: test-labels}\n"                                         \
    "  validation: 0.2\n"

/* Line 16 is the hidden neuron. */
static inline void tiny_recipe(const char *folder, const char *name) {
    char text[2048];
    int size = snprintf(
        text, sizeof text,
        "# four bright quadrants\n"
        "seed: 7\n"
        "preset: ranvier\n" TINY_DATA "  normalize: {mean: 0.0, std: 1.0}\n"
        "\n"
        "encode: {kind: constant, steps: 6}\n"
        "network:\n"
        "  - {name: hidden, kind: linear, units: 24}\n"
        "  - {name: hidden_lif, kind: lif, beta: 0.9, threshold: 0.5}\n"
        "  - {name: out, kind: linear, units: 4}\n"
        "  - {name: out_lif, kind: lif, beta: 0.9, threshold: 0.5}\n"
        "loss: {kind: cross_entropy, readout: spike_count}\n"
        "train: {epochs: 4, batch: 16, optimizer: {kind: adam, lr: 0.02}, lr_schedule: {kind: "
        "cosine}}\n",
        folder);
    tiny_put(tiny_path(folder, name), text, (size_t)size);
}

/* mkdtemp on `folder` and fill it: {train,test}-{images,labels} and recipe.yaml. */
static inline int tiny_make(char *folder) {
    if (!mkdtemp(folder)) return -1;
    tiny_set(folder, "train", TINY_TRAIN, 1, 0);
    tiny_set(folder, "test", TINY_TEST, 2, 0);
    tiny_recipe(folder, "recipe.yaml");
    return 0;
}

static inline int tiny_remove(const char *folder) {
    char command[TINY_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#endif
