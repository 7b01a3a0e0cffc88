/*
 * Inside pipeline/: what an item does (stage_items.c), called by rv_stage_step (stage.c). An item
 * that lacks a message or a slot sets *edge and changes nothing.
 */
#ifndef RV_PIPELINE_STAGE_ITEMS_H
#define RV_PIPELINE_STAGE_ITEMS_H

#include "pipeline/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef rv_status (*rv_item)(rv_stage *stage, const rv_work *work, rv_link **edge);
rv_status rv_item_forward(rv_stage *stage, const rv_work *work, rv_link **edge);
rv_status rv_item_backward(rv_stage *stage, const rv_work *work, rv_link **edge); /* B and BW */
rv_status rv_item_weight(rv_stage *stage, const rv_work *work, rv_link **edge);
rv_status rv_item_update(rv_stage *stage, const rv_work *work, rv_link **edge);
rv_status rv_item_norm(rv_stage *stage, const rv_work *work, rv_link **edge);

#ifdef __cplusplus
}
#endif
#endif
