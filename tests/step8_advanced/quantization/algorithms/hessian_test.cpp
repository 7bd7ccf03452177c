#include "step8_advanced/quantization/algorithms/hessian.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::error_of;
using testing::Random;

TEST(Task8_3_Hessian, IsTwiceTheMeanOfTheOuterProducts) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {700, 65}, {513, 300}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Tensor x = random.normal({m, k}, dtype);
      const std::vector<double> numbers = testing::to_double(x);
      Hessian hessian(k, "layer");
      hessian.add(x);
      EXPECT_EQ(hessian.count(), m);
      std::vector<double> h(static_cast<size_t>(k * k)), mean(static_cast<size_t>(k)),
          max(static_cast<size_t>(k));
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t i = 0; i < k; ++i) {
          const double value = numbers[static_cast<size_t>(row * k + i)];
          mean[static_cast<size_t>(i)] += std::fabs(value) / static_cast<double>(m);
          max[static_cast<size_t>(i)] = std::max(max[static_cast<size_t>(i)], std::fabs(value));
          for (int64_t j = 0; j < k; ++j)
            h[static_cast<size_t>(i * k + j)] +=
                2 * value * numbers[static_cast<size_t>(row * k + j)] / static_cast<double>(m);
        }
      }
      EXPECT_TRUE(testing::close_to(hessian.matrix(), h)) << m << " rows of " << k;
      EXPECT_TRUE(testing::close_to(hessian.mean_abs(), mean));
      EXPECT_TRUE(testing::close_to(hessian.max_abs(), max));
    }
  }
}

TEST(Task8_3_Hessian, HasTheSameBitsForAnyBatchesAndThreads) {
  const int before = num_threads();
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor x = random.normal({1300, 80}, DType::f32);
  set_num_threads(1);
  Hessian whole(80, "layer");
  whole.add(x);
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    Hessian pieces(80, "layer");
    for (int64_t begin = 0; begin < 1300;) {
      const int64_t rows = std::min(random.integer(0, 600), 1300 - begin);
      pieces.add(x.narrow(0, begin, rows));
      begin += rows;
    }
    EXPECT_TRUE(testing::bitwise_equal(pieces.matrix(), whole.matrix()));
    EXPECT_TRUE(testing::bitwise_equal(pieces.mean_abs(), whole.mean_abs()));
  }
  set_num_threads(before);
}

TEST(Task8_3_Hessian, MeanIsOfMagnitudes) {
  Hessian hessian(2, "layer");
  hessian.add(Tensor::from<float>(std::vector<float>{-3, 1, 3, -5}, {2, 2}));
  EXPECT_EQ(hessian.mean_abs().at<float>({0}), 3.0f);
  EXPECT_EQ(hessian.mean_abs().at<float>({1}), 3.0f);
  EXPECT_EQ(hessian.max_abs().at<float>({1}), 5.0f);
}

TEST(Task8_3_Hessian, ANumberThatIsNoneIsAnErrorThatNamesLayerAndColumn) {
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    const Tensor x = Tensor::zeros({4, 6}, DType::f32);
    x.at<float>({2, 5}) = bad;
    Hessian hessian(6, "model.layers.3.mlp.down_proj");
    const std::string message = error_of([&] { hessian.add(x); });
    EXPECT_NE(message.find("model.layers.3.mlp.down_proj"), std::string::npos) << message;
    EXPECT_NE(message.find("column 5"), std::string::npos) << message;
  }
  Hessian hessian(6, "q_proj");
  EXPECT_NE(error_of([&] {
              hessian.add(Tensor::zeros({1, 5}, DType::f32));
            }).find("q_proj"),
            std::string::npos);
}

TEST(Task8_3_Hessian, NoRowsAreAnError) {
  Hessian hessian(6, "experts.7.up_proj");
  EXPECT_NE(error_of([&] { hessian.matrix(); }).find("experts.7.up_proj"), std::string::npos);
  EXPECT_NE(error_of([&] { hessian.mean_abs(); }).find("experts.7.up_proj"), std::string::npos);
}

TEST(Task8_3_Hessian, TheLayersErrorIsThatOfItsOutputs) {
  const testing::LayerProblem problem = testing::layer_problem(5, 9, 40, 100);
  Random random(6);
  const Tensor rounded = problem.weight.clone(), noise = random.normal({9, 40}, DType::f32, 0.01);
  for (int64_t i = 0; i < rounded.numel(); ++i) rounded.data<float>()[i] += noise.data<float>()[i];
  double wrong = 0, right = 0;
  for (int64_t row = 0; row < 100; ++row) {
    for (int64_t j = 0; j < 9; ++j) {
      double before = 0, after = 0;
      for (int64_t i = 0; i < 40; ++i) {
        const double x = problem.x.at<float>({row, i});
        before += x * problem.weight.at<float>({j, i});
        after += x * rounded.at<float>({j, i});
      }
      wrong += (after - before) * (after - before);
      right += before * before;
    }
  }
  EXPECT_NEAR(layer_error(problem.weight, rounded, problem.hessian), wrong / right, 1e-4 * wrong / right);
  EXPECT_EQ(layer_error(problem.weight, problem.weight, problem.hessian), 0.0);
}

}  // namespace
}  // namespace ladder
