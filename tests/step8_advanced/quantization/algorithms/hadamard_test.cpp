#include "step8_advanced/quantization/algorithms/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"

namespace ladder {
namespace {

using testing::error_of;
using testing::Random;

const std::vector<int64_t> kSizes = {1, 2, 4, 64, 128, 12, 24, 96, 20, 40, 160, 640};

Tensor identity(int64_t n) {
  const Tensor out = Tensor::zeros({n, n}, DType::f64);
  for (int64_t i = 0; i < n; ++i) out.at<double>({i, i}) = 1;
  return out;
}

TEST(Task8_3_Hadamard, RowsAreOrthogonalAndAllElementsAsLarge) {
  for (const int64_t n : kSizes) {
    const HadamardRotation rotation(n, 7);
    const Tensor q = identity(n);
    rotation.rotate(q);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < n; ++p) sum += q.data<double>()[i * n + p] * q.data<double>()[j * n + p];
        ASSERT_NEAR(sum, i == j ? 1 : 0, 1e-12) << "size " << n << ", rows " << i << " and " << j;
      }
      for (int64_t j = 0; j < n; ++j)
        ASSERT_NEAR(std::fabs(q.data<double>()[i * n + j]), 1 / std::sqrt(static_cast<double>(n)), 1e-12);
    }
    rotation.rotate_back(q);
    for (int64_t i = 0; i < n * n; ++i) ASSERT_NEAR(q.data<double>()[i], i % (n + 1) == 0 ? 1 : 0, 1e-12);
  }
}

TEST(Task8_3_Hadamard, RotatingInputsAndWeightsLeavesTheOutputs) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t n : {64, 96, 640}) {
    const Tensor x = random.normal({5, n}, DType::f32), w = random.normal({7, n}, DType::f32);
    const auto outputs = [&] {
      std::vector<double> out;
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 7; ++j) {
          double sum = 0;
          for (int64_t p = 0; p < n; ++p)
            sum += static_cast<double>(x.data<float>()[i * n + p]) * w.data<float>()[j * n + p];
          out.push_back(sum);
        }
      }
      return out;
    };
    const std::vector<double> before = outputs();
    const HadamardRotation rotation(n, 3);
    rotation.rotate(x);
    rotation.rotate(w);
    EXPECT_TRUE(testing::close_to(outputs(), before, 7, 1e-5)) << "size " << n;
  }
}

TEST(Task8_3_Hadamard, AnOutlierIsSpreadOverAllFeatures) {
  for (const int64_t n : {256, 640}) {
    const Tensor x = Tensor::zeros({1, n}, DType::f32);
    x.at<float>({0, 17}) = 100;
    HadamardRotation(n, 1).rotate(x);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(std::fabs(x.at<float>({0, i})), 100 / std::sqrt(static_cast<double>(n)), 1e-4);
  }
}

TEST(Task8_3_Hadamard, SignsAreThoseOfTheSeed) {
  const auto rotated = [](uint64_t seed) {
    const Tensor x = identity(64);
    HadamardRotation(64, seed).rotate(x);
    return x;
  };
  EXPECT_TRUE(testing::bitwise_equal(rotated(1), rotated(1)));
  EXPECT_FALSE(testing::bitwise_equal(rotated(1), rotated(2)));
  int negative = 0;  // rows of H_64 begin with 1, so the first column is the signs
  for (int64_t i = 0; i < 64; ++i) negative += rotated(1).at<double>({i, 0}) < 0;
  EXPECT_GT(negative, 16);
  EXPECT_LT(negative, 48);
}

TEST(Task8_3_Hadamard, OtherSizesAreErrors) {
  for (const int64_t n : {0, -4, 3, 28, 36, 60, 100, 240})
    EXPECT_NE(error_of([&] { HadamardRotation(n, 1); }).find(std::to_string(n)), std::string::npos) << n;
}

}  // namespace
}  // namespace ladder
