#include "step2_model/decoder/moe_mlp.h"

#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/load_shard.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/experts.h"
#include "step1_layers/moe/shared_expert.h"
#include "step2_model/decoder/composites.h"

namespace ladder {
namespace {

// What this rank has of every expert's width.
int64_t width_of_rank(const OpContext& ctx, const std::string& name, int64_t width) {
  const int64_t ranks = tp_group(ctx).size();
  LADDER_CHECK(width % ranks == 0, "{}: {} ranks do not divide the experts' width of {}", name, ranks, width);
  return width / ranks;
}

// Gate and up of every expert, the rank's rows of each.
Parameter expert_gate_up(const OpContext& ctx, const std::string& name, const ExpertsSpec& experts,
                         int64_t hidden, DType dtype) {
  const int64_t full = experts.intermediate_size, width = width_of_rank(ctx, name, full);
  Parameter parameter;
  parameter.name = name;
  parameter.num_parts = static_cast<int>(2 * experts.num_experts);
  parameter.tensor = Tensor::empty({experts.num_experts, 2 * width, hidden}, dtype, ctx.device);
  parameter.load_part = [=, begin = tp_group(ctx).rank() * width, tensor = parameter.tensor](
                            const Tensor& checkpoint, int part) {
    load_shard(name, checkpoint, {.full = {full, hidden}, .begin = {begin, 0}, .size = {width, hidden}},
               tensor.select(0, part / 2).narrow(0, part % 2 * width, width));
  };
  return parameter;
}

// Down of every expert, the rank's columns.
Parameter expert_down(const OpContext& ctx, const std::string& name, const ExpertsSpec& experts,
                      int64_t hidden, DType dtype) {
  const int64_t full = experts.intermediate_size, width = width_of_rank(ctx, name, full);
  Parameter parameter;
  parameter.name = name;
  parameter.num_parts = static_cast<int>(experts.num_experts);
  parameter.tensor = Tensor::empty({experts.num_experts, hidden, width}, dtype, ctx.device);
  parameter.load_part = [=, begin = tp_group(ctx).rank() * width, tensor = parameter.tensor](
                            const Tensor& checkpoint, int part) {
    load_shard(name, checkpoint, {.full = {hidden, full}, .begin = {0, begin}, .size = {hidden, width}},
               tensor.select(0, part));
  };
  return parameter;
}

}  // namespace

MoeMlp::MoeMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
               const ModelMakers& makers)
    : dtype_(dtype),
      rule_(spec.experts.rule),
      router_(replicated_parameter(ctx, name + ".router.weight", {spec.experts.num_experts, spec.hidden_size},
                                   dtype)),
      gate_up_(expert_gate_up(ctx, name + ".experts.gate_up", spec.experts, spec.hidden_size, dtype)),
      down_(expert_down(ctx, name + ".experts.down", spec.experts, spec.hidden_size, dtype)) {
  const int64_t width = spec.experts.shared_intermediate_size;
  if (width == 0) return;
  const std::string shared = name + ".shared_expert";
  const auto options = [&](const std::string& linear) {
    return make_linear_options(makers, linear, spec, dtype, false);
  };
  shared_.emplace(SharedExpert{
      MergedColumnParallelLinear(ctx, shared + ".gate_up_proj", spec.hidden_size, {width, width},
                                 options(shared + ".gate_up_proj")),
      RowParallelLinear(ctx, shared + ".down_proj", width, spec.hidden_size, options(shared + ".down_proj")),
      replicated_parameter(ctx, name + ".shared_expert_gate.weight", {1, spec.hidden_size}, dtype)});
}

// >>> task 2.7: a layer's experts: routed, run, the shared one added
std::vector<Parameter*> MoeMlp::parameters() {
  std::vector<Parameter*> result = {&router_, &gate_up_, &down_};
  if (!shared_) return result;
  result.push_back(&shared_->gate);
  for (const std::vector<Parameter*>& more :
       {shared_->gate_up_proj.parameters(), shared_->down_proj.parameters()})
    result.insert(result.end(), more.begin(), more.end());
  return result;
}

void MoeMlp::process_after_load(const OpContext& ctx) {
  if (!shared_) return;
  shared_->gate_up_proj.process_after_load(ctx);
  shared_->down_proj.process_after_load(ctx);
}

void MoeMlp::forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const {
  ArenaScope scope(*ctx.arena);
  const int64_t tokens = stream.residual.dim(0);
  const Tensor n = ctx.arena->take(stream.residual.shape(), dtype_);
  add_norm(ctx, stream, norm, n);

  const Tensor logits = ctx.arena->take({tokens, router_.tensor.dim(0)}, DType::f32);
  matmul(ctx, n, router_.tensor, {}, logits);
  const Tensor expert_ids = ctx.arena->take({tokens, rule_.top_k}, DType::i32);
  const Tensor weights = ctx.arena->take({tokens, rule_.top_k}, DType::f32);
  route_tokens(ctx, {logits, {}, rule_, expert_ids, weights});
  moe_experts(ctx, {n, expert_ids, weights, gate_up_.tensor, down_.tensor, stream.pending});
  if (shared_) add_shared(ctx, n, stream.pending);
  stream.has_pending = true;
  stream.pending_is_partial = tp_group(ctx).size() > 1;
}

void MoeMlp::add_shared(const OpContext& ctx, const Tensor& n, const Tensor& out) const {
  ArenaScope scope(*ctx.arena);
  const int64_t tokens = n.dim(0);
  const Tensor gate_up = ctx.arena->take({tokens, shared_->gate_up_proj.out_features()}, dtype_);
  shared_->gate_up_proj.forward(ctx, n, gate_up);
  const Tensor activated = ctx.arena->take({tokens, shared_->down_proj.in_features()}, dtype_);
  silu_and_mul(ctx, gate_up, activated);
  const Tensor shared = ctx.arena->take(n.shape(), dtype_);
  shared_->down_proj.forward_partial(ctx, activated, shared);  // added up with the experts' parts
  const Tensor gate_logits = ctx.arena->take({tokens, 1}, DType::f32);
  matmul(ctx, n, shared_->gate.tensor, {}, gate_logits);
  add_shared_expert(ctx, gate_logits, shared, out);
}
// <<< task 2.7

}  // namespace ladder
