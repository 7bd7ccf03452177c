#include "step1_layers/moe/local_experts.h"

#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/moe/moe_cuda.h"
#endif

namespace ladder {

namespace {

void find_local_experts_loop(const OpContext&, const FindLocalExpertsArgs& args) {
  const int64_t experts = args.local_numbers.numel();
  int32_t* ids = args.expert_ids.data<int32_t>();
  for (int64_t i = 0; i < args.expert_ids.numel(); ++i) {
    LADDER_CHECK(ids[i] >= -1 && ids[i] < experts, "find_local_experts: there is no expert {}, they are {}",
                 ids[i], experts);
    if (ids[i] >= 0) ids[i] = args.local_numbers.data<int32_t>()[ids[i]];
  }
}

}  // namespace

std::span<const Variant<FindLocalExpertsArgs>> find_local_experts_variants() {
  static constexpr Variant<FindLocalExpertsArgs> table[] = {
      {.name = "loop", .idea = "id after id", .run = find_local_experts_loop},
#ifdef LADDER_HAS_CUDA
      {.name = "naive",
       .device = DeviceType::cuda,
       .idea = "an id per thread",
       .run = find_local_experts_cuda},
#endif
  };
  return table;
}

void find_local_experts(const OpContext& ctx, const Tensor& expert_ids, const Tensor& local_numbers) {
  expect_shape(expert_ids, {-1, -1}, "find_local_experts: expert_ids");
  expect_shape(local_numbers, {-1}, "find_local_experts: local_numbers");
  expect_dtype(expert_ids, DType::i32, "find_local_experts: expert_ids");
  expect_dtype(local_numbers, DType::i32, "find_local_experts: local_numbers");
  LADDER_CHECK(expert_ids.is_contiguous() && local_numbers.is_contiguous(),
               "find_local_experts: expert_ids and local_numbers must be contiguous");
  if (expert_ids.numel() > 0)
    run_variant<FindLocalExpertsArgs>("find_local_experts", find_local_experts_variants(), ctx,
                                      {expert_ids, local_numbers});
}

}  // namespace ladder
