#pragma once
// What the matrix product's kernels share.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/linear/matmul_cuda.h"

namespace ladder {

template <class T, class Out>
struct Product {
  const T *x, *weight, *bias;  // bias: nullptr where there is none
  Out* out;
  int64_t m, n, k;
  int64_t x_stride, weight_stride, out_stride;

  // The sum of out[i][j], with its bias, rounded once.
  __device__ void store(int64_t i, int64_t j, float sum) const {
    if (bias != nullptr) sum += to_float(bias[j]);
    out[i * out_stride + j] = from_float<Out>(sum);
  }
};

// Calls fn(Product) with the operands' types: out has x's type or float.
template <class Fn>
void with_product(const MatmulArgs& args, Fn&& fn) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    auto call = [&](auto out_tag) {
      using Out = decltype(out_tag);
      fn(Product<T, Out>{.x = cuda_data<T>(args.x),
                         .weight = cuda_data<T>(args.weight),
                         .bias = cuda_data<T>(args.bias),
                         .out = cuda_data<Out>(args.out),
                         .m = args.x.dim(0),
                         .n = args.weight.dim(0),
                         .k = args.x.dim(1),
                         .x_stride = args.x.stride(0),
                         .weight_stride = args.weight.stride(0),
                         .out_stride = args.out.stride(0)});
    };
    if (args.out.dtype() == args.x.dtype())
      call(T{});
    else
      call(float{});
  });
}

}  // namespace ladder
