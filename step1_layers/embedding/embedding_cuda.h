#pragma once
// The CUDA rungs of embedding.h. Their arguments have been checked, but for the ids.
#include "step1_layers/embedding/embedding.h"

namespace ladder {

void embedding_cuda(const OpContext& ctx, const EmbeddingArgs& args);
void embedding_cuda_packed(const OpContext& ctx, const EmbeddingArgs& args);
bool embedding_is_packed(const EmbeddingArgs& args);

}  // namespace ladder
