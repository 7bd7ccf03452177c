#pragma once
// What a weight's codes are in memory. Apart from quantized_weight.h for kernels that are compiled per instruction set and
// take plain declarations only (step1_layers/core/cpu_features.h).
#include <cstdint>

namespace ladder {

enum class WeightCodes : uint8_t {
  int4,  // u8 [n, ceil(k / 2)]: two codes a byte, the even column in the low half; code 0..15 stands for 0..15
  int8,      // i8 [n, k]
  fp8_e4m3,  // u8 [n, k], E4M3's bits
  fp4_e2m1,  // u8 [n, ceil(k / 2)], as int4; sign << 3 | index into 0, 0.5, 1, 1.5, 2, 3, 4, 6
};

static inline constexpr bool is_nibble(WeightCodes type) {
  return type == WeightCodes::int4 || type == WeightCodes::fp4_e2m1;
}

}  // namespace ladder
