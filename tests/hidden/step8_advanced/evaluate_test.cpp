// Task 8.5.eval: rows of random logits, and means of random clusters.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

std::vector<double> log_probabilities(const std::vector<float>& logits) {
  double largest = -INFINITY, sum = 0;
  for (const float logit : logits) largest = std::max<double>(largest, logit);
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

TEST(Hidden8_5_Eval, ARowsScoreIsThatOfItsProbabilities) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 500 && !HasFailure(); ++round) {
    const auto vocab = static_cast<size_t>(random.integer(2, 700));
    const double spread = std::exp2(random.uniform(-6, 4)), shift = random.uniform(-300, 300);
    std::vector<float> logits(vocab), base(vocab);
    for (size_t i = 0; i < vocab; ++i) {
      logits[i] = static_cast<float>(shift + spread * random.uniform(-1, 1));
      base[i] = static_cast<float>(spread * random.uniform(-1, 1));
    }
    const auto token = random.integer(0, static_cast<int64_t>(vocab) - 1);
    const RowScore score = score_row(logits, base, static_cast<int32_t>(token));
    const std::vector<double> p = log_probabilities(logits), q = log_probabilities(base);
    double kl = 0;
    for (size_t i = 0; i < vocab; ++i) kl += std::exp(q[i]) * (q[i] - p[i]);
    EXPECT_NEAR(score.nll, -p[static_cast<size_t>(token)], 1e-6);
    EXPECT_NEAR(score.base_nll, -q[static_cast<size_t>(token)], 1e-6);
    EXPECT_NEAR(score.kl, kl, 1e-6 * (1 + spread));
    EXPECT_EQ(score.same_top,
              std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin());
    EXPECT_EQ(score_row(logits, {}, static_cast<int32_t>(token)).nll, score.nll);
    EXPECT_EQ(score_row(logits, logits, static_cast<int32_t>(token)).kl, 0.0);
  }
}

// Between clusters: as if each were drawn anew.
TEST(Hidden8_5_Eval, AnEstimatesErrorIsThatOfItsClusters) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    std::vector<ClusterSums> clusters(static_cast<size_t>(random.integer(2, 40)));
    double tokens = 0, total = 0;
    for (ClusterSums& cluster : clusters) {
      cluster.tokens = random.integer(1, 500);
      cluster.kl = random.uniform(0, 3) * static_cast<double>(cluster.tokens);
      tokens += static_cast<double>(cluster.tokens);
      total += cluster.kl;
    }
    double squares = 0;
    for (const ClusterSums& cluster : clusters)
      squares += std::pow(cluster.kl - total / tokens * static_cast<double>(cluster.tokens), 2);
    const auto count = static_cast<double>(clusters.size());
    const Estimate found = estimate(clusters, [](const ClusterSums& sums) { return sums.kl; });
    EXPECT_NEAR(found.mean, total / tokens, 1e-12);
    EXPECT_NEAR(found.standard_error, std::sqrt(count / (count - 1) * squares) / tokens, 1e-12);
    const Estimate one =
        estimate(std::span(clusters).first(1), [](const ClusterSums& sums) { return sums.kl; });
    EXPECT_TRUE(std::isnan(one.standard_error));
  }
}

}  // namespace
}  // namespace ladder
