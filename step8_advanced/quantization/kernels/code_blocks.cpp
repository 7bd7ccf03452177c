#include "step8_advanced/quantization/kernels/code_blocks.h"

namespace ladder {

bool lanes_have_groups(const QuantizedWeight& weight) {
  const int64_t columns = codes_per_lane(weight.type);
  return weight.num_groups() == 1 || (weight.group_size % columns == 0 && weight.group_offset % columns == 0);
}

QuantizedRows quantized_rows(const QuantizedWeight& weight, int64_t lanes, int32_t* table) {
  const int64_t blocks = code_blocks(weight, lanes), columns = codes_per_lane(weight.type);
  const bool zeros = weight.zeros.defined();
  int32_t* first_group = table;
  int32_t* lane_group = table + blocks;
  bool one_group_per_block = true;
  int64_t group = 0, next = weight.group_size - weight.group_offset;  // next: where the one behind begins
  for (int64_t lane = 0; lane < blocks * lanes; ++lane) {
    // A lane beyond k multiplies zeros: any group will do.
    for (; lane * columns >= next && group + 1 < weight.num_groups(); next += weight.group_size) ++group;
    if (lane % lanes == 0) first_group[lane / lanes] = static_cast<int32_t>(group);
    lane_group[lane] = static_cast<int32_t>(group) - first_group[lane / lanes];
    one_group_per_block = one_group_per_block && lane_group[lane] == 0;
  }
  return {.type = weight.type,
          .k = weight.k,
          .blocks = blocks,
          .row_bytes = weight.codes.dim(1),
          .codes = static_cast<const uint8_t*>(weight.codes.raw()),
          .codes_stride = weight.codes.stride(0),
          .scales = weight.scales.data<float>(),
          .scales_stride = weight.scales.stride(0),
          .zeros = zeros ? static_cast<const uint8_t*>(weight.zeros.raw()) : nullptr,
          .zeros_stride = zeros ? weight.zeros.stride(0) : 0,
          .groups = weight.num_groups(),
          .first_group = first_group,
          .lane_group = lane_group,
          .one_group_per_block = one_group_per_block};
}

void order_like_blocks(const float* x, const QuantizedRows& weight, int64_t lanes, bool with_sums,
                       float* out) {
  const int64_t per_lane = codes_per_lane(weight.type);
  for (int64_t block = 0; block < weight.blocks; ++block) {
    const int64_t begin = block * lanes * per_lane;
    if (begin + lanes * per_lane <= weight.k) {
      for (int64_t a = 0; a < per_lane; ++a)
        for (int64_t lane = 0; lane < lanes; ++lane) out[a * lanes + lane] = x[begin + lane * per_lane + a];
    } else {
      for (int64_t a = 0; a < per_lane; ++a)
        for (int64_t lane = 0; lane < lanes; ++lane) {
          const int64_t column = begin + lane * per_lane + a;
          out[a * lanes + lane] = column < weight.k ? x[column] : 0.0f;
        }
    }
    if (with_sums)
      for (int64_t lane = 0; lane < lanes; ++lane) {
        float sum = 0;
        for (int64_t a = 0; a < per_lane; ++a) sum += out[a * lanes + lane];
        out[per_lane * lanes + lane] = -sum;
      }
    out += (per_lane + (with_sums ? 1 : 0)) * lanes;
  }
}

}  // namespace ladder
