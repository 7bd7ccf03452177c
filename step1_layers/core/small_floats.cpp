#include "step1_layers/core/small_floats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

constexpr float kE2M1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

}  // namespace

// >>> task 8.1.floats: the small floats' bits
uint8_t float_to_e4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return sign | 0x7f;
  const float absolute = std::min(std::fabs(x), kMaxE4M3);
  // The step between neighbours: an eighth of the power of two below, and 2^-9 below the smallest normal number, 2^-6.
  const int exponent = absolute < 0x1p-6f ? -6 : std::ilogb(absolute);
  const float steps = std::nearbyint(std::ldexp(absolute, 3 - exponent));  // 0 to 16
  // The bits count the steps from 0 on, through all exponents: a carry out of the mantissa is the next exponent.
  return sign | static_cast<uint8_t>((exponent + 6) * 8 + static_cast<int>(steps));
}

float e4m3_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

// The value whose index is even lies on the side of a tie.
uint8_t float_to_e2m1(float x) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float absolute = std::fabs(x);
  uint8_t index = 0;
  while (index < 7) {
    const float middle = (kE2M1[index] + kE2M1[index + 1]) / 2;
    if (!(absolute > middle || (absolute == middle && index % 2 == 1))) break;
    ++index;
  }
  return sign | index;
}

float e2m1_to_float(uint8_t bits) {
  const float value = kE2M1[bits & 7];
  return (bits & 8) != 0 ? -value : value;
}

float e8m0_to_float(uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, bits - 127);
}
// <<< task 8.1.floats

}  // namespace ladder
