#pragma once
// The methods of the formats of stored_linear.h, one for each. Of quantized_linear.cpp's, which says what parts_per_order is.
#include <memory>

#include "step1_layers/linear/linear_method.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

std::shared_ptr<const LinearMethod> plain_linear_method(const StoredLinear& stored);
std::shared_ptr<const LinearMethod> packed_linear_method(const StoredLinear& stored, int64_t parts_per_order);
std::shared_ptr<const LinearMethod> block_float_linear_method(const StoredLinear& stored);  // nvfp4, mx
std::shared_ptr<const LinearMethod> gptq_linear_method(const StoredLinear& stored, int64_t parts_per_order);
std::shared_ptr<const LinearMethod> awq_linear_method(const StoredLinear& stored);
// Reads no weight, and makes up codes of the scheme (dummy.cpp).
std::shared_ptr<const LinearMethod> dummy_linear_method(const StoredLinear& stored);

}  // namespace ladder
