// The fused rung of draw where no row has a filter: the largest logit after temperature and noise.
#include "step1_layers/sampling/noise_cuda.cuh"
#include "step1_layers/sampling/row_piece_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace row_piece;

// fused, where no row has a filter
// As argmax_cluster, with the noise of NoisySearch, on quotients by the temperature that are exact only where
// it matters. One pass; a group's random words, which do not depend on its logits, are computed while these
// are being loaded.
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
  if (temperature < kMinTemperature) {
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
