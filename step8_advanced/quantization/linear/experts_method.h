#pragma once
// Task 8.2: the experts of a layer in codes on a GPU (step1_layers/moe/coded_experts.h).
#include <cstdint>
#include <memory>

#include "step1_layers/linear/linear_method.h"

namespace ladder {

// A method for one linear of all experts, gates and ups or downs, in a format that quantized_linear_method() serves. It is a CodedExperts
// too. Error: as quantized_linear_method(); two of four of weights that are not quantized. After loading: stored scales of activations
// that differ between gate and up of an expert.
std::shared_ptr<const LinearMethod> experts_linear_method(std::shared_ptr<const LinearMethod> stored,
                                                          int64_t parts_per_expert);

}  // namespace ladder
