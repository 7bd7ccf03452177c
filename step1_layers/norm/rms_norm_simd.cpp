#include "step1_layers/norm/rms_norm_simd.h"

#include "step1_layers/core/simd.h"
#include "step1_layers/norm/sum_of_squares_simd.h"

namespace ladder::LADDER_ISA {

// >>> task 1.3.simd: RMSNorm on registers of values, alone and after the residual addition
namespace {

template <class T>
void normalize(const T* x, const T* weight, float eps, T* out, int64_t width) {
  const float mean = sum_of_squares(x, width) / static_cast<float>(width);
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(mean + eps));
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
  if (i < width)
    store_partial(out + i, load_partial(x + i, width - i) * scale * load_partial(weight + i, width - i),
                  width - i);
}

// The sum is read back rounded to T: the row is in L1, and every kernel then norms the same values.
template <class T>
void add(const T* x, T* residual, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(residual + i, load(residual + i) + load(x + i));
  if (i < width)
    store_partial(residual + i, load_partial(residual + i, width - i) + load_partial(x + i, width - i),
                  width - i);
}
}  // namespace

template <class T>
void NormKernels<T>::rms_norm(const T* x, int64_t x_stride, const T* weight, float eps, T* out,
                              int64_t out_stride, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row)
    normalize(x + row * x_stride, weight, eps, out + row * out_stride, width);
}

template <class T>
void NormKernels<T>::fused_add_rms_norm(const T* x, int64_t x_stride, T* residual, int64_t residual_stride,
                                        const T* weight, float eps, T* out, int64_t out_stride, int64_t rows,
                                        int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    add(x + row * x_stride, residual + row * residual_stride, width);
    normalize(residual + row * residual_stride, weight, eps, out + row * out_stride, width);
  }
}
// <<< task 1.3.simd

template struct NormKernels<float>;
template struct NormKernels<bf16>;
template struct NormKernels<f16>;

}  // namespace ladder::LADDER_ISA
