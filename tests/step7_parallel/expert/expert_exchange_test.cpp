// Task 7.9: tokens and experts on different ranks, by every method, against all experts on one rank.
#include "step7_parallel/expert/expert_exchange.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/counting_communicator.h"
#include "step7_parallel/communicators/kinds.h"
#include "tests/step1_layers/moe_scene.h"

namespace ladder {
namespace {

using testing::MoeScene;
using testing::MoeSizes;
using testing::Random;

// The rows of a scene shared out over ranks, its experts too.
struct Exchange {
  Exchange(Random& random, int ranks, MoeSizes sizes, DType dtype, bool with_holes)
      : scene(random, sizes, dtype, with_holes), sizes(sizes), ranks(ranks) {
    begins.push_back(0);
    for (int rank = 1; rank < ranks; ++rank) begins.push_back(random.integer(0, sizes.tokens));
    std::sort(begins.begin(), begins.end());
    begins.push_back(sizes.tokens);
    for (int64_t expert = 0; expert < sizes.experts; ++expert)
      rank_of.push_back(static_cast<int32_t>(random.integer(0, ranks - 1)));
  }

  // What a rank gets, put into `out` [tokens, hidden]; the bytes that it sends.
  int64_t run(const Variant<ExpertExchangeArgs>& method, int rank, Communicator& group,
              const Tensor& out) const {
    const int64_t first = begins[static_cast<size_t>(rank)],
                  count = begins[static_cast<size_t>(rank) + 1] - first;
    CountingCommunicator counting(group);
    ExpertExchangeArgs args;
    args.ranks = &counting;
    args.x = scene.x.narrow(0, first, count);
    args.expert_ids = scene.expert_ids.narrow(0, first, count);
    args.weights = scene.weights.narrow(0, first, count);
    args.rank_of = rank_of;
    args.out = out.narrow(0, first, count);
    int calls = 0;
    args.compute = [&](const OpContext& ctx, const Tensor& x, const Tensor& ids, const Tensor& weights,
                       const Tensor& parts) {
      ++calls;
      for (int64_t i = 0; i < ids.numel(); ++i) {
        const int32_t expert = ids.data<int32_t>()[i];
        if (expert >= 0 && rank_of[static_cast<size_t>(expert)] != rank)
          throw Error("rank " + std::to_string(rank) + " was given expert " + std::to_string(expert) +
                      ", which is elsewhere");
      }
      if (x.dim(0) > 0) moe_experts(ctx, {x, ids, weights, scene.gate_up, scene.down, parts});
    };
    OpContext forced;
    forced.kernels["expert_exchange"] = method.name;
    expert_exchange(forced, args);
    if (calls != 1) throw Error("the experts were asked " + std::to_string(calls) + " times");
    return counting.sent_bytes();
  }
  Tensor over(const CommunicatorKind& kind, const Variant<ExpertExchangeArgs>& method,
              std::vector<int64_t>* sent = nullptr) const {
    const Tensor out = Tensor::empty(scene.x.shape(), scene.x.dtype());
    out.fill_bytes(0xff);
    const auto errors = kind.run(ranks, std::chrono::seconds(60), [&](int rank, Communicator& group) {
      const int64_t bytes = run(method, rank, group, out);
      if (sent != nullptr) (*sent)[static_cast<size_t>(rank)] = bytes;
    });
    for (const std::string& error : errors)
      if (!error.empty()) ADD_FAILURE() << error;
    return out;
  }
  std::string str() const {
    return fmt::format("{} tokens, {} of {} experts, {} ranks with tokens from {}, experts on {}",
                       sizes.tokens, sizes.top_k, sizes.experts, ranks, fmt::join(begins, " "),
                       fmt::join(rank_of, " "));
  }

  MoeScene scene;
  MoeSizes sizes;
  int ranks;
  std::vector<int64_t> begins;  // of the ranks' tokens
  std::vector<int32_t> rank_of;
};

class Task7_9_Exchange : public ::testing::TestWithParam<const Variant<ExpertExchangeArgs>*> {};

TEST_P(Task7_9_Exchange, GivesWhatOneRankGives) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60; ++round) {
    const int64_t experts = random.integer(1, 9);
    const MoeSizes sizes{random.integer(0, 12), random.integer(1, std::min<int64_t>(experts, 4)), experts, 8,
                         4};
    const Exchange exchange(random, static_cast<int>(random.integer(1, 4)), sizes, DType::f32,
                            round % 2 == 1);
    const Tensor out = exchange.over(communicator_kind("threads"), *GetParam());
    EXPECT_TRUE(testing::all_close(testing::to_double(out), exchange.scene.expected(), 1e-5, 1e-5))
        << exchange.str();
  }
}

TEST_P(Task7_9_Exchange, TakesTokensOfOneRankAndExpertsOfAnother) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Exchange exchange(random, 3, {7, 2, 4, 16, 8}, dtype, false);
    exchange.begins = {0, 7, 7, 7};
    exchange.rank_of = {2, 2, 2, 2};
    const Tensor out = exchange.over(communicator_kind("threads"), *GetParam());
    const double tolerance = dtype == DType::f32 ? 1e-5 : 0.03;
    EXPECT_TRUE(testing::all_close(testing::to_double(out), exchange.scene.expected(), tolerance, tolerance))
        << dtype_name(dtype);
  }
}

TEST_P(Task7_9_Exchange, RunsOverProcesses) {
  Random random(3);
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu || kind.run == nullptr || !kind.obstacle(3).empty()) continue;
    const Exchange exchange(random, 3, {9, 2, 5, 8, 4}, DType::f32, false);
    const auto errors = kind.run(3, std::chrono::seconds(60), [&](int rank, Communicator& group) {
      const Tensor out = Tensor::zeros(exchange.scene.x.shape(), DType::f32);
      exchange.run(*GetParam(), rank, group, out);
      const std::vector<double> mine = testing::to_double(out), expected = exchange.scene.expected();
      for (int64_t i = exchange.begins[static_cast<size_t>(rank)] * 8;
           i < exchange.begins[static_cast<size_t>(rank) + 1] * 8; ++i)
        if (std::abs(mine[static_cast<size_t>(i)] - expected[static_cast<size_t>(i)]) > 1e-4)
          throw Error("value " + std::to_string(i) + " is wrong");
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << kind.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Task7_9_Exchange,
                         ::testing::Values(&expert_exchange_variants()[0], &expert_exchange_variants()[1]),
                         [](const auto& info) { return std::string(info.param->name); });

// A token goes to a rank once, however many of its experts are there, and not at all where it has none.
TEST(Task7_9_Traffic, ATokenIsSentOncePerRank) {
  Random random(1);
  Exchange exchange(random, 2, {4, 2, 4, 8, 4}, DType::f32, false);
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
  Exchange exchange(random, 1, {2, 1, 3, 8, 4}, DType::f32, false);
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
