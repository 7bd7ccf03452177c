#include "step7_parallel/expert/expert_parallel.h"

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

std::vector<int32_t> expert_map(int64_t num_experts, int64_t ranks, int64_t rank) {
  const ExpertRange here = experts_of_rank(num_experts, ranks, rank);
  std::vector<int32_t> numbers(static_cast<size_t>(num_experts), -1);
  for (int64_t expert = here.begin; expert < here.end; ++expert)
    numbers[static_cast<size_t>(expert)] = static_cast<int32_t>(expert - here.begin);
  return numbers;
}

std::unique_ptr<Mlp> make_expert_parallel_mlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                              DType dtype, const ModelMakers& makers) {
  const Communicator& ranks = tp_group(ctx);
  if (!spec.has_experts(layer) || ranks.size() == 1) {
    ModelMakers others = makers;
    others.mlp = nullptr;
    return make_mlp(others, ctx, layer, spec, dtype);
  }
  return std::make_unique<MoeMlp>(ctx, fmt::format("layers.{}", layer), spec, dtype, makers,
                                  expert_map(spec.experts.num_experts, ranks.size(), ranks.rank()));
}

}  // namespace ladder
