#include "step2_model/decoder/composites.h"

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/kernel_table.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/norm/layer_norm.h"
#include "step1_layers/norm/rms_norm.h"
#include "step2_model/decoder/add_residual.h"
#ifdef LADDER_HAS_CUDA
#include "step2_model/decoder/composites_cuda.h"
#endif

namespace ladder {

// >>> task 2.4: the composites of a decoder layer as plain sequences of operators
void add_norm(const OpContext& ctx, ResidualStream& stream, const Norm& norm, const Tensor& out) {
  const auto& [weight, bias, eps] = norm;
  if (!stream.has_pending) {
    if (bias.defined()) return layer_norm(ctx, stream.residual, weight, bias, eps, out);
    return rms_norm(ctx, stream.residual, weight, eps, out);
  }
  if (bias.defined()) {  // the communicators fuse their sum with RMSNorm alone
    if (stream.pending_is_partial) tp_group(ctx).all_reduce(ctx, stream.pending);
    fused_add_layer_norm(ctx, stream.pending, stream.residual, weight, bias, eps, out);
  } else if (stream.pending_is_partial) {
    tp_group(ctx).all_reduce_add_norm(ctx, {stream.pending, stream.residual, weight, eps, out});
  } else {
    fused_add_rms_norm(ctx, stream.pending, stream.residual, weight, eps, out);
  }
  stream.has_pending = false;
}

void add_pending(const OpContext& ctx, ResidualStream& stream) {
  if (!stream.has_pending) return;
  if (stream.pending_is_partial) tp_group(ctx).all_reduce(ctx, stream.pending);
  add_residual(ctx, stream.pending, stream.residual);
  stream.has_pending = false;
}

void norm_linear(const OpContext& ctx, const NormLinearArgs& args) {
  const Tensor& residual = args.stream->residual;
  if (!args.norm.weight.defined()) return args.linear->forward(ctx, residual, args.out);
  ArenaScope scope(*ctx.arena);
  const Tensor normed = ctx.arena->take(residual.shape(), residual.dtype());
  add_norm(ctx, *args.stream, args.norm, normed);
  args.linear->forward(ctx, normed, args.out);
}

namespace {

void norm_gate_up_silu_sequence(const OpContext& ctx, const NormGateUpArgs& args) {
  ArenaScope scope(*ctx.arena);
  const Tensor& residual = args.stream->residual;
  const Tensor normed = ctx.arena->take(residual.shape(), residual.dtype());
  add_norm(ctx, *args.stream, args.norm, normed);
  const Tensor gate_up = ctx.arena->take({normed.dim(0), args.linear->out_features()}, normed.dtype());
  args.linear->forward(ctx, normed, gate_up);
  switch (args.activation) {
    case MlpActivation::silu:
      return silu_and_mul(ctx, gate_up, args.out);
    case MlpActivation::gelu:
      return gelu_and_mul(ctx, gate_up, args.out, GeluKind::erf);
    case MlpActivation::gelu_tanh:
      return gelu_and_mul(ctx, gate_up, args.out, GeluKind::tanh);
    case MlpActivation::relu:
      fail("no gated MLP has this activation");
  }
}

void linear_residual_sequence(const OpContext& ctx, const LinearResidualArgs& args) {
  args.linear->forward_partial(ctx, args.x, args.stream->pending);
  args.stream->has_pending = true;
  args.stream->pending_is_partial = !args.one_rank;
}

}  // namespace
// <<< task 2.4

namespace {

constexpr std::string_view kSequence = "the operators one after the other";

constexpr Variant<NormLinearArgs> kNormQkv[] = {
    {.name = "sequence", .idea = kSequence, .run = norm_linear},
#ifdef LADDER_HAS_CUDA
    {.name = "sequence", .device = DeviceType::cuda, .idea = kSequence, .run = norm_linear},
    {.name = "fused",
     .device = DeviceType::cuda,
     .idea = "few rows: every block norms them for itself, its weights fetched ahead",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = takes_fused_norm_qkv,
     .run = fused_norm_qkv},
#endif
};
constexpr Variant<NormGateUpArgs> kNormGateUpSilu[] = {
    {.name = "sequence", .idea = kSequence, .run = norm_gate_up_silu_sequence},
#ifdef LADDER_HAS_CUDA
    {.name = "sequence", .device = DeviceType::cuda, .idea = kSequence, .run = norm_gate_up_silu_sequence},
    {.name = "fused_silu",
     .device = DeviceType::cuda,
     .idea =
         "few rows, the norm (which may add up ranks) before: a block computes matching columns of gate and up",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = takes_norm_then_gate_up_silu,
     .run = norm_then_gate_up_silu},
    {.name = "fused",
     .device = DeviceType::cuda,
     .idea = "few rows: the norm first, and a block computes matching columns of gate and up",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = takes_fused_norm_gate_up_silu,
     .run = fused_norm_gate_up_silu},
#endif
};
constexpr Variant<LinearResidualArgs> kLinearResidual[] = {
    {.name = "sequence",
     .idea = "the product waits in `pending` for the next norm",
     .run = linear_residual_sequence},
#ifdef LADDER_HAS_CUDA
    {.name = "sequence",
     .device = DeviceType::cuda,
     .idea = "the product waits in `pending` for the next norm",
     .run = linear_residual_sequence},
    {.name = "fused",
     .device = DeviceType::cuda,
     .idea = "few rows, one rank: the product's kernel adds to the stream",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = takes_fused_residual,
     .run = fused_residual},
#endif
};

template <class Args>
void run_composite(std::string_view op, std::span<const Variant<Args>> table, const OpContext& ctx,
                   const Args& args) {
  const Tensor& residual = args.stream->residual;
  run_variant(op, table, ctx, args,
              measured_kernel(ctx, op, residual.dtype(), residual.dim(0), args.linear->out_features(),
                              args.linear->in_features()));
}

}  // namespace

std::span<const Variant<NormLinearArgs>> norm_qkv_variants() {
  return kNormQkv;
}
std::span<const Variant<LinearResidualArgs>> o_residual_variants() {
  return kLinearResidual;
}
std::span<const Variant<NormGateUpArgs>> norm_gate_up_silu_variants() {
  return kNormGateUpSilu;
}
std::span<const Variant<LinearResidualArgs>> down_residual_variants() {
  return kLinearResidual;
}

void norm_qkv(const OpContext& ctx, ResidualStream& stream, const Norm& norm, const Linear& qkv_proj,
              const Tensor& qkv) {
  run_composite<NormLinearArgs>("norm_qkv", norm_qkv_variants(), ctx, {&stream, norm, &qkv_proj, qkv});
}

void o_residual(const OpContext& ctx, const Tensor& attention, const Linear& o_proj, ResidualStream& stream) {
  run_composite<LinearResidualArgs>("o_residual", o_residual_variants(), ctx,
                                    {attention, &o_proj, &stream, tp_group(ctx).size() == 1});
}

void norm_gate_up_silu(const OpContext& ctx, ResidualStream& stream, const Norm& norm,
                       const Linear& gate_up_proj, MlpActivation activation, const Tensor& out) {
  run_composite<NormGateUpArgs>("norm_gate_up_silu", norm_gate_up_silu_variants(), ctx,
                                {{&stream, norm, &gate_up_proj, out}, activation});
}

void down_residual(const OpContext& ctx, const Tensor& activated, const Linear& down_proj,
                   ResidualStream& stream) {
  run_composite<LinearResidualArgs>("down_residual", down_residual_variants(), ctx,
                                    {activated, &down_proj, &stream, tp_group(ctx).size() == 1});
}

}  // namespace ladder
