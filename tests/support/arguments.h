#pragma once
// The tensors of every operator's arguments, so that a test or a benchmark can move a call to another device.
#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/experts.h"
#include "step1_layers/moe/router.h"
#include "step1_layers/norm/layer_norm.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/draw/draw.h"
#include "step1_layers/sampling/logit_bias.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder::testing {

// The tensors that an argument consists of: none for numbers.
template <class T>
auto tensors_of(T&) {
  return std::array<Tensor*, 0>{};
}
inline auto tensors_of(Tensor& t) {
  return std::array{&t};
}
inline auto tensors_of(KvCacheView& a) {
  return std::array{&a.k, &a.v};
}
inline auto tensors_of(AttentionMetadata& a) {
  return std::array{&a.query_start_loc, &a.seq_lens, &a.block_tables, &a.slot_mapping};
}
inline auto tensors_of(SiluAndMulArgs& a) {
  return std::array{&a.gate_up, &a.out};
}
inline auto tensors_of(GeluAndMulArgs& a) {
  return std::array{&a.gate_up, &a.out};
}
inline auto tensors_of(GeluArgs& a) {
  return std::array{&a.x, &a.out};
}
inline auto tensors_of(RmsNormArgs& a) {
  return std::array{&a.x, &a.weight, &a.out};
}
inline auto tensors_of(FusedAddRmsNormArgs& a) {
  return std::array{&a.x, &a.residual, &a.weight, &a.out};
}
inline auto tensors_of(LayerNormArgs& a) {
  return std::array{&a.x, &a.weight, &a.bias, &a.out};
}
inline auto tensors_of(FusedAddLayerNormArgs& a) {
  return std::array{&a.x, &a.residual, &a.weight, &a.bias, &a.out};
}
inline auto tensors_of(RotaryEmbeddingArgs& a) {
  return std::array{&a.positions, &a.q, &a.k, &a.table};
}
inline auto tensors_of(EmbeddingArgs& a) {
  return std::array{&a.ids, &a.weight, &a.out};
}
inline auto tensors_of(MatmulArgs& a) {
  return std::array{&a.x, &a.weight, &a.bias, &a.out};
}
inline auto tensors_of(RouteTokensArgs& a) {
  return std::array{&a.logits, &a.correction_bias, &a.expert_ids, &a.weights};
}
inline auto tensors_of(MoeExpertsArgs& a) {
  return std::array{&a.x, &a.expert_ids, &a.weights, &a.gate_up, &a.down, &a.out};
}
inline auto tensors_of(StoreKvArgs& a) {
  return std::array{&a.k, &a.v, &a.slot_mapping, &a.cache.k, &a.cache.v};
}
inline auto tensors_of(QkNormRopeStoreArgs& a) {
  return std::array{&a.q,
                    &a.k,
                    &a.v,
                    &a.q_norm_weight,
                    &a.k_norm_weight,
                    &a.positions,
                    &a.table,
                    &a.slot_mapping,
                    &a.cache.k,
                    &a.cache.v};
}
inline auto tensors_of(PagedAttentionArgs& a) {
  AttentionMetadata& m = a.metadata;
  return std::array{&a.q,        &a.cache.k,      &a.cache.v,      &m.query_start_loc,
                    &m.seq_lens, &m.block_tables, &m.slot_mapping, &a.out,
                    &a.lse};
}
inline auto tensors_of(CausalAttentionArgs& a) {
  return std::array{&a.q, &a.k, &a.v, &a.out};
}
inline auto tensors_of(ArgmaxArgs& a) {
  return std::array{&a.logits, &a.ids};
}
inline auto tensors_of(SampleArgs& a) {
  return std::array{&a.logits, &a.temperature, &a.seeds, &a.output_index, &a.ids};
}
inline auto tensors_of(DrawArgs& a) {
  return std::array{&a.logits, &a.temperature, &a.min_p,        &a.top_k,
                    &a.top_p,  &a.seeds,       &a.output_index, &a.ids};
}
inline auto tensors_of(SoftmaxArgs& a) {
  return std::array{&a.logits, &a.out};
}
inline auto tensors_of(TopLogprobsArgs& a) {
  return std::array{&a.logits,       &a.chosen,       &a.chosen_logprobs,  &a.top_ids,
                    &a.top_logprobs, &a.selected_ids, &a.selected_logprobs};
}
inline auto tensors_of(ApplyPenaltiesArgs& a) {
  return std::array{&a.logits,     &a.row_start, &a.token_ids, &a.output_counts,
                    &a.repetition, &a.presence,  &a.frequency};
}
inline auto tensors_of(ApplyLogitBiasArgs& a) {
  return std::array{&a.logits, &a.row_start, &a.token_ids, &a.biases};
}
inline auto tensors_of(ApplyTokenBitmaskArgs& a) {
  return std::array{&a.logits, &a.mask_index, &a.bitmask};
}
inline auto tensors_of(LogitsFilterArgs& a) {
  return std::array{&a.logits, &a.value};
}

}  // namespace ladder::testing
