/* Posts of workers, and what a look at all of them means. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "pipeline/internal.h"
#include "pipeline/watch.h"

/* Each field is one atomic: a look that falls between two of them sees a state of a moment ago,
 * which only makes it look again. */
struct rv_post {
    atomic_int at;                  /* place in its list */
    _Atomic(const rv_link *) waits; /* the edge it waits for; NULL: it computes, or has ended */
    _Atomic double since;           /* of the wait, or of the computing */
    _Atomic double moved;           /* when its last item ended */
};

void rv_post_try(rv_post *post, double now) {
    atomic_store(&post->since, now);
    atomic_store(&post->waits, NULL);
}

void rv_post_moved(rv_post *post, const rv_stage *stage, double now) {
    atomic_store(&post->since, now);
    atomic_store(&post->moved, now);
    atomic_store(&post->at, stage->at);
}

void rv_post_wait(rv_post *post, const rv_link *edge, double since) {
    atomic_store(&post->since, since);
    atomic_store(&post->waits, edge);
}

/* ---- words ------------------------------------------------------------------------------ */

static bool among(rv_link *const *links, int count, const rv_link *edge) {
    for (int i = 0; links && i < count; i++)
        if (links[i] == edge) return true;
    return false;
}

bool rv_stage_takes(const rv_stage *stage, const rv_link *edge) {
    const rv_stage_links *links = &stage->links;
    return edge == rv_tapes_edge(stage->tapes) || edge == links->forward_in ||
           edge == links->backward_in || edge == links->factor ||
           among(links->norms, stage->desc.stages - 1, edge);
}

/* Who is at the other end. */
static int peer_of(const rv_stage *stage, const rv_link *edge) {
    const rv_stage_links *links = &stage->links;
    int s = stage->desc.index, last = stage->desc.stages - 1;
    if (edge == links->forward_in || edge == links->backward_out) return s - 1;
    if (edge == links->forward_out || edge == links->backward_in) return s + 1;
    for (int i = 0; s == last && i < last; i++)
        if (links->norms[i] == edge || links->factors[i] == edge) return i;
    return last;
}

/* Of the item itself, in words; what it waits for is the same item of its neighbour. */
static void item_print(const rv_work *work, char *text, size_t size) {
    static const char *const names[RV_WORK_KINDS] = {"F", "B", "W", "B", "U", "NORM"};
    if (work->kind == RV_WORK_U || work->kind == RV_WORK_NORM)
        snprintf(text, size, "%s of update %d", names[work->kind], work->micro);
    else
        snprintf(text, size, "%s of micro-batch %d, chunk %d", names[work->kind], work->micro,
                 work->chunk);
}

const char *rv_post_print(const rv_post *post, const rv_stage *stage, double now,
                          char text[RV_POST_TEXT]) {
    const rv_link *edge = atomic_load(&post->waits);
    double since = fmax(0, now - atomic_load(&post->since));
    int at = atomic_load(&post->at), s = stage->desc.index;
    char item[64];
    if (at >= stage->count) {
        snprintf(text, RV_POST_TEXT, "stage %d is done since %.3g s", s, since);
        return text;
    }
    item_print(&stage->list[at], item, sizeof item);
    if (edge && edge == rv_tapes_edge(stage->tapes))
        snprintf(text, RV_POST_TEXT, "stage %d waits for the disk with a tape of %s since %.3g s",
                 s, item, since);
    else if (!edge)
        snprintf(text, RV_POST_TEXT, "stage %d computes %s since %.3g s", s, item, since);
    else if (rv_stage_takes(stage, edge))
        snprintf(text, RV_POST_TEXT, "stage %d waits for %s from stage %d since %.3g s", s,
                 stage->list[at].kind == RV_WORK_U ? "the norm" : item, peer_of(stage, edge),
                 since);
    else
        snprintf(text, RV_POST_TEXT, "stage %d waits for a slot to stage %d for %s since %.3g s", s,
                 peer_of(stage, edge), item, since);
    return text;
}

/* ---- watch over all --------------------------------------------------------------------- */

rv_status rv_guard_init(rv_guard *guard, int stages, double timeout,
                        void (*say)(void *user, const char *line), void *user) {
    rv_status status = RV_OK;
    *guard = (rv_guard){.stages = stages, .timeout = timeout, .say = say, .user = user};
    TRY(rv_alloc((size_t)stages, sizeof *guard->posts, "the stages", &guard->posts));
    TRY(rv_alloc((size_t)stages, sizeof *guard->stage, "the stages", &guard->stage));
out:
    return status;
}

void rv_guard_finish(rv_guard *guard) {
    rv_free(guard->stage);
    rv_free(guard->posts);
    *guard = (rv_guard){0};
}

rv_post *rv_guard_post(const rv_guard *guard, int stage) {
    return &guard->posts[stage];
}

/* A round counts as a move: the workers have yet to wake up. */
void rv_guard_begin(rv_guard *guard) {
    double now = rv_host_seconds();
    guard->begun = guard->stirred = now;
    guard->warned = guard->timeout;
    for (int s = 0; s < guard->stages; s++) {
        rv_post *post = &guard->posts[s];
        atomic_store(&post->at, 0);
        atomic_store(&post->waits, NULL);
        atomic_store(&post->since, now);
        atomic_store(&post->moved, now);
    }
}

static void say(const rv_guard *guard, const char *line) {
    if (guard->say) guard->say(guard->user, line);
}

/* Where every stage is: all of it to the log, as much as fits into the error. */
static rv_status hung(const rv_guard *guard, double now) {
    char text[384] = "";
    size_t used = 0;
    for (int s = 0; s < guard->stages; s++) {
        char line[RV_POST_TEXT];
        say(guard, rv_post_print(&guard->posts[s], guard->stage[s], now, line));
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "; %s", line);
    }
    return rv_fail(RV_PEER, "nothing has moved for %g s (pipeline.peer_timeout)%s", guard->timeout,
                   text);
}

/* Told ever more seldom, for it may go on for hours. */
static void slow(rv_guard *guard, int stage, double now) {
    char line[RV_POST_TEXT + 8], where[RV_POST_TEXT];
    if (now - guard->begun < guard->warned) return;
    snprintf(line, sizeof line, "slow: %s",
             rv_post_print(&guard->posts[stage], guard->stage[stage], now, where));
    say(guard, line);
    guard->warned = 2 * (now - guard->begun);
}

/* A worker that was woken in vain posts for a moment that it computes: then the next look finds the
 * hang. */
rv_status rv_guard_look(rv_guard *guard) {
    double now = rv_host_seconds(), moved = guard->stirred, longest = 0;
    int computes = -1;
    bool any = false;
    for (int s = 0; s < guard->stages; s++) {
        const rv_post *post = &guard->posts[s];
        if (atomic_load(&post->at) >= guard->stage[s]->count) continue;
        any = true;
        moved = fmax(moved, atomic_load(&post->moved));
        if (atomic_load(&post->waits)) continue;
        double since = now - atomic_load(&post->since);
        if (computes < 0 || since > longest) longest = since, computes = s;
    }
    if (any && computes < 0 && now - moved >= guard->timeout) return hung(guard, now);
    if (computes >= 0 && longest >= guard->timeout) slow(guard, computes, now);
    return RV_OK;
}
