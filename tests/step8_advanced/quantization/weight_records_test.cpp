// Task 8.4: weights in the order in which a GPU streams them.
#include "step8_advanced/quantization/kernels/weight_records.h"

#include <gtest/gtest.h>

#include <cstring>

#include "step1_layers/core/error.h"
#include "tests/step8_advanced/quantization/shaped_weight.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;
using testing::shaped_weight;

QuantizedWeight random_weight(Random& random, WeightCodes type, int64_t n, int64_t k, int64_t group_size,
                              int64_t group_offset, bool zeros) {
  QuantizedWeight weight = shaped_weight(type, n, k, group_size, group_offset);
  const DType bytes = type == WeightCodes::int8 ? DType::i8 : DType::u8;
  const auto fill = [&](const Tensor& tensor, int largest) {
    for (int64_t i = 0; i < tensor.numel(); ++i)
      static_cast<uint8_t*>(tensor.raw())[i] = static_cast<uint8_t>(random.integer(0, largest));
  };
  weight.codes = Tensor::empty({n, is_nibble(type) ? (k + 1) / 2 : k}, bytes);
  fill(weight.codes, 255);
  weight.scales = Tensor::empty({n, (k + group_offset + group_size - 1) / group_size}, DType::f32);
  for (int64_t i = 0; i < weight.scales.numel(); ++i)
    weight.scales.data<float>()[i] = static_cast<float>(random.uniform(0.01, 0.1));
  if (zeros) {
    weight.zeros = Tensor::empty(weight.scales.shape(), bytes);
    fill(weight.zeros, type == WeightCodes::int4 ? 15 : 255);
  }
  return weight;
}

// The header's drawing, read from the place of a number back to its bits.
uint32_t code_in(const uint8_t* record, WeightCodes type, int64_t row, int64_t column) {
  const int64_t half = column / 64, t = column / 8 % 4, j = column / 32 % 2 * 2 + column / 4 % 2;
  const int64_t i = column / 2 % 2 * 2 + row / 8, h = column % 2, lane = row % 8 * 4 + t;
  const int64_t vectors = type == WeightCodes::int4 ? 1 : 2;
  const auto word = [&](int64_t vector, int64_t index) {
    uint32_t bits;
    std::memcpy(&bits, record + ((half * vectors + vector) * 32 + lane) * 16 + index * 4, 4);
    return bits;
  };
  switch (type) {
    case WeightCodes::int4:
      return word(0, j) >> 4 * (i + 4 * h) & 15;
    case WeightCodes::int8:
      return (word(0, j) >> 4 * (i + 4 * h) & 15) + 16 * (word(1, j) >> 4 * (i + 4 * h) & 15);
    default:
      return word(j / 2, 2 * (j % 2) + i / 2) >> 8 * (i % 2 + 2 * h) & 255;
  }
}

// What it is in a QuantizedWeight, integers counted from the smallest one.
uint32_t code_of(const QuantizedWeight& weight, int64_t row, int64_t column) {
  const auto* codes = static_cast<const uint8_t*>(weight.codes.raw()) + row * weight.codes.stride(0);
  if (weight.type == WeightCodes::int4) return codes[column / 2] >> (column % 2 * 4) & 15;
  return weight.type == WeightCodes::int8 ? codes[column] ^ 128u : codes[column];
}

// A kernel's unit is larger than the scales' by 2^69, and still a float.
TEST(Task8_4_WeightRecords, ScalesThatAUnitCannotHaveStayAsTheyAre) {
  Random random;
  SCOPED_TRACE(random.describe());
  QuantizedWeight weight = random_weight(random, WeightCodes::int4, 16, 128, 128, 0, false);
  std::fill_n(weight.scales.data<float>(), weight.scales.numel(), 0x1p72f);
  EXPECT_TRUE(fits_records(weight));
  std::fill_n(weight.scales.data<float>(), weight.scales.numel(), 0x1p73f);
  EXPECT_FALSE(fits_records(weight));
}

TEST(Task8_4_WeightRecords, EveryNumberIsWhereTheDrawingSays) {
  Random random;
  SCOPED_TRACE(random.describe());
  struct {
    WeightCodes type;
    int64_t n, k, group_size, group_offset;
    bool zeros;
  } problems[] = {
      {WeightCodes::int4, 33, 300, 128, 0, false},    {WeightCodes::int4, 16, 256, 32, 32, true},
      {WeightCodes::int4, 40, 192, 64, 64, true},     {WeightCodes::int4, 5, 77, 77, 0, true},
      {WeightCodes::int8, 20, 130, 130, 0, true},     {WeightCodes::int8, 50, 512, 256, 128, false},
      {WeightCodes::fp8_e4m3, 17, 384, 128, 0, false}};
  for (const auto& p : problems) {
    SCOPED_TRACE(fmt::format("[{}, {}] groups of {} from {}", p.n, p.k, p.group_size, p.group_offset));
    QuantizedWeight weight = random_weight(random, p.type, p.n, p.k, p.group_size, p.group_offset, p.zeros);
    if (p.type == WeightCodes::int4) {
      EXPECT_FALSE(fits_records(weight)) << "scales have more than f16's 11 bits";
      weight.scales = weight.scales.to(random.one_of<DType>({DType::bf16, DType::f16})).to(DType::f32);
    }
    ASSERT_TRUE(fits_records(weight));
    const QuantizedWeight packed = in_records(weight);
    EXPECT_FALSE(packed.codes.defined() || packed.scales.defined() || packed.zeros.defined());
    const RecordLayout layout = record_layout(packed);
    const int64_t tiles = (p.n + 15) / 16, blocks = (p.k + 127) / 128;
    ASSERT_EQ(packed.records.bytes.shape(), Shape({tiles, blocks, layout.bytes()}));
    for (int64_t row = 0; row < tiles * 16; ++row)
      for (int64_t column = 0; column < blocks * 128; ++column) {
        const uint8_t* record =
            packed.records.bytes.data<uint8_t>() + (row / 16 * blocks + column / 128) * layout.bytes();
        const bool inside = row < p.n && column < p.k;
        ASSERT_EQ(code_in(record, p.type, row % 16, column % 128), inside ? code_of(weight, row, column) : 0)
            << row << ", " << column;
        const int64_t group = (column + p.group_offset) / p.group_size;
        const int64_t of_record = column % 128 * layout.groups / 128;
        const uint8_t* stored = record + layout.scale_at(of_record, row % 16);
        float scale = 0;
        if (p.type == WeightCodes::int4) {
          f16 half;
          std::memcpy(&half, stored, sizeof half);
          scale = static_cast<float>(half) * packed.records.unit;
        } else {
          std::memcpy(&scale, stored, sizeof scale);
        }
        if (!inside) continue;
        ASSERT_EQ(scale, weight.scales.at<float>({row, group})) << row << ", " << column;
        if (!p.zeros) continue;
        const int zero =
            static_cast<const uint8_t*>(weight.zeros.raw())[row * weight.zeros.stride(0) + group];
        ASSERT_EQ(record[layout.zero_at(of_record, row % 16)],
                  p.type == WeightCodes::int8 ? zero ^ 128 : zero)
            << row << ", " << column;
      }
  }
}

TEST(Task8_4_WeightRecords, AreOfWeightsWhoseGroupsFitThem) {
  EXPECT_TRUE(groups_fit_records(shaped_weight(WeightCodes::int4, 16, 1000, 1000)));
  EXPECT_TRUE(groups_fit_records(shaped_weight(WeightCodes::int4, 16, 1024, 32, 0)));
  EXPECT_TRUE(groups_fit_records(shaped_weight(WeightCodes::int4, 16, 1024, 128, 64)));
  EXPECT_FALSE(groups_fit_records(shaped_weight(WeightCodes::int4, 16, 1024, 16, 0)));
  EXPECT_FALSE(groups_fit_records(shaped_weight(WeightCodes::int4, 16, 1024, 104, 0)));
  EXPECT_FALSE(groups_fit_records(shaped_weight(WeightCodes::int4, 16, 1000, 1000, 8)));
  EXPECT_TRUE(groups_fit_records(shaped_weight(WeightCodes::int8, 16, 1024, 128, 0)));
  EXPECT_FALSE(groups_fit_records(shaped_weight(WeightCodes::int8, 16, 1024, 64, 0)));
  EXPECT_FALSE(groups_fit_records(shaped_weight(WeightCodes::fp4_e2m1, 16, 1024, 128, 0)));
  EXPECT_THROW(in_records(shaped_weight(WeightCodes::int4, 16, 1024, 16, 0)), Error);
}

}  // namespace
}  // namespace ladder
