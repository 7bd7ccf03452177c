#pragma once
// The router's rule in double precision, and a call of the operator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "step1_layers/moe/router.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder::testing {

struct Routed {
  Tensor expert_ids, weights;
};

inline Routed route(const OpContext& ctx, const Tensor& logits, const RouterRule& rule,
                    const Tensor& bias = {}) {
  Routed out{Tensor::empty({logits.dim(0), rule.top_k}, DType::i32),
             poisoned({logits.dim(0), rule.top_k}, DType::f32)};
  std::fill_n(out.expert_ids.data<int32_t>(), out.expert_ids.numel(), -7);
  call(route_tokens, ctx, RouteTokensArgs{logits, bias, rule, out.expert_ids, out.weights});
  return out;
}

// The rule in double precision, by sorting.
inline void expect_routed(const Tensor& logits, const RouterRule& rule, const Tensor& bias,
                          const Routed& routed) {
  const int64_t experts = logits.dim(1), size = experts / rule.num_groups;
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    std::vector<double> scores(static_cast<size_t>(experts)), keys;
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const double logit = logits.at<float>({t, e});
      scores[e] = rule.score == RouterScore::sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit);
      sum += scores[e];
    }
    if (rule.score == RouterScore::softmax)
      for (double& score : scores) score /= sum;
    keys = scores;
    if (bias.defined())
      for (int64_t e = 0; e < experts; ++e) keys[e] += bias.at<float>({e});
    std::vector<int64_t> groups(static_cast<size_t>(rule.num_groups)), order(static_cast<size_t>(experts));
    std::iota(groups.begin(), groups.end(), 0);
    std::iota(order.begin(), order.end(), 0);
    auto group_score = [&](int64_t g) {
      std::vector<double> of(keys.begin() + g * size, keys.begin() + (g + 1) * size);
      std::sort(of.rbegin(), of.rend());
      return rule.group_score == GroupScore::best || size == 1 ? of[0] : of[0] + of[1];
    };
    std::stable_sort(groups.begin(), groups.end(),
                     [&](int64_t a, int64_t b) { return group_score(a) > group_score(b); });
    groups.resize(static_cast<size_t>(rule.topk_groups));
    std::erase_if(
        order, [&](int64_t e) { return std::find(groups.begin(), groups.end(), e / size) == groups.end(); });
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] > keys[b]; });
    double chosen = 0;
    for (int64_t j = 0; j < rule.top_k; ++j) chosen += scores[order[j]];
    for (int64_t j = 0; j < rule.top_k; ++j) {
      const double weight = scores[order[j]] / (rule.normalize ? chosen : 1.0) * rule.scaling_factor;
      // Scores that are as good as one number in f32 may change places; nobody is chosen twice.
      const int64_t id = routed.expert_ids.at<int32_t>({t, j});
      const double rounding = 4 * std::numeric_limits<float>::epsilon() * std::abs(keys[order[j]]);
      EXPECT_TRUE(id == order[j] ||
                  (id >= 0 && id < experts && std::abs(keys[id] - keys[order[j]]) <= rounding))
          << "token " << t << ", place " << j << ": " << id << ", expected " << order[j];
      for (int64_t i = 0; i < j; ++i) EXPECT_NE(routed.expert_ids.at<int32_t>({t, i}), id) << "token " << t;
      EXPECT_NEAR(routed.weights.at<float>({t, j}), weight, 1e-5 * std::abs(weight))
          << "token " << t << ", place " << j;
    }
  }
}

}  // namespace ladder::testing
