#include "step1_layers/rotary/rope_cpu.h"

namespace ladder {

// >>> task 1.6.loop: rotates the pairs (i, i + half) of every head of q and k, pair by pair
namespace {

template <class T>
void rotate(T* x, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float x1 = static_cast<float>(x[i]), x2 = static_cast<float>(x[i + half]);
    x[i] = T(x1 * cosines[i] - x2 * sines[i]);
    x[i + half] = T(x2 * cosines[i] + x1 * sines[i]);
  }
}

}  // namespace

void rotary_embedding_loop(const OpContext&, const RotaryEmbeddingArgs& args) {
  const int64_t half = args.table.dim(1) / 2;
  with_float_type(args.q.dtype(), "rotary_embedding", [&](auto tag) {
    using T = decltype(tag);
    for (const Tensor& x : {args.q, args.k})
      for (int64_t token = 0; token < x.dim(0); ++token) {
        const float* cosines =
            args.table.data<float>() + args.positions.data<int32_t>()[token] * args.table.stride(0);
        for (int64_t head = 0; head < x.dim(1); ++head)
          rotate(x.data<T>() + token * x.stride(0) + head * x.stride(1), cosines, cosines + half, half);
      }
  });
}
// <<< task 1.6.loop

}  // namespace ladder
