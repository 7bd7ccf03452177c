// Task 1.8: biases on single tokens and masks of allowed tokens.
#include <cmath>
#include <set>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/logit_bias.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr int64_t kVocabularies[] = {1, 5, 31, 32, 33, 63, 1025, 5003, 151936};

// Of every row some entries, each token once.
ApplyLogitBiasArgs random_biases(Random& random, const Tensor& logits) {
  std::vector<int32_t> starts{0}, ids;
  std::vector<float> biases;
  for (int64_t row = 0; row < logits.dim(0); ++row) {
    std::set<int32_t> chosen;
    for (int64_t i = random.integer(0, 600); i > 0; --i)
      chosen.insert(static_cast<int32_t>(random.integer(0, logits.dim(1) - 1)));
    for (const int32_t id : chosen) {
      ids.push_back(id);
      biases.push_back(random.integer(0, 3) == 0 ? -INFINITY : static_cast<float>(random.uniform(-9, 9)));
    }
    starts.push_back(static_cast<int32_t>(ids.size()));
  }
  const auto entries = static_cast<int64_t>(ids.size());
  return {logits, Tensor::from<int32_t>(starts, {logits.dim(0) + 1}), Tensor::from<int32_t>(ids, {entries}),
          Tensor::from<float>(biases, {entries})};
}

RUNG_TEST(Task1_8_LogitBias, AddsAndForbidsExactly, "apply_logit_bias", apply_logit_bias_variants()) {
  for (int64_t vocab : kVocabularies) {
    Random random;
    SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
    ApplyLogitBiasArgs args = random_biases(random, random.normal({7, vocab}, DType::f32, 3.0));
    Tensor expected = args.logits.clone();
    for (int64_t row = 0; row < 7; ++row)
      for (int32_t i = args.row_start.at<int32_t>({row}); i < args.row_start.at<int32_t>({row + 1}); ++i)
        expected.at<float>({row, args.token_ids.at<int32_t>({i})}) += args.biases.at<float>({i});
    call(apply_logit_bias, ctx, args);
    EXPECT_TRUE(bitwise_equal(args.logits, expected));
  }
}

RUNG_TEST(Task1_8_LogitBias, ForbidsInfiniteLogitsAndNaNToo, "apply_logit_bias",
          apply_logit_bias_variants()) {
  const std::vector<float> logits{INFINITY, NAN, -INFINITY, 1, INFINITY, -INFINITY};
  ApplyLogitBiasArgs args{
      Tensor::from<float>(logits, {1, 6}), Tensor::from<int32_t>(std::vector<int32_t>{0, 5}, {2}),
      Tensor::from<int32_t>(std::vector<int32_t>{0, 1, 2, 4, 5}, {5}),
      Tensor::from<float>(std::vector<float>{-INFINITY, -INFINITY, -INFINITY, -5, 5}, {5})};
  call(apply_logit_bias, ctx, args);
  EXPECT_EQ(to_double(args.logits),
            (std::vector<double>{-INFINITY, -INFINITY, -INFINITY, 1, INFINITY, -INFINITY}));
}

RUNG_TEST(Task1_8_LogitBias, RefusesTokensOutsideTheVocabularyOrPassesOverThem, "apply_logit_bias",
          apply_logit_bias_variants()) {
  for (const int32_t outside : {-1, 4, INT32_MAX, INT32_MIN}) {
    ApplyLogitBiasArgs args{Tensor::zeros({2, 4}, DType::f32),
                            Tensor::from<int32_t>(std::vector<int32_t>{0, 2, 2}, {3}),
                            Tensor::from<int32_t>(std::vector<int32_t>{outside, 3}, {2}),
                            Tensor::from<float>(std::vector<float>{1, 2}, {2})};
    if (ctx.device.is_cpu()) {
      EXPECT_THROW(apply_logit_bias(ctx, args), Error);
      continue;
    }
    call(apply_logit_bias, ctx, args);  // the host does not read the ids of a GPU
    EXPECT_EQ(to_double(args.logits), (std::vector<double>{0, 0, 0, 2, 0, 0, 0, 0}));
  }
}

// Masks of different density: sparse, dense, all, none; bits past the vocabulary are anything.
Tensor random_masks(Random& random, int64_t vocab) {
  const Tensor masks = Tensor::empty({5, bitmask_words(vocab)}, DType::i32);
  for (int64_t mask = 0; mask < 5; ++mask)
    for (int64_t word = 0; word < masks.dim(1); ++word) {
      uint32_t bits = static_cast<uint32_t>(random.engine()());
      const auto more = static_cast<uint32_t>(random.engine()());
      if (mask == 0) bits &= random.integer(0, 9) == 0 ? more : 0u;
      if (mask == 1) bits |= random.integer(0, 9) == 0 ? more : ~0u;
      if (mask == 2) bits = ~0u;
      if (mask == 3) bits = 0;
      masks.at<int32_t>({mask, word}) = static_cast<int32_t>(bits);
    }
  return masks;
}

bool allows(const Tensor& masks, int64_t mask, int64_t id) {
  return (static_cast<uint32_t>(masks.at<int32_t>({mask, id / 32})) >> (id % 32) & 1) != 0;
}

RUNG_TEST(Task1_8_TokenBitmask, LeavesWhatIsAllowedAndForbidsTheRest, "apply_token_bitmask",
          apply_token_bitmask_variants()) {
  for (int64_t vocab : kVocabularies) {
    Random random;
    SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
    const int64_t rows = 9;
    const Tensor logits = random.normal({rows, vocab}, DType::f32, 3.0), before = logits.clone();
    logits.at<float>({3, vocab - 1}) = before.at<float>({3, vocab - 1}) = INFINITY;
    const Tensor masks = random_masks(random, vocab);
    const Tensor index = Tensor::from<int32_t>(std::vector<int32_t>{-1, 0, 1, 2, 3, 4, 0, -1, 4}, {rows});
    call(apply_token_bitmask, ctx, ApplyTokenBitmaskArgs{logits, index, masks});
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t id = 0; id < vocab; ++id) {
        const int32_t mask = index.at<int32_t>({row});
        const bool allowed = mask < 0 || allows(masks, mask, id);
        ASSERT_EQ(logits.at<float>({row, id}), allowed ? before.at<float>({row, id}) : -INFINITY)
            << row << " " << id;
      }
  }
}

RUNG_TEST(Task1_8_TokenBitmask, RefusesMasksThatAreNotThereOrPassesOverThem, "apply_token_bitmask",
          apply_token_bitmask_variants()) {
  const Tensor masks = Tensor::zeros({2, 2}, DType::i32);
  for (const int32_t outside : {2, INT32_MAX}) {
    const ApplyTokenBitmaskArgs args{Tensor::zeros({2, 33}, DType::f32),
                                     Tensor::from<int32_t>(std::vector<int32_t>{outside, -1}, {2}), masks};
    if (ctx.device.is_cpu()) {
      EXPECT_THROW(apply_token_bitmask(ctx, args), Error);
      continue;
    }
    call(apply_token_bitmask, ctx, args);
    EXPECT_TRUE(bitwise_equal(args.logits, Tensor::zeros({2, 33}, DType::f32)));
  }
}

TEST(Task1_8_TokenBitmaskCall, RefusesMasksOfAnotherVocabulary) {
  const Tensor index = Tensor::zeros({1}, DType::i32);
  EXPECT_THROW(apply_token_bitmask(OpContext{}, {Tensor::zeros({1, 64}, DType::f32), index,
                                                 Tensor::zeros({1, 3}, DType::i32)}),
               Error);
  EXPECT_THROW(apply_token_bitmask(OpContext{}, {Tensor::zeros({1, 65}, DType::f32), index,
                                                 Tensor::zeros({1, 2}, DType::i32)}),
               Error);
}

}  // namespace
}  // namespace ladder
