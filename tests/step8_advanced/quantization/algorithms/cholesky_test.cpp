#include "step8_advanced/quantization/algorithms/cholesky.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "step1_layers/core/parallel.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

// x^T x + I of random x.
Tensor positive_definite(int64_t n, uint64_t seed) {
  Random random(seed);
  const Tensor x = random.normal({n, n}, DType::f32);
  const Tensor a = Tensor::zeros({n, n}, DType::f64);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        a.data<double>()[i * n + j] +=
            static_cast<double>(x.data<float>()[row * n + i]) * x.data<float>()[row * n + j];
  for (int64_t i = 0; i < n; ++i) a.data<double>()[i * n + i] += 1;
  return a;
}

// a^T b or a b^T or a b.
enum class Product { plain, left_transposed, right_transposed };
Tensor multiply(const Tensor& a, const Tensor& b, Product kind = Product::plain) {
  const int64_t n = a.dim(0);
  const Tensor out = Tensor::zeros({n, n}, DType::f64);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < n; ++p)
      for (int64_t j = 0; j < n; ++j)
        out.data<double>()[i * n + j] +=
            a.data<double>()[kind == Product::left_transposed ? p * n + i : i * n + p] *
            b.data<double>()[kind == Product::right_transposed ? j * n + p : p * n + j];
  return out;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.numel(); ++i)
    largest = std::max(largest, std::fabs(a.data<double>()[i] - b.data<double>()[i]));
  return largest;
}

Tensor identity(int64_t n) {
  const Tensor out = Tensor::zeros({n, n}, DType::f64);
  for (int64_t i = 0; i < n; ++i) out.data<double>()[i * n + i] = 1;
  return out;
}

const std::vector<int64_t> kSizes = {1, 2, 17, 63, 64, 65, 130, 200};

TEST(Task8_3_Cholesky, TheFactorTimesItsTransposeIsTheMatrix) {
  for (const int64_t n : kSizes) {
    const Tensor a = positive_definite(n, 1), l = a.clone();
    for (int64_t i = 0; i < n; ++i)  // only the lower triangle is read
      for (int64_t j = i + 1; j < n; ++j) l.data<double>()[i * n + j] = NAN;
    ASSERT_FALSE(factor_cholesky(l)) << n;
    EXPECT_LT(largest_difference(multiply(l, l, Product::right_transposed), a),
              1e-11 * static_cast<double>(n))
        << n;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j) EXPECT_EQ(l.at<double>({i, j}), 0.0);
  }
}

TEST(Task8_3_Cholesky, InvertsALowerTriangle) {
  for (const int64_t n : kSizes) {
    const Tensor l = positive_definite(n, 2);
    ASSERT_FALSE(factor_cholesky(l));
    const Tensor inverse = l.clone();
    invert_lower(inverse);
    EXPECT_LT(largest_difference(multiply(l, inverse), identity(n)), 1e-11) << n;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j) EXPECT_EQ(inverse.at<double>({i, j}), 0.0);
  }
}

TEST(Task8_3_Cholesky, TheInversesFactorIsUpperTriangular) {
  for (const int64_t n : kSizes) {
    const Tensor a = positive_definite(n, 3), u = a.clone();
    ASSERT_FALSE(factor_inverse(u));
    EXPECT_LT(largest_difference(multiply(multiply(u, u, Product::left_transposed), a), identity(n)), 1e-10)
        << n;
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_GT(u.at<double>({i, i}), 0.0);
      for (int64_t j = 0; j < i; ++j) EXPECT_EQ(u.at<double>({i, j}), 0.0);
    }
  }
}

TEST(Task8_3_Cholesky, SaysWhichPivotIsNotAboveZero) {
  for (const int64_t bad : {0, 5, 63, 64, 129}) {
    const Tensor a = identity(130);
    a.at<double>({bad, bad}) = -1e-9;
    EXPECT_EQ(factor_cholesky(a.clone()), bad);
    EXPECT_EQ(factor_inverse(a.clone()), bad);
    a.at<double>({bad, bad}) = NAN;
    EXPECT_EQ(factor_cholesky(a), bad);
  }
}

TEST(Task8_3_Cholesky, HasTheSameBitsForAnyNumberOfThreads) {
  const int before = num_threads();
  const Tensor a = positive_definite(200, 4);
  set_num_threads(1);
  const Tensor alone = a.clone();
  ASSERT_FALSE(factor_inverse(alone));
  for (const int threads : {2, 3, 5}) {
    set_num_threads(threads);
    const Tensor u = a.clone();
    ASSERT_FALSE(factor_inverse(u));
    EXPECT_TRUE(testing::bitwise_equal(u, alone)) << threads;
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace ladder
