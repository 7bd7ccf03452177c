#include "step8_advanced/quantization/algorithms/sparse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/algorithms/gptq.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/step8_advanced/quantization/algorithms/layer_problem.h"

namespace ladder {
namespace {

using testing::diagonal_matrix;
using testing::error_of;
using testing::layer_problem;
using testing::LayerProblem;

Tensor row_of(const std::vector<float>& numbers) {
  return Tensor::from<float>(numbers, {1, static_cast<int64_t>(numbers.size())});
}
std::vector<float> numbers_of(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

TEST(Task8_3_Sparse, MagnitudeKeepsTheLargestTwoOfFour) {
  const Tensor weight = row_of({1, -3, 2, 0.5f, 0, 0, -1, 0, 2, -2, 2, 2});
  EXPECT_EQ(numbers_of(prune_by_magnitude(weight, "layer")),
            (std::vector<float>{0, -3, 2, 0, 0, 0, -1, 0, 0, 0, 2, 2}))
      << "of equal ones the lower columns go first";
  EXPECT_EQ(weight.at<float>({0, 0}), 1.0f) << "the weight itself is left as it is";
}

TEST(Task8_3_Sparse, WandaWeighsByTheNormOfTheActivations) {
  // Norms 1, 2, 4, 8.
  EXPECT_EQ(numbers_of(prune_by_wanda(row_of({7, 3, -1, 0.1f}), diagonal_matrix({1, 4, 16, 64}), "layer")),
            (std::vector<float>{7, 3, 0, 0}));
  EXPECT_EQ(numbers_of(prune_by_wanda(row_of({7, 3, -2, 1}), diagonal_matrix({1, 4, 16, 64}), "layer")),
            (std::vector<float>{0, 0, -2, 1}));
}

TEST(Task8_3_Sparse, SparseGptIsWandaWhereColumnsAreUncorrelated) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const Tensor weight = random.normal({9, 64}, DType::f32);
  std::vector<float> diagonal;
  for (int i = 0; i < 64; ++i) diagonal.push_back(static_cast<float>(random.uniform(5, 6)));
  const Tensor hessian = diagonal_matrix(diagonal);
  // Damping changes the scores a little, so none here.
  const SparseGptResult result = prune_by_sparse_gpt(weight, hessian, "layer", 1e-9);
  EXPECT_TRUE(testing::bitwise_equal(result.weight, prune_by_wanda(weight, hessian, "layer")));
}

TEST(Task8_3_Sparse, SparseGptErrsLessThanWandaAndThatLessThanMagnitude) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 64, 256, 600, 0.7, 12, 3);
    const auto error = [&](const Tensor& pruned) {
      EXPECT_FALSE(more_than_two_of_four(pruned));
      return layer_error(problem.weight, pruned, problem.hessian);
    };
    const double magnitude = error(prune_by_magnitude(problem.weight, "layer"));
    const double wanda = error(prune_by_wanda(problem.weight, problem.hessian, "layer"));
    const SparseGptResult result = prune_by_sparse_gpt(problem.weight, problem.hessian, "layer");
    EXPECT_EQ(result.error, error(result.weight));
    EXPECT_EQ(result.dead_columns, 3);
    EXPECT_LT(wanda, 0.8 * magnitude) << "seed " << seed;
    EXPECT_LT(result.error, 0.6 * wanda) << "seed " << seed;
  }
}

// The choice falls when the loop reaches the four, of the weights as they are by then: blocks of any size give the
// same.
TEST(Task8_3_Sparse, TheChoiceIsOfTheUpdatedWeights) {
  const LayerProblem problem = layer_problem(5, 24, 64, 200);
  const Tensor by_one = prune_by_sparse_gpt(problem.weight, problem.hessian, "layer", 0.01, 1, 4).weight;
  const Tensor by_many = prune_by_sparse_gpt(problem.weight, problem.hessian, "layer", 0.01, 1, 128).weight;
  const Tensor by_three = prune_by_sparse_gpt(problem.weight, problem.hessian, "layer", 0.01, 1, 3).weight;
  EXPECT_LT(layer_error(by_one, by_many, problem.hessian), 1e-6);
  EXPECT_LT(layer_error(by_one, by_three, problem.hessian), 1e-6);
}

TEST(Task8_3_Sparse, TogetherWithQuantizationZerosStayZero) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 64, 256, 600);
    for (const bool symmetric : {true, false}) {
      for (const int bits : {4, 8}) {
        const QuantizationArgs args{
            .num_bits = bits, .symmetric = symmetric, .strategy = ScaleStrategy::group, .group_size = 64};
        const GptqResult joint = gptq(problem.weight, problem.hessian, args, "layer", {.two_of_four = true});
        const Tensor rounded = dequantize(joint.weight);
        EXPECT_FALSE(more_than_two_of_four(rounded));
        const Tensor pruned = prune_by_sparse_gpt(problem.weight, problem.hessian, "layer").weight;
        const Tensor afterwards = dequantize(quantize_weight(pruned, args, "layer"));
        EXPECT_FALSE(more_than_two_of_four(afterwards));
        // 8 bits cost nothing beside the zeros: there the two differ by chance.
        EXPECT_LT(joint.error,
                  (bits == 8 ? 1.1 : 0.9) * layer_error(problem.weight, afterwards, problem.hessian))
            << "seed " << seed << ", " << bits << " bits";
        EXPECT_GT(joint.error, gptq(problem.weight, problem.hessian, args, "layer").error);
      }
    }
  }
}

// The fours that matter most go first, and stay fours.
TEST(Task8_3_Sparse, FoursGoInTheOrderOfTheirInputs) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LayerProblem problem = layer_problem(seed, 64, 256, 600, 0.7, 12);
    QuantizationArgs args{.num_bits = 4, .strategy = ScaleStrategy::group, .group_size = 64};
    const GptqResult as_they_are =
        gptq(problem.weight, problem.hessian, args, "layer", {.two_of_four = true});
    args.actorder = ActivationOrder::weight;
    const GptqResult ordered = gptq(problem.weight, problem.hessian, args, "layer", {.two_of_four = true});
    EXPECT_FALSE(more_than_two_of_four(dequantize(ordered.weight)));
    EXPECT_FALSE(ordered.g_idx.defined());
    EXPECT_LT(ordered.error, 0.9 * as_they_are.error) << "seed " << seed;
  }
}

TEST(Task8_3_Sparse, FindsAWeightThatIsNotTwoOfFour) {
  const Tensor weight = prune_by_magnitude(testing::layer_problem(6, 8, 32, 10).weight, "layer");
  EXPECT_FALSE(more_than_two_of_four(weight));
  for (int64_t i = 0; i < 4; ++i) weight.at<float>({5, 12 + i}) = i == 1 ? 0.0f : 1.0f;
  const auto place = more_than_two_of_four(weight);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->row, 5);
  EXPECT_EQ(place->column, 12);
}

TEST(Task8_3_Sparse, WhatDoesNotFitIsAnErrorThatNamesTheLayer) {
  const LayerProblem problem = layer_problem(7, 4, 30, 50);
  const auto names_layer = [](const std::string& message) {
    return message.find("mlp.up_proj") != std::string::npos;
  };
  EXPECT_TRUE(names_layer(error_of([&] { prune_by_magnitude(problem.weight, "mlp.up_proj"); })));
  EXPECT_TRUE(names_layer(error_of([&] { prune_by_wanda(problem.weight, problem.hessian, "mlp.up_proj"); })));
  EXPECT_TRUE(
      names_layer(error_of([&] { prune_by_sparse_gpt(problem.weight, problem.hessian, "mlp.up_proj"); })));
  const LayerProblem fits = layer_problem(7, 4, 32, 50);
  QuantizationArgs args{.num_bits = 4, .strategy = ScaleStrategy::group, .group_size = 2};
  const auto joint = [&] { gptq(fits.weight, fits.hessian, args, "mlp.up_proj", {.two_of_four = true}); };
  EXPECT_TRUE(names_layer(error_of(joint)));
  args.group_size = 8;
  EXPECT_EQ(error_of(joint), "");
  args.actorder = ActivationOrder::group;
  EXPECT_TRUE(names_layer(error_of(joint)));
}

}  // namespace
}  // namespace ladder
