#pragma once
// A linear layer's weight [n, k] as the kernels take it, whatever file it came from (linear/ turns every format into this
// one), and as the quantizer makes it.
//
//   weight[j][k] = (code[j][k] - zero[j][group]) * scale[j][group]       group = (k + group_offset) / group_size
//
// where k counts stored columns: `columns` says which input feature a stored column belongs to, if they were
// sorted (GPTQ's act-order, whose groups are then neighbours again). Experts have orders of their own, [orders, k], each of n / orders rows.
#include <cstdint>

#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/weight_codes.h"

namespace ladder {

// A weight as a GPU streams it: kernels/weight_records.h.
struct WeightRecords {
  // u8 [rows / 16, columns / 128, bytes of a record], rounded up; undefined: there are none
  Tensor bytes = {};
  float unit = 1;  // of the scales in it: a power of two
  bool zeros = false;
};

struct QuantizedWeight {
  WeightCodes type = WeightCodes::int8;
  int64_t n = 0, k = 0;
  Tensor codes = {};
  Tensor scales = {};  // f32 [n, groups]; channel: one group. Blocks and tensors are expanded to rows.
  // Integers: the code that stands for 0. u8 [n, groups] for int4, i8 [n, groups] for int8; undefined: 8 and 0.
  Tensor zeros = {};
  Tensor columns = {};       // i32 [k]: the input feature of each stored column; undefined: as they are
  int64_t group_size = 0;    // columns that share a scale; k where a row has one scale
  int64_t group_offset = 0;  // columns of the first group that lie on the rank before (tensor parallelism)

  WeightRecords records = {};  // on a GPU: in place of codes, scales and zeros, which are undefined then

  int64_t num_groups() const { return scales.dim(1); }
};

// The weight in f32 [n, k], columns in the order of the input features; on the CPU.
Tensor dequantize(const QuantizedWeight& weight);

}  // namespace ladder
