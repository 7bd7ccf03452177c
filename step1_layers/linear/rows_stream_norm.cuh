#pragma once
// The norm before a product of few rows (rows_stream_cuda.cu). Every block norms all rows of x for itself,
// from L2: that is quicker than a kernel that does it once and has to be waited for.
#include "step1_layers/linear/rows_stream.cuh"

namespace ladder {

// The normed rows in shared memory, each pack at place(pack, row), by all threads: a row belongs to a team of
// 1, 2, 4 or 8 warps, a pack of it to one thread. Packs past the end of a row are zeros. Product: x, its rows' stride, m, k and eps, as
// StreamProduct has them; the block has kThreads.
template <class Product, class T, class Place>
__device__ void norm_rows(const Product& p, const T* weights, int padded_packs, Place&& place) {
  constexpr int kSize = Pack<T>::kSize, kBatch = 4;  // packs in flight
  __shared__ float partial[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int log_warps = p.m >= 5 ? 0 : p.m >= 3 ? 1 : p.m == 2 ? 2 : 3;  // of a team
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
      const Pack<T> weight = load_pack(weights + pack * kSize);
#pragma unroll
      for (int e = 0; e < kSize; ++e)
        value.value[e] = from_float<T>(to_float(value.value[e]) * scale * to_float(weight.value[e]));
      store_pack(place(pack, row), value);
    }
    __syncthreads();
  }
}

// The same for rows in registers: x[c][o] is a pack of row 8 o + lane / 4 at column column_of(c), and four
// lanes of every warp have that row. One trip through shared memory less, and one barrier.
template <class T, int kChunks, int kOctets, class Column>
__device__ void norm_registers(const StreamProduct<T>& p, const T* weights, uint4 (&x)[kChunks][kOctets],
                               Column&& column_of) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float partial[kWarps][kOctets * 8];
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float value[kSize];
      to_floats(reinterpret_cast<const Pack<T>&>(x[c][o]), value);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum = fmaf(value[e], value[e], sum);
    }
    sum = warp_sum<4>(sum);
    if (threadIdx.x % 4 == 0) partial[warp][o * 8 + g] = sum;
  }
  __syncthreads();
  float scale[kOctets];
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w][o * 8 + g];
    scale[o] = rsqrtf(__fdividef(sum, static_cast<float>(p.k)) + p.eps);
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (column_of(c) >= p.k) continue;
    float weight[kSize];
    to_floats(load_pack(weights + column_of(c)), weight);
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      auto& pack = reinterpret_cast<Pack<T>&>(x[c][o]);
      float value[kSize];
      to_floats(pack, value);
#pragma unroll
      for (int e = 0; e < kSize; ++e) value[e] = value[e] * scale[o] * weight[e];
      pack = from_floats<T>(value);
    }
  }
}

}  // namespace ladder
