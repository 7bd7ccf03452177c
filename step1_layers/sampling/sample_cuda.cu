// argmax and sample: the largest logit, or the largest logit plus noise.
#include <algorithm>

#include "step1_layers/sampling/noise_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 1024;

// What is compared: the logits themselves. can_win: whether a group of tokens with this largest logit may hold
// a better one than the best so far; without noise to save a branch costs more than the comparisons.
struct Plain {
  __device__ void start_row(int64_t) {}
  __device__ bool can_win(float, float) const { return true; }
  __device__ void add_noise(uint32_t, float (&)[kGroup]) const {}
};

// The logits plus the noise of sample.h, on rows that are not greedy.
struct Gumbel {
  const float* temperature;
  const int64_t *seeds, *output_index;
  bool greedy = false;
  NoiseSource source{};

  __device__ void start_row(int64_t row) {
    greedy = temperature[row] < kMinTemperature;
    source = {static_cast<uint64_t>(seeds[row]), static_cast<uint64_t>(output_index[row])};
  }
  __device__ bool can_win(float largest, float best) const {
    return greedy || !(largest + kLargestNoise <= best);  // NaN can
  }

  // x[i] belongs to token first + i, first a multiple of four.
  __device__ void add_noise(uint32_t first, float (&x)[kGroup]) const {
    if (greedy) return;
    uint32_t words[kGroup];
    source.words(first, words);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] += noise_of(words[i]);
  }
};

// The best of tokens [begin, end) of a row, begin a multiple of four, over the threads of a block. A NaN stays
// in best.value, at the price of no instruction and of no way out of the loop, which would keep the loads of
// later turns waiting.
template <class Score>
__device__ Best best_of_range(const float* x, int64_t begin, int64_t end, const Score& score) {
  Best best = no_best();
  const bool aligned = is_aligned(x);
  for (int64_t first = begin + threadIdx.x * kGroup; first < end; first += kThreads * kGroup) {
    float values[kGroup];
    load_group(x, first, end, aligned, values);
    if (!score.can_win(max_or_nan(values), best.value)) continue;
    score.add_noise(static_cast<uint32_t>(first), values);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {  // ids ascend, so only a larger value replaces
      best.id = values[i] > best.value ? static_cast<int32_t>(first + i) : best.id;
      best.value = max_or_nan(values[i], best.value);
    }
  }
  return block_best(isnan(best.value) ? invalid_best() : best);
}

// block
// Any shape. A block reads a row, four tokens per thread and step, and reduces by shuffles. With few rows
// most of the chip idles.
template <class Score>
__global__ void __launch_bounds__(kThreads)
    best_block(const float* logits, int64_t stride, int64_t vocab, Score score, int32_t* ids) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  score.start_row(row);
  const Best best = best_of_range(logits + row * stride, 0, vocab, score);
  if (threadIdx.x == 0) ids[row] = id_of(best);
}

// split
// Any shape. Several blocks read a row, so that the whole chip works on a few rows too; a second kernel takes
// the best of their results. The largest value does not depend on the split: batch invariant.
template <class Score>
__global__ void __launch_bounds__(kThreads)
    best_split(const float* logits, int64_t stride, int64_t vocab, int64_t piece, int splits, Score score,
               Best* partial) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x / splits, begin = blockIdx.x % splits * piece;
  score.start_row(row);
  const int64_t end = begin + piece < vocab ? begin + piece : vocab;
  const Best best = best_of_range(logits + row * stride, begin, end, score);
  if (threadIdx.x == 0) partial[blockIdx.x] = best;
}

__global__ void best_merge(const Best* partial, int splits, int32_t* ids) {
  allow_next_kernel();
  wait_for_previous_kernel();
  Best best = no_best();
  for (int i = threadIdx.x; i < splits; i += kWarp)
    best = better(best, partial[int64_t{blockIdx.x} * splits + i]);
  best = block_best(best);
  if (threadIdx.x == 0) ids[blockIdx.x] = id_of(best);
}

template <class Score>
void run_block(const OpContext& ctx, const Tensor& logits, const Score& score, const Tensor& ids) {
  if (logits.dim(0) == 0) return;
  launch_kernel(ctx, best_block<Score>, static_cast<unsigned>(logits.dim(0)), kThreads, 0,
                cuda_data<float>(logits), logits.stride(0), logits.dim(1), score, cuda_data<int32_t>(ids));
}

template <class Score>
void run_split(const OpContext& ctx, const Tensor& logits, const Score& score, const Tensor& ids) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  if (rows == 0) return;
  const int64_t step = kThreads * kGroup;  // a block's tokens per step
  const int64_t max_splits = std::max<int64_t>(vocab / (2 * step), 1);
  const int64_t splits = std::clamp<int64_t>(2 * ctx.cuda->num_multiprocessors() / rows, 1, max_splits);
  if (splits == 1) return run_block(ctx, logits, score, ids);
  ArenaScope scope(*ctx.arena);
  Best* partial = static_cast<Best*>(ctx.arena->take({rows, splits}, DType::i64).raw());
  const int64_t piece = ceil_div(ceil_div(vocab, splits), step) * step;
  launch_kernel(ctx, best_split<Score>, static_cast<unsigned>(rows * splits), kThreads, 0,
                cuda_data<float>(logits), logits.stride(0), vocab, piece, splits, score, partial);
  launch_kernel(ctx, best_merge, static_cast<unsigned>(rows), kWarp, 0, partial, splits,
                cuda_data<int32_t>(ids));
}

Gumbel gumbel(const SampleArgs& args) {
  return {.temperature = cuda_data<float>(args.temperature),
          .seeds = cuda_data<int64_t>(args.seeds),
          .output_index = cuda_data<int64_t>(args.output_index)};
}

}  // namespace

void argmax_cuda_block(const OpContext& ctx, const ArgmaxArgs& args) {
  run_block(ctx, args.logits, Plain{}, args.ids);
}
void argmax_cuda_split(const OpContext& ctx, const ArgmaxArgs& args) {
  run_split(ctx, args.logits, Plain{}, args.ids);
}
void sample_cuda_block(const OpContext& ctx, const SampleArgs& args) {
  run_block(ctx, args.logits, gumbel(args), args.ids);
}
void sample_cuda_split(const OpContext& ctx, const SampleArgs& args) {
  run_split(ctx, args.logits, gumbel(args), args.ids);
}

}  // namespace ladder
