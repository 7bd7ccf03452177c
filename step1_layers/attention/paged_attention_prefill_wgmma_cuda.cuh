#pragma once
// How the warpgroup that copies hands tiles to those that compute (paged_attention_prefill_wgmma_cuda.cu).
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"
#include "step1_layers/core/wgmma.cuh"

namespace ladder::wgmma_attention {

inline constexpr int kDim = 128, kKeys = 128, kStages = 2, kConsumers = 2;
inline constexpr int kThreads = (1 + kConsumers) * kWarpgroup, kChunks = kDim / 8;
inline constexpr int kTileBytes = kKeys * kDim * 2,
                     kHalfBytes = kTileBytes / 2;  // halves: 64 elements of each row
static_assert(kPrefillRows == kKeys, "the rows of queries and of keys are copied alike");
// Queries, keys, values and results; tiles stand at multiples of 1024.
inline constexpr int kShared = 1024 + (2 + 2 * kStages) * kTileBytes;

// What the warpgroups share: addresses in shared memory, and the items, handed over with the queries.
enum Kind { kQueries, kKeysOf, kValues };
struct Exchange {
  uint32_t tiles, full, empty;  // barriers by kind and stage
  PrefillItem* items;           // two; rows == 0: there are no more

  __device__ uint32_t tile(Kind kind, int stage) const {
    return tiles + (kind == kQueries ? 0 : (kind == kKeysOf ? 1 : 1 + kStages) + stage) * kTileBytes;
  }
  __device__ uint32_t results() const { return tiles + (1 + 2 * kStages) * kTileBytes; }
  __device__ static uint32_t barrier(uint32_t first, Kind kind, int stage) {
    return first + (kind * kStages + stage) * 8;
  }
};
// The count-th tile of a kind: where it stands, and the parity of the phases of its barriers.
__device__ inline int stage_of(Kind kind, int count) {
  return kind == kQueries ? 0 : count % kStages;
}
__device__ inline int parity_of(Kind kind, int count) {
  return kind == kQueries ? count % 2 : count / kStages % 2;
}
__device__ inline uint32_t place(int row, int chunk) {
  return static_cast<uint32_t>(chunk / 8 * kHalfBytes) + swizzled(row, chunk % 8);
}

// The warps that copy. A thread copies a chunk of every eighth row of a tile.
template <class T>
struct Copier {
  static constexpr int kRowsAtOnce = kWarpgroup / kChunks, kSteps = kKeys / kRowsAtOnce;
  const Attention<T>& a;
  const PrefillLine& line;
  const Exchange& with;
  int lane, warp, chunk, first_row, my_row;
  int copied[3] = {0, 0, 0};  // tiles of each kind
  uint32_t under_way = 0;     // the barrier that tells of the last copies

  __device__ Copier(const Attention<T>& a, const PrefillLine& line, const Exchange& with)
      : a(a), line(line), with(with) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % kWarp;
    warp = thread / kWarp;
    chunk = thread % kChunks;
    first_row = thread / kChunks;
    // Each lane finds where one of the rows stands that its warp copies; the others get it by a shuffle.
    my_row = lane / 2 * kRowsAtOnce + warp * 2 + lane % 2;
  }

  __device__ void hand_over() {
    fence_for_wgmma();
    arrive(under_way);
  }
  // from(step) is the address of a row's chunk. The tile before is handed over: it has had time to arrive.
  template <class From>
  __device__ void copy(Kind kind, int rows, From&& from) {
    const int count = copied[kind]++, stage = stage_of(kind, count);
    wait_phase(with.barrier(with.empty, kind, stage), parity_of(kind, count) ^ 1);
    const uint32_t to = with.tile(kind, stage) + place(first_row, chunk);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      copy_async(to + step * kRowsAtOnce * 128, from(step), step * kRowsAtOnce + first_row < rows);
    commit_copies();
    if (under_way != 0) {
      wait_copies<1>();
      hand_over();
    }
    under_way = with.barrier(with.full, kind, stage);
  }

  __device__ void copy_item(const PrefillItem& item) {
    copy_queries(item);
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    auto find_block = [&](int tile) {
      const int key = tile * kKeys + my_row;
      return tile < item.end && key < item.keys ? table[line.block_size(key)] : 0;
    };
    auto copy_tile = [&](Kind kind, int tile, int block) {
      // Offsets in units of 16 bytes, which fit 32 bits.
      const bool keys = kind == kKeysOf;
      const int key = tile * kKeys + my_row, slot = key - line.block_size(key) * a.block_size;
      const uint32_t at =
          static_cast<uint32_t>(block) * static_cast<uint32_t>((keys ? a.k_block : a.v_block) / 8) +
          static_cast<uint32_t>(slot) * static_cast<uint32_t>((keys ? a.k_slot : a.v_slot) / 8);
      const T* first = (keys ? a.k + item.kv_head * a.k_head : a.v + item.kv_head * a.v_head) + chunk * 8;
      const int rows = item.keys - tile * kKeys;
      copy(kind, rows, [&](int step) {
        const uint32_t row = __shfl_sync(kAllLanes, at, step * 2 + lane / kChunks);
        return first + uint64_t{step * kRowsAtOnce + first_row < rows ? row : 0} * 8;
      });
    };
    int block = find_block(item.begin), next = find_block(item.begin + 1);
    copy_tile(kKeysOf, item.begin, block);
    for (int tile = item.begin; tile < item.end; ++tile) {
      const int after = find_block(tile + 2);
      if (tile + 1 < item.end) copy_tile(kKeysOf, tile + 1, next);
      copy_tile(kValues, tile, block);
      block = next;
      next = after;
    }
  }
  __device__ void copy_queries(const PrefillItem& item) {
    const int count = copied[kQueries];
    const T* first = a.q + item.first_token * a.q_token + chunk * 8;
    copy(kQueries, item.rows, [&](int step) {
      if (step == 0 && threadIdx.x == 0) with.items[count % 2] = item;  // the place is free by now
      const int row = step * kRowsAtOnce + first_row, from = row < item.rows ? row : 0;
      return first + item.token(line, from) * a.q_token + item.head(line, from) * a.q_head;
    });
  }
  // No more items.
  __device__ void end() {
    if (under_way != 0) {
      wait_copies<0>();
      hand_over();
    }
    const int count = copied[kQueries];
    wait_phase(with.barrier(with.empty, kQueries, 0), parity_of(kQueries, count) ^ 1);
    if (threadIdx.x == 0) with.items[count % 2].rows = 0;
    arrive(with.barrier(with.full, kQueries, 0));
  }
};

// Blocks draw units from a counter, which the last of them to find no more sets back to zero.
template <class T>
__device__ void copy_items(const Attention<T>& a, const PrefillLine& line, const Exchange& with,
                           int* counters) {
  __shared__ int drawn[2];
  Copier<T> copier(a, line, with);
  PrefillItem item;
  int unit = static_cast<int>(blockIdx.x);
  for (int round = 0; find_item(a, line, unit, item); ++round) {
    int next = 0;
    if (threadIdx.x == 0) next = static_cast<int>(gridDim.x) + atomicAdd(counters, 1);
    if (item.part < item.parts) copier.copy_item(item);
    if (threadIdx.x == 0) drawn[round % 2] = next;
    sync_some(1, kWarpgroup);
    unit = drawn[round % 2];
  }
  copier.end();
  if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == static_cast<int>(gridDim.x) - 1)
    counters[0] = counters[1] = 0;
}

}  // namespace ladder::wgmma_attention
