#pragma once
// The k best tokens of a row, for small k: the blocks of a cluster list the few tokens that can be among
// them, the first block sorts what the lists hold. Nothing is exact about the lists but that they hold
// enough.
#include "step1_layers/sampling/cluster_row_cuda.cuh"

namespace ladder::cluster_row {

inline constexpr int64_t kSmallK = 128;  // beyond it the lists are long
inline constexpr int kList = 512;        // candidates of a block, and of the row when they are sorted
inline constexpr int kListBins = 512;
inline constexpr int kOwners = 1024;  // parts that are looked at again; more of them hold more than a list
static_assert(kList == kThreads && kListBins == kThreads, "one of each per thread");

struct Candidates {
  Best list[kList];      // this block's
  Best gathered[kList];  // the row's, in the first block
  Best sorted[kList];
  uint32_t bins[kListBins];
  int owner[kOwners];  // parts whose values are looked at
  int count, owners, limit;
};

// Bins by the distance to the largest value: of 1/32 below 1, then 32 from 1 + distance to twice as much; the
// last one has the rest.
__device__ inline int list_bin(float largest, float x) {
  const uint32_t bin = (__float_as_uint(1.0f + (largest - x)) - __float_as_uint(1.0f)) >> 18;
  return static_cast<int>(min(bin, kListBins - 1u));
}

// The bin in which the k-th of the values counted in c.bins lies; the last one if there are fewer.
__device__ inline int kth_bin(Candidates& c, int64_t k) {
  __syncthreads();
  const uint64_t mine = c.bins[threadIdx.x];
  if (threadIdx.x == 0) c.limit = kListBins - 1;
  const Scan scan = block_scan(mine);
  const auto wanted = static_cast<uint64_t>(k);
  if (scan.before < wanted && scan.before + mine >= wanted) c.limit = static_cast<int>(threadIdx.x);
  __syncthreads();
  return c.limit;
}

__device__ inline void clear_bins(Candidates& c) {
  c.bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) c.count = 0;
  __syncthreads();
}

// Lists the tokens of this block that can be among the k best of the row, c.count of them; the list holds
// kList. The piece is cut into kThreads * parts parts: part t + j * kThreads has the groups of four t +
// (j + i * parts) * kThreads, i = 0, 1, ..., of the piece, and its largest value is mine[j] of thread t. The
// k-th largest of these is at most the k-th largest of all values, and hardly more than k values reach it; so
// only they are counted into bins, and only the few parts whose largest is good enough are looked at again,
// by all threads together. load(first, values) gives the group at `first`.
template <int parts, class Load>
__device__ void list_candidates(Candidates& c, const Row& row, const float (&mine)[parts], int64_t k,
                                Load&& load) {
  clear_bins(c);
  if (threadIdx.x == 0) c.owners = 0;
#pragma unroll
  for (const float part : mine)
    if (part > -INFINITY) atomicAdd(&c.bins[list_bin(row.largest, part)], 1u);
  const int limit = kth_bin(c, k);
#pragma unroll
  for (int j = 0; j < parts; ++j) {
    if (!(mine[j] > -INFINITY) || list_bin(row.largest, mine[j]) > limit) continue;
    const int slot = atomicAdd(&c.owners, 1);
    if (slot < kOwners) c.owner[slot] = static_cast<int>(threadIdx.x) + j * kThreads;
  }
  __syncthreads();
  const int owners = c.owners;
  if (owners > kOwners) {
    if (threadIdx.x == 0) c.count = kList + 1;
    __syncthreads();
    return;
  }
  constexpr int kApart = kThreads * parts;  // groups
  const auto groups = static_cast<int>(ceil_div<int64_t>(row.end - row.begin, kApart * kGroup));
  for (int i = threadIdx.x; i < owners * groups; i += kThreads) {
    const int64_t first = row.begin + (i / owners * kApart + c.owner[i % owners]) * kGroup;
    if (first >= row.end) continue;
    float values[kGroup];
    load(first, values);
    for (int j = 0; j < kGroup; ++j) {
      if (!(values[j] > -INFINITY) || list_bin(row.largest, values[j]) > limit) continue;
      const int slot = atomicAdd(&c.count, 1);
      if (slot < kList) c.list[slot] = {values[j], static_cast<int32_t>(first + j)};
    }
  }
  __syncthreads();
}

// In the first block, when all blocks have listed counts[rank] tokens, none more than kList: c.sorted holds
// the k best of those that take part in order, equals by id, and all that equal the k-th. Returns how many it
// holds, kList + 1 where ties make them too many.
template <int blocks>
__device__ int sort_candidates(Candidates& c, const Row& row, const int (&counts)[blocks], int64_t k) {
  const int me = static_cast<int>(threadIdx.x);
  Best candidates[blocks];
#pragma unroll
  for (int rank = 0; rank < blocks; ++rank)
    candidates[rank] = me < counts[rank] ? *in_block(&c.list[me], rank) : no_best();
  clear_bins(c);
#pragma unroll
  for (const Best& x : candidates)
    if (row.takes_part(x.value)) atomicAdd(&c.bins[list_bin(row.largest, x.value)], 1u);
  const int limit = kth_bin(c, k);
#pragma unroll
  for (const Best& x : candidates) {
    if (!row.takes_part(x.value) || list_bin(row.largest, x.value) > limit) continue;
    const int slot = atomicAdd(&c.count, 1);
    if (slot < kList) c.gathered[slot] = x;
  }
  __syncthreads();
  const int count = c.count;
  if (count > kList) return kList + 1;
  if (me < count) {
    const Best mine = c.gathered[me];
    int rank = 0;  // how many stand before it
    for (int i = 0; i < count; ++i) {
      const Best other = c.gathered[i];
      rank += other.value > mine.value || (other.value == mine.value && other.id < mine.id) ? 1 : 0;
    }
    c.sorted[rank] = mine;
  }
  __syncthreads();
  return count;
}

}  // namespace ladder::cluster_row
