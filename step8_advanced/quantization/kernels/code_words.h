#pragma once
// A register of a quantized weight's codes, and what they stand for, under one name for every instruction set. Only
// x_simd.cpp files include this (step1_layers/core/simd.h).
//
// The codes of a row are read as 32-bit words, a word per lane: shifting all words brings each code of every lane to the
// bottom in turn. A lane's columns are neighbours and lie in one group.
#include <cstring>

#include "step1_layers/core/simd.h"
#include "step8_advanced/quantization/kernels/quantized_rows.h"

namespace ladder::LADDER_ISA {

// One register of codes, and what the lane's code i stands for, as floats.
#if defined(__AVX512F__)
using Words = __m512i;
inline Words load_words(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}

// Sixteen values are a register: the permutation looks at an index's low four bits only.
template <WeightCodes kType>
struct Decoder {
  __m512 values = kType == WeightCodes::int4
                      ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
                      : _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  Vec operator()(Words words, int i) const {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(words, static_cast<unsigned>(4 * i)), values)};
  }
};
template <>
struct Decoder<WeightCodes::int8> {
  Vec operator()(Words words, int i) const {
    const __m512i top = _mm512_slli_epi32(words, static_cast<unsigned>(24 - 8 * i));
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24))};
  }
};
// E4M3's exponent and mantissa at the place of a float's: 2^-120 times the value, of subnormals too.
template <>
struct Decoder<WeightCodes::fp8_e4m3> {
  Vec operator()(Words words, int i) const {
    const __m512i top = _mm512_slli_epi32(words, static_cast<unsigned>(24 - 8 * i));
    const __m512i bits =
        _mm512_and_si512(_mm512_srai_epi32(top, 4), _mm512_set1_epi32(static_cast<int>(0x87f00000u)));
    return Vec{_mm512_castsi512_ps(bits)} * broadcast(0x1p120f);
  }
};

// values[first + lane_group[lane]] of the `groups` there are.
inline Vec spread(const float* values, int64_t groups, int64_t first, const int32_t* lane_group) {
  const int64_t count = groups - first;
  const __mmask16 there =
      count >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1);
  return {
      _mm512_permutexvar_ps(_mm512_loadu_si512(lane_group), _mm512_maskz_loadu_ps(there, values + first))};
}
// The same of bytes.
template <bool kSigned>
inline Vec spread_bytes(const uint8_t* values, int64_t groups, int64_t first, const int32_t* lane_group) {
  const int64_t count = groups - first;
  const __mmask16 there =
      count >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1);
  const __m128i bytes = _mm_maskz_loadu_epi8(there, values + first);
  const __m512i wide = kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
  return {_mm512_permutexvar_ps(_mm512_loadu_si512(lane_group), _mm512_cvtepi32_ps(wide))};
}
#elif defined(__AVX2__)
using Words = __m256i;
inline Words load_words(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

template <WeightCodes kType>
struct Decoder {
  Vec operator()(Words words, int i) const {
    const __m256i shifted = _mm256_srli_epi32(words, 4 * i);
    if (kType == WeightCodes::int4)
      return Vec{_mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)))} - broadcast(8);
    // Eight values are a register: the permutation looks at the low three bits only. The fourth is the sign.
    const __m256 absolute = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), shifted);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(words, 28 - 4 * i),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return {_mm256_or_ps(absolute, _mm256_castsi256_ps(sign))};
  }
};
template <>
struct Decoder<WeightCodes::int8> {
  Vec operator()(Words words, int i) const {
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * i), 24))};
  }
};
template <>
struct Decoder<WeightCodes::fp8_e4m3> {  // as above
  Vec operator()(Words words, int i) const {
    const __m256i bits = _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * i), 4),
                                          _mm256_set1_epi32(static_cast<int>(0x87f00000u)));
    return Vec{_mm256_castsi256_ps(bits)} * broadcast(0x1p120f);
  }
};

inline Vec spread(const float* values, int64_t groups, int64_t first, const int32_t* lane_group) {
  const int count = groups - first < 8 ? static_cast<int>(groups - first) : 8;
  const __m256i there =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return {_mm256_permutevar8x32_ps(_mm256_maskload_ps(values + first, there),
                                   _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane_group)))};
}
template <bool kSigned>
inline Vec spread_bytes(const uint8_t* values, int64_t groups, int64_t first, const int32_t* lane_group) {
  uint64_t eight = 0;
  std::memcpy(&eight, values + first, static_cast<size_t>(groups - first < 8 ? groups - first : 8));
  const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(eight));
  const __m256i wide = kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  return {_mm256_permutevar8x32_ps(_mm256_cvtepi32_ps(wide),
                                   _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane_group)))};
}
#else
struct Words {
  uint32_t v[kLanes];
};
inline Words load_words(const uint8_t* p) {
  Words words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

inline constexpr float kE2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

template <WeightCodes kType>
struct Decoder {
  Vec operator()(Words words, int i) const {
    Vec result;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t word = words.v[lane], nibble = word >> (4 * i) & 15, byte = word >> (8 * i & 31) & 255;
      if (kType == WeightCodes::int4) result.v[lane] = static_cast<float>(static_cast<int>(nibble) - 8);
      if (kType == WeightCodes::fp4_e2m1) result.v[lane] = kE2M1[nibble];
      if (kType == WeightCodes::int8) result.v[lane] = static_cast<float>(static_cast<int8_t>(byte));
      if (kType == WeightCodes::fp8_e4m3) {  // as above
        const uint32_t bits = (byte & 0x80) << 24 | (byte & 0x7f) << 20;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        result.v[lane] = value * 0x1p120f;
      }
    }
    return result;
  }
};

inline Vec spread(const float* values, int64_t, int64_t first, const int32_t* lane_group) {
  Vec result;
  for (int lane = 0; lane < kLanes; ++lane) result.v[lane] = values[first + lane_group[lane]];
  return result;
}
template <bool kSigned>
inline Vec spread_bytes(const uint8_t* values, int64_t, int64_t first, const int32_t* lane_group) {
  Vec result;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint8_t value = values[first + lane_group[lane]];
    result.v[lane] = kSigned ? static_cast<float>(static_cast<int8_t>(value)) : static_cast<float>(value);
  }
  return result;
}
#endif

// The scales and zero points of a block's lanes.
class LaneGroups {
 public:
  LaneGroups(const QuantizedRows& rows, int64_t block)
      : rows_(rows), first_(rows.first_group[block]), lane_group_(rows.lane_group + block * kLanes) {}

  Vec scales(int64_t j) const {
    const float* scales = rows_.scales + j * rows_.scales_stride;
    if (rows_.one_group_per_block) return broadcast(scales[first_]);
    return spread(scales, rows_.groups, first_, lane_group_);
  }

  // In the decoder's codes, which count int4 from -8 on.
  template <WeightCodes kType>
  Vec zeros(int64_t j) const {
    constexpr bool kSigned = kType == WeightCodes::int8;
    const uint8_t* zeros = rows_.zeros + j * rows_.zeros_stride;
    if (rows_.one_group_per_block)
      return broadcast(
          static_cast<float>(kSigned ? int{static_cast<int8_t>(zeros[first_])} : zeros[first_] - 8));
    const Vec values = spread_bytes<kSigned>(zeros, rows_.groups, first_, lane_group_);
    return kSigned ? values : values - broadcast(8);
  }

 private:
  const QuantizedRows& rows_;
  int64_t first_;
  const int32_t* lane_group_;
};

// The words of `block`, the last one's bytes beyond the row's end as zeros.
inline Words block_words(const QuantizedRows& rows, int64_t j, int64_t block) {
  constexpr int64_t kBytes = kLanes * 4;
  const uint8_t* codes = rows.codes + j * rows.codes_stride + block * kBytes;
  if ((block + 1) * kBytes <= rows.row_bytes) return load_words(codes);
  uint8_t rest[kBytes] = {};
  std::memcpy(rest, codes, static_cast<size_t>(rows.row_bytes - block * kBytes));
  return load_words(rest);
}

}  // namespace ladder::LADDER_ISA
