// argmax by a cluster of blocks per row.
#include "step1_layers/sampling/row_piece_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace row_piece;

// cluster
// Any shape. A cluster of blocks owns a row, a block per multiprocessor: eight blocks for a few rows, one
// where the rows fill the chip. Each keeps four loads of 16 bytes per thread in flight, and the results meet
// in the shared memory of the first block: one kernel instead of two. The largest value does not depend on
// the split: batch invariant.
template <int blocks>
__global__ void __launch_bounds__(kThreads<blocks>, 2) LADDER_CLUSTER_OF(blocks)
    argmax_cluster(const float* logits, int64_t stride, int64_t vocab, int32_t* ids) {
  allow_next_kernel();
  cluster_arrive();
  wait_for_previous_kernel();
  const Piece piece = piece_of_row<blocks>(logits, stride, vocab);
  Best best = no_best();
  for_each_group<kThreads<blocks>, kUnroll>(
      piece.x, piece.begin, piece.end,
      [&](int, int64_t first, const float(&values)[kGroup]) { keep_best(best, first, values); });
  best = block_best(best);
  cluster_wait();
  best = cluster_best<blocks>(best);
  if (threadIdx.x == 0 && blockIdx.x % blocks == 0) ids[blockIdx.x / blocks] = id_of(best);
}

}  // namespace

void argmax_cuda_cluster(const OpContext& ctx, const ArgmaxArgs& args) {
  const int64_t rows = args.logits.dim(0);
  if (rows == 0) return;
  with_blocks_per_row<1>(ctx, args.logits, 1, [&](auto blocks) {
    launch_kernel(ctx, argmax_cluster<blocks>, static_cast<unsigned>(rows * blocks), kThreads<blocks>, 0,
                  cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                  cuda_data<int32_t>(args.ids));
  });
}

}  // namespace ladder
