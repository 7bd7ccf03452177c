#include "step1_layers/sampling/top_logprobs.h"

#include <cmath>

#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step1_layers/sampling/sampling_rows.h"
#include "step1_layers/sampling/sampling_simd.h"
#ifdef LADDER_HAS_CUDA
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
  const float* x = detail::row_of(args.logits, row);
  auto logprob_of = [&](int32_t id) { return id == kInvalidToken ? NAN : logprob(x[id]); };
  args.chosen_logprobs.data<float>()[row] = logprob_of(args.chosen.data<int32_t>()[row]);
  const int64_t selected = row * args.num_selected();
  for (int64_t i = selected; i < selected + args.num_selected(); ++i)
    args.selected_logprobs.data<float>()[i] = logprob_of(args.selected_ids.data<int32_t>()[i]);
  if (args.num_top() == 0) return;
  float* values = detail::row_of(args.top_logprobs, row);
  for (int64_t i = 0; i < args.num_top(); ++i) values[i] = logprob(values[i]);
}

BestList best_list(const TopLogprobsArgs& args, int64_t row) {
  return {args.top_ids.data<int32_t>() + row * args.top_ids.stride(0), detail::row_of(args.top_logprobs, row),
          args.top_ids.dim(1)};
}

// >>> task 1.8.softmax: log probabilities of the chosen and of the k best tokens
void top_logprobs_loop(const OpContext&, const TopLogprobsArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float* x = detail::row_of(args.logits, row);
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, x[i]);
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
    if (args.num_top() > 0) {
      BestList best = best_list(args, row);
      for (int64_t i = 0; i < vocab; ++i)
        if (best.wants(x[i])) best.offer(static_cast<int32_t>(i), x[i]);
    }
    finish_row(args, row, largest, sum);
  }
}
// <<< task 1.8.softmax

template <class Kernels>
void top_logprobs_fast(const OpContext&, const TopLogprobsArgs& args) {
  constexpr int64_t kChunk = 512;
  const int64_t vocab = args.logits.dim(1);
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float* x = detail::row_of(args.logits, row);
    const float largest = Kernels::maximum(x, vocab);
    const double sum = Kernels::sum_exp(x, vocab, largest, nullptr);
    if (args.num_top() > 0) {
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
#ifdef LADDER_HAS_CUDA
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

// Ids and their log probabilities, the same number for every row; or neither.
void check_columns(const TopLogprobsArgs& args, const Tensor& ids, const Tensor& logprobs) {
  constexpr std::string_view op = "top_logprobs";
  LADDER_CHECK(ids.defined() == logprobs.defined(), "{}: ids and their log probabilities go together", op);
  if (!ids.defined()) return;
  expect_shape(ids, {args.logits.dim(0), -1}, op);
  expect_dtype(ids, DType::i32, op);
  expect_shape(logprobs, {args.logits.dim(0), ids.dim(1)}, op);
  expect_dtype(logprobs, DType::f32, op);
  LADDER_CHECK(ids.is_contiguous() && logprobs.is_contiguous(), "{}: columns must be contiguous", op);
}

void check_ids(const TopLogprobsArgs& args, const Tensor& ids) {
  if (!ids.defined() || !ids.device().is_cpu()) return;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int32_t id = ids.data<int32_t>()[i];
    LADDER_CHECK(id == kInvalidToken || (id >= 0 && id < args.logits.dim(1)),
                 "top_logprobs: token {} is outside a vocabulary of {}", id, args.logits.dim(1));
  }
}

}  // namespace

std::span<const Variant<TopLogprobsArgs>> top_logprobs_variants() {
  return kVariants;
}

void top_logprobs(const OpContext& ctx, const TopLogprobsArgs& args) {
  constexpr std::string_view op = "top_logprobs";
  detail::check_logits(args.logits, op);
  detail::check_per_row(args.chosen, args.logits, DType::i32, op);
  detail::check_per_row(args.chosen_logprobs, args.logits, DType::f32, op);
  check_columns(args, args.top_ids, args.top_logprobs);
  check_columns(args, args.selected_ids, args.selected_logprobs);
  check_ids(args, args.chosen);
  check_ids(args, args.selected_ids);
  run_variant<TopLogprobsArgs>(op, top_logprobs_variants(), ctx, args);
}

}  // namespace ladder
