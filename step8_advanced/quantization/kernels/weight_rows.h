#pragma once
// Some rows of a quantized weight alone: those of one merged part, or of one expert.
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

// Rows [begin, begin + count), the same memory. Of a weight in records `begin` is a multiple of kRecordRows.
QuantizedWeight rows_of(const QuantizedWeight& weight, int64_t begin, int64_t count);

}  // namespace ladder
