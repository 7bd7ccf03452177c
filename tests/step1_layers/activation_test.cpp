#include <cmath>

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/relu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
// One value, less than a register, whole registers, one more than whole registers, several pieces of work.
struct Size {
  int64_t rows, width;
};
constexpr Size kShapes[] = {{1, 1}, {3, 7}, {2, 64}, {3, 71}, {5, 1600}, {4, 1601}, {40, 1000}};

double silu(double x) {
  return x / (1 + std::exp(-x));
}
double gelu_erf(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}
double gelu_tanh(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Checks out = f(gate) * up (or f(x) where there is no up) for random inputs.
template <class Run>
void check_activation(DType dtype, bool gated, double (*f)(double), Run&& run) {
  for (auto [rows, width] : kShapes)
    for (double deviation : {0.1, 1.0, 6.0}) {
      // A short row may hold nothing but results below the dtype's normal range, where no relative bound
      // holds.
      if (width < 64 && (dtype == DType::f16 || deviation > 1)) continue;
      Random random;
      SCOPED_TRACE(random.describe());
      Tensor x = random.normal({rows, gated ? 2 * width : width}, dtype, deviation);
      Tensor out = poisoned({rows, width}, dtype);
      run(x, out);
      std::vector<double> values = to_double(x), expected(static_cast<size_t>(rows * width));
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; ++i) {
          const double* from = values.data() + row * x.dim(1);
          expected[row * width + i] = gated ? f(from[i]) * from[width + i] : f(from[i]);
        }
      EXPECT_TRUE(close_to(out, expected)) << x.str() << " deviation " << deviation;
    }
}

RUNG_TEST(Task1_2_SiluAndMul, EqualsDoublePrecision, "silu_and_mul", silu_and_mul_variants()) {
  for (DType dtype : kDTypes)
    check_activation(dtype, true, silu,
                     [&](const Tensor& x, const Tensor& out) { call(silu_and_mul, ctx, x, out); });
}

template <class Run>
void check_both_forms(bool gated, Run&& run) {
  for (GeluKind kind : {GeluKind::erf, GeluKind::tanh})
    for (DType dtype : kDTypes)
      check_activation(dtype, gated, kind == GeluKind::erf ? gelu_erf : gelu_tanh,
                       [&](const Tensor& x, const Tensor& out) { run(x, out, kind); });
}

RUNG_TEST(Task1_2_Gelu, BothFormsEqualDoublePrecision, "gelu", gelu_variants()) {
  check_both_forms(false,
                   [&](const Tensor& x, const Tensor& out, GeluKind kind) { call(gelu, ctx, x, out, kind); });
}

RUNG_TEST(Task1_2_GeluAndMul, BothFormsEqualDoublePrecision, "gelu_and_mul", gelu_and_mul_variants()) {
  check_both_forms(true, [&](const Tensor& x, const Tensor& out, GeluKind kind) {
    call(gelu_and_mul, ctx, x, out, kind);
  });
}

RUNG_TEST(Relu, IsTheLargerOfTheValueAndZero, "relu", relu_variants()) {
  for (DType dtype : kDTypes)
    check_activation(
        dtype, false, [](double x) { return std::max(x, 0.0); },
        [&](const Tensor& x, const Tensor& out) { call(relu, ctx, x, out); });
  const Tensor x = Tensor::zeros({1, 2}, DType::f32);
  x.data<float>()[0] = NAN;
  call(relu, ctx, x, x);
  EXPECT_TRUE(std::isnan(x.data<float>()[0]));  // as torch: what is broken stays visible
  EXPECT_THROW(relu({}, x, Tensor::zeros({1, 3}, DType::f32)), Error);
}

RUNG_TEST(Task1_2_Gelu, KeepsRelativeAccuracyInTheNegativeTail, "gelu", gelu_variants()) {
  // Rows of one value: nothing larger in the row hides an error there.
  for (double x = -5; x < 5; x += 0.01) {
    Tensor in = Tensor::empty({1, 8}, DType::f32), out = poisoned({1, 8}, DType::f32);
    std::fill_n(in.data<float>(), 8, static_cast<float>(x));
    const double expected = gelu_erf(in.at<float>({0, 0}));
    call(gelu, ctx, in, out, GeluKind::erf);
    ASSERT_TRUE(close_to(out, std::vector<double>(8, expected))) << x;
  }
}

RUNG_TEST(Task1_2_SiluAndMul, IsExactWhereTheFormulaIs, "silu_and_mul", silu_and_mul_variants()) {
  // silu(x) is x to the last bit for x >= 40, and 0 at 0.
  for (DType dtype : kDTypes)
    for (int64_t width : {77, 80}) {
      Random random;
      SCOPED_TRACE(random.describe());
      Tensor x = random.exact({3, 2 * width}, DType::f32);
      std::vector<double> expected;
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t i = 0; i < width; ++i) {
          float& gate = x.at<float>({row, i});
          gate = gate == 0 ? 0.0f : 40.0f + 8.0f * std::abs(gate);
          expected.push_back(gate * x.at<float>({row, width + i}));
        }
      Tensor out = poisoned({3, width}, dtype);
      call(silu_and_mul, ctx, x.to(dtype), out);
      EXPECT_EQ(to_double(out), expected);
    }
}

RUNG_TEST(Task1_2_SiluAndMul, ARowDoesNotDependOnTheOthersOrOnThreadsOrStrides, "silu_and_mul",
          silu_and_mul_variants()) {
  for (auto [width, padding] : {std::pair<int64_t, int64_t>{333, 5}, {336, 8}}) {
    Random random;
    SCOPED_TRACE(random.describe());
    const int64_t rows = 97;
    Tensor wide = random.normal({rows, 2 * width + padding}, DType::f32);
    Tensor x = wide.narrow(1, 0, 2 * width);
    Tensor out = poisoned({rows, width}, DType::f32);
    with_threads(3, [&] { call(silu_and_mul, ctx, x, out); });
    for (int64_t row : {int64_t{0}, random.integer(1, rows - 2), rows - 1}) {
      Tensor alone = poisoned({1, width}, DType::f32);
      call(silu_and_mul, ctx, x.narrow(0, row, 1).clone(), alone);
      EXPECT_TRUE(bitwise_equal(out.narrow(0, row, 1), alone)) << row;
    }
  }
}

TEST(Task1_2_SiluAndMul, NamesWhatDoesNotFit) {
  OpContext ctx;
  EXPECT_THROW(silu_and_mul(ctx, Tensor::zeros({2, 7}, DType::f32), Tensor::zeros({2, 4}, DType::f32)),
               Error);
  EXPECT_THROW(silu_and_mul(ctx, Tensor::zeros({2, 8}, DType::bf16), Tensor::zeros({2, 4}, DType::f32)),
               Error);
  EXPECT_THROW(silu_and_mul(ctx, Tensor::zeros({3, 8}, DType::f32), Tensor::zeros({2, 4}, DType::f32)),
               Error);
  EXPECT_THROW(gelu(ctx, Tensor::zeros({2, 4}, DType::i32), Tensor::zeros({2, 4}, DType::i32), GeluKind::erf),
               Error);
}

}  // namespace
}  // namespace ladder
