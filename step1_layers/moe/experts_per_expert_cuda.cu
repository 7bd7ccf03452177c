// The experts by the matrix library, one after the other.
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/experts_cuda.cuh"

namespace ladder {

namespace {

// per_expert
// Any shape and dtype. The library's products want their sizes from the host, which does not know how many tokens an expert
// gets. So every expert computes all tokens, and counts for those alone that were routed to it: E / k times the work, every
// expert's weights, touched or not, and four kernels for each.
constexpr int kThreads = 256;

// Adds weight * result to a token's sum where the expert is one of the token's; the first begins the sum, the last hands it
// on. A block per token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_expert(Experts<T> e, int expert, const float* result, float* sum) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t token = blockIdx.x, first = token * e.hidden;
  int chosen = -1;
  for (int i = 0; i < e.top_k; ++i)
    if (e.expert_ids[token * e.top_k + i] == expert) chosen = i;
  const float weight = chosen < 0 ? 0.0f : e.weights[token * e.top_k + chosen];
  for (int i = static_cast<int>(threadIdx.x); i < e.hidden; i += kThreads) {
    const float before = expert == 0 ? 0.0f : sum[first + i];
    const float now = chosen < 0 ? before : before + weight * result[first + i];
    sum[first + i] = now;
    if (expert + 1 == e.experts) e.out[token * e.out_stride + i] = from_float<T>(now);
  }
}

}  // namespace

void moe_experts_cuda_per_expert(const OpContext& ctx, const MoeExpertsArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Experts<T> e = experts_of<T>(args);
    const int64_t tokens = e.tokens, width = e.width, hidden = e.hidden;
    ArenaScope scope(*ctx.arena);
    const Tensor gate_up = ctx.arena->take({tokens, 2 * width}, args.x.dtype());
    const Tensor activated = ctx.arena->take({tokens, width}, args.x.dtype());
    const Tensor result = ctx.arena->take({tokens, hidden}, DType::f32);
    const Tensor sum = ctx.arena->take({tokens, hidden}, DType::f32);
    for (int expert = 0; expert < e.experts; ++expert) {
      matmul(ctx, args.x, args.gate_up.select(0, expert), {}, gate_up);
      silu_and_mul(ctx, gate_up, activated);
      matmul(ctx, activated, args.down.select(0, expert), {}, result);
      launch_kernel(ctx, add_expert<T>, static_cast<unsigned>(tokens), kThreads, 0, e, expert,
                    cuda_data<float>(result), cuda_data<float>(sum));
    }
  });
}

bool moe_experts_takes_per_expert(const MoeExpertsArgs& args) {
  return args.expert_ids.numel() >= args.gate_up.dim(0);
}

}  // namespace ladder
