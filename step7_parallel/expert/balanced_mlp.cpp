#include "step7_parallel/expert/balanced_mlp.h"

#include <algorithm>
#include <string>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/moe/local_experts.h"
#include "step7_parallel/expert/choose_places.h"
#include "step7_parallel/expert/expert_moves.h"
#include "step7_parallel/expert/expert_parallel.h"

namespace ladder {

namespace {

std::vector<int32_t> numbers_on_rank(const ExpertPlacement& placement, int64_t num_experts, int rank) {
  std::vector<int32_t> numbers(static_cast<size_t>(num_experts), -1);
  int32_t place = 0;
  for (const int32_t expert : placement.rank_experts[static_cast<size_t>(rank)])
    numbers[static_cast<size_t>(expert)] = place++;
  return numbers;
}

// weights[to_place] = the expert that comes, for all moves of the group. Both sides count in the order of the moves.
void move_rows(const OpContext& ctx, Communicator& group, const std::vector<ExpertMove>& moves,
               const Tensor& weights) {
  std::vector<int64_t> sent(static_cast<size_t>(group.size())), received(sent.size());
  std::vector<int64_t> leaving;                           // places, by the rank that they go to
  std::vector<std::vector<int64_t>> coming(sent.size());  // places, by the rank that they come from
  for (const ExpertMove& move : moves) {
    if (move.from_rank == group.rank()) {
      leaving.push_back(move.from_place);
      ++sent[static_cast<size_t>(move.to_rank)];
    }
    if (move.to_rank == group.rank()) {
      coming[static_cast<size_t>(move.from_rank)].push_back(move.to_place);
      ++received[static_cast<size_t>(move.from_rank)];
    }
  }
  const auto rows = [&](int64_t count) {
    return Tensor::empty({count, weights.dim(1)}, weights.dtype(), ctx.device);
  };
  const Tensor out = rows(std::ssize(leaving));
  for (int64_t row = 0; row < out.dim(0); ++row)
    out.select(0, row).copy_from(weights.select(0, leaving[static_cast<size_t>(row)]), ctx.stream);
  const Tensor in = rows(std::ranges::count(moves, group.rank(), &ExpertMove::to_rank));
  group.all_to_all(ctx, out, sent, in, received);
  int64_t row = 0;
  for (const std::vector<int64_t>& of_rank : coming)
    for (const int64_t place : of_rank) weights.select(0, place).copy_from(in.select(0, row++), ctx.stream);
  device_synchronize(ctx.device, ctx.stream);  // before their memory goes
}

}  // namespace

BalancedMlp::BalancedMlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
                         const ModelMakers& makers, int64_t num_redundant)
    : layer_(layer),
      placement_(first_placement(spec.experts.num_experts, expert_group(ctx).size(), num_redundant)),
      places_of_(
          Tensor::zeros({spec.experts.num_experts, 1 + expert_group(ctx).size()}, DType::i32, ctx.device)),
      counts_(Tensor::zeros({spec.experts.num_experts}, DType::i64, ctx.device)),
      exchange_(bring_to_experts(ctx, spec, dtype, spec.experts.num_experts + num_redundant)),
      mlp_(ctx, fmt::format("layers.{}", layer), spec, dtype, makers,
           numbers_on_rank(placement_, spec.experts.num_experts, expert_group(ctx).rank()),
           [this](const OpContext& here, const MoeExpertsArgs& args, const RunHere&) {
             choose(here, args.expert_ids);
             const RunHere run = [this](const OpContext& own, const MoeExpertsArgs& of_places) {
               find_local_experts(own, of_places.expert_ids, numbers_of_places_);
               moe_experts(own, of_places);
             };
             exchange_ ? exchange_(here, args, run) : run(here, args);
           }) {
  const Communicator& group = expert_group(ctx);
  const int64_t places = spec.experts.num_experts + num_redundant;
  numbers_of_places_ =
      Tensor::from<int32_t>(expert_map(places, group.size(), group.rank()), {places}).to(ctx.device);
  for (const Parameter* parameter : mlp_.parameters())
    if (parameter->name.find(".experts.") != std::string::npos) {
      const Tensor& weights = parameter->tensor;
      weights_.push_back(weights.view({weights.dim(0), weights.numel() / weights.dim(0)}));
    }
  // A row of each is an expert. A quantized format has more of them, and rows of others.
  LADDER_CHECK(
      weights_.size() == 2 && weights_[0].dim(0) == weights_[1].dim(0),
      "layers.{}.experts: only dense experts move by load, expected a checkpoint without quantized ones",
      layer);
  set_placement(ctx, placement_);
}

void BalancedMlp::set_placement(const OpContext& ctx, const ExpertPlacement& placement) {
  placement_ = placement;
  const Tensor places_of = Tensor::zeros(places_of_.shape(), DType::i32);
  int32_t place = 0;
  for (const std::vector<int32_t>& experts : placement.rank_experts)
    for (const int32_t expert : experts) {
      int32_t* const copies = places_of.data<int32_t>() + expert * places_of.dim(1);
      copies[++copies[0]] = place++;
    }
  places_of_.copy_from(places_of, ctx.stream);
  device_synchronize(ctx.device, ctx.stream);
}

std::vector<int64_t> BalancedMlp::take_counts(const OpContext& ctx) {
  const Tensor counts = counts_.to(Device{}, ctx.stream);
  device_fill(counts_.raw(), ctx.device, 0, counts_.nbytes(), ctx.stream);
  device_synchronize(ctx.device, ctx.stream);
  return {counts.data<int64_t>(), counts.data<int64_t>() + counts.numel()};
}

int64_t BalancedMlp::expert_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& weights : weights_) bytes += weights.select(0, 0).nbytes();
  return bytes;
}

void BalancedMlp::choose(const OpContext& ctx, const Tensor& expert_ids) const {
  const Communicator& tensor = tp_group(ctx);
  choose_places(ctx, {.expert_ids = expert_ids,
                      .slots = slots_,
                      .places = places_of_,
                      // Replicas begin at different copies: many of them may have one row.
                      .first_copy = exchange_ ? expert_group(ctx).rank() : 0,
                      .counts = counts_,
                      // The tensor-parallel ranks have the same rows: each counts a share.
                      .first_counted = tensor.rank(),
                      .counted_step = tensor.size()});
}

int64_t BalancedMlp::move_to(const OpContext& ctx, const ExpertPlacement& next) {
  const std::vector<ExpertMove> moves = plan_moves(placement_, next);
  for (const Tensor& weights : weights_) move_rows(ctx, expert_group(ctx), moves, weights);
  set_placement(ctx, next);
  return std::ssize(moves);
}

}  // namespace ladder
