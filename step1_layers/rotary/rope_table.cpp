// Rotary frequencies and tables, operation by operation in the precision that transformers
// (modeling_rope_utils.py) uses: what Python computes on numbers is double here, what torch computes on
// tensors is float. At position 100,000 a frequency that is off by one unit in the last place turns the angle
// by 0.006, so "the same formula" is not enough.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "step1_layers/core/parallel.h"
#include "step1_layers/rotary/rope.h"

namespace ladder {

namespace {

void check_config(const RopeConfig& config, int64_t max_len) {
  LADDER_CHECK(config.rotary_dim >= 2 && config.rotary_dim % 2 == 0,
               "rope: the rotated part of a head must be even and at least 2, got {}", config.rotary_dim);
  LADDER_CHECK(std::isfinite(config.theta) && config.theta > 0, "rope_theta must be positive, got {}",
               config.theta);
  LADDER_CHECK(max_len >= 1, "rope: the table needs at least one position, got {}", max_len);
  if (config.kind == RopeKind::standard) return;
  LADDER_CHECK(std::isfinite(config.factor) && config.factor >= 1,
               "rope_parameters.factor must be at least 1, got {}", config.factor);
  if (config.kind == RopeKind::linear) return;
  LADDER_CHECK(config.original_max_position_embeddings >= 1,
               "rope_parameters.original_max_position_embeddings must be at least 1, got {}",
               config.original_max_position_embeddings);
  if (config.kind == RopeKind::dynamic_ntk)
    LADDER_CHECK(config.rotary_dim > 2, "rope_type dynamic needs a rotated part of more than 2 values");
  if (config.kind == RopeKind::llama3)
    LADDER_CHECK(config.low_freq_factor > 0 && config.high_freq_factor > config.low_freq_factor,
                 "rope_parameters: expected 0 < low_freq_factor < high_freq_factor, got {} and {}",
                 config.low_freq_factor, config.high_freq_factor);
  if (config.kind == RopeKind::yarn)
    LADDER_CHECK(config.theta > 1 && config.beta_fast > 0 && config.beta_slow > 0,
                 "rope_parameters: yarn expects rope_theta > 1, beta_fast > 0 and beta_slow > 0");
}

// >>> task 1.6: the frequencies of the five kinds of rotary embedding, and the table of cosines and sines
// base^(2i / dim), the wavelength of pair i divided by 2 pi.
std::vector<float> wavelengths(double base, int64_t dim) {
  std::vector<float> values(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    values[i] = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(base)), exponent));
  }
  return values;
}

std::vector<float> default_frequencies(double base, int64_t dim) {
  std::vector<float> values = wavelengths(base, dim);
  for (float& value : values) value = 1.0f / value;
  return values;
}

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
  result.inv_freq = wavelengths(config.theta, dim);
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
  std::vector<float> values = default_frequencies(config.theta, config.rotary_dim);
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

void fill_table(const RopeFrequencies& frequencies, float* table, int64_t begin, int64_t end) {
  const auto half = static_cast<int64_t>(frequencies.inv_freq.size());
  for (int64_t position = begin; position < end; ++position) {
    float* cosines = table + position * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(position) * frequencies.inv_freq[i];  // the product in float
      cosines[i] = static_cast<float>(std::cos(angle)) * frequencies.attention_factor;
      cosines[half + i] = static_cast<float>(std::sin(angle)) * frequencies.attention_factor;
    }
  }
}
// <<< task 1.6

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t max_len) {
  check_config(config, max_len);
  RopeFrequencies result;
  switch (config.kind) {
    case RopeKind::standard:
      result.inv_freq = default_frequencies(config.theta, config.rotary_dim);
      break;
    case RopeKind::linear:
      result.inv_freq = default_frequencies(config.theta, config.rotary_dim);
      for (float& value : result.inv_freq) value /= static_cast<float>(config.factor);
      break;
    case RopeKind::dynamic_ntk:
      result.inv_freq = default_frequencies(dynamic_ntk_base(config, max_len), config.rotary_dim);
      break;
    case RopeKind::yarn:
      result = yarn_frequencies(config);
      break;
    case RopeKind::llama3:
      result.inv_freq = llama3_frequencies(config);
      break;
  }
  return result;
}

Tensor make_rope_table(const RopeConfig& config, int64_t max_len) {
  const RopeFrequencies frequencies = rope_frequencies(config, max_len);
  Tensor table = Tensor::empty({max_len, config.rotary_dim}, DType::f32);
  parallel_for(max_len, 64,
               [&](int64_t begin, int64_t end) { fill_table(frequencies, table.data<float>(), begin, end); });
  return table;
}

}  // namespace ladder
