#pragma once
// Task 1.6: which rotary embedding a model uses (RoFormer: Su et al., 2021, arXiv 2104.09864), as Hugging
// Face configs name the kinds. The table of angles is made once, in f32 as transformers makes it, for
// positions [0, max_model_len).
#include <cstdint>
#include <optional>

namespace ladder {

enum class RopeKind : uint8_t { standard, linear, dynamic_ntk, yarn, llama3 };

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  int64_t rotary_dim = 0;  // the first rotary_dim values of a head are rotated (head_dim unless partial)
  double factor = 1.0;     // linear, dynamic_ntk, yarn, llama3
  int64_t original_max_position_embeddings = 0;  // yarn, llama3; dynamic_ntk: max_position_embeddings
  // YaRN (Peng et al., 2023, arXiv 2309.00071)
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor = std::nullopt;  // none: from factor, mscale and mscale_all_dim
  std::optional<double> mscale = std::nullopt;
  std::optional<double> mscale_all_dim = std::nullopt;
  bool truncate = true;  // round the correction range to whole dimensions
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
};

}  // namespace ladder
