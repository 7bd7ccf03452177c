#pragma once
// Element types. bf16 and f16 are storage types: arithmetic happens in float, and the conversions round to
// nearest even.
#include <bit>
#include <cstdint>
#include <string_view>

namespace ladder {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8, i8, f8_e4m3, f64 };

// Bytes per element.
constexpr int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
      return 1;
  }
  return 0;
}

// "f32", "bf16", ... as users and error messages write them.
std::string_view dtype_name(DType dtype);

// The upper half of a float: 8 exponent bits, 7 mantissa bits.
struct bf16 {
  uint16_t bits;

  bf16() = default;
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits =
          static_cast<uint16_t>((u >> 16) | 0x40);  // keep NaN a NaN: rounding could carry it into infinity
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE 754 binary16.
struct f16 {
  uint16_t bits;

  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

inline f16::f16(float value) {
  uint32_t u = std::bit_cast<uint32_t>(value);
  uint32_t sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  if (u >= 0x7f800000u) {  // infinity or NaN
    bits = static_cast<uint16_t>(sign | 0x7c00u | (u > 0x7f800000u ? 0x200u : 0u));
  } else if (u >= 0x477ff000u) {  // rounds to 65536 or more
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (u < 0x38800000u) {  // subnormal in f16: let float addition do the rounding
    float shifted = std::bit_cast<float>(u) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  } else {
    uint32_t rounded = u + 0xfffu + ((u >> 13) & 1);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

inline f16::operator float() const {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24
    float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// Calls fn with a value-initialised float, bf16 or f16 for the dtype: `with_float_type(t.dtype(), [&](auto
// tag) { using T = decltype(tag); ... })`. Throws Error for any other dtype, naming `what`.
[[noreturn]] void fail_not_floating(DType dtype, std::string_view what);
template <class Fn>
decltype(auto) with_float_type(DType dtype, std::string_view what, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(bf16{});
    case DType::f16:
      return fn(f16{});
    default:
      fail_not_floating(dtype, what);
  }
}

}  // namespace ladder
