// Task 8.4: on a GPU the norm before a product with a quantized weight, and what follows it, in the product's kernel.
#include <gtest/gtest.h>

#include <cmath>

#include "step1_layers/core/small_floats.h"
#include "step1_layers/linear/linear.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/linear/quantized_linear.h"
#include "tests/step8_advanced/quantization/stored_parts.h"
#include "tests/support/devices.h"

namespace ladder {
namespace {

using testing::close_to;
using testing::Random;
using testing::random_part;
using testing::StoredPart;
using testing::to_double;

constexpr double kEps = 0.1;  // large enough to be seen

// Rows of x, of the weight and of its columns: one row and whole registers of them, more than one launch takes; one tile of the weight
// and more than a group of them in a block; records that end early and more than a warp has at once.
struct Problem {
  int64_t m, n, k;
};
constexpr Problem kProblems[] = {{1, 96, 128},     {1, 2720, 4096},  {1, 14336, 256}, {2, 32, 1024},
                                 {5, 4160, 384},   {8, 9600, 1152},  {9, 256, 2048},  {16, 14368, 512},
                                 {16, 64, 160},    {40, 4608, 640},  {1, 96, 16384},  {2, 32, 16512},
                                 {24, 28672, 192}, {32, 12320, 256}, {16, 1024, 384}, {3, 96, 336},
                                 {1, 2720, 4112},  {12, 6144, 336},  {4, 2720, 2048}, {8, 4640, 1536}};

// Whether the normed rows fit beside the weight's records, or may be normed before they are rounded.
bool fits_a_block(const Problem& p) {
  return p.m <= 8 && p.m * p.k <= 8192;
}
bool may_be_normed(const Problem& p) {
  return p.k <= 16384;
}

StoredLinear packed(int bits, int64_t group_size, bool symmetric) {
  StoredLinear stored{.format = StoredFormat::packed};
  stored.scheme.weights.num_bits = bits;
  stored.scheme.weights.symmetric = symmetric;
  stored.scheme.weights.strategy = group_size > 0 ? ScaleStrategy::group : ScaleStrategy::channel;
  stored.scheme.weights.group_size = group_size;
  return stored;
}
StoredLinear fp8() {
  StoredLinear stored{.format = StoredFormat::plain};
  stored.scheme.weights.is_float = true;
  stored.scheme.weights.strategy = ScaleStrategy::channel;
  return stored;
}

// Codes of 8 bits on both sides.
StoredLinear rounded(bool is_float, bool dynamic) {
  StoredLinear stored{.format = StoredFormat::plain};
  stored.scheme.weights.is_float = is_float;
  stored.scheme.weights.strategy = ScaleStrategy::channel;
  stored.scheme.input_activations =
      QuantizationArgs{.is_float = is_float,
                       .strategy = dynamic ? ScaleStrategy::token : ScaleStrategy::tensor,
                       .dynamic = dynamic};
  return stored;
}
constexpr float kInputScale = 0.02f;

// A linear on the GPU of two parts of the same width, and the numbers it stands for.
struct Scene {
  const OpContext& ctx;
  std::vector<StoredPart> parts;
  Tensor bias;  // or undefined
  std::unique_ptr<Linear> linear;

  Scene(const OpContext& context, Random& random, const StoredLinear& stored, const Problem& p, DType dtype)
      : ctx(context) {
    for (int part = 0; part < 2; ++part) {
      parts.push_back(random_part(random, stored, p.n / 2, p.k));
      parts.back().tensors["input_scale"] = Tensor::from<float>(std::vector<float>{kInputScale}, {1});
    }
    if (p.m % 2 == 1) bias = random.normal({p.n}, dtype);
    linear = std::make_unique<MergedColumnParallelLinear>(
        ctx, "linear", p.k, std::vector<int64_t>{p.n / 2, p.n / 2},
        LinearOptions{dtype, bias.defined(), quantized_linear_method(stored)});
    for (Parameter* parameter : linear->parameters())
      for (int part = 0; part < 2; ++part) {
        const std::string name = parameter->name.substr(parameter->name.rfind('.') + 1);
        parameter->load(name == "bias" ? bias.narrow(0, part * p.n / 2, p.n / 2)
                                       : parts[static_cast<size_t>(part)].tensors.at(name),
                        part);
      }
    linear->process_after_load(ctx);
  }

  // x [m, k] times the weight, in double.
  std::vector<double> product(const std::vector<double>& x) const {
    const auto k = static_cast<size_t>(parts[0].k), half = static_cast<size_t>(parts[0].n);
    const auto biases = bias.defined() ? to_double(bias) : std::vector<double>(2 * half);
    std::vector<double> out;
    for (size_t row = 0; row < x.size() / k; ++row)
      for (size_t j = 0; j < 2 * half; ++j) {
        const float* weight = parts[j / half].dense.data() + j % half * k;
        double sum = biases[j];
        for (size_t i = 0; i < k; ++i) sum += x[row * k + i] * static_cast<double>(weight[i]);
        out.push_back(sum);
      }
    return out;
  }

  // The fused product's out, of what is in `out` before.
  Tensor run(FusedProduct product, const Tensor& out) const {
    product.x = product.x.to(ctx.device);
    if (product.norm_weight.defined()) product.norm_weight = product.norm_weight.to(ctx.device);
    product.out = out.clone().to(ctx.device);
    EXPECT_TRUE(linear->takes_fused(product));
    linear->forward_fused(ctx, product);
    device_synchronize(ctx.device, ctx.stream);
    return product.out.to(Device{});
  }
};

std::vector<double> normed(const Tensor& x, const Tensor& weight) {
  std::vector<double> values = to_double(x);
  const auto weights = to_double(weight);
  const size_t width = weights.size();
  for (size_t row = 0; row < values.size() / width; ++row) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += std::pow(values[row * width + i], 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
    for (size_t i = 0; i < width; ++i) values[row * width + i] *= scale * weights[i];
  }
  return values;
}
// In x's dtype, as the operator gives them: their rounding is not the product's.
std::vector<double> normed_in_dtype(const Tensor& x, const Tensor& weight) {
  const std::vector<double> values = normed(x, weight);
  const std::vector<float> floats(values.begin(), values.end());
  return to_double(Tensor::from<float>(floats, x.shape()).to(x.dtype()));
}

std::vector<double> gated(const std::vector<double>& gate_up, size_t width) {
  std::vector<double> out(gate_up.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    const double gate = gate_up[i / width * 2 * width + i % width];
    out[i] = gate / (1 + std::exp(-gate)) * gate_up[(i / width * 2 + 1) * width + i % width];
  }
  return out;
}

class Task8_4_FusedQuantizedLinear : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
    if (testing::cuda_context()->device_arch < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }

  // check(scene, problem, dtype) for every kind of codes, group and problem, one after the other of each.
  template <class Check>
  void for_each_case(Check&& check) {
    const StoredLinear kinds[] = {
        packed(4, 128, true), packed(4, 32, false),  packed(4, 0, true),    packed(4, 64, true),
        packed(8, 128, true), packed(4, 128, false), packed(8, 128, false), fp8()};
    SCOPED_TRACE(random.describe());
    const StoredLinear of_rows[] = {packed(4, 0, true), fp8()};  // kinds without groups of columns
    // Which no rung for many rows serves.
    const StoredLinear of_many[] = {packed(4, 32, false), packed(4, 64, true), packed(8, 128, true),
                                    packed(8, 128, false), fp8()};
    int64_t index = random.integer(0, 7);
    for (const Problem& p : kProblems)
      for (const DType dtype : {DType::bf16, DType::f16}) {
        for (int time = 0; time < 2; ++time) {
          ++index;
          const StoredLinear& stored = p.k % 128 != 0 ? of_rows[index % 2]
                                       : p.m > 32     ? of_many[index % 5]
                                                      : kinds[index % 8];
          SCOPED_TRACE(fmt::format("{}: {} rows, [{}, {}] in {}", testing::describe(stored), p.m, p.n, p.k,
                                   dtype_name(dtype)));
          check(Scene(*testing::cuda_context(), random, stored, p, dtype), p, dtype);
          if (HasFatalFailure()) return;
        }
      }
  }

  Random random;
};

TEST_F(Task8_4_FusedQuantizedLinear, TheNormBeforeIsTheOperators) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    if (!fits_a_block(p)) return;
    const Tensor x = random.normal({p.m, p.k}, dtype, 3), weight = random.normal({p.k}, dtype);
    const Tensor out =
        scene.run({.x = x, .norm_weight = weight, .eps = kEps}, testing::poisoned({p.m, p.n}, dtype));
    EXPECT_TRUE(close_to(out, scene.product(normed_in_dtype(x, weight)), p.k));
  });
}

TEST_F(Task8_4_FusedQuantizedLinear, GateAndUpMeetInABlock) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    const bool norms = fits_a_block(p) && random.integer(0, 1) == 0;
    // Gate times up stays below what f16 has, 65,504, at the longest k and the largest scales, too.
    const Tensor x = random.normal({p.m, p.k}, dtype, 0.03), weight = random.normal({p.k}, dtype, 0.03);
    FusedProduct product{.x = x, .eps = kEps, .epilogue = Epilogue::silu_and_mul};
    if (norms) product.norm_weight = weight;
    const Tensor unwritten = testing::poisoned({p.m, p.n / 2}, dtype);
    if (p.n % 32 != 0) {
      EXPECT_FALSE(scene.linear->takes_fused(product));
      return;
    }
    const auto gate_up = scene.product(norms ? normed_in_dtype(x, weight) : to_double(x));
    // Three roundings: of the gate, of the up column, of what comes of them.
    EXPECT_TRUE(close_to(to_double(scene.run(product, unwritten)),
                         gated(gate_up, static_cast<size_t>(p.n / 2)), p.n / 2,
                         2 * testing::row_bound(dtype, p.k), dtype == DType::f16 ? 0x1p-25 : 0));
  });
}

// The widest groups of tiles, and the most bytes of scales and zero points that a record has.
TEST_F(Task8_4_FusedQuantizedLinear, TheLargestRecordsFindRoomBesideTheSums) {
  SCOPED_TRACE(random.describe());
  const Problem p{16, 28704, 128};
  const Scene scene(*testing::cuda_context(), random, packed(4, 32, false), p, DType::bf16);
  const Tensor x = random.normal({p.m, p.k}, DType::bf16);
  EXPECT_TRUE(close_to(scene.run({.x = x}, testing::poisoned({p.m, p.n}, DType::bf16)),
                       scene.product(to_double(x)), p.k));
}

// Of an H100's or H200's 132 multiprocessors: a block has three tiles or seven, or a cluster of two has eight, in turns of four.
TEST_F(Task8_4_FusedQuantizedLinear, TilesTakeTurns) {
  SCOPED_TRACE(random.describe());
  for (const Problem& p :
       {Problem{16, 8192, 1152}, Problem{7, 8448, 384}, Problem{16, 14384, 256}, Problem{9, 6144, 640}})
    for (const bool symmetric : {true, false}) {
      const Scene scene(*testing::cuda_context(), random, packed(4, 128, symmetric), p, DType::bf16);
      const Tensor x = random.normal({p.m, p.k}, DType::bf16);
      const auto out_of = [&](const Tensor& rows) {
        return scene.run({.x = rows}, testing::poisoned({rows.dim(0), p.n}, DType::bf16));
      };
      const Tensor all = out_of(x);
      EXPECT_TRUE(close_to(all, scene.product(to_double(x)), p.k)) << p.n;
      for (const int64_t count : {1, 5})
        EXPECT_TRUE(testing::bitwise_equal(out_of(x.narrow(0, 2, count)), all.narrow(0, 2, count)))
            << p.n << ", " << count;
    }
}

TEST_F(Task8_4_FusedQuantizedLinear, TheResidualIsAdded) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    const Tensor x = random.normal({p.m, p.k}, dtype), residual = random.normal({p.m, p.n}, dtype, 2);
    auto expected = scene.product(to_double(x));
    const auto before = to_double(residual);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    const Tensor out = scene.run({.x = x, .epilogue = Epilogue::add}, residual);
    EXPECT_TRUE(close_to(to_double(out), expected, p.n, 2 * testing::row_bound(dtype, p.k)));
  });
}

// A row's bits do not depend on how many rows there are.
TEST_F(Task8_4_FusedQuantizedLinear, ARowHasTheSameBitsInAnyBatch) {
  const Problem p{32, 4608, 1024};
  SCOPED_TRACE(random.describe());
  const Scene scene(*testing::cuda_context(), random, packed(4, 128, true), p, DType::bf16);
  const Tensor x = random.normal({p.m, p.k}, DType::bf16);
  const auto out_of = [&](const Tensor& rows) {
    return scene.run({.x = rows, .epilogue = Epilogue::silu_and_mul},
                     testing::poisoned({rows.dim(0), p.n / 2}, DType::bf16));
  };
  const Tensor all = out_of(x);
  for (const int64_t row : {0, 3, 15, 16, 31})
    EXPECT_TRUE(testing::bitwise_equal(out_of(x.narrow(0, row, 1)), all.narrow(0, row, 1))) << row;
}

// x as the scheme rounds it.
std::vector<double> rounded_rows(const Tensor& x, const StoredLinear& stored) {
  const int64_t k = x.dim(1);
  const Tensor rows = x.to(DType::f32);
  std::vector<float> values(static_cast<size_t>(k));
  std::vector<double> out;
  for (int64_t row = 0; row < x.dim(0); ++row) {
    const float scale = round_activations(rows.data<float>() + row * k, k, stored.scheme.input_activations,
                                          kInputScale, values.data());
    for (const float value : values) out.push_back(static_cast<double>(value) * scale);
  }
  return out;
}

class Task8_4_FusedRoundedLinear : public Task8_4_FusedQuantizedLinear {
 protected:
  // check(scene, stored, problem, dtype)
  template <class Check>
  void for_each_rounding(Check&& check) {
    SCOPED_TRACE(random.describe());
    for (const Problem& p : kProblems)
      for (const DType dtype : {DType::bf16, DType::f16}) {
        if (p.m > 32) continue;
        const StoredLinear stored = rounded(random.integer(0, 1) == 0, random.integer(0, 2) > 0);
        SCOPED_TRACE(fmt::format("{}, {}: {} rows, [{}, {}] in {}", testing::describe(stored),
                                 stored.scheme.input_activations->dynamic ? "dynamic" : "static", p.m, p.n,
                                 p.k, dtype_name(dtype)));
        check(Scene(*testing::cuda_context(), random, stored, p, dtype), stored, p, dtype);
        if (HasFatalFailure()) return;
      }
  }
};

TEST_F(Task8_4_FusedRoundedLinear, TheResidualIsAdded) {
  for_each_rounding([&](const Scene& scene, const StoredLinear& stored, const Problem& p, DType dtype) {
    const Tensor x = random.normal({p.m, p.k}, dtype), residual = random.normal({p.m, p.n}, dtype, 2);
    auto expected = scene.product(rounded_rows(x, stored));
    const auto before = to_double(residual);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    const Tensor out = scene.run({.x = x, .epilogue = Epilogue::add}, residual);
    EXPECT_TRUE(close_to(to_double(out), expected, p.n, 2 * testing::row_bound(dtype, p.k)));
  });
}

TEST_F(Task8_4_FusedRoundedLinear, GateAndUpMeetInABlock) {
  for_each_rounding([&](const Scene& scene, const StoredLinear& stored, const Problem& p, DType dtype) {
    const Tensor x = random.normal({p.m, p.k}, dtype, 0.1);
    const FusedProduct product{.x = x, .epilogue = Epilogue::silu_and_mul};
    if (p.n % 32 != 0) {
      EXPECT_FALSE(scene.linear->takes_fused(product));
      return;
    }
    const Tensor unwritten = testing::poisoned({p.m, p.n / 2}, dtype);
    EXPECT_TRUE(close_to(to_double(scene.run(product, unwritten)),
                         gated(scene.product(rounded_rows(x, stored)), static_cast<size_t>(p.n / 2)), p.n / 2,
                         2 * testing::row_bound(dtype, p.k), dtype == DType::f16 ? 0x1p-25 : 0));
  });
}

// Rows of one magnitude, and weights of the norm that are codes: where x was normed a little differently its codes are the same, and
// the scale is as much off as a number in x's dtype may be.
TEST_F(Task8_4_FusedRoundedLinear, TheNormBeforeIsTheOperators) {
  for_each_rounding([&](const Scene& scene, const StoredLinear& stored, const Problem& p, DType dtype) {
    const bool is_float = stored.scheme.weights.is_float;
    const Tensor signs = Tensor::empty({p.m, p.k}, DType::f32), codes = Tensor::empty({p.k}, DType::f32);
    for (int64_t i = 0; i < signs.numel(); ++i)
      signs.data<float>()[i] = (i % p.k != 0 && random.integer(0, 1) == 0 ? -0.5f : 0.5f) *
                               static_cast<float>(1 + i / p.k);  // the first one's code is no -128
    for (int64_t i = 0; i < p.k; ++i)
      codes.data<float>()[i] = is_float ? e4m3_to_float(static_cast<uint8_t>(random.integer(0x10, 0x7d))) / 64
                                        : static_cast<float>(random.integer(-100, 100)) / 64;
    codes.data<float>()[0] =
        (is_float ? 448.0f : 127.5f) / 64;  // the row's largest: its code is the last one
    const Tensor x = signs.to(dtype), weight = codes.to(dtype);
    if (!is_float) codes.data<float>()[0] = 127.0f / 64;
    const FusedProduct product{.x = x, .norm_weight = weight, .eps = kEps};
    if (!may_be_normed(p)) {
      FusedProduct there = product;
      there.x = x.to(scene.ctx.device), there.norm_weight = weight.to(scene.ctx.device);
      EXPECT_FALSE(scene.linear->takes_fused(there));
      return;
    }
    if (!stored.scheme.input_activations->dynamic) return;  // its grid has nothing to do with these codes
    const Tensor out = scene.run(product, testing::poisoned({p.m, p.n}, dtype));
    EXPECT_TRUE(close_to(to_double(out), scene.product(normed(x, codes)), p.n,
                         testing::row_bound(dtype, p.k) + (dtype == DType::bf16 ? 0x1p-8 : 0x1p-11)));
  });
}

// Without a norm: of E4M3 up to sixteen (eight where k is over 7168), whether its block rounds it or a kernel before; and of more, whose
// sums come tile by tile. Those of integers are the same.
TEST_F(Task8_4_FusedRoundedLinear, ARowHasTheSameBitsInAnyBatch) {
  const Problem p{32, 4608, 4096};
  SCOPED_TRACE(random.describe());
  for (const bool is_float : {false, true}) {
    const Scene scene(*testing::cuda_context(), random, rounded(is_float, true), p, DType::bf16);
    const Tensor x = random.normal({p.m, p.k}, DType::bf16);
    const auto out_of = [&](const Tensor& rows) {
      return scene.run({.x = rows, .epilogue = Epilogue::silu_and_mul},
                       testing::poisoned({rows.dim(0), p.n / 2}, DType::bf16));
    };
    const Tensor all = out_of(x), sixteen = out_of(x.narrow(0, 3, 16));
    for (const int64_t count : {1, 2, 5, 8, 9, 17, 29}) {
      const Tensor& with = is_float && count <= 16 ? sixteen : all;
      EXPECT_TRUE(testing::bitwise_equal(out_of(x.narrow(0, 3, count)),
                                         with.narrow(0, is_float && count <= 16 ? 0 : 3, count)))
          << count;
    }
  }
}

// What the product makes of a number that no grid has.
TEST_F(Task8_4_FusedRoundedLinear, ARowWithANaNIsNaNAndNoOther) {
  const Problem p{2, 64, 256};
  SCOPED_TRACE(random.describe());
  const Scene scene(*testing::cuda_context(), random, rounded(true, true), p, DType::bf16);
  const Tensor x = random.normal({p.m, p.k}, DType::f32);
  x.data<float>()[p.k + 17] = NAN;
  const auto are_nan = [&](const Tensor& rows) {
    const Tensor before = Tensor::zeros({rows.dim(0), p.n}, DType::bf16);
    std::vector<bool> nan;
    for (const double y :
         to_double(scene.run({.x = rows.to(DType::bf16), .epilogue = Epilogue::add}, before)))
      nan.push_back(std::isnan(y));
    return nan;
  };
  std::vector<bool> expected(static_cast<size_t>(p.n));
  EXPECT_EQ(are_nan(x.narrow(0, 0, 1)), expected);
  expected.resize(static_cast<size_t>(2 * p.n), true);
  EXPECT_EQ(are_nan(x), expected);
  EXPECT_EQ(are_nan(x.narrow(0, 1, 1)), std::vector<bool>(static_cast<size_t>(p.n), true)) << "in its block";
}

TEST(Task8_4_FusedLinear, OnACpuOperatorsFollowEachOther) {
  Random random;
  const StoredLinear stored = packed(4, 128, true);
  ColumnParallelLinear linear({}, "linear", 128, 32,
                              {.dtype = DType::bf16, .method = quantized_linear_method(stored)});
  const StoredPart part = random_part(random, stored, 32, 128);
  for (Parameter* parameter : linear.parameters())
    parameter->load(part.tensors.at(parameter->name.substr(parameter->name.rfind('.') + 1)));
  linear.process_after_load({});
  EXPECT_FALSE(linear.takes_fused(
      {.x = Tensor::zeros({1, 128}, DType::bf16), .out = Tensor::zeros({1, 32}, DType::bf16)}));
}

TEST_F(Task8_4_FusedQuantizedLinear, WhatHasNoRoomIsLeftToTheOperators) {
  SCOPED_TRACE(random.describe());
  const OpContext& ctx = *testing::cuda_context();
  const auto takes = [&](const StoredLinear& stored, DType dtype, int64_t rows, bool norms) {
    const Scene scene(ctx, random, stored, {2, 64, 256}, dtype);
    FusedProduct product{.x = Tensor::zeros({rows, 256}, dtype, ctx.device)};
    if (norms) product.norm_weight = Tensor::zeros({256}, dtype, ctx.device);
    return scene.linear->takes_fused(product);
  };
  const StoredLinear stored = packed(4, 128, true), narrow = packed(4, 64, true);
  EXPECT_TRUE(takes(narrow, DType::bf16, 64, false));
  EXPECT_FALSE(takes(narrow, DType::bf16, 65, false)) << "more rows than are streamed";
  EXPECT_TRUE(takes(stored, DType::bf16, 32, false));
  EXPECT_FALSE(takes(stored, DType::bf16, 33, false)) << "which wgmma multiplies";
  EXPECT_FALSE(takes(stored, DType::f16, 9, true)) << "more than a block has room for";
  EXPECT_TRUE(takes(stored, DType::f16, 8, true));
  for (const bool is_float : {false, true}) {
    EXPECT_TRUE(takes(rounded(is_float, true), DType::bf16, 1, true));
    EXPECT_TRUE(takes(rounded(is_float, true), DType::bf16, 32, true));
    EXPECT_FALSE(takes(rounded(is_float, true), DType::bf16, 33, true)) << "more than are streamed";
  }
  StoredLinear of_groups = rounded(true, true);
  of_groups.scheme.input_activations->strategy = ScaleStrategy::group;
  of_groups.scheme.input_activations->group_size = 32;
  EXPECT_FALSE(takes(of_groups, DType::bf16, 1, false)) << "more than one grid for a row";
}

}  // namespace
}  // namespace ladder
