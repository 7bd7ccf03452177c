// The tables of logits_filters.h and their fast rungs.
#include "step1_layers/sampling/logits_filters.h"

#include <cmath>

#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/sampling/sampling_rows.h"
#include "step1_layers/sampling/sampling_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

void apply_temperature_loop(const OpContext&, const LogitsFilterArgs&);  // logits_filters_cpu.cpp
void mask_min_p_loop(const OpContext&, const LogitsFilterArgs&);
void mask_top_k_loop(const OpContext&, const LogitsFilterArgs&);
void mask_top_p_loop(const OpContext&, const LogitsFilterArgs&);

namespace {

template <class Kernels>
void apply_temperature_fast(const OpContext&, const LogitsFilterArgs& args) {
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float temperature = args.value.data<float>()[row];
    if (temperature < kMinTemperature || temperature == 1.0f) return;
    Kernels::divide(detail::row_of(args.logits, row), args.logits.dim(1), temperature);
  });
}

template <class Kernels>
void mask_min_p_fast(const OpContext&, const LogitsFilterArgs& args) {
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float min_p = args.value.data<float>()[row];
    if (min_p <= 0.0f) return;
    float* x = detail::row_of(args.logits, row);
    Kernels::mask_below(x, args.logits.dim(1), Kernels::maximum(x, args.logits.dim(1)) + std::log(min_p));
  });
}

// Gives every worker a row of scratch: worker w takes the rows w, w + workers, ...
template <class Fn>
void for_each_row_with_scratch(const OpContext& ctx, const Tensor& logits, Fn&& fn) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  const int64_t workers = std::min<int64_t>({num_threads(), rows, 1 + rows * vocab / 16384});
  if (rows == 0) return;
  ArenaScope scope(*ctx.arena);
  float* values = ctx.arena->take({workers, vocab}, DType::f32).data<float>();
  int32_t* ids = ctx.arena->take({workers, vocab}, DType::i32).data<int32_t>();
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker)
      for (int64_t row = worker; row < rows; row += workers)
        fn(row, values + worker * vocab, ids + worker * vocab);
  });
}

// The k-th largest value of a row; NaN where the row holds one, and then nothing is below it. A small k keeps
// its k best in a heap whose worst stands on top, and passes over every chunk that holds nothing better.
template <class Kernels>
float kth_largest(const float* x, int64_t vocab, int64_t k, float* scratch) {
  constexpr int64_t kChunk = 128, kSmall = 256;
  if (k > kSmall) {
    if (std::isnan(Kernels::maximum(x, vocab))) return NAN;  // no order
    std::copy(x, x + vocab, scratch);
    std::nth_element(scratch, scratch + k - 1, scratch + vocab, std::greater<>());
    return scratch[k - 1];
  }
  if (std::isnan(Kernels::maximum(x, k))) return NAN;
  std::copy(x, x + k, scratch);
  std::make_heap(scratch, scratch + k, std::greater<>());
  for (int64_t chunk = k; chunk < vocab; chunk += kChunk) {
    const int64_t end = std::min(chunk + kChunk, vocab);
    const float largest = Kernels::maximum(x + chunk, end - chunk);
    if (largest <= scratch[0]) continue;
    if (std::isnan(largest)) return NAN;
    for (int64_t i = chunk; i < end; ++i) {
      if (x[i] <= scratch[0]) continue;
      std::pop_heap(scratch, scratch + k, std::greater<>());
      scratch[k - 1] = x[i];
      std::push_heap(scratch, scratch + k, std::greater<>());
    }
  }
  return scratch[0];
}

template <class Kernels>
void mask_top_k_fast(const OpContext& ctx, const LogitsFilterArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  for_each_row_with_scratch(ctx, args.logits, [&](int64_t row, float* scratch, int32_t*) {
    const int64_t k = args.value.data<int32_t>()[row];
    if (k <= 0 || k >= vocab) return;
    float* x = detail::row_of(args.logits, row);
    Kernels::mask_below(x, vocab, kth_largest<Kernels>(x, vocab, k, scratch));
  });
}

// A histogram of the probability mass over the distance to the largest logit replaces the sort: only the
// tokens of the one bin in which the mass reaches top_p are sorted.
template <class Kernels>
void top_p_row(float* x, int64_t vocab, float top_p, float* terms, int32_t* ids) {
  constexpr int kBins = 2048;
  constexpr float kBinsPerUnit =
      64.0f;  // 32 units, e^-32 of the largest probability; the last bin has the rest
  const float largest = Kernels::maximum(x, vocab);
  // Nothing is left to cut, or all of the mass is with the infinite, or there is no mass.
  if (!std::isfinite(largest)) return;
  Kernels::sum_exp(x, vocab, largest, terms);
  auto bin_of = [&](float logit) {
    return static_cast<int>(std::min((largest - logit) * kBinsPerUnit, static_cast<float>(kBins - 1)));
  };
  double mass_of[kBins] = {};
  for (int64_t i = 0; i < vocab; ++i)
    if (terms[i] > 0.0f) mass_of[bin_of(x[i])] += static_cast<double>(terms[i]);
  double total = 0;  // in the order of the search below, which therefore ends at a bin that has tokens
  for (double mass : mass_of) total += mass;
  const double wanted = static_cast<double>(top_p) * total;
  double mass = 0;
  int bin = 0;
  while (bin < kBins - 1 && mass + mass_of[bin] < wanted) mass += mass_of[bin++];

  int64_t count = 0;
  for (int64_t i = 0; i < vocab; ++i)
    if (terms[i] > 0.0f && bin_of(x[i]) == bin) ids[count++] = static_cast<int32_t>(i);
  std::sort(ids, ids + count, [&](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  int64_t kept = 0;
  do {
    mass += static_cast<double>(terms[ids[kept++]]);
  } while (kept < count && mass < wanted);
  const float threshold = x[ids[kept - 1]];
  for (int64_t i = kept; i < count; ++i) x[ids[i]] = -INFINITY;
  Kernels::mask_below(x, vocab, threshold);
}

template <class Kernels>
void mask_top_p_fast(const OpContext& ctx, const LogitsFilterArgs& args) {
  for_each_row_with_scratch(ctx, args.logits, [&](int64_t row, float* terms, int32_t* ids) {
    const float top_p = args.value.data<float>()[row];
    if (top_p >= 1.0f) return;
    top_p_row<Kernels>(detail::row_of(args.logits, row), args.logits.dim(1), top_p, terms, ids);
  });
}

constexpr Variant<LogitsFilterArgs> kTemperature[] = {
    {.name = "loop", .idea = "value by value", .run = apply_temperature_loop},
    LADDER_SIMD_RUNGS(apply_temperature_fast, SamplingKernels,
                      "eight floats at a time, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "elementwise",
     .device = DeviceType::cuda,
     .idea = "four logits per thread",
     .run = apply_temperature_cuda},
#endif
};
constexpr Variant<LogitsFilterArgs> kMinP[] = {
    {.name = "loop", .idea = "value by value", .run = mask_min_p_loop},
    LADDER_SIMD_RUNGS(mask_min_p_fast, SamplingKernels, "eight floats at a time, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "block",
     .device = DeviceType::cuda,
     .idea = "a row per block: the largest, then the mask",
     .run = mask_min_p_cuda},
#endif
};
constexpr Variant<LogitsFilterArgs> kTopK[] = {
    {.name = "loop", .idea = "selects the k-th value in a copy of the row", .run = mask_top_k_loop},
    LADDER_SIMD_RUNGS(mask_top_k_fast, SamplingKernels,
                      "a heap of the k best, passing over chunks that hold nothing better"),
#ifdef LADDER_HAS_CUDA
    {.name = "radix",
     .device = DeviceType::cuda,
     .idea = "a row per block: a radix search for the k-th largest, then the mask",
     .run = mask_top_k_cuda_radix},
#endif
};
constexpr Variant<LogitsFilterArgs> kTopP[] = {
    {.name = "loop", .idea = "sorts the whole row", .run = mask_top_p_loop},
    LADDER_SIMD_RUNGS(mask_top_p_fast, SamplingKernels,
                      "a histogram of the mass; sorts only the bin in which it reaches top_p"),
#ifdef LADDER_HAS_CUDA
    {.name = "radix",
     .device = DeviceType::cuda,
     .idea = "a row per block: a radix search over the mass, in integers",
     .run = mask_top_p_cuda_radix},
#endif
};

void check(const OpContext& ctx, const LogitsFilterArgs& args, DType dtype, std::string_view op) {
  detail::check_logits(args.logits, op);
  detail::check_per_row(args.value, args.logits, dtype, op);
  LADDER_CHECK(ctx.arena != nullptr, "{} needs an arena in the context", op);
}

}  // namespace

std::span<const Variant<LogitsFilterArgs>> apply_temperature_variants() {
  return kTemperature;
}
std::span<const Variant<LogitsFilterArgs>> mask_min_p_variants() {
  return kMinP;
}
std::span<const Variant<LogitsFilterArgs>> mask_top_k_variants() {
  return kTopK;
}
std::span<const Variant<LogitsFilterArgs>> mask_top_p_variants() {
  return kTopP;
}

void apply_temperature(const OpContext& ctx, const Tensor& logits, const Tensor& temperature) {
  check(ctx, {logits, temperature}, DType::f32, "apply_temperature");
  run_variant<LogitsFilterArgs>("apply_temperature", apply_temperature_variants(), ctx,
                                {logits, temperature});
}

void mask_min_p(const OpContext& ctx, const Tensor& logits, const Tensor& min_p) {
  check(ctx, {logits, min_p}, DType::f32, "mask_min_p");
  run_variant<LogitsFilterArgs>("mask_min_p", mask_min_p_variants(), ctx, {logits, min_p});
}

void mask_top_k(const OpContext& ctx, const Tensor& logits, const Tensor& top_k) {
  check(ctx, {logits, top_k}, DType::i32, "mask_top_k");
  run_variant<LogitsFilterArgs>("mask_top_k", mask_top_k_variants(), ctx, {logits, top_k});
}

void mask_top_p(const OpContext& ctx, const Tensor& logits, const Tensor& top_p) {
  check(ctx, {logits, top_p}, DType::f32, "mask_top_p");
  run_variant<LogitsFilterArgs>("mask_top_p", mask_top_p_variants(), ctx, {logits, top_p});
}

}  // namespace ladder
