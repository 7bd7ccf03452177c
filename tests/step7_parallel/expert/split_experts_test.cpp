// 7.9: every expert's width split over the ranks of all replicas: all tokens go everywhere, and a rank has its part of the weights.
#include "step7_parallel/expert/split_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/expert/expert_exchange.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using testing::Grid;
using ::testing::HasSubstr;

RunnerConfig split_over(const EngineOptions& one_rank, int replicas, int tensor_ranks) {
  RunnerConfig config = one_rank.runner;
  config.dtype = DType::f32;
  config.tensor_parallel_size = tensor_ranks;
  config.expert_replicas = replicas;
  config.batch.max_model_len = 64;
  return config;
}

class Task7_9_SplitExperts : public ::testing::TestWithParam<std::string> {
 protected:
  const testing::GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const EngineOptions one_rank =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
};

// Two replicas of as many tensor ranks: a rank has its part of each expert, and of the shared one its tensor rank's.
TEST_P(Task7_9_SplitExperts, TakeTheMemoryThatIsPlanned) {
  int cases = 0;
  for (const int tensor_ranks : {1, 2}) {
    if (!testing::fits(spec, {tensor_ranks, 1})) continue;
    RunnerConfig config = split_over(one_rank, 2, tensor_ranks);
    LocalGroup all(2 * tensor_ranks);
    for (int replica = 0; replica < 2; ++replica) {
      config.expert_replica = replica;
      run_ranks(tensor_ranks, [&](int rank, const ParallelContext& tensor) {
        ParallelContext parallel = tensor;
        parallel.ep = &all.rank(replica * tensor_ranks + rank);
        OpContext ctx;
        ctx.parallel = &parallel;
        ModelOptions options;
        options.dtype = DType::f32;
        options.max_model_len = 64;
        options.makers.mlp = make_split_experts_mlp;
        EXPECT_EQ(load_model(ctx, checkpoint.directory, spec, options)->weight_bytes(),
                  predict_rank_memory(spec, config, place_of(config, rank)).weights)
            << "replica " << replica << ", rank " << rank << " of " << tensor_ranks;
      });
    }
    // What they have of the routed experts together is one copy, not two.
    RunnerConfig copies = config;
    copies.expert_replicas = 1;
    const int64_t experts = spec.num_expert_layers() * spec.experts.num_experts * 3 * spec.hidden_size *
                            spec.experts.intermediate_size * dtype_size(DType::f32);
    EXPECT_EQ(predict_memory(spec, copies).weights - predict_memory(spec, config).weights, experts / 2);
    ++cases;
  }
  EXPECT_GE(cases, 1);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task7_9_SplitExperts,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), true)),
                         [](const auto& info) { return info.param; });

// Ranks of 3, 0 and 2 tokens, each of which has a part of a token's sum that is its own.
TEST(Task7_9_SplitExchange, AllTokensGoToAllRanksAndTheirPartsAddUp) {
  const std::vector<int64_t> tokens = {3, 0, 2};
  run_ranks(3, [&](int rank, const ParallelContext& parallel) {
    const int64_t mine = tokens[static_cast<size_t>(rank)];
    const Tensor x = Tensor::empty({mine, 4}, DType::f32), out = Tensor::empty({mine, 4}, DType::f32);
    const Tensor ids = Tensor::empty({mine, 2}, DType::i32), weights = Tensor::zeros({mine, 2}, DType::f32);
    out.fill_bytes(0xff);
    for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(100 * rank + i);
    for (int64_t i = 0; i < ids.numel(); ++i) ids.data<int32_t>()[i] = static_cast<int32_t>(7 + i);
    int64_t seen = 0;
    ExpertExchangeArgs args;
    args.ranks = parallel.tp;
    args.x = x;
    args.expert_ids = ids;
    args.weights = weights;
    args.compute = [&](const OpContext&, const Tensor& all, const Tensor& all_ids, const Tensor&,
                       const Tensor& parts) {
      for (int64_t row = 0; row < all.dim(0); ++row) {
        seen += all_ids.at<int32_t>({row, 0}) >= 0 ? 1 : 0;
        for (int64_t i = 0; i < 4; ++i)
          parts.at<float>({row, i}) = static_cast<float>(rank + 1) * all.at<float>({row, i});
      }
    };
    args.out = out;
    expert_exchange({}, args);
    EXPECT_EQ(seen, 5) << "rank " << rank << " has not seen the tokens of all";
    for (int64_t i = 0; i < x.numel(); ++i)
      EXPECT_EQ(out.data<float>()[i], 6 * x.data<float>()[i]) << "rank " << rank << ", value " << i;
    OpContext forced;
    forced.kernels["expert_exchange"] = "all_to_all";
    EXPECT_THROW(expert_exchange(forced, args), Error) << "there is no rank to send a token to";
  });
}

TEST(Task7_9_SplitFlags, WhatDoesNotFitIsNamedWithItsNumbers) {
  const auto error_of = [](const std::string& name, int replicas, auto change) -> std::string {
    const auto folder = testing::golden_folder() / name;
    const EngineOptions one_rank = testing::small_options(folder, DeviceType::cpu, 64);
    RunnerConfig config = split_over(one_rank, replicas, 1);
    change(config);
    try {
      resolve_runner_config(load_decoder_spec(folder), config);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto nothing = [](RunnerConfig&) {};
  EXPECT_EQ(error_of("mixtral_top2", 2, nothing), "no error");
  EXPECT_THAT(error_of("qwen3_tied", 2, nothing),
              HasSubstr("--data-parallel-split-experts: the model has no experts"));
  EXPECT_THAT(error_of("mixtral_top2", 7, nothing), HasSubstr("over the 7 ranks of 7 replicas"));
  EXPECT_THAT(
      error_of("mixtral_top2", 2, [](RunnerConfig& config) { config.prefill_context_parallel_size = 2; }),
      HasSubstr("expected no --data-parallel-split-experts"));
}

}  // namespace
}  // namespace ladder
