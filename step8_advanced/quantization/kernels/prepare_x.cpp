#include "step8_advanced/quantization/kernels/prepare_x.h"

#include <cmath>

#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/numbers/grid.h"

namespace ladder {

namespace {

// round_activations() in registers, where there is one grid for the row.
float round_row(float* x, int64_t k, const QuantizedMatmulArgs& args, const ActivationKernels& kernels) {
  const QuantizationArgs& scheme = *args.activations;
  const RowRange range = kernels.range(x, k);
  const bool finite = std::isfinite(range.min) && std::isfinite(range.max);
  if (range.may_have_nan || (scheme.dynamic && !finite))
    return round_activations(x, k, args.activations, args.input_scale, x);
  const Grid grid = scheme.dynamic ? make_grid(range.min, range.max, scheme) : Grid{args.input_scale, 0};
  if (scheme.is_float)
    kernels.round_to_e4m3(x, k, grid.scale);
  else
    kernels.round_to_integers(x, k, grid.scale, grid.zero, static_cast<float>(scheme.min_code()),
                              static_cast<float>(scheme.max_code()));
  return grid.scale;
}

}  // namespace

float prepare_row(const QuantizedMatmulArgs& args, int64_t row, const ActivationKernels& kernels,
                  float* scratch, float* values) {
  const QuantizedWeight& weight = *args.weight;
  const auto* x =
      static_cast<const char*>(args.x.raw()) + row * args.x.stride(0) * dtype_size(args.x.dtype());
  float* rounded = weight.columns.defined() ? scratch : values;
  kernels.widen(x, args.x.dtype(), weight.k, rounded);
  float scale = 1;
  if (args.activations) {
    const bool registers = args.activations->strategy != ScaleStrategy::group &&
                           (!args.activations->is_float || args.activations->num_bits == 8);
    scale = registers ? round_row(rounded, weight.k, args, kernels)
                      : round_activations(rounded, weight.k, args.activations, args.input_scale, rounded);
  }
  if (weight.columns.defined()) {
    const int32_t* columns = weight.columns.data<int32_t>();
    for (int64_t column = 0; column < weight.k; ++column) values[column] = rounded[columns[column]];
  }
  return scale;
}

}  // namespace ladder
