#pragma once
// A quantized weight for kernels that are compiled per instruction set: raw pointers, and its columns in blocks.
//
// A block is one register of codes, `lanes` 32-bit words of 8 or 4 neighbouring codes. Where every word's columns lie in
// one group (lanes_have_groups) a block needs one multiplication by its lanes' scales, however small the groups are. Where
// a group is whole blocks, as with 128 columns and more, the lanes have the same scale.
// Vectors that are multiplied with codes are put into the same order, block for block: first every lane's first column, then
// every lane's second, and so on.
#include <cstdint>

#include "step8_advanced/quantization/weight_codes.h"

namespace ladder {

static inline constexpr int64_t codes_per_lane(WeightCodes type) {
  return is_nibble(type) ? 8 : 4;
}

struct QuantizedRows {
  WeightCodes type = WeightCodes::int8;
  int64_t k = 0;
  int64_t blocks = 0;     // k in registers, rounded up
  int64_t row_bytes = 0;  // of codes
  const uint8_t* codes = nullptr;
  int64_t codes_stride = 0;  // bytes
  const float* scales = nullptr;
  int64_t scales_stride = 0;
  const uint8_t* zeros = nullptr;  // the bytes of u8 or i8; nullptr: none
  int64_t zeros_stride = 0;
  int64_t groups = 0;
  const int32_t* first_group = nullptr;  // [blocks]
  const int32_t* lane_group = nullptr;   // [blocks][lanes]: counted from the block's first
  bool one_group_per_block = false;      // lane_group is all 0
};

}  // namespace ladder
