#pragma once
// A quantized weight's codes, scales and zero points read a few neighbours of a row at a time, from either form that a weight has on a
// GPU. Only .cu files include this.
#include <cuda_fp8.h>

#include <cstdint>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"
#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

inline constexpr int kCodesAtOnce = 8;

// What kCodesAtOnce neighbours of a row are made of. Codes of integers are counted from the smallest one, so none is negative.
struct RowOfCodes {
  uint8_t code[kCodesAtOnce];
  float scale[kCodesAtOnce];
  uint8_t zero[kCodesAtOnce];
};

__host__ __device__ constexpr uint8_t middle_code(WeightCodes type) {
  return type == WeightCodes::int4 ? 8 : type == WeightCodes::int8 ? 128 : 0;
}

// As they lie in a QuantizedWeight that has no records.
template <WeightCodes type>
struct PlainWeight {
  static constexpr bool kNibbles = is_nibble(type);

  const uint8_t *codes, *zeros;  // zeros: nullptr where there are none
  const float* scales;
  int64_t codes_stride, zeros_stride, scales_stride, k, group_size, group_offset;

  explicit PlainWeight(const QuantizedWeight& weight)
      : codes(cuda_data<uint8_t>(weight.codes)),
        zeros(cuda_data<uint8_t>(weight.zeros)),
        scales(cuda_data<float>(weight.scales)),
        codes_stride(weight.codes.stride(0)),
        zeros_stride(zeros != nullptr ? weight.zeros.stride(0) : 0),
        scales_stride(weight.scales.stride(0)),
        k(weight.k),
        group_size(weight.group_size),
        group_offset(weight.group_offset) {}

  // `first`: in whole kCodesAtOnce; those past the end are copies of the last.
  __device__ void load(int64_t row, int64_t first, RowOfCodes& to) const {
    constexpr uint8_t kFlip = type == WeightCodes::int8 ? 128 : 0;
    const uint8_t* from = codes + row * codes_stride;
#pragma unroll
    for (int c = 0; c < kCodesAtOnce; ++c) {
      const int64_t column = min(first + c, k - 1), group = (column + group_offset) / group_size;
      const uint8_t byte = from[kNibbles ? column / 2 : column];
      to.code[c] = kNibbles ? byte >> (column % 2 * 4) & 15 : byte ^ kFlip;
      to.scale[c] = scales[row * scales_stride + group];
      to.zero[c] = zeros != nullptr ? zeros[row * zeros_stride + group] ^ kFlip : middle_code(type);
    }
  }
};

// Of 32 columns of a record's half, the first or the second ones (q), neighbour c of a lane's kCodesAtOnce in its upper or lower (odd)
// row; word(v, w) is word w of the lane's vector v of that half (weight_records.h).
template <WeightCodes type, class Word>
__device__ uint8_t recorded_code(Word&& word, int q, int c, int odd) {
  const int j = 2 * q + c / 4, i = c % 4 / 2 * 2 + odd, h = c % 2, nibble = 4 * (i + 4 * h);
  if constexpr (type == WeightCodes::int4)
    return word(0, j) >> nibble & 15;
  else if constexpr (type == WeightCodes::int8)
    return (word(0, j) >> nibble & 15) | (word(1, j) >> nibble & 15) << 4;
  else
    return word(q, 2 * (j % 2) + i / 2) >> 8 * (i % 2 + 2 * h) & 255;
}

// In records (weight_records.h).
template <WeightCodes type>
struct RecordedWeight {
  const uint8_t* records;
  int64_t blocks, record_bytes, scales_at, pair_bytes;
  int groups;
  float unit;
  bool zeros;

  explicit RecordedWeight(const QuantizedWeight& weight) {
    const RecordLayout layout = record_layout(weight);
    records = cuda_data<uint8_t>(weight.records.bytes);
    blocks = weight.records.bytes.dim(1);
    record_bytes = layout.bytes();
    scales_at = layout.codes_bytes();
    pair_bytes = layout.pair_bytes();
    groups = layout.groups;
    unit = weight.records.unit;
    zeros = layout.zeros;
  }

  __device__ void load(int64_t row, int64_t first, RowOfCodes& to) const {
    const uint8_t* record = records + (row / kRecordRows * blocks + first / kRecordColumns) * record_bytes;
    const int column = static_cast<int>(first % kRecordColumns),
              in_tile = static_cast<int>(row % kRecordRows);
    const int half = column / 64, q = column / 32 % 2, lane = in_tile % 8 * 4 + column / 8 % 4,
              odd = in_tile / 8;
    constexpr int kVectors = type == WeightCodes::int4 ? 1 : 2;
    // Word w of the lane's vector v.
    auto word = [&](int v, int w) {
      return reinterpret_cast<const uint32_t*>(record + ((half * kVectors + v) * kWarp + lane) * 16)[w];
    };
    const uint8_t* pair = record + scales_at +
                          (column * groups / static_cast<int>(kRecordColumns) * 8 + in_tile % 8) * pair_bytes;
    constexpr bool kHalves = type == WeightCodes::int4;
    const float row_scale = unit * (kHalves ? to_float(reinterpret_cast<const __half*>(pair)[odd])
                                            : reinterpret_cast<const float*>(pair)[odd]);
    const uint8_t row_zero = zeros ? pair[(kHalves ? 4 : 8) + odd] : middle_code(type);
#pragma unroll
    for (int c = 0; c < kCodesAtOnce; ++c) {
      to.code[c] = recorded_code<type>(word, q, c, odd);
      to.scale[c] = row_scale;
      to.zero[c] = row_zero;
    }
  }
};

template <WeightCodes type>
__device__ float number_of(uint8_t code, uint8_t zero) {
  if constexpr (type == WeightCodes::fp8_e4m3) {
    return to_float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
  } else if constexpr (type == WeightCodes::fp4_e2m1) {
    // Two exponent bits and one of mantissa at the top of a half's mantissa; the exponent's bias is 1 instead of 15.
    const float magnitude = to_float(__ushort_as_half(static_cast<uint16_t>((code & 7) << 9))) * 16384;
    return (code & 8) != 0 ? -magnitude : magnitude;
  } else {
    return static_cast<float>(static_cast<int>(code) - static_cast<int>(zero));
  }
}

// Calls fn with a constant of the type.
template <class Fn>
void with_codes(WeightCodes type, Fn&& fn) {
  switch (type) {
    case WeightCodes::int4:
      return fn(std::integral_constant<WeightCodes, WeightCodes::int4>{});
    case WeightCodes::int8:
      return fn(std::integral_constant<WeightCodes, WeightCodes::int8>{});
    case WeightCodes::fp8_e4m3:
      return fn(std::integral_constant<WeightCodes, WeightCodes::fp8_e4m3>{});
    case WeightCodes::fp4_e2m1:
      return fn(std::integral_constant<WeightCodes, WeightCodes::fp4_e2m1>{});
  }
}

// Calls fn with what reads the weight, of its type.
template <class Fn>
void with_readable_codes(const QuantizedWeight& weight, Fn&& fn) {
  with_codes(weight.type, [&](auto type) {
    if (weight.records.bytes.defined())
      fn(type, RecordedWeight<decltype(type)::value>(weight));
    else
      fn(type, PlainWeight<decltype(type)::value>(weight));
  });
}

}  // namespace ladder
