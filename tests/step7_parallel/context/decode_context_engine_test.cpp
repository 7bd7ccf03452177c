// Engines whose ranks share out the keys of a KV head: what they answer is what one rank answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "step4_runner/kv_cache_size.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/memory.h"
#include "step7_parallel/context/decode_context_attention.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::Grid;

EngineOptions sharing_keys(const EngineOptions& one_rank, int tp, int shares, int64_t run = 1) {
  EngineOptions options = testing::on_grid(one_rank, {tp, 1});
  options.runner.decode_context_parallel_size = shares;
  options.runner.kv_interleave_size = run;
  options.makers.model.attention = decode_context_attention(shares, run);
  return options;
}

// Which groups a model with so many KV heads can have.
bool can_share(const DecoderSpec& spec, int tp, int shares) {
  return testing::fits(spec, {tp, 1}) && tp / spec.num_kv_heads % shares == 0 && tp > spec.num_kv_heads;
}

class Task7_11_Goldens : public ::testing::TestWithParam<std::string> {};

// Cold and with prefix hits, whole prompts and chunks of five tokens.
TEST_P(Task7_11_Goldens, GiveTheTokensOfOneRankOrPartAtANearTie) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const EngineOptions one_rank =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto alone = engine_with(one_rank)->generate(requests);
  for (const auto& [tp, shares] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    if (!can_share(spec, tp, shares)) continue;
    for (const int64_t chunk : {64, 5}) {
      EngineOptions options = sharing_keys(one_rank, tp, shares, chunk == 5 ? 2 : 1);
      options.runner.batch.max_num_batched_tokens = chunk;
      const std::unique_ptr<Engine> engine = engine_with(options);
      for (const char* cache : {"cold", "warm"}) {
        const auto outputs = engine->generate(requests);
        for (size_t i = 0; i < outputs.size(); ++i)
          EXPECT_TRUE(testing::equal_or_near_tie(
              alone[i].completions[0], outputs[i].completions[0], 1e-4,
              fmt::format("{}, {} ranks, {} share keys, chunks of {}, {} cache, prompt {}", checkpoint.name,
                          tp, shares, chunk, cache, i)));
      }
    }
  }
}

std::vector<std::string> goldens_that_can_share() {
  std::vector<std::string> names;
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const DecoderSpec spec = load_decoder_spec(testing::golden_folder() / name);
    if (can_share(spec, 2, 2) || can_share(spec, 4, 2)) names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Task7_11_Goldens, ::testing::ValuesIn(goldens_that_can_share()),
                         [](const auto& info) { return info.param; });

struct Preemptions : EngineObserver {
  void on_submit(const Engine&, const SchedulerOutput& step) override { count += std::ssize(step.preempted); }
  void on_results(const Engine&, const StepResult&) override {}
  int64_t count = 0;
};

// Little room, shared beginnings, chunks, aborts: who is not aborted gets what one rank gives, and the books are closed.
struct CrowdOnRanks {
  const char* model;
  int ranks, shares;
};
class Task7_11_Crowds : public ::testing::TestWithParam<CrowdOnRanks> {};

TEST_P(Task7_11_Crowds, GetWhatOneRankGives) {
  const auto [model, ranks, shares] = GetParam();
  testing::Random random;
  SCOPED_TRACE(random.describe());
  EngineOptions one_rank = testing::small_options(testing::golden_folder() / model, DeviceType::cpu, 48);
  one_rank.runner.kv_memory = 0;
  one_rank.runner.batch.block_size = 4;
  one_rank.runner.batch.num_kv_blocks = 17;
  one_rank.runner.batch.max_num_seqs = 6;
  one_rank.runner.batch.max_num_batched_tokens = 12;
  std::vector<Request> requests;
  std::vector<int32_t> shared(12);
  for (int32_t& id : shared) id = static_cast<int32_t>(random.integer(3, 60));
  for (int i = 0; i < 24; ++i) {
    Request& request = requests.emplace_back();
    request.request_id = std::to_string(i);
    request.prompt_token_ids.assign(shared.begin(), shared.begin() + (i % 3 == 0 ? 4 : 12));
    for (int64_t extra = random.integer(1, 10); extra > 0; --extra)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(3, 60)));
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = random.integer(4, 20);
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 4;
    request.sampling.n = i % 6 == 5 ? 2 : 1;
  }
  const auto expected = engine_with(one_rank)->generate(requests);
  const std::unique_ptr<Engine> engine = engine_with(sharing_keys(one_rank, ranks, shares));
  const auto preemptions = std::make_shared<Preemptions>();
  engine->add_observer(preemptions);
  std::map<RequestId, RequestOutput> outputs;
  size_t added = 0;
  for (int step = 1; outputs.size() < requests.size(); ++step) {
    for (int i = 0; i < 3 && added < requests.size() && added < outputs.size() + 10; ++i)
      engine->add_request(requests[added++]);
    for (RequestOutput& output : engine->step().finished) outputs[output.request_id] = output;
    if (step % 9 == 0) engine->abort(requests[static_cast<size_t>(random.integer(0, 23))].request_id);
  }
  int compared = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestOutput& output = outputs.at(requests[i].request_id);
    if (std::any_of(output.completions.begin(), output.completions.end(),
                    [](const auto& one) { return one.finish_reason == FinishReason::abort; }))
      continue;
    ++compared;
    EXPECT_TRUE(testing::answers_as_one_rank(expected[i], output, {ranks, 1}, fmt::format("request {}", i)));
  }
  EXPECT_GT(compared, 8);
  EXPECT_GT(preemptions->count, 0);
  testing::expect_books_closed(engine->scheduler());
}

INSTANTIATE_TEST_SUITE_P(Ranks, Task7_11_Crowds,
                         ::testing::Values(CrowdOnRanks{"llama_one_kv_head", 2, 2},
                                           CrowdOnRanks{"llama_linear", 4, 2}),
                         [](const auto& info) {
                           return fmt::format("{}Of{}", info.param.shares, info.param.ranks);
                         });

// Field bug vLLM 41623: long prompts turned to nonsense.
TEST(Task7_11_Engine, ALongPromptIsContinuedAsByOneRank) {
  EngineOptions one_rank = testing::small_options(testing::tiny_model(), DeviceType::cpu, 320);
  testing::Random random;
  SCOPED_TRACE(random.describe());
  Request request;
  for (int i = 0; i < 301; ++i)
    request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(300, 2000)));
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 4;
  request.sampling.prompt_logprobs = 1;
  const auto alone = engine_with(one_rank)->generate({request})[0];
  const auto shared = engine_with(sharing_keys(one_rank, 8, 2, 4))->generate({request})[0];
  EXPECT_TRUE(
      testing::equal_or_near_tie(alone.completions[0], shared.completions[0], 1e-4, "the long prompt"));
  ASSERT_EQ(alone.prompt_logprobs.size(), shared.prompt_logprobs.size());
  for (size_t p = 0; p < alone.prompt_logprobs.size(); ++p)
    EXPECT_NEAR(alone.prompt_logprobs[p].chosen.logprob, shared.prompt_logprobs[p].chosen.logprob, 1e-4) << p;
}

TEST(Task7_11_Engine, TheSameMemoryHoldsTwiceTheTokens) {
  EngineOptions options =
      testing::small_options(testing::golden_folder() / "llama_one_kv_head", DeviceType::cpu, 48);
  const DecoderSpec spec = load_decoder_spec(options.model);
  const auto tokens = [&](const EngineOptions& with) {
    const BatchConfig batch = resolve_runner_config(spec, with.runner).batch;
    return batch.num_kv_blocks * batch.block_size;
  };
  const EngineOptions twice = testing::on_grid(options, {2, 1}), shared = sharing_keys(options, 2, 2);
  EXPECT_EQ(tokens(shared), 2 * tokens(twice));
  const RunnerConfig config = resolve_runner_config(spec, shared.runner);
  EXPECT_EQ(
      make_local_executor(executor_options(shared, open_model_folder(shared.model), config))->memory().kv,
      predict_memory(spec, config).kv)
      << "what is allocated is what was announced";
}

// Where the cache gets what a GPU's memory leaves.
TEST(Task7_11_Engine, TheRoomThatIsLeftOnAGpuHoldsTwiceTheTokens) {
  const DecoderSpec spec = load_decoder_spec(testing::golden_folder() / "llama_one_kv_head");
  RunnerConfig config;
  config.device = {DeviceType::cuda, 0};
  config.batch.block_size = 32;
  config.batch.max_model_len = 48;
  config.tensor_parallel_size = 2;
  const auto blocks = [&](int shares) {
    config.decode_context_parallel_size = shares;
    return size_kv_cache(spec, config, int64_t{1} << 30, int64_t{1} << 29).batch.num_kv_blocks;
  };
  EXPECT_NEAR(static_cast<double>(blocks(2)), 2.0 * static_cast<double>(blocks(1)), 1);
}

std::string refusal(const DecoderSpec& spec, const RunnerConfig& config) {
  try {
    resolve_runner_config(spec, config);
    return "nothing";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Task7_11_Engine, WhatCannotBeSharedIsNamed) {
  const EngineOptions options =
      testing::small_options(testing::golden_folder() / "qwen3_tied", DeviceType::cpu, 48);
  const DecoderSpec spec = load_decoder_spec(options.model);  // 4 heads, 2 of keys
  const auto refused = [&](int tp, int shares, int64_t run, auto change) {
    RunnerConfig config = sharing_keys(options, tp, shares, run).runner;
    change(config);
    return refusal(spec, config);
  };
  const auto as_is = [](RunnerConfig&) {};
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_EQ(refused(4, 2, 1, as_is), "nothing");
  EXPECT_THAT(refused(2, 2, 1, as_is),
              AllOf(HasSubstr("--decode-context-parallel-size 2"), HasSubstr("2 KV heads")));
  EXPECT_THAT(refused(4, 4, 1, as_is), HasSubstr("--decode-context-parallel-size 4"));
  EXPECT_THAT(refused(4, 2, 3, as_is), AllOf(HasSubstr("--block-size 16"), HasSubstr("interleave-size 3")));
  EXPECT_EQ(refused(4, 2, 1, [](RunnerConfig& config) { config.dtype = DType::bf16; }), "nothing");
  EXPECT_THAT(refused(4, 2, 1, [](RunnerConfig& config) { config.kv_cache_dtype = KvCacheDType::int8; }),
              AllOf(HasSubstr("--kv-cache-dtype int8"), HasSubstr("--decode-context-parallel-size 2")));
}

}  // namespace
}  // namespace ladder
