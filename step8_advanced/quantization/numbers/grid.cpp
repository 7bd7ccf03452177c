#include "step8_advanced/quantization/numbers/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/dtype.h"
#include "step1_layers/core/small_floats.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

// A scale as `format` keeps it. 0 becomes the smallest that does no harm: what it multiplies is 0 anyway, and it may
// be divided by.
float stored_scale(float scale, ScaleFormat format, float global_scale) {
  switch (format) {
    case ScaleFormat::f32:
      return scale > 0 ? scale : 0x1p-23f;
    case ScaleFormat::bf16: {
      const float rounded = static_cast<float>(bf16(scale));
      return rounded > 0 ? rounded : scale > 0 ? 0x1p-133f : 0x1p-7f;
    }
    case ScaleFormat::f16: {
      const float rounded = static_cast<float>(f16(std::min(scale, 65504.0f)));
      return rounded > 0 ? rounded : scale > 0 ? 0x1p-24f : 0x1p-10f;
    }
    case ScaleFormat::e4m3: {
      const float local = e4m3_to_float(float_to_e4m3(scale * global_scale));
      return (local > 0 ? local : 0.125f) / global_scale;
    }
    case ScaleFormat::e8m0:
      return scale > 0 ? scale : 1.0f;  // a power of two already
  }
  return scale;
}

// MX: the power of two below absmax, divided by that below the largest value. The mantissa is rounded first, as if to the
// one bit of E2M1 (for E4M3 too, as compressed-tensors does): 7 counts as 8.
float mx_scale(float absmax, const QuantizationArgs& args) {
  if (absmax <= 0) return 0;
  const int largest_exponent = args.num_bits == 4 ? 2 : 8;
  int exponent = std::ilogb(absmax);
  if (std::ldexp(absmax, -exponent) + 0.25f >= 2) ++exponent;
  return std::ldexp(1.0f, std::clamp(exponent - largest_exponent, -127, 127));
}

}  // namespace

// >>> task 8.1.grid: scale and zero point of a group, and the nearest code
Grid make_grid(float min, float max, const QuantizationArgs& args, float global_scale) {
  const float absmax = std::max(std::fabs(min), std::fabs(max));
  Grid grid;
  if (args.is_float) {
    const float scale = args.scale_format == ScaleFormat::e8m0
                            ? mx_scale(absmax, args)
                            : absmax / (args.num_bits == 4 ? kMaxE2M1 : kMaxE4M3);
    grid.scale = stored_scale(scale, args.scale_format, global_scale);
    return grid;
  }
  const auto codes = static_cast<float>(args.max_code() - args.min_code());
  if (args.symmetric) {
    grid.scale = stored_scale(absmax / (codes / 2), args.scale_format, global_scale);
    return grid;
  }
  const float low = std::min(min, 0.0f), high = std::max(max, 0.0f);
  grid.scale = stored_scale((high - low) / codes, args.scale_format, global_scale);
  const auto min_code = static_cast<float>(args.min_code()), max_code = static_cast<float>(args.max_code());
  grid.zero = std::nearbyint(std::clamp(min_code - low / grid.scale, min_code, max_code));
  return grid;
}

Grid make_grid(std::span<const float> numbers, const QuantizationArgs& args, float global_scale) {
  float min = 0, max = 0;
  for (const float number : numbers) {
    min = std::min(min, number);
    max = std::max(max, number);
  }
  return make_grid(min, max, args, global_scale);
}

float nvfp4_global_scale(float absmax) {
  return absmax > 0 ? std::min(kMaxE4M3 * kMaxE2M1 / absmax, std::numeric_limits<float>::max()) : 1.0f;
}

float nearest_code(float x, const Grid& grid, const QuantizationArgs& args) {
  const float scaled = x / grid.scale;
  if (args.is_float)
    return args.num_bits == 4 ? e2m1_to_float(float_to_e2m1(scaled)) : e4m3_to_float(float_to_e4m3(scaled));
  const float clamped = std::clamp(scaled + grid.zero, static_cast<float>(args.min_code()),
                                   static_cast<float>(args.max_code()));
  return std::isnan(clamped) ? grid.zero : std::nearbyint(clamped);
}
// <<< task 8.1.grid

}  // namespace ladder
