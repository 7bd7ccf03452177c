#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/moe/permutation.h"
#include "tests/step1_layers/moe_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// One token and one expert, odd sizes, whole 64s, as many experts as there are, tiles of tokens that are just full, one
// more than full, several for an expert; many tokens per expert.
constexpr MoeSizes kSizes[] = {{1, 1, 1, 1, 1},     {1, 2, 4, 7, 5},      {3, 2, 5, 40, 24},
                               {1, 8, 16, 128, 64}, {8, 4, 4, 64, 128},   {9, 2, 8, 192, 64},
                               {17, 1, 3, 64, 64},  {33, 3, 9, 128, 192}, {70, 2, 2, 72, 40},
                               {130, 1, 1, 64, 64}, {300, 2, 3, 64, 136}};

RUNG_TEST(Task1_9_Experts, EqualDoublePrecision, "moe_experts", moe_experts_variants()) {
  for (const MoeSizes& sizes : kSizes)
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (emulated() && sizes.tokens > 9) continue;
      Random random;
      SCOPED_TRACE(random.describe());
      const MoeScene scene(random, sizes, dtype);
      const Tensor out = scene.run(ctx);
      EXPECT_TRUE(close_to(out, scene.expected_near(out))) << scene.x.str() << ", " << scene.gate_up.str();
    }
}

// gate is 48, which SiLU leaves alone; all other values are small integers, and the weights powers of two.
RUNG_TEST(Task1_9_Experts, AreExactWhereTheSumsAre, "moe_experts", moe_experts_variants()) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const MoeSizes& sizes :
         {MoeSizes{4, 2, 5, 64, 64}, MoeSizes{50, 2, 3, 128, 64}, MoeSizes{5, 3, 6, 71, 13}}) {
      Random random;
      SCOPED_TRACE(random.describe());
      MoeScene scene(random, sizes, DType::f32, true);
      scene.x = random.exact(scene.x.shape(), DType::f32, 1);
      scene.gate_up = random.exact(scene.gate_up.shape(), DType::f32, 1);
      scene.down = random.exact(scene.down.shape(), DType::f32, 1);
      for (int64_t t = 0; t < sizes.tokens; ++t) scene.x.at<float>({t, 0}) = 1;
      for (int64_t e = 0; e < sizes.experts; ++e)
        for (int64_t i = 0; i < sizes.width; ++i)
          for (int64_t h = 0; h < sizes.hidden; ++h)
            scene.gate_up.at<float>({e, i, h}) = h == 0 ? 48.0f : 0.0f;
      for (int64_t i = 0; i < scene.weights.numel(); ++i)
        scene.weights.data<float>()[i] = std::exp2(static_cast<float>(random.integer(-2, 1)));
      const std::vector<double> exact = scene.expected();
      Tensor expected = Tensor::empty(scene.x.shape(), DType::f32);
      std::copy(exact.begin(), exact.end(), expected.data<float>());
      for (Tensor* tensor : {&scene.x, &scene.gate_up, &scene.down}) *tensor = tensor->to(dtype);
      EXPECT_EQ(to_double(scene.run(ctx)), to_double(expected.to(dtype)));
    }
}

RUNG_TEST(Task1_9_Experts, MayHaveNoTokensOrAllOfThem, "moe_experts", moe_experts_variants()) {
  for (const auto& [tokens, expert] : {std::pair<int64_t, int32_t>{1, 2}, {19, 0}, {40, 5}}) {
    Random random;
    SCOPED_TRACE(random.describe());
    MoeScene scene(random, {tokens, 1, 6, 64, 64}, DType::bf16);
    std::fill_n(scene.expert_ids.data<int32_t>(), tokens, expert);
    const Tensor out = scene.run(ctx);
    EXPECT_TRUE(close_to(out, scene.expected_near(out))) << tokens << " tokens of expert " << expert;
  }
}

RUNG_TEST(Task1_9_Experts, AddNothingWhereThereIsNone, "moe_experts", moe_experts_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t tokens : {1, 6, 60}) {
    MoeScene scene(random, {tokens, 3, 7, 64, 128}, DType::bf16, true);
    for (int64_t j = 0; j < 3; ++j) scene.expert_ids.at<int32_t>({tokens / 2, j}) = -1;
    for (int64_t i = 0; i < scene.weights.numel(); ++i)
      if (scene.expert_ids.data<int32_t>()[i] < 0) scene.weights.data<float>()[i] = NAN;
    const Tensor out = scene.run(ctx);
    EXPECT_TRUE(close_to(out, scene.expected_near(out)));
    EXPECT_EQ(to_double(out.narrow(0, tokens / 2, 1).clone()), std::vector<double>(64, 0.0));
  }
}

RUNG_TEST(Task1_9_Experts, ATokenDoesNotDependOnTheOthersOrOnStrides, "moe_experts", moe_experts_variants()) {
  if (!rung.batch_invariant) return;
  Random random;
  SCOPED_TRACE(random.describe());
  MoeScene scene(random, {23, 2, 5, 71, 37}, DType::f32, true);
  const Tensor wide = random.normal({23, 90}, DType::f32);
  scene.x = wide.narrow(1, 0, 71);
  const Tensor wide_out = poisoned({23, 90}, DType::f32), out = wide_out.narrow(1, 0, 71);
  with_threads(3, [&] {
    call(moe_experts, ctx,
         MoeExpertsArgs{scene.x, scene.expert_ids, scene.weights, scene.gate_up, scene.down, out});
  });
  for (int64_t t : {int64_t{0}, random.integer(1, 21), int64_t{22}}) {
    MoeScene alone = scene;
    alone.x = scene.x.narrow(0, t, 1).clone();
    alone.expert_ids = scene.expert_ids.narrow(0, t, 1).clone();
    alone.weights = scene.weights.narrow(0, t, 1).clone();
    EXPECT_TRUE(bitwise_equal(out.narrow(0, t, 1).clone(), alone.run(ctx))) << t;
  }
}

RUNG_TEST(Task1_9_Experts, ThatDoNotExistAreAnError, "moe_experts",
          rungs_where(moe_experts_variants(), [](const auto& v) { return v.device == DeviceType::cpu; })) {
  Random random;
  for (const int32_t id : {4, -2}) {
    MoeScene scene(random, {3, 2, 4, 8, 8}, DType::f32);
    scene.expert_ids.at<int32_t>({1, 1}) = id;
    EXPECT_THROW(scene.run(ctx), Error) << id;
  }
}

// Experts in another format: their products are somebody else's, all else is the same.
TEST(Task1_9_Experts_ByProducts, GiveTheNumbersOfTheMatrices) {
  Random random;
  SCOPED_TRACE(random.describe());
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  for (const int64_t tokens : {0, 1, 30}) {
    const MoeScene scene(random, {tokens, 3, 7, 64, 40}, DType::bf16, true);
    const Tensor expected = poisoned({tokens, 64}, DType::bf16), out = poisoned({tokens, 64}, DType::bf16);
    moe_experts(ctx, {scene.x, scene.expert_ids, scene.weights, scene.gate_up, scene.down, expected});
    int num_rows = 0;
    const auto product = [&](const Tensor& matrices) {
      return [&](const OpContext& here, int64_t expert, const Tensor& x, const Tensor& of_rows) {
        num_rows += static_cast<int>(x.dim(0));
        matmul(here, x, matrices.select(0, expert), {}, of_rows);
      };
    };
    const MoeExpertsArgs args{scene.x, scene.expert_ids, scene.weights, {}, {}, out};
    moe_experts_by_products(ctx, args, {7, 40, product(scene.gate_up), product(scene.down)});
    EXPECT_TRUE(bitwise_equal(out, expected)) << tokens;
    EXPECT_EQ(num_rows, 2 * std::count_if(scene.expert_ids.data<int32_t>(),
                                          scene.expert_ids.data<int32_t>() + scene.expert_ids.numel(),
                                          [](int32_t id) { return id >= 0; }));
    MoeExpertsArgs wrong = args;
    wrong.weights = Tensor::zeros({tokens, 2}, DType::f32);
    EXPECT_THROW(moe_experts_by_products(ctx, wrong, {7, 40, product(scene.gate_up), product(scene.down)}),
                 Error);
  }
}

TEST(Task1_9_Experts_Errors, NameWhatDoesNotFit) {
  Random random;
  const OpContext ctx;
  const MoeScene good(random, {3, 2, 4, 8, 6}, DType::f32);
  auto expect_error = [&](auto&& change) {
    MoeScene scene = good;
    Tensor out = poisoned({3, 8}, DType::f32);
    change(scene, out);
    EXPECT_THROW(moe_experts(ctx, {scene.x, scene.expert_ids, scene.weights, scene.gate_up, scene.down, out}),
                 Error);
  };
  expect_error([](MoeScene& s, Tensor&) { s.x = Tensor::zeros({3, 7}, DType::f32); });
  expect_error([](MoeScene& s, Tensor&) { s.x = s.x.to(DType::bf16); });
  expect_error([](MoeScene& s, Tensor&) { s.expert_ids = Tensor::zeros({2, 2}, DType::i32); });
  expect_error([](MoeScene& s, Tensor&) { s.weights = Tensor::zeros({3, 1}, DType::f32); });
  expect_error([](MoeScene& s, Tensor&) { s.gate_up = Tensor::zeros({4, 11, 8}, DType::f32); });
  expect_error([](MoeScene& s, Tensor&) { s.down = Tensor::zeros({3, 8, 6}, DType::f32); });
  expect_error([](MoeScene&, Tensor& out) { out = Tensor::zeros({3, 8}, DType::f16); });
  Tensor out = poisoned({3, 8}, DType::f32);
  moe_experts(ctx, {good.x, good.expert_ids, good.weights, good.gate_up, good.down, out});
  EXPECT_TRUE(close_to(out, good.expected()));
}

TEST(Task1_9_Permutation, IsThatOfTheDrawing) {
  Arena arena;
  const Tensor ids = Tensor::from<int32_t>(std::vector<int32_t>{2, 0, 0, 2, -1, 2}, {3, 2});
  const SortedPairs sorted = sort_pairs(ids, 3, arena);
  EXPECT_EQ(std::vector<int32_t>(sorted.offsets.begin(), sorted.offsets.end()),
            (std::vector<int32_t>{0, 2, 2, 5}));
  EXPECT_EQ(std::vector<int32_t>(sorted.pairs.begin(), sorted.pairs.end()),
            (std::vector<int32_t>{1, 2, 0, 3, 5}));
}

TEST(Task1_9_Permutation, IsAStableSort) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 50; ++round) {
    Arena arena;
    const int64_t experts = random.integer(1, 20), tokens = random.integer(0, 60),
                  top_k = random.integer(1, 4);
    const Tensor ids = Tensor::empty({tokens, top_k}, DType::i32);
    std::vector<int32_t> expected;
    for (int64_t pair = 0; pair < tokens * top_k; ++pair) {
      ids.data<int32_t>()[pair] = static_cast<int32_t>(random.integer(-1, experts - 1));
      if (ids.data<int32_t>()[pair] >= 0) expected.push_back(static_cast<int32_t>(pair));
    }
    auto expert_of = [&](int32_t pair) { return ids.data<int32_t>()[pair]; };
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int32_t a, int32_t b) { return expert_of(a) < expert_of(b); });
    const SortedPairs sorted = sort_pairs(ids, experts, arena);
    EXPECT_EQ(std::vector<int32_t>(sorted.pairs.begin(), sorted.pairs.end()), expected);
    ASSERT_EQ(std::ssize(sorted.offsets), experts + 1);
    EXPECT_EQ(sorted.offsets[0], 0);
    EXPECT_EQ(sorted.offsets[experts], std::ssize(expected));
    for (int64_t e = 0; e < experts; ++e)
      for (int32_t i = sorted.offsets[e]; i < sorted.offsets[e + 1]; ++i)
        EXPECT_EQ(expert_of(sorted.pairs[i]), e);
  }
}

TEST(Task1_9_Permutation, RefusesExpertsThatDoNotExist) {
  Arena arena;
  for (const int32_t id : {3, -2})
    EXPECT_THROW(sort_pairs(Tensor::from<int32_t>(std::vector<int32_t>{0, id}, {1, 2}), 3, arena), Error);
}

}  // namespace
}  // namespace ladder
