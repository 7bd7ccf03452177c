#include <algorithm>
#include <cstring>

#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/experts_cpu.h"
#include "step1_layers/moe/permutation.h"

namespace ladder {

// >>> task 1.9: one product for all tokens of an expert, gathered and put back
namespace {

// rows[i] = x's row of the token of pairs[i].
void gather_rows(const Tensor& x, std::span<const int32_t> pairs, int64_t top_k, const Tensor& rows) {
  const int64_t row_bytes = x.dim(1) * dtype_size(x.dtype()),
                stride_bytes = x.stride(0) * dtype_size(x.dtype());
  for (size_t i = 0; i < pairs.size(); ++i)
    std::memcpy(static_cast<char*>(rows.raw()) + static_cast<int64_t>(i) * row_bytes,
                static_cast<const char*>(x.raw()) + pairs[i] / top_k * stride_bytes,
                static_cast<size_t>(row_bytes));
}

// out[t] = the weighted sum of the results of its experts, in their order; `places`: where a pair's result is, or -1.
void combine(const MoeExpertsArgs& args, const Tensor& results, std::span<const int32_t> places) {
  const int64_t hidden = args.x.dim(1), top_k = args.expert_ids.dim(1);
  with_float_type(args.x.dtype(), "moe_experts", [&](auto tag) {
    using T = decltype(tag);
    parallel_for(args.x.dim(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* out = args.out.data<T>() + t * args.out.stride(0);
        for (int64_t i = 0; i < hidden; ++i) {
          float sum = 0;
          for (int64_t pair = t * top_k; pair < (t + 1) * top_k; ++pair)
            if (places[pair] >= 0)
              sum += args.weights.data<float>()[pair] * results.data<float>()[places[pair] * hidden + i];
          out[i] = T(sum);
        }
      }
    });
  });
}

}  // namespace

void run_experts_one_by_one(const OpContext& ctx, const MoeExpertsArgs& args,
                            const ExpertProducts& products) {
  const int64_t hidden = args.x.dim(1), top_k = args.expert_ids.dim(1), num_pairs = args.expert_ids.numel();
  const int64_t experts = products.experts, width = products.width;
  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  const SortedPairs sorted = sort_pairs(args.expert_ids, experts, arena);
  const Tensor results = arena.take({num_pairs, hidden}, DType::f32);
  const Tensor places_tensor = arena.take({num_pairs}, DType::i32);
  const std::span places(places_tensor.data<int32_t>(), static_cast<size_t>(num_pairs));
  std::fill(places.begin(), places.end(), -1);
  for (size_t i = 0; i < sorted.pairs.size(); ++i) places[sorted.pairs[i]] = static_cast<int32_t>(i);

  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = sorted.offsets[e], count = sorted.offsets[e + 1] - first;
    if (count == 0) continue;
    ArenaScope expert_scope(arena);
    const Tensor x = arena.take({count, hidden}, args.x.dtype());
    const Tensor gate_up = arena.take({count, 2 * width}, args.x.dtype());
    const Tensor activated = arena.take({count, width}, args.x.dtype());
    gather_rows(args.x, sorted.pairs.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), top_k,
                x);
    products.gate_up(ctx, e, x, gate_up);
    silu_and_mul(ctx, gate_up, activated);
    products.down(ctx, e, activated, results.narrow(0, first, count));
  }
  combine(args, results, places);
}
// <<< task 1.9

void moe_experts_per_expert(const OpContext& ctx, const MoeExpertsArgs& args) {
  const auto product_with = [](const Tensor& matrices) {
    return [&matrices](const OpContext& here, int64_t expert, const Tensor& x, const Tensor& out) {
      matmul(here, x, matrices.select(0, expert), {}, out);
    };
  };
  run_experts_one_by_one(
      ctx, args,
      {args.gate_up.dim(0), args.down.dim(2), product_with(args.gate_up), product_with(args.down)});
}

}  // namespace ladder
