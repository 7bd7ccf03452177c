// softmax, log-softmax, top log probabilities, penalties and temperature.
#include "step1_layers/sampling/argmax_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 1024;

// The largest value of a row and the sum of e^(x - largest).
struct RowSum {
  float largest, sum;
};

// Two passes over the row: the largest value, then the sum.
__device__ RowSum row_sum_two_passes(const float* x, int64_t vocab) {
  float largest = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) largest = fmaxf(largest, x[i]);
  largest = block_max(largest);
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) sum += expf(x[i] - largest);
  return {largest, block_sum(sum)};
}

// One pass (Milakov and Gimelshein, 2018, arXiv 1805.02867): every thread keeps a sum relative to the largest
// value it has seen and corrects it when that grows; eight values are loaded before the first is used.
__device__ RowSum row_sum_online(const float* x, int64_t vocab) {
  constexpr int kUnroll = 8;
  RowSum mine{-INFINITY, 0};
  for (int64_t first = threadIdx.x; first < vocab; first += kUnroll * kThreads) {
    float values[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j)
      values[j] = first + j * kThreads < vocab ? x[first + j * kThreads] : -INFINITY;
    float largest = mine.largest;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) largest = fmaxf(largest, values[j]);
    if (largest == -INFINITY) continue;
    mine.sum *= expf(mine.largest - largest);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) mine.sum += expf(values[j] - largest);
    mine.largest = largest;
  }
  const float largest = block_max(mine.largest);
  return {largest, block_sum(mine.largest == -INFINITY ? 0.0f : mine.sum * expf(mine.largest - largest))};
}

// block
// Any shape. A block owns a row and reads it three times, one value per thread and step: for the largest, for
// the sum, for the result.
// online
// Any shape. Largest and sum come from one pass, so the row is read twice, and that pass keeps eight loads
// per thread in flight, where the rung below waits for each.
template <bool online, bool log>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const float* logits, int64_t stride, float* out, int64_t out_stride, int64_t vocab) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const float* x = logits + int64_t{blockIdx.x} * stride;
  float* to = out + int64_t{blockIdx.x} * out_stride;
  const RowSum row = online ? row_sum_online(x, vocab) : row_sum_two_passes(x, vocab);
  const float last = log ? logf(row.sum) : 1.0f / row.sum;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads)
    to[i] = log ? x[i] - row.largest - last : expf(x[i] - row.largest) * last;
}

template <bool online, bool log>
void run_softmax(const OpContext& ctx, const SoftmaxArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, softmax_kernel<online, log>, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), cuda_data<float>(args.out),
                args.out.stride(0), args.logits.dim(1));
}

// rounds
// Any shape. A block owns a row. Each of the k best takes one more pass over the row, which is in L2 after
// the first: the best of the tokens that come after the one found before.
__global__ void __launch_bounds__(kThreads)
    top_logprobs_kernel(const float* logits, int64_t stride, int64_t vocab, const int32_t* chosen,
                        float* chosen_logprobs, int32_t* top_ids, float* top_logprobs, int64_t k) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const float* x = logits + row * stride;
  const RowSum sum = row_sum_online(x, vocab);
  const float log_sum = logf(sum.sum);
  if (threadIdx.x == 0) chosen_logprobs[row] = x[chosen[row]] - sum.largest - log_sum;
  Best last{INFINITY, -1};
  for (int64_t i = 0; i < k; ++i) {
    Best best = no_best();
    if (i < vocab)
      for (int64_t id = threadIdx.x; id < vocab; id += kThreads) {
        const Best candidate{x[id], static_cast<int32_t>(id)};
        const bool is_after =
            candidate.value < last.value || (candidate.value == last.value && candidate.id > last.id);
        if (is_after) best = better(best, candidate);
      }
    best = block_best(best);
    if (threadIdx.x == 0) {
      top_ids[row * k + i] = best.id == INT_MAX ? -1 : best.id;
      top_logprobs[row * k + i] = best.value - sum.largest - log_sum;
    }
    last = best;
  }
}

// row_per_block
// Any shape. A block owns a row, a thread one of its used tokens: the cost follows their number, not the
// vocabulary's. Every token stands in the list once, so no two threads meet.
__global__ void penalties_kernel(float* logits, int64_t stride, int64_t vocab, const int32_t* row_start,
                                 const int32_t* token_ids, const int32_t* output_counts,
                                 const float* repetition, const float* presence, const float* frequency) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  float* x = logits + row * stride;
  for (int64_t entry = row_start[row] + static_cast<int64_t>(threadIdx.x); entry < row_start[row + 1];
       entry += blockDim.x) {
    const int32_t id = token_ids[entry];
    if (id < 0 || id >= vocab) continue;
    float logit = x[id];
    logit = logit > 0 ? __fdiv_rn(logit, repetition[row]) : __fmul_rn(logit, repetition[row]);
    const int32_t count = output_counts[entry];
    if (count > 0) logit -= __fadd_rn(__fmul_rn(frequency[row], static_cast<float>(count)), presence[row]);
    x[id] = logit;
  }
}

// elementwise
// Any shape. A thread divides four logits of a row, a block's width apart, so that a warp's accesses are
// adjacent.
constexpr int kDivideThreads = 256, kDivided = 4;
__global__ void temperature_kernel(float* logits, int64_t stride, int64_t vocab, int64_t pieces,
                                   const float* temperature) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x / pieces;
  const float divisor = temperature[row];
  if (divisor < kLeastTemperature || divisor == 1.0f) return;
  float* x = logits + row * stride;
  const int64_t first = blockIdx.x % pieces * (kDivideThreads * kDivided) + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kDivided; ++j) {
    const int64_t i = first + j * kDivideThreads;
    if (i < vocab) x[i] = __fdiv_rn(x[i], divisor);
  }
}

}  // namespace

void softmax_cuda_block(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<false, false>(ctx, args);
}
void softmax_cuda_online(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<true, false>(ctx, args);
}
void log_softmax_cuda_block(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<false, true>(ctx, args);
}
void log_softmax_cuda_online(const OpContext& ctx, const SoftmaxArgs& args) {
  run_softmax<true, true>(ctx, args);
}

void top_logprobs_cuda(const OpContext& ctx, const TopLogprobsArgs& args) {
  if (args.logits.dim(0) == 0) return;
  const bool wants_top = args.top_ids.defined();
  launch_kernel(ctx, top_logprobs_kernel, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                cuda_data<int32_t>(args.chosen), cuda_data<float>(args.chosen_logprobs),
                cuda_data<int32_t>(args.top_ids), cuda_data<float>(args.top_logprobs),
                wants_top ? args.top_ids.dim(1) : 0);
}

void apply_penalties_cuda(const OpContext& ctx, const ApplyPenaltiesArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, penalties_kernel, static_cast<unsigned>(args.logits.dim(0)), 256, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                cuda_data<int32_t>(args.row_start), cuda_data<int32_t>(args.token_ids),
                cuda_data<int32_t>(args.output_counts), cuda_data<float>(args.repetition),
                cuda_data<float>(args.presence), cuda_data<float>(args.frequency));
}

void apply_temperature_cuda(const OpContext& ctx, const LogitsFilterArgs& args) {
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  if (rows == 0) return;
  const int64_t pieces = ceil_div<int64_t>(vocab, kDivideThreads * kDivided);
  launch_kernel(ctx, temperature_kernel, static_cast<unsigned>(rows * pieces), kDivideThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), vocab, pieces,
                cuda_data<float>(args.value));
}

}  // namespace ladder
