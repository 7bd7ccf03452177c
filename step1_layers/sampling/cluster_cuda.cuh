#pragma once
// A row shared out among the blocks of a cluster (compute capability 9.0): they run at the same time and can
// reach each other's shared memory, so a row's result needs no second kernel.
#include <algorithm>

#include "step1_layers/core/cluster.cuh"
#include "step1_layers/sampling/argmax_cuda.cuh"

namespace ladder {

// The best of all blocks, in the first one; `best` is each block's own.
template <int blocks>
__device__ Best cluster_best(Best best) {
  __shared__ Best slots[blocks];
  if (threadIdx.x == 0) *in_block(&slots[cluster_rank()], 0) = best;
  cluster_sync();
  if (cluster_rank() == 0)
#pragma unroll
    for (int i = 0; i < blocks; ++i) best = better(best, slots[i]);
  return best;
}

// Calls launch with the number of blocks per row and cluster: as many as the chip holds at once, where so
// many of them fit on a multiprocessor, but not more than eight, nor more than there is work for. A cluster
// stays within a part of the chip, and the parts are not multiples of four blocks: where clusters of four and
// eight get more than half of the chip (large_share = 1), some may wait for others to end.
template <int large_share, class Launch>
void with_blocks_per_row(const OpContext& ctx, const Tensor& logits, int64_t blocks_per_multiprocessor,
                         Launch&& launch) {
  const int64_t room = blocks_per_multiprocessor * ctx.cuda->num_multiprocessors() / logits.dim(0);
  const int64_t useful = ceil_div<int64_t>(logits.dim(1), 2048);
  const int64_t large = std::min(room / large_share, useful);
  if (large >= 8) return launch(std::integral_constant<int, 8>{});
  if (large >= 4) return launch(std::integral_constant<int, 4>{});
  if (std::min(room, useful) >= 2) return launch(std::integral_constant<int, 2>{});
  launch(std::integral_constant<int, 1>{});
}

}  // namespace ladder
