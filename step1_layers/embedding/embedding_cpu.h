#pragma once
// The CPU rungs of embedding.h's lookup. Their arguments have been checked.
#include "step1_layers/embedding/embedding.h"

namespace ladder {

void embedding_loop(const OpContext& ctx, const EmbeddingArgs& args);  // element by element
void embedding_copy(const OpContext& ctx, const EmbeddingArgs& args);  // whole rows by memcpy

}  // namespace ladder
