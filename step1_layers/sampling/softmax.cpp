#include "step1_layers/sampling/softmax.h"

#include <cmath>

#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/sampling/sampling_rows.h"
#include "step1_layers/sampling/sampling_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.8.softmax: softmax and log-softmax that do not overflow
struct RowSum {
  float largest;
  double sum;  // of e^(x - largest)
};

RowSum row_sum(const float* x, int64_t vocab) {
  RowSum result{-INFINITY, 0};
  for (int64_t i = 0; i < vocab; ++i) result.largest = std::max(result.largest, x[i]);
  for (int64_t i = 0; i < vocab; ++i) result.sum += std::exp(static_cast<double>(x[i]) - result.largest);
  return result;
}

void softmax_loop(const OpContext&, const SoftmaxArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float* x = detail::row_of(args.logits, row);
    const auto [largest, sum] = row_sum(x, args.logits.dim(1));
    for (int64_t i = 0; i < args.logits.dim(1); ++i)
      detail::row_of(args.out, row)[i] =
          static_cast<float>(std::exp(static_cast<double>(x[i]) - largest) / sum);
  }
}

void log_softmax_loop(const OpContext&, const SoftmaxArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float* x = detail::row_of(args.logits, row);
    const auto [largest, sum] = row_sum(x, args.logits.dim(1));
    for (int64_t i = 0; i < args.logits.dim(1); ++i)
      detail::row_of(args.out, row)[i] =
          static_cast<float>(static_cast<double>(x[i]) - largest - std::log(sum));
  }
}
// <<< task 1.8.softmax

template <class Kernels>
void softmax_fast(const OpContext&, const SoftmaxArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float* x = detail::row_of(args.logits, row);
    float* out = detail::row_of(args.out, row);
    const float largest = Kernels::maximum(x, vocab);
    const double sum = Kernels::sum_exp(x, vocab, largest, out);  // the fast e^x has no NaN
    Kernels::multiply(out, vocab, std::isnan(largest) ? NAN : static_cast<float>(1.0 / sum));
  });
}

template <class Kernels>
void log_softmax_fast(const OpContext&, const SoftmaxArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float* x = detail::row_of(args.logits, row);
    const float largest = Kernels::maximum(x, vocab);
    const double sum = Kernels::sum_exp(x, vocab, largest, nullptr);
    Kernels::subtract(x, vocab, largest, static_cast<float>(std::log(sum)), detail::row_of(args.out, row));
  });
}

constexpr Variant<SoftmaxArgs> kSoftmax[] = {
    {.name = "loop", .idea = "largest, sum, quotient, one value at a time in double", .run = softmax_loop},
    LADDER_SIMD_RUNGS(
        softmax_fast, SamplingKernels,
        "a polynomial e^x on eight floats at a time, each computed once; rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "block",
     .device = DeviceType::cuda,
     .idea = "a row per block: largest, sum and quotient in three passes",
     .run = softmax_cuda_block},
    {.name = "online",
     .device = DeviceType::cuda,
     .idea = "largest and sum in one pass, eight loads in flight",
     .run = softmax_cuda_online},
    {.name = "cluster",
     .device = DeviceType::cuda,
     .idea = "the row in the shared memory of eight blocks: read once, written once",
     .min_arch = 90,
     .supports = softmax_fits_cuda_cluster,
     .run = softmax_cuda_cluster},
#endif
};
constexpr Variant<SoftmaxArgs> kLogSoftmax[] = {
    {.name = "loop",
     .idea = "largest, sum, difference, one value at a time in double",
     .run = log_softmax_loop},
    LADDER_SIMD_RUNGS(log_softmax_fast, SamplingKernels,
                      "a polynomial e^x on eight floats at a time; rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "block",
     .device = DeviceType::cuda,
     .idea = "a row per block: largest, sum and difference in three passes",
     .run = log_softmax_cuda_block},
    {.name = "online",
     .device = DeviceType::cuda,
     .idea = "largest and sum in one pass, eight loads in flight",
     .run = log_softmax_cuda_online},
    {.name = "cluster",
     .device = DeviceType::cuda,
     .idea = "the row in the shared memory of eight blocks: read once, written once",
     .min_arch = 90,
     .supports = softmax_fits_cuda_cluster,
     .run = log_softmax_cuda_cluster},
#endif
};

void check(const SoftmaxArgs& args, std::string_view op) {
  detail::check_logits(args.logits, op);
  detail::check_logits(args.out, op);
  expect_shape(args.out, {args.logits.dim(0), args.logits.dim(1)}, op);
}

}  // namespace

std::span<const Variant<SoftmaxArgs>> softmax_variants() {
  return kSoftmax;
}
std::span<const Variant<SoftmaxArgs>> log_softmax_variants() {
  return kLogSoftmax;
}

void softmax(const OpContext& ctx, const Tensor& logits, const Tensor& out) {
  check({logits, out}, "softmax");
  run_variant<SoftmaxArgs>("softmax", softmax_variants(), ctx, {logits, out});
}

void log_softmax(const OpContext& ctx, const Tensor& logits, const Tensor& out) {
  check({logits, out}, "log_softmax");
  run_variant<SoftmaxArgs>("log_softmax", log_softmax_variants(), ctx, {logits, out});
}

}  // namespace ladder
