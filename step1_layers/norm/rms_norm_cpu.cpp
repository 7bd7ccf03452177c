#include "step1_layers/norm/rms_norm_cpu.h"

#include <cmath>

namespace ladder {

// >>> task 1.3.loop: RMSNorm, alone and after the residual addition, value by value
namespace {

template <class T>
void normalize(const T* x, const T* weight, double eps, T* out, int64_t width) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    const float value = static_cast<float>(x[i]);
    sum += static_cast<double>(value) * value;
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + eps));
  for (int64_t i = 0; i < width; ++i)
    out[i] = T(static_cast<float>(x[i]) * scale * static_cast<float>(weight[i]));
}

template <class T>
void add(const T* x, T* residual, int64_t width) {
  for (int64_t i = 0; i < width; ++i)
    residual[i] = T(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
}
}  // namespace

void rms_norm_loop(const OpContext&, const RmsNormArgs& args) {
  with_float_type(args.x.dtype(), "rms_norm", [&](auto tag) {
    using T = decltype(tag);
    const bool has_heads = args.x.ndim() == 3;
    for (int64_t row = 0; row < args.x.dim(0); ++row)
      for (int64_t head = 0; head < (has_heads ? args.x.dim(1) : 1); ++head) {
        const T* x = args.x.data<T>() + row * args.x.stride(0) + (has_heads ? head * args.x.stride(1) : 0);
        T* out = args.out.data<T>() + row * args.out.stride(0) + (has_heads ? head * args.out.stride(1) : 0);
        normalize(x, args.weight.data<T>(), args.eps, out, args.x.dim(-1));
      }
  });
}

void rms_norm_loop(const OpContext&, const FusedAddRmsNormArgs& args) {
  with_float_type(args.x.dtype(), "fused_add_rms_norm", [&](auto tag) {
    using T = decltype(tag);
    const int64_t width = args.x.dim(1);
    for (int64_t row = 0; row < args.x.dim(0); ++row) {
      T* residual = args.residual.data<T>() + row * args.residual.stride(0);
      add(args.x.data<T>() + row * args.x.stride(0), residual, width);
      normalize(residual, args.weight.data<T>(), args.eps, args.out.data<T>() + row * args.out.stride(0),
                width);
    }
  });
}
// <<< task 1.3.loop

}  // namespace ladder
