/*
 * Ranvier data: configuration, readers, the batch loader, model files, run folders. The only place
 * that touches files. Own HDF5 files are read and written by h5.c alone; every file that must
 * survive a crash goes through commit.c (temporary, fsync, rename, fsync of the folder).
 */
#ifndef RV_DATA_H
#define RV_DATA_H

#include "kernels/kernels.h"
#include "snn/snn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configuration ---------------------------------------------------------------------- */
/* YAML as a small tree that keeps line and column (1-based). Owned by its root. */
typedef enum rv_node_kind { RV_NODE_SCALAR, RV_NODE_LIST, RV_NODE_MAP } rv_node_kind;
typedef struct rv_node {
    rv_node_kind kind;
    char *key;   /* in a map; else NULL */
    char *text;  /* scalar */
    bool quoted; /* scalar was quoted: always text */
    bool used;   /* read by the configuration */
    rv_where where;
    int count;
    struct rv_node **items;
} rv_node;
/* Parse a file or text. RV_INPUT missing, RV_CONFIG malformed (place given), aliases and tags
 * refused, 1 MiB and depth 32 at most. *out owned by the caller. */
RV_CHECKED rv_status rv_tree_load(const char *path, rv_node **out);
RV_CHECKED rv_status rv_tree_parse(const char *text, size_t size, const char *name, rv_node **out);
void rv_tree_free(rv_node *root);
/* `path.to.key=value`; list entries by their `name`. Creates missing maps. RV_USAGE. */
RV_CHECKED rv_status rv_tree_set(rv_node *root, const char *assignment);
rv_node *rv_tree_get(const rv_node *map, const char *key); /* NULL: absent; marks it used */

typedef struct rv_reader_row rv_reader_row; /* data/reader.h; begins with an rv_row */
typedef struct rv_data_desc {
    const rv_row *reader; /* of rv_reader_table() */
    void *options;        /* the reader's own */
    double validation;    /* share held out of train, chosen by seed */
    double mean, std;     /* normalize: (x/255 - mean)/std for bytes */
    int augment_count;    /* changes to training samples, in this order */
    rv_choice *augment;   /* rows of rv_augment_table() */
    rv_where where;
    struct rv_shared_source *shared; /* open training source, while a split of it is */
} rv_data_desc;

typedef struct rv_correction_key { /* an entry of pipeline.corrections, not looked up */
    char *name, *parameter;        /* parameter NULL: its default */
    double value;                  /* finite */
    rv_where where, value_where;   /* of the entry, of the parameter */
} rv_correction_key;

#define RV_HEALTH_NAMES "abort|skip_step"
typedef enum rv_health_policy { RV_HEALTH_ABORT, RV_HEALTH_SKIP_STEP } rv_health_policy;

typedef struct rv_config {
    uint64_t seed;
    char *preset;
    rv_shape input; /* rank 0: not given */
    rv_data_desc data;
    rv_choice encode;
    int steps;
    rv_net_desc net; /* input, input_* are filled by rv_config_bind */
    rv_loss_desc loss;
    rv_train_desc train;
    int stages;               /* pipeline.stages */
    char *schedule;           /* a row of the planner's tables, or auto */
    int slots;                /* 0: auto */
    bool chunks_auto;         /* then train.chunks is 1 until a plan says it */
    int cut_count, *cuts;     /* first layers of the stages after the first; 0: by costs */
    double pipeline_memory;   /* bytes; 0: no limit */
    bool tape_auto;           /* then train.tape is NULL until a plan says it */
    double peer_timeout;      /* seconds */
    int64_t checkpoint_steps; /* 0 = only at the end of an epoch */
    double checkpoint_seconds;
    int health_policy; /* rv_health_policy */
    int health_limit;  /* steps in a row that may be skipped */
    char *device;
    int correction_count; /* pipeline.corrections */
    rv_correction_key *corrections;
    int64_t async_until; /* updates, or epochs, after which the delay ends; 0: never */
    bool async_epochs;
    rv_node *tree; /* as resolved: every default written out */
    char *path;
    struct rv_pool_memory *memory; /* all strings, options, vectors */
} rv_config;
/* Load, apply `sets`, check against the tables. RV_CONFIG: unknown key with the nearest, wrong
 * type, out of range; RV_INPUT: no file. */
RV_CHECKED rv_status rv_config_load(const char *path, const char *const *sets, int set_count,
                                    rv_config **out);
RV_CHECKED rv_status rv_config_parse(const char *text, size_t size, const char *name,
                                     rv_config **out);
/* The same with `sets` applied before the check (the recipe stored in a model file). */
RV_CHECKED rv_status rv_config_parse_with(const char *text, size_t size, const char *name,
                                          const char *const *sets, int set_count, rv_config **out);
void rv_config_free(rv_config *config);
/* The resolved file: YAML that survives PyYAML safe_load unchanged. *text: rv_free. */
RV_CHECKED rv_status rv_config_text(const rv_config *config, char **text);
/* Give the network its input from the source and the encoder; `input` must agree (78). */
RV_CHECKED rv_status rv_config_bind(rv_config *config, const rv_source *source);
/* Digest of what resume depends on (README, "Run folder"): 64-bit FNV-1a, hex. Reads the data:
 * RV_INPUT, RV_DATA. */
RV_CHECKED rv_status rv_config_digest(const rv_config *config, char hex[17]);
/* The first key of those the digest covers that differs, with its values in both: "network.hidden.
 * units was 24, now 32". false: none; then a difference of digests is one of the data's contents.
 */
bool rv_config_differs(const rv_config *a, const rv_config *b, char *text, size_t size);

/* One row per configuration key, for `list keys` and the README. */
typedef struct rv_key_row {
    const char *path, *type, *initial, *sentence;
} rv_key_row;
const rv_key_row *rv_config_keys(int *count);

/* ---- readers and loader ----------------------------------------------------------------- */
typedef enum rv_split { RV_SPLIT_TRAIN, RV_SPLIT_VALIDATION, RV_SPLIT_TEST, RV_SPLITS } rv_split;
const char *rv_split_name(rv_split split);
const rv_table *rv_reader_table(void);
const rv_table *rv_augment_table(void);
/* Open the reader; training and validation share one source split by seed. RV_INPUT missing file,
 * RV_DATA damaged (path and what), RV_CONFIG when labels or counts do not fit. count 0: absent.
 * The config outlives its sources; one thread at a time opens or closes them. */
RV_CHECKED rv_status rv_data_open(const rv_config *config, rv_split split, rv_source *out);

/* What a data file holds, found from its contents. The whole file is read, so that a damaged one is
 * RV_DATA; RV_INPUT when it is not there, RV_DATA when no reader knows its format. */
typedef struct rv_data_info {
    const char *format; /* "idx", ...; constant text */
    const char *type;   /* of one element: "uint8", "float32", ... */
    int rank;
    int64_t dim[8];
} rv_data_info;
RV_CHECKED rv_status rv_data_describe(const char *path, rv_data_info *out);

/* Batches of an epoch in shuffled (keyed by seed and epoch) or file order; a thread of its own
 * prepares the next one. next blocks until it is ready; *out is NULL at the end of the epoch. A
 * batch larger than the data is RV_CONFIG when shuffled (training), and one smaller batch in file
 * order. */
typedef struct rv_loader rv_loader;
RV_CHECKED rv_status rv_loader_create(const rv_source *source, int batch, uint64_t seed,
                                      bool shuffle, rv_loader **out);
void rv_loader_destroy(rv_loader *loader);
RV_CHECKED rv_status rv_loader_start(rv_loader *loader, uint32_t epoch, int64_t first_batch);
RV_CHECKED rv_status rv_loader_next(rv_loader *loader, const rv_batch **out);
/* Let batches of later epochs be changed as data.augment says, with `config` kept; for the training
 * share, before the first start. RV_CONFIG where samples are no images of values. */
RV_CHECKED rv_status rv_loader_augment(rv_loader *loader, const rv_config *config);
/* Fill a batch with the first `count` samples in file order, never changed (form choice). */
RV_CHECKED rv_status rv_loader_first(rv_loader *loader, int count, const rv_batch **out);

/* ---- files that last -------------------------------------------------------------------- */
/* Write bytes to `path` so that a crash leaves the old or the new file, never a mixture:
 * path.tmp, full write, fsync, (path -> previous when given), rename, fsync of the folder.
 * RV_CREATE cannot open, RV_IO with path, bytes needed and free. */
RV_CHECKED rv_status rv_commit(const char *path, const char *previous, const void *bytes,
                               size_t size);
/* What a failed call (errno) on a file becomes: RV_IO with bytes needed and free; RV_CREATE, but
 * RV_IO when there was no room even for a name. */
RV_CHECKED rv_status rv_fail_io(const char *path, const char *what, size_t needed);
RV_CHECKED rv_status rv_fail_create(const char *path);
RV_CHECKED rv_status rv_read_file(const char *path, size_t limit, char **out, size_t *size);
/* Remove what a run that died left of unfinished commits in a folder: every *.tmp. */
RV_CHECKED rv_status rv_commit_sweep(const char *folder);
/* RV_IO with both numbers unless the folder's file system has `bytes` free for `what`; where it
 * does not tell, it is believed to. */
RV_CHECKED rv_status rv_commit_room(const char *folder, const char *what, size_t bytes);

/* One thread that writes while others compute: checkpoints, recordings, spilled tapes. Without a
 * thread (stepped), for tests that draw the order of everything: a job runs, in the calling thread,
 * in rv_writer_step or in a call that would block. */
typedef struct rv_writer rv_writer;
typedef struct rv_writer_job { /* called where the writer runs */
    rv_status (*run)(void *self);
    void (*done)(void *self); /* at the end, also of a job that was dropped; may be NULL */
    void *self;
} rv_writer_job;
RV_CHECKED rv_status rv_writer_create(int room, rv_writer **out); /* room: jobs at a time */
RV_CHECKED rv_status rv_writer_create_stepped(int room, rv_writer **out);
bool rv_writer_step(rv_writer *writer);    /* stepped: the first job; false: there is none */
void rv_writer_destroy(rv_writer *writer); /* blocks until what was submitted is done */
/* Each gives the first failure of a job from then on, and later jobs are dropped. submit blocks
 * while the queue is full, wait until it is empty, check never; its `idle` may be NULL. */
RV_CHECKED rv_status rv_writer_submit(rv_writer *writer, const rv_writer_job *job);
RV_CHECKED rv_status rv_writer_check(rv_writer *writer, bool *idle);
RV_CHECKED rv_status rv_writer_wait(rv_writer *writer);

/* Records of one size in an HDF5 file that ends with the run (tapes between F and B): dataset
 * /tapes, bytes [records][bytes]. `name`.tmp in the folder, so that what a crash leaves is swept
 * with unfinished commits; name NULL: a file without one, which ends with the process. folder NULL:
 * where the system has temporary files. Written and read with plain calls at known places. A record
 * is read in the pieces in which it was written, and checked at its end. One thread at a time. */
typedef struct rv_spill rv_spill;
RV_CHECKED rv_status rv_spill_create(const char *folder, const char *name, size_t records,
                                     size_t bytes, rv_spill **out); /* RV_CREATE, RV_IO: no room */
void rv_spill_destroy(rv_spill *spill);                             /* and the file */
/* The next `size` bytes of a record; `at` 0 begins it anew. RV_IO with path, bytes needed and free;
 * RV_DATA: not what was written. */
RV_CHECKED rv_status rv_spill_write(rv_spill *spill, size_t record, size_t at, const void *from,
                                    size_t size);
RV_CHECKED rv_status rv_spill_read(rv_spill *spill, size_t record, size_t at, void *to,
                                   size_t size);

/* What was written goes to the medium, and is read from there the next time. */
RV_CHECKED rv_status rv_spill_flush(rv_spill *spill);

/* One run in a folder at a time. */
typedef struct rv_owner { /* who holds it; host empty: not known */
    char host[256], boot[64], started[32];
    int64_t pid, ticks; /* start of the process in ticks after boot */
} rv_owner;
typedef struct rv_lock rv_lock;
/* RV_CREATE within a second, naming host, pid and start, when a live process holds it; the lock of
 * a dead one is taken over. Never waits for a run to end. */
RV_CHECKED rv_status rv_lock_take(const char *folder, rv_lock **out);
const char *rv_lock_note(const rv_lock *lock); /* what the user should know; may be empty */
void rv_lock_release(rv_lock *lock);           /* NULL allowed */
bool rv_lock_look(const char *folder, rv_owner *owner); /* held by a process that may be alive? */

typedef struct rv_progress { /* where training stands, saved and restored */
    int64_t step, epoch, batch_in_epoch;
    double best_validation;
    int64_t best_epoch;
    double best_test, last_test; /* test accuracy of the best and of the last epoch */
    /* What the run is worth as it is: best_*, unless its last epoch was cut short and counts. */
    double shown_validation, shown_test;
    double epoch_loss; /* sums over the samples of the epoch so far */
    int64_t epoch_correct, epoch_samples;
    int64_t metrics; /* bytes of metrics.jsonl */
} rv_progress;
/* A model or checkpoint file. optimizer may be NULL. previous: keep the old file under that name.
 */
typedef struct rv_model_save {
    const rv_net *net;
    const float *block;
    const rv_optimizer *optimizer;
    const rv_progress *progress;
    const char *config_text;
    const char *isa;
    const char *resume_digest; /* rv_config_digest, or NULL */
    const float *health;       /* what warnings remember, [health_count]; NULL: none */
    int health_count;
    const float *versions; /* of delayed stages, [version_count]; NULL: none */
    size_t version_count;
    const char *delay; /* what they belong to, in words; NULL: to nothing */
} rv_model_save;
RV_CHECKED rv_status rv_model_write(const char *path, const char *previous,
                                    const rv_model_save *model);
/* A copy of it, so that training goes on while another thread writes. create makes room for models
 * like this one (same network and optimiser) and copies its texts; take copies the rest and cannot
 * fail; drop gives the copy's memory back until the next take. write makes the file of the model
 * alone, then the checkpoint (`previous` as for rv_commit); a path that is NULL is left out. bytes:
 * of one file at most; optimizer: of a checkpoint. */
typedef struct rv_snapshot rv_snapshot;
RV_CHECKED rv_status rv_snapshot_create(const rv_model_save *model, rv_snapshot **out);
void rv_snapshot_destroy(rv_snapshot *snapshot);
void rv_snapshot_take(rv_snapshot *snapshot, const rv_model_save *model);
void rv_snapshot_drop(rv_snapshot *snapshot);
RV_CHECKED rv_status rv_snapshot_write(const rv_snapshot *snapshot, const char *model,
                                       const char *checkpoint, const char *previous);
size_t rv_snapshot_bytes(const rv_snapshot *snapshot, bool optimizer);
/* Opened model: its configuration text and tensors. RV_INPUT, RV_DATA (what and where). */
typedef struct rv_model rv_model;
RV_CHECKED rv_status rv_model_open(const char *path, rv_model **out);
void rv_model_close(rv_model *model);
const char *rv_model_config(const rv_model *model);
int rv_model_version(const rv_model *model); /* of the file format */
const char *rv_model_isa(const rv_model *model);
const char *rv_model_resume_digest(const rv_model *model); /* empty: none */
/* Does it hold what a run goes on from? Then also the horizon of its rate schedule. */
bool rv_model_checkpoint(const rv_model *model, int64_t *total_steps);
RV_CHECKED rv_status rv_model_load(const rv_model *model, const rv_net *net, float *block,
                                   rv_optimizer *optimizer, rv_progress *progress);
/* What warnings remember; left alone where the file holds none of that length. */
void rv_model_health(const rv_model *model, float *health, int count);
/* What rv_model_save.delay was; empty: none. And the versions: RV_CONFIG where the file has not so
 * many floats of them. */
const char *rv_model_delay(const rv_model *model);
RV_CHECKED rv_status rv_model_versions(const rv_model *model, float *versions, size_t count);
/* Take the tensors of equal name and shape, tell `say` every other one of either. RV_CONFIG when
 * there is none to take. */
RV_CHECKED rv_status rv_model_import(const rv_model *model, const rv_net *net, float *block,
                                     void (*say)(void *user, const char *name, const char *why),
                                     void *user, int *taken);
/* Where two models differ first: tensors of layers; then, without `layer` and where both are
 * checkpoints, the optimiser's arrays and the progress (the log's length aside). */
typedef struct rv_model_difference {
    char name[2 * RV_NAME_MAX + 64]; /* "hidden.weight", "hidden.weight/m", "progress.step" */
    const char *what; /* "value", "shape", or "only in the first", "only in the second" */
    int rank, index[4];
    double a, b; /* values; of arrays float32 */
    uint64_t bits_a, bits_b;
    bool wide; /* bits are of a double or int64 */
} rv_model_difference;
/* false: none. *compared: arrays looked at; 0 with `layer`: neither has such a layer. */
bool rv_model_differs(const rv_model *a, const rv_model *b, const char *layer,
                      rv_model_difference *out, int *compared);
/* Read every byte and verify every checksum. */
RV_CHECKED rv_status rv_model_check(const char *path);
typedef struct rv_model_tensor {
    char name[RV_NAME_MAX + 32];
    int rank, dim[4];
} rv_model_tensor;
int rv_model_tensors(const rv_model *model, const rv_model_tensor **out);
bool rv_h5_available(void); /* false in a build with HDF5=0 */

/* ---- run folder ------------------------------------------------------------------------- */
typedef struct rv_run rv_run;
typedef struct rv_run_info { /* goes to run.json */
    const char *version, *isa, *schedule, *digest;
    uint64_t seed;
    int threads;
    const rv_net *net; /* forms by layer */
} rv_run_info;
/* Create the folder: `path`, or runs/<stem> and the next free -2, -3; claim it and begin.
 * RV_CREATE when `path` exists and holds a run, or cannot be written. */
RV_CHECKED rv_status rv_run_create(const char *path, const char *stem, const rv_config *config,
                                   const rv_run_info *info, rv_run **out);
/* The two parts of it, for a folder that exists: lock it (rv_lock_take) and sweep what a dead run
 * left; then write config.yaml and run.json, and cut metrics.jsonl to `metrics` bytes. */
RV_CHECKED rv_status rv_run_claim(const char *path, rv_run **out);
RV_CHECKED rv_status rv_run_begin(rv_run *run, const rv_config *config, const rv_run_info *info,
                                  int64_t metrics);
bool rv_run_holds(rv_run *run);                       /* a run is there already */
bool rv_run_complete(rv_run *run);                    /* and its status says so */
RV_CHECKED rv_status rv_run_taken(const rv_run *run); /* RV_CREATE saying so */
const char *rv_run_note(const rv_run *run);           /* of its lock; may be empty */
int64_t rv_run_metrics(const rv_run *run);            /* bytes of metrics.jsonl */
RV_CHECKED rv_status rv_run_sync(const rv_run *run);  /* bring them to the disk; any thread */
const char *rv_run_path(const rv_run *run);
/* path/name into buffer of the run; valid until the next call. */
const char *rv_run_file(rv_run *run, const char *name);
/* Append one line of JSON (no newline in it) to metrics.jsonl. */
RV_CHECKED rv_status rv_run_metric(rv_run *run, const char *json);
/* Rewrite run.json with a new status: running, complete, checkpointed, failed. */
RV_CHECKED rv_status rv_run_status(rv_run *run, const char *status);
void rv_run_destroy(rv_run *run);

/* Scalars for TensorBoard, beside metrics.jsonl: one file a start, named after its first step. */
typedef struct rv_events rv_events;
RV_CHECKED rv_status rv_events_create(const char *folder, int64_t step, double wall_time,
                                      rv_events **out);
RV_CHECKED rv_status rv_events_scalars(rv_events *events, int64_t step, double wall_time,
                                       const char *const *tags, const double *values, int count);
void rv_events_destroy(rv_events *events);
uint32_t rv_crc32c(const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif
