/*
 * Evaluation of a model file on a share of the data. The network is always the model's; the data
 * and the encoder may come from another recipe. Product forms are those stored in the model, so
 * on the same instruction set the figures are those of training to the last bit.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/internal.h"

/* Outlives the evaluation: the arrays of the result point into it. */
struct rv_eval {
    char *model;
    int64_t *confusion;
    rv_layers layers;
};

/* A growing CSV text; written at the end in one piece, so that a reader never sees half a file. */
typedef struct rv_csv {
    char *text;
    size_t size, capacity;
} rv_csv;

typedef struct rv_tally { /* what every sample adds to */
    int64_t *confusion;
    int classes;
    rv_csv *csv; /* NULL: not wanted */
} rv_tally;

/* Doubles when full: lines are short and there may be a million. */
static rv_status csv_add(rv_csv *csv, const char *line, size_t length) {
    rv_status status = RV_OK;
    if (csv->size + length > csv->capacity) {
        size_t capacity = csv->capacity ? 2 * csv->capacity : 1 << 16;
        char *text = NULL;
        TRY(rv_alloc(capacity, 1, "predictions", &text));
        if (csv->size) memcpy(text, csv->text, csv->size);
        rv_free(csv->text);
        csv->text = text;
        csv->capacity = capacity;
    }
    memcpy(csv->text + csv->size, line, length);
    csv->size += length;
out:
    return status;
}

/* A sample without a label (-1) counts in no cell of the confusion but stays in the CSV. */
static rv_status tally_sample(void *self, uint64_t sample, int32_t label, int32_t prediction) {
    rv_tally *tally = self;
    if (label >= 0 && label < tally->classes && prediction >= 0 && prediction < tally->classes)
        tally->confusion[(int64_t)label * tally->classes + prediction]++;
    if (!tally->csv) return RV_OK;
    char line[64];
    int length = snprintf(line, sizeof line, "%llu,%d,%d\n", (unsigned long long)sample, (int)label,
                          (int)prediction);
    return csv_add(tally->csv, line, (size_t)length);
}

/* ---- what to evaluate ------------------------------------------------------------------- */

/* NULL: test, the share nothing was chosen on. */
rv_status rv_split_parse(const char *name, rv_split *out) {
    const char *names[RV_SPLITS];
    *out = RV_SPLIT_TEST;
    if (!name) return RV_OK;
    for (int i = 0; i < RV_SPLITS; i++) {
        names[i] = rv_split_name((rv_split)i);
        if (strcmp(name, names[i]) == 0) {
            *out = (rv_split)i;
            return RV_OK;
        }
    }
    return rv_fail_at(RV_USAGE, (rv_where){0}, NULL, rv_name_nearest(name, names, RV_SPLITS),
                      "unknown split \"%s\" (train, validation or test)", name);
}

/* The model file itself; of a run folder best.h5, else last.h5. */
rv_status rv_model_find(const char *path, char **out) {
    static const char *const names[] = {"best.h5", "last.h5"};
    rv_status status = RV_OK;
    struct stat info;
    char file[4096];
    if (stat(path, &info) != 0) FAIL(RV_INPUT, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return rv_strdup(path, out);
    for (int i = 0; i < 2; i++) {
        if (snprintf(file, sizeof file, "%s/%s", path, names[i]) >= (int)sizeof file)
            FAIL(RV_INPUT, "%s: path too long", path);
        if (access(file, F_OK) == 0) return rv_strdup(file, out);
    }
    FAIL(RV_INPUT, "%s: no best.h5 and no last.h5 in this folder", path);
out:
    return status;
}

/* Fail before the work where the file cannot come to be. Only a first look: rv_commit still reports
 * what goes wrong when it writes. */
static rv_status check_writable(const char *path) {
    rv_status status = RV_OK;
    char folder[4096];
    struct stat info;
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        FAIL(RV_CREATE, "%s: path too long", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    else
        strcpy(folder, ".");
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) FAIL(RV_CREATE, "%s: is a folder", path);
    if (access(folder, W_OK | X_OK) != 0) FAIL(RV_CREATE, "%s: %s", folder, strerror(errno));
out:
    return status;
}

/* The model's own recipe gives the network; `data`, when there is one, the data and the encoder. */
static rv_status recipes_load(const rv_eval_options *options, const rv_model *model,
                              const char *path, rv_config **config, rv_config **data) {
    rv_status status = RV_OK;
    const char *text = rv_model_config(model);
    bool own = !options->data;
    TRY(rv_config_parse_with(text, strlen(text), path, own ? options->sets : NULL,
                             own ? options->set_count : 0, config));
    (*config)->stages = 1; /* one device, all threads: the bits are the same */
    if (!own) {
        TRY(rv_config_load(options->data, options->sets, options->set_count, data));
        /* The batch too: that recipe's user knows what fits into memory. Results do not depend on
         * it but for the grouping of rows in dense products below AVX-512. */
        (*config)->encode = (*data)->encode; /* borrowed: `data` outlives the evaluation */
        (*config)->steps = (*data)->steps;
        (*config)->input = (*data)->input;
        (*config)->train.batch = (*data)->train.batch;
    }
out:
    return status;
}

/* Into a block of our own: the network's layout is known, the trainer not made yet. */
static rv_status weights_load(const rv_setup *setup, const rv_model *model, float **block) {
    rv_status status = RV_OK;
    TRY(rv_alloc(setup->net->n_all, sizeof **block, "weights", block));
    TRY(rv_model_load(model, setup->net, *block, NULL, NULL));
out:
    return status;
}

/* ---- one evaluation --------------------------------------------------------------------- */

/* The result borrows from `eval`, which the caller gets with it. */
static rv_status result_fill(rv_eval *eval, const rv_net *net, const rv_score *score, int classes,
                             rv_eval_result *result) {
    rv_status status = RV_OK;
    TRY(rv_layers_fill(&eval->layers, net, score));
    *result = (rv_eval_result){
        .struct_size = sizeof *result,
        .accuracy = rv_score_accuracy(score),
        .loss = score->loss,
        .samples = score->samples,
        .classes = classes,
        .confusion = eval->confusion,
        .layer_count = eval->layers.count,
        .layer_name = eval->layers.name,
        .layer_spikes = eval->layers.spikes,
        .layer_rate = eval->layers.rate,
        .layer_synops = eval->layers.synops,
        .input_spikes = score->input_spikes,
        .input_synops = eval->layers.input_synops,
        .dense_operations = eval->layers.dense,
        .model = eval->model,
    };
out:
    return status;
}

rv_status rv_evaluate_run(const rv_eval_options *options, rv_eval **out, rv_eval_result *result) {
    static const char header[] = "sample,label,prediction\n";
    rv_status status = RV_OK;
    rv_setup setup = {0};
    rv_config *data = NULL;
    rv_model *model = NULL;
    rv_share share = {0};
    rv_score score = {0};
    rv_csv csv = {0};
    float *block = NULL;
    rv_eval *eval = NULL;
    rv_split split;

    TRY(rv_split_parse(options->split, &split));
    if (options->predictions) TRY(check_writable(options->predictions));
    TRY(rv_alloc(1, sizeof *eval, "the evaluation", &eval));
    TRY(rv_model_find(options->model, &eval->model));
    TRY(rv_model_open(eval->model, &model));
    TRY(recipes_load(options, model, eval->model, &setup.config, &data));
    TRY(rv_share_open(&share, data ? data : setup.config, split, false));
    if (!share.loader)
        FAIL(RV_CONFIG, "the recipe of %s gives no %s share", data ? options->data : eval->model,
             rv_split_name(split));
    TRY(rv_setup_net(&setup, &share.source));
    TRY(weights_load(&setup, model, &block));
    TRY(rv_setup_device(&setup, options->isa, options->threads));
    TRY(rv_setup_serial(&setup, &share, block, 1)); /* 1: no rate schedule runs */

    int classes = share.source.classes;
    TRY(rv_alloc((size_t)classes * (size_t)classes, sizeof *eval->confusion, "confusion",
                 &eval->confusion));
    rv_tally tally = {eval->confusion, classes, options->predictions ? &csv : NULL};
    const rv_score_each each = {tally_sample, &tally, NULL};
    TRY(csv_add(&csv, header, sizeof header - 1));
    TRY(rv_score_share(&setup, &share, &each, &score));
    if (options->predictions) TRY(rv_commit(options->predictions, NULL, csv.text, csv.size));
    TRY(result_fill(eval, setup.net, &score, classes, result));
    *out = eval;
    eval = NULL;
out:
    rv_eval_destroy(eval);
    rv_free(csv.text);
    rv_score_finish(&score);
    rv_free(block);
    rv_share_close(&share);
    rv_model_close(model);
    rv_setup_finish(&setup);
    rv_config_free(data);
    return status;
}

void rv_eval_destroy(rv_eval *eval) {
    if (!eval) return;
    rv_layers_finish(&eval->layers);
    rv_free(eval->confusion);
    rv_free(eval->model);
    rv_free(eval);
}
