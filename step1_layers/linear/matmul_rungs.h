#pragma once
// The CPU rungs of matmul.h's table. Their arguments have been checked.
#include "step1_layers/linear/matmul.h"

namespace ladder {

void matmul_loop(const OpContext& ctx, const MatmulArgs& args);

}  // namespace ladder
