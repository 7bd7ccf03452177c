#pragma once
// What the tests of caches of codes share: numbers as a cache keeps them, and calls whose codes and scales come to a GPU.
#include <array>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "tests/step1_layers/attention_scene.h"

namespace ladder::testing {

inline constexpr KvCacheDType kCodes[] = {KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4};

inline std::vector<float> round_trip(KvCacheDType kept_as, const std::vector<float>& x,
                                     std::array<float, kKvScales>* scales_out = nullptr) {
  const auto dim = std::ssize(x);
  std::vector<uint8_t> codes(static_cast<size_t>(kv_code_bytes(kept_as, dim)), 0xa5);
  std::array<float, kKvScales> scales{NAN, NAN};
  quantize_kv(kept_as, x.data(), dim, codes.data(), scales.data());
  std::vector<float> back(x.size(), NAN);
  dequantize_kv(kept_as, codes.data(), scales.data(), dim, back.data());
  if (scales_out != nullptr) *scales_out = scales;
  return back;
}

// Keys and values as the cache has them, for the reference.
inline SequenceData as_kept(const SequenceData& data, KvCacheDType kept_as) {
  SequenceData kept = data;
  for (Tensor* tensor : {&kept.k, &kept.v}) {
    const Tensor numbers = Tensor::empty(tensor->shape(), DType::f32);
    const std::vector<double> all = to_double(*tensor);
    const int64_t dim = tensor->dim(2);
    for (int64_t head = 0; head < tensor->dim(0) * tensor->dim(1); ++head) {
      std::vector<float> x;
      for (int64_t i = 0; i < dim; ++i)
        x.push_back(static_cast<float>(all[static_cast<size_t>(head * dim + i)]));
      const std::vector<float> back = round_trip(kept_as, x);
      std::copy(back.begin(), back.end(), numbers.data<float>() + head * dim);
    }
    *tensor = numbers;
  }
  return kept;
}

// A call with everything that it reads and writes, scales too.
template <class Args>
struct CallOfCodes {
  Args args;
};
inline auto tensors_of(CallOfCodes<PagedAttentionArgs>& call) {
  PagedAttentionArgs& a = call.args;
  AttentionMetadata& metadata = a.metadata;
  return std::array{&a.q,
                    &a.cache.k,
                    &a.cache.v,
                    &a.cache.k_scales,
                    &a.cache.v_scales,
                    &metadata.query_start_loc,
                    &metadata.seq_lens,
                    &metadata.block_tables,
                    &a.out,
                    &a.lse};
}
inline auto tensors_of(CallOfCodes<StoreKvArgs>& call) {
  StoreKvArgs& a = call.args;
  return std::array{
      &a.k, &a.v, &a.slot_mapping, &a.cache.k, &a.cache.v, &a.cache.k_scales, &a.cache.v_scales};
}
inline auto tensors_of(CallOfCodes<QkNormRopeStoreArgs>& call) {
  QkNormRopeStoreArgs& a = call.args;
  return std::array{&a.q,
                    &a.k,
                    &a.v,
                    &a.q_norm_weight,
                    &a.k_norm_weight,
                    &a.positions,
                    &a.table,
                    &a.slot_mapping,
                    &a.cache.k,
                    &a.cache.v,
                    &a.cache.k_scales,
                    &a.cache.v_scales};
}

inline void attend_codes(const OpContext& ctx, const CallOfCodes<PagedAttentionArgs>& call) {
  const PagedAttentionArgs& a = call.args;
  (a.causal ? paged_attention : unmasked_paged_attention)(ctx, a.q, a.cache, a.metadata, a.scale, a.out,
                                                          a.lse);
}
inline void store_codes(const OpContext& ctx, const CallOfCodes<StoreKvArgs>& call) {
  store_kv(ctx, call.args.k, call.args.v, call.args.slot_mapping, call.args.cache);
}
inline void rope_and_store_codes(const OpContext& ctx, const CallOfCodes<QkNormRopeStoreArgs>& call) {
  qk_norm_rope_store(ctx, call.args);
}

}  // namespace ladder::testing
