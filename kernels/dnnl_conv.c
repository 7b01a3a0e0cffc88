/*
 * Convolution by oneDNN: see dnnl_conv.h. The C interface of 2.6: an operation description, from it
 * a primitive description (the implementation), from that a primitive; orders of memory are asked
 * back from the second. Everything is made once per shape; a run makes only small memory objects.
 */
#include "kernels/dnnl_conv.h"

#ifdef RV_DNNL

#include <dnnl.h>
#include <pthread.h>
#include <string.h>

enum { TERMS = 3, MAX_OPERANDS = 5 };

/* One of the three products. `move_in` and `move_out` carry images between rows and oneDNN's
 * order: into it for operands, out of it for the result (WEIGHT has two operands). bf16x3: `run`
 * begins with the first term of the weights, `more` adds another. */
typedef struct product {
    int terms; /* 1 or TERMS */
    dnnl_primitive_desc_t desc, more_desc;
    dnnl_primitive_t run, more, move_in, move_out, pack, unpack;
    dnnl_memory_desc_t in, out, weights, scratch, more_scratch; /* what oneDNN chose */
} product;

/* Everything a primitive depends on. No padding between members: keys are compared as bytes. */
typedef struct plan_key {
    rv_plane in, out;
    rv_window window;
    int groups, B, ld_in, ld_out, bias, terms;
} plan_key;

struct rv_conv_plan {
    rv_conv_plan *next;
    rv_conv_cache *cache;
    plan_key key;
    dnnl_memory_desc_t rows_in, rows_out, plain, bias; /* our own orders */
    dnnl_primitive_desc_t hint; /* of forward in float32, which the adjoints ask for */
    product products[3];
};

/* The engine and the stream hold no state of a call on the CPU: threads share them. */
struct rv_conv_cache {
    pthread_mutex_t lock;
    bool lock_made;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    rv_conv_plan *plans;
};

/* oneDNN has no text for its codes; the call that failed says more. */
static rv_status dnnl_check(dnnl_status_t result, const char *what) {
    if (result == dnnl_success) return RV_OK;
    return rv_fail(result == dnnl_out_of_memory ? RV_MEMORY : RV_INTERNAL,
                   "oneDNN: %s failed with status %d", what, (int)result);
}
#define CALL(function, ...) TRY(dnnl_check(function(__VA_ARGS__), #function))

/* ---- cache ------------------------------------------------------------------------------ */
rv_status rv_conv_cache_create(rv_conv_cache **out) {
    rv_status status = RV_OK;
    rv_conv_cache *cache = NULL;
    TRY(rv_alloc(1, sizeof *cache, "convolution plans", &cache));
    if (pthread_mutex_init(&cache->lock, NULL)) FAIL(RV_RESOURCE, "no mutex for convolution plans");
    cache->lock_made = true;
    CALL(dnnl_engine_create, &cache->engine, dnnl_cpu, 0);
    CALL(dnnl_stream_create, &cache->stream, cache->engine, dnnl_stream_default_flags);
    *out = cache;
    cache = NULL;
out:
    rv_conv_cache_destroy(cache);
    return status;
}

/* Takes a plan half made, too. */
static void plan_destroy(rv_conv_plan *plan) {
    if (!plan) return;
    for (int p = 0; p < 3; p++) {
        product *q = &plan->products[p];
        dnnl_primitive_t primitives[] = {q->run,      q->more, q->move_in,
                                         q->move_out, q->pack, q->unpack};
        for (size_t i = 0; i < sizeof primitives / sizeof *primitives; i++)
            if (primitives[i]) dnnl_primitive_destroy(primitives[i]);
        if (q->desc) dnnl_primitive_desc_destroy(q->desc);
        if (q->more_desc) dnnl_primitive_desc_destroy(q->more_desc);
    }
    if (plan->hint) dnnl_primitive_desc_destroy(plan->hint);
    rv_free(plan);
}

void rv_conv_cache_destroy(rv_conv_cache *cache) {
    if (!cache) return;
    for (rv_conv_plan *plan = cache->plans, *next; plan; plan = next) {
        next = plan->next;
        plan_destroy(plan);
    }
    if (cache->stream) dnnl_stream_destroy(cache->stream);
    if (cache->engine) dnnl_engine_destroy(cache->engine);
    if (cache->lock_made) pthread_mutex_destroy(&cache->lock);
    rv_free(cache);
}

/* ---- plans ------------------------------------------------------------------------------ */
/* A reorder; oneDNN finds the fastest way between two orders. */
static rv_status make_move(dnnl_engine_t engine, const dnnl_memory_desc_t *from,
                           const dnnl_memory_desc_t *to, dnnl_primitive_t *out) {
    rv_status status = RV_OK;
    dnnl_primitive_desc_t desc = NULL;
    CALL(dnnl_reorder_primitive_desc_create, &desc, from, engine, to, engine, NULL);
    CALL(dnnl_primitive_create, out, desc);
out:
    if (desc) dnnl_primitive_desc_destroy(desc);
    return status;
}

/* An operand is moved into oneDNN's order, a result out of it. */
static rv_status make_carry(dnnl_engine_t engine, const dnnl_memory_desc_t *rows,
                            const dnnl_memory_desc_t *inside, bool result, dnnl_primitive_t *out) {
    return make_move(engine, result ? inside : rows, result ? rows : inside, out);
}

/* rows of images: the distance between images is ld, whatever their units. */
static rv_status make_rows(dnnl_memory_desc_t *out, int B, rv_plane plane, int ld) {
    const dnnl_dims_t dims = {B, plane.c, plane.h, plane.w};
    const dnnl_dims_t strides = {ld, (dnnl_dim_t)plane.h * plane.w, plane.w, 1};
    return dnnl_check(dnnl_memory_desc_init_by_strides(out, 4, dims, dnnl_f32, strides),
                      "description of images");
}

/* The primitive of one product, whose operands are of `type`. Images and weights have the order
 * `any`, oneDNN picks blocked ones, which ran two to three times as fast here as plain channels,
 * reorders included; or they are as `like` has them, and there is no bias. */
static rv_status describe(const rv_conv_plan *plan, rv_conv_product kind, dnnl_data_type_t type,
                          const product *like, dnnl_primitive_attr_t attr,
                          dnnl_primitive_desc_t *desc) {
    rv_status status = RV_OK;
    const plan_key *k = &plan->key;
    const rv_window *w = &k->window;
    dnnl_memory_desc_t in, out, weights;
    const dnnl_dims_t in_dims = {k->B, k->in.c, k->in.h, k->in.w};
    const dnnl_dims_t out_dims = {k->B, k->out.c, k->out.h, k->out.w};
    CALL(dnnl_memory_desc_init_by_tag, &in, 4, in_dims, type, dnnl_format_tag_any);
    CALL(dnnl_memory_desc_init_by_tag, &out, 4, out_dims, dnnl_f32, dnnl_format_tag_any);
    CALL(dnnl_memory_desc_init_by_tag, &weights, plan->plain.ndims, plan->plain.dims, type,
         dnnl_format_tag_any);
    if (like) in = like->in, out = like->out, weights = like->weights;
    const dnnl_dims_t stride = {w->stride[0], w->stride[1]};
    const dnnl_dims_t dilation = {w->dilation[0] - 1, w->dilation[1] - 1};
    const dnnl_dims_t padding = {w->padding[0], w->padding[1]};
    dnnl_convolution_desc_t conv;
    switch (kind) {
    case RV_CONV_FORWARD:
        CALL(dnnl_dilated_convolution_forward_desc_init, &conv, dnnl_forward_training,
             dnnl_convolution_direct, &in, &weights, k->bias && !like ? &plan->bias : NULL, &out,
             stride, dilation, padding, padding);
        break;
    case RV_CONV_BACKWARD:
        CALL(dnnl_dilated_convolution_backward_data_desc_init, &conv, dnnl_convolution_direct, &in,
             &weights, &out, stride, dilation, padding, padding);
        break;
    case RV_CONV_WEIGHT:
        CALL(dnnl_dilated_convolution_backward_weights_desc_init, &conv, dnnl_convolution_direct,
             &in, &weights, NULL, &out, stride, dilation, padding, padding);
        break;
    }
    CALL(dnnl_primitive_desc_create, desc, &conv, attr, plan->cache->engine, plan->hint);
out:
    return status;
}

/* A primitive's scratch comes from the caller's arena, so threads may share it. add: its result is
 * added to what is there. */
static rv_status make_attr(bool add, dnnl_primitive_attr_t *out) {
    rv_status status = RV_OK;
    dnnl_post_ops_t after = NULL;
    CALL(dnnl_primitive_attr_create, out);
    CALL(dnnl_primitive_attr_set_scratchpad_mode, *out, dnnl_scratchpad_mode_user);
    if (!add) goto out;
    CALL(dnnl_post_ops_create, &after);
    CALL(dnnl_post_ops_append_sum, after, 1.0f);
    CALL(dnnl_primitive_attr_set_post_ops, *out, after);
out:
    if (after) dnnl_post_ops_destroy(after);
    return status;
}

static const dnnl_memory_desc_t *chosen(dnnl_primitive_desc_t desc, dnnl_query_t what) {
    return dnnl_primitive_desc_query_md(desc, what, 0);
}

static rv_status make_product(rv_conv_plan *plan, rv_conv_product kind,
                              dnnl_primitive_attr_t attr) {
    rv_status status = RV_OK;
    product *q = &plan->products[kind];
    dnnl_primitive_attr_t add = NULL;
    dnnl_engine_t engine = plan->cache->engine;
    bool forward = kind == RV_CONV_FORWARD, backward = kind == RV_CONV_BACKWARD;
    q->terms = forward ? plan->key.terms : 1;
    TRY(describe(plan, kind, q->terms > 1 ? dnnl_bf16 : dnnl_f32, NULL, attr, &q->desc));
    CALL(dnnl_primitive_create, &q->run, q->desc);
    q->in = *chosen(q->desc, backward ? dnnl_query_diff_src_md : dnnl_query_src_md);
    q->out = *chosen(q->desc, forward ? dnnl_query_dst_md : dnnl_query_diff_dst_md);
    q->weights = *chosen(q->desc, kind == RV_CONV_WEIGHT ? dnnl_query_diff_weights_md
                                                         : dnnl_query_weights_md);
    q->scratch = *chosen(q->desc, dnnl_query_scratchpad_md);
    TRY(make_carry(engine, &plan->rows_in, &q->in, backward, &q->move_in));
    TRY(make_carry(engine, &plan->rows_out, &q->out, forward, &q->move_out));
    TRY(make_move(engine, &plan->plain, &q->weights, &q->pack));
    TRY(make_move(engine, &q->weights, &plan->plain, &q->unpack));
    if (q->terms > 1) {
        TRY(make_attr(true, &add));
        TRY(describe(plan, kind, dnnl_bf16, q, add, &q->more_desc));
        CALL(dnnl_primitive_create, &q->more, q->more_desc);
        q->more_scratch = *chosen(q->more_desc, dnnl_query_scratchpad_md);
    }
out:
    if (add) dnnl_primitive_attr_destroy(add);
    return status;
}

/* All three products at once: a network that trains needs them, and a shape is planned once. */
static rv_status plan_create(rv_conv_cache *cache, const plan_key *key, rv_conv_plan **out) {
    rv_status status = RV_OK;
    rv_conv_plan *plan = NULL;
    dnnl_primitive_attr_t attr = NULL;
    TRY(rv_alloc(1, sizeof *plan, "convolution plan", &plan));
    plan->cache = cache;
    plan->key = *key;
    TRY(make_rows(&plan->rows_in, key->B, key->in, key->ld_in));
    TRY(make_rows(&plan->rows_out, key->B, key->out, key->ld_out));
    const int *kernel = key->window.kernel, g = key->groups;
    /* With groups the weights gain an axis; PyTorch's memory is the same either way. */
    const dnnl_dims_t grouped = {g, key->out.c / g, key->in.c / g, kernel[0], kernel[1]};
    const dnnl_dims_t single = {key->out.c, key->in.c, kernel[0], kernel[1]};
    if (g > 1) {
        CALL(dnnl_memory_desc_init_by_tag, &plan->plain, 5, grouped, dnnl_f32, dnnl_goihw);
    } else {
        CALL(dnnl_memory_desc_init_by_tag, &plan->plain, 4, single, dnnl_f32, dnnl_oihw);
    }
    const dnnl_dims_t channels = {key->out.c};
    CALL(dnnl_memory_desc_init_by_tag, &plan->bias, 1, channels, dnnl_f32, dnnl_x);
    TRY(make_attr(false, &attr));
    TRY(describe(plan, RV_CONV_FORWARD, dnnl_f32, NULL, attr, &plan->hint));
    for (int p = 0; p < 3; p++)
        TRY(make_product(plan, (rv_conv_product)p, attr));
    *out = plan;
    plan = NULL;
out:
    if (attr) dnnl_primitive_attr_destroy(attr);
    plan_destroy(plan);
    return status;
}

/* With fewer channels tiles are mostly padding, and float32 is as fast. */
static int forward_terms(const rv_conv *conv, bool amx) {
    enum { LEAST = 16 };
    int in = conv->in.c / conv->groups, out = conv->out.c / conv->groups;
    return amx && conv->bf16 && in >= LEAST && out >= LEAST ? TERMS : 1;
}

rv_status rv_conv_plan_get(rv_conv_cache *cache, const rv_conv *conv, bool amx, int B, int ld_in,
                           int ld_out, const rv_conv_plan **out) {
    rv_status status = RV_OK;
    plan_key key;
    memset(&key, 0, sizeof key); /* keys are compared as bytes */
    key.in = conv->in, key.out = conv->out, key.window = conv->window;
    key.groups = conv->groups, key.B = B, key.ld_in = ld_in, key.ld_out = ld_out;
    key.bias = conv->bias != NULL, key.terms = forward_terms(conv, amx);
    /* Plans are never removed, so a pointer handed out stays good until the device closes. */
    pthread_mutex_lock(&cache->lock);
    rv_conv_plan *plan = cache->plans;
    while (plan && memcmp(&plan->key, &key, sizeof key))
        plan = plan->next;
    if (!plan) {
        TRY(plan_create(cache, &key, &plan));
        plan->next = cache->plans;
        cache->plans = plan;
    }
    *out = plan;
out:
    pthread_mutex_unlock(&cache->lock);
    return status;
}

/* ---- use -------------------------------------------------------------------------------- */
/* Floats of a description, to whole vectors so that neighbours in scratch stay aligned. */
static size_t md_floats(const dnnl_memory_desc_t *md) {
    size_t floats = (dnnl_memory_desc_get_size(md) + sizeof(float) - 1) / sizeof(float);
    return (floats + RV_LANES - 1) / RV_LANES * RV_LANES;
}
/* Terms are followed by what is left of the weights while they are made. */
size_t rv_conv_plan_weights(const rv_conv_plan *plan, rv_conv_product kind) {
    const product *q = &plan->products[kind];
    size_t left = q->terms > 1 ? md_floats(&plan->plain) : 0;
    return (size_t)q->terms * md_floats(&q->weights) + left;
}
size_t rv_conv_plan_scratch(const rv_conv_plan *plan, rv_conv_product kind) {
    const product *q = &plan->products[kind];
    size_t pad = md_floats(&q->scratch), more = md_floats(&q->more_scratch);
    return md_floats(&q->in) + md_floats(&q->out) + (pad > more ? pad : more);
}
/* Orders are equal when their descriptions are. */
bool rv_conv_plan_fits(const rv_conv_plan *plan, const rv_conv_plan *from, rv_conv_product kind) {
    return dnnl_memory_desc_equal(&plan->products[kind].weights, &from->products[kind].weights);
}

/* Run a primitive on at most five memories; descriptions and pointers side by side. */
typedef struct operand {
    int argument;
    const dnnl_memory_desc_t *md;
    const void *data;
} operand;

/* Memory objects are small and made per call: a plan serves many threads at once. */
static rv_status execute(const rv_conv_plan *plan, dnnl_primitive_t primitive,
                         const operand *operands, int count) {
    rv_status status = RV_OK;
    dnnl_exec_arg_t args[MAX_OPERANDS] = {{0, NULL}};
    int made = 0;
    for (; made < count; made++) {
        args[made].arg = operands[made].argument;
        CALL(dnnl_memory_create, &args[made].memory, operands[made].md, plan->cache->engine,
             (void *)(uintptr_t)operands[made].data);
    }
    CALL(dnnl_primitive_execute, primitive, plan->cache->stream, count, args);
out:
    for (int i = 0; i < made; i++)
        dnnl_memory_destroy(args[i].memory);
    return status;
}

static rv_status move(const rv_conv_plan *plan, dnnl_primitive_t primitive,
                      const dnnl_memory_desc_t *from_md, const float *from,
                      const dnnl_memory_desc_t *to_md, float *to) {
    const operand operands[] = {{DNNL_ARG_FROM, from_md, from}, {DNNL_ARG_TO, to_md, to}};
    return execute(plan, primitive, operands, 2);
}

/* A term is what is left of the weights, rounded by the reorder; what then is left is exact. */
static rv_status pack_terms(const rv_conv_plan *plan, const product *q, const float *plain,
                            float *packed) {
    rv_status status = RV_OK;
    size_t term = md_floats(&q->weights);
    size_t count = dnnl_memory_desc_get_size(&plan->plain) / sizeof(float);
    float *left = packed + (size_t)q->terms * term;
    memcpy(left, plain, count * sizeof *left);
    for (int k = 0; k < q->terms; k++, packed += term) {
        TRY(move(plan, q->pack, &plan->plain, left, &q->weights, packed));
        rv_bf16_rest(left, count);
    }
out:
    return status;
}

rv_status rv_conv_plan_pack(const rv_conv_plan *plan, rv_conv_product kind, const float *plain,
                            float *packed) {
    const product *q = &plan->products[kind];
    if (q->terms > 1) return pack_terms(plan, q, plain, packed);
    return move(plan, q->pack, &plan->plain, plain, &q->weights, packed);
}
rv_status rv_conv_plan_unpack(const rv_conv_plan *plan, rv_conv_product kind, const float *packed,
                              float *plain) {
    const product *q = &plan->products[kind];
    return move(plan, q->unpack, &q->weights, packed, &plan->plain, plain);
}

/* Move the operands in, run, move the result out; weights come packed and go packed. */
rv_status rv_conv_plan_run(const rv_conv_plan *plan, rv_conv_product kind, float *in,
                           float *weights, const float *bias, float *out, float *scratch) {
    rv_status status = RV_OK;
    const product *q = &plan->products[kind];
    /* Scratch: the image on each side in oneDNN's order, then what the primitive asks for. */
    float *a = scratch, *c = a + md_floats(&q->in), *pad = c + md_floats(&q->out);
    static const int arguments[3][3] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    };
    const operand operands[MAX_OPERANDS] = {
        {arguments[kind][0], &q->in, a},    {arguments[kind][1], &q->weights, weights},
        {arguments[kind][2], &q->out, c},   {DNNL_ARG_SCRATCHPAD, &q->scratch, pad},
        {DNNL_ARG_BIAS, &plan->bias, bias},
    };
    operand more[] = {
        operands[0], operands[1], operands[2], {DNNL_ARG_SCRATCHPAD, &q->more_scratch, pad}};
    bool biased = kind == RV_CONV_FORWARD && plan->key.bias;
    if (kind != RV_CONV_BACKWARD) TRY(move(plan, q->move_in, &plan->rows_in, in, &q->in, a));
    if (kind != RV_CONV_FORWARD) TRY(move(plan, q->move_out, &plan->rows_out, out, &q->out, c));
    TRY(execute(plan, q->run, operands, biased ? 5 : 4));
    for (int k = 1; k < q->terms; k++) {
        more[1].data = weights + (size_t)k * md_floats(&q->weights);
        TRY(execute(plan, q->more, more, 4));
    }
    if (kind == RV_CONV_BACKWARD) TRY(move(plan, q->move_in, &q->in, a, &plan->rows_in, in));
    if (kind == RV_CONV_FORWARD) TRY(move(plan, q->move_out, &q->out, c, &plan->rows_out, out));
out:
    return status;
}

#endif
