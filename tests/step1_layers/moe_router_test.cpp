#include <cmath>

#include "step1_layers/core/error.h"
#include "tests/step1_layers/router_reference.h"

namespace ladder {
namespace {

using namespace ladder::testing;

Tensor row(const std::vector<float>& values) {
  return Tensor::from<float>(values, {1, std::ssize(values)});
}
std::vector<int32_t> ids_of(const Routed& routed) {
  return {routed.expert_ids.data<int32_t>(), routed.expert_ids.data<int32_t>() + routed.expert_ids.numel()};
}

RUNG_TEST(Task1_9_Router, EqualsDoublePrecision, "route_tokens", route_tokens_variants()) {
  for (const auto& [tokens, experts, top_k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                               {5, 8, 2},
                                               {33, 60, 4},
                                               {9, 128, 8},
                                               {3, 7, 7},
                                               {2, 512, 10}})
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
      for (const bool normalize : {false, true}) {
        Random random;
        SCOPED_TRACE(random.describe());
        const Tensor logits = random.normal({tokens, experts}, DType::f32, 2.0);
        const RouterRule rule{
            .score = score, .top_k = top_k, .normalize = normalize, .scaling_factor = normalize ? 2.5 : 1};
        expect_routed(logits, rule, {}, route(ctx, logits, rule));
      }
}

RUNG_TEST(Task1_9_Router, TakesExpertsOfTheBestGroupsOnly, "route_tokens", route_tokens_variants()) {
  for (const GroupScore group_score : {GroupScore::best, GroupScore::sum_of_best_two})
    for (const auto& [experts, groups, topk_groups, top_k] :
         {std::tuple<int64_t, int64_t, int64_t, int64_t>{64, 8, 4, 8},
          {12, 4, 1, 3},
          {6, 6, 3, 3},
          {160, 8, 3, 6}}) {
      Random random;
      SCOPED_TRACE(random.describe());
      const bool biased = group_score == GroupScore::sum_of_best_two;
      const Tensor logits = random.normal({17, experts}, DType::f32);
      const Tensor bias = biased ? random.normal({experts}, DType::f32) : Tensor();
      RouterRule rule{
          .score = biased ? RouterScore::sigmoid : RouterScore::softmax, .top_k = top_k, .normalize = biased};
      rule.num_groups = groups;
      rule.topk_groups = topk_groups;
      rule.group_score = group_score;
      expect_routed(logits, rule, bias, route(ctx, logits, rule, bias));
    }
}

// Masked experts that counted as 0 would win against a negative bias (vLLM PR 13474).
RUNG_TEST(Task1_9_Router, AMaskedExpertNeverWins, "route_tokens", route_tokens_variants()) {
  RouterRule rule{.score = RouterScore::sigmoid, .top_k = 2};
  rule.num_groups = 2;
  rule.topk_groups = 1;
  rule.group_score = GroupScore::sum_of_best_two;
  const Routed routed =
      route(ctx, row({3, 2, 1, 0}), rule, Tensor::from<float>(std::vector<float>{-5, -5, -9, -9}, {4}));
  EXPECT_EQ(ids_of(routed), (std::vector<int32_t>{0, 1}));
}

// The weight is the score itself: (score + bias) - bias would be 0 here (FlashInfer PR 3875).
RUNG_TEST(Task1_9_Router, TheBiasChoosesAndDoesNotWeigh, "route_tokens", route_tokens_variants()) {
  const RouterRule rule{.score = RouterScore::sigmoid, .top_k = 1};
  const Routed routed =
      route(ctx, row({-20, 5}), rule, Tensor::from<float>(std::vector<float>{1000, 0}, {2}));
  EXPECT_EQ(ids_of(routed), (std::vector<int32_t>{0}));
  EXPECT_NEAR(routed.weights.at<float>({0, 0}), 1 / (1 + std::exp(20.0)), 1e-14);
}

RUNG_TEST(Task1_9_Router, OfEqualExpertsTheFirstComesFirst, "route_tokens", route_tokens_variants()) {
  EXPECT_EQ(ids_of(route(ctx, row({1, 2, 2, 1, 2}), {.top_k = 4})), (std::vector<int32_t>{1, 2, 4, 0}));
  EXPECT_EQ(ids_of(route(ctx, row(std::vector<float>(40, 0.5f)), {.top_k = 3})),
            (std::vector<int32_t>{0, 1, 2}));
}

RUNG_TEST(Task1_9_Router, LargeLogitsAndThoseThatAreNoNumbers, "route_tokens", route_tokens_variants()) {
  const Routed routed = route(ctx, row({1000, NAN, 999, -1000}), {.top_k = 2});
  EXPECT_EQ(ids_of(routed), (std::vector<int32_t>{0, 2}));
  EXPECT_NEAR(routed.weights.at<float>({0, 0}), 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(routed.weights.at<float>({0, 1}), 1 / (1 + std::exp(1.0)), 1e-6);
}

// l1 = 4: with a jitter of 0.1 those from 3.2 on are near (|4 - l| / 4 <= 0.2); then l2 = 3.5, and from 2.8 on.
RUNG_TEST(Task1_9_Router, SparsemixerWeighsTheBestAmongThoseNearIt, "route_tokens", route_tokens_variants()) {
  const RouterRule rule{.score = RouterScore::sparsemixer, .top_k = 2, .jitter = 0.1};
  const Routed routed = route(ctx, row({2.9f, 4, -7, 3.5f, 3.0f}), rule);
  EXPECT_EQ(ids_of(routed), (std::vector<int32_t>{1, 3}));
  EXPECT_NEAR(routed.weights.at<float>({0, 0}), 1 / (1 + std::exp(-0.5)), 1e-6);
  EXPECT_NEAR(routed.weights.at<float>({0, 1}), 1 / (1 + std::exp(-0.5) + std::exp(-0.6)), 1e-6);
}

// Against the definition, over logits of both signs.
RUNG_TEST(Task1_9_Router, SparsemixerEqualsDoublePrecision, "route_tokens", route_tokens_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor logits = random.normal({60, 16}, DType::f32, 0.5);
  for (int64_t i = 0; i < 30 * 16; ++i) logits.data<float>()[i] -= 2;
  const RouterRule rule{.score = RouterScore::sparsemixer, .top_k = 2, .jitter = 0.07};
  const Routed routed = route(ctx, logits, rule);
  for (int64_t t = 0; t < 60; ++t) {
    std::vector<bool> masked(16, false);
    for (int64_t place = 0; place < 2; ++place) {
      int64_t best = -1;
      for (int64_t e = 0; e < 16; ++e)
        if (!masked[e] && (best < 0 || logits.at<float>({t, e}) > logits.at<float>({t, best}))) best = e;
      const double largest = logits.at<float>({t, best});
      double sum = 0;
      for (int64_t e = 0; e < 16; ++e) {
        const double logit = logits.at<float>({t, e});
        if (!masked[e] && (largest - logit) / std::max(std::abs(logit), largest) <= 0.14)
          sum += std::exp(logit - largest);
      }
      EXPECT_EQ(routed.expert_ids.at<int32_t>({t, place}), best) << "token " << t;
      EXPECT_NEAR(routed.weights.at<float>({t, place}), 1 / sum, 1e-5) << "token " << t;
      masked[best] = true;
    }
  }
}

TEST(Task1_9_Router_Errors, NameWhatDoesNotFit) {
  const OpContext ctx;
  auto expect_error = [&](RouterRule rule, const Tensor& bias = {}) {
    const Routed out{Tensor::empty({2, rule.top_k}, DType::i32), Tensor::empty({2, rule.top_k}, DType::f32)};
    EXPECT_THROW(
        route_tokens(ctx, {Tensor::zeros({2, 6}, DType::f32), bias, rule, out.expert_ids, out.weights}),
        Error);
  };
  expect_error({.top_k = 7});
  RouterRule rule{.top_k = 3};
  rule.num_groups = 4;
  expect_error(rule);
  rule.num_groups = 3;
  expect_error(rule);  // one group of two
  rule.topk_groups = 4;
  expect_error(rule);
  expect_error({.score = RouterScore::sparsemixer, .top_k = 1});
  expect_error({.top_k = 1}, Tensor::zeros({6}, DType::f32));
  expect_error({.score = RouterScore::sigmoid, .top_k = 1}, Tensor::zeros({5}, DType::f32));
  const Tensor ids = Tensor::empty({2, 1}, DType::i32), weights = Tensor::empty({2, 1}, DType::f32);
  EXPECT_THROW(route_tokens(ctx, {Tensor::zeros({2, 6}, DType::bf16), {}, {.top_k = 1}, ids, weights}),
               Error);
  EXPECT_THROW(route_tokens(ctx, {Tensor::zeros({3, 6}, DType::f32), {}, {.top_k = 1}, ids, weights}), Error);
}

}  // namespace
}  // namespace ladder
