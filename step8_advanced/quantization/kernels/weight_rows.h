#pragma once
// Some rows of a quantized weight alone: those of one merged part, or of one expert.
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

// Whether rows have orders of columns of their own: an expert's.
bool have_own_orders(const QuantizedWeight& weight);

// Rows [begin, begin + count), the same memory, of one order where there are several. Of a weight in records `begin` is a multiple of
// kRecordRows. Error: rows of two orders.
QuantizedWeight rows_of(const QuantizedWeight& weight, int64_t begin, int64_t count);

}  // namespace ladder
