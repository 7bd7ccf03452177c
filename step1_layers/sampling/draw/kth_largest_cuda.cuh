#pragma once
// The k-th largest value of a row that lies in the shared memory of a cluster.
#include "step1_layers/sampling/cluster_row_cuda.cuh"

namespace ladder::cluster_row {

inline constexpr int kBins = 2048;
static_assert(kBins == 4 * kThreads, "a load of 16 bytes per thread");

struct Histogram {
  alignas(16) uint32_t count[kBins];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) count[i] = 0;
    __syncthreads();
  }
};

struct Crossing {
  int bin;
  uint64_t above;  // values in the bins above it
};

// Adds up the histograms of all blocks and goes down from the last bin to where the count reaches `wanted`,
// at least 1; bin -1 where it never does. Every block of the cluster gets the same answer.
__device__ inline Crossing find_crossing(Histogram& histogram, uint64_t wanted) {
  __shared__ Crossing found;
  cluster_sync();                                                     // all have counted
  const int first = kBins - 4 * (static_cast<int>(threadIdx.x) + 1);  // thread 0 has the four highest bins
  uint32_t bins[4] = {};
  int front = 0;  // not a constant: eight addresses would be kept in registers from row to row
  asm volatile("" : "+r"(front));
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) {
    const uint4 count = *reinterpret_cast<const uint4*>(in_block(&histogram.count[first], front + rank));
    bins[0] += count.x;
    bins[1] += count.y;
    bins[2] += count.z;
    bins[3] += count.w;
  }
  if (threadIdx.x == 0) found = {-1, 0};
  uint64_t above = block_scan(uint64_t{bins[0]} + bins[1] + bins[2] + bins[3]).before;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    if (above < wanted && above + bins[i] >= wanted) found = {first + i, above};
    above += bins[i];
  }
  cluster_sync();  // all have read, so the histograms may change
  return found;
}

// The k-th largest of the values that take part; -inf where there are fewer. First by the distance to the
// largest value, in bins of 1/64, which spreads the values that matter over many bins; then by the bits of
// the values of the one bin found, eleven at a time.
__device__ inline float kth_largest(const Row& row, Histogram& histogram, int64_t k) {
  auto distance_bin = [&](float x) {  // never falls as x grows
    return kBins - 1 - static_cast<int>(fminf((row.largest - x) * 64.0f, kBins - 1.0f));
  };
  histogram.clear();
  for_each_value(row, [&](float x, int) { atomicAdd(&histogram.count[distance_bin(x)], 1u); });
  auto wanted = static_cast<uint64_t>(k);
  Crossing crossing = find_crossing(histogram, wanted);
  if (crossing.bin < 0) return -INFINITY;
  const int found_bin = crossing.bin;
  wanted -= crossing.above;

  // The keys that this bin can hold, with room for rounding.
  const float error = 1e-6f * (fabsf(row.largest) + 64.0f);
  const auto distance = static_cast<float>(kBins - 1 - found_bin);
  const float lowest = found_bin == 0 ? -INFINITY : row.largest - (distance + 1) / 64 - error;
  uint32_t low = key_of(fmaxf(lowest, -3.4028235e38f)), high = key_of(row.largest - distance / 64 + error);
  for (;;) {
    const int shift = max(0, 21 - __clz(static_cast<int>(high - low)));  // eleven bits
    histogram.clear();
    for_each_value(row, [&](float x, int) {
      const uint32_t key = key_of(x);
      if (key >= low && key <= high && distance_bin(x) == found_bin)
        atomicAdd(&histogram.count[(key - low) >> shift], 1u);
    });
    crossing = find_crossing(histogram, wanted);
    wanted -= crossing.above;
    low += static_cast<uint32_t>(crossing.bin) << shift;
    if (shift == 0) return float_of(low);
    high = min(high, low + (1u << shift) - 1);
  }
}

}  // namespace ladder::cluster_row
