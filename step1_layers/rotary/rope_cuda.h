#pragma once
// The CUDA rungs of rope.h. Their arguments have been checked.
#include "step1_layers/rotary/rope.h"

namespace ladder {

void rotary_embedding_cuda(const OpContext& ctx, const RotaryEmbeddingArgs& args);
void rotary_embedding_cuda_packed(const OpContext& ctx, const RotaryEmbeddingArgs& args);
bool rotary_embedding_is_packed(const RotaryEmbeddingArgs& args);

}  // namespace ladder
