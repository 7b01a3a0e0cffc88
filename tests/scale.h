/*
 * How often tests repeat what they do: the full counts, of which `make soak` makes all, `make
 * test-long` a tenth and `make test` a hundredth, at least one.
 */
#ifndef RV_TESTS_SCALE_H
#define RV_TESTS_SCALE_H

#include <stdlib.h>
#include <string.h>

enum {
    FULL_KILLS = 200,     /* of a training, at random times */
    FULL_MUTANTS = 20000, /* of a model file */
    FULL_CHECKS = 200,    /* of them also through the program */
    FULL_STEPS = 100000,  /* of a tiny network, for growth */
    FULL_NONFINITE = 480, /* values put into a network */
    FULL_LOCK_RACES = 50, /* of many processes for one folder */
    FULL_SIGNALS = 100,   /* at random times */
    FULL_REPEATS = 20,    /* of the same training under load */
    FULL_SEEDS = 1000,    /* of a pipeline in one thread */
    FULL_RESUMES = 20,    /* of a delayed training */
};

/* 100, 10 or 1: of a loop that tries every k, every so many-th is tried. */
static inline int stride(void) {
    const char *scale = getenv("RV_TEST_SCALE");
    if (scale && strcmp(scale, "soak") == 0) return 1;
    return scale && strcmp(scale, "test-long") == 0 ? 10 : 100;
}

static inline int scaled(int full, int least) {
    int count = full / stride();
    return count > least ? count : least;
}

#endif
