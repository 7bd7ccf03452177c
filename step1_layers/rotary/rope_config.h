#pragma once
// Task 1.6: which rotary embedding a model uses (RoFormer: Su et al., 2021, arXiv 2104.09864), as Hugging
// Face configs name the kinds. The table of angles is made once, in f32 as transformers makes it, for
// positions [0, max_model_len).
#include <cstdint>
#include <optional>
#include <vector>

namespace ladder {

// none: no rotation, a table of angles that are all 0, so that every kernel of attention takes the model.
enum class RopeKind : uint8_t { none, standard, linear, dynamic_ntk, yarn, llama3, longrope };

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  int64_t rotary_dim = 0;  // the first rotary_dim values of a head are rotated (head_dim unless partial)
  double factor = 1.0;     // linear, dynamic_ntk, yarn, llama3, longrope
  int64_t original_max_position_embeddings =
      0;  // yarn, llama3, longrope; dynamic_ntk: max_position_embeddings
  // YaRN (Peng et al., 2023, arXiv 2309.00071)
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor =
      std::nullopt;  // none: from factor, mscale and mscale_all_dim; longrope too
  std::optional<double> mscale = std::nullopt;
  std::optional<double> mscale_all_dim = std::nullopt;
  bool truncate = true;  // round the correction range to whole dimensions
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // LongRoPE (Ding et al., 2024, arXiv 2402.13753): a divisor for each of the rotary_dim / 2 frequencies. The short ones
  // are for tables of at most original_max_position_embeddings positions, the long ones for longer tables.
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};
  std::optional<double> short_mscale = std::nullopt;  // none: attention_factor, or what factor gives
  std::optional<double> long_mscale = std::nullopt;
};

}  // namespace ladder
