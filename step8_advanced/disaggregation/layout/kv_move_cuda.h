#pragma once
// The GPU's rung of kv_move.h. Internal to this folder.
#include "step8_advanced/disaggregation/layout/kv_move.h"

namespace ladder {

void kv_move_gather(const OpContext& ctx, const KvMoveArgs& args);

}  // namespace ladder
