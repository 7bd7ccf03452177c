#include <cmath>
#include <numeric>

#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/sampling_rows.h"

namespace ladder {

namespace {

// A row that holds a NaN has no order and no sum: it is left as it is, and the draw finds the NaN.
bool holds_nan(const float* x, int64_t vocab) {
  return std::any_of(x, x + vocab, [](float value) { return std::isnan(value); });
}

}  // namespace

// >>> task 1.8.filters: temperature, min-p, top-k and top-p, each from its definition
void apply_temperature_loop(const OpContext&, const LogitsFilterArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float temperature = args.value.data<float>()[row];
    if (temperature < kMinTemperature || temperature == 1.0f) continue;
    float* x = detail::row_of(args.logits, row);
    for (int64_t i = 0; i < args.logits.dim(1); ++i) x[i] /= temperature;
  }
}

void mask_min_p_loop(const OpContext&, const LogitsFilterArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float min_p = args.value.data<float>()[row];
    if (min_p <= 0.0f) continue;
    float* x = detail::row_of(args.logits, row);
    if (holds_nan(x, args.logits.dim(1))) continue;
    const float largest = *std::max_element(x, x + args.logits.dim(1));
    const float threshold = largest + std::log(min_p);  // p >= min_p * p_max, in logits
    for (int64_t i = 0; i < args.logits.dim(1); ++i)
      if (x[i] < threshold) x[i] = -INFINITY;
  }
}

void mask_top_k_loop(const OpContext& ctx, const LogitsFilterArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  ArenaScope scope(*ctx.arena);
  float* sorted = ctx.arena->take({vocab}, DType::f32).data<float>();
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const int64_t k = args.value.data<int32_t>()[row];
    float* x = detail::row_of(args.logits, row);
    if (k <= 0 || k >= vocab || holds_nan(x, vocab)) continue;
    std::copy(x, x + vocab, sorted);
    std::nth_element(sorted, sorted + k - 1, sorted + vocab, std::greater<>());
    for (int64_t i = 0; i < vocab; ++i)
      if (x[i] < sorted[k - 1]) x[i] = -INFINITY;
  }
}

void mask_top_p_loop(const OpContext& ctx, const LogitsFilterArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  ArenaScope scope(*ctx.arena);
  int32_t* order = ctx.arena->take({vocab}, DType::i32).data<int32_t>();
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const double top_p = args.value.data<float>()[row];
    float* x = detail::row_of(args.logits, row);
    if (top_p >= 1.0 || holds_nan(x, vocab)) continue;
    std::iota(order, order + vocab, 0);
    std::stable_sort(order, order + vocab, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    const double largest = x[order[0]];
    double total = 0;
    for (int64_t i = 0; i < vocab; ++i) total += std::exp(x[i] - largest);
    double mass = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const float logit = x[order[i]];
      if (i > 0 && mass >= top_p * total) x[order[i]] = -INFINITY;
      mass += std::exp(logit - largest);
    }
  }
}
// <<< task 1.8.filters

}  // namespace ladder
