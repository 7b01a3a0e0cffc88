/* The endless order, and lists of some updates of it. */
#include "pipeline/order.h"

#include <string.h>

#include "pipeline/schedule_index.h"

void rv_order_start(rv_order *order, int64_t made) {
    order->made = made;
    order->f = order->b = order->w = made * order->group * order->chunks;
}

static bool item(const rv_order *o, rv_work_kind kind, int64_t n, rv_work *work) {
    int64_t micro = n / o->chunks, u = micro / o->group;
    int c = (int)(n % o->chunks);
    bool forward = kind == RV_WORK_F;
    *work = (rv_work){.kind = (uint8_t)kind,
                      .stage = (uint16_t)o->stage,
                      .micro = (int32_t)micro,
                      .chunk = (uint16_t)(forward ? c : o->chunks - 1 - c),
                      .version =
                          (int32_t)(forward || o->rule.stash ? rv_delay_forward(&o->rule, u) : u)};
    return true;
}

static rv_work update_item(const rv_order *o) {
    return (rv_work){.kind = RV_WORK_U,
                     .stage = (uint16_t)o->stage,
                     .micro = (int32_t)o->made,
                     .version = RV_NO_VERSION};
}

/* A tape is held until W has ended. The version is made. */
static bool may_forward(const rv_order *o, int64_t limit) {
    const int64_t update = (int64_t)o->group * o->chunks;
    return o->f < limit * o->chunks && o->f - o->w <= o->rule.lead &&
           rv_delay_forward(&o->rule, o->f / update) <= o->made;
}

/* lead is C-1 at least, so that whoever may not go forward has a whole sequence to go back over. */
bool rv_order_next(const rv_order *o, int64_t limit, rv_work *work) {
    const int64_t update = (int64_t)o->group * o->chunks;
    if (o->b == (o->made + 1) * update) {
        *work = update_item(o);
        return true;
    }
    if (may_forward(o, limit)) return item(o, RV_WORK_F, o->f, work);
    return o->b < o->f && item(o, RV_WORK_BW, o->b, work);
}

/* B goes back over a whole sequence, under the newest weights: the update before is made. Whoever
 * may not go forward has a sequence to go back over, or W or U to do, as lead is C-1 at least. */
int rv_order_offers(const rv_order *o, int64_t limit, rv_work offers[RV_OFFERS]) {
    const int64_t update = (int64_t)o->group * o->chunks;
    int n = 0;
    if (!o->rule.split) return rv_order_next(o, limit, offers);
    if (o->w == (o->made + 1) * update)
        offers[n++] = update_item(o);
    else if (o->w < o->b)
        n += item(o, RV_WORK_W, o->w, &offers[n]);
    if (o->b < o->f / o->chunks * o->chunks && o->b / update == o->made)
        n += item(o, RV_WORK_B, o->b, &offers[n]);
    if (may_forward(o, limit)) n += item(o, RV_WORK_F, o->f, &offers[n]);
    return n;
}

void rv_order_done(rv_order *o, const rv_work *work) {
    o->f += work->kind == RV_WORK_F;
    o->b += work->kind == RV_WORK_B || work->kind == RV_WORK_BW;
    o->w += work->kind == RV_WORK_W || work->kind == RV_WORK_BW;
    o->made += work->kind == RV_WORK_U;
}

int rv_order_tapes(const rv_order *o) {
    return o->rule.lead + 1;
}

/* lead + 1 chunks in a row touch so many micro-batches at most. */
int rv_order_flights(const rv_order *o) {
    return (o->rule.lead + o->chunks - 1) / o->chunks + 1;
}

int rv_order_ahead(const rv_order *o) {
    return (o->rule.lead + o->chunks) / o->chunks;
}

/* One more is in the caller's hands while the first stage would begin it. */
int rv_order_fed(const rv_order *o) {
    return rv_order_ahead(o) / o->group + 2;
}

/* ---- lists ------------------------------------------------------------------------------ */

rv_order rv_order_of(const rv_delay_desc *delay, int stages, int micros, int chunks, int slots,
                     int s) {
    rv_delay_desc steady = *delay;
    const rv_delay_shape shape = {stages, chunks, micros, s, slots};
    steady.until = 0;
    rv_order order = {
        .rule = rv_delay_rule_of(&steady, &shape), .stage = s, .chunks = chunks, .group = micros};
    order.rule.from = 0;
    return order;
}

int rv_schedule_settled(const rv_delay_desc *delay, int stages, int micros, int chunks, int slots) {
    const rv_order order = rv_order_of(delay, stages, micros, chunks, slots, 0);
    return 2 * (rv_order_ahead(&order) / micros + 2);
}

rv_status rv_schedule_endless(const rv_delay_desc *delay, int stages, int micros, int chunks,
                              int updates, int slots, rv_schedule *schedule) {
    rv_status status = RV_OK;
    int per_update = 2 * micros * chunks + 1, n = 0;
    *schedule = (rv_schedule){0};
    TRY(rv_schedule_init(schedule, stages, updates * micros, chunks, true,
                         (size_t)stages * (size_t)updates * (size_t)per_update));
    schedule->slots = slots;
    schedule->group = micros;
    schedule->kept = 1;
    strncpy(schedule->name, delay->mode->row.name, sizeof schedule->name - 1);
    for (int s = 0; s < stages; s++) {
        rv_order order = rv_order_of(delay, stages, micros, chunks, slots, s);
        schedule->newest |= !order.rule.stash;
        if (order.rule.delay + 1 > schedule->kept) schedule->kept = order.rule.delay + 1;
        while (rv_order_next(&order, (int64_t)updates * micros, &schedule->items[n]))
            rv_order_done(&order, &schedule->items[n++]);
    }
out:
    if (status) rv_schedule_finish(schedule);
    return status;
}

double rv_schedule_busy(const rv_schedule *schedule, int stage, int from, int to) {
    double begin = 0, end = 0, busy = 0;
    int count, made = 0;
    const rv_work *list = rv_schedule_list(schedule, stage, &count);
    for (int i = 0; i < count; i++) {
        int at = schedule->first[stage] + i;
        double ended = schedule->forecast.end[at];
        if (made >= from && made < to) busy += ended - schedule->forecast.start[at];
        made += list[i].kind == RV_WORK_U;
        if (list[i].kind == RV_WORK_U && made == from) begin = ended;
        if (list[i].kind == RV_WORK_U && made == to) end = ended;
    }
    return end > begin ? busy / (end - begin) : 0;
}

double rv_schedule_made(const rv_schedule *schedule, int stage, int updates) {
    int count, made = 0, i = 0;
    const rv_work *list = rv_schedule_list(schedule, stage, &count);
    for (; i < count; i++) {
        made += list[i].kind == RV_WORK_U;
        if (made == updates) break;
    }
    return schedule->forecast.end[schedule->first[stage] + i];
}
