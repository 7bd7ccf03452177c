#pragma once
// What the fast rungs do with x before they multiply: floats, rounded as the scheme says, columns as stored.
#include "step8_advanced/quantization/kernels/activations_simd.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

// activations_simd.h's, of one instruction set.
struct ActivationKernels {
  void (*widen)(const void*, DType, int64_t, float*);
  RowRange (*range)(const float*, int64_t);
  void (*round_to_integers)(float*, int64_t, float, float, float, float);
  void (*round_to_e4m3)(float*, int64_t, float);
};
#define LADDER_ACTIVATION_KERNELS(isa) \
  { isa::widen_row, isa::range_of_row, isa::round_to_integers, isa::round_to_e4m3 }

// Row `row` of x as round_activations() gives it, in the order of the weight's stored columns: values [k], and the row's
// scale as the result. scratch [k] is used where columns change places.
float prepare_row(const QuantizedMatmulArgs& args, int64_t row, const ActivationKernels& kernels,
                  float* scratch, float* values);

}  // namespace ladder
