#pragma once
// Thresholds of top-k and top-p in a row that lies in the shared memory of a cluster.
#include "step1_layers/sampling/cluster_row_cuda.cuh"
#include "step1_layers/sampling/draw_rows_cuda.cuh"

namespace ladder::cluster_row {

inline constexpr int kBins = 2048;
inline constexpr int kBinsPerThread = kBins / kThreads;

// Weights counted into bins. A 64-bit sum is two words, the carry added by whoever caused it, because shared
// memory adds 32 bits at a time.
struct Histogram {
  alignas(16) uint32_t low[kBins];
  alignas(16) uint32_t high[kBins];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) low[i] = high[i] = 0;
    __syncthreads();
  }
  __device__ void add(int bin, uint64_t weight) {
    const auto part = static_cast<uint32_t>(weight);
    const uint32_t before = atomicAdd(&low[bin], part);
    const uint32_t carry = static_cast<uint32_t>(weight >> 32) + (before + part < before ? 1 : 0);
    if (carry != 0) atomicAdd(&high[bin], carry);
  }
};

struct Crossing {
  int bin;
  uint64_t above;  // the weight of the bins above it
  uint64_t wanted;
};

// Adds up the histograms of all blocks and goes down from the last bin to where the weight reaches
// wanted(total), at least 1; bin -1 where it never does. Every block of the cluster gets the same answer.
template <class Wanted>
__device__ Crossing find_crossing(Histogram& histogram, Wanted&& wanted_of) {
  static_assert(kBinsPerThread == 4, "a load of 16 bytes");
  __shared__ Crossing found;
  cluster_sync();                                                     // all have counted
  const int first = kBins - 4 * (static_cast<int>(threadIdx.x) + 1);  // thread 0 has the four highest bins
  uint64_t bins[4] = {};
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) {
    const uint4 low = *reinterpret_cast<const uint4*>(in_block(&histogram.low[first], rank));
    const uint4 high = *reinterpret_cast<const uint4*>(in_block(&histogram.high[first], rank));
    bins[0] += uint64_t{high.x} << 32 | low.x;
    bins[1] += uint64_t{high.y} << 32 | low.y;
    bins[2] += uint64_t{high.z} << 32 | low.z;
    bins[3] += uint64_t{high.w} << 32 | low.w;
  }
  const Scan scan = block_scan(bins[0] + bins[1] + bins[2] + bins[3]);
  const uint64_t wanted = wanted_of(scan.total);
  if (threadIdx.x == 0) found = {-1, 0, wanted};
  __syncthreads();
  uint64_t above = scan.before;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    if (above < wanted && above + bins[i] >= wanted) found = {first + i, above, wanted};
    above += bins[i];
  }
  cluster_sync();  // all have read, so the histograms may change
  return found;
}

// The value at which the weight of the tokens, taken in descending order, reaches what is wanted.
struct Threshold {
  float value;
  uint64_t rest;  // what the tokens above it leave wanting
  bool exists;    // false: all tokens together weigh less
};

// First by the distance to the largest value, in bins of 1/64, which spreads the values that matter over many
// bins; then by the bits of the values of the one bin found, eleven at a time. weight(x) of 0 leaves a token
// out.
template <class Weight, class Wanted>
__device__ Threshold find_threshold(const Row& row, Histogram& histogram, Weight&& weight,
                                    Wanted&& wanted_of) {
  auto distance_bin = [&](float x) {  // never falls as x grows
    return kBins - 1 - static_cast<int>(fminf((row.largest - x) * 64.0f, kBins - 1.0f));
  };
  histogram.clear();
  for_each_value(row, [&](float x, int) {
    const uint64_t w = weight(x);
    if (w != 0) histogram.add(distance_bin(x), w);
  });
  Crossing crossing = find_crossing(histogram, wanted_of);
  if (crossing.bin < 0) return {0, 0, false};
  const int found_bin = crossing.bin;
  uint64_t rest = crossing.wanted - crossing.above;

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
      if (key < low || key > high || distance_bin(x) != found_bin) return;
      const uint64_t w = weight(x);
      if (w != 0) histogram.add(static_cast<int>((key - low) >> shift), w);
    });
    crossing = find_crossing(histogram, [&](uint64_t) { return rest; });
    rest -= crossing.above;
    low += static_cast<uint32_t>(crossing.bin) << shift;
    if (shift == 0) return {float_of(low), rest, true};
    high = min(high, low + (1u << shift) - 1);
  }
}

}  // namespace ladder::cluster_row
