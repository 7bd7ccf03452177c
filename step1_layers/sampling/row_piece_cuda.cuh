#pragma once
// A row cut into one piece per block of a cluster, whose largest value is looked for: argmax, and draw without
// filters.
#include "step1_layers/sampling/cluster_cuda.cuh"
#include "step1_layers/sampling/row_stream_cuda.cuh"

namespace ladder::row_piece {

template <int blocks>  // eight blocks have too little for 1024 threads each
inline constexpr int kThreads = blocks == 8 ? 512 : 1024;
template <int blocks>
inline constexpr int kPerMultiprocessor = 1024 / kThreads<blocks>;
inline constexpr int kUnroll = 4;  // loads in flight per thread

// What a block looks at: a piece of a row.
struct Piece {
  const float* x;
  int64_t begin, end;
};
template <int blocks>
__device__ Piece piece_of_row(const float* logits, int64_t stride, int64_t vocab) {
  const int64_t size = ceil_div<int64_t>(vocab, blocks * kGroup) * kGroup;
  const int64_t begin = blockIdx.x % blocks * size;
  return {logits + blockIdx.x / blocks * stride, begin, begin + size < vocab ? begin + size : vocab};
}

// Adds four values to the best so far.
__device__ inline void keep_best(Best& best, int64_t first, const float (&values)[kGroup]) {
  const float largest = max_or_nan(values);
  if (largest <= best.value) return;  // ids ascend, so only a larger value replaces
  if (isnan(largest)) {
    best = invalid_best();
    return;
  }
  const int place = values[0] == largest ? 0 : values[1] == largest ? 1 : values[2] == largest ? 2 : 3;
  best = {largest, static_cast<int32_t>(first) + place};
}

}  // namespace ladder::row_piece
