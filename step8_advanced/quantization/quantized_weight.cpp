#include "step8_advanced/quantization/quantized_weight.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"

namespace ladder {
namespace {

float code_at(const QuantizedWeight& weight, int64_t row, int64_t column) {
  const auto nibble = [&] {
    const uint8_t pair = weight.codes.data<uint8_t>()[row * weight.codes.stride(0) + column / 2];
    return static_cast<uint8_t>(column % 2 == 0 ? pair & 15 : pair >> 4);
  };
  switch (weight.type) {
    case WeightCodes::int4:
      return nibble();
    case WeightCodes::int8:
      return weight.codes.data<int8_t>()[row * weight.codes.stride(0) + column];
    case WeightCodes::fp8_e4m3:
      return e4m3_to_float(weight.codes.data<uint8_t>()[row * weight.codes.stride(0) + column]);
    case WeightCodes::fp4_e2m1:
      return e2m1_to_float(nibble());
  }
  return 0;
}

float zero_at(const QuantizedWeight& weight, int64_t row, int64_t group) {
  if (!weight.zeros.defined()) return weight.type == WeightCodes::int4 ? 8.0f : 0.0f;
  const int64_t at = row * weight.zeros.stride(0) + group;
  return weight.type == WeightCodes::int4 ? static_cast<float>(weight.zeros.data<uint8_t>()[at])
                                          : static_cast<float>(weight.zeros.data<int8_t>()[at]);
}

}  // namespace

Tensor dequantize(const QuantizedWeight& weight) {
  LADDER_CHECK(weight.codes.device().is_cpu(), "dequantize: the codes are not in the CPU's memory");
  const Tensor out = Tensor::empty({weight.n, weight.k}, DType::f32, Device{});
  const int64_t orders = weight.columns.defined() ? weight.columns.numel() / weight.k : 0;
  for (int64_t row = 0; row < weight.n; ++row) {
    const int32_t* columns =
        orders > 0 ? weight.columns.data<int32_t>() + row * orders / weight.n * weight.k : nullptr;
    for (int64_t column = 0; column < weight.k; ++column) {
      const int64_t group = (column + weight.group_offset) / weight.group_size;
      const int64_t feature = columns != nullptr ? columns[column] : column;
      out.data<float>()[row * weight.k + feature] =
          (code_at(weight, row, column) - zero_at(weight, row, group)) *
          weight.scales.data<float>()[row * weight.scales.stride(0) + group];
    }
  }
  return out;
}

}  // namespace ladder
