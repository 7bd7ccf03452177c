#include "step8_advanced/quantization/numbers/grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "step1_layers/core/dtype.h"
#include "step1_layers/core/small_floats.h"

namespace ladder {
namespace {

TEST(Task8_1_SmallFloats, EveryE4M3IsItself) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = e4m3_to_float(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(float_to_e4m3(value), bits) << value;
  }
}

TEST(Task8_1_SmallFloats, E4M3RoundsToTheNearestHalfToEvenAndSaturates) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = e4m3_to_float(static_cast<uint8_t>(bits));
    const float high = e4m3_to_float(static_cast<uint8_t>(bits + 1));
    const float middle = (low + high) / 2;
    EXPECT_LT(low, high);
    EXPECT_EQ(float_to_e4m3(middle), bits % 2 == 0 ? bits : bits + 1) << middle;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(float_to_e4m3(-std::nextafter(middle, 1e9f)), (bits + 1) | 0x80);
  }
  EXPECT_EQ(e4m3_to_float(0x7e), kMaxE4M3);
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(float_to_e4m3(NAN) & 0x7f, 0x7f);
}

TEST(Task8_1_SmallFloats, E2M1RoundsToTheNearestHalfToEven) {
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t i = 0; i < 8; ++i) {
    EXPECT_EQ(e2m1_to_float(i), values[i]);
    EXPECT_EQ(e2m1_to_float(i | 8), -values[i]);
    EXPECT_EQ(float_to_e2m1(values[i]), i);
    EXPECT_EQ(float_to_e2m1(-values[i]), i | 8);
    if (i == 7) break;
    const float middle = (values[i] + values[i + 1]) / 2;
    EXPECT_EQ(float_to_e2m1(middle), i % 2 == 0 ? i : i + 1);
    EXPECT_EQ(float_to_e2m1(std::nextafter(middle, 0.0f)), i);
    EXPECT_EQ(float_to_e2m1(std::nextafter(middle, 9.0f)), i + 1);
  }
  EXPECT_EQ(float_to_e2m1(1e9f), 7);
}

TEST(Task8_1_SmallFloats, E8M0ArePowersOfTwo) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_float(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Task8_1_Grid, ASymmetricOneIsAsWideAsTheRange) {
  const QuantizationArgs args{.num_bits = 4};
  const Grid grid = make_grid(std::vector<float>{-1.5f, 0.25f, 15.0f}, args);
  EXPECT_EQ(grid.scale, 2.0f);
  EXPECT_EQ(grid.zero, 0.0f);
  EXPECT_EQ(nearest_code(15.0f, grid, args), 7.0f) << "clipped by half a step";
  EXPECT_EQ(nearest_code(-15.0f, grid, args), -8.0f) << "half to even";
  EXPECT_EQ(nearest_code(-1e9f, grid, args), -8.0f);
  EXPECT_EQ(nearest_code(1.0f, grid, args), 0.0f);
  EXPECT_EQ(nearest_code(3.0f, grid, args), 2.0f);
  EXPECT_EQ(round_to_grid(3.0f, grid, args), 4.0f);
}

TEST(Task8_1_Grid, AnAsymmetricOneHasZeroInItAlways) {
  QuantizationArgs args{.num_bits = 4};
  args.symmetric = false;
  for (const auto& numbers : {std::vector<float>{3, 15}, {-30, -2}, {-5, 10}, {0, 0}}) {
    const Grid grid = make_grid(numbers, args);
    EXPECT_EQ(round_to_grid(0.0f, grid, args), 0.0f);
    EXPECT_GE(grid.zero, -8);
    EXPECT_LE(grid.zero, 7);
    for (const float number : numbers) EXPECT_NEAR(round_to_grid(number, grid, args), number, grid.scale / 2);
  }
  EXPECT_EQ(make_grid(std::vector<float>{3, 15}, args).scale, 1.0f);
  EXPECT_EQ(make_grid(std::vector<float>{3, 15}, args).zero, -8.0f);
  EXPECT_EQ(make_grid(std::vector<float>{-30, -2}, args).zero, 7.0f);
  EXPECT_EQ(make_grid(3.0f, 15.0f, args).scale, 1.0f);
  EXPECT_EQ(make_grid(-30.0f, -2.0f, args).scale, 2.0f);
}

TEST(Task8_1_Grid, TheScaleIsOneThatItsFormatHas) {
  QuantizationArgs args{.num_bits = 4, .is_float = true};
  args.scale_format = ScaleFormat::e8m0;
  EXPECT_EQ(make_grid(-6.0f, 1.0f, args).scale, 1.0f);
  EXPECT_EQ(make_grid(-7.0f, 1.0f, args).scale, 2.0f) << "7 rounds to 8, not to 6";
  EXPECT_EQ(make_grid(0.0f, 0.75f, args).scale, 0.125f);
  EXPECT_EQ(make_grid(0.0f, 0.0f, args).scale, 1.0f);
  args.scale_format = ScaleFormat::e4m3;
  const float global = nvfp4_global_scale(12.0f);
  EXPECT_EQ(global, 224.0f);
  EXPECT_EQ(make_grid(0.0f, 12.0f, args, global).scale, 2.0f) << "e4m3(448) / 224";
  EXPECT_EQ(make_grid(0.0f, 1.0f, args, global).scale, 36.0f / 224.0f) << "37.3 rounds to 36";
  args = {.num_bits = 8, .is_float = true, .scale_format = ScaleFormat::bf16};
  EXPECT_EQ(make_grid(0.0f, 1.0f, args).scale, static_cast<float>(bf16(1.0f / 448)));
  EXPECT_GT(make_grid(0.0f, 0.0f, args).scale, 0.0f);
}

// Whoever reads the file refuses a scale of 0 or infinity.
TEST(Task8_1_Grid, TheScaleOfTheSmallestNumbersIsAboveZero) {
  for (const float absmax : {0x1p-149f, 1e-42f, 1e-39f, 1e-36f, 1e-7f}) {
    const float global = nvfp4_global_scale(absmax);
    EXPECT_TRUE(std::isfinite(global)) << absmax;
    for (const ScaleFormat format :
         {ScaleFormat::f32, ScaleFormat::bf16, ScaleFormat::f16, ScaleFormat::e4m3}) {
      const bool is_nvfp4 = format == ScaleFormat::e4m3;
      const QuantizationArgs args = {
          .num_bits = is_nvfp4 ? 4 : 8, .is_float = is_nvfp4, .scale_format = format};
      EXPECT_GT(make_grid(-absmax, absmax, args, is_nvfp4 ? global : 1).scale, 0)
          << absmax << ", format " << static_cast<int>(format);
    }
  }
}

TEST(Task8_1_Grid, NanIsNoNumber) {
  const QuantizationArgs integers{.num_bits = 8}, floats{.num_bits = 8, .is_float = true};
  EXPECT_EQ(nearest_code(NAN, Grid{}, integers), 0.0f);
  EXPECT_TRUE(std::isnan(nearest_code(NAN, Grid{}, floats)));
}

}  // namespace
}  // namespace ladder
