/*
 * What reading a recipe needs on the side: memory that lives as long as the recipe and is given
 * back in one go, and the nearest known word for a hint ("did you mean ...").
 */
#include "data/config.h"

#include <stdio.h>
#include <string.h>

/* ---- pool -------------------------------------------------------------------------------- */
struct rv_pool_block {
    struct rv_pool_block *next;
    void *memory;
};

/* The block and its memory are two allocations, because memory handed out must keep the
 * alignment of rv_alloc. */
rv_status rv_pool_get(rv_pool_memory *pool, size_t count, size_t size, const char *what,
                      void *out) {
    rv_status status = RV_OK;
    struct rv_pool_block *block = NULL;
    TRY(rv_alloc(1, sizeof *block, what, &block));
    TRY(rv_alloc(count, size, what, &block->memory));
    block->next = pool->blocks;
    pool->blocks = block;
    memcpy(out, &block->memory, sizeof block->memory);
    block = NULL;
out:
    rv_free(block);
    return status;
}

/* For strings of a recipe that outlive its tree. */
rv_status rv_pool_text(rv_pool_memory *pool, const char *text, char **out) {
    rv_status status = RV_OK;
    size_t size = strlen(text) + 1;
    TRY(rv_pool_get(pool, size, 1, "text", out));
    memcpy(*out, text, size);
out:
    return status;
}

void rv_pool_finish(rv_pool_memory *pool) {
    while (pool && pool->blocks) {
        struct rv_pool_block *next = pool->blocks->next;
        rv_free(pool->blocks->memory);
        rv_free(pool->blocks);
        pool->blocks = next;
    }
}

/* ---- nearest word ------------------------------------------------------------------------ */
void rv_nearest_offer(rv_nearest *nearest, const char *candidate, size_t length) {
    int distance = rv_edit_distance(nearest->word, strlen(nearest->word), candidate, length);
    /* A third of the letters may differ: beyond that a hint misleads. */
    if (distance > 1 + (int)length / 3) return;
    if (nearest->best[0] && distance >= nearest->distance) return;
    snprintf(nearest->best, sizeof nearest->best, "%.*s", (int)length, candidate);
    nearest->distance = distance;
}

/* Names of a whole table; NULL is allowed and offers nothing. */
void rv_nearest_table(rv_nearest *nearest, const rv_table *table) {
    for (int i = 0; table && i < table->count; i++) {
        const char *name = rv_table_row(table, i)->name;
        rv_nearest_offer(nearest, name, strlen(name));
    }
}

const char *rv_nearest_word(const rv_nearest *nearest) {
    return nearest->best[0] ? nearest->best : NULL;
}

/* ---- words of a choice ------------------------------------------------------------------- */
void rv_word_at(const char *choices, int index, char word[RV_NAME_MAX]) {
    for (; index > 0; index--) {
        choices += strcspn(choices, "|");
        choices += *choices == '|'; /* never past the end */
    }
    snprintf(word, RV_NAME_MAX, "%.*s", (int)strcspn(choices, "|"), choices);
}
