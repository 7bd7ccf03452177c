#include "step1_layers/moe/touched_experts.h"

#include <algorithm>
#include <vector>

#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/moe/moe_cuda.h"
#endif

namespace ladder {

namespace {

void count_touched_experts_loop(const OpContext&, const CountTouchedExpertsArgs& args) {
  std::vector<bool> touched(static_cast<size_t>(args.num_experts));
  const int32_t* ids = args.expert_ids.data<int32_t>();
  for (int64_t i = 0; i < args.expert_ids.numel(); ++i)
    if (ids[i] >= 0 && ids[i] < args.num_experts) touched[static_cast<size_t>(ids[i])] = true;
  int64_t* counts = args.counts.data<int64_t>() + 2 * args.expert_ids.dim(0);
  counts[0] += 1;
  counts[1] += std::ranges::count(touched, true);
}

}  // namespace

std::span<const Variant<CountTouchedExpertsArgs>> count_touched_experts_variants() {
  static constexpr Variant<CountTouchedExpertsArgs> table[] = {
      {.name = "loop", .idea = "a mark for each expert", .run = count_touched_experts_loop},
#ifdef LADDER_HAS_CUDA
      {.name = "block",
       .device = DeviceType::cuda,
       .idea = "one block, the marks in shared memory",
       .run = count_touched_experts_cuda},
#endif
  };
  return table;
}

void count_touched_experts(const OpContext& ctx, const CountTouchedExpertsArgs& args) {
  expect_shape(args.expert_ids, {-1, -1}, "count_touched_experts: expert_ids");
  expect_shape(args.counts, {-1, 2}, "count_touched_experts: counts");
  expect_dtype(args.expert_ids, DType::i32, "count_touched_experts: expert_ids");
  expect_dtype(args.counts, DType::i64, "count_touched_experts: counts");
  LADDER_CHECK(args.expert_ids.is_contiguous() && args.counts.is_contiguous(),
               "count_touched_experts: expert_ids and counts must be contiguous");
  LADDER_CHECK(args.num_experts > 0 && args.num_experts <= kMaxCountedExperts,
               "count_touched_experts: {} experts, expected 1 to {}", args.num_experts, kMaxCountedExperts);
  const int64_t tokens = args.expert_ids.dim(0);
  if (tokens > 0 && tokens < args.counts.dim(0))
    run_variant("count_touched_experts", count_touched_experts_variants(), ctx, args);
}

}  // namespace ladder
