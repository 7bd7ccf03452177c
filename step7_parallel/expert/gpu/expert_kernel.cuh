#pragma once
// Places in the memory of expert_memory.h, for its kernels.
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"
#include "step7_parallel/expert/gpu/expert_memory.h"

namespace ladder {

__device__ inline ExpertCounters& expert_counters(const ExpertGroup& group) {
  return reinterpret_cast<ExpertCounters*>(group.memory[group.rank] + ExpertLayout::kCounters)[blockIdx.x];
}

// At rank `at`: how many combines this block of rank `from` has begun.
__device__ inline uint32_t* start_of(const ExpertGroup& group, int at, int from) {
  return reinterpret_cast<uint32_t*>(group.memory[at] + ExpertLayout::kStarts) + blockIdx.x * kMaxPeers +
         from;
}
__device__ inline int64_t index_of_row(const ExpertGroup& group, int from, uint32_t half, int row) {
  return (int64_t{half} * group.layout.size + from) * group.layout.max_rows + row;
}
__device__ inline uint32_t* note_of(const ExpertGroup& group, int at, int from, uint32_t half, int row) {
  return reinterpret_cast<uint32_t*>(group.memory[at] + ExpertLayout::kNotes +
                                     index_of_row(group, from, half, row) * group.layout.note_bytes);
}
__device__ inline char* token_of(const ExpertGroup& group, int at, int from, uint32_t half, int row) {
  return group.memory[at] + group.layout.tokens +
         index_of_row(group, from, half, row) * group.layout.row_bytes;
}
__device__ inline char* part_of(const ExpertGroup& group, int at, int from, uint32_t half, int row) {
  return group.memory[at] + group.layout.parts +
         index_of_row(group, from, half, row) * group.layout.row_bytes;
}

// This block's rows of a call, of which the grid has a block for each of the first kMaxPeerBlocks.
__device__ inline int rows_of_block(int rows) {
  return (rows - static_cast<int>(blockIdx.x) + kMaxPeerBlocks - 1) / kMaxPeerBlocks;
}
__device__ inline int row_of_block(int index) {
  return static_cast<int>(blockIdx.x) + index * kMaxPeerBlocks;
}

// Waits until the packs at `slots` of all ranks in `from_ranks` are there.
template <int max_size>
__device__ void wait_for_packs(const ExpertGroup& group, uint32_t from_ranks, char* const (&slots)[max_size],
                               uint4 (&words)[max_size]) {
  PeerWait wait(group);
  bool all_here;
  do {
    all_here = true;
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (from_ranks >> r & 1) {
        words[r] = load_of_peer(slots[r]);
        all_here = all_here && has_arrived(words[r]);
      }
  } while (!all_here && !wait.is_given_up());
}

struct ExpertGrid {
  unsigned blocks, threads;
};
// Depends on what is the same on all ranks alone.
inline ExpertGrid expert_grid(int64_t rows, int64_t packs) {
  const int64_t blocks = std::min<int64_t>(rows, kMaxPeerBlocks);
  const int64_t most = ceil_div(rows, blocks) * packs;
  const int64_t threads = std::clamp<int64_t>(ceil_div<int64_t>(most, kWarp) * kWarp, 64, kMaxPeerThreads);
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
}

}  // namespace ladder
