// Task 8.4: experts whose matrices are in codes, every row of the ladder.
#include "step8_advanced/quantization/kernels/quantized_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/kernels/weight_records.h"
#include "step8_advanced/quantization/numbers/grid.h"
#include "tests/step1_layers/moe_scene.h"
#include "tests/step8_advanced/quantization/shaped_weight.h"

namespace ladder {
namespace {

using testing::close_to;
using testing::MoeSizes;
using testing::Random;

// How a matrix of [n, k] is stored. group_size 0: a row has one scale.
struct Codes {
  WeightCodes type;
  int64_t group_size = 0, group_offset = 0;
  bool zeros = false;
};

std::string describe(const Codes& codes) {
  return fmt::format("codes {}, groups of {} from {}{}", static_cast<int>(codes.type), codes.group_size,
                     codes.group_offset, codes.zeros ? ", zeros" : "");
}

// Codes of all values, with scales that 16 bits hold and that make weights of deviation 1 / sqrt(k); `exact`: small whole numbers.
QuantizedWeight random_codes(Random& random, const Codes& codes, int64_t n, int64_t k, bool exact = false) {
  const int64_t size = codes.group_size > 0 ? codes.group_size : k;
  QuantizedWeight weight = testing::shaped_weight(codes.type, n, k, size, codes.group_offset);
  const int64_t groups = (k + codes.group_offset + size - 1) / size;
  const bool nibbles = is_nibble(codes.type),
             integers = codes.type == WeightCodes::int4 || codes.type == WeightCodes::int8;
  const double deviation = codes.type == WeightCodes::int4       ? 4.6
                           : codes.type == WeightCodes::int8     ? 74
                           : codes.type == WeightCodes::fp8_e4m3 ? 200
                                                                 : 2.9;
  weight.codes =
      Tensor::zeros({n, nibbles ? (k + 1) / 2 : k}, codes.type == WeightCodes::int8 ? DType::i8 : DType::u8);
  weight.scales = Tensor::empty({n, groups}, DType::f32);
  if (codes.zeros) weight.zeros = Tensor::empty({n, groups}, weight.codes.dtype());
  for (int64_t i = 0; i < n * groups; ++i) {
    const double scale = random.uniform(0.5, 1.5) / (deviation * std::sqrt(static_cast<double>(k)));
    weight.scales.data<float>()[i] = exact ? 1.0f : static_cast<float>(bf16(static_cast<float>(scale)));
    if (!codes.zeros) continue;
    const int64_t zero = random.integer(5, 10);
    static_cast<uint8_t*>(weight.zeros.raw())[i] =
        static_cast<uint8_t>(codes.type == WeightCodes::int4 ? zero : zero - 8);
  }
  for (int64_t row = 0; row < n; ++row)
    for (int64_t column = 0; column < k; ++column) {
      const int64_t group = (column + codes.group_offset) / size;
      int64_t zero = codes.type == WeightCodes::int4 ? 8 : 0;
      if (codes.zeros)
        zero = codes.type == WeightCodes::int4 ? weight.zeros.at<uint8_t>({row, group})
                                               : weight.zeros.at<int8_t>({row, group});
      int64_t code = 0;
      if (exact) {
        const int64_t number = random.integer(0, 3) == 0 ? random.integer(-1, 1) : 0;
        code = integers                              ? zero + number
               : codes.type == WeightCodes::fp8_e4m3 ? float_to_e4m3(static_cast<float>(number))
                                                     : float_to_e2m1(static_cast<float>(number));
      } else if (codes.type == WeightCodes::fp8_e4m3) {
        code = float_to_e4m3(static_cast<float>(random.uniform(-448, 448)));
      } else {
        code = codes.type == WeightCodes::int8 ? random.integer(-128, 127) : random.integer(0, 15);
      }
      auto* bytes = static_cast<uint8_t*>(weight.codes.raw()) + row * weight.codes.stride(0);
      if (nibbles)
        bytes[column / 2] = static_cast<uint8_t>(bytes[column / 2] | (column % 2 == 0 ? code : code << 4));
      else
        bytes[column] = static_cast<uint8_t>(code);
    }
  return weight;
}

// In one order, or in one of each expert's own.
void permute_columns(Random& random, QuantizedWeight& weight, int64_t orders = 1) {
  weight.columns = Tensor::empty({orders, weight.k}, DType::i32);
  for (int64_t i = 0; i < orders; ++i) {
    const std::span columns(weight.columns.data<int32_t>() + i * weight.k, static_cast<size_t>(weight.k));
    std::iota(columns.begin(), columns.end(), 0);
    std::ranges::shuffle(columns, random.engine());
  }
  if (orders == 1) weight.columns = weight.columns.select(0, 0);
}

// A layer in codes beside the dense one that they stand for.
struct CodedScene {
  testing::MoeScene dense;
  QuantizedWeight gate_up, down;
  std::optional<QuantizationArgs> gate_up_activations, down_activations;
  Tensor gate_up_scales, down_scales;

  CodedScene(Random& random, const MoeSizes& sizes, DType dtype, const Codes& of_gate_up,
             const Codes& of_down, bool with_holes = false, bool exact = false)
      : dense(random, sizes, dtype, with_holes),
        gate_up(random_codes(random, of_gate_up, sizes.experts * 2 * sizes.width, sizes.hidden, exact)),
        down(random_codes(random, of_down, sizes.experts * sizes.hidden, sizes.width, exact)) {
    take_matrices();
  }
  void take_matrices() {
    dense.gate_up = dequantize(gate_up).view(dense.gate_up.shape());
    dense.down = dequantize(down).view(dense.down.shape());
  }
  // Both products round what they multiply so.
  void round(Random& random, const QuantizationArgs& args) {
    gate_up_activations = down_activations = args;
    const auto scales = [&](float least) {
      const Tensor result = Tensor::empty({dense.down.dim(0)}, DType::f32);
      for (int64_t e = 0; e < result.numel(); ++e)
        result.data<float>()[e] = least * static_cast<float>(random.uniform(1, 2));
      return result;
    };
    const float largest_code = args.is_float ? 448 : 127;
    if (args.scale_format == ScaleFormat::e4m3)
      gate_up_scales = scales(600), down_scales = scales(900);  // G, of numbers up to about 4 and 3
    else if (!args.dynamic)
      gate_up_scales = scales(3 / largest_code), down_scales = scales(2 / largest_code);
    const auto rounding = [args](const Tensor& scales) {
      return [args, scales](int64_t expert, std::vector<double>& row) {
        const std::vector<float> x(row.begin(), row.end());
        const size_t size =
            args.strategy == ScaleStrategy::group ? static_cast<size_t>(args.group_size) : x.size();
        for (size_t begin = 0; begin < x.size(); begin += size) {
          const auto group = std::span(x).subspan(begin, std::min(size, x.size() - begin));
          const float stored = scales.defined() ? scales.data<float>()[expert] : 1.0f;
          const Grid grid = args.dynamic ? make_grid(group, args, stored) : Grid{stored, 0};
          for (size_t i = 0; i < group.size(); ++i)
            row[begin + i] =
                (static_cast<double>(nearest_code(group[i], grid, args)) - grid.zero) * grid.scale;
        }
      };
    };
    dense.round_x = rounding(gate_up_scales);
    dense.round_activated = rounding(down_scales);
  }

  QuantizedExpertsArgs args(const Tensor& out) const {
    return {.x = dense.x,
            .expert_ids = dense.expert_ids,
            .weights = dense.weights,
            .experts = dense.down.dim(0),
            .gate_up = {&gate_up, gate_up_activations, gate_up_scales},
            .down = {&down, down_activations, down_scales},
            .out = out};
  }

  // What the rung makes of it, or undefined where it does not take it.
  Tensor run(const OpContext& ctx, const Variant<QuantizedExpertsArgs>& rung) const {
    const Tensor out = testing::poisoned(dense.x.shape(), dense.x.dtype());
    QuantizedExpertsArgs call = args(out);
    testing::Mirror mirror(ctx);
    QuantizedWeight weights[] = {gate_up, down};
    if (rung.device == DeviceType::cuda) {
      for (QuantizedWeight& weight : weights) {
        if (fits_records(weight)) weight = in_records(weight);
        for (Tensor* tensor :
             {&weight.codes, &weight.scales, &weight.zeros, &weight.columns, &weight.records.bytes})
          *tensor = mirror(*tensor);
      }
      call.gate_up.weight = &weights[0];
      call.down.weight = &weights[1];
      for (Tensor* tensor : {&call.x, &call.expert_ids, &call.weights, &call.gate_up.input_scales,
                             &call.down.input_scales, &call.out})
        *tensor = mirror(*tensor);
    }
    if (!can_run(rung, ctx, call)) return {};
    quantized_experts(ctx, call);
    if (rung.device == DeviceType::cuda) mirror.copy_back();
    return out;
  }
};

// The layer in double precision with all that a rung says it rounds: on a GPU what was rounded to codes is a number of x's dtype, and so is each
// weight that is written out or scaled before the product. What is left are the roundings of the dense experts, with their bound.
testing::MoeScene as_computed(const CodedScene& scene, const Variant<QuantizedExpertsArgs>& rung) {
  testing::MoeScene dense = scene.dense;
  const DType dtype = dense.x.dtype();
  if (rung.device == DeviceType::cpu) return dense;
  if (rung.name == "written_out" || rung.name == "grouped") {
    dense.gate_up = dense.gate_up.to(dtype);
    dense.down = dense.down.to(dtype);
  }
  for (auto* rounds : {&dense.round_x, &dense.round_activated})
    if (*rounds)
      *rounds = [codes_of = *rounds, dtype](int64_t expert, std::vector<double>& row) {
        codes_of(expert, row);
        const std::vector<float> values(row.begin(), row.end());
        row = testing::to_double(Tensor::from<float>(values, {std::ssize(values)}).to(dtype));
      };
  return dense;
}

// Activated values that lie between two codes may get either one, since a sum in float is not that in double: `flipped` is what one such
// code is worth of its row at most.
::testing::AssertionResult is_within_bound(const CodedScene& scene, const Variant<QuantizedExpertsArgs>& rung,
                                           const Tensor& out, double flipped = 0) {
  const testing::MoeScene dense = as_computed(scene, rung);
  const double bound = testing::row_bound(out.dtype(), dense.x.dim(1)) + flipped;
  return close_to(testing::to_double(out), dense.expected_near(out), out.dim(1), bound,
                  out.dtype() == DType::f16 ? 0x1p-25 : 0);
}

constexpr WeightCodes kInt4 = WeightCodes::int4, kInt8 = WeightCodes::int8, kFp8 = WeightCodes::fp8_e4m3,
                      kFp4 = WeightCodes::fp4_e2m1;

// Groups of a quarter of a record to a whole row, some that no record has, ragged at both ends as tensor parallelism cuts them.
constexpr Codes kCodes[] = {{kInt4, 32},
                            {kInt4, 64, 0, true},
                            {kInt4, 128},
                            {kInt4, 128, 64, true},
                            {kInt4},
                            {kInt4, 16, 8},
                            {kInt8},
                            {kInt8, 128, 0, true},
                            {kInt8, 32, 0, true},
                            {kFp8},
                            {kFp8, 128},
                            {kFp8, 128, 64},
                            {kFp4, 16},
                            {kFp4, 32}};

// One token; tiles that are just full and one more; several for an expert; widths of no tile; rings that turn more than once; more
// tokens than a tile of the largest rung.
constexpr MoeSizes kSizes[] = {{1, 2, 4, 128, 64},   {1, 8, 16, 272, 128}, {3, 2, 5, 40, 24},
                               {8, 4, 4, 64, 144},   {9, 2, 8, 192, 64},   {17, 1, 3, 64, 64},
                               {33, 3, 9, 136, 192}, {5, 2, 4, 4352, 48},  {70, 2, 2, 144, 80},
                               {130, 1, 1, 64, 64},  {300, 2, 3, 128, 144}};

RUNG_TEST(Task8_4_Experts, EqualDoublePrecision, "quantized_experts", quantized_experts_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  size_t turn = 0;
  for (const MoeSizes& sizes : kSizes)
    for (const Codes& codes : kCodes) {
      // Each with two of the three types, and with another one's codes for down.
      const Codes& of_down = kCodes[(turn / 3) % std::size(kCodes)];
      if (sizes.hidden > 4000 && turn % 3 != 0 && ++turn) continue;
      const DType dtype = std::array{DType::bf16, DType::f16, DType::f32}[turn++ % 3];
      CodedScene scene(random, sizes, dtype, codes, of_down);
      if (turn % 5 == 0) {
        permute_columns(random, scene.gate_up);
        permute_columns(random, scene.down);
        scene.take_matrices();
      }
      const Tensor out = scene.run(ctx, rung);
      if (!out.defined()) continue;
      ++served;
      EXPECT_TRUE(is_within_bound(scene, rung, out))
          << scene.dense.x.str() << ", " << describe(codes) << ", down " << describe(of_down) << ", "
          << scene.dense.gate_up.str();
    }
  EXPECT_GT(served, 4);
}

// As GPTQ leaves them in act-order: what goes into an expert is its own. Of gate and up alone, of down alone, of both.
RUNG_TEST(Task8_4_Experts, HaveTheirColumnsInOrdersOfTheirOwn, "quantized_experts",
          quantized_experts_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const MoeSizes& sizes : {MoeSizes{1, 2, 4, 128, 64}, MoeSizes{9, 2, 8, 192, 64},
                                MoeSizes{70, 2, 2, 144, 80}, MoeSizes{130, 2, 3, 128, 192}})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int which : {1, 2, 3})
        for (const bool rounds : {false, true}) {
          CodedScene scene(random, sizes, dtype, {kInt4, 32}, {kInt4, 64, 0, true}, true);
          if ((which & 1) != 0) permute_columns(random, scene.gate_up, sizes.experts);
          if ((which & 2) != 0) permute_columns(random, scene.down, sizes.experts);
          scene.take_matrices();
          if (rounds) {
            scene.round(random, {.strategy = ScaleStrategy::token, .dynamic = true});
            scene.down_activations.reset();
            scene.dense.round_activated = {};
          }
          const Tensor out = scene.run(ctx, rung);
          if (!out.defined()) continue;
          ++served;
          EXPECT_TRUE(is_within_bound(scene, rung, out))
              << scene.dense.x.str() << ", matrices " << which << (rounds ? ", rounded" : "");
        }
  if (rung.name == "written_out")
    EXPECT_EQ(served, 0) << "its copies have one order";
  else
    EXPECT_GT(served, 2);
}

std::vector<std::pair<std::string, QuantizationArgs>> schemes() {
  const QuantizationArgs token{.strategy = ScaleStrategy::token, .dynamic = true};
  std::vector<std::pair<std::string, QuantizationArgs>> all;
  all.emplace_back("int8 token", token);
  all.emplace_back("int8 asymmetric token", token).second.symmetric = false;
  all.emplace_back("fp8 token", token).second.is_float = true;
  all.emplace_back("fp8 block", token);
  all.back().second.is_float = true;
  all.back().second.strategy = ScaleStrategy::group;
  all.back().second.group_size = 128;
  all.emplace_back("nvfp4", all.back().second).second.num_bits = 4;
  all.back().second.group_size = 16;
  all.back().second.scale_format = ScaleFormat::e4m3;
  all.emplace_back("int8 static", QuantizationArgs{.strategy = ScaleStrategy::tensor});
  all.emplace_back("fp8 static", QuantizationArgs{.is_float = true, .strategy = ScaleStrategy::tensor});
  return all;
}

RUNG_TEST(Task8_4_Experts, RoundWhatTheyMultiply, "quantized_experts",
          testing::rungs_where(quantized_experts_variants(),
                               [](const auto& rung) { return rung.name != "written_out"; })) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const auto& [name, args] : schemes())
    for (const MoeSizes& sizes : {MoeSizes{1, 2, 4, 128, 64}, MoeSizes{33, 3, 9, 272, 192}}) {
      const Codes codes{args.is_float ? kFp8 : kInt8, args.strategy == ScaleStrategy::group ? 128 : 0};
      // One code more or less: of integers a step of 127 in the largest, of floats the gap to the next number.
      const double flipped = !args.is_float ? 1.0 / 127 : args.num_bits == 8 ? 1.0 / 8 : 1.0 / 2;
      for (const DType dtype : {DType::bf16, DType::f16})
        for (const bool both : {false, true}) {
          CodedScene scene(random, sizes, dtype, codes, codes);
          scene.round(random, args);
          if (!both) {
            scene.down_activations.reset();
            scene.down_scales = {};
            scene.dense.round_activated = {};
          }
          const Tensor out = scene.run(ctx, rung);
          if (!out.defined()) continue;
          ++served;
          EXPECT_TRUE(is_within_bound(scene, rung, out, both ? flipped : 0))
              << name << (both ? ", both products, " : ", ") << scene.dense.x.str();
        }
    }
  EXPECT_GT(served, 0);
}

// gate is 48, which SiLU leaves alone; all other values are small whole numbers, and a token's weights powers of two.
RUNG_TEST(Task8_4_Experts, AreExactWhereTheSumsAre, "quantized_experts", quantized_experts_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const Codes& codes : kCodes)
    for (const MoeSizes& sizes : {MoeSizes{4, 2, 5, 64, 64}, MoeSizes{50, 2, 3, 128, 64}}) {
      const DType dtype = random.one_of<DType>({DType::bf16, DType::f16});
      CodedScene scene(random, sizes, DType::f32, codes, codes, true, true);
      scene.dense.x = random.exact(scene.dense.x.shape(), DType::f32, 1);
      for (int64_t t = 0; t < sizes.tokens; ++t) scene.dense.x.at<float>({t, 0}) = 1;
      // Rows of gates: 3 * 16 in column 0, nothing beside it.
      const QuantizedWeight& weight = scene.gate_up;
      for (int64_t row = 0; row < weight.n; ++row) {
        if (row / sizes.width % 2 != 0) continue;
        for (int64_t group = 0; group < weight.num_groups(); ++group)
          weight.scales.at<float>({row, group}) = group == 0 ? 16.0f : 1.0f;
        auto* bytes = static_cast<uint8_t*>(weight.codes.raw()) + row * weight.codes.stride(0);
        const int64_t group_of_last = weight.num_groups();
        for (int64_t column = 0; column < weight.k; ++column) {
          const int64_t group =
              std::min((column + codes.group_offset) / weight.group_size, group_of_last - 1);
          int64_t zero = codes.type == kInt4 ? 8 : 0;
          if (codes.zeros)
            zero = codes.type == kInt4 ? weight.zeros.at<uint8_t>({row, group})
                                       : weight.zeros.at<int8_t>({row, group});
          const float number = column == 0 ? 3 : 0;
          const int64_t code = codes.type == kFp8   ? float_to_e4m3(number)
                               : codes.type == kFp4 ? float_to_e2m1(number)
                                                    : zero + static_cast<int64_t>(number);
          if (is_nibble(codes.type)) {
            uint8_t& byte = bytes[column / 2];
            byte = static_cast<uint8_t>(column % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
          } else {
            bytes[column] = static_cast<uint8_t>(code);
          }
        }
      }
      for (int64_t i = 0; i < scene.dense.weights.numel(); ++i)
        scene.dense.weights.data<float>()[i] = std::exp2(static_cast<float>(random.integer(-2, 1)));
      scene.take_matrices();
      const std::vector<double> exact = scene.dense.expected();
      const Tensor expected = Tensor::empty(scene.dense.x.shape(), DType::f32);
      std::copy(exact.begin(), exact.end(), expected.data<float>());
      scene.dense.x = scene.dense.x.to(dtype);
      const Tensor out = scene.run(ctx, rung);
      if (!out.defined()) continue;
      ++served;
      EXPECT_EQ(testing::to_double(out), testing::to_double(expected.to(dtype))) << describe(codes);
    }
  EXPECT_GT(served, 4);
}

RUNG_TEST(Task8_4_Experts, MayHaveNoTokensOrAllOfThem, "quantized_experts", quantized_experts_variants()) {
  int served = 0;
  for (const auto& [tokens, expert] : {std::pair<int64_t, int32_t>{1, 2}, {19, 0}, {150, 5}}) {
    Random random;
    SCOPED_TRACE(random.describe());
    CodedScene scene(random, {tokens, 1, 6, 128, 64}, DType::bf16, {kInt4, 32}, {kInt4, 32});
    std::fill_n(scene.dense.expert_ids.data<int32_t>(), tokens, expert);
    const Tensor out = scene.run(ctx, rung);
    if (!out.defined()) continue;
    ++served;
    EXPECT_TRUE(is_within_bound(scene, rung, out)) << tokens << " tokens of expert " << expert;
  }
  EXPECT_GT(served, 0);
}

RUNG_TEST(Task8_4_Experts, AddNothingWhereThereIsNone, "quantized_experts", quantized_experts_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const int64_t tokens : {1, 6, 60}) {
    CodedScene scene(random, {tokens, 3, 7, 64, 128}, DType::bf16, {kInt4, 64, 0, true}, {kFp8}, true);
    for (int64_t j = 0; j < 3; ++j) scene.dense.expert_ids.at<int32_t>({tokens / 2, j}) = -1;
    for (int64_t i = 0; i < scene.dense.weights.numel(); ++i)
      if (scene.dense.expert_ids.data<int32_t>()[i] < 0) scene.dense.weights.data<float>()[i] = NAN;
    const Tensor out = scene.run(ctx, rung);
    if (!out.defined()) continue;
    ++served;
    EXPECT_TRUE(is_within_bound(scene, rung, out));
    EXPECT_EQ(testing::to_double(out.narrow(0, tokens / 2, 1).clone()), std::vector<double>(64, 0.0));
  }
  EXPECT_GT(served, 0);
}

TEST(Task8_4_ExpertsErrors, NameWhatDoesNotFit) {
  Random random;
  const CodedScene good(random, {3, 2, 4, 32, 16}, DType::f32, {kInt8}, {kInt8});
  const auto error_of = [&](const std::function<void(QuantizedExpertsArgs&)>& change) -> std::string {
    QuantizedExpertsArgs args = good.args(testing::poisoned({3, 32}, DType::f32));
    change(args);
    try {
      quantized_experts({}, args);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_THAT(error_of([](auto& args) { args.experts = 3; }), HasSubstr("gate_up of 3 experts"));
  EXPECT_THAT(error_of([](auto& args) { args.down.weight = args.gate_up.weight; }), HasSubstr("down of 4"));
  EXPECT_THAT(error_of([](auto& args) {
                args.weights = Tensor::zeros({3, 1}, DType::f32);
              }),
              HasSubstr("weights"));
  EXPECT_THAT(error_of([](auto& args) { args.down.activations = QuantizationArgs{}; }),
              HasSubstr("input_scales"));
  EXPECT_THAT(error_of([](auto& args) {
                args.expert_ids = Tensor::zeros({3, 2}, DType::i64);
              }),
              HasSubstr("expert_ids"));
}

}  // namespace
}  // namespace ladder
