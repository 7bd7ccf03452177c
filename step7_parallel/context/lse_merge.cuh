#pragma once
// What kernels that merge partial results share (lse_merge.h). Only .cu files include this.
#include "step1_layers/core/packs.cuh"

namespace ladder {

// `size` adjacent elements, read and written by one instruction where they are aligned to so many.
template <class T, int size>
struct alignas(sizeof(T) * size) Run {
  T value[size];
};

// An lse as it counts: -inf where it is no number.
__device__ inline float counted_lse(float lse) {
  return isfinite(lse) ? lse : -INFINITY;
}

// What all parts weigh together: every lse is seen first and added then, around the largest, as e^lse does not fit a float.
class LseSum {
 public:
  __device__ void see(float lse) { most_ = fmaxf(most_, lse); }
  __device__ void add(float lse) {
    if (most_ > -INFINITY) sum_ += expf(lse - most_);
  }
  __device__ float total() const { return most_ > -INFINITY ? most_ + logf(sum_) : -INFINITY; }

 private:
  float most_ = -INFINITY, sum_ = 0;
};

// 0 for a part that counts nothing: its values are not to be looked at.
__device__ inline float lse_weight(float lse, float total) {
  return lse > -INFINITY ? expf(lse - total) : 0.0f;
}

template <class T, int size>
__device__ void add_weighted(float (&sum)[size], float weight, const Run<T, size>& run) {
  if (!(weight > 0)) return;
#pragma unroll
  for (int i = 0; i < size; ++i) sum[i] += weight * to_float(run.value[i]);
}

}  // namespace ladder
