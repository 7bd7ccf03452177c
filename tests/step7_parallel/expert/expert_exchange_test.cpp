// Task 7.9: tokens and experts on different ranks, by every method, against all experts on one rank.
#include "step7_parallel/expert/expert_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/kinds.h"
#include "tests/step7_parallel/expert_problem.h"
#include "tests/step7_parallel/failing_communicator.h"
#include "tests/support/in_time.h"

namespace ladder {
namespace {

using ::testing::Each;
using testing::ExpertProblem;
using testing::FailingCommunicator;
using ::testing::HasSubstr;
using testing::MoeSizes;
using ::testing::Ne;
using testing::Random;

class Task7_9_Exchange : public ::testing::TestWithParam<const Variant<ExpertExchangeArgs>*> {};

TEST_P(Task7_9_Exchange, GivesWhatOneRankGives) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60; ++round) {
    const int64_t experts = random.integer(1, 9);
    const MoeSizes sizes{random.integer(0, 12), random.integer(1, std::min<int64_t>(experts, 4)), experts, 8,
                         4};
    const ExpertProblem exchange(random, static_cast<int>(random.integer(1, 4)), sizes, DType::f32,
                                 round % 2 == 1);
    const Tensor out = exchange.over(communicator_kind("threads"), *GetParam());
    EXPECT_TRUE(testing::close_to(out, exchange.expected())) << exchange.str();
  }
}

TEST_P(Task7_9_Exchange, TakesTokensOfOneRankAndExpertsOfAnother) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    ExpertProblem exchange(random, 3, {7, 2, 4, 16, 8}, dtype, false);
    exchange.begins = {0, 7, 7, 7};
    exchange.rank_of = {2, 2, 2, 2};
    const Tensor out = exchange.over(communicator_kind("threads"), *GetParam());
    EXPECT_TRUE(testing::close_to(out, exchange.expected())) << dtype_name(dtype);
  }
}

// Every token has experts on all ranks, its own among them: each adds to its sum, whatever ids it was sent with.
TEST_P(Task7_9_Exchange, ATokenThatGoesToAllRanksComesBackWhole) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ExpertProblem exchange(random, 4, {11, 4, 8, 8, 4}, dtype, false);
    exchange.begins = {0, 4, 5, 9, 11};
    exchange.rank_of = {0, 1, 2, 3, 3, 2, 1, 0};
    for (int64_t token = 0; token < 11; ++token)
      for (int64_t j = 0; j < 4; ++j)
        exchange.scene.expert_ids.at<int32_t>({token, j}) =
            static_cast<int32_t>(random.integer(0, 1) == 0 ? j : 7 - j);
    const Tensor out = exchange.over(communicator_kind("threads"), *GetParam());
    EXPECT_TRUE(testing::close_to(out, exchange.expected())) << exchange.str();
  }
}

TEST_P(Task7_9_Exchange, RunsOverProcesses) {
  Random random(3);
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu || kind.run == nullptr || !kind.obstacle(3).empty()) continue;
    const ExpertProblem exchange(random, 3, {9, 2, 5, 8, 4}, DType::f32, false);
    const auto errors = kind.run(3, std::chrono::seconds(60), [&](int rank, Communicator& group) {
      const Tensor out = Tensor::zeros(exchange.scene.x.shape(), DType::f32);
      exchange.run(*GetParam(), rank, group, out);
      const std::vector<double> mine = testing::to_double(out), expected = exchange.expected();
      for (int64_t i = exchange.begins[static_cast<size_t>(rank)] * 8;
           i < exchange.begins[static_cast<size_t>(rank) + 1] * 8; ++i)
        if (std::abs(mine[static_cast<size_t>(i)] - expected[static_cast<size_t>(i)]) > 1e-4)
          throw Error("value " + std::to_string(i) + " is wrong");
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << kind.name;
  }
}

// Before each call: the counts; tokens, ids and weights on their way; the parts on their way back.
TEST_P(Task7_9_Exchange, ARankThatDiesOnTheWayEndsAllWithinFiveSeconds) {
  Random random;
  SCOPED_TRACE(random.describe());
  const ExpertProblem exchange(random, 3, {11, 2, 5, 8, 4}, DType::f32, false);
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu || kind.run == nullptr || !kind.obstacle(3).empty()) continue;
    const bool is_process = kind.name == "shared_memory";
    for (int call = 0; call < 5; ++call) {
      SCOPED_TRACE(fmt::format("{}, call {}", kind.name, call));
      testing::expect_within(std::chrono::seconds(5), [&] {
        const auto begin = std::chrono::steady_clock::now();
        const auto errors = kind.run(3, std::chrono::seconds(20), [&](int rank, Communicator& group) {
          FailingCommunicator failing(
              group, rank == 1 ? call : -1,
              is_process ? [] { ::raise(SIGKILL); } : [] { throw Error("the disk is on fire"); });
          exchange.run(*GetParam(), rank, failing, Tensor::zeros(exchange.scene.x.shape(), DType::f32));
        });
        const auto took = std::chrono::steady_clock::now() - begin;
        EXPECT_THAT(errors[1], HasSubstr(is_process ? "signal 9" : "the disk is on fire"));
        EXPECT_THAT(errors, Each(Ne("")));
        return took;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Task7_9_Exchange,
                         ::testing::Values(&expert_exchange_variants()[0], &expert_exchange_variants()[1]),
                         [](const auto& info) { return std::string(info.param->name); });

// A token goes to a rank once, however many of its experts are there, and not at all where it has none.
TEST(Task7_9_Traffic, ATokenIsSentOncePerRank) {
  Random random(1);
  ExpertProblem exchange(random, 2, {4, 2, 4, 8, 4}, DType::f32, false);
  exchange.begins = {0, 4, 4};
  exchange.rank_of = {0, 0, 1, 1};
  const std::vector<int32_t> chosen = {0, 1, 2, 3,
                                       0, 2, 3, 2};  // of tokens 1, 2 and 3 something is on rank 1
  std::copy(chosen.begin(), chosen.end(), exchange.scene.expert_ids.data<int32_t>());
  std::vector<int64_t> sent(2);
  exchange.over(communicator_kind("threads"), expert_exchange_variants()[1], &sent);
  const int64_t counts = 2 * 4, row = 8 * 4 + 2 * 4 + 2 * 4, result = 8 * 4;
  EXPECT_EQ(sent[0], counts + 3 * row);
  EXPECT_EQ(sent[1], counts + 3 * result);
}

TEST(Task7_9_Errors, AreNamed) {
  Random random(1);
  ExpertProblem exchange(random, 1, {2, 1, 3, 8, 4}, DType::f32, false);
  ExpertExchangeArgs args{.x = exchange.scene.x,
                          .expert_ids = exchange.scene.expert_ids,
                          .weights = exchange.scene.weights,
                          .rank_of = {0, 0, 1},
                          .compute = [](auto&&...) {},
                          .out = Tensor::zeros({2, 8}, DType::f32)};
  EXPECT_THROW(expert_exchange({}, args), Error);  // no rank 1
  args.rank_of = {0, 0, 0};
  args.expert_ids.at<int32_t>({1, 0}) = 3;
  EXPECT_THROW(expert_exchange({}, args), Error);  // no expert 3
}

}  // namespace
}  // namespace ladder
