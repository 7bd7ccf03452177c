#include "step8_advanced/quantization/kernels/weight_records.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {
namespace {

// Columns of a record that are sure to share a scale.
int64_t columns_of_a_scale(const QuantizedWeight& weight) {
  if (weight.group_offset == 0 && weight.group_size >= weight.k) return kRecordColumns;
  return std::gcd(std::gcd(weight.group_size, weight.group_offset), kRecordColumns);
}

// A power of two in whose units f16 holds the largest scale, and the smaller ones for as long as it can.
// A kernel multiplies a unit by up to 2^69 (NibbleOperands in rows_stream.cuh), which is still a float.
constexpr float kMostUnit = 0x1p58f;

float unit_of_scales(const QuantizedWeight& weight) {
  if (weight.type != WeightCodes::int4) return 1;
  float largest = 0;
  for (int64_t row = 0; row < weight.n; ++row)
    for (int64_t group = 0; group < weight.num_groups(); ++group)
      largest =
          std::max(largest, std::fabs(weight.scales.data<float>()[row * weight.scales.stride(0) + group]));
  return largest > 0 ? std::ldexp(1.0f, std::clamp(std::ilogb(largest) - 14, -126, 126)) : 1.0f;
}

// One record after another, from codes as bytes that are positive: 0 to 15, 0 to 255, or E4M3's bits.
class RecordWriter {
 public:
  RecordWriter(const QuantizedWeight& weight, const RecordLayout& layout, float unit)
      : weight_(weight), layout_(layout), unit_(unit), columns_of_a_scale_(kRecordColumns / layout.groups) {}

  void write(int64_t tile, int64_t block, uint8_t* record) const {
    switch (weight_.type) {
      case WeightCodes::int4:
        write_codes<WeightCodes::int4>(tile, block, record);
        break;
      case WeightCodes::int8:
        write_codes<WeightCodes::int8>(tile, block, record);
        break;
      default:
        write_codes<WeightCodes::fp8_e4m3>(tile, block, record);
    }
    for (int64_t group = 0; group < layout_.groups; ++group)
      for (int64_t row = 0; row < kRecordRows; ++row) write_scale(tile, block, group, row, record);
  }

 private:
  template <WeightCodes kType>
  void write_codes(int64_t tile, int64_t block, uint8_t* record) const {
    for (int64_t half = 0; half < 2; ++half)
      for (int lane = 0; lane < 32; ++lane) write_codes<kType>(tile, block, half, lane, record);
  }

  template <WeightCodes kType>
  void write_codes(int64_t tile, int64_t block, int64_t half, int lane, uint8_t* record) const {
    uint32_t words[8] = {};
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 4; ++i)
        for (int h = 0; h < 2; ++h) {
          const int64_t row = tile * kRecordRows + lane / 4 + 8 * (i % 2);
          const int64_t column = block * kRecordColumns + 64 * half + 32 * (j / 2) + 8 * (lane % 4) +
                                 4 * (j % 2) + 2 * (i / 2) + h;
          const uint32_t code = code_at<kType>(row, column);
          if (kType == WeightCodes::int4) {
            words[j] |= code << 4 * (i + 4 * h);
          } else if (kType == WeightCodes::int8) {
            words[j] |= (code & 15) << 4 * (i + 4 * h);
            words[4 + j] |= (code >> 4) << 4 * (i + 4 * h);
          } else {
            words[2 * j + i / 2] |= code << 8 * (i % 2 + 2 * h);
          }
        }
    for (int64_t vector = 0; vector < layout_.vectors(); ++vector)
      std::memcpy(record + ((half * layout_.vectors() + vector) * 32 + lane) * 16, words + 4 * vector, 16);
  }

  template <WeightCodes kType>
  uint32_t code_at(int64_t row, int64_t column) const {
    if (row >= weight_.n || column >= weight_.k) return 0;
    const uint8_t* codes = static_cast<const uint8_t*>(weight_.codes.raw()) + row * weight_.codes.stride(0);
    switch (kType) {
      case WeightCodes::int4:
        return codes[column / 2] >> (column % 2 * 4) & 15;
      case WeightCodes::int8:
        return codes[column] ^ 128;
      default:
        return codes[column];
    }
  }

  void write_scale(int64_t tile, int64_t block, int64_t group, int64_t row, uint8_t* record) const {
    const int64_t j = tile * kRecordRows + row, column = block * kRecordColumns + group * columns_of_a_scale_;
    float scale = 0;
    uint8_t zero = 0;
    if (j < weight_.n && column < weight_.k) {
      const int64_t of = (column + weight_.group_offset) / weight_.group_size;
      scale = weight_.scales.data<float>()[j * weight_.scales.stride(0) + of] / unit_;
      if (layout_.zeros) {
        zero = static_cast<const uint8_t*>(weight_.zeros.raw())[j * weight_.zeros.stride(0) + of];
        if (weight_.type == WeightCodes::int8) zero ^= 128;
      }
    }
    const f16 half(scale);
    std::memcpy(record + layout_.scale_at(group, row),
                layout_.scale_bytes() == 2 ? static_cast<const void*>(&half) : &scale,
                static_cast<size_t>(layout_.scale_bytes()));
    if (layout_.zeros) record[layout_.zero_at(group, row)] = zero;
  }

  const QuantizedWeight& weight_;
  RecordLayout layout_;
  float unit_;
  int64_t columns_of_a_scale_;
};

}  // namespace

RecordLayout record_layout(const QuantizedWeight& weight) {
  return {.type = weight.type,
          .groups = static_cast<int>(kRecordColumns / columns_of_a_scale(weight)),
          .zeros = weight.records.zeros};
}

bool groups_fit_records(const QuantizedWeight& weight) {
  if (weight.type == WeightCodes::fp4_e2m1) return false;
  return columns_of_a_scale(weight) >= (weight.type == WeightCodes::int4 ? 32 : kRecordColumns);
}

bool fits_records(const QuantizedWeight& weight) {
  if (!groups_fit_records(weight)) return false;
  if (weight.type != WeightCodes::int4) return true;
  const float unit = unit_of_scales(weight);
  if (unit > kMostUnit) return false;
  for (int64_t row = 0; row < weight.n; ++row)
    for (int64_t group = 0; group < weight.num_groups(); ++group) {
      const float scale = weight.scales.data<float>()[row * weight.scales.stride(0) + group] / unit;
      if (static_cast<float>(f16(scale)) != scale) return false;
    }
  return true;
}

QuantizedWeight in_records(const QuantizedWeight& weight) {
  LADDER_CHECK(groups_fit_records(weight), "a weight in groups of {} from {} on has no records",
               weight.group_size, weight.group_offset);
  QuantizedWeight result = weight;
  result.codes = result.scales = result.zeros = {};
  result.records = {.unit = unit_of_scales(weight), .zeros = weight.zeros.defined()};
  const RecordLayout layout = record_layout(result);
  const int64_t tiles = (weight.n + kRecordRows - 1) / kRecordRows;
  const int64_t blocks = (weight.k + kRecordColumns - 1) / kRecordColumns;
  result.records.bytes = Tensor::zeros({tiles, blocks, layout.bytes()}, DType::u8);
  const RecordWriter writer(weight, layout, result.records.unit);
  parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile)
      for (int64_t block = 0; block < blocks; ++block)
        writer.write(tile, block,
                     result.records.bytes.data<uint8_t>() + (tile * blocks + block) * layout.bytes());
  });
  return result;
}

}  // namespace ladder
