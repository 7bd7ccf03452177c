#pragma once
// A quantized weight's numbers without its tensors, which a test fills in.
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder::testing {

inline QuantizedWeight shaped_weight(WeightCodes type, int64_t n, int64_t k, int64_t group_size,
                                     int64_t group_offset = 0) {
  QuantizedWeight weight;
  weight.type = type;
  weight.n = n;
  weight.k = k;
  weight.group_size = group_size;
  weight.group_offset = group_offset;
  return weight;
}

}  // namespace ladder::testing
