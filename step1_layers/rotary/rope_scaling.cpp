// The kinds of rotary embedding for contexts longer than the model was trained on.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "step1_layers/core/error.h"
#include "step1_layers/rotary/rope_frequencies.h"

namespace ladder {

// >>> task 1.6.scaling: dynamic NTK, YaRN, Llama 3 and LongRoPE
// bloc97's "NTK-aware" scaling: a larger base stretches the slow pairs and leaves the fast ones.
double dynamic_ntk_base(const RopeConfig& config, int64_t max_len) {
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  const double length = std::max(static_cast<double>(max_len), original);
  const auto dim = static_cast<double>(config.rotary_dim);
  return config.theta * std::pow(config.factor * length / original - (config.factor - 1), dim / (dim - 2));
}

// YaRN (Peng et al., 2023): pairs that turn more than beta_fast times within the original length keep their
// frequency, pairs that turn less than beta_slow times are interpolated, with a linear ramp between.
RopeFrequencies yarn_frequencies(const RopeConfig& config) {
  const int64_t dim = config.rotary_dim;
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  auto dimension_turning = [&](double times) {
    return static_cast<double>(dim) * std::log(original / (times * 2 * std::numbers::pi)) /
           (2 * std::log(config.theta));
  };
  double low = dimension_turning(config.beta_fast), high = dimension_turning(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;

  RopeFrequencies result;
  result.inv_freq = rope_wavelengths(config.theta, dim);
  for (size_t i = 0; i < result.inv_freq.size(); ++i) {
    const float wavelength = result.inv_freq[i];
    const float extrapolated = 1.0f / wavelength;
    const float interpolated = 1.0f / (static_cast<float>(config.factor) * wavelength);
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    result.inv_freq[i] = interpolated * (1.0f - kept) + extrapolated * kept;
  }

  auto mscale = [&](double weight) {
    return config.factor <= 1 ? 1.0 : 0.1 * weight * std::log(config.factor) + 1.0;
  };
  if (config.attention_factor)
    result.attention_factor = static_cast<float>(*config.attention_factor);
  else if (config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0)
    result.attention_factor = static_cast<float>(mscale(*config.mscale) / mscale(*config.mscale_all_dim));
  else
    result.attention_factor = static_cast<float>(mscale(1));
  return result;
}

// Llama 3.1: waves longer than original / low_freq_factor are stretched by the factor, waves shorter than
// original / high_freq_factor stay, those between are blended.
std::vector<float> llama3_frequencies(const RopeConfig& config) {
  std::vector<float> values = standard_frequencies(config.theta, config.rotary_dim);
  const auto original = static_cast<float>(config.original_max_position_embeddings);
  const auto factor = static_cast<float>(config.factor);
  const auto low = static_cast<float>(config.low_freq_factor);
  const auto longest = static_cast<float>(static_cast<double>(original) / config.low_freq_factor);
  const auto shortest = static_cast<float>(static_cast<double>(original) / config.high_freq_factor);
  for (float& value : values) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / value;
    if (wavelength > longest) {
      value /= factor;
    } else if (wavelength >= shortest) {
      const float smooth = (original / wavelength - low) /
                           static_cast<float>(config.high_freq_factor - config.low_freq_factor);
      value = (1.0f - smooth) * value / factor + smooth * value;
    }
  }
  return values;
}

// LongRoPE: every frequency has its own divisor, which a search has found, for short texts and for long ones.
RopeFrequencies longrope_frequencies(const RopeConfig& config, int64_t max_len) {
  const bool is_long = max_len > config.original_max_position_embeddings;
  const std::vector<double>& factors = is_long ? config.long_factor : config.short_factor;
  RopeFrequencies result;
  result.inv_freq = rope_wavelengths(config.theta, config.rotary_dim);
  for (size_t i = 0; i < result.inv_freq.size(); ++i)
    result.inv_freq[i] = 1.0f / (static_cast<float>(factors[i]) * result.inv_freq[i]);

  const std::optional<double>& mscale = is_long ? config.long_mscale : config.short_mscale;
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  const double by_factor =
      config.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(config.factor) / std::log(original));
  result.attention_factor = static_cast<float>(mscale.value_or(config.attention_factor.value_or(by_factor)));
  return result;
}
// <<< task 1.6.scaling

}  // namespace ladder
