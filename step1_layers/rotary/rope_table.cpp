// The standard rotary frequencies and the table of any kind, operation by operation in the precision that
// transformers (modeling_rope_utils.py) uses. At position 100,000 a frequency that is off by one unit in the
// last place turns the angle by 0.006, so "the same formula" is not enough.
#include <cmath>

#include "step1_layers/core/parallel.h"
#include "step1_layers/rotary/rope_frequencies.h"

namespace ladder {

namespace {

void check_config(const RopeConfig& config, int64_t max_len) {
  LADDER_CHECK(config.rotary_dim >= 2 && config.rotary_dim % 2 == 0,
               "rope: the rotated part of a head must be even and at least 2, got {}", config.rotary_dim);
  LADDER_CHECK(std::isfinite(config.theta) && config.theta > 0, "rope_theta must be positive, got {}",
               config.theta);
  LADDER_CHECK(max_len >= 1, "rope: the table needs at least one position, got {}", max_len);
  if (config.kind == RopeKind::none || config.kind == RopeKind::standard) return;
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
  if (config.kind == RopeKind::longrope)
    for (const auto* factors : {&config.short_factor, &config.long_factor})
      LADDER_CHECK(std::ssize(*factors) == config.rotary_dim / 2,
                   "rope_parameters: longrope expects {} short_factor and long_factor each, got {}",
                   config.rotary_dim / 2, factors->size());
  if (config.kind == RopeKind::yarn)
    LADDER_CHECK(config.theta > 1 && config.beta_fast > 0 && config.beta_slow > 0,
                 "rope_parameters: yarn expects rope_theta > 1, beta_fast > 0 and beta_slow > 0");
}

}  // namespace

// >>> task 1.6.loop: the frequencies of the standard rotary embedding, and the table of cosines and sines
std::vector<float> rope_wavelengths(double base, int64_t dim) {
  std::vector<float> values(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    values[i] = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(base)), exponent));
  }
  return values;
}

std::vector<float> standard_frequencies(double base, int64_t dim) {
  std::vector<float> values = rope_wavelengths(base, dim);
  for (float& value : values) value = 1.0f / value;
  return values;
}

void fill_rope_table(const RopeFrequencies& frequencies, float* table, int64_t begin, int64_t end) {
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
// <<< task 1.6.loop

RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t max_len) {
  check_config(config, max_len);
  RopeFrequencies result;
  switch (config.kind) {
    case RopeKind::none:
      result.inv_freq.assign(static_cast<size_t>(config.rotary_dim / 2), 0.0f);
      break;
    case RopeKind::standard:
      result.inv_freq = standard_frequencies(config.theta, config.rotary_dim);
      break;
    case RopeKind::linear:
      result.inv_freq = standard_frequencies(config.theta, config.rotary_dim);
      for (float& value : result.inv_freq) value /= static_cast<float>(config.factor);
      break;
    case RopeKind::dynamic_ntk:
      result.inv_freq = standard_frequencies(dynamic_ntk_base(config, max_len), config.rotary_dim);
      break;
    case RopeKind::yarn:
      result = yarn_frequencies(config);
      break;
    case RopeKind::llama3:
      result.inv_freq = llama3_frequencies(config);
      break;
    case RopeKind::longrope:
      result = longrope_frequencies(config, max_len);
      break;
  }
  return result;
}

Tensor make_rope_table(const RopeConfig& config, int64_t max_len) {
  const RopeFrequencies frequencies = rope_frequencies(config, max_len);
  Tensor table = Tensor::empty({max_len, config.rotary_dim}, DType::f32);
  parallel_for(max_len, 64, [&](int64_t begin, int64_t end) {
    fill_rope_table(frequencies, table.data<float>(), begin, end);
  });
  return table;
}

}  // namespace ladder
