#pragma once
// What a block of rows_stream (rows_stream_cuda.cu) knows of its product; the norm in front of it, and the
// activation behind.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/packs.cuh"
#include "step1_layers/linear/rows_stream.h"

namespace ladder {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;

struct StreamShape {  // where things begin in shared memory, bytes
  int x, sums, ring;
};

template <class T>
struct StreamProduct {
  const T *x, *weight, *bias, *gain;  // bias and gain: nullptr where there is none
  void* out;
  bool float_out;
  Behind behind;
  int m, n, k;
  int64_t x_stride, weight_stride, out_stride;
  float eps;
  StreamShape shape;
  int units, one_more;  // of a block, and how many blocks have one more
  bool sums_in_ring;    // which is empty when they are written
};

__device__ inline float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

// The normed rows in shared memory, each pack at place(pack, row), by all threads: a row belongs to 1, 2, 4
// or 8 warps, a pack of it to one thread. Packs past the end of a row are zeros.
template <class T, class Place>
__device__ void norm_rows(const StreamProduct<T>& p, const T* gains, int padded_packs, Place&& place) {
  constexpr int kSize = Pack<T>::kSize, kBatch = 4;  // packs under way
  __shared__ float partial[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int log_warps = p.m >= 5 ? 0 : p.m >= 3 ? 1 : p.m == 2 ? 2 : 3;  // of a team, which has a row
  const int team_warps = 1 << log_warps, teams = kWarps >> log_warps, team = warp >> log_warps;
  const int step = team_warps * kWarp, packs = p.k / kSize;
  const int first = (warp & (team_warps - 1)) * kWarp + lane;
#pragma unroll 1
  for (int row = team; row < p.m + team; row += teams) {  // the same number of turns for all teams
    const bool inside = row < p.m;
    float sum = 0;
#pragma unroll 1
    for (int pack = first; inside && pack < padded_packs; pack += kBatch * step) {
      Pack<T> values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int at = pack + j * step;
        values[j] = at < packs ? load_pack(p.x + row * p.x_stride + at * kSize) : zero_pack<T>();
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (pack + j * step < padded_packs) store_pack(place(pack + j * step, row), values[j]);
#pragma unroll
        for (int e = 0; e < kSize; ++e)
          sum = fmaf(to_float(values[j].value[e]), to_float(values[j].value[e]), sum);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll 1
    for (int w = 0; w < team_warps; ++w) sum += partial[team * team_warps + w];
    const float scale = rsqrtf(__fdividef(sum, static_cast<float>(p.k)) + p.eps);
#pragma unroll 1
    for (int pack = first; inside && pack < packs; pack += step) {
      Pack<T> value = load_pack(place(pack, row));
      const Pack<T> gain = load_pack(gains + pack * kSize);
#pragma unroll
      for (int e = 0; e < kSize; ++e)
        value.value[e] = from_float<T>(to_float(value.value[e]) * scale * to_float(gain.value[e]));
      store_pack(place(pack, row), value);
    }
    __syncthreads();
  }
}

// The same for rows that the threads keep in registers: held[c][h] is a pack of row 8 h + lane / 4 at column
// column_of(c), and four lanes of every warp have that row. A turn through shared memory less, and one
// barrier.
template <class T, int kChunks, int kHalves, class Column>
__device__ void norm_held(const StreamProduct<T>& p, const T* gains, uint4 (&held)[kChunks][kHalves],
                          Column&& column_of) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float partial[kWarps][kHalves * 8];
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float x[kSize];
      to_floats(reinterpret_cast<const Pack<T>&>(held[c][h]), x);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum = fmaf(x[e], x[e], sum);
    }
    sum = warp_sum<4>(sum);
    if (threadIdx.x % 4 == 0) partial[warp][h * 8 + g] = sum;
  }
  __syncthreads();
  float scale[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w][h * 8 + g];
    scale[h] = rsqrtf(__fdividef(sum, static_cast<float>(p.k)) + p.eps);
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (column_of(c) >= p.k) continue;
    float gain[kSize];
    to_floats(load_pack(gains + column_of(c)), gain);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      auto& pack = reinterpret_cast<Pack<T>&>(held[c][h]);
      float x[kSize];
      to_floats(pack, x);
#pragma unroll
      for (int e = 0; e < kSize; ++e) x[e] = x[e] * scale[h] * gain[e];
      pack = from_floats<T>(x);
    }
  }
}

}  // namespace ladder
