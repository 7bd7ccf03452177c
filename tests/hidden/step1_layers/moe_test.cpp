// Task 1.9: random rules and numbers of experts, logits far apart and alike, pairs without an expert, rows that lie apart.
#include "step1_layers/core/error.h"
#include "step1_layers/moe/permutation.h"
#include "tests/hidden/step1_layers/margins.h"
#include "tests/step1_layers/moe_scene.h"
#include "tests/step1_layers/router_reference.h"

namespace ladder {
namespace {

using namespace ladder::testing;

RUNG_TEST(Hidden1_9_Router, RandomRules, "route_tokens", route_tokens_variants()) {
  repeated(40, [&](Random& random) {
    const int64_t groups = random.integer(1, 6), size = random.integer(2, 12), experts = groups * size;
    RouterRule rule{.score = random.one_of<RouterScore>({RouterScore::softmax, RouterScore::sigmoid})};
    rule.num_groups = groups;
    rule.topk_groups = random.integer(1, groups);
    rule.top_k = random.integer(1, rule.topk_groups * size);
    rule.group_score = random.one_of<GroupScore>({GroupScore::best, GroupScore::sum_of_best_two});
    rule.normalize = random.integer(0, 1) == 1;
    rule.scaling_factor = random.uniform(0.5, 3);
    const Tensor logits = random.normal({random.integer(1, 20), experts}, DType::f32, random.uniform(0.1, 4));
    Tensor bias;
    if (rule.score == RouterScore::sigmoid && random.integer(0, 1) == 1)
      bias = random.normal({experts}, DType::f32, 2);
    expect_routed(logits, rule, bias, route(ctx, logits, rule, bias));
  });
}

// Few different values: the order among equals is all that there is.
RUNG_TEST(Hidden1_9_Router, ManyEqualExperts, "route_tokens", route_tokens_variants()) {
  repeated(20, [&](Random& random) {
    const int64_t experts = random.integer(2, 40);
    const Tensor logits = Tensor::empty({7, experts}, DType::f32);
    for (int64_t i = 0; i < logits.numel(); ++i)
      logits.data<float>()[i] = static_cast<float>(random.integer(0, 2));
    const RouterRule rule{.top_k = random.integer(1, experts), .normalize = true};
    expect_routed(logits, rule, {}, route(ctx, logits, rule));
  });
}

// The definition again, for two experts that are near each other or far apart.
RUNG_TEST(Hidden1_9_Router, Sparsemixer, "route_tokens", route_tokens_variants()) {
  repeated(40, [&](Random& random) {
    const int64_t experts = random.integer(2, 20);
    const double jitter = random.uniform(0.005, 0.3);
    const Tensor logits = random.normal({1, experts}, DType::f32, random.uniform(0.1, 2));
    const float* values = logits.data<float>();
    const Routed routed =
        route(ctx, logits,
              {.score = RouterScore::sparsemixer, .top_k = 2, .scaling_factor = 1.5, .jitter = jitter});
    std::vector<bool> masked(static_cast<size_t>(experts));
    for (int64_t place = 0; place < 2; ++place) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts; ++e)
        if (!masked[e] && (best < 0 || values[e] > values[best])) best = e;
      double sum = 0, closest = 1;
      for (int64_t e = 0; e < experts; ++e) {
        const double distance =
            (double{values[best]} - values[e]) / std::max(std::abs(double{values[e]}), double{values[best]});
        if (e != best) closest = std::min(closest, std::abs(distance - 2 * jitter));
        if (!masked[e] && distance <= 2 * jitter) sum += std::exp(double{values[e]} - values[best]);
      }
      EXPECT_EQ(routed.expert_ids.at<int32_t>({0, place}), best);
      if (closest > 1e-5) {  // else float may see it on the other side
        EXPECT_NEAR(routed.weights.at<float>({0, place}), 1.5 / sum, 1e-5);
      }
      masked[best] = true;
    }
  });
}

RUNG_TEST(Hidden1_9_Experts, RandomLayers, "moe_experts", moe_experts_variants()) {
  repeated(12, [&](Random& random) {
    const int64_t experts = random.integer(1, 9);
    const MoeSizes sizes{random.integer(1, 30), random.integer(1, experts), experts, random.integer(1, 60),
                         random.integer(1, 40)};
    const MoeScene scene(random, sizes, random.one_of<DType>({DType::f32, DType::bf16, DType::f16}), true);
    const Tensor out = scene.run(ctx);
    EXPECT_TRUE(close_to(out, scene.expected_near(out))) << scene.x.str() << ", " << scene.gate_up.str();
  });
}

RUNG_TEST(Hidden1_9_Experts, RowsThatLieApart, "moe_experts", moe_experts_variants()) {
  repeated(5, [&](Random& random) {
    MoeScene scene(random, {11, 2, 4, 33, 17}, DType::f32);
    const Tensor wide = random.normal({11, 50}, DType::f32), wide_out = poisoned({11, 41}, DType::f32);
    scene.x = wide.narrow(1, 9, 33);
    const Tensor out = wide_out.narrow(1, 5, 33);
    call(moe_experts, ctx,
         MoeExpertsArgs{scene.x, scene.expert_ids, scene.weights, scene.gate_up, scene.down, out});
    scene.x = scene.x.clone();
    EXPECT_TRUE(close_to(out.clone(), scene.expected()));
    EXPECT_TRUE(std::isnan(wide_out.at<float>({5, 4})) && std::isnan(wide_out.at<float>({5, 38})));
  });
}

TEST(Hidden1_9_Permutation, OfRandomPairs) {
  repeated(30, [](Random& random) {
    Arena arena;
    const int64_t experts = random.integer(1, 50);
    const Tensor ids = Tensor::empty({random.integer(1, 90), random.integer(1, 5)}, DType::i32);
    for (int64_t pair = 0; pair < ids.numel(); ++pair)
      ids.data<int32_t>()[pair] = static_cast<int32_t>(random.integer(-1, experts - 1));
    const SortedPairs sorted = sort_pairs(ids, experts, arena);
    std::vector<bool> seen(static_cast<size_t>(ids.numel()));
    for (int64_t e = 0; e < experts; ++e)
      for (int32_t i = sorted.offsets[e]; i < sorted.offsets[e + 1]; ++i) {
        EXPECT_EQ(ids.data<int32_t>()[sorted.pairs[i]], e);
        EXPECT_TRUE(i == sorted.offsets[e] || sorted.pairs[i] > sorted.pairs[i - 1]);
        seen[sorted.pairs[i]] = true;
      }
    for (int64_t pair = 0; pair < ids.numel(); ++pair)
      EXPECT_EQ(seen[pair], ids.data<int32_t>()[pair] >= 0) << pair;
    ids.data<int32_t>()[random.integer(0, ids.numel() - 1)] = static_cast<int32_t>(experts);
    EXPECT_THROW(sort_pairs(ids, experts, arena), Error);
  });
}

}  // namespace
}  // namespace ladder
