// Every method of the table against one rank, and what each of them sends.
#include "step7_parallel/context/context_methods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/counting_communicator.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/context/ulysses_attention.h"
#include "tests/step7_parallel/context_problem.h"

namespace ladder {
namespace {

class ContextMethods : public ::testing::TestWithParam<const Variant<ContextAttentionArgs>*> {
 protected:
  // With inner groups of two where the ranks are even in number, of one where not.
  testing::ContextProblem::Method method(int ranks) const {
    const Variant<ContextAttentionArgs>* variant = GetParam();
    if (variant->name != "ulysses_ring") return variant->run;
    const int width = ranks % 2 == 0 ? 2 : 1;
    auto inner = std::make_shared<std::vector<std::unique_ptr<LocalGroup>>>();
    auto outer = std::make_shared<std::vector<std::unique_ptr<LocalGroup>>>();
    for (int i = 0; i < ranks / width; ++i) inner->push_back(std::make_unique<LocalGroup>(width));
    for (int i = 0; i < width; ++i) outer->push_back(std::make_unique<LocalGroup>(ranks / width));
    return [=](const OpContext& ctx, const ContextAttentionArgs& args) {
      const int rank = args.group->rank();
      ContextAttentionArgs in_groups = args;
      in_groups.inner = &(*inner)[static_cast<size_t>(rank / width)]->rank(rank % width);
      in_groups.outer = &(*outer)[static_cast<size_t>(rank % width)]->rank(rank / width);
      variant->run(ctx, in_groups);
    };
  }
};

// 12 KV heads: 1, 2, 3 and 4 ranks can share them.
TEST_P(ContextMethods, EqualOneRankForEveryLengthAroundTheMultiples) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 23, 24, 25}) {
      const testing::ContextProblem problem(random, ranks, {{0, length}}, 12, 24);
      EXPECT_TRUE(problem.is_solved_by(method(ranks))) << problem.str();
    }
}

TEST_P(ContextMethods, EqualOneRankForBatchesWithCachedKeys) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 12; ++round) {
    std::vector<testing::ContextPart> parts;
    for (int64_t i = random.integer(1, 4); i > 0; --i)
      parts.push_back({random.integer(0, 1) * random.integer(0, 40), random.integer(0, 40)});
    const int ranks = static_cast<int>(random.integer(2, 4));
    const testing::ContextProblem problem(random, ranks, parts, 12, 12);
    EXPECT_TRUE(problem.is_solved_by(method(ranks))) << problem.str();
  }
}

// Partial results are rounded to the tensors' dtype, sums are not.
TEST_P(ContextMethods, EqualOneRankInSixteenBits) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const int ranks : {1, 2, 3, 4}) {
      const testing::ContextProblem problem(random, ranks, {{0, 61}, {30, 9}}, 12, 12, 64, dtype);
      EXPECT_TRUE(problem.is_solved_by(method(ranks))) << dtype_name(dtype) << ", " << problem.str();
    }
}

// With random keys the last query's weights are spread; the value of the one key that it looks for must still win.
TEST_P(ContextMethods, FindANeedleAtEveryTenth) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kLength = 101;
  for (int tenth = 0; tenth <= 10; ++tenth) {
    const testing::ContextProblem problem(random, 4, {{0, kLength}}, 4, 4);
    const int64_t place = (kLength - 1) * tenth / 10, dim = problem.q(0).dim(2);
    for (int64_t i = 0; i < dim; ++i) {
      problem.k(0).at<float>({place, 3, i}) = i % 2 == 0 ? 8.0f : -8.0f;
      problem.q(0).at<float>({kLength - 1, 3, i}) = i % 2 == 0 ? 8.0f : -8.0f;
    }
    const Tensor out = problem.over_threads(method(4)).front();
    for (int64_t i = 0; i < dim; ++i)
      EXPECT_NEAR(out.at<float>({kLength - 1, 3, i}), problem.v(0).at<float>({place, 3, i}), 1e-4)
          << "at " << place;
  }
}

std::vector<const Variant<ContextAttentionArgs>*> methods() {
  std::vector<const Variant<ContextAttentionArgs>*> all;
  for (const auto& variant : context_attention_variants())
    if (variant.device == DeviceType::cpu) all.push_back(&variant);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, ContextMethods, ::testing::ValuesIn(methods()),
                         [](const auto& info) { return std::string(info.param->name); });

// The values that each rank sends of a prompt of 48 tokens, 4 KV heads and 8 heads of 16, 2 ranks and 4.
TEST(ContextTraffic, IsWhatTheChapterSays) {
  testing::Random random;
  for (const int64_t ranks : {2, 4}) {
    const testing::ContextProblem problem(random, static_cast<int>(ranks), {{0, 48}}, 4, 8);
    const int64_t tokens = 48, keys = 2 * tokens * 4 * 16, queries = 2 * tokens * 8 * 16;
    auto sent = [&](std::string_view name) {
      std::vector<int64_t> bytes(static_cast<size_t>(ranks));
      problem.over_threads([&](const OpContext& ctx, const ContextAttentionArgs& args) {
        for (const auto& variant : context_attention_variants()) {
          if (variant.name != name || variant.device != DeviceType::cpu) continue;
          CountingCommunicator counting(*args.group);
          ContextAttentionArgs counted = args;
          counted.group = &counting;
          variant.run(ctx, counted);
          bytes[static_cast<size_t>(counting.rank())] = counting.sent_bytes();
        }
      });
      EXPECT_THAT(bytes, ::testing::Each(bytes[0])) << name;
      return bytes[0] / 4;
    };
    EXPECT_EQ(sent("all_gather"), (ranks - 1) * keys / ranks);
    EXPECT_EQ(sent("ring"), (ranks - 1) * keys / ranks);
    EXPECT_EQ(sent("ulysses"), (ranks - 1) * (keys + queries) / ranks / ranks);
  }
}

TEST(ContextAttention, KvHeadsThatCannotBeSharedOutAreNamed) {
  testing::Random random;
  const testing::ContextProblem problem(random, 3, {{0, 9}}, 2, 4);
  try {
    problem.over_threads(ulysses_attention);
    ADD_FAILURE() << "2 KV heads on 3 ranks";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("2 KV heads"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("3 ranks"));
  }
  EXPECT_TRUE(problem.is_solved_by(context_attention)) << "another method does it";
}

TEST(ContextAttention, TensorsOfSeveralDtypesAreAnError) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor q = Tensor::zeros({4, 2, 16}, DType::bf16), k = Tensor::zeros({4, 2, 16}, DType::f32);
  const ContextAttentionArgs mixed{.prompts = {{.length = 4}}, .q = q, .k = k, .v = k, .out = q};
  EXPECT_THROW(context_attention(ctx, mixed), Error);
  const Tensor ids = Tensor::zeros({4, 2, 16}, DType::i32);
  const ContextAttentionArgs numbers{.prompts = {{.length = 4}}, .q = ids, .k = ids, .v = ids, .out = ids};
  EXPECT_THROW(context_attention(ctx, numbers), Error);
}

TEST(ContextAttention, GroupsThatAreNotTheRanksAreAnError) {
  testing::Random random;
  const testing::ContextProblem problem(random, 2, {{0, 9}}, 2, 4);
  EXPECT_THROW(problem.over_threads(ulysses_ring_attention), Error) << "without groups";
}

// Over processes and connections as over threads.
TEST(ContextAttention, IsTheSameOverEveryCommunicator) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu || kind.run == nullptr) continue;
    const testing::ContextProblem problem(random, 3, {{5, 19}, {0, 2}, {0, 0}}, 3, 6);
    for (const auto& variant : context_attention_variants()) {
      if (variant.device != DeviceType::cpu) continue;
      if (variant.name == "ulysses_ring") continue;  // by the other two's calls
      const auto errors = kind.run(3, std::chrono::seconds(60), [&](int rank, Communicator& group) {
        problem.run(variant.run, rank, group);
      });
      EXPECT_THAT(errors, ::testing::Each("")) << kind.name << ", " << variant.name << ", " << problem.str();
    }
  }
}

}  // namespace
}  // namespace ladder
