#include "step8_advanced/quantization/numbers/quantize_weight.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/numbers/small_floats.h"

namespace ladder {
namespace {

WeightCodes codes_type(const QuantizationArgs& args) {
  if (args.is_float) return args.num_bits == 4 ? WeightCodes::fp4_e2m1 : WeightCodes::fp8_e4m3;
  return args.num_bits <= 4 ? WeightCodes::int4 : WeightCodes::int8;
}

// What memory holds for a code: a nibble, or a byte.
uint8_t stored_code(float code, WeightCodes type) {
  switch (type) {
    case WeightCodes::int4:
      return static_cast<uint8_t>(static_cast<int>(code) + 8);
    case WeightCodes::int8:
      return static_cast<uint8_t>(static_cast<int8_t>(code));
    case WeightCodes::fp8_e4m3:
      return float_to_e4m3(code);
    case WeightCodes::fp4_e2m1:
      return float_to_e2m1(code);
  }
  return 0;
}

}  // namespace

QuantizedWeight weight_of_codes(const Tensor& codes, const QuantizationArgs& args, const WeightGrids& grids) {
  expect_dtype(codes, DType::f32, "weight_of_codes");
  QuantizedWeight weight;
  weight.type = codes_type(args);
  weight.n = codes.dim(0);
  weight.k = codes.dim(1);
  weight.group_size = grids.group_size;
  weight.scales = grids.scales;
  const bool nibbles = weight.type == WeightCodes::int4 || weight.type == WeightCodes::fp4_e2m1;
  const int64_t width = nibbles ? (weight.k + 1) / 2 : weight.k;
  weight.codes = Tensor::zeros({weight.n, width}, weight.type == WeightCodes::int8 ? DType::i8 : DType::u8);
  auto* stored = static_cast<uint8_t*>(weight.codes.raw());
  parallel_for(weight.n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < weight.k; ++column) {
        const uint8_t code = stored_code(codes.data<float>()[row * codes.stride(0) + column], weight.type);
        if (nibbles)
          stored[row * width + column / 2] |= static_cast<uint8_t>(code << (column % 2 * 4));
        else
          stored[row * width + column] = code;
      }
  });
  if (grids.zeros.defined()) {
    weight.zeros = Tensor::empty(grids.zeros.shape(), weight.codes.dtype());
    for (int64_t i = 0; i < grids.zeros.numel(); ++i)
      static_cast<uint8_t*>(weight.zeros.raw())[i] = stored_code(grids.zeros.data<float>()[i], weight.type);
  }
  return weight;
}

QuantizedWeight quantize_weight(const Tensor& weight, const QuantizationArgs& args,
                                const WeightGrids& grids) {
  const int64_t n = weight.dim(0), k = weight.dim(1);
  const Tensor codes = Tensor::empty({n, k}, DType::f32);
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < k; ++column)
        codes.data<float>()[row * k + column] =
            nearest_code(weight.data<float>()[row * weight.stride(0) + column], grids.at(row, column), args);
  });
  return weight_of_codes(codes, args, grids);
}

QuantizedWeight quantize_weight(const Tensor& weight, const QuantizationArgs& args, std::string_view name,
                                float global_scale) {
  return quantize_weight(weight, args, make_weight_grids(weight, args, name, global_scale));
}

}  // namespace ladder
