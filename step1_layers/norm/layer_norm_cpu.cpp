#include "step1_layers/norm/layer_norm_cpu.h"

#include <cmath>

namespace ladder {

// >>> task 1.10: LayerNorm in a loop, alone and after the residual addition
namespace {

template <class T>
void normalize(const T* x, const T* weight, const T* bias, double eps, T* out, int64_t width) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<float>(x[i]);
  const double mean = sum / static_cast<double>(width);
  for (int64_t i = 0; i < width; ++i) {
    const double difference = static_cast<float>(x[i]) - mean;
    squares += difference * difference;
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
  for (int64_t i = 0; i < width; ++i)
    out[i] = T(static_cast<float>((static_cast<float>(x[i]) - mean) * scale) * static_cast<float>(weight[i]) +
               static_cast<float>(bias[i]));
}

}  // namespace

void layer_norm_loop(const OpContext&, const LayerNormArgs& args) {
  with_float_type(args.x.dtype(), "layer_norm", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t row = 0; row < args.x.dim(0); ++row)
      normalize(args.x.data<T>() + row * args.x.stride(0), args.weight.data<T>(), args.bias.data<T>(),
                args.eps, args.out.data<T>() + row * args.out.stride(0), args.x.dim(1));
  });
}

void layer_norm_loop(const OpContext&, const FusedAddLayerNormArgs& args) {
  with_float_type(args.x.dtype(), "fused_add_layer_norm", [&](auto tag) {
    using T = decltype(tag);
    const int64_t width = args.x.dim(1);
    for (int64_t row = 0; row < args.x.dim(0); ++row) {
      const T* x = args.x.data<T>() + row * args.x.stride(0);
      T* residual = args.residual.data<T>() + row * args.residual.stride(0);
      for (int64_t i = 0; i < width; ++i)
        residual[i] = T(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
      normalize(residual, args.weight.data<T>(), args.bias.data<T>(), args.eps,
                args.out.data<T>() + row * args.out.stride(0), width);
    }
  });
}
// <<< task 1.10

}  // namespace ladder
