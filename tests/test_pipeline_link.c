/*
 * Links: order, slots, contents and abort of the in-process transport; heads that do not fit.
 */
#include <pthread.h>

#include "pipeline/link.h"
#include "tests/small.h"

enum { SLOTS = 3, BYTES = 100, MESSAGES = 20000 };

typedef struct wakes {
    pthread_mutex_t lock;
    pthread_cond_t rung;
    unsigned long count;
} wakes;

static void ring(void *self) {
    wakes *w = self;
    pthread_mutex_lock(&w->lock);
    w->count++;
    pthread_cond_signal(&w->rung);
    pthread_mutex_unlock(&w->lock);
}

static rv_link *open_link(int slots, wakes *sender, wakes *receiver) {
    rv_link *link = NULL;
    const rv_link_desc desc = {0, 1, slots, BYTES, NULL, NULL, {ring, sender}, {ring, receiver}};
    pthread_mutex_init(&sender->lock, NULL), pthread_mutex_init(&receiver->lock, NULL);
    pthread_cond_init(&sender->rung, NULL), pthread_cond_init(&receiver->rung, NULL);
    OK(rv_transport_local.open(&rv_transport_local, &desc, &link));
    return link;
}

static void slots_fill_up_and_are_given_back_in_order(void **state) {
    (void)state;
    for (int slots = 1; slots <= SLOTS; slots++) {
        wakes sender = {0}, receiver = {0};
        rv_link *link = open_link(slots, &sender, &receiver);
        void *slot, *again;
        assert_int_equal(link->slots, slots);
        assert_string_equal(link->name, "0 -> 1");
        OK(link->ops->peek(link, NULL, &slot));
        assert_null(slot);
        for (int i = 0; i < slots; i++) {
            OK(link->ops->acquire(link, NULL, &slot));
            OK(link->ops->acquire(link, NULL, &again)); /* the same until it is published */
            assert_non_null(slot);
            assert_ptr_equal(slot, again);
            assert_true((uintptr_t)slot % 64 == 0);
            memset(slot, 'a' + i, RV_HEAD_BYTES + BYTES);
            OK(link->ops->publish(link, NULL));
            assert_int_equal(receiver.count, i + 1);
        }
        OK(link->ops->acquire(link, NULL, &slot));
        assert_null(slot);
        for (int i = 0; i < slots; i++) {
            char want[RV_HEAD_BYTES + BYTES];
            memset(want, 'a' + i, sizeof want);
            OK(link->ops->peek(link, NULL, &slot));
            OK(link->ops->peek(link, NULL, &again));
            assert_ptr_equal(slot, again);
            assert_memory_equal(slot, want, sizeof want);
            OK(link->ops->release(link, NULL));
            assert_int_equal(sender.count, i + 1);
            OK(link->ops->acquire(link, NULL, &slot));
            assert_non_null(slot);
        }
        OK(link->ops->peek(link, NULL, &slot));
        assert_null(slot);
        OK(link->ops->poll(link));
        rv_link_close(link);
    }
    rv_link_close(NULL);
}

static void abort_wakes_and_fails_both_ends(void **state) {
    (void)state;
    wakes sender = {0}, receiver = {0};
    rv_link *link = open_link(1, &sender, &receiver);
    void *slot;
    link->ops->abort(link);
    assert_int_equal(sender.count, 1);
    assert_int_equal(receiver.count, 1);
    assert_int_equal(link->ops->acquire(link, NULL, &slot), RV_PEER);
    assert_int_equal(link->ops->peek(link, NULL, &slot), RV_PEER);
    assert_int_equal(link->ops->publish(link, NULL), RV_PEER);
    assert_int_equal(link->ops->release(link, NULL), RV_PEER);
    assert_int_equal(link->ops->poll(link), RV_PEER);
    rv_link_close(link);
}

/* ---- two threads ------------------------------------------------------------------------ */

typedef struct pair {
    rv_link *link;
    wakes sender, receiver;
} pair;

static void wait_for(wakes *w, unsigned long seen) {
    pthread_mutex_lock(&w->lock);
    while (w->count == seen)
        pthread_cond_wait(&w->rung, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static unsigned long count_of(wakes *w) {
    pthread_mutex_lock(&w->lock);
    unsigned long count = w->count;
    pthread_mutex_unlock(&w->lock);
    return count;
}

static void *send_all(void *argument) {
    pair *p = argument;
    for (int i = 0; i < MESSAGES;) {
        unsigned long seen = count_of(&p->sender);
        void *slot = NULL;
        if (p->link->ops->acquire(p->link, NULL, &slot) != RV_OK) return "acquire failed";
        if (!slot) {
            wait_for(&p->sender, seen);
            continue;
        }
        memcpy(slot, &i, sizeof i);
        memset((char *)slot + RV_HEAD_BYTES, i % 251, BYTES);
        if (p->link->ops->publish(p->link, NULL) != RV_OK) return "publish failed";
        i++;
    }
    return NULL;
}

static void two_threads_lose_and_mix_nothing(void **state) {
    (void)state;
    pair p = {0};
    pthread_t thread;
    void *why = NULL;
    p.link = open_link(SLOTS, &p.sender, &p.receiver);
    assert_int_equal(pthread_create(&thread, NULL, send_all, &p), 0);
    for (int i = 0; i < MESSAGES;) {
        unsigned long seen = count_of(&p.receiver);
        char want[BYTES];
        void *slot = NULL;
        OK(p.link->ops->peek(p.link, NULL, &slot));
        if (!slot) {
            wait_for(&p.receiver, seen);
            continue;
        }
        memset(want, i % 251, sizeof want);
        assert_memory_equal(slot, &i, sizeof i);
        assert_memory_equal((char *)slot + RV_HEAD_BYTES, want, sizeof want);
        OK(p.link->ops->release(p.link, NULL));
        i++;
    }
    pthread_join(thread, &why);
    if (why) fail_msg("%s", (const char *)why);
    rv_link_close(p.link);
}

/* ---- heads ------------------------------------------------------------------------------ */

static void head_check_names_what_differs(void **state) {
    (void)state;
    static const uint64_t samples[] = {4, 9, 2}, swapped[] = {4, 2, 9};
    const rv_head want = {RV_HEAD_MAGIC, 1, 2, 3, 4, 5, rv_samples_digest(samples, 3), 0};
    const struct {
        const char *name;
        rv_head head;
    } cases[] = {
        {"magic", {0, 1, 2, 3, 4, 5, want.samples, 0}},
        {"kind", {RV_HEAD_MAGIC, 0, 2, 3, 4, 5, want.samples, 0}},
        {"micro-batch 7", {RV_HEAD_MAGIC, 1, 7, 3, 4, 5, want.samples, 0}},
        {"chunk", {RV_HEAD_MAGIC, 1, 2, 2, 4, 5, want.samples, 0}},
        {"version", {RV_HEAD_MAGIC, 1, 2, 3, 5, 5, want.samples, 0}},
        {"bytes", {RV_HEAD_MAGIC, 1, 2, 3, 4, 6, want.samples, 0}},
        {"samples", {RV_HEAD_MAGIC, 1, 2, 3, 4, 5, rv_samples_digest(swapped, 3), 0}},
        {"samples", {RV_HEAD_MAGIC, 1, 2, 3, 4, 5, rv_samples_digest(samples, 2), 0}},
    };
    OK(rv_head_check(&want, &want, "0 -> 1"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(rv_head_check(&cases[i].head, &want, "0 -> 1"), RV_INTERNAL);
        assert_non_null(strstr(rv_error_get()->message, cases[i].name));
        assert_non_null(strstr(rv_error_get()->message, "0 -> 1"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_fill_up_and_are_given_back_in_order),
        cmocka_unit_test(abort_wakes_and_fails_both_ends),
        cmocka_unit_test(two_threads_lose_and_mix_nothing),
        cmocka_unit_test(head_check_names_what_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
