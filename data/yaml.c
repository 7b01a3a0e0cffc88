/*
 * Nodes as YAML text that YAML 1.1 (PyYAML safe_load) and 1.2 read the same way. Maps and lists of
 * maps in block style, other lists on one line. Text that could be taken for anything else is
 * quoted; everything outside ASCII is escaped.
 */
#include "data/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct writer {
    char *text;
    size_t size, room;
} writer;

/* Grows by doubling; the text of a large network is some hundred kilobytes. */
static rv_status put_bytes(writer *to, const char *bytes, size_t count) {
    rv_status status = RV_OK;
    char *more = NULL;
    if (to->room - to->size <= count) { /* one byte stays for the final NUL */
        size_t room = 0;
        TRY(rv_size_add(2 * to->room, count + 256, &room));
        TRY(rv_alloc(room, 1, "configuration text", &more));
        if (to->size) memcpy(more, to->text, to->size);
        rv_free(to->text);
        to->text = more;
        to->room = room;
    }
    memcpy(to->text + to->size, bytes, count);
    to->size += count;
out:
    return status;
}

static rv_status put(writer *to, const char *text) {
    return put_bytes(to, text, strlen(text));
}

static rv_status put_indent(writer *to, int indent) {
    rv_status status = RV_OK;
    for (int i = 0; i < indent; i++)
        TRY(put(to, "  "));
out:
    return status;
}

/* Words that YAML 1.1 turns into booleans or null. */
static bool ambiguous(const char *text) {
    static const char *const words[] = {"y",   "n",    "yes",   "no",  "on",
                                        "off", "true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(text, words[i]) == 0) return true;
    return false;
}

/* A letter, "_" or "/" first means: no number, date, indicator or tag. */
static bool plain(const char *text) {
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/";
    static const char rest[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/0123456789.-";
    return *text && strchr(first, *text) && !text[strspn(text, rest)] && !ambiguous(text);
}

/* One character of UTF-8; its length, or 0 when the bytes are none. */
static int utf8_next(const unsigned char *at, unsigned *code) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = *at < 0x80 ? 1 : *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : 2;
    if (length == 1) {
        *code = *at;
        return 1;
    }
    if (*at < 0xC0 || *at > 0xF7) return 0;
    *code = *at & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        *code = *code << 6 | (at[i] & 0x3Fu);
    }
    return *code < least[length] || *code > 0x10FFFF ? 0 : length;
}

/* Double quotes are the one style that can hold everything. Escapes of \u form read the same in
 * YAML 1.1, YAML 1.2 and JSON. */
static rv_status put_quoted(writer *to, const char *text) {
    rv_status status = RV_OK;
    const unsigned char *at = (const unsigned char *)text;
    TRY(put(to, "\""));
    while (*at) {
        char escaped[16];
        unsigned code = 0;
        int length = utf8_next(at, &code);
        if (!length) FAIL(RV_CONFIG, "text is not UTF-8 and cannot be written as YAML: %s", text);
        if (code == '"' || code == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", (int)code);
        else if (code >= 0x20 && code < 0x7F)
            snprintf(escaped, sizeof escaped, "%c", (int)code);
        else
            snprintf(escaped, sizeof escaped, code > 0xFFFF ? "\\U%08X" : "\\u%04X", code);
        TRY(put(to, escaped));
        at += length;
    }
    TRY(put(to, "\""));
out:
    return status;
}

/* Numbers, booleans and null are not marked as quoted and go out as they are. */
static rv_status put_scalar(writer *to, const rv_node *node) {
    return node->quoted && !plain(node->text) ? put_quoted(to, node->text) : put(to, node->text);
}

/* Long lists of numbers on one line keep the file readable; maps never share a line. */
static bool block(const rv_node *node) {
    return node->count > 0 && (node->kind == RV_NODE_MAP || node->items[0]->kind == RV_NODE_MAP);
}

/* Also what is empty: [] and {} have no block style. */
static rv_status put_inline(writer *to, const rv_node *node) {
    rv_status status = RV_OK;
    bool map = node->kind == RV_NODE_MAP;
    if (node->kind == RV_NODE_SCALAR) return put_scalar(to, node);
    TRY(put(to, map ? "{" : "["));
    for (int i = 0; i < node->count; i++) {
        if (i) TRY(put(to, ", "));
        if (map) {
            TRY(put(to, node->items[i]->key));
            TRY(put(to, ": "));
        }
        TRY(put_inline(to, node->items[i]));
    }
    TRY(put(to, map ? "}" : "]"));
out:
    return status;
}

/* The entries of a map or list, each on a line of its own. `open`: the line has been begun.
 * `open` serves the first key of a map in a list, which stands behind the dash. */
static rv_status put_block(writer *to, const rv_node *node, int indent, bool open) {
    rv_status status = RV_OK;
    for (int i = 0; i < node->count; i++) {
        const rv_node *item = node->items[i];
        if (!open) TRY(put_indent(to, indent));
        open = false;
        if (node->kind == RV_NODE_LIST) {
            TRY(put(to, "- "));
            if (block(item)) {
                TRY(put_block(to, item, indent + 1, true));
                continue;
            }
        } else {
            TRY(put(to, item->key));
            TRY(put(to, ":"));
            if (block(item)) {
                TRY(put(to, "\n"));
                TRY(put_block(to, item, indent + 1, false));
                continue;
            }
            TRY(put(to, " "));
        }
        TRY(put_inline(to, item));
        TRY(put(to, "\n"));
    }
out:
    return status;
}

/* A root without entries still gives valid YAML. */
rv_status rv_tree_text(const rv_node *root, char **text) {
    rv_status status = RV_OK;
    writer to = {0};
    if (block(root))
        TRY(put_block(&to, root, 0, false));
    else
        TRY(put_inline(&to, root));
    TRY(put_bytes(&to, "", 1));
    *text = to.text;
    to.text = NULL;
out:
    rv_free(to.text);
    return status;
}
