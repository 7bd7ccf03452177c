#include "step1_layers/moe/shared_expert.h"

#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/moe/moe_cuda.h"
#endif

namespace ladder {

namespace {

void add_shared_expert_loop(const OpContext&, const AddSharedExpertArgs& args) {
  with_float_type(args.out.dtype(), "add_shared_expert", [&](auto tag) {
    using T = decltype(tag);
    const int64_t hidden = args.out.dim(1);
    parallel_for(args.out.dim(0), 16384 / std::max<int64_t>(hidden, 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float weight = 1.0f / (1.0f + std::exp(-args.gate_logits.data<float>()[t]));
        const T* shared = args.shared.data<T>() + t * args.shared.stride(0);
        T* out = args.out.data<T>() + t * args.out.stride(0);
        for (int64_t i = 0; i < hidden; ++i)
          out[i] = T(static_cast<float>(out[i]) + weight * static_cast<float>(shared[i]));
      }
    });
  });
}

}  // namespace

std::span<const Variant<AddSharedExpertArgs>> add_shared_expert_variants() {
  static constexpr Variant<AddSharedExpertArgs> table[] = {
      {.name = "loop", .idea = "value by value", .run = add_shared_expert_loop},
#ifdef LADDER_HAS_CUDA
      {.name = "naive",
       .device = DeviceType::cuda,
       .idea = "an element per thread",
       .run = add_shared_expert_cuda},
#endif
  };
  return table;
}

void add_shared_expert(const OpContext& ctx, const Tensor& gate_logits, const Tensor& shared,
                       const Tensor& out) {
  expect_shape(out, {-1, -1}, "add_shared_expert: out");
  expect_shape(shared, {out.dim(0), out.dim(1)}, "add_shared_expert: shared");
  expect_shape(gate_logits, {out.dim(0), 1}, "add_shared_expert: gate_logits");
  expect_dtype(gate_logits, DType::f32, "add_shared_expert: gate_logits");
  expect_dtype(shared, out.dtype(), "add_shared_expert: shared");
  LADDER_CHECK(
      gate_logits.is_contiguous() && (out.dim(1) <= 1 || (out.stride(1) == 1 && shared.stride(1) == 1)),
      "add_shared_expert: the elements of a row must be adjacent");
  if (out.dim(0) > 0)
    run_variant<AddSharedExpertArgs>("add_shared_expert", add_shared_expert_variants(), ctx,
                                     {gate_logits, shared, out});
}

}  // namespace ladder
