#include "cli/bench/touched_experts.h"

#include "step1_layers/core/error.h"
#include "step1_layers/moe/touched_experts.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

TouchedExperts::TouchedExperts(const DecoderSpec& spec, const RunnerConfig& config)
    : num_experts_(spec.experts.num_experts),
      counts_(std::make_shared<Tensor>(
          Tensor::zeros({config.batch.max_num_batched_tokens + 1, 2}, DType::i64, config.device))) {
  LADDER_CHECK(num_experts_ > 0, "--count-experts: the model has no experts, expected a mixture of experts");
  LADDER_CHECK(num_ranks(config) == 1, "--count-experts: expected one rank, not {}", num_ranks(config));
}

void TouchedExperts::count_in(EngineOptions& options) {
  options.makers.model.mlp = [counts = counts_, inner = options.makers.model.mlp](
                                 const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
                                 const ModelMakers& makers) -> std::unique_ptr<Mlp> {
    if (!spec.has_experts(layer)) return inner(ctx, layer, spec, dtype, makers);
    const ExpertRun run = [counts, experts = spec.experts.num_experts](
                              const OpContext& here, const MoeExpertsArgs& args, const RunHere& run_here) {
      count_touched_experts(here, {args.expert_ids, experts, *counts});
      run_here(here, args);
    };
    return std::make_unique<MoeMlp>(ctx, fmt::format("layers.{}", layer), spec, dtype, makers,
                                    std::span<const int32_t>(), run);
  };
}

void TouchedExperts::start() {
  counts_->copy_from(Tensor::zeros(counts_->shape(), DType::i64));
}

std::map<int64_t, TouchedExperts::Calls> TouchedExperts::calls() const {
  const Tensor counts = counts_->to(Device{});
  std::map<int64_t, Calls> calls;
  for (int64_t tokens = 1; tokens < counts.dim(0); ++tokens)
    if (const int64_t* row = counts.data<int64_t>() + 2 * tokens; row[0] > 0)
      calls[tokens] = {row[0], row[1]};
  return calls;
}

double TouchedExperts::share(int64_t tokens) const {
  const std::map<int64_t, Calls> all = calls();
  LADDER_CHECK(!all.empty(), "--count-experts: nothing was counted");
  auto found = all.lower_bound(tokens);
  if (found == all.end()) --found;
  return static_cast<double>(found->second.touched) / static_cast<double>(found->second.num * num_experts_);
}

double TouchedExperts::mean_experts() const {
  Calls sum;
  for (const auto& [tokens, one] : calls()) {
    sum.num += one.num;
    sum.touched += one.touched;
  }
  return sum.num > 0 ? static_cast<double>(sum.touched) / static_cast<double>(sum.num) : 0.0;
}

}  // namespace ladder
