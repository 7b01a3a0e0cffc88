/*
 * Inside data/: what writing (model_save.c) and reading (model.c) of model files share.
 */
#ifndef RV_DATA_MODEL_H
#define RV_DATA_MODEL_H

#include "data/h5.h"

#define RV_MODEL_FORMAT "ranvier-model"
enum { RV_MODEL_VERSION = 1, RV_MODEL_PATH = 2 * RV_NAME_MAX + 64 };

struct rv_model {
    char *name; /* of the file, for messages */
    rv_h5_list list;
    char *config;
    int version;
    rv_model_tensor *tensors;
    int tensor_count;
};

/* rv_model_open of a file that is in memory. */
RV_CHECKED rv_status rv_model_read(const char *bytes, size_t size, const char *name,
                                   rv_model **out);

/* Sum over all items but itself, whatever their order. */
RV_CHECKED rv_status rv_model_sum(const rv_h5_list *list, uint64_t *out);
/* Names of arrays in the file. */
void rv_model_tensor_path(const rv_net *net, const rv_tensor *tensor, char path[RV_MODEL_PATH]);
void rv_model_slot_path(const rv_tensor *tensor, const char *slot, char path[RV_MODEL_PATH]);

/* Fields of a struct that lie as attributes at /progress, for both directions. */
typedef struct rv_model_field {
    const char *name; /* NULL: the end */
    size_t offset;
    bool real; /* double, else int64_t */
} rv_model_field;
extern const rv_model_field rv_progress_fields[], rv_plateau_fields[];

#endif
