#include "step1_layers/sampling/logits_filters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr int64_t kVocabularies[] = {1, 5, 63, 1025, 5003, 151936};

Tensor f32_row(std::vector<float> values) {
  return Tensor::from<float>(values, {1, static_cast<int64_t>(values.size())});
}
Tensor f32_value(float value) {
  return Tensor::from<float>(std::vector{value}, {1});
}
Tensor i32_value(int32_t value) {
  return Tensor::from<int32_t>(std::vector{value}, {1});
}

bool is_cut(const Tensor& logits, int64_t id) {
  return logits.at<float>({0, id}) == -INFINITY;
}

// Ids in order of logit, equals by id.
std::vector<int64_t> sorted_ids(const Tensor& logits) {
  std::vector<int64_t> order(static_cast<size_t>(logits.dim(1)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits.at<float>({0, a}) > logits.at<float>({0, b});
  });
  return order;
}

RUNG_TEST(Task1_8_Temperature, DividesAndLeavesGreedyRowsAndOneAlone, "apply_temperature",
          apply_temperature_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  Tensor logits = random.normal({5, 1001}, DType::f32);
  const Tensor before = logits.clone();
  const std::vector<float> temperatures{0.7f, 0.0f, 1.0f, 9.9e-6f, 1e-40f};
  call(apply_temperature, ctx, logits, Tensor::from<float>(temperatures, {5}));
  for (int64_t i = 0; i < 1001; ++i) ASSERT_EQ(logits.at<float>({0, i}), before.at<float>({0, i}) / 0.7f);
  EXPECT_TRUE(bitwise_equal(logits.narrow(0, 1, 4), before.narrow(0, 1, 4)));
}

RUNG_TEST(Task1_8_MinP, KeepsWhatIsLikelyEnoughBesideTheBest, "mask_min_p", mask_min_p_variants()) {
  for (int64_t vocab : kVocabularies)
    for (float min_p : {1e-3f, 0.1f, 0.7f, 1.0f}) {
      if (vocab > 10000 && min_p != 0.1f) continue;  // once is enough
      Random random;
      SCOPED_TRACE(random.describe());
      Tensor logits = random.normal({1, vocab}, DType::f32, 2.0);
      const Tensor before = logits.clone();
      const float largest = before.at<float>({0, sorted_ids(before)[0]});
      call(mask_min_p, ctx, logits, f32_value(min_p));
      for (int64_t i = 0; i < vocab; ++i) {
        const double ratio = std::exp(static_cast<double>(before.at<float>({0, i})) - largest);
        if (std::abs(ratio - min_p) < 1e-5 * min_p) continue;
        ASSERT_EQ(is_cut(logits, i), ratio < min_p) << i;
        if (ratio > min_p) {
          ASSERT_EQ(logits.at<float>({0, i}), before.at<float>({0, i}));
        }
      }
      EXPECT_FALSE(is_cut(logits, sorted_ids(before)[0]));
    }
  Tensor logits = f32_row({1, 2, 3});
  call(mask_min_p, ctx, logits, f32_value(0));
  EXPECT_EQ(to_double(logits), (std::vector<double>{1, 2, 3}));
}

RUNG_TEST(Task1_8_TopK, KeepsTheKBestAndAllThatEqualTheLast, "mask_top_k", mask_top_k_variants()) {
  for (int64_t vocab : kVocabularies)
    for (int32_t k : {1, 2, 20, 256, 257, 3000}) {
      Random random;
      SCOPED_TRACE(random.describe() + " k " + std::to_string(k));
      Tensor logits = random.normal({1, vocab}, DType::f32, 2.0);
      for (int64_t i = 0; i < vocab; i += 2)  // many equals
        logits.at<float>({0, i}) = std::round(logits.at<float>({0, i}) * 4) / 4;
      const Tensor before = logits.clone();
      const auto order = sorted_ids(before);
      call(mask_top_k, ctx, logits, i32_value(k));
      const float last = before.at<float>({0, order[std::min<int64_t>(k, vocab) - 1]});
      for (int64_t i = 0; i < vocab; ++i) {
        const float x = before.at<float>({0, i});
        ASSERT_EQ(logits.at<float>({0, i}), x >= last ? x : -INFINITY) << i;
      }
    }
  for (int32_t off : {0, -1, 3, 100}) {
    Tensor logits = f32_row({1, 2, 3});
    call(mask_top_k, ctx, logits, i32_value(off));
    EXPECT_EQ(to_double(logits), (std::vector<double>{1, 2, 3}));
  }
  Tensor cut = f32_row({-INFINITY, 2, -INFINITY, 1, -INFINITY});  // fewer left than k
  call(mask_top_k, ctx, cut, i32_value(4));
  EXPECT_EQ(to_double(cut), (std::vector<double>{-INFINITY, 2, -INFINITY, 1, -INFINITY}));
}

RUNG_TEST(Task1_8_TopP, KeepsTheFewestTokensThatReachTheMass, "mask_top_p", mask_top_p_variants()) {
  for (int64_t vocab : kVocabularies)
    for (float top_p : {0.0f, 0.05f, 0.5f, 0.9f, 0.999f, 0.9999999f})
      for (double deviation : {0.1, 3.0, 30.0}) {
        if (vocab > 10000 && (top_p != 0.9f || deviation != 3.0)) continue;  // once is enough
        Random random;
        SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab) + " top_p " +
                     std::to_string(top_p));
        Tensor logits = random.normal({1, vocab}, DType::f32, deviation);
        for (int64_t i = 0; i < vocab; i += 3)
          logits.at<float>({0, i}) = std::round(logits.at<float>({0, i}));
        if (vocab > 10) logits.at<float>({0, 4}) = -INFINITY;  // cut by a filter before
        const Tensor before = logits.clone();
        const auto order = sorted_ids(before);
        call(mask_top_p, ctx, logits, f32_value(top_p));
        const double largest = before.at<float>({0, order[0]});
        double total = 0, mass = 0;
        for (int64_t id : order) total += std::exp(before.at<float>({0, id}) - largest);
        for (size_t i = 0; i < order.size(); ++i) {
          const float x = before.at<float>({0, order[i]});
          const double reached = mass / total;  // by the tokens before this one
          mass += std::exp(x - largest);
          if (i == 0) {
            ASSERT_EQ(logits.at<float>({0, order[i]}), x);
          } else if (std::abs(reached - top_p) > 1e-6) {  // nearer is a matter of rounding
            ASSERT_EQ(logits.at<float>({0, order[i]}), reached < top_p ? x : -INFINITY) << "rank " << i;
          }
        }
      }
  Tensor logits = f32_row({1, 2, 3});
  call(mask_top_p, ctx, logits, f32_value(1));
  EXPECT_EQ(to_double(logits), (std::vector<double>{1, 2, 3}));
}

RUNG_TEST(Task1_8_TopP, LeavesInfiniteLogitsAlone, "mask_top_p", mask_top_p_variants()) {
  for (int64_t vocab : {3, 5003})
    for (const float largest : {INFINITY, -INFINITY}) {
      Tensor logits = Tensor::empty({1, vocab}, DType::f32);
      for (int64_t i = 0; i < vocab; ++i)
        logits.at<float>({0, i}) = largest < 0 || i % 3 == 1 ? largest : static_cast<float>(i % 7);
      const Tensor before = logits.clone();
      call(mask_top_p, ctx, logits, f32_value(0.3f));
      for (int64_t i = 0; i < vocab; ++i) {
        if (std::isinf(before.at<float>({0, i}))) {
          ASSERT_EQ(logits.at<float>({0, i}), before.at<float>({0, i})) << i;
        }
      }
    }
}

RUNG_TEST(Task1_8_TopP, EqualTokensAreKeptInOrderOfId, "mask_top_p", mask_top_p_variants()) {
  Tensor logits = f32_row({1, 1, 1, 1, 1, 1, 1, 1});
  call(mask_top_p, ctx, logits, f32_value(0.3f));  // two eighths do not reach it, three do
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(is_cut(logits, i), i >= 3);
}

// apply(logits, values) on 21 rows with a value each, and on every row alone.
template <class Apply>
void expect_independent_rows(Apply&& apply, bool counts) {
  const int64_t rows = 21, vocab = 3000;
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor logits = random.normal({rows, vocab}, DType::f32, 3.0);
  const Tensor values = Tensor::empty({rows}, counts ? DType::i32 : DType::f32);
  for (int64_t row = 0; row < rows; ++row) {
    if (counts)
      values.at<int32_t>({row}) = static_cast<int32_t>(random.integer(0, 600));
    else
      values.at<float>({row}) = static_cast<float>(random.uniform(0.01, 1.2));
  }
  Tensor together = logits.clone();
  with_threads(3, [&] { apply(together, values); });
  for (int64_t row = 0; row < rows; ++row) {
    Tensor alone = logits.narrow(0, row, 1).clone();
    apply(alone, values.narrow(0, row, 1));
    EXPECT_TRUE(bitwise_equal(together.narrow(0, row, 1), alone)) << row;
  }
}

RUNG_TEST(Task1_8_MinP, ARowDoesNotDependOnTheOthersOrOnThreads, "mask_min_p", mask_min_p_variants()) {
  expect_independent_rows([&](const Tensor& x, const Tensor& v) { call(mask_min_p, ctx, x, v); }, false);
}
RUNG_TEST(Task1_8_TopK, ARowDoesNotDependOnTheOthersOrOnThreads, "mask_top_k", mask_top_k_variants()) {
  expect_independent_rows([&](const Tensor& x, const Tensor& v) { call(mask_top_k, ctx, x, v); }, true);
}
RUNG_TEST(Task1_8_TopP, ARowDoesNotDependOnTheOthersOrOnThreads, "mask_top_p", mask_top_p_variants()) {
  expect_independent_rows([&](const Tensor& x, const Tensor& v) { call(mask_top_p, ctx, x, v); }, false);
}

// A sort of what has no order may read past its end: the filters must leave such a row its NaN, and end.
template <class Apply>
void expect_nan_survives(Apply&& apply) {
  for (int64_t vocab : {1, 63, 5003})
    for (const int64_t column : {int64_t{0}, vocab / 2, vocab - 1}) {
      Random random;
      SCOPED_TRACE(random.describe());
      const Tensor logits = random.normal({3, vocab}, DType::f32, 3.0), alone = logits.clone();
      for (int64_t i = column; i < vocab; i += 7) logits.at<float>({1, i}) = NAN;
      apply(logits);
      apply(alone);
      bool holds_nan = false;
      for (int64_t i = 0; i < vocab; ++i) holds_nan |= std::isnan(logits.at<float>({1, i}));
      EXPECT_TRUE(holds_nan);
      for (const int64_t row : {0, 2})
        EXPECT_TRUE(bitwise_equal(logits.narrow(0, row, 1), alone.narrow(0, row, 1)));
    }
}

RUNG_TEST(Task1_8_Temperature, LeavesARowItsNaN, "apply_temperature", apply_temperature_variants()) {
  expect_nan_survives([&](const Tensor& x) {
    call(apply_temperature, ctx, x, Tensor::from<float>(std::vector(3, 0.7f), {3}));
  });
}
RUNG_TEST(Task1_8_MinP, LeavesARowItsNaN, "mask_min_p", mask_min_p_variants()) {
  expect_nan_survives(
      [&](const Tensor& x) { call(mask_min_p, ctx, x, Tensor::from<float>(std::vector(3, 0.1f), {3})); });
}
RUNG_TEST(Task1_8_TopK, LeavesARowItsNaN, "mask_top_k", mask_top_k_variants()) {
  for (const int32_t k : {1, 20, 300})
    expect_nan_survives(
        [&](const Tensor& x) { call(mask_top_k, ctx, x, Tensor::from<int32_t>(std::vector(3, k), {3})); });
}
RUNG_TEST(Task1_8_TopP, LeavesARowItsNaN, "mask_top_p", mask_top_p_variants()) {
  expect_nan_survives(
      [&](const Tensor& x) { call(mask_top_p, ctx, x, Tensor::from<float>(std::vector(3, 0.5f), {3})); });
}

TEST(Task1_8_Filters, NameWhatDoesNotFit) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor logits = Tensor::zeros({2, 4}, DType::f32);
  EXPECT_THROW(mask_top_k(ctx, logits, f32_value(1)), Error);
  EXPECT_THROW(mask_top_p(ctx, logits, f32_value(1)), Error);  // one value for two rows
  EXPECT_THROW(mask_top_p(ctx, logits.to(DType::bf16), Tensor::zeros({2}, DType::f32)), Error);
}

}  // namespace
}  // namespace ladder
