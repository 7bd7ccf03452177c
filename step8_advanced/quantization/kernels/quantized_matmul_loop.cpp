// The clear rung: the definition, a weight at a time.
#include <algorithm>
#include <vector>

#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_rungs.h"
#include "step8_advanced/quantization/kernels/round_activations.h"

namespace ladder {

namespace {

// What the code in (row, column) stands for, in units of its group's scale.
float unscaled(const QuantizedWeight& weight, int64_t row, int64_t column, int64_t group) {
  const bool nibbles = is_nibble(weight.type);
  const auto* codes = static_cast<const uint8_t*>(weight.codes.raw()) + row * weight.codes.stride(0);
  uint8_t code = codes[nibbles ? column / 2 : column];
  if (nibbles) code = column % 2 == 0 ? code & 15 : code >> 4;
  const int64_t zero = weight.zeros.defined() ? row * weight.zeros.stride(0) + group : 0;
  switch (weight.type) {
    case WeightCodes::int4:
      return static_cast<float>(code - (weight.zeros.defined() ? weight.zeros.data<uint8_t>()[zero] : 8));
    case WeightCodes::int8:
      return static_cast<float>(static_cast<int8_t>(code) -
                                (weight.zeros.defined() ? weight.zeros.data<int8_t>()[zero] : 0));
    case WeightCodes::fp8_e4m3:
      return e4m3_to_float(code);
    case WeightCodes::fp4_e2m1:
      return e2m1_to_float(code);
  }
  return 0;
}

// In double, as matmul's loop, for the same reason; a group's sum first, then its scale.
double dot(const float* x, const QuantizedWeight& weight, int64_t row) {
  const float* scales = weight.scales.data<float>() + row * weight.scales.stride(0);
  double total = 0;
  for (int64_t group = 0; group < weight.num_groups(); ++group) {
    const int64_t begin = std::max<int64_t>(group * weight.group_size - weight.group_offset, 0);
    const int64_t end = std::min((group + 1) * weight.group_size - weight.group_offset, weight.k);
    double sum = 0;
    for (int64_t column = begin; column < end; ++column)
      sum += static_cast<double>(x[column]) * static_cast<double>(unscaled(weight, row, column, group));
    total += sum * static_cast<double>(scales[group]);
  }
  return total;
}

}  // namespace

void quantized_matmul_loop(const OpContext&, const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  std::vector<float> x(static_cast<size_t>(weight.k)), stored = x;
  with_float_type(args.x.dtype(), "quantized_matmul", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < args.x.dim(0); ++i) {
      const T* from = args.x.data<T>() + i * args.x.stride(0);
      std::transform(from, from + weight.k, x.begin(), [](T value) { return static_cast<float>(value); });
      const float scale = round_activations(x.data(), weight.k, args.activations, args.input_scale, x.data());
      for (int64_t column = 0; column < weight.k; ++column)  // in the order of the stored columns
        stored[static_cast<size_t>(column)] = x[static_cast<size_t>(
            weight.columns.defined() ? weight.columns.data<int32_t>()[column] : column)];
      store_row(args, i, scale, 0, weight.n, [&](int64_t j) { return dot(stored.data(), weight, j); });
    }
  });
}

}  // namespace ladder
