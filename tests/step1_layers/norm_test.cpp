#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/norm/rms_norm.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
struct Size {
  int64_t rows, width;
};
constexpr Size kShapes[] = {{1, 1},    {3, 7},    {2, 64},   {5, 1600}, {4, 1601}, {33, 1024},
                            {5, 2048}, {3, 4096}, {3, 5120}, {2, 8192}, {2, 16384}};

std::vector<double> rms_norm_reference(const Tensor& x, const Tensor& weight, double eps) {
  std::vector<double> values = to_double(x), scale = to_double(weight);
  const size_t width = scale.size();
  for (size_t row = 0; row < values.size() / width; ++row) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += values[row * width + i] * values[row * width + i];
    for (size_t i = 0; i < width; ++i)
      values[row * width + i] *= scale[i] / std::sqrt(sum / static_cast<double>(width) + eps);
  }
  return values;
}

RUNG_TEST(Task1_3_RmsNorm, EqualsDoublePrecision, "rms_norm", rms_norm_variants()) {
  for (DType dtype : kDTypes)
    for (auto [rows, width] : kShapes)
      for (double deviation : {1e-3, 1.0, 30.0}) {
        Random random;
        SCOPED_TRACE(random.describe());
        Tensor x = random.normal({rows, width}, dtype, deviation), weight = random.normal({width}, dtype);
        Tensor out = poisoned({rows, width}, dtype);
        call(rms_norm, ctx, x, weight, 1e-6, out);
        EXPECT_TRUE(close_to(out, rms_norm_reference(x, weight, 1e-6))) << x.str() << " " << deviation;
      }
}

RUNG_TEST(Task1_3_RmsNorm, NormsHeadsInPlaceInsideQkvRows, "rms_norm", rms_norm_variants()) {
  for (int64_t head_dim : {5, 64, 80, 128}) {
    Random random;
    SCOPED_TRACE(random.describe());
    const int64_t tokens = 9, heads = 3, others = 2;
    Tensor qkv = random.normal({tokens, heads + others, head_dim}, DType::bf16);
    Tensor before = qkv.clone(), weight = random.normal({head_dim}, DType::bf16);
    Tensor q = qkv.narrow(1, 0, heads);
    const auto expected = rms_norm_reference(q, weight, 1e-5);
    call(rms_norm, ctx, q, weight, 1e-5, q);
    EXPECT_TRUE(close_to(q, expected));
    EXPECT_TRUE(bitwise_equal(qkv.narrow(1, heads, others), before.narrow(1, heads, others)));
  }
}

RUNG_TEST(Task1_3_RmsNorm, IsExactWhereTheFormulaIs, "rms_norm", rms_norm_variants()) {
  // Rows of +-4 have the root mean square 4.
  for (DType dtype : kDTypes)
    for (int64_t width : {1601, 1600}) {
      Random random;
      SCOPED_TRACE(random.describe());
      Tensor x = Tensor::empty({2, width}, DType::f32), weight = random.exact({width}, DType::f32);
      std::vector<double> expected;
      for (int64_t row = 0; row < 2; ++row)
        for (int64_t i = 0; i < width; ++i) {
          x.at<float>({row, i}) = random.integer(0, 1) ? 4.0f : -4.0f;
          expected.push_back(x.at<float>({row, i}) / 4 * weight.at<float>({i}));
        }
      Tensor out = poisoned({2, width}, dtype);
      call(rms_norm, ctx, x.to(dtype), weight.to(dtype), 0.0, out);
      EXPECT_EQ(to_double(out), expected);
    }
}

RUNG_TEST(Task1_3_RmsNorm, EpsilonIsInsideTheRoot, "rms_norm", rms_norm_variants()) {
  Tensor x = Tensor::zeros({1, 20}, DType::f32), weight = Tensor::empty({20}, DType::f32);
  for (int64_t i = 0; i < 20; ++i) {
    x.at<float>({0, i}) = 1e-3f;
    weight.at<float>({i}) = 1.0f;
  }
  Tensor out = poisoned({1, 20}, DType::f32);
  call(rms_norm, ctx, x, weight, 3e-6, out);
  for (int64_t i = 0; i < 20; ++i) EXPECT_NEAR(out.at<float>({0, i}), 0.5f, 1e-5f);  // 1e-3 / sqrt(4e-6)
}

RUNG_TEST(Task1_3_FusedAddRmsNorm, UpdatesTheResidualAndNormsTheRoundedSum, "fused_add_rms_norm",
          fused_add_rms_norm_variants()) {
  for (DType dtype : kDTypes)
    for (auto [rows, width] : kShapes)
      for (bool in_place : {false, true}) {
        Random random;
        SCOPED_TRACE(random.describe());
        Tensor x = random.normal({rows, width}, dtype), residual = random.normal({rows, width}, dtype, 3.0);
        Tensor weight = random.normal({width}, dtype);
        Tensor sum = Tensor::empty({rows, width}, dtype);
        with_float_type(dtype, "sum", [&](auto tag) {
          using T = decltype(tag);
          for (int64_t i = 0; i < sum.numel(); ++i)
            sum.data<T>()[i] =
                T(static_cast<float>(residual.data<T>()[i]) + static_cast<float>(x.data<T>()[i]));
        });
        Tensor out = in_place ? x : poisoned({rows, width}, dtype);
        call(fused_add_rms_norm, ctx, x, residual, weight, 1e-6, out);
        EXPECT_TRUE(bitwise_equal(residual, sum));
        EXPECT_TRUE(close_to(out, rms_norm_reference(sum, weight, 1e-6))) << x.str();
      }
}

RUNG_TEST(Task1_3_RmsNorm, ARowDoesNotDependOnTheOthersOrOnThreads, "rms_norm", rms_norm_variants()) {
  const int64_t rows = 61, width = 1000;
  Random random;
  SCOPED_TRACE(random.describe());
  Tensor x = random.normal({rows, width}, DType::f32), weight = random.normal({width}, DType::f32);
  Tensor out = poisoned({rows, width}, DType::f32);
  with_threads(3, [&] { call(rms_norm, ctx, x, weight, 1e-6, out); });
  for (int64_t row : {int64_t{0}, random.integer(1, rows - 2), rows - 1}) {
    Tensor alone = poisoned({1, width}, DType::f32);
    call(rms_norm, ctx, x.narrow(0, row, 1), weight, 1e-6, alone);
    EXPECT_TRUE(bitwise_equal(out.narrow(0, row, 1), alone)) << row;
  }
}

// Kernels that let the next one start early (cuda_kernel.cuh) wait before they read: here what the same rung still writes,
// and the last columns of its rows, which come last.
RUNG_TEST(Task1_3_RmsNorm, ReadsWhatTheKernelInFrontWrote, "rms_norm",
          rungs_where(rms_norm_variants(),
                      [](const auto& rung) { return rung.device == DeviceType::cuda; })) {
  const int64_t rows = emulated() ? 2 : 128, width = emulated() ? 256 : 8192, tail = width / 8;
  Random random;
  SCOPED_TRACE(random.describe());
  OpContext gpu = *cuda_context();
  gpu.dependent_launch = true;
  const Tensor x = random.normal({rows, width}, DType::bf16).to(gpu.device);
  const Tensor weight = random.normal({width}, DType::bf16).to(gpu.device);
  const Tensor between = Tensor::empty({rows, width}, DType::bf16, gpu.device);
  const Tensor out = Tensor::empty({rows, tail}, DType::bf16, gpu.device);
  const RmsNormArgs first{x, weight, 1e-6, between};
  const RmsNormArgs second{between.narrow(1, width - tail, tail), weight.narrow(0, 0, tail), 1e-6, out};
  const auto result = [&](bool wait) {
    for (const Tensor& tensor : {between, out}) tensor.fill_bytes(0xff);
    rung.run(gpu, first);
    if (wait) device_synchronize(gpu.device, gpu.stream);
    rung.run(gpu, second);
    device_synchronize(gpu.device, gpu.stream);
    return out.to(Device{});
  };
  const Tensor expected = result(true);
  for (int i = 0; i < (emulated() ? 1 : 200) && !::testing::Test::HasFailure(); ++i)
    EXPECT_TRUE(bitwise_equal(result(false), expected)) << "in call " << i;
}

TEST(Task1_3_RmsNorm, NamesWhatDoesNotFit) {
  OpContext ctx;
  auto f32 = [](const Shape& shape) { return Tensor::zeros(shape, DType::f32); };
  EXPECT_THROW(rms_norm(ctx, f32({2, 4}), f32({5}), 1e-6, f32({2, 4})), Error);
  EXPECT_THROW(rms_norm(ctx, f32({2, 4}), f32({4}), 1e-6, f32({3, 4})), Error);
  EXPECT_THROW(rms_norm(ctx, f32({2, 4}), Tensor::zeros({4}, DType::bf16), 1e-6, f32({2, 4})), Error);
  EXPECT_THROW(fused_add_rms_norm(ctx, f32({2, 4}), f32({2, 3}), f32({4}), 1e-6, f32({2, 4})), Error);
}

}  // namespace
}  // namespace ladder
