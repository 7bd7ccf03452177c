// argmax, and draw without filters: the largest logit, or the largest after temperature and noise.
#include <algorithm>

#include "step1_layers/sampling/cluster_cuda.cuh"
#include "step1_layers/sampling/noise_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

template <int blocks>  // eight blocks have too little for 1024 threads each
constexpr int kThreads = blocks == 8 ? 512 : 1024;
template <int blocks>
constexpr int kPerMultiprocessor = 1024 / kThreads<blocks>;
constexpr int kUnroll = 4;  // loads in flight per thread

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

__device__ void keep_best(Best& best, int64_t first, const float (&values)[kGroup]) {
  const float largest = fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3]));
  if (!(largest > best.value)) return;  // ids ascend, so only a larger value replaces
  const int place = values[0] == largest ? 0 : values[1] == largest ? 1 : values[2] == largest ? 2 : 3;
  best = {largest, static_cast<int32_t>(first) + place};
}

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

// fused, where no row has a filter
// As above, with the noise of NoisySearch, on quotients by the temperature that are exact only where it
// matters. One pass; a group's random words, which do not depend on its logits, are computed while these are
// on their way.
template <int blocks>
__global__ void __launch_bounds__(kThreads<blocks>, kPerMultiprocessor<blocks>) LADDER_CLUSTER_OF(blocks)
    draw_cluster(const float* logits, int64_t stride, int64_t vocab, const float* temperatures,
                 const int64_t* seeds, const int64_t* output_index, int32_t* ids) {
  __shared__ Contenders contenders;
  allow_next_kernel();
  cluster_arrive();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x / blocks;
  const Piece piece = piece_of_row<blocks>(logits, stride, vocab);
  const float temperature = temperatures[row];
  Best best = no_best();
  if (temperature < kLeastTemperature) {
    for_each_group<kThreads<blocks>, kUnroll>(
        piece.x, piece.begin, piece.end,
        [&](int, int64_t first, const float(&values)[kGroup]) { keep_best(best, first, values); });
    best = block_best(best);
  } else {
    const float inverse = 1.0f / temperature;
    auto logit_of = [&](int32_t id) {
      return id < piece.end ? __fdiv_rn(piece.x[id], temperature) : -INFINITY;
    };
    NoisySearch search({static_cast<uint64_t>(seeds[row]), static_cast<uint64_t>(output_index[row])},
                       contenders);
    constexpr int kStep = kThreads<blocks> * kGroup;
    bool started = false;
    uint32_t smallest[kUnroll];
    for_each_batch<kThreads<blocks>, kUnroll>(
        piece.x, piece.begin, piece.end,
        [&](uint32_t first) { search.find_smallest(first, kStep, smallest); },
        [&](uint32_t first, float(&x)[kUnroll][kGroup]) {
#pragma unroll
          for (auto& group : x)
#pragma unroll
            for (float& value : group) value *= inverse;
          if (!started) search.start(first, x[0]);
          started = true;
          search.offer(first, kStep, x, smallest);
        });
    best = search.finish(static_cast<int32_t>(piece.begin), static_cast<int32_t>(piece.end), logit_of);
  }
  cluster_wait();
  best = cluster_best<blocks>(best);
  if (threadIdx.x == 0 && blockIdx.x % blocks == 0) ids[row] = id_of(best);
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

void draw_cuda_plain(const OpContext& ctx, const DrawArgs& args) {
  if (args.logits.dim(0) == 0) return;
  with_blocks_per_row<2>(ctx, args.logits, 1, [&](auto blocks) {
    launch_kernel(ctx, draw_cluster<blocks>, static_cast<unsigned>(args.logits.dim(0) * blocks),
                  kThreads<blocks>, 0, cuda_data<float>(args.logits), args.logits.stride(0),
                  args.logits.dim(1), cuda_data<float>(args.temperature), cuda_data<int64_t>(args.seeds),
                  cuda_data<int64_t>(args.output_index), cuda_data<int32_t>(args.ids));
  });
}

}  // namespace ladder
