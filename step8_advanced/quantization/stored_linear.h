#pragma once
// What a checkpoint's quantization_config says about one linear: how its numbers were rounded, and which tensors hold them.
// config/ reads it, linear/ makes the LinearMethod that loads it.
#include <cstdint>

#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// The tensors of a linear, after its name. [N, K] is the dense weight's shape, b the bits, g the group.
enum class StoredFormat : uint8_t {
  // compressed-tensors int-quantized, float-quantized, naive-quantized; and the fp8 of others (weight_scale, or
  // weight_scale_inv of blocks): weight I8 or F8_E4M3 [N, K]; weight_scale [1], [N, 1], [N, K/g] or a grid of blocks;
  // input_scale [1] if static; weight_zero_point if asymmetric
  plain,
  // compressed-tensors pack-quantized: weight_packed I32 [N, ceil(K b / 32)], weight_scale, weight_shape I64 [2],
  // weight_zero_point I32 [ceil(N b / 32), K/g] packed along N, weight_g_idx I32 [K]
  packed,
  // nvfp4-pack-quantized: weight_packed U8 [N, K/2], weight_scale F8_E4M3 [N, K/16], weight_global_scale F32 [1] and, where inputs
  // are rounded, input_global_scale F32 [1]: both divide. ModelOpt's NVFP4: weight, weight_scale, weight_scale_2, input_scale
  nvfp4,
  // mxfp4 and mxfp8: weight_packed U8 [N, K/2] or weight F8_E4M3 [N, K]; weight_scale U8 [N, K/32]
  mx,
  // GPTQ: qweight I32 [K b / 32, N], qzeros I32 [ceil(K/g), N b / 32], scales F16 [ceil(K/g), N], g_idx I32 [K]
  gptq,
  // AWQ's "gemm": qweight I32 [K, N/8], qzeros I32 [K/g, N/8], scales F16 [K/g, N]
  awq,
  // not quantized: in a config's groups what it leaves dense, elsewhere only where two of four are kept
  dense,
};

struct StoredLinear {
  StoredFormat format = StoredFormat::plain;
  QuantizationScheme scheme = {};
  bool scale_is_inverse =
      false;  // plain: the blocks' scales are called weight_scale_inv (and multiplied all the same)
  bool scales_are_factors =
      false;  // nvfp4: ModelOpt's names, and its weight_scale_2 and input_scale are multiplied: 1 / G
  bool zeros_are_one_less = true;  // gptq: checkpoint_format "gptq" stores zero - 1, "gptq_v2" the zero
  bool zeros_borrow =
      false;  // ... taken from whole words, so that a zero of 0 borrows of its neighbour: GPTQModel's
  bool has_g_idx = true;  // gptq: the tensor is there; AutoRound's own form has none, and no order
  ScaleFormat stored_scales =
      ScaleFormat::bf16;  // plain, packed: what weight_scale is; the model's dtype as a rule
  bool two_of_four =
      false;  // plain, dense: compressed, bitmask and shape (linear/two_of_four.h) instead of weight

  bool operator==(const StoredLinear&) const = default;
};

// What a checkpoint says about keys and values: its tensors k_scale and v_scale, of each layer, are for such a cache.
struct StoredKvCache {
  QuantizationArgs args = {};  // tensor: one scale a layer; dynamic: none is stored
  bool per_head = false;       // one a key and value head ("attn_head")

  bool operator==(const StoredKvCache&) const = default;
};

}  // namespace ladder
