#pragma once
// Task 8.5: a quantized weight as a file keeps it: the tensors that stored_linear.h lists, which linear/ reads back.
#include <string>
#include <vector>

#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// What was found out about one linear.
struct QuantizedLinear {
  QuantizedWeight weight;
  Tensor g_idx;            // i32 [k], of act-order `group` alone: the group of each input feature
  float global_scale = 1;  // NVFP4's G
  float input_scale = 0;   // of static activations
};

// The tensors called "<name>.weight_packed" and so on. Formats of compressed-tensors alone; scales are in the dtype that
// `stored` says, and the weight's are such already, so nothing is rounded here. Error naming the linear: another format.
std::vector<NamedTensor> stored_tensors(const std::string& name, const QuantizedLinear& linear,
                                        const StoredLinear& stored);

}  // namespace ladder
