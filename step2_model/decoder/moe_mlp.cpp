#include "step2_model/decoder/moe_mlp.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/load_shard.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/local_experts.h"
#include "step1_layers/moe/shared_expert.h"
#include "step2_model/decoder/composites.h"

namespace ladder {
namespace {

// What this rank has of a layer's experts: which, under what numbers, and what of their width.
struct ExpertShare {
  std::vector<int32_t> numbers;  // as MoeMlp's local_numbers, of all experts
  int64_t count = 0, full_width = 0, begin = 0, width = 0;
};

ExpertShare share_of_rank(const OpContext& ctx, const std::string& name, const ExpertsSpec& experts,
                          std::span<const int32_t> local_numbers) {
  ExpertShare share;
  share.full_width = share.width = experts.intermediate_size;
  if (!local_numbers.empty()) {
    share.numbers.assign(local_numbers.begin(), local_numbers.end());
    share.count = std::ranges::max(local_numbers) + 1;
    return share;
  }
  const Communicator& group = expert_group(ctx);
  const int64_t ranks = group.size();
  LADDER_CHECK(share.full_width % ranks == 0, "{}: {} ranks do not divide the experts' width of {}", name,
               ranks, share.full_width);
  share.numbers.resize(static_cast<size_t>(experts.num_experts));
  std::iota(share.numbers.begin(), share.numbers.end(), 0);
  share.count = experts.num_experts;
  share.width = share.full_width / ranks;
  share.begin = group.rank() * share.width;
  return share;
}

// Gate and up of the rank's experts, its rows of each.
Parameter expert_gate_up(const OpContext& ctx, const std::string& name, const ExpertShare& share,
                         int64_t hidden, DType dtype) {
  Parameter parameter;
  parameter.name = name;
  parameter.num_parts = static_cast<int>(2 * share.numbers.size());
  parameter.tensor = Tensor::empty({share.count, 2 * share.width, hidden}, dtype, ctx.device);
  parameter.load_part = [=, tensor = parameter.tensor](const Tensor& checkpoint, int part) {
    const int32_t here = share.numbers[static_cast<size_t>(part / 2)];
    if (here < 0) return;
    load_shard(name, checkpoint,
               {.full = {share.full_width, hidden}, .begin = {share.begin, 0}, .size = {share.width, hidden}},
               tensor.select(0, here).narrow(0, part % 2 * share.width, share.width));
  };
  return parameter;
}

// Down of the rank's experts, its columns.
Parameter expert_down(const OpContext& ctx, const std::string& name, const ExpertShare& share, int64_t hidden,
                      DType dtype) {
  Parameter parameter;
  parameter.name = name;
  parameter.num_parts = static_cast<int>(share.numbers.size());
  parameter.tensor = Tensor::empty({share.count, hidden, share.width}, dtype, ctx.device);
  parameter.load_part = [=, tensor = parameter.tensor](const Tensor& checkpoint, int part) {
    const int32_t here = share.numbers[static_cast<size_t>(part)];
    if (here < 0) return;
    load_shard(name, checkpoint,
               {.full = {hidden, share.full_width}, .begin = {0, share.begin}, .size = {hidden, share.width}},
               tensor.select(0, here));
  };
  return parameter;
}

// The parts of the experts that are here, by their number in the layer; others are not looked at.
void take_parts_of_all(Linear& linear, const std::vector<int32_t>& numbers, int parts_per_expert) {
  for (Parameter* parameter : linear.parameters()) {
    parameter->num_parts = parts_per_expert * static_cast<int>(numbers.size());
    parameter->load_part = [numbers, parts_per_expert, load = std::move(parameter->load_part)](
                               const Tensor& checkpoint, int part) {
      const int32_t here = numbers[static_cast<size_t>(part / parts_per_expert)];
      if (here >= 0) load(checkpoint, parts_per_expert * here + part % parts_per_expert);
    };
  }
}

LinearShards shards_of(FeatureRange in, FeatureRange out, int64_t parts, bool reduce) {
  return {in, std::vector<FeatureRange>(static_cast<size_t>(parts), out), reduce};
}

}  // namespace

Communicator& expert_group(const OpContext& ctx) {
  return ctx.parallel != nullptr && ctx.parallel->ep->size() > 1 ? *ctx.parallel->ep : tp_group(ctx);
}

MoeMlp::MoeMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
               const ModelMakers& makers, std::span<const int32_t> local_numbers, ExpertRun run)
    : dtype_(dtype),
      rule_(spec.experts.rule),
      router_(replicated_parameter(ctx, name + ".router.weight", {spec.experts.num_experts, spec.hidden_size},
                                   dtype)),
      run_(std::move(run)) {
  const ExpertShare share = share_of_rank(ctx, name, spec.experts, local_numbers);
  if (!local_numbers.empty()) {
    local_numbers_ = Tensor::empty({spec.experts.num_experts}, DType::i32, ctx.device);
    local_numbers_.copy_from(Tensor::from<int32_t>(share.numbers, {spec.experts.num_experts}));
  }
  const auto options = [&](const std::string& linear, int64_t max_parts) {
    return make_linear_options(makers, ctx, linear, spec, dtype, false, max_parts);
  };
  const std::string gate_up = name + ".experts.gate_up", down = name + ".experts.down";
  const int64_t experts = spec.experts.num_experts;
  const LinearOptions gate_up_options = options(gate_up, 2 * experts), down_options = options(down, experts);
  if (gate_up_options.method || down_options.method) {
    coded_gate_up_ = std::dynamic_pointer_cast<const CodedExperts>(gate_up_options.method);
    coded_down_ = std::dynamic_pointer_cast<const CodedExperts>(down_options.method);
    LADDER_CHECK(
        ctx.device.is_cpu() || (coded_gate_up_ && coded_down_),
        "{}: experts with linear methods of their own that do not run all of them in one call run on the CPU only, "
        "expected --device cpu",
        gate_up);
    const FeatureRange hidden{spec.hidden_size, 0, spec.hidden_size},
        inner{share.full_width, share.begin, share.width};
    stored_.emplace(
        StoredExperts{Linear(ctx, gate_up, shards_of(hidden, inner, 2 * share.count, false), gate_up_options),
                      Linear(ctx, down, shards_of(inner, hidden, share.count, true), down_options)});
    take_parts_of_all(stored_->gate_up, share.numbers, 2);
    take_parts_of_all(stored_->down, share.numbers, 1);
  } else {
    gate_up_ = expert_gate_up(ctx, gate_up + ".weight", share, spec.hidden_size, dtype);
    down_ = expert_down(ctx, down + ".weight", share, spec.hidden_size, dtype);
  }
  const int64_t width = spec.experts.shared_intermediate_size;
  if (width == 0) return;
  const std::string shared = name + ".shared_expert";
  shared_.emplace(SharedExpert{
      MergedColumnParallelLinear(ctx, shared + ".gate_up_proj", spec.hidden_size, {width, width},
                                 options(shared + ".gate_up_proj", 2)),
      RowParallelLinear(ctx, shared + ".down_proj", width, spec.hidden_size,
                        options(shared + ".down_proj", 1)),
      replicated_parameter(ctx, name + ".shared_expert_gate.weight", {1, spec.hidden_size}, dtype)});
}

// >>> task 2.7: a layer's experts: routed, run, the shared one added
std::vector<Parameter*> MoeMlp::parameters() {
  std::vector<Parameter*> result = {&router_};
  const auto add = [&result](const std::vector<Parameter*>& more) {
    result.insert(result.end(), more.begin(), more.end());
  };
  if (stored_) {
    add(stored_->gate_up.parameters());
    add(stored_->down.parameters());
  } else {
    add({&gate_up_, &down_});
  }
  if (!shared_) return result;
  add({&shared_->gate});
  add(shared_->gate_up_proj.parameters());
  add(shared_->down_proj.parameters());
  return result;
}

void MoeMlp::process_after_load(const OpContext& ctx) {
  if (stored_) {
    stored_->gate_up.process_after_load(ctx);
    stored_->down.process_after_load(ctx);
  }
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
  const MoeExpertsArgs experts{n, expert_ids, weights, gate_up_.tensor, down_.tensor, stream.pending};
  if (run_)
    run_(ctx, experts, [this](const OpContext& here, const MoeExpertsArgs& args) { run_here(here, args); });
  else
    run_here(ctx, experts);
  if (shared_) add_shared(ctx, n, stream.pending);
  stream.has_pending = true;
  stream.pending_is_partial = tp_group(ctx).size() > 1;
}

void MoeMlp::run_here(const OpContext& ctx, const MoeExpertsArgs& args) const {
  if (local_numbers_.defined()) find_local_experts(ctx, args.expert_ids, local_numbers_);
  stored_ ? run_stored(ctx, args) : moe_experts(ctx, args);
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

void MoeMlp::run_stored(const OpContext& ctx, const MoeExpertsArgs& args) const {
  if (coded_gate_up_) return coded_gate_up_->run_experts(ctx, args, *coded_down_);
  const auto part = [](int64_t number) { return static_cast<size_t>(number); };
  const ExpertProducts products{
      std::ssize(stored_->down.out_parts()), stored_->down.in_features(),
      [&](const OpContext& here, int64_t expert, const Tensor& x, const Tensor& out) {
        stored_->gate_up.forward_parts(here, part(2 * expert), 2, x, out);
      },
      [&](const OpContext& here, int64_t expert, const Tensor& x, const Tensor& out) {
        stored_->down.forward_parts(here, part(expert), 1, x, out);
      }};
  moe_experts_by_products(ctx, args, products);
}

}  // namespace ladder
