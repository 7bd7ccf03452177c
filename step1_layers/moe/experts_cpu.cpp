#include "step1_layers/moe/experts_cpu.h"

#include <cmath>
#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 1.9.loop: the experts of a token, one after the other, value by value
namespace {

template <class T>
float dot(const T* a, const T* b, int64_t size) {
  float sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  return sum;
}

// sums += weight * expert(x), for rows of `hidden` values; `activated` has room for `width` of them.
template <class T>
void add_expert(const T* x, const T* gate_up, const T* down, int64_t hidden, int64_t width, float weight,
                T* activated, float* sums) {
  for (int64_t i = 0; i < width; ++i) {
    const auto gate = static_cast<float>(T(dot(x, gate_up + i * hidden, hidden)));
    const auto up = static_cast<float>(T(dot(x, gate_up + (width + i) * hidden, hidden)));
    activated[i] = T(gate / (1.0f + std::exp(-gate)) * up);
  }
  for (int64_t i = 0; i < hidden; ++i) sums[i] += weight * dot(activated, down + i * width, width);
}

}  // namespace

void moe_experts_loop(const OpContext& ctx, const MoeExpertsArgs& args) {
  const int64_t tokens = args.x.dim(0), hidden = args.x.dim(1), top_k = args.expert_ids.dim(1);
  const int64_t experts = args.gate_up.dim(0), width = args.down.dim(2);
  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  const Tensor activated = arena.take({width}, args.x.dtype()), sums = arena.take({hidden}, DType::f32);
  with_float_type(args.x.dtype(), "moe_experts", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t t = 0; t < tokens; ++t) {
      std::memset(sums.raw(), 0, static_cast<size_t>(sums.nbytes()));
      for (int64_t pair = t * top_k; pair < (t + 1) * top_k; ++pair) {
        const int64_t expert = args.expert_ids.data<int32_t>()[pair];
        LADDER_CHECK(expert >= -1 && expert < experts, "moe_experts: there is no expert {}, they are {}",
                     expert, experts);
        if (expert >= 0)
          add_expert(args.x.data<T>() + t * args.x.stride(0),
                     args.gate_up.data<T>() + expert * 2 * width * hidden,
                     args.down.data<T>() + expert * hidden * width, hidden, width,
                     args.weights.data<float>()[pair], activated.data<T>(), sums.data<float>());
      }
      T* out = args.out.data<T>() + t * args.out.stride(0);
      for (int64_t i = 0; i < hidden; ++i) out[i] = T(sums.data<float>()[i]);
    }
  });
}
// <<< task 1.9.loop

}  // namespace ladder
