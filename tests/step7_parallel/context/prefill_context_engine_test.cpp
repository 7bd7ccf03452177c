// Engines whose ranks share out the rows of every step: what they answer is what one rank answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step4_runner/kv_cache_size.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/memory.h"
#include "step7_parallel/context/decode_context_attention.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using testing::answers_as_one_rank;
using testing::engine_with;
using testing::Grid;
using testing::on_grid;

std::string describe(Grid grid) {
  return fmt::format("tensor {} x pipeline {} x context {}", grid.tp, grid.pp, grid.cp);
}

class Task7_12_Goldens : public ::testing::TestWithParam<std::string> {};

// Cold and with prefix hits, whole prompts and chunks of five tokens; where sums are not cut, to the bit.
TEST_P(Task7_12_Goldens, GiveWhatOneRankGives) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const EngineOptions one_rank =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto alone = engine_with(one_rank)->generate(requests);
  for (const Grid grid : {Grid{1, 1, 2}, Grid{1, 1, 4}, Grid{2, 1, 2}, Grid{1, 2, 2}}) {
    if (!testing::fits(spec, grid)) continue;
    for (const int64_t chunk : {64, 5}) {
      EngineOptions options = on_grid(one_rank, grid);
      options.runner.batch.max_num_batched_tokens = chunk;
      const std::unique_ptr<Engine> engine = engine_with(options);
      for (const char* cache : {"cold", "warm"}) {
        const auto outputs = engine->generate(requests);
        for (size_t i = 0; i < outputs.size(); ++i)
          EXPECT_TRUE(answers_as_one_rank(alone[i], outputs[i], grid,
                                          fmt::format("{}, {}, chunks of {}, {} cache, prompt {}",
                                                      checkpoint.name, describe(grid), chunk, cache, i)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Task7_12_Goldens,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });

// Lengths at, one below and one above every multiple that matters: of the ranks, of their chunks, of a block, of a step.
TEST(Task7_12_Engine, PromptsOfEveryLengthAndTheirLogProbabilities) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.runner.batch.block_size = 8;
  options.runner.batch.max_num_batched_tokens = 24;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests;
  for (const int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33}) {
    Request& request = requests.emplace_back();
    for (int64_t i = 0; i < length; ++i)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(300, 2000)));
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = 3;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 2;
    request.sampling.prompt_logprobs = 1;
  }
  const auto expected = engine_with(options)->generate(requests);
  for (const int cp : {2, 3, 4}) {
    const Grid grid{1, 1, cp};
    const std::unique_ptr<Engine> engine = engine_with(on_grid(options, grid));
    const auto together = engine->generate(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::string what = fmt::format("{} ranks, prompt of {}", cp, requests[i].prompt_token_ids.size());
      const RequestOutput by_itself = engine->generate({requests[i]})[0];
      EXPECT_TRUE(answers_as_one_rank(expected[i], together[i], grid, what + " among others"));
      EXPECT_TRUE(answers_as_one_rank(expected[i], by_itself, grid, what + " by itself"));
      for (const RequestOutput* output : {&together[i], &by_itself}) {
        ASSERT_EQ(output->prompt_logprobs.size(), expected[i].prompt_logprobs.size()) << what;
        for (size_t p = 0; p < output->prompt_logprobs.size(); ++p)
          EXPECT_EQ(output->prompt_logprobs[p].chosen.logprob, expected[i].prompt_logprobs[p].chosen.logprob)
              << what << ", position " << p;
      }
    }
  }
}

// Each rank computes its part of the rows, and nobody all of them: seen from the sizes of what tensor ranks add up.
TEST(Task7_12_Engine, ARankComputesItsPartOfTheRows) {
  EngineOptions options =
      on_grid(testing::small_options(testing::tiny_model(), DeviceType::cpu, 64), {2, 1, 2});
  options.runner.check_batches = false;
  const std::unique_ptr<Engine> engine = engine_with(options);
  const auto& trace = dynamic_cast<testing::WatchedExecutor&>(engine->executor()).trace();
  const size_t before = trace.tensor_group(0).calls(0).size();
  Request request;
  request.prompt_token_ids.assign(32, 600);
  request.sampling.max_tokens = 1;
  engine->generate({request});
  const auto calls = trace.tensor_group(0).calls(0);
  const std::string half =
      fmt::format("all_reduce f32[16, {}]", load_decoder_spec(options.model).hidden_size);
  ASSERT_GT(calls.size(), before);
  EXPECT_EQ(calls[before].str(), half);
  for (size_t i = before; i < calls.size(); ++i) EXPECT_EQ(calls[i].str().find("f32[32"), std::string::npos);
}

TEST(Task7_12_Engine, EveryRankKeepsAllKeys) {
  const EngineOptions options =
      testing::small_options(testing::golden_folder() / "llama_one_kv_head", DeviceType::cpu, 48);
  const DecoderSpec spec = load_decoder_spec(options.model);
  const auto tokens = [&](const EngineOptions& with) {
    const BatchConfig batch = resolve_runner_config(spec, with.runner).batch;
    return batch.num_kv_blocks * batch.block_size;
  };
  const EngineOptions shared = on_grid(options, {1, 1, 2});
  EXPECT_EQ(2 * tokens(shared), tokens(options)) << "of the same memory in all";
  const RunnerConfig config = resolve_runner_config(spec, shared.runner);
  const MemoryPlan plan = predict_memory(spec, config);
  const MemoryPlan measured =
      make_local_executor(executor_options(shared, open_model_folder(shared.model), config))->memory();
  EXPECT_EQ(measured.kv, plan.kv) << "what is allocated is what was announced";
  EXPECT_EQ(measured.weights, plan.weights);
  EXPECT_LE(measured.activations, 2 * plan.activations);
}

std::string refusal(const DecoderSpec& spec, const RunnerConfig& config) {
  try {
    resolve_runner_config(spec, config);
    return "nothing";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Task7_12_Engine, WhatIsNotThereIsNamed) {
  EngineOptions options =
      testing::small_options(testing::golden_folder() / "qwen3_moe_normed", DeviceType::cpu, 48);
  const DecoderSpec spec = load_decoder_spec(options.model);
  const auto refused = [&](Grid grid, auto change) {
    RunnerConfig config = on_grid(options, grid).runner;
    change(config);
    return refusal(spec, config);
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_EQ(refused({1, 1, 2}, [](RunnerConfig&) {}), "nothing");
  EXPECT_EQ(refused({1, 1, 2}, [](RunnerConfig& config) { config.dtype = DType::bf16; }), "nothing");
  EXPECT_THAT(
      refused({4, 1, 2}, [](RunnerConfig& config) { config.decode_context_parallel_size = 2; }),
      AllOf(HasSubstr("--prefill-context-parallel-size 2"), HasSubstr("--decode-context-parallel-size 2")));
  EXPECT_THAT(refused({2, 1, 2}, [](RunnerConfig& config) { config.expert_parallel = true; }),
              AllOf(HasSubstr("--prefill-context-parallel-size 2"), HasSubstr("--enable-expert-parallel")));
  EXPECT_THAT(refused({1, 1, 0}, [](RunnerConfig&) {}), HasSubstr("--prefill-context-parallel-size is 0"));
  ModelMakers makers;
  makers.attention = decode_context_attention(2, 1);
  EXPECT_THROW(share_out_prefill(makers, 2), Error);
}

}  // namespace
}  // namespace ladder
