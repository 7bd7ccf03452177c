// softmax and log-softmax with a row in the shared memory of a cluster.
#include "step1_layers/sampling/cluster_row_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace cluster_row;

// e^(x - largest), added over the row in the order of threads and blocks; the terms replace the values if
// `keep`.
template <bool keep>
__device__ float sum_exp(const Row& row) {
  __shared__ float sums[kBlocks];
  float sum = 0;
  for (int group = threadIdx.x; group < row.groups; group += kThreads) {
    float values[kGroup];
    load_four(row.piece + group * kGroup, values);
#pragma unroll
    for (float& x : values) {
      x = expf(x - row.largest);
      sum += x;
    }
    if constexpr (keep)
      *reinterpret_cast<float4*>(row.piece + group * kGroup) =
          float4{values[0], values[1], values[2], values[3]};
  }
  share_with_cluster(block_sum(sum), sums);
  sum = 0;
  for (float one : sums) sum += one;
  return sum;
}

// cluster
// Rows of at most 393,216 logits. Eight blocks own a row and keep it in their shared memory: it is read once
// and written once, where a single block reads it twice, and one row has eight multiprocessors to itself.
template <bool log>
__global__ void __launch_bounds__(kThreads, 2) LADDER_CLUSTER_OF(kBlocks)
    softmax_cluster(const float* logits, int64_t stride, float* out, int64_t out_stride, int64_t vocab) {
  __shared__ float maxima[kBlocks];
  allow_next_kernel();
  cluster_arrive();
  wait_for_previous_kernel();
  const int64_t index = blockIdx.x / kBlocks;
  float mine;
  Row row = load_row(logits + index * stride, vocab, 1.0f, &mine);
  row.largest = block_max(mine);
  cluster_wait();
  share_with_cluster(row.largest, maxima);
  for (float largest : maxima) row.largest = fmaxf(row.largest, largest);
  const float sum = sum_exp<!log>(row);
  const float last = log ? logf(sum) : 1.0f / sum;

  float* to = out + index * out_stride;
  const bool aligned = is_aligned(to);
  for (int group = threadIdx.x; group < row.groups; group += kThreads) {
    float values[kGroup];
    load_four(row.piece + group * kGroup, values);
#pragma unroll
    for (float& x : values) x = log ? x - row.largest - last : x * last;
    const int64_t at = row.begin + group * kGroup;
    if (aligned && at + kGroup <= row.end) {
      *reinterpret_cast<float4*>(to + at) = float4{values[0], values[1], values[2], values[3]};
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (at + i < row.end) to[at + i] = values[i];
    }
  }
}

template <bool log>
void run_softmax(const OpContext& ctx, const SoftmaxArgs& args) {
  launch_rows(ctx, softmax_cluster<log>, args.logits.dim(0), args.logits.dim(1),
              cuda_data<float>(args.logits), args.logits.stride(0), cuda_data<float>(args.out),
              args.out.stride(0), args.logits.dim(1));
}

}  // namespace

bool softmax_fits_cuda_cluster(const SoftmaxArgs& args) {
  return args.logits.dim(1) <= kMaxVocab;
}
void softmax_cuda_cluster(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<false>(ctx, args);
}
void log_softmax_cuda_cluster(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<true>(ctx, args);
}

}  // namespace ladder
