// Task 8.4: the product with a quantized weight, every row of its ladder.
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/weight_records.h"
#include "step8_advanced/quantization/numbers/grid.h"
#include "tests/step8_advanced/quantization/shaped_weight.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using testing::bitwise_equal;
using testing::close_to;
using testing::poisoned;
using testing::Random;
using testing::shaped_weight;

constexpr WeightCodes kTypes[] = {WeightCodes::int4, WeightCodes::int8, WeightCodes::fp8_e4m3,
                                  WeightCodes::fp4_e2m1};
const char* name_of(WeightCodes type) {
  return type == WeightCodes::int4       ? "int4"
         : type == WeightCodes::int8     ? "int8"
         : type == WeightCodes::fp8_e4m3 ? "fp8"
                                         : "fp4";
}

struct Problem {
  int64_t m, n, k, group_size, group_offset;
};
// Odd sizes, ones, and sizes around words (4, 8), blocks (32 to 128), tiles (4 x 4, 6 x 4, 16) and chunks (1024, 4096); groups
// of every kind: whole rows, ragged at both ends, not of whole words.
constexpr Problem kProblems[] = {{1, 1, 1, 1, 0},        {1, 5, 3, 3, 0},        {2, 3, 17, 17, 0},
                                 {3, 49, 64, 16, 8},     {5, 7, 100, 8, 0},      {4, 33, 130, 32, 24},
                                 {16, 20, 257, 128, 64}, {17, 19, 300, 64, 0},   {7, 50, 129, 129, 0},
                                 {1, 64, 1024, 128, 0},  {2, 9, 4200, 4200, 0},  {40, 12, 320, 128, 64},
                                 {3, 6, 30, 5, 2},       {6, 37, 520, 520, 0},   {33, 50, 1300, 104, 96},
                                 {9, 101, 70, 24, 16},   {8, 18, 2500, 1024, 0}, {13, 4, 127, 127, 100}};

// Codes of any value; `positive`: so that no weight is negative, and `exact`: small whole numbers with scales of powers of two.
QuantizedWeight random_weight(Random& random, WeightCodes type, const Problem& p, bool zeros,
                              bool positive = false, bool exact = false) {
  const bool nibbles = is_nibble(type);
  const int64_t groups = (p.k + p.group_offset + p.group_size - 1) / p.group_size;
  QuantizedWeight weight = shaped_weight(type, p.n, p.k, p.group_size, p.group_offset);
  weight.codes =
      Tensor::zeros({p.n, nibbles ? (p.k + 1) / 2 : p.k}, type == WeightCodes::int8 ? DType::i8 : DType::u8);
  weight.scales = Tensor::empty({p.n, groups}, DType::f32);
  if (zeros) weight.zeros = Tensor::empty({p.n, groups}, weight.codes.dtype());
  for (int64_t row = 0; row < p.n; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      weight.scales.at<float>({row, group}) = exact
                                                  ? std::ldexp(1.0f, static_cast<int>(random.integer(-1, 1)))
                                                  : static_cast<float>(random.uniform(0.01, 0.1));
      if (zeros && type == WeightCodes::int4)
        weight.zeros.at<uint8_t>({row, group}) = static_cast<uint8_t>(random.integer(0, 12));
      if (zeros && type == WeightCodes::int8)
        weight.zeros.at<int8_t>({row, group}) = static_cast<int8_t>(random.integer(-128, 100));
    }
    for (int64_t k = 0; k < p.k; ++k) {
      const int64_t group = (k + p.group_offset) / p.group_size;
      int64_t code = 0;
      if (type == WeightCodes::int4) {
        const int64_t zero = zeros ? weight.zeros.at<uint8_t>({row, group}) : 8;
        code = random.integer(positive ? zero : 0, exact ? std::min<int64_t>(zero + 3, 15) : 15);
      } else if (type == WeightCodes::int8) {
        const int64_t zero = zeros ? weight.zeros.at<int8_t>({row, group}) : 0;
        code = random.integer(positive ? zero
                              : exact  ? std::max<int64_t>(zero - 3, -128)
                                       : -128,
                              exact ? zero + 3 : 127);
      } else if (type == WeightCodes::fp8_e4m3) {
        const auto any = static_cast<float>(random.uniform(positive ? 0 : -448, 448));
        code = exact ? float_to_e4m3(static_cast<float>(random.integer(-3, 3)))
                     : float_to_e4m3(random.integer(0, 3) == 0 ? any * 0x1p-15f : any);
      } else {
        code = exact ? float_to_e2m1(static_cast<float>(random.integer(-3, 3)))
                     : random.integer(0, positive ? 7 : 15);
      }
      auto* bytes = static_cast<uint8_t*>(weight.codes.raw()) + row * weight.codes.stride(0);
      if (nibbles)
        bytes[k / 2] = static_cast<uint8_t>(bytes[k / 2] | (k % 2 == 0 ? code : code << 4));
      else
        bytes[k] = static_cast<uint8_t>(code);
    }
  }
  return weight;
}

void permute_columns(Random& random, QuantizedWeight& weight) {
  weight.columns = Tensor::empty({weight.k}, DType::i32);
  const std::span columns(weight.columns.data<int32_t>(), static_cast<size_t>(weight.k));
  std::iota(columns.begin(), columns.end(), 0);
  std::ranges::shuffle(columns, random.engine());
}

double weight_at(const QuantizedWeight& weight, int64_t row, int64_t k) {
  const int64_t group = (k + weight.group_offset) / weight.group_size;
  const double scale = weight.scales.at<float>({row, group});
  const auto* bytes = static_cast<const uint8_t*>(weight.codes.raw()) + row * weight.codes.stride(0);
  const int nibble = is_nibble(weight.type) ? bytes[k / 2] >> (k % 2 * 4) & 15 : 0;
  switch (weight.type) {
    case WeightCodes::int4:
      return (nibble - (weight.zeros.defined() ? weight.zeros.at<uint8_t>({row, group}) : 8)) * scale;
    case WeightCodes::int8:
      return (static_cast<int8_t>(bytes[k]) -
              (weight.zeros.defined() ? weight.zeros.at<int8_t>({row, group}) : 0)) *
             scale;
    case WeightCodes::fp8_e4m3:
      return static_cast<double>(e4m3_to_float(bytes[k])) * scale;
    case WeightCodes::fp4_e2m1:
      return static_cast<double>(e2m1_to_float(static_cast<uint8_t>(nibble))) * scale;
  }
  return 0;
}

// One row of x as the scheme rounds it.
std::vector<double> rounded(std::vector<double> row, const QuantizedMatmulArgs& args) {
  if (!args.activations) return row;
  const QuantizationArgs& scheme = *args.activations;
  const std::vector<float> x(row.begin(), row.end());
  const size_t size =
      scheme.strategy == ScaleStrategy::group ? static_cast<size_t>(scheme.group_size) : x.size();
  for (size_t begin = 0; begin < x.size(); begin += size) {
    const auto group = std::span(x).subspan(begin, std::min(size, x.size() - begin));
    const Grid grid = scheme.dynamic ? make_grid(group, scheme, args.input_scale) : Grid{args.input_scale, 0};
    for (size_t i = 0; i < group.size(); ++i)
      row[begin + i] = (static_cast<double>(nearest_code(group[i], grid, scheme)) - grid.zero) * grid.scale;
  }
  return row;
}

std::vector<double> reference(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  const auto x = testing::to_double(args.x);
  const auto bias = args.bias.defined() ? testing::to_double(args.bias) : std::vector<double>();
  std::vector<double> dense(static_cast<size_t>(weight.n * weight.k));
  for (int64_t j = 0; j < weight.n; ++j)
    for (int64_t k = 0; k < weight.k; ++k)
      dense[static_cast<size_t>(j * weight.k + k)] = weight_at(weight, j, k);
  std::vector<double> out;
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    const auto from = x.begin() + i * weight.k;
    const std::vector<double> row = rounded({from, from + weight.k}, args);
    for (int64_t j = 0; j < weight.n; ++j) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(j)];
      for (int64_t k = 0; k < weight.k; ++k)
        sum += row[static_cast<size_t>(weight.columns.defined() ? weight.columns.data<int32_t>()[k] : k)] *
               dense[static_cast<size_t>(j * weight.k + k)];
      out.push_back(sum);
    }
  }
  return out;
}

std::optional<QuantizationArgs> activations(std::string_view name) {
  QuantizationArgs args{.strategy = ScaleStrategy::token, .dynamic = true};
  if (name == "none") return std::nullopt;
  if (name == "int8 asymmetric token") args.symmetric = false;
  if (name == "int8 static" || name == "fp8 static") {
    args.strategy = ScaleStrategy::tensor;
    args.dynamic = false;
  }
  args.is_float = name.starts_with("fp") || name == "nvfp4";
  if (name == "int4 token" || name == "fp4 group") args.num_bits = 4;
  if (name.ends_with("group")) {
    args.strategy = ScaleStrategy::group;
    args.group_size = 32;
    args.scale_format = ScaleFormat::e8m0;
  }
  if (name == "nvfp4") {
    args.num_bits = 4;
    args.strategy = ScaleStrategy::group;
    args.group_size = 16;
    args.scale_format = ScaleFormat::e4m3;
  }
  if (name == "fp8 block") {
    args.strategy = ScaleStrategy::group;
    args.group_size = 128;
  }
  return args;
}
constexpr std::string_view kActivations[] = {"none",        "int8 token", "int8 asymmetric token",
                                             "int8 static", "int4 token", "fp8 token",
                                             "fp8 static",  "fp8 group",  "fp4 group",
                                             "fp8 block",   "nvfp4"};

// On a GPU, of codes on both sides; of a weight in records alone.
bool takes_codes(const Variant<QuantizedMatmulArgs>& rung) {
  return rung.name.ends_with("_8bit");
}
bool takes_records(const Variant<QuantizedMatmulArgs>& rung) {
  return rung.name == "rows_stream" || rung.name == "wgmma";
}

// A call of a rung, of operands in the CPU's memory.
class RungCall {
 public:
  RungCall(const OpContext& ctx, const Variant<QuantizedMatmulArgs>& rung, const QuantizedMatmulArgs& args)
      : ctx_(ctx), rung_(rung), args_(args), weight_(*args.weight), mirror_(ctx) {
    if (rung.device == DeviceType::cpu) return;
    // Of the two forms of a weight on a GPU two rungs take records and those of 8-bit codes none; the other one takes turns.
    if (!takes_codes(rung) && fits_records(weight_) && (takes_records(rung) || weight_.n % 2 == 0))
      weight_ = in_records(weight_);
    for (Tensor* tensor :
         {&weight_.codes, &weight_.scales, &weight_.zeros, &weight_.columns, &weight_.records.bytes})
      *tensor = mirror_(*tensor);
    for (Tensor* tensor : {&args_.x, &args_.bias, &args_.out}) *tensor = mirror_(*tensor);
    args_.weight = &weight_;
  }
  RungCall(const RungCall&) = delete;

  const QuantizedMatmulArgs& args() const { return args_; }
  bool run() {
    if (!can_run(rung_, ctx_, args_)) return false;
    rung_.run(ctx_, args_);
    if (rung_.device != DeviceType::cpu) mirror_.copy_back();
    return true;
  }

 private:
  const OpContext& ctx_;
  const Variant<QuantizedMatmulArgs>& rung_;
  QuantizedMatmulArgs args_;
  QuantizedWeight weight_;
  testing::Mirror mirror_;
};

// False where the rung does not take the arguments.
bool run(const OpContext& ctx, const Variant<QuantizedMatmulArgs>& rung, const QuantizedMatmulArgs& args) {
  return RungCall(ctx, rung, args).run();
}

struct Case {
  std::string name;
  QuantizedWeight weight;
  QuantizedMatmulArgs args;  // weight and out are put in by run()
  std::vector<double> expected;

  // The rung's result, or undefined where it does not take the case.
  Tensor run(const OpContext& ctx, const Variant<QuantizedMatmulArgs>& rung, DType out) const {
    QuantizedMatmulArgs call = args;
    call.weight = &weight;
    call.out = poisoned({args.x.dim(0), weight.n}, out);
    return ladder::run(ctx, rung, call) ? call.out : Tensor();
  }
  void expect() {
    args.weight = &weight;
    expected = reference(args);
  }
};

// A GPU's rungs round rounded activations to x's dtype, so there its bound holds for a float out too; and of the weight that is
// written out every element, which may add up where terms cancel (zero points far from the middle).
::testing::AssertionResult is_within_bound(const Variant<QuantizedMatmulArgs>& rung, const Case& one,
                                           const Tensor& out) {
  if (rung.device == DeviceType::cpu) return close_to(out, one.expected, one.weight.k);
  const double bound = testing::row_bound(one.args.x.dtype(), one.weight.k) *
                       (rung.name == "rows_stream" && !one.args.activations ? 1 : 4);
  return close_to(testing::to_double(out), one.expected, out.dim(1), bound,
                  out.dtype() == DType::f16 ? 0x1p-25 : 0);
}

// Every type of codes, problem and scheme of activations, two of the three with each other.
const std::vector<Case>& cases_of_any_numbers(Random& random) {
  static const std::vector<Case> cases = [&] {
    std::vector<Case> made;
    size_t problem = 0;
    for (const Problem& p : kProblems) {
      ++problem;
      for (size_t type_index = 0; type_index < std::size(kTypes); ++type_index)
        for (size_t scheme_index = 0; scheme_index < std::size(kActivations); ++scheme_index) {
          const std::string_view scheme = kActivations[scheme_index];
          if (scheme != "none" && (problem + type_index + scheme_index) % 3 != 0) continue;
          const WeightCodes type = kTypes[type_index];
          const DType dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
          const bool zeros =
              (type == WeightCodes::int4 || type == WeightCodes::int8) && random.integer(0, 1) == 0;
          const bool few = p.n < 8;  // a sum whose terms nearly cancel has no relative bound
          Case one;
          one.weight = random_weight(random, type, p, zeros, few);
          one.args.x = random.normal({p.m, p.k}, dtype);
          if (p.n % 2 == 1) one.args.bias = random.normal({p.n}, dtype);
          if (few) testing::take_magnitudes(one.args.x);
          if (few && one.args.bias.defined()) testing::take_magnitudes(one.args.bias);
          if (random.integer(0, 3) == 0) permute_columns(random, one.weight);
          one.args.activations = activations(scheme);
          one.args.input_scale = scheme == "nvfp4"                                        ? 600.0f
                                 : one.args.activations && one.args.activations->is_float ? 0.005f
                                                                                          : 0.02f;
          one.name =
              fmt::format("{} x {} [{}, {}] groups of {} from {}, {}{}{}", one.args.x.str(), name_of(type),
                          p.n, p.k, p.group_size, p.group_offset, scheme, zeros ? ", zeros" : "",
                          one.weight.columns.defined() ? ", columns permuted" : "");
          one.expect();
          made.push_back(std::move(one));
        }
    }
    return made;
  }();
  return cases;
}

RUNG_TEST(Task8_4_QuantizedMatmul, IsWithinTheBoundOfDoublePrecision, "quantized_matmul",
          quantized_matmul_variants()) {
  static Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const Case& one : cases_of_any_numbers(random))
    for (const DType dtype : {DType::f32, one.args.x.dtype()}) {
      const Tensor out = one.run(ctx, rung, dtype);
      if (!out.defined()) continue;
      ++served;
      ASSERT_TRUE(is_within_bound(rung, one, out)) << one.name << " to " << dtype_name(dtype);
    }
  // Which have problems of their own below; scales of any f32 keep 4 bits out of records.
  EXPECT_TRUE(served > 0 || takes_codes(rung) || rung.name == "wgmma");
}

std::vector<Variant<QuantizedMatmulArgs>> rungs_of_unrounded_x() {
  return testing::rungs_where(quantized_matmul_variants(), [](const auto& rung) {
    return rung.device == DeviceType::cuda && !takes_codes(rung);
  });
}
std::vector<Variant<QuantizedMatmulArgs>> rungs_of_8_bit_codes() {
  return testing::rungs_where(quantized_matmul_variants(), takes_codes);
}

// Blocks with several groups of tiles and with none, warps without columns, rings that turn many times, every number of rows
// of x up to two passes, groups of a quarter of a record to several records.
RUNG_TEST(Task8_4_OnAGpu, IsWithinTheBoundOfDoublePrecision, "quantized_matmul", rungs_of_unrounded_x()) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Problem> problems = {{2, 8600, 256, 128, 0},  {5, 40, 14336, 128, 0}, {9, 2200, 1024, 64, 64},
                                   {16, 100, 2000, 32, 32}, {4, 30, 1152, 256, 0},  {64, 33, 640, 128, 0}};
  for (int64_t m = 1; m <= 18; ++m) problems.push_back({m, 50, 520, 520, 0});
  int served = 0;
  for (const Problem& p : problems)
    for (const WeightCodes type : kTypes)
      for (const DType dtype : {DType::bf16, DType::f16}) {
        const bool integers = type == WeightCodes::int4 || type == WeightCodes::int8;
        Case one;
        one.weight = random_weight(random, type, p, integers && random.integer(0, 1) == 0);
        const auto scales = random.one_of<DType>({DType::bf16, DType::f16});
        if (type == WeightCodes::int4) one.weight.scales = one.weight.scales.to(scales).to(DType::f32);
        if (random.integer(0, 3) == 0) permute_columns(random, one.weight);
        one.args.x = random.normal({p.m, p.k}, dtype);
        if (random.integer(0, 1) == 0) one.args.bias = random.normal({p.n}, dtype);
        one.expect();
        for (const DType to : {DType::f32, dtype}) {
          const Tensor out = one.run(ctx, rung, to);
          if (!out.defined()) continue;
          ++served;
          ASSERT_TRUE(is_within_bound(rung, one, out)) << fmt::format(
              "{} x {} [{}, {}] groups of {} from {} to {}, scales in {}", one.args.x.str(), name_of(type),
              p.n, p.k, p.group_size, p.group_offset, dtype_name(to), dtype_name(scales));
        }
      }
  EXPECT_GT(served, 0);
}

// Of an H100's or H200's 132 multiprocessors: tiles of each shape, alone and shared out by two blocks, several for a block, and such as
// end within x and the weight.
RUNG_TEST(Task8_4_OnAGpu, ManyRowsInTilesOfEveryShape, "quantized_matmul",
          testing::rungs_where(quantized_matmul_variants(),
                               [](const auto& rung) { return rung.name == "wgmma"; })) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const Problem& p :
       {Problem{40, 200, 384, 128, 0}, Problem{64, 72, 2048, 2048, 0}, Problem{120, 2564, 2048, 256, 0},
        Problem{40, 8600, 128, 128, 0}, Problem{121, 5000, 128, 128, 0}, Problem{128, 8616, 128, 128, 0},
        Problem{250, 8600, 128, 128, 0}, Problem{300, 9004, 64, 64, 0}, Problem{600, 1100, 128, 128, 0},
        Problem{2048, 200, 192, 192, 0}})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Case one;
      one.weight = random_weight(random, WeightCodes::int4, p, random.integer(0, 1) == 0);
      one.weight.scales = one.weight.scales.to(DType::f16).to(DType::f32);
      one.args.x = random.normal({p.m, p.k}, dtype);
      if (random.integer(0, 1) == 0) one.args.bias = random.normal({p.n}, dtype);
      one.expect();
      for (const DType to : {DType::f32, dtype}) {
        const Tensor out = one.run(ctx, rung, to);
        ASSERT_TRUE(out.defined());
        ASSERT_TRUE(is_within_bound(rung, one, out))
            << fmt::format("{} [{}, {}] to {}", one.args.x.str(), p.n, p.k, dtype_name(to));
      }
    }
}

// For many rows: every class of the library's kernels, more columns than a block's threads, sums in several pieces. For few: blocks
// with several groups of tiles and with none, large tiles and such that blocks share out, one small tile a block (of 4225 to 8448
// columns, on 132 multiprocessors), warps without columns, rings that turn many times, every number of rows.
std::vector<Problem> problems_of_8_bit_codes() {
  std::vector<Problem> problems = {
      {1, 16, 16, 16, 0},       {2, 48, 272, 272, 0},     {17, 1040, 528, 528, 0}, {33, 64, 4112, 4112, 0},
      {130, 80, 160, 160, 0},   {300, 32768, 32, 32, 0},  {3, 8600, 272, 272, 0},  {5, 40, 14336, 14336, 0},
      {9, 9001, 1040, 1040, 0}, {32, 17000, 96, 96, 0},   {47, 8512, 144, 144, 0}, {16, 6144, 528, 528, 0},
      {29, 8200, 400, 400, 0},  {60, 4500, 272, 272, 0},  {1, 100, 4096, 4096, 0}, {2, 8600, 1024, 1024, 0},
      {4, 4300, 2048, 2048, 0}, {8, 40, 14336, 14336, 0}, {2, 70, 8192, 8192, 0},  {13, 9001, 512, 512, 0}};
  for (int64_t m = 1; m <= 33; ++m) problems.push_back({m, 50, 528, 528, 0});
  for (int64_t m = 1; m <= 17; ++m) problems.push_back({m, 50, 512, 512, 0});
  return problems;
}

Case case_of_8_bit_codes(Random& random, const Problem& p, WeightCodes type, std::string_view scheme,
                         DType dtype, bool bias) {
  Case one;
  one.weight = random_weight(random, type, p, false);
  one.args.x = random.normal({p.m, p.k}, dtype);
  if (bias) one.args.bias = random.normal({p.n}, dtype);
  one.args.activations = activations(scheme);
  one.args.input_scale = type == WeightCodes::int8 ? 0.02f : 0.005f;
  one.name = fmt::format("{} x {} [{}, {}], {}{}", one.args.x.str(), name_of(type), p.n, p.k, scheme,
                         bias ? ", bias" : "");
  return one;
}

RUNG_TEST(Task8_4_CodesOnAGpu, IntegersGiveTheBitsOfTheLoop, "quantized_matmul", rungs_of_8_bit_codes()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto& loop = quantized_matmul_variants()[0];
  int served = 0;
  for (const Problem& p : problems_of_8_bit_codes()) {
    const auto scheme = random.one_of<std::string_view>({"int8 token", "int8 static", "int4 token"});
    const auto dtype = random.one_of<DType>({DType::bf16, DType::f16});
    const Case one =
        case_of_8_bit_codes(random, p, WeightCodes::int8, scheme, dtype, random.integer(0, 1) == 0);
    Tensor expected;
    for (const DType to : {DType::f32, dtype}) {
      const Tensor out = one.run(ctx, rung, to);
      if (!out.defined()) continue;
      if (!expected.defined()) expected = one.run(OpContext{}, loop, DType::f32);
      ASSERT_TRUE(bitwise_equal(out, expected.to(to))) << one.name << " to " << dtype_name(to);
      ++served;
    }
  }
  EXPECT_GE(served, 12);
}

// The library's sums of FP8 keep fewer bits than a float has, so they have bf16's bound in every type.
RUNG_TEST(Task8_4_CodesOnAGpu, FloatsAreWithinTheBoundOfDoublePrecision, "quantized_matmul",
          rungs_of_8_bit_codes()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const Problem& p : problems_of_8_bit_codes()) {
    const auto scheme = random.one_of<std::string_view>({"fp8 token", "fp8 static"});
    const auto dtype = random.one_of<DType>({DType::bf16, DType::f16});
    Case one =
        case_of_8_bit_codes(random, p, WeightCodes::fp8_e4m3, scheme, dtype, random.integer(0, 1) == 0);
    for (const DType to : {DType::f32, dtype}) {
      const Tensor out = one.run(ctx, rung, to);
      if (!out.defined()) continue;
      if (one.expected.empty()) one.expect();
      ASSERT_TRUE(close_to(testing::to_double(out), one.expected, p.n, testing::row_bound(DType::bf16, p.k),
                           to == DType::f16 ? 0x1p-25 : 0))
          << one.name << " to " << dtype_name(to);
      ++served;
    }
  }
  EXPECT_GE(served, 12);
}

RUNG_TEST(Task8_4_CodesOnAGpu, ARowThatIsNotFiniteIsAloneInThat, "quantized_matmul", rungs_of_8_bit_codes()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const WeightCodes type : {WeightCodes::int8, WeightCodes::fp8_e4m3})
    for (const bool dynamic : {true, false})
      for (const float bad : {NAN, INFINITY}) {
        const std::string kind = type == WeightCodes::int8 ? "int8" : "fp8";
        Case one = case_of_8_bit_codes(random, {3, 32, 512, 512, 0}, type,
                                       kind + (dynamic ? " token" : " static"), DType::bf16, true);
        const Tensor clean = one.run(ctx, rung, DType::f32);
        one.args.x.at<bf16>({1, random.integer(0, 511)}) = bf16(bad);
        const Tensor out = one.run(ctx, rung, DType::f32);
        ASSERT_TRUE(out.defined()) << one.name;
        for (const int64_t row : {0, 2})
          EXPECT_TRUE(bitwise_equal(out.narrow(0, row, 1), clean.narrow(0, row, 1))) << one.name;
        for (int64_t j = 0; j < 32; ++j)
          EXPECT_EQ(std::isnan(out.at<float>({1, j})), dynamic || std::isnan(bad)) << one.name;
      }
}

TEST(Task8_4_Codes, AreMultipliedWhereBothSidesHaveThem) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto multiplied = [&](WeightCodes type, std::string_view scheme, const Problem& p, bool zeros) {
    return are_multiplied_as_codes(random_weight(random, type, p, zeros), activations(scheme));
  };
  constexpr Problem p{1, 32, 48, 48, 0};
  for (const std::string_view scheme : {"int8 token", "int8 static", "int4 token"})
    EXPECT_TRUE(multiplied(WeightCodes::int8, scheme, p, false)) << scheme;
  for (const std::string_view scheme : {"fp8 token", "fp8 static"})
    EXPECT_TRUE(multiplied(WeightCodes::fp8_e4m3, scheme, p, false)) << scheme;
  for (const std::string_view scheme : {"none", "int8 asymmetric token", "fp8 token", "fp8 group"})
    EXPECT_FALSE(multiplied(WeightCodes::int8, scheme, p, false)) << scheme;
  for (const std::string_view scheme : {"none", "int8 token", "fp8 group", "fp4 group"})
    EXPECT_FALSE(multiplied(WeightCodes::fp8_e4m3, scheme, p, false)) << scheme;
  EXPECT_FALSE(multiplied(WeightCodes::int8, "int8 token", p, true)) << "zero points";
  EXPECT_FALSE(multiplied(WeightCodes::int4, "int4 token", p, false)) << "nibbles";
  EXPECT_FALSE(multiplied(WeightCodes::int8, "int8 token", {1, 32, 48, 16, 0}, false)) << "groups";
  EXPECT_FALSE(multiplied(WeightCodes::int8, "int8 token", {1, 32, 40, 40, 0}, false)) << "columns";
  EXPECT_TRUE(multiplied(WeightCodes::int8, "int8 token", {1, 16, 131056, 131056, 0}, false));
  EXPECT_FALSE(multiplied(WeightCodes::int8, "int8 token", {1, 16, 131072, 131072, 0}, false)) << "31 bits";
  QuantizedWeight weight = random_weight(random, WeightCodes::int8, p, false);
  EXPECT_FALSE(are_multiplied_as_codes(in_records(weight), activations("int8 token"))) << "records alone";
  permute_columns(random, weight);
  EXPECT_FALSE(are_multiplied_as_codes(weight, activations("int8 token"))) << "columns in another order";
}

TEST(Task8_4_RecordsOnAGpu, TheNumberOfRowsChooses) {
  if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  const OpContext& ctx = *testing::cuda_context();
  if (ctx.device_arch < 90) GTEST_SKIP() << "not on this GPU";
  Random random;
  const auto chosen = [&](int64_t m, int64_t k, int64_t group,
                          int64_t between = 0) {  // elements between rows of x
    QuantizedWeight weight = random_weight(random, WeightCodes::int4, {m, 32, k, group, 0}, false);
    weight.scales = weight.scales.to(DType::f16).to(DType::f32);
    weight = in_records(weight);
    weight.records.bytes = weight.records.bytes.to(ctx.device);
    const Tensor x = Tensor::empty({m, k + between}, DType::bf16, ctx.device).narrow(1, 0, k);
    return choose_quantized_matmul(
               ctx, {.x = x, .weight = &weight, .out = Tensor::empty({m, 32}, DType::bf16, ctx.device)})
        .variant->name;
  };
  for (const int64_t m : {1, 16, 32}) EXPECT_EQ(chosen(m, 256, 128), "rows_stream") << m;
  for (const int64_t m : {33, 64, 384}) EXPECT_EQ(chosen(m, 256, 128), "wgmma") << m;
  EXPECT_EQ(chosen(385, 256, 128), "dequantized") << "a small weight";
  EXPECT_EQ(chosen(64, 256, 64), "rows_stream") << "several groups of a record";
  EXPECT_EQ(chosen(64, 160, 160), "rows_stream") << "columns that end within a part";
  EXPECT_EQ(chosen(65, 160, 160), "dequantized");
  EXPECT_EQ(chosen(40, 256, 128, 3), "dequantized") << "rows of x that are not packed";
}

TEST(Task8_4_CodesOnAGpu, TheNumberOfRowsChooses) {
  if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  const OpContext& ctx = *testing::cuda_context();
  if (ctx.device_arch < 90) GTEST_SKIP() << "not on this GPU";
  Random random;
  SCOPED_TRACE(random.describe());
  for (const WeightCodes type : {WeightCodes::int8, WeightCodes::fp8_e4m3}) {
    const std::string_view scheme = type == WeightCodes::int8 ? "int8 token" : "fp8 token";
    QuantizedWeight weight = random_weight(random, type, {1, 64, 512, 512, 0}, false);
    weight.codes = weight.codes.to(ctx.device);
    weight.scales = weight.scales.to(ctx.device);
    for (const int64_t m : {1, 16, 17, 64, 65, 200}) {
      const auto tensor = [&](int64_t columns) {
        return Tensor::empty({m, columns}, DType::bf16, ctx.device);
      };
      const QuantizedMatmulArgs args{tensor(512), &weight, activations(scheme), 1, {}, tensor(64)};
      const bool is_ours = type == WeightCodes::int8 || m <= 64;
      const std::string_view many = is_ours ? "wgmma_8bit" : "cublaslt_8bit";
      EXPECT_EQ(choose_quantized_matmul(ctx, args).variant->name, m <= 16 ? "rows_stream_8bit" : many)
          << m << " rows";
    }
  }
}

// Whole numbers and powers of two: nothing is rounded, so nothing may differ.
RUNG_TEST(Task8_4_QuantizedMatmul, IsExactOnSmallIntegers, "quantized_matmul", quantized_matmul_variants()) {
  static Random random;
  SCOPED_TRACE(random.describe());
  static const std::vector<Case> cases = [] {
    std::vector<Case> made;
    for (const Problem& p : kProblems)
      for (const WeightCodes type : kTypes)
        for (const std::string_view scheme : {"none", "int8 static", "fp8 static"})
          for (const bool zeros : {false, true}) {
            if (zeros && type != WeightCodes::int4 && type != WeightCodes::int8) continue;
            Case one;
            one.weight = random_weight(random, type, p, zeros, false, true);
            if (p.m % 2 == 0) permute_columns(random, one.weight);
            one.args.x = random.exact({p.m, p.k}, DType::bf16);
            one.args.bias = random.exact({p.n}, DType::bf16);
            one.args.activations = activations(scheme);
            one.name =
                fmt::format("{} x {} [{}, {}] groups of {} from {}, {}{}", one.args.x.str(), name_of(type),
                            p.n, p.k, p.group_size, p.group_offset, scheme, zeros ? ", zeros" : "");
            one.expect();
            made.push_back(std::move(one));
          }
    return made;
  }();
  OpContext without_scratch_memory = ctx;
  without_scratch_memory.arena = nullptr;
  for (const Case& one : cases) {
    const Tensor out = one.run(without_scratch_memory, rung, DType::f32);
    if (!out.defined()) continue;
    ASSERT_EQ(testing::to_double(out), one.expected) << one.name;
  }
}

// 257 has no bf16 of its own: rounded first, it would be 256, and 255 with the bias.
RUNG_TEST(Task8_4_QuantizedMatmul, TheBiasIsAddedBeforeTheRounding, "quantized_matmul",
          quantized_matmul_variants()) {
  const auto filled = [](const Shape& shape, float value, DType dtype) {
    const Tensor result = Tensor::empty(shape, DType::f32);
    std::fill_n(result.data<float>(), result.numel(), value);
    return dtype == DType::f32 ? result : result.to(dtype);
  };
  QuantizedWeight weight = shaped_weight(WeightCodes::int8, 20, 257, 257);
  weight.codes = Tensor::empty({20, 257}, DType::i8);
  weight.codes.fill_bytes(1);
  weight.scales = filled({20, 1}, 1, DType::f32);
  for (const std::string_view scheme : {"none", "int8 static"})
    for (const int64_t m : {1, 5, 40}) {
      QuantizedMatmulArgs args{
          filled({m, 257}, 1, DType::bf16), &weight, activations(scheme), 1, filled({20}, -1, DType::bf16),
          poisoned({m, 20}, DType::bf16)};
      if (!run(ctx, rung, args)) continue;
      EXPECT_EQ(testing::to_double(args.out), std::vector<double>(static_cast<size_t>(m * 20), 256.0))
          << m << " rows";
    }
}

RUNG_TEST(Task8_4_QuantizedMatmul, RowsMayBeWindowsOfWiderTensors, "quantized_matmul",
          quantized_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const WeightCodes type : kTypes)
    for (const std::string_view scheme : {"none", "int8 token"}) {
      const bool channel = scheme == "int8 token";
      Case one;
      one.weight = random_weight(random, type, {11, 17, 72, channel ? 72 : 24, 0}, type == WeightCodes::int4);
      const auto widened = [](const Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        Tensor wide = Tensor::zeros({tensor.dim(0), tensor.dim(1) + 5}, tensor.dtype());
        wide.fill_bytes(0x5a);
        const Tensor window = wide.narrow(1, 3, tensor.dim(1));
        window.copy_from(tensor);
        return window;
      };
      one.args.x = widened(random.normal({11, 72}, DType::f32));
      one.args.activations = activations(scheme);
      one.expect();
      for (Tensor* tensor : {&one.weight.codes, &one.weight.scales, &one.weight.zeros})
        *tensor = widened(*tensor);
      const Tensor wide = poisoned({11, 40}, DType::f32);
      QuantizedMatmulArgs args = one.args;
      args.weight = &one.weight;
      args.out = wide.narrow(1, 9, 17);
      if (!run(ctx, rung, args)) continue;
      EXPECT_TRUE(close_to(args.out.clone(), one.expected, 72)) << name_of(type) << ", " << scheme;
      for (int64_t row = 0; row < 11; ++row)
        for (const int64_t column : {0, 8, 26, 39})
          EXPECT_TRUE(std::isnan(wide.at<float>({row, column}))) << "column " << column << " was written";
    }
}

// All but the library's and wgmma, which take another kernel for another number of rows.
std::vector<Variant<QuantizedMatmulArgs>> rungs_that_keep_bits() {
  return testing::rungs_where(quantized_matmul_variants(), [](const auto& rung) {
    return rung.name != "cublaslt_8bit" && rung.name != "wgmma";
  });
}

// What makes a request's logits the same alone and in any batch. A rung for few rows keeps it among few rows.
RUNG_TEST(Task8_4_QuantizedMatmul, ARowHasTheBitsThatItHasAlone, "quantized_matmul", rungs_that_keep_bits()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int checked = 0;
  for (const WeightCodes type : kTypes)
    for (const std::string_view scheme : {"none", "int8 token", "fp8 token"})
      for (const Problem& p : {Problem{40, 23, 530, 530, 0},
                               {40, 9, 160, 32, 16},
                               {40, 37, 1040, 1040, 0},
                               {40, 70, 1024, 1024, 0}}) {
        QuantizedWeight weight = random_weight(random, type, p, type == WeightCodes::int4);
        weight.scales = weight.scales.to(DType::bf16).to(DType::f32);
        const Tensor x = random.normal({p.m, p.k}, DType::bf16), alone = poisoned({p.m, p.n}, DType::f32);
        QuantizedMatmulArgs args{x, &weight, activations(scheme), 1, random.normal({p.n}, DType::bf16), {}};
        const auto run = [&](int64_t first, int64_t m, const Tensor& out) {
          args.x = x.narrow(0, first, m);
          args.out = out;
          return ladder::run(ctx, rung, args);
        };
        if (!run(0, 1, alone.narrow(0, 0, 1))) continue;
        for (int64_t row = 1; row < p.m; ++row) run(row, 1, alone.narrow(0, row, 1));
        for (const int64_t m : {2, 3, 4, 5, 6, 7, 8, 11, 16, 17, 40}) {
          const int64_t first = random.integer(0, p.m - m);
          const Tensor out = poisoned({m, p.n}, DType::f32);
          if (!run(first, m, out)) {
            EXPECT_FALSE(rung.batch_invariant);
            break;
          }
          ASSERT_TRUE(bitwise_equal(out, alone.narrow(0, first, m)))
              << name_of(type) << ", " << scheme << ", m=" << m;
        }
        ++checked;
      }
  EXPECT_GT(checked, 0);
}

// A race of warps, of copies or of the blocks of a cluster shows now and then (vLLM's issue 11205, of Marlin's sums).
RUNG_TEST(Task8_4_RunsOnAGpu, AThousandGiveTheSameBits, "quantized_matmul",
          testing::rungs_where(quantized_matmul_variants(),
                               [](const auto& rung) { return rung.device == DeviceType::cuda; })) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const WeightCodes type : {WeightCodes::int4, WeightCodes::int8, WeightCodes::fp8_e4m3})
    for (const auto& [m, n, k, group] : {std::array<int64_t, 4>{1, 300, 4096, 128},
                                         {7, 300, 4096, 128},
                                         {16, 1104, 1024, 128},
                                         {24, 300, 4096, 4096},
                                         {260, 9008, 128, 128}}) {
      const bool is_int4 = type == WeightCodes::int4;
      QuantizedWeight weight = random_weight(random, type, {m, n, k, is_int4 ? group : k, 0}, false);
      weight.scales = weight.scales.to(DType::bf16).to(DType::f32);
      QuantizedMatmulArgs args{random.normal({m, k}, DType::bf16),
                               &weight,
                               activations(is_int4                     ? "none"
                                           : type == WeightCodes::int8 ? "int8 token"
                                                                       : "fp8 token"),
                               1,
                               {},
                               poisoned({m, n}, DType::bf16)};
      RungCall call(ctx, rung, args);
      if (!call.run()) continue;
      ++served;
      const Tensor first = args.out.clone();
      for (int again = 1; again < 250; ++again) {
        call.run();
        ASSERT_TRUE(bitwise_equal(args.out, first)) << name_of(type) << ", m=" << m << ", run " << again;
      }
    }
  EXPECT_GT(served, 0);
}

RUNG_TEST(Task8_4_QuantizedMatmul, TheNumberOfThreadsDoesNotChangeTheBits, "quantized_matmul",
          quantized_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const WeightCodes type : {WeightCodes::int4, WeightCodes::int8})
    for (const int64_t m : {3, 19}) {
      const QuantizedWeight weight = random_weight(random, type, {m, 331, 520, 520, 0}, false);
      QuantizedMatmulArgs args{
          random.normal({m, 520}, DType::bf16), &weight, activations("int8 token"), 1, {},
          poisoned({m, 331}, DType::f32)};
      const auto run_it = [&] { return run(ctx, rung, args); };
      bool served = false;
      testing::with_threads(1, [&] { served = run_it(); });
      if (!served) continue;
      const Tensor one = args.out.clone();
      for (const int count : {2, 3, 8}) {
        args.out.fill_bytes(0xff);
        testing::with_threads(count, run_it);
        EXPECT_TRUE(bitwise_equal(args.out, one)) << "with " << count << " threads, m=" << m;
      }
    }
}

std::vector<Variant<QuantizedMatmulArgs>> int8_rungs() {
  return testing::rungs_where(quantized_matmul_variants(),
                              [](const auto& rung) { return rung.name.starts_with("int8_"); });
}

// Sums of whole numbers are exact.
RUNG_TEST(Task8_4_Int8, GivesTheBitsOfTheLoop, "quantized_matmul", int8_rungs()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto& loop = quantized_matmul_variants()[0];
  for (const Problem& p : kProblems)
    for (const std::string_view scheme : {"int8 token", "int8 static", "int8 asymmetric token", "int4 token"})
      for (const bool zeros : {false, true}) {
        Case one;
        one.weight = random_weight(random, WeightCodes::int8, {p.m, p.n, p.k, p.k, 0}, zeros);
        one.args.x = random.normal({p.m, p.k}, DType::bf16);
        one.args.bias = random.normal({p.n}, DType::bf16);
        one.args.activations = activations(scheme);
        one.args.input_scale = 0.013f;
        const Tensor out = one.run(ctx, rung, DType::f32);
        if (!out.defined()) continue;
        ASSERT_TRUE(bitwise_equal(out, one.run(ctx, loop, DType::f32)))
            << one.args.x.str() << ", n=" << p.n << ", " << scheme << (zeros ? ", zeros" : "");
      }
}

// The largest products there are, two and four beside each other and as many of them as a row may have: an instruction
// that adds in 16 bits saturates, and 32 bits are just enough.
RUNG_TEST(Task8_4_Int8, NothingSaturates, "quantized_matmul", int8_rungs()) {
  for (const int64_t k : {int64_t{66}, int64_t{65536}})
    for (const float sign : {1.0f, -1.0f}) {
      QuantizedWeight weight = shaped_weight(WeightCodes::int8, 5, k, k);
      weight.codes = Tensor::empty({5, k}, DType::i8);
      std::fill_n(weight.codes.data<int8_t>(), 5 * k, static_cast<int8_t>(-128));
      weight.scales = Tensor::empty({5, 1}, DType::f32);
      std::fill_n(weight.scales.data<float>(), 5, 1.0f);
      const Tensor x = Tensor::empty({2, k}, DType::f32);
      std::fill_n(x.data<float>(), 2 * k, sign * 1000);
      QuantizedMatmulArgs args{x, &weight, activations("int8 static"), 1, {}, poisoned({2, 5}, DType::f32)};
      if (!run(ctx, rung, args)) continue;
      const double expected = (sign > 0 ? 127.0 : -128.0) * -128.0 * static_cast<double>(k);
      EXPECT_EQ(testing::to_double(args.out), std::vector<double>(10, expected)) << "k=" << k;
    }
}

RUNG_TEST(Task8_4_QuantizedMatmul, ARowOfZerosGivesTheBias, "quantized_matmul", quantized_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const WeightCodes type : kTypes)
    for (const std::string_view scheme : kActivations) {
      const QuantizedWeight weight =
          random_weight(random, type, {3, 21, 96, 96, 0}, type == WeightCodes::int4);
      QuantizedMatmulArgs args{Tensor::zeros({3, 96}, DType::f32),
                               &weight,
                               activations(scheme),
                               1,
                               random.normal({21}, DType::f32),
                               poisoned({3, 21}, DType::f32)};
      if (!run(ctx, rung, args)) continue;
      for (int64_t row = 0; row < 3; ++row)
        EXPECT_EQ(testing::to_double(args.out.narrow(0, row, 1)), testing::to_double(args.bias))
            << name_of(type) << ", " << scheme;
    }
}

// What quantized_matmul.h says, and that the other rows know nothing of it.
RUNG_TEST(Task8_4_QuantizedMatmul, WhatIsNotFiniteStaysInItsRow, "quantized_matmul",
          quantized_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const WeightCodes type : kTypes)
    for (const std::string_view scheme : kActivations)
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        const QuantizedWeight weight = random_weight(random, type, {3, 21, 96, 96, 0}, false, true);
        QuantizedMatmulArgs args{random.normal({3, 96}, DType::f32), &weight, activations(scheme), 0.1f, {},
                                 poisoned({3, 21}, DType::f32)};
        SCOPED_TRACE(fmt::format("{}, {}, {}", name_of(type), scheme, bad));
        testing::take_magnitudes(args.x);
        if (!run(ctx, rung, args)) continue;
        const Tensor clean = args.out.clone();
        const int64_t column = random.integer(0, 95);
        args.x.at<float>({1, column}) = bad;
        args.out.fill_bytes(0);
        run(ctx, rung, args);
        for (const int64_t row : {0, 2})
          EXPECT_TRUE(bitwise_equal(args.out.narrow(0, row, 1), clean.narrow(0, row, 1)));
        const bool saturates = !std::isnan(bad) && args.activations && !args.activations->dynamic;
        for (int64_t j = 0; j < 21; ++j) {
          const float value = args.out.at<float>({1, j});
          if (saturates) {
            EXPECT_TRUE(std::isfinite(value)) << "column " << j;
          } else if (args.activations) {
            EXPECT_TRUE(std::isnan(value)) << "column " << j;
          } else {
            EXPECT_FALSE(std::isfinite(value)) << "column " << j;
          }
        }
      }
}

// The sum is far beyond f16's largest number on its way, and not in the end.
RUNG_TEST(Task8_4_QuantizedMatmul, NothingOverflowsInside, "quantized_matmul", quantized_matmul_variants()) {
  constexpr int64_t k = 16384;
  for (const WeightCodes type : {WeightCodes::int4, WeightCodes::int8})
    for (const std::string_view scheme : {"none", "int8 token"}) {
      QuantizedWeight weight = shaped_weight(type, 3, k, k);
      const bool nibbles = is_nibble(type);
      weight.codes = Tensor::empty({3, nibbles ? k / 2 : k}, nibbles ? DType::u8 : DType::i8);
      weight.codes.fill_bytes(nibbles ? 0xff : 0x7f);  // 7 or 127
      weight.scales = Tensor::empty({3, 1}, DType::f32);
      std::fill_n(weight.scales.data<float>(), 3, 1.0f);
      const Tensor x = Tensor::empty({1, k}, DType::f32);
      for (int64_t i = 0; i < k; ++i) x.data<float>()[i] = i < k / 2 ? 1000.0f : -1000.0f;
      QuantizedMatmulArgs args{
          x.to(DType::f16), &weight, activations(scheme), 1, {}, poisoned({1, 3}, DType::f16)};
      if (!run(ctx, rung, args)) continue;
      // -1000 is the code -128 and 1000 the code 127: their sum is not 0 and beyond f16.
      const double expected = scheme == "none" ? 0.0 : -INFINITY;
      if (rung.device == DeviceType::cpu || scheme != "none") {
        EXPECT_EQ(testing::to_double(args.out), std::vector<double>(3, expected))
            << name_of(type) << ", " << scheme;
      } else {  // floats are added in another order
        for (const double sum : testing::to_double(args.out))
          EXPECT_LE(std::abs(sum), 1e-6 * 127 * 1000 * k) << name_of(type);
      }
    }
}

RUNG_TEST(Task8_4_QuantizedMatmul, TheDeclaredWorkspaceIsWhatARungTakes, "quantized_matmul",
          quantized_matmul_variants()) {
  Random random;
  for (const WeightCodes type : kTypes)
    for (const auto& [m, k] :
         {std::array<int64_t, 2>{1, 1030}, {6, 1030}, {16, 1030}, {100, 1030}, {100, 1024}}) {
      QuantizedWeight weight = random_weight(random, type, {m, 77, k, k, 0}, type == WeightCodes::int4);
      if (type == WeightCodes::int4) weight.scales = weight.scales.to(DType::f16).to(DType::f32);
      QuantizedMatmulArgs args{Tensor::zeros({m, k}, DType::bf16), &weight, activations("int8 token"), 1, {},
                               Tensor::zeros({m, 77}, DType::bf16)};
      Arena arena(ctx.device);
      OpContext own = ctx;
      own.arena = &arena;
      RungCall call(own, rung, args);
      if (!can_run(rung, own, call.args())) continue;
      const int64_t declared = rung.workspace != nullptr ? rung.workspace(call.args()) : 0;
      arena.reserve(declared + 7 * 256);  // in one piece: pieces that grow leave gaps
      call.run();
      EXPECT_LE(declared, arena.peak_bytes());
      EXPECT_LE(arena.peak_bytes(), declared + 7 * 256);  // up to seven aligned pieces
    }
}

// The chosen rung's name without its instruction set.
std::string chosen(const Problem& p, WeightCodes type, std::string_view scheme, bool batch_invariant) {
  Random random;
  const QuantizedWeight weight = random_weight(random, type, p, false);
  OpContext ctx;
  ctx.batch_invariant = batch_invariant;
  const QuantizedMatmulArgs args{Tensor::zeros({p.m, p.k}, DType::f32), &weight, activations(scheme), 1, {},
                                 Tensor::zeros({p.m, p.n}, DType::f32)};
  const auto name = choose_quantized_matmul(ctx, args).variant->name;
  return std::string(name.substr(0, name.find('_')));
}

TEST(Task8_4_FewRows, AreServedByARungOfTheirOwnUnlessBitsMayNotDependOnTheirNumber) {
  EXPECT_EQ(chosen({1, 16, 128, 128, 0}, WeightCodes::int4, "none", false), "rows");
  EXPECT_EQ(chosen({1, 16, 128, 32, 0}, WeightCodes::int8, "int8 token", false), "rows");
  EXPECT_EQ(chosen({1, 16, 65540, 65540, 0}, WeightCodes::int8, "int8 token", false), "rows");
  EXPECT_EQ(chosen({1, 16, 128, 128, 0}, WeightCodes::int4, "none", true), "tiles");
}

TEST(Task8_4_Int8, ServesAnyNumberOfRows) {
  EXPECT_EQ(chosen({1, 16, 128, 128, 0}, WeightCodes::int8, "int8 token", true), "int8");
  EXPECT_EQ(chosen({40, 16, 128, 128, 0}, WeightCodes::int8, "int8 token", false), "int8");
}

TEST(Task8_4_QuantizedMatmul, ManyRowsTakeTilesAndOddGroupsTheLoop) {
  EXPECT_EQ(chosen({40, 16, 128, 128, 0}, WeightCodes::int4, "none", false), "tiles");
  EXPECT_EQ(chosen({1, 16, 128, 5, 0}, WeightCodes::int4, "none", false), "loop");
}

TEST(Task8_4_QuantizedMatmul, NothingToDo) {
  Random random;
  const QuantizedWeight weight = random_weight(random, WeightCodes::int4, {1, 4, 8, 8, 0}, false);
  EXPECT_NO_THROW(quantized_matmul(
      OpContext{},
      {Tensor::empty({0, 8}, DType::f32), &weight, {}, 1, {}, Tensor::empty({0, 4}, DType::f32)}));
}

TEST(Task8_4_QuantizedMatmul, RefusesWhatDoesNotFit) {
  Random random;
  const Problem p{2, 4, 48, 16, 0};
  const QuantizedWeight good = random_weight(random, WeightCodes::int4, p, true);
  const auto refused = [&](std::string_view word, auto&& change) {
    QuantizedWeight weight = good;
    QuantizedMatmulArgs args{Tensor::zeros({2, 48}, DType::f32), &weight, {}, 1, {},
                             Tensor::zeros({2, 4}, DType::f32)};
    change(weight, args);
    try {
      quantized_matmul(OpContext{}, args);
      ADD_FAILURE() << "not refused: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  using Weight = QuantizedWeight;
  using Args = QuantizedMatmulArgs;
  refused("no weight", [](Weight&, Args& args) { args.weight = nullptr; });
  refused("x", [](Weight&, Args& args) { args.x = Tensor::zeros({2, 47}, DType::f32); });
  refused("out", [](Weight&, Args& args) { args.out = Tensor::zeros({2, 5}, DType::f32); });
  refused("out", [](Weight&, Args& args) { args.out = Tensor::zeros({2, 4}, DType::bf16); });
  refused("quantized_matmul", [](Weight&, Args& args) { args.x = Tensor::zeros({2, 48}, DType::i32); });
  refused("bias", [](Weight&, Args& args) { args.bias = Tensor::zeros({3}, DType::f32); });
  refused("codes", [](Weight& weight, Args&) { weight.codes = Tensor::zeros({4, 48}, DType::u8); });
  refused("codes", [](Weight& weight, Args&) { weight.codes = Tensor::zeros({4, 24}, DType::i8); });
  refused("scales", [](Weight& weight, Args&) { weight.scales = Tensor::zeros({4, 2}, DType::f32); });
  refused("scales", [](Weight& weight, Args&) { weight.scales = Tensor::zeros({4, 3}, DType::bf16); });
  refused("scales", [](Weight& weight, Args&) { weight.group_offset = 8; });  // a fourth group
  refused("zeros", [](Weight& weight, Args&) { weight.zeros = Tensor::zeros({4, 3}, DType::i8); });
  refused("columns", [](Weight& weight, Args&) { weight.columns = Tensor::zeros({47}, DType::i32); });
  refused("group", [](Weight& weight, Args&) { weight.group_size = 0; });
  refused("offset", [](Weight& weight, Args&) { weight.group_offset = 16; });
  refused("zero points of floats", [](Weight& weight, Args&) { weight.type = WeightCodes::fp4_e2m1; });
  refused("per token", [](Weight&, Args& args) {
    args.activations = activations("int8 token");
    args.activations->strategy = ScaleStrategy::tensor;
  });
  refused("input_scale", [](Weight&, Args& args) {
    args.activations = activations("int8 static");
    args.input_scale = 0;
  });
  refused("symmetric", [](Weight&, Args& args) {
    args.activations = activations("int8 static");
    args.activations->symmetric = false;
  });
  refused("input_scale", [](Weight&, Args& args) {
    args.activations = activations("nvfp4");
    args.input_scale = 0;
  });
  refused("NVFP4", [](Weight&, Args& args) {
    args.activations = activations("int8 token");
    args.activations->scale_format = ScaleFormat::e4m3;
  });
  refused("bits", [](Weight&, Args& args) {
    args.activations = activations("int8 token");
    args.activations->num_bits = 9;
  });
}

}  // namespace
}  // namespace ladder
