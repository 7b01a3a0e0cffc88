/*
 * The replay of reference vectors, `golden FOLDER [ISA]`: what its files share.
 *
 * A file is known by its name (table in golden.c); a case is one top-level group of an HDF5 file
 * (or a group below one), one object of a JSON file (an element of its array, or of an array that
 * it names), or one line of a CSV file.
 * Each case ends in one verdict. Sizes, seeds and parameters come from the file, never from here.
 * Limits (tests/golden/README_vectors.md): spikes equal, membrane 1e-5, gradients 1e-4 of the
 * largest entry.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "kernels/kernels.h"
#include "snn/snn.h"
#include <hdf5.h>
#include <math.h>
#include <string.h>

#define GOLDEN_MEMBRANE 1e-5
#define GOLDEN_GRADIENT 1e-4

typedef enum golden_verdict {
    GOLDEN_REPLAYED,
    GOLDEN_OUTSIDE, /* not modelled, on purpose; the case's text says why */
    GOLDEN_UNKNOWN, /* nothing here can run it yet */
    GOLDEN_DIFFER,  /* the case's text says what, or what could not be read */
    GOLDEN_VERDICTS
} golden_verdict;

/* A data set as doubles. n = product of dim. */
typedef struct golden_array {
    double *v;
    size_t n;
    int rank;
    size_t dim[8];
} golden_array;

/* One case. Memory got through it lives until it ends. */
typedef struct golden_case {
    const char *file, *name;
    hid_t at;                  /* its group */
    hid_t around, root;        /* the group that holds those of several cases; the file */
    const struct json_t *json; /* or its object */
    const rv_device *device;
    rv_arena *arena;
    char text[512]; /* the first difference, or the reason of another verdict */
    bool failed;
    struct golden_block *blocks;
} golden_case;

/* One replay function per file name. */
golden_verdict golden_neuron(golden_case *c);
golden_verdict golden_surrogate(golden_case *c);
golden_verdict golden_optim(golden_case *c);
golden_verdict golden_encoder(golden_case *c);
golden_verdict golden_loss(golden_case *c);
golden_verdict golden_network(golden_case *c);
golden_verdict golden_schedule(golden_case *c);
golden_verdict golden_schedule_flaw(golden_case *c);
golden_verdict golden_staleness(golden_case *c);
golden_verdict golden_partition(golden_case *c);
golden_verdict golden_delay(golden_case *c);
golden_verdict golden_quadratic(golden_case *c); /* its name is the line */

/* A case that is outside: names match with fnmatch. NULL when none matches. */
typedef struct golden_outside {
    const char *pattern, *reason;
} golden_outside;
const char *golden_reason(const golden_outside *table, const char *name);

/* ---- reading (golden_h5.c). A case that lacks what is asked for is marked failed; what is
 * returned then is zero or empty, never NULL. */
bool golden_has(const golden_case *c, const char *path); /* data set, group or attribute */
const golden_array *golden_get(golden_case *c, const char *path);
double golden_number(golden_case *c, const char *attribute, double otherwise);
/* The text of an attribute, "" when absent. */
const char *golden_word(golden_case *c, const char *attribute);
/* The numbers of an attribute, at most `most` into out; how many there are. */
int golden_numbers(golden_case *c, const char *attribute, double *out, int most);
/* Names in a subgroup, ascending: *names is an array of *count. */
void golden_names(golden_case *c, const char *path, int *count, const char *const **names);
void *golden_memory(golden_case *c, size_t count, size_t size); /* zeroed, 64-byte aligned */
void golden_finish(golden_case *c);                             /* frees all its memory */

/* ---- reading JSON (golden_json.c). `of` NULL: the case's object. The same holds for what is
 * missing. */
int golden_json_int(golden_case *c, const struct json_t *of, const char *key);
double golden_json_number(golden_case *c, const struct json_t *of, const char *key);
/* n numbers; a single number stands for n equal ones. */
const double *golden_json_numbers(golden_case *c, const struct json_t *of, const char *key, int n);
const int *golden_json_ints(golden_case *c, const struct json_t *of, const char *key, int n);

/* ---- between files and views: T*B rows of n values. */
/* The values [..][n] of an array as rows of ld = n rounded up to RV_LANES. */
float *golden_rows(golden_case *c, const golden_array *a, int ld);
/* A matrix [out][in] as [in][ld]. */
float *golden_weight(golden_case *c, const golden_array *a, int ld);
rv_values golden_values(golden_case *c, int T, int B, int n);
rv_spikes golden_spikes(golden_case *c, int T, int B, int n);

/* ---- judging: false and the case's text at the first difference. */
bool golden_fail(golden_case *c, const char *format, ...) RV_PRINTF(2, 3);
bool golden_ok(golden_case *c, rv_status status); /* the thread's error as text */
/* got: rows of ld floats, as many as `want` has rows of its last dimension. The largest difference
 * may be limit * max(floor, largest entry of want). */
bool golden_close(golden_case *c, const char *what, const golden_array *want, const float *got,
                  int ld, double limit, double floor);
/* got: the transpose, rows of ld. */
bool golden_close_weight(golden_case *c, const char *what, const golden_array *want,
                         const float *got, int ld, double limit);
bool golden_same_spikes(golden_case *c, const char *what, const golden_array *want, rv_spikes got);
static inline golden_verdict golden_done(const golden_case *c) {
    return c->failed ? GOLDEN_DIFFER : GOLDEN_REPLAYED;
}

/* The surrogate a group names (`function` or `surrogate` and its parameters); threshold for those
 * that depend on it. False and a reason in the text when there is none. */
bool golden_surrogate_of(golden_case *c, const char *function, const char *prefix, double threshold,
                         rv_surrogate *out);

/* ---- rows of our tables (golden_rows.c) ---- */
/* A row by name with the defaults of its options; false and a reason when there is none. */
bool golden_choose(golden_case *c, const rv_table *table, const char *name, rv_choice *out);
/* Set an option by name: a number, a word of a choice, a row. False and a reason when there is no
 * such option. */
bool golden_set(golden_case *c, const rv_choice *choice, const char *option, double value);
bool golden_word_set(golden_case *c, const rv_choice *choice, const char *option, const char *word);
bool golden_row_set(golden_case *c, const rv_choice *choice, const char *option, rv_choice row);
bool golden_reals_set(golden_case *c, const rv_choice *choice, const char *option, rv_reals list);
/* Options from attributes of the group, ended by option NULL. attribute NULL: the constant; an
 * attribute the group lacks is left at its default. */
typedef struct golden_option {
    const char *option, *attribute;
    double constant;
} golden_option;
bool golden_set_all(golden_case *c, const rv_choice *choice, const golden_option *options);

/* ---- networks built in memory (golden_networks.c) ---- */
typedef struct golden_net {
    rv_net_desc desc;
    rv_layer_desc layers[16];
    rv_net *net;
    rv_version *version;
    rv_state *state, *adjoint;
    rv_tape *tape;
    float *gradient; /* [n_trained] */
    rv_batch batch;
    rv_pass pass; /* all layers, the whole sequence */
} golden_net;
/* Append a layer; its options may then be set through the choice. */
bool golden_layer(golden_case *c, golden_net *g, const rv_table *table, const char *kind,
                  const char *name, rv_choice *out);
/* Lay the network out for an input [T][B][...] and make all that a pass needs. */
bool golden_net_open(golden_case *c, golden_net *g, const golden_array *input);
void golden_net_close(golden_net *g);

#endif
