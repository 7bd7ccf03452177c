#include "step6_engine/cli/kernels.h"

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder {

namespace {

template <class Args>
OperatorInfo describe(std::string_view name, std::span<const Variant<Args>> variants) {
  OperatorInfo op{name, {}};
  for (const Variant<Args>& variant : variants)
    if (variant.device == DeviceType::cpu)
      op.kernels.push_back({variant.name, runs_here(variant, OpContext{}), variant.batch_invariant,
                            variant.supports != nullptr});
  return op;
}

template <class List, class Name>
std::string names_of(const List& list, Name name) {
  std::string names;
  for (const auto& item : list) names += (names.empty() ? "" : ", ") + std::string(name(item));
  return names;
}

}  // namespace

std::vector<OperatorInfo> operators() {
  return {
      describe("embedding", embedding_variants()),
      describe("rms_norm", rms_norm_variants()),
      describe("fused_add_rms_norm", fused_add_rms_norm_variants()),
      describe("matmul", matmul_variants()),
      describe("rotary_embedding", rotary_embedding_variants()),
      describe("qk_norm_rope_store", qk_norm_rope_store_variants()),
      describe("store_kv", store_kv_variants()),
      describe("paged_attention", paged_attention_variants()),
      describe("causal_attention", causal_attention_variants()),
      describe("silu_and_mul", silu_and_mul_variants()),
      describe("gelu", gelu_variants()),
      describe("gelu_and_mul", gelu_and_mul_variants()),
      describe("apply_penalties", apply_penalties_variants()),
      describe("apply_temperature", apply_temperature_variants()),
      describe("mask_min_p", mask_min_p_variants()),
      describe("mask_top_k", mask_top_k_variants()),
      describe("mask_top_p", mask_top_p_variants()),
      describe("argmax", argmax_variants()),
      describe("sample", sample_variants()),
      describe("softmax", softmax_variants()),
      describe("log_softmax", log_softmax_variants()),
      describe("top_logprobs", top_logprobs_variants()),
  };
}

std::string default_kernels(const OperatorInfo& op, DType dtype) {
  std::string text;
  for (size_t i = op.kernels.size(); i-- > 0;) {
    const KernelInfo& kernel = op.kernels[i];
    if (!kernel.runs_here || (dtype == DType::f32 && !kernel.batch_invariant)) continue;
    text += (text.empty() ? "" : " or ") + std::string(kernel.name);
    if (!kernel.conditional) break;
  }
  return text;
}

void check_forced_kernels(const std::map<std::string, std::string, std::less<>>& forced) {
  if (forced.empty()) return;
  const std::vector<OperatorInfo> all = operators();
  for (const auto& [name, kernel_name] : forced) {
    const OperatorInfo* found = nullptr;
    for (const OperatorInfo& op : all)
      if (op.name == name) found = &op;
    LADDER_CHECK(found != nullptr, "--kernel {}={}: no such operator; expected one of {}", name, kernel_name,
                 names_of(all, [](const OperatorInfo& op) { return op.name; }));
    const KernelInfo* kernel = nullptr;
    for (const KernelInfo& candidate : found->kernels)
      if (candidate.name == kernel_name) kernel = &candidate;
    LADDER_CHECK(kernel != nullptr, "--kernel {}={}: no such kernel; {} has {}", name, kernel_name, name,
                 names_of(found->kernels, [](const KernelInfo& k) { return k.name; }));
    LADDER_CHECK(kernel->runs_here, "--kernel {}={}: this processor lacks its instructions", name,
                 kernel_name);
  }
}

}  // namespace ladder
