#pragma once
// The largest of many values and where it stands: what argmax, sample and top_logprobs reduce with.
#include <climits>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/sampling/invalid_token.h"

namespace ladder {

struct Best {
  float value;
  int32_t id;
};

__device__ inline Best no_best() {
  return {-INFINITY, INT_MAX};
}
// What a row gives that holds a NaN: it wins against every token, as its id is below theirs.
__device__ inline Best invalid_best() {
  return {INFINITY, kInvalidToken};
}
// The lower id among equals.
__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

// Over all threads of a block of whole warps; every thread gets the result. It may be called again at once.
__device__ inline Best block_best(Best best) {
  __shared__ Best partial[kWarp];
  auto over_warp = [](Best x) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      x = better(x, {__shfl_xor_sync(kAllLanes, x.value, offset), __shfl_xor_sync(kAllLanes, x.id, offset)});
    return x;
  };
  best = over_warp(best);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  __syncthreads();  // readers of the call before are done
  if (lane == 0) partial[warp] = best;
  __syncthreads();
  return over_warp(lane < warps ? partial[lane] : no_best());
}

// Nothing can be drawn from a row of nothing but -inf.
__device__ inline int32_t id_of(Best best) {
  return best.id == INT_MAX ? kInvalidToken : best.id;
}

}  // namespace ladder
