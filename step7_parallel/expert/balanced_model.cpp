#include "step7_parallel/expert/balanced_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/decoder_model.h"
#include "step7_parallel/expert/expert_moves.h"
#include "step7_parallel/expert/expert_parallel.h"

namespace ladder {

namespace {

bool is_warm_up(const Tensor& slots) {
  const int64_t* begin = slots.data<int64_t>();
  return slots.numel() > 0 &&
         std::all_of(begin, begin + slots.numel(), [](int64_t slot) { return slot < 0; });
}

// By layer and expert, of all ranks of the group.
std::vector<std::vector<int64_t>> sum_counts(const OpContext& ctx, const std::vector<BalancedMlp*>& layers) {
  Communicator& group = expert_group(ctx);
  std::vector<int64_t> mine;
  for (BalancedMlp* layer : layers)
    for (const int64_t count : layer->take_counts(ctx)) mine.push_back(count);
  const int64_t size = std::ssize(mine), num_layers = std::ssize(layers), experts = size / num_layers;
  const Tensor here = Tensor::from<int64_t>(mine, {1, size}).to(ctx.device);
  const Tensor of_all = Tensor::empty({group.size(), size}, DType::i64, ctx.device);
  group.all_gather(ctx, here, of_all);
  device_synchronize(ctx.device, ctx.stream);
  const Tensor all = of_all.to(Device{});
  std::vector<std::vector<int64_t>> sums(layers.size(), std::vector<int64_t>(static_cast<size_t>(experts)));
  for (int64_t i = 0; i < all.numel(); ++i)
    sums[static_cast<size_t>(i % size / experts)][static_cast<size_t>(i % experts)] += all.data<int64_t>()[i];
  return sums;
}

}  // namespace

std::string ExpertsMoved::str() const {
  return fmt::format(
      "layers {} to {}: {} of {} changed, {} copies, {:.1f} MiB; imbalance mean {:.2f}, worst {:.2f} before, mean "
      "{:.2f}, worst {:.2f} after",
      first_layer, last_layer, layers_moved, layers, copies, static_cast<double>(bytes) / (1 << 20),
      mean_before, worst_before, mean_after, worst_after);
}

BalancedModel::BalancedModel(std::unique_ptr<Model> decoder, std::vector<BalancedMlp*> layers,
                             ExpertBalance balance)
    : decoder_(std::move(decoder)), layers_(std::move(layers)), balance_(std::move(balance)) {}

Tensor BalancedModel::forward(const OpContext& ctx, const ModelInput& input) {
  Tensor slots = input.attention.slot_mapping;
  if (ctx.device.is_cpu()) {
    if (!is_warm_up(slots))
      before_step(ctx);
    else
      slots = {};  // experts have all of it to do: their memory is measured
  }
  for (BalancedMlp* layer : layers_) layer->set_slots(slots);
  return decoder_->forward(ctx, input);
}

void BalancedModel::before_step(const OpContext& ctx) {
  if (steps_ == balance_.step_interval) {
    move_experts(ctx);
    steps_ = 0;
  }
  ++steps_;
}

void BalancedModel::move_experts(const OpContext& ctx) {
  Communicator& group = expert_group(ctx);
  const std::vector<std::vector<int64_t>> loads = sum_counts(ctx, layers_);
  ExpertsMoved moved;
  moved.layers = std::ssize(layers_);
  moved.first_layer = layers_.front()->layer();
  moved.last_layer = layers_.back()->layer();
  moved.mean_before = moved.mean_after = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    BalancedMlp& layer = *layers_[i];
    const ExpertPlacement better = balance_experts(loads[i], group.size(), balance_.num_redundant);
    const double before = imbalance(loads[i], layer.placement());
    double after = imbalance(loads[i], better);
    if (after >= before || before < (1 + balance_.least_gain) * after) {
      after = before;
    } else {
      const int64_t copies = layer.move_to(ctx, settle(layer.placement(), better));
      moved.layers_moved += copies > 0 ? 1 : 0;  // 0: only the order of a sum has changed
      moved.copies += copies;
      moved.bytes += copies * layer.expert_bytes();
    }
    const double share = 1.0 / static_cast<double>(layers_.size());
    moved.mean_before += share * before;
    moved.mean_after += share * after;
    moved.worst_before = std::max(moved.worst_before, before);
    moved.worst_after = std::max(moved.worst_after, after);
    moved.tokens.push_back(std::reduce(loads[i].begin(), loads[i].end()) / spec().experts.rule.top_k);
  }
  if (group.rank() == 0 && balance_.on_moved) balance_.on_moved(moved);
}

void move_experts_by_load(ModelMakers& makers, const ExpertBalance& balance) {
  LADDER_CHECK(!makers.around_decoder, "--enable-eplb: another part of the program makes the model");
  makers.mlp = [balance](const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
                         const ModelMakers& others) -> std::unique_ptr<Mlp> {
    if (!spec.has_experts(layer) || expert_group(ctx).size() == 1)
      return make_expert_parallel_mlp(ctx, layer, spec, dtype, others);
    return std::make_unique<BalancedMlp>(ctx, layer, spec, dtype, others, balance.num_redundant);
  };
  makers.around_decoder = [balance](std::unique_ptr<Model> decoder) -> std::unique_ptr<Model> {
    std::vector<BalancedMlp*> layers;
    for (const DecoderLayer& layer : dynamic_cast<const DecoderModel&>(*decoder).layers())
      if (auto* balanced = dynamic_cast<BalancedMlp*>(&layer.mlp())) layers.push_back(balanced);
    if (layers.empty()) return decoder;
    return std::make_unique<BalancedModel>(std::move(decoder), std::move(layers), balance);
  };
}

}  // namespace ladder
