/*
 * From a recipe to a network on a device with data: what training, evaluation and checks share.
 * Order: recipe, shares, network (needs the shape of a share), device, trainer.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/internal.h"

/* A key that the recipe leaves out has the place of the map around it, at worst the file alone. */
rv_where rv_config_place(const rv_config *config, const char *section, const char *key) {
    rv_where where = {config->path, 0, 0};
    const rv_node *node = config->tree ? rv_tree_get(config->tree, section) : NULL;
    if (node && node->kind == RV_NODE_MAP) node = rv_tree_get(node, key);
    if (node && node->where.line) where = node->where;
    return where;
}

/* ---- shares of the data ----------------------------------------------------------------- */

rv_status rv_share_open(rv_share *share, const rv_config *config, rv_split split, bool shuffle) {
    rv_status status = RV_OK;
    TRY(rv_data_open(config, split, &share->source));
    /* Evaluation may have less than a batch; training would never make a full one. */
    if (shuffle && config->train.batch > share->source.count) {
        status =
            rv_fail_at(RV_CONFIG, rv_config_place(config, "train", "batch"), "train.batch", NULL,
                       "batch of %d is larger than the %s share of %lld samples",
                       config->train.batch, rv_split_name(split), (long long)share->source.count);
        goto out;
    }
    if (share->source.count > 0)
        TRY(rv_loader_create(&share->source, config->train.batch, config->seed, shuffle,
                             &share->loader));
    if (shuffle && share->loader) TRY(rv_loader_augment(share->loader, config));
out:
    return status;
}

void rv_share_close(rv_share *share) {
    rv_loader_destroy(share->loader);
    if (share->source.close) share->source.close(share->source.self);
    *share = (rv_share){0};
}

/* ---- device ----------------------------------------------------------------------------- */

/* Whether the processor has it is for the device to say. */
rv_status rv_isa_parse(const char *name, rv_isa *out) {
    *out = RV_ISA_AUTO;
    if (!name) return RV_OK;
    const char *names[RV_ISAS];
    for (int i = 0; i < RV_ISAS; i++) {
        names[i] = rv_isa_name((rv_isa)i);
        if (strcmp(name, names[i]) == 0) {
            *out = (rv_isa)i;
            return RV_OK;
        }
    }
    return rv_fail_at(RV_USAGE, (rv_where){0}, NULL, rv_name_nearest(name, names, RV_ISAS),
                      "unknown instruction set \"%s\" (one of " RV_ISA_NAMES ")", name);
}

rv_status rv_setup_device(rv_setup *setup, const char *isa, int threads) {
    rv_status status = RV_OK;
    rv_isa level;
    if (threads < 0) FAIL(RV_USAGE, "threads: %d is negative", threads);
    int stages = setup->config ? setup->config->stages : 1, all = rv_host_threads();
    setup->threads = threads ? threads : all / stages > 1 ? all / stages : 1;
    TRY(rv_isa_parse(isa, &level));
    TRY(rv_device_parse(setup->config ? setup->config->device : "cpu", &setup->devices));
    rv_device_choose(&setup->devices);
    TRY(rv_device_open_at(&setup->devices, 0, level, setup->threads, &setup->device));
    TRY(rv_setup_delay_device(setup));
out:
    return status;
}

const char *rv_setup_isa(const rv_setup *setup) {
    const rv_device *device = &setup->device;
    return device->ops->apart ? device->ops->name : rv_isa_name(rv_device_isa(device));
}

/* ---- network ---------------------------------------------------------------------------- */

rv_status rv_setup_net(rv_setup *setup, const rv_source *source) {
    rv_status status = RV_OK;
    TRY(rv_config_bind(setup->config, source));
    TRY(rv_net_create(&setup->config->net, &setup->net));
out:
    return status;
}

/* Forms are chosen under a version of their own: a trainer is made for the forms as chosen, and
 * packs its weights for them once. */
rv_status rv_setup_forms(rv_setup *setup, rv_share *first, const float *block, rv_version **out) {
    rv_status status = RV_OK;
    const rv_config *config = setup->config;
    rv_version *start = NULL;
    const rv_batch *batch = NULL;
    int parts = config->train.micro_batches, rows = (config->train.batch + parts - 1) / parts;
    int count = config->train.batch < RV_FORM_SAMPLES ? config->train.batch : RV_FORM_SAMPLES;
    if (first->source.count < count) count = (int)first->source.count;

    TRY(rv_version_create(setup->net, &setup->device, &start));
    if (block)
        memcpy(rv_version_block(start), block, setup->net->n_all * sizeof *block);
    else
        TRY(rv_net_init(setup->net, rv_version_block(start)));
    TRY(rv_version_derive(start, rows));
    TRY(rv_loader_first(first->loader, count, &batch));
    TRY(rv_net_choose_forms(setup->net, &setup->device, start, &config->encode, batch));
    *out = start;
    start = NULL;
out:
    rv_version_destroy(start);
    return status;
}

rv_status rv_setup_one(rv_setup *setup, int64_t total_steps, rv_engine **engine) {
    const rv_config *config = setup->config;
    const rv_serial_desc desc = {setup->net,    &setup->device, &config->encode,
                                 &config->loss, &config->train, total_steps};
    return rv_engine_serial(&desc, engine);
}

rv_status rv_setup_serial(rv_setup *setup, rv_share *first, const float *block,
                          int64_t total_steps) {
    rv_status status = RV_OK;
    rv_version *start = NULL;
    TRY(rv_setup_forms(setup, first, block, &start));
    TRY(rv_setup_one(setup, total_steps, &setup->engine));
    /* The trainer starts from its own initial values; give it these, loaded or the same. */
    memcpy(rv_engine_block(setup->engine), rv_version_block(start),
           setup->net->n_all * sizeof *block);
    TRY(rv_engine_push(setup->engine));
out:
    rv_version_destroy(start);
    return status;
}

/* `form: event` in place of `form: auto`. The digest that resume compares leaves forms out. */
rv_status rv_setup_recipe(const rv_setup *setup, char **text) {
    static const char *const names[] = {
#define FORM_NAME(name, word) word,
        RV_FORM_LIST(FORM_NAME)
#undef FORM_NAME
    };
    rv_status status = RV_OK;
    for (int i = 0; i < setup->net->layer_count; i++) {
        rv_form form = rv_net_layer_form(setup->net, i);
        if (form == RV_FORM_AUTO) continue;
        char assignment[RV_NAME_MAX + 64];
        snprintf(assignment, sizeof assignment, "network.%s.form=%s",
                 rv_net_layer_name(setup->net, i), names[form]);
        TRY(rv_tree_set(setup->config->tree, assignment));
    }
    TRY(rv_config_text(setup->config, text));
out:
    return status;
}

/* The trainer and the network borrow from the recipe: it goes last. */
void rv_setup_finish(rv_setup *setup) {
    rv_engine_destroy(setup->engine);
    rv_setup_plan_finish(setup);
    rv_net_destroy(setup->net);
    if (setup->device.ops) rv_device_close(&setup->device);
    rv_config_free(setup->config);
    *setup = (rv_setup){0};
}
