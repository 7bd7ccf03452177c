#pragma once
// What the norm's kernels share: the rows of a call.
#include <type_traits>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/norm/rms_norm_cuda.h"

namespace ladder {

// The rows of one call: row r lies at r / inner * outer stride + r % inner * inner stride (inner: the heads
// of a token). residual is nullptr for the plain norm.
template <class T>
struct NormRows {
  const T* x;
  T* residual;
  const T* weight;
  T* out;
  int64_t rows, inner, width;
  int64_t x_outer, x_inner, residual_outer, out_outer, out_inner;
  float eps;

  __device__ int64_t x_at(int64_t row) const { return at(row, x_outer, x_inner); }
  __device__ int64_t out_at(int64_t row) const { return at(row, out_outer, out_inner); }
  __device__ int64_t at(int64_t row, int64_t outer, int64_t step) const {
    if (inner == 1) return row * outer;  // a division costs as much as the norm of a pack
    const auto part = static_cast<uint32_t>(row), of = static_cast<uint32_t>(inner);  // below 2^32 rows
    return int64_t{part / of} * outer + int64_t{part % of} * step;
  }
};

template <class T>
NormRows<T> norm_rows(const RmsNormArgs& args) {
  const Tensor &x = args.x, &out = args.out;
  const bool heads = x.ndim() == 3;
  return {.x = cuda_data<T>(x),
          .residual = nullptr,
          .weight = cuda_data<T>(args.weight),
          .out = cuda_data<T>(out),
          .rows = heads ? x.dim(0) * x.dim(1) : x.dim(0),
          .inner = heads ? x.dim(1) : 1,
          .width = x.dim(-1),
          .x_outer = x.stride(0),
          .x_inner = heads ? x.stride(1) : 0,
          .residual_outer = 0,
          .out_outer = out.stride(0),
          .out_inner = heads ? out.stride(1) : 0,
          .eps = static_cast<float>(args.eps)};
}

template <class T>
NormRows<T> norm_rows(const FusedAddRmsNormArgs& args) {
  return {.x = cuda_data<T>(args.x),
          .residual = cuda_data<T>(args.residual),
          .weight = cuda_data<T>(args.weight),
          .out = cuda_data<T>(args.out),
          .rows = args.x.dim(0),
          .inner = 1,
          .width = args.x.dim(1),
          .x_outer = args.x.stride(0),
          .x_inner = 0,
          .residual_outer = args.residual.stride(0),
          .out_outer = args.out.stride(0),
          .out_inner = 0,
          .eps = static_cast<float>(args.eps)};
}

template <class Args>
constexpr bool fuses() {
  return std::is_same_v<Args, FusedAddRmsNormArgs>;
}

}  // namespace ladder
