#include "step8_advanced/quantization/kernels/round_activations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/numbers/grid.h"

namespace ladder {

namespace {
constexpr int64_t kMinGroupOnAGpu = 16;  // the grids of a row's groups are in shared memory
}  // namespace

void check_activations(const QuantizationArgs& args, float input_scale) {
  LADDER_CHECK(
      args.is_float ? args.num_bits == 8 || args.num_bits == 4 : args.num_bits >= 2 && args.num_bits <= 8,
      "activations of {} bits: expected integers of 2 to 8 or floats of 8 or 4", args.num_bits);
  LADDER_CHECK(!have_stored_scale(args) || (std::isfinite(input_scale) && input_scale > 0),
               "activations with a stored scale: expected a positive input_scale, found {}", input_scale);
  if (!args.dynamic) {
    LADDER_CHECK(args.strategy == ScaleStrategy::tensor && args.symmetric,
                 "activations with static scales: expected one symmetric scale of the whole tensor");
    return;
  }
  LADDER_CHECK(args.strategy == ScaleStrategy::token || args.strategy == ScaleStrategy::group,
               "activations with dynamic scales: expected a scale per token or per group");
  LADDER_CHECK(args.strategy != ScaleStrategy::group || args.group_size > 0,
               "activations with a scale per group: expected a group size above 0, found {}",
               args.group_size);
  LADDER_CHECK(
      args.scale_format != ScaleFormat::e4m3 || (args.strategy == ScaleStrategy::group && args.is_float),
      "activations with E4M3 scales and a global one: expected floats in groups (NVFP4)");
}

bool have_stored_scale(const QuantizationArgs& args) {
  return !args.dynamic || args.scale_format == ScaleFormat::e4m3;
}

bool are_rounded_on_a_gpu(const QuantizationArgs& args) {
  if (args.strategy == ScaleStrategy::group)
    return args.group_size >= kMinGroupOnAGpu &&
           (args.scale_format == ScaleFormat::f32 || args.scale_format == ScaleFormat::e8m0 ||
            args.scale_format == ScaleFormat::e4m3);
  return args.scale_format == ScaleFormat::f32 && (!args.is_float || args.num_bits == 8);
}

float round_activations(const float* x, int64_t k, const std::optional<QuantizationArgs>& args,
                        float input_scale, float* values) {
  const std::span<const float> row(x, static_cast<size_t>(k));
  if (!args) {
    std::ranges::copy(row, values);
    return 1;
  }
  const bool usable = std::ranges::all_of(
      row, [&](float number) { return args->dynamic ? std::isfinite(number) : !std::isnan(number); });
  if (!usable) {
    std::fill_n(values, k, 0.0f);
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (args->strategy == ScaleStrategy::group) {
    for (int64_t begin = 0; begin < k; begin += args->group_size) {
      const int64_t end = std::min(begin + args->group_size, k);
      const Grid grid = make_grid(row.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                                  *args, input_scale);
      for (int64_t i = begin; i < end; ++i) values[i] = round_to_grid(x[i], grid, *args);
    }
    return 1;
  }
  const Grid grid = args->dynamic ? make_grid(row, *args) : Grid{input_scale, 0};
  for (int64_t i = 0; i < k; ++i) values[i] = nearest_code(x[i], grid, *args) - grid.zero;
  return grid.scale;
}

}  // namespace ladder
