#pragma once
// The clear rung of rope.h. Its arguments have been checked.
#include "step1_layers/rotary/rope.h"

namespace ladder {

void rotary_embedding_loop(const OpContext& ctx, const RotaryEmbeddingArgs& args);

}  // namespace ladder
