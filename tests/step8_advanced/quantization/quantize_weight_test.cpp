#include "step8_advanced/quantization/numbers/quantize_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/numbers/packing.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

Tensor random_weight(int64_t n, int64_t k, std::mt19937_64& random, float deviation = 1) {
  std::normal_distribution<float> normal(0, deviation);
  const Tensor weight = Tensor::empty({n, k}, DType::f32);
  for (int64_t i = 0; i < weight.numel(); ++i) weight.data<float>()[i] = normal(random);
  return weight;
}

double squared_error(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double difference = double{a.data<float>()[i]} - b.data<float>()[i];
    sum += difference * difference;
  }
  return sum;
}

std::vector<QuantizationArgs> all_kinds() {
  std::vector<QuantizationArgs> kinds;
  for (const ScaleStrategy strategy :
       {ScaleStrategy::tensor, ScaleStrategy::channel, ScaleStrategy::group, ScaleStrategy::block}) {
    QuantizationArgs args{.strategy = strategy};
    if (strategy == ScaleStrategy::group) args.group_size = 32;
    if (strategy == ScaleStrategy::block) args.block_rows = 3, args.block_columns = 40;
    for (int bits = 2; bits <= 8; ++bits)
      for (const bool symmetric : {true, false}) {
        args.num_bits = bits;
        args.symmetric = symmetric;
        kinds.push_back(args);
      }
    args.symmetric = args.is_float = true;
    for (const int bits : {4, 8})
      for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::e4m3, ScaleFormat::e8m0}) {
        args.num_bits = bits;
        args.scale_format = format;
        kinds.push_back(args);
      }
  }
  return kinds;
}

std::string name_of(const QuantizationArgs& args) {
  return fmt::format("{}{} bits, {}, strategy {}, scale format {}", args.num_bits,
                     args.is_float ? " float" : "", args.symmetric ? "symmetric" : "asymmetric",
                     static_cast<int>(args.strategy), static_cast<int>(args.scale_format));
}

// What compressed-tensors made of the same weight: tools/goldens/make_quantization_numbers.py.
class Golden {
 public:
  Golden() : json_(load_json(testing::source_folder() / "tests/goldens/quantization_numbers.json")) {
    weight = floats(json_.at("weight"), {json_.at("rows"), json_.at("columns")});
  }

  const Json& cases() const { return json_.at("cases"); }

  static Tensor floats(const Json& bits, const Shape& shape) {
    const Tensor tensor = Tensor::empty(shape, DType::f32);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = std::bit_cast<float>(bits.at(static_cast<size_t>(i)).get<uint32_t>());
    return tensor;
  }

  static QuantizationArgs args(const Json& json) {
    QuantizationArgs args;
    args.num_bits = json.at("num_bits");
    args.is_float = json.at("type") == "float";
    args.symmetric = json.at("symmetric");
    const std::string strategy = json.at("strategy");
    args.strategy = strategy == "tensor"    ? ScaleStrategy::tensor
                    : strategy == "channel" ? ScaleStrategy::channel
                    : strategy == "block"   ? ScaleStrategy::block
                                            : ScaleStrategy::group;
    if (args.strategy == ScaleStrategy::group) args.group_size = json.at("group_size");
    if (args.strategy == ScaleStrategy::block) {
      args.block_rows = json.at("block_structure").at(0);
      args.block_columns = json.at("block_structure").at(1);
    }
    const Json& dtype = json.at("scale_dtype");
    if (dtype == "torch.bfloat16") args.scale_format = ScaleFormat::bf16;
    if (dtype == "torch.float16") args.scale_format = ScaleFormat::f16;
    if (dtype == "torch.float8_e4m3fn") args.scale_format = ScaleFormat::e4m3;
    if (dtype == "torch.uint8") args.scale_format = ScaleFormat::e8m0;
    return args;
  }

  Tensor weight;

 private:
  Json json_;
};

// The oracle's number for a row and a group of columns, whatever the strategy.
template <class T>
T of_grid(const Json& values, const QuantizationArgs& args, int64_t row, int64_t group, int64_t groups) {
  int64_t at = 0;
  if (args.strategy == ScaleStrategy::channel) at = row;
  if (args.strategy == ScaleStrategy::group) at = row * groups + group;
  if (args.strategy == ScaleStrategy::block) at = row / args.block_rows * groups + group;
  return values.at(static_cast<size_t>(at)).get<T>();
}

std::vector<int64_t> integers(const Json& json) {
  return json.get<std::vector<int64_t>>();
}

TEST(Task8_1_Rtn, ScalesAndZerosAreThoseOfCompressedTensors) {
  const Golden golden;
  for (const Json& expected : golden.cases()) {
    const QuantizationArgs args = Golden::args(expected.at("args"));
    SCOPED_TRACE(name_of(args));
    const WeightGrids grids = make_weight_grids(golden.weight, args, "w");
    const int64_t groups = grids.scales.dim(1);
    float global = 1;
    if (args.scale_format == ScaleFormat::e4m3) {
      global = std::bit_cast<float>(expected.at("global_scale").get<uint32_t>());
      EXPECT_EQ(nvfp4_global_scale(largest_absolute(golden.weight)), global);
    }
    EXPECT_EQ(grids.zeros.defined(), !args.symmetric);
    for (int64_t row = 0; row < golden.weight.dim(0); ++row)
      for (int64_t group = 0; group < groups; ++group) {
        const auto scale =
            std::bit_cast<float>(of_grid<uint32_t>(expected.at("scales"), args, row, group, groups));
        EXPECT_EQ(grids.scales.at<float>({row, group}), scale / global)
            << "row " << row << ", group " << group;
        if (grids.zeros.defined()) {
          EXPECT_EQ(grids.zeros.at<float>({row, group}),
                    of_grid<float>(expected.at("zeros"), args, row, group, groups))
              << "row " << row << ", group " << group;
        }
      }
  }
}

TEST(Task8_1_Rtn, CodesAreThoseOfCompressedTensors) {
  const Golden golden;
  for (const Json& expected : golden.cases()) {
    const QuantizationArgs args = Golden::args(expected.at("args"));
    SCOPED_TRACE(name_of(args));
    const QuantizedWeight weight = quantize_weight(golden.weight, args, "w");
    const int64_t k = weight.k;
    const auto* stored = static_cast<const uint8_t*>(weight.codes.raw());
    if (args.is_float) {
      const auto packed = integers(expected.at("packed"));
      EXPECT_EQ((std::vector<int64_t>(stored, stored + weight.codes.numel())), packed);
      continue;
    }
    const auto codes = integers(expected.at("codes"));
    for (int64_t i = 0; i < weight.n * k; ++i) {
      const int64_t row = i / k, column = i % k;
      const int64_t seen = args.num_bits <= 4
                               ? (stored[row * weight.codes.dim(1) + column / 2] >> (column % 2 * 4) & 15) - 8
                               : static_cast<int8_t>(stored[i]);
      ASSERT_EQ(seen, codes[static_cast<size_t>(i)]) << "[" << row << ", " << column << "]";
    }
  }
}

TEST(Task8_1_Pack, WordsAreThoseOfCompressedTensors) {
  const Golden golden;
  for (const Json& expected : golden.cases()) {
    const QuantizationArgs args = Golden::args(expected.at("args"));
    if (args.is_float) continue;
    SCOPED_TRACE(name_of(args));
    const auto unsigned_codes = [&](const Json& json, int64_t rows) {
      const auto values = integers(json);
      const Tensor codes = Tensor::empty({rows, static_cast<int64_t>(values.size()) / rows}, DType::u8);
      for (size_t i = 0; i < values.size(); ++i)
        codes.data<uint8_t>()[i] = static_cast<uint8_t>(values[i] - args.min_code());
      return codes;
    };
    const auto words_of = [](const Tensor& words) {
      return std::vector<int64_t>(words.data<int32_t>(), words.data<int32_t>() + words.numel());
    };
    const Tensor words = pack_rows(unsigned_codes(expected.at("codes"), golden.weight.dim(0)), args.num_bits);
    EXPECT_EQ(words_of(words), integers(expected.at("packed")));
    if (!expected.contains("packed_zeros")) continue;
    const Tensor zeros =
        pack_columns(unsigned_codes(expected.at("zeros"), golden.weight.dim(0)), args.num_bits);
    EXPECT_EQ(words_of(zeros), integers(expected.at("packed_zeros")));
  }
}

TEST(Task8_1_Rtn, EveryNumberIsTheNearestOfItsGrid) {
  std::mt19937_64 random(testing::fresh_seed());
  for (const QuantizationArgs& args : all_kinds()) {
    SCOPED_TRACE(name_of(args));
    const Tensor weight = random_weight(7, 96, random);
    const WeightGrids grids = make_weight_grids(weight, args, "w");
    const QuantizedWeight quantized = quantize_weight(weight, args, "w");
    EXPECT_EQ(quantized.num_groups(), args.strategy == ScaleStrategy::group   ? 3
                                      : args.strategy == ScaleStrategy::block ? 3
                                                                              : 1);
    const Tensor values = dequantize(quantized);
    for (int64_t row = 0; row < 7; ++row)
      for (int64_t column = 0; column < 96; ++column)
        ASSERT_EQ(values.at<float>({row, column}),
                  round_to_grid(weight.at<float>({row, column}), grids.at(row, column), args))
            << "[" << row << ", " << column << "]";
  }
}

TEST(Task8_1_Rtn, WhatShareAGridIsWhatTheStrategySays) {
  // Largest numbers 1, 2, 4, 8 in the four quarters of a 4 x 6 matrix.
  const Tensor weight = Tensor::zeros({4, 6}, DType::f32);
  weight.at<float>({0, 0}) = 1;
  weight.at<float>({1, 5}) = -2;
  weight.at<float>({2, 1}) = 4;
  weight.at<float>({3, 3}) = 8;
  const auto scales = [&](QuantizationArgs args) {
    args.num_bits = 8;
    args.is_float = true;
    const Tensor found = make_weight_grids(weight, args, "w").scales;
    std::vector<float> largest;
    for (int64_t i = 0; i < found.numel(); ++i) {
      const float scale = found.data<float>()[i];
      largest.push_back(scale == 0x1p-23f ? 0 : std::nearbyint(scale * kMaxE4M3));
    }
    return largest;
  };
  EXPECT_EQ(scales({.strategy = ScaleStrategy::tensor}), (std::vector<float>{8, 8, 8, 8}));
  EXPECT_EQ(scales({.strategy = ScaleStrategy::channel}), (std::vector<float>{1, 2, 4, 8}));
  EXPECT_EQ(scales({.strategy = ScaleStrategy::group, .group_size = 3}),
            (std::vector<float>{1, 0, 0, 2, 4, 0, 0, 8}));
  EXPECT_EQ(scales({.strategy = ScaleStrategy::block, .block_rows = 2, .block_columns = 3}),
            (std::vector<float>{1, 2, 1, 2, 4, 8, 4, 8}));
  EXPECT_EQ(scales({.strategy = ScaleStrategy::block, .block_rows = 3, .block_columns = 4}),
            (std::vector<float>{4, 2, 4, 2, 4, 2, 8, 0}))
      << "the last blocks are smaller";
}

TEST(Task8_1_Rtn, PartsOfAMergedLinearCanShareTheGlobalScale) {
  std::mt19937_64 random(testing::fresh_seed());
  const QuantizationArgs args{.num_bits = 4,
                              .is_float = true,
                              .strategy = ScaleStrategy::group,
                              .group_size = 16,
                              .scale_format = ScaleFormat::e4m3};
  const Tensor weight = random_weight(3, 32, random);
  const float global = nvfp4_global_scale(10 * largest_absolute(weight));
  const WeightGrids grids = make_weight_grids(weight, args, "w", global);
  for (int64_t i = 0; i < grids.scales.numel(); ++i) {
    const float local = grids.scales.data<float>()[i] * global;
    EXPECT_NEAR(e4m3_to_float(float_to_e4m3(local)), local, local * 1e-6f);
  }
}

TEST(Task8_1_Clipping, IsNeverWorseAndBetterWhereOneNumberStandsOut) {
  std::mt19937_64 random(testing::fresh_seed());
  for (const bool symmetric : {true, false}) {
    const QuantizationArgs args{
        .num_bits = 3, .symmetric = symmetric, .strategy = ScaleStrategy::group, .group_size = 128};
    const Tensor weight = random_weight(8, 256, random);
    const auto error = [&](const WeightGrids& grids) {
      double sum = 0;
      for (int64_t row = 0; row < 8; ++row)
        for (int64_t column = 0; column < 256; ++column) {
          const float number = weight.at<float>({row, column});
          sum += std::pow(std::fabs(round_to_grid(number, grids.at(row, column), args) - number), 2.4);
        }
      return sum;
    };
    const double whole = error(make_weight_grids(weight, args, "w"));
    const double clipped = error(make_clipped_weight_grids(weight, args, "w"));
    EXPECT_LT(clipped, 0.9 * whole) << "symmetric: " << symmetric;
  }
  // Numbers that lie on the grid are left alone.
  const QuantizationArgs args{.num_bits = 4, .symmetric = false};
  const Grid grid = make_clipped_grid(std::vector<float>{-8, 0, 1, 2, 7}, args);
  EXPECT_EQ(grid.scale, 1.0f);
}

TEST(Task8_1_Rtn, MoreBitsAndSmallerGroupsCostLess) {
  std::mt19937_64 random(testing::fresh_seed());
  const Tensor weight = random_weight(32, 256, random);
  double before = 1e9;
  for (int bits = 2; bits <= 8; ++bits) {
    const QuantizationArgs args{.num_bits = bits, .strategy = ScaleStrategy::channel};
    const double error = squared_error(dequantize(quantize_weight(weight, args, "w")), weight);
    EXPECT_LT(error, before / 2.5) << bits << " bits";
    before = error;
  }
  before = 1e9;
  for (const int64_t group : {256, 128, 64, 32, 16}) {
    const QuantizationArgs args{.num_bits = 4, .strategy = ScaleStrategy::group, .group_size = group};
    const double error = squared_error(dequantize(quantize_weight(weight, args, "w")), weight);
    EXPECT_LT(error, before) << "groups of " << group;
    before = error;
  }
}

// The table in the chapter: what rounding costs numbers that are normal, and how many bits a number takes.
TEST(Task8_1_Rtn, CostsWhatTheChapterSays) {
  const QuantizationArgs channel4{.num_bits = 4, .strategy = ScaleStrategy::channel};
  const auto groups = [](int bits, int64_t size, bool symmetric) {
    return QuantizationArgs{
        .num_bits = bits, .symmetric = symmetric, .strategy = ScaleStrategy::group, .group_size = size};
  };
  const auto floats = [](int bits, int64_t group, ScaleFormat scales) {
    return QuantizationArgs{.num_bits = bits,
                            .is_float = true,
                            .strategy = group > 0 ? ScaleStrategy::group : ScaleStrategy::channel,
                            .group_size = group,
                            .scale_format = scales};
  };
  struct Row {
    const char* name;
    QuantizationArgs args;
    bool clipped;
    double bits;  // of one number, its share of scale and zero point included
    double error;
  };
  const Row rows[] = {
      {"int8, channel", {.num_bits = 8, .strategy = ScaleStrategy::channel}, false, 8.0, 0.84},
      {"e4m3, channel", floats(8, 0, ScaleFormat::f32), false, 8.0, 2.65},
      {"MXFP8", floats(8, 32, ScaleFormat::e8m0), false, 8.25, 2.65},
      {"int4, channel", channel4, false, 4.0, 14.2},
      {"int4, groups of 128", groups(4, 128, true), false, 4.125, 11.1},
      {"int4, groups of 128, clipped", groups(4, 128, true), true, 4.125, 10.2},
      {"int4, groups of 128, asymmetric", groups(4, 128, false), false, 4.156, 10.1},
      {"int4, groups of 32", groups(4, 32, true), false, 4.5, 9.5},
      {"int4, groups of 16", groups(4, 16, true), false, 5.0, 8.7},
      {"NVFP4", floats(4, 16, ScaleFormat::e4m3), false, 4.5, 9.5},
      {"MXFP4", floats(4, 32, ScaleFormat::e8m0), false, 4.25, 11.2},
      {"int3, groups of 128", groups(3, 128, true), false, 3.125, 23.8},
      {"int3, groups of 128, clipped", groups(3, 128, true), true, 3.125, 19.7},
      {"int2, groups of 32", groups(2, 32, true), false, 2.5, 47.2},
  };
  std::mt19937_64 random(8);
  const Tensor weight = random_weight(32, 2048, random);
  const double whole = squared_error(weight, Tensor::zeros({32, 2048}, DType::f32));
  fmt::print("| weight | bits | error % |\n|---|---:|---:|\n");
  for (const Row& row : rows) {
    const WeightGrids grids = row.clipped ? make_clipped_weight_grids(weight, row.args, "w")
                                          : make_weight_grids(weight, row.args, "w");
    const double error =
        100 * std::sqrt(squared_error(dequantize(quantize_weight(weight, row.args, grids)), weight) / whole);
    fmt::print("| {} | {:.4g} | {:.2f} |\n", row.name, row.bits, error);
    EXPECT_NEAR(error, row.error, 0.05 * row.error) << row.name;
  }
}

TEST(Task8_1_Rtn, WhatCannotBeQuantizedIsRefusedByName) {
  const auto error = [](const Tensor& weight, const QuantizationArgs& args) -> std::string {
    try {
      quantize_weight(weight, args, "layers.3.down_proj");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("layers.3.down_proj"));
      return error.what();
    }
    ADD_FAILURE() << "quantized";
    return "";
  };
  const Tensor weight = Tensor::zeros({2, 640}, DType::f32);
  EXPECT_THAT(error(weight, {.strategy = ScaleStrategy::group, .group_size = 256}), HasSubstr("256"));
  EXPECT_THAT(error(weight, {.num_bits = 9}), HasSubstr("9"));
  EXPECT_THAT(error(weight, {.num_bits = 5, .is_float = true}), HasSubstr("5"));
  EXPECT_THAT(error(weight, {.is_float = true, .symmetric = false}), HasSubstr("zero point"));
  EXPECT_THAT(error(weight, {.strategy = ScaleStrategy::token}), HasSubstr("token"));
  EXPECT_THAT(error(weight, {.strategy = ScaleStrategy::block}), HasSubstr("0 x 0"));
  EXPECT_THAT(error(Tensor::zeros({2, 4}, DType::bf16), {}), HasSubstr("bf16"));
  weight.at<float>({1, 5}) = NAN;
  EXPECT_THAT(error(weight, {}), HasSubstr("[1, 5]"));
}

TEST(Task8_1_Rtn, AWeightOfZerosStaysZero) {
  for (const QuantizationArgs& args : all_kinds()) {
    const Tensor zeros = Tensor::zeros({4, 96}, DType::f32);
    EXPECT_EQ(squared_error(dequantize(quantize_weight(zeros, args, "w")), zeros), 0) << name_of(args);
  }
}

}  // namespace
}  // namespace ladder
