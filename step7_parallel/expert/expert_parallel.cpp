#include "step7_parallel/expert/expert_parallel.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/expert/choose_places.h"
#include "step7_parallel/expert/expert_exchange.h"
#ifdef LADDER_HAS_CUDA
#include "step7_parallel/expert/gpu/gpu_expert_group.h"
#endif

namespace ladder {

std::vector<int32_t> expert_map(int64_t num_experts, int64_t ranks, int64_t rank) {
  const ExpertRange here = experts_of_rank(num_experts, ranks, rank);
  std::vector<int32_t> numbers(static_cast<size_t>(num_experts), -1);
  for (int64_t expert = here.begin; expert < here.end; ++expert)
    numbers[static_cast<size_t>(expert)] = static_cast<int32_t>(expert - here.begin);
  return numbers;
}

namespace {

// Where the ranks are GPUs the memory in which they exchange tokens; else nullptr.
const GpuExpertExchange* memory_for(const OpContext& ctx, [[maybe_unused]] const DecoderSpec& spec,
                                    [[maybe_unused]] DType dtype,
                                    [[maybe_unused]] const std::vector<int32_t>& rank_of) {
  if (ctx.device.type != DeviceType::cuda) return nullptr;
#ifdef LADDER_HAS_CUDA
  if (GpuExpertGroup* const group = gpu_expert_group(ctx); group != nullptr)
    return &group->exchange(ctx, spec, dtype, rank_of);
#endif
  fail("experts shared out over replicas: on {} each rank is a process", device_name(ctx.device));
}

}  // namespace

// The ranks have other tokens than those of other replicas, and the same as those of their own: of these each brings a share to
// the experts. The sum over the tensor ranks, which follows, puts the shares together.
ExpertRun bring_to_ranks(const OpContext& made_on, const DecoderSpec& spec, DType dtype,
                         std::vector<int32_t> rank_of) {
  const GpuExpertExchange* const gpu = memory_for(made_on, spec, dtype, rank_of);
  return [gpu, rank_of = std::move(rank_of)](const OpContext& ctx, const MoeExpertsArgs& args,
                                             const RunHere& run_here) {
    const Communicator& tensor = tp_group(ctx);
    const int64_t tokens = args.x.dim(0), begin = tokens * tensor.rank() / tensor.size(),
                  count = tokens * (tensor.rank() + 1) / tensor.size() - begin;
    const auto share = [&](const Tensor& rows) { return rows.narrow(0, begin, count); };
    if (count < tokens) device_fill(args.out.raw(), args.out.device(), 0, args.out.nbytes(), ctx.stream);
    ExpertExchangeArgs exchange;
    exchange.ranks = &expert_group(ctx);
    exchange.x = share(args.x);
    exchange.expert_ids = share(args.expert_ids);
    exchange.weights = share(args.weights);
    exchange.out = share(args.out);
    exchange.rank_of = rank_of;
    exchange.gpu = gpu;
    exchange.rows = (tokens + tensor.size() - 1) / tensor.size();  // of the rank with the most
    exchange.compute = [&](const OpContext& here, const Tensor& x, const Tensor& expert_ids,
                           const Tensor& weights, const Tensor& out) {
      OpContext own = here;
      // More tokens may come than the warm-up, which sized it, has seen. On GPUs as many come from each rank.
      if (gpu == nullptr) own.arena = nullptr;
      run_here(own, {x, expert_ids, weights, args.gate_up, args.down, out});
    };
    expert_exchange(ctx, exchange);
  };
}

ExpertRun bring_to_experts(const OpContext& ctx, const DecoderSpec& spec, DType dtype, int64_t num_experts) {
  const Communicator& ranks = expert_group(ctx);
  if (&ranks == &tp_group(ctx)) return {};
  std::vector<int32_t> rank_of;
  for (int rank = 0; rank < ranks.size(); ++rank)
    rank_of.resize(static_cast<size_t>(experts_of_rank(num_experts, ranks.size(), rank).end), rank);
  return bring_to_ranks(ctx, spec, dtype, std::move(rank_of));
}

ExpertRun without_spare_rows([[maybe_unused]] const OpContext& made_on, ExpertRun run) {
#ifdef LADDER_HAS_CUDA
  if (GpuExpertGroup* const group = gpu_expert_group(made_on); run && group != nullptr)
    return [group, run = std::move(run)](const OpContext& ctx, const MoeExpertsArgs& args,
                                         const RunHere& run_here) {
      choose_places(ctx, {.expert_ids = args.expert_ids, .slots = group->slots()});
      run(ctx, args, run_here);
    };
#endif
  return run;
}

std::unique_ptr<Mlp> make_expert_parallel_mlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                              DType dtype, const ModelMakers& makers) {
  const Communicator& ranks = expert_group(ctx);
  if (!spec.has_experts(layer) || ranks.size() == 1) {
    ModelMakers others = makers;
    others.mlp = nullptr;
    return make_mlp(others, ctx, layer, spec, dtype);
  }
  const int64_t experts = spec.experts.num_experts;
  return std::make_unique<MoeMlp>(ctx, fmt::format("layers.{}", layer), spec, dtype, makers,
                                  expert_map(experts, ranks.size(), ranks.rank()),
                                  without_spare_rows(ctx, bring_to_experts(ctx, spec, dtype, experts)));
}

}  // namespace ladder
