// Tasks 6.1 and 6.2: the whole engine, from folders of checkpoints to tokens, on both devices, against what
// transformers answers, and against itself: neither batch, chunk, cache nor preemption may change a bit of a
// request's log probabilities in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::GoldenCheckpoint;
using testing::GoldenPrompt;
using testing::same_bits;

GoldenCheckpoint golden(const std::string& name) {
  return testing::load_golden(testing::golden_folder() / name);
}

EngineOptions options_for(const GoldenCheckpoint& checkpoint, DeviceType device = DeviceType::cpu) {
  return testing::small_options(checkpoint.directory, device, checkpoint.max_model_len);
}

class GoldenEngine : public ::testing::TestWithParam<std::tuple<std::string, DeviceType>> {
 protected:
  void SetUp() override { testing::need_device(device); }

  const DeviceType device = std::get<1>(GetParam());
  const GoldenCheckpoint checkpoint = golden(std::get<0>(GetParam()));
};

TEST_P(GoldenEngine, GreedyTokensEqualTransformersInOneBatch) {
  const auto outputs =
      engine_with(options_for(checkpoint, device))->generate(testing::greedy_requests(checkpoint));
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_EQ(outputs[i].completions[0].token_ids, checkpoint.prompts[i].greedy_token_ids) << "prompt " << i;
}

TEST_P(GoldenEngine, GenerationEndsAtTheConfiguredEndTokens) {
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  for (Request& request : requests) request.sampling.ignore_eos = false;
  const auto outputs = engine_with(options_for(checkpoint, device))->generate(requests);
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<int32_t> expected;
    FinishReason reason = FinishReason::length;
    for (int32_t token : checkpoint.prompts[i].greedy_token_ids) {
      expected.push_back(token);
      if (std::count(checkpoint.eos_token_ids.begin(), checkpoint.eos_token_ids.end(), token) > 0) {
        reason = FinishReason::stop;
        break;
      }
    }
    EXPECT_EQ(outputs[i].completions[0].token_ids, expected) << "prompt " << i;
    EXPECT_EQ(outputs[i].completions[0].finish_reason, reason) << "prompt " << i;
  }
}

// f32, one rank: the same bits alone, in a batch, in chunks of any size, with and without a (cold, warm)
// prefix cache, and after preemption.
TEST_P(GoldenEngine, NothingAroundARequestChangesABitOfIt) {
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  EngineOptions plain = options_for(checkpoint, device);
  plain.enable_prefix_caching = false;
  std::vector<RequestOutput> alone;
  {
    const std::unique_ptr<Engine> engine = engine_with(plain);
    for (const Request& request : requests) alone.push_back(engine->generate({request})[0]);
  }
  const auto expect_same = [&](const std::vector<RequestOutput>& outputs, const std::string& how) {
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(same_bits(outputs[i], alone[i])) << how << ", prompt " << i;
  };

  for (int64_t chunk : {1, 7, 64}) {
    EngineOptions options = plain;
    options.runner.batch.max_num_batched_tokens = chunk;
    expect_same(engine_with(options)->generate(requests), "in a batch, chunks of " + std::to_string(chunk));
  }
  {
    EngineOptions options = plain;
    options.enable_chunked_prefill = false;
    options.runner.batch.max_num_batched_tokens = 0;
    expect_same(engine_with(options)->generate(requests), "prompts whole");
    options.static_batching = true;
    expect_same(engine_with(options)->generate(requests), "static batching");
  }
  for (int64_t block_size : {1, 5, 16}) {
    EngineOptions options = plain;
    options.runner.batch.block_size = block_size;
    options.enable_prefix_caching = true;
    const std::unique_ptr<Engine> engine = engine_with(options);
    expect_same(engine->generate(requests), "cold prefix cache");
    const auto warm = engine->generate(requests);
    expect_same(warm, "warm prefix cache");
    for (size_t i = 0; i < warm.size(); ++i)
      EXPECT_EQ(warm[i].metrics.num_cached_tokens,
                (warm[i].metrics.num_prompt_tokens - 1) / block_size * block_size);
  }
}

TEST_P(GoldenEngine, PreemptionChangesNoBit) {
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  EngineOptions options = options_for(checkpoint, device);
  const auto undisturbed = engine_with(options)->generate(requests);
  int64_t longest = 0;
  for (const Request& request : requests)
    longest = std::max(longest,
                       static_cast<int64_t>(request.prompt_token_ids.size()) + *request.sampling.max_tokens);
  // Room for the longest, but not for it and all the others. The rotary table stays that of the first engine.
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = (longest + 3) / 4 + 2;
  if (options.runner.batch.max_model_len == 0) options.runner.batch.max_model_len = longest;
  if (checkpoint.max_model_len > 0) options.runner.batch.num_kv_blocks = checkpoint.max_model_len / 4 + 1;
  // The same requests once more, so that there is a crowd.
  const std::vector<Request> again = requests;
  requests.insert(requests.end(), again.begin(), again.end());
  for (bool prefix_caching : {false, true}) {
    options.enable_prefix_caching = prefix_caching;
    const std::unique_ptr<Engine> engine = engine_with(options);
    const auto outputs = engine->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(same_bits(outputs[i], undisturbed[i % undisturbed.size()])) << "prompt " << i;
    EXPECT_GT(engine->metrics().num_preemptions, 0);
    EXPECT_EQ(engine->scheduler().blocks().num_used_blocks(), 0);
  }
}

TEST_P(GoldenEngine, ScoresAgreeWithGeneratedLogprobs) {
  EngineOptions options = options_for(checkpoint, device);
  options.full_length_prompts = true;
  const std::unique_ptr<Engine> engine = engine_with(options);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto generated = engine->generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request score;
    score.prompt_token_ids = requests[i].prompt_token_ids;
    const auto& tokens = generated[i].completions[0].token_ids;
    score.prompt_token_ids.insert(score.prompt_token_ids.end(), tokens.begin(), tokens.end());
    score.sampling.max_tokens = 1;
    score.sampling.temperature = 0.0;
    score.sampling.prompt_logprobs = 4;
    const RequestOutput scored = engine->generate({score})[0];
    EXPECT_EQ(scored.metrics.num_cached_tokens, 0) << "prefix hits are to be bypassed";
    ASSERT_EQ(scored.prompt_logprobs.size(), score.prompt_token_ids.size() - 1);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const PositionLogprobs& ours = scored.prompt_logprobs[requests[i].prompt_token_ids.size() - 1 + t];
      const PositionLogprobs& theirs = generated[i].completions[0].logprobs[t];
      EXPECT_EQ(ours.chosen.token_id, tokens[t]);
      EXPECT_EQ(ours.chosen.logprob, theirs.chosen.logprob) << "prompt " << i << ", output token " << t;
      ASSERT_EQ(ours.top.size(), 4u);
      EXPECT_EQ(ours.top[0].token_id, tokens[t]);
    }
  }
}

class GoldenEngineRanks : public ::testing::TestWithParam<std::string> {};

// Several ranks: the same tokens, or the first difference is between two tokens that are nearly as likely.
TEST_P(GoldenEngineRanks, TensorParallelRanksAgreeOrPartAtANearTie) {
  const GoldenCheckpoint checkpoint = golden(GetParam());
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  for (int ranks : {2, 4}) {
    if (spec.num_heads % ranks != 0 || (spec.num_kv_heads % ranks != 0 && ranks % spec.num_kv_heads != 0))
      continue;
    EngineOptions options = options_for(checkpoint);
    options.runner.tensor_parallel_size = ranks;
    std::vector<RequestOutput> outputs;
    try {
      outputs = engine_with(options)->generate(requests);
    } catch (const Error& error) {
      // Sizes that this many ranks do not divide are refused in one line.
      std::printf("%s, %d ranks: %s\n", checkpoint.name.c_str(), ranks, error.what());
      continue;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& ours = outputs[i].completions[0];
      const auto& theirs = checkpoint.prompts[i].greedy_token_ids;
      ASSERT_EQ(ours.token_ids.size(), theirs.size());
      for (size_t t = 0; t < theirs.size(); ++t) {
        if (ours.token_ids[t] == theirs[t]) continue;
        const double gap = ours.logprobs[t].top[0].logprob - ours.logprobs[t].top[1].logprob;
        std::printf("%s, %d ranks, prompt %zu: parts at output token %zu, a gap of %.2e\n",
                    checkpoint.name.c_str(), ranks, i, t, gap);
        EXPECT_LT(gap, 1e-4);
        break;
      }
    }
  }
}

class EngineFeatures : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { testing::need_device(GetParam()); }
};

// Every pair of features in one run at least: whatever is switched on, greedy requests keep their tokens,
// everybody gets an answer of the right shape, and the cache is empty at the end.
TEST_P(EngineFeatures, WorkInEveryPairing) {
  const GoldenCheckpoint checkpoint = golden("qwen3_tied");
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int kFeatures = 10;
  std::set<std::pair<int, int>> seen;  // (feature, value) pairs met together
  const size_t all_pairs = static_cast<size_t>(kFeatures * (kFeatures - 1) / 2 * 4);
  for (int round = 0; round < 200 && seen.size() < all_pairs; ++round) {
    bool on[kFeatures];
    for (bool& feature : on) feature = random.integer(0, 1) == 1;
    for (int a = 0; a < kFeatures; ++a)
      for (int b = a + 1; b < kFeatures; ++b) seen.insert({2 * a + on[a], 2 * (kFeatures + b) + on[b]});
    EngineOptions options = options_for(checkpoint, GetParam());
    options.enable_prefix_caching = on[0];
    options.enable_chunked_prefill = on[1];
    options.static_batching = on[2];
    options.policy = on[3] ? SchedulingPolicy::priority : SchedulingPolicy::fcfs;
    options.runner.batch.max_num_batched_tokens = on[1] ? 16 : 0;
    options.runner.batch.block_size = 4;
    options.runner.batch.max_model_len = 96;
    if (on[4]) {  // a cache that is too small for all
      options.runner.kv_memory = 0;
      options.runner.batch.num_kv_blocks = 40;
    }
    const std::unique_ptr<Engine> engine = engine_with(options);
    std::vector<Request> requests = testing::greedy_requests(checkpoint);
    const size_t num_greedy = requests.size();
    for (int i = 0; i < 3; ++i) {
      Request request = requests[static_cast<size_t>(i) + 2];
      request.sampling.priority = i % 2;
      if (on[5]) request.sampling.n = 3;
      if (on[6]) request.sampling.logprobs = 2;
      if (on[7]) request.sampling.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
      if (on[8]) {
        request.sampling.repetition_penalty = 1.3;
        request.sampling.presence_penalty = 0.5;
        request.sampling.frequency_penalty = -0.5;
      }
      if (on[9]) {
        request.sampling.temperature = 0.9;
        request.sampling.top_k = 20;
        request.sampling.top_p = 0.9;
        request.sampling.min_p = 0.01;
      }
      requests.push_back(request);
    }
    std::string features;
    for (bool feature : on) features += feature ? '1' : '0';
    SCOPED_TRACE("features " + features);
    const auto outputs = engine->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_EQ(outputs[i].completions.size(), static_cast<size_t>(requests[i].sampling.n));
      for (const CompletionOutput& completion : outputs[i].completions) {
        if (i < num_greedy) {
          EXPECT_EQ(completion.token_ids, checkpoint.prompts[i].greedy_token_ids);
        }
        EXPECT_GE(completion.token_ids.size(), 1u);
        EXPECT_LE(completion.token_ids.size(), 28u);
        EXPECT_TRUE(completion.finish_reason == FinishReason::stop ||
                    (completion.finish_reason == FinishReason::length && completion.token_ids.size() == 28u));
        EXPECT_EQ(completion.logprobs.size(),
                  requests[i].sampling.logprobs ? completion.token_ids.size() : 0u);
      }
    }
    EXPECT_EQ(engine->scheduler().blocks().num_used_blocks(), 0);
  }
  EXPECT_EQ(seen.size(), all_pairs);
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, GoldenEngine,
    ::testing::Combine(::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                       testing::both_devices()),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + testing::device_word(std::get<1>(info.param));
    });
INSTANTIATE_TEST_SUITE_P(Goldens, GoldenEngineRanks,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Devices, EngineFeatures, testing::both_devices(),
                         [](const auto& info) { return testing::device_word(info.param); });

}  // namespace
}  // namespace ladder
