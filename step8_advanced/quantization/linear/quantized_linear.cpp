#include "step8_advanced/quantization/linear/quantized_linear.h"

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/two_of_four.h"

namespace ladder {

std::shared_ptr<const LinearMethod> quantized_linear_method(const StoredLinear& stored,
                                                            LoadFormat load_format, int64_t parts_per_order) {
  if (stored.format == StoredFormat::dense)
    return two_of_four_linear_method(load_format == LoadFormat::dummy ? TwoOfFourSource::dummy
                                                                      : TwoOfFourSource::bitmask);
  const QuantizationArgs& weights = stored.scheme.weights;
  LADDER_CHECK(weights.strategy != ScaleStrategy::group || weights.group_size > 0,
               "weights with a scale per group: expected a group size above 0, found {}", weights.group_size);
  LADDER_CHECK(
      weights.strategy != ScaleStrategy::block || (weights.block_rows > 0 && weights.block_columns > 0),
      "weights with a scale per block: expected blocks of 1 by 1 and larger, found {} by {}",
      weights.block_rows, weights.block_columns);
  if (stored.scheme.input_activations) check_activations(*stored.scheme.input_activations, 1);
  if (load_format == LoadFormat::dummy) return dummy_linear_method(stored);
  switch (stored.format) {
    case StoredFormat::plain:
      return plain_linear_method(stored);
    case StoredFormat::packed:
      return packed_linear_method(stored, parts_per_order);
    case StoredFormat::nvfp4:
    case StoredFormat::mx:
      return block_float_linear_method(stored);
    case StoredFormat::gptq:
      return gptq_linear_method(stored, parts_per_order);
    case StoredFormat::awq:
      return awq_linear_method(stored);
    case StoredFormat::dense:
      break;
  }
  fail("a linear in an unknown format");
}

}  // namespace ladder
