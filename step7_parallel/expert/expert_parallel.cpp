#include "step7_parallel/expert/expert_parallel.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/expert/expert_exchange.h"

namespace ladder {

std::vector<int32_t> expert_map(int64_t num_experts, int64_t ranks, int64_t rank) {
  const ExpertRange here = experts_of_rank(num_experts, ranks, rank);
  std::vector<int32_t> numbers(static_cast<size_t>(num_experts), -1);
  for (int64_t expert = here.begin; expert < here.end; ++expert)
    numbers[static_cast<size_t>(expert)] = static_cast<int32_t>(expert - here.begin);
  return numbers;
}

// The ranks have other tokens than those of other replicas, and the same as those of their own: of these each brings a share to
// the experts. The sum over the tensor ranks, which follows, puts the shares together.
ExpertRun bring_to_ranks(std::vector<int32_t> rank_of) {
  return [rank_of = std::move(rank_of)](const OpContext& ctx, const MoeExpertsArgs& args,
                                        const RunHere& run_here) {
    const Communicator& tensor = tp_group(ctx);
    const int64_t tokens = args.x.dim(0), begin = tokens * tensor.rank() / tensor.size(),
                  count = tokens * (tensor.rank() + 1) / tensor.size() - begin;
    const auto share = [&](const Tensor& rows) { return rows.narrow(0, begin, count); };
    if (count < tokens) args.out.fill_bytes(0);
    ExpertExchangeArgs exchange;
    exchange.ranks = &expert_group(ctx);
    exchange.x = share(args.x);
    exchange.expert_ids = share(args.expert_ids);
    exchange.weights = share(args.weights);
    exchange.out = share(args.out);
    exchange.rank_of = rank_of;
    exchange.compute = [&](const OpContext& here, const Tensor& x, const Tensor& expert_ids,
                           const Tensor& weights, const Tensor& out) {
      OpContext own = here;
      own.arena = nullptr;  // more tokens may come than the warm-up, which sized it, has seen
      run_here(own, {x, expert_ids, weights, args.gate_up, args.down, out});
    };
    expert_exchange(ctx, exchange);
  };
}

ExpertRun bring_to_experts(const OpContext& ctx, int64_t num_experts) {
  const Communicator& ranks = expert_group(ctx);
  if (&ranks == &tp_group(ctx)) return {};
  std::vector<int32_t> rank_of;
  for (int rank = 0; rank < ranks.size(); ++rank)
    rank_of.resize(static_cast<size_t>(experts_of_rank(num_experts, ranks.size(), rank).end), rank);
  return bring_to_ranks(std::move(rank_of));
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
                                  bring_to_experts(ctx, experts));
}

}  // namespace ladder
