#include "step1_layers/norm/layer_norm_simd.h"

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

// The sum of term(value) over the row, in four partial sums: one addition need not wait for the one before
// it. Lanes behind the row's end are multiplied by zero: there the difference to the mean is not zero itself.
template <class T, class Term>
float row_sum(const T* x, int64_t width, Term&& term) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) sums[j] = sums[j] + term(load(x + i + j * kLanes));
  for (; i + kLanes <= width; i += kLanes) sums[0] = sums[0] + term(load(x + i));
  if (i < width) {
    float ones[kLanes] = {};
    for (int64_t j = 0; j < width - i; ++j) ones[j] = 1.0f;
    sums[1] = sums[1] + term(load_partial(x + i, width - i)) * load(ones);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T>
void normalize(const T* x, const T* weight, const T* bias, float eps, T* out, int64_t width) {
  const auto count = static_cast<float>(width);
  const Vec mean = broadcast(row_sum(x, width, [](Vec v) { return v; }) / count);
  const float variance = row_sum(x, width, [&](Vec v) { return (v - mean) * (v - mean); }) / count;
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(variance + eps));
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    store(out + i, fma((load(x + i) - mean) * scale, load(weight + i), load(bias + i)));
  if (i < width) {
    const int64_t left = width - i;
    store_partial(out + i,
                  fma((load_partial(x + i, left) - mean) * scale, load_partial(weight + i, left),
                      load_partial(bias + i, left)),
                  left);
  }
}

// The sum is read back rounded to T, as in rms_norm_simd.cpp.
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
void LayerNormKernels<T>::layer_norm(const T* x, int64_t x_stride, const T* weight, const T* bias, float eps,
                                     T* out, int64_t out_stride, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row)
    normalize(x + row * x_stride, weight, bias, eps, out + row * out_stride, width);
}

template <class T>
void LayerNormKernels<T>::fused_add_layer_norm(const T* x, int64_t x_stride, T* residual,
                                               int64_t residual_stride, const T* weight, const T* bias,
                                               float eps, T* out, int64_t out_stride, int64_t rows,
                                               int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    add(x + row * x_stride, residual + row * residual_stride, width);
    normalize(residual + row * residual_stride, weight, bias, eps, out + row * out_stride, width);
  }
}

template struct LayerNormKernels<float>;
template struct LayerNormKernels<bf16>;
template struct LayerNormKernels<f16>;

}  // namespace ladder::LADDER_ISA
