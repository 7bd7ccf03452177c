#include "step7_parallel/expert/split_experts.h"

#include "step1_layers/core/error.h"
#include "step7_parallel/expert/expert_parallel.h"

namespace ladder {

std::unique_ptr<Mlp> make_split_experts_mlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                            DType dtype, const ModelMakers& makers) {
  if (!spec.has_experts(layer) || &expert_group(ctx) == &tp_group(ctx)) {
    ModelMakers others = makers;
    others.mlp = nullptr;
    return make_mlp(others, ctx, layer, spec, dtype);
  }
  return std::make_unique<MoeMlp>(ctx, fmt::format("layers.{}", layer), spec, dtype, makers,
                                  std::span<const int32_t>(),
                                  without_spare_rows(ctx, bring_to_ranks(ctx, spec, dtype, {})));
}

}  // namespace ladder
