#pragma once
// The kinds of rotary embedding (rope_config.h) behind rope.h's rope_frequencies. Internal to this folder.
//
// The results are those of transformers to the last bit, so every operation has its precision: what Python
// computes on numbers is double here, what torch computes on tensors is float. d = rotary_dim, i = 0 ... d/2 - 1,
// L = original_max_position_embeddings; [float] marks a value that is rounded to float before it goes on.
#include <cstdint>
#include <vector>

#include "step1_layers/rotary/rope.h"

namespace ladder {

// Task 1.6.loop. wavelength[i] = [float](base^(2 i / d)), the wavelength of pair i over 2 pi: the base and the
// exponent 2 i / d are floats, the power is computed in double.
std::vector<float> rope_wavelengths(double base, int64_t rotary_dim);
// 1 / wavelength, in float.
std::vector<float> standard_frequencies(double base, int64_t rotary_dim);
// Rows [begin, end) of make_rope_table's result, whose first row is `table`. The angle is the product
// [float](position) * inv_freq[i] in float; its cosine and sine are computed in double, rounded to float, and
// multiplied by the attention factor in float.
void fill_rope_table(const RopeFrequencies& frequencies, float* table, int64_t begin, int64_t end);

// Task 1.6.scaling, the kinds for longer contexts. Their arguments have been checked.
//
// Dynamic NTK: the base that takes the place of theta, in double. With n = max(max_len, L):
//   theta * (factor * n / L - (factor - 1))^(d / (d - 2))
double dynamic_ntk_base(const RopeConfig& config, int64_t max_len);

// YaRN. The pair that turns t times within L positions, in double:  pair(t) = d ln(L / (2 pi t)) / (2 ln theta)
//   low = pair(beta_fast), rounded down if config.truncate, at least 0
//   high = pair(beta_slow), rounded up if config.truncate, at most d - 1; high + 0.001 if it equals low
//   ramp[i] = (i - [float]low) / [float](high - low), clamped to [0, 1]        from here on all in float
//   kept[i] = 1 - ramp[i]
//   inv_freq[i] = 1 / (factor * wavelength[i]) * (1 - kept[i]) + 1 / wavelength[i] * kept[i]
// The attention factor, in double and rounded at the end, where m(s) = 0.1 s ln factor + 1, or 1 for factor <= 1:
//   config.attention_factor if there is one; else m(mscale) / m(mscale_all_dim) if both are there and not 0;
//   else m(1)
RopeFrequencies yarn_frequencies(const RopeConfig& config);

// Llama 3, all in float but for the two quotients L / low_freq_factor and L / high_freq_factor, which are
// computed in double and rounded. f = the standard frequency, w = [float](2 pi) / f:
//   w > L / low_freq_factor     f / factor
//   w < L / high_freq_factor    f
//   between, both ends included:  s = (L / w - low_freq_factor) / [float](high_freq_factor - low_freq_factor)
//                               (1 - s) * f / factor + s * f          the quotient of the product
std::vector<float> llama3_frequencies(const RopeConfig& config);

// LongRoPE. The factors are long_factor where max_len > L, else short_factor:
//   inv_freq[i] = 1 / ([float]factors[i] * wavelength[i])                                          in float
// The attention factor, in double and rounded at the end: long_mscale or short_mscale, whichever goes with the factors,
// if there is one; else config.attention_factor; else sqrt(1 + ln factor / ln L), or 1 for factor <= 1.
RopeFrequencies longrope_frequencies(const RopeConfig& config, int64_t max_len);

}  // namespace ladder
