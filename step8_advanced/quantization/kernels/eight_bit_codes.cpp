#include "step8_advanced/quantization/kernels/eight_bit_codes.h"

#include "step1_layers/core/packed.h"
#include "step8_advanced/quantization/kernels/round_activations.h"

namespace ladder {

namespace {
constexpr int64_t kMaxColumns = 131071;  // of 128 * 128 each, in 31 bits
}  // namespace

bool are_multiplied_as_codes(const QuantizedWeight& weight,
                             const std::optional<QuantizationArgs>& activations) {
  if (!activations || !are_rounded_on_a_gpu(*activations) || !activations->symmetric ||
      activations->strategy == ScaleStrategy::group)
    return false;
  if (weight.type != (activations->is_float ? WeightCodes::fp8_e4m3 : WeightCodes::int8)) return false;
  return weight.codes.defined() && !weight.zeros.defined() && !weight.columns.defined() &&
         weight.num_groups() == 1 && weight.k % kCodesAlignment == 0 && weight.k <= kMaxColumns;
}

bool takes_eight_bit_codes(const QuantizedWeight& weight, const std::optional<QuantizationArgs>& activations,
                           const Tensor& x) {
  return are_multiplied_as_codes(weight, activations) && is_packed(weight.codes) &&
         weight.scales.is_contiguous() && dtype_size(x.dtype()) == 2 && is_packed(x);
}

}  // namespace ladder
