#pragma once
// What the CUDA rungs of moe_experts share.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/moe/combine_results_cuda.h"
#include "step1_layers/moe/moe_cuda.h"

namespace ladder {

template <class T>
struct Experts {
  const T *x, *gate_up, *down;
  const int32_t* expert_ids;  // [tokens, top_k], adjacent
  const float* weights;       // [tokens, top_k], adjacent
  T* out;
  int64_t x_stride, out_stride;
  int tokens, top_k, experts, hidden, width;

  // Pair p is expert p % top_k of token p / top_k.
  __host__ __device__ int pairs() const { return tokens * top_k; }
  __device__ int expert_of(int pair) const {  // -1: none here
    const int expert = expert_ids[pair];
    return expert < experts ? expert : -1;
  }
  __device__ const T* gate_row(int expert, int row) const {
    return gate_up + (int64_t{expert} * 2 * width + row) * hidden;
  }
  __device__ const T* up_row(int expert, int row) const { return gate_row(expert, width + row); }
  __device__ const T* down_row(int expert, int row) const {
    return down + (int64_t{expert} * hidden + row) * width;
  }
};

template <class T>
Experts<T> experts_of(const MoeExpertsArgs& args) {
  return {.x = cuda_data<T>(args.x),
          .gate_up = cuda_data<T>(args.gate_up),
          .down = cuda_data<T>(args.down),
          .expert_ids = cuda_data<int32_t>(args.expert_ids),
          .weights = cuda_data<float>(args.weights),
          .out = cuda_data<T>(args.out),
          .x_stride = args.x.stride(0),
          .out_stride = args.out.stride(0),
          .tokens = static_cast<int>(args.x.dim(0)),
          .top_k = static_cast<int>(args.expert_ids.dim(1)),
          .experts = static_cast<int>(args.gate_up.dim(0)),
          .hidden = static_cast<int>(args.x.dim(1)),
          .width = static_cast<int>(args.down.dim(2))};
}

// silu(gate) * up of sums in float: each rounded to T first, as the products of the dense MLP are.
template <class T>
__device__ float silu_and_mul(float gate, float up) {
  const float g = to_float(from_float<T>(gate)), u = to_float(from_float<T>(up));
  return sizeof(T) == 2 ? __fdividef(g, 1.0f + __expf(-g)) * u : g / (1.0f + expf(-g)) * u;
}

}  // namespace ladder
