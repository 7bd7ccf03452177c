// 7.9: experts whole on the ranks of a stage: what N ranks answer is what one answers.
#include "step7_parallel/expert/expert_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/moe/local_experts.h"
#include "step2_model/decoder/decoder_model.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using testing::engine_with;
using testing::Grid;
using ::testing::HasSubstr;

EngineOptions with_experts_on_ranks(const EngineOptions& one_rank, Grid grid) {
  EngineOptions options = testing::on_grid(one_rank, grid);
  options.runner.expert_parallel = true;
  options.makers.model.mlp = make_expert_parallel_mlp;
  return options;
}

// The width of an expert need not divide.
bool fits_whole(DecoderSpec spec, Grid grid) {
  spec.experts.intermediate_size = 0;
  return testing::fits(spec, grid) && spec.experts.num_experts >= grid.tp;
}

std::string error_of(const EngineOptions& options) {
  try {
    engine_with(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Task7_9_ExpertMap, EveryExpertIsOnOneRankAndTheFirstRanksHaveOneMore) {
  for (int64_t experts = 1; experts <= 20; ++experts)
    for (int64_t ranks = 1; ranks <= experts; ++ranks) {
      int64_t begin = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const ExpertRange here = experts_of_rank(experts, ranks, rank);
        ASSERT_EQ(here.begin, begin) << experts << " experts, rank " << rank << " of " << ranks;
        ASSERT_EQ(here.size(), experts / ranks + (rank < experts % ranks ? 1 : 0))
            << experts << " experts, rank " << rank << " of " << ranks;
        const std::vector<int32_t> numbers = expert_map(experts, ranks, rank);
        for (int64_t expert = 0; expert < experts; ++expert)
          ASSERT_EQ(numbers[static_cast<size_t>(expert)],
                    expert >= here.begin && expert < here.end ? expert - here.begin : -1)
              << "expert " << expert << " of " << experts << ", rank " << rank << " of " << ranks;
        begin = here.end;
      }
      ASSERT_EQ(begin, experts);
    }
}

TEST(Task7_9_ExpertMap, ChosenExpertsGetTheirNumbersHere) {
  const std::vector<int32_t> chosen = {2, 5, 7, -1, 4, 0};
  const Tensor ids = Tensor::from<int32_t>(chosen, {3, 2});
  const Tensor numbers = Tensor::from<int32_t>(expert_map(8, 2, 1), {8});
  find_local_experts({}, ids, numbers);
  EXPECT_THAT(std::vector<int32_t>(ids.data<int32_t>(), ids.data<int32_t>() + 6),
              ElementsAre(-1, 1, 3, -1, 0, -1));
  const Tensor wrong = Tensor::from<int32_t>(std::vector<int32_t>{1, 8}, {1, 2});
  EXPECT_THROW(find_local_experts({}, wrong, numbers), Error);
}

class Task7_9_Experts : public ::testing::TestWithParam<std::string> {
 protected:
  const testing::GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const EngineOptions one_rank =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
};

TEST_P(Task7_9_Experts, AnswerWhatOneRankAnswers) {
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto alone = engine_with(one_rank)->generate(requests);
  int grids = 0;
  for (const Grid grid : {Grid{2, 1}, Grid{4, 1}, Grid{2, 2}, Grid{3, 1}, Grid{6, 1}}) {
    if (!fits_whole(spec, grid)) continue;
    for (const int64_t chunk : {64, 5}) {
      EngineOptions options = with_experts_on_ranks(one_rank, grid);
      options.runner.batch.max_num_batched_tokens = chunk;
      const std::unique_ptr<Engine> engine = engine_with(options);
      for (const char* cache : {"cold", "warm"}) {
        const auto outputs = engine->generate(requests);
        for (size_t i = 0; i < outputs.size(); ++i)
          EXPECT_TRUE(testing::equal_or_near_tie(
              alone[i].completions[0], outputs[i].completions[0], 1e-4,
              fmt::format("{}, tensor {} x pipeline {}, chunks of {}, {} cache, prompt {}", checkpoint.name,
                          grid.tp, grid.pp, chunk, cache, i)));
      }
    }
    ++grids;
  }
  EXPECT_GE(grids, 2);
}

// A rank has its experts and no other's: its weights are exactly what their number says.
TEST_P(Task7_9_Experts, AreLoadedByTheirRankAlone) {
  RunnerConfig config = one_rank.runner;
  config.dtype = DType::f32;
  config.tensor_parallel_size = 4;
  config.expert_parallel = true;
  config.batch.max_model_len = 64;
  if (!fits_whole(spec, {4, 1})) GTEST_SKIP() << "four ranks do not fit this model";
  std::vector<int64_t> bytes(4);
  run_ranks(4, [&](int rank, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    ModelOptions options;
    options.dtype = DType::f32;
    options.max_model_len = 64;
    options.makers.mlp = make_expert_parallel_mlp;
    bytes[static_cast<size_t>(rank)] = load_model(ctx, checkpoint.directory, spec, options)->weight_bytes();
  });
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(bytes[static_cast<size_t>(rank)],
              predict_rank_memory(spec, config, place_of(config, rank)).weights)
        << "rank " << rank;
  const int64_t more = experts_of_rank(spec.experts.num_experts, 4, 0).size() -
                       experts_of_rank(spec.experts.num_experts, 4, 3).size();
  EXPECT_EQ(bytes[0] - bytes[3],
            more * spec.num_expert_layers() * 3 * spec.hidden_size * spec.experts.intermediate_size * 4);
}

// Random weights belong to an expert, wherever it is.
TEST_P(Task7_9_Experts, HaveTheDummyWeightsOfOneRank) {
  const auto weights_of = [](Model& model, const std::string& name) {
    for (Parameter* parameter : dynamic_cast<DecoderModel&>(model).parameters())
      if (parameter->name.ends_with(name)) return parameter->tensor;
    throw Error("no parameter ends with " + name);
  };
  ModelOptions options;
  options.load_format = LoadFormat::dummy;
  options.max_model_len = 64;
  const auto alone = load_model({}, checkpoint.directory, spec, options);
  options.makers.mlp = make_expert_parallel_mlp;
  const int ranks = fits_whole(spec, {2, 1}) ? 2 : 3;
  run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    const auto model = load_model(ctx, checkpoint.directory, spec, options);
    const ExpertRange here = experts_of_rank(spec.experts.num_experts, ranks, rank);
    for (const std::string name : {".experts.gate_up.weight", ".experts.down.weight"}) {
      const Tensor mine = weights_of(*model, name), all = weights_of(*alone, name);
      EXPECT_EQ(mine.dim(0), here.size());
      EXPECT_EQ(testing::to_double(mine), testing::to_double(all.narrow(0, here.begin, here.size())))
          << name << ", rank " << rank;
    }
  });
}

// Too few blocks, prompts that begin alike, aborts: all ranks' books balance, and who is not aborted gets one rank's answer.
TEST_P(Task7_9_Experts, ServeACrowdWithAborts) {
  EngineOptions options = one_rank;
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 24;
  options.runner.batch.max_num_seqs = 5;
  options.runner.batch.max_num_batched_tokens = 12;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    Request request;
    request.request_id = std::to_string(i);
    request.prompt_token_ids.assign(static_cast<size_t>(random.integer(0, 8)), 7);
    for (int64_t more = random.integer(1, 8); more > 0; --more)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(1, spec.vocab_size - 1)));
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 4;
    request.sampling.max_tokens = random.integer(1, 16);
    requests.push_back(request);
  }
  const auto alone = engine_with(options)->generate(requests);
  const int ranks = fits_whole(spec, {2, 1}) ? 2 : 3;
  const std::unique_ptr<Engine> engine = engine_with(with_experts_on_ranks(options, {ranks, 1}));
  for (const Request& request : requests) engine->add_request(request);
  std::vector<bool> aborted(requests.size());
  std::vector<RequestOutput> outputs;
  while (engine->has_unfinished()) {
    if (random.integer(0, 9) == 0) {
      const auto victim = static_cast<size_t>(random.integer(0, std::ssize(requests) - 1));
      aborted[victim] = true;
      engine->abort(requests[victim].request_id);
    }
    for (RequestOutput& output : engine->step().finished) outputs.push_back(std::move(output));
  }
  testing::expect_books_closed(engine->scheduler());
  for (const RequestOutput& output : outputs) {
    const auto i = static_cast<size_t>(std::stoi(output.request_id));
    if (!aborted[i]) {
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], output.completions[0], 1e-4,
                                             fmt::format("request {}", i)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task7_9_Experts,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), true)),
                         [](const auto& info) { return info.param; });

TEST(Task7_9_Flags, WhatDoesNotFitIsNamedWithItsNumbers) {
  const auto options = [](const std::string& name, Grid grid) {
    return with_experts_on_ranks(testing::small_options(testing::golden_folder() / name, DeviceType::cpu, 64),
                                 grid);
  };
  EXPECT_THAT(error_of(options("qwen3_tied", {2, 1})), HasSubstr("the model has no experts"));
  EXPECT_THAT(
      error_of(options("mixtral_top2", {8, 1})),
      HasSubstr(
          "--tensor-parallel-size 8 does not fit the model's 4 heads, 2 key/value heads and 4 experts"));
  EXPECT_THAT(error_of(options("mixtral_top2", {4, 1})), "no error");
}

}  // namespace
}  // namespace ladder
