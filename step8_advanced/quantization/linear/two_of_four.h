#pragma once
// compressed-tensors' sparse-24-bitmask: a weight [N, K] of which two of every four neighbours along K are kept.
//
//   compressed  [N, K/2] of the weight's dtype: what is kept, in its order. It may be 0: a four of which three are 0
//   bitmask     U8 [N, ceil(K/8)]: bit c % 8 of byte c / 8 says whether column c is kept
//   shape       I64 [2, 1]: N, K
//
//   columns     0    1    2    3  | 4    5    6    7              bitmask 0b11000101
//   weight      a    0    b    0  | 0    0    c    d              compressed a b c d
//
// It saves bytes on disk; in memory the zeros are back.
#include <memory>
#include <vector>

#include "step1_layers/linear/linear_method.h"
#include "step8_advanced/quantization/linear/stored_method.h"

namespace ladder {

// The three above. Error: K is no multiple of 4.
std::vector<LinearParameterSpec> two_of_four_tensors(DType dtype, const LinearShape& shape);
// A rank's share of the weight [n, k], from its share of them. Error: another shape than the layer's; a four with more or fewer than two
// that are kept; bits behind K.
Tensor expanded_two_of_four(const LinearShape& shape, const StoredTensors& tensors);

// For a weight that is not quantized: from then on dense (unquantized_linear_method).
std::shared_ptr<const LinearMethod> two_of_four_linear_method();

}  // namespace ladder
