// Task 1.5: the vocabulary split over ranks.
#include "step1_layers/embedding/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Random;

constexpr int64_t kHidden = 10;

Tensor ids_of(const std::vector<int32_t>& ids) {
  return Tensor::from<int32_t>(ids, {static_cast<int64_t>(ids.size())});
}

void on_ranks(std::initializer_list<int> sizes,
              const std::function<void(const OpContext& ctx, int rank)>& fn) {
  for (int ranks : sizes) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
      Arena arena;
      OpContext ctx;
      ctx.arena = &arena;
      ctx.parallel = &parallel;
      fn(ctx, rank);
    });
  }
}

RUNG_TEST(Task1_5_Embedding, CopiesItsRowsAndZeroesTheOthers, "embedding", embedding_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int64_t tokens : {1, 7, 3000}) {
      const Tensor weight = random.normal({13, kHidden}, dtype);
      Tensor ids = Tensor::empty({tokens}, DType::i32);
      for (int64_t i = 0; i < tokens; ++i) ids.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, 40));
      Tensor wide = testing::poisoned({tokens, kHidden + 3}, dtype);
      const Tensor out = wide.narrow(1, 2, kHidden);
      const EmbeddingArgs args{ids, weight, 20, out};
      if (!testing::can_run_rung(rung, ctx, args)) continue;
      testing::run_rung(rung, ctx, args);
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t row = ids.at<int32_t>({i}) - 20;
        const Tensor expected =
            row >= 0 && row < 13 ? weight.narrow(0, row, 1).clone() : Tensor::zeros({1, kHidden}, dtype);
        ASSERT_TRUE(testing::bitwise_equal(out.narrow(0, i, 1), expected)) << "token " << i;
      }
    }
}

TEST(Task1_5_Embedding, AVocabularyThatDoesNotDivideIsPadded) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int64_t vocab : {131, 5, 1}) {
    const Tensor table = random.normal({vocab, kHidden}, DType::f32);
    std::vector<int32_t> every(static_cast<size_t>(vocab));
    for (int64_t i = 0; i < vocab; ++i) every[static_cast<size_t>(i)] = static_cast<int32_t>(vocab - 1 - i);
    on_ranks({1, 2, 4}, [&](const OpContext& ctx, int) {
      VocabParallelEmbedding embedding(ctx, "embed", vocab, kHidden, DType::f32);
      embedding.parameters()[0]->load(table);
      Tensor out = testing::poisoned({vocab, kHidden}, DType::f32);
      embedding.forward(ctx, ids_of(every), out);
      for (int64_t i = 0; i < vocab; ++i)
        EXPECT_TRUE(testing::bitwise_equal(out.narrow(0, i, 1), table.narrow(0, vocab - 1 - i, 1)));
    });
  }
}

TEST(Task1_5_Embedding, IdsOutsideTheVocabularyAreRefused) {
  OpContext ctx;
  VocabParallelEmbedding embedding(ctx, "embed", 131, kHidden, DType::f32);
  Tensor out = Tensor::empty({2, kHidden}, DType::f32);
  for (int32_t bad : {131, -1, INT32_MAX, INT32_MIN}) {
    try {
      embedding.forward(ctx, ids_of({0, bad}), out);
      ADD_FAILURE() << bad << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(std::to_string(bad)), HasSubstr("131")));
    }
  }
  EXPECT_THROW(embedding.forward(ctx, ids_of({0}), out), Error);
  EXPECT_THROW(embedding.forward(ctx, ids_of({0, 1}), Tensor::empty({2, kHidden}, DType::bf16)), Error);
  EXPECT_NO_THROW(embedding.forward(ctx, Tensor::empty({0}, DType::i32), out.rows(0)));
}

TEST(Task1_5_Embedding, LoadingTakesTheFullTableOnce) {
  OpContext ctx;
  VocabParallelEmbedding embedding(ctx, "model.embed_tokens", 131, kHidden, DType::bf16);
  Parameter* parameter = embedding.parameters()[0];
  EXPECT_EQ(parameter->name, "model.embed_tokens.weight");
  try {
    parameter->load(Tensor::zeros({132, kHidden}, DType::f32));
    ADD_FAILURE() << "a table of another size was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("[131, 10]"),
                                    HasSubstr("[132, 10]")));
  }
  parameter->load(Tensor::zeros({131, kHidden}, DType::f32));
  EXPECT_THROW(parameter->load(Tensor::zeros({131, kHidden}, DType::f32)), Error);
}

// hidden times table^T, of small integers.
std::vector<double> reference(const Tensor& hidden, const Tensor& table) {
  const auto x = testing::to_double(hidden), w = testing::to_double(table);
  std::vector<double> out;
  for (int64_t i = 0; i < hidden.dim(0); ++i)
    for (int64_t j = 0; j < table.dim(0); ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kHidden; ++k)
        sum += x[static_cast<size_t>(i * kHidden + k)] * w[static_cast<size_t>(j * kHidden + k)];
      out.push_back(sum);
    }
  return out;
}

TEST(Task1_5_LmHead, TheFirstRankHasAllLogitsTiedOrNot) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int64_t vocab : {131, 5, 128}) {
      const Tensor table = random.exact({vocab, kHidden}, dtype),
                   other = random.exact({vocab, kHidden}, dtype);
      const Tensor hidden = random.exact({6, kHidden}, dtype);
      on_ranks({1, 2, 4}, [&](const OpContext& ctx, int rank) {
        VocabParallelEmbedding embedding(ctx, "embed", vocab, kHidden, dtype);
        embedding.parameters()[0]->load(table);
        LmHead tied(embedding);
        EXPECT_TRUE(tied.parameters().empty());
        LmHead own(ctx, "lm_head", vocab, kHidden, dtype);
        ASSERT_EQ(own.parameters().size(), 1u);
        EXPECT_EQ(own.parameters()[0]->name, "lm_head.weight");
        own.parameters()[0]->load(other);
        for (const auto& [head, weight] : {std::pair<LmHead*, Tensor>{&tied, table}, {&own, other}}) {
          Tensor logits = rank == 0 ? testing::poisoned({6, vocab}, DType::f32) : Tensor();
          head->forward(ctx, hidden, logits);
          if (rank == 0) EXPECT_EQ(testing::to_double(logits), reference(hidden, weight));
        }
        EXPECT_EQ(ctx.arena->used_bytes(), 0);
      });
    }
}

TEST(Task1_5_LmHead, ABiasIsSplitAsTheRowsAre) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t vocab : {131, 5}) {
    const Tensor table = random.exact({vocab, kHidden}, DType::f32), bias = random.exact({vocab}, DType::f32);
    const Tensor hidden = random.exact({3, kHidden}, DType::f32);
    std::vector<double> expected = reference(hidden, table);
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] += testing::to_double(bias)[i % static_cast<size_t>(vocab)];
    on_ranks({1, 2, 4}, [&](const OpContext& ctx, int rank) {
      LmHead head(ctx, "lm_head", vocab, kHidden, DType::f32, true);
      ASSERT_EQ(head.parameters().size(), 2u);
      EXPECT_EQ(head.parameters()[1]->name, "lm_head.bias");
      head.parameters()[0]->load(table);
      head.parameters()[1]->load(bias);
      Tensor logits = rank == 0 ? testing::poisoned({3, vocab}, DType::f32) : Tensor();
      head.forward(ctx, hidden, logits);
      if (rank == 0) EXPECT_EQ(testing::to_double(logits), expected);
    });
  }
}

TEST(Task1_5_LmHead, TyingSharesTheMemory) {
  OpContext ctx;
  VocabParallelEmbedding embedding(ctx, "embed", 7, kHidden, DType::f32);
  LmHead head(embedding);
  embedding.weight().fill_bytes(0);  // after tying
  Tensor logits = testing::poisoned({1, 7}, DType::f32);
  head.forward(ctx, Tensor::zeros({1, kHidden}, DType::f32), logits);
  EXPECT_EQ(testing::to_double(logits), std::vector<double>(7, 0.0));
  EXPECT_THROW(head.forward(ctx, Tensor::zeros({1, kHidden}, DType::f32), Tensor::zeros({1, 8}, DType::f32)),
               Error);
}

}  // namespace
}  // namespace ladder
