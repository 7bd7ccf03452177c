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
// It saves bytes on disk. In memory the zeros are back, but for a weight of 16 bits on a GPU of compute capability 9.0, which stays
// sparse (kernels/sparse_weight.h) where every merged part has whole records of 64 rows.
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

// Whether a weight of 16 bits may stay sparse on this device: kernels take it.
bool keeps_two_of_four(const OpContext& ctx);

enum class TwoOfFourSource : uint8_t {
  bitmask,  // the three tensors above
  whole,  // `weight` with its zeros, as `ladder quantize` and llm-compressor write it. One that is not two of four stays dense
  dummy  // any `weight` (--load-format dummy), of whose fours the two smallest are dropped where it stays sparse
};
// For a weight that is not quantized: once loaded dense (unquantized_linear_method), or sparse, see above.
std::shared_ptr<const LinearMethod> two_of_four_linear_method(TwoOfFourSource source);

}  // namespace ladder
