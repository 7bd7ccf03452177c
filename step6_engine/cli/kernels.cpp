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
#include "step1_layers/sampling/draw.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder {

namespace {

// A context that says no more than which kernels the device has the instructions for.
OpContext context_of(Device device) {
  OpContext ctx;
  ctx.device = device;
  if (!device.is_cpu()) ctx.device_arch = cuda_device_info(device.index).arch;
  return ctx;
}

template <class Args>
OperatorInfo describe(std::string_view name, std::span<const Variant<Args>> variants, const OpContext& ctx) {
  OperatorInfo op{name, {}};
  for (const Variant<Args>& variant : variants)
    op.kernels.push_back({.name = variant.name,
                          .idea = variant.idea,
                          .device = variant.device,
                          .runs_here = runs_here(variant, ctx),
                          .batch_invariant = variant.batch_invariant,
                          .conditional = variant.supports != nullptr,
                          .min_arch = variant.min_arch});
  return op;
}

template <class List, class Name>
std::string names_of(const List& list, Name name) {
  std::string names;
  for (const auto& item : list) names += (names.empty() ? "" : ", ") + std::string(name(item));
  return names;
}

}  // namespace

std::vector<OperatorInfo> operators(Device device) {
  const OpContext ctx = context_of(device);
  return {
      describe("embedding", embedding_variants(), ctx),
      describe("rms_norm", rms_norm_variants(), ctx),
      describe("fused_add_rms_norm", fused_add_rms_norm_variants(), ctx),
      describe("matmul", matmul_variants(), ctx),
      describe("rotary_embedding", rotary_embedding_variants(), ctx),
      describe("qk_norm_rope_store", qk_norm_rope_store_variants(), ctx),
      describe("store_kv", store_kv_variants(), ctx),
      describe("paged_attention", paged_attention_variants(), ctx),
      describe("causal_attention", causal_attention_variants(), ctx),
      describe("silu_and_mul", silu_and_mul_variants(), ctx),
      describe("gelu", gelu_variants(), ctx),
      describe("gelu_and_mul", gelu_and_mul_variants(), ctx),
      describe("apply_penalties", apply_penalties_variants(), ctx),
      describe("apply_temperature", apply_temperature_variants(), ctx),
      describe("mask_min_p", mask_min_p_variants(), ctx),
      describe("mask_top_k", mask_top_k_variants(), ctx),
      describe("mask_top_p", mask_top_p_variants(), ctx),
      describe("argmax", argmax_variants(), ctx),
      describe("sample", sample_variants(), ctx),
      describe("draw", draw_variants(), ctx),
      describe("softmax", softmax_variants(), ctx),
      describe("log_softmax", log_softmax_variants(), ctx),
      describe("top_logprobs", top_logprobs_variants(), ctx),
  };
}

std::vector<KernelInfo> default_kernels(const OperatorInfo& op, DType dtype) {
  std::vector<KernelInfo> chosen;
  for (size_t i = op.kernels.size(); i-- > 0;) {
    const KernelInfo& kernel = op.kernels[i];
    if (!kernel.runs_here || (dtype == DType::f32 && !kernel.batch_invariant)) continue;
    chosen.push_back(kernel);
    if (!kernel.conditional) break;
  }
  return chosen;
}

void check_forced_kernels(const std::map<std::string, std::string, std::less<>>& forced, Device device) {
  if (forced.empty()) return;
  const std::vector<OperatorInfo> all = operators(device);
  for (const auto& [name, kernel_name] : forced) {
    const OperatorInfo* found = nullptr;
    for (const OperatorInfo& op : all)
      if (op.name == name) found = &op;
    LADDER_CHECK(found != nullptr, "--kernel {}={}: no such operator; expected one of {}", name, kernel_name,
                 names_of(all, [](const OperatorInfo& op) { return op.name; }));
    const KernelInfo* kernel = nullptr;
    std::vector<std::string_view> names;
    for (const KernelInfo& candidate : found->kernels) {
      if (candidate.device != device.type) continue;
      names.push_back(candidate.name);
      if (candidate.name == kernel_name) kernel = &candidate;
    }
    LADDER_CHECK(kernel != nullptr, "--kernel {}={}: no such kernel on {}; {} has {}", name, kernel_name,
                 device_name(device), name,
                 names.empty() ? "none" : names_of(names, [](std::string_view each) { return each; }));
    LADDER_CHECK(kernel->runs_here || !device.is_cpu(),
                 "--kernel {}={}: this processor lacks its instructions", name, kernel_name);
    LADDER_CHECK(kernel->runs_here, "--kernel {}={}: {} is too old, it needs compute capability {}.{}", name,
                 kernel_name, device_name(device), kernel->min_arch / 10, kernel->min_arch % 10);
  }
}

}  // namespace ladder
