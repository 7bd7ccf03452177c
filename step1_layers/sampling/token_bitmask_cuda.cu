// A bitmask of allowed tokens.
#include "step1_layers/sampling/row_stream_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256, kUnroll = 4;
constexpr int64_t kPiece = kThreads * kUnroll * kGroup;  // tokens of a block

// elementwise
// Any shape. A thread has four groups of four tokens, a block's width apart; a group's four bits come from one
// word, which eight lanes share. A token that is not allowed is written, one that is allowed is left alone,
// and no logit is read: a mask that forbids nearly everything costs one write of the row, one that allows
// nearly everything a 32nd of a read.
__global__ void __launch_bounds__(kThreads)
    token_bitmask_kernel(float* logits, int64_t stride, int64_t vocab, int64_t pieces, int64_t masks,
                         const int32_t* mask_index, const uint32_t* bitmask, int64_t words) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x / pieces;
  const int32_t index = mask_index[row];
  if (index < 0 || index >= masks) return;
  float* x = logits + row * stride;
  const uint32_t* mask = bitmask + index * words;
  const bool aligned = is_aligned(x);
  const int64_t first_of_thread = blockIdx.x % pieces * kPiece + threadIdx.x * kGroup;
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const int64_t first = first_of_thread + j * kThreads * kGroup;
    if (first >= vocab) return;
    const uint32_t allowed = mask[first / 32] >> (first % 32) & 0xfu;
    if (allowed == 0xfu) continue;
    if (allowed == 0 && aligned && first + kGroup <= vocab) {
      *reinterpret_cast<float4*>(x + first) = float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      continue;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if ((allowed >> i & 1) == 0 && first + i < vocab) x[first + i] = -INFINITY;
  }
}

}  // namespace

void apply_token_bitmask_cuda(const OpContext& ctx, const ApplyTokenBitmaskArgs& args) {
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  if (rows == 0) return;
  const int64_t pieces = ceil_div<int64_t>(vocab, kPiece);
  launch_kernel(ctx, token_bitmask_kernel, static_cast<unsigned>(rows * pieces), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), vocab, pieces, args.bitmask.dim(0),
                cuda_data<int32_t>(args.mask_index),
                static_cast<const uint32_t*>(static_cast<const void*>(cuda_data<int32_t>(args.bitmask))),
                args.bitmask.dim(1));
}

}  // namespace ladder
