#include "step8_advanced/quantization/config/presets.h"

#include <algorithm>
#include <array>
#include <string>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr std::array<std::string_view, 29> kNames = {
    "W2A4",  "W2A8",       "W2A16", "W3A4",     "W3A8", "W3A16",       "W4A4",      "W4A8",
    "W4A16", "W4A16_ASYM", "W5A8",  "W5A16",    "W6A8", "W6A16",       "W7A8",      "W7A16",
    "W8A16", "W8A8",       "INT8",  "W4AFP8",   "FP8",  "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16",
    "NVFP4", "MXFP4A16",   "MXFP4", "MXFP8A16", "MXFP8"};

std::string upper(std::string_view name) {
  std::string text(name);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return text;
}

QuantizationArgs weights(int bits, bool is_float, ScaleStrategy strategy, int64_t group_size = 0,
                         ScaleFormat scales = ScaleFormat::bf16) {
  return {.num_bits = bits,
          .is_float = is_float,
          .strategy = strategy,
          .group_size = group_size,
          .scale_format = scales};
}

QuantizationArgs dynamic(int bits, bool is_float, ScaleStrategy strategy, int64_t group_size = 0,
                         ScaleFormat scales = ScaleFormat::f32) {
  QuantizationArgs args = weights(bits, is_float, strategy, group_size, scales);
  args.dynamic = true;
  return args;
}

// NVFP4, MXFP4 and MXFP8, also as "...A16".
QuantizationScheme small_floats(int bits, int64_t group_size, ScaleFormat scales, bool weights_only) {
  QuantizationScheme scheme{weights(bits, true, ScaleStrategy::group, group_size, scales), std::nullopt};
  if (!weights_only) scheme.input_activations = dynamic(bits, true, ScaleStrategy::group, group_size, scales);
  return scheme;
}

}  // namespace

std::span<const std::string_view> preset_names() {
  return kNames;
}

bool is_preset(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), upper(name)) != kNames.end();
}

QuantizationScheme preset_scheme(std::string_view name) {
  LADDER_CHECK(is_preset(name), "{} is no scheme: expected one of {}", name.substr(0, 60),
               fmt::join(kNames, ", "));
  const std::string known = upper(name);
  const bool weights_only = known.ends_with("A16");
  const ScaleStrategy channel = ScaleStrategy::channel, group = ScaleStrategy::group,
                      token = ScaleStrategy::token;
  if (known == "W8A8" || known == "INT8") return {weights(8, false, channel), dynamic(8, false, token)};
  if (known == "FP8")
    return {weights(8, true, ScaleStrategy::tensor),
            weights(8, true, ScaleStrategy::tensor, 0, ScaleFormat::f32)};
  if (known == "FP8_DYNAMIC") return {weights(8, true, channel), dynamic(8, true, token)};
  if (known == "FP8_BLOCK") {
    QuantizationScheme scheme{weights(8, true, ScaleStrategy::block), dynamic(8, true, group, 128)};
    scheme.weights.block_rows = scheme.weights.block_columns = 128;
    return scheme;
  }
  if (known.starts_with("NVFP4")) return small_floats(4, 16, ScaleFormat::e4m3, weights_only);
  if (known.starts_with("MXFP")) return small_floats(known[4] - '0', 32, ScaleFormat::e8m0, weights_only);
  // WxAy: integers in groups of 128, activations of so many bits.
  QuantizationScheme scheme{weights(known[1] - '0', false, group, 128), std::nullopt};
  scheme.weights.symmetric = !known.ends_with("_ASYM");
  if (known == "W4AFP8") scheme.input_activations = dynamic(8, true, token);
  if (known.ends_with("A4")) scheme.input_activations = dynamic(4, false, token);
  if (known.ends_with("A8")) scheme.input_activations = dynamic(8, false, token);
  return scheme;
}

StoredLinear stored_linear(const QuantizationScheme& scheme, std::string_view what) {
  const QuantizationArgs& args = scheme.weights;
  StoredLinear linear;
  linear.scheme = scheme;
  linear.stored_scales = args.scale_format;
  if (args.scale_format == ScaleFormat::e8m0)
    linear.format = StoredFormat::mx;
  else if (args.is_float && args.num_bits == 4)
    linear.format = StoredFormat::nvfp4;
  else if (args.is_float || scheme.input_activations)
    linear.format = StoredFormat::plain;
  else
    linear.format = StoredFormat::packed;
  check_stored(linear, what);
  return linear;
}

void check_stored(const StoredLinear& linear, std::string_view what) {
  const QuantizationArgs& args = linear.scheme.weights;
  const bool small_scales = args.scale_format == ScaleFormat::e4m3 || args.scale_format == ScaleFormat::e8m0;
  const bool whole_group = args.strategy == ScaleStrategy::group || args.strategy == ScaleStrategy::channel;
  switch (linear.format) {
    case StoredFormat::plain:
      LADDER_CHECK(!small_scales, "{}: weights of 8 bits have scales in the model's dtype", what);
      LADDER_CHECK(!args.is_float || args.num_bits == 8, "{}: floats of {} bits, expected 8", what,
                   args.num_bits);
      LADDER_CHECK(args.symmetric || args.strategy != ScaleStrategy::block, "{}: blocks have no zero points",
                   what);
      return;
    case StoredFormat::packed:
      LADDER_CHECK(!args.is_float, "{}: packed are integers, not floats of {} bits", what, args.num_bits);
      LADDER_CHECK(!small_scales, "{}: packed integers have scales in the model's dtype", what);
      LADDER_CHECK(args.strategy != ScaleStrategy::block, "{}: blocks are not packed", what);
      LADDER_CHECK(args.symmetric || whole_group, "{}: packed zero points are per channel or group", what);
      return;
    case StoredFormat::nvfp4:
      LADDER_CHECK(args.is_float && args.num_bits == 4 && args.strategy == ScaleStrategy::group &&
                       args.group_size == 16 && args.scale_format == ScaleFormat::e4m3,
                   "{}: nvfp4 is floats of 4 bits in groups of 16 with scales in float8_e4m3fn", what);
      return;
    case StoredFormat::mx:
      LADDER_CHECK(args.is_float && args.strategy == ScaleStrategy::group && args.group_size == 32 &&
                       args.scale_format == ScaleFormat::e8m0,
                   "{}: mxfp4 and mxfp8 are floats in groups of 32 with scales in uint8", what);
      return;
    case StoredFormat::gptq:
    case StoredFormat::awq:
    case StoredFormat::dense:
      return;
  }
}

}  // namespace ladder
