// Task 7.10 on GPUs: every method over GPUs against one rank.
#include "step1_layers/core/device.h"
#ifdef LADDER_HAS_CUDA
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/communicators/gpu/gpu_ranks.h"
#include "step7_parallel/context/beside.h"
#include "step7_parallel/context/context_methods.h"
#include "step7_parallel/context/partial_attention.h"
#include "step7_parallel/context/ring_attention.h"
#include "tests/step7_parallel/context_problem.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::ContextPart;
using testing::ContextProblem;
using testing::Random;

using Problems = std::vector<std::unique_ptr<ContextProblem>>;

// Four KV heads, which two ranks can share and four.
constexpr int64_t kHeads = 8, kKvHeads = 4;

Problems problems_of(Random& random, int ranks, const std::vector<std::vector<ContextPart>>& batches,
                     int64_t dim, DType dtype) {
  Problems problems;
  for (const auto& parts : batches)
    problems.push_back(std::make_unique<ContextProblem>(random, ranks, parts, kKvHeads, kHeads, dim, dtype));
  return problems;
}

// All problems by all methods of this rank, the ring with its second stream and without.
void solve(const GpuRank& rank, LocalGroup& inner, LocalGroup& outer, const Problems& problems, int64_t dim,
           DType dtype) {
  const int width = inner.size(), me = rank.group.rank();
  GpuCommunicator across(rank.ctx, inner.rank(me % width)), along(rank.ctx, outer.rank(me / width));
  SideStream side(rank.ctx.device);
  rank.ctx.arena->reserve(int64_t{256} << 20);  // no allocation waits for what waits for another rank
  warm_up_context_attention(rank.ctx, dtype, kHeads, kKvHeads, dim);
  rank.host.barrier({});
  std::string wrong;  // said at the end: who leaves earlier leaves the others waiting
  const auto by = [&](std::string_view name, SideStream* stream, auto run) {
    for (const auto& problem : problems) try {
        const auto method = [&](const OpContext& ctx, ContextAttentionArgs args) {
          args.inner = &across;
          args.outer = &along;
          args.side = stream;
          rank.host.barrier({});  // nobody frees memory, which may wait for what waits for another rank
          run(ctx, args);
        };
        problem->run_on(rank.ctx, method, me, rank.group);
      } catch (const Error& error) {
        wrong += fmt::format("{}, {}: {}\n", name, problem->str(), error.what());
      }
  };
  for (const auto& method : context_attention_variants())
    if (method.device == DeviceType::cuda) by(method.name, &side, method.run);
  by("ring on one stream", nullptr, ring_attention);
  by("the choice", &side, context_attention);
  rank.host.barrier({});
  LADDER_CHECK(wrong.empty(), "{}", wrong);
}

class ContextMethodsOnGpus : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const std::string obstacle = gpu_ranks_obstacle(GetParam()); !obstacle.empty())
      GTEST_SKIP() << obstacle;
  }
  static void expect_solved(const std::vector<std::vector<ContextPart>>& batches) {
    const int ranks = GetParam();
    Random random;
    SCOPED_TRACE(random.describe());
    for (const auto& [dim, dtype] : {std::pair<int64_t, DType>{128, DType::bf16},
                                     {64, DType::bf16},
                                     {128, DType::f16},
                                     {16, DType::f32}}) {
      const Problems problems = problems_of(random, ranks, batches, dim, dtype);
      std::vector<std::unique_ptr<LocalGroup>> inner, outer;
      for (int i = 0; i < ranks / 2; ++i) inner.push_back(std::make_unique<LocalGroup>(2));
      for (int i = 0; i < 2; ++i) outer.push_back(std::make_unique<LocalGroup>(ranks / 2));
      const auto errors = run_gpu_ranks(ranks, 120s, [&, dim = dim, dtype = dtype](const GpuRank& rank) {
        const auto me = static_cast<size_t>(rank.group.rank());
        solve(rank, *inner[me / 2], *outer[me % 2], problems, dim, dtype);
      });
      EXPECT_THAT(errors, ::testing::Each("")) << dtype_name(dtype) << ", heads of " << dim;
    }
  }
};

// Chunks are halves of a rank's rows, kernels take 64 keys and 128 keys and 32 tokens' heads at a time.
TEST_P(ContextMethodsOnGpus, EqualOneRankForLengthsAroundTheMultiples) {
  std::vector<std::vector<ContextPart>> batches;
  for (const int64_t length :
       {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513})
    batches.push_back({{0, length}});
  expect_solved(batches);
}

TEST_P(ContextMethodsOnGpus, EqualOneRankForUnequalPromptsWithCachedKeys) {
  expect_solved({{{0, 300}, {0, 1}, {0, 0}, {0, 77}},
                 {{40, 120}, {0, 33}, {7, 1}},
                 {{513, 3}, {1, 260}},
                 {{64, 0}, {0, 64}},
                 {{2500, 40}}});
}

// The buffers in turn, many times, without the host between: what arrives must not overwrite what is still read.
TEST_P(ContextMethodsOnGpus, TheRingAgainAndAgainGivesTheSameBits) {
  const int ranks = GetParam();
  Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kLength = 4096, kDim = 128;
  const ContextProblem problem(random, ranks, {{0, kLength}, {0, 1000}}, kKvHeads, kHeads, kDim, DType::bf16);
  const auto errors = run_gpu_ranks(ranks, 120s, [&](const GpuRank& rank) {
    SideStream side(rank.ctx.device);
    rank.ctx.arena->reserve(int64_t{256} << 20);
    warm_up_context_attention(rank.ctx, DType::bf16, kHeads, kKvHeads, kDim);
    ContextAttentionArgs args = problem.args_of(rank.group.rank());
    args.group = &rank.group;
    for (Tensor* tensor : {&args.q, &args.k, &args.v, &args.out}) *tensor = tensor->to(rank.ctx.device);
    rank.host.barrier({});
    ring_attention(rank.ctx, args);  // on one stream
    device_synchronize(rank.ctx.device, rank.ctx.stream);
    const Tensor expected = args.out.to(Device{});
    args.side = &side;
    std::vector<Tensor> outs;
    for (int turn = 0; turn < 20; ++turn) outs.push_back(args.out.clone());
    rank.host.barrier({});
    for (const Tensor& out : outs) {
      args.out = out;
      ring_attention(rank.ctx, args);
    }
    device_synchronize(rank.ctx.device, rank.ctx.stream);
    for (size_t turn = 0; turn < outs.size(); ++turn) {
      const auto equal = testing::bitwise_equal(outs[turn].to(Device{}), expected);
      LADDER_CHECK(equal, "turn {}: {}", turn, equal.message());
    }
    rank.host.barrier({});
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextMethodsOnGpus, ::testing::Values(2, 4),
                         [](const auto& info) { return std::to_string(info.param) + "Gpus"; });

}  // namespace
}  // namespace ladder
#endif
