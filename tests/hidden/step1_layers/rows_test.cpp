// Tasks 1.2, 1.3 and 1.10 on rows of very different magnitudes, each with values of one magnitude, so that no row's error hides
// behind another's values.
#include <cmath>
#include <functional>

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/norm/layer_norm.h"
#include "step1_layers/norm/rms_norm.h"
#include "tests/hidden/step1_layers/margins.h"
#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// `x` becomes rows of values around one number each, which number_of() gives.
void fill_rows(Random& random, const Tensor& x, const std::function<double()>& number_of) {
  const Tensor values = Tensor::empty(x.shape(), DType::f32);
  const int64_t width = x.dim(x.ndim() - 1);
  for (int64_t row = 0; row * width < values.numel(); ++row) {
    const double number = number_of();
    for (int64_t i = 0; i < width; ++i)
      values.data<float>()[row * width + i] = static_cast<float>(number * random.uniform(0.9, 1.1));
  }
  x.copy_from(values.to(x.dtype()));
}

// `run(x, out)` against activation(gate), times the other half of the row if `gated`.
template <class Run>
void check_activation(bool gated, double (*activation)(double), Run&& run) {
  repeated(20, [&](Random& random) {
    const DType dtype = any_float(random);
    const int64_t rows = random.integer(1, 45), width = random.integer(1, 700);
    const Margins x(random, {rows, gated ? 2 * width : width}, dtype), out(random, {rows, width}, dtype);
    // Below -4 the results leave the range in which f16 has a relative precision.
    fill_rows(random, x.inside,
              [&] { return random.integer(0, 1) ? random.uniform(-4, 4) : std::exp(random.uniform(-6, 3)); });
    if (gated) fill_rows(random, x.inside.narrow(1, width, width), [&] { return random.uniform(-2, 2); });
    const auto values = to_double(x.inside);
    std::vector<double> expected;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) {
        const double* from = values.data() + row * x.inside.dim(1) + i;
        expected.push_back(activation(*from) * (gated ? from[width] : 1));
      }
    run(x.inside, out.inside);
    EXPECT_TRUE(close_to(out.inside, expected)) << x.inside.str();
    out.expect_untouched();
  });
}

double silu_of(double x) {
  return x / (1 + std::exp(-x));
}
double gelu_by_erf(double x) {
  return x / 2 * std::erfc(-x / std::sqrt(2.0));
}
double gelu_by_tanh(double x) {
  return x / (1 + std::exp(-std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x)));
}

constexpr std::pair<GeluKind, double (*)(double)> kGeluForms[] = {{GeluKind::erf, gelu_by_erf},
                                                                  {GeluKind::tanh, gelu_by_tanh}};

RUNG_TEST(Hidden1_2_SiluAndMul, RowsOfOneMagnitude, "silu_and_mul", silu_and_mul_variants()) {
  check_activation(true, silu_of,
                   [&](const Tensor& x, const Tensor& out) { call(silu_and_mul, ctx, x, out); });
}

RUNG_TEST(Hidden1_2_Gelu, RowsOfOneMagnitude, "gelu", gelu_variants()) {
  for (const auto& [kind, form] : kGeluForms)
    check_activation(false, form, [&](const Tensor& x, const Tensor& out) { call(gelu, ctx, x, out, kind); });
}

RUNG_TEST(Hidden1_2_GeluAndMul, RowsOfOneMagnitude, "gelu_and_mul", gelu_and_mul_variants()) {
  for (const auto& [kind, form] : kGeluForms)
    check_activation(true, form,
                     [&](const Tensor& x, const Tensor& out) { call(gelu_and_mul, ctx, x, out, kind); });
}

// A magnitude that the type holds, squares of it and sums of these included.
double any_magnitude(Random& random, DType dtype) {
  return std::pow(10.0, dtype == DType::f16 ? random.uniform(-1, 2) : random.uniform(-12, 12));
}

RUNG_TEST(Hidden1_3_RmsNorm, HeadsOfAnyMagnitudeBesideOthers, "rms_norm", rms_norm_variants()) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random);
    const int64_t tokens = random.integer(1, 20), heads = random.integer(1, 6),
                  width = random.one_of<int64_t>({random.integer(1, 40), random.integer(41, 3000)});
    const double magnitude = any_magnitude(random, dtype), eps = magnitude * magnitude * random.uniform(0, 1);
    const Tensor all = poisoned({tokens, heads + 3, width}, dtype),
                 x = all.narrow(1, random.integer(0, 3), heads), weight = random.normal({width}, dtype);
    fill_rows(random, x,
              [&] { return magnitude * random.uniform(0.5, 2) * (random.integer(0, 1) ? 1 : -1); });
    const Margins out(random, {tokens, heads, width}, dtype);
    const auto expected = normed(x, weight, eps);
    call(rms_norm, ctx, x, weight, eps, out.inside);
    EXPECT_TRUE(close_to(out.inside, expected)) << x.str() << " of " << magnitude << ", eps " << eps;
    out.expect_untouched();
  });
}

RUNG_TEST(Hidden1_3_FusedAddRmsNorm, NormsTheRoundedSumOfAnyMagnitude, "fused_add_rms_norm",
          fused_add_rms_norm_variants()) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random);
    const Shape shape = {random.integer(1, 30),
                         random.one_of<int64_t>({random.integer(1, 40), random.integer(41, 3000)})};
    const double magnitude = any_magnitude(random, dtype), eps = magnitude * magnitude * random.uniform(0, 1);
    const Margins x(random, shape, dtype), residual(random, shape, dtype), out(random, shape, dtype);
    fill_rows(random, x.inside, [&] { return magnitude * random.uniform(0.5, 2); });
    fill_rows(random, residual.inside, [&] { return magnitude * random.uniform(-2, -0.1); });
    const Tensor weight = random.normal({shape[1]}, dtype), sum = Tensor::empty(shape, DType::f32);
    const auto a = to_double(x.inside), b = to_double(residual.inside);
    for (size_t i = 0; i < a.size(); ++i) sum.data<float>()[i] = static_cast<float>(a[i] + b[i]);
    const Tensor expected = sum.to(dtype);
    call(fused_add_rms_norm, ctx, x.inside, residual.inside, weight, eps, out.inside);
    EXPECT_TRUE(bitwise_equal(residual.inside, expected));
    EXPECT_TRUE(close_to(out.inside, normed(expected, weight, eps))) << magnitude << ", eps " << eps;
    out.expect_untouched();
    residual.expect_untouched();
  });
}

RUNG_TEST(Hidden1_10_LayerNorm, RowsOfAnyMagnitudeAndMean, "layer_norm", layer_norm_variants()) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random);
    const Shape shape = {random.integer(1, 30),
                         random.one_of<int64_t>({random.integer(1, 40), random.integer(41, 3000)})};
    const double magnitude = any_magnitude(random, dtype),
                 eps = magnitude * magnitude * random.uniform(0.01, 1);
    const Margins x(random, shape, dtype), out(random, shape, dtype);
    const Tensor values = random.normal(shape, DType::f32, magnitude);
    for (int64_t row = 0; row < shape[0]; ++row) {
      const double mean = magnitude * random.uniform(-3, 3);
      for (int64_t i = 0; i < shape[1]; ++i) values.at<float>({row, i}) += static_cast<float>(mean);
    }
    x.inside.copy_from(values.to(dtype));
    const Tensor weight = random.normal({shape[1]}, dtype), bias = random.normal({shape[1]}, dtype);
    call(layer_norm, ctx, x.inside, weight, bias, eps, out.inside);
    EXPECT_TRUE(close_to(out.inside, layer_normed(x.inside, weight, bias, eps)))
        << x.inside.str() << " of " << magnitude << ", eps " << eps;
    out.expect_untouched();
  });
}

// Pairs as far above a large number as below it: mean and variance are exact, and the mean of the squares has no digit left
// for the variance.
RUNG_TEST(Hidden1_10_LayerNorm, RowsFarFromZero, "layer_norm", layer_norm_variants()) {
  repeated(25, [&](Random& random) {
    const int64_t width = 2 * random.integer(8, 600);
    const auto base = static_cast<float>(random.integer(2000, 8000));
    const Tensor x = Tensor::empty({1, width}, DType::f32), out = poisoned({1, width}, DType::f32);
    for (int64_t i = 0; i < width; i += 2) {
      const auto difference = static_cast<float>(random.integer(i == 0 ? 1 : 0, 2));
      x.at<float>({0, i}) = base + difference;
      x.at<float>({0, i + 1}) = base - difference;
    }
    const Tensor weight = random.normal({width}, DType::f32), bias = random.normal({width}, DType::f32);
    call(layer_norm, ctx, x, weight, bias, 1e-5, out);
    EXPECT_TRUE(close_to(out, layer_normed(x, weight, bias, 1e-5))) << width << " values around " << base;
  });
}

RUNG_TEST(Hidden1_10_FusedAddLayerNorm, NormsTheRoundedSumOfAnyMagnitude, "fused_add_layer_norm",
          fused_add_layer_norm_variants()) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random);
    const Shape shape = {random.integer(1, 30),
                         random.one_of<int64_t>({random.integer(1, 40), random.integer(41, 3000)})};
    const double magnitude = any_magnitude(random, dtype),
                 eps = magnitude * magnitude * random.uniform(0.01, 1);
    const Margins x(random, shape, dtype), residual(random, shape, dtype), out(random, shape, dtype);
    x.inside.copy_from(random.normal(shape, dtype, magnitude));
    residual.inside.copy_from(random.normal(shape, dtype, magnitude * random.uniform(0.5, 2)));
    const Tensor weight = random.normal({shape[1]}, dtype), bias = random.normal({shape[1]}, dtype),
                 sum = Tensor::empty(shape, DType::f32);
    const auto a = to_double(x.inside), b = to_double(residual.inside);
    for (size_t i = 0; i < a.size(); ++i) sum.data<float>()[i] = static_cast<float>(a[i] + b[i]);
    const Tensor expected = sum.to(dtype);
    const bool in_place = random.integer(0, 1) == 1;
    call(fused_add_layer_norm, ctx, x.inside, residual.inside, weight, bias, eps,
         in_place ? x.inside : out.inside);
    EXPECT_TRUE(bitwise_equal(residual.inside, expected));
    EXPECT_TRUE(close_to(in_place ? x.inside : out.inside, layer_normed(expected, weight, bias, eps)))
        << magnitude << ", eps " << eps << (in_place ? ", in place" : "");
    residual.expect_untouched();
    (in_place ? x : out).expect_untouched();
  });
}

}  // namespace
}  // namespace ladder
