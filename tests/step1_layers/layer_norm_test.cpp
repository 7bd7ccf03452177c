#include "step1_layers/norm/layer_norm.h"

#include "step1_layers/core/error.h"
#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
struct Size {
  int64_t rows, width;
};
constexpr Size kShapes[] = {{1, 1},    {3, 7},    {2, 64},   {5, 1600}, {4, 1601},
                            {33, 768}, {5, 2048}, {3, 4096}, {2, 9216}, {2, 16384}};

RUNG_TEST(Task1_10_LayerNorm, EqualsDoublePrecision, "layer_norm", layer_norm_variants()) {
  for (DType dtype : kDTypes)
    for (auto [rows, width] : kShapes)
      for (double deviation : {1e-3, 1.0, 30.0}) {
        Random random;
        SCOPED_TRACE(random.describe());
        Tensor x = random.normal({rows, width}, dtype, deviation), weight = random.normal({width}, dtype);
        Tensor bias = random.normal({width}, dtype), out = poisoned({rows, width}, dtype);
        call(layer_norm, ctx, x, weight, bias, 1e-5, out);
        EXPECT_TRUE(close_to(out, layer_normed(x, weight, bias, 1e-5))) << x.str() << " " << deviation;
      }
}

// Rows of 1000 +- 1, which are exact in f32: mean(x^2) - mean(x)^2 in float would be 0 or 0.06 and so on.
RUNG_TEST(Task1_10_LayerNorm, TheVarianceIsThatOfTheDifferences, "layer_norm", layer_norm_variants()) {
  for (int64_t width : {64, 1600, 1602}) {
    Tensor x = Tensor::empty({2, width}, DType::f32), out = poisoned({2, width}, DType::f32);
    Tensor weight = Tensor::empty({width}, DType::f32), bias = Tensor::zeros({width}, DType::f32);
    for (int64_t i = 0; i < width; ++i) {
      weight.at<float>({i}) = 2.0f;
      for (int64_t row = 0; row < 2; ++row) x.at<float>({row, i}) = (i + row) % 2 ? 1001.0f : 999.0f;
    }
    call(layer_norm, ctx, x, weight, bias, 0.0, out);
    for (int64_t i = 0; i < width; ++i) {
      EXPECT_NEAR(out.at<float>({0, i}), i % 2 ? 2.0f : -2.0f, 1e-3f) << width << " " << i;
      EXPECT_NEAR(out.at<float>({1, i}), i % 2 ? -2.0f : 2.0f, 1e-3f) << width << " " << i;
    }
  }
}

// The variance of +-1e-3 is 1e-6, and with 3e-6 the root is 2e-3.
RUNG_TEST(Task1_10_LayerNorm, EpsilonIsInsideTheRoot, "layer_norm", layer_norm_variants()) {
  Tensor x = Tensor::empty({1, 20}, DType::f32), weight = Tensor::empty({20}, DType::f32);
  Tensor bias = Tensor::empty({20}, DType::f32), out = poisoned({1, 20}, DType::f32);
  for (int64_t i = 0; i < 20; ++i) {
    x.at<float>({0, i}) = i % 2 ? 1e-3f : -1e-3f;
    weight.at<float>({i}) = 1.0f;
    bias.at<float>({i}) = 3.0f;
  }
  call(layer_norm, ctx, x, weight, bias, 3e-6, out);
  for (int64_t i = 0; i < 20; ++i) EXPECT_NEAR(out.at<float>({0, i}), i % 2 ? 3.5f : 2.5f, 1e-5f);
}

RUNG_TEST(Task1_10_FusedAddLayerNorm, UpdatesTheResidualAndNormsTheRoundedSum, "fused_add_layer_norm",
          fused_add_layer_norm_variants()) {
  for (DType dtype : kDTypes)
    for (auto [rows, width] : kShapes)
      for (bool in_place : {false, true}) {
        Random random;
        SCOPED_TRACE(random.describe());
        Tensor x = random.normal({rows, width}, dtype), residual = random.normal({rows, width}, dtype, 3.0);
        Tensor weight = random.normal({width}, dtype), bias = random.normal({width}, dtype);
        Tensor sum = Tensor::empty({rows, width}, dtype);
        with_float_type(dtype, "sum", [&](auto tag) {
          using T = decltype(tag);
          for (int64_t i = 0; i < sum.numel(); ++i)
            sum.data<T>()[i] =
                T(static_cast<float>(residual.data<T>()[i]) + static_cast<float>(x.data<T>()[i]));
        });
        Tensor out = in_place ? x : poisoned({rows, width}, dtype);
        call(fused_add_layer_norm, ctx, x, residual, weight, bias, 1e-5, out);
        EXPECT_TRUE(bitwise_equal(residual, sum));
        EXPECT_TRUE(close_to(out, layer_normed(sum, weight, bias, 1e-5))) << x.str();
      }
}

RUNG_TEST(Task1_10_LayerNorm, ARowDoesNotDependOnTheOthersOrOnThreads, "layer_norm", layer_norm_variants()) {
  const int64_t rows = 61, width = 1000;
  Random random;
  SCOPED_TRACE(random.describe());
  Tensor x = random.normal({rows, width}, DType::f32), weight = random.normal({width}, DType::f32);
  Tensor bias = random.normal({width}, DType::f32), out = poisoned({rows, width}, DType::f32);
  with_threads(3, [&] { call(layer_norm, ctx, x, weight, bias, 1e-5, out); });
  for (int64_t row : {int64_t{0}, random.integer(1, rows - 2), rows - 1}) {
    Tensor alone = poisoned({1, width}, DType::f32);
    call(layer_norm, ctx, x.narrow(0, row, 1), weight, bias, 1e-5, alone);
    EXPECT_TRUE(bitwise_equal(out.narrow(0, row, 1), alone)) << row;
  }
}

TEST(Task1_10_LayerNorm, NamesWhatDoesNotFit) {
  OpContext ctx;
  auto f32 = [](const Shape& shape) { return Tensor::zeros(shape, DType::f32); };
  EXPECT_THROW(layer_norm(ctx, f32({2, 4}), f32({5}), f32({4}), 1e-5, f32({2, 4})), Error);
  EXPECT_THROW(layer_norm(ctx, f32({2, 4}), f32({4}), f32({5}), 1e-5, f32({2, 4})), Error);
  EXPECT_THROW(layer_norm(ctx, f32({2, 4}), f32({4}), f32({4}), 1e-5, f32({3, 4})), Error);
  EXPECT_THROW(fused_add_layer_norm(ctx, f32({2, 4}), f32({2, 3}), f32({4}), f32({4}), 1e-5, f32({2, 4})),
               Error);
}

}  // namespace
}  // namespace ladder
