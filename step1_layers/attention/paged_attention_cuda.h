#pragma once
// The CUDA rungs of paged_attention.h. Their arguments have been checked, but for block tables and lengths.
#include "step1_layers/attention/paged_attention.h"

namespace ladder {

void paged_attention_cuda_naive(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_naive(const PagedAttentionArgs& args);

void paged_attention_cuda_tiled(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_tiled(const PagedAttentionArgs& args);

void paged_attention_cuda_grouped(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_grouped(const PagedAttentionArgs& args);

void paged_attention_cuda_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_tensor_core(const PagedAttentionArgs& args);

void paged_attention_cuda_wgmma(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_wgmma(const PagedAttentionArgs& args);

void paged_attention_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_split(const PagedAttentionArgs& args);

void paged_attention_cuda_cluster(const OpContext& ctx, const PagedAttentionArgs& args);
bool paged_attention_takes_cluster(const PagedAttentionArgs& args);

}  // namespace ladder
