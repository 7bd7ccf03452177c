#pragma once
// What the attention kernels over codes share.
#include "step1_layers/attention/paged_attention_cuda.cuh"
#include "step1_layers/attention/paged_attention_of_codes_cuda.h"

namespace ladder {

// A call with its codes in the place of k and v, whose strides are in bytes then. Scales are contiguous: scale and lowest value
// for every slot and head.
template <class T>
struct AttentionOfCodes : Attention<T> {
  const uint8_t *k_codes, *v_codes;
  const float2 *k_scales, *v_scales;
};

template <class T>
AttentionOfCodes<T> attention_of_codes_call(const PagedAttentionArgs& args) {
  AttentionOfCodes<T> a{attention_call<T>(args), cuda_data<uint8_t>(args.cache.k),
                        cuda_data<uint8_t>(args.cache.v), cuda_data<float2>(args.cache.k_scales),
                        cuda_data<float2>(args.cache.v_scales)};
  a.k = a.v = nullptr;
  a.v_dim = static_cast<int>(args.out.dim(2));
  return a;
}

// Query rows of sequences with more than one row, or of all (paged_attention_cuda.cuh has its like).
void attention_of_codes_prefill(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single);

}  // namespace ladder
