#include "cli/kernels.h"

#include <algorithm>

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/relu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/attention_with_store.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/paged_attention_of_codes.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/kernel_table.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/linear/linear.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/experts.h"
#include "step1_layers/moe/router.h"
#include "step1_layers/moe/shared_expert.h"
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
#include "step2_model/decoder/composites.h"
#include "step7_parallel/expert/expert_exchange.h"
#include "step8_advanced/quantization/kernels/quantized_experts.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

namespace {

// A context that says no more than which kernels the device has the instructions for.
OpContext context_of(Device device) {
  OpContext ctx;
  ctx.device = device;
  if (!device.is_cpu()) ctx.device_arch = kernel_arch(cuda_device_info(device.index));
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
      describe("layer_norm", layer_norm_variants(), ctx),
      describe("fused_add_layer_norm", fused_add_layer_norm_variants(), ctx),
      describe("matmul", matmul_variants(), ctx),
      describe("quantized_matmul", quantized_matmul_variants(), ctx),
      describe("quantized_experts", quantized_experts_variants(), ctx),
      describe("norm_qkv", norm_qkv_variants(), ctx),
      describe("rotary_embedding", rotary_embedding_variants(), ctx),
      describe("qk_norm_rope_store", qk_norm_rope_store_variants(), ctx),
      describe("store_kv", store_kv_variants(), ctx),
      describe("paged_attention", paged_attention_variants(), ctx),
      describe("paged_attention_of_codes", paged_attention_of_codes_variants(), ctx),
      describe("attention_with_store", attention_with_store_variants(), ctx),
      describe("causal_attention", causal_attention_variants(), ctx),
      describe("o_residual", o_residual_variants(), ctx),
      describe("norm_gate_up_silu", norm_gate_up_silu_variants(), ctx),
      describe("down_residual", down_residual_variants(), ctx),
      describe("route_tokens", route_tokens_variants(), ctx),
      describe("moe_experts", moe_experts_variants(), ctx),
      describe("expert_exchange", expert_exchange_variants(), ctx),
      describe("add_shared_expert", add_shared_expert_variants(), ctx),
      describe("silu_and_mul", silu_and_mul_variants(), ctx),
      describe("relu", relu_variants(), ctx),
      describe("gelu", gelu_variants(), ctx),
      describe("gelu_and_mul", gelu_and_mul_variants(), ctx),
      describe("apply_token_bitmask", apply_token_bitmask_variants(), ctx),
      describe("apply_logit_bias", apply_logit_bias_variants(), ctx),
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

// For choosing only: a kernel is chosen by shape, type and address; what the tensor holds is not read.
static Tensor tensor(const Shape& shape, DType dtype) {
  alignas(256) static char somewhere[256];
  return Tensor::wrap(somewhere, shape, dtype);
}

std::vector<ProductKernels> product_kernels(const DecoderSpec& spec, const RunnerConfig& config,
                                            const std::vector<int64_t>& rows) {
  OpContext ctx = context_of(config.device);
  ctx.batch_invariant = config.dtype == DType::f32;
  ctx.kernels = config.kernels;
  const int64_t q = spec.num_heads * spec.head_dim, kv = spec.num_kv_heads * spec.head_dim;
  const int64_t hidden = spec.hidden_size, mlp = spec.intermediate_size;
  std::vector<ProductKernels> products = {
      {"norm_qkv", q + 2 * kv, hidden, {}},
      {"o_residual", hidden, q, {}},
      {spec.gated_mlp ? "norm_gate_up_silu" : "fc1", spec.gated_mlp ? 2 * mlp : mlp, hidden, {}},
      {"down_residual", hidden, mlp, {}},
      {"lm_head", spec.vocab_size, spec.embedding_width(), {}}};
  // What goes to the residual stream first: where it is not fused, the sum waits for the norm after it.
  for (const size_t index : {1, 3, 0, 2, 4}) {
    ProductKernels& product = products[index];
    const auto [name, n, k, kernels] = product;
    // In the CPU's memory, of which not a page is touched.
    const ColumnParallelLinear linear(OpContext{}, std::string(name), k, n, {.dtype = config.dtype});
    const auto measured = [&](int64_t m) { return measured_kernel(ctx, name, config.dtype, m, n, k); };
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t m = rows[i];
      ResidualStream stream{.residual = tensor({m, hidden}, config.dtype), .pending = {}};
      if (index == 0 || index == 2)
        stream.has_pending = products[index == 0 ? 3 : 1].kernels[i].name != "fused";
      ChosenKernel kernel{"sequence", ""};
      const auto piece = [&](const auto& choice) { kernel = {choice.variant->name, choice.why}; };
      const auto norm_args = [&](int64_t width) {
        return NormLinearArgs{
            &stream,
            {tensor({hidden}, config.dtype),
             spec.norm == NormKind::layer_norm ? tensor({hidden}, config.dtype) : Tensor(), spec.norm_eps},
            &linear,
            tensor({m, width}, config.dtype)};
      };
      const auto with_residual = [&](std::span<const Variant<LinearResidualArgs>> table) {
        const LinearResidualArgs args{tensor({m, k}, config.dtype), &linear, &stream,
                                      config.tensor_parallel_size == 1};
        piece(choose_variant(name, table, ctx, args, measured(m)));
      };
      if (name == "norm_qkv")
        piece(choose_variant(name, norm_qkv_variants(), ctx, norm_args(n), measured(m)));
      if (name == "o_residual") with_residual(o_residual_variants());
      if (name == "norm_gate_up_silu")
        piece(choose_variant(name, norm_gate_up_silu_variants(), ctx,
                             NormGateUpArgs{norm_args(mlp), spec.activation}, measured(m)));
      if (name == "down_residual") with_residual(down_residual_variants());
      if (kernel.name == "sequence") {  // then its product is one of matmul's
        const DType out = name == "lm_head" ? DType::f32 : config.dtype;
        piece(choose_matmul(ctx,
                            {tensor({m, k}, config.dtype), linear.dense_weight(), {}, tensor({m, n}, out)}));
      }
      product.kernels.push_back(kernel);
    }
  }
  if (spec.num_expert_layers() == spec.num_layers)  // no layer has the MLP of one part
    std::erase_if(products, [](const ProductKernels& product) {
      return product.name == "norm_gate_up_silu" || product.name == "down_residual";
    });
  return products;
}

std::vector<ChosenKernel> attention_kernels(const DecoderSpec& spec, const RunnerConfig& config,
                                            const std::vector<int64_t>& rows) {
  OpContext ctx = context_of(config.device);
  ctx.batch_invariant = config.dtype == DType::f32;
  ctx.kernels = config.kernels;
  const bool has_codes = config.kv_cache_dtype != KvCacheDType::automatic,
             of_codes = has_codes && config.device.type == DeviceType::cuda;
  const Tensor cache =
      tensor({config.batch.num_kv_blocks, config.batch.block_size, spec.num_kv_heads,
              has_codes ? kv_code_bytes(config.kv_cache_dtype, spec.head_dim) : spec.head_dim},
             has_codes ? DType::u8 : config.dtype);
  std::vector<ChosenKernel> chosen;
  for (const int64_t count : rows) {
    const bool decoding = count <= config.batch.max_num_seqs;
    const Tensor qkv = tensor({count, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim}, config.dtype);
    const Tensor q = qkv.narrow(1, 0, spec.num_heads), kv = qkv.narrow(1, spec.num_heads, spec.num_kv_heads);
    AttentionMetadata metadata;
    metadata.num_tokens = count;
    metadata.num_seqs = decoding ? count : 1;
    metadata.max_query_len = decoding ? 1 : count;
    metadata.max_seq_len = config.batch.max_model_len;
    // Of few sequences the graphs for short ones: what a step takes until one is longer (step_graphs.h).
    if (decoding && count <= kMaxFewSeqs)
      metadata.max_seq_len = std::min(metadata.max_seq_len, kShortDecodeKeys);
    const PagedAttentionArgs args{q, {cache, cache, config.kv_cache_dtype}, metadata, 1.0, q, {}};
    const QkNormRopeStoreArgs store{
        .q = q,
        .k = kv,
        .v = kv,
        .q_norm_weight = {},
        .k_norm_weight = {},
        .positions = tensor({count}, DType::i32),
        .table = tensor({config.batch.max_model_len, spec.rope.rotary_dim}, DType::f32),
        .slot_mapping = tensor({count}, DType::i64),
        .cache = args.cache};
    if (const auto choice = choose_attention_with_store(ctx, {store, args});
        choice.variant->name == "fused") {
      chosen.push_back({"fused", choice.why});
      continue;
    }
    const std::string_view op = of_codes ? "paged_attention_of_codes" : "paged_attention";
    const auto table = of_codes ? paged_attention_of_codes_variants() : paged_attention_variants();
    const bool any = std::any_of(table.begin(), table.end(),
                                 [&](const auto& variant) { return can_run(variant, ctx, args); });
    if (!any && ctx.forced_kernel(op).empty()) {
      chosen.push_back({"none", ""});
      continue;
    }
    const auto choice = choose_variant(op, table, ctx, args);
    chosen.push_back({choice.variant->name, choice.why});
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
