#pragma once
// Task 8.1: the floats of eight bits and less. Sources: "FP8 formats for deep learning" (arXiv 2209.05433); OCP Microscaling
// formats (MX) specification 1.0.
//
//   E4M3   sign, 4 exponent bits (bias 7), 3 mantissa bits   largest 448, no infinity, NaN 0x7f and 0xff
//   E2M1   sign, 2 exponent bits (bias 1), 1 mantissa bit    0, 0.5, 1, 1.5, 2, 3, 4, 6
//   E8M0   8 exponent bits (bias 127)                        powers of two, NaN 0xff
//
// Conversions to them round half to even and saturate; NaN stays NaN where there is one (E2M1: 0).
#include <cstdint>

namespace ladder {

inline constexpr float kMaxE4M3 = 448.0f;
inline constexpr float kMaxE2M1 = 6.0f;

uint8_t float_to_e4m3(float x);
float e4m3_to_float(uint8_t bits);
uint8_t float_to_e2m1(float x);  // the lower four bits
float e2m1_to_float(uint8_t bits);
float e8m0_to_float(uint8_t bits);

}  // namespace ladder
