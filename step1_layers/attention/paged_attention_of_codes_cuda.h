#pragma once
// The CUDA rungs of paged_attention_of_codes.h. Their arguments have been checked, but for block tables and lengths.
#include "step1_layers/attention/paged_attention.h"

namespace ladder {

void paged_attention_of_codes_cuda_naive(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_of_codes_takes_naive(const PagedAttentionArgs& args);

void paged_attention_of_codes_cuda_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_of_codes_takes_tensor_core(const PagedAttentionArgs& args);

void paged_attention_of_codes_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_of_codes_takes_split(const PagedAttentionArgs& args);

}  // namespace ladder
