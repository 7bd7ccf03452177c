#include "step1_layers/sampling/top_logprobs.h"

#include <cmath>

#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/sampling/sampling_rows.h"
#include "step1_layers/sampling/sampling_simd.h"
#ifdef LADDER_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// The k best of a row so far, in order, in the row's own output. offer() takes ids in ascending order, so a
// later token passes an earlier one only if it is strictly better.
class BestList {
 public:
  BestList(int32_t* ids, float* values, int64_t k) : ids_(ids), values_(values), k_(k) {
    std::fill(ids, ids + k, -1);
    std::fill(values, values + k, -INFINITY);
  }
  bool wants(float value) const { return count_ < k_ || value > values_[k_ - 1]; }
  void offer(int32_t id, float value) {
    int64_t place = std::min(count_, k_ - 1);
    for (; place > 0 && value > values_[place - 1]; --place) {
      ids_[place] = ids_[place - 1];
      values_[place] = values_[place - 1];
    }
    ids_[place] = id;
    values_[place] = value;
    count_ = std::min(count_ + 1, k_);
  }

 private:
  int32_t* ids_;
  float* values_;
  int64_t k_;
  int64_t count_ = 0;
};

void finish_row(const TopLogprobsArgs& args, int64_t row, float largest, double sum) {
  const double log_sum = std::log(sum);
  auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - largest - log_sum);
  };
  args.chosen_logprobs.data<float>()[row] =
      logprob(detail::row_of(args.logits, row)[args.chosen.data<int32_t>()[row]]);
  if (!args.top_ids.defined()) return;
  float* values = detail::row_of(args.top_logprobs, row);
  for (int64_t i = 0; i < args.top_logprobs.dim(1); ++i) values[i] = logprob(values[i]);
}

BestList best_list(const TopLogprobsArgs& args, int64_t row) {
  return {args.top_ids.data<int32_t>() + row * args.top_ids.stride(0), detail::row_of(args.top_logprobs, row),
          args.top_ids.dim(1)};
}

bool wants_top(const TopLogprobsArgs& args) {
  return args.top_ids.defined() && args.top_ids.dim(1) > 0;
}

// >>> task 1.8: log probabilities of the chosen and of the k best tokens
void top_logprobs_loop(const OpContext&, const TopLogprobsArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float* x = detail::row_of(args.logits, row);
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, x[i]);
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
    if (wants_top(args)) {
      BestList best = best_list(args, row);
      for (int64_t i = 0; i < vocab; ++i)
        if (best.wants(x[i])) best.offer(static_cast<int32_t>(i), x[i]);
    }
    finish_row(args, row, largest, sum);
  }
}
// <<< task 1.8

template <class Kernels>
void top_logprobs_fast(const OpContext&, const TopLogprobsArgs& args) {
  constexpr int64_t kChunk = 512;
  const int64_t vocab = args.logits.dim(1);
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float* x = detail::row_of(args.logits, row);
    const float largest = Kernels::maximum(x, vocab);
    const double sum = Kernels::sum_exp(x, vocab, largest, nullptr);
    if (wants_top(args)) {
      BestList best = best_list(args, row);
      for (int64_t chunk = 0; chunk < vocab; chunk += kChunk) {
        const int64_t end = std::min(chunk + kChunk, vocab);
        if (!best.wants(Kernels::maximum(x + chunk, end - chunk))) continue;
        for (int64_t i = chunk; i < end; ++i)
          if (best.wants(x[i])) best.offer(static_cast<int32_t>(i), x[i]);
      }
    }
    finish_row(args, row, largest, sum);
  });
}

constexpr Variant<TopLogprobsArgs> kVariants[] = {
    {.name = "loop",
     .idea = "value by value into a sorted list, the sum in double",
     .run = top_logprobs_loop},
    LADDER_SIMD_RUNGS(
        top_logprobs_fast, SamplingKernels,
        "skips every 512 logits whose largest does not reach the list; rows split among threads"),
#ifdef LADDER_CUDA
    {.name = "rounds",
     .device = DeviceType::cuda,
     .idea = "a row per block, one pass for the sum and one for each of the k best",
     .run = top_logprobs_cuda},
    {.name = "cluster",
     .device = DeviceType::cuda,
     .idea = "eight blocks per row; only the few tokens that can be among the best are sorted",
     .min_arch = 90,
     .run = top_logprobs_cuda_cluster},
#endif
};

}  // namespace

std::span<const Variant<TopLogprobsArgs>> top_logprobs_variants() {
  return kVariants;
}

void top_logprobs(const OpContext& ctx, const Tensor& logits, const Tensor& chosen,
                  const Tensor& chosen_logprobs, const Tensor& top_ids, const Tensor& top_logprobs) {
  constexpr std::string_view op = "top_logprobs";
  detail::check_logits(logits, op);
  detail::check_per_row(chosen, logits, DType::i32, op);
  detail::check_per_row(chosen_logprobs, logits, DType::f32, op);
  LADDER_CHECK(top_ids.defined() == top_logprobs.defined(),
               "top_logprobs: top_ids and top_logprobs go together");
  if (top_ids.defined()) {
    expect_shape(top_ids, {logits.dim(0), -1}, op);
    expect_dtype(top_ids, DType::i32, op);
    expect_shape(top_logprobs, {logits.dim(0), top_ids.dim(1)}, op);
    expect_dtype(top_logprobs, DType::f32, op);
    LADDER_CHECK(top_ids.is_contiguous() && top_logprobs.is_contiguous(),
                 "top_logprobs: outputs must be contiguous");
  }
  if (logits.device().is_cpu())
    for (int64_t row = 0; row < logits.dim(0); ++row) {
      const int32_t id = chosen.data<int32_t>()[row];
      LADDER_CHECK(id >= 0 && id < logits.dim(1), "top_logprobs: token {} is outside a vocabulary of {}", id,
                   logits.dim(1));
    }
  run_variant<TopLogprobsArgs>(op, top_logprobs_variants(), ctx,
                               {logits, chosen, chosen_logprobs, top_ids, top_logprobs});
}

}  // namespace ladder
