#pragma once
// A QuantizedWeight as quantized_rows.h's kernels take it, and vectors in the order of its blocks.
#include "step8_advanced/quantization/kernels/quantized_rows.h"
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

// Whether the columns of every 32-bit word of codes have one scale: groups begin at multiples of codes_per_lane, or a row
// is one group. Groups on disk are of 16 columns and more, so only odd shapes are left out.
bool lanes_have_groups(const QuantizedWeight& weight);

inline int64_t code_blocks(const QuantizedWeight& weight, int64_t lanes) {
  const int64_t columns = lanes * codes_per_lane(weight.type);
  return (weight.k + columns - 1) / columns;
}
// Numbers of the table that says which group a lane is in.
inline int64_t group_table_size(const QuantizedWeight& weight, int64_t lanes) {
  return code_blocks(weight, lanes) * (lanes + 1);
}
// `table` is filled, and must live as long as what is returned.
QuantizedRows quantized_rows(const QuantizedWeight& weight, int64_t lanes, int32_t* table);

// x [k] in the blocks' order, zeros beyond k. With sums every block has `lanes` numbers more: minus the sum of each
// lane's.
void order_like_blocks(const float* x, const QuantizedRows& weight, int64_t lanes, bool with_sums,
                       float* out);

}  // namespace ladder
