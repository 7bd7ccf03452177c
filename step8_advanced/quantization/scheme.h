#pragma once
// How a linear layer's numbers are rounded: the vocabulary of compressed-tensors (github.com/vllm-project/compressed-tensors),
// into which the other formats on disk are read and in which a recipe is written.
#include <cstdint>
#include <optional>
#include <string>

namespace ladder {

// Which numbers share a scale. `token` is for activations: one per row of x.
enum class ScaleStrategy : uint8_t { tensor, channel, group, block, token };

// GPTQ's order of columns. `group`: groups are formed in that order, and g_idx says which column is in which; `weight`:
// groups are neighbours as stored, so nothing but the algorithm's order changes.
enum class ActivationOrder : uint8_t { none, group, weight };

// In what a scale is kept. e4m3: beside one f32 scale of the whole tensor (NVFP4); e8m0: a power of two (MX).
enum class ScaleFormat : uint8_t { f32, bf16, f16, e4m3, e8m0 };

// One side of a product, weights [n, k] or activations [m, k].
struct QuantizationArgs {
  int num_bits = 8;       // integers: 2 to 8; floats: 8 (E4M3) or 4 (E2M1)
  bool is_float = false;  // E4M3, E2M1; else integers
  bool symmetric = true;  // no zero point; floats always
  ScaleStrategy strategy = ScaleStrategy::tensor;
  int64_t group_size = 0;                     // of `group`: neighbours along k
  int64_t block_rows = 0, block_columns = 0;  // of `block`: of n, of k
  bool dynamic = false;  // activations: scales are made of the numbers themselves, at run time
  ActivationOrder actorder = ActivationOrder::none;
  ScaleFormat scale_format = ScaleFormat::f32;

  // Codes: q in [min_code(), max_code()]. Of integers only.
  int32_t min_code() const { return -(1 << (num_bits - 1)); }
  int32_t max_code() const { return (1 << (num_bits - 1)) - 1; }

  bool operator==(const QuantizationArgs&) const = default;
};

// Both sides of one layer's product. Without input_activations x is taken as it is (W4A16).
struct QuantizationScheme {
  QuantizationArgs weights;
  std::optional<QuantizationArgs> input_activations;

  bool operator==(const QuantizationScheme&) const = default;
};

}  // namespace ladder
